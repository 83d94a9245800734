"""Files made to fill the memory: each is read in a process whose largest memory is measured."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from guerdon.auditing.logs import read_log
from guerdon.episodes.data_files import DataFiles
from guerdon.episodes.read import read_episodes
from guerdon.errors import DataError
from guerdon.evaluation.scoring.score_file import score_file

GIGABYTE = 1_000_000_000
ROW = {"prompt": "p", "response": "r", "reward": 1.0}
CELL = "a cell longer than 16 MiB"


# a process starts with the largest memory of the one that started it, so a small one stands between
MEASURE = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, *sys.argv[1:]])
_, status, used = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024)
"""


def measured(arguments):
    """What a command wrote, its exit status, and the most memory that it took, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    *written, numbers = done.stdout.splitlines(keepends=True)
    status, memory = map(int, numbers.split())
    return "".join(written), status, memory


def read_in_a_process(how, files):
    """What each file gave, and the most memory that reading them all took."""
    written, status, memory = measured([str(Path(__file__).with_name("hostile.py")), how, *map(str, files)])
    assert status == 0, written
    return {found.pop("file"): found for found in map(json.loads, written.splitlines())}, memory


def sample(k):
    said = [{"role": "user", "content": f"q{k}"}, {"role": "assistant", "content": f"a{k}"}]
    scores = {"match": {"value": float(k % 2)}}
    return json.dumps({"id": k, "epoch": 1, "input": f"q{k}", "target": "7", "messages": said, "scores": scores})


def eval_log(path, other=None, count=30):
    """A log of inspect_ai, in which `other` writes one sample."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        out.writestr("header.json", "{}")
        for k in range(count):
            if k == 7 and other is not None:
                with out.open(f"samples/{k}_epoch_1.json", "w") as file:
                    other(file)
            else:
                out.writestr(f"samples/{k}_epoch_1.json", sample(k))
    return path


