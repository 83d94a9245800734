"""Reward models of preferences: training against TRL's RewardTrainer, scoring against RewardBench 0.1.4.

Both trainers start from the same folder (a Llama of random weights, a byte-level tokenizer) and read the same pairs of
messages, made in code: which response is chosen is drawn from a gold reward by Bradley and Terry's model.

`accuracy`: as many pairs, epochs and steps, the same learning rate falling to 0, no weight decay; the trained folders
are judged by transformers on held-out pairs. The interval is a bootstrap over held-out pairs, each with all seeds.
`speed`: computing time of the process (one thread, all of it from after two steps to the last) and the peak of its
resident memory, in pairs of processes that follow each other. Matched in float32 without checkpointing and in bfloat16
with it, which is TRL's default; and guerdon in float32 with 2 pairs per forward pass against TRL's defaults.
`score`: rewards of both responses of each pair. RewardBench's own command runs in an environment of its own and is
timed over its loop; its loop under this environment's transformers is written out (`score_loop`). Values must agree.

    python benchmarks/preference_training.py --core=1 --repetitions=3 --seeds=3     # needs guerdon[bench]
    python benchmarks/preference_training.py --what=score --rewardbench-python=/path/to/env/bin/python
    python benchmarks/preference_training.py --what=speed --gpu --size=360M --batch=32    # on a GPU

With `--gpu`, rates are per second on the wall, a step ends when the GPU has done it, memory is the allocator's peak.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import core_share, machine_line, measure, pin, ratios, report_measurement, spread, table
from preference_sides import (
    SHAPES,
    SIZES,
    make_pairs,
    make_shared,
    read_rows,
    right_order,
    score_guerdon,
    score_loop,
    train_once,
    write_rows,
)

MARK = "measured: "
WARM = 2  # gradient steps that are not timed
ARMS = {  # side, bfloat16, checkpointing, pairs per forward pass
    "guerdon_float32": ("guerdon", False, False, None),
    "trl_float32": ("trl", False, False, None),
    "guerdon_bf16": ("guerdon", True, True, None),
    "trl_bf16": ("trl", True, True, None),
    "guerdon_micro": ("guerdon", False, False, 2),
}
NAMES = {
    "guerdon_float32": "guerdon, float32",
    "trl_float32": "TRL, float32 without checkpointing",
    "guerdon_bf16": "guerdon, bfloat16, gradient checkpointing",
    "trl_bf16": "TRL's defaults: bfloat16, gradient checkpointing",
    "guerdon_micro": "guerdon, float32, 2 pairs per forward pass",
}
RIVAL = {"guerdon_float32": "trl_float32", "guerdon_bf16": "trl_bf16", "guerdon_micro": "trl_bf16"}
SHAPE_NAMES = {"half": "prompts of half the tokens", "none": "prompts of one word"}


def run_accuracy(options: argparse.Namespace, folder: Path) -> str:
    """Held-out accuracy of both, and the difference."""
    make_shared(folder, SIZES["0.4M"])
    write_rows(folder / "short.jsonl", make_pairs(options.pairs, SHAPES["short"], 1))
    write_rows(folder / "test.jsonl", make_pairs(options.held_out, SHAPES["short"], 2))
    steps = options.epochs * options.pairs // 8
    found: dict[str, list[list[bool]]] = {"guerdon": [], "trl": []}
    for seed in range(options.seeds):
        for side in found:
            given = {"what": "accuracy", "side": side, "folder": folder, "seed": seed, "steps": steps}
            run = measure(__file__, {**given, "rate": options.rate, "core": options.core})
            found[side].append(run["right"])
            print(f"seed {seed}: {side}, accuracy {np.mean(run['right']):.3f}", flush=True)
    right = {side: np.array(runs, dtype=np.float64) for side, runs in found.items()}
    low, high = difference(right["guerdon"], right["trl"])
    rows = [[{"guerdon": "guerdon", "trl": "TRL RewardTrainer"}[side], spread(list(x.mean(axis=1)), 3),
             f"{x.mean():.3f}"] for side, x in right.items()]  # fmt: skip
    less = float(right["guerdon"].mean() - right["trl"].mean())
    return (
        f"{options.pairs:,} training pairs, {steps} steps of 8, {options.held_out:,} held-out pairs, {options.seeds} "
        f"seeds, learning rate {options.rate:g}.\n\n"
        + table(["", "held-out accuracy by seed", "mean"], rows)
        + f"\n\nDifference {less:+.3f} [{low:+.3f}, {high:+.3f}]."
    )


def difference(ours_S_N: np.ndarray, theirs_S_N: np.ndarray, reps: int = 10_000) -> tuple[float, float]:
    """Bootstrap interval (95 %) of the difference of mean accuracies, over held-out pairs."""
    per_pair = ours_S_N.mean(axis=0) - theirs_S_N.mean(axis=0)
    rng = np.random.default_rng(0)
    means = [per_pair[rng.integers(len(per_pair), size=len(per_pair))].mean() for _ in range(reps)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def run_speed(options: argparse.Namespace, folder: Path) -> str:
    """Throughput and memory of all arms, for both shapes of pairs."""
    make_shared(folder, SIZES[options.size])
    texts = []
    for shape in options.shapes.split(","):
        write_rows(folder / f"{shape}.jsonl", make_pairs(options.batch * options.steps, SHAPES[shape], 3))
        results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in options.arms.split(",")}
        for repetition in range(options.repetitions):
            for arm in results:
                given = {"what": "speed", "side": arm, "folder": folder, "shape": shape, "steps": options.steps}
                given |= {"batch": options.batch}
                results[arm].append(measure(__file__, {**given, "core": options.core, "device": options.device}))
                run = results[arm][-1]
                print(f"{shape} {repetition}: {arm}, {rate(run):.2f} pairs/s, {run['mib']:.0f} MiB", flush=True)
        texts.append(f"#### {SHAPE_NAMES[shape].capitalize()}\n\n{speed_table(results)}\n\n{core_share(results)}")
    return (
        f"{options.size} parameters, {options.batch} pairs per gradient step, {options.steps - WARM} timed steps.\n\n"
        + "\n\n".join(texts)
    )


def rate(run: dict[str, Any]) -> float:
    """Pairs per core-second; of a GPU, per second."""
    return float(run["pairs"] / run["seconds" if run.get("gpu") else "core_seconds"])


def speed_table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Throughput and memory as Markdown."""
    rates = {arm: [rate(run) for run in runs] for arm, runs in results.items()}
    rows = []
    for arm, runs in results.items():
        rival = RIVAL.get(arm) if RIVAL.get(arm) in results else None
        against = "" if rival is None else f"{spread(ratios(rates[arm], rates[rival]))} to {NAMES[rival].split(':')[0]}"
        peaks = [[run[key] for run in runs] for key in ("mib", "mib_in_all")]
        rows.append([NAMES[arm], spread(rates[arm]), against, spread(peaks[0], 0), spread(peaks[1], 0)])
    second = "second" if any(run.get("gpu") for runs in results.values() for run in runs) else "core-second"
    return table(["", f"pairs per {second}", "ratio", "peak over the start, MiB", "peak in all, MiB"], rows)


