"""The rules of the generated tasks: how a problem is drawn, its true lines, and what follows from given lines.

Every family writes its question so that line k of the solution stands where line k of the question stood, with
the question marks filled in: a tiny model has to copy at a constant distance and compute one thing per line. The
true lines are recomputed from the question's text alone. This module does not know how text is split into lines
and judged (`reasoning.py`), nor what a model is.

    rules = rules_of(ChainSettings(steps=2))
    rules.solve("3+5=?;?*2=?;").lines          # ("3+5=8", "8*2=6")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from guerdon.errors import DataError
from guerdon.settings.data import AutomatonSettings, ChainSettings, RegisterSettings, SwapSettings, TaskSettings

SEPARATOR = ";"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LONGEST = 1000  # digits of a number worth reading


@dataclass(frozen=True)
class Problem:
    """The truth about one question.

    Attributes:
        lines: the true lines of its solution, without separators.
        follow: what line k must be, given the lines written before it; None where that cannot be said.
        value: what a line states as its result; None for a malformed line.
    """

    lines: tuple[str, ...]
    follow: Callable[[int, Sequence[str]], str | None]
    value: Callable[[str], str | None]


class Rules(Protocol):
    """One family with its difficulty."""

    def alphabet(self) -> str:
        """Every character of its questions and solutions, sorted."""
        ...

    def question(self, rng: np.random.Generator) -> str:
        """Draw a problem."""
        ...

    def solve(self, question: str) -> Problem:
        """The truth about a question of this family.

        Raises:
            DataError: it is not one.
        """
        ...

    def fact(self, line: str) -> str:
        """What a well-formed line asks one to know, whatever the numbers' higher digits: `37+08=45` asks `7+8`."""
        ...

    def mistaken(self, line: str, rng: np.random.Generator) -> str:
        """The line with another result of the same form."""
        ...


def rules_of(settings: TaskSettings) -> Rules:
    """The rules of the family that the settings choose."""
    match settings:
        case ChainSettings():
            return ChainRules(settings)
        case RegisterSettings():
            return RegisterRules(settings)
        case SwapSettings():
            return SwapRules(settings)
        case AutomatonSettings():
            return AutomatonRules(settings)


def _steps(settings: TaskSettings, rng: np.random.Generator) -> int:
    low = settings.steps if settings.min_steps is None else settings.min_steps
    return int(rng.integers(low, settings.steps + 1))


def _compute(left: int, op: str, right: int, modulus: int | None) -> int:
    result = left + right if op == "+" else left - right if op == "-" else left * right
    return result if modulus is None else result % modulus


def _number_after_equals(line: str) -> str | None:
    found = re.fullmatch(rf"(?s:.*)=(-?[0-9]{{1,{_LONGEST}}})", line)
    return found[1] if found else None


def _symbol_after_equals(line: str) -> str | None:
    return line.rpartition("=")[2] or None if "=" in line else None


def _lines_of(question: str, family: str, first: str, rest: str) -> list[re.Match[str]]:
    """The lines of a question, matched with the pattern of the first and of the others."""
    parts = question.split(SEPARATOR)
    found = [re.fullmatch(rest if k else first, part) for k, part in enumerate(parts[:-1])]
    if parts[-1] or not found or None in found:
        raise DataError(f"not a question of the family {family}: {question[:80]!r}; was its prompt changed?")
    return [match for match in found if match is not None]


@dataclass(frozen=True)
class ChainRules:
    """Long arithmetic: every line applies one operation to the result of the line before."""

    settings: ChainSettings

    @property
    def _width(self) -> int:
        """Characters per number; 0: as many as it has."""
        s = self.settings
        return 0 if s.modulus is None else max(len(str(s.modulus - 1)), len(str(s.high)))

    def _show(self, number: int) -> str:
        return str(number).zfill(self._width)

    def alphabet(self) -> str:
        """See `Rules.alphabet`."""
        minus = "-" if self.settings.modulus is None else ""  # plain results may be negative
        return "".join(sorted({*"0123456789=?", SEPARATOR, *self.settings.ops, *minus}))

    def question(self, rng: np.random.Generator) -> str:
        """See `Rules.question`."""
        s, unknown = self.settings, "?" * max(1, self._width)
        lines = []
        for k in range(_steps(s, rng)):
            left = unknown if k else self._show(int(rng.integers(s.low, s.high + 1)))
            op = s.ops[int(rng.integers(len(s.ops)))]
            lines.append(f"{left}{op}{self._show(int(rng.integers(s.low, s.high + 1)))}={unknown}{SEPARATOR}")
        return "".join(lines)

    def solve(self, question: str) -> Problem:
        """See `Rules.solve`."""
        unknown = rf"\?{{{max(1, self._width)}}}"
        number, op = r"([0-9]{1,7})", r"([-+*])"
        found = _lines_of(question, "chain", rf"{number}{op}{number}={unknown}", rf"({unknown}){op}{number}={unknown}")
        start = int(found[0][1])
        moves = [(match[2], int(match[3])) for match in found]

        def line(left: int, k: int) -> str:
            op, right = moves[k]
            result = _compute(left, op, right, self.settings.modulus)
            return f"{self._show(left)}{op}{self._show(right)}={self._show(result)}"

        def follow(k: int, own: Sequence[str]) -> str | None:
            if k >= len(moves):
                return None
            left = start if k == 0 else _int_or_none(_number_after_equals(own[k - 1]))
            return None if left is None else line(left, k)

        return Problem(_true_lines(len(moves), follow), follow, _number_after_equals)

    def fact(self, line: str) -> str:
        """See `Rules.fact`."""
        return _last_digits(line)

    def mistaken(self, line: str, rng: np.random.Generator) -> str:
        """See `Rules.mistaken`."""
        return _other_digit(line, min(self.settings.modulus or 10, 10), rng)


