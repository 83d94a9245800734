"""PRIME's implicit process reward model inside RL: scores every token of a response, learns from outcomes alone.

q_t = log phi(y_t) - log ref(y_t) is the reward of token t; phi learns online that beta x sum q is the logit of a right
answer (PRIME, 2502.01456; the formulas are `guerdon.models.implicit_losses`). `update: after` takes rewards and
gradients from one forward pass, so a gradient step's rewards come from the weights before it. `update: before`
learns first and scores again. This module does not know how the policy learns.

    prime = ImplicitReward(study, policy)
    scored = prime.score(prime.lesson(batch, acc_B, known_B, groups_B, old_log_probs_B_T))
    scored.q_B_T, scored.metrics
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import ConfigError
from guerdon.finite import SkippedSteps
from guerdon.models import implicit_losses as implicit
from guerdon.models.text_card import TextModelCard, write_folder
from guerdon.policies.shared_base import SharedBase
from guerdon.policies.text import TextPolicy, add_policy, reference
from guerdon.policies.text_files import load_policy
from guerdon.policies.tokens import TokenBatch
from guerdon.rl.alarm import correlation
from guerdon.rl.generators import REPLAY, generator
from guerdon.rl.replay_text import TextReplay
from guerdon.rl.text_learner import adam_tensors, adamw, load_adam, log_probs_of
from guerdon.settings.prime import PrimeModelSettings, RewardModelSection
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings


@dataclass(frozen=True, eq=False)
class Lesson:
    """B responses as the model learns from them.

    Attributes:
        batch: tokens. Responses to one prompt are neighbours.
        acc_B: float32 outcomes in [0, 1].
        known_B: bool, False where the outcome is unknown; nothing is learnt from those.
        groups_B: responses to one prompt share an id.
        ref_B_T: float32 log-probabilities of the reference, computed once however often they are used.
    """

    batch: TokenBatch
    acc_B: Tensor
    known_B: Tensor
    groups_B: Tensor
    ref_B_T: Tensor


@dataclass(frozen=True, eq=False)
class Scored:
    """What the model says of B responses.

    Attributes:
        q_B_T: float32 log-ratio of each token, 0 where masked; the sum over a response says how right it looks.
        metrics: of the model, before it learnt from these responses; `dpo_acc_after`: once it had (`update: before`).
    """

    q_B_T: Tensor
    metrics: dict[str, float | None]


class ImplicitReward:
    """The model phi, its reference, its optimiser and its replay.

    With LoRA, phi is a second adapter on the policy's weights, and the reference is those weights without any
    adapter, wherever both start where the policy does: one copy in memory instead of three.

    Args:
        study: the resolved configuration.
        policy: the policy at its start; its weights are shared where that is possible.

    Attributes:
        ref: the reference; None: the policy that acted.

    Raises:
        ConfigError: a loss that compares the responses to a prompt would not see them in one forward pass, or the
            model would be equal to its reference for ever.
    """

    def __init__(self, study: Study, policy: TextPolicy) -> None:
        assert study.reward_model is not None
        assert study.data is not None
        self.section: RewardModelSection = study.reward_model
        self.settings: PrimeModelSettings = study.reward_model.prime_model
        self.temperature = study.generation.temperature
        self.length_limit = study.data.max_response_length
        _check_whole_groups(self.section, study.data.n_samples)
        self.phi, self.ref = _models(study, policy)
        optim = self.settings.optim
        self.optimizer = adamw(self.phi, optim.lr, optim.betas, optim.weight_decay)
        self.skipped = SkippedSteps("the reward model", "reward_model.prime_model.optim.lr")
        self.replay = TextReplay(self.settings.replay_size)
        self.rng = generator(study.runner.seed, REPLAY)

    @property
    def changes(self) -> bool:
        """Whether phi at the end of a run differs from phi at its start."""
        return self.settings.learns

    def lesson(
        self, batch: TokenBatch, acc_B: Tensor, known_B: Tensor, groups_B: Tensor, policy_log_probs_B_T: Tensor | None
    ) -> Lesson:
        """Responses beside what the reference says of them.

        Args:
            batch: the responses.
            acc_B: outcomes in [0, 1].
            known_B: False where the outcome is unknown.
            groups_B: responses to one prompt share an id.
            policy_log_probs_B_T: of the policy that acted; the reference with `ref_type: policy`.
        """
        if self.ref is None:
            assert policy_log_probs_B_T is not None
            return Lesson(batch, acc_B, known_B, groups_B, policy_log_probs_B_T)
        micro = self.section.micro_batch_size
        ref = log_probs_of(self.ref, batch, micro=micro, temperature=self.temperature)
        return Lesson(batch, acc_B, known_B, groups_B, ref)

    def score(self, lesson: Lesson) -> Scored:
        """Rewards of every token; phi learns before or meanwhile, as `update` says."""
        if self.settings.update == "none":
            q = self.log_ratios(lesson)
            return Scored(q, _quality(q, lesson))
        q, metrics = self.learn(lesson)
        metrics |= _quality(q, lesson)
        for _ in range(self.settings.optim.epochs - 1):
            self.learn(lesson)
        if self.settings.replay_size:
            metrics |= self._learn_again(int(lesson.known_B.sum()))
            self.replay.add(lesson.batch, lesson.acc_B, lesson.known_B, lesson.ref_B_T)
        if self.settings.update == "before":
            q = self.log_ratios(lesson)
            metrics["dpo_acc_after"] = _quality(q, lesson)["dpo_acc"]
        return Scored(q, metrics)

    @torch.no_grad()
    def log_ratios(self, lesson: Lesson) -> Tensor:
        """(B, T) float32 q with the weights as they are."""
        micro = self.section.micro_batch_size
        log_probs = log_probs_of(self.phi, lesson.batch, micro=micro, temperature=self.temperature)
        return implicit.implicit_rewards(log_probs, lesson.ref_B_T, torch.from_numpy(lesson.batch.mask_B_T))

    def learn(self, lesson: Lesson) -> tuple[Tensor, dict[str, float | None]]:
        """One pass: a gradient step per mini-batch, in the order of the responses.

        Returns:
            (B, T) float32 q, of each mini-batch before its step; the mean loss and gradient norm. A step whose
            loss or gradient is not finite is not taken.

        Raises:
            NonFiniteError: too many steps in a row were not taken.
        """
        q_B_T = torch.zeros(lesson.batch.mask_B_T.shape)
        losses: list[float] = []
        norms: list[float] = []
        skipped = 0
        for mini in _chunks(np.arange(len(lesson.batch)), self.section.mini_batch_size):
            count = int(lesson.known_B[mini].sum())
            self.optimizer.zero_grad(set_to_none=True)
            total = 0.0
            for rows in _chunks(mini, self.section.micro_batch_size):
                with torch.set_grad_enabled(count > 0):
                    q, terms = self._forward(lesson, rows)
                q_B_T[rows, : q.shape[1]] = q.detach().cpu()
                if count:
                    loss = terms.sum() / count
                    loss.backward()  # type: ignore[no-untyped-call]
                    total += float(loss.detach())
            if not count:
                continue
            norm = self.skipped.clipped_step(self.optimizer, total, self.settings.optim.grad_clip)
            if norm is None:
                skipped += 1
                continue
            losses.append(total)
            norms.append(norm)
        return q_B_T, {
            "prm_loss": float(np.mean(losses)) if losses else None,
            "grad_norm": float(np.mean(norms)) if norms else None,
            "skipped_updates": float(skipped),
        }

    def _forward(self, lesson: Lesson, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """(b, t) log-ratios of a few responses and (b,) their losses, 0 where the outcome is unknown."""
        part = lesson.batch.take(rows)
        log_probs = self.phi.log_probs(part, temperature=self.temperature)
        device = log_probs.device
        mask = torch.from_numpy(part.mask_B_T).to(device)
        q = implicit.implicit_rewards(log_probs, lesson.ref_B_T[rows, : mask.shape[1]].to(device), mask)
        logits = implicit.outcome_logits(q, mask, beta=self.settings.beta_train)
        acc, known = lesson.acc_B[rows].to(device), lesson.known_B[rows].to(device)
        if self.settings.loss_type == "ce":
            terms = implicit.ce_terms(logits, acc)
        else:
            groups = lesson.groups_B[rows].to(device)
            compared = implicit.contrast(logits, acc, groups, self.settings.loss_type, known_B=known)
            terms = implicit.contrast_terms(logits, acc, compared)
        return q, torch.where(known, terms, 0.0)

    def _learn_again(self, fresh: int) -> dict[str, float | None]:
        """Learn from earlier rollouts, in proportion to so many fresh ones."""
        ratio = self.settings.replay_ratio
        count = min(round(fresh * ratio / (1 - ratio)), len(self.replay))
        if not count:
            return {"prm_loss_replay": None}
        batch, acc, ref = self.replay.draw(count, self.rng)
        known = torch.ones(count, dtype=torch.bool)
        _, found = self.learn(Lesson(batch, acc, known, torch.arange(count), ref))
        return {"prm_loss_replay": found["prm_loss"]}

    def write(self, folder: Path, policy: TextPolicy, system_prompt: str | None) -> Path:
        """Write the model with its reference and its card, for `load_text_model`, `reward.sources` and the server.

        Args:
            folder: replaced if it exists.
            policy: of the run, as it is now; the reference with `ref_type: policy`.
            system_prompt: of the run's prompts.

        Raises:
            NonFiniteError: a weight is not finite; an existing folder stays.
        """
        settings = self.settings
        card = TextModelCard(
            kind="implicit",
            form="chat",
            loss="ce" if settings.loss_type == "ce" else "dpo",
            threshold=0.5 if settings.loss_type == "ce" else None,
            labels="the answer is right (learnt in a run from outcomes, read at steps)",
            beta=settings.beta_train,
            read="cumulative",
            system_prompt=system_prompt,
            temperature=self.temperature,
            closed=True,
            length_limit=self.length_limit,
            bf16=self.phi.base.settings.bf16,
            learning={
                "learning_rate": settings.optim.lr,
                "weight_decay": settings.optim.weight_decay,
                "max_grad_norm": settings.optim.grad_clip,
                "batch_size": self.section.mini_batch_size,
            },
            training={"method": "prime", "settings": self.section.model_dump(mode="json")},
        )
        ref = policy if self.ref is None else self.ref
        if ref.base is self.phi.base and ref.adapter is None:
            return write_folder(folder, self.phi, card, head=None)
        return write_folder(folder, self.phi, card, head=None, ref=ref, merged=True)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights that are trained, optimiser, replay, random numbers."""
        tensors = {f"phi.{k}": v for k, v in self.phi.tensors().items()}
        tensors |= adam_tensors(self.optimizer)
        more, values = self.replay.state_dict()
        tensors |= {f"replay.{k}": v for k, v in more.items()}
        return tensors, {"replay": values, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self.phi.load_tensors({k[4:]: v for k, v in tensors.items() if k.startswith("phi.")})
        load_adam(self.optimizer, tensors)
        self.replay.load_state_dict({k[7:]: v for k, v in tensors.items() if k.startswith("replay.")}, values["replay"])
        self.rng.bit_generator.state = values["rng"]


def _quality(q_B_T: Tensor, lesson: Lesson) -> dict[str, float | None]:
    """How well summed rewards tell right responses from wrong ones; of those that are finite."""
    totals, finite = q_B_T.sum(-1), torch.isfinite(q_B_T).all(-1)
    known = lesson.known_B & finite
    pairs = implicit.dpo_acc(totals, lesson.acc_B, lesson.groups_B, known_B=known)
    return {
        "dpo_acc": pairs.accuracy,
        "dpo_acc_coverage": pairs.coverage,
        "dpo_acc_abs": implicit.dpo_acc_abs(totals, lesson.acc_B, known_B=known),
        "verifier_correlation": correlation(totals[known].numpy(), lesson.acc_B[known].numpy()),
        "q_mean": float(totals[finite].mean()) if finite.any() else None,
    }


def _check_whole_groups(section: RewardModelSection, n_samples: int) -> None:
    """A loss that compares the responses to a prompt must see all of them in one forward pass."""
    loss, micro = section.prime_model.loss_type, section.micro_batch_size
    if loss != "ce" and section.prime_model.learns and micro % n_samples:
        raise ConfigError(
            f"reward_model.prime_model.loss_type {loss} compares the responses to a prompt: "
            f"reward_model.micro_batch_size ({micro}) must be a multiple of data.n_samples ({n_samples}), such as "
            f"{max(micro // n_samples, 1) * n_samples}"
        )


def _models(study: Study, policy: TextPolicy) -> tuple[TextPolicy, TextPolicy | None]:
    """The model phi and its reference (None: the policy that acted). Frozen weights are shared where that is possible.

    Weights are frozen under adapters; whoever starts at the same place can use them.
    """
    own, prime = study.text_policy, study.reward_model.prime_model  # type: ignore[union-attr]
    seed, padding = study.runner.seed, prime.use_remove_padding
    start = own.path if prime.path is None else prime.path
    ref_start = start if prime.ref_path is None else prime.ref_path
    if prime.ref_type == "freeze" and start == ref_start and not prime.learns:
        raise ConfigError(
            "reward_model.prime_model starts as its own reference and update: none never changes it, so that every "
            "process reward would be 0: warm it up (warm_up.rollouts), or give path a model that was trained"
        )
    frozen: dict[str | None, SharedBase] = {} if own.lora is None else {own.path: policy.base}
    if own.lora is not None and start in frozen:
        phi = add_policy(frozen[start], "prm", own.lora, seed=seed + 1, remove_padding=padding)
    else:
        phi = load_policy(_at(own, start, padding), seed=seed)
        if own.lora is not None:
            frozen[start] = phi.base
    if prime.ref_type == "policy":
        return phi, None
    if ref_start not in frozen:
        whole = _at(own, ref_start, padding).model_copy(update={"lora": None})
        frozen[ref_start] = load_policy(whole, seed=seed).base
    return phi, reference(frozen[ref_start], remove_padding=padding)


def _at(own: TextPolicySettings, path: str | None, padding: bool) -> TextPolicySettings:
    """The policy's settings with another origin; None: the model that is made in code."""
    tiny = own.tiny if path is None else None
    return own.model_copy(update={"path": path, "tiny": tiny, "use_remove_padding": padding})


def _chunks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
