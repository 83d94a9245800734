"""A world: a vectorised Gymnasium environment with a task in words, a camera and true success.

`World` hides the three autoreset conventions of Gymnasium behind one: `step` always returns the observation *after* the
action (the terminal one where the episode ended) and the observation to act on next, and offers each requested picture
exactly once, that of the terminal moment included. It seeds every episode from the run's seed, so that an episode can
be replayed from its seed and its actions; that is how a killed run finds its simulators again (`state_dict`).

    world = World(env, tasks=["close the window"] * 8, seed=0)
    observations = world.reset()
    transition = world.step(actions, capture=np.ones(8, bool))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from guerdon.errors import CheckpointError, ConfigError
from guerdon.processes.progress import log_line
from guerdon.types import BoolArray, ByteArray, Failure, IntArray
from guerdon.worlds import spaces
from guerdon.worlds.eye import Drawn, Eye, looks_at, pictures_of, resized
from guerdon.worlds.interventions import Interventions
from guerdon.worlds.kept_info import KeptInfo
from guerdon.worlds.observation import ObservationSpec, columns_as_rows
from guerdon.worlds.resets import NON_FINITE, ActionHistory, Resets, closed, finite_rows, in_step, step_all
from guerdon.worlds.returned import (
    LIFE_LOST,
    MARK,
    Declared,
    Outside,
    brightest,
    marked_in,
    not_finite_in,
    not_finite_parts,
    with_marks,
)
from guerdon.worlds.starts import Curriculum, Playing
from guerdon.worlds.success import SUCCESS_KEYS, own_readers, success_from_info, unreported
from guerdon.worlds.transition import FramesDue, Transition, among, with_finals

REPLAYS = 3  # attempts to replay the episodes of a checkpoint, where simulators break


class World:
    """B copies of an environment, stepped together.

    Attributes:
        tasks: the task of each copy, in words; with `playing` that of its current episode.
        num_envs: B.
        columns, own_columns: what one copy shows a policy; what the environment itself shows of it.
        reports_every_step: False once the environment left success open at a step.
        moments: that the environment itself shows at once.
        takes_pictures: set it to False to draw nothing: captured looks are then None.
        exact_resume: whether `state_dict` restores the simulators themselves (autoreset disabled, no people who act);
            elsewhere the episodes under way start again after a resume.
        interventions: what the environment reports of them.
        end_on_success: as it was given.
        guard, guarded: as it was given, None once an episode has ended by itself; (B,) bool, copies whose episode it
            cut in the last step.

    Args:
        env: the copies.
        tasks: the task of each copy, in words.
        seed: decides every reset.
        eye: draws pictures.
        max_episode_steps: a time limit of the world's own, in steps.
        end_on_success: terminate an episode at true success.
        native_reward: `dense` is the environment's own reward; `sparse` is 1 at every step that the environment
            reports as a success, else 0.
        success_keys: keys of `info` that report success, the first one found is read.
        info_keys: keys of `info` that report interventions, where they have other names than `NAMES`.
        success_readers: keys of the configuration that need true success. An episode that ends without a report
            stops a world with sparse rewards, and any world with readers that has not had a report before.
        group_size: neighbouring copies that start every episode alike.
        pixels: observations are pictures.
        tries: how often an episode that a broken simulator cut off is begun again, before the next one is.
        ordered: resets are seeded with 0, 1, 2, ... instead of numbers drawn by `seed`: for environments whose seed is
            the number of a start. The number of the first copy in the run, and how many copies play each task: their
            groups share the numbers out. None: drawn.
        playing: decides which task an episode plays, and its start; None: copies keep their tasks.
        moments: that the environment itself shows at once.
        keep_info: keys of `info` whose numbers are kept with each step.
        guard: steps after which an episode is cut until one has ended by itself, of environments without a limit.

    Raises:
        ConfigError: these arguments do not fit the environment, or each other.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        tasks: Sequence[str],
        *,
        seed: int = 0,
        eye: Eye | None = None,
        max_episode_steps: int | None = None,
        end_on_success: bool = False,
        native_reward: str = "dense",
        success_keys: Sequence[str] = SUCCESS_KEYS,
        info_keys: Mapping[str, str] | None = None,
        success_readers: Sequence[str] = (),
        group_size: int = 1,
        pixels: bool = False,
        ordered: tuple[int, int] | None = None,
        tries: int = 0,
        playing: Playing | None = None,
        moments: int = 1,
        keep_info: Sequence[str] = (),
        guard: int | None = None,
    ) -> None:
        if len(tasks) != env.num_envs:
            raise ConfigError(f"{len(tasks)} task texts for {env.num_envs} environments")
        self.env = env
        self.tasks = tuple(tasks)
        self.num_envs: int = env.num_envs
        self.eye, self.moments = eye, moments
        self.mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.exact_resume = self.mode is AutoresetMode.DISABLED
        _check_autoreset(self.mode, pixels=pixels, own_ends=end_on_success or bool(max_episode_steps))
        self._limit = max_episode_steps
        self.guard, self.guarded = guard, np.zeros(self.num_envs, dtype=np.bool_)
        self.end_on_success = end_on_success
        self._sparse = native_reward == "sparse"
        self._success_keys = tuple(success_keys)
        self.interventions = Interventions(env, info_keys or {})
        self._success_readers = [*own_readers(native_reward, end_on_success), *success_readers]
        self.reports_every_step = True
        self._reported = False  # whether the environment ever reported success or failure
        self._episode_reported = np.zeros(self.num_envs, dtype=np.bool_)  # whether it did in the current episode
        self._info_keys: set[str] = set()
        self._episode = np.zeros(self.num_envs, dtype=np.int64)
        self._steps = np.zeros(self.num_envs, dtype=np.int64)
        self._tries, self._tried = tries, np.zeros(self.num_envs, dtype=np.int64)
        self._resetting = np.zeros(self.num_envs, dtype=np.bool_)
        self._past = ActionHistory(self.num_envs)
        self.own_columns: tuple[spaces.ObservedColumn, ...] = spaces.own_columns(env)
        self._observations: np.ndarray = np.empty(0)
        self._shown: np.ndarray = self._observations
        if any(task != tasks[i - i % group_size] for i, task in enumerate(tasks)):
            raise ConfigError(
                f"a group of {group_size} copies would play different tasks: change env.num_envs or task_ids",
                key="env.num_envs",
            )
        self._playing = playing
        space = env.single_observation_space
        self._kept = KeptInfo(keep_info) if keep_info else None
        self._declared: Declared | None = None
        if isinstance(space, gymnasium.spaces.Box):
            self._declared = Declared(space, "", high=brightest(space), what=self.tasks[0])
        self._outside = Outside()
        self._resets = Resets(
            env, seed=seed, group_size=group_size, ordered=ordered, playing=playing, judge=self._begun_finite
        )
        if playing is not None and not self.exact_resume:
            raise ConfigError(
                "a curriculum, or a task for every episode, needs env.autoreset_mode: disabled",
                key="env.autoreset_mode",
            )
        self._words = np.array(self.tasks if playing is None else playing.starts.texts).dtype  # wide enough for all
        self._pixels = pixels
        self._drawn: dict[int, Drawn] = {}  # copies whose picture is drawn, as they stand
        self._spec: ObservationSpec | None = None
        self.takes_pictures = True
        if pixels and eye is None:
            raise ConfigError.about("env.observation", "pixels needs a camera")
        own = self.own_columns
        self.columns = spaces.rendered_columns(own, eye.size) if pixels and eye is not None else own

    @property
    def curriculum(self) -> Curriculum | None:
        """What draws tasks or starts by success, where one does."""
        starts = None if self._playing is None else self._playing.starts
        return starts if isinstance(starts, Curriculum) else None

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of what one copy shows a policy: the environment's own, or (H, W, 3) for pixels."""
        return () if self.columns[0].name else self.columns[0].shape

    @property
    def observations(self) -> np.ndarray:
        """(B, ...) what the copies show now."""
        return self._shown.copy()

    @property
    def resetting(self) -> BoolArray:
        """(B,) bool, copies whose next step is a reset that takes no action (autoreset NEXT_STEP)."""
        return self._resetting.copy()

    @property
    def action_space(self) -> gymnasium.Space:
        """What one copy takes from a policy."""
        return self.env.single_action_space

    @property
    def proprioception(self) -> tuple[int, ...]:
        """The places in an observation of what the robot measures of itself; empty where the environment has none."""
        return tuple(getattr(self.env, "proprioception", None) or ())

    @property
    def episode_ids(self) -> np.ndarray:
        """(B,) int64 number of the episode that each copy is in, counted from 0."""
        return self._episode.copy()

    @property
    def steps_in_episode(self) -> np.ndarray:
        """(B,) int64 actions taken so far in each copy's episode."""
        return self._steps.copy()

    def episode_seed(self, index: int) -> int:
        """The seed that copy `index` was last reset with. Copies of one group share it."""
        return self._resets.episode_seed(index, int(self._episode[index]))

    def reset(self, capture: BoolArray | None = None) -> Transition:
        """Start a new episode in every copy; the transition holds only observations and first looks."""
        if self._playing is not None:
            self._playing.begin_all(self._episode)
        self._resets.skipped[:] = 0
        self._reset_all()
        nothing = np.zeros(self.num_envs, dtype=np.bool_)
        self._shown = self._view(self._observations)
        return Transition(
            observations=self._shown.copy(),
            final_observations=self._shown.copy(),
            own_observations=self._observations,
            own_final=self._observations,
            rewards=np.zeros(self.num_envs, dtype=np.float32),
            own_rewards=np.zeros(self.num_envs, dtype=np.float32),
            terminated=nothing, truncated=nothing, success=nothing, success_known=nothing, mask=nothing,
            actions=np.zeros(0, np.float32), intervened=nothing, life_lost=nothing,
            first_looks=self._captured(np.ones(self.num_envs, np.bool_) if capture is None else capture),
            failed_resets=self._resets.take_failures(),
        )  # fmt: skip

    def show(self, spec: ObservationSpec | None) -> None:
        """Let observations have these columns from now on; None: plain arrays, as the world was made.

        Raises:
            ConfigError: it cannot show them.
        """
        if spec == self._spec:
            return
        if spec is not None:
            self._check_shown(spec)
        self._spec = spec
        if len(self._observations):
            self._shown = self._view(self._observations)

    def _check_shown(self, spec: ObservationSpec) -> None:
        """Refuse columns that this world cannot show."""
        if spec == ObservationSpec():
            raise ConfigError("the policy's observation_spec has no columns: name what it observes, such as states")
        if self._pixels:
            raise ConfigError(
                "this policy declares its own observations: remove env.observation pixels", key="env.observation"
            )
        if spec.proprioception and not self.proprioception:
            raise ConfigError(
                "the policy observes proprioception, but this environment does not say which of its observation "
                "it is: give it an attribute `proprioception` with the indices"
            )
        if spec.frames is not None and (self.eye is None or self.mode is AutoresetMode.SAME_STEP):
            raise ConfigError("the policy observes frames: the world needs a camera and must not reset within a step")
        if spec.cameras > max(len(self.cameras), 1):
            has = ", ".join(self.cameras) or "one camera"
            raise ConfigError(
                f"the policy observes {spec.cameras} cameras, this world has {has}: see env.cameras", key="env.cameras"
            )

    def rewind(self, episode: int = 0) -> None:
        """Count every copy's episodes from here, so that the next `reset` repeats that episode's starts."""
        self._episode[:] = episode

    def step(
        self,
        actions: np.ndarray,
        *,
        capture: BoolArray | None = None,
        capture_ends: bool = False,
        frames: FramesDue | None = None,
    ) -> Transition:
        """Take one action in every copy.

        Args:
            actions: (B, A); those beyond the bounds of the action space are clipped to them.
            capture: (B,) bool, copies to take a look at after the action.
            capture_ends: also look at terminal moments and at the first moments of new episodes.
            frames: which observations have the frames of `ObservationSpec`; None: all.

        Returns:
            The transition. Copies that were resetting (NEXT_STEP) have mask False and reward 0.

        Raises:
            NonFiniteError: an action is not finite; no simulator answers that with anything but nonsense.
            SimulatorError: the environment raised, or cannot begin an episode.
            ConfigError: no report of success that something needs, or of the action that somebody else took.
        """
        actions = spaces.executable(actions, self.action_space)
        observations, rewards, terminated, truncated, info = step_all(self.env, actions, self._steps, self.tasks)
        self._drawn.clear()
        observations = np.asarray(observations)
        rewards = np.asarray(rewards)
        terminated = np.asarray(terminated, dtype=np.bool_)
        truncated = np.asarray(truncated, dtype=np.bool_)
        reset_inside = (terminated | truncated) & (self.mode is AutoresetMode.SAME_STEP)
        arrived = with_finals(observations, info.get("final_obs", ()), reset_inside)
        failures = self._failures(arrived, observations, rewards, actions, info, reset_inside)
        mask = ~(self._resetting | among(failures, self.num_envs))
        actions, intervened = self.interventions.executed(info, actions, mask, terminated | truncated)
        self.exact_resume = self.exact_resume and not self.interventions.by_people
        terminated = terminated & mask
        truncated = truncated & mask
        ended_by_env = terminated | truncated
        success, known = self._successes(info, mask, ended_by_env)
        self._steps += mask
        terminated, truncated = self._with_own_ends(terminated, truncated, success, mask)
        done = terminated | truncated
        self._note_reports(known, mask, done)
        drawn = None
        if frames is not None:
            drawn = (frames.going_on & mask & ~done) | (truncated & frames.ends)
        final = self._view(arrived, drawn)
        wanted = np.zeros(self.num_envs, np.bool_)
        if capture is not None:
            wanted = capture & mask
        if capture_ends:
            wanted = wanted | done
        looks = self._look_after(wanted, ended_by_env, info)
        late = self._lost()  # of copies that broke while they were looked at
        failures = failures | late
        failed = among(failures, self.num_envs)
        if late:
            mask, success, known, intervened = (one & ~failed for one in (mask, success, known, intervened))
            terminated = terminated & ~failed
            truncated = truncated & ~failed
            done = done & ~failed
        if self._playing is not None:
            self._playing.step(success, known, done, failed)
        fresh = self._begin_next(actions, done, failed, observations, info)
        self._shown = final
        if fresh.any():
            self._shown = self._begun(fresh, failed, final, frames)
        return Transition(
            observations=self._shown.copy(),
            final_observations=final,
            own_observations=self._observations,
            own_final=arrived,
            rewards=np.where(mask, success if self._sparse else rewards, 0).astype(np.float32),
            own_rewards=np.where(mask, rewards, 0).astype(np.float32),
            terminated=terminated, truncated=truncated, success=success, success_known=known, mask=mask,
            actions=actions, intervened=intervened,
            life_lost=marked_in(info, LIFE_LOST, self.num_envs) & mask & ~done,
            looks={i: look for i, look in looks.items() if i not in failures},
            first_looks=self._captured(fresh) if capture_ends else {},
            failures=failures,
            failed_resets=self._resets.take_failures(),
            kept={} if self._kept is None else self._kept.of(info, mask, ended_by_env & reset_inside),
        )  # fmt: skip

    def _with_own_ends(
        self, terminated: BoolArray, truncated: BoolArray, success: BoolArray, mask: BoolArray
    ) -> tuple[BoolArray, BoolArray]:
        """The ends (B,) that a step has with those that this world adds: by success, its limit, or its guard.

        The guard, which stands in for a limit, is lifted once the environment has ended an episode itself.
        """
        if self.guard is not None and (terminated | truncated).any():
            self.guard, self.guarded = None, np.zeros(self.num_envs, dtype=np.bool_)
        if self.end_on_success:
            terminated = terminated | success
        if self._limit is not None:
            truncated = truncated | ((self._steps >= self._limit) & mask)
        if self.guard is not None:
            self.guarded = (self._steps >= self.guard) & mask & ~terminated
            truncated = truncated | self.guarded
        return terminated, truncated & ~terminated

    def _note_reports(self, known: BoolArray, mask: BoolArray, done: BoolArray) -> None:
        """Keep which copies (B,) have reported success or failure in their episode, and refuse an episode without."""
        self.reports_every_step &= bool((known == mask).all())
        self._episode_reported |= known
        self._check_reported(done & ~self._episode_reported)
        self._episode_reported &= ~done

    def save_state(self, index: int) -> Any:
        """The simulator of copy `index` as it is now, for `load_state`; only Meta-World and LIBERO have this."""
        return self.env.save_state(index)

    def load_state(self, index: int, state: Any) -> None:
        """Bring copy `index` to a saved state; an episode continued from it cannot be replayed."""
        self.env.load_state(index, state)
        self._drawn.pop(index, None)
        self._steps[index] = 0
        self._past.forget(np.arange(self.num_envs) == index)

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras that `render` draws; empty where the one that there is has no name."""
        return tuple(getattr(self.eye, "cameras", ()))

    def render(self, looks: Sequence[Any], camera: str | None = None) -> ByteArray:
        """(N, H, W, 3) uint8 pictures of earlier looks, by one of `cameras`, or by the first."""
        if self.eye is None:
            raise ConfigError("this world has no camera: set env.camera (or render_mode='rgb_array')", key="env.camera")
        return pictures_of(self.eye, looks, camera)

    def count_with(self, other: World) -> None:
        """Count observations outside of their spaces together with another world of the environment."""
        self._outside = other._outside

    def close(self) -> None:
        """Free simulators and renderers."""
        self._outside.close()
        self.interventions.close()
        if self.eye is not None:
            self.eye.close()
        closed(self.env, " and ".join(dict.fromkeys(self.tasks)) or "the environment")

    def state_dict(self) -> dict[str, Any]:
        """What is needed to find the simulators again: plain numbers and arrays."""
        return {
            **({} if self._playing is None else self._playing.state_dict()),
            "seed": self._resets.seed,
            "skipped": self._resets.skipped.copy(),
            "episode": self._episode.copy(),
            "steps": self._steps.copy(),
            "interventions": [self.interventions.reported, self.interventions.by_people],
            "unguarded": self.guard is None,
            "observations": spaces.as_bytes(self._observations).copy(),
            "actions": self._past.of_copies(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to a saved moment by resetting with the same seeds and replaying the same actions.

        Where that is not exact, or does not arrive at the saved observations, the episodes under way begin again.

        Raises:
            CheckpointError: simulators break again and again.
        """
        self._resets.seed = int(state["seed"])
        self.guard = None if state.get("unguarded") else self.guard
        self.interventions.reported, self.interventions.by_people = state.get("interventions", (False, False))
        self.exact_resume = self.exact_resume and not self.interventions.by_people
        self._episode = np.asarray(state["episode"], dtype=np.int64).copy()
        if self.exact_resume and not self._find_again(state):
            self.exact_resume = False
            log_line(
                "WARNING: episodes of the environment were replayed and took another course, so those under way begin "
                "again: it is another version, or reset(seed=...) does not decide everything"
            )
        if not self.exact_resume:
            self._episode += 1
            self.reset(np.zeros(self.num_envs, dtype=np.bool_))

    # Private parts of step() and of resuming.

    def _find_again(self, state: dict[str, Any]) -> bool:
        """Replay the episodes of a saved moment; whether they arrived there."""
        if self._playing is not None:
            self._playing.load_state_dict(state)
        self._resets.skipped[:] = state.get("skipped", 0)
        pasts = [np.asarray(a) for a in state["actions"]]
        for _ in range(REPLAYS):
            broken = self._replay(pasts)
            if not broken:
                break
        else:
            copy, why = next(iter(broken.items()))
            raise CheckpointError(
                f"the simulator of copy {copy} broke while its episode was replayed, {REPLAYS} times in a row ({why})"
            )
        self._past.restore(pasts)
        self._steps = np.asarray(state["steps"], dtype=np.int64).copy()
        self._episode_reported = self._steps > 0  # not replayed: it may have had a report
        self._shown = self._view(self._observations)
        return np.array_equal(spaces.as_bytes(self._observations), state["observations"])

    def _begun(self, fresh: BoolArray, failed: BoolArray, final: np.ndarray, frames: FramesDue | None) -> np.ndarray:
        """What is observed where copies of `fresh` have begun an episode, and `final` in the others."""
        if frames is None or self._spec is None:
            return self._view(self._observations)
        shown = final.copy()
        shown[fresh] = self._view(self._observations, fresh & (frames.new | failed))[fresh]
        return shown

    def _replay(self, pasts: list[np.ndarray]) -> dict[int, Failure]:
        """Replay each copy's actions so that all arrive together: a copy with a short past starts late.

        Returns:
            Copies whose simulator broke, at which the replay stopped.
        """
        self._reset_all()
        longest = max(len(p) for p in pasts)
        for t in range(longest):
            begun = [t - (longest - len(p)) for p in pasts]
            starting = np.array([b == 0 for b in begun]) & (t > 0)
            if starting.any():
                self._reset_again(starting)
            idle = np.array([b < 0 for b in begun])
            waiting = spaces.some_allowed(self._observations, self.own_columns, self.action_space)
            waiting = spaces.executable(waiting, self.action_space)
            actions = np.stack([w if i else p[b] for p, b, w, i in zip(pasts, begun, waiting, idle, strict=True)])
            observations, _, terminated, truncated, _ = self.env.step(actions.astype(self.action_space.dtype))
            self._drawn.clear()
            self._observations = np.asarray(observations)
            if broken := self._lost():
                return broken
            ended = np.asarray(terminated) | np.asarray(truncated)  # also copies that do not repeat their episodes
            if ended.any():
                self._reset_again(ended)
        late = np.array([len(p) == 0 for p in pasts]) & (longest > 0)
        if late.any():
            self._reset_again(late)
        return {}

    def _reset_all(self) -> None:
        """Every copy begins its episode, with nothing left of earlier ones."""
        self._reset_again(None)
        self._steps[:], self._tried[:] = 0, 0
        self._episode_reported[:], self._resetting[:] = False, False
        self._past.forget(np.ones(self.num_envs, dtype=np.bool_))

    def _reset_again(self, mask: BoolArray | None) -> None:
        """Copies begin their episodes; None: all of them."""
        if self._playing is not None:
            self.tasks = self._playing.texts
        self._observations = self._resets.begin(mask, self._episode)
        self._drawn = {} if mask is None else {i: one for i, one in self._drawn.items() if not mask[i]}

    def _successes(self, info: dict[str, Any], mask: BoolArray, ended: BoolArray) -> tuple[BoolArray, BoolArray]:
        """(B,) bool twice: true success of every copy, and where it is known; read at once where one array holds it."""
        key = next((key for key in self._success_keys if key in info), "")
        plain = info.get(key)
        where = info.get(f"_{key}")
        whole = self.mode is not AutoresetMode.SAME_STEP and (where is None or where.all())
        if whole and isinstance(plain, np.ndarray) and plain.dtype.kind in "bif" and plain.ndim == 1:
            known = mask & np.isfinite(plain)
            self._reported |= bool(known.any())
            return np.asarray((plain > 0) & known), known
        reports = [self._success_of(info, ended, i) if mask[i] else None for i in range(self.num_envs)]
        self._reported |= any(s is not None for s in reports)
        return np.array([s is True for s in reports]), np.array([s is not None for s in reports])

    def _success_of(self, info: dict[str, Any], ended: BoolArray, index: int) -> bool | None:
        if self.mode is AutoresetMode.SAME_STEP and ended[index] and "final_info" in info:
            info = info["final_info"]
        if not self._reported:
            self._info_keys |= {key for key in info if not key.startswith(("_", MARK))}
        return success_from_info(info, index, self._success_keys)

    def _check_reported(self, silent: BoolArray) -> None:
        """Stop at an episode that ended without a report where that leaves a reward or a setting without a value."""
        if silent.any() and self._success_readers and (self._sparse or not self._reported):
            copy = int(np.flatnonzero(silent)[0])
            what = f"the environment of {self.tasks[copy]!r} (copy {copy}, {int(self._steps[copy])} steps)"
            keys = sorted(self._info_keys)
            raise ConfigError(unreported(what, self._success_readers, self._success_keys, keys), key="env.success_key")

    def _view(self, states_B: np.ndarray, drawn_B: BoolArray | None = None) -> np.ndarray:
        """(B, ...) what a policy observes of all copies as they stand, with these observations of the environment.

        Frames of `ObservationSpec` are of the copies `drawn_B`; None: of all.
        """
        spec = self._spec
        masks = {c.name: states_B[c.name] for c in self.own_columns if c.kind == "mask"}
        if spec is None and not self._pixels:
            return states_B
        if spec is None:
            pictures = self._see(range(self.num_envs))[0]
            return columns_as_rows({spaces.PIXELS: pictures, **masks}) if masks else pictures
        columns: dict[str, np.ndarray] = {**masks}
        if spec.states:
            columns["states"] = spaces.states_of(states_B, self.own_columns)
        if spec.proprioception:
            columns["proprioception"] = spaces.states_of(states_B, self.own_columns)[:, list(self.proprioception)]
        if spec.task:
            columns["task"] = np.array(self.tasks, dtype=self._words)
        if spec.frames is not None:
            which = np.arange(self.num_envs) if drawn_B is None else np.flatnonzero(drawn_B)
            frames = np.zeros((self.num_envs, spec.cameras, *spec.frames, 3), dtype=np.uint8)
            for camera, pictures in enumerate(self._see(which, spec.cameras)):
                for i, picture in zip(which, pictures, strict=True):
                    frames[i, camera] = resized(picture, spec.frames, padded=spec.padded)
            columns["frames"] = frames if spec.cameras > 1 else frames[:, 0]
        return columns_as_rows(columns)

    def _see(self, copies: Sequence[int] | IntArray, cameras: int = 1) -> list[np.ndarray]:
        """(N, H, W, 3) pictures of copies as they stand, by each of the first cameras."""
        assert self.eye is not None
        if not len(copies):
            return [np.empty((0, *self.eye.size, 3), dtype=np.uint8)]
        looks = self._look(np.isin(np.arange(self.num_envs), copies))
        pictures = self.render([looks[int(i)] for i in copies])
        for i, picture in zip(copies, pictures, strict=True):
            if not isinstance(looks[int(i)], Drawn):
                self._drawn[int(i)] = Drawn(looks[int(i)], picture)
        return [pictures, *(self.render(list(looks.values()), camera) for camera in self.cameras[1:cameras])]

    def _captured(self, wanted: BoolArray) -> dict[int, Any]:
        """Captured looks, by copy; None for each without `takes_pictures`."""
        return self._look(wanted) if self.takes_pictures else dict.fromkeys(np.flatnonzero(wanted).tolist())

    def _look(self, wanted: BoolArray) -> dict[int, Any]:
        """By copy, in order; what is drawn already is not looked at again."""
        copies = [] if self.eye is None else np.flatnonzero(wanted).tolist()
        left = [i for i in copies if i not in self._drawn]
        new = dict(zip(left, looks_at(self.eye, left), strict=True)) if self.eye is not None and left else {}
        return {i: new[i] if i in new else self._drawn[i] for i in copies}

    def _begun_finite(self, shown: np.ndarray, info: Mapping[str, Any], begun_B: BoolArray) -> BoolArray:
        """(B,) whose observations are finite, after a reset of the copies `begun_B`."""
        found = self._count_outside(info, shown, begun_B)
        return found & ~not_finite_in(info, self.num_envs)

    def _count_outside(self, info: Mapping[str, Any], shown: np.ndarray, new_B: BoolArray) -> BoolArray:
        """Count what is outside of its space, of arrays in the copies `new_B`; (B,) whose arrays are finite."""
        finite, marks = self._judged(shown)
        here = {key: np.where(new_B, values, np.array(None)) for key, values in marks.items()}
        self._outside.take(with_marks(info, here) if marks else info)
        return finite

    def _judged(self, shown: np.ndarray) -> tuple[BoolArray, dict[str, np.ndarray]]:
        """(B,) which arrays are finite, and marks; what has several parts was judged where it was put together."""
        return (finite_rows(shown), {}) if self._declared is None else self._declared(shown, len(shown))

    def _failures(
        self,
        arrived: np.ndarray,
        seen: np.ndarray,
        rewards: np.ndarray,
        actions: np.ndarray,
        info: Mapping[str, Any],
        inside: BoolArray,
    ) -> dict[int, Failure]:
        """Copies whose simulator broke in a step; in this process, those with numbers that are not finite.

        Such a copy keeps its last observation.

        Args:
            arrived: observations after the actions.
            seen: what copies show now; of another episode than `arrived` in the copies `inside`.
            rewards: of the step.
            actions: that were taken.
            info: of the step.
            inside: (B,) copies that have begun another episode within the step; their marks are in `final_info`.
        """
        finite = self._count_outside(info, seen, np.ones_like(inside))
        if inside.any():
            finite = self._count_outside(info.get("final_info", {}), arrived, inside)
        if hasattr(self.env, "lost_episodes"):
            found = self._lost()
        else:
            parts = not_finite_parts(info, self.num_envs)
            if inside.any():
                parts = np.where(inside, not_finite_parts(info.get("final_info", {}), self.num_envs), parts)
            wrong = ~(finite & (parts == "") & finite_rows(rewards))
            arrived[wrong] = self._observations[wrong]
            bad = np.flatnonzero(wrong & ~self._resetting).tolist()
            found = {i: Failure(NON_FINITE.reason, str(parts[i]) or NON_FINITE.detail) for i in bad}
        return {i: in_step(why, self._steps[i], self.tasks[i], actions[i]) for i, why in found.items()}

    def _lost(self) -> dict[int, Failure]:
        """Copies whose process broke since this was asked last."""
        return getattr(self.env, "lost_episodes", dict)()

    def _look_after(self, wanted: BoolArray, ended: BoolArray, info: dict[str, Any]) -> dict[int, Any]:
        """Looks after the action; a SAME_STEP environment has moved on, so its terminal look comes with the info."""
        if self.mode is not AutoresetMode.SAME_STEP or not self.takes_pictures:
            return self._captured(wanted)
        looks = self._captured(wanted & ~ended)
        for i in np.flatnonzero(wanted & ended):
            kept = info.get("final_info", {}).get("terminal_frame")
            if self.eye is not None and kept is None:
                raise ConfigError(
                    "this environment resets within the step, so its terminal picture is gone: make it with "
                    "autoreset disabled, or wrap each copy in guerdon.worlds.gymnasium_env.KeepTerminalFrame"
                )
            if kept is not None:
                looks[int(i)] = kept[i]
        return looks

    def _begin_next(
        self, actions: np.ndarray, done: BoolArray, failed: BoolArray, seen: np.ndarray, info: Mapping[str, Any]
    ) -> BoolArray:
        """Account for ended episodes, reset them where that is ours to do; return which copies are fresh."""
        if self.exact_resume:
            self._past.add(actions)
        self._observations = seen
        done = done | failed
        if done.any():
            again = failed & (self._tried < self._tries)
            self._tried = np.where(again, self._tried + 1, np.where(done, 0, self._tried))
            self._episode += done & ~again
            if self._playing is not None:
                self._playing.begin(done & ~again, self._episode)
            self._resets.skipped[done & ~again] = 0
            self._steps[done] = 0
            self._past.forget(done)
        begun, renewed = done, done
        if self.mode is AutoresetMode.NEXT_STEP:
            begun = self._resetting | failed
            self._resetting = done & ~failed
        if self.mode is not AutoresetMode.DISABLED:  # but for those that broke, or began with numbers not finite
            bad = begun & ~failed & ~(finite_rows(seen) & ~not_finite_in(info, self.num_envs))
            for i in np.flatnonzero(bad).tolist():
                self._resets.failed(i, Failure(NON_FINITE.reason, "an observation after a reset of its own"))
            renewed = failed | bad
        if renewed.any():
            self._reset_again(renewed)
        return begun


def _check_autoreset(mode: AutoresetMode, *, pixels: bool, own_ends: bool) -> None:
    """Refuse pictures as observations, and ends of guerdon's own, in environments that reset when they should not."""
    if pixels and mode is AutoresetMode.SAME_STEP:
        raise ConfigError.about("env.observation", "pixels needs autoreset_mode disabled or next_step")
    if own_ends and mode is not AutoresetMode.DISABLED:
        raise ConfigError.about(
            "env.end_on_success",
            "and a time limit of guerdon's own need an environment whose autoreset is "
            f"disabled; this one uses {mode.value}. Set the limit where the environment is made.",
        )
