"""Aliases: the seeds' words for what `reward` calls otherwise, and what a remote model implies for its source.

`binary_reward`, `success_threshold` and `use_rel_reward` are the LIBERO guide's; what they mean is filled in before a
source is checked.

    libero_words({"model": {...}, "binary_reward": True})["shaping"]      # "threshold"
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from guerdon.settings.base import names_in
from guerdon.settings.remote import SCORE, RemoteSettings
from guerdon.settings.reward_models import RemoteModelSettings, remote_form


def libero_words(given: dict[str, Any]) -> dict[str, Any]:
    """A source's keys, with those that the guide's words and a remote model imply.

    Raises:
        ValueError: two words contradict each other.
    """
    found = dict(given)
    remote = _remote_of(given.get("model"))
    if remote is not None:
        if urlsplit(str(remote.get("endpoint", RemoteSettings.model_fields["endpoint"].default))).path == SCORE:
            _imply(found, "reward_mode", "episode", f"an endpoint {SCORE}, which judges whole episodes")
        if remote.get("fail_on_request_error") is True:
            _imply(found, "on_failure", "raise", "fail_on_request_error")
    relative = found.get("use_rel_reward") is True and found.get("reward_mode") == "per_step"
    if found.get("binary_reward") is not None:
        if relative and found["binary_reward"] is True:
            raise ValueError("use_rel_reward and binary_reward exclude each other with reward_mode per_step")
        if not relative:
            shaping = "threshold" if found["binary_reward"] is True else "raw"
            _imply(found, "shaping", shaping, f"binary_reward: {str(found['binary_reward']).lower()}")
    if relative:
        _imply(found, "shaping", "relative", "use_rel_reward")
    if found.get("success_threshold") is not None and found.get("reward_threshold") is not None:
        raise ValueError("success_threshold is the guide's word for reward_threshold; give one of the two")
    return found


def _imply(found: dict[str, Any], key: str, value: str, by: str) -> None:
    if found.get(key, value) != value:
        raise ValueError(f"{key} {found[key]} contradicts {by}, which means {key}: {value}; remove one of them")
    found[key] = value


def _remote_of(model: Any) -> dict[str, Any] | None:
    """The keys of a remote model, however they were written; None for another model."""
    if isinstance(model, dict) and model.get("model_type") in names_in(RemoteModelSettings, "model_type"):
        model = remote_form(model)
    remote = model.get("remote") if isinstance(model, dict) else getattr(model, "remote", None)
    return remote.model_dump(exclude_unset=True) if isinstance(remote, RemoteSettings) else remote
