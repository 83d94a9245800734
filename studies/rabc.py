"""Reward-aligned behaviour cloning against plain cloning on demonstrations of mixed quality (studies/rabc.yaml).

One set of demonstrations and one progress model, trained on other episodes, are shared by all seeds. Every seed clones
the demonstrations five times: every moment alike; weighted by the model's progress; as references, weighted by true
progress and by the simulator's own dense reward; and, as what true outcomes would allow, the successful demonstrations
alone. A seed decides the weights that a clone starts from, the order of its batches and which episodes are held out.
True success is measured in the same evaluation episodes. What is done is not done again.

    python studies/rabc.py
    python studies/rabc.py collect.seed=1 work_dir=runs/rabc_1               # other demonstrations, another model
    python studies/rabc.py env.task=drawer-close work_dir=runs/rabc_drawer
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon.collect.collect import collect
from guerdon.config.loading import load
from guerdon.episodes.targets import progress_targets
from guerdon.files import provenance
from guerdon.settings.study import Study
from guerdon.statistics.intervals import Interval, conclusion
from guerdon.statistics.training_runs import paired_difference, stratified_t_interval
from guerdon.train.bc import train_bc
from guerdon.train.images import train_image_model
from guerdon.types import Episode, Failure, FloatArray, RewardInfo, Score

HORIZON = 100.0  # steps, as train.progress.horizon
FILE = Path(__file__).with_suffix(".yaml")
ARMS = {
    "plain": ("all moments alike", ["bc.sample_weighting=null"]),
    "learned": ("rabc, learned progress", []),
    "true": (
        "rabc, true progress (reference)",
        ["bc.sample_weighting={model: {model_type: 'rabc:TrueProgress', modality: state}, chunk_size: 25}"],
    ),
    "recorded": (
        "rabc, simulator's dense reward (reference)",
        # its range is 0 to 10, that of progress 0 to 1
        ["bc.sample_weighting={recorded_reward: true, chunk_size: 25, kappa: 0.1}"],
    ),
    "successes": (
        "successful demonstrations alone (needs true outcomes)",
        ["bc.sample_weighting=null", "bc.only_success=true"],
    ),
}


class TrueProgress:
    """What the progress model is trained to predict, from true success: nearness in time, 0 in failed episodes."""

    info = RewardInfo(name="true progress", range=(0.0, 1.0), modality="state", frames_needed=0)

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode."""
        return [self._score(progress_targets(episode, horizon=HORIZON)) for episode in episodes]

    def _score(self, targets_T: FloatArray | None) -> Score:
        unknown = Failure("unknown_success", "the episode's success is not known")
        return Score(failure=unknown) if targets_T is None else Score.from_values(targets_T)


def clones(seeds: Sequence[int], overrides: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Numbers of every clone by arm, one for each seed; what was done before is read."""

    def study(*more: str) -> Study:
        return load(Study, FILE, [*overrides, *more])

    base = study()
    work = Path(base.work_dir)
    collect(base)
    others = [f"collect.save_dir={work}/reward_data", f"collect.seed={base.collect.seed + 1000}"]
    collect(load(Study, FILE, ["collect.episodes=40", *overrides, "collect.frame_every=5", *others]))
    train_image_model(base.image_models["progress"], resume=True)
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for arm, (_, changes) in ARMS.items():
        for seed in seeds:
            folder = work / "clones" / arm / f"seed{seed}"
            path = folder / "metrics.json"
            if not path.exists():
                train_bc(study(*changes, f"runner.seed={seed}", f"bc.save_dir={folder}"))
            found[arm].append(json.loads(path.read_text()))
    return found


def main() -> None:
    """Run all seeds and print the comparison as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="10,11,12,13,14", help="separated by commas")
    parser.add_argument("overrides", nargs="*", help="of the study file, such as env.task=drawer-close")
    given = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    started = time.process_time()
    found = clones([int(seed) for seed in given.seeds.split(",")], given.overrides)
    success = {arm: np.array([[one["success"] for one in rows]]) for arm, rows in found.items()}
    print(f"\nseeds {given.seeds}, {provenance.now()[:10]}, {provenance.machine()['processor']}, one core")
    print(f"{(time.process_time() - started) / 60:.1f} core-minutes\n")
    print("| clone | true success | each seed | difference from plain | conclusion | p | weights of 0 |")
    print("| --- | ---: | --- | ---: | --- | ---: | ---: |")
    for arm, (label, _) in ARMS.items():
        interval = stratified_t_interval(success[arm])
        each = " ".join(f"{value:.2f}" for value in success[arm][0])
        cells = [label, bounds(interval), each, "", "baseline", "", ""]
        if arm != "plain":
            difference = paired_difference(success[arm], success["plain"], seed=0)
            cells[3:6] = bounds(difference.interval, "+"), conclusion(difference.interval), f"{difference.p_value:.3f}"
        share = found[arm][0].get("weight_zero")
        cells[6] = "" if share is None else f"{share:.2f}"
        print("| " + " | ".join(cells) + " |")


def bounds(interval: Interval, sign: str = "") -> str:
    """`0.50 [0.40, 0.60]`; success ends at 0 and 1, a difference of two at -1 and 1."""
    floor = -1.0 if sign else 0.0
    ends = "" if interval.low is None else f" [{max(interval.low, floor):{sign}.2f}, {min(interval.high, 1):{sign}.2f}]"
    return f"{interval.estimate:{sign}.2f}{ends}"


if __name__ == "__main__":
    main()
