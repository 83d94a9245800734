"""The nouns of guerdon: `Episode`, `Score`, `RewardModel`, and the `Rollout` that flows through RL.

Arrays carry their dimensions in their names: T rows of an episode, B parallel streams of a rollout, H W C an
image, A action size, S state size. This module knows nothing about files, simulators or neural networks.

    episode = Episode(id="0", task="close the window", frames=frames_T_H_W_C, success=success_T)
    score = model.score([episode])[0]      # score.total, or in score.failure why it is missing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
ByteArray = NDArray[np.uint8]
IntArray = NDArray[np.int64]

Metrics = dict[str, float | None]  # numbers for the log by name; None where one is undefined
Message = Mapping[str, Any]  # of a chat, as `guerdon.reading.chats` brings it into one form
Tool = Mapping[str, Any]  # JSON schema of a function that can be called in a chat
Granularity = Literal["step", "total"]
Modality = Literal["image", "state", "text"]
_TASK = 60  # characters of a task where an episode is printed
ALL_FRAMES = 1_000_000
"""`RewardInfo.frames_needed` of a model that looks back to the start of the episode."""


@dataclass(frozen=True, eq=False)
class Episode:
    """What happened: a task in words, T rows, an outcome. Column-oriented and immutable.

    Row t of a robot episode is the moment *after* action t: `actions[t]` led to `frames[t]` and `states[t]`, which
    earned `rewards[t]`. Row 0 is the reset: its action is all zeros and its reward is 0. Columns share the length T.

    Attributes:
        id: unique within its data set.
        task: what was asked for, in words.
        frames: (T, H, W, 3) uint8.
        states: (T, S) float32, the policy's observation.
        actions: (T, A) float32.
        rewards: (T,) float32, the environment's own reward.
        success: (T,) bool, ground truth success at each row.
        texts: T pieces of text.
        outcome: whether the whole episode succeeded; None: unknown.
        meta: where it came from (policy, seed, checkpoint); plain JSON values.
        views: (T, H, W, 3) uint8 of further cameras, by name.
        context: the conversation that `texts` answer, the task in it; empty: the task alone. `tools`: of its functions.
        roles: who wrote each of the `texts`; None: the assistant. `group`: episodes with the same start share a name.
    """

    id: str
    task: str
    frames: ByteArray | None = None
    states: FloatArray | None = None
    actions: FloatArray | None = None
    rewards: FloatArray | None = None
    success: BoolArray | None = None
    texts: tuple[str, ...] | None = None
    outcome: bool | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    views: Mapping[str, ByteArray] = field(default_factory=dict)
    context: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    roles: tuple[str, ...] | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in (self.columns() | dict(self.views)).items()}
        if not lengths.keys() - {"roles"}:
            raise ValueError(f"episode {self.id!r} has no column: give frames, states, actions or texts")
        if len(set(lengths.values())) != 1:
            raise ValueError(f"episode {self.id!r} has columns of different lengths: {lengths}")
        for name, frames in {"frames": self.frames, **self.views}.items():
            if frames is not None and (frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3):
                what = f"{name} must be uint8 of shape (T, H, W, 3), got {frames.dtype} {frames.shape}"
                raise ValueError(f"episode {self.id!r}: {what}")

    def columns(self) -> dict[str, Any]:
        """The per-row columns that are present, by field name."""
        names = ("frames", "states", "actions", "rewards", "success", "texts", "roles")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def __len__(self) -> int:
        return len(next(iter(self.columns().values())))

    def __repr__(self) -> str:
        """One line: what there is, and not the numbers."""
        columns = [_shape_of(name, column) for name, column in (self.columns() | dict(self.views)).items()]
        task = self.task if len(self.task) <= _TASK else self.task[: _TASK - 1] + "…"
        return f"Episode({self.id!r}, {task!r}, T={len(self)}, {', '.join(columns)}, outcome={self.outcome})"

    def __getitem__(self, rows: slice) -> Episode:
        """The same episode with only these rows (views, no copy); the outcome stays."""
        return self._with(lambda column: column[rows])

    def take(self, rows: Sequence[int] | IntArray) -> Episode:
        """The same episode with the rows of these indices, in their order."""
        index = np.asarray(rows, dtype=np.int64)
        return self._with(
            lambda column: tuple(column[i] for i in index) if isinstance(column, tuple) else column[index]
        )

    def _with(self, picked: Callable[[Any], Any]) -> Episode:
        columns = {name: picked(column) for name, column in self.columns().items()}
        return replace(self, **columns, views={name: picked(frames) for name, frames in self.views.items()})


def _shape_of(name: str, column: Any) -> str:
    """A column and the shape of one of its rows: `frames 64x64x3`."""
    sizes = "x".join(map(str, getattr(column, "shape", ())[1:]))
    return f"{name} {sizes}" if sizes else name


@dataclass(frozen=True)
class Failure:
    """Why a measurement is missing.

    Attributes:
        reason: a short stable word to count by, such as `no_frames` or `non_finite`.
        detail: one line for a person.
    """

    reason: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True, eq=False)
class Score:
    """What a reward model measured on one episode: values, or the reason why they are missing.

    Attributes:
        steps: (T,) float32, one finite value per row, or None when the model judges whole episodes only.
        total: one finite value for the episode, or None when the model judges rows only.
        failure: set exactly when both are missing.
        spread: standard deviation over the members of an ensemble, of `total` or the mean of those of `steps`; None
            where there are none.
        criteria: of a judge with one rubric for all, 0 to 1 (last choice) by name of a criterion; None: none.
    """

    steps: FloatArray | None = None
    total: float | None = None
    failure: Failure | None = None
    spread: float | None = None
    criteria: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        measured = self.steps is not None or self.total is not None
        if measured == (self.failure is not None):
            raise ValueError("a Score has values or a Failure, never both and never neither")
        if not all(np.isfinite(values).all() for values in (self.steps, self.total) if values is not None):
            raise ValueError("a Score is never NaN or infinite: return Score(failure=Failure('non_finite'))")

    def __repr__(self) -> str:
        """One line: the range of the values, and not all of them."""
        if self.failure is not None:
            return f"Score(failure={self.failure})"
        parts = []
        if self.steps is not None and len(self.steps):
            low, high, last = self.steps.min(), self.steps.max(), self.steps[-1]
            parts.append(f"T={len(self.steps)}, steps {low:.4g} to {high:.4g}, last {last:.4g}")
        if self.total is not None:
            parts.append(f"total {self.total:.4g}")
        if self.spread is not None:
            parts.append(f"spread {self.spread:.4g}")
        return f"Score({', '.join(parts)})"

    @staticmethod
    def from_values(values_T: NDArray[Any], *, total: float | None = None) -> Score:
        """Per-row values as a Score; values that are not finite make it a `Failure('non_finite')`."""
        steps = np.asarray(values_T, dtype=np.float32)
        if not np.isfinite(steps).all() or (total is not None and not np.isfinite(total)):
            bad = int((~np.isfinite(steps)).sum())
            return Score(failure=Failure("non_finite", f"{bad} of {steps.size} values are not finite"))
        return Score(steps=steps, total=total)


@dataclass(frozen=True)
class RewardInfo:
    """What a reward model promises about its scores.

    Attributes:
        name: how logs and reports call it.
        range: smallest and largest value it can give.
        granularity: `step` (a value per row) or `total` (one per episode).
        modality: kind of data that is scored.
        causal: the value of row t depends on rows up to t only.
        frames_needed: number of trailing frames that a value needs (0: none; `ALL_FRAMES`: all of the episode so far).
        success_threshold: the value above which an episode counts as successful, for classifiers.
        progress_horizon: for progress models that say nearness in time, the environment steps before success at
            which it starts to rise; None where progress is the share of the way.
        compares: a value says how an episode compares with others of its group, and nothing outside of it.
        keys, actions: of the state or pictures that it looks at (none: all); with the action that led there.
        progress: a value says how far the task is, not how likely it is that it succeeded.
        states: the states of the rows are needed, besides their frames.
        camera: feature key of the camera that it was trained on; None: it does not say.
    """

    name: str
    range: tuple[float, float]
    granularity: Granularity = "step"
    modality: Modality = "image"
    causal: bool = True
    frames_needed: int = 1
    success_threshold: float | None = None
    progress_horizon: float | None = None
    compares: bool = False
    keys: tuple[str, ...] = ()
    actions: bool = False
    progress: bool = False
    states: bool = False
    camera: str | None = None


@runtime_checkable
class RewardModel(Protocol):
    """Scores episodes. Guerdon's own models may be called from several threads; others are called one at a time."""

    @property
    def info(self) -> RewardInfo:
        """Range, granularity, modality and needs of this model."""

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order. Never raises for a bad episode: that is a `Failure`."""


@runtime_checkable
class Learnable(Protocol):
    """A reward model that can be trained further, on episodes with a known outcome, while it is in use."""

    def learn(self, episodes: Sequence[Episode]) -> Metrics:
        """Take gradient steps on episodes with a known outcome; returns metrics by name."""

    def save(self, folder: Path) -> None:
        """Write everything that learning changes (weights, optimiser, replay, random state), whole or not at all."""

    def restore(self, folder: Path) -> None:
        """Return to what `save` wrote."""


@dataclass(frozen=True)
class Observes:
    """What a reward model needs to see of every episode, and which rows it wants labelled.

    Attributes:
        every: every so many rows, counted from the start of the episode; 0: none but those below.
        first: the first moment of an episode too.
        last: the terminal moment too.
        frames: needs the pictures of these rows; without, their times and success are enough.
        label_every: an expert's environment steps to success from every so many of these rows, shifted from copy to
            copy; 0: none.
        label_limit: environment steps after which that expert gives up.
        views: keys or cameras of pictures besides those of the first camera.
    """

    every: int = 0
    first: bool = False
    last: bool = True
    frames: bool = True
    label_every: int = 0
    label_limit: int = 0
    views: tuple[str, ...] = ()

    def selects(self, rows_F: IntArray, last_F: BoolArray | None = None) -> BoolArray:
        """(F,) bool, which of these rows are observed.

        Args:
            rows_F: environment steps since the episode began.
            last_F: the terminal moments among them; by default none is.
        """
        found = rows_F % self.every == 0 if self.every else np.zeros(len(rows_F), dtype=np.bool_)
        if last_F is not None and self.last:
            found = found | last_F
        return np.where(rows_F == 0, self.first, found)

    def labels(self, row: int, stream: int) -> bool:
        """Whether the row of this copy is to be labelled, if its episode goes on."""
        if not self.label_every or not self.every or row % self.every:
            return False
        return (row // self.every + stream) % self.label_every == 0


@dataclass(frozen=True, eq=False)
class Segment:
    """The observed rows of one episode within one rollout, in order of time (F rows).

    Attributes:
        stream: row b of the rollout.
        number: of the episode in its stream; None where nothing of it was observed.
        task: what was asked for, in words.
        start: first step of the rollout that belongs to the episode.
        end: last such step; before `start` where the episode only just began.
        terminated: the task ended at `end`.
        finished: the episode ended at `end`, or was lost there.
        steps_F: step of the rollout after which the row was observed; of an episode's first moment the step before
            it (-1 at the very start).
        rows_F: environment steps since the episode began; 0 is its first moment.
        last_F: the terminal moment.
        success_F: ground truth, None where it is unknown.
        frames_F: (F, H, W, 3).
        states_F: (F, S) float32, all numbers that the environment shows; S is 0 where it shows none.
        steps_left_F: continuation labels: environment steps an expert needs from there to success (inf: it did not
            reach it, nan: not labelled); None where no row has one.
        lost: the simulator broke at `end`: what earlier rollouts showed of the episode is to be forgotten.
        state_keys: names and sizes of the parts of a state, in their order; empty where observations have no keys.
        actions_F: (F, A) float32, the action that led to each row; zeros at the first moment of an episode.
        action_values: of discrete actions, the number of values of each choice.
        views_F: (F, H, W, 3) of the pictures that are chosen by key or camera (`Observes.views`).
    """

    stream: int
    number: int | None
    task: str
    start: int
    end: int
    terminated: bool
    finished: bool
    steps_F: IntArray
    rows_F: IntArray
    last_F: BoolArray
    success_F: tuple[bool | None, ...]
    frames_F: ByteArray
    states_F: FloatArray
    steps_left_F: FloatArray | None = None
    lost: bool = False
    state_keys: tuple[tuple[str, int], ...] = ()
    actions_F: FloatArray | None = None
    action_values: tuple[int, ...] = ()
    views_F: Mapping[str, ByteArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows_F)


class PolicyInputs(Protocol):
    """What a policy needs to compute the log-probabilities of its actions again; opaque to everything but the policy.

    Its rows are the steps of a control policy, or the responses of a language model.
    """

    def __len__(self) -> int:
        """Rows."""

    def take(self, rows: IntArray) -> Self:
        """These rows, in order."""


Inputs = TypeVar("Inputs", bound=PolicyInputs)
Collected = TypeVar("Collected", bound=PolicyInputs)
_Inputs = TypeVar("_Inputs", bound=PolicyInputs, contravariant=True)
_Collected = TypeVar("_Collected", bound=PolicyInputs, contravariant=True)


@dataclass(frozen=True, eq=False)
class Chunks:
    """The decisions that the T steps of B streams executed, where a decision has several parts: C actions of D each.

    Attributes:
        decision: (B, T) the decision that each step executed an action of, -1 where none was. They are numbered stream
            by stream in order of time; the first action of each is always executed, the last ones are not where an
            episode or the rollout ended before.
        slot: (B, T) which of its C actions that was, -1 where none was.
        size: C.
        tokens: D, parts of an action's log-probability.
    """

    decision: IntArray
    slot: IntArray
    size: int
    tokens: int = 1

    @property
    def streams(self) -> IntArray:
        """(R,) the stream of each decision."""
        return np.nonzero(self.slot == 0)[0]

    def on_steps(self, values_R_C: np.ndarray) -> np.ndarray:
        """(B, T) numbers of steps that stand with the decisions they executed (one part each); 0 where none was."""
        taken = self.decision >= 0
        found = np.zeros(taken.shape, values_R_C.dtype)
        found[taken] = values_R_C[self.decision[taken], self.slot[taken]]
        return found


@dataclass(frozen=True, eq=False)
class Rollout(Generic[Inputs]):
    """What happened in B streams over T decisions: the same for text (T tokens) and control (T environment steps).

    Attributes:
        inputs: of the policy: B rows of text, B * T steps of control, or R decisions with `chunks`.
        log_probs: (B, T) of the policy that acted, as training computes them where the collector was asked to; with
            `chunks` (R, C * D), of actions that were not executed too.
        mask: (B, T) False where there is no decision (padding, a reset step), or its episode was lost.
        terminated, truncated: (B, T) the task's own end, with no value beyond it; cut off by a limit.
        success: (B, T) ground truth after the decision; False where it is unknown. Nothing ever overwrites it.
        success_known: (B, T) where ground truth was reported.
        rewards: (B, T) ground truth's own reward: the environment's, or the verifier's outcome at the last token.
        failed: (B, T) where ground truth could not be measured.
        failures: (row, step, why) of ground truth; row -1 where it is not part of the rollout. In an environment:
            episodes that a broken simulator cut off.
        group_ids: (B,) streams with the same start share an id; None where there are no groups.
        segments: the rows that reward models of images score, by stream and time.
        steps: what `runner.total_steps` counts: environment steps, or all responses that were generated.
        measured: measurements of ground truth tried, those of dropped responses included.
        metrics, averaged_over: counts and means for the log, and over how many things each of the means is taken.
        values, next_values: source name to (B, T) estimates of the value before and after the decision (after the
            last one of an episode: of its terminal observation); empty without a critic. With `chunks` (R,): before and
            after each decision; 0 after one that ended the task.
        greedy: one greedy response to the prompt of each group, in their order (ReMax).
        sampled_log_probs: (B, T) as the generator computed them, where `log_probs` was computed again.
        fresh: every stream begins an episode here, and nothing of earlier rollouts goes on.
        version: of the weights that acted.
        seconds: time that collecting took, by its parts.
        videos: a sample of its episodes for videos, those of others without rows; None where none are made.
        actions: (B, T, ...) what the environments were given, for videos and replays.
        ends: (stream, step, observation) after each episode; of step T, after the rollout. Empty: no replay needs them.
        intervened: (B, T) bool, the action was somebody else's (a person's, an expert's); None: it is not reported.
        life_lost: (B, T) bool, the task was over for who learns, and the episode went on (a lost life of a game); None:
            nowhere.
        chunks: of policies whose decisions have several parts: what the steps executed.
        kept: name to (B, T, ...) of the values of `info` that a replay keeps.
        conversations: streams are conversations with a language model: a decision is a call, a step is a token.
        states: (B, T) steps that begin in the same state of an agent have the same number, -1 where it is not known.
    """

    inputs: Inputs
    log_probs: FloatArray
    mask: BoolArray
    terminated: BoolArray
    truncated: BoolArray
    success: BoolArray
    success_known: BoolArray
    rewards: FloatArray
    failed: BoolArray
    failures: tuple[tuple[int, int, Failure], ...] = ()
    group_ids: IntArray | None = None
    segments: tuple[Segment, ...] = ()
    steps: int = 0
    measured: int = 0
    metrics: Metrics = field(default_factory=dict)
    averaged_over: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, FloatArray] = field(default_factory=dict)
    next_values: Mapping[str, FloatArray] = field(default_factory=dict)
    greedy: Rollout[Inputs] | None = None
    sampled_log_probs: FloatArray | None = None
    fresh: bool = False
    version: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    videos: tuple[Segment, ...] | None = None
    actions: FloatArray | None = None
    ends: tuple[tuple[int, int, np.ndarray], ...] = ()
    intervened: BoolArray | None = None
    life_lost: BoolArray | None = None
    chunks: Chunks | None = None
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)
    conversations: bool = False
    states: IntArray | None = None

    def __post_init__(self) -> None:
        names = ("log_probs", "terminated", "truncated", "success", "success_known", "rewards", "failed")
        expected = dict.fromkeys(names, self.mask.shape)
        if self.chunks is not None:
            expected["log_probs"] = (len(self.inputs), self.chunks.size * self.chunks.tokens)
            if not np.array_equal(self.chunks.decision >= 0, self.mask):
                raise ValueError("every valid step of a rollout, and no other, executes an action of a decision")
        for name, shape in expected.items():
            if (found := getattr(self, name).shape) != shape:
                raise ValueError(f"rollout field {name!r} has shape {found}, expected {shape}")

    @property
    def done(self) -> BoolArray:
        """(B, T) True at the last decision of an episode."""
        return self.terminated | self.truncated

    def counting(self, others: Sequence[Rollout[Inputs]]) -> Self:
        """The same rollout with the steps, measurements, failures and time of others, which are not part of it."""
        parts: list[Rollout[Inputs]] = [*others, self]
        return replace(
            self,
            steps=sum(part.steps for part in parts),
            measured=sum(part.measured for part in parts),
            failures=(*self.failures, *((-1, step, why) for part in others for _, step, why in part.failures)),
            seconds={name: sum(part.seconds.get(name, 0.0) for part in parts) for name in self.seconds},
        )

    @property
    def groups_B(self) -> IntArray:
        """(B,) `group_ids`; without any, every stream is a group of its own."""
        return np.arange(len(self.mask), dtype=np.int64) if self.group_ids is None else self.group_ids

    @property
    def outcomes_B(self) -> FloatArray:
        """(B,) sum of ground truth's own reward; of a response, its outcome: 1 right, 0 wrong or unknown."""
        return np.asarray(self.rewards.sum(axis=1))

    @property
    def known_B(self) -> BoolArray:
        """(B,) responses whose ground truth was reported and failed nowhere."""
        return np.asarray(self.success_known.any(axis=1) & ~self.failed.any(axis=1))


