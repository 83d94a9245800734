"""Language models on disk: policies and peft folders, read strictly and written whole.

An adapter's folder is read together with the model it belongs to and merged into it. Folders written here carry hashes
and are checked when they are read.

    policy = load_policy(TextPolicySettings(path="runs/sft/model"), seed=0)
    save_policy(policy, Path("runs/rl/model"))
"""

from __future__ import annotations

import copy
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from guerdon.compute import distributed
from guerdon.compute.devices import resolve_device
from guerdon.compute.finite import load_weights, refuse_to_write, save_weights
from guerdon.compute.packaged import local_model
from guerdon.errors import CheckpointError, ConfigError, MissingDependencyError, boundary
from guerdon.files.atomic import COMPLETE, sealed_folder, verify_folder
from guerdon.network.hub import ADAPTER, CONFIG, PICTURES, adapter_config, base_of, model_folder, quietly
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy, add_policy
from guerdon.policies.language.tiny_text import build_model, build_tokenizer
from guerdon.policies.pretrained.adapter_files import (
    ADAPTER_WEIGHTS,
    PEFT_PREFIX,
    merged_on_reading,
    read_adapter,
    stored_adapter,
)
from guerdon.policies.pretrained.adapters import adapter_layers, kernels_to_floats, mark_untied, untie
from guerdon.policies.pretrained.chat_template import check_templates, set_arguments
from guerdon.policies.pretrained.deferred import deferred
from guerdon.policies.pretrained.quantised import check_trains, forget_storage, form_of, mark
from guerdon.policies.pretrained.reading import (
    ComputedWeight,
    map_pretrained,
    meta_model,
    read_config,
    read_pretrained,
    read_tokenizer,
    untie_meta,
)
from guerdon.processes.progress import doing, log_once
from guerdon.settings.text_policy import NAME_A_MODEL, TextPolicySettings

BASE = "base"
_WHAT = "the language model"
VALUE_HEAD = "value_head.safetensors"
_HEAD = re.compile(r"\.(score|classifier)(\.(dense|out_proj))?\.(weight|bias)$")  # of a classifier, after its body


def load_base(
    settings: TextPolicySettings, *, seed: int, device: torch.device | str | None = None, start: bool = True
) -> SharedBase:
    """The model and tokenizer of the `policy` section, in float32.

    Args:
        settings: where it is, or how it is made.
        seed: of the weights of a model made in code; unused otherwise.
        device: instead of the one that the settings name.
        start: see `read_pretrained`.

    Raises:
        CheckpointError: it cannot be read, weights are missing, or no part of the model takes one.
        ConfigError: the device is not there, or no model is named.
    """
    device = resolve_device(settings.device if device is None else device)
    distributed.check_device(device)
    without_weights, weights = device.type == "meta", None
    if settings.tiny is not None:
        tokenizer = build_tokenizer(settings.tiny)
        make = partial(build_model, settings.tiny, tokenizer, seed=seed)
        with device if without_weights else nullcontext():
            model, weights = deferred(make) if distributed.peers() > 1 and not without_weights else (make(), None)
    elif settings.path is None:
        raise ConfigError(f"no language model is named: {NAME_A_MODEL}", key="policy.path")
    elif without_weights:
        model = _outlined(settings.path)
        tokenizer = read_tokenizer(tokenizer_home(settings.path), template=settings.chat_template is None)
    elif distributed.peers() > 1 and (mapped := _mapped(settings.path, start=start)) is not None:
        model, weights = mapped
        tokenizer = read_tokenizer(tokenizer_home(settings.path), template=settings.chat_template is None)
    else:
        model, tokenizer = read_model(settings.path, template=settings.chat_template is None, start=start)
    give_template(tokenizer, settings)
    # several processes shard it block by block, so that no GPU has to hold all of it
    return SharedBase(model if distributed.peers() > 1 else model.to(device), tokenizer, settings, weights)


def outline(settings: TextPolicySettings, *, value_heads: int = 0) -> TextPolicy:
    """The policy that `load_policy` would read, with a tokenizer but without the weights (on torch's device `meta`).

    It has what a run needs to check before it starts: the positions, the adapted layers and the sizes of files.

    Raises:
        CheckpointError: its configuration, its tokenizer or an adapter's file cannot be read.
        ConfigError: no model is named, or no layer has the names of `lora.target_modules`.
        MissingDependencyError: the model is not on this machine, or its package is not converted yet.
    """
    return load_policy(settings, seed=0, device="meta", value_heads=value_heads)


