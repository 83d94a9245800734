"""Runs that are killed with SIGKILL at random moments and resumed end in the same bytes, 20 of 20 of each kind."""

import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import rl_models
import torch
from rl_clock import clock_study
from rl_clock import result as control_result
from text_rl import letter_study, prime
from text_rl import result as text_result

from guerdon.rl.run import run, run_folder

KILLS = 20


def control(folder, name):
    """PPO with a progress model that is refitted."""
    shared = folder / "models"
    if not shared.exists():
        rl_models.write_image_model(shared, "progress")
    model = {
        "model_type": "progress", "checkpoint_path": str(shared / "model"), "update": "after",
        "replay_path": str(shared / "replay"), "update_params": {"steps": 2, "batch_size": 8, "replay_size": 30},
    }  # fmt: skip
    reward = {"use_reward_model": True, "reward_mode": "per_step", "shaping": "relative", "model": model}
    runner = {"total_steps": 600, "checkpoint_every": 48}
    return clock_study(folder, name=name, runner=runner, reward=reward, env={"frame_size": 24})


def text(folder, name):
    """RLOO with PRIME, which learns in use."""
    runner = {"total_steps": 240, "checkpoint_every": 16, "eval_every": 80}
    return letter_study(folder, name=name, runner=runner, reward_model=prime(prime_model={"replay_size": 12}))


def killed_after(study, seconds):
    """Run or resume in a process of its own; SIGKILL it after so long. Whether it was killed."""
    process = multiprocessing.get_context("fork").Process(target=run, args=(study,), kwargs={"resume": True})
    process.start()
    process.join(seconds)
    alive = process.is_alive()
    if alive:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return alive


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("make", "result"), [(control, control_result), (text, text_result)], ids=["control", "text"])
def test_a_run_that_is_killed_at_random_moments_ends_the_same(make, result, tmp_path):
    torch.set_num_threads(1)
    whole = make(tmp_path, "whole")
    started = time.perf_counter()
    assert not killed_after(whole, None)
    seconds = time.perf_counter() - started
    expected = result(whole)
    rng, kills = np.random.default_rng(0), 0
    while kills < KILLS:
        study = make(tmp_path, f"cut{kills}")
        while killed_after(study, rng.uniform(0.1, 0.7) * seconds):
            kills += 1
        assert json.loads((run_folder(study) / "COMPLETE").read_text())["step"] >= study.runner.total_steps
        assert result(study) == expected
