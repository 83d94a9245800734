"""Robometer: progress and success of a trajectory by heads on a Qwen-VL (arXiv:2603.02115), from its published layouts.

The model reads a task, frames and a token after each of them, where two heads say how far the task is, as an
expectation over bins, and how likely it is that it succeeded; it writes nothing. The value of a row is that of the last
of `max_frames` frames up to the row, evenly spread, repeated where there are fewer.

A folder is the authors' (`config.json` of the backbone, `config.yaml` of the training, a tokenizer) or LeRobot's
(`config.json` of type `robometer`, one `model.safetensors`); the tokenizer and the image processor that LeRobot leaves
out are those of the model that it names, or lie in the folder.

    heads = read_robometer_config("checkpoints/Robometer-4B")
    backend = heads.open(VLMSettings(path="checkpoints/Robometer-4B"))
    backend.read_heads([question])[0].progress          # 0 to 1
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import yaml
from pydantic import BaseModel, PositiveInt
from torch import Tensor, nn

from guerdon.compute.devices import resolve_device
from guerdon.errors import CheckpointError, boundary
from guerdon.models.vlm.vlm_prompts import PROMPTS, Question
from guerdon.models.vlm.vlm_transformers import TransformersBackend, check_heads, read_inputs
from guerdon.network.hub import local_folder
from guerdon.policies.batches.precision import uses_bf16
from guerdon.policies.pretrained.reading import read_tensors
from guerdon.policies.vla.checkpoint_config import checked, json_object
from guerdon.policies.vla.published import fill_exactly, without_weights
from guerdon.processes.call_queue import batched
from guerdon.settings.vlm import VLMSettings
from guerdon.types import Failure

TOKENS = ("<|split_token|>", "<|reward_token|>", "<|pref_token|>", "<|sim_token|>", "<|prog_token|>")
"""Tokens that were added to the tokenizer of the backbone, in this order."""
_OBJECT = re.compile(r"!!python/\S+")  # marks of objects in the authors' configurations
_UNUSED_HEADS = ("preference_head", "similarity_head")  # of the training
_EMBEDDING, _WORDS = "model.language_model.embed_tokens.weight", "lm_head.weight"


class Heads(NamedTuple):
    """What the heads say at the last frame; `tokens` are those of the input."""

    progress: float
    success: float
    tokens: int


class RobometerConfig(BaseModel):
    """A checkpoint without its weights, as LeRobot's `config.json` says it; the defaults are LeRobot's."""

    folder: Path
    base_model_id: str = "Qwen/Qwen3-VL-4B-Instruct"
    max_frames: PositiveInt = 8
    use_multi_image: bool = True
    use_per_frame_progress_token: bool = True
    progress_loss_type: Literal["l1", "l2", "discrete"] = "discrete"
    progress_discrete_bins: PositiveInt = 10
    reward_output: Literal["progress", "success"] = "progress"
    success_threshold: float = 0.5
    image_key: str | None = None
    vlm_config: dict[str, Any]

    @property
    def question(self) -> Literal["completed", "progress"]:
        """Which head counts where the settings do not say."""
        return "progress" if self.reward_output == "progress" else "completed"

    def open(self, settings: VLMSettings, device: str | torch.device | None = None) -> RobometerBackend:
        """Read the weights.

        Args:
            settings: batches and precision.
            device: None for the GPU when there is one.

        Raises:
            CheckpointError: weights, the tokenizer or the image processor are missing or do not fit.
        """
        from transformers import AutoConfig

        given = dict(self.vlm_config)
        with boundary(CheckpointError, f"{self.folder} has no configuration of a vision-language model"):
            config = AutoConfig.for_model(given.pop("model_type"), **given)
        check_heads(config, self.folder)
        where = resolve_device(device)
        bf16 = uses_bf16(settings.bf16, where)
        own = any((self.folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json"))
        inputs = read_inputs(str(self.folder) if own else self.base_model_id, config.model_type)
        inputs.tokenizer.add_tokens([t for t in TOKENS if t not in inputs.tokenizer.get_vocab()], special_tokens=True)
        rows, size = config.get_text_config().vocab_size, len(inputs.tokenizer)
        if size > rows:
            raise CheckpointError(f"{self.folder} has embeddings of {rows} tokens, its tokenizer has {size}")
        unit = (inputs.image_processor.patch_size * inputs.image_processor.merge_size) ** 2
        inputs.image_processor.size = {"shortest_edge": 4 * unit, "longest_edge": 16384 * unit}  # of qwen-vl-utils
        with without_weights(self.folder):
            network = _Network(config, self)
        dtype = torch.bfloat16 if bf16 else torch.float32
        fill_exactly(network, _renamed(read_tensors(self.folder)), _unused(network), self.folder, dtype)
        return RobometerBackend(network.eval().requires_grad_(False), inputs, self, settings, where, bf16=bf16)


class _Network(nn.Module):
    """The backbone and the two heads that are read; names of its weights are the authors'."""

    def __init__(self, config: Any, training: RobometerConfig) -> None:
        super().__init__()
        from transformers import AutoModel

        self.model = AutoModel.from_config(config, trust_remote_code=False)
        self.wide = config.get_text_config().hidden_size
        self.discrete = training.progress_loss_type == "discrete"
        self.progress_head = _head(self.wide, training.progress_discrete_bins if self.discrete else 1)
        self.success_head = _head(self.wide, 1)

    def forward(self, at: int, **tensors: Tensor) -> Tensor:
        """(B, 2) progress and probability of success at the last token `at` of each row."""
        hidden_B_L_D = self.model(**tensors, use_cache=False).last_hidden_state
        places_B_L = (tensors["input_ids"] == at) * torch.arange(hidden_B_L_D.shape[1], device=hidden_B_L_D.device)
        read_B_D = hidden_B_L_D[torch.arange(len(places_B_L), device=places_B_L.device), places_B_L.argmax(1)]
        progress, success = self.progress_head(read_B_D).double(), self.success_head(read_B_D).double()
        if self.discrete:
            centres = torch.linspace(0, 1, progress.shape[1], device=progress.device, dtype=progress.dtype)
            progress = (progress.softmax(1) * centres).sum(1, keepdim=True)
        else:
            progress = progress.sigmoid()
        return torch.cat([progress.clamp(0, 1), success.sigmoid()], dim=1)


