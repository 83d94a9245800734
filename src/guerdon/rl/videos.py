"""What a run shows of its episodes: videos and answers for the report, and MP4 videos of training episodes.

A video for the report is a few frames of an evaluation episode with what every source said of each (an NPZ file); of a
language model there are some responses with the rewards of their tokens instead (JSON).

    moments, rewards = collector.show(policy, frames=24)
    write_video(folder / "step_1000.npz", moments, sources, step=1000, env_rewards=rewards)

An MP4 video shows every frame next to a panel with what was decided, measured and paid.
The collector keeps the frames of a sample of the episodes (`runner.save_video`). Panels are drawn and videos encoded
in a thread of their own, one episode after the other; a file has its name once it is whole, so that a killed run leaves
no broken one. The panel shows the step, the action, value and log-probability, the native reward, and what every reward
model paid. An episode that was under way when a run was resumed has no video.

    videos = EpisodeVideos(folder / "videos", copies=8)
    videos.add(rollout, rewards)
    videos.close()                 # waits for what is still being written
"""

from __future__ import annotations

import io
import json
import os
import queue
import re
import textwrap
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from guerdon.collect.text import TextRollout, generated
from guerdon.episodes.targets import outcome_of
from guerdon.episodes.video import VideoWriter, require_av
from guerdon.errors import REFUSALS, DataError, GuerdonError, boundary, refused_by_system
from guerdon.files.atomic import write_bytes, write_json
from guerdon.models.scores import score_episodes
from guerdon.processes.progress import log_line
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.text_steps import true_steps
from guerdon.types import ByteArray, Episode, FloatArray, Rewards, Rollout, Segment
from guerdon.worlds.spaces import parts_of_rows

PANEL = 280  # pixels
FPS = 20
_LINE, _FONT, _COLUMNS = 14, 12, 42
_LOWEST = 192  # pixels: smaller frames are shown larger by a whole factor
WAITING = 4
"""How many episodes may wait for the thread before `add` blocks."""


def write_video(
    path: Path,
    moments: Segment,
    sources: Mapping[str, ControlReward],
    *,
    step: int,
    env_rewards: FloatArray | None = None,
) -> None:
    """Score the moments of an episode and write an NPZ.

    The file holds `frames` (F, H, W, 3) uint8, `rows` (F,), `success` (F,), `reward/<source>` (F,) values of the
    models (0 where `missing/<source>` is True), `reward/env` (F,) where the environment's rewards are given, and
    `meta`, a JSON string with the episode's success, null where it is unknown.

    Args:
        path: of the file.
        moments: from `ControlCollector.show`.
        sources: the reward models by name.
        step: of the run.
        env_rewards: the environment's reward for the step to each moment.
    """
    count = len(moments)
    success = np.array([s is True for s in moments.success_F], dtype=np.bool_)  # unknown is not shown as a success
    arrays: dict[str, Any] = {"frames": moments.frames_F, "rows": moments.rows_F, "success": success}
    if env_rewards is not None:
        arrays |= {"reward/env": env_rewards, "missing/env": np.zeros(count, bool)}
    episode = Episode(
        id="video",
        task=moments.task,
        frames=moments.frames_F,
        states=moments.states_F,
        actions=moments.actions_F,
        views=moments.views_F,
        meta=parts_of_rows(moments.state_keys, moments.action_values),
    )
    for name, source in sources.items():
        score = score_episodes(source.model, [episode])[0]
        known = score.steps is not None
        arrays[f"reward/{name}"] = score.steps if known else np.zeros(count, np.float32)
        arrays[f"missing/{name}"] = np.full(count, not known)
    meta = {"step": step, "task": moments.task, "success": outcome_of(moments.success_F)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta=np.array(json.dumps(meta)), **arrays)
    write_bytes(path, buffer.getvalue())


