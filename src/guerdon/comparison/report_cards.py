"""Reward models of a study: their cards in the report, and their rows of the gate's table.

A card has findings, metrics with intervals, probes, and pictures as data URIs. It leads with the worst that its numbers
show (`findings`) and five metrics; the rest is folded. Pictures are embedded as images, never as markup, so that
nothing inside them can run; they share a budget of bytes. The evaluation of a reward model for text takes the same
form: its metrics are those over what could be measured, attacks become probes.

    cards, notes = card_views(study.cards, budget=600_000)
    name, interval = cards[0].metrics[0]
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guerdon.comparison.report_tables import MODEL_METRICS
from guerdon.comparison.results import (
    RewardModelCard,
    Row,
    RunRecord,
    StudyRecord,
    final_success,
    finite,
    mapping,
    number,
)
from guerdon.errors import DataError, boundary
from guerdon.evaluation.benchmarks.attacks import CONTROL
from guerdon.evaluation.gate.gate_card import card_folders, forecast_lines, likely_effect
from guerdon.evaluation.gate.gate_table import PREFIX
from guerdon.files.json_files import read_json
from guerdon.models.scores import RECORD
from guerdon.pages import formats as fmt
from guerdon.statistics.intervals import Interval

SHOWN = 5
ONLY_IF_SO = (
    "frames_needed", "success_threshold", "progress_horizon", "compares", "keys", "actions", "progress", "states",
    "camera", "outcome_unknown",
)  # fmt: skip
"""Facts that do not apply where they are 0, no or missing; the card leaves them out."""
GATE_FILE = "gate.jsonl"


@dataclass(frozen=True)
class CardProbe:
    """One probe: what was expected, what was measured on n cases, and perhaps in words; `passed` may be None.

    It is None where the probe does not apply, and where `detail` says what its answer lacks.
    """

    name: str
    passed: bool | None
    value: str
    expected: str
    n: int
    detail: str = ""


@dataclass(frozen=True)
class CardView:
    """A quality card ready for the page.

    Attributes:
        forecast: whether it will help RL, in lines; empty on a card without it.
        likely: `no` where it likely harms, `yes` where it likely helps, else empty.
        findings: what speaks against the model, in words, the worst first.
        metrics: names in words and intervals of the ones to look at first, at most `SHOWN`.
        more_metrics: all others.
        pictures: (title, data URI, what to look for).
    """

    task: str
    name: str
    forecast: tuple[str, ...]
    likely: str
    findings: tuple[str, ...]
    facts: Mapping[str, str]
    metrics: tuple[tuple[str, Interval], ...]
    more_metrics: tuple[tuple[str, Interval], ...]
    probes: tuple[CardProbe, ...]
    failures: Mapping[str, str]
    pictures: tuple[tuple[str, str, str], ...]


def cards_by_task(study: StudyRecord, *, budget: int) -> tuple[list[CardView], list[str]]:
    """`card_views` of a study, in the order of its tasks."""
    place = {task: i for i, task in enumerate(study.tasks)}
    by_task = sorted(study.cards, key=lambda card: place.get(card.task, len(place)))
    return card_views(by_task, budget=budget)


def card_views(cards: Sequence[RewardModelCard], *, budget: int) -> tuple[list[CardView], list[str]]:
    """Cards for the page, with as many pictures as fit into `budget` bytes; a line for each left out."""
    views: list[CardView] = []
    notes: list[str] = []
    for card in cards:
        pictures = []
        for name, path in card.pictures.items():
            title = name.replace("_", " ")
            try:
                uri = "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
            except OSError:
                notes.append(f"{card.task}/{card.name}: picture {path.name} cannot be read")
                continue
            if len(uri) > budget:
                notes.append(f"{card.task}/{card.name}: picture {path.name} is left out to keep this file small")
                continue
            budget -= len(uri)
            hint = next((hint for word, hint in fmt.WORDS["hints"].items() if word in title.lower()), "")
            pictures.append((title, uri, hint))
        try:
            with boundary(DataError, f"{card.task}/{card.name}: the forecast of its evaluation cannot be read"):
                forecast, likely = _forecast(card.evaluation.get("forecast"))
        except DataError as error:
            notes.append(str(error))
            forecast, likely = (), ""
        views.append(_view(card, tuple(pictures), forecast, likely))
    return views, notes


def _forecast(forecast: Any) -> tuple[tuple[str, ...], str]:
    """The lines of a forecast, and whether they are good news."""
    if forecast is None:
        return (), ""
    return tuple(forecast_lines(forecast)), {"harms": "no", "helps": "yes"}.get(likely_effect(forecast) or "", "")


def _view(
    card: RewardModelCard, pictures: tuple[tuple[str, str, str], ...], forecast: tuple[str, ...], likely: str
) -> CardView:
    content = card.evaluation
    if "aggregation" in content and "metrics" not in content:  # of a reward model for text
        content = flat_text_card(content)
    data, failures = mapping(content.get("data")), mapping(content.get("failures"))
    described = {**mapping(content.get("model")), **data}
    rows = _rows(content.get("metrics"))
    first = {name: rows[name] for name in MODEL_METRICS if name in rows}
    intervals = {name: interval_of(row) for name, row in (first | rows).items()}
    metrics = tuple((_metric_name(name), interval) for name, interval in intervals.items())
    probes = tuple(_probe(name, row) for name, row in _rows(content.get("probes")).items())
    return CardView(
        task=card.task,
        name=card.name,
        forecast=forecast,
        likely=likely,
        findings=tuple(_findings(intervals, probes, data, failures)),
        facts={
            fmt.WORDS["facts"].get(key, fmt.human(key)): _fact(key, value)
            for key, value in described.items()
            if not (key in ONLY_IF_SO and not value)
        },
        metrics=metrics[:SHOWN],
        more_metrics=metrics[SHOWN:],
        probes=probes,
        failures={fmt.human(reason): count for reason, count in fmt.flatten(failures).items() if reason},
        pictures=pictures,
    )


def _probe(name: str, row: Row) -> CardProbe:
    value, expected = number(row, "value"), row.get("expected")
    return CardProbe(
        fmt.human(name),
        bool(row.get("passed")) if row.get("applicable", True) else None,
        str(row.get("value") or fmt.DASH) if value is None else fmt.decimal(value, 3),
        fmt.DASH if expected is None else str(expected),
        int(number(row, "n") or 0),
        str(row.get("detail") or ""),
    )


def _metric_name(name: str) -> str:
    """A metric in words; for those of order over time with their rows."""
    rows = ", rows up to first success" if name.startswith("value_order_") else ""
    return fmt.human(name) + rows


def _rewarded_failures(intervals: Mapping[str, Interval], data: Row) -> Iterator[str]:
    """How many failed episodes, or else failed rows, are rewarded as a success; nothing where none is."""
    for name, cases, of in (
        ("episode_false_positive_rate", "episodes", "positives"),
        ("false_positive_rate", "rows", "rows_positive"),
    ):
        rate = intervals[name].estimate if name in intervals else None
        if not rate:
            continue
        known = [number(data, key) or 0.0 for key in (cases, of, "outcome_unknown")]
        failed = known[0] - known[1] - known[2]
        rewarded = rate * failed
        share = fmt.percent(rate)
        if failed > 0 and abs(rewarded - round(rewarded)) < 1e-6:
            share = f"{rewarded:.0f} of {failed:.0f}"
        yield f"rewarded as success: {share} failed {cases} {fmt.bounds(intervals[name])}".rstrip()
        return


def _findings(
    intervals: Mapping[str, Interval], probes: Sequence[CardProbe], data: Row, failures: Row
) -> Iterator[str]:
    """Findings against a model: failed probes, failures rewarded as success, metrics at the level of their baseline."""
    yield from (f"{probe.name}: failed ({probe.value}, n {probe.n})" for probe in probes if probe.passed is False)
    yield from _rewarded_failures(intervals, data)
    for name, about in MODEL_METRICS.items():
        one = intervals.get(name)
        if not about.finding or one is None or one.low is None or one.high is None or one.baseline is None:
            continue
        beaten = one.high < one.baseline if about.lower_is_better else one.low > one.baseline
        if not beaten:
            said = f"{_metric_name(name)} {fmt.decimal(one.estimate)} {fmt.bounds(one)}, n {one.n}"
            yield f"{said}: not shown to beat a model that ignores its input ({fmt.decimal(one.baseline)})"
            break
    lost = sum(count for count in failures.values() if isinstance(count, int))
    if lost:
        yield f"{fmt.plural(lost, 'measurement')} failed"


def interval_of(value: Any) -> Interval:
    """An interval of a record."""
    row = mapping(value)
    estimate, low, high, baseline = (number(row, key) for key in ("estimate", "low", "high", "baseline"))
    return Interval(estimate, low, high, int(number(row, "n") or 0), int(number(row, "n_undefined") or 0), baseline)


def _fact(key: str, value: Any) -> str:
    """A fact about model or data in words: yes and no, ranges, short hashes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key == "range" and isinstance(value, list):
        ends = [finite(end) for end in value]
        return " to ".join("unbounded" if end is None else f"{end:g}".replace("-", "−") for end in ends)
    if key == "hash":
        return str(value)[:12]
    return ", ".join(f"{fmt.human(k)} {v}".strip() for k, v in fmt.flatten(value).items())


