"""A reward model that ends episodes in what is learned from, and its stops without true success."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_relabel import parts

from guerdon.collect.control import ControlCollector
from guerdon.integrations.step_rewards import StepRewards
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.source import GroundTruth, SourceTerms
from guerdon.rl.off_policy import SACLearner
from guerdon.rl.replay import Replay, relabel, remember
from guerdon.settings.reward_source import RobotSource
from guerdon.types import Failure, RewardInfo, Score
from rl_clock import clock_study, interrupted, lines, reader_reward, register_clock, result, start
from rl_models import image_reward
from tables import refuses

SAC = {
    "type": "sac", "rollout_steps": 10, "batch_size": 8, "online_step_before_learning": 12, "learning_rate": 1e-2
}  # fmt: skip
VALUES = [0.9, 0.2, 0.8, 0.9, 0.95, 0.1, 0.9, 0.9]  # of the moments 1 to 8 of every episode


class Says:
    """The value of each moment by its number, which the state holds; it fails where the value is None."""

    info = RewardInfo(name="says", range=(0, 1), success_threshold=0.5, modality="state", frames_needed=0)

    def __init__(self, values):
        self.values = values

    def score(self, episodes):
        found = []
        for one in episodes:
            values = [self.values[int(state[0]) - 1] for state in one.states]
            missing = None in values
            found.append(Score(failure=Failure("broken")) if missing else Score.from_values(np.array(values)))
        return found


def played(tmp_path, *, values=VALUES, rollouts=2, steps=5, known=True, success=None, **given):
    """A learner whose replay has episodes of eight steps that the task or a limit ends, and what it said of each."""
    register_clock()
    reward = reader_reward(**{"shaping": "bonus", "ends": True, "combine_mode": "add", **given})
    one = clock_study(tmp_path, env={"kwargs": {"fixed": 8}, "max_episode_steps": 50}, algorithm=SAC, reward=reward)
    (settings,) = one.reward.sources.values()
    source = ControlReward(SourceTerms("says"), Says(values), settings, num_envs=2)
    collector = ControlCollector(
        one.env, one.control_policy, seed=1, rollout_steps=steps, algorithm="sac", observes=[source.observes]
    )
    terms = {"env": SourceTerms("env"), "says": source.terms}
    policy = collector.build_policy()
    learner = SACLearner(policy, one.algorithm, terms, {}, memory=Replay(tmp_path / "rows", list(terms)), seed=0)
    metrics = []
    for n in range(rollouts):
        rollout = collector.collect(policy)
        flags = np.zeros_like(rollout.success)
        if success is not None and n * steps < success <= (n + 1) * steps:
            flags[:, success - 1 - n * steps] = True
        rollout = replace(rollout, success=flags, success_known=np.full_like(flags, known))
        rewards = {"env": GroundTruth(terms["env"]).measure(rollout), "says": source.measure(rollout)}
        metrics.append(learner.remember(learner.memory, rollout, rewards))
    collector.close()
    return learner, metrics


def of_first_episode(replay, column):
    rows = replay.transitions[replay.rows("episode")[replay.transitions] == 0]
    assert replay.rows("moment")[rows].tolist() == list(range(1, 9))
    return column(rows).tolist()


@pytest.mark.parametrize(("frames", "moment"), [(1, 1), (2, 4), (3, 5), (4, None)])
def test_the_task_is_over_where_enough_moments_in_a_row_confirm_it(tmp_path, frames, moment):
    learner, _ = played(tmp_path, confirm_frames=frames, success_reward=2.0)
    memory = learner.memory
    own = of_first_episode(memory, lambda rows: memory.rows("terminated")[rows])
    wanted = [step == moment for step in range(1, 9)]
    assert of_first_episode(memory, memory.terminated) == [a or b for a, b in zip(own, wanted, strict=True)]
    assert of_first_episode(memory, lambda rows: memory.paid["says"]["ends"][rows]) == wanted
    assert of_first_episode(memory, lambda rows: memory.paid["says"]["reward"][rows]) == [2.0 * one for one in wanted]
    assert len(memory.transitions) == 20, "the simulator goes on"


def test_what_is_sampled_stops_at_the_end_and_nowhere_else(tmp_path):
    learner, _ = played(tmp_path, confirm_frames=2, success_reward=0.0)
    memory, batches = learner.memory, []
    learner._step = lambda batch, noise, weights, *, act: batches.append(batch) or {}
    learner._values = torch.zeros(1, len(learner.outputs))
    learner._learn(30)
    learner.memory.paid["says"]["ends"][:] = False
    shown = learner.policy.prepare(memory.rows("observations")[memory.transitions])
    ends, moments = memory.rows("terminated")[memory.transitions], memory.rows("moment")[memory.transitions]
    over = {tuple(x.tolist()): bool(end | (m == 4)) for x, end, m in zip(shown, ends, moments, strict=True)}
    assert len(over) == len(moments), "each is told apart by its step and action"
    found = {
        tuple(x.tolist()): not goes_on for one in batches for x, goes_on in zip(one.next_x, one.goes_on, strict=True)
    }
    assert found == over


def test_without_the_key_a_bonus_ends_nothing(tmp_path):
    learner, metrics = played(tmp_path, confirm_frames=2)
    assert learner.memory.paid["says"]["ends"].any()
    other, plain = played(tmp_path / "other", confirm_frames=2, ends=False)
    assert not other.memory.paid["says"]["ends"].any()
    for name in ("reward", "failed"):
        assert np.array_equal(other.memory.paid["says"][name], learner.memory.paid["says"][name])
    assert plain == [{}, {}]
    assert set(metrics[0]) == {"reward_model/says/stops", "reward_model/says/false_stops"}


def test_a_moment_that_was_not_measured_ends_nothing(tmp_path):
    learner, _ = played(tmp_path, values=[0.9, 0.9, None, 0.1, 0.1, 0.1, 0.1, None], confirm_frames=3)
    assert not learner.memory.paid["says"]["ends"].any()
    assert learner.memory.paid["says"]["failed"].any()


@pytest.mark.parametrize(("success", "false"), [(None, 2), (2, 0), (4, 0), (5, 2)])
def test_a_stop_is_false_where_there_was_no_success_up_to_it(tmp_path, success, false):
    _, metrics = played(tmp_path, confirm_frames=2, success=success)
    assert metrics[0] == {"reward_model/says/stops": 2.0, "reward_model/says/false_stops": float(false)}
    assert metrics[1] == {"reward_model/says/stops": 0.0, "reward_model/says/false_stops": 0.0}


def test_success_in_an_earlier_rollout_counts(tmp_path):
    _, metrics = played(tmp_path, steps=3, confirm_frames=2, success=2, rollouts=2)
    assert metrics[1] == {"reward_model/says/stops": 2.0, "reward_model/says/false_stops": 0.0}


def test_stops_are_not_false_where_success_is_not_known(tmp_path):
    _, metrics = played(tmp_path, confirm_frames=2, known=False)
    assert metrics[0] == {"reward_model/says/stops": 2.0, "reward_model/says/false_stops": None}
    assert metrics[1] == {"reward_model/says/stops": 0.0, "reward_model/says/false_stops": 0.0}


def test_a_refit_moves_the_ends_of_what_is_sampled(tmp_path):
    collector, source, replay = parts(tmp_path, shaping="bonus", confirm_frames=1)
    source.settings = source.settings.model_copy(update={"ends": True})
    rollout = collector.collect(collector.build_policy())
    found = source.measure(rollout)
    after, first = replay.add(rollout, rollout.actions, {source.name: found})
    remember(replay, source, rollout, found, after, first)
    rows, paid, moments = replay.transitions, replay.paid[source.name], replay.rows("moment")
    for at in (2, 1):
        source.model.model.score = lambda episodes, at=at: [
            Score.from_values(np.array([0.99 if int(s[0]) == at else 0.0 for s in one.states])) for one in episodes
        ]
        source.model.updates += 1
        relabel(replay, source, rows)
        assert np.array_equal(paid["ends"][rows], moments[rows] == at)
        assert (replay.terminated(rows) >= (moments[rows] == at)).all()
    collector.close()


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path):
    reward = image_reward(tmp_path, arch="mlp", shaping="bonus", ends=True, confirm_frames=1, combine_mode="add")
    whole, cut = (
        clock_study(
            tmp_path, name=name, algorithm=SAC, env={"native_reward": "dense"},
            reward=reward,
        )
        for name in ("whole", "cut")
    )  # fmt: skip
    start(whole, reader="own").run()
    interrupted(cut, "update", 4, reader="own")
    start(cut, resume=True, reader="own").run()
    assert result(cut) == result(whole)
    rows = [row for row in lines(whole) if row["kind"] == "train"]
    assert all(row["reward_model/resnet/false_stops"] <= row["reward_model/resnet/stops"] for row in rows)
    assert sum(row["reward_model/resnet/stops"] for row in rows) > 0


def test_only_a_bonus_of_an_off_policy_run_ends_episodes(tmp_path):
    with refuses("ends"):
        RobotSource.model_validate(
            {"model": {"model_type": "constant"}, "reward_mode": "per_step", "shaping": "raw", "ends": True}
        )
    with refuses("reward.sources.constant.ends"):
        start(clock_study(tmp_path, reward=reader_reward(shaping="bonus", ends=True)))
    with refuses("ends", "would do nothing here"):
        StepRewards({"model_type": "constant"}, num_envs=1, reward_mode="per_step", shaping="bonus", ends=True)
