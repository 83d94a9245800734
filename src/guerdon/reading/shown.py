"""What a data set was read as, in lines for people: a line for each column, then the rows.

for line in lines(reading): print(line)
say(reading, used=118, left_out={"tie": 1, "no_value": 1})         # on the error stream
commands(reading.plan)                                             # {"train": "preferences", "evaluate": ...}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from guerdon.processes.progress import log_line
from guerdon.reading.reader import Plan, Reading

_MOST_UNUSED = 8  # columns that are named


def lines(reading: Reading) -> Iterator[str]:
    """A line for each column that has a role, and one for those that have none."""
    used = [one for one in reading.read_as() if one["role"]]
    names = [f"{one['column']} ({one['coding']})" if one["coding"] else one["column"] for one in used]
    wide = [max(map(len, column), default=0) for column in ([one["role"] for one in used], names)]
    for one, name in zip(used, names, strict=True):
        told = "" if one["from"] == "name" else f"  [{_SOURCES[one['from']]}]"
        yield f"  {one['role']:<{wide[0]}}  {name:<{wide[1]}}  {one['example']}{told}"
    if reading.plan.ratings:
        yield f"  ratings: {', '.join(reading.plan.ratings)}"
    rest = reading.plan.unused
    if rest:
        more = f" and {len(rest) - _MOST_UNUSED} more" if len(rest) > _MOST_UNUSED else ""
        yield f"  unused: {', '.join(rest[:_MOST_UNUSED])}{more}"
    for role, why in reading.plan.unclear.items():
        yield f"  unclear: {role}: {why}"


_SOURCES = {"given": "--columns", "model": "as the model was trained", "layout": "layout"}


def say(reading: Reading, *, used: int | None = None, left_out: Mapping[str, int] | None = None) -> None:
    """Write what a data set was read as on the error stream.

    Args:
        reading: the data set.
        used: rows that the command uses; None: all that were read.
        left_out: rows that it leaves out, by reason, besides those that could not be read.
    """
    kind = "" if reading.plan.layout.name == "plain columns" else f", {reading.plan.layout.name}"
    log_line(f"{reading.data}{kind}, read as:")
    for line in lines(reading):
        log_line(line)
    log_line(f"  {rows_line(reading, used, left_out)}")


def rows_line(reading: Reading, used: int | None, left_out: Mapping[str, int] | None) -> str:
    """How many rows were read, used and left out, by reason."""
    reasons = {**reading.bad, **(left_out or {})}
    count = f"{reading.rows:,} rows read"
    if used is not None:
        count += f", {used:,} used"
    if reasons:
        count += f", {sum(reasons.values()):,} left out: {', '.join(f'{n:,} {why}' for why, n in reasons.items())}"
    return count


def as_plain(reading: Reading) -> dict[str, Any]:
    """What was read as what, for JSON."""
    return {
        "data": reading.data, "layout": reading.plan.layout.name, "read_as": reading.read_as(),
        "ratings": list(reading.plan.ratings), "unclear": dict(reading.plan.unclear), "rows": reading.rows,
        "left_out": dict(reading.bad), "commands": commands(reading.plan),
    }  # fmt: skip


def commands(plan: Plan) -> dict[str, str]:
    """The commands that could use such rows, and what for."""
    answers = plan.has("response") or plan.has("chosen", "rejected") or plan.has("first", "second")
    answers = answers or plan.has("responses") or plan.has("messages")
    asks = plan.has("prompt") or plan.has("messages")
    found = {
        "audit": "the rewards of a log" if plan.has("reward") or plan.has("token_rewards") else "",
        "score": "its responses" if answers or plan.has("steps") else "",
        "evaluate": _judged(plan),
        "train": _judged(plan),
        "run, search, label": "its prompts" if asks else "",
    }
    return {command: what for command, what in found.items() if what}


def _judged(plan: Plan) -> str:
    """What the rows say of responses; empty: nothing."""
    if plan.has("steps", "step_labels") or plan.layout.kind == "steps":
        return "labels of steps"
    compared = plan.has("winner") or plan.has("first_score", "second_score")
    ranked = plan.has("responses") and (plan.listed or plan.has("ranks") or plan.has("scores"))
    if plan.has("chosen", "rejected") or (plan.has("first", "second") and compared) or ranked:
        return "preferences"
    return "labels of responses" if plan.has("label") or plan.ratings else ""
