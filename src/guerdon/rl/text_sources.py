"""Reward sources of language models: the verifier's outcome, then any number of reward models, by name.

The `reward_model` section gives one (`prime`, `exact` or `rm`), `reward.sources` the others. A reward model's values
of steps or of whole responses are shaped and paid at tokens: `per_step` pays each step at its last token, `per_token`
at each of its tokens, `terminal` the whole response at its end. A failed measurement stays a failure of its response.

    for name, source in build_text_sources(study, policy).items():
        rewards[name] = source.measure(rollout)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from guerdon.collect.text import Responses, TextRollout, generated
from guerdon.errors import ConfigError
from guerdon.evaluate.scores import score_episodes, solution_value
from guerdon.evaluate.text_suite import RECORD, attacks_that_fooled, third_party_folder
from guerdon.models import text_losses as implicit
from guerdon.models.load import load_source_model
from guerdon.models.sequence_classifier import SequenceClassifier
from guerdon.models.text_load import find_text_model
from guerdon.policies.text import TextPolicy
from guerdon.rl import shaping
from guerdon.rl.advantages import last_valid
from guerdon.rl.prime import PrimeReward
from guerdon.rl.reward_source import GroundTruth, RewardSource, SourceTerms, failed_rows, raw_scores, with_greedy
from guerdon.rl.text_steps import Cut, cut_steps, step_auroc, true_steps
from guerdon.settings.prime import SECTION_NAMES
from guerdon.settings.reward import SourceSettings
from guerdon.settings.study import Study
from guerdon.types import Episode, Failure, FloatArray, Metrics, RewardModel, Rewards, Score

PROBABILITIES = (0.0, 1.0)
VERIFIER = "verifier"


def build_text_sources(
    study: Study, policy: TextPolicy, *, system_prompt: str | None = None
) -> dict[str, RewardSource[TextRollout]]:
    """Every source of a study, by name: the verifier, that of `reward_model`, then `reward.sources`.

    Args:
        study: the resolved configuration.
        policy: of the run, at its start; an implicit reward model shares its weights where that is possible.
        system_prompt: of the run's prompts, for a reward model that is saved at the end.

    Raises:
        ConfigError: it needs steps that can be checked, and the prompts have none; or it measures something else.
        CheckpointError: it cannot be read.
    """
    section, algorithm = study.reward_model, study.text_algorithm
    min_form = algorithm.credit_temperature if algorithm.credit == "min_form" else None
    sources: dict[str, RewardSource[TextRollout]] = {}
    for name, terms in terms_of(study).items():
        if name == VERIFIER:
            sources[name] = GroundTruth(terms, at_end=True)
        elif name in study.text_sources:
            settings = study.text_sources[name]
            sources[name] = TextReward(terms, load_source_model(settings.model), settings, min_form=min_form)
        elif section is not None and section.rm_type == "prime":
            sources[name] = PrimeReward(terms, study, policy, system_prompt=system_prompt)
        elif section is not None and section.rm_type == "exact":
            if study.data is None or study.data.type != "generated":
                raise ConfigError("reward_model.rm_type exact needs steps that can be checked: data.type generated")
            sources[name] = ExactReward(terms)
        elif section is not None:
            classifier = SequenceClassifier(str(section.path))
            sources[name] = OutcomeModelReward(terms, classifier, micro_batch_size=section.micro_batch_size)
    return sources


def terms_of(study: Study) -> dict[str, SourceTerms]:
    """How every source of a study counts, by name: the verifier, that of `reward_model`, then `reward.sources`."""
    algorithm, section = study.text_algorithm, study.reward_model
    outcome = study.reward.env_weight() if study.text_sources else 1.0
    found = [SourceTerms(VERIFIER, algorithm.verifier_gamma, outcome if section is None else section.verifier_coef)]
    if section is not None:
        found.append(
            SourceTerms(
                SECTION_NAMES[section.rm_type],
                algorithm.reward_model_gamma,
                section.rm_coef,
                section.rm_coef_schedule,
                section.on_failure,
            )
        )
    for name, source in study.text_sources.items():
        gamma = algorithm.gamma if source.gamma is None else source.gamma
        found.append(SourceTerms(name, gamma, source.reward_weight, on_failure=source.on_failure))
    return {terms.name: terms for terms in found}


class FixedReward(RewardSource[TextRollout]):
    """A source that never changes: it implements `score`."""

    def measure(self, rollout: TextRollout, *, learn: bool = True) -> Rewards:
        """Score the responses, and the greedy ones."""
        own = self.score(rollout)
        return with_greedy(own, None if rollout.greedy is None else self.score(rollout.greedy))

    def score(self, rollout: TextRollout) -> Rewards:
        """Rewards of the rollout without its greedy responses."""
        raise NotImplementedError


class ExactReward(FixedReward):
    """The truth about each step: 1 for every token of a line that follows from the lines before, else 0.

    The upper reference. Lines after a slip can earn again by reasoning well from it: what is paid does not depend on
    luck elsewhere, and a response that earns all is the true solution. Nothing is below 0: with a penalty for wrong
    lines the best thing to do after a slip is to stop writing.
    """

    def score(self, rollout: TextRollout) -> Rewards:
        """Check every step."""
        mask = rollout.mask
        values = np.zeros(mask.shape, dtype=np.float32)
        for row, (ends, sound) in enumerate(true_steps(rollout.inputs)):
            start = 0
            for end, right in zip(ends, sound, strict=True):
                values[row, start : end + 1] = float(right)
                start = end + 1
        share = float(values[mask].mean()) if mask.any() else None
        return Rewards(values, failed_rows([], mask), measured=len(values), metrics={"tokens_right": share})


class OutcomeModelReward(FixedReward):
    """A sequence classifier's score of the whole response, paid at its end."""

    def __init__(self, terms: SourceTerms, model: SequenceClassifier, *, micro_batch_size: int) -> None:
        super().__init__(terms)
        self.model, self.micro_batch_size = model, micro_batch_size

    def score(self, rollout: TextRollout) -> Rewards:
        """Score."""
        responses, mask = rollout.inputs, rollout.mask
        values_B, failures = self.model.score(responses.prompts, responses.texts, micro=self.micro_batch_size)
        last = last_valid(mask)
        return Rewards(
            np.where(last, values_B[:, None], 0.0).astype(np.float32),
            failed_rows(list(failures), mask),
            paid=last,
            failures=tuple((row, 0, failure) for row, failure in failures.items()),
            measured=len(values_B),
        )


