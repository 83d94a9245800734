"""A batch in which several responses share a prompt, laid out so that the network reads each prompt once.

All tokens stand in one row without padding: first every different prompt, then every response. Every layer but
attention works on these tokens alone; attention lets the tokens of a response see their prompt and the response up to
themselves. Log-probabilities and gradients are those of whole sequences, since a prompt's hidden states do not depend
on what follows it.

    layout = lay_out_shared(batch, device=device)
    hidden = decoder(input_ids=layout.ids, position_ids=layout.positions, packing=layout.packing)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from guerdon.policies.batches.packing import (
    Layout,
    capped,
    causal_bias,
    check_prompts,
    fused_attention,
    grouped_heads,
    lay_out,
    spread_rows,
    weights_of,
)
from guerdon.policies.batches.tokens import TokenBatch
from guerdon.types import IntArray

SHARED_ATTENTION = "guerdon_shared_prompts"
WORTH_IT = 0.9  # share of all tokens that may be left for sharing to be used
WORTH_ON_GPU = 0.5  # there it takes twice the kernels: with 0.83 left 1.3 to 1.7 times the time (docs/benchmarks.md)
MOST_SLOTS = 2  # rows for each response, where groups differ in size
LONGEST_ON_GPU = 512  # tokens of a response (not measured: no GPU was available)


@dataclass(frozen=True, eq=False)
class Sharing:
    """Where the N tokens of a row with shared prompts belong.

    Attributes:
        prompt_places_P: for each prompt token, its place in flattened (G, Lp) rows, G different prompts.
        response_places_R: for each response token, its place in flattened (B, Lr) rows.
        group_B: which prompt a response answers.
        sizes: G, Lp, B, Lr.
        seen: (B, 1, Lr, Lp + Lr) bool, True where a response's token sees a token of its prompt or of itself; with
            `slots`, (G, 1, Lp) bool, True at the tokens of a prompt.
        slots: rows for the responses to one prompt, B = G * slots, prompt after prompt, for attention by plain matrix
            products, faster for short sequences on the CPU; 0: torch's fused attention, responses in their own order.
        last: the number of the last layer and (B,) the token of each response that is read, where only these are.
    """

    prompt_places_P: Tensor
    response_places_R: Tensor
    group_B: Tensor
    sizes: tuple[int, int, int, int]
    seen: Tensor
    slots: int
    last: tuple[int, Tensor] | None = None


def groups_of(batch: TokenBatch) -> tuple[list[int], IntArray]:
    """Rows in which a prompt appears first, in order, and for each row (B,) the index of its prompt among these."""
    known: dict[bytes, int] = {}
    first: list[int] = []
    group_B = np.zeros(len(batch), dtype=np.int64)
    for row, prompt in enumerate(batch.prompts):
        key = prompt.tobytes()
        if key not in known:
            known[key] = len(first)
            first.append(row)
        group_B[row] = known[key]
    return first, group_B


def worth_sharing(batch: TokenBatch, device: torch.device) -> bool:
    """Whether prompts repeat so much that reading each once leaves clearly fewer tokens.

    On a GPU half of them, and not for long responses: attention with a mask has no flash kernel there, and each layer
    would keep a bias of response times sequence.
    """
    if device.type == "cuda" and int(batch.lengths_B.max(initial=0)) > LONGEST_ON_GPU:
        return False
    first, _ = groups_of(batch)
    responses = int(batch.lengths_B.sum())
    left = sum(len(batch.prompts[row]) for row in first) + responses
    most = WORTH_ON_GPU if device.type == "cuda" else WORTH_IT
    return left < most * (sum(len(p) for p in batch.prompts) + responses)


def lay_out_shared(batch: TokenBatch, *, device: torch.device, eager: bool = False) -> Layout:
    """Put the different prompts and all responses of a batch into one row.

    Raises:
        ValueError: a prompt is empty, so that nothing predicts the first token of its response.
    """
    check_prompts(batch)
    first, group_B = groups_of(batch)
    prompts, responses = [batch.prompts[row] for row in first], batch.responses()
    prompt_G = np.array([len(p) for p in prompts], dtype=np.int64)
    response_B = np.array([len(r) for r in responses], dtype=np.int64)
    longest_p, longest_r = int(prompt_G.max(initial=0)), int(response_B.max(initial=0))
    ends_G = np.cumsum(prompt_G)
    starts_B = int(prompt_G.sum()) + np.cumsum(response_B) - response_B
    inside_P, inside_R = _counted(prompt_G), _counted(response_B)
    row_R = np.repeat(np.arange(len(batch)), response_B)
    in_group = np.argsort(group_B, kind="stable")
    sizes_G = np.bincount(group_B, minlength=len(prompts))
    slots = int(sizes_G.max(initial=0)) if eager else 0
    slots = slots if slots * len(prompts) <= MOST_SLOTS * len(batch) else 0
    place_B = np.arange(len(batch))
    if slots:
        place_B[in_group] = group_B[in_group] * slots + _counted(sizes_G)
    # What predicts a response's first token is the end of its prompt; the others follow their own predecessor.
    predicts = np.where(inside_R == 0, ends_G[group_B[row_R]] - 1, starts_B[row_R] + inside_R - 1)
    positions = np.concatenate([inside_P, prompt_G[group_B[row_R]] + inside_R])

    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    sharing = Sharing(
        put(np.repeat(np.arange(len(prompts)) * longest_p, prompt_G) + inside_P),
        put(place_B[row_R] * longest_r + inside_R),
        put(group_B),
        (len(prompts), longest_p, len(prompts) * slots or len(batch), longest_r),
        _inside(put(prompt_G), longest_p)[:, None] if slots else _seen(put(prompt_G[group_B]), longest_p, longest_r),
        slots,
    )
    ids = np.concatenate([*prompts, *responses])
    targets = batch.responses_B_T[batch.mask_B_T]
    return Layout(
        put(ids[None]), put(positions[None]), put(predicts), put(targets), sharing, attention=SHARED_ATTENTION
    )


def lay_out_compact(
    batch: TokenBatch, places: Sequence[IntArray], *, window: int | None, device: torch.device, eager: bool = False
) -> tuple[Layout, IntArray]:
    """A batch without padding, its repeated prompts once where that is worth it; and where some tokens are in it.

    Args:
        batch: prompts and responses.
        places: tokens of each sequence.
        window: how many tokens a local layer sees; None: there is no such layer.
        device: where the layout is used.
        eager: see `lay_out_shared`.

    Returns:
        The layout, and the places in its flattened ids, one sequence after the other.
    """
    prompt_B = np.array([len(p) for p in batch.prompts], dtype=np.int64)
    lengths_B = prompt_B + batch.lengths_B
    if not worth_sharing(batch, device) or (window is not None and window < lengths_B.max()):
        starts_B = np.cumsum(lengths_B) - lengths_B
        layout = lay_out(batch, pad_id=0, packed=True, device=device, eager=eager)
        return layout, np.concatenate([start + p for start, p in zip(starts_B, places, strict=True)])
    first, group_B = groups_of(batch)
    ends_G = np.cumsum(prompt_B[first])
    own_B = ends_G[-1] + np.cumsum(batch.lengths_B) - batch.lengths_B
    found = [
        np.where(p < n, ends_G[g] - n + p, own - n + p)
        for p, n, g, own in zip(places, prompt_B, group_B, own_B, strict=True)
    ]
    return lay_out_shared(batch, device=device, eager=eager), np.concatenate(found)


def common_start(sequences: Sequence[IntArray], ends: Sequence[int]) -> int:
    """How many tokens all sequences begin with, at most the least of `ends` and at least 1."""
    until = min(ends)
    differ = np.any([ids[:until] != sequences[0][:until] for ids in sequences], axis=0)
    return max(1, int(np.argmax(differ)) if differ.any() else until)


def _seen(prompt_B: Tensor, longest_p: int, longest_r: int) -> Tensor:
    """`Sharing.seen` of responses to prompts of these lengths (B,), made where it is needed."""
    seen = prompt_B.new_empty(len(prompt_B), 1, longest_r, longest_p + longest_r, dtype=torch.bool)
    seen[..., :longest_p] = _inside(prompt_B, longest_p)[:, None, None]
    seen[..., longest_p:] = _lower(longest_r, prompt_B.device)
    return seen


def _inside(lengths_B: Tensor, longest: int) -> Tensor:
    """(B, L) bool, True before the end of each row."""
    return torch.arange(longest, device=lengths_B.device) < lengths_B[:, None]


def _counted(lengths: IntArray) -> IntArray:
    """0, 1, ... within each of consecutive pieces of these lengths."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(np.arange(len(starts)) - starts, dtype=np.int64)


