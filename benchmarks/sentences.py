"""Sentence splitters on the texts of tests/labels/sentence_texts.py: guerdon's rules, and libraries that are installed.

A text counts as correct when every sentence ends where it is marked. The libraries get each line by itself, with code
and mathematics replaced by one word (and their full stop, as for guerdon), so that only the rules for prose differ.

    pip install --target /tmp/splitters --no-deps blingfire pysbd sentencex syntok
    PYTHONPATH=/tmp/splitters python benchmarks/sentences.py
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from harness import machine_line, table

from guerdon.policies.batches import step_splitters as sentences

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "labels"))

from sentence_texts import LATER, TEXTS

Ends = Callable[[str], Iterator[int]]


def blingfire() -> Ends:
    """Ends of sentences by blingfire."""
    library = importlib.import_module("blingfire")
    return lambda line: (end for _, end in library.text_to_sentences_and_offsets(line)[1])


def in_order(segment: Callable[[str], list[str]]) -> Ends:
    """Ends of sentences by a function that returns them as texts."""

    def ends(line: str) -> Iterator[int]:
        at = 0
        for sentence in map(str.strip, segment(line)):
            at = line.index(sentence, at) + len(sentence)
            yield at

    return ends


def pysbd() -> Ends:
    """Ends of sentences by pysbd."""
    return in_order(importlib.import_module("pysbd").Segmenter(language="en", clean=False).segment)


def sentencex() -> Ends:
    """Ends of sentences by sentencex."""
    library = importlib.import_module("sentencex")
    return in_order(lambda line: library.segment("en", line))


def syntok() -> Ends:
    """Ends of sentences by syntok."""
    library = importlib.import_module("syntok.segmenter")

    def ends(line: str) -> Iterator[int]:
        for paragraph in library.analyze(line):
            for sentence in paragraph:
                yield sentence[-1].offset + len(sentence[-1].value)

    return ends


LIBRARIES = {"blingfire": blingfire, "sentencex": sentencex, "pysbd": pysbd, "syntok": syntok}


def with_library(text: str, ends: Ends) -> list[int]:
    """Where the sentences of a text end, its lines split by a library."""
    masked, lines = list(text), {0, len(text)}
    for start, end, kind in sentences._whole_parts(text):
        stop = None if kind == "code" else sentences._LAST_STOP.search(text, start, end)
        masked[start:end] = "X" * (end - start - 1) + (stop[0] if stop else "X")
    plain = "".join(masked)
    lines |= {line.end() for line in sentences._LINE.finditer(plain)}
    found, borders = set(lines), sorted(lines)
    for start, end in pairwise(borders):
        found |= {start + at for at in ends(plain[start:end])}
    return sorted(behind_blanks(plain, at) for at in found if at)


def behind_blanks(text: str, at: int) -> int:
    """A place, moved behind the blanks that follow it."""
    return at + len(text[at:]) - len(text[at:].lstrip())


def main() -> None:
    """Print how many texts each splitter splits correctly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print the texts that a splitter gets wrong")
    options = parser.parse_args()
    splitters: dict[str, Callable[[str], list[int]]] = {"guerdon": lambda text: sentences.sentence_ends(text)[0]}
    for name, make in LIBRARIES.items():
        try:
            ends = make()
        except ImportError:
            print(f"{name} is not installed")
            continue
        splitters[f"{name} {version(name)}"] = lambda text, ends=ends: with_library(text, ends)
    marked = list((TEXTS | LATER).values())
    rows = []
    for name, split in splitters.items():
        right = 0
        for text in marked:
            plain, parts = text.replace("¦", ""), text.split("¦")
            wanted = {behind_blanks(plain, sum(map(len, parts[: k + 1]))) for k in range(len(parts))}
            same = {behind_blanks(plain, at) for at in split(plain)} == wanted
            right += same
            if options.show and not same:
                print(name, repr(text))
        rows.append([name, f"{right} of {len(marked)}"])
    print(machine_line())
    print(table(["splitter", "texts split correctly"], rows))


if __name__ == "__main__":
    main()
