"""A configuration before it is checked: nested plain values, and the file and line that each came from.

Reads YAML, applies dotted overrides, and merges.

YAML here is the 1.2 core schema, which surprises less than PyYAML's 1.1: only true and false are booleans
(`on`, `off`, `yes`, `no` are words), `1e-4` and `1_000` are numbers, `010`, `1:30`, `2024-01-01` are words.

    tree = apply_overrides(read_yaml("studies/demo.yaml"), ["runner.seed=3"])
    tree.data["runner"]["seed"], tree.place("runner.seed")      # 3, "override runner.seed=3"
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from guerdon.errors import ConfigError

_MAX_NODES = 200_000  # a file that expands to more through its aliases is a mistake or an attack
_MAX_CHARACTERS = 10_000_000  # of all texts; the same
LONGEST_KEY = 255  # characters; many become the name of a file
_LONGEST_NUMBER = 1024  # bits
DEEPEST = 50  # maps and lists inside each other
_MERGE_TAG = "tag:yaml.org,2002:merge"
_NULLS = ("null", "Null", "NULL", "~")


@dataclass(frozen=True)
class Tree:
    """Nested dicts, lists and scalars, with a side table of where they came from.

    Attributes:
        data: the values.
        places: dotted path to `file:line`, or to the override that set it.
    """

    data: dict[str, Any] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    def place(self, path: str) -> str | None:
        """Where the value at a dotted path was written: itself, something inside it, or what is around it."""
        if path and path not in self.places:
            inside = (place for key, place in self.places.items() if key.startswith(path + "."))
            if found := next(inside, None):
                return found
        while path:
            if path in self.places:
                return self.places[path]
            path = path.rpartition(".")[0]
        return None


class CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2."""


CoreLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F_]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("merge", r"<<", "<"),
):
    CoreLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(f"^(?:{_pattern})$"),
        [*_first, *([""] if _tag == "null" else [])],
    )


