"""PRIME's implicit process reward as a source of reward: pays every token of a response, learns from outcomes alone.

q_t = log phi(y_t) - log ref(y_t) is the raw reward of token t; phi learns online that beta x sum q is the logit of a
right answer (PRIME, 2502.01456; the formulas are `guerdon.models.text.text_losses`). `update: after` takes rewards and
gradients from one forward pass, so that the rewards of a gradient step come from the weights before it. `update:
before` learns first and scores again. Of a conversation with an agent, q is summed over its calls, and what is learned
from is whether it succeeded.

    prime = PrimeReward(SourceTerms("prime"), settings, policy, seed=0, length_limit=256)
    rewards = prime.measure(rollout)
    rewards.values, rewards.metrics["prm_loss"]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from guerdon.collect.text import Responses, TextRollout, generated
from guerdon.compute import distributed
from guerdon.compute.generators import REPLAY, generator
from guerdon.compute.optimizers import AdamW, under
from guerdon.errors import ConfigError
from guerdon.models.text import text_losses as implicit
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_model import write_folder
from guerdon.policies.batches.passes import slices
from guerdon.policies.batches.precision import uses_bf16
from guerdon.policies.batches.tokens import TokenBatch, concatenate, token_batch
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy, add_policy, reference
from guerdon.policies.language.text_files import load_policy, written_bytes
from guerdon.rewards.shaping import min_form_rewards
from guerdon.rewards.source import RewardSource, SourceTerms, response_rewards, with_greedy
from guerdon.rewards.text_steps import first_error_auroc, steps_of, true_steps
from guerdon.settings.prime import ImplicitModelSettings, PrimeSettings
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.statistics.classification import correlation
from guerdon.types import Failure, Metrics, Rewards

GRAD_CLIP = 10.0  # largest norm of the model's gradients, PRIME's default


@dataclass(frozen=True, eq=False)
class LabelledBatch:
    """B responses, or calls of conversations, with their outcomes, as the model learns from them.

    Attributes:
        tokens: of the responses. Responses to one prompt are neighbours.
        acc_B: float32 outcomes in [0, 1].
        known_B: bool, False where the outcome is unknown; nothing is learned from those.
        groups_B: responses to one prompt share an id.
        ref_B_T: float32 log-probabilities of the reference, computed once however often they are used.
        streams_B: the conversation that a row is a call of, rows of one next to each other, with one outcome; None:
            every row is a response.
    """

    tokens: TokenBatch
    acc_B: Tensor
    known_B: Tensor
    groups_B: Tensor
    ref_B_T: Tensor
    streams_B: Tensor | None = None

    def take(self, rows: np.ndarray) -> LabelledBatch:
        """The responses of these indices, in order; T shrinks to the longest of them."""
        tokens = self.tokens.take(rows)
        ref = self.ref_B_T[rows, : tokens.mask_B_T.shape[1]]
        streams = None if self.streams_B is None else self.streams_B[rows]
        return LabelledBatch(tokens, self.acc_B[rows], self.known_B[rows], self.groups_B[rows], ref, streams)

    @property
    def firsts(self) -> slice | Tensor:
        """The rows that begin a response or a conversation."""
        if self.streams_B is None:
            return slice(None)
        return torch.from_numpy(np.flatnonzero(np.diff(self.streams_B.numpy(), prepend=-1)))

    def summed(self, values_B: Tensor) -> Tensor:
        """Numbers of rows, summed over the calls of each conversation."""
        if self.streams_B is None:
            return values_B
        places = torch.unique_consecutive(self.streams_B, return_inverse=True)[1].to(values_B.device)
        return values_B.new_zeros(int(places.max()) + 1 if len(places) else 0).index_add(0, places, values_B)


class PrimeReward(RewardSource[Responses]):
    """The model phi, its reference, its optimizer and its replay.

    With LoRA, phi is a second adapter on the policy's weights, and the reference is those weights without any
    adapter, wherever both start where the policy does: one copy in memory instead of three.

    Args:
        terms: how the source counts.
        section: its keys.
        policy: of the run, at its start; its weights are shared where that is possible.
        seed: of a fresh adapter and of the replay.
        length_limit: tokens that a response may have.
        min_form: temperature of a soft minimum that makes the rewards of a response add up to about the smallest;
            None: they add up to their sum.
        system_prompt: of the run's prompts, stored with the saved model.

    Attributes:
        ref: the reference; None: the policy that acted.

    Raises:
        ConfigError: the model would be equal to its reference for ever.
    """

    def __init__(
        self,
        terms: SourceTerms,
        section: PrimeSettings,
        policy: TextPolicy,
        *,
        seed: int,
        length_limit: int,
        min_form: float | None = None,
        system_prompt: str | None = None,
    ) -> None:
        super().__init__(terms)
        self.section, self.settings = section, section.prime_model
        self.temperature, self.length_limit = policy.temperature, length_limit
        self._policy, self._min_form, self._system_prompt = policy, min_form, system_prompt
        self.phi, self.ref = _models(terms.name, self.settings, policy, seed)
        self.phi.dropout = False  # with `update: after`, passes with gradients give the rewards
        optim = self.settings.optim
        self.optimizer = AdamW(
            self.phi.parameters(), optim.lr, optim.weight_decay,
            what="the reward model", key=f"prime_model.optim.lr of the reward source {terms.name}",
        )  # fmt: skip
        self.replay = TextReplay(self.settings.replay_size)
        self.rng = generator(seed, REPLAY)
        self.learn_before, self.needs_log_probs = self.settings.update == "before", self.ref is None
        self.ready = not self.settings.warm_up.rollouts
        self.policy_waits = not self.settings.warm_up.policy_learns
        self._warm_up_batches: list[LabelledBatch] = []
        self._warm_up_steps = 0
        self._learned: tuple[TextRollout, LabelledBatch] | None = None
        distributed.register(self)

    def starts_at(self, path: str | None) -> bool:
        """Whether the model and its reference start from the policy at this path and compute as it does."""
        own = self.settings
        return own.path in (None, path) and own.ref_path in (None, path) and own.bf16 is None

    @property
    def skipped_in_a_row(self) -> int:
        """Gradient steps."""
        return self.optimizer.skipped.in_a_row

    def labelled(self, rollout: TextRollout) -> LabelledBatch:
        """Responses with their outcomes and log-probabilities of the reference."""
        batch = rollout.inputs.batch
        outcomes, known, groups, streams = rollout.outcomes_B, rollout.known_B, rollout.groups_B, None
        if rollout.chunks is not None:
            of_calls = rollout.chunks.streams
            streams = torch.from_numpy(of_calls)
            success = np.asarray(rollout.success.any(axis=1), dtype=np.float32)
            outcomes, known, groups = success[of_calls], known[of_calls], groups[of_calls]
        labels = torch.from_numpy(outcomes), torch.from_numpy(known), torch.from_numpy(groups)
        found = LabelledBatch(batch, *labels, torch.from_numpy(rollout.log_probs), streams)
        if self.ref is None:
            return found
        # In the passes of `fit`, so that a model that still equals its reference differs from it by nothing, and
        # not by rounding, which `batch_norm` would make large.
        return replace(found, ref_B_T=self._log_probs(self.ref, found, self._together(found)))

    def _together(self, batch: LabelledBatch) -> np.ndarray | None:
        """(B,) rows with one number are read in the same pass: what a loss compares, or the calls of a conversation."""
        if self.settings.loss_type != "ce":
            return batch.groups_B.numpy()
        return None if batch.streams_B is None else batch.streams_B.numpy()

    def _log_probs(self, model: TextPolicy, batch: LabelledBatch, together_B: np.ndarray | None) -> Tensor:
        """(B, T) of a model without gradients; of conversations, mini-batch by mini-batch as in `fit`."""
        how: dict[str, Any] = {"micro": self.section.micro_batch_size, "temperature": self.temperature}
        if batch.streams_B is None or together_B is None:
            return model.evaluate_all(batch.tokens, groups_N=together_B, **how).log_probs
        found = torch.zeros(batch.tokens.mask_B_T.shape)
        for mini in self._minis(batch):
            part = batch.tokens.take(mini)
            own = model.evaluate_all(part, groups_N=together_B[mini], **how).log_probs
            found[mini, : own.shape[1]] = own
        return found

    def _minis(self, batch: LabelledBatch) -> list[np.ndarray]:
        """The rows of each mini-batch; a conversation is in one."""
        every, size = np.arange(len(batch.tokens)), self.section.mini_batch_size
        firsts = batch.firsts
        if isinstance(firsts, slice):
            return [every[here] for here in slices(len(every), size)]
        members = np.split(every, firsts.numpy()[1:])
        return [np.concatenate(members[here]) for here in slices(len(firsts), size)]

    # Rewards.

    def measure(self, rollout: TextRollout, *, learn: bool = True) -> Rewards:
        """Score; with `update: after` phi takes its gradient steps in the same pass.

        Greedy responses are scored by the weights before that, in the unit of the others.
        """
        greedy = rollout.greedy
        greedy_q = None if greedy is None else self.log_ratios(self.labelled(greedy))
        same = self._learned is not None and self._learned[0] is rollout
        batch = self._learned[1] if self._learned is not None and same else self.labelled(rollout)
        self._learned = None
        if learn and self.settings.update == "after":
            q, metrics = self._update(batch)
        else:
            q = self.log_ratios(batch)
            metrics = _quality(q, batch)
            if self.settings.update == "before":
                metrics = {"dpo_acc_after": metrics["dpo_acc"]}
        if rollout.chunks is None:
            metrics |= _step_quality(q.numpy(), rollout.inputs)
        rewards, unit = self._rewards(q, rollout, None, metrics)
        if greedy is None or greedy_q is None:
            return rewards
        return with_greedy(rewards, self._rewards(greedy_q, greedy, unit, {})[0])

    @torch.no_grad()
    def log_ratios(self, batch: LabelledBatch) -> Tensor:
        """(B, T) float32 q with the weights as they are."""
        log_probs = self._log_probs(self.phi, batch, None if batch.streams_B is None else self._together(batch))
        return implicit.implicit_rewards(log_probs, batch.ref_B_T, torch.from_numpy(batch.tokens.mask_B_T))

    def _rewards(
        self, q_B_T: Tensor, rollout: TextRollout, unit: Tensor | None, metrics: Metrics
    ) -> tuple[Rewards, Tensor]:
        """Rewards of the configured granularity and norm, and the unit that `batch_norm` divides by."""
        if rollout.chunks is not None:  # of the tokens of calls: to the tokens of conversations
            q_B_T = torch.from_numpy(rollout.chunks.on_steps(q_B_T.numpy()))
        finite = torch.isfinite(q_B_T).all(-1)
        why = Failure("non_finite", "a log-ratio is not finite")
        failures = dict.fromkeys(np.flatnonzero(~finite.numpy()).tolist(), why)
        mask = torch.from_numpy(rollout.mask)
        granularity = self.section.prime_granularity
        ends = steps_of(rollout.inputs) if granularity == "step" else None
        scores = implicit.granular_scores(torch.where(finite[:, None], q_B_T, 0.0), mask, granularity, ends)
        paid = implicit.paying_tokens(mask, granularity, ends).numpy()
        if self._min_form is not None:
            shaped = min_form_rewards(scores.numpy(), paid, temperature=self._min_form)
            scores = torch.from_numpy(np.asarray(shaped, dtype=np.float32))
        unit = implicit.largest_return(scores, mask) if unit is None else unit
        if self.section.prime_norm == "clip":
            low, high = self.section.prime_clip, self.section.prime_clip_above
            scores = implicit.clip(scores, mask, limit=low, above=high)
        elif self.section.prime_norm == "batch_norm":
            shards = self._shards(len(scores))
            scores = implicit.batch_norm(scores, mask, unit=unit if shards is None else None, shards_B=shards)
        more = {"paid": paid if granularity == "whole" else None, "metrics": metrics}
        return response_rewards(scores.numpy(), rollout.mask, failures, **more), unit

    def _shards(self, rows: int) -> Tensor | None:
        """(B,) the part of the batch that a response belongs to; None where all share one unit."""
        parts = self.section.prime_norm_shards
        return None if parts == 1 else torch.arange(rows) * parts // max(rows, 1)

    # Learning.

    def learn(self, rollout: TextRollout) -> Metrics:
        """Learn from a rollout of the warm-up, or with `update: before`; `update: after` learns while it measures.

        Rollouts of the warm-up are collected until there are enough, then learned from.
        """
        if not self.ready:
            self._warm_up_batches.append(self.labelled(rollout))
            self._warm_up_steps += rollout.steps
            if self._warm_up_steps >= self.settings.warm_up.rollouts:
                for _ in range(self.settings.warm_up.epochs):
                    for batch in self._warm_up_batches:
                        self.fit(batch)
                self._warm_up_batches, self.ready = [], True
            return {}
        if not self.learn_before:
            return {}
        self._learned = rollout, self.labelled(rollout)
        return self._update(self._learned[1])[1]

    def _update(self, batch: LabelledBatch) -> tuple[Tensor, Metrics]:
        """All passes over a rollout, and over earlier ones; q of each response before its first gradient step."""
        q, metrics = self.fit(batch)
        metrics |= _quality(q, batch)
        for _ in range(self.settings.optim.epochs - 1):
            self.fit(batch)
        if self.settings.replay_size:
            metrics |= self._fit_replay(int(batch.known_B.sum()))
            self.replay.add(batch)
        return q, metrics

    @distributed.collective
    def fit(self, batch: LabelledBatch) -> tuple[Tensor, Metrics]:
        """One pass: a gradient step per mini-batch, in the order of the responses.

        Returns:
            (B, T) float32 q, of each mini-batch before its step; the mean loss and gradient norm. A step whose
            loss or gradient is not finite is not taken.

        Raises:
            NonFiniteError: too many steps in a row were not taken.
        """
        q_B_T = torch.zeros(batch.tokens.mask_B_T.shape)
        losses: list[float] = []
        norms: list[float] = []
        skipped = 0
        known_B = torch.zeros_like(batch.known_B)
        known_B[batch.firsts] = batch.known_B[batch.firsts]
        for mini in self._minis(batch):
            count = int(known_B[mini].sum())
            self.optimizer.zero_grad()
            total = 0.0
            for rows, counts in distributed.dealt(self._passes(batch, mini)):
                with torch.set_grad_enabled(count > 0):
                    q, terms = self._forward(batch, rows)
                if counts:
                    q_B_T[rows, : q.shape[1]] = q.detach().cpu()
                if count:
                    loss = (terms if counts else terms * 0.0).sum() / count
                    loss.backward()  # type: ignore[no-untyped-call]
                    total += float(loss.detach())
            if not count:
                continue
            total = distributed.summed({"loss": total})["loss"]
            norm = self.optimizer.step(total, GRAD_CLIP)
            if norm is None:
                skipped += 1
                continue
            losses.append(total)
            norms.append(norm)
        self.optimizer.zero_grad()  # the next rollout needs the memory of the gradients
        return distributed.total(q_B_T), {
            "prm_loss": float(np.mean(losses)) if losses else None,
            "grad_norm": float(np.mean(norms)) if norms else None,
            "skipped_updates": float(skipped),
        }

    def _passes(self, batch: LabelledBatch, rows: np.ndarray) -> list[np.ndarray]:
        """Responses that share a forward pass; losses that compare responses to one prompt have them in the same."""
        groups, micro = self._together(batch), self.section.micro_batch_size
        if groups is None:
            micro = distributed.even(len(rows), micro)
        else:
            groups = groups[rows]
        found = self.phi.passes(batch.tokens, rows, micro, groups_N=groups)
        return [rows[here] for here in found]

    def _forward(self, batch: LabelledBatch, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """(b, t) log-ratios and the losses of a few responses or conversations, 0 where the outcome is unknown."""
        part = batch.take(rows)
        log_probs = self.phi.log_probs(part.tokens, temperature=self.temperature)
        device = log_probs.device
        mask = torch.from_numpy(part.tokens.mask_B_T).to(device)
        q = implicit.implicit_rewards(log_probs, part.ref_B_T.to(device), mask)
        logits = part.summed(implicit.outcome_logits(q, mask, beta=self.settings.beta_train))
        acc, known = part.acc_B[part.firsts].to(device), part.known_B[part.firsts].to(device)
        if self.settings.loss_type == "ce":
            terms = implicit.bce_terms(logits, acc)
        else:
            groups = part.groups_B[part.firsts].to(device)
            compared = implicit.contrast(logits, acc, groups, self.settings.loss_type, known_B=known)
            terms = implicit.contrast_terms(logits, acc, compared)
        return q, torch.where(known, terms, 0.0)

    def _fit_replay(self, fresh: int) -> Metrics:
        """One pass over responses of earlier rollouts, in proportion to so many fresh ones."""
        ratio = self.settings.replay_ratio
        count = min(round(fresh * ratio / (1 - ratio)), len(self.replay))
        if not count:
            return {"prm_loss_replay": None}
        _, found = self.fit(self.replay.draw(count, self.rng))
        return {"prm_loss_replay": found["prm_loss"]}

    # State.

    def written_bytes(self) -> dict[str, int]:
        """Bytes that training and `save` take, by what they are."""
        if not self.settings.learns:
            return {}
        parts = written_bytes(self.phi, merged=not self._keeps_adapter)
        if not self._keeps_adapter:
            parts["its reference"] = sum(written_bytes(self._start, merged=True, checkpoint=False).values())
        return parts

    @property
    def _start(self) -> TextPolicy:
        """The reference; with `ref_type: policy`, the policy itself."""
        return self._policy if self.ref is None else self.ref

    @property
    def _keeps_adapter(self) -> bool:
        """Whether the model is an adapter on its reference, and stored as one."""
        return self._start.base is self.phi.base and self._start.adapter is None

    def save(self, folder: Path) -> None:
        """Write the model with its reference and its card, for `load_text_model`, `reward.sources` and the server.

        Nothing is written of a model that never learns.

        Args:
            folder: replaced if it exists.

        Raises:
            NonFiniteError: a weight is not finite; an existing folder stays.
        """
        settings = self.settings
        if not settings.learns:
            return
        card = TextModelCard(
            kind="implicit",
            form="chat",
            loss="ce" if settings.loss_type == "ce" else "dpo",
            threshold=0.5 if settings.loss_type == "ce" else None,
            labels="the answer is right (learned in a run from outcomes, read at steps)",
            beta=settings.beta_train,
            read="cumulative",
            system_prompt=self._system_prompt,
            temperature=self.temperature,
            closed=True,
            length_limit=self.length_limit,
            bf16=self.phi.base.settings.bf16,
            learning={
                "learning_rate": settings.optim.lr,
                "weight_decay": settings.optim.weight_decay,
                "max_grad_norm": GRAD_CLIP,
                "batch_size": self.section.mini_batch_size,
            },
            training={"method": "prime", "settings": self.section.model_dump(mode="json")},
        )
        if self._keeps_adapter:
            write_folder(folder, self.phi, card, head=None)
        else:
            write_folder(folder, self.phi, card, head=None, ref=self._start, merged=True)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights that are trained, optimizer, replay, random numbers."""
        parts = {**self._learner_state(), "replay": self.replay.state()}
        parts |= {f"warm_up.{i}": _stored(batch) for i, batch in enumerate(self._warm_up_batches)}
        tensors = {f"{part}.{name}": tensor for part, found in parts.items() for name, tensor in found.items()}
        values: dict[str, Any] = {"rng": self.rng.bit_generator.state, "ready": self.ready}
        if self._warm_up_batches:
            values["warm_up"] = {"rollouts": len(self._warm_up_batches), "steps": self._warm_up_steps}
        return tensors, values

    @distributed.collective
    def _learner_state(self) -> dict[str, dict[str, Tensor]]:
        return {"phi": self.phi.tensors(), "optimizer": self.optimizer.tensors()}

    @distributed.collective
    def _restore_learner(self, phi: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        self.phi.load_tensors(phi)
        self.optimizer.load_tensors(optimizer)

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        learner = (distributed.Held(under(part, tensors)) for part in ("phi", "optimizer"))
        self._restore_learner(*learner)
        self.replay.restore(under("replay", tensors))
        self.rng.bit_generator.state = values["rng"]
        self.ready = bool(values["ready"])
        collected = values.get("warm_up", {"rollouts": 0, "steps": 0})
        self._warm_up_steps = int(collected["steps"])
        found = (_restored(under(f"warm_up.{i}", tensors)) for i in range(collected["rollouts"]))
        self._warm_up_batches = [batch for batch in found if batch is not None]


def _quality(q_B_T: Tensor, batch: LabelledBatch) -> Metrics:
    """How well summed rewards separate right responses from wrong ones; of those that are finite."""
    totals, first = batch.summed(q_B_T.sum(-1)), batch.firsts
    finite, acc = torch.isfinite(totals), batch.acc_B[first]
    known = batch.known_B[first] & finite
    pairs = implicit.dpo_acc(totals, acc, batch.groups_B[first], known_B=known)
    return {
        "dpo_acc": pairs.accuracy,
        "dpo_acc_coverage": pairs.coverage,
        "dpo_acc_abs": implicit.dpo_acc_abs(totals, acc, known_B=known),
        "verifier_correlation": correlation(totals[known].numpy(), acc[known].numpy()),
        "q_mean": float(totals[finite].mean()) if finite.any() else None,
    }


def _step_quality(q_B_T: np.ndarray, responses: Responses) -> Metrics:
    """How well the sum of q over a step separates sound steps from first errors, where the task knows its steps."""
    if not generated(responses):
        return {}
    rows = []
    for q_T, (ends, sound) in zip(q_B_T, true_steps(responses), strict=True):
        if np.isfinite(q_T).all():
            starts = [0, *(end + 1 for end in ends)]
            # None: its only token also ends the step before, and says nothing of it alone
            sums = [float(q_T[i : end + 1].sum()) if end >= i else None for i, end in zip(starts, ends, strict=False)]
            rows.append((sound, sums))
    return {"step_auroc": first_error_auroc(rows)}


def _models(
    name: str, prime: ImplicitModelSettings, policy: TextPolicy, seed: int
) -> tuple[TextPolicy, TextPolicy | None]:
    """The model phi and its reference (None: the policy that acted). Frozen weights are shared where that is possible.

    Weights under adapters are frozen, so that all parts that start from them can use one copy.
    """
    acting, padding = policy.base.settings, prime.use_remove_padding
    own = acting if prime.bf16 is None else acting.model_copy(update={"bf16": prime.bf16})
    shares = uses_bf16(own.bf16, policy.device) == policy.base.bf16
    start = own.path if prime.path is None else prime.path
    ref_start = start if prime.ref_path is None else prime.ref_path
    if prime.ref_type == "freeze" and start == ref_start and not prime.learns:
        raise ConfigError(
            f"prime_model of the reward source {name} starts as its own reference and update: none never changes it, "
            "so that every process reward would be 0: warm it up (warm_up.rollouts), or give path a model that was "
            "trained",
            key=f"reward.sources.{name}.model.update",
        )
    frozen: dict[str | None, SharedBase] = {} if own.lora is None or not shares else {own.path: policy.base}
    if own.lora is not None and start in frozen:
        phi = add_policy(frozen[start], _free_name(frozen[start]), own.lora, seed=seed + 1, remove_padding=padding)
    else:
        phi = load_policy(_at(own, start, padding), seed=seed, device=policy.device)
        if own.lora is not None:
            frozen[start] = phi.base
    if prime.ref_type == "policy":
        return phi, None
    if ref_start not in frozen:
        whole = _at(own, ref_start, padding).model_copy(update={"lora": None})
        frozen[ref_start] = load_policy(whole, seed=seed, device=policy.device).base
    return phi, reference(frozen[ref_start], remove_padding=padding)


def _free_name(base: SharedBase) -> str:
    """Of an adapter: prm, or prm2, ... where other sources learn on the same weights."""
    taken = sum(name.startswith("prm") for name in base.adapters)
    return f"prm{taken + 1}" if taken else "prm"


def _at(own: TextPolicySettings, path: str | None, padding: bool) -> TextPolicySettings:
    """The policy's settings with another origin; None: the model that is made in code."""
    tiny = own.tiny if path is None else None
    return own.model_copy(update={"path": path, "tiny": tiny, "use_remove_padding": padding})


# Responses of earlier rollouts.


class TextReplay:
    """The newest `size` responses with their outcomes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._batch: LabelledBatch | None = None

    def __len__(self) -> int:
        return 0 if self._batch is None else len(self._batch.tokens)

    def add(self, fresh: LabelledBatch) -> None:
        """Take in the responses whose outcome is known."""
        known_rows = np.flatnonzero(fresh.known_B.numpy())
        if not len(known_rows):
            return
        parts = [*([] if self._batch is None else [self._batch]), fresh.take(known_rows)]
        tokens = concatenate([part.tokens for part in parts], pad_id=0)
        acc, known, groups = (torch.cat([getattr(p, k) for p in parts]) for k in ("acc_B", "known_B", "groups_B"))
        mask = torch.from_numpy(tokens.mask_B_T)
        ref = pad_sequence([row for part in parts for row in part.ref_B_T], batch_first=True)[:, : mask.shape[1]]
        batch = LabelledBatch(tokens, acc, known, groups, torch.where(mask, ref, 0.0))
        self._batch = batch.take(np.arange(len(tokens))[-self._size :])

    def draw(self, n: int, rng: np.random.Generator) -> LabelledBatch:
        """`n` different responses, each in a group of its own."""
        assert self._batch is not None
        return replace(self._batch.take(rng.choice(len(self), size=n, replace=False)), groups_B=torch.arange(n))

    def state(self) -> dict[str, Tensor]:
        """Everything as tensors; none where it is empty."""
        return _stored(self._batch)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Return to a stored state."""
        self._batch = _restored(tensors)


def _stored(batch: LabelledBatch | None) -> dict[str, Tensor]:
    """A batch as tensors; none where there is none."""
    if batch is None:
        return {}
    tokens = batch.tokens
    arrays = {
        "prompts": np.concatenate([np.empty(0, np.int64), *tokens.prompts]),
        "lengths": np.array([len(prompt) for prompt in tokens.prompts], dtype=np.int64),
        "responses": tokens.responses_B_T[tokens.mask_B_T],
        "response_lengths": tokens.lengths_B,
        "finished": tokens.finished_B,
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    more = {"acc": batch.acc_B, "known": batch.known_B, "groups": batch.groups_B}
    more |= {} if batch.streams_B is None else {"streams": batch.streams_B}
    more |= {} if tokens.follows_B is None else {"follows": torch.from_numpy(tokens.follows_B)}
    return tensors | more | {"ref": batch.ref_B_T[torch.from_numpy(tokens.mask_B_T)]}


def _restored(tensors: dict[str, Tensor]) -> LabelledBatch | None:
    """The batch that was stored, None where there was none."""
    if not tensors:
        return None
    found = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
    prompts = np.split(found["prompts"], np.cumsum(found["lengths"])[:-1])
    responses = np.split(found["responses"], np.cumsum(found["response_lengths"])[:-1])
    tokens = token_batch(prompts, responses, found["finished"], pad_id=0)
    tokens = replace(tokens, follows_B=found.get("follows"))
    ref = torch.zeros(tokens.mask_B_T.shape)
    ref[torch.from_numpy(tokens.mask_B_T)] = tensors["ref"]
    acc, known, groups = (tensors[name].clone() for name in ("acc", "known", "groups"))
    return LabelledBatch(tokens, acc, known, groups, ref, tensors.get("streams"))