@dataclass(frozen=True, eq=False)
class Advantages:
    """What the policy learns from a rollout: the advantages of its sources, added with their weights.

    Attributes:
        advantages: (B, T) float32, for the policy loss; 0 where masked.
        returns: (B, T) float32, the weighted sum of the sources before whitening.
        per_source: each source's own advantage (B, T), without weight and whitening.
        known: source to (B, T) bool, True where it says something about a step.
        value_targets: estimators with a critic: source to (B, T) returns for its value head; fit them where known.
        silent_groups: group estimators: source to the number of groups with fewer than two known members.
        flat_groups: group estimators: source to the number of groups whose known members all have the same mean.
    """

    advantages: FloatArray
    returns: FloatArray
    per_source: Mapping[str, FloatArray]
    known: Mapping[str, BoolArray]
    value_targets: Mapping[str, FloatArray] = field(default_factory=dict)
    silent_groups: Mapping[str, int] = field(default_factory=dict)
    flat_groups: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RawScores:
    """What a model said of N moments of a rollout before any shaping, for videos and logs.

    Attributes:
        rows_N: stream of each moment.
        steps_N: its step in the rollout; of an episode's first moment the step before it (-1 at the very start).
        values_N: the model's values.
        threshold: a value below it means failure, or a wrong step.
        last_N: terminal moments, after which the episode takes no decision; None: nothing is known of that.
        reused_N: values that were measured of other moments, which look alike; None: there are none.
    """

    rows_N: IntArray
    steps_N: IntArray
    values_N: FloatArray
    threshold: float
    last_N: BoolArray | None = None
    reused_N: BoolArray | None = None


