r"""Step-labelled solutions as rows of the field's formats and back.

| format | rows | written |
|---|---|---|
| `seed` | question, solution, steps, step_rewards, is_correct, ground_truth_answer | without loss |
| `training` | input_text, target_text, reward_value: one per step | question, steps, hard labels, rewards |
| `trl` | prompt, completions, labels | without loss |
| `prm800k` | question, label.steps with ratings -1, 0, 1, null | hard labels, without loss |
| `math_shepherd` | input with ` ки`, label with + and - | hard labels, without loss |
| `process_bench` | problem, steps, label: first error from 0, or -1 | first error |
| `prmbench` | modified_process, error_steps from 1 | read only |
| RLHFlow | conversations whose assistant says + or - of each step | read only |

What a format has no column for is kept in optional keys (`id`, `separator`, `meta`, `conversation`, `tools`, ...), so
a solution written here reads back unchanged. A question may be chat messages. A step without a label has a null
label. A solution that a format cannot express raises `NotExpressibleError`.

    row = to_record(solution)             # question, solution, steps, step_rewards, is_correct, ground_truth_answer
    from_record(row, "data.jsonl:1", "data-1") == solution
    to_math_shepherd(solution)["label"]                        # "... Step 1: 3+5=8 +"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from guerdon.episodes.solutions import Solution, until_first_error
from guerdon.errors import DataError
from guerdon.reading.chats import asked_of, beyond_question
from guerdon.reading.fields import RowFields
from guerdon.reading.nested import STEP_MARK, divided, steps_of_turns
from guerdon.reading.values import truth_of

TARGETS = {True: "CORRECT (+1)", False: "INCORRECT (-1)"}
QUESTION, PARTIAL, EVALUATE = "### Question:\n", "\n\n### Partial Solution:\n", "\n\n### Evaluate this step:\n"
MARKER = STEP_MARK
FINISH_REASONS = ("found_error", "solution", "bad_problem", "give_up")
_LABEL_OF_RATING = {-1: 0.0, 0: 1.0, 1: 1.0, None: None}  # Qwen's mapping: neutral is not wrong (2501.07301)


class LeftOutError(DataError):
    """A solution or row that is left out and counted.

    Attributes:
        reason: a short stable word to count by.
    """

    def __init__(self, where: str, reason: str, detail: str) -> None:
        super().__init__(detail, where=where)
        self.reason = reason


class NoLabelsError(LeftOutError):
    """A valid row that has no label for any step."""


class NotExpressibleError(LeftOutError):
    """A solution that a format cannot express."""

    def __init__(self, solution: Solution, reason: str, detail: str) -> None:
        super().__init__(f"solution {solution.id}", reason, detail)


def _solution(fields: RowFields, **given: Any) -> Solution:
    """A solution of these values and of the optional keys that the row has.

    Raises:
        DataError: they do not fit together.
    """
    optional = {
        "rewards": fields.numbers("step_rewards", ()),
        "is_correct": fields.get("is_correct", bool, "true or false", None),
        "ground_truth": fields.text("ground_truth_answer", None),
        "answer": fields.text("answer", None),
        "separator": fields.text("separator", ""),
        "meta": fields.meta(),
        "context": fields.messages("conversation"),
        "tools": fields.tools(),
    }
    try:
        return Solution(**{**optional, **given})
    except DataError as error:
        column = next((name for name in (f"step_{error.field}", error.field) if name in fields.row), error.field)
        raise DataError(str(error), where=fields.where, field=column) from error


def _own_keys(solution: Solution, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """The optional keys that carry what a format has no column for; what is empty is left out."""
    keys = {
        "step_rewards": list(solution.rewards),
        "is_correct": solution.is_correct,
        "ground_truth_answer": solution.ground_truth,
        "answer": solution.answer,
        "separator": solution.separator,
        "meta": dict(solution.meta),
        "conversation": list(solution.context),
        "tools": list(solution.tools),
    }
    return {"id": solution.id} | {
        k: v for k, v in keys.items() if k not in without and v is not None and v not in ([], {})
    }


def _cut(text: str, ends: Sequence[int], where: str) -> tuple[str, ...]:
    """A text in pieces that end at these characters.

    Raises:
        DataError: the ends do not rise, or do not reach the end of the text.
    """
    if any(b < a for a, b in pairwise((0, *ends))) or (ends[-1] if ends else 0) != len(text):
        raise DataError(
            f"step_ends {list(ends)[:8]} do not cut the {len(text)} characters of the solution",
            where=where,
            field="step_ends",
        )
    return tuple(text[a:b] for a, b in pairwise((0, *ends)))


def closed(bodies: Sequence[str], separator: str, unclosed: Sequence[int] | None) -> tuple[str, ...]:
    """Steps from texts without their separator; by default only the last step has none."""
    open_ = {len(bodies) - 1} if unclosed is None else set(unclosed)
    return tuple(body if k in open_ else body + separator for k, body in enumerate(bodies))


def _bodies(solution: Solution) -> tuple[list[str], dict[str, Any]]:
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
        **_own_keys(solution, without=("step_rewards", "is_correct", "ground_truth_answer")),
    }


def from_record(row: Any, where: str, name: str) -> Solution:
    """A row of the seed's data set as a solution.

    Without `step_ends`, steps are looked for in the solution's text, and text between two of them belongs to
    the first; where one is not there, steps are lines and the text that was given is kept in `meta`. Without
    `step_labels`, labels come from the rewards as far as these are unambiguous: SE separates right from wrong; HE does
    in correct solutions, while in others it is -1 for every step and the labels stay unknown.

    Args:
        row: with `question`, `steps`, and what else is known.
        where: file and line, for errors.
        name: id of a solution that has none.

    Raises:
        DataError: the row cannot be understood.
    """
    fields = RowFields(row, where)
    steps, text = fields.texts("steps"), fields.text("solution", None)
    ends = fields.integers("step_ends", None)
    more: dict[str, Any] = {}
    if ends is not None:
        steps = _cut(text or "", ends, where)
    elif (found := _locate(text or "", steps)) is not None:
        steps = found
    else:
        steps = closed(steps, "\n", None)
        more = {"separator": "\n", "meta": {**fields.meta(), **({} if text is None else {"solution_as_given": text})}}
    rewards = fields.numbers("step_rewards", ())
    labels = fields.numbers("step_labels", None)
    if rewards and len(rewards) != len(steps):
        raise DataError(f"{len(rewards)} step_rewards for {len(steps)} steps", where=where, field="step_rewards")
    if labels is None:
        labels = labels_of_rewards(rewards, fields.get("is_correct", bool, "true or false", None))
    return _solution(
        fields, id=fields.text("id", name), **fields.question("question"), steps=steps, labels=labels, **more
    )


def from_roles(roles: Mapping[str, Any], where: str, name: str) -> Solution:
    """A row as a solution, by what its columns are for.

    Args:
        roles: `steps`, and what else is known: the question, `step_labels`, `reference`, `truth`, `tools`, `id`, and a
            `solution` with all steps in it, whose text they cut.
        where: file and line, for errors.
        name: id of a solution that has none.

    Raises:
        DataError: the row cannot be understood.
    """
    truth, gold, given = truth_of(roles.get("truth")), roles.get("reference"), roles.get("id")
    steps, text = roles["steps"], roles.get("solution")
    with RowFields(roles, where).reading("prompt"):
        question = asked_of(roles)
    row = {
        "id": str(given) if isinstance(given, str | int) else None,
        "question": question,
        "steps": steps,
        "solution": text if _is_whole(text, steps) else None,
        "step_labels": roles.get("step_labels"),
        "is_correct": None if truth is None else bool(truth),
        "ground_truth_answer": str(gold) if isinstance(gold, str | int | float) and str(gold).strip() else None,
        "tools": roles.get("tools"),
    }
    return from_record(row, where, name)


def _is_whole(text: Any, steps: Any) -> bool:
    """Whether a text has all of these steps in it, in order."""
    listed = isinstance(steps, list | tuple) and all(isinstance(step, str) for step in steps)
    return listed and isinstance(text, str) and _locate(text, steps) is not None


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
    """Labels by HE or SE rewards; None where HE only means "wrong solution"."""
    hard = all(r is None or abs(r) == 1.0 for r in rewards)
    known = not hard or is_correct or any(r == 1.0 for r in rewards)
    return tuple(None if r is None or not known else float(r > 0) for r in rewards)


def training_text(question: str, steps: Sequence[str]) -> str:
    """The seed's text that asks whether the last of these steps is right."""
    return f"{QUESTION}{question}{PARTIAL}{''.join(steps).rstrip()}{EVALUATE}"


