r"""Cut a written solution into steps, by name.

Every splitter partitions the text: joined, the steps are the text again. Blanks belong to the step that they follow,
and a piece of nothing but blanks is not a step of its own. Which splitter was used is recorded with the solution.

Sentences are those of worked solutions: prose of several languages with mathematics, code and lists in it. A sentence
ends with its stop and what closes after it (quotes, brackets, bold, emoji), or with its line. Code and mathematics are
not cut: no line and no stop inside of them ends a sentence, but a full stop at their end does (`$x = 3.$ Then`). The
numbers of lists, factorials, abbreviations, initials and dots in a sum do not end a sentence.

    split("Let x=3.\n\nThen x+1=4.", "blank_line")             # ("Let x=3.\n\n", "Then x+1=4.")
    split("3+5=8;8*2=6;", "separator", separator=";")           # ("3+5=8;", "8*2=6;")
    ends, code = sentence_ends("1. Add 5! and 2. Then stop.")     # [20, 31], []
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from guerdon.errors import ConfigError
from guerdon.policies.batches.tokens import split_steps
from guerdon.settings.label import Splitter

_OPENS = re.compile(
    r"(?P<code>`{3,}|~{3,}|<llm-code(?:-output)?>)|(?<!`)`{1,2}(?!`)|(?<!\\)\$\$?|\\[\[(]"
    r"|\\begin\{(?P<environment>(?:align(?:ed|at)?|flalign|gather(?:ed)?|multline|equation|eqnarray|split|[dr]?cases"
    r"|array|(?:small|[pbvBV])?matrix|subequations|(?:display)?math|tabular|tikzpicture|verbatim|lstlisting)\*?)\}"
)
_FORMULA = re.compile(r"\$(?=\S)(?:[^$\\\n]|\\.|\n(?!\s*\n))+(?<=\S)\$(?!\d)", re.DOTALL)  # not an amount of money
_INLINE_CODE = re.compile(r"(`{1,2})[^`\n]+\1(?!`)")
_LAST_STOP = re.compile(r"(?<![.…])[.?。](?=[\s}]*(?:\$\$?|\\[\])]|`{1,2}|\\end\{[^}]*\})\Z)")
_LINE = re.compile(r"\n\s*")
_EAST = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # letters of Chinese and Japanese
_STOP = re.compile(
    r"(?P<stop>[.!?…؟]+)(?P<closed>(?:[\"'”’“»«›)\]}*_]|</\w{1,9}>)*(?:\[\d+\])?)"
    r"(?:[^\S\n]?[\U0001f000-\U0001faff\u2600-\u27bf\u2b50\u200d\ufe0f]+)*"  # emoji
    rf"(?=\s|\Z|[{_EAST}])"
    r"|(?:[。！？｡।॥۔።]|．(?!\d))+[」』”’»）)》】〉\"'*_]*(?![」』”’»）)》】〉])(?!(?<=[」』）])(?:[とではがをにのもだ]|って))"
)
_MASK = "\ue000"
_NEAR = 200  # characters before and after a stop that are examined
_LISTED = re.compile(  # the number of a list, or the label of a part, at the beginning of a line
    r"[\s>#*_•◦▪–—+(（\\-]*(?:(?:step|case|part|claim|lemma|theorem|proposition|corollary|definition|example|exercise"
    r"|problem|question|rule|fact|property|section|paso|schritt|étape|caso|fall|cas|шаг|случай)\s+)?"
    r"(?:(?:\d{1,3}\.)*(?P<number>\d{1,3})|[^\W\d_]|[ivxlIVXL]{1,5}|proof|solution|remark)[\])）\\]?[*_]*",
    re.IGNORECASE,
)
_LISTED_INSIDE = re.compile(r"(?:\A|(?P<colon>:\s|：))\s*[*_(]*(?P<number>\d{1,2})[*_)]*\Z")
_SECOND = re.compile(r"[.!?;,]\s+[*_(]*2[*_)]*\.\s")
_ROW = re.compile(r"^[^\S\n]*\|[^\n]*\|[^\S\n]*$", re.MULTILINE)  # of a table
_WORD = re.compile(r"(?:[^\W_]|\.(?=[^\W_]))+\Z")
_ACRONYM = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")
_NEVER = re.compile(
    r"e\.g|i\.e|cf|viz|vs|approx|ca|w\.l\.o\.g|s\.t|w\.r\.t|i\.i\.d|z\.b|d\.h|u\.a|bzw|dr|mrs?|ms|sra?|prof|st"
)
_REFERS = re.compile(  # to what follows, a number or a letter
    "figs?|eqs?|thms?|lem|prop|cor|def|secs?|ch|chap|nos?|nr|pp?|ex|refs?|tab|vol|alg|app|rem|jan|feb|mar|apr|jun|jul"
    "|aug|sept?|oct|nov|dec"
)
_SHORT = re.compile("etc|usw|al|jr|inc|ltd|co|resp|est|dept|ft|lbs?|oz|min|sec|hrs?|yd|mi")
_BEGINS = re.compile(  # words that begin a sentence more often than they follow a name
    "an?|after|also|and|as|assume|at|because|both|but|by|compute|consider|each|finally|find|first|for|from|given|hence"
    "|he|her|here|how|however|i|if|in|its?|let|next|no|note?|now|of|on|one|our|second|she|since|so|step|substitute"
    "|suppose|that|the|then|their|there|therefore|these|they|this|those|thus|to|using|we|what|when|where|which|while"
    "|why|with|yes|you"
)
_NAMED = re.compile(r"(?:\A|(?<![^\W_])(?:[^\W\d_]|Prof|Dr|Mrs?|Ms)\.|(?<![^\W_])[A-ZÀ-Þ]\w+)\s*\Z")


def sentence_ends(text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Where the sentences and lines of a text end.

    Args:
        text: of a solution.

    Returns:
        The ends, in order, each behind the stop or the line break and the blanks that follow it, the last at the end
        of the text; and where blocks of code are in it.
    """
    parts = list(_whole_parts(text))
    masked = list(text)
    ends = set[int]()
    for start, end, kind in parts:
        stop = None if kind == "code" else _LAST_STOP.search(text, start, end)
        masked[start:end] = _MASK * (end - start - 1) + (stop[0] if stop else _MASK)
        if kind == "display" and (begun := re.compile(r"[^\S\n]+(?=[A-ZА-ЯÀ-Þ])").match(text, end)):
            ends.add(begun.end())
    plain = _ROW.sub(lambda row: _MASK * len(row[0]), "".join(masked))
    ends |= {line.end() for line in _LINE.finditer(plain)}
    return [*_with_stops(plain, ends), len(text)], [(start, end) for start, end, kind in parts if kind == "code"]


