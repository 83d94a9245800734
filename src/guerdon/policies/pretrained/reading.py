"""What transformers reads from a folder, a package or the hub: models, every weight of them, and tokenizers.

Errors name the folder, code in a folder is never run, and weights that are missing are an error.

    model = read_pretrained(AutoModelForCausalLM, "runs/sft/model", "the language model")
    tokenizer = read_tokenizer("runs/sft/model")
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from guerdon.compute.finite import refuse_narrow, refuse_to_read, stored_narrow
from guerdon.compute.packaged import local_model
from guerdon.errors import CheckpointError, boundary
from guerdon.network.hub import check_configs, check_links, check_model, model_folder, reading
from guerdon.policies.pretrained.adapters import mark_untied
from guerdon.policies.pretrained.chat_template import check_templates, templates_of
from guerdon.policies.pretrained.quantised import forget_storage, form_of, mark, quantization_of
from guerdon.policies.pretrained.tokenizer_rules import check_rules
from guerdon.policies.pretrained.unused import (
    not_ignored,
    refuse_unscaled,
    refuse_unused,
    stored_forms,
    weight_files,
)
from guerdon.processes.progress import log_once

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model",
                "sentencepiece.bpe.model", "spm.model", "vocab.bpe")  # fmt: skip
USUAL_POSITIONS = 1 << 18  # up to which tables of them are small
MOST_TABLES = 256 << 20  # bytes


def read_pretrained(
    kind: Any,
    path: str,
    what: str,
    *,
    dtype: torch.dtype | str = torch.float32,
    start: bool = False,
    given: Collection[str] = (),
    **options: Any,
) -> Any:
    """A model of transformers, every weight of it from the file.

    Args:
        kind: a class with `from_pretrained`.
        path: folder, `package:<name>` or hub id.
        what: name of the model in errors, such as "the language model".
        dtype: of the weights; `auto`: as they are stored.
        start: whether training or sampling starts from it; otherwise it is a finished model. See `refuse_unused`.
        given: weights that may be missing here, since they are in another file.
        **options: of `from_pretrained`, such as `num_labels`.

    Raises:
        CheckpointError: it cannot be read, lacks weights, or has weights that are not finite, that no part of the
            model takes (`refuse_unused`) or in a form that nothing describes.
    """
    path = local_model(path)
    check_model(CheckpointError, what, path)
    where = f"{what} {path!r}"
    form = form_of(read_config(path, what), where)
    _refuse_tables(kind, path, what)
    options = options if form is None else form.options() | options
    with reading(what, path):
        model, report = kind.from_pretrained(
            path, dtype=dtype, output_loading_info=True, trust_remote_code=False, use_safetensors=True, **options
        )
        if form is not None and form.floats:
            model = model if quantization_of(model.config) is None else model.dequantize()
            vars(model).pop("_weight_conversions", None)  # by which transformers would write the stored form
    if caps_attention(model):
        model.set_attn_implementation("eager")
    missing = sorted({*report["missing_keys"], *(str(k) for k in report["mismatched_keys"])} - set(given))
    unknown = sorted(map(str, report["unexpected_keys"]))
    if missing:
        raise CheckpointError(
            f"{where} lacks {len(missing)} weights, such as {missing[0]}: it is not a {type(model).__name__}, or is "
            "incomplete"
        )
    refuse_unused(model, unknown, model_folder(path), where, start=start)
    refuse_undescribed(model, path, unknown, where)
    refuse_to_read(model.named_parameters(), where)
    check_stops(model, where)
    mark(model, form)
    return model


_FLOATS = {"F16", "BF16", "F32", "F64"}


def refuse_undescribed(model: Any, path: str, unused: Collection[str], where: str) -> None:
    """Refuse a model that was read from integers or 8-bit floats without what makes floats of them.

    transformers takes them by name and shape alone where config.json has no `quantization_config`, and as they are
    where the scales of its `quantization_config` have other names.

    Args:
        model: as it was read.
        path: of its folder, or a hub id.
        unused: names in its files that no weight was read from.
        where: named in the error.

    Raises:
        CheckpointError: a weight is so stored.
    """
    folder = model_folder(path)
    if folder is None:
        return
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    forms = stored_forms(folder)
    taken = not_ignored(model, [n for n in forms if n not in unused and n.rpartition(".")[2] not in buffers])
    stored = {name: forms[name] for name in taken if forms[name] not in _FLOATS}
    if _describes_storage(folder):
        refuse_unscaled({name: forms[name] for name in taken}, (), where)
    elif stored:
        name, form = next(iter(stored.items()))
        raise CheckpointError(stored_narrow(where, len(stored), name, form))


def _describes_storage(folder: Path) -> bool:
    """Whether the configuration of a folder says how its weights are stored; a model may also be made 4-bit here."""
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    parts = (said, said.get("text_config") or {})
    return any(part.get(key) for part in parts for key in ("quantization_config", "compression_config"))


def _refuse_tables(kind: Any, path: str, what: str) -> None:
    """Refuse a number of positions for which a model would compute tables that are larger than `MOST_TABLES`.

    Weights have their sizes in their files; tables of positions are only in memory.

    Raises:
        CheckpointError: they would be.
    """
    if not hasattr(kind, "from_config"):
        return
    positions = getattr(read_config(path, what).get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= USUAL_POSITIONS:
        return
    model = meta_model(kind, path, what, buffers=False)
    size = sum(table.numel() * table.element_size() for table in model.buffers())
    if size > MOST_TABLES:
        raise CheckpointError(
            f"{what} {path!r} cannot be read: config.json gives it {positions:,} positions, whose tables would take "
            f"{size / 1e9:,.3g} GB; correct it"
        )


def caps_attention(model: Any) -> bool:
    """Whether the logits of attention are capped (Gemma 2), which sdpa leaves out in transformers 5.17."""
    return bool(getattr(model.config.get_text_config(), "attn_logit_softcapping", None))


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder, mapped from its files: `model.safetensors`, or those of `model.safetensors.index.json`.

    Raises:
        CheckpointError: there are none, or a shard is missing or cannot be read.
    """
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        if not file.is_file():
            raise CheckpointError(
                f"{folder} has no {file.name}; name the folder of a checkpoint, with all of its files"
            )
        with boundary(CheckpointError, f"{file} cannot be read"):
            tensors |= load_file(file)
    refuse_to_read(tensors.items(), folder)
    return tensors