def to_training(solution: Solution) -> list[dict[str, Any]]:
    """The seed's training form: a row per step with the steps up to it, its label and its reward.

    A step without label or reward has no row of its own; it is in the partial solutions of later steps. The form
    is a projection: of a solution it keeps question, steps, hard labels and rewards.

    Raises:
        NotExpressibleError: no step has a label and a reward, or it has no form for the question.
    """
    if beyond := beyond_question(solution.context, solution.tools):
        raise NotExpressibleError(solution, "conversation", f"besides its question it has {beyond}")
    if PARTIAL in QUESTION + solution.question + PARTIAL[:-1]:
        raise NotExpressibleError(solution, "mark_in_text", "its question holds '### Partial Solution:'")
    rows = [
        {
            "input_text": training_text(solution.question, solution.steps[: k + 1]),
            "target_text": TARGETS[label >= 0.5],
            "reward_value": reward,
            "id": solution.id,
            "step": k,
        }
        for k, (label, reward) in enumerate(zip(solution.labels, solution.rewards, strict=False))
        if label is not None and reward is not None
    ]
    if not rows:
        raise NotExpressibleError(solution, "unlabelled", "no step has a label and a reward")
    return rows


def from_training(rows: Iterable[tuple[str, Any]], name: str) -> Iterator[tuple[str, Solution | DataError]]:
    """Solutions from rows of the training form: rows that follow each other and grow are one solution.

    Args:
        rows: place of each row, and the row.
        name: in front of the id of a solution that has none.

    Yields:
        Place where a solution starts, and the solution; or place of a bad row, and its error.
    """
    grown: list[tuple[str, str, str, float, float]] = []  # id, question, partial, label, reward
    start = ""
    for where, row in rows:
        try:
            new = _training_row(row, where, name)
        except DataError as error:
            yield where, error
            continue
        grows = (
            grown and new[:2] == grown[-1][:2] and len(new[2]) > len(grown[-1][2]) and new[2].startswith(grown[-1][2])
        )
        if grown and not grows:
            yield start, _joined(grown, f"{name}-{start.rpartition(':')[2].strip()}")
            grown = []
        start = start if grown else where
        grown.append(new)
    if grown:
        yield start, _joined(grown, f"{name}-{start.rpartition(':')[2].strip()}")


