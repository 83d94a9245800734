"""Processes that train together: what torchrun would start, on this machine, without its agent."""

import socket
import subprocess
import sys
from pathlib import Path

from child import environment

TESTS = Path(__file__).parent
LIMIT = 240  # seconds


def start_together(*arguments, count=2, **variables):
    """`python ARGUMENTS...` in so many processes of one group; the first one first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    given |= {"OMP_NUM_THREADS": "1", **variables}
    folders = (TESTS, TESTS / "rl", TESTS / "train")
    return [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=environment(*folders, RANK=str(rank), LOCAL_RANK=str(rank), **given),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]


def finished(processes):
    """Exit status and output of every process; all are ended."""
    try:
        outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


def run_together(*arguments, count=2, **variables):
    """Run to the end, which all processes must reach; the output of each."""
    found = finished(start_together(*arguments, count=count, **variables))
    assert [status for status, _ in found] == [0] * count, "\n\n".join(output[-3000:] for _, output in found)
    return [output for _, output in found]
