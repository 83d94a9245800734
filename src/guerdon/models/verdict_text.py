"""The words of a reply without its reasoning, in plain typography, with its marked answers and JSON objects taken out.

Full-width digits, curly quotes, dashes and thin spaces become their plain forms, bold, fences and LaTeX go. What may
mean something else stays as it is: a power is no digit, a struck-out number is no number. This module does not know
what was asked.

    final_text("<think>1, 2, 3</think>**Score:** ８５％").words       # "score: 85%"
    final_text("So it is <answer>85</answer>").marks                 # ["85"]
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from guerdon.types import Failure

LONGEST = 20_000  # characters of an answer without its reasoning
OBJECTS = 50  # braces that are tried as the start of a JSON object

_SIGNS = str.maketrans(
    dict.fromkeys("‘’‚‛′ʼ`´", "'")
    | dict.fromkeys("‐‑‒–—―−﹣－", "-")
    | dict.fromkeys("≈∼～≃≅", "~")
    | {"⁄": "/", "∕": "/", "﹪": "%", "…": "...", "【": "[", "】": "]", "\r": "\n"}
    | {"。": ". ", "，": ", ", "、": ", ", "；": "; ", "：": ": ", "！": "! ", "？": "? "}
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad\ufe0e\ufe0f")
    | dict.fromkeys("\ue000\ue001", "\ufffd")
)
_QUOTES = "“”„‟«»「」『』″＂"
_THOUGHT = re.compile(r"<(/?)(?:think|thinking|thoughts?|reasoning)>")
_TAG = re.compile(r"<(/?)answer>")
_ENDS = re.compile(r"<\|(?:im_end|endoftext|eot_id|end)\|>|</s>|<eos>|<end_of_turn>")
_MARK = re.compile(r"\\boxed\{([^{}]*)\}|\[\[([^\[\]\n]*)\]\]")
_MARKUP = tuple(
    (re.compile(pattern, re.MULTILINE), to)
    for pattern, to in (
        (r"^'''(?:json|text|txt|plaintext|markdown|md)?$", ""),
        (r"'''(?:json )?([^'\n]*)'''", r"\1"),
        (r"^#{1,6} ", ""),
        (r"^[1-9][.)] (?=\S)", ""),
        (r"^(?:[*•] |[->] (?=[^\W\d_]|[*\"\ue000]))", ""),
        (r"^(?:-{3,}|\*{3,}|_{3,})$", ""),
        (r"\\(?:text|textbf|mathrm|mathbf|mathit|textit)\{([^{}]*)\}", r"\1"),
        (r"\\[,;! ]", ""),
        (r"\\(?=%)", ""),
        (r"\\d?frac\{(\d+)\}\{(\d+)\}", r"\1/\2"),
    )
)
_EMPHASIS = tuple(
    (re.compile(pattern), to)
    for pattern, to in (
        (r"\\[\[\]()]", ""),
        (r"\$\$([^$]*)\$\$", r"\1"),
        (r"\$([^$\n]*)\$", r"\1"),
        (r"(?<![\w*])\*\*\*?(?=\S)([^*\n]+)(?<=\S)\*\*\*?(?![\w*])", r"\1"),
        (r"(?<![\w*])\*(?=\S)([^*\n]+)(?<=\S)\*(?![\w*])", r"\1"),
        (r"(?<!\w)__?(?=[^\s_])([^_\n]+)(?<=[^\s_])__?(?!\w)", r"\1"),
        (r"(?<![\w'])'(?=\S)([^'\n]+)(?<=\S)'(?![\w'])", r"\1"),
    )
)


@dataclass(frozen=True)
class Text:
    """Words in plain typography, with marks taken out.

    Attributes:
        words: lower case; a mark is its number between two private characters.
        marks: what stands in each: the words of an answer, or a JSON object.
    """

    words: str
    marks: list[str | dict[str, Any]] = field(default_factory=list)


def final_text(text: str) -> Text | Failure:
    """What a reply says after its reasoning.

    Returns:
        The words, never blank; or `empty`, `truncated` (reasoning or a tag is not closed), `unclear_answer` (tags out
        of order, a JSON object that is broken) or `too_long`.
    """
    plain = _plain(text)
    thoughts = list(_THOUGHT.finditer(plain))
    start = max((tag.end() for tag in thoughts if tag[1]), default=0)
    if any(tag.start() >= start for tag in thoughts):
        return Failure("truncated", "the reasoning does not end")
    plain = plain[start:]
    if len(plain) > LONGEST:
        return Failure("too_long", f"{len(plain)} characters after the reasoning")
    lines = (" ".join(line.split()) for line in _ENDS.sub("\n", plain).split("\n"))
    plain = "\n".join(line for line in lines if line)
    marks: list[str | dict[str, Any]] = []
    plain = _take_objects(plain, marks)
    for pattern, to in _MARKUP:
        plain = pattern.sub(to, plain)
    plain = _MARK.sub(lambda found: _mark(marks, (found[1] if found[2] is None else found[2]).strip()), plain)
    for pattern, to in _EMPHASIS:
        plain = pattern.sub(to, plain)
    opened, words = False, ""
    for piece in re.split(r"(</?answer>)", plain):
        if piece in ("<answer>", "</answer>"):
            if opened != (piece == "</answer>"):
                return Failure("unclear_answer", f"tags out of order: {plain[:80]!r}")
            opened = not opened
        elif opened:
            words += _mark(marks, piece.strip())
        else:
            words += piece
    if opened:
        return Failure("truncated", "<answer> is not closed")
    words = words.replace("\ue001\ue000", "\ue001\n\ue000").strip()
    if not words or marks == [""]:
        return Failure("empty", "there is no answer")
    if "{" in words or "}" in words:
        return Failure("unclear_answer", f"a brace outside of a JSON object: {words[:80]!r}")
    return Text(words, marks)


def _plain(text: str) -> str:
    """Lower case, and one spelling for what differs by typography only. Powers and halves are no digits."""
    quote = "'" if '"' in text else '"'
    text = text.translate(_SIGNS | dict.fromkeys(map(ord, _QUOTES), quote))
    if text.isascii():
        return text.lower()
    same = (c if unicodedata.category(c) in ("No", "Nl") else unicodedata.normalize("NFKC", c) for c in text)
    return re.sub(r"百分之 ?(\d+(?:\.\d+)?)", r"\1%", "".join(same).translate(_SIGNS).casefold())


def _mark(marks: list[str | dict[str, Any]], content: str | dict[str, Any]) -> str:
    marks.append(content)
    return f"\ue000{len(marks) - 1}\ue001"


def _take_objects(text: str, marks: list[str | dict[str, Any]]) -> str:
    """Put JSON objects into marks; broken ones, and those with a duplicate key, stay where they are."""
    decoder = json.JSONDecoder(object_pairs_hook=_pairs)
    out, at = [], 0
    for found in list(re.finditer(r"\{", text))[:OBJECTS]:
        if found.start() < at:
            continue
        try:
            value, end = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        out += [text[at : found.start()], _mark(marks, value)]
        at = end
    return "".join([*out, text[at:]])


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)
