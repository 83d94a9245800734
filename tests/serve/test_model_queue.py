"""The models in the test's own event loop: batches across requests, sharing, limits, failures, exchange of models."""

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import fields

import numpy as np
import pytest
from toys import Learner, Toy, step_value

from guerdon.errors import ConfigError
from guerdon.models.explained_score import JudgeOptions
from guerdon.serve.backends import ModelLoader
from guerdon.serve.errors import Busy, DeadlineExceeded, NotReady, ReloadFailed, UnknownModel
from guerdon.serve.served_models import ServedModels
from guerdon.serve.worker import ResultCache, content_key
from guerdon.settings.serve import BatchSettings, LimitSettings
from guerdon.types import Episode

PLAIN = JudgeOptions()


def text(*steps, name="e", **more):
    return Episode(id=name, task="question", texts=steps, **more)


@asynccontextmanager
async def running(*models, **batch):
    """These models, named toy0, toy1, ...; `aliases` and `limits` as for the models."""
    limits = batch.pop("limits", {})
    sources = {f"toy{n}": ModelLoader(lambda m=m: m, aliases=(f"alias{n}",)) for n, m in enumerate(models)}
    models = ServedModels(
        sources, batch=BatchSettings(**{"cache_items": 0, **batch}),
        limits=LimitSettings(**{"max_items": 4, **limits}),
    )  # fmt: skip
    models.start()
    await models.loaded()
    try:
        yield models
    finally:
        await models.stop()


class Gate(Toy):
    """A toy whose first call waits until it is let go."""

    def __init__(self, **options):
        super().__init__(**options)
        self.entered, self.open = threading.Event(), threading.Event()

    def judge(self, episodes, options):
        self.entered.set()
        assert self.open.wait(30)
        return super().judge(episodes, options)


async def entered(gate):
    await asyncio.to_thread(gate.entered.wait, 30)


def run(work):
    """Run a coroutine function to its end."""
    asyncio.run(asyncio.wait_for(work(), 60))


def counted(models, result, name="toy0"):
    return models.metrics.registry.get_sample_value("guerdon_items_total", {"model": name, "result": result}) or 0


def test_requests_share_calls_and_get_their_own_results():
    async def work():
        gate = Gate()
        async with running(gate, max_items=8) as models:
            first = asyncio.create_task(models.get().judge([text("first")], PLAIN))
            await entered(gate)
            rest = [
                asyncio.create_task(models.get("toy0").judge([text("a" * n + "b"), text("b" * n + "a" + "c")], PLAIN))
                for n in range(8)
            ]
            await asyncio.sleep(0)
            gate.open.set()
            await first
            for n, judged in enumerate(await asyncio.gather(*rest)):
                assert [j.score.total for j in judged] == [step_value("a" * n + "b"), step_value("b" * n + "ac")]
            assert gate.calls == [1, 8, 8]
            assert gate.threads.isdisjoint({threading.get_ident()})
            assert len(gate.threads) == 1

    run(work)


def test_equal_items_are_judged_once_and_remembered():
    async def work():
        toy = Toy()
        async with running(toy, cache_items=10) as models:
            same = [text("a", name="1"), text("a", name="2"), text("b")]
            first = await models.get().judge(same, PLAIN)
            assert sum(toy.calls) == 2
            assert first[0] is first[1]
            again = await models.get().judge([text("b"), text("a", name="3", outcome=True)], PLAIN)
            assert sum(toy.calls) == 2
            assert [j.score.total for j in again] == [0.0, 1.0]
            await models.get().judge([text("a")], JudgeOptions(nframes=3))
            assert sum(toy.calls) == 3
            assert (counted(models, "scored"), counted(models, "cached"), counted(models, "shared")) == (3, 2, 1)

    run(work)


def test_an_equal_item_under_way_is_joined():
    async def work():
        gate = Gate()
        async with running(gate, queue_items=4) as models:
            tasks = [asyncio.create_task(models.get().judge([text("a")], PLAIN)) for _ in range(20)]
            await entered(gate)
            gate.open.set()
            assert {(await task)[0].score.total for task in tasks} == {1.0}
            assert gate.calls == [1]

    run(work)


