"""Generated, seeded tasks in several steps, with exact answers and the exact truth of every step.

The test bed for process rewards: what a reward model can only estimate (which line went wrong first) is computed here
from the question alone. Any text is a list of right and wrong steps, never an error.

Every family but `story` writes its question so that line k of the solution has the place of line k of the question,
with the question marks filled in: a tiny model has to copy at a constant distance and compute one thing per line.
Stories are sentences, and the lines of their solutions are judged by what they calculate.

    family = task_family(ChainSettings(steps=2))
    prompt = family.sample(np.random.default_rng(0))       # 3+5=?;?*2=?;
    truth = step_truth(prompt, "3+5=9;9*2=8;")             # correct (False, False), follows (False, True)
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from guerdon.errors import DataError
from guerdon.settings.data import (
    AutomatonSettings,
    ChainSettings,
    RegisterSettings,
    StorySettings,
    SwapSettings,
    TaskSettings,
)
from guerdon.tasks.answers import final_answer
from guerdon.tasks.prompts import Prompt, question_hash
from guerdon.tasks.quantities import arithmetic

# ---------------------------------------------------------------------------------------------------------------------
# Word problems: a short story in plain sentences in which an amount changes, a calculation per change.
#
# Every sentence of a story is one of a list of templates, so that the truth is read back from the question alone. The
# lines of a solution are judged by what they calculate, not by their words: see `same_line` and `covers`.
#
#     question = draw_story(StorySettings(steps=2), 2, np.random.default_rng(0))
#     # Mia buys 3 boxes with 4 pears in each box. Mia gives 5 pears to Tom. How many pears does Mia have now?
#     read_story(question).changes                            # (Change("Mia has", "*", 4, "pears"), ...)
#     line_value("So Mia has 12 - 5 = 7 pears left.")         # 7
#     covers("3 * 4 - 5 = 7 pears")                           # 2: two calculations in a line
# ---------------------------------------------------------------------------------------------------------------------


_NAMES = ("Mia", "Tom", "Anna", "Ben", "Sara", "Leo", "Nina", "Max", "Emma", "Sam", "Lucy", "Paul")
_ITEMS = ("apples", "pears", "books", "coins", "stamps", "cards", "marbles", "shells", "pencils", "stickers")
_HOLDERS = {"boxes": "box", "bags": "bag", "baskets": "basket", "packs": "pack"}
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_DOLLARS = "dollars"
_TRIES = 2000
_LARGEST = 10  # times the largest amount of the text: no result is larger

_HAS = "{name} has {n} {items}."
_PRODUCT = "{name} buys {m} {holders} with {n} {items} in each {holder}."
_SALE = "{name} sells all {items} for {n} dollars each."
_SHARES = "{name} shares all {items} equally among {n} friends."
_CHANGES = {
    "+": ("{name} finds {n} more {items}.", "{other} gives {name} {n} {items}.", "{name} buys {n} more {items}."),
    "-": ("{name} gives {n} {items} to {other}.", "{name} loses {n} {items}.", "{name} sells {n} {items}."),
    "*": ("A year later {name} has {n} times as many {items}.",),
    "/": ("{name} sorts all {items} into {n} equal piles and keeps only one pile.",),
}
_LAST = {"*": _SALE, "/": _SHARES}  # changes after which another amount is asked for
_ASKS = {
    _SALE: "How many dollars does {name} get?",
    _SHARES: "How many {items} does each friend get?",
    "": "How many {items} does {name} have now?",
}
_IDLE = ("{other} is {n} years old.", "It takes {name} {n} minutes to walk home.")  # numbers that do not matter
_OPS = {text: op for op, texts in _CHANGES.items() for text in texts} | {_SALE: "*", _SHARES: "/"}
_SAYS = {_SALE: "{name} gets", _SHARES: "Each friend gets"}  # how a line of the solution begins; else `_NOW`
_NOW = "{name} has"


class Change(NamedTuple):
    """One calculation: how its line begins, what is done to the amount, and the unit of the result."""

    words: str
    op: str
    number: int
    unit: str


class Story(NamedTuple):
    """What a question says: an amount, and its changes in order."""

    start: int
    changes: tuple[Change, ...]

    def line(self, amount: Fraction, k: int) -> str | None:
        """The true line of change k, made to this amount; None for a line whose result is undefined."""
        words, op, number, unit = self.changes[k]
        result = arithmetic(f"({amount}) {op} {number}")
        return None if result is None else f"{words} {_plain(amount)} {op} {number} = {_plain(result)} {unit}."


def draw_story(settings: StorySettings, steps: int, rng: np.random.Generator) -> str | None:
    """A question with so many calculations; None where these settings hardly allow one."""
    for _ in range(_TRIES):
        question = _try_story(settings, steps, rng)
        if question is not None:
            return question
    return None


def _try_story(settings: StorySettings, steps: int, rng: np.random.Generator) -> str | None:
    """A question, or None where the numbers that were drawn do not work out."""
    name, other = (str(one) for one in rng.choice(_NAMES, size=2, replace=False))
    holders = str(rng.choice(list(_HOLDERS)))
    words = {"name": name, "other": other, "items": str(rng.choice(_ITEMS)), "holders": holders,
             "holder": _HOLDERS[holders]}  # fmt: skip

    def say(text: str, **numbers: int) -> str:
        return text.format(**words, **numbers)

    amount = int(rng.integers(2, settings.high + 1))
    ops = [settings.ops[int(rng.integers(len(settings.ops)))] for _ in range(steps)]
    if ops[0] == "*" and rng.random() < 0.75:
        factor = int(rng.integers(2, settings.factor + 1))
        told, amount, first = [say(_PRODUCT, m=factor, n=amount)], factor * amount, 1
    else:
        told, first = [say(_HAS, n=amount)], 0
    asked = _ASKS[""]
    for k in range(first, steps):
        op = ops[k]
        number = int(rng.integers(2, (settings.high if op in "+-" else settings.factor) + 1))
        if not _works_out(amount, op, number):
            return None
        amount = {"+": amount + number, "-": amount - number, "*": amount * number, "/": amount // number}[op]
        text = str(rng.choice(_CHANGES[op]))
        if k == steps - 1 and op in _LAST and rng.random() < 0.75:
            text, asked = _LAST[op], _ASKS[_LAST[op]]
        told.append(say(text, n=number))
    if amount > _LARGEST * settings.high:
        return None
    return " ".join([*told, say(asked)])


def _works_out(amount: int, op: str, number: int) -> bool:
    """Whether at least 2 are left, without a rest."""
    if op == "-":
        return number <= amount - 2
    if op == "/":
        return amount % number == 0 and amount // number >= 2
    return True


def read_story(question: str) -> Story | None:
    """What a question says; None where it is not a question of this kind."""
    sentences = re.split(r"(?<=[.?]) ", question)
    first = _matched(sentences[0], (_PRODUCT, _HAS))
    if first is None or len(sentences) < 3:
        return None
    text, said = first
    items = said["items"]
    changes = [_change(text, said, said["name"], items)] if text == _PRODUCT else []
    asked = ""
    for sentence in sentences[1:-1]:
        found = _matched(sentence, (*_OPS, *_IDLE))
        if found is None or found[1].get("items", items) != items:
            return None
        text = found[0]
        if text in _OPS and asked:
            return None
        if text in _OPS:
            asked = text if text in _LAST.values() else ""
            changes.append(_change(text, found[1], said["name"], _DOLLARS if text == _SALE else items))
    if not changes or _matched(sentences[-1], (_ASKS[asked],)) is None:
        return None
    return Story(_number(said["m" if first[0] == _PRODUCT else "n"]), tuple(changes))


def _change(text: str, said: dict[str, str], name: str, unit: str) -> Change:
    """The change that a sentence says."""
    return Change(_SAYS.get(text, _NOW).format(name=name), _OPS.get(text, "*"), _number(said["n"]), unit)


def _matched(sentence: str, texts: tuple[str, ...]) -> tuple[str, dict[str, str]] | None:
    """The template of a sentence and its words."""
    for text in texts:
        found = _pattern(text).fullmatch(sentence)
        if found:
            return text, found.groupdict()
    return None


@cache
def _pattern(text: str) -> re.Pattern[str]:
    kinds = {"n": rf"[0-9]{{1,7}}|{'|'.join(_NUMBERS)}", "name": "[A-Z][a-z]+", "other": "[A-Z][a-z]+"}
    kinds["m"] = kinds["n"]
    parts = re.split(r"\{(\w+)\}", text)
    groups = [f"(?P<{part}>{kinds.get(part, '[a-z]+')})" if k % 2 else re.escape(part) for k, part in enumerate(parts)]
    return re.compile("".join(groups))


def _number(text: str) -> int:
    return _NUMBERS.index(text) if text in _NUMBERS else int(text)


def _plain(number: Fraction) -> str:
    """A number as it is written: whole, with up to four decimals, else a fraction."""
    if number.denominator == 1:
        return str(number)
    decimal = f"{float(number):.4f}".rstrip("0")
    return decimal if Fraction(decimal) == number else str(number)


# written lines

_NUMBER = r"-?[0-9][0-9,]{0,19}(?:\.[0-9]{1,9})?(?:/[0-9]{1,9})?"
_LEFT = "-+*/(). 0123456789$,"
_RIGHT = re.compile(rf"=[ $]*(?:<<[^<>]*>>)?({_NUMBER})")


def _equation(line: str) -> tuple[str, str] | None:
    """Both sides of the last equation of a line; the left side is arithmetic."""
    line = re.sub(r"^\W*(?:[Ss]tep )?[0-9]+[.):] ", "", line)  # its number in a list
    plain = re.sub(r"(?<=[0-9)])( ?)[x\u00d7\u00b7]( ?)(?=[0-9(])", r"\1*\2", line).replace("\u00f7", "/")
    found, begin, at = None, 0, plain.find("=")
    while at >= 0:  # a pattern for both sides would need the square of a run's length
        left, right = plain[begin:at], _RIGHT.match(plain, at)
        left = left[len(left.rstrip(_LEFT)) :]
        if right and re.search(r"[0-9)]\Z", left.rstrip(" $")):
            found, begin = (left, right[1]), right.end()
        at = plain.find("=", max(begin, at + 1))
    return found


def line_value(line: str) -> Fraction | None:
    """The number that a line states: behind its last equals sign, else its last one; None where it has none."""
    equation = _equation(line)
    numbers = [equation[1]] if equation else re.findall(_NUMBER, line)
    return arithmetic(numbers[-1]) if numbers else None


def covers(line: str) -> int:
    """How many calculations a line states: the operators on the left of its equation; 0 without an equation."""
    equation = _equation(line)
    return len(re.findall(r"(?<=[0-9) ])[-+*/]", equation[0])) if equation else 0


def same_line(line: str, true: str) -> bool:
    """Whether a line states what the true one does, and its equation, if it has one, holds."""
    value, equation = line_value(line), _equation(line)
    return value is not None and value == line_value(true) and (equation is None or arithmetic(equation[0]) == value)


def stated_answer(text: str) -> Fraction | None:
    """The answer of a response: behind `####`, `the answer is` or in a box; else of its last line with a number."""
    explicit = final_answer(text)
    if explicit is not None:
        return line_value(explicit)
    return next((value for line in reversed(text.split("\n")) if (value := line_value(line)) is not None), None)


# ---------------------------------------------------------------------------------------------------------------------


SEPARATOR = ";"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MAX_DIGITS = 1000  # of a number that is read
_TASK: TypeAdapter[TaskSettings] = TypeAdapter(TaskSettings)
_TRIES_PER_PROBLEM = 50

S = TypeVar("S", ChainSettings, RegisterSettings, SwapSettings, AutomatonSettings, StorySettings)


@dataclass(frozen=True)
class Problem:
    """The truth about one question.

    Attributes:
        lines: the true lines of its solution, without separators.
        follow: what line k must be, given the lines written before it; None where that is undefined. Where several
            lines are right: the one whose operation comes first in the question.
        value: what a line states as its result; None for a malformed line.
        prose: whether lines are sentences, judged by what they calculate; else by their characters.
        choices: all lines that are right at place k, given the lines before it; None: at most one is (`follow`).
    """

    lines: tuple[str, ...]
    follow: Callable[[int, Sequence[str]], str | None]
    value: Callable[[str], str | None]
    prose: bool = False
    choices: Callable[[int, Sequence[str]], tuple[str, ...]] | None = None

    def next_lines(self, k: int, own: Sequence[str]) -> tuple[str, ...]:
        """The lines that are right at place k, given the lines written before it; none where that is undefined."""
        if self.choices is not None:
            return self.choices(k, own)
        line = self.follow(k, own)
        return () if line is None else (line,)


@dataclass(frozen=True)
class StepTruth:
    """What is true about a response, step by step.

    A step is the text up to and with the next separator; text after the last one is a step of its own,
    unless it is blank. Spans follow each other without a gap and cover the whole text.

    Attributes:
        correct: per step, whether it is the true line at its place (one of several: after true lines).
        follows: per step, whether it follows from the lines that this response wrote before it: after one error
            the later steps may still be sound. False where those lines cannot be read.
        spans: per step, start and end in characters.
        first_error: the first step that is not correct, from 0; -1 where none is wrong.
        answer: what the last step states as its result; None where it is malformed or there is none.
        outcome: whether the answer is the true one, however it was reached.
        expected: steps of the true solution.
        complete: whether the response is the true solution, from the first line to the last.
    """

    correct: tuple[bool, ...]
    follows: tuple[bool, ...]
    spans: tuple[tuple[int, int], ...]
    first_error: int
    answer: str | None
    outcome: bool
    expected: int
    complete: bool


def step_spans(text: str, separator: str = SEPARATOR) -> tuple[tuple[int, int], ...]:
    """Start and end of every step in characters: a partition of the text, separators belong to the step they end."""
    spans: list[tuple[int, int]] = []
    start = 0
    while (end := text.find(separator, start)) >= 0:
        spans.append((start, end + len(separator)))
        start = end + len(separator)
    if start < len(text):
        if spans and not text[start:].strip():
            spans[-1] = (spans[-1][0], len(text))
        else:
            spans.append((start, len(text)))
    return tuple(spans)


@dataclass(frozen=True)
class TaskFamily(ABC, Generic[S]):
    """A kind of problem at one difficulty.

    Attributes:
        settings: which kind, how hard.
        separator: what ends a step.
    """

    settings: S
    separator: ClassVar[str] = SEPARATOR

    @property
    def name(self) -> str:
        """The family's name."""
        return self.settings.family

    @abstractmethod
    def question(self, rng: np.random.Generator) -> str:
        """Draw a problem."""

    @abstractmethod
    def solve(self, question: str) -> Problem:
        """The truth about a question of this family.

        Raises:
            DataError: it is not one.
        """

    @abstractmethod
    def mistaken(self, line: str, rng: np.random.Generator) -> str:
        """The line with another result of the same form."""

    def fact(self, line: str) -> str:
        """What a well-formed line asks one to know, without the numbers' higher digits: `37+08=45` asks `7+8`."""
        return line.partition("=")[0]

    def sample(self, rng: np.random.Generator) -> Prompt:
        """Draw a problem, solved."""
        return self.prompt(self.question(rng))

    def prompt(self, question: str) -> Prompt:
        """The prompt that asks this question.

        Raises:
            DataError: it is not a question of this family.
        """
        problem = self.solve(question)
        messages = ({"role": "user", "content": question},)
        parameters = self.settings.model_dump(mode="json", exclude={"family", "seed"})
        return Prompt(
            id=f"{self.name}-{question_hash(messages)}",
            messages=messages,
            ground_truth=problem.value(problem.lines[-1]) or "",
            data_source=f"guerdon/{self.name}",
            ability="reasoning",
            extra_info={"family": self.name, "parameters": parameters},
            solution="".join(line + self.separator for line in problem.lines),
        )

    def _draw_steps(self, rng: np.random.Generator) -> int:
        low = self.settings.steps if self.settings.min_steps is None else self.settings.min_steps
        return int(rng.integers(low, self.settings.steps + 1))

    def _parse(self, question: str, first: str, rest: str) -> list[re.Match[str]]:
        """The lines of a question, matched with the pattern of the first and of the others."""
        parts = question.split(SEPARATOR)
        found = [re.fullmatch(rest if k else first, part) for k, part in enumerate(parts[:-1])]
        if parts[-1] or not found or None in found:
            raise self._not_a_question(question)
        return [match for match in found if match is not None]

    def _not_a_question(self, question: str) -> DataError:
        return DataError(f"not a question of the family {self.name}: {question[:80]!r}; was its prompt changed?")


