"""Request settings that some endpoints reject: which ones an endpoint accepts, learned from its error replies.

Endpoints of reasoning models reject `max_tokens`, `temperature` and others with status 400. A setting that is rejected
by name is left out of all later requests to that endpoint; the token limit is first sent under its other name. A
rejected value (a limit that is too large) is an error like any other.

    accepted = AcceptedSettings("the judge", leave_out=("top_p",))
    body = accepted.fit({"model": "m", "messages": [], "max_tokens": 64, "temperature": 0.0, "top_p": 1.0})
    accepted.learn(body, 400, {"error": {"message": "Unsupported parameter: 'max_tokens' ..."}})   # True: send again
    accepted.fit(body)                                                          # now with max_completion_tokens
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from guerdon.progress import log_line
from guerdon.settings.label import LIMITS, OptionalSetting

_OPTIONAL = get_args(OptionalSetting)
_REFUSED = re.compile(
    r"unsupported|not[ _]support|n't support|no longer support|unavailable|deprecated|been removed|fixed (to|at) "
    r"|(not|n't) (an? |one of (the )?)?(accept|allow|permit|recogni[sz]e|available|expected|configurable|valid [fpa])"
    r"|(not|n't) be (set|used|specified|changed|given)|(un(recogni[sz]ed|known|expected|permitted)|illegal)[ _]"
    r"|invalid (field|param|arg)|extra[ _](input|field|forbidden)|extraneous|additional propert|cannot find field"
    r"|only (the default|\S+ is (supported|allowed))|may only be set to|must be \S+ (for|with) this model",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"too (large|high|small|low|long|many)|at (most|least)|maximum|minimum|exceed|(greater|less|smaller|larger) than"
    r"|[<>]=?|between|out of range|non-negative",
    re.IGNORECASE,
)
_OTHERS = re.compile(  # the names that follow are of accepted settings
    r"(?<!not )\b(allowed|supported|valid|accepted|available|permitted|expected) "
    r"(param\w*|fields|arguments|names|properties|keys|one of)\b|\bdid you mean\b|\buse\b",
    re.IGNORECASE,
)
_NOT_BOTH = re.compile(r"(not|n't) both\b|only one\b|mutually exclusive|\bboth\b.*(not|n't)\b", re.IGNORECASE)
_ECHOES = ("input", "ctx", "url", "request", "body")  # fields of an error that repeat the request
NEUTRAL = {"repetition_penalty": 1.0}
"""Values that disable what vLLM and SGLang read from a checkpoint's generation config, at any temperature."""
NEUTRAL_WARM = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
"""The same for settings that matter above temperature 0."""


def neutral(temperature: float) -> dict[str, Any]:
    """Settings that keep an endpoint from applying a checkpoint's generation config."""
    return {**NEUTRAL, **(NEUTRAL_WARM if temperature > 0 else {})}


class AcceptedSettings:
    """Which request settings an endpoint accepts. Thread-safe.

    Args:
        who: the endpoint, for messages.
        leave_out: settings that are never sent.
        needs_limit: keep a limit of tokens in every request, as costs are limited.
    """

    def __init__(self, who: str, leave_out: tuple[str, ...] = (), *, needs_limit: bool = False) -> None:
        self._who, self._needs_limit = who, needs_limit
        self._lock = threading.Lock()
        self._instead: dict[str, str | None] = dict.fromkeys(leave_out)

    def left_out(self, name: str) -> bool:
        """Whether requests are sent without this setting."""
        return name in self._instead and self._instead[name] is None

    def fit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request with the settings that the endpoint accepts, as far as known."""
        known = dict(self._instead)
        fitted = ((known.get(name, name), value) for name, value in body.items())
        return {name: value for name, value in fitted if name is not None and known.get(name, name) is not None}

    def learn(self, sent: Mapping[str, Any], status: int, payload: Any) -> bool:
        """Learn from an error reply.

        Args:
            sent: the request.
            status: of the reply.
            payload: of the reply.

        Returns:
            Whether `fit` now changes the request, so that it should be sent again.
        """
        if status not in (400, 422):
            return False
        for name in sorted(refused_settings(payload) & sent.keys()):
            with self._lock:
                if name in self._instead:
                    continue
                others = [one for one in LIMITS if name in LIMITS and one not in {name, *self._instead}]
                if self._needs_limit and name in LIMITS and not others:
                    continue
                self._instead[name] = other = others[0] if others else None
            if sent[name] != {**NEUTRAL, **NEUTRAL_WARM, "stream": False}.get(
                name
            ):  # an endpoint without these needs no neutral value
                how = f"it is sent as {other}" if other else "it is left out, and the endpoint's own value applies"
                log_line(f"{self._who} does not accept {name}: {how}")
        return self.fit(sent) != dict(sent)


def refused_settings(payload: Any) -> set[str]:
    """Settings of `OptionalSetting` that an error reply names as not supported."""
    found: set[str] = set()
    for words, where in _complaints(payload):
        if _NOT_BOTH.search(words) and len(both := _named(words)) > 1:
            found |= both - {"temperature", "max_completion_tokens"}
        elif _REFUSED.search(words) and not _VALUE.search(words):
            shown, _, rest = words.partition(" instead of ")
            found |= _named(where) if where else _named(_OTHERS.split(shown, maxsplit=1)[0]) or _named(rest)
    return found


def _named(text: str) -> set[str]:
    """Settings in a text, however their words are joined (maxTokens, max_tokens)."""
    joined = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()
    return {name for name in _OPTIONAL if re.search(rf"(?<![a-z0-9_]){name}(?![a-z0-9_])", joined)}


def _complaints(payload: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Each message of an error reply with its codes, and the field that it concerns, if it names one."""
    if depth > 12:
        return
    if isinstance(payload, str):
        try:
            inner = json.loads(payload)
        except (ValueError, RecursionError):
            inner = None
        if isinstance(inner, Mapping | list):
            yield from _complaints(inner, depth + 1)
        else:
            yield payload, ""
    elif isinstance(payload, list):
        for one in payload:
            yield from _complaints(one, depth + 1)
    elif isinstance(payload, Mapping):
        kept = {key: value for key, value in payload.items() if key not in _ECHOES}
        words = [value for value in kept.values() if isinstance(value, str) and not value.startswith(("{", "["))]
        about = kept.get("param") or kept.get("loc") or kept.get("parameter") or kept.get("field") or ""
        where = str(about[-1] if isinstance(about, list) else about)
        yield " ".join(words), "" if where == "body" else where
        for value in kept.values():
            if value is not about and (isinstance(value, Mapping | list) or str(value).startswith(("{", "["))):
                yield from _complaints(value, depth + 1)
