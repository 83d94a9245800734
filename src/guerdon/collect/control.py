"""The collector of control policies: rollouts, evaluations and videos of a policy in copies of an environment.

It is built from plain configuration and can run in another process: rendering, recording and continuation labels
happen inside, and what comes out holds arrays alone.

    collector = ControlCollector(study.env, study.control_policy, seed=0, rollout_steps=250, heads=["env"])
    rollout = collector.collect(policy)  # or policy.tensors()
    collector.evaluate(policy, episodes=20)["success"]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from guerdon.collect.continuations import Continuations
from guerdon.collect.episode_capture import EpisodeBuffer, recorder_of_run, run_writer
from guerdon.collect.observed_frames import ObservedFrames, SeenRows
from guerdon.collect.policy_shape import PolicyShape, policy_of_shape
from guerdon.collect.rollout_progress import RolloutProgress, report
from guerdon.collect.stepping import ActionQueue, Step, evaluate, steps, video
from guerdon.compute.generators import ACTING, generator, shard_seed
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import ConfigError
from guerdon.policies.robots.experts import StateExpert, expert_of
from guerdon.policies.robots.robot import Action, ControlInputs, RobotPolicy
from guerdon.processes.progress import timed
from guerdon.settings.policy import ControlPolicySettings
from guerdon.settings.world import WorldSettings
from guerdon.types import BoolArray, Chunks, Episode, Failure, FloatArray, IntArray, Metrics, Observes, Rollout, Segment
from guerdon.worlds.build import build_world
from guerdon.worlds.eye import cannot_draw
from guerdon.worlds.interventions import NAMES, on_policy_refuses
from guerdon.worlds.observation import ObservationSpec
from guerdon.worlds.spaces import OpenWrapper
from guerdon.worlds.starts import Result
from guerdon.worlds.transition import Transition
from guerdon.worlds.world import World

# ---------------------------------------------------------------------------------------------------------------------
# A scripted expert that takes over where the policy makes no progress, in place of the person next to a robot.
#
# Its reports are those of a person's interventions (`guerdon.worlds.interventions`).
#
#     env = ScriptedInterventions(env, MountainCarExpert(), after=50, steps=20)
# ---------------------------------------------------------------------------------------------------------------------


class ScriptedInterventions(OpenWrapper):
    """Copies whose actions an expert replaces for some steps, after steps without a new best reward of the episode.

    Its reports in `info` are those of a person's interventions. It depends on nothing but the steps of an episode, so
    that a run repeats and resumes to the same bytes.

    Args:
        env: autoreset disabled.
        expert: acts on what the environment itself shows.
        after: steps in a row without a reward above all earlier ones of the episode.
        steps: that the expert takes then.
    """

    repeats_interventions = True

    def __init__(self, env: VectorEnv, expert: StateExpert, *, after: int, steps: int) -> None:
        super().__init__(env)
        self._expert, self._after, self._for = expert, after, steps
        self._rng = generator(0, ACTING)  # of an expert without noise, which draws nothing
        self._best = np.full(env.num_envs, -np.inf)
        self._since, self._left = np.zeros((2, env.num_envs), np.int64)
        self._shown = np.zeros(0)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin episodes, those of `reset_mask` alone where it is given."""
        begun: BoolArray = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self._best[begun], self._since[begun], self._left[begun] = -np.inf, 0, 0
        self._shown, info = self.env.reset(seed=seed, options=options)
        return self._shown, info

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, Any, Any, Any, dict[str, Any]]:
        """One step, with the expert's actions in copies where it has taken over."""
        helped = self._left > 0
        executed = actions.copy()
        if helped.any():
            executed[helped] = self._expert.act(self._shown[helped], self._rng)
        self._shown, rewards, terminated, truncated, info = self.env.step(executed)
        better = np.asarray(rewards) > self._best
        self._best = np.where(better, rewards, self._best)
        self._since = np.where(better | helped, 0, self._since + 1)
        self._left = np.where(self._since >= self._after, self._for, self._left - helped)
        reports = {NAMES["is_intervention"]: helped, NAMES["teleop_action"]: executed}
        return self._shown, rewards, terminated, truncated, {**info, **reports}


