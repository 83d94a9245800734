"""Who labels the steps? One policy's solutions, labels from different sources, a reward model from each.

The same solutions get their labels from the exact truth, from a judge that errs, from continuations (any reaches the
answer: hard; the share that does: soft), and from judge and continuations where they agree on the first error. The
judge is the truth with a share of its judgements turned round, so that what a better or worse one would do can be told.
Each reward model is then asked about solutions to other questions: does it find the first wrong step (F1 as in
ProcessBench, 2412.06559; at a threshold of 0.5, and at one chosen on the other half of the questions), and does it
choose better among 16 samples than majority voting?

    guerdon train configs/prm_demo.yaml policy=sft
    python studies/label_sources.py configs/prm_demo.yaml --seeds 0 1 2

One row per source: the mean over training seeds with a 95 % t interval. Every difference to majority stands with its
own interval, over questions, in the JSON that `--out` writes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from guerdon.config.loading import load
from guerdon.episodes.solution_files import read_solutions, write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.evaluation.benchmarks.best_of_n import best_of_n, same_number_or_text
from guerdon.evaluation.benchmarks.step_benchmarks import process_bench
from guerdon.evaluation.searching.search import sampled_solutions
from guerdon.files import atomic
from guerdon.labels.label import label
from guerdon.models.scores import score_solutions
from guerdon.models.text.text_load import load_text_model
from guerdon.settings.study import Study
from guerdon.train.text import train_text_model

COLUMNS = (
    "first_error_f1",
    "f1_tuned",
    "majority",
    "weighted",
    "weighted_minus_majority",
    "best_of_16",
    "best_minus_majority",
)
SOURCES = ("exact", "judge", "mc_hard", "mc_soft", "consensus")
SAMPLES = 16


def main() -> None:
    """Label, train and judge."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("study", type=Path, help="a language study with label and train sections, exact labels first")
    ask.add_argument("--model", default="exact", help="the entry of the train section whose settings are used")
    ask.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    ask.add_argument("--noise", type=float, default=0.1, help="share of judgements that are wrong")
    ask.add_argument("--questions", type=int, default=128, help="validation questions to judge on")
    ask.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    ask.add_argument("--out", type=Path, default=None, help="write all numbers here as JSON")
    given = ask.parse_args()
    torch.set_num_threads(1)
    study = load(Study, given.study, [])
    work = Path(study.work_dir) / "sources"
    files = {source: work / f"{source}.jsonl" for source in SOURCES}
    if not all(path.is_file() for path in files.values()):
        for source, solutions in label_sets(study, work, given.noise).items():
            write_solutions(files[source], solutions)
    samples = sampled_solutions(
        study, questions=given.questions, n=SAMPLES, folder=work / "-".join(given.sources), temperature=0.8
    )
    judged_on = list({(s.question, s.text): s for s in samples if s.labels}.values())
    rows: dict[str, list[dict[str, Any]]] = {}
    sys.stdout.write("  ".join(f"{name:>24}" for name in ("labels", "solutions", *COLUMNS)) + "\n")
    for source in given.sources:
        path = files[source]
        rows[source] = [one_seed(study, given.model, path, source, seed, samples, judged_on) for seed in given.seeds]
        means = (over_seeds([row[name] for row in rows[source]]) for name in COLUMNS)
        sys.stdout.write("  ".join(f"{c:>24}" for c in (source, len(read_solutions(path)), *means)) + "\n")
        sys.stdout.flush()
    if given.out is not None:
        atomic.write_json(given.out, {"noise": given.noise, "seeds": given.seeds, "rows": rows})


def label_sets(study: Study, work: Path, noise: float) -> dict[str, list[Solution]]:
    """The same solutions with the labels of each source; where a source says nothing, the solution is left out."""
    exact = labelled(study, work / "exact", "exact")
    soft = labelled(study, work / "continued", "monte_carlo")
    rng = np.random.default_rng(0)
    judge = {name: judge_like(s, noise, rng) for name, s in exact.items()}
    hard = {
        name: replace(s, labels=tuple(None if v is None else float(v > 0) for v in s.labels))
        for name, s in soft.items()
    }
    agreed = {n: cut(judge[n]) for n in judge if n in hard and judge[n].first_error == hard[n].first_error}
    sets = {"exact": exact, "judge": judge, "mc_hard": hard, "mc_soft": soft, "consensus": agreed}
    return {source: list(solutions.values()) for source, solutions in sets.items()}


