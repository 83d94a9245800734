"""Real text: does guerdon read GSM8K as its authors meant it?

For every published problem: is the published answer found in the worked solution and read as the same exact number?
Does the verifier accept it, also in other ways of writing, and refuse the next number? Are the steps of the solution a
partition of its text, with every calculation whole? Does it survive every file format, and each step end at a token of
its own?

    python studies/gsm8k.py data/gsm8k          # the folder with train.jsonl and test.jsonl

Prints a table of counts; a row that is not complete is shown with an example. Nothing is trained.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np

from guerdon.episodes.solution_files import Format, read_solutions, write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.policies.batches.step_splitters import split
from guerdon.policies.batches.tokens import step_ends, token_ends
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.settings.label import Splitter
from guerdon.tasks.answers import final_answer
from guerdon.tasks.prompt_files import read_gsm8k
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.quantities import numbers_of
from guerdon.tasks.verifier import Verifier

SPLITS = ("train", "test")
SPLITTERS: tuple[Splitter, ...] = ("newline", "sentence", "blank_line", "code_block", "tags")
FORMATS: tuple[Format, ...] = ("seed", "trl", "prm800k", "math_shepherd", "process_bench")


@dataclass
class Count:
    """How many of what was looked at is as it should be.

    Attributes:
        good: so many are.
        total: of so many.
        example: one that is not.
    """

    good: int = 0
    total: int = 0
    example: str = ""

    def add(self, good: bool, what: str) -> None:
        """Count one."""
        self.good += good
        self.total += 1
        self.example = self.example or ("" if good else what)


@dataclass
class Counts:
    """All counts by name, in order of appearance."""

    rows: dict[str, Count] = field(default_factory=dict)

    def __call__(self, name: str, good: bool, what: str) -> None:
        """Count one of this name."""
        self.rows.setdefault(name, Count()).add(good, what)

    def markdown(self) -> str:
        """A table; rows that are not complete come with an example."""
        lines = ["| GSM8K | as it should be | of |", "| --- | ---: | ---: |"]
        lines += [f"| {name} | {row.good:,} | {row.total:,} |" for name, row in self.rows.items()]
        odd = [f"- {name}: {row.example}" for name, row in self.rows.items() if row.good < row.total]
        return "\n".join([*lines, *(["", *odd] if odd else [])])


def published(prompt: Prompt) -> str:
    """The answer behind the hashes, as it stands in the file."""
    assert prompt.solution is not None
    return prompt.solution.rpartition("####")[2].strip()


def worked(prompt: Prompt) -> Solution:
    """The published solution, a step per line; all of its steps are right."""
    assert prompt.solution is not None
    steps = split(prompt.solution, "newline")
    return Solution(
        id=prompt.id, question=str(prompt.messages[-1]["content"]), steps=steps, labels=(1.0,) * len(steps),
        is_correct=True, ground_truth=prompt.ground_truth, answer=final_answer(prompt.solution), separator="\n",
    )  # fmt: skip


def other_ways(gold: str) -> Iterator[str]:
    """The same answer as others write it."""
    number = Fraction(gold.replace(",", ""))
    yield f"So the answer is ${gold}."
    yield f"**Answer:** $\\boxed{{{gold}}}$"
    yield f"#### {float(number):,.2f}" if number.denominator in (1, 2, 4, 5, 10, 20, 25, 50, 100) else f"#### {gold}"
    yield f"The final answer is {number.numerator}/{number.denominator} dollars."


def check_answers(prompts: Sequence[Prompt], count: Counts) -> None:
    """Is the published answer found, read and accepted, and another one refused?"""
    with Verifier("auto") as verifier:
        for prompt in prompts:
            assert prompt.solution is not None
            gold, found = published(prompt), final_answer(prompt.solution)
            number = Fraction(gold.replace(",", ""))
            count("stated answer found in the solution", found == gold == prompt.ground_truth, f"{found!r} {gold!r}")
            count("read as the same exact number", numbers_of(gold) == (number,), f"{gold!r}: {numbers_of(gold)}")
            count("solution accepted by the verifier", verifier.check(prompt.solution, prompt).correct is True, gold)
            for way in other_ways(gold):
                count("answer accepted in other ways of writing", verifier.check(way, prompt).correct is True, way)
            wrong = f"#### {number + 1}"
            count("next number refused", verifier.check(wrong, prompt).correct is False, f"{wrong} for {gold}")


def check_steps(prompts: Sequence[Prompt], count: Counts) -> None:
    """Are steps a partition of the text, with no calculation cut in two, and does each end at a token of its own?"""
    tokenizer = byte_tokenizer()
    for prompt in prompts:
        text = prompt.solution
        assert text is not None
        for name in SPLITTERS:
            steps = split(text, name)
            whole = "".join(steps) == text and all(step.strip() for step in steps)
            whole = whole and all(step.count("<<") == step.count(">>") for step in steps)
            count(f"solutions cut by {name}: nothing lost, no calculation cut", whole, repr(text[:200]))
        lines = [line for line in text.split("\n") if line.strip()]
        steps = split(text, "newline")
        for k, step in enumerate(steps):
            same = len(steps) == len(lines) and step.strip() == lines[k].strip()
            count("steps that are the lines of the solution", same, repr(step))
        ids = np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)
        ends = step_ends(token_ends(tokenizer, ids, text), text, "\n").tolist()
        closes = np.cumsum([len(step.encode()) for step in steps]) - 1  # a byte is a token here
        count("solutions whose steps end at the right tokens", ends == closes.tolist(), repr(text[:200]))


def check_formats(prompts: Sequence[Prompt], count: Counts) -> None:
    """Does every solution come back from every format as it was?"""
    solutions = [worked(prompt) for prompt in prompts]
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMATS:
            path = Path(folder) / f"{form}.jsonl"
            write_solutions(path, solutions, form)
            back = {s.id: s for s in read_solutions(path)}
            for solution in solutions:
                other = back.get(solution.id)
                kept = other is not None and (other.question, other.steps, other.first_error) == (
                    solution.question, solution.steps, -1,
                )  # fmt: skip
                count(f"solutions back from the format {form}", kept, f"{solution!r} {other!r}"[:400])


def counts(folder: Path) -> Counts:
    """All checks on both splits."""
    prompts = [prompt for name in SPLITS for prompt in read_gsm8k(folder, name)]
    count = Counts()
    check_answers(prompts, count)
    check_steps(prompts, count)
    check_formats(prompts, count)
    return count


def main() -> None:
    """Print the table; leave with 1 where a count is not complete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of GSM8K's own files, train.jsonl and test.jsonl")
    found = counts(parser.parse_args().folder)
    sys.stdout.write(found.markdown() + "\n")
    sys.exit(any(row.good < row.total for row in found.rows.values()))


if __name__ == "__main__":
    main()
