"""The Qwen-VL families' video processors of the installed transformers, without torchvision.

Everything (sizes, patches, limits of pixels) is the installed library's own; the two functions of torchvision that it
calls are made of the functions of torch that torchvision itself calls, so that the pixels are the same.

    processor = video_processor("qwen3_vl").from_pretrained("Qwen/Qwen3-VL-4B-Instruct")
    processor([frames_T_H_W_3], do_sample_frames=False, input_data_format="channels_last", return_tensors="pt")
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_MODES = {0: "nearest-exact", 2: "bilinear", 3: "bicubic"}  # by Pillow's number


@cache
def video_processor(family: str) -> Any:
    """The class of a family's video processor.

    Args:
        family: `model_type` of the model's configuration.
    """
    from transformers.image_processing_backends import TorchvisionBackend

    class Torch(TorchvisionBackend):  # type: ignore[misc]
        """Comes after the family's class and before torchvision in the order of methods."""

        def resize(self, image: Tensor, size: Any, resample: Any = None, **_: Any) -> Tensor:
            wanted = (int(size.height), int(size.width))
            if tuple(image.shape[-2:]) == wanted:
                return image
            mode = _MODES[int(resample)]
            smooth = {} if mode == "nearest-exact" else {"antialias": True, "align_corners": False}
            flat = image.reshape(-1, *image.shape[-3:])
            out: Tensor = functional.interpolate(flat, size=wanted, mode=mode, **smooth)
            return out.reshape(*image.shape[:-2], *wanted)

        def normalize(self, image: Tensor, mean: Any, std: Any, inplace: bool = False, **_: Any) -> Tensor:
            mean, std = (torch.as_tensor(value, dtype=image.dtype).view(-1, 1, 1) for value in (mean, std))
            return (image.sub_(mean) if inplace else image.sub(mean)).div_(std)

    if family == "qwen3_vl":
        module, name = _module("transformers.models.qwen3_vl.video_processing_qwen3_vl"), "Qwen3VLVideoProcessor"
    else:
        module, name = _module("transformers.models.qwen2_vl.video_processing_qwen2_vl"), "Qwen2VLVideoProcessor"
    return type(name, (getattr(module, name), Torch), {"__module__": __name__})


def _module(name: str) -> Any:
    """A module of transformers, also if it imports torchvision for its annotations and there is none."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchvision":
            raise
    parts = ["torchvision", "transforms", "v2", "functional"]
    absent = [".".join(parts[: n + 1]) for n in range(len(parts))]
    try:
        sys.modules.update({part: ModuleType(part) for part in absent})
        return import_module(name)
    finally:
        for part in absent:
            del sys.modules[part]