def _rows(value: Any) -> dict[str, Row]:
    return {str(name): row for name, row in mapping(value).items() if isinstance(row, dict)}


def _metrics_of_steps(section: Row, bench: Row, title: str) -> dict[str, Row]:
    """Metrics of a set of solutions with known first errors, in which subsets stand apart where there are several."""
    metrics = {f"{title} F1, average": _inside(bench, "average_f1", "measured")}
    subsets = _inside(bench, "subsets")
    if len(subsets) > 1:
        for subset in subsets:
            metrics[f"{title} F1, {subset}"] = _inside(subsets, subset, "measured", "f1")
    for kind in ("steps", "answers"):
        for name, row in _inside(section, kind).items():
            metrics[f"{title}_{kind}_{name}"] = mapping(row)
    return metrics


_SETS = {"generated": "generated", "process_bench": "ProcessBench", "samples": "the policy's own solutions"}
"""Sections about solutions whose first errors are known, and what they are called."""


def flat_text_card(content: Row) -> dict[str, Any]:
    """Of a reward model for text: `model`, `data`, `metrics`, `probes`, `failures` as cards of others have them."""
    data: dict[str, Any] = {"aggregation": content.get("aggregation")}
    metrics: dict[str, Row] = {}
    for name, title in _SETS.items():
        section = _inside(content, name)
        if section:
            bench = _inside(section, "process_bench")
            metrics |= _metrics_of_steps(section, bench, title)
            data[f"{title} solutions"] = section.get("solutions")
            data[f"{title} threshold"] = f"{bench.get('threshold')} ({bench.get('threshold_source')})"
    metrics |= {f"PRMBench {name}": mapping(row) for name, row in _inside(content, "prm_bench", "measured").items()}
    pairs, choices = _inside(content, "pairs"), _inside(content, "best_of_n")
    metrics[f"{pairs.get('benchmark', 'pairs')} overall"] = _inside(pairs, "overall", "measured")
    for name, probe in _inside(content, "bias_probes").items():
        metrics[f"bias of {name}, {mapping(probe).get('unit')}"] = _inside(mapping(probe), "effect")
    for name, curve in _inside(choices, "failures_wrong").items():
        ns, points = choices.get("n"), mapping(curve).get("accuracy")
        if ns and isinstance(ns, list) and points and isinstance(points, list):
            metrics[f"{name} of {ns[-1]}"] = mapping(points[-1])
    gold = _inside(content, "over_optimisation")
    if gains := _inside(gold, "gold").get("gain"):
        metrics["gold reward, best of most samples minus one sample"] = mapping(gains[-1])
        metrics["sqrt(KL) where gold is highest"] = _inside(gold, "gold", "turn", "place")
    return {
        "model": _inside(content, "model"),
        "data": data,
        "metrics": {name: row for name, row in metrics.items() if row},
        "probes": _attacks(_inside(content, "attacks")),
        "failures": _failures_of_text(content),
    }


