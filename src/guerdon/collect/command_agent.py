"""Programs that lead conversations: any program in any interpreter, one process for each conversation.

A program gets its row as one line of JSON on standard input (`id`, `messages`, `tools`, `extra_info`), and the address
of the model in `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL`. The last line of its output that is a JSON
object is the result.

    agent = CommandAgent(settings, temperature=1.0)
    moments = agent.start({0: prompt})
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import IO, Any

from guerdon.collect.agents import Moment, Replies, row_of
from guerdon.collect.endpoint import MODEL, Endpoint, Waiting
from guerdon.settings.agent import CommandAgentSettings
from guerdon.tasks.prompts import Prompt
from guerdon.types import Failure

_LONGEST = 16 << 20  # bytes of a line that is a result
_SAID = 300  # characters of its error output in a failure
_FIELDS = ("reward", "rewards", "success", "error")  # of a result


class Output:
    """The result in a program's output: its last line that is a JSON object. Lines end with a line feed alone.

    Attributes:
        result: so far; None: there is none.
        problem: a later line begins like a result, and is too long to be read; empty: none is.
    """

    def __init__(self) -> None:
        self.result: dict[str, Any] | None = None
        self.problem = ""
        self._line = bytearray()

    def add(self, piece: bytes) -> None:
        """Take in more of the output."""
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._extend(end)
            self.close()
        self._extend(rest)

    def close(self) -> None:
        """Take in the end of a line."""
        line, self._line = bytes(self._line), bytearray()
        if not line.lstrip().startswith(b"{"):
            return
        if len(line) > _LONGEST:
            self.result, self.problem = None, f"a line of its output is longer than {_LONGEST >> 20} MiB"
            return
        with suppress(ValueError, RecursionError):
            found = json.loads(line.decode("utf-8", "replace"))
            self.result, self.problem = found, ""

    def _extend(self, more: bytes) -> None:
        self._line += more[: _LONGEST + 1 - len(self._line)]


@dataclass(eq=False)
class _Program:
    """A running program.

    Attributes:
        process: of it.
        errors: its error output.
        output: the result in its output.
        seconds: that it ran up to the last request, without waiting for the model.
        since: when it went on.
        asked: requests that wait.
        calls: replies that it got.
        refused: its last request was refused for lack of room or turns.
        ended: it has.
        late: it was killed because its time was over.
    """

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    output: Output = field(default_factory=Output)
    seconds: float = 0.0
    since: float = field(default_factory=time.monotonic)
    asked: list[Waiting] = field(default_factory=list)
    calls: int = 0
    refused: bool = False
    ended: bool = False
    late: bool = False


class CommandAgent:
    """A process for each conversation, and the endpoint that all of them call.

    Args:
        settings: the `agent` section.
        temperature: of the run.
    """

    def __init__(self, settings: CommandAgentSettings, *, temperature: float) -> None:
        self._settings = settings
        self._endpoint = Endpoint(temperature)
        self._changed = self._endpoint.changed
        self._programs: dict[int, _Program] = {}
        self.at_once: int | None = settings.processes_at_once

    def start(self, rows: Mapping[int, Prompt]) -> dict[int, Moment]:
        """Start a program for each conversation."""
        moments = {}
        for number, prompt in rows.items():
            url, key = self._endpoint.open(number)
            try:
                self._programs[number] = self._started(prompt, url, key)
            except OSError as error:
                self._endpoint.shut(number)
                moments[number] = Moment(outcome=Failure("agent_exit", f"it cannot be started: {error}"))
        return moments | self._moments([number for number in rows if number in self._programs])

    def read(self, replies: Replies) -> dict[int, Moment]:
        """Answer requests, and wait until all programs ask again or have ended."""
        for number, own in replies.items():
            program = self._programs[number]
            program.since = time.monotonic()
            for one, reply in zip(program.asked, own, strict=True):
                self._endpoint.answer(number, one, reply)
                program.calls += reply is not None
                program.refused = reply is None
        return self._moments(list(replies))

    def close(self) -> None:
        """Kill all programs and end the endpoint."""
        for program in self._programs.values():
            _kill(program.process)
        self._endpoint.close()

    def _started(self, prompt: Prompt, url: str, key: str) -> _Program:
        row = {**row_of(prompt), "tools": [dict(tool) for tool in prompt.tools]}
        del row["ground_truth"]
        local = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
        variables = {
            **os.environ,
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": key,
            "OPENAI_MODEL": MODEL,
            "NO_PROXY": local,
            "no_proxy": local,
        }
        errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the program has ended)
        process = subprocess.Popen(  # noqa: S603 (the user's own program)
            list(self._settings.command),
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        program = _Program(process, errors)
        line = json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        threading.Thread(target=self._follow, args=(program, line), name="guerdon.agent", daemon=True).start()
        return program

    def _follow(self, program: _Program, line: bytes) -> None:
        """Give a program its row, and read its output to the end."""
        process = program.process
        assert process.stdin is not None
        assert process.stdout is not None
        ended, ends = os.pipe()
        threading.Thread(target=_end_group, args=(process, ends), name="guerdon.agent.end", daemon=True).start()
        with suppress(OSError):  # it may not read its row
            process.stdin.write(line)
            process.stdin.close()
        output = process.stdout.fileno()
        while output in wait([output, ended]):  # what a program leaves behind may keep its output open
            piece = os.read(output, 1 << 16)
            if not piece:
                break
            program.output.add(piece)
        program.output.close()
        process.stdout.close()
        process.wait()
        os.close(ended)
        with self._changed:
            program.ended = True
            self._changed.notify_all()

    def _moments(self, numbers: list[int]) -> dict[int, Moment]:
        """Wait until all of some programs ask or have ended."""
        running = set(numbers)
        with self._changed:
            while running:
                running -= {number for number in running if self._stands(number)}
                if running:
                    self._changed.wait(max(0.0, min(map(self._left, running))))
                for number in [number for number in running if self._left(number) <= 0]:
                    self._programs[number].late = True
                    _kill(self._programs[number].process)
                    running.discard(number)
        moments = {}
        for number in numbers:
            program = self._programs[number]
            if not (program.ended or program.late):
                program.seconds += time.monotonic() - program.since
                moments[number] = Moment(tuple(one.request for one in program.asked))
                continue
            self._endpoint.shut(number)
            moments[number] = self._end(program)
            del self._programs[number]
        return moments

    def _stands(self, number: int) -> bool:
        """Whether a program asks or has ended."""
        program = self._programs[number]
        program.asked = [] if program.ended else self._endpoint.waiting(number)
        return program.ended or bool(program.asked)

    def _left(self, number: int) -> float:
        """Seconds until the time of a program is over."""
        program = self._programs[number]
        return self._settings.episode_timeout - program.seconds - (time.monotonic() - program.since)

    def _end(self, program: _Program) -> Moment:
        """What a conversation came to."""
        if program.late:
            limit = self._settings.episode_timeout
            return Moment(outcome=Failure("agent_timeout", f"the program took more than {limit:g} s"))
        program.errors.seek(max(0, program.errors.seek(0, os.SEEK_END) - 4096))
        said = " ".join(program.errors.read().decode("utf-8", "replace").split())[-_SAID:]
        program.errors.close()
        if program.output.result is not None:
            return result_of(program.output.result, program.calls, cut_off=program.refused)
        if program.output.problem:
            return Moment(outcome=Failure("agent_error", program.output.problem))
        status = program.process.returncode
        if status == 0 or program.refused:  # a limit, which the model reached, is no failure of the program
            return Moment()
        return Moment(outcome=Failure("agent_exit", f"exit status {status}: {said}"))


def result_of(result: Mapping[str, Any], calls: int, *, cut_off: bool = False) -> Moment:
    """What a program's result says: `reward`, `rewards` of each call, `success`, `error`.

    Args:
        result: of the program.
        calls: that it made.
        cut_off: its last request was refused for lack of room or turns, which the model can cause: an error, or a
            reward that is not known, is then no failure.
    """
    if result.get("error") is not None and not cut_off:
        return Moment(outcome=Failure("agent_error", str(result["error"])[:_SAID]))
    problem = _problem_of(result, calls)
    if problem:
        return Moment(outcome=Failure("agent_error", f"the result of the program is wrong: {problem}"))
    reward, rewards = result.get("reward"), result.get("rewards")
    if reward is None and rewards is None and "reward" in result and not cut_off:
        return Moment(outcome=Failure("no_reward", "the program says that its reward is not known"))
    paid: tuple[float | None, ...] | None = None
    if rewards is not None:
        paid = tuple(None if value is None else float(value) for value in rewards)
    return Moment(outcome=None if reward is None else float(reward), rewards=paid, success=result.get("success"))


def _problem_of(result: Mapping[str, Any], calls: int) -> str:
    """What is wrong with the fields of a result; empty where nothing is."""
    rewards, success = result.get("rewards"), result.get("success")
    if not any(name in result for name in _FIELDS):
        return f"it has none of {', '.join(_FIELDS)}, but {', '.join(map(repr, list(result)[:4])) or 'nothing'}"
    values = [result.get("reward"), *(rewards if isinstance(rewards, list) else ())]
    if not all(value is None or _is_number(value) for value in values):
        return "its rewards are not all finite numbers or null"
    if rewards is not None and (not isinstance(rewards, list) or len(rewards) != calls):
        return f"its rewards are not one for each of {calls} calls"
    if success is not None and not isinstance(success, bool):
        return "its success is not true, false or null"
    return ""


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started, unless it has ended."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _end_group(process: subprocess.Popen[bytes], ends: int) -> None:
    """Wait for the end of a program, end what it left behind, and close `ends`; its number is free only after that."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill(process)
    os.close(ends)
