r"""Cut a written solution into steps, by name.

Every splitter partitions the text: joined, the steps are the text again. Blanks belong to the step that they follow,
and a piece of nothing but blanks is no step of its own. Which splitter was used is recorded with the solution.

    split("Let x=3.\n\nThen x+1=4.", "blank_line")             # ("Let x=3.\n\n", "Then x+1=4.")
    split("3+5=8;8*2=6;", "separator", separator=";")           # ("3+5=8;", "8*2=6;")
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from guerdon.errors import ConfigError
from guerdon.policies.tokens import split_steps
from guerdon.settings.label import Splitter

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_NEWLINE = re.compile(r"\n\s*")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Za-z]|e\.g|i\.e|etc|cf|vs|approx|resp|[Ee]qs?|[Ff]igs?|[Nn]os?|[Dd]r|[Mm]rs?|[Mm]s|[Ss]t)\.$"
)
_STOP = re.compile(r"[.!?]+[\"')\]}*]*(?=\s|$)")
_CODE = re.compile(
    r"```.*?(?:```[^\S\n]*\n?|\Z)|~~~.*?(?:~~~[^\S\n]*\n?|\Z)"
    r"|<llm-code(?P<kind>-output)?>.*?(?:</llm-code(?(kind)-output)>|\Z)",
    re.DOTALL,
)
_MARK = re.compile(
    r"(?P<closing></step>)|<step\b[^>]*>|^[^\S\n]*(?:[#*]+\s*)?Step\s+[0-9]+\b|^[^\S\n]*\[[A-Z][A-Z _-]*\]",
    re.IGNORECASE | re.MULTILINE,
)


def split(text: str, splitter: Splitter, *, separator: str = "") -> tuple[str, ...]:
    """The steps of a text.

    - `blank_line`: a step ends with one or more blank lines (Qwen's convention, 2501.07301).
    - `newline`: with the end of a line.
    - `sentence`: with a full stop, question or exclamation mark that blanks follow, or with the end of a line; not
      inside a number, nor after common abbreviations.
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
        "sentence": lambda: _sentences(text, 0, len(text)),
        "code_block": lambda: _code(text),
        "tags": lambda: [match.end() if match["closing"] else match.start() for match in _MARK.finditer(text)],
    }[splitter]()
    return _pieces(text, ends)


def _sentences(text: str, start: int, stop: int) -> list[int]:
    """Ends of the sentences and lines between two places."""
    found = []
    for match in _STOP.finditer(text, start, stop):
        line = text[text.rfind("\n", start, match.end()) + 1 : match.end()]
        if not _ABBREVIATION.search(line):
            found.append(match.end())
    return sorted({*found, *(m.end() for m in _NEWLINE.finditer(text, start, stop)), stop})


def _code(text: str) -> list[int]:
    ends, at = [], 0
    for block in _CODE.finditer(text):
        ends += [*_sentences(text, at, block.start()), block.end()]
        at = block.end()
    return ends + _sentences(text, at, len(text))


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
