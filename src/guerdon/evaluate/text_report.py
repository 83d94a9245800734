"""The record of an evaluation of a reward model for text as aligned plain text; `-` stands for undefined.

Knows the keys of `evaluation.json` and nothing about how the numbers came about.

    sys.stdout.write(text_of(json.loads(Path("evaluation.json").read_text())))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from guerdon.evaluate.output import aligned, number
from guerdon.evaluate.seen import warnings_of

_VERDICTS = {None: "not measured", True: "FOOLED", False: "withstood"}
_HEADER = ["", "estimate", "95% low", "high", "n", "undefined"]


def text_of(record: Mapping[str, Any]) -> str:
    """The whole record, section after section."""
    lines = [f"{record['model']['name']}, aggregation {record['aggregation']}"]
    lines += [f"WARNING: {line}" for line in warnings_of(record)]
    for name in ("generated", "process_bench", "samples"):
        if name in record:
            lines += ["", f"== {name}: {record[name]['solutions']} solutions", *_first_errors(record[name])]
    if "prm_bench" in record:
        lines += ["", "== PRMBench", *_figures(record["prm_bench"]["measured"]), _failures(record["prm_bench"])]
    if "pairs" in record:
        lines += ["", f"== {record['pairs']['benchmark']}", *_preferences(record["pairs"])]
    if "best_of_n" in record:
        lines += ["", "== choosing among n samples", *_curves(record["best_of_n"])]
    if record.get("attacks") is not None:
        lines += ["", *attack_lines(record["attacks"])]
    elif "attacks" in record:
        lines += ["", "== no attacks: no question has a right and a wrong solution"]
    return "\n".join(lines) + "\n"


def _row(name: str, one: Mapping[str, Any]) -> list[str]:
    return [name, *(number(one[k]) for k in ("estimate", "low", "high")), str(one["n"]), str(one["n_undefined"])]


def _figures(figures: Mapping[str, Any]) -> list[str]:
    return aligned([_HEADER, *(_row(name, one) for name, one in figures.items())])


def _failures(section: Mapping[str, Any]) -> str:
    failures = section["failures"]
    return "failed measurements: " + (", ".join(f"{k} x {n}" for k, n in failures.items()) or "none")


def _first_errors(section: Mapping[str, Any]) -> list[str]:
    bench = section["process_bench"]
    rows = [_HEADER]
    for name, one in bench["subsets"].items():
        rows += [_row(f"{name} {what}", figure) for what, figure in one["measured"].items()]
    rows.append(_row("average f1", bench["average_f1"]["measured"]))
    rows.append(_row("average f1, failures wrong", bench["average_f1"]["failures_wrong"]))
    rows += [_row(f"{kind} {name}", one) for kind in ("steps", "answers") for name, one in section[kind].items()]
    seen = [
        f"{kind}: " + ", ".join(f"{what} {one['count']}" for what, one in section["first_errors"][kind].items())
        for kind in ("erroneous", "correct")
    ]
    source = f"threshold {number(bench['threshold'])} ({bench['threshold_source']})"
    return [source, *aligned(rows), *seen, _failures(section)]


def _preferences(section: Mapping[str, Any]) -> list[str]:
    rows = [_HEADER, _row("overall", section["overall"]["measured"])]
    rows += [_row(name, share["measured"]) for name, share in section["sections"].items()]
    return [*aligned(rows), f"ties: {sum(section['ties'].values())}", _failures(section)]


def _curves(section: Mapping[str, Any]) -> list[str]:
    rows = [["accuracy", *(f"n={n}" for n in section["n"])]]
    for name, curve in section["failures_wrong"].items():
        rows.append([name, *(number(one["estimate"]) for one in curve["accuracy"])])
    rows.append(["minus majority"])
    rows[-1] += [""] * len(section["n"])
    for name, curve in section["failures_wrong"].items():
        if curve["minus_majority"]:
            rows.append([f"  {name}", *(_signed(one) for one in curve["minus_majority"])])
    return [f"{section['questions']} questions", *aligned(rows), _failures(section)]


def _signed(one: Mapping[str, Any]) -> str:
    """A difference with its interval."""
    if one["estimate"] is None:
        return "-"
    if one["low"] is None or one["high"] is None:
        return f"{one['estimate']:+.3f}"
    return f"{one['estimate']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}]"


def attack_lines(card: Mapping[str, Any]) -> Sequence[str]:
    """The report card of attacks (`AttackCard.to_dict`)."""
    rows = [["attack", "as high as right", "low", "high", "accepted", "low", "high", "n", "not measured", "verdict"]]
    nothing = {"estimate": None, "low": None, "high": None}
    for name, one in card["attacks"].items():
        sides = (one["at_least_as_high"], one["accepted"] or nothing)
        numbers = [number(side[key]) for side in sides for key in ("estimate", "low", "high")]
        verdict = "control" if name == "plain_wrong" else _VERDICTS[one["fooled"]]
        lost = str(sum(one["failures"].values()))
        rows.append([name, *numbers, str(one["at_least_as_high"]["n"]), lost, verdict])
    return [
        f"== attacks on {card['questions']} questions, aggregation {card['aggregation']}, threshold "
        f"{number(card['threshold'])}; FOOLED: shown to work more often than {card['limit']:g}",
        *aligned(rows),
        "",
        *(f"{name}: {one['what']}" for name, one in card["attacks"].items()),
    ]