def _training_row(row: Any, where: str, name: str) -> tuple[str, str, str, float, float]:
    fields = RowFields(row, where)
    text = fields.text("input_text")
    question, middle, partial = text.partition(PARTIAL)
    if not text.startswith(QUESTION) or not middle or not partial.rstrip("\n").endswith(EVALUATE.rstrip("\n")):
        raise DataError(
            "input_text lacks one of '### Question:', '### Partial Solution:', '### Evaluate this step:'",
            where=where,
            field="input_text",
        )
    right = {target: value for value, target in TARGETS.items()}.get(fields.text("target_text").strip())
    if right is None:
        raise DataError(
            f"target_text is {row['target_text']!r}, not one of {', '.join(TARGETS.values())}",
            where=where,
            field="target_text",
        )
    reward = float(fields.get("reward_value", (int, float), "a number"))
    if not -1.0 <= reward <= 1.0:
        raise DataError(f"reward_value is {reward}; allowed: -1 to 1", where=where, field="reward_value")
    partial = partial.rstrip("\n").removesuffix(EVALUATE.rstrip("\n"))
    return fields.text("id", ""), question.removeprefix(QUESTION), partial, float(right), reward


def _joined(grown: Sequence[tuple[str, str, str, float, float]], name: str) -> Solution:
    """Growing partial solutions as one solution; blanks between two steps end the first of them."""
    partials = [row[2] for row in grown]
    pieces = [after[len(before) :] for before, after in pairwise(["", *partials])]
    text = partials[-1]
    ends, at = [], 0
    for piece, following in zip(pieces, [*pieces[1:], ""], strict=True):
        at += len(piece)
        ends.append(at + len(following) - len(following.lstrip()))
    return Solution(
        id=grown[0][0] or name,
        question=grown[0][1],
        steps=_cut(text, ends, name),
        labels=tuple(row[3] for row in grown),
        rewards=tuple(row[4] for row in grown),
    )


