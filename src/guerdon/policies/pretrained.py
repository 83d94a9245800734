"""What transformers reads from a folder, a package or the hub: models, every weight of them, and tokenizers.

Errors name the folder, code in a folder is never run, and weights that are missing are an error.

    model = read_pretrained(AutoModelForCausalLM, "runs/sft/model", "the language model")
    tokenizer = read_tokenizer("runs/sft/model")
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guerdon.errors import CheckpointError, boundary
from guerdon.finite import refuse_to_read
from guerdon.hub import check_configs, check_links, check_model, model_folder, reading
from guerdon.packaged import local_model
from guerdon.policies.chat_template import check_templates, templates_of

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model",
                "sentencepiece.bpe.model", "spm.model", "vocab.bpe")  # fmt: skip


def read_pretrained(
    kind: Any,
    path: str,
    what: str,
    *,
    dtype: torch.dtype = torch.float32,
    exact: bool = False,
    given: Collection[str] = (),
    **options: Any,
) -> Any:
    """A model of transformers, every weight of it from the file.

    Args:
        kind: a class with `from_pretrained`.
        path: folder, `package:<name>` or hub id.
        what: name of the model in errors, such as "the language model".
        dtype: of the weights.
        exact: refuse weights that the class does not have, too; but for a head that some files keep (`lm_head`).
        given: weights that may be missing here, since they are in another file.
        **options: of `from_pretrained`, such as `num_labels`.

    Raises:
        CheckpointError: it cannot be read, lacks weights, or has weights that are not finite or not of this class.
    """
    path = local_model(path)
    check_model(CheckpointError, what, path)
    with reading(what, path):
        model, report = kind.from_pretrained(
            path, dtype=dtype, output_loading_info=True, trust_remote_code=False, use_safetensors=True, **options
        )
    if caps_attention(model):
        model.set_attn_implementation("eager")
    missing = sorted({*report["missing_keys"], *(str(k) for k in report["mismatched_keys"])} - set(given))
    extra = sorted(k for k in report["unexpected_keys"] if exact and not str(k).startswith("lm_head."))
    if missing or extra:
        lacks = f"lacks {len(missing)} weights, such as {missing[0]}" if missing else ""
        has = f"has {len(extra)} weights of another model, such as {extra[0]}" if extra else ""
        raise CheckpointError(
            f"{what} {path!r} {' and '.join(x for x in (lacks, has) if x)}: it is not a "
            f"{type(model).__name__}, or is incomplete"
        )
    refuse_to_read(model.named_parameters(), f"{what} {path!r}")
    check_stops(model, f"{what} {path!r}")
    return model


def caps_attention(model: Any) -> bool:
    """Whether the logits of attention are capped (Gemma 2), which sdpa leaves out in transformers 5.17."""
    return bool(getattr(model.config.get_text_config(), "attn_logit_softcapping", None))


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder, mapped from its files: `model.safetensors`, or those of `model.safetensors.index.json`.

    Raises:
        CheckpointError: there are none, or a shard is missing or cannot be read.
    """
    from safetensors.torch import load_file

    index, names = folder / "model.safetensors.index.json", ["model.safetensors"]
    if index.is_file():
        with boundary(CheckpointError, f"{index} cannot be read"):
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} has no {name}; name the folder of a checkpoint, with all of its files")
        with boundary(CheckpointError, f"{folder / name} cannot be read"):
            tensors |= load_file(folder / name)
    refuse_to_read(tensors.items(), folder)
    return tensors


def read_config(path: str, what: str) -> Any:
    """The configuration of a model of transformers.

    Args:
        path: as of `read_pretrained`.
        what: as of `read_pretrained`.

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
    size = model.config.get_text_config().vocab_size
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
        CheckpointError: it cannot be read, needs code of its own, a link leads out of its folder, or its chat template
            breaks the limits of `check_templates`.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast
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
        tokenizer = _declared(path, fails=file is None)
        if file is not None and (tokenizer is None or _parts(tokenizer) != _parts(Tokenizer.from_file(file))):
            declared = {} if tokenizer is None else tokenizer.special_tokens_map  # of the class, if the folder has none
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path, trust_remote_code=False)
            tokenizer._tokenizer.post_processor = Tokenizer.from_file(file).post_processor
            for name, token in declared.items():
                if getattr(tokenizer, name, token) is None and token in tokenizer.get_vocab():
                    setattr(tokenizer, name, token)
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
