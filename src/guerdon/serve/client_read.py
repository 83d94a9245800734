"""What a reward server says, checked before anybody believes it: one judgement per episode, or the reason why not.

A number counts only if it is a finite number in the range that the model declares, for every row that was sent.
Everything else, a missing field, a string, NaN, one score too few, is a `Failure`, never a number. This module does
not know connections.

    read_items(results, [episode], info, ids=["0"])[0].score.failure      # Failure('out_of_range', ...)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from guerdon.models.explained_score import PARSE_STATUSES, ExplainedScore, ParseStatus
from guerdon.types import Episode, Failure, RewardInfo, Score

NO_TOTAL = "no_total"  # said of an item that has values of steps and nothing else
SLACK = 1e-6  # of a range, for numbers that went through float32
_WORD = re.compile(r"[a-z0-9_]{1,64}\Z")


def failed(reason: str, detail: str = "") -> ExplainedScore:
    """A judgement that there is none."""
    return ExplainedScore(Score(failure=Failure(reason, detail)))


def all_failed(failure: Failure, count: int) -> list[ExplainedScore]:
    """The same failure for each of `count` episodes."""
    return [ExplainedScore(Score(failure=failure)) for _ in range(count)]


def read_items(found: Any, episodes: Sequence[Episode], info: RewardInfo, ids: Sequence[str]) -> list[ExplainedScore]:
    """Judgements from a list of items.

    Args:
        found: the list, as JSON has it.
        episodes: what was asked about, in order.
        info: what the model promises.
        ids: what each item was called; it comes back.

    Returns:
        One per episode. Of a list of another length nothing is believed: nobody knows whose items are missing.
    """
    if not isinstance(found, list):
        return all_failed(Failure("bad_reply", f"no list of items but {_shown(found)}"), len(episodes))
    if len(found) != len(episodes):
        return all_failed(Failure("wrong_count", f"{len(found)} items for {len(episodes)} episodes"), len(episodes))
    return [read_item(item, episode, info, name) for item, episode, name in zip(found, episodes, ids, strict=True)]


def read_item(item: Any, episode: Episode, info: RewardInfo, name: str) -> ExplainedScore:
    """One judgement."""
    if not isinstance(item, Mapping):
        return failed("bad_reply", f"no item but {_shown(item)}")
    if item.get("id") != name:
        return failed("bad_reply", f"item {_shown(item.get('id'))} where {name} was asked about")
    said = item.get("failure")
    only_steps = isinstance(said, Mapping) and said.get("reason") == NO_TOTAL and item.get("step_scores") is not None
    if said is not None and not only_steps:
        return ExplainedScore(Score(failure=_failure(said)))
    steps = _steps(item.get("step_scores"), len(episode), info)
    if isinstance(steps, Failure):
        return ExplainedScore(Score(failure=steps))
    total = None if item.get("score") is None else number(item["score"], info, "score")
    if isinstance(total, Failure):
        return ExplainedScore(Score(failure=total))
    if steps is None and (info.granularity == "step" or total is None):
        what = "score" if info.granularity == "total" else "step_scores"
        return failed("bad_reply", f"neither {what} nor a failure")
    text, tokens, truncated = item.get("text"), item.get("n_tokens"), item.get("truncated")
    return ExplainedScore(
        Score(steps=steps, total=total),
        text=text if isinstance(text, str) else "",
        tokens=tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0 else 0,
        truncated=truncated is True,
        parse_status=_status(item),
    )


def read_score(found: Any, info: RewardInfo) -> ExplainedScore:
    """The judgement in the LIBERO guide's `{"score", "model_output"}`."""
    if not isinstance(found, Mapping) or "score" not in found:
        return failed("bad_reply", f"no score in {_shown(found)}")
    value = number(found["score"], info, "score")
    text = found.get("model_output")
    words = text if isinstance(text, str) else ""
    if isinstance(value, Failure):
        return ExplainedScore(Score(failure=value), text=words)
    return ExplainedScore(Score(total=value), text=words, parse_status=_status(found))


def _status(found: Mapping[str, Any]) -> ParseStatus | None:
    return next((status for status in PARSE_STATUSES if status == found.get("parse_status")), None)


def number(value: Any, info: RewardInfo, what: str) -> float | Failure:
    """A finite number in the declared range, or why it is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Failure("bad_reply", f"{what} is {_shown(value)}, not a number")
    try:
        known = float(value)
    except OverflowError:
        known = math.inf
    if not math.isfinite(known) or abs(known) > float(np.finfo(np.float32).max):
        return Failure("non_finite", f"{what} is {_shown(value)}")
    low, high = info.range
    slack = SLACK * max(1.0, *(abs(end) for end in (low, high) if math.isfinite(end)))
    if not low - slack <= known <= high + slack:
        return Failure("out_of_range", f"{what} is {known:g}; {info.name} declares {low:g} to {high:g}")
    return min(max(known, low), high)


def _steps(values: Any, rows: int, info: RewardInfo) -> np.ndarray | Failure | None:
    if values is None:
        return None
    if not isinstance(values, list):
        return Failure("bad_reply", f"step_scores is {_shown(values)}, not a list")
    if len(values) != rows:
        return Failure("wrong_length", f"{len(values)} step_scores for {rows} rows")
    read = [number(value, info, f"step_scores[{row}]") for row, value in enumerate(values)]
    wrong = next((value for value in read if isinstance(value, Failure)), None)
    return wrong if wrong is not None else np.array(read, dtype=np.float32)


def _failure(said: Any) -> Failure:
    """What the server says went wrong, as a reason to count by."""
    reason = said.get("reason") if isinstance(said, Mapping) else said
    detail = said.get("detail") if isinstance(said, Mapping) else ""
    known = isinstance(reason, str) and _WORD.match(reason) is not None
    return Failure(str(reason) if known else "server_failure", _shown(detail) if detail else "")


def _shown(value: Any) -> str:
    """The beginning of a foreign value, in one line."""
    text = value if isinstance(value, str) else repr(value)[:300]
    return " ".join(text[:300].split())[:200]
