"""The pictures of episodes: each row of each camera as a JPEG, decoded as training reads it and kept for a while.

They are decoded some rows at a time in processes with limits, never in the server: a video that hangs or crashes its
decoder costs its own pictures alone.

    pictures = EpisodePictures(Path("episodes"))
    data = await pictures.picture(entry, "front", 41)
"""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from guerdon.annotate.decode import ENTRY, SECONDS, WALL_SECONDS
from guerdon.episodes.index import Entry
from guerdon.episodes.layout import load_info
from guerdon.episodes.read import cameras_of
from guerdon.errors import DataError, MissingDependencyError
from guerdon.processes.subprocess_worker import SubprocessPool, WorkerDiedError, WorkerTimeoutError

_KEPT = 96 << 20  # bytes of all pictures that are kept
_PROCESSES, _THREADS = 2, 16  # that decode, and that wait for one that does


class EpisodePictures:
    """The pictures of a data set. Used from one event loop.

    Args:
        root: of the data set.
        program: a module that replaces `decode`, with the same protocol.
    """

    def __init__(self, root: Path, *, program: str = "guerdon.annotate.decode") -> None:
        self._keys = cameras_of(root, load_info(root))
        command = [sys.executable, "-m", program, str(root.resolve())]
        self._pool = SubprocessPool(command, workers=_PROCESSES, start_seconds=60.0, description="decoding process")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pictures")
        self._kept: OrderedDict[tuple[int, str, int], bytes] = OrderedDict()  # by episode, camera and row
        self._bytes = 0
        self._lock = threading.Lock()
        self._cameras: defaultdict[tuple[int, str], threading.Lock] = defaultdict(threading.Lock)

    def start(self) -> None:
        """Start the processes, which else start with the first picture."""
        for _ in range(_PROCESSES):
            self._threads.submit(self._pool.request, {}, WALL_SECONDS)

    async def picture(self, entry: Entry, camera: str, row: int) -> bytes | None:
        """A row of an episode by one camera as JPEG; None where there is no such camera or row.

        Raises:
            DataError: it cannot be decoded.
        """
        if camera not in self._keys or not 0 <= row < entry.length:
            return None
        known = self._kept.get((entry.index, camera, row))
        loop = asyncio.get_running_loop()
        return known or await loop.run_in_executor(self._threads, self._decoded, entry, camera, row)

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
        self._threads.shutdown(cancel_futures=True)

    def _decoded(self, entry: Entry, camera: str, row: int) -> bytes:
        """A row, which is decoded with the next ones; who asks for these meanwhile waits.

        Raises:
            DataError: it cannot be decoded.
        """
        with self._lock:
            one_at_a_time = self._cameras[entry.index, camera]
        with one_at_a_time:
            known = self._kept.get((entry.index, camera, row))
            return known or self._decode(entry, camera, row)

    def _decode(self, entry: Entry, camera: str, row: int) -> bytes:
        request = {"entry": ENTRY.dump_python(entry, mode="json"), "key": self._keys[camera], "row": row}
        try:
            reply = self._pool.request(request, WALL_SECONDS)
        except WorkerTimeoutError as error:
            raise DataError(f"row {row} was not decoded within {SECONDS:g} s of processor time") from error
        except WorkerDiedError as error:
            raise DataError("the decoding process died of it twice") from error
        except MissingDependencyError as error:
            raise DataError(str(error)) from error
        found = [base64.b64decode(picture) for picture in reply["pictures"]]
        if not found:
            raise DataError(reply["why"])
        with self._lock:
            self._keep((entry.index, camera), row, found)
        return found[0]

    def _keep(self, camera: tuple[int, str], row: int, pictures: Sequence[bytes]) -> None:
        for place, picture in enumerate(pictures, start=row):
            replaced = self._kept.pop((*camera, place), b"")
            self._kept[*camera, place] = picture
            self._bytes += len(picture) - len(replaced)
        while self._bytes > _KEPT and len(self._kept) > 1:
            self._bytes -= len(self._kept.popitem(last=False)[1])
