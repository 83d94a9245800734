"""The robots' side of the loop: a control policy in copies of a simulator, reward models that look at frames.

Frames are drawn only where a source or a recorder wants them. This module does not know when anything is logged,
evaluated or stored.

    side = ControlSide(study)
    side.begin()
    happened = side.roll_out(phase)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor

from guerdon.collect.continuations import Continuations
from guerdon.collect.observed_frames import ObservedFrames
from guerdon.models.vlm_prm import say_computed, say_weighted
from guerdon.policies.control import build_policy, save_policy
from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages
from guerdon.rl.assemble import build_keep_up, build_sources, save_refitted
from guerdon.rl.control_state import restore_state, restore_world, take_state
from guerdon.rl.evaluation import evaluate_policy
from guerdon.rl.films import film_episode
from guerdon.rl.generators import ACTING, LEARNING, generator
from guerdon.rl.learner import FlatAdam, make_batch, scheduled, update_policy
from guerdon.rl.measure import make_rollout, measure_all
from guerdon.rl.recording import open_recording
from guerdon.rl.records import EpisodeBook, RewardScaler
from guerdon.rl.rollout import Trace, roll_out
from guerdon.rl.side import Refits, Times
from guerdon.rl.start import start_from_policy, start_from_run
from guerdon.settings.study import Study
from guerdon.types import Advantages, Observes, Rewards, Rollout, Segment
from guerdon.worlds.build import build_world

LOGGED_AS_PRM = ("QwenProcessRM", "DummyRM")  # the VLA guide's names of models, which come with its log lines
EVAL_SEED = 10_000_019  # decides the starts of evaluation episodes: the same for every arm and seed


class Forgets(Protocol):
    """A part that remembers the episodes under way."""

    def forget(self) -> None:
        """Leave them: the world begins new ones."""
        ...


def say_prm(rewards: Rewards, weight: float) -> None:
    """The VLA guide's two log lines: what was measured in a rollout, and what of it is paid."""
    scores = rewards.scores
    if scores is None or not (inside := scores.steps_N >= 0).any():
        return
    say_computed(scores.values_N[inside].tolist())
    say_weighted(rewards.values[scores.rows_N[inside], scores.steps_N[inside]].tolist(), weight)


