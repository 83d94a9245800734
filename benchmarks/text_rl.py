"""Language models: guerdon's RL step and generation against TRL and transformers, and what PRIME adds, on one core.

`--what=step`: the whole step (generate, score, update) against TRL's GRPOTrainer and RLOOTrainer, from the same folder
of random weights, on the same problems, with the same checker as reward, prompts, samples and lengths. Matched: float32
and sdpa on both sides. Own defaults: guerdon's `bf16: auto` and `attention: auto`, and TRL's `bf16`. TRL without
gradient checkpointing, KL, reference, logs and saving; one gradient step per batch on both sides. `--what=generate`:
many different prompts at once (256; 64 in the shape of SmolLM2) against transformers `generate()`, and against the time
of the products with weights alone, measured in the same shapes (the floor). `--what=prime`: guerdon with PRIME's reward
model (`update: after`) against guerdon with outcomes alone.

Nothing ever ends a response early: the models' hidden states have one constant direction, in which the end-of-sequence
token alone points the other way. Tokens written are counted and shown. Every measurement is a process of its own, and
they alternate; imports, construction and warm-up steps do not count.

    python benchmarks/text_rl.py --what=all --core=1 --repetitions=3
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import core_share, machine_line, measure, pin, ratios, report_measurement, spread, table
from text_sides import SIZES, make_model, one

STEP = {
    "guerdon_matched": "guerdon, float32, sdpa",
    "trl_grpo": "TRL GRPOTrainer, float32, sdpa",
    "trl_rloo": "TRL RLOOTrainer, float32, sdpa",
    "guerdon_defaults": "guerdon, its defaults",
    "trl_grpo_bf16": "TRL GRPOTrainer, its bf16",
    "trl_rloo_bf16": "TRL RLOOTrainer, its bf16",
}
GENERATE = {
    "write_float32": "guerdon, float32",
    "hf_float32": "transformers, float32",
    "write_bfloat16": "guerdon, bfloat16",
    "hf_bfloat16": "transformers, bfloat16",
}
PRIME = {
    "outcome_float32": "outcome-only RLOO, float32",
    "prime_float32": "PRIME, float32",
    "outcome_defaults": "outcome-only RLOO, defaults",
    "prime_defaults": "PRIME, defaults",
}
KINDS = {"step": STEP, "generate": GENERATE, "prime": PRIME}


def dtype_of(side: str) -> str:
    """What a side of a step or of generation multiplies in."""
    return "bfloat16" if side.endswith(("bf16", "bfloat16", "defaults")) else "float32"


def rate(runs: list[dict[str, Any]], what: str) -> list[float]:
    """Samples or tokens per core-second of each run."""
    return [run[what] / run["core_seconds"] for run in runs]


def phases_line(results: dict[str, list[dict[str, Any]]], names: dict[str, str]) -> str:
    """What each side spent its core-seconds on, per sample; the rest of TRL's step is its update."""
    parts = []
    for side, runs in results.items():
        total = sum(r["core_seconds"] for r in runs)
        known = {n: sum(r["phases"].get(n, 0.0) for r in runs) / total for n in runs[0]["phases"]}
        spent = {**known, "the rest": 1 - sum(known.values())}
        shares = ", ".join(
            f"{n} {share:.0%}" for n, share in sorted(spent.items(), key=lambda x: -x[1]) if share > 0.005
        )
        parts.append(f"- {names[side]}: {shares}.")
    return "\n".join(parts)


def step_report(results: dict[str, list[dict[str, Any]]]) -> str:
    """Whole steps as Markdown: samples per core-second, and ratios to both of TRL's trainers."""
    core = {side: rate(runs, "samples") for side, runs in results.items()}
    rows = []
    for side, runs in results.items():
        ends = "_bf16" if side == "guerdon_defaults" else ""
        row = [STEP[side], spread(core[side], 1 if core[side][0] > 5 else 2), f"{runs[0]['tokens']:.0f}"]
        row.append(spread([r["peak"] for r in runs], 0))
        rivals = ["trl_grpo", "trl_rloo", *([f"trl_{kind}_bf16" for kind in ("grpo", "rloo")] if ends else ["", ""])]
        for rival in rivals:
            shown = side.startswith("guerdon") and rival in core
            row.append(spread(ratios(core[side], core[rival])) if shown else "")
        rows.append(row)
    header = [
        "", "samples per core-second", "tokens written in a step", "peak memory, MB", "to GRPOTrainer",
        "to RLOOTrainer", "to GRPOTrainer in bf16", "to RLOOTrainer in bf16",
    ]  # fmt: skip
    return (
        f"{table(header, rows)}\n\n{core_share(results)} Where the core-seconds went:\n\n{phases_line(results, STEP)}"
    )


