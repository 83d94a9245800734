"""What `guerdon label` will cost, before it starts: texts, calls, tokens, dollars, seconds.

Lines that say "at most" are upper bounds: every question tried, every solution kept and none the same as another.
Tokens are rough; the seed counted 500 per judged solution. Calls that fail are made again, and cost again: those are
not in any figure. What is in the cache costs nothing and is not known here.

    estimate_label(study)["dollars"]            # "about $12.41 if every solution is kept and no call fails"
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from guerdon.settings.data import DataSettings
from guerdon.settings.estimate import START, rows_of, size_of, size_of_start, solution_tokens, text_seconds
from guerdon.settings.label import CONTINUED, JUDGED, LabelSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings

QUESTION, STEPS = 100, 6  # tokens and steps, where the data do not say
JUDGE_READS, PER_STEP_READ, PER_STEP_WRITTEN = 320, 16, 50  # tokens of the request around the text, and of verdicts
SECONDS_PER_CALL = 6.0


def estimate_label(study: Study) -> dict[str, Any]:
    """Texts to sample, calls, tokens, dollars, seconds and bytes of `guerdon label`."""
    settings, data = study.label, study.data
    if settings is None:
        return {}
    given = _given(settings)
    if given == 0:
        return {"solutions": f"those of {', '.join(settings.data_paths)}, not counted here", "seconds": START}
    data = data or DataSettings(type="files", train_files=("none",))
    steps, length = _steps(data), solution_tokens(data)
    questions = min(settings.num_samples, data.train_size) if data.type == "generated" else settings.num_samples
    solutions = given or questions * settings.num_rollouts
    tried = 0 if given else _tried(settings, data)
    mined = 0 if settings.mining is None else tried * settings.mining.attempts
    sampled = mined + (solutions if settings.method == 1 and not given else 0)
    continued = solutions * _prefixes(settings, steps) * settings.monte_carlo.completions
    judged = solutions if settings.labeler in JUDGED else 0
    written = solutions if settings.method == 2 else 0
    read = judged * (JUDGE_READS + QUESTION + length + PER_STEP_READ * steps) + written * (QUESTION + 50)
    answered = judged * (20 + PER_STEP_WRITTEN * steps) + written * length
    calls = judged + written
    size = size_of(study)
    seconds = START + (sampled + continued / 2) * text_seconds(size, data)
    found: dict[str, Any] = {"solutions": f"at most {solutions}"}
    if not given:
        found = {"questions": f"at most {questions}" + (f", out of at most {tried} tried" if mined else ""), **found}
    if size.assumed and (sampled or continued):
        found["parameters"] = f"{size.millions:.0f}M, assumed: {size.assumed} is not here yet"
    if sampled or continued:
        found["texts to sample"] = f"at most {sampled + continued}"
    if calls and settings.judge.api == "local":
        judge = size_of_start(TextPolicySettings(path=settings.judge.model_name))
        seconds += answered / length * text_seconds(judge, data)
    elif calls:
        prices = settings.judge.prices
        rate = settings.judge.concurrency / SECONDS_PER_CALL
        rate = min(rate, (settings.judge.requests_per_minute or math.inf) / 60)
        seconds += calls / rate
        found["calls"] = (
            f"at most {calls}, to {settings.judge.model_name} at {settings.judge.url}; each that fails is made again, "
            f"up to {settings.judge.retries} times"
        )
        found["tokens"] = f"about {_short(read)} read and {_short(answered)} written"
        limit = judged * settings.judge.max_tokens + written * data.max_response_length
        usual, long = ((read * prices[0] + n * prices[1]) / 1e6 for n in (answered, limit))
        found["dollars"] = (
            f"about ${usual:.2f} if every solution is kept and no call fails; "
            f"${long:.2f} if every reply is as long as it may be"
        ) + ("" if settings.max_usd is None else f"; stops before ${settings.max_usd:.2f}")
    bytes_ = solutions * (800 + steps * (150 + 2 * length)) + 2 * (sampled + continued) * length
    return {**found, "seconds": seconds, "bytes": bytes_}


def _given(settings: LabelSettings) -> int | None:
    """How many solutions `solutions.data_path` holds at most: lines of files; 0 where they are not counted here."""
    if not settings.data_paths:
        return None
    counted = [rows_of(Path(path)) for path in settings.data_paths]
    return 0 if None in counted else sum(n or 0 for n in counted)


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
