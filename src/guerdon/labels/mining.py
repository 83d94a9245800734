"""Which questions are worth labelling: those that a policy fails on often, but not always.

A question is tried k times; its fail rate is the share of wrong answers among those that can be checked, with Wilson's
interval beside it, which is wide for few attempts. (The seed's own script kept only questions that were always wrong,
then demanded at most 0.8, and so kept none.) This module does not know how solutions are labelled.

    found = mine(prompts, completer, verifier, study.data, MiningSettings(), wanted=1000)
    found.kept, found.table[0]          # {"id": ..., "fail_rate": 0.375, "low": 0.137, "high": 0.694, "kept": True}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from guerdon.labels.completions import Ask, Completer, Sampling
from guerdon.policies.tokens import prompt_ids
from guerdon.progress import ProgressBar
from guerdon.proportion import wilson_bounds
from guerdon.settings.data import DataSettings
from guerdon.settings.label import MiningSettings
from guerdon.types import Failure
from guerdon.worlds.prompts import Prompt
from guerdon.worlds.verifier import Verifier, outcome

AT_A_TIME = 64  # questions


@dataclass(frozen=True)
class Mined:
    """What mining found.

    Attributes:
        kept: questions to label, in the order of the data.
        table: a row per question that was tried.
    """

    kept: tuple[Prompt, ...]
    table: tuple[dict[str, Any], ...]


def mine(
    prompts: Sequence[Prompt],
    completer: Completer,
    verifier: Verifier,
    data: DataSettings,
    settings: MiningSettings,
    *,
    wanted: int,
) -> Mined:
    """Try questions in order until `wanted` are kept, or `max_questions` were tried.

    Args:
        prompts: questions with known answers.
        completer: writes.
        verifier: checks.
        data: length limit; whether an unreadable answer is wrong.
        settings: attempts, and which fail rates are kept.
        wanted: how many questions are enough.
    """
    kept: list[Prompt] = []
    table: list[dict[str, Any]] = []
    prompts = prompts[: settings.max_questions]
    told = ProgressBar(len(prompts), what="questions", lines=10)
    try:
        for start in range(0, len(prompts), AT_A_TIME):
            if len(kept) >= wanted:
                break
            for prompt, row in _tried(prompts[start : start + AT_A_TIME], completer, verifier, data, settings):
                row["kept"] = row["kept"] and len(kept) < wanted
                kept += [prompt] if row["kept"] else []
                table.append(row)
            told.advance(len(table), f"{len(kept)} kept")
    finally:
        told.close()
    return Mined(tuple(kept), tuple(table))


def _tried(
    prompts: Sequence[Prompt], completer: Completer, verifier: Verifier, data: DataSettings, settings: MiningSettings
) -> list[tuple[Prompt, dict[str, Any]]]:
    """Questions with their rows of the table."""
    k = settings.attempts
    asks = [Ask(prompt_ids(completer.policy.tokenizer, prompt.messages)) for prompt in prompts]
    sampling = Sampling(settings.temperature, settings.top_p)
    drawn = completer.complete(asks, n=k, limit=data.max_response_length, sampling=sampling, purpose="mine")
    owners = [prompt for prompt in prompts for _ in range(k)]
    judgements = verifier.check_batch([d.text for row in drawn for d in row], owners)
    outcomes = [outcome(judgement, data.unparsable) for judgement in judgements]
    return [(prompt, _row(prompt, outcomes[i * k : (i + 1) * k], settings)) for i, prompt in enumerate(prompts)]


def _row(prompt: Prompt, outcomes: Sequence[float | Failure], settings: MiningSettings) -> dict[str, Any]:
    """Fail rate of a question; null where no answer could be checked."""
    known = [v for v in outcomes if not isinstance(v, Failure)]
    fails = sum(v < 1.0 for v in known)
    rate = fails / len(known) if known else None
    low, high = wilson_bounds(fails, len(known)) if known else (None, None)
    kept = rate is not None and settings.min_fail_rate <= rate <= settings.max_fail_rate
    return {
        "id": prompt.id, "question": prompt.question, "attempts": len(outcomes), "checked": len(known),
        "fails": fails, "fail_rate": rate, "low": low, "high": high, "kept": kept,
    }  # fmt: skip
