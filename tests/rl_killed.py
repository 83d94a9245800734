"""Runs that end as if somebody had pulled the plug."""

import pytest


class Killed(BaseException):
    """Stands for a kill: nothing in guerdon may catch it."""


def kill_at(loop, where, count):
    """Run until the method `where` of the loop, its learner or its collector has begun `count` times, then stop."""
    owner = next(part for part in (loop, loop.learner, loop.collector) if hasattr(part, where))
    original, calls = getattr(owner, where), []

    def dies(*args, **kw):
        calls.append(None)
        if len(calls) == count:
            raise Killed
        return original(*args, **kw)

    setattr(owner, where, dies)
    with pytest.raises(Killed):
        loop.run()
