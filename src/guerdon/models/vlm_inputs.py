"""Questions as the tensors that Qwen2-VL, Qwen2.5-VL and Qwen3-VL read, without torchvision.

The families' image processor makes patches of every frame; two frames of a video share a patch in time, exactly as the
families' video processor (which needs torchvision) lays them out. Placeholders are expanded here. Prompts are padded on
the left, so that the answer of every question begins at the same place. This module does not know what is asked.

    inputs = VisionInputs(tokenizer, image_processor, "qwen2_5_vl")
    tensors = inputs.batch(questions)        # input_ids, attention_mask, pixel_values, image_grid_thw, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guerdon.errors import CheckpointError, ConfigError
from guerdon.models.vlm_questions import Picture, Question, Video
from guerdon.types import ByteArray, IntArray

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
START, END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"


class VisionInputs:
    """Makes tensors of questions.

    Args:
        tokenizer: with a chat template.
        image_processor: of the family; its patch sizes hold for videos too.
        family: `model_type` of the model's configuration.

    Raises:
        CheckpointError: another family, or a tokenizer without the family's marks or a chat template.
    """

    def __init__(self, tokenizer: Any, image_processor: Any, family: str) -> None:
        if family not in FAMILIES:
            raise CheckpointError(
                f"a {family} model does not run in this process, {', '.join(FAMILIES)} do: serve it with vLLM or "
                "SGLang and use backend openai"
            )
        ids = tokenizer.convert_tokens_to_ids([IMAGE, VIDEO, START, END])
        if None in ids or len(set(ids)) < 4 or tokenizer.unk_token_id in ids:
            raise CheckpointError(f"the tokenizer lacks {IMAGE}, {VIDEO}, {START} or {END}: it is not of {family}")
        if not tokenizer.chat_template:
            raise CheckpointError("the tokenizer has no chat template, so it is unclear how to ask")
        self.tokenizer, self.family = tokenizer, family
        self.image_processor = image_processor
        self._image_id, self._video_id = int(ids[0]), int(ids[1])
        self._merge = int(image_processor.merge_size)
        self._stride = int(image_processor.temporal_patch_size)

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
        ids = [np.concatenate([row["ids"], tail]) for row, tail in zip(rows, tails, strict=True)]
        width = max(map(len, ids))
        pad = self.tokenizer.pad_token_id
        ids_B_L = np.full((len(ids), width), 0 if pad is None else pad, np.int64)
        mask_B_L = np.zeros((len(ids), width), np.int64)
        labels_B_L = np.full((len(ids), width), -100, np.int64)
        for b, (row, tail) in enumerate(zip(ids, tails, strict=True)):
            ids_B_L[b, width - len(row) :] = row
            mask_B_L[b, width - len(row) :] = 1
            labels_B_L[b, width - len(tail) :] = tail
        kinds_B_L = np.where(ids_B_L == self._image_id, 1, np.where(ids_B_L == self._video_id, 2, 0)) * mask_B_L
        out = {
            "input_ids": torch.from_numpy(ids_B_L),
            "attention_mask": torch.from_numpy(mask_B_L),
            "mm_token_type_ids": torch.from_numpy(kinds_B_L.astype(np.int32)),
        }
        if answers is not None:
            out["labels"] = torch.from_numpy(labels_B_L)
        for name, grid, key in (
            ("pixel_values", "image_grid_thw", "images"),
            ("pixel_values_videos", "video_grid_thw", "videos"),
        ):
            parts = [part for row in rows for part in row[key]]
            if parts:
                out[name] = torch.from_numpy(np.concatenate([patches for patches, _ in parts]))
                out[grid] = torch.tensor([shape for _, shape in parts], dtype=torch.int64)
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
        shown = [{"type": "image" if isinstance(part, Picture) else "video"} for part in question.media]
        if not question.asked.template.chat:
            marks = (START + (IMAGE if part["type"] == "image" else VIDEO) + END for part in shown)
            return "".join(marks) + question.asked.text
        messages: list[dict[str, Any]] = []
        if question.asked.system:
            messages.append({"role": "system", "content": question.asked.system})
        messages.append({"role": "user", "content": [*shown, {"type": "text", "text": question.asked.text}]})
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
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
                patches, (_, high, wide) = self._patches(part.pixels[None])
                images.append((patches, (1, high, wide)))
                mark, filled = IMAGE, IMAGE * (high * wide // self._merge**2)
            else:
                patches, grid = self._video(part.frames)
                videos.append((patches, grid))
                mark, filled = self._video_text(text, part, grid)
            place = text.index(mark, at)
            pieces += [text[at:place], filled]
            at = place + len(mark)
        pieces.append(text[at:])
        ids = self.tokenizer("".join(pieces), add_special_tokens=False)["input_ids"]
        return {"ids": np.asarray(ids, np.int64), "images": images, "videos": videos}

    def _video_text(self, text: str, part: Video, grid: tuple[int, int, int]) -> tuple[str, str]:
        """What stands for a video in the prompt, and what it becomes."""
        times, high, wide = grid
        room = high * wide // self._merge**2
        if self.family != "qwen3_vl":
            return VIDEO, VIDEO * (times * room)
        count = len(part.frames)
        frames = []
        for t in range(times):  # the family writes down when each pair of frames was seen
            shown = [min(t * self._stride + k, count - 1) for k in range(self._stride)]
            second = (shown[0] + shown[-1]) / 2 / part.fps
            frames.append(f"<{second:.1f} seconds>{START}{VIDEO * room}{END}")
        whole = START + VIDEO + END
        return (whole if whole in text else VIDEO), "".join(frames)

    def _patches(self, frames_N: ByteArray) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
        """Patches (N * h * w, P) of frames of one size, each repeated in time, and (N, h, w)."""
        out = self.image_processor(images=list(frames_N), input_data_format="channels_last", return_tensors="np")
        grid = out["image_grid_thw"]
        patches: NDArray[np.float32] = np.asarray(out["pixel_values"], np.float32)
        return patches, (len(frames_N), int(grid[0][1]), int(grid[0][2]))

    def _video(self, frames_N: ByteArray) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
        """Patches of a video and its grid; the last frame is repeated to fill the last stretch of time."""
        stride = self._stride
        short = -len(frames_N) % stride
        frames = np.concatenate([frames_N, np.repeat(frames_N[-1:], short, axis=0)]) if short else frames_N
        patches, (count, high, wide) = self._patches(frames)
        size = self.image_processor.patch_size
        split = patches.reshape(count // stride, stride, high * wide, 3, stride, size * size)
        moments = [split[:, k, :, :, k] for k in range(stride)]  # frame k of a stretch fills place k of its patches
        joined = np.stack(moments, axis=3)
        return joined.reshape(count // stride * high * wide, -1), (count // stride, high, wide)
