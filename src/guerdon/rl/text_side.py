"""The language models' side of the loop: prompts, responses, a verifier, a reward model beside it.

`runner.total_steps` counts responses: every one that was written, those that the filters left out and those that a
reward model warmed up on included. This module does not know when anything is logged, evaluated or stored.

    side = TextSide(study, fresh=True)
    side.begin()
    happened = side.roll_out(phase)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from guerdon.collect.text import TextCollector, TextRollout
from guerdon.generators import LEARNING, generator
from guerdon.policies.text import TextPolicy, reference
from guerdon.policies.text_files import load_policy, save_policy
from guerdon.policies.tokens import TokenBatch
from guerdon.rl.films import write_text_film
from guerdon.rl.kl_reference import empty_reference, take_start
from guerdon.rl.learner import AdamW, log_probs_of, make_batch, scheduled, steps_per_update, update_policy
from guerdon.rl.prime import PrimeReward
from guerdon.rl.records import EpisodeBook, RewardedRollout
from guerdon.rl.side import Refits, Times
from guerdon.rl.text_advantages import KL, VERIFIER, advise, kl_rewards
from guerdon.rl.text_records import (
    advantage_facts,
    response_facts,
    response_rows,
    rewarded,
)
from guerdon.rl.text_sources import attack_warnings, build_text_sources
from guerdon.rl.text_state import restore_state, start_from_run, take_state
from guerdon.settings.study import Study
from guerdon.types import FloatArray, Rewards
from guerdon.worlds.prompts import shared_system_prompt

FILMED_PROMPTS, FILMED_SAMPLES = 6, 4


class TextSide:
    """Policy, prompts, verifier, reward models and their memory.

    Args:
        study: the resolved configuration.
        fresh: take over `runner.resume_dir`; off where a checkpoint of this run follows.

    Attributes:
        sources: of reward, by name, the verifier first.
        heads: every stream of rewards, one value head each with `gae`.
    """

    unit = "responses"

    def __init__(self, study: Study, *, fresh: bool) -> None:
        assert study.data is not None
        self.study, self.data = study, study.data
        algorithm, seed = study.text_algorithm, study.runner.seed
        torch.manual_seed(seed)  # of dropout, where a model has any: only gradient steps draw from it
        in_reward = bool(algorithm.kl_coef) and algorithm.kl_in == "reward"
        streams = 1 + (study.reward_model is not None) + len(study.text_sources) + in_reward
        gae = algorithm.adv_estimator == "gae"
        self.policy = load_policy(study.text_policy, seed=seed, value_heads=streams if gae else 0)
        self.collector = TextCollector(
            self.data, study.generation, self.policy, seed=seed, greedy=algorithm.adv_estimator == "remax",
            recompute_above=0 if algorithm.num_epochs > 1 else algorithm.minibatch_size, micro_batch_size=self._micro,
        )  # fmt: skip
        alike, system_prompt = shared_system_prompt(self.collector.prompts)
        self.sources = build_text_sources(study, self.policy, system_prompt=system_prompt)
        self.learned: tuple[str, ...] = tuple(name for name in self.sources if name != VERIFIER)
        self.heads = (*self.sources, *((KL,) if in_reward else ()))
        self.collector.heads = self.heads if gae else ()
        self.collector.recompute = in_reward or any(source.needs_log_probs for source in self.sources.values())
        self.on_failure: Mapping[str, str] = {name: self.sources[name].terms.on_failure for name in self.learned}
        self.kl_ref = self._reference() if algorithm.kl_coef else None
        self.policy.temperature = study.generation.temperature
        self.optimizer = AdamW(
            self.policy.parameters(), algorithm.learning_rate, algorithm.betas, algorithm.weight_decay
        )
        self.learning_rng = generator(seed, LEARNING)
        self.book = EpisodeBook(0, list(self.sources))
        self.weights = {name: source.terms.weight(0.0) for name, source in self.sources.items()}
        self.notes = [
            f"{len(self.collector.prompts)} prompts to train on, {len(self.collector.validation)} to validate on"
        ]
        if too_long := self.collector.sampler.too_long:
            self.notes.append(
                f"{too_long} prompts are longer than data.max_prompt_length "
                f"({self.data.max_prompt_length}) and are left out"
            )
        self.notes += [
            f"[{study.reward.group_name}] {name}: text from {s.model.origin}, weight {s.reward_weight:g}"
            for name, s in study.text_sources.items()
        ]
        if self._prime is not None and self._prime.settings.learns and study.runner.save_reward_models and not alike:
            self.notes.append(
                "WARNING: the prompts differ in their system turns or have several turns; the saved reward model reads "
                "the last question alone, so that it gives other values than in this run (data.system_prompt sets one)"
            )
        self.notes += [f"WARNING: {line}" for line in attack_warnings(study)]
        if fresh and study.runner.resume_dir:
            self.notes += start_from_run(self, Path(study.runner.resume_dir))
            if self.kl_ref is not None:
                take_start(self.kl_ref, self.policy)

    def begin(self) -> None:
        """Nothing to begin: every response is an episode of its own."""

    def roll_out(self, phase: Times) -> TextRollout:
        """Answer prompts until enough survive the filters; before that, let reward models warm up."""
        warm: list[TextRollout] = []
        while waiting := [source for source in self.sources.values() if not source.ready]:
            warm.append(self.collector.collect(self.policy, warm_up=True))
            with phase("warm up"):
                for source in waiting:
                    source.learn(warm[-1])
        rollout = self.collector.collect(self.policy)
        parts = [*warm, rollout]
        return replace(
            rollout,
            steps=sum(part.steps for part in parts),
            measured=sum(part.measured for part in parts),
            failures=(*rollout.failures, *((-1, step, why) for part in warm for _, step, why in part.failures)),
            seconds={name: sum(part.seconds.get(name, 0.0) for part in parts) for name in rollout.seconds},
        )

    def seconds(self, happened: TextRollout) -> Mapping[str, float]:
        """Time that generating and verifying took."""
        return happened.seconds

    def steps(self, happened: TextRollout) -> int:
        """Responses that were generated."""
        return happened.steps

    def refit(self, when: Literal["before", "after"], happened: TextRollout, phase: Times) -> Refits:
        """Let the reward models learn that learn at this point."""
        learning = [source for source in self.sources.values() if source.learn_before == (when == "before")]
        with phase("reward model") if self.learned else nullcontext():
            return {source.name: source.learn(happened) for source in learning}

    def score(self, happened: TextRollout, phase: Times) -> dict[str, Rewards]:
        """The verifier's outcomes and what every reward model pays."""
        rewards = {}
        for name, source in self.sources.items():
            with phase("reward model") if name in self.learned else nullcontext():
                rewards[name] = source.measure(happened)
        return rewards

    def update(
        self, happened: TextRollout, measured: Mapping[str, Rewards], *, progress: float, phase: Times
    ) -> tuple[RewardedRollout, dict[str, float | None]]:
        """Advantages of every source, and gradient steps on the policy."""
        algorithm, mask, greedy = self.study.text_algorithm, happened.mask, happened.greedy
        batch = happened.inputs.batch
        with phase("update"):
            ref = None if self.kl_ref is None else self._ref_log_probs(batch)
            rewards = dict(measured)
            if KL in self.heads:
                assert ref is not None
                rewards[KL] = kl_rewards(happened.log_probs, ref, mask)
                if greedy is not None:
                    greedy_ref = self._ref_log_probs(greedy.inputs.batch)
                    rewards[KL] = replace(rewards[KL], greedy=kl_rewards(greedy.log_probs, greedy_ref, greedy.mask))
            self.weights = {name: source.terms.weight(progress) for name, source in self.sources.items()}
            weights = {**self.weights, KL: algorithm.kl_coef}
            values = happened.values or None
            found = advise(
                self.study, mask, happened.groups_B, rewards, weights, values=values,
                greedy_mask_B_T=None if greedy is None else greedy.mask,
            )  # fmt: skip
            sampled = happened.sampled_log_probs
            made = make_batch(
                batch, mask, found,
                old=None if steps_per_update(algorithm, len(batch)) == 1 else happened.log_probs,
                ref=None if algorithm.kl_in == "reward" else ref,
                behaviour=happened.log_probs if sampled is None else sampled, values=values,
            )  # fmt: skip
            rate = scheduled(algorithm.learning_rate, algorithm.lr_schedule, progress)
            learned = update_policy(
                self.policy, self.optimizer, made, algorithm, self.learning_rng,
                learning_rate=rate, max_length=self.data.max_response_length,
            )  # fmt: skip
        facts = happened.metrics | advantage_facts(found, self.weights) | response_facts(happened.inputs)
        if KL in rewards:
            facts["kl"] = -float(rewards[KL].values.sum()) / max(int(mask.sum()), 1)
        return rewarded(happened, measured), {**learned, **facts, "learning_rate": rate}

    def record(self, rollout: RewardedRollout, step: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """One row per response that was learnt from."""
        rows = response_rows(rollout, self.weights, step)
        self.book.keep([row for row in rows if row["success"] is not None])
        return rows, self.book.summary(rows, self.learned)

    def alarm(self) -> str:
        """Which reward model's return rises while true success does not, with numbers; empty where none does."""
        return self.book.alarm(self.learned)

    def evaluate(self, step: int) -> dict[str, float]:
        """Greedy answers to validation prompts."""
        return self.collector.evaluate(self.policy, episodes=self.study.runner.eval_episodes)

    def film(self, folder: Path, step: int) -> None:
        """A few sampled answers with what every source says of each token."""
        rollout = self.collector.film(self.policy, prompts=FILMED_PROMPTS, samples=FILMED_SAMPLES)
        if rollout is not None:
            rewards = {name: self.sources[name].measure(rollout, learn=False) for name in self.learned}
            write_text_film(folder / f"step_{step:012d}.json", rollout, rewards, step=step)

    def save(self, folder: Path) -> None:
        """The policy, and the reward models as the run left them."""
        save_policy(self.policy, folder / "policy")
        if self.study.runner.save_reward_models:
            for name, source in self.sources.items():
                source.save(folder / "reward_models" / name)

    def close(self) -> None:
        """End the verifier's processes."""
        self.collector.close()

    @property
    def skipped_in_a_row(self) -> int:
        """Of the policy or a reward model that learns."""
        return max(self.optimizer.skipped.in_a_row, *(source.skipped_in_a_row for source in self.sources.values()))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Policy, reward models, optimisers, random numbers, place in the data."""
        return take_state(self)

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        restore_state(self, tensors, values)

    # Parts of an update.

    @property
    def _micro(self) -> int:
        algorithm = self.study.text_algorithm
        return algorithm.micro_batch_size or algorithm.minibatch_size or 1024

    @property
    def _prime(self) -> PrimeReward | None:
        return next((source for source in self.sources.values() if isinstance(source, PrimeReward)), None)

    def _reference(self) -> TextPolicy:
        """The policy at the start of the run: the weights under its adapter, or a copy of them.

        Of a run that starts from another one: room for what it starts from.
        """
        own, model = self.study.text_policy, self._prime
        if self.study.runner.resume_dir:
            return empty_reference(self.policy, own, seed=self.study.runner.seed)
        if self.policy.adapter is not None:
            return reference(self.policy.base)
        if model is not None and model.ref is not None:
            prime = model.settings
            if (own.path if prime.path is None else prime.path) == own.path and prime.ref_path in (None, own.path):
                return reference(model.ref.base)
        return reference(load_policy(own, seed=self.study.runner.seed).base)

    def _ref_log_probs(self, batch: TokenBatch) -> FloatArray:
        """(B, T) log-probabilities of the KL's reference."""
        assert self.kl_ref is not None
        temperature = self.study.generation.temperature
        return log_probs_of(self.kl_ref, batch, micro=self._micro, temperature=temperature).numpy()
