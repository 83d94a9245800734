"""Agents: what happens in a conversation between two calls of the model. Tools of functions, and worlds of messages.

An agent starts conversations and is given the model's replies, round by round; it says what each conversation waits for
(`Moment`): one reply or several, or nothing more, with what it earned. It never sees a token.

    agent = ToolAgent(settings)
    moments = agent.start({0: prompt})
    moments = agent.read({0: [Reply(message, {})]})
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple, Protocol

from guerdon.errors import ConfigError, DataError, GuerdonError, boundary
from guerdon.policies.batches.dialogues import Reply
from guerdon.settings.agent import AGENTS, AgentSettings, CommandAgentSettings, OwnAgentSettings, ToolAgentSettings
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.tools import ToolResult, Tools, schemas_of
from guerdon.types import Failure, Message, Tool
from guerdon.worlds.messages import MessageWorld, WorldStep, calls_of, checked_step, close_world, result_of


class Request(NamedTuple):
    """A call of the model.

    Attributes:
        messages: of the conversation so far.
        tools: functions that can be called.
        most: tokens of the reply, where the agent wants fewer than the run allows.
        stop: texts before which the reply ends.
        key: of the request in its agent.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    most: int | None = None
    stop: tuple[str, ...] = ()
    key: str = ""


class Moment(NamedTuple):
    """Where a conversation stands.

    Attributes:
        requests: what it waits for; empty: it has ended.
        reward: of the call before, where the agent pays single calls.
        rewards: of all calls, in order, where an agent says at the end what each earned; None where it is not known.
        outcome: of the conversation, once it has ended; None: the verifier judges the last reply.
        success: whether it succeeded, where that is not whether the outcome is 1.
        state: what turns of several conversations are compared by.
        counts: what happened since the moment before, for the log.
    """

    requests: tuple[Request, ...] = ()
    reward: float | None = None
    rewards: tuple[float | None, ...] | None = None
    outcome: float | Failure | None = None
    success: bool | None = None
    state: str | None = None
    counts: Mapping[str, int] = {}


Replies = Mapping[int, Sequence[Reply | None]]
"""Replies to the requests of conversations, in their order; None: there is no room or no turn left for one."""


class Agent(Protocol):
    """Leads conversations, which have numbers."""

    at_once: int | None
    """Conversations that it can lead at a time; None: any number."""

    def start(self, rows: Mapping[int, Prompt]) -> dict[int, Moment]:
        """Begin conversations; returns when all of them wait or have ended."""
        ...

    def read(self, replies: Replies) -> dict[int, Moment]:
        """Go on with conversations; returns when all of them wait or have ended."""
        ...

    def close(self) -> None:
        """End processes."""
        ...


class ToolAgent:
    """The model calls functions until it answers without a call; the verifier judges that answer.

    Args:
        settings: the `agent` section.
    """

    at_once: int | None = None

    def __init__(self, settings: ToolAgentSettings) -> None:
        self._tools = Tools(settings.tools, call_timeout=settings.call_timeout, calls_at_once=settings.calls_at_once)
        self._threads = ThreadPoolExecutor(settings.calls_at_once, thread_name_prefix="guerdon.tools")
        self._limit = settings.episode_timeout
        self._said: dict[int, tuple[Message, ...]] = {}
        self._seconds: dict[int, float] = {}

    @property
    def schemas(self) -> tuple[Tool, ...]:
        """Of the tools."""
        return self._tools.schemas

    def start(self, rows: Mapping[int, Prompt]) -> dict[int, Moment]:
        """Begin conversations."""
        self._said = {number: prompt.messages for number, prompt in rows.items()}
        self._seconds = dict.fromkeys(rows, 0.0)
        return {number: self._moment(number) for number in rows}

    def read(self, replies: Replies) -> dict[int, Moment]:
        """Call what the replies call, all conversations at once."""
        threads = self._threads
        running = []
        for number, (reply,) in replies.items():
            calls = calls_of(reply.message, reply.bad) if reply is not None and reply.finished else []
            running.append((number, reply, [(call, threads.submit(self._timed, call)) for call in calls]))
        moments = {}
        for number, reply, jobs in running:
            ended = [(call, *future.result()) for call, future in jobs]
            self._seconds[number] += max((seconds for _, _, seconds in ended), default=0.0)
            found = [(call, result) for call, result, _ in ended]
            moments[number] = self._next(number, reply, found) if reply is not None and found else Moment()
        return moments

    def close(self) -> None:
        """End the processes."""
        self._tools.close()
        self._threads.shutdown()

    def _moment(self, number: int, counts: Mapping[str, int] | None = None) -> Moment:
        return Moment((Request(self._said[number], self.schemas),), counts=counts or {})

    def _timed(self, call: Mapping[str, Any]) -> tuple[ToolResult, float]:
        """The result of a call, and the seconds that it took."""
        if "bad" in call:
            return ToolResult(f"error: {call['bad']}", wrong=True), 0.0
        begun = time.monotonic()
        result = self._tools.call(call["function"]["name"], call["function"]["arguments"])
        return result, time.monotonic() - begun

    def _next(self, number: int, reply: Reply, found: Sequence[tuple[Mapping[str, Any], ToolResult]]) -> Moment:
        """The conversation with the results of its calls."""
        counts = {"calls": len(found), "bad_calls": sum(result.wrong for _, result in found)}
        failure = next((result.failure for _, result in found if result.failure is not None), None)
        if failure is None and self._seconds[number] > self._limit:
            failure = Failure("agent_timeout", f"tools took more than {self._limit:g} s")
        if failure is not None:
            return Moment(outcome=failure, counts=counts)
        results = [result_of(call, result.text) for call, result in found]
        self._said[number] = (*self._said[number], reply.message, *results)
        return self._moment(number, counts)


