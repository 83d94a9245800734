"""Two rewards of the same rows: where they agree, and what RL would see differently.

    other = read_second(rows, Path("scored.jsonl"))
    other.figures, other.advantages

Rows are matched by their places in the two files, else by prompt and response. Where none match, the files are of other
responses: then their distributions are compared (`auditing/drift.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from guerdon.auditing.association import mean_ranks, strata, stratum_ends
from guerdon.auditing.drift import Drift, drift_between
from guerdon.auditing.logs import read_log
from guerdon.auditing.rows import Codes, Flags, Numbers, Rows, Texts
from guerdon.errors import DataError
from guerdon.files.atomic import write_bytes
from guerdon.files.json_files import json_line
from guerdon.reading.containers import file_rows
from guerdon.reading.nested import RESCORED
from guerdon.statistics.intervals import bootstrap_weighted

# ---------------------------------------------------------------------------------------------------------------------
# Marks of a judge, or of any other reward model of text, for a random sample of a log's rows.
#
#     second = judge_sample(rows, "rubric.toml", {"max_usd": 5}, most=400, seed=0)
#
# The sample is scored as `guerdon score` scores a file: what it costs is logged before the first call, `max_usd`
# bounds
# it, and replies are kept in `judge_cache`, so that an audit that is started again sends nothing again.
# ---------------------------------------------------------------------------------------------------------------------


def judge_sample(rows: Rows, model: str, options: Mapping[str, Any], *, most: int, seed: int = 0) -> SecondReward:
    """A second reward of some rows of a log: the values of a model that reads their responses.

    Args:
        rows: of the log, with texts.
        model: see `load_any_text_model`.
        options: more keys of the model, such as `judge.model` and `max_usd`.
        most: rows that are judged, at most.
        seed: of the sample.

    Raises:
        CheckpointError: as `load_any_text_model`.
        ConfigError: as `load_any_text_model`.
        DataError: the log has no responses, or none of them got a value.
    """
    from guerdon.evaluation.scoring.score_file import load_any_text_model, score_file

    if rows.texts is None:
        raise DataError(f"--judge {model}: this log, {rows.layout}, has no column of responses for it to read")
    judge, chosen_M = load_any_text_model(model, options=options), sampled(rows, rows.texts, most, seed)
    with TemporaryDirectory() as folder:
        asked, marked = Path(folder, "rows.jsonl"), Path(folder, "marked.jsonl")
        write_bytes(asked, b"".join(json_line(_question(rows.texts, m)) for m in chosen_M))
        score_file(asked, judge, marked, name=model, options=options)
        found = [row for _, row in file_rows(marked)]
    failed = Counter(str(row["reward_failure"]).partition(":")[0] for row in found if row["reward"] is None)
    why = ", ".join(f"{n} {reason}" for reason, n in failed.items())
    if failed.total() == len(found):
        raise DataError(f"--judge {model}: no row got a value: {why}")
    second_N = np.full(len(rows), np.nan)
    second_N[rows.texts.row_M[chosen_M]] = [np.nan if row["reward"] is None else row["reward"] for row in found]
    how = f"on {len(found):,} of {len(rows):,} rows, drawn at random in whole groups"
    how += f"; without a value: {why}" if why else ""
    return compared(rows, second_N, f"the marks of {Path(model).name}", how, seed=seed)


def sampled(rows: Rows, texts: Texts, most: int, seed: int) -> Codes:
    """Which texts are judged: groups (else prompts) in random order while they fit into `most` rows, the first cut."""
    known = np.flatnonzero(np.isfinite(rows.reward_N[texts.row_M]))
    of = rows.group_N if rows.group_N is not None else rows.prompt_N
    group = np.arange(len(known)) if of is None else strata(of[texts.row_M[known]])
    place = np.random.default_rng(seed).permutation(int(group.max(initial=-1)) + 1)[group]
    last = int(np.searchsorted(np.cumsum(np.bincount(place)), most, side="right"))
    return known[place < last] if last else known[place == 0][:most]


def _question(texts: Texts, m: int) -> dict[str, Any]:
    """A row of the sample as `score_file` reads it."""
    row: dict[str, Any] = {"prompt": texts.prompts[m], "response": texts.responses[m]}
    if texts.messages is not None:
        row = {"messages": texts.messages[m]}
    return row if texts.truths is None else {**row, "ground_truth": texts.truths[m]}


# ---------------------------------------------------------------------------------------------------------------------


REPEATS = 400  # of the bootstrap
BLOCKS = 2_000  # of whole groups, drawn again together
MOST_APART = 64  # pairs of a group are of responses that are at most so many places apart
MOST_STEPS = 2_000  # training steps whose batches are whitened one by one; more: all rows are one batch
CONFIRMED = 0.99  # share of texts that are equal in both files


@dataclass(frozen=True)
class Figure:
    """A figure of agreement.

    Attributes:
        value: None where it is undefined.
        low, high: 95 % interval, from drawing whole groups again.
        n: what it is an average of.
        unit: what `n` counts.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    unit: str


