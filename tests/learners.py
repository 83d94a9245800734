"""Processes that train together: what torchrun would start, on this machine, without its agent."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from torch.distributed.fsdp import FSDPModule

from child import environment
from forked import begun, ended
from guerdon.rl.run import run_folder

TESTS = Path(__file__).parent
LIMIT = 500  # seconds


def variables_of_group(count):
    """The environment variables of each process of one group, as torchrun sets them."""
    if not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip("several processes need torch 2.13 or newer")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    given["OMP_NUM_THREADS"] = "1"
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **given} for rank in range(count)]


def start_together(*arguments, count=2, **variables):
    """`python ARGUMENTS...` in so many processes of one group; the first one first."""
    folders = (TESTS, TESTS / "rl", TESTS / "train", TESTS / "policies")
    return [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=environment(*folders, **{**given, **variables}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for given in variables_of_group(count)
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
    """Run to the end, which all processes must reach; the output of each.

    Commands of guerdon (`-m guerdon ...`) are forks of this process, which has imported what they need.
    """
    if arguments[:2] == ("-m", "guerdon"):
        group = [{**given, **variables} for given in variables_of_group(count)]
        folder = Path(arguments[3]).parent  # of the study
        started = [begun(*arguments[2:], folder=folder, variables=given, patience=LIMIT) for given in group]
        found = [ended(process) for process in started]
    else:
        found = finished(start_together(*arguments, count=count, **variables))
    assert [status for status, _ in found] == [0] * count, "\n\n".join(output[-3000:] for _, output in found)
    return [output for _, output in found]


def numbers(study):
    """Every number that a run left: its metrics, its episodes, and the weights and optimisers of its checkpoints."""
    folder, found = run_folder(study), {}
    for name in ("metrics", "episodes"):
        for i, line in enumerate((folder / f"{name}.jsonl").read_text().splitlines()):
            found |= {f"{name} {i} {k}": v for k, v in json.loads(line).items()}
    for file in folder.rglob("*.safetensors"):
        found |= {f"{file.relative_to(folder)} {k}": v.numpy() for k, v in load_file(file).items()}
    return found


def assert_alike(one, other, *, within=1e-5):
    one, other = numbers(one), numbers(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, str | bool | None | list):
            assert value == other[name], name
        else:
            np.testing.assert_allclose(value, other[name], atol=within, rtol=within, err_msg=name)
