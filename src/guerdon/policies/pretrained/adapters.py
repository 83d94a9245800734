"""Adapters of peft on a model: made, checked, and merged by peft's own code, one module at a time.

What carries an adapter may be a linear layer, an embedding, the output layer, or the stacked weights of experts.
Merging leaves the model as it is: peft gets a copy of the weights to add to.

    with fresh_lora(LoraSettings(r=16), seed=0) as config:
        peft_model = import_peft().get_peft_model(model, config, adapter_name="policy")
    merged(owner, layers, "policy")["weight"]       # of the module that layers of peft are on
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from guerdon.compute.devices import seeded
from guerdon.errors import ConfigError, needs
from guerdon.plan.text_size import is_router
from guerdon.processes.progress import log_once
from guerdon.settings.text_policy import LoraSettings

# Beginnings of peft's warnings about what it or this module corrects.
_CORRECTED = ("`is_gradient_checkpointing` is deprecated", "Model has `tie_word_embeddings=True`",
              "fan_in_fan_out is set to", "The following (rank|alpha)_pattern keys did not match")  # fmt: skip


def import_peft() -> Any:
    """The peft package, without its warnings about what is corrected here.

    Raises:
        MissingDependencyError: it is not installed.
    """
    with needs("adapters need peft: pip install guerdon[text]"):
        import peft
    for warning in _CORRECTED:
        warnings.filterwarnings("ignore", warning)
    return peft


@contextmanager
def fresh_lora(
    settings: LoraSettings, *, seed: int, device: torch.device | str = "cpu", task_type: str | None = None
) -> Iterator[Any]:
    """The `LoraConfig` of an adapter that is made inside the block, with weights drawn from the seed.

    Raises:
        MissingDependencyError: peft is not installed.
        ConfigError: no layer has the names of `target_modules`.
    """
    target = settings.target_modules if isinstance(settings.target_modules, str) else list(settings.target_modules)
    with seeded(seed, device):
        try:
            yield import_peft().LoraConfig(
                r=settings.r, lora_alpha=settings.alpha, lora_dropout=settings.dropout, target_modules=target,
                task_type=task_type,
            )  # fmt: skip
        except ValueError as error:
            hint = "; set lora.dropout to 0" if "lora_dropout" in str(error) else ""
            raise ConfigError(f"lora.target_modules {target!r}: {error}{hint}", key="lora.target_modules") from error


ALL_LINEAR = "all-linear"


def linear_targets(
    model: Any, *, inside: str, called: Container[str] | None
) -> tuple[tuple[str, ...], dict[str, set[str]]]:
    """What `all-linear` names in a causal language model, and the names of linear layers that it leaves out, by reason.

    Args:
        model: of transformers, without adapters.
        inside: path of the part that reads text; layers elsewhere, such as those of towers, are left out.
        called: paths of layers that a forward pass calls; None: not known.

    Returns:
        Names for `target_modules`, those of stacked experts included, and for each reason the last parts of names.
    """
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    kept: list[str] = []
    left: dict[str, set[str]] = {}
    for path, module in model.named_modules():
        is_linear = isinstance(module, nn.Linear | Conv1D) or is_kernel(module)
        if not is_linear or module is head:
            continue
        reason = _left_out(model, path, module, inside, called)
        if reason is None:
            kept.append(path)
        else:
            left.setdefault(reason, set()).add(_leaf(path))
    apart = set().union(*left.values())
    names = {path if _leaf(path) in apart or _leaf(path).isdigit() else _leaf(path) for path in kept}
    experts = _stacked_experts(model)
    if routers := {name for name in experts if is_router(name)}:
        left.setdefault("routers", set()).update(routers)
    return tuple(sorted(names | (experts - routers))), left


def is_kernel(module: nn.Module) -> bool:
    """Whether a module is a linear layer of a package that keeps weights in few bits, as GPTQ and AWQ."""
    sizes = (getattr(module, name, None) for name in ("in_features", "out_features"))
    return hasattr(module, "qweight") and all(isinstance(size, int) for size in sizes)


@torch.no_grad()
def kernels_to_floats(model: nn.Module) -> None:
    """Replace linear layers that keep weights in few bits by layers with these weights in float32.

    A weight is what its kernel makes of the rows of an identity matrix, less the bias.

    Args:
        model: of transformers, changed in place.
    """
    for path, kernel in [(path, module) for path, module in model.named_modules() if is_kernel(module)]:
        bias = getattr(kernel, "bias", None)
        linear = nn.Linear(kernel.in_features, kernel.out_features, bias=bias is not None)
        for rows in torch.split(torch.arange(kernel.in_features, device=kernel.qweight.device), 1024):
            columns = kernel(nn.functional.one_hot(rows, kernel.in_features).float())
            linear.weight[:, rows.cpu()] = (columns if bias is None else columns - bias).T.float().cpu()
        if bias is not None:
            linear.bias.copy_(bias)
        model.set_submodule(path, linear.to(kernel.qweight.device))


def _left_out(model: Any, path: str, module: nn.Module, inside: str, called: Container[str] | None) -> str | None:
    """Why a linear layer is left out; None: it is not."""
    if inside and not path.startswith(f"{inside}."):
        return "outside of the part that reads text"
    if is_router(path) or "Router" in type(module).__name__:
        return "routers"
    if called is not None and path not in called and ".experts." not in path:
        return "read by their weights, without a call"
    utilities = import_peft().tuners.tuners_utils
    refuses = getattr(utilities, "_check_lora_target_modules_mamba", None)
    if refuses is not None:
        try:
            refuses(import_peft().LoraConfig(), model, _leaf(path))
        except ValueError:
            return "refused by peft"
    return None


def _stacked_experts(model: Any) -> set[str]:
    """The names by which peft takes experts that transformers keeps as stacked weights, and their router."""
    if (
        find_spec("peft.utils.transformers_weight_conversion") is None
    ):  # of older versions, which know no stacked experts
        return set()
    rules = importlib.import_module("peft.utils.transformers_weight_conversion")
    kind = rules._MODEL_TO_CONVERSION_PATTERN.get(model.config.model_type)
    return set(rules._MOE_TARGET_MODULE_MAPPING.get(kind, ()))


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def adapter_layers(model: nn.Module) -> list[Any]:
    """The layers of peft in a model, which carry its adapters."""
    kind = import_peft().tuners.tuners_utils.BaseTunerLayer
    return [layer for layer in model.modules() if isinstance(layer, kind)]


def stored_weights(model: nn.Module) -> dict[nn.Module, dict[str, str]]:
    """Every module of a model without adapters that has weights of its own: the names that they have in a folder.

    A weight that several modules share is named once; buffers that are not stored are left out.
    """
    found: dict[nn.Module, dict[str, str]] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        own = {leaf: p for leaf, p in module.named_parameters(recurse=False) if id(p) not in seen}
        own |= {leaf: b for leaf, b in module.named_buffers(recurse=False)
                if leaf not in module._non_persistent_buffers_set}  # fmt: skip
        seen |= {id(tensor) for tensor in own.values()}
        if own:
            found[module] = {leaf: f"{path}.{leaf}" if path else leaf for leaf in own}
    return found


def untie(model: Any, layers: Sequence[Any]) -> nn.Module | None:
    """Give the output layer a matrix of its own where an adapter changes the one that it shares with the embedding.

    Args:
        model: of transformers, adapters on it; changed in place.
        layers: of peft, in it.

    Returns:
        The output layer, without adapters; None where nothing was to be done.

    Raises:
        ConfigError: an adapter changes a weight that other modules share.
    """
    alone = [layer for layer in layers if not hasattr(layer, "trainable_tokens_delta")]  # those peft ties itself
    changed = [getattr(layer.get_base_layer(), getattr(layer, "parameter_name", "weight"), None) for layer in alone]
    holders: dict[int, list[str]] = {id(weight): [] for weight in changed if weight is not None}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if id(weight) in holders:
            holders[id(weight)].append(name)
    shared = {key: names for key, names in holders.items() if len(names) > 1}
    if not shared:
        return None
    pair = [_plain(model.get_input_embeddings()), _plain(model.get_output_embeddings())]
    for key, names in shared.items():
        if len(names) != 2 or any(id(getattr(one, "weight", None)) != key for one in pair):
            raise ConfigError(
                f"an adapter is on {names[0]}, and {names[1]} is the same weight: guerdon cannot merge it; leave "
                "this layer out of the adapter (lora.target_modules)",
                key="lora.target_modules",
            )
    head: Any = pair[1]
    head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    mark_untied(model)
    log_once("an adapter is on the input or output embedding, which were one matrix: each has its own from here on")
    return head  # type: ignore[no-any-return]


def mark_untied(model: Any) -> None:
    """Mark input and output embedding as two matrices, in the configuration and for transformers' own code."""
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


@torch.no_grad()
def merged(owner: nn.Module, layers: Sequence[Any], adapter: str) -> dict[str, Tensor]:
    """The weights of a module with an adapter added in by peft, in float32; the module stays as it is.

    Args:
        owner: the module under layers of peft.
        layers: those that are on it.
        adapter: its name.

    Returns:
        New tensors, by their names in the module.
    """
    twin = copy.copy(owner)
    own = {leaf: p.detach() for leaf, p in owner.named_parameters(recurse=False)}
    twin._parameters = {leaf: nn.Parameter(p.to(torch.float32, copy=True), False) for leaf, p in own.items()}
    for layer in layers:
        over = copy.copy(layer)
        over._modules = {**layer._modules, "base_layer": twin}
        over.merged_adapters = []
        over.merge(adapter_names=[adapter])
    return {leaf: p.detach() for leaf, p in twin.named_parameters(recurse=False)}


def carries(layer: Any, adapter: str) -> bool:
    """Whether a layer of peft has weights of an adapter."""
    return any(adapter in getattr(layer, kind, ()) for kind in layer.adapter_layer_names)


def _plain(layer: Any) -> Any:
    return layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer
