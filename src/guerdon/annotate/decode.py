"""A process that decodes pictures of episodes: it can be killed, and its memory is limited.

A request names an episode, a camera and a row; the reply has that row and the next ones as JPEG. Where a video was read
last its decoder stays open, so that it goes on from there.

    python -m guerdon.annotate.decode recordings
"""

from __future__ import annotations

import base64
import io
import resource
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from guerdon.episodes.index import Entry
from guerdon.episodes.read import frames_of
from guerdon.errors import DataError, GuerdonError, boundary
from guerdon.processes.subprocess_worker import answer_requests
from guerdon.types import ByteArray

SECONDS = 10.0  # of processor time for a request
WALL_SECONDS = 60.0  # that it may take on a busy machine
ENTRY = TypeAdapter(Entry)
_MEMORY = 1 << 30  # bytes of address space for decoding: as much as the server of rewards allows
_SIDE = 640  # pixels of the longer side of a picture, at most
_QUALITY = 85
_FIRST, _NEXT = 4, 16  # rows of a reply: where a decoder begins, and where it goes on
_OPEN = 4  # decoders that stay open


class Decoder:
    """Decodes the episodes of a data set.

    Args:
        root: of the data set.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[tuple[int, str, int], Iterator[ByteArray]] = {}  # by episode, feature key and next row

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The pictures from a row on, as texts, and why there are no more of them.

        Args:
            request: `entry`, `key` of the camera and `row`; empty: whether the process answers.
        """
        if not request:
            return {}
        entry, key, row = ENTRY.validate_python(request["entry"]), request["key"], request["row"]
        frames = self._open.pop((entry.index, key, row), None)
        count = _FIRST if frames is None else _NEXT
        found: list[str] = []
        try:
            with boundary(DataError, f"episode {entry.index} cannot be decoded"):
                frames = frames or frames_of(self._root, entry, key, start=row)
                found.extend(base64.b64encode(_jpeg(frame)).decode() for frame in islice(frames, count))
        except GuerdonError as error:
            return {"pictures": found, "why": str(error)[:1000]}
        if len(found) < count:
            return {"pictures": found, "why": f"episode {entry.index} has no picture of {key} there"}
        self._open[entry.index, key, row + len(found)] = frames
        while len(self._open) > _OPEN:
            self._open.pop(next(iter(self._open)))
        return {"pictures": found, "why": ""}


def _jpeg(frame: ByteArray) -> bytes:
    """A picture of at most `_SIDE` pixels a side."""
    from PIL import Image

    picture = Image.fromarray(frame)
    picture.thumbnail((_SIDE, _SIDE))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=_QUALITY)
    return out.getvalue()


def _limit() -> None:
    """Limit memory; nothing is written, and no core dumped."""
    limits = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    if sys.platform == "linux":  # elsewhere the present size is unknown
        with open("/proc/self/statm", encoding="ascii") as file:
            limits[resource.RLIMIT_AS] = int(file.read().split()[0]) * resource.getpagesize() + _MEMORY
    for what, limit in limits.items():
        resource.setrlimit(what, (limit, limit))


if __name__ == "__main__":
    decoder = Decoder(Path(sys.argv[1]))
    answer_requests(decoder.answer, alarm=2 * WALL_SECONDS, processor=SECONDS, prepare=_limit)
