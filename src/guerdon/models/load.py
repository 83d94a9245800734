"""A reward model by its name, as configurations and the command line ask for it.

Loading a name imports only that model's module. It does not know what the scores are used for.

    model = load_reward_model("resnet", "runs/rm", image_size=(3, 64, 64))
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.errors import ConfigError
from guerdon.types import RewardModel

if TYPE_CHECKING:
    import torch

MODELS = {
    "resnet": "guerdon.models.image:load_image_model",
    "progress": "guerdon.models.image:load_image_model",
    "constant": "guerdon.models.constant:ConstantModel",
}
ALIASES = {"resnet_reward": "resnet", "dummy": "constant"}


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
) -> RewardModel:
    """Build the reward model `model_type`.

    Args:
        model_type: `resnet` (or `resnet_reward`), `progress`, `constant` (or `dummy`).
        checkpoint_path: where a learned model lies.
        arch: refuse a checkpoint with another architecture.
        hidden_dim: refuse a checkpoint with another head.
        image_size: refuse a checkpoint with another input size; 128, [128, 128] or [3, 128, 128].
        dropout: refuse a checkpoint with another dropout.
        debug_save_dir: write scored frames there as pictures.
        device: None for the GPU when there is one.
        value: of the `constant` model.

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
    if name == "constant":
        if options:
            raise ConfigError(f"the reward model {model_type!r} has no {', '.join(options)}: remove it")
        return build(value)  # type: ignore[no-any-return]
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
