"""Copies of any world in processes of their own: one that dies, hangs or gives numbers that are not finite is replaced.

All copies step together. The process of a broken copy is killed and another is started in its place; the episode
under way in it is reported by `lost_episodes`, and the next `reset` begins another one. Pictures are drawn by the same
processes, of states that were kept before (`Eye`), so that a process that breaks loses no picture.

    env = ProcessVectorEnv(MetaWorldSettings(task="window-close", num_envs=8, vectorization="async"), 8, seed=0)
    observations, _ = env.reset(seed=list(range(8)))
    observations, rewards, terminated, truncated, info = env.step(actions)
    env.lost_episodes()                    # {3: Failure("simulator_died", "signal 9 (SIGKILL)")}, once
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from guerdon import errors
from guerdon.errors import SimulatorError
from guerdon.processes.progress import log_line
from guerdon.processes.subprocess_worker import start_child
from guerdon.settings.world import WorldSettings
from guerdon.types import BoolArray, ByteArray, Failure
from guerdon.worlds.camera import choose_headless_backend
from guerdon.worlds.eye import stacked
from guerdon.worlds.gymnasium_env import PlainVectorEnv, merged_infos
from guerdon.worlds.resets import NON_FINITE, BrokenCopyError, finite_rows
from guerdon.worlds.returned import NOT_FINITE, not_finite_in, not_finite_parts
from guerdon.worlds.step_memory import StepMemory, new_memory

ATTEMPTS = 3  # of a process to start, to begin an episode or to draw, one after the other
_CHUNK = 8  # pictures asked for at a time
_LAST_LINES = 12  # of a process's messages in an error
_MESSAGES = 2**20  # bytes of messages, after which earlier ones are dropped
_ENDING = 5.0  # seconds that a process without a line has to end by itself, which gives its exit status
_CLOSING = 5.0  # seconds that all processes together have to end by themselves


class _Process:
    """A process that simulates some of the copies.

    Attributes:
        copies: which.
        share: their places among all copies.
        facts: what it said of its copies when it was ready; None: it is starting.
        memory: for steps; of a process that is ready.
        info: of its last step.
        asked: there is a message that was not answered yet.
    """

    memory: StepMemory

    def __init__(self, settings: WorldSettings, copies: range, seed: int, keep_info: Sequence[str]) -> None:
        self.copies, self.share = copies, slice(copies.start, copies.stop)
        self._order = (settings.of_copies(copies), len(copies), seed, tuple(keep_info))
        self.start()

    def start(self) -> None:
        """Start it, without waiting until it is ready."""
        self.facts: dict[str, Any] | None = None
        self.info: Mapping[str, np.ndarray] = {}
        self.asked = False
        self._memory = new_memory()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `kill`)
        ours, theirs = socket.socketpair()
        limit = struct.pack("ll", int(self._order[0].step_timeout) + 1, 0)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # within a message: a process may stop in the middle
            ours.setsockopt(socket.SOL_SOCKET, option, limit)
        path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
        with theirs:
            inherited = [theirs.fileno(), self._memory]
            self.process = start_child(
                [sys.executable, "-P", "-m", "guerdon.worlds.simulator_process", *map(str, inherited)],
                environment=os.environ | {"PYTHONPATH": path},
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
            )
        self._line = Connection(ours.detach())
        self._readable = select.poll()
        self._readable.register(self._line.fileno(), select.POLLIN)
        self.send(self._order)

    def await_facts(self, deadline: float) -> Failure | None:
        """Wait until it has made its copies; why it did not."""
        facts, why = self.receive(deadline)
        if why is None:
            self.memory = StepMemory(self._memory, len(self.copies), *facts["spaces"])
            self.facts = facts
        return why

    def send(self, message: Any = None) -> Failure | None:
        """Send a message, or let the copies take the step that is in the shared memory; why that failed."""
        if self.asked:  # an exception came before its answer, which would be taken for the one to this message
            return Failure("simulator_hung", "its last answer was not waited for")
        self.asked = True
        if os.fstat(self._said.fileno()).st_size > _MESSAGES:
            self._said.seek(0)  # the process writes where this file stands
            self._said.truncate()
        try:
            self._line.send_bytes(b"" if message is None else ForkingPickler.dumps(message))
        except OSError as error:
            return self._why(error)
        return None

    def receive(self, deadline: float) -> tuple[Any, Failure | None]:
        """The answer to the last message (to a step: its info), or why there is none.

        Raises:
            GuerdonError: the process refused, with its reason.
        """
        try:
            if not self._readable.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None, Failure("simulator_hung", "no answer in time")
            message = self._line.recv_bytes()
            self.asked = False
        except (EOFError, OSError) as error:
            return None, self._why(error)
        if not message:  # a step whose info is that of the step before
            return self.info, None
        kind, answer = ForkingPickler.loads(message)
        if kind == "refused":
            name, text, about = answer
            refusal = getattr(errors, name, SimulatorError)(text)
            vars(refusal).update(about)
            raise refusal
        return (None, Failure("simulator_raised", answer)) if kind == "raised" else (answer, None)

    def _why(self, error: Exception) -> Failure:
        if isinstance(error, BlockingIOError):
            return Failure("simulator_hung", "it stopped within a message")
        try:  # its end of the line is closed
            code = self.process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            return Failure("simulator_died", "it closed the line and did not end")
        how = f"exit status {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
        last = self.last_lines(1)
        return Failure("simulator_died", f"{how}: {last}" if last else how)

    def last_lines(self, count: int = _LAST_LINES) -> str:
        """The end of what it wrote to its standard output and error."""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - 8192))
        return "\n".join(self._said.read().decode(errors="replace").strip().splitlines()[-count:])

    def close(self) -> None:
        """Let it end: it does when nobody is at the other end of the line."""
        self._line.close()

    def kill(self, patience: float = 0.0) -> None:
        """End it, whatever it is doing, after so many seconds."""
        self._line.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._said.close()
        os.close(self._memory)


class ProcessVectorEnv(PlainVectorEnv):
    """Copies of a world in processes of their own, with autoreset disabled.

    Attributes:
        task_texts: of each copy.
        all_texts: the tasks, in words, where copies change theirs.
        proprioception, columns: as the world has them.
        unlimited: the world needs a time limit of guerdon's own.
        eye: draws the copies.
        restarts: processes started in place of others.

    Args:
        settings: the `env` section, with the number of copies in each process and the time limits.
        num_envs: copies.
        seed: of the run, for factories of worlds.
        keep_info: keys of `info` whose values are told, whatever they are.

    Raises:
        ConfigError: the world cannot be made.
        SimulatorError: no process can be started.
    """

    def __init__(self, settings: WorldSettings, num_envs: int, seed: int, keep_info: Sequence[str] = ()) -> None:
        choose_headless_backend()
        self.num_envs, self.restarts = num_envs, 0
        self._step_seconds, self._reset_seconds = settings.step_timeout, settings.reset_timeout
        each = settings.num_envs_per_process
        shares = [range(start, min(start + each, num_envs)) for start in range(0, num_envs, each)]
        settings = settings.model_copy(update={"num_envs": num_envs})
        self._processes = [_Process(settings, share, seed, keep_info) for share in shares]
        self._process_of = [k for k, share in enumerate(shares) for _ in share]
        self._lost: dict[int, Failure] = {}  # episodes of copies, since `lost_episodes` was called
        self._replaced = set(range(len(shares)))  # processes in which no episode has begun
        self._seeds: dict[int, int | None] = dict.fromkeys(range(num_envs))
        self._tasks: list[int] | None = None  # numbers, where copies change their tasks
        self._stepped = np.zeros(num_envs, dtype=np.bool_)  # since their reset
        self._infos: Mapping[int, Mapping[str, np.ndarray]] = {}  # of the last step, by process
        self._info: dict[str, Any] = {}  # all of them as one
        self._broke: dict[int, tuple[Failure, str]] = {}  # why, and the last messages, of the one replaced last
        try:
            self._make_ready(range(len(shares)))
        except BaseException:
            self.close_extras()
            raise
        all_facts = [process.facts or {} for process in self._processes]
        facts = max(all_facts, key=lambda one: one["spaces"][0].shape)  # others' observations end in zeros
        self.declare(num_envs, *facts["spaces"])
        self.proprioception = facts["proprioception"]
        self.columns = facts["columns"]
        self.action_start = facts["action_start"]
        self.unlimited = facts["unlimited"]
        self.task_texts = tuple(text for one in all_facts for text in one["tasks"])
        self.all_texts: tuple[str, ...] = facts["all_texts"]
        self.eye = ProcessEye(self, facts["size"], facts["cameras"], at_once=facts["at_once"])
        self.eye.cannot_draw = facts["cannot_draw"]

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes, in the order of their copies."""
        return tuple(one.process.pid for one in self._processes)

    def lost_episodes(self) -> dict[int, Failure]:
        """Copies whose episode was lost since the last call, and why. They need a reset."""
        lost, self._lost = self._lost, {}
        return lost

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes; a process that breaks by that is replaced and tries again.

        Args:
            seed: one per copy, or of the first one; None: drawn by each world.
            options: `reset_mask` (N,) bool picks the copies to reset (all by default); `tasks` (N,) numbers, see
                `TaskPool`.

        Returns:
            (N, ...) observations, and an info with nothing but marks (`worlds.returned`).

        Raises:
            BrokenCopyError: a world raised, or showed numbers that are not finite: other seeds may do.
            SimulatorError: a process breaks again and again.
        """
        asked = self._asked(seed, options)
        wanted = np.isin(np.arange(self.num_envs), list(asked))
        self._seeds |= asked
        self._tasks = (options or {}).get("tasks", self._tasks)
        waiting = sorted({self._process_of[i] for i in asked})
        told: dict[int, Mapping[str, Any]] = {}
        for _ in range(ATTEMPTS):
            self._make_ready(waiting)
            requests = {k: self._reset_request(k, wanted) for k in waiting}
            answers = self._ask(requests, self._reset_seconds)
            failed: dict[int, Failure] = {}
            for k in requests:
                if k not in answers and self._broke[k][0].reason == "simulator_raised":
                    reason = self._broke[k][0].reason
                    said = self._broke[k][0].detail
                    if said.startswith("raised "):
                        said = f"reset {said}"
                    failed |= dict.fromkeys(self._wanted_copies(k, wanted), Failure(reason, said))
            for k, (observations, marks) in answers.items():
                finite = finite_rows(observations) & ~not_finite_in(marks, len(observations))
                told[k] = marks
                if finite.all():
                    self._take_begun(k, observations, requests[k][2], wanted)
                    waiting.remove(k)
                else:
                    why = Failure(NON_FINITE.reason, "an observation after a reset")
                    self._lose(k, why)
                    first = self._processes[k].copies.start
                    failed |= {i: why for i in self._wanted_copies(k, wanted) if not finite[i - first]}
            if failed:
                raise BrokenCopyError(failed)
            if not waiting:
                return self._observations.copy(), self._as_one(told)
        raise self._given_up("cannot begin an episode", waiting[0])

    def _wanted_copies(self, k: int, wanted: BoolArray) -> list[int]:
        """The copies of a process that are to begin an episode."""
        return [i for i in self._processes[k].copies if wanted[i]]

    def _reset_request(self, k: int, wanted: BoolArray) -> tuple[Any, ...]:
        """What a process is told: seeds, the copies to reset, which are all after it was replaced, and tasks."""
        copies = self._processes[k].copies
        mask = np.ones(len(copies), np.bool_) if k in self._replaced else wanted[copies.start : copies.stop]
        tasks = None if self._tasks is None else [self._tasks[i] for i in copies]
        return "reset", [self._seeds[i] for i in copies], mask, tasks

    def _take_begun(self, k: int, observations: np.ndarray, mask: BoolArray, wanted: BoolArray) -> None:
        """Keep what a process shows after a reset of the copies of the mask."""
        copies = self._processes[k].copies
        shown = _first(self._observations[copies.start : copies.stop], observations)
        begun = mask & wanted[copies.start : copies.stop]  # the others' episodes are lost, see `step`
        shown[begun] = observations[begun]
        self._stepped[copies.start : copies.stop][mask] = False
        self._replaced.discard(k)
        for i in self._wanted_copies(k, wanted):
            self._lost.pop(i, None)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, BoolArray, BoolArray, dict[str, Any]]:
        """One step of every copy; one that `lost_episodes` names keeps its last observation and does not end.

        Args:
            actions: (N, ...).

        Returns:
            (N, ...) observations, (N,) float32 rewards, (N,) bool terminated and truncated, and those values of the
            worlds' info that are numbers, one for each copy.
        """
        processes = self._processes
        asked = [k for k in range(len(processes)) if k not in self._replaced]
        for k in asked:
            processes[k].memory.actions[...] = actions[processes[k].share]
        answers = self._ask(dict.fromkeys(asked), self._step_seconds)
        seen = self._observations.copy()
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        for k in answers:
            share = processes[k].share
            memory = processes[k].memory
            _first(seen[share], memory.observations)[...], rewards[share] = memory.observations, memory.rewards
            terminated[share], truncated[share] = memory.terminated, memory.truncated
        finite = finite_rows(seen) & finite_rows(rewards)
        marked = {k: not_finite_in(info, len(processes[k].copies)) for k, info in answers.items() if NOT_FINITE in info}
        for k, bad in marked.items():
            finite[processes[k].share] &= ~bad
        if not finite.all():
            for k in list(answers):
                share = processes[k].share
                if not finite[share].all():
                    self._lose(k, _not_finite(answers[k], len(processes[k].copies)))
                    seen[share], rewards[share] = self._observations[share], 0.0
                    terminated[share], truncated[share] = False, False
                    del answers[k]
        for k, info in answers.items():
            processes[k].info, self._stepped[processes[k].share] = info, True
        self._observations[...] = seen
        return seen, rewards, terminated, truncated, self._merged(answers)

    def looks(self, indices: Sequence[int]) -> list[Any]:
        """What is needed to draw these copies as they are now; None of a copy whose episode is lost.

        A copy that has taken no step begins its episode again where its process breaks.

        Raises:
            SimulatorError: a process breaks again and again.
        """
        found: dict[int, Any] = {}
        for _ in range(ATTEMPTS):
            requests: dict[int, tuple[str, list[int]]] = {}
            for i in indices:
                k = self._process_of[i]
                if i not in found and k not in self._replaced:
                    requests.setdefault(k, ("looks", []))[1].append(i - self._processes[k].copies.start)
            for k, kept in self._ask(requests, self._reset_seconds).items():
                start = self._processes[k].copies.start
                found |= {start + own: (k, look) for own, look in zip(requests[k][1], kept, strict=True)}
            again = [i for i in indices if i not in found and not self._stepped[i]]
            if not again:
                return [found.get(i) for i in indices]
            mask = np.isin(np.arange(self.num_envs), again)
            self.reset(seed=list(self._seeds.values()), options={"reset_mask": mask})
        raise self._given_up("cannot be drawn", self._process_of[again[0]])

    def draw(self, looks: Sequence[tuple[int, Any]], camera: str | None) -> list[ByteArray]:
        """Pictures of earlier looks, each drawn by the process that took it.

        Raises:
            SimulatorError: a process breaks again and again.
        """
        drawn: list[Any] = [None] * len(looks)
        waiting: dict[int, list[int]] = {}
        for place, (k, _) in enumerate(looks):
            waiting.setdefault(k, []).append(place)
        failed = dict.fromkeys(waiting, 0)
        while waiting:
            self._make_ready(sorted(waiting))
            chunks = {k: places[:_CHUNK] for k, places in waiting.items()}
            requests = {k: ("render", [looks[place][1] for place in chunk], camera) for k, chunk in chunks.items()}
            answers = self._ask(requests, self._seconds_to_draw([k for k in waiting if failed[k]]))
            for k, chunk in chunks.items():
                if k not in answers:
                    failed[k] += 1
                    if failed[k] == ATTEMPTS:
                        raise self._given_up("cannot draw", k)
                    continue
                failed[k] = 0
                waiting[k] = waiting[k][_CHUNK:]
                for place, picture in zip(chunk, answers[k], strict=True):
                    drawn[place] = picture
            waiting = {k: places for k, places in waiting.items() if places}
        return drawn

    def _seconds_to_draw(self, failed: Sequence[int]) -> float:
        """How long drawing may take: as a reset, but no longer than a step where a process that failed had hung."""
        if any(self._broke[k][0].reason == "simulator_hung" for k in failed):
            return min(self._step_seconds, self._reset_seconds)
        return self._reset_seconds

    def save_state(self, index: int) -> Any:
        """The state of copy `index`, for `load_state`; None where its episode is lost."""
        k = self._process_of[index]
        requests = {} if k in self._replaced else {k: ("save_state", index - self._processes[k].copies.start)}
        return self._ask(requests, self._step_seconds).get(k)

    def load_state(self, index: int, state: Any) -> None:
        """Bring copy `index` to a saved state, of a world of the same settings.

        Raises:
            SimulatorError: its simulator broke; it needs a reset.
        """
        k = self._process_of[index]
        if k in self._replaced:
            raise SimulatorError(f"the simulator of copy {index} broke: reset it before a state is loaded")
        self._ask({k: ("load_state", index - self._processes[k].copies.start, state)}, self._step_seconds)

    def close_extras(self, **kwargs: Any) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()
        deadline = time.monotonic() + _CLOSING
        for process in self._processes:
            process.kill(max(0.0, deadline - time.monotonic()))

    # Processes.

    def _ask(self, requests: Mapping[int, tuple[Any, ...] | None], seconds: float) -> dict[int, Any]:
        """Answers of processes to requests (None: a step), by number; those that break are replaced and give none."""
        sent = []
        for k, request in requests.items():
            why = self._processes[k].send(request)
            if why is None:
                sent.append(k)
            else:
                self._lose(k, why)
        deadline, answers = time.monotonic() + seconds, {}
        for k in sent:
            answer, why = self._processes[k].receive(deadline)
            if why is None:
                answers[k] = answer
            else:
                self._lose(k, why)
        return answers

    def _lose(self, k: int, why: Failure) -> None:
        """Replace a process; the episodes of its copies are lost."""
        process = self._processes[k]
        for i in process.copies:
            self._lost.setdefault(i, why)
        self._broke[k] = why, process.last_lines()
        process.kill()
        process.start()
        self._replaced.add(k)
        if not self.restarts:
            log_line(f"[env] a simulator broke and is started again (later ones are counted): {why}")
        self.restarts += 1

    def _make_ready(self, waiting: Sequence[int]) -> None:
        """Wait until these processes have made their copies."""
        for _ in range(ATTEMPTS):
            deadline = time.monotonic() + self._reset_seconds
            waiting = [k for k in waiting if self._processes[k].facts is None]
            for k in waiting:
                why = self._processes[k].await_facts(deadline)
                if why is not None:
                    self._lose(k, why)
            if all(self._processes[k].facts is not None for k in waiting):
                return
        raise self._given_up("does not start", next(k for k in waiting if self._processes[k].facts is None))

    def _given_up(self, what: str, k: int) -> SimulatorError:
        copies = self._processes[k].copies
        which = f"copy {copies.start}" if len(copies) == 1 else f"copies {copies.start} to {copies.stop - 1}"
        failure, lines = self._broke[k]
        said = f"its last messages were:\n{lines}\n" if lines else "it wrote no message; "
        return SimulatorError(
            f"the simulator of {which} {what} ({ATTEMPTS} processes in a row, the last: {failure}); {said}"
            "env.vectorization=sync runs it in guerdon's own process, with all that it prints; a simulator that is "
            "only slow needs a larger env.step_timeout or env.reset_timeout"
        )

    def _merged(self, infos: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, Any]:
        """The infos of all processes as one; `_<key>` says which copies have a key."""
        if infos.keys() == self._infos.keys() and all(info is self._infos[k] for k, info in infos.items()):
            return self._info
        self._infos = infos
        self._info = self._as_one(infos)
        return self._info

    def _as_one(self, infos: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        shares = [len(process.copies) for process in self._processes]
        return merged_infos([infos.get(k, {}) for k in range(len(shares))], shares)


class ProcessEye:
    """Looks at copies in other processes, which draw.

    Attributes:
        size: (height, width) of the pictures.
        cameras: names, of a world that has several.
        cannot_draw: there are no pictures.

    Args:
        env: what is looked at.
        size: (height, width).
        cameras: names.
        at_once: looks are pictures already.
    """

    def __init__(
        self, env: ProcessVectorEnv, size: tuple[int, int], cameras: tuple[str, ...], *, at_once: bool
    ) -> None:
        self._env, self.size, self.cameras, self._at_once = env, size, cameras, at_once
        self.cannot_draw = False

    def look(self, index: int) -> Any:
        """What is needed to draw copy `index` as it is now."""
        return self.looks([index])[0]

    def looks(self, indices: Sequence[int]) -> list[Any]:
        """What is needed to draw these copies as they are now; None of a copy whose episode is lost."""
        return self._env.looks(indices)

    def render(self, looks: Sequence[Any], camera: str | None = None) -> ByteArray:
        """(N, H, W, 3) uint8 of earlier looks; black where there is none, which no part of an episode is."""
        kept = [look for look in looks if look is not None]
        pictures = iter([picture for _, picture in kept] if self._at_once else self._env.draw(kept, camera))
        black = np.zeros((*self.size, 3), dtype=np.uint8)
        return stacked([black if look is None else next(pictures) for look in looks], self.size)

    def close(self) -> None:
        """Nothing to free: the processes own their renderers."""


def _not_finite(info: Mapping[str, Any], copies: int) -> Failure:
    """The failure of a process whose step gave numbers that are not finite."""
    parts = [one for one in not_finite_parts(info, copies) if one]
    return Failure(NON_FINITE.reason, parts[0]) if parts else NON_FINITE


def _first(rows: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Of rows, the first numbers: as many as those of a task with the shorter observations `own`."""
    return rows if rows.dtype.names else rows[..., : own.shape[-1]]