class WorldAgent:
    """Worlds of messages, one after another in this process.

    Args:
        settings: the `agent` section.
    """

    at_once: int | None = None

    def __init__(self, settings: OwnAgentSettings) -> None:
        self._settings = settings
        self._worlds: dict[int, MessageWorld] = {}
        self._said: dict[int, tuple[Message, ...]] = {}
        self._seconds: dict[int, float] = {}
        self._last: dict[int, WorldStep] = {}
        self._tools: dict[int, tuple[Tool, ...]] = {}

    def start(self, rows: Mapping[int, Prompt]) -> dict[int, Moment]:
        """Reset a world for each conversation."""
        self.close()
        s = self._settings
        self._seconds = dict.fromkeys(rows, 0.0)
        self._said, self._tools = dict.fromkeys(rows, ()), dict.fromkeys(rows, ())
        make = AGENTS.maker(s.type, s.params, object)
        moments = {}
        for number, prompt in rows.items():
            try:
                self._worlds[number] = make()
            except GuerdonError as error:
                moments[number] = Moment(outcome=Failure("agent_error", str(error)))
            else:
                moments[number] = self._after(number, "reset", row_of(prompt))
        return moments

    def read(self, replies: Replies) -> dict[int, Moment]:
        """Step the worlds."""
        moments = {}
        for number, (reply,) in replies.items():
            if reply is None:  # cut off: what the world said last holds, and an episode that is not over is not solved
                last = self._last[number]
                moments[number] = Moment(outcome=0.0 if last.outcome is None else last.outcome)
                self._end(number)
                continue
            self._said[number] = (*self._said[number], reply.message)
            given = {**reply.message, "bad_calls": dict(reply.bad)} if reply.bad else reply.message
            counts = self._counts(number, reply)
            moments[number] = self._after(number, "step", given)._replace(counts=counts)
        return moments

    def close(self) -> None:
        """End the worlds."""
        for number in list(self._worlds):
            self._end(number)

    def _end(self, number: int) -> None:
        """Close the world of a conversation that has ended."""
        with suppress(GuerdonError), boundary(DataError, f"{self._settings.type}: close raised"):
            close_world(self._worlds.pop(number, None))

    def _counts(self, number: int, reply: Reply) -> dict[str, int]:
        """Calls of tools in a reply, and those that cannot be read or name none."""
        calls = calls_of(reply.message, reply.bad)
        known = {tool["function"]["name"] for tool in self._tools[number]}
        good = [call for call in calls if "bad" not in call and call["function"]["name"] in known]
        return {"calls": len(calls), "bad_calls": len(calls) - len(good)}

    def _after(self, number: int, method: str, given: Any) -> Moment:
        moment = self._moment_after(number, method, given)
        if not moment.requests:
            self._end(number)
        return moment

    def _moment_after(self, number: int, method: str, given: Any) -> Moment:
        begun = time.monotonic()
        what = f"{self._settings.type}: {method}"
        try:
            with boundary(DataError, f"{what} raised"):
                step = checked_step(getattr(self._worlds[number], method)(given))
        except GuerdonError as error:
            why = str(error)
            return Moment(outcome=Failure("agent_error", why if why.startswith(what) else f"{what}: {why}"))
        self._seconds[number] += time.monotonic() - begun
        self._last[number] = step
        self._tools[number] = self._tools[number] if step.tools is None else step.tools
        if self._seconds[number] > self._settings.episode_timeout:
            limit = self._settings.episode_timeout
            return Moment(outcome=Failure("agent_timeout", f"the world took more than {limit:g} s"))
        self._said[number] = (*self._said[number], *step.messages)
        if not step.done:
            return Moment((Request(self._said[number], self._tools[number]),), step.reward, state=step.state)
        no_outcome = Failure("no_reward", "the world ended without an outcome")
        outcome = step.outcome if step.outcome is not None or step.reward is not None else no_outcome
        return Moment(reward=step.reward, outcome=outcome)


def row_of(prompt: Prompt) -> dict[str, Any]:
    """A row of the data as an agent gets it."""
    return {
        "id": prompt.id,
        "messages": [dict(message) for message in prompt.messages],
        "ground_truth": prompt.ground_truth,
        "extra_info": dict(prompt.extra_info),
    }


def check_agent_here(settings: AgentSettings | None) -> None:
    """Refuse an agent whose program or world is not on this machine, or whose tools have no types or docstring.

    Raises:
        ConfigError: the program, the tool or the world.
        MissingDependencyError: a package of the world is not installed; or programs of the tool `python` cannot be
            isolated on this machine.
    """
    if isinstance(settings, OwnAgentSettings):
        world = AGENTS.build(settings.type, settings.params, object)
        absent = [name for name in ("reset", "step") if not callable(getattr(world, name, None))]
        if absent:
            why = f"what {settings.type} returns is not a world: it has no method {absent[0]}"
            raise ConfigError(f"agent.type: {why}", key="agent.type")
        with boundary(ConfigError, f"agent.type: close of {settings.type} raised", key="agent.type"):
            close_world(world)
    if isinstance(settings, ToolAgentSettings):
        schemas_of(settings.tools)
    if isinstance(settings, CommandAgentSettings) and which(settings.command[0]) is None:
        program = settings.command[0]
        if Path(program).is_file():
            why = f"{program} cannot be executed: write its interpreter in front, such as [python, {program}]"
            raise ConfigError(f"agent.command: {why}", key="agent.command")
        raise ConfigError(f"agent.command: there is no program {program!r}", key="agent.command")
