"""Guerdon's reward models in TRL: reward functions, and GRPO and RLOO trainers with an advantage per token.

TRL takes None as "could not be measured": it leaves the response out of the mean of its group and gives it no
advantage. So failures stay failures, and their share is logged.

    trainer = GRPOTrainer(model, reward_funcs=[reward_function(scorer)], ...)
    trainer = TokenAdvantageTrainer(model, reward_funcs=[right], sources=[step_source("prm", prm)], ...)
    trainer = TokenRLOOTrainer(model, reward_funcs=[right], sources=[step_source("prm", prm)], ...)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.utils import get_json_schema
from trl import GRPOTrainer, RLOOTrainer

from guerdon.collect.text import Responses, TextRollout
from guerdon.errors import ConfigError
from guerdon.integrations.text import (
    AnsweredTurn,
    TextScorer,
    checked_algorithm,
    conversations_of,
    or_none,
    outcome_rewards,
    ragged,
    rollout_of,
)
from guerdon.integrations.text import token_advantages as advantages_of
from guerdon.processes.call_queue import in_thread
from guerdon.rewards.source import RewardSource, SourceTerms, response_rewards
from guerdon.rl.learner import KL
from guerdon.types import BoolArray, Failure, IntArray, Rewards

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
        found = scorer.rewards(prompts, completions, columns.get("tools"))
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
        return await in_thread(measured, prompts, completions, **columns)

    reward.__name__ = measured.__name__
    return reward


class _TokenAdvantages:
    """What both trainers share: sources, and the advantages that replace those of TRL."""

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
        self._completions: list[list[int]] = []
        self._said: list[tuple[Any, Any]] = []
        self._tool_masks: list[list[int]] | None = None
        trainer: Any = self
        names = [*trainer.reward_func_names, *(source.name for source in sources)]
        if len(set(names)) != len(names):
            raise ConfigError(f"reward functions and sources need distinct names, got {', '.join(names)}")
        for source in sources:
            if source.needs_log_probs or type(source).learn is not RewardSource.learn:
                raise ConfigError(f"the source {source.name!r} learns during a run, which TRL has no place for")
        if trainer.accelerator.num_processes > 1:
            raise ConfigError("advantages per token need all responses to a prompt in one process: run one process")

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: Any, completion_ids_list: list[list[int]]
    ) -> Tensor:
        trainer: Any = super()
        self._completions = completion_ids_list  # unmasked: `mask_truncated_completions` masks all of a truncated one
        self._said = list(zip(prompts, completions, strict=True))
        self._outcomes = trainer._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._outcomes

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if getattr(self, "rollout_func", None) is not None:
            raise ConfigError(
                "rollout_func is not supported: it does not say which tokens a message has; use tools",
                key="rollout_func",
            )
        trainer: Any = super()
        output: dict[str, Any] = trainer._generate_and_score_completions(inputs)
        output["advantages"] = self._token_advantages(inputs, output)
        return output

    def _more_sources(self, output: dict[str, Any], rollout: TextRollout) -> dict[str, tuple[Rewards, SourceTerms]]:
        """Sources that the trainer itself has."""
        return {}

    def _token_advantages(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> Tensor:
        """(B, T) advantages of the tokens of a batch."""
        trainer: Any = self
        mode = "train" if trainer.model.training else "eval"
        size = trainer.num_generations if mode == "train" else trainer.num_generations_eval
        rollout, written = self._rollout(inputs, output, np.arange(len(inputs)) // size)
        measured: dict[str, tuple[Rewards, SourceTerms]] = {}
        weights = trainer.reward_weights.tolist()
        for name, weight, values_B in zip(trainer.reward_func_names, weights, self._outcomes.T.tolist(), strict=True):
            measured[name] = outcome_rewards(values_B, rollout.mask), SourceTerms(name, coefficient=weight)
        for name, source in self._sources.items():
            measured[name] = source.measure(rollout), source.terms
        measured |= self._more_sources(output, rollout)
        progress = trainer.state.global_step / max(trainer.state.max_steps, 1)
        weighted = {name: (rewards, terms.weight(progress)) for name, (rewards, terms) in measured.items()}
        own_B_T = self._estimated(rollout, measured, weighted, progress, size)
        for name, (rewards, _) in measured.items():
            trainer._metrics[mode][f"{name}/failed"].append(float(rewards.failed_B.mean()))
        for name in self._sources:
            trainer._metrics[mode][f"{name}/reward"].append(float(measured[name][0].values.sum(axis=1).mean()))
        advantages_B_T = np.zeros(output["completion_mask"].shape, dtype=np.float32)
        advantages_B_T[written] = own_B_T[rollout.mask]
        lengths_B = np.maximum(rollout.mask.sum(axis=1), 1)
        for _ in inputs:  # what TRL wrote down for these responses were its own
            trainer._logs["advantages"].pop()
        trainer._logs["advantages"].extend((advantages_B_T.sum(axis=1) / lengths_B).tolist())
        return torch.from_numpy(advantages_B_T).to(output["completion_ids"].device)

    def _rollout(
        self, inputs: list[dict[str, Any]], output: dict[str, Any], groups_B: np.ndarray
    ) -> tuple[TextRollout, BoolArray]:
        """Responses, or conversations with calls of tools; and (B, T) which tokens of completions are the model's."""
        trainer: Any = self
        completions = [np.array(ids) for ids in self._completions]
        before = ragged(output["prompt_ids"], output["prompt_mask"])
        written = np.zeros(output["completion_mask"].shape, dtype=np.bool_)
        masks = [[1] * len(ids) for ids in completions] if self._tool_masks is None else self._tool_masks
        for row, mask in zip(written, masks, strict=True):
            row[: len(mask)] = mask
        if self._tool_masks is None:
            prompts = [row["prompt"] for row in inputs]
            tools = [row.get("tools") for row in inputs]
            found = rollout_of(prompts, before, completions, trainer.processing_class, groups_B=groups_B, tools=tools)
            return found, written
        talks = zip(self._said, before, completions, masks, strict=True)
        turns = [_turns(*said, start, ids, np.array(mask)) for said, start, ids, mask in talks]
        schemas = [get_json_schema(tool) if callable(tool) else tool for tool in trainer.tools]
        given = [schemas] * len(turns)
        return conversations_of(turns, trainer.processing_class, groups_B=groups_B, tools=given), written

    def _estimated(
        self,
        rollout: TextRollout,
        measured: Mapping[str, tuple[Rewards, SourceTerms]],
        weighted: Mapping[str, tuple[Rewards, float]],
        progress: float,
        size: int,
    ) -> np.ndarray:
        """(B, T) advantages; those of `grpo` and TRL's `normalize_advantages` are scaled as TRL scales its own."""
        trainer: Any = self
        settings = checked_algorithm(self._algorithm)
        if settings.needs.groups and size < 2:  # num_generations_eval=1: nothing to compare, as in TRL
            return np.zeros(rollout.mask.shape, dtype=np.float32)
        scaled = settings.adv_estimator == "grpo" and hasattr(trainer, "scale_rewards")
        algorithm = {**self._algorithm, "adv_estimator": "dr_grpo"} if scaled else self._algorithm
        found = advantages_of(rollout, measured, algorithm, progress=progress)
        advantages_B_T = found.advantages.astype(np.float64)
        each = scaled and trainer.multi_objective_aggregation == "normalize_then_sum"
        if each:
            spreads = {name: _spread(_totals({name: (rewards, 1.0)}), size) for name, (rewards, _) in weighted.items()}
            parts = [w * found.per_source[name] / spreads[name][:, None] for name, (_, w) in weighted.items()]
            advantages_B_T = np.sum(parts, axis=0, dtype=np.float64)
        elif scaled and trainer.scale_rewards != "none":
            totals_B = _totals(weighted)
            spread_B = _spread(totals_B, size if trainer.scale_rewards == "group" else len(totals_B))
            advantages_B_T /= spread_B[:, None]
        if each or getattr(trainer, "normalize_advantages", False):
            known_B = np.any([found.known[name].any(axis=1) for name in measured], axis=0)
            advantages_B_T = _normalised(advantages_B_T, rollout.mask, known_B)
        return advantages_B_T.astype(np.float32)


