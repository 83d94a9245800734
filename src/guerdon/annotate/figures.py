"""Figures about judgements: how fast and how sure people are, how far they agree, and the mean that labels correct.

record = figures(session)
for table in tables(record): print(table["title"])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from guerdon.annotate.consensus import NO_CONSENSUS, Label, labels_of
from guerdon.annotate.criteria import shares_of
from guerdon.annotate.export import judged_by
from guerdon.annotate.judgements import CANNOT_TELL, DISCARD, Judgement
from guerdon.annotate.session import Session
from guerdon.auditing.rows import Numbers
from guerdon.evaluation.benchmarks.labelled import (
    UNIT,
    Draws,
    Level,
    Scales,
    agreement,
    chosen_mean,
    label_figures,
)
from guerdon.evaluation.metrics import aligned
from guerdon.models.judges.rubric import Criterion, Rubric
from guerdon.pages.formats import DASH, decimal, percent
from guerdon.statistics.intervals import wilson_interval
from guerdon.types import Failure

REPS = 300  # of the bootstrap
_NO_VALUE = Failure("no_value")


class Subject(NamedTuple):
    """What raters agree about: the judgement, or a criterion of a rubric.

    Attributes:
        criterion: name; None: the judgement.
        value_of: a judgement as a number; NaN: it has none.
        others: what else rates the items.
        level: of measurement.
        scales: of scores and of the judgements.
    """

    criterion: str | None
    value_of: Callable[[Judgement], float]
    others: Sequence[Rater]
    level: Level
    scales: Scales


class Rater(NamedTuple):
    """Who or what rates items.

    Attributes:
        name: of a person, of the data's truth, a reward or a model.
        values_N: by the place of the item; NaN: not rated.
        is_score: a number that is compared with labels as a score, not one of the judgements.
    """

    name: str
    values_N: Numbers
    is_score: bool = False


def figures(session: Session, person: str | None = None) -> dict[str, Any]:
    """All figures as plain values.

    Args:
        session: with the judgements.
        person: who sees them: about the items that they have judged; None: about all.
    """
    given = [
        (ask.place, one)
        for ask, those in zip(session.judgements.asks, session.judgements.given, strict=True)
        for one in those
        if ask.place is not None and (person is None or any(other.person == person for other in those))
    ]
    labels = labels_of(session)
    reasons = Counter(label.reason for _, label in labels.values())
    discarded = [session.items.rows[place] for place, (_, label) in labels.items() if label.reason == DISCARD]
    judgements = session.judgements
    return {
        "data": session.items.data, "kind": session.items.kind, "choose": session.setup["choose"],
        "rows": session.setup["rows"], "finding": session.setup["finding"], "items": len(judgements.asks),
        "judgements": len(given), "labels": reasons[""], "cannot_tell": reasons[CANNOT_TELL],
        "no_consensus": reasons[NO_CONSENSUS], "discarded": sorted(discarded),
        "taken_back": judgements.taken_back, "skipped": judgements.skipped, "orphans": judgements.orphans,
        "left_out": dict(session.items.left_out), "people": _people(session, given),
        "criteria": list(session.judges.notes) if given else [],  # names a judge: not before something was judged
        "agreement": [row for about in _subjects(session) for row in _agreements(session, given, about)],
        "order": _order(session, given),
        "mean": None if person else _mean(session, labels),
    }  # fmt: skip


def _people(session: Session, given: Sequence[tuple[int, Judgement]]) -> list[dict[str, Any]]:
    found = []
    for person in session.judgements.people:
        own = [one for _, one in given if one.person == person]
        seconds = [one.seconds for one in own if one.seconds is not None]
        unsure = sum(one.word == CANNOT_TELL for one in own)
        middle = median(seconds) if seconds else None
        share = unsure / len(own) if own else None
        found.append({"person": person, "judgements": len(own), "median_seconds": middle, "cannot_tell": share})
    return found


def _subjects(session: Session) -> Iterator[Subject]:
    """The judgement, and each criterion of the rubric."""
    is_number = session.setup["scale"] or session.rubric
    yield Subject(
        None, lambda one: one.value, list(_others(session)), "interval" if is_number else "nominal", _scales(session)
    )
    if session.rubric is not None:
        for criterion in session.rubric.criteria:
            yield _of_criterion(session, session.rubric, criterion)


def _scales(session: Session) -> Scales:
    """The scales of scores and of judgements; None: not known."""
    most = session.setup["scale"]
    return (None, (1.0, float(most)) if most else UNIT)


def _of_criterion(session: Session, rubric: Rubric, criterion: Criterion) -> Subject:
    """A criterion, with the numbers of its choices from 0."""
    name, last = criterion.name, len(criterion.choices) - 1
    known = {judge: found[name] for judge, found in session.judges.values.items() if name in found}
    judges = [Rater(judge, last * values_N, is_score=True) for judge, values_N in known.items()]
    level: Level = "nominal" if last == 1 else "interval"
    scale = (0.0, float(last))
    return Subject(
        name, lambda one: last * shares_of(rubric, one.scores).get(name, np.nan), judges, level, (scale, scale)
    )


def _raters(
    session: Session, given: Sequence[tuple[int, Judgement]], value_of: Callable[[Judgement], float]
) -> tuple[list[Rater], list[tuple[Rater, Rater]]]:
    """The people, with their first judgement on each item; and of each with second ones the first and the second."""
    n = len(session.items)
    people, twice = [], []
    for person in session.judgements.people:
        first, second = np.full(n, np.nan), np.full(n, np.nan)
        seen: set[int] = set()
        for place, one in given:
            if one.person == person:
                (second if place in seen else first)[place] = value_of(one)
                seen.add(place)
        name = person or "you"
        people.append(Rater(name, first))
        if np.isfinite(first + second).any():
            twice.append((Rater(name, first), Rater(f"{name}, again", second)))
    return people, twice


def _others(session: Session) -> Iterator[Rater]:
    """What the data, its rewards and the models say of the items."""
    items = session.items
    truth = np.array(items.truth, dtype=np.float64)
    if np.isfinite(truth).any():
        yield Rater("the truth of the data", truth)
    for name, values in {**items.rewards, **session.models}.items():
        if items.kind == "pairs":  # differences: which response the reward prefers
            yield Rater(name, (np.sign(values) + 1) / 2)
        else:
            yield Rater(name, values, is_score=True)


def _agreements(session: Session, given: Sequence[tuple[int, Judgement]], about: Subject) -> Iterator[dict[str, Any]]:
    """Agreement of each two people, of each with themself, of all, and of each with what else rates the items."""
    people, twice = _raters(session, given, about.value_of)
    for one, other in (*combinations(people, 2), *twice):
        yield from _agreed(one.name, other.name, [one.values_N, other.values_N], about)
    if len(people) > 2:
        yield from _agreed("all people", "", [one.values_N for one in people], about)
    for other in about.others:
        for one in people:
            if other.is_score:
                yield from _scored(session, one, other, about)
            else:
                yield from _agreed(one.name, other.name, [one.values_N, other.values_N], about)


def _agreed(one: str, other: str, ratings: Sequence[Numbers], about: Subject) -> Iterator[dict[str, Any]]:
    rated = np.isfinite(ratings).sum(axis=0) >= 2
    if rated.any():
        found = agreement(np.array(ratings), level=about.level, reps=REPS, seed=0)
        figures_of = {name: None if value is None else asdict(value) for name, value in vars(found).items()}
        row = {"criterion": about.criterion, "one": one, "other": other, "items": int(rated.sum())}
        yield {**row, **figures_of, "rank": None, "why": None}


def _scored(session: Session, person: Rater, score: Rater, about: Subject) -> Iterator[dict[str, Any]]:
    """A person and a score that is a number: as `guerdon evaluate --labels` compares them."""
    values_N = person.values_N
    if session.items.kind == "steps":  # the score of a solution is about whether all of it is right
        values_N = np.where(np.isnan(values_N), np.nan, values_N == -1.0)
    both = np.isfinite(values_N) & np.isfinite(score.values_N)
    if not both.any():
        return
    scores = [_NO_VALUE if np.isnan(value) else float(value) for value in score.values_N[both]]
    found = label_figures(
        scores, values_N[both], list(map(str, np.flatnonzero(both))), reps=REPS, seed=0, scales=about.scales
    )
    rank = next((found["metrics"][name] for name in ("auroc", "spearman") if name in found["metrics"]), None)
    agreed = {name: found["agreement"].get(name) for name in ("percent", "kappa", "alpha")}
    row = {"criterion": about.criterion, "one": person.name, "other": score.name, "items": int(both.sum())}
    yield {**row, **agreed, "rank": rank, "why": found["no_agreement"]}


def _order(session: Session, given: Sequence[tuple[int, Judgement]]) -> dict[str, Any] | None:
    """How often the response that was shown first is preferred, of the pairs that were decided."""
    words = Counter(one.word for _, one in given)
    decided = words["first"] + words["second"]
    if session.items.kind != "pairs" or not decided:
        return None
    return asdict(wilson_interval(words["first"], decided))


def _mean(session: Session, labels: Mapping[int, tuple[int, Label]]) -> dict[str, Any] | None:
    """The mean label of all items that could be asked, corrected by the values that stand beside the labels."""
    places = sorted(labels)
    label_M = np.array([labels[place][1].value for place in places])
    if session.items.kind == "steps":
        label_M = np.where(np.isnan(label_M), np.nan, label_M == -1.0)
    asks = [session.judgements.asks[labels[place][0]] for place in places]
    draws = Draws(
        np.array([float(ask.draw) for ask in asks]), np.array([ask.probability for ask in asks]),
        len(session.judgements.asks),
    )  # fmt: skip
    labelled = ~np.isnan(label_M)
    if labelled.sum() < 2:
        return None
    corrected = _corrected_mean(session, places, label_M, draws)
    if corrected is not None:
        return corrected
    alone = chosen_mean(np.zeros(len(places)), label_M, draws).labelled
    made = draws.made(labelled)
    known = {"pool": draws.pool, "made": made, "without_value": made - int(labelled.sum()), "chosen": draws.chosen}
    return {"by": None, "corrected": None, "labelled": asdict(alone), "judge": None, "draws": known}


def _corrected_mean(session: Session, places: list[int], label_M: Numbers, draws: Draws) -> dict[str, Any] | None:
    """The mean label of all items by the values of a judge; None where there are none, or too few to say it."""
    judge = judged_by(session)
    if judge is None or session.items.kind == "pairs":
        return None
    name, value_N = judge
    value_M = value_N[places]
    if not np.isfinite(value_M).any():
        return None
    values = [_NO_VALUE if np.isnan(one) else float(one) for one in value_M]
    prompts = [session.items.shows[place].get("prompt") or str(place) for place in places]
    found = label_figures(values, label_M, prompts, draws=draws, scales=_scales(session), reps=REPS, seed=0)
    if not found["mean"]:
        return None
    kept = {key: found["mean"][key] for key in ("corrected", "labelled", "judge")}
    return {"by": name, **kept, "draws": found["draws"]}


# ---- as tables of texts


def tables(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures as tables whose cells are texts."""
    found = [_people_table(record)]
    if record["agreement"]:
        found.append(_agreement_table(record))
    if record["order"] is not None:
        cells = ["preferred as the one shown first", _interval(record["order"]), str(record["order"]["n"])]
        found.append({"title": "Order", "columns": ["", "share", "pairs"], "rows": [cells]})
    if record["mean"] is not None:
        found.append(_mean_table(record))
    return found


