"""torchrun loses one of its processes: one line says so, and the same command goes on from the last checkpoint."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_run_together import RUN_KILLED, file_of
from torch.distributed.fsdp import FSDPModule

from child import environment
from guerdon.rl.run import run, run_folder
from learners import TESTS, assert_alike
from text_rl import letter_study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def torchrun(*words):
    """`torchrun --nproc-per-node 2 WORDS...`."""
    if not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip("several processes need torch 2.13 or newer")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, words)]
    given = environment(TESTS, TESTS / "rl", TESTS / "train", TESTS / "policies", OMP_NUM_THREADS="1")
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=900)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_costs_the_time_since_the_last_checkpoint(rank, tmp_path):
    alone, together = (letter_study(tmp_path, name=name) for name in ("alone", "together"))
    run(alone)
    file = file_of(together, tmp_path)
    done = torchrun(RUN_KILLED, rank, 3, "run", file)
    assert done.returncode == 1
    ours = [line for line in done.stderr.splitlines() if "a process that trains with this one has ended" in line]
    assert len(ours) == 1, done.stderr[-4000:]
    assert "Start all of them again with --resume" in ours[0]
    assert list((run_folder(together) / "checkpoints").glob("step_*")), "the run had one"
    again = torchrun("-m", "guerdon", "run", file, "--resume")
    assert again.returncode == 0, again.stderr[-4000:]
    assert "resumed from" in again.stderr
    assert_alike(alone, together)
    assert json.loads(Path(run_folder(together) / "COMPLETE").read_text())["step"] == together.runner.total_steps
