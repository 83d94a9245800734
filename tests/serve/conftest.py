"""Servers for tests: `server(...)` starts one on a free port and ends it afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from processes import Running, start_server


@pytest.fixture
def server(tmp_path):
    """`start_server`, with the folder of the test; what it started is ended."""
    started: list[Running] = []

    def start(**options: Any) -> Running:
        started.append(start_server(options.pop("folder", tmp_path), **options))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        running.client.close()


@pytest.fixture(scope="module")
def toy_server(tmp_path_factory):
    """One server with a toy, shared by the tests of a module."""
    running = start_server(tmp_path_factory.mktemp("server"))
    yield running
    assert running.stop() == 0
