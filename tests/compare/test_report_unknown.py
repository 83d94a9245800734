"""A study in which the true success of an arm is unknown: the report says so, and judges nothing."""

import json

from synthetic_study import comparison_table, write_study

from guerdon.compare.report import write_report


def without_success(path):
    """Take success out of a run's lines, as a run in an environment that does not report it writes them."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row.pop("success", None)
        row["hacking_alarm"] = None
        row["success_known"] = 0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_an_arm_without_known_success_has_no_verdict(tmp_path):
    study = tmp_path / "study"
    write_study(study, lambda task, arm, seed: 0.5, films=False)
    paths = list((study / "runs").glob("*/B/*/metrics.jsonl"))
    for path in paths:
        without_success(path)
    rows = {row["arm"]: row for row in comparison_table(study) if row["task"] == "all tasks"}
    assert (rows["B"]["final_success"], rows["B"]["area"], rows["B"]["verdict"]) == (None, None, "no data")
    assert rows["B"]["reached_50"] == 0
    page = write_report(study).read_text()
    assert "no verdict, true success is unknown in runs of B" in page
    assert "B/seed0: true success is unknown: its environment does not report it" in page
    assert f"In {len(paths)} runs true success is unknown, so no alarm is possible there" in page
