"""Simulators that die, stop, or give no numbers during a run: their episodes are failures, and the run continues."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

import fragile
from guerdon.episodes.read import read_episodes
from guerdon.errors import TooManyFailuresError
from guerdon.rewards.source import GroundTruth, SourceTerms
from guerdon.rl.episode_stats import lost_at
from guerdon.rl.learner import source_advantages
from guerdon.rl.loop import Loop
from guerdon.rl.run import run, run_folder
from guerdon.settings.study import Study
from guerdon.worlds.build import build_world
from rl_clock import Reader, clock_study, interrupted, lines, reader_reward, result, start
from tables import first

pytestmark = pytest.mark.hostile("parts")

torch.set_num_threads(1)
BROKEN = {(0, 1): "dies", (1, 4): "nan", (0, 7): "stops", (1, 9): "raises"}  # copy and episode


def fragile_study(folder, broken=(), *, group=1, **more):
    env = {"task": fragile.ID, "max_episode_steps": None, "vectorization": "async", **more.pop("env", {})}
    if env["vectorization"] == "async":
        env["step_timeout"] = 2.0
    study = clock_study(folder, env={**env, "num_envs": 2}, **more)
    world = build_world(study.env.of_copies(range(2)), seed=study.runner.seed, group_size=group)
    breaks = {}
    for (copy, episode), way in dict(broken).items():
        world.rewind(episode)
        breaks[str(world.episode_seed(copy))] = way
    world.close()
    return study.model_copy(update={"env": study.env.model_copy(update={"kwargs": {"breaks": breaks}})})


def counts(study):
    return json.loads((run_folder(study) / "COMPLETE").read_text())["episodes"]


def test_a_run_goes_on_and_counts_what_it_lost(tmp_path):
    data = {"enabled": True, "save_dir": str(tmp_path / "data"), "frame_every": 1, "sample_rate_fail": 1.0}
    reward = reader_reward(score_every=1, max_failure_rate=1.0)
    study = fragile_study(tmp_path, BROKEN, env={"data_collection": data}, reward=reward)
    reader, rollouts = Reader(), []
    loop = start(study, reader=reader)
    update = loop.learner.update
    loop.learner.update = lambda rollout, *given, **more: (rollouts.append(rollout), update(rollout, *given, **more))[1]
    loop.run()
    rows, failures = lines(study, "episodes"), [row for row in lines(study, "failures") if row["source"] == "env"]
    assert sorted(row["reason"] for row in failures) == sorted(fragile.WAYS[way] for way in BROKEN.values())
    found = counts(study)
    assert (found["finished"], found["failed"]) == (len(rows), 4)
    assert found["begun"] - found["finished"] - found["failed"] == found["unfinished"] <= 2
    trained = [row for row in lines(study) if row["kind"] == "train"]
    assert [row["step"] for row in trained] == list(range(24, 169, 24)), "the steps of a run in which nothing breaks"
    assert (trained[-1]["episodes_begun"], trained[-1]["episodes_failed"]) == (found["begun"], 4)
    assert trained[-1]["failure_rate/env"] == pytest.approx(4 / (4 + len(rows)))
    assert {row["length"] for row in rows} == {4}, "no part of a lost episode counts as one, or for the next one"
    assert all(row["return/env"] == 10 for row in rows) or study.env.native_reward == "sparse"
    assert len(list(read_episodes(tmp_path / "data"))) == len(rows)

    dead = lost_at(rollouts[0])
    assert np.argwhere(dead).tolist() == [[0, 5]]
    assert not rollouts[0].mask[0, 4:6].any()
    assert rollouts[0].mask.sum() == 22
    lost = next(s for s in rollouts[0].segments if s.lost)
    assert (lost.stream, lost.end, lost.finished, len(lost)) == (0, 5, True, 0)
    world = build_world(study.env.of_copies(range(2)), seed=0)
    world.rewind(1)
    gone = int(world.reset().observations[0, 1])
    world.close()
    seen = {name // 256 for moments in reader.seen for name, *_ in moments}
    assert gone not in seen
    assert len(seen) > 30


CHUNKS = {"type": "chunk_policy:ChunkPolicy", "params": {"chunk": 3}}


@pytest.mark.parametrize("chunks", first([False, True], 1))
def test_lost_steps_stay_out_of_every_advantage(tmp_path, chunks):
    study = fragile_study(tmp_path, BROKEN, policy=CHUNKS if chunks else None)
    loop = start(study)
    rollout = loop.collector.collect(loop.learner.policy)
    terms = {"env": SourceTerms("env", 0.9)}

    def advantages(one):
        paid = {"env": GroundTruth(terms["env"]).measure(one)}
        return source_advantages(one, paid, terms, {"env": 1.0}, study.control_algorithm)

    noise = of_values = np.where(rollout.mask, 0, 1e6).astype(np.float32)
    if chunks:  # its decisions are not rows
        of_values = np.zeros(len(rollout.inputs), np.float32)
        assert len(rollout.inputs) == (rollout.chunks.slot == 0).sum()
    other = replace(rollout, rewards=rollout.rewards + noise, values={"env": rollout.values["env"] + of_values})
    found = advantages(rollout)
    assert np.array_equal(found.advantages, advantages(other).advantages)
    assert found.known["env"].sum() == (len(rollout.inputs) if chunks else rollout.mask.sum())
    loop.close()


@pytest.mark.slow
def test_a_group_leaves_out_the_lost_episode(tmp_path):
    grpo = {"adv_estimator": "grpo", "group_size": 2, "minibatch_size": 8, "num_epochs": 1}
    mark = tmp_path / "mark"
    broken, env = {(1, 2): f"dies once {mark}"}, {"max_episode_steps": 4}
    study = fragile_study(tmp_path, broken, group=2, algorithm=grpo, env=env, reward={"max_failure_rate": 1.0})
    loop = start(study)
    rollouts = [loop.collector.collect(loop.learner.policy) for _ in range(4)]
    loop.close()
    assert [len(rollout.failures) for rollout in rollouts] == [0, 0, 1, 0], "what follows a lost episode is not part"
    assert [rollout.mask.any(axis=1).tolist() for rollout in rollouts][2].count(False) == 1
    mark.unlink()
    start(study).run()
    found = counts(study)
    assert found["begun"] == found["finished"] + found["failed"]
    assert (found["failed"], found["unfinished"]) == (1, 0)


@pytest.mark.slow
def test_processes_change_no_byte_of_a_run_and_it_resumes_to_the_same_bytes(tmp_path):
    reward = reader_reward(shaping="relative", score_every=2)
    alone = fragile_study(tmp_path, name="alone", env={"vectorization": "sync"}, reward=reward)
    whole, cut = (fragile_study(tmp_path, name=name, reward=reward) for name in ("whole", "cut"))
    start(alone).run()
    start(whole).run()
    for name in ("episodes", "policy"):
        assert result(alone)[name] == result(whole)[name]
    interrupted(cut, "update", 5)
    start(cut, resume=True).run()
    assert result(cut) == result(whole)


@pytest.mark.slow
def test_simulators_that_break_all_the_time_stop_the_run(tmp_path):
    broken = {(copy, episode): "raises" for copy in range(2) for episode in range(40)}
    short = {"rollout_steps": 4, "minibatch_size": 4, "num_epochs": 1}
    study = fragile_study(tmp_path, broken, reward={"failure_window": 6}, algorithm=short)
    with pytest.raises(TooManyFailuresError, match=r"'env'.*simulator_raised"):
        run(study)


CHUNKS = {"type": "chunk_policy:ChunkPolicy", "params": {}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [pytest.param(None, id="single actions"), pytest.param(CHUNKS, id="chunks", marks=pytest.mark.slow)]
)
def test_a_rollout_that_loses_every_episode_goes_on_and_counts(policy, tmp_path):
    broken = {(copy, episode): "raises" for copy in range(2) for episode in range(4)}
    ppo = {"rollout_steps": 4, "minibatch_size": 4, "num_epochs": 1, "normalize_rewards": True}
    reward = reader_reward(max_failure_rate=1.0, score_every=1)
    study = fragile_study(tmp_path, broken, reward=reward, algorithm=ppo, policy=policy)
    loop = start(study)
    summary = loop.run()
    assert summary["failures"] == {"simulator_raised": 8}
    rows = [row for row in lines(study) if "learning_rate" in row]
    assert len(rows) > 4
    assert all(np.isfinite(row["policy_loss"]) for row in rows[-3:])
    first = lines(study)[0]
    assert (first["episodes_failed"], first["episodes_finished"]) == (4, 0)
    assert policy is None or first["updates"] == 0


@pytest.mark.slow
def test_chunks_that_lose_every_episode_stop_at_the_limit(tmp_path):
    broken = {(copy, episode): "raises" for copy in range(2) for episode in range(40)}
    short = {"rollout_steps": 4, "minibatch_size": 4, "num_epochs": 1}
    study = fragile_study(tmp_path, broken, reward={"failure_window": 6}, algorithm=short, policy=CHUNKS)
    with pytest.raises(TooManyFailuresError, match=r"'env'.*simulator_raised"):
        run(study)


def test_evaluations_that_lose_their_episodes_stop_the_run(tmp_path):
    study = fragile_study(tmp_path, reward={"failure_window": 6}, runner={"eval_every": 24})
    loop = start(study)
    loop.collector.evaluate = lambda policy, *, episodes, step: {"episodes": 1.0, "episodes_failed": 3.0}
    with pytest.raises(TooManyFailuresError, match=r"evaluation: 75% of its last 4 measurements failed"):
        loop.run()
    assert loop.failures.reasons == {"simulator_broke": 3}


METAWORLD = {
    "runner": {"total_steps": 2400, "eval_every": 2400, "eval_episodes": 2, "checkpoint_every": 1200},
    "env": {
        "type": "metaworld",
        "task": "door-close",
        "num_envs": 2,
        "max_episode_steps": 20,
        "vectorization": "async",
        "step_timeout": 3.0,
    },
    "policy": {"type": "mlp", "hidden": [16]},
    "algorithm": {"rollout_steps": 60, "minibatch_size": 60, "num_epochs": 1},
    "reward": {"max_failure_rate": 1.0},
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_metaworld_run_survives_ten_kills_ten_stops_and_ten_nans(tmp_path):
    logger = {"log_path": str(tmp_path), "experiment_name": "run", "tensorboard": False}
    study = Study.model_validate({**METAWORLD, "runner": {**METAWORLD["runner"], "logger": logger}})
    loop = Loop(study, run_folder(study))
    env = loop.collector.world.env
    step, taken, done = env.step, [0], dict.fromkeys(("kill", "stop", "nan"), 0)

    def broken_step(actions):
        taken[0] += 1
        at, rest = divmod(taken[0], 35)
        if rest == 0 and at <= 30:
            copy, way = at // 3 % 2, ("kill", "stop", "nan")[at % 3]
            done[way] += 1
            if way == "nan":
                state = env.save_state(copy)
                state.attributes["_prev_obs"][:] = np.nan
                env.load_state(copy, state)
            else:
                os.kill(env.pids[copy], signal.SIGKILL if way == "kill" else signal.SIGSTOP)
        return step(actions)

    env.step = broken_step
    summary = loop.run()
    assert summary["step"] == 2400
    reasons = summary["failures"]
    assert done == {"kill": 10, "stop": 10, "nan": 10}
    assert all(reasons[name] >= 10 for name in ("simulator_died", "simulator_hung", "simulator_non_finite")), reasons
    found = summary["episodes"]
    assert found["failed"] == sum(reasons.values()) >= 30
    assert found["begun"] == found["finished"] + found["failed"] + found["unfinished"]
    assert found["unfinished"] <= 2
    assert found["finished"] == len(lines(study, "episodes"))
    assert summary["final"]["episodes"] == 2
