"""What the checks of an audit look at: rows with a finite reward, which of them can be compared, and their truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guerdon.auditing.association import strata, stratum_means
from guerdon.auditing.finding import REMEDIES, Finding, Severity
from guerdon.auditing.references import References, read_references
from guerdon.auditing.rows import Codes, Flags, Numbers, Rows, Texts
from guerdon.auditing.text_features import FINISHED, ToolCall, calls_of, contain, has_mark
from guerdon.statistics.proportion import wilson_bounds

FEW_LEVELS = 12  # a reward with at most so many values is graded, not continuous
MOST_ROWS = 1000  # row numbers that a finding keeps
MOST_EXAMPLES = 5
THE_TRUTH, VERIFIED = "the truth", "the reference answers"
LOOKED = 20_000  # characters of a response in which calls are looked for
KNOWN = 0.5  # share of the rows whose truth is known, from which on it stands for all
NO_ANSWER = "state no answer"  # a sign of `signs_of`
COMMON = 0.35  # share of responses from which on having no answer is how responses end
SURE = 4.3  # standard errors from which on an effect passes Holm's correction of 25 checks in four of five logs
_PROGRAM = ("def ", "import ", "```", "class ", "return ", ";\n")
ROUNDING = 1e-9  # of the spread of all rewards: a smaller one is that of sums in floating point
SPREADS = "standard deviations of the reward"  # unit of an effect
MOST_REFERENCES = 3000  # rows whose reference answers are read
MOST_AS_TRUTH = 4000  # of a log without a truth


class Checked(NamedTuple):
    """What one check says: a finding that may still fall to Holm's correction, or what was looked at."""

    finding: Finding | None
    clean: str
    p: float | None = None


class MissingColumn(Exception):
    """A check cannot be made; the text names what it needs and the log lacks: a column, or a kind of response."""


class Undecided(Exception):
    """A check has too little to look at; the text says what it needs and what the log has."""


def needed(column: Any, what: str) -> Any:
    """A column that a check needs.

    Raises:
        MissingColumn: the log lacks it.
    """
    if column is None:
        raise MissingColumn(what)
    return column


def enough(count: int, least: int, what: str) -> None:
    """Nothing where there are enough rows, groups or steps for a check.

    Raises:
        Undecided: there are fewer than `least` of `what`.
    """
    if count < least:
        raise Undecided(f"needs {least:,} {what}; the log has {count:,}")


