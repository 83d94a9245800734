"""The three runs of docs/libero.md on one machine, with configs/libero_tiny.txt: the real simulator, two collectors and
two learners of a Ray cluster, and for B and C a reward server with a small model of random weights.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ray_studies import recorded
from safetensors.torch import load_file
from typer.testing import CliRunner

from child import environment
from guerdon.cli import app
from guerdon.compute import distributed
from guerdon.engines.ray_collector import RayCollector
from guerdon.models.vlm.tiny_vlm import STOP, build_tokenizer, write_tiny_vlm
from guerdon.rl.learner import OnPolicyLearner
from guerdon.settings.vlm import TinyVLMSettings

pytest.importorskip("libero", reason="LIBERO has an environment of its own: make env-libero")
ray = pytest.importorskip("ray", reason="needs guerdon[ray]")

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
sys.path.append(str(TESTS / "serve"))
from processes import start_server  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
NAMES = {"A": "runA", "B": "runB_qwen", "C": "runC_primo"}
EPISODES = 8  # four in each of two updates


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def words(run, folder, *more):
    """The words of `guerdon run`, as docs/libero.md has them."""
    study = ROOT / f"configs/libero_10_grpo_openvlaoft_{NAMES[run]}.yaml"
    tiny = (ROOT / "configs/libero_tiny.txt").read_text().split()
    return ["run", str(study), *tiny, f"work_dir={folder}", *more]


def process_ids():
    """Those of all learners, in each of them."""
    found = [None] * distributed.peers()
    torch.distributed.all_gather_object(found, os.getpid())
    return found


def carried_out(run, folder, *more):
    """What a command leaves, and who worked: processes of every update, of a sharded weight, shards of collectors."""
    learn, close = OnPolicyLearner.update, RayCollector.close
    learners, shards, collected = [], [], []

    def update(self, *args, **options):
        if distributed.peers() == 1:  # not the part that all carry out
            learners.append(distributed.everywhere(process_ids))
            shards.extend(p.device_mesh.size() for p in self.policy.parameters() if distributed.is_sharded(p))
        return learn(self, *args, **options)

    def closed(self):
        collected.extend(sorted(actor.holds) for actor in self._actors)
        close(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnPolicyLearner, "update", update)
        patch.setattr(RayCollector, "close", closed)
        done = CliRunner().invoke(app, words(run, folder, *more))
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    return SimpleNamespace(folder=folder / "run", learners=learners, shards=shards, collected=sorted(collected))


def check(done):
    """Both updates were made by two processes that shared the weights, of what both collectors brought."""
    folder = done.folder
    assert [len(set(ids)) for ids in done.learners] == [2, 2]
    assert set(done.shards) == {2}
    assert done.collected == [[0], [1]]
    assert "LIBERO-10" in (folder / "report.html").read_text()
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in logged] == [("train", 64), ("train", 128), ("eval", 128)]
    assert all(line["grad_norm"] > 0 and line["updates"] == 1 for line in logged[:2])
    steps = [load_file(folder / f"checkpoints/step_{step:012}/state.safetensors") for step in (64, 128)]
    adapters = [name for name in steps[0] if "lora_B" in name]
    assert adapters
    for name in adapters:  # they begin at 0
        first, second = (step[name] for step in steps)
        assert first.any(), name
        assert not torch.equal(first, second), name


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    return carried_out("A", tmp_path_factory.mktemp("A"))


def test_native_reward(native):
    check(native)
    episodes = [json.loads(line) for line in (native.folder / "episodes.jsonl").read_text().splitlines()]
    assert len(episodes) == EPISODES
    assert {episode["length"] for episode in episodes} == {16}


def test_a_killed_run_resumes_to_the_same_bytes(native, cluster, tmp_path):
    """SIGKILL before the second update, after the first checkpoint."""
    killed = subprocess.run(
        [sys.executable, TESTS / "rl/run_killed.py", "0", "3", *words("A", tmp_path)],  # it enters each of them twice
        env=environment(RANK="0", RAY_ADDRESS=cluster),
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [path.name for path in (tmp_path / "run/checkpoints").glob("step_*")] == ["step_000000000064"]
    resumed = carried_out("A", tmp_path, "--resume")
    assert len(resumed.learners) == 1
    assert recorded(resumed.folder) == recorded(native.folder)


def answering(folder):
    """A Qwen2.5-VL of random weights that writes one or two of the digits 6, 7 and 8: below 10 % or above 60 %."""
    from transformers import GenerationConfig

    tokenizer = build_tokenizer()
    end, *digits = tokenizer.convert_tokens_to_ids([STOP, *"678"])
    write_tiny_vlm(TinyVLMSettings(hidden_size=32, intermediate=64), folder, seed=0)
    GenerationConfig(
        eos_token_id=end, begin_suppress_tokens=[end], forced_eos_token_id=end,
        suppress_tokens=sorted({*range(len(tokenizer))} - {end, *digits}),
    ).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.mark.parametrize(("run", "backend"), [("B", "qwen2_5_vl_vllm"), ("C", "PRIMO-R1")])
def test_rewards_of_a_server(run, backend, tmp_path):
    vlm = {"backend": "transformers", "checkpoint_generation": True}  # the digits
    served = {
        "backend": backend, "model_path": str(answering(tmp_path / "vlm")), "temperature": 10.0, "max_tokens": 3,
        "processes": None, "options": {"vlm": vlm},
    }  # fmt: skip
    server = start_server(tmp_path, models={backend: served}, seconds=300)
    try:
        done = carried_out(run, tmp_path, f"reward.model.endpoint={server.url}/score")
        counted = server.get("/metrics").text
    finally:
        assert server.stop() == 0
    check(done)
    requests = re.search(r'^guerdon_requests_total{route="/score",status="200"} (\d+)\.0$', counted, re.M)
    assert int(requests[1]) == EPISODES + 1, "each episode, and the one that the report shows"
    episodes = [json.loads(line) for line in (done.folder / "episodes.jsonl").read_text().splitlines()]
    returns = [episode["return/combined"] for episode in episodes]
    assert len(returns) == EPISODES
    assert set(returns) <= {0.0, 5.0}  # reward_coef, where the score is above success_threshold
    assert any(returns)  # each is 5 with a probability of about 3/4
    assert not any(episode["return/env"] for episode in episodes)
    assert (done.folder / "failures.jsonl").read_text() == ""
