"""`QwenProcessRM`, the process reward model of the VLA guide under its names: texts and pictures in, (B,) rewards out.

For training loops of your own that call `get_reward` on the observations of a batch. It raises where a measurement
fails, so that no made-up number is taken for a reward; `measure` returns every score, with its reason where it failed.

    prm = QwenProcessRM("Qwen/Qwen2-VL-2B-Instruct", prm_checkpoint_path="runs/prm/adapter")
    rewards_B = prm.get_reward(["close the drawer"] * 2, [image_H_W_3, image_H_W_3])
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from guerdon.errors import DataError
from guerdon.models.frames import to_rgb_uint8
from guerdon.models.load import load_reward_model
from guerdon.processes.progress import log_line
from guerdon.types import Episode, FloatArray, RewardModel, Score

_POLICY_PROMPT = re.compile(r"What action should the robot take to (.*?)\?", re.DOTALL)


class QwenProcessRM:
    """Whether the task is completed in a picture: 1 where the model answers yes, 0 where it answers no.

    Args:
        prm_model_name_or_path: folder or hub id of a Qwen-VL, or a folder that `guerdon train` wrote.
        prm_checkpoint_path: LoRA adapter on top of it; None for none.
        use_vllm: run the model by vLLM in this process.
        soft: return p(yes) / (p(yes) + p(no)) instead.
        **vlm: further keys of `reward.model.vlm`.

    Raises:
        ConfigError: a key that would do nothing.
        CheckpointError: the model cannot be read.
    """

    def __init__(
        self,
        prm_model_name_or_path: str | Path,
        prm_checkpoint_path: str | Path | None = None,
        *,
        use_vllm: bool = False,
        soft: bool = False,
        **vlm: Any,
    ) -> None:
        keys: dict[str, Any] = {"answer": "soft" if soft else "hard", **vlm}
        keys |= {"backend": "vllm"} if use_vllm else {}
        keys |= {} if prm_checkpoint_path is None else {"adapter": str(prm_checkpoint_path)}
        with log_loading(f"QwenProcessRM from {prm_model_name_or_path}"):
            self.model: RewardModel = load_reward_model("QwenProcessRM", prm_model_name_or_path, vlm=keys)

    def measure(self, text_list: Sequence[str], image_list: Sequence[NDArray[Any]]) -> list[Score]:
        """One score per picture.

        Args:
            text_list: tasks in words, or prompts of the policy that hold them ("What action should the robot take to
                close the drawer?").
            image_list: one picture each, of any kind that `to_rgb_uint8` takes; (C, H, W) too.

        Raises:
            DataError: lists of different lengths, or an array that is not a picture.
        """
        _check(text_list, image_list)
        return self.model.score(
            [
                Episode(id=str(i), task=task_of(text), frames=to_rgb_uint8(_one(image)))
                for i, (text, image) in enumerate(zip(text_list, image_list, strict=True))
            ]
        )

    def get_reward(
        self, text_list: Sequence[str], image_list: Sequence[NDArray[Any]], actions: object = None
    ) -> FloatArray:
        """(B,) float32 rewards.

        Args:
            text_list: as for `measure`.
            image_list: as for `measure`.
            actions: ignored; for loops that pass them.

        Raises:
            DataError: as for `measure`; or a measurement failed.
        """
        scores = self.measure(text_list, image_list)
        failed = [f"{i}: {score.failure}" for i, score in enumerate(scores) if score.failure is not None]
        if failed:
            raise DataError(
                f"{len(failed)} of {len(scores)} rewards could not be measured ({failed[0]}); use `measure` to go on "
                "without them"
            )
        rewards_B = np.array([score.total for score in scores], dtype=np.float32)
        log_computed(rewards_B)
        return rewards_B


class DummyRM(QwenProcessRM):
    """Rewards of zero, to test a loop."""

    def __init__(self) -> None:
        pass

    def measure(self, text_list: Sequence[str], image_list: Sequence[NDArray[Any]]) -> list[Score]:
        """A score of zero per picture; what the pictures show is not looked at."""
        _check(text_list, image_list)
        return [Score(total=0.0) for _ in text_list]


@contextmanager
def log_loading(what: str) -> Iterator[None]:
    """Write the guide's log lines around the loading of a model, with the memory in use before and after it.

    Args:
        what: is loaded, such as `QwenProcessRM from models/Qwen2-VL-2B-Instruct`.
    """
    log_line("[PRM] Initializing Process Reward Model")
    log_line(f"[PRM] Memory before loading: {memory_in_use()}")
    yield
    log_line(f"[PRM] Loaded {what}")
    log_line(f"[PRM] Memory after loading: {memory_in_use()}")


def memory_in_use() -> str:
    """Memory of the GPUs, in GiB: allocated and reserved by torch; without a GPU that of this process."""
    if not torch.cuda.is_available():
        page = os.sysconf("SC_PAGE_SIZE")
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        return f"{page * resident / 2**30:.2f} GiB resident (CPU)"
    return ", ".join(
        f"cuda:{i} {torch.cuda.memory_allocated(i) / 2**30:.2f} GiB allocated, "
        f"{torch.cuda.memory_reserved(i) / 2**30:.2f} GiB reserved"
        for i in range(torch.cuda.device_count())
    )


def log_computed(rewards_N: Sequence[float] | FloatArray) -> None:
    """Write the guide's log line of measured rewards: `[PRM] Computed rewards: [0.0, 1.0, ...]`."""
    log_line(f"[PRM] Computed rewards: {_first_few(rewards_N)}")


def log_weighted(rewards_N: Sequence[float] | FloatArray, weight: float) -> None:
    """Write the guide's log line of weighted rewards: `[PRM] Added weighted PRM rewards (weight=0.1): [...]`.

    Args:
        rewards_N: before they are weighted.
        weight: factor.
    """
    weighted = [weight * float(reward) for reward in rewards_N]
    log_line(f"[PRM] Added weighted PRM rewards (weight={weight:g}): {_first_few(weighted)}")


def task_of(text: str) -> str:
    """The task in a policy's prompt; a text of another form is the task itself."""
    found = _POLICY_PROMPT.search(text)
    return (found[1] if found else text).strip()


def _one(image: NDArray[Any]) -> NDArray[Any]:
    """A single picture with an axis for time, so that (C, H, W) is clear."""
    array = np.asarray(image)
    return array[None] if array.ndim == 3 else array


def _check(text_list: Sequence[str], image_list: Sequence[NDArray[Any]]) -> None:
    if len(text_list) != len(image_list):
        raise DataError(f"{len(text_list)} texts and {len(image_list)} pictures: give one text for each picture")


def _first_few(values_N: Sequence[float] | FloatArray, limit: int = 8) -> str:
    shown = ", ".join(str(round(float(value), 4)) for value in values_N[:limit])
    return f"[{shown}, ...]" if len(values_N) > limit else f"[{shown}]"
