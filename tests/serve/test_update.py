"""Learning while serving: order, exactly once, taken back when it fails, kept over kills."""

import asyncio
import json
import os
import random
import signal
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
from toys import Learner, Toy

from guerdon.errors import CheckpointError, ConfigError
from guerdon.models.explained_score import JudgeOptions
from guerdon.serve import update_store
from guerdon.serve.backends import ModelLoader
from guerdon.serve.errors import BadRequest, Busy, Conflict, DeadlineExceeded, NotReady, UpdateFailed
from guerdon.serve.served_models import ServedModels
from guerdon.serve.update_store import ANSWERS, UpdateId, UpdateStore
from guerdon.settings.serve import LimitSettings
from guerdon.types import Episode

UNIT = 1 / 1024  # what the toy's weight moves per episode
PLAIN = JudgeOptions()


def text(*steps, outcome=True, name="e"):
    return Episode(id=name, task="q", texts=steps, outcome=outcome)


@asynccontextmanager
async def learning(folder, build=Learner, keep=2):
    made = []

    def load():
        made.append(build())
        return made[-1]

    models = ServedModels(
        {"toy": ModelLoader(load, update_dir=Path(folder), keep_updates=keep)}, limits=LimitSettings(max_items=64)
    )
    models.start()
    try:
        await models.loaded()
        models.made = made
        yield models
    finally:
        await models.stop()


def run(work):
    asyncio.run(asyncio.wait_for(work(), 60))


async def totals(models, *episodes):
    return [j.score.total for j in await models.get().judge(episodes, PLAIN)]


def test_before_scores_with_the_new_weights_and_after_with_the_old(tmp_path):
    async def work():
        async with learning(tmp_path) as models:
            assert await totals(models, text("b")) == [0.0]
            rollouts = [text("b", outcome=True), text("a", outcome=True), text("bb", outcome=False)]
            before = await models.get().learn(rollouts, when="before")
            assert [j.score.total for j in before.judgements] == [UNIT, 1 + UNIT, UNIT]
            after = await models.get().learn(rollouts, when="after")
            assert [j.score.total for j in after.judgements] == [UNIT, 1 + UNIT, UNIT]
            assert after.metrics == {"weight": 2 * UNIT, "seen": 6.0}
            assert (before.updates, after.updates) == (1, 2)
            # what was remembered from before does not answer any more
            assert await totals(models, text("b")) == [2 * UNIT]
            assert (await models.get().learn(rollouts)).metrics == {"weight": 3 * UNIT, "seen": 9.0}

    run(work)


def test_it_goes_on_where_it_was(tmp_path):
    async def first():
        async with learning(tmp_path) as models:
            await models.get().learn([text("a"), text("b")])

    async def second():
        async with learning(tmp_path) as models:
            assert await totals(models, text("b")) == [2 * UNIT]
            await models.get().reload()
            assert len(models.made) == 2
            assert await totals(models, text("b")) == [2 * UNIT]
            await models.get().learn([text("a")])
            assert models.made[0].seen == 2
            assert models.made[1].seen == 3

    run(first)
    run(second)


def test_the_newest_states_are_kept(tmp_path):
    async def work():
        async with learning(tmp_path, keep=2) as models:
            for _ in range(5):
                await models.get().learn([text("a")])
        assert sorted(p.name for p in tmp_path.glob("update_*")) == ["update_000000004", "update_000000005"]
        assert not list(tmp_path.glob(".update_*"))

    run(work)


@pytest.mark.hostile("kills")
def test_an_update_that_is_sent_again_is_learnt_once_also_after_a_restart(tmp_path):
    asked = [text("a"), text("b", outcome=False), text("b")], "after", UpdateId("c", 1)

    async def first():
        async with learning(tmp_path) as models:
            done = await models.get().learn(*asked)
            again = await models.get().learn(*asked)
            assert (done.repeated, again.repeated) == (False, True)
            assert same(done, again)
            together = await asyncio.gather(
                *(models.get().learn([text("a")], update=UpdateId("c", 2)) for _ in range(3))
            )
            assert sorted(one.repeated for one in together) == [False, True, True]
            assert models.made[0].seen == 4
            with pytest.raises(Conflict):
                await models.get().learn([text("other")], update=UpdateId("c", 1))
            return done

    async def second(done):
        async with learning(tmp_path) as models:
            again = await models.get().learn(*asked)
            assert again.repeated
            assert same(done, again)
            assert models.made[0].seen == 4

    def same(one, other):
        return (one.metrics, one.updates) == (other.metrics, other.updates) and all(
            (a.score.total, a.score.steps.tolist(), a.text) == (b.score.total, b.score.steps.tolist(), b.text)
            for a, b in zip(one.judgements, other.judgements, strict=True)
        )

    done = asyncio.run(first())
    asyncio.run(second(done))


