"""Layout of a batch of sequences in the network's input: padded rows, or packed into one row without padding.

Packed, every layer but attention works on real tokens only; attention spreads them out to rows, so that no token
sees another sequence, and gathers the result again. Rows are padded on the right, where a causal model never looks
back from, so no mask is needed either way.

    layout = lay_out(batch, pad_id=0, packed=True, device=device)
    hidden = decoder(input_ids=layout.ids, position_ids=layout.positions, packing=layout.packing)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from guerdon.policies.batches.tokens import TokenBatch, pad_right
from guerdon.types import IntArray

PACKED_ATTENTION = "guerdon_packed"
_KERNELS = threading.Lock()  # which of them may be used is a setting of the process


@dataclass(frozen=True, eq=False)
class Packing:
    """Where the N tokens of a packed row belong.

    Attributes:
        places_N: index of each token in the flattened (B, L) rows.
        rows, longest: B and L.
        eager: attention by two matrix products and a softmax, faster for short sequences on the CPU.
    """

    places_N: Tensor
    rows: int
    longest: int
    eager: bool


@dataclass(frozen=True, eq=False)
class Layout:
    """A batch as the network takes it.

    Attributes:
        ids: (B, L), or (1, N) packed.
        positions: as `ids`: the position of each token in its sequence; None for 0..L-1 in every row.
        predicts_M: for each of the M response tokens, row by row, the place in the flattened `ids` whose output
            predicts it: the token before.
        targets_M: the response tokens.
        packing: what the attention of a row without padding needs; None where rows are padded.
        mask: (B, 1, L, L) bool, True where a token sees another; None for causal rows.
        attention: name of the attention that `packing` is for; None where rows are padded.
    """

    ids: Tensor
    positions: Tensor | None
    predicts_M: Tensor
    targets_M: Tensor
    packing: object | None
    mask: Tensor | None = None
    attention: str | None = None

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return self.ids.shape[1] if self.positions is None else int(self.positions.max()) + 1


def lay_out(batch: TokenBatch, *, pad_id: int, packed: bool, device: torch.device, eager: bool = False) -> Layout:
    """Put the sequences of a batch into padded rows or into one packed row.

    Raises:
        ValueError: a prompt is empty, so that nothing predicts the first token of its response.
    """
    check_prompts(batch)
    sequences = batch.sequences()
    lengths_B = np.array([len(s) for s in sequences], dtype=np.int64)
    rows, longest = len(sequences), int(lengths_B.max(initial=0))
    starts_B = np.concatenate([[0], np.cumsum(lengths_B)[:-1]]) if packed else np.arange(rows) * longest
    first_B = starts_B + np.array([len(p) for p in batch.prompts], dtype=np.int64) - 1
    predicts = (first_B[:, None] + np.arange(batch.mask_B_T.shape[1]))[batch.mask_B_T]
    targets = batch.responses_B_T[batch.mask_B_T]

    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    if not packed:
        ids, _ = pad_right(sequences, pad_id)
        return Layout(put(ids), None, put(predicts), put(targets), None)
    packed_ids, positions, packing = pack(sequences, device, eager=eager)
    return Layout(packed_ids, positions, put(predicts), put(targets), packing, attention=PACKED_ATTENTION)


def pack(sequences: Sequence[IntArray], device: torch.device, *, eager: bool = False) -> tuple[Tensor, Tensor, Packing]:
    """Sequences behind each other in one row: ids and positions (1, N), and where the tokens belong."""
    lengths_B = np.array([len(s) for s in sequences], dtype=np.int64)
    rows, longest = len(sequences), int(lengths_B.max(initial=0))
    positions = np.concatenate([np.arange(n) for n in lengths_B])
    places = np.repeat(np.arange(rows) * longest, lengths_B) + positions
    ids, at, places_N = (torch.from_numpy(x).to(device) for x in (np.concatenate(sequences), positions, places))
    return ids[None], at[None], Packing(places_N, rows, longest, eager)


def check_prompts(batch: TokenBatch) -> None:
    """Make sure that something predicts the first token of every response.

    Raises:
        ValueError: a prompt is empty.
    """
    if any(len(p) == 0 for p in batch.prompts):
        raise ValueError("an empty prompt predicts no first token; a chat template gives at least one")


def body_of(model: Any) -> Any:
    """The part of a network of transformers that gives last hidden states of tokens."""
    from transformers import PreTrainedModel

    if model.config.is_encoder_decoder:
        return model.base_model
    found = model.get_decoder()  # of some families it is the model itself, or its head
    if found is not model and hasattr(found, "config"):
        return found if found.get_output_embeddings() is None else body_of(found)
    if model.base_model is not model:
        return model.base_model
    return next((part for part in model.children() if isinstance(part, PreTrainedModel)), model)


def is_recurrent(config: Any) -> bool:
    """Whether a network keeps the state of recurrent layers or convolutions, which have no ends of sequences."""
    from transformers import DynamicCache

    return any(hasattr(layer, "conv_states") for layer in DynamicCache(config=config).layers)


def register() -> None:
    """Make `PACKED_ATTENTION` known to transformers; a second call changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)


