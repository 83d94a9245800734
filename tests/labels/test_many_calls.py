"""Many calls at once over real connections: the limit of open files, connections that are used again, Ctrl-C."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import calls_child
import pytest
from judge_server import FakeClock, openai

from guerdon.endpoints import endpoint
from guerdon.endpoints.llm_client import HttpLLMClient, LLMRequest
from guerdon.files.append_log import Cache, Ledger
from guerdon.network.retry import Clock
from guerdon.settings.label import OpenAIJudgeSettings
from tables import sample


class Gate:
    """A judge that keeps connections open and answers once `opens_at` requests wait.

    With `closes` it ends every connection after a reply without announcing it.

    Attributes:
        connections: opened so far.
        closed: of them, by the client.
        requests: received so far.
        waiting: for a reply now.
        most: that ever waited at a time.
    """

    def __init__(self, opens_at, closes):
        self.closes = closes
        self.opens_at, self.connections, self.closed = opens_at, 0, 0
        self.requests, self.waiting, self.most = 0, 0, 0
        self.arrived, self.loop = threading.Condition(), asyncio.new_event_loop()
        self.open = asyncio.Event()

    async def answer(self, reader, writer):
        body = json.dumps(openai("ok")).encode()
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
                with self.arrived:
                    self.requests += 1
                    self.waiting += 1
                    self.most = max(self.most, self.waiting)
                    self.arrived.notify_all()
                if self.waiting >= self.opens_at:
                    self.open.set()
                await self.open.wait()
                self.waiting -= 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
                if self.closes:
                    raise ConnectionError
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            with self.arrived:
                self.closed += 1
                self.arrived.notify_all()

    def until(self, condition):
        """Wait until something holds."""
        with self.arrived:
            assert self.arrived.wait_for(condition, timeout=120)

    def release(self):
        self.loop.call_soon_threadsafe(self.open.set)


@contextmanager
def gate(opens_at=1, *, closes=False):
    """The judge, running, and its address."""
    found = Gate(opens_at, closes)
    server = found.loop.run_until_complete(asyncio.start_server(found.answer, "127.0.0.1", 0, backlog=2048))
    thread = threading.Thread(target=found.loop.run_forever, daemon=True)
    thread.start()
    try:
        yield found, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        found.loop.call_soon_threadsafe(server.close)
        found.loop.call_soon_threadsafe(found.loop.stop)
        thread.join()
        tasks = asyncio.all_tasks(found.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            found.loop.run_until_complete(asyncio.wait(tasks))
        found.loop.close()


def start(folder, url, n, concurrency, files):
    command = [sys.executable, calls_child.__file__, str(folder), url, str(n), str(concurrency), str(files)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize(
    ("files", "concurrency", "opens_at"),
    sample(
        [(1024, 300, 300), (100, 300, 20), pytest.param(4096, 1000, 1000, marks=pytest.mark.slow)],
        (100, 300, 20),
        several=True,
    ),
)
def test_many_calls_at_once_stay_below_the_limit_of_open_files(tmp_path, files, concurrency, opens_at):
    n = concurrency + 100
    with gate(opens_at) as (judge, url):
        child = start(tmp_path, url, n, concurrency, files)
        answers = child.stdout.readline()
        judge.until(lambda: answers == "" or judge.closed == judge.connections)  # none stays open behind
        left, error = child.communicate("\n", timeout=120)
        assert child.returncode == 0, error
        assert int(answers) == judge.requests == n
        assert int(left) <= 3  # those of the event loop
        lines = [line for line in error.splitlines() if "requests at a time" in line]
        if files > concurrency:
            assert judge.most == concurrency
            assert not lines
        else:
            assert opens_at <= judge.most < files
            assert len(lines) == 1
            assert f"instead of {concurrency} requests at a time" in lines[0]
            assert f"may open {files} files" in lines[0]
            assert "ulimit -n" in lines[0]


def test_ctrl_c_keeps_every_reply_that_was_paid(tmp_path):
    with gate(10**9) as (judge, url):
        child = start(tmp_path, url, 300, 60, 1024)
        judge.until(lambda: judge.requests >= 60)
        child.send_signal(signal.SIGINT)
        judge.release()
        child.communicate(timeout=120)
        assert child.returncode != 0
        paid = judge.requests
        assert paid < 300
    with closing(Cache(tmp_path / "replies.jsonl")) as cache:
        assert len(cache._values) == paid
    with closing(Ledger(tmp_path / "calls.jsonl", prices=(0.0, 0.0))) as ledger:
        assert ledger.totals()["judge"]["calls"] == paid
        assert ledger.totals()["judge"]["failed"] == 0


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    cache, ledger = Cache(tmp_path / "replies.jsonl"), Ledger(tmp_path / "calls.jsonl", prices=(0.0, 0.0))

    def make(url, concurrency, retries=0):
        settings = OpenAIJudgeSettings(model="m", base_url=url + "/v1", concurrency=concurrency, retries=retries)
        clock = FakeClock()
        return HttpLLMClient(settings, cache, ledger, Clock(clock.now, clock.sleep))

    yield make
    cache.close()
    ledger.close()


def ask(client, *words):
    requests = [LLMRequest(({"role": "user", "content": word},), 50, 0.0) for word in words]
    return [text for _, text in client.complete(requests, [lambda reply: reply.text] * len(words), role="judge")]


def test_connections_are_used_again(client, monkeypatch):
    monkeypatch.setattr(endpoint, "KEEP_ALIVE", 600.0)  # however slow the machine is
    endpoint._connections.cache_clear()
    with gate() as (judge, url):
        for k in range(3):  # clients of one process share them
            assert ask(client(url, 4), *(f"{k} {i}" for i in range(40))) == ["ok"] * 40
        assert judge.requests == 120
        assert judge.connections <= 4
    endpoint._connections.cache_clear()


def test_a_server_that_closes_connections_unannounced_gets_new_ones(client, tmp_path):
    with gate(closes=True) as (judge, url):
        assert ask(client(url, 4, retries=7), *map(str, range(300))) == ["ok"] * 300
        assert judge.requests == 300
    calls = (tmp_path / "calls.jsonl").read_text().count('"failure": "connection"')
    assert calls <= 8  # those under way when the first one met a closed connection


def test_calls_from_a_running_event_loop_and_from_a_forked_process(client):
    async def inside(made):
        return ask(made, "a", "b")

    with gate() as (judge, url):
        made = client(url, 2)
        assert asyncio.run(inside(made)) == ["ok"] * 2
        connections = judge.connections
        if (child := os.fork()) == 0:
            os._exit(0 if ask(made, "c", "d") == ["ok"] * 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert judge.connections > connections  # those of the parent are left alone
        assert ask(made, "e") == ["ok"]
