r"""Find the final answer in a response.

final_answer(r"so 6*7 = \boxed{42}.")                   # "42"
final_answers(r"\boxed{1} or \boxed{2}")                # ["1", "2"]
concluded("Therefore, the value is 12.")                # "12"
"""

from __future__ import annotations

import re

from guerdon.tasks.answer_text import normalized, outside_brackets, prose, undecorated
from guerdon.tasks.answer_words import choice_of, same_text
from guerdon.tasks.replies import behind_reasoning
from guerdon.tasks.units import CHANGING, UNIT_WORDS
from guerdon.types import Failure

_LONGEST = 2000  # characters of an answer worth reading
_BRACES = re.compile(
    r"(?P<box>\\\\?f?box(?:ed)?\s*\{)|\\\\?boxed(?:\s+|(?=[-+0-9]))\$?(?P<bare>[-+]?[0-9][0-9.,/]*|[B-HJ-Zb-z](?![A-Za-z0-9]))"
    r"|(?P<open>\{)|(?P<close>\})|\\.",
    re.DOTALL,
)
_HTML = re.compile(r"(?i)<(b|i|u|em|strong|p|span|div|h[1-6])(?: [^<>]{0,80})?>([^<>]{0,2000})</\1>")
_TAGS = re.compile(r"<(/?)answer>", re.IGNORECASE)
_HASHES = re.compile(r"####[ \t]*")
_ANSWER_IS = re.compile(
    r"(?i)\banswers?(?:[ \t]*[*_]{1,3})?(?:\s+(?:is|are|equals)\b|[ \t]*[:=])[ \t]*[*_]{0,3}[ \t]*:?\s*"
    r"(?:(?:therefore|thus|then|simply|just|indeed|exactly|clearly)\b[, \t]*)?"
)
_FINAL = re.compile(r"(?i)\bfinal answer(?:\s+is\b|[ \t]*[:=])[ \t]*:?\s*")
_HEADING = re.compile(  # "**Final Answer**", alone on its line or in front of mathematics
    r"(?im)^[ \t>#*_]*(?:the )?(?:final |my |correct )?answer[ \t*_.:]*+(?:\n\s*|(?=\\\[|\\\(|\$))"
)
_OPEN = re.compile(  # "I doubt that the answer is"
    r"(?i)(?:\b(?:doubt|whether|if|(?:un)?likely|unsure|unclear|suppose|assume|assuming|imagine|maybe|perhaps|possibly|unless"
    r"|probably|presumably|supposedly|(?:wrong|incorrect|false|mistake|error) to (?:say|think|claim|conclude|believe)"
    r"|(?:nobody|no one|none|never) (?:says?|said|thinks?|claims?|claimed)"
    r"|says|claims|thinks|believes|(?:said|claimed)(?= that)|wonder|hope|check|verify)"
    r"|\b(?:might|may|could|would) (?:think|say|believe|guess|expect|suspect)"
    r"|\b(?:false|wrong|untrue|incorrect)(?= that)"
    r"|(?:\bnot|n['\u2019]t) (?:sure|certain|think|believe|know|say|claim|mean|true|correct|right|the case))"
    r"(?: that| if| whether)?,?(?: the| my| our)?(?: final| correct)?\s*\Z"
)
_NOT_MINE = re.compile(
    r"(?i)\b(?:wrong|incorrect|false|common|naive|tempting|mistaken|their|his|her|previous|earlier|initial|first|original"
    r"|old|claimed|suggested|proposed|(?!(?:problem|question|puzzle|equation|exercise|task|system)['\u2019])\w+['\u2019]s)\s*\Z"
)
_CONDITION = re.compile(r"(?i)^\W*(?:if|suppose|assume|assuming|imagine|unless|were|had)\b")
_RETRACTED = re.compile(
    r"(?i)\b(?:(?:that|this|it|which|above|answer|result|i)(?:['\u2019]s| is| was| am|['\u2019]m| seems| looks)? "
    r"(?:wrong|incorrect|mistaken|not right|not correct|a mistake|an error)|(?:is|was|can)(?: not|n['\u2019]t)(?: be)? "
    r"(?:the|my|our|a) (?:final |correct |right |true )?(?:answer|solution)|correction(?=:)"
    r"|(?:is|isn['\u2019]t|wasn['\u2019]t) (?:wrong|incorrect|right|correct)(?<!is right)(?<!is correct)"
    r"|i made (?:a mistake|an error)|scratch that|ignore that|disregard (?:that|this))\b"
)
_OTHER = re.compile(r"(?<![A-Za-z0-9.])\(?([A-J]|[0-9]{1,20}(?:\.[0-9]{1,20})?)\)?\s\Z")
_DENIED = re.compile(  # in front of a box
    r"(?i)(?:\bnot|\bnever|\bcannot be|n['\u2019]t(?: be)?)(?: equal(?: to)?)?[\s$*=(\[\\]*\Z"
)
_ASKED = re.compile(r"[\s$*)\]\\]*\?")  # behind a box
_WAIT = re.compile(r"(?i)\b(?:wait|hold on|hmm+|on second thought|actually)\b|(?:^|[.!?]\s+)no[,.]")
_JOINER = re.compile(
    r"(?:\s|[,;&$*\u2022:-]|\\\\|\\q?quad(?![A-Za-z])|\\[\[\](),;! ]|\\(?:text|mathrm)\s?\{\s?(?:and|or|,)\s?\}"
    r"|\b(?:and|or)\b"
    r"|[A-Za-z](?:_\{?[A-Za-z0-9]{1,3}\}?)? ?=|\(?[0-9ivx]{1,3}[.)])*"
)
_INSTEAD = re.compile(
    r"(?i)\b(?:no|not|wait|rather|instead|actually|sorry|correction|hmm+|oops|then|so|hence|therefore)\b"
)
_STOP = re.compile(r"[.?!](?=[\s$*)\\\]]|\Z)|\n")