class _Reader:
    """One document turned into plain values, noting the line of each."""

    def __init__(self, loader: CoreLoader, name: str) -> None:
        self.loader = loader
        self.name = name
        self.places: dict[str, str] = {}
        self.open: list[int] = []
        self.count = self.characters = 0

    def place(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"

    def value(self, node: yaml.Node, path: str) -> Any:
        self.count += 1
        if id(node) in self.open:
            raise ConfigError(f"{self.place(node)}: an alias refers to the section that contains it", key=path or None)
        if self.count > _MAX_NODES:
            raise ConfigError(f"{self.name}: aliases expand to more than {_MAX_NODES} values")
        if path:
            self.places.setdefault(path, self.place(node))
        if isinstance(node, yaml.ScalarNode):
            self.characters += len(node.value)
            if self.characters > _MAX_CHARACTERS:
                raise ConfigError(f"{self.name}: its texts have more than {_MAX_CHARACTERS} characters")
            return self.loader.construct_object(node)
        self.open.append(id(node))
        if len(self.open) > DEEPEST:
            raise ConfigError(f"{self.place(node)}: more than {DEEPEST} maps and lists inside each other")
        try:
            if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
                raise ConfigError(
                    f"{self.place(node)}: the tag {node.tag} is not allowed in a configuration", key=path or None
                )
            if isinstance(node, yaml.SequenceNode):
                return [self.value(child, f"{path}.{i}" if path else str(i)) for i, child in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self.mapping(node, path)
        finally:
            self.open.pop()

    def mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        own: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        lines: dict[str, int] = {}
        merges = []
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE_TAG:
                merges.append(value_node)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(
                    f"{self.place(key_node)}: a key must be a word, not a list or a map", key=path or None
                )
            key = str(key_node.value)
            if len(key) > LONGEST_KEY:
                raise ConfigError(f"{self.place(key_node)}: {describe(key)} is not a key: keys are short words")
            if node.flow_style and ":" in key and not (key_node.style or value_node.value):
                right = key.replace(":", ": ", 1)
                raise ConfigError(
                    f"{self.place(key_node)}: {describe(key)} has no value; a space is missing: {{{right}}}"
                )
            here = f"{path}.{key}" if path else key
            if key in own:
                raise ConfigError(
                    f"{self.place(key_node)}: {here} is given twice (first on line {lines[key]}); keep one", key=here
                )
            lines[key] = key_node.start_mark.line + 1
            self.places[here] = self.place(key_node)
            own[key] = self.value(value_node, here)
        for merge_node in merges:
            maps = merge_node.value if isinstance(merge_node, yaml.SequenceNode) else [merge_node]
            for one in maps:
                inherited = self.merged(one, path) | inherited
        return inherited | own

    def merged(self, node: yaml.Node, path: str) -> dict[str, Any]:
        found = self.value(node, path)
        if not isinstance(found, dict):
            raise ConfigError(f"{self.place(node)}: << needs a map to merge in", key=path or None)
        return found


def parse_yaml(text: str, name: str) -> tuple[Any, dict[str, str]]:
    """One YAML document as plain values, with the place of each dotted path.

    Raises:
        ConfigError: not YAML, a duplicate key, a tag, more than one document; with `name:line`.
    """
    loader: CoreLoader | None = None
    try:
        loader = CoreLoader(text)
        node = loader.get_single_node()
        reader = _Reader(loader, name)
        value = None if node is None else reader.value(node, "")
        return value, reader.places
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        place = name
        if mark:
            place = f"{name}:{mark.line + 1}"
        raise ConfigError(f"{place}: not valid YAML: {exc.problem or exc.context}") from exc
    except (yaml.YAMLError, ValueError) as exc:
        if isinstance(exc, ConfigError):
            raise
        raise ConfigError(f"{name}: not valid YAML: {' '.join(str(exc).split())}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{name}: nested too deeply") from exc
    finally:
        if loader is not None:
            loader.dispose()


def read_yaml(path: Path | str) -> Tree:
    """Read a configuration file.

    Raises:
        ConfigError: the file is missing or empty, is not UTF-8 YAML, repeats a key, or is not a map at its top.
    """
    file = str(path) if str(path).isprintable() else repr(str(path))
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError as exc:
        raise ConfigError(f"{file}: there is no such file; is the path right?") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file}: not UTF-8 text ({exc.reason} at byte {exc.start}); is it a YAML file?") from exc
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be read: {exc.strerror}") from exc
    data, places = parse_yaml(text, file)
    if data is None or data == {}:
        raise ConfigError(f"{file}: the file is empty: write at least one section (`key: value`)")
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: a configuration is a map of sections (`key: value`), not {describe(data)}")
    return Tree(data, places)


def apply_overrides(tree: Tree, overrides: Sequence[str]) -> Tree:
    """The tree with `a.b.c=VALUE` applied in order.

    VALUE is YAML, and `null` removes a key whose field has no null (`config_schema.without_nulls`); missing maps are
    created; a number in the path (`a.0.b`) indexes a list that is there.

    Raises:
        ConfigError: the text has no `=` or an empty part, VALUE is not YAML, the path runs through a scalar.
    """
    data = copy.deepcopy(tree.data)
    places = dict(tree.places)
    for text in overrides:
        path, equals, value_text = text.partition("=")
        path = path.strip()
        parts = path.split(".")
        if len(parts) > DEEPEST or len(max(parts, key=len)) > LONGEST_KEY:
            raise ConfigError(f"override {describe(text)}: {describe(path)} is not a key: write section.key=value")
        if not equals or not all(parts) or any(part != part.strip() for part in parts):
            raise ConfigError(f"override {text!r}: write section.key=value, for example runner.seed=3")
        _put(data, parts, _override_value(value_text, text), text)
        for old in [p for p in places if p == path or p.startswith(path + ".")]:
            del places[old]
        places[path] = f"override {text}"
    return Tree(data, places)


def _override_value(value_text: str, text: str) -> Any:
    path = text.partition("=")[0]
    key = path.strip()
    try:
        value, _ = parse_yaml(value_text, f"override {text!r}")
    except ConfigError as error:
        error.key = key if error.key is None else f"{key}.{error.key}"
        raise
    if value is None and value_text.strip() not in _NULLS:
        raise ConfigError(
            f"override {text!r}: no value; write {path}=null for none, or quote it: {path}=\"'...'\"", key=key
        )
    return value


def _put(data: dict[str, Any], parts: list[str], value: Any, text: str) -> None:
    """Set one value in place."""
    node: Any = data
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        here = ".".join(parts[:depth]) or "the top"
        if isinstance(node, list):
            if not part.isdecimal() or int(part) >= len(node):
                raise ConfigError(
                    f"override {text!r}: {here} is a list of {len(node)}; {part!r} is not an index of it",
                    key=".".join(parts),
                )
            key: Any = int(part)
        elif isinstance(node, dict):
            key = part
        else:
            raise ConfigError(
                f"override {text!r}: {here} is {describe(node)}, so it has no {part!r} inside", key=".".join(parts)
            )
        if last:
            node[key] = value
        else:
            if (isinstance(node, dict) and key not in node) or node[key] is None:
                node[key] = {}
            node = node[key]


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` on top, as new values: maps merge key by key, everything else is replaced."""
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def describe(value: Any) -> str:
    """A value as an error message shows it: short, in words for containers."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:  # Python refuses to write longer ones
        return f"a whole number of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
