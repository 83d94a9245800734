"""Process that compares answers as mathematics: pairs of answers in, verdicts out, one line of JSON each.

Runs `math-verify` without its own time limits: the parent process (`verifier.MathPool`) has one and kills this process.
Nothing a model wrote is evaluated as Python.

    $ echo '{"gold": "1/2", "answer": "0.5"}' | python -m guerdon.worlds.verifier_worker 10 0
    {"ready": true}
    {"verdict": "equal", "detail": ""}
"""

from __future__ import annotations

import re
import resource
import sys
from typing import Any

from guerdon.errors import DataError, boundary
from guerdon.subprocess_worker import answer_requests

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
    """Verdict on an answer and, where there is none, why.

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

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        verdict, detail = compare(request["gold"], request["answer"], tolerance)
        return {"verdict": verdict, "detail": detail}

    def prepare() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        compare("1", "1")  # load everything before the first time limit

    answer_requests(answer, alarm=2 * timeout + 5, prepare=prepare)


if __name__ == "__main__":
    main()
