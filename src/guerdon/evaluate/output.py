"""Write an evaluation into a directory: `evaluation.json`, `evaluation.txt` and SVG pictures.

Knows file names and nothing about how the numbers came about. Every file is written beside and renamed, the
JSON last, so a directory with an `evaluation.json` is complete.

    paths = write_evaluation(evaluation, Path("runs/resnet/evaluation"))
    rich.print(evaluation_text(evaluation))
"""

from __future__ import annotations

from pathlib import Path

from guerdon.atomic import write_json, write_text
from guerdon.evaluate import pictures
from guerdon.evaluate.evaluate import Evaluation
from guerdon.evaluate.judge import ProbeResult


def evaluation_pictures(evaluation: Evaluation) -> dict[str, str]:
    """Name to SVG; a reliability diagram only for probabilities, curves only where rows are judged."""
    table, threshold = evaluation.table, evaluation.model["threshold"]
    drawn = {
        "roc": pictures.roc_curve(table.labels, table.scores),
        "histogram": pictures.score_histogram(table.labels, table.scores, threshold=threshold),
    }
    if evaluation.reliability:
        drawn["reliability"] = pictures.reliability_diagram(evaluation.reliability)
    if evaluation.curves:
        drawn["values"] = pictures.value_curves([(curve.values, curve.success) for curve in evaluation.curves])
    return drawn


def number(value: float | None) -> str:
    """Three decimals; `-` where undefined."""
    return "-" if value is None else f"{value:.3f}"


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows as aligned columns, the first one left, the others right."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if c == 0 else cell.rjust(width)
            for c, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _answer(result: ProbeResult) -> str:
    if not result.applicable:
        return "not applicable"
    return "not measured" if result.passed is None else ("passed" if result.passed else "FAILED")


def evaluation_text(evaluation: Evaluation) -> str:
    """The evaluation as aligned plain text; `-` stands for undefined."""
    model, data = evaluation.model, evaluation.data
    header = ["metric", "estimate", "95% low", "high", "baseline", "n", "undefined"]
    rows = [header]
    for name, metric in evaluation.metrics.items():
        i = metric.interval
        numbers = [number(value) for value in (i.estimate, i.low, i.high, metric.baseline)]
        rows.append([name, *numbers, str(i.n), str(i.n_undefined)])
    found = [["probe", "answer", "value", "n"]]
    found += [
        [name, _answer(result), number(result.value), str(result.n)] for name, result in evaluation.probes.items()
    ]
    ordered = any(name.startswith("value_order_") for name in evaluation.metrics)
    failed = ", ".join(f"{reason} x {count}" for reason, count in evaluation.failures.items())
    lines = [
        f"{model['name']} ({model['kind']}), threshold {number(model['threshold'])}",
        f"{data['episodes']} episodes ({data['positives']} successful), {data['rows']} rows "
        f"({data['rows_positive']} successful); {data['episodes_left_out']} episodes left out",
        f"failed measurements: {failed or 'none'}",
        "",
        *aligned(rows),
        "",
        *aligned(found),
        "",
        *(f"{name}: {result.expected}" for name, result in evaluation.probes.items()),
        *(["value_order: rows up to first success, mean over successful episodes"] if ordered else []),
    ]
    return "\n".join(lines) + "\n"


def write_evaluation(evaluation: Evaluation, directory: Path) -> dict[str, Path]:
    """Write everything into `directory`, made if missing.

    Returns:
        Paths by name: `json`, `text`, and the pictures `roc`, `histogram`, `reliability`, `values` as drawn.
    """
    drawn = evaluation_pictures(evaluation)
    paths = {name: directory / f"{name}.svg" for name in drawn}
    for name, svg in drawn.items():
        write_text(paths[name], svg)
    paths["text"] = directory / "evaluation.txt"
    write_text(paths["text"], evaluation_text(evaluation))
    paths["json"] = directory / "evaluation.json"
    content = evaluation.to_dict({name: paths[name].name for name in drawn})
    write_json(paths["json"], content)
    return paths