def scripted_interventions(settings: WorldSettings) -> Callable[[VectorEnv], VectorEnv] | None:
    """What puts the interventions of an `env` section around its copies; None: it has none.

    Raises:
        ConfigError: there is no scripted expert for the task.
    """
    after = settings.intervene_after
    if after is None:
        return None
    expert = None if settings.tasks_change else expert_of(settings)
    if expert is None:
        raise ConfigError.about(
            "env.intervene_after",
            f": {', '.join(settings.task_names)} has no scripted expert; there are those of single "
            "Meta-World tasks and of MountainCarContinuous. Remove it, or let your environment report interventions "
            "of its own (docs/people.md)",
        )
    return lambda env: ScriptedInterventions(env, expert, after=after, steps=settings.intervene_steps)


# ---------------------------------------------------------------------------------------------------------------------


EVAL_SEED = 10_000_019  # decides the starts of evaluation episodes: the same for every arm and seed
FRESH = 10**6  # number of the first episode of each copy that evaluations do not reach
EVAL_TRIES = 1  # how often an evaluation episode that a broken simulator cut off begins again

FLAGS = ("mask", "terminated", "truncated", "success", "success_known")
_MICRO = 256  # decisions that a large policy evaluates together where nothing says how many

TOLD_EVERY = 1.0  # seconds between two reports of `Earned`

Weights = Mapping[str, Tensor | np.ndarray]


class Earned:
    """Steps of a rollout and returns of the episodes that end in it, reported while it is collected.

    Args:
        copies: B.
    """

    def __init__(self, copies: int) -> None:
        self._sums = np.zeros(copies)
        self._returns: list[float] = []
        self._steps = 0
        self._told = time.monotonic()

    @property
    def progress(self) -> RolloutProgress:
        """The rollout up to now."""
        return RolloutProgress(self._steps, len(self._returns), float(np.sum(self._returns)))

    def begin(self, known: bool) -> None:
        """All copies begin episodes; `known`: with nothing earned, else what they earned before is not known."""
        self._sums[:] = 0.0 if known else np.nan

    def add(self, transition: Transition, over_B: BoolArray | None) -> None:
        """One step of all copies, but for those that are over."""
        counted_B = transition.mask if over_B is None else transition.mask & ~over_B
        self._steps += int(np.count_nonzero(counted_B))
        self._sums += transition.rewards
        for i in transition.failures:
            self._steps += over_B is None or not over_B[i]
            self._sums[i] = 0.0
        done = transition.done
        if done.any():
            self._returns += self._sums[done & counted_B & np.isfinite(self._sums)].tolist()
            self._sums[done] = 0.0
        if time.monotonic() - self._told >= TOLD_EVERY:
            self._told = time.monotonic()
            report(self.progress)

    def next_rollout(self) -> None:
        """Forget the last rollout."""
        self._returns.clear()
        self._steps = 0


