"""Two runs side by side: how far truth, reward and length differ, which answers were gained and lost, and new phrases.

    found = compare_runs(read_log(Path("runs/b")), read_log(Path("runs/a")), "runs/a")
    found.compared                      # "by prompt: 120 prompts are in both"
    found.changes[0].difference         # of this run minus the other one

Rows are compared within prompts that both runs have, else within steps. An interval is of these two runs: that of runs
with other seeds is wider (`guerdon compare`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from guerdon.auditing.course import welch_interval
from guerdon.auditing.log_view import View
from guerdon.auditing.rows import Codes, Flags, Numbers, Rows
from guerdon.auditing.text_features import words_of
from guerdon.statistics.training_runs import holm, sign_flip_p_value

FEWEST_PROMPTS = 10  # in both runs; with fewer, steps are compared
FEWEST_STEPS = 4
LOOKED = 6000  # characters of a response in which phrases are looked for
MOST_RESPONSES = 4000  # of each run
MOST_UNITS = 500  # prompts or steps of the permutation test
FEWEST_RESPONSES = 5  # that have a phrase, in the half in which it is looked for
CANDIDATES = 20  # phrases that are tested
LONGEST = 4  # words of a phrase
TOGETHER = 0.8  # share of the responses with one phrase that have another one, too
ALPHA = 0.01  # after Holm's correction
SHOWN = 5  # prompts with another answer
EXCERPT = 120  # characters of a prompt


@dataclass(frozen=True)
class Difference:
    """A quantity in both runs, over what they share.

    Attributes:
        what: the quantity.
        here: mean in the log.
        there: mean in the other one.
        difference: here minus there.
        low: end of its 95 % interval; None where there are too few units.
        high: the other end.
        n: prompts, steps or rows that were compared.
        unit: which of these.
    """

    what: str
    here: float
    there: float
    difference: float
    low: float | None
    high: float | None
    n: int
    unit: str


@dataclass(frozen=True)
class Turned:
    """A prompt that one run answers right more often than not, and the other one less often.

    Attributes:
        prompt: its beginning; empty where the log has no texts.
        here: share of right responses in the log.
        there: share in the other one.
        row: one of its rows in the log.
        other_row: one in the other log.
    """

    prompt: str
    here: float
    there: float
    row: int
    other_row: int


@dataclass(frozen=True)
class NewPhrase:
    """A phrase that one run says more often than the other to the same prompts.

    Attributes:
        phrase: in lower case.
        here: share of the responses that have it in the log.
        there: share in the other one.
        p: of a permutation test on prompts that did not choose it, by Holm over all that were tested.
    """

    phrase: str
    here: float
    there: float
    p: float


@dataclass(frozen=True)
class Against:
    """A log compared with another one.

    Attributes:
        name: of the other log.
        compared: what was compared with what, in words.
        changes: of truth, reward and length, as far as both have them.
        gained: how many prompts are answered right here and were not there; None without truth or shared prompts.
        lost: the opposite.
        p: that gains and losses are equally likely, by an exact sign test.
        turned: some of these prompts, the largest differences first.
        phrases: that differ, with proof.
        missing: what could not be compared, and why.
    """

    name: str
    compared: str
    changes: tuple[Difference, ...] = ()
    gained: int | None = None
    lost: int | None = None
    p: float | None = None
    turned: tuple[Turned, ...] = ()
    phrases: tuple[NewPhrase, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Side:
    """The rows of a run with a reward, and the number of the unit that each belongs to; -1: of none."""

    view: View
    unit_M: Codes

    def means(self, values_M: Numbers, units: int) -> Numbers:
        """The mean of each unit, (units,); NaN where none of its rows has a value."""
        known = np.isfinite(values_M) & (self.unit_M >= 0)
        count = np.bincount(self.unit_M[known], minlength=units)
        total = np.bincount(self.unit_M[known], values_M[known], units)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def compare_runs(rows: Rows, other: Rows, name: str, *, seed: int = 0) -> Against:
    """Compare a log with another one.

    Args:
        rows: of the log.
        other: of the other one.
        name: of the other one.
        seed: of samples and permutations.
    """
    views = View.whole(rows, seed), View.whole(other, seed)
    here, there, unit, compared = _sides(*views)
    missing: dict[str, str] = {}
    changes = []
    for what, values in _quantities(*views, missing).items():
        change = _change(what, here, there, values, unit)
        if change is None:
            missing[what] = f"no {unit.rstrip('s')} has it in both"
        else:
            changes.append(change)
    found = Against(name, compared, tuple(changes), missing=missing)
    found = _with_answers(found, here, there, unit)
    return _with_phrases(found, here, there, unit, seed)


def _sides(view: View, other: View) -> tuple[_Side, _Side, str, str]:
    """Both runs by the prompts that they share, else by their steps, else as a whole; the unit, and that in words."""
    keys = [one.of(one.rows.prompt_key_N) for one in (view, other)]
    steps = [one.of(one.rows.step_N) for one in (view, other)]
    for unit, columns, fewest in (("prompts", keys, FEWEST_PROMPTS), ("steps", steps, FEWEST_STEPS)):
        if columns[0] is None or columns[1] is None:
            continue
        shared = np.intersect1d(columns[0], columns[1])
        if len(shared) >= fewest:
            here, there = _place(columns[0], shared), _place(columns[1], shared)
            words = f"by {unit.rstrip('s')}: {len(shared):,} {unit} are in both"
            return _Side(view, here), _Side(other, there), unit, words
    why = f"fewer than {FEWEST_PROMPTS} prompts and {FEWEST_STEPS} steps are in both"
    words = f"as a whole, since {why}: the prompts may differ"
    return _Side(view, np.arange(len(view))), _Side(other, np.arange(len(other))), "rows", words


def _place(column: Codes, shared: Codes) -> Codes:
    """The place of each value among the shared ones, -1 of others."""
    place = np.searchsorted(shared, column)
    found = shared[np.minimum(place, len(shared) - 1)] == column
    return np.where(found, place, -1)


def _quantities(here: View, there: View, missing: dict[str, str]) -> dict[str, tuple[Numbers, Numbers]]:
    """What is compared, of the rows of both; what is not is added to `missing`."""
    found: dict[str, tuple[Numbers, Numbers]] = {}
    if here.truth_M is None or there.truth_M is None:
        lacking = [word for word, one in (("this", here), ("the other", there)) if one.truth_M is None]
        missing["truth"] = f"{' and '.join(lacking)} log has no truth, nor reference answers that can be read"
    else:
        found["truth"] = here.truth_M, there.truth_M
    found["reward"] = here.reward_M, there.reward_M
    lengths = here.of(here.rows.length_N), there.of(there.rows.length_N)
    if lengths[0] is None or lengths[1] is None:
        missing["length"] = "one of the logs has neither responses nor their lengths"
    elif _counts_tokens(here.rows) != _counts_tokens(there.rows):
        missing["length"] = "one log counts it in a column of its own, the other one in characters"
    else:
        found["length"] = lengths
    return found


def _counts_tokens(rows: Rows) -> bool:
    return any(one["role"] == "length" for one in rows.read_as)


def _change(what: str, here: _Side, there: _Side, values: tuple[Numbers, Numbers], unit: str) -> Difference | None:
    """The difference with its interval: of the means of units, or of the rows where nothing is shared."""
    if unit == "rows":
        a, b = (side[np.isfinite(side)] for side in values)
        if not len(a) or not len(b):
            return None
        low, high = welch_interval(a, b) if min(len(a), len(b)) > 1 else (None, None)
        difference = float(a.mean() - b.mean())
        return Difference(what, float(a.mean()), float(b.mean()), difference, low, high, len(a) + len(b), unit)
    units = int(max(here.unit_M.max(), there.unit_M.max())) + 1
    a, b = (side.means(one, units) for side, one in zip((here, there), values, strict=True))
    known = np.isfinite(a) & np.isfinite(b)
    if not known.any():
        return None
    difference_U = (a - b)[known]
    mean, half = float(difference_U.mean()), _half_width(difference_U)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Difference(what, float(a[known].mean()), float(b[known].mean()), mean, low, high, len(difference_U), unit)


def _half_width(values_N: Numbers) -> float | None:
    """Half of the 95 % t-interval of a mean; None of fewer than two values."""
    from scipy.special import stdtrit

    if len(values_N) < 2:
        return None
    return float(stdtrit(len(values_N) - 1, 0.975) * values_N.std(ddof=1) / np.sqrt(len(values_N)))


# ---- answers


def _with_answers(found: Against, here: _Side, there: _Side, unit: str) -> Against:
    """Which prompts are answered right here and were not there, and the opposite."""
    from scipy.stats import binomtest

    if unit != "prompts":
        return replace(found, missing={**found.missing, "answers": "the logs share too few prompts"})
    if here.view.truth_M is None or there.view.truth_M is None:
        return replace(found, missing={**found.missing, "answers": found.missing["truth"]})
    truths = np.concatenate([here.view.truth_M, there.view.truth_M])
    middle = (np.nanmin(truths) + np.nanmax(truths)) / 2
    units = int(max(here.unit_M.max(), there.unit_M.max())) + 1
    a, b = (side.means(_right(side.view, middle), units) for side in (here, there))
    gained, lost = (a > 0.5) & (b < 0.5), (a < 0.5) & (b > 0.5)
    most = np.argsort(-np.abs(np.nan_to_num(a - b)), kind="stable")
    turned = [_turned(int(u), a, b, here, there) for u in most if gained[u] or lost[u]][:SHOWN]
    changed = int(gained.sum() + lost.sum())
    p = float(binomtest(int(gained.sum()), changed).pvalue) if changed else None
    return replace(found, gained=int(gained.sum()), lost=int(lost.sum()), p=p, turned=tuple(turned))


def _right(view: View, middle: float) -> Numbers:
    """1 of right responses, 0 of wrong ones, NaN of those whose truth is not known."""
    assert view.truth_M is not None
    return np.where(np.isfinite(view.truth_M), view.truth_M > middle, np.nan)


def _turned(unit: int, a: Numbers, b: Numbers, here: _Side, there: _Side) -> Turned:
    rows = [int(side.view.row_M[np.flatnonzero(side.unit_M == unit)[0]]) for side in (here, there)]
    texts, prompt = here.view.rows.texts, ""
    if texts is not None and rows[0] in texts.row_M:
        prompt = texts.prompts[int(np.searchsorted(texts.row_M, rows[0]))]
    return Turned(" ".join(prompt.split())[:EXCERPT], float(a[unit]), float(b[unit]), *rows)


# ---- phrases


def _with_phrases(found: Against, here: _Side, there: _Side, unit: str, seed: int) -> Against:
    """Phrases that half of the prompts (or steps) suggest and the other half confirms."""
    why = ""
    if unit == "rows":
        why = "the logs share too few prompts and steps"
    elif not here.view.has_texts or not there.view.has_texts:
        why = "one of the logs has no responses"
    if why:
        return replace(found, missing={**found.missing, "phrases": why})
    random = np.random.default_rng(seed)
    said = [_said(side, random) for side in (here, there)]
    units = np.intersect1d(said[0][0], said[1][0])
    first = random.permutation(units)[: len(units) // 2]
    candidates = _candidates(said, first)
    rest = np.setdiff1d(units, first)
    tested = [_tested(phrase, said, rest[:MOST_UNITS], seed) for phrase in candidates]
    proven = []
    for (phrase, sign), (a, b, _p), adjusted in zip(
        candidates.items(), tested, holm([p for *_, p in tested]), strict=True
    ):
        if adjusted is not None and adjusted < ALPHA and np.sign(a - b) == sign:
            proven.append(NewPhrase(phrase, a, b, adjusted))
    return replace(found, phrases=tuple(_apart(proven, [*said[0][1], *said[1][1]])))


_SaidBy = tuple[Codes, list[str]]  # the unit of each response, and its words with spaces around them


def _said(side: _Side, random: np.random.Generator) -> _SaidBy:
    """The responses of a run that belong to a unit, a sample of them where there are many."""
    one, responses = side.view.texts()
    place = np.searchsorted(side.view.row_M, one.row_M)
    unit_M = side.unit_M[place]
    kept = np.flatnonzero(unit_M >= 0)
    if len(kept) > MOST_RESPONSES:
        kept = np.sort(random.choice(kept, MOST_RESPONSES, replace=False))
    words = [" ".join(words_of(responses[i][:LOOKED])) for i in kept]
    return unit_M[kept], [f" {text} " for text in words]


def _candidates(said: Sequence[_SaidBy], units: Codes) -> dict[str, int]:
    """Phrases whose shares differ most in these units, each with the sign of its difference."""
    counts, sizes = [], []
    for unit_M, texts in said:
        is_in = np.isin(unit_M, units)
        of = [text for text, is_one in zip(texts, is_in, strict=True) if is_one]
        counts.append(_phrases(of))
        sizes.append(max(len(of), 1))
    ranked = []
    for phrase in counts[0] | counts[1]:
        a, b = counts[0][phrase], counts[1][phrase]
        if max(a, b) < FEWEST_RESPONSES:
            continue
        share = (a + b) / sum(sizes)
        error = np.sqrt(max(share * (1 - share), 1e-9) * (1 / sizes[0] + 1 / sizes[1]))
        z = (a / sizes[0] - b / sizes[1]) / error
        ranked.append((abs(z), len(phrase), phrase, int(np.sign(z))))
    ranked.sort(reverse=True)
    return {phrase: sign for z, _, phrase, sign in ranked[:CANDIDATES] if z > 2}


def _phrases(texts: Sequence[str]) -> Counter[str]:
    """In how many texts each run of at most `LONGEST` words is."""
    counts: Counter[str] = Counter()
    for text in texts:
        words = text.split()
        runs = {" ".join(words[k : k + n]) for n in range(1, LONGEST + 1) for k in range(len(words) - n + 1)}
        counts.update(runs)
    return counts


def _tested(phrase: str, said: Sequence[_SaidBy], units: Codes, seed: int) -> tuple[float, float, float | None]:
    """The shares of responses with a phrase in both runs, each unit with the same weight, and p of their difference."""
    shares = []
    for unit_M, texts in said:
        has: Flags = np.array([f" {phrase} " in text for text in texts])
        total = np.bincount(unit_M, has, int(units.max(initial=0)) + 1)
        count = np.bincount(unit_M, minlength=len(total))
        shares.append(total[units] / count[units])
    p = sign_flip_p_value([shares[0] - shares[1]], seed=seed)
    return float(shares[0].mean()), float(shares[1].mean()), p


def _apart(phrases: Sequence[NewPhrase], texts: Sequence[str]) -> list[NewPhrase]:
    """The most different phrases first, the longest of about equal ones, without those that come along with one before.

    A phrase comes along with another where most responses that have the rarer of the two have both.
    """
    kept: list[tuple[NewPhrase, Flags]] = []
    for one in sorted(phrases, key=lambda some: (-round(abs(some.here - some.there), 1), -len(some.phrase))):
        has = np.array([f" {one.phrase} " in text for text in texts])
        if not any((has & other).sum() >= TOGETHER * min(has.sum(), other.sum()) for _, other in kept):
            kept.append((one, has))
    return [one for one, _ in kept]
