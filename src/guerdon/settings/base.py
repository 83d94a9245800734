"""The base of every settings class: frozen, and unknown keys are refused.

It does not know any particular setting.

    class ColourSettings(Settings):
        hue: float = 0.5
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


class Settings(BaseModel):
    """A frozen pydantic model that refuses unknown keys, and `true` where a number belongs (pydantic reads it as 1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

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


def _is_number(annotation: Any) -> bool:
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return set(parts) <= {int, float, NoneType}
