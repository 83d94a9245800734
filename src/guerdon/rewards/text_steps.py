"""Steps of responses: the tokens in which they end, and which of them are true.

Steps are cut by the rule that labelled and trained them: the splitters of `guerdon label`.

    cuts = cut_steps(responses)                  # texts and last tokens of the steps of each response
    true_steps(responses)                        # of generated tasks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from guerdon.collect.text import Responses, generated, separator_of
from guerdon.policies.batches.step_splitters import split
from guerdon.policies.batches.tokens import step_ends
from guerdon.settings.label import Splitter
from guerdon.statistics.classification import auroc, point
from guerdon.tasks.reasoning import step_truth
from guerdon.types import FloatArray, IntArray


class Cut(NamedTuple):
    """The steps of a response: their texts, and the index of the last token of each."""

    texts: tuple[str, ...]
    ends: IntArray


def steps_of(responses: Responses) -> tuple[IntArray, ...]:
    """Index of the last token of each step of each response; an empty response has none."""
    separator = separator_of(responses)
    return tuple(
        step_ends(ends_T, text, separator) for ends_T, text in zip(responses.char_ends, responses.texts, strict=True)
    )


def cut_steps(responses: Responses, splitter: Splitter | None = None) -> tuple[Cut, ...]:
    """The steps of each response as a reward model reads them: a partition of its text.

    A response of nothing but blanks is one step; one without any token has none.

    Args:
        responses: of a language model.
        splitter: of `guerdon label`; None: the task's own separator where it has one, else blank lines.

    Raises:
        ConfigError: the splitter `separator` for questions that have none.
    """
    separator = separator_of(responses) if generated(responses) else ""
    chosen = splitter or ("separator" if separator else "blank_line")
    cuts = []
    for ends_T, text in zip(responses.char_ends, responses.texts, strict=True):
        texts = split(text, chosen, separator=separator) or (text,)
        cuts.append(Cut(texts, token_places(ends_T, np.cumsum([len(t) for t in texts]))) if len(ends_T) else _NO_STEP)
    return tuple(cuts)


_NO_STEP = Cut((), np.zeros(0, dtype=np.int64))


def token_places(ends_T: IntArray, closes_S: Sequence[int] | np.ndarray) -> IntArray:
    """(S,) index of the token in which each step ends; the last token (an end token, often) belongs to the last step.

    Args:
        ends_T: characters that are there after each token (`policies.tokens.token_ends`), at least one.
        closes_S: characters that are there after each step.
    """
    found = np.minimum(np.searchsorted(ends_T, closes_S, side="left"), len(ends_T) - 1)
    found[-1:] = len(ends_T) - 1
    return np.asarray(found, dtype=np.int64)


def true_steps(responses: Responses) -> list[tuple[list[int], tuple[bool, ...]]]:
    """For each response of a generated task: the last token of each step, and whether it follows from those before."""
    found = []
    for row, (prompt, text) in enumerate(zip(responses.prompts, responses.texts, strict=True)):
        truth = step_truth(prompt, text)
        ends_T = responses.char_ends[row]
        last = max(len(ends_T) - 1, 0)
        places = [min(int(np.searchsorted(ends_T, end, side="left")), last) for _, end in truth.spans]
        found.append((places, truth.follows) if len(ends_T) else ([], ()))
    return found


def first_error_auroc(rows: Iterable[tuple[Sequence[bool], Sequence[float | None]]]) -> float | None:
    """AUROC of values of steps between sound steps and first errors; None without both.

    Steps behind the first error do not count (as in ProcessBench, 2412.06559): the response is lost already.

    Args:
        rows: of each response, which steps are sound, and their values; None where there is no measurement.
    """
    labels: list[bool] = []
    scores: list[float] = []
    for sound, values in rows:
        until = [*sound, False].index(False) + 1
        for right, value in zip(sound[:until], values, strict=False):
            if value is not None:
                labels.append(right)
                scores.append(float(value))
    return point(auroc, labels, scores)


def step_auroc(responses: Responses, cuts: Sequence[Cut], values: Sequence[FloatArray | None]) -> float | None:
    """`first_error_auroc` of generated problems; responses that were cut otherwise than the task cuts are left out.

    Args:
        responses: to generated problems.
        cuts: their steps.
        values: of the steps of each response; None where there is no measurement.
    """

    def rows() -> Iterator[tuple[Sequence[bool], Sequence[float]]]:
        for prompt, text, cut, values_S in zip(responses.prompts, responses.texts, cuts, values, strict=True):
            truth, ends = step_truth(prompt, text), np.cumsum([len(t) for t in cut.texts]).tolist()
            if values_S is not None and [end for _, end in truth.spans] == ends:
                yield truth.correct, values_S.tolist()

    return first_error_auroc(rows())