@dataclass(frozen=True)
class View:
    """M rows with a finite reward, of the N rows of a log.

    Attributes:
        rows: the log.
        row_M: numbers of the rows.
        reward_M: their rewards.
        peer_M: rows with one number answer one prompt at one step; None where hardly any two do.
        truth_M: the log's, or guerdon's verifier's by the reference answers; NaN is unknown, None is no truth.
        copy_M: whether the prompt, the response and the reward came before.
        unanswered_M: which responses failed, are truncated, or end without an answer; None where nothing says so.
        seed: of permutations.
        truth_name: what `truth_M` is, in words.
        doubt: why the truth is no evidence for or against the reward, as `Undecided` says it; rows of one truth can
            still be compared. Empty where it is evidence, or where there is none.
        references: what guerdon's verifier says of a sample of all rows of the log.
        signs: what `signs_of` says of all texts of the log.
    """

    rows: Rows
    row_M: Codes
    reward_M: Numbers
    peer_M: Codes | None
    truth_M: Numbers | None
    copy_M: Flags
    unanswered_M: Flags | None = None
    seed: int = 0
    truth_name: str = THE_TRUTH
    doubt: str = ""
    references: References | None = None
    signs: Mapping[str, Flags] = field(default_factory=dict)

    @classmethod
    def whole(cls, rows: Rows, seed: int = 0) -> View:
        """All rows of a log with a finite reward."""
        row = np.flatnonzero(np.isfinite(rows.reward_N))
        truth, doubt, name = rows.truth_N, truth_doubt(rows), THE_TRUTH
        unknown = truth is None or bool(doubt)
        references = read_references(rows, most=MOST_AS_TRUTH if unknown else MOST_REFERENCES)
        verified = references.truth_N(len(rows)) if unknown and references is not None else None
        if verified is not None:
            truth, doubt, name = verified, "", VERIFIED
        elif doubt and not copied(rows):
            truth = None
        signs = {} if rows.texts is None else _signs(rows.texts, references)
        return cls(
            rows, row, rows.reward_N[row], _peers(rows, row), None if truth is None else truth[row], _copies(rows)[row],
            _unanswered(rows, row, signs), seed, name, doubt, references, signs,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.row_M)

    def of(self, column_N: NDArray[Any] | None) -> Any:
        """The values of a column of the log at these rows; None of a column that it lacks."""
        return None if column_N is None else np.asarray(column_N)[self.row_M]

    def sub(self, keep_M: Flags) -> View:
        """A view of some of these rows; this view where it is all of them."""
        if keep_M.all():
            return self
        peers = None if self.peer_M is None else strata(self.peer_M[keep_M])
        truth = None if self.truth_M is None else self.truth_M[keep_M]
        return replace(
            self, row_M=self.row_M[keep_M], reward_M=self.reward_M[keep_M], peer_M=peers, truth_M=truth,
            copy_M=self.copy_M[keep_M], unanswered_M=None if self.unanswered_M is None else self.unanswered_M[keep_M],
        )  # fmt: skip

    def marked(self, name: str, marks_N: Numbers) -> View:
        """The rows that have a mark, which stands for their truth."""
        marks = self.of(marks_N)
        return replace(self, truth_M=marks, truth_name=name, doubt="").sub(np.isfinite(marks))

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

    @property
    def has_truth(self) -> bool:
        """Whether some responses are known to be right and others to be wrong."""
        return self.truth_class_M is not None and int(self.truth_class_M.max(initial=0)) > 0

    @cached_property
    def truth_class_M(self) -> Codes | None:
        """The truth in at most five classes, -1 where it is unknown."""
        return None if self.truth_M is None else classes(self.truth_M)

    @cached_property
    def right_M(self) -> Flags | None:
        """Which responses are right, by a truth that is evidence; None without one."""
        if self.doubt or not self.has_truth or self.truth_class_M is None:
            return None
        right: Flags = self.truth_class_M == self.truth_class_M.max()
        return right

    @cached_property
    def comparable(self) -> list[tuple[Codes, str, float]]:
        """Ways to say which rows have rewards that can be compared, the best first.

        Returns:
            For each way the strata, in words what is equal within one, and how much stricter it needs to be. Rows
            without a known truth are strata of their own where others have one.
        """
        truth, ways = self.truth_class_M, list[tuple[Codes, str, float]]()
        if truth is not None and self.has_truth:
            alone = np.where(truth >= 0, truth, truth.max() + 1 + np.arange(len(self)))
            if self.peer_M is not None:
                ways.append((strata(self.peer_M, alone), "within prompt, step and truth", 1.0))
            if self.peer_M is None or self.binary:  # else the prompt decides the reward of equally good responses, too
                ways.append((strata(alone, self.of(self.rows.step_N)), "given step and truth", 1.5))
        elif self.peer_M is not None:
            ways.append((self.peer_M, "within prompt and step", 1.0))
        return ways

    @cached_property
    def has_texts(self) -> bool:
        """Whether any of these rows has its text."""
        return self.rows.texts is not None and bool(np.isin(self.row_M, self.rows.texts.row_M).any())

    @cached_property
    def different(self) -> View:
        """The rows without copies of a response, which have its reward and are no evidence."""
        return self.sub(~self.copy_M)

    def texts(self) -> tuple[View, list[str]]:
        """The rows that have a text, and the response of each.

        Raises:
            MissingColumn: none has.
        """
        return self._with_text

    @cached_property
    def _with_text(self) -> tuple[View, list[str]]:
        texts = needed(self.rows.texts if self.has_texts else None, "response")
        place_N = np.full(len(self.rows), -1)
        place_N[texts.row_M] = np.arange(len(texts.row_M))
        place_M = place_N[self.row_M]
        return self.sub(place_M >= 0), [texts.responses[i] for i in place_M[place_M >= 0]]

    @cached_property
    def programs_M(self) -> Flags:
        """Which responses have a program, of rows that all have a text."""
        return contain(self.texts()[1], _PROGRAM)

    @cached_property
    def calls(self) -> tuple[View, list[list[ToolCall]]]:
        """The rows that have a text, and the calls of tools in each response.

        Raises:
            MissingColumn: none has a text.
        """
        one, responses = self.texts()
        return one, [calls_of(text[:LOOKED]) for text in responses]

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the reward, within prompts where prompts come again."""
        peers = np.zeros(len(self), np.int64) if self.peer_M is None else self.peer_M
        within = float((self.reward_M - stratum_means(self.reward_M, peers)).std())
        whole = float(self.reward_M.std())
        is_rounding = within <= ROUNDING * whole  # prompts come again with copies of one response alone
        return (whole if is_rounding else within) or 1.0

    @cached_property
    def paid_level(self) -> float:
        """The reward from which on a response counts as rewarded: half way between a low and a high reward."""
        if self.levels is not None:
            return float(self.levels[0] + self.levels[-1]) / 2
        low, high = np.quantile(self.reward_M, [0.1, 0.9])
        return float(low + high) / 2


def truth_doubt(rows: Rows) -> str:
    """Why the logged truth is no evidence: known for few rows, always the same, or a copy of the reward; else empty."""
    if rows.truth_N is None or not len(rows):
        return ""
    known = np.isfinite(rows.truth_N)
    if known.mean() <= KNOWN:
        return f"needs a truth of more than half of the rows; the log has {known.sum():,} of {len(rows):,}"
    if np.ptp(rows.truth_N[known]) == 0 and rows.texts is not None:
        return f"needs right and wrong responses; the truth of all {known.sum():,} rows that have one is equal"
    how = copied(rows)
    return f"needs a truth that was measured without the reward; the truth of this log {how}" if how else ""


def copied(rows: Rows) -> str:
    """How the logged truth follows from the reward, in words; empty where it does not, and of steps of robots."""
    if rows.truth_N is None or rows.steps is not None:
        return ""
    known = np.isfinite(rows.truth_N) & np.isfinite(rows.reward_N)
    truth, reward = rows.truth_N[known], rows.reward_N[known]
    if len(truth) < 2 or np.ptp(truth) == 0:
        return ""
    if np.array_equal(truth, reward):
        return "is the reward in every row"
    if np.ptp(reward) and np.corrcoef(truth, reward)[0, 1] > 1 - 1e-9:
        return "is the reward in another scale"
    order = np.lexsort((truth, reward))
    rises = np.diff(truth[order]) >= 0
    same = (np.diff(reward[order]) > 0) | (np.diff(truth[order]) == 0)
    few = len(np.unique(truth)) <= FEW_LEVELS < len(truth)
    return "is a threshold of the reward" if few and rises.all() and same.all() else ""


def _unanswered(rows: Rows, row_M: Codes, signs: Mapping[str, Flags]) -> Flags | None:
    """Which responses failed, are truncated, have no answer where most have one, or end within a sentence."""
    columns = [column for column in (rows.truncated_N, rows.failed_N) if column is not None]
    if not columns and rows.texts is None:
        return None
    found = np.any([np.zeros(len(rows), bool), *columns], axis=0)
    if rows.texts is not None:
        of = rows.texts.row_M
        for flag in signs.values():
            if len(flag) and flag.mean() < COMMON:
                found[of] |= flag
    unanswered: Flags = found[row_M]
    return unanswered


def _signs(texts: Texts, references: References | None) -> dict[str, Flags]:
    """`signs_of` the responses; one whose answer the verifier reads, or in which the right one occurs, has one."""
    signs = signs_of(texts.responses)
    if references is not None:
        answered = np.isnan(references.right_K) | np.array([one != "" for one in references.stated], bool)
        signs[NO_ANSWER] &= ~np.isin(texts.row_M, references.row_K[answered])
    return signs


def signs_of(responses: Sequence[str]) -> dict[str, Flags]:
    """What responses have that failed or were cut off, by what is said of them; some have it for other reasons."""
    return {
        NO_ANSWER: np.array([not has_mark(text) for text in responses], bool),
        "end within a sentence": np.array([FINISHED.search(text[-40:]) is None for text in responses], bool),
        "end within a block": np.array([text.count("```") % 2 == 1 for text in responses], bool),
        "have no program": np.array(["def " not in text for text in responses], bool),
    }


def _peers(rows: Rows, row_M: Codes) -> Codes | None:
    """Rows of one group, else of one prompt at one step, where a fifth of the rows has company."""
    for columns in ((rows.group_N,), (rows.prompt_N, rows.step_N)):
        if columns[0] is not None:
            peers = strata(*(None if column is None else column[row_M] for column in columns))
            if len(peers) and (np.bincount(peers)[peers] > 1).mean() >= 0.2:
                return peers
    return None


def _copies(rows: Rows) -> Flags:
    """Which rows have the prompt, the response and the reward of an earlier one; none without their text."""
    copy, seen = np.zeros(len(rows), bool), set[tuple[str, str, float]]()
    texts = rows.texts
    for row, *key in () if texts is None else zip(texts.row_M.tolist(), texts.prompts, texts.responses, strict=True):
        one = (key[0], key[1], float(rows.reward_N[row]))
        copy[row] = one in seen
        seen.add(one)
    return copy


def classes(values_M: Numbers) -> Codes:
    """Values in at most five classes: themselves where few differ, else fifths; -1 for NaN."""
    known = np.isfinite(values_M)
    distinct = np.unique(values_M[known])
    found = np.full(len(values_M), -1, np.int64)
    if len(distinct) > 5:
        distinct = np.unique(np.quantile(values_M[known], [0.0, 0.2, 0.4, 0.6, 0.8]))
    found[known] = np.searchsorted(distinct, values_M[known], side="right") - 1
    return found


def braced(text: str) -> str:
    """A text of a log as a part of a title of `found`."""
    return text.replace("{", "{{").replace("}", "}}")


def found(
    view: View, name: str, flag_M: Flags, title: str, clean: str, *, effect: tuple[float, float, float] | None = None,
    unit: str = "share of the rows", of: int | None = None, p: float | None = None,
    say: Callable[[int], str] | str = "", order_M: ArrayLike | None = None, severity: Severity | None = None,
    phrases: tuple[str, ...] = (),
) -> Checked:  # fmt: skip
    """A finding of a check.

    Args:
        view: the rows looked at.
        name: of the check.
        flag_M: the rows concerned.
        title: may have `{share}` and `{count}`.
        clean: what to say where Holm's correction takes the finding away.
        effect: how large it is, and its interval; else it is the share of rows with the flag, with Wilson's interval.
        unit: of the effect.
        of: how many the share is of; all of the view by default.
        p: before correction.
        say: what to see in an example, by its place in the view; whether it is right is added.
        order_M: the rows with the largest value come first, after those whose reward contradicts the truth.
        severity: where it is not that of the check.
        phrases: that were confirmed to be paid.
    """
    total, count = len(view) if of is None else of, int(np.sum(flag_M))
    value, low, high = effect or (count / total, *wilson_bounds(min(count, total), total))
    places = np.flatnonzero(flag_M)
    if order_M is not None:
        places = places[np.argsort(-np.asarray(order_M, dtype=np.float64)[places], kind="stable")]
    contradicts = _contradicts(view, places)
    places = np.concatenate([places[contradicts], places[~contradicts]])
    lines = [say if isinstance(say, str) else say(int(i)) for i in places[:MOST_EXAMPLES]]
    examples = tuple(
        (int(view.row_M[i]), f"{line}{_truth_said(view, int(i), line)}")
        for i, line in zip(places[:MOST_EXAMPLES], lines, strict=True)
    )
    text = title.format(share=f"{count / max(total, 1):.1%}", count=f"{count:,}")
    usual, remedy = REMEDIES[name]
    rows, interval = tuple(view.row_M[places[:MOST_ROWS]].tolist()), (float(low), float(high))
    finding = Finding(
        name, severity or usual, text, float(value), interval, unit, p, rows, examples, remedy, count, total,
        phrases=phrases, marked=view.row_M[places],
    )  # fmt: skip
    return Checked(finding, clean, p)


def _contradicts(view: View, places: Codes) -> Flags:
    """Which of these rows are wrong and paid, or right and not paid, as far as the truth is known."""
    truth = view.truth_class_M
    if truth is None or not view.has_truth:
        return np.zeros(len(places), bool)
    right, known = truth[places] == truth.max(), (truth[places] == truth.max()) | (truth[places] == 0)
    return np.asarray(known & (right != (view.reward_M[places] > view.paid_level)))


def _truth_said(view: View, place: int, line: str) -> str:
    """Whether a response is right, where that is known and the line does not say it."""
    truth = view.truth_class_M
    if truth is None or not view.has_truth or any(word in line for word in ("right", "wrong", "truth")):
        return ""
    words = {int(truth.max()): ", right", 0: ", wrong"}
    return words.get(int(truth[place]), "")
