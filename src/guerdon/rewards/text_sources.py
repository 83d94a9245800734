"""Reward sources of language models that do not change during a run: true steps, and reward models of text.

A reward model's values of steps or of whole responses are shaped and paid at tokens: `per_step` pays each step at its
last token, `per_token` at each of its tokens, `terminal` the whole response at its end. A failed measurement stays a
failure of its response. Of conversations with an agent, `per_turn` pays every turn and `terminal` the last one; each
is scored with all that was said before it. The implicit model, which learns, is `guerdon.rewards.prime`.

    source = TextReward(SourceTerms("prm"), model, settings)
    rewards = source.measure(rollout)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from guerdon.collect.text import Responses, TextRollout, generated
from guerdon.errors import ConfigError
from guerdon.models.scores import score_episodes, solution_value
from guerdon.models.text import text_losses as implicit
from guerdon.policies.batches.tokens import judged_texts
from guerdon.reading.chats import asked_key
from guerdon.rewards import shaping
from guerdon.rewards.source import ModelReward, RewardSource, SourceTerms, raw_scores, response_rewards
from guerdon.rewards.text_steps import Cut, cut_steps, step_auroc, true_steps
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.reward_models import relative
from guerdon.settings.reward_source import TextSource
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.verifier import Verifier, outcome
from guerdon.types import (
    BoolArray,
    Episode,
    Failure,
    FloatArray,
    IntArray,
    Metrics,
    RewardModel,
    Rewards,
    Score,
    last_valid,
)

PROBABILITIES = (0.0, 1.0)


class ExactReward(RewardSource[Responses]):
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
        return response_rewards(values, mask, {}, metrics={"tokens_right": share})


class TextReward(ModelReward[Responses]):
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

    settings: TextSource

    def __init__(
        self, terms: SourceTerms, model: RewardModel, settings: TextSource, *, min_form: float | None = None
    ) -> None:
        super().__init__(terms, model, settings)
        self._temperature = min_form if settings.reward_mode == "per_step" else None
        self._check()

    def score(self, rollout: TextRollout) -> Rewards:
        """Score; and how well values separate right responses from wrong ones."""
        responses, mask = rollout.inputs, rollout.mask
        if rollout.conversations:
            return self._score_turns(rollout)
        cuts = cut_steps(responses, self.settings.splitter)
        scores = self._scores(responses.prompts, cuts, rollout.groups_B)
        values = np.zeros(mask.shape, dtype=np.float32)
        failures: dict[int, Failure] = {}
        for row, score in scores.items():
            paid = self._paid(score)
            if isinstance(paid, Failure):
                failures[row] = paid
            else:
                self._pay(values[row], cuts[row], paid)
        terminal = self.settings.reward_mode == "terminal"
        rewards = response_rewards(values, mask, failures, paid=last_valid(mask) if terminal else None)
        if self.model.info.compares:
            rewards = _without_equal_groups(rewards, rollout, cuts)
        metrics = _pair_metrics(rollout, rewards)
        spreads = [score.spread for score in scores.values() if score.spread is not None]
        if spreads:
            metrics["spread"] = float(np.mean(spreads))
        if self.model.info.granularity != "step":
            return replace(rewards, metrics=metrics)
        steps = [scores[row].steps if row in scores else None for row in range(len(cuts))]
        found = _values_at_ends(cuts, steps)
        raw = raw_scores(found, self.threshold)
        metrics["step_value"] = metrics["steps_called_right"] = None
        if len(raw.values_N):
            metrics["step_value"] = float(raw.values_N.mean())
            metrics["steps_called_right"] = float((raw.values_N >= raw.threshold).mean())
        if generated(responses):
            metrics["step_auroc"] = step_auroc(responses, cuts, steps)
        return replace(rewards, metrics=metrics, scores=raw)

    def _score_turns(self, rollout: TextRollout) -> Rewards:
        """Score each turn of conversations, or the last ones, with what the model read before it.

        A turn that cannot be scored is a failure at its end, of this source alone.
        """
        if self.settings.scores_steps:
            raise ConfigError(
                f"the source {self.name!r}: reward_mode {self.settings.reward_mode} scores steps of one response, and "
                "these are conversations: set it to per_turn or terminal",
                key=f"reward.sources.{self.name}.reward_mode",
            )
        turns = turns_of(rollout)
        terminal = self.settings.reward_mode == "terminal"
        ends = {turn.stream: turn.row for turn in turns}
        chosen = [turn for turn in turns if not terminal or ends[turn.stream] == turn.row]
        cuts = cut_steps(rollout.inputs, self.settings.splitter)
        groups = rollout.groups_B[np.array([turn.stream for turn in chosen], dtype=np.int64)]
        scores = self._scores([turn.prompt for turn in chosen], [cuts[turn.row] for turn in chosen], groups)
        measured: list[float | Failure] = []
        for k in range(len(chosen)):
            paid = self._paid(scores[k])
            measured.append(paid if isinstance(paid, Failure) else float(paid[0]))
        rewards = turn_rewards(rollout.mask, chosen, measured)
        rewards = replace(rewards, paid=last_valid(rollout.mask) if terminal else None)
        return replace(rewards, metrics=_pair_metrics(rollout, rewards))

    def _scores(self, prompts: Sequence[Prompt], cuts: Sequence[Cut], groups_N: IntArray) -> dict[int, Score]:
        """Of every response that has a token; equal responses to one prompt, or within one group, are scored once."""
        places: dict[Any, int] = {}
        episodes: list[Episode] = []
        which: dict[int, int] = {}
        for row, (prompt, cut) in enumerate(zip(prompts, cuts, strict=True)):
            if not cut.texts:
                continue
            group = str(groups_N[row])
            own = group if self.model.info.compares else (prompt.ground_truth, repr(prompt.extra_info.get("rubric")))
            key = (asked_key(prompt.question, prompt.context, prompt.tools), cut.texts, own)
            if key not in places:
                places[key] = len(episodes)
                episodes.append(
                    Episode(
                        id=prompt.id,
                        task=prompt.question,
                        texts=cut.texts,
                        meta={
                            **prompt.extra_info,
                            **({"ground_truth": truth} if (truth := prompt.ground_truth) else {}),
                        },
                        group=group,
                        context=prompt.context,
                        tools=prompt.tools,
                    )
                )
            which[row] = places[key]
        scores = score_episodes(self.model, episodes)
        return {row: scores[place] for row, place in which.items()}

    def _paid(self, score: Score) -> np.ndarray | Failure:
        """(S,) rewards of the steps of a response, or (1,) of the whole; or why there are none."""
        s = self.settings
        if not s.scores_steps:
            value = whole_value(score, s.aggregation)
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
                values = self.thresholded(values)
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
            raise ConfigError(f"{where}: {info.name} looks at {info.modality}s, not at text", key=f"{where}.model")
        steps = info.granularity == "step"
        if not steps and s.scores_steps:
            raise ConfigError(
                f"{where}: {info.name} judges whole responses only, so reward_mode must be terminal",
                key=f"{where}.reward_mode",
            )
        if steps and not s.scores_steps and s.aggregation is None:
            raise ConfigError(
                f"{where}: {info.name} judges steps; say by aggregation how their values become one",
                key=f"{where}.aggregation",
            )
        if not steps and s.aggregation is not None:
            raise ConfigError(
                f"{where}: aggregation would do nothing, {info.name} judges whole responses; remove it",
                key=f"{where}.aggregation",
            )
        bounded = PROBABILITIES[0] <= info.range[0] and info.range[1] <= PROBABILITIES[1]
        if s.shaping == "threshold" and info.compares:
            raise ConfigError(
                f"{where}: {relative(info.name)}: set shaping to raw or signed, not threshold", key=f"{where}.shaping"
            )
        if s.shaping == "signed" and not bounded:
            raise ConfigError(
                f"{where}: shaping signed needs probabilities; {info.name} gives {info.range}", key=f"{where}.shaping"
            )
        if s.shaping == "threshold" and not bounded and s.reward_threshold is None and info.success_threshold is None:
            raise ConfigError(
                f"{where}: shaping threshold needs reward_threshold; {info.name} gives {info.range}",
                key=f"{where}.shaping",
            )


class VerifiedTurns(RewardSource[Responses]):
    """The outcome that each turn of a conversation would have as an answer; a turn that calls tools is none, and is 0.

    Args:
        terms: how it counts.
        verifier: of the run's data.
        unparsable: what a turn without a readable answer is, as `data.unparsable`.
    """

    def __init__(self, terms: SourceTerms, verifier: Verifier, unparsable: Literal["failure", "wrong"]) -> None:
        super().__init__(terms)
        self._verifier, self._unparsable = verifier, unparsable

    def score(self, rollout: TextRollout) -> Rewards:
        """Check every turn."""
        responses, turns = rollout.inputs, turns_of(rollout)
        answers = [turn for turn in turns if not turn.calls]
        texts = judged_texts(responses.tokenizer, responses.batch, responses.texts)
        asked = [responses.prompts[turn.row] for turn in answers]
        results = self._verifier.check_batch([texts[turn.row] for turn in answers], asked)
        found = {turn.row: outcome(one, self._unparsable) for turn, one in zip(answers, results, strict=True)}
        return turn_rewards(rollout.mask, turns, [found.get(turn.row, 0.0) for turn in turns])

    def close(self) -> None:
        """End the processes of the verifier."""
        self._verifier.close()


class ScoredTurn(NamedTuple):
    """A turn of a conversation.

    Attributes:
        row: of the inputs.
        stream: the conversation.
        end: step of the conversation at which the turn ends.
        prompt: what the model read: all before the turn, with the answer of the conversation's prompt.
        calls: whether the turn calls tools.
    """

    row: int
    stream: int
    end: int
    prompt: Prompt
    calls: bool


def turns_of(rollout: TextRollout) -> list[ScoredTurn]:
    """The turns of the conversations of a rollout that have a token, in order."""
    assert rollout.chunks is not None
    streams, steps = np.nonzero(rollout.mask)
    ends = {int(rollout.chunks.decision[b, t]): (b, t) for b, t in zip(streams.tolist(), steps.tolist(), strict=True)}
    led = [one for one in rollout.inputs.conversations or () if one.failure is None]
    calls = [(one.prompt, call) for one in led for call in one.calls]
    found = []
    for row, (b, t) in sorted(ends.items()):
        prompt, call = calls[row]
        asked = replace(prompt, messages=call.messages[:-1], given=(), tools=call.tools)
        found.append(ScoredTurn(row, b, t, asked, bool(call.messages[-1].get("tool_calls"))))
    return found


def turn_rewards(mask_B_T: BoolArray, turns: Sequence[ScoredTurn], measured: Sequence[float | Failure]) -> Rewards:
    """Rewards at the ends of turns; what could not be measured is a failure there, of this source alone.

    Args:
        mask_B_T: steps of the conversations.
        turns: that were measured.
        measured: what each earned.
    """
    values, failed = np.zeros(mask_B_T.shape, dtype=np.float32), np.zeros(mask_B_T.shape, dtype=np.bool_)
    failures = list[tuple[int, int, Failure]]()
    for turn, earned in zip(turns, measured, strict=True):
        if isinstance(earned, Failure):
            failed[turn.stream, turn.end] = True
            failures.append((turn.stream, turn.end, earned))
        else:
            values[turn.stream, turn.end] = earned
    return Rewards(values, failed, failures=tuple(failures), measured=len(turns))


def _values_at_ends(cuts: Sequence[Cut], steps: Sequence[FloatArray | None]) -> list[tuple[int, int, float]]:
    """Row, last token and value of every step of the responses whose steps have values."""
    found: list[tuple[int, int, float]] = []
    for row, values_S in enumerate(steps):
        if values_S is None:
            continue
        ends = cuts[row].ends
        for end, value in zip(ends, values_S, strict=True):
            found.append((row, int(end), float(value)))
    return found


def _without_equal_groups(rewards: Rewards, rollout: TextRollout, cuts: Sequence[Cut]) -> Rewards:
    """Responses of groups that are all equal have no value, which is not a failure: there is nothing to compare."""
    texts: dict[int, set[tuple[str, ...]]] = {}
    for group, cut in zip(rollout.groups_B.tolist(), cuts, strict=True):
        texts.setdefault(group, set()).add(cut.texts)
    alike = [row for row, group in enumerate(rollout.groups_B.tolist()) if len(texts[group]) < 2]
    failed = rewards.failed.copy()
    failed[alike] = True
    failures = tuple(one for one in rewards.failures if one[0] not in set(alike))
    values = np.where(failed, np.float32(0.0), rewards.values)
    return replace(rewards, values=values, failed=failed, failures=failures, measured=rewards.measured - len(alike))


def _pair_metrics(rollout: TextRollout, rewards: Rewards) -> Metrics:
    """How well summed rewards order the responses to a prompt."""
    pairs = implicit.dpo_acc(
        torch.from_numpy(rewards.values.sum(axis=1, dtype=np.float64)),
        torch.from_numpy(rollout.outcomes_B),
        torch.from_numpy(rollout.groups_B),
        known_B=torch.from_numpy(rollout.known_B & ~rewards.failed_B),
    )
    return {"dpo_acc": pairs.accuracy, "dpo_acc_coverage": pairs.coverage}


def whole_value(score: Score, aggregation: Aggregation | None) -> float | Failure:
    """One value of a response: its steps together where they are judged, else its total."""
    if score.failure is not None:
        return score.failure
    if aggregation is not None:
        return solution_value(score, aggregation)
    return Failure("no_total", "the model judged steps only") if score.total is None else float(score.total)
