"""How large a language model is: counted on the model that its `config.json` makes, or by the size that its name says.

The model is made without weights, on torch's device `meta`.

size_of_start(TextPolicySettings(path="Qwen/Qwen2.5-Math-1.5B-Instruct")).millions       # 1544
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.compute.packaged import PREFIX, packaged_config
from guerdon.errors import DataError, GuerdonError, boundary
from guerdon.network.hub import ADAPTER, base_of
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings


class Count(NamedTuple):
    """Parameters of a model, counted on it.

    Attributes:
        parameters: all of them, without layers that predict several tokens, which transformers does not make.
        active: of a mixture, those that a token is multiplied with: the experts that it is sent to and what all tokens
            share, without the input embedding, of which a token takes a row. Else all.
        adapter: inputs and outputs of the layers that get adapters, together: parameters of an adapter of rank 1.
    """

    parameters: int
    active: int
    adapter: int


@dataclass(frozen=True)
class Shape:
    """The matrices of a decoder as Llama and Qwen2 have them; of other ones, widths that a layer has in the mean.

    Attributes:
        width: of the hidden states.
        layers: blocks.
        inner: width inside the feed-forward layers; of a mixture, of all experts that a token is sent to, together.
        queries, keys: widths of all queries, and of all keys (values are as wide) of a layer.
        vocabulary: rows of the embedding.
        tied: input and output embeddings are one matrix.
        count: parameters counted on the model; None: they follow from the widths.
    """

    width: int
    layers: int
    inner: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool
    count: Count | None = None

    @property
    def linear(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the matrices of a layer."""
        h = self.width
        return [(h, self.queries), (h, self.keys), (h, self.keys), (self.queries, h), *[(h, self.inner)] * 3]

    @property
    def embedding(self) -> int:
        """Parameters of the embedding."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All parameters; where they were not counted, but for biases."""
        if self.count is not None:
            return self.count.parameters
        layer = sum(a * b for a, b in self.linear) + 2 * self.width
        return self.layers * layer + self.embedding * (1 if self.tied else 2) + self.width

    @property
    def active(self) -> int:
        """Parameters that a token is multiplied with; all of them, but in a mixture of experts."""
        return self.parameters if self.count is None else self.count.active

    def adapters(self, rank: int) -> int:
        """Parameters of adapters on all matrices but the embeddings."""
        if self.count is not None:
            return rank * self.count.adapter
        return self.layers * sum(rank * (a + b) for a, b in self.linear)