@dataclass(frozen=True)
class RegisterRules:
    """Variables: every line computes one from two earlier ones."""

    settings: RegisterSettings

    def _show(self, number: int) -> str:
        return str(number).zfill(len(str(self.settings.modulus - 1)))

    def alphabet(self) -> str:
        """See `Rules.alphabet`."""
        s = self.settings
        return "".join(sorted({*"0123456789=?", SEPARATOR, *s.ops, *_LETTERS[: s.inputs + s.steps]}))

    def question(self, rng: np.random.Generator) -> str:
        """See `Rules.question`."""
        s = self.settings
        lines = [f"{_LETTERS[i]}={self._show(int(rng.integers(s.modulus)))}{SEPARATOR}" for i in range(s.inputs)]
        for here in range(s.inputs, s.inputs + _steps(s, rng)):
            left = here - 1 if s.chained else int(rng.integers(here))
            right = int(rng.integers(here))
            if s.chained and rng.random() < 0.5:
                left, right = right, left
            op = s.ops[int(rng.integers(len(s.ops)))]
            unknown = "?" * len(self._show(0))
            lines.append(f"{_LETTERS[here]}={_LETTERS[left]}{op}{_LETTERS[right]}={unknown}{SEPARATOR}")
        return "".join(lines)

    def solve(self, question: str) -> Problem:
        """See `Rules.solve`."""
        line = r"([a-z])=(?:([0-9]{1,6})|([a-z])([-+*])([a-z])=\?{1,6})"
        found = [match.groups() for match in _lines_of(question, "register", line, line)]
        inputs = {name: int(number) for name, number, *_ in found if number is not None}
        rules = [(name, left, op, right) for name, number, left, op, right in found if number is None]
        names = [*inputs, *(rule[0] for rule in rules)]
        known_in_time = all(
            {left, right} <= set(names[: len(inputs) + k]) for k, (_, left, _, right) in enumerate(rules)
        )
        if not rules or len(set(names)) != len(names) or not known_in_time:
            raise DataError(f"not a question of the family register: {question[:80]!r}; was its prompt changed?")

        place = {rule[0]: k for k, rule in enumerate(rules)}

        def stated(name: str, own: Sequence[str]) -> int | None:
            if name in inputs:
                return inputs[name]
            line = own[place[name]]
            return _int_or_none(_number_after_equals(line)) if line.startswith(f"{name}=") else None

        def follow(k: int, own: Sequence[str]) -> str | None:
            if k >= len(rules):
                return None
            name, left, op, right = rules[k]
            a, b = stated(left, own), stated(right, own)
            if a is None or b is None:
                return None
            return f"{name}={self._show(a)}{op}{self._show(b)}={self._show(_compute(a, op, b, self.settings.modulus))}"

        return Problem(_true_lines(len(rules), follow), follow, _number_after_equals)

    def fact(self, line: str) -> str:
        """See `Rules.fact`."""
        return _last_digits(line)

    def mistaken(self, line: str, rng: np.random.Generator) -> str:
        """See `Rules.mistaken`."""
        return _other_digit(line, min(self.settings.modulus or 10, 10), rng)


