"""Files made to do harm, as a command meets them: one line and a gigabyte at most, and it ends.

The limit of processor time is several times what an idle machine needs (10 s), so that no test depends on other work.
"""

import gzip
import os
import resource
import subprocess
import sys
import zipfile

import pytest

PIECE = bytes(1 << 24)


def zeros_gz(path):
    path.write_bytes(gzip.compress(PIECE, compresslevel=9) * 640)


def zeros_zip(path):
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out,
        out.open("rows.jsonl", "w", force_zip64=True) as member,
    ):
        for _ in range(640):
            member.write(PIECE)


def wide(path):
    path.write_text(",".join(f"c{k}" for k in range(10_000)) + "\n" + "\n".join([",".join("x" * 10_000)] * 20) + "\n")


def deep(path):
    path.write_bytes(b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")


def elsewhere(path):
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("../rows.jsonl", b'{"prompt": "p", "response": "r", "reward": 1}\n')


FILES = {"zeros.jsonl.gz": zeros_gz, "zeros.zip": zeros_zip, "wide.csv": wide, "deep.jsonl": deep, "deep.json": deep,
         "elsewhere.zip": elsewhere}  # fmt: skip


def limited():
    resource.setrlimit(resource.RLIMIT_CPU, (60, 62))


@pytest.mark.slow
@pytest.mark.hostile("files")
@pytest.mark.parametrize("name", FILES)
def test_a_command_ends_with_one_line(tmp_path, name):
    FILES[name](tmp_path / name)
    program = ["sh", "-c", f"{sys.executable} -m guerdon audit {name}; exit $?"]  # a new process, with no memory of ours
    paths = os.pathsep.join(filter(None, sys.path))
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            program, cwd=tmp_path, stdout=said, stderr=said, env={**os.environ, "PYTHONPATH": paths}, preexec_fn=limited
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    said = (tmp_path / "said").read_text().splitlines()
    lines = [line for line in said if not line.startswith("audit, ")]  # but for signs of life
    assert (process.returncode, len(lines)) == (2, 1), lines[-3:]
    assert lines[0].startswith("guerdon: ")
    assert used.ru_maxrss * 1024 < 1 << 30
    assert not (tmp_path.parent / "rows.jsonl").exists()
