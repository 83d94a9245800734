"""Configuration: YAML, dotted overrides, `${references}`, pydantic models, errors that name file and line.

Generic code without any setting by name (those are in `guerdon.settings`) and without torch. `config_tree` reads,
overrides and merges, `config_schema` and `config_problems` explain errors; import their public names from here.

`${section.key}` stands for another value of the file, or for its default. `~/` at the beginning of a value is the home
folder.

    study = load(Study, Path("studies/demo.yaml"), ["runner.seed=3"])
    atomic.write_text(run / "config.yaml", to_yaml(study))
    resolve_refs(Tree({"dir": "runs", "log": "${dir}/log"})).data["log"]      # 'runs/log'
"""

from __future__ import annotations

import copy
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from guerdon.config.problems import MOST_LINES, is_secret, problems, unknown_keys
from guerdon.config.schema import Spot, child, field_of, leaves, models_in, names_of, without_nulls
from guerdon.config.tree import (
    DEEPEST,
    LONGEST_KEY,
    CoreLoader,
    Tree,
    apply_overrides,
    describe,
    merge,
    parse_yaml,
    read_yaml,
)
from guerdon.errors import ConfigError
from guerdon.secrets import clean_key, hide, remember

__all__ = [
    "ABSENT",
    "Tree",
    "api_key",
    "apply_overrides",
    "differences",
    "dot_env",
    "holds",
    "load",
    "merge",
    "read_yaml",
    "resolve_refs",
    "to_plain",
    "to_yaml",
    "usable_value",
    "validate",
]

M = TypeVar("M", bound=BaseModel)
_PATHS = re.compile(
    r"(?:^|_)(?:paths?|dir|root|folder|files?|checkpoint|adapter|bench|table|samples|pairs|questions)$|^experiment_name$"
)
"""Keys whose values are paths."""
_VARIABLE = r"(?:\$\w*[A-Za-z_]\w*|\$\{\w+\}|%[A-Za-z_]\w*%)"
_UNEXPANDED = re.compile(rf"(?:~[\w.-]+|{_VARIABLE})[/\\]\S*$")  # in any key: the whole value looks like a path
_UNEXPANDED_INSIDE = re.compile(rf"^~[\w.+-]*(?:/|$)|(?:^|/)~(?:/|$)|{_VARIABLE}")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_TOKEN = re.compile(r"\$\$\{|\$\{([^${}]*)(\}?)")
_MOST_COPIED = 1_000_000  # values and characters; references that stand for more are a mistake or an attack
_MOST_COMPARED = 2000  # keys of a file that a reference which names nothing is compared with
_DEEPEST_REFERENCE = 100  # a reference to a reference, and so on, and what is around each


def dot_env(path: Path = Path(".env")) -> dict[str, str]:
    """The `NAME=value` lines of a file with secrets, nothing where there is no such file.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8 text.
    """
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace") if path.is_file() else ""
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if "\0" in text:
        raise ConfigError(f"{path}: not UTF-8 text; save it again as UTF-8")
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            found[name.strip().removeprefix("export ")] = _unquoted(value.strip())
    return found


def api_key(variable: str, *, given: str | None = None, required: bool = True) -> str | None:
    """A key from the environment or from `.env` in the working directory; None where neither has it.

    Args:
        variable: its name there.
        given: the key itself, if it is known.
        required: whether there has to be one.

    Raises:
        ConfigError: it is required and missing, or has a line break or a character that is not printable ASCII.
    """
    known = os.environ.get(variable) if given is None else given
    try:
        key = clean_key(known or "", variable)
        if given is None and not key:
            key = clean_key(dot_env().get(variable, ""), variable)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not key and required:
        empty = "" if known is None else " (it is empty)"
        raise ConfigError(f"{variable} is not set{empty}: export it, or write {variable}=... into a file .env here")
    return key or None


def _unquoted(value: str) -> str:
    """A value of a `.env` file without its quotes and the comment behind it."""
    quoted = re.fullmatch(r"""(["'])(.*?)\1\s*(?:#.*)?""", value)
    if quoted:
        return quoted[2]
    without_comment = re.split(r"\s+#", value)[0]
    return without_comment.strip("\"'")


def validate(model: type[M], tree: Tree | Mapping[str, Any], *, origin: str) -> M:
    """Check a tree against a pydantic model; `~/` at the beginning of a value is expanded (`usable_value`).

    Args:
        model: what the configuration must look like.
        tree: the values; a `Tree` lets errors name file and line.
        origin: name of a place that is not in the tree, such as the file's name.

    Raises:
        ConfigError: one line per problem: place, dotted path, value, what is allowed.
    """
    given = tree if isinstance(tree, Tree) else Tree(dict(tree))
    remember(given.data)
    known = Tree(_usable(given.data, "", given, origin), given.places)
    try:
        return model.model_validate(known.data)
    except ValidationError as exc:
        found = problems(model, known, exc, origin)
        lines = [str(one) for one in found]
        if len(lines) > 1:
            count = str(len(lines)) if len(lines) <= MOST_LINES else "many"
            lines.insert(0, f"{origin}: {count} problems")
        raise ConfigError("\n  ".join(lines), key=found[0].key) from exc


