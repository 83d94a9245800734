"""The base of every settings class: frozen, and unknown keys are refused; unions whose form a name chooses.

`PythonSettings` are those that users write in Python too: what is wrong with them is a `ConfigError`. A key that does
nothing with some values of its neighbours says so itself (`only_with`): what refuses it, the message, docs/knobs.md and
the JSON schema are made from that.

    class ColourSettings(Settings):
        hue: float = 0.5
        mixed: bool = False
        share: float = only_with(0.5, ge=0, le=1, mixed=True, description="of the second colour")

    Shape = Annotated[CircleSettings | SquareSettings, ByName("type", "circle")]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function, tagged_union_schema

from guerdon.config.problems import problems
from guerdon.config.registry import Registry
from guerdon.config.schema import Spot, child, members
from guerdon.config.tree import Tree
from guerdon.errors import ConfigError
from guerdon.secrets import remember


def _yaml(*values: Any) -> str:
    return ", ".join(map(_one_yaml, values))


def _one_yaml(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Unless:
    """For `only_with`: any value but these, or but those of a tuple."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(
            self, "values", values[0] if len(values) == 1 and values[0] and isinstance(values[0], tuple) else values
        )


SET = Unless(None, 0, "", (), {})
"""For `only_with`: given, and neither false, 0 nor empty."""


@dataclass(frozen=True)
class Because:
    """For `only_with`: the wanted values, and the words for the others, with what or `without ...`, `{}` the value."""

    wanted: Any
    words: str


