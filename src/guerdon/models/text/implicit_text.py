"""An implicit process reward model: step rewards from a language model that learned from outcomes alone.

beta times the summed log-ratio of the model to its reference is the logit that a solution is right (Yuan et al. 2024,
2412.01981), trained with cross-entropy on outcomes or with DPO on pairs. Up to the end of step k that sum judges the
first k steps, though no step was ever labelled: the score is sigma of it (`cumulative`), or sigma of the step's own
part (`single`). The reference is the weights that training started from: with LoRA those without the adapter, else a
second copy. The end-of-sequence token is not read, so appending steps to a solution does not change the scores of its
first ones; only a model trained in a run (PRIME), where it learned that token too, reads it after the last step. The
model can go on learning while it is used (`learn`).

    model.score([solution.as_episode()])[0].steps        # (S,)
    model.learn([episode_with_outcome])                  # {"loss": 0.69, "learned": 1.0, "skipped": 0.0}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute.devices import seeded
from guerdon.compute.optimizers import adam_tensors, load_adam
from guerdon.errors import CheckpointError, ConfigError, NonFiniteError, boundary
from guerdon.models.checkpoint import load_state, save_state
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_inputs import Reading, as_batch, buckets, read_steps
from guerdon.models.text.text_losses import bce_terms, implicit_rewards, pair_terms, pairs
from guerdon.models.text.text_model import TextRewardModel, read_adapters, read_policy
from guerdon.network.hub import ADAPTER
from guerdon.policies.language.text import TextPolicy, reference
from guerdon.processes.call_queue import alone
from guerdon.reading.chats import asked_key
from guerdon.types import Episode, Failure, Metrics, RewardInfo

_SAMPLE = 64  # values of each tensor in the hash that identifies a model
LEARNING = {"learning_rate": 1e-6, "weight_decay": 0.0, "max_grad_norm": 10.0, "batch_size": 64, "seed": 0}


class ImplicitModel(TextRewardModel):
    """A value per step from log-ratios.

    Args:
        policy: the model that learns.
        card: with `beta` and `read`.
        micro_batch_size: solutions per forward pass.
        ref: the reference; None: the weights under the policy's adapter.

    Raises:
        ConfigError: no reference is given and the policy is not an adapter.
    """

    has_head = False
    reads_conversations = True
    learns_outcomes = True
    meaning = "the answer is right (learned from outcomes, read at steps)"

    @classmethod
    def start(cls, policy: TextPolicy, card: TextModelCard, fresh: Callable[[], TextPolicy]) -> ImplicitModel:
        """The model before its first gradient step; the reference is what `policy` was before."""
        return cls(policy, card, ref=None if policy.adapter else TextPolicy(fresh().base, trainable=False))

    @classmethod
    def load(
        cls, folder: Path, card: TextModelCard, micro_batch_size: int, device: str | torch.device = "auto"
    ) -> ImplicitModel:
        """A stored model; an adapter stays one, on the weights that are its reference."""
        if not (folder / ADAPTER).is_file():
            ref = TextPolicy(read_policy(folder / "reference", card, device).base, trainable=False)
            return cls(read_policy(folder, card, device), card, micro_batch_size=micro_batch_size, ref=ref)
        return cls(read_adapters([folder], card, device)[0], card, micro_batch_size=micro_batch_size)

    def __init__(
        self, policy: TextPolicy, card: TextModelCard, *, micro_batch_size: int = 16, ref: TextPolicy | None = None
    ) -> None:
        super().__init__(policy, card, micro_batch_size=micro_batch_size)
        if ref is None and policy.adapter is None:
            raise ConfigError("an implicit reward model needs a reference: an adapter's own weights, or a second model")
        assert card.beta is not None
        self._beta = card.beta
        self.stored_reference = ref
        self.ref = reference(policy.base, remove_padding=policy.remove_padding) if ref is None else ref
        self.learning = LEARNING | dict(card.learning)
        self.updates = 0
        unused = policy.base.shards is not None or policy.device.type == "meta"  # it learns nothing in use
        self._origin = "" if unused else origin_of(self._weights(), card)
        self._optimizer: torch.optim.AdamW | None = None

    def _read(self, question: str, steps: Sequence[str], **conversation: Any) -> Reading:
        """The chat form, with the card's system prompt and end."""
        card = self.card
        reading = read_steps(self.tokenizer, question, steps, system_prompt=card.system_prompt, **conversation)
        cut = card.length_limit is not None and len(reading.ids) - reading.start >= card.length_limit
        if not card.closed or cut:
            return reading
        ids = np.append(reading.ids, np.int64(self.tokenizer.eos_token_id))
        return replace(reading, ids=ids, ends_S=np.append(reading.ends_S[:-1], len(ids) - 1)[: len(reading.ends_S)])

    @property
    def info(self) -> RewardInfo:
        """A probability per step; that of the last one depends on the end of the text if the card has `closed`."""
        return replace(super().info, causal=not self.card.closed)

    def logits(self, readings: Sequence[Reading]) -> Tensor:
        """One logit per step, solution by solution: beta times the sum of log-ratios up to its end, or of it alone."""
        q_B_T = self.log_ratios(readings)
        found = []
        for q_T, reading in zip(q_B_T, readings, strict=True):
            ends = torch.from_numpy(reading.ends_S - reading.start + 1).to(q_T.device)
            sums = nn.functional.pad(q_T.cumsum(0), (1, 0))[ends]
            found.append(sums if self.card.read != "single" else sums.diff(prepend=sums.new_zeros(1)))
        return self._beta * torch.cat(found)

    def lesson_logits(self, readings: Sequence[Reading], *, body: bool = True) -> Tensor:
        """One logit per solution: beta times the sum of all log-ratios."""
        return self._beta * self.log_ratios(readings).sum(-1)

    def log_ratios(self, readings: Sequence[Reading]) -> Tensor:
        """(B, T) log-ratio of each token behind the prompt, 0 where there is none; gradients of the model only."""
        batch = as_batch(self.policy, readings)
        mask = torch.from_numpy(batch.mask_B_T).to(self.policy.device)
        with torch.no_grad():
            ref = self.ref.log_probs(batch, temperature=self.card.temperature)
        return implicit_rewards(self.policy.log_probs(batch, temperature=self.card.temperature), ref, mask)

    def _weights(self) -> Iterable[tuple[str, Tensor]]:
        """All weights that scores depend on: the language model with its adapters, and a copied reference."""
        yield from self.policy.base.model.named_parameters()
        if self.stored_reference is not None:
            yield from ((f"reference.{k}", v) for k, v in self.stored_reference.base.model.named_parameters())

    # learning in use

    @alone
    def learn(self, episodes: Sequence[Episode]) -> Metrics:
        """One pass of AdamW over episodes with a known outcome, with the loss that the model was trained with.

        With DPO, episodes of the same task are paired, right with wrong; the others teach nothing and are counted.

        Returns:
            `loss` (mean before each gradient step), `learned` and `skipped` (episodes); no `loss` without a step.

        Raises:
            NonFiniteError: the loss or its gradient is not finite.
        """
        known: list[tuple[Reading, Episode]] = []
        for episode in episodes:
            reading = None if episode.outcome is None else self.reading_of(episode)
            if reading is not None and not isinstance(reading, Failure):
                known.append((reading, episode))
        if self.card.loss == "dpo":
            groups = [asked_key(e.task, e.context, e.tools) for _, e in known]
            items = [list(p) for p in pairs(groups, [e.outcome for _, e in known], self.updates)]
        else:
            items = [[i] for i in range(len(known))]
        used = {i for item in items for i in item}
        counts: Metrics = {"learned": float(len(used)), "skipped": float(len(episodes) - len(used))}
        if not items:
            return counts
        losses: list[float] = []
        device = self.policy.device
        with seeded(int(self.learning["seed"]) * 1_000_003 + self.updates, device):
            order = np.random.default_rng([int(self.learning["seed"]), self.updates]).permutation(len(items))
            size = int(self.learning["batch_size"])
            for start in range(0, len(order), size):
                losses.append(self._gradient_step([items[i] for i in order[start : start + size]], known))
        self.updates += 1
        return {"loss": float(np.mean(losses)), **counts}

    def _gradient_step(self, items: Sequence[Sequence[int]], known: Sequence[tuple[Reading, Episode]]) -> float:
        optimizer = self._adamw()
        optimizer.zero_grad()
        total = 0.0
        longest = [max((known[i][0] for i in item), key=len) for item in items]
        each, most = len(items[0]), self.policy.base.tokens_per_pass
        for group in buckets(longest, max(1, self.micro_batch_size // each), tokens=most, each=each):
            columns = list(zip(*(items[g] for g in group), strict=True))  # right and wrong, or all in one
            logits = [self.lesson_logits([known[i][0] for i in column]) for column in columns]
            if len(logits) == 2:
                terms = pair_terms(*logits)
            else:
                outcomes = [float(bool(known[i][1].outcome)) for i in columns[0]]
                terms = bce_terms(logits[0], torch.tensor(outcomes, device=logits[0].device))
            loss = terms.sum() / len(items)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.learning["max_grad_norm"])
        if not np.isfinite([total, float(norm)]).all():
            optimizer.zero_grad()
            raise NonFiniteError(
                "the loss or its gradient is not finite, so no step was taken; lower the learning rate"
            )
        optimizer.step()
        optimizer.zero_grad()
        return total

    def _adamw(self) -> torch.optim.AdamW:
        if self._optimizer is None:
            for parameter in self.policy.parameters():
                parameter.requires_grad_(True)
            rate = self.learning["learning_rate"]
            decay = self.learning["weight_decay"]
            self._optimizer = torch.optim.AdamW(self.policy.parameters(), lr=rate, weight_decay=decay)
        return self._optimizer

    @alone
    def save(self, folder: Path) -> None:
        """Write weights, optimiser and counts in one piece."""
        tensors = self.tensors() | adam_tensors(self._adamw())
        save_state(folder, tensors, {"updates": self.updates, "origin": self._origin})

    @alone
    def restore(self, folder: Path) -> None:
        """Return to what `save` wrote.

        Raises:
            CheckpointError: it was altered, or belongs to a model that began with other weights.
        """
        tensors, values = load_state(folder)
        with boundary(CheckpointError, f"{folder} cannot be read"):
            if values["origin"] != self._origin:
                raise CheckpointError(
                    f"{folder} was learned by a model that began with other weights or another card; use it with the "
                    "model it began with, or move it away (of a server: update_dir) to start again"
                )
            self.updates = int(values["updates"])
            self.load_tensors({name: t for name, t in tensors.items() if not name.startswith("adam.")})
            load_adam(self._adamw(), tensors)


def origin_of(weights: Iterable[tuple[str, Tensor]], card: TextModelCard) -> str:
    """A hash of what a model begins with: the meaning of its scores, and a sample of every tensor.

    A sample is enough to distinguish models, since training moves every weight, and it is fast for large ones.

    Args:
        weights: name and values of each tensor.
        card: of the model.
    """
    meaning: list[object] = [card.kind, card.form, card.loss, card.beta, card.read]
    if (more := (card.system_prompt, card.temperature, card.closed)) != (None, 1.0, False):
        meaning += more
    if card.length_limit is not None:
        meaning.append(card.length_limit)
    digest = hashlib.sha256(json.dumps(meaning).encode())
    for name, tensor in weights:
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // _SAMPLE)][: 2 * _SAMPLE].cpu().contiguous()
        if tensor.dtype == torch.bfloat16:  # frozen matrices on a GPU, float32 elsewhere
            sample = sample.float()
        digest.update(f"{name} {tuple(tensor.shape)} {sample.dtype}".encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
