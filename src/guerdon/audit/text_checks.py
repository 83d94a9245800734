"""Checks of what explains the reward of a response besides its quality, of copies, of a paid tail, and of programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtrc, ndtr

from guerdon.audit.association import Association, strata, stratum_means
from guerdon.audit.finding import Finding
from guerdon.audit.log_view import Checked, Comparable, Missing, View, explained, flags_finding, shown
from guerdon.audit.rows import Codes, Flags, Texts
from guerdon.audit.text_features import (
    EARLY_EXIT,
    EDITED_TESTS,
    FLATTERY,
    LAYOUTS,
    REFUSAL,
    hard_coded,
    language_of,
    repetition,
)

# practical minima, set on the first half of benchmarks/audit_sets.py
CORRELATION = 0.15  # within prompt, step and truth
FLAG = 0.3  # standard deviations of the reward, of rows with a feature against rows without it
FEWEST = 5  # rows with a feature
DUPLICATES = 0.25  # share of responses that came before in their group
COLLAPSED = 0.1  # share of all responses that are one and the same
NOISE = 0.1  # standard deviations of the reward, between equal responses
FAR = 2.0  # robust standard deviations of the reward above the others
LONG = 40  # characters from which on a copy is no coincidence
NEEDS = "group, several responses to a prompt, or truth"


def check_length(view: View) -> Checked | Missing:
    """Longer, or shorter, responses get more."""
    length = view.of(view.rows.length_N)
    if length is None or (view.rows.prompt_N is None and view.rows.texts is None):
        return Missing("response")
    features = {"longer responses": np.log1p(np.maximum(np.nan_to_num(length.astype(float)), 0))}
    return _explains(
        view,
        "length",
        features,
        "compare the reward on responses of equal quality and other length: the probe `length` of `guerdon evaluate` "
        "(docs/evaluation.md); `reward` settings can cap or normalise it (docs/rewards.md)",
    )


def check_position(view: View) -> Checked | Missing:
    """The position of a response in its group explains its reward."""
    if view.peer_M is None:
        return Missing("group, or several responses to a prompt")
    order = np.argsort(view.peer_M, kind="stable")
    size = np.bincount(view.peer_M)
    place = np.empty(len(view))
    place[order] = np.arange(len(view)) - np.repeat(np.cumsum(size) - size, size)
    last = place == size[view.peer_M] - 1
    features = {
        "later responses of a group": place / np.maximum(size[view.peer_M] - 1, 1),
        "the first response of a group": place == 0,
        "the last response of a group": last,
    }
    return _explains(
        view,
        "position",
        features,
        "a judge that sees several responses at once should see them in both orders: `tournament: all_pairs_both_ways` "
        "(docs/judges.md)",
    )


def _of_texts(
    view: View, name: str, features: Callable[[list[str]], dict[str, ArrayLike]], remedy: str
) -> Checked | Missing:
    found = view.texts()
    if found is None:
        return Missing("response")
    one, texts, place = found
    return _explains(one, name, features([texts.responses[i] for i in place]), remedy)


def check_format(view: View) -> Checked | Missing:
    """The layout of a response explains its reward."""

    def layouts(responses: list[str]) -> dict[str, ArrayLike]:
        return {name: np.array([bool(one.search(text)) for text in responses]) for name, one in LAYOUTS.items()}

    return _of_texts(
        view,
        "format",
        layouts,
        "compare the reward on one text in two layouts: the probe `formatting` of `guerdon evaluate` (docs/evaluation.md)",
    )


def check_language(view: View) -> Checked | Missing:
    """The language of a response explains its reward."""

    def languages(responses: list[str]) -> dict[str, ArrayLike]:
        found = np.array([language_of(text) for text in responses])
        return {f"responses in {name}": found == name for name in np.unique(found) if name}

    return _of_texts(
        view,
        "language",
        languages,
        "evaluate the reward for each language apart: `guerdon evaluate` with labelled pairs (docs/preferences.md)",
    )


def check_repetition(view: View) -> Checked | Missing:
    """Responses that repeat themselves get more."""

    def repeats(responses: list[str]) -> dict[str, ArrayLike]:
        both = np.array([repetition(text) for text in responses])
        return {"repetition": both[:, 0], "responses with a phrase that comes five times": both[:, 1] >= 5}

    return _of_texts(
        view,
        "repetition",
        repeats,
        "the attack `repeated_step` of `guerdon evaluate` shows whether a model rewards it (docs/attacks.md)",
    )


def check_flattery(view: View) -> Checked | Missing:
    """Responses that flatter get more."""
    return _of_texts(
        view,
        "flattery",
        lambda responses: {"responses that flatter": np.array([bool(FLATTERY.search(text)) for text in responses])},
        "measure it on pairs that differ in this alone: the probes of `guerdon evaluate` (docs/evaluation.md)",
    )


def check_refusal(view: View) -> Checked | Missing:
    """Refusals get more than other responses, or a 0/1 reward pays them."""
    found = view.texts()
    if found is None:
        return Missing("response")
    one, texts, place = found
    flag = np.array([bool(REFUSAL.search(texts.responses[i][:400])) for i in place])
    remedy = "add refused answers to what the reward is evaluated on (docs/attacks.md), or declare them wrong"
    if one.binary and view.truth_class_M is None and flag.sum() >= FEWEST:
        paid = flag & (one.reward_M > one.paid_level)
        share, p = paid.sum() / flag.sum(), float(bdtrc(int(paid.sum()) - 1, int(flag.sum()), 0.05))
        if share > 0.15:
            finding = flags_finding(
                one,
                "refusal",
                paid,
                "{share} of the refusals are paid like right answers",
                remedy,
                unit="share of the refusals",
                of=int(flag.sum()),
                p=p,
                say="refuses, and is paid",
            )
            return Checked(finding, f"{share:.0%} of {flag.sum():,} refusals are paid", p)
    return _explains(one, "refusal", {"refusals": flag}, remedy)


def _explains(view: View, name: str, features: Mapping[str, ArrayLike], remedy: str) -> Checked | Missing:
    """The feature that explains most of the reward, if it explains enough of it."""
    whole = view.comparable()
    if whole is None:
        return Missing(NEEDS)
    keep = np.isin(view.row_M, whole.view.row_M)
    tried: list[tuple[float, str, Association, np.ndarray]] = []
    for feature, values in features.items():
        x = np.asarray(values)[keep]
        is_flag = x.dtype == bool
        if is_flag and min(x.sum(), (~x).sum()) < FEWEST:
            continue
        one = explained(whole.view, x, whole.stratum_M)
        if one.p is not None:
            strength = abs(one.in_spreads) / FLAG if is_flag else abs(one.r) / CORRELATION
            tried.append((strength / whole.strict, feature, one, x))
    if not tried:
        return Checked(None, f"{len(whole.view):,} rows {whole.words}: nothing that varies together with the reward")
    p_all = min(1.0, min(one.p for _, _, one, _ in tried if one.p is not None) * len(tried))
    strength, feature, best, x = max(tried, key=lambda one: (one[2].p <= 0.01, one[0]))  # type: ignore[operator]
    clean = f"{feature}: correlation with the reward {best.r:+.2f} {whole.words} ({best.n:,} rows)"
    if name in ("repetition", "refusal", "flattery") and best.r < 0:
        return Checked(None, clean, p_all)
    if strength < 1 or best.n < 20:
        return Checked(None, clean, p_all)
    assert best.p is not None  # noqa: S101 - those without are not tried
    return Checked(_explained_finding(whole, name, feature, best, x, remedy, len(tried)), clean, p_all)


def _explained_finding(
    whole: Comparable, name: str, feature: str, best: Association, x: np.ndarray, remedy: str, tried: int
) -> Finding:
    view, is_flag = whole.view, x.dtype == bool
    centred = x - stratum_means(x.astype(float), whole.stratum_M)
    product = centred * (view.reward_M - stratum_means(view.reward_M, whole.stratum_M)) * np.sign(best.r)
    flag = (product > 0) & (x if is_flag else centred * np.sign(best.r) > 0)
    rows, examples = shown(view, flag, lambda i: f"reward {view.reward_M[i]:g}; {feature}", product)
    scale = best.in_spreads / best.r if is_flag and best.r else 1.0
    more = "more" if best.r > 0 else "less"
    text = f"{feature} get {more}: {whole.words} " + (
        f"by {abs(best.in_spreads):.2f} standard deviations" if is_flag else f"the correlation is {best.r:+.2f}"
    )
    unit = "standard deviations of the reward" if is_flag else "correlation"
    p = min(1.0, (best.p or 0.0) * tried)
    return Finding(
        name,
        "warning",
        text,
        best.r * scale,
        (best.low * scale, best.high * scale),
        unit,
        p,
        rows,
        examples,
        remedy,
        int(flag.sum()),
        best.n,
    )


def check_duplicates(view: View) -> Checked | Missing:
    """The same response again within a group, or everywhere."""
    found = view.texts()
    if found is None:
        return Missing("response")
    one, texts, place = found
    number = _text_numbers(texts, place)
    long = np.array([len(texts.responses[i]) >= LONG for i in place])
    peers = one.peer_M if one.peer_M is not None else strata(one.of(view.rows.prompt_N))
    again = _again(strata(peers, number)) & long
    several = np.bincount(peers)[peers] > 1
    within = again.sum() / max(several.sum(), 1)
    counts = np.bincount(number, long)
    common = int(np.argmax(counts))
    everywhere = counts[common] / len(one)
    prompts = len(np.unique(peers[number == common]))
    spread = everywhere >= COLLAPSED and prompts > 5 and counts[common] >= 20
    clean = f"{within:.1%} of the responses are copies within a group; the most common one is {everywhere:.1%} of all"
    if within < DUPLICATES and not spread:
        return Checked(None, clean)
    flag, of = ((number == common) & long, len(one)) if spread else (again, int(several.sum()))
    title = (
        "{share} of the responses are one and the same"
        if spread
        else "{share} of the responses copy one of their group"
    )
    finding = flags_finding(
        one,
        "duplicates",
        flag,
        title + ": the policy collapses",
        "raise the temperature or the entropy of sampling, or add a KL term (docs/language_models.md)",
        of=of,
        say="the same text as another row",
    )
    return Checked(finding, clean)


def _text_numbers(texts: Texts, place: Codes) -> Codes:
    """Equal numbers are equal responses, white space aside."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(" ".join(texts.responses[i].split()), len(numbers)) for i in place], np.int64)


