"""A reward model by its name, as configurations, the server and Python code ask for it.

Only the module of that model is imported.

    model = load_reward_model("resnet", "runs/rm", image_size=(3, 64, 64))
    model = load_source_model(study.reward.sources["progress"].model)
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.config.loading import validate
from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.models.judges.rubric import ENDINGS
from guerdon.network.hub import model_folder
from guerdon.processes.progress import doing
from guerdon.settings.remote import remote_at
from guerdon.settings.reward_models import (
    MODEL_FORMS,
    REWARD_MODELS,
    OwnModelSettings,
    RemoteModelSettings,
    RewardModelSettings,
)
from guerdon.types import RewardModel

if TYPE_CHECKING:
    import torch

TEXT, JUDGE, IMAGE_KINDS = "text", "judge", ("resnet", "progress")
_FACTORY = re.compile(r"(?!package:)\w+(\.\w+)*:\w+(\.\w+)*")
PUBLISHED = ("robometer", "roboreward", "sarm")  # reward models of robots that others trained
ROBOT_KINDS = (*IMAGE_KINDS, "qwen_vl", *PUBLISHED)
_ROBOREWARD = "roboreward"
_OF_RUNS = {"update", "update_params", "labeler", "replay_path"}  # keys that are not arguments of a model


def load_reward_model(
    model_type: str,
    checkpoint_path: str | Path | None = None,
    *,
    device: str | torch.device | None = None,
    **options: Any,
) -> RewardModel:
    """Build the reward model `model_type`.

    `score` and `judge` may be called from any number of threads at a time: calls are queued, and those that wait are
    made as one, each with the values it would have alone. `learn`, `save` and `restore` wait until no other call is
    made. Models on one `SharedBase` take turns. What training uses (`logits`, `load_tensors`, the network itself) is
    for one thread, and for no other at the same time. The `score` of a user's own model is called by one thread at a
    time in `score_episodes`, unless it is `batched` or `concurrent` (`guerdon.processes.call_queue`).

    Args:
        model_type: a name, `package.module:factory`, or a name that an installed package registers.
        checkpoint_path: where a learned model lies; the rubric of a judge.
        device: where it computes, as a key `device` says; None: on the GPU when there is one.
        **options: further keys of `reward.model` of that type, such as `image_size`, `value`, `remote`, `vlm`; of a
            user's own, `params`.

    Raises:
        ConfigError: an unknown name, or an option that this model does not have.
        CheckpointError: the checkpoint is missing, corrupt, or other than asked for.
    """
    form = MODEL_FORMS.get(model_type, OwnModelSettings)
    paths = {} if checkpoint_path is None else {form.path_key: checkpoint_path}
    paths |= {} if device is None else {"device": str(device)}
    given = {key: str(value) if isinstance(value, Path) else value for key, value in {**options, **paths}.items()}
    REWARD_MODELS.known(model_type)  # an unknown name is refused before its options
    idle = sorted(given.keys() & _OF_RUNS)
    if idle:
        raise ConfigError(
            f"the reward model {model_type!r}: {', '.join(idle)} would do nothing outside a run", key=idle[0]
        )
    settings = validate(form, {"model_type": model_type, **given}, origin=f"the reward model {model_type!r}")
    return _built(settings, modality=options.get("modality"))


def load_source_model(settings: RewardModelSettings) -> RewardModel:
    """The model of a source of rewards; what a reward server fails to score is handed back as a failure.

    Raises:
        ConfigError: a user's own factory raised, or returned something else.
        CheckpointError: the checkpoint is missing, corrupt, or other than asked for.
    """
    if isinstance(settings, RemoteModelSettings):
        settings = settings.model_copy(update={"remote": settings.remote.in_a_run()})
    return _built(settings, modality=getattr(settings, "modality", None))


def options_of(model_type: str) -> list[str]:
    """The options that `load_reward_model` takes for a type, besides `checkpoint_path`."""
    form = MODEL_FORMS.get(model_type, OwnModelSettings)
    return [name for name in form.model_fields if name not in _OF_RUNS | {"model_type", form.path_key}]


@doing("loading a reward model")
def _built(settings: RewardModelSettings, *, modality: str | None) -> RewardModel:
    """The model. `modality` is what a configuration says that a user's own looks at; None where it says nothing."""
    name = settings.model_type
    if isinstance(settings, OwnModelSettings):
        model: RewardModel = REWARD_MODELS.build(name, settings.params, RewardModel, device=settings.device)
        if modality not in (None, model.info.modality):
            raise ConfigError(
                f"the reward model {name} judges {model.info.modality}, as its info says, and not {modality}",
                key="modality",
            )
        return model
    built: RewardModel = REWARD_MODELS.factory(name)(**settings.arguments())
    return built


