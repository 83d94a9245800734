r"""One row of a file as a `Solution` and back: the seed's records, its training form, TRL's stepwise supervision.

What a format has no column for travels in optional keys (`id`, `separator`, `step_ends`, `meta`, ...), so that a
solution written here reads back as it was; other tools ignore them. A step without a label has a null label, never a
value that somebody made up. This module does not know files, nor the formats of benchmarks (`solution_foreign.py`).

    row = to_record(solution)             # question, solution, steps, step_rewards, is_correct, ground_truth_answer
    from_record(row, "data.jsonl:1", "data-1") == solution
    to_training(solution)[0]["target_text"]                    # "CORRECT (+1)"
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError

Row = Mapping[str, Any]

TARGETS = {True: "CORRECT (+1)", False: "INCORRECT (-1)"}
_QUESTION, _PARTIAL, _EVALUATE = "### Question:\n", "\n\n### Partial Solution:\n", "\n\n### Evaluate this step:\n"


class CannotSayError(DataError):
    """A format has no way to say something about a solution.

    Attributes:
        reason: a short stable word to count by.
    """

    def __init__(self, solution: Solution, reason: str, detail: str) -> None:
        super().__init__(f"solution {solution.id}: {detail}")
        self.reason = reason


class NothingToReadError(DataError):
    """A row is as its format has it, and says nothing about any step.

    Attributes:
        reason: a short stable word to count by.
    """

    def __init__(self, where: str, reason: str, detail: str) -> None:
        super().__init__(f"{where}: {detail}")
        self.reason = reason


class Fields:
    """Reads the keys of a row; every error says where the row stands.

    Args:
        row: a mapping; a null counts as absent.
        where: file and line.

    Raises:
        DataError: it is no mapping; the methods raise it for a missing key or a value of another type.
    """

    def __init__(self, row: Any, where: str) -> None:
        if not isinstance(row, Mapping):
            raise DataError(f"{where}: a row must be a map of keys, this is {type(row).__name__}")
        self.row, self.where = row, where

    def get(self, key: str, kind: type | tuple[type, ...], wanted: str, default: Any = ...) -> Any:
        """The value of a key; without a default it must be there."""
        value = self.row.get(key)
        if value is None:
            if default is ...:
                raise DataError(f"{self.where}: no {key}; found {', '.join(map(str, self.row))}")
            return default
        numeric = kind in (int, (int, float))
        if not isinstance(value, kind) or (numeric and isinstance(value, bool)):
            raise DataError(f"{self.where}: {key} must be {wanted}, this is {str(value)[:80]!r}")
        return value

    def text(self, key: str, default: Any = ...) -> Any:
        """A string."""
        return self.get(key, str, "text", default)

    def texts(self, key: str, default: Any = ...) -> Any:
        """A list of strings, as a tuple."""
        values = self.get(key, (list, tuple), "a list of texts", default)
        if any(not isinstance(v, str) for v in values or ()):
            raise DataError(f"{self.where}: {key} must hold texts only")
        return values if values is None else tuple(values)

    def integers(self, key: str, default: Any = ...) -> Any:
        """A list of whole numbers, as a tuple."""
        values = self.get(key, (list, tuple), "a list of whole numbers", default)
        if any(not isinstance(v, int) or isinstance(v, bool) for v in values or ()):
            raise DataError(f"{self.where}: {key} must hold whole numbers only, this is {str(values)[:80]}")
        return values if values is None else tuple(values)

    def numbers(self, key: str, default: Any = ...) -> Any:
        """A list of numbers, booleans (as 1 and 0) and nulls, as a tuple of floats and None."""
        values = self.get(key, (list, tuple), "a list of numbers", default)
        if any(v is not None and not isinstance(v, int | float) for v in values or ()):
            raise DataError(f"{self.where}: {key} must hold numbers, true and false only, this is {str(values)[:80]}")
        return values if values is None else tuple(None if v is None else float(v) for v in values)

    def meta(self) -> dict[str, Any]:
        """The `meta` of a row: a map, or a map in JSON (Parquet)."""
        value = self.get("meta", (Mapping, str), "a map", default={})
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{self.where}: meta is not JSON: {error}") from error
        return dict(value)

    def solution(self, **given: Any) -> Solution:
        """A solution of these fields and of the optional keys that the row has.

        Raises:
            DataError: they do not fit together.
        """
        optional = {
            "rewards": self.numbers("step_rewards", ()),
            "is_correct": self.get("is_correct", bool, "true or false", None),
            "ground_truth": self.text("ground_truth_answer", None),
            "answer": self.text("answer", None),
            "separator": self.text("separator", ""),
            "meta": self.meta(),
        }
        try:
            return Solution(**{**optional, **given})
        except DataError as error:
            raise DataError(f"{self.where}: {error}") from error


def own_keys(solution: Solution, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """The optional keys that carry what a format has no column for; what is empty is left out."""
    keys = {
        "step_rewards": list(solution.rewards),
        "is_correct": solution.is_correct,
        "ground_truth_answer": solution.ground_truth,
        "answer": solution.answer,
        "separator": solution.separator,
        "meta": dict(solution.meta),
    }
    return {"id": solution.id} | {
        k: v for k, v in keys.items() if k not in without and v is not None and v not in ([], {})
    }


def cut(text: str, ends: Sequence[int], where: str) -> tuple[str, ...]:
    """A text in pieces that end at these characters.

    Raises:
        DataError: the ends do not rise, or do not reach the end of the text.
    """
    if any(b < a for a, b in pairwise((0, *ends))) or (ends[-1] if ends else 0) != len(text):
        raise DataError(f"{where}: step_ends {list(ends)[:8]} do not cut the {len(text)} characters of the solution")
    return tuple(text[a:b] for a, b in pairwise((0, *ends)))


def closed(bodies: Sequence[str], separator: str, unclosed: Sequence[int] | None) -> tuple[str, ...]:
    """Steps from texts without their separator; where nothing else is said, only the last has none."""
    open_ = {len(bodies) - 1} if unclosed is None else set(unclosed)
    return tuple(body if k in open_ else body + separator for k, body in enumerate(bodies))


def bodies(solution: Solution) -> tuple[list[str], dict[str, Any]]:
    """The steps without their separator, and the keys `separator` and `unclosed` that undo this."""
    separator, last = solution.separator, len(solution.steps) - 1
    texts = [step.removesuffix(separator) for step in solution.steps]
    unclosed = [k for k, step in enumerate(solution.steps) if not separator or not step.endswith(separator)]
    usual = not separator or unclosed == [last]
    return texts, {"separator": separator} | ({} if usual else {"unclosed": unclosed})


def to_record(solution: Solution) -> dict[str, Any]:
    """A row of the seed's data set.

    `steps` are without the blanks around them; `step_ends` say where each ends in `solution`.
    """
    return {
        "question": solution.question,
        "solution": solution.text,
        "steps": [step.strip() for step in solution.steps],
        "step_rewards": list(solution.rewards),
        "is_correct": solution.is_correct,
        "ground_truth_answer": solution.ground_truth,
        "step_labels": list(solution.labels),
        "step_ends": list(accumulate(map(len, solution.steps))),
        **own_keys(solution, without=("step_rewards", "is_correct", "ground_truth_answer")),
    }


def from_record(row: Any, where: str, name: str) -> Solution:
    """A row of the seed's data set as a solution.

    Without `step_ends`, steps are looked for in the solution's text, and what stands between two of them belongs to
    the first; where one is not there, steps are lines and the text that was given is kept in `meta`. Without
    `step_labels`, labels are what the rewards say for certain: SE tells right from wrong; HE does in solutions that
    are correct, while in others it pays -1 for every step and its labels stay unknown.

    Args:
        row: with `question`, `steps`, and what else is known.
        where: file and line, for errors.
        name: id of a solution that has none.

    Raises:
        DataError: the row cannot be understood.
    """
    fields = Fields(row, where)
    steps, text = fields.texts("steps"), fields.text("solution", None)
    ends = fields.integers("step_ends", None)
    more: dict[str, Any] = {}
    if ends is not None:
        steps = cut(text or "", ends, where)
    elif (found := _locate(text or "", steps)) is not None:
        steps = found
    else:
        steps = closed(steps, "\n", None)
        more = {"separator": "\n", "meta": {**fields.meta(), **({} if text is None else {"solution_as_given": text})}}
    rewards = fields.numbers("step_rewards", ())
    labels = fields.numbers("step_labels", None)
    if rewards and len(rewards) != len(steps):
        raise DataError(f"{where}: {len(rewards)} step_rewards for {len(steps)} steps")
    if labels is None:
        labels = labels_of_rewards(rewards, fields.get("is_correct", bool, "true or false", None))
    return fields.solution(
        id=fields.text("id", name), question=fields.text("question"), steps=steps, labels=labels, **more
    )


def _locate(text: str, steps: Sequence[str]) -> tuple[str, ...] | None:
    """The text in pieces that each hold one of these steps, in order; None where one of them is not in it."""
    starts, at = [], 0
    for step in steps:
        start = text.find(step, at)
        if start < 0:
            return None
        starts.append(start)
        at = start + len(step)
    return tuple(text[a:b] for a, b in pairwise((0, *starts[1:], len(text)))) if steps else None


def labels_of_rewards(rewards: Sequence[float | None], is_correct: bool | None) -> tuple[float | None, ...]:
    """What HE or SE rewards say about their steps; None where HE says no more than "wrong solution"."""
    hard = all(r is None or abs(r) == 1.0 for r in rewards)
    told = not hard or is_correct or any(r == 1.0 for r in rewards)
    return tuple(None if r is None or not told else float(r > 0) for r in rewards)


def to_training(solution: Solution) -> list[dict[str, Any]]:
    """The seed's training form: a row per step with the steps up to it, its verdict and its reward.

    A step without label or reward has no row of its own; it stands in the partial solutions of later steps. The form
    is a projection: of a solution it keeps question, steps, verdicts and rewards.

    Raises:
        CannotSayError: no step has a label and a reward, or the question holds the mark that ends it.
    """
    if _PARTIAL in _QUESTION + solution.question + _PARTIAL[:-1]:
        raise CannotSayError(solution, "mark_in_text", "its question holds '### Partial Solution:'")
    rows = []
    pairs = list(zip(solution.labels, solution.rewards, strict=False))
    for k, (label, reward) in enumerate(pairs):
        if label is None or reward is None:
            continue
        partial = "".join(solution.steps[: k + 1]).rstrip()
        rows.append(
            {
                "input_text": f"{_QUESTION}{solution.question}{_PARTIAL}{partial}{_EVALUATE}",
                "target_text": TARGETS[label >= 0.5],
                "reward_value": reward,
                "id": solution.id,
                "step": k,
            }
        )
    if not rows:
        raise CannotSayError(solution, "unlabelled", "no step has a label and a reward")
    return rows


def from_training(rows: Iterable[tuple[str, Any]], name: str) -> Iterator[tuple[str, Solution | DataError]]:
    """Solutions from rows of the training form: rows that follow each other and grow are one solution.

    Args:
        rows: where each row stands, and the row.
        name: in front of the id of a solution that has none.

    Yields:
        Where a solution starts, and the solution; or where a row is bad, and why.
    """
    group: list[tuple[str, str, str, float, float]] = []  # id, question, partial, label, reward
    start = ""
    for where, row in rows:
        try:
            new = _training_row(row, where, name)
        except DataError as error:
            yield where, error
            continue
        grows = (
            group and new[:2] == group[-1][:2] and len(new[2]) > len(group[-1][2]) and new[2].startswith(group[-1][2])
        )
        if group and not grows:
            yield start, _joined(group, f"{name}-{start.rpartition(':')[2].strip()}")
            group = []
        start = start if group else where
        group.append(new)
    if group:
        yield start, _joined(group, f"{name}-{start.rpartition(':')[2].strip()}")


def _training_row(row: Any, where: str, name: str) -> tuple[str, str, str, float, float]:
    fields = Fields(row, where)
    text = fields.text("input_text")
    question, middle, partial = text.partition(_PARTIAL)
    if not text.startswith(_QUESTION) or not middle or not partial.rstrip("\n").endswith(_EVALUATE.rstrip("\n")):
        raise DataError(
            f"{where}: input_text lacks one of '### Question:', '### Partial Solution:', '### Evaluate this step:'"
        )
    verdict = {target: right for right, target in TARGETS.items()}.get(fields.text("target_text").strip())
    if verdict is None:
        raise DataError(f"{where}: target_text is {row['target_text']!r}, not one of {', '.join(TARGETS.values())}")
    reward = float(fields.get("reward_value", (int, float), "a number"))
    if not -1.0 <= reward <= 1.0:
        raise DataError(f"{where}: reward_value is {reward}; allowed: -1 to 1")
    partial = partial.rstrip("\n").removesuffix(_EVALUATE.rstrip("\n"))
    return fields.text("id", ""), question.removeprefix(_QUESTION), partial, float(verdict), reward


def _joined(group: Sequence[tuple[str, str, str, float, float]], name: str) -> Solution:
    """Growing partial solutions as one solution; blanks between two steps end the first of them."""
    partials = [row[2] for row in group]
    pieces = [after[len(before) :] for before, after in pairwise(["", *partials])]
    text = partials[-1]
    ends, at = [], 0
    for piece, following in zip(pieces, [*pieces[1:], ""], strict=True):
        at += len(piece)
        ends.append(at + len(following) - len(following.lstrip()))
    return Solution(
        id=group[0][0] or name,
        question=group[0][1],
        steps=cut(text, ends, name),
        labels=tuple(row[3] for row in group),
        rewards=tuple(row[4] for row in group),
    )


def to_trl(solution: Solution) -> dict[str, Any]:
    """A row of TRL's stepwise supervision: `prompt`, `completions` without separators, `labels`.

    Labels are booleans where all are hard, else floats; a step without a label has null.

    Raises:
        CannotSayError: nothing is labelled.
    """
    if all(label is None for label in solution.labels):
        raise CannotSayError(solution, "unlabelled", "no step has a label")
    texts, keys = bodies(solution)
    hard = all(label in (None, 0.0, 1.0) for label in solution.labels)
    labels = [bool(v) if hard and v is not None else v for v in solution.labels]
    return {"prompt": solution.question, "completions": texts, "labels": labels, **own_keys(solution), **keys}


def from_trl(row: Any, where: str, name: str) -> Solution:
    r"""A row of TRL's stepwise supervision as a solution.

    Steps end with the row's `separator`, a line break where it names none (TRL's own default). Where `label_mask` is
    false, the label counts as absent.

    Raises:
        DataError: the row cannot be understood.
    """
    fields = Fields(row, where)
    separator = fields.text("separator", "\n")
    labels = fields.numbers("labels")
    mask = fields.numbers("label_mask", (1.0,) * len(labels))
    if len(mask) != len(labels):
        raise DataError(f"{where}: label_mask has {len(mask)} entries for {len(labels)} labels")
    steps = closed(fields.texts("completions"), separator, fields.integers("unclosed", None))
    if len(labels) != len(steps):
        raise DataError(f"{where}: {len(labels)} labels for {len(steps)} completions")
    return fields.solution(
        id=fields.text("id", name),
        question=fields.text("prompt"),
        steps=steps,
        labels=tuple(label if known else None for label, known in zip(labels, mask, strict=True)),
        separator=separator,
    )