class ControlCollector:
    """A control policy in an environment.

    Args:
        env: the `env` section, with what is recorded (`data_collection`).
        settings: the `policy` section.
        seed: of the run; decides starts and actions.
        rollout_steps: of every copy in a rollout, T.
        group_size: neighbouring copies that start alike; each copy then plays one episode in a rollout, of at most
            `env.max_episode_steps`. None: episodes go on from rollout to rollout.
        heads: names of the policy's value heads.
        micro_batch_size: decisions that a policy evaluates together; None: 256, and observations without a decision all
            at once.
        auxiliary: names of its auxiliary heads.
        video_share: share of the episodes that videos show; 0: there are none.
        video_every: steps between the frames of a video.
        observes: what reward models look at. It may be set later, except for continuation labels.
        algorithm: `type` of that section; for another one than `control`, rollouts have `ends` and `actions`.
        overlap_steps: steps after which what was observed is drawn and handed to `watchers`; None: after the rollout.
        success_readers: keys of the configuration, besides those of `env`, that need true success.
        shard, shards: which part of the copies acts here, of how many (`runner.rollout_shards`); the number decides
            starts and actions together with the seed.
        buffer: makes what takes the episodes of `data_collection`, for `recorded`; None: this process writes them.

    Attributes:
        watchers: called with the rows that were observed, at every `overlap_steps`-th step and after the last. Rows of
            an episode whose simulator breaks later are among them.

    Raises:
        ConfigError: the environment cannot be made, or cannot give what was asked for.
        DataError: the folder to record into holds something else, or another process writes there.
    """

    def __init__(
        self,
        env: WorldSettings,
        settings: ControlPolicySettings,
        *,
        seed: int,
        rollout_steps: int,
        group_size: int | None = None,
        heads: Sequence[str] = (),
        micro_batch_size: int | None = None,
        auxiliary: Sequence[str] = (),
        observes: Sequence[Observes] = (),
        success_readers: Sequence[str] = (),
        video_share: float = 0.0,
        video_every: int = 1,
        algorithm: str = "control",
        overlap_steps: int | None = None,
        shard: int = 0,
        shards: int = 1,
        buffer: Callable[[], EpisodeBuffer] | None = None,
        keep_info: Sequence[str] = (),
    ) -> None:
        own = env.of_shard(shard, shards)
        self._eval_env = own if own.task_names == env.task_names else env  # evaluations play all tasks
        self.env, self.settings, self.seed, self.heads = own, settings, seed, tuple(heads)
        self.auxiliary, self._algorithm = tuple(auxiliary), algorithm
        self._replayed = algorithm != "control"
        self.group_size, self.observes, self._micro = group_size, tuple(observes), micro_batch_size
        self._overlap, self.watchers = overlap_steps, list[Callable[[Sequence[SeenRows]], None]]()
        self._steps = rollout_steps if group_size is None else env.max_episode_steps or 1
        self._readers = tuple(success_readers)
        own_seed = shard_seed(seed, shard)
        self.world = build_world(
            env, seed=own_seed, group_size=group_size or 1, success_readers=self._readers, adaptive=True,
            shard=shard, shards=shards, wrap=scripted_interventions(own), keep_info=keep_info,
        )  # fmt: skip
        self.rng = generator(own_seed, ACTING)
        self._buffer: EpisodeBuffer | None = None
        self._writer: EpisodeWriter | None = None
        if buffer is not None:
            self._buffer = buffer()
        elif env.data_collection.enabled:
            self._writer = run_writer(env)
        first = shard * own.num_envs
        self._recorder = recorder_of_run(
            env.data_collection, "train", self.world, self._buffer or self._writer, seed=seed, first=first,
            among=env.num_envs,
        )  # fmt: skip
        limit = max((o.label_limit for o in self.observes if o.label_every), default=0)
        self._continuations = Continuations(self.env, limit) if limit else None
        self._observed = ObservedFrames(self.world, self.observes, self._continuations)
        self._videos: ObservedFrames | None = None
        if video_share:
            shots = [Observes(every=video_every, first=True)]
            self._videos = ObservedFrames(self.world, shots, share=video_share, seed=own_seed)
        self._earned = Earned(self.world.num_envs)
        self._failed_resets: list[Failure] = []  # before the first step of the next rollout
        self._begun = False  # whether there are episodes under way
        self._fresh = True
        self._rollouts = 0

    @cached_property
    def eval_world(self) -> World:
        """The copies in which evaluation episodes and videos are played."""
        world = build_world(self._eval_env, seed=EVAL_SEED, success_readers=self._readers, tries=EVAL_TRIES)
        world.count_with(self.world)
        return world

    def build_policy(self) -> RobotPolicy:
        """A policy of these settings that fits the environment, with weights drawn from the seed."""
        return policy_of_shape(
            self.settings, self.policy_shape(), heads=self.heads, auxiliary=self.auxiliary, seed=self.seed,
            algorithm=self._algorithm,
        )  # fmt: skip

    def policy_shape(self) -> PolicyShape:
        """What a policy of this environment must fit."""
        return PolicyShape.of(self.world)

    def collect(
        self,
        policy: RobotPolicy | Weights,
        *,
        version: int = 0,
        warm_up: bool = False,
        results: Sequence[Sequence[Result]] | None = None,
    ) -> Rollout[ControlInputs]:
        """Act for `rollout_steps` steps, or for one episode of every copy of a group.

        Args:
            policy: what acts; a policy is used as it is, weights (`RobotPolicy.tensors`) are loaded.
            version: of the weights, kept with the rollout.
            warm_up: only reward models learn from it; a rollout like any other.
            results: what the curricula of all shards have seen since the last rollout; None: there is one shard.
        """
        if results is not None:
            self._take_results(results)
        policy = self._loaded(policy)
        self.world.show(self._shown(policy))
        self._begin_rollout()
        seconds: dict[str, float] = {}
        watched = bool(self.watchers) and not warm_up
        with timed(seconds, "simulate"), policy.acting():
            acted = self._act(policy, seconds, watched=watched)
            report(self._earned.progress, over=True)
            alive = _rows(acted.alive)
            flags: dict[str, Any] = {name: _rows(acted.columns[name]) & alive for name in FLAGS}
        seconds["simulate"] -= seconds.get("render", 0.0)  # of what was drawn meanwhile
        mask, done = flags["mask"], flags["terminated"] | flags["truncated"]
        lost, cut = _lost_episodes(acted.failures, done)
        if self.observes and watched:
            self._show_watchers(seconds)
        segments, videos = self._pictures(seconds, mask, flags["terminated"], done, cut)
        with timed(seconds, "log-probs"):
            inputs, log_probs, values, next_values, chunks = _evaluated(
                policy, self.heads, acted, done, lost, self._micro
            )
        rewards = _rows(acted.columns["rewards"])
        lives = _rows(acted.columns["life_lost"]) & mask & ~lost
        intervened = _rows(acted.columns["intervened"]) & mask & ~lost
        fresh, self._fresh = self._fresh, False
        learned = self._curriculum_metrics()
        self._rollouts += 1
        return Rollout(
            inputs=inputs,
            log_probs=log_probs,
            **{name: flag & ~lost for name, flag in flags.items()},
            rewards=np.where(alive & ~lost, rewards, 0.0).astype(np.float32, copy=False),
            failed=lost,
            failures=(*acted.failures, *((-1, t, why) for t, why in acted.failed_resets)),
            group_ids=self._group_ids(),
            segments=segments,
            steps=int(mask.sum()) + len(acted.failures),
            measured=int(done.sum()) + len(acted.failures) + len(acted.failed_resets),
            values=values,
            next_values=next_values,
            fresh=fresh,
            version=version,
            seconds=seconds,
            metrics=learned,
            averaged_over={name: 1.0 for name in learned if not name.endswith("/sampled")},
            chunks=chunks,
            videos=videos,
            actions=acted.actions_taken(),
            ends=_ends(acted, self.world.resetting) if self._replayed else (),
            kept=acted.kept_columns(),
            intervened=intervened if self.world.interventions.reported else None,
            life_lost=lives if lives.any() else None,
        )

    def _take_results(self, results: Sequence[Sequence[Result]]) -> None:
        """Let a curriculum learn what those of all shards have seen."""
        if self.world.curriculum is not None:
            self.world.curriculum.take(results)

    def _group_ids(self) -> IntArray | None:
        """(B,) the group of each copy; None where there are no groups."""
        if self.group_size is None:
            return None
        return np.arange(self.world.num_envs, dtype=np.int64) // self.group_size

    @torch.no_grad()
    def evaluate(
        self, policy: RobotPolicy | Weights, *, episodes: int, step: int = 0, fresh: bool = False
    ) -> dict[str, float]:
        """True success of deterministic episodes from fixed starts: see `stepping.evaluate`.

        Args:
            policy: what acts.
            episodes: how many, rounded up to a multiple of the copies.
            step: of the run, kept with recorded episodes.
            fresh: from starts that no other episode of the run has, and without recording; no episodes where a world
                has a fixed number of starts, which the others use.
        """
        policy, recorder = self._loaded(policy), None
        if fresh and getattr(self.env, "init_states", None) == "ordered":
            return {"episodes": 0.0}
        if not fresh:
            recorder = recorder_of_run(
                self.env.data_collection, "eval", self.eval_world, self._buffer or self._writer, seed=self.seed,
                step=step,
            )  # fmt: skip
        first = FRESH if fresh else 0
        with policy.acting():
            return evaluate(self.eval_world, self._greedy(policy), episodes=episodes, recorder=recorder, first=first)

    @torch.no_grad()
    def show(self, policy: RobotPolicy | Weights, *, frames: int) -> tuple[Segment, FloatArray]:
        """Moments of one deterministic episode, and the environment's reward at each: see `stepping.video`."""
        policy = self._loaded(policy)
        with policy.acting():
            return video(self.eval_world, self._greedy(policy), frames=frames)

    def recorded(self) -> list[Episode]:
        """The episodes that were recorded since the last time, where another process writes them."""
        return [] if self._buffer is None else self._buffer.take()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values of everything that decides later rollouts; recorded episodes are on the disk.

        Episodes under way are replayed by `restore`. Those of groups never are: each rollout begins its own.
        """
        if self._writer is not None:
            self._writer.flush()
        tensors: dict[str, Tensor] = {}
        world: dict[str, Any] | None = None
        if self._begun and self.group_size is None:
            world = self.world.state_dict()
            tensors["observations"] = torch.from_numpy(np.ascontiguousarray(world.pop("observations")))
            for i, past in enumerate(world.pop("actions")):
                tensors[f"actions.{i}"] = torch.from_numpy(np.ascontiguousarray(past))
            world = {k: np.asarray(v).tolist() for k, v in world.items()}
        recorder = None if self._recorder is None else self._recorder.state_dict()
        return tensors, {
            "rollouts": self._rollouts,
            "rng": self.rng.bit_generator.state,
            "world": world,
            "recorder": recorder,
            "curriculum": None if self.world.curriculum is None else self.world.curriculum.state_dict(),
        }

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Return to a stored state; a world that cannot replay its episodes begins new ones.

        Raises:
            CheckpointError: the replay does not arrive at the stored observations.
        """
        self._rollouts = int(values["rollouts"])
        self.rng.bit_generator.state = values["rng"]
        if self._recorder is not None:
            self._recorder.load_state_dict(values["recorder"])
        if self.world.curriculum is not None:
            self.world.curriculum.load_state_dict(values["curriculum"])
        if values["world"] is None:
            return
        pasts = [tensors[f"actions.{i}"].numpy() for i in range(self.world.num_envs)]
        shown = tensors["observations"].numpy()
        self.world.load_state_dict({**values["world"], "actions": pasts, "observations": shown})
        self._begun, self._fresh = True, False
        self._earned.begin(known=False)
        if not self.world.exact_resume:
            self._begin()

    def close(self) -> None:
        """Close worlds and the recording."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            if self._continuations is not None:
                self._continuations.close()
            self.world.close()
            if "eval_world" in vars(self):
                self.eval_world.close()

    # Parts of a rollout.

    @cached_property
    def _room(self) -> RobotPolicy:
        """Room for weights from elsewhere."""
        return self.build_policy()

    def _loaded(self, policy: RobotPolicy | Weights) -> RobotPolicy:
        if isinstance(policy, Mapping):
            self._room.load_tensors({name: torch.as_tensor(value) for name, value in policy.items()})
            return self._room
        return policy

    def _shown(self, policy: RobotPolicy) -> ObservationSpec | None:
        """What the world shows: what the policy observes, and the states where episodes are recorded."""
        spec = policy.observation_spec
        return spec.with_states() if spec is not None and self.env.data_collection.enabled else spec

    def _greedy(self, policy: RobotPolicy) -> Callable[[np.ndarray], np.ndarray]:
        """The most likely actions of a policy in the world of evaluations."""
        self.eval_world.show(self._shown(policy))
        actor, rng = policy.actor(), np.random.default_rng(EVAL_SEED)
        if policy.in_parts:
            return ActionQueue(self.eval_world, lambda shown: actor.act(shown, rng, greedy=True), policy.chunk)
        return lambda observations: actor.act(observations, rng, greedy=True).values

    @property
    def _looking(self) -> list[ObservedFrames]:
        """What looks at the copies."""
        return [*([self._observed] if self.observes else []), *([] if self._videos is None else [self._videos])]

    @property
    def _pictured(self) -> bool:
        """Whether pictures of the copies are used; if not, environments that draw at every capture are faster."""
        recorded = self._recorder is not None and not cannot_draw(self.world.eye)
        return self._observed.draws or recorded or self._videos is not None

    def _begin_rollout(self) -> None:
        """Start new episodes where none are under way: those of groups begin with each rollout."""
        if self.group_size is not None:
            self.world.rewind(self._rollouts)
            self._begin()
        elif not self._begun:
            self._begin()
        self._observed.observes = self.observes

    def _curriculum_metrics(self) -> Metrics:
        """What the curriculum has learned; nothing without one."""
        return {} if self.world.curriculum is None else self.world.curriculum.metrics()

    def _begin(self) -> None:
        """Start new episodes in every copy; nothing of those under way may reach them."""
        self._observed.observes = self.observes
        self.world.takes_pictures = self._pictured
        looking = bool(self._looking) or self._recorder is not None
        start = self.world.reset(capture=np.full(self.world.num_envs, looking))
        self._failed_resets += [why for _, why in start.failed_resets]
        self._begun, self._fresh = True, True
        self._earned.begin(known=True)
        for one in self._looking:
            one.begin(start)
        if self._recorder is not None:
            self._recorder.begin_all(start)

    def _pictures(
        self,
        seconds: dict[str, float],
        mask_B_T: BoolArray,
        terminated_B_T: BoolArray,
        done_B_T: BoolArray,
        cut_B_T: BoolArray,
    ) -> tuple[tuple[Segment, ...], tuple[Segment, ...] | None]:
        """What reward models look at, and the frames of videos where there are some; both are drawn here."""
        segments: tuple[Segment, ...] = ()
        if self.observes:
            with timed(seconds, "render"):
                segments = self._observed.segments(mask_B_T, terminated_B_T, done_B_T, cut_B_T)
        if self._videos is None:
            return segments, None
        with timed(seconds, "video frames"):
            return segments, self._videos.segments(mask_B_T, terminated_B_T, done_B_T, cut_B_T)

    @torch.no_grad()
    def _act(self, policy: RobotPolicy, seconds: dict[str, float], *, watched: bool) -> _Acted:
        """Step all copies; of a group, until the one episode of each is over."""
        self.world.takes_pictures = self._pictured
        acted = _Acted(failed_resets=[(0, why) for why in self._failed_resets])
        self._failed_resets = []
        in_groups = self.group_size is not None
        over = np.zeros(self.world.num_envs, dtype=np.bool_)
        everywhere, first = ~over, np.zeros(self.world.num_envs, dtype=np.int64)
        looking, earned = self._looking, self._earned
        earned.next_rollout()
        stepping, queue = self._stepping(policy, acted, over)
        for t, step in zip(range(self._steps), stepping, strict=False):
            for one in looking:
                one.add(t, step, over if in_groups else None)
            if watched and self._watchers_due(t):
                self._show_watchers(seconds)
            if self._recorder is not None:
                self._recorder.watch(step.rows, step.actions, step.transition)
            self._refuse_interventions(step.transition)
            if self._videos is not None or self._replayed:
                acted.actions.append(step.actions)
            earned.add(step.transition, over if in_groups else None)
            acted.add(step.transition, ~over)
            if queue is None:
                acted.decided(step.observations, everywhere, first)
            else:
                acted.decided(step.observations[queue.due], queue.due, queue.slots, queue.record)
            if not in_groups:
                self._next_episodes(t, step.transition, acted)
                continue
            over |= step.transition.done | step.transition.failed
            if over.all():
                break
            if queue is not None:
                queue.resting = over.copy()
        return acted

    def _stepping(
        self, policy: RobotPolicy, acted: _Acted, over_B: BoolArray
    ) -> tuple[Iterator[Step], ActionQueue | None]:
        """The steps of a rollout, and the queue of its actions where a decision has several parts.

        Args:
            policy: acts.
            acted: gets the record of each decision that no queue makes.
            over_B: (B,) where nothing is looked at any more; the caller changes it in place.
        """
        actor, recorder, looking = policy.actor(), self._recorder, self._looking

        def capture(rows: IntArray) -> BoolArray:
            wanted = [one.capture(rows) for one in looking]
            if recorder is not None:
                wanted.append(recorder.wants(rows))
            return np.asarray(np.logical_or.reduce(wanted) & ~over_B)

        def decide(observations: np.ndarray) -> FloatArray:
            action: Action = actor.act(observations, self.rng)
            acted.records.append(action.values if action.record is None else action.record)
            return action.values

        queue = self._queue(policy, actor) if policy.in_parts else None
        observed = capture if looking or recorder is not None else None
        act = decide if queue is None else queue
        return steps(self.world, act, self.world.observations, capture=observed), queue

    def _refuse_interventions(self, transition: Transition) -> None:
        """On-policy learning takes every action for the policy's own."""
        if transition.intervened.any() and not self._replayed:
            raise ConfigError(on_policy_refuses(f"env.task {self.env.task}"), key="env.task")

    def _next_episodes(self, t: int, transition: Transition, acted: _Acted) -> None:
        """Episodes that began after a step; after the one episode of a group's copy nothing is part of the run."""
        if self._recorder is not None:
            self._recorder.begin_all(transition)
        acted.failed_resets += [(t, why) for _, why in transition.failed_resets]

    def _watchers_due(self, t: int) -> bool:
        """Whether those who score while the environment goes on get what was observed up to a step."""
        return bool(self.observes and self._overlap and (t + 1) % self._overlap == 0)

    def _show_watchers(self, seconds: dict[str, float]) -> None:
        """Draw what was observed since the last time, for those who score while the environment goes on."""
        with timed(seconds, "render"):
            seen = self._observed.draw()
        for watcher in self.watchers:
            watcher(seen)

    def _queue(self, policy: RobotPolicy, actor: Any) -> ActionQueue:
        """The actions of a rollout. What is left in it at the end is dropped, so it is not part of the state."""
        queue = ActionQueue(
            self.world,
            lambda observations: actor.act(observations, self.rng),
            policy.chunk,
            horizon=None if self.group_size is not None else self._steps,
            frames_of_ends=bool(self.heads),
        )
        queue.once[:] = self.group_size is not None
        return queue