def register() -> None:
    """Make `SHARED_ATTENTION` known to transformers; a second call changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(SHARED_ATTENTION, shared_attention)


def shared_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Sharing,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within prompts, and of responses to their prompt and themselves, in the form transformers calls.

    Args:
        module: unused; transformers passes the layer.
        query: (1, H, N, D).
        key: (1, K, N, D), H a multiple of K.
        value: (1, K, N, D).
        attention_mask: unused; there is none.
        packing: where the tokens belong.
        scaling: of the scores; None for D ** -0.5.
        dropout: of the attention weights.
        softcap: of the scores, which torch's fused attention cannot do; None for none.

    Returns:
        (1, N, H, D), and None for the weights.
    """
    prompts, longest_p, rows, longest_r = packing.sizes
    count = len(packing.prompt_places_P)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if packing.slots:  # autocast would cast what the rotation left in float32, again in every product
        query, key = (query * scale).to(value.dtype), key.to(value.dtype)
    if packing.last is not None and not packing.slots and module.layer_idx == packing.last[0]:
        attend = partial(_masked_attention, scale=scale, dropout=dropout, softcap=softcap)
        return _at_the_ends(query, key, value, packing, packing.last[1], attend), None
    q, k, v = (spread_rows(x[:, :, :count], packing.prompt_places_P, prompts, longest_p) for x in (query, key, value))
    own_q, own_k, own_v = (
        spread_rows(x[:, :, count:], packing.response_places_R, rows, longest_r) for x in (query, key, value)
    )
    if packing.slots:
        among_prompts, among_responses = _eager_attention(
            (q, k, v), (own_q, own_k, own_v), packing, dropout=dropout, softcap=softcap
        )
    else:
        k, v = grouped_heads(q, k), grouped_heads(q, v)
        attend = partial(_masked_attention, scale=scale, dropout=dropout, softcap=softcap)
        among_prompts = attend(q, k, v, _lower(longest_p, q.device))
        k = torch.cat([k.index_select(0, packing.group_B), grouped_heads(own_q, own_k)], dim=2)
        v = torch.cat([v.index_select(0, packing.group_B), grouped_heads(own_q, own_v)], dim=2)
        among_responses = attend(own_q, k, v, packing.seen)
    gathered = [
        x.transpose(1, 2).flatten(0, 1).index_select(0, places)  # see `packed_attention`
        for x, places in ((among_prompts, packing.prompt_places_P), (among_responses, packing.response_places_R))
    ]
    return torch.cat(gathered)[None], None