def write_answers(path: Path, rollout: TextRollout, rewards: Mapping[str, Rewards], *, step: int) -> None:
    """Write responses as JSON, with the rewards of every token and the true steps where the task knows them.

    Args:
        path: of the file.
        rollout: the responses, from `TextCollector.show`.
        rewards: of the reward models, by name.
        step: of the run.
    """
    responses = rollout.inputs
    wrote = responses.versions_B
    steps = true_steps(responses) if generated(responses) else None
    known, right = rollout.known_B, rollout.outcomes_B >= 1
    rows = []
    for i, tokens in enumerate(responses.batch.responses()):
        of_tokens: dict[str, list[float]] = {}
        judged: dict[str, Any] = {}
        for name, reward in rewards.items():
            if not reward.failed_B[i]:  # it could say something about this response
                of_tokens[name] = [round(float(value), 5) for value in reward.values[i, : len(tokens)]]
            scores = _step_scores(reward, i)
            if scores is not None:
                judged[name] = scores
        step_ends = steps_true = None
        if steps is not None:
            step_ends = [int(end) for end in steps[i][0]]
            steps_true = [bool(correct) for correct in steps[i][1]]
        rows.append(
            {
                "prompt": responses.prompts[i].question,
                "answer": responses.prompts[i].ground_truth,
                "tokens": [responses.tokenizer.decode([token]) for token in tokens],
                "version": None if wrote is None else int(wrote[i]),
                "rewards": of_tokens,
                "outcome": bool(right[i]) if known[i] else None,
                "judged": judged,
                "step_ends": step_ends,
                "steps_true": steps_true,
            }
        )
    write_json(path, {"step": step, "responses": rows})


def _step_scores(rewards: Rewards, row: int) -> dict[str, Any] | None:
    """What a model of steps says of a response: where its steps end, their values, its threshold."""
    if rewards.scores is None or not (here := rewards.scores.rows_N == row).any():
        return None
    return {
        "ends": rewards.scores.steps_N[here].tolist(),
        "values": [round(value, 5) for value in rewards.scores.values_N[here].tolist()],
        "threshold": rewards.scores.threshold,
    }


@dataclass
class _Tape:
    """The episode of a stream so far."""

    number: int
    task: str
    shots: list[tuple[ByteArray, list[str]]] = field(default_factory=list)  # frames, and the lines next to them
    success: list[bool | None] = field(default_factory=list)


