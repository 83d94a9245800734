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
from typing import IO, Any

from guerdon.collect.agents import Moment, Replies, row_of
from guerdon.collect.endpoint import MODEL, Endpoint, Waiting
from guerdon.settings.agent import CommandAgentSettings
from guerdon.tasks.prompts import Prompt
from guerdon.types import Failure

_KEPT = 1 << 20  # bytes at the end of a program's output
_SAID = 300  # characters of its error output in a failure


@dataclass(eq=False)
class _Program:
    """A running program.

    Attributes:
        process: of it.
        errors: its error output.
        output: the end of its output, once it has ended.
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
    output: bytes = b""
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
        threading.Thread(target=_end_group, args=(process,), name="guerdon.agent.end", daemon=True).start()
        with suppress(OSError):  # it may not read its row
            process.stdin.write(line)
            process.stdin.close()
        output = bytearray()
        while piece := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
            output += piece
            del output[:-_KEPT]
        process.wait()
        with self._changed:
            program.output, program.ended = bytes(output), True
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
        result = last_object(program.output.decode("utf-8", "replace"))
        program.errors.seek(max(0, program.errors.seek(0, os.SEEK_END) - 4096))
        said = " ".join(program.errors.read().decode("utf-8", "replace").split())[-_SAID:]
        program.errors.close()
        if result is not None and not (program.refused and result.get("error") is not None):
            return result_of(result, program.calls)
        status = program.process.returncode
        if status == 0 or program.refused:  # a limit, which the model reached, is no failure of the program
            return Moment()
        return Moment(outcome=Failure("agent_exit", f"exit status {status}: {said}"))


def last_object(output: str) -> dict[str, Any] | None:
    """The last line of an output that is a JSON object."""
    for line in reversed(output.splitlines()):
        if line.strip().startswith("{"):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                return found
    return None


def result_of(result: Mapping[str, Any], calls: int) -> Moment:
    """What a program's result says: `reward`, `rewards` of each call, `success`, `error`.

    Args:
        result: of the program.
        calls: that it made.
    """
    if result.get("error") is not None:
        return Moment(outcome=Failure("agent_error", str(result["error"])[:_SAID]))
    problem = _problem_of(result, calls)
    if problem:
        return Moment(outcome=Failure("agent_error", f"the result of the program is wrong: {problem}"))
    reward, rewards = result.get("reward"), result.get("rewards")
    paid: tuple[float | None, ...] | None = None
    if rewards is not None:
        paid = tuple(None if value is None else float(value) for value in rewards)
    return Moment(outcome=None if reward is None else float(reward), rewards=paid, success=result.get("success"))


def _problem_of(result: Mapping[str, Any], calls: int) -> str:
    """What is wrong with the fields of a result; empty where nothing is."""
    rewards, success = result.get("rewards"), result.get("success")
    values = [result.get("reward"), *(rewards if isinstance(rewards, list) else ())]
    if not all(value is None or _is_number(value) for value in values):
        return "its rewards are not all numbers or null"
    if rewards is not None and (not isinstance(rewards, list) or len(rewards) != calls):
        return f"its rewards are not one for each of {calls} calls"
    if success is not None and not isinstance(success, bool):
        return "its success is not true, false or null"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started, unless it has ended."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a program, and end what it left behind; its number is free only after that."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill(process)
