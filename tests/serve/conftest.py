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


RAY = {"replica_cpus": 0.25, "max_replicas": 1}


@pytest.fixture(scope="module", params=["process", pytest.param("ray", marks=pytest.mark.slow)])
def toy_server(request, tmp_path_factory):
    """One server with a toy, shared by the tests of a module; the same requests get the same answers from Ray Serve."""
    more = {}
    if request.param == "ray":
        pytest.importorskip("ray.serve", reason="needs guerdon[ray-serve]")
        more = {"ray": RAY, "seconds": 300}
    running = start_server(tmp_path_factory.mktemp("server"), **more)
    yield running
    assert running.stop(120) == 0
