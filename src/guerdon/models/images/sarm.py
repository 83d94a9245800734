"""SARM: stage-aware progress of long tasks (arXiv:2509.25358), read from the checkpoints that LeRobot writes.

CLIP encodes the pictures of one camera and the task. One transformer tells the stage of each moment, a second how far
that stage is; with the stages' shares of the time both become the share of the task that is done. The value of a row
comes from a window of rows before and after it, `frame_gap` apart, in which the first and the last row of the episode
stand for what lies outside: a value changes while its episode goes on.

The folder has LeRobot's `config.json`, `model.safetensors` and the files of its preprocessor, whose statistics
normalise the states.

    model = load_sarm("checkpoints/sarm/pretrained_model", clip_path="models/clip-vit-base-patch32")
    model.score([episode])[0].steps            # (T,) from 0 to 1
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, PositiveInt
from torch import Tensor, nn

from guerdon.compute.devices import resolve_device
from guerdon.errors import CheckpointError, ConfigError
from guerdon.network.hub import local_folder, reading
from guerdon.policies.batches.control_tokens import control_tokens
from guerdon.policies.pretrained.reading import read_pretrained, read_tensors, read_tokenizer
from guerdon.policies.vla.checkpoint_config import STATE, Count, checked, json_object
from guerdon.policies.vla.policy import Normalization
from guerdon.policies.vla.published import fill_exactly, without_weights
from guerdon.policies.vla.statistics import state_statistics
from guerdon.processes.call_queue import batched
from guerdon.reading.chats import unreadable
from guerdon.types import ByteArray, Episode, Failure, IntArray, RewardInfo, Score

CLIP = "openai/clip-vit-base-patch32"
Head = Literal["sparse", "dense"]
_STEPS = (  # of LeRobot's preprocessor for SARM
    "to_batch_processor", "rename_observations_processor", "normalizer_processor", "SARMEncodingProcessorStep",
    "device_processor",
)  # fmt: skip
_BATCH = 64  # pictures or windows per forward pass


class SarmConfig(BaseModel):
    """What is read of `config.json`; the defaults are LeRobot's."""

    type: Literal["sarm"]
    annotation_mode: Literal["single_stage", "dense_only", "dual"] = "single_stage"
    n_obs_steps: int = Field(8, gt=0, le=1000)
    frame_gap: int = Field(30, gt=0, le=1_000_000)
    image_dim: PositiveInt = 512
    text_dim: PositiveInt = 512
    hidden_dim: PositiveInt = 768
    num_heads: PositiveInt = 12
    num_layers: PositiveInt = 8
    max_state_dim: Count = 32
    num_sparse_stages: Count = 1
    num_dense_stages: Count | None = None
    sparse_temporal_proportions: list[float] | None = None
    dense_temporal_proportions: list[float] | None = None
    image_key: str = "observation.images.top"
    state_key: str = STATE
    normalization_mapping: dict[str, Normalization] = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD"}

    def stages(self, head: Head) -> int:
        """Stages that a head of the stored weights tells apart."""
        sparse = self.num_sparse_stages if self.annotation_mode == "dual" else 1
        return sparse if head == "sparse" else self.num_dense_stages or sparse

    def ends(self, head: Head) -> NDArray[np.float64]:
        """(stages + 1,) share of the task that is done when each stage begins, and 1."""
        n = self.stages(head)
        shares = self._shares(head)
        if shares is None or n == 1:
            return np.linspace(0.0, 1.0, n + 1)
        return np.concatenate([[0.0], np.cumsum(shares)[:-1] / np.sum(shares), [1.0]])

    def refuse_others(self, file: Path, head: Head) -> None:
        """Refuse by name what is not supported, or does not fit together.

        Raises:
            CheckpointError: as it says.
            ConfigError: the checkpoint does not have this head.
        """
        wrong = self._wrong_sizes() or self._wrong_shares(head)
        if wrong:
            raise CheckpointError(f"{file}: {wrong}; take a checkpoint that LeRobot trained")
        if head == "dense" and (self.annotation_mode == "single_stage" or self.num_dense_stages is None):
            raise ConfigError(
                f"{file} has no dense stages (annotation_mode {self.annotation_mode}): use head sparse", key="head"
            )

    def _wrong_sizes(self) -> str | None:
        """What the network or the episodes cannot have, in words."""
        if self.n_obs_steps % 2:
            return f"n_obs_steps is {self.n_obs_steps}, which is not even"
        if self.state_key != STATE:
            return f"state_key is {self.state_key}, and episodes have {STATE}"
        if self.hidden_dim % self.num_heads:
            return f"num_heads is {self.num_heads}, which does not divide hidden_dim, {self.hidden_dim}"
        return None

    def _wrong_shares(self, head: Head) -> str | None:
        """Why the shares of a head's stages are none of them, in words."""
        shares = self._shares(head)
        stages = self.stages(head)
        if shares is None:
            return None
        if len(shares) != stages > 1:
            return f"{head}_temporal_proportions has {len(shares)} shares for {stages} stages"
        if not (min(shares, default=0.0) >= 0 and 0 < sum(shares) < np.inf):
            return f"{head}_temporal_proportions are {shares}: a share is 0 or more, and one is above 0"
        return None

    def _shares(self, head: Head) -> list[float] | None:
        """Share of the task of each stage that a head tells apart, as stored."""
        return self.sparse_temporal_proportions if head == "sparse" else self.dense_temporal_proportions