@dataclass(frozen=True)
class SwapRules:
    """A row of letters: every line exchanges the letters at two places."""

    settings: SwapSettings

    def alphabet(self) -> str:
        """See `Rules.alphabet`."""
        n = self.settings.items
        return "".join(sorted({*"=?", SEPARATOR, *_LETTERS[:n].upper(), *"123456789"[:n]}))

    def question(self, rng: np.random.Generator) -> str:
        """See `Rules.question`."""
        n = self.settings.items
        row = "".join(_LETTERS[i].upper() for i in rng.permutation(n))
        lines = [row]
        for _ in range(_steps(self.settings, rng)):
            i, j = sorted(int(place) for place in rng.choice(n, size=2, replace=False))
            lines.append(f"{i + 1}{j + 1}={'?' * n}")
        return "".join(line + SEPARATOR for line in lines)

    def solve(self, question: str) -> Problem:
        """See `Rules.solve`."""
        found = _lines_of(question, "swap", r"[A-I]{2,9}", r"([1-9])([1-9])=\?+")
        start = found[0][0]
        moves = [(int(match[1]) - 1, int(match[2]) - 1) for match in found[1:]]
        if not moves or max(max(move) for move in moves) >= len(start):
            raise DataError(f"not a question of the family swap: {question[:80]!r}; was its prompt changed?")

        def follow(k: int, own: Sequence[str]) -> str | None:
            if k >= len(moves):
                return None
            row = list(start if k == 0 else _symbol_after_equals(own[k - 1]) or "")
            if len(row) != len(start) or not set(row) <= set(start):
                return None
            i, j = moves[k]
            row[i], row[j] = row[j], row[i]
            return f"{i + 1}{j + 1}={''.join(row)}"

        return Problem(_true_lines(len(moves), follow), follow, _symbol_after_equals)

    def fact(self, line: str) -> str:
        """See `Rules.fact`."""
        return line.partition("=")[0]

    def mistaken(self, line: str, rng: np.random.Generator) -> str:
        """See `Rules.mistaken`: two places of the new row are exchanged."""
        left, _, result = line.partition("=")
        i, j = rng.choice(len(result), size=2, replace=False)
        row = list(result)
        row[i], row[j] = row[j], row[i]
        return f"{left}={''.join(row)}"


@dataclass(frozen=True)
class AutomatonRules:
    """A table of transitions in the question: every line reads one letter and goes to the next state."""

    settings: AutomatonSettings

    def alphabet(self) -> str:
        """See `Rules.alphabet`."""
        s = self.settings
        return "".join(sorted({*"=?", SEPARATOR, *_LETTERS[: s.symbols], *"0123456789"[: s.states]}))

    def question(self, rng: np.random.Generator) -> str:
        """See `Rules.question`."""
        s = self.settings
        lines = [f"{_LETTERS[i]}={''.join(map(str, rng.integers(s.states, size=s.states)))}" for i in range(s.symbols)]
        for k in range(_steps(s, rng)):
            state = "?" if k else str(rng.integers(s.states))
            lines.append(f"{state}{_LETTERS[int(rng.integers(s.symbols))]}=?")
        return "".join(line + SEPARATOR for line in lines)

    def solve(self, question: str) -> Problem:
        """See `Rules.solve`."""
        row = r"([a-z])=([0-9]{2,10})"
        found = _lines_of(question, "automaton", row, rf"{row}|([0-9?])([a-z])=\?")
        table = {match[1]: match[2] for match in found if match[1] is not None}
        reads = [(match[3], match[4]) for match in found[1:] if match[1] is None]
        sizes = {len(states) for states in table.values()}
        if not reads or not reads[0][0].isdigit() or len(sizes) != 1 or not {r[1] for r in reads} <= set(table):
            raise DataError(f"not a question of the family automaton: {question[:80]!r}; was its prompt changed?")
        states = "0123456789"[: sizes.pop()]

        def follow(k: int, own: Sequence[str]) -> str | None:
            if k >= len(reads):
                return None
            state = reads[0][0] if k == 0 else _symbol_after_equals(own[k - 1])
            if state is None or len(state) != 1 or state not in states:
                return None
            return f"{state}{reads[k][1]}={table[reads[k][1]][int(state)]}"

        return Problem(_true_lines(len(reads), follow), follow, _symbol_after_equals)

    def fact(self, line: str) -> str:
        """See `Rules.fact`."""
        return line.partition("=")[0]

    def mistaken(self, line: str, rng: np.random.Generator) -> str:
        """See `Rules.mistaken`."""
        return _other_digit(line, self.settings.states, rng)


def _last_digits(line: str) -> str:
    """Of `d=47*03=41`: `7*3`."""
    what = re.sub(r"^[a-z]=", "", line.rpartition("=")[0])
    return re.sub(r"[0-9]*([0-9])", r"\1", what)


def _other_digit(line: str, base: int, rng: np.random.Generator) -> str:
    """The line with its last digit changed, to another one below `base`."""
    return line[:-1] + str((int(line[-1]) + int(rng.integers(1, base))) % base)


def _int_or_none(text: str | None) -> int | None:
    return None if text is None else int(text)


def _true_lines(n: int, follow: Callable[[int, Sequence[str]], str | None]) -> tuple[str, ...]:
    """The solution: what follows from the question, line after line."""
    lines: list[str] = []
    for k in range(n):
        line = follow(k, lines)
        if line is None:
            raise DataError(f"line {k + 1} of the question has no true solution; was its prompt changed?")
        lines.append(line)
    return tuple(lines)
