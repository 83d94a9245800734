"""Multiple-choice rows in the layouts of public data sets: the options become lettered lines, the answer a letter.

Column names are compared without case, spaces and underscores count alike.

| layout | columns |
|---|---|
| MMLU, MMLU-Pro, AQuA, RACE, LogiQA, MedQA, QuALITY | a list or map `choices` or `options`; `answer`, ... |
| ARC, CommonsenseQA, OpenBookQA | `choices` with `text` and `label`; `answerKey` |
| HellaSwag, SWAG | `ctx`, `endings`; `startphrase`, `ending0` to `ending3`; `label` |
| GPQA, SciQ, TruthfulQA | the right answer and the wrong ones apart, or `mc1_targets`: the order is drawn |
| Winogrande, COPA, PIQA, SIQA, CosmosQA, MedMCQA, C-Eval | a column for each option; `answer`, `label`, `cop` |
| BoolQ | `passage`, `question`, a boolean `answer` |

    row = {"question": "2 + 2?", "choices": ["3", "4"], "answer": 1}
    read_choices(row, "test.jsonl:1").answer          # "B"
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from guerdon.errors import DataError
from guerdon.reading.option_columns import (
    AGREEING,
    FAMILIES,
    FEWEST,
    INNER,
    LISTS,
    NUMBERED_WRONG,
    OTHERS,
    PASSAGES,
    QUESTIONS,
    RIGHT_FIRST,
    WRONG,
    option_name,
)
from guerdon.tasks.answers import final_answer
from guerdon.tasks.prompts import NoGoldError, UnreadableGoldError

_NO_OPTIONS = re.compile(  # columns whose lists are not options
    r"\w*(?:tag|topic|keyword|step|categor|subject|skill|concept|domain|source|response|solution|message|hint|fact|author"
    r"|reference|generation|completion|rationale)\w*"
)
_LIKE_OPTIONS = re.compile(
    r"choices?|options?|endings?|answer_choices|mc[12]_targets|multiple_choice\w*|distractors?_?\d*"
    r"|candidate_answers|answer_candidates|(?:choice|option|ending|ans)_?[a-f0-9]|op[a-d]|answer[a-f0]"
)
_ANY_OPTIONS = re.compile(_LIKE_OPTIONS.pattern + r"|\w*(?:options?|choices?|alternatives)(?:_\w+)?|possible_answers")
_LONGEST = 300  # characters of an option of a column that may hold something else
_LETTERED = re.compile(r"\(?\s*([A-Za-z])\s*[).:]\s*(.*)", re.DOTALL)
_IN_ONE_LINE = re.compile(r"(?:^|,)\s*([a-z]) \)\s*")  # MathQA: "a ) 38 , b ) 27.675 , ..."


class MultipleChoice(NamedTuple):
    """A multiple-choice question.

    Attributes:
        question: without the options; None where the row's own question stands.
        options: in the order in which they are shown.
        answer: the letter of the right one, "" where the row names none.
        shuffled: whether their order is not that of the row.
    """

    question: str | None
    options: tuple[str, ...]
    answer: str
    shuffled: bool

    def asked(self, question: str) -> str:
        """The question with the options as lettered lines, unless it lists them already."""
        lines = [f"({letter}) {option}" for letter, option in zip(ascii_uppercase, self.options, strict=False)]
        marks = zip(ascii_uppercase, map(re.escape, self.options), strict=False)
        listed = all(re.search(rf"(?<![A-Za-z]){letter}\s*[).:]\W*{option}", question) for letter, option in marks)
        return question if listed and not self.shuffled else "\n".join([question.rstrip(), "", *lines])


class _Options(NamedTuple):
    """Options as a row has them: their texts, what it calls them, and the number of the first (None: unknown)."""

    texts: list[str]
    labels: list[str]
    first: int | None = 0


def is_blank(value: Any) -> bool:
    """Whether a cell is empty: null, NaN, white space, or NaN or null as text."""
    if isinstance(value, str):
        return value.strip().lower() in ("", "nan", "null", "<na>")
    return value is None or (isinstance(value, float) and math.isnan(value))


def read_choices(row: Mapping[str, Any], where: str, *, answered: bool = True, seed: int = 0) -> MultipleChoice | None:
    """The options of a row and the letter of its answer; None where it is not a multiple-choice question.

    Where the right answer always stands first (GPQA, SciQ, TruthfulQA), the order is drawn from the seed, the question
    and the options.

    Args:
        row: a mapping.
        where: file and line, for errors.
        answered: a row must have an answer.
        seed: of the order.

    Raises:
        UnreadableGoldError: the answer is missing (`NoGoldError`), or names no option.
        DataError: its columns look like options, and fit no layout.
    """
    cells = _cells(row)
    question = _question(cells)
    truth = str(cells.get("answer")).lower()
    if truth in ("true", "false") and "passage" in cells and question is not None:  # BoolQ
        return MultipleChoice(question, ("yes", "no"), "A" if truth == "true" else "B", shuffled=False)
    apart = _right_first(cells, where)
    if apart is not None:
        return _drawn(question, *apart, where, answered=answered, seed=seed)
    options = _in_one_column(cells) or _in_columns(row, cells)
    if options is None:
        _check_open(row, cells, where)
        return None
    _check(options.texts, where)
    place = _answer(cells, options, where)
    if place is None and answered:
        raise NoGoldError(f"no true answer to a question with options, found {', '.join(row)}", where=where)
    letter = "" if place is None else ascii_uppercase[place]
    return MultipleChoice(question, tuple(options.texts), letter, shuffled=False)


def _drawn(
    question: str | None, right: str, wrong: Sequence[str], where: str, *, answered: bool, seed: int
) -> MultipleChoice:
    """The right answer and the wrong ones in an order that is drawn.

    Raises:
        UnreadableGoldError: the right one is missing, or among the wrong ones.
        DataError: they are no options.
    """
    texts = [text for text in (right, *wrong) if text]
    _check(texts, where)
    if answered and not right:
        raise NoGoldError("the right answer is missing", where=where)
    if answered and right in wrong:
        raise UnreadableGoldError("the right answer is among the wrong ones", where=where)
    texts.sort(key=lambda text: hashlib.sha256(f"{seed}/{question}/{text}".encode("utf-8", "replace")).digest())
    letter = ascii_uppercase[texts.index(right)] if right else ""
    return MultipleChoice(question, tuple(texts), letter, shuffled=True)


def _is_empty(value: Any) -> bool:
    """Whether a column of options has none."""
    if isinstance(value, Mapping):
        return all(_is_empty(one) for one in value.values())
    return not value if isinstance(value, list | tuple) else is_blank(value) or value in ("[]", "{}")


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row has, by the names of columns in one spelling, the stem and options within `question` included."""
    inner = row.get("question")
    cells: dict[str, Any] = {}
    for part, whole in [
        *((part, True) for part in (row, inner, row.get("reward_model"))),
        *((part, False) for part in map(row.get, INNER)),
    ]:
        for key, value in part.items() if isinstance(part, Mapping) else ():
            name = option_name(key)
            if not _is_empty(value) and (whole or name in LISTS or _LIKE_OPTIONS.fullmatch(name)):
                cells.setdefault(name, value)
    if isinstance(inner, Mapping):  # ARC's and CommonsenseQA's own files
        cells["question"] = cells.get("stem")
    return cells