class EpisodeVideos:
    """Writes `rank_{g}--episode={n}--success={bool}--task={words}.mp4`, the names of the VLA guide.

    Args:
        folder: receives the files.
        copies: streams of a rollout; an episode has the number `number in its copy * copies + copy`.
        rank: of this process.

    Raises:
        MissingDependencyError: PyAV is not installed.
    """

    def __init__(self, folder: Path, *, copies: int, rank: int = 0) -> None:
        require_av()
        self.folder, self._copies, self._rank = folder, copies, rank
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".*.part"):  # of a run that was killed
            left.unlink()
        self._tapes: dict[int, _Tape] = {}
        self._failed, self._written = False, any(folder.glob("*.mp4"))
        self._error: OSError | None = None
        self._queue: queue.Queue[_Tape | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="guerdon-episode-videos", daemon=True)
        self._thread.start()

    def add(self, rollout: Rollout[Any], rewards: Mapping[str, Rewards]) -> None:
        """Take in a rollout; its finished episodes are written in the background.

        Args:
            rollout: with `videos`.
            rewards: of every source.

        Raises:
            OSError: the disk is full or broken, as an earlier video found.
        """
        self._raise_error()
        if rollout.videos is None or rollout.actions is None:
            return
        if rollout.fresh:
            self._tapes.clear()
        for segment in rollout.videos:
            if len(segment) and segment.rows_F[0] == 0:
                number = (segment.number or 0) * self._copies + segment.stream
                self._tapes[segment.stream] = _Tape(number, segment.task)
            tape = self._tapes.get(segment.stream)
            if tape is None or not len(segment):
                continue
            tape.shots += _shots(segment, rollout, rewards, rollout.actions)
            tape.success += segment.success_F
            if segment.finished:
                self._written = True
                self._queue.put(self._tapes.pop(segment.stream))

    def flush(self) -> None:
        """Wait until all finished episodes are written; raises as `add` does."""
        self._queue.join()
        self._raise_error()

    def close(self) -> None:
        """Write what waits, and stop; where no episode has ended, those that are under way, without an outcome."""
        for tape in () if self._written else self._tapes.values():
            tape.success = [None]
            self._queue.put(tape)
        self._queue.put(None)
        self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (tape := self._queue.get()) is not None:
            try:
                with boundary(DataError, f"the video of episode {tape.number} cannot be written to {self.folder}"):
                    if self._error is None:
                        self._write(tape)
            except GuerdonError as error:
                self._error = self._error or _of_the_disk(error, self.folder)
                if not self._failed and self._error is None:  # the run continues without it
                    log_line(f"{error}; further failures of this kind are not shown")
                self._failed = True
            self._queue.task_done()

    def _write(self, tape: _Tape) -> None:
        name = video_name(self._rank, tape.number, outcome_of(tape.success), tape.task)
        part = self.folder / f".{name}.part"
        factor = -(-_LOWEST // tape.shots[0][0].shape[0])
        high, wide = (side * factor for side in tape.shots[0][0].shape[:2])
        high, wide = high + high % 2, wide + PANEL + wide % 2
        try:
            with VideoWriter(part, height=high, width=wide, fps=FPS) as video:
                for frame, lines in tape.shots:
                    video.add(shown(frame, lines, factor=factor)[None])
            os.replace(part, self.folder / name)
        finally:
            part.unlink(missing_ok=True)


def _of_the_disk(error: GuerdonError, folder: Path) -> OSError | None:
    """The error of the disk if a video failed because of it: other files will fail, too."""
    refused = None if error.__cause__ is None else refused_by_system(error.__cause__)
    if refused is None or refused.errno not in REFUSALS:
        return None
    return OSError(refused.errno, refused.strerror, refused.filename or str(folder))


def video_name(rank: int, number: int, success: bool | None, task: str) -> str:
    """The file of an episode, with the first 50 characters of its task as a file name can hold them."""
    words = re.sub(r"[^\w-]", "_", task.lower())[:50]
    return f"rank_{rank}--episode={number}--success={success}--task={words}.mp4"


def shown(frame_H_W_3: ByteArray, lines: list[str], *, factor: int) -> ByteArray:
    """A frame, larger by a whole factor, with a white panel of lines on its right; sides are even."""
    large = frame_H_W_3.repeat(factor, axis=0).repeat(factor, axis=1)
    high, wide = large.shape[:2]
    canvas = Image.new("RGB", (wide + PANEL + wide % 2, high + high % 2), "white")
    canvas.paste(Image.fromarray(large), (0, 0))
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(_FONT)
    wrapped = [part for line in lines for part in textwrap.wrap(line, _COLUMNS, subsequent_indent="  ") or [""]]
    for i, line in enumerate(wrapped):
        draw.text((wide + 8, 6 + i * _LINE), line, fill="black", font=font)
    return np.asarray(canvas)


def _shots(
    segment: Segment, rollout: Rollout[Any], rewards: Mapping[str, Rewards], actions_B_T_A: FloatArray
) -> Iterator[tuple[ByteArray, list[str]]]:
    """Each row's frame, and the lines about the step that led to it."""
    b = segment.stream
    for frame, row, step, success in zip(
        segment.frames_F, segment.rows_F.tolist(), segment.steps_F.tolist(), segment.success_F, strict=True
    ):
        lines = [segment.task, f"step {row}" + (" - success" if success else "")]
        if row:
            numbers = ", ".join(f"{x:.2f}" for x in actions_B_T_A[b, step].reshape(-1))
            helped = rollout.intervened is not None and bool(rollout.intervened[b, step])
            lines += [f"action [{numbers}]{' - INTERVENTION' if helped else ''}"]
            lines += [f"value {name} {_at(rollout, v, b, step):.3f}" for name, v in rollout.values.items()]
            chance = _at(rollout, rollout.log_probs, b, step)
            lines += [f"log-prob {chance:.3f}", f"native reward {rollout.rewards[b, step]:.3f}"]
            lines += [_paid(name, found, b, step) for name, found in rewards.items() if name != "env"]
        yield frame, lines


def _at(rollout: Rollout[Any], values: FloatArray, b: int, step: int) -> float:
    """A number of the decision that a step executed; the sum over the parts of its action where it has several."""
    chunks = rollout.chunks
    if chunks is None:
        return float(values[b, step])
    decision, slot = int(chunks.decision[b, step]), int(chunks.slot[b, step])
    if values.ndim == 1:
        return float(values[decision])
    return float(values[decision, slot * chunks.tokens : (slot + 1) * chunks.tokens].sum())


def _paid(name: str, found: Rewards, b: int, step: int) -> str:
    """What a reward model paid for a step, and the value behind it where the step was scored."""
    if found.failed[b, step]:
        return f"{name} failed"
    line, scores = f"{name} {found.values[b, step]:.3f}", found.scores
    if scores is None:
        return line
    here = np.flatnonzero((scores.rows_N == b) & (scores.steps_N == step))
    if not len(here):
        return f"{line} (not scored)"
    reused = scores.reused_N is not None and bool(scores.reused_N[here[0]])
    return f"{line} (says {scores.values_N[here[0]]:.3f}{', of a frame like it' if reused else ''})"