def _usable(value: Any, path: str, tree: Tree, origin: str) -> Any:
    """`usable_value` of every value below a path."""
    if isinstance(value, dict):
        above = f"{path}." if path else ""
        return {key: _usable(inner, f"{above}{key}", tree, origin) for key, inner in value.items()}
    if isinstance(value, list):
        return [_usable(inner, f"{path}.{i}", tree, origin) for i, inner in enumerate(value)]
    names = [part for part in path.split(".") if not part.isdecimal()]
    key = names[-1] if names else ""
    try:
        return usable_value(value, path=_PATHS.search(key) is not None)
    except ValueError as error:
        shown = "not shown here" if is_secret(key) else describe(value)
        raise ConfigError(f"{tree.place(path) or origin}: {path} is {shown}: {error}", key=path) from error


def usable_value(value: Any, *, path: bool) -> Any:
    """A value of a file or of the command line, with `~/` at its beginning expanded to the home folder.

    Args:
        value: a scalar.
        path: it is the path of a file or a folder.

    Raises:
        ValueError: a number of more than 64 bits, text with NUL or lone surrogates, or a path with `~` that is not
            expanded or with the name of a variable, which would become a folder of that name.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError("whole numbers must fit into 64 bits")
    if not isinstance(value, str):
        return value
    if odd := _NO_TEXT.search(value):
        raise ValueError(f"{odd[0]!a} is not allowed in files and names; remove it")
    if value.startswith("~/") or (path and value == "~"):
        whole = os.path.expanduser(value)
        if not os.environ.get("HOME", "/") or not os.path.isabs(whole):
            raise ValueError("this user has no home folder: set HOME, or write the full path")
        return whole
    if _UNEXPANDED.match(value) or (path and "://" not in value and _UNEXPANDED_INSIDE.search(value)):
        raise ValueError("only ~/ is expanded, not ~user and not variables: write the full path")
    return value


def load(model: type[M], path: Path | str | None, overrides: Sequence[str] = (), *, origin: str | None = None) -> M:
    """Read a file (or start from nothing), apply overrides, resolve references, validate.

    A model may have `other_names`, which changes tree and overrides to the names of its keys.

    Raises:
        ConfigError: any of these steps found something wrong.
    """
    tree = Tree() if path is None else read_yaml(path)
    other_names = getattr(model, "other_names", None)
    if other_names is not None:
        tree, overrides = other_names(tree, overrides)
    tree = resolve_refs(apply_overrides(tree, overrides), model)
    place = "command line" if path is None else str(path)
    return validate(model, tree, origin=origin or place)


def to_plain(config: BaseModel) -> dict[str, Any]:
    """The resolved configuration as plain JSON values, defaults written out.

    A default that the model's own checks refuse when it is spelled out (a knob that does nothing in this
    setting) is left out, so that `validate(type(config), to_plain(config), ...)` gives the same back.

    Raises:
        ConfigError: the configuration cannot be read back from plain values.
    """
    for plain in (_plain(config, full=True), _plain(config, full=False)):
        if _reads_as(plain, config):
            return plain
    raise ConfigError(f"{type(config).__name__} does not survive being written and read back: {config!r}")


def to_yaml(config: BaseModel) -> str:
    """`to_plain` as YAML that `load` reads back, without secrets; a literal `${` is written `$${`."""
    text: str = yaml.dump(
        _escape_refs(hide(to_plain(config))),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=110,
        indent=2,
    )
    return hide(text)


_WRITTEN_BEFORE = (("policy", "type", "mlp"),)
"""Section, key and value that earlier files have where it was not given."""
ABSENT = "not given"
"""What `differences` says of a key that only the other side has."""
_FREE = ("max_usd", "cpu_offload", "collective_timeout")


def holds(path: Path, config: BaseModel) -> bool:
    """Whether a file that `to_yaml` wrote has the keys and values of this configuration, in any order.

    Keys in `_FREE` may differ: they change while the rest goes on.

    Raises:
        ConfigError: the file cannot be read.
    """
    return not differences(path, config)


def differences(path: Path, config: BaseModel) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which a file that `to_yaml` wrote differs from a configuration, but for those in `_FREE`.

    Args:
        path: of the file.
        config: the configuration.

    Returns:
        The value in the file and the value here, without secrets, `ABSENT` where there is none.

    Raises:
        ConfigError: the file cannot be read.
    """
    written = read_yaml(path).data
    here = parse_yaml(to_yaml(config), "")[0]  # without its secrets, as the file
    for section, key, default in _WRITTEN_BEFORE:
        old, new = ({} if not isinstance(one.get(section), dict) else one[section] for one in (written, here))
        if key not in new and old.get(key) == default:
            del old[key]
    return _differing(_without_free(written), _without_free(here), "")


