"""Runs whose reward comes from a server: as with the same model here, whatever the network does, and never made up."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from chaos import chaos_server, worth

import text_rl
from guerdon.cli import main
from guerdon.config.loading import to_yaml
from guerdon.errors import ConfigError, TooManyFailuresError
from guerdon.rl import build_text, learner
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.run import run_folder
from guerdon.types import Failure, RewardInfo, Score
from rl_clock import clock_study, lines, read_moment, result, start, truth_of
from rl_killed import kill_at
from tables import first

HERE = Path(__file__).parent
torch.set_num_threads(1)


NO_TEXT = "a step or response without text cannot be scored"


def one_in_ten(values):
    """Which items fail: always the same ones, about every tenth."""
    return crc32(repr(values).encode()) % 10 == 0


class Worth:
    """What the chaos server says, here."""

    def __init__(self, mute=lambda values: False, modality="image"):
        self.mute = mute
        self.info = RewardInfo(
            name="chaos", range=(0.0, 1.0), modality=modality, frames_needed=int(modality == "image")
        )

    def score(self, episodes):
        scores = []
        for episode in episodes:
            shown = episode.texts or [str(frame[0, 0].tolist()) for frame in episode.frames]
            values = [worth(one) for one in shown]
            if not all(shown):
                scores.append(Score(failure=Failure("empty_text", NO_TEXT)))
            elif self.mute(values):
                scores.append(Score(failure=Failure("mute", "nothing to say")))
            else:
                scores.append(Score.from_values(np.array(values, np.float32), total=values[-1]))
        return scores


def source(model, **given):
    given = {"reward_mode": "per_step", **given}
    if "binary_reward" not in given:
        given.setdefault("shaping", "raw")
    limits = {k: given.pop(k) for k in ("max_failure_rate", "failure_window", "combine_mode") if k in given}
    return {"use_reward_model": True, **limits, "sources": {"rm": {"model": model, **given}}}


def remote(server, path="", **given):
    return {"model_type": "remote", "endpoint": server.url + path, "timeout": 20.0, **given}


LOCAL = {"model_type": "constant"}


# Robots.


def test_a_run_with_a_remote_model_is_the_run_with_the_local_one_whatever_the_network_does(tmp_path):
    local = clock_study(tmp_path, name="local", reward=source(LOCAL, score_every=2))
    start(local, reader=Worth()).run()
    faults = ["reset", "latency", "cut", "ok", "close", "bad_status", "ok", "reset_before"]
    with chaos_server(faults, modality="image") as server:
        study = clock_study(tmp_path, name="remote", reward=source(remote(server), score_every=2))
        start(study, reader="own").run()
        assert len(server.met) > len(faults)
    assert result(study) == result(local)


def test_failed_items_are_those_of_the_local_model_and_carry_no_gradient(tmp_path, monkeypatch):
    checked = []

    real = learner.source_advantages

    def watched(rollout, rewards, *args, **given):
        found = real(rollout, rewards, *args, **given)
        own = rewards["rm"]
        assert (own.values[own.failed] == 0).all()
        loud = {**rewards, "rm": replace(own, values=np.where(own.failed, np.float32(1e6), own.values))}
        other = real(rollout, loud, *args, **given)
        np.testing.assert_array_equal(found.advantages, other.advantages)
        known = found.known["rm"]
        np.testing.assert_array_equal(found.value_targets["rm"][known], other.value_targets["rm"][known])
        assert not known[own.failed].any()
        checked.append(int(own.failed.sum()))
        return found

    given = {"score_every": 1, "max_failure_rate": 0.6, "combine_mode": "add"}
    local = clock_study(tmp_path, name="local", reward=source(LOCAL, **given))
    start(local, reader=Worth(one_in_ten)).run()
    monkeypatch.setattr(learner, "source_advantages", watched)
    with chaos_server(mute=one_in_ten, modality="image") as server:
        study = clock_study(tmp_path, name="remote", reward=source(remote(server), **given))
        start(study, reader="own").run()
        muted = server.muted
    assert result(study) == result(local)
    rows = lines(study, "failures")
    assert 0 < len(rows) == sum(checked) <= muted  # the video at the end is scored as well
    assert {row["reason"] for row in rows} == {"mute"}
    scored = json.loads((run_folder(study) / "COMPLETE").read_text())["scored"]
    assert 0.02 < len(rows) / scored < 0.6


@pytest.mark.parametrize("always", first(["error_500", "reset", "half_json", "no_list"], 1))
def test_when_everything_fails_the_run_stops_with_3_and_goes_on_once_it_is_mended(
    always, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with chaos_server(always=always, modality="image") as server:
        model = remote(server, tries=1)
        study = clock_study(tmp_path, name="remote", reward=source(model, failure_window=30))
        (tmp_path / "failing.yaml").write_text(to_yaml(study))
        monkeypatch.setattr(sys, "argv", ["guerdon", "run", str(tmp_path / "failing.yaml")])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 3
        assert "100% of its last" in capsys.readouterr().err
        folder = run_folder(study)
        assert ckpt.latest_checkpoint(folder / "checkpoints") is not None
        failures = lines(study, "failures")
        assert len({row["reason"] for row in failures}) == 1
        assert all(row.get("return/rm") is None for row in lines(study))
        step = lines(study)[-1]["step"]
        assert step < study.runner.total_steps
        server.always = "ok"
        monkeypatch.setattr(sys, "argv", [*sys.argv, "--resume"])
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
    assert (folder / "COMPLETE").is_file()
    assert lines(study, "failures") == failures
    assert lines(study)[-1]["step"] >= study.runner.total_steps


def test_on_failure_raise_by_the_guides_name_stops_before_anything_is_learned(tmp_path):
    with chaos_server(["ok", "failure"], modality="image") as server:
        study = clock_study(tmp_path, reward=source(remote(server, fail_on_request_error=True)))
        assert study.reward.sources["rm"].on_failure == "raise"
        with pytest.raises(TooManyFailuresError, match="on_failure is raise") as caught:
            start(study, reader="own").run()
        assert caught.value.exit_code == 3
        assert len(lines(study, "failures")) > 0
        start(study, reader="own", resume=True).run()
    assert (run_folder(study) / "COMPLETE").is_file()


# Whole episodes.


class Whole:
    """Judges whole episodes: their last moment decides. Remembers what it was shown."""

    info = RewardInfo(name="whole", range=(0.0, 1.0), granularity="total", frames_needed=1)

    def __init__(self):
        self.seen, self.calls = [], []

    def score(self, episodes):
        self.calls.append(len(episodes))
        shown = [[read_moment(frame) for frame in episode.frames] for episode in episodes]
        self.seen += shown
        return [Score(total=truth_of(*moments[-1][:2])) for moments in shown]


EPISODE = {"reward_mode": "episode", "score_every": 3, "reward_coef": 5.0}


@pytest.mark.parametrize("mode", ["disabled", "next_step", "same_step"])
def test_an_episode_is_judged_once_at_its_end_from_all_that_was_seen(mode, tmp_path):
    reward = source(LOCAL, **EPISODE, binary_reward=True, success_threshold=0.5, use_rel_reward=True)
    study = clock_study(tmp_path, reward=reward, env={"autoreset_mode": mode, "num_envs": 4})
    loop = start(study, reader=(reader := Whole()))
    loop.run()
    rows = lines(study, "episodes")
    *seen, video = reader.seen
    del video
    assert len(rows) == len(seen) > 10
    for moments in seen:
        names, counts, terminal = zip(*moments, strict=True)
        assert len(set(names)) == 1
        assert counts == tuple(sorted({*range(0, counts[-1], 3), counts[-1]}))
        assert terminal[-1] or counts[-1] == 8
    wanted = sorted(5.0 * (truth_of(*moments[-1][:2]) >= 0.5) for moments in seen)
    assert sorted(row["return/rm"] for row in rows) == wanted
    assert max(reader.calls) > 1  # episodes that end in one rollout are judged together
    assert len(reader.calls) < len(seen)


def test_an_episode_under_way_survives_a_kill(tmp_path):
    reward = source(LOCAL, **EPISODE, binary_reward=False)
    whole, study = clock_study(tmp_path, name="whole", reward=reward), clock_study(tmp_path, reward=reward)
    start(whole, reader=Whole()).run()
    kill_at(start(study, reader=Whole()), "update", 5)
    start(study, reader=Whole(), resume=True).run()
    assert result(study) == result(whole)


def test_groups_of_episodes_are_judged_in_one_request(tmp_path):
    grpo = {"adv_estimator": "grpo", "group_size": 2, "minibatch_size": 8, "num_epochs": 2}
    reward = source(LOCAL, **EPISODE)
    study = clock_study(tmp_path, env={"num_envs": 4}, algorithm=grpo, reward=reward)
    loop = start(study, reader=(reader := Whole()))
    loop.iterate()
    assert reader.calls == [4]
    loop.close()


def test_the_guides_configuration_runs_against_the_guides_route(tmp_path):
    with chaos_server(["error_500", "missing"], modality="image") as server:
        model = remote(server, "/score", nframes=16, max_pixels=200704, backend_kwargs={"score_mode": "auto"})
        reward = source(model, score_every=2, reward_mode="episode", shaping="raw", max_failure_rate=0.5)
        study = clock_study(tmp_path, reward=reward)
        start(study, reader="own").run()
        assert all(len(body) > 1000 and b"task_text" in body for body in server.requests)
    rows = lines(study, "episodes")
    known = [row["return/rm"] for row in rows if row["return/rm"] is not None]
    assert known == [0.25] * len(known)
    assert len(rows) - len(known) == 1
    assert [row["reason"] for row in lines(study, "failures")] == ["bad_reply"]


def test_true_success_takes_a_failures_place_where_asked_for_and_is_counted(tmp_path):
    with chaos_server(always="unprocessable", modality="image", granularity="total") as server:
        given = {**EPISODE, "reward_coef": 1.0, "max_failure_rate": 1.0, "shaping": "raw"}
        study = clock_study(tmp_path, reward=source(remote(server, fallback="native"), **given))
        start(study, reader="own").run()
    rows = lines(study, "episodes")
    assert [row["return/rm"] for row in rows] == [float(row["success_at_end"]) for row in rows]
    assert len({row["return/rm"] for row in rows}) == 2
    assert len(lines(study, "failures")) == len(rows)
    assert lines(study)[-2]["failures"] == len(rows)


def test_models_that_cannot_give_what_is_asked_for_are_refused(tmp_path):
    with chaos_server(modality="image", granularity="total") as server:
        with pytest.raises(ConfigError, match="needs reward_mode: episode") as refused:
            start(clock_study(tmp_path, reward=source(remote(server))), reader="own")
        assert refused.value.key == "reward.sources.rm.reward_mode"
        server.info["range"] = [-1, 1]
        with pytest.raises(ConfigError, match="fallback native gives 0 or 1") as refused:
            start(clock_study(tmp_path, reward=source(remote(server, fallback="native"), **EPISODE)), reader="own")
        assert refused.value.key == "reward.sources.rm.model.remote.fallback"
        server.info["modality"] = "text"
        with pytest.raises(ConfigError, match="judges text, not frames") as refused:
            start(clock_study(tmp_path, reward=source(remote(server), **EPISODE)), reader="own")
        assert refused.value.key == "reward.sources.rm.model"
    with pytest.raises(ConfigError, match="start it with `guerdon serve`"):
        start(clock_study(tmp_path, reward=source(remote(server))), reader="own")


# Language models.


def text_source(server, **given):
    model = {"model_type": "remote_text", "endpoint": server.url, "timeout": 20.0}
    given = {"reward_mode": "per_step", "shaping": "raw", "model": model, **given}
    return {"use_reward_model": True, "combine_mode": "add", "max_failure_rate": 0.6, "sources": {"rm": given}}


def test_language_models_are_rewarded_from_a_server_as_from_the_model_here(tmp_path, monkeypatch):
    with chaos_server(["reset", "latency"], mute=one_in_ten) as server:
        study = text_rl.sum_study(tmp_path, reward=text_source(server))
        text_rl.start(study).run()
        asked = [item for body in server.requests for item in body["items"]]
        assert all(item["steps"] and item["prompt"] for item in asked)
    failures = text_rl.lines(study, "failures")
    assert {row["reason"] for row in failures} <= {"mute", "empty_text"}
    assert sum(row["reason"] == "mute" for row in failures) > 0
    assert {row["source"] for row in failures} == {"rm"}
    local = text_rl.sum_study(tmp_path, name="local", reward=text_source(server))
    monkeypatch.setattr(build_text, "load_source_model", lambda settings: Worth(one_in_ten, modality="text"))
    text_rl.start(local).run()
    assert text_rl.result(study) == text_rl.result(local)


def test_a_language_models_run_stops_when_everything_fails(tmp_path):
    with chaos_server(always="overloaded_long") as server:
        study = text_rl.sum_study(tmp_path, reward={**text_source(server), "failure_window": 20})
        with pytest.raises(TooManyFailuresError, match="overloaded"):
            text_rl.start(study).run()
        server.always = "ok"
        text_rl.start(study, resume=True).run()
    assert (run_folder(study) / "COMPLETE").is_file()
