"""What `guerdon label` will cost, before it starts: texts, calls, tokens, dollars, seconds.

Most of it is an upper bound: every question tried, every solution kept. Tokens are rough; the seed counted 500 per
judged solution. What is in the cache costs nothing and is not known here.

    estimate_label(study)["dollars"]            # "about $12.41"
"""

from __future__ import annotations

import math
from typing import Any

from guerdon.settings.data import DataSettings
from guerdon.settings.estimate import WRITE, millions_of
from guerdon.settings.label import CONTINUED, JUDGED, LabelSettings
from guerdon.settings.study import Study

QUESTION, SOLUTION, STEPS = 100, 300, 6  # tokens, tokens and steps, where the data do not say
JUDGE_READS, PER_STEP_READ, PER_STEP_WRITTEN = 320, 16, 50  # tokens of the request around the text, and of verdicts
SECONDS_PER_CALL = 6.0
_TOKENS_PER_TEXT = 40.0  # of what WRITE was measured on


def estimate_label(study: Study) -> dict[str, Any]:
    """Texts to sample, calls, tokens, dollars, seconds and bytes of `guerdon label`."""
    settings, data = study.label, study.data
    if settings is None or data is None:
        return {}
    steps, length = _steps(data), min(SOLUTION, data.max_response_length)
    questions = min(settings.num_samples, data.train_size) if data.type == "generated" else settings.num_samples
    solutions = questions * settings.num_rollouts
    tried = _tried(settings, data)
    mined = 0 if settings.mining is None else tried * settings.mining.attempts
    sampled = mined + (solutions if settings.method == 1 else 0)
    continued = solutions * _prefixes(settings, steps) * settings.monte_carlo.completions
    judged = solutions if settings.labeler in JUDGED else 0
    written = solutions if settings.method == 2 else 0
    read = judged * (JUDGE_READS + QUESTION + length + PER_STEP_READ * steps) + written * (QUESTION + 50)
    answered = judged * (20 + PER_STEP_WRITTEN * steps) + written * length
    calls = judged + written
    millions = millions_of(study)
    seconds = 10 + (sampled + continued / 2) * length / _TOKENS_PER_TEXT * millions / WRITE
    found: dict[str, Any] = {
        "questions": f"at most {questions}" + (f", out of at most {tried} tried" if mined else ""),
        "solutions": f"at most {solutions}",
    }
    if sampled or continued:
        found["texts to sample"] = f"at most {sampled + continued}"
    if calls and settings.judge.api == "local":
        seconds += calls * (length + PER_STEP_WRITTEN * steps) / _TOKENS_PER_TEXT * 500 / WRITE
    elif calls:
        prices = settings.judge.prices
        rate = settings.judge.concurrency / SECONDS_PER_CALL
        rate = min(rate, (settings.judge.requests_per_minute or math.inf) / 60)
        seconds += calls / rate
        found["calls"] = f"at most {calls}, to {settings.judge.model_name} at {settings.judge.url}"
        found["tokens"] = f"about {_short(read)} read and {_short(answered)} written"
        found["dollars"] = f"about ${(read * prices[0] + answered * prices[1]) / 1e6:.2f}" + (
            "" if settings.max_usd is None else f"; stops before ${settings.max_usd:.2f}"
        )
    return {**found, "seconds": seconds, "bytes": 12 * solutions * length + 5 * (sampled + continued) * length}


def _steps(data: DataSettings) -> int:
    return data.task.steps if data.type == "generated" else STEPS


def _tried(settings: LabelSettings, data: DataSettings) -> int:
    if settings.mining is None:
        return 0
    most = settings.mining.max_questions
    return min(most, data.train_size) if data.type == "generated" else most


def _prefixes(settings: LabelSettings, steps: int) -> int:
    """Prefixes to complete per solution."""
    if settings.labeler not in CONTINUED:
        return 0
    return math.ceil(math.log2(max(steps, 2))) if settings.labeler == "binary_search" else max(steps - 1, 1)


def _short(tokens: int) -> str:
    return f"{tokens / 1e6:.2f}M" if tokens >= 100_000 else f"{tokens / 1e3:.1f}k"
