"""PRIME's implicit process reward model inside RL: scores every token of a response, learns from outcomes alone.

q_t = log phi(y_t) - log ref(y_t) is the reward of token t; phi learns online that beta x sum q is the logit of a right
answer (PRIME, 2502.01456; the formulas are `guerdon.models.implicit_losses`). `update: after` takes rewards and
gradients from one forward pass, so a gradient step's rewards come from the weights before it. `update: before`
learns first and scores again. This module does not know how the policy learns.

    prime = ImplicitReward(study, policy)
    scored = prime.score(responses, old_log_probs_B_T)
    scored.q_B_T, scored.metrics
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import ConfigError
from guerdon.models import implicit_losses as implicit
from guerdon.policies.text import TextPolicy, add_policy, reference
from guerdon.policies.text_files import load_policy
from guerdon.policies.tokens import TokenBatch
from guerdon.rl.replay_text import TextReplay
from guerdon.settings.prime import PrimeModelSettings, RewardModelSection
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings


@dataclass(frozen=True, eq=False)
class Scored:
    """What the model says of B responses.

    Attributes:
        q_B_T: float32 log-ratio of each token, 0 where masked; the sum over a response says how right it looks.
        metrics: of the model, before it learnt from these responses.
    """

    q_B_T: Tensor
    metrics: dict[str, float | None]


class ImplicitReward:
    """The model phi, its reference, its optimiser and its replay.

    With LoRA and one start for all, phi is a second adapter on the policy's weights, and the reference is those
    weights without any adapter: one copy in memory instead of three.

    Args:
        study: the resolved configuration.
        policy: the policy at its start; its weights are shared where that is possible.
    """

    def __init__(self, study: Study, policy: TextPolicy) -> None:
        assert study.reward_model is not None
        self.section: RewardModelSection = study.reward_model
        self.settings: PrimeModelSettings = study.reward_model.prime_model
        self.temperature = study.generation.temperature
        self.phi, self.ref = _models(study, policy)
        optim = self.settings.optim
        self.optimizer = torch.optim.AdamW(
            self.phi.parameters(), lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay
        )
        self.replay = TextReplay(self.settings.replay_size)
        self.rng = np.random.default_rng([study.runner.seed, 3])

    @property
    def learns(self) -> bool:
        """Whether phi follows the rollouts."""
        return self.settings.update != "none"

    def score(
        self, batch: TokenBatch, acc_B: Tensor, known_B: Tensor, groups_B: Tensor, policy_log_probs_B_T: Tensor | None
    ) -> Scored:
        """Rewards of every token; phi learns before or meanwhile, as `update` says.

        Args:
            batch: the responses.
            acc_B: outcomes in [0, 1].
            known_B: bool, False where the outcome is unknown; phi does not learn from those.
            groups_B: responses to one prompt share an id.
            policy_log_probs_B_T: of the policy that acted; the reference with `ref_type: policy`.
        """
        update, contrast = self.settings.update, self.settings.loss_type != "ce"
        metrics: dict[str, float | None] = {}
        if update == "before":
            metrics |= self.learn(batch, acc_B, known_B, groups_B, policy_log_probs_B_T)
            q = self.log_ratios(batch, policy_log_probs_B_T)
            return Scored(q, metrics | self._quality(q, batch, acc_B, known_B, groups_B))
        if update == "after" and not contrast:
            q, learned = self._learn_and_score(batch, acc_B, known_B, policy_log_probs_B_T)
            quality = self._quality(q, batch, acc_B, known_B, groups_B)
            for _ in range(self.settings.optim.epochs - 1):
                learned |= self._pass(batch, acc_B, known_B, None, policy_log_probs_B_T)
            learned |= self._from_replay()
            self._remember(batch, acc_B, known_B, policy_log_probs_B_T)
            return Scored(q, learned | quality)
        q = self.log_ratios(batch, policy_log_probs_B_T)
        quality = self._quality(q, batch, acc_B, known_B, groups_B)
        if update == "after":
            metrics |= self.learn(batch, acc_B, known_B, groups_B, policy_log_probs_B_T)
        return Scored(q, metrics | quality)

    @torch.no_grad()
    def log_ratios(self, batch: TokenBatch, policy_log_probs_B_T: Tensor | None) -> Tensor:
        """(B, T) float32 q with the weights as they are."""
        q = torch.zeros(batch.mask_B_T.shape)
        for rows in _chunks(len(batch), self.section.micro_batch_size):
            part = batch.take(rows)
            width = part.mask_B_T.shape[1]
            q[rows, :width] = self._q(part, rows, policy_log_probs_B_T).cpu()
        return q

    def learn(
        self, batch: TokenBatch, acc_B: Tensor, known_B: Tensor, groups_B: Tensor, policy_log_probs_B_T: Tensor | None
    ) -> dict[str, float | None]:
        """Passes over the responses, and what the replay adds; returns the loss and the gradient norm."""
        metrics: dict[str, float | None] = {}
        for _ in range(self.settings.optim.epochs):
            metrics |= self._pass(batch, acc_B, known_B, groups_B, policy_log_probs_B_T)
        metrics |= self._from_replay()
        self._remember(batch, acc_B, known_B, policy_log_probs_B_T)
        return metrics

    # Learning.

    def _learn_and_score(
        self, batch: TokenBatch, acc_B: Tensor, known_B: Tensor, policy_log_probs_B_T: Tensor | None
    ) -> tuple[Tensor, dict[str, float | None]]:
        """One pass: the log-ratios that pay are those whose loss is stepped on."""
        q_B_T = torch.zeros(batch.mask_B_T.shape)
        metrics = self._pass(batch, acc_B, known_B, None, policy_log_probs_B_T, keep=q_B_T)
        return q_B_T, metrics

    def _pass(
        self,
        batch: TokenBatch,
        acc_B: Tensor,
        known_B: Tensor,
        groups_B: Tensor | None,
        policy_log_probs_B_T: Tensor | None,
        keep: Tensor | None = None,
    ) -> dict[str, float | None]:
        """One gradient step per mini-batch, in the order of the responses."""
        compared = None
        if self.settings.loss_type != "ce":
            assert groups_B is not None
            q = self.log_ratios(batch, policy_log_probs_B_T)
            mask = torch.from_numpy(batch.mask_B_T)
            logits = implicit.outcome_logits(q, mask, beta=self.settings.beta_train)
            compared = implicit.contrast(logits, acc_B, groups_B, self.settings.loss_type, known_B=known_B)
        losses, norms = [], []
        for mini in _chunks(len(batch), self.section.mini_batch_size):
            count = int(known_B[mini].sum())
            self.optimizer.zero_grad(set_to_none=True)
            total = 0.0
            for rows in _chunks_of(mini, self.section.micro_batch_size):
                part = batch.take(rows)
                q = self._q(part, rows, policy_log_probs_B_T)
                if keep is not None:
                    keep[rows, : q.shape[1]] = q.detach().cpu()
                if count:
                    loss = self._terms(q, part, acc_B[rows], known_B[rows], _of(compared, rows)).sum() / count
                    loss.backward()  # type: ignore[no-untyped-call]
                    total += float(loss.detach())
            if count:
                norms.append(self._step())
                losses.append(total)
        return {
            "prm_loss": float(np.mean(losses)) if losses else None,
            "grad_norm": float(np.mean(norms)) if norms else None,
        }

    def _terms(
        self, q_B_T: Tensor, batch: TokenBatch, acc_B: Tensor, known_B: Tensor, compared: implicit.Contrast | None
    ) -> Tensor:
        """(B,) losses, 0 where the outcome is unknown."""
        mask = torch.from_numpy(batch.mask_B_T).to(q_B_T.device)
        logits = implicit.outcome_logits(q_B_T, mask, beta=self.settings.beta_train)
        acc, known = acc_B.to(q_B_T.device), known_B.to(q_B_T.device)
        terms = implicit.ce_terms(logits, acc) if compared is None else implicit.contrast_terms(logits, acc, compared)
        return torch.where(known, terms, 0.0)

    def _from_replay(self) -> dict[str, float | None]:
        """Learn from earlier rollouts once more, by cross-entropy: their groups are gone."""
        if not len(self.replay) or self.settings.loss_type != "ce":
            return {}
        ratio = self.settings.replay_ratio
        count = max(1, round(self.section.mini_batch_size * ratio / (1 - ratio)))
        batch, acc, ref = self.replay.draw(min(count, len(self.replay)), self.rng)
        found = self._pass(batch, acc, torch.ones(len(batch), dtype=torch.bool), None, ref)
        return {"prm_loss_replay": found["prm_loss"]}

    def _remember(self, batch: TokenBatch, acc_B: Tensor, known_B: Tensor, policy_log_probs_B_T: Tensor | None) -> None:
        if self.settings.replay_size:
            ref = policy_log_probs_B_T if self.ref is None else None
            self.replay.add(batch, acc_B, known_B, ref, self.rng)

    def _q(self, part: TokenBatch, rows: np.ndarray, policy_log_probs_B_T: Tensor | None) -> Tensor:
        """Log-ratios of a few responses, with gradient where it is switched on."""
        log_probs = self.phi.log_probs(part, temperature=self.temperature)
        if self.ref is None:
            assert policy_log_probs_B_T is not None
            ref = policy_log_probs_B_T[rows, : part.mask_B_T.shape[1]].to(log_probs.device)
        else:
            with torch.no_grad():
                ref = self.ref.log_probs(part, temperature=self.temperature)
        return implicit.implicit_rewards(log_probs, ref, torch.from_numpy(part.mask_B_T).to(log_probs.device))

    def _step(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.phi.parameters(), self.settings.optim.grad_clip)
        if torch.isfinite(norm):
            self.optimizer.step()
        return float(norm)

    def _quality(
        self, q_B_T: Tensor, batch: TokenBatch, acc_B: Tensor, known_B: Tensor, groups_B: Tensor
    ) -> dict[str, float | None]:
        """How well the summed rewards order these responses, as they were before learning from them."""
        totals = q_B_T.sum(-1)
        pairs = implicit.dpo_acc(totals, acc_B, groups_B, known_B=known_B)
        return {
            "dpo_acc": pairs.accuracy,
            "dpo_acc_coverage": pairs.coverage,
            "dpo_acc_abs": implicit.dpo_acc_abs(totals, acc_B, known_B=known_B),
            "q_mean": float(totals.mean()) if len(totals) else None,
        }

    # State.

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


def adam_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of AdamW as named tensors: `adam.<parameter>.<slot>`."""
    state = optimizer.state_dict()["state"]
    return {f"adam.{i}.{k}": torch.as_tensor(v).clone() for i, slots in state.items() for k, v in slots.items()}


