"""Numbers, flags and lists in JSON bodies, taken as they are written: "16" and true are no numbers, 0 is no false.

So says the description of the interface. Forms hold nothing but text; there it is read. This module does not know what
the values mean; for plain `bool` and `float`, `Field(strict=True)` does the same.

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
FIRST_ERROR = Field(fail_fast=True)  # a list is read up to what is wrong with it: a million messages take seconds
Strings = Annotated[list[str], FIRST_ERROR]