def _outlined(path: str) -> Any:
    """A causal language model without weights, with as many tokens as its adapters have."""
    path = local_model(path, convert=False)
    folder = model_folder(path)
    if (Path(path) / ADAPTER).is_file():
        model = _outlined(base_of(Path(path)))
        fit_vocabulary(model, Path(path))
        return model
    if folder is None:
        raise MissingDependencyError(f"{path} is not on this machine")
    model = meta_model(language_class(path), path, _WHAT, buffers=False)
    form = form_of(model.config, f"{_WHAT} {path!r}")
    if form is not None and form.floats:
        forget_storage(model.config)  # as of the model with its weights: vLLM gets floats, too
    mark(model, form)
    return model


def _mapped(path: str, *, start: bool = True) -> tuple[Any, dict[str, torch.Tensor]] | None:
    """A causal language model on torch's device `meta`, and its weights as they are mapped from its files.

    An adapter is merged into each when it is read. None where a weight is missing, or an adapter is on what is not a
    weight of the model.
    """
    path = local_model(path)
    folder = model_folder(path)
    if folder is None:
        return None
    if (folder / COMPLETE).is_file():
        verify_folder(folder)
    if (folder / ADAPTER).is_file():
        found = _mapped(base_of(folder), start=True)
        return None if found is None else _with_adapter(*found, folder)
    return map_pretrained(language_class(path), path, _WHAT, start=start)