class _StreamTransformer(nn.Module):
    """Encodes the streams of a window (picture, task, state, and perhaps the stage) and reads each moment.

    Names of its weights are LeRobot's.

    Args:
        config: sizes.
        streams: how many.
        outputs: of each head.
    """

    def __init__(self, config: SarmConfig, streams: int, outputs: dict[str, int]) -> None:
        super().__init__()
        wide = config.hidden_dim
        self.lang_proj = nn.Linear(config.text_dim, wide)
        self.visual_proj = nn.Linear(config.image_dim, wide)
        self.state_proj = nn.Linear(config.max_state_dim, wide)
        layer = nn.TransformerEncoderLayer(wide, config.num_heads, 4 * wide, dropout=0.0, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, config.num_layers, enable_nested_tensor=False)
        self.first_pos = nn.Parameter(torch.zeros(1, wide))
        self.fusion_backbone = nn.Sequential(nn.LayerNorm(streams * wide), nn.Linear(streams * wide, wide), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(wide, size) for name, size in outputs.items()})

    def forward(
        self, images_B_F_D: Tensor, task_D: Tensor, states_B_F_S: Tensor, head: Head, stage_B_F_D: Tensor | None = None
    ) -> Tensor:
        """(B, F, outputs) of a head; a token attends to those before it, stream after stream."""
        images = self.visual_proj(images_B_F_D)
        images = torch.cat([images[:, :1] + self.first_pos, images[:, 1:]], dim=1)
        parts = [images, self.lang_proj(task_D).expand_as(images), self.state_proj(states_B_F_S)]
        tokens = torch.cat(parts if stage_B_F_D is None else [*parts, stage_B_F_D], dim=1)
        later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).triu(1)
        found = self.transformer(tokens, mask=later)
        fused = self.fusion_backbone(torch.cat(found.split(images.shape[1], dim=1), dim=-1))
        read: Tensor = self.heads[head](fused)
        return read


class _Stages(nn.Module):
    """The two transformers of a checkpoint."""

    def __init__(self, config: SarmConfig) -> None:
        super().__init__()
        both: tuple[Head, Head] = ("sparse", "dense")
        self.stage_model = _StreamTransformer(config, 3, {head: config.stages(head) for head in both})
        self.subtask_model = _StreamTransformer(config, 4, dict.fromkeys(both, 1))

    def forward(self, images_B_F_D: Tensor, task_D: Tensor, states_B_F_S: Tensor, head: Head) -> Tensor:
        """(B, F) number of the stage, plus the share of it that is done."""
        stage_B_F = self.stage_model(images_B_F_D, task_D, states_B_F_S, head).argmax(-1)
        wide = self.subtask_model.first_pos.shape[-1]
        said = nn.functional.one_hot(stage_B_F, max(wide, int(stage_B_F.max()) + 1))[..., :wide]
        share: Tensor = self.subtask_model(images_B_F_D, task_D, states_B_F_S, head, said.to(images_B_F_D.dtype))
        reached: Tensor = stage_B_F + share.squeeze(-1).sigmoid()
        return reached


