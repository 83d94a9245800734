"""Preprocessing of frames, the same for training, scoring and tests.

Two stages, so that the first can be done once and its small result stored: `to_pixels` checks, resizes and
keeps bytes; `to_input` divides by 255 and normalises.

    pixels_N_H_W_C = to_pixels(frames, (3, 64, 64))
    inputs_N_C_H_W = to_input(torch.from_numpy(pixels_N_H_W_C), "imagenet")
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from guerdon.errors import DataError
from guerdon.models import vlm_frames
from guerdon.types import ByteArray

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def to_pixels(
    frames: NDArray[Any] | Tensor, image_size: tuple[int, int, int], *, channels_last: bool = False
) -> ByteArray:
    """Bring frames of any accepted kind to RGB bytes of one size.

    Values stay bytes throughout (floats in [0, 1] are rounded to the nearest 1/255), so one image gives the
    same pixels whether it arrives as bytes or as floats. Resizing is bilinear with antialiasing.

    Args:
        frames: (N, H, W, C), (N, C, H, W) or grey (N, H, W); uint8, or floats in [0, 1]. C is 3; 1 is grey
            and repeated; 4 is RGBA and accepted when it is fully opaque.
        image_size: (3, H', W').
        channels_last: they are (N, H, W, C), as those of an `Episode` are; else the axis of 1, 3 or 4 is found.

    Returns:
        (N, H', W', 3) uint8, contiguous.

    Raises:
        DataError: for another shape or type, floats outside [0, 1], or a picture with transparency.
    """
    array = frames.detach().cpu().numpy() if isinstance(frames, Tensor) else np.asarray(frames)
    array = _to_channels_last(array, known=channels_last)
    array = vlm_frames.to_bytes(array) if array.size else array
    _, height, width = image_size
    if array.shape[1:3] != (height, width) and len(array):
        resized = F.interpolate(
            torch.from_numpy(np.ascontiguousarray(array)).permute(0, 3, 1, 2),
            (height, width),
            mode="bilinear",
            antialias=True,
        )
        array = resized.permute(0, 2, 3, 1).numpy()
    if not len(array):
        return np.zeros((0, height, width, 3), np.uint8)
    return np.ascontiguousarray(array)


def to_input(pixels_N_H_W_C: Tensor, normalize: Literal["none", "imagenet"]) -> Tensor:
    """Turn bytes into the network's input.

    Args:
        pixels_N_H_W_C: (N, H, W, 3) uint8, on the device where the network runs.
        normalize: `none` leaves values in [0, 1]; `imagenet` standardises each channel.

    Returns:
        (N, 3, H, W) float32 in channels-last memory.
    """
    images = pixels_N_H_W_C.permute(0, 3, 1, 2).to(torch.float32).div_(255.0)
    if normalize == "imagenet":
        mean = torch.tensor(IMAGENET_MEAN, device=images.device).view(1, 3, 1, 1)
        std = torch.tensor(IMAGENET_STD, device=images.device).view(1, 3, 1, 1)
        images = images.sub_(mean).div_(std)
    return images.contiguous(memory_format=torch.channels_last)


def random_shift(pixels_N_H_W_C: Tensor, pad: int = 4) -> Tensor:
    """Shift each picture by up to `pad` pixels both ways, repeating its border (DrQ, arXiv:2004.13649).

    Uses torch's global random state.
    """
    n, height, width, _ = pixels_N_H_W_C.shape
    device = pixels_N_H_W_C.device
    shift_N_2 = torch.randint(-pad, pad + 1, (n, 2), device=device)
    rows = (torch.arange(height, device=device) + shift_N_2[:, :1]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=device) + shift_N_2[:, 1:]).clamp_(0, width - 1)
    index = torch.arange(n, device=device)[:, None, None]
    return pixels_N_H_W_C[index, rows[:, :, None], columns[:, None, :]]


def _to_channels_last(array: NDArray[Any], *, known: bool) -> NDArray[Any]:
    if array.ndim == 3:
        return array[..., None]
    if array.ndim != 4:
        raise DataError(f"frames must be (N, H, W, C), (N, C, H, W) or (N, H, W), got shape {array.shape}")
    return vlm_frames.channels_last(array, (1, 3, 4), known=known)