def _people_table(record: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        [
            one["person"] or "you", str(one["judgements"]), decimal(one["median_seconds"], 1),
            percent(one["cannot_tell"]),
        ]
        for one in record["people"]
    ]  # fmt: skip
    columns = ["person", "judgements", "median seconds", "cannot tell"]
    return {"title": "Judgements", "note": _counts(record), "columns": columns, "rows": rows}


def _agreement_table(record: Mapping[str, Any]) -> dict[str, Any]:
    compared = record["agreement"]
    notes = ["With 95 % intervals. Ranks: AUROC of two labels, else Spearman's correlation."]
    if record["choose"] != "random":
        notes.append("The rows were chosen: agreement is that of chosen rows.")
    notes += dict.fromkeys(one["why"] for one in compared if one["why"])
    columns = ["between", "and", "items", "equal", "kappa", "alpha", "ranks"]
    rows = []
    for one in compared:
        intervals = [_interval(one[name]) for name in ("percent", "kappa", "alpha", "rank")]
        rows.append([one["one"], one["other"], str(one["items"]), *intervals])
    if any(one["criterion"] is not None for one in compared):
        columns = ["about", *columns]
        for row, one in zip(rows, compared, strict=True):
            row.insert(0, one["criterion"] or "the whole rubric")
    return {"title": "Agreement", "note": " ".join(notes), "columns": columns, "rows": rows}


