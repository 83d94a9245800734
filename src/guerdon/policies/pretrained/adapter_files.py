"""Adapters of peft on disk: read by peft's own code, onto models of transformers and onto bare weights.

Some ways of making an adapter change the weights under it (`init_lora_weights`: PiSSA, OLoRA, LoftQ); peft makes that
change again when it reads one, and so do all readers here. What it cannot make again is refused by name.

    model = read_adapter(model, Path("runs/sft"))
    weights = merged_weights(weights, Path("runs/vla-lora"))     # of a network that transformers does not have
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Container, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from guerdon.compute.finite import load_weights
from guerdon.errors import CheckpointError, MissingDependencyError, boundary
from guerdon.network.hub import ADAPTER, adapter_config, check_folder, quietly, reading
from guerdon.policies.pretrained.adapters import import_peft
from guerdon.policies.pretrained.reading import ComputedWeight, names_of_parameters

ADAPTER_WEIGHTS = "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."  # before the names in an adapter's file
_UNREAD = ("XLORA", "PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT")
_LOST = {  # ways of making an adapter that change the weights under it by what is not in its folder
    "pissa_niter": "a decomposition that is drawn at random",
    "corda": "the covariances of its data",
    "lora_ga": "the gradients of its data",
}
PATTERN_SECONDS = 10
_TRY = """import contextlib, json, re, sys
patterns, names = json.load(sys.stdin)
for pattern in patterns:
    with contextlib.suppress(re.error):  # peft reports what is wrong with it
        for name in names:
            re.fullmatch(pattern, name)
"""
_CONVERT = "save it again with peft's save_pretrained(path_initial_model_for_weight_conversion=...), or merged"


def stored_adapter(folder: Path) -> dict[str, Tensor]:
    """The weights in the folder of an adapter, by the names that peft stores them under.

    Raises:
        CheckpointError: there is no adapter, it is not safe to read, or it cannot be read.
    """
    check_folder(CheckpointError, "the adapter", folder)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise CheckpointError(f"no adapter at {folder}: expected {ADAPTER} and {ADAPTER_WEIGHTS}")
    return load_weights(folder / ADAPTER_WEIGHTS)


def changes_base(config: Mapping[str, Any]) -> str | None:
    """How an adapter was made, where reading it changes the weights under it; None where they stay."""
    made = str(config.get("init_lora_weights")).lower()
    return made if made.startswith(("pissa", "olora", "loftq", *_LOST)) else None


def read_adapter(
    model: Any, folder: Path, *, name: str = "default", trainable: bool = False, assign: bool = False
) -> Any:
    """A model with the peft adapter of a folder on it, every weight of which must fit.

    Args:
        model: changed in place.
        folder: of the adapter.
        name: of the adapter on the model.
        trainable: whether it is to be trained.
        assign: weights of the model itself that the adapter's folder holds replace its parameters.

    Raises:
        CheckpointError: there is no adapter, it cannot be read, or it does not fit.
        MissingDependencyError: peft, or what the adapter needs, is not installed.
    """
    peft = import_peft()
    with reading("the adapter", str(folder)):
        stored = stored_adapter(folder)
    config = adapter_config(folder)
    _check_kind(config, folder)
    _check_patterns(config, model, folder)
    with reading("the adapter", str(folder)):
        how = peft.PeftConfig.from_pretrained(str(folder))
        how.inference_mode = not trainable
        if not hasattr(model, "prepare_inputs_for_generation"):
            how.task_type = None  # peft's classes for tasks need a model of transformers
        if new := _renamed(model, stored):
            _follow(how, stored, new)
        if assign and changes_base(config):
            how.init_lora_weights = True
        adapted = peft.get_peft_model(model, how, adapter_name=name)
        report = adapted.load_adapter(
            str(folder), name, is_trainable=trainable, key_mapping=new, low_cpu_mem_usage=assign
        )
    given = dict(adapted.named_parameters(remove_duplicate=False))
    there = {id(p) for key, p in given.items() if key not in report.missing_keys}  # layers may share one (VB-LoRA)
    missing = {key for key in report.missing_keys if id(given.get(key)) not in there}
    wrong = sorted({*missing, *report.unexpected_keys})
    if wrong:
        raise CheckpointError(
            f"the adapter {folder} does not fit its model: {len(wrong)} weights, such as {wrong[0]}; name the model "
            f"that it was trained on in {ADAPTER}, or save it again with the installed transformers"
        )
    return adapted


def _check_kind(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse adapters that cannot be read, or not without another package."""
    kind, made = str(config.get("peft_type")), changes_base(config)
    if kind in _UNREAD or config.get("megatron_config"):
        named = kind if kind in _UNREAD else "megatron_config"
        raise CheckpointError(
            f"the adapter {folder} has the type {named}, which loads files or modules of other folders; merge it "
            "into its model, or train a LoRA adapter"
        )
    lost = next((_LOST[one] for one in _LOST if made and made.startswith(one)), None)
    if lost:
        raise CheckpointError(
            f"the adapter {folder} was made with init_lora_weights {made!r}, which changed the weights under it by "
            f"{lost}, which the folder does not have: {_CONVERT}"
        )
    if made == "loftq" and find_spec("bitsandbytes") is None:
        raise MissingDependencyError(
            f"the adapter {folder} was made with init_lora_weights 'loftq', which needs bitsandbytes: pip install "
            "bitsandbytes"
        )