def _at_the_ends(
    query: Tensor, key: Tensor, value: Tensor, packing: Sharing, ends_B: Tensor, attend: Callable[..., Tensor]
) -> Tensor:
    """Attention (1, N, H, D) of one token of each response, and zeros elsewhere; as `shared_attention`."""
    prompts, longest_p, rows, longest_r = packing.sizes
    count = len(packing.prompt_places_P)
    q = query[0, :, ends_B].transpose(0, 1)[:, :, None]  # (B, H, 1, D)
    k, v = (
        torch.cat(
            [
                spread_rows(x[:, :, :count], packing.prompt_places_P, prompts, longest_p)[packing.group_B],
                spread_rows(x[:, :, count:], packing.response_places_R, rows, longest_r),
            ],
            dim=2,
        )
        for x in (key, value)
    )
    inside_B = packing.response_places_R[ends_B - count] % longest_r
    seen = packing.seen[torch.arange(rows, device=ends_B.device), :, inside_B][:, :, None]
    found = attend(q, grouped_heads(q, k), grouped_heads(q, v), seen)
    full = found.new_zeros(1, query.shape[2], *found.shape[1:2], found.shape[-1])
    full[0, ends_B] = found[:, :, 0]
    return full


def _masked_attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, *, scale: float, dropout: float, softcap: float | None
) -> Tensor:
    """Attention (B, H, L, D) of tokens to those that a mask (..., L, S) lets them see; fused where none is capped."""
    if softcap is None:
        return fused_attention(q, k, v, attn_mask=seen, dropout_p=dropout, scale=scale)
    scores = capped((q * scale) @ k.mT, softcap).masked_fill(~seen, -torch.inf)
    return F.dropout(scores.softmax(-1), dropout) @ v


