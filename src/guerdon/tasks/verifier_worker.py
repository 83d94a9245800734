"""Process that compares answers as mathematics: pairs of answers in, verdicts out, one line of JSON each.

The parent process (`verifier.MathPool`) has the time limit and kills this process. Nothing a model wrote is evaluated
as Python, and numbers are bounded before they are computed (`expressions.py`).

    $ echo '{"gold": "1/2", "answer": "0.5"}' | python -m guerdon.tasks.verifier_worker 10 0
    {"ready": true}
    {"verdict": "equal", "detail": ""}

A request may have `"rounding": [places, figures]`, what the question allows (`rounding.py`); each may be null.
"""

from __future__ import annotations

import resource
import sys
from typing import Any

from guerdon.errors import DataError, boundary
from guerdon.processes.subprocess_worker import answer_requests
from guerdon.tasks.rounding import Rounding

_MEMORY = 4 << 30  # bytes that a comparison may take


def compare(gold: str, answer: str, tolerance: float = 0.0, rounding: Rounding | None = None) -> tuple[str, str]:
    """Verdict on an answer and, where there is none, why.

    Both are read as LaTeX or plain maths and compared exactly; `timeout` stands for a comparison that no bounded amount
    of work decides.

    Args:
        gold: the true answer, without what marks it.
        answer: the stated one, likewise.
        tolerance: relative difference at which two numbers count as equal.
        rounding: of a decimal, where the question allows one.
    """
    from guerdon.tasks.equality import UndecidedError
    from guerdon.tasks.expressions import TooLargeError, UndefinedError
    from guerdon.tasks.form_equality import Allowance, same
    from guerdon.tasks.forms import read, tidied

    if tidied(gold) and tidied(gold) == tidied(answer):
        return "equal", ""
    verdict = "gold_unparsable"
    try:
        with boundary(DataError, "not readable"):
            true = read(gold)
        verdict = "answer_unparsable"
        with boundary(DataError, "not readable"):
            stated = read(answer)
        with boundary(DataError, "not comparable"):
            if same(true, stated, Allowance(tolerance, rounding)):
                return "equal", f"within {tolerance:g}" if tolerance > 0 else ""
    except (TooLargeError, UndecidedError) as error:
        return "timeout", str(error)[:200]
    except UndefinedError as error:
        return "gold_unparsable" if verdict == "gold_unparsable" else "different", str(error)
    except DataError as error:
        return verdict, str(error)[:200]
    return "different", ""


def main() -> None:
    """Answer requests from standard input until it ends. Arguments: seconds per pair, tolerance."""
    timeout, tolerance = float(sys.argv[1]), float(sys.argv[2])

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        rounding = request.get("rounding")
        verdict, detail = compare(
            request["gold"], request["answer"], tolerance, None if rounding is None else Rounding(*rounding)
        )
        return {"verdict": verdict, "detail": detail}

    def prepare() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        compare("\\sum_{k=1}^{n} k", "\\tan^2 x + 1")  # load everything before the first time limit

    answer_requests(answer, alarm=2 * timeout + 5, prepare=prepare)


if __name__ == "__main__":
    main()
