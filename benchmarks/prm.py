"""Process reward models for text: scoring in one forward pass against a prompt per step, training against TRL 1.12.

`--what=score`: all steps of solutions in 8 steps, by guerdon's verdict model (one pass per solution), and by the seed's
form read literally, a prompt per step: in guerdon, and in plain transformers, batched or one at a time. All sides give
the same scores; the largest difference is shown. The ratio is to the fastest of the three.

`--labelled` takes a policy's own solutions instead of generated slips, `--repetitions=0` leaves the throughput out.

`--what=train`: guerdon's stepwise model against `PRMTrainer` of TRL 1.12 (TRL has none any more), from the same folder,
on the same solutions of 2 to 10 steps; token ids and places of labels are compared first, all of them. Throughput:
float32 on both sides (TRL with sdpa, guerdon with the attention that it chooses for the length), the same optimiser,
batch and clipping; then each in bfloat16, as it does that; guerdon also without padding (`use_remove_padding`), which
PRMTrainer does not offer. F1: each trains for the same core-seconds, with several seeds (order of the solutions, fresh
head), at the learning rate that is its own best on solutions that are not reported; the F1 is that of first
errors, as in ProcessBench, at a threshold of 0.5. The learning rate rises for a twentieth of the time
and then falls to 0. Judging, imports, tokenisation and warm-up steps do not count.

Every measurement is a process of its own on the chosen core, and they alternate.

    python benchmarks/prm.py --what=score --core=1 --repetitions=3
    python benchmarks/prm.py --what=train --core=1 --repetitions=3 --trl-python=/path/to/trl-1.12/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import core_share, machine_line, measure, pin, ratios, report_measurement, spread, table
from prm_sides import (
    SEED,
    SIZES,
    STEPS,
    labelled_rows,
    make_scorer,
    score_once,
    shared_inputs,
    start_from,
    train_once,
    training_rows,
    write_rows,
)

SCORE = {
    "one_verdict": "guerdon, verdicts, one pass",
    "prefix_guerdon": "guerdon, a prompt per step",
    "prefix_batched": "transformers, a prompt per step, batched",
    "prefix_single": "transformers, a prompt per step, one at a time",
    "one_stepwise": "guerdon, token classifier, one pass",
}
TRAIN = {
    "guerdon_float32": "guerdon, float32",
    "trl_float32": "TRL 1.12 PRMTrainer, float32",
    "packed_float32": "guerdon without padding, float32",
    "guerdon_bf16": "guerdon, its bfloat16",
    "packed_bf16": "guerdon without padding, its bfloat16",
    "trl_bf16": "TRL 1.12 PRMTrainer, its bf16",
}
MARK = "measured: "
WARM = 2  # gradient steps that are not timed


def rate(runs: list[dict[str, Any]]) -> list[float]:
    """Solutions per core-second of each run."""
    return [run["solutions"] / run["core_seconds"] for run in runs]


def score_report(results: dict[str, list[dict[str, Any]]]) -> str:
    """Scoring as Markdown."""
    core = {side: rate(runs) for side, runs in results.items()}
    rivals = [side for side in core if side.startswith("prefix")]
    best = max(rivals, key=lambda side: float(np.median(core[side])))
    rows = []
    for side, runs in results.items():
        ratio = "" if side in rivals else spread(ratios(core[side], core[best]))
        rows.append([SCORE[side], spread(core[side], 1), f"{runs[0]['tokens']:.0f}", ratio])
    alike = [results[side][0]["scores"] for side in ("one_verdict", *rivals)]
    worst = max(float(np.abs(np.subtract(alike[0], other)).max()) for other in alike[1:])
    header = ["", "solutions per core-second", "tokens read per solution", f"to {SCORE[best]}"]
    return (
        f"{table(header, rows)}\n\nLargest difference between the scores of the first four rows: {worst:.1g}. "
        f"{core_share(results)}"
    )


def run_score(options: argparse.Namespace, name: str) -> list[str]:
    """All sides in alternation, for one size of model."""
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        model = make_scorer(Path(folder), SIZES[name])
        for dtype in options.dtypes.split(","):
            results: dict[str, list[dict[str, Any]]] = {side: [] for side in SCORE}
            for repetition in range(options.repetitions):
                for side in results:
                    given = {"side": side, "model": model, "sizes": name, "core": options.core, "dtypes": dtype}
                    results[side].append(measure(__file__, {**given, "micro": options.micro, "quick": options.quick}))
                    print(f"{name} {dtype} {repetition}: {SCORE[side]}, {rate(results[side])[-1]:.1f}/s", flush=True)
            texts.append(f"### Scoring {STEPS} steps, {name} parameters, {dtype}\n\n{score_report(results)}")
    return texts


def ask_trl(options: argparse.Namespace, **given: Any) -> Any:
    """One measurement in TRL's own environment."""
    script = str(Path(__file__).parent / "prm_trl.py")
    arguments = [f"--{name}={value}" for name, value in given.items() if not isinstance(value, bool)]
    arguments += [f"--{name}" for name, value in given.items() if value is True]
    done = subprocess.run(
        [options.trl_python, script, *arguments, f"--core={options.core}"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not found:
        sys.exit(f"TRL's side ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return json.loads(found[-1].removeprefix(MARK))


def first_error_f1(probabilities: list[list[float]], labels: list[list[bool]]) -> float:
    """ProcessBench's F1 at a threshold of 0.5."""
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for p, truth in zip(probabilities, labels, strict=True):
        first = truth.index(False) if False in truth else -1
        said = next((k for k, x in enumerate(p) if x < 0.5), -1)
        hits[first >= 0].append(said == first)
    wrong, right = (float(np.mean(hits[kind])) for kind in (True, False))
    return 2 * wrong * right / (wrong + right) if wrong + right else 0.0


class Training:
    """The data and the model that both sides of the training share, in a folder."""

    def __init__(self, options: argparse.Namespace, name: str, folder: Path) -> None:
        from guerdon.episodes.solution_files import write_solutions

        self.options, self.name, self.folder = options, name, folder
        family = {"family": "chain", "steps": options.most_lines, "min_steps": options.fewest_lines}
        quick = bool(options.quick)
        steps = 20 if quick else options.sft_steps
        self.model = options.start or start_from(folder, SIZES[name], family, sft_steps=steps)
        sizes = {
            "train": 256 if quick else options.solutions,
            "choose": 64 if quick else 512,
            "test": 64 if quick else 1024,
        }
        taken: list[str] = []
        self.labels: dict[str, list[list[bool]]] = {}
        self.separator = ""
        for number, (part, size) in enumerate(sizes.items()):
            solutions = (
                training_rows(family, size, SEED + number, taken)
                if options.labelled is None
                else labelled_rows(options.labelled, list(sizes).index(part))
            )
            taken += [s.question for s in solutions]
            self.separator = solutions[0].separator
            self.labels[part] = [[bool(x) for x in s.labels] for s in solutions]
            write_solutions(folder / f"{part}.jsonl", solutions)
            rows, ours = shared_inputs(self.model, solutions)
            write_rows(folder / f"{part}_trl.jsonl", rows)
            read = ask_trl(
                options, what="ids", model=self.model, rows=folder / f"{part}_trl.jsonl", separator=self.separator
            )
            if read != ours:
                wrong = next(k for k, (a, b) in enumerate(zip(ours, read, strict=True)) if a != b)
                sys.exit(f"ids or places of labels differ, first in row {wrong}: {ours[wrong]} {read[wrong]}")
        self.places = sum(len(x) for part in self.labels.values() for x in part)
        self.rows = sum(len(part) for part in self.labels.values())

    def one(
        self, side: str, *, learning_rate: float, budget: float, parts: Sequence[str], steps: int, seed: int = 0
    ) -> dict[str, Any]:
        """One training by one side, and its judgement of these parts."""
        kind, _, dtype = side.partition("_")
        shared = {"rate": learning_rate, "batch": self.options.batch, "budget": budget, "steps": steps, "seed": seed}
        if kind == "trl":
            tests = ",".join(str(self.folder / f"{part}_trl.jsonl") for part in parts)
            return ask_trl(
                self.options, what="train", model=self.model, rows=self.folder / "train_trl.jsonl",
                tests=tests, separator=self.separator, bf16=dtype == "bf16", **shared,
            )  # fmt: skip
        given = {"side": side, "model": self.model, "data": self.folder, "core": self.options.core}
        return measure(__file__, {**given, "parts": ",".join(parts), **shared})


def run_train(options: argparse.Namespace, name: str) -> list[str]:
    """Throughput and F1 at equal time, for one size of model."""
    with tempfile.TemporaryDirectory() as folder:
        shared = Training(options, name, Path(folder))
        same = (
            f"Token ids and places of labels are equal on all {shared.rows:,} solutions ({shared.places:,} labels), as "
            "guerdon reads them and as TRL's `tokenize_row` does."
        )
        print(same, flush=True)
        speed: dict[str, list[dict[str, Any]]] = {side: [] for side in TRAIN if options.repetitions}
        steps = 4 if options.quick else options.train_steps
        for repetition in range(options.repetitions):
            for side in speed:
                speed[side].append(shared.one(side, learning_rate=1e-4, budget=0.0, parts=["choose"], steps=steps))
                print(f"{name} {repetition}: {TRAIN[side]}, {rate(speed[side])[-1]:.1f}/s", flush=True)
        text = [f"### Training, {name} parameters\n\n{same}\n\n{speed_report(speed) if speed else ''}"]
        if options.budgets:
            text.append(f"### F1 at equal time, {name} parameters\n\n{equal_time(options, shared)}")
        return text


def speed_report(results: dict[str, list[dict[str, Any]]]) -> str:
    """Throughput as Markdown."""
    core = {side: rate(runs) for side, runs in results.items()}
    rows = []
    for side in results:
        dtype = side.partition("_")[2]
        ratio = "" if side.startswith("trl") else spread(ratios(core[side], core[f"trl_{dtype}"]))
        rows.append([TRAIN[side], spread(core[side], 1), ratio])
    return f"{table(['', 'solutions per core-second', 'to PRMTrainer'], rows)}\n\n{core_share(results)}"


def equal_time(options: argparse.Namespace, shared: Training) -> str:
    """F1 of all sides after the same core-seconds, each at its own best learning rate, over the same seeds."""
    rates = [float(x) for x in options.rates.split(",")]
    sides, parts = options.f1_sides.split(","), ("choose", "test")
    rows = []
    for budget in (float(x) for x in options.budgets.split(",")):
        found: dict[tuple[str, float], list[list[float]]] = {(side, r): [] for side in sides for r in rates}
        steps: dict[str, list[float]] = {side: [] for side in sides}
        for seed in range(options.seeds):
            for side, r in found:
                run = shared.one(side, learning_rate=r, budget=budget, parts=parts, steps=10**6, seed=seed)
                f1 = [first_error_f1(p, shared.labels[x]) for p, x in zip(run["probabilities"], parts, strict=True)]
                found[side, r].append(f1)
                steps[side].append(run["steps"])
                print(
                    f"{shared.name}, seed {seed}: {TRAIN[side]}, rate {r:g}, {run['steps']} steps in "
                    f"{run['core_seconds']:.0f} s, F1 {f1[0]:.3f} {f1[1]:.3f}",
                    flush=True,
                )
        best = {side: max(rates, key=lambda r: np.mean(found[side, r], axis=0)[0]) for side in sides}
        test = {side: np.array(found[side, best[side]])[:, 1] for side in sides}
        rivals = [side for side in sides if side.startswith("trl")]
        rival = max(rivals, key=lambda side: np.mean(found[side, best[side]], axis=0)[0])
        for side in sides:
            less = "" if side in rivals else difference(test[side], test[rival])
            every = ", ".join(f"{r:g}: {np.mean(found[side, r], axis=0)[1]:.3f}" for r in rates)
            f1 = f"{test[side].mean():.3f} ({test[side].min():.3f} to {test[side].max():.3f})"
            row = [f"{budget:g}", f"{best[side]:g}", spread(steps[side], 0), f1, less, every]
            rows.append([TRAIN[side], *row])
    head = [
        "core-seconds",
        "learning rate",
        "gradient steps",
        "mean F1 of first errors",
        f"to {TRAIN[rival]}",
        "at each rate",
    ]
    return table(["", *head], rows)


def difference(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Difference of the means with Welch's interval at 95 %, over seeds."""
    from scipy.stats import ttest_ind

    less = float(ours.mean() - theirs.mean())
    if min(len(ours), len(theirs)) < 2:
        return f"{less:+.3f}"
    low, high = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    return f"{less:+.3f} [{low:.3f}, {high:.3f}]"


def one(options: argparse.Namespace) -> dict[str, Any]:
    """The measurement that another process asked for."""
    if options.side.startswith(("one", "prefix")):
        size = SIZES[options.sizes]
        if options.quick:
            size = replace(size, solutions=4)
        return score_once(options.side, options.model, size, dtype=options.dtypes, micro=options.micro)
    return train_once(
        options.model, options.data, options.parts.split(","), seed=options.seed, rate=options.rate,
        batch=options.batch, budget=options.budget, steps=options.steps, warm=WARM,
        matched=options.side.endswith("float32"), packed=options.side.startswith("packed"),
    )  # fmt: skip


def main() -> None:
    """Print the tables as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=["score", "train", "all"], default="all")
    parser.add_argument("--sizes", default="0.4M,3M", help=f"of {', '.join(SIZES)}, separated by commas")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--dtypes", default="float32,bfloat16", help="score: float32, bfloat16 or both")
    parser.add_argument("--micro", type=int, default=16, help="score: solutions per forward pass")
    parser.add_argument("--trl-python", help="train: python of an environment with TRL 1.12")
    parser.add_argument("--solutions", type=int, default=8192, help="train: solutions to learn from")
    parser.add_argument("--labelled", help="train: labelled solutions (such as `guerdon label` writes) instead")
    parser.add_argument("--fewest-lines", type=int, default=2, help="train: steps of the shortest solutions")
    parser.add_argument("--most-lines", type=int, default=10, help="train: steps of the longest solutions")
    parser.add_argument("--start", help="train: folder of the model that both sides start from; else one is made")
    parser.add_argument("--sft-steps", type=int, default=1500, help="train: of the model that both sides start from")
    parser.add_argument("--batch", type=int, default=16, help="train: solutions per gradient step")
    parser.add_argument("--train-steps", type=int, default=40, help="train: gradient steps of a throughput measurement")
    parser.add_argument("--budgets", default="60,180", help="train: core-seconds at which F1 is compared; empty: none")
    parser.add_argument("--rates", default="3e-4,1e-3,3e-3", help="train: learning rates that each side chooses from")
    parser.add_argument("--seeds", type=int, default=3, help="train: trainings per side and rate at equal time")
    parser.add_argument("--f1-sides", default=",".join(TRAIN), help="train: whose F1 is compared")
    parser.add_argument("--quick", type=int, nargs="?", const=1, default=0, help="does it run at all? sizes of nothing")
    for name in ("side", "model", "data", "parts"):
        parser.add_argument(f"--{name}", help="of one measurement in this process")
    for name, kind in (("rate", float), ("budget", float), ("steps", int), ("seed", int)):
        parser.add_argument(f"--{name}", type=kind, help="of one measurement in this process")
    options = parser.parse_args()
    pin([options.core])
    if options.side:
        report_measurement(one(options))
        return
    if options.what != "score" and not options.trl_python:
        parser.error("training is compared with TRL 1.12: give --trl-python (TRL has had no PRMTrainer since)")
    if options.budgets and not any(side.startswith("trl") for side in options.f1_sides.split(",")):
        parser.error("--f1-sides names no side of TRL to compare with")
    where, texts = machine_line(["transformers"]), []
    for name in options.sizes.split(","):
        if options.what in ("score", "all"):
            texts += run_score(options, name)
        if options.what in ("train", "all"):
            texts += run_train(options, name)
    print(f"\n{where}\n\n{options.repetitions} repetitions in alternation; median (lowest to highest).\n")
    print("\n\n".join(texts))


if __name__ == "__main__":
    main()
