"""The rubric by which people judge responses, and what a judge in the data says of its criteria.

rubric = read_criteria(Path("rubric.toml"))
shares_of(rubric, {"answers": 3, "invents": None})      # {"answers": 1.0} where "answers" has three choices
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from guerdon.annotate.items import Items
from guerdon.auditing.rows import Numbers
from guerdon.errors import ConfigError
from guerdon.models.judges.rubric import Rubric, read_rubric

LEAST_JUDGED = 0.5  # share of the weight that a total needs: the default of a judge's `min_measured`
MOST_CHOICES = 9  # for which there are keys


class JudgeCriteria(NamedTuple):
    """What the data has about the criteria of a rubric.

    Attributes:
        values: of each item, 0 to 1 by name of a judge and of a criterion; NaN: none.
        notes: which criteria the judges and the rubric do not have in common.
    """

    values: Mapping[str, Mapping[str, Numbers]]
    notes: tuple[str, ...]


NO_JUDGES = JudgeCriteria({}, ())


def read_criteria(file: Path) -> Rubric:
    """A rubric file of judges that people can use by keyboard.

    Raises:
        ConfigError: in one line: it is not a rubric, or a criterion has too many choices.
    """
    try:
        rubric = read_rubric(file)
    except ConfigError as error:
        raise ConfigError(
            f"--rubric: {'; '.join(line.strip() for line in str(error).splitlines())}", key="--rubric"
        ) from error
    for criterion in rubric.criteria:
        if len(criterion.choices) > MOST_CHOICES:
            raise ConfigError(
                f"--rubric {file}: {criterion.name} has {len(criterion.choices)} choices; there are keys for 9",
                key="--rubric",
            )
    return rubric


def shares_of(rubric: Rubric, scores: Mapping[str, int | None] | None) -> dict[str, float]:
    """What a person said of each criterion, from 0 to 1, without those that they could not tell.

    Args:
        rubric: with the criteria.
        scores: by name, the number of a choice from 1.
    """
    given = {one.name: (scores or {}).get(one.name) for one in rubric.criteria}
    last = {one.name: len(one.choices) - 1 for one in rubric.criteria}
    return {name: (digit - 1) / last[name] for name, digit in given.items() if digit is not None}


def take_criteria(items: Items, rubric: Rubric) -> JudgeCriteria:
    """Take the scores by criterion out of the rewards of the data: `NAME`, or `JUDGE.NAME` as of `guerdon score`."""
    names = [one.name for one in rubric.criteria]
    values: dict[str, dict[str, Numbers]] = {}
    for column in [one for one in items.rewards if one != "reward"]:
        judge, name = _of_column(column, names)
        if name:
            values.setdefault(judge, {})[name] = items.rewards.pop(column)
    if not values and len(names) > 1:  # a single one is the whole rubric, and its column a copy of the reward
        return JudgeCriteria({}, ("the data has no scores of a judge by criterion",))
    notes: list[str] = []
    for judge, found in values.items():
        missing = [name for name in names if name not in found]
        if missing:
            notes.append(f"{judge} has no scores of {', '.join(missing)}")
        others = _take_others(items, judge)
        if others:
            notes.append(f"{judge} has scores of {', '.join(others)}, which the rubric does not have")
    return JudgeCriteria(values, tuple(notes))


def _take_others(items: Items, judge: str) -> list[str]:
    """Take the further scores of a judge out of the rewards of the data: the names of their criteria."""
    front = f"{judge}."
    names = [column.removeprefix(front) for column in items.rewards if column.startswith(front)]
    for name in names:
        del items.rewards[front + name]
    return names


def _of_column(column: str, names: Sequence[str]) -> tuple[str, str]:
    """The judge and the criterion of a column; empty: it is of none."""
    fitting = [name for name in names if f".{column}".endswith(f".{name}")]
    if not fitting:
        return "", ""
    name = max(fitting, key=len)
    return column.removesuffix(name).removesuffix(".") or "the data", name
