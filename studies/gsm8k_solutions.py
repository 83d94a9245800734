"""Reward models of real text: who of four systems solved a GSM8K problem, judged by models trained on their solutions.

The file `example_model_solutions.jsonl` of openai/grade-school-math has, for each of GSM8K's 1,319 test problems, the
solutions of four systems of 6 and 175 billion parameters, with true outcomes. Its questions are split by a hash of
their text; `outcome`, `implicit` and `verdict` models (studies/gsm8k_solutions.yaml) learn from one part and judge the
other, next to baselines that know no more than the training part: length, log-likelihood under the untrained model,
majority of the four answers, always the system that is best on the training part. What is done is not done again.

    python studies/gsm8k_solutions.py data/gsm8k/example_model_solutions.jsonl --estimate
    python studies/gsm8k_solutions.py data/gsm8k/example_model_solutions.jsonl --seeds 0 1 2
    python studies/gsm8k_solutions.py data/gsm8k/example_model_solutions.jsonl train.outcome.max_steps=5 \
        work_dir=runs/small --test 20 --models outcome --seeds 0
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon.config.loading import load
from guerdon.episodes.solution_files import write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.best_of_n import best_of_n, same_number_or_text
from guerdon.files import provenance
from guerdon.files.atomic import write_json
from guerdon.models.scores import score_solutions, solution_value
from guerdon.models.text.text_inputs import as_batch, read_steps
from guerdon.models.text.text_load import load_text_model
from guerdon.policies.language.text_files import load_policy
from guerdon.reading.containers import file_rows
from guerdon.settings.study import Study
from guerdon.statistics.classification import WeightedMetric, auroc, brier, ece
from guerdon.statistics.intervals import Float64, Interval, bootstrap_ci, bootstrap_weighted, mean
from guerdon.tasks.prompts import question_hash
from guerdon.train.text import train_text_model
from guerdon.types import Failure, Score

FILE = Path(__file__).with_suffix(".yaml")
SYSTEMS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
GFLOP_PER_TOKEN = 0.27  # of a forward pass of SmolLM2-135M: two per parameter
GFLOP_PER_S = 200  # assumed of one core with AMX in bfloat16; less elsewhere
REPS = 2000


def read_systems(path: Path | str) -> list[Solution]:
    """Four solutions per row, in the order of `SYSTEMS`; calculator annotations (`<<3+4=7>>`) are removed.

    The whole text is one step, labelled with its true outcome; `meta["system"]` says whose it is.

    Raises:
        DataError: the file is missing, or a row lacks a system, a text or an outcome.
    """
    solutions = []
    for where, row in file_rows(Path(path)):
        if isinstance(row, DataError):
            raise row
        for system in SYSTEMS:
            given = row.get(system) if isinstance(row, dict) else None
            if not isinstance(given, dict) or not isinstance(given.get("is_correct"), bool) or not row.get("question"):
                raise DataError(f"{where}: no question, or no solution of {system} with its outcome (is_correct)")
            text = re.sub(r"<<[^<>]*>>", "", str(given.get("solution", ""))).strip()
            name = question_hash([{"role": "user", "content": row["question"]}])
            solutions.append(
                Solution(
                    id=f"{name}-{system}",
                    question=row["question"],
                    steps=(text or "(no text)",),
                    labels=(float(given["is_correct"]),),
                    is_correct=given["is_correct"],
                    ground_truth=_answer(str(row.get("ground_truth", ""))),
                    answer=_answer(text),
                    meta={"system": system, "data_source": "openai/grade-school-math"},
                )
            )
    return solutions


def _answer(text: str) -> str | None:
    """What stands behind the last `A:`."""
    found = re.findall(r"^A: *(.+)$", text, re.MULTILINE)
    return found[-1].strip() if found else None


def split(solutions: Sequence[Solution], train: int, test: int) -> tuple[list[Solution], list[Solution]]:
    """So many questions to learn from and to judge, with all solutions of each; by a hash of the text.

    Raises:
        DataError: there are fewer questions.
    """
    names = {s.question: hashlib.sha256(s.question.encode()).hexdigest() for s in solutions}
    order = sorted(names, key=lambda question: names[question])
    if train + test > len(order):
        raise DataError(f"{train} questions to learn from and {test} to judge are more than the file's {len(order)}")
    held, taught = set(order[:test]), set(order[test : test + train])
    return [s for s in solutions if s.question in taught], [s for s in solutions if s.question in held]


def log_likelihoods(study: Study, solutions: Sequence[Solution]) -> list[Score]:
    """Mean log-probability of a solution's tokens under the language model before any training."""
    policy = load_policy(study.text_policy, seed=0)
    readings = [read_steps(policy.tokenizer, s.question, s.steps, closed=False) for s in solutions]
    order = sorted(range(len(readings)), key=lambda i: len(readings[i].ids))
    scores: list[Score] = [Score(failure=Failure("not_read"))] * len(solutions)
    with torch.inference_mode():
        for at in range(0, len(order), 16):
            rows = order[at : at + 16]
            batch = as_batch(policy, [readings[i] for i in rows])
            sums = policy.log_probs(batch).sum(dim=1).tolist()
            for i, total, n in zip(rows, sums, batch.lengths_B, strict=True):
                scores[i] = Score(total=total / int(n))
    return scores


