"""Formats of numbers in reports: intervals, step counts, durations, percentages; a missing one becomes a dash.

A missing value is never written as 0 and never as a float's name.

    signed_interval(Interval(0.61, 0.44, 0.78, n=10))  # "+0.61 [0.44, 0.78]"
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from guerdon.pages import durations
from guerdon.pages.charts import short
from guerdon.statistics.intervals import Interval
from guerdon.statistics.learning_curves import StepsRatio

DASH = "–"
TEMPLATES = Path(__file__).parent / "templates"
WORDS: dict[str, dict[str, str]] = yaml.safe_load((TEMPLATES / "words.yaml").read_text(encoding="utf-8"))
CONTROL, TEXT = "environment steps", "responses"  # what the steps of a run count
ACRONYMS = frozenset({"auroc", "auprc", "ece", "iqm", "mae", "mcc"})


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with a fixed count of digits and a true minus sign."""
    if value is None:
        return DASH
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


def bounds(interval: Interval | None, digits: int = 2) -> str:
    """The interval in brackets, or nothing where there is none."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"[{decimal(interval.low, digits)}, {decimal(interval.high, digits)}]"


def signed(value: float | None, digits: int = 2) -> str:
    """A difference with its sign."""
    text = decimal(value, digits)
    return f"+{text}" if value is not None and float(f"{value:.{digits}f}") > 0 else text


def signed_interval(interval: Interval) -> str:
    """A difference and its interval: `+0.61 [0.44, 0.78]`."""
    return f"{signed(interval.estimate)} {bounds(interval)}".strip()


def digits_for(scale: float) -> int:
    """Digits after the point that show a tenth of `scale`: 2 for 0.4, 1 for 3, 3 for 0.04."""
    return min(max(1 - math.floor(math.log10(scale)), 0), 6) if scale > 0 else 2


def percent(value: float | None) -> str:
    """A share as a percentage, with a digit after the point below 10%."""
    if value is None:
        return DASH
    return f"{100 * value:.0f}%" if value >= 0.1 or value == 0 else f"{100 * value:.2g}%"


def steps(value: float | None) -> str:
    """A count of steps: 800, 12.5k, 1.2M."""
    return DASH if value is None else short(float(f"{value:.3g}"))


def at(value: float | None, unit: str) -> str:
    """A moment of training: `at step 80k`, for language models `after 80k responses`."""
    return f"at step {steps(value)}" if unit == CONTROL else f"after {steps(value)} {unit}"


def short_unit(unit: str) -> str:
    """The unit for a table's head: `steps`, `responses`."""
    return "steps" if unit == CONTROL else unit


def times(value: float | None) -> str:
    """A ratio: `2.4×`, `12×`; beyond a hundred only `>100×`."""
    if value is None:
        return DASH
    if value > 100 or value < 0.01:
        return ">100×" if value > 1 else "<0.01×"
    if value < 1:
        return f"{value:.3g}×"
    return f"{value:.1f}×" if value < 10 else f"{value:.0f}×"


def human(name: str) -> str:
    """A key as words: `episode_auroc` becomes `episode AUROC`."""
    return " ".join(word.upper() if word in ACRONYMS else word for word in name.replace(".", " ").split("_"))


def duration(seconds: float | None) -> str:
    """Seconds as `45 s`, `12 min`, `3 h 24 min`; a dash where unknown."""
    return DASH if seconds is None else durations.duration(seconds)


def p_value(value: float | None) -> str:
    """A p-value with three digits, never zero."""
    if value is None:
        return DASH
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def plural(count: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """A nested mapping as dotted keys and short texts; lists stay in one piece."""
    if isinstance(value, dict) and value:
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        return flat
    if isinstance(value, list):
        return {prefix: ", ".join(str(item) for item in value) or "none"}
    return {prefix: "none" if value is None else str(value)}


def speed_text(speed: StepsRatio) -> tuple[str, str, str]:
    """The ratio, its interval and its censored pairs in words; any of them may be empty.

    The ratio is the baseline's steps over the arm's. With `more` it is turned round: 3× more, not a third as many.
    Where all pairs are censored there is no ratio, and the first text says that alone.
    """
    interval = speed.interval
    if interval.estimate is None:
        return "", "", ""
    not_reached = ""
    if speed.censored:
        not_reached = f"not reached in {speed.censored} of {plural(interval.n, 'pair')}"
    if speed.censored == interval.n:
        return not_reached, "", ""
    ratio, low, high = interval.estimate, interval.low, interval.high
    limit = "at most "
    if speed.conclusion == "more":
        ratio = 1 / interval.estimate
        low = _turned(interval.high)
        high = _turned(interval.low)
        limit = "at least "
    words = times(ratio)
    if speed.conclusion != "no difference shown":
        words += f" {speed.conclusion}"
    if speed.censored:
        words = limit + words
    bounds = ""
    if low is not None or high is not None:
        bounds = f"[{times(low).removesuffix('×')}, {times(high).removesuffix('×')}]"
    return words, bounds, not_reached


def _turned(ratio: float | None) -> float | None:
    """The ratio the other way round."""
    return None if ratio is None else 1 / ratio


def speed_sentence(speed: StepsRatio | None, arm: str, baseline: str, unit: str) -> str:
    """`PRIME reaches the final success of RLOO in 2.4× fewer responses [1.1, 3.9].`; empty where nothing is shown."""
    if speed is None or speed.conclusion == "no difference shown":
        return ""
    pairs = plural(speed.interval.n, "pair")
    if speed.censored == speed.interval.n:
        return f"{arm} does not reach the final success of {baseline} in any of {pairs} of runs."
    ratio, bounds, not_reached = speed_text(speed)
    verb = "reaches" if speed.conclusion == "fewer" else "needs"
    what = f"the final success of {baseline} in {ratio} {unit}"
    if speed.conclusion == "more":
        what = f"{ratio} {unit} to reach the final success of {baseline}"
    detail = f", {not_reached}" if not_reached else ""
    return f"{arm} {verb} {what} {bounds} over {pairs} of runs{detail}."
