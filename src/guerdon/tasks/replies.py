r"""The replies of judges, read by one rule: the last JSON object with the asked keys behind the reasoning.

    last_object('<think>{"score": 4}</think>{"score": 5}', ["score"])            # {"score": 5}
    last_object('<think>maybe {"score": 4}', ["score"])                          # Failure('truncated', ...)
    last_object('He wrote {"score": 9}.', ["score"], ['x = 1 { "score":9 }'])    # Failure('quoted', ...)
    behind_reasoning("<think>maybe 40</think> 85")                               # " 85"

The reasoning ends at its last closing mark. Marks are `<think>` and its like in other brackets (`[THINK]`, `◁think▷`,
`<|begin_of_thought|>`), with the names of `_NAME`, and the control tokens of single models (`_CLOSING`, `_OPENING`). A
mark inside a JSON object is text. So is an opening mark in the middle of a sentence; reasoning that begins and does not
end is `truncated`.

A JSON object or a marked answer that occurs in the material (the question, the solution, the task) is a quotation and
no answer, or a solution could bring its own judgement. It may equal one of the material by chance: it counts where the
reply is nothing else and it holds no text of more than 20 characters.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import Any

from guerdon.types import Failure

MAX_BROKEN = 1000  # objects that are not JSON, after which no more are read

_SAME = str.maketrans("＜＞／｜▁［］【】◁▷", "<>/|_[][]<>")  # other spellings of the brackets of a mark
_NAME = r"[\w:.-]{0,20}?(?:think|thought|reason|analy[sz]|scratch|reflect|deliberat|monolog|work|思)[\w:.-]{0,80}"
_BRACKET_CLOSED = r"\s?(?:\\?[%#?|-]{0,2}[>\]})»』]+|%%|&gt;|&#62;)"
_CLOSING = "|".join(
    (
        rf"(?:^|[^\w\s$)])[ \t]?(?:/|\b(?:end|done)(?:[ _]of)?[ _{{]?) ?{_NAME}(?:{_BRACKET_CLOSED})?",  # </think>
        rf"[^\w\s]{_NAME}(?<=[:_-]end){_BRACKET_CLOSED}",  # <|think_end|>
        r"<channel\|>",  # Gemma
        r"<unused95>",  # MedGemma
        r"<\|inner_suffix\|>",  # Apertus
        r"<\|im_start\|>answer",  # s1
        r"<\|begin_of_solution\|>",  # Sky-T1
        r"assistant<\|end_header_id\|>",  # Llama: a turn that follows one of thinking
        r"<\|channel\|>final(?: ?<\|constrain\|>\w+)?<\|message\|>",  # gpt-oss
        r"assistantfinal",  # gpt-oss without its tokens
    )
)
_SENTENCE_BEGINS = r"(?:(?<![^\n.!?>}\]\ufeff])|(?<=[.!?>}\]] ))"
_BRACKET_OPENS = r"(?:<{1,2}|\[(?=think|scratch|思)|\{|«|『|&lt;|&#60;|\\<|\\begin\{)[%#?|]?\s?"
_OPENING = "|".join(
    (
        rf"{_SENTENCE_BEGINS}{_BRACKET_OPENS}(?!end|done|{_NAME}(?<=[:_-]end))"
        rf"{_NAME}(?:\s[^<>{{}}\n]{{1,200}})?{_BRACKET_CLOSED}(?<!/>)",  # <think>, <think effort="high">, not <think/>
        r"<\|channel>thought",  # Gemma
        r"<unused94>",  # MedGemma
        r"<\|inner_prefix\|>",  # Apertus
        r"<\|im_start\|>think",  # s1
        r"<\|start_header_id\|>thinking",  # Llama
        r"<\|channel\|>(?:analysis|commentary)",  # gpt-oss
        r"(?-i:\A(?:analysis|commentary)(?=[A-Z]))",  # gpt-oss without its tokens
    )
)
_MARK = re.compile(rf"(?P<closing>{_CLOSING})|(?P<opening>{_OPENING})", re.IGNORECASE | re.MULTILINE)
_TAKEN_FOR_OTHERS = ("\u0130", "\u0131", "\u017f")  # equal to i, i and s in any case, but not so in lower case
_NEEDED = (  # one of these is in each text with a mark, in lower case,
    *_TAKEN_FOR_OTHERS, "think", "thought", "reason", "analy", "scratch", "reflect", "deliberat", "monolog", "work",
    "思", "channel", "unused9", "inner_", "im_start", "begin_of_solution", "header_id", "assistantfinal", "commentary",
)  # fmt: skip
_BEGINNINGS = (  # and one of these
    *_TAKEN_FOR_OTHERS, "<", "[", "{", "/", "end", "done", "\u00ab", "\u300e", "&", "assistantfinal", "analysis",
    "commentary",
)  # fmt: skip
_OBJECT = re.compile(r'\{\s*"')
_ANSWER_MARK = re.compile(r"<answer>[^<{]*</answer>|\\boxed\{[^{}]*\}|\[\[[^\[\]{\n]*\]\]", re.IGNORECASE)
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]+|[{}\[\]]")
_LONG_TEXT = re.compile(r'"[^"]{21,}"(?!\s*:)')
_ONLY_FENCE = re.compile(r"[\s\ufeff]*(?:[`~]{3,}\w*)?[\s`~]*")


def _marks_in(text: str) -> list[re.Match[str]]:
    """The marks at which reasoning begins or ends, in order."""
    plain = text if text.isascii() else text.translate(_SAME)
    lower = plain.lower()
    may_be_marked = any(part in lower for part in _NEEDED) and any(part in lower for part in _BEGINNINGS)
    return list(_MARK.finditer(plain)) if may_be_marked else []


def behind_reasoning(text: str) -> str | Failure:
    """The text of a reply behind its reasoning; all of it where there is none.

    Args:
        text: the whole reply.

    Returns:
        The text, which may be blank; `truncated` where reasoning begins and does not end.
    """
    marks = _marks_in(text)
    if not marks:
        return text
    objects = [(start, end) for start, end, value in _objects(text) if not isinstance(value, Failure)]
    marks = [mark for mark in marks if not _within(mark.start(), objects)]
    start = max((mark.end() for mark in marks if mark["closing"]), default=0)
    for mark in marks:
        if mark["opening"] and mark.start() >= start:
            return Failure("truncated", f"the reasoning behind {mark['opening'][:60]!r} does not end: {text[-80:]!r}")
    return text[start:]


def marks_reasoning(text: str) -> bool:
    """Whether a text is a mark of reasoning and nothing else, such as `</think>`."""
    return _MARK.fullmatch(text.translate(_SAME)) is not None


def opened_reasoning(prompt: str) -> str:
    """The end of a rendered prompt in which its chat template opens the reasoning of the reply; else "".

    It is put in front of the reply: `behind_reasoning(opened_reasoning(prompt) + reply)`.

    Args:
        prompt: as the model reads it, with its control tokens.
    """
    end = prompt[-400:]
    marks = list(_MARK.finditer(end.translate(_SAME)))
    if not marks or not marks[-1]["opening"]:
        return ""
    behind = end[marks[-1].end() :]
    for token in ("<|message|>", "<|end_header_id|>"):
        behind = behind.removeprefix(token)
    return "" if behind.strip() else end[marks[-1].start() :]


def last_object(text: str, keys: Collection[str], material: Sequence[str] = ()) -> dict[str, Any] | Failure:
    """The last JSON object of a reply, behind its reasoning, that has one of the asked keys.

    Where the text is not JSON as it is, what can mean one thing only is repaired: a plus sign before a number, a comma
    before a closing bracket, a backslash that escapes nothing. Line breaks in strings are read.

    Args:
        text: the whole reply.
        keys: that were asked for; case and blanks around them make no difference.
        material: what the reply is about, each text as a whole: a question, a solution, a task.

    Returns:
        The object; or `truncated`: the reasoning or the last object does not end, `not_json`: there is no JSON object
        or the last one is broken, `bad_schema`: none has one of the keys, `quoted`: all are of the material.
    """
    final = behind_reasoning(text)
    if isinstance(final, Failure):
        return final
    found = _last_object(final, keys, material)
    if isinstance(found, Failure):
        found = _last_object(_repaired(final), keys, material)
    return found


def own_part(text: str, material: Sequence[str] = ()) -> str | Failure:
    """The text of a reply behind its reasoning, without the JSON objects and marked answers that it quotes.

    Args:
        text: the whole reply.
        material: see `last_object`.

    Returns:
        The text; or as `behind_reasoning`.
    """
    final = behind_reasoning(text)
    return final if isinstance(final, Failure) else _without_quotations(final, material)


def _last_object(text: str, keys: Collection[str], material: Sequence[str]) -> dict[str, Any] | Failure:
    own = _without_quotations(text, material)
    asked = {key.casefold() for key in keys}
    key_of_answer = re.compile("|".join(rf'"\s*{re.escape(json.dumps(key)[1:-1])}\s*"' for key in keys), re.IGNORECASE)
    answer: dict[str, Any] | None = None
    broken: Failure | None = None
    other: Failure | None = None
    for start, _, value in _objects(own):
        if isinstance(value, Failure):
            if value.reason == "truncated" or key_of_answer.search(own, start):
                answer, broken = None, value  # it may have been the better answer
            broken = broken or value
        elif asked & {key.strip().casefold() for key in value}:
            answer, broken = value, None
        else:
            other = Failure("bad_schema", f"an object without the keys {', '.join(keys)[:80]}: {str(value)[:80]!r}")
    if own != text:
        nothing = Failure("quoted", f"every JSON object is a quotation from the material: {text[:80]!r}")
    else:
        nothing = Failure("not_json", f"there is no JSON object: {text[:80]!r}")
    return answer or broken or other or nothing


def _objects(text: str) -> Iterator[tuple[int, int, dict[str, Any] | Failure]]:
    """Start, end and value of each JSON object in a text that is in no other; a `Failure` for one that is broken."""
    decoder = json.JSONDecoder(strict=False, object_pairs_hook=_once)
    last = len(text.rstrip())
    position = failures = 0
    while failures < MAX_BROKEN and (begin := _OBJECT.search(text, position)):
        start = begin.start()
        shown = repr(text[start : start + 80])
        try:
            value, position = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            failures += 1
            position = max(error.pos, start + 1)  # what was read up to there belongs to the broken object
            if error.pos >= last or error.msg.startswith("Unterminated string"):
                value = Failure("truncated", f"an object does not end: {shown} ... {text[last - 40 : last]!r}")
            else:
                around = text[max(error.pos - 40, start) : error.pos + 30]
                value = Failure("not_json", f"{error.msg}, in {around!r} of {shown}")
        except (ValueError, RecursionError) as error:  # a key twice, a number too long, too many brackets
            yield start, len(text), Failure("not_json", f"{str(error)[:120]}: {shown}")
            return
        yield start, position, value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a key that is there twice could mean either value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return found


def _repaired(text: str) -> str:
    text = re.sub(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\', lambda found: found[0] if found[1] else r"\\", text)
    text = re.sub(r",(?=\s*[}\]])", "", text)
    return re.sub(r'(":\s*)\+(?=\d)', r"\1", text)


def _within(place: int, spans: list[tuple[int, int]]) -> bool:
    """Whether a place is in one of several spans, which are in order."""
    before = bisect_right(spans, place, key=lambda span: span[0])
    return before > 0 and place < spans[before - 1][1]


def _without_quotations(text: str, material: Sequence[str]) -> str:
    """A text without the JSON objects and marked answers that occur in the material."""
    if not material:
        return text
    given = [_words(one) for one in material]
    objects = [(start, end) for start, end, value in _objects(text) if not isinstance(value, Failure)]
    answers = [mark.span() for mark in _ANSWER_MARK.finditer(text) if not _within(mark.start(), objects)]
    kept, at = "", 0
    for start, end in sorted([*objects, *answers]):
        words = _words(text[start:end])
        if not any(_has_together(one, words) for one in given):
            continue
        is_all = _ONLY_FENCE.fullmatch(text[:start] + text[end:])
        if is_all and not _LONG_TEXT.search(text[start:end]):
            return text
        kept += text[at:start]
        at = end
    return kept + text[at:]


def _words(text: str) -> list[str]:
    """Words, numbers and brackets, without what escapes, typography and layout change; 1.0 is 1."""
    plain = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), html.unescape(text))
    plain = re.sub(r"\\+[nrt]", " ", plain).replace("\\", "")
    plain = unicodedata.normalize("NFKC", plain).replace("\u2212", "-").casefold()
    return _WORD.findall(re.sub(r"(?<=\d)\.0+(?!\d)", "", plain))


def _has_together(given: list[str], words: list[str]) -> bool:
    """Whether words stand next to each other in a text, in any order: keys of a JSON object have none."""
    sums = list(accumulate(map(hash, given), initial=0))
    wanted = sum(map(hash, words))
    return any(end - start == wanted for start, end in zip(sums, sums[len(words) :], strict=False))