def task_family(settings: TaskSettings) -> TaskFamily[Any]:
    """The family that the settings choose."""
    families: dict[str, Any] = {
        "chain": _Chain,
        "register": _Register,
        "swap": _Swap,
        "automaton": _Automaton,
        "story": _Story,
    }
    family: TaskFamily[Any] = families[settings.family](settings)
    return family


class _Arithmetic(TaskFamily[S]):
    """What families with numbers share."""

    def fact(self, line: str) -> str:
        what = re.sub(r"^[a-z]=", "", line.rpartition("=")[0])
        return re.sub(r"[0-9]*([0-9])", r"\1", what)  # of `d=47*03=41`: `7*3`

    def mistaken(self, line: str, rng: np.random.Generator) -> str:
        modulus = self.settings.modulus if isinstance(self.settings, ChainSettings | RegisterSettings) else None
        return _other_digit(line, min(modulus or 10, 10), rng)


def _compute(left: int, op: str, right: int, modulus: int | None) -> int:
    result = left * right
    if op == "+":
        result = left + right
    elif op == "-":
        result = left - right
    return result if modulus is None else result % modulus


def _number_after_equals(line: str) -> str | None:
    found = re.fullmatch(rf"(?s:.*)=(-?[0-9]{{1,{_MAX_DIGITS}}})", line)
    return found[1] if found else None


