"""The offline example runs from a study file alone, and says what it measured."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "studies" / "offline_prm.py"
STUDY = """
work_dir: {folder}
data:
  type: generated
  task: {{family: chain, steps: 2, ops: "+-"}}
  train_size: 1024
  val_size: 32
  max_response_length: 24
  train_batch_size: 8
  n_samples: 4
  filter_accuracy: false
  filter_truncated: false
sft:
  save_dir: ${{work_dir}}/sft
  policy:
    type: text
    tiny: {{alphabet: "0123456789+-*=?;"}}
  max_steps: 500
  learning_rate: 0.002
  mistakes: {{facts: 0.4}}
  val_split: 0
policy: {{type: text, path: "${{sft.save_dir}}/model"}}
runner: {{total_steps: 32}}
compare:
  baseline: outcome
  tasks: {{chain: {{}}}}
  seeds: [0]
  arms:
    outcome: {{label: outcome}}
    prime:
      label: prime
      config:
        reward_model: {{rm_type: prime, mini_batch_size: 16, micro_batch_size: 16, prime_model: {{update: before}}}}
"""


@pytest.mark.slow
def test_it_prints_a_row_per_seed_and_their_mean(tmp_path):
    study, out = tmp_path / "study.yaml", tmp_path / "numbers.json"
    study.write_text(STUDY.format(folder=tmp_path / "runs"))
    sizes = ["--rollouts", "64", "--epochs", "1", "--questions", "12", "--samples", "4"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(study), "--seeds", "0", "1", "--out", str(out), *sizes],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["seed", "train_accuracy", "first_error_f1"]
    assert [line.split()[0] for line in lines[1:]] == ["0", "1", "mean"]
    rows = json.loads(out.read_text())["rows"]
    for row in rows:
        low, high = row["majority"][0], row["pass"][0]
        assert 0 <= low <= high <= 1  # what any of the samples gets bounds what a vote gets
        difference = row["weighted"][0] - row["majority"][0]
        assert math.isclose(row["weighted_minus_majority"][0], difference, abs_tol=1e-9)
    mean = sum(row["majority"][0] for row in rows) / 2
    assert f"{mean:.3f} [" in lines[-1]
