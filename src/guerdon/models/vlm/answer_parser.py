r"""Parses the reply of a vision-language model: a value with the words it was read from, or a `Failure`.

There is no default value. A grammar says what is accepted; everything else is a `Failure`:

    reply      = [reasoning] segment { segment }     reasoning: what `replies.behind_reasoning` removes
    segment    = strong | weak | bare | statement | reason | aside | any other line or sentence
    strong     = <answer>reply</answer> | \boxed{reply} | [[reply]] | "final answer:" reply
    weak       = label ":" reply | a JSON object with one key that names the answer     label: answer, score, trend, ...
    bare       = value                               whole: `85`, never the 85 of `85 steps`
    statement  = a sentence of a closed set that gives the value and says nothing else: "the task is 85% complete"
    reason     = a sentence about the scene that agrees with the value
    aside      = "reason:" or "confidence:" and what follows

The strongest kind in a reply decides. All segments of that kind must give the same value. After the last strong or weak
one, and next to bare ones and statements, only reasons and asides are accepted, and repetitions of the same value.
Typography (full-width digits, curly quotes, dashes, thin spaces) and markup (bold, fences, LaTeX) are removed first,
in `answer_grammar`, which also finds the segments. Sentences next to an answer are refused for words of doubt, denial
and talk about the answer; an unmarked answer with a reason next to it is a `fallback`.

    parse_answer("<think>...</think><answer>85</answer>", Numbers("percentage")).value   # 0.85
    parse_answer("<think>step 3 of 5", Numbers("percentage"))                            # Failure('truncated')
    parse_answer("It is not 80%.", Numbers())                                            # Failure('no_number')
    parse_answer("Yes, it is.", Completed()).value                                       # 1.0
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, Protocol

from guerdon.models.explained_score import ParseStatus, Scale
from guerdon.tasks.replies import own_part
from guerdon.types import Failure

# ---------------------------------------------------------------------------------------------------------------------
# The text of a reply without its reasoning, in plain typography, split into segments of a kind each.
#
# `final_text` turns full-width digits, curly quotes, dashes and thin spaces into their plain forms and removes bold,
# fences and LaTeX; marked answers and JSON objects are taken out. What may mean something else stays: a power is no
# digit, a struck-out number is not a number. `segments_of` splits the rest; `answer_parser` has the kinds of segments
# and the `Form`s (values, sentences, JSON keys and reasons of one kind of question).
#
#     text = final_text("<think>1, 2, 3</think>**Score:** ８５％")       # words "score: 85%"
#     final_text("So it is <answer>85</answer>").marks                 # ["85"]
#     segments_of(text, Numbers("percentage", "percentage"))[0].kind    # "weak"
# ---------------------------------------------------------------------------------------------------------------------


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
    words = _take_tagged(plain, marks)
    if isinstance(words, Failure):
        return words
    words = words.replace("\ue001\ue000", "\ue001\n\ue000").strip()
    if not words or marks == [""]:
        return Failure("empty", "there is no answer")
    if "{" in words or "}" in words:
        return Failure("unclear_answer", f"a brace outside of a JSON object: {words[:80]!r}")
    return Text(words, marks)


def _take_tagged(plain: str, marks: list[str | dict[str, Any]]) -> str | Failure:
    """Put what stands between `<answer>` and `</answer>` into marks."""
    opened, words = False, ""
    for piece in re.split(r"(</?answer>)", plain):
        if piece in ("<answer>", "</answer>"):
            if opened != (piece == "</answer>"):
                return Failure("unclear_answer", f"tags out of order: {plain[:80]!r}")
            opened = not opened
        else:
            words += _mark(marks, piece.strip()) if opened else piece
    return Failure("truncated", "<answer> is not closed") if opened else words


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
    pieces: list[str] = []
    for sentence in _BREAK.split(text.words):
        pieces += [part for part in _TAIL.split(sentence) if part.strip(" .,;!-")]
    out: list[AnswerSegment] = []
    heading = ""  # of the piece that follows
    explained = False
    while pieces:
        piece = heading + pieces.pop(0).strip()
        heading = ""
        long = len(piece) > SENTENCE
        if long and "\ue000" not in piece:
            out.append(AnswerSegment("other", piece))
            continue
        if pieces and _is_heading(piece, form):
            heading = piece.rstrip(" :") + ": "
            continue
        segment = None if long else _segment(piece, text, form)
        if segment is not None:
            explained |= segment.kind == "aside"
            out.append(segment)
            continue
        piece = _LEAD_IN.sub("", piece, count=1) or piece
        parts = _behind_value(piece, form)
        if parts is not None:
            pieces[:0] = parts
            continue
        if "\ue000" in piece:
            return Failure("unclear_answer", f"an answer in the middle of a sentence: {piece[:80]!r}")
        kind: Kind = "aside" if explained else "reason"
        out.append(AnswerSegment(kind, piece))
    return out


def _is_heading(piece: str, form: Form) -> bool:
    """Whether a piece says only what the next one is."""
    heading = form.labels[3]
    return heading.fullmatch(piece) is not None and (piece.endswith(":") or form.value(piece) is None)


def _behind_value(piece: str, form: Form) -> tuple[str, str] | None:
    """A piece cut behind the value that it begins with: at a comma, or where a sentence that gives a value follows."""
    head, _, rest = piece.partition(", ")
    if rest and form.value(head) is not None:
        return head, rest
    head, _, rest = piece.partition(" ")
    if rest and form.value(head) is not None and form.statement(rest) is not None:
        return head, rest
    return None


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


# ---------------------------------------------------------------------------------------------------------------------


MAX_DEPTH = 4  # of replies inside marks and behind labels of a reply
_NUMBER = r"-?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_ABOUT = r"(?:(?:~|about|approximately|approx\.?|around|roughly|约|大约|大概) ?)?"
_PERCENT = r" ?(?:%|percent\b|per cent\b|pct\b)"
_DONE = r"(?:complete|completed|done|finished|accomplished|achieved)"
_NAMED = (
    r"(?: (?:of [a-z]+ing|to [a-z]+)"
    r"(?: (?!(?:is|are|was|has|have|not|no|never|nothing|what|which|that|will|be)\b)[a-z-]+){1,10}?"
    r"|,? ?[\"'][^\"'%]{1,100}[\"'],?)?"
)
_TASK = (
    r"(?:it|(?:the |this |that |your |my |its )?(?:overall |whole |entire |given |robot's |assigned )?"
    rf"(?:task|goal|job|instruction|objective){_NAMED})"
)
_ROBOT = r"(?:it|(?:the |this )?(?:robot(?:ic)?(?:'s)?(?: arm| gripper| hand)?|arm|gripper|agent|manipulator))"
_WHEN = (
    r"(?: (?:so far|now|right now|at this point|at this moment|at the moment|at present|currently|overall|by now|yet"
    rf"|(?:at|by) the end(?: of {THAT_SEEN})?|(?:in|based on|according to|judging from) {THAT_SEEN}"
    r"|as of (?:now|the last frame)))?"
)
_I_SAY = (
    r"(?:(?:i (?:would |can )?|i'd )(?:estimate|judge|assess|conclude|say|find)(?: that)? "
    r"|my (?:estimate|assessment|judgment) is(?: that)? )?"
)
_IS_NOW = r"(?: is| has been| was|'s| appears to be| seems to be| looks)(?: now| currently| already)?"
_VALUE = re.compile(
    rf"{_ABOUT}(?:(?P<n>{_NUMBER})(?P<p>{_PERCENT})?|(?P<a>{_NUMBER}) ?(?:/|out of) ?(?P<b>100|10|1)(?:\.0)?"
    rf"|(?P<d>{_NUMBER}){_PERCENT} (?:{_DONE}|completion|progress)(?:{_WHEN}))"
)
_SHARE = rf"(?P<v>{_ABOUT}{_NUMBER}{_PERCENT})"
_ANY = rf"(?P<v>{_ABOUT}{_NUMBER}(?:{_PERCENT}| ?(?:/|out of) ?100)?)"
_AMOUNTS = tuple(
    re.compile(f"{OPENER}(?:{pattern}){_WHEN}")
    for pattern in (
        rf"{_I_SAY}{_TASK}(?:{_IS_NOW})? {_SHARE}(?: of the way)? (?:{_DONE}|to completion)",
        rf"{_I_SAY}{_SHARE} of {_TASK}(?:{_IS_NOW}) {_DONE}",
        rf"{_I_SAY}{_ROBOT} (?:has|had) (?:now |already )?(?:{_DONE}) {_SHARE} of {_TASK}",
        rf"{_I_SAY}(?:{_ROBOT}|{_TASK}){_IS_NOW} {_SHARE} "
        rf"(?:of the way (?:there|to completion|(?:to|to completing|through) {_TASK})|(?:done with|through) {_TASK})",
        rf"{_I_SAY}{_TASK} (?:is |stands |is now |is currently )?at {_SHARE}(?: completion)?",
        rf"{_I_SAY}{_TASK} (?:has )?reached {_SHARE}(?: completion)?",
        rf"(?:i (?:would )?|i'd )(?:estimate|rate|judge|assess|put|score) (?:the |this |its )?{KIND_OF}"
        rf"(?:progress|completion(?: rate)?|score|percentage|video|task|it)?(?: of {_TASK})?"
        rf" (?:at|as|to be|is) {_ANY}(?: {_DONE})?",
        rf"(?:i (?:would )?|i'd )(?:estimate|give it|give this|give) {_SHARE}(?: completion)?",
        rf"(?:该)?{KIND_OF}(?:的)?(?:进度|完成度|完成率|完成情况)?(?:为|是|已经|已|约)*(?:完成|达到|进行到|进行了)"
        rf"(?:度为|度是|度|了)? ?(?:约|大约)?{_ANY}(?:左右)?(?:的任务)?",
        rf"{_SHARE}的任务(?:已经|已)?完成(?:了)?",
    )
)
_NUMBER_KEYS = frozenset((
    "score", "percentage", "percent", "progress", "completion", "answer", "final_answer", "final_score", "value",
    "result", "rating", "estimate", "completion_percentage", "completion_percent", "completion_rate",
    "completion_score", "completion_level", "percent_complete", "percentage_complete", "percent_completed",
    "percentage_completed", "task_progress", "task_completion", "progress_percentage", "progress_percent",
    "progress_score", "task_completion_percentage", "task_completion_rate", "task_score", "overall_score",
    "overall_progress", "overall_completion", "进度", "完成度", "分数", "答案",
))  # fmt: skip
_DONE_KEYS = frozenset((
    "completed", "complete", "is_completed", "is_complete", "task_completed", "task_complete", "task_is_completed",
    "done", "is_done", "finished", "is_finished",
))  # fmt: skip
_SAID_KEYS = frozenset(["answer", "final_answer", "result", "verdict", "response", "答案"])
_OTHER_KEYS = frozenset((
    "reason", "reasons", "why", "reasoning", "explanation", "rationale", "justification", "analysis", "thought",
    "thoughts", "thinking", "confidence", "confidence_score", "confidence_level", "certainty", "task", "task_name",
    "task_description", "instruction", "description", "observation", "observations", "evidence", "note", "notes",
    "comment", "comments", "summary", "details", "detail", "scene", "feedback", "step", "steps", "stage", "subtask",
    "subtasks", "next_step", "next_steps", "remaining_steps", "object", "objects", "robot", "gripper", "environment",
    "video", "image", "frame", "frames", "frame_id", "timestamp", "id", "task_id", "episode", "model", "version",
    "question", "prompt", "language", "理由", "原因", "解释", "说明", "任务", "置信度",
))  # fmt: skip

_SCENE = re.compile(
    r"(?:because |since |as |so |and )?(?:(?:it|that|there)'s|"
    r"(?:the|a|an|its|both|all|two|three|four|one|most|only|there|no|it|they|each|every|none|nothing|everything)"
    r"(?: [a-z'-]+){0,8}? (?:are|were|have|had|did|do|(?:is|are|was|were|has|have|did|does|do)n't|[a-z]+(?:s|ed)))"
    r"\b(?:[, ]+\(?[a-z'-]+\)?)*"
)
_SHOWN = re.compile(rf"\A(?:(?:i|we) (?:can )?see that|(?:the )?(?:last |final )?{SEEN} (?:clearly )?shows? that) ")
_WHERE = re.compile(rf",? (?:in|from|by|through|at the end of|throughout) (?:{THAT_SEEN}|all (?:the )?{SEEN})\b")
_UNSURE = re.compile(
    r"\b(?:maybe|perhaps|possibly|probab\w+|chance|likely|might|may|could|would|should|seem\w*|appear(?:s|ed)?|guess\w*"
    r"|unsure|uncertain|unclear|unknown|cannot|can't|unable|hard|difficult|impossible|however|actually|wait|corrections?"
    r"|rather|instead|otherwise|or|if|unless|when|assum\w+|suppos\w+|answers?|scores?|scored|ratings?|rated|percent\w*"
    r"|values?|numbers?|confiden\w+|certain\w*|sure\w*|doubt\w*|estimat\w+|previous\w*|earlier|users?|human\w*|person"
    r"|operators?|people|models?|ai|examples?|formats?|questions?|prompts?|instruct\w+|said|says?|think\w*|thought"
    r"|believ\w+|claim\w*|statements?"
    r"|opposite|true|false|case|apparently|supposedly|what|wrong|mistake\w*|jok\w+|kidding|default|sarcas\w+"
    r"|iron(?:y|ic|ically)|expect\w+|want\w*|goals?"
    r"|targets?|aim\w*|hypothe\w+|imagin\w+|pretend\w*|provided|visible|blurry|dark|occluded|tell|images?|pictures?"
    r"|frames?|videos?|clips?|cameras?|views?|same|equal|too|again|half|quarter|third)\b"
)
_RETRACTED = re.compile(
    r"\b(?:wait|actually|corrections?|instead|scratch|sorry|mistake\w*|final|answers?|retract\w*|ignore|disregard"
    r"|nevermind|guess\w*|wrong|incorrect|example|default|placeholder|random|unsure"
    r"|not (?:verified|final|certain|sure|right)|(?:correct|true|real) (?:score|answer|value|number)|revis\w+"
    r"|change|reconsider\w*|on second|kidding|jok\w+)\b|\?"
)
_DENIED = re.compile(
    r"\b(?:not|never|no|nothing|none|without|nor|neither|fail\w*|incomplete\w*|unfinished|unsuccessful\w*|undone)\b|n't\b"
)
_OPEN_STILL = re.compile(
    r"\b(?:still|only|yet|almost|nearly|mostly|largely|part\w*|remain\w*|halfway|missing|needs?|left|far|short|about to"
    r"|start\w*|begin\w*|beg[au]n|try\w*|tried|attempt\w*|ready|will|soon|toward\w*|approach\w*|must|to be|to do|but"
    r"|though|although|except|drop\w*|miss\w*|stop\w*|stuck|stall\w*|fell|fallen|falls|spill\w*|broke\w*|lost|slip\w*"
    r"|jam\w*|block(?:s|ed)|hardly|barely|scarcely|nowhere|bit|little|motion|trouble|ajar|gap|slight\w*|outside|before|un\w+ed)\b"
    r"|\b(?:is|are|was|were) \w+ing\b"
)
_FULLY = re.compile(rf"\b(?:{_DONE}|success\w*|succe\w+|fully|completely|properly|entirely|fulfilled|reached)\b")
_BETTER = re.compile(r"\b(?:closer|nearer|progress\w*|better|improv\w*|forwards?|towards?|success\w*|advanc\w*)\b")
_WORSE = re.compile(
    r"\b(?:away|back|backwards?|further|farther|drop\w*|fall\w*|fell|undo\w*|worse|los\w+|revers\w+|slip\w*|fail\w*)\b"
)
_VAGUE = re.compile(rf"(?:\w+ )?{_TASK}(?:'s)? |there\b|that\b")
_REVERSED = re.compile(
    r"\b(?:nothing|none|no longer|no more|no further|anymore)\b|\A(?:there|that)\b|\bbut (?:is|has|it)\b(?! not)"
    r"|(?:not|n't|never) (?:\w+ )?(?:drop|leave|left|lose|lost|miss|knock|spill|break|broke|collide|slip|stop)\w*"
)
_AGENT = r"(?:robot(?:ic)?|arm|gripper|hand|manipulator|agent|it|they|she|he)"
_ACHIEVED = re.compile(
    rf"(?:because |since |as |so |and )?(?:the |its )?(?:(?:(?!{_AGENT}\b|is |are |has |have )[a-z'-]+ ){{1,8}}"
    r"(?:is|are|was|were|has been|have been|sits|lies|rests|stands|hangs) (?!to |able )"
    rf"|(?:{_AGENT}(?:'s)? ){{1,3}}(?:has |have )?(?:(?:now|already|fully|completely|successfully|also|just) )*"
    r"(?:closed|opened|shut|placed|put|moved|picked|grasped|stacked|pushed|pulled|turned|inserted|poured|lifted|released"
    r"|delivered|reached|switched|pressed|folded|wiped|hung|removed|unplugged|plugged|rotated|slid|set|assembled) )"
)

_ADVERB = r"(?: (?:now|already|fully|completely|successfully|indeed|clearly|properly|actually|definitely|yet|been))*"
_IS_DONE = tuple(
    re.compile(f"{OPENER}(?:{pattern}){_WHEN}")
    for pattern in (
        rf"{_I_SAY}{_TASK}(?: is| has been| was| has|'s){_ADVERB} {_DONE}{_ADVERB}",
        rf"{_TASK} (?:is|has|has been|was){_ADVERB}",
        rf"{_I_SAY}{_ROBOT} (?:has |had )?(?:now |already |successfully |fully )*(?:{_DONE}) {_TASK}(?: successfully)?",
        rf"{_TASK} (?:was|is|has been) (?:a success|successful)",
        rf"(?:(?:fully|successfully) )?{_DONE}",
        r"(?:任务|该任务|任务目标)?(?:已经|已|成功)*完成(?:了)?",
    )
)
_IS_NOT = r"(?: (?:is|was|has) not| (?:isn|wasn|hasn)'t|'s not)(?: yet| been| fully| completely| successfully| quite)*"
_IS_UNDONE = tuple(
    re.compile(f"{OPENER}(?:{pattern}){_WHEN}")
    for pattern in (
        rf"{_I_SAY}{_TASK}{_IS_NOT} {_DONE}(?: yet| fully| completely| successfully)*",
        rf"{_I_SAY}{_TASK} is (?:still|currently|yet|as yet) (?:not (?:yet )?(?:been )?{_DONE}|incomplete|unfinished)",
        rf"{_I_SAY}{_TASK} (?:is|remains|was) (?:incomplete|unfinished|not yet {_DONE})",
        rf"{_TASK}{_IS_NOT}",
        rf"not (?:yet )?(?:fully )?{_DONE}(?: yet)?|incomplete|unfinished",
        rf"{_I_SAY}{_ROBOT} (?:has not|hasn't|did not|didn't|has failed to|failed to)(?: yet| fully| successfully)*"
        rf" (?:complete|finish|finishe|accomplish|accomplishe|achieve)d? {_TASK}(?: yet)?",
        r"not yet",
        r"(?:任务|该任务|任务目标)?(?:还|仍|尚|并)?(?:没有|没|未)(?:被)?完成",
    )
)
_YES = frozenset(["yes", "true", "1", "yeah", "yep", "是", "是的", "对", "完成", "完成了", "已完成", "已经完成"])
_NO = frozenset(
    ["no", "false", "0", "nope", "否", "不", "不是", "没有", "未完成", "没有完成", "尚未完成", "还没有", "没完成"]
)


def _peeled(words: str) -> str:
    """Words without the quotes, brackets and full stops around them."""
    before = None
    while words != before:
        before = words
        words = words.strip()
        if len(words) > 1 and words[0] + words[-1] in ('""', "''", "()", "[]"):
            words = words[1:-1]
        if words[-1:] in (".", ",", ";") and len(words) > 1:
            words = words[:-1]
    return words


def _agrees(form: Form, segment: AnswerSegment, value: Any) -> bool:
    """Whether a segment without a value is consistent with this value."""
    if isinstance(form, Choices) and form.repeats(segment.words, value):
        return True
    if segment.kind != "reason":
        return segment.kind == "aside" and not _RETRACTED.search(segment.words)
    words = _WHERE.sub("", _SHOWN.sub("", _peeled(segment.words)))  # the scene, without where it is seen
    return bool(_SCENE.fullmatch(words)) and not _UNSURE.search(words) and form.agrees(words, value)


def _only(given: dict[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    """The members that name the answer; none where an object has an unknown key."""
    named = {key.strip().replace(" ", "_").replace("-", "_"): value for key, value in given.items()}
    known = keys | _NUMBER_KEYS | _DONE_KEYS
    return {k: v for k, v in named.items() if k in known} if named.keys() <= known | _OTHER_KEYS else {}


def _member(given: Any, form: Form) -> Any:
    """The value of one member of an object."""
    words = str(given).casefold() if isinstance(given, (bool, int, float)) else given
    return form.value(words.strip()) if isinstance(words, str) else None


def _agree(found: list[Any], given: dict[str, Any], missing: str, others: Iterable[Any] = ()) -> Any:
    """The value that all members give, or a `Failure`; `others` are shares that must be 1 where the value is 1 only."""
    if not found or any(value is None for value in found):
        return Failure(missing, f"no answer in {str(given)[:80]}")
    wrong = next((value for value in found if isinstance(value, Failure)), None)
    if wrong is not None:
        return wrong
    value = found[0]
    if any(v != value for v in found) or any(not isinstance(o, float) or (o == 1.0) != (value == 1.0) for o in others):
        return Failure("several_answers", f"different answers in {str(given)[:80]}")
    return value


class Numbers:
    """A number on a scale, as a share in [0, 1].

    Args:
        scale: `percentage` divides by 100; `unit` takes the number unchanged; `auto` divides what has a % or is above
            1, and reads exactly 1 on the scale that the prompt asked for. A share (85/100) is one on every scale.
        prompt_scale: what the prompt asked for; decides what `auto` makes of exactly 1.
    """

    missing = "no_number"
    labels = labels_of()

    def __init__(self, scale: Scale = "auto", prompt_scale: Scale = "percentage") -> None:
        self.scale, self.prompt_scale = scale, prompt_scale

    def value(self, words: str) -> float | Failure | None:
        """`85`, `85%`, `~85 percent`, `85/100`, `85% complete`."""
        found = _VALUE.fullmatch(_peeled(words))
        if found is None:
            return None
        if found["a"] is not None:
            value = float(found["a"].replace(",", "")) / float(found["b"])
        else:
            value = float((found["n"] or found["d"]).replace(",", ""))
            percent = found["p"] is not None or found["n"] is None
            above = value > 1.0 or (value == 1.0 and self.prompt_scale != "unit")
            if percent or self.scale == "percentage" or (self.scale == "auto" and above):
                value /= 100.0
        if not 0.0 <= value <= 1.0 or not math.isfinite(value):
            return Failure("out_of_range", f"{words[:80]!r} on the scale {self.scale} is {value:g}")
        return value + 0.0

    def statement(self, words: str) -> float | Failure | None:
        """`the task is 85% complete`, and the other forms of `_AMOUNTS`."""
        plain = _peeled(words)
        found = next((m for pattern in _AMOUNTS if (m := pattern.fullmatch(plain))), None)
        return None if found is None else self.value(found["v"])

    def member(self, given: dict[str, Any]) -> float | Failure:
        """`{"score": 85}`; a `completed` in the same object must say the same."""
        named = _only(given, _NUMBER_KEYS)
        found = [_member(v, self) if not isinstance(v, bool) else None for k, v in named.items() if k in _NUMBER_KEYS]
        done = [_member(v, Completed()) for k, v in named.items() if k in _DONE_KEYS]
        value: float | Failure = _agree(found, given, self.missing, done)
        return value

    def agrees(self, words: str, value: float) -> bool:
        """A scene that is not finished for a value below 1, one that is not unfinished for 1."""
        if value == 1.0:
            return not _DENIED.search(words) and not _OPEN_STILL.search(words)
        return not any(pattern.fullmatch(words) for pattern in _IS_DONE)


class Completed:
    """Yes (1.0) or no (0.0)."""

    missing = "no_judgement"
    labels = labels_of("status", "task status", "task is completed", "is the task completed\\??", "is it completed\\??")

    def value(self, words: str) -> float | None:
        """`yes`, `no`, and words of the same meaning."""
        plain = _peeled(words).rstrip("!").strip()
        if plain in _YES:
            return 1.0
        return 0.0 if plain in _NO else None

    def statement(self, words: str) -> float | None:
        """`the task is completed`, `it is not`, and the other forms of the two tables."""
        plain = _peeled(words).rstrip("!").strip()
        if any(pattern.fullmatch(plain) for pattern in _IS_UNDONE):
            return 0.0
        return 1.0 if any(pattern.fullmatch(plain) for pattern in _IS_DONE) else None

    def member(self, given: dict[str, Any]) -> float | Failure:
        """`{"completed": true}`; a score in the same object must say the same."""
        named = _only(given, _SAID_KEYS)
        found = [_member(v, self) for k, v in named.items() if k in _DONE_KEYS | _SAID_KEYS]
        scores = [_member(v, Numbers("auto", "percentage")) for k, v in named.items() if k in _NUMBER_KEYS - _SAID_KEYS]
        value: float | Failure = _agree(found, given, self.missing, scores)
        return value

    def agrees(self, words: str, value: float) -> bool:
        """A finished scene for yes; for no, an unfinished one or one without a finished action."""
        denied = _DENIED.findall(words)
        if value == 1.0:
            if denied or _OPEN_STILL.search(words) or _VAGUE.match(words):
                return False
            return bool(_ACHIEVED.match(words))
        if len(denied) > 1 or _REVERSED.search(words):
            return False
        return bool(denied or _OPEN_STILL.search(words)) or not (_FULLY.search(words) or _VAGUE.match(words))


class Choices:
    """One of several words.

    Args:
        key: of the word in a JSON object, and its label in a line.
        words: allowed answers (lower case), and the value of each.
        meanings: by value what the question says of it (lower case); an answer may repeat it, or how it begins.
    """

    missing = "no_judgement"

    def __init__(self, key: str, words: dict[str, str], meanings: Mapping[str, str] = MappingProxyType({})) -> None:
        self.key, self.words, self.meanings = key, words, meanings
        self.labels = labels_of(re.escape(key), rf"{re.escape(key)} (?:direction|label)", "趋势")

    def value(self, words: str) -> str | None:
        """One of the words."""
        return self.words.get(_peeled(words).rstrip("!").strip())

    def statement(self, words: str) -> str | None:
        """None: the sentences that are read are those with a label."""
        return None

    def member(self, given: dict[str, Any]) -> str | Failure:
        """`{"trend": "positive"}`."""
        keys = _SAID_KEYS | {self.key}
        found = [_member(v, self) if k in keys else None for k, v in _only(given, keys).items()]
        value: str | Failure = _agree(found, given, self.missing)
        return value

    def repeats(self, words: str, value: str) -> bool:
        """Whether words are what the question says of the value, or how it begins."""
        plain = words.strip(" ()*.!")
        return bool(plain) and self.meanings.get(value, "").startswith(plain)

    def agrees(self, words: str, value: str) -> bool:
        """A scene that contains none of the words."""
        if _DENIED.search(words) or any(re.search(rf"\b{re.escape(word)}\b", words) for word in self.words):
            return False
        return not ((value != "positive" and _BETTER.search(words)) or (value != "negative" and _WORSE.search(words)))


@dataclass(frozen=True)
class ParsedAnswer:
    """A value that was read.

    Attributes:
        value: a share in [0, 1], or one of the words that were asked for.
        status: `ok` where the answer has the form that was asked for; `fallback` where it was read from a sentence, or
            has no mark and a reason next to it.
        words: those that it was read from.
    """

    value: Any
    status: ParseStatus
    words: str


def parse_answer(text: str, form: Form, material: Sequence[str] = ()) -> ParsedAnswer | Failure:
    """The one value that a model answered.

    Args:
        text: the whole reply.
        form: what was asked: `Numbers`, `Completed` or `Choices`.
        material: texts of the question, such as the task; a quote of them is not an answer (`replies.own_part`).

    Returns:
        The answer, or why there is none: `empty`, `truncated`, `unclear_answer`, `several_answers`; `no_number` or
        `out_of_range` (never clamped) of a number; `no_judgement` of the others.
    """
    answer = final_text(text, material)
    return answer if isinstance(answer, Failure) else _resolve(answer, form, 0)


def _resolve(text: Text, form: Form, depth: int) -> ParsedAnswer | Failure:
    """The value of a reply without its reasoning."""
    if depth > MAX_DEPTH:
        return Failure("unclear_answer", "labels and marks inside each other")
    segments = segments_of(text, form)
    if isinstance(segments, Failure):
        return segments
    at = _deciding(segments)
    if not at:
        return Failure(form.missing, f"no answer in a form that is read: {_shown(text.words)}")
    kind = segments[at[0]].kind
    marked = kind in ("strong", "weak")
    values = [_value(segment, form, depth) for segment in segments]
    several = Failure("several_answers", f"different answers: {_shown(text.words)}")
    chosen = _one_value([values[i] for i in at], several)
    if isinstance(chosen, Failure):
        return chosen
    if marked and at[0] > 0 and not segments[at[0] - 1].leads_to(segments[at[0]]):
        return Failure(form.missing, f"{_shown(segments[at[0] - 1].words)} leads to the answer")
    beside = _beside(segments, values, at, marked=marked)
    doubt = _doubt(beside, chosen, form, several)
    if doubt is not None:
        return doubt
    uncertain = kind == "statement" or (not marked and any(found is None for _, found in beside))
    return ParsedAnswer(chosen.value, "fallback" if uncertain else chosen.status, chosen.words)


_Found = ParsedAnswer | Failure | None  # what a segment gives by itself


def _deciding(segments: Sequence[AnswerSegment]) -> list[int]:
    """Places of the segments whose value is the answer: those of the surest kind that is there."""
    for kind in ("strong", "weak", "bare", "statement"):
        at = [i for i, segment in enumerate(segments) if segment.kind == kind]
        if at:
            return at
    return []


def _one_value(found: Sequence[_Found], several: Failure) -> ParsedAnswer | Failure:
    """The value that all of these segments give; `several` where they differ or one gives none."""
    first, *others = found
    if first is None:
        return several
    if isinstance(first, Failure):
        return first
    for one in others:
        if isinstance(one, Failure):
            return one
        if one is None or one.value != first.value:
            return several
    return first


def _beside(
    segments: Sequence[AnswerSegment], found: Sequence[_Found], at: Sequence[int], *, marked: bool
) -> list[tuple[AnswerSegment, _Found]]:
    """The segments that have to agree with the answer: those behind a marked one, or all others."""
    first = at[-1] if marked else 0
    return [(segments[i], found[i]) for i in range(first, len(segments)) if i not in at]


def _doubt(
    beside: Sequence[tuple[AnswerSegment, _Found]], chosen: ParsedAnswer, form: Form, several: Failure
) -> Failure | None:
    """Why what stands beside an answer does not agree with it; None where it does."""
    for segment, found in beside:
        if found is None and not _agrees(form, segment, chosen.value):
            return Failure(form.missing, f"{_shown(segment.words)} next to the answer {_shown(chosen.words)}")
        if isinstance(found, Failure) or (found is not None and found.value != chosen.value):
            return several
    return None


def _value(segment: AnswerSegment, form: Form, depth: int) -> ParsedAnswer | Failure | None:
    """What a segment gives by itself; None where it gives no value."""
    if segment.inner is not None:
        return _resolve(segment.inner, form, depth + 1)
    if segment.value is None or isinstance(segment.value, Failure):
        return segment.value
    return ParsedAnswer(segment.value, "ok" if segment.kind != "statement" else "fallback", segment.words)


def _shown(text: str) -> str:
    return repr(text[:80])
