"""Backend of vision-language models through transformers: Qwen2-VL, Qwen2.5-VL and Qwen3-VL, without torchvision.

`VisionInputs` makes the tensors with the families' image and video processors of the installed transformers. Prompts
are padded on the left, so that every answer begins at the same position. Answers do not depend on how questions are
batched (float32). An adapter stays separate from the weights, never merged.

    backend = TransformersBackend(*read_vlm("runs/tiny"), batch_size=8)
    backend.word_log_probs([question], (YES, NO))[0].log_probs
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor, nn

from guerdon.compute.devices import resolve_device, seeded
from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.files.atomic import COMPLETE, verify_folder
from guerdon.models.vlm.video_processor import video_processor
from guerdon.models.vlm.vlm_prompts import (
    PROMPTS,
    FilledPrompt,
    GenerationOptions,
    Picture,
    Question,
    Video,
    VLMReply,
    WordLogProbs,
    matches_word,
)
from guerdon.network.hub import local_folder, quietly, reading
from guerdon.policies.batches.precision import uses_bf16
from guerdon.policies.batches.tokens import check_unchanged, pad_left
from guerdon.policies.pretrained.adapter_files import read_adapter
from guerdon.policies.pretrained.chat_template import check_templates, render, templates_of
from guerdon.policies.pretrained.reading import map_pretrained, read_pretrained, read_tensors, read_tokenizer
from guerdon.policies.vla.checkpoint_config import Count, checked, json_object
from guerdon.policies.vla.published import fill_exactly, without_weights
from guerdon.processes.call_queue import batched, calls_of
from guerdon.settings.vlm import VLMSettings
from guerdon.tasks.replies import opened_reasoning
from guerdon.types import Failure, IntArray

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
_WHAT = "the vision-language model"
START, END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"


class VisionInputs:
    """Makes tensors of questions.

    Args:
        tokenizer: with a chat template.
        image_processor: of the family.
        video_processor: of the family, see `video_processor`.
        family: `model_type` of the model's configuration.

    Raises:
        CheckpointError: another family, or a tokenizer without the family's marks or a chat template.
    """

    def __init__(self, tokenizer: Any, image_processor: Any, video_processor: Any, family: str) -> None:
        if family not in FAMILIES:
            raise CheckpointError(
                f"a {family} model does not run in this process, {', '.join(FAMILIES)} do: serve it with vLLM or "
                "SGLang and use backend openai"
            )
        ids = tokenizer.convert_tokens_to_ids([IMAGE, VIDEO, START, END])
        if None in ids or len(set(ids)) < 4 or tokenizer.unk_token_id in ids:
            raise CheckpointError(f"the tokenizer lacks {IMAGE}, {VIDEO}, {START} or {END}: it is not of {family}")
        if not tokenizer.chat_template:
            raise CheckpointError("the tokenizer has no chat template, which questions need")
        self.tokenizer, self.family = tokenizer, family
        self.image_processor, self.video_processor = image_processor, video_processor
        self._image_id = int(ids[0])
        self._video_id = int(ids[1])
        self._merge = int(image_processor.merge_size)
        self._stride = int(video_processor.temporal_patch_size)

    def batch(self, questions: Sequence[Question], answers: Sequence[IntArray] | None = None) -> dict[str, Tensor]:
        """Tensors of several questions, and of their answers where they are known (for training).

        Args:
            questions: at least one.
            answers: ids that follow each question.

        Returns:
            What the model's `forward` takes by name; with answers also `labels`, -100 outside of them.
        """
        rows = [self._encode(q) for q in questions]
        tails = [np.zeros(0, np.int64)] * len(rows) if answers is None else list(answers)
        pairs = list(zip([row["ids"] for row in rows], tails, strict=True))
        ids_B_L, mask_B_L = pad_left([np.concatenate(pair) for pair in pairs], self.tokenizer.pad_token_id or 0)
        kinds_B_L = np.where(ids_B_L == self._image_id, 1, np.where(ids_B_L == self._video_id, 2, 0)) * mask_B_L
        out = {
            "input_ids": torch.from_numpy(ids_B_L),
            "attention_mask": torch.from_numpy(mask_B_L.astype(np.int64)),
            "mm_token_type_ids": torch.from_numpy(kinds_B_L.astype(np.int32)),
        }
        if answers is not None:
            labels_B_L, _ = pad_left([np.concatenate([np.full_like(ids, -100), tail]) for ids, tail in pairs], -100)
            out["labels"] = torch.from_numpy(labels_B_L)
        out |= _joined_patches(rows)
        if self.family == "qwen2_5_vl" and "video_grid_thw" in out:
            seconds = [self._stride / part.fps for q in questions for part in q.media if isinstance(part, Video)]
            out["second_per_grid_ts"] = torch.tensor(seconds, dtype=torch.float32)
        return out

    def answer_ids(self, text: str) -> IntArray:
        """Ids of an answer and of its end."""
        end = self.tokenizer.eos_token_id
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return np.asarray([*ids, end], np.int64)

    def render(self, question: Question) -> str:
        """The question in the words of the chat template, one placeholder for each picture and video.

        Raises:
            ConfigError: placeholders of the template do not match what is shown.
        """
        template = question.prompt.template
        shown = [{"type": "image" if isinstance(part, Picture) else "video"} for part in question.media]
        if not template.chat:
            marks = (START + (IMAGE if part["type"] == "image" else VIDEO) + END for part in shown)
            return "".join(marks) + question.prompt.text
        messages = _turns(question.prompt, shown)
        how: dict[str, Any] = {"add_vision_id": True} if template.mark else {}
        opened = not (template.open or template.mark)
        text = render(self.tokenizer, messages, add_generation_prompt=opened, **how)
        check_unchanged(messages, text)
        if template.open:
            text = text[: text.rindex(question.prompt.text) + len(question.prompt.text)]
        found = (text.count(IMAGE), text.count(VIDEO))
        wanted = (sum(p["type"] == "image" for p in shown), sum(p["type"] == "video" for p in shown))
        if found != wanted:
            raise ConfigError(f"the chat template shows {found} pictures and videos where {wanted} are given")
        return text

    def _encode(self, question: Question) -> dict[str, Any]:
        """Ids of one prompt with its placeholders expanded, and the patches of its pictures and videos."""
        text = self.render(question)
        images: list[tuple[NDArray[np.float32], tuple[int, int, int]]] = []
        videos: list[tuple[NDArray[np.float32], tuple[int, int, int]]] = []
        pieces, at = [], 0
        for part in question.media:
            if isinstance(part, Picture):
                patches, grid = self._picture(part)
                images.append((patches, grid))
                mark, filled = IMAGE, IMAGE * (math.prod(grid) // self._merge**2)
            else:
                patches, grid = self._video(part)
                videos.append((patches, grid))
                mark, filled = VIDEO, self._video_text(part, grid)
            place = text.index(mark, at)
            pieces += [text[at:place], filled]
            at = place + len(mark)
        pieces.append(text[at:])
        ids = self.tokenizer("".join(pieces), add_special_tokens=False)["input_ids"]
        return {"ids": np.asarray(ids, np.int64), "images": images, "videos": videos}

    def _video_text(self, part: Video, grid: tuple[int, int, int]) -> str:
        """What the placeholder of a video expands to."""
        times, high, wide = grid
        room = high * wide // self._merge**2
        if self.family != "qwen3_vl":
            return VIDEO * (times * room)
        last = len(part.frames) - 1
        frames = []
        for t in range(0, times * self._stride, self._stride):  # this family writes the time of each pair of frames
            second = (min(t, last) / part.fps + min(t + self._stride - 1, last) / part.fps) / 2
            frames.append(f"<{second:.1f} seconds>{START}{VIDEO * room}{END}")
        return "".join(frames)

    def _picture(self, part: Picture) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
        """Patches of a picture, (h * w, P), and its grid (1, h, w)."""
        processor = self.image_processor
        count = partial(processor.get_number_of_image_patches, *part.pixels.shape[:2])
        limits = _limited(processor, count, part.max_pixels, 1)
        out = processor(images=[part.pixels], input_data_format="channels_last", return_tensors="np", **limits)
        return _patches(out["pixel_values"], out["image_grid_thw"])

    def _video(self, part: Video) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
        """Patches of a video, (t * h * w, P), and its grid (t, h, w); a lone frame is repeated to fill a patch."""
        processor, frames = self.video_processor, part.frames
        if len(frames) < self._stride:
            frames = np.concatenate([frames, np.repeat(frames[-1:], self._stride - len(frames), axis=0)])
        count = partial(processor.get_num_of_video_patches, *frames.shape[:3])
        moments = -(-len(frames) // self._stride)
        per_frame = len(frames) if self.family == "qwen3_vl" else 1  # its limits are those of all frames together
        limits = _limited(processor, count, part.max_pixels, moments, per_frame)
        with quietly():
            out = processor(
                videos=[frames], do_sample_frames=False, do_convert_rgb=False, input_data_format="channels_last",
                return_tensors="pt", **limits,
            )  # fmt: skip
        return _patches(out["pixel_values_videos"].numpy(), out["video_grid_thw"])


def _joined_patches(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """The patches of all pictures and videos of encoded questions, and their grids, as `forward` takes them."""
    out: dict[str, Tensor] = {}
    for name, grid, key in (
        ("pixel_values", "image_grid_thw", "images"),
        ("pixel_values_videos", "video_grid_thw", "videos"),
    ):
        parts = [part for row in rows for part in row[key]]
        if parts:
            out[name] = torch.from_numpy(np.concatenate([patches for patches, _ in parts]))
            out[grid] = torch.tensor([shape for _, shape in parts], dtype=torch.int64)
    return out


def _turns(prompt: FilledPrompt, shown: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """The messages of a question: its words and what is shown, each with a mark where the template has one."""
    turns: list[dict[str, Any]] = []
    if prompt.system:
        turns.append({"role": "system", "content": prompt.system})
    words, mark = {"type": "text", "text": prompt.text}, prompt.template.mark
    marked = [part for one in shown for part in (one, {"type": "text", "text": mark})]
    turns.append({"role": "user", "content": [words, *marked] if mark else [*shown, words]})
    return turns


def _patches(values: NDArray[Any], grid: Any) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
    times, high, wide = grid[0].tolist()
    return values.astype(np.float32, copy=False), (times, high, wide)


def _limited(
    processor: Any, count: Callable[[dict[str, Any]], int], max_pixels: int | None, moments: int, frames: int = 1
) -> dict[str, Any]:
    """`size` of a call of a processor with which a frame has at most `max_pixels` once its sides are whole patches.

    Args:
        processor: of the family.
        count: how many patches it makes with these limits.
        max_pixels: of a frame; None: the processor's own limits. Less than the smallest patch gives that patch.
        moments: of the patches in time.
        frames: whose pixels the processor's limits count together.

    Returns:
        Keyword arguments of the call; empty if the processor's own limits are enough.
    """
    own = {name: int(processor.size[name]) for name in ("shortest_edge", "longest_edge")}
    limits = own
    for step in range(64):
        given = {"size": limits, "min_pixels": limits["shortest_edge"], "max_pixels": limits["longest_edge"]}
        if max_pixels is None or count(given) * processor.patch_size**2 <= max_pixels * moments:
            break
        most = max(int(max_pixels * frames * 0.9**step), 1)
        limits = {name: min(value, most) for name, value in own.items()}
    return {} if limits is own else {"size": limits}


class LoadedVLM(NamedTuple):
    """A model in evaluation mode and what makes its inputs."""

    model: Any
    inputs: VisionInputs


def read_vlm(
    path: str | Path, adapter: str | Path | None = None, *, dtype: torch.dtype = torch.float32, start: bool = False
) -> LoadedVLM:
    """Read a model of the Qwen-VL families, strictly, and put an adapter on it.

    Args:
        path: folder or hub id.
        adapter: peft folder; every weight of it must fit.
        dtype: of the weights.
        start: whether training starts from it, see `read_pretrained`.

    Raises:
        CheckpointError: it cannot be read, lacks weights, was altered, or is of another family.
        MissingDependencyError: an adapter without peft.
    """
    from transformers import AutoModelForImageTextToText

    for folder in (Path(path), *([] if adapter is None else [Path(adapter)])):
        if (folder / COMPLETE).is_file():
            verify_folder(folder)
    under = adapter is not None
    model = read_pretrained(AutoModelForImageTextToText, str(path), _WHAT, dtype=dtype, start=start or under)
    inputs = read_inputs(str(path), model.config.model_type)
    check_heads(model.config, path)
    if adapter is not None:
        model = read_adapter(model, Path(adapter))
    return LoadedVLM(model.eval(), inputs)


def map_vlm(path: str) -> tuple[LoadedVLM, dict[str, torch.Tensor] | None]:
    """The start that `read_vlm` reads, on torch's device `meta`, and its weights by name, to be read one at a time.

    Args:
        path: folder.

    Raises:
        CheckpointError: as `read_vlm`.
    """
    from transformers import AutoModelForImageTextToText

    if (found := map_pretrained(AutoModelForImageTextToText, path, _WHAT, start=True)) is None:
        return read_vlm(path, start=True), None
    model, weights = found
    return LoadedVLM(model, read_inputs(path, model.config.model_type)), weights


def check_heads(config: Any, path: str | Path) -> None:
    """Refuse a vision tower that transformers builds and cannot compute.

    Raises:
        CheckpointError: its heads do not divide its width.
    """
    tower = getattr(config, "vision_config", None)
    heads, wide = (getattr(tower, name, 1) for name in ("num_heads", "hidden_size"))
    if heads < 1 or getattr(tower, "embed_dim", wide) % heads:
        raise CheckpointError(
            f"{path}: vision_config.num_heads is {heads}, which does not divide its width; copy config.json from the "
            "checkpoint again"
        )


def read_inputs(path: str, family: str) -> VisionInputs:
    """The tokenizer and the processors in the folder of a model.

    Raises:
        CheckpointError: they cannot be read, or the family is another one.
    """
    from transformers import AutoImageProcessor

    tokenizer = read_tokenizer(path)
    with reading(_WHAT, path):
        if not tokenizer.chat_template:  # older folders keep it for their processor only
            tokenizer.chat_template = _processor_template(path)
            check_templates(templates_of(tokenizer), path)
        processor = AutoImageProcessor.from_pretrained(path, trust_remote_code=False)
        videos = None
        if family in FAMILIES:
            video_processor_class = video_processor(family)
            videos = video_processor_class.from_pretrained(path, trust_remote_code=False)
    return VisionInputs(tokenizer, processor, videos, family)


class TransformersBackend:
    """Answers of a model in memory.

    Args:
        model: of the Qwen-VL families, perhaps with an adapter.
        inputs: what makes its tensors.
        batch_size: questions per forward pass.
        bf16: compute in bfloat16; `auto`: where the hardware has it; False: answers do not depend on batches.
        device: None for the GPU when there is one.
        checkpoint_generation: apply the model's generation config, except for what `GenerationOptions` sets.
    """

    def __init__(
        self,
        model: Any,
        inputs: VisionInputs,
        *,
        batch_size: int = 8,
        bf16: bool | Literal["auto"] = "auto",
        device: str | torch.device | None = None,
        checkpoint_generation: bool = False,
    ) -> None:
        self.device = resolve_device(device)
        self.model = model.to(self.device)
        self.inputs = inputs
        self.batch_size = batch_size
        self.bf16 = uses_bf16(bf16, self.device)
        self.checkpoint_generation = checkpoint_generation
        self._words: dict[tuple[str, ...], list[int]] = {}
        self._texts: list[str] | None = None

    def generate(self, questions: Sequence[Question], options: GenerationOptions) -> list[VLMReply | Failure]:
        """An answer to each question, in order; the same questions get the same answers."""
        if options.temperature > 0:  # what is drawn depends on the batch
            with calls_of(self).alone():
                return self._generate(questions, options)
        return self._generate_together(questions, options)

    @batched
    def _generate_together(self, questions: Sequence[Question], options: GenerationOptions) -> list[VLMReply | Failure]:
        return self._generate(questions, options)

    def _generate(self, questions: Sequence[Question], options: GenerationOptions) -> list[VLMReply | Failure]:
        from transformers import GenerationConfig

        ends = set(self._ends)
        warm = options.temperature > 0
        top_k = (self.model.generation_config.top_k if self.checkpoint_generation else None) or 0
        sampling = {"temperature": options.temperature, "top_p": options.top_p, "top_k": top_k} if warm else {}
        how = GenerationConfig(
            do_sample=warm, max_new_tokens=options.max_tokens, pad_token_id=self._pad, eos_token_id=self._ends,
            num_return_sequences=1, return_dict_in_generate=False, **sampling,
        )  # fmt: skip
        out: list[VLMReply | Failure] = []
        for tensors in self._batches(questions):
            start = tensors["input_ids"].shape[1]
            with (
                seeded(options.seed, self.device), torch.inference_mode(), self._precision(), quietly(),
                nullcontext() if self.checkpoint_generation else _own_settings(self.model),
            ):  # fmt: skip
                written = self.model.generate(**tensors, generation_config=how, tokenizer=self.inputs.tokenizer)
            reads = tensors["attention_mask"].sum(1).tolist()
            for given, row, read in zip(tensors["input_ids"], written[:, start:].tolist(), reads, strict=True):
                begun = opened_reasoning(self.inputs.tokenizer.decode(given[-40:]))
                stop = next((n for n, i in enumerate(row) if i in ends), None)
                text = begun + self.inputs.tokenizer.decode(row[:stop])  # marks of reasoning may be special tokens
                out.append(VLMReply(text, int(read), whole=stop is not None))
        return out

    @batched
    def word_log_probs(
        self, questions: Sequence[Question], groups: Sequence[Sequence[str]]
    ) -> list[WordLogProbs | Failure]:
        """For each question, the log-probability that the answer begins with a word of each group."""
        ids = [torch.tensor(self.word_ids(words), device=self.device) for words in groups]
        out: list[WordLogProbs | Failure] = []
        for tensors in self._batches(questions):
            with torch.inference_mode(), self._precision():
                logits_B_V = self.model(**tensors, use_cache=False, logits_to_keep=1).logits[:, -1]
            log_probs_B_V = logits_B_V.double().log_softmax(-1)
            found = torch.stack([log_probs_B_V[:, i].logsumexp(-1) for i in ids], dim=1).cpu().numpy()
            for row, read in zip(found, tensors["attention_mask"].sum(1).tolist(), strict=True):
                if np.isnan(row).any() or np.isposinf(row).any():
                    out.append(Failure("non_finite", "the model's logits are not finite"))
                else:
                    out.append(WordLogProbs(row, int(read)))
        return out

    def word_ids(self, words: Sequence[str]) -> list[int]:
        """Tokens that say one of these words; where there is none, the first token of each."""
        key = tuple(words)
        if key not in self._words:
            tokenizer = self.inputs.tokenizer
            if self._texts is None:
                self._texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
            found = [i for i, text in enumerate(self._texts) if matches_word(text, words)]
            self._words[key] = found or sorted({int(self.inputs.answer_ids(word.title())[0]) for word in words})
        return self._words[key]

    @property
    def _pad(self) -> int:
        pad = self.inputs.tokenizer.pad_token_id
        return self._ends[0] if pad is None else int(pad)

    @property
    def _ends(self) -> list[int]:
        """Tokens that end an answer."""
        ends = getattr(self.model.generation_config, "eos_token_id", None)
        known = ends if isinstance(ends, list) else [ends]
        return sorted({int(i) for i in [*known, self.inputs.tokenizer.eos_token_id] if i is not None})

    def _batches(self, questions: Sequence[Question]) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(questions), self.batch_size):
            batch = self.inputs.batch(questions[start : start + self.batch_size])
            yield {name: tensor.to(self.device) for name, tensor in batch.items()}

    def _precision(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


@contextmanager
def _own_settings(model: Any) -> Iterator[None]:
    """`generate` applies nothing of the checkpoint's generation config, with which it fills what is not given."""
    from transformers import GenerationConfig

    owners = [model, *([model.get_base_model()] if hasattr(model, "get_base_model") else [])]
    kept = [owner.generation_config for owner in owners]
    try:
        for owner in owners:
            owner.generation_config = GenerationConfig()
        yield
    finally:
        for owner, config in zip(owners, kept, strict=True):
            owner.generation_config = config


