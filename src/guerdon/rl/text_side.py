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
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from guerdon.generators import LEARNING, generator
from guerdon.policies.text import TextPolicy, reference
from guerdon.policies.text_files import load_policy, save_policy
from guerdon.rl.kl_reference import empty_reference, take_start
from guerdon.rl.learner import AdamW, log_probs_of, make_batch, scheduled, steps_per_update, update_policy
from guerdon.rl.prime import PrimeReward
from guerdon.rl.records import EpisodeBook, RewardedRollout
from guerdon.rl.responses import Drawn, Responses, Sampler
from guerdon.rl.reward_source import TextRollout
from guerdon.rl.side import Refits, Times
from guerdon.rl.text_advantages import KL, VERIFIER, advise, kl_rewards
from guerdon.rl.text_evaluation import evaluate_text, film_text
from guerdon.rl.text_records import (
    advantage_facts,
    build_engine,
    response_facts,
    response_rows,
    rollout_of,
)
from guerdon.rl.text_sources import attack_warnings, build_text_sources
from guerdon.rl.text_state import restore_state, start_from_run, take_state
from guerdon.settings.study import Study
from guerdon.types import Failure, FloatArray, Rewards
from guerdon.worlds.prompt_files import load_prompts
from guerdon.worlds.prompts import shared_system_prompt
from guerdon.worlds.verifier import verifier_from