def packs(model: Any, *, bf16: bool = False) -> bool:
    """Whether a network of transformers reads packed sequences as it reads each alone; tried with two short ones.

    Its attention must be exchangeable, look back only, and be all that carries something from token to token. Networks
    that do something else around their attention (a mask of their own, arguments that they do not hand on) show it by
    other values, or by raising.

    Args:
        model: the network.
        bf16: it computes in bfloat16, whatever dtype its first weight has; the caller switches autocast on.
    """
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"]
    body = body_of(model)
    looks_back = [bool(module.is_causal) for module in body.modules() if hasattr(module, "is_causal")]
    return (
        bool(getattr(model, "_supports_attention_backend", False))
        and not getattr(model, "_is_stateful", False)
        and set(kinds) <= {"full_attention", "sliding_attention"}
        and not any(name.endswith(".sinks") for name, _ in body.named_parameters())
        and bool(looks_back)
        and all(looks_back)
        and not is_recurrent(model.config)
        and _packs_alike(model, bf16 or model.dtype != torch.float32)
    )


def reads_masks(
    model: Any,
    body: Any,
    in_layers: Callable[[Layout], Tensor | dict[str, Tensor]],
    *,
    attention: str,
    bf16: bool = False,
) -> bool:
    """Whether a network reads a text with two endings, kept apart by a mask, as it reads each whole; tried with one.

    Args:
        model: the network.
        body: the part that gives last hidden states.
        in_layers: a layout's mask as the network takes it.
        attention: the implementation that takes it.
        bf16: see `packs`.
    """
    ids, device = _some_ids(model, 7)
    text, endings, end = 4, (2, 3), 2  # the endings follow the second token
    positions = torch.cat([torch.arange(text), *(end + torch.arange(n) for n in endings)])[None].to(device)
    mask = torch.eye(positions.shape[1], dtype=torch.bool)
    mask[:text, :text] = torch.ones(text, text).tril()
    starts = (text, text + endings[0])
    for start, n in zip(starts, endings, strict=True):
        mask[start : start + n, :end] = True
        mask[start : start + n, start : start + n] = torch.ones(n, n).tril()
    none = torch.zeros(0, dtype=torch.int64)
    rows = [torch.cat([ids[:end], ids[text:][:n]]) for n in endings]
    whole = torch.cat([ids[:text], *(row[end:] for row in rows)])[None]
    layout = Layout(whole, positions, none, none, None, mask[None, None].to(device))
    places = torch.cat([torch.cat([torch.arange(end), start + torch.arange(n)])
                        for start, n in zip(starts, endings, strict=True)])  # fmt: skip

    def masked() -> Tensor:
        found: Tensor = body(
            input_ids=whole, position_ids=positions, use_cache=False, attention_mask=in_layers(layout)
        ).last_hidden_state[0, places]
        return found

    return _reads_alike(model, rows, masked, attention, bf16 or model.dtype != torch.float32)


def _packs_alike(model: Any, half: bool) -> bool:
    """Whether two sequences are read alike packed and each alone."""
    lengths = (3, 7)
    rows, device = [_some_ids(model, n)[0] for n in lengths], _some_ids(model, 1)[1]
    places = torch.cat([torch.arange(n, device=device) + row * max(lengths) for row, n in enumerate(lengths)])
    positions = torch.cat([torch.arange(n, device=device) for n in lengths])[None]
    register()

    def packed() -> Tensor:
        found: Tensor = body_of(model)(
            input_ids=torch.cat(rows)[None], position_ids=positions, use_cache=False,
            packing=Packing(places, len(lengths), max(lengths), eager=False),
        ).last_hidden_state[0]  # fmt: skip
        return found

    return _reads_alike(model, rows, packed, PACKED_ATTENTION, half)


