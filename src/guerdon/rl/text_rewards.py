"""Reward streams of a language model: the verifier's outcome and one model beside it, as sources per token.

A stream is `(B, T)` rewards, where they are paid, and on which responses they are missing. This module does not know
how responses were written or what is learnt from them.

    rewards = build_process_reward(study, policy)
    stream, _, metrics = rewards.measure(Asked(answered, old_log_probs_B_T), None)
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
from guerdon.policies.tokens import step_ends
from guerdon.rl.advantages import min_form_rewards
from guerdon.rl.baselines import last_valid
from guerdon.rl.prime import ImplicitReward, Lesson
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


@dataclass(frozen=True, eq=False)
class Asked:
    """Responses to be scored, and what the policy that acted says of them.

    Attributes:
        answered: the responses.
        old_B_T: (B, T) log-probabilities of the policy that acted, where the reward model compares with them.
    """

    answered: Responses
    old_B_T: Tensor | None = None


class ProcessReward(Protocol):
    """A reward model beside the verifier."""

    name: str

    def measure(self, asked: Asked, greedy: Asked | None) -> tuple[Stream, Stream | None, dict[str, float | None]]:
        """Rewards of the responses, and of greedy ones in the same unit; an online model learns from the outcomes."""
        ...

    def look(self, asked: Asked) -> Stream:
        """Rewards of the responses, without learning anything."""
        ...

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that changes."""
        ...

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        ...


def build_process_reward(study: Study, policy: TextPolicy) -> ProcessReward | None:
    """The `reward_model` section's model; None without one.

    Raises:
        ConfigError: it needs steps that can be checked, and the prompts have none.
        CheckpointError: it cannot be read.
    """
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

    def measure(self, asked: Asked, greedy: Asked | None) -> tuple[Stream, Stream | None, dict[str, float | None]]:
        """Score, and learn as `update` says; greedy responses are scored by the same weights."""
        late = self.model.settings.update == "before"
        greedy_q = None if greedy is None or late else self._log_ratios(greedy)
        scored = self.model.score(self.lesson(asked))
        if greedy is not None and late:
            greedy_q = self._log_ratios(greedy)
        stream, unit = self._stream(scored.q_B_T, asked.answered, None)
        beside = None
        if greedy is not None and greedy_q is not None:
            beside, _ = self._stream(greedy_q, greedy.answered, unit)
        return stream, beside, scored.metrics | _step_quality(scored.q_B_T.numpy(), asked.answered)

    def look(self, asked: Asked) -> Stream:
        """Score with the weights as they are."""
        return self._stream(self._log_ratios(asked), asked.answered, None)[0]

    def lesson(self, asked: Asked) -> Lesson:
        """The responses as the model learns from them."""
        answered = asked.answered
        return self.model.lesson(
            answered.batch,
            torch.from_numpy(answered.outcomes_B),
            torch.from_numpy(answered.known_B),
            torch.from_numpy(answered.groups_B),
            asked.old_B_T,
        )

    def _log_ratios(self, asked: Asked) -> Tensor:
        return self.model.log_ratios(self.lesson(asked))

    def _stream(self, q_B_T: Tensor, answered: Responses, unit: Tensor | None) -> tuple[Stream, Tensor]:
        """Rewards of the configured granularity and norm, and the unit that `batch_norm` divides by."""
        finite = torch.isfinite(q_B_T).all(-1)
        failures = {int(i): Failure("non_finite", "a log-ratio is not finite") for i in np.flatnonzero(~finite.numpy())}
        mask = torch.from_numpy(answered.batch.mask_B_T)
        granularity = self.section.prime_granularity
        ends = steps_of(answered) if granularity == "step" else None
        scores = implicit.granular_scores(torch.where(finite[:, None], q_B_T, 0.0), mask, granularity, ends)
        pays = implicit.paying_tokens(mask, granularity, ends).numpy()
        if self._credit == "min_form":
            shaped = min_form_rewards(scores.numpy(), pays, temperature=self._temperature)
            scores = torch.from_numpy(np.asarray(shaped, dtype=np.float32))
        unit = implicit.largest_return(scores, mask) if unit is None else unit
        if self.section.prime_norm == "batch_norm":
            scores = implicit.batch_norm(scores, mask, unit=unit)
        rewards = np.asarray(scores.numpy(), dtype=np.float32)
        return Stream(rewards, pays if granularity == "whole" else None, failures), unit

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Of the model."""
        return self.model.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Of the model."""
        self.model.load_state_dict(tensors, values)


