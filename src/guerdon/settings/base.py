"""The base of every settings class: frozen, and unknown keys are refused.

`SpokenSettings` are those that users write in Python too: what is wrong with them is a `ConfigError`.

It does not know any particular setting.

    class ColourSettings(Settings):
        hue: float = 0.5
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from guerdon.config_problems import problem_lines
from guerdon.config_tree import Tree
from guerdon.errors import ConfigError


class Settings(BaseModel):
    """A frozen pydantic model that refuses unknown keys, NaN, infinities, and `true` for a number (pydantic: 1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    short_form: ClassVar[tuple[type[BaseModel], ...]] = ()
    """Models whose keys may stand directly in this section: a check of the section moves them to where they belong."""

    @classmethod
    def implied(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The same values with what they imply without saying it; a root configuration may override this."""
        return given

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for name, field in cls.model_fields.items():
                if isinstance(given.get(name), bool) and _is_number(field.annotation):
                    raise ValueError(f"{name} is {str(given[name]).lower()}, which is no number")
        return given


class SpokenSettings(Settings):
    """Settings that users write in Python too: there a `ConfigError` says what is wrong, with a suggestion.

    Inside a larger configuration, which is read by `guerdon.config`, nothing is different.
    """

    if not TYPE_CHECKING:  # type checkers see the fields

        def __init__(self, **given: Any) -> None:
            try:
                super().__init__(**given)
            except ValidationError as error:
                lines = problem_lines(type(self), Tree(given), error, type(self).__name__)
                raise ConfigError("; ".join(lines)) from error

        __init__.__pydantic_base_init__ = True  # pydantic does not call it for a part of a larger configuration


def _is_number(annotation: Any) -> bool:
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return set(parts) <= {int, float, NoneType}