def _whole_parts(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and kind (`code`, `display`, `inline`) of the code and the mathematics in a text."""
    at, missing = 0, set[str]()  # marks without an end in the rest of the text
    while begun := _OPENS.search(text, at):
        start, mark, end = begun.start(), begun[0], -1
        kind = "inline"
        if begun["code"]:
            kind = "code"
        elif mark in ("$$", "\\[") or begun["environment"]:
            kind = "display"
        if mark in ("$", "`", "``"):
            found = (_FORMULA if mark == "$" else _INLINE_CODE).match(text, start)
            end = found.end() if found else -1
        elif mark not in missing:
            end = _end_of(text, begun.end(), mark, begun["environment"])
            if end < 0 and kind == "code":
                end = len(text)
            elif end < 0:
                missing.add(mark)
        if end >= 0:
            yield start, end, kind
        at = max(end, begun.end())


def _end_of(text: str, start: int, mark: str, environment: str | None) -> int:
    """Where the end of a mark that was opened before `start` ends; -1: nowhere."""
    if environment:
        depth = 1
        for found in re.compile(rf"\\(begin|end)\{{{re.escape(environment)}\}}").finditer(text, start):
            depth += 1 if found[1] == "begin" else -1
            if not depth:
                return found.end()
        return -1
    closing = {"\\[": "\\]", "\\(": "\\)"}.get(mark, mark.replace("<", "</"))
    place = text.find(closing, start)
    return -1 if place < 0 else place + len(closing)


def _with_stops(plain: str, lines: set[int]) -> list[int]:
    """The ends of lines, and those of the sentences in them."""
    ends, listed = sorted(lines), 0
    found, line, begun = list[int](), 0, 0
    for stop in _STOP.finditer(plain):
        while line < len(ends) and ends[line] <= stop.start():
            begun = ends[line]
            line += 1
        if stop["stop"]:
            before = plain[max(begun, stop.start() - _NEAR) : stop.start()]
            first = begun == 0 or (line > 0 and begun == ends[line - 1])
            after = plain[stop.end() : stop.end() + _NEAR]
            if stop["stop"] == "." and (number := _number(before, first, listed, after)) is not None:
                listed = number
                continue
            if not _is_end(before, stop["stop"], stop["closed"], after):
                continue
        begun = stop.end()
        found.append(begun)
    return sorted(lines.union(found))


def _number(before: str, first: bool, listed: int, after: str) -> int | None:
    """The number of a list in front of a full stop (0 for a letter or a label); None where there is none.

    Args:
        before: the sentence up to the stop.
        first: whether the sentence begins a line.
        listed: the last number of a list; inside a line only the next one is one, or the first of several.
        after: what follows the stop.
    """
    if first and len(before) < 60 and (found := _LISTED.fullmatch(before)):
        return int(found["number"] or 0)
    inside = _LISTED_INSIDE.search(before, max(len(before) - 20, 0))
    if inside is None:
        return None
    number = int(inside["number"])
    begins = number == 1 and inside["colon"] and _SECOND.search(after)
    return number if begins or number == listed + 1 > 1 else None


def _is_end(before: str, stop: str, closed: str, after: str) -> bool:
    """Whether a sentence ends with this stop."""
    following = after.lstrip().lstrip("\"'“‘«([{*_¿¡")
    if not following:
        return True
    begins = _can_begin(following[0])
    if "…" in stop or stop.startswith(".."):
        return begins and after[0].isspace() and not _is_listing(before, following)
    if before[-1:].isspace():
        return begins
    if not stop.strip("!") and not closed.strip(")]}") and re.search(r"[\d)\]}\ue000]\Z|(?<![^\W_])[a-zA-Z]\Z", before):
        return begins and after[:1].isspace()  # else a factorial
    if following[0].islower() and (closed.strip("*_") or before.endswith(_MASK)):
        return False
    return stop != "." or _word_ends(before, following)


def _is_listing(before: str, following: str) -> bool:
    """Whether dots stand for what a list leaves out, as in `1, 2, ..., N`."""
    return before.rstrip().endswith(",") and not _begins_usually(following)


def _can_begin(letter: str) -> bool:
    """Whether a sentence can begin with a character: a letter that is no small one."""
    return letter.isalpha() and not letter.islower()


def _begins_usually(text: str) -> bool:
    """Whether a text begins with a word with which sentences often begin."""
    return _BEGINS.fullmatch(_first_word(text)) is not None


def _word_ends(before: str, following: str) -> bool:
    """Whether a full stop behind a word ends a sentence, and not only the word."""
    found = _WORD.search(before, max(len(before) - 40, 0))
    if found is None:
        return True
    word, letter = found[0].casefold(), following[0]
    if _NEVER.fullmatch(word):
        return False
    if _REFERS.fullmatch(word):
        return not re.match(rf"[\d\\${_MASK}]|[A-Z](?![^\W\d_])", following) and not letter.islower()
    if _SHORT.fullmatch(word) or re.search(r"\d\s*in\Z", before):
        return not (letter.islower() or letter.isdigit())
    if _ACRONYM.fullmatch(found[0]):
        return _can_begin(letter) and (found[0].islower() or _begins_usually(following))
    if len(word) == 1 and word.isalpha() and not re.match(f"[{_EAST}]", word):
        return not letter.islower() and not _is_initial(found[0], before[: found.start()], following)
    return True


def _is_initial(letter: str, before: str, following: str) -> bool:
    """Whether a letter in front of a full stop is that of a name."""
    capitals = letter.isupper() and following[0].isupper()
    return capitals and not _begins_usually(following) and _NAMED.search(before) is not None


def _first_word(text: str) -> str:
    return re.match(r"[^\W\d_]*", text)[0].casefold()  # type: ignore[index]  # it matches nothing, too


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
    - `sentence`: with a sentence or a line (`sentence_ends`).
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
