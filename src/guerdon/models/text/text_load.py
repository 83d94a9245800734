"""Reward models of text by their folder: those that `guerdon train` wrote, and those of others through an adapter.

A folder of guerdon's is recognised by its `reward_model.json`; anything else by its `config.json`, or by the name of
its adapter.

    model = load_text_model("runs/prm/method1_HE/final_checkpoint")
    model = load_text_model("Qwen/Qwen2.5-Math-PRM-7B", adapter="qwen_prm")
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guerdon.compute.packaged import local_model
from guerdon.errors import CheckpointError, ConfigError, DataError, boundary
from guerdon.models.load import load_reward_model
from guerdon.models.text.adapters import ADAPTERS, adapter_of, load_adapter, recognise
from guerdon.models.text.adapters.own_heads import why_not
from guerdon.models.text.text_card import CARD, is_own, read_card
from guerdon.network.hub import ADAPTER, adapter_config, check_folder, find_model, folder_with, model_folder
from guerdon.processes.progress import doing
from guerdon.reading.chats import ChatError
from guerdon.settings.remote import remote_at
from guerdon.settings.train import TEXT_MODELS
from guerdon.types import RewardModel

if TYPE_CHECKING:
    import torch

    from guerdon.models.text.text_model import TextRewardModel

FINAL = "final_checkpoint"


@doing("loading a reward model")
def load_text_model(
    path: str,
    *,
    adapter: str = "auto",
    micro_batch_size: int = 16,
    device: str | torch.device = "auto",
    weights: Mapping[str, float] | None = None,
) -> RewardModel:
    """Read a reward model of text.

    Args:
        path: a folder that `guerdon train` wrote (or the one above its `final_checkpoint`), or its hub id; a folder or
            hub id of a published model, `package:<name>`, or the address of a reward server (`http://host:port/v1/rewards?model=prm`).
        adapter: how a published model is read; `auto`: by its configuration.
        micro_batch_size: solutions per forward pass.
        device: where it computes, as a key `device` says.
        weights: of ratings in the reward, for a model that learned `attributes`; None: those of its training.

    Raises:
        CheckpointError: there is no such model, it was altered, lacks weights, no adapter can read it, or its chat
            template refuses its system turn.
        ConfigError: the device is not there, or is named for a reward server; that does not answer, or judges images;
            or the model has no such ratings.
    """
    if path.startswith(("http://", "https://")):
        for key, given in {"device": str(device) != "auto", "weights": weights is not None}.items():
            if given:
                raise ConfigError(f"{key} would do nothing with {path}, a reward server; remove it", key=key)
        served = load_reward_model("remote", remote=remote_at(path))
        if served.info.modality == "image":
            raise ConfigError(f"{path} judges images, not text; name another model of the server (?model=NAME)")
        return served
    path = local_model(path)
    path = str(folder_with(CARD, path) or path)  # without its card, members would be read as two classes
    folder = _own_folder(path, adapter)
    if folder is None:
        if weights is not None:
            raise ConfigError(
                f"weights are of a model that guerdon trained with attributes; {path} is none", key="weights"
            )
        return load_adapter(_adapter_of(path, adapter), path, micro_batch_size, device)
    from guerdon.models.text.text_model import TextRewardModel  # imports torch

    card = read_card(folder)
    if card.kind not in TEXT_MODELS:
        raise CheckpointError(f"{folder} holds a {card.kind!r}, which this version of guerdon does not know")
    card = card if weights is None else card.weighted(weights, str(folder))
    kind = model_class(card.kind)
    if card.adapters:
        from guerdon.models.text.ensemble import Ensemble

        model: RewardModel = Ensemble.stored(kind, folder, card, micro_batch_size, device)
    else:
        model = kind.load(folder, card, micro_batch_size, device)
    if not isinstance(model, TextRewardModel):
        return model
    with suppress(DataError):  # a character of this that the tokenizer lacks
        try:
            model.read("1 + 1?", ("2",))
        except ChatError as error:
            raise CheckpointError(f"{folder} cannot read a solution: {error}; correct its chat template") from error
    return model


def load_members(
    path: str, *, member_reward: Literal["mean", "lower_bound"] | None = None, deviations: float = 1.0, **given: Any
) -> RewardModel:
    """As `load_text_model`, with another reward of its members.

    Args:
        path: of the model.
        member_reward: the members' mean, or the mean minus `deviations` standard deviations; None: as it was trained.
        deviations: see there.
        given: further arguments of `load_text_model`.

    Raises:
        ConfigError: the model has no members; or as `load_text_model`.
        CheckpointError: as `load_text_model`.
    """
    model: Any = load_text_model(path, **given)
    if member_reward is not None:
        card = getattr(model, "card", None)
        if card is None or card.combine == "sum":
            raise ConfigError(
                f"member_reward would do nothing with {path}, which has no members; remove it", key="member_reward"
            )
        model.card = replace(card, combine=member_reward, deviations=deviations)
    return model  # type: ignore[no-any-return]


def check_text_model(path: str, *, adapter: str = "auto") -> None:
    """Refuse what `load_text_model` would refuse before it reads weights; a hub id is not looked up.

    Raises:
        CheckpointError: there is no such model in the folder, or no adapter can read it.
        ConfigError: it is an address that is none, or an unknown adapter.
    """
    if path.startswith(("http://", "https://")):
        remote_at(path)
        return
    path = local_model(path)
    if _own_folder(path, adapter) is None and (Path(path).is_dir() or adapter != "auto"):
        name = _adapter_of(path, adapter)
        if name not in ADAPTERS:
            raise ConfigError(f"unknown adapter {name!r}: choose one of {', '.join(ADAPTERS)}", key="adapter")


def _own_folder(path: str, adapter: str) -> Path | None:
    """As `find_text_model`; a model of guerdon's with an adapter is refused."""
    folder = find_text_model(path)
    if folder is not None and adapter not in ("auto", "guerdon"):
        raise CheckpointError(f"{folder} was written by guerdon and needs no adapter; remove adapter {adapter!r}")
    return folder


