"""Runner of jobs that depend on each other, a few at a time; a failed job stops only those that need it.

Each job is a process with its own log, and ends when this process ends. A job that finished is not run again; one
whose folder is in use by another process waits for that process. Processes are forked from one server that has
imported the heavy packages already, so that a small job does not cost seconds of imports. Another place for jobs, such
as a cluster, can take that of these processes.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from guerdon.errors import InUseError
from guerdon.files import atomic
from guerdon.files.atomic import held
from guerdon.processes.launchers import alone
from guerdon.processes.subprocess_worker import end_with_parent

_log = logging.getLogger(__name__)

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LP_NUM_THREADS")
_PRELOAD = (
    "torch",
    "transformers.trainer",
    "scipy.stats",
    "guerdon.train.images",
    "guerdon.rl.run",
    "guerdon.rl.build_control",
    "guerdon.evaluation.suites.image_suite",
    "guerdon.collect.collect",
    "guerdon.comparison.report",
)
"""What the server imports before it forks; none of it starts threads, opens a display or touches a GPU."""
_GRACE = 20.0  # seconds
_PAUSE = 0.5  # seconds between looks at a folder in which another process works


@dataclass(frozen=True)
class Job:
    """One command.

    Attributes:
        name: unique, also the name of its log and of its mark of completion.
        arguments: what follows `guerdon` on a command line.
        needs: names of jobs that must have finished.
        cost: expected seconds; of the jobs that could start, the longest starts first.
        urgent: others wait for it, so it goes before longer ones.
        folder: where it writes, for `FAILED.json` when it dies without a word.
        stage: its name in `guerdon.plan.stages.STAGES`; empty: it is none.
    """

    name: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    cost: float = 0.0
    urgent: bool = False
    folder: Path | None = None
    stage: str = ""


@dataclass(frozen=True)
class JobResult:
    """The end of a job: `done`, `failed` or `skipped` (something it needs failed), and its last line."""

    job: Job
    state: str
    message: str = ""
    seconds: float = 0.0


def run_verb(arguments: Sequence[str]) -> None:
    """What `python -m guerdon` does with these arguments; leaves by SystemExit."""
    sys.argv = ["guerdon", *arguments]
    runpy.run_module("guerdon", run_name="__main__")


class JobPlace(Protocol):
    """Where jobs run. `start` is called from threads."""

    def start(self, name: str, arguments: Sequence[str], log: Path) -> int:
        """Run a job to its end and return its exit status; -15 without a start when all is ending."""
        ...

    def end(self) -> None:
        """End the jobs that run, with time to leave a whole checkpoint, and let no other one start."""
        ...


class _Schedule:
    """Jobs that wait, and the results of those that are settled, in order of their end."""

    def __init__(self, jobs: Sequence[Job], say: Callable[[JobResult, int, int], None]) -> None:
        self.waiting = {job.name: job for job in jobs}
        self.results: dict[str, JobResult] = {}
        self._count, self._say = len(jobs), say

    def settle(self, result: JobResult) -> None:
        """Take in the end of a job, and say so."""
        self.waiting.pop(result.job.name, None)
        self.results[result.job.name] = result
        self._say(result, len(self.results), self._count)

    def skip_broken(self) -> None:
        """Settle jobs that need one that did not finish."""
        for job in list(self.waiting.values()):
            settled = [name for name in job.needs if name in self.results]
            broken = [name for name in settled if self.results[name].state != "done"]
            if broken:
                self.settle(JobResult(job, "skipped", f"{broken[0]} did not finish"))

    def skip_all(self) -> None:
        """Settle jobs that nothing which could still end will make ready."""
        for job in list(self.waiting.values()):
            self.settle(JobResult(job, "skipped", f"needs {', '.join(job.needs)}"))

    def ready(self) -> list[Job]:
        """Jobs whose needs are met, in the order in which they should start."""
        ready = [job for job in self.waiting.values() if self.results.keys() >= set(job.needs)]
        return sorted(ready, key=lambda job: (not job.urgent, -job.cost))


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    *,
    parallel: int,
    say: Callable[[JobResult, int, int], None],
    work: Callable[[Sequence[str]], None] = run_verb,
    place: JobPlace | None = None,
    gpus: Sequence[str] = (),
) -> list[JobResult]:
    """Run all jobs whose needs can be met.

    Args:
        jobs: in any order.
        folder: receives `<name>.log` and `<name>.done`.
        parallel: jobs at a time.
        say: called with each result, the number settled and the number in all.
        work: what a job's process calls with the job's arguments; importable by name.
        place: where jobs run, ended with this call; None: in processes of this machine.
        gpus: names of GPUs; each process of this machine sees one of them, the one that the fewest use. None: what
            this process sees.

    Returns:
        One result per job, in order of their end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    schedule = _Schedule(jobs, say)
    place = place or _Processes(work, gpus)
    for job in jobs:
        if _mark(folder, job).exists():
            schedule.settle(JobResult(job, "done", "finished earlier"))
    running: dict[Future[JobResult], Job] = {}
    with ThreadPoolExecutor(max_workers=parallel) as pool, _ended_with(place) as ending:
        while schedule.waiting or running:
            schedule.skip_broken()
            ready = schedule.ready()
            for job in ready[: parallel - len(running)]:
                schedule.waiting.pop(job.name)
                running[pool.submit(_run, job, folder, place, ending)] = job
            if running:
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    running.pop(future)
                    schedule.settle(future.result())
            elif not ready:
                schedule.skip_all()
    return list(schedule.results.values())


