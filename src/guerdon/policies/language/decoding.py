"""Decoding token by token: `LlamaDecoder` for Llama and Qwen2, `HFDecoder` for every other architecture.

`HFDecoder` uses the model's own forward pass and cache. `LlamaDecoder` is faster: one fused weight per product, a
cache without copies. All rows of a batch stand in the same column of the cache, so keys and values are written by
one assignment, and a rotary angle is shared by the whole batch: rotary positions are relative (RoFormer, Su et al.
2021, 2104.09864), so counting them from the start of the padding changes nothing. The two halves of a head are
interleaved (by reordering rows of the weights), so that the rotation is one product of complex numbers. Attention of
one query per row is two batched products, or torch's fused attention where that is faster. Adapters and the scales of
the normalisations are multiplied into the weights before the first token.

Rows that have ended can be kept, and a later batch goes on from them with further tokens: turns of a conversation.

    decoder = LlamaDecoder(policy)       # or HFDecoder(policy)
    logits_B_V = decoder.prefill(ids_B_P, real_B_P, room=64)
    decoder.select(rows_N)               # repeat rows for several samples, drop those that are finished
    logits_N_V = decoder.step(tokens_N)
    kept = [decoder.kept(row, length) for row in range(2)]
    logits_2_V = LlamaDecoder(policy).resume(kept, more_2_D, real_2_D, room=64)
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from guerdon.errors import ConfigError, boundary
from guerdon.policies.batches.packing import causal_bias, fused_attention
from guerdon.policies.language.text import TextPolicy

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


class KeptRow(NamedTuple):
    """Keys and values of one row, to go on from later.

    Attributes:
        keys: of each layer, (heads, L, D).
        values: of each layer.
        turn: number of the rotation of its first token, for `LlamaDecoder`.
    """

    keys: list[Tensor]
    values: list[Tensor]
    turn: int = 0


def _beside(kept: Sequence[KeptRow], real_B_D: Tensor) -> tuple[Tensor, Tensor]:
    """(B, C) where C columns hold kept tokens, on the right of each row; and (B, D) places of new ones in their row."""
    lengths = [row.keys[0].shape[1] for row in kept]
    lengths_B = torch.tensor(lengths, device=real_B_D.device)
    columns = torch.arange(max(lengths), device=real_B_D.device)
    places_B_D = lengths_B[:, None] + (real_B_D.long().cumsum(-1) - 1).clamp_min(0)
    return columns >= max(lengths) - lengths_B[:, None], places_B_D


def _filled(rows: Sequence[Tensor], new: Tensor, room: int) -> Tensor:
    """(B, heads, C + D + room, D): kept rows (heads, L, D) on the right of C columns, behind them new ones."""
    longest = max(row.shape[1] for row in rows)
    found = new.new_zeros(*new.shape[:2], longest + new.shape[2] + room, new.shape[3])
    for b, row in enumerate(rows):
        found[b, :, longest - row.shape[1] : longest] = row
    found[:, :, longest : longest + new.shape[2]] = new
    return found


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
        self._at: Tensor | None = None  # rotation of each row's next token, where rows differ in it
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
        self._bias = self._at = None
        if padded:
            self._bias = torch.zeros(real_B_P.shape, device=self._device).masked_fill_(~real_B_P, -torch.inf)
        self._turn_to(self._room)
        at_once = READ_AT_ONCE if self._device.type == "cpu" else self._tokens_per_pass or rows * length
        size = max(1, at_once // max(length, 1))
        parts = [
            self._read(ids_B_P[start : start + size], real_B_P[start : start + size] if padded else None)
            for start in range(0, max(rows, 1), size)
        ]
        self._keys = _stacked([keys for keys, _, _ in parts])
        self._values = _stacked([values for _, values, _ in parts])
        return torch.cat([logits for _, _, logits in parts])

    def _turn_to(self, most: int) -> None:
        """Prepare so many rotations."""
        angles = torch.arange(most, device=self._device).float()[:, None] * self._frequencies
        self._turns = torch.polar(torch.full_like(angles, self._amplitude), angles)  # (room, D/2)

    def kept(self, row: int, length: int) -> KeptRow:
        """Keys and values of the first tokens of a row."""
        real = torch.arange(self._column, device=self._device)
        if self._bias is not None:
            real = real[self._bias[row, : self._column] == 0]
        real = real[:length]
        first = int(real[0]) if self._at is None else int(self._at[row]) - self._count(row)
        keys, values = ([cache[row].index_select(1, real) for cache in one] for one in (self._keys, self._values))
        return KeptRow(keys, values, first)

    def _count(self, row: int) -> int:
        """Tokens of a row."""
        return self._column if self._bias is None else int((self._bias[row, : self._column] == 0).sum())

    def resume(self, kept: Sequence[KeptRow], ids_B_D: Tensor, real_B_D: Tensor, *, room: int) -> Tensor:
        """Go on from rows that were read before, with further tokens.

        Args:
            kept: of each row.
            ids_B_D: further tokens, padded on the left.
            real_B_D: False at padding.
            room: how many tokens may follow.

        Returns:
            (B, V) float32 logits of the first token to write.
        """
        there_B_C, places_B_D = _beside(kept, real_B_D)
        before, new = there_B_C.shape[1], ids_B_D.shape[1]
        turns_B_D = torch.tensor([row.turn for row in kept], device=self._device)[:, None] + places_B_D
        self._column, self._room = before + new, before + new + room
        self._turn_to(int(turns_B_D.max()) + 1 + room)
        self._at = turns_B_D[:, -1] + 1
        real_B_L = torch.cat([there_B_C, real_B_D], dim=1)
        hidden = torch.zeros(real_B_L.shape, device=self._device).masked_fill_(~real_B_L, -torch.inf)
        self._bias = F.pad(hidden, (0, room))
        earlier = torch.ones(new, new, dtype=torch.bool, device=self._device).tril()
        itself = torch.eye(new, dtype=torch.bool, device=self._device)  # a softmax over nothing is not a number
        seen = torch.cat([there_B_C[:, None].expand(-1, new, -1), earlier & real_B_D[:, None] | itself], dim=2)
        bias = torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill_(~seen, -torch.inf)[:, None]
        x = F.embedding(ids_B_D, self._embedding)
        self._keys, self._values = [], []
        for k, layer in enumerate(self._layers):
            q, own_k, own_v = (t.transpose(1, 2) for t in self._project(x, layer, self._turns[turns_B_D][:, :, None]))
            self._keys.append(_filled([row.keys[k] for row in kept], own_k, room))
            self._values.append(_filled([row.values[k] for row in kept], own_v, room))
            keys, values = self._keys[k][:, :, : self._column], self._values[k][:, :, : self._column]
            gqa = self._heads != self._kv_heads
            attended = fused_attention(q, keys, values, attn_mask=bias, enable_gqa=gqa)
            x = self._finish(x, attended.transpose(1, 2).flatten(2), layer)
        return self._head(self._normed(x[:, -1])).float()

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
        if self._at is not None:
            self._at = self._at[rows]
        if self._bias is not None:
            self._bias = self._bias[rows]
            if self._bias.shape[1] < self._room:
                self._bias = F.pad(self._bias, (0, self._room - self._bias.shape[1]))

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append a token to every row; (B, V) float32 logits of the next one, overwritten by the next step."""
        b, n = len(tokens_B), self._column + 1
        bias = self._step_bias(n)
        if self._at is None:
            turn = self._turns[self._column]
        else:
            turn = self._turns[self._at][:, None, None]
            self._at = self._at + 1
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

    def kept(self, row: int, length: int) -> KeptRow:
        """Keys and values of the first tokens of a row."""
        real = self._real[row].nonzero().squeeze(-1)[:length]
        keys, values = (
            [getattr(layer, name)[row].index_select(1, real) for layer in self._cache.layers]
            for name in ("keys", "values")
        )
        return KeptRow(keys, values)

    def resume(self, kept: Sequence[KeptRow], ids_B_D: Tensor, real_B_D: Tensor, *, room: int) -> Tensor:
        """Go on from rows that were read before, with further tokens: see `LlamaDecoder.resume`."""
        there_B_C, places_B_D = _beside(kept, real_B_D)
        length = there_B_C.shape[1] + ids_B_D.shape[1]
        self._cache = _cache(self._base.model.config, length + room)
        for k, layer in enumerate(self._cache.layers):
            first = kept[0].keys[k]
            none = first.new_zeros(len(kept), first.shape[0], 0, first.shape[2])
            keys, values = (_filled([getattr(row, name)[k] for row in kept], none, 0) for name in ("keys", "values"))
            layer.update(keys, values)
        self._real = torch.cat([there_B_C, real_B_D], dim=1)
        return self._forward(ids_B_D, places_B_D)

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