def _result(line: str) -> int | None:
    number = _number_after_equals(line)
    return None if number is None else int(number)


def _symbol_after_equals(line: str) -> str | None:
    return line.rpartition("=")[2] or None if "=" in line else None


class _Chain(_Arithmetic[ChainSettings]):
    """Long arithmetic: every line applies one operation to the result of the line before."""

    @cached_property
    def _width(self) -> int:
        """Characters per number; 0: as many as it has."""
        s = self.settings
        return 0 if s.modulus is None else max(len(str(s.modulus - 1)), len(str(s.high)))

    def _show(self, number: int) -> str:
        return str(number).zfill(self._width)

    def question(self, rng: np.random.Generator) -> str:
        s, unknown = self.settings, "?" * max(1, self._width)
        lines = []
        for k in range(self._draw_steps(rng)):
            left = unknown if k else self._show(int(rng.integers(s.low, s.high + 1)))
            op = s.ops[int(rng.integers(len(s.ops)))]
            lines.append(f"{left}{op}{self._show(int(rng.integers(s.low, s.high + 1)))}={unknown}{SEPARATOR}")
        return "".join(lines)

    def solve(self, question: str) -> Problem:
        unknown = rf"\?{{{max(1, self._width)}}}"
        number, op = r"([0-9]{1,7})", r"([-+*])"
        found = self._parse(question, rf"{number}{op}{number}={unknown}", rf"({unknown}){op}{number}={unknown}")
        start, block = int(found[0][1]), self.settings.any_order
        moves = [(match[2], int(match[3])) for match in found]
        spoken = re.compile(rf"-?[0-9]{{1,{_MAX_DIGITS}}}{op}{number}=.*")

        def line(left: int, k: int) -> str:
            op, right = moves[k]
            result = _compute(left, op, right, self.settings.modulus)
            return f"{self._show(left)}{op}{self._show(right)}={self._show(result)}"

        def pending(k: int, own: Sequence[str]) -> list[int]:
            """Operations of the block of line k that the lines before it have not applied, in order."""
            first = k - k % block
            rest = list(range(first, min(first + block, len(moves))))
            for said in map(spoken.fullmatch, own[first:k]):
                applied = None if said is None else (said[1], int(said[2]))
                rest.remove(next((j for j in rest if moves[j] == applied), rest[0]))
            return rest

        def choices(k: int, own: Sequence[str]) -> tuple[str, ...]:
            left: int | None = None
            if k == 0:
                left = start
            elif k < len(moves):
                left = _result(own[k - 1])
            return () if left is None else tuple(dict.fromkeys(line(left, j) for j in pending(k, own)))

        problem = _problem(len(moves), lambda k, own: next(iter(choices(k, own)), None), _number_after_equals)
        return problem if block == 1 else replace(problem, choices=choices)


