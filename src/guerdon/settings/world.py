"""The `env` section: what the policy acts in, how it looks and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AliasChoices, Field, field_validator, model_validator

from guerdon.config.registry import Registry
from guerdon.errors import ConfigError
from guerdon.settings.base import PARAMS, SET, Because, ByName, FolderName, Named, Settings, only_with, refuse
from guerdon.settings.gymnasium_ids import known_id, time_limit

WORLDS = Registry(
    "world", "guerdon.worlds",
    {
        "metaworld": "guerdon.worlds.build:metaworld",
        "libero": "guerdon.worlds.build:libero",
        "maniskill": "guerdon.worlds.build:maniskill",
        "gymnasium": "guerdon.worlds.build:gymnasium_id",
    },
    ("task", "num_envs", "seed", "max_episode_steps", "frame_size"),
)  # fmt: skip

GUARD = 27_000
"""Steps after which an episode is cut where nothing limits it and no episode has ended by itself."""


class DataCollectionSettings(Settings):
    """`env.data_collection`: keep episodes while a policy trains (warm-up and collection in one go)."""

    enabled: bool = Field(False, description="keep episodes")
    save_dir: str | None = Field(None, description="receives them, as a LeRobot data set")
    mode: Literal["train", "eval", "all"] = Field("train", description="of training, of evaluation, or both")
    only_success: bool = Field(False, description="keep successful episodes only")
    sample_rate_success: float = Field(1.0, ge=0, le=1, description="share of successful episodes to keep")
    sample_rate_fail: float = Field(0.1, ge=0, le=1, description="share of failed episodes to keep; unknown: all")
    frame_every: int = Field(5, ge=1, description="keep every k-th row of an episode and its last")

    @model_validator(mode="after")
    def _has_a_place(self) -> DataCollectionSettings:
        if self.enabled and not self.save_dir:
            raise ConfigError(
                "data_collection.enabled needs data_collection.save_dir: where should episodes go?", key="enabled"
            )
        return self


_CURRICULUM = {"use_curriculum": Because(True, "without use_curriculum: true")}
_OF_STATES = _CURRICULUM | {"curriculum_over": ("states", "both")}


class EnvSettings(Settings):
    """What all worlds of `env` share: a task in `num_envs` copies."""

    stored = True

    task: FolderName = Field(description="name of the task; of gymnasium: an id, or module:Class")
    task_ids: tuple[str, ...] | tuple[int, ...] | None = Field(
        None,
        description="several tasks with the same actions instead of one, by name: episodes play them in turn, and "
        "observations end with which it is (one-hot, as in Meta-World's MT10)",
    )
    task_text: str | None = Field(None, description="the task in words; Meta-World tasks have one")
    num_envs: int = Field(8, ge=1, le=2**16, description="copies stepped together")
    max_episode_steps: int | None = Field(None, ge=1, description="time limit of an episode")
    native_reward: Literal["sparse", "dense"] = Field(
        "sparse",
        description="sparse: 1 at every step that the environment reports as a success, else 0, and refused where it "
        "reports none; dense: the environment's own",
    )
    end_on_success: bool = Field(
        False,
        description="end the episode at true success; off, so that no ground truth leaks into a learned reward",
    )
    observation: Literal["state", "pixels"] = Field("state", description="what the policy sees")
    vectorization: Literal["sync", "async"] = Field(
        "sync",
        description="copies in this process, or in processes of their own: one that dies, hangs or gives numbers that "
        "are not finite is replaced, and only its episode is lost (docs/simulators.md)",
    )
    num_envs_per_process: int = only_with(
        1, ge=1, vectorization="async", description="copies in each process; they break together"
    )
    step_timeout: float = only_with(
        60.0, gt=0, vectorization="async", description="seconds after which a simulator that steps hangs"
    )
    reset_timeout: float = only_with(
        300.0,
        gt=0,
        vectorization="async",
        description="the same for one that starts, begins an episode or draws; to draw again after that it has "
        "step_timeout",
    )
    frame_size: tuple[int, int] = Field((64, 64), description="height and width of rendered frames")
    intervene_after: int | None = Field(
        None,
        ge=1,
        description="sac, dqn: a scripted expert takes over in training after so many steps without a new best reward",
    )
    intervene_steps: int = only_with(25, ge=1, intervene_after=SET, description="steps that it takes then")
    data_collection: DataCollectionSettings = Field(
        DataCollectionSettings(), description="keep episodes while a policy trains"
    )
    use_curriculum: bool = Field(
        False,
        description="draw the starts of training episodes, their tasks, or both by true success so far "
        "(docs/curriculum.md); evaluations play all alike",
    )
    curriculum_over: Literal["states", "tasks", "both"] = only_with(
        "states", **_CURRICULUM, description="what is drawn: starts of a task, tasks of task_ids, or both"
    )
    curriculum_states: int = only_with(
        50, ge=2, **_OF_STATES, description="starts of each task: what resets with the seeds 0, 1, ... give"
    )
    curriculum_temp: float = only_with(
        1.0, gt=0, **_OF_STATES, description="weight of a start (1 / distance of its success from 0.5) ^ (1 / temp)"
    )
    curriculum_min_prob: float = only_with(
        0.0, ge=0, le=1, **_OF_STATES, description="every start has at least this share of an equal chance"
    )
    one_hot: ClassVar[bool] = True  # whether observations of several tasks end with which it is

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks, as logs call them."""
        return (self.task,) if self.task_ids is None else tuple(str(task) for task in self.task_ids)

    @property
    def tasks_change(self) -> bool:
        """Whether a copy plays another task in another episode."""
        return self.task_ids is not None

    def of_task(self, number: int) -> Self:
        """The settings of one of the tasks, in one copy."""
        off = {"task_ids": None, "use_curriculum": False, "task": self.task_names[number]}
        return self.model_copy(update={**off, "num_envs": 1, "vectorization": "sync"})

    @model_validator(mode="before")
    @classmethod
    def _first_task(cls, given: Any) -> Any:
        several = given.get("task_ids") if isinstance(given, dict) else None
        return {"task": str(several[0]), **given} if isinstance(several, list | tuple) and several else given

    @model_validator(mode="after")
    def _tasks_differ(self) -> Self:
        if self.task_ids is not None:
            if not self.task_ids or len(set(self.task_ids)) < len(self.task_ids):
                raise ConfigError.about("task_ids", "needs tasks that differ from each other")
            if self.task not in (self.task_names[0], type(self).model_fields["task"].default) or self.task_text:
                raise ConfigError.about("task", "and task_text would do nothing with task_ids; remove them or task_ids")
        return self

    @model_validator(mode="after")
    def _curriculum_is_used(self) -> Self:
        if self.use_curriculum and self.curriculum_over != "states" and len(self.task_ids or ()) < 2:
            raise ConfigError.about(
                "curriculum_over", f": {self.curriculum_over} draws tasks: it needs several in task_ids"
            )
        return self

    @property
    def notes(self) -> list[str]:
        """Lines for the start of a log: what the environment does that the configuration does not say."""
        return []

    @property
    def camera_name(self) -> str:
        """How data sets call the first camera."""
        return str(getattr(self, "cameras", ("corner",))[0])

    def of_copies(self, copies: range) -> Self:
        """The settings of some of the copies, in one process."""
        return self.model_copy(update={"num_envs": len(copies), "vectorization": "sync"})

    def of_shard(self, shard: int, count: int) -> Self:
        """The settings of one of `count` equal parts of the copies."""
        if count == 1:
            return self
        size = self.num_envs // count
        some = self.of_copies(range(shard * size, (shard + 1) * size))
        return some.model_copy(update={"vectorization": self.vectorization})

    @field_validator("frame_size", mode="before")
    @classmethod
    def _square(cls, value: Any) -> Any:
        sizes = [value, value] if isinstance(value, int) else value
        if isinstance(sizes, list | tuple) and any(
            isinstance(s, bool) or (isinstance(s, int) and not 8 <= s <= 8192) for s in sizes
        ):
            raise ValueError("frame_size must be 64 or [48, 64] (height, width), 8 to 8192 pixels")
        return sizes


