"""Logged scalars by the names that trainers write, and what is found in them; curves of honest runs."""

import numpy as np
import pytest

from guerdon.auditing.checks import audit
from guerdon.auditing.rows import Rows
from guerdon.auditing.scalar_checks import TAGS, role_of
from tables import cases, first

UP = np.linspace(0, 1, 60)
NOISE = 0.02 * np.random.default_rng(0).standard_normal(60)


def scalars(curves):
    none = np.zeros(0)
    steps = {name: np.arange(len(values)) for name, values in curves.items()}
    logged = {name: (steps[name], np.asarray(values, np.float64)) for name, values in curves.items()}
    return Rows("scalars", ("events",), none.astype(int), none.astype(int), none, curves=logged)


def found(**curves):
    return {one.name: one for one in audit(scalars({k.replace("__", "/"): v for k, v in curves.items()})).findings}


@cases(
    "name, role",
    [
        ("rollout/ep_rew_mean", "reward"),
        ("PPO_3/rollout/ep_rew_mean", "reward"),
        ("rollout/ep_len_mean", "none"),
        ("eval/success_rate", "truth"),
        ("train/entropy_loss", "negative entropy"),
        ("critic/score/mean", "reward"),
        ("critic/score/max", "none"),
        ("response_length/clip_ratio", "truncated"),
        ("response_length/mean", "length"),
        ("val-core/openai/gsm8k/acc/mean@1", "truth"),
        ("val/test_score/openai/gsm8k", "truth"),
        ("val-core/aime/acc/maj@16/mean", "truth"),
        ("val-core/aime/acc/best@16/mean", "none"),
        ("val-aux/aime/reward/worst@4/std", "none"),
        ("val-aux/aime/score/mean@1", "reward"),
        ("critic/returns/mean", "none"),
        ("timing_s/reward", "none"),
        ("reward/wrong_answer_ratio", "none"),
        ("reward/format_error_ratio", "none"),
        ("actor/kl_loss", "divergence"),
        ("actor/ppo_kl", "none"),
        ("actor/entropy", "entropy"),
        ("train/reward", "reward"),
        ("train/reward_std", "none"),
        ("train/rewards/accuracy_reward/mean", "truth"),
        ("train/rewards/accuracy_reward/std", "none"),
        ("train/rewards/correctness_reward_func", "truth"),
        ("train/rewards/format_reward/mean", "reward"),
        ("train/completions/clipped_ratio", "truncated"),
        ("train/completions/mean_length", "length"),
        ("train/kl", "divergence"),
        ("objective/rlhf_reward", "reward"),
        ("objective/entropy", "entropy"),
        ("train/rewards/chosen", "none"),
        ("train/rewards/accuracies", "none"),
        ("train/response_clip_ratio", "truncated"),
        ("eval/eval_gsm8k_pass1", "truth"),
        ("ray/tune/env_runners/episode_return_mean", "reward"),
        ("ray/tune/episode_reward_mean", "reward"),
        ("ray/tune/info/learner/default_policy/learner_stats/entropy", "entropy"),
        ("ray/tune/info/learner/default_policy/learner_stats/kl", "none"),
        ("ray/tune/info/learner/policy_entropy", "entropy"),
        ("ray/tune/info/learner/agent_0/entropy", "entropy"),
        ("ray/tune/info/learner/agent_0/mean_kl_loss", "none"),
        ("ray/tune/learners/default_policy/entropy", "entropy"),
        ("ray/tune/info/learner/default_policy/learner_stats/target_entropy", None),
        ("train/rollout/truncated_rate", "truncated"),
        ("train/rollout/reward_mean", "reward"),
        ("train/agg/effective/is_truncated/mean", "truncated"),
        ("is_truncated/all/mean", "truncated"),
        ("decode_len/all/mean", "length"),
        ("rollout/tool_success_rate", "none"),
        ("config/model/lstm_use_prev_reward", "none"),
        ("reward/all/mean", "reward"),
        ("train/return/judge", "reward"),
        ("train/return/env", "truth"),
        ("train/return/combined", "none"),
        ("eval/success", "truth"),
        ("train/loss", None),
        ("time/fps", None),
    ],
)
def test_what_a_scalar_is(name, role):
    tag = role_of(name)
    assert (tag and tag.role) == role


def test_each_row_of_the_table_is_reached():
    """A row behind one that always fits first would never count."""
    for tag in TAGS:
        assert role_of(f"x/{tag.name.replace('*', 'q')}") is not None, tag


def test_a_reward_that_rises_while_the_truth_falls():
    one = found(critic__score__mean=UP + NOISE, **{"val-core/gsm8k/acc/mean@1": 0.8 - 0.3 * UP + NOISE})
    assert set(one) == {"truth"}
    assert "critic/score/mean rises" in one["truth"].title


