"""Whether a model or data set of a name exists, checked with a single request.

transformers and datasets try for up to a minute, file by file, where a name is wrong or there is no network. Nothing is
downloaded here, and what is in their caches needs no request.

    check_model(CheckpointError, "the language model", "Qwen/Qwen3-4B")
    check_data_set(DataError, "data.path", "openai/gsm8k")
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from guerdon.errors import GuerdonError, boundary

CONFIG = "config.json"


def check_model(error: type[GuerdonError], what: str, name: str) -> None:
    """Make sure that a folder, the cache or the hub has a model.

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
    if name.count("/") > 1 or name.startswith(("/", ".", "~")):  # no hub id
        raise error(f"{nowhere}; check the path")
    with boundary(error, f"{nowhere} here, and the hub does not have it or cannot be reached"):
        found = there()
    if not found:
        raise error(f"{nowhere} here, and the hub has no {kind} of that name; check the path")
