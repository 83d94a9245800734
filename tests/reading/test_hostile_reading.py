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


MEASURED = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "guerdon", "audit", sys.argv[1]])
open("peak", "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(done.returncode)
"""
"""A small process between: the peak of a child includes that of its parent when it was started."""


def limited():
    resource.setrlimit(resource.RLIMIT_CPU, (60, 62))


@pytest.mark.slow
@pytest.mark.hostile("files")
@pytest.mark.parametrize("name", FILES)
def test_a_command_ends_with_one_line(tmp_path, name):
    FILES[name](tmp_path / name)
    program = [sys.executable, "-c", MEASURED, name]
    paths = os.pathsep.join(filter(None, sys.path))
    with (tmp_path / "said").open("w") as said:
        done = subprocess.run(
            program, cwd=tmp_path, stdout=said, stderr=said, env={**os.environ, "PYTHONPATH": paths}, preexec_fn=limited
        )
    said = (tmp_path / "said").read_text().splitlines()
    lines = [line for line in said if not line.startswith("audit, ")]  # but for signs of life
    assert (done.returncode, len(lines)) == (2, 1), lines[-3:]
    assert lines[0].startswith("guerdon: ")
    assert int((tmp_path / "peak").read_text()) * 1024 < 1 << 30
    assert not (tmp_path.parent / "rows.jsonl").exists()
