"""How episodes begin and break: the seed of each reset, the next seed where one fails, and what failed where.

A reset fails where the environment raises or shows numbers that are not finite. The failure is kept, with its seed, for
the one who counts; copies of one group, which begin alike, take the next seed together.

    resets = Resets(env, seed=0)
    observations = resets.begin(None, episodes_B)
    resets.take_failures()          # [(3, Failure("simulator_raised", "reset of Door-v0 with seed 77 raised ..."))]
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import PassiveEnvChecker

from guerdon.errors import SimulatorError, boundary, place_of, said_by
from guerdon.types import BoolArray, Failure, IntArray
from guerdon.worlds.returned import LARGEST, CopyJudge, not_finite_in
from guerdon.worlds.starts import Playing

NON_FINITE = Failure("simulator_non_finite", "an observation or a reward")
_log = logging.getLogger(__name__)
SEEDS = 10  # tried for one episode, before the world gives up
_SHOWN = 32  # numbers of an action in a message
_OF_VECTORS = ("final_obs", "final_info")  # keys of info with a meaning in vector environments alone


class BrokenCopyError(SimulatorError):
    """A copy of an environment raised, or cannot begin an episode.

    Attributes:
        failures: copy to why.
    """

    def __init__(self, failures: Mapping[int, Failure]) -> None:
        super().__init__("; ".join(why.detail or why.reason for why in failures.values()))
        self.failures = dict(failures)


class CopyEnv(gymnasium.Wrapper):  # type: ignore[misc]
    """One copy of an environment: what it raises names it, the step and the action, or the seed of the reset.

    A Box of actions is flattened to shape (A,), and keys of `info` are text (`by_name`). Observations are judged as
    they were returned (`worlds.returned`).

    Args:
        env: the copy.
        index: its number.
        name: for messages.
    """

    def __init__(self, env: gymnasium.Env, index: int, name: str) -> None:
        super().__init__(env)
        self._index, self._name, self._steps = index, name, 0
        self._shape = env.action_space.shape if isinstance(env.action_space, gymnasium.spaces.Box) else None
        self._shown = env.observation_space.shape if isinstance(env.observation_space, gymnasium.spaces.Box) else None
        self._judge = CopyJudge(env.observation_space)
        if self._shape is not None:
            self.action_space = gymnasium.spaces.flatten_space(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode."""
        self._steps = 0
        try:
            with boundary(SimulatorError, "reset"):
                observation, info = self.env.reset(seed=seed, options=options)
                self._check(observation)
                observation, marks = self._judge(observation)
                return observation, by_name(info, _OF_VECTORS) | marks
        except SimulatorError as error:
            inner = self.env
            while isinstance(inner, gymnasium.Wrapper):
                if isinstance(inner, PassiveEnvChecker):
                    inner.checked_reset = False  # what it remembers of its first reset is missing, and `step` needs it
                inner = inner.env
            raise self._broken(error, f"reset of {self._name} with seed {seed}") from error.__cause__

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step."""
        self._steps += 1
        try:
            with boundary(SimulatorError, "step"):
                shaped = action if self._shape is None else np.reshape(action, self._shape)
                observation, reward, terminated, truncated, info = self.env.step(shaped)
                self._check(observation)
                observation, marks = self._judge(observation)
                paid = reward.item() if isinstance(reward, np.ndarray) else reward  # an array of one number
                return observation, paid, terminated, truncated, by_name(info, _OF_VECTORS) | marks
        except SimulatorError as error:
            what = f"step {self._steps} of {self._name} with action {listed(action)}"
            raise self._broken(error, what) from error.__cause__

    def close(self) -> None:
        """Free it."""
        closed(self.env, self._name)

    def _check(self, observation: Any) -> None:
        if self._shown is not None and np.shape(observation) != self._shown:
            raise ValueError(
                f"the observation has shape {np.shape(observation)}, and observation_space says {self._shown}"
            )

    def _broken(self, error: SimulatorError, what: str) -> SimulatorError:
        said = raised_by(error)
        return BrokenCopyError({self._index: Failure("simulator_raised", f"{what} {said}")}) if said else error


class CopiesVectorEnv(SyncVectorEnv):  # type: ignore[misc]
    """Copies in one process; each value of `info` is kept as its copy reports it, in an array of objects.

    Gymnasium's arrays have the type and shape of the first copy's value, which those of other copies may not fit.
    """

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        for key, value in env_info.items():
            if key[:1] == "_" and (key[1:] in env_info or key[1:] in vector_infos):
                continue  # by that name Gymnasium says which copies have the other
            if key not in vector_infos:
                vector_infos[key] = {} if key == "final_info" else np.full(self.num_envs, None)
                vector_infos[f"_{key}"] = np.zeros(self.num_envs, np.bool_)
            if key == "final_info":
                self._add_info(vector_infos[key], value, env_num)
            else:
                vector_infos[key][env_num] = value
            vector_infos[f"_{key}"][env_num] = True
        return vector_infos


def by_name(info: Mapping[Any, Any], without: Sequence[str] = ()) -> dict[str, Any]:
    """An info with text as keys: of a member of an Enum its value; others, and `without`, are left out."""
    named = ((key.value if isinstance(key, Enum) else key, value) for key, value in info.items())
    return {key: value for key, value in named if isinstance(key, str) and key not in without}


def closed(env: gymnasium.Env | gymnasium.vector.VectorEnv, name: str) -> None:
    """Close an environment; what it raises is logged as a warning."""
    try:
        with boundary(SimulatorError, f"close of {name}"):
            env.close()
    except SimulatorError as error:
        _log.warning("%s", error)


def raised_by(error: SimulatorError) -> str:
    """What an error of `boundary` says of the exception in it, and where that came from; empty of other errors."""
    cause = error.__cause__
    if cause is None or isinstance(error, BrokenCopyError):
        return ""
    if isinstance(cause, SystemExit):
        return f"called sys.exit({cause.code!r})"
    where = place_of(cause)
    return f"raised {said_by(cause)}" + (f" ({where})" if where else "")


def listed(action: Any) -> str:
    """Numbers of an action in one line."""
    numbers = np.asarray(action).reshape(-1)
    more = f", ... {len(numbers)} in all" if len(numbers) > _SHOWN else ""
    return f"[{', '.join(f'{x:.4g}' for x in numbers[:_SHOWN].tolist())}{more}]"


def step_all(
    env: gymnasium.vector.VectorEnv, actions_B_A: np.ndarray, taken_B: IntArray, tasks: Sequence[str]
) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """One step of all copies.

    Args:
        env: the copies.
        actions_B_A: what they take.
        taken_B: actions that each took before in its episode, for messages.
        tasks: of the copies, for messages.

    Raises:
        SimulatorError: it raised; the message names the copy, or all of them, with their steps and actions.
    """
    try:
        with boundary(SimulatorError, "step"):
            observations, *found, info = env.step(actions_B_A.copy())  # which environments may change
            return as_declared(observations, env), *found, by_name(info)
    except SimulatorError as error:
        said = raised_by(error)
        if not said and not isinstance(error, BrokenCopyError):
            raise
        copies = "; ".join(_step(*one) for one in zip(taken_B, tasks, actions_B_A, strict=True))
        raise SimulatorError(
            f"the environment broke: {f'{copies} {said}' if said else error}; env.vectorization=async replaces a "
            "simulator that breaks, and continues"
        ) from error.__cause__


def as_declared(observations: Any, env: gymnasium.vector.VectorEnv) -> np.ndarray:
    """(B, ...) observations; whole numbers as floats where the space has floats: the next ones may be fractions."""
    found, dtype = np.asarray(observations), env.single_observation_space.dtype
    whole = found.dtype.kind in "iub" and dtype is not None and np.dtype(dtype).kind == "f"
    return found.astype(dtype) if whole else found


def in_step(why: Failure, taken: int, task: str, action_A: np.ndarray) -> Failure:
    """A failure of a copy in a step, with step, task and action where it does not have them yet."""
    if why.detail.startswith(("raised ", "called ")):
        return Failure(why.reason, f"{_step(taken, task, action_A)} {why.detail}")
    without_step = why.reason == NON_FINITE.reason and "after step" not in why.detail
    return Failure(why.reason, f"{why.detail} after {_step(taken, task, action_A)}") if without_step else why


def _step(taken: int, task: str, action_A: np.ndarray) -> str:
    return f"step {taken + 1} of {task!r} with action {listed(action_A)}"


def finite_rows(values_B: np.ndarray) -> BoolArray:
    """(B,) bool, rows of numbers that are finite also as float32; of what is not a float, all."""
    if values_B.dtype.names:
        return np.asarray(np.logical_and.reduce([finite_rows(values_B[name]) for name in values_B.dtype.names]))
    if values_B.dtype.kind != "f":
        return np.ones(len(values_B), dtype=np.bool_)
    finite = np.abs(values_B) <= LARGEST
    return finite if finite.ndim == 1 else np.asarray(finite.reshape(len(values_B), -1).all(axis=1))


class Resets:
    """Begins the episodes of the copies of an environment.

    Attributes:
        seed: of the run.
        skipped: (B,) seeds of each copy's episode with which the reset failed.
        of_some: whether single copies can begin an episode.

    Args:
        env: the copies.
        seed: decides every reset, with the number of the episode.
        group_size: neighbouring copies that begin alike.
        ordered: see `World`.
        playing: see `World`.
        judge: (B,) which observations are finite, of these, the info and the copies that began; None: `finite_rows`.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        *,
        seed: int = 0,
        group_size: int = 1,
        ordered: tuple[int, int] | None = None,
        playing: Playing | None = None,
        judge: Callable[[np.ndarray, Mapping[str, Any], BoolArray], BoolArray] | None = None,
    ) -> None:
        self._env, self.seed, self._group_size = env, seed, group_size
        self._judge = judge or (lambda found, info, _: finite_rows(found) & ~not_finite_in(info, len(found)))
        self._ordered, self._playing = ordered, playing
        self._several = playing is not None and len(playing.starts.texts) > 1
        self.skipped = np.zeros(env.num_envs, dtype=np.int64)
        self._failures: list[tuple[int, Failure]] = []
        mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.of_some = mode is AutoresetMode.DISABLED or isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)

    def episode_seed(self, index: int, episode: int) -> int:
        """The seed of an episode of a copy. Copies of one group share it."""
        group = index // self._group_size
        skipped = int(self.skipped[index])
        number = None if self._playing is None else self._playing.number(index)
        if number is not None:
            return number + skipped
        if self._ordered is not None and self._playing is None:
            first, each = self._ordered
            groups = each // self._group_size
            return (first + index) % each // self._group_size + groups * episode + skipped
        entropy = np.random.SeedSequence([self.seed, group, episode, *([skipped] if skipped else [])])
        return int(entropy.generate_state(1, dtype=np.uint32)[0] >> 1)

    def begin(self, mask_B: BoolArray | None, episodes_B: IntArray) -> np.ndarray:
        """(B, ...) what all copies observe after some began their episodes with these numbers; None: all did.

        Raises:
            SimulatorError: a copy cannot begin an episode with any of `SEEDS` seeds.
        """
        waiting = np.ones(len(episodes_B), dtype=np.bool_) if mask_B is None else mask_B
        if mask_B is not None and not self.of_some:
            raise SimulatorError("this environment resets itself, so a copy of it that broke cannot begin anew")
        while True:
            seeds = [self.episode_seed(i, int(episodes_B[i])) if waiting[i] else None for i in range(len(waiting))]
            options: dict[str, Any] = {} if mask_B is None else {"reset_mask": mask_B}
            if self._several and self._playing is not None:
                options["tasks"] = self._playing.tasks
            observations, failures = self._reset(seeds, options, waiting)
            if not failures:
                return observations
            self._skip(failures, seeds, waiting)

    def failed(self, index: int, why: Failure) -> None:
        """Take down a reset that failed."""
        self._failures.append((index, why))

    def take_failures(self) -> tuple[tuple[int, Failure], ...]:
        """Copy and reason of the resets that failed since the last call."""
        found, self._failures = tuple(self._failures), []
        return found

    def _reset(
        self, seeds: list[int | None], options: dict[str, Any], waiting: BoolArray
    ) -> tuple[np.ndarray, dict[int, Failure]]:
        """What all copies observe, and which of them failed; all that wait where that cannot be told."""
        try:
            with boundary(SimulatorError, "reset"):
                shown, info = self._env.reset(seed=seeds, options=options or None)
                observations = as_declared(shown, self._env)
                finite = self._judge(observations, info, waiting)
        except BrokenCopyError as error:
            return np.empty(0), error.failures
        except SimulatorError as error:
            said = raised_by(error)
            if not said:
                raise
            return np.empty(0), {
                i: Failure("simulator_raised", f"reset {said}") for i in np.flatnonzero(waiting).tolist()
            }
        bad = np.flatnonzero(waiting & ~finite).tolist()
        return observations, {i: Failure(NON_FINITE.reason, "an observation after a reset") for i in bad}

    def _skip(self, failures: Mapping[int, Failure], seeds: list[int | None], waiting: BoolArray) -> None:
        groups = np.arange(len(waiting)) // self._group_size
        for group in sorted({int(groups[i]) for i in failures}):
            own = waiting & (groups == group)
            self.skipped[own] = self.skipped[own].max() + 1
        for index, why in failures.items():
            detail = why.detail if "with seed" in why.detail else f"{why.detail} with seed {seeds[index]}"
            self.failed(int(index), Failure(why.reason, detail))
            if self.skipped[index] >= SEEDS:
                raise SimulatorError(
                    f"copy {index} cannot begin an episode: resets with {SEEDS} seeds in a row failed, the last: "
                    f"{why.reason} ({detail}); env.vectorization=sync with env.num_envs=1 shows what it prints"
                )


