"""What `guerdon evaluate` does for a reward model of text: score, measure, attack, and write it all down.

Writes `evaluation.json` (last, so a folder that has it is complete), `evaluation.txt` and SVG pictures. This module
does not know how models were trained or what they are; the caller sees to it that no question was trained on.

    record = evaluate_text(model, settings, Path("runs/prm/evaluation"))
    record["generated"]["process_bench"]["average_f1"]["measured"]["estimate"]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.atomic import write_json, write_text
from guerdon.episodes.row_files import rows_by_split
from guerdon.episodes.solution_files import published_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluate import pictures
from guerdon.evaluate.aggregate import score_solutions, solution_value
from guerdon.evaluate.answers import Same, same_number_or_text
from guerdon.evaluate.attacks import attack_report, failed_attacks, honest_pairs
from guerdon.evaluate.best_of_n import BestOfN, best_of_n
from guerdon.evaluate.generated_bench import generated_bench, right_and_wrong
from guerdon.evaluate.metrics import Table, classification_metrics
from guerdon.evaluate.pairs import choices_from_rows, reward_bench, reward_bench_2
from guerdon.evaluate.prm_bench import category_of, prm_bench
from guerdon.evaluate.process_bench import process_bench
from guerdon.evaluate.scoring import failure_counts
from guerdon.evaluate.seen import seen_in_training, warnings_of
from guerdon.evaluate.steps import calibration, first_errors, step_metrics, step_table, true_first_error
from guerdon.evaluate.text_report import text_of
from guerdon.progress import log_line
from guerdon.settings.evaluate_text import Aggregation, EvaluateTextSettings
from guerdon.types import Failure, RewardModel, Score

RECORD = "evaluation.json"


def evaluate_text(
    model: RewardModel,
    settings: EvaluateTextSettings,
    folder: Path,
    *,
    same: Same = same_number_or_text,
    taken: Collection[str] = (),
    learnt: Collection[str] = (),
    samples: Sequence[Solution] = (),
) -> dict[str, Any]:
    """Judge a reward model on everything that the settings name, and write it into a folder.

    Args:
        model: any reward model for text.
        settings: on what, how.
        folder: receives `evaluation.json`, `evaluation.txt` and pictures.
        same: whether two answers are the same.
        taken: questions that the model was trained on; the generated set avoids them.
        learnt: hashes of the questions that it was trained on; where any set holds some, the record, the report and the
            standard error stream say how many (`record["seen_in_training"]`).
        samples: what `best_of_n` chooses from where it names no file. Where they say their first errors, these are
            asked about too (`record["samples"]`): the errors that this policy makes.

    Returns:
        The content of `evaluation.json`.

    Raises:
        DataError: a file cannot be read, or holds nothing to judge on.
    """
    record: dict[str, Any] = {
        "model": {**asdict(model.info), "range": [float(x) if np.isfinite(x) else None for x in model.info.range]},
        "aggregation": settings.aggregation,
        "reps": settings.reps,
        "seed": settings.seed,
    }
    drawn: dict[str, str] = {}
    material: list[Solution] = []  # right and wrong solutions for attacks
    asked: dict[str, Sequence[Solution]] = {}
    if settings.generated is not None:
        g = settings.generated
        solutions = generated_bench(g.families, g.size, g.seed, g.error_rate, taken=taken)
        asked["generated"] = solutions
        record["generated"] = _first_errors(model, solutions, settings, "generated", drawn)
        if settings.attacks is not None:
            number = -(-settings.attacks.questions // len(g.families))
            material += right_and_wrong(g.families, number, g.seed, taken=taken)
    if settings.process_bench:
        asked["process_bench"] = solutions = _published(settings.process_bench)
        record["process_bench"] = _first_errors(model, solutions, settings, "process_bench", drawn)
        material += solutions
    if settings.prm_bench is not None:
        solutions = [s for s in _published([settings.prm_bench]) if category_of(s) is not None]
        asked["prm_bench"] = solutions
        scores = _scores(model, solutions, settings, "PRMBench")
        record["prm_bench"] = prm_bench(solutions, scores, reps=settings.reps, seed=settings.seed).to_dict()
    if settings.pairs is not None:
        record["pairs"], asked["pairs"] = _pairs(model, settings.pairs, settings)
    if settings.best_of_n is not None:
        b = settings.best_of_n
        solutions = list(samples) if b.samples is None else _published([b.samples])
        asked["best_of_n"] = solutions
        if any(true_first_error(s) is not None for s in solutions):
            record["samples"] = _first_errors(model, _distinct(solutions), settings, "samples", drawn)
        found = best_of_n(
            solutions,
            _scores(model, solutions, settings, "samples to choose from"),
            same,
            aggregations=b.aggregations,
            ns=b.ns,
            draws=b.draws,
            reps=settings.reps,
            seed=settings.seed,
        )
        record["best_of_n"] = found.to_dict()
        drawn |= _curve_pictures(found, b.aggregations)
        material += solutions
    if settings.attacks is not None and material:
        record["attacks"] = _attacks(model, material, same, record, settings)
    if learnt:
        record["seen_in_training"] = {name: seen_in_training(part, learnt) for name, part in asked.items()}
        for line in warnings_of(record):
            log_line(f"WARNING: {line}")
    record["pictures"] = {name: f"{name}.svg" for name in drawn}
    for name, svg in drawn.items():
        write_text(folder / f"{name}.svg", svg)
    write_text(folder / "evaluation.txt", text_of(record))
    write_json(folder / RECORD, record)
    return record


def _published(sources: Sequence[str]) -> list[Solution]:
    """Solutions of files, folders and hub data sets; how many rows say nothing about any step is said."""
    left_out: Counter[str] = Counter()
    solutions = published_solutions(sources, left_out)
    for reason, n in sorted(left_out.items()):
        log_line(f"{', '.join(sources)}: left out {n} rows without a rated step ({reason})")
    return solutions


def attacks_that_fooled(folder: Path) -> list[str] | None:
    """Names of the attacks that fooled the model evaluated into this folder; None where it was not attacked.

    Raises:
        DataError: the record cannot be read.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}; run `guerdon evaluate` again") from error
    card = record.get("attacks") if isinstance(record, dict) else None
    return None if card is None else failed_attacks(card)