@dataclass(frozen=True)
class AdvantageChange:
    """How an estimator's advantages would change with the second reward.

    Attributes:
        correlation: of the two advantages over rows.
        flipped: share of rows with an advantage other than 0 in both, whose sign changes.
        n: rows that have both.
    """

    correlation: float
    flipped: float
    n: int


@dataclass(frozen=True)
class SecondReward:
    """Another reward of the same rows, or of others.

    Attributes:
        name: of the file and the column.
        matched: how rows were matched, in words.
        reward_N: the second reward of each row of the log, NaN where it has none; None: rows are not the same.
        figures: agreement by name.
        advantages: by estimator.
        drift: between distributions, where rows are not the same.
    """

    name: str
    matched: str
    reward_N: Numbers | None = None
    figures: dict[str, Figure] = field(default_factory=dict)
    advantages: dict[str, AdvantageChange] = field(default_factory=dict)
    drift: tuple[Drift, ...] = ()


def read_second(
    rows: Rows, path: Path, *, columns: str | Mapping[str, str] | None = None, seed: int = 0
) -> SecondReward:
    """Compare the rewards of a log with those of another file.

    Args:
        rows: of the log.
        path: the same log with another reward (of `guerdon score`), or rows of its own.
        columns: see `read_log`.
        seed: of samples.

    Raises:
        DataError: the file has no rows, or no reward but that of the log.
    """
    other = read_log(path, columns=columns, seed=seed)
    if not len(rows) or not len(other):
        raise DataError(
            f"a second reward is compared row by row, and the {'log' if len(other) else 'file'} has no rows", where=path
        )
    place_N, matched = match(rows, other)
    if place_N is None:
        found = drift_between(rows, other, seed=seed)
        return SecondReward(
            path.name, "no row of the one is in the other: their distributions are compared", drift=found
        )
    name, values = _reward_of(rows, other, place_N, path)
    second_N = np.where(place_N >= 0, values[np.maximum(place_N, 0)], np.nan)
    if not np.isfinite(second_N).any():
        raise DataError(f"none of its rewards in the column {name} is a number", where=path, field=name)
    return compared(rows, second_N, f"{name} of {path.name}", matched, seed=seed)


def compared(rows: Rows, second_N: Numbers, name: str, matched: str, *, seed: int = 0) -> SecondReward:
    """A second reward with its figures.

    Args:
        rows: of the log.
        second_N: the second reward of each, NaN where it has none.
        name: of the second reward.
        matched: how its rows were found, in words.
        seed: of the bootstrap.
    """
    figures, advantages = agreement(rows, second_N, seed=seed), advantage_changes(rows, second_N)
    return SecondReward(name, matched, second_N, figures, advantages)


def with_second(rows: Rows, second: SecondReward) -> Rows:
    """A log with the second reward among its rewards, where the checks look for one that no longer rises."""
    more = {} if second.reward_N is None else {second.name: second.reward_N}
    return replace(rows, rewards={**rows.rewards, **more})


def match(rows: Rows, other: Rows) -> tuple[Codes | None, str]:
    """The place in the other file of each row (-1: none), and how that was found; None where no row is in both."""
    same = np.arange(len(rows))
    if len(rows) == len(other):
        confirmed = _confirmed(rows, other)
        if confirmed is None:
            return same, "by row number; the files have no column that could confirm it"
        if confirmed >= CONFIRMED:
            return same, "by row number"
    if rows.texts is None or other.texts is None:
        return None, ""
    waiting = defaultdict[tuple[str, str], list[int]](list)
    for m in range(len(other.texts.row_M) - 1, -1, -1):
        waiting[other.texts.prompts[m], other.texts.responses[m]].append(int(other.texts.row_M[m]))
    place_N = np.full(len(rows), -1)
    for m, row in enumerate(rows.texts.row_M):
        if places := waiting.get((rows.texts.prompts[m], rows.texts.responses[m])):
            place_N[row] = places.pop()
    found = int((place_N >= 0).sum())
    if not found:
        return None, ""
    return place_N, f"by prompt and response: {found:,} of {len(rows.texts.row_M):,} rows with texts"


