"""Guerdon's reward models in TRL: reward functions, and a GRPO trainer with an advantage per token.

TRL takes None as "could not be measured": it leaves the response out of the mean of its group and gives it no
advantage. So failures stay failures, and their share is logged.

    trainer = GRPOTrainer(model, reward_funcs=[reward_function(scorer)], ...)
    trainer = TokenAdvantageTrainer(model, reward_funcs=[right], sources=[step_source("prm", prm)], ...)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl import GRPOTrainer

from guerdon.collect.text import Responses
from guerdon.errors import ConfigError
from guerdon.integrations.text import TextScorer, checked_algorithm, or_none, outcome_rewards, rollout_of
from guerdon.integrations.text import token_advantages as advantages_of
from guerdon.rl.reward_source import RewardSource, SourceTerms
from guerdon.types import Failure, Rewards

RewardFunction = Callable[..., list[float | None]]
AsyncRewardFunction = Callable[..., Awaitable[list[float | None]]]


def reward_function(scorer: TextScorer, name: str = "") -> RewardFunction:
    """A function for `reward_funcs` of TRL's online trainers; None where a measurement failed.

    The share of failures is logged as `<name>/failed`.

    Args:
        scorer: a reward model, and how responses are read for it.
        name: in TRL's logs; by default the model's.
    """
    label = name or scorer.model.info.name

    def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        found = scorer.rewards(prompts, completions)
        if "log_metric" in columns and found:
            columns["log_metric"](f"{label}/failed", sum(isinstance(one, Failure) for one in found) / len(found))
        return or_none(found)

    reward.__name__ = label
    return reward


def async_reward_function(scorer: TextScorer, name: str = "") -> AsyncRewardFunction:
    """As `reward_function`, in a thread: TRL runs several of these at the same time.

    For models on reward servers and judges; two models of one process compete for its processor.
    """
    measured = reward_function(scorer, name)

    async def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return await asyncio.to_thread(measured, prompts, completions, **columns)

    reward.__name__ = measured.__name__
    return reward


class TokenAdvantageTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPO trainer with guerdon's advantages: one per token, from several sources.

    Every entry of `reward_funcs` is a source that is paid at the last token, with its entry of `reward_weights`;
    `sources` pay at the tokens where steps end. Each source keeps its baseline, and a failed measurement stays out of
    it. `adv_estimator: rloo` here is RLOO with dense rewards; TRL's RLOOTrainer has one probability ratio for a whole
    response, to which advantages of tokens cannot be given. TRL's `scale_rewards` and `multi_objective_aggregation`
    change only what TRL logs.

    Args:
        *args: as of `trl.GRPOTrainer`.
        sources: of rewards at tokens (`step_source`), by distinct names. They do not learn.
        algorithm: the estimator; see `guerdon.integrations.text.token_advantages`.
        **kwargs: as of `trl.GRPOTrainer`.

    Raises:
        ConfigError: more than one process, sources that learn, names that are taken.
    """

    def __init__(
        self,
        *args: Any,
        sources: Sequence[RewardSource[Responses]],
        algorithm: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        checked_algorithm(algorithm)
        super().__init__(*args, **kwargs)
        self._algorithm = dict(algorithm)
        self._sources = {source.name: source for source in sources}
        self._outcomes: Tensor = torch.zeros(0)
        names = [*self.reward_func_names, *(source.name for source in sources)]
        if len(set(names)) != len(names):
            raise ConfigError(f"reward functions and sources need distinct names, got {', '.join(names)}")
        for source in sources:
            if source.needs_log_probs or type(source).learn is not RewardSource.learn:
                raise ConfigError(f"the source {source.name!r} learns during a run, which TRL has no place for")
        if self.accelerator.num_processes > 1:
            raise ConfigError("advantages per token need all responses to a prompt in one process: run one process")

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        self._outcomes = super()._calculate_rewards(*args, **kwargs)
        return self._outcomes

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if "tool_mask" in output:
            raise ConfigError("advantages per token are for single responses: remove tools and environments")
        output["advantages"] = self._token_advantages(inputs, output)
        return output

    def _token_advantages(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> Tensor:
        """(B, T) advantages of the tokens of a batch."""
        mode = "train" if self.model.training else "eval"
        size = self.num_generations if mode == "train" else self.num_generations_eval
        rollout = rollout_of(
            [row["prompt"] for row in inputs],
            _rows(output["prompt_ids"], output["prompt_mask"]),
            _rows(output["completion_ids"], output["completion_mask"]),
            self.processing_class,
            groups_B=np.arange(len(inputs)) // size,
        )
        measured: dict[str, tuple[Rewards, SourceTerms]] = {}
        weights = self.reward_weights.tolist()
        for name, weight, values_B in zip(self.reward_func_names, weights, self._outcomes.T.tolist(), strict=True):
            measured[name] = outcome_rewards(values_B, rollout.mask), SourceTerms(name, coefficient=weight)
        for name, source in self._sources.items():
            measured[name] = source.measure(rollout), source.terms
        progress = self.state.global_step / max(self.state.max_steps, 1)
        found = advantages_of(rollout, measured, self._algorithm, progress=progress)
        for name, (rewards, _) in measured.items():
            self._metrics[mode][f"{name}/failed"].append(float(rewards.failed_B.mean()))
        for name in self._sources:
            self._metrics[mode][f"{name}/reward"].append(float(measured[name][0].values.sum(axis=1).mean()))
        advantages_B_T = np.zeros(output["completion_mask"].shape, dtype=np.float32)
        advantages_B_T[:, : rollout.mask.shape[1]] = found.advantages
        lengths_B = np.maximum(rollout.mask.sum(axis=1), 1)
        for _ in inputs:  # what TRL wrote down for these responses were its own
            self._logs["advantages"].pop()
        self._logs["advantages"].extend((advantages_B_T.sum(axis=1) / lengths_B).tolist())
        return torch.from_numpy(advantages_B_T).to(output["completion_ids"].device)


def _rows(ids: Tensor, mask: Tensor) -> list[np.ndarray]:
    """Ragged rows of tokens, without padding."""
    return [row[keep.bool()].cpu().numpy() for row, keep in zip(ids, mask, strict=True)]