def _question(cells: Mapping[str, Any]) -> str | None:
    """The question of a layout; None where the row's own `prompt` is it."""
    if isinstance(cells.get("prompt"), str | list | tuple):
        return None
    texts = {key: value.strip() for key, value in cells.items() if isinstance(value, str)}
    supplied = _supplied_question(texts)
    question = next((texts[key] for key in QUESTIONS if key in texts), None)
    if supplied is not None or question is None:
        return supplied
    passages = [texts[key] for key in PASSAGES if key in texts and texts[key] not in question]
    return "\n\n".join([*passages, question])


def _supplied_question(texts: Mapping[str, str]) -> str | None:
    """The question of a layout whose rows only have what it is about; None for other layouts."""
    if "ctx" in texts and "question" not in texts:
        topic = f"{texts['activity_label']}: " if "activity_label" in texts else ""
        return f"{topic}{texts['ctx']}\n\nHow does the text go on?"
    if "sentence" in texts and "question" not in texts:
        return f"{texts['sentence']}\n\nWhich option fits in the place of _?"
    if "premise" in texts and texts.get("question") in ("cause", "effect"):
        return f"{texts['premise']}\n\nWhat was the {texts['question']} of this?"
    return None


def _right_first(cells: Mapping[str, Any], where: str) -> tuple[str, list[str]] | None:
    """The right answer ("" where it is missing) and the wrong ones of layouts that keep them apart."""
    targets = cells.get("mc1_targets")
    if isinstance(targets, Mapping):
        return _of_truthful_qa(targets, where)
    wrong = _listed_wrong(cells)
    names = [*RIGHT_FIRST]
    apart = any("distractor" in key or key in WRONG[1:] for key in cells)
    if apart:
        names += ["correct", "answer"]
    right = [cells[name] for name in names if name in cells]
    if not wrong or not (right or apart or "incorrect_answer_1" in cells):
        return None
    right_one = str(right[0]).strip() if right else ""
    return right_one, [str(text).strip() for text in wrong if not is_blank(text)]