def load_model_at(path: str, *, device: str | None = None, **options: Any) -> RewardModel:
    """A reward model by where it is.

    Args:
        path: the folder of a model that is trained or published, a hub id, the address of a server,
            `package.module:factory` or a rubric file.
        device: where it computes; None: on the GPU when there is one.
        **options: further keys of its type; of a factory its arguments.

    Raises:
        ConfigError: as `load_reward_model`; or there is no such folder.
        CheckpointError: as `load_reward_model`.
    """
    if is_factory(path):
        return load_reward_model(path, device=device, params=options)
    if "://" not in path:
        return load_reward_model(kind_at(path), path, device=device, **options)
    if device is not None:
        raise ConfigError(f"device would do nothing for {path}, which computes on the server; remove it", key="device")
    served = load_reward_model("remote", remote=remote_at(path), **options)
    return load_reward_model(TEXT, path, **options) if served.info.modality == "text" else served


def is_name(model: str) -> bool:
    """Whether it is the name of a type of reward model, and not a path."""
    return model in MODEL_FORMS or model in REWARD_MODELS.registered()


def is_factory(path: str) -> bool:
    """Whether it reads `package.module:factory`."""
    return _FACTORY.fullmatch(path) is not None


def refuse_missing(path: str) -> None:
    """Refuse a path that can only be a local folder and does not exist; anything else may be a hub id.

    Raises:
        ConfigError: there is no such folder.
    """
    place = Path(path)
    parts = len(place.parts)
    meant = place.is_absolute() or path.startswith(".") or parts > 2 or (parts == 2 and place.parent.is_dir())
    meant = meant or is_rubric(path)
    if meant and "://" not in path and not place.exists():  # a hub id has at most two parts; an address is not a folder
        raise ConfigError(
            f"model_path {path}: there is no such folder; train it first, or check the path", key="model_path"
        )
    if re.fullmatch(r"[\w.]+:[\w.]+", path) and not path.startswith("package:") and not place.exists():
        raise ConfigError(
            f"model_path {path}: there is no such folder; if it is a factory of your own, use it as the backend of a "
            f"server (--backend {path}), or as the model_type of a model",
            key="model_path",
        )


def kind_at(path: str) -> str:
    """The type of the model at a path: one of `ROBOT_KINDS`, a judge, or text.

    RoboReward's files are those of any Qwen3-VL: it is known by its name, in the path or in its README.md.

    Raises:
        ConfigError: there is no such folder.
        CheckpointError: its configuration cannot be read.
    """
    from guerdon.models.images.image import CONFIG, find_checkpoint
    from guerdon.models.vlm.vlm import is_checkpoint

    refuse_missing(path)
    if is_rubric(path):
        return JUDGE
    if is_checkpoint(path):
        return "qwen_vl"
    try:
        folder: Path | None = find_checkpoint(path)
    except CheckpointError:
        folder = model_folder(path)
    if folder is None or not (folder / CONFIG).is_file():
        return "roboreward" if _ROBOREWARD in path.lower() else TEXT
    with boundary(CheckpointError, f"{folder / CONFIG} cannot be read"):
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    kind = config.get("type")
    family = config.get("model_type")
    if kind in (*IMAGE_KINDS, "sarm", "robometer"):
        return str(kind)
    if config.get("architectures") in (["RFM"], ["RBM"]):
        return "robometer"
    readme = folder / "README.md"
    words = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    named = _ROBOREWARD in f"{path} {folder.resolve()} {words}".lower()
    return "roboreward" if family == "qwen3_vl" and named else TEXT


def is_rubric(path: str | None) -> bool:
    """Whether a path is that of a rubric file."""
    return path is not None and path.lower().endswith(ENDINGS) and not Path(path).is_dir()
