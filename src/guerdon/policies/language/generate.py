"""Responses for prompts: sampling, stopping, and the log-probability of every token that was drawn.

The log-probability recorded is that of the policy at the sampling temperature, before `top_p` and `top_k` leave
tokens out: the same quantity that training computes. A token is drawn by turning one uniform number into a token
(inverse distribution function); row i of a request always uses the i-th row of numbers of its generator, so neither
the batch size nor the other rows change a response.

    engine = LocalEngine(policy, LocalGenerationSettings(temperature=1.0))
    found = engine.generate(prompts, 8, max_new_tokens=64, rng=np.random.default_rng(0))
    found.batch.responses_B_T, found.log_probs_B_T        # row i * 8 + j: sample j of prompt i
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from guerdon.errors import ConfigError, DataError, boundary
from guerdon.policies.batches.packing import causal_bias, fused_attention
from guerdon.policies.batches.tokens import TokenBatch, pad_id, pad_left, stop_ids
from guerdon.policies.language.text import TextPolicy
from guerdon.settings.text_policy import LocalGenerationSettings
from guerdon.types import FloatArray, IntArray

# ---------------------------------------------------------------------------------------------------------------------
# Decoding token by token: `LlamaDecoder` for Llama and Qwen2, `HFDecoder` for every other architecture.
#
# `HFDecoder` uses the model's own forward pass and cache. `LlamaDecoder` is faster: one fused weight per product, a
# cache without copies. All rows of a batch stand in the same column of the cache, so keys and values are written by
# one assignment, and a rotary angle is shared by the whole batch: rotary positions are relative (RoFormer, Su et al.
# 2021, 2104.09864), so counting them from the start of the padding changes nothing. The two halves of a head are
# interleaved (by reordering rows of the weights), so that the rotation is one product of complex numbers. Attention
# of one query per
# row is two batched products, or torch's fused attention where that is faster. Adapters and the scales of the
# normalisations are multiplied into the weights before the first token.
#
#     decoder = LlamaDecoder(policy)       # or HFDecoder(policy)
#     logits_B_V = decoder.prefill(ids_B_P, real_B_P, room=64)
#     decoder.select(rows_N)               # repeat rows for several samples, drop those that are finished
#     logits_N_V = decoder.step(tokens_N)
# ---------------------------------------------------------------------------------------------------------------------


_MODELS = {"LlamaForCausalLM", "Qwen2ForCausalLM"}
_FIXED_ANGLES = {"default", "linear", "llama3"}  # others change the angles with the length


# Prompt tokens in one forward pass on the CPU: the values between two products then stay in the cache, and their
# memory is reused instead of being allocated again. Measured at 256 prompts of 63 tokens, 3.4 million weights.
READ_AT_ONCE = 2048


class _Linear:
    """x @ weight.T + bias; a bfloat16 weight is brought once into the order that oneDNN's products read on a CPU.

    Measured with AVX-512 bfloat16: 0.82 of `F.linear`'s time for 64 rows, 0.9 to 0.95 for 512.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = (
            weight.dtype == torch.bfloat16
            and weight.device.type == "cpu"
            and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
            and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        )
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return found
        return F.linear(x, self._weight, self._bias)


@dataclass(frozen=True, eq=False)
class _Layer:
    """Weights and biases of one layer, in the computing dtype."""

    qkv: _Linear
    out: _Linear
    gate_up: _Linear
    down: _Linear


def supports(policy: TextPolicy) -> bool:
    """Whether this policy's architecture is the one written out here."""
    model, config = policy.base.model, policy.base.model.config
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    return (
        type(model).__name__ in _MODELS
        and ((form := getattr(model, "stored_form", None)) is None or form.floats)
        and policy.base.plain_head
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in _FIXED_ANGLES
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and set(kinds) == {"full_attention"}
    )