class _Register(_Arithmetic[RegisterSettings]):
    """Variables: every line computes one from two earlier ones."""

    def _show(self, number: int) -> str:
        return str(number).zfill(len(str(self.settings.modulus - 1)))

    def question(self, rng: np.random.Generator) -> str:
        s = self.settings
        lines = [f"{_LETTERS[i]}={self._show(int(rng.integers(s.modulus)))}{SEPARATOR}" for i in range(s.inputs)]
        for here in range(s.inputs, s.inputs + self._draw_steps(rng)):
            left, right = here - 1, int(rng.integers(here))  # every line uses the line before
            if rng.random() < 0.5:
                left, right = right, left
            op = s.ops[int(rng.integers(len(s.ops)))]
            unknown = "?" * len(self._show(0))
            lines.append(f"{_LETTERS[here]}={_LETTERS[left]}{op}{_LETTERS[right]}={unknown}{SEPARATOR}")
        return "".join(lines)

    def solve(self, question: str) -> Problem:
        line = r"([a-z])=(?:([0-9]{1,6})|([a-z])([-+*])([a-z])=\?{1,6})"
        found = [match.groups() for match in self._parse(question, line, line)]
        inputs = {name: int(number) for name, number, *_ in found if number is not None}
        rules = [(name, left, op, right) for name, number, left, op, right in found if number is None]
        names = [*inputs, *(rule[0] for rule in rules)]
        known_in_time = all(
            {left, right} <= set(names[: len(inputs) + k]) for k, (_, left, _, right) in enumerate(rules)
        )
        if not rules or len(set(names)) != len(names) or not known_in_time:
            raise self._not_a_question(question)

        place = {rule[0]: k for k, rule in enumerate(rules)}

        def stated(name: str, own: Sequence[str]) -> int | None:
            if name in inputs:
                return inputs[name]
            line = own[place[name]]
            return _result(line) if line.startswith(f"{name}=") else None

        def follow(k: int, own: Sequence[str]) -> str | None:
            name, left, op, right = rules[k]
            a, b = stated(left, own), stated(right, own)
            if a is None or b is None:
                return None
            return f"{name}={self._show(a)}{op}{self._show(b)}={self._show(_compute(a, op, b, self.settings.modulus))}"

        return _problem(len(rules), follow, _number_after_equals)