def generate_report(results: dict[str, list[dict[str, Any]]]) -> str:
    """Generation as Markdown: tokens per core-second, the ratio, the floor."""
    core = {side: rate(runs, "tokens") for side, runs in results.items()}
    rows, lines = [], []
    for side, runs in results.items():
        row = [GENERATE[side], spread(core[side], 0), str(runs[0]["tokens"] // runs[0]["runs"])]
        if side.startswith("write"):
            dtype = side.partition("_")[2]
            row += [spread(ratios(core[side], core[f"hf_{dtype}"]))]
            row += [spread([r["floor"] / r["core_seconds"] for r in runs])]
            shares = {n: float(np.mean([r["shares"].get(n, 0.0) for r in runs])) for n in runs[0]["shares"]}
            shown = ", ".join(f"{n} {share:.0%}" for n, share in sorted(shares.items(), key=lambda x: -x[1]))
            lines.append(f"- {GENERATE[side]}: {shown}.")
        else:
            row += ["", ""]
        rows.append(row)
    header = ["", "tokens per core-second", "tokens of a request", "to transformers", "share of the floor"]
    return f"{table(header, rows)}\n\n{core_share(results)} Where the core-seconds went:\n\n" + "\n".join(lines)


def prime_report(results: dict[str, list[dict[str, Any]]]) -> str:
    """What PRIME adds to a step, as Markdown."""
    core = {side: rate(runs, "samples") for side, runs in results.items()}
    rows = []
    for side in results:
        cost = "" if side.startswith("outcome") else spread(ratios(core[side.replace("prime", "outcome")], core[side]))
        rows.append([PRIME[side], spread(core[side], 1), cost])
    header = ["", "samples per core-second", "cost of a step, outcome-only = 1"]
    return (
        f"{table(header, rows)}\n\n{core_share(results)} Where the core-seconds went:\n\n{phases_line(results, PRIME)}"
    )


REPORTS = {"step": step_report, "generate": generate_report, "prime": prime_report}
TITLES = {"step": "The whole step", "generate": "Generation, {at_once} prompts at once", "prime": "PRIME's step"}


def main() -> None:
    """Print the tables as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--sizes", default="0.4M,3M", help=f"of {', '.join(SIZES)}, separated by commas")
    parser.add_argument(
        "--dtypes",
        default="float32,bfloat16",
        help="of steps and generation; in bfloat16 guerdon runs with its defaults",
    )
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--quick", type=int, nargs="?", const=1, default=0, help="a smoke test: a warm-up and one short step each"
    )
    parser.add_argument("--side", help="one measurement in this process, of --sizes and --model")
    parser.add_argument("--model", help="the folder of the model of that measurement")
    options = parser.parse_args()
    pin([options.core])
    sizes = {name: SIZES[name] for name in options.sizes.split(",")}
    if options.quick:
        small = {"prompts": 2, "samples": 2, "length": 4, "warm": 1, "steps": 1}
        sizes = {name: replace(size, **small) for name, size in sizes.items()}
    if options.side:
        report_measurement(one(options.side, options.model, next(iter(sizes.values()))))
        return
    where, texts = machine_line(["transformers", "trl"]), []
    kinds = list(KINDS) if options.what == "all" else [options.what]
    for name, size in sizes.items():
        with tempfile.TemporaryDirectory() as folder:
            model = make_model(Path(folder), size)
            shared: dict[str, Any] = {"model": model, "sizes": name, "core": options.core, "quick": options.quick}
            for kind in kinds:
                if kind == "generate" and size.vocabulary and not size.written:
                    continue  # a cache and logits of 256 responses are another question at this size
                sides = [side for side in KINDS[kind] if kind == "prime" or dtype_of(side) in options.dtypes.split(",")]
                results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
                for repetition in range(options.repetitions):
                    for side in results:
                        results[side].append(measure(__file__, {"side": side, **shared}))
                        speed = rate(results[side], "samples")[-1]
                        print(
                            f"{name}, repetition {repetition}: {KINDS[kind][side]}, {speed:.2f} samples/s", flush=True
                        )
                texts.append(
                    f"### {TITLES[kind].format(at_once=size.at_once)}, {name} parameters\n\n{REPORTS[kind](results)}"
                )
    print(f"\n{where}\n\n{options.repetitions} repetitions in alternation; median (lowest to highest).\n")
    print("\n\n".join(texts))


if __name__ == "__main__":
    main()
