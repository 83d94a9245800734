"""Runs that are killed with SIGKILL at random moments and resumed end in the same bytes, after 20 kills of each kind.

A run is `python -m guerdon run` in a process group of its own. A run is killed and resumed until it comes to its end,
then the next one begins. Moments are drawn over the time that the undisturbed run takes once its parts are loaded; a
run that ended before its moment was not killed.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rl_models
from child import environment
from guerdon.config.loading import to_yaml
from guerdon.rl.run import run_folder
from rl_clock import clock_study
from text_rl import letter_study, prime

pytestmark = pytest.mark.hostile("kills")

HERE = Path(__file__).parent
KILLS = 20


def control(folder, name):
    """PPO with a progress model that is refitted."""
    if not (folder / "models").exists():
        rl_models.write_image_model(folder / "models", "progress")
    model = {
        "model_type": "progress", "checkpoint_path": str(folder / "models/model"), "update": "after",
        "replay_path": str(folder / "models/replay"),
        "update_params": {"steps": 1, "batch_size": 4, "replay_size": 30, "every": 2},
    }  # fmt: skip
    reward = {"use_reward_model": True, "reward_mode": "per_step", "shaping": "relative", "score_every": 4}
    runner = {"total_steps": 320, "checkpoint_every": 48, "eval_every": 160}
    return clock_study(folder, name=name, runner=runner, reward={**reward, "model": model}, env={"frame_size": 24})


def text(folder, name):
    """RLOO with PRIME, which learns in use."""
    runner = {"total_steps": 320, "checkpoint_every": 32, "eval_every": 160}
    return letter_study(folder, name=name, runner=runner, reward_model=prime(prime_model={"replay_size": 12}))


def seconds_until(study, moment=None):
    """Seconds that a run took to its end, resumed from what is there; None if it was killed at a moment before."""
    config = run_folder(study).with_suffix(".yaml")
    config.write_text(to_yaml(study))
    process = subprocess.Popen(
        [sys.executable, "-m", "guerdon", "run", str(config), "--resume"],
        env=environment(HERE, HERE.parent),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    first = process.stdout.readline()  # written once its parts are loaded
    begun = time.perf_counter()
    try:
        process.wait(moment)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    rest, _ = process.communicate()
    if process.returncode == -signal.SIGKILL:
        return None
    assert process.returncode == 0, first + rest
    return time.perf_counter() - begun


def result(study):
    """What a run leaves that holds no times: logs, and the weights of the policy and its reward models, as bytes."""
    folder = run_folder(study)
    files = [folder / f"{name}.jsonl" for name in ("metrics", "episodes", "failures")]
    files += sorted(p for p in folder.rglob("*.safetensors") if "checkpoints" not in p.parts)
    assert {"policy", "reward_models"} <= {p.relative_to(folder).parts[0] for p in files}
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("make", [control, text])
def test_a_run_that_is_killed_at_random_moments_ends_the_same(make, tmp_path):
    whole = make(tmp_path, "whole")
    seconds = seconds_until(whole)
    expected = result(whole)
    rng, kills, runs = np.random.default_rng(0), 0, 0
    while kills < KILLS:
        study = make(tmp_path, f"cut{runs}")
        while seconds_until(study, rng.uniform(0, seconds)) is None:
            kills += 1
        assert result(study) == expected, f"{kills} kills"
        runs += 1
    print(f"{kills} kills in {runs} runs, each of which ended as the undisturbed one did in {seconds:.1f} s")