def lie(path):
    """Let the directory say that the largest member has 1000 bytes."""
    with zipfile.ZipFile(path) as archive:
        size = max(info.file_size for info in archive.infolist())
    data = path.read_bytes()
    path.write_bytes(data.replace(size.to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    return path


def megabytes(count):
    def write(file):
        for _ in range(count):
            file.write(b" " * 1_000_000)

    return write


def named(values, numbers):
    """A column that names the same texts again and again, as a column of texts."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(values))


def parquet(path, columns, **how):
    count = len(next(iter(columns.values())))
    rest = {name: [value] * count for name, value in ROW.items() if name not in columns}
    pq.write_table(pa.table({**columns, **rest}), path, compression="zstd", store_schema=False, **how)
    return path


LONG = "x" * 60_000_000


def archives(folder):
    """Logs of inspect_ai and what an audit should say of them."""
    yield eval_log(folder / "bomb.eval", megabytes(600)), {"rows": 29, "bad": {"longer than 64 MiB": 1}}
    yield lie(eval_log(folder / "lie.eval", megabytes(600))), {"rows": 29, "bad": {"longer than 64 MiB": 1}}


def parquets(folder):
    """Parquet files, each of some kilobytes, and what an audit should say of them."""
    yield parquet(folder / "cells.parquet", {"prompt": named([LONG], [0] * 1000)}), f"no row could be read: 1000 {CELL}"
    one = named(["p", LONG], [0] * 999 + [1])
    yield parquet(folder / "cell.parquet", {"prompt": one}), {"rows": 999, "bad": {CELL: 1}}
    lists = pa.ListArray.from_arrays(pa.array([0, 1000, 1001], pa.int32()), named([LONG, "p"], [0] * 1000 + [1]))
    yield parquet(folder / "list.parquet", {"prompt": lists}), {"rows": 1, "bad": {CELL: 1}}
    plain = {"use_dictionary": False, "write_batch_size": 1}
    pages = parquet(folder / "pages.parquet", {"prompt": [LONG] * 10 + ["p"]}, **plain)
    yield pages, {"rows": 1, "bad": {CELL: 10}}
    under = parquet(folder / "under.parquet", {"prompt": named(["y" * 16_000_000], [0] * 1000)})
    yield under, "bytes and unpacks to more than 4096 MiB, the limit for a file of this size; split it"
    turns = [[{"role": "user", "content": "c" * 1_000_000}] * 650]
    yield parquet(folder / "turns.parquet", {"prompt": turns}, **plain), "row group 0: to read a row may take"
    numbers = pa.array(np.zeros(30_000_000, np.float32))
    many = pa.ListArray.from_arrays(pa.array([0, len(numbers)], pa.int32()), numbers)
    yield parquet(folder / "numbers.parquet", {"token_rewards": many}), "fewer rows in a row group (pyarrow: row_group"
    prefixes = {"column_encoding": {"prompt": "DELTA_BYTE_ARRAY"}, "use_dictionary": ["response"]}
    shared = parquet(folder / "prefixes.parquet", {"prompt": ["z" * 10_000_000] * 40}, **prefixes)
    yield shared, {"rows": 40, "bad": {}}


def texts(folder):
    """JSON and tables, and what an audit should say of them."""
    line = json.dumps(ROW).encode() + b"\n"
    long = folder / "long.jsonl"
    with long.open("wb") as file:
        file.write(line * 30)
        file.seek(2_000_000_000, os.SEEK_CUR)  # of zeros, which take no place on the disk
        file.write(b"\n" + line)
    yield long, {"rows": 31, "bad": {"longer than 64 MiB": 1}}
    values = folder / "values.jsonl"
    values.write_bytes(line + b'{"prompt": [' + b"[]," * 20_000_000 + b"[]]}\n" + line)
    yield values, {"rows": 2, "bad": {"more than 3,000,000 values": 1}}
    deep = folder / "deep.jsonl"
    deep.write_bytes(line + b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n" + line)
    yield deep, {"rows": 2, "bad": {"nested deeper than 200 levels": 1}}
    whole = folder / "deep.json"
    whole.write_bytes(b"[" * 100_000 + b"]" * 100_000)
    yield whole, "deep.json: nested deeper than 200 levels"
    large = folder / "large.json"
    with large.open("wb") as file:
        file.write(b"[")
        file.truncate(2_000_000_000)
    yield large, "a .json file of more than 128 MiB would be read whole; write one row per line (.jsonl)"
    for name, cell in (("cell.csv", b"x" * 300_000_000), ("lines.csv", b'"' + (b"x" * 98 + b"\n,") * 1_000_000 + b'"')):
        table = folder / name
        table.write_bytes(b"prompt,response,reward\np,r,1\np," + cell + b",0\np,r,1\n")
        why = CELL if name == "lines.csv" else "longer than 33,554,432 characters"
        yield table, {"rows": 2, "bad": {why: 1}}
    columns = folder / "columns.csv"
    columns.write_text(",".join(["prompt", "reward", *(f"c{k}" for k in range(10_000))]) + "\n" + "1," * 10_001 + "1\n")
    yield columns, "it has 10,002 columns, and at most 4,096 are read; keep those you need"
    keys = folder / "keys.jsonl"
    keys.write_bytes(line + json.dumps({**ROW, **{f"c{k}": 1 for k in range(10_000)}}).encode() + b"\n")
    yield keys, {"rows": 1, "bad": {"too many keys": 1}}
    wide = folder / "columns.parquet"
    pq.write_table(pa.table({**{k: [v] for k, v in ROW.items()}, **{f"c{k}": [1.0] for k in range(10_000)}}), wide)
    yield wide, "it has 10,003 columns, and at most 4,096 are read; keep those you need"


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in (parquets, texts)]


@pytest.mark.parametrize("kind", [archives, *SLOW], ids=lambda kind: kind.__name__)
def test_an_audit_of_a_hostile_file_takes_less_than_a_gigabyte(tmp_path, kind):
    wanted = dict(kind(tmp_path))
    found, memory = read_in_a_process("audited", wanted)
    for path, expected in wanted.items():
        if isinstance(expected, str):
            assert expected in found[path.name].get("error", found[path.name])
            assert "\n" not in found[path.name]["error"]
        else:
            assert found[path.name] == expected, path.name
    assert memory < GIGABYTE


@pytest.mark.slow
def test_rows_that_are_kept_take_less_than_a_gigabyte(tmp_path):
    files = [
        parquet(tmp_path / "under.parquet", {"prompt": named(["y" * 16_000_000], [0] * 1000)}),
        parquet(tmp_path / "cell.parquet", {"prompt": named([LONG], [0] * 1000)}),
    ]
    found, memory = read_in_a_process("kept", files)
    assert (
        "bytes and unpacks to more than 512 MiB, the limit for a file of this size" in found["under.parquet"]["error"]
    )
    assert found["cell.parquet"]["error"].endswith(f"cell.parquet: row 0: {CELL}")
    assert memory < GIGABYTE


@pytest.mark.slow
def test_the_command_says_which_rows_are_left_out(tmp_path):
    log = eval_log(tmp_path / "log.eval", megabytes(300))
    page = tmp_path / "page.html"
    written, status, memory = measured(["-m", "guerdon", "audit", str(log), "--output", str(page)])
    assert status == 0, written
    assert "1 longer than 64 MiB" in page.read_text()
    assert memory < GIGABYTE


# Samples of inspect_ai.


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (sample(7)[:-20].encode(), "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1, 2]", "not a map of columns"),
        (b'{"id": 7, "messages": 5}', "a row that is not like a log of inspect_ai"),
        (b"[" * 1000 + b"]" * 1000, "nested deeper than 200 levels"),
    ],
    ids=["cut", "empty", "no text", "a list", "no messages", "deep"],
)
def test_one_bad_sample_of_thirty_is_one_row_left_out(tmp_path, content, why):
    rows = read_log(eval_log(tmp_path / "log.eval", lambda file: file.write(content)))
    assert (len(rows), rows.bad, rows.layout) == (29, {why: 1}, "a log of inspect_ai")
    assert set(rows.texts.responses) == {f"a{k}" for k in range(30) if k != 7}


@pytest.mark.parametrize("which", [0, 7, 29])
def test_a_sample_whose_bytes_are_damaged_is_one_row_left_out(tmp_path, which):
    path = eval_log(tmp_path / "log.eval")
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"samples/{which}_epoch_1.json")
    data = bytearray(path.read_bytes())
    at = info.header_offset + 30 + len(info.filename)
    data[at + 20 : at + 40] = bytes(20)
    path.write_bytes(data)
    rows = read_log(path)
    assert (len(rows), rows.bad) == (29, {"damaged": 1})


def test_names_that_lead_out_are_left_out(tmp_path):
    path = eval_log(tmp_path / "log.eval")
    with zipfile.ZipFile(path, "a") as out:
        out.writestr("samples/../../evil.json", sample(30))
    rows = read_log(path)
    assert (len(rows), rows.bad) == (30, {"a name that leads out of the archive": 1})
    with pytest.raises(DataError, match=r"evil\.json: a name that leads out of the archive"):
        score_file(path, None, tmp_path / "out.eval", name="m")
    assert list(tmp_path.iterdir()) == [path]


def test_members_that_are_no_samples_are_not_unpacked(tmp_path):
    path = eval_log(tmp_path / "log.eval")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_BZIP2) as out:
        out.writestr("summaries.json", "{")
    rows = read_log(path)
    assert (len(rows), rows.bad) == (30, {})


# LeRobot data sets.


def data_set(folder, columns):
    (folder / "meta").mkdir(parents=True)
    shapes = {"next.reward": [1], "observation.state": [2], "index": [1]}
    features = {name: {"dtype": "float32", "shape": shape} for name, shape in shapes.items()}
    info = {"codebase_version": "v3.0", "fps": 10, "features": features}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    (folder / "data").mkdir()
    pq.write_table(pa.table(columns), folder / "data" / "file-000.parquet", compression="zstd", store_schema=False)
    return folder


@pytest.mark.slow
def test_a_data_set_whose_numbers_unpack_to_too_much(tmp_path):
    count = 70_000_000
    zeros, states = pa.array(np.zeros(count, np.int32)), pa.array(np.zeros(2, np.float32))
    one = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), states)
    folder = data_set(tmp_path / "data", {"episode_index": zeros, "frame_index": zeros, "next.reward": zeros})
    with pytest.raises(DataError, match="unpacks to more than 512 MiB"):
        DataFiles(folder).numbers_of(folder / "data" / "file-000.parquet", ["episode_index", "frame_index"])
    with pytest.raises(DataError, match=r"no row could be read: file-000.parquet cannot be read"):
        read_log(folder)
    small = data_set(tmp_path / "small", {"episode_index": [0], "next.reward": [1.0], "observation.state": one})
    found = DataFiles(small).numbers_of(small / "data" / "file-000.parquet", ["observation.state"])
    assert found["observation.state"].tolist() == [[0, 0]]


def test_a_description_of_a_data_set_that_is_nested_or_too_large(tmp_path):
    (tmp_path / "meta").mkdir()
    info = tmp_path / "meta" / "info.json"
    info.write_bytes(b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(DataError, match=r"info\.json cannot be read \(.*nested deeper than 200 levels.*; restore it"):
        list(read_episodes(tmp_path))
    with info.open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(DataError, match=r"info\.json cannot be read \(.*more than 128 MiB"):
        list(read_episodes(tmp_path))


# What must still be read.


@pytest.mark.slow
def test_a_log_of_long_texts_is_read_whole(tmp_path):
    path = tmp_path / "log.parquet"
    long = [f"{k} " * 40_000 for k in range(8)]  # some 100 kB each
    schema = pa.schema({"prompt": pa.string(), "response": pa.string(), "reward": pa.float64()})
    with pq.ParquetWriter(path, schema) as out:
        for start in range(0, 30_000, 5000):
            rows = range(start, start + 5000)
            columns = {"prompt": [f"p{k // 8}" for k in rows], "response": [long[k % 8] for k in rows]}
            out.write_table(pa.table({**columns, "reward": [float(k % 8) for k in rows]}, schema))
    found, memory = read_in_a_process("audited", [path])
    assert found == {"log.parquet": {"rows": 30_000, "bad": {}}}
    assert memory < GIGABYTE


@pytest.mark.slow
def test_conversations_of_long_texts_are_read_whole(tmp_path):
    said = [[{"role": "user", "content": f"{k} " * 30_000}, {"role": "assistant", "content": f"{k} " * 20_000}]
            for k in range(2000)]  # fmt: skip
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"messages": said, "reward": [1.0] * 2000}), path)
    found, memory = read_in_a_process("audited", [path])
    assert found == {"log.parquet": {"rows": 2000, "bad": {}}}
    assert memory < GIGABYTE
