"""Calls of parts that users bring, such as a reward model or a verifier, where an exception is a failure of one item.

A message about each place that raises is written once.

    reply = attempt("the judge mine:Judge", "judge_error", lambda: judge.reply(request))    # or a Failure
    scores = attempt_each("the reward model mine", "model_error", model.score, episodes)    # or a Failure for some
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from guerdon.errors import GuerdonError, boundary, is_of_machine, place_of, said_by
from guerdon.processes.progress import log_once
from guerdon.types import Failure

Given = TypeVar("Given")
Found = TypeVar("Found")


class _PartRaised(GuerdonError):
    """A part raised an exception that is not guerdon's."""


def attempt(what: str, reason: str, call: Callable[[], Found]) -> Found | Failure:
    """The result of a call of a part; or a failure where it raises.

    Args:
        what: the part, in words.
        reason: of the failure.
        call: calls it.

    Raises:
        GuerdonError: as the part raised it.
        Exception: one of the part which says that the machine has no memory or disk left (`is_of_machine`).
    """
    try:
        with boundary(_PartRaised, what):
            return call()
    except _PartRaised as error:
        cause = error.__cause__ or error
        if is_of_machine(cause):
            raise cause from None
        where = place_of(cause)
        log_once(f"{what} raised {type(cause).__name__} ({where}); what it was called for is a failure, {reason}")
        return Failure(reason, f"{said_by(cause)} ({where})")


def attempt_each(
    what: str,
    reason: str,
    call: Callable[[Sequence[Given]], Sequence[Found]],
    items: Sequence[Given],
    *,
    together: bool = False,
) -> list[Found | Failure]:
    """The result of each item of one call of a part; or a failure of the items at which it raises.

    A call that raises is made again with each half of its items, until one is left.

    Args:
        what: the part, in words.
        reason: of the failures.
        call: has one result per item, in order.
        items: what it is called with.
        together: all items are one measurement, which fails as a whole.

    Raises:
        GuerdonError: as the part raised it.
        Exception: as `attempt`.
    """
    found = attempt(what, reason, lambda: call(items))
    if not isinstance(found, Failure):
        return list(found)
    if together or len(items) == 1:
        return [found] * len(items)
    half = len(items) // 2
    first = attempt_each(what, reason, call, items[:half])
    return first + attempt_each(what, reason, call, items[half:])