class TokenAdvantageTrainer(_TokenAdvantages, GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPO trainer with guerdon's advantages: one per token, from several sources.

    Every entry of `reward_funcs` is a source that is paid at the last token, with its entry of `reward_weights`;
    `sources` pay at the tokens where steps end. Each source keeps its baseline, and a failed measurement stays out of
    it. With `tools` or `environment_factory` a completion is a conversation: the tokens of an answer share its
    advantage, tokens of tools have none, and `sources` pay turns (`reward_mode: per_turn`, with `adv_estimator:
    turn_rloo`) or the last one (`terminal`). With `adv_estimator: grpo`, TRL's `scale_rewards` and
    `multi_objective_aggregation` determine the divisor of the difference to the group's mean; other estimators do not
    divide. `mask_truncated_completions` removes responses from the loss only: they are scored, and belong to their
    group.

    Args:
        *args: see `trl.GRPOTrainer`.
        sources: of rewards at tokens (`step_source`), by distinct names. They do not learn.
        algorithm: the estimator; see `guerdon.integrations.text.token_advantages`.
        **kwargs: see `trl.GRPOTrainer`.

    Raises:
        ConfigError: more than one process, sources that learn, names that are taken.
    """

    def _generate(self, prompts: list[Any]) -> Any:
        found = super()._generate(prompts)
        self._tool_masks = found[2]
        return found


def _turns(
    prompt: Sequence[Any], completion: Sequence[Any], before: IntArray, ids: IntArray, mask: IntArray
) -> list[AnsweredTurn]:
    """The answers in a completion with calls of tools, whose tokens are runs of ones in the mask."""
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0))
    replies = [k for k, message in enumerate(completion) if message["role"] == "assistant"]
    return [
        AnsweredTurn([*prompt, *completion[:k]], completion[k], np.concatenate([before, ids[:start]]), ids[start:end])
        for k, start, end in zip(replies, edges[::2], edges[1::2], strict=False)
    ]


class TokenRLOOTrainer(_TokenAdvantages, RLOOTrainer):  # type: ignore[misc]
    """TRL's RLOO trainer with guerdon's advantages: one per token, from several sources.

    TRL's own loss has one probability ratio for a whole response, to which advantages of tokens cannot be given. Here
    every token has its own ratio r_it, clipped as PPO does it, and a response the sum over its tokens:

        loss = -1/B sum_i sum_t min(r_it A_it, clip(r_it, 1 - epsilon, 1 + epsilon_high) A_it)

    Where all tokens of a response have the same advantage and the weights are those that wrote it, its gradient is
    that of TRL's loss. The penalty `beta` is a source of its own (`kl`), paid at every token with -beta times the log
    ratio of policy and reference; TRL adds its sum to the outcome. TRL's `normalize_advantages` is over responses, the
    key of the same name in `algorithm` over tokens.

    Args:
        *args: see `trl.RLOOTrainer`.
        sources: of rewards at tokens (`step_source`), by distinct names. They do not learn.
        algorithm: the estimator; see `guerdon.integrations.text.token_advantages`.
        **kwargs: see `trl.RLOOTrainer`.

    Raises:
        ConfigError: more than one process, sources that learn, names that are taken, `reward_clip_range`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._log_probs: list[Tensor] | None = None  # while responses are scored: of the policy, then of the reference
        super().__init__(*args, **kwargs)
        if self.reward_clip_range or self.aux_loss_enabled:
            raise ConfigError(
                "reward_clip_range and router_aux_loss_coef are not supported: remove the former, set the latter to 0",
                key="reward_clip_range" if self.reward_clip_range else "router_aux_loss_coef",
            )

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._log_probs is not None:
            self._log_probs.append(found[0])
        return found

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._log_probs = []
        try:
            output = super()._generate_and_score_completions(inputs)
            if "pixel_values" in output:
                raise ConfigError("advantages per token are for responses to text: remove the images")
            output["old_per_token_logps"] = self._log_probs[0]
        finally:
            self._log_probs = None
        return output

    def _more_sources(self, output: dict[str, Any], rollout: TextRollout) -> dict[str, tuple[Rewards, SourceTerms]]:
        if not self.beta:
            return {}
        assert self._log_probs is not None
        policy, reference = self._log_probs
        ratio_B_T = (policy - reference).float().cpu().numpy()[:, : rollout.mask.shape[1]]
        kept_B_T = output["completion_mask"].bool().cpu().numpy()[:, : rollout.mask.shape[1]]
        rewards = response_rewards(np.where(rollout.mask & kept_B_T, -ratio_B_T, 0.0), rollout.mask, {})
        return {KL: (rewards, SourceTerms(KL, coefficient=self.beta))}

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        mask_B_T = inputs["completion_mask"]
        advantages_B_T = inputs["advantages"]
        log_probs_B_T, entropies_B_T, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], mask_B_T], dim=1),
            mask_B_T.size(1),
            compute_entropy=True,
        )
        ratio = torch.exp(log_probs_B_T - inputs["old_per_token_logps"])
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        loss_B_T = -torch.min(ratio * advantages_B_T, clipped * advantages_B_T)
        loss: Tensor = (loss_B_T * mask_B_T).sum(dim=1).mean()
        metrics = self._metrics["train" if self.model.training else "eval"]
        tokens = mask_B_T.sum().clamp(min=1)
        low = (ratio < 1 - self.epsilon_low) & (advantages_B_T < 0)
        high = (ratio > 1 + self.epsilon_high) & (advantages_B_T > 0)
        for name, values in (("low_mean", low), ("high_mean", high), ("region_mean", low | high)):
            metrics[f"clip_ratio/{name}"].append(((values * mask_B_T).sum() / tokens).item())
        metrics["entropy"].append(((entropies_B_T * mask_B_T).sum() / tokens).item())
        return loss