def language_class(path: str) -> Any:
    """The class of transformers for a language model: of a model of several inputs the whole, its towers too.

    So the towers are in what is written, and text is read by its `get_decoder()`.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    config = read_config(path, _WHAT)
    of_several = hasattr(config, "vision_config") and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if of_several else AutoModelForCausalLM


def _with_adapter(
    model: Any, weights: dict[str, torch.Tensor], folder: Path
) -> tuple[Any, dict[str, torch.Tensor]] | None:
    """What `_mapped` returns for a model, with the adapter of a folder merged into its weights."""
    fit_vocabulary(model, folder)
    grown = {id(weight): ComputedWeight(own.shape, partial(_grown, weight, len(own)))
             for name, own in model.named_parameters() if len(weight := weights[name]) < len(own)}  # fmt: skip
    weights = {name: grown.get(id(weight), weight) for name, weight in weights.items()}
    merged = merged_on_reading(copy.deepcopy(model), weights, folder)
    if merged is not None:
        untie_meta(model, merged)
        if all(merged[name].shape == own.shape for name, own in model.named_parameters()):
            return model, merged
    log_once(f"{folder}: each process reads the whole model to merge this adapter")
    return None


def _grown(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """A weight in float32 with rows of zeros at its end."""
    return torch.cat([weight.float(), torch.zeros(rows - len(weight), *weight.shape[1:])])


def give_template(tokenizer: Any, settings: TextPolicySettings) -> None:
    """Apply `policy.chat_template` and `policy.chat_template_kwargs` to a tokenizer, where they are set.

    Raises:
        ConfigError: there is no such file, it cannot be read, or the template has no such argument.
        CheckpointError: as `check_templates`.
    """
    given = settings.chat_template
    if given is not None:
        if "{" not in given:
            what = f"policy.chat_template {given!r}: neither a template nor a file that can be read"
            with boundary(ConfigError, what, key="policy.chat_template"):
                given = Path(given).read_text(encoding="utf-8")
        check_templates({"default": given}, str(settings.path or "policy.tiny"), files="policy.chat_template")
        tokenizer.chat_template = given
    set_arguments(tokenizer, settings.chat_template_kwargs, "policy.chat_template_kwargs")


def load_policy(
    settings: TextPolicySettings,
    *,
    seed: int,
    device: torch.device | str | None = None,
    value_heads: int = 0,
) -> TextPolicy:
    """The policy of the `policy` section: all weights, or a fresh adapter named `policy` with `lora`.

    Raises:
        CheckpointError: it cannot be read, or weights are missing.
        MissingDependencyError: `lora` without peft.
    """
    base = load_base(settings, seed=seed, device=device)
    if settings.lora is not None:
        return add_policy(base, "policy", settings.lora, seed=seed, value_heads=value_heads)
    return TextPolicy(base, value_heads=value_heads)


@doing("loading the language model")
def read_model(path: str, *, template: bool = True, start: bool = True) -> tuple[Any, Any]:
    """A causal language model in float32 and its tokenizer, from a folder, a package or the hub; adapters are merged.

    Args:
        path: folder, `package:<name>` or hub id.
        template: see `read_tokenizer`.
        start: see `read_pretrained`. The model under an adapter is one.

    Raises:
        CheckpointError: it cannot be read, was altered, lacks weights, or no part of the model takes one.
    """
    path = local_model(path)
    folder = Path(path)
    if (folder / COMPLETE).is_file():
        verify_folder(folder)
    if (folder / ADAPTER).is_file():
        model, tokenizer = read_under(folder, template=template)
        return merge(model, folder), tokenizer
    model = read_pretrained(language_class(path), path, _WHAT, start=start)
    return model, read_tokenizer(path, template=template)


def fit_vocabulary(model: Any, folder: Path) -> None:
    """Give a model the number of tokens that the adapter of a folder was trained with; the adapter brings their rows.

    They are in its file as whole embeddings (`save_embedding_layers`, `modules_to_save`), or as the rows of some tokens
    (`trainable_token_indices`).

    Raises:
        CheckpointError: the file cannot be read, or has the rows of one of two embeddings only.
    """
    stored = stored_adapter(folder)
    pair = [model.get_input_embeddings(), model.get_output_embeddings()]
    tied = pair[1] is None or pair[1].weight is pair[0].weight
    rows = [_stored_rows(name, stored) for name, module in model.named_modules() if module in pair]
    own = len(pair[0].weight)
    sizes = set().union(*rows)
    parts = _trained_tokens(adapter_config(folder))
    largest = max((token for part in parts for token in part), default=0)
    if not sizes and largest >= own and (tied or len(parts) > 1):
        sizes = {largest + 1}
    elif len(sizes - {own}) > 1 or (sizes - {own} and not tied and not all(rows)):
        raise CheckpointError(
            f"the adapter {folder} has an embedding of {sorted(sizes)} tokens for a model of {own}, and not the rows "
            "of both its input and output embedding: save it with save_embedding_layers=True, or merge it into the "
            "model that it was trained on, and name that"
        )
    for size in sizes - {own}:
        model.resize_token_embeddings(size, mean_resizing=False)


def _trained_tokens(config: Mapping[str, Any]) -> list[list[int]]:
    """The tokens whose rows an adapter has, for each embedding."""
    indices = config.get("trainable_token_indices") or []
    return list(indices.values()) if isinstance(indices, dict) else [indices]


def _stored_rows(name: str, stored: Mapping[str, torch.Tensor]) -> set[int]:
    """How many rows the stored weights of an embedding have; empty where none are stored."""
    pattern = re.compile(rf"(.*\.)?{re.escape(name)}(\.base_layer)?\.weight")
    return {len(tensor) for key, tensor in stored.items() if pattern.fullmatch(key)}


def check_form(settings: TextPolicySettings, *, trained: bool = True) -> None:
    """Refuse a model whose stored weights cannot be read or trained here; only its configuration is read.

    Args:
        settings: where it is. A model that is not on this machine is not looked up.
        trained: whether it is trained as the settings say.

    Raises:
        CheckpointError: its configuration cannot be read, or its weights are stored in a form that is not known.
        ConfigError: they are stored in a form in which only an adapter can be trained.
        MissingDependencyError: the package that reads them is not installed.
    """
    if settings.tiny is not None or settings.path is None:
        return
    path = settings.path
    while (folder := model_folder(path)) is not None and (folder / ADAPTER).is_file():
        path = base_of(folder)
    if folder is None or not (folder / CONFIG).is_file():  # a packaged model is converted to weights that are plain
        return
    form = form_of(read_config(path, _WHAT), f"{_WHAT} {path!r}")
    if trained:
        check_trains(form, adapter=settings.lora is not None, where=f"policy.path {settings.path!r}")


def written_bytes(policy: TextPolicy, *, merged: bool = False, checkpoint: bool = True) -> dict[str, int]:
    """Bytes that writing a policy takes, by what they are: its folder, and a checkpoint while it is trained.

    Args:
        policy: as it will be written.
        merged: see `save_policy`.
        checkpoint: whether it is trained with AdamW, whose two moments are in a checkpoint.
    """
    trained = 4 * sum(p.numel() for p in policy.parameters())
    base = policy.base
    model = 4 * sum(getattr(owner, leaf).numel() for owner, names in base.weights.items() for leaf in names)
    parts = {"the adapter": trained} if policy.adapter is not None and not merged else {"the model in float32": model}
    if "the adapter" in parts and base.settings.path is None:
        parts["the model under it in float32"] = model
    if checkpoint:
        parts["a checkpoint, with the optimizer's two moments"] = 3 * trained
    return parts


def check_disk(folder: Path, parts: Mapping[str, int]) -> None:
    """Refuse to start what cannot be written in the end.

    Args:
        folder: where it will be written.
        parts: bytes, by what they are.

    Raises:
        ConfigError: it is not a folder, may not be written to, or its disk has less free space.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written to" if there.is_dir() else "is a file"
        raise ConfigError(f"{folder} cannot be written: {there} {why}; choose another folder")
    free, needed = shutil.disk_usage(there).free, sum(parts.values())
    if needed > free:
        counted = ", ".join(f"{what} {size / 1e9:.3g} GB" for what, size in parts.items())
        raise ConfigError(
            f"the disk of {folder} has {free / 1e9:.3g} GB free, and {needed / 1e9:.3g} GB are written there at least "
            f"({counted}): free some space, or choose a folder on another disk"
        )


