"""Checks of what explains the reward of a response apart from its quality, of copies, and of a tail of high rewards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import bdtrc

from guerdon.auditing.association import Association, associate, mean_ranks, strata, stratum_means
from guerdon.auditing.log_view import SPREADS, SURE, Checked, MissingColumn, Undecided, View, enough, found, needed
from guerdon.auditing.rows import Codes, Flags
from guerdon.auditing.text_features import (
    Features,
    flatters,
    fours,
    languages,
    layouts,
    mostly_programs,
    refuse,
    repeats,
    words_of,
)
from guerdon.statistics.proportion import wilson_bounds

# practical minima, set on the first half of benchmarks/audit_sets.py
CORRELATION = 0.15  # within prompt, step and truth
EXPLAINED = 0.1  # standard deviations of the reward within prompts, by one standard deviation of a feature
FLAG = 0.2  # the same, between rows with and without a feature
OF_WHOLE = ("length", "format")  # compared apart for responses that were finished and others
ONE_SIDED = ("repetition", "refusal", "flattery", "no_call", "needless_calls")  # less for these is no fault
ENOUGH = 60  # rows that vary within prompt, step and truth; with fewer the prompt does not count
FEWEST = 5  # rows with a feature
FEWEST_COMPARED = 40  # rows that are compared with others
DUPLICATES = 0.25  # share of responses that came before in their group
SHORT_PROGRAMS = 0.6  # of programs, which often can be written in one way only
COLLAPSED = 0.1  # share of all responses that are one and the same
DIFFERING = 0.08  # share of the repeated responses
NOISE = 0.1  # standard deviations of the reward, between equal responses
FAR = 2.0  # robust standard deviations of the reward above the others
FEWEST_PROMPTS = 10
FEWEST_FAR = 4  # responses far above the others
FEWEST_FAR_PROMPTS = 3  # with a response with the phrase
MANY_FAR = 0.2  # share of responses far above the others that is no tail any more
FAR_ROWS = 400  # whose phrases are compared with those of as many other rows
MOST_PHRASES = 60  # that are looked for in all responses
LOOKED = 6000  # characters of a response in which features are looked for
LONG = 40  # characters from which on a copy is no coincidence


def check_length(view: View) -> Checked:
    """Longer, or shorter, responses get more."""
    length = view.of(view.rows.length_N)
    if length is None or (view.rows.prompt_N is None and view.rows.texts is None):
        raise MissingColumn("response")
    feature = {"longer responses": np.log1p(np.maximum(np.nan_to_num(length.astype(float)), 0))}
    programs = view.right_M is None and view.has_texts and mostly_programs(view.texts()[1])
    return explains(view, "length", feature, 3.0 if programs else 1.0)  # right programs are longer than wrong ones


def _style(name: str, features: Callable[[list[str]], Features], view: View) -> Checked:
    """The style of a response explains its reward."""
    one, responses = view.texts()
    return explains(one, name, features([text[:LOOKED] for text in responses]))


check_format = partial(_style, "format", layouts)


def check_language(view: View) -> Checked:
    """The language of a response explains its reward."""
    one, responses = view.texts()
    features = languages([text[:LOOKED] for text in responses])
    common = {name: flag for name, flag in features.items() if flag.sum() >= FEWEST}
    if len(common) < 2:
        raise MissingColumn(f"responses in two languages; there are {' and '.join(common) or 'none that are known'}")
    known = np.any([*common.values()], axis=0)
    return explains(one.sub(known), "language", {name: flag[known] for name, flag in common.items()})


check_repetition = partial(_style, "repetition", repeats)


def check_refusal(view: View) -> Checked:
    """Refusals get more than other responses, or a 0/1 reward gives them 1."""
    one, responses = view.texts()
    flag = refuse(responses)
    if one.binary and one.right_M is None and flag.sum() >= FEWEST:
        paid, of = flag & (one.reward_M > one.paid_level), int(flag.sum())
        share, p = paid.sum() / of, float(bdtrc(int(paid.sum()) - 1, of, 0.05))
        if share > 0.15 and paid.sum() >= 3:
            title, unit = "{share} of the refusals are rewarded like right answers", "share of the refusals"
            return found(one, "refusal", paid, title, f"{share:.0%} rewarded", unit=unit, of=of, p=p)
    return explains(one, "refusal", {"refusals": flag})


check_flattery = partial(_style, "flattery", flatters)


def check_position(view: View) -> Checked:
    """The position of a response in its group explains its reward."""
    peers = needed(view.peer_M, "group, or several responses to a prompt")
    order, size = np.argsort(peers, kind="stable"), np.bincount(peers)
    place = np.empty(len(view))
    place[order] = np.arange(len(view)) - np.repeat(np.cumsum(size) - size, size)
    last = size[peers] - 1
    features = {
        "later responses of a group": place / np.maximum(last, 1),
        "first responses of a group": place == 0,
        "last responses of a group": place == last,
    }
    return explains(view, "position", features)


class _Tried(NamedTuple):
    """A feature of responses that was compared with the reward.

    Attributes:
        enough: it explains so much of the reward that it counts, if it is no coincidence.
        p: probability of what was found, if the feature does not matter.
        feature: in words.
        found: the association with the reward.
        x_M: whether a response has the feature, or its rank from 0 to 1.
        stratum_M: responses of one number were compared with each other.
        words: which these are.
    """

    enough: bool
    p: float
    feature: str
    found: Association
    x_M: np.ndarray
    stratum_M: Codes
    words: str

    @property
    def flagged(self) -> bool:
        """Whether a response has the feature or not."""
        return self.x_M.dtype == bool

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Of what explains more, the larger one."""
        return self.enough, round(-self.p, 9), self.found.r


