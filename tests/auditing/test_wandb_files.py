"""Files of Weights & Biases: one that wandb 0.31 wrote offline, and others in the same form, whole, cut and damaged."""

import json
import math
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.auditing.logs import read_log
from guerdon.auditing.runs import runs_in
from guerdon.auditing.wandb_files import wandb_rows
from guerdon.errors import DataError

REAL = Path(__file__).parent / "data" / "wandb" / "offline-run-20261130_221153-u8g69isd" / "run-u8g69isd.wandb"
HEAD = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
BLOCK = 32_768


def varint(value):
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def field(number, value):
    """A field of a message that is a text or a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def history(step, values):
    """A record of a call of `wandb.log`, with a number of its own in front, as wandb has it."""
    items = [field(1, field(1, name.encode()) + field(16, value.encode())) for name, value in values.items()]
    return varint(1 << 3) + varint(300) + field(2, b"".join(items) + field(2, varint(1 << 3) + varint(step)))


def log_of(records):
    """A file with some records, cut into pieces at the ends of blocks."""
    made = HEAD
    for record in records:
        kind, rest = "first", record
        while kind != "done":
            left = BLOCK - len(made) % BLOCK
            if left < 7:
                made += bytes(left)
                continue
            piece, rest = rest[: left - 7], rest[left - 7 :]
            number = {("first", False): 1, ("first", True): 2, ("more", True): 3, ("more", False): 4}[kind, bool(rest)]
            made += struct.pack("<IHB", zlib.crc32(bytes([number]) + piece), len(piece), number) + piece
            kind = "more" if rest else "done"
    return made


def test_a_file_that_wandb_wrote():
    rows = [*wandb_rows(REAL)]
    assert [step for step, _ in rows] == [10, 20, 30, 40, 50]
    assert [numbers["critic/score/mean"] for _, numbers in rows] == [0.125, 0.25, 0.375, 0.5, 0.625]
    assert [numbers["nested.a.b"] for _, numbers in rows] == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal([numbers["bad"] for _, numbers in rows], [1, math.nan, math.inf, 1, 1])
    assert not {"text", "flag", "list", "_step"} & rows[0][1].keys()
    steps, values = read_log(REAL.parent).curves["critic/score/mean"]
    assert (steps.tolist(), values.tolist()) == ([10, 20, 30, 40, 50], [0.125, 0.25, 0.375, 0.5, 0.625])


@given(sizes=st.lists(st.integers(0, 3 * BLOCK), max_size=5), front=st.integers(BLOCK - 60, BLOCK - 1))
def test_records_are_found_wherever_blocks_end(sizes, front, tmp_path_factory):
    path = tmp_path_factory.mktemp("wandb") / "run-a.wandb"
    values = [{"x": str(number), "text": json.dumps("a" * size)} for number, size in enumerate([front, *sizes])]
    path.write_bytes(log_of([history(number, one) for number, one in enumerate(values)]))
    assert [*wandb_rows(path)] == [(number, {"x": number}) for number in range(len(values))]


def test_a_run_that_was_killed_has_its_steps_before(tmp_path):
    path = tmp_path / "run-a.wandb"
    whole = log_of([history(step, {"reward": str(step / 8), "text": json.dumps("a" * 20)}) for step in range(4)])
    found = set()
    for end in range(len(HEAD), len(whole) + 1):
        path.write_bytes(whole[:end])
        rows = [*wandb_rows(path)]
        assert rows == [(step, {"reward": step / 8}) for step in range(len(rows))]
        found.add(len(rows))
    assert found == {0, 1, 2, 3, 4}


@given(changes=st.lists(st.tuples(st.integers(0, 2765), st.integers(0, 255)), min_size=1, max_size=8))
def test_damage_is_an_error_or_leaves_numbers(changes, tmp_path_factory):
    path = tmp_path_factory.mktemp("wandb") / "run-a.wandb"
    damaged = bytearray(REAL.read_bytes())
    for at, byte in changes:
        damaged[at] = byte
    path.write_bytes(bytes(damaged))
    rows = []
    with suppress(DataError):
        rows = [*wandb_rows(path)]
    assert all(isinstance(value, float) for _, numbers in rows for value in numbers.values())


def test_another_file_of_that_name_is_refused(tmp_path):
    path = tmp_path / "run-a.wandb"
    for content in (b"", b":W&B", HEAD[:-1] + b"\1", b"step:1 - a/b:1\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not a file of Weights & Biases"):
            read_log(path)


def test_the_runs_of_a_folder_are_told_apart(tmp_path):
    for name in ("run-a", "run-b"):
        (tmp_path / name / "files").mkdir(parents=True)
        (tmp_path / name / "files" / "config.yaml").write_text("lr: {value: 1}\n")
        (tmp_path / name / f"{name}.wandb").write_bytes(log_of([history(1, {"reward": "0.5"})]))
    assert list(runs_in(tmp_path)) == ["run-a", "run-b"]
    assert read_log(tmp_path / "run-a").curves["reward"][1].tolist() == [0.5]