class TextReward(FixedReward):
    """One entry of `reward.sources`.

    Args:
        terms: how it counts.
        model: scores steps or whole responses.
        settings: how its values become rewards.
        min_form: temperature of a soft minimum that makes the rewards of a response add up to about the smallest
            (per_step only); None: they add up to their sum.

    Raises:
        ConfigError: the settings ask for what this model does not measure.
    """

    def __init__(
        self, terms: SourceTerms, model: RewardModel, settings: SourceSettings, *, min_form: float | None = None
    ) -> None:
        super().__init__(terms)
        self.model, self.settings = model, settings
        self._temperature = min_form if settings.reward_mode == "per_step" else None
        self._check()

    @property
    def threshold(self) -> float:
        """The one threshold: the configuration's, else the model's own, else a half."""
        own = self.model.info.success_threshold
        given = self.settings.reward_threshold
        return given if given is not None else 0.5 if own is None else own

    def score(self, rollout: TextRollout) -> Rewards:
        """Score; and how well values separate right responses from wrong ones."""
        responses, mask = rollout.inputs, rollout.mask
        cuts = cut_steps(responses, self.settings.splitter)
        scores = self._scores(responses, cuts)
        values = np.zeros(mask.shape, dtype=np.float32)
        failures: dict[int, Failure] = {}
        for row, score in scores.items():
            paid = self._paid(score)
            if isinstance(paid, Failure):
                failures[row] = paid
            else:
                self._pay(values[row], cuts[row], paid)
        terminal = self.settings.reward_mode == "terminal"
        rewards = Rewards(
            values,
            failed_rows(list(failures), mask),
            paid=last_valid(mask) if terminal else None,
            failures=tuple((row, 0, failure) for row, failure in failures.items()),
            measured=len(values),
        )
        metrics = _pair_metrics(rollout, rewards)
        if self.model.info.granularity != "step":
            return replace(rewards, metrics=metrics)
        steps = [scores[row].steps if row in scores else None for row in range(len(cuts))]
        raw = raw_scores(
            [
                (row, int(end), float(value))
                for row, values_S in enumerate(steps)
                if values_S is not None
                for end, value in zip(cuts[row].ends, values_S, strict=True)
            ],
            self.threshold,
        )
        known = len(raw.values_N) > 0
        metrics["step_value"] = float(raw.values_N.mean()) if known else None
        metrics["steps_called_right"] = float((raw.values_N >= raw.threshold).mean()) if known else None
        if generated(responses):
            metrics["step_auroc"] = step_auroc(responses, cuts, steps)
        return replace(rewards, metrics=metrics, scores=raw)

    def _scores(self, responses: Responses, cuts: tuple[Cut, ...]) -> dict[int, Score]:
        """Of every response that has a token; equal responses to one question are scored once."""
        places: dict[tuple[str, tuple[str, ...]], int] = {}
        episodes: list[Episode] = []
        which: dict[int, int] = {}
        for row, (prompt, cut) in enumerate(zip(responses.prompts, cuts, strict=True)):
            if not cut.texts:
                continue
            key = (prompt.question, cut.texts)
            if key not in places:
                places[key] = len(episodes)
                meta = dict(prompt.extra_info)
                episodes.append(Episode(id=prompt.id, task=prompt.question, texts=cut.texts, meta=meta))
            which[row] = places[key]
        scores = score_episodes(self.model, episodes)
        return {row: scores[place] for row, place in which.items()}

    def _paid(self, score: Score) -> np.ndarray | Failure:
        """(S,) rewards of the steps of a response, or (1,) of the whole; or why there are none."""
        s = self.settings
        if s.reward_mode == "terminal":
            value = _whole(score, s)
            if isinstance(value, Failure):
                return value
            values = np.array([value], dtype=np.float64)
        elif score.failure is not None:
            return score.failure
        elif score.steps is None:
            return Failure("no_step_values", "the model scored the whole response only")
        else:
            values = np.asarray(score.steps, dtype=np.float64)
        match s.shaping:
            case "threshold":
                values = shaping.threshold_reward(
                    values, threshold=self.threshold, success=s.success_reward, fail=s.effective_fail_reward
                )
            case "signed":
                values = 2.0 * values - 1.0
            case "relative":
                values = shaping.relative_reward(values, previous=0.0)
            case _:
                pass
        values = values * s.reward_coef
        if self._temperature is None:
            return values
        every = np.ones((1, len(values)), dtype=np.bool_)
        return np.asarray(shaping.min_form_rewards(values[None], every, temperature=self._temperature)[0])

    def _pay(self, rewards_T: FloatArray, cut: Cut, paid_S: np.ndarray) -> None:
        """Put rewards at tokens, in place. Steps that end in one token are paid there together."""
        match self.settings.reward_mode:
            case "terminal":
                rewards_T[cut.ends[-1]] = paid_S[0]
            case "per_step":
                np.add.at(rewards_T, cut.ends, paid_S.astype(np.float32))
            case "per_token":
                start = 0
                for end, paid in zip(cut.ends, paid_S, strict=True):
                    rewards_T[min(start, end) : end + 1] += paid
                    start = end + 1

    def _check(self) -> None:
        """The settings fit what the model measures."""
        info, s, where = self.model.info, self.settings, f"reward.sources.{self.name}"
        if info.modality != "text":
            raise ConfigError(f"{where}: {info.name} looks at {info.modality}s, not at text")
        steps = info.granularity == "step"
        if not steps and s.reward_mode != "terminal":
            raise ConfigError(f"{where}: {info.name} judges whole responses only, so reward_mode must be terminal")
        if steps and s.reward_mode == "terminal" and s.aggregation is None:
            raise ConfigError(f"{where}: {info.name} judges steps; say by aggregation how their values become one")
        if not steps and s.aggregation is not None:
            raise ConfigError(f"{where}: aggregation would do nothing, {info.name} judges whole responses; remove it")
        bounded = PROBABILITIES[0] <= info.range[0] and info.range[1] <= PROBABILITIES[1]
        if s.shaping == "signed" and not bounded:
            raise ConfigError(f"{where}: shaping signed needs probabilities; {info.name} gives {info.range}")
        if s.shaping == "threshold" and not bounded and s.reward_threshold is None and info.success_threshold is None:
            raise ConfigError(f"{where}: shaping threshold needs reward_threshold; {info.name} gives {info.range}")


