"""Gradient steps of tiny policies, alone or as one of several processes, where the variables of torchrun are set.

Every process writes what it held at most: of tensors while the policy was read, and of weights, gradients and moments
during the steps.

python sharded_steps.py OUTPUT '[["name", "vla", {"optimizer": "sgd", "family": "flow"}], ...]'
"""

import json
import os
import sys
import weakref
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import test_vla_checkpoints as checkpoints
import test_vla_pi0 as pi0
import torch
from architectures import build
from safetensors.torch import save_file
from tiny_models import random_batch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vla_models import observations, policy_of

from guerdon.compute import distributed, sharding
from guerdon.compute.finite import SkippedSteps
from guerdon.compute.optimizers import AdamW
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import load_policy
from guerdon.policies.robots.robot import ControlInputs
from guerdon.policies.vla import published, published_pi0
from guerdon.policies.vla.vision import ViTSize
from guerdon.rl.build_control import control_optimizer
from guerdon.rl.update import make_batch, update_policy
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import Advantages

STEPS = 4
MEASURED = ("policy_loss", "value_loss", "clip_fraction", "policy_loss/weight")
ROWS = 6
LAYERS = 8
GEMMAS = {name: published_pi0.GemmaSize(width, LAYERS, 4 * width, 4, 1, 16)
          for name, width in (("gemma_2b", 64), ("gemma_300m", 32))}  # fmt: skip
SIGLIP = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
          "patch_size": 4}  # fmt: skip
TOWERS = {
    checkpoints.DINO: ViTSize(16, 4, 32, 4, 4, 64, prefix=5, scaled=True),
    checkpoints.SIGLIP: ViTSize(16, 4, 32, 4, 4, 64),
}  # of OpenVLA


class Built(TorchDispatchMode):
    """Counts the bytes of tensors that operators make, as long as they are there; not those of mapped files.

    Attributes:
        most: at a time.
    """

    def __init__(self):
        super().__init__()
        self.storages, self.most = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self.add(getattr(tensor, "_local_tensor", tensor).untyped_storage())
        return found

    def add(self, storage):
        key = storage._cdata
        if key in self.storages or not storage.nbytes() or mapped(storage.data_ptr()):
            return
        self.storages[key] = weakref.ref(storage)
        weakref.finalize(storage, self.storages.pop, key, None)
        alive = [found for one in list(self.storages.values()) if (found := one()) is not None]
        self.most = max(self.most, sum(one.nbytes() for one in alive))  # FSDP empties storages that it keeps


