"""The study of a small vision-language-action model, whole and small: collect, clone, train, serve, compare."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import start_server

from child import environment

STUDIES = Path(__file__).parents[2] / "studies"
SMALL = ["env.num_envs=8"]
COLLECTED = {"vla": 6, "vla_rewards": 24}  # episodes
TRAINED = ["train.success.max_epochs=1", "train.judge.max_steps=80"]
RUN = [
    "runner.total_steps=1600", "runner.eval_every=1600", "runner.eval_episodes=8", "runner.checkpoint_every=1600",
    "compare.seeds=[1]", "algorithm.minibatch_size=24",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_arm_of_the_study_runs_and_is_compared(tmp_path):
    def guerdon(verb, study, *overrides):
        words = [sys.executable, "-m", "guerdon", verb, str(STUDIES / f"{study}.yaml"), *SMALL, *overrides]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    for study, episodes in COLLECTED.items():
        guerdon("collect", study, f"collect.episodes={episodes}")
        more = ["policy=bc", "bc.epochs=1", "bc.eval_episodes=8"] if study == "vla" else TRAINED
        guerdon("train", study, *more)
    server = start_server(tmp_path, models={}, arguments=("--model-path", "runs/vla_rewards/judge", "--threads", "1"))
    try:
        endpoint = f"compare.arms.vlm.config.reward.model.endpoint={server.url}/v1/rewards"
        episodes = f"collect.episodes={COLLECTED['vla_rewards']}"
        guerdon("compare", "vla_rewards", endpoint, episodes, *TRAINED, *RUN)
        asked = server.get("/metrics").text
    finally:
        server.stop()
    assert "judge" in asked, asked
    work = tmp_path / "runs" / "vla_rewards"
    assert "true success" in (work / "report.html").read_text()
    for arm in ("native", "dense", "image", "vlm", "prm"):
        folder = work / "runs" / "door-close" / arm / "seed1"
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        trained = [row for row in rows if row["kind"] == "train"]
        assert [row["step"] for row in trained] == [800, 1600], arm
        assert all(row["failures"] == 0 for row in trained), arm
        assert [row["episodes"] for row in rows if row["kind"] == "eval"] == [8], arm
        source = {"native": "env", "dense": "env", "image": "resnet", "vlm": "remote", "prm": "prm"}[arm]
        assert all(f"return/{source}" in row for row in trained), (arm, sorted(trained[0]))
