"""The learner, one for all policies: what a rollout and its rewards do to a policy.

learner = OnPolicyLearner(policy, FlatAdam(policy, 1e-3), settings, seed=0, heads=("env",))
rollout = collector.collect(learner.policy)
metrics = learner.update(rollout, rewards, terms, progress=0.1)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor

from guerdon.compute import distributed
from guerdon.compute.generators import LEARNING, generator
from guerdon.compute.optimizers import Optimizer, under
from guerdon.compute.schedules import scheduled
from guerdon.errors import CheckpointError
from guerdon.rewards.source import ShareWeight, SourceTerms, observe_shares
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.advantages import (
    SourceRewards,
    Steps,
    episode_scores,
    estimate_advantages,
    groups_within,
    named_estimator,
    paid_means,
)
from guerdon.rl.episode_stats import RewardScaler
from guerdon.rl.losses import sum_parts, truncated_weights
from guerdon.rl.update import Batch, make_batch, steps_per_update, update_policy
from guerdon.settings.algorithm import AlgorithmSettings
from guerdon.types import (
    Advantages,
    BoolArray,
    Chunks,
    Collected,
    FloatArray,
    Inputs,
    Metrics,
    Policy,
    RawScores,
    Rewards,
    Rollout,
)

# ---------------------------------------------------------------------------------------------------------------------
# Decisions with several parts in the learner: chunks of C actions, each with D log-probabilities.
#
# A rollout keeps rewards, masks and ends per environment step. `reward_type` says where credit is given (the names are
# RLinf's): with `chunk_level` a decision is one step of the estimator, with `action_level` each executed action is.
# `logprob_type` says what has a probability ratio of its own in the loss: each token, each action (the sum of its
# tokens) or each chunk (the sum of its executed actions). Actions that were not executed, because the episode or the
# rollout ended before, are in no sum, no mean and no gradient.
#
#     steps, sources = per_decision(rollout, steps, sources)  # chunk_level
#     rows = decision_rows(rollout, estimate_advantages(sources, steps, estimator="gae"), settings)
#     batch = make_batch(inputs, rows.mask, rows.found, old=rows.log_probs, parts=rows.parts)
# ---------------------------------------------------------------------------------------------------------------------


class DecisionRows(NamedTuple):
    """R decisions as a gradient step takes them: K probability ratios each.

    Attributes:
        mask: (R, K) where something was executed.
        found: advantages (R, K); value targets and where they are known (R,).
        log_probs: (R, K) of the policy that acted.
        parts: (R, C * D) where a log-probability is of an executed action.
    """

    mask: BoolArray
    found: Advantages
    log_probs: FloatArray
    parts: BoolArray


def decision_mask(chunks: Chunks) -> BoolArray:
    """(B, K) where stream b has a k-th decision. Row by row, its true entries are the R decisions in their order."""
    counts_B = (chunks.slot == 0).sum(axis=1)
    return np.asarray(np.arange(counts_B.max(initial=0)) < counts_B[:, None])


def per_decision(
    rollout: Rollout[Inputs], steps: Steps, sources: Mapping[str, SourceRewards]
) -> tuple[Steps, dict[str, SourceRewards]]:
    """Decisions in the place of steps: (B, K) arrays for the estimators, which are the same for both.

    The reward of a decision is the sum of the rewards of its executed actions; the decision ends an episode, or lacks a
    measurement, if one of them does. Discounts are per decision, as in RLinf: with V the value of what a decision saw,
    delta_k = sum_j r_kj + gamma V_{k+1} (1 - terminated_k) - V_k, where V_{k+1} is that of the terminal observation if
    a time limit ended the episode inside the chunk.

    Args:
        rollout: with chunks.
        steps: (B, T).
        sources: (B, T) rewards.
    """
    chunks = rollout.chunks
    assert chunks is not None
    taken, mask = rollout.mask, decision_mask(chunks)
    of = chunks.decision[taken]

    def grid(values_R: np.ndarray) -> np.ndarray:
        found = np.zeros(mask.shape, values_R.dtype)
        found[mask] = values_R
        return found

    def total(values_B_T: np.ndarray) -> np.ndarray:
        sums = np.bincount(of, weights=values_B_T[taken], minlength=len(rollout.inputs))
        return grid(sums.astype(np.float32))

    def anywhere(flags_B_T: BoolArray | None) -> BoolArray | None:
        if flags_B_T is None:
            return None
        return grid(np.bincount(of, weights=flags_B_T[taken], minlength=len(rollout.inputs)) > 0)

    values = {name: grid(of_decisions) for name, of_decisions in rollout.values.items()}
    next_values = {name: grid(of_decisions) for name, of_decisions in rollout.next_values.items()}
    found: dict[str, SourceRewards] = {}
    for name, source in sources.items():
        rewards = source.rewards_B_T
        if source.paid_B_T is not None:
            rewards = np.where(source.paid_B_T, rewards, 0.0)
        if source.failed_B_T is not None:
            rewards = np.where(source.failed_B_T, 0.0, rewards)
        found[name] = replace(
            source,
            rewards_B_T=total(rewards),
            paid_B_T=anywhere(source.paid_B_T),
            failed_B_T=anywhere(source.failed_B_T),
            values_B_T=values.get(name),
            next_values_B_T=next_values.get(name),
        )
    states = None
    if steps.states_B_T is not None:
        states = grid(steps.states_B_T[chunks.slot == 0])
    return Steps(
        mask,
        anywhere(steps.terminated_B_T),
        anywhere(steps.truncated_B_T),
        steps.groups_B,
        steps.turns,
        states,
    ), found


def decision_rows(rollout: Rollout[Inputs], found: Advantages, settings: AlgorithmSettings) -> DecisionRows:
    """Decisions with advantages as rows of a gradient step, at the level of `algorithm.logprob_type`.

    Args:
        rollout: with chunks.
        found: advantages of decisions (B, K), or of steps (B, T) with reward_type action_level.
        settings: the `algorithm` section.
    """
    chunks, taken = rollout.chunks, rollout.mask
    assert chunks is not None
    here = chunks.decision[taken], chunks.slot[taken]
    executed = np.zeros((len(rollout.inputs), chunks.size), dtype=np.bool_)
    executed[here] = True
    parts = np.repeat(executed, chunks.tokens, axis=1)
    by_chunk = settings.by_chunk
    decisions = decision_mask(chunks) if by_chunk else None
    match settings.logprob_type:
        case "token_level":
            mask = parts
        case "chunk_level":
            mask = np.ones((len(executed), 1), dtype=np.bool_)
        case _:
            mask = executed

    def rows(array: np.ndarray) -> np.ndarray:
        if decisions is not None:
            return np.asarray(array[decisions])
        found = np.zeros(executed.shape, array.dtype)
        found[here] = array[taken]
        return np.repeat(found, mask.shape[1] // chunks.size, axis=1)

    advantages = rows(found.advantages)
    advantages = advantages[:, None] if advantages.ndim == 1 else advantages
    log_probs = sum_parts(torch.from_numpy(rollout.log_probs), torch.from_numpy(parts), mask.shape[1]).numpy()
    return DecisionRows(
        mask,
        replace(
            found,
            advantages=np.where(mask, advantages, np.float32(0)),
            value_targets={name: rows(array) for name, array in found.value_targets.items()},
            known={name: rows(array) for name, array in found.known.items()},
        ),
        log_probs,
        parts,
    )


# ---------------------------------------------------------------------------------------------------------------------


KL = "kl"  # the KL from the reference as a source of reward
_MICRO = 1024  # rows that are evaluated together where nothing says how many


@dataclass(eq=False)
class OnPolicyLearner(Generic[Collected, Inputs]):
    """The policy, its optimiser, and what else changes when it learns.

    Attributes:
        policy: what is trained.
        optimizer: of its parameters.
        settings: the `algorithm` section.
        seed: of the run; decides the order of mini-batches.
        heads: names of the streams of reward, in the order of the policy's value heads.
        reference: what the KL is measured from; None without a KL.
        store_reference: keep its weights in checkpoints, because they are found nowhere else.
        max_length: the length limit of a response (`loss_agg: constant`).
        scaler: divides rewards by the spread of their returns; None: as they are.
        shares: source to its weight, of the sources whose weight is learned.
        version: updates so far.
        source_weights: of the last update, without that of the KL.
    """

    policy: Policy[Collected, Inputs]
    optimizer: Optimizer
    settings: AlgorithmSettings
    _: KW_ONLY
    seed: int
    heads: tuple[str, ...]
    reference: Policy[Collected, Inputs] | None = None
    store_reference: bool = False
    max_length: int | None = None
    scaler: RewardScaler | None = None
    shares: Mapping[str, ShareWeight] = field(default_factory=dict)
    version: int = field(default=0, init=False)
    source_weights: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.rng = generator(self.seed, LEARNING)
        distributed.register(self)

    @property
    def skipped_in_a_row(self) -> int:
        """Updates skipped in a row up to now, because they were not finite."""
        return self.optimizer.skipped.in_a_row

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL from the reference is a stream of reward."""
        return self.reference is not None and self.settings.kl_in == "reward"

    @distributed.collective
    def update(
        self,
        rollout: Rollout[Collected],
        rewards: Mapping[str, Rewards],
        terms: Mapping[str, SourceTerms],
        *,
        progress: float,
    ) -> Metrics:
        """Advantages of every source, and gradient steps on the policy.

        Args:
            rollout: what happened.
            rewards: source to its rewards.
            terms: source to how it counts.
            progress: share of the run that is over.
        """
        settings = self.settings
        follows_schedule = settings.kl_schedule != "constant"
        if follows_schedule:
            kl_coef = scheduled(settings.kl_coef, settings.kl_schedule, progress)
            settings = settings.model_copy(update={"kl_coef": kl_coef})
        ref = None
        if self.reference is not None and settings.kl_coef:
            ref = self._reference_log_probs(rollout)
        if self.kl_in_reward:
            assert ref is not None  # a schedule of the coefficient, which may reach 0, is for a KL in the loss
            rewards = {**rewards, KL: self._kl(rollout, ref)}
            terms = {**terms, KL: SourceTerms(KL, settings.gamma, settings.kl_coef)}
            ref = None  # it is a reward, and not in the loss
        weights = {name: one.weight(progress) for name, one in terms.items()}
        self.source_weights = {name: weight for name, weight in weights.items() if name != KL}
        if not len(rollout.inputs):  # simulators broke in every episode: there is nothing to learn from
            return {"updates": 0, "skipped_updates": 0}
        advantages, facts = self._advantages(rollout, rewards, terms, weights)
        batch = self._batch(rollout, rewards, advantages, ref)
        if settings.filter_rewards:
            kept_B = _kept(rollout, rewards, terms, weights, settings)
            kept_R = kept_B[_stream_of_rows(rollout)]
            batch = batch.take(np.flatnonzero(kept_R))
            facts["filtered_groups"] = float(len(np.unique(rollout.groups_B[~kept_B])))
        rate = scheduled(settings.learning_rate, settings.lr_schedule, progress)
        critic_only = self.version < settings.value_init_steps
        with critic_alone(self.policy) if critic_only else nullcontext():
            learned = update_policy(
                self.policy, self.optimizer, batch, settings, self.rng, learning_rate=rate, max_length=self.max_length
            )
        self.optimizer.zero_grad()  # the next rollout needs the memory of the gradients
        self._observe(rollout)
        self.version += 1
        facts |= self._facts_of_sources(advantages)
        if follows_schedule:
            facts["kl_coef"] = settings.kl_coef
        if self.kl_in_reward:
            facts["kl"] = -float(rewards[KL].values.sum()) / max(int(rollout.mask.sum()), 1)
        return {**learned, **facts, "learning_rate": rate}

    def _facts_of_sources(self, advantages: Advantages) -> dict[str, float]:
        """How many groups of each source taught nothing, and the weight of each source."""
        facts = {f"silent_groups/{name}": float(count) for name, count in advantages.silent_groups.items()}
        facts |= {f"flat_groups/{name}": float(count) for name, count in advantages.flat_groups.items()}
        return facts | {f"reward_weight/{name}": weight for name, weight in self.source_weights.items()}

    def _advantages(
        self,
        rollout: Rollout[Collected],
        rewards: Mapping[str, Rewards],
        terms: Mapping[str, SourceTerms],
        weights: Mapping[str, float],
    ) -> tuple[Advantages, Metrics]:
        """Advantages, weighted where what sampled computed other log-probabilities, and metrics of these weights."""
        settings = self.settings
        scales = None if self.scaler is None else self.scaler.update(rollout, rewards)
        found = source_advantages(rollout, rewards, terms, weights, settings, scales=scales)
        observe_shares(self.shares, self.source_weights, found)
        if settings.rollout_is_threshold is None or rollout.sampled_log_probs is None:
            return found, {}
        return importance_weighted(found, rollout, settings.rollout_is_threshold)

    def _batch(
        self,
        rollout: Rollout[Collected],
        rewards: Mapping[str, Rewards],
        advantages: Advantages,
        ref: FloatArray | None,
    ) -> Batch[Inputs]:
        """A rollout as rows for the gradient steps; `ref` are log-probabilities for a KL in the loss."""
        settings = self.settings
        mask, acting, parts = rollout.mask, rollout.log_probs, None
        if rollout.chunks is not None:
            mask, advantages, acting, parts = decision_rows(rollout, advantages, settings)
        streams, units = None, len(rollout.inputs)
        if rollout.conversations:
            parts = None  # each token of a call counts
            streams = _stream_of_rows(rollout)
            units = len(np.unique(streams))
        stale = rollout.version != self.version  # other weights acted, so that the first ratio is not 1 either
        several = stale or steps_per_update(settings, units) > 1
        behaviour = rollout.sampled_log_probs
        if behaviour is None and not several:
            behaviour = acting
        values = None
        if rollout.values:
            values = {name: rollout.values[name] for name in self.heads}
        return make_batch(
            self.policy.prepared(rollout.inputs),
            mask,
            advantages,
            old=acting if several else None,
            ref=ref,
            behaviour=behaviour,
            values=values,
            parts=parts,
            auxiliary=auxiliary_targets(settings.auxiliary_losses, rewards, rollout),
            streams=streams,
        )

    def _observe(self, rollout: Rollout[Collected]) -> None:
        """Show the policy what was acted on, for running statistics of it."""
        acted = rollout.mask
        if rollout.chunks is not None:
            acted = np.ones(len(rollout.inputs), np.bool_)
        self.policy.observe(rollout.inputs, acted)

    def _kl(self, rollout: Rollout[Collected], ref_B_T: FloatArray) -> Rewards:
        """The KL from the reference as a reward: -(log pi - log ref) of each step (k1, unbiased)."""
        gap = ref_B_T - rollout.log_probs
        if rollout.chunks is not None:  # of the tokens of calls: to the tokens of conversations
            gap = rollout.chunks.on_steps(gap)
        values = np.where(rollout.mask, gap, np.float32(0)).astype(np.float32)
        greedy = None
        if rollout.greedy is not None:
            greedy = self._kl(rollout.greedy, self._reference_log_probs(rollout.greedy))
        return Rewards(values, np.zeros(rollout.mask.shape, dtype=np.bool_), greedy=greedy)

    def _reference_log_probs(self, rollout: Rollout[Collected]) -> FloatArray:
        """(B, T) of the policy that the KL is measured from."""
        assert self.reference is not None
        micro = self.settings.micro_batch_size or self.settings.minibatch_size or _MICRO
        found = self.reference.evaluate_all(self.reference.prepared(rollout.inputs), micro=micro)
        return found.log_probs.numpy().reshape(rollout.log_probs.shape)

    @distributed.collective
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values of everything that decides the next update."""
        tensors = {f"policy.{k}": v for k, v in self.policy.tensors().items()}
        tensors |= {f"optimizer.{k}": v for k, v in self.optimizer.tensors().items()}
        if self.store_reference and self.reference is not None:
            tensors |= {f"kl_start.{k}": v for k, v in self.reference.tensors().items()}
        tensors["rng.cpu"] = torch.get_rng_state()  # dropout draws from it
        device = self.optimizer.device
        if device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(device)
        values: dict[str, Any] = {
            "sources": list(self.heads),
            "rng": self.rng.bit_generator.state,
            "version": self.version,
        }
        if self.settings.auxiliary_losses:
            values["auxiliary"] = list(self.settings.auxiliary_losses)
        values |= {"shares": {name: one.state_dict() for name, one in self.shares.items()}} if self.shares else {}
        return tensors, values | ({} if self.scaler is None else {"scaler": self.scaler.state_dict()})

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state.

        Raises:
            CheckpointError: it does not fit, or lacks what the run started from.
        """
        self._restore(distributed.Held(tensors) if getattr(self.policy, "sharded", False) else tensors, values)

    @distributed.collective
    def _restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        if self.store_reference and self.reference is not None:
            start = under("kl_start", tensors)
            if not start:
                raise CheckpointError(
                    "this checkpoint does not hold the policy that its run started from (runner.resume_dir), from "
                    "which algorithm.kl_coef measures: start the run anew in another folder"
                )
            self.reference.load_tensors(start)
        self.policy.load_tensors(under("policy", tensors))
        self.optimizer.load_tensors(under("optimizer", tensors))
        self.rng.bit_generator.state = values["rng"]
        self.version = int(values["version"])
        if self.scaler is not None:
            self.scaler.load_state_dict(values["scaler"])
        for name, share in self.shares.items():
            share.load_state_dict(values["shares"][name])
        numbers, device = torch.get_rng_state(), self.optimizer.device
        distributed.put(numbers, tensors["rng.cpu"])
        torch.set_rng_state(numbers)
        if device.type == "cuda" and "rng.cuda" in tensors:
            numbers = torch.cuda.get_rng_state(device)
            distributed.put(numbers, tensors["rng.cuda"])
            torch.cuda.set_rng_state(numbers, device)

    def start_from(self, folder: Path) -> str:
        """Second stage: take over the policy and its optimiser from another run's newest checkpoint.

        Where the sources of reward differ from the first stage's, the critic and the optimiser start fresh: their
        numbers are about another reward.

        Returns:
            A line that says what was done.

        Raises:
            CheckpointError: there is no whole checkpoint, or the policy does not fit.
        """
        path = ckpt.find_checkpoint(folder)
        tensors, values = ckpt.load_checkpoint(path)
        sources, done = values["sources"], "policy and optimiser"
        before, auxiliary = values["learner"].get("auxiliary", []), list(self.settings.auxiliary_losses)
        same = tuple(sources) == self.heads and before == auxiliary
        self.policy.load_tensors(under("policy", tensors), critic=same)
        if same and self.settings.value_init_steps:  # Adam's moments would move the policy without a gradient
            done = "policy; the optimiser starts fresh, because value_init_steps trains the critic alone at first"
        elif same:
            self.optimizer.load_tensors(under("optimizer", tensors))
        else:
            changes = (("sources of reward", list(sources), list(self.heads)), ("auxiliary losses", before, auxiliary))
            done = "policy; the critic and the optimiser start fresh, because " + " and ".join(
                f"the {what} changed from {', '.join(old) or 'none'} to {', '.join(new) or 'none'}"
                for what, old, new in changes
                if old != new
            )
        return f"stage 2 starts from {path}: {done}"