@dataclass(frozen=True, eq=False)
class Happened:
    """One rollout: what happened, and what was seen of it, cut at the ends of episodes."""

    trace: Trace
    segments: tuple[Segment, ...]


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
        readers = study.success_readers()
        self.world = build_world(study.env, seed=runner.seed, group_size=self.group or 1, success_readers=readers)
        self.eval_world = build_world(study.env, seed=EVAL_SEED, success_readers=readers)
        self.sources = build_sources(study)
        self.learned = tuple(self.sources)
        self.on_failure: Mapping[str, str] = {n: s.settings.on_failure for n, s in self.sources.items()}
        self.keep_ups = build_keep_up(study, self.sources)
        self.recording = open_recording(study, self.world, self.eval_world)
        self.recorder = None if self.recording is None else self.recording.train
        self.weights = study.reward.weights()
        gammas = {n: self.sources[n].gamma if n in self.sources else algorithm.gamma for n in self.weights}
        self.gammas = gammas
        self.policy = build_policy(
            study.control_policy,
            self.world.observation_shape,
            self.world.action_space,
            sources=[] if self.group else list(self.weights),
            seed=runner.seed,
        )
        self.acting_rng = generator(runner.seed, ACTING)
        self.learning_rng = generator(runner.seed, LEARNING)
        self.book = EpisodeBook(study.env.num_envs, ["env", *self.sources])
        self.scaler = RewardScaler(gammas, study.env.num_envs, enabled=algorithm.normalize_rewards)
        self.iteration = 0
        self.observations = np.empty(0)
        limit = max((o.label_limit for o in self._observes() if o.label_every), default=0)
        self.continuations = Continuations(study.env, limit) if limit else None
        self.observed = ObservedFrames(self.world, [], self.continuations)
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
        """Start the first episodes; group-relative iterations begin episodes of their own."""
        if not self.group:
            self._begin()

    def roll_out(self, phase: Times) -> Happened:
        """Act for `rollout_steps` steps (grpo: one episode) in every copy and draw what somebody wants to see."""
        steps = self.study.control_algorithm.rollout_steps
        if self.group:
            self.world.rewind(self.iteration)
            self._begin()
            steps = self.study.env.max_episode_steps or 1
        self.observed.observes = self._observes()
        with phase("simulate"):
            trace = roll_out(
                self.world,
                self.policy.actor(),
                self.observations,
                self.acting_rng,
                steps=steps,
                observed=self.observed if self.sources else None,
                recorder=self.recorder,
                one_episode=self.group is not None,
            )
        self.observations = trace.last_observations
        return Happened(trace, self._see(trace, phase))

    def steps(self, happened: Happened) -> int:
        """Environment steps, all copies together."""
        return int(happened.trace.mask.sum())

    def refit(self, when: Literal["before", "after"], happened: Happened, phase: Times) -> Refits:
        """Refit the reward models whose `update` says so."""
        metrics: Refits = {}
        for name, keep_up in self.keep_ups.items():
            refitted = self.sources[name].settings.refitted
            if refitted is not None and refitted.update == when:
                with phase("refit"):
                    keep_up.see(happened.segments)
                    metrics[name] = keep_up.refit()
        return metrics

    def score(self, happened: Happened, phase: Times) -> dict[str, Rewards]:
        """What every reward model says of what was seen."""
        with phase("score"):
            measured = measure_all(self.sources, happened.segments, happened.trace.mask.shape)
        for name, source in self.sources.items():
            if source.settings.model.model_type in LOGGED_AS_PRM:
                say_prm(measured[name], self.weights[name])
        return measured

    def update(
        self, happened: Happened, measured: Mapping[str, Rewards], *, progress: float, phase: Times
    ) -> tuple[Rollout, dict[str, float | None]]:
        """Advantages of every source, PPO epochs, and the normaliser of observations."""
        algorithm = self.study.control_algorithm
        with phase("update"):
            rollout = make_rollout(happened.trace, measured, self.policy, group_size=self.group)
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
        self.iteration += 1
        return rollout, {**learned, "learning_rate": rate}

    def record(self, rollout: Rollout, step: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The episodes that ended in the rollout."""
        rows = self.book.add(rollout, self.weights, step)
        return rows, self.book.summary(rows, self.learned)

    def alarm(self) -> str:
        """Which learned return rises while true success does not, with numbers; empty where none does."""
        return self.book.alarm(self.learned)

    def evaluate(self, step: int) -> dict[str, float]:
        """Deterministic episodes from fixed starts."""
        recorder = None if self.recording is None else self.recording.of_evaluation(step)
        episodes = self.study.runner.eval_episodes
        return evaluate_policy(self.eval_world, self.policy.actor(), episodes=episodes, recorder=recorder)

    def film(self, folder: Path, step: int) -> None:
        """One deterministic episode with what every source says of each frame."""
        film_episode(
            self.eval_world, self.policy.actor(), self.sources, folder / f"step_{step:012d}.npz",
            step=step, frames=self.study.runner.film_frames, native=bool(self.study.reward.env_weight()),
        )  # fmt: skip

    @property
    def skipped_in_a_row(self) -> int:
        """Of the policy or a reward model that is refitted."""
        refitted = (keep_up.trainer.skipped.in_a_row for keep_up in self.keep_ups.values())
        return max(self.optimizer.skipped.in_a_row, *refitted, 0)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Policy, optimiser, normalisers, generators, worlds, sources, recorder."""
        return take_state(self)

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state; an environment that cannot be brought back exactly starts new episodes."""
        restore_state(self, tensors, values)
        if not self.group:
            restore_world(self, tensors, values)
            if not self.world.exact_resume:
                self._begin()

    def save(self, folder: Path) -> None:
        """The policy, and the reward models as the run left them."""
        save_policy(self.policy, folder / "policy")
        if self.study.runner.save_reward_models:
            for name in self.keep_ups:
                save_refitted(self.sources[name], folder / "reward_models" / name)

    def close(self) -> None:
        """Close worlds and the recording."""
        try:
            if self.recording is not None:
                self.recording.writer.close()
        finally:
            if self.continuations is not None:
                self.continuations.close()
            self.world.close()
            self.eval_world.close()

    def _advantages(self, rollout: Rollout, scales: Mapping[str, float]) -> Advantages:
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
        return estimate_advantages(sources, steps, estimator=algorithm.adv_estimator, lam=algorithm.gae_lambda)

    # Beginning and seeing.

    def _begin(self) -> None:
        """Start new episodes in every copy; nothing of those under way may reach them."""
        looking = bool(self.sources) or self.recorder is not None
        transition = self.world.reset(capture=np.full(self.world.num_envs, looking))
        self.observations = transition.observations
        self.observed.observes = self._observes()
        self.observed.begin(transition)
        remembering: list[Forgets] = [self.book, self.scaler, *self.sources.values(), *self.keep_ups.values()]
        for part in remembering:
            part.forget()
        if self.recorder is not None:
            for i, look in transition.first_looks.items():
                self.recorder.begin(i, transition.observations[i], look)

    def _see(self, trace: Trace, phase: Times) -> tuple[Segment, ...]:
        """Draw what the sources want to see and cut the rollout at episode ends."""
        if not self.sources:
            return ()
        with phase("render"):
            return self.observed.segments(trace.mask, trace.terminated, trace.terminated | trace.truncated)

    def _observes(self) -> tuple[Observes, ...]:
        """What every source looks at."""
        return tuple(
            self.keep_ups[name].observes(source.observes) if name in self.keep_ups else source.observes
            for name, source in self.sources.items()
        )
