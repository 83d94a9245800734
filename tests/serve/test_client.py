"""The client against a server made of faults, over real sockets: every item is its true value or a failure."""

import asyncio
import base64
import io
import json
import math
import os
import random
import threading

import numpy as np
import pytest
from chaos import (
    FAULTS,
    LASTING,
    RECOVERABLE,
    STATUS_FAULTS,
    FakeClock,
    chaos_server,
    worth,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guerdon.errors import ConfigError, DataError, RewardRequestError
from guerdon.models.explained_score import JudgeOptions
from guerdon.serve.client import AsyncRewardClient, RewardClient
from guerdon.serve.wires.client_wire import read_items, read_score
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Episode, RewardInfo
from tables import cases, refuses

INFO = RewardInfo(name="chaos", range=(0.0, 1.0), modality="text", frames_needed=0)
REASONS = {
    "nan": "non_finite", "infinite": "non_finite", "huge": "non_finite", "string": "bad_reply", "true": "bad_reply",
    "null": "bad_reply", "missing": "bad_reply", "out_of_range": "out_of_range", "negative": "out_of_range",
    "wrong_id": "bad_reply", "no_id": "bad_reply", "list_item": "bad_reply", "nan_step": "non_finite",
    "one_step_less": "wrong_length", "one_step_more": "wrong_length", "string_step": "bad_reply",
    "steps_no_list": "bad_reply", "failure": "mute", "odd_failure": "server_failure",
    "one_less": "wrong_count", "one_more": "wrong_count", "no_list": "bad_reply", "null_list": "bad_reply",
    "empty": "wrong_count", "swapped": "bad_reply", "twice": "bad_reply",
    "bad_request": "rejected", "unauthorized": "unauthorized", "gone": "not_found", "too_large": "too_large",
    "unprocessable": "rejected", "half_json": "bad_reply", "html": "bad_reply", "no_json": "bad_reply",
    "deep": "bad_reply", "array": "bad_reply", "nothing": "bad_reply", "redirect": "rejected",
}  # fmt: skip


def texts(*steps, name="0"):
    return Episode(id=name, task="how much?", texts=steps)


def client_of(server, path="", fake=None, **given):
    fake = fake or FakeClock()
    given = {"read_timeout": 0.2, "timeout": 30.0, **given}
    return RewardClient(RemoteSettings(endpoint=server.url + path, **given), clock=fake.clock(), rng=random.Random(0))


def is_true(judged, *steps):
    return judged.score.failure is None and judged.score.steps.tolist() == [worth(step) for step in steps]


# What a reply is worth.


@pytest.mark.hostile("endpoints")
@cases("fault", sorted(LASTING))
def test_what_the_server_says_wrongly_is_a_failure_and_not_asked_again(fault):
    with chaos_server([fault]) as server, client_of(server) as client:
        first, second = client.judge([texts("a", "b"), texts("c")])
        wrong = second if fault == "twice" else first
        assert wrong.score.failure.reason == REASONS[fault]
        assert len(server.requests) == 1
        others_are_fine = fault in ("failure", "odd_failure") or fault.startswith(("nan", "one_step", "string"))
        if others_are_fine:
            assert is_true(second, "c")
        assert is_true(client.judge([texts("a", "b")])[0], "a", "b")


@cases("fault", sorted(RECOVERABLE - {"overloaded_long"}))
def test_what_may_pass_is_tried_again(fault):
    fake = FakeClock()
    with chaos_server([fault, fault]) as server, client_of(server, fake=fake) as client:
        assert is_true(client.judge([texts("a", "b")])[0], "a", "b")
        assert server.met == [fault, fault, "ok"]
        names = [headers["X-Request-ID"] for headers in server.headers]
        assert len(set(names)) == 1
        client.judge([texts("a")])
        assert server.headers[-1]["X-Request-ID"] not in names
        assert len(fake.slept) == 2


@pytest.mark.parametrize("fault", ["reset", "error_500", "overloaded_plain", "hang"])
def test_after_its_tries_it_is_a_failure(fault):
    with chaos_server(always=fault) as server, client_of(server, tries=3) as client:
        judged = client.judge([texts("a")])[0]
        reason = {"reset": "connection", "hang": "timeout", "overloaded_plain": "overloaded"}.get(fault, "server_error")
        assert judged.score.failure.reason == reason
        assert len(server.met) == 3
        assert client.counts == {"requests": 2, "tries": 4, "unscored": 1, reason: 1}


def test_retry_after_is_honoured_with_a_tenth_of_jitter_on_top():
    fake = FakeClock()
    with chaos_server(["overloaded", "overloaded_date"]) as server, client_of(server, fake=fake) as client:
        assert is_true(client.judge([texts("a")])[0], "a")
    assert 2.0 <= fake.slept[0] <= 2.2
    assert 7.0 <= fake.slept[1] <= 7.7


def test_a_pause_beyond_the_deadline_is_not_begun():
    fake = FakeClock()
    with chaos_server(always="overloaded_long") as server, client_of(server, fake=fake) as client:
        failure = client.judge([texts("a")])[0].score.failure
        assert (failure.reason, len(server.met), fake.slept) == ("overloaded", 1, [])
        assert "100000 s" in failure.detail


def test_the_deadline_holds_for_a_whole_batch():
    fake = FakeClock()
    with chaos_server(always="overloaded") as server:
        client = client_of(server, fake=fake, timeout=3.0, max_batch_items=1, concurrency=1)
        judged = client.judge([texts(str(n)) for n in range(5)])
        assert {one.score.failure.reason for one in judged} == {"overloaded"}
        assert all("no time for try" in one.score.failure.detail for one in judged)
        assert sum(fake.slept) < 3.0
        assert len(server.met) < 8  # of 15 that there would be time for without a deadline
        client.close()


@pytest.mark.hostile("endpoints")
def test_a_slow_body_ends_at_the_deadline():
    with chaos_server(always="slow") as server, client_of(server, timeout=0.4) as client:
        failure = client.judge([texts("a")])[0].score.failure
        assert failure.reason == "deadline"
        assert len(server.met) == 1


@pytest.mark.hostile("endpoints")
def test_an_endless_reply_is_cut_off(monkeypatch):
    with chaos_server() as server, client_of(server) as client:
        assert client.info().name == "chaos"
        monkeypatch.setattr("guerdon.serve.client.MOST_BYTES", 50)
        failure = client.judge([texts("a")])[0].score.failure
        assert (failure.reason, failure.detail) == ("bad_reply", "longer than 50 bytes")
        assert len(server.met) == 1


def test_a_batch_that_comes_too_late_is_not_begun():
    fake = FakeClock()
    with chaos_server(["overloaded"]) as server:
        client = client_of(server, fake=fake, timeout=3.0, max_batch_items=1, concurrency=1)
        client.info()
        sleep = fake._sleep

        async def oversleep(seconds):
            await sleep(seconds + 10)

        fake._sleep = oversleep
        client = client_of(server, fake=fake, timeout=3.0, max_batch_items=1, concurrency=1)
        judged = client.judge([texts("a"), texts("b")])
        assert [one.score.failure.reason for one in judged] == ["overloaded", "deadline"]
        assert len(server.met) == 1
        client.close()


def test_nobody_there():
    with chaos_server() as server:
        url = server.url
    client = RewardClient(RemoteSettings(endpoint=url), clock=FakeClock().clock())
    with pytest.raises(ConfigError, match="start it with `guerdon serve`"):
        client.info()
    client.close()


def test_a_server_that_is_down_when_first_asked_is_a_failure_of_each_item_until_it_is_there():
    frames = [np.zeros((2, 8, 8, 3), np.uint8)] * 2
    fake = FakeClock()
    with chaos_server() as server:
        port = server.server_port
    client = client_of(server, fake=fake, fallback="native")
    assert client.rewards(["q", "r"], ["a", "b"]) == [None, None]
    assert [one.score.failure.reason for one in client.judge([texts("a")])] == ["connection"]
    answers = client.score_videos(["t"] * 2, frames, native_success=[True, False])
    assert [(one.value, one.fallback) for one in answers] == [(1.0, True), (0.0, True)]
    assert (client.counts["unscored"], client.counts["fallback"]) == (5, 2)
    with pytest.raises(RewardRequestError, match="did not learn"):
        client.update(["q"], ["a"], [True])
    with chaos_server(port=port):
        assert client.rewards(["q"], ["a"]) == [worth("a")]
    client.close()
    with client_of(server, fail_on_request_error=True) as client, pytest.raises(RewardRequestError, match="connection"):
        client.rewards(["q"], ["a"])


@pytest.mark.parametrize("tries", [1, 6, 8, 20])
def test_nothing_cuts_a_call_short_of_its_own_tries(tries):
    """However many of the tries before it failed, also those of other calls."""
    with chaos_server(always="error_500") as server:
        client = client_of(server, tries=tries, timeout=600.0)
        for calls in (1, 2, 3):
            assert client.judge([texts("a")])[0].score.failure.reason == "server_error"
            assert len(server.met) == calls * tries
        server.script, server.always = ["reset"] * (tries - 1), "ok"
        assert is_true(client.judge([texts("a")])[0], "a")
        client.close()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["id", "score", "step_scores", "failure", "reason", "detail", "text", "n_tokens"]), inner
    ),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.hostile("endpoints")
