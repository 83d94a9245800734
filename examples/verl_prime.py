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
from typing import Any

from guerdon.integrations.text import is_right
from guerdon.integrations.verl import prime_source, register_sources

START = os.environ.get("PRIME_START", "")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """1 for a right number, else 0."""
    return float(is_right(solution_str, ground_truth) is True)


def sources() -> list[Any]:
    """The implicit reward model; its rewards count five times what the outcome counts (PRIME, 2502.01456)."""
    if not START:
        raise ValueError("set PRIME_START to the folder of the start of the policy, in every process of verl")
    return [prime_source("prime", START, length_limit=3072, reward_weight=5.0)]


register_sources(sources, {"adv_estimator": "rloo", "normalize_advantages": False}, START)
