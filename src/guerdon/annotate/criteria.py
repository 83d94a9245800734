"""The rubric by which people judge responses, and what a judge in the data says of its criteria.

rubric = read_criteria(Path("rubric.toml"))
shares_of(rubric, {"answers": 3, "invents": None})      # {"answers": 1.0} where "answers" has three choices
"""

from __future__ import annotations

from collections.abc import Mapping
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
        ConfigError: in one line: it is none, or a criterion has too many choices.
    """
    try:
        rubric = read_rubric(file)
    except ConfigError as error:
        raise ConfigError(f"--rubric: {'; '.join(line.strip() for line in str(error).splitlines())}") from error
    for criterion in rubric.criteria:
        if len(criterion.choices) > MOST_CHOICES:
            raise ConfigError(
                f"--rubric {file}: {criterion.name} has {len(criterion.choices)} choices; there are keys for 9"
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
        name = max((one for one in names if f".{column}".endswith(f".{one}")), key=len, default=None)
        if name is not None:
            judge = column.removesuffix(name).removesuffix(".") or "the data"
            values.setdefault(judge, {})[name] = items.rewards.pop(column)
    notes = [] if values else ["the data has no scores of a judge by criterion"]
    for judge, found in values.items():
        more = [column for column in items.rewards if column.startswith(f"{judge}.")]
        for column in more:
            del items.rewards[column]
        missing = [name for name in names if name not in found]
        notes += [f"{judge} has no scores of {', '.join(missing)}"] if missing else []
        others = ", ".join(column.removeprefix(f"{judge}.") for column in more)
        notes += [f"{judge} has scores of {others}, which the rubric does not have"] if more else []
    return JudgeCriteria(values, tuple(notes))