def mapped(address):
    """Whether there is a file of weights at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(".safetensors"):
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return True
    return False


class Held:
    """Counts the bytes of weights, gradients and moments, by storage, where FSDP gathers or reduces, and at steps.

    Attributes:
        most: at a time.
        gathered: in which dtypes blocks were.
    """

    def __init__(self, policy, learns):
        self.policy, self.learns, self.most, self.gathered = policy, learns, 0, set()

    def resting(self):
        """Weights, gradients and moments, as they are between steps."""
        found = [getattr(self.learns, "flat", None)]
        model = self.policy.base.model if hasattr(self.policy, "base") else self.policy
        for parameter in (*model.parameters(), *self.policy.parameters()):
            found += [parameter, parameter.grad]
        if hasattr(self.learns, "optimizer"):
            return found + tree_leaves(dict(self.learns.optimizer.state))
        return found + list(self.learns._moments.values())

    def look(self):
        found = self.resting()
        for group in {g for m in self.modules() for g in m._get_fsdp_state()._fsdp_param_groups}:
            states = [*group.comm_ctx.reduce_scatter_states, group.comm_ctx.all_gather_state, group._all_gather_result]
            found += [one for state in states for one in tree_leaves(state)]
            for one in group.fsdp_params:
                whole = getattr(one, "_unsharded_param", None)
                found += [one._sharded_param_data, whole, None if whole is None else whole.grad]
                found += one.all_gather_outputs
                if group._module_fqn:  # of a block; the rest of the model has none
                    self.gathered |= {str(output.dtype) for output in one.all_gather_outputs}
        self.most = max(self.most, bytes_of(found))

    def modules(self):
        shards = getattr(self.policy, "shards", None) or getattr(getattr(self.policy, "base", None), "shards", None)
        return [] if shards is None else shards._blocks

    def watching(self, owner, names, stack):
        """Look before and after these methods."""
        for name in names:
            original = getattr(owner, name)

            def called(*args, original=original, **options):
                self.look()
                found = original(*args, **options)
                self.look()
                return found

            stack.enter_context(mock.patch.object(owner, name, called))


def bytes_of(tensors):
    """Bytes of these tensors, by storage; of shards, those of this process."""
    sizes = {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


class Kept:
    """Counts the bytes that autograd keeps of a pass, by storage; not those of weights, nor of casts of weights.

    Attributes:
        most: of a pass.
        again: of the block that keeps most, of those that checkpointing computes again.
    """

    def __init__(self, policy, stack):
        self.most = self.again = 0
        model = policy.base.model if hasattr(policy, "base") else policy
        self.shapes = {tuple(p.shape) for p in model.parameters()}
        self.shapes |= {shape[::-1] for shape in self.shapes}
        self.owners = [module for module in model.modules() if module._parameters]
        evaluate, checkpoint = policy.evaluate, sharding.checkpoint

        def evaluated(*args, **options):
            result, kept = self.counted(evaluate, *args, **options)
            self.most = max(self.most, kept)
            return result

        def checkpointed(forward, *args, use_reentrant, **options):
            self.again = max(self.again, self.counted(forward, *args, **options)[1])
            return checkpoint(forward, *args, use_reentrant=use_reentrant, **options)

        stack.enter_context(mock.patch.object(policy, "evaluate", evaluated))
        stack.enter_context(mock.patch.object(sharding, "checkpoint", checkpointed))

    def own(self):
        """Addresses of weights; a parameter changes where it is sharded."""
        return {getattr(p, "_local_tensor", p).untyped_storage().data_ptr()
                for module in self.owners for p in module._parameters.values() if p is not None}  # fmt: skip

    def counted(self, compute, *args, **options):
        """What is computed, and the bytes that are kept of it."""
        found, alive = {}, []

        def pack(tensor):
            shape, storage = tuple(tensor.shape), tensor.untyped_storage()
            cast = tensor.dtype == torch.bfloat16 and len(shape) > 1
            if shape not in self.shapes or not (cast or storage.data_ptr() in self.own()):
                found[storage.data_ptr()] = storage.nbytes()
                alive.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = compute(*args, **options)
        return result, sum(found.values())


def widen(patch):
    """Checkpoints of pi0 and OpenVLA are so wide that what their layers keep is most of what is kept."""
    for sizes, own in ((published_pi0.GEMMAS, GEMMAS), (published_pi0.SIGLIP, SIGLIP), (published.TOWERS, TOWERS)):
        for name, size in own.items():
            patch.setitem(sizes, name, size)


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
    if "vla_path" in options:
        given = dict(options)
        (widen if given.pop("wide", False) else pi0.shrink)(pytest.MonkeyPatch())
        path, folder = given.pop("vla_path"), given.pop("folder", None)
        read = checkpoints.read if folder is None else partial(pi0.read, tmp_path=Path(folder))
        policy = read(path, heads=("env",), **given)
    else:
        policy = policy_of(seed=3, **options)
    rng = np.random.default_rng(0)
    seen = observations(count=ROWS, cameras=policy.settings.num_images_in_input)
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
    if "path" in given:
        policy, inputs = load_policy(TextPolicySettings(bf16=False, device="cpu", **given), seed=0), random_batch(ROWS)
        return policy, inputs, inputs.mask_B_T.shape[1]
    family, heads, changes = given.pop("family"), given.pop("value_heads", 0), given.pop("changes", {})
    length = given.pop("length", None)
    model, tokenizer = build(family, **changes)
    settings = TextPolicySettings(bf16=given.pop("bf16", False), device="cpu", **given)
    base = SharedBase(model, tokenizer, settings)
    if settings.lora is not None:
        base.add_adapter("policy", settings.lora, seed=1)
        policy = TextPolicy(base, adapter="policy", value_heads=heads)
    else:
        policy = TextPolicy(base, value_heads=heads)
    inputs = random_batch(ROWS)
    if length is not None:  # of every sequence, half of it the response
        tokens = np.random.default_rng(0).integers(7, base.vocabulary, (2, ROWS, length // 2))
        inputs = token_batch(list(tokens[0]), list(tokens[1]), np.ones(ROWS, bool), pad_id=0)
    return policy, inputs, inputs.mask_B_T.shape[1]


def trained(kind, options):
    """Losses of every step, and the tensors of the policy and of its optimiser afterwards."""
    given = dict(options)
    optimizer, micro = given.pop("optimizer", "adamw"), given.pop("micro", None)
    steps, built, loss = given.pop("steps", STEPS), Built(), given.pop("loss", None)
    with built if {"path", "vla_path"} & given.keys() and not given.get("wide") else nullcontext():
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
    found = Advantages(advantages, advantages, {}, {"env": mask[:, : heads["env"].shape[1]]}, heads)
    old = None if loss is None else rng.normal(-5, 1, mask.shape)  # ratios within the clip range and beyond
    batch = make_batch(inputs, mask, found, old=old, values=heads if has_critic else None)
    settings = ControlAlgorithmSettings(loss=loss or "ppo", num_epochs=1, minibatch_size=ROWS, micro_batch_size=micro)
    losses, held = [], Held(policy, learns)
    with ExitStack() as stack:
        kept = Kept(policy, stack)
        held.watching(FSDPParamGroup, ("unshard", "wait_for_unshard", "post_backward", "reshard"), stack)
        held.watching(learns, ("step",), stack)
        for _ in range(steps):
            learned = update_policy(policy, learns, batch, settings, rng, learning_rate=1e-2)
            losses.append([learned[name] for name in MEASURED if name in learned])
    facts = {"losses": losses, "built": built.most, "held": held.most, "gathered": sorted(held.gathered)}
    every = (policy.base.model if kind == "text" else policy).parameters()
    facts |= {"resting": bytes_of(held.resting()), "kept": kept.most, "again": kept.again}
    facts |= {"parameters": sum(p.numel() for p in every), "trained": sum(p.numel() for p in parameters)}
    learns.zero_grad()
    return facts, policy.tensors(), learns.tensors() if optimizer != "sgd" else {}


def main(output, trainings):
    torch.set_num_threads(1)
    for name, kind, options in trainings:
        facts, weights, state = trained(kind, options)
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}_{os.environ.get('RANK', '0')}.json").write_text(json.dumps(facts))
        if distributed.is_first():
            save_file({k: v.contiguous() for k, v in weights.items()}, folder / f"{name}.safetensors")
            save_file({k: v.contiguous() for k, v in state.items()}, folder / f"{name}_optimizer.safetensors")


if __name__ == "__main__":
    with distributed.joined(), distributed.together():
        main(sys.argv[1], json.loads(sys.argv[2]))