@dataclass(frozen=True)
class OnlyWith:
    """Metadata of a field that does something only with some values of others, its neighbours; see `only_with`."""

    neighbours: Mapping[str, Any]

    def idle(self, section: BaseModel) -> str | None:
        """With what the field does nothing here; None where it does something."""
        for key, wanted in self.neighbours.items():
            value = getattr(section, key)
            if not _fits(value, wanted):
                return wanted.words.format(value) if isinstance(wanted, Because) else _without(key, value)
        return None

    def __str__(self) -> str:
        """The values with which the field does something."""
        return "; ".join(_with(key, wanted) for key, wanted in self.neighbours.items())

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON schema of the field with the key `only_with`."""
        return {**handler(schema), "only_with": str(self)}


_OF_FIELDS = frozenset(
    {
        "description",
        "ge",
        "gt",
        "le",
        "lt",
        "min_length",
        "max_length",
        "pattern",
        "validation_alias",
        "default_factory",
    }
)


def only_with(default: Any = ..., **given: Any) -> Any:
    """A field that does something only with some values of other fields or properties of its section.

    Given where it does nothing, it is refused. `null`, where that is the default, counts as not given.

    Args:
        default: its default value.
        **given: what pydantic's `Field` takes, and neighbours: the value, a tuple of values, `Unless(...)` or `SET`;
            `Because` around it where the message needs other words, as with a property.
    """
    told = {key: value for key, value in given.items() if key in _OF_FIELDS}
    field: FieldInfo = Field(**told) if "default_factory" in told else Field(default, **told)
    field.metadata.append(OnlyWith({key: wanted for key, wanted in given.items() if key not in _OF_FIELDS}))
    return field


class Settings(BaseModel):
    """A frozen pydantic model that refuses unknown keys, NaN, infinities, and `true` for a number (pydantic: 1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    short_form: ClassVar[tuple[type[BaseModel], ...]] = ()
    """Models whose keys may stand directly in this section: a check of the section moves them to where they belong."""

    key_order: ClassVar[tuple[str, ...]] = ()
    """The order in which files have the keys, where it is not that of the fields; other keys may be in it, too."""

    stored: ClassVar[bool] = False
    """Whether files that guerdon writes have all keys of the section: a key with its default counts as not given."""

    left_out: ClassVar[frozenset[str]] = frozenset()
    """Keys that a resolved configuration does not spell out where they are not given."""

    @classmethod
    def implied(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The same values with what they imply without saying it; a root configuration may override this."""
        return given

    def derived(self) -> dict[str, Any]:
        """Values of keys that follow from others, where they are not given."""
        return {}

    @model_validator(mode="after")
    def _refuse_idle_keys(self) -> Self:
        given = self.model_fields_set
        self.__dict__.update({key: value for key, value in self.derived().items() if key not in given})
        idle: dict[str, set[str]] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            said = name in given and not (value == field.default and (self.stored or value is None))
            for rule in field.metadata if said else ():
                if isinstance(rule, OnlyWith) and (why := rule.idle(self)) is not None:
                    idle.setdefault(why, set()).add(name)
        for why, names in idle.items():
            refuse(names, why)
        return self

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for name, value in given.items():
                if not isinstance(value, bool | list | tuple) or name not in cls.model_fields:
                    continue
                if (flag := _flag_for_number(members(cls.model_fields[name].annotation), value)) is not None:
                    raise ConfigError.about(name, f"is {str(flag).lower()}, which is not a number")
        return given


class PythonSettings(Settings):
    """Settings that users write in Python too: there a `ConfigError` says what is wrong, with a suggestion.

    Inside a larger configuration, which is read by `guerdon.config.loading`, nothing is different.
    """

    if not TYPE_CHECKING:  # type checkers see the fields

        def __init__(self, **given: Any) -> None:
            try:
                super().__init__(**given)
            except ValidationError as error:
                remember(given)
                found = problems(type(self), Tree(given), error, type(self).__name__)
                raise ConfigError("; ".join(map(str, found)), key=found[0].key) from error

        __init__.__pydantic_base_init__ = True  # pydantic does not call it for a part of a larger configuration


Seed = Annotated[int, Field(ge=0, lt=2**64)]
"""Seed of random numbers: 64 bits, as in torch; `guerdon.compute.generators.small_seed` makes one of 32 bits."""
Schedule = Literal["constant", "linear", "cosine"]
Bf16 = bool | Literal["auto"]


def _is_device(given: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", given) is None:
        raise ValueError(f"{given!r} is not a device: write auto, cpu, cuda or cuda:1")
    return given


def folder_name(given: str) -> str:
    """The name itself.

    Raises:
        ValueError: as a path it is absolute, leads out of its folder, or has a part without a name.
    """
    parts = given.split("/")
    if {"", ".", ".."} & set(parts) or not given.isprintable():
        raise ValueError(
            f"{given!r} is not the name of a folder inside another one: write names, with / between folders"
        )
    return given


FolderName = Annotated[str, AfterValidator(folder_name)]
"""A name that becomes a folder, or folders in each other: it never leads out of the folder where it is made."""
Device = Annotated[str, AfterValidator(_is_device)]
"""Where a part computes; `guerdon.compute.devices.resolve_device` says which device that is here."""
DEVICE: Any = Field("auto", description="where it computes: auto (a GPU where there is one), cpu, cuda or cuda:1")
GRADIENT_CHECKPOINTING: Any = Field(False, description="recompute activations backwards: less memory, more time")
CPU_OFFLOAD: Any = Field(
    False,
    description="several learners: each keeps its part of the weights, with gradients and moments, in memory of the "
    "CPU, and the optimizer steps there; blocks that compute are on the GPU",
)
OWN_PARAMS = "of a part of your own: arguments of its factory, by name"
COLUMNS = (
    "what columns are for, where their names do not say it: a map {ROLE: NAME} or {ROLE: NAME:CODING}, or the text "
    "ROLE=NAME:CODING,...; docs/reading.md"
)
"""The description of the key `columns` of a section with data of others."""
PARAMS: Any = Field(default_factory=dict, description=OWN_PARAMS)
"""The key of a section with a user's own part."""


class ByName:
    """Annotates a union of settings: the form is the one whose key may have the name that is given.

    Args:
        key: such as `type`; a `Literal` of names in each form, or `str` in the last one, which takes all other names.
        default: the name where none is given.
    """

    def __init__(self, key: str, default: str) -> None:
        self.key, self.default = key, default

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A tagged union whose tags are the first names of the forms."""
        forms = get_args(source)
        tags = {name: names[0] for form in forms for names in [names_in(form, self.key)] for name in names}
        rest = next((form.__name__ for form in forms if not names_in(form, self.key)), None)

        def tag(given: Any) -> Any:
            name = given.get(self.key, self.default) if isinstance(given, dict) else getattr(given, self.key, None)
            return tags.get(str(name), rest or name)

        tag.__name__ = self.key  # for messages
        choices = {(names_in(form, self.key) or (form.__name__,))[0]: handler(form) for form in forms}
        return tagged_union_schema(choices, tag)


class Named:
    """Annotates text: a name of a registry, or a user's own part.

    Args:
        registry: of the names.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Text that the registry knows."""
        return no_info_after_validator_function(self.registry.known, handler(source))


def refuse(idle: set[str], why: str, section: str = "") -> None:
    """Refuse keys that were given and would do nothing.

    Args:
        idle: the keys.
        why: with what they do nothing, or `without ...`.
        section: that they are in, where it is not the one being checked.

    Raises:
        ConfigError: there are some; with the first one.
    """
    if idle:
        keys = [f"{section}.{key}" if section else key for key in sorted(idle)]
        joint = "" if why.startswith("without") else "with "
        raise ConfigError(f"{', '.join(keys)} would do nothing {joint}{why}; remove it", key=keys[0])


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a neighbour has one of the wanted values."""
    if isinstance(wanted, Because):
        return _fits(value, wanted.wanted)
    if isinstance(wanted, Unless):
        return value not in wanted.values
    return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)


def _without(key: str, value: Any) -> str:
    """With what value of a neighbour a key does nothing, for a message."""
    if value is None or value in ("", (), {}):
        return f"without {key}"
    return f"{key}: {_yaml(value)}" if isinstance(value, bool) else f"{key} {value}"


def _with(key: str, wanted: Any) -> str:
    """With which values of a neighbour a key does something, for a table."""
    if isinstance(wanted, Because):
        words = wanted.words
        plain = words.removeprefix("without ") if words.startswith("without ") else f"not {words}"
        return plain if isinstance(wanted.wanted, bool) else _with(key, wanted.wanted)
    if isinstance(wanted, Unless):
        return key if wanted == SET else f"{key} not {_yaml(*wanted.values)}"
    return f"{key} {_yaml(*wanted) if isinstance(wanted, tuple) else _yaml(wanted)}"


def imply(found: dict[str, Any], key: str, value: str, by: str) -> None:
    """Set a key to the value that another one means.

    Args:
        found: the keys of a section; changed.
        key, value: what is meant.
        by: what means it, for the message.

    Raises:
        ConfigError: the key has another value.
    """
    if found.get(key, value) != value:
        raise ConfigError.about(key, f"{found[key]} contradicts {by}, which means {key}: {value}; remove one of them")
    found[key] = value


def check_multiple(batch_size: int, micro_batch_size: int | None, key: str = "batch_size") -> None:
    """Refuse a batch that micro-batches do not divide.

    Raises:
        ConfigError: with `key`, what the batch is called.
    """
    if micro_batch_size is not None and batch_size % micro_batch_size:
        raise ConfigError.about(key, f"({batch_size}) must be a multiple of micro_batch_size ({micro_batch_size})")


def as_tuple(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """One path or several as a tuple; empty for none."""
    return (given,) if isinstance(given, str) else given or ()


def names_in(form: type[BaseModel], key: str) -> tuple[str, ...]:
    """The names that a form's key may have; none where it is any text."""
    annotation = form.model_fields[key].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _flag_for_number(spot: Spot, given: Any) -> bool | None:
    """The first bool in place of a number, in the value or in its items; None if there is none."""
    if isinstance(given, bool):
        return given if spot and set(spot) <= {int, float, NoneType} else None
    items = given if isinstance(given, list | tuple) else ()
    found = (_flag_for_number(child(spot, i), item) for i, item in enumerate(items))
    return next((flag for flag in found if flag is not None), None)
