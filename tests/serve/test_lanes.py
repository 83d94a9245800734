"""The threads and processes that call a model: what it raises, calls that never end, threads that end."""

import asyncio
import os
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from processes import TOY
from test_model_queue import PLAIN, Gate, counted, entered, run, running, text
from test_replicas import episodes, gone
from toys import Learner, Toy

from guerdon.errors import GuerdonError
from guerdon.models.explained_score import JudgeOptions
from guerdon.serve.backends import ModelLoader, Replicas, build_model
from guerdon.serve.errors import DeadlineExceeded, ModelFailed, ModelHung, NotReady, ReloadFailed, UpdateFailed
from guerdon.serve.served_models import ServedModels
from guerdon.serve.worker import Worker
from guerdon.settings.serve import ServedModelSettings
from guerdon.types import Episode, RewardInfo
from raisers import WAYS, Raises
from tables import first

pytestmark = pytest.mark.hostile("parts")


async def until(condition):
    """Wait until something is the case."""
    while not condition():
        await asyncio.sleep(0.005)


def metric(models, name, label="toy0"):
    return models.metrics.registry.get_sample_value(name, {"model": label})


@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_model_raises_is_the_failure_of_one_item(way):
    async def work():
        async with running(Raises(way), max_items=8, limits={"max_items": 8}) as models:
            for _ in range(2):  # the lane goes on
                found = await models.get().judge([text("four"), text("poison"), text("a")], PLAIN)
                assert [one.score.total for one in found] == [4.0, None, 1.0]
                assert found[1].score.failure.reason == "model_error"
                assert models.ready
            assert models.states() == {"toy0": "ready"}
            assert metric(models, "guerdon_model_ready") == 1

    run(work)


@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_model_raises_while_it_learns_undoes_the_update(tmp_path, way):
    class Poisoned(Learner):
        def learn(self, given):
            found = super().learn(given)
            if any("poison" in "".join(one.texts) for one in given):
                WAYS[way]()
            return found

    async def work():
        model = Poisoned()
        models = ServedModels({"toy": ModelLoader(lambda: model, update_dir=tmp_path / "updates")})
        models.start()
        await models.loaded()
        await models.get().learn([text("a", outcome=True)])
        with pytest.raises(UpdateFailed, match="as it was before"):
            await models.get().learn([text("poison", outcome=True)])
        assert (model.weight, model.seen) == (1 / 1024, 1)
        assert (await models.get().learn([text("b", outcome=True)])).updates == 2
        assert models.ready
        await models.stop()

    run(work)


@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_factory_raises_ends_the_server_with_its_reason(way):
    async def work():
        models = ServedModels({"toy": ModelLoader(WAYS[way])})
        models.start()
        with pytest.raises(ModelFailed):
            await models.loaded()
        await models.stop()

    run(work)