def save_policy(policy: TextPolicy, folder: Path, *, merged: bool = False) -> Path:
    """Write a policy in one piece: an adapter as a peft folder, anything else as a transformers folder.

    Args:
        policy: whatever it trains is stored, the value head too.
        folder: replaced if it exists.
        merged: write an adapter merged into its model, so that the folder needs no other.

    Returns:
        The folder.

    Raises:
        NonFiniteError: a weight is not finite; an existing folder stays.
    """
    refuse_to_write(whole_parameters(policy), folder)
    with sealed_folder(folder) as temporary:
        write_policy(policy, temporary, merged=merged)
    return folder


def whole_parameters(policy: TextPolicy) -> dict[str, torch.Tensor]:
    """What a policy trains and this process holds whole."""
    return {name: p for name, p in policy.named_parameters().items() if not distributed.is_sharded(p)}


def write_policy(policy: TextPolicy, folder: Path, *, merged: bool = False) -> None:
    """Write the files of `save_policy` into a folder that is there; the caller seals it."""
    with quietly():
        if policy.adapter is None or merged:
            _write_model(policy, folder)
        else:
            _write_adapter(policy, folder)
        policy.tokenizer.save_pretrained(folder)
    if policy.value_head is not None:
        save_weights({k: v.detach().cpu() for k, v in policy.value_head.state_dict().items()}, folder / VALUE_HEAD)


def _write_model(policy: TextPolicy, folder: Path) -> None:
    """Write all weights, adapters merged, in float32 whatever they are kept in, and check that transformers finds them.

    Raises:
        CheckpointError: it does not find each of them; nothing was sealed.
    """
    model = policy.base.model
    weights = {name: weight.float().contiguous() if weight.is_floating_point() else weight
               for name, weight in policy.base.stored(policy.adapter).items()}  # fmt: skip
    refuse_to_write(weights, folder)
    if policy.base.halved:
        log_once(
            f"{folder.name}: linear layers that were not trained were kept in bfloat16, and are written in float32 as "
            "rounded to it"
        )
    model.save_pretrained(folder, state_dict=weights)
    check_written(type(model), folder)
    _copy_inputs(policy.base, folder)


def _copy_inputs(base: SharedBase, folder: Path) -> None:
    """Copy how other inputs become numbers, where the model has towers for them."""
    home = None if base.settings.path is None or not base.outside else model_folder(local_model(base.settings.path))
    while home is not None and (home / ADAPTER).is_file():
        home = model_folder(local_model(base_of(home)))
    for file in () if home is None else (home / name for name in PICTURES):
        if file.is_file():
            shutil.copyfile(file, folder / file.name)


def check_written(kind: Any, folder: Path) -> None:
    """Check that transformers finds every weight of a model in the folder that was written, and no other.

    Only names and shapes are compared; the weights are not loaded.

    Args:
        kind: the class of the model.
        folder: of `save_pretrained`.

    Raises:
        CheckpointError: it does not.
    """
    with quietly(), boundary(CheckpointError, f"what was written to {folder} cannot be read back"):
        _, report = kind.from_pretrained(
            folder, device_map="meta", output_loading_info=True, trust_remote_code=False, use_safetensors=True
        )
    wrong = sorted(
        {str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in report[kind]}
    )
    if wrong:
        raise CheckpointError(
            f"what was written to {folder} is not the model: {len(wrong)} weights differ, such as {wrong[0]}; the "
            "checkpoints stay. Train an adapter on fewer layers (lora.target_modules), and report this model's kind"
        )


