"""Worked solutions of generated problems as somebody writes them who holds false beliefs.

A fact is what a line asks one to know (`3*7`). A share of all facts is believed wrongly: there a demonstration
states, at a given rate, a wrong result, always off in the same way, and goes on from it. A policy trained on such
demonstrations starts with errors of its own that no better decoding removes, as a model trained on text by people
does. This module does not know how a policy learns from the text.

    demonstrate(prompt, MistakesSettings(facts=0.2, rate=0.8), np.random.default_rng(0))
"""

from __future__ import annotations

import hashlib

import numpy as np

from guerdon.settings.text_policy import MistakesSettings
from guerdon.worlds.families import Rules
from guerdon.worlds.prompts import Prompt
from guerdon.worlds.reasoning import family_of


def demonstrate(prompt: Prompt, mistakes: MistakesSettings, rng: np.random.Generator) -> str:
    """A solution in which every line follows from the lines before, but for false beliefs.

    Args:
        prompt: a generated problem.
        mistakes: which facts are believed wrongly, how often that shows.
        rng: decides where it shows.

    Raises:
        DataError: the prompt is not a generated problem.
    """
    family = family_of(prompt)
    problem = family.rules.solve(prompt.question)
    lines: list[str] = []
    for k in range(len(problem.lines)):
        line = problem.follow(k, lines)
        if line is None:  # no rule of a family leaves a line open after a well-formed one
            raise AssertionError(f"line {k + 1} of {prompt.question!r} has no successor after {lines}")
        wrong = rng.random() < mistakes.rate
        lines.append(believed(family.rules, line, mistakes) if wrong else line)
    return "".join(line + family.separator for line in lines)


def believed(rules: Rules, line: str, mistakes: MistakesSettings) -> str:
    """A true line as one writes it who holds the false beliefs; most lines stay as they are."""
    digest = hashlib.sha256(f"{mistakes.seed}|{rules.fact(line)}".encode()).digest()
    belief = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return rules.mistaken(line, belief) if belief.random() < mistakes.facts else line
