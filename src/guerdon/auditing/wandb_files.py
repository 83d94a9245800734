"""Scalars in files `run-*.wandb`, which Weights & Biases writes on the machine of a run, and cannot read in Python.

    for step, numbers in wandb_rows(Path("wandb/run-20250302_114336-m950nfkl/run-m950nfkl.wandb")):
        numbers["critic/score/mean"]

A file is a log as LevelDB has it (github.com/google/leveldb, doc/log_format.md): blocks of 32 KiB with pieces of
records, each behind 7 bytes. A record is a message `Record` of wandb_internal.proto, of which `history` is read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from guerdon.errors import DataError
from guerdon.files.bounds import RECORD, TooLarge, Unparsed, json_of, too_long

WANDB = ".wandb"
_FILE_HEAD: Final = struct.Struct("<4sHB")  # name, number and version of the format
_FORMAT = (b":W&B", 0xBEE1, 0)
_BLOCK = 1 << 15
_PIECE_HEAD: Final = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4  # kinds of pieces
_HISTORY, _ITEM, _STEP, _NUMBER = 2, 1, 2, 1  # fields of Record, HistoryRecord and HistoryStep
_KEY, _NESTED_KEY, _VALUE = 1, 2, 16  # fields of HistoryItem
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # types of fields
_NOT_FINITE = {'"NaN"': math.nan, '"Infinity"': math.inf, '"-Infinity"': -math.inf}


def wandb_rows(file: Path) -> Iterator[tuple[float, dict[str, float]]]:
    """The step and the numbers of each call of `wandb.log`; keys of maps inside have dots between them, as in W&B.

    The end of a run that was killed is left out from the first piece on that is not whole.

    Raises:
        DataError: it is no such file, or a record is damaged.
        TooLarge: a record is longer than `RECORD`.
    """
    with file.open("rb") as opened:
        head = opened.read(_FILE_HEAD.size)
        if len(head) < _FILE_HEAD.size or _FILE_HEAD.unpack(head) != _FORMAT:
            raise DataError("not a file of Weights & Biases, or of an unknown version", where=file)
        for record in _records(opened, file):
            for history in _fields(record, _HISTORY, file):
                yield _row(history, file)


def _records(opened: BinaryIO, file: Path) -> Iterator[bytes]:
    """The records behind the head of a file, each put together from its pieces."""
    pieces: list[bytes] = []
    while True:
        left = _BLOCK - opened.tell() % _BLOCK
        if left < _PIECE_HEAD.size:  # zeros
            opened.seek(left, 1)
            continue
        head = opened.read(_PIECE_HEAD.size)
        if len(head) < _PIECE_HEAD.size:
            return
        _, size, kind = _PIECE_HEAD.unpack(head)
        piece = opened.read(size)
        if len(piece) < size or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
            return
        if kind in (_WHOLE, _FIRST):
            pieces = []
        pieces.append(piece)
        if sum(map(len, pieces)) > RECORD:
            raise TooLarge(f"{file}: a record is {too_long(RECORD)}; remove the file")
        if kind in (_WHOLE, _LAST):
            yield b"".join(pieces)


def _row(history: bytes, file: Path) -> tuple[float, dict[str, float]]:
    """The step and the numbers of a message `HistoryRecord`."""
    numbers: dict[str, float] = {}
    for item in _fields(history, _ITEM, file):
        value = _number(next(_fields(item, _VALUE, file), b""))
        if value is not None:
            keys = [*_fields(item, _NESTED_KEY, file)] or [*_fields(item, _KEY, file)]
            numbers[b".".join(keys).decode("utf-8", "replace")] = value
    steps = [*_fields(history, _STEP, file)]
    counted = float(next(_numbers(steps[0], file), 0)) if steps else math.nan
    return numbers.pop("_step", counted), numbers


def _number(value: bytes) -> float | None:
    """The number that a text of JSON is; None: it is something else."""
    text = value.decode("utf-8", "replace")
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    try:
        found = json_of(value)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
    except (Unparsed, OverflowError):
        return None


def _fields(message: bytes, wanted: int, file: Path) -> Iterator[bytes]:
    """The bytes of each field of a message that has a number and is a text, bytes or a message."""
    for number, kind, found in _all_fields(message, file):
        if number == wanted and kind == _BYTES:
            yield message[found]


def _numbers(message: bytes, file: Path) -> Iterator[int]:
    """The values of the field 1 of a message `HistoryStep`."""
    for number, kind, found in _all_fields(message, file):
        if number == _NUMBER and kind == _VARINT:
            yield _varint(message, found.start, file)[0]


def _all_fields(message: bytes, file: Path) -> Iterator[tuple[int, int, slice]]:
    """Number, type and place of the value of each field, by the wire format of protocol buffers."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at, file)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            end = _varint(message, at, file)[1]
        elif kind == _BYTES:
            size, at = _varint(message, at, file)
            end = at + size
        elif kind in (_FIXED64, _FIXED32):
            end = at + (8 if kind == _FIXED64 else 4)
        else:
            end = len(message) + 1
        if end > len(message):
            raise DataError("a record is damaged", where=file)
        yield number, kind, slice(at, end)
        at = end


def _varint(message: bytes, at: int, file: Path) -> tuple[int, int]:
    """An integer of seven bits in each byte, the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at == len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise DataError("a record is damaged", where=file)
