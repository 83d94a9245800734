"""Functions for tests that are tools of an agent, and some that are not."""

import os
import time

from guerdon.errors import ToolFailure


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def misbehave(how: str) -> str:
    """Do what no tool should.

    Args:
        how: raise, fail, die, hang or long
    """
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


def silent(a: int) -> int:
    return a


number = 3