def _of_truthful_qa(targets: Mapping[str, Any], where: str) -> tuple[str, list[str]]:
    """`_right_first` of TruthfulQA's `mc1_targets`: texts and labels in two lists, or each text with its label."""
    pairs = list(targets.items())
    if {"choices", "labels"} <= set(targets):
        pairs = list(zip(targets["choices"], targets["labels"], strict=False))
    right = [str(text).strip() for text, label in pairs if label == 1]
    if len(right) > 1:
        raise DataError(
            f"mc1_targets has {len(right)} right answers, one is expected", where=where, field="mc1_targets"
        )
    return "".join(right), [str(text).strip() for text, label in pairs if label != 1]


def _listed_wrong(cells: Mapping[str, Any]) -> list[Any]:
    """The wrong answers of a row: of numbered columns, else of the first column that lists them."""
    wrong = [value for key, value in sorted(cells.items()) if NUMBERED_WRONG.fullmatch(key)]
    if wrong:
        return wrong
    lists = (list(cells[key]) for key in WRONG if isinstance(cells.get(key), list | tuple))
    return next(filter(None, lists), [])


def _in_one_column(cells: Mapping[str, Any]) -> _Options | None:
    """The options of a row that has them in one cell."""
    for name in LISTS:
        if name not in cells or (name == "answers" and "label" not in cells):
            continue
        found = _listed(cells[name])
        if found is None:
            continue
        if "candidates" not in name or len(max(found.texts, key=len)) <= _LONGEST:
            return found
    return None


def _in_columns(row: Mapping[str, Any], cells: Mapping[str, Any]) -> _Options | None:
    """The options of a row that has a column for each."""
    fewest = {**FEWEST, "sol": 2 if "goal" in cells else 99, "answer": 2 if "label" in cells else 99}
    for pattern, first in FAMILIES.items():
        prefix, start = pattern[:-1].split("{")
        texts = _family(cells if prefix else row, prefix, start)
        if len(texts) >= fewest.get(prefix or start, 2):
            return _Options(texts, [], first)
    return None


def _family(cells: Mapping[str, Any], prefix: str, start: str) -> list[str]:
    """The texts of columns named by `prefix` and a letter or digit that counts up, to the first that is missing."""
    texts: list[str] = []
    for k in range(len(ascii_uppercase)):
        value = cells.get(prefix + chr(ord(start) + k))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (isinstance(value, str) or (is_number and prefix)) or is_blank(value):
            break
        texts.append(str(value).strip())
    return texts


