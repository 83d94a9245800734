"""Reward-aligned behaviour cloning against plain cloning on demonstrations of mixed quality (studies/rabc.yaml).

Every seed collects its own demonstrations, trains its own progress model on other episodes, and clones the
demonstrations four times: every moment alike; weighted by the model's progress; weighted by the simulator's own dense
reward, an upper reference; and, as what true outcomes would allow, the successful demonstrations alone. True success is
measured in the same evaluation episodes. What is done is not done again.

    python studies/rabc.py --seeds=10,11,12,13,14
    python studies/rabc.py --seeds=10,11 env.task=drawer-close work_dir=runs/rabc_drawer
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon import provenance
from guerdon.collect.collect import collect
from guerdon.config import load
from guerdon.evaluate.intervals import verdict
from guerdon.evaluate.statistics import paired_difference, stratified_t_interval
from guerdon.settings.study import Study
from guerdon.train.bc import train_bc
from guerdon.train.images import train_image_model

FILE = Path(__file__).with_suffix(".yaml")
ARMS = {
    "plain": ("all moments alike", ["bc.sample_weighting=null"]),
    "learned": ("rabc, learned progress", []),
    "recorded": (
        "rabc, simulator's dense reward (upper reference)",
        # its range is 0 to 10, that of the learned progress 0 to 1
        ["bc.sample_weighting={recorded_reward: true, chunk_size: 10, kappa: 0.1}"],
    ),
    "successes": (
        "successful demonstrations alone (needs true outcomes)",
        ["bc.sample_weighting=null", "bc.only_success=true"],
    ),
}


def run_seed(seed: int, overrides: list[str], folder: Path) -> dict[str, Any]:
    """Everything of one seed: success and other numbers by arm, and the CPU seconds of each part."""
    path = folder / "result.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def study(*more: str) -> Study:
        return load(Study, FILE, [*overrides, f"work_dir={folder}", f"runner.seed={seed}", *more])

    seconds: dict[str, float] = {}

    def timed(name: str, work: Any, *arguments: Any) -> Any:
        started = time.process_time()
        result = work(*arguments)
        seconds[name] = round(time.process_time() - started, 1)
        return result

    timed("demonstrations", collect, study(f"collect.seed={seed}"))
    others = [f"collect.save_dir={folder}/reward_data", f"collect.seed={seed + 1000}", "collect.frame_every=5"]
    timed("reward_data", collect, study(*others, "collect.episodes=40"))
    model = timed("progress", train_image_model, study(f"train.progress.seed={seed}").image_models["progress"])
    result: dict[str, Any] = {"model": model.metrics, "arms": {}, "seconds": seconds}
    for arm, (_, changes) in ARMS.items():
        result["arms"][arm] = timed(arm, train_bc, study(*changes, f"bc.save_dir={folder}/{arm}"))[1]
    path.write_text(json.dumps(result, indent=2))
    return result


def main() -> None:
    """Run all seeds and print the comparison as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="10,11,12,13,14", help="separated by commas")
    parser.add_argument("overrides", nargs="*", help="of the study file, such as env.task=drawer-close")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    torch.set_num_threads(1)
    base = load(Study, FILE, given.overrides)
    results = [run_seed(seed, given.overrides, Path(base.work_dir) / f"seed{seed}") for seed in seeds]
    success = {arm: np.array([[r["arms"][arm]["success"] for r in results]]) for arm in ARMS}
    minutes = sum(sum(r["seconds"].values()) for r in results) / 60
    machine = provenance.machine()
    print(f"\n{base.env.task}, seeds {given.seeds}, {provenance.now()[:10]}; {machine['processor']}, one core")
    print(f"{minutes:.1f} core-minutes in all\n")
    print("| clone | true success | each seed | difference from plain | p | weights of 0 |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for arm, (label, _) in ARMS.items():
        interval = stratified_t_interval(success[arm])
        each = " ".join(f"{value:.2f}" for value in success[arm][0])
        cells = [label, bounds(interval.estimate, interval.low, interval.high), each, "", "", ""]
        if arm != "plain":
            found = paired_difference(success[arm], success["plain"], seed=0)
            apart = found.interval
            cells[3] = f"{bounds(apart.estimate, apart.low, apart.high, sign='+')} ({verdict(apart)})"
            cells[4] = f"{found.p_value:.3f}"
        shares = [r["arms"][arm].get("weight_zero") for r in results]
        cells[5] = "" if shares[0] is None else f"{np.mean(shares):.2f}"
        print("| " + " | ".join(cells) + " |")


def bounds(estimate: float | None, low: float | None, high: float | None, sign: str = "") -> str:
    """`0.50 [0.40, 0.60]`."""
    ends = "" if low is None or high is None else f" [{low:{sign}.2f}, {high:{sign}.2f}]"
    return f"{estimate:{sign}.2f}{ends}"


if __name__ == "__main__":
    main()
