"""Clients that disconnect: their items are not scored, other clients are not affected. Real processes and sockets."""

import asyncio
import base64
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import numpy as np
import pytest
from PIL import Image
from processes import start_server

from child import environment
from guerdon.serve.client import AsyncRewardClient
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Episode
from tables import first

pytestmark = pytest.mark.hostile("http")


class Turnstile:
    """A server with a model whose calls wait to be let go (`toys.Toy`), and clients that disconnect.

    Args:
        folder: for its pipes.
        models: name to options of the toy.
        factory: of the toys.
        **settings: of the server.
    """

    def __init__(self, folder, models=None, factory="toys:make", processes=None, **settings):
        for name in ("enter", "leave"):
            os.mkfifo(folder / name)
        self.folder = folder
        models = models or {"toy": {}}
        self.server = start_server(
            folder,
            models={
                name: {
                    "custom_backend": factory, "processes": processes, **options.pop("settings", {}),
                    "options": {"turnstile": str(folder), **options},
                }
                for name, options in models.items()
            },
            **{"batch": {"cache_items": 0, "max_items": 64}, **settings},
        )  # fmt: skip
        self.pool = ThreadPoolExecutor(8)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.process.kill()
        self.server.process.wait()
        self.server.client.close()
        self.pool.shutdown()

    def entered(self):
        """Wait for the next call of a model; the tasks of its episodes."""
        return json.loads(Path(self.folder, "enter").read_text())

    def let_go(self):
        Path(self.folder, "leave").write_text("go")

    def ask(self, *tasks, model=None):
        """A client that waits; its answer in future."""
        body = {"items": [{"prompt": task, "steps": ["a"]} for task in tasks], "aggregation": "last"}
        url, more = f"{self.server.url}/v1/rewards", {} if model is None else {"model": model}
        return self.pool.submit(httpx.post, url, json=body | more, timeout=60)

    def count(self, result, metric="guerdon_items_total"):
        found = re.search(rf'{metric}{{.*"{result}".*}} (\S+)', self.server.get("/metrics").text)
        return float(found[1]) if found else 0.0

    def wait_for(self, result, n, metric="guerdon_items_total"):
        """Until the server has counted so many."""
        end = time.monotonic() + 30
        while (found := self.count(result, metric)) != n:
            assert time.monotonic() < end, f"{metric} {result} is {found}, not {n}"

    def in_flight(self, n):
        """Until there are so many requests besides the one that asks."""
        while f"guerdon_requests_in_flight {n + 1}.0" not in self.server.get("/metrics").text:
            pass

    def queued(self, n):
        self.wait_for("toy", n, "guerdon_queue_items")

    def send(self, path, body, *, content_type="application/json", connection=None, cut=0):
        """A client that has sent a request (all but its last bytes), and does not read the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = connection or self.connect()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data[: len(data) - cut])
        return connection

    def connect(self):
        host, port = self.server.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=30)


def answered(connection):
    """The status of an answer that is read to its end."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def picture():
    file = io.BytesIO()
    Image.fromarray(np.full((28, 28, 3), 90, np.uint8)).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


def form():
    """The body of an upload to /score."""
    file = io.BytesIO()
    np.save(file, np.full((2, 28, 28, 3), 90, np.uint8))
    head = b'--x\r\nContent-Disposition: form-data; name="task_text"\r\n\r\ngone\r\n--x\r\nContent-Disposition: '
    return head + b'form-data; name="video"; filename="a.npy"\r\n\r\n' + file.getvalue() + b"\r\n--x--\r\n"


