"""Word problems for an agent with a pocket calculator: problems, tool and table of `agent_demo.yaml`.

    Mia has 834 books. Mia also has 246 stamps. Mia finds 443 books. Mia buys 406 books. How many books does Mia
    have now?

needs the calls `834 + 443` and `1277 + 406`. The calculator takes two numbers, so the second call needs the result of
the first; the stamps do not matter. The supervised start sees problems that need one call: those of one change, and
those of two of which the first call and its result are there already. It is never trained on a first call after which
another is needed. Of the problems of the second kind, a share drawn by chance is finished; in the others the first
result is taken for the answer. So the start makes the second call now and then, and more of the same conversations do
not teach it to make it always.

    python studies/agent_demo.py problems      writes start, train and held_out, .jsonl each, to runs/agent_demo
    guerdon train studies/agent_start.yaml policy=sft
    guerdon compare studies/agent_demo.yaml compare.arms=[outcome] compare.seeds=[0]
    python studies/agent_demo.py table         success on the held-out problems, by replies at temperature 1
    python studies/agent_demo.py continue      the start, trained on for as long as the run took; then the table again

`runner.seed=1` is the start of another seed, `--seed 1` the same trained on.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.config.modules import also_in
from guerdon.errors import DataError, GuerdonError
from guerdon.files.atomic import write_json, write_text
from guerdon.statistics.intervals import Interval, conclusion
from guerdon.statistics.proportion import difference_bounds
from guerdon.statistics.training_runs import paired_difference
from guerdon.tasks.tools import calculator
from guerdon.types import Episode, Message, RewardInfo, Score

if TYPE_CHECKING:  # a process of the tool imports this file, and needs no torch
    from guerdon.settings.study import Study

START, TRAIN, HELD_OUT = 512, 1024, 192  # conversations, problems, problems
BEGUN = 0.6  # share of the start's problems whose first call is made
FINISHED = 0.4  # share of these whose second call is made, too
NAMES = ("Anna", "Ben", "Clara", "Emma", "Finn", "Ida", "Jan", "Leo", "Lucy", "Max", "Mia", "Noah", "Nora", "Tom")
THINGS = ("balls", "books", "cards", "coins", "cups", "hats", "pears", "pens", "shells", "stamps")
VERBS = ("buys", "finds", "wins")
HERE = Path(__file__).parent
ARMS = ("outcome", "calls")
_OPERATION = re.compile(r"\s*-?[0-9]+\s*[-+*/]\s*-?[0-9]+\s*")
_ADDS = re.compile(r"\s*([0-9]+)\s*\+\s*([0-9]+)\s*")
_EXPRESSION = re.compile(r'"expression":\s*"([^"]*)"')
_SENTENCE = re.compile(r"(\w+) (?:has|buys|finds|wins) ([0-9]+) (\w+)\.")
_QUESTION = re.compile(r"How many (\w+) does (\w+) have now\?")


def calculate(expression: str) -> str:
    """Calculate one operation on two numbers.

    Args:
        expression: for example 12 * 4
    """
    if not _OPERATION.fullmatch(expression):
        return "error: only one operation on two numbers"
    return calculator(expression)


@dataclass(frozen=True)
class Problem:
    """A word problem.

    Attributes:
        sentences: what happens, in order.
        name: whose things are counted.
        thing: that is counted.
        calls: expressions in order; from the second on, the first number is the result of the call before.
        results: of the calls; the last one is the answer.
        idle: the number that does not matter.
    """

    sentences: tuple[str, ...]
    name: str
    thing: str
    calls: tuple[str, ...]
    results: tuple[int, ...]
    idle: int

    @property
    def question(self) -> str:
        """The whole text."""
        return f"{' '.join(self.sentences)} How many {self.thing} does {self.name} have now?"

    @property
    def answer(self) -> str:
        """The last result."""
        return str(self.results[-1])


def draw(rng: np.random.Generator, calls: int) -> Problem:
    """A problem with a sentence that does not matter.

    Args:
        rng: decides everything.
        calls: that it needs.
    """
    name, other = rng.choice(NAMES, 2, replace=False)
    thing, unasked = rng.choice(THINGS, 2, replace=False)
    number, *changes, idle = rng.integers(101, 900, calls + 2).tolist()
    sentences, expressions, results = [f"{name} has {number} {thing}."], list[str](), list[int]()
    for change in changes:
        expressions.append(f"{number} + {change}")
        number += change
        results.append(number)
        sentences.append(f"{name} {rng.choice(VERBS)} {change} {thing}.")
    about = f"{name} also has {idle} {unasked}.", f"{other} has {idle} {thing}.", f"{name} walks {idle} steps."
    sentences.insert(int(rng.integers(1, len(sentences) + 1)), about[int(rng.integers(len(about)))])
    return Problem(tuple(sentences), str(name), str(thing), tuple(expressions), tuple(results), idle)


def guessable(problem: Problem) -> bool:
    """Whether fewer calls than a problem needs give its answer by chance: none, or one with two of its numbers."""
    numbers = [int(one) for one in re.findall("[0-9]+", problem.question)]
    sums = {a + b for a, b in combinations(numbers, 2)} if len(problem.calls) > 1 else set()
    return problem.results[-1] in sums.union(numbers)


def problems(rng: np.random.Generator, size: int, calls: int, taken: set[str]) -> Iterator[Problem]:
    """Different problems; their questions are added to `taken`."""
    while size:
        problem = draw(rng, calls)
        if problem.question in taken or guessable(problem):
            continue
        taken.add(problem.question)
        size -= 1
        yield problem


def prompt_row(problem: Problem) -> dict[str, Any]:
    """A problem as a prompt with its answer."""
    return {"prompt": problem.question, "answer": problem.answer}


def worked(problem: Problem) -> list[dict[str, Any]]:
    """The conversation about a problem: its question, a call and its result for each step, and the answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": problem.question}]
    for k, (expression, result) in enumerate(zip(problem.calls, problem.results, strict=True)):
        called = {"name": "calculate", "arguments": {"expression": expression}}
        call = {"id": f"call_{k}", "type": "function", "function": called}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": str(result), "tool_call_id": call["id"], "name": "calculate"})
    return [*messages, {"role": "assistant", "content": problem.answer}]


