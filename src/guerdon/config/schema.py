"""Walk the annotations of pydantic models: which models, fields and values may stand at a place.

A *spot* is the tuple of annotations that a value may have: one for a
plain field, several for a union.

    spot = child((Study,), "policy", {})                # the members of the policy union
    [model.__name__ for model in models_in(spot, {"type": "mlp"})]                # ['MLPPolicySettings']
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

Spot = tuple[Any, ...]


def members(annotation: Any) -> Spot:
    """The members of a union, through `Annotated` and type aliases; anything else alone."""
    origin = get_origin(annotation)
    if hasattr(annotation, "__value__"):  # a type alias
        return members(annotation.__value__)
    if origin is Annotated:
        return members(get_args(annotation)[0])
    if origin is Union or origin is types.UnionType:
        return tuple(member for part in get_args(annotation) for member in members(part))
    return (annotation,)


def models_in(spot: Spot, value: Any = None) -> list[type[BaseModel]]:
    """The models of a spot; where a `Literal` field tells them apart, the one that fits the value, if one does."""
    found = list(dict.fromkeys(m for m in spot if isinstance(m, type) and issubclass(m, BaseModel)))
    key = discriminator(tuple(found))
    if key is None or not isinstance(value, Mapping) or not isinstance(value.get(key), str):
        return found
    fitting = [model for model in found if value[key] in literals(model).get(key, ())]
    of_any_name = [model for model in found if not literals(model).get(key, ())]
    return fitting or of_any_name or found


@cache
def discriminator(models: tuple[type[BaseModel], ...]) -> str | None:
    """The field that tells models apart: all have it, and no `Literal` name of it is in two of them."""
    if len(models) < 2:
        return None
    choices = [literals(model) for model in models]
    for name in dict.fromkeys(name for known in choices for name in known):
        names = [choice for known in choices for choice in known.get(name, ())]
        distinct = len(set(names)) == len(names)
        if distinct and all(field_of(model, name) is not None for model in models):
            return name
    return None


def mark(model: type[BaseModel], models: Sequence[type[BaseModel]]) -> str:
    """`family: chain`: what a section says to be this model and none of the others; empty where nothing does."""
    key = discriminator(tuple(dict.fromkeys([*models, model])))
    if not key:
        return ""
    names = literals(model).get(key) or ("package.module:factory",)
    return f"{key}: {names[0]}"


def tagged(spot: Spot, tag: Any) -> Spot:
    """The members of a union that carry a tag in a `Literal` field, or the spot itself where none does."""
    models = models_in(spot)
    picked = tuple(model for model in models if any(tag in choices for choices in literals(model).values()))
    called = tuple(model for model in models if model.__name__ == tag)
    return picked or called or spot


def tags(spot: Spot, discriminator: str) -> list[str]:
    """What the discriminator of a union may say."""
    return [str(choice) for model in models_in(spot) for choice in literals(model).get(discriminator, ())]


def names_of(name: str, field: FieldInfo) -> list[str]:
    """How a configuration file may call a field: its aliases, or else its name."""
    alias = field.validation_alias or field.alias
    if alias is None:
        return [name]
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [choice for choice in choices if isinstance(choice, str)] or [name]


def field_of(model: type[BaseModel], key: Any) -> FieldInfo | None:
    """The field that a key sets, by alias or by name; of several in short forms the first."""
    return next(iter(_fields_named(model, key)), None)


def _fields_named(model: type[BaseModel], key: Any) -> list[FieldInfo]:
    """The fields that a key may set: that of the model, else those of its short forms."""
    return _fields(model).get(key, []) if isinstance(key, str) else []


@cache
def _fields(model: type[BaseModel]) -> dict[str, list[FieldInfo]]:
    own: dict[str, list[FieldInfo]] = {}
    for name, field in model.model_fields.items():
        for known in (name, *names_of(name, field)):
            own.setdefault(known, [field])
    short: dict[str, list[FieldInfo]] = {}
    for form in _short_form(model):
        for known, fields in _fields(form).items():
            short[known] = [*short.get(known, []), *fields]
    return short | own


def keys_of(model: type[BaseModel]) -> list[str]:
    """Every key that may stand in a section: those of its fields, then those of its short form."""
    keys = [known for name, field in model.model_fields.items() for known in names_of(name, field)]
    for short in _short_form(model):
        keys += keys_of(short)
    return list(dict.fromkeys(keys))


def _short_form(model: type[BaseModel]) -> tuple[type[BaseModel], ...]:
    """Models whose keys may stand directly in this section; its own checks move them to where they belong."""
    return getattr(model, "short_form", ())


def child(spot: Spot, key: Any, value: Any = None) -> Spot:
    """The spot one key or index further in; empty where there is no such key."""
    inside: list[Any] = []
    for model in models_in(spot, value):
        for field in _fields_named(model, key):
            inside.extend(members(field.annotation))
    for annotation in spot:
        origin = get_origin(annotation)
        args = get_args(annotation)
        if not isinstance(origin, type) or not args:
            continue
        if issubclass(origin, Mapping) and isinstance(key, str):
            inside.extend(members(args[-1]))
        elif issubclass(origin, Sequence | set | frozenset) and isinstance(key, int):
            plain = [arg for arg in args if arg is not Ellipsis]
            inside.extend(members(plain[min(key, len(plain) - 1)]))
    return tuple(inside)


def without_nulls(spot: Spot, value: Any) -> Any:
    """The same value without the keys that are null where their field has no null, nor maps that held nothing else.

    `key: null` removes a key, whether a file, an override or an arm says it: its default, or its absence, is back.
    A key whose field may be null keeps it, and so does a key that no form of its section has.
    """
    if isinstance(value, list | tuple):
        return [without_nulls(child(spot, i), inner) for i, inner in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    kept: dict[str, Any] = {}
    for key, inner in value.items():
        fitting = child(spot, key, value)
        inside = fitting or child(spot, key)
        found = without_nulls(inside, inner)
        emptied = found == {} and inner != {}
        may_be_null = Any in fitting or types.NoneType in fitting
        removed = inner is None and not may_be_null
        if not inside or not (emptied or removed):
            kept[key] = found
    return kept


def leaves(spot: Spot, path: str = "", above: tuple[type, ...] = ()) -> Iterator[str]:
    """The dotted path of every field below a spot; `<name>` is a free key, `<i>` an index."""
    for model in models_in(spot):
        if model in above:
            continue
        for name, field in model.model_fields.items():
            key = names_of(name, field)[0]
            here = f"{path}.{key}" if path else key
            yield here
            yield from leaves(members(field.annotation), here, (*above, model))
        yield from leaves(_short_form(model), path, (*above, model))
    for annotation in spot:
        origin = get_origin(annotation)
        args = get_args(annotation)
        if not isinstance(origin, type) or not args:
            continue
        if issubclass(origin, Mapping):
            yield from leaves(members(args[-1]), f"{path}.<name>", above)
        elif issubclass(origin, list | tuple):
            yield from leaves(members(args[0]), f"{path}.<i>", above)


@cache
def literals(model: type[BaseModel]) -> dict[str, tuple[Any, ...]]:
    """The fields of a model that may only hold one of a few words, by their names in a file."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, field in model.model_fields.items():
        if get_origin(field.annotation) is Literal:
            found |= dict.fromkeys(names_of(name, field), get_args(field.annotation))
    return found
