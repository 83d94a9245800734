"""Image reward models from random weights and from ImageNet, by themselves (studies/backbones.yaml).

For each task one data set and one test set from another seed. A seed decides which episodes of the data set are
labelled, which of them are held out, the weights that are not pretrained and the order of the batches. Success and
progress models of each kind learn from all 110 episodes and from a quarter of them. What is done is not done again.

    python studies/backbones.py
    python studies/backbones.py --tasks=door-close --seeds=0 --arms=scratch,head
    python studies/backbones.py compare.tasks=[door-close] work_dir=runs/elsewhere
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon.collect.collect import collect
from guerdon.config.loading import load
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.episodes.targets import episode_success, frame_targets
from guerdon.evaluation import metrics as measure
from guerdon.files import provenance
from guerdon.files.atomic import write_json
from guerdon.models.load import load_reward_model
from guerdon.models.scores import score_episodes
from guerdon.settings.study import Study
from guerdon.statistics.intervals import Interval
from guerdon.statistics.training_runs import paired_difference, stratified_t_interval
from guerdon.train.images import FEATURES, train_image_model
from guerdon.types import Episode, Score

FILE = Path(__file__).with_suffix(".yaml")
TEST_SEED, TEST_EPISODES = 1000, 66
SHARES = (1.0, 0.25)  # of the data set's episodes that are labelled
ARMS = {  # label; names of the models; what differs from the study file
    "scratch": ("ResNet-18 from scratch", ("success", "progress"), []),
    "head": ("EfficientNet-lite0, head only", ("success_pretrained", "progress_pretrained"), []),
    "tuned": (
        "EfficientNet-lite0, fine-tuned",
        ("success_pretrained", "progress_pretrained"),
        [
            f"train.{name}_pretrained.{key}"
            for name, epochs in (("success", 10), ("progress", 6))
            for key in ("freeze_backbone=false", "learning_rate=3.0e-4", f"max_epochs={epochs}", "eval_every=2")
        ],
    ),
}
METRICS = {
    "auroc": "AUROC of frames",
    "voc": "VOC",
    "near": "error near success",
    "far": "error far from it",
    "failed": "error in failures",
    "seconds": "CPU seconds of training",
}


@dataclass(frozen=True, eq=False)
class Data:
    """Episodes of one task: to learn from, and to test on."""

    episodes: list[Episode]
    hash: str
    test: list[Episode]


def data_of(task: str, overrides: Sequence[str]) -> Data:
    """Collected once, read whole."""
    test = ["collect.save_dir=${work_dir}/test/${env.task}", f"collect.seed={TEST_SEED}"]
    found = []
    for more in ([], [*test, f"collect.episodes={TEST_EPISODES}"]):
        study = load(Study, FILE, [*overrides, f"env.task={task}", *more])
        assert study.collect is not None
        collect(study)
        found.append(study.collect.save_dir)
    train, held = ([*read_episodes(path, with_frames=True)] for path in found)
    return Data(train, dataset_hash(found[0]), held)


def trained(task: str, arm: str, share: float, seed: int, data: Data, overrides: Sequence[str]) -> dict[str, Any]:
    """Metrics of both models of an arm on the test episodes; what was done before is read."""
    _, names, changes = ARMS[arm]
    study = load(Study, FILE, [*overrides, *changes, f"env.task={task}"])
    folder = Path(study.work_dir) / "offline" / task / arm / f"share{share:g}" / f"seed{seed}"
    if (folder / "backbones.json").exists():
        return dict(json.loads((folder / "backbones.json").read_text()))
    chosen = np.random.default_rng(seed).permutation(len(data.episodes))[: round(share * len(data.episodes))]
    episodes = [data.episodes[i] for i in sorted(chosen)]
    found: dict[str, Any] = {"episodes": len(episodes)}
    FEATURES.clear()  # each training pays for its features
    start = time.process_time()
    scores = {}
    for name in names:
        settings = study.image_models[name]
        settings = settings.model_copy(update={"save_dir": str(folder / name), "seed": seed, "tensorboard": False})
        shutil.rmtree(settings.save_dir, ignore_errors=True)  # of a study that was cut off
        result = train_image_model(settings, episodes, data_hash=f"{data.hash} {share:g} {seed}")
        scores[settings.type] = (settings.type, result.save_dir)
    found["seconds"] = time.process_time() - start
    measured = {kind: score_episodes(load_reward_model(*scores[kind]), data.test) for kind in scores}
    table = measure.row_table(data.test, measured["resnet"])
    found["auroc"] = measure.classification_metrics(table, threshold=None, probabilities=True, reps=1, seed=0)[
        "auroc"
    ].estimate
    order = measure.order_metrics(data.test, measured["progress"], reps=1, seed=0)
    found["voc"] = order["value_order_spearman"].estimate
    found |= errors(data.test, measured["progress"], float(study.image_models[names[1]].horizon or 100))
    write_json(folder / "backbones.json", found)
    return found


def errors(episodes: Sequence[Episode], scores: Sequence[Score], horizon: float) -> dict[str, float]:
    """Mean error of progress: at most half a horizon before success, further from it, and in failed episodes."""
    found: dict[str, list[np.ndarray]] = {"near": [], "far": [], "failed": []}
    for episode, score in zip(episodes, scores, strict=True):
        targets = frame_targets(episode, "progress", horizon)
        if targets is None or score.steps is None:
            continue
        error = np.abs(score.steps - targets)
        if episode_success(episode):
            found["near"].append(error[targets >= 0.5])
            found["far"].append(error[targets < 0.5])
        else:
            found["failed"].append(error)
    return {name: float(np.concatenate(parts).mean()) for name, parts in found.items()}


def shown(interval: Interval, sign: str = "") -> str:
    """`0.50 [0.40, 0.60]`, or without bounds where there are none."""
    digits = 0 if abs(interval.estimate or 0) >= 10 else 3
    ends = ""
    if interval.low is not None and interval.high is not None:
        ends = f" [{interval.low:{sign}.{digits}f}, {interval.high:{sign}.{digits}f}]"
    return f"{interval.estimate:{sign}.{digits}f}{ends}"


def main() -> None:
    """Train and test all models, and print the comparison as tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="", help="separated by commas; those of the study file")
    parser.add_argument("--seeds", default="0,1,2", help="separated by commas")
    parser.add_argument("--arms", default=",".join(ARMS), help=f"of {', '.join(ARMS)}")
    parser.add_argument("--shares", default=",".join(f"{s:g}" for s in SHARES), help="of the episodes")
    parser.add_argument("overrides", nargs="*", help="of the study file")
    given = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    start = time.process_time()
    tasks = given.tasks.split(",") if given.tasks else load(Study, FILE, given.overrides).compare.tasks
    seeds, arms = [int(seed) for seed in given.seeds.split(",")], given.arms.split(",")
    shares = [float(share) for share in given.shares.split(",")]
    found: dict[tuple[str, float], list[list[dict[str, Any]]]] = {(a, s): [] for a in arms for s in shares}
    for task in tasks:
        data = data_of(task, given.overrides)
        for (arm, share), rows in found.items():
            rows.append([trained(task, arm, share, seed, data, given.overrides) for seed in seeds])
    print(f"\n{', '.join(tasks)}; seeds {given.seeds}; {provenance.now()[:10]}; {provenance.machine()['processor']}")
    print(f"{(time.process_time() - start) / 60:.1f} core-minutes of this call\n")
    print(f"| model | episodes | {' | '.join(METRICS.values())} |")
    print(f"| --- | ---: |{' ---: |' * len(METRICS)}")
    for (arm, share), rows in found.items():
        values = {name: np.array([[one[name] for one in row] for row in rows]) for name in METRICS}
        cells = [shown(stratified_t_interval(values[name])) for name in METRICS]
        print(f"| {ARMS[arm][0]} | {rows[0][0]['episodes']} | {' | '.join(cells)} |")
        if arm != "scratch" and ("scratch", share) in found:
            base = found["scratch", share]
            cells = []
            for name in METRICS:
                other = np.array([[one[name] for one in row] for row in base])
                cells.append(shown(paired_difference(values[name], other, seed=0).interval, "+"))
            print(f"| difference from scratch | | {' | '.join(cells)} |")
    for task, *rows in zip(tasks, *found.values(), strict=True):
        for (arm, share), row in zip(found, rows, strict=True):
            cells = [f"{np.mean([one[name] for one in row]):.3f}" for name in METRICS]
            print(f"{task:14} {arm:8} {share:4g} {' '.join(cells)}")


if __name__ == "__main__":
    main()
