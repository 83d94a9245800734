"""What a vision-language model answered: a value with the words it stands on, or a `Failure`. Never a default.

Rules, in order. Reasoning in `<think>` is not the answer; a reply that is cut off inside `<think>` or `<answer>` has
none. The answer is what stands in `<answer>`, else the reply itself. It must hold exactly one number (the same number
twice is one); `[[x]]` decides where it stands. `a/b` and `a out of b` are the share a/b. Words are no numbers:
"success" and "unsuccessful" say nothing here. Scales: `percentage` divides by 100; `unit` takes the number as it is;
`auto` divides what has a % or is above 1, and reads exactly 1 on the scale that the prompt asked for. What is then
outside [0, 1] is a failure, not clamped. This module does not know prompts or models.

    parse_verdict("<think>...</think><answer>85</answer>", scale="percentage").value   # 0.85
    parse_verdict("<think>step 3 of 5", scale="percentage")                            # Failure('truncated')
    parse_completed("Yes, it is.").value                                               # 1.0
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from guerdon.models.judgement import Scale
from guerdon.types import Failure

Status = Literal["ok", "fallback"]
Trend = Literal["positive", "negative", "unclear"]

_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_SHARE = re.compile(rf"({_NUMBER})\s*(?:/|out of)\s*({_NUMBER})", re.ASCII | re.IGNORECASE)
_VALUE = re.compile(rf"({_NUMBER})(\s*(?:%|percent\b))?", re.ASCII | re.IGNORECASE)
_DIGIT = re.compile(r"[0-9]")
_DOUBLE = re.compile(r"\[\[([^\[\]]*)\]\]")
_TAG = re.compile(r"<(/?)(think|answer)>", re.IGNORECASE)
_WORD = re.compile(r"[a-z0-9.%/']+")
_FENCE = re.compile(r"\A```(?:json)?[^\S\n]*\n(.*)\n?```\Z", re.DOTALL)
_NEGATION = re.compile(r"\b(?:not|no|never|neither|nor|cannot|without)\b|n't\b", re.IGNORECASE)
_ASCII = {0x2212: "-", 0xFE63: "-", 0xFE6A: "%", 0x2248: "~"} | {c: chr(c - 0xFEE0) for c in range(0xFF01, 0xFF5F)}
_WRAPPING = " \t\r\n*_`\"'~$():;!.,"
_YES, _NO = frozenset({"yes", "true", "1"}), frozenset({"no", "false", "0"})
_TRENDS: tuple[Trend, ...] = ("positive", "negative", "unclear")


@dataclass(frozen=True)
class Verdict:
    """A value that was read.

    Attributes:
        value: in [0, 1].
        status: `ok` where the answer is the value and nothing else; `fallback` where it was picked out of a sentence.
        source: the words that it was read from.
    """

    value: float
    status: Status
    source: str


def parse_verdict(text: str, *, scale: Scale = "auto", prompt_scale: Scale = "percentage") -> Verdict | Failure:
    """The one number that a model answered, as a share in [0, 1].

    Args:
        text: the whole reply.
        scale: how numbers are read, see above.
        prompt_scale: what the prompt asked for; decides what `auto` makes of exactly 1.

    Returns:
        The verdict, or why there is none: `empty`, `truncated`, `several_answers`, `no_number`, `several_numbers`,
        `unclear_number`, `out_of_range`.
    """
    answer = final_answer(text)
    if isinstance(answer, Failure):
        return answer
    doubles = _DOUBLE.findall(answer)
    spans = doubles or [answer]
    found: dict[float, str] = {}
    exact = True
    for span in spans:
        read = _numbers(span, scale, prompt_scale)
        if isinstance(read, Failure):
            return read
        values, alone = read
        found |= values
        exact &= alone
    if len(found) > 1:
        return Failure("several_numbers", f"{len(found)} different numbers in {_shown(answer)}")
    (value, source), *_ = found.items()
    if not 0.0 <= value <= 1.0:
        return Failure("out_of_range", f"{_shown(source)} on the scale {scale} is {value:g}")
    return Verdict(value + 0.0, "ok" if exact else "fallback", source)


def parse_completed(text: str) -> Verdict | Failure:
    """Whether a model answered yes (1.0) or no (0.0).

    Yes, true and 1 are yes; no, false and 0 are no. In a sentence the first word decides, if the opposite does not
    stand in it too; a digit counts only where it is the whole answer.

    Returns:
        The verdict, or why there is none: `empty`, `truncated`, `several_answers`, `no_verdict`.
    """
    answer = final_answer(text)
    if isinstance(answer, Failure):
        return answer
    plain = answer.strip(_WRAPPING).casefold()
    if plain in _YES | _NO:
        return Verdict(float(plain in _YES), "ok", plain)
    words = [word.strip(".'") for word in _WORD.findall(plain)]
    said = {word for word in words if word in (_YES | _NO) - {"0", "1"}}
    if not words or words[0] not in said:
        return Failure("no_verdict", f"neither yes nor no: {_shown(answer)}")
    if said & _YES and (said & _NO or _NEGATION.search(plain)):
        return Failure("several_answers", f"yes and no: {_shown(answer)}")
    return Verdict(float(words[0] in _YES), "fallback", words[0])


def parse_trend(text: str) -> tuple[Trend, Status] | Failure:
    """Which trend a model answered: JSON with `trend`, or the one keyword in its answer.

    Returns:
        The trend and how it was read, or why there is none: `empty`, `truncated`, `several_answers`, `no_verdict`.
    """
    found = parse_choice(text, "trend", {trend: trend for trend in _TRENDS})
    if isinstance(found, Failure):
        return found
    word, status = found
    return next(trend for trend in _TRENDS if trend == word), status


def parse_choice(text: str, key: str, words: dict[str, str]) -> tuple[str, Status] | Failure:
    """Which of several words a model answered.

    Args:
        text: the whole reply.
        key: of the word in a JSON object.
        words: what may be said (lower case), and what it means.

    Returns:
        The meaning, and `ok` for JSON or the word alone, `fallback` for the only such word in a sentence without a
        negation; or a `Failure` as of `parse_trend`.
    """
    answer = final_answer(text)
    if isinstance(answer, Failure):
        return answer
    fenced = _FENCE.match(answer)
    body = (fenced[1] if fenced else answer).strip()
    if body.startswith("{"):
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            return Failure("no_verdict", f"broken JSON: {_shown(answer)}")
        word = said.get(key) if isinstance(said, dict) else None
        if not isinstance(word, str) or word.strip().casefold() not in words:
            return Failure("no_verdict", f"no {key} out of {', '.join(words)}: {_shown(answer)}")
        return words[word.strip().casefold()], "ok"
    plain = body.strip(_WRAPPING).casefold()
    if plain in words:
        return words[plain], "ok"
    meant = {words[word] for word in re.findall(r"[a-z]+", plain) if word in words}
    if len(meant) > 1:
        return Failure("several_answers", f"{' and '.join(sorted(meant))}: {_shown(answer)}")
    if not meant or _NEGATION.search(plain):
        return Failure("no_verdict", f"none of {', '.join(words)} is affirmed: {_shown(answer)}")
    return meant.pop(), "fallback"


def final_answer(text: str) -> str | Failure:
    """What a reply says after its reasoning: inside `<answer>`, else all of it.

    Returns:
        The words, never blank; or `empty`, `truncated` (a tag was opened and not closed) or `several_answers`.
    """
    plain = text.translate(_ASCII)
    outside: list[str] = []
    answers: list[str] = []
    opened, start = "", 0
    for tag in _TAG.finditer(plain):
        closing, name = bool(tag[1]), tag[2].lower()
        if opened == "think" and name == "answer":
            continue  # quoted in the reasoning
        if not closing and not opened:
            outside.append(plain[start : tag.start()])
            opened, start = name, tag.end()
        elif closing and name == opened:
            if name == "answer":
                answers.append(plain[start : tag.start()].strip())
            opened, start = "", tag.end()
        elif closing and name == "think":  # the prompt opened it: what came before was reasoning
            outside, answers, start = [], [], tag.end()
        else:
            return Failure("unclear_answer", f"tags out of order at {_shown(plain[tag.start() :])}")
    if opened:
        return Failure("truncated", f"<{opened}> is not closed")
    outside.append(plain[start:])
    if len(set(answers)) > 1:
        return Failure("several_answers", " and ".join(_shown(a) for a in answers[:2]))
    answer = answers[0] if answers else " ".join(outside).strip()
    return answer if answer.strip() else Failure("empty", "there is no answer")


def _numbers(span: str, scale: Scale, prompt_scale: Scale) -> tuple[dict[float, str], bool] | Failure:
    """Values of all numbers in a piece of the answer, and whether a number is all it holds."""
    if any(not c.isascii() and unicodedata.category(c) in ("Nd", "No", "Nl") for c in span):
        return Failure("unclear_number", f"numerals of another script: {_shown(span)}")
    found: dict[float, str] = {}
    rest, at = [], 0
    while (digit := _DIGIT.search(span, at)) is not None:
        start = digit.start()
        while start > at and not span[start - 1].isspace() and span[start - 1] not in ":=":
            start -= 1
        begin, end, value = _number_at(span, start, scale, prompt_scale)
        if value is None:
            return Failure("unclear_number", f"{_shown(span[start:])} is no plain number")
        rest.append(span[at:begin])
        found[value] = span[begin:end]
        at = end
    rest.append(span[at:])
    if not found:
        return Failure("no_number", _shown(span))
    return found, not "".join(rest).strip(_WRAPPING)


def _number_at(span: str, start: int, scale: Scale, prompt_scale: Scale) -> tuple[int, int, float | None]:
    """The number of the word at `start`: where it begins and ends, and its value; None where it is not plain."""
    begin = start
    while span[begin] in "*_`\"'~$()[]:;,{}=" or (span[begin] in ".!" and not span[begin + 1 : begin + 2].isdecimal()):
        begin += 1
    share = _SHARE.match(span, begin)
    match = share or _VALUE.match(span, begin)
    if match is None:
        return begin, begin, None
    end = match.end()
    follows = span[end : end + 1]
    if follows and not follows.isspace() and follows not in "*_`\"'~$()[]:;,.!?{}":
        return begin, end, None
    if follows in (".", ",") and span[end + 1 : end + 2].isdecimal():
        return begin, end, None
    first = float(match[1].replace(",", ""))
    if share is not None:
        whole = float(match[2].replace(",", ""))
        return begin, end, first / whole if whole > 0 and 0 <= first <= whole < math.inf else math.inf
    percent = bool(match[2])
    if scale == "percentage" or percent:
        return begin, end, first / 100.0
    if scale == "auto" and (first > 1.0 or (first == 1.0 and prompt_scale != "unit")):
        return begin, end, first / 100.0
    return begin, end, first


def _shown(text: str) -> str:
    return repr(text[:80])