@pytest.mark.hostile("http")
def test_no_number_is_learnt_twice_however_many_came_after_it(tmp_path):
    def numbered(n, client="c"):
        return [text("a" * n)], "after", UpdateId(client, n)

    async def first():
        async with learning(tmp_path) as models:
            for n in (2, 1, *range(4, ANSWERS + 4)):  # 3 is late, and others overtake it
                assert not (await models.get().learn(*numbered(n))).repeated
            assert not (await models.get().learn(*numbered(1, "other"))).repeated

    async def second():
        async with learning(tmp_path) as models:
            learnt = models.made[0].seen
            for n in (1, 2, 3, 4):  # all but the last ANSWERS are only known to be below a number
                with pytest.raises(Conflict, match="not above 4, up to which"):
                    await models.get().learn(*numbered(n))
            for n in (5, ANSWERS + 3):
                assert (await models.get().learn(*numbered(n))).repeated
            assert (await models.get().learn(*numbered(1, "other"))).repeated
            assert models.made[0].seen == learnt
            assert not (await models.get().learn(*numbered(ANSWERS + 9))).repeated
            assert not (await models.get().learn(*numbered(ANSWERS + 6))).repeated  # late, and above the forgotten ones

    run(first)
    run(second)


@pytest.mark.hostile("http")
def test_clients_are_not_forgotten_but_refused_when_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(update_store, "CLIENTS", 3)
    monkeypatch.setattr(update_store, "ANSWERS", 2)

    async def work():
        async with learning(tmp_path) as models:
            for client in "abc":
                await models.get().learn([text("a")], update=UpdateId(client, 1))
            with pytest.raises(BadRequest, match="no room for another"):
                await models.get().learn([text("a")], update=UpdateId("d", 1))
            with pytest.raises(Conflict):
                await models.get().learn([text("a")], update=UpdateId("a", 1))
            assert models.made[0].seen == 3
            await models.get().learn([text("a")], update=UpdateId("a", 2))

    run(work)


@pytest.mark.hostile("parts")
def test_a_failed_update_is_taken_back(tmp_path, caplog):
    async def work():
        async with learning(tmp_path) as models:
            await models.get().learn([text("a")])
            with pytest.raises(UpdateFailed) as failed:
                await models.get().learn([text("a"), text("explode")], update=UpdateId("x", 1))
            assert "secret" not in str(failed.value)
            assert await totals(models, text("b")) == [UNIT]
            assert models.made[0].seen == 1
            await models.get().learn([text("a")])
            assert await totals(models, text("b")) == [2 * UNIT]
            assert "secret: it exploded" in caplog.text
            assert sorted(p.name for p in tmp_path.glob("update_*"))[-1] == "update_000000002"

    run(work)


@pytest.mark.hostile("disk")
def test_an_update_that_cannot_be_kept_is_taken_back(tmp_path):
    class Full(Learner):
        broken = False

        def save(self, folder):
            if Full.broken:
                folder.mkdir()
                (folder / "toy.json").write_text("{")
                raise OSError(28, "No space left on device")
            super().save(folder)

    async def work():
        async with learning(tmp_path, build=Full) as models:
            await models.get().learn([text("a")])
            Full.broken = True
            with pytest.raises(UpdateFailed):
                await models.get().learn([text("a")])
            assert await totals(models, text("b")) == [UNIT]
            Full.broken = False
            assert (await models.get().learn([text("a")])).updates == 2

    run(work)