def _differing(one: Any, other: Any, path: str) -> dict[str, tuple[Any, Any]]:
    """The dotted keys below a path in which two plain values differ."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return {} if one == other else {path: (one, other)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in [*one, *(key for key in other if key not in one)]:
        below = f"{path}.{key}" if path else str(key)
        found |= _differing(one.get(key, ABSENT), other.get(key, ABSENT), below)
    return found


def _without_free(value: Any) -> Any:
    """Plain values without the keys in `_FREE`."""
    if isinstance(value, list):
        return [_without_free(child) for child in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_free(child) for key, child in value.items() if key not in _FREE}


def _plain(config: BaseModel, *, full: bool) -> dict[str, Any]:
    """Plain values of a model: those that were given, and with `full` the defaults it lets one spell out."""
    given = config.model_fields_set
    quiet: frozenset[str] = getattr(config, "left_out", frozenset()) - given
    key_of: dict[str, str] = {}  # of the keys in the order of the file
    for name, field in _in_order(type(config)).items():
        if name not in quiet:
            key_of[name] = names_of(name, field)[0]
    whole = {key: _plain_value(getattr(config, name), full=full) for name, key in key_of.items()}
    plain = {key: whole[key] for name, key in key_of.items() if name in given}
    if not _reads_as(plain, config):  # a check of this model looks at what its sections were given
        whole = {key: _plain_value(getattr(config, name), full=False) for name, key in key_of.items()}
        plain = {key: whole[key] for name, key in key_of.items() if name in given}
    if not full:
        return plain
    if _reads_as(whole, config):
        return whole
    return _with_defaults(config, plain, whole)


def _with_defaults(config: BaseModel, plain: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """Plain values of a model with each default that it lets one spell out beside the others, in the order of `whole`.

    Args:
        config: the model.
        plain: of what was given.
        whole: with all defaults.
    """
    found = plain
    for key in [key for key in whole if key not in plain]:
        more = {**found, key: whole[key]}
        if _reads_as(more, config):
            found = more
    return {key: found[key] for key in whole if key in found}


def _in_order(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model, those in its `key_order` in that order."""
    fields = model.model_fields
    order = getattr(model, "key_order", ())
    first = {name: fields[name] for name in order if name in fields}
    return first | fields


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


def resolve_refs(tree: Tree, defaults: type[BaseModel] | None = None) -> Tree:
    """The tree with every `${a.b}` replaced by the value at `a.b`.

    A string that is nothing but a reference takes the value with its type, maps and lists included; inside a
    longer string the value must be a scalar. `$${` stands for a literal `${`. A key missing from the tree
    takes the default of the model, where it has one. Before, keys that `null` removes are left out (`without_nulls`),
    and values implied by others (`implied`) are filled in.

    Raises:
        ConfigError: an unknown key, a cycle (with its chain), an unclosed brace; with the place.
    """
    implied = getattr(defaults, "implied", None)
    data = tree.data
    if defaults is not None:
        data = without_nulls((defaults,), data)
    if implied is not None:
        data = implied(data)
    known = Tree(data, tree.places)
    return Tree(_Resolver(known, defaults).whole(), tree.places)


