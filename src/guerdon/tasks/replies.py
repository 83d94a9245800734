r"""The part of a language model's reply that counts, and the JSON in it: one reader for every judge.

A model that reasons writes drafts of its answer first. What it writes between marks of reasoning is not an answer, in
whatever notation: `<think>`, `<seed:think>`, `[THINK]`, `◁think▷`, `<|begin_of_thought|>`, `<scratchpad>`, and
`<|channel|>analysis`. So is a line with nothing but a word for reasoning in other punctuation: `{think}`, `@@thinking`,
`:::reasoning`, `\begin{scratchpad}`, `<!-- thinking -->`, a fence labelled `thinking`. Headings and labels
(`## Analysis`, `**Reasoning**`, `Thoughts:`) are prose; a quote or `<details>` at the beginning with such a title is
not. A tag of an unknown name counts as reasoning too where it begins the reply or is alone on a line; names of answers
(`<answer>`, `<your answer>`), HTML and control tokens do not. A tag that is only mentioned, in a sentence, in quotes,
in a block of code or inside a JSON object, changes nothing.

Quotations are not answers either, or a solution could contain its own judgement: a JSON object or a marked answer that
occurs in the material (the question, the solution, the task) is left out, however the quotation is indented, spaced,
escaped or ordered. A judgement may equal one of the material by chance: it counts if the reply is that object and
nothing else, as requested, and holds no text of more than `CHANCE` characters.

    final_part("<think>maybe 40</think> 85")                     # " 85"
    final_part("<think>maybe 40")                                # Failure('truncated', ...)
    json_objects('<think>{"score": 4}</think>{"score": 5}')      # [{"score": 5}]
    json_objects('He wrote {"a": 1}. {"a": 0}', ['{ "a":1 }'])   # [{"a": 0}]
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Never

from guerdon.types import Failure

BROKEN = 50  # beginnings of JSON objects that are not JSON, after which no more are tried
CHANCE = 20  # characters of a text that two writers may write alike by chance

_BEGINS = re.compile(r'\{\s*"|\[\s*\{')  # of a JSON object, or of a list of them
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.S)  # one that does not end takes the rest
_TOKEN = re.compile(_STRING.pattern + r"|[{}\[\]]", re.S)
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')  # one that JSON knows, or a backslash that escapes nothing

_ANSWER_MARK = re.compile(r"<answer>[^<]*</answer>|\\boxed\{[^{}]*\}|\[\[[^\[\]\n]*\]\]", re.I)
_CODE_POINT = re.compile(r"\\+u([0-9a-fA-F]{4})")
_BLANK_ESCAPE = re.compile(r"\\+[nrt]")
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]+|[{}\[\],]")
_LETTERS = re.compile(r"[^\W\d_]+")
_ZEROS = re.compile(r"(?<=\d)\.0+(?!\d)")
_ONLY_FENCE = re.compile(r"[\s\ufeff]*(?:[`~]{3,}\w*)?[\s`~]*")

_SPELLED = {"&lt;": "   <", "&#60;": "    <", "&gt;": ">   ", "&#62;": ">    ", "\\<": " <", "\\>": "> "}
_SAME = str.maketrans("＜＞／｜▁［］【】◁▷⟨⟩⟪⟫\ufeff\u200b", "<>/|_[][]<><><>  ")  # other notations of a mark
_STEMS = (
    r"think|thought|reason|rational|analy[sz]|scratch|reflect|deliberat|ponder|contemplat|monolog|brainstorm|draft"
    r"|\bcot\b|思|推理|分析|草稿"
)
_FINALS = r"answer|final|output|result|respon|verdict|judg|solution|conclu|答|结论|结果"
_ADDED = (  # other words of a line that marks reasoning
    r"(?:begin|start|end|stop|close|done|open|of|my|the|inner|chain|internal|hidden|private|step|process|pad|block|trace)"
)
_MARK = re.compile(
    r"<\|(?:im_start|start_header_id|start_of_role)\|>\s{0,9}"
    r"(?P<role>[^\W\d_]\w{1,40})(?:<\|end_(?:header_id|of_role)\|>)?"
    r"|<\|(?P<pipe>/?[^\W\d_][\w:. -]{0,40}?)\|?>(?P<channel>(?<=channel\|>)\s*\w+)?"
    r"|<(?P<half>[^\W\d_]\w{1,40})\|>"
    r"|<[ %#?!]{0,2}(?P<tag>/? ?[^\W\d_][\w:.-]{1,80}(?: [\w'-]{1,20}(?![\w='-])){0,6})"
    r"(?:\s[^<>\n]{0,200})?(?<!/) ?[%#?]?>{1,3}"
    r"|(?<!\[)\[(?P<square>/?[^\W\d_][\w -]{1,40})\](?![\](])"
    r"|(?m:^[-=*~#<{ ]{1,12}(?P<line>(?i:begin|start|end|stop)(?i: of)?[ _][^\W\d_]\w{1,40})[-=*~#>} ]{1,12}$)"
    rf"|(?im:^[ \t]*(?P<lead>[^\w\n]{{0,12}})(?P<words>(?:{_ADDED}[^\w\n]{{0,2}}|_){{0,3}}"
    rf"\w{{0,4}}(?:{_STEMS}|{_FINALS}|commentary)\w{{0,12}}(?:[ _:-]{_ADDED}){{0,2}})"
    r"(?P<tail>[^\w\n]{0,12}|[^\w\n]{1,3}[\w-]{1,20}=[^\n]{0,120})$)"
)
_BRACED = re.compile(
    rf"((?<![\w\\])[{{«‹「『⟦]{{1,2}}|\\begin\{{|\\end\{{)(/?\w{{0,9}}(?:{_STEMS})\w{{0,9}})([}}»›」』⟧]{{1,2}})"
)
_GLUED = re.compile(rf"\b(begin|start|end|stop)(?={_STEMS})")
_HEADING = re.compile(r"\s*(?:#{1,6}\s\W*|[-*+•–—]\s\W*|[*_]{1,2}|>.*|[\"'“‘`|])\s*")  # in front of its words
_RULE = re.compile(r"\s*(?:[-=~#*_.]{2,}|[^\x00-\x7f]{1,2}(?=\s))\s*")
_STRONG = re.compile(  # in a ruled line: what begins or ends something, and what a judgement has no section about
    rf"think|thought|scratch|monolog|思|\b(?:begin|start|end|stop|done)\b|{_FINALS}", re.I
)
_CLOSING = {"<!--": "-->", "/*": "*/"}
_MAX_BLOCKS = 50  # whose end is looked for, each in all of the text
_FRAME = re.compile(  # that a reply begins with: folded, as chat programs write reasoning, or a quote of several lines
    r"\s*(?:<details\b[^>]{0,200}>\s*<summary>[^<]{0,40}(?:think|thought|reasoning|思)[^<]{0,40}</summary>(?:.*?</details>|(?P<open>.*))"
    r"|>[^\w\n]*(?:think|thought|思)\w*[^\w\n]*(?:\n[ \t]*>[^\n]*)+)",
    re.I | re.S,
)
_BARE = re.compile(  # as a server writes channels and turns without control tokens
    r"\s*(?:assistant\s*)?(?:(?:analysis|commentary)(?=[A-Z\"'{]|\s+to=)"
    r"|(?:analysis|commentary|reasoning|thoughts?|think(?:ing)?)[ \t]*\n)"
)
_BARE_FINAL = re.compile(r"assistantfinal|\n[ \t]*(?:answer|final)[ \t]*(?=\n)")
_MESSAGE = re.compile(r"(?:\s*<\|constrain\|>\s*\w+)?\s*(?:<\|message\|>)?")
_MESSAGE_ENDS = re.compile(r"<\|(?:end|return|call|start|channel)\|>")
_ROLE = re.compile(r"(?:\s|<\|\w+\|>|assistant)*\Z")  # nothing but control tokens and the name of the writer
_INLINE_CODE = re.compile(r"`[^`\n{]+`")
_WRITTEN = {"assistant": "answer", "model": "answer", "unused94": "think", "unused95": "/think"}  # the last of MedGemma
_PLACES = frozenset(("begin", "start", "open", "of", "prefix"))
_CLOSES = frozenset(("end", "stop", "close", "suffix", "done"))
_REASONING = re.compile(_STEMS + r"|\binner\b|\bchannel\b|chain_")
_FINAL = re.compile(_FINALS)
_ANSWER = re.compile(
    _FINAL.pattern + r"|reply|json|evaluat|assess|scor|report|decision|grad|rating|label|review|feedback|format"
    r"|content|data|step|box|tool|function"
)
_PLAIN_NAME = re.compile(  # HTML, and control tokens of chat templates
    "blockquote|body|br|code|col|dd|del|details|div|dl|dt|em|font|h[1-6]|head|hr|html|img|ins|kbd|li|main|mark|math|ol"
    "|pre|samp|section|small|span|strike|strong|su[bp]|summary|svg|table|tbody|td|tfoot|th|thead|title|tr|ul|var|xml"
    "|im|im_sep|sep|text|turn|(?:turn|chatbot|user|system)_token|python_tag|sentence|header|header_id|eot|eot_id|eom|eom_id|eos|bos|pad|unk|message|constrain|return"
    "|call|endoftext|assistant|user|system|model|human|bot|inst|image|video|vision"
)
_MENTIONED = re.compile(r"(?:\b(?:an?|the|closing|opening|literal|stray|of|with|without|no|by)\s|[\"'“‘«(`])\Z")
_NAMED = re.compile(r" (?:tags?|tokens?|blocks?|marks?|markers?|elements?|delimiters?)\b")
_SAID = re.compile(r" (?:is|are|was|were|has|had|appears?|never|without|and|or|but|instead|in|on|at)\b")


@dataclass(frozen=True)
class _Mark:
    """A tag, or a control token with the name of a channel.

    Attributes:
        start: of it in the reply.
        end: of it.
        written: the name as it is written.
        name: the name without what says that it begins or ends something, in one spelling.
        closes: whether it ends something.
        kind: `tag` ends with its closing tag only; `pipe` and `square` also end where one of theirs begins an answer.
        channel: name of the channel that begins here.
        led: nothing but the beginning of a line, another mark or the end of a sentence is before it.
        alone: nothing else is on its line.
    """

    start: int
    end: int
    written: str
    name: str
    closes: bool
    kind: str
    channel: str
    led: bool
    alone: bool

    @property
    def reasoning(self) -> bool:
        """Whether the name says that it is reasoning."""
        return bool(_REASONING.search(self.name))

    @property
    def known(self) -> bool:
        """Whether the name says that it is something else."""
        return not self.reasoning and bool(
            _PLAIN_NAME.fullmatch(self.name)
            or _ANSWER.search(self.name)
            or (self.name.isascii() and len(self.name) < 3)
        )


def final_part(text: str) -> str | Failure:
    """What a reply says after its reasoning.

    Args:
        text: the whole reply.

    Returns:
        The text after the last mark that ends reasoning, and of channels the last final one; all of it where there is
        no reasoning. It may be blank. `truncated` where reasoning does not end.
    """
    if frame := _FRAME.match(text):
        return final_part(text[frame.end() :]) if frame["open"] is None else _unfinished(text, frame[0].strip())
    if bare := _BARE.match(text):
        ends = [found.end() for found in _BARE_FINAL.finditer(text)]
        return final_part(text[ends[-1] :]) if ends else _unfinished(text, bare[0].strip())
    plain = _plain(text)
    if not _MARK.search(plain):
        return text
    objects = list(_objects(plain))
    marks = sorted(_marks(plain, objects), key=lambda mark: mark.start)
    if any(mark.channel for mark in marks):
        return _final_channel(text, plain, [mark for mark in marks if mark.channel], objects)
    end = len(text)
    while len(marks) > 1 and _is_empty(plain, marks[-2], marks[-1], end):
        end = marks[-2].start
        del marks[-2:]
    ended = {mark.name: mark.start for mark in marks if mark.closes}  # where the last mark of a name ends something
    start, opened = 0, list[_Mark]()
    for mark in marks:
        if mark.closes and not mark.known:
            at = next((k for k, one in enumerate(opened) if one.name == mark.name), None)
            begun = None if at is None else opened[at]
            if begun is None and (opened or not (mark.reasoning or mark.alone)):
                continue  # of something else; where nothing is open, the template began the reasoning
            del opened[at or 0 :]
            if not opened and not (begun and _is_note(plain, start, begun, mark.start, objects)):
                start = mark.end
        elif opened and not mark.closes and mark.led and _FINAL.search(mark.name):
            if not mark.reasoning and all(one.kind == mark.kind != "tag" for one in opened):
                start, opened = mark.end, []
        elif _begins(plain, mark, ended.get(mark.name, 0) > mark.start, [one.name for one in opened]):
            opened.append(mark)
    if opened and not _is_note(plain, start, opened[0], len(plain), objects):
        return _unfinished(text, text[opened[0].start : opened[0].end])
    return text[start:end]


def opened_reasoning(prompt: str) -> str:
    """The end of a rendered prompt in which its chat template opens the reasoning of the reply; else "".

    It is put in front of the reply: `final_part(opened_reasoning(prompt) + reply)`.

    Args:
        prompt: as the model reads it, with its control tokens.
    """
    plain = _plain(prompt[-400:])
    marks = [mark for mark in _marks(plain, []) if mark.name not in ("message", "start", "")]
    last = marks[-1] if marks else None
    if last is None or last.closes or not last.reasoning or last.channel == "final" or not (last.led or last.channel):
        return ""
    rest = _MESSAGE.sub("", plain[last.end :], count=1)
    return "" if rest.strip() else prompt[-400:][last.start :]


def _plain(text: str) -> str:
    """A text of the same length with marks in one notation, and with those in code blanked out."""
    for spelled, mark in _SPELLED.items():
        text = text.replace(spelled, mark)

    def tag(found: re.Match[str]) -> str:
        begins = "</" if found[1] == r"\end{" else "<"
        return begins.rjust(len(found[1]), "<") + found[2] + ">" * len(found[3])

    text = _BRACED.sub(tag, text)
    return _without_code(text.translate(_SAME))


def _is_empty(plain: str, begun: _Mark, ended: _Mark, end: int) -> bool:
    """Whether two marks enclose no text and end a reply that has other text."""
    between, behind = plain[begun.end : ended.start], plain[ended.end : end]
    same = begun.reasoning and not begun.closes and ended.closes and begun.name == ended.name
    return same and not between.strip() and not behind.strip() and bool(plain[: begun.start].strip())


def _unfinished(text: str, mark: str) -> Failure:
    return Failure("truncated", f"the reply ends while it thinks, {mark[:60]!r} has no end: {text[-80:]!r}")


def _final_channel(text: str, plain: str, channels: list[_Mark], objects: list[tuple[int, int]]) -> str | Failure:
    """The last message of the channel `final`; without one, what follows the end of the last message."""
    last = channels[-1]
    final = next((mark for mark in reversed(channels) if mark.channel == "final"), None)
    start = (final or last).end
    if final:
        start += len(_MESSAGE.match(plain, start)[0])  # type: ignore[index]  # it matches nothing, too
    ends = (m for m in _MESSAGE_ENDS.finditer(plain, start) if not _within(m.start(), objects))
    end = next(ends, None)
    if final:
        return final_part(text[start : end.start() if end else len(text)])
    if end is None or _ROLE.match(plain, end.end()):
        return _unfinished(text, text[last.start : last.end])
    return final_part(text[end.end() :])


def _begins(plain: str, mark: _Mark, ends: bool, opened: list[str]) -> bool:
    """Whether reasoning begins at a mark, where that of these names is open already."""
    if mark.closes or mark.known or not mark.led:
        return False
    if mark.reasoning or opened:
        return mark.reasoning and mark.name not in opened
    first = not plain[: min(mark.start, 100)].strip() and not plain[: mark.start].strip()
    if mark.kind == "square" and not ends:
        return first and mark.alone and mark.written.isupper() and plain.find("{", mark.end) >= 0
    return ends or first or mark.alone


def _is_note(plain: str, start: int, begun: _Mark, end: int, objects: list[tuple[int, int]]) -> bool:
    """Whether an unknown mark with a text up to `end` is only a note behind the answer, or behind everything."""
    if begun.reasoning:
        return False
    inside = plain[begun.end : end]
    at = bisect_right(objects, begun.start, key=lambda span: span[0]) - 1
    answered = at >= 0 and start <= objects[at][0]
    return not inside.strip() or (answered and "{" not in inside)


def _marks(plain: str, objects: list[tuple[int, int]]) -> Iterator[_Mark]:
    """The marks of a reply, in order, but for those in JSON objects and those that are only mentioned."""
    blocks = 0
    for found in _MARK.finditer(plain):
        start, end = found.span()
        if _within(start, objects) or _MENTIONED.search(plain, max(start - 12, 0), start) or _NAMED.match(plain, end):
            continue
        written = next(name for name in found.group("role", "pipe", "half", "tag", "square", "line", "words") if name)
        written = _WRITTEN.get(written, written)
        if found["words"] and _is_heading(found["lead"], written, found["tail"].rstrip()):
            continue
        words = [word for word in re.split(r"[\W_]+", _GLUED.sub(r"\1 ", written.casefold())) if word]
        name = "_".join(word for word in words if word not in _PLACES | _CLOSES)
        closes = bool("/" in written or found["half"] or _CLOSES.intersection(words))
        kind = "square" if found["square"] else "pipe" if found["pipe"] or found["role"] else "tag"
        if found["words"]:
            kind = found["lead"].strip()
            closes = closes or bool(re.search(r"[^/\s]\s?/\Z", kind))
        before = plain[max(plain.rfind("\n", 0, start) + 1, start - 200) : start].strip(" \t*_#<")
        line = plain.find("\n", end, end + 200)
        after = plain[end : line if line >= 0 else end + 200].strip(" \t*_>")
        if before and (not before.strip("> ") or _SAID.match(plain, end)):
            continue  # quoted, or in a sentence about it
        led = not before or found["role"] is not None or before[-1] in ">]}.!?:;…。！？："
        channel = (found["channel"] or "").strip().casefold()
        if channel and not (led or before.endswith("assistant") or re.match(r"\s*(?:<\||\n)", plain[end : end + 20])):
            continue
        name = re.sub(r"thoughts?|thinking", "think", name)
        yield _Mark(start, end, written, name, closes, kind, channel, led, not before and not after)
        if found["words"] and not closes and blocks < _MAX_BLOCKS:
            blocks += 1
            if place := _end_of_block(plain, end, kind, found["tail"]):
                yield _Mark(*place, kind, name, True, kind, "", True, True)


def _is_heading(lead: str, words: str, tail: str) -> bool:
    """Whether a line of words about reasoning, with punctuation around, is a heading or a label of Markdown."""
    if tail.endswith("/>") or lead.strip() == "/":
        return True  # an empty element, or a switch such as /no_think
    if words.isupper() and re.match(r"(?:BEGIN|START|END|STOP)\b", words):
        return False
    if not lead:
        return not (words.casefold() == "thinking" and tail in ("...", "…"))
    return bool(_HEADING.fullmatch(lead) or (_RULE.fullmatch(lead) and (":" in tail or not _STRONG.search(words))))


def _end_of_block(plain: str, start: int, lead: str, tail: str) -> tuple[int, int] | None:
    """Where a block ends that a line with this punctuation began: at its like, or at the end of a comment."""
    if lead in _CLOSING:
        place = -1 if _CLOSING[lead] in tail else plain.find(_CLOSING[lead], start)
        return None if place < 0 else (place, place + len(_CLOSING[lead]))
    if len(lead) < 2 or (tail.strip() and "=" not in tail):
        return None
    depth = 1
    for line in re.finditer(rf"(?m)^[ \t]*{re.escape(lead)}[ \t]*(\w*)[ \t]*$", plain[start:]):
        depth += 1 if line[1] else -1
        if depth == 0:
            return start + line.start(), start + line.end()
    return None


def _within(place: int, spans: list[tuple[int, int]]) -> bool:
    """Whether a place is in one of several spans, which are in order."""
    at = bisect_right(spans, place, key=lambda span: span[0]) - 1
    return at >= 0 and place < spans[at][1]


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """Where JSON objects are in a text; what is inside of them is not looked at."""
    return ((start, end) for start, end, value in _found(text) if not isinstance(value, Failure))


def _found(text: str) -> Iterator[tuple[int, int, Any]]:
    """Where JSON objects are in a text, and their values: a `Failure` of one that is not JSON."""
    position = broken = 0
    while broken < BROKEN and (begin := _BEGINS.search(text, position)):
        end = _end(text, begin.start())
        value = None if end is None else _read(text[begin.start() : end])
        broken += end is None or isinstance(value, Failure)
        if end is not None:
            yield begin.start(), end, value
        position = end or begin.end()


def _without_code(text: str) -> str:
    """A text of the same length without the marks in code that has no braces: they are shown, not used."""
    if "`" not in text and "~~~" not in text:
        return text
    out: list[str] = []
    block: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        opens = line.lstrip()[:3]
        if fence:
            block.append(line)
            if line.strip() == fence:
                kept = "{" in "".join(block) or _REASONING.search(block[0])
                out += block if kept else [_blank(one) for one in block]
                fence, block = "", []
        elif opens in ("```", "~~~"):
            fence, block = opens, [line]
        else:
            out.append(_INLINE_CODE.sub(lambda code: _blank(code[0]), line))
    return "".join([*out, *block])


def _blank(code: str) -> str:
    return re.sub(r"[^\n]", " ", code)


def json_objects(text: str, material: Sequence[str] = ()) -> list[Any] | Failure:
    """The JSON objects of a reply after its reasoning, in order, without those that it quotes.

    The parts of an object that is not JSON are not read as the answer. Errors that can mean one
    thing only are repaired: a plus sign before a number, a comma before a closing bracket, a backslash that escapes
    nothing, line breaks inside a string.

    Args:
        text: the whole reply.
        material: as of `own_part`.

    Returns:
        At least one value; one that is not JSON is a `Failure`, `not_json`. Or `not_json`, where there is none or
        the last one does not end.
    """
    final: str | Failure = text
    try:
        whole = [_parsed(text)]
    except (ValueError, RecursionError):
        whole, final = [], final_part(text)
    if isinstance(final, Failure):
        return Failure("not_json", final.detail)
    own = _unquoted(final, material, whole)
    if whole and own == text:
        return whole
    found: list[Any] = []
    position = 0
    while start := _BEGINS.search(own, position):
        end = _end(own, start.start())
        if end is None:
            return Failure("not_json", f"an object does not end: {own[start.start() :][:80]!r} ... {own[-40:]!r}")
        found.append(_read(own[start.start() : end]))
        position = end
    why = "there is no JSON object" if own == final else "every JSON object is a quotation from the material"
    return found or Failure("not_json", f"{why}: {final[:80]!r}")


def own_part(text: str, material: Sequence[str] = ()) -> str | Failure:
    """The text of a reply after its reasoning, without the judgements that it quotes.

    Args:
        text: the whole reply.
        material: what the reply is about, each text as a whole: a question, a solution, a task.

    Returns:
        The text without each JSON object and marked answer that occurs in the material, unless it is the whole reply
        and may be equal by chance (see the module); or as `final_part`.
    """
    final = final_part(text)
    return final if isinstance(final, Failure) else _unquoted(final, material)


def _unquoted(text: str, material: Sequence[str], whole: Sequence[Any] = ()) -> str:
    """A text, whose JSON value is `whole` if it is one, without the objects and marked answers of the material."""
    if not material:
        return text
    parts = [(0, len(text), whole[0])] if whole else _found(text)
    spans = {(start, end): value for start, end, value in parts}
    objects = list(spans)
    marks = (mark for mark in _ANSWER_MARK.finditer(text) if not _within(mark.start(), objects))
    spans |= {mark.span(): mark[0] for mark in marks if "{" not in mark[0] or mark[0][0] == "\\"}
    read = "\n".join(material).casefold()
    if not read.isascii() or "\\u" in read or "&" in read:
        read = _unescaped(read)
    said = {span: _unescaped(text[slice(*span)]) for span in sorted(spans)}
    own = {span: _words(one) for span, one in said.items() if all(word[0] in read for word in _LETTERS.finditer(one))}
    if not own:
        return text  # the usual case, found quickly: it has a word of its own
    plain = [_unescaped(one) for one in material]
    given = [_words(one) for one in plain]
    joined = [_joined(words) for words in given]
    objects_given = {members for words in given for members in _objects_in(words)}
    quoted = []
    for span, words in own.items():
        members = list(_objects_in(words))[-1:] if isinstance(spans[span], dict) else []
        same = any(_joined(words) in one for one in joined)
        if same or any(one and one <= other for one in members for other in objects_given):
            quoted.append(span)
    starts, ends = [0, *(end for _, end in quoted)], [*(start for start, _ in quoted), len(text)]
    rest = "".join(text[start:end] for start, end in zip(starts, ends, strict=True))
    alone = len(quoted) == 1 and _ONLY_FENCE.fullmatch(rest) and not _has_long_text(text[slice(*quoted[0])])
    return text if alone else rest


def _unescaped(text: str) -> str:
    """A text without the escapes of JSON and HTML and with one form of each character, in lower case."""
    if "&" in text:
        text = html.unescape(text)
    if "\\" in text:
        text = _CODE_POINT.sub(lambda found: chr(int(found[1], 16)), text) if "\\u" in text else text
        text = _BLANK_ESCAPE.sub(" ", text).replace("\\", "")
    return (text if text.isascii() else unicodedata.normalize("NFKC", text).replace("\u2212", "-")).casefold()


def _words(text: str) -> list[str]:
    """The words, numbers, brackets and commas of a text."""
    return _WORD.findall(_ZEROS.sub("", text))


def _joined(words: list[str]) -> str:
    return f" {' '.join(word for word in words if word != ',')} "


def _objects_in(words: list[str]) -> Iterator[frozenset[str]]:
    """The members of each `{...}`, whose order makes no difference; those of inner ones first."""
    opened = [[""]]
    for word in words:
        if word in ("{", "["):
            opened.append([""])
        elif word == ",":
            opened[-1].append("")
        elif word not in ("}", "]"):
            opened[-1][-1] += f" {word}"
        elif len(opened) > 1:
            members: Any = [one for one in opened.pop() if one]
            if word == "}":
                members = frozenset(members)
                yield members
            opened[-1][-1] += f" {word}{hash(members if word == '}' else tuple(members))}"


def _has_long_text(code: str) -> bool:
    """Whether JSON holds a text of more than `CHANCE` characters other than a key."""
    strings = _STRING.finditer(code)
    return any(len(one[0]) > CHANCE + 2 and not code[one.end() :].lstrip().startswith(":") for one in strings)


def _end(text: str, start: int) -> int | None:
    """Where the brackets that open at `start` are all closed; None where they are not."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return None