REQUESTS = "guerdon_requests_total"
LEFT = '/v1/rewards",status="499'  # in its labels, of clients that disconnected before the answer
ITEMS = [{"prompt": f"gone {n}", "steps": ["a"]} for n in range(3)]
TURNS = [{"role": "user", "content": "gone"}, {"role": "assistant", "content": "a<extra_0>"}]
TEXT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + picture()}}
CHAT = [PICTURE, {"type": "text", "text": "gone"}]
ROUTES = {  # path: items, body
    "/v1/rewards": (3, {"items": ITEMS, "aggregation": "last"}),
    "/v1/update": (3, {"items": [{**item, "outcome": True} for item in ITEMS], "update": "none"}),
    "/classify": (2, {"input": [TEXT.format("gone"), TEXT.format("far")]}),
    "/pooling": (1, {"messages": TURNS, "task": "token_classify"}),
    "/get_reward": (2, {"query": [TEXT.format("gone"), TEXT.format("far")]}),
    "/rm": (1, {"prompt": "gone", "response": "a"}),
    "/score": (1, {"task_text": "gone", "frames_base64": [picture()]}),
    "/v1/chat/completions": (1, {"messages": [{"role": "user", "content": CHAT}]}),
}


@pytest.fixture(scope="module")
def turnstile(tmp_path_factory):
    """One text toy."""
    with Turnstile(tmp_path_factory.mktemp("text")) as found:
        yield found


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    """One toy that scores both."""
    with Turnstile(tmp_path_factory.mktemp("vision"), {"toy": {"modality": "both"}}) as found:
        yield found


@pytest.mark.parametrize("path", ROUTES)
def test_on_every_route_what_waits_is_not_scored(turnstile, vision, path):
    door = vision if path in ("/score", "/v1/chat/completions") else turnstile
    items, body = ROUTES[path]
    cancelled, scored = door.count("cancelled"), door.count("scored")
    first = door.ask("first")
    assert door.entered() == ["first"]
    gone = door.send(path, body)
    door.queued(items)
    gone.close()
    door.wait_for("cancelled", cancelled + items)
    door.queued(0)
    last = door.ask("last")
    door.queued(1)
    door.let_go()
    assert door.entered() == ["last"]
    door.let_go()
    assert (first.result().status_code, last.result().status_code) == (200, 200)
    assert door.count("scored") == scored + 2
    assert f'guerdon_requests_total{{route="{path}",status="499"}}' in door.server.get("/metrics").text


def test_an_upload_is_cancelled_too(vision):
    cancelled = vision.count("cancelled")
    first = vision.ask("first")
    assert vision.entered() == ["first"]
    gone = vision.send("/score", form(), content_type="multipart/form-data; boundary=x")
    vision.queued(1)
    gone.close()
    vision.wait_for("cancelled", cancelled + 1)
    vision.let_go()
    assert first.result().status_code == 200


def test_other_clients_of_the_batch_get_their_scores(turnstile):
    cancelled = turnstile.count("cancelled")
    first = turnstile.ask("first")
    assert turnstile.entered() == ["first"]
    stays = turnstile.ask("shared", "own")
    turnstile.queued(2)
    items = [{"prompt": task, "steps": ["a"]} for task in ("alone", "shared", "alone", "also")]
    gone = turnstile.send("/v1/rewards", {"items": items, "aggregation": "last"})
    turnstile.queued(4)
    gone.close()
    turnstile.wait_for("cancelled", cancelled + 2)  # not what the other client waits for
    turnstile.queued(2)
    turnstile.let_go()
    assert turnstile.entered() == ["shared", "own"]
    turnstile.let_go()
    assert [one["score"] for one in stays.result().json()["results"]] == [1.0, 1.0]
    assert first.result().status_code == 200


def test_what_has_begun_ends_and_those_who_joined_get_it(turnstile):
    scored, cancelled = turnstile.count("scored"), turnstile.count("cancelled")
    gone = turnstile.send("/v1/rewards", {"items": ITEMS[:2], "aggregation": "last"})
    assert turnstile.entered() == ["gone 0", "gone 1"]
    shared, left = turnstile.count("shared"), turnstile.count(LEFT, REQUESTS)
    joins = turnstile.ask("gone 1")
    turnstile.wait_for("shared", shared + 1)
    gone.close()
    turnstile.wait_for(LEFT, left + 1, REQUESTS)
    turnstile.let_go()
    assert joins.result().json()["results"][0]["score"] == 1.0
    turnstile.wait_for("scored", scored + 2)
    assert turnstile.count("cancelled") == cancelled