@given(json_values, st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_no_reply_breaks_the_reader_or_leaves_the_range(found, count):
    episodes = [texts("a", "b")] * count
    ids = [str(n) for n in range(count)]
    for judged in read_items(found, episodes, INFO, ids) + read_items({"results": found}, episodes, INFO, ids):
        score = judged.score
        assert (score.failure is None) == (score.steps is not None)
        if score.steps is not None:
            assert score.steps.shape == (2,)
            assert ((score.steps >= 0) & (score.steps <= 1)).all()
        assert score.total is None or 0 <= score.total <= 1
    judged = read_score(found, INFO)
    assert judged.score.failure is not None or 0 <= judged.score.total <= 1


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=5), st.none() | st.floats(0, 1))
def test_good_items_are_read_to_the_bit(steps, total):
    item = {"id": "0", "score": total, "step_scores": steps, "failure": None, "n_tokens": 7, "truncated": True}
    item["parse_status"] = "fallback"
    if total is None:  # a model that judges steps only
        item["failure"] = {"reason": "no_total", "detail": "choose an aggregation"}
    judged = read_items({"results": json.loads(json.dumps([item]))}, [texts(*"x" * len(steps))], INFO, ["0"])[0]
    assert judged.score.steps.tolist() == steps
    assert judged.score.total == total
    assert (judged.tokens, judged.truncated, judged.parse_status) == (7, True, "fallback")


