"""Reward streams of a language model beside the verifier's outcome, any number of them, each by its own name.

The `reward_model` section gives one (`prime`, `exact` or `rm`), `reward.sources` the others. This module does not know
how responses were written or what is learnt from them.

    for name, source in build_process_rewards(study, policy).items():
        stream, _, metrics = source.measure(Asked(answered, old_log_probs_B_T), None)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import ConfigError
from guerdon.evaluate.classification import auroc, point
from guerdon.models import implicit_losses as implicit
from guerdon.models.load import load_reward_model
from guerdon.models.sequence_classifier import SequenceClassifier
from guerdon.models.text_load import load_text_model
from guerdon.policies.text import TextPolicy
from guerdon.rl.advantages import last_valid, min_form_rewards
from guerdon.rl.prime import ImplicitReward, Lesson
from guerdon.rl.responses import Responses
from guerdon.rl.text_model_reward import ModelReward
from guerdon.rl.text_steps import steps_of, true_steps
from guerdon.rl.text_streams import Asked, Facts, FixedReward, ProcessReward, Stream
from guerdon.settings.prime import RewardModelSection
from guerdon.settings.reward import RewardModelSettings
from guerdon.settings.study import Study
from guerdon.settings.text_sources import SECTION_NAMES
from guerdon.types import BoolArray, Failure, RewardModel
from guerdon.worlds.reasoning import is_generated


def build_process_rewards(study: Study, policy: TextPolicy) -> dict[str, ProcessReward]:
    """Every source of reward beside the verifier, by name: that of `reward_model` first, then `reward.sources`.

    Raises:
        ConfigError: it needs steps that can be checked, and the prompts have none; or it measures something else.
        CheckpointError: it cannot be read.
    """
    sources: dict[str, ProcessReward] = {}
    if study.reward_model is not None:
        sources[SECTION_NAMES[study.reward_model.rm_type]] = _of_section(study.reward_model, study, policy)
    algorithm = study.text_algorithm
    for name, settings in study.text_sources.items():
        sources[name] = ModelReward(
            name, _load(settings.model), settings, credit=algorithm.credit, temperature=algorithm.credit_temperature
        )
    return sources


def _load(settings: RewardModelSettings) -> RewardModel:
    if settings.remote is not None:
        return load_reward_model("remote", remote=settings.remote.in_a_run())
    path = str(settings.checkpoint_path)
    return load_text_model(path, adapter=settings.adapter, micro_batch_size=settings.micro_batch_size)


def _of_section(section: RewardModelSection, study: Study, policy: TextPolicy) -> ProcessReward:
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

    def __init__(self, model: ImplicitReward, section: RewardModelSection, study: Study) -> None:
        if section.prime_norm_shards > 1 and study.text_algorithm.adv_estimator == "remax":
            raise ConfigError(
                "reward_model.prime_norm_shards gives every part of the batch a unit of its own, and remax compares "
                "with greedy responses that are in none; set it to 1"
            )
        self.model, self.section = model, section
        self._credit = study.text_algorithm.credit
        self._temperature = study.text_algorithm.credit_temperature

    def measure(self, asked: Asked, greedy: Asked | None) -> tuple[Stream, Stream | None, Facts]:
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
            shards = self._shards(len(scores))
            scores = implicit.batch_norm(scores, mask, unit=unit if shards is None else None, shards_B=shards)
        rewards = np.asarray(scores.numpy(), dtype=np.float32)
        return Stream(rewards, pays if granularity == "whole" else None, failures), unit

    def _shards(self, rows: int) -> Tensor | None:
        """(B,) the part of the batch that a response belongs to; None where all share one unit."""
        parts = self.section.prime_norm_shards
        return None if parts == 1 else torch.arange(rows) * parts // max(rows, 1)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Of the model."""
        return self.model.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Of the model."""
        self.model.load_state_dict(tensors, values)


class ExactReward(FixedReward):
    """The truth about each step: 1 for every token of a line that follows from the lines before, else 0.

    The upper reference. Lines after a slip can earn again by reasoning well from it: what is paid does not depend on
    luck elsewhere, and a response that earns all is the true solution. Nothing is below 0: with a penalty for wrong
    lines the best thing to do after a slip is to stop writing.
    """

    def measure(self, asked: Asked, greedy: Asked | None) -> tuple[Stream, Stream | None, Facts]:
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


class OutcomeModelReward(FixedReward):
    """A sequence classifier's judgement of the whole response, paid at its end."""

    def __init__(self, model: SequenceClassifier, section: RewardModelSection) -> None:
        self.model, self.section = model, section

    def measure(self, asked: Asked, greedy: Asked | None) -> tuple[Stream, Stream | None, Facts]:
        """Score."""
        return self.look(asked), None if greedy is None else self.look(greedy), {}

    def look(self, asked: Asked) -> Stream:
        """Score."""
        answered, micro = asked.answered, self.section.micro_batch_size
        values_B, failures = self.model.score(answered.prompts, answered.texts, micro=micro)
        last = last_valid(answered.batch.mask_B_T)
        return Stream(np.where(last, values_B[:, None], 0.0).astype(np.float32), last, failures)


def _step_quality(q_B_T: np.ndarray, answered: Responses) -> Facts:
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
            if end >= start:  # else its only token also ends the step before, and says nothing of it alone
                scores.append(float(q_B_T[row, start : end + 1].sum()))
                labels.append(right)
            start = end + 1
            if not right:
                break
    return {"step_auroc": point(auroc, labels, scores)}


def _share(rewards_B_T: np.ndarray, mask_B_T: BoolArray) -> float | None:
    return float(rewards_B_T[mask_B_T].mean()) if mask_B_T.any() else None