class LlamaDecoder:
    """A batch being written.

    Args:
        policy: the weights are read once, so make a new decoder after an update.
    """

    def __init__(self, policy: TextPolicy) -> None:
        model, config = policy.base.model, policy.base.model.config
        self._dtype = torch.bfloat16 if policy.base.bf16 else torch.float32
        self._device, self._tokens_per_pass = policy.device, policy.base.tokens_per_pass
        self._eager_for = policy.base.eager_for
        # Measured with 8 to 256 rows: torch's fused attention takes 0.3 to 0.5 of the time of two products in bfloat16
        # with AMX, 1.7 to 2 times their time with AVX-512 alone, and about the same in float32.
        amx = self._device.type == "cpu" and bool(torch.cpu.get_capabilities().get("amx_bf16"))
        self._fused = self._dtype == torch.bfloat16 and amx
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._eps = config.rms_norm_eps
        decoder = model.get_decoder()
        self._embedding = policy.merged(decoder.embed_tokens)
        order = torch.arange(self._head_dim, device=self._device).view(2, -1).T.flatten()  # 0, D/2, 1, D/2 + 1, ...
        self._layers = [_layer(policy, layer, order, self._dtype) for layer in decoder.layers]
        head = policy.merged(model.get_output_embeddings())
        self._head = _Linear((head * decoder.norm.weight.detach()).to(self._dtype), None)
        self._frequencies = decoder.rotary_emb.inv_freq.float()
        self._amplitude = float(decoder.rotary_emb.attention_scaling)
        self._turns = torch.zeros(0, dtype=torch.complex64)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._room = self._column = 0
        self._bias: Tensor | None = None
        self._scores: Tensor | None = None  # memory for the logits of a step: fresh pages cost more than the copy

    def weights_cast_once(self) -> AbstractContextManager[None]:
        """Nothing to do: the weights were copied when this decoder was made."""
        return nullcontext()

    def prefill(self, ids_B_P: Tensor, real_B_P: Tensor, *, room: int) -> Tensor:
        """Read prompts.

        Args:
            ids_B_P: padded on the left.
            real_B_P: False at padding.
            room: how many tokens may follow.

        Returns:
            (B, V) float32 logits of the first token to write.
        """
        rows, length = ids_B_P.shape
        self._column, self._room = length, length + room
        padded = not bool(real_B_P.all())
        self._bias = None
        if padded:
            self._bias = torch.zeros(real_B_P.shape, device=self._device).masked_fill_(~real_B_P, -torch.inf)
        angles = torch.arange(self._room, device=self._device).float()[:, None] * self._frequencies
        self._turns = torch.polar(torch.full_like(angles, self._amplitude), angles)  # (room, D/2)
        at_once = READ_AT_ONCE if self._device.type == "cpu" else self._tokens_per_pass or rows * length
        size = max(1, at_once // max(length, 1))
        parts = [
            self._read(ids_B_P[start : start + size], real_B_P[start : start + size] if padded else None)
            for start in range(0, max(rows, 1), size)
        ]
        self._keys = _stacked([keys for keys, _, _ in parts])
        self._values = _stacked([values for _, values, _ in parts])
        return torch.cat([logits for _, _, logits in parts])

    def _read(self, ids_B_P: Tensor, real_B_P: Tensor | None) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Keys and values (B, heads, P, D) of every layer, and the logits after the last token."""
        length = ids_B_P.shape[1]
        bias: Tensor | None = None
        if real_B_P is not None:
            seen = torch.ones(length, length, dtype=torch.bool, device=self._device).tril()
            itself = torch.eye(length, dtype=torch.bool, device=self._device)  # a softmax over nothing is not a number
            seen = (seen & real_B_P[:, None, :] | itself)[:, None]
            bias = torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill_(~seen, -torch.inf)
        eager = self._dtype == torch.bfloat16 and self._eager_for(length)
        if eager and bias is None:
            bias = causal_bias(length, None, torch.empty(0, dtype=self._dtype, device=self._device))
        all_keys, all_values = [], []
        x = F.embedding(ids_B_P, self._embedding)
        for layer in self._layers:
            q, k, v = (t.transpose(1, 2) for t in self._project(x, layer, self._turns[:length, None]))
            all_keys.append(k)
            all_values.append(v)
            if eager and bias is not None:  # heads that share a key are rows of one product
                scores = (q.reshape(len(q) * self._kv_heads, -1, self._head_dim) @ k.flatten(0, 1).mT).view(
                    len(q), self._heads, length, length
                )
                shares = scores.mul_(self._head_dim**-0.5).add_(bias).softmax(-1)
                attended = (shares.view(len(q) * self._kv_heads, -1, length) @ v.flatten(0, 1)).view(q.shape)
            else:
                attended = fused_attention(
                    q, k, v, attn_mask=bias, is_causal=bias is None, enable_gqa=self._heads != self._kv_heads
                )
            x = self._finish(x, attended.transpose(1, 2).flatten(2), layer)
        return all_keys, all_values, self._head(self._normed(x[:, -1])).float()

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order; a row may come several times, or no more.

        Args:
            rows: (N,) int64.
        """
        for cache in (self._keys, self._values):
            for i, old in enumerate(cache):
                shape = (len(rows), old.shape[1], self._room, old.shape[3])
                # Fewer rows fit into the old memory, as no row moves to a later place.
                new = old[: len(rows)] if old.shape[2] == self._room and len(rows) <= len(old) else old.new_empty(shape)
                new[:, :, : self._column] = old[rows, :, : self._column]
                cache[i] = new
        if self._bias is not None:
            self._bias = self._bias[rows]
            if self._bias.shape[1] < self._room:
                self._bias = F.pad(self._bias, (0, self._room - self._bias.shape[1]))

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append a token to every row; (B, V) float32 logits of the next one, overwritten by the next step."""
        b, n = len(tokens_B), self._column + 1
        turn, bias = self._turns[self._column], self._step_bias(n)
        x = F.embedding(tokens_B[:, None], self._embedding)
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            q, k, v = self._project(x, layer, turn)
            keys[:, :, self._column], values[:, :, self._column] = k[:, 0], v[:, 0]
            attended = self._attend(q, keys[:, :, :n], values[:, :, :n], bias)
            x = self._finish(x, attended.reshape(b, 1, -1), layer)  # of a view on a GPU
        self._column = n
        logits = self._head(self._normed(x[:, 0]))
        if logits.dtype == torch.float32:
            return logits
        if self._scores is None or len(self._scores) < b:
            self._scores = torch.empty_like(logits, dtype=torch.float32)
        return self._scores[:b].copy_(logits)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Attention of the newest token over keys and values (B, kv_heads, n, D); heads of all rows in their order."""
        b, kv_heads, n, width = keys.shape
        q = q.reshape(b, kv_heads, -1, width)
        if self._fused:
            return fused_attention(q, keys, values, attn_mask=bias)
        q, keys_R_n_D, values_R_n_D = q.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1)
        if bias is not None:
            bias = bias.expand(b, kv_heads, 1, n).reshape(b * kv_heads, 1, n)
        scale = width**-0.5
        if self._dtype == torch.bfloat16:  # the other way round, the keys would be copied
            scores = torch.bmm(keys_R_n_D, q.transpose(1, 2)).transpose(1, 2) * scale
            scores = scores if bias is None else scores + bias
        else:
            beta = 0 if bias is None else 1
            added = q.new_zeros(1, 1, 1) if bias is None else bias
            scores = torch.baddbmm(added, q, keys_R_n_D.transpose(1, 2), beta=beta, alpha=scale)
        return torch.bmm(torch.softmax(scores, -1), values_R_n_D)

    def _step_bias(self, n: int) -> Tensor | None:
        """Minus infinity at padding, (B, 1, 1, n); None where there is no padding."""
        return None if self._bias is None else self._bias[:, None, None, :n].to(self._dtype)

    def _project(self, x: Tensor, layer: _Layer, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, T, heads, D), keys and values (B, T, kv_heads, D), turned to their positions."""
        projected = layer.qkv(self._normed(x))
        heads = projected.view(*projected.shape[:2], self._heads + 2 * self._kv_heads, self._head_dim)
        flat = heads[:, :, : -self._kv_heads].float().reshape(*projected.shape[:2], self._heads + self._kv_heads, -1, 2)
        turned = torch.view_as_real(torch.view_as_complex(flat) * turn).flatten(-2).to(self._dtype)
        return turned[:, :, : self._heads], turned[:, :, self._heads :], heads[:, :, -self._kv_heads :]

    def _finish(self, x: Tensor, attended: Tensor, layer: _Layer) -> Tensor:
        x = x + layer.out(attended)
        gate, up = layer.gate_up(self._normed(x)).chunk(2, -1)
        return x + layer.down(F.silu(gate).mul_(up))

    def _normed(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], None, self._eps).to(self._dtype)


class HFDecoder:
    """A batch being written; with the methods of `LlamaDecoder`.

    The cache is transformers' own: keys and values, and the states of recurrent layers and convolutions. Weights are
    cast to bfloat16 in each step, but for those that are trained, inside a block of `weights_cast_once`.

    Args:
        policy: whose weights; the adapter is chosen for each step.
    """

    def __init__(self, policy: TextPolicy) -> None:
        self._policy, self._base = policy, policy.base
        takes = inspect.signature(type(self._base.model).forward).parameters
        self._cache_name = "past_key_values" if "past_key_values" in takes else "cache_params"
        self._takes = {name for name in ("position_ids", "logits_to_keep") if name in takes}
        self._cache: Any = None
        self._real = torch.zeros(0, 0, dtype=torch.bool)

    def weights_cast_once(self) -> AbstractContextManager[Any]:
        """A block with one bfloat16 copy of the weights that are trained: autocast keeps it until the block ends."""
        return torch.autocast(self._base.device.type, torch.bfloat16, enabled=self._base.bf16)

    def prefill(self, ids_B_P: Tensor, real_B_P: Tensor, *, room: int) -> Tensor:
        """Read prompts padded on the left and return the (B, V) logits of the first token to write.

        They are read in parts of `max_tokens_per_pass`.
        """
        rows, length = ids_B_P.shape
        model = self._base.model
        size = max(1, (self._base.tokens_per_pass or rows * length) // max(length, 1))
        positions_B_P = (real_B_P.long().cumsum(-1) - 1).clamp_min(0)
        caches, logits = [], []
        for start in range(0, max(rows, 1), size):
            here = slice(start, start + size)
            self._cache, self._real = _cache(model.config, length + room), real_B_P[here]
            logits.append(self._forward(ids_B_P[here], positions_B_P[here]))
            caches.append(self._cache)
        self._cache, self._real = _joined(caches), real_B_P
        return torch.cat(logits)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order; a row may come several times, or no more."""
        self._cache.reorder_cache(rows)
        self._real = self._real[rows]

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append a token to every row and return the (B, V) logits of the next."""
        self._real = torch.cat([self._real, self._real.new_ones(len(tokens_B), 1)], -1)
        return self._forward(tokens_B[:, None], self._real.long().sum(-1, keepdim=True) - 1)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        base = self._base
        with (
            base.adapter(self._policy.adapter),
            base.ropes.side(),
            base.attention("eager" if base.settings.attention == "eager" else base.fused),
            torch.autocast(base.device.type, torch.bfloat16, enabled=base.bf16),
        ):
            base.model.eval()
            more: dict[str, Any] = {"position_ids": positions, "logits_to_keep": 1, self._cache_name: self._cache}
            step = ids.shape[1] < self._real.shape[1]
            out = base.model(
                input_ids=ids, use_cache=True,
                attention_mask=None if step and self._cache_name == "cache_params" else self._real.long(),
                **{name: value for name, value in more.items() if name in self._takes or name == self._cache_name},
            )  # fmt: skip
        logits: Tensor = out.logits[:, -1].float()
        return logits


def _cache(config: Any, room: int) -> Any:
    """The cache of transformers for a model, its full attention in memory for `room` tokens that is allocated once."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    class Roomy(DynamicLayer):  # type: ignore[misc]
        """A layer whose `keys` and `values` are the filled part of larger tensors; transformers' own copies them."""

        keys: Tensor
        values: Tensor
        _whole: tuple[Tensor, Tensor] | None = None

        def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            here = self.get_seq_length()
            end = here + key_states.shape[-2]
            if self._whole is None:
                new = [x.new_empty(*x.shape[:2], room, x.shape[3]) for x in (key_states, value_states)]
                if here:
                    new[0][:, :, :here], new[1][:, :, :here] = self.keys, self.values
                self._whole = new[0], new[1]
            keys, values = self._whole
            keys[:, :, here:end], values[:, :, here:end] = key_states, value_states
            self.keys, self.values = keys[:, :, :end], values[:, :, :end]
            return self.keys, self.values

        def reorder_cache(self, beam_idx: Tensor) -> None:
            super().reorder_cache(beam_idx)
            self._whole = None

    cache = DynamicCache(config=config)
    cache.layers = [Roomy() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _joined(caches: list[Any]) -> Any:
    """One cache with the rows of all, layer by layer; the parts are let go of as soon as they are copied."""
    first, *others = caches
    for i, layer in enumerate(first.layers if others else ()):
        parts = [layer, *(cache.layers[i] for cache in others)]
        for name, dim in _ROWS_OF.items():
            if isinstance(states := getattr(layer, name, None), dict | list):
                found = {k: [getattr(p, name)[k] for p in parts] for k in _keys(states)}
                for k, own in found.items():
                    states[k] = own[0] if own[0] is None else torch.cat(own, dim)
            elif isinstance(states, Tensor):
                setattr(layer, name, torch.cat([getattr(p, name) for p in parts], dim))
        layer._whole = None
        for cache in others:
            cache.layers[i] = None
    return first


# Tensors of a cache's layer, and which of their dimensions is that of rows.
_ROWS_OF = {"keys": 0, "values": 0, "conv_states": 0, "recurrent_states": 0, "indexer_keys": 0,
            "indexer_position_ids": 1}  # fmt: skip


def _keys(states: dict[int, Any] | list[Any]) -> list[int]:
    """What the states of a layer are found by."""
    return list(states) if isinstance(states, dict) else list(range(len(states)))


STEP_DIFFERENCE = 1e-5  # of log-probabilities, for the largest logit where that is above 1
ROUNDED_DIFFERENCE = 3e-2  # where weights are bfloat16
MOST_WINDOW = 64  # tokens of a local window that the trial fills


@torch.inference_mode()
def check_steps(policy: TextPolicy) -> None:
    """Refuse a network that writes with its cache something else than it reads without: tried with a few tokens.

    Rows are padded on the left, leave and come several times, as in `LocalEngine`.

    Raises:
        ConfigError: log-probabilities of a step differ from those of the whole text, or it cannot be tried.
    """
    base = policy.base
    if base.steps_checked or base.device.type == "meta" or supports(policy):
        return
    name, window, room = type(base.model).__name__, base.window or 0, base.positions or MOST_WINDOW
    long = max(2, min(window + 2 if window <= MOST_WINDOW else 6, room - 1))
    ids = torch.arange(2 * (long + 3), device=base.device).view(2, -1) * 7919 % base.vocabulary
    decoder = HFDecoder(policy)
    real = torch.ones(2, long, dtype=torch.bool, device=base.device)
    real[1, : long // 2] = False
    rows = torch.tensor([1, 0, 1], device=base.device)
    texts = [row[keep] for row, keep in zip(ids[:, :long], real, strict=True)]
    with (
        base.adapter(policy.adapter),
        boundary(ConfigError, f"{name} cannot be generated with"),
        decoder.weights_cast_once(),
    ):
        found = list(decoder.prefill(ids[:, :long], real, room=3))
        wanted = [_whole_pass(base, text) for text in texts]
        decoder.select(rows)
        texts = [torch.cat([texts[row], ids[row, long : long + 1]]) for row in rows]
        found += decoder.step(torch.stack([text[-1] for text in texts]))
        wanted += [_whole_pass(base, text) for text in texts]
    worst = max(float((a.log_softmax(-1) - b.log_softmax(-1)).abs().max()) for a, b in zip(found, wanted, strict=True))
    largest = max(1.0, *(float(one.abs().max()) for one in wanted))
    allowed = ROUNDED_DIFFERENCE if base.bf16 or base.rounded else STEP_DIFFERENCE
    if not worst <= allowed * largest:  # NaN is refused, too
        raise ConfigError(
            f"{name}: a step with its cache gives other log-probabilities than the whole text (by {worst:.1g}), so "
            "what it writes would not be what is learned from: choose another architecture, or generation.engine: vllm"
        )
    base.steps_checked = True


def _whole_pass(base: Any, text: Tensor) -> Tensor:
    """(V,) logits after the last token of a text, read at once."""
    with base.attention("eager" if base.settings.attention == "eager" else base.fused), base.ropes.side():
        logits: Tensor = base.model(input_ids=text[None], use_cache=False).logits[0, -1].float()
    return logits


def _stacked(parts: list[list[Tensor]]) -> list[Tensor]:
    """Layer by layer, the rows of all parts; a part's tensors are let go of as soon as they are copied."""
    if len(parts) == 1:
        return parts[0]
    return [torch.cat([part.pop(0) for part in parts]) for _ in range(len(parts[0]))]


def _layer(policy: TextPolicy, layer: Any, order_D: Tensor, dtype: torch.dtype) -> _Layer:
    a, m = layer.self_attn, layer.mlp

    def fused(parts: tuple[Any, ...], scale: Tensor | None = None, turned: int = 0) -> _Linear:
        """One weight of several layers, those of `turned` first ones reordered within heads."""
        weights, biases = [], []
        for i, part in enumerate(parts):
            weight, bias = policy.merged(part), getattr(part, "base_layer", part).bias
            if scale is not None:
                weight = weight * scale
            if i < turned:
                weight = weight.view(-1, len(order_D), weight.shape[1])[:, order_D].flatten(0, 1)
                if bias is not None:
                    bias = bias.view(-1, len(order_D))[:, order_D].flatten()
            weights.append(weight.to(dtype))
            if bias is not None:
                biases.append(bias.detach().to(dtype))
        return _Linear(torch.cat(weights) if len(weights) > 1 else weights[0], torch.cat(biases) if biases else None)

    before, between = layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach()
    return _Layer(
        qkv=fused((a.q_proj, a.k_proj, a.v_proj), before, turned=2),
        out=fused((a.o_proj,)),
        gate_up=fused((m.gate_proj, m.up_proj), between),
        down=fused((m.down_proj,)),
    )


# ---------------------------------------------------------------------------------------------------------------------


LOOK_EVERY = {"cpu": 1, "cuda": 8}  # steps between checks for finished rows: a check makes a GPU wait
CROWDED = 0.85  # drop finished rows when fewer than this share is still writing


@dataclass(frozen=True, eq=False)
class Generation:
    """Responses, and the log-probabilities of their tokens.

    Attributes:
        batch: B = prompts x samples rows, the samples of a prompt next to each other.
        log_probs_B_T: (B, T) float32 log-probabilities of the tokens under the policy that wrote them, at the
            sampling temperature; 0 where there is no token. Of vLLM: of the distribution that was drawn from, after
            `top_p` and `top_k` too.
        versions_B: (B,) version of the weights that wrote each response; None: the engine was not given any.
    """

    batch: TokenBatch
    log_probs_B_T: FloatArray
    versions_B: IntArray | None = None


class Engine(Protocol):
    """Generates responses."""

    def generate(
        self,
        prompts: Sequence[IntArray],
        n_per_prompt: int,
        *,
        max_new_tokens: int,
        rng: np.random.Generator | None = None,
        greedy: bool = False,
    ) -> Generation:
        """`n_per_prompt` responses to each prompt; the most likely tokens with `greedy`, else sampled with `rng`."""
        ...

    def sync(self, weights: Mapping[str, Tensor] | None = None, version: int | None = None) -> None:
        """Follow the policy's weights; to be called after each update.

        Args:
            weights: `TextPolicy.tensors`; None: those of the engine's own policy.
            version: of the weights; responses carry it.
        """
        ...

    def rest(self) -> None:
        """Give back the memory that is not needed until the next `sync`, which must come before the next `generate`."""
        ...


class LocalEngine:
    """Batched sampling in this process, on the CPU or a GPU.

    Args:
        policy: the model. Its weights are read at every call, so nothing needs to be synchronised.
        settings: temperature, truncation of the distribution, rows at a time.
    """

    def __init__(self, policy: TextPolicy, settings: LocalGenerationSettings) -> None:
        self.policy, self.settings = policy, settings
        stops = stop_ids(policy.tokenizer, policy.base.model.generation_config)
        if not len(stops):
            raise ConfigError("the tokenizer has no end-of-sequence token, so no response would ever end")
        self._is_stop_V = torch.zeros(policy.base.vocabulary, dtype=torch.bool, device=policy.device)
        self._is_stop_V[torch.from_numpy(stops)] = True
        self._version: int | None = None
        if policy.base.shards is None:
            check_steps(policy)

    def sync(self, weights: Mapping[str, Tensor] | None = None, version: int | None = None) -> None:
        """Remember the version: the weights are read at every call."""
        self._version = version

    def rest(self) -> None:
        """Nothing to do: the cache is gone when `generate` returns."""

    def generate(
        self,
        prompts: Sequence[IntArray],
        n_per_prompt: int,
        *,
        max_new_tokens: int,
        rng: np.random.Generator | None = None,
        greedy: bool = False,
    ) -> Generation:
        """Write responses.

        Args:
            prompts: token ids of each prompt.
            n_per_prompt: responses to each.
            max_new_tokens: where a response is cut.
            rng: draws the samples; its state moves on by the same amount whatever is written.
            greedy: always the most likely token; takes no `rng`.

        Raises:
            DataError: a prompt is empty, or the model has no room for it and its response.
        """
        if (rng is None) != greedy:
            raise ValueError("give a generator to sample with, or greedy=True")
        self._check(prompts, max_new_tokens)
        longest = max((len(p) for p in prompts), default=0) + max_new_tokens
        self.policy.base.ropes.decide(longest, "what is generated")
        with self.policy.base.whole(), torch.inference_mode():
            check_steps(self.policy)
            found = self._generate(prompts, n_per_prompt, max_new_tokens, rng)
        return found if self._version is None else replace(found, versions_B=np.full(len(found.batch), self._version))

    def _generate(
        self, prompts: Sequence[IntArray], n_per_prompt: int, max_new_tokens: int, rng: np.random.Generator | None
    ) -> Generation:
        """Responses, with all weights at hand."""
        b = len(prompts) * n_per_prompt
        kinds, kind_of_prompt = _distinct(prompts)
        kind_B = np.repeat(kind_of_prompt, n_per_prompt)
        uniform = np.zeros((b, 0)) if rng is None else rng.random((b, max_new_tokens))
        uniform_B_T = torch.from_numpy(uniform.astype(np.float32)).clamp_max_(1 - 2**-24).to(self.policy.device)
        tokens_B_T = np.full((b, max_new_tokens), pad_id(self.policy.tokenizer), dtype=np.int64)
        log_probs_B_T = np.zeros((b, max_new_tokens), dtype=np.float32)
        order = np.argsort([len(kinds[k]) for k in kind_B], kind="stable")  # neighbours of like length: less padding
        decoder = LlamaDecoder(self.policy) if supports(self.policy) else HFDecoder(self.policy)
        with decoder.weights_cast_once():
            for start in range(0, b, self.settings.batch_size):
                rows = order[start : start + self.settings.batch_size]
                present, back = np.unique(kind_B[rows], return_inverse=True)
                ids, real = pad_left([kinds[k] for k in present], pad_id(self.policy.tokenizer))
                device = self.policy.device
                logits = decoder.prefill(
                    torch.from_numpy(ids).to(device), torch.from_numpy(real).to(device), room=max_new_tokens
                )
                back_N = torch.from_numpy(back).to(device)
                decoder.select(back_N)
                numbers = uniform_B_T[torch.from_numpy(rows).to(device)]
                tokens, found = self._write(decoder, logits[back_N], numbers, max_new_tokens)
                tokens_B_T[rows, : tokens.shape[1]] = tokens.cpu().numpy()
                log_probs_B_T[rows, : found.shape[1]] = found.cpu().numpy()
        return _trimmed(prompts, n_per_prompt, tokens_B_T, log_probs_B_T, self._is_stop_V.cpu().numpy(), self._pad)

    @property
    def _pad(self) -> int:
        return pad_id(self.policy.tokenizer)

    def _write(
        self, decoder: LlamaDecoder | HFDecoder, logits: Tensor, uniform_N_T: Tensor, max_new_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Tokens and log-probabilities (N, T) of a batch whose prompts are read; what follows a stop is noise."""
        s, device = self.settings, logits.device
        n, every = len(logits), LOOK_EVERY.get(device.type, 8)
        tokens_N_T = torch.full((n, max_new_tokens), self._pad, device=device)
        log_probs_N_T = torch.zeros(n, max_new_tokens, device=device)
        rows = torch.arange(n, device=device)
        writing = torch.ones(n, dtype=torch.bool, device=device)
        for t in range(max_new_tokens):
            numbers = uniform_N_T[rows, t] if uniform_N_T.shape[1] else None
            token, log_prob = draw(logits, numbers, temperature=s.temperature, top_k=s.top_k, top_p=s.top_p)
            tokens_N_T[rows, t], log_probs_N_T[rows, t] = token, log_prob
            if t == max_new_tokens - 1:
                break
            writing &= ~self._is_stop_V[token]
            if (t + 1) % every == 0:
                left = int(writing.sum())
                if left == 0:
                    break
                if left < CROWDED * len(rows):
                    keep = writing.nonzero().squeeze(-1)
                    decoder.select(keep)
                    rows, token, writing = rows[keep], token[keep], writing[keep]
            logits = decoder.step(token)
        return tokens_N_T, log_probs_N_T

    def _check(self, prompts: Sequence[IntArray], max_new_tokens: int) -> None:
        if any(len(p) == 0 for p in prompts):
            raise DataError("a prompt has no tokens; a chat template gives at least one")
        longest = max((len(p) for p in prompts), default=0)
        check_room(longest, max_new_tokens, self.policy.base.positions, "a prompt")


def check_room(length: int, max_new_tokens: int, room: int | None, what: str) -> None:
    """Refuse a prompt for whose longest response the model has no positions.

    Args:
        length: tokens of the prompt.
        max_new_tokens: of the response.
        room: positions of the model; None: no limit.
        what: names the prompt in the message.

    Raises:
        DataError: they do not fit.
    """
    if room is not None and length + max_new_tokens > room:
        raise DataError(
            f"{what} of {length} tokens and a response of up to {max_new_tokens} do not fit the model's {room} "
            "positions: lower data.max_response_length or data.max_prompt_length, or leave the prompt out"
        )


def draw(
    logits_N_V: Tensor, uniform_N: Tensor | None, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> tuple[Tensor, Tensor]:
    """One token per row.

    Args:
        logits_N_V: float32.
        uniform_N: numbers in [0, 1) that decide; None: the most likely token.
        temperature: divides the logits.
        top_k: draw from this many most likely tokens; 0: from all.
        top_p: draw from the smallest set of most likely tokens whose mass reaches this (Holtzman et al. 2020,
            1904.09751).

    Returns:
        (N,) tokens and (N,) log-probabilities at the temperature, over the whole vocabulary.
    """
    log_probs = torch.log_softmax(logits_N_V if temperature == 1.0 else logits_N_V / temperature, -1)
    if uniform_N is None:
        token = log_probs.argmax(-1)
    else:
        candidates: Tensor | None = None
        mass = log_probs.exp()
        if 0 < top_k < mass.shape[-1]:
            mass, candidates = mass.topk(top_k, -1)
        elif top_p < 1.0:
            mass, candidates = mass.sort(-1, descending=True)
        if top_p < 1.0:
            before = mass.cumsum(-1) - mass
            mass = mass.masked_fill(before >= top_p * mass.sum(-1, keepdim=True), 0.0)
        reached = mass.cumsum(-1)
        token = torch.searchsorted(reached, uniform_N[:, None] * reached[:, -1:], right=True)
        token = token.clamp_max_(mass.shape[-1] - 1)
        token = (token if candidates is None else candidates.gather(-1, token)).squeeze(-1)
    return token, log_probs.gather(-1, token[:, None]).squeeze(-1)


def _distinct(prompts: Sequence[IntArray]) -> tuple[list[IntArray], IntArray]:
    """The different prompts, and which of them each prompt is."""
    seen: dict[bytes, int] = {}
    which = [seen.setdefault(np.asarray(p, dtype=np.int64).tobytes(), len(seen)) for p in prompts]
    return [np.frombuffer(b, dtype=np.int64) for b in seen], np.array(which, dtype=np.int64)


def _trimmed(
    prompts: Sequence[IntArray],
    n_per_prompt: int,
    tokens_B_T: IntArray,
    log_probs_B_T: FloatArray,
    is_stop_V: np.ndarray,
    pad: int,
) -> Generation:
    """Everything after the first stop is padding, and columns without a token are cut off."""
    stops_B_T = is_stop_V[tokens_B_T]
    finished_B = stops_B_T.any(axis=1)
    limit = tokens_B_T.shape[1]
    lengths_B = np.where(finished_B, stops_B_T.argmax(axis=1) + 1, limit)
    width = int(lengths_B.max(initial=0))
    mask_B_T = np.arange(width) < lengths_B[:, None]
    batch = TokenBatch(
        tuple(np.asarray(p, dtype=np.int64) for p in prompts for _ in range(n_per_prompt)),
        np.where(mask_B_T, tokens_B_T[:, :width], pad),
        mask_B_T,
        np.asarray(finished_B),
    )
    return Generation(batch, np.where(mask_B_T, log_probs_B_T[:, :width], np.float32(0)))
