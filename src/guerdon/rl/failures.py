"""Failed measurements counted, written down, and when they are too many.

This module does not know what was measured or how a run is stopped.

    counter = FailureCounter(max_rate=0.1, window=200)
    counter.add(measured.scored, measured.failures)
    if counter.too_many(): raise TooManyFailuresError(counter.message())
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from guerdon.errors import TooManyFailuresError
from guerdon.rl.sources import Measured
from guerdon.types import Failure


def failure_rows(measured: Mapping[str, Measured], step: int) -> Iterator[dict[str, Any]]:
    """One plain row per failed measurement: the run's step after the rollout, source, copy, step in the rollout."""
    for name, m in measured.items():
        for env, t, failure in m.failures:
            reason, detail = failure.reason, failure.detail
            yield {"step": step, "source": name, "env": env, "t": t, "reason": reason, "detail": detail}


def refuse_failures(on_failure: Mapping[str, str], measured: Mapping[str, Measured]) -> None:
    """Stop where a source that may not fail has failed.

    Raises:
        TooManyFailuresError: a source with `on_failure: raise` has a failed measurement.
    """
    for name, m in measured.items():
        if m.failures and on_failure.get(name) == "raise":
            raise TooManyFailuresError(
                f"reward source {name!r} failed ({m.failures[0][2]}) and its on_failure is raise. Nothing was learned "
                "from this rollout; mend the reward model and go on with --resume"
            )


class FailureCounter:
    """Counts failed measurements and says when there are too many.

    Args:
        max_rate: the largest share of failures in the window that is tolerated.
        window: the most recent measurements that count.
    """

    def __init__(self, max_rate: float, window: int) -> None:
        self.max_rate = max_rate
        self.recent: deque[bool] = deque(maxlen=window)
        self.reasons: Counter[str] = Counter()
        self.scored = 0

    def add(self, scored: int, failures: Sequence[tuple[int, int, Failure]]) -> None:
        """Take in the outcome of `scored` measurements."""
        self.scored += scored
        self.reasons.update(f.reason for _, _, f in failures)
        self.recent.extend([True] * len(failures) + [False] * (scored - len(failures)))

    @property
    def rate(self) -> float:
        """Share of failures in the window; 0 before the first measurement."""
        return sum(self.recent) / len(self.recent) if self.recent else 0.0

    @property
    def total(self) -> int:
        """Failures since the run began."""
        return sum(self.reasons.values())

    def too_many(self, *, at_end: bool = False) -> bool:
        """Whether the rate in the window is over the limit, once the window says enough.

        It does when it is full, when failures alone fill a third of it, or at the end of a run, whose window may
        never fill.
        """
        size = self.recent.maxlen or 1
        enough = at_end or len(self.recent) == size or sum(self.recent) * 3 >= size
        return enough and self.rate > self.max_rate

    def forgive(self) -> None:
        """Empty the window, so that a run that was stopped can go on once the cause is mended; totals stay."""
        self.recent.clear()

    def message(self, *, at_end: bool = False) -> str:
        """What happened and what to do, for a person."""
        advice = (
            "The run is at its end: mend the reward model and run it again"
            if at_end
            else "Mend the reward model and go on with --resume"
        )
        return (
            f"{self.rate:.0%} of the last {len(self.recent)} measurements failed (reward.max_failure_rate is "
            f"{self.max_rate:.0%}): {dict(self.reasons)}. {advice}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"recent": [int(x) for x in self.recent], "reasons": dict(self.reasons), "scored": self.scored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        self.recent.clear()
        self.recent.extend(bool(x) for x in state["recent"])
        self.reasons = Counter(state["reasons"])
        self.scored = int(state["scored"])