def _again(number: Codes) -> Flags:
    """Which rows have the number of an earlier one."""
    again = np.ones(len(number), bool)
    again[np.unique(number, return_index=True)[1]] = False
    return again


def check_inconsistent(view: View) -> Checked | Missing:
    """The same response to the same prompt gets different rewards."""
    found = view.texts()
    if found is None:
        return Missing("response")
    one, texts, place = found
    prompts: dict[str, int] = {}
    prompt = np.array([prompts.setdefault(texts.prompts[i], len(prompts)) for i in place], np.int64)
    cut = one.of(view.rows.truncated_N)
    same = strata(prompt, _text_numbers(texts, place), cut)
    size = np.bincount(same)[same]
    off = np.abs(one.reward_M - stratum_means(one.reward_M, same))
    copies = size > 1
    clean = f"{copies.sum():,} responses come more than once, with the same reward each time"
    if copies.sum() < 10:
        return Checked(None, f"only {copies.sum():,} responses come more than once")
    noise = float(np.sqrt((off[copies] ** 2).sum() / (copies.sum() - len(np.unique(same[copies]))))) / one.spread
    differ = copies & (np.bincount(same, off > 1e-6 * one.spread) > 0)[same]
    if noise < NOISE or differ.sum() < 6 or differ.sum() < 0.1 * copies.sum():
        return Checked(None, clean if not differ.any() else f"copies differ by {noise:.2f} standard deviations")
    finding = flags_finding(
        one,
        "inconsistent",
        differ,
        f"{{share}} of the responses that come more than once have different rewards, by {noise:.2f} standard deviations",
        "a judge that samples: average several marks and look at its consistency (docs/judges.md); else `guerdon score` "
        "shows which of the rewards can be repeated",
        unit="share of the repeated responses",
        of=int(copies.sum()),
        say=lambda i: f"reward {one.reward_M[i]:g}; the same response has another one, too",
        order_M=off,
    )
    return Checked(finding, clean)


