"""Failed measurements counted, written down, and when they are too many.

counter = FailureCounter(max_rate=0.1, window=200)
counter.add("prm", rewards.measured, rewards.failures)
if counter.too_many(): raise TooManyFailuresError(counter.message())
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from guerdon.errors import TooManyFailuresError
from guerdon.types import Failure, Rewards

EVALUATION = "evaluation"  # counted like a source: episodes of evaluations


def failure_rows(measured: Mapping[str, Rewards], step: int) -> Iterator[dict[str, Any]]:
    """One plain row per failed measurement: the run's step after the rollout, source, copy, step in the rollout."""
    for name, m in measured.items():
        for env, t, failure in m.failures:
            yield {"step": step, "source": name, "env": env, "t": t, **vars(failure)}


def refuse_failures(on_failure: Mapping[str, str], measured: Mapping[str, Rewards]) -> None:
    """Stop where a source that may not fail has failed.

    Raises:
        TooManyFailuresError: a source with `on_failure: raise` has a failed measurement.
    """
    for name, m in measured.items():
        if m.failures and on_failure.get(name) == "raise":
            raise TooManyFailuresError(
                f"reward source {name!r} failed ({m.failures[0][2]}) and its on_failure is raise. Nothing was learned "
                "from this rollout; fix the reward model and go on with --resume"
            )


class FailureCounter:
    """Counts the failed measurements of each source and says when one of them fails too often.

    Args:
        max_rate: the largest share of failures in a source's window that is tolerated.
        window: the most recent measurements of a source that count.

    Attributes:
        recent: of each source, its most recent measurements: the reason of a failure, or None.
        reasons: failures of all sources since the run began.
        scored: measurements of all sources since the run began.
    """

    def __init__(self, max_rate: float, window: int) -> None:
        self.max_rate, self.window = max_rate, window
        self.recent: dict[str, deque[str | None]] = {}
        self.reasons: Counter[str] = Counter()
        self.scored = 0

    def add(self, source: str, scored: int, failures: Sequence[tuple[int, int, Failure]]) -> None:
        """Take in the result of `scored` measurements of a source."""
        reasons = [f.reason for _, _, f in failures]
        self.scored += scored
        self.reasons.update(reasons)
        recent = self.recent.setdefault(source, deque(maxlen=self.window))
        recent.extend([*reasons, *[None] * (scored - len(reasons))])

    @property
    def rates(self) -> dict[str, float]:
        """Share of failures in each source's window; 0 before its first measurement."""
        return {name: len(_failed(recent)) / max(len(recent), 1) for name, recent in self.recent.items()}

    @property
    def rate(self) -> float:
        """That of the source that fails most."""
        return max(self.rates.values(), default=0.0)

    @property
    def total(self) -> int:
        """Failures since the run began."""
        return sum(self.reasons.values())

    def too_many(self, *, at_end: bool = False) -> list[str]:
        """The sources whose rate is over the limit, once their window says enough.

        It does when it is full, when failures alone fill a third of it, or at the end of a run, whose window may
        never fill.
        """
        return [
            name
            for name, recent in self.recent.items()
            if (at_end or len(recent) == self.window or len(_failed(recent)) * 3 >= self.window)
            and self.rates[name] > self.max_rate
        ]

    def forgive(self) -> None:
        """Empty the windows, so that a run that was stopped can go on once the cause is fixed; totals stay."""
        self.recent.clear()

    def message(self, *, at_end: bool = False) -> str:
        """What happened and what to do, for a person."""
        found = []
        for name in self.too_many(at_end=at_end):
            recent = self.recent[name]
            reasons = ", ".join(f"{reason} {n}" for reason, n in Counter(_failed(recent)).most_common())
            share = f"{self.rates[name]:.0%} of its last {len(recent)} measurements failed"
            if name == EVALUATION:
                found.append(f"evaluation: {share} ({reasons})")
            else:
                found.append(f"reward source {name!r}: {share} ({reasons}; each is in failures.jsonl)")
        advice = (
            "The run is at its end: fix the source and run it again" if at_end else "Fix it and go on with --resume"
        )
        if "budget_spent" in "".join(found):
            advice = "Raise max_usd and go on with --resume"
        return f"{'; '.join(found)}; reward.max_failure_rate is {self.max_rate:.0%}. {advice}"

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        recent = {name: list(window) for name, window in self.recent.items()}
        return {"recent": recent, "reasons": dict(self.reasons), "scored": self.scored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        self.recent = {name: deque(window, maxlen=self.window) for name, window in state["recent"].items()}
        self.reasons = Counter(state["reasons"])
        self.scored = int(state["scored"])


def _failed(recent: Iterable[str | None]) -> list[str]:
    """The reasons of the failures in a window."""
    return [reason for reason in recent if reason is not None]