def source_advantages(
    rollout: Rollout[Collected],
    rewards: Mapping[str, Rewards],
    terms: Mapping[str, SourceTerms],
    weights: Mapping[str, float],
    settings: AlgorithmSettings,
    *,
    scales: Mapping[str, float] | None = None,
) -> Advantages:
    """Advantages of every source that has terms, added with their weights: of steps, or of the decisions of chunks.

    A failed measurement is left out of its source, or paid 0 where `on_failure` is neutral.

    Args:
        rollout: what happened.
        rewards: source to its rewards.
        terms: source to its discount and its failure policy.
        weights: source to its weight.
        settings: the estimator.
        scales: source to what its rewards are divided by.
    """
    sources: dict[str, SourceRewards] = {}
    for name in terms:
        own, neutral = rewards[name], terms[name].on_failure == "neutral"
        greedy, greedy_failed = _greedy(own.greedy, rollout)
        sources[name] = SourceRewards(
            own.values / np.float32((scales or {}).get(name, 1.0)),
            gamma=terms[name].gamma,
            weight=weights[name],
            paid_B_T=own.paid,
            failed_B_T=None if neutral else own.failed,
            credit=settings.reward_credit,
            standardize=settings.standardize and name != KL,
            greedy_B=greedy,
            greedy_failed_B=None if neutral else greedy_failed,
            values_B_T=rollout.values.get(name),
            next_values_B_T=rollout.next_values.get(name),
        )
    terminated = rollout.terminated if rollout.life_lost is None else rollout.terminated | rollout.life_lost
    steps = Steps(rollout.mask, terminated, rollout.truncated, rollout.group_ids, rollout.conversations, rollout.states)
    if rollout.chunks is not None and settings.by_chunk:
        steps, sources = per_decision(rollout, steps, sources)
    return estimate_advantages(
        sources,
        steps,
        estimator=named_estimator(settings),
        form=settings.rloo_form,
        whitened=settings.whiten_batch,
        lam=settings.gae_lambda,
        by_state=settings.by_state,
    )


