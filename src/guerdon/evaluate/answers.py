"""Which of several stated answers are the same? Classes by equivalence, not by string.

This module does not know questions or samples: answers in, class numbers out.

    answer_classes(["1/2", "0.5", None, "2"], same_number_or_text)      # [0, 0, -1, 1]
    answer_classes(answers, same_by(verifier))                          # symbolically, with math-verify
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guerdon.evaluate.votes import NO_ANSWER
from guerdon.worlds.answers import normalized, same_number
from guerdon.worlds.prompts import Prompt
from guerdon.worlds.verifier import Verifier

Same = Callable[[str, str], bool]
_NO_QUESTION = ({"role": "user", "content": ""},)


def same_number_or_text(left: str, right: str) -> bool:
    """Equal as exact numbers where both are numbers, else as normalised strings."""
    equal = same_number(left, right)
    return normalized(left) == normalized(right) if equal is None else equal


def same_by(verifier: Verifier) -> Same:
    """Ask a verifier, either way round (symbolic comparison is not symmetric); strings that look equal are.

    An answer that cannot be read, and a timeout, are `different` here: a class of its own costs a vote, and joining
    what may differ would make one up.
    """

    def same(left: str, right: str) -> bool:
        if same_number_or_text(left, right):
            return True

        def equal(gold: str, answer: str) -> bool:
            prompt = Prompt(id="answers", messages=_NO_QUESTION, ground_truth=gold, data_source="answers")
            return verifier.check(rf"\boxed{{{answer}}}", prompt).correct is True

        return equal(left, right) or equal(right, left)

    return same


def answer_classes(answers_N: Sequence[str | None], same: Same) -> list[int]:
    """(N,) class of each answer: that of the first earlier class whose first member it equals, else a new one.

    No answer is class -1.
    """
    firsts: list[str] = []
    known: dict[str, int] = {}
    classes = []
    for answer in answers_N:
        if answer is None or not answer.strip():
            classes.append(NO_ANSWER)
            continue
        if answer not in known:
            found = next((k for k, first in enumerate(firsts) if same(first, answer)), len(firsts))
            if found == len(firsts):
                firsts.append(answer)
            known[answer] = found
        classes.append(known[answer])
    return classes