class _Fixed:
    """A source that never changes."""

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Nothing changes."""
        return {}, {}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Nothing changes."""


class ExactReward(_Fixed):
    """The truth about each step: 1 for every token of a line that follows from the lines before, else 0.

    The upper reference. Lines after a slip can earn again by reasoning well from it: what is paid does not depend on
    luck elsewhere, and a response that earns all is the true solution. Nothing is below 0: with a penalty for wrong
    lines the best thing to do after a slip is to stop writing.
    """

    name = "exact"

    def measure(self, asked: Asked, greedy: Asked | None) -> tuple[Stream, Stream | None, dict[str, float | None]]:
        """Check every step."""
        stream = self.look(asked)
        return (
            stream,
            None if greedy is None else self.look(greedy),
            {"tokens_right": _share(stream.rewards_B_T, asked.answered.batch.mask_B_T)},
        )

    def look(self, asked: Asked) -> Stream:
        """Check every step."""
        rewards = np.zeros(asked.answered.batch.mask_B_T.shape, dtype=np.float32)
        for row, (ends, sound) in enumerate(true_steps(asked.answered)):
            start = 0
            for end, right in zip(ends, sound, strict=True):
                rewards[row, start : end + 1] = float(right)
                start = end + 1
        return Stream(rewards)


class OutcomeModelReward(_Fixed):
    """A sequence classifier's judgement of the whole response, paid at its end."""

    name = "rm"

    def __init__(self, model: SequenceClassifier, section: RewardModelSection) -> None:
        self.model, self.section = model, section

    def measure(self, asked: Asked, greedy: Asked | None) -> tuple[Stream, Stream | None, dict[str, float | None]]:
        """Score."""
        return self.look(asked), None if greedy is None else self.look(greedy), {}

    def look(self, asked: Asked) -> Stream:
        """Score."""
        answered, micro = asked.answered, self.section.micro_batch_size
        values_B, failures = self.model.score(answered.prompts, answered.texts, micro=micro)
        last = last_valid(answered.batch.mask_B_T)
        return Stream(np.where(last, values_B[:, None], 0.0).astype(np.float32), last, failures)


def separator_of(answered: Responses) -> str:
    """What ends a step: the task's own separator, or a new line."""
    first = answered.prompts[0] if answered.prompts else None
    return family_of(first).separator if first is not None and is_generated(first) else DEFAULT_SEPARATOR


def steps_of(answered: Responses) -> tuple[IntArray, ...]:
    """Index of the last token of each step of each response; an empty response has none."""
    separator = separator_of(answered)
    return tuple(
        step_ends(ends_T, text, separator) for ends_T, text in zip(answered.char_ends, answered.texts, strict=True)
    )


def true_steps(answered: Responses) -> list[tuple[list[int], tuple[bool, ...]]]:
    """For each response of a generated task: the last token of each step, and whether it follows from those before."""
    found = []
    for row, (prompt, text) in enumerate(zip(answered.prompts, answered.texts, strict=True)):
        truth = step_truth(prompt, text)
        ends_T = answered.char_ends[row]
        last = max(len(ends_T) - 1, 0)
        places = [min(int(np.searchsorted(ends_T, end, side="left")), last) for _, end in truth.spans]
        found.append((places, truth.follows) if len(ends_T) else ([], ()))
    return found


def _step_quality(q_B_T: np.ndarray, answered: Responses) -> dict[str, float | None]:
    """Does the sum of q over a step tell sound steps from first errors? Where the task knows its steps.

    Steps behind the first error do not count (as in ProcessBench, 2412.06559): the response is lost already.
    """
    if not answered.prompts or not is_generated(answered.prompts[0]):
        return {}
    labels, scores = [], []
    finite_B = np.isfinite(q_B_T).all(axis=1)
    for row, (ends, sound) in enumerate(true_steps(answered)):
        if not finite_B[row]:
            continue
        start = 0
        for end, right in zip(ends, sound, strict=True):
            scores.append(float(q_B_T[row, start : end + 1].sum()))
            labels.append(right)
            start = end + 1
            if not right:
                break
    return {"step_auroc": point(auroc, labels, scores)}


def _share(rewards_B_T: np.ndarray, mask_B_T: BoolArray) -> float | None:
    return float(rewards_B_T[mask_B_T].mean()) if mask_B_T.any() else None
