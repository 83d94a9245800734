"""What takes pictures of a world, and pictures of one size.

eye.render([eye.look(0), eye.look(1)])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from guerdon.types import ByteArray


class Eye(Protocol):
    """Takes pictures of a world, possibly later than it looks."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        ...

    def look(self, index: int) -> Any:
        """Keep what is needed to draw copy `index` as it is now."""
        ...

    def render(self, looks: Sequence[Any]) -> ByteArray:
        """(N, H, W, 3) uint8 pictures of earlier looks."""
        ...

    def close(self) -> None:
        """Free what drawing needs."""
        ...


def resized(picture: ByteArray, size: tuple[int, int]) -> ByteArray:
    """A picture of height and width `size`, by bilinear interpolation where it has another."""
    if picture.shape[:2] == size:
        return picture
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize(size[::-1], Image.Resampling.BILINEAR))


def stacked(pictures: Sequence[ByteArray], size: tuple[int, int]) -> ByteArray:
    """(N, H, W, 3) pictures of height and width `size`."""
    if not len(pictures):
        return np.empty((0, *size, 3), np.uint8)
    return np.stack([resized(picture, size) for picture in pictures])


def looks_at(eye: Eye, copies: Sequence[int]) -> list[Any]:
    """A look at each of these copies; all at once where the eye has `looks`, since each is a question elsewhere."""
    several = getattr(eye, "looks", None)
    return [eye.look(index) for index in copies] if several is None else several(copies)
