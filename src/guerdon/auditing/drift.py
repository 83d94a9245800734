"""Drift: whether what is scored now, and its scores, are distributed as in a reference, such as the evaluation data.

    for one in drift_between(served, evaluated):
        print(one.what, one.psi, one.ks, one.p)

The population stability index (PSI) is sum_b (q_b - p_b) ln(q_b / p_b) over bins b of equal shares of the reference;
it is usual to call it small below 0.1 and large above 0.25. The p-value is of the Kolmogorov-Smirnov distance, by
permutation of whole prompts, corrected by Holm over all quantities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from guerdon.auditing.finding import SEVERITIES, Audit, Finding
from guerdon.auditing.rows import Codes, Numbers, Rows
from guerdon.statistics.training_runs import holm

BINS = 10
MOST_ROWS = 10_000  # of each side in the permutation test
PERMUTATIONS = 499
FEWEST = 100  # rows of each side, from which on the distributions can be called equal
SMALL, LARGE = 0.1, 0.25  # PSI
CHECKS = ("score_drift", "input_drift")


@dataclass(frozen=True)
class Drift:
    """How differently a quantity is distributed in two logs.

    Attributes:
        what: the quantity.
        psi: population stability index, the second file as reference.
        ks: largest distance of the two distribution functions, 0 to 1.
        p: of `ks`, corrected by Holm.
        here, there: mean in the log and in the reference.
        n_here, n_there: rows with a value.
    """

    what: str
    psi: float
    ks: float
    p: float
    here: float
    there: float
    n_here: int
    n_there: int


LENGTH = "length of the response"  # in characters; of a log without texts, in the unit that it counts
FEATURES: dict[str, Callable[[str], float]] = {
    LENGTH: len,
    "words of the response": lambda text: len(text.split()),
    "lines of the response": lambda text: text.count("\n") + 1,
    "share of digits in the response": lambda text: sum(map(str.isdigit, text)) / max(len(text), 1),
    "share of characters beyond ASCII in the response": lambda text: sum(c > "\x7f" for c in text) / max(len(text), 1),
}


def quantities(rows: Rows) -> dict[str, tuple[Numbers, Codes]]:
    """What can drift: numbers of rows, each with the group that its row belongs to."""
    everyone = np.arange(len(rows))
    group_N = everyone if rows.prompt_N is None else rows.prompt_N
    found = {"reward": (rows.reward_N, group_N)}
    found |= {} if rows.length_N is None else {LENGTH: (rows.length_N, group_N)}
    if rows.texts is not None:
        group_M = group_N[rows.texts.row_M]
        for name, of in FEATURES.items():
            found[name] = np.array([of(text) for text in rows.texts.responses], np.float64), group_M
        found["characters of the prompt"] = np.array([len(text) for text in rows.texts.prompts], np.float64), group_M
    return found


def drift_between(rows: Rows, reference: Rows, *, seed: int = 0) -> tuple[Drift, ...]:
    """The drift of each quantity that both logs have, the largest first."""
    random = np.random.default_rng(seed)
    here, there = quantities(rows), quantities(reference)
    found = []
    for what in (name for name in here if name in there):
        sides = [_sampled(*side[what], random) for side in (here, there)]
        if all(len(values) for values, _ in sides):
            (a, of_a), (b, of_b) = sides
            p = permutation_p(a, of_a, b, of_b, random)
            found.append(Drift(what, psi(a, b), ks(a, b), p, a.mean(), b.mean(), len(a), len(b)))
    adjusted = holm([one.p for one in found])
    corrected = [replace(one, p=p) for one, p in zip(found, adjusted, strict=True) if p is not None]
    return tuple(sorted(corrected, key=lambda one: -one.psi))


def with_drift(audit: Audit, drift: tuple[Drift, ...], name: str) -> Audit:
    """An audit with the drift from a reference of this name among its findings, or among what is clean."""
    findings, clean, undecided = list(audit.findings), dict(audit.clean), dict(audit.undecided)
    for check in CHECKS:
        of = [one for one in drift if (one.what == "reward") == (check == CHECKS[0])]
        large = [one for one in of if one.psi >= SMALL and one.p < 0.05]
        if large:
            findings.append(_finding(check, large[0], name))
        elif of and min(of[0].n_here, of[0].n_there) < FEWEST:
            undecided[check] = f"needs {FEWEST} rows of both; the log has {of[0].n_here:,}, {name} {of[0].n_there:,}"
        elif of:
            clean[check] = f"{', '.join(one.what for one in of)}: distributed as in {name}"
    findings.sort(key=lambda one: SEVERITIES.index(one.severity))
    return replace(audit, findings=tuple(findings), clean=clean, undecided=undecided)


def _finding(check: str, one: Drift, name: str) -> Finding:
    return Finding(
        check, "warning" if one.psi >= LARGE else "info",
        f"The {one.what} is not distributed as in {name}: mean {one.here:.3g} there {one.there:.3g}, PSI {one.psi:.2f}",
        one.ks, (np.nan, np.nan), "Kolmogorov-Smirnov distance", one.p, (), (),
        "Evaluate the model on responses like those that it scores now: `guerdon evaluate --model MODEL --data FILE`",
        one.n_here, one.n_here,
    )  # fmt: skip


def psi(values_N: Numbers, reference_M: Numbers) -> float:
    """Population stability index over bins of equal shares of the reference; an empty bin counts as half a row."""
    edges = np.unique(np.quantile(reference_M, np.arange(1, BINS) / BINS, method="inverted_cdf"))
    edges = edges[edges < reference_M.max()]
    shares = []
    for values in (values_N, reference_M):
        counts = np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1).astype(float)
        shares.append(np.maximum(counts, 0.5) / np.maximum(counts, 0.5).sum())
    q, p = shares
    return float(np.sum((q - p) * np.log(q / p)))


def ks(values_N: Numbers, reference_M: Numbers) -> float:
    """The Kolmogorov-Smirnov distance of two samples."""
    both = np.concatenate([values_N, reference_M])
    is_here = np.repeat([True, False], [len(values_N), len(reference_M)])
    order = np.argsort(both, kind="stable")
    return _distance(is_here[order], np.diff(both[order], append=np.inf) > 0)


def _distance(is_here_N: np.ndarray, last_N: np.ndarray) -> float:
    """The distance for sorted values, of which `last_N` are the last of their value."""
    here = np.cumsum(is_here_N)
    there = np.arange(1, len(here) + 1) - here
    return float(np.abs(here / max(here[-1], 1) - there / max(there[-1], 1))[last_N].max())


def permutation_p(a_N: Numbers, of_a: Codes, b_M: Numbers, of_b: Codes, random: np.random.Generator) -> float:
    """How often sides that are exchanged at random, in whole groups, are at least as far apart as those given."""
    both = np.concatenate([a_N, b_M])
    groups_a = np.unique(of_a, return_inverse=True)[1]
    groups_b = np.unique(of_b, return_inverse=True)[1] + groups_a.max() + 1
    group = np.concatenate([groups_a, groups_b])
    side = np.arange(group.max() + 1) <= groups_a.max()
    order = np.argsort(both, kind="stable")
    group, last = group[order], np.diff(both[order], append=np.inf) > 0
    given = _distance(side[group], last)
    as_far = sum(_distance(random.permutation(side)[group], last) >= given - 1e-12 for _ in range(PERMUTATIONS))
    return (as_far + 1) / (PERMUTATIONS + 1)


def _sampled(values_N: Numbers, group_N: Codes, random: np.random.Generator) -> tuple[Numbers, Codes]:
    known = np.flatnonzero(np.isfinite(values_N))
    if len(known) > MOST_ROWS:
        known = random.choice(known, MOST_ROWS, replace=False)
    return values_N[known], group_N[known]