def importance_weighted(found: Advantages, rollout: Rollout[Collected], threshold: float) -> tuple[Advantages, Metrics]:
    """Advantages times the truncated importance weights of what an engine wrote; a policy's loss is linear in them.

    Args:
        found: (B, T) advantages.
        rollout: with the log-probabilities of the policy that learns, and those of the engine.
        threshold: `algorithm.rollout_is_threshold`.

    Returns:
        The advantages, and over all tokens the mean weight and the share of weights that were truncated.
    """
    assert rollout.sampled_log_probs is not None
    given = torch.from_numpy(rollout.log_probs), torch.from_numpy(rollout.sampled_log_probs)
    weights_B_T = truncated_weights(*given, threshold).numpy()
    here = weights_B_T[rollout.mask]
    facts: Metrics = {
        "rollout_is_mean": float(here.mean()) if here.size else None,
        "rollout_is_truncated": float((here >= threshold).mean()) if here.size else None,
    }
    return replace(found, advantages=found.advantages * weights_B_T), facts


@contextmanager
def critic_alone(policy: Any) -> Iterator[None]:
    """Meanwhile only the parameters of a policy's critic, whose names begin with `vf.`, get gradients."""
    others = [p for name, p in policy.named_parameters() if p.requires_grad and not name.startswith("vf.")]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