class _Swap(TaskFamily[SwapSettings]):
    """A row of letters: every line exchanges the letters at two places."""

    def question(self, rng: np.random.Generator) -> str:
        n = self.settings.items
        row = "".join(_LETTERS[i].upper() for i in rng.permutation(n))
        lines = [row]
        for _ in range(self._draw_steps(rng)):
            i, j = sorted(int(place) for place in rng.choice(n, size=2, replace=False))
            lines.append(f"{i + 1}{j + 1}={'?' * n}")
        return "".join(line + SEPARATOR for line in lines)

    def solve(self, question: str) -> Problem:
        found = self._parse(question, r"[A-I]{2,9}", r"([1-9])([1-9])=\?+")
        start = found[0][0]
        moves = [(int(match[1]) - 1, int(match[2]) - 1) for match in found[1:]]
        if not moves or max(max(move) for move in moves) >= len(start):
            raise self._not_a_question(question)

        def follow(k: int, own: Sequence[str]) -> str | None:
            row = list(start if k == 0 else _symbol_after_equals(own[k - 1]) or "")
            if len(row) != len(start) or not set(row) <= set(start):
                return None
            i, j = moves[k]
            row[i], row[j] = row[j], row[i]
            return f"{i + 1}{j + 1}={''.join(row)}"

        return _problem(len(moves), follow, _symbol_after_equals)

    def mistaken(self, line: str, rng: np.random.Generator) -> str:
        left, _, result = line.partition("=")
        i, j = rng.choice(len(result), size=2, replace=False)
        row = list(result)
        row[i], row[j] = row[j], row[i]  # two places of the new row are exchanged
        return f"{left}={''.join(row)}"


