"""The verdict on a card: features from an evaluation, lines of text, the gate, and reading the card of a model.

The card is `evaluation.json` in the folder of a model.

    verdict = card_verdict(robot_features(metrics, probes), "robot", GateSettings())
    lines = verdict_lines(verdict.to_dict())
    warning = harm_warning(card_folders("runs/models/door-open/success"), limit=0.5)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from guerdon.errors import DataError, HarmError, boundary
from guerdon.evaluate.gate import GateVerdict, gate_verdict
from guerdon.evaluate.gate_table import OUTCOMES, PACKAGED, GateTable, read_gate_table
from guerdon.evaluate.gate_validation import correlation, false_passes, out_of_task
from guerdon.evaluate.intervals import Interval
from guerdon.evaluate.probe_checks import ProbeResult
from guerdon.evaluate.scores import RECORD
from guerdon.settings.evaluate import GateSettings
from guerdon.settings.study import Study

_ROBOT_METRICS = {  # feature: metric of the evaluation
    "auroc": "episode_auroc",
    "accuracy": "episode_balanced_accuracy",
    "false_positive_rate": "episode_false_positive_rate",
    "row_auroc": "auroc",
    "row_accuracy": "balanced_accuracy",
    "row_false_positive_rate": "false_positive_rate",
    "brier": "brier",
    "ece": "ece",
    "voc": "value_order_spearman",
    "preference_accuracy": "preference_accuracy",
    "progress_pearson": "progress_pearson",
    "progress_mae": "progress_mae",
}
_TEXT_METRICS = {"auroc": ("answers", "auroc"), "row_auroc": ("steps", "auroc"), "brier": ("steps", "brier"),
                 "ece": ("steps", "ece")}  # fmt: skip

WORDS = {
    "auroc": "successes ranked above failures (AUROC over episodes)",
    "accuracy": "decisions on whole episodes that are right (balanced accuracy)",
    "false_positive_rate": "failed episodes judged successful",
    "row_auroc": "right rows or steps ranked above wrong ones (AUROC)",
    "row_accuracy": "decisions on single rows that are right (balanced accuracy)",
    "row_false_positive_rate": "rows without success judged successful",
    "brier": "squared error of its probabilities (Brier)",
    "ece": "calibration error of its probabilities",
    "voc": "values that rise with time in successes (value-order correlation)",
    "preference_accuracy": "pairs in which the success has the higher value",
    "progress_pearson": "correlation of its values with true progress",
    "progress_mae": "error of its values as progress",
    "f1": "first wrong steps found (F1)",
    "epic": "EPIC distance to the true reward",
    "dard": "DARD distance to the true reward",
    "starc": "STARC distance to the true reward",
    "reward_variance": "variance of the reward under the policy",
    "return_rank": "order of episodes by return, against the true order (Kendall)",
    "wandering": "failures of random actions with a higher return than a success",
    "near_miss": "failures of an expert valued above the median success",
    "far_false_positives": "rows long before success judged successful",
    "near_false_positives": "rows shortly before success judged successful",
    "far_error": "error of values long before success",
    "near_error": "error of values shortly before success",
    "pixel_change": "change of values by irrelevant pixels, against the distance of success and failure",
    "agreement": "values of rows that keep their order when pictures change a little",
    "bon4": "success gained by choosing the highest return of 4 (share of what an oracle gains)",
    "bon16": "success gained by choosing the highest return of 16 (share of what an oracle gains)",
}
"""Features in plain words; `probe_` and `attack_` with the name of a probe or an attack are made from it."""


def robot_features(
    metrics: Mapping[str, Interval], probes: Mapping[str, ProbeResult] | None = None
) -> dict[str, float | None]:
    """Features of a reward model for robots: estimates of an evaluation, and the values of its probes."""
    found: dict[str, float | None] = {
        name: None if (one := metrics.get(metric)) is None else one.estimate for name, metric in _ROBOT_METRICS.items()
    }
    return found | {f"probe_{name}": one.value for name, one in (probes or {}).items()}


def text_features(record: Mapping[str, Any]) -> dict[str, float | None]:
    """Features of a reward model for text, from the content of its `evaluation.json`.

    Of several sets of solutions the first counts: the generated one, ProcessBench, the policy's own.
    """
    section: Mapping[str, Any] = next(
        (record[name] for name in ("generated", "process_bench", "samples") if name in record), {}
    )
    found: dict[str, float | None] = {
        name: section.get(part, {}).get(metric, {}).get("estimate") for name, (part, metric) in _TEXT_METRICS.items()
    }
    found["f1"] = section.get("process_bench", {}).get("average_f1", {}).get("measured", {}).get("estimate")
    attacks = (record.get("attacks") or {}).get("attacks", {})
    return found | {f"attack_{name}": one["at_least_as_high"]["estimate"] for name, one in attacks.items()}


def in_words(names: Iterable[str]) -> dict[str, str]:
    """Features in plain words."""

    def said(name: str) -> str:
        kind, _, rest = name.partition("_")
        made = {"probe": "value of the probe ", "attack": "share of pairs won by the attack "}.get(kind)
        return WORDS.get(name, name.replace("_", " ") if made is None else made + rest.replace("_", " "))

    return {name: said(name) for name in names}


def card_verdict(features: Mapping[str, float | None], kind: str, gate: GateSettings) -> GateVerdict:
    """The verdict on a reward model, with how well the same predictor did on tasks left out of its fit.

    Args:
        features: by name; None where not measurable.
        kind: `robot` or `text`.
        gate: the settings, which name the table.

    Raises:
        DataError: the table cannot be read.
    """
    path, changed, table = gate_table(gate)
    return gate_verdict(
        features, kind, table, words=in_words(table.names), validate=partial(_validated, path, changed, kind)
    )


def gate_table(gate: GateSettings) -> tuple[Path, int, GateTable]:
    """The file of the table, its modification time in ns, and the table.

    Raises:
        DataError: it cannot be read.
    """
    path = PACKAGED if gate.table is None else Path(gate.table)
    changed = path.stat().st_mtime_ns if path.is_file() else 0
    return path, changed, _table(path, changed)


@lru_cache(maxsize=4)
def _table(path: Path, changed: int) -> GateTable:
    return read_gate_table(path)


@lru_cache(maxsize=8)
def _validated(path: Path, changed: int, kind: str, names: tuple[str, ...]) -> dict[str, Any]:
    """What the predictor with these features reaches on tasks left out, as JSON values."""
    table = _table(path, changed).of(kind)
    predicted = out_of_task(table, names)
    return {
        "models": len(table),
        "tasks": len(table.tasks),
        "correlation": asdict(correlation(predicted.scores_N, table.gains_N, reps=1000, seed=0)),
        "false_passes": asdict(false_passes(table.outcomes_N, predicted.scores_N)),
    }


_SAID = {"harms": "likely HARMS RL", "no effect": "likely has no effect in RL", "helps": "likely helps RL"}


def likely_outcome(verdict: Mapping[str, Any]) -> str | None:
    """The outcome with a probability above 0.5; None where there is none."""
    chances = verdict["probabilities"] or {}
    return next((name for name, chance in chances.items() if chance > 0.5), None)


def verdict_lines(verdict: Mapping[str, Any]) -> list[str]:
    """The verdict of a card in lines of text.

    Args:
        verdict: `GateVerdict.to_dict`, as it lies in `evaluation.json`.
    """
    reasons = [f"  {reason}" for reason in verdict["reasons"]]
    if verdict["answer"] == "unknown":
        return ["verdict: unknown whether it helps RL", *reasons]
    chances = ", ".join(f"{name} {verdict['probabilities'][name]:.2f}" for name in reversed(OUTCOMES))
    likely = likely_outcome(verdict)
    said = "undecided, no outcome has a probability above 0.5" if likely is None else _SAID[likely]
    lines = [
        f"verdict: {said} (probabilities: {chances})",
        f"expected change of true success: {signed(verdict['gain'])}, 90 % of tasks left out lay in these bounds",
        *reasons,
    ]
    if (checked := verdict.get("validated")) is not None:
        rank, passes = checked["correlation"], checked["false_passes"]
        lines.append(
            f"the same predictor on tasks left out ({checked['models']} reward models, {checked['tasks']} tasks): rank "
            f"correlation with the change {signed(rank)}; of those that harm, {passes['estimate']:.0%} passed where "
            "80% of those that help did"
        )
        lines.append("a forecast for tasks and policies like those of the table, with this model as the only reward")
    return lines


def signed(one: Mapping[str, Any]) -> str:
    """A number with its bounds."""
    if one["estimate"] is None:
        return "not defined"
    bounds = "" if one["low"] is None else f" [{one['low']:+.2f}, {one['high']:+.2f}]"
    return f"{one['estimate']:+.2f}{bounds}"


def harm_of(verdict: Mapping[str, Any] | None) -> float | None:
    """The probability of harm in a verdict; None where it is unknown."""
    chances = None if verdict is None else verdict.get("probabilities")
    return None if not isinstance(chances, Mapping) else float(chances["harms"])


def check_gate(verdicts: Mapping[str, Mapping[str, Any]], gate: GateSettings) -> list[str]:
    """Refuse reward models that likely harm.

    Args:
        verdicts: by name of the reward model.
        gate: limit, and what a model without a verdict does.

    Returns:
        Lines about the models that have no verdict and passed.

    Raises:
        HarmError: harm is likelier than `gate.max_harm`, or a verdict is unknown and `gate.unknown` is `fail`.
    """
    refused: list[str] = []
    passed: list[str] = []
    for name, verdict in verdicts.items():
        harm = harm_of(verdict)
        if harm is not None and harm > gate.max_harm:
            refused.append(f"{name} harms with probability {harm:.2f}, above evaluate.gate.max_harm {gate.max_harm:g}")
        elif harm is None:
            line = f"{name} has no verdict: {verdict['reasons'][0]}"
            (refused if gate.unknown == "fail" else passed).append(line)
    if refused:
        raise HarmError(
            "the gate refused " + "; ".join(refused) + ". The cards name the reasons; fix the reward model, or see "
            "docs/gate.md for other limits and your own table"
        )
    return [f"WARNING: {line}; passed, as evaluate.gate.unknown says" for line in passed]


def read_verdict(*folders: Path) -> dict[str, Any] | None:
    """The verdict on the first card in these folders; None where there is no card, or one without a verdict.

    Raises:
        DataError: the card is not JSON of an evaluation.
    """
    for folder in folders:
        path = folder / RECORD
        if path.is_file():
            with boundary(DataError, f"{path}: not JSON of an evaluation; run `guerdon evaluate` again"):
                found = json.loads(path.read_text(encoding="utf-8")).get("verdict")
                return None if found is None else _checked(found)
    return None


def _checked(verdict: Any) -> dict[str, Any]:
    """A verdict as `GateVerdict.to_dict` gives it; any exception where it is something else."""
    chances, gain = verdict["probabilities"], verdict["gain"]
    if verdict["answer"] not in (*OUTCOMES, "unknown") or (chances is None) != (verdict["answer"] == "unknown"):
        raise ValueError(f"its verdict is {verdict['answer']!r}")
    return {
        "answer": verdict["answer"],
        "probabilities": None if chances is None else {name: float(chances[name]) for name in OUTCOMES},
        "gain": None if gain is None else {key: float(gain[key]) for key in ("estimate", "low", "high")},
        "reasons": [str(reason) for reason in verdict["reasons"]],
    }


def card_folders(path: str) -> list[Path]:
    """Where the card of a model may lie that `guerdon train` wrote and `guerdon evaluate` evaluated.

    It is the folder of a model for robots, and the one above the final checkpoint of a model for text.
    """
    given = Path(path)
    below = sorted(given.glob("method*/"))
    return [given, *below] if len(below) == 1 else [given, *([given.parent] if _is_part(given) else [])]


def remote_folder(study: Study, name: str) -> Path:
    """Where the evaluation of one of `evaluate.remote` goes."""
    return Path(study.work_dir) / "models" / study.task_name / name


def _is_part(path: Path) -> bool:
    """Whether a path is a file of a model, or the checkpoint that a training of a model for text ends with."""
    return path.is_file() or (path / "reward_model.json").is_file()


def harm_warning(folders: Sequence[Path], limit: float) -> str | None:
    """What a run must say of the verdict on its reward model: harm is likelier than `limit`; None: nothing.

    Raises:
        DataError: the card cannot be read.
    """
    verdict = read_verdict(*folders)
    harm = harm_of(verdict)
    if verdict is None or harm is None or harm <= limit:
        return None
    return (
        f"its card says that it likely harms: probability {harm:.2f}, expected change of true success "
        f"{signed(verdict['gain'])}; {verdict['reasons'][0] if verdict['reasons'] else 'no single reason'}. A run with "
        "the 0/1 reward alone likely ends with higher success"
    )