def _read(text: str) -> Any:
    """JSON, unchanged or repaired; else the error and its place."""
    with suppress(ValueError, RecursionError):
        return _parsed(text)
    repaired = _repaired(text)
    try:
        return _parsed(repaired)
    except json.JSONDecodeError as error:
        before, after = repaired[max(error.pos - 40, 0) : error.pos], repaired[error.pos : error.pos + 30]
        return Failure("not_json", f"{error.msg} behind {before!r}, at {after!r}")
    except (ValueError, RecursionError) as error:
        return Failure("not_json", f"{str(error)[:120]}: {text[:80]!r}")


def _parsed(text: str) -> Any:
    return json.loads(text, strict=False, object_pairs_hook=_once, parse_constant=_refuse)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a key that is there twice could mean either value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} is there twice, with {[v for n, v in pairs if n == twice]!r:.80}")
    return found


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is not a number of JSON")


def _repaired(text: str) -> str:
    parts, at = [], 0
    for string in _STRING.finditer(text):
        parts += [_between(text[at : string.start()]), _ESCAPE.sub(lambda m: m[0] if m[1] else r"\\", string[0])]
        at = string.end()
    return "".join([*parts, _between(text[at:])])


def _between(text: str) -> str:
    """The text between strings, without plus signs before numbers and commas before closing brackets."""
    return re.sub(r",(?=\s*[}\]])", "", re.sub(r"(?<=:)(\s*)\+(?=\d)", r"\1", text))