class _Automaton(TaskFamily[AutomatonSettings]):
    """A table of transitions in the question: every line reads one letter and goes to the next state."""

    def question(self, rng: np.random.Generator) -> str:
        s = self.settings
        lines = [f"{_LETTERS[i]}={''.join(map(str, rng.integers(s.states, size=s.states)))}" for i in range(s.symbols)]
        for k in range(self._draw_steps(rng)):
            state = "?" if k else str(rng.integers(s.states))
            lines.append(f"{state}{_LETTERS[int(rng.integers(s.symbols))]}=?")
        return "".join(line + SEPARATOR for line in lines)

    def solve(self, question: str) -> Problem:
        row = r"([a-z])=([0-9]{2,10})"
        found = self._parse(question, row, rf"{row}|([0-9?])([a-z])=\?")
        table = {match[1]: match[2] for match in found if match[1] is not None}
        reads = [(match[3], match[4]) for match in found[1:] if match[1] is None]
        sizes = {len(states) for states in table.values()}
        if not reads or not reads[0][0].isdigit() or len(sizes) != 1 or not {r[1] for r in reads} <= set(table):
            raise self._not_a_question(question)
        states = "0123456789"[: sizes.pop()]

        def follow(k: int, own: Sequence[str]) -> str | None:
            state = reads[0][0] if k == 0 else _symbol_after_equals(own[k - 1])
            if state is None or len(state) != 1 or state not in states:
                return None
            return f"{state}{reads[k][1]}={table[reads[k][1]][int(state)]}"

        return _problem(len(reads), follow, _symbol_after_equals)

    def mistaken(self, line: str, rng: np.random.Generator) -> str:
        return _other_digit(line, self.settings.states, rng)