class SarmModel:
    """Progress of each row by SARM.

    Args:
        config: of the checkpoint.
        network: its weights.
        clip: encodes pictures and the task.
        processor, tokenizer: of CLIP.
        statistics: shift and scale of the states; None: they are not normalised.
        head: whose stages.
        device: where it computes; None: on the GPU where there is one.
    """

    def __init__(
        self, config: SarmConfig, network: nn.Module, clip: Any, processor: Any, tokenizer: Any,
        statistics: tuple[NDArray[Any], NDArray[Any]] | None, *, head: Head, device: str | torch.device | None = None,
    ) -> None:  # fmt: skip
        self.config, self.head, self.device = config, head, resolve_device(device)
        self.network = network.eval().to(self.device)
        self.clip = clip.eval().to(self.device)
        self._processor = processor
        self._tokenizer = tokenizer
        self._statistics = statistics
        self._ends = config.ends(head)

    @property
    def info(self) -> RewardInfo:
        """Progress of each row, by the rows around it."""
        half = self.config.n_obs_steps // 2 * self.config.frame_gap
        return RewardInfo(
            name="sarm", range=(0.0, 1.0), causal=False, frames_needed=half + 1, progress=True, states=True,
            camera=self.config.image_key,
        )  # fmt: skip

    @batched
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order, each as it would be alone."""
        return [self._score(episode) for episode in episodes]

    def _score(self, episode: Episode) -> Score:
        why = self._unusable(episode)
        if why is not None:
            return Score(failure=why)
        assert episode.frames is not None
        assert episode.states is not None
        shift, scale = self._statistics or (0.0, 1.0)
        states_T_S = ((episode.states - shift) / scale).astype(np.float32)
        room = max(self.config.max_state_dim - states_T_S.shape[1], 0)
        states_T_S = np.pad(states_T_S, ((0, 0), (0, room)))[:, : self.config.max_state_dim]
        rows_T_F = windows(len(episode), self.config.n_obs_steps // 2, self.config.frame_gap)
        with torch.inference_mode():
            images = self._pictures(episode.frames)
            states = torch.from_numpy(states_T_S).to(self.device)
            task = self._task(episode.task)
            found = [
                self.network(images[rows], task, states[rows], self.head)[:, rows.shape[1] // 2]
                for rows in torch.split(torch.from_numpy(rows_T_F).to(self.device), _BATCH)
            ]
        reached_T = torch.cat(found).double().cpu().numpy()
        values_T = np.interp(reached_T, np.arange(len(self._ends)), self._ends)
        return Score.from_values(values_T, total=float(values_T[-1]))

    def _unusable(self, episode: Episode) -> Failure | None:
        states = episode.states
        if episode.frames is None or not episode.frames.size:
            return Failure("no_frames", "the episode has no frames")
        if states is None or states.ndim != 2:
            return Failure("no_states", f"the episode has no states, which SARM reads in addition to frames ({STATE})")
        if self._statistics is not None and states.shape[1] != (size := len(self._statistics[0])):
            return Failure("bad_states", f"states have {states.shape[1]} numbers, the checkpoint's statistics {size}")
        if not np.isfinite(states).all():
            return Failure("bad_states", "states are not finite")
        if not episode.task.strip():
            return Failure("no_task", "the episode does not say what its task was")
        if found := control_tokens(self._tokenizer).find(episode.task):
            return Failure("control_token", f"the task has the control token {found[0]!r}")
        return unreadable(episode, task_only=True)

    def _pictures(self, frames_T_H_W_C: ByteArray) -> Tensor:
        """(T, D) what CLIP sees in each."""
        out = []
        for start in range(0, len(frames_T_H_W_C), _BATCH):
            pixels = self._processor(
                images=list(frames_T_H_W_C[start : start + _BATCH]), input_data_format="channels_last",
                return_tensors="pt",
            )["pixel_values"]  # fmt: skip
            out.append(self.clip.get_image_features(pixel_values=pixels.to(self.device)).pooler_output)
        return torch.cat(out)

    def _task(self, words: str) -> Tensor:
        """(D,) what CLIP reads in a task; a long one is cut off, as in training."""
        longest = self.clip.config.text_config.max_position_embeddings
        ids = self._tokenizer([words], return_tensors="pt", truncation=True, max_length=longest)["input_ids"]
        found: Tensor = self.clip.get_text_features(input_ids=ids.to(self.device)).pooler_output[0]
        return found


def windows(rows: int, half: int, gap: int) -> IntArray:
    """(T, 2 * half + 1) rows that the value of each row comes from, the row itself in the middle.

    >>> windows(4, 1, 2).tolist()
    [[0, 0, 2], [0, 1, 3], [0, 2, 3], [1, 3, 3]]
    """
    found = np.arange(rows)[:, None] + gap * np.arange(-half, half + 1)
    return found.clip(0, rows - 1)


def load_sarm(
    checkpoint_path: str, *, head: Head = "sparse", clip_path: str | None = None,
    device: str | torch.device | None = None,
) -> SarmModel:  # fmt: skip
    """Read a checkpoint of LeRobot, every weight of it.

    Args:
        checkpoint_path: the folder (`pretrained_model`).
        head: `sparse`, or `dense` where it was trained with dense stages.
        clip_path: folder or hub id of the CLIP model of the training; None: `clip` in the folder, else `CLIP`.
        device: see `SarmModel`.

    Raises:
        ConfigError: it does not have this head.
        CheckpointError: it cannot be read, lacks something, or was trained with another CLIP model.
    """
    from transformers import AutoImageProcessor, CLIPModel

    folder = local_folder(checkpoint_path)
    file = folder / "config.json"
    config = checked(SarmConfig, json_object(file), file)
    config.refuse_others(file, head)
    with without_weights(folder):
        network = _Stages(config)
    fill_exactly(network, read_tensors(folder), {}, folder)
    statistics = state_statistics(folder, config.normalization_mapping, STATE, _STEPS)
    if clip_path is None:
        clip_path = str(folder / "clip") if (folder / "clip").is_dir() else CLIP
    clip = read_pretrained(CLIPModel, clip_path, "the CLIP model of SARM (clip_path)")
    sizes = (config.image_dim, config.text_dim)
    if sizes != (clip.config.projection_dim, clip.config.projection_dim):
        raise CheckpointError(
            f"{file}: features of pictures and text have {sizes} numbers, those of {clip_path!r} "
            f"{clip.config.projection_dim}: name the CLIP model of the training by clip_path"
        )
    with reading("the image processor of", clip_path):
        processor = AutoImageProcessor.from_pretrained(clip_path, trust_remote_code=False)
    tokenizer = read_tokenizer(clip_path, template=False)
    return SarmModel(config, network, clip, processor, tokenizer, statistics, head=head, device=device)