def _mean_table(record: Mapping[str, Any]) -> dict[str, Any]:
    mean = record["mean"]
    named = {"corrected": f"corrected, with {mean['by']}", "labelled": "of the labels alone", "judge": str(mean["by"])}
    rows = [[title, _interval(mean[name])] for name, title in named.items() if mean[name] is not None]
    draws = mean["draws"]
    note = f"About {draws['pool']} items, of which {draws['made']} were drawn"
    note += f", {draws['without_value']} of them without a value." if draws["without_value"] else "."
    return {"title": "Mean label", "note": note, "columns": ["", "mean"], "rows": rows}


def _counts(record: Mapping[str, Any]) -> str:
    """What became of the items, in words."""
    parts = [f"{record['labels']} of {record['items']} items have a label"]
    if record["rows"] or record["finding"]:
        which = record["rows"] or f"of the finding {record['finding']}"
        parts[0] += f"; all figures are about the rows {which} alone"
    named = {
        "cannot_tell": "could not be told", "no_consensus": "have no majority", "taken_back": "judgements taken back",
        "skipped": "skipped",
    }  # fmt: skip
    parts += [f"{record[name]} {words}" for name, words in named.items() if record[name]] + record["criteria"]
    if record["discarded"]:
        parts.append(f"episodes discarded: {', '.join(map(str, record['discarded'][:20]))}")
    if record["orphans"]:
        gone = ", ".join(list(record["orphans"])[:5])
        parts.append(
            f"{sum(record['orphans'].values())} judgements are of items that the data does not have any more ({gone})"
        )
    return "; ".join(parts)


def lines(record: Mapping[str, Any]) -> list[str]:
    """The tables for a terminal."""
    found: list[str] = []
    for table in tables(record):
        found += [f"== {table['title']}", *aligned([table["columns"], *table["rows"]])]
        found += [table["note"]] if table.get("note") else []
    return found


def _interval(one: Mapping[str, Any] | None) -> str:
    if one is None or one["estimate"] is None:
        return DASH
    ends = "" if one["low"] is None else f" [{one['low']:.3f}, {one['high']:.3f}]"
    return f"{one['estimate']:.3f}{ends}"