@dataclass(eq=False)
class _Acted:
    """A rollout of B copies while it is collected, over T steps.

    Attributes:
        columns: T times (B,) of `FLAGS`, `rewards`, `intervened` and `life_lost`.
        ends: (step, copy) to the terminal observation of an episode.
        last: (B, ...) what the copies show after the last step.
        alive: T times (B,) where the one episode of a group's copy was not over.
        observations, records: of the decisions of every step that had some, in the order of their copies.
        actions: T times (B, ...), where videos show them or a learner keeps them.
        due, slots: T times (B,), see `ActionQueue`.
        kept: T times the values of `info` that are kept.
        failures: copy, step and reason of the episodes that were lost.
        failed_resets: step and reason of the resets that failed, with the next seed.
    """

    columns: dict[str, list[np.ndarray]] = field(
        default_factory=lambda: {name: [] for name in (*FLAGS, "rewards", "intervened", "life_lost")}
    )
    ends: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    last: np.ndarray = field(default_factory=lambda: np.empty(0))
    alive: list[BoolArray] = field(default_factory=list)
    observations: list[np.ndarray] = field(default_factory=list)
    records: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    due: list[BoolArray] = field(default_factory=list)
    slots: list[IntArray] = field(default_factory=list)
    kept: list[Mapping[str, np.ndarray]] = field(default_factory=list)
    failures: list[tuple[int, int, Failure]] = field(default_factory=list)
    failed_resets: list[tuple[int, Failure]] = field(default_factory=list)

    def add(self, transition: Transition, alive_B: BoolArray) -> None:
        """One step of all copies."""
        for i in np.flatnonzero(transition.done).tolist():
            self.ends[len(self.alive), i] = transition.final_observations[i]
        for i, why in transition.failures.items():
            if alive_B[i]:
                self.failures.append((i, len(self.alive), why))
        self.last = transition.observations
        self.kept.append(transition.kept)
        for name, column in self.columns.items():
            column.append(getattr(transition, name))
        self.alive.append(alive_B)

    def decided(
        self, observations: np.ndarray, due_B: BoolArray, slots_B: IntArray, record: np.ndarray | None = None
    ) -> None:
        """The decisions of a step, with their record where it is not here yet."""
        if len(observations):
            self.observations.append(observations)
        if record is not None:
            self.records.append(record)
        self.due.append(due_B)
        self.slots.append(slots_B)

    def actions_taken(self) -> FloatArray | None:
        """(B, T, ...) float32 actions; None where they are not kept."""
        return _rows(self.actions).astype(np.float32, copy=False) if self.actions else None

    def kept_columns(self) -> dict[str, np.ndarray]:
        """(B, T, ...) of each value of `info` that is kept."""
        names = self.kept[0] if self.kept else ()
        return {name: _rows([one[name] for one in self.kept]) for name in names}


