r"""What a vision-language model answered: a value with the words it was read from, or a `Failure`. Never a default.

A grammar says what is accepted; everything else is a `Failure`:

    reply      = [reasoning] segment { segment }     reasoning: all up to the last </think>, </thinking>, </reasoning>
    segment    = strong | weak | bare | statement | reason | aside | any other line or sentence
    strong     = <answer>reply</answer> | \boxed{reply} | [[reply]] | "final answer:" reply
    weak       = label ":" reply | a JSON object with one key that names the answer     label: answer, score, trend, ...
    bare       = value                               whole: `85`, never the 85 of `85 steps`
    statement  = a sentence of a closed set that gives the value and says nothing else: "the task is 85% complete"
    reason     = a sentence about the scene that agrees with the value
    aside      = "reason:" or "confidence:" and what follows

The strongest kind in a reply decides. All segments of that kind must give the same value. After the last strong or weak
one, and beside bare ones and statements, only reasons and asides may stand, and what gives the same value again.
Typography (full-width digits, curly quotes, dashes, thin spaces) and markup (bold, fences, LaTeX) are removed first,
in `verdict_text`; `verdict_grammar` has the segments, `verdict_forms` the values and sentences. This module does not
know prompts or models.

    parse_verdict("<think>...</think><answer>85</answer>", scale="percentage").value   # 0.85
    parse_verdict("<think>step 3 of 5", scale="percentage")                            # Failure('truncated')
    parse_verdict("It is not 80%.")                                                    # Failure('no_number')
    parse_completed("Yes, it is.").value                                               # 1.0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from guerdon.models.explained_score import ParseStatus, Scale
from guerdon.models.verdict_forms import Choices, Completed, Numbers
from guerdon.models.verdict_grammar import Form, Segment, segments_of
from guerdon.models.verdict_text import Text, final_text
from guerdon.types import Failure

Trend = Literal["positive", "negative", "unclear"]
DEEPEST = 4  # replies inside marks and behind labels of a reply
_TRENDS: tuple[Trend, ...] = ("positive", "negative", "unclear")


@dataclass(frozen=True)
class Verdict:
    """A value that was read.

    Attributes:
        value: in [0, 1].
        status: `ok` where the answer has the form that was asked for; `fallback` where it was read from a sentence, or
            stands unmarked beside a reason.
        source: the words that it was read from.
    """

    value: float
    status: ParseStatus
    source: str


def parse_verdict(text: str, *, scale: Scale = "auto", prompt_scale: Scale = "percentage") -> Verdict | Failure:
    """The one number that a model answered, as a share in [0, 1].

    Args:
        text: the whole reply.
        scale: `percentage` divides by 100; `unit` takes the number as it is; `auto` divides what has a % or is above
            1, and reads exactly 1 on the scale that the prompt asked for. A share (85/100) is one on every scale.
        prompt_scale: what the prompt asked for; decides what `auto` makes of exactly 1.

    Returns:
        The verdict, or why there is none: `empty`, `truncated`, `unclear_answer`, `several_answers`, `no_number`,
        `out_of_range` (never clamped).
    """
    found = _read(text, Numbers(scale, prompt_scale))
    return found if isinstance(found, Failure) else Verdict(float(found.value), found.status, found.source)


def parse_completed(text: str) -> Verdict | Failure:
    """Whether a model answered yes (1.0) or no (0.0).

    Returns:
        The verdict, or why there is none: as `parse_verdict`, with `no_verdict` for a reply that says neither.
    """
    found = _read(text, Completed())
    return found if isinstance(found, Failure) else Verdict(float(found.value), found.status, found.source)


def parse_trend(text: str) -> tuple[Trend, ParseStatus] | Failure:
    """Which trend a model answered: JSON with `trend`, or the word as the answer.

    Returns:
        The trend and how it was read, or why there is none: as `parse_completed`.
    """
    found = parse_choice(text, "trend", {trend: trend for trend in _TRENDS})
    return found if isinstance(found, Failure) else (cast(Trend, found[0]), found[1])


def parse_choice(text: str, key: str, words: dict[str, str]) -> tuple[str, ParseStatus] | Failure:
    """Which of several words a model answered.

    Args:
        text: the whole reply.
        key: of the word in a JSON object, and its label in a line.
        words: what may be said (lower case), and what it means.

    Returns:
        The meaning and how it was read, or a `Failure` as of `parse_completed`.
    """
    found = _read(text, Choices(key, words))
    return found if isinstance(found, Failure) else (found.value, found.status)


@dataclass(frozen=True)
class _Found:
    value: Any
    status: ParseStatus
    source: str


def _read(text: str, form: Form) -> _Found | Failure:
    answer = final_text(text)
    return answer if isinstance(answer, Failure) else _resolve(answer, form, 0)


def _resolve(text: Text, form: Form, depth: int) -> _Found | Failure:
    """The value of a reply without its reasoning."""
    if depth > DEEPEST:
        return Failure("unclear_answer", "labels and marks inside each other")
    segments = segments_of(text, form)
    if isinstance(segments, Failure):
        return segments
    deciding = next((k for k in ("strong", "weak", "bare", "statement") if any(s.kind == k for s in segments)), None)
    if deciding is None:
        return Failure(form.missing, f"no answer in a form that is read: {_shown(text.words)}")
    values = [_value(s, form, depth) for s in segments]
    at = [i for i, s in enumerate(segments) if s.kind == deciding]
    for i in at:
        found = values[i]
        if isinstance(found, Failure):
            return found
        if found is None or cast(_Found, values[at[0]]).value != found.value:
            return Failure("several_answers", f"different answers: {_shown(text.words)}")
    chosen = cast(_Found, values[at[0]])
    marked = deciding in ("strong", "weak")
    status: ParseStatus = "fallback" if deciding == "statement" else chosen.status
    if marked and at[0] > 0 and not segments[at[0] - 1].leads_to(segments[at[0]]):
        return Failure(form.missing, f"{_shown(segments[at[0] - 1].words)} leads to the answer")
    for i, segment in enumerate(segments):
        if i in at or (marked and i < at[-1]):
            continue
        found = values[i]
        if found is not None:
            if isinstance(found, Failure) or found.value != chosen.value:
                return Failure("several_answers", f"different answers: {_shown(text.words)}")
        elif not form.agrees(segment, chosen.value):
            return Failure(form.missing, f"{_shown(segment.words)} stands beside the answer {_shown(chosen.source)}")
        elif not marked:
            status = "fallback"
    return _Found(chosen.value, status, chosen.source)


def _value(segment: Segment, form: Form, depth: int) -> _Found | Failure | None:
    """What a segment gives by itself; None where it gives no value."""
    if segment.inner is not None:
        return _resolve(segment.inner, form, depth + 1)
    if segment.value is None or isinstance(segment.value, Failure):
        return segment.value
    return _Found(segment.value, "ok" if segment.kind != "statement" else "fallback", segment.words)


def _shown(text: str) -> str:
    return repr(text[:80])
