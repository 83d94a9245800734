"""Worked solutions of generated problems, with false beliefs.

A fact is what a line asks one to know (`3*7`). For a share of all facts a demonstration states, at a given rate, a
wrong result, always the same one, and continues from it. A policy trained on them starts with errors of its own that
no better decoding removes.

    demonstrate(prompt, MistakesSettings(facts=0.2, rate=0.8), np.random.default_rng(0))
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from guerdon.settings.train import MistakesSettings
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.reasoning import TaskFamily, family_of


def demonstrate(prompt: Prompt, mistakes: MistakesSettings, rng: np.random.Generator) -> str:
    """A solution in which every line follows from the lines before, but for false beliefs.

    Where several lines are right, each of them is as likely.

    Args:
        prompt: a generated problem.
        mistakes: which facts are believed wrongly, how often that shows.
        rng: decides where it shows.

    Raises:
        DataError: the prompt is not a generated problem.
    """
    family = family_of(prompt)
    problem = family.solve(prompt.question)
    lines: list[str] = []
    for k in range(len(problem.lines)):
        right = problem.next_lines(k, lines)
        if not right:  # no rule of a family leaves a line open after a well-formed one
            raise AssertionError(f"line {k + 1} of {prompt.question!r} has no successor after {lines}")
        line = right[0] if len(right) == 1 else right[int(rng.integers(len(right)))]
        wrong = rng.random() < mistakes.rate
        lines.append(believed(family, line, mistakes) if wrong else line)
    return "".join(line + family.separator for line in lines)


def believed(family: TaskFamily[Any], line: str, mistakes: MistakesSettings) -> str:
    """A true line as the false beliefs change it; most lines stay as they are."""
    digest = hashlib.sha256(f"{mistakes.seed}|{family.fact(line)}".encode()).digest()
    belief = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return family.mistaken(line, belief) if belief.random() < mistakes.facts else line
