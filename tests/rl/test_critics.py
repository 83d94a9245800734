"""The ensemble of critics: values and gradients are those of autograd."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from guerdon.rl.critics import Critics, layers_of
from tables import cases


def by_autograd(critics, x):
    """(M, N, H) of each member by itself."""
    found = []
    for m in range(critics.members):
        h, last = x, len(critics.weights) - 1
        for k in range(last + 1):
            h = h @ critics.weights[k][m] + critics.biases[k][m]
            if k < last:
                if critics.layer_norm:
                    h = F.layer_norm(h, h.shape[-1:]) * critics.gains[k][m] + critics.shifts[k][m]
                h = h.tanh() if critics.tanh else h.relu()
        found.append(h)
    return torch.stack(found)


@cases("layer_norm", [False, True])
@cases("activation", ["tanh", "relu"])
@cases("hidden", [(7,), (8, 5), (6, 6, 6)])
def test_values_and_gradients_are_those_of_autograd(layer_norm, activation, hidden):
    torch.manual_seed(1)
    critics = Critics(4, hidden, outputs=3, members=2, activation=activation, layer_norm=layer_norm).double()
    for parameters in (critics.gains, critics.shifts):
        for one in parameters:
            one.data += 0.3 * torch.randn_like(one)
    x, gradient = torch.randn(9, 4, dtype=torch.float64), torch.randn(2, 9, 3, dtype=torch.float64)
    wanted_x = x.clone().requires_grad_()
    wanted = by_autograd(critics, wanted_x)
    wanted.backward(gradient)
    expected = {name: p.grad.clone() for name, p in critics.named_parameters()}
    critics.zero_grad(set_to_none=True)
    layers = critics.layers()
    found, kept = layers.forward(x)
    assert torch.allclose(found, wanted, atol=1e-12)
    whole = layers.backward(kept, gradient, parameters=True, inputs=True)
    assert layers.backward(kept, gradient, parameters=True, inputs=False) is None
    for name, p in critics.named_parameters():
        assert torch.allclose(p.grad, expected[name], atol=1e-6 if layer_norm else 1e-12), name
    assert torch.allclose(whole, wanted_x.grad, atol=1e-6 if layer_norm else 1e-12)
    assert torch.allclose(layers.backward(kept, gradient, parameters=False, inputs=True), whole)


def test_a_subset_has_the_values_of_its_members():
    critics = Critics(3, (5,), outputs=2, members=4)
    x = torch.randn(6, 3)
    every, _ = critics.layers().forward(x)
    some, _ = critics.layers().forward(x, torch.tensor([3, 1]))
    assert torch.allclose(some, every[[3, 1]])
    assert not torch.allclose(every[0], every[1]), "members begin with weights of their own"


@pytest.mark.parametrize("act", [nn.Tanh, nn.ReLU])
def test_a_plain_network_has_the_gradients_of_autograd(act):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 6), act(), nn.Linear(6, 5), act(), nn.Linear(5, 2)).double()
    x, gradient = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    wanted = network(x)
    expected = torch.autograd.grad(wanted, list(network.parameters()), gradient)
    layers = layers_of(network)
    found, kept = layers.forward(torch.cat([x, x]))
    assert torch.allclose(found[0, :9], wanted)
    layers.backward([one.rows(slice(9)) for one in kept], gradient[None], parameters=True, inputs=False)
    for p, one in zip(network.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, one)


def test_other_networks_have_no_plain_layers():
    for network in (
        nn.Linear(2, 2),
        nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
    ):
        assert layers_of(network) is None