class MetaWorldSettings(EnvSettings):
    """A Meta-World task."""

    success_key: ClassVar[str | None] = None  # Meta-World reports `success` at every step
    type: Literal["metaworld"] = Field("metaworld", description="a Meta-World task")
    task: FolderName = Field("window-close", description="name of the task")
    max_episode_steps: int = Field(200, ge=1, description="time limit of an episode")
    camera: str = Field("corner", description="Meta-World camera that rendered frames come from")
    render_workers: int = Field(0, ge=0, description="rendering processes; 0 renders in the run's own")

    @property
    def camera_name(self) -> str:
        """How data sets call the camera."""
        return self.camera

    @model_validator(mode="after")
    def _draws(self) -> Self:
        if self.task_ids is not None:
            refuse({"render_workers"} if self.render_workers else set(), "task_ids")
        if self.vectorization == "async" and self.render_workers:
            raise ConfigError.about(
                "render_workers", "would do nothing with vectorization: async, whose processes draw; remove it"
            )
        return self


class _Protocol(NamedTuple):
    """What the evaluation code of a project does with LIBERO.

    Attributes:
        limits: steps of an episode, by suite.
        num_steps_wait, reset_gripper_open, gripper: the keys of `LiberoSettings`.
        fixtures: LIBERO moves cabinets and stoves by up to 1 cm at a reset. `each`: random numbers are seeded at every
            initial state; `sequence`: once, and counted on.
        fixtures_seed: of these random numbers.
        resets_before: resets of a fresh environment before its first episode.
    """

    limits: dict[str, int]
    num_steps_wait: int
    reset_gripper_open: bool
    gripper: str
    fixtures: Literal["each", "sequence"]
    fixtures_seed: int
    resets_before: int