@pytest.mark.hostile("http")
def test_the_queue_is_bounded_and_nothing_of_a_refused_request_is_queued():
    async def work():
        gate = Gate()
        async with running(gate, queue_items=4, limits={"max_items": 4}) as models:
            busy = asyncio.create_task(models.get().judge([text("one")], PLAIN))
            await entered(gate)
            waiting = [asyncio.create_task(models.get().judge([text(f"w{n}")], PLAIN)) for n in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(Busy) as refused:
                await models.get().judge([text("x"), text("y")], PLAIN)
            assert 1 <= refused.value.retry_after_s <= 60
            assert refused.value.headers == {"Retry-After": str(int(np.ceil(refused.value.retry_after_s)))}
            # what is waited for already takes no room
            joined = asyncio.create_task(models.get().judge([text("w0"), text("w1"), text("fits")], PLAIN))
            await asyncio.sleep(0)
            gate.open.set()
            assert len(await joined) == 3
            await asyncio.gather(busy, *waiting)
            assert sum(gate.calls) == 5
            assert counted(models, "refused") == 2

    run(work)


@pytest.mark.hostile("http")
def test_after_a_refusal_requests_are_refused_unread_until_there_is_room():
    async def work():
        gate = Gate()
        async with running(gate, queue_items=8, max_items=1, limits={"max_items": 8}) as models:
            assert models.overload() is None
            asking = [asyncio.create_task(models.get().judge([text("one")], PLAIN))]
            await entered(gate)
            asking += [asyncio.create_task(models.get().judge([text(f"w{n}")], PLAIN)) for n in range(6)]
            await asyncio.sleep(0)
            assert models.overload() is None
            with pytest.raises(Busy):
                await models.get().judge([text(f"x{n}") for n in range(8)], PLAIN)
            assert models.overload() >= 1
            gate.open.set()
            await asyncio.gather(*asking)
            assert models.overload() is None
            assert len(await models.get().judge([text(f"x{n}") for n in range(8)], PLAIN)) == 8

    run(work)


def test_expired_items_never_reach_the_model():
    async def work():
        gate = Gate()
        async with running(gate, cache_items=10) as models:
            busy = asyncio.create_task(models.get().judge([text("slow")], PLAIN, deadline_s=0.01))
            await entered(gate)
            with pytest.raises(DeadlineExceeded):
                await busy
            with pytest.raises(DeadlineExceeded, match=r"0\.01 s"):
                await models.get().judge([text("late"), text("slow")], PLAIN, deadline_s=0.01)
            gate.open.set()
            # what was under way when its time ended is remembered; what had not begun is not
            judged = await models.get().judge([text("slow"), text("other")], PLAIN)
            assert [j.score.total for j in judged] == [0.0, 0.0]
            assert sum(gate.calls) == 2
            assert counted(models, "expired") == 1

    run(work)


def test_a_deadline_is_never_longer_than_the_servers():
    async def work():
        gate = Gate()
        async with running(gate, limits={"deadline_s": 0.01}) as models:
            with pytest.raises(DeadlineExceeded):
                await models.get().judge([text("a")], PLAIN, deadline_s=1000)
            gate.open.set()

    run(work)


@pytest.mark.hostile("parts")
def test_a_poisoned_item_fails_alone_and_without_its_text(caplog):
    async def work():
        toy = Toy()
        async with running(toy, max_items=16, queue_items=64, limits={"max_items": 16}) as models:
            episodes = [text(f"a{n}" if n not in (3, 9) else f"poison{n}") for n in range(16)]
            judged = await models.get().judge(episodes, PLAIN)
            for n, judgement in enumerate(judged):
                if n in (3, 9):
                    assert judgement.score.failure.reason == "model_error"
                    assert "secret" not in judgement.score.failure.detail
                    assert "/home" not in judgement.score.failure.detail
                else:
                    assert judgement.score.total == step_value(f"a{n}")
            # failures are not remembered
            await models.get().judge([text("poison3")], PLAIN)
        assert "secret at /home/nobody/model.py: poison3" in caplog.text

    run(work)


@pytest.mark.hostile("parts")
def test_what_a_model_says_wrongly_is_a_failure():
    class Miscounting(Toy):
        def judge(self, episodes, options):
            return super().judge(episodes, options)[:-1]

    async def work():
        async with running(Toy(), Miscounting()) as models:
            (judged,) = await models.get("toy0").judge([text("longer")], PLAIN)
            assert judged.score.failure.reason == "wrong_length"
            assert [j.score.failure.reason for j in await models.get("toy1").judge([text("a"), text("b")], PLAIN)] == [
                "model_error"
            ] * 2
            (mute,) = await models.get("toy0").judge([text("mute")], PLAIN)
            assert (mute.score.failure.reason, mute.score.failure.detail) == ("mute", "the toy has nothing to say")

    run(work)


@pytest.mark.hostile("parts")
def test_a_model_that_asks_the_process_to_end_fails_one_item():
    async def work():
        async with running(Toy()) as models:
            judged = await models.get().judge([text("quit"), text("a")], PLAIN)
            assert judged[0].score.failure.reason == "model_error"
            assert judged[1].score.total == 1.0

    run(work)


def test_a_fault_of_the_server_is_told_to_those_who_wait(monkeypatch):
    async def work():
        gate = Gate()
        async with running(gate) as models:
            under_way = asyncio.create_task(models.get().judge([text("a")], PLAIN))
            await entered(gate)
            queued = asyncio.create_task(models.get().judge([text("b")], PLAIN))
            await asyncio.sleep(0)
            monkeypatch.setattr("guerdon.serve.model_queue.ModelQueue._settle", lambda *_: 1 / 0)
            gate.open.set()
            for task in (under_way, queued):
                with pytest.raises(NotReady, match="fault of the server"):
                    await task
            with pytest.raises(NotReady):
                await models.get().judge([text("a")], PLAIN)
            assert not models.ready

    run(work)


def test_options_do_not_mix():
    async def work():
        gate = Gate()
        async with running(gate) as models:
            first = asyncio.create_task(models.get().judge([text("first")], PLAIN))
            await entered(gate)
            options = [JudgeOptions(nframes=1 + n % 2) for n in range(6)]
            rest = [asyncio.create_task(models.get().judge([text(f"a{n}")], options[n])) for n in range(6)]
            await asyncio.sleep(0)
            gate.open.set()
            await asyncio.gather(first, *rest)
            assert gate.calls == [1, 3, 3]
            assert gate.options == [PLAIN, JudgeOptions(nframes=1), JudgeOptions(nframes=2)]

    run(work)


def test_names_and_aliases():
    async def work():
        async with running(Toy(name="x"), Toy(name="y")) as models:
            assert tuple(models.queues) == ("toy0", "toy1")
            assert models.default == "toy0"
            assert models.get("alias1").info.name == "y"
            assert models.get().info.name == "x"
            with pytest.raises(UnknownModel, match=r"there are toy0, toy1"):
                models.get("nobody")

    run(work)


def test_a_model_is_exchanged_without_losing_a_request():
    async def work():
        versions = [Gate(name="old"), Toy(name="new")]
        built = iter(versions)
        models = ServedModels({"toy": ModelLoader(lambda: next(built))}, limits=LimitSettings(max_items=4))
        models.start()
        await models.loaded()
        under_way = asyncio.create_task(models.get().judge([text("a")], PLAIN))
        await entered(versions[0])
        exchange = asyncio.create_task(models.get("toy").reload())
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="already"):
            await models.get("toy").reload()
        queued = [asyncio.create_task(models.get().judge([text(f"a{n}")], PLAIN)) for n in range(5)]
        await asyncio.sleep(0.02)
        assert models.get().info.name == "old"
        versions[0].open.set()
        await exchange
        assert (await under_way)[0].text.startswith("old")
        assert all(judged[0].text.startswith("new") for judged in await asyncio.gather(*queued))
        # and what the old one said is forgotten
        assert (await models.get().judge([text("a")], PLAIN))[0].text.startswith("new")
        with pytest.raises(ReloadFailed) as failed:
            await models.get("toy").reload()
        assert "StopIteration" not in str(failed.value)
        assert (await models.get().judge([text("still")], PLAIN))[0].text.startswith("new")
        await models.stop()

    run(work)


