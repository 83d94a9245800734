"""Worlds of messages: environments whose observations are chat messages and whose actions are an assistant's replies.

step = world.reset({"id": "7", "messages": [{"role": "user", "content": "7"}], "extra_info": {}})
step = world.step({"role": "assistant", "content": "go north"})
step.messages, step.reward, step.done, step.outcome
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from guerdon.errors import DataError
from guerdon.reading.chats import chat_messages, tool_schemas
from guerdon.types import Failure, Message, Tool


class WorldStep(NamedTuple):
    """What a world of messages says after it was reset, and after a reply.

    Attributes:
        messages: that follow in the conversation.
        reward: of the reply; None in worlds that give outcomes alone.
        done: the episode has ended.
        outcome: of the whole episode, where it is known: 1 is success. A `Failure` where the world broke.
        state: a name of the state, by which `algorithm.by_state` compares turns.
        tools: functions that can be called from now on, as JSON schemas; None: those of before.
    """

    messages: tuple[Message, ...] = ()
    reward: float | None = None
    done: bool = False
    outcome: float | Failure | None = None
    state: str | None = None
    tools: tuple[Tool, ...] | None = None


class MessageWorld(Protocol):
    """An environment that says messages and is answered by the assistant's; one for each conversation.

    A method `close`, where there is one, is called once the conversation has ended, however it ended.
    """

    def reset(self, row: Mapping[str, Any]) -> WorldStep:
        """Begin the episode of a row: `id`, `messages`, `ground_truth`, `extra_info`."""
        ...

    def step(self, message: Message) -> WorldStep:
        """Go on after the assistant's message.

        Args:
            message: with `tool_calls`, and `bad_calls` where some cannot be read: what is wrong, by their place among
                all calls of the message.
        """
        ...


def checked_step(given: Any) -> WorldStep:
    """What a world returned, with messages and tools in one form and plain numbers.

    Args:
        given: by `reset` or `step` of a world.

    Raises:
        DataError: it is no `WorldStep`, or one of its fields is not of its type, or not finite.
    """
    if not isinstance(given, WorldStep):
        raise DataError(f"returned {type(given).__name__}, not a guerdon.WorldStep")
    if not isinstance(given.done, bool | np.bool_):
        raise DataError(f"done is True or False, this is {str(given.done)[:80]!r}")
    if given.state is not None and not isinstance(given.state, str):
        raise DataError(f"state is a text or None, this is {str(given.state)[:80]!r}")
    outcome = given.outcome
    return given._replace(
        messages=chat_messages(list(given.messages)) if given.messages else (),
        reward=_number(given.reward, "reward"),
        done=bool(given.done),
        outcome=outcome if isinstance(outcome, Failure) else _number(outcome, "outcome"),
        tools=None if given.tools is None else tool_schemas(list(given.tools)),
    )


def _number(value: Any, name: str) -> float | None:
    """A field that is a finite number or None."""
    if value is None:
        return None
    try:
        found = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise DataError(f"{name} is a finite number or None, this is {str(value)[:80]!r}")
    return found


def close_world(world: Any) -> None:
    """Close a world that has a method for it."""
    close = getattr(world, "close", None)
    if callable(close):
        close()


def calls_of(message: Message, bad: Mapping[int, str]) -> list[Mapping[str, Any]]:
    """The calls of a message in order: `{"bad": why}` in place of one that cannot be read.

    Args:
        message: of the assistant.
        bad: what is wrong with calls that cannot be read, by their place among all.
    """
    good = list(message.get("tool_calls") or ())
    return [{"bad": bad[k]} if k in bad else good.pop(0) for k in range(len(good) + len(bad))]


def result_of(call: Mapping[str, Any], text: str) -> Message:
    """The message that answers a call of `calls_of`."""
    named = {} if "bad" in call else {"tool_call_id": call["id"], "name": call["function"]["name"]}
    return {"role": "tool", "content": text, **named}
