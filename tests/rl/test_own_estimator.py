"""An estimator that is not guerdon's is one file: what it needs is said by its factory."""

import numpy as np

from guerdon.rl.advantages import Estimate, grpo
from guerdon.rl.run import run
from guerdon.settings.algorithm import ControlAlgorithmSettings, EstimatorInfo, TextAlgorithmSettings
from rl_clock import clock_study
from tables import refuses

SEEN = []


def make_groups():
    """GRPO, which notes the groups that it was given."""

    def estimate(source, steps):
        SEEN.append(steps.groups_B)
        return Estimate(*grpo(source, steps)[:2])

    return estimate


make_groups.info = EstimatorInfo(groups=True, kl_in="reward")


def make_plain():
    return lambda source, steps: Estimate(source.rewards_B_T, steps.mask_B_T)


def test_a_robots_own_estimator_of_groups_compares_episodes_with_the_same_start(tmp_path):
    SEEN.clear()
    algorithm = {"adv_estimator": f"{__name__}:make_groups", "group_size": 2, "minibatch_size": 8}
    run(clock_study(tmp_path, algorithm=algorithm, env={"num_envs": 4}, runner={"total_steps": 24}))
    assert SEEN
    assert all(np.unique(groups, return_counts=True)[1].tolist() == [2] * (len(groups) // 2) for groups in SEEN)


def test_keys_of_groups_and_critics_follow_what_it_says():
    grouped, plain = f"{__name__}:make_groups", f"{__name__}:make_plain"
    assert ControlAlgorithmSettings(adv_estimator=grouped, group_size=4).needs == make_groups.info
    assert ControlAlgorithmSettings(adv_estimator=plain, value_coef=0.5, rollout_steps=8).needs.critic
    assert TextAlgorithmSettings(adv_estimator=grouped, kl_coef=0.1).kl_in == "reward"
    for name, key in ((grouped, "value_coef"), (grouped, "rollout_steps"), (plain, "group_size")):
        with refuses(key):
            ControlAlgorithmSettings(adv_estimator=name, **{key: 2})
