"""Behaviour cloning: a first policy that does what collected episodes did (`guerdon train policy=bc`).

Supervised regression of actions on observations, as in ALVINN (Pomerleau 1988): the mean squared error of the
policy's most likely action, on normalised states or on frames, with whole episodes held out. The weights of the epoch
with the smallest held-out error are kept, and the standard deviation of its held-out errors becomes that of the
policy's actions (the maximum-likelihood estimate for a Gaussian around the predicted mean). So a policy-gradient run
that starts from here with `policy.checkpoint` explores as widely as the clone is uncertain.

The episodes must hold every row (`collect.frame_every: 1`): with k > 1 a row's action is the last of k and belongs
to a state that was not stored.

    folder, metrics = train_bc(study)
    policy = load_policy(folder)

Measured on Meta-World, one seed, deterministic evaluation from unseen starts: 5 expert episodes, batches of 64 and
100 epochs (2 s of one core) gave success 1.00 over 50 episodes on window-close and on drawer-close; the default of
50 epochs in batches of 256 gave 1.00 and 0.40, and 1.00 on both with 10 episodes. A `cnn` policy cloned from the
frames of 10 episodes (840 pairs, 40 epochs, 7 s) closed the window in 9 of 10.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from guerdon.atomic import write_json
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.errors import ConfigError, DataError, NonFiniteError
from guerdon.policies.control import GaussianPolicy, build_policy, save_policy
from guerdon.progress import ProgressBar
from guerdon.settings.policy import BCSettings, OwnPolicySettings
from guerdon.settings.study import Study
from guerdon.types import Episode, FloatArray, IntArray

PATIENCE = 20  # epochs without a smaller held-out error before stopping
SMALLEST_STD = 0.05  # an expert's gripper command can be predicted exactly; a policy with no spread cannot explore


class Pairs(NamedTuple):
    """Observations with the actions that followed them.

    Attributes:
        observations: (N, S) float32 states or (N, H, W, 3) uint8 frames.
        actions: (N, A) float32.
        episode: (N,) int64, index of the episode of each pair.
    """

    observations: np.ndarray
    actions: FloatArray
    episode: IntArray

    def take(self, chosen_N: np.ndarray) -> Pairs:
        """The pairs of a mask or of indices."""
        return Pairs(self.observations[chosen_N], self.actions[chosen_N], self.episode[chosen_N])


def train_bc(study: Study) -> tuple[Path, dict[str, Any]]:
    """Clone the episodes of `bc.data_path` into a policy of the architecture of the `policy` section.

    Args:
        study: its `bc`, `policy`, `env` and `runner` (seed, threads) sections.

    Returns:
        The policy's folder, to be named as `policy.checkpoint`, and numbers about the training.

    Raises:
        ConfigError: no `bc` section, or a policy that does not fit the data.
        DataError: the data cannot be read or cannot be cloned.
    """
    settings = study.bc
    if settings is None:
        raise ConfigError("this configuration has no bc section: set at least bc.data_path and bc.save_dir")
    if study.control_policy.checkpoint is not None:
        raise ConfigError(
            "policy.checkpoint would do nothing in behaviour cloning, which starts from random weights; remove it"
        )
    if isinstance(study.policy, OwnPolicySettings) and study.policy.whole:
        raise ConfigError(f"train policy=bc: cloning fits Gaussian policies, which {study.policy.type} does not make")
    started = time.perf_counter()
    torch.set_num_threads(study.runner.threads)
    pixels = study.policy.type == "cnn"
    episodes = read_episodes(
        settings.data_path,
        camera=study.env.camera_name if pixels else None,
        with_frames=pixels,
        only_success=settings.only_success,
    )
    pairs = gather_pairs(episodes, pixels=pixels)
    if pixels and pairs.observations.shape[1:3] != study.env.frame_size:
        raise ConfigError(
            f"{settings.data_path} has frames of {pairs.observations.shape[1:3]}, env.frame_size is "
            f"{study.env.frame_size}: the policy would get other frames in a run than here"
        )
    seed = study.runner.seed
    train, val = split_pairs(pairs, settings.val_split, seed)
    size = pairs.actions.shape[1]
    policy = build_policy(
        study.control_policy,
        pairs.observations.shape[1:],
        gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32),
        sources=(),
        seed=seed,
    )
    assert isinstance(policy, GaussianPolicy)
    if policy.normalizer is not None:
        policy.normalizer.update(train.observations)
        policy.refresh_normalizer()
    history = _fit(policy, train, val, settings, seed)
    errors = _errors(policy, val, settings.batch_size)
    std = residual_std(errors)
    with torch.no_grad():
        policy.log_std.copy_(torch.from_numpy(np.log(std)))
    folder = Path(settings.save_dir)
    save_policy(policy, folder)
    metrics = _metrics(history, errors, std, pairs, val) | {"seconds": round(time.perf_counter() - started, 3)}
    record = {"data_hash": dataset_hash(settings.data_path), "action_std_A": std.tolist(), "history": history}
    write_json(folder / "metrics.json", metrics | record)
    return folder, metrics


def _metrics(
    history: list[dict[str, Any]], errors_N_A: np.ndarray, std_A: FloatArray, pairs: Pairs, val: Pairs
) -> dict[str, Any]:
    best = min(history, key=lambda row: row["val_loss"])
    return {
        "val_loss": best["val_loss"],
        "train_loss": best["train_loss"],
        "val_mae": float(np.abs(errors_N_A).mean()),
        "action_std": float(std_A.mean()),
        "best_epoch": best["epoch"],
        "epochs": len(history),
        "episodes": len(np.unique(pairs.episode)),
        "val_episodes": len(np.unique(val.episode)),
        "pairs": len(pairs.actions),
    }


def gather_pairs(episodes: Any, *, pixels: bool) -> Pairs:
    """Observations and the actions that followed them: row t and `actions[t + 1]`.

    Args:
        episodes: an iterable of `Episode`.
        pixels: observations are frames instead of states.

    Raises:
        DataError: rows are missing between the ones kept, a column is missing, a number is not finite, or nothing is
            left.
    """
    inputs: list[np.ndarray] = []
    targets: list[FloatArray] = []
    owner: list[IntArray] = []
    for episode in episodes:
        observations, actions = _columns(episode, pixels)
        if len(episode) < 2:
            continue
        inputs.append(observations[:-1])
        targets.append(actions[1:].astype(np.float32))
        owner.append(np.full(len(episode) - 1, len(owner), dtype=np.int64))
    if len(owner) < 2:
        raise DataError(
            f"{len(owner)} episodes are too few to clone and to hold one out: collect more (bc.only_success keeps "
            "successful ones only)"
        )
    if len({(a.shape[1:], b.shape[1:]) for a, b in zip(inputs, targets, strict=True)}) != 1:
        raise DataError("the episodes have observations or actions of different sizes: clone one task at a time")
    return Pairs(np.concatenate(inputs), np.concatenate(targets), np.concatenate(owner))


def _columns(episode: Episode, pixels: bool) -> tuple[np.ndarray, FloatArray]:
    every = int(episode.meta.get("frame_every", 1))
    if every != 1:
        raise DataError(
            f"episode {episode.id!r} keeps every {every}th row, so its actions do not belong to its states: "
            "collect again with collect.frame_every=1 (env.data_collection.frame_every=1 in a run)"
        )
    observations = episode.frames if pixels else episode.states
    if observations is None or episode.actions is None:
        missing = "actions" if episode.actions is None else ("frames" if pixels else "states")
        raise DataError(
            f"episode {episode.id!r} has no {missing}, which a policy of type {'cnn' if pixels else 'mlp'} needs"
        )
    if not (pixels or np.isfinite(observations).all()) or not np.isfinite(episode.actions).all():
        raise DataError(f"episode {episode.id!r} has states or actions that are not finite")
    return observations, episode.actions


def split_pairs(pairs: Pairs, val_split: float, seed: int) -> tuple[Pairs, Pairs]:
    """Training and held-out pairs; whole episodes, at least one on each side."""
    episodes = np.random.default_rng([seed, 3]).permutation(np.unique(pairs.episode))
    count = int(np.clip(round(len(episodes) * val_split), 1, len(episodes) - 1))
    held = np.isin(pairs.episode, episodes[:count])
    return pairs.take(~held), pairs.take(held)


def residual_std(errors_N_A: np.ndarray) -> FloatArray:
    """(A,) root mean square of held-out errors, at least `SMALLEST_STD`."""
    spread = np.sqrt(np.mean(np.square(errors_N_A), axis=0))
    return np.asarray(np.maximum(spread, SMALLEST_STD), dtype=np.float32)


def _fit(policy: GaussianPolicy, train: Pairs, val: Pairs, settings: BCSettings, seed: int) -> list[dict[str, Any]]:
    """Train, load the best epoch's weights into the policy, and return one row per epoch."""
    optimizer = torch.optim.AdamW(policy.pi.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    rng = np.random.default_rng([seed, 4])
    history: list[dict[str, Any]] = []
    best: dict[str, Tensor] = {}
    progress = ProgressBar(settings.epochs, what="epochs", lines=5)
    try:
        for epoch in range(1, settings.epochs + 1):
            losses = [
                _step(policy, optimizer, train, rows) for rows in _batches(len(train.actions), settings.batch_size, rng)
            ]
            loss = float(np.square(_errors(policy, val, settings.batch_size)).mean())
            if not np.isfinite(loss):
                raise NonFiniteError(f"the held-out error is {loss} after epoch {epoch}: lower bc.learning_rate")
            history.append({"epoch": epoch, "train_loss": float(np.mean(losses)), "val_loss": loss})
            if loss <= min(row["val_loss"] for row in history):
                best = {name: value.clone() for name, value in policy.pi.state_dict().items()}
            progress.advance(epoch, f"held-out error {loss:.4f}")
            if epoch - min(history, key=lambda row: row["val_loss"])["epoch"] >= PATIENCE:
                progress.write_line(f"stopped after epoch {epoch}: no smaller held-out error for {PATIENCE} epochs")
                break
    finally:
        progress.close()
    policy.pi.load_state_dict(best)
    return history


def _batches(count: int, size: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
    return np.array_split(rng.permutation(count), max(1, -(-count // size)))


def _step(policy: GaussianPolicy, optimizer: torch.optim.Optimizer, pairs: Pairs, rows: np.ndarray) -> float:
    mean = policy.action_mean(policy.prepare(pairs.observations[rows]))
    loss = torch.nn.functional.mse_loss(mean, torch.from_numpy(pairs.actions[rows]))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


@torch.inference_mode()
def _errors(policy: GaussianPolicy, pairs: Pairs, size: int) -> np.ndarray:
    """(N, A) most likely action minus the one taken."""
    parts = [
        policy.action_mean(policy.prepare(pairs.observations[i : i + size])).numpy() - pairs.actions[i : i + size]
        for i in range(0, len(pairs.actions), size)
    ]
    return np.concatenate(parts)