class _Story(TaskFamily[StorySettings]):
    """Word problems: every line is one calculation, `Mia has 12 - 5 = 7 pears.`, in any words."""

    separator = "\n"

    def question(self, rng: np.random.Generator) -> str:
        question = draw_story(self.settings, self._draw_steps(rng), rng)
        if question is None:
            raise DataError(f"no word problem fits {self.settings}; raise task.high, or give task.ops more operations")
        return question

    def solve(self, question: str) -> Problem:
        story = read_story(question)
        if story is None:
            raise self._not_a_question(question)

        def follow(k: int, own: Sequence[str]) -> str | None:
            amount = line_value(own[k - 1]) if k else Fraction(story.start)
            return None if amount is None else story.line(amount, k)

        return replace(_problem(len(story.changes), follow, _value_of_sentence), prose=True)

    def fact(self, line: str) -> str:
        calculation = re.sub(r"^[^0-9]*", "", super().fact(line))
        return re.sub(r"[0-9]*([0-9])", r"\1", calculation)  # of `Mia has 12 + 35 = 47 pears.`: `2 + 5 `

    def mistaken(self, line: str, rng: np.random.Generator) -> str:
        left, _, result = line.rpartition("= ")
        number, _, unit = result.partition(" ")
        return f"{left}= {_other_digit(number, 10, rng)} {unit}"


def _value_of_sentence(line: str) -> str | None:
    value = line_value(line)
    return None if value is None else str(value)


def _other_digit(line: str, base: int, rng: np.random.Generator) -> str:
    """The line with its last digit changed, to another one below `base`."""
    return line[:-1] + str((int(line[-1]) + int(rng.integers(1, base))) % base)


def _problem(n: int, follow: Callable[[int, Sequence[str]], str | None], value: Callable[[str], str | None]) -> Problem:
    """The problem whose n true lines follow from the question, line after line."""
    lines: list[str] = []
    for k in range(n):
        line = follow(k, lines)
        if line is None:
            raise DataError(f"line {k + 1} of the question has no true solution; was its prompt changed?")
        lines.append(line)
    return Problem(tuple(lines), lambda k, own: follow(k, own) if k < n else None, value)


def judge(problem: Problem, text: str, separator: str = SEPARATOR) -> StepTruth:
    """Compare a text with the truth about a problem; blanks around a line do not count."""
    spans = step_spans(text, separator)
    if problem.prose:
        return _judge_sentences(problem, text, [span for span in spans if text[slice(*span)].strip()])
    lines = [text[start:end].strip().removesuffix(separator).strip() for start, end in spans]
    follows = tuple(line in problem.next_lines(k, lines[:k]) for k, line in enumerate(lines[: len(problem.lines)]))
    if problem.choices is None:
        correct = tuple(k < len(problem.lines) and line == problem.lines[k] for k, line in enumerate(lines))
    else:  # there are several true solutions
        correct = tuple(k < len(follows) and all(follows[: k + 1]) for k in range(len(lines)))
    written = [line for line in lines if line]
    follows += (False,) * (len(lines) - len(follows))
    return _truth(problem, correct, follows, spans, problem.value(written[-1]) if written else None, len(lines))