def _check_patterns(config: Mapping[str, Any], model: Any, folder: Path) -> None:
    """Refuse regular expressions of an adapter that take too long, by trying them in another process."""
    given = [config.get("target_modules"), config.get("exclude_modules")]
    forms = dict.fromkeys(("rank_pattern", "alpha_pattern", "modules_to_save"), (r"(.*\.)?(", ")$"))
    for key, (before, after) in {**forms, "layers_pattern": (r"(?:^|.*?\.)", r"\.\d+\..*")}.items():
        ones = [found] if isinstance(found := config.get(key) or (), str) else found
        given += [f"{before}{one}{after}" for one in ones if re.search(r"[^\w.-]", str(one))]
    patterns = [one for one in given if isinstance(one, str) and re.search(r"[^\w.-]", one)]
    if not patterns:
        return
    asked = json.dumps([patterns, [name for name, _ in model.named_modules()]])
    try:
        subprocess.run(  # noqa: S603
            [sys.executable, "-c", _TRY], input=asked, text=True, check=False, capture_output=True,
            timeout=PATTERN_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CheckpointError(
            f"{folder / ADAPTER}: its regular expressions, such as {patterns[0][:80]!r}, take more than "
            f"{PATTERN_SECONDS} s; list the names of the layers instead"
        ) from None


def _renamed(model: Any, stored: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of modules that the installed transformers has changed since an adapter was saved, by its own rules.

    Returns:
        Expressions for beginnings of names, and what replaces them; empty where all modules have their names.
    """
    modules = {name for name, _ in model.named_modules()}
    strangers = [name for key in stored if not _known(name := key.removeprefix(PEFT_PREFIX), modules)]
    if not strangers or not hasattr(model, "config"):
        return {}
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming

    rules = [rule for rule in get_model_conversion_mapping(model) if type(rule) is WeightRenaming]
    found = {}
    for old in strangers:
        new = old
        for rule in rules:
            new, _ = rule.rename_source_key(new)
        if _known(new, modules):
            olds, news = old.split("."), new.split(".")
            while len(olds) > 1 and len(news) > 1 and olds[-2:] == news[-2:]:
                olds, news = olds[:-1], news[:-1]
            found[rf"^{re.escape('.'.join(olds))}(?=\.)"] = ".".join(news)
    return found


def _known(name: str, modules: set[str]) -> bool:
    """Whether a name in an adapter's file belongs to a module."""
    path = name.partition(".lora_")[0] if ".lora_" in name else name.rpartition(".")[0]
    return path in modules or path.rpartition(".")[0] in modules


def _follow(config: Any, stored: Mapping[str, Tensor], new: Mapping[str, str]) -> None:
    """Set the module names in the configuration of an adapter to those of its file, renamed."""

    def renamed(name: str) -> str:
        for old, now in new.items():
            name = re.sub(old, now, name)
        return name

    names = [key.removeprefix(PEFT_PREFIX).partition(".lora_")[0] for key in stored if ".lora_" in key]
    if names:
        config.target_modules = {renamed(name) for name in names}
        config.exclude_modules = config.layers_to_transform = None
        for patterns in (config.rank_pattern, config.alpha_pattern):
            for name in [*patterns]:
                patterns[renamed(name)] = patterns.pop(name)


def merged_weights(weights: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Weights with the adapter of a folder merged into them by peft, as `read_adapter` reads it.

    Args:
        weights: of a network, by the names under which the adapter knows them. They stay as they are.
        folder: of the adapter.

    Returns:
        The same names; weights with an adapter in float32, merged when they are read (`merged_on_reading`) or now.

    Raises:
        CheckpointError: the adapter cannot be read, is of another kind, or does not fit.
        MissingDependencyError: peft is not installed.
    """
    with quietly(), boundary(CheckpointError, f"the adapter {folder} does not fit the weights"):
        found = merged_on_reading(_modules(weights, values=False), weights, folder)
        if found is None:
            merged = read_adapter(_modules(weights, values=True), folder).merge_and_unload(safe_merge=True)
            found = {name: tensor.detach() for name, tensor in merged.state_dict().items()}
    if lost := sorted(weights.keys() ^ found.keys()):
        raise CheckpointError(f"the adapter {folder} does not fit the weights: they have no {lost[0]}")
    return found


def merged_on_reading(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor] | None:
    """Weights of a model with the adapter of a folder, each merged by peft when it is read.

    Args:
        model: on torch's device `meta`; it is changed.
        weights: of the model, by name.
        folder: of the adapter.

    Returns:
        The names of weights that the model shares have the same tensor, unless the adapter changes one of them only.
        None where the adapter has a layer on what is not a weight of the model.

    Raises:
        CheckpointError: as `read_adapter`.
        MissingDependencyError: as `read_adapter`.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    _make_hollow(model)
    before = [*model.modules(), *model.parameters()]  # kept, so that nothing new has the id of one that is gone
    names_of = names_of_parameters(model)
    alike = {name: names for names in names_of.values() for name in names}
    adapted = read_adapter(model, folder, assign=True)
    from peft.tuners.tuners_utils import BaseTunerLayer

    config = adapted.peft_config["default"]
    found = {**weights, **_whole_weights(adapted, paths, names_of, alike)}
    for layer in [module for module in adapted.modules() if isinstance(module, BaseTunerLayer)]:
        base = layer.get_base_layer()
        path = paths.get(id(base), "")
        one = getattr(layer, "parameter_name", None)  # of stacked experts, which have a layer for each weight
        names = {leaf: f"{path}.{leaf}" for leaf, _ in base.named_parameters(recurse=False) if one in (None, leaf)}
        if not path or not found.keys() >= {*names.values()}:
            return None
        if getattr(layer, "tied_adapter", None) is not None:  # single tokens: as the layer that it follows
            continue
        values = {leaf: found[name] for leaf, name in names.items()}
        for leaf, name in names.items():
            merged = ComputedWeight(values[leaf].shape, partial(_merged, layer, values, leaf, config, folder))
            found |= dict.fromkeys(alike[name] if hasattr(layer, "tied_adapter") else [name], merged)
    del before
    return found


def _whole_weights(
    adapted: Any, paths: Mapping[int, str], names_of: Container[int], alike: Mapping[str, Sequence[str]]
) -> dict[str, Tensor]:
    """Weights that an adapter's file has whole, by their names in the model.

    Args:
        adapted: peft's model with the adapter.
        paths: of the modules of the model, by `id`.
        names_of: the `id` of each parameter that the model had before.
        alike: the names of the weight that has a name.
    """
    from peft.utils.other import ModulesToSaveWrapper

    tied = getattr(adapted.peft_config["default"], "ensure_weight_tying", False)
    found: dict[str, Tensor] = {}
    for module in adapted.modules():
        if isinstance(module, ModulesToSaveWrapper):
            path = paths[id(module.original_module)]
            for leaf, tensor in module.modules_to_save["default"].state_dict(keep_vars=True).items():
                name = f"{path}.{leaf}"
                found |= dict.fromkeys(alike.get(name, [name]) if tied else [name], tensor.detach())
        for leaf, own in module.named_parameters(recurse=False):
            if id(module) in paths and id(own) not in names_of:
                found |= dict.fromkeys(alike[f"{paths[id(module)]}.{leaf}"], own.detach())
    return found


def _make_hollow(model: nn.Module) -> None:
    """Give parameters on the device `meta` one number in memory each: peft reads shapes, types and devices."""
    hollow: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for leaf, own in module.named_parameters(recurse=False):
            made = nn.Parameter(torch.zeros(()).expand(own.shape), requires_grad=False)
            module.register_parameter(leaf, hollow.setdefault(id(own), made))


def _merged(layer: Any, values: Mapping[str, Tensor], leaf: str, config: Any, folder: Path) -> Tensor:
    """A weight of a layer of peft that has the values given here, with the adapter of a folder."""
    one, made = copy.deepcopy(layer), changes_base(adapter_config(folder))
    base = one.get_base_layer()
    for name, value in values.items():
        base.register_parameter(name, nn.Parameter(value.to(torch.float32, copy=True), requires_grad=False))
    with boundary(CheckpointError, f"the adapter {folder} cannot be merged into its model"):
        if made:  # peft changes the base weight as it did when the adapter was made; the adapter keeps its values
            stored = {name: tensor.clone() for name, tensor in one.state_dict().items() if "base_layer." not in name}
            how = {"olora": (), "loftq": (config,)}.get(made, (made,))
            getattr(one, f"{made.partition('_')[0]}_init")("default", *how)
            one.load_state_dict(stored, strict=False)
        one.merge(safe_merge=True)
    return one.get_base_layer().get_parameter(leaf).detach()  # type: ignore[no-any-return]


def _modules(weights: Mapping[str, Tensor], *, values: bool) -> nn.Module:
    """Modules with parameters of these names and shapes, in float32 with their values or on torch's device `meta`."""
    root = nn.Module()
    for name in sorted(weights, key=lambda name: (not name.endswith(".weight"), name)):
        path, _, leaf = name.rpartition(".")
        owner = _owner(root, path, weights[name] if leaf == "weight" else None, f"{path}.bias" in weights)
        value = weights[name].to(torch.float32, copy=True) if values else torch.empty_like(weights[name], device="meta")
        owner.register_parameter(leaf, nn.Parameter(value, requires_grad=False))
    return root


def _owner(root: nn.Module, path: str, weight: Tensor | None, bias: bool) -> nn.Module:
    """The module of a path, created where it is missing, with the class that its weight needs."""
    *parents, last = path.split(".")
    for parent in parents:
        if parent not in root._modules:
            root.add_module(parent, nn.Module())
        root = root.get_submodule(parent)
    if last and last not in root._modules:
        made = nn.Module()
        if weight is not None and weight.ndim == 2 and "embed" in last:
            made = nn.Embedding(weight.shape[0], weight.shape[1], device="meta")
        elif weight is not None and weight.ndim == 2:
            made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias, device="meta")
        elif weight is not None and weight.ndim == 4:
            made = nn.Conv2d(
                weight.shape[1], weight.shape[0], (weight.shape[2], weight.shape[3]), bias=bias, device="meta"
            )
        root.add_module(last, made)
    return root.get_submodule(last)
