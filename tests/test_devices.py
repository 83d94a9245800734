"""Devices: which one a key names, which GPUs there are, and random numbers that leave others alone."""

import os
import stat
import time

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from guerdon.comparison.jobs import Job, run_jobs
from guerdon.compute.devices import (
    free_gpu_memory,
    names_gpu,
    names_one_of_several,
    resolve_device,
    seeded,
    show_only,
    visible_gpus,
    wait_for_gpu,
)
from guerdon.config.loading import validate
from guerdon.errors import ConfigError
from guerdon.models.vlm.tiny_vlm import build_tokenizer as build_vlm_tokenizer
from guerdon.models.vlm.tiny_vlm import build_vlm
from guerdon.policies.batches import packing
from guerdon.policies.language.shared_base import fresh_lora
from guerdon.policies.language.tiny_text import build_model, build_tokenizer
from guerdon.policies.robots.control import build_policy, load_policy, save_policy
from guerdon.policies.robots.robot import ControlInputs
from guerdon.settings.policy import CNNPolicySettings, MLPPolicySettings
from guerdon.settings.reward_models import ConstantModelSettings, SequenceClassifierSettings, VLMModelSettings
from guerdon.settings.text_policy import LoraSettings, TextPolicySettings, TinyModelSettings
from guerdon.settings.train import ResNetTrainSettings, StepwiseTrainSettings
from guerdon.settings.vlm import TinyVLMSettings
from guerdon.train.images import seeded_scorer
from guerdon.train.trainer import BaseTrainer
from pretend_cuda import pretended
from tables import refuses

SPACE = gymnasium.spaces.Box(-1, 1, (3,), np.float32)