@pytest.mark.hostile("parts")
def test_a_model_that_cannot_be_taken_back_is_not_asked_any_more(tmp_path):
    class Stuck(Learner):
        def restore(self, folder):
            raise RuntimeError("cannot")

    async def work():
        async with learning(tmp_path, build=Stuck) as models:
            with pytest.raises(UpdateFailed):
                await models.get().learn([text("explode")])
            with pytest.raises(NotReady, match="unusable"):
                await models.get().judge([text("a")], PLAIN)
            assert not models.ready

    run(work)


def test_outcomes_are_needed(tmp_path):
    async def work():
        async with learning(tmp_path) as models:
            with pytest.raises(BadRequest, match=r"items\[1\] has none"):
                await models.get().learn([text("a"), text("b", outcome=None)])
            with pytest.raises(BadRequest):
                await models.get().learn([])
            assert models.made[0].seen == 0

    run(work)


def test_updates_wait_in_a_short_line_and_scores_go_between_them(tmp_path):
    class Slow(Learner):
        def __init__(self):
            super().__init__()
            self.entered, self.open = threading.Event(), threading.Event()

        def learn(self, episodes):
            self.entered.set()
            assert self.open.wait(30)
            return super().learn(episodes)

    async def work():
        async with learning(tmp_path, build=Slow) as models:
            slow = models.made[0]
            tasks = [asyncio.create_task(models.get().learn([text("a0")]))]
            await asyncio.to_thread(slow.entered.wait, 30)
            tasks += [asyncio.create_task(models.get().learn([text(f"a{n}")])) for n in range(1, 5)]
            await asyncio.sleep(0)
            with pytest.raises(Busy):
                await models.get().learn([text("z")])
            ended: list[str] = []
            score = asyncio.create_task(models.get().judge([text("q")], JudgeOptions()))
            score.add_done_callback(lambda _: ended.append("score"))
            for n, task in enumerate(tasks):
                task.add_done_callback(lambda _, n=n: ended.append(f"update {n}"))
            await asyncio.sleep(0)
            slow.open.set()
            assert [m.metrics["seen"] for m in await asyncio.gather(*tasks)] == [1, 2, 3, 4, 5]
            await score
            assert ended.index("score") < ended.index("update 2")  # it did not wait for all that came before it

    run(work)


def test_an_update_whose_time_is_over_is_never_begun(tmp_path):
    class Held(Learner):
        def __init__(self):
            super().__init__()
            self.entered, self.open = threading.Event(), threading.Event()

        def learn(self, episodes):
            self.entered.set()
            assert self.open.wait(30)
            return super().learn(episodes)

    async def work():
        async with learning(tmp_path, build=Held) as models:
            held = models.made[0]
            first = asyncio.create_task(models.get().learn([text("a")], update=UpdateId("c", 1)))
            await asyncio.to_thread(held.entered.wait, 30)
            models.get("toy").limits = LimitSettings(deadline_s=0.01)
            with pytest.raises(DeadlineExceeded, match="not begun within"):
                await models.get().learn([text("b")], update=UpdateId("c", 2))
            held.open.set()
            assert (await first).updates == 1
            models.get("toy").limits = LimitSettings()
            again = await models.get().learn([text("b")], update=UpdateId("c", 2))
            assert (again.updates, again.repeated, held.seen) == (2, False, 2)

    run(work)


@pytest.mark.hostile("kills")
def test_two_servers_do_not_share_a_folder(tmp_path):
    store = UpdateStore(tmp_path, keep=2)
    with pytest.raises(ConfigError, match="in use by another server"):
        UpdateStore(tmp_path, keep=2)
    store.close()
    UpdateStore(tmp_path, keep=2).close()


@pytest.mark.hostile("kills")
def test_a_broken_newest_state_falls_back_with_a_warning(tmp_path, caplog):
    model, store = Learner(), UpdateStore(tmp_path, keep=3)
    store.resume(model)
    for _ in range(2):
        model.learn([text("a")])
        store.commit(model, None, {})
    (tmp_path / "update_000000002" / "model" / "toy.json").write_text('{"weight": 5, "seen": 5}')
    store.close()
    again, store = Learner(), UpdateStore(tmp_path, keep=1)
    store.resume(again)
    assert (again.seen, store.updates) == (1, 1)
    assert "update_000000002" in caplog.text
    again.learn([text("a")])
    store.commit(again, None, {})
    assert [p.name for p in tmp_path.glob("update_*")] == ["update_000000002"]
    store.resume(again)
    assert again.seen == 2
    (tmp_path / "update_000000002" / "COMPLETE").unlink()
    with pytest.raises(CheckpointError, match="move the folder away"):
        store.resume(again)
    store.close()


