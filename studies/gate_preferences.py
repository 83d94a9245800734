"""What comes before and after studies/gate_preferences.yaml: pairs of graded quality, judges, and rows of the gate.

    python studies/gate_preferences.py prepare                     for every task of the study
    guerdon compare studies/gate_preferences.yaml
    python studies/gate_preferences.py rows

`prepare` makes starts and labelled solutions as studies/gate_text.py does, pairs of a right and a wrong solution to the
same question, and degraded copies of these (`DEGRADED`). `rows` evaluates the judges on the same solutions as the
models, adds them to `gate.jsonl`, and shows what the turning point of best-of-n forecasts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import runpy
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon.comparison.report_cards import GATE_FILE, gate_rows
from guerdon.comparison.results import read_study
from guerdon.comparison.study import StudyPlan, plan_study
from guerdon.episodes.solution_files import read_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import GuerdonError
from guerdon.evaluation.gate.forecast import correlation, ranks_among
from guerdon.evaluation.gate.gate_card import signed
from guerdon.evaluation.gate.gate_table import PREFIX, GateTable, read_gate_table
from guerdon.evaluation.suites.text_suite import evaluate_text
from guerdon.files.atomic import write_text
from guerdon.models.scores import RECORD
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.reasoning import step_truth
from guerdon.types import Episode, Failure, RewardInfo, Score

FILE = Path(__file__).with_suffix(".yaml")
TEXT = runpy.run_path(str(FILE.with_name("gate_text.py")))
SAMPLES = (64, 64)  # questions, and answers to each, to choose among
EXTRA = 2  # steps

Pair = tuple[Solution, Solution]  # the better and the worse one


class ScriptedJudge:
    """A judge of whole responses, 1 right and 0 wrong, with a stated error rate.

    About which responses it is wrong follows from their text alone: it says the same again.

    Args:
        error: share of the responses about which it is wrong.
    """

    info = RewardInfo(name="scripted_judge", range=(0.0, 1.0), granularity="total", modality="text")

    def __init__(self, error: float) -> None:
        self.error = error

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode; a `Failure` where the truth is unknown."""
        return [self._score(one) for one in episodes]

    def _score(self, one: Episode) -> Score:
        text, right = "".join(one.texts or ()), one.outcome
        if right is None and "family" not in one.meta:
            return Score(failure=Failure("no_truth", "neither an outcome nor the family of a generated problem"))
        if right is None:
            asked = ({"role": "user", "content": one.task},)
            right = step_truth(Prompt(one.id, asked, "", "guerdon", extra_info=dict(one.meta)), text).outcome
        digest = hashlib.sha256(f"{one.task}\0{text}".encode()).digest()
        wrong = int.from_bytes(digest[:8]) < self.error * 2**64
        return Score(total=float(bool(right) != wrong))


def pairs_of(solutions: Sequence[Solution]) -> list[Pair]:
    """Each right solution with a wrong one to the same question, all of them used once."""
    by_question: dict[str, dict[bool, list[Solution]]] = defaultdict(lambda: {True: [], False: []})
    for one in solutions:
        if one.is_correct is not None:
            by_question[one.question][one.is_correct].append(one)
    return [pair for both in by_question.values() for pair in zip(both[True], both[False], strict=False)]


def swapped(pairs: Sequence[Pair], strength: float, rng: np.random.Generator) -> list[Pair]:
    """A part of the judgements wrong."""
    return [(worse, better) if rng.random() < strength else (better, worse) for better, worse in pairs]


def few(pairs: Sequence[Pair], strength: float, rng: np.random.Generator) -> list[Pair]:
    """A part of the pairs."""
    kept = rng.permutation(len(pairs))[: max(8, round((1 - strength) * len(pairs)))]
    return [pairs[i] for i in sorted(kept)]


def longer(pairs: Sequence[Pair], strength: float, rng: np.random.Generator) -> list[Pair]:
    """In a part of the pairs the worse solution is preferred for two steps too many."""
    return [(_longer(b), a) if rng.random() < strength else (a, b) for a, b in pairs]


def _longer(one: Solution) -> Solution:
    return replace(one, steps=one.steps + one.steps[:1] * EXTRA, labels=())


DEGRADED: dict[str, tuple[Callable[[Sequence[Pair], float, np.random.Generator], list[Pair]], tuple[float, ...]]] = {
    "pairs_exact": (swapped, (0.0,)),  # strengths, of which each task has another
    "pairs_noise": (swapped, (0.1, 0.2, 0.3, 0.45)),
    "pairs_few": (few, (0.9, 0.95, 0.98, 0.99)),
    "pairs_length": (longer, (0.1, 0.2, 0.3, 0.45)),
}