def judged(
    solutions: Sequence[Solution], scores_S: Sequence[Sequence[Score]], *, probabilities: bool
) -> dict[str, Any]:
    """Figures of a judge that was trained with S seeds, one list of scores each: means over seeds.

    Intervals are over questions; `auroc_of_seeds` shows how much the seeds differ.

    `within` is the mean over systems of the AUROC among the solutions of one system: who is right, not who wrote.
    """
    labels = np.array([bool(s.is_correct) for s in solutions])
    systems = np.array([SYSTEMS.index(s.meta["system"]) for s in solutions])
    values_S_N = np.array([[_value(score) for score in scores] for scores in scores_S])
    groups = [s.question for s in solutions]

    def averaged(metric: WeightedMetric, rows: Sequence[np.ndarray[Any, Any]]) -> Interval:
        def statistic(weights_R_N: Float64) -> Float64:
            found = [metric(labels[r], values[r], weights_R_N[:, r]) for values in values_S_N for r in rows]
            return np.mean(found, axis=0)

        return bootstrap_weighted(statistic, groups, reps=REPS, seed=0)

    everything = [np.arange(len(labels))]
    record = {
        "auroc": averaged(auroc, everything),
        "within": averaged(auroc, [np.flatnonzero(systems == k) for k in range(len(SYSTEMS))]),
    }
    if probabilities:
        record |= {"ece": averaged(ece, everything), "brier": averaged(brier, everything)}
    picks = [choices(solutions, scores) for scores in scores_S]
    for name in picks[0]:
        record[name] = bootstrap_ci(np.mean([pick[name] for pick in picks], axis=0), mean, reps=REPS, seed=0)
    each = [float(auroc(labels, values, np.ones((1, len(labels))))[0]) for values in values_S_N]
    return {name: vars(interval) for name, interval in record.items()} | {"auroc_of_seeds": each}


def _value(score: Score) -> float:
    """The number of a one-step solution.

    Raises:
        DataError: it could not be measured; a table of figures over different solutions would compare nothing.
    """
    value = solution_value(score, "last") if score.total is None else float(score.total)
    if isinstance(value, Failure):
        raise DataError(f"a solution was not scored: {value.reason}: {value.detail}; raise max_length")
    return value


def choices(solutions: Sequence[Solution], scores: Sequence[Score]) -> dict[str, Float64]:
    """Per question, whether the best of the four and the weighted vote are right; ties are split evenly."""
    by_question: dict[str, list[int]] = {}
    for i, solution in enumerate(solutions):
        by_question.setdefault(solution.question, []).append(i)
    values = np.array([_value(score) for score in scores])
    positive = bool((values >= 0).all())
    best, vote = [], []
    for rows in by_question.values():
        right, own = np.array([bool(solutions[i].is_correct) for i in rows]), values[rows]
        best.append(right[own == own.max()].mean())
        vote.append(_vote([solutions[i] for i in rows], own if positive else np.ones(len(rows))))
    return {"best_of_4": np.array(best)} | ({"weighted_vote": np.array(vote)} if positive else {})


def _vote(solutions: Sequence[Solution], weights: Float64) -> float:
    """Share of right solutions behind the answer with most weight."""
    found = best_of_n(
        solutions, [Score(total=float(w)) for w in weights], same_number_or_text, aggregations=("last",), ns=[4],
        reps=100, seed=0,
    )  # fmt: skip
    return float(found.measured["weighted_last"].accuracy[0].estimate or 0.0)


def baselines(train: Sequence[Solution], test: Sequence[Solution]) -> dict[str, Any]:
    """Accuracy without any judge: a random one of the four, their majority, always the best system, any of the four."""
    best = max(SYSTEMS, key=lambda system: np.mean([s.is_correct for s in train if s.meta["system"] == system]))
    questions: dict[str, list[Solution]] = {}
    for solution in test:
        questions.setdefault(solution.question, []).append(solution)
    rules: dict[str, Callable[[list[Solution]], float]] = {
        "random one": lambda own: float(np.mean([s.is_correct for s in own])),
        "majority of 4": lambda own: _vote(own, np.ones(len(own))),
        f"always {best}": lambda own: float(next(bool(s.is_correct) for s in own if s.meta["system"] == best)),
        "any of 4 (ceiling)": lambda own: float(any(s.is_correct for s in own)),
    }
    return {
        name: vars(bootstrap_ci([rule(own) for own in questions.values()], mean, reps=REPS, seed=0))
        for name, rule in rules.items()
    }


def tokens(study: Study, solutions: Sequence[Solution]) -> int:
    """Tokens of questions and solutions as a model reads them."""
    tokenizer = load_policy(study.text_policy, seed=0).tokenizer
    return sum(len(read_steps(tokenizer, s.question, s.steps, closed=True).ids) for s in solutions)