def _processor_template(path: str) -> str | None:
    from transformers.utils import cached_file

    found = cached_file(path, "chat_template.json", _raise_exceptions_for_missing_entries=False)
    if found is None:
        return None
    template: str = json.loads(Path(found).read_text(encoding="utf-8"))["chat_template"]
    return template


# ---------------------------------------------------------------------------------------------------------------------
# Robometer: progress and success of a trajectory by heads on a Qwen-VL (arXiv:2603.02115), from its published
# layouts.
#
# The model reads a task, frames and a token after each of them, where two heads say how far the task is, as an
# expectation over bins, and how likely it is that it succeeded; it writes nothing. The value of a row is that of the
# last of `max_frames` frames up to the row, evenly spread, repeated where there are fewer.
#
# A folder is the authors' (`config.json` of the backbone, `config.yaml` of the training, a tokenizer) or LeRobot's
# (`config.json` of type `robometer`, one `model.safetensors`); the tokenizer and the image processor that LeRobot
# leaves out are those of the model that it names, or lie in the folder.
#
#     heads = read_robometer_config("checkpoints/Robometer-4B")
#     backend = heads.open(VLMSettings(path="checkpoints/Robometer-4B"))
#     backend.read_heads([question])[0].progress          # 0 to 1
# ---------------------------------------------------------------------------------------------------------------------


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
    max_frames: Count = 8
    use_multi_image: bool = True
    use_per_frame_progress_token: bool = True
    progress_loss_type: Literal["l1", "l2", "discrete"] = "discrete"
    progress_discrete_bins: Count = 10
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
        rows = config.get_text_config().vocab_size
        size = len(inputs.tokenizer)
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
        progress = self.progress_head(read_B_D).double()
        success = self.success_head(read_B_D).double()
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