def to_trl(solution: Solution) -> dict[str, Any]:
    """A row of TRL's stepwise supervision: `prompt`, `completions` without separators, `labels`.

    Labels are booleans where all are hard, else floats; a step without a label has null.

    Raises:
        NotExpressibleError: nothing is labelled.
    """
    _labelled(solution, hard=False)
    texts, keys = _bodies(solution)
    hard = all(label in (None, 0.0, 1.0) for label in solution.labels)
    labels = [bool(v) if hard and v is not None else v for v in solution.labels]
    return {"prompt": solution.question, "completions": texts, "labels": labels, **_own_keys(solution), **keys}


def from_trl(row: Any, where: str, name: str) -> Solution:
    r"""A row of TRL's stepwise supervision as a solution.

    Steps end with the row's `separator`, a line break where it names none (TRL's own default). Where `label_mask` is
    false, the label counts as absent.

    Raises:
        DataError: the row cannot be understood.
    """
    fields = RowFields(row, where)
    separator = fields.text("separator", "\n")
    labels = fields.numbers("labels")
    mask = fields.numbers("label_mask", (1.0,) * len(labels))
    if len(mask) != len(labels):
        raise DataError(f"label_mask has {len(mask)} entries for {len(labels)} labels", where=where, field="label_mask")
    steps = closed(fields.texts("completions"), separator, fields.integers("unclosed", None))
    if len(labels) != len(steps):
        raise DataError(f"{len(labels)} labels for {len(steps)} completions", where=where, field="labels")
    return _solution(
        fields,
        id=fields.text("id", name),
        **fields.question("prompt"),
        steps=steps,
        labels=tuple(label if known else None for label, known in zip(labels, mask, strict=True)),
        separator=separator,
    )


def _labelled(solution: Solution, *, hard: bool = True) -> int:
    """Number of steps up to the last labelled one; with `hard`, soft labels are refused."""
    if hard and any(label not in (None, 0.0, 1.0) for label in solution.labels):
        raise NotExpressibleError(solution, "soft_label", "it has soft labels, which this format does not have")
    known = [k for k, label in enumerate(solution.labels) if label is not None]
    if not known:
        raise NotExpressibleError(solution, "unlabelled", "no step has a label")
    return known[-1] + 1


