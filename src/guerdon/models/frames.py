"""Frames for vision-language models and their clients: conversion to RGB bytes, sampling, size limits.

Accepted pictures are bytes or floats in [0, 1], channels first or last, grey, RGBA, and the stacked six-channel inputs
of two-tower policies; anything else is refused, never guessed.

    frames_T_H_W_3 = to_rgb_uint8(observations)            # also (T, 6, 224, 224) as DINO-SigLIP policies see them
    frames_T_H_W_3[sample_frames(len(frames_T_H_W_3), 16)] # the first and the last among them
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from guerdon.episodes.images import rgb_frames
from guerdon.errors import DataError
from guerdon.types import ByteArray, IntArray

_CHANNELS = (1, 3, 4, 6)
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
TOWERS = {"dinosiglip": (_IMAGENET, _HALF), "dinoclip": (_IMAGENET, _CLIP)}
"""Mean and standard deviation of the two halves of a six-channel picture."""
TOWERS_AGREE = 0.02  # mean difference of the two halves after their normalisation is undone; bfloat16 costs 0.002


def to_rgb_uint8(frames: NDArray[Any], *, towers: str = "dinosiglip") -> ByteArray:
    """Bring pictures of any accepted kind to RGB bytes.

    Args:
        frames: (T, H, W, C) or (T, C, H, W); grey (T, H, W); one picture (H, W, C) or (H, W). uint8, or floats in
            [0, 1]. C is 3; 1 is grey and repeated; 4 is RGBA and accepted when it is fully opaque; 6 is one picture
            twice, each half normalised for one tower of the policy (floats): the normalisation of the first half is
            undone, and the second half must show the same picture.
        towers: of six-channel pictures: `dinosiglip` (Prismatic, OpenVLA) or `dinoclip`.

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        DataError: another shape or type, values out of range, transparency, or halves that do not show one picture.
    """
    if towers not in TOWERS:
        raise DataError(f"unknown towers {towers!r}: choose one of {', '.join(TOWERS)}", field="towers")
    array = _channels_last(np.asarray(frames))
    if array.shape[-1] == 6:
        array = _one_of_two(array, towers)
    return to_bytes(array)


def sample_frames(count: int, nframes: int) -> IntArray:
    """Indices of at most `nframes` of `count` frames, evenly spread, the first and the last among them.

    With `nframes` 1 it is the last. Positions between are rounded down, as reward clients do.

    Raises:
        DataError: nothing to choose from, or nothing to choose.
    """
    if count < 1 or nframes < 1:
        raise DataError(f"cannot choose {nframes} of {count} frames: both must be at least 1")
    if nframes == 1:
        return np.array([count - 1], dtype=np.int64)
    if nframes >= count:
        return np.arange(count, dtype=np.int64)
    return np.linspace(0, count - 1, nframes).astype(np.int64)


def limit_pixels(frames_N_H_W_3: ByteArray, max_pixels: int) -> ByteArray:
    """The pictures, scaled down (bicubic, same proportions) if they have more than `max_pixels` each."""
    _, height, width, _ = frames_N_H_W_3.shape
    if height * width <= max_pixels:
        return frames_N_H_W_3
    scale = (max_pixels / (height * width)) ** 0.5
    short = max(int(min(height, width) * scale), 1)
    long = max(min(int(max(height, width) * scale), max_pixels // short), 1)
    size = (long, short) if width > height else (short, long)
    small = [np.asarray(Image.fromarray(f).resize(size, Image.Resampling.BICUBIC)) for f in frames_N_H_W_3]
    return np.stack(small)


def _channels_last(array: NDArray[Any]) -> NDArray[Any]:
    """(T, H, W, C) of an array whose kind is clear."""
    shape = array.shape
    if not array.size:
        raise DataError(f"there are no pictures in an array of shape {shape}")
    if array.ndim == 2:
        return array[None, ..., None]
    if array.ndim == 3:
        if shape[2] in _CHANNELS:
            return array[None]
        if shape[0] in _CHANNELS:
            raise DataError(
                f"shape {shape} may be one picture with {shape[0]} channels or {shape[0]} grey pictures: "
                "give four axes, (T, C, H, W) or (T, H, W, C)"
            )
        return array[..., None]
    if array.ndim != 4:
        raise DataError(f"pictures must be (T, H, W, C), (T, C, H, W) or (T, H, W), got shape {shape}")
    return channels_last(array, _CHANNELS)


def channels_last(array_T: NDArray[Any], counts: tuple[int, ...], *, known: bool = False) -> NDArray[Any]:
    """(T, H, W, C) of pictures with four axes.

    Args:
        array_T: (T, H, W, C) or (T, C, H, W).
        counts: channels that a picture may have.
        known: they are (T, H, W, C).

    Raises:
        DataError: neither axis, or both, could hold the channels.
    """
    shape = array_T.shape
    last = shape[3] in counts
    first = shape[1] in counts and not known
    if last and first:
        raise DataError(
            f"cannot tell which axis of shape {shape} holds the channels; the frames of an Episode have them last"
        )
    if not last and not first:
        raise DataError(
            f"pictures must have {', '.join(map(str, counts[:-1]))} or {counts[-1]} channels, got shape {shape}: "
            "of stacked or multi-tower inputs pass the RGB picture itself"
        )
    return array_T if last else np.moveaxis(array_T, 1, 3)


def _one_of_two(array_T_H_W_6: NDArray[Any], towers: str) -> NDArray[np.float32]:
    """The picture that both halves of a six-channel one show, in [0, 1]."""
    if not np.issubdtype(array_T_H_W_6.dtype, np.floating):
        raise DataError(f"six-channel pictures are normalised floats, got {array_T_H_W_6.dtype}")
    if not np.isfinite(array_T_H_W_6).all():
        raise DataError("six-channel pictures with values that are not finite")
    halves: list[NDArray[np.float32]] = []
    for half, (mean, std) in zip(np.split(array_T_H_W_6, 2, axis=-1), TOWERS[towers], strict=True):
        halves.append(half.astype(np.float32) * np.asarray(std, np.float32) + np.asarray(mean, np.float32))
    apart = float(np.abs(halves[0] - halves[1]).mean())
    if apart > TOWERS_AGREE:
        raise DataError(
            f"the two halves of a six-channel picture differ by {apart:.3f} on average after the normalisation of "
            f"{towers} is undone: they are not one picture, or of other towers; pass the RGB picture itself"
        )
    picture: NDArray[np.float32] = np.clip(halves[0], 0.0, 1.0)
    return picture


def to_bytes(array_T_H_W_C: NDArray[Any]) -> ByteArray:
    """(T, H, W, 3) RGB bytes of pictures with 1, 3 or 4 channels, of which there is at least one.

    Raises:
        DataError: as `rgb_frames`, or transparent.
    """
    frames = rgb_frames(array_T_H_W_C)
    if (
        array_T_H_W_C.shape[-1] == 4
        and (array_T_H_W_C[..., 3] != (1 if array_T_H_W_C.dtype.kind == "f" else 255)).any()
    ):
        raise DataError("RGBA pictures with transparency: blend them over a background first")
    return frames
