"""Whether a model or data set of a name exists, checked with a single request, and whether its folder is safe to read.

transformers and datasets try for up to a minute, file by file, where a name is wrong or there is no network. Nothing is
downloaded here, and what is in their caches needs no request.

A model is files inside one folder, and its weights are safetensors: a link or an index that leads elsewhere and
pickled weights are refused by name.

    check_model(CheckpointError, "the language model", "Qwen/Qwen3-4B")
    check_data_set(DataError, "data.path", "openai/gsm8k")
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from guerdon.errors import CheckpointError, ConfigError, GuerdonError, boundary, said_by
from guerdon.processes.progress import log_line
from guerdon.secrets import clean_key

_HUB_ID = re.compile(r"(?!.*(--|\.\.))\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", re.ASCII)  # of at most 96 characters

CONFIG, ADAPTER = "config.json", "adapter_config.json"
CONFIGS = (CONFIG, ADAPTER, "generation_config.json", "tokenizer_config.json")  # of a folder, where it has them
MOST_LAYERS = 10_000  # building more of them takes minutes, weights or not
MOST_LABELS = 100_000  # each has a name in the configuration, which is made before any weight is read
_LAYERS = re.compile(r"layers?$|^depths?$|^(num|n)_(\w+_)?(blocks?|experts|stages|groups|codebooks)$")
PICTURES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
_EDGE = 8192  # pixels that pictures are resized to
_MOST_OF_PICTURES = {  # what enlarges pictures; what only limits their size is not here
    "height": _EDGE, "width": _EDGE, "size": _EDGE, "crop_size": _EDGE, "patch_size": 256, "merge_size": 16,
    "temporal_patch_size": 64, "min_frames": 4096,
}  # fmt: skip
_NAMES = ("num_labels", "extra_ids", "offset")  # numbers of labels, and of tokens of T5's and Pegasus's tokenizers
AGAIN = "download the folder again (by git: git lfs pull), or save it again with save_pretrained"
PICKLED = {"pytorch_model": "model", "adapter_model": "adapter_model"}  # names of weights: pickled, as safetensors
OFT_PARTS = ("action_head", "proprio_projector", "vision_backbone")  # what OpenVLA-OFT keeps in pickles of their own


def check_model(error: type[GuerdonError], what: str, name: str) -> None:
    """Make sure that a folder, the cache or the hub has a model, and that its folder is safe to read.

    Args:
        error: is raised where none has.
        what: it is, for the message.
        name: a folder or a hub id.

    Raises:
        GuerdonError: of the kind `error`: as `find_model`; it holds an adapter or no model; or as `check_folder`.
    """
    find_model(error, what, name)
    folder = model_folder(name)
    if folder is None:
        return
    check_folder(error, what, folder)
    if (folder / ADAPTER).is_file():  # transformers would read the model that it names, wherever that is
        raise error(
            f"{what} {name!r} cannot be read: it is an adapter ({ADAPTER}); merge it into its model "
            "(merge_and_unload of peft) and name the folder of that"
        )
    if not (folder / CONFIG).is_file():
        raise error(f"{what} {name!r} cannot be read: the folder has no {CONFIG}; name the folder of a model")


def find_model(error: type[GuerdonError], what: str, name: str) -> None:
    """Make sure that a folder, the cache or the hub has something of the name of a model.

    Args:
        error: is raised where none has.
        what: it is, for the message.
        name: a folder or a hub id.

    Raises:
        GuerdonError: of the kind `error`: there is neither a folder of that name nor such a model on the hub.
    """

    def there() -> bool:
        from huggingface_hub import file_exists, try_to_load_from_cache

        return isinstance(try_to_load_from_cache(name, CONFIG), str) or file_exists(name, CONFIG)

    _check(error, f"{what} {name!r} cannot be read: there is no such folder", name, "model", there)


def model_folder(name: str) -> Path | None:
    """The folder of a model on this machine: of that path, or in the hub's cache."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache

    cached = None if _no_hub_id(name) else try_to_load_from_cache(name, CONFIG)
    return Path(cached).parent if isinstance(cached, str) else None


