"""The offline part of the PRIME study runs from a study file, and a run can start from the model it writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from guerdon.comparison.study import plan_study
from guerdon.rl.loop import Loop

SCRIPT = Path(__file__).parents[2] / "studies" / "prime_offline.py"
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
    tiny: {{alphabet: "0123456789+-*=?;", hidden_size: 64, intermediate: 128}}
    bf16: true
  max_steps: 100
  learning_rate: 0.003
  mistakes: {{facts: 0.4}}
  val_split: 0
policy: {{type: text, path: "${{sft.save_dir}}/model", bf16: true}}
runner: {{total_steps: 32, eval_every: 32, eval_episodes: 8}}
compare:
  baseline: outcome
  tasks: {{chain: {{}}}}
  seeds: [0]
  arms:
    outcome: {{label: outcome}}
    prime:
      label: prime
      config:
        reward_model:
          rm_type: prime
          prime_norm: clip
          mini_batch_size: 16
          micro_batch_size: 16
          prime_model:
            path: ${{sft.save_dir}}/offline/model
            ref_path: ${{sft.save_dir}}/offline/model/reference
            bf16: false
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "width"), [(0, 64), (80, 80)], ids=["from-the-start-of-the-runs", "from-a-wider-one"]
)
def test_students_outcomes_reference_model_and_a_run_from_it(tmp_path, hidden, width):
    study, folder = tmp_path / "study.yaml", tmp_path / "runs"
    study.write_text(STUDY.format(folder=folder))
    sizes = [
        "--students",
        "30",
        "--rollouts",
        "128",
        "--hidden",
        str(hidden),
        "--reference-steps",
        "30",
        "--epochs",
        "2",
    ]
    subprocess.run([sys.executable, str(SCRIPT), str(study), "--task", "chain", *sizes], check=True, text=True)
    cost = json.loads((folder / "sft" / "offline" / "cost.json").read_text())
    assert cost["responses"] == 128
    assert len(cost["right"]) == 2  # the start of the runs and another student
    assert set(cost["seconds"]) == {"students", "responses", "reference", "model"}
    assert 0 <= cost["step_auroc_model"] <= 1
    model = folder / "sft" / "offline" / "model"
    for folder in (model, model / "reference"):
        assert json.loads((folder / "config.json").read_text())["hidden_size"] == width
    config = plan_study(study, []).configs["chain.prime.seed0"]
    Loop(config, tmp_path / "run").run()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["kind"] == "train"]
    assert all(row["reward_model/prime/prm_loss"] is not None for row in train)
    assert train[0]["return/prime"]  # it starts as something else than its reference