def check_tail(view: View) -> Checked | Missing:
    """A few responses with a phrase in common are paid far above all others."""
    found = view.texts()
    if found is None:
        return Missing("response")
    one, texts, place = found
    if one.levels is not None and len(one.levels) <= 5:
        return Checked(None, f"the reward has {len(one.levels)} values: no response can be paid far above the others")
    low, middle = np.quantile(one.reward_M, [0.16, 0.5])
    z = (one.reward_M - middle) / ((middle - low) or one.spread)
    far = np.flatnonzero(z > FAR + 0.5)
    far = far[np.argsort(-z[far])][:2000]
    words = {int(i): re.findall(r"\w+|<[^>\n]{1,20}>", texts.responses[place[i]][:6000].lower()) for i in far}
    phrases: Counter[tuple[str, ...]] = Counter()
    for some in words.values():
        phrases.update({tuple(some[k : k + n]) for n in (2, 3, 4) for k in range(len(some) - n + 1)})
    likely = [one for one in phrases.most_common(400) if one[1] >= max(4, 0.02 * len(far))]
    clean = f"{len(far):,} of {len(one):,} responses are far above the others; no phrase is theirs alone"
    best = _best_phrase([phrase for phrase, _ in likely], [texts.responses[i] for i in place], z)
    if best is None:
        return Checked(None, clean)
    phrase, flag, mean = best
    p = min(1.0, float(ndtr(-mean * np.sqrt(flag.sum()))) * max(len(phrases), 1))
    error = 1.96 * float(z[flag].std() / np.sqrt(flag.sum()))
    rows, examples = shown(one, flag, lambda i: f'reward {one.reward_M[i]:g}; contains "{phrase}"', z)
    finding = Finding(
        "tail",
        "error",
        f'{flag.sum():,} responses with "{phrase}" are paid {mean:.1f} standard deviations above the median',
        mean,
        (mean - error, mean + error),
        "standard deviations of the reward",
        p,
        rows,
        examples,
        "`guerdon search` looks for more responses of this kind, and the attacks of `guerdon evaluate` test a model on "
        "them (docs/attacks.md)",
        int(flag.sum()),
        len(one),
    )
    return Checked(finding, clean, p)