def _check_open(row: Mapping[str, Any], cells: Mapping[str, Any], where: str) -> None:
    """Refuse what may be options in an unknown layout: columns with such names, or lists that the true answer may name.

    Raises:
        DataError: there are columns with such names.
        UnreadableGoldError: the true answer is a letter or an index, and may name one of the texts of a column.
    """
    _check_columns(row, where)
    gold = next((cells[key] for key in ("ground_truth", *AGREEING, *OTHERS) if key in cells), None)
    letter = re.fullmatch(r"\(?([A-Ja-j])\)?\.?", str(gold).strip())
    if letter is not None:
        asked = str(cells.get("question") or cells.get("prompt"))
        if re.search(rf"(?<![A-Za-z]){letter[1]}\s*[).:]", asked):
            return
        place = ord(letter[1].upper()) - ord("A")
    elif isinstance(gold, int) and not isinstance(gold, bool):
        place = gold
    else:
        return
    columns = {key: value for key, value in row.items() if re.fullmatch("[A-Ja-j]", str(key))}
    for key, value in [(", ".join(columns), columns), *_cells_within(row)]:
        if _is_unknown_list(key, value, place, words=letter is None):
            raise UnreadableGoldError(
                f"the true answer {gold!r} may name one of the texts in {key}; write the options as choices "
                "(a list of texts), or the answer in full",
                where=where,
            )


def _check_columns(row: Mapping[str, Any], where: str) -> None:
    unknown = [key for key, value in row.items() if not _is_empty(value) and _may_be_options(key, value)]
    if unknown:
        raise DataError(
            f"{', '.join(unknown)}: options in a layout that is not known, found {', '.join(map(str, row))}; "
            "write question, choices (a list of texts) and answer (a letter), or remove these columns if the question "
            "is complete without them",
            where=where,
            field=str(unknown[0]),
        )


def _may_be_options(key: Any, value: Any) -> bool:
    names = _LIKE_OPTIONS if isinstance(value, str | int | float) else _ANY_OPTIONS
    return names.fullmatch(option_name(key)) is not None


