"""The gradient in closed form is that of autograd, for every policy and loss that it is used for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.policies.control import build_policy
from guerdon.policies.robot import ControlInputs
from guerdon.rl import closed_form
from guerdon.rl.optimizers import FlatAdam
from guerdon.rl.update import make_batch, update_policy
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.settings.policy import MLPPolicySettings
from guerdon.types import Advantages

ACTIONS = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
B, T, S = 3, 5, 4


def policy_and_batch(
    seed: int,
    *,
    activation: Any = "tanh",
    heads: int = 1,
    hidden: Any = (6, 5),
    masked: bool = False,
    known_old: bool = True,
) -> tuple[Any, Any]:
    """A policy that has moved since it acted, and what it learns from; `known_old`: also what it acted with."""
    rng = np.random.default_rng(seed)
    form = MLPPolicySettings(type="mlp", hidden=hidden, activation=activation, device="cpu")
    names = [f"source {k}" for k in range(heads)]
    policy = build_policy(form, (S,), ACTIONS, sources=names, seed=seed)
    inputs = ControlInputs(
        rng.standard_normal((B * T, S)).astype(np.float32), rng.standard_normal((B * T, 2)).astype(np.float32)
    )

    def numbers() -> np.ndarray:
        return rng.standard_normal((B, T)).astype(np.float32)

    mask = rng.random((B, T)) < 0.7 if masked else np.ones((B, T), dtype=np.bool_)
    prepared = policy.prepared(inputs)
    old = policy.evaluate_all(prepared, micro=8).log_probs.numpy().reshape(B, T)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1 * torch.from_numpy(rng.standard_normal(parameter.shape).astype(np.float32))
    targets = {name: numbers() for name in names}
    known = {name: rng.random((B, T)) < 0.8 for name in names} if masked else dict.fromkeys(names, mask)
    advantages = np.where(mask, numbers(), np.float32(0))
    found = Advantages(advantages, advantages, targets, known, targets)
    batch = make_batch(
        prepared, mask, found, old=old if known_old else None, values={name: numbers() for name in names} or None
    )
    return policy, batch


def updated(policy: Any, batch: Any, keys: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
    """Metrics of one gradient step, and its gradient."""
    optimizer = FlatAdam(policy, 1e-3)
    algorithm = ControlAlgorithmSettings.model_validate({"minibatch_size": B * T, "num_epochs": 1, **keys})
    found = update_policy(policy, optimizer, batch, algorithm, np.random.default_rng(0), learning_rate=0.0)
    return found, optimizer.flat.grad.clone()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    activation=st.sampled_from(["tanh", "relu"]),
    heads=st.integers(0, 2),
    hidden=st.sampled_from([(), (5,), (6, 5), (4, 4, 4)]),
    masked=st.booleans(),
    known_old=st.booleans(),
    keys=st.fixed_dictionaries(
        {"max_grad_norm": st.sampled_from([0.1, 100.0]), "clip_range": st.sampled_from([0.05, 0.2])},
        optional={
            "entropy_coef": st.just(0.02),
            "clip_range_high": st.just(0.3),
            "micro_batch_size": st.just(5),
            "normalize_advantages": st.just(False),
        },
    ),
)
def test_closed_form_is_autograd(seed, activation, heads, hidden, masked, known_old, keys):
    policy, batch = policy_and_batch(
        seed, activation=activation, heads=heads, hidden=hidden, masked=masked, known_old=known_old
    )
    if not heads:
        keys = {"adv_estimator": "reinforce_pp", **keys}
        keys.pop("normalize_advantages", None)  # a critic's
    closed, gradient = updated(policy, batch, keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closed_form, "applies", lambda *_: False)
        auto, wanted = updated(policy, batch, keys)
    assert list(closed) == list(auto)
    for name, value in auto.items():
        assert closed[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)


def test_where_it_applies():
    policy, batch = policy_and_batch(0)
    FlatAdam(policy, 1e-3)
    columns = batch.columns()

    def applies(columns: Any = columns, **keys: Any) -> bool:
        return closed_form.applies(policy, columns, ControlAlgorithmSettings.model_validate(keys))

    assert applies()
    assert not applies(clip_range_value=0.2)
    assert not applies(clip_ratio_c=3.0)
    assert not applies(columns | {"ref_log_probs": columns["mask"]})
    assert not applies({name: column for name, column in columns.items() if name != "returns"})
    next(policy.parameters()).requires_grad_(False)  # the critic alone learns
    assert not applies()
    assert not closed_form.applies(SimpleNamespace(), columns, ControlAlgorithmSettings())