SUITES = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_10": 10, "libero_90": 90}
"""LIBERO's suites and how many tasks each has."""
_LIMITS = {"libero_spatial": 280, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
PROTOCOLS = {
    "lerobot": _Protocol(_LIMITS, 10, True, "signed", "each", 1000, 1),
    "openvla": _Protocol({**_LIMITS, "libero_spatial": 220}, 10, True, "openvla", "sequence", 0, 0),
    "rlinf": _Protocol(dict.fromkeys(SUITES, 512), 15, False, "openvla", "each", 0, 0),
}
"""How LeRobot 0.6 (`lerobot-eval`), OpenVLA (`run_libero_eval.py`) and RLinf (its OpenVLA-OFT runs) use LIBERO."""


class LiberoSettings(EnvSettings):
    """Tasks of a LIBERO suite."""

    one_hot: ClassVar[bool] = False
    success_key: ClassVar[str | None] = None  # LIBERO's goals are checked at every step
    type: Literal["libero"] = Field("libero", description="tasks of a LIBERO suite")
    task_suite_name: Literal["libero_10", "libero_spatial", "libero_object", "libero_goal", "libero_90"] = Field(
        "libero_10", validation_alias=AliasChoices("task_suite_name", "suite"), description="the suite"
    )
    task: FolderName = Field("0", description="number of the task in its suite, or its name")
    task_ids: tuple[int, ...] | None = Field(
        None,
        description="several tasks instead of one, by number; each gets an equal share of the copies, in order, or "
        "with use_curriculum copies change their tasks",
    )
    task_text: str | None = Field(None, description="the task in words; null: LIBERO's own")
    num_envs: int = Field(
        8,
        ge=1,
        le=2**16,
        validation_alias=AliasChoices("num_envs", "n_rollout_threads"),
        description="copies stepped together",
    )
    num_trials_per_task: int | None = Field(
        None,
        ge=1,
        description="evaluation episodes of each task, rounded up to a multiple of its copies: with "
        "init_states: ordered, its first initial states. Sets runner.eval_episodes, which is of all tasks together",
    )
    protocol: Literal["lerobot", "openvla", "rlinf"] = Field(
        "lerobot",
        description="whose evaluation is followed: gives the keys below their defaults, which runs keep and reports "
        "show (docs/libero.md)",
    )
    max_episode_steps: int = Field(
        520,
        ge=1,
        validation_alias=AliasChoices("max_episode_steps", "max_env_length"),
        description="time limit of an episode after settling; null or 0: the protocol's for the suite",
    )
    num_steps_wait: int = Field(10, ge=0, description="steps without motion before an episode, while objects settle")
    reset_gripper_open: bool = Field(True, description="the gripper opens in these steps")
    gripper: Literal["signed", "openvla"] = Field(
        "signed",
        description="the last number of an action. signed: -1 opens, 1 closes; openvla: above 0.5 opens, below closes",
    )
    init_states: Literal["ordered", "drawn"] = Field(
        "ordered",
        description="which of the 50 initial states an episode gets: the next, or one drawn by the run's seed",
    )
    state: Literal["axis_angle", "quaternion", "full"] = Field(
        "axis_angle",
        description="of observation state: position of the hand, its rotation, both fingers; full: the whole "
        "simulator's positions and velocities too",
    )
    cameras: tuple[str, ...] = Field(
        ("agentview", "robot0_eye_in_hand"),
        min_length=1,
        description="LIBERO cameras; all are recorded, reward models and policies see the first",
    )
    image_flip: Literal["height_width", "height"] = Field(
        "height_width",
        description="of LIBERO's own pictures, which are upside down. height_width: upright and mirrored, as the "
        "policies of all three protocols know them; height: upright, left is left",
    )
    fast_rendering: bool = Field(
        True, description="without shadows and multisampling; false: pixel for pixel LIBERO's own pictures"
    )
    lite_physics: bool = Field(
        False,
        description="solve forces once per physics step instead of three times, as robosuite 1.5 does by default: a "
        "fifth faster; positions differ from LIBERO's own from the seventh digit on at first",
    )
    frame_size: tuple[int, int] = Field((256, 256), description="height and width of rendered frames")

    @property
    def tasks_change(self) -> bool:
        """Whether a copy plays another task in another episode."""
        return self.task_ids is not None and self.use_curriculum

    def of_copies(self, copies: range) -> Self:
        """The settings of some of the copies, in one process."""
        if self.task_ids is None or self.tasks_change:
            return super().of_copies(copies)
        each = self.num_envs // len(self.task_ids)
        tasks = tuple(dict.fromkeys(self.task_ids[i // each] for i in copies))
        return super().of_copies(copies).model_copy(update={"task_ids": tasks})

    @model_validator(mode="before")
    @classmethod
    def _by_protocol(cls, given: Any) -> Any:
        """Keys under one name, and the protocol's values for those that are not given."""
        if not isinstance(given, dict):
            return given
        found = dict(given)
        for name, other in (
            ("task_suite_name", "suite"),
            ("max_episode_steps", "max_env_length"),
            ("num_envs", "n_rollout_threads"),
        ):
            if other in found:
                if name in found:
                    raise ConfigError.about(name, f"and {other} are one key; give one of them")
                found[name] = found.pop(other)
        protocol = PROTOCOLS.get(str(found.get("protocol", "lerobot")))
        suite = str(found.get("task_suite_name", "libero_10"))
        if protocol is None or suite not in SUITES:
            return found  # pydantic says which values there are
        if not found.get("max_episode_steps", 0):
            found["max_episode_steps"] = protocol.limits[suite]
        names = ("num_steps_wait", "reset_gripper_open", "gripper")
        return {**{name: getattr(protocol, name) for name in names}, **found}

    @field_validator("task", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _tasks_exist(self) -> Self:
        count = SUITES[self.task_suite_name]
        wrong = [task for task in self.task_ids or () if not 0 <= task < count]
        if self.task.isdecimal() and int(self.task) >= count:
            wrong.append(int(self.task))
        if wrong:
            raise ConfigError(
                f"{self.task_suite_name} has tasks 0 to {count - 1}, not {', '.join(map(str, wrong))}", key="task_ids"
            )
        if self.task_ids is not None and not self.tasks_change:
            if self.num_envs % len(self.task_ids):
                raise ConfigError(f"{len(self.task_ids)} task_ids need a multiple of as many num_envs", key="task_ids")
            each, together = self.num_envs // len(self.task_ids), self.num_envs_per_process
            if self.vectorization == "async" and each % together and together % each:
                raise ConfigError(
                    f"each of the task_ids has {each} copies, so num_envs_per_process {together} mixes them unevenly; "
                    f"it must divide {each}, or be a multiple of it",
                    key="num_envs_per_process",
                )
        return self


class ManiSkillSettings(EnvSettings):
    """A ManiSkill 3 task on the CPU."""

    success_key: ClassVar[str | None] = None  # ManiSkill reports `success` at every step, where the task has one
    type: Literal["maniskill"] = Field("maniskill", description="a ManiSkill 3 task")
    task: FolderName = Field("PickCube-v1", description="id of the task, as ManiSkill registers it")
    task_text: str | None = Field(
        None, description="the task in words; null: guerdon's table (docs/maniskill.md), else the id in words"
    )
    max_episode_steps: int | None = Field(
        None, ge=1, description="time limit of an episode; null: what ManiSkill registers for the task, 50 in most"
    )
    native_reward: Literal["sparse", "dense", "normalized_dense"] = Field(  # type: ignore[assignment]
        "sparse",
        description="sparse: 1 at every step at which the task has succeeded, else 0; dense: ManiSkill's shaped "
        "reward; normalized_dense: the same divided by its maximum",
    )
    control_mode: str = Field(
        "pd_joint_delta_pos",
        description="what an action means, by ManiSkill's name: pd_joint_delta_pos, pd_ee_delta_pose, pd_joint_pos",
    )
    cameras: tuple[str, ...] = Field(
        ("render_camera",),
        min_length=1,
        description="ManiSkill cameras; all are recorded, reward models and policies see the first. render_camera "
        "shows goals, sensors such as base_camera hide those that ManiSkill hides (docs/maniskill.md)",
    )
    frame_size: tuple[int, int] = Field((128, 128), description="height and width of rendered frames")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="passed to the task, such as {robot_uids: xarm6_robotiq}"
    )

    @model_validator(mode="after")
    def _kwargs_are_free(self) -> Self:
        _refuse_taken(_MANISKILL_KEYS, self.kwargs)
        return self


_MANISKILL_KEYS = {
    "num_envs": "set env.num_envs",
    "obs_mode": "set env.observation",
    "reward_mode": "set env.native_reward",
    "control_mode": "set env.control_mode",
    "max_episode_steps": "set env.max_episode_steps",
    "sensor_configs": "set env.frame_size and env.cameras",
    "human_render_camera_configs": "set env.frame_size and env.cameras",
    "render_mode": "set env.cameras",
    "sim_backend": "only physx_cpu",
    "render_backend": "only cpu",
}
"""Arguments of a ManiSkill task that have a key of their own, or one value."""


def _refuse_taken(keys: Mapping[str, str], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments of an environment that `env` gives it by a key of its own."""
    if taken := sorted(keys.keys() & kwargs.keys()):
        hints = "; ".join(f"{key}: {keys[key]}" for key in taken)
        raise ConfigError.about("kwargs", f"cannot have {', '.join(taken)} ({hints})")


class _ReportsSuccess(EnvSettings):
    """Worlds whose `info` reports success under a key that may be named."""

    left_out: ClassVar[frozenset[str]] = frozenset({"show_as"})  # so that earlier folders resume
    success_key: str | None = Field(
        None,
        description="key of Gymnasium's `info` that reports true success (a bool, or a number above 0); null: "
        "`success`, `is_success` or `next.success`. Where an episode has no such key, its success is unknown",
    )
    info_keys: dict[Literal["is_intervention", "teleop_action"], str] = Field(
        default_factory=dict, description="other names of these keys of `info`: that somebody else acted, and how"
    )
    frame_stack: int = Field(
        1, ge=1, le=64,
        description="moments that are observed at once, the newest last: pictures as further channels, numbers side by "
        "side; at the start of an episode the first is repeated. Of the environment's own observations",
    )  # fmt: skip

    show_as: dict[str, Literal["numbers", "picture"]] = Field(
        default_factory=dict,
        description="what arrays of observations are, by key (`observation` where there are no keys), where their "
        "spaces are read otherwise; the start of a run says how (docs/environments.md)",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.info_keys and self.intervene_after is not None:
            raise ConfigError.about("info_keys", "and intervene_after name two who intervene; remove one of them")
        if self.frame_stack > 1 and self.observation == "pixels":
            raise ConfigError.about(
                "frame_stack",
                "is of the environment's own observations, and observation: pixels shows rendered ones; "
                "register the environment with gymnasium.wrappers.AddRenderObservation instead",
            )
        return self


_GYMNASIUM_KEYS = {"max_episode_steps": "set env.max_episode_steps", "render_mode": "only rgb_array"}
"""Arguments of `gymnasium.make` that have a key of their own, or one value."""


_ATARI_KEYS = {"frameskip": "atari acts at every fourth frame", "obs_type": "atari shows pictures of 84 x 84"}
"""Arguments of a game of ALE that `env.atari` decides."""


class GymnasiumSettings(_ReportsSuccess):
    """Any Gymnasium id, or a `gymnasium.Env` class in a module."""

    type: Literal["gymnasium"] = Field("gymnasium", description="any Gymnasium id, or an environment class")
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        description="time limit of an episode; null: the one that the environment is registered with; where it "
        "has none, 27,000 until an episode has ended by itself",
    )
    autoreset_mode: Literal["disabled", "next_step", "same_step"] = Field(
        "disabled", description="Gymnasium's convention; only disabled resumes bit-exactly"
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="passed to gymnasium.make")
    atari: bool = Field(
        False,
        description="a game of ALE as usual: pictures of 84 x 84 of every fourth frame, frame_stack 4, FIRE where a "
        "game waits for it; the policy learns from the signs of rewards, and as if a lost life ended the game, which "
        "goes on. Returns are those of whole games (docs/environments.md)",
    )
    left_out: ClassVar[frozenset[str]] = frozenset({"show_as", "atari"})  # so that earlier folders resume

    @model_validator(mode="before")
    @classmethod
    def _atari_stacks(cls, given: Any) -> Any:
        """With `atari` four moments, where nothing else is said."""
        if isinstance(given, dict) and given.get("atari") is True:
            return {"frame_stack": 4, **given}
        return given

    @model_validator(mode="before")
    @classmethod
    def _registered(cls, given: Any) -> Any:
        """Ids with their packages; the registered limit, where all tasks have the same one: else each keeps its own."""
        if not isinstance(given, dict):
            return given
        if isinstance(task := given.get("task"), str):
            given = {**given, "task": known_id(task)}
        if isinstance(ids := given.get("task_ids"), list | tuple):
            given = {**given, "task_ids": [known_id(task) if isinstance(task, str) else task for task in ids]}
        if given.get("max_episode_steps") is not None:
            return given
        tasks = given.get("task_ids") or [given.get("task")]
        if not isinstance(tasks, list | tuple) or not all(isinstance(task, str) for task in tasks):
            return given
        try:
            limits = {time_limit(task) for task in tasks}
        except LookupError:  # making the environment says which ids there are
            return given
        return {**given, "max_episode_steps": limits.pop()} if len(limits) == 1 else given

    @property
    def notes(self) -> list[str]:
        """A line where there is no time limit."""
        try:
            unlimited = [task for task in self.task_names if time_limit(task) is None]
        except LookupError:
            return []
        if not unlimited or self.max_episode_steps is not None:
            return []
        return [
            f"[env] {', '.join(unlimited)}: registered without a time limit; where the environment ends none of its "
            f"episodes by itself, they are cut after {GUARD:,} steps (env.max_episode_steps)"
        ]

    @model_validator(mode="after")
    def _fits_gymnasium(self) -> Self:
        _refuse_taken(_GYMNASIUM_KEYS, self.kwargs)
        if self.atari:
            self._check_atari()
        if self.autoreset_mode != "disabled" and self.end_on_success:
            raise ConfigError.about("end_on_success", "needs autoreset_mode: disabled")
        used = [key for key in ("use_curriculum", "task_ids", "intervene_after") if getattr(self, key)]
        if self.autoreset_mode != "disabled" and used:
            names = " and ".join(used)
            raise ConfigError(f"{names} decides how episodes begin, which needs autoreset_mode: disabled", key=used[0])
        if self.autoreset_mode != "disabled" and self.vectorization == "async":
            raise ConfigError.about("vectorization", "async begins episodes anew, which needs autoreset_mode: disabled")
        return self

    def _check_atari(self) -> None:
        """Refuse environments that are no games of ALE, and keys that would do nothing with `atari`."""
        for task in self.task_names:
            if not task.startswith("ale_py:"):
                raise ConfigError.about("atari", f"is about games of ALE, such as ALE/Pong-v5, and not about {task}")
        _refuse_taken(_ATARI_KEYS, self.kwargs)
        if self.native_reward != "dense":
            raise ConfigError.about(
                "native_reward", "must be dense with atari: games of ALE report no success, only points"
            )


class OwnWorldSettings(_ReportsSuccess):
    """A world that a user brings."""

    type: Annotated[str, Named(WORLDS)] = Field(description="a factory of your own")
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        description="time limit of an episode; null: that of the environment's `gymnasium.wrappers.TimeLimit`; "
        "where there is none, 27,000 until an episode has ended by itself",
    )
    params: dict[str, Any] = PARAMS

    @model_validator(mode="after")
    def _checked(self) -> Self:
        WORLDS.check(self.type, self.params)
        return self


WorldSettings = Annotated[
    MetaWorldSettings | LiberoSettings | ManiSkillSettings | GymnasiumSettings | OwnWorldSettings,
    ByName("type", "metaworld"),
]
"""`env`: what the policy acts in."""
