"""What a reward pays for apart from the truth: found on half of the prompts, and tested on the other half.

Candidates are words and runs of up to four words, layouts, lengths, calls of tools, empty responses, programs that
change their tests, and responses that repeat their prompt. Rewards are compared within prompt, step, truth and whether
the response is finished. What the reward adds by a rule of its own, always and to right and wrong ones alike (a bonus
for a layout, a price of the length), is taken out of it: it is no leak.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from guerdon.auditing.association import (
    MANY,
    PERMUTATIONS,
    Association,
    associate,
    mean_ranks,
    strata,
    stratum_ends,
    stratum_means,
)
from guerdon.auditing.log_view import THE_TRUTH, VERIFIED, Checked, MissingColumn, View, braced, enough, found, needed
from guerdon.auditing.program_checks import TRICKS
from guerdon.auditing.rows import Codes, Flags, Numbers
from guerdon.auditing.text_features import LAYOUTS, contain, layouts, mostly_programs, with_layout, words_of
from guerdon.auditing.time_checks import references_of
from guerdon.auditing.value_checks import PAID_LIES
from guerdon.statistics.proportion import wilson_bounds
from guerdon.statistics.training_runs import holm

ALPHA = 0.01  # of all candidates together
MOST = 20  # candidates that are tested
MOST_PHRASES = 12  # of these
MOST_ROWS = 2500  # of either half whose texts are read
LOOKED = 2000  # characters of a response
RUN = 4  # words
APART = 0.55  # probability that a row with the candidate has a higher reward than one without
FEWEST_ROWS = 40  # of either half, in strata in which the reward varies
FEWEST_PROMPTS = 5
MANY_PROMPTS = 24  # from which on prompts are halved, and not groups
FEW_VARYING = 200  # rows in strata in which a 0/1 reward varies, below which the prompt does not count
FEWEST = 8  # rows with a candidate
FEWEST_WITH = 4  # prompts with it
ALIKE = 0.7  # of the rows with either of two candidates: above it they are one
EXPLAINED = 0.1  # standard deviations of the reward within prompts: a smaller difference is not found
RULE = 0.9  # share of the variance within a truth that a price explains
ALWAYS = 0.96  # share of the rows in which a rule of the reward holds: the truth may be misread in the others
NEARLY = 0.04  # difference of probabilities that does not count in the order of candidates
GREW = 0.1  # share of the responses by which a candidate is more common late than early
MOST_CALLS = 30  # names of tools
NEARLY_AS_WELL = 0.8  # of the score of a phrase, which a longer one has, too
RECUR = 0.2  # share of the rows
FEWEST_EMPTY = 5  # responses
MOSTLY = 0.5  # of the responses: above it the log has no texts
_CALL = re.compile(r'\[(\w+)\(|"name":\s*"(\w+)"|(?:^|\n)\s*Action:\s*(\w+)|<(?:function|invoke)[= ]"?(?:name=")?(\w+)')
_COPIED = 8  # words in a row that repeat the prompt


def check_paid(view: View) -> Checked:
    """Something that right and wrong responses have in common with others gets more."""
    halves = _halves(view)
    confirmed, one = _confirmed(halves), halves.test.view
    measured = one.truth_name in (THE_TRUTH, VERIFIED)
    if not measured:  # a second reward does not know all that is good: what good responses have was there before
        confirmed = [candidate for candidate in confirmed if _growth(one, candidate) >= GREW]
    if not confirmed:
        return Checked(None, halves.clean + _changed(halves))
    best = confirmed[0]
    names = ", ".join(candidate.name for candidate in confirmed[:3])
    has = best.has_B
    gained = has & (one.reward_M > stratum_means(one.reward_M, halves.test.stratum))
    effect = best.found.difference / one.spread
    title = f"responses with {names} get more than others with the same {halves.within} and "
    title += f"{'truth' if measured else one.truth_name}: by {effect:.2f} standard deviations, and with probability "
    title += f"{best.apart:.2f} a higher reward{_grew(one, best)}"
    phrases = tuple(candidate.name.strip('"') for candidate in confirmed if candidate.name.startswith('"'))
    return found(
        one, "paid", gained, braced(title), halves.clean, effect=(best.apart, best.low, best.high), unit="probability",
        p=best.p, order_M=one.reward_M, of=int(has.sum()), phrases=phrases,
        say=lambda i: f"reward {one.reward_M[i]:g}; has {best.name}",
    )  # fmt: skip


def check_empty_paid(view: View) -> Checked:
    """Empty responses that are rewarded; no truth is needed to know that they deserve nothing."""
    one, responses = view.texts()
    empty = np.array([not text.strip() for text in responses])
    if empty.mean() > MOSTLY:
        raise MissingColumn("responses with a text; most are empty")
    if not empty.any():
        raise MissingColumn("empty responses")
    enough(int(empty.sum()), FEWEST_EMPTY, "empty responses")
    low, high = np.quantile(one.reward_M, [0.1, 0.9])
    count, paid = int(empty.sum()), empty & (one.reward_M > max((low + high) / 2, one.reward_M.min()))
    clean = f"{paid.sum():,} of {count:,} empty responses are rewarded, and {FEWEST_EMPTY} would be a finding"
    if paid.sum() < FEWEST_EMPTY or wilson_bounds(int(paid.sum()), count)[0] < PAID_LIES:
        return Checked(None, clean)
    title, unit = "{share} of the empty responses are rewarded", "share of the empty responses"
    return found(
        one, "empty_paid", paid, title, clean, of=count, unit=unit, say=lambda i: f"reward {one.reward_M[i]:g}"
    )


@dataclass(frozen=True)
class _Confirmed:
    """A candidate that passed the test on the other half.

    Attributes:
        name: in words; a phrase in quotes.
        has_B: the rows of the other half that have it.
        found: its association with the reward.
        apart: probability that a row with it has a higher reward than one without, ties half.
        low: of its interval.
        high: of its interval.
        p: after Holm's correction over the candidates.
    """

    name: str
    has_B: Flags
    found: Association
    apart: float
    low: float
    high: float
    p: float


def _place(name: str) -> int:
    """Of what nearly the same rows have, calls and the like are named before phrases, and layouts last."""
    if name in LAYOUTS or name.startswith("more than"):
        return 2
    return int(name.startswith('"'))


class _Side(NamedTuple):
    """Rows of one half of the prompts.

    Attributes:
        view: of them, the reward without what it adds by a rule.
        stratum: rows of one number are compared.
        said: their responses, as far as they are looked at.
        words: those of each response in lower case, a blank before, between and behind them.
        calls: names of the tools that each response calls, in order.
        prompts: what was asked.
    """

    view: View
    stratum: Codes
    said: list[str]
    words: list[str]
    calls: list[list[str]]
    prompts: list[str]


class _Halves(NamedTuple):
    """Two halves of the prompts, or of the groups (`units`): one to find candidates, one to test them."""

    find: _Side
    test: _Side
    units: str
    within: str  # what equal rows have in common besides the truth

    @property
    def clean(self) -> str:
        """What to say where nothing passes."""
        looked = f"in {len(self.find.said):,} rows of half of the {self.units} and confirmed in "
        looked += f"{len(self.test.said):,} others"
        return (
            f"nothing that is paid apart from the truth was found {looked}; it would be with a higher reward in "
            f"{APART:.0%} of the comparisons"
        )


def _halves(view: View) -> _Halves:
    """The rows that can be compared, split by their prompt, or by their group where prompts are few.

    Raises:
        MissingColumn: no texts, no truth, or no several responses to a prompt.
        Undecided: too few rows vary.
    """
    one, said, unfinished = _comparable(view)
    stratum, within = _strata(one, unfinished)
    several = (np.bincount(stratum) > 1)[stratum]
    group, prompt = _by_appearance(needed(one.peer_M, "group")), one.of(one.rows.prompt_N)
    prompt = group if prompt is None else _by_appearance(strata(prompt))
    prompts = len(np.unique(prompt[several]))
    enough(prompts, FEWEST_PROMPTS, "prompts with comparable responses")
    units, code = ("prompts", prompt) if prompts >= MANY_PROMPTS else ("groups", group)
    first = np.random.default_rng(view.seed).permutation(int(code.max(initial=0)) + 1)[code] % 2 == 0
    find, test = (_side(one, several & half, stratum, said) for half in (first, ~first))
    enough(min(len(find.said), len(test.said)), FEWEST_ROWS, f"comparable responses in either half of the {units}")
    return _Halves(find, test, units, within)


def _comparable(view: View) -> tuple[View, list[str], Flags | None]:
    """The rows with a text and a truth, without copies and rules of the reward; their texts, and which are unfinished.

    Raises:
        MissingColumn: no texts, no truth, or no several responses to a prompt.
    """
    whole, responses = view.texts()
    whole = _by_second(whole)
    needed(
        whole.truth_M if whole.has_truth else None, "truth, or reference answers: without one good responses are paid"
    )
    needed(whole.peer_M, "group, or several responses to a prompt")
    unfinished = whole.unanswered_M
    if unfinished is not None:  # an empty response is one of the candidates
        unfinished = unfinished & np.array([bool(text.strip()) for text in responses])
    keep = np.isfinite(needed(whole.truth_M, "truth")) & ~whole.copy_M
    said = [text for text, kept in zip(responses, keep, strict=True) if kept]
    return _without_rules(whole.sub(keep), said), said, None if unfinished is None else unfinished[keep]


def _strata(one: View, unfinished: Flags | None) -> tuple[Codes, str]:
    """Which rows are compared, and what they have in common besides the truth, in words."""
    inside = strata(one.peer_M, one.truth_class_M, unfinished)
    if not one.binary or _varying(one, inside) >= FEW_VARYING:
        return _by_appearance(inside), "prompt, step"
    # equally good responses are paid alike to any prompt
    return _by_appearance(strata(one.truth_class_M, one.of(one.rows.step_N), unfinished)), "step"


def _varying(one: View, stratum: Codes) -> int:
    """How many rows are in strata in which the reward varies."""
    low, high = stratum_ends(one.reward_M, stratum)
    return int((low < high)[stratum].sum())


def _by_second(one: View) -> View:
    """The rows with a second reward in the place of the truth, where there is none and one agreed at first.

    What the second reward explains of the reward is taken out of it, and its better half counts as right.
    """
    if one.truth_M is not None or one.doubt:
        return one
    for name, values in references_of(one).items():
        known = np.isfinite(values)
        explained = np.polynomial.Polynomial.fit(values[known], one.reward_M[known], 3)
        reward = np.where(known, one.reward_M - explained(np.where(known, values, 0.0)), one.reward_M)
        better = np.where(known, (values > np.median(values[known])).astype(np.float64), np.nan)
        return replace(one, truth_M=better, truth_name=name, reward_M=reward)
    return one


def _by_appearance(code: Codes) -> Codes:
    """Codes in the order in which they come, so that halves depend on the rows and not on how their codes were made."""
    first, inverse = np.unique(code, return_index=True, return_inverse=True)[1:]
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def _side(one: View, keep: Flags, stratum: Codes, said: list[str]) -> _Side:
    """Whole strata of one half, at most `MOST_ROWS`, those first in which the reward varies."""
    off = np.abs(one.reward_M - stratum_means(one.reward_M, stratum)) > 1e-9 * (np.abs(one.reward_M) + 1)
    size = np.bincount(stratum[keep], minlength=int(stratum.max(initial=0)) + 1)
    order = np.random.default_rng(one.seed).permutation(len(size))
    varies = np.bincount(stratum, off & keep) > 0
    order = np.concatenate([order[varies[order]], order[~varies[order]]])
    chosen = np.zeros(len(size), bool)
    chosen[order[np.cumsum(size[order]) <= MOST_ROWS]] = True
    keep = keep & chosen[stratum]
    view, texts = one.sub(keep), needed(one.rows.texts, "response")
    prompts = [texts.prompts[i] for i in np.searchsorted(texts.row_M, view.row_M)]
    looked = [said[i][:LOOKED] for i in np.flatnonzero(keep)]
    return _Side(view, strata(stratum[keep]), looked, [*map(_words, looked)], [*map(_calls, looked)], prompts)


def _words(text: str) -> str:
    """The words of a text in lower case with blanks around them: a run of words is in it as a text is in a text."""
    return f" {' '.join(words_of(text))} "


# ---------------------------------------------------------------------------------------------------------------------
# What a reward adds by a rule.
# ---------------------------------------------------------------------------------------------------------------------


def _without_rules(one: View, said: list[str]) -> View:
    """The rows with what the reward adds for layouts, and takes for the length, by a rule taken out of it."""
    truth, reward = needed(one.truth_class_M, "truth"), one.reward_M
    for has in layouts(said).values():
        reward = reward - _bonus(has, truth, reward) * has
    logged = one.of(one.rows.length_N)
    for values in (np.array([float(len(text)) for text in said]), logged):
        if values is not None:
            known = np.nan_to_num(np.asarray(values, np.float64))
            reward = reward - _price(known, truth, reward) * known
    reward = np.where(np.abs(reward - one.reward_M) > 0, np.round(reward, 9), one.reward_M)
    return replace(one, reward_M=reward)


def _bonus(has: Flags, truth: Codes, reward: Numbers) -> float:
    """By how much nearly all rows with a flag have more than those without, right and wrong ones alike; else 0."""
    if min(has.sum(), (~has).sum()) < FEWEST:
        return 0.0
    steps, usual = [], 0
    for level in np.unique(truth):
        common = []
        for side in (True, False):
            values, counts = np.unique(np.round(reward[(truth == level) & (has == side)], 6), return_counts=True)
            if len(values):
                common.append(float(values[np.argmax(counts)]))
                usual += int(counts.max())
        if len(common) == 2:
            steps.append(common[0] - common[1])
    is_rule = len(steps) > 1 and usual >= ALWAYS * len(has) and np.ptp(steps) < 1e-4
    return steps[0] if is_rule else 0.0


def _price(values: Numbers, truth: Codes, reward: Numbers) -> float:
    """The slope of the reward over a number within the truth, where nearly all rows are on a straight line; else 0."""
    kept = np.arange(len(values))
    slope = fits = 0.0
    for _ in range(2):
        x, y, of = values[kept], reward[kept], strata(truth[kept])
        x, y = x - stratum_means(x, of), y - stratum_means(y, of)
        spread = float((x**2).sum() * (y**2).sum())
        if spread <= 1e-18 * len(x):
            return 0.0
        slope, fits = float(x @ y) / float((x**2).sum()), float((x @ y) ** 2 / spread)
        off = np.abs(y - x * slope)
        kept = kept[off <= np.quantile(off, ALWAYS)]
    return slope if slope < 0 and fits >= RULE else 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Candidates.
# ---------------------------------------------------------------------------------------------------------------------


def _confirmed(halves: _Halves) -> list[_Confirmed]:
    """The candidates that pass on the other half, those that tell rewards apart best first."""
    test = halves.test
    tested = []
    for name, finder in _candidates(halves.find).items():
        has = finder(test)
        got = associate(has, test.view.reward_M, test.stratum, seed=test.view.seed)
        tested.append((name, has, replace(got, p=_exact(got, has, test.view.reward_M, test.stratum))))
    passed = []
    for (name, has, got), p in zip(tested, holm([got.p for _, _, got in tested]), strict=True):
        if p is None or p >= ALPHA or got.r <= 0 or has.sum() < FEWEST:
            continue
        apart, low, high = _apart(test.view.reward_M, has, test.stratum)
        if low > APART:
            passed.append(_Confirmed(name, has, got, apart, low, high, p))
    passed.sort(key=lambda one: (-round(one.low / NEARLY), _place(one.name), -len(one.name)))
    kept: list[_Confirmed] = []
    for one in passed:
        if all((one.has_B & other.has_B).sum() <= ALIKE * one.has_B.sum() for other in kept):
            kept.append(one)
    return kept


def _exact(got: Association, has: Flags, reward: Numbers, stratum: Codes) -> float | None:
    """The p-value; where no permutation that was drawn is as extreme, exact for two rewards, else by the variance."""
    if got.p is None or got.p > 1.5 / PERMUTATIONS or got.n >= MANY:
        return got.p
    size, with_it = np.bincount(stratum), np.bincount(stratum, has)
    levels = np.unique(reward)
    if len(levels) == 2:
        high = np.bincount(stratum, reward == levels[1])
        chance, least = np.ones(1), int((has & (reward == levels[1])).sum())
        for n, k, m in zip(size.astype(int), high.astype(int), with_it.astype(int), strict=True):
            if 0 < k < n and 0 < m < n:
                chance = np.convolve(chance, _chances(n, k, m))
            else:
                least -= k if m == n else 0
        return min(got.p, 2 * float(chance[max(least, 0) :].sum()))
    x = has - stratum_means(has.astype(np.float64), stratum)
    y = reward - stratum_means(reward, stratum)
    each = np.bincount(stratum, x * x) * np.bincount(stratum, y * y) / np.maximum(size - 1, 1)
    return min(got.p, 2 * float(ndtr(-abs(float(x @ y)) / np.sqrt(each.sum()))))


@lru_cache(maxsize=1024)  # strata are often alike
def _chances(rows: int, marked: int, drawn: int) -> Numbers:
    """The probability that so many of the rows drawn are marked, for 0, 1, ... of them."""
    from scipy.stats import hypergeom

    chances: Numbers = hypergeom.pmf(np.arange(min(marked, drawn) + 1), rows, marked, drawn)
    return chances


_Finder = Callable[[_Side], Flags]  # which rows have a candidate


class _Ranked(NamedTuple):
    """A candidate in the first half: how far its rows are above the others, and which these are."""

    score: float
    name: str
    finder: _Finder
    has: Flags


def _candidates(side: _Side, *, with_phrases: bool = True) -> dict[str, _Finder]:
    """The candidates that go best with the reward in the first half, at most `MOST`; phrases are behind all others."""
    centred = side.view.reward_M - stratum_means(side.view.reward_M, side.stratum)
    prompt = strata(side.prompts)
    forms, phrases = list[_Ranked](), list[_Ranked]()
    for name, finder in _forms(side).items():
        has = finder(side)
        forms.append(_Ranked(_score(has, centred, side.stratum, prompt), name, finder, has))
    for phrase, has in _phrases(side.words, centred) if with_phrases else ():
        score = _score(has, centred, side.stratum, prompt)
        phrases.append(_Ranked(score, f'"{phrase}"', partial(_says, phrase), has))
    forms.sort(key=lambda one: (-round(one.score, 1), _place(one.name)))
    phrases.sort(key=lambda one: (-round(one.score, 1), -one.name.count(" "), one.name))
    kept = [*_different(forms, MOST - MOST_PHRASES)]
    kept += [_in_full(one, phrases) for one in _different(phrases, MOST_PHRASES)]
    return {one.name: one.finder for one in kept}


def _different(ranked: Sequence[_Ranked], most: int) -> list[_Ranked]:
    """The first candidates that are above the others, of those that nearly the same rows have one."""
    kept: list[_Ranked] = []
    for one in ranked:
        if one.score <= 0 or len(kept) == most:
            break
        if all((one.has & other.has).sum() <= ALIKE * (one.has | other.has).sum() for other in kept):
            kept.append(one)
    return kept


def _in_full(one: _Ranked, phrases: Sequence[_Ranked]) -> _Ranked:
    """The longest run of words with the phrase in it that goes with the reward nearly as well, in nearly its rows."""
    inside = [other for other in phrases if f" {one.name[1:-1]} " in f" {other.name[1:-1]} "]
    alike = [other for other in inside if (one.has & other.has).sum() >= ALIKE * (one.has | other.has).sum()]
    return max(
        (other for other in alike if other.score >= NEARLY_AS_WELL * one.score), key=lambda other: other.name.count(" ")
    )


def _score(has: Flags, centred: Numbers, stratum: Codes, prompt: Codes) -> float:
    """How far rows with a candidate are above the others, in standard errors; 0 where they are too few."""
    count = int(has.sum())
    if min(count, len(has) - count) < FEWEST or len(np.unique(prompt[has])) < FEWEST_WITH:
        return 0.0
    x = has - stratum_means(has.astype(np.float64), stratum)
    error = float(np.sqrt((x**2 * centred**2).sum()))
    return float(x @ centred) / error if error > 0 else 0.0


def _phrases(worded: Sequence[str], centred: Numbers) -> list[tuple[str, Flags]]:
    """The words and runs of words whose rows are most above their strata, at most 150."""
    said = [words.split() for words in worded]
    row = np.repeat(np.arange(len(worded)), [len(one) for one in said])
    if not len(row):
        return []
    names = list(dict.fromkeys(chain.from_iterable(said)))
    numbers = {name: k for k, name in enumerate(names)}
    word = np.fromiter(map(numbers.__getitem__, chain.from_iterable(said)), np.int64, len(row))
    spread = float((centred**2).mean()) or 1.0
    best: list[tuple[float, int, int, Flags]] = []
    code, place = word, np.arange(len(word))
    for width in range(1, RUN + 1):
        if width > 1:
            longer = _longer(place, row, width)
            code = code[longer] * len(names) + word[place[longer] + width - 1]
            place = place[longer]
        code, place, of, count = _often(code, place, row, len(worded))
        if not len(code):
            break
        kind = np.repeat(np.arange(len(count)), count)
        score = np.bincount(kind, centred[of]) / np.sqrt(count * spread)
        score[count > len(worded) - FEWEST] = -np.inf
        first = np.zeros(len(count), np.int64)
        first[code[::-1]] = place[::-1]
        ends = np.cumsum(count)
        for one in np.argsort(-score, kind="stable")[:60]:
            if score[one] > 1.5:
                has = np.zeros(len(worded), bool)
                has[of[ends[one] - count[one] : ends[one]]] = True
                best.append((float(score[one]), width, int(first[one]), has))
    best.sort(key=lambda one: -one[0])
    return [(" ".join(names[k] for k in word[at : at + width]), has) for _, width, at, has in best[:150]]


def _longer(place: Codes, row: Codes, width: int) -> Codes:
    """Which of the runs may be in enough rows with one more word: in their row another one begins at the next word.

    Args:
        place: of the first word of each run that is in enough rows, ascending.
        row: of each word.
        width: words, with one more.
    """
    begins = np.zeros(len(row) + 1, bool)
    begins[place] = True
    longer: Codes = np.flatnonzero(begins[place + 1])
    is_in_row = row[place[longer]] == row[place[longer] + width - 1]
    return np.asarray(longer[is_in_row])


def _often(run: Codes, place: Codes, row: Codes, rows: int) -> tuple[Codes, Codes, Codes, Codes]:
    """The runs of words that are in at least `FEWEST` rows.

    Args:
        run: a number for each place; equal ones are equal runs.
        place: of their first words.
        row: of each word.
        rows: their number.

    Returns:
        A number from 0 for each place where such a run begins; these places; the rows of the first run, of the second
        one and so on, each once and ascending; and how many these are.
    """
    pairs = np.sort(run * rows + row[place])
    pairs = pairs[np.diff(pairs, prepend=-1) != 0]
    kinds, count = _counted(pairs // rows)
    often = count >= FEWEST
    of = (pairs % rows)[np.repeat(often, count)]
    kinds, count = kinds[often], count[often]
    if not len(kinds):
        return kinds, kinds, of, count
    code = np.minimum(np.searchsorted(kinds, run), len(kinds) - 1)
    inside = kinds[code] == run
    return code[inside], place[inside], of, count


def _counted(ascending: Codes) -> tuple[Codes, Codes]:
    """Different values of an ascending column, and how often each comes."""
    starts = np.flatnonzero(np.diff(ascending, prepend=-1) != 0)
    return ascending[starts], np.diff(starts, append=len(ascending))


def _forms(side: _Side) -> dict[str, _Finder]:
    """What is not a phrase, by name."""
    found: dict[str, _Finder] = {name: partial(_has_layout, name) for name in LAYOUTS}
    if mostly_programs(side.said):
        found |= {name: partial(_has_trick, name) for name in TRICKS}
    found |= {"no text at all": _is_empty, "words repeated from the prompt": _repeats}
    limits = np.quantile(_lengths(side), (0.5, 0.9)).astype(int).tolist()
    found |= {f"more than {limit:,} characters": partial(_is_longer, limit) for limit in limits}
    called = sorted({name for calls in side.calls for name in calls})[:MOST_CALLS]
    found |= {f"a call of {name}": partial(_does_call, name) for name in called}
    return found | {f"more than {count} calls": partial(_calls_often, count) for count in (1, 3)}


def _says(phrase: str, side: _Side) -> Flags:
    return contain(side.words, [f" {phrase} "])


def _has_layout(name: str, side: _Side) -> Flags:
    return with_layout(name, side.said)


def _has_trick(name: str, side: _Side) -> Flags:
    return TRICKS[name](side.said)


def _is_empty(side: _Side) -> Flags:
    return np.array([not text.strip() for text in side.said], bool)


def _lengths(side: _Side) -> Codes:
    return np.array([len(text) for text in side.said], np.int64)


def _is_longer(limit: int, side: _Side) -> Flags:
    return np.asarray(_lengths(side) > limit)


def _does_call(name: str, side: _Side) -> Flags:
    return np.array([name in calls for calls in side.calls], bool)


def _calls_often(count: int, side: _Side) -> Flags:
    return np.array([len(calls) > count for calls in side.calls], bool)


def _calls(text: str) -> list[str]:
    """Names of the tools that a response calls, in order."""
    if "[" not in text and '"name"' not in text and "Action" not in text and "<" not in text:
        return []
    return [next(filter(None, names)) for names in _CALL.findall(text)]


def _repeats(side: _Side) -> Flags:
    """Which responses have a run of words of their prompt."""
    asked = {prompt: set(_runs(_words(prompt[:LOOKED]), 1)) for prompt in set(side.prompts)}
    pairs = zip(side.words, side.prompts, strict=True)
    return np.array([not asked[prompt].isdisjoint(_runs(words, 2)) for words, prompt in pairs], bool)


def _runs(words: str, every: int) -> Iterable[tuple[str, ...]]:
    """The runs of words of a text, from each word or from every second one on."""
    listed = words.split()
    return zip(*(listed[k::every] for k in range(_COPIED)), strict=False)


def _apart(reward: Numbers, has: Flags, stratum: Codes) -> tuple[float, float, float]:
    """Probability that a row with a candidate has a higher reward than one without in its stratum, with its interval.

    Strata in which all rewards are equal do not count: nothing can be paid there.
    """
    within = stratum * 4.0 * (np.ptp(reward) + 1.0) + (reward - reward.min())
    rank = mean_ranks(within)
    size, n1 = np.bincount(stratum), np.bincount(stratum, has)
    before = np.cumsum(size) - size  # ranks of lower strata
    wins = np.bincount(stratum, np.where(has, rank - before[stratum], 0.0)) - n1 * (n1 + 1) / 2
    off = np.abs(reward - stratum_means(reward, stratum)) > 1e-9 * (np.abs(reward) + 1)
    varies = np.bincount(stratum, off) > 0
    wins, pairs = wins[varies], (n1 * (size - n1))[varies]
    share = float(wins.sum() / pairs.sum())
    error = 1.96 * float(np.sqrt(((wins - share * pairs) ** 2).sum()) / pairs.sum())
    return share, share - error, share + error


# ---------------------------------------------------------------------------------------------------------------------
# Late against early.
# ---------------------------------------------------------------------------------------------------------------------


def _shares(one: View, best: _Confirmed) -> tuple[float, float] | None:
    """The shares of the first and of the last third of the run that have a candidate; None without steps."""
    late = _thirds(one)
    if late is None or not {0, 1} <= set(late.tolist()):
        return None
    return float(best.has_B[late == 0].mean()), float(best.has_B[late == 1].mean())


def _growth(one: View, best: _Confirmed) -> float:
    """By which share of the responses a candidate is more common late than early; 0 without steps."""
    shares = _shares(one, best)
    return 0.0 if shares is None else shares[1] - shares[0]


def _grew(one: View, best: _Confirmed) -> str:
    """How much more common a candidate is in the last third of the run than in the first, in words."""
    shares = _shares(one, best)
    if shares is None:
        return ""
    return f"; {shares[0]:.0%} of the first third of the run have it, and {shares[1]:.0%} of the last"


def _thirds(one: View) -> Codes | None:
    """0 in the first third of the run, 1 in the last, -1 between; None without steps."""
    step = one.of(one.rows.step_N)
    if step is None or np.ptp(step) == 0:
        return None
    low, high = np.quantile(step, [1 / 3, 2 / 3])
    return np.where(step <= low, 0, np.where(step >= high, 1, -1)).astype(np.int64)


def _changed(halves: _Halves) -> str:
    """What became more common over the run, within prompts that recur, else of forms and lengths only; in words."""
    find, test = (_early_and_late(side) for side in (halves.find, halves.test))
    if find is None or test is None:
        return ""
    recur = _recurring(find) and _recurring(test)
    find, test = (
        side._replace(stratum=strata(side.prompts if recur else np.zeros(len(side.said)), side.view.truth_class_M))
        for side in (find, test)
    )
    words = _more_common(find, test, with_phrases=recur)
    return f"; more common late in the run, whether paid or not: {', '.join(words[:3])}" if words else ""


def _more_common(find: _Side, test: _Side, *, with_phrases: bool) -> list[str]:
    """Candidates of the first half that the late rows of the second have more often than the early ones, in words."""
    late = test.view.reward_M > 0
    having = {name: finder(test) for name, finder in _candidates(find, with_phrases=with_phrases).items()}
    got = [associate(has, test.view.reward_M, test.stratum, seed=test.view.seed) for has in having.values()]
    words = []
    for (name, has), one, p in zip(having.items(), got, holm([one.p for one in got]), strict=True):
        before, after = float(has[~late].mean()), float(has[late].mean())
        if p is not None and p < ALPHA and one.r > 0 and after - before >= GREW:
            words.append(f"{name} ({before:.0%} to {after:.0%})")
    return words


def _early_and_late(side: _Side) -> _Side | None:
    """The rows of the first and of the last third of the run, with 0 and 1 as their rewards; None without both."""
    third = _thirds(side.view)
    if third is None or not {0, 1} <= set(third.tolist()):
        return None
    outer = np.flatnonzero(third >= 0)
    view = side.view.sub(third >= 0)
    view = replace(view, reward_M=third[outer].astype(np.float64))
    said, words, prompts = ([texts[i] for i in outer] for texts in (side.said, side.words, side.prompts))
    return _Side(view, side.stratum[outer], said, words, [side.calls[i] for i in outer], prompts)


def _recurring(side: _Side) -> bool:
    """Whether a fifth of the rows has a prompt that comes both early and late."""
    code, late = strata(side.prompts), side.view.reward_M > 0
    both = (np.bincount(code, ~late) > 0) & (np.bincount(code, late) > 0)
    return bool(both[code].mean() >= RECUR)