def load_adam(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Return to what `adam_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("adam."):
            _, index, slot = name.split(".", 2)
            state.setdefault(int(index), {})[slot] = value.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _models(study: Study, policy: TextPolicy) -> tuple[TextPolicy, TextPolicy | None]:
    """The model phi and its reference (None: the policy that acted)."""
    own, prime = study.text_policy, study.reward_model.prime_model  # type: ignore[union-attr]
    padding = prime.use_remove_padding
    start = own.path if prime.path is None else prime.path
    ref_start = start if prime.ref_path is None else prime.ref_path
    shared = own.lora is not None and start == own.path and ref_start == own.path
    if shared and own.lora is not None:
        phi = add_policy(policy.base, "prm", own.lora, seed=study.runner.seed + 1, remove_padding=padding)
        return phi, None if prime.ref_type == "policy" else reference(policy.base, remove_padding=padding)
    seed = study.runner.seed
    phi = load_policy(_at(own, start, padding, lora=True), seed=seed)
    if prime.ref_type == "policy":
        return phi, None
    ref = load_policy(_at(own, ref_start, padding, lora=False), seed=seed)
    return phi, TextPolicy(ref.base, trainable=False, remove_padding=padding)


def _at(own: TextPolicySettings, path: str | None, padding: bool, *, lora: bool) -> TextPolicySettings:
    """The policy's settings with another origin."""
    if path is None and own.tiny is None:
        raise ConfigError("reward_model.prime_model.path: say where the implicit reward model starts")
    change: dict[str, Any] = {"path": path, "use_remove_padding": padding}
    change |= {"tiny": own.tiny if path is None else None, "lora": own.lora if lora else None}
    return own.model_copy(update=change)


def _of(compared: implicit.Contrast | None, rows: np.ndarray) -> implicit.Contrast | None:
    return None if compared is None else implicit.Contrast(compared.baselines[rows], compared.weights[rows])


def _chunks(n: int, size: int) -> Iterator[np.ndarray]:
    return _chunks_of(np.arange(n), size)


def _chunks_of(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
