"""The pictures of episodes: each row of each camera as a JPEG, decoded as training reads it and kept for a while.

A video is decoded from the row that is asked for to its end, in a thread of its own, so that the first picture is there
soon and the next ones are there before they are asked for.

    pictures = EpisodePictures(Path("episodes"))
    data = pictures.picture(entry, "front", 41)
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from pathlib import Path

from guerdon.episodes.index import Entry
from guerdon.episodes.layout import load_info
from guerdon.episodes.read import cameras_of, frames_of
from guerdon.errors import DataError, boundary
from guerdon.types import ByteArray

SIDE = 640  # pixels of the longer side of a picture, at most
QUALITY = 85
WAIT_S = 10.0  # for a picture
KEPT = 96 << 20  # bytes of all pictures that are kept
NEAR = 60  # rows that are waited for rather than begun anew


class EpisodePictures:
    """The pictures of a data set.

    Args:
        root: of the data set.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._info = root, load_info(root)
        self._keys = cameras_of(root, self._info)
        self._cameras: OrderedDict[tuple[int, str], _CameraPictures] = OrderedDict()
        self._lock = threading.Lock()

    def picture(self, entry: Entry, camera: str, row: int) -> bytes | None:
        """A row of an episode by one camera as JPEG; None where there is no such camera or row.

        Raises:
            DataError: it cannot be decoded.
            TimeoutError: not in time.
        """
        key = self._keys.get(camera)
        if key is None or not 0 <= row < entry.length:
            return None
        with self._lock:
            camera_pictures = self._cameras.setdefault((entry.index, camera), _CameraPictures(self._root, entry, key))
            self._cameras.move_to_end((entry.index, camera))
            while len(self._cameras) > 1 and sum(one.size for one in self._cameras.values()) > KEPT:
                self._cameras.popitem(last=False)[1].stop()
        return camera_pictures.picture(row)

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            for one in self._cameras.values():
                one.stop()


class _CameraPictures:
    """The pictures of one camera of one episode.

    Attributes:
        size: bytes of those that are kept.
    """

    def __init__(self, root: Path, entry: Entry, key: str) -> None:
        self._root, self._entry, self._key = root, entry, key
        self._pictures: dict[int, bytes] = {}
        self._changed = threading.Condition()
        self._run = 0  # number of the thread that decodes; an older one ends
        self._at: int | None = None  # the row that it decodes next
        self._why: DataError | None = None
        self.size = 0

    def picture(self, row: int) -> bytes:
        """A row as JPEG, which is waited for.

        Raises:
            DataError: it cannot be decoded.
            TimeoutError: not in time.
        """
        with self._changed:
            if row not in self._pictures and (self._at is None or not 0 <= row - self._at <= NEAR):
                self._begin(row)
            self._changed.wait_for(lambda: row in self._pictures or self._why is not None, timeout=WAIT_S)
            if row in self._pictures:
                return self._pictures[row]
            raise self._why or TimeoutError(f"row {row} was not decoded within {WAIT_S:g} s")

    def stop(self) -> None:
        """End the thread that decodes."""
        with self._changed:
            self._run += 1
            self._at = None

    def _begin(self, row: int) -> None:
        self._run += 1
        self._at, self._why = row, None
        threading.Thread(target=self._decode, args=(row, self._run), daemon=True, name="guerdon-pictures").start()

    def _decode(self, start: int, run: int) -> None:
        """Decode from a row on, until there is a picture of each or another thread has begun."""
        why = None
        try:
            with boundary(DataError, f"episode {self._entry.index} cannot be decoded"):
                for row, frame in enumerate(frames_of(self._root, self._entry, self._key, start=start), start=start):
                    if not self._keep(row, _jpeg(frame), run):
                        return
                why = DataError(f"episode {self._entry.index} has no picture of {self._key} there")
        except DataError as error:
            why = error
        with self._changed:
            if run == self._run:
                self._at, self._why = None, why
                self._changed.notify_all()

    def _keep(self, row: int, data: bytes, run: int) -> bool:
        """Keep a picture; whether to go on."""
        with self._changed:
            if row not in self._pictures:
                self._pictures[row] = data
                self.size += len(data)
            self._changed.notify_all()
            if run != self._run:
                return False
            self._at = row + 1
            return True


def _jpeg(frame: ByteArray) -> bytes:
    """A picture of at most `SIDE` pixels a side."""
    from PIL import Image

    picture = Image.fromarray(frame)
    picture.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()
