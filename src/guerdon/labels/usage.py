"""The usage that a reply reports: tokens read and written, cache writes, dollars.

Endpoints differ: reasoning is part of `completion_tokens` or not (`total_tokens` decides), tokens of a cache are part
of the prompt or not, counts are missing, null, text or 0 beside a text. A count that is not reported is None, and its
call is charged with the most that it can have used. Where two readings are possible, the more expensive one counts.

    usage = {"prompt_tokens": 119, "completion_tokens": 9, "total_tokens": 226}
    reported_usage(usage, "a text")                                       # CallUsage(tokens_in=119, tokens_out=107)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST = 10**9  # a larger count is nonsense
SHORT_WRITE, LONG_WRITE = 1.25, 2.0  # times the price of input: a token that a cache keeps for 5 minutes, for an hour
_TICKS = 1e10  # of xAI, per dollar


@dataclass(frozen=True)
class CallUsage:
    """What a call used.

    Attributes:
        tokens_in: tokens that it read, those of a cache included; None: not reported.
        tokens_out: tokens that it wrote, reasoning included; None: not reported.
        surcharge_in: tokens read that cache writes cost in addition.
        usd: dollars that the endpoint says it charges; None: it does not say.
    """

    tokens_in: int | None
    tokens_out: int | None
    surcharge_in: float = 0.0
    usd: float | None = None


def reported_usage(given: Any, text: str) -> CallUsage:
    """The usage that a reply reports, by the names of Anthropic, OpenAI, DeepSeek, OpenRouter and xAI.

    Args:
        given: the field `usage` of the reply, whatever it is.
        text: that the model wrote.
    """
    usage = given if isinstance(given, Mapping) else {}
    inside, outside = (
        _section(usage, *names)
        for names in (
            ("prompt_tokens_details", "input_tokens_details"), ("completion_tokens_details", "output_tokens_details"),
        )
    )  # fmt: skip
    hits = _largest(usage, "cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens")
    hits = max(hits, _largest(inside, "cached_tokens", "cache_read_tokens"))
    writes, surcharge = _writes(usage, inside)
    total, cached = _largest(usage, "total_tokens"), hits + writes
    read = _largest(usage, "prompt_tokens", "input_tokens")
    if read and (cached > read or ("prompt_tokens" not in usage and "input_tokens_details" not in usage)):
        read += cached  # beside the prompt, as Anthropic counts
    read = max(read, cached, hits + _largest(usage, "prompt_cache_miss_tokens"))
    written = _largest(usage, "completion_tokens", "output_tokens")
    reasoning = max(_largest(usage, "reasoning_tokens"), _largest(outside, "reasoning_tokens", "thinking_tokens"))
    more = total - read - written
    if more > 0 and read and written and more == cached:
        read += more
    elif more > 0 and read:
        written += more
    elif more > 0 and written:
        read = more
    elif more < 0 or reasoning > written:  # the total is missing or nonsense
        written += reasoning
    silent = not text and read > 0 and _count(usage.get("completion_tokens", usage.get("output_tokens"))) == 0
    return CallUsage(read or None, written if written or silent else None, surcharge, _dollars(usage))


def _writes(usage: Mapping[str, Any], inside: Mapping[str, Any]) -> tuple[int, float]:
    """Tokens written to a cache, and what they cost in addition, in tokens read."""
    kinds = _section(usage, "cache_creation")
    short, long = _largest(kinds, "ephemeral_5m_input_tokens"), _largest(kinds, "ephemeral_1h_input_tokens")
    names = ("cache_creation_input_tokens", "cache_write_tokens", "cache_creation_tokens")
    writes = max(_largest(usage, *names), _largest(inside, *names), short + long)
    short = min(short, writes)
    return writes, short * (SHORT_WRITE - 1) + (writes - short) * (LONG_WRITE - 1)


def _dollars(usage: Mapping[str, Any]) -> float | None:
    """What the endpoint charges: OpenRouter's fee and, with a key of one's own, the provider's bill; or xAI's ticks."""
    cost = usage.get("cost", usage.get("total_cost"))
    cost = _number(cost.get("total_cost") if isinstance(cost, Mapping) else cost)
    bill = _number(_section(usage, "cost_details").get("upstream_inference_cost"))
    if bill is not None and (usage.get("is_byok") is True or bill > (cost or 0.0)):
        cost = bill + (cost or 0.0)
    ticks = _number(usage.get("cost_in_usd_ticks"))
    found = [usd for usd in (cost, None if ticks is None else ticks / _TICKS) if usd is not None]
    return max(found, default=None)


def _section(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((value for name in names if isinstance(value := usage.get(name), Mapping)), {})


def _largest(usage: Mapping[str, Any], *names: str) -> int:
    """The largest count of these names; 0 where there is none."""
    return max(_count(usage.get(name)) or 0 for name in names)


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else math.ceil(number)


def _number(value: Any) -> float | None:
    """A count or an amount, also as text; None if it is negative, not finite or larger than `MOST`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number <= MOST else None
