"""Reward sources of control policies: reward models that score observed rows of episodes.

A `ControlReward` remembers, for each stream, the last value of its open episode, so that rewards telescope across
rollouts and nothing reaches the next episode; where whole episodes are scored, it remembers their frames. A failed
measurement marks its step; no number takes its place, unless `fallback: native` asks for true success by name, and it
counts as failed then too. A model that is refitted during the run is a `guerdon.rewards.refit.RefittedReward`.

    source = ControlReward(SourceTerms("rm"), model, settings, num_envs=8)
    rewards = source.measure(rollout)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from guerdon.collect.observed_frames import SeenRows
from guerdon.compute.optimizers import under
from guerdon.episodes.layout import camera_names
from guerdon.errors import ConfigError
from guerdon.models.images.image import state_rows
from guerdon.models.scores import score_episodes
from guerdon.models.vlm.vlm_prm import log_computed, log_weighted
from guerdon.policies.robots.robot import ControlInputs
from guerdon.rewards import shaping
from guerdon.rewards.source import ModelReward, RawRow, SourceTerms, raw_scores
from guerdon.settings.aliases import LOGGED_AS_PRM
from guerdon.settings.reward_source import CacheSettings, RobotSource
from guerdon.types import (
    ALL_FRAMES,
    BoolArray,
    ByteArray,
    Episode,
    Failure,
    FloatArray,
    IntArray,
    Metrics,
    Observes,
    RewardModel,
    Rewards,
    Rollout,
    Score,
    Segment,
)
from guerdon.worlds.spaces import parts_of_rows

# ---------------------------------------------------------------------------------------------------------------------
# Values of a reward model used again for frames that look alike (`reward.sources.<name>.cache`).
#
# A frame is known by a difference hash: the signs of brightness differences between neighbouring cells of a coarse
# grid. A value that was measured of another frame is not a measurement of this one, so it is marked, and a share of
# such frames
# are scored anyway: the difference is the error of the cache, which is logged. A failed measurement is never used
# again.
#
#     cache = FrameCache(CacheSettings(tolerance=4), np.random.default_rng(0))
#     scores, reused_N = cache.score(episodes, model.score)      # episodes of one frame each
# ---------------------------------------------------------------------------------------------------------------------


_BITS_SET = np.array([bin(i).count("1") for i in range(1 << 16)], dtype=np.uint8)
HASH_SIZE = 16  # rows of the grid that a frame is reduced to
CHECK_SHARE = 0.05  # of the hits are scored anyway
_NOT_SCORED = -1  # of an entry that is not waiting for its value; of a task: the entry is empty


def difference_hash(frame_H_W_3: ByteArray, size: int) -> np.ndarray:
    """(size * size / 16,) uint16, the bits of the difference hash: whether a cell is brighter than its left neighbour.

    Args:
        frame_H_W_3: a picture.
        size: rows of the grid; it has one column more.
    """
    grey = Image.fromarray(frame_H_W_3).convert("L").resize((size + 1, size), Image.Resampling.BOX)
    cells = np.asarray(grey, dtype=np.int16)
    return np.packbits(cells[:, 1:] > cells[:, :-1]).view(np.uint16)


class FrameCache:
    """Measured values by the hashes of their frames, of each task apart.

    Args:
        settings: how alike frames must be, and how many are kept.
        rng: draws the frames that are scored anyway.
    """

    def __init__(self, settings: CacheSettings, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        self._keys = np.zeros((settings.size, HASH_SIZE**2 // 16), dtype=np.uint16)
        self._values = np.zeros(settings.size, dtype=np.float32)
        self._task = np.full(settings.size, _NOT_SCORED, dtype=np.int64)
        self._waiting = np.full(settings.size, _NOT_SCORED, dtype=np.int64)
        self._tasks: list[str] = []
        self._added = 0
        self._checked, self._error, self._worst = 0, 0.0, 0.0
        self._last = (0, 0)

    def score(
        self, episodes: Sequence[Episode], score: Callable[[Sequence[Episode]], list[Score]]
    ) -> tuple[list[Score], BoolArray]:
        """Scores of frames, and which of them are values of other frames.

        Args:
            episodes: of one frame each.
            score: measures such episodes; called once, and once more where a value that others wait for failed.
        """
        found: list[Score | None] = [None] * len(episodes)
        owners, alike, ask = self._look_up(episodes)
        _score_some(found, ask, episodes, score)
        self._keep(owners, found)
        reused = self._reuse(alike, found)
        left = [i for i, one in enumerate(found) if one is None]
        _score_some(found, left, episodes, score)
        self._last = (len(episodes), int(reused.sum()))
        return [one for one in found if one is not None], reused

    def _look_up(self, episodes: Sequence[Episode]) -> tuple[dict[int, int], dict[int, float | int], list[int]]:
        """What is known of each frame.

        Returns:
            New frames with their entries; frames that look like a kept one, with its value (float) or the number of
            the frame that is being scored (int); and the frames to score.
        """
        owners: dict[int, int] = {}
        alike: dict[int, float | int] = {}
        ask: list[int] = []
        for i, episode in enumerate(episodes):
            assert episode.frames is not None
            key, task = difference_hash(episode.frames[0], HASH_SIZE), self._number(episode.task)
            entry = self._nearest(key, task)
            if entry is None:
                owners[i] = self._add(key, task, i)
                ask.append(i)
                continue
            owner = int(self._waiting[entry])
            alike[i] = float(self._values[entry]) if owner == _NOT_SCORED else owner
            if self.rng.random() < CHECK_SHARE:
                ask.append(i)
        return owners, alike, ask

    def _keep(self, owners: Mapping[int, int], found: Sequence[Score | None]) -> None:
        """Keep the values of new frames in their entries; an entry whose measurement failed is empty again."""
        for i, entry in owners.items():
            if self._waiting[entry] != i:  # already overwritten by a newer one
                continue
            value = _value(found[i])
            self._waiting[entry] = _NOT_SCORED
            if value is None:
                self._task[entry] = _NOT_SCORED
                value = 0.0
            self._values[entry] = value

    def _reuse(self, alike: Mapping[int, float | int], found: list[Score | None]) -> BoolArray:
        """Give frames the values of those that they look like, and note the error where both were measured.

        Returns:
            (N,) bool, the frames that got another's value.
        """
        reused = np.zeros(len(found), dtype=np.bool_)
        for i, other in alike.items():
            value = other if isinstance(other, float) else _value(found[other])
            own = _value(found[i])
            if value is None:
                continue
            if own is not None:
                error = abs(own - value)
                self._checked += 1
                self._error += error
                self._worst = max(self._worst, error)
            elif found[i] is None:
                found[i], reused[i] = Score(steps=np.array([value], dtype=np.float32)), True
        return reused

    @property
    def metrics(self) -> Metrics:
        """Frames of the last call whose value is another frame's; and the error, over all frames checked so far."""
        frames, hits = self._last
        mean = self._error / self._checked if self._checked else None
        return {
            "cache_hits": float(hits),
            "cache_hit_share": hits / frames if frames else None,
            "cache_checked": float(self._checked),
            "cache_error": mean,
            "cache_error_max": self._worst if self._checked else None,
        }

    def _number(self, task: str) -> int:
        if task not in self._tasks:
            self._tasks.append(task)
        return self._tasks.index(task)

    def _nearest(self, key: np.ndarray, task: int) -> int | None:
        """The entry of the task that is most alike, if it is alike enough."""
        entries = np.flatnonzero(self._task[: min(self._added, self.settings.size)] == task)
        if not len(entries):
            return None
        apart = _BITS_SET[self._keys[entries] ^ key].sum(axis=1, dtype=np.int64)
        best = int(apart.argmin())
        return int(entries[best]) if apart[best] <= self.settings.tolerance else None

    def _add(self, key: np.ndarray, task: int, owner: int) -> int:
        """Keep a frame whose value is not known yet, in place of the oldest."""
        entry = self._added % self.settings.size
        self._keys[entry], self._task[entry], self._waiting[entry] = key, task, owner
        self._added += 1
        return entry

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values."""
        kept = min(self._added, self.settings.size)
        tensors = {
            "keys": torch.from_numpy(self._keys[:kept].view(np.int16).copy()),
            "values": torch.from_numpy(self._values[:kept].copy()),
            "task": torch.from_numpy(self._task[:kept].copy()),
        }
        return tensors, {
            "tasks": list(self._tasks),
            "added": self._added,
            "errors": [self._checked, self._error, self._worst],
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        kept = len(tensors["values"])
        self._keys[:kept] = tensors["keys"].numpy().view(np.uint16)
        self._values[:kept], self._task[:kept] = tensors["values"].numpy(), tensors["task"].numpy()
        self._tasks, self._added = list(values["tasks"]), int(values["added"])
        self._checked, self._error, self._worst = values["errors"]
        self.rng.bit_generator.state = values["rng"]


def _score_some(
    found: list[Score | None],
    rows: Sequence[int],
    episodes: Sequence[Episode],
    score: Callable[[Sequence[Episode]], list[Score]],
) -> None:
    """Score the episodes in some rows, if there are any."""
    if rows:
        for i, one in zip(rows, score([episodes[i] for i in rows]), strict=True):
            found[i] = one


def _value(score: Score | None) -> float | None:
    """The value of a frame; None where it is missing."""
    return None if score is None or score.steps is None else float(score.steps[0])


# ---------------------------------------------------------------------------------------------------------------------


Asked = tuple[tuple[int, int | None, tuple[int, ...]], Episode]
"""Stream, number and rows of what is scored, and its pictures."""


class ScoresAhead:
    """Scores computed in a thread of their own while the environment goes on (`reward.overlap_steps`).

    What is asked for is known by a key, so that the source finds each score when it measures the rollout. One thread
    scores for a source, in the order in which it was asked, so results do not depend on how fast anything is. An
    exception of the model is raised where its score is taken.

    Args:
        score: measures episodes, in one call for all that are asked for at a time.
    """

    def __init__(self, score: Callable[[Sequence[Episode]], list[Score]]) -> None:
        self._score = score
        self._thread: ThreadPoolExecutor | None = None
        self._found: dict[tuple[int, int | None, tuple[int, ...]], tuple[Future[list[Score]], int]] = {}

    def ask(self, asked: Sequence[Asked]) -> None:
        """Score these episodes, after those that were asked for before."""
        if not asked:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="guerdon-score-ahead")
        future = self._thread.submit(self._score, [episode for _, episode in asked])
        self._found |= {key: (future, n) for n, (key, _) in enumerate(asked)}

    def take(self, asked: Sequence[Asked]) -> list[Score]:
        """The scores of these episodes; nothing is kept of any after that."""
        if not self._found:  # nothing runs beside this thread
            return self._score([episode for _, episode in asked]) if asked else []
        self.ask([one for one in asked if one[0] not in self._found])
        try:
            found = [self._found[key] for key, _ in asked]
            return [future.result()[n] for future, n in found]
        finally:
            self.close()

    def close(self) -> None:
        """Forget what was asked for, and end the thread with the call that it is in."""
        self._found.clear()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None


@dataclass
class Carry:
    """What the open episode of a stream leaves for the next rollout."""

    previous: float | None = None
    streak: int = 0
    paid: bool = False


class ControlReward(ModelReward[ControlInputs]):
    """One entry of `reward.sources`.

    Args:
        terms: how it counts.
        model: scores frames or whole episodes.
        settings: how its values become rewards.
        num_envs: streams of a rollout.
        rng: of the cache; None: one with a fixed seed.

    Attributes:
        settings: how its values become rewards.
        carries: of each stream.
        cache: measured values of earlier frames; None: every frame is scored.
        ahead: scores of what `score_ahead` was given.
        notes: lines for the start of a run's log.

    Raises:
        ConfigError: the model cannot give the values that the settings ask for.
    """

    settings: RobotSource

    def __init__(
        self,
        terms: SourceTerms,
        model: RewardModel,
        settings: RobotSource,
        *,
        num_envs: int,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(terms, model, settings)
        self._num_envs = num_envs
        drawn = np.random.default_rng(0) if rng is None else rng
        self.cache = None if settings.cache is None else FrameCache(settings.cache, drawn)
        self.ahead = ScoresAhead(self._score)
        self._under_way: dict[
            tuple[int, int], list[tuple[IntArray, NDArray[Any]]]
        ] = {}  # seen for `score_ahead` before their end
        self._check()
        self.reset_streams()

    @property
    def notes(self) -> tuple[str, ...]:
        """None, unless a kind of source has something to say."""
        return ()

    @property
    def threshold(self) -> float:
        """The one threshold; a value that equals `success_threshold` is a success too, also in float32."""
        least = self.settings.success_threshold
        if least is None:
            return super().threshold
        return float(np.nextafter(min(least, float(np.float32(least))), -np.inf))

    @property
    def _whole(self) -> bool:
        """Whether an episode is scored once, at its end, from all that was observed of it."""
        return self.settings.reward_mode == "episode"

    @property
    def observes(self) -> Observes:
        """The rows it looks at; the first moment is the baseline of a change, or the start of a video."""
        return Observes(
            every=self.settings.score_every if self.settings.reward_mode in ("per_step", "episode") else 0,
            first=self._whole or self._looks_back or self.settings.shaping in ("relative", "potential"),
            frames=self.model.info.modality == "image" and self.model.info.frames_needed > 0,
            views=self._views,
        )

    @property
    def _views(self) -> tuple[str, ...]:
        """Names of the camera that the model looks through, the first that the world shows; none: what it renders."""
        info = self.model.info
        camera = (*info.keys, info.camera or "")[0]
        return () if info.modality == "state" or not camera else camera_names(camera)

    def return_range(self, steps: int) -> tuple[float, float] | None:
        """Smallest and largest sum of its rewards in an episode of at most so many steps; None where it is unknown."""
        s, (low, high) = self.settings, self.model.info.range
        scored = -(-steps // s.score_every) if s.reward_mode == "per_step" else 1
        match s.shaping:
            case "threshold":
                low, high = sorted((s.success_reward, s.effective_fail_reward))
            case "bonus":  # once, or never
                low, high, scored = min(s.success_reward, 0.0), max(s.success_reward, 0.0), 1
            case "log_odds":
                low, high = -shaping.MAX_LOG_ODDS, shaping.MAX_LOG_ODDS
            case "relative":  # the sum telescopes
                low, high, scored = low - high, high - low, 1
            case "potential":
                return None
        ends = sorted(s.reward_coef * number * value for value in (low, high) for number in (1, scored))
        return ends[0], ends[-1]

    # Rewards.

    def score_ahead(self, observed: Sequence[SeenRows]) -> None:
        """Begin to score what was observed of a rollout that is not over: frames, or episodes that have ended."""
        if self.terms.over:
            return
        asked: list[Asked] = []
        for part in observed:
            chosen = self.observes.selects(part.rows_F, part.last_F)
            rows, seen = part.rows_F[chosen], self.seen(part)[chosen]
            if not self._framewise:
                parts = self._under_way.setdefault((part.stream, part.number), [])
                parts.append((rows, seen))
                if not part.last_F.any():
                    continue
                rows, seen = (np.concatenate(column) for column in zip(*parts, strict=True))
                if (self._whole or self._looks_back) and rows[0] != 0:
                    seen = np.stack([*self._frames[part.stream], *seen])
            asked += self._asked(part.stream, part.number, part.task, rows, seen)
        self.ahead.ask(asked)

    def measure(self, rollout: Rollout[ControlInputs], *, learn: bool = True) -> Rewards:
        """Score all segments and turn the values into rewards.

        The model is called once, for what `score_ahead` did not ask for.
        """
        return self.rewards_of(rollout.segments, rollout.mask.shape)

    def rewards_of(self, segments: Sequence[Segment], shape: tuple[int, ...]) -> Rewards:
        """What is paid for these stretches of episodes, in order of time within each stream.

        Args:
            segments: their observed rows.
            shape: (B, T) of the rollout that they are part of; T is 1 where an environment asks step by step.
        """
        rewards = np.zeros(shape, dtype=np.float32)
        failed, ends = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
        failures: list[tuple[int, int, Failure]] = []
        found: list[RawRow] = []
        begins: list[bool] = []  # first moments of episodes, to which no action led
        measured = 0
        for segment, rows, scores, reused in self._scores(segments):
            values_R, missing_R = self._values(segment, rows, scores)
            moments = [(segment.stream, int(step)) for step in segment.steps_F[rows]]
            measured += len(moments) - int(reused.sum())
            failures += [(*moment, why) for moment, why in zip(moments, missing_R, strict=True) if why is not None]
            facts = zip(moments, values_R, segment.last_F[rows], reused, strict=True)
            found += [RawRow(*m, float(v), bool(last), bool(hit)) for m, v, last, hit in facts if np.isfinite(v)]
            begins += (segment.rows_F[rows][np.isfinite(values_R)] == 0).tolist()
            at = segment.stream
            self.carries[at] = self.shape(self.carries[at], segment, rows, values_R, rewards[at], failed[at], ends[at])
        rewards[failed] = 0.0
        paid = Rewards(
            rewards * np.float32(self.settings.reward_coef),
            failed,
            ends=ends if self.settings.ends else None,
            failures=tuple(failures),
            measured=measured,
            scores=raw_scores(found, self.threshold),
            metrics={} if self.cache is None else self.cache.metrics,
        )
        if self.settings.model.model_type in LOGGED_AS_PRM:
            _log_as_prm(paid, np.array(begins, dtype=np.bool_), self.terms.weight(0.0))
        return paid

    def _score(self, episodes: Sequence[Episode]) -> list[Score]:
        """The model's scores; a bound method, not a lambda, so that a source can be pickled."""
        return score_episodes(self.model, episodes)

    def _scores(self, segments: Sequence[Segment]) -> list[tuple[Segment, list[int], list[Score], BoolArray]]:
        """Of every segment the rows that are scored, their scores, and (R,) which are values of other frames.

        There is one score for each row, or one for all of them: a model of single frames gets each as an episode of its
        own, so that a failure is of one frame.
        """
        chosen, parts = [], []
        for segment in segments:
            rows, frames = self._shown(segment)
            own = []
            if len(frames):
                own = self._asked(segment.stream, segment.number, segment.task, segment.rows_F[rows], frames)
            if self._whole:
                rows = rows[-1:] if own else []
            chosen.append(rows)
            parts.append(own)
        asked = [one for own in parts for one in own]
        episodes = [episode for _, episode in asked]
        reused = np.zeros(len(episodes), dtype=np.bool_)
        if self.cache is not None:
            measured, reused = self.cache.score(episodes, self._score)
        else:
            measured = self.ahead.take(asked)
            self._under_way.clear()
        scores, hits = iter(measured), iter(reused)
        found = []
        for segment, rows, own in zip(segments, chosen, parts, strict=True):
            of_own = [next(scores) for _ in own]
            of_others = np.zeros(len(rows), dtype=np.bool_)
            if self._framewise:
                of_others[:] = [next(hits) for _ in rows]
            found.append((segment, rows, of_own, of_others))
        return found

    def _shown(self, segment: Segment) -> tuple[list[int], NDArray[Any]]:
        """The rows of a segment that are scored, and the frames or states that the model looks at for that."""
        rows = np.flatnonzero(self.observes.selects(segment.rows_F, segment.last_F)).tolist()
        frames = self.seen(segment)[rows]
        if self._whole:
            return rows, self._whole_episode(segment, rows, frames)
        return rows, self._so_far(segment, frames) if self._looks_back else frames

    def seen(self, part: Segment | SeenRows) -> NDArray[Any]:
        """What the model looks at in these rows: (F, H, W, 3) frames, (F, S) states, or a record (F,) of both."""
        info = self.model.info
        if info.modality != "state":
            frames = next((part.views_F[key] for key in self._views if key in part.views_F), part.frames_F)
            return _records(frames, part.states_F) if info.states else frames
        meta = parts_of_rows(part.state_keys, part.action_values)
        shown = Episode(id="", task="", states=part.states_F, actions=part.actions_F, meta=meta)
        found = state_rows(shown, info.keys, actions=info.actions)
        return part.states_F[:, :0] if found is None else found

    def _columns(self, seen: NDArray[Any]) -> dict[str, Any]:
        """Columns of an episode."""
        if seen.dtype.names:
            return {name: np.ascontiguousarray(seen[name]) for name in seen.dtype.names}
        return {"states" if self.model.info.modality == "state" else "frames": seen}

    def _asked(self, stream: int, number: int | None, task: str, rows_F: IntArray, seen: NDArray[Any]) -> list[Asked]:
        """What the model is asked about these frames or states: each by itself, or all as one episode."""
        rows, name = rows_F.tolist(), f"{stream}-{number}"

        def shown(part: NDArray[Any]) -> Episode:
            return Episode(id=name, task=task, **self._columns(part))

        if not self._framewise:
            return [((stream, number, tuple(rows)), shown(seen))]
        return [((stream, number, (row,)), shown(seen[i : i + 1])) for i, row in enumerate(rows)]

    @property
    def _framewise(self) -> bool:
        """Whether frames are scored one by one, because the model looks at one at a time."""
        info = self.model.info
        return not self._whole and info.modality == "image" and info.frames_needed == 1 and not info.states

    @property
    def _looks_back(self) -> bool:
        """Whether rows are scored with what earlier rollouts showed of their episode."""
        info = self.model.info
        return not self._whole and (info.frames_needed >= ALL_FRAMES or not info.causal)

    def _so_far(self, segment: Segment, frames: NDArray[Any]) -> NDArray[Any]:
        """All frames or states of an episode until now, where there are new ones; kept until it ends."""
        if len(segment) and segment.rows_F[0] == 0:
            self._frames[segment.stream] = []
        kept = self._frames[segment.stream]
        kept += list(frames)
        if segment.finished:
            self._frames[segment.stream] = []
        return np.stack(kept) if len(frames) else frames

    def _whole_episode(self, segment: Segment, rows: list[int], frames: NDArray[Any]) -> NDArray[Any]:
        """All frames or states of an episode that ended with a scored row; of another none."""
        seen = self._so_far(segment, frames)
        return seen if segment.finished and rows and segment.last_F[rows[-1]] else frames[:0]

    def _values(
        self, segment: Segment, rows: list[int], scores: list[Score]
    ) -> tuple[NDArray[np.float64], list[Failure | None]]:
        """(R,) a value per scored row, NaN where it is missing, and R reasons why it is.

        With `fallback: native` true success takes the place of a failed one where it is known.
        """
        missing = Failure("no_steps", "the model gives no value per row")
        if self._whole:
            missing = Failure("no_total", "the model gives no value for a whole episode")
        values: list[float] = []
        reasons: list[Failure | None] = []
        groups = [[row] for row in rows] if len(scores) == len(rows) else [rows]
        for score, group in zip(scores, groups, strict=True):
            given = score.total if self._whole else score.steps
            if given is not None:
                values += np.atleast_1d(np.asarray(given, dtype=np.float64))[-len(group) :].tolist()
                reasons += [None] * len(group)
                continue
            success = [segment.success_F[n] if self.settings.native_fallback else None for n in group]
            values += [np.nan if known is None else float(known) for known in success]
            reasons += [score.failure or missing] * len(group)
        return np.array(values, dtype=np.float64), reasons

    def shape(
        self,
        carry: Carry,
        segment: Segment,
        rows: list[int],
        values_R: NDArray[np.float64],
        rewards_T: FloatArray,
        failed_T: BoolArray,
        ends_T: BoolArray,
    ) -> Carry:
        """Write the rewards of one segment, without `reward_coef`, and where a bonus is confirmed.

        Args:
            carry: what the episode left before the segment; it is changed.
            segment: a stretch of an episode.
            rows: of its rows those that were scored.
            values_R: their values, NaN where they are missing.
            rewards_T, failed_T, ends_T: of its stream.

        Returns:
            What the stream carries on.
        """
        if segment.lost:
            return Carry()
        if len(segment) and segment.rows_F[0] == 0:
            carry = Carry()
        steps_R, known_R, first_R = segment.steps_F[rows], np.isfinite(values_R), segment.rows_F[rows] == 0
        if (first_R & known_R).any():
            carry.previous = float(values_R[0])
        failed_T[steps_R[~known_R & ~first_R]] = True
        steps, values = steps_R[known_R & ~first_R], values_R[known_R & ~first_R]
        if self.settings.shaping == "potential":
            self._shape_potential(segment, carry, steps, values, rewards_T, failed_T)
        elif self.settings.shaping == "bonus":
            confirmed, carry.streak, carry.paid = shaping.confirmed_bonus(
                values,
                threshold=self.threshold,
                frames=self.settings.confirm_frames,
                bonus=1.0,
                streak=carry.streak,
                paid=carry.paid,
            )
            rewards_T[steps], ends_T[steps] = self.settings.success_reward * confirmed, confirmed > 0
        elif len(values):
            if self.settings.shaping == "relative" and carry.previous is None:  # the baseline failed: the next is one
                failed_T[steps[0]] = True
                carry.previous, steps, values = float(values[0]), steps[1:], values[1:]
            rewards_T[steps] = self._shaped(carry, values)
        return Carry() if segment.finished else carry

    def elsewhere(self, streams: int) -> Self:
        """The same source for other streams: it shares the model, and no open episode."""
        other = copy.copy(self)
        other._num_envs = streams
        other.reset_streams()
        return other

    def _shaped(self, carry: Carry, values: NDArray[np.float64]) -> np.ndarray:
        """Rewards of scored rows alone."""
        s = self.settings
        match s.shaping:
            case "threshold":
                return self.thresholded(values)
            case "log_odds":
                return shaping.log_odds_reward(values)
            case "relative" if len(values) and carry.previous is not None:
                previous, carry.previous = carry.previous, float(values[-1])
                return shaping.relative_reward(values, previous=previous)
            case _:
                return values

    def _shape_potential(
        self,
        segment: Segment,
        carry: Carry,
        steps: IntArray,
        values: NDArray[np.float64],
        rewards_T: FloatArray,
        failed_T: BoolArray,
    ) -> None:
        """Rewards at every step of the segment: the potential is held between scored rows.

        Until a first value is known, the potential is not, and those steps fail.
        """
        if segment.end < segment.start:
            return
        inside = slice(segment.start, segment.end + 1)
        before = np.nan if carry.previous is None else carry.previous
        held = np.full(segment.end - segment.start + 1, before)
        for step, value in zip(steps, values, strict=True):
            held[step - segment.start :] = value
        shaped = shaping.potential_reward(held, previous=before, gamma=self.terms.gamma, terminated=segment.terminated)
        unknown = np.isnan(shaped)
        rewards_T[inside] = np.where(unknown, 0.0, shaped)
        failed_T[inside] |= unknown
        carry.previous = None if np.isnan(held[-1]) else float(held[-1])

    # State.

    def close(self) -> None:
        """Stop scoring."""
        self.ahead.close()

    def reset_streams(self) -> None:
        """Drop the open episodes: the world begins new ones."""
        self.carries = [Carry() for _ in range(self._num_envs)]
        self._frames: list[list[NDArray[Any]]] = [[] for _ in range(self._num_envs)]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What open episodes leave for the next rollout."""
        tensors = {
            f"{'frames' if len(columns) == 1 else name}.{i}": torch.from_numpy(column)
            for i, kept in enumerate(self._frames) if kept and (columns := self._columns(np.stack(kept)))
            for name, column in columns.items()
        }  # fmt: skip
        values: dict[str, Any] = {"carries": [vars(carry).copy() for carry in self.carries]}
        if self.terms.falling is not None:
            values["weight_left"] = self.terms.falling.left
        if self.cache is not None:
            kept, values["cache"] = self.cache.state()
            tensors |= {f"cache.{name}": tensor for name, tensor in kept.items()}
        return tensors, values

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self.carries = [Carry(**carry) for carry in values["carries"]]
        if self.terms.falling is not None:
            self.terms.falling.left = float(values["weight_left"])
        if self.cache is not None:
            self.cache.restore(under("cache", tensors), values["cache"])
        frames, states = ({int(i): t.numpy() for i, t in under(k, tensors).items()} for k in ("frames", "states"))
        seen = {i: _records(kept, states[i]) if i in states else kept for i, kept in frames.items()}
        self._frames = [list(seen.get(i, ())) for i in range(self._num_envs)]

    def _check(self) -> None:
        """The settings fit what the model measures."""
        info, s = self.model.info, self.settings
        low, high = info.range
        unbounded = low < 0 or high > 1
        values = f"and the values of {info.name!r} are from {low:g} to {high:g}"
        no_threshold = info.success_threshold is None and s.reward_threshold is None
        rules = [
            ("reward_mode", info.granularity == "total" and not self._whole,
             f"the model {info.name!r} judges whole episodes, so it needs reward_mode: episode"),
            ("cache", s.cache is not None and not self._framewise,
             f"cache keeps the values of single frames, and {info.name!r} does not look at single frames"),
            ("model", info.modality == "text", f"the model {info.name!r} judges text, not frames"),
            ("model.remote.fallback", s.native_fallback and unbounded, f"fallback native gives 0 or 1, {values}"),
            ("shaping", s.shaping == "log_odds" and unbounded, f"shaping log_odds is of probabilities, {values}"),
            ("shaping", s.shaping == "bonus" and no_threshold,
             "shaping bonus needs a threshold; this model stores none, so set reward_threshold"),
        ]  # fmt: skip
        for key, refused, why in rules:
            if refused:
                where = f"reward.sources.{self.name}"
                raise ConfigError(f"{where}: {why}", key=f"{where}.{key}")


def _records(frames_F: ByteArray, states_F: FloatArray) -> NDArray[Any]:
    """(F,) records of a frame and a state."""
    parts: dict[str, NDArray[Any]] = {"frames": frames_F, "states": states_F}
    out = np.empty(len(frames_F), [(name, column.dtype, column.shape[1:]) for name, column in parts.items()])
    for name, column in parts.items():
        out[name] = column
    return out


def _log_as_prm(rewards: Rewards, begins_N: BoolArray, weight: float) -> None:
    """The VLA guide's two log lines: what was measured after the actions of a rollout, and what of it is paid."""
    scores = rewards.scores
    if scores is None or begins_N.all():
        return
    log_computed(scores.values_N[~begins_N].tolist())
    rows, steps = scores.rows_N[~begins_N], scores.steps_N[~begins_N]
    log_weighted(rewards.values[rows, steps][~rewards.failed[rows, steps]].tolist(), weight)
