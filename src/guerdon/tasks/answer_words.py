r"""Answers in words: choices of a question with options, "no solution", and words that mathematics cannot read.

options_of("Which? (A) 15 (B) 17")                      # {"A": "15", "B": "17"}
choice_of(r"\textbf{(B) }17")                           # ("B", "17")
is_empty("no real solutions")                           # True
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Literal

from guerdon.tasks.answer_text import normalized, outside_brackets, prose, typographic
from guerdon.tasks.quantities import numbers_of, same_number
from guerdon.tasks.units import CHANGING, TEXT

Word = Literal["equal", "different", "answer_unparsable"]
_COMMAND = re.compile(r"\\[A-Za-z]+")
_SCALED = re.compile(r"[0-9.]\s*(?:\\text\s*\{\s*)?[kKmMbB]\b[.}\s]*")
_VAGUE = re.compile(r"\bor so\b|\\(?:[lchd]?dots[bcim]?|[hv]?phantom|approx)(?![A-Za-z])|\?|\u2026|\u2248")
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+(?:[.,'\u2019][0-9]+)+")
_MARK = re.compile(r"[0-9)}]\s*_|(?<=[0-9)}])['\"]")  # of a base, a derivative, feet: dropped by the parser of LaTeX


def compare_words(gold: str, answer: str) -> tuple[Word, str] | None:
    """The verdict where words decide, or None where the two are mathematics.

    The parser of LaTeX reads words as products of their letters, or drops them: a true answer in words is compared
    as a string, and where it has none, an answer with words (`not 5`, `5 thousand`) cannot be read.
    """
    empty, none = is_empty(gold), is_empty(answer)
    if empty is not None and none is not None:
        same = not empty or not none or empty == none
        return ("equal", "") if same else ("answer_unparsable", f"{none!r} and {empty!r} are not the same")
    timed = _compare_times(gold, answer)
    if timed is not None:
        return timed
    true, stated = prose(gold), prose(answer)
    if none is not None and not true:
        return "different", ""
    if true:
        return _compare_prose(gold, true, answer, stated)
    if stated:
        return "answer_unparsable", f"not mathematics: {stated[:80]!r}"
    return _compare_marks(gold, answer)


def _compare_prose(gold: str, true: str, answer: str, stated: str) -> tuple[Word, str]:
    """The verdict on a true answer with the words `true`, by an answer with the words `stated`."""
    if normalized(gold) == normalized(answer):
        return "equal", ""
    digits = [re.findall("[0-9]+", text) for text in (gold, answer)]
    same_words = true.lower() == stated.lower() and digits[0] != digits[1]
    if stated and not same_words and sorted(true.lower()) == sorted(stated.lower()):
        return "answer_unparsable", "the same letters in another order: words, or products"
    return _counted(gold, answer) or ("different", "")


def _compare_marks(gold: str, answer: str) -> tuple[Word, str] | None:
    """The verdict on an answer without words where a mark or a letter decides, or leaves open what it says."""
    plain, true = typographic(answer), typographic(gold)
    if _MARK.search(plain.rpartition("=")[2]) and not _MARK.search(true):
        return "answer_unparsable", "a base, a derivative or feet, which the true answer does not have"
    vague = _VAGUE.search(plain)
    if vague and not _VAGUE.search(true):
        return "answer_unparsable", f"{vague[0]} leaves open what it says"
    for number, other in ((answer, gold), (gold, answer)):
        digits = typographic(number).strip("$ ")
        if _DECIMAL_COMMA.fullmatch(digits) and numbers_of(other) and not numbers_of(number):
            return _separated(digits, other)
    if numbers_of(gold) and _clock(answer):
        return "answer_unparsable", "a time of day, a duration or a ratio"
    if numbers_of(gold) and _SCALED.search(plain):
        return "answer_unparsable", "a letter behind a number: thousands, millions or a unit"
    return None


_COUNT = re.compile(r"(\\?\$? ?[-+]?[0-9][0-9.,]*) ((?:[A-Za-z]+ ?)+)")


def _counted(gold: str, answer: str) -> tuple[Word, str] | None:
    """The verdict on a number where the true answer is one with words behind it (`7 zebras`, `5 million`)."""
    found, other = (_COUNT.fullmatch(_words(text)) for text in (gold, answer))
    if found is not None and other is not None and same_number(found[1], other[1]):
        changed = set(f"{found[2]} {other[2]}".lower().split()) & CHANGING
        return None if changed else ("answer_unparsable", f"{found[2]!r} and {other[2]!r} may be the same")
    if found is None or not numbers_of(answer):
        return None
    if set(found[2].lower().split()) & CHANGING:
        return "answer_unparsable", f"the true answer is a number in words: {gold[:80]!r}"
    return ("equal" if same_number(found[1], answer) else "different"), ""


_FIGURES = re.compile(r"(-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?) (thousand|[mb]illion|trillion)s?")
_ZEROS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def in_figures(text: str, question: str) -> str | None:
    """`1.5 million` as a product; None where a text is not such a number, or the question may ask in millions."""
    found = _FIGURES.fullmatch(_words(text)) if "illion" in text or "thousand" in text else None
    if found is None or found[2] in question.lower():
        return None
    return f"{found[1].replace(',', '')} \\cdot 10^{{{_ZEROS[found[2]]}}}"


def _words(text: str) -> str:
    """Plain notation, with single spaces between words and numbers."""
    return " ".join(TEXT.sub(r" \1 ", typographic(text)).strip("$ ").split())


_CLOCK = re.compile(r"([01]?[0-9]|2[0-4]) ?(?:(?::|\{:\}) ?([0-5][0-9]) ?)?(?:([ap])\.? ?m\.?)?", re.IGNORECASE)


def _clock(text: str) -> tuple[int, str] | None:
    """Minutes of a time of day, and `a`, `p` or "" for AM, PM or neither; None where the text is not a time of day."""
    plain = re.sub(r"\\[,;: ]|~", " ", TEXT.sub(r" \1 ", typographic(text)))
    found = _CLOCK.fullmatch(" ".join(plain.strip("$ ").split()))
    if found is None or not (found[2] or found[3]):
        return None
    return 60 * int(found[1]) + int(found[2] or 0), (found[3] or "").lower()


def _compare_times(gold: str, answer: str) -> tuple[Word, str] | None:
    """The verdict on times of day, of which one has AM or PM; None on others."""
    true, stated = _clock(gold), _clock(answer)
    if true and stated and (true[1] or stated[1]):
        return _same_time(*true, *stated)
    if true and true[1] and numbers_of(answer):
        return "answer_unparsable", "a number for a time of day"
    return None


def _same_time(gold: int, half: str, answer: int, other: str) -> tuple[Word, str]:
    """The verdict on two times of day; one without AM or PM is read by the 24-hour clock, or has no verdict."""
    if (gold - answer) % 720:
        return "different", ""
    if half and other:
        return ("equal" if half == other else "different"), ""
    named, plain, mark = (gold, answer, half) if half else (answer, gold, other)
    if plain == named % 720 + (720 if mark == "p" else 0):
        return "equal", ""
    return ("different", "") if plain >= 780 else ("answer_unparsable", "a time without AM or PM")


def _separated(text: str, number: str) -> tuple[Word, str] | None:
    """No verdict where commas or points separate thousands or decimals in some reading that is the number.

    A comma separates no thousands behind a single 0, and behind more than three digits where other than three follow:
    `1000,99` is 1000.99.
    """
    *whole, last = re.split("[.,'\u2019]", text)
    digits = whole[0].lstrip("+-")
    decimal = len(whole) == 1 and "," in text and (digits == "0" or (len(digits) > 3 and len(last) != 3))
    if decimal and same_number(number, text.replace(",", ".")):
        return "equal", ""
    if any(same_number(number, reading) for reading in ("".join((*whole, last)), f"{''.join(whole)}.{last}")):
        return "answer_unparsable", "commas or points that may separate thousands, decimals or a list"
    return "different", ""


_KINDS = (
    r"real|integer|integral|rational|positive|negative|whole|natural|complex|valid|such|possible|finite|other|prime"
    r"|number|numbers|value|values|solution|solutions|root|roots|answer|zero|zeros|zeroes|triangle|point|points"
    r"|intersection|limit|pair|pairs|of|x|n|for|exist|exists"
)
_NONE = re.compile(
    rf"(?:there (?:is|are|exists?) )?no (?P<kind>(?:(?:{_KINDS}) ?){{1,6}})"
    r"|none(?: exists?)?|dne|nonexistent"
    r"|(?:it |the limit |the solution |this |x )?(?:does not|doesn't|do not|don't) exist"
    r"|(?:the )?(?:empty|null) set|\\(?:emptyset|varnothing)|\u2205|\u00f8|\\\{ ?\\\}|\{ ?\}"
    r"|(?:the equation |the system |it )?has no (?P<has>(?:(?:real|integer|rational|valid) )?(?:solutions?|roots?))"
)
_QUALIFIERS = ("real", "integer", "integral", "rational", "positive", "negative", "natural", "complex", "prime")


def is_empty(text: str) -> str | None:
    r"""What a text says does not exist: `no real solution` gives "real", `\emptyset` or `none` "".

    None where it does not (`no 5`, `not 5`).
    """
    if len(text) > 100:
        return None
    plain = TEXT.sub(r" \1 ", typographic(text)).replace("\u2019", "'").strip("$ .*")
    plain = re.sub(r"^\s*[A-Za-z]\s*(?:=|\\in)\s*(?=\\|\{|\u2205)|\s*[.!]\s*\Z", "", plain)
    found = _NONE.fullmatch(" ".join(plain.split()) if "\\" in plain else " ".join(plain.lower().split()))
    if found is None:
        return None
    words = (found["kind"] or found["has"] or "").split()
    if words == ["x"] or words == ["n"] or words == ["of"]:
        return None
    return " ".join(sorted(word for word in words if word in _QUALIFIERS))


_BOLD = r"\\(?:text|textbf|mathbf|mathrm|textrm|textit|mbox|bf|boldsymbol)\s*"
_CHOICE = re.compile(
    r"(?:(?i:option|choice|answer)\s*)?(?:\(\s*(?P<a>[A-Ja-j])\s*\)|(?P<b>[A-J])(?P<stop>\s*[.):]|\s+-(?=\s))?)(?P<rest>.*)",
    re.DOTALL,
)


def choice_of(text: str) -> tuple[str, str] | None:
    r"""The letter of a choice and the text behind it (`(B) 17`, `B. 17`, `\textbf{(B) }17`, `B`); None without one."""
    plain = " ".join(re.sub(rf"{_BOLD}\{{([^{{}}]*)\}}|{_BOLD}(?=\()", r" \1 ", typographic(text)).split())
    plain = re.sub(r"\\[ ,;:!]|\\q?quad(?![A-Za-z])|~|\*\*", " ", plain).strip("$ ")
    found = _CHOICE.fullmatch(plain)
    if found is None:
        return None
    rest = found["rest"].strip().removeprefix(":").strip("$ ").removesuffix(".").strip()
    if rest and not (found["a"] or found["stop"]):
        return None
    return (found["a"] or found["b"]).upper(), rest


_OPTION = re.compile(
    rf"(?:{_BOLD}\{{\s*)?(?:\(([A-J])\)|(?<![^\s$}}{{])([A-J])[.):](?=\s|\$|\\|\}}))\s*\}}?(?:\\[ ,;:]|~|\s|:)*"
)
_END = re.compile(r"\n\s*\n|\Z")


def options_of(question: str) -> dict[str, str]:
    """The options of a question, letter to text: its last run of marked letters A, B, ... of at least two."""
    marks = [(found[1] or found[2], found.start(), found.end()) for found in _OPTION.finditer(question)]
    starts = [i for i, mark in enumerate(marks[:-1]) if mark[0] == "A" and marks[i + 1][0] == "B"]
    if not starts:
        return {}
    run = [marks[starts[-1]]]
    for mark in marks[starts[-1] + 1 :]:
        if ord(mark[0]) != ord(run[-1][0]) + 1:
            break
        run.append(mark)
    ends = [mark[1] for mark in run[1:]]
    last = _END.search(question, run[-1][2])
    ends.append(last.start() if last else len(question))
    texts = (question[mark[2] : end] for mark, end in zip(run, ends, strict=True))
    return {mark[0]: _option_text(text) for mark, text in zip(run, texts, strict=True)}


def _option_text(text: str) -> str:
    text = re.sub(r"\\q?quad(?![A-Za-z])|\\\\|\\[ ,;:!]|~", " ", text).strip()
    text = text.strip(";, \n").removesuffix(".").strip()
    return text.strip("$ ") if text.count("$") % 2 or re.fullmatch(r"\$[^$]*\$", text) else text


def same_text(left: str, right: str) -> bool:
    """Whether two texts are the same number or the same string."""
    equal = same_number(left, right)
    return normalized(left) == normalized(right) if equal is None else equal


def compare_choices(gold: str, answer: str, question: str) -> tuple[Word, str] | tuple[None, str]:
    """The verdict where one side is the letter of a choice; else None, and the answer to go on with.

    A letter with its text is both; where the question has the options, its text has to be that option's.
    """
    several = _letters(gold)
    listed = _letters(answer)
    if several and listed and several[1] != listed[1]:  # `AC` and `A, C`
        return _letters_alike(several[0], listed[0])
    true = choice_of(gold)
    stated = choice_of(answer)
    if true is None and stated is None:
        return None, answer
    options = options_of(question)
    if true is not None and not _is_sentence(true, options):
        return _against(true, stated, answer, options)
    if not options:
        return _letter_of_no_options(stated, gold, answer)
    if stated is None:
        return None, answer
    own = options.get(stated[0])
    if own is None or (stated[1] and not same_text(own, stated[1])):
        return "answer_unparsable", f"the text behind {stated[0]} is not that option's"
    return None, own


def _is_sentence(choice: tuple[str, str], options: Mapping[str, str]) -> bool:
    """Whether the letter of a choice, which the question does not have, is the first word of a sentence."""
    letter, text = choice
    return text != "" and letter not in options and not _is_plain(text)


def _letters_alike(gold: str, answer: str) -> tuple[Word, str]:
    """The verdict on the letters of several choices, of which one side has marks between them."""
    if gold == answer:
        return "equal", ""
    if set(gold) != set(answer):
        return "different", ""
    return "answer_unparsable", "the same letters in another order"


def _letter_of_no_options(
    stated: tuple[str, str] | None, gold: str, answer: str
) -> tuple[Word, str] | tuple[None, str]:
    """As `compare_choices`, of an answer that may be a letter where the question has no options."""
    letter, rest = stated or ("", "")
    if not rest and numbers_of(gold):
        return "answer_unparsable", f"the letter {letter} of options that the question does not have"
    return None, rest if rest and _is_plain(rest) else answer


def _letters(text: str) -> tuple[str, bool] | None:
    """Several letters of choices (`AC`, `A, C`, `(A) and (C)`), and whether something is between them."""
    plain = re.sub(r"[$\s()]|\\[ ,;:&]", "", re.sub(rf"{_BOLD}\{{([^{{}}]*)\}}", r"\1", typographic(text)))
    found = re.sub(r"and|[,;&]", "", plain)
    return (found, found != plain) if re.fullmatch(r"[A-J]{2,10}", found) and len(set(found)) == len(found) else None


def _against(
    true: tuple[str, str], stated: tuple[str, str] | None, answer: str, options: dict[str, str]
) -> tuple[Word, str] | tuple[None, str]:
    """The verdict on a stated choice or text against a true letter, with what is known about its text."""
    letter, text = true[0], options.get(true[0]) or true[1]
    if stated is None:
        return _text_against(letter, text, answer, options)
    own = options.get(stated[0], true[1] if stated[0] == letter else "")
    wrong = _wrong_words(stated, own, letter, text) if stated[1] else ""
    if wrong:
        return "answer_unparsable", wrong
    return ("equal" if stated[0] == letter else "different"), ""


def _text_against(letter: str, text: str, answer: str, options: dict[str, str]) -> tuple[Word, str] | tuple[None, str]:
    """The verdict on an answer without a letter against a true letter and its text, if that is known."""
    if text and same_text(text, answer):
        return "equal", ""
    others = [name for name, other in options.items() if name != letter and same_text(other, answer)]
    if others:
        return "different", f"the text of option {others[0]}"
    if text or _is_plain(answer):
        return "answer_unparsable", "no letter, and not the text of an option"
    return None, answer


def _wrong_words(stated: tuple[str, str], own: str, letter: str, text: str) -> str:
    """What is wrong with the words behind a stated letter; empty: nothing.

    Args:
        stated: the letter and the words.
        own: the text of that option; empty: not known.
        letter: the true one.
        text: of the true option; empty: not known.
    """
    named, words = stated
    if own:
        return "" if same_text(own, words) else f"the text behind {named} is not that option's"
    if not _is_plain(words):
        return f"words behind the letter {named}"
    if text and same_text(text, words) != (named == letter):
        return f"the letter {named} with the text of another option"
    return ""


def _is_plain(text: str) -> bool:
    """Whether a text behind a letter is a value: no words, no second letter of a choice."""
    return not prose(text) and re.search(r"\([A-Ja-j]\)|\b(?:or|and)\b|[?]|(?:^|[,;/&]) ?[A-J]\b", text) is None


_ESCAPED = re.compile(r"\\\\(?=[A-Za-z{}])")
_LETTER = re.compile(r"\\(?:mathrm|text|textrm|mathit)\s?\{\s?([ei])\s?\}")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_ANGLE = re.compile(r"(?<![0-9.])([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(?:\^ ?(?:\\circ(?![a-z])|\{ ?\\circ ?\})|\u00b0)")
_ROOT = re.compile(r"\u221a ?([0-9]{1,99}|[A-Za-z]|\([^()]{1,99}\))")
_ONE = r"\\?[A-Za-z]+(?:_(?:\{[A-Za-z0-9]{1,8}\}|[A-Za-z0-9]))?'?"
_TUPLE = re.compile(rf"\(\s?({_ONE}(?:\s?,\s?{_ONE}){{1,9}})\s?\)\s?=\s?(?=\()")
_RATIO = re.compile(
    rf"\A\s*(?:\\[dt]?frac\{{\s?[A-Z]{{2}}\s?\}}\{{\s?[A-Z]{{2}}\s?\}}|{_ONE}\s?[:/]\s?{_ONE})\s*=(?!.*=)", re.DOTALL
)


_SCIENTIFIC = re.compile(r"\s*([-+]?[0-9]+(?:\.[0-9]*)?)[eE](-[0-9]{1,3})\s*")
_EULER = re.compile(r"(?<![A-Za-z\\])e(?![A-Za-z])")
_TURNED = re.compile(rf"\s*([-+]?[0-9][0-9.,/]*|-?\\[dt]?frac\{{[0-9]+\}}\{{[0-9]+\}})\s*=\s*({_ONE})\s*")


_DERIVATIVE = re.compile(
    r"\\[dt]?frac\s?\{\s?d\s?(?:\^\s?\{?\s?[0-9]\s?\}?)?\s?\}\s?\{\s?d\s?[A-Za-z]|(?<![A-Za-z])d/d[a-z](?![A-Za-z])"
)


def ambiguous(gold: str, answer: str) -> tuple[Word, str] | None:
    """No verdict on a decimal with an ellipsis, a derivative that is not computed, and `1e-3` beside the number e."""
    if normalized(gold) == normalized(answer):
        return None
    for side, other in ((gold, answer), (answer, gold)):
        if re.search(r"[0-9]\s?(?:\.{3}|\u2026|\\[lc]?dots)\s*\Z", side) and re.fullmatch(
            r"[-+]?[0-9]*\.[0-9]+\D*", side
        ):
            return "answer_unparsable", "a decimal with an ellipsis whose digits do not repeat"
        if _DERIVATIVE.search(side):
            return "answer_unparsable", "a derivative that is not computed"
        if _SCIENTIFIC.fullmatch(side) and _EULER.search(other):
            return "answer_unparsable", f"{side[:40]!r} may be a number or a multiple of e"
    return None


def without_e(text: str, other: str) -> str:
    r"""`1e-5` as `1 \times 10^{-5}`, where the other answer has no letter e (the base of logarithms)."""
    found = _SCIENTIFIC.fullmatch(text)
    if found is None or _EULER.search(other):
        return text
    return rf"{found[1]} \times 10^{{{found[2]}}}"


_SET = r"\\(?:text|mathrm|textrm)\s?"
_FORMATS = (  # (pattern, what it becomes), for what only changes how something looks, or says it in words
    (re.compile(r"(?<!\\)\\\s*\Z"), ""),
    (re.compile(r"\\(?:text)?color\s?\{[A-Za-z]{1,20}\}"), " "),
    (re.compile(r"(?<![0-9.])([0-9]{0,20}\.[0-9]{0,12}?)(?:([0-9])\2{2,20}|([0-9]{2,6})\3{1,9})\s?(?:\.{3}|\u2026|\\[lc]?dots)\s*\Z"),
     r"\1\\overline{\2\3}"),
    (re.compile(r"\\(?:underline|uline)\s?\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\(?:bf|it|rm|bfseries)(?![A-Za-z])"), " "),
    (re.compile(r"\{([^{}]{1,99})\\over(?![A-Za-z])([^{}]{1,99})\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"\{([^{}]{1,99})\\choose(?![A-Za-z])([^{}]{1,99})\}"), r"\\binom{\1}{\2}"),
    (re.compile(rf"(?<=[0-9])(?:\s?\^\s?\{{?\s?{_SET}\{{\s?(?:st|nd|rd|th)\s?\}}\s?\}}?|(?:st|nd|rd|th)\b)"), ""),
    (re.compile(r"\\pounds(?![A-Za-z])"), "\u00a3"),
    (re.compile(r"(?<![A-Za-z\\])oo(?![A-Za-z])"), r"\\infty"),
    (re.compile(rf"(?i)\A[\s$]*(?:{_SET}\{{\s*)?(?:x (?:is|can be) )?(?:all|any|every|the set of(?: all)?)"
                r" real(?:s| numbers?| values?)?(?: x)?[\s$}.]*\Z"), r"\\mathbb{R}"),
    (re.compile(rf"(?i)\A[\s$]*(-?)(?:{_SET}\{{\s*)?(?:positive )?infinity[\s$}}.]*\Z"), r"\1\\infty"),
)  # fmt: skip


def plain_maths(text: str) -> str:
    r"""The same mathematics without doubled backslashes and names of ratios and tuples, `e` and `i` as letters."""
    if "&" not in text and "\\begin" not in text:
        text = _ESCAPED.sub(lambda _: "\\", text)
    for pattern, new in _FORMATS if re.search(r"\\|oo|\.{3}|\u2026|[0-9][snrt][tdh]|(?i:real|infin)", text) else ():
        text = pattern.sub(new, text)
    if _TRIGONOMETRY.search(text):
        text = _ANGLE.sub(r"\\left(\\frac{\1 \\pi}{180}\\right)", text)
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _TURNED.sub(r"\2 = \1", text) if _TURNED.fullmatch(text) else text
    return _RATIO.sub("", _TUPLE.sub("", _LETTER.sub(r" \1", text)), count=1)


def without_approximation(text: str, gold: str) -> str:
    r"""What stands in front of `\approx`, where that is a value and not only a name, and what follows fits it."""
    value, mark, near = re.sub(r"\\approx(?![A-Za-z])", "\u2248", text).rpartition("\u2248")
    exact = value.rpartition("=")[2].strip()
    if not mark or "\u2248" in value or "\\approx" in gold or "\u2248" in gold or not re.search(r"[0-9]|\\pi", exact):
        return text
    return value if same_number(exact, near, 0.05) is not False else text


def by_name(gold: str, answer: str) -> tuple[list[tuple[str, str]], bool] | None:
    """Pairs of values to compare where a side names at least two (`k = 45, n = 2`), and whether both sides have names.

    Values are paired by name where both sides have the same names, else by their order.
    None where nothing is named, or the names are those of several solutions (`x = 1, x = 2`; `x_1 = 1, x_2 = 2`).
    """
    true, stated = named_values(gold), named_values(answer)
    if true and stated:
        if true.keys() != stated.keys():
            pairs = list(zip(true.values(), stated.values(), strict=False))
            return (pairs, True) if len(true) == len(stated) else None
        return [(value, stated[name]) for name, value in true.items()], True
    if not (true or stated):
        return None
    named, other = (true or stated or {}), _values(answer if true else gold)
    if other is None or len(other) != len(named):
        return None
    values = list(named.values())
    return list(zip(values, other, strict=True) if true else zip(other, values, strict=True)), False


def renamed(gold: str, answer: str, question: str) -> bool:
    """Whether an answer names its values by other letters than the true one, several or any that the question has."""
    if "=" not in gold or "=" not in answer:
        return False
    true, stated = (named_values(_TURNED.sub(r"\2=\1", text), least=1) or {} for text in (gold, answer))
    if not true or not stated or _in_lower_case(true) == _in_lower_case(stated):
        return False
    names = (*true, *stated)
    if not all(re.fullmatch(r"\\?[A-Za-z]|\\[a-z]+", name) for name in names):
        return False
    if any(name in value for name in true for value in stated.values()):
        return False
    asked = (re.search(rf"(?<![A-Za-z\\]){re.escape(name)}(?![A-Za-z])", question) for name in names)
    return len(true) > 1 or any(asked)


def _in_lower_case(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


def named_values(text: str, least: int = 2) -> dict[str, str] | None:
    """Names and values of an answer that assigns one value to each of at least so many names; else None."""
    plain = _flat(text)
    names = _TUPLE.match(plain)
    if names is not None:
        values, keys = _values(plain[names.end() :]), [name.strip() for name in names[1].split(",")]
        return dict(zip(keys, values, strict=True)) if values and len(values) == len(set(keys)) == len(keys) else None
    found: dict[str, str] = {}
    parts = _split(plain)
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or "=" in value or not re.fullmatch(_ONE, name.strip()) or not value.strip():
            return None
        if name.strip() in found or "_" in name or value.strip()[:1] in "<>":
            return None
        found[name.strip()] = value.strip()
    return found if len(found) >= least else None


def _values(text: str) -> list[str] | None:
    """The values of a tuple or of a list without names; None where it is one value, a set, or names something."""
    plain = _flat(text)
    inner = re.fullmatch(r"\((.*)\)", plain, re.DOTALL)
    parts = _split(inner[1]) if inner and len(_split(plain)) == 1 else _split(plain)
    return None if len(parts) < 2 or any(re.search(r"[=<>]", part) or not part for part in parts) else parts


def _flat(text: str) -> str:
    plain = re.sub(r"\\(?:left|right)(?![A-Za-z])", "", typographic(text)).replace("{,}", "").strip("$ ")
    plain = re.sub(r"\\(?:text|mathrm)\s?\{\s*,?\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z])", ",", plain)
    return re.sub(r"\\q?quad(?![A-Za-z])|\\[,;: ]", " ", plain).strip()


def _split(text: str) -> list[str]:
    """The parts between commas outside brackets; empty ones (`, and`) are left out."""
    commas = [place for place, char in outside_brackets(text) if char == ","]
    parts = (text[start + 1 : end].strip() for start, end in pairwise([-1, *commas, len(text)]))
    return [part for part in parts if part]
