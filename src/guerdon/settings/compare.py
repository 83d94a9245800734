"""The `compare` section: arms, seeds and tasks of a study.

CompareSettings(arms={"A": ArmSettings(label="0/1")}, baseline="A")
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from guerdon.settings.base import Seed, Settings


class ArmSettings(Settings):
    """One arm of a study: a label and what differs from the rest of the file."""

    label: str = Field(description="how the report calls the arm")
    config: dict[str, Any] = Field(default_factory=dict, description="what differs from the rest of the file")


class CompareSettings(Settings):
    """`compare`: arms x seeds x tasks."""

    arms: dict[str, ArmSettings] = Field(description="by name; the override compare.arms=[a, b] chooses some of them")
    baseline: str = Field(description="the arm that others are compared with")
    seeds: tuple[Seed, ...] = Field((0, 1, 2), description="one run per arm, task and seed")
    tasks: tuple[str, ...] | dict[str, dict[str, Any]] = Field(
        (),
        description="names that replace env.task, or names with what differs from the rest of the file; empty: the "
        "file's own task alone. The override compare.tasks=[a] chooses some of the names with what differs",
    )
    parallel: int = Field(0, ge=0, description="jobs at a time; 0: one per GPU where they may use one, else per core")
    correction: Literal["none", "holm"] = Field(
        "none",
        description="of intervals, conclusions and p-values for the number of arms that are compared with the "
        "baseline: none, or Holm's step-down method",
    )

    def at_task(self, name: str) -> dict[str, Any]:
        """What the study changes for a task."""
        return self.tasks[name] if isinstance(self.tasks, dict) else {"env": {"task": name}}

    @model_validator(mode="after")
    def _fits(self) -> CompareSettings:
        if self.baseline not in self.arms:
            raise ValueError(f"compare.baseline {self.baseline!r} is not an arm; arms are {', '.join(self.arms)}")
        for name, values in (("seeds", self.seeds), ("tasks", tuple(self.tasks))):
            if len(set(values)) != len(values):
                raise ValueError(f"compare.{name} repeats an entry")
        return self