def run_score(options: argparse.Namespace, folder: Path) -> str:
    """Scoring by guerdon, by RewardBench, and by its loop here."""
    model = folder / "classifier"
    shared = folder / "start"
    shared.mkdir()
    make_shared(shared, SIZES[options.size])
    write_rows(shared / "half.jsonl", make_pairs(16, SHAPES["half"], 3))
    measure(__file__, {"what": "fit", "folder": shared, "side": "guerdon", "save": model, "core": options.core})
    rows = make_pairs(options.scored, SHAPES["half"], 4)
    write_rows(folder / "rows.jsonl", rows)
    old = folder / "old"  # what transformers 4.51 reads
    shutil.copytree(model, old)
    settings = json.loads((old / "tokenizer_config.json").read_text())
    settings.pop("extra_special_tokens", None)
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
    (old / "tokenizer_config.json").write_text(json.dumps(settings))
    whole = [{which: row["prompt"] + row[which] for which in ("chosen", "rejected")} for row in rows]
    write_rows(folder / "whole.jsonl", whole)
    results: dict[str, list[dict[str, Any]]] = {"guerdon": [], "loop": [], "rewardbench": []}
    if not options.rewardbench_python:
        del results["rewardbench"]
    for repetition in range(options.repetitions):
        for side, runs in results.items():
            if side == "rewardbench":
                runs.append(ask_rewardbench(options, folder))
            else:
                runs.append(measure(__file__, {"what": "score", "side": side, "folder": folder, "core": options.core}))
            print(f"{repetition}: {side}, {rate(runs[-1]):.2f} pairs/s", flush=True)
    rates = {side: [rate(run) for run in runs] for side, runs in results.items()}
    ours = np.array(results["guerdon"][0]["values"])
    names = {"guerdon": "guerdon", "loop": "RewardBench's loop, this transformers", "rewardbench": "RewardBench 0.1.4"}
    lines = []
    for side in results:
        others = results[side][0]["values"]
        ratio = "" if side == "guerdon" else spread(ratios(rates["guerdon"], rates[side]))
        lines.append([names[side], spread(rates[side], 1), ratio, f"{np.abs(ours - others).max():.1e}"])
    head = ["", "pairs per core-second", "guerdon's ratio", "largest difference of values"]
    return (
        f"{options.size} parameters, {options.scored} pairs, float32.\n\n{table(head, lines)}\n\n{core_share(results)}"
    )


