r"""PRIME in verl 0.9: rewards at tokens from a model that learns from outcomes while the policy is trained.

verl imports this module in its processes, and takes `compute_score` from it for the outcomes:

    export VERL_USE_EXTERNAL_MODULES=verl_prime PYTHONPATH=examples PRIME_START=/path/to/model
    python -m verl.trainer.main_ppo \
        algorithm.adv_estimator=gdpo actor_rollout_ref.model.path=/path/to/model actor_rollout_ref.rollout.n=4 \
        reward.custom_reward_function.path=examples/verl_prime.py reward.custom_reward_function.name=compute_score \
        data.train_files=train.parquet data.val_files=test.parquet

The reward model is made where verl computes advantages, when the first batch comes, from the start of the policy.
"""

import os
from collections.abc import Sequence
from typing import Any

from guerdon.errors import ConfigError
from guerdon.integrations.verl import prime_source, register_sources
from guerdon.policies.language.text_files import load_policy
from guerdon.rewards.prime import PrimeReward
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.tasks.answers import final_answer
from guerdon.tasks.quantities import same_number

START = os.environ.get("PRIME_START", "")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """1 for a right number, else 0."""
    return float(same_number(ground_truth, final_answer(solution_str) or "") is True)


def sources() -> Sequence[PrimeReward]:
    """The implicit reward model; its rewards count five times what the outcome counts (PRIME, 2502.01456)."""
    if not START:
        raise ConfigError("set PRIME_START to the folder of the start of the policy, in every process of verl")
    policy = load_policy(TextPolicySettings(path=START), seed=0)
    return [prime_source("prime", policy, length_limit=3072, reward_weight=5.0)]


register_sources(sources, {"adv_estimator": "rloo", "normalize_advantages": False}, START)
