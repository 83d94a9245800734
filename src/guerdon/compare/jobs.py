"""Run commands that depend on each other, a few at a time; one that fails never takes the others along.

Each job is a process of its own with its own log. A job that finished is not run again. This module does not know
what the commands do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from guerdon import atomic

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LP_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """One command.

    Attributes:
        name: unique, also the name of its log and of its mark of completion.
        arguments: what follows `python -m guerdon`.
        needs: names of jobs that must have finished.
        cost: expected seconds; of the jobs that could start, the longest starts first.
        urgent: others wait for it, so it goes before longer ones.
        folder: where it writes, for `FAILED.json` when it dies without a word.
    """

    name: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    cost: float = 0.0
    urgent: bool = False
    folder: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """How a job ended: `done`, `failed` or `skipped` (something it needs failed), and its last line."""

    job: Job
    state: str
    message: str = ""
    seconds: float = 0.0


def run_jobs(
    jobs: Sequence[Job], folder: Path, *, parallel: int, say: Callable[[Outcome, int, int], None]
) -> list[Outcome]:
    """Run all jobs whose needs can be met.

    Args:
        jobs: in any order.
        folder: receives `<name>.log` and `<name>.done`.
        parallel: processes at a time.
        say: told of each outcome, with the number settled and the number in all.

    Returns:
        One outcome per job, in order of their end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = {job.name: job for job in jobs}
    outcomes: dict[str, Outcome] = {}
    alive: dict[str, subprocess.Popen[bytes]] = {}

    def settle(outcome: Outcome) -> None:
        waiting.pop(outcome.job.name, None)
        outcomes[outcome.job.name] = outcome
        say(outcome, len(outcomes), len(jobs))

    for job in jobs:
        if _mark(folder, job).exists():
            settle(Outcome(job, "done", "finished earlier"))
    running: dict[Future[Outcome], Job] = {}
    with ThreadPoolExecutor(max_workers=parallel) as pool, _ending(alive):
        while waiting or running:
            for job in list(waiting.values()):
                broken = [n for n in job.needs if n in outcomes and outcomes[n].state != "done"]
                if broken:
                    settle(Outcome(job, "skipped", f"{broken[0]} did not finish"))
            ready = [j for j in waiting.values() if all(n in outcomes for n in j.needs)]
            for job in sorted(ready, key=lambda j: (not j.urgent, -j.cost))[: parallel - len(running)]:
                waiting.pop(job.name)
                running[pool.submit(_run, job, folder, alive)] = job
            if running:
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    running.pop(future)
                    settle(future.result())
            elif waiting and not ready:
                for job in list(waiting.values()):
                    settle(Outcome(job, "skipped", f"needs {', '.join(job.needs)}"))
    return list(outcomes.values())


@contextmanager
def _ending(alive: dict[str, subprocess.Popen[bytes]]) -> Iterator[None]:
    """Whatever ends the study, an interrupt included, ends its processes too; each leaves a whole checkpoint."""
    try:
        yield
    finally:
        for process in list(alive.values()):
            process.terminate()


def _run(job: Job, folder: Path, alive: dict[str, subprocess.Popen[bytes]]) -> Outcome:
    started = time.perf_counter()
    log = folder / f"{job.name}.log"
    environment = {**os.environ, **{name: os.environ.get(name, "1") for name in _ONE_THREAD}}
    command = [sys.executable, "-m", "guerdon", *job.arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own arguments
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        alive[job.name] = process
        code = process.wait()
        alive.pop(job.name, None)
    seconds = time.perf_counter() - started
    if code == 0:
        atomic.write_text(_mark(folder, job), f"{seconds:.1f}\n")
        return Outcome(job, "done", seconds=seconds)
    message = f"exit status {code}: {_last_line(log)} (log: {log})"
    if job.folder is not None and not (job.folder / "FAILED.json").exists():
        atomic.write_json(job.folder / "FAILED.json", {"error": message, "kind": "process"})
    return Outcome(job, "failed", message, seconds)


def _mark(folder: Path, job: Job) -> Path:
    return folder / f"{job.name}.done"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "no output"
