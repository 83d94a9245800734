"""Generated benchmark in the shape of ProcessBench: worked solutions of generated problems, some with an error.

An error is a line with a wrong result at a place drawn uniformly; every later line follows from what was written. So
the first error, the truth of every step and of the answer are exact. There is a subset per family.

    bench = generated_bench([ChainSettings(steps=6), SwapSettings(steps=6)], size=200, seed=0)
    bench[0].meta["first_error"], bench[0].meta["subset"]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError
from guerdon.settings.data import TaskSettings
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.reasoning import TaskFamily, family_of, step_truth, task_family

STREAM = 0x62656E6368
_TRIES_PER_PROBLEM = 50


def generated_bench(
    families: Sequence[TaskSettings],
    size: int,
    seed: int,
    error_rate: float = 0.5,
    *,
    exclude: Collection[str] = (),
) -> list[Solution]:
    """Solutions with a known first error: a share of them with an error, the others fully right.

    Args:
        families: a subset each; one that occurs twice gets a number.
        size: solutions per family.
        seed: of problems, and of which solutions have an error and where.
        error_rate: share of the solutions with an error, rounded to a whole number of them.
        exclude: questions that must not occur, such as those trained on.

    Returns:
        `meta` holds subset, first_error, generator, family and parameters.

    Raises:
        ConfigError: sizes below 1 or an error rate outside [0, 1].
        DataError: a family has too few different problems.
    """
    if size < 1 or not 0 <= error_rate <= 1:
        raise ConfigError("a generated bench needs a size of at least 1 and an error_rate between 0 and 1")
    solutions: list[Solution] = []
    for subset, prompts, rng in _subsets(families, size, seed, exclude):
        slips = np.arange(size) < round(size * error_rate)
        rng.shuffle(slips)
        solutions += [
            _solution(prompt, subset, str(k), rng if slip else None)
            for k, (prompt, slip) in enumerate(zip(prompts, slips, strict=True))
        ]
    return solutions


def right_and_wrong(
    families: Sequence[TaskSettings], size: int, seed: int, *, exclude: Collection[str] = ()
) -> list[Solution]:
    """Of every problem a right solution and one with an error, next to each other: the material of attacks.

    An error that leaves the answer right is kept, with a true `is_correct`.

    Args:
        families: a subset each.
        size: problems per family.
        seed: of problems and errors; the problems are those of `generated_bench`.
        exclude: questions that must not occur.

    Raises:
        DataError: a family has too few different problems.
    """
    return [
        _solution(prompt, subset, f"{k}-{kind}", rng if kind == "wrong" else None)
        for subset, prompts, rng in _subsets(families, size, seed, exclude)
        for k, prompt in enumerate(prompts)
        for kind in ("right", "wrong")
    ]


def _subsets(
    families: Sequence[TaskSettings], size: int, seed: int, exclude: Collection[str]
) -> Iterator[tuple[str, list[Prompt], np.random.Generator]]:
    """Name, problems and generator of each family."""
    names: dict[str, int] = {}
    for number, settings in enumerate(families):
        names[settings.family] = names.get(settings.family, 0) + 1
        subset = settings.family if names[settings.family] == 1 else f"{settings.family}-{names[settings.family]}"
        rng = np.random.default_rng([seed, number, STREAM])  # not the one that training problems are drawn from
        yield subset, _problems(task_family(settings), size, rng, set(exclude)), rng


def _solution(prompt: Prompt, subset: str, number: str, rng: np.random.Generator | None) -> Solution:
    """A worked solution, with an error where there is a generator."""
    family = family_of(prompt)
    steps = tuple(line + family.separator for line in solution_lines(prompt, rng))
    truth = step_truth(prompt, "".join(steps))
    return Solution(
        id=f"{subset}-{number}",
        question=prompt.question,
        steps=steps,
        labels=tuple(float(right) for right in truth.correct),
        is_correct=truth.outcome,
        ground_truth=prompt.ground_truth,
        answer=truth.answer,
        separator=family.separator,
        meta={
            "subset": subset,
            "first_error": truth.first_error,
            "generator": "guerdon",
            "data_source": prompt.data_source,
            **dict(prompt.extra_info),
        },
    )


def solution_lines(prompt: Prompt, rng: np.random.Generator | None) -> list[str]:
    """The lines of a worked solution, with a wrong result at a uniform place from which the later lines follow.

    Args:
        prompt: a generated problem.
        rng: decides where and how; None: no error.

    Raises:
        DataError: the prompt is not a generated problem.
    """
    family = family_of(prompt)
    problem = family.solve(prompt.question)
    place = -1 if rng is None else int(rng.integers(len(problem.lines)))
    lines: list[str] = []
    for k in range(len(problem.lines)):
        line = problem.follow(k, lines)
        if line is None:  # no rule of a family leaves a line open after a well-formed one
            raise AssertionError(f"line {k + 1} of {prompt.question!r} has no successor after {lines}")
        lines.append(family.mistaken(line, rng) if rng is not None and k == place else line)
    return lines


def _problems(family: TaskFamily[Any], size: int, rng: np.random.Generator, exclude: set[str]) -> list[Prompt]:
    """Different problems, none of them excluded."""
    prompts: list[Prompt] = []
    for _ in range(_TRIES_PER_PROBLEM * size):
        if len(prompts) == size:
            break
        prompt = family.sample(rng)
        if prompt.question not in exclude:
            exclude.add(prompt.question)
            prompts.append(prompt)
    if len(prompts) < size:
        raise DataError(
            f"the family {family.name} has little more than {len(exclude)} different problems at this difficulty; "
            "lower the size of the bench, or make the task larger"
        )
    return prompts
