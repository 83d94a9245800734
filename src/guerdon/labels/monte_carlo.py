"""Labels by continuations: a step is as good as the chance that the solution can still be saved after it.

`MonteCarloLabeler` completes every prefix k times (Math-Shepherd, Wang et al. 2023, 2312.08935, eqs. 3 and 4): soft is
the share of completions that reach the true answer, hard is 1 where any does. `BinarySearchLabeler` looks for the
first prefix that none of k completions saves (OmegaPRM, Luo et al. 2024, 2406.06592, section 3.2): k log M completions
instead of k M. `ConsensusLabeler` keeps what a judge and hard continuations agree on (Zhang et al. 2025, 2501.07301).

A completion whose answer cannot be checked counts neither way; a step with too few that can be checked has no label.
This module does not know how completions are written.

    labeler = MonteCarloLabeler(sampler, k=8, hard=False)
    labeler.label([Written(solution, prompt)])[0].values        # (0.75, 0.125, 0.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from guerdon.labels.completions import Ask, Completer, Sampling
from guerdon.labels.labeler import NO_CONSENSUS, Labeler, StepLabels, Written, until_first_error
from guerdon.policies.tokens import prompt_ids
from guerdon.settings.data import DataSettings
from guerdon.types import Failure
from guerdon.worlds.prompts import Prompt
from guerdon.worlds.verifier import Verifier, outcome

LEAST_KNOWN = 0.5  # share of the completions of a step whose answers can be checked


@dataclass(frozen=True)
class Reached:
    """How many completions of a prefix reached the answer, of those that could be checked, of all."""

    right: int
    known: int
    asked: int

    def value(self, *, hard: bool) -> float | None:
        """The label; None where too few could be checked.

        One completion that reaches the answer makes a hard label 1 whatever became of the others.
        """
        if hard and self.right:
            return 1.0
        if self.known < LEAST_KNOWN * self.asked:
            return None
        return 0.0 if hard else self.right / self.known


class Sampler(Protocol):
    """Completes prefixes and checks where they lead."""

    def reach(self, prefixes: Sequence[tuple[Prompt, str]], k: int) -> list[Reached]:
        """Complete each prefix k times and check the answers; in order."""
        ...


class PolicySampler:
    """A policy's completions and a verifier's verdicts.

    Args:
        completer: writes.
        verifier: checks.
        data: length limit; whether an unreadable answer is wrong.
        sampling: how tokens are drawn.
    """

    def __init__(self, completer: Completer, verifier: Verifier, data: DataSettings, sampling: Sampling) -> None:
        self._completer, self._verifier, self._data, self._sampling = completer, verifier, data, sampling

    def reach(self, prefixes: Sequence[tuple[Prompt, str]], k: int) -> list[Reached]:
        """See `Sampler`."""
        tokenizer = self._completer.policy.tokenizer
        asks = [Ask(prompt_ids(tokenizer, prompt.messages), prefix) for prompt, prefix in prefixes]
        drawn = self._completer.complete(
            asks, n=k, limit=self._data.max_response_length, sampling=self._sampling, purpose="continue"
        )
        texts = [prefix + d.text for (_, prefix), row in zip(prefixes, drawn, strict=True) for d in row]
        prompts = [prompt for prompt, _ in prefixes for _ in range(k)]
        found = [outcome(j, self._data.unparsable) for j in self._verifier.check_batch(texts, prompts)]
        rows = [found[i * k : (i + 1) * k] for i in range(len(prefixes))]
        return [
            Reached(sum(v == 1.0 for v in row), sum(not isinstance(v, Failure) for v in row), len(row)) for row in rows
        ]


def _prefixes(written: Written) -> list[str]:
    """The solution up to each step but the last."""
    return list(accumulate(written.solution.steps))[:-1]


class MonteCarloLabeler:
    """Completes every prefix; the last step is as good as the answer.

    Args:
        sampler: completes and checks.
        k: completions per prefix.
        hard: 1 where any completion reaches the answer, instead of the share.
    """

    name = "monte_carlo"
    at_a_time = 64

    def __init__(self, sampler: Sampler, *, k: int, hard: bool) -> None:
        self._sampler, self._k, self._hard = sampler, k, hard

    def label(self, written: Sequence[Written]) -> list[StepLabels | Failure]:
        """Labels of each solution; a `Failure` where no step has one."""
        wanted = [(w.prompt, prefix) for w in written for prefix in _prefixes(w)]
        reached = iter(self._sampler.reach(wanted, self._k) if wanted else [])
        return [self._one(w, [next(reached) for _ in _prefixes(w)]) for w in written]

    def _one(self, written: Written, reached: Sequence[Reached]) -> StepLabels | Failure:
        right = written.solution.is_correct
        values = [*(r.value(hard=self._hard) for r in reached), None if right is None else float(right)]
        if all(v is None for v in values):
            return Failure("unchecked_completions", f"too few of the {self._k} completions per step can be checked")
        counts = {"right": [r.right for r in reached], "known": [r.known for r in reached]}
        estimate = "hard" if self._hard else "soft"
        return StepLabels(tuple(values), {"completions": self._k, "estimate": estimate, **counts})


class BinarySearchLabeler:
    """Looks for the first step after which no completion reaches the answer.

    A solution with the true answer has no such step: it is itself a completion of each of its prefixes. In one with
    a wrong answer the last prefix cannot be saved, and whether a prefix can be is taken to fall once and for all.

    Args:
        sampler: completes and checks.
        k: completions per prefix that is looked at.
    """

    name = "binary_search"
    at_a_time = 64

    def __init__(self, sampler: Sampler, *, k: int) -> None:
        self._sampler, self._k = sampler, k

    def label(self, written: Sequence[Written]) -> list[StepLabels | Failure]:
        """Labels up to the first error; a `Failure` where the search cannot go on."""
        found: list[StepLabels | Failure | None] = [self._known(w) for w in written]
        low = [0] * len(written)  # the first error is at this step or later
        high = [len(w.solution.steps) - 1 for w in written]  # ... and not behind this one
        looks = [0] * len(written)
        while active := [i for i, done in enumerate(found) if done is None and low[i] < high[i]]:
            middle = [(low[i] + high[i]) // 2 for i in active]
            prefixes = [_prefixes(written[i])[m] for i, m in zip(active, middle, strict=True)]
            wanted = [(written[i].prompt, prefix) for i, prefix in zip(active, prefixes, strict=True)]
            for i, m, reached in zip(active, middle, self._sampler.reach(wanted, self._k), strict=True):
                value = reached.value(hard=True)
                looks[i] += 1
                if value is None:
                    why = f"{reached.known} of {reached.asked} completions after step {m + 1} can be checked"
                    found[i] = Failure("unchecked_completions", why)
                elif value:
                    low[i] = m + 1
                else:
                    high[i] = m
        return [done if done is not None else self._until(written[i], low[i], looks[i]) for i, done in enumerate(found)]

    def _known(self, written: Written) -> StepLabels | Failure | None:
        """What needs no search."""
        if written.solution.is_correct is None:
            return Failure("unchecked_answer", "whether its answer is right is not known")
        n = len(written.solution.steps)
        return StepLabels((1.0,) * n, {"completions": 0}) if written.solution.is_correct else None

    def _until(self, written: Written, first: int, looks: int) -> StepLabels:
        right = [k < first for k in range(len(written.solution.steps))]
        return StepLabels(until_first_error(right), {"completions": looks * self._k})


class ConsensusLabeler:
    """Keeps solutions where two labelers agree on the first error, with labels up to it.

    Args:
        judge: the one.
        continuations: the other, with hard labels.
    """

    name = "consensus"

    def __init__(self, judge: Labeler, continuations: Labeler) -> None:
        self._judge, self._continuations = judge, continuations

    @property
    def at_a_time(self) -> int:
        """Solutions that are best asked about together."""
        return min(self._judge.at_a_time, self._continuations.at_a_time)

    def label(self, written: Sequence[Written]) -> list[StepLabels | Failure]:
        """Labels of each solution; `Failure("no_consensus")` where they disagree, and failures of either."""
        judged, continued = self._judge.label(written), self._continuations.label(written)
        return [_agreed(a, b) for a, b in zip(judged, continued, strict=True)]


def _agreed(judged: StepLabels | Failure, continued: StepLabels | Failure) -> StepLabels | Failure:
    if isinstance(judged, Failure):
        return judged
    if isinstance(continued, Failure):
        return continued
    first, other = judged.first_error, continued.first_error
    if first is None or other is None:
        return Failure("unchecked_completions", "completions do not say which step is wrong first")
    if first != other:
        return Failure(
            NO_CONSENSUS, f"first error: step {first + 1} by the judge, {other + 1} by completions (0: none)"
        )
    n = len(judged.values)
    right = [first < 0 or k < first for k in range(n)]
    return StepLabels(until_first_error(right), {"judge": dict(judged.meta), "completions": dict(continued.meta)})