def prepare(plan: StudyPlan) -> None:
    """The start, the labelled solutions and the pairs of each task."""
    assert plan.study.compare is not None
    for place, task in enumerate(plan.study.compare.tasks):
        study = plan.configs[f"{task}.label"]
        assert study.label is not None
        TEXT["prepare"](task, place, study, SAMPLES)
        folder = Path(study.label.save_dir)
        pairs = pairs_of(read_solutions(folder / "good.jsonl"))
        for number, (name, (degrade, strengths)) in enumerate(DEGRADED.items()):
            rng = np.random.default_rng([place, number])
            found = degrade(pairs, strengths[(place + number) % len(strengths)], rng)
            rows = [{"prompt": a.question, "chosen": a.text, "rejected": b.text} for a, b in found]
            write_text(folder / f"{name}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
            print(f"{task}: {len(rows)} pairs in {name}", flush=True)


def turning(record: Mapping[str, Any]) -> dict[str, float]:
    """What best-of-n against the verifier says, from the curve in the content of `evaluation.json`.

    `bon_turn` is sqrt(KL) of the n with the most right answers, KL = log n - (n - 1) / n (2210.10760): 0 where choosing
    only harms, the largest where the curve rises to its end. `bon_gain` is the change from one answer to the most.
    """
    ns = np.array(record["best_of_n"]["n"], dtype=np.float64)
    right = [one["estimate"] for one in record["best_of_n"]["failures_wrong"]["bon_min"]["accuracy"]]
    at = ns[int(np.argmax(right))]
    return {"bon_turn": float(np.sqrt(np.log(at) - (at - 1) / at)), "bon_gain": right[-1] - right[0]}


def forecasts(table: GateTable) -> list[str]:
    """Rank correlation of each feature with the change of success, and what it adds to `auroc` on tasks left out."""
    auroc, lines = table.columns(["auroc"])[:, 0], []
    for name in sorted(set(table.names) - {"row_auroc"}):
        x_N_F = np.stack([auroc, table.columns([name])[:, 0]], axis=1)
        alone, both = np.empty(len(table)), np.empty(len(table))
        for task in table.tasks:
            inside = table.tasks_N == task
            ranks = ranks_among(x_N_F[inside], x_N_F[~inside])
            alone[inside], both[inside] = ranks[:, 0], ranks.mean(axis=1)
        own = correlation(x_N_F[:, 1], table.gains_N, reps=2000, seed=0)
        more = correlation(both, table.gains_N, reps=2000, seed=0, minus_N=alone)
        lines.append(
            f"{name}: correlation with the change {signed(asdict(own))}; added to auroc {signed(asdict(more))}"
        )
    return lines


def rows(plan: StudyPlan) -> list[dict[str, Any]]:
    """The rows of all reward models of the study, those of the judges among them."""
    assert plan.study.compare is not None
    study = read_study(Path(plan.study.work_dir))
    runs = list(study.runs)
    for i, run in enumerate(runs):
        if not run.arm.startswith("judge"):
            continue
        config = plan.configs[f"{run.task}.{run.arm}.seed{run.seed}"]
        folder = Path(config.work_dir) / "models" / run.task / run.arm
        if not (folder / RECORD).is_file():
            (source,) = config.reward.sources.values()
            assert config.text_evaluate is not None
            evaluate_text(ScriptedJudge(**source.model.params), config.text_evaluate, folder)
        reward = {"use_reward_model": True, "sources": {"model": {"model": {"checkpoint_path": str(folder)}}}}
        runs[i] = replace(run, config_text=json.dumps({**run.config, "reward": reward}))  # where its card lies
    found = gate_rows(replace(study, runs=tuple(runs)))
    for row in found:
        card = Path(plan.study.work_dir) / "models" / row["task"] / row["family"] / RECORD
        measured = turning(json.loads(card.read_text(encoding="utf-8")))
        row |= {PREFIX + name: value for name, value in measured.items()}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """`prepare` or `rows`."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("command", choices=("prepare", "rows"))
    ask.add_argument("overrides", nargs="*", help="dotted, as of guerdon compare")
    ask.add_argument("--study", type=Path, default=FILE)
    asked = ask.parse_intermixed_args(arguments)
    torch.set_num_threads(1)
    sys.path.insert(0, str(FILE.parents[1]))  # the study names a class of this file
    try:
        plan = plan_study(asked.study, asked.overrides)
        if asked.command == "prepare":
            prepare(plan)
        else:
            found = rows(plan)
            out = Path(plan.study.work_dir) / GATE_FILE
            write_text(out, "".join(f"{json.dumps(row)}\n" for row in found))
            print(f"{len(found)} reward models in {out}", *forecasts(read_gate_table(out)), sep="\n")
    except GuerdonError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
