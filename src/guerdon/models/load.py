"""A reward model by its name, as configurations and the command line ask for it.

Loading a name imports only that model's module. It does not know what the scores are used for.

    model = load_reward_model("resnet", "runs/rm", image_size=(3, 64, 64))
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.errors import ConfigError
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.vlm import VLM_NAMES, VLMSettings
from guerdon.types import RewardModel

if TYPE_CHECKING:
    import torch

MODELS: dict[str, str] = {
    "resnet": "guerdon.models.image:load_image_model",
    "progress": "guerdon.models.image:load_image_model",
    "constant": "guerdon.models.constant:ConstantModel",
    "remote": "guerdon.serve.remote:load_remote",
    **dict.fromkeys(sorted(set(VLM_NAMES.values())), "guerdon.models.vlm:load_named_vlm"),
}
ALIASES: dict[str, str] = {
    "resnet_reward": "resnet", "dummy": "constant", "DummyRM": "constant", "remote_text": "remote",
    **{name: kind for name, kind in VLM_NAMES.items() if name != kind},
}  # fmt: skip


def load_reward_model(
    model_type: str,
    checkpoint_path: str | Path | None = None,
    *,
    arch: str | None = None,
    hidden_dim: int | None = None,
    image_size: Any = None,
    dropout: float | None = None,
    debug_save_dir: str | Path | None = None,
    device: str | torch.device | None = None,
    value: float = 0.0,
    remote: RemoteSettings | None = None,
    vlm: VLMSettings | Mapping[str, Any] | None = None,
) -> RewardModel:
    """Build the reward model `model_type`.

    Args:
        model_type: `resnet` (or `resnet_reward`), `progress`, `constant` (or `dummy`), `remote`, or a vision-language
            model (`qwen_vl`, `primo_r1`, `true_logprob`, `trend`, `preference`).
        checkpoint_path: where a learned model lies.
        arch: refuse a checkpoint with another architecture.
        hidden_dim: refuse a checkpoint with another head.
        image_size: refuse a checkpoint with another input size; 128, [128, 128] or [3, 128, 128].
        dropout: refuse a checkpoint with another dropout.
        debug_save_dir: write scored frames there as pictures.
        device: None for the GPU when there is one.
        value: of the `constant` model.
        remote: of the `remote` model: which server, and how it is asked.
        vlm: of vision-language models: which one, how it is asked. For these `checkpoint_path` may also be a model
            that was not trained here (a folder or hub id).

    Raises:
        ConfigError: an unknown name, or an option that this model does not have.
        CheckpointError: the checkpoint is missing, corrupt, or other than asked for.
    """
    name = ALIASES.get(model_type, model_type)
    if name not in MODELS:
        known = ", ".join([*MODELS, *ALIASES])
        raise ConfigError(f"unknown reward model {model_type!r}: choose one of {known}")
    module, attribute = MODELS[name].split(":")
    build = getattr(import_module(module), attribute)
    given = {
        "checkpoint_path": checkpoint_path,
        "arch": arch,
        "hidden_dim": hidden_dim,
        "image_size": image_size,
        "dropout": dropout,
        "debug_save_dir": debug_save_dir,
    }
    options = {key: option for key, option in given.items() if option is not None}
    if remote is not None and name != "remote":
        raise ConfigError(f"the reward model {model_type!r} is not on a server: remove remote")
    if vlm is not None and name not in VLM_NAMES:
        raise ConfigError(f"the reward model {model_type!r} is no vision-language model: remove vlm")
    if name == "constant":
        if options:
            raise ConfigError(f"the reward model {model_type!r} has no {', '.join(options)}: remove it")
        return build(value)  # type: ignore[no-any-return]
    if name == "remote":
        if options or value != 0.0 or device is not None:
            raise ConfigError("the reward model 'remote' has no options but remote: the server has the rest")
        return build(remote)  # type: ignore[no-any-return]
    if name in VLM_NAMES:
        wrong = [key for key in options if key != "checkpoint_path"] + (["value"] if value != 0.0 else [])
        if wrong:
            raise ConfigError(f"the reward model {model_type!r} has no {', '.join(wrong)}: remove it")
        return build(model_type, checkpoint_path, vlm=vlm, device=device)  # type: ignore[no-any-return]
    if value != 0.0:
        raise ConfigError(f"the reward model {model_type!r} has no value: remove it")
    if checkpoint_path is None:
        raise ConfigError(f"the reward model {model_type!r} needs checkpoint_path: train one with `guerdon train`")
    if image_size is not None:
        from guerdon.settings.train import parse_image_size

        try:
            options["image_size"] = parse_image_size(image_size)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return build(kind=name, device=device, **options)  # type: ignore[no-any-return]
