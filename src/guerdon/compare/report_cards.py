"""Quality cards of reward models for the page: findings, metrics with intervals, probes, pictures as data URIs.

A card leads with the worst that its numbers say (`findings`) and shows five metrics, the rest on demand.
Pictures go in as images, never as markup, so that nothing inside them can run; they share a budget of bytes.
This module does not know how a reward model is evaluated, nor HTML.

    cards, notes = card_views(study.cards, budget=600_000)
    print(cards[0].metrics[0].name, cards[0].metrics[0].interval)
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guerdon.compare import report_words as words
from guerdon.compare.read_runs import ModelCard, Row, number
from guerdon.compare.report_text_cards import flat_text_card, is_text_card
from guerdon.evaluate.intervals import Interval

PICTURE_HINTS = {
    "reliability": "Look for points on the diagonal: of rows scored 0.8, eight in ten should succeed.",
    "roc": "Look for a curve that hugs the upper left corner; the diagonal is chance.",
    "precision": "Look for a curve that stays high to the right; the share of successes is chance.",
    "ranking": "Look for points in rising order: the checkpoint that succeeds more should be scored higher.",
    "histogram": "Look for two heaps that do not overlap: failures at low scores, successes at high ones.",
    "first error": "Look for long bars of exact and clean: the first wrong step found, nothing blamed without reason.",
    "steps": "Look for two heaps that do not overlap: wrong steps at low values, right ones at high ones.",
    "n bon": "Look for a curve above majority that does not fall: a weak model is fooled by more samples.",
    "n weighted": "Look for a curve above majority: values that help a vote.",
    "value": "Look for values that rise as the task is being done.",
}

FACTS = {
    "name": "model",
    "kind": "judged as",
    "range": "scores from",
    "granularity": "one score per",
    "modality": "looks at",
    "causal": "sees only the past",
    "frames_needed": "frames per score",
    "success_threshold": "its own threshold",
    "threshold": "threshold used",
    "progress_horizon": "steps of full progress",
    "task_conditioned": "reads the task",
    "episodes": "held-out episodes",
    "rows": "rows",
    "positives": "successful episodes",
    "rows_positive": "successful rows",
    "outcome_unknown": "episodes of unknown outcome",
    "episodes_left_out": "episodes left out",
    "hash": "data",
    "aggregation": "values of steps become one by",
}
SHORT_HASH = 12

SHOWN = 5
SHOWN_FIRST = (
    "episode_auroc", "episode_false_positive_rate", "policy_ranking_spearman", "auroc", "false_positive_rate", "ece",
    "value_order_spearman", "progress_mae", "preference_accuracy",
)  # fmt: skip
"""The metrics that a card shows, as far as it has them; others follow in their own order."""
LOWER_IS_BETTER = ("brier", "ece", "mae", "false_positive_rate", "ties")


@dataclass(frozen=True)
class Metric:
    """One metric with its interval and the value of a trivial model (the majority class) beside it."""

    name: str
    interval: Interval
    baseline: float | None


@dataclass(frozen=True)
class Probe:
    """One probe: what was expected, what was measured on n cases; `passed` is None where it does not apply."""

    name: str
    passed: bool | None
    value: str
    expected: str
    n: int


@dataclass(frozen=True)
class CardView:
    """A quality card ready for the page.

    Attributes:
        findings: what speaks against the model, in words, the worst first.
        metrics: the ones to look at first, at most `SHOWN`.
        more_metrics: all others.
        pictures: (title, data URI, what to look for).
    """

    task: str
    name: str
    findings: tuple[str, ...]
    facts: Mapping[str, str]
    metrics: tuple[Metric, ...]
    more_metrics: tuple[Metric, ...]
    probes: tuple[Probe, ...]
    failures: Mapping[str, str]
    pictures: tuple[tuple[str, str, str], ...]


def card_views(cards: Sequence[ModelCard], *, budget: int) -> tuple[list[CardView], list[str]]:
    """Cards for the page, with as many pictures as fit into `budget` bytes; a line for each left out."""
    views: list[CardView] = []
    notes: list[str] = []
    for card in cards:
        pictures = []
        for title, path in card.pictures.items():
            uri = _svg_uri(path)
            if uri is None:
                notes.append(f"{card.task}/{card.name}: picture {path.name} cannot be read")
            elif len(uri) > budget:
                notes.append(f"{card.task}/{card.name}: picture {path.name} is left out to keep this file small")
            else:
                budget -= len(uri)
                pictures.append((title.replace("_", " "), uri, _hint(title)))
        views.append(_view(card, tuple(pictures)))
    return views, notes


def _view(card: ModelCard, pictures: tuple[tuple[str, str, str], ...]) -> CardView:
    content = card.evaluation if not is_text_card(card.evaluation) else flat_text_card(card.evaluation)
    facts = _facts({**_mapping(content.get("model")), **_mapping(content.get("data"))})
    rows = dict(_rows(content.get("metrics")))
    order = [*(name for name in SHOWN_FIRST if name in rows), *(name for name in rows if name not in SHOWN_FIRST)]
    metrics = [Metric(_metric_name(name), _interval(rows[name]), number(rows[name], "baseline")) for name in order]
    probes = [
        Probe(
            words.human(name),
            bool(row.get("passed")) if row.get("applicable", True) else None,
            words.decimal(number(row, "value"), 3) if number(row, "value") is not None else _text(row.get("value")),
            _text(row.get("expected")),
            int(number(row, "n") or 0),
        )
        for name, row in _rows(content.get("probes"))
    ]
    return CardView(
        task=card.task,
        name=card.name,
        findings=tuple(_findings(rows, probes, _mapping(content.get("data")), _mapping(content.get("failures")))),
        facts=facts,
        metrics=tuple(metrics[:SHOWN]),
        more_metrics=tuple(metrics[SHOWN:]),
        probes=tuple(probes),
        failures={words.human(reason): count for reason, count in _flat(content.get("failures")).items()},
        pictures=pictures,
    )


def _metric_name(name: str) -> str:
    """A metric in words; those of order over time say which rows they are about."""
    rows = ", rows up to first success" if name.startswith("value_order_") else ""
    return words.human(name) + rows


def _findings(rows: Mapping[str, Row], probes: Sequence[Probe], data: Row, failures: Row) -> list[str]:
    """What speaks against a model: failed probes, failures paid as success, metrics at the level of their baseline."""
    found = [f"{probe.name}: failed ({probe.value}, n {probe.n})" for probe in probes if probe.passed is False]
    for name, cases, of in (
        ("episode_false_positive_rate", "episodes", "positives"),
        ("false_positive_rate", "rows", "rows_positive"),
    ):
        interval = _interval(rows.get(name, {}))
        if interval.estimate:
            failed = (number(data, cases) or 0.0) - (number(data, of) or 0.0) - (number(data, "outcome_unknown") or 0.0)
            paid = interval.estimate * failed
            share = f"{paid:.0f} of {failed:.0f}" if abs(paid - round(paid)) < 1e-6 and failed > 0 else ""
            share = share or words.percent(interval.estimate)
            found.append(f"paid as success: {share} failed {cases} {words.bounds(interval)}".rstrip())
            break
    for name in (name for name in SHOWN_FIRST if name in rows):
        interval, baseline = _interval(rows[name]), number(rows[name], "baseline")
        if interval.low is None or interval.high is None or baseline is None or name.endswith(("rate", "ece")):
            continue
        lower = name.endswith(LOWER_IS_BETTER)
        if (interval.high >= baseline) if lower else (interval.low <= baseline):
            said = f"{_metric_name(name)} {words.decimal(interval.estimate)} {words.bounds(interval)}, n {interval.n}"
            found.append(f"{said}: not shown to beat a model that looks at nothing ({words.decimal(baseline)})")
            break
    lost = sum(int(count) for count in failures.values() if isinstance(count, int))
    return [*found, *([f"{words.plural(lost, 'measurement')} failed"] if lost else [])]


def _interval(row: Row) -> Interval:
    return Interval(
        number(row, "estimate"),
        number(row, "low"),
        number(row, "high"),
        int(number(row, "n") or 0),
        int(number(row, "n_undefined") or 0),
    )


def _facts(content: Row) -> dict[str, str]:
    """What the card says of model and data, in words: names from `FACTS`, yes and no, ranges, short hashes."""
    facts = {}
    for key, value in content.items():
        text = ", ".join(f"{words.human(k)} {v}" for k, v in _flat(value).items()) if isinstance(value, dict) else ""
        if isinstance(value, bool):
            text = "yes" if value else "no"
        elif key == "range" and isinstance(value, list):
            ends = [number({"": end}, "") for end in value]
            text = " to ".join("unbounded" if end is None else f"{end:g}".replace("-", "−") for end in ends)
        elif key == "hash":
            text = str(value)[:SHORT_HASH]
        facts[FACTS.get(key, words.human(key))] = text or words.flatten(value)[""]
    return facts


def _mapping(value: Any) -> Row:
    return value if isinstance(value, dict) else {}


def _rows(value: Any) -> list[tuple[str, Row]]:
    items = value.items() if isinstance(value, dict) else ()
    return [(str(name), row) for name, row in items if isinstance(row, dict)]


def _flat(value: Any) -> dict[str, str]:
    return words.flatten(value) if isinstance(value, dict) and value else {}


def _text(value: Any) -> str:
    return words.DASH if value is None else str(value)


def _hint(title: str) -> str:
    return next((hint for word, hint in PICTURE_HINTS.items() if word in title.lower().replace("_", " ")), "")


def _svg_uri(path: Path) -> str | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return "data:image/svg+xml;base64," + base64.b64encode(content).decode("ascii")
