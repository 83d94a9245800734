"""Word problems for an agent with a pocket calculator: problems, tool and table of `agent_demo.yaml`.

    Mia has 834 books. Mia also has 246 stamps. Mia finds 443 books. Mia buys 406 books. How many books does Mia
    have now?

needs the calls `834 + 443` and `1277 + 406`. The calculator takes two numbers, so the second call needs the result of
the first; the stamps do not matter. The supervised start sees problems that need one call: those of one change, and
those of two of which the first call and its result are there already. It is never trained on a first call after which
another is needed. Its conversations finish only those of the second kind whose question ends with "in all", a third;
in the others the first result is taken for the answer.

    python studies/agent_demo.py problems runs/agent_demo/seed0     writes start, train and held_out, .jsonl each
    guerdon train studies/agent_demo.yaml policy=sft data.train_files=runs/agent_demo/seed0/start.jsonl
    guerdon run studies/agent_demo.yaml
    python studies/agent_demo.py continue runs/agent_demo/seed0     the start, trained on for as long as the run took
    python studies/agent_demo.py table runs/agent_demo/seed0        success on the held-out problems; several folders:
                                                                    intervals over seeds
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
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

if TYPE_CHECKING:  # a process of the tool imports this file, and needs no torch
    from guerdon.settings.study import Study

START, TRAIN, HELD_OUT = 512, 1024, 192  # conversations, problems, problems
BEGUN = 0.5  # share of the start's problems whose first call is made
NAMES = ("Anna", "Ben", "Clara", "Emma", "Finn", "Ida", "Jan", "Leo", "Lucy", "Max", "Mia", "Noah", "Nora", "Tom")
THINGS = ("balls", "books", "cards", "coins", "cups", "hats", "pears", "pens", "shells", "stamps")
VERBS = ("buys", "finds", "wins")
ENDS = ("now", "in all", "altogether")  # of the question
FINISHED = "in all"  # end of the question of those problems that are finished in the start
_OPERATION = re.compile(r"\s*-?[0-9]+\s*[-+*/]\s*-?[0-9]+\s*")


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
        end: of the question.
        idle: the number that does not matter.
    """

    sentences: tuple[str, ...]
    name: str
    thing: str
    calls: tuple[str, ...]
    results: tuple[int, ...]
    end: str
    idle: int

    @property
    def question(self) -> str:
        """The whole text."""
        return f"{' '.join(self.sentences)} How many {self.thing} does {self.name} have {self.end}?"

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
    return Problem(
        tuple(sentences), str(name), str(thing), tuple(expressions), tuple(results), str(rng.choice(ENDS)), idle
    )


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


def start_rows(rng: np.random.Generator, taken: set[str], begun: float = BEGUN) -> Iterator[dict[str, Any]]:
    """Conversations for the start; its turns are those of the completion, which has at most one call.

    Args:
        rng: decides everything.
        taken: questions so far; those of the conversations are added.
        begun: share of the problems that need two calls, of which the first and its result are part of the prompt.
            Those whose question ends with `FINISHED` are finished; in the others the first result is the answer, a
            mistake that more of the same conversations do not correct.
    """
    begun_rows = round(begun * START)
    rows = []
    for problem in problems(rng, begun_rows, 2, taken):
        messages = worked(problem)
        mistaken = {"role": "assistant", "content": str(problem.results[0])}
        rows.append((messages[:3], messages[3:] if problem.end == FINISHED else [mistaken]))
    for problem in problems(rng, START - begun_rows, 1, taken):
        messages = worked(problem)
        rows.append((messages[:1], messages[1:]))
    for k in rng.permutation(len(rows)):
        prompt, completion = rows[k]
        yield {"prompt": prompt, "completion": completion}


def write_problems(folder: Path, begun: float = BEGUN) -> None:
    """Write `start.jsonl`, `train.jsonl` and `held_out.jsonl`; no question is in two of them."""
    taken: set[str] = set()
    rngs = [np.random.default_rng([0, part]) for part in range(3)]
    rows = {
        "held_out": map(prompt_row, problems(rngs[0], HELD_OUT, 2, taken)),
        "train": map(prompt_row, problems(rngs[1], TRAIN, 2, taken)),
        "start": start_rows(rngs[2], taken, begun),
    }
    for name, found in rows.items():
        write_text(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in found))


