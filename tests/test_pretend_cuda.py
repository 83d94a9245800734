"""The pretended GPU of `pretend_cuda`: what CUDA refuses is refused, and what it allows is computed as on the CPU."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pretend_cuda
from pretend_cuda import Misplaced, device_of, pretended
from tables import cases

GPU = torch.device("cuda", 0)
ROOT = Path(__file__).parent.parent
SUITES = re.findall(r"^SUITES = (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[0].split()


@pytest.fixture(autouse=True)
def _pretends(monkeypatch, request):
    if request.config.getoption("--pretend-cuda", False):
        pytest.skip("these tests pretend by themselves")
    # This file lies in tests/, whose own mixing is allowed: here everything counts.
    monkeypatch.setattr(pretend_cuda, "_refuse", _raise)
    several = request.node.get_closest_marker("usefixtures")
    with pretended(gpus=1 if several is None else 2):
        yield


@pytest.fixture
def two_gpus():
    """Two of them."""


def _raise(why):
    raise Misplaced(why)


def test_tensors_are_where_they_were_put():
    x = torch.zeros(3)
    assert (x.device, x.to("cuda").device, x.cuda().device) == (torch.device("cpu"), GPU, GPU)
    assert torch.ones(2, device="cuda").device == GPU
    assert torch.empty_like(x, device=GPU).is_cuda
    assert {nn.Linear(1, 1).to(place).weight.device for place in ("cuda", "cuda:0", GPU)} == {GPU}
    y = x.to("cuda")
    assert x.device.type == "cpu", "the one that was copied stays"
    assert {device_of(t) for t in (y + 1, y[1:], y.view(1, 3), y.sum(), y.new_zeros(2), y.new_tensor([1]))} == {GPU}
    assert y.cpu().device == torch.device("cpu") == y.to(x).device
    assert torch.tensor([1.0], device=y.device).device == torch.as_tensor(y).device == GPU


def test_a_storage_made_inside_an_operator_is_where_it_works():
    ids = torch.tensor([0, 2], device="cuda")
    assert nn.functional.one_hot(ids, 3).device == GPU
    assert (nn.functional.one_hot(ids, 3) * torch.ones(3, device="cuda")).sum() == 2


@cases(
    "mix",
    [
        lambda here, there: here + there,
        lambda here, there: here @ there,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: there.index_select(0, torch.zeros(1, dtype=torch.int64)),
        lambda here, there: here[torch.zeros(1, dtype=torch.int64, device="cuda")],
        lambda here, there: there.masked_fill_(torch.ones(3, dtype=torch.bool), 0.0),
        lambda here, there: there.__setitem__(slice(1), torch.ones(1)) or there.add_(here),
        lambda here, there: there.numpy(),
        lambda here, there: np.asarray(there),
        lambda here, there: torch.rand(2, device="cuda", generator=torch.Generator()),
        lambda here, there: nn.Linear(3, 2).to("cuda")(here),
    ],
)
def test_what_cuda_refuses(mix):
    with pytest.raises(Misplaced):
        mix(torch.ones(3), torch.ones(3, device="cuda"))


def test_what_cuda_allows():
    x = torch.arange(3.0, device="cuda")
    assert (x * torch.tensor(2.0)).device == GPU, "a single number may be on the CPU"
    assert x[torch.tensor([0, 1])].device == GPU, "indices on the CPU are moved"
    x[:2] = torch.ones(2)
    assert x.tolist() == [1.0, 1.0, 2.0]
    assert float(torch.zeros(3).copy_(x).sum()) == 4.0
    assert torch.from_numpy(np.ones(3, np.float32)).to("cuda").add_(x).cpu().numpy().tolist() == [2.0, 2.0, 3.0]


def _trained(device):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).to(device)
        inputs = torch.randn(16, 4).to(device)
        wanted = torch.randint(0, 3, (16,)).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), wanted).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return network, optimizer


def test_training_gives_the_numbers_of_the_cpu():
    (here, _), (there, optimizer) = _trained("cpu"), _trained("cuda")
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        assert (a.device.type, b.device.type, b.grad.device.type) == ("cpu", "cuda", "cuda")
        assert torch.equal(a, b.cpu())
    assert all(t.device == GPU for state in optimizer.state.values() for t in state.values())


def test_backward_passes_and_optimizers_are_watched():
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.full((3,), 0.5)

    with pytest.raises(Misplaced):
        Halved.apply(torch.ones(3, device="cuda", requires_grad=True)).sum().backward()
    _, optimizer = _trained("cuda")
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].cpu()
    with pytest.raises(Misplaced):
        optimizer.step()


def test_gradient_checkpointing_and_autocast():
    weight = torch.ones(3, 3, device="cuda", requires_grad=True)

    def part(x):
        with torch.autocast("cuda", torch.bfloat16):
            return x @ (weight.to(x.device) * torch.ones(3, device=x.device))

    out = torch.utils.checkpoint.checkpoint(part, torch.ones(2, 3, device="cuda"), use_reentrant=False)
    assert (out.dtype, out.device) == (torch.bfloat16, GPU)
    out.float().sum().backward()
    assert weight.grad.cpu().tolist() == [[2.0] * 3] * 3


def test_threads_pretend_too():
    found = []
    x = torch.ones(2, device="cuda")

    def work():
        found.append(x.device)
        try:
            found.append(x + torch.ones(2))
        except Misplaced as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] == GPU
    assert isinstance(found[1], Misplaced)


def test_a_test_may_mix_devices_and_guerdon_may_not(monkeypatch):
    monkeypatch.undo()  # of _refuse
    from guerdon.models.images.backbone import to_input

    pixels = torch.zeros(1, 8, 8, 3, dtype=torch.uint8, device="cuda")
    assert float((to_input(pixels, "imagenet").sum() + torch.ones(1))[0]) < 0
    tensor = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda value, device=None: tensor(value))
    with pytest.raises(Misplaced):
        to_input(pixels, "imagenet")


@pytest.mark.usefixtures("two_gpus")
def test_several_gpus():
    one, other = torch.ones(2, device="cuda"), torch.ones(2, device="cuda:1")
    assert torch.cuda.device_count() == 2
    with pytest.raises(Misplaced):
        one + other
    assert (one + other.to(one.device)).device == GPU


def test_seeding_reaches_the_generator_of_the_gpu():
    before = torch.cuda.get_rng_state()
    with torch.random.fork_rng(devices=[0]):
        torch.manual_seed(5)
        assert not torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("suite", SUITES)
def test_no_tensor_of_a_suite_is_misplaced(suite):
    """As `make test-device`, one suite after the other."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "pretend_cuda", "--pretend-cuda",
            "-m", "not slow", "--tb", "short", f"tests/{suite}",
        ],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, text=True, capture_output=True,
    )  # fmt: skip
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert done.returncode == 0, "\n".join([*failed, done.stdout[-5000:], done.stderr[-1000:]])