def _head(wide: int, outputs: int) -> nn.Sequential:
    half = wide // 2
    return nn.Sequential(
        nn.Linear(wide, half), nn.LayerNorm(half), nn.GELU(), nn.Dropout(0.0), nn.Linear(half, outputs)
    )


class RobometerBackend(TransformersBackend):
    """The heads of a model in memory.

    Args:
        network: with its weights.
        inputs: what makes its tensors, with the added tokens.
        config: of the checkpoint.
        settings: batches.
        device: where it computes.
        bf16: compute in bfloat16.
    """

    def __init__(
        self, network: nn.Module, inputs: Any, config: RobometerConfig, settings: VLMSettings, device: torch.device, *,
        bf16: bool,
    ) -> None:  # fmt: skip
        super().__init__(network, inputs, batch_size=settings.batch_size, bf16=bf16, device=device)
        self.threshold, self.camera = config.success_threshold, config.image_key
        self._at = int(inputs.tokenizer.convert_tokens_to_ids(PROMPTS["robometer"].mark))

    @batched
    def read_heads(self, questions: Sequence[Question]) -> list[Heads | Failure]:
        """What the heads say of each question, in order."""
        out: list[Heads | Failure] = []
        for tensors in self._batches(questions):
            with torch.inference_mode(), self._precision():
                found_B_2 = self.model(self._at, **tensors).cpu()
            for (progress, success), read in zip(found_B_2, tensors["attention_mask"].sum(1).tolist(), strict=True):
                known = bool(torch.isfinite(progress) & torch.isfinite(success))
                missing = Failure("non_finite", "the model's outputs are not finite")
                out.append(Heads(float(progress), float(success), int(read)) if known else missing)
        return out


def read_robometer_config(path: str | Path) -> RobometerConfig:
    """What a folder says of its checkpoint.

    Raises:
        CheckpointError: there is none, it cannot be read, or it was trained in a way that is not supported.
    """
    folder = local_folder(path)
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{folder} holds adapters of a fine-tuning: merge them into the model with the authors' code, and name the "
            "folder that it saves"
        )
    file = folder / "config.json"
    given = json_object(file)
    if given.get("type") != "robometer":
        file, given = _authors(folder, given)
    if given.get("max_frames", 0) is None:
        raise CheckpointError(f"{file}: max_frames is null, no limit; write the number of frames of a question there")
    given = {name: value for name, value in given.items() if value is not None}
    config = checked(RobometerConfig, {**given, "folder": folder}, file)
    for key in ("use_multi_image", "use_per_frame_progress_token"):
        if not getattr(config, key):
            raise CheckpointError(
                f"{file}: {key} false is not supported; take a checkpoint that was trained with a token per frame"
            )
    return config


def _authors(folder: Path, config: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The file that says how it was trained, and the authors' two files in LeRobot's words."""
    places = (folder / "config.yaml", folder.parent / "config.yaml")  # the training writes it above its checkpoints
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise CheckpointError(
            f"{folder} has no config.yaml, which says how Robometer was trained; copy it from the hub"
        )
    with boundary(CheckpointError, f"{file} cannot be read"):
        said = yaml.safe_load(_OBJECT.sub("", file.read_text(encoding="utf-8")))
        model, data, loss = (dict(said.get(name) or {}) for name in ("model", "data", "loss"))
    keys = ("base_model_id", "use_multi_image", "use_per_frame_progress_token")
    how = {"use_multi_image": False, "use_per_frame_progress_token": False, "progress_loss_type": "l2"}  # its defaults
    for part, names in (
        (loss, ("progress_loss_type", "progress_discrete_bins")),
        (model, keys),
        (data, ("max_frames",)),
    ):
        how |= {name: part[name] for name in names if part.get(name) is not None}
    return file, {**how, "vlm_config": config}


def _renamed(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the authors' names: LeRobot keeps the backbone inside a model that writes."""
    found = {}
    for name, tensor in stored.items():
        inside = name.removeprefix("model.")
        found[inside if name.startswith("model.model.") or inside == _WORDS else name] = tensor
    words = found.pop(_WORDS, None)
    if words is not None:
        found.setdefault(_EMBEDDING, words)  # tied, so that one of them is stored
    return found


def _unused(network: _Network) -> dict[str, tuple[int, ...]]:
    """Names and shapes of weights that only the training used."""
    shapes = {name: tuple(weight.shape) for name, weight in network.success_head.state_dict().items()}
    heads = {f"{head}.{name}": shape for head in _UNUSED_HEADS for name, shape in shapes.items()}
    return heads | {"frame_pool_attn.weight": (1, network.wide)}