# Qwen2.5 (2412.15115, table 1, and its config.json files), by billions of parameters in the name.
PUBLISHED = {
    0.5: Shape(896, 24, 4864, 896, 128, 151936, True),
    1.5: Shape(1536, 28, 8960, 1536, 256, 151936, True),
    3.0: Shape(2048, 36, 11008, 2048, 256, 151936, True),
    7.0: Shape(3584, 28, 18944, 3584, 512, 152064, False),
    14.0: Shape(5120, 48, 13824, 5120, 1024, 152064, False),
    32.0: Shape(5120, 64, 27648, 5120, 1024, 152064, False),
    72.0: Shape(8192, 80, 29568, 8192, 1024, 152064, False),
}
_IN_NAME = re.compile(r"(?<![\d.a-z])(\d+(?:\.\d+)?)\s?([bm])(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class Size:
    """How large a language model is.

    Attributes:
        shape: its matrices.
        rank: of the adapters that are trained; None: all parameters are trained.
        assumed: what is assumed of a model whose configuration is not here; else empty.
        known: whether anything says how large it is: a configuration, or at least its name.
    """

    shape: Shape
    rank: int | None = None
    assumed: str = ""
    known: bool = True

    @property
    def millions(self) -> float:
        """Parameters, in millions."""
        return self.shape.parameters / 1e6

    @property
    def trained(self) -> float:
        """Parameters that are trained, in millions."""
        return self.millions if self.rank is None else self.shape.adapters(self.rank) / 1e6

    @property
    def active(self) -> float:
        """Parameters that a token is multiplied with, in millions."""
        return self.shape.active / 1e6

    def __str__(self) -> str:
        parts = [_millions(self.millions)]
        if self.active != self.millions:
            parts.append(f"{_millions(self.active)} of them active for a token")
        if self.rank is not None:
            parts.append(f"{self.trained:.3g}M of them trained")
        if self.assumed:
            parts.append(f"assumed: {self.assumed}")
        return ", ".join(parts)


def _millions(number: float) -> str:
    return f"{number:.3g}M" if number < 1000 else f"{number:.0f}M"


def size_of_start(start: TextPolicySettings) -> Size:
    """The size of a language model, from its configuration: made in code, in a folder, or in the cache of the hub.

    Without one, `policy.config_file` is read; without that, the size in the model's name is taken and the shape of
    Qwen2.5's model that is nearest to it, which `assumed` says.
    """
    rank, tiny = None if start.lora is None else start.lora.r, start.tiny
    if tiny is not None:
        return Size(_tiny_shape(tiny), rank)
    path = start.path or ""
    found = _config_of(path)
    if found is None and start.config_file is not None:
        found = read_config(Path(start.config_file))
    why = f"{path} is not here yet"
    if found is not None:
        target = "all-linear" if start.lora is None else start.lora.target_modules
        shape, why = shape_by_model(found, target)
        if shape is not None:
            return Size(shape, rank, why)
    if (shape := _shape_named(path)) is not None:
        return Size(shape, rank, f"{why}, so the size in its name and a shape of Qwen2.5")
    unknown = f"{why}, and its name says no size (policy.config_file takes its config.json)"
    return Size(PUBLISHED[0.5], rank, unknown, known=False)


def _tiny_shape(tiny: TinyModelSettings) -> Shape:
    words = 262 if tiny.tokenizer == "bytes" else len(set(tiny.alphabet)) + 8
    config = {
        "hidden_size": tiny.hidden_size, "num_hidden_layers": tiny.layers, "intermediate_size": tiny.intermediate,
        "num_attention_heads": tiny.heads, "num_key_value_heads": tiny.kv_heads, "vocab_size": words,
    }  # fmt: skip
    return shape_of({**config, "tie_word_embeddings": tiny.tie_embeddings})


def shape_of(found: dict[str, Any]) -> Shape:
    """The shape that a configuration of transformers describes, by its widths alone."""
    heads, width = found.get("num_attention_heads") or 1, found["hidden_size"]
    head = found.get("head_dim") or width // heads
    keys, tied = (found.get("num_key_value_heads") or heads) * head, found.get("tie_word_embeddings", True)
    layers, inner = found["num_hidden_layers"], found["intermediate_size"]
    return Shape(width, layers, inner, heads * head, keys, found.get("vocab_size", 0), bool(tied))


def shape_by_model(found: dict[str, Any], target: str | tuple[str, ...] = "all-linear") -> tuple[Shape | None, str]:
    """The shape of the model that a configuration makes, counted on it.

    Args:
        found: the configuration.
        target: layers that get an adapter, as `lora.target_modules`.

    Returns:
        The shape, or None; and what is assumed in it, or why there is none. Of a model that transformers does not know,
        the widths of a Llama are taken where the configuration has them.
    """
    try:
        return counted_shape(json.dumps(found, sort_keys=True), target), ""
    except GuerdonError as error:
        why = str(error)
    if found.keys() >= _WIDTHS:
        plain = "model_type" not in found and not _EXPERTS & found.keys()
        return shape_of(found), "" if plain else f"the matrices of a Llama of its widths, because {why}"
    return None, why


_WIDTHS = {"hidden_size", "num_hidden_layers", "intermediate_size"}
_EXPERTS = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok"}
_ROUTED = re.compile(r"(?:^|\.)(?:experts|expert_list)\.")  # not those that every token passes: `shared_experts`
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k", "top_k_experts", "top_k")
_NUMBER = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
_KEYS, _VALUES, _QUERIES = ("k_proj", "key_proj"), ("v_proj", "value_proj"), ("q_proj", "query_proj", "q_b_proj")
_OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")


@lru_cache(maxsize=32)
def counted_shape(config: str, target: str | tuple[str, ...] = "all-linear") -> Shape:
    """The shape of the model of a configuration, made on torch's device `meta`.

    Args:
        config: the configuration as JSON.
        target: layers that get an adapter, as `lora.target_modules`.

    Raises:
        DataError: transformers does not know the model, or makes none of it.
    """
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig

    given = json.loads(config)
    kind = given.pop("model_type", None)
    for key in ("quantization_config", "torch_dtype", "dtype", "auto_map", "_name_or_path", "transformers_version"):
        given.pop(key, None)
    if not isinstance(kind, str):
        raise DataError("its configuration names no model_type")
    with boundary(DataError, f"transformers makes no model of type {kind} of it"), torch.device("meta"):
        settings = AutoConfig.for_model(kind, **given)
        settings = settings.get_text_config()
        assert isinstance(settings, PreTrainedConfig)
        causal = type(settings) in AutoModelForCausalLM._model_mapping
        model = (AutoModelForCausalLM if causal else AutoModel).from_config(
            settings, dtype=torch.float32, trust_remote_code=False
        )
    embedding = settings.vocab_size * settings.hidden_size
    tied = bool(getattr(settings, "tie_word_embeddings", True))
    missing = 0 if causal or tied else embedding  # the output matrix, which only a causal model has
    return _shape_of_model(model, settings, target, missing)


def _shape_of_model(model: Any, settings: Any, target: str | tuple[str, ...], missing: int) -> Shape:
    """Widths and parameters of a model."""
    width, layers = settings.hidden_size, settings.num_hidden_layers
    tied = bool(getattr(settings, "tie_word_embeddings", True))
    parameters = sum(p.numel() for p in model.parameters()) + missing
    routed, idle = _of_experts(model, settings)
    looked_up = 0 if tied or not idle else settings.vocab_size * width
    count = Count(parameters, parameters - idle - looked_up, sum(a + b for a, b in _adapted(model, target)))
    inner = getattr(settings, "intermediate_size", None)
    if routed or not isinstance(inner, int):
        inner = round((_feed_forward(model) - idle) / (3 * width * layers))
    queries, keys = _attention(model, settings)
    if not queries:
        queries, keys = _attention_by_heads(settings)
    return Shape(width, layers, inner, queries, keys, settings.vocab_size, tied, count)


def _of_experts(model: Any, settings: Any) -> tuple[int, int]:
    """Parameters of experts that a token is sent to, and how many of these idle at one token."""
    chosen, number = (_first(settings, names) for names in (_CHOSEN, _NUMBER))
    routed = sum(p.numel() for name, p in model.named_parameters() if _is_routed(name, p, number))
    if not (routed and chosen and number):
        return routed, 0
    return routed, routed - routed * min(chosen, number) // number


def _attention_by_heads(settings: Any) -> tuple[int, int]:
    """Widths of queries and keys by the numbers of heads in the configuration."""
    heads = getattr(settings, "num_attention_heads", 0)
    head = getattr(settings, "head_dim", None) or (settings.hidden_size // heads if heads else 0)
    return heads * head, (getattr(settings, "num_key_value_heads", None) or heads) * head


def _first(settings: Any, names: tuple[str, ...]) -> int | None:
    """The first of these numbers that a configuration has."""
    found = (getattr(settings, name, None) for name in names)
    return next((one for one in found if isinstance(one, int)), None)


def _is_routed(name: str, parameter: Any, number: int | None) -> bool:
    """Whether a parameter is of experts that a token may be sent to: by its name, or all of them in one tensor."""
    stacked = number is not None and parameter.ndim == 3 and parameter.shape[0] == number and parameter.shape[1] > 1
    return stacked or bool(_ROUTED.search(name))


def _adapted(model: Any, target: str | tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Inputs and outputs of the layers that get adapters."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    output = model.get_output_embeddings()
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | Conv1D) or module is output:
            continue
        if _is_named(name, target) or (target == "all-linear" and not is_router(name)):
            yield tuple(module.weight.shape)


def is_router(path: str) -> bool:
    """Whether a layer chooses experts, by its name: `all-linear` gives it no adapter."""
    leaf = path.rpartition(".")[2]
    return leaf in ("gate", "router", "shared_expert_gate") or leaf.endswith("_router")


def _is_named(name: str, target: str | tuple[str, ...]) -> bool:
    """Whether peft takes a module for one of `target_modules`: a pattern, or ends of names."""
    if isinstance(target, str):
        return re.fullmatch(target, name) is not None
    return any(name == one or name.endswith(f".{one}") for one in target)


def _attention(model: Any, settings: Any) -> tuple[int, int]:
    """Widths of queries, and of keys and values, of a layer in the mean; 0 where they are in one matrix.

    Layers that keep a state of fixed size in place of keys and values count with what they give, and keep nothing.
    """
    widths = [_widths(module, settings) for module in model.modules()]
    queries, keys = (sum(one) for one in zip(*widths, strict=True))
    layers = settings.num_hidden_layers
    return round(queries / layers), round(keys / layers) if queries else 0


def _widths(module: Any, settings: Any) -> tuple[int, int]:
    """Widths of queries, and of keys and values, of one module that mixes tokens; 0 of any other."""
    own = {name: child for name, child in module.named_children() if hasattr(child, "weight")}
    key, value, query = _first_of(own, _KEYS), _first_of(own, _VALUES), _first_of(own, _QUERIES)
    if key is not None and value is not None:
        queries = key if query is None else query
        return queries.weight.shape[0], (key.weight.shape[0] + value.weight.shape[0]) // 2
    if "kv_b_proj" in own:  # latent attention: the cache holds what keys and values of all heads are made of
        seen = settings.qk_nope_head_dim + settings.qk_rope_head_dim
        queries_and_values = settings.num_attention_heads * seen * 2  # about as wide, for the backward pass
        return queries_and_values, (settings.kv_lora_rank + settings.qk_rope_head_dim) // 2
    output = _first_of(own, _OUTPUTS)
    if output is not None and _is_recurrent(module):
        return output.weight.shape[1], 0
    return 0, 0


def _first_of(layers: Mapping[str, Any], names: Sequence[str]) -> Any | None:
    """The layer that has the first of these names; None where there is none."""
    return next((layers[name] for name in names if name in layers), None)


def _is_recurrent(module: Any) -> bool:
    """Whether a layer mixes tokens by a state, as those of Mamba and of gated delta rules do."""
    return any(name.startswith(("conv1d", "in_proj")) for name, _ in module.named_children())


def _feed_forward(model: Any) -> int:
    """Parameters of matrices outside of embeddings and of what mixes tokens."""
    mixing = re.compile(r"attn|attention|mamba|mixer|conv|embed|lm_head|wte|wpe")
    return sum(p.numel() for name, p in model.named_parameters() if p.ndim > 1 and not mixing.search(name))


def _shape_named(path: str) -> Shape | None:
    """A published shape by the size in the last part of a path or hub id (`1.5B`, `135M`); None where there is none.

    Of another size it is the nearest, with more or fewer layers.
    """
    found = _IN_NAME.search(path.rstrip("/").rpartition("/")[2])
    if found is None:
        return None
    billions = float(found[1])
    if found[2].lower() != "b":
        billions *= 1e-3
    if not billions:
        return None
    shape = PUBLISHED[min(PUBLISHED, key=lambda one: abs(one - billions) / max(one, billions))]
    if billions in PUBLISHED:
        return shape
    empty = replace(shape, layers=0).parameters
    layer = replace(shape, layers=1).parameters - empty
    return replace(shape, layers=max(1, round((billions * 1e9 - empty) / layer)))


def _config_of(path: str) -> dict[str, Any] | None:
    """The configuration of a language model in a folder (an adapter's base), a package, or the hub's cache."""
    if path.startswith(PREFIX):
        return packaged_config(path)
    folder = Path(path)
    if (folder / ADAPTER).is_file():
        return _config_of(base_of(folder))
    file = folder / "config.json"
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        with boundary(DataError, f"{path}: neither a folder nor the name of a model on the hub"):
            cached = try_to_load_from_cache(path, "config.json") if path.count("/") <= 1 else None
        file = Path(cached) if isinstance(cached, str) else file
    return read_config(file) if file.is_file() else None


def read_config(file: Path) -> dict[str, Any]:
    """The configuration of the language part in a file.

    Raises:
        DataError: it cannot be read.
    """
    with boundary(DataError, f"{file} cannot be read"):
        found = json.loads(file.read_text(encoding="utf-8"))
        text = found.get("text_config")
        if not text:
            return dict(found)
        tied = {"tie_word_embeddings": found["tie_word_embeddings"]} if "tie_word_embeddings" in found else {}
        return {**tied, **text}
