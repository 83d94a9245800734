"""`${section.key}` inside a configuration: one value written once, used in several places.

Knows trees and the defaults of pydantic models, no setting by name.

    resolve_refs(Tree({"dir": "runs", "log": "${dir}/log"})).data["log"]      # 'runs/log'
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from guerdon.config_problems import unknown_lines
from guerdon.config_schema import Spot, child, field_of, models_in
from guerdon.config_tree import Tree, describe
from guerdon.errors import ConfigError

_TOKEN = re.compile(r"\$\$\{|\$\{([^${}]*)(\}?)")


def resolve_refs(tree: Tree, defaults: type[BaseModel] | None = None) -> Tree:
    """The tree with every `${a.b}` replaced by what stands at `a.b`.

    A string that is nothing but a reference takes the value with its type, maps and lists included; inside a
    longer string the value must be a scalar. `$${` stands for a literal `${`. A key missing from the tree
    takes the default of the model, where it has one. What the model says the values imply is filled in first.

    Raises:
        ConfigError: an unknown key, a cycle (with its chain), an unclosed brace; with the place.
    """
    implied = getattr(defaults, "implied", None)
    known = tree if implied is None else Tree(implied(tree.data), tree.places)
    return Tree(_Resolver(known, defaults).whole(), tree.places)


def escape_refs(value: Any) -> Any:
    """The same plain value with `${` written `$${`, so that `resolve_refs` gives it back unchanged."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, dict):
        return {key: escape_refs(child) for key, child in value.items()}
    return [escape_refs(child) for child in value] if isinstance(value, list) else value


class _Resolver:
    def __init__(self, tree: Tree, defaults: type[BaseModel] | None) -> None:
        self.tree = tree
        self.defaults = defaults
        self.stack: list[str] = []
        self.known: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        return {key: self.at(value, key) for key, value in self.tree.data.items()}

    def at(self, value: Any, path: str) -> Any:
        """The resolved value that stands at a path."""
        if path in self.known:
            return copy.deepcopy(self.known[path])
        if path in self.stack:
            chain = " -> ".join([*self.stack[self.stack.index(path) :], path])
            self.fail(path, f"references go round in a circle: {chain}")
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
        return copy.deepcopy(resolved)

    def text(self, text: str, path: str) -> Any:
        whole = _TOKEN.fullmatch(text)
        if whole and whole[0] != "$${":
            return self.target(self.name(whole, path), path)

        def insert(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name = self.name(match, path)
            value = self.target(name, path)
            if value is None or isinstance(value, dict | list):
                self.fail(path, f"${{{name}}} is {describe(value)}, which cannot stand inside a string")
            return str(value).lower() if isinstance(value, bool) else str(value)

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
        known = sorted({*_paths(self.tree.data), *_default_paths((self.defaults,), self.tree.data)})
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"; did you mean ${{{close[0]}}}?" if close else "; it is neither in the file nor has it a default"
        self.fail(path, f"${{{name}}} names nothing{hint}")

    def fail(self, path: str, what: str) -> Any:
        unknown = unknown_lines(self.defaults, self.tree, "the configuration") if self.defaults is not None else []
        if unknown:  # a misspelled key is what the reference does not find
            raise ConfigError("\n  ".join(unknown))
        place = self.tree.place(path)
        raise ConfigError(f"{place + ': ' if place else ''}{path}: {what}")


def _default_at(model: type[BaseModel] | None, parts: list[str], data: Any) -> tuple[bool, Any]:
    """The default of the model at a path, following the tree as far as it goes."""
    spot: Spot = (model,)
    for depth, part in enumerate(parts):
        inside = data.get(part) if isinstance(data, dict) else None
        if inside is not None:
            spot, data = child(spot, part, data), inside
            continue
        fields = (field_of(candidate, part) for candidate in models_in(spot, data))
        field = next((f for f in fields if f is not None), None)
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
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, inner in items:
        yield from _paths(inner, f"{path}.{key}" if path else str(key))


def _default_paths(spot: Spot, data: Any, path: str = "") -> Iterator[str]:
    """Every dotted path that a default of the models would answer, for suggestions."""
    for model in models_in(spot, data):
        for name, field in model.model_fields.items():
            inside = data.get(name) if isinstance(data, dict) else None
            here = f"{path}.{name}" if path else name
            if inside is not None:
                yield from _default_paths(child(spot, name, data), inside, here)
            elif not field.is_required() and not field.default_factory_takes_validated_data:
                yield from _paths(to_jsonable_python(field.get_default(call_default_factory=True)), here)
