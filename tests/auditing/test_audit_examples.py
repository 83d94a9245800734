"""The recorders in `examples/`: what they write is read, and the CI file fails a change that makes the reward worse."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from guerdon.auditing.logs import read_log

ROOT = Path(__file__).parents[2]


def test_verl_writes_the_parts_of_the_reward(tmp_path):
    spec = importlib.util.spec_from_file_location("audit_verl", ROOT / "examples" / "audit_verl.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answers = ["2 + 2 = 4\n#### 4", "#### 5", "It is \\boxed{4}", "I do not know"]
    found = [module.compute_score("sums", text, "4", None) for text in answers]
    assert [(one["acc"], one["form_reward"]) for one in found] == [(1.0, 0.1), (0.0, 0.1), (1.0, 0.0), (0.0, 0.0)]
    rows = [
        {"input": "2+2?", "output": text, "gts": "4", "step": 1, **one}
        for text, one in zip(answers, found, strict=True)
    ]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_log(tmp_path)
    assert read.layout == "a dump of verl"
    assert read.reward_N.tolist() == [one["score"] for one in found]
    assert read.truth_N.tolist() == [1, 0, 1, 0]
    assert list(read.rewards) == ["form_reward"]


REWARDS = """
from guerdon.types import RewardInfo, Score

LENGTH = {length}

class Right:
    info = RewardInfo(name="right", range=(-9.0, 9.0), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes):
        return [Score(total=float("good" in e.texts[0]) + len(e.texts[0].split()) * LENGTH) for e in episodes]

def model():
    return Right()
"""


@pytest.mark.slow
def test_the_ci_file_fails_a_change_that_pays_for_length(tmp_path):
    pytest.importorskip("guerdon.auditing.command")
    job = yaml.safe_load((ROOT / "examples" / "audit_ci.yml").read_text())["jobs"]["audit"]
    (step,) = [one for one in job["steps"] if "guerdon audit" in one.get("run", "")]
    rng = random.Random(0)
    words = ["red", "blue", "tall", "old", "new", "cold", "warm", "small"]
    rows = []
    for k in range(400):
        right = rng.random() < 0.5
        said = [rng.choice(words) for _ in range(rng.randint(5, 60))]
        said.insert(rng.randrange(len(said)), "good" if right else "bad")
        rows.append({"prompt": f"question {k // 8}", "response": " ".join(said), "is_correct": right, "step": k // 40})
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    guerdon = tmp_path / "bin" / "guerdon"
    guerdon.parent.mkdir()
    guerdon.write_text(f'#!/bin/sh\nexec {sys.executable} -m guerdon "$@"\n')
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    guerdon.chmod(0o755)

    def git(*words):
        given = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words]
        return subprocess.run(given, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    def commit(length):
        (tmp_path / "my_rewards.py").write_text(REWARDS.replace("{length}", str(length)))
        git("add", "my_rewards.py", "rollouts.jsonl")
        git("commit", "-q", "-m", "x")
        return git("rev-parse", "HEAD")

    def run(before):
        for made in ("scored.jsonl", "before/scored.jsonl"):
            (tmp_path / made).unlink(missing_ok=True)
        path = f"{guerdon.parent}{os.pathsep}{os.environ['PATH']}"
        given = {
            **os.environ,
            "BEFORE": before,
            "PATH": path,
            "PYTHONPATH": str(Path(read_log.__code__.co_filename).parents[2]),
        }
        return subprocess.run(["bash", "-ec", step["run"]], cwd=tmp_path, env=given, capture_output=True, text=True)

    git("init", "-q")
    first = commit(0.0)
    second = commit("0.0  # as before")
    assert (same := run(first)).returncode == 0, same.stderr
    commit(0.1)
    worse = run(second)
    assert worse.returncode == 5, worse.stderr
    assert "length" in worse.stderr