def _rows(columns_T: Iterable[np.ndarray]) -> np.ndarray:
    """(B, T, ...) of (B, ...) for every step."""
    return np.stack(list(columns_T), axis=1)


def _ends(acted: _Acted, resetting_B: BoolArray) -> tuple[tuple[int, int, np.ndarray], ...]:
    """Where episodes and streams ended: see `Rollout.ends`."""
    episodes = [(i, t, shown) for (t, i), shown in acted.ends.items()]
    return (*episodes, *((i, len(acted.alive), acted.last[i]) for i in np.flatnonzero(~resetting_B).tolist()))


def _lost_episodes(failures: Sequence[tuple[int, int, Failure]], done_B_T: BoolArray) -> tuple[BoolArray, BoolArray]:
    """(B, T) bool twice: the steps of episodes that were lost, the last ones included, and those last ones."""
    lost, cut = np.zeros_like(done_B_T), np.zeros_like(done_B_T)
    for i, t, _ in failures:
        before = np.flatnonzero((done_B_T | cut)[i, :t])
        lost[i, before[-1] + 1 if len(before) else 0 : t + 1] = True
        cut[i, t] = True
    return lost, cut


@torch.no_grad()
def _evaluated(
    policy: RobotPolicy,
    heads: Sequence[str],
    acted: _Acted,
    done_B_T: BoolArray,
    lost_B_T: BoolArray,
    micro: int | None,
) -> tuple[ControlInputs, FloatArray, dict[str, FloatArray], dict[str, FloatArray], Chunks | None]:
    """Inputs of the policy, log-probabilities, values before and after each decision, and the steps' decisions."""
    due_B_T, slot_B_T = _rows(acted.due), _rows(acted.slots)
    order = np.argsort(np.nonzero(due_B_T.T)[1], kind="stable")  # from the order in which they were made
    if policy.in_parts:  # decisions in episodes that were lost are none of the rollout
        order = order[~lost_B_T[due_B_T]]
        due_B_T, slot_B_T = due_B_T & ~lost_B_T, np.where(lost_B_T, -1, slot_B_T)
    stream_R, _ = np.nonzero(due_B_T)  # decisions stream by stream, in order of time
    inputs = ControlInputs(np.concatenate(acted.observations)[order], np.concatenate(acted.records)[order])
    if not len(inputs):  # every episode was lost
        parts = policy.chunk * policy.tokens_per_action
        none = {name: np.zeros(0, dtype=np.float32) for name in heads}
        lost = Chunks(np.full(due_B_T.shape, -1), slot_B_T, policy.chunk, policy.tokens_per_action)
        return inputs, np.zeros((0, parts), dtype=np.float32), none, dict(none), lost
    found = policy.evaluate_all(policy.prepared(inputs), micro=micro or _MICRO)
    wanted = (len(inputs), policy.chunk * policy.tokens_per_action)
    if tuple(found.log_probs.shape) != wanted:
        raise ConfigError(
            f"the policy's evaluate gave log-probabilities of shape {tuple(found.log_probs.shape)}, expected {wanted}: "
            f"a decision has chunk x tokens_per_action of them, {policy.chunk} x {policy.tokens_per_action}"
        )
    decision_B_T = np.where(slot_B_T >= 0, np.cumsum(due_B_T).reshape(due_B_T.shape) - 1, -1)
    chunks: Chunks | None = None
    shape: tuple[int, ...] = due_B_T.shape
    log_probs = found.log_probs.numpy()
    if policy.in_parts:
        chunks = Chunks(decision_B_T, slot_B_T, policy.chunk, policy.tokens_per_action)
        shape = wanted[:1]
    else:
        log_probs = log_probs.reshape(shape)
    if found.values is None:
        return inputs, log_probs, {}, {}, chunks
    values = found.values.numpy().reshape(len(inputs), -1)
    following = np.concatenate([values[1:], values[:1]])
    last_R = np.append(stream_R[1:] != stream_R[:-1], True)  # the last decision of each stream
    following[last_R] = _values(policy, acted.last, micro)[stream_R[last_R]]
    ends = np.argwhere(done_B_T.T).tolist()  # after the last step of an episode comes its terminal observation
    if ends:
        finals = np.stack([acted.ends[step, i] for step, i in ends])
        for (step, i), value in zip(ends, _values(policy, finals, micro), strict=True):
            beyond = chunks is None or acted.columns["truncated"][step][i]
            following[decision_B_T[i, step]] = value if beyond else 0.0

    def by_head(values_R_H: FloatArray) -> dict[str, FloatArray]:
        return {name: np.ascontiguousarray(values_R_H[:, k]).reshape(shape) for k, name in enumerate(heads)}

    return inputs, log_probs, by_head(values), by_head(following), chunks


def _values(policy: RobotPolicy, observations: np.ndarray, micro: int | None) -> FloatArray:
    """(N, H) of the value heads, `micro` observations at a time."""
    size = micro or len(observations)
    parts = [policy.values(observations[i : i + size]) for i in range(0, len(observations), size)]
    return np.asarray(torch.cat(parts).cpu().numpy())