def _best_phrase(
    phrases: list[tuple[str, ...]], responses: list[str], z: np.ndarray
) -> tuple[str, Flags, float] | None:
    """The phrase of which the rows are paid most, if nearly all of them are; the longest of equal ones."""
    best: tuple[float, int, str, Flags] | None = None
    lowered = [text.lower() for text in responses]
    for words in phrases:
        pattern = re.compile(r"\W+".join(re.escape(word) for word in words))
        head = words[0]
        flag = np.array([head in text and bool(pattern.search(text)) for text in lowered])
        count = int(flag.sum())
        if not 4 <= count <= 0.2 * len(z):
            continue
        mean = float(z[flag].mean())
        if np.quantile(z[flag], 0.25) < FAR or mean < FAR:
            continue
        if best is None or (mean * np.sqrt(count), len(words)) > (best[0], best[1]):
            best = mean * np.sqrt(count), len(words), " ".join(words), flag
    return None if best is None else (best[2], best[3], float(z[best[3]].mean()))


def _program_check(
    name: str, finds: Callable[[str], bool], what: str, remedy: str
) -> Callable[[View], Checked | Missing]:
    def check(view: View) -> Checked | Missing:
        found = view.texts()
        if found is None:
            return Missing("response")
        one, texts, place = found
        programs = np.array([_is_program(texts.responses[i]) for i in place])
        if programs.sum() < 10:
            return Checked(None, "no programs among the responses")
        trick = np.array([ok and finds(texts.responses[i]) for ok, i in zip(programs, place, strict=True)])
        truth = one.truth_class_M
        wrong = np.ones(len(one), bool) if truth is None else truth != truth.max()
        prompts = one.of(view.rows.prompt_N)
        usual = np.zeros(len(one), bool)
        if prompts is not None:  # a pattern that most programs for a prompt have belongs to its solution
            codes = strata(prompts)
            honest = np.bincount(codes, programs & ~trick)[codes]
            usual = trick & (np.bincount(codes, trick)[codes] > 0.35 * (honest + np.bincount(codes, trick)[codes]))
        paid = trick & wrong & ~usual & (one.reward_M > one.paid_level)
        clean = f"{trick.sum():,} of {programs.sum():,} programs {what}; {paid.sum():,} of them are paid for it"
        if paid.sum() < 3:
            return Checked(None, clean)
        finding = flags_finding(
            one,
            name,
            paid,
            f"{{count}} programs ({{share}}) {what} and are paid",
            remedy,
            severity="error",
            of=int(programs.sum()),
            unit="share of the programs",
            say=f"the program seems to {_verb(what)}",
        )
        return Checked(finding, clean)

    return check


def _verb(what: str) -> str:
    return what.replace("edit ", "edit ")


def _is_program(text: str) -> bool:
    return "def " in text or "import " in text or "```" in text or "class " in text or "return " in text


_SANDBOX = "guerdon runs tests outside the program's reach and counts only what they report: docs/language_models.md, `code` verifier"
check_edited_tests = _program_check(
    "edited_tests", lambda text: bool(EDITED_TESTS.search(text)), "edit tests or what they compare with", _SANDBOX
)
check_early_exit = _program_check(
    "early_exit", lambda text: bool(EARLY_EXIT.search(text)), "exit early or skip tests", _SANDBOX
)
check_hard_coded = _program_check(
    "hard_coded",
    hard_coded,
    "return literals for literal inputs",
    "hold tests back that the prompt does not show, and `data.verifier: code` with them (docs/language_models.md)",
)