def to_prm800k(solution: Solution) -> dict[str, Any]:
    """A row of PRM800K (Lightman et al. 2023, 2305.20050): one rated completion per step.

    Steps behind the last labelled one are not written as rated steps but kept under `rest`. The rating 0 (neutral)
    comes back where `meta` holds it.

    Raises:
        NotExpressibleError: nothing is labelled, or a label is soft.
    """
    n = _labelled(solution)
    texts, keys = _bodies(solution)
    ratings = [_rating(label) for label in solution.labels[:n]]
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
    if -1 in ratings:
        finish = "found_error"
    elif n == len(texts) and None not in ratings:
        finish = "solution"
    else:
        finish = "give_up"
    rest = {"rest": texts[n:]} if n < len(texts) else {}
    return {
        "question": {
            "problem": solution.question,
            "ground_truth_answer": solution.ground_truth,
            "pre_generated_steps": texts,
            "pre_generated_answer": solution.answer,
        },
        "label": {"steps": steps, "finish_reason": solution.meta.get("finish_reason", finish)},
        **rest,
        **_own_keys(solution, without=("ground_truth_answer", "answer")),
        **keys,
    }


def _rating(label: float | None) -> int | None:
    """The rating of a step with this label, which is not soft."""
    if label is None:
        return None
    return 1 if label else -1


def from_prm800k(row: Any, where: str, name: str) -> Solution:
    """A row of PRM800K as the solution that its labeller followed.

    Of the completions of a step the chosen one counts, else the one that a person wrote, else the first rated -1,
    else the first; the others are left out. Ratings 1 and 0 are right, -1 is wrong, null is unknown, but that of a
    completion that a person wrote to go on from, which is right; `meta` keeps them, and `finish_reason`.

    Raises:
        NoLabelsError: no step is rated (a `bad_problem`, for instance).
        DataError: the row cannot be understood.
    """
    fields = RowFields(row, where)
    question = RowFields(row.get("question"), f"{where}: question")
    label = RowFields(row.get("label"), f"{where}: label")
    finish = label.text("finish_reason", None)
    if finish is not None and finish not in FINISH_REASONS:
        raise DataError(
            f"finish_reason {finish!r} is none of {', '.join(FINISH_REASONS)}", where=where, field="finish_reason"
        )
    picked = [
        _followed(RowFields(step, f"{where}: step {k + 1}"))
        for k, step in enumerate(label.get("steps", (list, tuple), "a list of steps"))
    ]
    if not picked:
        raise NoLabelsError(where, finish or "no_step", f"no step is rated (finish_reason {finish})")
    rest, separator = fields.texts("rest", ()), fields.text("separator", "\n")
    texts = [text for text, _ in picked] + list(rest)
    ratings = [rating for _, rating in picked]
    known = {key: row[key] for key in ("labeler", "timestamp", "generation") if row.get(key) is not None}
    return _solution(
        fields,
        id=fields.text("id", name),
        **question.question("problem"),
        steps=closed(texts, separator, fields.integers("unclosed", None)),
        labels=tuple(_LABEL_OF_RATING[r] for r in ratings) + (None,) * len(rest),
        ground_truth=question.text("ground_truth_answer", None),
        answer=question.text("pre_generated_answer", None),
        separator=separator,
        meta=fields.meta() if fields.text("id", None) else {**known, "finish_reason": finish, "ratings": ratings},
    )


def _followed(step: RowFields) -> tuple[str, int | None]:
    """Text and rating of the completion that a labeller went on from."""
    completions = step.get("completions", (list, tuple), "a list of completions", ())
    chosen = step.get("chosen_completion", int, "an index", None)
    if chosen is not None:
        if not 0 <= chosen < len(completions):
            raise DataError(
                f"chosen_completion {chosen} of {len(completions)} completions",
                where=step.where,
                field="chosen_completion",
            )
        picked = completions[chosen]
    elif step.row.get("human_completion") is not None:
        human = step.row["human_completion"]
        picked = dict(human) if isinstance(human, dict) else {"text": human}
        if picked.get("rating") is None:  # PRM800K rates no completion that a person wrote as the right one
            picked["rating"] = 1
    elif completions:
        picked = next((c for c in completions if isinstance(c, dict) and c.get("rating") == -1), completions[0])
    else:
        raise NoLabelsError(step.where, "no_completion", "neither a completion nor a human_completion")
    fields = RowFields(picked, step.where)
    rating = fields.get("rating", int, "-1, 0, 1 or null", None)
    if rating not in _LABEL_OF_RATING:
        raise DataError(f"rating {rating} is none of -1, 0, 1 and null", where=step.where, field="rating")
    return fields.text("text"), rating


