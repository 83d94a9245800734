"""Aliases: the seeds' words for what `reward` calls otherwise, and what a remote model implies for its source.

`binary_reward`, `success_threshold` and `use_rel_reward` are the LIBERO guide's, `process_reward_model` and what goes
with it the VLA guide's; what they mean is filled in before a section is checked.

    libero_words({"model": {...}, "binary_reward": True})["shaping"]            # "threshold"
    prm_words({"process_reward_model": True}, set())["sources"]["prm"]["model"]  # {"model_type": "DummyRM"}
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from guerdon.config import merge, validate
from guerdon.settings.base import Settings, names_in, refuse
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


class PRMOptions(Settings):
    """The VLA guide's options of a process reward model: a short form of the source `prm` of `reward.sources`."""

    process_reward_model: bool = Field(False, description="reward every step by a process reward model, too")
    prm_model_name_or_path: str | None = Field(None, description="its vlm.path; null: DummyRM, which gives zeros")
    prm_checkpoint_path: str | None = Field(None, description="its vlm.adapter")
    prm_reward_weight: float = Field(0.1, description="its reward_weight")
    use_vllm_prm: bool = Field(False, description="its vlm.backend is vllm")


def prm_words(given: dict[str, Any], source_keys: set[str]) -> dict[str, Any]:
    """The keys of `reward` with the VLA guide's as the source `prm`: every step is scored, and the values are paid.

    The native reward is kept (`combine_mode: add`). Keys of a source directly under `reward` are those of `prm`.

    Args:
        given: the section.
        source_keys: the keys that a source has.

    Raises:
        ValueError: a key that would do nothing, or one thing under two names.
    """
    words = {key: given[key] for key in PRMOptions.model_fields if key in given}
    if not words:
        return given
    asked, rest = validate(PRMOptions, words, source="reward"), {k: v for k, v in given.items() if k not in words}
    if not asked.process_reward_model:
        refuse(set(words) - {"process_reward_model"}, "without process_reward_model: true")
        return rest
    if rest.get("use_reward_model") is False:
        raise ValueError("process_reward_model: true contradicts use_reward_model: false; remove one of them")
    sources = dict(rest.pop("sources", None) or {})
    own = {**sources.pop("prm", {}), **{key: rest.pop(key) for key in source_keys & rest.keys()}}
    if "reward_weight" in own and "prm_reward_weight" in words:
        raise ValueError("reward_weight and prm_reward_weight are two names of one thing; give one of them")
    model = _prm_model(asked, own.pop("model", {}))
    terms = {"reward_mode": "per_step", "shaping": "raw", "reward_weight": asked.prm_reward_weight}
    kept = {"combine_mode": "add", **rest, "use_reward_model": True}
    return {**kept, "sources": {"prm": {**terms, "model": model, **own}, **sources}}


def _prm_model(asked: PRMOptions, given: Any) -> Any:
    """`model` of the source `prm`: that of the options with the keys that are given, or the one that is given."""
    named = asked.model_fields_set & {"prm_model_name_or_path", "prm_checkpoint_path", "use_vllm_prm"}
    if not isinstance(given, dict) or "model_type" in given:
        refuse(named, "another reward.model")
        return given
    if asked.prm_model_name_or_path is None:
        refuse(named - {"prm_model_name_or_path"}, "without prm_model_name_or_path (DummyRM)")
        return merge({"model_type": "DummyRM"}, given)
    vlm = {"path": asked.prm_model_name_or_path} | ({"backend": "vllm"} if asked.use_vllm_prm else {})
    vlm |= {} if asked.prm_checkpoint_path is None else {"adapter": asked.prm_checkpoint_path}
    return merge({"model_type": "QwenProcessRM", "vlm": vlm}, given)


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