def _escape_refs(value: Any) -> Any:
    """The same plain value with `${` written `$${`, so that `resolve_refs` gives it back unchanged."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, dict):
        return {key: _escape_refs(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_escape_refs(child) for child in value]
    return value


class _Resolver:
    def __init__(self, tree: Tree, defaults: type[BaseModel] | None) -> None:
        self.tree = tree
        self.defaults = defaults
        self.stack: list[str] = []
        self.known: dict[str, Any] = {}
        self.copies = 0  # values and characters that all references stand for

    def whole(self) -> dict[str, Any]:
        return {key: copy.deepcopy(self.at(value, key)) for key, value in self.tree.data.items()}

    def at(self, value: Any, path: str) -> Any:
        """The resolved value at a path, not to be changed."""
        if path in self.known:
            return self.known[path]
        if path in self.stack:
            chain = " -> ".join([*self.stack[self.stack.index(path) :], path])
            self.fail(path, f"references form a circle: {chain}")
        if len(self.stack) > _DEEPEST_REFERENCE:
            self.fail(path, f"more than {_DEEPEST_REFERENCE} references, maps and lists lead to it")
        self.stack.append(path)
        try:
            if isinstance(value, str):
                resolved: Any = self.text(value, path)
            elif isinstance(value, dict):
                resolved = {key: self.at(child, f"{path}.{key}") for key, child in value.items()}
            elif isinstance(value, list):
                resolved = [self.at(child, f"{path}.{i}") for i, child in enumerate(value)]
            else:
                resolved = value
        finally:
            self.stack.pop()
        self.known[path] = resolved
        return resolved

    def copied(self, value: Any, path: str) -> Any:
        """A value that a reference stands for, which is counted before it is copied."""
        size, depth = _size(value)
        self.copies += size
        if depth > DEEPEST:
            self.fail(path, f"references make more than {DEEPEST} maps and lists inside each other")
        if self.copies > _MOST_COPIED:
            self.fail(path, f"the references stand for more than {_MOST_COPIED:,} values and characters; use fewer")
        return copy.deepcopy(value)

    def text(self, text: str, path: str) -> Any:
        whole = _TOKEN.fullmatch(text)
        if whole and whole[0] != "$${":
            return self.copied(self.target(self.name(whole, path), path), path)

        def insert(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name = self.name(match, path)
            value = self.copied(self.target(name, path), path)
            if value is None or isinstance(value, dict | list):
                self.fail(path, f"${{{name}}} is {describe(value)}, which cannot stand inside a string")
            if isinstance(value, int) and value.bit_length() > 64:
                self.fail(path, f"${{{name}}} is {describe(value)}, and whole numbers must fit into 64 bits")
            if isinstance(value, bool):
                return str(value).lower()
            return str(value)

        return _TOKEN.sub(insert, text)

    def name(self, match: re.Match[str], path: str) -> str:
        name = (match[1] or "").strip()
        if not match[2] or not name or not all(name.split(".")):
            self.fail(path, f"{match[0]!r} is not a reference; write ${{section.key}}, or $${{ for a literal ${{")
        return name

    def target(self, name: str, path: str) -> Any:
        """The value that a reference names: from the tree, else a default of the model."""
        value: Any = self.tree.data
        parts = name.split(".")
        for depth, part in enumerate(parts):
            if isinstance(value, str):
                value = self.at(value, ".".join(parts[:depth]))
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                return self.fallback(name, parts, path)
        return self.at(value, name)

    def fallback(self, name: str, parts: list[str], path: str) -> Any:
        found, value = _default_at(self.defaults, parts, self.tree.data)
        if found:
            return self.at(value, name)
        keys = {path for path in leaves((self.defaults,)) if "<" not in path}
        known = sorted({*islice(_paths(self.tree.data), _MOST_COMPARED), *keys} - {name})
        close = difflib.get_close_matches(name[:LONGEST_KEY], known, n=1, cutoff=0.6)
        hint = "it is neither in the file nor has it a default"
        if close:
            hint = f"did you mean ${{{close[0]}}}?"
        elif name in os.environ:
            hint = "it is a variable of the environment, and these are not expanded: write its value"
        self.fail(path, f"${{{name}}} names nothing; {hint}")

    def fail(self, path: str, what: str) -> Any:
        if self.defaults is not None:
            unknown = unknown_keys(self.defaults, self.tree, "the configuration")
            if unknown:  # a misspelled key is what the reference does not find
                raise ConfigError("\n  ".join(map(str, unknown)), key=unknown[0].key)
        place = self.tree.place(path)
        where = f"{place}: {path}" if place else path
        raise ConfigError(f"{where}: {what}", key=path)


def _size(value: Any) -> tuple[int, int]:
    """Values and characters of a plain value, and how deep it is: maps and lists inside each other."""
    size, depth, level = 0, -1, [value]
    while level:
        size += len(level) + sum(len(one) for one in level if isinstance(one, str))
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        depth, level = depth + 1, [one for part in inside for one in part]
    return size, depth


def _default_at(model: type[BaseModel] | None, parts: list[str], data: Any) -> tuple[bool, Any]:
    """The default of the model at a path, following the tree as far as it goes."""
    spot: Spot = (model,)
    for depth, part in enumerate(parts):
        if isinstance(data, dict) and data.get(part) is not None:
            spot = child(spot, part, data)
            data = data[part]
            continue
        fields = [field_of(candidate, part) for candidate in models_in(spot, data)]
        field = next(filter(None, fields), None)
        if field is None or field.is_required() or field.default_factory_takes_validated_data:
            return False, None
        value = to_jsonable_python(field.get_default(call_default_factory=True), by_alias=True)
        for rest in parts[depth + 1 :]:
            if not isinstance(value, dict) or rest not in value:
                return False, None
            value = value[rest]
        return True, value
    return False, None


def _paths(data: Any, path: str = "") -> Iterator[str]:
    """Every dotted path of a tree."""
    if path:
        yield path
    if isinstance(data, list):
        data = dict(enumerate(data))
    if not isinstance(data, dict):
        return
    above = f"{path}." if path else ""
    for key, inner in data.items():
        yield from _paths(inner, f"{above}{key}")