def _write_adapter(policy: TextPolicy, folder: Path) -> None:
    base = policy.base
    assert policy.adapter is not None
    config = base.peft.peft_config[policy.adapter]
    origin = base.settings.path
    if origin is None:
        untouched = TextPolicy(base, trainable=False)
        _write_model(untouched, folder / BASE)
        policy.tokenizer.save_pretrained(folder / BASE)
        origin = BASE
    elif Path(origin).is_dir():
        origin = str(Path(origin).resolve())
    config.base_model_name_or_path = origin
    base.peft.save_pretrained(folder, selected_adapters=[policy.adapter], save_embedding_layers=False)
    inside = folder / str(policy.adapter)
    for file in inside.iterdir() if inside.is_dir() else ():  # peft puts every adapter but "default" into a folder
        file.replace(folder / file.name)
    shutil.rmtree(inside, ignore_errors=True)
    written, trained = len(load_weights(folder / ADAPTER_WEIGHTS)), len(base.adapter_parameters(policy.adapter))
    if written != trained:
        raise CheckpointError(f"peft wrote {written} of the adapter's {trained} weights to {folder}: report this")


def read_under(folder: Path, *, template: bool = True) -> tuple[Any, Any]:
    """The model that the adapter of a folder belongs to, with as many tokens as the adapter has, and its tokenizer.

    Args:
        folder: of the adapter.
        template: see `read_tokenizer`.

    Raises:
        CheckpointError: one of them cannot be read.
    """
    origin = base_of(folder)
    try:
        model, _ = read_model(origin, template=False)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; it is base_model_name_or_path of {folder / ADAPTER}") from error
    fit_vocabulary(model, folder)
    return model, read_tokenizer(tokenizer_home(str(folder)), template=template)


def merge(model: Any, folder: Path) -> Any:
    """A model with the adapter of a folder merged into it by peft.

    Raises:
        CheckpointError: the adapter cannot be read, or does not fit.
        MissingDependencyError: peft is not installed.
    """
    form = getattr(model, "stored_form", None)
    if form is not None and not form.floats:
        kernels_to_floats(model)
        model.hf_quantizer.remove_quantization_config(model)
        mark(model, replace(form, floats=True))
        log_once(f"{folder.name}: weights stored by {form.method} become float32, so that the adapter can be merged")
    adapted = read_adapter(model, folder)
    what = f"the adapter {folder} cannot be merged into its model {base_of(folder)!r}"
    with quietly(), boundary(CheckpointError, what):
        untie(model, adapter_layers(model))
        merged = adapted.merge_and_unload(safe_merge=True)
    head = merged.get_output_embeddings()
    if head is not None and head.weight is not merged.get_input_embeddings().weight:
        mark_untied(merged)  # an adapter may hold one of the two
    return merged.requires_grad_(True)


def read_classifier(kind: Any, path: str, what: str, **options: Any) -> Any:
    """A classifier of texts or of tokens in float32; of an adapter's folder, merged, with the head that it holds.

    The model under an adapter may be a causal language model, as TRL's RewardTrainer starts from: the classifier gets
    the head of the adapter (`modules_to_save`), and takes for padding what its tokenizer does.

    Args:
        kind: a class with transformers' `from_pretrained`.
        path: folder or hub id.
        what: name of the model in errors.
        **options: of `read_pretrained`, for a folder without an adapter.

    Raises:
        CheckpointError: it cannot be read, lacks weights, or is an adapter without a head.
    """
    folder = Path(local_model(path))
    if not (folder / ADAPTER).is_file():
        return read_pretrained(kind, path, what, **options)
    stored, origin = stored_adapter(folder), base_of(folder)
    head = {key.removeprefix(PEFT_PREFIX): tensor for key, tensor in stored.items() if _HEAD.search(key)}
    labels: dict[str, Any] = {"num_labels": min(map(len, head.values()))} if head else {}
    under = f"{what} under the adapter {folder}:"
    if not head and not any("Classification" in name for name in read_config(origin, under).architectures or ()):
        raise CheckpointError(
            f"the adapter {folder} has no classification head, and its model {origin!r} has none: train it with "
            'modules_to_save=["score"] (as peft does for task_type SEQ_CLS), or save the merged classifier'
        )
    model = read_pretrained(kind, origin, under, start=True, given=head, **labels)
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        config.pad_token_id = read_tokenizer(tokenizer_home(path)).pad_token_id
    fit_vocabulary(model, folder)
    return merge(model, folder)


def tokenizer_home(path: str) -> str:
    """Where the tokenizer of a model is: an adapter's folder may leave it to the model that it belongs to."""
    folder = Path(local_model(path))
    if (folder / ADAPTER).is_file() and not (folder / "tokenizer_config.json").is_file():
        return tokenizer_home(base_of(folder))
    return path
