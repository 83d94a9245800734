"""Reward models that look at single frames or states: the `resnet` success classifier and the `progress` regressor.

Both are one network with a sigmoid; they differ in what they were trained on and in what the number means. Scored
frames can be written as pictures, sorted into successes and failures.

On disk a model is a folder with `model.safetensors` and `config.json`, which holds what scoring needs besides the
weights (architecture, preprocessing, threshold), what the model was trained on, and the hash of the weights.

    save_checkpoint("runs/rm/model", scorer, config)
    model = load_image_model("runs/rm", kind="resnet")
    model.score([episode])[0].steps            # probability of success of each row
    model.probabilities(frames_N_H_W_C)        # the same for bare frames
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from guerdon.compute.devices import resolve_device
from guerdon.compute.finite import load_weights, save_weights
from guerdon.errors import CheckpointError, ConfigError, DataError, boundary
from guerdon.files.atomic import sealed_folder, sha256
from guerdon.models.checkpoint import read_card, write_card
from guerdon.models.images.backbone import ImageScorer, inference_copy, to_input, to_pixels
from guerdon.policies.batches.precision import uses_bf16
from guerdon.processes.call_queue import alone, batched
from guerdon.types import ByteArray, Episode, Failure, FloatArray, IntArray, RewardInfo, Score

Kind = Literal["resnet", "progress"]
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class ImageModelConfig:
    """Everything about an image reward model except its weights.

    Attributes:
        type: `resnet` (probability of success) or `progress` (share of the task done).
        arch: of the backbone, see `ImageScorer`.
        hidden_dim: of the head; None for a single linear layer.
        dropout: of the head.
        image_size: (3, H, W); unused with `mlp`.
        normalize: `none` or `imagenet`.
        threshold: probability above which a frame counts as success; None for `progress`.
        label: what a target of 1 means, in words.
        horizon: of a progress model that predicts nearness in time, in environment steps; else None.
        data_hash: of the training data, of several sets with spaces between them; empty when the episodes came from
            memory.
        within_steps: of a classifier whose value is the probability of success within so many environment steps from
            the frame; None: of success in the frame.
        freeze_backbone: only the head was trained, and only it is refitted in RL.
        pretrained: the weights that the backbone started from, with their hash where they are a packaged model's;
            empty: random ones. The checkpoint has all weights, so scoring does not need them.
        state_size: S, where the model looks at states of so many numbers (`mlp`) and not at frames; else None.
        keys: of the parts of states that it looks at, in their order; empty: whole states.
        actions: it looks at the action that led to a state, too.
        camera: whose frames it looks at, or the key of pictures that are observed; empty: the only one, or the first.
    """

    type: Kind
    arch: str = "resnet18"
    hidden_dim: int | None = 256
    dropout: float = 0.1
    image_size: tuple[int, int, int] = (3, 128, 128)
    normalize: Literal["none", "imagenet"] = "none"
    threshold: float | None = None
    label: str = ""
    horizon: float | None = None
    data_hash: str = ""
    within_steps: int | None = None
    freeze_backbone: bool = False
    pretrained: str = ""
    state_size: int | None = None
    keys: tuple[str, ...] = ()
    actions: bool = False
    camera: str = ""

    @property
    def column(self) -> Literal["frames", "states"]:
        """Of an episode, what the model looks at."""
        return "frames" if self.state_size is None else "states"

    def rows(self, episode: Episode) -> NDArray[Any] | None:
        """That column, (T, H, W, 3) or (T, S); None where the episode has none."""
        if self.state_size is None:
            return episode.views.get(self.camera, episode.frames)
        return state_rows(episode, self.keys, actions=self.actions)

    def prepared(self, rows: Sequence[NDArray[Any]] | NDArray[Any], *, channels_last: bool = True) -> NDArray[Any]:
        """Rows as they are kept: (N, H, W, 3) uint8 of the model's size, or (N, S) float32.

        Raises:
            DataError: they are not pictures, or states of another size.
        """
        if self.state_size is not None:
            states = np.asarray(rows, np.float32).reshape(len(rows), -1)
            if len(rows) and states.shape[1] != self.state_size:
                raise DataError(f"the model looks at states of {self.state_size} numbers, got {states.shape[1]}")
            return states
        size = self.image_size
        if isinstance(rows, np.ndarray):
            return to_pixels(rows, size, channels_last=channels_last)
        if len({row.shape for row in rows}) == 1:
            return to_pixels(np.stack(rows), size, channels_last=channels_last)
        return np.concatenate([to_pixels(row[None], size, channels_last=channels_last) for row in rows])


def state_rows(episode: Episode, keys: Sequence[str], *, actions: bool) -> FloatArray | None:
    """(T, S) float32 what a model on states looks at; None where the episode lacks it.

    Args:
        episode: with `meta["state_keys"]` (names and sizes of parts) where its states have parts; without, its states
            are taken to be what the model looks at.
        keys: of the parts, in their order, or of several nested ones; empty: all.
        actions: with the action that led to each state; of discrete actions (`meta["action_values"]`) one-hot.
    """
    states = episode.states
    if states is None:
        return None
    if keys and "state_keys" in episode.meta:
        try:
            states = states[:, state_columns(episode, keys)]
        except DataError:
            return None
    if actions and episode.actions is not None:
        taken: NDArray[Any] = episode.actions
        if values := episode.meta.get("action_values"):
            taken = np.concatenate([np.eye(n)[taken[:, k].astype(np.int64)] for k, n in enumerate(values)], axis=1)
        states = np.concatenate([states, taken.reshape(len(states), -1)], axis=1)
    return states.astype(np.float32, copy=False)


def state_columns(episode: Episode, keys: Sequence[str]) -> IntArray:
    """(S,) which numbers of its states are the parts `keys`, each a part or several nested ones.

    Raises:
        DataError: its states have no such parts.
    """
    parts = episode.meta.get("state_keys", ())
    names = [name for name, size in parts for _ in range(size)]
    own = [[i for i, name in enumerate(names) if name == key or name.startswith(f"{key}.")] for key in keys]
    known = ", ".join(f"{name} ({size})" for name, size in parts)
    where = f"keys: the states of episode {episode.id!r}"
    if not parts:
        raise DataError(f"{where} have no named parts: remove keys, and the model looks at whole states", field="keys")
    if missing := [key for key, found in zip(keys, own, strict=True) if not found]:
        raise DataError(f"{where} have no {missing[0]!r}; there are {known}", field="keys")
    if episode.states is None or episode.states.shape[1] != len(names):
        raise DataError(
            f"{where} are not as wide as their parts, {known}: collect or convert the data set again", field="keys"
        )
    return np.concatenate(own)


def save_checkpoint(path: str | Path, scorer: ImageScorer, config: ImageModelConfig) -> Path:
    """Write a checkpoint folder under a temporary name and rename it to `path`.

    An existing folder is moved aside first and removed last.

    Returns:
        The folder.

    Raises:
        NonFiniteError: a weight is not finite; an existing folder stays.
    """
    target = Path(path)
    with sealed_folder(target) as temporary:
        save_weights({name: tensor.detach().cpu() for name, tensor in scorer.state_dict().items()}, temporary / WEIGHTS)
        write_card(temporary / CONFIG, config, sha256=sha256(temporary / WEIGHTS))
    return target


def find_checkpoint(path: str | Path) -> Path:
    """The folder that holds `config.json`: `path` itself, its `model/`, or the folder of a .safetensors file.

    Raises:
        CheckpointError: there is none.
    """
    given = Path(path)
    folder = given.parent if given.suffix == ".safetensors" else given
    for candidate in (folder, folder / "model"):
        if (candidate / CONFIG).is_file():
            if given.suffix == ".safetensors" and given.name != WEIGHTS:
                raise CheckpointError(f"{given}: the weights of a checkpoint are named {WEIGHTS}, next to {CONFIG}")
            return candidate
    raise CheckpointError(
        f"no reward model at {given}: expected a folder with {WEIGHTS} and {CONFIG}; write one with `guerdon train`"
    )


def load_config(path: str | Path, **requested: Any) -> ImageModelConfig:
    """Read `config.json` and compare it with what the caller expects.

    Args:
        path: as for `find_checkpoint`.
        **requested: fields of `ImageModelConfig` that must be equal; None accepts any value.

    Raises:
        CheckpointError: no checkpoint, an unreadable one, or a mismatch (both values are named).
    """
    folder = find_checkpoint(path)
    with boundary(CheckpointError, f"{folder / CONFIG} cannot be read"):
        config = read_card(folder / CONFIG, ImageModelConfig)
        config = replace(config, image_size=tuple(config.image_size), keys=tuple(config.keys))  # type: ignore[arg-type]
    for name, wanted in requested.items():
        found = getattr(config, name)
        if wanted is not None and wanted != found:
            raise CheckpointError(
                f"{name} mismatch: the checkpoint {folder} has {_shown(found)}, "
                f"but {_shown(wanted)} was requested; change {name} to {_shown(found)} or train a new model"
            )
    return config


def load_checkpoint(path: str | Path, **requested: Any) -> tuple[ImageScorer, ImageModelConfig]:
    """Read a checkpoint: the hash must match, and every tensor must be there and fit.

    Args:
        path: as for `find_checkpoint`.
        **requested: as for `load_config`.

    Returns:
        The network in evaluation mode on the CPU, and its configuration.

    Raises:
        CheckpointError: anything is missing, corrupt, or other than requested.
    """
    folder = find_checkpoint(path)
    config = load_config(path, **requested)
    with boundary(CheckpointError, f"{folder} cannot be read"):
        expected = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("sha256")
        if sha256(folder / WEIGHTS) != expected:
            raise CheckpointError(f"{folder / WEIGHTS} is corrupt: its SHA-256 is not the one in {CONFIG}")
        weights = load_weights(folder / WEIGHTS)
    make = partial(
        ImageScorer,
        config.arch,
        hidden_dim=config.hidden_dim,
        dropout=config.dropout,
        freeze_backbone=config.freeze_backbone,
        state_size=config.state_size,
    )
    misfit = f"{folder / WEIGHTS} does not fit {config.arch} with hidden_dim {config.hidden_dim}"
    with boundary(CheckpointError, misfit), torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            make().load_state_dict(weights, strict=True, assign=True)  # compares sizes, before memory is taken for them
        scorer = make()
        scorer.load_state_dict(weights, strict=True)
    return scorer.eval(), config


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)


class ImageRewardModel:
    """A RewardModel over frames: `steps` holds the sigmoid of each frame's logit, `total` the last of them.

    Args:
        scorer: the network, moved to `device`; scoring uses a folded copy of it (see `refresh`).
        config: preprocessing, threshold and kind.
        device: None for the GPU when there is one.
        bf16: `auto` computes in bfloat16 where the hardware has it; False gives scores that do not depend on
            how episodes are batched (to 1e-6).
        batch_size: frames per pass through the network.
        debug_save_dir: write every scored frame there as a picture; the environment variable
            DEBUG_IMAGE_SAVE_DIR does the same.

    Attributes:
        even: every pass has equally many rows, so that a value does not depend on what is scored with it.

    Raises:
        ConfigError: debug_save_dir with a model that looks at states.
    """

    def __init__(
        self,
        scorer: ImageScorer,
        config: ImageModelConfig,
        *,
        device: str | torch.device | None = None,
        bf16: bool | Literal["auto"] = "auto",
        batch_size: int = 64,
        debug_save_dir: str | Path | None = None,
    ) -> None:
        self.config = config
        self.device = resolve_device(device)
        self.bf16 = uses_bf16(bf16, self.device) and config.state_size is None
        self.batch_size, self.even = batch_size, False
        self.scorer = scorer.to(self.device)
        self._network: ImageScorer | None = None
        if config.state_size is not None and debug_save_dir:
            raise ConfigError(
                "debug_save_dir saves scored frames, and this model looks at states: remove it", key="debug_save_dir"
            )
        folder = debug_save_dir or os.environ.get("DEBUG_IMAGE_SAVE_DIR")
        self._debug: DebugImages | None = None
        if folder and not config.state_size:
            self._debug = DebugImages(folder, 0.5 if config.threshold is None else config.threshold)

    @property
    def info(self) -> RewardInfo:
        """Values in [0, 1], one per row, each from its own frame only."""
        return RewardInfo(
            name=self.config.type,
            range=(0.0, 1.0),
            modality="image" if self.config.state_size is None else "state",
            frames_needed=1 if self.config.state_size is None else 0,
            success_threshold=self.config.threshold,
            progress_horizon=self.config.horizon,
            keys=self.config.keys or ((self.config.camera,) if self.config.camera else ()),
            actions=self.config.actions,
        )

    @batched
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """Measure all episodes in one pass; identical frames go through the network once.

        Returns:
            One Score per episode. Without frames it is `Failure('no_frames')`, without the states that the model looks
            at `Failure('no_states')`; when the network gives a value that is not finite, `Failure('non_finite')`.
        """
        unique: list[NDArray[Any]] = []
        places: dict[tuple[Any, bytes], int] = {}
        rows: list[NDArray[np.int64] | None] = []
        for episode in episodes:
            seen = self.config.rows(episode)
            fits = seen is not None and seen.size and seen.shape[1] == (self.config.state_size or seen.shape[1])
            rows.append(_unique_rows(seen, places, unique) if seen is not None and fits else None)
        values_U = self.probabilities(unique, channels_last=True)
        missing = Failure("no_frames", "the episode has no frames to look at")
        if (size := self.config.state_size) is not None:
            missing = Failure("no_states", f"the episode has no states of {size} numbers to look at")
        return [_score(index, values_U, missing) for index in rows]

    @alone
    def probabilities(
        self, frames: Sequence[NDArray[Any]] | NDArray[Any], *, channels_last: bool = False
    ) -> FloatArray:
        """The model's value for each frame, without any sharing between equal ones.

        Args:
            frames: N pictures as `to_pixels` takes them, in one array or in a list (of several sizes); or N states.
            channels_last: see `to_pixels`.

        Returns:
            (N,) float32 in [0, 1]; a value is NaN where the network's output is not finite.
        """
        values = np.empty(len(frames), np.float32)
        size = _EVEN if self.even else self.batch_size
        for start in range(0, len(frames), size):
            chunk = frames[start : start + size]
            pixels = self.config.prepared(chunk, channels_last=channels_last)
            count = len(pixels)
            if self.even:
                pixels = np.concatenate([pixels, np.repeat(pixels[:1], size - count, axis=0)])
            values[start : start + count] = self._forward(pixels)[:count]
        if self._debug is not None:
            self._debug.save(self.config.prepared(frames, channels_last=channels_last), values)
        return values

    def sort_pictures_at(self, threshold: float) -> None:
        """Sort debug pictures by the threshold that decides the reward, where that is not the stored one."""
        if self._debug is not None:
            self._debug.threshold = threshold

    def refresh(self) -> None:
        """Score with the current weights of `scorer`; call it after changing them."""
        self._network = None

    def _forward(self, pixels_N_H_W_C: NDArray[Any]) -> FloatArray:
        network = self._network  # `refresh` may be called meanwhile
        if network is None:
            network = self._network = inference_copy(self.scorer, bf16=self.bf16)
        with torch.inference_mode():
            inputs = to_input(torch.from_numpy(pixels_N_H_W_C).to(self.device), self.config.normalize)
            values: FloatArray = torch.sigmoid(network(inputs)).cpu().numpy()
        return np.where(np.isfinite(values), values, np.float32(np.nan))


_EVEN = 16  # rows of a batch, where a value must not depend on what is scored with it


class DebugImages:
    """Writes scored frames as PNG files named `{id:06d}_prob{p:.4f}.png`; the ids continue those of an earlier run.

    Args:
        folder: receives `resnet_success/` and `resnet_fail/`, also of progress models.
        threshold: probabilities above it are a success.
    """

    def __init__(self, folder: str | Path, threshold: float) -> None:
        self.folders = {True: Path(folder) / "resnet_success", False: Path(folder) / "resnet_fail"}
        self.threshold = threshold
        for path in self.folders.values():
            path.mkdir(parents=True, exist_ok=True)
        used = [int(f.name[:6]) for p in self.folders.values() for f in p.glob("[0-9]*_prob*.png")]
        self.next_id = max(used, default=-1) + 1

    def save(self, frames_N_H_W_C: Iterable[ByteArray], probabilities_N: FloatArray) -> None:
        """Write one PNG for each frame; frames without a finite probability are skipped."""
        for frame, probability in zip(frames_N_H_W_C, probabilities_N, strict=True):
            if not np.isfinite(probability):
                continue
            folder = self.folders[bool(probability > self.threshold)]
            Image.fromarray(frame).save(folder / f"{self.next_id:06d}_prob{probability:.4f}.png", compress_level=1)
            self.next_id += 1


def load_image_model(
    checkpoint_path: str | Path,
    *,
    kind: Kind,
    device: str | torch.device | None = None,
    bf16: bool | Literal["auto"] = "auto",
    debug_save_dir: str | Path | None = None,
    **requested: Any,
) -> ImageRewardModel:
    """Load a checkpoint strictly.

    Args:
        checkpoint_path: a folder that `save_checkpoint` or `guerdon train` wrote, or its `model.safetensors`.
        kind: what it must be.
        device: see `ImageRewardModel`.
        bf16: see `ImageRewardModel`.
        debug_save_dir: see `ImageRewardModel`.
        **requested: `arch`, `hidden_dim`, `image_size`, `dropout`: refuse a checkpoint with another value.

    Raises:
        CheckpointError: missing, corrupt, of another kind, or with another value than requested.
    """
    scorer, config = load_checkpoint(checkpoint_path, type=kind, **requested)
    return ImageRewardModel(scorer, config, device=device, bf16=bf16, debug_save_dir=debug_save_dir)


def _unique_rows(
    rows_T: NDArray[Any], places: dict[tuple[Any, bytes], int], unique: list[NDArray[Any]]
) -> NDArray[np.int64]:
    """Index of each row's frame or state in `unique`, which grows by the new ones."""
    index = np.empty(len(rows_T), np.int64)
    for t, frame in enumerate(rows_T):
        key = (frame.shape, hashlib.blake2b(np.ascontiguousarray(frame).data, digest_size=16).digest())
        if key not in places:
            places[key] = len(unique)
            unique.append(frame)
        index[t] = places[key]
    return index


def _score(rows_T: NDArray[np.int64] | None, values_U: FloatArray, missing: Failure) -> Score:
    if rows_T is None:
        return Score(failure=missing)
    return Score.from_values(values_U[rows_T], total=float(values_U[rows_T[-1]]))