def _truth(
    problem: Problem,
    correct: Sequence[bool],
    follows: Sequence[bool],
    spans: tuple[tuple[int, int], ...],
    answer: str | None,
    stated: int,
) -> StepTruth:
    """What is true about steps that state so many lines of the solution."""
    return StepTruth(
        correct=tuple(correct),
        follows=tuple(follows),
        spans=spans,
        first_error=correct.index(False) if False in correct else -1,
        answer=answer,
        outcome=answer is not None and answer == problem.value(problem.lines[-1]),
        expected=len(problem.lines),
        complete=all(correct) and stated == len(problem.lines),
    )


def _judge_sentences(problem: Problem, text: str, written: Sequence[tuple[int, int]]) -> StepTruth:
    """The truth of lines in words: each stands for as many true lines as it has calculations, at least one.

    A line without a calculation may state the result of the line before it again.

    Args:
        problem: whose lines are sentences.
        text: the response.
        written: spans of the lines that are not blank.
    """
    ends = [start for start, _ in written[1:]] + [len(text)]
    spans = tuple(zip([0, *ends], ends, strict=False)) if written else ()  # blank lines belong to the line before
    own: list[str] = []  # the lines so far, one for each true line that they stand for
    correct: list[bool] = []
    follows: list[bool] = []
    for start, end in written:
        line = text[start:end].strip()
        calculations = covers(line)
        if own and not calculations and same_line(line, own[-1]):
            correct.append(correct[-1])
            follows.append(True)
            continue
        for _ in range(calculations - 1):  # what was calculated on the way is not written
            own.append(problem.follow(len(own), own) or "")
        k, place = len(own), len(own) < len(problem.lines)
        due = problem.follow(k, own)
        correct.append(place and same_line(line, problem.lines[k]))
        follows.append(due is not None and same_line(line, due))
        own.append(line)
    value = stated_answer(text)
    return _truth(problem, correct, follows, spans, None if value is None else str(value), len(own))


def is_generated(prompt: Prompt) -> bool:
    """Whether the truth of a prompt can be recomputed."""
    return "family" in prompt.extra_info


def family_of(prompt: Prompt) -> TaskFamily[Any]:
    """The family of a generated prompt, from its `extra_info`.

    Raises:
        DataError: it is not a generated prompt, or its parameters are not those of its family.
    """
    if not is_generated(prompt):
        raise DataError(f"prompt {prompt.id} is not a generated problem: the truth of its steps is not known")
    given = {"family": prompt.extra_info["family"], **prompt.extra_info.get("parameters", {})}
    return _family(json.dumps(given, sort_keys=True))


@lru_cache(maxsize=256)
def _family(given: str) -> TaskFamily[Any]:
    try:
        return task_family(_TASK.validate_json(given))
    except ValidationError as error:
        raise DataError(
            f"extra_info describes no family of this version: {given}: {error}", field="extra_info"
        ) from error


def step_truth(prompt: Prompt, text: str) -> StepTruth:
    """The truth of every step of a response, recomputed from the prompt alone.

    Raises:
        DataError: the prompt is not a generated problem, or its question was changed.
    """
    family = family_of(prompt)
    return judge(family.solve(prompt.question), text, family.separator)


@lru_cache(maxsize=2)  # `compare --dry-run` checks every arm of a task
def generate(settings: TaskSettings, train_size: int, val_size: int) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Different problems to train on and to validate on; no question is in both.

    Validation problems are drawn first and from a stream of their own: they stay the same for any `train_size`.

    Raises:
        DataError: the family has too few different problems at this difficulty.
    """
    family = task_family(settings)
    validation = _draw(family, val_size, np.random.default_rng([settings.seed, 1]), taken=())
    train = _draw(family, train_size, np.random.default_rng([settings.seed, 0]), taken=validation)
    return train, validation


def _draw(family: TaskFamily[Any], size: int, rng: np.random.Generator, taken: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """`size` different problems, none of them among those taken."""
    seen = {prompt.question for prompt in taken}
    questions: dict[str, None] = {}  # in order
    for _ in range(_TRIES_PER_PROBLEM * size):
        if len(questions) == size:
            break
        if (question := family.question(rng)) not in seen:
            questions[question] = None
    if len(questions) < size:
        found = len(seen | questions.keys())
        raise DataError(
            f"the family {family.name} has hardly more than {found} different problems at this difficulty; lower "
            "data.train_size or data.val_size, or make the task larger"
        )
    return tuple(family.prompt(question) for question in questions)
