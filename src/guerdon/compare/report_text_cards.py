"""The evaluation of a reward model for text in the form of any other quality card: metrics, probes, facts, failures.

Metrics are those over what could be measured; attacks become probes. This module does not know HTML, nor how a model
is evaluated.

    if is_text_card(card.evaluation):
        content = flat_text_card(card.evaluation)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from guerdon.compare.read_runs import Row, number

CONTROL = "plain_wrong"


def is_text_card(content: Row) -> bool:
    """Whether an `evaluation.json` is that of a reward model for text."""
    return "aggregation" in content and "metrics" not in content


def flat_text_card(content: Row) -> dict[str, Any]:
    """Its `model`, `data`, `metrics`, `probes` and `failures`, as cards of other reward models have them."""
    data: dict[str, Any] = {"aggregation": content.get("aggregation")}
    metrics: dict[str, Row] = {}
    failures: Counter[str] = Counter()
    for name, title in (
        ("generated", "generated"),
        ("process_bench", "ProcessBench"),
        ("samples", "the policy's own solutions"),
    ):
        section = _map(content.get(name))
        if section:
            _bench(section, title, metrics, data)
            _add(failures, section)
    prm = _map(content.get("prm_bench"))
    metrics |= {f"PRMBench {name}": row for name, row in _map(prm.get("measured")).items() if isinstance(row, dict)}
    pairs = _map(content.get("pairs"))
    if pairs:
        metrics[f"{pairs.get('benchmark', 'pairs')} overall"] = _map(_map(pairs.get("overall")).get("measured"))
    for section in (prm, pairs, _map(content.get("best_of_n"))):
        _add(failures, section)
    _choices(_map(content.get("best_of_n")), metrics)
    return {
        "model": _map(content.get("model")),
        "data": data,
        "metrics": {name: row for name, row in metrics.items() if row},
        "probes": _attacks(_map(content.get("attacks"))),
        "failures": dict(failures),
    }


def _bench(section: Row, title: str, metrics: dict[str, Row], data: dict[str, Any]) -> None:
    """First errors, steps and answers of one set of solutions."""
    bench = _map(section.get("process_bench"))
    metrics[f"{title} F1, average"] = _map(_map(bench.get("average_f1")).get("measured"))
    subsets = _map(bench.get("subsets"))
    for name, subset in subsets.items() if len(subsets) > 1 else ():
        metrics[f"{title} F1, {name}"] = _map(_map(_map(subset).get("measured")).get("f1"))
    for kind in ("steps", "answers"):
        for name, row in _map(section.get(kind)).items():
            metrics[f"{title}_{kind}_{name}"] = _map(row)
    data[f"{title} solutions"] = section.get("solutions")
    data[f"{title} threshold"] = f"{bench.get('threshold')} ({bench.get('threshold_source')})"


def _choices(section: Row, metrics: dict[str, Row]) -> None:
    """The largest n of every curve of choices."""
    ns = section.get("n")
    if not isinstance(ns, list) or not ns:
        return
    for name, curve in _map(section.get("failures_wrong")).items():
        points = _map(curve).get("accuracy")
        if isinstance(points, list) and points:
            metrics[f"{name} of {ns[-1]}"] = _map(points[-1])


def _attacks(card: Row) -> dict[str, Row]:
    """Each attack as a probe: passed where nothing shows that it works."""
    limit = number(card, "limit")
    probes: dict[str, Row] = {}
    for name, attack in _map(card.get("attacks")).items():
        one = _map(attack)
        if name == CONTROL:
            continue
        fooled = one.get("fooled")
        shares = [number(_map(one.get(kind)), "estimate") for kind in ("at_least_as_high", "accepted")]
        known = [share for share in shares if share is not None]
        probes[f"attack {name}"] = {
            "applicable": fooled is not None,
            "passed": fooled is False,
            "value": max(known, default=None),
            "expected": f"a share near 0, not shown to be above {limit if limit is not None else 0.05:g} "
            f"(wrong solutions accepted, or valued as high as right ones: {one.get('what')})",
        }
    return probes


def _add(failures: Counter[str], section: Row) -> None:
    failures.update({str(k): int(v) for k, v in _map(section.get("failures")).items() if isinstance(v, int)})


def _map(value: Any) -> Row:
    return value if isinstance(value, dict) else {}
