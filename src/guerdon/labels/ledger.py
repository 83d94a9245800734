"""What calls have cost so far, and whether the next one may still be made.

Every call is a line on disk, so a budget holds over kills and restarts. Money is set aside before a call, for the most
that it can cost, and settled after it: the budget is never passed, however many calls are under way. This module does
not know what is asked.

    with contextlib.closing(Ledger(folder / "calls.jsonl", prices=(3.0, 15.0), max_usd=5.0)) as ledger:
        hold = ledger.reserve(tokens_in=900, tokens_out=2048)
        if hold is not None:
            ledger.settle(hold, "judge", Usage(812, 240))
        ledger.totals()["judge"]["usd"]
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guerdon.labels.append_log import AppendLog

COUNTS = ("calls", "failed", "tokens_in", "tokens_out", "usd", "unpriced", "usd_at_most", "from_cache")


@dataclass(frozen=True)
class Usage:
    """What a call used, in tokens read and written."""

    tokens_in: int
    tokens_out: int


class Ledger:
    """Calls, tokens and dollars, by what they were for. Usable from any thread.

    Args:
        path: the file of calls; those already in it count.
        prices: dollars per million tokens read and written.
        max_usd: what all calls together may cost; None: no limit.
    """

    def __init__(self, path: Path, *, prices: tuple[float, float], max_usd: float | None = None) -> None:
        self.prices, self.max_usd = prices, max_usd
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._held: list[float] = []  # dollars set aside, by call under way
        self._totals: dict[str, dict[str, float]] = {}
        self._log = AppendLog(path)
        for row in self._log.rows:
            self._count(row)
        self._log.rows = []

    def price(self, usage: Usage) -> float:
        """Dollars."""
        return (usage.tokens_in * self.prices[0] + usage.tokens_out * self.prices[1]) / 1e6

    @property
    def spent(self) -> float:
        """Dollars: what is known, and the most that calls of unknown cost can have been."""
        return sum(t["usd"] + t["usd_at_most"] for t in self._totals.values())

    def reserve(self, *, tokens_in: int, tokens_out: int) -> float | None:
        """Set dollars aside for a call that uses at most so many tokens; None where the budget does not allow it.

        While calls that are under way may turn out cheaper than what was set aside for them, it waits for them.
        """
        most = self.price(Usage(tokens_in, tokens_out))
        with self._settled:
            while self.max_usd is not None and self.spent + sum(self._held) + most > self.max_usd:
                if not self._held:
                    return None
                self._settled.wait()
            self._held.append(most)
        return most

    def settle(self, hold: float, role: str, usage: Usage | None, *, failure: str = "", billed: bool = True) -> None:
        """Write down a call that is over.

        Args:
            hold: what `reserve` gave.
            role: what it was for.
            usage: what it used; None where the reply did not say.
            failure: why its reply is of no use, empty where it is.
            billed: whether a call of unknown usage may have cost anything; it then counts with the most it can have.
        """
        row: dict[str, Any] = {"role": role, "failure": failure}
        if usage is not None:
            row |= {"tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out, "usd": self.price(usage)}
        elif billed:
            row |= {"usd_at_most": hold}
        try:
            self._log.append(row)
        finally:
            with self._settled:
                self._held.remove(hold)
                self._count(row)
                self._settled.notify_all()

    def cached(self, role: str, n: int = 1) -> None:
        """Count answers that needed no call; this is not kept on disk."""
        with self._lock:
            self._row(role)["from_cache"] += n

    def totals(self) -> dict[str, dict[str, float]]:
        """By role: calls, how many failed, tokens, dollars; `unpriced` calls cost at most `usd_at_most` together."""
        with self._lock:
            return {role: dict(row) for role, row in sorted(self._totals.items())}

    def _row(self, role: str) -> dict[str, float]:
        return self._totals.setdefault(role, {**dict.fromkeys(COUNTS, 0), "usd": 0.0, "usd_at_most": 0.0})

    def _count(self, row: dict[str, Any]) -> None:
        total = self._row(row["role"])
        total["calls"] += 1
        total["failed"] += bool(row["failure"])
        total["unpriced"] += "usd_at_most" in row
        for key in ("tokens_in", "tokens_out", "usd", "usd_at_most"):
            total[key] += row.get(key, 0)

    def close(self) -> None:
        """Close the file."""
        self._log.close()