def folder_with(file: str, name: str) -> Path | None:
    """The folder of a model on the hub that has a file, downloaded; None: it has none, or the hub cannot be reached.

    Args:
        file: in the folder.
        name: a hub id; None is returned for the path of a folder.

    Raises:
        CheckpointError: it cannot be downloaded.
    """
    if Path(name).exists() or _no_hub_id(name):
        return None
    from huggingface_hub import file_exists, snapshot_download, try_to_load_from_cache

    cached, has = try_to_load_from_cache(name, file), False
    if cached is None:  # not known to be there, nor to be missing
        with suppress(CheckpointError), boundary(CheckpointError, name):
            has = file_exists(name, file)
    if not (has or isinstance(cached, str)):
        return None
    with boundary(CheckpointError, f"{name} cannot be downloaded from the hub"):
        return Path(snapshot_download(name))


def _no_hub_id(name: str) -> bool:
    return len(name) > 96 or name.endswith(".git") or _HUB_ID.fullmatch(name) is None


def local_folder(name: str | Path) -> Path:
    """The folder of a checkpoint on this machine, of that path or in the hub's cache, that is safe to read.

    Raises:
        CheckpointError: there is none, or as `check_folder`.
    """
    folder = model_folder(str(name))
    if folder is None:
        raise CheckpointError(
            f"{name}: there is no such folder; of a model on the hub, download it first (hf download {name} "
            "--local-dir FOLDER) and name the folder"
        )
    check_folder(CheckpointError, "the checkpoint", folder)
    return folder


def check_folder(error: type[GuerdonError], what: str, folder: Path) -> None:
    """Refuse a folder of a model or an adapter that is not safe to read.

    Args:
        error: is raised.
        what: is in the folder, for the message.
        folder: may be a link itself.

    Raises:
        GuerdonError: of the kind `error`: a link or an index leads out of the folder, its weights are pickled, or a
            configuration is not JSON.
    """
    check_links(error, what, folder)
    _refuse_first(error, what, folder, _weight_problems(folder))
    check_configs(error, what, folder)


def check_links(error: type[GuerdonError], what: str, folder: Path) -> None:
    """Refuse a folder with a link that leads out of it.

    A link may lead to a file inside the folder and, from a snapshot in the hub's cache, to the `blobs` of the same
    model: `models--a--b/snapshots/<revision>/config.json -> ../../blobs/<hash>`.

    Args:
        error: is raised.
        what: is in the folder, for the message.
        folder: may be a link itself.

    Raises:
        GuerdonError: of the kind `error`.
    """
    home = folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots" and home.parent.parent.name.startswith("models--"):
        allowed.append(home.parent.parent / "blobs")
    outside = (
        f"{file.relative_to(home)} is a link to {os.readlink(file)}, which is outside of the folder; put a copy of the "
        "file in its place"
        for file in home.rglob("*")
        if file.is_symlink() and not any(file.resolve().is_relative_to(root) for root in allowed)
    )
    _refuse_first(error, what, folder, outside)


def _refuse_first(error: type[GuerdonError], what: str, folder: Path, problems: Iterator[str]) -> None:
    for problem in problems:
        raise error(f"{what} {str(folder)!r} cannot be read: {problem}")