def _scores(
    model: RewardModel, solutions: Sequence[Solution], settings: EvaluateTextSettings, what: str
) -> list[Score]:
    return score_solutions(model, solutions, batch_size=settings.batch_size, what=f"{what} scored")


def _first_errors(
    model: RewardModel,
    solutions: Sequence[Solution],
    settings: EvaluateTextSettings,
    name: str,
    drawn: dict[str, str],
) -> dict[str, Any]:
    """ProcessBench's figures, those of single steps, and their pictures."""
    scores = _scores(model, solutions, settings, name)
    bench = process_bench(
        solutions,
        scores,
        threshold=settings.threshold,
        tune_on=settings.tune_on,
        reps=settings.reps,
        seed=settings.seed,
    )
    table = step_table(solutions, scores)
    bins = calibration(table)
    confusion = first_errors(solutions, scores, bench.threshold)
    drawn[f"{name}_first_error"] = pictures.first_error_bars(
        {"erroneous": confusion.erroneous, "correct": confusion.correct}
    )
    drawn[f"{name}_steps"] = pictures.score_histogram(table.labels, table.scores, threshold=bench.threshold)
    if bins:
        drawn[f"{name}_reliability"] = pictures.reliability_diagram(bins)
    return {
        "solutions": len(solutions),
        "segmentation": segmentation(solutions),
        "failures": failure_counts(scores),
        "process_bench": bench.to_dict(),
        "first_errors": confusion.to_dict(),
        "answers": _answers(solutions, scores, settings),
        "steps": {k: m.to_dict() for k, m in step_metrics(table, reps=settings.reps, seed=settings.seed).items()},
        "reliability": [asdict(one) for one in bins],
    }


