"""Body of an answer-checking process: pairs of answers in, verdicts out, one line of JSON each.

Runs `math-verify` with its own alarms off: the process that asked watches the clock and kills this one. Should that
one be gone too, an alarm of the operating system ends a comparison that never would. Nothing a model wrote is
evaluated as Python. This module does not know prompts, rewards or the pool of processes.

    $ echo '{"gold": "1/2", "answer": "0.5"}' | python -m guerdon.worlds.verifier_worker 10 0
    {"ready": true}
    {"verdict": "equal", "detail": ""}
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from typing import Any, TextIO

from guerdon.errors import DataError, boundary
from guerdon.lifeline import end_with_parent

_MEMORY = 4 << 30  # bytes that a comparison may take
_POLY = re.compile(r"Poly\(\s*((?:[^(),]|\([^()]*\))+),.*\)")
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_IMAGINARY = re.compile(r"(?<![A-Za-z\\])[iI](?![A-Za-z])")


def rewritten(text: str) -> str:
    """An answer in the notation that the parser of LaTeX reads; Python's spelling of maths becomes LaTeX's."""
    text = text.replace("\\$", "").replace("$", "").strip()
    poly = _POLY.fullmatch(text)
    text = (poly[1] if poly else text).strip().replace("**", "^")
    text = _PI.sub(r"\\pi ", text)
    if not re.search(r"\\sum|\\prod|_", text):  # there, i is an index
        text = _IMAGINARY.sub("I", text)
    return text


def compare(gold: str, answer: str, tolerance: float = 0.0) -> tuple[str, str]:
    """Verdict on an answer, and a word on why where there is none.

    Both are parsed as LaTeX or plain maths and compared symbolically (with decimals rounded to 6 places, as
    math-verify does); the gold answer comes first, because the comparison is not symmetric.

    Args:
        gold: the true answer, without what marks it.
        answer: the stated one, likewise.
        tolerance: relative difference at which two numbers count as equal.
    """
    from math_verify import LatexExtractionConfig, parse, verify

    def read(text: str) -> list[Any]:
        with boundary(DataError, "not readable"):
            found: list[Any] = parse(
                f"${rewritten(text)}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None
            )
        return found

    verdict = "gold_unparsable"
    try:
        golds = read(gold)
        if not golds:
            return verdict, "no mathematics in it"
        verdict = "answer_unparsable"
        answers = read(answer)
        if not answers:
            return verdict, "no mathematics in it"
        with boundary(DataError, "not comparable"):
            if verify(golds, answers, timeout_seconds=None, raise_on_error=True):
                return "equal", ""
            near = tolerance > 0 and any(_near(g, a, tolerance) for g in golds for a in answers)
    except DataError as error:
        return verdict, str(error)[:200]
    return ("equal", f"within {tolerance:g}") if near else ("different", "")


def _near(gold: Any, answer: Any, tolerance: float) -> bool:
    """Whether two expressions are numbers that differ by at most `tolerance` times the larger magnitude."""
    if not (getattr(gold, "is_number", False) and getattr(answer, "is_number", False)):
        return False
    a, b = complex(gold.evalf()), complex(answer.evalf())
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def main() -> None:
    """Answer requests from standard input until it ends. Arguments: seconds per pair, tolerance."""
    timeout, tolerance = float(sys.argv[1]), float(sys.argv[2])
    end_with_parent()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not look like a reply
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle; its end closes the pipe
    _limit_memory()
    compare("1", "1")  # load everything before the clock runs
    _say(replies, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        _alarm(2 * timeout + 5)
        verdict, detail = compare(request["gold"], request["answer"], tolerance)
        _alarm(0)
        _say(replies, {"verdict": verdict, "detail": detail})


def _say(replies: TextIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _alarm(seconds: float) -> None:
    """Have the operating system end this process after so many seconds; 0: not."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