def explains(view: View, name: str, features: Features, strictness: float = 1.0) -> Checked:
    """The feature that explains most of the reward, if it explains enough; p is Bonferroni's over the features."""
    one = view.different
    ways = one.comparable
    if not ways:
        raise MissingColumn("group, several responses to a prompt, or truth")
    if name in OF_WHOLE and one.unanswered_M is not None:  # what is cut off is long, and lacks the layout of the end
        ways = [(strata(way, one.unanswered_M), words, strict) for way, words, strict in ways]
    tried = []
    for feature, values in features.items():
        compared = _compared(view, one, ways, name, feature, values, strictness)
        if compared is not None:
            tried.append(compared)
    if not tried:
        raise _nothing_to_compare(one, features, ways)
    most = max(tried, key=lambda some: some.found.n)
    enough(most.found.n, FEWEST_COMPARED, f"rows that differ {most.words}")
    tried = [some for some in tried if some.found.n >= FEWEST_COMPARED]
    best = sorted(tried, key=lambda some: some.rank)[-1]
    p = min(1.0, best.p * len(tried))
    r, words = best.found.r, best.words
    clean = f"{best.feature}: correlation with the reward {r:+.2f} {words} ({best.found.n:,} rows); "
    copies = ", with copies of responses and without" if view.copy_M.any() else ""
    clean += f"{_smallest(best, one, strictness)}{copies} would be a finding"
    if not best.enough:
        return Checked(None, clean, p)
    centred = best.x_M - stratum_means(best.x_M.astype(float), best.stratum_M)
    product = centred * (one.reward_M - stratum_means(one.reward_M, best.stratum_M)) * np.sign(r)
    if best.flagged:
        having = best.x_M
        scale, unit = best.found.difference / one.spread / r, SPREADS
        much = f"by {abs(scale * r):.2f} standard deviations"
    else:
        having = centred * np.sign(r) > 0
        scale, unit = 1.0, "correlation"
        much = f"the correlation is {r:+.2f}"
    return found(
        one,
        name,
        (product > 0) & having,
        f"{best.feature} get {'more' if r > 0 else 'less'}: {words} {much}",
        clean,
        effect=(r * scale, best.found.low * scale, best.found.high * scale),
        p=p,
        order_M=product,
        unit=unit,
        say=lambda i: f"reward {one.reward_M[i]:g}; {best.feature}",
        severity="info" if _may_be_meant(one, name, r) else None,
    )