def ask_rewardbench(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One measurement in RewardBench's own environment."""
    script = str(Path(__file__).parent / "preference_rewardbench.py")
    arguments = ["--model=old", f"--rows={folder / 'whole.jsonl'}", f"--out={folder}", f"--core={options.core}"]
    done = subprocess.run(
        [options.rewardbench_python, script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not found:
        sys.exit(f"RewardBench's side ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(found[-1].removeprefix(MARK))
    return result


def one(options: argparse.Namespace) -> dict[str, Any]:
    """The measurement that another process asked for."""
    folder = Path(options.folder)
    if options.what == "accuracy":
        with tempfile.TemporaryDirectory() as place:
            run = train_once(
                options.side, folder, "short", steps=options.steps, warm=WARM, rate=options.rate, seed=options.seed,
                save=Path(place) / "model",
            )  # fmt: skip
            return {**run, "right": right_order(Path(place) / "model", read_rows(folder / "test.jsonl"))}
    if options.what == "speed":
        side, bf16, checkpointing, micro = ARMS[options.side]
        return train_once(
            side, folder, options.shape, steps=options.steps, warm=WARM, bf16=bf16, checkpointing=checkpointing,
            micro=micro, batch=options.batch, gpu=options.device == "cuda",
        )  # fmt: skip
    if options.what == "fit":
        return train_once("guerdon", folder, "half", steps=3, warm=WARM, save=Path(options.save))
    rows = read_rows(folder / "rows.jsonl")
    if options.side == "guerdon":
        return score_guerdon(folder / "classifier", rows)
    return score_loop(folder / "classifier", rows, batch=8)


def main() -> None:
    """Print the tables as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=["accuracy", "speed", "score", "all", "fit"], default="all")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument(
        "--gpu", dest="device", action="store_const", const="cuda", default="cpu", help="speed: on a GPU"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], help="of one measurement in this process")
    parser.add_argument("--repetitions", type=int, default=3, help="speed and score: of each measurement")
    parser.add_argument("--arms", default=",".join(ARMS), help="speed: what is measured")
    parser.add_argument("--size", default="3M", choices=list(SIZES), help="speed and score: of the model")
    parser.add_argument("--shapes", default=",".join(SHAPE_NAMES), help="speed: of the pairs")
    parser.add_argument("--batch", type=int, default=8, help="speed: pairs per gradient step")
    parser.add_argument("--steps", type=int, default=14, help="speed: gradient steps, the first two not timed")
    parser.add_argument("--pairs", type=int, default=2400, help="accuracy: to learn from")
    parser.add_argument("--held-out", type=int, default=2000, help="accuracy: held-out pairs")
    parser.add_argument("--epochs", type=int, default=3, help="accuracy: passes over the pairs")
    parser.add_argument("--rate", type=float, default=1e-3, help="accuracy: learning rate of both")
    parser.add_argument("--seeds", type=int, default=3, help="accuracy: trainings of each")
    parser.add_argument("--scored", type=int, default=160, help="score: pairs")
    parser.add_argument("--rewardbench-python", help="score: python of an environment with RewardBench 0.1.4")
    for name in ("side", "folder", "shape", "save"):
        parser.add_argument(f"--{name}", help="of one measurement in this process")
    parser.add_argument("--seed", type=int, help="of one measurement in this process")
    options = parser.parse_args()
    if options.device == "cpu":
        pin([options.core])
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if options.side:
        report_measurement(one(options))
        return
    where, texts = machine_line(["transformers", "trl"]), []
    for what, run in (("accuracy", run_accuracy), ("speed", run_speed), ("score", run_score)):
        if options.what in (what, "all"):
            with tempfile.TemporaryDirectory() as folder:
                texts.append(f"### {what.capitalize()}\n\n{run(options, Path(folder))}")
    print("\n\n".join([where, *texts]))


if __name__ == "__main__":
    main()
