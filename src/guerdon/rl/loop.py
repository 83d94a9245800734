"""The one RL loop: rollout, score, shape, advantages, update the policy, refit the reward model, log, checkpoint.

Robots and language models go through it alike; what acting and learning mean for each is its side's (`rl.side`).
The loop and its side are the only stateful part of `rl`. Killed at any moment and resumed, a run in one process
goes on to the same bytes: the state of every part is in the checkpoint, and log files are cut back to it. True
success is recorded beside every reward and never derived from one. This module does not know which study a run
belongs to.

    summary = Loop(study, Path("runs/one")).run()
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from guerdon.atomic import write_json
from guerdon.errors import GuerdonError, NonFiniteError, TooManyFailuresError
from guerdon.finite import first_non_finite
from guerdon.progress import ProgressBar
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.failures import FailureCounter, failure_rows, refuse_failures
from guerdon.rl.log import RunLog, true_success
from guerdon.rl.records import RewardedRollout
from guerdon.rl.side import Refits, Side
from guerdon.settings.study import Study
from guerdon.types import Rewards


def build_side(study: Study, *, fresh: bool) -> Side:
    """The side that the `policy` section asks for.

    Args:
        study: the resolved configuration.
        fresh: whether the run starts from nothing; off where a checkpoint follows.
    """
    if study.text:
        from guerdon.rl.text_side import TextSide

        return TextSide(study, fresh=fresh)
    from guerdon.rl.control_side import ControlSide

    return ControlSide(study, fresh=fresh)


class Loop:
    """A run: its side, its counters and its log.

    Args:
        study: the resolved configuration.
        folder: the run's directory.
        resume: go on from the newest checkpoint in `folder`, if there is one.
    """

    def __init__(self, study: Study, folder: Path, *, resume: bool = False) -> None:
        torch.set_num_threads(study.runner.threads)
        self.study, self.folder = study, folder
        found = ckpt.latest_checkpoint(folder / "checkpoints") if resume else None
        self.side = build_side(study, fresh=found is None)
        self.failures = FailureCounter(study.reward.max_failure_rate, study.reward.failure_window)
        self.step = 0
        self._wall_before = 0.0
        self._started = time.perf_counter()
        self._phases: dict[str, float] = {}
        self._evaluated: tuple[int, dict[str, float]] | None = None
        offsets = None if found is None else self._load(found)
        tensorboard = study.runner.logger.tensorboard
        self.log = RunLog(folder, tensorboard=tensorboard, offsets=offsets, purge_after=self.step)
        self._start: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None  # until the first checkpoint
        self.progress = ProgressBar(study.runner.total_steps)
        for note in [*([] if found is None else [f"resumed from {found}"]), *self.side.notes]:
            self.progress.write_line(note)
        if found is None:
            self.side.begin()
            self._start = copy.deepcopy(self._state())

    def run(self) -> dict[str, Any]:
        """Run to `runner.total_steps` and return the summary that is also written to `COMPLETE`.

        Raises:
            TooManyFailuresError: measurements failed too often; the last checkpoint can be resumed.
            NonFiniteError: training diverged; the last checkpoint is from before.
        """
        runner = self.study.runner
        try:
            while self.step < runner.total_steps:
                before = self.step
                self._iterate()
                if _crossed(before, self.step, runner.eval_every) or self.step >= runner.total_steps:
                    self._evaluate()
                if runner.film_every and _crossed(before, self.step, runner.film_every):
                    self._film()
                self._stop_if_failing()
                if _crossed(before, self.step, runner.checkpoint_every) or self.step >= runner.total_steps:
                    self._save()
            self._stop_if_failing()
            return self._complete()
        except NonFiniteError as error:
            raise NonFiniteError(
                f"{error}. The checkpoint {self._fall_back()} is from before: start another run from it with the "
                f"changed configuration (runner.resume_dir={self.folder}), or go on as configured with --resume"
            ) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close files, worlds and bars."""
        self.progress.close()
        self.log.close()
        self.side.close()

    # One iteration.

    def _iterate(self) -> None:
        self._phases = {}
        side = self.side
        happened = side.roll_out(self._phase)
        self._phases |= side.seconds(happened)
        taken = side.steps(happened)
        before = side.refit("before", happened, self._phase)
        measured = side.score(happened, self._phase)
        self._count_failures(measured, self.step + taken)
        progress = self.step / self.study.runner.total_steps
        rollout, learned = side.update(happened, measured, progress=progress, phase=self._phase)
        after = side.refit("after", happened, self._phase)
        updated = {n: before.get(n, {}) | rewards.metrics | after.get(n, {}) for n, rewards in measured.items()}
        self.step += taken
        self._record(rollout, taken, learned, updated)

    def _count_failures(self, measured: Mapping[str, Rewards], step: int) -> None:
        """Write every failed measurement down; refuse to go on where a source says so."""
        for name, m in measured.items():
            self.failures.add(name, m.measured, m.failures)
        for row in failure_rows(measured, step):
            self.log.write("failures.jsonl", row)
        refuse_failures(self.side.on_failure, measured)

    def _stop_if_failing(self) -> None:
        """Stop with a checkpoint when measurements fail too often."""
        at_end = self.step >= self.study.runner.total_steps
        if not self.failures.too_many(at_end=at_end):
            return
        message = self.failures.message(at_end=at_end)
        if not at_end:
            self.failures.forgive()
        self._save()
        raise TooManyFailuresError(message)

    def _fall_back(self) -> Path | None:
        """The newest checkpoint; that of the start of the run where there is no other."""
        folder = self.folder / "checkpoints"
        found = ckpt.latest_checkpoint(folder)
        if found is None and self._start is not None:
            found = ckpt.save_checkpoint(folder, 0, *self._start, keep=1)
        return found

    def _record(
        self, rollout: RewardedRollout, taken: int, learned: Mapping[str, float | None], updated: Refits
    ) -> None:
        rows, summary = self.side.record(rollout, self.step)
        for row in rows:
            self.log.write("episodes.jsonl", row)
        refits = {f"reward_model/{n}/{k}": v for n, row in updated.items() for k, v in row.items() if k != "seconds"}
        counts = {"failure_rate": self.failures.rate, "failures": self.failures.total}
        counts |= {f"failure_rate/{name}": rate for name, rate in self.failures.rates.items()}
        self.log.metrics("train", self.step, {**summary, **learned, **refits, **counts})
        timings = {f"seconds/{k}": round(v, 6) for k, v in self._phases.items()}
        rate = taken / sum(self._phases.values())
        wall = round(self.wall_time, 3)
        self.log.write("timings.jsonl", {"step": self.step, "wall_time": wall, "steps_per_second": rate, **timings})
        success = summary.get("success")
        unknown = "success unknown" if summary["episodes"] else "collecting"
        self.progress.advance(self.step, unknown if success is None else f"success {success:.2f}")

    def _true_success(self) -> dict[str, float]:
        """What the policy really achieves now; evaluated once per step of the run.

        Raises:
            NonFiniteError: its weights, or those of another part of the run, are not finite.
        """
        if self._evaluated is None or self._evaluated[0] != self.step:
            lost = first_non_finite(self.side.state()[0].items())
            if lost:
                raise NonFiniteError(f"the policy cannot be evaluated: {lost} is not finite. Lower the learning rate")
            self._evaluated = (self.step, self.side.evaluate(self.step))
        return self._evaluated[1]

    def _evaluate(self) -> None:
        result = self._true_success()
        self.log.metrics("eval", self.step, result)
        self.log.write("timings.jsonl", {"step": self.step, "wall_time": round(self.wall_time, 3), "kind": "eval"})
        alarm = self.side.alarm()
        self.progress.write_line(
            f"step {self.step}: {true_success(result)}, "
            f"{self.step / max(self.wall_time, 1e-9):.0f} {self.side.unit}/s"
            + (f" | HACKING ALARM: {alarm}" if alarm else "")
        )

    def _film(self) -> None:
        try:  # a picture for the report: where nothing can be drawn, the run is no worse for it
            self.side.film(self.folder / "films", self.step)
        except GuerdonError as error:
            self.progress.write_line(f"no film: {error}")

    @property
    def wall_time(self) -> float:
        """Seconds of running time, sessions before a resume included."""
        return self._wall_before + time.perf_counter() - self._started

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - start

    # Checkpoints.

    def _state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors, values = self.side.state()
        return tensors, values | {
            "step": self.step,
            "wall_time": self.wall_time,
            "failures": self.failures.state_dict(),
            "offsets": self.log.offsets(),
        }

    def _save(self) -> None:
        """Write a checkpoint; not of weights whose last update was skipped, as they may have diverged.

        Raises:
            NonFiniteError: weights are not finite, or the run would end with such weights.
        """
        skipped = self.side.skipped_in_a_row
        if skipped:
            if self.step >= self.study.runner.total_steps:
                raise NonFiniteError(
                    f"the run ended with {skipped} skipped updates in a row, because the loss or its gradient is not "
                    "finite: lower the learning rate"
                )
            self._fall_back()
            return
        keep = self.study.runner.keep_checkpoints
        ckpt.save_checkpoint(self.folder / "checkpoints", self.step, *self._state(), keep=keep)
        self._start = None

    def _load(self, path: Path) -> dict[str, int]:
        tensors, values = ckpt.load_state(path)
        self.side.restore(tensors, values)
        self.step, self._wall_before = int(values["step"]), float(values["wall_time"])
        self.failures.load_state_dict(values["failures"])
        offsets: dict[str, int] = values["offsets"]
        return offsets

    def _complete(self) -> dict[str, Any]:
        self._film()
        self.side.save(self.folder)
        summary = {
            "step": self.step,
            "unit": self.side.unit,
            "wall_time": round(self.wall_time, 3),
            "final": self._true_success(),
            "failures": dict(self.failures.reasons),
            "scored": self.failures.scored,
        }
        write_json(self.folder / "COMPLETE", summary)
        if self.study.runner.keep_checkpoints == 0:
            shutil.rmtree(self.folder / "checkpoints")
        return summary


def _crossed(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, after]."""
    return after // every > before // every
