"""Runs with a curriculum: killed and resumed to the same bytes, groups of one task, success from the world alone."""

import json
from collections import Counter
from functools import partial

import pytest
import torch

from guerdon.collect.control import ControlCollector
from guerdon.episodes.read import read_episodes
from guerdon.types import Observes
from guerdon.worlds.starts import Curriculum
from ladder import IDS, LENGTH
from rl_clock import clock_study, interrupted, lines, reader_reward, result, start

torch.set_num_threads(1)
SEVERAL = {"task_ids": list(IDS), "task": IDS[0], "num_envs": 4, "max_episode_steps": None, "frame_size": 8}
OVER = {
    "tasks": {"curriculum_over": "tasks"},
    "states": {"curriculum_over": "states", "curriculum_states": 4, "curriculum_min_prob": 0.3},
    "both": {"curriculum_over": "both", "curriculum_states": 4},
}


def study_of(folder, over="tasks", *, env=None, **more):
    env = {**SEVERAL, "use_curriculum": True, **OVER[over], **(env or {})}
    algorithm = more.pop("algorithm", {"rollout_steps": 6, "minibatch_size": 12, "num_epochs": 1})
    return clock_study(folder, env=env, algorithm=algorithm, **more)


GRPO = {"adv_estimator": "grpo", "group_size": 2, "minibatch_size": 8, "num_epochs": 1}


PROCESSES = {"vectorization": "async", "num_envs_per_process": 2}


@pytest.mark.parametrize(
    ("over", "env"), [*((over, {}) for over in OVER), pytest.param("both", PROCESSES, marks=pytest.mark.slow)]
)
def test_a_run_that_was_cut_off_ends_the_same(over, env, tmp_path):
    whole = study_of(tmp_path, over, env=env, name="whole")
    start(whole).run()
    again = study_of(tmp_path, over, env=env, name="again")
    interrupted(again, "update", 5)  # within episodes: rollouts have 6 steps, episodes 4
    start(again, resume=True).run()
    assert result(again) == result(whole)


def test_groups_are_cut_off_and_end_the_same(tmp_path):
    env = {"max_episode_steps": LENGTH}
    whole = study_of(tmp_path, "both", env=env, algorithm=GRPO, name="whole")
    start(whole).run()
    again = study_of(tmp_path, "both", env=env, algorithm=GRPO, name="again")
    interrupted(again, "update", 6)
    start(again, resume=True).run()
    assert result(again) == result(whole)


def test_tasks_on_the_frontier_are_played_most(tmp_path, monkeypatch):
    monkeypatch.setattr("guerdon.worlds.build.Curriculum", partial(Curriculum, ema_alpha=0.8))  # 300 episodes suffice
    reward = reader_reward(reward_mode="per_step")  # pays for every frame of every task
    study = study_of(tmp_path, reward=reward, runner={"total_steps": 1200}, algorithm={"rollout_steps": 24})
    start(study, reader="own").run()
    last = next(row for row in reversed(lines(study)) if "curriculum/" + IDS[0] + "/sampled" in row)
    sampled = [last[f"curriculum/{task}/sampled"] for task in IDS]
    success = [last[f"curriculum/{task}/success"] for task in IDS]
    assert sampled[1] > 0.8 * sum(sampled)
    assert success[0] < 0.5 < success[2]
    assert 0.1 < success[1] < 0.9
    assert sum(last[f"curriculum/{task}/probability"] for task in IDS) == pytest.approx(1.0)
    assert sum(sampled) == len(lines(study, "episodes")) + SEVERAL["num_envs"]  # those under way


def test_what_it_learns_is_the_success_that_episodes_had(tmp_path):
    data = {"enabled": True, "save_dir": str(tmp_path / "data"), "frame_every": 1, "sample_rate_fail": 1.0}
    study = study_of(
        tmp_path, "states", env={"data_collection": data}, reward=reader_reward(), runner={"eval_every": 999}
    )
    loop = start(study, reader="own")
    loop.run()
    curriculum, episodes = loop.collector.world.curriculum, list(read_episodes(tmp_path / "data"))
    assert int(curriculum.episodes.sum()) == len(episodes) == len(lines(study, "episodes"))
    won = Counter(episode.task for episode in episodes if episode.outcome)
    assert [won[task] for task in IDS] == curriculum.successes.sum(axis=1).tolist()
    assert won[IDS[0]] == 0 < won[IDS[2]]
    for episode in episodes:  # recorded with the words of the task that its pictures show
        assert (episode.frames[..., 0] == IDS.index(episode.task) + 1).all()


def test_segments_are_of_the_task_that_was_played(tmp_path):
    loop = start(study_of(tmp_path))
    loop.collector.observes = (Observes(every=1, first=True),)
    seen = Counter()
    for _ in range(6):
        rollout = loop.collector.collect(loop.learner.policy)
        for segment in rollout.segments:
            seen[segment.task] += len(segment)
            assert (segment.frames_F[..., 0] == IDS.index(segment.task) + 1).all()
    loop.close()
    assert min(seen[task] for task in IDS) > 0


def test_a_group_plays_one_start_of_one_task(tmp_path):
    study = study_of(tmp_path, "both", env={"max_episode_steps": LENGTH}, algorithm=GRPO)
    collector = ControlCollector(study.env, study.control_policy, seed=0, rollout_steps=LENGTH, group_size=2)
    policy, reported = collector.build_policy(), 0
    for _ in range(8):
        inputs = collector.collect(policy).inputs.observations.reshape(4, LENGTH, -1)
        starts = inputs[:, 0]
        assert (starts[0] == starts[1]).all()
        assert (starts[2] == starts[3]).all()
        reported += 4
        assert collector.world.curriculum.episodes.sum() == reported
        assert collector.world.curriculum.sampled.sum() == reported // 2  # once for both copies
    collector.close()


def test_an_evaluation_plays_all_tasks_alike(tmp_path):
    study = study_of(tmp_path, env={"num_envs": 3})
    collector = ControlCollector(study.env, study.control_policy, seed=0, rollout_steps=LENGTH)
    policy = collector.build_policy()
    found = collector.evaluate(policy, episodes=60)
    assert found["episodes"] == 60
    assert found["success"] == pytest.approx(0.5, abs=0.17)
    assert found == collector.evaluate(policy, episodes=60)
    assert json.loads(json.dumps(collector.state()[1]))["curriculum"]["sampled"] == [0, 0, 0]
    collector.close()
