"""The gradient in closed form is that of autograd, for every policy and loss that it is used for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.compute.optimizers import FlatAdam
from guerdon.policies.robots.control import build_policy
from guerdon.policies.robots.robot import ControlInputs
from guerdon.rl import update as closed_form
from guerdon.rl.losses import PolicyTerms, policy_loss
from guerdon.rl.update import make_batch, update_policy
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.settings.policy import MLPPolicySettings
from guerdon.types import Advantages
from tables import cases

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
    has_start: bool = False,
    auxiliary: tuple[str, ...] = (),
    choices: tuple[int, ...] = (),
    **more: Any,
) -> tuple[Any, Any]:
    """A policy that has moved since it acted, and what it learns from; `known_old`: also what it acted with.

    `has_start`: what it acted with is also the policy that it is kept near to.
    """
    rng = np.random.default_rng(seed)
    form = MLPPolicySettings(type="mlp", hidden=hidden, activation=activation, device="cpu", **more)
    names = [f"source {k}" for k in range(heads)]
    space = gymnasium.spaces.MultiDiscrete(choices) if choices else ACTIONS
    policy = build_policy(form, (S,), space, sources=names, auxiliary=auxiliary, seed=seed)
    taken = rng.integers(0, choices, (B * T, len(choices))) if choices else rng.standard_normal((B * T, 2))
    inputs = ControlInputs(
        rng.standard_normal((B * T, S)).astype(np.float32), taken if choices else taken.astype(np.float32)
    )

    def numbers() -> np.ndarray:
        return rng.standard_normal((B, T)).astype(np.float32)

    mask = rng.random((B, T)) < 0.7 if masked else np.ones((B, T), dtype=np.bool_)
    prepared = policy.prepared(inputs)
    if choices and masked:  # what was taken was allowed
        allowed = rng.random((B * T, sum(choices))) < 0.5
        np.put_along_axis(allowed, taken + np.cumsum([0, *choices[:-1]]), True, axis=1)
        prepared = replace(prepared, allowed=torch.from_numpy(allowed))
    old = policy.evaluate_all(prepared, micro=8).log_probs.numpy().reshape(B, T)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1 * torch.from_numpy(rng.standard_normal(parameter.shape).astype(np.float32))
    targets = {name: numbers() for name in names}
    known = {name: rng.random((B, T)) < 0.8 for name in names} if masked else dict.fromkeys(names, mask)
    advantages = np.where(mask, numbers(), np.float32(0))
    found = Advantages(advantages, advantages, targets, known, targets)
    batch = make_batch(
        prepared, mask, found, old=old if known_old else None, ref=old if has_start else None,
        values={name: numbers() for name in names} or None,
        auxiliary={name: (numbers(), mask) for name in auxiliary} or None,
    )  # fmt: skip
    return policy, batch


def updated(policy: Any, batch: Any, keys: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
    """Metrics of one gradient step, and its gradient."""
    optimizer = FlatAdam(policy, 1e-3)
    algorithm = ControlAlgorithmSettings.model_validate({"minibatch_size": B * T, "num_epochs": 1, **keys})
    found = update_policy(policy, optimizer, batch, algorithm, np.random.default_rng(0), learning_rate=0.0)
    return found, optimizer.flat.grad.clone()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    activation=st.sampled_from(["tanh", "relu"]),
    heads=st.integers(0, 2),
    hidden=st.sampled_from([(), (5,), (6, 5), (4, 4, 4)]),
    masked=st.booleans(),
    known_old=st.booleans(),
    choices=st.sampled_from([(), (), (2,), (3, 1, 4)]),
    keys=st.fixed_dictionaries(
        {"max_grad_norm": st.sampled_from([0.1, 100.0]), "clip_range": st.sampled_from([0.05, 0.2])},
        optional={
            "entropy_coef": st.just(0.02),
            "clip_range_high": st.just(0.3),
            "micro_batch_size": st.just(5),
            "normalize_advantages": st.just(False),
            "loss": st.sampled_from(["ppo", "gspo", "cispo"]),
        },
    ),
)
def test_closed_form_is_autograd(seed, activation, heads, hidden, masked, known_old, choices, keys):
    form = {"activation": activation, "hidden": hidden}
    policy, batch = policy_and_batch(seed, heads=heads, masked=masked, known_old=known_old, choices=choices, **form)
    if not heads:
        keys = {"adv_estimator": "reinforce_pp", **keys}
        keys.pop("normalize_advantages", None)  # a critic's
    assert compared(policy, batch, keys)


def compared(policy: Any, batch: Any, keys: dict[str, Any]) -> bool:
    """Make sure that an update gives what the general path gives; returns whether the closed form was used."""
    with pytest.MonkeyPatch.context() as patch:
        seen, add = [], closed_form.add_gradients
        patch.setattr(closed_form, "add_gradients", lambda *given: seen.append(1) or add(*given))
        found, gradient = updated(policy, batch, keys)
        patch.setattr(closed_form, "applies", lambda *_: False)
        wanted, expected = updated(policy, batch, keys)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert found[name] == (value if value is None else pytest.approx(value, rel=1e-4, abs=1e-6)), name
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
    return bool(seen)


def own_estimator(*_: Any, scale: float) -> None:
    """An estimator of one's own; these tests never call it."""


def own_loss(log_probs: Any, advantages: Any, scale: float = 1.0) -> PolicyTerms:
    """A policy loss of one's own that has no slope."""
    return PolicyTerms(-scale * advantages * log_probs)