def _may_be_meant(view: View, name: str, r: float) -> bool:
    """Whether what goes with the reward is a fact and not a fault: layouts are often asked for, length and calls cost.

    Without a truth longer responses may be the better ones.
    """
    costs = name in ("length", "calls") and r < 0
    return costs or name == "format" or (name == "length" and not view.has_truth)


def _smallest(tried: _Tried, view: View, strictness: float) -> str:
    """The smallest effect of a feature that these rows can show: the minimum, or what chance does not do."""
    by_chance = SURE / np.sqrt(tried.found.n)
    if not tried.flagged:
        return f"{max(CORRELATION * strictness, by_chance):.2f}"
    x = tried.x_M.astype(float)
    varies = float((x - stratum_means(x, tried.stratum_M)).std()) * np.sqrt(len(x) / tried.found.n)
    return f"{max(FLAG * strictness, by_chance / varies):.2g} standard deviations more"


def _nothing_to_compare(view: View, features: Features, ways: Sequence[tuple[Codes, str, float]]) -> Exception:
    """Why no feature could be compared with the reward: none is there, too few have it, or the reward is constant."""
    flags = {name: int(values.sum()) for name, values in features.items() if values.dtype == bool}
    if len(flags) == len(features) and not any(flags.values()):
        return MissingColumn(" or ".join([*features][:2]))
    most = max((min(count, len(view) - count) for count in flags.values()), default=FEWEST)
    if len(flags) == len(features) and most < FEWEST:
        return Undecided(f"needs {FEWEST} rows with and {FEWEST} without {' or '.join(flags)}; the log has {most}")
    return Undecided(f"needs {FEWEST_COMPARED} rows whose reward and response differ {ways[-1][1]}; the log has 0")


def _compared(
    view: View,
    one: View,
    ways: Sequence[tuple[Codes, str, float]],
    name: str,
    feature: str,
    values: np.ndarray,
    strictness: float,
) -> _Tried | None:
    """A feature compared with the reward; None where it is too rare, or has no effect that counts.

    Args:
        view: with copies.
        one: without them.
        ways: in which its rows are compared, the best first.
        name: of the check.
        feature: in words.
        values: of each row of `view`.
        strictness: how much stronger than by the minima the effect must be.
    """
    x = values[~view.copy_M]
    flagged = x.dtype == bool
    if flagged and min(x.sum(), (~x).sum()) < FEWEST:
        return None
    if not flagged:
        x = mean_ranks(x) / len(x)
    for way in ways:  # the last one counts where all have too few rows
        got = associate(x, one.reward_M, way[0], seed=view.seed)
        if got.n >= ENOUGH:
            break
    stratum, words, strict = way
    one_sided = name in ONE_SIDED
    if got.p is None:
        return None
    p = got.p
    if one_sided:
        p = p / 2 if got.r > 0 else 1 - p / 2
    difference = abs(got.difference)
    if view.copy_M.any() and p <= 0.01:
        difference = min(difference, _with_copies(view, values, words, np.sign(got.r)))
    effect = difference / one.spread
    if flagged:
        strength = effect / FLAG
    else:
        effect *= (x - stratum_means(x, stratum)).std()
        strength = min(effect / EXPLAINED, abs(got.r) / CORRELATION)
    if one_sided and got.r <= 0:
        strength = 0.0
    return _Tried(strength >= strict * strictness, p, feature, got, x, stratum, words)


def _with_copies(view: View, values: np.ndarray, words: str, sign: float) -> float:
    """The effect of a feature in all rows, at least 0: without copies right answers written in one way are too few."""
    x = values if values.dtype == bool else mean_ranks(values) / len(values)
    stratum = next(way[0] for way in view.comparable if way[1] == words)
    whole = associate(x, view.reward_M, stratum, seed=None)
    return max(0.0, whole.difference * sign)


