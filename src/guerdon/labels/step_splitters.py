r"""Cut a written solution into steps, by name.

Every splitter partitions the text: joined, the steps are the text again. Blanks belong to the step that they follow,
and a piece of nothing but blanks is not a step of its own. Which splitter was used is recorded with the solution.

    split("Let x=3.\n\nThen x+1=4.", "blank_line")             # ("Let x=3.\n\n", "Then x+1=4.")
    split("3+5=8;8*2=6;", "separator", separator=";")           # ("3+5=8;", "8*2=6;")
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from guerdon.errors import ConfigError
from guerdon.labels.sentences import sentence_ends
from guerdon.policies.tokens import split_steps
from guerdon.settings.label import Splitter

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_NEWLINE = re.compile(r"\n\s*")
_MARK = re.compile(
    r"(?P<closing></step>)|<step\b[^>]*>|^[^\S\n]*(?:[#*]+\s*)?Step\s+[0-9]+\b|^[^\S\n]*\[[A-Z][A-Z _-]*\]",
    re.IGNORECASE | re.MULTILINE,
)


def split(text: str, splitter: Splitter, *, separator: str = "") -> tuple[str, ...]:
    """The steps of a text.

    - `blank_line`: a step ends with one or more blank lines (Qwen's convention, 2501.07301).
    - `newline`: with the end of a line.
    - `sentence`: with a sentence or a line (`labels.sentences`).
    - `code_block`: a fenced block (or `<llm-code>`) is a step; the rest is cut into sentences.
    - `tags`: a step starts at `<step>`, `Step 3` or `[ADVANCE]` at the start of a line, and ends at `</step>`.
    - `separator`: with the text that the task itself ends its steps with.

    Args:
        text: a solution.
        splitter: one of these names.
        separator: what `separator` cuts at; unused otherwise.

    Returns:
        The steps; none for a text of nothing but blanks.

    Raises:
        ConfigError: `separator` without a text to cut at.
    """
    if not text.strip():
        return ()
    if splitter == "separator":
        if not separator:
            raise ConfigError("the splitter 'separator' needs the task's own separator, which these questions lack")
        return tuple(split_steps(text, separator))
    ends = {
        "blank_line": lambda: [match.end() for match in _BLANK_LINE.finditer(text)],
        "newline": lambda: [match.end() for match in _NEWLINE.finditer(text)],
        "sentence": lambda: sentence_ends(text)[0],
        "code_block": lambda: _with_code(*sentence_ends(text)),
        "tags": lambda: [match.end() if match["closing"] else match.start() for match in _MARK.finditer(text)],
    }[splitter]()
    return _pieces(text, ends)


def _with_code(ends: list[int], code: list[tuple[int, int]]) -> list[int]:
    return [*ends, *(place for block in code for place in block)]


def _pieces(text: str, ends: Iterable[int]) -> tuple[str, ...]:
    """The text cut at these places; blank pieces go to the step before (at the start: to the one after)."""
    steps: list[str] = []
    at = 0
    for end in sorted({*ends, len(text)}):
        piece = text[at:end]
        at = end
        lead = piece[: len(piece) - len(piece.lstrip())]
        if steps and steps[-1].strip():
            steps[-1] += lead
            piece = piece[len(lead) :]
        if steps and not steps[-1].strip():
            steps[-1] += piece
        elif piece:
            steps.append(piece)
    return tuple(steps)
