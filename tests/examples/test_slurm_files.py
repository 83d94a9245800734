"""The batch files of examples/slurm: no fault of shell, accepted by Slurm's own controller, and what their loops do."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "slurm").glob("*.sbatch"))
CONF = """
ClusterName=check
SlurmctldHost=localhost
SlurmUser={user}
AuthType=auth/none
CredType=cred/none
CryptoType=crypto/none
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/pid
SlurmctldPort={port}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=600
NodeName=gpu[1-2] CPUs=192 RealMemory=2000000 Gres=gpu:8 State=CLOUD
PartitionName=main Nodes=gpu[1-2] Default=YES MaxTime=INFINITE State=UP
"""  # two machines of eight GPUs that are switched off until a job needs them


def test_there_is_a_file_for_each_way():
    assert [path.stem for path in FILES] == ["ray", "served", "torchrun"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shellcheck_finds_nothing(path):
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck")
    done = subprocess.run(["shellcheck", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def sbatch(tmp_path):
    """`sbatch --test-only` against a controller of its own."""
    controller = shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin")
    if controller is None or shutil.which("sbatch") is None:
        pytest.skip("needs Slurm (slurm-wlm)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf, log = tmp_path / "slurm.conf", tmp_path / "log"
    conf.write_text(CONF.format(user=getpass.getuser(), folder=tmp_path, port=port))
    (tmp_path / "gres.conf").write_text("")
    given = {**os.environ, "SLURM_CONF": str(conf)}
    with log.open("w") as output:
        process = subprocess.Popen([controller, "-D", "-f", conf], env=given, stdout=output, stderr=output)

    def ask(*words):
        return subprocess.run(
            ["sbatch", "--test-only", *words], env=given, capture_output=True, text=True, check=False, timeout=100
        )

    try:
        deadline = time.monotonic() + 60
        while subprocess.run(["sinfo"], env=given, capture_output=True, check=False, timeout=100).returncode:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
        yield ask
    finally:
        process.terminate()
        process.wait(60)


def test_slurm_takes_every_file(sbatch):
    for path in FILES:
        done = sbatch(path, "study.yaml")
        assert done.returncode == 0, done.stderr
        assert "using 96 processors on nodes gpu" in done.stderr
    two = sbatch("--nodes=2", FILES[-1], "study.yaml")
    assert "on nodes gpu[1-2]" in two.stderr
    assert sbatch("--gpus-per-node=9", FILES[-1], "study.yaml").returncode == 1, "machines have eight"


@pytest.fixture
def batch(tmp_path):
    """Run a batch file with programs in place of Slurm's, torchrun, guerdon and curl, which write down their words."""
    programs = tmp_path / "bin"
    programs.mkdir()
    said = tmp_path / "said"

    def program(name, then="exit 0"):
        path = programs / name
        path.write_text(f'#!/bin/bash\necho "{name} $CUDA_VISIBLE_DEVICES $*" >> {said}\n{then}\n')
        path.chmod(0o755)

    program("scontrol", "echo gpu1; echo gpu2")
    program("srun", 'while [[ $1 == -* ]]; do shift; done; exec "$@"')
    program("curl")
    program("guerdon", "[[ $1 == serve ]] && exec sleep 100; exit 0")
    program("ray", "[[ $1 == start ]] && exit 0; exit 0")

    def run(name, *words, **variables):
        given = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_JOB_ID": "7",
                 "SLURM_JOB_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "", **variables}  # fmt: skip
        path = ROOT / "examples" / "slurm" / f"{name}.sbatch"
        done = subprocess.run(
            ["bash", path, *words], env=given, capture_output=True, text=True, check=False, timeout=60
        )
        return done, said.read_text().splitlines() if said.exists() else []

    run.program = program
    return run


def fails(times, tmp_path):
    """What torchrun does: it fails so many times, then succeeds."""
    count = tmp_path / "count"
    return f"n=$(cat {count} 2>/dev/null || echo 0); echo $((n + 1)) > {count}; [[ $n -ge {times} ]] || exit 1"


@pytest.mark.parametrize("name", ["torchrun", "served"])
def test_a_run_that_ends_before_its_time_is_started_again(name, batch, tmp_path):
    batch.program("torchrun", fails(2, tmp_path))
    done, said = batch(name, "study.yaml")
    started = [line for line in said if line.startswith("torchrun ")]
    assert (done.returncode, len(started)) == (0, 3), done.stderr
    assert all("-m guerdon run study.yaml" in line and line.endswith("--resume") for line in started)


@pytest.mark.parametrize("name", ["torchrun", "served"])
def test_attempts_are_limited(name, batch, tmp_path):
    batch.program("torchrun", fails(100, tmp_path))
    done, said = batch(name, "study.yaml", ATTEMPTS="2")
    assert done.returncode == 1
    assert "the run did not end in 2 attempts: study.yaml" in done.stderr
    assert sum(line.startswith("torchrun ") for line in said) == 2


def test_torchrun_gets_the_nodes_and_the_overrides(batch):
    batch.program("torchrun")
    _, said = batch("torchrun", "study.yaml", "runner.seed=1")
    (line,) = [line for line in said if line.startswith("torchrun ")]
    assert "--nnodes 2 --nproc-per-node 8" in line
    assert "--rdzv-endpoint gpu1:29500 --rdzv-id 7.1" in line
    assert line.endswith("-m guerdon run study.yaml runner.seed=1 --resume")


def test_the_server_has_a_gpu_of_its_own_and_ends_with_the_job(batch):
    batch.program("torchrun")
    done, said = batch("served", "study.yaml", "--model", "prm=/models/prm")
    assert done.returncode == 0
    assert "guerdon 7 serve --model prm=/models/prm --port 18080" in said
    assert [line.split()[1] for line in said if line.startswith("torchrun")] == ["0,1,2,3,4,5,6"]


def test_a_server_that_ends_before_it_is_ready_ends_the_job(batch):
    batch.program("guerdon", "exit 2")
    batch.program("curl", "exit 7")
    batch.program("sleep")
    done, _ = batch("served", "study.yaml")
    assert done.returncode == 1
    assert "the reward server ended before it was ready" in done.stderr


def test_ray_has_all_gpus_but_the_first_learners(batch):
    done, said = batch("ray", "study.yaml", "engine=ray")
    assert done.returncode == 0, done.stderr
    assert "ray 1,2,3,4,5,6,7 start --head --port=6379 --num-gpus=7 --block" in said
    assert "guerdon 0 run study.yaml engine=ray cluster.address=gpu1:6379 --resume" in said


@pytest.mark.parametrize("name", ["torchrun", "served", "ray"])
def test_a_missing_study_is_said(name, batch):
    done, _ = batch(name)
    assert done.returncode != 0
    assert "the study file is missing" in done.stderr
