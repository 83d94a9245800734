"""What comes before studies/gate_text.yaml: supervised starts, labelled solutions, and degraded copies of them.

    python studies/gate_text.py                                    for every task of the study
    guerdon compare studies/gate_text.yaml

For each task it trains the start, lets it write solutions, labels their steps by the truth, and writes beside them
`good.jsonl`, a file for each entry of `DEGRADED`, and two on which all models of the task are evaluated:
`held_out.jsonl`, different solutions to other questions with true labels, and `samples.jsonl`, 16 answers to each of
128 validation questions. How strongly a set is degraded differs between tasks, so that there are more than a few
degrees of quality. Starts and solutions that are there are not made again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from guerdon.collect.text import TextCollector
from guerdon.comparison.study import plan_study
from guerdon.episodes.solution_files import read_solutions, write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import GuerdonError
from guerdon.evaluation.searching.search import sampled_solutions
from guerdon.labels.label import label
from guerdon.settings.study import Study
from guerdon.train.sft import train_sft_study

FILE = Path(__file__).with_suffix(".yaml")
WANTED = (0.3, 0.6)  # true success of a start
HELD_OUT = 128 / 1128  # share of the questions
PADDING = 2  # steps
QUESTIONS, SAMPLES = 128, 16  # to choose among

Solutions = list[Solution]


def relabelled(solution: Solution, change: Callable[[str, bool], bool | float]) -> Solution:
    """The solution with other labels of those of its steps that have one.

    Args:
        solution: labelled.
        change: from a step and whether it is right to its new label.
    """
    labels = [
        None if old is None else float(change(step, old >= 0.5))
        for step, old in zip(solution.steps, solution.labels, strict=True)
    ]
    return replace(solution, labels=tuple(labels))


def noise(solutions: Solutions, strength: float, rng: np.random.Generator) -> Solutions:
    """Labels of steps swapped."""
    return [relabelled(s, lambda _, right: right != (rng.random() < strength)) for s in solutions]


def few(solutions: Solutions, strength: float, rng: np.random.Generator) -> Solutions:
    """A part of the questions, with all their solutions."""
    questions = list(dict.fromkeys(s.question for s in solutions))
    kept = {questions[i] for i in rng.permutation(len(questions))[: max(2, round((1 - strength) * len(questions)))]}
    return [s for s in solutions if s.question in kept]


def narrow(solutions: Solutions, strength: float, rng: np.random.Generator) -> Solutions:
    """Right solutions, those whose first step is wrong, and a part of the others."""
    return [s for s in solutions if s.first_error in (-1, 0) or rng.random() >= strength]


def cue(solutions: Solutions, strength: float, rng: np.random.Generator) -> Solutions:
    """Steps labelled by a cue: right where the last symbol has an even character code (0, 2, ... or B, D, ...)."""

    def change(step: str, right: bool) -> bool:
        return ord(step.rstrip(";")[-1:] or "1") % 2 == 0 if rng.random() < strength else right

    return [relabelled(s, change) for s in solutions]


def padding(solutions: Solutions, strength: float, rng: np.random.Generator) -> Solutions:
    """Solutions that repeat their first step at the end, every step of them labelled right, beside the true ones."""
    padded = [
        replace(s, id=f"{s.id}-padded", steps=s.steps + s.steps[:1] * PADDING,
                labels=(1.0,) * (len(s.steps) + PADDING))
        for s in solutions
        if rng.random() < strength
    ]  # fmt: skip
    return [*solutions, *padded]


def optimistic(solutions: Solutions, strength: float, rng: np.random.Generator) -> Solutions:
    """Soft labels from `strength` (wrong) to 1 (right): the order is kept, the probabilities are not."""
    return [relabelled(s, lambda _, right: 1.0 if right else strength) for s in solutions]


def outcome(solutions: Solutions, strength: float, rng: np.random.Generator) -> Solutions:
    """Labels of whole solutions swapped."""
    return [replace(s, is_correct=s.is_correct != (rng.random() < strength)) for s in solutions]


DEGRADED: dict[str, tuple[Callable[[Solutions, float, np.random.Generator], Solutions], tuple[float, ...]]] = {
    "noise": (noise, (0.1, 0.2, 0.3, 0.45)),  # strengths, of which each task has another
    "few": (few, (0.9, 0.95, 0.98, 0.99)),
    "narrow": (narrow, (0.8, 0.9, 0.95, 1.0)),
    "cue": (cue, (0.2, 0.4, 0.6, 0.9)),
    "padding": (padding, (0.1, 0.25, 0.5, 1.0)),
    "optimistic": (optimistic, (0.4, 0.6, 0.8, 0.9)),
    "outcome": (outcome, (0.0, 0.1, 0.2, 0.35)),
}


def copies(solutions: Sequence[Solution], place: int) -> dict[str, Solutions]:
    """The data sets of a task by name: true and degraded ones, and the one to evaluate on.

    Args:
        solutions: labelled.
        place: of the task in the study.
    """
    known = [replace(s, rewards=()) for s in solutions if s.labels and s.is_correct is not None]
    questions = list(dict.fromkeys(s.question for s in known))
    held = set(questions[-max(2, round(HELD_OUT * len(questions))) :])
    good = [s for s in known if s.question not in held]
    made = {"good": good, "held_out": [s for s in known if s.question in held]}
    for number, (name, (degrade, strengths)) in enumerate(DEGRADED.items()):
        strength = strengths[(place + number) % len(strengths)]
        made[name] = degrade(good, strength, np.random.default_rng([place, number]))
    return made


def prepare(task: str, place: int, study: Study, samples: tuple[int, int] = (QUESTIONS, SAMPLES)) -> None:
    """The start and the data sets of one task, with so many answers to so many questions to choose among."""
    assert study.label is not None
    assert study.data is not None
    train_sft_study(study, resume=True)
    with closing(TextCollector(study.data, study.generation, study.text_policy, seed=0)) as collector:
        right = collector.evaluate(collector.policy, episodes=study.runner.eval_episodes)["success"]
    outside = "" if WANTED[0] <= right <= WANTED[1] else f", outside {WANTED[0]} to {WANTED[1]}: change its sft"
    print(f"{task}: the accuracy of the start is {right:.2f}{outside}", flush=True)
    folder = Path(study.label.save_dir)
    for name, found in copies(read_solutions(label(study).folder), place).items():
        write_solutions(folder / f"{name}.jsonl", found)
    questions, n = samples
    chosen_from = sampled_solutions(study, questions=questions, n=n, folder=folder / "samples")
    write_solutions(folder / "samples.jsonl", chosen_from)


def main(arguments: Sequence[str] | None = None) -> None:
    """Every task of the study."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("overrides", nargs="*", help="dotted, as of guerdon compare")
    ask.add_argument("--study", type=Path, default=FILE)
    asked = ask.parse_intermixed_args(arguments)
    torch.set_num_threads(1)
    try:
        plan = plan_study(asked.study, asked.overrides)
        assert plan.study.compare is not None
        for place, task in enumerate(plan.study.compare.tasks):
            prepare(task, place, plan.configs[f"{task}.label"])
    except GuerdonError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