def _answers(solutions: Sequence[Solution], scores: Sequence[Score], settings: EvaluateTextSettings) -> dict[str, Any]:
    """Do values of whole solutions tell right answers from wrong ones? Nothing where nobody knows the answers."""
    rows = [
        (bool(solution.is_correct), value, solution.question)
        for solution, score in zip(solutions, scores, strict=True)
        if solution.is_correct is not None
        and not isinstance(value := solution_value(score, settings.aggregation), Failure)
    ]
    if not rows:
        return {}
    labels, values, questions = zip(*rows, strict=True)
    places = {question: k for k, question in enumerate(dict.fromkeys(questions))}
    table = Table(
        np.array(labels, dtype=np.bool_),
        np.array(values, dtype=np.float64),
        np.array([places[question] for question in questions], dtype=np.int64),
        len(solutions) - len(rows),
    )
    found = classification_metrics(table, threshold=None, probabilities=False, reps=settings.reps, seed=settings.seed)
    return {name: metric.to_dict() for name, metric in found.items()}


def _distinct(solutions: Sequence[Solution]) -> list[Solution]:
    """The first solution of each wording."""
    first: dict[tuple[str, str], Solution] = {}
    for solution in solutions:
        first.setdefault((solution.question, solution.text), solution)
    return list(first.values())


def segmentation(solutions: Sequence[Solution]) -> dict[str, int]:
    """How solutions were cut into steps: the splitter that says so, else the separator; with counts."""
    counts: dict[str, int] = {}
    for s in solutions:
        name = str(s.meta.get("splitter") or (f"separator {s.separator!r}" if s.separator else "unknown"))
        counts[name] = counts.get(name, 0) + 1
    return counts


def _pairs(model: RewardModel, source: str, settings: EvaluateTextSettings) -> tuple[dict[str, Any], list[Solution]]:
    """RewardBench or RewardBench 2, by what the rows hold, and the responses."""
    splits = rows_by_split(source)
    rows = splits.get("filtered") or [row for part in splits.values() for row in part]
    choices = choices_from_rows(rows)
    responses = [response for choice in choices for response in choice.responses]
    scores = _scores(model, responses, settings, "responses")
    values = [solution_value(score, settings.aggregation) for score in scores]
    second = any(len(choice.responses) > 2 for choice in choices)
    if second:
        found = reward_bench_2(choices, values, reps=settings.reps, seed=settings.seed)
        return {"benchmark": "RewardBench 2", **found.to_dict()}, responses
    found = reward_bench(choices, values, ties=settings.ties, reps=settings.reps, seed=settings.seed)
    return {"benchmark": "RewardBench", "ties_worth": settings.ties, **found.to_dict()}, responses


def _attacks(
    model: RewardModel, material: Sequence[Solution], same: Same, record: dict[str, Any], settings: EvaluateTextSettings
) -> dict[str, Any] | None:
    """The report card; None where no question has a right and a wrong solution.

    A solution is accepted above the threshold of steps; one that is judged as a whole, above the model's own.
    """
    if not honest_pairs(material, same):
        return None
    benches = ("generated", "process_bench", "samples")
    used = [record[name]["process_bench"]["threshold"] for name in benches if name in record]
    card = attack_report(
        model,
        material,
        same,
        aggregation=settings.aggregation,
        threshold=float(used[0]) if used and model.info.granularity == "step" else None,
        settings=settings.attacks,
        batch_size=settings.batch_size,
    )
    return card.to_dict()


def _curve_pictures(found: BestOfN, aggregations: Sequence[Aggregation]) -> dict[str, str]:
    """Best-of-n and weighted votes, each beside majority and pass@n."""
    drawn = {}
    for kind, title in (("bon", "Best of n"), ("weighted", "Weighted votes")):
        names = ["pass", "majority", *(f"{kind}_{how}" for how in aggregations)]
        curves = {name: found.failures_wrong[name].intervals for name in names if name in found.failures_wrong}
        drawn[f"n_{kind}"] = pictures.n_curves(found.ns, curves, title=title)
    return drawn
