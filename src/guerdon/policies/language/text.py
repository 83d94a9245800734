"""A language model as a policy: log-probabilities and entropies of responses, trainable weights, stored tensors.

A policy is a view of a `SharedBase`: all of its weights, one adapter on it, or the frozen weights alone (a
reference).

    policy = load_policy(settings, seed=0)                   # guerdon.policies.language.text_files
    scores = policy.evaluate(batch, temperature=1.0, entropy=True)
    loss = -(scores.log_probs * advantages_B_T).sum()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from guerdon.compute import distributed
from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.batches.packing import lay_out
from guerdon.policies.batches.passes import passes, slices
from guerdon.policies.batches.prompt_sharing import lay_out_shared
from guerdon.policies.batches.tokens import TokenBatch, joined_turns, pad_id
from guerdon.policies.language.shared_base import SharedBase
from guerdon.settings.text_policy import LoraSettings
from guerdon.types import BoolArray, Evaluated, IntArray, PolicyInputs

# Logits of a piece. On a GPU: a quarter of a GiB in float32, several of them in the backward pass.
LOGITS_AT_ONCE = {"cuda": 2**26, "cpu": 2**24}
VALUE_PREFIX = "value_head."


class WithTokens(PolicyInputs, Protocol):
    """What a rollout of text holds: at least the tokens."""

    @property
    def batch(self) -> TokenBatch:
        """Prompts and responses."""
        ...


class TextPolicy:
    """A view of a language model.

    Args:
        base: the weights and the tokenizer.
        adapter: which adapter this policy is; None: the weights themselves.
        trainable: without an adapter, whether all weights are trained; a reference trains nothing.
        value_heads: also estimate so many values per token (one per reward source), by a linear layer on the last
            hidden state that starts at zero.
        remove_padding: forward without padding; None: as the base's settings say.

    Attributes:
        temperature: that it samples with.
        dropout: whether gradient passes draw the dropout of the model and of its adapters. Only training on examples
            should: log-probabilities with dropout are not comparable to those of the policy that sampled, nor to a
            reference's.

    Raises:
        ConfigError: the weights are frozen under adapters, or cannot be read without padding.
    """

    def __init__(
        self,
        base: SharedBase,
        *,
        adapter: str | None = None,
        trainable: bool = True,
        value_heads: int = 0,
        remove_padding: bool | None = None,
    ) -> None:
        if adapter is None and trainable and base.adapters:
            raise ConfigError("these weights carry adapters, so they are frozen: train an adapter, not the weights")
        self.base, self.adapter, self.trainable = base, adapter, trainable
        self.temperature = 1.0
        self.dropout = base.settings.dropout is True
        self.remove_padding = base.settings.use_remove_padding if remove_padding is None else remove_padding
        if self.remove_padding:
            base.check_packs()
        self.value_head: nn.Linear | None = None
        if value_heads:
            with torch.random.fork_rng(devices=[]):
                self.value_head = nn.Linear(base.width, value_heads)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
            self.value_head.to(base.device)
        distributed.register(self)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the base."""
        return self.base.tokenizer

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.base.device

    @property
    def sharded(self) -> bool:
        """Whether the weights are sharded over several processes."""
        return self.base.shards is not None

    def prepared(self, inputs: WithTokens) -> TokenBatch:
        """The tokens of a rollout's responses."""
        return inputs.batch

    def observe(self, inputs: WithTokens, mask_B_T: BoolArray) -> None:
        """Nothing: a language model keeps no statistics."""

    def evaluate(self, inputs: TokenBatch, *, entropy: bool = False, temperature: float | None = None) -> Evaluated:
        """Log-probabilities of the responses, with gradients unless the caller switched them off.

        Args:
            inputs: prompts and responses; rows of very different lengths waste time unless padding is removed.
            entropy: also of the distribution of each token.
            temperature: divides the logits; give the one that was sampled with. None: `temperature` of this policy.

        Returns:
            (B, T) log-probabilities and entropies and (B, T, H) values; 0 where there is no token.
        """
        lengths_B = [len(p) + int(n) for p, n in zip(inputs.prompts, inputs.lengths_B, strict=True)]
        if len(apart := self.base.ropes.apart(lengths_B)) > 1:
            return self._evaluated_apart(inputs, apart, entropy=entropy, temperature=temperature)
        longest = max(lengths_B, default=0)
        eager = self.base.eager_for(longest)
        whole, places_M = (inputs, None) if inputs.follows_B is None else joined_turns(inputs)
        if not self.remove_padding and self.base.shares_prompts(whole, longest):
            layout = lay_out_shared(whole, device=self.device, eager=eager)
        else:
            layout = lay_out(
                whole, pad_id=pad_id(self.tokenizer), packed=self.remove_padding, device=self.device, eager=eager
            )
        if places_M is not None:
            kept_M = torch.from_numpy(places_M).to(self.device)
            layout = replace(layout, predicts_M=layout.predicts_M[kept_M], targets_M=layout.targets_M[kept_M])

        at_once = LOGITS_AT_ONCE.get(self.device.type, 2**24)
        several = len(layout.targets_M) > at_once // self.base.vocabulary

        def compute() -> tuple[Tensor, Tensor, Tensor | None]:
            hidden_M_H = self.base.hidden(layout, dropout=self.dropout)[layout.predicts_M]
            log_probs_M, entropy_M = token_log_probs(
                hidden_M_H, self.base.head_cast_once() if several else self.base.logits, layout.targets_M,
                vocabulary=self.base.vocabulary, temperature=self.temperature if temperature is None else temperature,
                entropy=entropy, logits_at_once=at_once,
            )  # fmt: skip
            return hidden_M_H, log_probs_M, entropy_M

        with self.base.adapter(self.adapter):
            hidden_M_H, log_probs_M, entropy_M = self.base.run(compute)
        values_M_K = None if self.value_head is None else self.value_head(hidden_M_H.float())
        mask_B_T = torch.from_numpy(inputs.mask_B_T).to(self.device)

        def spread(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.new_zeros(mask_B_T.shape).masked_scatter(mask_B_T, values)

        log_probs_B_T = spread(log_probs_M)
        assert log_probs_B_T is not None
        values_B_T_K = None
        if values_M_K is not None:
            places = mask_B_T[..., None].expand(-1, -1, values_M_K.shape[1])
            values_B_T_K = values_M_K.new_zeros(places.shape).masked_scatter(places, values_M_K)
        return Evaluated(log_probs_B_T, spread(entropy_M), values_B_T_K)

    def _evaluated_apart(
        self, inputs: TokenBatch, apart: Sequence[IntArray], *, entropy: bool, temperature: float | None
    ) -> Evaluated:
        """What `evaluate` gives, by a pass for each of several parts of the rows."""
        if self.base.shards is not None:
            raise ConfigError(
                f"{type(self.base.model).__name__}: rows are shorter and longer than {self.base.ropes.switch} tokens, "
                "where its rotary frequencies (longrope) switch, and several processes cannot read them apart: train "
                "in one process, or leave the longer rows out"
            )
        found = [self.evaluate(inputs.take(rows), entropy=entropy, temperature=temperature) for rows in apart]
        width = inputs.mask_B_T.shape[1]

        def together(parts: Sequence[Tensor | None]) -> Tensor | None:
            """Rows of all parts, in their order, padded to the width of the whole."""
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            wide = [nn.functional.pad(p, (0, 0) * (p.dim() - 2) + (0, width - p.shape[1])) for p in known]
            order = torch.from_numpy(np.argsort(np.concatenate(apart))).to(self.device)
            return torch.cat(wide)[order]

        log_probs = together([one.log_probs for one in found])
        assert log_probs is not None
        return Evaluated(log_probs, together([one.entropy for one in found]), together([one.values for one in found]))

    def passes(
        self, inputs: TokenBatch, rows: IntArray, micro: int | None, *, groups_N: IntArray | None = None
    ) -> Sequence[slice | IntArray]:
        """Places in `rows` that share a forward pass: at most `micro`, and of at most `max_tokens_per_pass` tokens.

        A group is never split: the pass of one that is larger has all of it.

        Args:
            inputs: prompts and responses.
            rows: (N,) of them.
            micro: most responses in a pass; None: any number.
            groups_N: responses with one number stay together; None: each on its own.
        """
        limit = self.base.tokens_per_pass
        if limit is None and not _splits_a_group(groups_N, micro):
            return slices(len(rows), micro)
        response_B = inputs.lengths_B
        lengths_N = np.array([len(inputs.prompts[i]) + int(response_B[i]) for i in rows], dtype=np.int64)
        if groups_N is None:
            return passes(lengths_N, size=micro, tokens=limit)
        members = [np.flatnonzero(groups_N == group) for group in np.unique(groups_N)]
        each = max((len(own) for own in members), default=1)
        size = None if micro is None else max(1, micro // each)
        found = passes([int(lengths_N[own].max()) for own in members], size=size, tokens=limit, each=each)
        return [np.concatenate([members[k] for k in together]) for together in found]

    @distributed.collective
    @torch.no_grad()
    def evaluate_all(
        self, inputs: TokenBatch, *, micro: int, temperature: float | None = None, groups_N: IntArray | None = None
    ) -> Evaluated:
        """`evaluate` without gradients, `micro` responses at a time, groups kept together; the result is on the CPU."""
        log_probs, values = torch.zeros(inputs.mask_B_T.shape), None
        if self.value_head is not None:
            values = torch.zeros(*inputs.mask_B_T.shape, self.value_head.out_features)
        every = np.arange(len(inputs))
        micro = distributed.even(len(inputs), micro) if groups_N is None else micro
        parts = self.passes(inputs, every, micro, groups_N=groups_N)
        for rows, counts in distributed.dealt([every[here] for here in parts]):
            part = inputs.take(rows)
            found, width = self.evaluate(part, temperature=temperature), part.mask_B_T.shape[1]
            if not counts:
                continue
            log_probs[rows, :width] = found.log_probs.cpu()
            if values is not None and found.values is not None:
                values[rows, :width] = found.values.cpu()
        return Evaluated(distributed.total(log_probs), values=None if values is None else distributed.total(values))

    def log_probs(self, batch: TokenBatch, *, temperature: float | None = None) -> Tensor:
        """(B, T) float32 log-probabilities of the response tokens, 0 elsewhere."""
        return self.evaluate(batch, temperature=temperature).log_probs

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """What this policy trains: its adapter or all weights, and the value head. Nothing for a reference."""
        own: dict[str, nn.Parameter] = {}
        if self.adapter is not None:
            own = self.base.adapter_parameters(self.adapter)
        elif self.trainable:
            own = {name: p for name, p in self.base.model.named_parameters() if name not in self.base.outside}
        head = {} if self.value_head is None else self.value_head.named_parameters()
        return own | {VALUE_PREFIX + name: p for name, p in dict(head).items()}

    def parameters(self) -> list[nn.Parameter]:
        """What this policy trains, for an optimiser."""
        return list(self.named_parameters().values())

    @distributed.collective
    def tensors(self) -> dict[str, Tensor]:
        """A copy of what this policy trains, to be stored and to come back to; shards are put together."""
        return {name: distributed.gathered(p) for name, p in self.named_parameters().items()}

    @torch.no_grad()
    def load_tensors(self, state: dict[str, Tensor], *, critic: bool = True) -> None:
        """Return to stored tensors.

        Args:
            state: from `tensors`.
            critic: False leaves the value heads as they are, for a start from another reward's policy.

        Raises:
            CheckpointError: names or shapes do not fit.
        """
        own = {n: p for n, p in self.named_parameters().items() if critic or not n.startswith(VALUE_PREFIX)}
        state = {n: t for n, t in state.items() if critic or not n.startswith(VALUE_PREFIX)}
        wrong = sorted(own.keys() ^ state.keys())
        wrong += [n for n in own if n in state and state[n].shape != own[n].shape]
        if wrong:
            raise CheckpointError(
                f"the stored policy does not fit this configuration: {len(wrong)} weights differ, such as {wrong[0]}; "
                "policy.path, policy.tiny and policy.lora must be those it was made with"
            )
        for name, parameter in own.items():
            distributed.put(parameter, state[name])

    def merged(self, layer: Any) -> Tensor:
        """The weight of a layer with this policy's adapter added in; the layer's own without one."""
        owner = layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer
        found = self.base.merged(owner, self.adapter)
        return found["weight"] if "weight" in found else owner.weight.detach()  # of an output layer that shares it

    def merged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight under the name it has without adapters, this policy's adapter added in.

        This is what is written to folders, sent to other engines and hashed.
        """
        for owner, names in self.base.weights.items():
            found = self.base.merged(owner, self.adapter)
            yield from ((name, found[leaf]) for leaf, name in names.items())


def _splits_a_group(groups_N: IntArray | None, micro: int | None) -> bool:
    """Whether a slice of `micro` rows ends within a group."""
    if groups_N is None or micro is None:
        return False
    return bool((groups_N[micro::micro] == groups_N[micro - 1 : -1 : micro]).any())


def add_policy(
    base: SharedBase,
    name: str,
    lora: LoraSettings,
    *,
    seed: int,
    value_heads: int = 0,
    remove_padding: bool | None = None,
) -> TextPolicy:
    """A policy that is a fresh adapter on shared weights."""
    base.add_adapter(name, lora, seed=seed)
    return TextPolicy(base, adapter=name, value_heads=value_heads, remove_padding=remove_padding)


def reference(base: SharedBase, *, remove_padding: bool | None = None) -> TextPolicy:
    """The weights alone, without any adapter, as a policy that trains nothing."""
    base.freeze()
    return TextPolicy(base, trainable=False, remove_padding=remove_padding)


def token_log_probs(
    hidden_N_H: Tensor,
    head: Callable[[Tensor], Tensor],
    targets_N: Tensor,
    *,
    vocabulary: int,
    temperature: float = 1.0,
    entropy: bool = False,
    logits_at_once: int = 2**24,
) -> tuple[Tensor, Tensor | None]:
    """Log softmax(head(h) / temperature)[target] of each position, holding the logits of one chunk at a time.

    Logits are float32 whatever the network computes in. While gradients are wanted and there are several chunks, a
    chunk's logits are computed again in the backward pass instead of being kept.

    Args:
        hidden_N_H: last hidden states, or whatever `head` takes.
        head: hidden states (N, H) to logits (N, vocabulary).
        targets_N: token ids.
        vocabulary: number of logits.
        temperature: divides the logits.
        entropy: also return the entropy of the distribution, in nats.
        logits_at_once: how many logits to hold.

    Returns:
        (N,) float32 log-probabilities, and (N,) float32 entropies or None.
    """
    size = max(1, logits_at_once // vocabulary)
    again = torch.is_grad_enabled() and len(targets_N) > size
    parts: list[tuple[Tensor, Tensor | None]] = []
    for start in range(0, max(len(targets_N), 1), size):
        chunk = (hidden_N_H[start : start + size], head, targets_N[start : start + size], temperature, entropy)
        parts.append(checkpoint(_of_chunk, *chunk, use_reentrant=False) if again else _of_chunk(*chunk))
    if len(parts) == 1:
        return parts[0]
    found = [e for _, e in parts if e is not None]
    return torch.cat([p for p, _ in parts]), torch.cat(found) if found else None


def _of_chunk(
    hidden_N_H: Tensor, head: Callable[[Tensor], Tensor], targets_N: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    logits = head(hidden_N_H).float()
    if temperature != 1.0:
        logits = logits / temperature
    total = logits.logsumexp(-1)
    log_probs = logits.gather(-1, targets_N[:, None]).squeeze(-1) - total
    if not entropy:
        return log_probs, None
    return log_probs, total - (logits.softmax(-1) * logits).sum(-1)