def _pair_metrics(rollout: TextRollout, rewards: Rewards) -> Metrics:
    """How well summed rewards order the responses to a prompt."""
    pairs = implicit.dpo_acc(
        torch.from_numpy(rewards.values.sum(axis=1, dtype=np.float64)),
        torch.from_numpy(rollout.outcomes_B),
        torch.from_numpy(rollout.groups_B),
        known_B=torch.from_numpy(rollout.known_B & ~rewards.failed_B),
    )
    return {"dpo_acc": pairs.accuracy, "dpo_acc_coverage": pairs.coverage}


def _whole(score: Score, settings: SourceSettings) -> float | Failure:
    """One value of a response: its steps together where they are judged, else its total."""
    if score.failure is not None:
        return score.failure
    if settings.aggregation is not None:
        return solution_value(score, settings.aggregation)
    return Failure("no_total", "the model judged steps only") if score.total is None else float(score.total)


# What a run must say about its reward models.


def attack_warnings(study: Study) -> list[str]:
    """A line for each reward model of a language study that is not known to withstand attacks.

    Raises:
        DataError: a report card cannot be read.
    """
    lines = []
    for name, path in _trained_models(study).items():
        folder = card_folder(study, path)
        fooled = None if folder is None else attacks_that_fooled(folder)
        if fooled:
            lines.append(
                f"reward source {name}: these attacks fooled its model: {', '.join(fooled)} (see "
                f"{folder}/evaluation.txt). A policy that is rewarded by it may learn them; watch the hacking alarm"
            )
        elif fooled is None:
            lines.append(
                f"reward source {name}: its model ({path}) was never attacked, so how easily it is fooled is not "
                "known. Run `guerdon evaluate` on a study that trains it, or that names it in evaluate.models"
            )
    return lines


def card_folder(study: Study, path: str) -> Path | None:
    """The folder with the evaluation of the model at this path; None where there is none.

    It is the folder of its checkpoint, its own, or that of `evaluate.models`.

    Raises:
        CheckpointError: the path means several models.
    """
    own = find_text_model(path)
    places = [Path(path)] if own is None else [own.parent]
    evaluate = study.text_evaluate
    if evaluate is not None:
        places += [third_party_folder(study, name) for name, one in evaluate.models.items() if one.path == path]
    return next((place for place in places if (place / RECORD).is_file()), None)


def _trained_models(study: Study) -> dict[str, str]:
    """Paths of the reward models that were trained before the run, by the name of their source."""
    found = {name: source.model.origin for name, source in study.text_sources.items()}
    section = study.reward_model
    if section is not None and section.path is not None:
        found["rm"] = section.path
    return found
