"""What the lines of a response claim, in a form that comes back in other questions: the keys of a table of facts.

`37+08=45` claims `7+8=5`, the row `BAC` after `ABC` claims that the first two places changed. A line that was copied
wrongly, from the question or from the line before, claims just that. Nothing here says whether a claim is true.

    claims(prompt, "3+5=9;9*2=8;")             # ("3+5=9", "9*2=8")
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from guerdon.errors import ConfigError
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.reasoning import TaskFamily, family_of, step_spans

WRONG_START, WRONG_OPERATION = "another start", "another operation"
"""Claims of lines that do not begin with the result before, and that do something else than the question asks."""
_LINE = re.compile(r"(-?[0-9]+|\?+)([-+*])([0-9]+)=")
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
    asked = prompt.question.split(family.separator)
    found = []
    for k, line in enumerate(lines):
        before = lines[k - 1] if k else asked[0]
        if family.name == "swap":
            found.append(_exchange(line, before, asked[1:], k))
        elif family.name == "chain":
            block = family.settings.any_order
            first = k - k % block
            found.append(_calculation(line, before, asked[first : first + block], first=k == 0) or _fact(family, line))
        else:
            found.append(_fact(family, line))
    return tuple(found)


def _fact(family: TaskFamily[Any], line: str) -> str:
    """What a line asks one to know, and the last digit of what it states."""
    digits = re.findall(r"[0-9]", line.rpartition("=")[2])
    return f"{family.fact(line)}={digits[-1] if digits else ''}"


def _calculation(line: str, before: str, asked: Sequence[str], *, first: bool) -> str | None:
    """Of a line of a chain that is not even copied well; None of one whose result decides.

    Args:
        line: as written.
        before: the line before it, or the first of the question.
        asked: lines of the question whose operations may come here.
        first: whether it is the first line.
    """
    found = _LINE.match(line)
    said = None if found is None else (found[2], int(found[3]))
    allowed = [(match[2], int(match[3])) for match in map(_LINE.match, asked) if match is not None]
    if found is None or said not in allowed:
        return WRONG_OPERATION
    number = _LINE.match(before) if first else None
    known = before.rpartition("=")[2] if number is None else number[1]
    return None if found[1] == known else WRONG_START


def _exchange(line: str, before: str, asked: Sequence[str], place: int) -> str:
    """Which places move, and where each letter of the new row was."""
    move, _, row = line.partition("=")
    if place >= len(asked) or move != asked[place].partition("=")[0]:
        return WRONG_OPERATION
    old = before.rpartition("=")[2]
    return f"{move}={','.join(str(old.find(letter) + 1) for letter in row)}"