def test_of_a_request_in_many_batches_the_rest_is_dropped(tmp_path):
    with Turnstile(tmp_path, batch={"max_items": 2, "cache_items": 0}) as door:
        items = [{"prompt": f"gone {n}", "steps": ["a"]} for n in range(7)]
        gone = door.send("/v1/rewards", {"items": items, "aggregation": "last"})
        assert door.entered() == ["gone 0", "gone 1"]
        gone.close()
        door.wait_for("cancelled", 5)
        last = door.ask("last")
        door.queued(1)
        door.let_go()
        assert door.entered() == ["last"]
        door.let_go()
        assert last.result().status_code == 200
        assert (door.count("scored"), door.count("cancelled")) == (3, 5)


def test_limits_are_released(tmp_path):
    limits = {"concurrency": 2, "max_bytes_in_flight": 40_000, "max_body_bytes": 30_000}
    with Turnstile(tmp_path, limits=limits) as door:
        first = door.ask("first")
        assert door.entered() == ["first"]
        for n in range(1, 6):  # each takes most of what there is
            body = {"items": [{"prompt": "gone" + "x" * 25_000, "steps": ["a"]}], "aggregation": "last"}
            gone = door.send("/v1/rewards", body)
            door.queued(1)
            assert door.server.post("/v1/rewards", body).status_code == 429
            gone.close()
            door.wait_for("cancelled", n)
        unfinished = door.send("/v1/rewards", body, cut=1)
        door.server.get("/health")
        unfinished.close()
        door.wait_for(LEFT, 5 + 1, REQUESTS)
        last = door.ask("y" * 25_000)
        door.queued(1)
        door.let_go()
        assert first.result().status_code == 200
        assert door.entered() == ["y" * 25_000]
        door.let_go()
        assert last.result().status_code == 200


def test_over_a_connection_that_was_used_before(turnstile):
    cancelled = turnstile.count("cancelled")
    body = {"items": [{"prompt": "before", "steps": ["a"]}], "aggregation": "last"}
    connection = turnstile.send("/v1/rewards", body)
    assert turnstile.entered() == ["before"]
    turnstile.let_go()
    assert answered(connection) == 200
    first = turnstile.ask("first")
    assert turnstile.entered() == ["first"]
    turnstile.send("/v1/rewards", {"items": ITEMS, "aggregation": "last"}, connection=connection)
    turnstile.queued(3)
    connection.close()
    turnstile.wait_for("cancelled", cancelled + 3)
    turnstile.let_go()
    assert first.result().status_code == 200


def test_with_another_request_behind_it(turnstile):
    cancelled = turnstile.count("cancelled")
    first = turnstile.ask("first")
    assert turnstile.entered() == ["first"]
    connection = turnstile.send("/v1/rewards", {"items": ITEMS, "aggregation": "last"})
    turnstile.queued(3)
    turnstile.send("/v1/rewards", {"items": ITEMS[:1], "aggregation": "last"}, connection=connection)
    connection.close()
    turnstile.wait_for("cancelled", cancelled + 3)
    turnstile.let_go()
    assert first.result().status_code == 200
    assert turnstile.count("toy", "guerdon_queue_items") == 0


