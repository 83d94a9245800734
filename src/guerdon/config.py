"""Configuration: YAML, dotted overrides, `${references}`, pydantic models, errors that name file and line.

Generic machinery: it knows no setting by name (those live in `guerdon.settings`) and imports no torch. Its
parts are `config_tree` (reading, overriding, merging), `config_refs`, `config_schema` and `config_problems`;
import their public names from here.

    study = load(Study, Path("studies/demo.yaml"), ["runner.seed=3"])
    atomic.write_text(run / "config.yaml", to_yaml(study))
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from guerdon.config_problems import problem_lines
from guerdon.config_refs import escape_refs, resolve_refs
from guerdon.config_schema import names_of
from guerdon.config_tree import CoreLoader, Tree, apply_overrides, merge, read_yaml
from guerdon.errors import ConfigError

__all__ = [
    "Tree",
    "apply_overrides",
    "dot_env",
    "load",
    "merge",
    "read_yaml",
    "resolve_refs",
    "to_plain",
    "to_yaml",
    "validate",
]

M = TypeVar("M", bound=BaseModel)


def dot_env(path: Path = Path(".env")) -> dict[str, str]:
    """The `NAME=value` lines of a file with secrets, nothing where there is no such file."""
    if not path.is_file():
        return {}
    pairs = [line.partition("=") for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines()]
    return {name.strip().removeprefix("export "): _unquoted(value.strip()) for name, equals, value in pairs if equals}


def _unquoted(value: str) -> str:
    """A value of a `.env` file without its quotes and the comment behind it."""
    quoted = re.fullmatch(r"""(["'])(.*?)\1\s*(?:#.*)?""", value)
    return quoted[2] if quoted else re.split(r"\s+#", value)[0].strip("\"'")


def validate(model: type[M], tree: Tree | Mapping[str, Any], *, source: str) -> M:
    """Check a tree against a pydantic model.

    Args:
        model: what the configuration must look like.
        tree: the values; a `Tree` lets errors name file and line.
        source: how to call a place that the tree does not know, such as the file's name.

    Raises:
        ConfigError: one line per problem: place, dotted path, what stands there, what is allowed.
    """
    known = tree if isinstance(tree, Tree) else Tree(dict(tree))
    try:
        return model.model_validate(known.data)
    except ValidationError as exc:
        lines = problem_lines(model, known, exc, source)
        head = f"{source}: {len(lines)} problems\n  " if len(lines) > 1 else ""
        raise ConfigError(head + "\n  ".join(lines)) from exc


def load(model: type[M], path: Path | str | None, overrides: Sequence[str] = (), *, source: str | None = None) -> M:
    """Read a file (or start from nothing), apply overrides, resolve references, validate.

    Raises:
        ConfigError: any of these steps found something wrong.
    """
    tree = Tree() if path is None else read_yaml(path)
    tree = resolve_refs(apply_overrides(tree, overrides), model)
    return validate(model, tree, source=source or (str(path) if path is not None else "command line"))


def to_plain(config: BaseModel) -> dict[str, Any]:
    """The resolved configuration as plain JSON values, defaults written out.

    A default that the model's own checks refuse when it is spelled out (a knob that does nothing in this
    setting) is left out, so that `validate(type(config), to_plain(config), ...)` gives the same back.

    Raises:
        ConfigError: the configuration cannot be read back from plain values.
    """
    for plain in (_plain(config, full=True), _plain(config, full=False)):
        if plain is not None and _reads_as(plain, config):
            return plain
    raise ConfigError(f"{type(config).__name__} does not survive being written and read back: {config!r}")


def to_yaml(config: BaseModel) -> str:
    """`to_plain` as YAML that `load` reads back; a literal `${` is written `$${`."""
    return yaml.dump(
        escape_refs(to_plain(config)),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=110,
        indent=2,
    )


def _plain(config: BaseModel, *, full: bool) -> dict[str, Any]:
    """Plain values of a model: those that were given, and with `full` the defaults it lets one spell out."""
    fields = type(config).model_fields
    keys = {name: names_of(name, fields[name])[0] for name in fields}
    given = [name for name in fields if name in config.model_fields_set]
    values = {name: _plain_value(getattr(config, name), full=full) for name in fields}
    plain = {keys[name]: values[name] for name in given}
    if not _reads_as(plain, config):  # a check of this model looks at what its sections were given
        values = {name: _plain_value(getattr(config, name), full=False) for name in fields}
        plain = {keys[name]: values[name] for name in given}
    defaults = [name for name in fields if name not in config.model_fields_set] if full else []
    whole = {keys[name]: values[name] for name in fields}
    if not full or _reads_as(whole, config):
        return whole if full else plain
    for name in defaults:
        more = {**plain, keys[name]: values[name]}
        if _reads_as(more, config):
            plain = more
    return {keys[name]: plain[keys[name]] for name in fields if keys[name] in plain}


def _plain_value(value: Any, *, full: bool) -> Any:
    if isinstance(value, BaseModel):
        return _plain(value, full=full)
    if isinstance(value, Mapping):
        return {to_jsonable_python(key): _plain_value(child, full=full) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(child, full=full) for child in value]
    return to_jsonable_python(value, inf_nan_mode="constants")


def _reads_as(plain: dict[str, Any], config: BaseModel) -> bool:
    try:
        return type(config).model_validate(plain) == config
    except ValidationError:
        return False


class _Dumper(yaml.SafeDumper):
    """Quotes every string that YAML 1.1 or 1.2 would read as something else, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write shared values out each time."""
        return True


def _represent_str(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Double quotes for what does not print: in the other styles PyYAML folds U+0085 and its like away."""
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_str)
_Dumper.yaml_implicit_resolvers = {
    first: [
        *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
        *CoreLoader.yaml_implicit_resolvers.get(first, []),
    ]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *CoreLoader.yaml_implicit_resolvers}
}