def _eager_attention(
    of_prompts: tuple[Tensor, Tensor, Tensor],
    of_responses: tuple[Tensor, Tensor, Tensor],
    packing: Sharing,
    *,
    dropout: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Attention by matrix products; all responses to a prompt, and the heads that share a key, are rows of one product.

    Args:
        of_prompts: scaled queries (G, H, Lp, D), keys and values (G, K, Lp, D).
        of_responses: scaled queries (G * S, H, Lr, D), keys and values (G * S, K, Lr, D).
        packing: where the tokens belong.
        dropout: of the attention weights.
        softcap: of the scores; None for none.

    Returns:
        (G, H, Lp, D) and (G * S, H, Lr, D).
    """
    (q, k, v), (own_q, own_k, own_v) = of_prompts, of_responses
    groups, slots, (kv_heads, longest_p, width) = len(k), packing.slots, k.shape[1:]
    heads, longest_r = q.shape[1] // kv_heads, own_q.shape[2]
    rows = slots * heads * longest_r

    def by_head(x: Tensor, heads: int) -> Tensor:
        """(G * S, K * heads, Lr, D) to (G, K, S, heads * Lr, D)."""
        return x.view(groups, slots, kv_heads, heads, longest_r, width).transpose(1, 2).flatten(3, 4)

    k, v = k.flatten(0, 1), v.flatten(0, 1)  # (G * K, Lp, D)
    prompt_q = q.reshape(groups * kv_heads, heads * longest_p, width)
    scores = capped(prompt_q @ k.mT, softcap).view(-1, heads, longest_p, longest_p)
    among_prompts = F.dropout(weights_of(scores + causal_bias(longest_p, None, q)), dropout).flatten(1, 2) @ v

    own_q = by_head(own_q, heads)
    own_k, own_v = by_head(own_k, 1).flatten(0, 2), by_head(own_v, 1).flatten(0, 2)  # (G * K * S, Lr, D)
    to_own = capped(own_q.flatten(0, 2) @ own_k.mT, softcap).view(-1, heads, longest_r, longest_r)
    to_own = to_own + causal_bias(longest_r, None, q)
    to_prompt = capped(own_q.reshape(groups * kv_heads, rows, width) @ k.mT, softcap)
    to_prompt = to_prompt.masked_fill((~packing.seen).repeat_interleave(kv_heads, 0), -torch.inf)
    both = F.dropout(weights_of(torch.cat([to_prompt, to_own.view(groups * kv_heads, rows, longest_r)], -1)), dropout)
    of_own = both[..., longest_p:].reshape(-1, heads * longest_r, longest_r) @ own_v
    out = (both[..., :longest_p] @ v + of_own.view(-1, rows, width)).view(
        groups, kv_heads, slots, heads, longest_r, width
    )
    return among_prompts.view(q.shape), out.transpose(1, 2).reshape(groups * slots, -1, longest_r, width)


def _lower(length: int, device: torch.device) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()