def test_an_answer_is_no_disconnection(turnstile):
    """Two requests one after another and one in chunks are answered on one connection, with nothing cancelled."""
    cancelled = turnstile.count("cancelled")
    connection = turnstile.connect()
    body = {"items": [{"prompt": "here", "steps": ["a"]}], "aggregation": "last"}
    for _ in range(2):
        turnstile.send("/v1/rewards", body, connection=connection)
        assert turnstile.entered() == ["here"]
        turnstile.let_go()
        assert answered(connection) == 200
    data = json.dumps(body).encode()
    connection.sendall(b"POST /v1/rewards HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    for part in (data[:10], data[10:]):
        connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
    connection.sendall(b"0\r\n\r\n")
    assert turnstile.entered() == ["here"]
    turnstile.let_go()
    assert answered(connection) == 200
    connection.close()
    assert turnstile.count("cancelled") == cancelled


def test_behind_copies_in_processes(tmp_path):
    with Turnstile(tmp_path, processes=1) as door:
        first = door.ask("first")
        assert door.entered() == ["first"]
        gone = door.send("/v1/rewards", {"items": ITEMS, "aggregation": "last"})
        door.queued(3)
        gone.close()
        door.wait_for("cancelled", 3)
        last = door.ask("last")
        door.queued(1)
        door.let_go()
        assert door.entered() == ["last"]
        door.let_go()
        assert (first.result().status_code, last.result().status_code) == (200, 200)


def test_an_update_that_has_not_begun_is_not_learnt(tmp_path):
    models = {"toy": {"settings": {"update_dir": str(tmp_path / "states")}}}
    with Turnstile(tmp_path, models, "toys:make_learner") as door:
        body = {"items": [{**ITEMS[0], "outcome": True}], "update": "before"}
        first = door.pool.submit(httpx.post, f"{door.server.url}/v1/update", json=body, timeout=60)
        assert door.entered() == ["learn", "gone 0"]
        for n in range(1, 7):  # more than may wait at a time
            gone = door.send("/v1/update", body)
            door.in_flight(2)
            gone.close()
            door.wait_for("cancelled", n, "guerdon_updates_total")
        door.let_go()
        assert door.entered() == ["gone 0"]
        door.let_go()
        assert first.result().json()["updates"] == 1
        assert door.count("learnt", "guerdon_updates_total") == 1


def test_a_shutdown_does_not_wait_for_clients_that_are_gone(tmp_path):
    with Turnstile(tmp_path, limits={"drain_s": 3600}) as door:
        running = door.send("/v1/rewards", {"items": ITEMS[:1], "aggregation": "last"})
        assert door.entered() == ["gone 0"]
        waiting = door.send("/v1/rewards", {"items": ITEMS[1:], "aggregation": "last"})
        door.queued(2)
        door.server.process.send_signal(signal.SIGTERM)
        running.close()
        waiting.close()
        assert door.server.process.wait(30) == 0


def test_a_cancelled_call_of_the_client_is_cancelled_on_the_server(turnstile):
    cancelled = turnstile.count("cancelled")
    first = turnstile.ask("first")
    assert turnstile.entered() == ["first"]
    episodes = [Episode(id=str(n), task=f"gone {n}", texts=("a",)) for n in range(4)]

    async def call():
        settings = RemoteSettings(endpoint=f"{turnstile.server.url}/v1/rewards", max_batch_items=2)
        async with AsyncRewardClient(settings) as client:
            calling = asyncio.create_task(client.judge(episodes))
            await asyncio.to_thread(turnstile.queued, 4)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            await asyncio.to_thread(turnstile.wait_for, "cancelled", cancelled + 4)

    asyncio.run(call())
    turnstile.let_go()
    assert first.result().status_code == 200


INTERRUPTED = """
import signal, sys
from guerdon.serve.client import RewardClient
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Episode

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
client = RewardClient(RemoteSettings(endpoint=sys.argv[1], max_batch_items=2))
try:
    client.judge([Episode(id=str(n), task=f"gone {n}", texts=("a",)) for n in range(4)])
except KeyboardInterrupt:
    if sys.argv[2] == "ends":
        raise
    print("interrupted", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("then", first(["lives on", "ends"], 1))
def test_an_interrupt_of_a_blocking_call_is_cancelled_on_the_server(turnstile, then):
    """Ctrl-C in a program, which may catch it (a notebook) or end."""
    cancelled, scored = turnstile.count("cancelled"), turnstile.count("scored")
    first = turnstile.ask(f"first of {then}")
    assert turnstile.entered() == [f"first of {then}"]
    program = [sys.executable, "-c", INTERRUPTED, f"{turnstile.server.url}/v1/rewards", then]
    with subprocess.Popen(program, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as client:  # fmt: skip
        turnstile.queued(4)
        client.send_signal(signal.SIGINT)
        turnstile.wait_for("cancelled", cancelled + 4)
        turnstile.queued(0)
        if then == "lives on":
            assert client.stdout.readline() == b"interrupted\n"
            assert client.poll() is None
        _, said = client.communicate(timeout=60)
    assert client.returncode == (0 if then == "lives on" else -signal.SIGINT), said
    turnstile.let_go()
    assert first.result().status_code == 200
    turnstile.wait_for("scored", scored + 1)