def to_math_shepherd(solution: Solution) -> dict[str, Any]:
    """A row of Math-Shepherd (Wang et al. 2023, 2312.08935): ` ки` after each step of `input`, a sign in `label`.

    Steps behind the last labelled one are kept under `rest`.

    Raises:
        NotExpressibleError: no label, a soft label, a gap between labels, or the marker is in the text.
    """
    n = _labelled(solution)
    if None in solution.labels[:n]:
        raise NotExpressibleError(solution, "gap", "a step before the last labelled one has no label")
    if MARKER in solution.question + solution.text:
        raise NotExpressibleError(solution, "mark_in_text", f"its text holds the step marker {MARKER}")
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
        **_own_keys(solution),
    }


def from_math_shepherd(row: Any, where: str, name: str) -> Solution:
    """A row of Math-Shepherd as a solution.

    The solution starts at `Step 1:` (the last one before the first marker), unless the row has `question_end`.

    Raises:
        DataError: `input` and `label` are not the same text, or the start of the solution is unknown.
    """
    fields = RowFields(row, where)
    given, label = fields.text("input"), fields.text("label")
    pieces = given.split(MARKER)
    signs = _signs(pieces, label, where)
    texts = [piece.removesuffix(" ") for piece in pieces[:-1]]
    start = fields.get("question_end", int, "a number of characters", None)
    begin = texts[0].rfind("Step 1:") if start is None else start + 1
    if begin < 0:
        raise DataError(
            f"no 'Step 1:' before the first {MARKER}: where does the solution start?", where=where, field="input"
        )
    question = texts[0][:begin].rstrip() if start is None else texts[0][:start]
    texts[0] = texts[0][begin:]
    ends = fields.integers("step_ends", None)
    if ends is None:
        blanks = [len(piece) - len(piece.lstrip()) for piece in [*texts[1:], pieces[-1]]]
        ends = [end + blank for end, blank in zip(accumulate(map(len, texts)), blanks, strict=True)]
    rest = fields.texts("rest", ())
    task = fields.text("task", "")
    of_the_data_set: dict[str, Any] = {}
    if start is None:
        of_the_data_set = {"separator": "\n", "meta": {"task": task} if task else {}}
    return _solution(
        fields,
        id=fields.text("id", name),
        question=question,
        steps=_cut("".join([*texts, pieces[-1]]), ends, where) + rest,
        labels=tuple(float(sign == "+") for sign in signs) + (None,) * len(rest),
        **of_the_data_set,
    )


