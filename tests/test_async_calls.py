"""Calls of endpoints and servers from synchronous code, also where an event loop runs already, as in a notebook."""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import pytest

from guerdon.processes.async_calls import run_async

TESTS = Path(__file__).parent
sys.path += [str(TESTS / "labels"), str(TESTS / "serve")]
from chaos import chaos_server, worth  # noqa: E402
from judge_server import judge_server, judgements  # noqa: E402

CELL = """
from guerdon.episodes.solutions import Solution
from guerdon.files.append_log import Cache, Ledger
from guerdon.labels.labelers import PromptedSolution
from guerdon.endpoints.llm_client import HttpLLMClient, LLMRequest, send
from guerdon.labels.labelers import JudgeLabeler
from guerdon.network.retry import Clock
from guerdon.settings.label import OpenAIJudgeSettings
from guerdon.tasks.prompts import Prompt
import pathlib, time

def labels(url, folder, question):
    settings = OpenAIJudgeSettings(model="m", base_url=url + "/v1", concurrency=1, retries=0)
    cache, ledger = Cache(pathlib.Path(folder, "r.jsonl")), Ledger(pathlib.Path(folder, "c.jsonl"), prices=(0, 0))
    labeler = JudgeLabeler(HttpLLMClient(settings, cache, ledger, Clock(time.time, time.sleep)), settings)
    prompt = Prompt("p", ({"role": "user", "content": question},), "4", "x")
    given = [PromptedSolution(Solution(f"{n}", question, ("a", f"{n}")), prompt) for n in range(3)]
    try:
        return [getattr(one, "values", one) for one in labeler.label(given)]
    finally:
        cache.close(), ledger.close()

def reply(url):
    settings = OpenAIJudgeSettings(model="m", base_url=url + "/v1")
    return send(settings, "key", LLMRequest(({"role": "user", "content": "q"},), 5)).text

def rewards(url):
    from guerdon.serve.client import RewardClient

    with RewardClient(url + "/v1/rewards") as client:
        return client.rewards(["q", "q"], ["a", "b"])
"""


async def double(number):
    await asyncio.sleep(0)
    return 2 * number


def test_a_result_with_and_without_a_running_loop():
    async def caller():
        return run_async(double(2)), asyncio.get_running_loop().is_running()

    assert run_async(double(1)) == 2
    assert asyncio.run(caller()) == (4, True)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda n: run_async(double(n)), range(50))) == [2 * n for n in range(50)]


def test_all_calls_share_a_loop_and_get_the_context_of_their_caller():
    name = ContextVar("name", default="none")

    async def where():
        return asyncio.get_running_loop(), threading.current_thread(), name.get()

    name.set("mine")
    (first, thread, said), (second, *_) = run_async(where()), run_async(where())
    assert first is second
    assert thread.daemon
    assert said == "mine"


def test_errors_reach_the_caller():
    async def fails():
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        run_async(fails())


def test_a_coroutine_of_the_loop_itself_is_told_to_await():
    async def nested():
        return run_async(double(1))

    with pytest.raises(RuntimeError, match="await the coroutine instead"):
        run_async(nested())
    assert run_async(double(3)) == 6


def test_an_interrupt_while_the_coroutine_is_started_cancels_it(monkeypatch):
    cancelled, start = threading.Event(), asyncio.run_coroutine_threadsafe

    async def waits():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupted(*given):
        start(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_async(waits())
    assert cancelled.wait(20)


def test_an_interrupted_caller_cancels_the_coroutine():
    started, cancelled = threading.Event(), threading.Event()

    async def waits():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupt():
        started.wait(20)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_async(waits())
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert cancelled.wait(20)


@pytest.mark.hostile("parts")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_a_coroutine_that_raises_what_ends_an_event_loop_is_the_callers_matter(kind):
    async def leaves():
        raise kind

    with pytest.raises(kind):
        run_async(leaves())
    assert run_async(double(3)) == 6


def test_a_forked_child_has_a_loop_of_its_own():
    assert run_async(double(1)) == 2
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(run_async(double(4))))
    child.start()
    child.join(60)
    assert child.exitcode == 8


WANTED = [(1.0, 0.0)] * 3


def test_endpoints_and_servers_inside_a_running_loop(tmp_path):
    names = {}
    exec(CELL, names)

    async def reward_function(judge, server):
        return names["reply"](judge.url), names["labels"](judge.url, tmp_path, "q"), names["rewards"](server.url)

    with judge_server(lambda _: judgements([1, -1])) as judge, chaos_server() as server:
        found = asyncio.run(reward_function(judge, server))
    assert found == (judgements([1, -1]), WANTED, [worth("a"), worth("b")])


@pytest.mark.slow
def test_a_notebook(tmp_path):
    """A kernel of Jupyter, which runs every cell inside its event loop.

    `test_endpoints_and_servers_inside_a_running_loop` makes the same calls inside a loop of this process.
    """
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    said = []

    def run(code):
        reply = client.execute_interactive(code, timeout=60, output_hook=said.append)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(m["content"]["text"] for m in said if m["header"]["msg_type"] == "stream")

    try:
        with judge_server(lambda _: judgements([1, -1])) as judge, chaos_server() as server:
            run("import asyncio; assert asyncio.get_running_loop().is_running()")
            run(CELL)
            assert str(WANTED) in run(f"print(labels({judge.url!r}, '.', 'first'))")
            assert str([worth("a"), worth("b")]) in run(f"print(rewards({server.url!r}))")
            said.clear()
            assert judgements([1, -1]) in run(f"print(reply({judge.url!r}))")
            run(f"async def ask(): return labels({judge.url!r}, '.', 'second')")
            assert str(WANTED) in run("print(await ask())")
            assert len(judge.requests) == 7
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
