"""What the lines of a response claim, in a form that comes back in other questions: the keys of a table of facts.

`37+08=45` claims `7+8=5`, the row `BAC` after `ABC` claims that the first two places changed. Nothing here says
whether a claim is true.

    claims(prompt, "3+5=9;9*2=8;")             # ("3+5=9", "9*2=8")
"""

from __future__ import annotations

import re

from guerdon.errors import ConfigError
from guerdon.worlds.prompts import Prompt
from guerdon.worlds.reasoning import family_of, step_spans

FAMILIES = ("chain", "register", "swap", "story")
"""Those whose facts hold in every question; an automaton's table is another one in each."""


def claims(prompt: Prompt, text: str) -> tuple[str, ...]:
    """One claim for each step of `step_truth`.

    Raises:
        ConfigError: the facts of the family differ between questions.
        DataError: the prompt is not a generated problem.
    """
    family = family_of(prompt)
    if family.name not in FAMILIES:
        raise ConfigError(
            f"the tabular reward model cannot be used with the family {family.name}, whose facts differ between "
            f"questions; it can with {', '.join(FAMILIES)}"
        )
    cut = [text[a:b].strip().removesuffix(family.separator).strip() for a, b in step_spans(text, family.separator)]
    lines = [line for line in cut if line] if family.name == "story" else cut
    first = prompt.question.partition(family.separator)[0]
    found = []
    for k, line in enumerate(lines):
        before = lines[k - 1] if k else first
        if family.name == "swap":
            found.append(_exchange(line, before))
        else:
            copied = family.name != "chain" or not k or _continues(line, before)
            found.append(f"{family.fact(line)}={_result(line)}" + ("" if copied else "!"))
    return tuple(found)


def _exchange(line: str, before: str) -> str:
    """Which places move, and where each letter of the new row was."""
    move, _, row = line.partition("=")
    old = before.rpartition("=")[2]
    return f"{move}={','.join(str(old.find(letter) + 1) for letter in row)}"


def _continues(line: str, before: str) -> bool:
    """Whether a line of a chain starts with the result of the line before."""
    left = re.match(r"-?[0-9]+", line)
    return left is not None and left[0] == before.rpartition("=")[2]


def _result(line: str) -> str:
    """The last digit of what a line states."""
    digits = re.findall(r"[0-9]", line.rpartition("=")[2])
    return digits[-1] if digits else ""