class ComputedWeight(Tensor):
    """A weight in float32 that is computed anew each time an operation reads it.

    Args:
        shape: of the weight.
        compute: its values.
    """

    compute: Callable[[], Tensor]

    @staticmethod
    def __new__(cls: type[ComputedWeight], shape: torch.Size, compute: Callable[[], Tensor]) -> ComputedWeight:
        """A tensor without memory."""
        return Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    def __init__(self, shape: torch.Size, compute: Callable[[], Tensor]) -> None:
        self.compute = compute

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What an operation gives for the computed weight."""
        read = partial(tree_map_only, cls, lambda one: one.compute())
        return func(*read(args), **read(kwargs or {}))


def as_transformers_names(model: Any, stored: Mapping[str, Tensor], quantizer: Any = None) -> dict[str, Tensor]:
    """The tensors of a folder by the names of a model's weights, as transformers reads them.

    A weight that it makes of others, such as stacked experts, is computed when it is read.

    Args:
        model: of transformers; its values are not used.
        stored: of the folder, by the names in its files. Those that belong to no weight keep their names.
        quantizer: see `dequantizer`.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    rules, own = get_model_conversion_mapping(model, hf_quantizer=quantizer), model.state_dict()
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    found: dict[str, Tensor] = {}
    parts: dict[str, list[tuple[str, str]]] = {}  # what each first weight of a rule is made of
    for key in sorted(stored, key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, own)
        if name not in own and key in own:
            name, pattern = key, None
        if pattern is None or name not in own:
            found[name if name in own else key] = stored[key]
        else:
            parts.setdefault(name, []).append((pattern, key))
    for name, keys in parts.items():
        rule = next(rule for rule in converters if keys[0][0] in rule.source_patterns)
        found |= _computed(rule, name, {key: (pattern, stored[key]) for pattern, key in keys}, model)
    return found


def _computed(rule: Any, name: str, parts: Mapping[str, tuple[str, Tensor]], model: Any) -> dict[str, Tensor]:
    """The weights that a rule of transformers makes of tensors, computed when they are read."""
    made = partial(_converted, rule, name, parts, model)
    return {
        target: ComputedWeight(outline.shape, partial(_one_of, made, target))
        for target, outline in made("meta").items()
    }


def _converted(
    rule: Any, name: str, parts: Mapping[str, tuple[str, Tensor]], model: Any, device: str | None = None
) -> dict[str, Tensor]:
    """The weights that a rule of transformers makes of tensors, given with their pattern in the rule, in float32."""
    one = copy.deepcopy(rule)
    for key, (pattern, tensor) in parts.items():
        wide = tensor.is_floating_point() and tensor.element_size() > 1  # others are made float32 by their rule
        one.add_tensor(name, key, pattern, tensor.to(device, torch.float32 if wide else tensor.dtype))
    made = one.convert(name, model=model, config=model.config)
    return {key: value[0] if isinstance(value, list) else value for key, value in made.items()}


def _one_of(made: Callable[[], dict[str, Tensor]], name: str) -> Tensor:
    return made()[name]