def test_a_model_that_cannot_be_loaded_says_so():
    def broken():
        raise ConfigError("no weights at /models/x")

    async def work():
        models = ServedModels({"toy": ModelLoader(broken)}, limits=LimitSettings(max_items=4))
        models.start()
        with pytest.raises(ConfigError, match="no weights"):
            await models.loaded()
        with pytest.raises(NotReady) as refused:
            await models.get().judge([text("a")], PLAIN)
        assert "/models" not in str(refused.value)
        await models.stop()

    run(work)


def test_no_episodes_no_work():
    async def work():
        toy = Toy()
        async with running(toy) as models:
            assert await models.get().judge([], PLAIN) == []
            assert toy.calls == []

    run(work)


def test_a_model_without_a_place_to_learn_does_not_learn():
    async def work():
        from guerdon.serve.errors import BadRequest

        async with running(Toy(), Learner()) as models:
            for name, why in (("toy0", "does not learn"), ("toy1", "update_dir")):
                with pytest.raises(BadRequest, match=why):
                    await models.get(name).learn([text("a", outcome=True)])
                assert not models.get(name).learns

    run(work)


@pytest.mark.parametrize(
    "other",
    [
        text("b"), text("a", "b"), text("ab"), Episode(id="e", task="other", texts=("a",)), text("a", meta={"k": 1}),
        Episode(id="e", task="question", frames=np.zeros((1, 2, 2, 3), np.uint8)),
    ],
)  # fmt: skip
def test_keys_tell_apart_what_a_model_can_tell_apart(other):
    assert content_key(text("a"), PLAIN) != content_key(other, PLAIN)