class EndsItsThread(Toy):
    """Ends the thread that calls it, as only an exception does that looks like the end of a generator."""

    def judge(self, episodes, options):
        def closing():
            yield from ()
            raise GeneratorExit

        return [*super().judge(episodes, options), *closing()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lane_whose_thread_ended_makes_the_model_unusable():
    async def work():
        async with running(EndsItsThread(), Toy()) as models:
            asked = [asyncio.create_task(models.get().judge([text(name)], PLAIN)) for name in "ab"]
            for task in asked:
                with pytest.raises(NotReady, match="the thread that calls it has ended"):
                    await task
            assert not models.ready
            assert "has stopped, because the thread" in models.states()["toy0"]
            assert metric(models, "guerdon_model_ready") == 0
            with pytest.raises(NotReady, match="restart the server"):
                await models.get().judge([text("c")], PLAIN)
            with pytest.raises(NotReady, match="restart the server"):
                await models.get().reload()
            assert (await models.get("toy1").judge([text("a")], PLAIN))[0].score.total == 1.0

    run(work)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_whose_thread_ended_answers_what_waits_and_what_comes_later():
    async def work():
        worker, gate = Worker("toy"), threading.Event()

        def end():
            gate.wait(30)
            next(closing)

        def generator():
            raise GeneratorExit
            yield

        closing = generator()
        waiting = [asyncio.create_task(worker.run(call)) for call in (end, int, int)]
        await asyncio.sleep(0)
        gate.set()
        for task in waiting:
            with pytest.raises(NotReady):
                await task
        await until(lambda: worker.ended)
        with pytest.raises(NotReady):
            await worker.run(int)

    run(work)


def test_a_call_that_does_not_end_makes_the_model_not_ready_until_it_does():
    async def work():
        gate = Gate()
        async with running(gate, cache_items=8, limits={"deadline_s": 0.2}) as models:
            queue = models.get()
            with pytest.raises(DeadlineExceeded):
                await queue.judge([text("slow")], PLAIN)
            await until(lambda: not models.ready)
            assert "has not ended a call for 0 s, which is longer than limits.deadline_s (0.2 s)" in str(
                models.states()
            )
            assert metric(models, "guerdon_model_ready") == 0
            with pytest.raises(NotReady, match="has not ended a call"):
                await queue.judge([text("other")], PLAIN)
            with pytest.raises(NotReady, match="has not ended a call"):
                await queue.reload()
            await until(lambda: metric(models, "guerdon_overdue_calls_total") == 1)
            gate.open.set()
            await until(lambda: models.ready)
            assert metric(models, "guerdon_model_ready") == 1
            assert (await queue.judge([text("slow")], PLAIN))[0].score.total == 0.0
            assert gate.calls == [1], "its result is remembered"
            assert metric(models, "guerdon_overdue_calls_total") == 1

    run(work)


def test_what_waits_behind_a_call_that_does_not_end_is_refused_with_the_reason():
    async def work():
        gate = Gate()
        async with running(gate) as models:
            queue = models.get()
            first = asyncio.create_task(queue.judge([text("first")], PLAIN))
            await entered(gate)
            joined = asyncio.create_task(queue.judge([text("first")], PLAIN))
            queued = asyncio.create_task(queue.judge([text("second")], PLAIN))
            reloaded = asyncio.create_task(queue.reload())
            await asyncio.sleep(0)
            queue._workers[0].began -= queue.limits.deadline_s  # as if so much time had passed
            for task in (first, joined, queued):
                with pytest.raises(NotReady, match="has not ended a call"):
                    await task
            with pytest.raises((NotReady, ReloadFailed)):
                await reloaded
            assert len(queue.batcher) == 0
            assert metric(models, "guerdon_queue_items") == 0
            gate.open.set()
            await until(lambda: models.ready)
            assert (await queue.judge([text("second")], PLAIN))[0].score.total == 0.0
            assert counted(models, "scored") == 2

    run(work)


def test_a_comparison_that_was_given_up_is_never_begun():
    class Compares(Gate):
        info = RewardInfo("compares", (0.0, 1.0), granularity="total", modality="text", frames_needed=0, compares=True)

        def __init__(self):
            self.entered, self.open, self.calls = threading.Event(), threading.Event(), []

        def judge(self, given, options):
            self.calls.append(given[0].task)
            self.entered.set()
            assert self.open.wait(30)
            raise ValueError

    def asked(task):
        return [Episode(id=str(n), task=task, texts=(str(n),)) for n in range(2)]

    async def work():
        model = Compares()
        async with running(model) as models:
            queue = models.get()
            first = asyncio.create_task(queue.judge(asked("first"), PLAIN))
            await entered(model)
            with pytest.raises(DeadlineExceeded):
                await queue.judge(asked("late"), PLAIN, deadline_s=0.01)
            last = asyncio.create_task(queue.judge(asked("last"), PLAIN))
            await asyncio.sleep(0)
            model.open.set()
            await asyncio.gather(first, last)
            assert model.calls == ["first", "last"]

    run(work)


def stuck(count=1, deadline_s=1.0, **options):
    settings = ServedModelSettings(custom_backend="toys:make_stuck", options=options)
    build = partial(build_model, "toy", settings)
    return Replicas("toy", build, count=count, threads=1, deadline_s=deadline_s)


def process_of(model):
    return int(model.judge(episodes("a"), JudgeOptions())[0].text)


@pytest.mark.parametrize("word", first(["hang", "spin"], 1))
def test_a_copy_that_does_not_answer_is_killed_and_replaced(word):
    model = stuck()
    try:
        first = process_of(model)
        with pytest.raises(ModelHung, match="no result within 1 s"):
            model.judge(episodes("a", word), JudgeOptions())
        assert gone([first])
        assert process_of(model) != first
    finally:
        model.close()


def test_a_copy_that_does_not_even_read_is_killed_and_replaced():
    model = stuck()
    try:
        first = process_of(model)
        os.kill(first, signal.SIGSTOP)
        frames = np.zeros((64, 256, 256, 3), np.uint8)  # more than fits into the pipe
        with pytest.raises(ModelHung):
            model.judge([Episode(id="e", task="q", frames=frames)], JudgeOptions())
        assert gone([first])
        assert process_of(model) != first
    finally:
        model.close()


@pytest.mark.parametrize("way", first(WAYS, 2))
def test_whatever_a_model_in_a_copy_raises_its_process_lives_on(way):
    model = Replicas("toy", partial(Raises, way), count=1, threads=1)
    try:
        pid = model._copies[0].process.pid
        with pytest.raises(GuerdonError):
            model.judge(episodes("poison"), JudgeOptions())
        assert model.judge(episodes("four"), JudgeOptions())[0].score.total == 4.0
        assert model._copies[0].process.pid == pid
    finally:
        model.close()


def wait_for_ready(server, status):
    end = time.monotonic() + 60
    while (answer := server.get("/ready")).status_code != status:
        assert time.monotonic() < end, answer.text
        time.sleep(0.01)
    return answer.json()


def sample(server, name):
    """The value of a line of `/metrics`."""
    return next((line.split()[-1] for line in server.get("/metrics").text.splitlines() if line.startswith(name)), None)


def ask(server, *texts, **more):
    return server.post("/v1/rewards", {"items": [{"prompt": "q", "steps": [one]} for one in texts], **more})


def test_a_server_says_that_its_copy_hangs_and_replaces_it(server, tmp_path):
    gate = tmp_path / "gate"
    toy = {"custom_backend": "toys:make_stuck", "processes": 1, "options": {"slow_load_gate": str(gate)}}
    running = server(models={"toy": toy}, limits={"deadline_s": 1.0}, batch={"cache_items": 0})
    first = int(ask(running, "a").json()["results"][0]["text"])
    gate.touch()  # another copy is not loaded before this is gone
    assert ask(running, "hang", "b").status_code == 504
    said = wait_for_ready(running, 503)
    assert "has not ended a call for" in said["models"]["toy"]
    assert gone([first])
    refused = ask(running, "a")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "has not ended a call" in refused.json()["error"]["message"]
    assert sample(running, 'guerdon_model_ready{model="toy"}') == "0.0"
    gate.unlink()
    wait_for_ready(running, 200)
    assert int(ask(running, "a").json()["results"][0]["text"]) != first
    assert sample(running, 'guerdon_model_ready{model="toy"}') == "1.0"
    assert sample(running, 'guerdon_overdue_calls_total{model="toy"}') == "1.0"
    assert sample(running, 'guerdon_failures_total{model="toy",reason="model_hung"}') == "2.0"
    assert running.stop() == 0


def test_a_server_with_a_hanging_thread_says_so_and_can_be_ended(server):
    toy = {"custom_backend": "toys:make_stuck"}
    running = server(models={"toy": toy, "other": TOY["toy"]}, limits={"deadline_s": 0.5})
    assert ask(running, "hang", model="toy").status_code == 504
    said = wait_for_ready(running, 503)
    assert "has not ended a call for" in said["models"]["toy"]
    assert said["models"]["other"] == "ready"
    assert ask(running, "a", model="toy").status_code == 503
    assert ask(running, "a", model="other").json()["results"][0]["score"] == 1.0
    end = time.monotonic() + 60
    while sample(running, 'guerdon_overdue_calls_total{model="toy"}') != "1.0":  # it is counted within a second
        assert time.monotonic() < end
    assert running.stop() == 0


@pytest.mark.slow  # test_a_copy_that_does_not_answer_is_killed_and_replaced kills one, too
@pytest.mark.parametrize("word", ["hang", "spin"])
def test_a_server_whose_copy_hangs_can_be_ended(server, word):
    toy = {"custom_backend": "toys:make_stuck", "processes": 1}
    running = server(models={"toy": toy}, limits={"drain_s": 0.5})
    copy = int(ask(running, "a").json()["results"][0]["text"])
    asking = threading.Thread(target=ask, args=(running, word), daemon=True)
    asking.start()
    end = time.monotonic() + 60
    while sample(running, "guerdon_requests_in_flight") != "2.0":  # that one, and the one that asks for it
        assert time.monotonic() < end
        time.sleep(0.01)
    assert running.stop(60) == 0
    assert gone([copy])
