"""What a learned reward costs a run, with an image model of random weights (cost does not depend on what it learnt).

Runs of the same PPO in the same Meta-World task, a process each, in alternation: with the native 0/1 reward; with a
ResNet-18 that sees one 64 x 64 frame at the end of each episode (`reward_mode: terminal`); and with the same network
scoring every 10th step and every step (`per_step`), where the time that is not simulation is split into rendering,
scoring and the rest. Every 10th step is then repeated with two cores: rendering in the run's own process, and spread
over two (`env.render_workers: 2`).

    python benchmarks/reward_cost.py --core=1 --other=0 --repetitions=5
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from harness import (
    core_share,
    machine_line,
    measure,
    pin,
    rates,
    ratios,
    report_measurement,
    spread,
    table,
    time_guerdon,
)

NAMES = {
    "native": "native 0/1 reward, 1 core",
    "terminal": "ResNet-18 at the end of each episode, 1 core",
    "every_10": "ResNet-18 every 10th step, 1 core",
    "every_1": "ResNet-18 every step, 1 core",
    "workers_0": "ResNet-18 every 10th step, 2 cores, rendering in the run",
    "workers_2": "ResNet-18 every 10th step, 2 cores, `render_workers: 2`",
}
TWO_CORES = ("workers_0", "workers_2")
PART = {"native": 1, "terminal": 1, "every_1": 10}  # of --steps; the others take a fifth


def random_model(folder: Path) -> str:
    """A checkpoint of a ResNet-18 success classifier as it is before any training."""
    import torch

    from guerdon.models.images.backbone import ImageScorer
    from guerdon.models.images.image import ImageModelConfig, save_checkpoint

    torch.manual_seed(0)
    config = ImageModelConfig(type="resnet", arch="resnet18", image_size=(3, 64, 64), threshold=0.5)
    scorer = ImageScorer(config.arch, hidden_dim=config.hidden_dim, dropout=config.dropout)
    return str(save_checkpoint(folder / "model", scorer, config))


def one(side: str, task: str, steps: int) -> dict[str, Any]:
    """One measurement, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        study: dict[str, Any] = {
            "runner": {"total_steps": steps},
            "env": {"task": task, "frame_size": 64, "render_workers": 2 if side == "workers_2" else 0},
        }
        if side != "native":
            reward: dict[str, Any] = {
                "use_reward_model": True,
                "reward_mode": "terminal" if side == "terminal" else "per_step",
                "model": {"model_type": "resnet", "checkpoint_path": random_model(Path(folder))},
            }
            if side not in ("terminal", "every_1"):
                reward["score_every"] = 10
            study["reward"] = reward
        return time_guerdon(study)


def report(results: dict[str, list[dict[str, Any]]]) -> str:
    """The measurements as Markdown."""
    wall = {side: rates(runs) for side, runs in results.items()}
    core = {side: rates(runs, "core_seconds") for side, runs in results.items()}
    rows = []
    for side, runs in results.items():
        row = [NAMES[side], spread(wall[side], 0)]
        if side == "native":
            rows.append([*row, "", "", "", "", ""])
            continue
        cost = [100 * (1 - ratio) for ratio in ratios(wall[side], wall["native"])]
        work = [100 * (1 - ratio) for ratio in ratios(core[side], core["native"])]
        drawn = [1000 * r["phases"]["render"] / r["frames"] for r in runs]
        scored = [1000 * r["phases"]["score"] / r["frames"] for r in runs]
        row += [spread(cost, 0), "" if side in TWO_CORES else spread(work, 0)]
        rows.append([*row, spread([_rendering_share(r) for r in runs], 0), spread(drawn, 1), spread(scored, 1)])
    header = [
        "", "steps/s", "cost in throughput, %", "the same per core-second, %",
        "rendering, % of what is not simulation", "ms to render a frame", "ms to score a frame",
    ]  # fmt: skip
    drawing = [
        a["phases"]["render"] / b["phases"]["render"]
        for a, b in zip(results["workers_0"], results["workers_2"], strict=True)
    ]
    alone = {side: runs for side, runs in results.items() if side not in TWO_CORES}
    return (
        f"{table(header, rows)}\n\nTwo rendering processes against none, on two cores: "
        f"{spread(ratios(wall['workers_2'], wall['workers_0']))} times the environment steps/s, rendering alone "
        f"{spread(drawing)} times as fast. On one core: {core_share(alone)}"
    )


def _rendering_share(run: dict[str, Any]) -> float:
    """Rendering in percent of everything but simulation: scoring, the policy update, bookkeeping and logs included."""
    return float(100 * run["phases"]["render"] / (run["seconds"] - run["phases"]["simulate"]))


def main() -> None:
    """Print the tables as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="window-close")
    parser.add_argument("--core", type=int, default=0, help="the core of the runs on one core")
    parser.add_argument("--other", type=int, default=1, help="the second core of the runs on two")
    parser.add_argument(
        "--steps", type=int, default=40_000, help="of the cheapest measurements; dearer ones take a part"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--side", choices=list(NAMES), help="one measurement in this process")
    options = parser.parse_args()
    if options.side:
        pin([options.core, options.other] if options.side in TWO_CORES else [options.core])
        report_measurement(one(options.side, options.task, options.steps // PART.get(options.side, 5)))
        return
    where = machine_line()
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in NAMES}
    shared = {"task": options.task, "core": options.core, "other": options.other, "steps": options.steps}
    for repetition in range(options.repetitions):
        for side in NAMES:
            results[side].append(measure(__file__, {"side": side, **shared}))
            print(f"repetition {repetition}: {NAMES[side]}, {rates(results[side])[-1]:.0f} steps/s", flush=True)
    print(
        f"\n{where}\n\nTask {options.task}, {options.steps} steps (a fifth where every 10th step is scored, a "
        f"tenth where every step is; whole rollouts of 2000), {options.repetitions} repetitions in alternation; median "
        f"(lowest to highest).\n\n{report(results)}"
    )


if __name__ == "__main__":
    main()
