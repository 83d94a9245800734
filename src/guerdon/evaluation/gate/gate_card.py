"""The forecast on a card: lines of text, the gate, and reading the card of a model.

The card is `evaluation.json` in the folder of a model.

    forecast = card_forecast(text_features(record), "text", GateSettings())
    lines = forecast_lines(forecast.to_dict())
    warning = harm_warning(card_folders("runs/models/door-open/success"), limit=0.5)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.errors import DataError, HarmError, boundary
from guerdon.evaluation.gate.gate_table import EFFECTS, PACKAGED, GateTable, read_gate_table
from guerdon.models.scores import RECORD
from guerdon.settings.evaluate import GateSettings
from guerdon.settings.study import Study

if TYPE_CHECKING:
    from guerdon.evaluation.gate.forecast import GateForecast


def card_forecast(features: Mapping[str, float | None], kind: str, gate: GateSettings) -> GateForecast:
    """The forecast on a reward model by the table that the settings name.

    Args:
        features: by name; None where not measurable.
        kind: `robot` or `text`.
        gate: the settings.

    Raises:
        DataError: the table cannot be read.
    """
    from guerdon.evaluation.gate.forecast import gate_forecast

    return gate_forecast(features, kind, gate_table(gate))


def gate_table(gate: GateSettings) -> GateTable:
    """The table that the settings name, else the packaged one.

    Raises:
        DataError: it cannot be read.
    """
    return read_gate_table(gate.table or PACKAGED)


_SAID = {"harms": "likely HARMS RL", "no effect": "likely has no effect in RL", "helps": "likely helps RL"}


def likely_effect(forecast: Mapping[str, Any]) -> str | None:
    """The effect with a probability above 0.5; None where there is none."""
    chances = forecast["probabilities"] or {}
    return next((name for name, chance in chances.items() if chance > 0.5), None)


def forecast_lines(forecast: Mapping[str, Any]) -> list[str]:
    """The forecast of a card in lines of text.

    Args:
        forecast: `GateForecast.to_dict`, as it lies in `evaluation.json`.
    """
    reasons = [f"  {reason}" for reason in forecast["reasons"]]
    if forecast["answer"] == "unknown":
        return ["forecast: unknown whether it helps RL", *reasons]
    chances = ", ".join(f"{name} {forecast['probabilities'][name]:.2f}" for name in reversed(EFFECTS))
    likely = likely_effect(forecast)
    said = "undecided, none has a probability above 0.5" if likely is None else _SAID[likely]
    lines = [
        f"forecast: {said} (probabilities: {chances})",
        f"expected change of true success: {signed(forecast['gain'])}, 90 % of tasks left out lay in these bounds",
        *reasons,
    ]
    if (checked := forecast.get("validated")) is not None:
        rank, passes = checked["correlation"], checked["false_passes"]
        lines.append(
            f"the same predictor on tasks left out ({checked['models']} reward models, {checked['tasks']} tasks): rank "
            f"correlation with the change {signed(rank)}; of those that harm, {passes['estimate']:.0%} passed where "
            "80% of those that help did"
        )
        lines.append("a forecast for tasks and policies like those of the table, with this model as the only reward")
    return lines


def signed(one: Mapping[str, Any], *, digits: int = 2, undefined: str = "not defined") -> str:
    """A number with its bounds."""
    if one["estimate"] is None:
        return undefined
    bounds = "" if one["low"] is None else f" [{one['low']:+.{digits}f}, {one['high']:+.{digits}f}]"
    return f"{one['estimate']:+.{digits}f}{bounds}"


def harm_of(forecast: Mapping[str, Any] | None) -> float | None:
    """The probability of harm in a forecast; None where it is unknown."""
    chances = None if forecast is None else forecast.get("probabilities")
    return None if not isinstance(chances, Mapping) else float(chances["harms"])


def check_gate(forecasts: Mapping[str, Mapping[str, Any]], gate: GateSettings) -> list[str]:
    """Refuse reward models that likely harm.

    Args:
        forecasts: by name of the reward model.
        gate: limit, and what a model without a forecast does.

    Returns:
        Lines about the models that have no forecast and passed.

    Raises:
        HarmError: harm is likelier than `gate.max_harm`, or a forecast is unknown and `gate.unknown` is `fail`.
    """
    refused: list[str] = []
    passed: list[str] = []
    for name, forecast in forecasts.items():
        harm = harm_of(forecast)
        if harm is not None and harm > gate.max_harm:
            refused.append(f"{name} harms with probability {harm:.2f}, above evaluate.gate.max_harm {gate.max_harm:g}")
        elif harm is None:
            line = f"{name} has no forecast: {forecast['reasons'][0]}"
            (refused if gate.unknown == "fail" else passed).append(line)
    if refused:
        raise HarmError(
            "the gate refused " + "; ".join(refused) + ". The cards name the reasons; fix the reward model, or see "
            "docs/gate.md for other limits and your own table"
        )
    return [f"WARNING: {line}; passed, as evaluate.gate.unknown says" for line in passed]


def read_forecast(*folders: Path) -> dict[str, Any] | None:
    """The forecast on the first card in these folders; None where there is no card, or one without a forecast.

    Raises:
        DataError: the card is not JSON of an evaluation.
    """
    for folder in folders:
        path = folder / RECORD
        if path.is_file():
            with boundary(DataError, "not JSON of an evaluation; run `guerdon evaluate` again", where=str(path)):
                found = json.loads(path.read_text(encoding="utf-8")).get("forecast")
                return None if found is None else _checked(found)
    return None


def _checked(forecast: Any) -> dict[str, Any]:
    """A forecast as `GateForecast.to_dict` gives it; any exception where it is something else."""
    chances, gain = forecast["probabilities"], forecast["gain"]
    if forecast["answer"] not in (*EFFECTS, "unknown") or (chances is None) != (forecast["answer"] == "unknown"):
        raise ValueError(f"its forecast is {forecast['answer']!r}")
    return {
        "answer": forecast["answer"],
        "probabilities": None if chances is None else {name: float(chances[name]) for name in EFFECTS},
        "gain": None if gain is None else {key: float(gain[key]) for key in ("estimate", "low", "high")},
        "reasons": [str(reason) for reason in forecast["reasons"]],
    }


def card_folders(path: str) -> list[Path]:
    """Where the card of a model may lie that `guerdon train` wrote and `guerdon evaluate` evaluated.

    It is the folder of a model for robots, and the one above the final checkpoint of a model for text.
    """
    given = Path(path)
    below = sorted(given.glob("method*/"))
    if len(below) == 1:
        return [given, *below]
    return [given, given.parent] if _is_part(given) else [given]


def remote_folder(study: Study, name: str) -> Path:
    """Where the evaluation of one of `evaluate.remote` goes."""
    return Path(study.work_dir) / "models" / study.task_name / name


def _is_part(path: Path) -> bool:
    """Whether a path is a file of a model, or the checkpoint that a training of a model for text ends with."""
    return path.is_file() or (path / "reward_model.json").is_file()


def harm_warning(folders: Sequence[Path], limit: float) -> str | None:
    """What a run must say of the forecast on its reward model: harm is likelier than `limit`; None: nothing.

    Raises:
        DataError: the card cannot be read.
    """
    forecast = read_forecast(*folders)
    harm = harm_of(forecast)
    if forecast is None or harm is None or harm <= limit:
        return None
    return (
        f"its card says that it likely harms: probability {harm:.2f}, expected change of true success "
        f"{signed(forecast['gain'])}; {forecast['reasons'][0] if forecast['reasons'] else 'no single reason'}. A run "
        "with the 0/1 reward alone likely ends with higher success"
    )