def _boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Start, end and contents of every closed box without another box in it, in order.

    Escaped braces do not count. `\boxed 3` is a box; with a doubled backslash the contents have doubled ones as well.
    """
    open_at: list[tuple[int, int] | None] = []  # where an open box and its contents start; None for other braces
    found: list[tuple[int, int, str]] = []
    if "box" not in text:
        return found
    inner = -1  # where the last closed box starts
    for mark in _BRACES.finditer(text):
        if mark["box"] or mark["open"]:
            open_at.append((mark.start(), mark.end()) if mark["box"] else None)
        elif mark["bare"]:
            inner = mark.start()
            found.append((mark.start(), mark.end(), mark["bare"].rstrip(".,/")))
        elif mark["close"] and open_at:
            box = open_at.pop()
            if box is not None and box[0] > inner:
                contents = text[box[1] : mark.start()].strip()
                doubled = text.startswith("\\\\", box[0])
                found.append((box[0], mark.end(), contents.replace("\\\\", "\\") if doubled else contents))
                inner = box[0]
    return found


def answered(response: str) -> str:
    """A response without its reasoning (`<think>...</think>`), where something follows that: a draft is not an answer.

    A response whose reasoning does not end has no answer; where nothing follows the reasoning, its own answer counts.
    """
    final = behind_reasoning(response)
    if isinstance(final, Failure):
        return ""
    return final if final.strip() else response


def without_html(text: str) -> str:
    """A response without the tags of HTML formatting (`<b>Answer:</b> 7`)."""
    for _ in range(8):  # levels of nested tags; each takes a pass
        if "</" not in text:
            break
        text = _HTML.sub(r"\2", text)
    return text


def is_list(text: str) -> bool:
    r"""Whether a true answer is a set or a list of values: commas outside brackets, braces around, `and` or `or`."""
    plain = re.sub(r"\\(?:text|mathrm|quad|qquad)(?![A-Za-z])", " ", undecorated(text))
    plain = re.sub(r"\\(?:left|right)(?![A-Za-z])|\\[ ,;:!](?=[ \\A-Za-z0-9]|\Z)", " ", plain).strip()
    if re.fullmatch(r"\\?\{.*\}", plain, re.DOTALL) and (plain[0] == "\\" or "," in plain):
        return True
    if re.fullmatch(r"[-+$]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?\W*", plain):  # thousands
        return False
    if any(char in ",;" for _, char in outside_brackets(plain.replace("{,}", ""))):
        return True
    return re.search(r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])|\\pm", plain) is not None


def last_boxed(text: str) -> str | None:
    r"""Contents of the last `\boxed{...}` whose braces balance; escaped braces do not count."""
    found = _boxes(text)
    return found[-1][2] if found else None


def final_answers(text: str, *, every: bool = False) -> list[str]:
    r"""The boxes of the last sentence that has any, in order; else the one answer that is stated, or none.

    Boxes belong to one sentence where no full stop or end of a line is between them, or nothing but what joins a list.
    Equal boxes count once.

    Args:
        text: a response.
        every: the boxes of all sentences.
    """
    answers: list[str] = []
    for contents in _answers(text, every=every):
        if not any(same_text(contents, other) for other in answers):
            answers.append(contents)
    return answers


def _answers(text: str, *, every: bool = False) -> list[str]:
    """The same with what is equal."""
    tagged = _tagged(text)
    if tagged is not None:
        text = tagged
    boxes = _boxes(text)
    if not boxes:
        stated = _unboxed(text) or (None if tagged is None else _short(text))
        return [] if stated is None else [stated]
    behind = _behind_boxes(text, boxes[-1][1])
    if behind is not None or _withdrawn(text, *boxes[-1]):
        return [behind] if behind else []
    last = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        gap = text[box[1] : last[-1][0]]
        if not every and not _joined(gap):
            break
        last.append(box)
    return [contents for _, _, contents in reversed(last)] if boxes[-1][2] else []


def _joined(gap: str) -> bool:
    """Whether the boxes on both sides of a text belong to one sentence and add up."""
    if len(gap) <= 100 and _JOINER.fullmatch(gap):
        return True
    return len(gap) <= 300 and not _STOP.search(gap) and not _INSTEAD.search(gap)


def final_answer(text: str) -> str | None:
    r"""The answer that a response marks, or None where it marks none.

    In this order, the last of each kind: what is between `<answer>` and `</answer>`, `\boxed{...}`, `#### ...` (to the
    end of the line), `the answer is ...`, `Answer: ...` and the line under a heading `Final answer` (to the end of the
    sentence). No answer where the last one is doubted, conditional or withdrawn: `not sure that the answer is ...`.
    """
    found = _answers(text)
    return found[-1] if found else None


def _withdrawn(text: str, start: int, end: int, contents: str) -> bool:
    """Whether a box is denied, asked, supposed or taken back."""
    before = text[max(start - 120, 0) : start]
    return (
        _DENIED.search(before) is not None
        or _ASKED.match(text, end) is not None
        or _is_retracted(text[end : end + 200], contents)
        or any(
            _OPEN.search(before[: mark.start()])
            for mark in _ANSWER_IS.finditer(before)
            if not before[mark.end() :].strip("$ *")
        )
    )


def _is_retracted(after: str, stated: str) -> bool:
    """Whether what follows an answer takes it back; `A is wrong` says nothing about B."""
    for found in _RETRACTED.finditer(after):
        other = _OTHER.search(after[: found.start()])
        if other is None or other[1] in re.findall(r"[A-J]|[0-9]+(?:\.[0-9]+)?", stated):
            return True
    return False


def _unboxed(text: str) -> str | None:
    """The answer that a text without boxes marks."""
    marks = list(_HASHES.finditer(text))
    if marks:
        if _OPEN.search(text[max(marks[-1].start() - 80, 0) : marks[-1].start()]):
            return None
        return undecorated(text[marks[-1].end() :].partition("\n")[0][:_LONGEST]) or None
    first = text.lower().find("answer") if text.isascii() else 0
    if first < 0:
        return None
    line = text.rfind("\n", 0, first) + 1
    ends = sorted(
        (mark.end(), mark.start())
        for pattern in (_ANSWER_IS, _HEADING)
        for mark in pattern.finditer(text, line)
        if not _NOT_MINE.search(text[max(mark.start() - 40, 0) : mark.start()])
    )
    return _marked(text, *ends[-1]) if ends else None


def _behind_boxes(text: str, end: int) -> str | None:
    """The answer that is marked as the final one behind the last box, if any."""
    found = max(_FINAL.finditer(text, end), key=re.Match.start, default=None)
    stated = None if found is None else _marked(text, found.end(), found.start())
    return stated if stated and _is_bare(stated) and not re.search(r'["$]', stated) else None


def _tagged(text: str) -> str | None:
    """What is between the last pair of answer tags, where no box comes after it."""
    if "</" not in text:
        return None
    start: int | None = None
    found: tuple[int, int, int] | None = None
    for tag in _TAGS.finditer(text):
        if tag[1] and start is not None:
            found, start = (start, tag.start(), tag.end()), None
        elif not tag[1]:
            start = tag.end()
    if found is None or not text[found[0] : found[1]].strip() or _boxes(text[found[2] :]):
        return None
    return text[found[0] : found[1]].strip()


def _short(text: str) -> str | None:
    return undecorated(text) or None if len(text) <= 300 else None


def _marked(text: str, end: int, start: int) -> str | None:
    """The answer behind a mark: mathematics to its end, else the rest of the sentence."""
    before = text[max(start - 300, 0) : start]
    if _OPEN.search(before[-80:]) or _CONDITION.search(re.split(r"[.?!\n]\s*", before)[-1]):
        return None
    rest = _block_in_a_line(text[end : end + _LONGEST])
    line = rest.partition("\n")[0]
    sentence = re.split(r"([.?])(?:[\s*]|$)", line, maxsplit=1)
    after = rest[len(sentence[0]) : len(sentence[0]) + 200]
    stated = undecorated(sentence[0])
    doubted = sentence[1:2] == ["?"] or sentence[0].endswith("..")
    if doubted or _is_retracted(after, stated) or _WAIT.search(after[:60]):
        return None
    if not prose(stated) or not re.match(r"[A-Z].* ", stated) or _DOUBT.search(re.sub(r"\$[^$]*\$", "$", stated)):
        return stated or None
    return _of_sentence(stated) or _only_number(stated) or stated


def _block_in_a_line(text: str) -> str:
    r"""A text that begins with a block of mathematics, `\[...\]` or `$$...$$`, with that in one line."""
    block = re.match(r"\s*(?:\\\[|\$\$)", text)
    if not block:
        return text
    close = text.find("\\]" if text[block.end() - 1] == "[" else "$$", block.end())
    return " ".join(text[:close].split()) + text[close:] if close >= 0 else text


_DOUBT = re.compile(
    r"(?i)\b(?:not|no|never|neither|nor|cannot|can't|isn't|doesn't|won't|wasn't|aren't|if|suppose|assume|assuming|unless"
    r"|whether|maybe|perhaps|possibly|probably|doubt|unsure|unclear|guess|guessing|wrong"
    r"|(?<!that )(?<!who )(?<!which )(?:might|may|could|would|should)"
    r"|incorrect|mistake|wait|but|however|unlikely|try|let|let's|say|either|about|around|roughly|nearly|almost|approximately"
    r"|seems?|appears?|think|believe|claims?|claimed|says|said|less|fewer|more|former|previous|false|were|had|estimated?"
    r"|hypothetical\w*|contradict\w*)\b|n\u2019t\b|\?"
)
_LEAD = re.compile(
    r"(?i)^\W*(?:therefore|thus|so|hence|consequently|finally|in conclusion|to conclude|in summary|this (?:means|gives)"
    r"|we (?:find|get|conclude|obtain|have|see)|it follows|final answer|answer|solution|result)\b"
)
_PRONOUN = re.compile(r"(?i)^\W*(?:it|this|that|which|he|she|they|i)\b")
_SUBJECT = re.compile(r"(?i)\b(?:answer|solutions?|results?|roots?)\b")
_HOLDS = re.compile(  # "She has 9 eggs left", "The trip costs $40"
    r"(?i)^\W*(?:he|she|they|it|we|you|(?:the |each |his |her |their |all )?[a-z]{2,15}(?: [a-z]{2,15})?) "
    r"(?:now |still |then |only |will )?"
    r"(?:has|have|gets?|got|earns?|earned|makes?|made|needs?|costs?|pays?|paid|spends?|spent|takes?|took|saves?|saved|sells?"
    r"|sold|weighs?|travels?|drives?|walks?|reads?|owns?|owes?|uses?|used|eats?|ate|receives?|received)"
    r" (?:a total of |exactly |only |in total )?(?=\$?[0-9])(?!.*\b(?:first|start|begin\w*|initial\w*|original\w*"
    r"|before|yesterday|already|earlier|each|every|per|for|to|of|if|when|than|after|so far|until|by)\b)"
)
_LINK = re.compile(
    r"(?i)\b(?:(?:find|conclude|get|see|obtain|know|follows|means|have) that|is|are|equals?|equal to|given by|be"
    r"|(?:in|de)creas(?:es?|ed) by|get|have|obtain|find|therefore|thus|so|hence)\b|(?<=[A-Za-z*)]):(?=\s)"
)
_OURS = re.compile(r"(?i)^(.*?)\s*\bis (?:the|our) (?:\w+ )?(?:answer|solution|result|value)\W*$")
_THERE = re.compile(r"(?i)\b(?:there|these) (?:is|are) (?:exactly |only )?([0-9][0-9,.]*) [a-z]")
_NO = re.compile(r"(?i)\b(?:there (?:is|are|exists?)|has|have) (no (?:[a-z]+ )?(?:solutions?|roots?))\W*$")
_ENDING = re.compile(r"(?i)(?:\s*(?:I hope (?:it|this) is correct|I hope this helps|QED|\\blacksquare|\\square)\W*)+\Z")


def concluded(text: str, gold: str = "") -> str | None:
    """The answer of a response that marks none (`final_answers`): the whole of a short one, or what its end states.

    A last sentence states an answer where it begins with `therefore`, `so`, ..., is about the solution, or is the whole
    response, and ends with one (`the value is 12`). Doubts, negations, conditions and questions state none.

    Args:
        text: a response.
        gold: the true answer; where it is words, a response that is nothing else states it.
    """
    if _boxes(text) or _HASHES.search(text) or _ANSWER_IS.search(text) or _HEADING.search(text):
        return None
    if gold and _is_only(text, gold):
        return undecorated(text)
    text = re.split(r"<\|(?:im_|end|eot|start)|</s>", text[-4 * _LONGEST :])[0].strip()
    text = _ENDING.sub("", text[-_LONGEST:]).strip() if len(text) > 20 else text
    if _is_bare(text):
        return undecorated(text)
    sentences = _sentences(text)
    if not sentences:
        return None
    return _of_last(sentences[-1], alone=len(sentences) == 1)


def _is_only(text: str, gold: str) -> bool:
    """Whether a response is nothing but the words of the true answer, or a choice where that is one."""
    if len(text) <= _LONGEST and normalized(text) == normalized(gold):
        return True
    return bool(choice_of(gold)) and len(text) <= 300 and bool(choice_of(undecorated(text)))


def _of_last(sentence: str, *, alone: bool) -> str | None:
    """The answer that the last sentence of a response states; `alone`: it is the only one."""
    holds = _HOLDS.match(sentence)
    if holds and not _DOUBT.search(sentence):
        return _counted(sentence[holds.end() :])
    concludes = _LEAD.search(sentence) or _SUBJECT.search(re.sub(r"\$[^$]*\$", "", sentence))
    return _of_sentence(sentence) if alone or concludes else None


def _is_bare(text: str) -> bool:
    """Whether a whole response is short and nothing but a value: no words but units."""
    if not 0 < len(text) <= 300:
        return False
    plain = undecorated(text)
    one_line = "\n" not in plain or "\\begin" in text
    return one_line and not prose(_without_percent(plain)) and not _words(text)


def _without_percent(text: str) -> str:
    return re.sub(r"(?i)\b(?:per ?cent|percentage|pct)\b", "%", text)


def _words(text: str) -> bool:
    """Whether short words of a sentence are in a text that mathematics would read as letters."""
    words = r"(?i)(?<![\\A-Za-z])(?:it|we|so|as|an|my|he|do|go|ok|a(?= [0-9]))(?![A-Za-z])|[!?]\s*\Z"
    return re.search(words, re.sub(r"[0-9)]!", "", text)) is not None


def _sentences(text: str) -> list[str]:
    """The sentences of a text; mathematics in `$` or brackets is never cut."""
    flat = re.sub(r"\\\[|\\\]|\$\$", " $ ", text)
    flat = flat.replace("\\(", "$").replace("\\)", "$")
    parts = flat.split("$")
    if len(parts) % 2:
        parts[1::2] = [" ".join(part.split()).replace(". ", " ").rstrip(".,; ") for part in parts[1::2]]
    cut = re.split(
        r"(?<=[.?!])\s+(?=[A-Z$*(#])|\s+(?=(?:Therefore|Thus|Hence|So|Final Answer)\b)|\n\s*(?=[A-Z*#\n-])",
        "$".join(parts),
    )
    return [" ".join(part.split()).strip("*# ") for part in cut if part.strip("*#$ \n.")]


def _of_sentence(sentence: str) -> str | None:
    """The value that a sentence states at its end, or None."""
    plain = re.sub(r"\$[^$]*\$", "$", sentence)
    none = _NO.search(plain)
    before = plain[: none.start(1)] if none else plain
    if _DOUBT.search(before) or _PRONOUN.search(sentence):
        return None
    if none is not None:
        return none[1]
    verbs = " ".join(re.findall(r"\b(?:is|are|equals|and)\b", plain))
    if re.search("is.*and.*is", verbs.replace("are", "is").replace("equals", "is")):
        return None  # two results
    ours = _OURS.match(sentence)
    if ours is not None:
        sentence = ours[1]
    begin = _begin_of_value(sentence)
    if not begin and ours is None:
        return None
    stated = undecorated(sentence[begin:].strip(" ,:*").rstrip(".!"))
    if _is_value(stated):
        return stated
    if re.fullmatch(r"\$?[0-9][0-9,.]*(?: (?!times|per|each|of|out|to|parts?)[a-z]{2,15}){1,3}", stated):  # 9 eggs
        return _counted(stated)
    there = _THERE.search(plain)
    number = there[1].rstrip(".,") if there else None
    return number if number == _only_number(plain) else None


def _begin_of_value(sentence: str) -> int:
    """Where the value of a sentence may begin: behind the last link outside formulas, or behind what leads to it."""
    begin = 0
    for link in _LINK.finditer(sentence):
        if sentence.count("$", 0, link.end()) % 2 == 0:
            begin = link.end()
    lead = _LEAD.match(sentence)
    return max(begin, lead.end()) if lead else begin


def _is_value(stated: str) -> bool:
    """Whether the end of a sentence is a formula, a number or a letter, without words."""
    if not stated or prose(_without_percent(stated)) or _words(stated):
        return False
    whole = stated.count("$") % 2 == 0 or re.match(r"\\?\$", stated)
    return bool(whole and re.search(r"[0-9\\=<>]|^\(?[A-Za-z]\)?$", stated))


_COUNTED = {"and", "the", "to", "with", "ago", "another"} | {"one", "two", "three", "four", "five", "six", "ten"}


def _counted(text: str) -> str | None:
    """The number that a text begins with, where it is the only one; with its unit, without a thing that is counted."""
    text = re.sub(r" (?:left|in total|in all|altogether|total|overall|now|remaining)\Z", "", text.strip(" .!*"))
    number = _only_number(text.replace("$", ""))
    if number is None:
        return None
    named = UNIT_WORDS.intersection(re.findall("[a-z]+", text.lower()))
    return text if named else text[:1].strip("0123456789") + number


def _only_number(sentence: str) -> str | None:
    """The one number in a sentence without words that change it."""
    numbers = re.findall(r"(?<![A-Za-z0-9_.])[0-9][0-9,.]*", sentence)
    words = set(re.findall(r"[a-z]+", sentence.lower())) & CHANGING - _COUNTED
    return numbers[0].rstrip(".,") if len(numbers) == 1 and not words and "$" not in sentence else None