def labelled(study: Study, folder: Path, labeler: str) -> dict[str, Solution]:
    """What `guerdon label` makes with this labeler; the solutions are the same for each, as they are drawn alike."""
    assert study.label is not None
    settings = study.label.model_copy(update={"save_dir": str(folder), "labeler": labeler})
    done = label(study.model_copy(update={"label": settings}))
    return {s.id: replace(s, rewards=()) for s in read_solutions(done.folder)}


def judge_like(solution: Solution, noise: float, rng: np.random.Generator) -> Solution:
    """Judgements of a judge that errs on a share of the steps; it gives none for steps after its first error."""
    said = [None if v is None else float(v if rng.random() >= noise else 1 - v) for v in solution.labels]
    return cut(replace(solution, labels=tuple(said)))


def cut(solution: Solution) -> Solution:
    """No label behind the first wrong step."""
    first = solution.first_error
    if first is None or first < 0:
        return solution
    return replace(solution, labels=tuple(v if k <= first else None for k, v in enumerate(solution.labels)))


def one_seed(
    study: Study,
    model: str,
    data: Path,
    source: str,
    seed: int,
    samples: Sequence[Solution],
    judged_on: Sequence[Solution],
) -> dict[str, Any]:
    """Train on one set of labels and judge."""
    changes = {"data_path": str(data), "save_dir": str(data.with_suffix("") / f"seed{seed}"), "seed": seed}
    changes |= {"labels": "soft", "threshold": None} if source == "mc_soft" else {"labels": "hard"}
    result = train_text_model(study.text_models[model].model_copy(update=changes), study, resume=True)
    trained = load_text_model(str(result.folder), micro_batch_size=64)
    scores = score_solutions(trained, list(judged_on), batch_size=512, what=f"{source} {seed} steps")
    bench = process_bench(judged_on, scores, reps=200, seed=0)
    places = {question: k for k, question in enumerate(dict.fromkeys(s.question for s in judged_on))}
    halves = [replace(s, meta={**s.meta, "subset": ("tune", "test")[places[s.question] % 2]}) for s in judged_on]
    tuned = process_bench(halves, scores, tune_on="tune", reps=200, seed=0)
    scores = score_solutions(trained, list(samples), batch_size=512, what=f"{source} {seed} samples")
    chosen = best_of_n(samples, scores, same_number_or_text, aggregations=("min",), ns=(SAMPLES,), seed=0)
    curves = chosen.failures_wrong

    def three(interval: Any) -> list[float | None]:
        return [interval.estimate, interval.low, interval.high]

    return {
        "first_error_f1": three(bench.subsets["samples"].measured["f1"]),
        "f1_tuned": three(tuned.subsets["test"].measured["f1"]),
        "majority": three(curves["majority"].accuracy[0]),
        "weighted": three(curves["weighted_min"].accuracy[0]),
        "weighted_minus_majority": three(curves["weighted_min"].minus_majority[0]),
        "best_of_16": three(curves["bon_min"].accuracy[0]),
        "best_minus_majority": three(curves["bon_min"].minus_majority[0]),
    }


def over_seeds(values: Sequence[Sequence[float | None]]) -> str:
    """The mean with a 95 % t interval over seeds; `-` where one has no value."""
    known = [v[0] for v in values if v[0] is not None]
    if len(known) < len(values):
        return "-"
    mean, n = float(np.mean(known)), len(known)
    if n < 2:
        return f"{mean:.3f}"
    half = float(stats.t.ppf(0.975, n - 1) * np.std(known, ddof=1) / n**0.5)
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


if __name__ == "__main__":
    main()
