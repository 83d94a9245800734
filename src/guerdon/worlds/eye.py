"""What takes pictures of a world, and pictures of one size.

eye.render([eye.look(0), eye.look(1)])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from guerdon.errors import ConfigError
from guerdon.types import ByteArray
from guerdon.worlds.observation import Padding


class Eye(Protocol):
    """Takes pictures of a world, possibly later than it looks."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures."""

    def look(self, index: int) -> Any:
        """Keep what is needed to draw copy `index` as it is now."""

    def render(self, looks: Sequence[Any]) -> ByteArray:
        """(N, H, W, 3) uint8 pictures of earlier looks."""

    def close(self) -> None:
        """Free what drawing needs."""


def cannot_draw(eye: Eye | None) -> bool:
    """Whether it is known that there will be no pictures."""
    return eye is None or getattr(eye, "cannot_draw", False)


class Drawn(NamedTuple):
    """A look whose picture, by the first camera, is drawn already.

    Attributes:
        look: what the eye kept.
        picture: (H, W, 3) uint8.
    """

    look: Any
    picture: ByteArray


def pictures_of(eye: Eye, looks: Sequence[Any], camera: str | None = None) -> ByteArray:
    """(N, H, W, 3) uint8 pictures of looks, by a named camera or the first; what is drawn is not drawn again."""
    if camera is not None:
        return eye.render([one.look if isinstance(one, Drawn) else one for one in looks], camera)  # type: ignore[call-arg]
    undrawn = [one for one in looks if not isinstance(one, Drawn)]
    pictures = eye.render(undrawn) if undrawn or not looks else ()
    if len(undrawn) == len(looks):
        return np.asarray(pictures)
    new = iter(pictures)
    return np.stack([one.picture if isinstance(one, Drawn) else next(new) for one in looks])


def resized(picture: ByteArray, size: tuple[int, int], *, padded: Padding = False) -> ByteArray:
    """A picture of height and width `size`, by bilinear interpolation where it has another; `padded`: `letterboxed`."""
    if picture.shape[:2] == size:
        return picture
    if padded:
        return letterboxed(picture, size, centred=padded == "centre")
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize(size[::-1], Image.Resampling.BILINEAR))


def letterboxed(picture: ByteArray, size: tuple[int, int], *, centred: bool = False) -> ByteArray:
    """A picture of height and width `size` that keeps its ratio, with black above and left of it, or all around it.

    Bilinear interpolation between the nearest pixels, as LeRobot's `resize_with_pad` of SmolVLA and, centred,
    `resize_with_pad_torch` of pi0 do it; the result is rounded to whole grey levels.
    """
    import torch
    from torch.nn import functional

    ratio = max(have / want for have, want in zip(picture.shape, size, strict=False))
    height, width = (max(1, int(have / ratio)) for have in picture.shape[:2])
    pixels = torch.from_numpy(np.ascontiguousarray(picture)).permute(2, 0, 1)[None].contiguous().float()
    small = functional.interpolate(pixels, size=(height, width), mode="bilinear", align_corners=False)
    found = np.zeros((*size, picture.shape[2]), dtype=np.uint8)
    top = size[0] - height
    left = size[1] - width
    top, left = (top // 2, left // 2) if centred else (top, left)
    found[top : top + height, left : left + width] = small[0].round_().byte().permute(1, 2, 0).numpy()
    return found


class NoPictureError(ConfigError):
    """`render()` of the environment gives None each time."""


def stacked(pictures: Sequence[ByteArray | None], size: tuple[int, int]) -> ByteArray:
    """(N, H, W, 3) pictures of height and width `size`.

    Raises:
        ConfigError: one of them is None; `NoPictureError` where all are.
    """
    if not len(pictures):
        return np.empty((0, *size, 3), np.uint8)
    there = [resized(picture, size) for picture in pictures if picture is not None]
    if len(there) < len(pictures):
        kind, often = (ConfigError, " at times") if there else (NoPictureError, "")
        raise kind(f"render() of the environment: there is no picture{often}: it needs render_mode='rgb_array'")
    return np.stack(there)


def looks_at(eye: Eye, copies: Sequence[int]) -> list[Any]:
    """A look at each of these copies; all at once where the eye has `looks`, since each is a question elsewhere."""
    several = getattr(eye, "looks", None)
    return [eye.look(index) for index in copies] if several is None else several(copies)
