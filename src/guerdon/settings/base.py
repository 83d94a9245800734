"""The base of every settings class: frozen, and unknown keys are refused.

It does not know any particular setting.

    class ColourSettings(Settings):
        hue: float = 0.5
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