def dequantizer(config: Any, where: str) -> Any:
    """The quantizer of transformers that makes float32 of weights in fp8 or mxfp4; None where there are none.

    Args:
        config: of a model.
        where: named in errors.

    Raises:
        CheckpointError: the weights are stored in another way, of which no block can be read alone.
    """
    if (stored := quantization_of(config)) is None:
        return None
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING

    if (method := stored.get("quant_method")) not in ("fp8", "mxfp8", "mxfp4"):
        raise CheckpointError(
            f"{where}: weights that are stored by {method} cannot be shared by several learners; store them in bfloat16"
            " (`dequantize()` and `save_pretrained` of transformers)"
        )
    how = AUTO_QUANTIZATION_CONFIG_MAPPING[method].from_dict({**stored, "dequantize": True})
    return AUTO_QUANTIZER_MAPPING[method](how, pre_quantized=True)


def meta_model(kind: Any, path: str, what: str, *, buffers: bool) -> Any:
    """A model of transformers as its configuration says, without weights.

    Args:
        kind: a class with `from_config`.
        path: folder, `package:<name>` or hub id, on this machine.
        what: see `read_pretrained`.
        buffers: whether its buffers have values; otherwise they are on torch's device `meta`, as all weights are.

    Raises:
        CheckpointError: the configuration cannot be read.
    """
    from accelerate import init_empty_weights
    from transformers import GenerationConfig

    config, folder = read_config(path, what), model_folder(local_model(path, convert=False))
    with reading(what, path), init_empty_weights(include_buffers=not buffers):
        model = kind.from_config(config, dtype=torch.float32, trust_remote_code=False)
        if folder is not None and (stops := folder / "generation_config.json").is_file():  # tokens that end a response
            model.generation_config = GenerationConfig.from_dict(json.loads(stops.read_text(encoding="utf-8")))
    if caps_attention(model):
        model.set_attn_implementation("eager")
    return model


def map_pretrained(kind: Any, path: str, what: str, *, start: bool = False) -> tuple[Any, dict[str, Tensor]] | None:
    """The model of `read_pretrained` on torch's device `meta`, and its weights by name, to be read one at a time.

    Args:
        kind: a class with `from_config`.
        path: folder or `package:<name>`.
        what: see `read_pretrained`.
        start: see `read_pretrained`.

    Returns:
        None where a weight is missing.

    Raises:
        CheckpointError: it cannot be read, its weights are stored in a form of which no part can be read alone, or as
            `refuse_unused`.
    """
    if (folder := model_folder(local_model(path))) is None:
        return None
    check_model(CheckpointError, what, path)
    model = meta_model(kind, path, what, buffers=True)
    model.tie_weights()  # inside, each parameter becomes one of its own
    quantizer = dequantizer(model.config, f"{what} {path!r}")
    if quantizer is not None:
        forget_storage(model.config)
    stored = read_tensors(folder)
    with reading(what, path):
        weights = as_transformers_names(model, stored, quantizer)
    _give_all_names(model, weights)
    untie_meta(model, weights)
    refuse_narrow({name: weights[name] for name, _ in model.named_parameters() if name in weights}, f"{what} {path!r}")
    lost = [name for name, own in model.named_parameters()
            if name not in weights or weights[name].shape != own.shape]  # fmt: skip
    if lost:
        log_once(f"{path}: each process reads the whole model, as its weights have other names in its files")
        return None
    unknown = sorted(weights.keys() - model.state_dict().keys())
    refuse_unused(model, unknown, folder, f"{what} {path!r}", start=start)
    if quantizer is not None:
        forms = stored_forms(folder)
        refuse_unscaled({name: forms[name] for name in not_ignored(model, forms)}, unknown, f"{what} {path!r}")
    check_stops(model, f"{what} {path!r}")
    return model.eval(), weights