class ActionHistory:
    """The actions of the episodes under way in B copies, from which a checkpoint finds its simulators again.

    It has one array for each step of all copies, since the oldest of these episodes began.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        self._steps: list[np.ndarray] = []
        self._began = np.zeros(num_envs, dtype=np.int64)  # each copy's episode, as a place in `_steps`

    def add(self, actions_B_A: np.ndarray) -> None:
        """A step; the array is kept."""
        self._steps.append(actions_B_A)

    def forget(self, copies_B: BoolArray) -> None:
        """These copies begin an episode."""
        self._began[copies_B] = len(self._steps)
        oldest = int(self._began.min())
        self._began -= oldest
        del self._steps[:oldest]

    def of_copies(self) -> list[np.ndarray]:
        """(T, A) of each copy, T steps into its episode; (0, 1) where that just began."""
        count = len(self._steps)
        return [
            np.array([step[i] for step in self._steps[began:]]) if began < count else np.zeros((0, 1))
            for i, began in enumerate(self._began.tolist())
        ]

    def restore(self, pasts: Sequence[np.ndarray]) -> None:
        """Return to what `of_copies` gave."""
        longest = max(len(past) for past in pasts)
        one = next((past[0] for past in pasts if len(past)), np.zeros(1))
        self._began = np.array([longest - len(past) for past in pasts], dtype=np.int64)
        self._steps = [np.zeros((len(pasts), *one.shape), dtype=one.dtype) for _ in range(longest)]
        for i, past in enumerate(pasts):
            for step, action in zip(self._steps[longest - len(past) :], past, strict=True):
                step[i] = action
