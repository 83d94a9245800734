"""Scalars in what trainers print: verl, OpenRLHF, the `Trainer` of transformers, which TRL uses, and Stable-Baselines3.

    curves = ConsoleLogs().read([path])[path]
    curves["critic/score/mean"]                       # steps and values

A line counts wherever it stands: behind the prefix of a Ray worker, a colour, a progress bar, or in a notebook.

    step:5 - critic/score/mean:0.5 - actor/entropy:np.float64(0.25)       verl
    Global step 5: {'reward': 0.5, 'response_length': 120.0}              OpenRLHF
    {'loss': 0.1, 'reward': 0.5, 'epoch': 0.4}                            transformers; steps are the lines, from 1
    | rollout/ | | and below it |    ep_rew_mean | 0.5 |                  Stable-Baselines3, a table between two rules
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from guerdon.auditing.scalar_files import STEPS, Curves, curves_of_points, trainer_tag
from guerdon.files.bounds import bounded_lines

ENDINGS = (".log", ".out")
"""In the names of files of a folder that are looked at; a file that is named is looked at whatever it is called."""
_NUMBER = r"(?:(?:np\.|numpy\.|torch\.)?\w+\()?(?P<value>[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))"
_VERL = re.compile(r"(?<![\w/.])step:(\d+)(?= - )")
_VERL_PAIR = re.compile(rf" - (?P<name>\S+):{_NUMBER}")
_RLHF = re.compile(r"(?:Global step|Eval at step|global_step) (\d+)(?:, eval_metrics)?: \{")
_FLAT = re.compile(r"\{'[^{}]*'epoch': '?[\d.e+-]+'?[^{}]*\}")
_PAIR = re.compile(rf"'(?P<name>[^']+)': '?{_NUMBER}(?=[',)}}])")

_ROW = re.compile(rf"\W*\| +(?P<name>\w+/?) +\| +(?:{_NUMBER})? *\|")
_MARKS = (b"step:", b"{'", b"| ", b"-" * 20)
_RULE, _TIMESTEPS = "-" * 20, "time/total_timesteps"

Points = Iterator[tuple[str, int, float]]


class ConsoleLogs:
    """Reads files of printed lines, each as a whole where it has changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], Curves]] = {}

    def read(self, files: Sequence[Path]) -> dict[Path, Curves]:
        """The scalars of each file that has some."""
        for file in files:
            found = file.stat()
            state = found.st_size, found.st_mtime_ns
            if self._known.get(file, ((-1, -1), {}))[0] != state:
                self._known[file] = state, _curves_in(file)
        return {file: self._known[file][1] for file in files if self._known[file][1]}


def _curves_in(file: Path) -> Curves:
    points: dict[str, list[tuple[float, float]]] = {}
    printed, table = 0, _Table()
    for line in _lines(file):
        printed += _FLAT.search(line) is not None
        for name, step, value in (*_points(line, printed), *table.points(line)):
            points.setdefault(name, []).append((step, value))
    return curves_of_points(points)


class _Table:
    """A table of Stable-Baselines3: names below the folder that they are in, up to the next rule."""

    def __init__(self) -> None:
        self._folder = ""
        self._rows: dict[str, float] = {}

    def points(self, line: str) -> Points:
        """The scalars of a table that ends with a line."""
        row = _ROW.match(line)
        if row is not None and row["value"] is None:
            self._folder = row["name"] if row["name"].endswith("/") else ""
        elif row is not None and self._folder:
            self._rows[f"{self._folder}{row['name']}"] = float(row["value"])
        elif row is None and _RULE in line:
            step = self._rows.pop(_TIMESTEPS, STEPS)
            yield from ((name, int(step), value) for name, value in self._rows.items() if step < STEPS)
            self._folder, self._rows = "", {}


def _lines(file: Path) -> Iterator[str]:
    """The lines of a file of text that may have scalars, with those that a progress bar wrote over; none of others."""
    with file.open("rb") as opened:
        for line in bounded_lines(opened):
            if not isinstance(line, bytes):
                continue
            if b"\0" in line:
                return
            if any(mark in line for mark in _MARKS):
                yield from line.decode("utf-8", "replace").split("\r")


def _points(line: str, printed: int) -> Points:
    """The scalars of a line, with the folder that the tool's TensorBoard has in front of their names.

    Args:
        line: of text.
        printed: lines of `Trainer` up to here.
    """
    verl, rlhf, flat = _VERL.search(line), _RLHF.search(line), _FLAT.search(line)
    if verl is not None:
        yield from _pairs(_VERL_PAIR, line[verl.end() :], int(verl[1]))
    elif rlhf is not None:
        for name, step, value in _pairs(_PAIR, line[rlhf.end() :], int(rlhf[1])):
            yield f"{'eval' if name.startswith('eval_') else 'train'}/{name}", step, value
    elif flat is not None:
        for name, step, value in _pairs(_PAIR, flat[0], printed):
            yield trainer_tag(name), step, value


def _pairs(pattern: re.Pattern[str], text: str, step: int) -> Points:
    """Names and numbers."""
    if step < STEPS:
        yield from ((pair["name"], step, float(pair["value"])) for pair in pattern.finditer(text))