def test_a_reward_that_rises_beside_a_flat_truth_is_not_clean():
    """The part for the form alone may have been learned, or paid; `course` says that the truth does not rise."""
    curves = {"train/reward": UP + NOISE, "train/rewards/accuracy_reward/mean": 0.3 + 0.02 * np.cos(20 * UP)}
    result = audit(scalars(curves))
    assert not result.findings
    assert result.course.kind == "alone"
    assert "train/reward rises, and no curve of a truth does" in result.undecided["truth"]
    followed = curves | {"train/rewards/correctness_reward/mean": 0.3 + 0.2 * UP + NOISE}
    assert "truth" in audit(scalars(followed)).clean


def test_a_reward_that_collapses_and_one_that_only_wobbles():
    peak = np.concatenate([UP[::2], 0.05 * UP[::2]]) + NOISE
    one = found(rollout__ep_rew_mean=peak)
    assert set(one) == {"collapse"}
    assert one["collapse"].interval[0] > 0.8
    half = np.concatenate([UP[::2], 0.7 + 0.05 * UP[::2]]) + NOISE
    assert not found(rollout__ep_rew_mean=half)
    assert not found(rollout__ep_rew_mean=0.5 + 3 * NOISE)


def test_a_reward_that_falls_to_nothing_from_its_beginning():
    one = found(train__reward=0.9 - 0.88 * (UP > 0.4) + np.abs(NOISE) / 2)
    assert set(one) == {"collapse"}
    assert "train/reward falls from 0.9" in one["collapse"].title
    assert not found(train__reward=0.9 - 0.4 * UP + NOISE)
    result = audit(scalars({"rollout/ep_rew_mean": 10 - 20 * UP + NOISE}))
    assert not result.findings
    assert "rollout/ep_rew_mean falls from 9" in result.undecided["collapse"]


def test_a_reward_of_either_sign_that_falls_to_its_lowest_value_and_stays_there():
    falls = np.maximum(-0.5 - 2 * UP, -1) + NOISE * (UP < 0.2)
    one = found(critic__score__mean=falls)
    assert set(one) == {"collapse"}
    assert "critic/score/mean falls from -0.5" in one["collapse"].title
    assert one["collapse"].title.endswith("and stays at -1")
    falls[-1] = -0.9
    assert not found(critic__score__mean=falls)


def test_constant_and_rare_rewards_do_not_collapse():
    assert not found(rollout__ep_rew_mean=np.full(24, -6846.17))
    rare = np.zeros(100)
    rare[[2, 10, 15, 22, 30, 31, 32, 38, 45, 62, 74, 87]] = [0.1, 0.1, 0.1, 0.2, 0.1, 0.1, 0.1, 0.3, 0.2, 0.2, 0.1, 0.1]
    assert not found(train__reward=rare)


def test_a_return_beside_a_reward_is_not_a_reward():
    """That of OpenRLHF is the reward minus what its group has on average."""
    centred = np.concatenate([UP[::2], 0.02 * UP[::2]]) + NOISE
    assert set(found(train__return=centred)) == {"collapse"}
    assert not found(train__return=centred, train__reward=0.5 + UP + NOISE)


def test_truncation_length_divergence_and_entropy():
    one = found(response_length__clip_ratio=0.02 + 0.5 * UP + NOISE / 10)
    assert set(one) == {"truncated"}
    assert one["truncated"].severity == "info"
    grown = {"completions__mean_length": 200 + 400 * UP + 100 * NOISE}
    assert found(**grown)["length"].severity == "info"
    flat = found(**grown, train__rewards__accuracy_reward__mean=0.5 + NOISE)
    assert flat["length"].severity == "warning"
    assert "accuracy_reward" in flat["length"].title
    assert not found(**grown, train__rewards__accuracy_reward__mean=0.2 + 0.6 * UP + NOISE)
    assert set(found(train__kl=np.exp(6 * UP) / 100 + NOISE / 50)) == {"divergence"}
    assert not found(train__kl=0.1 * UP + NOISE / 10)
    assert set(found(actor__entropy=np.exp(-5 * UP) + np.abs(NOISE) / 50)) == {"entropy"}
    assert set(found(train__entropy_loss=-np.exp(-5 * UP) - np.abs(NOISE) / 50)) == {"entropy"}
    assert not found(train__entropy_loss=-3 + 6 * UP)  # of a density: it has either sign


def test_few_points_decide_nothing_and_missing_curves_are_said():
    result = audit(scalars({"rollout/ep_rew_mean": UP[:7], "eval/success_rate": 1 - UP[:7]}))
    assert "needs 20 points" in result.undecided["collapse"]
    assert "needs 8 steps" in result.undecided["truth"]
    assert "a curve of the entropy" in result.unchecked["entropy"]


@pytest.mark.parametrize("seed", first(range(40), 10))
def test_honest_curves_are_clean(seed):
    rng = np.random.default_rng(seed)
    noise = [0.05 * np.cumsum(rng.standard_normal(60)) / 8 + 0.03 * rng.standard_normal(60) for _ in range(3)]
    learned = 1 / (1 + np.exp(-6 * (UP - rng.uniform(0.2, 0.8))))
    assert not found(
        rollout__ep_rew_mean=200 * (learned + noise[0]),
        rollout__success_rate=0.9 * learned + noise[1],
        train__entropy_loss=-1 + 0.6 * UP + noise[2] / 5,
    )