def estimate(study: Study, train: Sequence[Solution], test: Sequence[Solution], models: list[str], seeds: int) -> str:
    """Tokens, and core-hours at `GFLOP_PER_S`; training is 1.6 forward passes (adapters on a third of the layers)."""
    each, judged_tokens = tokens(study, train) / len(train), tokens(study, test)
    hours = judged_tokens * GFLOP_PER_TOKEN / GFLOP_PER_S / 3600  # log-likelihoods of the baseline
    for name in models:
        one = study.train[name]
        learnt = each * one.batch_size * (one.max_steps or 0)
        passes = 2 if name == "implicit" else 1  # the reference reads everything, too
        hours += seeds * (learnt * (0.6 + passes) + judged_tokens * passes) * GFLOP_PER_TOKEN / GFLOP_PER_S / 3600
    return (
        f"{len(train)} solutions to learn from ({each:.0f} tokens each), {len(test)} to judge ({judged_tokens} "
        f"tokens); {len(models)} models x {seeds} seeds: {hours:.1f} core-hours ({60 * hours:.0f} core-minutes) at "
        f"{GFLOP_PER_S} GFLOP/s"
    )


def scores_of(study: Study, name: str, seed: int, test: Sequence[Solution]) -> list[Score]:
    """Scores of the model of one seed, trained where it is not; they are kept in a file."""
    folder = Path(study.work_dir) / "models" / name / f"seed{seed}"
    path = folder / "test_scores.json"
    ids = [s.id for s in test]
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["ids"] == ids:
            return [Score(total=value) for value in kept["values"]]
    settings = study.train[name].model_copy(update={"seed": seed, "save_dir": str(folder)})
    started = time.process_time()
    result = train_text_model(settings, study, resume=True)
    model = load_text_model(str(result.folder), micro_batch_size=16)
    scores = score_solutions(model, test, what=f"{name} seed {seed}")
    record = {"ids": ids, "values": [_value(score) for score in scores], "core_seconds": time.process_time() - started}
    write_json(path, record)
    return [Score(total=value) for value in record["values"]]


def report(record: dict[str, Any]) -> str:
    """The record as Markdown tables."""
    columns = ("auroc", "within", "best_of_4", "weighted_vote", "ece", "brier")
    lines = ["| judge | auroc of each seed | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 2) + "|"]
    for name, row in record["judges"].items():
        each = " ".join(f"{value:.3f}" for value in row["auroc_of_seeds"])
        lines.append(f"| {name} | {each} | " + " | ".join(_cell(row.get(c)) for c in columns) + " |")
    lines += ["", "| without a judge | right answers |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(one)} |" for name, one in record["baselines"].items()]
    return "\n".join(lines)


def _cell(one: dict[str, Any] | None) -> str:
    if one is None or one["estimate"] is None:
        return ""
    ends = "" if one["low"] is None else f" [{one['low']:.3f}, {one['high']:.3f}]"
    return f"{one['estimate']:.3f}{ends}"


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Train and judge what is missing, write `result.json` and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solutions", help="example_model_solutions.jsonl")
    parser.add_argument("overrides", nargs="*", help="of the study file, such as train.outcome.max_steps=20")
    parser.add_argument("--train", type=int, default=480, help="questions to learn from")
    parser.add_argument("--test", type=int, default=160, help="questions to judge")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--models", nargs="+", choices=["outcome", "implicit", "verdict"],
                        default=["outcome", "implicit", "verdict"])  # fmt: skip
    parser.add_argument("--estimate", action="store_true", help="say what it costs, and end")
    given = parser.parse_intermixed_args(arguments)
    study = load(Study, FILE, given.overrides)
    torch.set_num_threads(study.runner.threads)
    started = time.process_time()
    train, test = split(read_systems(given.solutions), given.train, given.test)
    print(estimate(study, train, test, given.models, len(given.seeds)), flush=True)
    if given.estimate:
        return {}
    work = Path(study.work_dir)
    work.mkdir(parents=True, exist_ok=True)
    write_solutions(work / "train.jsonl", train)
    write_solutions(work / "test.jsonl", test)
    judges = {
        "shorter is better": judged(test, [[Score(total=-float(len(s.text))) for s in test]], probabilities=False)
    }
    judges["log-likelihood"] = judged(test, [log_likelihoods(study, test)], probabilities=False)
    for name in given.models:
        judges[name] = judged(test, [scores_of(study, name, seed, test) for seed in given.seeds], probabilities=True)
    record = {
        "judges": judges,
        "baselines": baselines(train, test),
        "questions": {"train": given.train, "test": given.test},
        "seeds": given.seeds,
        "command": provenance.command(),
        "date": provenance.now(),
        "machine": provenance.machine(),
        "core_minutes": (time.process_time() - started) / 60,
        "model": f"{study.text_policy.path}, 4-bit quantised origin",
    }
    write_json(work / "result.json", record)
    print(report(record))
    print(f"\n{record['date'][:10]}, {record['core_minutes']:.1f} core-minutes; judges of {record['model']}")
    return record


if __name__ == "__main__":
    main()
