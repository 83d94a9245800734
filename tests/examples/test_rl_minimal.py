"""The loop in one file: short, from pure functions only, and it learns."""

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "studies" / "rl_minimal.py"


def example():
    spec = importlib.util.spec_from_file_location("rl_minimal", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_takes_pure_functions_only():
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 200
    used = {n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and "guerdon" in n.module}
    assert used == {
        "guerdon.rl.advantages",
        "guerdon.rl.losses",
        "guerdon.rewards.shaping",
    }


@pytest.mark.slow
def test_the_policy_learns_the_task_from_the_learned_reward_alone(capsys):
    torch.set_num_threads(1)
    before, after = example().main(iterations=30)
    assert before < 0.2
    assert after > 0.8
    assert capsys.readouterr().out.count("true success") == 3


def test_a_failed_measurement_marks_the_steps_on_both_sides():
    values = np.array([[0.1, np.nan, 0.4, 0.5]])
    shaped, failed = example().rewards_of(values, np.isnan(values))
    assert failed.tolist() == [[True, True, False]]
    np.testing.assert_allclose(shaped[0, 2], 0.1)
