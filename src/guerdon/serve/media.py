"""Frames from what clients send or name: decoded in processes that are bounded and watched, never in the server.

Uploads come as bytes; a path only where the operator gave a folder (`media_root`). Nothing that looks like a URL is
ever touched. A decoder that hangs or dies is replaced, and its request refused. This module does not know HTTP, nor
what the frames are scored for.

    media = Media.of(settings.media)
    frames_T_H_W_C = await media.upload(mp4_bytes, nframes=16)
    frames_T_H_W_C = await media.path("libero/episode_0.mp4", nframes=16)
"""

from __future__ import annotations

import asyncio
import binascii
import json
import os
import queue
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, BinaryIO

import numpy as np

from guerdon.errors import DataError
from guerdon.serve.decode import Limits, sniff
from guerdon.serve.errors import Busy, NotReady, ServeError
from guerdon.serve.paths import MediaRoot
from guerdon.settings.serve import MediaSettings
from guerdon.subprocess_worker import SubprocessWorker, WorkerDiedError, WorkerTimeoutError, plain_environment
from guerdon.types import ByteArray

_MEMORY = 256 << 20  # bytes of address space that decoding may take, beside three times what the frames take
_START_SECONDS = 60.0
_WAITING = 64  # requests that may wait for a decoder
_QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
_BATCH = 4  # items of batches whose frames are decoded at a time, so that other requests have room
_HELD = 4  # times max_bytes that decoded frames of all requests may take before more are turned away