def _weight_problems(folder: Path) -> Iterator[str]:
    """Pickled weights, and an index that names anything else than safetensors inside the folder."""
    for pickled, safe in PICKLED.items():
        found = sorted(folder.glob(f"{pickled}*.bin"))
        if found and not any(folder.glob(f"{safe}*.safetensors")):
            yield (
                f"{found[0].name} is a pickle, which can run code; write a folder with safetensors: guerdon import "
                f"{folder} NEW_FOLDER"
            )
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            names = set(map(str, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, OSError, RecursionError, LookupError, TypeError, AttributeError) as cause:
            names = set()
            yield f"{index.name}: {said_by(cause)}; {AGAIN}"
        for name in names:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or path.suffix != ".safetensors":
                what = f"{name[:200]!r}, which is no safetensors file inside the folder"
                yield f"{index.name} names {what}; save the model again"


def check_configs(error: type[GuerdonError], what: str, folder: Path) -> None:
    """Refuse configurations that are not maps, or name code on the hub, which transformers would fetch.

    Args:
        error: is raised.
        what: is in the folder, for the message.
        folder: of a model, an adapter or a tokenizer.

    Raises:
        GuerdonError: of the kind `error`.
    """
    _refuse_first(error, what, folder, chain(_config_problems(folder), _picture_problems(folder)))


def _config_problems(folder: Path) -> Iterator[str]:
    for file in filter(Path.is_file, (folder / name for name in CONFIGS)):
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as cause:
            config = {}
            yield f"{file.name}: {said_by(cause)}; {AGAIN}"
        if not isinstance(config, dict):
            yield f"{file.name} is not a map of keys; {AGAIN}"
            continue
        parts = [config]
        for part in parts:  # and those inside, at any depth
            parts += [value for value in part.values() if isinstance(value, dict)]
        for key, value in (item for part in parts for item in part.items()):
            for problem in _value_problems(key, value):
                yield f"{key} in {file.name} {problem}"


def _value_problems(key: str, value: Any) -> Iterator[str]:
    """What is wrong with a value of a configuration, as the end of a sentence."""
    values = value if isinstance(value, list) else [value]
    counts = [one for one in values if isinstance(one, int)]
    largest, most = max(counts, default=0), None
    if key in _NAMES:
        most = MOST_LABELS
    elif _LAYERS.search(key):
        most = MOST_LAYERS
    if most is not None and largest > most:
        yield f"is {largest:,}, more than any model has ({most:,}); correct it"
    if key in ("depth", "num_hidden_layers") and min(counts, default=1) < 1:  # weights would be left out
        yield f"is {value}, and a model has at least one layer; correct it"
    if key in ("attn_implementation", "_attn_implementation") and "/" in str(value):
        yield f"names code on the hub, {str(value)[:80]!r}; remove the key"


def _picture_problems(folder: Path) -> Iterator[str]:
    """Sizes that pictures are enlarged to, beyond any model's."""
    for file in filter(Path.is_file, (folder / name for name in PICTURES)):
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as cause:
            config = {}
            yield f"{file.name}: {said_by(cause)}; {AGAIN}"
        parts = [config] if isinstance(config, dict) else []
        for part in parts:
            parts += [value for value in part.values() if isinstance(value, dict)]
        counted = any("merge_size" in part for part in parts)  # Qwen-VL: a size is a number of pixels, not an edge
        area = dict.fromkeys(("shortest_edge", "min_pixels"), _EDGE**2 if counted else _EDGE)
        for key, most in (_MOST_OF_PICTURES | area).items():
            largest = max((part[key] for part in parts if isinstance(part.get(key), int)), default=0)
            if largest > most:
                yield f"{key} in {file.name} is {largest:,}, more than pictures can have ({most:,}); correct it"


def adapter_config(folder: Path) -> dict[str, Any]:
    """The `adapter_config.json` of a folder.

    Raises:
        CheckpointError: it cannot be read.
    """
    with boundary(CheckpointError, f"the adapter {folder} cannot be read"):
        return dict(json.loads((folder / ADAPTER).read_text(encoding="utf-8")))


def base_of(folder: Path) -> str:
    """The model that an adapter's folder belongs to: a folder inside of it, a full path, a package or a hub id.

    Raises:
        CheckpointError: the folder does not say, names a path that leads out of it, or its models lead back to it.
    """
    found, passed = _named_base(folder), {folder.resolve()}
    place = Path(found)
    while (place / ADAPTER).is_file():
        if place.resolve() in passed:
            raise CheckpointError(
                f"{folder / ADAPTER}: base_model_name_or_path {found[:200]!r} leads back to an adapter itself; write "
                "the full path or the hub id of its model there"
            )
        passed.add(place.resolve())
        place = Path(_named_base(place))
    return found


def _named_base(folder: Path) -> str:
    origin = adapter_config(folder).get("base_model_name_or_path")
    if not origin:
        raise CheckpointError(f"{folder / ADAPTER} does not say which model it belongs to (base_model_name_or_path)")
    if ".." in Path(str(origin)).parts:
        raise CheckpointError(
            f"{folder / ADAPTER}: base_model_name_or_path {str(origin)[:200]!r} leads out of the folder; write the "
            "full path or the hub id of the model there"
        )
    inside = folder / str(origin)
    return str(inside if inside.is_dir() else origin)


def check_data_set(error: type[GuerdonError], what: str, name: str) -> None:
    """Make sure that a folder, the cache of `datasets` or the hub has a data set.

    Args:
        error: is raised where none has.
        what: it is, for the message.
        name: a file, a folder or a hub id.

    Raises:
        GuerdonError: of the kind `error`: there is neither a folder of that name nor such a data set on the hub.
    """

    def there() -> bool:
        from datasets import config
        from datasets.naming import camelcase_to_snakecase
        from huggingface_hub import repo_exists

        owner, slash, short = name.rpartition("/")
        cached = Path(config.HF_DATASETS_CACHE) / f"{owner}{slash and '___'}{camelcase_to_snakecase(short)}"
        return any(cached.glob("*/*/*")) or repo_exists(name, repo_type="dataset")

    _check(error, f"{what} {name!r} cannot be read: there is no such file or folder", name, "data set", there)


def _check(error: type[GuerdonError], nowhere: str, name: str, kind: str, there: Callable[[], bool]) -> None:
    if Path(name).exists():
        return
    if _no_hub_id(name):
        raise error(f"{nowhere}; check the path")
    with boundary(error, f"{nowhere} here, and the hub does not have it or cannot be reached"):
        found = there()
    if not found:
        raise error(f"{nowhere} here, and the hub has no {kind} of that name; check the path")


@contextmanager
def reading(what: str, path: str) -> Iterator[None]:
    """Attribute errors of transformers to a folder or hub id, and explain why code in the folder is not run.

    Where transformers has the class of the model itself, code in the folder (`auto_map`) is ignored.

    Raises:
        CheckpointError: for any other error.
    """
    try:
        with quietly(), boundary(CheckpointError, f"{what} {path!r} cannot be read"):
            yield
    except CheckpointError as error:
        if error.__cause__ is None:  # not of transformers
            raise
        said = str(error)
        if "trust_remote_code" in said:
            raise CheckpointError(
                f"{what} {path!r} cannot be read: it needs code in its folder (auto_map in its configuration), "
                "and guerdon does not run code of a model's folder; take a version of transformers that has this "
                "kind of model, or serve it in a process of its own and name the address"
            ) from error
        if "ignore_mismatched_sizes" in said:
            said = f"{what} {path!r} cannot be read: its weights have other shapes than {CONFIG} says"
        raise CheckpointError(f"{said.rstrip('.')}; {AGAIN}") from error


@contextmanager
def quietly() -> Iterator[None]:
    """Without progress bars of transformers, and without its warnings about what is checked here anyway."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft calls transformers by older names
            warnings.filterwarnings("ignore", category=UserWarning, module="peft")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def use_token() -> None:
    """Give Hugging Face's client a token under the name that it reads: one of the environment, else of `./.env`.

    A token with characters that are not allowed in a header is not used; this is logged.
    """
    given, names = dict(os.environ), ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_AUTH_TOKEN"]
    try:
        if not any(given.get(name) for name in names) and Path(".env").is_file():
            from guerdon.config.loading import dot_env

            given, names = dot_env(), ["HF_AUTH_TOKEN", "HF_TOKEN"]
        name = next((name for name in names if given.get(name)), None)
        if name is not None:
            os.environ["HF_TOKEN"] = clean_key(given[name], name)
    except ConfigError as error:  # `.env` cannot be read; most commands need no token
        log_line(f"{error}; no token of the hub is taken from it")
    except ValueError as error:
        log_line(f"{error}; requests to the hub are sent without a token")
        for name in names:
            os.environ.pop(name, None)
