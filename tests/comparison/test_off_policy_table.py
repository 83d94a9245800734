"""The tables of the study of off-policy learning, on runs whose curves are given."""

from pathlib import Path

import numpy as np
import pytest
import synthetic_study
from studies.off_policy_table import finished, keep, median_interval, read_rows, shares_of_steps, table
from synthetic_study import write_study

from guerdon.comparison.results import measure_curve, read_study

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """L is better than 0/1 on the first task, and equal on the second, which 0/1 solves; P never learns the first."""
    finals = {"first": {"A": 0.2, "L": 0.9, "P": 0.0}, "second": {"A": 0.9, "L": 0.9, "P": 0.95}}
    monkeypatch.setattr(synthetic_study, "ARMS", {name: name for name in "ALP"})
    monkeypatch.setattr(synthetic_study, "SOURCES", dict.fromkeys("ALP", ("env",)))
    made = lambda task, arm, seed: finals[task][arm] + 0.01 * seed  # noqa: E731
    return write_study(tmp_path / "study", made, tasks=tuple(finals), videos=False, cards=False)


def test_steps_to_the_level_of_ppo(folder):
    study = read_study(folder)
    shares = shares_of_steps(study, "L")
    run = next(run for run in study.select(arm="L") if run.task == "first" and run.seed == 0)
    steps, values = measure_curve(run)
    assert shares[0, 0] == next(s for s, v in zip(steps, values, strict=True) if v >= 0.01) / steps[-1]
    assert np.isinf(shares[1]).all(), "0.92 is below the mean of P's ends, 0.96"


def test_the_median_of_runs_of_which_some_never_get_there():
    found = median_interval(np.array([[0.1, 0.2, np.inf], [0.3, np.nan, np.inf]]))
    assert found[0] == 0.3
    assert 0.1 <= found[1] <= 0.3
    assert found[2] == np.inf
    assert median_interval(np.full((4, 5), 0.25)) == (0.25, 0.25, 0.25)


def test_the_counts_of_tasks(folder):
    lines = table(folder).splitlines()
    assert lines[3].startswith("| first | 0.21 ")
    assert "| +0.70" in lines[3]
    assert "Where 0/1 ends below 0.8: L above on 1 of 1 tasks; elsewhere L lower by 0.1 or more on 0 of 1." in lines
    assert next(line for line in lines if line.startswith("| P |")).endswith("of 6 |")
    both = table(folder, ("LA", "PL")).splitlines()
    assert both[0].endswith("| L − A | L − A, area | P − L | P − L, area |")
    assert both[3].startswith(lines[3])
    assert "Where L ends below 0.8: P above on 0 of 0 tasks; elsewhere P lower by 0.1 or more on 1 of 2." in both


def test_curves_are_kept_in_a_file_that_grows(folder, tmp_path):
    """The same runs again replace themselves; others stay."""
    file = tmp_path / "curves.csv"
    keep(finished(folder), file)
    whole = read_rows(file)
    assert table(file) == table(folder)
    keep((row for row in finished(folder) if row.task == "first"), file)
    assert read_rows(file) == whole
    file.write_text(file.read_text().replace("second,", "third,"))
    keep(finished(folder), file)
    assert {row.task for row in read_rows(file)} == {"first", "second", "third"}


def test_the_curves_that_were_measured_give_the_table_of_the_results():
    found = table(ROOT / "studies" / "off_policy.csv").splitlines()
    page = (ROOT / "docs" / "results" / "robots.md").read_text(encoding="utf-8")
    rows = [[cell.partition(" [")[0] for cell in line.strip("| ").split(" | ")] for line in found[2:13]]
    assert [row[0] for row in rows][:2] == ["all", "button-press"]
    for task, zero_one, clone, dense, learned, ppo, _, area in rows:
        assert f"| {task} | {zero_one} | {learned} | {dense} | {ppo} | {clone} | {area} |\n" in page, task
    arms = {line.split(" | ")[0].strip("| "): line.split(" | ", 1)[1] for line in found[-5:]}
    names = {"A": "SAC, 0/1", "D": "SAC, dense", "L": "SAC, learned", "P": "PPO, learned", "B": "PPO, from a clone"}
    for arm, name in names.items():
        assert f"| {name} | {arms[arm]}\n" in page


def test_the_curves_of_the_falling_source_give_the_table_of_the_results():
    found = table(ROOT / "studies" / "off_policy_falling.csv", ("FA", "LA", "CA")).splitlines()
    page = (ROOT / "docs" / "results" / "robots.md").read_text(encoding="utf-8")
    for line in found[3:13]:
        task, zero_one, cloned, falling, learned, *differences = line.strip("| ").split(" | ")
        areas = [differences[k] if differences[k] != "–" else "" for k in (1, 3, 5)]
        cells = [task, zero_one, falling, learned, cloned if cloned != "–" else "", *areas]
        assert f"| {' | '.join(cells)} |".replace("|  |", "| |") in page, task
