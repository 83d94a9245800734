"""Reward streams of a language model: the verifier's outcome and one model beside it, as sources per token.

A stream is `(B, T)` rewards, where they are paid, and on which responses they are missing. This module does not know
how responses were written or what is learnt from them.

    rewards = build_process_reward(study, policy)
    stream, metrics = rewards.measure(answered, old_log_probs_B_T)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import ConfigError
from guerdon.evaluate.classification import auroc, point
from guerdon.models import implicit_losses as implicit
from guerdon.models.sequence_classifier import SequenceClassifier
from guerdon.policies.text import TextPolicy
from guerdon.policies.tokens import response_step_ends
from guerdon.rl.advantages import min_form_rewards
from guerdon.rl.prime import ImplicitReward
from guerdon.rl.responses import Responses
from guerdon.settings.prime import RewardModelSection
from guerdon.settings.study import Study
from guerdon.types import BoolArray, Failure, FloatArray, IntArray
from guerdon.worlds.reasoning import family_of, is_generated, step_truth

DEFAULT_SEPARATOR = "\n"


@dataclass(frozen=True, eq=False)
class Stream:
    """One source's rewards of B responses.

    Attributes:
        rewards_B_T: 0 where nothing is paid.
        pays_B_T: where the baseline is subtracted; None: every valid token.
        failures: row to why there is no measurement.
    """

    rewards_B_T: FloatArray
    pays_B_T: BoolArray | None = None
    failures: dict[int, Failure] = field(default_factory=dict)

    @property
    def failed_B(self) -> BoolArray:
        """(B,) bool."""
        failed = np.zeros(len(self.rewards_B_T), dtype=np.bool_)
        failed[list(self.failures)] = True
        return failed


class ProcessReward(Protocol):
    """A reward model beside the verifier."""

    name: str

    def measure(self, answered: Responses, old_log_probs_B_T: Tensor | None) -> tuple[Stream, dict[str, float | None]]:
        """Rewards of the responses; an online model learns from their outcomes."""
        ...

    def look(self, answered: Responses, old_log_probs_B_T: Tensor | None) -> Stream:
        """Rewards of the responses, without learning anything."""
        ...

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that changes."""
        ...

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        ...


def build_process_reward(study: Study, policy: TextPolicy) -> ProcessReward | None:
    """The `reward_model` section's model; None without one."""
    section = study.reward_model
    if section is None:
        return None
    if section.rm_type == "prime":
        return PrimeReward(ImplicitReward(study, policy), section, study)
    if section.rm_type == "exact":
        assert study.data is not None
        if study.data.type != "generated":
            raise ConfigError("reward_model.rm_type exact needs steps that can be checked: data.type generated")
        return ExactReward()
    return OutcomeModelReward(SequenceClassifier(str(section.path)), section)


class PrimeReward:
    """Implicit process rewards, learnt online."""

    name = "prime"

    def __init__(self, model: ImplicitReward, section: RewardModelSection, study: Study) -> None:
        self.model, self.section = model, section
        self._credit = study.text_algorithm.credit
        self._temperature = study.text_algorithm.credit_temperature

    def measure(self, answered: Responses, old_log_probs_B_T: Tensor | None) -> tuple[Stream, dict[str, float | None]]:
        """Score, and learn as `update` says."""
        scored = self.model.score(
            answered.batch,
            torch.from_numpy(answered.outcomes_B),
            torch.from_numpy(answered.known_B),
            torch.from_numpy(answered.groups_B),
            old_log_probs_B_T,
        )
        stream = self._stream(scored.q_B_T, answered)
        return stream, scored.metrics | _step_quality(scored.q_B_T.numpy(), answered)

    def look(self, answered: Responses, old_log_probs_B_T: Tensor | None) -> Stream:
        """Score with the weights as they are."""
        return self._stream(self.model.log_ratios(answered.batch, old_log_probs_B_T), answered)

    def _stream(self, q_B_T: Tensor, answered: Responses) -> Stream:
        failures = {
            int(i): Failure("non_finite", "a log-ratio is not finite")
            for i in np.flatnonzero(~torch.isfinite(q_B_T).all(-1).numpy())
        }
        mask = torch.from_numpy(answered.batch.mask_B_T.copy())
        mask[list(failures)] = False
        granularity = self.section.prime_granularity
        ends = steps_of(answered, self.model.phi.tokenizer) if granularity == "step" else None
        if ends is not None and failures:
            ends = tuple(e if i not in failures else e[:0] for i, e in enumerate(ends))
        scores = implicit.granular_scores(q_B_T, mask, granularity, ends)
        pays = implicit.paying_tokens(mask, granularity, ends).numpy()
        if self._credit == "min_form":
            shaped = min_form_rewards(scores.numpy(), pays, temperature=self._temperature)
            scores = torch.from_numpy(np.asarray(shaped, dtype=np.float32))
        if self.section.prime_norm == "batch_norm":
            scores = implicit.batch_norm(scores, mask)
        rewards = np.asarray(scores.numpy(), dtype=np.float32)
        return Stream(rewards, pays if granularity == "whole" else None, failures)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Of the model."""
        return self.model.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Of the model."""
        self.model.load_state_dict(tensors, values)