def test_a_model_that_does_not_learn_has_no_update_dir(tmp_path):
    async def work():
        with pytest.raises(BadRequest, match="remove update_dir"):
            async with learning(tmp_path, build=Toy):
                pass

    run(work)


# real processes

LEARNER = {"custom_backend": "toys:make_learner"}


def update(text="a", outcome=True, **more):
    return {"items": [{"prompt": "q", "steps": [text], "outcome": outcome}], **more}


def test_the_routes_of_learning(server, tmp_path):
    running = server(models={"toy": {**LEARNER, "update_dir": str(tmp_path / "states")}})
    none = running.post("/v1/update", update("b", update="none"))
    assert (none.json()["results"][0]["score"], none.json()["updates"], none.json()["metrics"]) == (0.0, None, {})
    after = running.post("/v1/update", update("b", client_id="c", number=1)).json()
    assert (after["update"], after["results"][0]["score"], after["updates"]) == ("after", 0.0, 1)
    assert after["metrics"] == {"weight": UNIT, "seen": 1.0}
    repeated = running.post("/v1/update", update("b", client_id="c", number=1)).json()
    assert repeated == {**after, "repeated": True}
    before = running.post("/v1/update", update("b", update="before")).json()
    assert before["results"][0]["score"] == 2 * UNIT
    assert running.post("/v1/update", update("c", client_id="c", number=1)).status_code == 409
    assert running.post("/v1/update", update(client_id="c", number=2, update="none")).status_code == 422
    lacking = running.post("/v1/update", update(outcome=None))
    assert lacking.status_code == 422
    assert lacking.json()["error"]["param"] == "items"
    failed = running.post("/v1/update", update("explode"))
    assert failed.status_code == 500
    assert "secret" not in failed.text
    assert running.post("/v1/rewards", update("b")).json()["results"][0]["score"] == 2 * UNIT
    assert running.post("/v1/reload", {}).json() == {"model": "toy"}
    assert running.post("/v1/reload").json() == {"model": "toy"}
    assert running.post("/v1/reload", content=b"[").status_code == 422
    assert running.post("/v1/rewards", update("b")).json()["results"][0]["score"] == 2 * UNIT
    assert running.stop() == 0


def kill_while_updating(server, folder, states, rng, learnt):
    """One life of a server: updates one after another, until it is killed at a random moment.

    Returns:
        How many updates its successor must at least know.
    """
    running = server(
        folder=folder, models={"toy": {**LEARNER, "update_dir": str(states), "options": {"learn_ms": 1.0}}}
    )
    metrics = running.post("/v1/update", update(update="none")).json()["results"][0]["score"]
    known = round((metrics - 1) / UNIT)
    assert learnt <= known <= learnt + 1, "an answered update was lost, or one was learnt twice"
    killer = threading.Timer(rng.uniform(0.0, 0.12), os.kill, (running.process.pid, signal.SIGKILL))
    killer.start()
    with httpx.Client(timeout=10) as client:
        while True:
            try:
                answer = client.post(running.url + "/v1/update", json=update(client_id="c", number=known + 1))
            except httpx.TransportError:
                break
            known += 1
            assert answer.json()["metrics"]["seen"] == known
    killer.join()
    assert running.process.wait(10) == -signal.SIGKILL
    return known


@pytest.mark.hostile("kills")
@pytest.mark.parametrize("lives", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_while_updating(server, tmp_path, lives):
    rng = random.Random(lives)
    learnt = 0
    for _ in range(lives):
        learnt = kill_while_updating(server, tmp_path, tmp_path / "states", rng, learnt)
    newest = max((tmp_path / "states").glob("update_*"))
    assert json.loads((newest / "update.json").read_text())["updates"] in (learnt, learnt + 1)
    assert not list((tmp_path / "states").glob("broken_*")), "a kill left a broken state under a final name"
