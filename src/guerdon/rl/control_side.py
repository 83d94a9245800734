"""The robots' side of the loop: a control policy in copies of a simulator, reward models that look at frames.

Frames are drawn only where a source or a recorder wants them. This module does not know when anything is logged,
evaluated or stored.

    side = ControlSide(study)
    side.begin()
    happened = side.roll_out(phase)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from guerdon.collect.control import ControlCollector
from guerdon.generators import LEARNING, generator
from guerdon.policies.control import StateInputs, save_policy
from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages, named_estimator
from guerdon.rl.control_sources import build_control_sources
from guerdon.rl.control_state import restore_state, take_state
from guerdon.rl.films import write_film
from guerdon.rl.learner import FlatAdam, make_batch, scheduled, update_policy
from guerdon.rl.records import EpisodeBook, RewardedRollout, RewardScaler
from guerdon.rl.side import Refits, Times
from guerdon.rl.start import start_from_policy, start_from_run
from guerdon.settings.study import Study
from guerdon.types import Advantages, Observes, Rewards, Rollout

Happened = Rollout[StateInputs]


class ControlSide:
    """World, policy, reward sources and their memory.

    Args:
        study: the resolved configuration.
        fresh: take over `policy.checkpoint` and `runner.resume_dir`; off where a checkpoint of this run follows.
    """

    unit = "environment steps"

    def __init__(self, study: Study, *, fresh: bool) -> None:
        self.study = study
        runner, algorithm = study.runner, study.control_algorithm
        self.group = algorithm.group_size if algorithm.adv_estimator == "grpo" else None
        self.sources = build_control_sources(study)
        self.learned = tuple(self.sources)
        self.on_failure: Mapping[str, str] = {n: s.terms.on_failure for n, s in self.sources.items()}
        self.weights = study.reward.weights()
        gammas = {n: self.sources[n].terms.gamma if n in self.sources else algorithm.gamma for n in self.weights}
        self.gammas = gammas
        self.collector = ControlCollector(
            study.env,
            study.control_policy,
            seed=runner.seed,
            rollout_steps=algorithm.rollout_steps,
            group_size=self.group,
            heads=[] if self.group else list(self.weights),
            observes=self._observes(),
            success_readers=study.success_readers(),
        )
        self.policy = self.collector.build_policy()
        self.learning_rng = generator(runner.seed, LEARNING)
        self.book = EpisodeBook(study.env.num_envs, ["env", *self.sources])
        self.scaler = RewardScaler(gammas, study.env.num_envs, enabled=algorithm.normalize_rewards)
        self.notes = start_from_policy(study, self.policy) if fresh else []
        self.optimizer = FlatAdam(self.policy, algorithm.learning_rate)
        if fresh and runner.resume_dir:
            self.notes += start_from_run(study, self.policy, self.optimizer)
        self.notes += [
            f"[{study.reward.group_name}] {name}: {s.settings.model.model_type} from "
            f"{s.settings.model.origin}, weight {s.settings.reward_weight:g}"
            for name, s in self.sources.items()
        ]

    def begin(self) -> None:
        """Nothing to begin: the collector starts episodes when it is asked for a rollout."""

    def roll_out(self, phase: Times) -> Happened:
        """Act for `rollout_steps` steps (grpo: one episode) in every copy."""
        self.collector.observes = self._observes()
        rollout = self.collector.collect(self.policy)
        if rollout.fresh:  # nothing of earlier episodes may reach these
            self.book.forget()
            self.scaler.forget()
            for source in self.sources.values():
                source.reset_streams()
        return rollout

    def seconds(self, happened: Happened) -> Mapping[str, float]:
        """Time that simulating and rendering took."""
        return happened.seconds

    def steps(self, happened: Happened) -> int:
        """Environment steps, all copies together."""
        return happened.steps

    def refit(self, when: Literal["before", "after"], happened: Happened, phase: Times) -> Refits:
        """Refit the reward models whose `update` says so."""
        learning = [s for s in self.sources.values() if s.refit is not None and s.learn_before == (when == "before")]
        with phase("refit") if learning else nullcontext():
            return {source.name: source.learn(happened) for source in learning}

    def score(self, happened: Happened, phase: Times) -> dict[str, Rewards]:
        """What every reward model says of what was seen."""
        with phase("score"):
            return {name: source.measure(happened) for name, source in self.sources.items()}

    def update(
        self, happened: Happened, measured: Mapping[str, Rewards], *, progress: float, phase: Times
    ) -> tuple[RewardedRollout, dict[str, float | None]]:
        """Advantages of every source, PPO epochs, and the normaliser of observations."""
        algorithm = self.study.control_algorithm
        with phase("update"):
            rollout = _rewarded(happened, measured)
            scales = self.scaler.update(rollout)
            found = self._advantages(rollout, scales)
            inputs = self.policy.inputs(rollout.observations, rollout.actions)
            batch = make_batch(inputs, rollout.mask, found, old=rollout.log_probs, values=rollout.values)
            rate = scheduled(algorithm.learning_rate, algorithm.lr_schedule, progress)
            learned = update_policy(
                self.policy, self.optimizer, batch, algorithm, self.learning_rng, learning_rate=rate
            )
            if self.policy.normalizer is not None:
                self.policy.normalizer.update(rollout.observations[rollout.mask])
                self.policy.refresh_normalizer()
        return rollout, {**learned, "learning_rate": rate}

    def record(self, rollout: RewardedRollout, step: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The episodes that ended in the rollout."""
        rows = self.book.add(rollout, self.weights, step)
        return rows, self.book.summary(rows, self.learned)

    def alarm(self) -> str:
        """Which learned return rises while true success does not, with numbers; empty where none does."""
        return self.book.alarm(self.learned)

    def evaluate(self, step: int) -> dict[str, float]:
        """Deterministic episodes from fixed starts."""
        return self.collector.evaluate(self.policy, episodes=self.study.runner.eval_episodes, step=step)

    def film(self, folder: Path, step: int) -> None:
        """One deterministic episode with what every source says of each frame."""
        moments, rewards = self.collector.film(self.policy, frames=self.study.runner.film_frames)
        write_film(
            folder / f"step_{step:012d}.npz", moments, self.sources, step=step,
            env_rewards=rewards if self.study.reward.env_weight() else None,
        )  # fmt: skip

    @property
    def skipped_in_a_row(self) -> int:
        """Of the policy or a reward model that is refitted."""
        return max(self.optimizer.skipped.in_a_row, *(source.skipped_in_a_row for source in self.sources.values()), 0)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Policy, optimiser, normalisers, generators, worlds, sources, recorder."""
        return take_state(self)

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state; an environment that cannot be brought back exactly starts new episodes."""
        restore_state(self, tensors, values)

    def save(self, folder: Path) -> None:
        """The policy, and the reward models as the run left them."""
        save_policy(self.policy, folder / "policy")
        if self.study.runner.save_reward_models:
            for name, source in self.sources.items():
                source.save(folder / "reward_models" / name)

    def close(self) -> None:
        """Close worlds and the recording."""
        self.collector.close()

    def _advantages(self, rollout: RewardedRollout, scales: Mapping[str, float]) -> Advantages:
        """Of every source, its rewards divided by its scale."""
        algorithm = self.study.control_algorithm
        groups = None if rollout.group_ids is None else rollout.group_ids[:, 0]
        sources = {
            name: SourceRewards(
                rollout.rewards[name] / np.float32(scales[name]),
                gamma=self.gammas[name],
                weight=weight,
                failed_B_T=rollout.failed.get(name),
                credit="dense" if groups is None else "episode",
                standardize=algorithm.grpo_std,
                values_B_T=rollout.values.get(name),
                next_values_B_T=rollout.next_values.get(name),
            )
            for name, weight in self.weights.items()
        }
        steps = Steps(rollout.mask, rollout.terminated, rollout.truncated, groups)
        return estimate_advantages(sources, steps, estimator=named_estimator(algorithm), lam=algorithm.gae_lambda)

    def _observes(self) -> tuple[Observes, ...]:
        """What every source looks at."""
        return tuple(source.observes for source in self.sources.values())


def _rewarded(rollout: Happened, measured: Mapping[str, Rewards]) -> RewardedRollout:
    """The rollout with the rewards of every source."""
    b, t = rollout.mask.shape
    observations, actions = rollout.inputs.observations.numpy(), rollout.inputs.actions.numpy()
    groups = None if rollout.group_ids is None else np.repeat(rollout.group_ids[:, None], t, axis=1)
    return RewardedRollout(
        observations=observations.reshape(b, t, *observations.shape[1:]),
        actions=actions.reshape(b, t, -1),
        log_probs=rollout.log_probs,
        mask=rollout.mask,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        success=rollout.success,
        success_known=rollout.success_known,
        rewards={"env": rollout.rewards, **{name: m.values for name, m in measured.items()}},
        failed={name: m.failed for name, m in measured.items()},
        values=rollout.values,
        next_values=rollout.next_values,
        group_ids=groups,
    )