@dataclass(eq=False)
class Happened:
    """One batch on its way through the loop.

    Attributes:
        drawn: the responses.
        greedy: one greedy response per prompt in the order of their groups, for ReMax.
        old: (B, T) log-probabilities of the policy that acted, as training computes them, where somebody needs them.
        greedy_old: the same of the greedy responses.
        beside: responses that were written for another purpose, greedy ones and those of a warm-up.
        failed: why some of those beside could not be checked.
    """

    drawn: Drawn
    greedy: Responses | None = None
    old: Tensor | None = None
    greedy_old: Tensor | None = None
    beside: int = 0
    failed: list[Failure] = field(default_factory=list)

    @property
    def answered(self) -> Responses:
        """The responses to learn from."""
        return self.drawn.kept

    @cached_property
    def rollout(self) -> TextRollout:
        """The same as reward sources measure it."""
        greedy = None if self.greedy is None else TextRollout(self.greedy, self.greedy_old)
        steps = self.drawn.generated + self.beside
        return TextRollout(self.answered, self.old, greedy, steps, (*self.drawn.failed, *self.failed))


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
        self.engine = build_engine(self.policy, study.generation)
        self.verifier = verifier_from(self.data)
        train, self.validation = load_prompts(self.data)
        alike, system_prompt = shared_system_prompt(train)
        self.sampler = Sampler(self.data, self.engine, self.verifier, train, self.policy.tokenizer, seed=seed)
        self.sources = build_text_sources(study, self.policy, system_prompt=system_prompt)
        self.learned: tuple[str, ...] = tuple(name for name in self.sources if name != VERIFIER)
        self.heads = (*self.sources, *((KL,) if in_reward else ()))
        self.on_failure: Mapping[str, str] = {name: self.sources[name].terms.on_failure for name in self.learned}
        self.kl_ref = self._reference() if algorithm.kl_coef else None
        self.policy.temperature = study.generation.temperature
        self.optimizer = AdamW(
            self.policy.parameters(), algorithm.learning_rate, algorithm.betas, algorithm.weight_decay
        )
        self.learning_rng = generator(seed, LEARNING)
        self.book = EpisodeBook(0, list(self.sources))
        self.weights = {name: source.terms.weight(0.0) for name, source in self.sources.items()}
        self.notes = [f"{len(train)} prompts to train on, {len(self.validation)} to validate on"]
        if self.sampler.too_long:
            self.notes.append(
                f"{self.sampler.too_long} prompts are longer than data.max_prompt_length "
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

    def roll_out(self, phase: Times) -> Happened:
        """Answer prompts until enough survive the filters."""
        warm = self._warm_up(phase)
        happened = Happened(self.sampler.draw(phase))
        happened.beside = sum(part.generated for part in warm)
        happened.failed = [f for part in warm for f in part.failed]
        answered = happened.answered
        if self.study.text_algorithm.adv_estimator == "remax":
            _, firsts = np.unique(answered.groups_B, return_index=True)
            prompts = [answered.prompts[i] for i in firsts]
            happened.greedy = self.sampler.answer(prompts, 1, greedy=True, phase=phase)
            happened.beside += len(happened.greedy)
            happened.failed += happened.greedy.failures.values()
        if self._needs_old(len(answered)):
            with phase("old log-probs"):
                happened.old = self._log_probs(answered)
        if happened.greedy is not None and (self._by_policy or KL in self.heads):
            with phase("old log-probs"):
                happened.greedy_old = self._log_probs(happened.greedy)
        return happened

    def seconds(self, happened: Happened) -> Mapping[str, float]:
        """Nothing: `roll_out` times its phases."""
        return {}

    def steps(self, happened: Happened) -> int:
        """Responses that were written."""
        return happened.drawn.generated + happened.beside

    def refit(self, when: Literal["before", "after"], happened: Happened, phase: Times) -> Refits:
        """Let the reward models learn that learn at this point."""
        learning = [source for source in self.sources.values() if source.learn_before == (when == "before")]
        with phase("reward model") if self.learned else nullcontext():
            return {source.name: source.learn(happened.rollout) for source in learning}

    def score(self, happened: Happened, phase: Times) -> dict[str, Rewards]:
        """The verifier's outcomes and what every reward model pays."""
        rewards = {}
        for name, source in self.sources.items():
            with phase("reward model") if name in self.learned else nullcontext():
                rewards[name] = source.measure(happened.rollout)
        return rewards

    def update(
        self, happened: Happened, measured: Mapping[str, Rewards], *, progress: float, phase: Times
    ) -> tuple[RewardedRollout, dict[str, float | None]]:
        """Advantages of every source, and gradient steps on the policy."""
        algorithm, answered = self.study.text_algorithm, happened.answered
        batch = answered.batch
        with phase("update"):
            ref = None if self.kl_ref is None else self._log_probs(answered, self.kl_ref)
            rewards = dict(measured)
            if KL in self.heads:
                assert ref is not None
                rewards[KL] = self._kl(happened, ref)
            self.weights = {name: source.terms.weight(progress) for name, source in self.sources.items()}
            weights = {**self.weights, KL: algorithm.kl_coef}
            values = self._values(answered) if algorithm.adv_estimator == "gae" else None
            found = advise(
                self.study, batch.mask_B_T, answered.groups_B, rewards, weights, values=values,
                greedy_mask_B_T=None if happened.greedy is None else happened.greedy.batch.mask_B_T,
            )  # fmt: skip
            one_step = steps_per_update(algorithm, len(answered)) == 1
            made = make_batch(
                batch, batch.mask_B_T, found,
                old=None if one_step or happened.old is None else happened.old.numpy(),
                ref=None if ref is None or algorithm.kl_in == "reward" else ref.numpy(),
                behaviour=answered.behaviour_B_T, values=values,
            )  # fmt: skip
            rate = scheduled(algorithm.learning_rate, algorithm.lr_schedule, progress)
            learned = update_policy(
                self.policy, self.optimizer, made, algorithm, self.learning_rng,
                learning_rate=rate, max_length=self.data.max_response_length,
            )  # fmt: skip
            self.engine.sync()
        facts = happened.drawn.facts | advantage_facts(found, self.weights) | response_facts(answered)
        if KL in rewards:
            facts["kl"] = -float(rewards[KL].values.sum()) / max(int(batch.mask_B_T.sum()), 1)
        return rollout_of(answered, measured), {**learned, **facts, "learning_rate": rate}

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
        return evaluate_text(
            self.engine, self.verifier, self.data, self.validation[: self.study.runner.eval_episodes],
            self.policy.tokenizer,
        )  # fmt: skip

    def film(self, folder: Path, step: int) -> None:
        """A few sampled answers with what every source says of each token."""
        film_text(self, folder / f"step_{step:012d}.json", step)

    def save(self, folder: Path) -> None:
        """The policy, and the reward models as the run left them."""
        save_policy(self.policy, folder / "policy")
        if self.study.runner.save_reward_models:
            for name, source in self.sources.items():
                source.save(folder / "reward_models" / name)

    def close(self) -> None:
        """End the verifier's processes."""
        self.verifier.close()

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

    def measurable(self, answered: Responses, steps: int = 0) -> TextRollout:
        """Responses of the policy as it is, as reward sources measure them; `steps` responses were generated."""
        return TextRollout(answered, self._log_probs(answered) if self._by_policy else None, steps=steps)

    # Parts of an update.

    @property
    def _temperature(self) -> float:
        return self.study.generation.temperature

    @property
    def _micro(self) -> int:
        algorithm = self.study.text_algorithm
        return algorithm.micro_batch_size or algorithm.minibatch_size or 1024

    @property
    def _prime(self) -> PrimeReward | None:
        return next((source for source in self.sources.values() if isinstance(source, PrimeReward)), None)

    @property
    def _by_policy(self) -> bool:
        """Whether a reward model compares with the policy that acted."""
        return any(source.needs_log_probs for source in self.sources.values())

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

    def _warm_up(self, phase: Times) -> list[Drawn]:
        """Let reward models learn from rollouts of the starting policy until they are ready; what was written."""
        parts: list[Drawn] = []
        while waiting := [source for source in self.sources.values() if not source.ready]:
            parts.append(self.sampler.draw(phase))
            with phase("warm up"):
                rollout = self.measurable(parts[-1].kept, parts[-1].generated)
                for source in waiting:
                    source.learn(rollout)
        return parts

    def _log_probs(self, answered: Responses, policy: TextPolicy | None = None) -> Tensor:
        return log_probs_of(
            self.policy if policy is None else policy, answered.batch, micro=self._micro, temperature=self._temperature
        )

    def _needs_old(self, responses: int) -> bool:
        """Whether log-probabilities of the policy that acted decide anything."""
        return self._by_policy or KL in self.heads or steps_per_update(self.study.text_algorithm, responses) > 1

    def _kl(self, happened: Happened, ref: Tensor) -> Rewards:
        """The KL of the responses, and of greedy ones, as a reward."""
        assert happened.old is not None
        assert self.kl_ref is not None
        rewards = kl_rewards(happened.old.numpy(), ref.numpy(), happened.answered.batch.mask_B_T)
        if happened.greedy is None or happened.greedy_old is None:
            return rewards
        greedy_ref = self._log_probs(happened.greedy, self.kl_ref)
        greedy = kl_rewards(happened.greedy_old.numpy(), greedy_ref.numpy(), happened.greedy.batch.mask_B_T)
        return replace(rewards, greedy=greedy)

    def _values(self, answered: Responses) -> dict[str, FloatArray]:
        """(B, T) value before each token, of every source."""
        found = np.zeros((*answered.batch.mask_B_T.shape, len(self.heads)), dtype=np.float32)
        with torch.no_grad():
            for start in range(0, len(answered), self._micro):
                rows = np.arange(start, min(start + self._micro, len(answered)))
                part = answered.batch.take(rows)
                values = self.policy.evaluate(part, temperature=self._temperature).values
                assert values is not None
                found[rows, : part.mask_B_T.shape[1]] = values.cpu().numpy()
        return {name: found[..., k] for k, name in enumerate(self.heads)}
