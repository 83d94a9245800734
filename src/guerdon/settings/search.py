"""The `search` section: answers to questions, chosen by a reward model among several that the policy writes.

For example:

    SearchSettings(model=TextModelSettings(checkpoint_path="runs/prm"), aggregation="last", method="beam", n=16)
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.base import COLUMNS, SET, Settings, only_with
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.reward_models import MODEL_NAMES, TextRewardModelSettings, judging_text, relative, side_of

Method = Literal["best_of_n", "beam", "dvts"]
_BY_STEP = ("beam", "dvts")
_TEXT = ("text", "value", "normal", "judge", "remote_text")


def _not_of_text(kind: str) -> str:
    return (
        f"model_type {kind} does not judge texts by itself: name {', '.join(_TEXT)}, or a reward model of your own "
        "whose info says modality text"
    )


class SearchSettings(Settings):
    """`search`: answers to a file of questions; `guerdon search`."""

    save_dir: str = Field("runs/search", description="receives answers.jsonl and search.json")
    questions: str | None = Field(
        None,
        description="JSONL, JSON or Parquet file with a row per question, its true answer optional; null: the "
        "validation questions of data",
    )
    columns: str | dict[str, str] = only_with(default_factory=dict, questions=SET, description=COLUMNS)
    limit: int | None = Field(None, ge=1, description="the first so many questions; null: all")
    model: TextRewardModelSettings = Field(description="the reward model of text that chooses")
    aggregation: Aggregation = Field(description="how the values of steps become one value of a solution")
    method: Method = Field(
        "best_of_n",
        description="best_of_n: whole solutions; beam: step beam search; dvts: separate search trees "
        "(diverse verifier tree search)",
    )
    choose: Literal["best", "weighted_vote"] = Field(
        "best",
        description="of the complete solutions: the one with the largest value, or the answer whose solutions have the "
        "largest sum of values",
    )
    n: int = Field(16, ge=1, description="solutions, or beams, per question")
    beam_width: int = only_with(4, ge=1, method=_BY_STEP, description="ways in which each survivor, or tree, goes on")
    rounds: int = only_with(40, ge=1, method=_BY_STEP, description="at most so many steps; the last goes on to the end")
    separator: str | None = Field(
        None, min_length=1, description="text that ends a step; null: that of the generated task, or a blank line"
    )
    batch_size: int = Field(64, ge=1, description="solutions per call of the reward model")
    max_failure_rate: float = Field(0.5, ge=0, le=1, description="stop when a larger share of measurements fails")

    @field_validator("model", mode="before")
    @classmethod
    def _is_of_text(cls, given: Any) -> Any:
        kind = given.get("model_type") if isinstance(given, dict) else None
        if kind in MODEL_NAMES and kind not in _TEXT:
            raise ConfigError(_not_of_text(kind), key="model")
        return judging_text(given)

    @model_validator(mode="after")
    def _fits(self) -> SearchSettings:
        if side_of(self.model) != "text":
            raise ConfigError(_not_of_text(self.model.model_type), key="model")
        if self.model.compares:
            raise ConfigError(
                f"{relative('model')}, and search scores solutions one by one: use mode criteria or scale", key="model"
            )
        if self.method in _BY_STEP and self.n % self.beam_width:
            raise ConfigError.about("n", f"{self.n} must be a multiple of beam_width {self.beam_width}")
        return self
