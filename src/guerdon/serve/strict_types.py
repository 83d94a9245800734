"""Types of JSON numbers, flags and lists that are not coerced: "16" and true are no numbers, 0 is not false.

The OpenAPI document promises that. The fields of forms are text and are parsed. For plain `bool` and `float`,
`Field(strict=True)` does the same.

    class Body(BaseModel):
        nframes: Annotated[int, Field(ge=1), WHOLE] = 16
        stream: Annotated[Literal[False], FLAG] | None = None
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticKnownError


def _number(given: Any, info: ValidationInfo) -> Any:
    if info.mode == "json" and isinstance(given, str | bool):
        raise PydanticKnownError("int_type")
    return given


def _flag(given: Any, info: ValidationInfo) -> Any:
    if info.mode == "json" and not isinstance(given, bool):
        raise PydanticKnownError("bool_type")
    return given


WHOLE = BeforeValidator(_number)
FLAG = BeforeValidator(_flag)
FIRST_ERROR = Field(fail_fast=True)  # stop at the first wrong element: a million error messages take seconds
Strings = Annotated[list[str], FIRST_ERROR]