def start_rows(rng: np.random.Generator, taken: set[str]) -> Iterator[dict[str, Any]]:
    """Conversations for the start; its turns are those of the completion, which has at most one call.

    A share `BEGUN` of the problems needs two calls, of which the first and its result are part of the prompt. A share
    `FINISHED` of these, drawn by chance, is finished; in the others the first result is the answer, a mistake that
    more of the same conversations do not correct.

    Args:
        rng: decides everything.
        taken: questions so far; those of the conversations are added.
    """
    begun = round(BEGUN * START)
    rows = []
    for problem in problems(rng, begun, 2, taken):
        messages = worked(problem)
        mistaken = {"role": "assistant", "content": str(problem.results[0])}
        rows.append((messages[:3], messages[3:] if rng.random() < FINISHED else [mistaken]))
    for problem in problems(rng, START - begun, 1, taken):
        messages = worked(problem)
        rows.append((messages[:1], messages[1:]))
    for k in rng.permutation(len(rows)):
        prompt, completion = rows[k]
        yield {"prompt": prompt, "completion": completion}


def write_problems(folder: Path) -> None:
    """Write `start.jsonl`, `train.jsonl` and `held_out.jsonl`; no question is in two of them."""
    taken: set[str] = set()
    rngs = [np.random.default_rng([0, part]) for part in range(3)]
    rows = {
        "held_out": map(prompt_row, problems(rngs[0], HELD_OUT, 2, taken)),
        "train": map(prompt_row, problems(rngs[1], TRAIN, 2, taken)),
        "start": start_rows(rngs[2], taken),
    }
    for name, found in rows.items():
        write_text(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in found))


def numbers_left(question: str, context: Sequence[Message]) -> Counter[int]:
    """Numbers that are still to be added to answer a question as `draw` makes it, after the calls in the context."""
    asked = _QUESTION.search(question)
    assert asked is not None
    thing, name = asked.groups()
    left = Counter(int(number) for who, number, what in _SENTENCE.findall(question) if (who, what) == (name, thing))
    for message in context:
        for call in message.get("tool_calls", ()):
            added = numbers_added(str(call["function"]["arguments"].get("expression")))
            if added and added <= left:
                left = left - added + Counter([sum(added.elements())])
    return left


def numbers_added(expression: str) -> Counter[int]:
    """The two numbers of an addition; none where it is something else."""
    found = _ADDS.fullmatch(expression)
    return Counter(map(int, found.groups())) if found else Counter()


class RightCalls:
    """Reward of a turn: 1 where it calls the calculator with two numbers that are still to be added, else 0."""

    info = RewardInfo(name="right_calls", range=(0.0, 1.0), granularity="total", modality="text")

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """A value per turn; the messages before it are its context, empty for a first one; the question its task."""
        return [Score(total=float(self._is_right(episode))) for episode in episodes]

    def _is_right(self, turn: Episode) -> bool:
        called = _EXPRESSION.search("".join(turn.texts or ()))
        added = numbers_added(called[1]) if called else Counter()
        return bool(added) and added <= numbers_left(turn.task, turn.context)


def sampled_success(study: Study, model: Path) -> float:
    """Success of a model on the held-out problems, by replies at temperature 1; measured once and kept beside it."""
    kept = model.with_name(f"{model.name}_success.json")
    if not kept.is_file():
        from guerdon.collect.evaluated import evaluation
        from guerdon.collect.text import TextCollector
        from guerdon.settings.text_policy import TextPolicySettings

        assert study.data is not None
        policy = TextPolicySettings(path=str(model))
        with closing(TextCollector(study.data, study.generation, policy, seed=0, agent=study.agent)) as collector:
            write_json(kept, evaluation(collector.show(collector.policy, prompts=HELD_OUT, samples=1)))
    found: dict[str, float] = json.loads(kept.read_bytes())
    return found["success"]