@pytest.fixture(autouse=True)
def _no_plug_in(request, monkeypatch):
    if request.config.getoption("--pretend-cuda", False):
        pytest.skip("these tests pretend by themselves")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_key_names_a_device():
    with pretended(gpus=2):
        assert [str(resolve_device(name)) for name in ("auto", None, "cuda", "cuda:1", "cpu")] == [
            "cuda", "cuda", "cuda", "cuda:1", "cpu",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "name", "said"),
    [
        (0, "cuda", "device: cuda is not here: this process sees no GPU; write auto"),
        (0, "cuda:1", "sees no GPU"),
        (1, "cuda:1", "sees one GPU, cuda:0"),
        (2, "cuda:2", r"sees 2 GPU\(s\), cuda:0 to cuda:1"),
        (2, "gpu", "device 'gpu' is none: write auto, cpu, cuda or cuda:1"),
    ],
)
def test_a_device_that_is_not_there_is_refused(gpus, name, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with refuses("device", said):
        resolve_device(name)


def test_the_refusal_says_what_hides_the_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with refuses("device", r"sees no GPU \(CUDA_VISIBLE_DEVICES is ''\)"):
        resolve_device("cuda")


@pytest.mark.parametrize(
    ("form", "given", "key", "said"),
    [
        (
            TextPolicySettings,
            {"path": "x", "device": "gpu"},
            "device",
            "'gpu' is not a device: write auto, cpu, cuda or cuda:1",
        ),
        (MLPPolicySettings, {"device": "cuda1"}, "device", "'cuda1' is not a device"),
        (ConstantModelSettings, {"device": "cpu"}, "device", "unknown key"),
        (
            VLMModelSettings,
            {"vlm": {"backend": "openai", "openai": {"base_url": "http://x/v1", "model": "m"}}, "device": "cuda"},
            "device",
            "would do nothing with vlm.backend openai",
        ),
        (
            StepwiseTrainSettings,
            {"save_dir": "x", "device": "cuda:1", "wait_for_gpu": 3},
            "wait_for_gpu",
            "would do nothing with device cuda:1",
        ),
        (
            StepwiseTrainSettings,
            {"save_dir": "x", "path": "y", "device": "cpu", "quantize": "nf4", "lora": {}},
            "quantize",
            "would do nothing with device cpu",
        ),
    ],
)
def test_settings_refuse_what_is_no_device_or_has_no_effect(form, given, key, said):
    with refuses(key, said):
        validate(form, given, origin="test")


def test_parts_say_whether_they_may_use_a_gpu():
    assert not names_gpu(MLPPolicySettings().model_dump())
    assert not names_gpu({"a": [{"device": "cpu"}, {"device": None}]})
    assert names_gpu({"train": {"x": SequenceClassifierSettings(checkpoint_path="x").model_dump()}})
    assert not names_one_of_several({"a": {"device": "cuda:0"}, "b": {"device": "auto"}})
    assert names_one_of_several([{"device": "cuda:1"}])


def test_visible_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-ab")
    assert visible_gpus() == ["3", "GPU-ab"]
    for none in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert visible_gpus() == []


def test_a_gpu_is_chosen_before_cuda_starts(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    show_only("GPU-ab")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-ab"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ConfigError, match="uses a GPU already"):
        show_only("1")


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """An nvidia-smi that reports two GPUs."""
    file = tmp_path / "nvidia-smi"
    file.write_text('#!/bin/sh\necho "$1" | grep -q "index,uuid,memory.free" || exit 1\n'
                    'printf "0, GPU-aa11, 1024\\n1, GPU-bb22, 8192\\n"\n')  # fmt: skip
    file.chmod(file.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("nvidia_smi")
@pytest.mark.parametrize(
    ("visible", "free"),
    [
        (None, {"GPU-aa11": 1.0, "GPU-bb22": 8.0}),
        ("1,0", {"GPU-bb22": 8.0, "GPU-aa11": 1.0}),
        ("GPU-bb", {"GPU-bb22": 8.0}),
        ("1,7,0", {"GPU-bb22": 8.0}),
        ("", {}),
    ],
)
def test_free_memory_is_by_the_name_of_the_gpu(visible, free, monkeypatch):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = free_gpu_memory()
    assert found == free
    assert list(found) == list(free)


@pytest.mark.usefixtures("nvidia_smi")
def test_parts_of_a_gpu_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with refuses("wait_for_gpu", "does not know the memory of MIG-1234"):
        free_gpu_memory()


def test_it_waits_until_a_gpu_is_free():
    looks = [{"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.9}, {"a": 1.0, "b": 6.0}]
    pauses = []
    assert wait_for_gpu(4.0, free=lambda: looks[len(pauses)], pause=pauses.append) == "b"
    assert len(pauses) == 2
    with refuses("wait_for_gpu", "there is none here"):
        wait_for_gpu(4.0, free=dict)


# Random numbers.


def test_a_seed_is_for_the_block_and_its_device():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with seeded(7):
        drawn = torch.randn(3)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        assert torch.equal(torch.randn(3), drawn)
    with pretended(gpus=2):
        numbers = torch.cuda.get_rng_state()
        with seeded(7):
            assert torch.equal(torch.cuda.get_rng_state(), numbers), "a block on the CPU leaves CUDA's alone"
        with seeded(7, "cuda"):
            assert not torch.equal(torch.cuda.get_rng_state(), numbers)
        assert torch.equal(torch.cuda.get_rng_state(), numbers)


def _lora():
    with fresh_lora(LoraSettings(), seed=3):
        torch.randn(2)


TINY = TinyModelSettings(hidden_size=16, layers=1, heads=2, intermediate=16)
BUILDERS = {
    "language model": lambda: build_model(TINY, build_tokenizer(TINY), seed=5),
    "policy": lambda: build_policy(MLPPolicySettings(hidden=(4,)), (5,), SPACE, sources=("env",), seed=5),
    "image model": lambda: seeded_scorer(ResNetTrainSettings(data_path="x", save_dir="x", image_size=32)),
    "adapter": _lora,
    "vlm": lambda: build_vlm(TinyVLMSettings(), build_vlm_tokenizer(), seed=5),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_fresh_weights_leave_the_generators_alone(build):
    with pretended():
        torch.manual_seed(1)
        cpu, gpu = torch.get_rng_state(), torch.cuda.get_rng_state()
        build()
        assert torch.equal(torch.get_rng_state(), cpu)
        assert torch.equal(torch.cuda.get_rng_state(), gpu)


# Policies of robots.


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_policy_on_a_gpu_computes_what_it_computes_on_the_cpu(kind, tmp_path):
    form, shape = (MLPPolicySettings, (5,)) if kind == "mlp" else (CNNPolicySettings, (24, 24, 3))
    small = {"hidden": (8,)} | ({"channels": (4, 8)} if kind == "cnn" else {})
    rng = np.random.default_rng(0)
    seen = (
        rng.normal(2, 3, (6, 5)).astype(np.float32) if kind == "mlp" else rng.integers(0, 256, (6, 24, 24, 3), np.uint8)
    )
    inputs = ControlInputs(seen, rng.normal(size=(6, 3)).astype(np.float32))

    def results(device):
        policy = build_policy(form(device=device, **small), shape, SPACE, sources=("env",), seed=2)
        policy.observe(inputs, np.ones((6, 1), bool))
        prepared = policy.prepared(inputs)
        found = policy.evaluate(prepared.take(np.array([4, 1])), entropy=True)
        (found.log_probs.sum() + found.values.sum() + found.entropy).backward()
        everything = policy.evaluate_all(prepared, micro=4)
        assert everything.log_probs.device.type == "cpu"
        acted = policy.actor().act(seen, np.random.default_rng(1)).values
        gradients = [p.grad.cpu().numpy() for p in policy.parameters()]
        save_policy(policy, tmp_path / device.replace(":", ""))
        return policy, [acted, everything.log_probs.numpy(), everything.values.numpy(), *gradients]

    _, here = results("cpu")
    with pretended(gpus=2):
        policy, there = results("cuda:1")
        assert {str(p.device) for p in policy.parameters()} == {"cuda:1"}
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(a, b)
    assert load_policy(tmp_path / "cuda1").device.type == "cpu", "a stored policy does not ask for the GPU it had"


# Trainer.


class _Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.tensors, self.load_tensors = self.state_dict, self.load_state_dict


class _LineTrainer(BaseTrainer):
    rate_key = "learning_rate"

    def __init__(self, folder, device):
        settings = StepwiseTrainSettings(save_dir=str(folder), batch_size=4, micro_batch_size=2, learning_rate=0.1)
        rows = np.arange(8)
        self.sizes, self.places = [], set()
        super().__init__(_Line(), settings, folder, rows, rows[:0], total=2, every=2, device=device)

    def weight(self, rows):
        self.sizes.append(len(rows))
        return float(len(rows))

    def loss_sum(self, model, rows):
        out = model.layer(torch.ones(len(rows), 1, device=self.args.device))
        self.places.add(str(out.device))
        return out.sum()


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_a_training_uses_one_gpu_of_several(device, tmp_path):
    with pretended(gpus=2):
        trainer = _LineTrainer(tmp_path, torch.device(device))
        assert (trainer.args.n_gpu, str(trainer.args.device)) == (1, device)
        trainer.train()
    assert trainer.sizes == [4, 4], "not a batch of this size for each GPU"
    assert trainer.places == {device}
    assert "ACCELERATE_TORCH_DEVICE" not in os.environ


# Jobs of a study.


def write_gpu(arguments):
    """In place of the verbs of guerdon."""
    (name,) = arguments
    with open(name, "w") as file:
        file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    while sum(os.path.exists(other) for other in "abc") < 3:  # all three run at the same time
        time.sleep(0.01)


@pytest.mark.parametrize(("gpus", "seen"), [(("0", "GPU-b"), ["0", "0", "GPU-b"]), ((), ["all"] * 3)])
def test_each_job_sees_the_gpu_that_the_fewest_use(gpus, seen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = [Job(name, (name,)) for name in "abc"]
    results = run_jobs(jobs, tmp_path / "jobs", parallel=3, say=lambda *_: None, work=write_gpu, gpus=gpus)
    assert [o.state for o in results] == ["done"] * 3
    assert sorted((tmp_path / name).read_text() for name in "abc") == seen


# Memory.


def test_out_of_memory_is_not_taken_for_a_network_that_cannot_pack():
    tokenizer = build_tokenizer(TINY)
    model = build_model(TINY, tokenizer, seed=0)
    assert packing.packs(model)

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    model.base_model.forward = full
    with pytest.raises(torch.OutOfMemoryError):
        packing.packs(model)
