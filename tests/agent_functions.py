"""Functions for tests that are tools of an agent, and some that are not."""

import asyncio
import enum
import os
import subprocess
import time
from collections.abc import Iterator

from guerdon.errors import ToolFailure


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


plus = add


def misbehave(how: str) -> str:
    """Do what no tool should.

    Args:
        how: raise, fail, die, hang, wait, leave, read, half or long
    """
    if how in ("wait", "leave"):
        left = subprocess.Popen(["sleep", "600"])
        with open(os.environ["LEFT"], "w", encoding="ascii") as file:
            file.write(str(left.pid))
        if how == "wait":
            left.wait()
        return "left"
    if how == "read":
        return subprocess.run(["cat"], capture_output=True, text=True, check=True).stdout + "nothing to read"
    if how == "half":
        return "a\ud800"
    if how == "raise":
        raise ValueError("no such page")
    if how == "fail":
        raise ToolFailure("the index is down")
    if how == "die":
        os._exit(3)
    if how == "hang":
        time.sleep(600)
    return "x" * 500


def untyped(a):
    """Return what it was given."""
    return a


class Colour(enum.Enum):
    """A type that JSON values are not of."""

    RED = "red"


class Tint(enum.StrEnum):
    """A type whose members are texts."""

    RED = "red"


async def later(a: int) -> int:
    """Return what it was given.

    Args:
        a: a number
    """
    await asyncio.sleep(0)
    return a


def yields(a: int) -> Iterator[int]:
    """Yield what it was given.

    Args:
        a: a number
    """
    yield a


def several(*a: int) -> int:
    """Add numbers.

    Args:
        a: numbers
    """
    return sum(a)


def unnamed(a: int, /) -> int:
    """Return what it was given.

    Args:
        a: a number
    """
    return a


def paint(colours: list[Colour] | None = None) -> str:
    """Name colours.

    Args:
        colours: some
    """
    return str(colours)


def tint(colour: Tint) -> str:
    """Name a colour.

    Args:
        colour: one
    """
    return str(colour == Tint.RED)


class Keeper:
    """An object with a method."""

    def look(self, a: int) -> int:
        """Return what it was given.

        Args:
            a: a number
        """
        return a


keeper = Keeper()


def silent(a: int) -> int:
    return a


number = 3