def _kept(
    rollout: Rollout[Collected],
    rewards: Mapping[str, Rewards],
    terms: Mapping[str, SourceTerms],
    weights: Mapping[str, float],
    settings: AlgorithmSettings,
) -> BoolArray:
    """(B,) episodes of the groups that `filter_rewards` keeps, by the weighted sums of their undiscounted rewards.

    An episode with a failed measurement is not a known member, unless `on_failure` is neutral.
    """
    returns, known = np.zeros(len(rollout.mask)), np.asarray(rollout.mask.any(axis=1))
    for name, weight in weights.items():
        if weight:
            returns += weight * episode_scores(rewards[name].values, rollout.mask)
            if terms[name].on_failure != "neutral":
                known &= ~rewards[name].failed_B
    bounds = settings.rewards_lower_bound, settings.rewards_upper_bound
    return groups_within(returns, known, rollout.groups_B, *bounds)


def _stream_of_rows(rollout: Rollout[Collected]) -> np.ndarray:
    """(R,) stream of each row of the inputs."""
    if rollout.chunks is None:
        return np.repeat(np.arange(len(rollout.mask)), len(rollout.inputs) // len(rollout.mask))
    return rollout.chunks.streams


def _greedy(rewards: Rewards | None, rollout: Rollout[Collected]) -> tuple[np.ndarray | None, BoolArray | None]:
    """Mean paid reward of the greedy response to each row's prompt, and where there is none (ReMax)."""
    if rewards is None or rollout.greedy is None or rollout.group_ids is None:
        return None, None
    paid = rollout.greedy.mask if rewards.paid is None else rewards.paid
    _, place = np.unique(rollout.group_ids, return_inverse=True)
    failed = rewards.failed_B | ~rollout.greedy.mask.any(axis=1)
    return paid_means(rewards.values, paid)[place], failed[place]


# Targets of auxiliary heads.


def observation_values(scores: RawScores | None, mask_B_T: BoolArray) -> tuple[FloatArray, BoolArray]:
    """What a model said of the moment before each decision: targets of an auxiliary head.

    With such heads (`algorithm.auxiliary_losses`) the features of the policy hold what the reward model looks at
    (Jaderberg et al. 2017, 1611.05397). A moment after step t is the one before decision t + 1 of the same rollout, if
    the episode goes on.

    Args:
        scores: of single moments.
        mask_B_T: where there is a decision.

    Returns:
        (B, T) values, 0 where there is none, and (B, T) bool, where there is one.
    """
    values, known = np.zeros(mask_B_T.shape, dtype=np.float32), np.zeros(mask_B_T.shape, dtype=np.bool_)
    if scores is not None:
        before = scores.steps_N + 1
        ends = np.zeros(len(before), dtype=np.bool_) if scores.last_N is None else scores.last_N
        goes_on = (before < mask_B_T.shape[1]) & ~ends
        places = scores.rows_N[goes_on], before[goes_on]
        values[places], known[places] = scores.values_N[goes_on], True
    return np.where(mask_B_T, values, np.float32(0)), known & mask_B_T


def auxiliary_targets(
    names: Iterable[str], rewards: Mapping[str, Rewards], rollout: Rollout[Inputs]
) -> dict[str, tuple[FloatArray, BoolArray]]:
    """`observation_values` of several sources, by name: (B, T), or of each of R decisions with chunks."""
    found = {name: observation_values(rewards[name].scores, rollout.mask) for name in names}
    if rollout.chunks is None:
        return found
    begins = rollout.chunks.slot == 0  # in the order of the decisions
    return {name: (values[begins], known[begins]) for name, (values, known) in found.items()}
