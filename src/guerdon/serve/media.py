"""Frames from uploads and files, decoded in processes with limits, never in the server.

Uploads are bytes; files are opened only under the folder that the operator gave (`media_root`). URLs are never fetched.
A process that hangs or dies is replaced, and its request refused.

The path of a file is walked folder by folder from an open descriptor, without following links, so that nothing can be
replaced between a check and its use. Every refusal is the same error, so that a client learns nothing about the disk.

    media = Media(settings.media)
    frames_T_H_W_C = await media.upload(mp4_bytes, nframes=16)
    frames_T_H_W_C = await media.path("libero/episode_0.mp4", nframes=16)
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from guerdon.errors import ConfigError
from guerdon.processes.subprocess_worker import (
    PoolClosedError,
    SubprocessPool,
    WorkerDiedError,
    WorkerTimeoutError,
    plain_environment,
)
from guerdon.serve.decode import not_read, sniff
from guerdon.serve.errors import Busy, NotReady, ServeError
from guerdon.settings.serve import MediaSettings
from guerdon.types import ByteArray

_START_SECONDS = 60.0
_WAITING = 64  # requests that may wait for a decoder
_QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
_BATCH = 4  # items of batches whose frames are decoded at a time, so that other requests have room
_HELD = 4  # times max_bytes that decoded frames of all requests may take before more are turned away
_LONGEST = 1024  # bytes of a file's name; below the limit of any file system
_SCHEME = re.compile(r"\A\s*[A-Za-z][A-Za-z0-9+.\-]*:")  # http: file: data: C:
_STRANGE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


class MediaRefused(ServeError):
    """An upload or file that cannot be decoded.

    Attributes:
        code: `bad_media`, `decode_timeout`, `decoder_died`, `no_such_video` or `no_media_root`.
    """

    status = 422

    def __init__(self, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code
        if code in ("no_such_video", "no_media_root"):
            self.status = 400


class MediaRoot:
    """The folder whose files clients may name.

    Args:
        folder: of the operator; its own path may contain links.

    Raises:
        ConfigError: the folder does not exist.
    """

    def __init__(self, folder: str | Path) -> None:
        given = os.path.abspath(folder)
        self.folder = os.path.realpath(given)
        if not os.path.isdir(self.folder):
            raise ConfigError(
                f"media_root: {str(folder)!r} is not a folder; create it or name another", key="media.root"
            )
        self._prefixes = {given, self.folder}

    def open(self, name: str, *, suffixes: Sequence[str], most_bytes: int) -> BinaryIO:
        """The file, opened for reading.

        Args:
            name: relative to the folder, or absolute and starting with its path. `..`, links (soft or hard), devices,
                pipes and names with a scheme are refused.
            suffixes: allowed endings of the name, in lower case.
            most_bytes: a larger file is refused.

        Raises:
            MediaRefused: `no_such_video`, always with the same message.
        """
        try:
            return os.fdopen(self._walk(self._parts(name, suffixes), most_bytes), "rb")
        except (OSError, ValueError) as error:
            raise _no_such_video() from error

    def _parts(self, name: str, suffixes: Sequence[str]) -> list[str]:
        if _SCHEME.match(name) or _STRANGE.search(name) or len(os.fsencode(name)) > _LONGEST:
            raise ValueError(name)
        for prefix in self._prefixes if name.startswith("/") else ():
            if name.startswith(prefix.rstrip("/") + "/"):
                name = name[len(prefix.rstrip("/")) + 1 :]
                break
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts) or not name.lower().endswith(tuple(suffixes)):
            raise ValueError(name)
        return parts

    def _walk(self, parts: Sequence[str], most_bytes: int) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        at = os.open(self.folder, flags | os.O_DIRECTORY)
        try:
            for part in parts[:-1]:
                if not stat.S_ISDIR(os.stat(part, dir_fd=at, follow_symlinks=False).st_mode):
                    raise ValueError("not a folder")
                below = os.open(part, flags | os.O_DIRECTORY, dir_fd=at)
                os.close(at)
                at = below
            found = os.stat(parts[-1], dir_fd=at, follow_symlinks=False)
            _check(found, most_bytes)  # opening a device can have side effects
            handle = os.open(parts[-1], flags | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=at)
        finally:
            os.close(at)
        try:
            _check(os.fstat(handle), most_bytes)
        except ValueError:
            os.close(handle)
            raise
        return handle


def _check(found: os.stat_result, most_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size > most_bytes:
        raise ValueError("not a plain file with one name, or too large")


def _no_such_video() -> MediaRefused:
    return MediaRefused("no_such_video", "video_path does not exist or may not be read")


class Media:
    """A pool of decoding processes, started when first needed. Used from one event loop.

    Attributes:
        limits: of one request.
        pool: the processes.
        batch_slots: held while an item of a batch is decoded.

    Args:
        settings: limits, number of processes, and the folder of the files that clients may name.
        command: replaces `decode`, with the same protocol.

    Raises:
        ConfigError: `root` is not a folder.
    """

    def __init__(self, settings: MediaSettings, *, command: Sequence[str] | None = None) -> None:
        self.limits = settings
        self.batch_slots = asyncio.Semaphore(_BATCH)
        self._root = None if settings.root is None else MediaRoot(settings.root)
        self.pool = SubprocessPool(
            [*(command or [sys.executable, "-m", "guerdon.serve.decode"]), settings.model_dump_json(exclude={"root"})],
            workers=settings.workers,
            start_seconds=_START_SECONDS,
            description="decoding process",
            pass_files=True,
            environment=plain_environment() | _QUIET,
        )
        self._waiting, self._held, self._lock = 0, 0, threading.RLock()
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="decode")

    async def upload(self, blob: bytes, *, nframes: int | None = None, encoded: bool = False) -> ByteArray:
        """Frames of an MP4 or NPY file or a single picture, depending on its first bytes.

        Args:
            blob: the file.
            nframes: of a video, the most frames taken, evenly spaced; NPY and pictures are taken whole.
            encoded: the blob is base64 text or a data URL, which the decoding process decodes too.

        Raises:
            MediaRefused: over a limit, of another type, or corrupt.
            Busy: too many wait.
        """
        if not encoded and sniff(blob[:12]) is None:
            raise MediaRefused("bad_media", not_read(blob[:12]))
        return await self._blobs({"kind": "file", "nframes": nframes}, [blob], encoded=encoded)

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
            MediaRefused: `no_such_video`, with the same message whatever the cause; `no_media_root`: no file is ever
                opened; or the file cannot be decoded.
            Busy: too many wait.
        """
        return await self._run(lambda: self._path(name, nframes))

    def close(self) -> None:
        """End all processes; unfinished requests are refused."""
        self.pool.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _blobs(self, request: dict[str, Any], blobs: Sequence[bytes], *, encoded: bool) -> ByteArray:
        sizes = [len(blob) for blob in blobs]
        most = self.limits.max_file_bytes
        # Base64 with line breaks is at most 1.4 times as long; the worker checks the decoded size.
        if sum(sizes) > (1.4 * most + 256 if encoded else most):
            raise MediaRefused("bad_media", f"more than {most} bytes")

        def work() -> ByteArray:
            with _unnamed() as given:
                for blob in blobs:
                    given.write(blob)
                return self._decode({**request, "sizes": sizes, "encoded": encoded}, given)

        return await self._run(work)

    async def _run(self, work: Callable[[], ByteArray]) -> ByteArray:
        if self._waiting >= _WAITING + self.pool.workers:
            raise Busy(f"{_WAITING} requests wait for a decoder already")
        if self._held > _HELD * self.limits.max_decoded_bytes:
            raise Busy("decoded frames of other requests fill the memory")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1

    def _path(self, name: str, nframes: int | None) -> ByteArray:
        if self._root is None:
            raise MediaRefused(
                "no_media_root",
                "this server opens no files: start it with --media-root FOLDER, the folder that clients write their "
                "videos to, or send the video itself",
                param="video_path",
            )
        with self._root.open(name, suffixes=(".mp4",), most_bytes=self.limits.max_file_bytes) as file:
            if sniff(file.read(12)) != "mp4":
                raise _no_such_video()
            return self._decode({"kind": "file", "nframes": nframes, "encoded": False}, file)

    def _decode(self, request: dict[str, Any], given: BinaryIO) -> ByteArray:
        """Decode it in a process.

        Raises:
            MediaRefused: it failed, or was not done in time.
            NotReady: the server is shutting down.
        """
        seconds = self.limits.decode_timeout_s
        with _unnamed() as target:

            def files() -> tuple[int, int]:
                given.seek(0)
                target.seek(0)
                target.truncate()
                return given.fileno(), target.fileno()

            try:
                reply = self.pool.request(request, seconds, files=files)
            except WorkerTimeoutError as error:
                raise MediaRefused("decode_timeout", f"not decoded within {seconds:g} s") from error
            except WorkerDiedError as error:
                raise MediaRefused("decoder_died", "the decoding process died of it twice") from error
            except PoolClosedError as error:
                raise NotReady("the server is shutting down") from error
            if "refused" in reply:
                raise MediaRefused("bad_media", str(reply["refused"]))
            return self._frames(reply, target)

    def _frames(self, reply: dict[str, Any], target: BinaryIO) -> ByteArray:
        shape = reply.get("shape")
        size = target.seek(0, os.SEEK_END)
        if not isinstance(shape, list) or len(shape) != 4 or shape[-1] != 3 or int(np.prod(shape)) != size:
            raise MediaRefused("decoder_died", "the decoding process gave a wrong reply")
        target.seek(0)
        flat = np.fromfile(target, np.uint8, size)
        self._hold(size)
        weakref.finalize(flat, self._hold, -size)  # views of it keep it
        return flat.reshape(shape)

    def _hold(self, size: int) -> None:
        with self._lock:
            self._held += size


def _unnamed() -> BinaryIO:
    """A file without a name: in memory if the system supports it, else on disk."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("guerdon-media", os.MFD_CLOEXEC), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
