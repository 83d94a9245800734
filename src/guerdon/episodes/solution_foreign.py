"""Rows of published process-supervision data as `Solution`s: PRM800K, Math-Shepherd, ProcessBench, PRMBench.

The conventions differ in ways that have cost others points: ProcessBench counts steps from 0 and says -1 for "no
error", PRMBench counts from 1; PRM800K rates -1, 0, 1 or not at all; Math-Shepherd writes its labels into a second
copy of the text. A solution that a format cannot express is refused with a reason, never bent. This module does not
know files, nor what the labels are used for.

    from_process_bench({"problem": "1+1?", "steps": ["1+1=3"], "label": 0, "final_answer_correct": False}, "x:1", "x")
    to_math_shepherd(solution)["label"]                        # "... Step 1: 3+5=8 +"
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from guerdon.episodes.solution_rows import CannotSayError, Fields, NothingToReadError, bodies, closed, cut, own_keys
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError

MARKER = "ки"  # ends a step of Math-Shepherd, after a space
FINISH_REASONS = ("found_error", "solution", "bad_problem", "give_up")
_LABEL_OF_RATING = {-1: 0.0, 0: 1.0, 1: 1.0, None: None}  # Qwen's mapping: neutral is not wrong (2501.07301)


def _labelled(solution: Solution) -> int:
    """How many steps there are up to the last labelled one."""
    known = [k for k, label in enumerate(solution.labels) if label is not None]
    if not known:
        raise CannotSayError(solution, "unlabelled", "no step has a label")
    return known[-1] + 1


def _hard(solution: Solution) -> None:
    if any(label not in (None, 0.0, 1.0) for label in solution.labels):
        raise CannotSayError(solution, "soft_label", "it has soft labels, and this format has only right and wrong")


def to_prm800k(solution: Solution) -> dict[str, Any]:
    """A row of PRM800K (Lightman et al. 2023, 2305.20050): one rated completion per step.

    Steps behind the last labelled one are not written as rated steps but kept under `rest`. The rating 0 (neutral)
    comes back where `meta` holds it.

    Raises:
        CannotSayError: nothing is labelled, or a label is soft.
    """
    _hard(solution)
    n = _labelled(solution)
    texts, keys = bodies(solution)
    ratings = [None if label is None else 1 if label else -1 for label in solution.labels[:n]]
    given = solution.meta.get("ratings")
    if isinstance(given, list) and [_LABEL_OF_RATING.get(r) for r in given] == list(solution.labels[:n]):
        ratings = given
    steps = [
        {
            "completions": [{"text": text, "rating": rating, "flagged": None}],
            "human_completion": None,
            "chosen_completion": None if rating == -1 else 0,
        }
        for text, rating in zip(texts, ratings, strict=False)
    ]
    finish = "found_error" if -1 in ratings else "solution" if n == len(texts) and None not in ratings else "give_up"
    return {
        "question": {
            "problem": solution.question,
            "ground_truth_answer": solution.ground_truth,
            "pre_generated_steps": texts,
            "pre_generated_answer": solution.answer,
        },
        "label": {"steps": steps, "finish_reason": solution.meta.get("finish_reason", finish)},
        **({"rest": texts[n:]} if n < len(texts) else {}),
        **own_keys(solution, without=("ground_truth_answer", "answer")),
        **keys,
    }


def from_prm800k(row: Any, where: str, name: str) -> Solution:
    """A row of PRM800K as the solution that its labeller followed.

    Of the completions of a step the chosen one counts, else the one that a person wrote, else the first rated -1,
    else the first; the others are left out. Ratings 1 and 0 are right, -1 is wrong, null is unknown, but that of a
    completion that a person wrote to go on from, which is right; `meta` keeps them, and `finish_reason`.

    Raises:
        NothingToReadError: no step is rated (a `bad_problem`, for instance).
        DataError: the row cannot be understood.
    """
    fields = Fields(row, where)
    question = Fields(row.get("question"), f"{where}: question")
    label = Fields(row.get("label"), f"{where}: label")
    finish = label.text("finish_reason", None)
    if finish is not None and finish not in FINISH_REASONS:
        raise DataError(f"{where}: finish_reason {finish!r} is none of {', '.join(FINISH_REASONS)}")
    picked = [
        _followed(Fields(step, f"{where}: step {k + 1}"))
        for k, step in enumerate(label.get("steps", (list, tuple), "a list of steps"))
    ]
    if not picked:
        raise NothingToReadError(where, finish or "no_step", f"no step is rated (finish_reason {finish})")
    rest, separator = fields.texts("rest", ()), fields.text("separator", "\n")
    texts = [text for text, _ in picked] + list(rest)
    ratings = [rating for _, rating in picked]
    known = {key: row[key] for key in ("labeler", "timestamp", "generation") if row.get(key) is not None}
    return fields.solution(
        id=fields.text("id", name),
        question=question.text("problem"),
        steps=closed(texts, separator, fields.integers("unclosed", None)),
        labels=tuple(_LABEL_OF_RATING[r] for r in ratings) + (None,) * len(rest),
        ground_truth=question.text("ground_truth_answer", None),
        answer=question.text("pre_generated_answer", None),
        separator=separator,
        meta=fields.meta() if fields.text("id", None) else {**known, "finish_reason": finish, "ratings": ratings},
    )


def _followed(step: Fields) -> tuple[str, int | None]:
    """Text and rating of the completion that a labeller went on from."""
    completions = step.get("completions", (list, tuple), "a list of completions", ())
    chosen = step.get("chosen_completion", int, "an index", None)
    if chosen is not None:
        if not 0 <= chosen < len(completions):
            raise DataError(f"{step.where}: chosen_completion {chosen} of {len(completions)} completions")
        picked = completions[chosen]
    elif step.row.get("human_completion") is not None:
        human = step.row["human_completion"]
        picked = dict(human) if isinstance(human, dict) else {"text": human}
        if picked.get("rating") is None:  # PRM800K rates no completion that a person wrote as the right one
            picked["rating"] = 1
    elif completions:
        picked = next((c for c in completions if isinstance(c, dict) and c.get("rating") == -1), completions[0])
    else:
        raise NothingToReadError(step.where, "no_completion", "neither a completion nor a human_completion")
    fields = Fields(picked, step.where)
    rating = fields.get("rating", int, "-1, 0, 1 or null", None)
    if rating not in _LABEL_OF_RATING:
        raise DataError(f"{step.where}: rating {rating} is none of -1, 0, 1 and null")
    return fields.text("text"), rating


def to_math_shepherd(solution: Solution) -> dict[str, Any]:
    """A row of Math-Shepherd (Wang et al. 2023, 2312.08935): ` ки` after each step of `input`, a sign in `label`.

    Steps behind the last labelled one are kept under `rest`.

    Raises:
        CannotSayError: nothing is labelled, a label is soft, a step in between has none, or the marker is in the text.
    """
    _hard(solution)
    n = _labelled(solution)
    if None in solution.labels[:n]:
        raise CannotSayError(solution, "gap", "a step before the last labelled one has no label")
    if MARKER in solution.question + solution.text:
        raise CannotSayError(solution, "mark_in_text", f"its text holds the step marker {MARKER}")
    steps = solution.steps[:n]
    lines = [(step.rstrip(), step[len(step.rstrip()) :]) for step in steps]
    signs = ["+" if label else "-" for label in solution.labels[:n]]
    head = solution.question + " "
    return {
        "input": head + "".join(f"{line} {MARKER}{tail}" for line, tail in lines),
        "label": head + "".join(f"{line} {sign}{tail}" for (line, tail), sign in zip(lines, signs, strict=True)),
        "task": solution.meta.get("task") or solution.meta.get("data_source") or "",
        "question_end": len(solution.question),
        "step_ends": list(accumulate(map(len, steps))),
        **({"rest": list(solution.steps[n:])} if n < len(solution.steps) else {}),
        **own_keys(solution),
    }


def from_math_shepherd(row: Any, where: str, name: str) -> Solution:
    """A row of Math-Shepherd as a solution.

    The solution starts where `Step 1:` stands (the last one before the first marker), unless the row says where.

    Raises:
        DataError: `input` and `label` are not the same text, or it cannot be seen where the solution starts.
    """
    fields = Fields(row, where)
    given, label = fields.text("input"), fields.text("label")
    pieces = given.split(MARKER)
    signs: list[str] = []
    at = 0
    for piece in pieces[:-1]:
        sign = label[at + len(piece) : at + len(piece) + 1]
        if label[at : at + len(piece)] != piece or sign not in ("+", "-"):
            raise DataError(f"{where}: label is not input with + or - for step {len(signs) + 1}'s {MARKER}")
        signs.append(sign)
        at += len(piece) + 1
    if label[at:] != pieces[-1] or not signs:
        raise DataError(f"{where}: " + (f"no {MARKER} in input" if not signs else "label and input end differently"))
    texts = [piece.removesuffix(" ") for piece in pieces[:-1]]
    start = fields.get("question_end", int, "a number of characters", None)
    begin = texts[0].rfind("Step 1:") if start is None else start + 1
    if begin < 0:
        raise DataError(f"{where}: no 'Step 1:' before the first {MARKER}: where does the solution start?")
    question = texts[0][: begin if start is None else start]
    texts[0] = texts[0][begin:]
    ends = fields.integers("step_ends", None)
    if ends is None:
        blanks = [len(piece) - len(piece.lstrip()) for piece in [*texts[1:], pieces[-1]]]
        ends = [end + blank for end, blank in zip(accumulate(map(len, texts)), blanks, strict=True)]
    rest = fields.texts("rest", ())
    task = fields.text("task", "")
    return fields.solution(
        id=fields.text("id", name),
        question=question if start is not None else question.rstrip(),
        steps=cut("".join([*texts, pieces[-1]]), ends, where) + rest,
        labels=tuple(float(sign == "+") for sign in signs) + (None,) * len(rest),
        **({} if start is not None else {"separator": "\n", "meta": {"task": task} if task else {}}),
    )


def to_process_bench(solution: Solution) -> dict[str, Any]:
    """A row of ProcessBench (Zheng et al. 2024, 2412.06559): `label` is the first wrong step from 0, -1 for none.

    Raises:
        CannotSayError: the labels do not say which step is wrong first.
    """
    _hard(solution)
    if solution.first_error is None:
        raise CannotSayError(solution, "unlabelled", "its labels do not say which step is wrong first")
    texts, keys = bodies(solution)
    return {
        "id": solution.id,
        "generator": str(solution.meta.get("generator", "")),
        "problem": solution.question,
        "steps": texts,
        "final_answer_correct": solution.is_correct,
        "label": solution.first_error,
        **own_keys(solution, without=("is_correct",)),
        **keys,
    }


def from_process_bench(row: Any, where: str, name: str) -> Solution:
    """A row of ProcessBench as a solution: steps before the first error are right, those behind it unknown.

    Raises:
        DataError: the row cannot be understood, or `label` is no step.
    """
    fields = Fields(row, where)
    texts, separator = fields.texts("steps"), fields.text("separator", "\n\n")
    first = fields.get("label", int, "a step from 0, or -1")
    if not texts or not -1 <= first < len(texts):
        raise DataError(f"{where}: label {first} is none of the {len(texts)} steps (from 0; -1: none is wrong)")
    n = len(texts)
    labels = (1.0,) * n if first < 0 else (1.0,) * first + (0.0,) + (None,) * (n - first - 1)
    generator = fields.text("generator", "")
    return fields.solution(
        id=str(row.get("id") or name),
        question=fields.text("problem"),
        steps=closed(texts, separator, fields.integers("unclosed", None)),
        labels=labels,
        is_correct=fields.get("final_answer_correct", bool, "true or false", None),
        separator=separator,
        meta={**({"generator": generator} if generator else {}), **fields.meta()},
    )


def from_prmbench(row: Any, where: str, name: str) -> Solution:
    """A row of PRMBench (Song et al. 2025, 2501.03124): the modified process; `error_steps` count from 1.

    Raises:
        DataError: the row cannot be understood, or an error step is none of the steps.
    """
    fields = Fields(row, where)
    steps, wrong = fields.texts("modified_process"), fields.integers("error_steps", ())
    if not steps or any(not 1 <= k <= len(steps) for k in wrong):
        raise DataError(f"{where}: error_steps {list(wrong)} are not among the {len(steps)} steps (from 1)")
    kept = {key: row[key] for key in ("classification", "reason", "modified_steps") if row.get(key) is not None}
    return fields.solution(
        id=str(row.get("idx") or name),
        question=fields.text("modified_question", None) or fields.text("question"),
        steps=closed(steps, "\n", None),
        labels=tuple(float(k not in wrong) for k in range(1, len(steps) + 1)),
        separator="\n",
        meta=kept,
    )