def _some_ids(model: Any, count: int) -> tuple[Tensor, torch.device]:
    """(count,) ids of a network, and its device."""
    table = model.get_input_embeddings().weight
    return torch.arange(count, device=table.device) * 7919 % int(table.shape[0]), table.device


@torch.no_grad()
def _reads_alike(model: Any, rows: list[Tensor], together: Callable[[], Tensor], attention: str, half: bool) -> bool:
    """Whether the last hidden states of sequences read together, by some attention, are those of each alone."""
    training, before = model.training, model.config._attn_implementation
    model.eval()
    try:
        alone = torch.cat([body_of(model)(input_ids=x[None], use_cache=False).last_hidden_state[0] for x in rows])
        model.set_attn_implementation(attention)
        found, alone = together().float(), alone.float()
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError):
        return False
    finally:
        model.set_attn_implementation(before)
        model.train(training)
    allowed = 0.1 if half else 1e-3
    return bool((found - alone).abs().max() <= allowed * alone.abs().max())


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each of the packed sequences, in the form transformers calls.

    Args:
        module: unused; transformers passes the layer.
        query: (1, H, N, D).
        key: (1, K, N, D), H a multiple of K.
        value: (1, K, N, D).
        attention_mask: unused; there is none.
        packing: where the tokens belong.
        scaling: of the scores; None for D ** -0.5.
        dropout: of the attention weights.
        sliding_window: how far back a token sees; None for to the start.
        softcap: of the scores, which torch's fused attention cannot do; None for none.

    Returns:
        (1, N, H, D), and None for the weights.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    n = packing.longest
    window = sliding_window if sliding_window is not None and sliding_window < n else None
    eager = packing.eager or softcap is not None
    if eager:  # autocast would cast what the rotation left in float32, again in every product
        query, key = (query * scale).to(value.dtype), key.to(value.dtype)
    q, k, v = (spread_rows(x, packing.places_N, packing.rows, packing.longest) for x in (query, key, value))
    k, v = grouped_heads(q, k), grouped_heads(q, v)
    if eager or window is not None:
        bias = causal_bias(n, window, q)
        if eager:
            out = F.dropout(weights_of(capped(q @ k.transpose(-1, -2), softcap) + bias), dropout) @ v
        else:
            out = fused_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    else:
        out = fused_attention(q, k, v, is_causal=True, dropout_p=dropout, scale=scale)
    b, h, width = out.shape[0], out.shape[1], out.shape[3]
    # not an index, whose gradient sorts places on a GPU and adds number by number on a CPU
    return out.transpose(1, 2).reshape(b * n, h, width).index_select(0, packing.places_N)[None], None


def fused_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """`scaled_dot_product_attention`, but on a GPU never by cuDNN, which compiles a program for every new shape."""
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, **options)
    with _KERNELS, sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, **options)


def spread_rows(x: Tensor, places_N: Tensor, rows: int, longest: int) -> Tensor:
    """(1, H, N, D) to (B, H, L, D), zero where there is no token.

    Args:
        x: per token.
        places_N: where each token goes in the flattened (B, L) rows.
        rows: B.
        longest: L.
    """
    _, h, n, d = x.shape
    spread = x.new_zeros(rows * longest, h * d)
    spread = spread.index_copy(0, places_N, x[0].transpose(0, 1).reshape(n, h * d))
    return spread.view(rows, longest, h, d).transpose(1, 2)


def weights_of(scores: Tensor) -> Tensor:
    """Softmax over the last axis in the dtype of the scores, float32 within; autocast would keep float32 copies."""
    with torch.autocast(scores.device.type, enabled=False):
        return scores.softmax(-1)


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores of attention kept below a size: softcap * tanh(scores / softcap) (Gemma 2, 2408.00118, section 2)."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def grouped_heads(query: Tensor, key: Tensor) -> Tensor:
    """Keys or values (B, K, L, D) repeated so that each of the query's (B, H, L, D) heads has its own."""
    groups = query.shape[1] // key.shape[1]
    return key.repeat_interleave(groups, dim=1) if groups > 1 else key


def causal_bias(length: int, window: int | None, like: Tensor) -> Tensor:
    """(L, L): 0 where a token may look, minus infinity elsewhere."""
    seen = torch.ones(length, length, dtype=torch.bool, device=like.device).tril()
    if window is not None:
        seen &= ~torch.ones_like(seen).tril(-window)
    return torch.zeros(length, length, dtype=like.dtype, device=like.device).masked_fill_(~seen, -torch.inf)
