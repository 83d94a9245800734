"""Runs that lie side by side: arms and seeds from the names of their folders, and what makes them less comparable."""

import json
import re

import pytest
from synthetic_study import rising, write_run

from guerdon.comparison.report import write_report
from guerdon.comparison.results import comparison_rows
from guerdon.comparison.side_by_side import runs_of_a_folder, side_by_side
from guerdon.errors import DataError


def run(folder, name, seed, final, **algorithm):
    config = {"runner": {"seed": seed, "total_steps": 80_000}, "algorithm": {"gamma": 0.99, **algorithm}}
    write_run(folder / name, success=rising(final), config=config)
    (folder / name / "run.json").write_text(json.dumps({"task": "CartPole-v1", "seed": seed}))


def test_algorithms_are_compared_by_seed(tmp_path):
    for seed in range(3):
        run(tmp_path, f"ppo-seed{seed}", seed, 0.2 + 0.01 * seed)
        run(tmp_path, f"dqn-seed{seed}", seed, 0.8 + 0.02 * seed)
    run(tmp_path, "mine", 0, 0.5)
    (tmp_path / "notes").mkdir()
    study = side_by_side(tmp_path)
    assert (study.name, study.baseline, study.seeds, list(study.arms)) == (
        "CartPole-v1", "ppo", (0, 1, 2), ["dqn", "mine", "ppo"],
    )  # fmt: skip
    rows = {row.arm: row for row in comparison_rows(study)}
    assert {arm: row.n_runs for arm, row in rows.items()} == {"ppo": 3, "dqn": 3, "mine": 1}
    assert rows["dqn"].conclusion == "better"
    assert rows["dqn"].difference.interval.estimate == pytest.approx(0.61)
    assert not study.notes
    assert "probably better" in write_report(tmp_path).read_text()


def of_returns(folder):
    """Take success out of the lines of runs, as an environment that does not report it leaves them."""
    for path in folder.glob("*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["return/env"] = 100 * row.pop("success")
            row.pop("hacking_alarm", None)
            row.pop("failure_rate", None)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_runs_without_a_learned_reward_are_not_asked_about_one(tmp_path):
    for seed in range(2):
        run(tmp_path, f"ppo-seed{seed}", seed, 0.2)
        run(tmp_path, f"dqn-seed{seed}", seed, 0.8)
    of_returns(tmp_path)
    page = write_report(tmp_path).read_text()
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)
    assert "With ppo, the return of the environment ended at 20.00 on average." in body
    assert "With dqn, the return of the environment ended at 80.00 on average." in body
    sections = re.findall('<section id="([a-z]+)"', body)
    assert sections == ["conclusion", "curves", "numbers", "videos", "reproduce", "terms", "warnings"]
    assert set(re.findall(r'href="#([a-z]+)"', body)) - {"content"} <= set(sections)
    assert body.count("the environment does not report it") == 2, "below the conclusion and among the warnings"
    for absent in ("Reward model", "Failed scores", "gamed", "hacking", "Does a reward lead", "missing measurement"):
        assert absent not in body, absent


def test_runs_with_a_learned_reward_are(tmp_path):
    run(tmp_path, "ppo-seed0", 0, 0.2)
    page = write_report(tmp_path).read_text()
    assert "In the one run with ppo, the policy solved its task in" in page
    assert '<section id="reward"' in page
    assert "Failed scores" in page


def test_what_makes_runs_less_comparable_is_said(tmp_path):
    run(tmp_path, "ppo-seed0", 0, 0.2)
    run(tmp_path, "ppo-seed1", 1, 0.2, gamma=0.9)
    path = tmp_path / "ppo-seed1" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:12]))
    notes = side_by_side(tmp_path).notes
    assert len(notes) == 2
    assert "different lengths" in notes[0]
    assert "The runs of ppo differ in algorithm.gamma, not" in notes[1]


def test_what_is_no_folder_of_runs(tmp_path):
    with pytest.raises(DataError, match="no runs"):
        side_by_side(tmp_path)
    run(tmp_path, "ppo-seed0", 0, 0.2)
    run(tmp_path, "ppo", 0, 0.2)
    with pytest.raises(DataError, match="ppo and ppo-seed0 have the same name"):
        side_by_side(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    assert runs_of_a_folder(tmp_path) == []
