"""Atomic writes of files and folders: a kill at any moment leaves the old bytes or the new ones, never a mixture.

Everything is first written under a temporary name in the same folder, flushed to the disk, then renamed. A sealed
folder has a `COMPLETE` file with the SHA-256 of every other file in it, written last. A lock keeps other processes out
of a folder; it is released when the process ends, however that happens.

    write_json(run / "run.json", {"seed": 0})
    with sealed_folder(run / "checkpoints" / "step_000001000") as temporary:
        save_file(tensors, temporary / "state.safetensors")
    with held(run, busy="another process writes this run"): ...
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.errors import CheckpointError, ConfigError, InUseError, naming
from guerdon.secrets import hide

if TYPE_CHECKING:
    import pyarrow as pa

COMPLETE = "COMPLETE"


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file in one piece; creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with naming(path):
            temporary.write_bytes(data)
        publish(temporary, path)
    except BaseException:  # what ends the process is one, too
        temporary.unlink(missing_ok=True)  # partial files would fill a full disk further
        raise


def publish(temporary: Path, path: Path) -> None:
    """Rename a finished file to its final name, with data and directory entry on the disk.

    Raises:
        OSError: the disk is full or not writable.
    """
    sync(temporary, path)
    os.replace(temporary, path)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text in one piece, without secrets."""
    write_bytes(path, hide(text).encode("utf-8"))


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write an Arrow table as one Parquet file with page checksums, atomically."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_checksum=True)
    write_bytes(path, sink.getvalue())


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON in one piece.

    Raises:
        ValueError: the value holds NaN or an infinity, which JSON cannot say.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def sync(path: Path, name: Path | None = None) -> None:
    """Flush a file or a folder's entries to the disk; `name` is what an error calls it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with naming(name or path):
            os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def sealed_folder(final: Path) -> Iterator[Path]:
    """A new folder to write files into; when the block ends it is sealed and gets its name, as by `seal_folder`.

    What an earlier writer left unfinished is removed first. Where the block raises, an older folder stays, and the new
    one is removed: it would fill a full disk further.
    """
    temporary = final.with_name(f".{final.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        with naming(final):
            yield temporary
            seal_folder(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def seal_folder(temporary: Path, final: Path) -> None:
    """Write the hashes of a finished folder into its `COMPLETE`, flush it and rename it to `final`.

    An older folder of that name is removed, after the new one is safe on the disk.
    """
    files = sorted(p for p in temporary.rglob("*") if p.is_file())
    hashes = {str(p.relative_to(temporary)): sha256(p) for p in files}
    for p in files:
        sync(p)
    write_json(temporary / COMPLETE, hashes)
    final.parent.mkdir(parents=True, exist_ok=True)
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        os.replace(final, old)
    try:
        os.replace(temporary, final)
    except OSError:
        if old.exists():
            os.replace(old, final)
        raise
    sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def verify_folder(folder: Path) -> None:
    """Check a sealed folder against its hashes.

    Raises:
        CheckpointError: it was never sealed, or a file is missing or altered.
    """
    seal = folder / COMPLETE
    if not seal.is_file():
        raise CheckpointError(f"{folder} is incomplete: it has no {COMPLETE} file, so its writer was cut off")
    for name, wanted in json.loads(seal.read_bytes()).items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing; the checkpoint cannot be used")
        if sha256(file) != wanted:
            raise CheckpointError(f"{file} does not have the bytes that were written; the checkpoint is corrupt")


@contextmanager
def held(folder: Path, *, busy: str) -> Iterator[None]:
    """Keep others out of a folder, which is made where it is not there.

    Args:
        folder: receives a file `.lock`.
        busy: what to say where another holds it.

    Raises:
        InUseError: another holds it.
        ConfigError: the disk has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUseError(busy) from error
        except OSError as error:
            raise ConfigError(f"{folder} cannot be locked ({error.strerror}); choose one on another disk") from error
        yield
    finally:
        os.close(lock)
