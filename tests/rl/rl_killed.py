"""Runs that end as if somebody had pulled the plug."""

import pytest


class Killed(BaseException):
    """Stands for a kill: nothing in guerdon may catch it."""


def kill_at(loop, where, count):
    """Run until the method `where` of the loop or its side has begun `count` times, then stop as dead."""
    owner = loop if hasattr(loop, where) else loop.side
    original, calls = getattr(owner, where), []

    def dies(*args, **kw):
        calls.append(None)
        if len(calls) == count:
            raise Killed
        return original(*args, **kw)

    setattr(owner, where, dies)
    with pytest.raises(Killed):
        loop.run()