@dataclass(frozen=True, eq=False)
class Rewards:
    """What one source pays for a rollout of B streams over T steps.

    Attributes:
        values: (B, T) float32, 0 where nothing is paid.
        failed: (B, T) bool, True where the measurement is missing.
        paid: (B, T) bool, where a baseline is subtracted; None: every valid step.
        ends: (B, T) bool, steps after which the model ends an episode (`ends` of a source); None: it ends none.
        failures: stream, step and reason of every measurement that failed, those of `greedy` included, whose streams
            are counted on from B.
        measured: measurements tried, those of `greedy` included.
        metrics: of the model on this rollout.
        scores: the values before shaping, of a model that scores single moments.
        returned: (B, T) what returns are sums of, where the policy learns from other numbers (clipped rewards); None:
            `values`.
        greedy: of the rollout's greedy responses, scored by the same weights in the same unit.
    """

    values: FloatArray
    failed: BoolArray
    paid: BoolArray | None = None
    ends: BoolArray | None = None
    failures: tuple[tuple[int, int, Failure], ...] = ()
    measured: int = 0
    metrics: Metrics = field(default_factory=dict)
    scores: RawScores | None = None
    returned: FloatArray | None = None
    greedy: Rewards | None = None

    @property
    def failed_B(self) -> BoolArray:
        """(B,) bool, True for streams with a missing measurement."""
        return np.asarray(self.failed.any(axis=1))


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What a policy says of n rows of K decisions each, with gradients.

    Attributes:
        log_probs: (n, K) float32 of the actions taken; 0 where masked.
        entropy: (n, K) in nats, or a scalar where it is the same at every decision; None if not asked for.
        values: (n, K, H) of H value heads before each decision; None without a critic.
        auxiliary: (n, K, A) predictions of A auxiliary heads before each decision; None without such heads.
    """

    log_probs: Tensor
    entropy: Tensor | None = None
    values: Tensor | None = None
    auxiliary: Tensor | None = None


class Evaluates(Protocol[_Inputs]):
    """What gradient steps need of a policy."""

    def passes(self, inputs: _Inputs, rows: IntArray, micro: int | None) -> Sequence[slice | IntArray]:
        """Places in `rows` that share a forward pass: at most `micro`, and no more than its device has memory for."""

    def evaluate(self, inputs: _Inputs, *, entropy: bool = False) -> Evaluated:
        """Log-probabilities, entropy and values of these rows, with gradients unless the caller switched them off."""


class Policy(Evaluates[Inputs], Protocol[_Collected, Inputs]):
    """What the learner trains."""

    def prepared(self, inputs: _Collected) -> Inputs:
        """What `evaluate` takes, from the inputs of a rollout; computed once for all passes over it."""

    def evaluate_all(self, inputs: Inputs, *, micro: int) -> Evaluated:
        """`evaluate` without gradients, `micro` rows at a time; the result is on the CPU."""

    def observe(self, inputs: _Collected, mask_B_T: BoolArray) -> None:
        """Update running statistics of what was observed, after the policy has learned from it."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything to store."""

    def load_tensors(self, state: dict[str, Tensor], *, critic: bool = True) -> None:
        """Return to stored tensors; without `critic` the value heads stay as they are."""


def last_valid(mask_B_T: BoolArray) -> BoolArray:
    """(B, T) bool, True at the last valid step of each row that has one."""
    return np.asarray(mask_B_T & (np.cumsum(mask_B_T[:, ::-1], axis=1)[:, ::-1] == 1))
