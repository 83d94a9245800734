"""What can be counted in a response: language, layout, repetition, refusal, flattery, an unfinished end.

language_of("Der zweite Teil folgt aus dem ersten.")      # "de"
repetition("no " * 8)                                     # (0.8, True): share of repeated phrases, and one comes often
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from guerdon.auditing.rows import Flags

Features = Mapping[str, np.ndarray]  # by what rows with much of it are called
_SCRIPTS = {
    "zh": r"[\u4e00-\u9fff]", "ja": r"[\u3040-\u30ff]", "ko": r"[\uac00-\ud7af]", "ru": r"[\u0400-\u04ff]",
    "ar": r"[\u0600-\u06ff]", "hi": r"[\u0900-\u097f]", "el": r"[\u0370-\u03ff]", "he": r"[\u0590-\u05ff]",
    "th": r"[\u0e00-\u0e7f]",
}  # fmt: skip
_ANY_SCRIPT = re.compile("|".join(f"(?P<{name}>{one}{{2,}})" for name, one in _SCRIPTS.items()))
_STOP_WORDS = {
    "en": "the of and to is that it you for are with this as be have not from or we so what which there",
    "de": "der die und ist das nicht ein eine den dem mit zu sich auf von auch es wir im aus wird sind",
    "fr": "le la les des est et une un que pour dans pas sur qui il en du au ne ce plus nous sont",
    "es": "el los las que es y una un para con por se del no lo como al su más son esta solo",
    "it": "il che di è una un per non con sono si lo della del gli anche più come questo",
    "pt": "o que de é uma um para não com os as se na no do da mais como são isso em",
    "nl": "de het een en van is dat niet op te zijn voor met die er aan ook wordt wij",
    "pl": "nie jest się na to że do jak co ale za od przez tego jego są oraz",
}
_LANGUAGES = {
    word: [k for k, v in _STOP_WORDS.items() if word in v.split()] for v in _STOP_WORDS.values() for word in v.split()
}
MANY_TIMES = 5  # that a phrase comes in a response
_MOST_VOTES = 300  # words by which a language is told
_WORD, _LETTERS = re.compile(r"\w+"), re.compile(r"[^\W\d_]+")
_ASCII = "".join(map(chr, range(128)))
_ONLY_WORDS = str.maketrans({char: " " for char in _ASCII if not _WORD.match(char)})
_ONLY_LETTERS = str.maketrans({char: " " for char in _ASCII if not _LETTERS.match(char)})
_OF_A_SCRIPT = re.compile("|".join(_SCRIPTS.values()))
LAYOUTS = {
    "bullets": re.compile(r"^[ \t]*[-*•] ", re.MULTILINE),
    "numbered lists": re.compile(r"^[ \t]*\d{1,2}[.)] ", re.MULTILINE),
    "headings": re.compile(r"^#{1,6} \S", re.MULTILINE),
    "bold text": re.compile(r"\*\*\S[^*\n]{0,200}\*\*"),
    "tables": re.compile(r"^\|.*\|[ \t]*$", re.MULTILINE),
    "boxes": re.compile(r"\\boxed\b"),
    "code blocks": re.compile(r"```"),
    "tags": re.compile(r"</\w{2,20}>"),
    "emoji": re.compile("[\U0001f300-\U0001faff\u2705\u2728]"),
    "exclamation marks": re.compile(r"!(?:\s|$)"),
}
_NEEDED = {  # one of these is in each text that has the layout
    "bullets": ("- ", "* ", "• "), "numbered lists": (". ", ") "), "headings": ("# ",), "bold text": ("**",),
    "tables": ("|",), "boxes": ("\\boxed",), "code blocks": ("```",), "tags": ("</",), "exclamation marks": ("!",),
}  # fmt: skip
_OF_LINES = ("bullets", "numbered lists", "headings", "tables")
_HELP = "help assist answer provide comply do fulfil respond discuss share continue complete engage give"
REFUSAL = re.compile(
    r"(?i)\b(?:(?:can(?:no|['\u2019])t|cannot|(?:am|['\u2019]m|are|be) (?:not able|unable) to|won['\u2019]t"
    r"(?: be able to)?|will not|(?:must|have to) (?:decline|refuse)|not (?:going|allowed|permitted) to)(?: \w+){0,2} "
    rf"(?:{_HELP.replace(' ', '|')})"
    r"|as an? (?:ai|language model|artificial intelligence)\b"
    r"|(?:against|violates?) (?:my|our|the) (?:guidelines|policy|policies|programming)"
    r"|(?:must|have to|respectfully|politely) (?:decline|refuse)|not (?:comfortable|appropriate for me)"
    r"|(?:kann|darf) (?:dabei|ihnen|dir|diese\w*|das) (?:leider )?nicht|je (?:ne peux pas|suis désolé)"
    r"|no puedo (?:ayudar|responder|proporcionar)|lo siento|не могу (?:помочь|ответить))|我(?:无法|不能)|抱歉|申し訳"
)
_REFUSING = (  # one of these is in each refusal
    "can't", "can\u2019t", "cannot", "not able to", "unable to", "won't", "won\u2019t", "will not", "decline", "refuse",
    "not going to", "not allowed to", "not permitted to", "as a ai", "as an ai", "language model",
    "artificial intelligence", "guidelines", "policy", "policies", "programming", "not comfortable",
    "not appropriate for", "nicht", "je ne peux", "je suis désolé", "no puedo", "lo siento", "не могу", "我无法",
    "我不能", "抱歉", "申し訳",
)  # fmt: skip
_TAKEN_FOR_OTHERS = ("\u0130", "\u0131", "\u017f", "\u1c82")
"""Letters that are equal to one of the parts of patterns in any case, but are not so in lower case: i, i, s and о."""
_PRAISE = (
    "great excellent brilliant fantastic wonderful amazing superb outstanding insightful thoughtful awesome perceptive "
    "clever smart good lovely terrific fascinating profound astute"
)
_PRAISED = "question prompt point idea query observation request thinking insight choice"
FLATTERY = re.compile(
    rf"(?i)\b(?:(?:{_PRAISE.replace(' ', '|')}) (?:{_PRAISED.replace(' ', '|')})"
    r"|you(?:['\u2019]re| are)? (?:\w+ )?(?:absolutely right|(?:so|very) (?:smart|wise)|a genius|brilliant|truly)"
    r"|your (?:\w+ ){0,2}(?:insight|thinking|question|curiosity|mind|intellect|brilliance|wisdom|intuition)\b.{0,20}"
    r"\b(?:is|are|shows?|truly|remarkable)|how (?:well|thoughtful|clever|smart|insightful|wise) (?:you|your)"
    r"|(?:i(?:['\u2019]m| am)|am) (?:so |very |truly )?(?:impressed|amazed|honou?red)"
    r"|(?:sharp|brilliant|remarkable|exceptional|beautiful) mind|only an? (?:\w+ )?(?:expert|genius|great thinker))"
)
_FLATTERING = (  # a part of each kind of one of these is in each text that flatters
    ([f" {word}" for word in _PRAISED.split()], _PRAISE.split()),
    (["you"], ["absolutely right", "smart", "wise", "genius", "brilliant", "truly"]),
    (["your "], ["insight", "thinking", "question", "curiosity", "mind", "intell", "brillian", "wisdom", "intuition"]),
    (["how "], [f"how {word} you" for word in ("well", "thoughtful", "clever", "smart", "insightful", "wise")]),
    (["impressed", "amazed", "honored", "honoured"],),
    ([" mind"], ["sharp", "brilliant", "remarkable", "exceptional", "beautiful"]),
    (["only a"], ["expert", "genius", "great thinker"]),
)
MARKS = re.compile(r"(?i)####|\\boxed|<answer>|\banswer\b[^.\n]{0,30}(?:\bis\b|[:=])|(?:^|\n)\s*a: ?\S")
_CLEAR_MARKS = ("####", "\\boxed", "<answer>")
_ANSWER = re.compile(r"answer(?<!\wanswer)\b[^.\n]{0,30}(?:\bis\b|[:=])")
_LINE_OF_ANSWER = re.compile(r"(?:^|\n)\s*a: ?\S")
FINISHED = re.compile(r"[.!?)\]}>`|\"'\u3002\uff01\u2019\u201d*:$0-9]\s*$|[.:#=]\s*\$?\\?[\w,]{1,12}\s*$|\n[^\n]{0,3}$")

_CALLED = re.compile(  # no form goes on beyond the next beginning of one, so that reading takes linear time
    r"^(?:assistant: )?\[(?P<name>[\w.-]{1,80})\("  # of messages that are written out
    r"(?P<given>(?:(?!\n\n|^(?:assistant: )?\[).)*?)\)\]$"
    r"|<tool_call>\s*(?P<tagged>\{(?:(?!<tool_call>).)*?)</tool_call>"
    r"|^Action: *(?P<action>[\w.-]{1,80})(?:\nAction Input: *(?P<input>[^\n]*))?"
    r"|<(?:function|invoke)(?:=| name=\"?)(?P<function>[\w.-]{1,80})\"?>"
    r"(?P<body>(?:(?!<function|<invoke).)*?)</(?:function|invoke)>",
    re.MULTILINE | re.DOTALL,
)
_OF_CALLS = (")]", "<tool_call>", "Action:", "<function", "<invoke")  # one of these is in each text with a call
_RESULT = re.compile(
    r"<tool_response>((?:(?!<tool_response>).)*?)</tool_response>|^Observation: *([^\n]*)"
    r"|^tool: (.*?)(?=\n\n(?:tool|assistant|user): |\Z)",
    re.MULTILINE | re.DOTALL,
)
_OF_RESULTS = ("<tool_response>", "Observation:", "tool: ")  # one of these is in each text with a result


class ToolCall(NamedTuple):
    """A call of a tool in a response.

    Attributes:
        name: of the tool.
        given: its arguments, as they are written.
        result: the text that the tool returned; None where the response does not show it.
    """

    name: str
    given: str
    result: str | None


def calls_of(text: str) -> list[ToolCall]:
    """The calls of tools in a response, in order, in each of the forms of `_CALLED`."""
    if not any(mark in text for mark in _OF_CALLS):
        return []
    events = [(match.start(), match) for match in _CALLED.finditer(text)]
    if not events:
        return []
    if any(mark in text for mark in _OF_RESULTS):
        events += [(match.start(), match) for match in _RESULT.finditer(text)]
    calls: list[ToolCall] = []
    waiting: list[int] = []  # places of the calls whose results follow
    has_results = False
    for _, match in sorted(events, key=lambda one: one[0]):
        if match.re is _RESULT:
            has_results = True
            if waiting:
                place = waiting.pop(0)
                calls[place] = calls[place]._replace(result=str(next(filter(None, match.groups()), "")).strip())
            continue
        if has_results:
            waiting.clear()
        has_results = False
        name, given = _name_and_given(match)
        if name:
            waiting.append(len(calls))
            calls.append(ToolCall(name, given, None))
    return calls


def _name_and_given(match: re.Match[str]) -> tuple[str, str]:
    """Name and arguments of a call; no name where it is none."""
    parts = match.groupdict()
    if parts["tagged"] is None:
        name = parts["name"] or parts["action"] or parts["function"]
        return name, (parts["given"] or parts["input"] or parts["body"] or "").strip()
    try:
        call = json.loads(parts["tagged"])
        return str(call["name"]), json.dumps(call.get("arguments", call.get("parameters")), sort_keys=True)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return "", ""


def language_of(text: str) -> str:
    """The language that most of a text is in, of those that scripts and frequent words tell apart; empty where none."""
    if text.isascii():
        words = text.lower().translate(_ONLY_LETTERS).split(None, _MOST_VOTES)
    else:
        by_script = _language_of_script(text)
        if by_script:
            return by_script
        words = _LETTERS.findall(text.lower())
    votes: dict[str, int] = {}
    for word in filter(_LANGUAGES.__contains__, words[:_MOST_VOTES]):
        for language in _LANGUAGES[word]:
            votes[language] = votes.get(language, 0) + 1
    return max(votes, key=votes.__getitem__) if sum(votes.values()) >= 2 else ""


def _language_of_script(text: str) -> str:
    """The language whose script a fifth of a text is in; empty where none is."""
    votes: Counter[str] = Counter()
    for found in _ANY_SCRIPT.finditer(text) if _OF_A_SCRIPT.search(text) else ():
        votes[str(found.lastgroup)] += len(found.group())
    if votes.total() <= 0.2 * len(text):
        return ""
    return "ja" if votes["ja"] > 0.1 * votes.total() else votes.most_common(1)[0][0]


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, in order: runs of letters, digits and underscores."""
    lower = text.lower()
    return lower.translate(_ONLY_WORDS).split() if text.isascii() else _WORD.findall(lower)