# Batches.


def test_many_items_travel_together_and_come_back_in_order():
    with chaos_server() as server, client_of(server, max_batch_items=4) as client:
        episodes = [texts(f"step {n}") for n in range(10)]
        judged = client.judge(episodes)
        assert all(is_true(one, f"step {n}") for n, one in enumerate(judged))
        assert sorted(len(body["items"]) for body in server.requests) == [2, 4, 4]
        assert client.judge([]) == []


def test_large_items_do_not_share_a_request(monkeypatch):
    monkeypatch.setattr("guerdon.serve.wires.client_wire.MOST_BYTES", 100)
    with chaos_server() as server, client_of(server) as client:
        client.judge([texts("x" * 60), texts("y" * 60), texts("z"), texts("w" * 500)])
        assert sorted(len(body["items"]) for body in server.requests) == [1, 1, 2]


def test_what_cannot_be_sent_fails_alone():
    state = Episode(id="s", task="t", states=np.zeros((2, 3), np.float32))
    with chaos_server() as server, client_of(server) as client:
        judged = client.judge([texts("a"), texts("b", ""), state, texts("c")])
        assert [one.score.failure and one.score.failure.reason for one in judged] == [
            None, "empty_text", "no_frames", None,
        ]  # fmt: skip
        assert is_true(judged[3], "c")
        assert len(server.requests[0]["items"]) == 2


def test_an_item_that_the_server_names_fails_alone(monkeypatch):
    with chaos_server() as server, client_of(server) as client:
        handler = server.RequestHandlerClass
        answer = handler._answer

        def refuse(self, body, fault):
            wrong = [n for n, item in enumerate(body["items"]) if "bad" in item["steps"][0]]
            if wrong:
                self._send(422, {"error": {"message": "too long", "param": f"items[{wrong[0]}].steps"}})
                raise ConnectionAbortedError
            return answer(self, body, fault)

        monkeypatch.setattr(handler, "_answer", refuse)
        judged = client.judge([texts("a"), texts("bad"), texts("c"), texts("bad too"), texts("e")])
        assert [one.score.failure and one.score.failure.reason for one in judged] == [
            None, "rejected", None, "rejected", None,
        ]  # fmt: skip
        assert is_true(judged[4], "e")
        assert len(server.requests) == 3
        assert client.judge([texts("bad")])[0].score.failure.reason == "rejected"