def _confirmed(rows: Rows, other: Rows) -> float | None:
    """The share of rows that are equal in texts, else in lengths, steps or truth; None without any of these."""
    if rows.texts is not None and other.texts is not None:
        _, here, there = np.intersect1d(rows.texts.row_M, other.texts.row_M, return_indices=True)
        equal = [rows.texts.responses[a] == other.texts.responses[b] for a, b in zip(here, there, strict=True)]
        return float(np.mean(equal)) if equal else None
    for a, b in ((rows.length_N, other.length_N), (rows.step_N, other.step_N), (rows.truth_N, other.truth_N)):
        if a is not None and b is not None:
            return float(np.mean((a == b) | (np.isnan(a) & np.isnan(b))))
    return None


def _reward_of(rows: Rows, other: Rows, place_N: Codes, path: Path) -> tuple[str, Numbers]:
    """The column of the other file that is a second reward: a new one, else its reward where that differs."""
    new = [name for name in other.rewards if name not in rows.rewards]
    at = place_N[place_N >= 0]
    mine = rows.reward_N[place_N >= 0]
    if not np.allclose(mine, other.reward_N[at], rtol=1e-9, equal_nan=True):
        return "the reward", other.reward_N
    if len(new) == 1 or RESCORED in new:
        name = RESCORED if RESCORED in new else new[0]
        return name, other.rewards[name]
    names = ", ".join(new) if new else "none"
    raise DataError(
        f"{path} has the same rewards as the log, and these further ones: {names}; pass --columns reward=NAME",
        field="reward",
    )


# ---- agreement


def agreement(rows: Rows, second_N: Numbers, *, seed: int = 0) -> dict[str, Figure]:
    """How far two rewards agree, over all rows and within groups.

    Args:
        rows: with the first reward, and groups where the log has them.
        second_N: the second; NaN is missing.
        seed: of the bootstrap.
    """
    known = np.isfinite(rows.reward_N) & np.isfinite(second_N)
    first, second = rows.reward_N[known], second_N[known]
    whole = rows.group_N if rows.group_N is not None else rows.prompt_N
    cluster = np.arange(len(first)) if whole is None else np.unique(whole[known], return_inverse=True)[1]
    clusters = int(cluster.max(initial=-1)) + 1
    block_N = (np.random.default_rng(seed).permutation(clusters) % BLOCKS)[cluster]

    def figure(sums_N: Numbers, of: Callable[[Numbers], Numbers], n: float, unit: str) -> Figure:
        per_block = np.stack([np.bincount(block_N, column) for column in sums_N.T], axis=1)
        each = np.arange(len(per_block))
        found = bootstrap_weighted(lambda drawn: of(drawn @ per_block), each, reps=REPEATS, seed=seed)
        return Figure(found.estimate, found.low, found.high, int(n), unit)

    zero = np.zeros(len(first), np.int64)
    figures = {
        "correlation": figure(_moments(first, second), _pearson, len(first), "rows"),
        "rank correlation": figure(
            _moments(group_ranks(first, zero), group_ranks(second, zero)), _pearson, len(first), "rows"
        ),
    }
    if rows.group_N is None:
        return figures
    group = np.unique(rows.group_N[known], return_inverse=True)[1]
    pairs = pair_orders(first, second, group)
    for k, name in enumerate(("in the same order", "in the opposite order", "that are equal for the second"), start=1):
        of = pairs[:, 0].sum(), "pairs that the first reward orders"
        figures[f"pairs of a group {name}"] = figure(pairs[:, [k, 0]], _ratio, *of)
    size_N = np.bincount(group)[group]
    moved = np.abs(group_ranks(first, group) - group_ranks(second, group))
    name, in_group = "change of a response's rank in its group", size_N > 1
    figures[name] = figure(np.stack([moved, in_group], axis=1), _ratio, in_group.sum(), "responses")
    decided, changed = winners(first, second, group)
    shares = np.stack([changed, decided], axis=1)[group] / size_N[:, None]
    figures["groups with another winner"] = figure(shares, _ratio, decided.sum(), "groups that both rewards decide")
    return figures


def pair_orders(first_N: Numbers, second_N: Numbers, group_N: Codes) -> Numbers:
    """Of the pairs of a group that the first reward orders: all, in the same order, opposite, equal for the second.

    Returns:
        (N, 4) counts, each pair at its first row; only pairs at most `MOST_APART` places apart.
    """
    order = np.argsort(group_N, kind="stable")
    a, b, group = first_N[order], second_N[order], group_N[order]
    counts = np.zeros((len(a), 4))
    for apart in range(1, min(MOST_APART, int(np.bincount(group_N).max(initial=1)) - 1) + 1):
        together = group[apart:] == group[:-apart]
        da, db = np.sign(a[apart:] - a[:-apart]), np.sign(b[apart:] - b[:-apart])
        ordered = together & (da != 0)
        for k, is_so in enumerate((ordered, ordered & (da == db), ordered & (da == -db), ordered & (db == 0))):
            counts[order[:-apart], k] += is_so
    return counts


