"""The segments of an answer, and of which kind each is: see `verdict_parser` for the kinds.

A `Form` knows the values, sentences, JSON keys and reasons of one kind of question; they are in `verdict_forms`. This
module does not decide between segments.

    text = final_text("<think>1, 2, 3</think>**Score:** ８５％")       # "score: 85%"
    segments_of(text, Numbers("percentage", "percentage"))[0].kind    # "weak"
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

from guerdon.models.verdict_text import Text
from guerdon.types import Failure

Labels = tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]
Kind = Literal["strong", "weak", "bare", "statement", "reason", "aside", "other"]
SENTENCE = 500  # characters of a sentence that is read


@dataclass(frozen=True)
class Segment:
    """A line, sentence or clause of an answer.

    Attributes:
        kind: see `verdict_parser`.
        words: it.
        value: what it says by itself; a `Failure` where it should say a value and does not; None for no value.
        inner: the reply in its mark or behind its label.
    """

    kind: Kind
    words: str
    value: Any = None
    inner: Text | None = None

    def leads_to(self, answer: Segment) -> bool:
        """Whether a marked answer may follow: not where this speaks of an example, or is not finished."""
        if _EXAMPLE.search(self.words):
            return False
        if not self.words.endswith((":", ",")):
            return True
        return answer.words[0] != "\ue000" and not _HYPOTHETIC.search(self.words)


class Form(Protocol):
    """One kind of question: how its values, sentences and objects are read, and which reasons agree with a value."""

    missing: str
    labels: Labels

    def value(self, words: str) -> Any:
        """The value that words are, a `Failure` for one that is out of range; None where they are none."""
        ...

    def statement(self, words: str) -> Any:
        """The value that a sentence gives; None where it gives none."""
        ...

    def member(self, given: dict[str, Any]) -> Any:
        """The value of a JSON object, or a `Failure`."""
        ...

    def agrees(self, segment: Segment, value: Any) -> bool:
        """Whether what a segment without a value says goes together with a value."""
        ...


SEEN = r"(?:image|picture|frame|video|clip|episode|evidence|observation|information)s?"
_WHICH = (
    r"(?:(?:last|final|current|provided|given|above|whole|entire|attached|input|shown|sampled|video|camera|visual) )"
)
THAT_SEEN = rf"(?:the|these|this) {_WHICH}{{0,2}}{SEEN}"
OPENER = (
    r"(?:(?:so|thus|therefore|hence|overall|finally|ok|okay|in conclusion|in summary|to summarize|here is|here's"
    rf"|(?:based on|judging from|judging by|from|in|as of|(?:at|by) the end of) {THAT_SEEN}"
    rf"|(?:as of|by|at) (?:now|the end)(?: of {THAT_SEEN})?|综上|综上所述|所以|因此),? ?)*"
)
_LEAD_IN = re.compile(rf"\A{OPENER}")
_NOUN = (
    r"(?:(?:answer|score|percentage|percent|percent complete|progress|completion|rating|result|estimate|verdict"
    r"|conclusion|response|output|assessment|evaluation|judge?ment|completed|complete|done|json|value"
    r"|(?:completion|progress|task) (?:percentage|rate|score|level|degree|status|progress|estimate|completion)"
    r"|percentage (?:complete|completed|of completion|of task completion)|degree of completion"
    r"|答案|回答|结果|分数|得分|评分|进度|完成度|完成率|完成百分比|完成进度|完成比例|完成情况)(?: of the task)?)"
)
_UNITS = r"(?: ?\((?:%|percent|percentage|in %|in percent|0 ?- ?100|0 ?- ?1|out of 100|yes/no|yes or no)\))?"
KIND_OF = r"(?:(?:overall|current|estimated|task|total|numeric|numerical|video|任务|当前|目前|总体|整体)的?(?:'s)? ?)*"
_IS = r"(?: ?(?:[:=]|=>|->) ?| is: ?)"
_SAYS = r"(?: is(?: at| now| currently)? | stands at | ?(?:是|为|达到|约为|大约是|大约为) ?)"
_EXAMPLE = re.compile(
    r"\b(?:examples?|formats?|formatted|instance|e\.g|such as|like this|as follows|templates?|placeholders?"
    r"|instructions?|previous(?:ly)?|asked|asks|wrote|said|says|told|default|random)\b|例如|格式"
    r"|\b(?:i|we) (?:cannot|can't|can not|could not|couldn't|am unable to|am not able to|do not|don't) "
    r"(?:see|view|tell|judge|access|assess|determine|rate|know)\b"
)
_HYPOTHETIC = re.compile(r"\b(?:if|would|could|might|should|not|wrong|incorrect|human|user|goal|target)\b|n't\b")
_ASIDE = re.compile(
    r"(?:brief |short |my )?(?:reasons?|reasoning|explanation|rationale|justification|observations?|analysis|notes?"
    r"|comments?|description|details?|evidence|理由|原因|解释|说明|分析|观察)(?: ?[:=].*)?",
    re.DOTALL,
)
_SURE = re.compile(
    r"\(?(?:(?:my )?(?:confidence(?: (?:level|score))?|certainty|置信度)(?: ?[:=] ?| is )"
    r"(?:(?:very )?high|medium|moderate|low|\d+(?:\.\d+)? ?%?|\d+/\d+|高|中|低)"
    r"|(?:i am|i'm) (?:about )?(?:\d+(?:\.\d+)? ?%|very|quite|fairly) (?:confident|sure|certain)"
    r"(?: (?:in|of|about) (?:this|that|it|my answer|this answer))?)\.?\)?"
)
_BREAK = re.compile(r"\n|(?<=[.!?;])(?<!approx\.)(?<!e\.g\.)(?<!i\.e\.) | -{1,3} (?=[^\W\d_])")
_TAIL = re.compile(
    r",? (?=(?:because|since) )|, (?=as )|,? (?=(?:so(?! far)|therefore|thus|hence),? )| (?=\([^\W\d_][^()]*\)[.!]?\Z)"
)
_PLACED = re.compile("\ue000(\\d+)\ue001")


@cache
def labels_of(*nouns: str) -> Labels:
    """Patterns of a strong line, a weak line, a sentence, and a heading, with more nouns than those of all forms."""
    noun = f"(?:{'|'.join([_NOUN, *nouns])})"
    whose = r"(?:(?:the|my|this|your|its|该|我的) ?)?"
    label = f"{OPENER}{whose}{KIND_OF}{noun}{_UNITS}"
    final = f"{OPENER}{whose}(?:final|最终|最后)的? ?{KIND_OF}{noun}{_UNITS}"
    says = f"(?:{_IS}|{_SAYS})"
    rest = "(?P<rest>.+)"
    return (
        re.compile(f"{final}{says}{rest}", re.DOTALL),
        re.compile(f"{label}{_IS}{rest}|{OPENER}(?:the |my )?answer is (?P<is>.+)", re.DOTALL),
        re.compile(f"{label}{_SAYS}{rest}", re.DOTALL),
        re.compile(f"(?:{final}|{label}) ?:?"),
    )


def segments_of(text: Text, form: Form) -> list[Segment] | Failure:
    """The segments of an answer, in order; a `Failure` where a mark stands in the middle of a sentence."""
    heading = form.labels[3]
    pieces: list[str] = []
    for piece in _BREAK.split(text.words):
        pieces += [part for part in _TAIL.split(piece) if part.strip(" .,;!-")]
    out: list[Segment] = []
    before = ""
    explained = False
    while pieces:
        piece = before + pieces.pop(0).strip()
        before = ""
        if len(piece) > SENTENCE and "\ue000" not in piece:
            out.append(Segment("other", piece))
            continue
        if pieces and heading.fullmatch(piece) and (piece.endswith(":") or form.value(piece) is None):
            before = piece.rstrip(" :") + ": "
            continue
        segment = _segment(piece, text, form) if len(piece) <= SENTENCE else None
        if segment is None:
            piece = _LEAD_IN.sub("", piece, count=1) or piece
            head, _, rest = piece.partition(", ")
            if not rest or form.value(head) is None:
                head, _, rest = piece.partition(" ")
                if not rest or form.value(head) is None or form.statement(rest) is None:
                    if "\ue000" in piece:
                        return Failure("unclear_answer", f"an answer in the middle of a sentence: {piece[:80]!r}")
                    kind: Kind = "aside" if explained else "reason"
                    out.append(Segment(kind, piece))
                    continue
            pieces[:0] = [head, rest]
            continue
        explained |= segment.kind == "aside"
        out.append(segment)
    return out


def _segment(piece: str, text: Text, form: Form) -> Segment | None:
    """A piece as a segment with a value or an aside; None where it is neither."""
    strong, weak, said, _ = form.labels
    if alone := _PLACED.fullmatch(piece.rstrip(" .!")):
        content = text.marks[int(alone[1])]
        if isinstance(content, str):
            return Segment("strong", piece, inner=Text(content, text.marks))
        return Segment("weak", piece, form.member(content))
    if found := strong.fullmatch(piece):
        return Segment("strong", piece, inner=Text(found["rest"], text.marks))
    if found := weak.fullmatch(piece):
        rest = found["rest"] or found["is"]
        kind: Kind = "weak"
        if (placed := _PLACED.fullmatch(rest.rstrip(" .!"))) and isinstance(text.marks[int(placed[1])], str):
            kind = "strong"
        return Segment(kind, piece, inner=Text(rest, text.marks))
    if (value := form.value(piece)) is not None:
        return Segment("bare", piece, value)
    if found := said.fullmatch(piece):
        value = form.value(found["rest"])
        if value is not None:
            return Segment("statement", piece, value)
        if placed := _PLACED.fullmatch(found["rest"].rstrip(" .!")):
            content = text.marks[int(placed[1])]
            if isinstance(content, str):
                return Segment("strong", piece, inner=Text(content, text.marks))
    if (value := form.statement(piece)) is not None:
        return Segment("statement", piece, value)
    if _ASIDE.fullmatch(piece) or _SURE.fullmatch(piece.rstrip(".")):
        return Segment("aside", piece)
    return None