class MediaRefused(ServeError):
    """What was sent or named is not decoded.

    Attributes:
        code: `bad_media`, `decode_timeout`, `decoder_died`, `no_such_video` or `no_media_root`.
    """

    status = 422

    def __init__(self, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code
        if code in ("no_such_video", "no_media_root"):
            self.status = 400


class Media:
    """A pool of decoding processes, started when first needed. Used from one event loop.

    Attributes:
        limits: of what one request may hold.
        restarts: processes that were ended because they hung or died.
        batch_slots: held while an item of a batch is decoded.

    Args:
        root: whose files may be named; None: none.
        limits: of what one request may hold.
        most_bytes: of one upload or file.
        timeout: seconds for one request's frames.
        workers: processes at most.
        command: what a process runs instead of `media_worker`, speaking its protocol.
    """

    def __init__(
        self,
        root: MediaRoot | None,
        limits: Limits,
        *,
        most_bytes: int = 32 << 20,
        timeout: float = 10.0,
        workers: int = 2,
        command: Sequence[str] | None = None,
    ) -> None:
        module = [sys.executable, "-m", "guerdon.serve.media_worker"]
        self.limits = limits
        self.restarts = 0
        self._root, self._most_bytes, self._timeout = root, most_bytes, timeout
        self._command = [
            *(command or module),
            str(3 * limits.max_bytes + _MEMORY),
            str(limits.max_bytes),
            json.dumps(asdict(limits)),
            str(2 * timeout + 5),
        ]
        self._slots: queue.LifoQueue[SubprocessWorker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._slots.put(None)
        self._alive: set[SubprocessWorker] = set()
        self._workers, self._waiting, self._closed = workers, 0, False
        self._held, self._lock = 0, threading.RLock()
        self.batch_slots = asyncio.Semaphore(_BATCH)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="decode")

    @staticmethod
    def of(settings: MediaSettings) -> Media:
        """The pool that a server's settings ask for.

        Raises:
            ConfigError: `root` is no folder.
        """
        root = None if settings.root is None else MediaRoot(settings.root)
        limits = Limits(
            settings.max_frames, settings.max_frame_pixels, settings.max_video_s, settings.max_decoded_bytes
        )
        return Media(
            root,
            limits,
            most_bytes=settings.max_file_bytes,
            timeout=settings.decode_timeout_s,
            workers=settings.workers,
        )

    async def upload(self, blob: bytes, *, nframes: int | None = None, encoded: bool = False) -> ByteArray:
        """Frames of an MP4, NPY, or single picture; which of them, its first bytes say.

        Args:
            blob: the file.
            nframes: of a video, the most frames taken, evenly spaced; NPY and pictures are taken whole.
            encoded: the blob is base64 text; the decoding process takes that off too.

        Raises:
            MediaRefused: over a limit, of another type, or corrupt.
            Busy: too many wait.
        """
        kind = sniff(_head(blob) if encoded else blob[:12])
        if kind in ("png", "jpeg", "webp"):
            return await self.pictures([blob], encoded=encoded)
        if kind is None:
            raise MediaRefused("bad_media", "it is no MP4, NPY, PNG, JPEG or WebP file")
        return await self._blobs({"kind": kind, "nframes": nframes}, [blob], encoded=encoded)

    async def pictures(self, blobs: Sequence[bytes], *, encoded: bool = False) -> ByteArray:
        """Frames from PNG, JPEG or WebP pictures, one each; see `upload`.

        Raises:
            MediaRefused: over a limit, of another type or of several sizes, or corrupt.
            Busy: too many wait.
        """
        if not 1 <= len(blobs) <= self.limits.max_frames:
            raise MediaRefused("bad_media", f"{len(blobs)} frames: allowed are 1 to {self.limits.max_frames}")
        return await self._blobs({"kind": "pictures"}, blobs, encoded=encoded)

    async def path(self, name: str, *, nframes: int | None = None) -> ByteArray:
        """Frames of an MP4 file under the media root.

        Raises:
            MediaRefused: `no_such_video`, with the same words whatever the cause; `no_media_root`, where no file is
                ever opened; or the file is not decoded.
            Busy: too many wait.
        """
        return await self._run(lambda: self._path(name, nframes))

    def close(self) -> None:
        """End all processes; what they are at is refused."""
        self._closed = True
        for worker in list(self._alive):
            worker.process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in list(self._alive):
            self._end(worker)

    async def _blobs(self, request: dict[str, Any], blobs: Sequence[bytes], *, encoded: bool) -> ByteArray:
        sizes = [len(blob) for blob in blobs]
        if sum(sizes) > self._most_bytes * (4 / 3 if encoded else 1) + 4:
            raise MediaRefused("bad_media", f"more than {self._most_bytes} bytes")
        return await self._run(lambda: self._upload({**request, "sizes": sizes, "encoded": encoded}, blobs))

    async def _run(self, work: Callable[[], ByteArray]) -> ByteArray:
        if self._waiting >= _WAITING + self._workers:
            raise Busy(f"{_WAITING} requests wait for a decoder already", retry_after_s=1.0)
        if self._held > _HELD * self.limits.max_bytes:
            raise Busy("decoded frames of other requests fill the memory", retry_after_s=1.0)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1

    def _upload(self, request: dict[str, Any], blobs: Sequence[bytes]) -> ByteArray:
        with _unnamed() as source:
            for blob in blobs:
                source.write(blob)
            source.seek(0)
            return self._decode(request, source)

    def _path(self, name: str, nframes: int | None) -> ByteArray:
        if self._root is None:
            raise MediaRefused(
                "no_media_root",
                "this server opens no files: start it with --media-root FOLDER, the folder that clients write their "
                "videos to, or send the video itself",
                param="video_path",
            )
        refused = MediaRefused("no_such_video", "video_path does not exist or may not be read")
        try:
            file = self._root.open(name, suffixes=(".mp4",), most_bytes=self._most_bytes)
        except DataError as error:
            raise refused from error
        with file:
            if sniff(file.read(12)) != "mp4":
                raise refused
            file.seek(0)
            return self._decode({"kind": "mp4", "nframes": nframes, "encoded": False}, file)

    def _decode(self, request: dict[str, Any], source: BinaryIO) -> ByteArray:
        """Have a process decode it.

        Raises:
            MediaRefused: it did not, or not in time.
        """
        worker = self._slots.get()
        try:
            for last in (False, True):
                if worker is not None and worker.process.poll() is not None:
                    self._end(worker)
                    worker = None
                worker = worker or self._new()
                if self._closed:  # asked after the worker is known to `close`: one of the two ends it
                    raise NotReady("the server is about to end")
                source.seek(0)
                with _unnamed() as target:
                    try:
                        reply = worker.request(request, self._timeout, files=(source.fileno(), target.fileno()))
                    except WorkerTimeoutError as error:
                        self._end(worker)
                        worker = None
                        raise MediaRefused("decode_timeout", f"not decoded within {self._timeout:g} s") from error
                    except WorkerDiedError as error:
                        self._end(worker)
                        worker = None
                        if last:
                            raise MediaRefused("decoder_died", "the decoding process died of it twice") from error
                        continue  # something else may have killed it
                    if "refused" in reply:
                        raise MediaRefused("bad_media", str(reply["refused"]))
                    return self._frames(reply, target)
            raise AssertionError("the last try returns or raises")
        finally:
            self._slots.put(worker)

    def _frames(self, reply: dict[str, Any], target: BinaryIO) -> ByteArray:
        shape = reply.get("shape")
        size = target.seek(0, os.SEEK_END)
        if not isinstance(shape, list) or len(shape) != 4 or shape[-1] != 3 or int(np.prod(shape)) != size:
            raise MediaRefused("decoder_died", "the decoding process spoke nonsense")
        target.seek(0)
        flat = np.fromfile(target, np.uint8, size)
        self._hold(size)
        weakref.finalize(flat, self._hold, -size)  # views of it keep it
        return flat.reshape(shape)

    def _hold(self, size: int) -> None:
        with self._lock:
            self._held += size

    def _new(self) -> SubprocessWorker:
        worker = SubprocessWorker(
            self._command,
            start_seconds=_START_SECONDS,
            description="decoding process",
            pass_files=True,
            environment=plain_environment() | _QUIET,
        )
        self._alive.add(worker)
        return worker

    def _end(self, worker: SubprocessWorker) -> None:
        worker.kill()
        self._alive.discard(worker)
        self.restarts += not self._closed


def _head(text: bytes) -> bytes:
    """The first 12 bytes of what a base64 text holds, or nothing."""
    try:
        return binascii.a2b_base64(text[:16])
    except binascii.Error:
        return b""


def _unnamed() -> BinaryIO:
    """A file without a name: in memory where the system can, else on disk."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("guerdon-media", os.MFD_CLOEXEC), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