def from_signed_turns(row: Any, where: str, name: str, mark: str) -> Solution:
    """A row of RLHFlow's data: each user's turn is a step, each of the assistant + or -.

    Args:
        row: with `conversations` or `messages`.
        where: its place.
        name: of the solution, if the row has none.
        mark: where in the first turn the question ends and the first step begins, see `mark_of_steps`.

    Raises:
        NoLabelsError: the start of the solution is not where that of the others is.
        DataError: the row cannot be understood.
    """
    fields = RowFields(row, where)
    column = "conversations" if row.get("conversations") is not None else "messages"
    turns = fields.messages(column)
    if [m["role"] for m in turns] != ["user", "assistant"] * (len(turns) // 2):
        raise DataError("the turns must be the user's and the assistant's in turn", where=where, field=column)
    steps = steps_of_turns(turns)
    begun = divided(steps, mark) if mark else None
    if begun is None:
        said = "where does the solution start? Neither `Step 1`, nor a line of its own divides it from the question"
        raise NoLabelsError(where, "no_first_step", said) if mark else DataError(said, where=where, field=column)
    question, first = begun
    bodies = [step.strip() for step in (first, *steps[1:])]
    labels = tuple(float(m["content"].strip() == "+") for m in turns[1::2])
    return _solution(
        fields, id=fields.text("id", name), question=question, steps=closed(bodies, "\n", None), labels=labels,
        separator="\n",
    )  # fmt: skip


def _signs(pieces: Sequence[str], label: str, where: str) -> list[str]:
    """The + or - that a label has in place of each marker between pieces of the input.

    Raises:
        DataError: input and label are not the same text otherwise, or there is no marker.
    """
    signs: list[str] = []
    at = 0
    for piece in pieces[:-1]:
        end = at + len(piece)
        sign = label[end : end + 1]
        if label[at:end] != piece or sign not in ("+", "-"):
            raise DataError(
                f"label is not input with + or - for step {len(signs) + 1}'s {MARKER}", where=where, field="label"
            )
        signs.append(sign)
        at = end + 1
    if not signs:
        raise DataError(f"no {MARKER} in input", where=where, field="input")
    if label[at:] != pieces[-1]:
        raise DataError("label and input end differently", where=where, field="label")
    return signs


def to_process_bench(solution: Solution) -> dict[str, Any]:
    """A row of ProcessBench (Zheng et al. 2024, 2412.06559): `label` is the first wrong step from 0, -1 for none.

    Raises:
        NotExpressibleError: the labels do not say which step is wrong first.
    """
    _labelled(solution)
    if solution.first_error is None:
        raise NotExpressibleError(solution, "unlabelled", "its labels do not say which step is wrong first")
    texts, keys = _bodies(solution)
    return {
        "id": solution.id,
        "generator": str(solution.meta.get("generator", "")),
        "problem": solution.question,
        "steps": texts,
        "final_answer_correct": solution.is_correct,
        "label": solution.first_error,
        **_own_keys(solution, without=("is_correct",)),
        **keys,
    }


def from_process_bench(row: Any, where: str, name: str) -> Solution:
    """A row of ProcessBench as a solution: steps before the first error are right, those behind it unknown.

    Raises:
        DataError: the row cannot be understood, or `label` is not a step.
    """
    fields = RowFields(row, where)
    texts, separator = fields.texts("steps"), fields.text("separator", "\n\n")
    first = fields.get("label", int, "a step from 0, or -1")
    if not texts or not -1 <= first < len(texts):
        raise DataError(
            f"label {first} is none of the {len(texts)} steps (from 0; -1: none is wrong)", where=where, field="label"
        )
    generator = fields.text("generator", "")
    return _solution(
        fields,
        id=str(row.get("id") or name),
        **fields.question("problem"),
        steps=closed(texts, separator, fields.integers("unclosed", None)),
        labels=until_first_error(first, len(texts)),
        is_correct=fields.get("final_answer_correct", bool, "true or false", None),
        separator=separator,
        meta={**({"generator": generator} if generator else {}), **fields.meta()},
    )


def from_prmbench(row: Any, where: str, name: str) -> Solution:
    """A row of PRMBench (Song et al. 2025, 2501.03124): the modified process; `error_steps` count from 1.

    Raises:
        DataError: the row cannot be understood, or an error step is none of the steps.
    """
    fields = RowFields(row, where)
    steps, wrong = fields.texts("modified_process"), fields.integers("error_steps", ())
    if not steps or any(not 1 <= k <= len(steps) for k in wrong):
        raise DataError(
            f"error_steps {list(wrong)} are not among the {len(steps)} steps (from 1)", where=where, field="error_steps"
        )
    kept = {key: row[key] for key in ("classification", "reason", "modified_steps") if row.get(key) is not None}
    return _solution(
        fields,
        id=str(row.get("idx") or name),
        question=fields.text("modified_question", None) or fields.text("question"),
        steps=closed(steps, "\n", None),
        labels=tuple(float(k not in wrong) for k in range(1, len(steps) + 1)),
        separator="\n",
        meta=kept,
    )