def greedy_success(study: Study, model: Path) -> dict[str, float]:
    """Success of a model on the held-out problems, by greedy conversations; measured once and kept beside it."""
    kept = model.with_name(f"{model.name}_success.json")
    if not kept.is_file():
        from guerdon.collect.text import TextCollector
        from guerdon.settings.text_policy import TextPolicySettings

        assert study.data is not None
        policy = TextPolicySettings(path=str(model))
        with closing(TextCollector(study.data, study.generation, policy, seed=0, agent=study.agent)) as collector:
            write_json(kept, collector.evaluate(collector.policy, episodes=HELD_OUT))
    found: dict[str, float] = json.loads(kept.read_bytes())
    return found


def continue_start(folder: Path) -> None:
    """Train the start on, on its own data, for as long as the run took to learn.

    Raises:
        GuerdonError: there is no start or no run, or the training fails.
    """
    begun = finished(folder / "sft" / "metrics.json")
    steps = math.ceil(run_seconds(folder) * begun["steps"] / begun["seconds"])
    from guerdon.train.sft import train_sft_study

    study = study_of(
        folder,
        f"data.train_files={folder / 'start.jsonl'}",
        f"sft.policy.path={folder / 'sft' / 'model'}",
        f"sft.save_dir={folder / 'continued'}",
        f"sft.max_steps={steps}",
    )
    train_sft_study(study, resume=True)


def study_of(folder: Path, *overrides: str) -> Study:
    """The study of a run as it ran, with changes."""
    from guerdon.api import load_study

    finished(folder / "run" / "COMPLETE")
    return load_study(folder / "run" / "config.yaml", *overrides)


def run_seconds(folder: Path) -> float:
    """Seconds of the run up to its last update: without the evaluation at the end."""
    finished(folder / "run" / "COMPLETE")
    rows = [json.loads(line) for line in (folder / "run" / "timings.jsonl").read_text(encoding="utf-8").splitlines()]
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


def measured(folder: Path) -> dict[str, float]:
    """Success of the start, of the run and of the start trained on, and seconds of the last two."""
    study = study_of(folder)
    return {
        "start": greedy_success(study, folder / "sft" / "model")["success"],
        "run": finished(folder / "run" / "COMPLETE")["final"]["success"],
        "continued": greedy_success(study, folder / "continued" / "model")["success"],
        "run_seconds": run_seconds(folder),
        "continued_seconds": finished(folder / "continued" / "metrics.json")["seconds"],
    }


def difference(rows: Sequence[dict[str, float]], than: str) -> Interval:
    """Success of the run minus that of another policy: mean over seeds; of one seed over problems."""
    if len(rows) > 1:
        return paired_difference([[row["run"] for row in rows]], [[row[than] for row in rows]], seed=0).interval
    run, other = (rows[0][name] for name in ("run", than))
    low, high = difference_bounds((other * HELD_OUT, HELD_OUT), (run * HELD_OUT, HELD_OUT))
    return Interval(run - other, low, high, 1)


def table(folders: Sequence[Path]) -> str:
    """The figures of one or several seeds, as text."""
    rows = [measured(folder) for folder in folders]
    lines = [f"{'seed':24} {'start':>6} {'run':>6} {'continued':>10} {'seconds of the two':>20}"]
    for folder, row in zip(folders, rows, strict=True):
        seconds = f"{row['run_seconds']:.0f}, {row['continued_seconds']:.0f}"
        lines.append(f"{folder.name:24} {row['start']:6.3f} {row['run']:6.3f} {row['continued']:10.3f} {seconds:>20}")
    for than in ("start", "continued"):
        found = difference(rows, than)
        bounds = "no interval" if found.low is None else f"[{found.low:+.3f}, {found.high:+.3f}]"
        lines.append(f"run minus {than}: {found.estimate:+.3f} {bounds}: {conclusion(found)}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """One of the three steps that are no command of guerdon."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("step", choices=("problems", "continue", "table"))
    ask.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="work_dir of the study")
    ask.add_argument("--begun", type=float, default=BEGUN, help="of problems: see start_rows")
    asked = ask.parse_args(arguments)
    try:
        with also_in(str(Path(__file__).parents[1])):  # where the study finds its tool
            if asked.step == "table":
                print(table(asked.folders))
                return
            for folder in asked.folders:
                if asked.step == "problems":
                    write_problems(folder, asked.begun)
                else:
                    continue_start(folder)
    except GuerdonError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