def find_text_model(path: str) -> Path | None:
    """The folder of a model that `guerdon train` wrote, at or below a path; None where there is none.

    Raises:
        CheckpointError: there are several below it, or it is a state for resuming.
    """
    given = Path(path)
    if is_own(given):
        return given
    below = [f for f in (given / FINAL, *sorted(given.glob(f"method*/{FINAL}"))) if is_own(f)]
    if len(below) > 1:
        raise CheckpointError(f"{given} holds several reward models: name one of {', '.join(map(str, below))}")
    if not below and (given / "trainer_state.json").is_file():
        raise CheckpointError(
            f"{given} is a training under way, or a state to resume it; a model to use is in {FINAL}, once the "
            "training is finished"
        )
    return below[0] if below else None


def model_class(kind: str) -> type[TextRewardModel]:
    """The class of a type of `train`; only its module is imported."""
    module, name = TEXT_MODELS[kind].split(":")
    found: type[TextRewardModel] = getattr(import_module(module), name)
    return found


def _of_task(path: str) -> str | None:
    """The name for the folder of a peft adapter, which says what its model is for; None for other folders."""
    if not (Path(path) / ADAPTER).is_file():
        return None
    return {"SEQ_CLS": "classifier", "TOKEN_CLS": "trl"}.get(str(adapter_config(Path(path)).get("task_type")))


def _adapter_of(path: str, adapter: str) -> str:
    """The name of the adapter: as given, or by the folder or its `config.json`."""
    if adapter != "auto":
        return adapter
    name = adapter_of(path) or _of_task(path)
    if name is None:
        from transformers import PreTrainedConfig

        folder = model_folder(path)
        if folder is not None:
            check_folder(CheckpointError, "the reward model", folder)
        find_model(CheckpointError, "the reward model", path)
        with boundary(CheckpointError, f"no reward model can be read at {path!r}"):
            config, _ = PreTrainedConfig.get_config_dict(path)
        name = recognise(dict(config), path)
        if name is None and (reason := why_not(config, path)) is not None:
            raise CheckpointError(f"no reward model can be read at {path}: {reason}")
    if name is None:
        raise CheckpointError(
            f"no reward model can be read at {path}: guerdon did not write it, and its configuration is of no known "
            f"kind; name one of the adapters {', '.join(ADAPTERS)}"
        )
    return name