def _give_all_names(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put a weight that modules share under all of its names, where the files have no different ones for them."""
    for names in names_of_parameters(model).values():
        there = [weights[name] for name in names if name in weights]
        if there and all(one is there[0] or torch.equal(one, there[0]) for one in there):
            weights |= dict.fromkeys(names, there[0])


def names_of_parameters(model: nn.Module) -> dict[int, list[str]]:
    """The names of each parameter, by its `id`; several where modules share it."""
    found: dict[int, list[str]] = {}
    for name, own in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(own), []).append(name)
    return found


def untie_meta(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Give the output layer of a model on `meta` a matrix of its own, where `weights` has another tensor for it."""
    head = model.get_output_embeddings()
    shared = names_of_parameters(model).values()
    if head is not None and any(len({id(weights.get(name)) for name in names}) > 1 for names in shared):
        head.weight = nn.Parameter(torch.empty_like(head.weight))
        mark_untied(model)


def read_config(path: str, what: str) -> Any:
    """The configuration of a model of transformers.

    Args:
        path: see `read_pretrained`.
        what: see `read_pretrained`.

    Raises:
        CheckpointError: it cannot be read.
    """
    from transformers import AutoConfig

    path = local_model(path)
    check_model(CheckpointError, what, path)
    with reading(what, path):
        return AutoConfig.from_pretrained(path, trust_remote_code=False)


def check_stops(model: Any, where: str) -> None:
    """Refuse a generation configuration whose `eos_token_id` is not a token id."""
    given = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    size = getattr(model.config.get_text_config(), "vocab_size", 0)
    for one in given if isinstance(given, list | tuple) else [given]:
        if one is not None and not (isinstance(one, int) and 0 <= one < size):
            raise CheckpointError(
                f"{where} cannot be used: eos_token_id in generation_config.json is {str(given)[:80]!r}, and token ids "
                f"are whole numbers below {size}; correct it"
            )


def read_tokenizer(path: str, *, template: bool = True) -> Any:
    """The tokenizer of a folder or hub id, exactly as in its `tokenizer.json`; all tokenizers are read here.

    For many declared classes (that of Qwen2 among them) `AutoTokenizer` builds parts of its own in place of those of
    the file, and the same text silently becomes other ids.

    Args:
        path: folder or hub id.
        template: whether its chat template is used, and checked; otherwise it is removed.

    Raises:
        CheckpointError: it cannot be read, needs code of its own, a link leads out of its folder, or its rules or its
            chat template break the limits of `check_rules` and `check_templates`.
    """
    from tokenizers import Tokenizer
    from transformers.utils import cached_file

    path = local_model(path)
    what = "the tokenizer of"
    with reading(what, path):
        if (folder := model_folder(path)) is not None:
            check_links(CheckpointError, what, folder)
            check_configs(CheckpointError, what, folder)
            if not any((folder / name).is_file() for name in VOCABULARIES):
                raise CheckpointError(
                    f"{what} {path!r} cannot be read: there is no {VOCABULARIES[0]} in the folder; copy the files of "
                    "the tokenizer from the model that it was trained from, or save it there (save_pretrained)"
                )
        file = cached_file(path, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
        if file is not None:
            check_rules(json.loads(Path(file).read_text(encoding="utf-8")), path)
        tokenizer = _declared(path, fails=file is None)
        if file is None and tokenizer.is_fast:  # made of the files of another library
            check_rules(_parts(tokenizer), path)
        if file is not None and (tokenizer is None or _parts(tokenizer) != _parts(Tokenizer.from_file(file))):
            tokenizer = _as_in_file(path, file, tokenizer)
        tokenizer("1 + 1")  # some classes fail only here if a token that they need is missing
        if set(tokenizer.get_vocab()) <= {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}:
            raise CheckpointError(
                f"{what} {path!r} has special tokens only: the folder lacks the vocabulary of its class "
                f"{type(tokenizer).__name__}; copy the files of the tokenizer from the model that it was trained from"
            )
        if not template:
            tokenizer.chat_template = None
        templates = templates_of(tokenizer)
    check_templates(templates, path)
    return tokenizer


def _as_in_file(path: str, file: str, declared: Any) -> Any:
    """The tokenizer of a `tokenizer.json`, with the special tokens of the class that the folder declares, if any."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    special = {} if declared is None else declared.special_tokens_map  # of the class, if the folder has none
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path, trust_remote_code=False)
    tokenizer._tokenizer.post_processor = Tokenizer.from_file(file).post_processor
    for name, token in special.items():
        if getattr(tokenizer, name, token) is None and token in tokenizer.get_vocab():
            setattr(tokenizer, name, token)
    return tokenizer


def _declared(path: str, *, fails: bool) -> Any:
    """The tokenizer that a folder declares; None where its class cannot be made of these files, unless that `fails`."""
    from transformers import AutoTokenizer

    try:
        with boundary(CheckpointError, f"the tokenizer of {path!r} cannot be read"):
            found = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except CheckpointError as error:
        if fails or "trust_remote_code" in str(error):
            raise
        return None
    return found if fails or found.is_fast else None


def read_alike(tokenizer: Any, folder: str) -> bool:
    """Whether `AutoTokenizer` makes of a folder, for a text of many kinds, the ids of the tokenizer stored there."""
    declared, text = _declared(folder, fails=False), "it's 12 of a+b,\n\n  that don't give 3.5; Zürich?"
    return declared is not None and declared(text)["input_ids"] == tokenizer(text)["input_ids"]


def _parts(tokenizer: Any) -> dict[str, Any]:
    """What decides about ids: of a tokenizer of transformers, or of a `tokenizer.json`."""
    parts: dict[str, Any] = json.loads(getattr(tokenizer, "_tokenizer", tokenizer).to_str())
    return {name: parts[name] for name in ("model", "normalizer", "pre_tokenizer", "post_processor", "decoder")}
