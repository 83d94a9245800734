"""The whole chain with a vision-language reward: collect, train, evaluate, run. Small here; on Meta-World when slow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from guerdon.collect.collect import collect
from guerdon.config.loading import load
from guerdon.evaluation.suites.image_suite import evaluate_study
from guerdon.rl.run import run
from guerdon.settings.study import Study
from guerdon.train.vlm import train_vlm

STUDY = """\
work_dir: work
env: {type: gymnasium, task: "tiny_world:Dot-v1", num_envs: 2, max_episode_steps: 10, frame_size: 32}
collect: {save_dir: work/data, episodes: 16, mixture: [{type: random}], frame_every: 1}
train:
  judge:
    {type: qwen_vl, data_path: work/data, save_dir: work/judge, learning_rate: 5.0e-3, batch_size: 16, max_steps: 6,
     max_epochs: 50, tensorboard: false, bf16: false, val_split: 0.3,
     tiny: {hidden_size: 32, intermediate: 64, layers: 1, vision_layers: 1}}
evaluate: {reps: 100}
policy: {type: mlp, hidden: [8]}
algorithm: {rollout_steps: 10, minibatch_size: 10, num_epochs: 1}
reward:
  use_reward_model: true
  reward_mode: per_step
  shaping: raw
  model: {model_type: qwen_vl, checkpoint_path: work/judge}
runner:
  {total_steps: 40, eval_every: 40, eval_episodes: 2, checkpoint_every: 40, film_frames: 2,
   logger: {log_path: runs, experiment_name: one, tensorboard: false}}
"""


def test_the_whole_chain(tmp_path, monkeypatch):
    """On a dot that moves: what is trained is what is evaluated, and its probability of yes is the reward of a run."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(STUDY)
    study = load(Study, Path("study.yaml"))
    collect(study)
    result = train_vlm(study.vlm_models["judge"])
    evaluation, files = evaluate_study(study)["judge"]
    assert evaluation is not None
    found = json.loads(files["json"].read_text())["metrics"]["auroc"]  # of the rows that training held out
    assert found["estimate"] == pytest.approx(result.metrics["auroc"], abs=1e-6)
    assert result.metrics["failures"] == 0
    folder, _ = run(study)
    assert json.loads((folder / "COMPLETE").read_text())["failures"] == {}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert trained[-1]["failures"] == 0
    assert all(0 < row["return/qwen_vl"] <= 10 for row in trained)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_on_metaworld(tmp_path):
    """studies/vlm_reward.yaml as a user runs it: the judge tells done from undone, and a policy learns from it."""
    study = Path(__file__).parents[2] / "studies" / "vlm_reward.yaml"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for verb in ("collect", "train", "evaluate", "run"):
        command = [sys.executable, "-m", "guerdon", verb, str(study), f"work_dir={tmp_path}"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
    judge = tmp_path / "models" / "drawer-close" / "judge"
    assert json.loads((judge / "metrics.json").read_text())["auroc"] >= 0.9
    metrics = json.loads((judge / "evaluation.json").read_text())["metrics"]
    assert metrics["episode_auroc"]["estimate"] >= 0.9
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row["success"] for row in rows if row["kind"] == "eval"]
    assert evaluations[-1] >= 0.9
    assert json.loads((tmp_path / "run" / "COMPLETE").read_text())["failures"] == {}
