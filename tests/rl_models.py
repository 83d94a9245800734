"""A tiny image reward model with the episodes it was trained on, made without training."""

import numpy as np
import torch

from guerdon.episodes.write import EpisodeWriter
from guerdon.models.images.backbone import ImageScorer, calibrating, to_input
from guerdon.models.images.image import ImageModelConfig, save_checkpoint
from guerdon.types import Episode

SIZE = 24  # at 16 the last stages see single pixels, where bfloat16 on some CPUs does not repeat itself


def episodes(count=4, length=6, size=SIZE):
    """Dark pictures that grow bright in every second episode, which succeeds."""
    rng = np.random.default_rng(0)
    for n in range(count):
        good = n % 2 == 1
        success = np.array([good and t >= length - 2 for t in range(length)])
        frames = rng.integers(0, 60, (length, size, size, 3)).astype(np.uint8)
        frames[success] += 150
        yield Episode(
            id=f"old-{n}",
            task="wait",
            frames=frames,
            states=np.stack([np.arange(length), success], axis=1).astype(np.float32),
            actions=np.zeros((length, 2), np.float32),
            rewards=np.zeros(length, np.float32),
            success=success,
            outcome=good,
        )


def write_image_model(folder, kind="resnet", arch="resnet18", camera=""):
    """(checkpoint folder, replay folder) of a random but calibrated network; one that EfficientNet begins is frozen."""
    torch.manual_seed(0)
    size, frozen = (32, True) if arch == "efficientnet_lite0" else (SIZE, False)
    states = 2 if arch == "mlp" else None
    config = ImageModelConfig(
        kind, arch, hidden_dim=8, image_size=(3, size, size), threshold=0.5 if kind == "resnet" else None,
        freeze_backbone=frozen, state_size=states, camera=camera,
    )  # fmt: skip
    scorer = ImageScorer(arch, hidden_dim=8, dropout=0.1, freeze_backbone=frozen, state_size=states)
    rows = config.prepared(np.concatenate([config.rows(e) for e in episodes()]))
    with calibrating(scorer):
        scorer(to_input(torch.from_numpy(rows), "none"))
    save_checkpoint(folder / "model", scorer, config)
    with EpisodeWriter(folder / "replay") as writer:
        for episode in episodes():
            writer.add(episode)
    return folder / "model", folder / "replay"


def image_reward(folder, *, kind="resnet", arch="resnet18", update="after", **given):
    """A reward section with that model, refitted during the run."""
    checkpoint, replay = write_image_model(folder, kind, arch)
    return {
        "use_reward_model": True,
        "reward_mode": "per_step",
        "shaping": "raw" if kind == "resnet" else "relative",
        "model": {
            "model_type": kind,
            "checkpoint_path": str(checkpoint),
            "update": update,
            "replay_path": str(replay),
            "update_params": {"steps": 2, "batch_size": 8, "replay_size": 30, "every": 2},
        },
        **given,
    }