GROUPS = {"adv_estimator": "grpo", "minibatch_size": B * T}
ALGORITHM = {  # each key with another value than its default, and what else that needs
    "type": {},  # it has one value
    "adv_estimator": {"adv_estimator": "reinforce_pp"},
    "estimator_params": {"adv_estimator": "test_closed_form:own_estimator", "estimator_params": {"scale": 2.0}},
    "loss": {"loss": "cispo"},
    "loss_params": {"loss": "test_closed_form:own_loss", "loss_params": {"scale": 2.0}},
    "clip_range": {"clip_range": 0.01},
    "clip_range_high": {"clip_range_high": 0.01},
    "clip_ratio_c": {"clip_ratio_c": 1.001},
    "entropy_coef": {"entropy_coef": 0.3},
    "lr_schedule": {"lr_schedule": "linear"},
    "rollout_steps": {"rollout_steps": 3},
    "num_epochs": {"num_epochs": 2},
    "minibatch_size": {"minibatch_size": 4},
    "micro_batch_size": {"micro_batch_size": 5},
    "learning_rate": {"learning_rate": 0.1},
    "gamma": {"gamma": 0.5},
    "gae_lambda": {"gae_lambda": 0.5},
    "clip_range_value": {"clip_range_value": 0.01},
    "value_coef": {"value_coef": 0.3},
    "max_grad_norm": {"max_grad_norm": 0.01},
    "target_kl": {"target_kl": 1e-6},
    "ema_decay": {"ema_decay": 0.5},
    "normalize_advantages": {"normalize_advantages": False},
    "normalize_rewards": {"normalize_rewards": True},
    "group_size": {**GROUPS, "group_size": 4},
    "grpo_std": {**GROUPS, "grpo_std": False},
    "filter_rewards": {**GROUPS, "filter_rewards": True, "rewards_lower_bound": 0.1},
    "rewards_lower_bound": {**GROUPS, "filter_rewards": True, "rewards_lower_bound": 0.2},
    "rewards_upper_bound": {**GROUPS, "filter_rewards": True, "rewards_upper_bound": 0.2},
    "value_init_steps": {"value_init_steps": 2},
    "logprob_type": {"logprob_type": "token_level"},
    "reward_type": {"reward_type": "chunk_level"},
    "auxiliary_losses": {"auxiliary_losses": {"progress": 0.5}},
    "kl_coef": {"kl_coef": 0.3},
    "kl_schedule": {"kl_coef": 0.3, "kl_schedule": "linear"},
}
POLICY = {
    "type": {},
    "hidden": {"hidden": (7,)},
    "activation": {"activation": "relu"},
    "log_std_init": {"log_std_init": -0.7},
    "normalize_observations": {"normalize_observations": False},
    "device": {},
    "checkpoint": {},  # weights, as any others
    "keys": {},  # which numbers there are
}
OF_AUTOGRAD = {"loss_params", "clip_range_value", "auxiliary_losses", "kl_coef", "kl_schedule"}


def test_every_key_is_tried():
    assert ALGORITHM.keys() == ControlAlgorithmSettings.model_fields.keys(), "add the new key, with another value"
    assert POLICY.keys() == MLPPolicySettings.model_fields.keys(), "add the new key, with another value"


@cases("key", ALGORITHM)
def test_no_key_of_the_algorithm_is_ignored(key):
    keys = ALGORITHM[key]
    form = ControlAlgorithmSettings.model_validate(keys)
    default = ControlAlgorithmSettings.model_fields[key].get_default(call_default_factory=True)
    assert (getattr(form, key) == default) == (not keys)
    auxiliary = ("progress",) if key == "auxiliary_losses" else ()
    heads, has_start = int(form.needs.critic), bool(form.kl_coef)
    policy, batch = policy_and_batch(3, heads=heads, auxiliary=auxiliary, has_start=has_start)
    assert compared(policy, batch, keys) == (key not in OF_AUTOGRAD)


@cases("key", POLICY)
def test_no_key_of_the_policy_is_ignored(key):
    assert compared(*policy_and_batch(3, **POLICY[key]), {})


def test_a_layer_that_nobody_has_looked_at_is_left_to_autograd():
    class Wider(MLPPolicySettings):
        layer_norm: bool = False

    policy, batch = policy_and_batch(0)
    FlatAdam(policy, 1e-3)
    columns, settings = batch.columns(), ControlAlgorithmSettings()
    policy.settings, plain = Wider(layer_norm=True, device="cpu"), policy.settings
    assert not closed_form.applies(policy, columns, policy_loss(settings), settings)
    policy.settings = plain
    assert closed_form.applies(policy, columns, policy_loss(settings), settings)
    policy.pi[1] = torch.nn.GELU()
    assert not closed_form.applies(policy, columns, policy_loss(settings), settings)


def test_where_it_applies():
    policy, batch = policy_and_batch(0)
    FlatAdam(policy, 1e-3)
    columns = batch.columns()

    def applies(columns: Any = columns, **keys: Any) -> bool:
        settings = ControlAlgorithmSettings.model_validate(keys)
        return closed_form.applies(policy, columns, policy_loss(settings), settings)

    assert all(applies(loss=name) for name in ("ppo", "gspo", "cispo", "reinforce"))
    assert not applies(loss="test_closed_form:own_loss"), "it has no slope"
    assert not applies(columns | {"ref_log_probs": columns["mask"]})
    assert not applies({name: column for name, column in columns.items() if name != "returns"})
    next(policy.parameters()).requires_grad_(False)  # the critic alone learns
    assert not applies()
    settings = ControlAlgorithmSettings()
    assert not closed_form.applies(SimpleNamespace(), columns, policy_loss(settings), settings)