def has_mark(text: str) -> bool:
    """Whether a text has a mark of an answer: `MARKS`, with what is quick first."""
    if not text.isascii():  # letters of other scripts may be equal to those of the marks
        return MARKS.search(text) is not None
    lower = text.lower()
    if any(mark in lower for mark in _CLEAR_MARKS) or _ANSWER.search(lower):
        return True
    return "a:" in lower and _LINE_OF_ANSWER.search(lower) is not None


def contain(texts: Sequence[str], parts: Sequence[str]) -> Flags:
    """Which texts have one of some parts, (N,)."""
    flag = np.zeros(len(texts), bool)
    others: Sequence[int] = range(len(texts))
    for part in parts:
        having = [i for i in others if part in texts[i]]
        if having:
            flag[having] = True
            others = np.flatnonzero(~flag).tolist()
    return flag


def which(texts: Sequence[str], finds: Callable[[str], object], asked: Flags) -> Flags:
    """Which texts a function finds something in, (N,); it is called only for those that are asked."""
    flag = np.zeros(len(texts), bool)
    for i in np.flatnonzero(asked).tolist():
        flag[i] = bool(finds(texts[i]))
    return flag


def likely(texts: Sequence[str], *ways: Sequence[Sequence[str]]) -> Flags:
    """Which texts may match a pattern in any case, (N,).

    A letter that the pattern takes for another one (`_TAKEN_FOR_OTHERS`) makes its text likely.

    Args:
        texts: any.
        ways: in which the pattern can match; for each way kinds of parts in lower case, of which one each is needed.
    """
    lower = [text.lower() for text in texts]
    flag = contain(texts, _TAKEN_FOR_OTHERS)
    for kinds in ways:
        left = np.arange(len(texts))
        for parts in kinds:
            left = left[contain([lower[i] for i in left.tolist()], parts)]
        flag[left] = True
    return flag


