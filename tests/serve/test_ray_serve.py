"""`guerdon serve --ray`: settings; replicas that follow the requests; requests of a replica that is killed.

The requests of `test_routes.py` and `test_middleware.py` go to such a server, too (`toy_server`).
"""

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest
from toys import step_value

from guerdon.serve.client import RewardClient
from guerdon.serve.launch import serve_settings
from guerdon.settings.remote import RemoteSettings
from tables import refuses

CONSTANT = {"backend": "constant"}


@pytest.mark.parametrize(
    ("flags", "overrides", "key", "message"),
    [
        ({"min_replicas": 2}, [], "--min-replicas", "without --ray"),
        ({"ray": {}, "min_replicas": 5}, [], "ray.min_replicas", "min_replicas 5 is more than max_replicas 4"),
        ({"ray": {}, "processes": 2}, [], "models.constant.processes", "the copies of a model are ray.min_replicas"),
        ({"ray": {}, "update_dir": "states"}, [], "models.constant.update_dir", "would drift apart"),
        ({"ray": {}, "gpu_ids": "0"}, [], "gpu_ids", "gpu_ids would do nothing"),
        ({"ray": {}}, ["limits.read_timeout_s=3"], "limits.read_timeout_s", "read_timeout_s would do nothing"),
        ({"ray": {}}, ["ray.address=ray://head:10001"], "ray.address", "Ray Client"),
    ],
)
def test_what_replicas_cannot_do_is_refused(flags, overrides, key, message):
    with refuses(key) as refused:
        serve_settings(None, overrides, {**CONSTANT, **flags})
    assert message in str(refused.value)


def test_flags_and_file_are_one_section(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("models: {c: {backend: constant}}\nray: {replica_cpus: 2, max_replicas: 3}\n")
    settings = serve_settings(file, [], {"ray": {}, "max_replicas": 6})
    assert (settings.ray.replica_cpus, settings.ray.min_replicas, settings.ray.max_replicas) == (2, 1, 6)
    assert serve_settings(file, ["ray=null"], {}).ray is None


def replicas(running):
    """Processes of the replicas of this server; its cluster is its child."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_bytes()
            if name.startswith(b"ray::ServeReplica") and parent(parent(folder.name)) == str(running.process.pid):
                found.add(int(folder.name))
        except OSError:
            continue
    return found


def parent(pid):
    return re.search(r"PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1)


def waited_for(true, seconds=240.0):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_replicas_follow_the_requests_and_a_killed_one_loses_none_silently(server, tmp_path):
    pytest.importorskip("ray.serve", reason="needs guerdon[ray-serve]")
    gate, journal = tmp_path / "gate", tmp_path / "journal"
    running = server(
        models={"toy": {"custom_backend": "toys:make", "options": {"gate": str(gate), "journal": str(journal)}}},
        ray={"replica_cpus": 0.25, "max_replicas": 2, "target_requests": 2, "upscale_delay_s": 0},
        batch={"max_items": 1, "cache_items": 0}, seconds=300,
    )  # fmt: skip
    assert len(replicas(running)) == 1
    assert running.get("/metrics").status_code == running.post("/v1/reload").status_code == 404, "one replica's own"
    gate.touch()
    remote = RemoteSettings(endpoint=running.url + "/v1/rewards", timeout=300, read_timeout=200, concurrency=12)
    texts = ["a" * n + "b" for n in range(24)]
    with RewardClient(remote) as client, ThreadPoolExecutor(24) as pool:
        rewards = [pool.submit(client.rewards, prompts=["q"], completions=[text]) for text in texts[:12]]
        raw = [
            pool.submit(httpx.post, running.url + "/v1/rewards", json=item(text), timeout=300) for text in texts[12:]
        ]
        waited_for(lambda: len(replicas(running)) == 2)  # so many requests wait that there is another replica
        waited_for(lambda: journal.exists() and journal.read_text())
        os.kill(min(replicas(running)), signal.SIGKILL)  # the first one, where all of them wait
        gate.unlink()
        assert [one.result(300) for one in rewards] == [[pytest.approx(step_value(text))] for text in texts[:12]]
        assert not client.counts.get("unscored")
        answers = [one.result(300) for one in raw]
    lost = [answer for answer in answers if answer.status_code != 200]
    assert lost, "those that were with the replica are answered, with an error"
    assert {answer.status_code for answer in lost} <= {500, 502, 503}
    for text, answer in zip(texts[12:], answers, strict=True):
        if answer.status_code == 200:
            assert answer.json()["results"][0]["score"] == pytest.approx(step_value(text))
    waited_for(lambda: len(replicas(running)) == 2)  # it is replaced while there is work, or at once
    assert running.stop(120) == 0
    assert not replicas(running)


def item(text):
    return {"items": [{"prompt": "q", "steps": [text]}]}
