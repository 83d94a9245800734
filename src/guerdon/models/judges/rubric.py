"""Rubrics: criteria in words by which a language model judges a response, and the value of its judgements.

A rubric file is TOML, YAML or JSON, as those of verifiers:

    [[criteria]]
    name = "answers"
    text = "The response answers the question that was asked."
    weight = 2.0
    choices = ["no", "partly", "yes"]          # from worst to best; the default is no, yes

Rubrics of single prompts (2507.17746) are lists in a column: of texts, or of maps with the text under `text`,
`criterion`, `description` or `title` and the weight under `weight` or `points`. A criterion with a negative weight
describes a fault: it counts when it is not met. Points (HealthBench's `rubrics`, 2505.08775) are added up instead:
those of criteria that are met, negative ones too, over the sum of the positive ones, between 0 and 1.

    rubric = read_rubric(Path("rubric.toml"))
    rubric.value({"answers": 0.5})      # share of the weight; criteria without a judgement are left out
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from guerdon.config.loading import read_yaml, validate
from guerdon.errors import ConfigError, DataError, boundary

REFERENCE, RUBRIC = "ground_truth", "rubric"  # what `meta` of an episode calls a true answer and a prompt's rubric
ENDINGS = (".toml", ".yaml", ".yml", ".json")
_TEXTS = ("text", "criterion", "description", "title")
_WEIGHTS = ("weight", "points")


class Criterion(BaseModel):
    """One criterion.

    Attributes:
        name: how the judge refers to it.
        text: what is asked about the response.
        weight: of its judgement; negative: it describes a fault.
        choices: possible judgements from worst to best, evenly spaced between 0 and 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    name: str = Field(min_length=1)
    text: str = Field(min_length=1)
    weight: float = Field(1.0, allow_inf_nan=False)
    choices: tuple[str, ...] = Field(("no", "yes"), min_length=2)

    @model_validator(mode="after")
    def _differ(self) -> Criterion:
        if len({choice.casefold() for choice in self.choices}) < len(self.choices):
            raise ConfigError(f"the choices of {self.name} must differ", key="choices")
        if not self.weight:
            raise ConfigError(f"the weight of {self.name} is 0; remove the criterion", key="weight")
        return self

    def share(self, choice: str) -> float | None:
        """0 for the worst choice to 1 for the best; None for another word."""
        words = [one.casefold() for one in self.choices]
        word = choice.strip().casefold()
        return words.index(word) / (len(words) - 1) if word in words else None


class Rubric(BaseModel):
    """Criteria with different names.

    Attributes:
        criteria: at least one.
        scoring: what the weights are: `weights` of a mean, or `points` that are added up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    criteria: tuple[Criterion, ...] = Field(min_length=1)
    scoring: Literal["weights", "points"] = "weights"

    @model_validator(mode="after")
    def _names_differ(self) -> Rubric:
        names = [one.name.casefold() for one in self.criteria]
        if len(set(names)) < len(names):
            raise ConfigError("the names of criteria must differ", key="criteria")
        if self.scoring == "points" and all(one.weight < 0 for one in self.criteria):
            raise ConfigError("no criterion has positive points, so that there is nothing to reach", key="criteria")
        return self

    def value(self, shares: Mapping[str, float]) -> tuple[float | None, float]:
        """The value of judgements, and the share of the weight that they have.

        It is the weighted mean, or the points met over the positive points of the judged criteria, between 0 and 1;
        None where these have no positive points.

        Args:
            shares: by name of the criterion, 0 to 1; a criterion without a judgement is left out.
        """
        weights = {one.name: one.weight for one in self.criteria}
        judged = sum(abs(weights[name]) for name in shares)
        share = judged / sum(map(abs, weights.values()))
        if self.scoring == "points":
            most = sum(max(weights[name], 0.0) for name in shares)
            met = sum(weights[name] * v for name, v in shares.items())
            return (min(max(met / most, 0.0), 1.0) if most else None), share
        met = sum(abs(weights[name]) * (v if weights[name] > 0 else 1 - v) for name, v in shares.items())
        return (met / judged if judged else 0.0), share

    def total(self, shares: Mapping[str, float], least: float) -> float | None:
        """The value of judgements that have at least this share of the weight; None of fewer."""
        value, share = self.value(shares)
        return value if share >= least else None


def read_rubric(path: Path) -> Rubric:
    """A rubric file.

    Raises:
        ConfigError: it cannot be read, or is not a rubric.
    """
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{path}: a rubric is a file that ends in {', '.join(ENDINGS)}", key="rubric")
    if path.suffix.lower() != ".toml":
        return validate(Rubric, read_yaml(path), origin=str(path))  # JSON is YAML
    with boundary(ConfigError, f"{path}: the rubric cannot be read", key="rubric"):
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    return validate(Rubric, given, origin=str(path))


def rubric_of(given: Any, where: str) -> Rubric:
    """The rubric of one prompt, from a list of texts or of maps, or such in JSON.

    Raises:
        DataError: it is not a list of criteria.
        ConfigError: a criterion is not valid.
    """
    if isinstance(given, str):
        with boundary(DataError, "the rubric is not JSON", where=where, field="rubric"):
            given = json.loads(given)
    items = given.get("criteria", given) if isinstance(given, Mapping) else given
    if not isinstance(items, Sequence) or isinstance(items, str) or not items:
        raise DataError(f"a rubric is a list of criteria, this is {str(given)[:80]!r}", where=where, field="rubric")
    criteria = [_criterion(item, number, where) for number, item in enumerate(items, start=1)]
    by_points = [isinstance(item, Mapping) and item.get("points") is not None for item in items]
    if any(by_points) and any(isinstance(item, Mapping) and item.get("weight") is not None for item in items):
        raise DataError("a rubric has weights or points, and this one has both", where=where, field="rubric")
    return validate(Rubric, {"criteria": criteria, "scoring": "points" if any(by_points) else "weights"}, origin=where)


def _criterion(item: Any, number: int, where: str) -> dict[str, Any]:
    """A criterion, from a text or a map with the names of several data sets."""
    one = {"text": item} if isinstance(item, str) else item
    if not isinstance(one, Mapping):
        raise DataError(
            f"criterion {number} must be text or a map, this is {str(item)[:80]!r}", where=where, field="rubric"
        )
    criterion = {
        "name": str(one.get("name") or f"c{number}"),
        "text": next((one[key] for key in _TEXTS if isinstance(one.get(key), str)), None),
        "weight": next((one[key] for key in _WEIGHTS if one.get(key) is not None), 1.0),
    }
    return criterion | ({"choices": one["choices"]} if one.get("choices") else {})
