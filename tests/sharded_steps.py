"""Gradient steps of tiny policies, alone or as one of several processes, where the variables of torchrun are set.

python sharded_steps.py OUTPUT '[["name", "vla", {"optimizer": "sgd", "policy": {...}}], ...]'
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from architectures import build
from safetensors.torch import save_file
from tiny_models import enliven, random_batch
from torch.nn import functional
from vla_models import observations, policy_of

from guerdon import distributed
from guerdon.finite import SkippedSteps
from guerdon.policies.robot import ControlInputs
from guerdon.policies.shared_base import SharedBase
from guerdon.policies.text import TextPolicy
from guerdon.rl.build_control import control_optimizer
from guerdon.rl.update import make_batch, update_policy
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.train.optimizers import AdamW
from guerdon.types import Advantages

STEPS = 4
ROWS = 6


class SGD:
    """Plain gradient descent, with the interface of the optimisers of guerdon."""

    def __init__(self, parameters):
        self.optimizer = torch.optim.SGD(distributed.alike(parameters), lr=0.05)
        self.skipped = SkippedSteps("the policy", "the learning rate")

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, loss, max_norm, learning_rate=None):
        return self.skipped.clipped_step(self.optimizer, loss, max_norm)


def vla(options):
    """A policy with what it decided at random observations, and their batch."""
    policy = policy_of(seed=3, **options)
    rng = np.random.default_rng(0)
    seen = observations(count=ROWS, cameras=options.get("num_images_in_input", 1))
    shape = (ROWS, policy.chunk * policy.tokens_per_action)
    if policy.settings.family == "token":
        record = rng.integers(0, 16, shape)
    elif policy.settings.family == "regression":
        record = rng.uniform(-1, 1, shape).astype(np.float32)
    else:
        steps, size = policy.decoding.num_steps, policy.model.max_action_dim
        record = rng.normal(size=(ROWS, steps + 1, policy.horizon, size)).astype(np.float32)
    return policy, policy.prepared(ControlInputs(seen, record)), shape[1]


def text(options):
    """A language model of a family with random responses."""
    given = dict(options)
    family, heads, changes = given.pop("family"), given.pop("value_heads", 0), given.pop("changes", {})
    model, tokenizer = build(family, **changes)
    settings = TextPolicySettings(bf16=given.pop("bf16", False), device="cpu", **given)
    base = SharedBase(model, tokenizer, settings)
    if settings.lora is not None:
        base.add_adapter("policy", settings.lora, seed=1)
        policy = TextPolicy(base, adapter="policy", value_heads=heads)
    else:
        policy = TextPolicy(base, value_heads=heads)
    inputs = random_batch(ROWS)
    return policy, inputs, inputs.mask_B_T.shape[1]


def trained(kind, options):
    """Losses of every step, and the tensors of the policy and of its optimiser afterwards."""
    given = dict(options)
    optimizer, micro = given.pop("optimizer", "adamw"), given.pop("micro", None)
    policy, inputs, width = {"vla": vla, "text": text}[kind](given)
    parameters = [p for p in policy.parameters() if p.requires_grad]
    if optimizer == "sgd":
        learns = SGD(parameters)
    else:
        learns = control_optimizer(policy, 1e-2) if kind == "vla" else AdamW(parameters, 1e-2)
    rng = np.random.default_rng(1)
    mask = inputs.mask_B_T if kind == "text" else np.ones((ROWS, width), bool)
    heads = {"env": rng.normal(size=mask.shape).astype(np.float32)}
    if kind == "vla":
        heads["env"] = heads["env"][:, :1]
    has_critic = getattr(policy, "vf", None) is not None or getattr(policy, "value_head", None) is not None
    advantages = rng.normal(size=mask.shape).astype(np.float32) * mask
    found = Advantages(advantages, advantages, {}, {"env": np.ones(heads["env"].shape, bool)}, heads)
    batch = make_batch(inputs, mask, found, values=heads if has_critic else None)
    settings = ControlAlgorithmSettings(num_epochs=1, minibatch_size=ROWS, micro_batch_size=micro)
    losses = []
    for _ in range(STEPS):
        learned = update_policy(policy, learns, batch, settings, rng, learning_rate=1e-2)
        losses.append([learned[name] for name in ("policy_loss", "value_loss", "grad_norm") if name in learned])
    learns.zero_grad()
    return losses, policy.tensors(), learns.tensors() if optimizer != "sgd" else {}


def main(output, trainings):
    torch.set_num_threads(1)
    for name, kind, options in trainings:
        losses, weights, state = trained(kind, options)
        if distributed.is_first():
            folder = Path(output)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.json").write_text(json.dumps(losses))
            save_file({k: v.contiguous() for k, v in weights.items()}, folder / f"{name}.safetensors")
            save_file({k: v.contiguous() for k, v in state.items()}, folder / f"{name}_optimizer.safetensors")


if __name__ == "__main__":
    with distributed.joined(), distributed.together():
        main(sys.argv[1], json.loads(sys.argv[2]))
