"""The loop as a whole, on an environment whose pictures say what they show."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import rl_clock as clock
from guerdon.compute.optimizers import under
from guerdon.episodes.read import read_episodes
from guerdon.errors import CheckpointError, ConfigError, TooManyFailuresError
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.run import run, run_folder
from rl_clock import clock_study, interrupted, lines, reader_reward, result, start
from rl_killed import Killed
from tables import first, refuses, sample

torch.set_num_threads(1)
GRPO = {"adv_estimator": "grpo", "group_size": 2, "minibatch_size": 8, "num_epochs": 2}


SETUPS = {
    "native": {},
    "potential": {"reward": reader_reward(shaping="potential", score_every=3)},
    "bonus": {
        "reward": reader_reward(shaping="bonus", reward_threshold=0.5),
        "algorithm": {"rollout_steps": 5, "normalize_rewards": True},
    },
    "grpo": {"algorithm": GRPO, "reward": reader_reward(reward_mode="terminal", shaping="threshold")},
    "rloo": {"algorithm": {**GRPO, "adv_estimator": "rloo"}, "env": {"num_envs": 4}},
    "reinforce_pp": {"algorithm": {"adv_estimator": "reinforce_pp", "rollout_steps": 12, "minibatch_size": 8}},
    "grpo_same_step": {"algorithm": GRPO, "env": {"autoreset_mode": "same_step"}},
    "average": {"algorithm": {"ema_decay": 0.8, "rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2}},
}


def dies(*_, **__):
    """Killed, wherever it is called."""
    raise Killed


@pytest.mark.hostile("kills")
@pytest.mark.parametrize("setup", sample(SETUPS, "native", "grpo"))
def test_a_run_that_was_cut_off_anywhere_ends_the_same(setup, tmp_path):
    whole = clock_study(tmp_path, name="whole", **SETUPS[setup])
    start(whole).run()
    again = clock_study(tmp_path, name="again", **SETUPS[setup])
    start(again).run()
    assert result(again) == result(whole)
    moments = (("update", 5), ("_evaluate", 2), ("_record", 4), ("_complete", 1), ("iterate", 2))
    for where, count in moments if setup == "native" else moments[:2]:
        study = clock_study(tmp_path, name=f"{where}{count}", **SETUPS[setup])
        interrupted(study, where, count)
        start(study, resume=True).run()
        assert result(study) == result(whole), where


@pytest.mark.hostile("kills")
def test_cut_off_more_than_once(tmp_path):
    whole, study = clock_study(tmp_path, name="whole"), clock_study(tmp_path)
    start(whole).run()
    interrupted(study, "iterate", 4)
    interrupted(study, "iterate", 5, resume=True)
    start(study, resume=True).run()
    assert result(study) == result(whole)


@pytest.mark.hostile("kills")
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path):
    whole, study = clock_study(tmp_path, name="whole"), clock_study(tmp_path)
    start(whole).run()
    interrupted(study, "iterate", 6)
    folder = run_folder(study) / "checkpoints"
    older, newest = sorted(folder.glob("step_*"))
    weights = newest / "state.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert ckpt.latest_checkpoint(folder) == older
    assert ckpt.find_checkpoint(older) == ckpt.find_checkpoint(folder.parent) == older
    with pytest.raises(CheckpointError, match=r"state\.safetensors"):
        ckpt.find_checkpoint(newest)
    with pytest.raises(CheckpointError, match="neither a checkpoint nor a run with one"):
        ckpt.find_checkpoint(folder)
    start(study, resume=True).run()
    assert result(study) == result(whole)
    for seal in folder.glob("step_*/COMPLETE"):
        seal.write_text("{")
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        start(study, resume=True)


@pytest.mark.hostile("kills")
def test_logs_that_lost_lines_are_refused(tmp_path):
    study = clock_study(tmp_path)
    interrupted(study, "iterate", 6)
    (run_folder(study) / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl has 0 bytes"):
        start(study, resume=True)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_where_episodes_cannot_be_replayed_they_begin_again(mode, tmp_path):
    study = clock_study(
        tmp_path, env={"autoreset_mode": mode}, reward=reader_reward(shaping="bonus", reward_threshold=0.0)
    )
    interrupted(study, "iterate", 6)
    loop = start(study, resume=True)
    reader = loop.sources["constant"].model
    loop.run()
    rows = lines(study, "episodes")
    assert all(row["length"] <= 8 for row in rows)
    assert all(row["return/constant"] <= 1.0 for row in rows)
    moments = [m for seen in reader.seen for m in seen]
    assert len(moments) == len(set(moments))


def test_metrics_hold_no_times(tmp_path):
    study = clock_study(tmp_path, reward=reader_reward())
    start(study).run()
    names = {key for row in lines(study) for key in row}
    assert not [n for n in names if "second" in n or "time" in n]
    assert {"wall_time", "seconds/simulate", "seconds/score"} <= set(lines(study, "timings")[0])


@pytest.mark.parametrize(
    "reward",
    first(
        [
            {},
            reader_reward(),
            reader_reward(combine_mode="weighted", env_reward_weight=1.0, reward_weight=1e-9),
        ],
        2,
    ),
    ids=["native", "model", "nearly_native"],
)
@pytest.mark.parametrize("mode", ["disabled", "next_step", "same_step"])
def test_success_is_the_environments_whatever_is_rewarded(reward, mode, tmp_path):
    study = clock_study(tmp_path, reward=reward, env={"autoreset_mode": mode, "kwargs": {"push": 0.9}})
    loop = start(study)
    truth, once = [], [False, False]
    vector = loop.collector.world.env
    original = vector.step

    def watched(actions):
        resetting = getattr(vector, "_autoreset_envs", np.zeros(2, bool)).copy() & (mode == "next_step")
        answer = original(actions)
        for i in range(2):
            if resetting[i]:
                continue
            once[i] |= bool(actions[i][0] > 0.9)
            if answer[2][i] or answer[3][i]:
                truth.append((i, once[i]))
                once[i] = False
        return answer

    vector.step = watched
    loop.run()
    rows = [(row["env"], row["success"]) for row in lines(study, "episodes")]
    for i in range(2):
        mine = [s for e, s in rows if e == i]
        assert mine == [s for e, s in truth if e == i][: len(mine)]
        assert len(mine) > 8
    assert 0 < sum(s for _, s in rows) < len(rows)


# Failures.


def broken(name, count):
    return True


def test_too_many_failures_stop_the_run_with_a_checkpoint(tmp_path):
    study = clock_study(tmp_path, reward=reader_reward(failure_window=30))
    loop = start(study, reader=clock.Reader(broken))
    with pytest.raises(TooManyFailuresError, match="100% of its last") as caught:
        loop.run()
    assert caught.value.exit_code == 3
    step = lines(study)[-1]["step"]
    assert step < study.runner.total_steps
    rows = lines(study, "failures")
    assert len(rows) == step  # every step was to be scored
    assert {r["reason"] for r in rows} == {"broken"}
    assert all(row["return/constant"] is None for row in lines(study, "episodes"))
    assert all(row["return/constant"] is None for row in lines(study) if row["kind"] == "train" and row["episodes"])
    start(study, resume=True).run()  # a mended model
    assert (run_folder(study) / "COMPLETE").is_file()
    assert lines(study, "failures") == rows


def test_failures_at_the_end_of_a_short_run_count_too(tmp_path):
    study = clock_study(tmp_path, reward=reader_reward(failure_window=10_000))
    for resume in (False, True):
        with pytest.raises(TooManyFailuresError, match="at its end"):
            start(study, reader=clock.Reader(broken), resume=resume).run()
    assert not (run_folder(study) / "COMPLETE").exists()


def test_a_few_failures_are_masked_and_counted(tmp_path):
    study = clock_study(tmp_path, reward=reader_reward(max_failure_rate=0.9))
    start(study, reader=clock.Reader(lambda name, count: name % 3 == 0)).run()
    rows = lines(study, "episodes")
    holes = [row for row in rows if row["return/constant"] is None]
    assert 0 < len(holes) < len(rows)
    assert all(row["return/combined"] is None for row in holes)
    assert all(isinstance(row["return/env"], float) for row in rows)
    last = [row for row in lines(study) if row["kind"] == "train"][-1]
    assert 0 < last["failure_rate"] < 0.9
    assert last["failures"] == len(lines(study, "failures"))


def test_raise_stops_before_anything_is_learned_and_goes_on_as_if_nothing_had_been(tmp_path):
    reward = reader_reward(on_failure="raise")
    whole, study = clock_study(tmp_path, name="whole", reward=reward), clock_study(tmp_path, reward=reward)
    start(whole).run()
    calls = []

    def from_the_fifth_rollout(name, count):
        calls.append(None)
        return len(calls) > 100

    with pytest.raises(TooManyFailuresError, match="on_failure is raise"):
        start(study, reader=clock.Reader(from_the_fifth_rollout)).run()
    assert lines(study, "failures")
    start(study, resume=True).run()
    assert result(study) == result(whole)


# Groups.


def test_groups_start_alike_and_every_copy_plays_one_episode(tmp_path):
    study = clock_study(tmp_path, env={"num_envs": 4}, algorithm=GRPO, reward=reader_reward())
    loop = start(study)
    assert loop.learner.policy.vf is None
    reader = loop.sources["constant"].model
    loop.iterate()
    names = [name for ((name, count, _),) in reader.seen if count == 1]
    assert len(names) == 4
    assert names[0] == names[1]
    assert names[2] == names[3]
    assert names[0] != names[2]
    assert [name for ((name, _, last),) in reader.seen if last] == names
    loop.iterate()
    after = [name for ((name, count, _),) in reader.seen if count == 1][4:]
    assert len(after) == 4
    assert not set(after) & set(names)
    loop.run()
    assert {row["episodes"] for row in lines(study) if row["kind"] == "train"} == {4}
    assert "value_loss" not in lines(study)[0]


def test_groups_that_cannot_be_are_refused(tmp_path):
    with refuses("env.num_envs"):
        clock_study(tmp_path, env={"num_envs": 3}, algorithm=GRPO)


# Stages and data.


@pytest.mark.parametrize("name", sample(["rloo", "dr_grpo", "reinforce", "reinforce_pp"], "rloo"))
def test_every_estimator_trains_a_robot_without_a_critic(name, tmp_path):
    pytest.importorskip("metaworld")
    more = {"group_size": 2} if name in ("rloo", "dr_grpo") else {"rollout_steps": 10}
    env = {"type": "metaworld", "task": "window-close", "max_episode_steps": 6, "native_reward": "dense"}
    algorithm = {"adv_estimator": name, "minibatch_size": 8, "num_epochs": 2, "gamma": 0.9, **more}
    study = clock_study(tmp_path, env=env, algorithm=algorithm, runner={"total_steps": 60, "eval_every": 1000})
    loop = start(study)
    policy = loop.learner.policy
    before = [p.detach().clone() for p in policy.parameters()]
    summary = loop.run()
    assert policy.vf is None
    assert not any(torch.equal(p, old) for p, old in zip(policy.parameters(), before, strict=True))
    rows = [row for row in lines(study) if row["kind"] == "train"]
    assert summary["step"] >= 60
    assert all(row["updates"] > 0 and row["skipped_updates"] == 0 for row in rows)
    assert all(("silent_groups/env" in row) == ("group_size" in more) for row in rows)


def test_two_stages_keep_the_policy_and_change_the_reward(tmp_path):
    first = clock_study(tmp_path, name="first")
    start(first).run()
    second = clock_study(tmp_path, name="second", reward=reader_reward(), runner={"resume_dir": str(run_folder(first))})
    loop = start(second)
    stored, _ = ckpt.load_checkpoint(ckpt.find_checkpoint(run_folder(first)))
    own = loop.learner.policy.tensors()
    for name, value in under("policy", stored).items():
        if not name.startswith("vf."):
            assert torch.equal(own[name], value), name
    assert loop.step == 0
    loop.run()
    assert lines(second)[-1]["step"] >= 160
    with pytest.raises(CheckpointError, match="neither a checkpoint"):
        start(clock_study(tmp_path, name="third", runner={"resume_dir": str(tmp_path / "nowhere")}))


@pytest.mark.parametrize("mode", sample(["train", "eval", "all"], "all"))
@pytest.mark.parametrize("algorithm", first([None, GRPO], 1), ids=["gae", "grpo"])
def test_episodes_are_recorded_while_training(mode, algorithm, tmp_path):
    data = {"enabled": True, "save_dir": str(tmp_path / "data"), "mode": mode, "sample_rate_fail": 1.0}
    study = clock_study(tmp_path, env={"data_collection": {**data, "frame_every": 2}}, algorithm=algorithm)
    interrupted(study, "iterate", 7)
    start(study, resume=True).run()
    episodes = list(read_episodes(tmp_path / "data"))
    modes = [e.meta["mode"] for e in episodes]
    assert set(modes) == ({"train", "eval"} if mode == "all" else {mode})
    if mode != "train":
        evaluations = [row for row in lines(study) if row["kind"] == "eval"]
        assert modes.count("eval") == sum(int(row["episodes"]) for row in evaluations)
    for episode in episodes:
        moments = [clock.read_moment(frame) for frame in episode.frames]
        assert len({name for name, _, _ in moments}) == 1
        counts = [count for _, count, _ in moments]
        assert counts == sorted({*range(0, counts[-1], 2), counts[-1]})
        assert moments[-1][2] or counts[-1] == 8
        assert episode.states[:, 0].tolist() == counts
        assert episode.success.tolist() == [c > 0 and c % 3 == 0 for c in counts]
    if mode != "eval":
        finished = sum(row["episodes"] for row in lines(study) if row["kind"] == "train")
        lost = finished - modes.count("train")
        assert 0 <= lost <= 2  # those under way when the run was cut off


def test_nobody_draws_what_nobody_looks_at(tmp_path):
    study = clock_study(tmp_path)
    loop = start(study)
    for _ in range(4):
        loop.iterate()
    assert sum(env.unwrapped.pictures for env in loop.collector.world.env.envs) == 0
    loop.close()


# Pixels and the rest.


@pytest.mark.parametrize("mode", ["disabled", "next_step"])
def test_a_policy_on_pixels(mode, tmp_path):
    setup = {
        "env": {"observation": "pixels", "autoreset_mode": mode},
        "policy": {"type": "cnn", "channels": [4, 4, 4], "hidden": [8]},
        "runner": {"total_steps": 120},
    }
    whole = clock_study(tmp_path, name="whole", **setup)
    start(whole).run()
    assert lines(whole)[-1]["step"] >= 120
    if mode == "disabled":
        study = clock_study(tmp_path, **setup)
        interrupted(study, "iterate", 4)
        start(study, resume=True).run()
        assert result(study) == result(whole)


@pytest.mark.hostile("kills")
@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_was_killed_before_its_first_step_leaves_its_place_free(tmp_path, monkeypatch, resume):
    study = clock_study(tmp_path, runner={"total_steps": 24})
    with monkeypatch.context() as at_load:
        at_load.setattr("guerdon.rl.loop.build_parts", dies)
        with pytest.raises(Killed):
            run(study)
    folder = run_folder(study)
    assert (folder / "config.yaml").is_file()
    assert not (folder / "FAILED.json").exists()
    with monkeypatch.context() as under_way:
        under_way.setattr("guerdon.rl.loop.Loop._record", dies)
        with pytest.raises(Killed):
            run(study)
    other = clock_study(tmp_path, runner={"total_steps": 36})
    assert run(other, resume=resume)[1]["step"] >= 36
    with pytest.raises(ConfigError, match="already holds a run"):
        run(other)


@pytest.mark.hostile("kills")
def test_a_run_that_recorded_a_step_keeps_its_folder_when_killed(tmp_path, monkeypatch):
    study = clock_study(tmp_path, runner={"total_steps": 24})
    with monkeypatch.context() as at_the_end:
        at_the_end.setattr("guerdon.rl.loop.Loop._evaluate", dies)
        with pytest.raises(Killed):
            run(study)
    with pytest.raises(ConfigError, match="already holds a run"):
        run(study)


@pytest.mark.hostile("kills")
def test_two_processes_do_not_run_in_one_folder(tmp_path):
    study = clock_study(tmp_path, runner={"total_steps": 24})
    folder = run_folder(study)
    folder.mkdir(parents=True)
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held'); sys.stdin.read()"
    )
    command = [sys.executable, "-u", "-c", code, str(folder / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        for resume in (False, True):
            with pytest.raises(ConfigError, match="is in use by another run"):
                run(study, resume=resume)
        other.stdin.close()
    assert run(study)[1]["step"] >= 24


def test_the_folder_of_a_run_belongs_to_it(tmp_path):
    study = clock_study(tmp_path, runner={"total_steps": 24})
    folder, summary = run(study)
    assert json.loads((folder / "COMPLETE").read_text()) == summary
    with pytest.raises(ConfigError, match="already holds a run"):
        run(study)
    before = (folder / "COMPLETE").read_bytes()
    assert run(study, resume=True)[1] == summary
    assert (folder / "COMPLETE").read_bytes() == before
    other = study.model_copy(update={"name": "other"})
    with refuses("name"):
        run(other, resume=True)


@pytest.mark.parametrize("name", ["DummyRM", "constant"])
def test_a_run_with_the_names_of_the_vla_guide_writes_its_log_lines(tmp_path, capsys, name):
    reward = {
        "use_reward_model": True,
        "reward_mode": "per_step",
        "shaping": "raw",
        "combine_mode": "weighted",
        "reward_weight": 0.1,
        "model": {"model_type": name},
    }
    start(clock_study(tmp_path, reward=reward), reader="own").run()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[PRM]")]
    zeros = ", ".join(["0.0"] * 8)
    lines_of_one = [
        f"[PRM] Computed rewards: [{zeros}, ...]",
        f"[PRM] Added weighted PRM rewards (weight=0.1): [{zeros}, ...]",
    ]
    assert said[4:6] == (lines_of_one if name == "DummyRM" else [])  # after those of loading