def _failures_of_text(content: Row) -> dict[str, int]:
    """How many measurements failed, by reason, in all sections."""
    gold = _inside(content, "over_optimisation", "failures")
    lost = [_inside(gold, "gold")]
    if not _inside(content, "best_of_n"):
        lost.append(_inside(gold, "model"))
    for name in (*_SETS, "prm_bench", "pairs", "best_of_n"):
        lost.append(_inside(content, name, "failures"))
    failures: Counter[str] = Counter()
    for counts in lost:
        failures.update({str(k): int(v) for k, v in counts.items() if isinstance(v, int)})
    return dict(failures)


def _inside(content: Row, *path: str) -> Row:
    """The object at a path of keys, empty where there is none."""
    for key in path:
        content = mapping(content.get(key))
    return content


def _attacks(card: Row) -> dict[str, Row]:
    """Each attack as a probe: passed where nothing shows that it works."""
    limit = number(card, "limit")
    probes: dict[str, Row] = {}
    attacks = {name: mapping(one) for name, one in _inside(card, "attacks").items() if name != CONTROL}
    for name, one in attacks.items():
        shares = [number(_inside(one, kind), "estimate") for kind in ("at_least_as_high", "accepted")]
        probes[f"attack {name}"] = {
            "applicable": one.get("fooled") is not None,
            "passed": one.get("fooled") is False,
            "value": max([share for share in shares if share is not None], default=None),
            "expected": f"a share near 0, not shown to be above {limit if limit is not None else 0.05:g} "
            f"(wrong solutions accepted, or valued as high as right ones: {one.get('what')})",
        }
    return probes