def _totals(weighted: Mapping[str, tuple[Rewards, float]]) -> np.ndarray:
    """(B,) weighted sum of the rewards of a response, without sources that failed; NaN where all failed."""
    failed_K_B = np.stack([rewards.failed_B for rewards, _ in weighted.values()])
    paid_K_B = np.stack(
        [weight * rewards.values.sum(axis=1, dtype=np.float64) for rewards, weight in weighted.values()]
    )
    return np.where(failed_K_B.all(axis=0), np.nan, np.where(failed_K_B, 0.0, paid_K_B).sum(axis=0))


def _normalised(advantages_B_T: np.ndarray, mask_B_T: BoolArray, known_B: BoolArray) -> np.ndarray:
    """Advantages with zero mean and unit spread over the responses, where TRL's `normalize_advantages` has them so."""
    means_B = advantages_B_T.sum(axis=1) / np.maximum(mask_B_T.sum(axis=1), 1)
    means_B[~known_B] = np.nan
    if known_B.any():
        centre = np.nanmean(means_B)
        spread_B = _spread(means_B, len(means_B))
        advantages_B_T = (advantages_B_T - centre) / spread_B[:, None]
    return np.where(mask_B_T & known_B[:, None], advantages_B_T, 0.0)


def _spread(values_B: np.ndarray, size: int) -> np.ndarray:
    """(B,) TRL's divisor: standard deviation (n - 1) of the known values of each group of `size`, plus 1e-4."""
    runs = values_B.reshape(-1, size)
    known = np.isfinite(runs)
    count = known.sum(axis=1)
    mean = np.where(known, runs, 0.0).sum(axis=1) / np.maximum(count, 1)
    squares = np.where(known, (runs - mean[:, None]) ** 2, 0.0).sum(axis=1)
    deviation = np.sqrt(squares / np.maximum(count - 1, 1))
    return np.repeat(deviation + 1e-4, size)