class ExactReward:
    """The truth about each step: +1 for a true line, -1 for another, at the end of the step. The upper reference."""

    name = "exact"

    def measure(self, answered: Responses, old_log_probs_B_T: Tensor | None) -> tuple[Stream, dict[str, float | None]]:
        """Check every step."""
        stream = self.look(answered, old_log_probs_B_T)
        return stream, {"steps_right": _share(stream.rewards_B_T)}

    def look(self, answered: Responses, old_log_probs_B_T: Tensor | None) -> Stream:
        """Check every step."""
        rewards = np.zeros(answered.batch.mask_B_T.shape, dtype=np.float32)
        for row, (ends, correct) in enumerate(true_steps(answered)):
            for end, right in zip(ends, correct, strict=True):
                rewards[row, end] += 1.0 if right else -1.0
        return Stream(rewards)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Nothing changes."""
        return {}, {}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Nothing changes."""


class OutcomeModelReward:
    """A sequence classifier's judgement of the whole response, paid at its end."""

    name = "rm"

    def __init__(self, model: SequenceClassifier, section: RewardModelSection) -> None:
        self.model, self.section = model, section

    def measure(self, answered: Responses, old_log_probs_B_T: Tensor | None) -> tuple[Stream, dict[str, float | None]]:
        """Score."""
        return self.look(answered, old_log_probs_B_T), {}

    def look(self, answered: Responses, old_log_probs_B_T: Tensor | None) -> Stream:
        """Score."""
        batch = answered.batch
        values_B = self.model.score(answered.prompts, answered.texts, micro=self.section.micro_batch_size)
        last = np.zeros(batch.mask_B_T.shape, dtype=np.bool_)
        rows = np.flatnonzero(batch.lengths_B > 0)
        last[rows, batch.lengths_B[rows] - 1] = True
        bad = ~np.isfinite(values_B)
        failures = {int(i): Failure("non_finite", "the classifier's logit is not finite") for i in np.flatnonzero(bad)}
        paid = np.where(bad, 0.0, values_B)[:, None]
        return Stream(np.where(last, paid, 0.0).astype(np.float32), last, failures)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Nothing changes."""
        return {}, {}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Nothing changes."""


def steps_of(answered: Responses, tokenizer: Any) -> tuple[IntArray, ...]:
    """Index of the last token of each step of each response; steps end at the task's own separator."""
    first = answered.prompts[0] if answered.prompts else None
    separator = family_of(first).separator if first is not None and is_generated(first) else DEFAULT_SEPARATOR
    return response_step_ends(tokenizer, answered.batch, separator)


def true_steps(answered: Responses) -> list[tuple[list[int], tuple[bool, ...]]]:
    """For each response of a generated task: the last token of each step, and whether the step is true."""
    found = []
    for row, (prompt, text) in enumerate(zip(answered.prompts, answered.texts, strict=True)):
        truth = step_truth(prompt, text)
        ends_T = answered.char_ends[row]
        last = max(len(ends_T) - 1, 0)
        places = [min(int(np.searchsorted(ends_T, end, side="left")), last) for _, end in truth.spans]
        found.append((places, truth.correct) if len(ends_T) else ([], ()))
    return found


def _step_quality(q_B_T: np.ndarray, answered: Responses) -> dict[str, float | None]:
    """Does the sum of q over a step tell true steps from others? Where the task knows its steps."""
    if not answered.prompts or not is_generated(answered.prompts[0]):
        return {}
    labels, scores = [], []
    for row, (ends, correct) in enumerate(true_steps(answered)):
        start = 0
        for end, right in zip(ends, correct, strict=True):
            scores.append(float(q_B_T[row, start : end + 1].sum()))
            labels.append(right)
            start = end + 1
    if len(set(labels)) < 2:
        return {"step_auroc": None}
    return {"step_auroc": point(auroc, labels, scores)}


def _share(rewards: np.ndarray) -> float | None:
    paid = rewards[rewards != 0]
    return float((paid > 0).mean()) if paid.size else None
