"""A call outlives the restart of its server: a real one, killed while a client asks it."""

import asyncio
import threading
import time

import pytest
from processes import start_server

from guerdon.network.retry import Clock
from guerdon.serve.client import RewardClient
from guerdon.settings.remote import RemoteSettings


def restarted(tmp_path, settings, clock, gone):
    """Rewards of a call that begins when its server is dead; the server is back once `gone` returns."""
    first = start_server(tmp_path)
    port = int(first.url.rpartition(":")[2])
    with RewardClient(settings(first.url), clock=clock) as client:
        before = client.rewards(["q"], ["an answer"])
        first.process.kill()
        first.process.wait()
        first.client.close()
        found = []
        asking = threading.Thread(target=lambda: found.extend(client.rewards(["q"], ["an answer"])))
        asking.start()
        gone()
        second = start_server(tmp_path, port=port)
        asking.join(120)
        assert second.stop() == 0
        return before, found, client.counts


@pytest.mark.slow
def test_a_call_outlives_a_restart_that_takes_more_tries_than_five(tmp_path):
    """Where a circuit breaker once ended it; the clock runs twenty times as fast."""
    seventh, pauses = threading.Event(), []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 7:
            seventh.set()
        await asyncio.sleep(seconds / 20)

    fast = Clock(now=lambda: 20 * time.monotonic(), sleep_async=sleep)
    before, found, counts = restarted(
        tmp_path, lambda url: RemoteSettings(endpoint=url, tries=1000, timeout=2400.0), fast, lambda: seventh.wait(60)
    )
    assert found == before
    assert None not in found
    assert len(pauses) >= 7
    assert counts["tries"] >= 10
    assert counts["unscored"] == 0


@pytest.mark.slow
def test_by_default_a_call_outlives_half_a_minute_without_a_server(tmp_path):
    before, found, counts = restarted(
        tmp_path, lambda url: RemoteSettings(endpoint=url), None, lambda: threading.Event().wait(30)
    )
    assert found == before
    assert None not in found
    assert counts["unscored"] == 0