def keeps_all(policy: TextPolicy) -> bool:
    """Whether what a decoder keeps of a row is keys and values of its tokens, and nothing else."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    layers = () if supports(policy) else DynamicCache(config=policy.base.model.config).layers
    return all(type(layer) is DynamicLayer for layer in layers)


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
    with (
        base.adapter(policy.adapter),
        boundary(ConfigError, f"{name} cannot be generated with"),
        decoder.weights_cast_once(),
    ):
        found, wanted = _with_and_without_cache(decoder, base, ids, long)
    worst = max(float((a.log_softmax(-1) - b.log_softmax(-1)).abs().max()) for a, b in zip(found, wanted, strict=True))
    largest = max(1.0, *(float(one.abs().max()) for one in wanted))
    allowed = ROUNDED_DIFFERENCE if base.bf16 or base.rounded else STEP_DIFFERENCE
    if not worst <= allowed * largest:  # NaN is refused, too
        raise ConfigError(
            f"{name}: a step with its cache gives other log-probabilities than the whole text (by {worst:.1g}), so "
            "what it writes would not be what is learned from: choose another architecture, or generation.engine: vllm"
        )
    base.steps_checked = True


def _with_and_without_cache(decoder: HFDecoder, base: Any, ids: Tensor, long: int) -> tuple[list[Tensor], list[Tensor]]:
    """(V,) logits behind two texts of `ids`, and behind three rows of these after a step; the same read at once.

    The first text has `long` tokens, the second is padded to as many.
    """
    real = torch.ones(2, long, dtype=torch.bool, device=base.device)
    real[1, : long // 2] = False
    rows = torch.tensor([1, 0, 1], device=base.device)
    texts = [row[keep] for row, keep in zip(ids[:, :long], real, strict=True)]
    found = list(decoder.prefill(ids[:, :long], real, room=3))
    wanted = [_whole_pass(base, text) for text in texts]
    decoder.select(rows)
    texts = [torch.cat([texts[row], ids[row, long : long + 1]]) for row in rows]
    found += decoder.step(torch.stack([text[-1] for text in texts]))
    wanted += [_whole_pass(base, text) for text in texts]
    return found, wanted


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
