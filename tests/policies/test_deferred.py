"""Weights drawn when they are read are to the bit those of a model made at once, and in memory one at a time."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from guerdon.compute.devices import seeded
from guerdon.models.images.backbone import ImageScorer
from guerdon.policies.language.tiny_text import build_model, build_tokenizer
from guerdon.policies.pretrained.deferred import deferred
from guerdon.policies.vla.build import tiny_flow_network, tiny_token_network
from guerdon.settings.text_policy import TinyModelSettings
from guerdon.settings.vla_policy import TinyVLASettings
from sharded_steps import Built
from tables import first, sample


class Odd(nn.Module):
    """Weights that are written in parts, shared, made of values that were drawn, or the values of another one."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4, padding_idx=2)
        self.output = nn.Linear(4, 10)
        self.output.weight = self.embedding.weight
        self.square = nn.Linear(6, 6)
        nn.init.orthogonal_(self.square.weight)
        self.recurrent = nn.GRU(3, 5)
        nn.init.trunc_normal_(self.recurrent.weight_hh_l0, std=0.02)
        self.scale = nn.Parameter(self.square.weight.detach().abs().max() + torch.empty(3).normal_())
        self.register_buffer("noise", torch.empty(4).uniform_())
        with torch.no_grad():
            self.square.bias[1:3].normal_().mul_(2)
            self.square.weight.data[0] = self.output.bias[:6]
            self.square.weight[1].copy_(row := torch.ones(6))
            row.zero_()
            self.embedding.weight += 1


def text(architecture):
    settings = TinyModelSettings(architecture=architecture)
    return build_model(settings, build_tokenizer(settings), seed=1)


MODELS = {
    "odd": Odd,
    **{arch: partial(ImageScorer, arch, hidden_dim=16, dropout=0.1, sharded=True)
       for arch in ("resnet18", "resnet50", "efficientnet_lite0")},
    **{name: partial(text, name) for name in ("llama", "qwen2")},
    "flow": lambda: tiny_flow_network(TinyVLASettings(), 4, 3),
    "token": lambda: tiny_token_network(TinyVLASettings(vision="vit"), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", first(MODELS, 2))
def test_weights_are_those_of_the_model_made_at_once(name):
    with seeded(3):
        whole, after = MODELS[name](), torch.rand(3)
    with seeded(3):
        model, weights = deferred(MODELS[name])
        assert torch.equal(torch.rand(3), after)
    before = torch.get_rng_state()
    own = dict(model.named_parameters(remove_duplicate=False))
    assert list(own) == [key for key, _ in whole.named_parameters(remove_duplicate=False)]
    for key, value in whole.named_parameters(remove_duplicate=False):
        found = weights[key].to(torch.float32, copy=True) if own[key].is_meta else own[key]
        assert torch.equal(found, value), key
        assert own[key].requires_grad == value.requires_grad
    for key, value in whole.named_buffers():
        assert torch.equal(dict(model.named_buffers())[key], value), key
    assert torch.equal(torch.get_rng_state(), before)
    assert sum(p.numel() for p in own.values() if p.is_meta) > 0.9 * sum(p.numel() for p in own.values())


def test_what_cannot_be_written_again_is_refused():
    with pytest.raises(AssertionError, match="that a tensor names cannot be written to"):
        deferred(lambda: nn.init.sparse_(nn.Linear(4, 4).weight, 0.5))
    with pytest.raises(AssertionError, match="are drawn from the global random state"):
        deferred(lambda: nn.init.normal_(nn.Linear(4, 4).weight, generator=torch.Generator()))


@pytest.mark.parametrize("name", sample(["resnet50", "qwen2"], "qwen2"))
def test_one_weight_is_in_memory_at_a_time(name):
    with Built() as whole:
        made = MODELS[name]()
    with Built() as built:
        _, weights = deferred(MODELS[name])
        for weight in weights.values():
            weight.to(torch.float32, copy=True)
    largest = max(p.numel() for p in made.parameters()) * 4
    assert whole.most > 4 * largest
    assert built.most < 3 * largest  # with what an operation returns, and small weights that were not deferred


@given(st.lists(st.sampled_from(["normal_", "uniform_", "zero_", "half"]), max_size=6), st.integers(1, 40))
def test_what_was_written_is_written_again_in_its_order(steps, size):
    def make():
        layer = nn.Linear(size, 3)
        for step in steps:
            with torch.no_grad():
                getattr(layer.weight, step)() if step != "half" else layer.weight[:, : size // 2].mul_(0.5).normal_()
        return layer

    with seeded(0):
        expected = make().weight
    with seeded(0):
        _, weights = deferred(make)
    assert torch.equal(weights["weight"] + 0, expected)