def continue_start(folder: Path, seed: int) -> None:
    """Train a start on, on its own data, for as long as the run with the outcome alone took to learn.

    Raises:
        GuerdonError: there is no start or no run, or the training fails.
    """
    start = folder / f"start{seed}"
    begun = finished(start / "metrics.json")
    steps = math.ceil(run_seconds(run_folder(folder, seed)) * begun["steps"] / begun["seconds"])
    from guerdon.train.sft import train_sft_study

    overrides = {
        "runner.seed": seed,
        "policy.path": start / "model",
        "sft.save_dir": folder / f"continued{seed}",
        "sft.max_steps": steps,
    }
    study = study_of("agent_start.yaml", folder, *(f"{key}={value}" for key, value in overrides.items()))
    train_sft_study(study, resume=True)


def study_of(name: str, folder: Path, *overrides: str) -> Study:
    """A study of this folder, in another folder of results and with changes."""
    from guerdon.api import load_study

    return load_study(HERE / name, f"work_dir={folder}", *overrides)


def run_folder(folder: Path, seed: int, arm: str = "outcome") -> Path:
    """Where `guerdon compare` keeps a run."""
    return folder / "runs" / "files" / arm / f"seed{seed}"


def run_seconds(run: Path) -> float:
    """Seconds of a run up to its last update: without the evaluation at the end."""
    finished(run / "COMPLETE")
    rows = [json.loads(line) for line in (run / "timings.jsonl").read_text(encoding="utf-8").splitlines()]
    return float([row["wall_time"] for row in rows if row.get("kind") != "eval"][-1])


def finished(file: Path) -> dict[str, Any]:
    """What a command wrote at its end.

    Raises:
        DataError: it has not ended.
    """
    if not file.is_file():
        raise DataError(f"{file} is not there: the commands of {Path(__file__).name} come one after the other")
    found: dict[str, Any] = json.loads(file.read_bytes())
    return found


def measured(folder: Path, seed: int) -> dict[str, float]:
    """Success of those policies of a seed that are there: the start, the start trained on, and the runs."""
    ends = {
        "start": folder / f"start{seed}" / "metrics.json",
        "continued": folder / f"continued{seed}" / "metrics.json",
        **{arm: run_folder(folder, seed, arm) / "COMPLETE" for arm in ARMS},
    }
    models = {name: end.with_name("policy" if name in ARMS else "model") for name, end in ends.items() if end.is_file()}
    study = study_of("agent_demo.yaml", folder)
    return {name: sampled_success(study, model) for name, model in models.items()}


def difference(rows: Sequence[dict[str, float]], arm: str, than: str) -> Interval:
    """Success of an arm minus that of another policy: mean over seeds; of one seed over problems."""
    if len(rows) > 1:
        return paired_difference([[row[arm] for row in rows]], [[row[than] for row in rows]], seed=0).interval
    run, other = (rows[0][name] for name in (arm, than))
    low, high = difference_bounds((other * HELD_OUT, HELD_OUT), (run * HELD_OUT, HELD_OUT))
    return Interval(run - other, low, high, 1)


def table(folder: Path) -> str:
    """The figures of all seeds that have ended, as text.

    Raises:
        DataError: no seed has.
    """
    seeds = sorted(int(one.parent.name.removeprefix("seed")) for one in run_folder(folder, 0).parent.glob("*/COMPLETE"))
    if not seeds:
        finished(run_folder(folder, 0) / "COMPLETE")
    rows = [measured(folder, seed) for seed in seeds]
    names = [name for name in ("start", "continued", *ARMS) if all(name in row for row in rows)]
    lines = ["seed  " + "".join(f"{name:>11}" for name in names)]
    for seed, row in zip(seeds, rows, strict=True):
        lines.append(f"{seed:<6}" + "".join(f"{row[name]:11.3f}" for name in names))
    for than, arm in combinations(names, 2):
        if arm not in ARMS:
            continue
        found = difference(rows, arm, than)
        bounds = "no interval" if found.low is None else f"[{found.low:+.3f}, {found.high:+.3f}]"
        lines.append(f"{arm} minus {than}: {found.estimate:+.3f} {bounds}: {conclusion(found)}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """One of the three steps that are no command of guerdon."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("step", choices=("problems", "continue", "table"))
    ask.add_argument("folder", nargs="?", type=Path, default=Path("runs/agent_demo"), help="work_dir of the study")
    ask.add_argument("--seed", type=int, default=0, help="of the start to train on")
    asked = ask.parse_args(arguments)
    try:
        with also_in(str(HERE.parent)):  # where the study finds its tool
            if asked.step == "problems":
                write_problems(asked.folder)
            elif asked.step == "continue":
                continue_start(asked.folder, asked.seed)
            else:
                print(table(asked.folder))
    except GuerdonError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