@contextlib.contextmanager
def _ended_with(place: JobPlace) -> Iterator[threading.Event]:
    """Whatever ends the block, an interrupt included, ends its jobs, too; the event says that no other may start."""
    ending = threading.Event()
    try:
        yield ending
    finally:
        ending.set()
        place.end()


class _Processes:
    """Jobs in processes of this machine. One that does not end in time is killed."""

    def __init__(self, work: Callable[[Sequence[str]], None], gpus: Sequence[str] = ()) -> None:
        self._work = work
        self._jobs_of_gpu = dict.fromkeys(gpus, 0)
        self._lock = threading.Condition()
        self._processes: dict[str, BaseProcess] = {}
        self._environment = {**dict.fromkeys(_ONE_THREAD, "1"), **alone(os.environ)}
        self._ended = False

    def start(self, name: str, arguments: Sequence[str], log: Path) -> int:
        """See `JobPlace`."""
        with self._lock:
            if self._ended:
                return -signal.SIGTERM
            environment, load = dict(self._environment), self._jobs_of_gpu
            gpu = min(load, key=lambda name: load[name], default=None)
            if gpu is not None:
                self._jobs_of_gpu[gpu] += 1
                environment["CUDA_VISIBLE_DEVICES"] = gpu
            process = _warm_context(self._environment).Process(
                target=_enter, args=(self._work, arguments, str(log.absolute()), environment), name=name
            )
            process.start()
            self._processes[name] = process
        process.join()
        with self._lock:
            del self._processes[name]
            if gpu is not None:
                self._jobs_of_gpu[gpu] -= 1
            self._lock.notify_all()
        return process.exitcode or 0

    def end(self) -> None:
        """See `JobPlace`."""
        with self._lock:
            self._ended = True
            for process in self._processes.values():
                process.terminate()
            self._lock.wait_for(lambda: not self._processes, timeout=_GRACE)
            for process in self._processes.values():
                process.kill()


def _warm_context(environment: Mapping[str, str]) -> Any:
    """Where processes start from: a fork server that has imported `_PRELOAD`, or fresh ones where there is no fork.

    Args:
        environment: of the server while it imports.

    Returns:
        A context of `multiprocessing`.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOAD))
    before = dict(os.environ)
    os.environ.update(environment, PYTORCH_NVML_BASED_CUDA_CHECK="1")  # a look at CUDA itself would forbid to fork
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


def _enter(
    work: Callable[[Sequence[str]], None], arguments: Sequence[str], log: str, environment: Mapping[str, str]
) -> None:
    """A job's process: its output goes to the log, its variables are those of the process that started it."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    end_with_parent(spawned=True)
    try:
        work(arguments)
    finally:
        atexit._run_exitfuncs()  # a forked process leaves without them


def _run(job: Job, folder: Path, place: JobPlace, ending: threading.Event) -> JobResult:
    started = time.perf_counter()
    log = folder / f"{job.name}.log"
    code = place.start(job.name, job.arguments, log)
    while code == InUseError.exit_code and job.folder is not None:
        _log.warning("%s waits: another process works in %s", job.name, job.folder)
        while not ending.wait(_PAUSE):
            with contextlib.suppress(InUseError), held(job.folder, busy=""):
                break
        code = place.start(job.name, job.arguments, log)
    seconds = time.perf_counter() - started
    if code == 0:
        atomic.write_text(_mark(folder, job), f"{seconds:.1f}\n")
        if job.folder is not None:  # of an earlier attempt
            (job.folder / "FAILED.json").unlink(missing_ok=True)
        return JobResult(job, "done", seconds=seconds)
    message = f"exit status {code}: {_last_line(log)} (log: {log})"
    if job.folder is not None and not ending.is_set() and not (job.folder / "FAILED.json").exists():
        atomic.write_json(job.folder / "FAILED.json", {"error": message, "kind": "process"})
    return JobResult(job, "failed", message, seconds)


def _mark(folder: Path, job: Job) -> Path:
    return folder / f"{job.name}.done"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "no output"