def group_ranks(values_N: Numbers, group_N: Codes) -> Numbers:
    """The rank of each row in its group, from 1 for the smallest; equal values share their mean rank."""
    in_order = strata(group_N, values_N)  # by group, then by value
    return np.asarray(mean_ranks(in_order) - np.searchsorted(np.sort(group_N), group_N))


def winners(first_N: Numbers, second_N: Numbers, group_N: Codes) -> tuple[Flags, Flags]:
    """Which groups both rewards decide, and in which of these the best responses of the two have none in common.

    Returns:
        Two flags per group, (G,) each.
    """
    best_in_both, decided = np.ones(len(group_N), bool), np.ones(int(group_N.max(initial=-1)) + 1, bool)
    for values in (first_N, second_N):
        low, top = stratum_ends(values, group_N)
        best_in_both &= values == top[group_N]
        decided &= top > low
    shared = np.bincount(group_N, best_in_both, len(decided)) > 0
    return decided, decided & ~shared


def _moments(x: Numbers, y: Numbers) -> Numbers:
    x, y = x - x.mean(), y - y.mean()
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)


def _pearson(sums: Numbers) -> Numbers:
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.sqrt((xx / n - (x / n) ** 2) * (yy / n - (y / n) ** 2))
        return np.asarray(np.where(spread > 0, (xy / n - x * y / n**2) / spread, np.nan))


def _ratio(sums: Numbers) -> Numbers:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sums[..., 0] / sums[..., 1])


# ---- advantages


def advantage_changes(rows: Rows, second_N: Numbers) -> dict[str, AdvantageChange]:
    """How the advantages of each estimator would change that needs neither a critic nor a greedy response.

    A row's reward is one number at its end, as for responses. Group estimators need groups with two rows.
    """
    from guerdon.rl.advantages import estimators
    from guerdon.settings.algorithm import estimator_info

    known = np.isfinite(rows.reward_N) & np.isfinite(second_N)
    group_N = None if rows.group_N is None else rows.group_N[known]
    step_N = np.zeros(known.sum()) if rows.step_N is None else rows.step_N[known]
    order = np.argsort(step_N, kind="stable")
    starts = np.flatnonzero(np.diff(step_N[order])) + 1
    batches = np.split(order, starts) if len(starts) < MOST_STEPS else [order]
    changes = {}
    for name in (one for one in estimators() if one != "turn_rloo"):  # of episodes of one turn it is rloo
        needs = estimator_info(name)
        if not (needs.critic or needs.greedy or (needs.groups and not _paired(group_N))):
            pair = [_advantages(values[known], group_N, batches, name) for values in (rows.reward_N, second_N)]
            both = np.isfinite(pair).all(axis=0)
            a, b = pair[0][both], pair[1][both]
            unequal = np.sign(a) != np.sign(b)
            flipped = float(unequal[(a != 0) & (b != 0)].mean()) if ((a != 0) & (b != 0)).any() else np.nan
            changes[name] = AdvantageChange(float(_pearson(_moments(a, b).sum(axis=0))), flipped, len(a))
    return changes


def _paired(group_N: Codes | None) -> bool:
    return group_N is not None and np.unique(group_N, return_counts=True)[1].max(initial=0) > 1


def _advantages(reward_N: Numbers, group_N: Codes | None, batches: list[Codes], estimator: str) -> Numbers:
    """The advantage of each row, NaN where it has none; those that are whitened are of one batch per step."""
    from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages
    from guerdon.settings.algorithm import estimator_info

    whitened = estimator in ("reinforce_pp", "gdpo")
    found = np.full(len(reward_N), np.nan)
    for batch in batches if whitened else [np.arange(len(reward_N))]:
        groups = None if group_N is None else group_N[batch]
        if not estimator_info(estimator).groups or _paired(groups):
            source, mask = {"": SourceRewards(reward_N[batch, None])}, np.ones((len(batch), 1), dtype=np.bool_)
            done = estimate_advantages(source, Steps(mask, groups_B=groups), estimator=estimator, whitened=whitened)
            found[batch] = np.where(done.known[""], done.advantages, np.nan)[:, 0]
    return found