def test_keys_of_frames():
    frames = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    one = Episode(id="1", task="t", frames=frames, outcome=True)
    assert content_key(one, PLAIN) == content_key(Episode(id="2", task="t", frames=frames[:].copy()), PLAIN)
    assert content_key(one, PLAIN) != content_key(Episode(id="1", task="t", frames=frames[::-1]), PLAIN)
    reshaped = Episode(id="1", task="t", frames=frames.reshape(1, 4, 2, 3))
    assert content_key(one, PLAIN) != content_key(reshaped, PLAIN)
    assert content_key(one, PLAIN) != content_key(one, JudgeOptions(score_mode="unit"))


def test_every_option_counts():
    values = {"nframes": 3, "max_pixels": 1000, "prompt": "p", "score_mode": "unit"}
    assert set(values) == {f.name for f in fields(JudgeOptions)}, "a new option must become part of the key"
    keys = {content_key(text("a"), JudgeOptions(**{name: value})) for name, value in values.items()}
    assert len(keys | {content_key(text("a"), PLAIN)}) == 5


def test_the_cache_forgets_what_was_used_longest_ago():
    from guerdon.models.explained_score import ExplainedScore
    from guerdon.types import Failure, Score

    cache = ResultCache(2)
    for n in range(2):
        cache.put(bytes([n]), ExplainedScore(Score(total=float(n))))
    cache.get(b"\x00")
    cache.put(b"\x02", ExplainedScore(Score(total=2.0)))
    assert cache.get(b"\x01") is None
    assert cache.get(b"\x00").score.total == 0
    cache.put(b"\x03", ExplainedScore(Score(failure=Failure("x"))))
    assert cache.get(b"\x03") is None
    assert len(cache) == 2


def test_the_time_of_a_request_covers_all_that_it_waits_for():
    async def work():
        models = ServedModels({"toy": ModelLoader(Toy)}, limits=LimitSettings(deadline_s=0.02))
        with pytest.raises(DeadlineExceeded, match=r"not scored within 0\.02 s"):
            async with models.get().deadline(5.0):
                await asyncio.Event().wait()
        async with models.get().deadline(0.01) as left:
            assert 0 < left() <= 0.01

    asyncio.run(work())