@pytest.mark.hostile("endpoints")
@given(
    schedule=st.lists(st.sampled_from([f for f in FAULTS if f not in ("slow", "hang")]), max_size=14),
    hangs=st.integers(0, 1),
    count=st.integers(1, 9),
    batch=st.integers(1, 4),
    concurrency=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_with_any_schedule_of_faults_every_item_is_its_true_value_or_a_failure(
    schedule, hangs, count, batch, concurrency
):
    schedule = [*schedule, *["hang"] * hangs]
    with chaos_server(schedule) as server:
        client = client_of(
            server, max_batch_items=batch, concurrency=concurrency, tries=3, read_timeout=0.15,
        )  # fmt: skip
        episodes = [texts(f"{n}", f"and {n}", name=str(n)) for n in range(count)]
        judged = client.judge(episodes)
        assert len(judged) == count
        for n, one in enumerate(judged):
            assert one.score.failure is not None or is_true(one, f"{n}", f"and {n}")
        if not any(f in LASTING or f in RECOVERABLE for f in schedule):
            assert all(one.score.failure is None for one in judged)
        assert client.counts["unscored"] == sum(one.score.failure is not None for one in judged)
        client.close()


# Who asks.


def test_an_event_loop_of_ones_own():
    async def ask(url):
        async with AsyncRewardClient(url, clock=FakeClock().clock()) as client:
            both = await asyncio.gather(client.rewards(["q"], ["a"]), client.judge([texts("b")]))
            return both, client.counts

    with chaos_server(["reset"]) as server:
        (rewards, judged), counts = asyncio.run(ask(server.url))
    assert rewards == [worth("a")]
    assert is_true(judged[0], "b")
    assert counts["tries"] == counts["requests"] + 1


def test_one_event_loop_after_another():
    with chaos_server() as server:
        client = AsyncRewardClient(server.url)
        for text in ("a", "b"):
            assert asyncio.run(client.rewards(["q"], [text])) == [worth(text)]
        asyncio.run(client.close())


@pytest.mark.hostile("endpoints")
def test_a_server_that_goes_away_is_a_failure_and_its_return_is_noticed():
    fake = FakeClock()
    with chaos_server() as server:
        client = client_of(server, fake=fake)
        assert is_true(client.judge([texts("a")])[0], "a")
        port = server.server_port
    judged = client.judge([texts("a"), texts("b")])
    assert [one.score.failure.reason for one in judged] == ["connection", "connection"]
    with chaos_server(port=port) as server:
        assert is_true(client.judge([texts("a")])[0], "a")
    client.close()


def test_many_threads_share_a_client():
    found = {}
    with chaos_server(["reset", "error_500", "latency"]) as server, client_of(server) as client:

        def ask(n):
            found[n] = client.rewards(["q"] * 3, [f"{n}-{k}" for k in range(3)])

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {n: [worth(f"{n}-{k}") for k in range(3)] for n in range(6)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_process_asks_by_itself():
    with chaos_server() as server, client_of(server) as client:
        assert client.rewards(["q"], ["a"]) == [worth("a")]
        child = os.fork()
        if child == 0:
            os._exit(0 if client.rewards(["q"], ["b"]) == [worth("b")] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.rewards(["q"], ["c"]) == [worth("c")]


def test_a_closed_client_may_be_used_again():
    with chaos_server() as server:
        client = client_of(server)
        for _ in range(3):
            assert client.rewards(["q"], ["a"]) == [worth("a")]
            client.close()
        client.close()


def test_the_token_comes_from_the_environment_or_the_caller(monkeypatch):
    monkeypatch.setenv("GUERDON_TOKEN", "from the environment")
    with chaos_server() as server:
        for token, sent in ((None, "Bearer from the environment"), ("mine", "Bearer mine"), ("", None)):
            with RewardClient(server.url, token=token) as client:
                client.rewards(["q"], ["a"])
            assert server.headers[-1].get("Authorization") == sent


def test_rewards_as_trainers_ask_for_them():
    with chaos_server(["failure"]) as server, client_of(server) as client:
        chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "3+5=?"}]
        said = [{"role": "assistant", "content": "8"}]
        assert client.rewards([chat, "q"], [said, "a\n\nb"]) == [None, worth("a\n\nb")]
        assert server.requests[0]["items"][0]["messages"] == chat
        assert server.requests[0]["items"][1]["prompt"] == "q"
        assert client.rewards([chat[:1], "q"], ["a", "b"]) == [None, worth("b")]
        with pytest.raises(DataError, match="prompt 1 or its completion cannot be read"):
            client.update(["q", chat[:1]], ["a", "b"], [True, False])
        got = client.rewards(["q"], ["a\n\nb\n\nc"], separator="\n\n", aggregation="min")
        assert got == [min(map(worth, ("a\n\n", "b\n\n", "c")))]
        assert client.rewards(["q"], ["a\n\nb"], separator="\n\n") == [worth("b")]
        with pytest.raises(DataError, match="2 prompts, 1 completions"):
            client.rewards(["q", "r"], ["a"])


def test_an_error_is_raised_where_that_was_asked_for():
    with chaos_server(["failure"]) as server, client_of(server, fail_on_request_error=True) as client:
        with pytest.raises(RewardRequestError, match="mute") as caught:
            client.judge([texts("a"), texts("b")])
        assert caught.value.exit_code == 3
        assert is_true(client.judge([texts("a")])[0], "a")
        with pytest.raises(RewardRequestError, match="cannot be sent"):
            client.score_videos(["t"], [np.zeros((2, 5, 7, 9))])


# Videos.


def sent_frames(server, n=-1):
    """The frames of one item, as the server got them."""
    return np.load(io.BytesIO(base64.b64decode(server.requests[n]["items"][0]["npy_base64"])))


def test_frames_of_any_kind_arrive_as_rgb_bytes():
    rng = np.random.default_rng(0)
    rgb = rng.integers(0, 256, (5, 8, 10, 3), dtype=np.uint8)
    grey = rgb[..., 0]
    opaque = np.concatenate([rgb, np.full((5, 8, 10, 1), 255, np.uint8)], axis=3)
    kinds = {
        "bytes": (rgb, rgb),
        "floats": (rgb.astype(np.float32) / 255, rgb),
        "channels first": (rgb.transpose(0, 3, 1, 2), rgb),
        "grey": (grey, np.repeat(grey[..., None], 3, axis=3)),
        "opaque": (opaque, rgb),
    }
    with chaos_server(granularity="total", modality="image") as server, client_of(server, nframes=5) as client:
        for given_frames, wanted in kinds.values():
            assert client.score_videos(["t"], [given_frames])[0].failure is None
            assert np.array_equal(sent_frames(server), wanted)
        bad = client.score_videos(["t", "t"], [rgb.astype(np.float32), rgb])
        assert bad[0].failure.reason == "bad_frames"
        assert bad[0].value is None
        assert bad[1].failure is None


@given(st.integers(1, 40), st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_the_first_and_the_last_frame_are_kept(shared_chaos, length, nframes):
    frames = np.zeros((length, 2, 2, 3), np.uint8)
    frames[:] = np.arange(length, dtype=np.uint8)[:, None, None, None]
    with client_of(shared_chaos, nframes=nframes) as client:
        client.score_videos(["t"], [frames])
    shown = sent_frames(shared_chaos)[:, 0, 0, 0].tolist()
    assert len(shown) == min(nframes, length)
    assert shown[-1] == length - 1
    assert shown == sorted(set(shown))
    assert nframes == 1 or shown[0] == 0


@pytest.fixture(scope="module")
def shared_chaos():
    with chaos_server(granularity="total", modality="image") as server:
        yield server


@pytest.mark.parametrize("path", ["", "/score"])
def test_frames_that_cannot_be_written_are_a_failure(path, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    with chaos_server(granularity="total", modality="image") as server:
        client = client_of(server, path=path, upload="path", temp_video_dir=str(occupied))
        judged = client.judge([Episode(id="0", task="t", frames=np.zeros((2, 16, 16, 3), np.uint8))])[0]
        assert judged.score.failure.reason == "cannot_send"
        assert not server.requests
        client.close()


def test_models_of_frames_get_every_row():
    frames = np.zeros((30, 2, 2, 3), np.uint8)
    frames[:, 0, 0, 0] = np.arange(30)
    with chaos_server() as server, client_of(server) as client:
        judged = client.judge([Episode(id="0", task="t", frames=frames)])[0]
        assert judged.score.steps.tolist() == [worth(str([n, 0, 0])) for n in range(30)]
        assert "options" not in server.requests[0]


def test_true_success_takes_a_missing_scores_place_only_where_asked_for_and_is_counted():
    frames = [np.zeros((2, 8, 8, 3), np.uint8)] * 3
    script = ["bad_request"] * 3
    with chaos_server(script, granularity="total", modality="image") as server:
        with client_of(server) as client:
            answers = client.score_videos(["t"] * 3, frames, native_success=[True, False, True])
            assert [a.value for a in answers] == [None] * 3
            assert "fallback" not in client.counts
        with client_of(server, fallback="native") as client:
            answers = client.score_videos(["t"] * 3, frames, native_success=[True, False, True])
            assert [(a.value, a.fallback, a.failure.reason) for a in answers] == [
                (1.0, True, "rejected"), (0.0, True, "rejected"), (1.0, True, "rejected"),
            ]  # fmt: skip
            assert client.counts["fallback"] == 3
            unknown = client.score_videos(["t"] * 2, frames[:2], native_success=[None, True])
            assert [(a.value, a.fallback) for a in unknown] == [(None, False), (1.0, True)]
            assert client.counts["unscored"] == 5
            with pytest.raises(ConfigError, match="needs native_success") as refused:
                client.score_videos(["t"], frames[:1])
            assert refused.value.key == "fallback"
        with client_of(server) as client, pytest.raises(DataError, match="2 tasks, 3 videos"):
            client.score_videos(["t"] * 2, frames)


@pytest.mark.parametrize("fault", sorted({"nan", "infinite", "huge", "string", "true", "missing", "out_of_range"}))
def test_the_guides_protocol_is_checked_as_well(fault):
    episode = Episode(id="0", task="t", frames=np.zeros((2, 4, 4, 3), np.uint8))
    with chaos_server([fault]) as server, client_of(server, path="/score") as client:
        bad, good = client.judge([episode])[0], client.judge([episode])[0]
        assert bad.score.failure.reason == REASONS[fault]
        assert (good.score.total, good.text) == (0.25, "25")


@cases("fault", sorted(STATUS_FAULTS.keys() - {"overloaded_long"} | {"cut", "reset"}))
def test_the_guides_protocol_is_tried_again_as_well(fault):
    episode = Episode(id="0", task="t", frames=np.zeros((2, 4, 4, 3), np.uint8))
    with chaos_server([fault]) as server, client_of(server, path="/score") as client:
        assert client.judge([episode])[0].score.total == 0.25
        assert len(server.met) == 2


def test_options_of_a_call_come_before_those_of_the_settings():
    episode = Episode(id="0", task="t", frames=np.zeros((9, 4, 4, 3), np.uint8))
    with chaos_server(granularity="total", modality="image") as server:
        kwargs = {"score_mode": "auto", "prompt": "completed"}
        client = client_of(server, nframes=8, max_pixels=1000, backend="vlm", backend_kwargs=kwargs)
        client.judge([episode])
        wanted = {"nframes": 8, "max_pixels": 1000, "score_mode": "auto", "prompt": "completed"}
        assert server.requests[-1]["options"] == wanted
        assert server.requests[-1]["model"] == "vlm"
        client.judge([episode], JudgeOptions(score_mode="unit"))
        assert server.requests[-1]["options"] == {**wanted, "score_mode": "unit"}
        client.close()


@pytest.mark.hostile("endpoints")
def test_a_server_that_promises_nothing_is_refused():
    with chaos_server() as server:
        server.info["range"] = ["low", 1]
        with client_of(server) as client, pytest.raises(ConfigError, match="no description of a reward model"):
            client.info()
        server.info["range"] = [None, None]
        with client_of(server) as client:
            assert client.info().range == (-math.inf, math.inf)
        with (
            client_of(server, upload="mp4") as client,
            pytest.raises(ConfigError, match="upload would do nothing") as refused,
        ):
            client.info()
        assert refused.value.key == "upload"
        server.info["modality"] = "image"
        with (
            client_of(server, upload="mp4") as client,
            pytest.raises(ConfigError, match="does not keep them all") as refused,
        ):
            client.info()
        assert refused.value.key == "upload"
        with client_of(server, nframes=8) as client, refuses("nframes"):
            client.info()