def check_duplicates(view: View) -> Checked:
    """The same response again within a group, or everywhere."""
    one, responses = view.texts()
    number = _text_numbers(responses)
    long = np.array([len(text) >= LONG for text in responses])
    peers = one.peer_M
    if peers is None:
        prompts = one.of(view.rows.prompt_N)
        peers = strata(np.arange(len(one)) if prompts is None else prompts)
    again = long.copy()
    again[np.unique(strata(peers, number), return_index=True)[1]] = False
    several = int((np.bincount(peers)[peers] > 1).sum())
    enough(max(several, len(one) // 2), 40, "responses")
    counts = np.bincount(number, long)
    common = number == np.argmax(counts)
    spread = counts.max() >= max(20, COLLAPSED * len(one)) and len(np.unique(peers[common])) > 5
    clean = f"{again.sum():,} responses are copies within a group; the most common one is "
    limit = SHORT_PROGRAMS if mostly_programs(responses) else DUPLICATES
    clean += (
        f"{counts.max() / len(one):.1%} of all; {limit:.0%} of a group, or {COLLAPSED:.0%} of all, would be a finding"
    )
    low = wilson_bounds(int(again.sum()), max(several, int(again.sum()), 1))[0]
    if low < limit and not spread:
        return Checked(None, clean)
    flag, of, what = again, several, "copy one of their group"
    if spread:
        flag, of, what = common & long, len(one), "are one and the same"
    title = f"{{share}} of the responses {what}: the policy collapses"
    return found(one, "duplicates", flag, title, clean, of=of, say="the same text as another row")


def _text_numbers(texts: list[str]) -> Codes:
    """Equal numbers are equal texts."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)


def check_inconsistent(view: View) -> Checked:
    """The same response to the same prompt gets different rewards."""
    one, responses = view.texts()
    same = strata(_text_numbers(responses), one.of(view.rows.prompt_N), one.of(view.rows.truncated_N))
    copies = (np.bincount(same) > 1)[same]
    if not copies.any():
        raise MissingColumn("the same response to the same prompt twice")
    enough(int(copies.sum()), 10, "responses that come more than once")
    off = np.abs(one.reward_M - stratum_means(one.reward_M, same))
    noise = float(np.sqrt((off[copies] ** 2).sum() / (copies.sum() - len(np.unique(same[copies]))))) / one.spread
    differ = copies & (np.bincount(same, off > 1e-6 * one.spread) > 0)[same]
    clean = f"{copies.sum():,} responses come more than once; {differ.sum():,} with different rewards"
    if noise < NOISE or differ.sum() < 6 or wilson_bounds(int(differ.sum()), int(copies.sum()))[0] < DIFFERING:
        return Checked(None, clean)
    title = f"{{share}} of the repeated responses have different rewards, by {noise:.2f} standard deviations"
    return found(
        one, "inconsistent", differ, title, clean, unit="share of the repeated responses", of=int(copies.sum()),
        order_M=off, say=lambda i: f"reward {one.reward_M[i]:g}, and another one for the same response",
    )  # fmt: skip


def check_tail(view: View) -> Checked:
    """A few responses with a phrase in common have rewards far above the others, to several prompts."""
    one, responses = view.texts()
    responses = [text for text, copy in zip(responses, one.copy_M, strict=True) if not copy]
    one = one.sub(~one.copy_M)
    enough(len(one), 100, "different responses")
    if one.levels is not None and len(one.levels) <= 5:
        raise MissingColumn(f"a reward of more than five values; this one has {len(one.levels)}")
    prompts = np.arange(len(one)) if view.rows.prompt_N is None else strata(one.of(view.rows.prompt_N))
    enough(int(prompts.max()) + 1, FEWEST_PROMPTS, "prompts")
    z = _above_others(one)
    is_far = z > FAR + 0.5
    far = np.flatnonzero(is_far)
    clean = f"{len(far):,} of {len(one):,} responses are far above the others; no phrase of four or more "
    clean += f"is theirs alone, in {FEWEST_FAR_PROMPTS} prompts"
    if is_far.mean() > MANY_FAR or len(far) < FEWEST_FAR:  # another level of the reward, and no tail
        return Checked(None, clean)
    others = np.random.default_rng(view.seed).permutation(np.flatnonzero(z <= FAR))[:FAR_ROWS]
    farthest = far[np.argsort(-z[far])][:FAR_ROWS]
    phrases, usual = (_phrases([responses[i] for i in rows]) for rows in (farthest, others))
    limit = 4 * min(len(far), FAR_ROWS) / max(len(others), 1)  # four times as often as elsewhere
    rare = _rarer_elsewhere(phrases, usual, limit)
    best = _best_phrase(rare[:MOST_PHRASES], [text.lower() for text in responses], z, prompts)
    if best is None:
        return Checked(None, clean)
    phrase, flag = best
    mean, n, hits = float(z[flag].mean()), int(flag.sum()), int((is_far & flag).sum())
    p = min(1.0, float(bdtrc(hits - 1, n, is_far.mean())) * len(phrases))
    error = 1.96 * float(z[flag].std() / np.sqrt(n))
    title = f'{{count}} responses with "{phrase}" have rewards {mean:.1f} standard deviations above the others'
    return found(
        one, "tail", flag, title, clean, effect=(mean, mean - error, mean + error), unit=SPREADS, p=p, order_M=z,
        say=lambda i: f'reward {one.reward_M[i]:g}; contains "{phrase}"',
    )  # fmt: skip


def _rarer_elsewhere(
    phrases: Counter[tuple[str, ...]], usual: Counter[tuple[str, ...]], limit: float
) -> list[tuple[str, ...]]:
    """The phrases of responses far above the others that are rarer elsewhere, the most frequent first.

    Args:
        phrases: in how many responses far above the others each is.
        usual: in how many of the others.
        limit: how many times as often as elsewhere it must be.
    """
    rare = [(n, phrase) for phrase, n in phrases.items() if n >= FEWEST_FAR and n > limit * (usual[phrase] + 1)]
    return [phrase for _, phrase in sorted(rare, reverse=True)]


def _above_others(view: View) -> np.ndarray:
    """How far each reward is above the others of its group, in robust standard deviations; without groups, of the log.

    The scale is the wider half of the distribution, so that in a reward of two levels neither is far above.

    Raises:
        Undecided: no group has two different responses.
    """
    off = view.reward_M - np.median(view.reward_M)
    if view.peer_M is not None:
        size = np.bincount(view.peer_M)[view.peer_M]
        several = size > 1
        enough(int(several.sum()), 2, "different responses to one prompt")
        off = view.reward_M - stratum_means(view.reward_M, view.peer_M)
        off = np.where(several, off * size / np.maximum(size - 1, 1), 0.0)
        off -= np.median(off[several])
        low, high = np.quantile(off[several], [0.16, 0.84])
    else:
        low, high = np.quantile(off, [0.16, 0.84])
    scale: float = max(high, -low) or view.spread
    return np.asarray(off / scale)


def _phrases(responses: list[str]) -> Counter[tuple[str, ...]]:
    """In how many responses each phrase of two to four words is."""
    counts: Counter[tuple[str, ...]] = Counter()
    for text in responses:
        words = words_of(text[:LOOKED])
        threes = zip(words, words[1:], words[2:], strict=False)
        counts.update({*pairwise(words), *threes, *fours(words)})
    return counts


def _best_phrase(
    phrases: list[tuple[str, ...]], responses: list[str], z: np.ndarray, prompts: Codes
) -> tuple[str, Flags] | None:
    """The phrase whose rows, of several prompts, nearly all have the highest rewards; the longest of equal ones."""
    best: tuple[float, int, str, Flags] | None = None
    for words in phrases:
        pattern = re.compile(r"\W+".join(re.escape(word) for word in words))
        flag = np.array([words[0] in text and bool(pattern.search(text)) for text in responses])
        if not FEWEST_FAR <= flag.sum() <= 0.2 * len(z) or np.quantile(z[flag], 0.25) < FAR:
            continue
        if len(np.unique(prompts[flag])) < FEWEST_FAR_PROMPTS:
            continue
        rank = float(z[flag].mean() * np.sqrt(flag.sum())), len(words)
        if best is None or rank > best[:2]:
            best = *rank, " ".join(words), flag
    return best and best[2:]
