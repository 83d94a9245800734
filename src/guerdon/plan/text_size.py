"""How large a language model is, from its `config.json`, or from the size that its name says.

size_of_start(TextPolicySettings(path="Qwen/Qwen2.5-Math-1.5B-Instruct")).millions       # 1544
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guerdon.compute.packaged import PREFIX, packaged_config
from guerdon.errors import DataError, boundary
from guerdon.network.hub import ADAPTER, base_of
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings


@dataclass(frozen=True)
class Shape:
    """The matrices of a decoder as Llama and Qwen2 have them.

    Attributes:
        width: of the hidden states.
        layers: blocks.
        inner: width inside the feed-forward layers.
        queries, keys: widths of all queries, and of all keys (values are as wide) of a layer.
        vocabulary: rows of the embedding.
        tied: input and output embeddings are one matrix.
    """

    width: int
    layers: int
    inner: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool

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
        """All parameters, but for biases."""
        layer = sum(a * b for a, b in self.linear) + 2 * self.width
        return self.layers * layer + self.embedding * (1 if self.tied else 2) + self.width

    def adapters(self, rank: int) -> int:
        """Parameters of adapters on all matrices but the embeddings."""
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

    def __str__(self) -> str:
        adapter = "" if self.rank is None else f", {self.trained:.3g}M of them trained"
        number = f"{self.millions:.3g}" if self.millions < 1000 else f"{self.millions:.0f}"
        return f"{number}M{adapter}" + (f", assumed: {self.assumed}" if self.assumed else "")


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
    if found is not None and {"hidden_size", "num_hidden_layers", "intermediate_size"} <= found.keys():
        return Size(shape_of(found), rank)
    if (shape := _shape_named(path)) is not None:
        return Size(shape, rank, f"{path} is not here yet, so the size in its name and a shape of Qwen2.5")
    why = f"{path} is not here yet, and its name says no size (policy.config_file takes its config.json)"
    return Size(PUBLISHED[0.5], rank, why, known=False)


def _tiny_shape(tiny: TinyModelSettings) -> Shape:
    words = 262 if tiny.tokenizer == "bytes" else len(set(tiny.alphabet)) + 8
    config = {
        "hidden_size": tiny.hidden_size, "num_hidden_layers": tiny.layers, "intermediate_size": tiny.intermediate,
        "num_attention_heads": tiny.heads, "num_key_value_heads": tiny.kv_heads, "vocab_size": words,
    }  # fmt: skip
    return shape_of({**config, "tie_word_embeddings": tiny.tie_embeddings})


def shape_of(found: dict[str, Any]) -> Shape:
    """The shape that a configuration of transformers describes."""
    heads, width = found.get("num_attention_heads") or 1, found["hidden_size"]
    head = found.get("head_dim") or width // heads
    keys, tied = (found.get("num_key_value_heads") or heads) * head, found.get("tie_word_embeddings", True)
    layers, inner = found["num_hidden_layers"], found["intermediate_size"]
    return Shape(width, layers, inner, heads * head, keys, found.get("vocab_size", 0), bool(tied))


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
        return dict(found.get("text_config") or found)
