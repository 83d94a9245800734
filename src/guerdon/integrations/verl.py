"""Guerdon's reward models in verl: a score function, a reward manager with rewards at tokens, an advantage estimator.

verl has no place for a missing reward, so a measurement that failed raises `RewardFailure`; `RetriedModel` tries it
again first.

    compute_score = score_function(scorer)                          # my_reward.py, for custom_reward_function
    class PrmManager(TokenRewardManager): source = step_source("prm", model)      # for reward.reward_manager
    register_estimator("guerdon_rloo", {"adv_estimator": "rloo"})   # then algorithm.adv_estimator: guerdon_rloo
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.trainer.ppo.core_algos import register_adv_est

from guerdon.collect.text import Responses
from guerdon.errors import ConfigError, RewardFailure
from guerdon.integrations.text import Text, TextScorer, checked_algorithm, rollout_of
from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages, named_estimator
from guerdon.rl.reward_source import RewardSource
from guerdon.types import Rewards


def score_function(scorer: TextScorer, *, question_key: str = "question") -> Callable[..., float]:
    """A `compute_score` for `reward.custom_reward_function`.

    verl gives it no prompt: the question is read from the row's `extra_info`.

    Args:
        scorer: a reward model, and how responses are read for it.
        question_key: where in `extra_info` the question is, as text or chat messages.

    Returns:
        A function that raises `RewardFailure` where a reward could not be measured, and `ConfigError` where a row has
        no question.
    """

    def compute_score(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **_: Any
    ) -> float:
        question = (extra_info or {}).get(question_key)
        if question is None:
            raise ConfigError(
                f"a row of {data_source} has no extra_info.{question_key}: put the question there, or take "
                "TokenRewardManager, which reads the prompt"
            )
        return scorer.numbers([question], [solution_str])[0]

    return compute_score


class TokenRewardManager(RewardManagerBase):  # type: ignore[misc]
    """A reward manager whose rewards stand at the tokens where steps end.

    Subclass it with a `source`, and name the class in `reward.reward_manager` (`source: importlib`). `run_single` gives
    the sum of a response's rewards; rewards at tokens reach the trainer through `assemble_rm_scores`, which scores the
    batch at once. verl calls it where it computes rewards for a batch, not where each agent loop asks for its own.

    Attributes:
        source: of rewards at tokens (`guerdon.integrations.text.step_source`).
    """

    source: ClassVar[RewardSource[Responses]]
    _tokenizer: ClassVar[Any] = None

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any) -> None:
        """Keep the tokenizer, which `assemble_rm_scores` needs."""
        cls._tokenizer = tokenizer
        super().init_class(config, tokenizer)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """The sum of the rewards of a response.

        Raises:
            RewardFailure: it could not be measured.
        """
        rewards = await asyncio.to_thread(self.measure, data[-1:])
        return {"reward_score": float(rewards.values.sum()), "reward_extra_info": {}}

    @classmethod
    def measure(cls, data: DataProto) -> Rewards:
        """Rewards of a batch at its tokens.

        Raises:
            RewardFailure: one could not be measured.
        """
        width = data.batch["prompts"].size(1)
        valid = data.batch["attention_mask"].bool()
        prompts = [row[keep].numpy() for row, keep in zip(data.batch["prompts"], valid[:, :width], strict=True)]
        responses = [row[keep].numpy() for row, keep in zip(data.batch["responses"], valid[:, width:], strict=True)]
        given: Sequence[Text] | None = data.non_tensor_batch.get("raw_prompt")
        asked = [cls._tokenizer.decode(ids) for ids in prompts] if given is None else [_plain(one) for one in given]
        rewards = cls.source.measure(rollout_of(asked, prompts, responses, cls._tokenizer))
        if rewards.failures:
            missing = {row: str(why) for row, _, why in rewards.failures}
            values = np.where(rewards.failed, np.nan, rewards.values)
            raise RewardFailure(f"{len(missing)} of {len(responses)} rewards", missing, result=values)
        return rewards

    @classmethod
    def assemble_rm_scores(cls, data: DataProto, scores: Sequence[float]) -> Tensor:
        """(B, T) rewards at the tokens of the responses.

        Args:
            data: the batch.
            scores: sums that `run_single` gave; the batch is scored again, because verl hands over no more than these.

        Raises:
            RewardFailure: one could not be measured.
        """
        values = cls.measure(data).values
        rm_scores = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        rm_scores[:, : values.shape[1]] = torch.from_numpy(values)
        return rm_scores


def register_estimator(name: str, algorithm: Mapping[str, Any], *, gamma: float = 1.0) -> Callable[..., Any]:
    """Register one of guerdon's estimators for dense rewards under a name for `algorithm.adv_estimator`.

    verl adds all rewards of a token before it calls an estimator, so they are one source here; the baseline is over
    the tokens that pay.

    Args:
        name: in verl's configuration.
        algorithm: the estimator; see `guerdon.integrations.text.token_advantages`.
        gamma: discount per token.

    Raises:
        ConfigError: a key of `algorithm` that would do nothing, or an estimator that needs a critic.
    """
    settings = checked_algorithm(algorithm)

    def compute_advantage(
        token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray | None = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        mask = response_mask.bool().cpu().numpy()
        groups_B = None if index is None else np.unique(index, return_inverse=True)[1]
        rewards = token_level_rewards.detach().float().cpu().numpy()
        found = estimate_advantages(
            {"verl": SourceRewards(rewards, gamma=gamma)},
            Steps(mask, groups_B=groups_B),
            estimator=named_estimator(settings),
            form=settings.rloo_form,
            whitened=settings.whiten_batch,
        )
        device = token_level_rewards.device
        return torch.from_numpy(found.advantages).to(device), torch.from_numpy(found.returns).to(device)

    registered: Callable[..., Any] = register_adv_est(name)(compute_advantage)
    return registered


def _plain(prompt: Any) -> Text:
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