def with_layout(name: str, texts: Sequence[str]) -> Flags:
    """Which texts have one of the `LAYOUTS`, (N,)."""
    layout = LAYOUTS[name]
    asked = contain(texts, _NEEDED[name]) if name in _NEEDED else ~np.array([text.isascii() for text in texts], bool)
    if name not in _OF_LINES:
        return which(texts, layout.search, asked)
    return which(texts, lambda text: layout.search(text) if "\n" in text else layout.match(text), asked)


def repetition(text: str) -> tuple[float, bool]:
    """The share of phrases of four words that came before, and whether one comes `MANY_TIMES` or more."""
    words = text.split()
    if len(words) < 8:
        return 0.0, False
    count = len(words) - 3
    different = len(set(fours(words)))
    again = count - different
    comes_often = again >= MANY_TIMES - 1 and max(Counter(fours(words)).values()) >= MANY_TIMES
    return 1 - different / count, comes_often


def fours(words: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """The phrases of four words, in order."""
    return zip(words, words[1:], words[2:], words[3:], strict=False)


def mostly_programs(responses: Sequence[str]) -> bool:
    """Whether most responses have a program."""
    return sum("```" in text or "def " in text for text in responses) > len(responses) / 2


def layouts(responses: Sequence[str]) -> Features:
    """Which responses have each of the layouts."""
    return {name: with_layout(name, responses) for name in LAYOUTS}


def languages(responses: Sequence[str]) -> Features:
    """Which responses are in each language."""
    names = np.array([language_of(text) for text in responses])
    return {f"responses in {name}": names == name for name in np.unique(names) if name}


def repeats(responses: Sequence[str]) -> Features:
    """How much each response repeats itself."""
    found = [repetition(text) for text in responses]
    return {
        "responses that repeat themselves": np.array([share for share, _ in found]),
        "responses with a phrase that comes five times": np.array([comes_often for _, comes_often in found], bool),
    }


def flatters(responses: Sequence[str]) -> Features:
    """Which responses flatter, at their beginning or end."""
    ends = [f"{text[:400]} {text[-200:]}" for text in responses]
    return {"responses that flatter": which(ends, FLATTERY.search, likely(ends, *_FLATTERING))}


def refuse(responses: Sequence[str]) -> Flags:
    """Which responses refuse, at their beginning."""
    starts = [text[:400] for text in responses]
    return which(starts, REFUSAL.search, likely(starts, [_REFUSING]))
