r"""The text of a reply without its reasoning, in plain typography, split into segments of a kind each.

`final_text` turns full-width digits, curly quotes, dashes and thin spaces into their plain forms and removes bold,
fences and LaTeX; marked answers and JSON objects are taken out. What may mean something else stays: a power is no
digit, a struck-out number is not a number. `segments_of` splits the rest; `answer_parser` has the kinds of segments
and the `Form`s (values, sentences, JSON keys and reasons of one kind of question).

    text = final_text("<think>1, 2, 3</think>**Score:** ８５％")       # words "score: 85%"
    final_text("So it is <answer>85</answer>").marks                 # ["85"]
    segments_of(text, Numbers("percentage", "percentage"))[0].kind    # "weak"
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Protocol

from guerdon.replies import own_part
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
_ENDS = re.compile(r"<\|\w{1,40}\|>|</s>|<eos>|<end_of_turn>")
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
        marks: content of each: the words of an answer, or a JSON object.
    """

    words: str
    marks: list[str | dict[str, Any]] = field(default_factory=list)


def final_text(text: str, material: Sequence[str] = ()) -> Text | Failure:
    """The text of a reply after its reasoning, without the answers that it quotes from the material.

    Returns:
        The words, never blank; or `empty`, `truncated` (reasoning or a tag is not closed), `unclear_answer` (tags out
        of order, a JSON object that is broken) or `too_long`.
    """
    final = own_part(text, material)
    if isinstance(final, Failure):
        return final
    plain = _plain(final)
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
    """Lower case, and one spelling for what differs by typography only. Powers and halves are not digits."""
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
        raise ValueError("a key is given twice")
    return dict(pairs)


Labels = tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]
Kind = Literal["strong", "weak", "bare", "statement", "reason", "aside", "other"]
SENTENCE = 500  # characters of a sentence that is read


@dataclass(frozen=True)
class AnswerSegment:
    """A line, sentence or clause of an answer.

    Attributes:
        kind: see `answer_parser`.
        words: it.
        value: its own value; a `Failure` where a value is missing; None for no value.
        inner: the reply in its mark or behind its label.
    """

    kind: Kind
    words: str
    value: Any = None
    inner: Text | None = None

    def leads_to(self, answer: AnswerSegment) -> bool:
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

    def agrees(self, words: str, value: Any) -> bool:
        """Whether a sentence about the scene is consistent with a value."""
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


def segments_of(text: Text, form: Form) -> list[AnswerSegment] | Failure:
    """The segments of an answer, in order; a `Failure` where a mark is in the middle of a sentence."""
    heading = form.labels[3]
    pieces: list[str] = []
    for piece in _BREAK.split(text.words):
        pieces += [part for part in _TAIL.split(piece) if part.strip(" .,;!-")]
    out: list[AnswerSegment] = []
    before = ""
    explained = False
    while pieces:
        piece = before + pieces.pop(0).strip()
        before = ""
        if len(piece) > SENTENCE and "\ue000" not in piece:
            out.append(AnswerSegment("other", piece))
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
                    out.append(AnswerSegment(kind, piece))
                    continue
            pieces[:0] = [head, rest]
            continue
        explained |= segment.kind == "aside"
        out.append(segment)
    return out


def _segment(piece: str, text: Text, form: Form) -> AnswerSegment | None:
    """A piece as a segment with a value or an aside; None where it is neither."""
    strong, weak, said, _ = form.labels
    content = _mark_in(piece, text)
    if isinstance(content, str):
        return AnswerSegment("strong", piece, inner=Text(content, text.marks))
    if content is not None:
        return AnswerSegment("weak", piece, form.member(content))
    if found := strong.fullmatch(piece):
        return AnswerSegment("strong", piece, inner=Text(found["rest"], text.marks))
    if found := weak.fullmatch(piece):
        rest = found["rest"] or found["is"]
        kind: Kind = "strong" if isinstance(_mark_in(rest, text), str) else "weak"
        return AnswerSegment(kind, piece, inner=Text(rest, text.marks))
    if (value := form.value(piece)) is not None:
        return AnswerSegment("bare", piece, value)
    if found := said.fullmatch(piece):
        if (value := form.value(found["rest"])) is not None:
            return AnswerSegment("statement", piece, value)
        if isinstance(content := _mark_in(found["rest"], text), str):
            return AnswerSegment("strong", piece, inner=Text(content, text.marks))
    if (value := form.statement(piece)) is not None:
        return AnswerSegment("statement", piece, value)
    if _ASIDE.fullmatch(piece) or _SURE.fullmatch(piece.rstrip(".")):
        return AnswerSegment("aside", piece)
    return None


def _mark_in(words: str, text: Text) -> str | dict[str, Any] | None:
    """The content of a mark, where the words are nothing else."""
    placed = _PLACED.fullmatch(words.rstrip(" .!"))
    return text.marks[int(placed[1])] if placed else None