# ---------------------------------------------------------------------------------------------------------------------
# Rows of the gate's table: what the reward models of a study measured before RL, and what they did in it.
#
# A task whose baseline uses a reward model has none. They are `gate.jsonl` beside the study's report. Files of several
# studies are one table when they are put together: `cat runs/*/gate.jsonl > mine.jsonl`.
#
#     rows = gate_rows(read_study(Path("runs/demo")))
# ---------------------------------------------------------------------------------------------------------------------


def gate_rows(study: StudyRecord) -> list[dict[str, Any]]:
    """A row for each task and arm that uses one reward model which was evaluated, against the baseline's same seeds.

    A task whose baseline uses a reward model has no rows. The family of a reward model, which the gate's
    cross-validation withholds, is the name of its arm. A seed that lacks a complete run on either side is null in both;
    a row without any other is left out.
    """
    rows = []
    for task in study.tasks:
        baseline = {run.seed: run for run in study.select(arm=study.baseline, task=task)}
        if any(_models_of(run) for run in baseline.values()):
            continue
        for arm in study.arms:
            row = _gate_row(study, task, arm, baseline)
            if row is not None:
                rows.append(row)
    return rows


def _gate_row(
    study: StudyRecord, task: str, arm: str, baseline: Mapping[int | None, RunRecord]
) -> dict[str, Any] | None:
    """The row of a task and an arm; None without features of one reward model, or without a complete pair of runs."""
    runs = study.select(arm=arm, task=task)
    paths = next((found for run in runs if (found := _models_of(run))), [])
    features = _features(study, task, paths[0]) if len(paths) == 1 else None
    if not features or arm == study.baseline:
        return None
    paired = [run for run in runs if run.seed in baseline]
    before: list[float | None] = []
    after: list[float | None] = []
    for run in paired:
        pair: tuple[float | None, float | None] = (final_success(baseline[run.seed]), final_success(run))
        if None in pair:
            pair = (None, None)
        before.append(pair[0])
        after.append(pair[1])
    if set(after) <= {None}:
        return None
    return {
        "model": f"{study.name}/{task}/{arm}",
        "kind": "text" if study.unit == fmt.TEXT else "robot",
        "task": task,
        "family": arm,
        "seeds": [run.seed for run in paired],
        "baseline": before,
        "success": after,
        "exploited": [_exploited(run) for run in paired],
        **{PREFIX + name: value for name, value in features.items()},
    }


def _exploited(run: RunRecord) -> bool | None:
    """Whether the hacking alarm was raised in a complete run; None where it could not be."""
    alarms = [alarm for row in run.trains if (alarm := number(row, "hacking_alarm")) is not None]
    return any(alarms) if alarms and run.status == "complete" else None


def _models_of(run: RunRecord) -> list[str]:
    """The paths of the reward models of a run, by its configuration; an empty path for each model without one."""
    reward = mapping(run.config.get("reward"))
    if not reward.get("use_reward_model"):
        return []
    models = [mapping(mapping(source).get("model")) for source in mapping(reward.get("sources")).values()]
    return [str(model.get("checkpoint_path") or "") for model in models]


def _features(study: StudyRecord, task: str, path: str) -> dict[str, float | None]:
    """The features on the card of the reward model at a path: one of the study's own, or the one that lies there."""
    given = Path(path)
    places = {f"models/{card.task}/{card.name}": card.evaluation for card in study.cards if card.task == task}
    own = [c for end, c in places.items() if any(p.as_posix().endswith(end) for p in (given, given.parent))]
    there = [content for folder in card_folders(path) if (content := read_json(folder / RECORD)) is not None]
    card = next(iter([*own, *there]), {})
    features = mapping(mapping(card.get("forecast")).get("features"))
    return {str(name): finite(value) for name, value in features.items()}
