r"""What a verl run writes for `guerdon audit`: two keys of its configuration, and a reward with its parts.

    python -m verl.trainer.main_ppo \
        trainer.rollout_data_dir=runs/verl/rollout trainer.validation_data_dir=runs/verl/validation \
        reward.custom_reward_function.path=examples/audit_verl.py reward.custom_reward_function.name=compute_score ...
    guerdon audit runs/verl/rollout

verl writes prompt, response, ground truth and score of every response of a step. Further keys that the function returns
become columns: `acc` is taken for the truth, other numbers for further rewards.
"""

from typing import Any

from guerdon.integrations.text import is_right


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> Any:
    """The reward that is trained on, whether the answer is right, and what the form adds."""
    right = is_right(solution_str, ground_truth) is True
    form = 0.1 * ("####" in solution_str)
    return {"score": float(right) + form, "acc": float(right), "form_reward": form}
