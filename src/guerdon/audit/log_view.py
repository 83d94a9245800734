"""What the checks of an audit look at: the rows with a finite reward, which of them can be compared, and their truth."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from guerdon.audit.association import Association, associate, strata, stratum_means
from guerdon.audit.finding import Finding, Severity
from guerdon.audit.rows import Codes, Flags, Numbers, Rows, Texts
from guerdon.proportion import wilson_bounds

FEW_LEVELS = 12  # a reward with at most so many values is graded, not continuous
MOST_ROWS = 1000  # row numbers that a finding keeps
MOST_EXAMPLES = 5
VERIFIED_ROWS = 20_000  # of the sample that the verifier reads again


class Checked(NamedTuple):
    """What one check says: a finding that may still fall to Holm's correction, or what was looked at."""

    finding: Finding | None
    clean: str
    p: float | None = None


class Missing(NamedTuple):
    """The column that a check needs and the log lacks."""

    column: str


class Comparable(NamedTuple):
    """Rows, strata within which rewards may be compared, what is equal there, and how much stricter to be for that."""

    view: View
    stratum_M: Codes
    words: str
    strict: float


@dataclass(frozen=True)
class View:
    """M rows with a finite reward, of the N rows of a log; `row_M` says which.

    Attributes:
        rows: the log.
        row_M: numbers of the rows.
        reward_M: their rewards.
        seed: of permutations.
    """

    rows: Rows
    row_M: Codes
    reward_M: Numbers
    seed: int = 0

    def __len__(self) -> int:
        return len(self.row_M)

    def of(self, column_N: ArrayLike | None) -> np.ndarray | None:
        """The values of a column of the log at these rows."""
        return None if column_N is None else np.asarray(column_N)[self.row_M]

    def sub(self, keep_M: ArrayLike) -> View:
        """A view of some of these rows."""
        return View(self.rows, self.row_M[keep_M], self.reward_M[keep_M], self.seed)

    @cached_property
    def levels(self) -> Numbers | None:
        """The values of a reward that has few, ascending; None of a continuous one."""
        values = np.unique(self.reward_M[:: max(1, len(self) // 100_000)])
        if len(values) > FEW_LEVELS or len(values) > max(2, len(self) // 4):
            return None
        return np.unique(self.reward_M)

    @property
    def binary(self) -> bool:
        """Whether the reward has at most two values."""
        return self.levels is not None and len(self.levels) <= 2

    @cached_property
    def peer_M(self) -> Codes | None:
        """Rows with one number answer one prompt at one step; None where no two rows do."""
        rows = self.rows
        ways = [(rows.group_N,), (rows.prompt_N, rows.step_N)] if rows.prompt_N is not None else [(rows.group_N,)]
        for columns in ways:
            if columns[0] is None:
                continue
            peers = strata(*(self.of(column) for column in columns))
            if (np.bincount(peers)[peers] > 1).mean() >= 0.2:
                return peers
        return None

    @cached_property
    def truth_M(self) -> Numbers | None:
        """Truth that the log has, or that guerdon's verifier finds by the reference answers; NaN where unknown."""
        logged = self.of(self.rows.truth_N)
        if logged is not None and np.isfinite(logged).mean() > 0.5:
            return np.asarray(logged, dtype=np.float64)
        verified = verified_N(self.rows)
        return None if verified is None else np.asarray(self.of(verified), dtype=np.float64)

    @property
    def truth_source(self) -> str:
        """Where the truth comes from, in words."""
        logged = self.rows.truth_N is not None and np.isfinite(self.rows.truth_N).mean() > 0.5
        return "the log's truth" if logged else "guerdon's verifier on the reference answers"

    @cached_property
    def truth_class_M(self) -> Codes | None:
        """The truth in at most five classes, -1 where it is unknown."""
        return None if self.truth_M is None else classes(self.truth_M)

    def comparable(self) -> Comparable | None:
        """The rows whose reward can be compared; None where neither prompts come again nor the truth is known."""
        truth = self.truth_class_M
        if truth is not None and len(np.unique(truth[truth >= 0])) > 1:
            keep = truth >= 0
            sub = self.sub(keep)
            if self.peer_M is not None:
                return Comparable(sub, strata(self.peer_M[keep], truth[keep]), "within prompt, step and truth", 1.0)
            return Comparable(sub, strata(sub.of(self.rows.step_N), truth[keep]), "given step and truth", 2.0)
        if self.peer_M is None:
            return None
        return Comparable(self, self.peer_M, "within prompt and step", 1.0)

    def texts(self) -> tuple[View, Texts, Codes] | None:
        """The rows that have a text, the texts, and which text each row has."""
        texts = self.rows.texts
        if texts is None or not len(texts.row_M):
            return None
        place_N = np.full(len(self.rows), -1)
        place_N[texts.row_M] = np.arange(len(texts.row_M))
        place_M = place_N[self.row_M]
        return self.sub(place_M >= 0), texts, place_M[place_M >= 0]

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the reward, within prompts where prompts come again."""
        peers = np.zeros(len(self), np.int64) if self.peer_M is None else self.peer_M
        within = float((self.reward_M - stratum_means(self.reward_M, peers)).std())
        return within or float(self.reward_M.std()) or 1.0

    @cached_property
    def paid_level(self) -> float:
        """The reward from which on a response counts as paid: half way between a low and a high reward."""
        if self.levels is not None:
            return float(self.levels[0] + self.levels[-1]) / 2
        low, high = np.quantile(self.reward_M, [0.1, 0.9])
        return float(low + high) / 2


def classes(values_M: Numbers) -> Codes:
    """Values in at most five classes: themselves where few differ, else fifths; -1 for NaN."""
    known = np.isfinite(values_M)
    distinct = np.unique(values_M[known])
    found = np.full(len(values_M), -1, np.int64)
    if len(distinct) > 5:
        distinct = np.unique(np.quantile(values_M[known], [0.0, 0.2, 0.4, 0.6, 0.8]))
    found[known] = np.searchsorted(distinct, values_M[known], side="right") - 1
    return found


_NUMBER = re.compile(r"\s*[-+]?\$?[\d.,/]+\s*%?\s*$")


def verified_N(rows: Rows) -> Numbers | None:
    """1 or 0 of the sampled rows by guerdon's verifier, NaN elsewhere; None without numbers as reference answers.

    A response without a readable answer counts as wrong. None, too, where fewer than half of the answers can be read.
    """
    texts = rows.texts
    if texts is None or texts.truths is None or not texts.truths:
        return None
    looked = range(0, len(texts.truths), max(1, len(texts.truths) // VERIFIED_ROWS))
    numbers = [i for i in looked if "####" in texts.truths[i] or _NUMBER.match(texts.truths[i])]
    if len(numbers) < max(20, len(looked) // 2):
        return None
    from guerdon.tasks.verifier import check_numeric

    found, read = np.full(len(rows), np.nan), 0
    for i in numbers:
        result = check_numeric(texts.responses[i], texts.truths[i].split("####")[-1].strip(), question=texts.prompts[i])
        read += result.correct is not None
        if result.verdict != "gold_unparsable":
            found[texts.row_M[i]] = float(result.correct is True)
    return found if read >= 0.5 * len(numbers) else None


def flags_finding(
    view: View,
    name: str,
    flag_M: Flags,
    title: str,
    remedy: str,
    *,
    unit: str = "share of the rows",
    of: int | None = None,
    severity: Severity = "warning",
    p: float | None = None,
    say: Callable[[int], str] | str = "",
    order_M: ArrayLike | None = None,
) -> Finding:
    """A finding whose effect is the share of rows with a flag.

    Args:
        view: the rows looked at.
        name: of the check.
        flag_M: the rows concerned.
        title: with `{share}` and `{count}`.
        remedy: what would fix it.
        unit: of the effect.
        of: how many the share is of; all of the view by default.
        severity: of the finding.
        p: before correction.
        say: what to see in an example, by its place in the view.
        order_M: the rows with the largest value come first.
    """
    total = len(view) if of is None else of
    count = int(np.sum(flag_M))
    low, high = wilson_bounds(min(count, total), total)
    rows, examples = shown(view, flag_M, say, order_M)
    text = title.format(share=f"{count / total:.1%}", count=f"{count:,}")
    return Finding(name, severity, text, count / total, (low, high), unit, p, rows, examples, remedy, count, total)


def shown(
    view: View, flag_M: Flags, say: Callable[[int], str] | str, order_M: ArrayLike | None = None
) -> tuple[tuple[int, ...], tuple[tuple[int, str], ...]]:
    """Row numbers of the log that a finding keeps, and its examples."""
    places = np.flatnonzero(flag_M)
    if order_M is not None:
        places = places[np.argsort(-np.asarray(order_M, dtype=np.float64)[places], kind="stable")]
    line = (lambda i: say) if isinstance(say, str) else say
    examples = tuple((int(view.row_M[i]), line(int(i))) for i in places[:MOST_EXAMPLES])
    return tuple(view.row_M[places[:MOST_ROWS]].tolist()), examples


def explained(view: View, x_M: ArrayLike, stratum_M: Codes) -> Association:
    """How a feature explains the reward of a view within strata."""
    return associate(x_M, view.reward_M, stratum_M, seed=view.seed)
