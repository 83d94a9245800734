"""The one RL loop: rollout, score, shape, advantages, update the policy, refit the reward model, log, checkpoint.

This is the only stateful part of `rl`. Killed at any moment and resumed, a run in one process goes on to the same
bytes: the state of every part is in the checkpoint, and log files are cut back to it. True success is recorded
beside every reward and never derived from one. This module does not know which study a run belongs to.

    summary = Loop(study, Path("runs/one")).run()
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from guerdon.atomic import write_json
from guerdon.errors import GuerdonError, TooManyFailuresError
from guerdon.policies.control import build_policy, save_policy
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.assemble import build_keep_up, build_sources, save_refitted
from guerdon.rl.evaluation import evaluate_policy
from guerdon.rl.failures import FailureCounter, failure_rows, refuse_failures
from guerdon.rl.films import film_episode
from guerdon.rl.learner import FlatAdam, make_batch, scheduled, update_policy
from guerdon.rl.log import Narrator, RunLog
from guerdon.rl.measure import make_rollout, measure_all
from guerdon.rl.recording import open_recording
from guerdon.rl.records import EpisodeBook, RewardScaler
from guerdon.rl.rollout import Trace, first_sightings, roll_out
from guerdon.rl.sightings import Segment, Sighting, cut_into_segments
from guerdon.rl.sources import Measured
from guerdon.rl.start import start_from_policy, start_from_run
from guerdon.rl.state import restore_state, restore_world, take_state
from guerdon.settings.study import Study
from guerdon.types import Rollout
from guerdon.worlds.build import build_world


class Forgets(Protocol):
    """A part that remembers the episodes under way."""

    def forget(self) -> None:
        """Leave them: the world begins new ones."""
        ...


EVAL_SEED = 10_000_019  # decides the starts of evaluation episodes: the same for every arm and seed


class Loop:
    """A run: its world, policy, reward sources and counters.

    Args:
        study: the resolved configuration.
        folder: the run's directory.
        resume: go on from the newest checkpoint in `folder`, if there is one.
    """

    def __init__(self, study: Study, folder: Path, *, resume: bool = False) -> None:
        torch.set_num_threads(study.runner.threads)
        self.study, self.folder = study, folder
        runner, algorithm = study.runner, study.algorithm
        self._group = algorithm.group_size if algorithm.adv_estimator == "grpo" else None
        self.world = build_world(study.env, seed=runner.seed, group_size=self._group or 1)
        self.eval_world = build_world(study.env, seed=EVAL_SEED)
        self.sources = build_sources(study)
        self.keep_ups = build_keep_up(study, self.sources)
        self.recording = open_recording(study, self.world, self.eval_world)
        self.recorder = None if self.recording is None else self.recording.train
        self.weights = study.reward.weights()
        self.gammas = {n: self.sources[n].gamma if n in self.sources else algorithm.gamma for n in self.weights}
        self.policy = build_policy(
            study.policy,
            self.world.observation_shape,
            self.world.action_space,
            sources=[] if self._group else list(self.weights),
            seed=runner.seed,
        )
        self.rng = np.random.default_rng([runner.seed, 1])
        self.book = EpisodeBook(study.env.num_envs, ["env", *self.sources])
        self.scaler = RewardScaler(self.gammas, study.env.num_envs, enabled=algorithm.normalize_rewards)
        self.failures = FailureCounter(study.reward.max_failure_rate, study.reward.failure_window)
        self.step = self.iteration = 0
        self._wall_before = 0.0
        self._started = time.perf_counter()
        self._phases: dict[str, float] = {}
        self._pending: list[Sighting] = []
        self._evaluated: tuple[int, dict[str, float]] | None = None
        self.observations = np.empty(0)
        found = ckpt.latest_checkpoint(folder / "checkpoints") if resume else None
        notes = start_from_policy(study, self.policy) if found is None else [f"resumed from {found}"]
        self.optimizer = FlatAdam(self.policy, algorithm.learning_rate)
        if found is None and runner.resume_dir:
            notes += start_from_run(study, self.policy, self.optimizer)
        offsets = None if found is None else self._load(found)
        self.log = RunLog(folder, tensorboard=runner.logger.tensorboard, offsets=offsets, purge_after=self.step)
        self.narrator = Narrator(runner.total_steps)
        notes += [
            f"[{study.reward.group_name}] {name}: {s.settings.model.model_type} from "
            f"{s.settings.model.checkpoint_path or 'no checkpoint'}, weight {s.settings.reward_weight:g}"
            for name, s in self.sources.items()
        ]
        for note in notes:
            self.narrator.say(note)
        if found is None and not self._group:
            self._begin()

    def run(self) -> dict[str, Any]:
        """Run to `runner.total_steps` and return the summary that is also written to `COMPLETE`.

        Raises:
            TooManyFailuresError: measurements failed too often; the last checkpoint can be resumed.
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
        finally:
            self.close()

    def close(self) -> None:
        """Close files, worlds and bars."""
        self.narrator.close()
        self.log.close()
        try:
            if self.recording is not None:
                self.recording.writer.close()
        finally:
            self.world.close()
            self.eval_world.close()

    # One iteration.

    def _iterate(self) -> None:
        self._phases = {}
        trace = self._roll_out()
        segments = self._see(trace)
        updated: dict[str, dict[str, float | None]] = {}
        updated |= self._refit("before", segments)
        with self._phase("score"):
            measured = measure_all(self.sources, segments, self.world.tasks, trace.mask.shape)
        self._count_failures(measured, self.step + int(trace.mask.sum()))
        with self._phase("update"):
            rollout = make_rollout(trace, measured, self.policy, group_size=self._group)
            learned = self._update(rollout)
        updated |= self._refit("after", segments)
        self.iteration += 1
        self.step += int(trace.mask.sum())
        self._record(rollout, learned, updated)

    def _roll_out(self) -> Trace:
        algorithm = self.study.algorithm
        steps = algorithm.rollout_steps
        if self._group:
            self.world.rewind(self.iteration)
            self._begin()
            steps = self.study.env.max_episode_steps or 1
        watched: list[Sighting] = self._pending
        self._pending = []
        with self._phase("simulate"):
            trace = roll_out(
                self.world,
                self.policy.actor(),
                self.observations,
                self.rng,
                steps=steps,
                wants_row=self._wants_row if self._looking else None,
                watcher=self._watch if self.recorder is not None else None,
                first=watched,
                one_episode=self._group is not None,
            )
        self.observations = trace.last_observations
        return trace

    def _see(self, trace: Trace) -> list[Segment]:
        """Draw what the sources want to see and cut the rollout at episode ends."""
        if not self.sources:
            return []
        wanted = [s for s in trace.sightings if any(source.wants(s) for source in self.sources.values())]
        if any(source.model.info.frames_needed for source in self.sources.values()):
            with self._phase("render"):
                frames = self.world.render([s.look for s in wanted])
        else:
            frames = np.zeros((len(wanted), 1, 1, 3), dtype=np.uint8)
        return cut_into_segments(wanted, frames, trace.mask, trace.terminated, trace.terminated | trace.truncated)

    def _refit(self, when: str, segments: list[Segment]) -> dict[str, dict[str, float | None]]:
        metrics = {}
        for name, keep_up in self.keep_ups.items():
            if self.sources[name].settings.model.update == when:
                with self._phase("refit"):
                    keep_up.see(segments)
                    metrics[name] = keep_up.refit()
        return metrics

    def _update(self, rollout: Rollout) -> dict[str, float | None]:
        algorithm, runner = self.study.algorithm, self.study.runner
        scales = self.scaler.update(rollout)
        batch = make_batch(rollout, self.policy, algorithm, self.weights, self.gammas, scales)
        rate = scheduled(algorithm.learning_rate, algorithm.lr_schedule, self.step / runner.total_steps)
        learned = update_policy(self.policy, self.optimizer, batch, algorithm, self.rng, learning_rate=rate)
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(rollout.observations[rollout.mask])
            self.policy.refresh_normalizer()
        return {**learned, "learning_rate": rate}

    # Beginning, seeing, recording.

    @property
    def _looking(self) -> bool:
        """Whether anybody needs pictures of training episodes."""
        return bool(self.sources) or self.recorder is not None

    def _begin(self) -> None:
        """Start new episodes in every copy; nothing of those under way may reach them."""
        transition = self.world.reset(capture=np.full(self.world.num_envs, self._looking))
        self.observations = transition.observations
        self._pending = first_sightings(self.world, transition.first_looks)
        remembering: list[Forgets] = [self.book, self.scaler, *self.sources.values(), *self.keep_ups.values()]
        for part in remembering:
            part.forget()
        if self.recorder is not None:
            for i, look in transition.first_looks.items():
                self.recorder.begin(i, transition.observations[i], look)

    def _wants_row(self, row: int) -> bool:
        if self.recorder is not None and self.recorder.wants_row(row):
            return True
        return any(source.wants_row(row) for source in self.sources.values())

    def _watch(self, rows: np.ndarray, actions: np.ndarray, transition: Any) -> None:
        assert self.recorder is not None
        self.recorder.watch(rows, actions, transition)
        if self._group:
            return  # one episode per copy: what follows it is not part of the run
        for i, look in transition.first_looks.items():
            self.recorder.begin(i, transition.observations[i], look)

    def _count_failures(self, measured: dict[str, Measured], step: int) -> None:
        """Write every failed measurement down; refuse to go on where a source says so."""
        for m in measured.values():
            self.failures.add(m.scored, m.failures)
        for row in failure_rows(measured, step):
            self.log.write("failures.jsonl", row)
        refuse_failures(self.sources, measured)

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

    def _record(
        self, rollout: Rollout, learned: dict[str, float | None], updated: dict[str, dict[str, float | None]]
    ) -> None:
        rows = self.book.add(rollout, self.weights, self.step)
        for row in rows:
            self.log.write("episodes.jsonl", row)
        refits = {f"reward_model/{n}/{k}": v for n, row in updated.items() for k, v in row.items() if k != "seconds"}
        summary = self.book.summary(rows, list(self.sources))
        self.log.metrics(
            "train",
            self.step,
            {
                **summary,
                **learned,
                **refits,
                "failure_rate": self.failures.rate,
                "failures": self.failures.total,
            },
        )
        spent = sum(self._phases.values())
        steps = int(rollout.mask.sum())
        timings = {f"seconds/{k}": round(v, 6) for k, v in self._phases.items()}
        self.log.write(
            "timings.jsonl",
            {
                "step": self.step,
                "wall_time": round(self.wall_time, 3),
                "steps_per_second": steps / spent,
                **timings,
            },
        )
        success = summary.get("success")
        shown = "" if success is None else f"success {success:.2f}"
        self.narrator.advance(self.step, shown or "collecting")

    def _true_success(self) -> dict[str, float]:
        """What the policy really achieves now; evaluated once per step of the run."""
        if self._evaluated is None or self._evaluated[0] != self.step:
            recorder = None if self.recording is None else self.recording.of_evaluation(self.step)
            result = evaluate_policy(
                self.eval_world, self.policy.actor(), episodes=self.study.runner.eval_episodes, recorder=recorder
            )
            self._evaluated = (self.step, result)
        return self._evaluated[1]

    def _evaluate(self) -> None:
        result = self._true_success()
        self.log.metrics("eval", self.step, result)
        self.log.write("timings.jsonl", {"step": self.step, "wall_time": round(self.wall_time, 3), "kind": "eval"})
        alarm = bool(self.book.summary([], list(self.sources)).get("hacking_alarm"))
        self.narrator.say(
            f"step {self.step}: true success {result.get('success', 0.0):.2f} over {result['episodes']:.0f} "
            f"evaluation episodes, {self.step / max(self.wall_time, 1e-9):.0f} steps/s"
            + (" | HACKING ALARM: the learned return rises, success does not" if alarm else "")
        )

    def _film(self) -> None:
        path = self.folder / "films" / f"step_{self.step:012d}.npz"
        try:  # a picture for the report: where nothing can be drawn, the run is no worse for it
            film_episode(
                self.eval_world, self.policy.actor(), self.sources, path,
                step=self.step, frames=self.study.runner.film_frames,
            )  # fmt: skip
        except GuerdonError as error:
            self.narrator.say(f"no film: {error}")

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

    def _save(self) -> None:
        tensors, values = take_state(self)
        ckpt.save_checkpoint(
            self.folder / "checkpoints", self.step, tensors, values, keep=self.study.runner.keep_checkpoints
        )

    def _load(self, path: Path) -> dict[str, int]:
        tensors, values = ckpt.load_checkpoint(path)
        restore_state(self, tensors, values)
        self._wall_before = float(values["wall_time"])
        if not self._group:  # group-relative iterations begin with episodes of their own
            restore_world(self, tensors, values)
            if not self.world.exact_resume:
                self._begin()
        offsets: dict[str, int] = values["offsets"]
        return offsets

    def _complete(self) -> dict[str, Any]:
        self._film()
        save_policy(self.policy, self.folder / "policy")
        if self.study.runner.save_reward_models:
            for name in self.keep_ups:
                save_refitted(self.sources[name], self.folder / "reward_models" / name)
        summary = {
            "step": self.step,
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
