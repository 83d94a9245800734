"""The RL loop: collect, measure, assign credit, learn, for text and robots alike.

The body of `Loop.iterate` is the algorithm. All state is in the parts that have `state` and `restore`: the collector,
the reward sources, the learner, and the statistics of episodes. A run that is killed and resumed goes on to the same
bytes: checkpoints hold the state of every part, and log files are cut back to them. True success is recorded with every
reward and never derived from one.

    summary = Loop(study, Path("runs/one")).run()
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guerdon.compute import profiling
from guerdon.compute.finite import DIVERGED, first_non_finite
from guerdon.compute.optimizers import under
from guerdon.errors import (
    ClusterError,
    ConfigError,
    GuerdonError,
    NonFiniteError,
    SimulatorError,
    TooManyFailuresError,
)
from guerdon.files.atomic import write_json
from guerdon.policies.robots.robot import RobotPolicy
from guerdon.processes.clock import counted
from guerdon.processes.progress import ProgressBar, doing, timed
from guerdon.rewards.failures import EVALUATION, FailureCounter, failure_rows, refuse_failures
from guerdon.rewards.source import GroundTruth
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.best_policy import BestPolicy
from guerdon.rl.episode_stats import TRUTH
from guerdon.rl.log import CONVERSATIONS, RunLog, open_sinks, true_success
from guerdon.rl.parts import Parts
from guerdon.rl.profile import RunProfile
from guerdon.rl.reward_warnings import reward_warnings
from guerdon.settings.algorithm import RobotAlgorithmSettings
from guerdon.settings.study import Study
from guerdon.types import Failure, Metrics, Rewards, Rollout

# ---------------------------------------------------------------------------------------------------------------------
# Averaged weights of a policy, which keep what noisy updates reached.
#
#     average = PolicyAverage(policy, decay=0.8)
#     average.follow()                # after each rollout
#     with average.acting():          # the policy has the averaged weights
#         evaluate(policy)
#
# The policy itself learns and collects with its last weights.
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def acting_with(policy: RobotPolicy, weights: dict[str, Tensor]) -> Iterator[None]:
    """Inside the block a policy has other weights."""
    own = _copied(policy)
    try:
        policy.load_tensors(weights)
        yield
    finally:
        policy.load_tensors(own)


def _copied(policy: RobotPolicy) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in policy.tensors().items()}


class PolicyAverage:
    """An exponential moving average of a policy's weights; what else it stores, such as statistics, is current.

    Args:
        policy: learns; its weights now are the first average.
        decay: share of the average that a rollout leaves; about 1 / (1 - decay) rollouts count, and the start with
            decay ** rollouts.
    """

    def __init__(self, policy: RobotPolicy, decay: float) -> None:
        self._policy, self._decay = policy, decay
        self._learned = {name for name, _ in policy.named_parameters()}
        self._average = _copied(policy)
        if not self._learned & self._average.keys():
            raise ConfigError.about(
                "algorithm.ema_decay", "needs a policy whose tensors have the names of its parameters: remove it"
            )

    def follow(self) -> None:
        """Take in the weights after the updates of a rollout.

        Raises:
            ConfigError: the policy stores other tensors than before.
        """
        now, before = _copied(self._policy), self._average
        shapes = [{name: value.shape for name, value in one.items()} for one in (now, before)]
        if shapes[0] != shapes[1]:
            changed = min(name for name in now.keys() | before.keys() if shapes[0].get(name) != shapes[1].get(name))
            raise ConfigError.about(
                "algorithm.ema_decay",
                f"needs a policy whose tensors keep their names and shapes, unlike {changed}: remove it",
            )
        for name, value in now.items():
            self._average[name] = before[name].lerp(value, 1 - self._decay) if name in self._learned else value

    def acting(self) -> AbstractContextManager[None]:
        """Inside the block the policy has the averaged weights."""
        return acting_with(self._policy, self._average)

    def tensors(self) -> dict[str, Tensor]:
        """The averaged weights, by name."""
        return self._average

    def load_tensors(self, stored: Mapping[str, Tensor]) -> None:
        """Return to what `tensors` gave."""
        self._average = {name: value.to(self._average[name].device) for name, value in stored.items()}


# ---------------------------------------------------------------------------------------------------------------------


def build_parts(study: Study, folder: Path, *, fresh: bool) -> Parts:
    """The parts of a run.

    Args:
        study: the resolved configuration.
        folder: of the run.
        fresh: take over `policy.checkpoint` and `runner.resume_dir`; off where a checkpoint of this run follows.
    """
    if study.text:
        from guerdon.rl.build_text import text_parts

        return text_parts(study, folder, fresh=fresh)
    from guerdon.rl.build_control import control_parts

    return control_parts(study, folder, fresh=fresh)


class Loop:
    """A run: its parts, its counters and its log.

    Args:
        study: the resolved configuration.
        folder: the run's directory.
        resume: go on from the newest checkpoint in `folder`, if there is one.
        profile: iterations to record (`rl/profile.py`); 0: none.

    Attributes:
        collector, sources, learner, stats: the parts that hold state.
        average: of the policy's weights, which is evaluated and kept in its place; None: the last ones are.
        best: keeps the best policy; None: it is not kept.
        step: environment steps, or responses, up to now: what `runner.total_steps` counts.
    """

    def __init__(self, study: Study, folder: Path, *, resume: bool = False, profile: int = 0) -> None:
        self.profile = RunProfile(folder / "profile", profile)
        torch.set_num_threads(study.runner.threads)
        self.study, self.folder = study, folder
        found = ckpt.latest_checkpoint(folder / "checkpoints") if resume else None
        self.parts = parts = build_parts(study, folder, fresh=found is None)
        self.collector, self.sources = parts.collector, parts.sources
        self.learner, self.stats = parts.learner, parts.stats
        self.failures = FailureCounter(study.reward.max_failure_rate, study.reward.failure_window)
        self.step = 0
        self._wall_before = 0.0
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._evaluated: tuple[int, Mapping[str, float]] | None = None
        self._before: int | None = None  # the step before an iteration after which an evaluation or `_show` is due
        self.best: BestPolicy | None = None
        if not study.text and study.runner.episodes_of_best:
            self.best = BestPolicy(folder, parts.save_policy)
        self.average: PolicyAverage | None = None
        try:
            if isinstance(study.algorithm, RobotAlgorithmSettings) and study.algorithm.ema_decay is not None:
                self.average = PolicyAverage(self.learner.policy, study.algorithm.ema_decay)
            notes = list(parts.notes)
            offsets = at = None
            if found is not None:
                offsets = self._load(found)
                at = self.step
                notes.insert(0, f"resumed from {found}")
                self._go_on()
            warnings = [f"WARNING: {line}" for line in reward_warnings(study)]
            sinks = open_sinks(study.runner.logger, folder, at, group=study.name, config=study.model_dump_json())
        except GuerdonError:
            parts.close()
            raise
        more = () if parts.conversations is None else (CONVERSATIONS,)
        self.log = RunLog(folder, sinks=sinks, offsets=offsets, more=more)
        self.progress = ProgressBar(study.runner.total_steps)
        for note in [*notes, *warnings]:
            self.progress.write_line(note)
        self._start = copy.deepcopy(self._state()) if found is None else None  # until the first checkpoint

    def run(self) -> dict[str, Any]:
        """Run to `runner.total_steps` and return the summary that is also written to `COMPLETE`.

        The checkpoint of the end is from before the evaluation there, so that a longer run leaves what one of that
        length leaves.

        Raises:
            TooManyFailuresError: measurements failed too often; the last checkpoint can be resumed.
            NonFiniteError: training diverged; the last checkpoint is from before.
        """
        runner = self.study.runner
        try:
            while self.step < runner.total_steps or self._before is not None:
                self.profile.before()
                if self._before is None:
                    self._before = self.step
                    self.iterate()
                before, ended = self._before, self.step >= runner.total_steps
                place = self._place() if ended else None  # a longer run may not look at the policy here
                self._look(before)
                self._stop_if_failing()
                if ended or _crossed(before, self.step, runner.checkpoint_every):
                    self._save(place)
                self._say(self.profile.after())
            self._say(self.profile.close())
            self._stop_if_failing()
            return self._complete()
        except NonFiniteError as error:
            raise NonFiniteError(
                f"{error}. The checkpoint {self._fall_back()} is from before: start another run from it with the "
                f"changed configuration (runner.resume_dir={self.folder}), or go on as configured with --resume"
            ) from error
        finally:
            self.close()

    def _say(self, text: str | None) -> None:
        """Show what there is to say, line by line."""
        for line in (text or "").splitlines():
            self.progress.write_line(line)

    def iterate(self) -> None:
        """One iteration."""
        self._seconds = {}
        progress = min(1.0, self.step / self.study.runner.schedule_length)
        rollout = self._collect()
        metrics = self._learn(rollout, before=True)
        ready = {name: source for name, source in self.sources.items() if source.ready and not source.terms.over}
        with timed(self._seconds, "score"):
            rewards = {name: source.measure(rollout) for name, source in ready.items()}
        self._count_failures(rewards, self.step + rollout.steps)
        with timed(self._seconds, "update"):
            terms = {name: terms for name, terms in self.parts.terms.items() if name in ready}
            learned = self.learner.update(rollout, rewards, terms, progress=progress)
            if self.average is not None:
                self.average.follow()
        metrics |= self._learn(rollout, before=False)
        if self.parts.videos is not None:
            with timed(self._seconds, "video"):
                self.parts.videos.add(rollout, rewards)
        self.step += rollout.steps
        measured = {f"reward_model/{n}/{k}": v for n, r in rewards.items() for k, v in r.metrics.items()}
        left = {f"reward_weight/{name}": 0.0 for name, source in self.sources.items() if source.terms.over}
        self._record(rollout, rewards, {**rollout.metrics, **learned, **left, **measured, **metrics})
        self._lower_weights()

    def close(self) -> None:
        """Close files, worlds and bars."""
        profiling.discard()
        with closing(self.parts), closing(self.log):
            self.progress.close()

    # Parts of an iteration.

    def _collect(self) -> Rollout[Any]:
        """The next rollout; before it, those that reward models warm up on, which count as steps, too."""
        policy, version = self.learner.policy, self.learner.version
        warm_up: list[Rollout[Any]] = []
        while waiting := [one for one in self.sources.values() if not one.ready and one.policy_waits]:
            warm_up.append(self.collector.collect(policy, version=version, warm_up=True))
            with timed(self._seconds, "warm up"):
                for source in waiting:
                    source.learn(warm_up[-1])
        rollout = self.collector.collect(policy, version=version)
        if rollout.fresh:  # nothing of earlier episodes may reach these
            for source in self.sources.values():
                source.reset_streams()
        return rollout.counting(warm_up) if warm_up else rollout

    def _learn(self, rollout: Rollout[Any], *, before: bool) -> Metrics:
        """Let the reward models learn that learn at this point."""
        metrics: Metrics = {}
        for name, source in self.sources.items():
            if source.learn_before == before and not source.terms.over:
                with timed(self._seconds, "refit"):
                    found = source.learn(rollout)
                metrics |= {f"reward_model/{name}/{k}": v for k, v in found.items() if k != "seconds"}
        return metrics

    def _lower_weights(self) -> None:
        """Let the weights that fall with success follow it."""
        for source in self.sources.values():
            if source.terms.falling is not None:
                source.terms.falling.observe(self.stats.recent_success)

    @property
    def _weights_stay(self) -> bool:
        """Whether a weight that should fall with success stays, because nobody can say what share succeeds."""
        return self.stats.only_successes and any(one.terms.falling is not None for one in self.sources.values())

    def _count_failures(self, rewards: Mapping[str, Rewards], step: int) -> None:
        """Write every failed measurement down; refuse to go on where a source says so."""
        for name, found in rewards.items():
            if found.failures or name in self.failures.recent or not self._rarely_fails(name, found):
                self.failures.add(name, found.measured, found.failures)
        for row in failure_rows(rewards, step):
            self.log.write("failures.jsonl", row)
        refuse_failures({name: source.terms.on_failure for name, source in self.sources.items()}, rewards)

    def _rarely_fails(self, name: str, found: Rewards) -> bool:
        """Whether episodes are counted only from the first one that fails: of environments in this process."""
        here = not self.study.text and self.study.env.vectorization == "sync"
        return isinstance(self.sources[name], GroundTruth) and (here or not found.measured)

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

    def _record(self, rollout: Rollout[Any], rewards: Mapping[str, Rewards], metrics: Metrics) -> None:
        """Log the iteration: its episodes, its metrics, its time."""
        rows = self.stats.add(rollout, rewards, self.learner.source_weights, self.step)
        summary = self.stats.summary(rows)
        for row in rows:
            self.log.write("episodes.jsonl", row)
        if self.parts.conversations is not None:
            for row in self.parts.conversations(rollout, rewards, rows, self.step):
                self.log.write(CONVERSATIONS, row)
        counts: Metrics = {"failure_rate": self.failures.rate, "failures": self.failures.total}
        counts |= {f"failure_rate/{name}": rate for name, rate in self.failures.rates.items()}
        self.log.metrics("train", self.step, {**summary, **metrics, **counts})
        seconds = {**rollout.seconds, **self._seconds}
        timings = {f"seconds/{k}": round(v, 6) for k, v in seconds.items()}
        rate = rollout.steps / sum(seconds.values())
        wall = round(self.wall_time, 3)
        self.log.write("timings.jsonl", {"step": self.step, "wall_time": wall, "steps_per_second": rate, **timings})
        self.progress.advance(self.step, _shown(summary))

    @doing("evaluating the policy")
    def _true_success(self) -> Mapping[str, float]:
        """What the policy achieves now by ground truth; evaluated once per step of the run.

        Raises:
            NonFiniteError: its weights, or those of another part of the run, are not finite.
        """
        if self._evaluated is None or self._evaluated[0] != self.step:
            lost = first_non_finite(self._state()[0].items())
            if lost:
                raise NonFiniteError(f"the policy cannot be evaluated: {lost} is not finite. {DIVERGED}")
            episodes = self.study.runner.eval_episodes
            with self._averaged(), counted("evaluate", closed=True):
                if self.parts.evaluate is not None:
                    found = self.parts.evaluate(episodes)
                else:
                    found = self.collector.evaluate(self.learner.policy, episodes=episodes, step=self.step)
            self._evaluated = (self.step, found)
            broken = int(found.get("episodes_failed", 0))
            if broken or EVALUATION in self.failures.recent:
                why = Failure("simulator_broke", "in an evaluation")
                self.failures.add(EVALUATION, int(found["episodes"]) + broken, [(-1, 0, why)] * broken)
        return self._evaluated[1]

    def _look(self, before: int) -> None:
        """Evaluate and `_show` where due; on an error, save a checkpoint from which a resumed run repeats this."""
        runner, done = self.study.runner, False
        try:
            if runner.film_every and _crossed(before, self.step, runner.film_every):
                self._show()
            if _crossed(before, self.step, runner.eval_every) or self.step >= runner.total_steps:
                self._evaluate()  # writes to the log, so it comes last
            self._before, done = None, True
        except (NonFiniteError, ClusterError):
            done = True  # weights that no checkpoint may hold, or are not all here
            raise
        finally:
            if not done:
                self._save()

    def _evaluate(self) -> None:
        result = self._true_success()
        self.log.metrics("eval", self.step, result)
        self.log.write("timings.jsonl", {"step": self.step, "wall_time": round(self.wall_time, 3), "kind": "eval"})
        if self.best is not None:
            with self._averaged():
                self.best.consider(self.step, result)
        alarm, inversion, failing = self.stats.alarm(), self.stats.inversion(), self.stats.failure_alarm()
        self.progress.write_line(
            f"step {self.step}: {true_success(result)}, "
            f"{self.step / max(self.wall_time, 1e-9):.0f} {self.parts.unit}/s"
            + (f" | HACKING ALARM: {alarm}" if alarm else "")
            + (f" | INVERSION ALARM: {inversion}" if inversion else "")
            + (f" | FAILURE ALARM: {failing}" if failing else "")
            + (" | weights do not fall with success, since only successes are reported" if self._weights_stay else "")
        )

    def _show(self) -> None:
        self.progress.write_line(f"step {self.step}: writing episodes for the report")
        try:  # a picture for the report: where nothing can be drawn, the run goes on
            with self._averaged():
                self.parts.show(self.folder / "films", self.step)
        except GuerdonError as error:
            self.progress.write_line(f"no episodes for the report: {error}")

    def _averaged(self) -> AbstractContextManager[None]:
        return nullcontext() if self.average is None else self.average.acting()

    @property
    def wall_time(self) -> float:
        """Seconds of running time, sessions before a resume included."""
        return self._wall_before + time.perf_counter() - self._started

    # Checkpoints.

    def _state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors and JSON-able values of everything that decides what comes next."""
        tensors, learner = self.learner.state()
        if self.average is not None:
            tensors |= {f"average.{k}": v for k, v in self.average.tensors().items()}
        values: dict[str, Any] = {"sources": learner["sources"], "learner": learner}
        stored = {f"source/{name}": source.state() for name, source in self.sources.items()}
        for name, (more, own) in {"collector": self.collector.state(), **stored}.items():
            tensors |= {f"{name}.{k}": v for k, v in more.items()}
            values[name] = own
        values |= {"step": self.step, "wall_time": self.wall_time, "stats": self.stats.state_dict()}
        return tensors, values | self._place()

    def _place(self) -> dict[str, Any]:
        """The part of the state that a look at the policy changes."""
        return {
            "before": self._before,
            "failures": self.failures.state_dict(),
            "offsets": self.log.offsets(),
            "best": None if self.best is None else self.best.state(),
        }

    def _load(self, path: Path) -> dict[str, int]:
        """Return to a checkpoint; the sizes of the log files at that time."""
        tensors, values = ckpt.load_state(path)
        self.learner.restore(tensors, values["learner"])
        if self.average is not None:
            self.average.load_tensors(under("average", tensors))
        self.collector.restore(under("collector", tensors), values["collector"])
        for name, source in self.sources.items():
            source.restore(under(f"source/{name}", tensors), values[f"source/{name}"])
        self.stats.load_state_dict(values["stats"])
        self.failures.load_state_dict(values["failures"])
        self.step, self._wall_before = int(values["step"]), float(values["wall_time"])
        self._before = values["before"]
        if self.best is not None:
            self.best.restore(values.get("best"))
        offsets: dict[str, int] = values["offsets"]
        return offsets

    def _go_on(self) -> None:
        """Remove what is made again where it is due: the end, and what the report shows from the checkpoint on."""
        (self.folder / "COMPLETE").unlink(missing_ok=True)
        for shown in (self.folder / "films").glob("step_*"):
            step = int(shown.stem.removeprefix("step_"))
            if step > self.step or (step == self.step and self._before is not None):
                shown.unlink()

    @property
    def _skipped(self) -> int:
        """Updates skipped in a row up to now, because they were not finite; of the part that skipped most."""
        learning = (source.skipped_in_a_row for source in self.sources.values())
        return max(self.learner.skipped_in_a_row, *learning)

    def _save(self, place: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint; not of weights whose last update was skipped, as they may have diverged.

        Args:
            place: from which a run goes on, an earlier `_place` of this step; None: from here.

        Raises:
            NonFiniteError: weights are not finite, or the run would end with such weights.
        """
        if self._skipped:
            if self.step >= self.study.runner.total_steps:
                raise NonFiniteError(
                    f"the run ended with {self._skipped} skipped updates in a row, because the loss or its gradient "
                    f"is not finite. {DIVERGED}"
                )
            self._fall_back()
            return
        self.log.flush()
        if self.parts.videos is not None:
            self.parts.videos.flush()
        keep = self.study.runner.keep_checkpoints
        tensors, values = self._state()
        ckpt.save_checkpoint(self.folder / "checkpoints", self.step, tensors, {**values, **(place or {})}, keep=keep)
        if self.best is not None:
            self.best.forget()
        if (saved := getattr(self.learner, "saved", None)) is not None:
            saved(keep)
        self._start = None

    def _fall_back(self) -> Path | None:
        """The newest checkpoint; that of the start of the run where there is no other."""
        folder = self.folder / "checkpoints"
        found = ckpt.latest_checkpoint(folder)
        if found is None and self._start is not None:
            found = ckpt.save_checkpoint(folder, 0, *self._start, keep=1)
        return found

    def _complete(self) -> dict[str, Any]:
        self._show()
        with self._averaged():
            self.parts.save_policy(self.folder / "policy")
        if self.study.runner.save_reward_models:
            for name, source in self.sources.items():
                source.save(self.folder / "reward_models" / name)
        summary = {
            "step": self.step,
            "unit": self.parts.unit,
            "wall_time": round(self.wall_time, 3),
            "final": self._true_success(),
            "failures": dict(self.failures.reasons),
            "scored": self.failures.scored,
        }
        if self.best is not None and self.best.found is not None:
            summary["best"] = self._best(self.best)
        if self.stats.reported:
            summary["episodes"] = {**self.stats.reported, "unfinished": self.stats.unfinished}
        write_json(self.folder / "COMPLETE", summary)
        if self.study.runner.keep_checkpoints == 0:
            shutil.rmtree(self.folder / "checkpoints")
        return summary

    @doing("evaluating the best policy")
    def _best(self, best: BestPolicy) -> dict[str, Any]:
        """Keep the policy of the best evaluation: its step, that evaluation, and what it achieves in fresh episodes.

        `fresh` is None where there can be none; `why` says why.
        """
        best.publish()
        policy, episodes = self.learner.policy, self.study.runner.episodes_of_best
        kept = {**(best.state() or {}), "fresh": None}
        if policy.sharded:
            return {**kept, "why": "its weights are spread over several learners"}
        try:  # the run is over: what breaks here takes nothing from it
            with acting_with(policy, best.weights()):
                fresh = self.collector.evaluate(policy, episodes=episodes, step=self.step, fresh=True)
        except SimulatorError as error:
            return {**kept, "why": str(error)}
        if not fresh["episodes"]:
            return {**kept, "why": "no start is left that no other episode has, or the simulator broke in all of them"}
        return {**kept, "fresh": fresh}


def _shown(summary: Mapping[str, Any]) -> str:
    """What the line of progress says of an iteration: the first of truth, success and return that is known."""
    truth, success, paid = summary.get(TRUTH), summary.get("success"), summary.get("return/env")
    if truth is not None:
        return f"truth {truth:.4g}"
    if success is not None:
        return f"success {success:.2f}"
    if not summary["episodes"]:
        return "collecting"
    return "success unknown" if paid is None else f"return {paid:.4g}"


def _crossed(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, after]."""
    return after // every > before // every
