"""A real vLLM in the collectors of a Ray cluster of this machine, and for learners that share a model.

GUERDON_VLLM=/path/to/vllm pytest -m slow tests/engines/test_ray_vllm.py

The environment of that vLLM needs guerdon's requirements, peft, and for collectors ray.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import learners
from child import environment

VLLM = os.environ.get("GUERDON_VLLM")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(VLLM is None, reason="set GUERDON_VLLM to a vllm executable"),
]
ENGINES = Path(__file__).parent
OF_VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
LORA = {"lora": {"r": 4, "alpha": 8}}


def found_in(output):
    (line,) = [line for line in output.splitlines() if line.startswith("FOUND ")]
    return json.loads(line.removeprefix("FOUND "))


def ran(output, versions):
    found = found_in(output)
    for row in found["rows"]:
        assert 0 < row["rollout_gap_p99"] <= row["rollout_gap_max"] < 1e-4
        assert row["rollout_is_mean"] == pytest.approx(1, abs=1e-4)
        assert row["rollout_is_truncated"] == 0
        assert row["updates"] > 0
    assert set(found["versions"]) == {versions}
    return found


def run_study(tmp_path, given, *more, **variables):
    command = [Path(VLLM).with_name("python"), ENGINES / "vllm_study.py", tmp_path, json.dumps(given), *more]
    done = subprocess.run(
        [str(one) for one in command], capture_output=True, text=True, check=False,
        env={**environment(ENGINES, ENGINES.parent), **OF_VLLM, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def ray_of(collectors, **cluster):
    cpus = {"collector_cpus": 0.5, "start_timeout": 600}
    return {"engine": "ray", "cluster": {"collectors": collectors, **cpus, **cluster}}


def test_adapters_reach_collectors_of_two_learners_one_of_which_is_killed(tmp_path):
    learning = {"learners": 2, "learner_cpus": 0.5}
    output = run_study(tmp_path, {"policy": LORA, **ray_of(2, **learning)}, "kill")
    found = ran(output, 3)
    assert len(found["rows"]) == 3


def test_two_processes_share_the_model_of_a_collector(tmp_path):
    given = {"generation": {"engine_kwargs": {"enforce_eager": True}, "tensor_parallel_size": 2}, **ray_of(1)}
    ran(run_study(tmp_path, given, VLLM_CPU_OMP_THREADS_BIND="0|1"), 3)


def test_importance_weights_correct_for_older_weights_too(tmp_path):
    output = run_study(tmp_path, {"runner": {"max_staleness": 1, "total_steps": 32}, **ray_of(1)})
    rows = found_in(output)["rows"]
    assert [row["staleness"] for row in rows] == [0, 1, 1, 1]
    assert rows[0]["rollout_gap_max"] < 1e-4
    for row in rows[1:]:  # of the update since, besides what vLLM rounds
        assert row["rollout_gap_p99"] > 1e-3
        assert 0.5 < row["rollout_is_mean"] < 2


@pytest.mark.parametrize("policy", [{}, LORA], ids=["all weights", "an adapter"])
def test_the_first_of_two_learners_has_a_vllm_beside_it(tmp_path, policy, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(Path(VLLM).with_name("python")))
    given = json.dumps({"policy": policy, "runner": {"rollout_shards": 1}})
    path = environment(ENGINES, ENGINES.parent)["PYTHONPATH"]
    first, _ = learners.run_together(ENGINES / "vllm_study.py", tmp_path, given, **OF_VLLM, PYTHONPATH=path)
    ran(first, 3)