def _cells_within(row: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The cells of a row, of the maps in it, and of the maps in these."""
    found: list[tuple[Any, Any]] = []
    maps: list[Mapping[Any, Any]] = [row]
    for _ in range(3):
        cells = [cell for one in maps for cell in one.items()]
        found += cells
        maps = [value for _, value in cells if isinstance(value, Mapping)]
    return found


def _is_unknown_list(key: Any, value: Any, place: int, *, words: bool) -> bool:
    found = None if isinstance(value, str) or _NO_OPTIONS.fullmatch(option_name(key)) else _listed(value)
    if found is None or not 0 <= place < len(found.texts) <= 10:
        return False
    return all(len(text) <= _LONGEST and (not words or re.search("[A-Za-z]{2}", text)) for text in found.texts)


def _listed(value: Any) -> _Options | None:
    """Options within one cell; None where it holds something else."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, Mapping):
        return _of_map(value)
    if not isinstance(value, list | tuple):
        return None
    for label, text in (("label", "text"), ("key", "text"), ("key", "value"), ("id", "text"), ("letter", "text")):
        if value and all(isinstance(one, Mapping) and {label, text} <= set(one) for one in value):
            return _of_texts([one[text] for one in value], [one[label] for one in value])
    return _of_texts(value, [])


def _of_map(cell: Mapping[Any, Any]) -> _Options | None:
    """Options within a map: lists `text` and `label`, or a text for each letter."""
    texts, labels = cell.get("text"), cell.get("label")
    if isinstance(texts, list | tuple) and isinstance(labels, list | tuple) and len(texts) == len(labels):
        return _of_texts(texts, labels)
    kept = sorted((str(key), text) for key, text in cell.items() if not is_blank(text))
    letters = "".join(key.upper() for key, _ in kept)
    if not ascii_uppercase.startswith(letters):
        return None
    return _of_texts([text for _, text in kept], [key for key, _ in kept])


def _of_texts(texts: Sequence[Any], labels: Sequence[Any]) -> _Options | None:
    if len(texts) < 2 or not all(isinstance(text, str | int | float) and not isinstance(text, bool) for text in texts):
        return None
    plain = [str(text).strip() for text in texts]
    marked = [_LETTERED.fullmatch(text) for text in plain]
    if all(m is not None and m[1].upper() == letter for m, letter in zip(marked, ascii_uppercase, strict=False)):
        plain = [m[2].strip() for m in marked if m is not None]
    return _Options(plain, [str(label).strip("(). ") for label in labels])


def _parsed(text: str) -> Any:
    """A list or map written as JSON, as Python, or as `a ) 38 , b ) 27`; None for other text."""
    pieces = _IN_ONE_LINE.split(text)
    if (
        len(pieces) > 4
        and not pieces[0].strip()
        and "".join(pieces[1::2]) == ascii_uppercase[: len(pieces) // 2].lower()
    ):
        return [piece.strip() for piece in pieces[2::2]]
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text) if len(text) < 20_000 else None
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _check(texts: Sequence[str], where: str) -> None:
    if not 2 <= len(texts) <= len(ascii_uppercase):
        raise DataError(f"{len(texts)} options; a question has 2 to {len(ascii_uppercase)}", where=where)
    if not all(texts):
        raise DataError(f"option {ascii_uppercase[[*map(bool, texts)].index(False)]} is empty", where=where)


def _answer(cells: Mapping[str, Any], options: _Options, where: str) -> int | None:
    """Place of the right option; None where no column names one.

    Raises:
        UnreadableGoldError: what is there names no option.
        DataError: two columns name different options, or a number is out of range.
    """
    found: dict[str, int] = {}
    problem: UnreadableGoldError | None = None
    named = [key for key in AGREEING if key in cells] or [key for key in OTHERS if key in cells][:1]
    for key in named:
        try:
            counted = options._replace(first=1) if key == "gold_label" else options  # of QuALITY
            place = _place(cells[key], counted, where, key)
        except UnreadableGoldError as error:
            problem = error
        else:
            if place is not None:
                found[key] = place
    if len(set(found.values())) > 1:
        says = ", ".join(f"{key} {ascii_uppercase[place]}" for key, place in found.items())
        raise DataError(f"columns that name different options: {says}", where=where)
    if not found and problem is not None:
        raise problem
    return next(iter(found.values()), None)


def _place(value: Any, options: _Options, where: str, key: str) -> int | None:
    """The option that a cell names: by label, number, letter or text; None for -1, which stands for no answer."""
    texts, labels, first = options
    value = _one_value(value)
    if not isinstance(value, str | int):
        raise DataError(
            f"{key} must be a letter, a number or the text of one option, this is {str(value)[:80]!r}",
            where=where,
            field=key,
        )
    text = str(value).strip()
    if isinstance(value, str) and ("####" in text or "\\box" in text):
        text = final_answer(text) or text
    if text in labels:
        return labels.index(text)
    if text == "-1":
        return None
    readings = _readings(text, options, whole=value == text)
    if not readings and _NUMBER.fullmatch(text):
        counted = "the number of its first option is not known" if first is None else f"counted from {first}"
        raise DataError(
            f"{key} {text[:80]} names none of the {len(texts)} options ({counted}); write the letter of the right one",
            where=where,
            field=key,
        )
    if len(readings) != 1:
        what = "names several options" if readings else f"names none of its {len(texts)} options"
        raise UnreadableGoldError(f"{key} {text[:80]!r} {what}", where=where, field=key)
    return readings.pop()


def _one_value(value: Any) -> Any:
    """The value of a cell: an integer as pandas writes a column with gaps, a list of one, `True` as a text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return str(value) if isinstance(value, bool) else value


def _readings(text: str, options: _Options, *, whole: bool) -> set[int]:
    """Places of the options that a text may name: as their text, if it is the whole cell, as a number or a letter."""
    found = {k for k, option in enumerate(options.texts) if whole and option.casefold() == text.casefold()}
    is_number = _NUMBER.fullmatch(text) is not None
    place = _place_of_number(text, options) if is_number else _place_of_letter(text, options.texts)
    return found if place is None else found | {place}


_NUMBER = re.compile("[0-9]+")


def _place_of_number(text: str, options: _Options) -> int | None:
    if options.first is None or len(text) > 9:  # no question has so many options
        return None
    place = int(text) - options.first
    return place if 0 <= place < len(options.texts) else None


def _place_of_letter(text: str, texts: Sequence[str]) -> int | None:
    """Place of the option that a letter names; a text behind the letter has to be that option's."""
    alone = re.fullmatch(r"\(?([A-Za-z])\)?[.:]?", text)
    letter = alone or _LETTERED.fullmatch(text)
    place = ord(letter[1].upper()) - ord("A") if letter is not None else -1
    if letter is None or not 0 <= place < len(texts):
        return None
    return place if alone or letter[2] == texts[place] else None
