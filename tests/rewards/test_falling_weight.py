"""A weight that falls as the policy succeeds: never rises, is logged, survives a kill, and ends all calls at 0."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guerdon.rewards.source import FallingWeight, SourceTerms
from guerdon.rl.episode_stats import RECENT, EpisodeStats
from guerdon.rl.sampling import DrawnRows, gathered
from guerdon.settings.reward import RewardSettings
from guerdon.settings.reward_source import RobotSource
from guerdon.worlds.build import check_success_reported
from rl_clock import Clock, Reader, clock_study, interrupted, lines, reader_reward, result, start
from rl_models import image_reward
from tables import first, refuses

FALLS = {"combine_mode": "add", "reward_weight_schedule": "success"}
SAC = {"type": "sac", "rollout_steps": 10, "batch_size": 8, "online_step_before_learning": 12}
DQN = {**SAC, "type": "dqn"}
SHARES = st.one_of(st.none(), st.floats(0, 1))


@given(st.lists(SHARES), st.tuples(st.floats(0, 1), st.floats(0, 1)).filter(lambda ends: ends[0] < ends[1]))
def test_it_never_rises_and_is_the_least_of_the_closed_form(history, ends):
    weight, left = FallingWeight(*ends), [1.0]
    for share in history:
        weight.observe(share)
        left.append(weight.left)
    assert left == sorted(left, reverse=True)
    assert 0 <= left[-1] <= left[0] == 1
    known = [(ends[1] - share) / (ends[1] - ends[0]) for share in history if share is not None]
    assert left[-1] == min([1.0, *(max(0.0, one) for one in known)])


def test_the_weights_of_a_history():
    """With the defaults 1 - s; with 0.1 to 0.3 the middle, 0.2, leaves half."""
    histories = {
        (0.0, 1.0): ([None, 0.0, 0.25, 0.1, 0.75], [1, 1, 0.75, 0.75, 0.25]),
        (0.1, 0.3): ([0.05, 0.2, 0.15, 0.3, 0.0], [1, 0.5, 0.5, 0, 0]),
    }
    for ends, (shares, wanted) in histories.items():
        terms = SourceTerms("rm", 0.9, 4.0, "success", falling=FallingWeight(*ends))
        found = []
        for share in shares:
            terms.falling.observe(share)
            found.append(terms.weight(0.5))
        assert found == pytest.approx([4.0 * one for one in wanted])
        assert terms.over == (wanted[-1] == 0)


def test_it_is_of_one_source_by_its_keys():
    keys = {"reward_weight": 2.0, "reward_weight_schedule": "success", "schedule_to": 0.25}
    source = RobotSource.model_validate({"model": {"model_type": "constant"}, **keys})
    terms = SourceTerms.of("rm", source, gamma=0.9)
    assert terms.falling == FallingWeight(0.0, 0.25)
    assert SourceTerms.of("rm", source.model_copy(update={"reward_weight_schedule": "constant"}), gamma=1).over is False


def test_what_cannot_be_is_refused():
    model = {"model": {"model_type": "constant"}, "reward_mode": "per_step"}

    def section(**keys):
        return RewardSettings.model_validate({"use_reward_model": True, **model, **keys})

    section(**FALLS, schedule_from=0.1, schedule_to=0.25)
    for keys, where in (
        ({**FALLS, "combine_mode": "replace"}, "combine_mode"),
        ({**FALLS, "schedule_from": 0.5, "schedule_to": 0.5}, "schedule_from"),
        ({"combine_mode": "add", "schedule_to": 0.5}, "schedule_to"),
        ({**FALLS, "shaping": "bonus", "reward_threshold": 0.5, "ends": True}, "ends"),
        ({**FALLS, "adaptive_weight": {"share": 0.2}}, "adaptive_weight"),
        ({**FALLS, "reward_weight": 0.0}, "reward_weight_schedule"),
    ):
        with refuses(where):
            section(**keys)
    constant = {"model": {"model_type": "constant"}}
    two = {"a": {**constant, "reward_weight_schedule": "success"}, "b": {**constant, "adaptive_weight": {"share": 0.5}}}
    with refuses("combine_mode", "a share to the end"):
        RewardSettings.model_validate({"use_reward_model": True, "sources": two})
    RewardSettings.model_validate({"use_reward_model": True, "combine_mode": "add", "sources": two})
    learning = {"algorithm": {"rollout_steps": 12, "auxiliary_losses": {"constant": 0.5}}}
    with refuses("algorithm.auxiliary_losses"):
        clock_study("x", reward=reader_reward(**FALLS), **learning)


def test_an_environment_that_reports_no_success_is_refused_before_the_start():
    study = clock_study("x", reward=reader_reward(**FALLS), env={"task": "Pendulum-v1", "native_reward": "dense"})
    said = "reward.sources.constant.reward_weight_schedule: success"
    assert study.success_readers() == [said]
    with refuses("env.success_key", r"which reward\.sources\.constant\.reward_weight_schedule: success needs"):
        check_success_reported(study.env, study.success_readers())
    assert study.schedules == []


def study(tmp_path, name="run", *, algorithm=None, reward=None, **keys):
    """Every episode of eight steps succeeds, and every third one of those that end sooner does not."""
    runner = {"total_steps": 320, "eval_every": 1000, "checkpoint_every": 40, **keys.pop("runner", {})}
    env = {"native_reward": "dense", **keys.pop("env", {})}
    return clock_study(
        tmp_path, name=name, reward=reward or reader_reward(**FALLS), runner=runner, env=env, algorithm=algorithm
    )


class Choices(Clock):
    """A clock whose action is one of two."""

    def __init__(self, **given):
        super().__init__(**given)
        self.action_space = gymnasium.spaces.Discrete(2)

    def step(self, action):
        return super().step([float(action)])


gymnasium.register("FallingChoices-v0", Choices, disable_env_checker=True, order_enforce=False)


@pytest.mark.parametrize("algorithm", first([{"rollout_steps": 12, "normalize_rewards": True}, SAC, None, DQN], 2))
def test_at_weight_0_the_model_is_not_asked_and_the_run_goes_on(tmp_path, algorithm):
    reader, env = Reader(), {"kwargs": {"fixed": 8}}
    env |= {"task": "test_falling_weight:FallingChoices-v0"} if algorithm is DQN else {}
    one = study(tmp_path, algorithm=algorithm, env=env, runner={"film_every": 40})
    loop, seen = start(one, reader=reader), []
    record = loop._record
    loop._record = lambda *given: (record(*given), seen.append((len(reader.seen), loop.stats.recent_success)))
    loop.run()
    rows = [row for row in lines(one) if row["kind"] == "train"]
    weights, shares = [row["reward_weight/constant"] for row in rows], [share for _, share in seen]
    first = shares.index(1.0)
    assert shares[first - 1] is None, "20 episodes were not over"
    assert weights == [1.0] * (first + 1) + [0.0] * (len(rows) - first - 1)
    asked = np.diff([count for count, _ in seen])
    assert (asked[:first] > 0).all()
    assert not asked[first:].any()
    assert len(reader.seen) == seen[-1][0], "nor for the report"
    assert all(row["return/constant"] is None for row in rows[first + 1 :])
    ended = [row for row in rows[first + 1 :] if row["episodes"]]
    assert all(row["return/combined"] is not None and row["updates"] > 0 for row in ended)


@pytest.mark.parametrize(
    ("algorithm", "more"), first([(SAC, {}), (None, {}), (None, {"rollout_shards": 2})], 1, several=True)
)
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, algorithm, more):
    reward = image_reward(tmp_path, arch="mlp", update="after", shaping="relative", **FALLS)
    reward |= {"schedule_from": 0.4, "schedule_to": 0.95}
    given = {"algorithm": algorithm, "reward": reward, "runner": more}
    whole, cut = (study(tmp_path, name, **given) for name in ("whole", "cut"))
    start(whole, reader="own").run()
    weights = [row["reward_weight/resnet"] for row in lines(whole) if row["kind"] == "train"]
    assert len({round(weight, 6) for weight in weights}) > 2, weights
    assert 0.0 < min(weights) < 1.0
    begun = next(n for n, weight in enumerate(weights) if weight < 1.0)
    interrupted(cut, "update", begun + 4, reader="own")
    start(cut, resume=True, reader="own").run()
    assert result(cut) == result(whole)


def test_a_run_killed_after_the_end_of_the_source_goes_on_to_the_same_bytes(tmp_path):
    reward = image_reward(tmp_path, arch="mlp", update="before", shaping="log_odds", **FALLS)
    reward |= {"schedule_to": 0.5}
    whole, cut = (study(tmp_path, name, algorithm=SAC, reward=reward) for name in ("whole", "cut"))
    start(whole, reader="own").run()
    rows = [row for row in lines(whole) if row["kind"] == "train"]
    over = [row["reward_weight/resnet"] == 0.0 for row in rows]
    begun = over.index(True)
    assert "reward_model/resnet/relabelled" in rows[begun - 1]
    assert not any(name.startswith("reward_model/resnet") for row in rows[begun:] for name in row)
    interrupted(cut, "update", begun + 4, reader="own")
    start(cut, resume=True, reader="own").run()
    assert result(cut) == result(whole)


def test_an_output_of_weight_0_has_no_loss(tmp_path):
    loop = start(study(tmp_path, algorithm=SAC, env={"kwargs": {"fixed": 8}}))
    loop.iterate()
    loop.iterate()
    learner = loop.learner
    drawn = [DrawnRows(learner.memory, learner.memory.transitions[None, :8])]

    def gradients():
        (batch,) = gathered(learner.policy, drawn, learner.outputs, learner.terms)
        weights = torch.tensor([1.0, learner.terms["constant"].weight(0.0), 0.0])
        learner._step(batch, learner._noise(1)[0], weights, act=False)
        return batch, learner.critic.heads.weights[-1].grad.abs().sum((0, 1))

    batch, slopes = gradients()
    assert (slopes > 0).all()
    assert torch.allclose(batch.share.sum(0), torch.ones(3))
    learner.terms["constant"].falling.observe(1.0)
    batch, slopes = gradients()
    assert slopes.gt(0).tolist() == [True, False, True]
    assert batch.share[:, 1].tolist() == [0.0] * 8
    assert loop.sources["constant"].terms is learner.terms["constant"]
    loop.close()


def test_success_is_counted_over_the_newest_known_episodes(tmp_path):
    loop = start(study(tmp_path, runner={"total_steps": 1000}))
    for _ in range(20):
        loop.iterate()
    known = [row["success"] for row in lines_so_far(loop)]
    assert len(known) > 2 * RECENT
    assert loop.stats.recent_success == np.mean(known[-RECENT:])
    loop.close()


class OnlySuccesses(Clock):
    """A clock that never says that an episode failed; its first one succeeds."""

    begun = False

    def reset(self, **given):
        shown = super().reset(**given)
        self.length = self.length if self.begun else 3
        self.begun = True
        return shown

    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {"success": True if info["success"] else None}


gymnasium.register("OnlySuccesses-v0", OnlySuccesses, disable_env_checker=True, order_enforce=False)


def test_a_weight_stays_where_only_successes_are_reported(tmp_path, capsys):
    """The share of successes among the episodes whose success is known is 1 there, whatever the policy does."""
    keys = {"env": {"task": "OnlySuccesses-v0", "kwargs": {"longest": 8}}, "runner": {"eval_every": 160}}
    one = study(tmp_path, **keys)
    loop = start(one)
    loop.run()
    known = [row["success"] for row in lines(one, "episodes")]
    assert known.count(True) > 2 * RECENT
    assert set(known) == {True, None}
    assert {row["reward_weight/constant"] for row in lines(one) if row["kind"] == "train"} == {1.0}
    assert "weights do not fall with success, since only successes are reported" in capsys.readouterr().err
    again = EpisodeStats(["env"], [], 1)
    again.load_state_dict(json.loads(json.dumps(loop.stats.state_dict() | {"orders": {}})))
    assert again.only_successes
    assert len(again.successes) == RECENT
    assert again.recent_success is None


def lines_so_far(loop):
    loop.log.flush()
    return lines(loop.study, "episodes")
