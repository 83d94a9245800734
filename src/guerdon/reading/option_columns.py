"""Columns of multiple-choice rows: question, options and right answer in the names of public data sets.

Names are compared without case, spaces and underscores count alike. `guerdon.tasks.choices` reads the rows.

    columns_of_choices(["question", "A", "B", "C", "D", "answer", "note"])     # (["A", "B", "C", "D"], ["answer"])
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import ascii_lowercase

LISTS = (
    "choices", "options", "answer_choices", "answer_options", "option_list", "alternatives", "endings", "answers",
    "multiple_choice", "candidate_answers", "answer_candidates", "candidates",
)  # fmt: skip
INNER = ("extra_info", "metadata", "meta", "info", "extra")  # maps that may hold the options
WRONG = ("incorrect_answers", "distractors", "wrong_answers", "false_answers", "incorrect_choices", "wrong_choices")
PASSAGES = ("passage", "article", "context", "paragraph", "story", "text", "hint")
QUESTIONS = ("query", "problem", "question", "question_stem", "goal", "startphrase")
AGREEING = (
    "answerkey", "answer", "answer_index", "answer_idx", "answer_letter", "correct", "correct_option", "correct_choice",
    "correct_answer", "correctanswer", "correct_index", "correct_answer_index", "gold_index",
)  # fmt: skip
OTHERS = ("label", "gold", "ground_truth", "final_answer", "expected_answer", "target", "cop", "gold_label")
FAMILIES = {  # columns with one option each, and the number of the first option where the answer is a number
    "option{1}": 1, "choice{1}": 0, "sol{1}": 0, "ending{0}": 0, "answer{0}": 0, "ans{0}": 0, "answer{a}": 1,
    "op{a}": 0, "option{a}": None, "option_{a}": None, "option_{1}": None, "choice{a}": None, "choice_{a}": None,
    "choice_{1}": None, "{A}": None,
}  # fmt: skip
FEWEST = {"A": 3}
"""Columns of a family, by its beginning, from which on they are options; of others two are."""
SUPPLIED = ("ctx", "activity_label", "sentence", "premise")
"""Columns from which a question is put together that a row does not have itself."""
RIGHT_FIRST = ("correct_answer", "best_answer")
"""Columns with the right answer, beside those of wrong ones."""
NUMBERED_WRONG = re.compile(r"(?:incorrect_answer|distractor)_?\d+")


def option_name(column: str) -> str:
    """The name of a column as it is compared here."""
    return re.sub(r"[^a-z0-9]+", "_", str(column).lower()).strip("_")


def columns_of_choices(columns: Iterable[str]) -> tuple[list[str], list[str]]:
    """The columns with the options of multiple-choice rows, and those with the answer; none where there are no options.

    Args:
        columns: of the rows.
    """
    names = {option_name(column): column for column in columns}
    alone = [name for name in names if name in (*LISTS[:6], *WRONG, "mc1_targets") or NUMBERED_WRONG.fullmatch(name)]
    options = [names[name] for name in alone] or _family(names)
    if not options:
        return [], []
    agreeing = [names[name] for name in names if name in (*AGREEING, *RIGHT_FIRST)]
    return options, agreeing or [names[name] for name in OTHERS if name in names][:1]


def _family(names: dict[str, str]) -> list[str]:
    """The columns with one option each."""
    for pattern in FAMILIES:
        prefix, start = pattern[:-1].split("{")
        ends = ascii_lowercase if start.isalpha() else "0123456789"
        own = [f"{prefix}{end}" for end in ends[ends.index(start.lower()) :]]
        found = own[: next((k for k, name in enumerate(own) if name not in names), len(own))]
        if len(found) >= FEWEST.get(prefix or start, 2):
            return [names[name] for name in found]
    return []
