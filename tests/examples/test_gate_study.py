"""The study behind the gate's table: what its degraded data sets are, and the table that it ends with."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from guerdon.comparison.study import plan_study
from guerdon.episodes.read import summarize
from guerdon.evaluation.gate.gate_table import read_gate_table
from guerdon.types import Episode

FILE = Path(__file__).parents[2] / "studies" / "gate.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gate_study", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def episodes():
    """Twelve of an expert, of which half succeed in their last four rows, and four that wander."""
    made = []
    for i in range(16):
        labels = np.zeros(20, dtype=np.bool_)
        labels[16:] = i < 6
        made.append(
            Episode(
                id=f"e{i}",
                task="close it",
                states=np.stack([np.arange(20.0)] * 2, axis=1).astype(np.float32),
                success=labels,
                outcome=bool(labels.any()),
                meta={"policy": "expert" if i < 12 else "random"},
            )
        )
    return made


def degraded(script, name, strength, seed=0):
    return script.DEGRADED[name][0](episodes(), strength, np.random.default_rng(seed))


def starts(those):
    return [int(e.success.argmax()) if e.success.any() else None for e in those]


def test_labels_of_episodes_are_swapped(script):
    changed = degraded(script, "noise", 1.0)
    assert [e.outcome for e in changed] == [not e.outcome for e in episodes()]
    assert starts(changed) == [None] * 6 + [17] * 10
    assert starts(degraded(script, "noise", 0.0)) == starts(episodes())


def test_few_keeps_successes_and_failures(script):
    kept = degraded(script, "few", 0.5)
    assert [e.outcome for e in kept].count(True) == 3
    assert len(kept) == 8
    assert len(degraded(script, "few", 1.0)) == 6


def test_narrow_has_no_wandering_and_arm_calls_near_misses_successes(script):
    assert [e.id for e in degraded(script, "narrow", 1.0)] == [f"e{i}" for i in range(6)]
    assert len(degraded(script, "narrow", 0.0)) == 12
    assert starts(degraded(script, "arm", 0.0)) == [16] * 6 + [15] * 6 + [None] * 4
    assert starts(degraded(script, "arm", 1.0)) == [15] * 6 + [None] * 4


def test_success_is_early_or_follows_from_time(script):
    assert starts(degraded(script, "early", 1.0)) == [8] * 6 + [None] * 10
    assert starts(degraded(script, "time", 0.0)) == [16] * 6 + [19] * 10
    assert starts(degraded(script, "time", 1.0)) == [19] * 10


def test_failure_is_success_and_the_start_the_goal(script):
    for before, after in zip(episodes(), degraded(script, "inverted", 1.0), strict=True):
        assert np.array_equal(after.success, ~before.success)
    back = degraded(script, "backwards", 1.0)
    assert starts(back) == [16] * 6 + [None] * 10
    assert back[0].states[:, 0].tolist() == list(range(16, -1, -1))


@pytest.mark.parametrize("name", ["noise", "few", "narrow", "arm", "early", "time", "inverted"])
def test_outcomes_follow_from_labels_and_frames_stay(script, name):
    original = {e.id: e for e in episodes()}
    for episode in degraded(script, name, 0.5, seed=3):
        assert episode.outcome == bool(episode.success.any())
        assert np.array_equal(episode.states, original[episode.id].states)


@pytest.mark.slow
def test_every_model_of_the_study_is_an_arm_and_reads_a_data_set_that_is_made(script):
    study = plan_study(FILE.with_suffix(".yaml"), []).study
    assert set(study.compare.arms) == {"native", *study.train}
    made = {"good", *script.DEGRADED}
    assert {Path(model.data_path).name for model in study.train.values()} == made
    assert len(study.train) * len(study.compare.tasks) >= 40


@pytest.mark.parametrize("place", [0, 3, None], ids=["the first", "the fourth", "none: the nearest"])
def test_a_clone_is_the_first_that_succeeds_often_enough(script, tmp_path, monkeypatch, place):
    """Made-up clones of which one, or none, succeeds in 30 to 60 % of episodes; data of the one before are removed."""
    chances = [0.0, 0.94] * (len(script.DEMONSTRATIONS) // 2)
    chances[5] = 0.7
    if place is not None:
        chances[place] = 0.5
    tried = []

    def study(*overrides):
        given = dict(one.partition("=")[::2] for one in overrides)
        tried.append((int(given["collect.episodes"]), int(given["collect.seed"])))
        places = {"collect": tmp_path / "demonstrations", "bc": tmp_path / "policy"}
        return SimpleNamespace(**{name: SimpleNamespace(save_dir=folder) for name, folder in places.items()})

    def collected(case):
        case.collect.save_dir.mkdir()  # fails where the last one's are still there
        case.bc.save_dir.mkdir()

    monkeypatch.setattr(script, "collect", collected)
    monkeypatch.setattr(
        script, "train_bc", lambda _: (tmp_path, {"success": chances[script.DEMONSTRATIONS.index(tried[-1])]})
    )
    found = script.clone(study)
    assert (found["demonstrations"], found["seed"]) == tried[-1]
    assert found["success"] == (0.7 if place is None else 0.5)
    assert tried[-1] == script.DEMONSTRATIONS[5 if place is None else place]


@pytest.mark.slow
def test_prepare_makes_every_data_set(script, tmp_path, monkeypatch):
    pytest.importorskip("metaworld")
    monkeypatch.setattr(script, "HELD_OUT", 2)
    monkeypatch.setattr(script, "clone", lambda study: {"success": 0.5})
    small = ["compare.tasks=[drawer-close]", "collect.episodes=6", "env.num_envs=2", "env.frame_size=[16, 16]"]
    script.prepare([f"work_dir={tmp_path}", "env.max_episode_steps=80", *small])
    script.prepare([f"work_dir={tmp_path}", "env.max_episode_steps=80", *small])
    data = tmp_path / "data" / "drawer-close"
    assert {path.name for path in data.iterdir()} == {"good", "held_out", *script.DEGRADED}
    assert summarize(data / "held_out").episodes == 2
    assert summarize(data / "good").episodes == summarize(data / "noise").episodes == 6
    assert (tmp_path / "starts" / "drawer-close.json").is_file()


def test_the_table_joins_the_rows_of_studies(script, tmp_path, monkeypatch):
    row = {"kind": "robot", "baseline": [0.5], "success": [0.7], "exploited": [False], "feature.auroc": 0.9}
    files = []
    for task in ("a", "b"):
        files.append(tmp_path / f"{task}.jsonl")
        rows = [{**row, "model": f"{task}/{arm}", "task": task, "family": arm} for arm in ("progress_few", "noise")]
        files[-1].write_text("".join(json.dumps(one) + "\n" for one in rows))
    out = tmp_path / "gate.parquet"
    monkeypatch.setattr(sys, "argv", ["gate.py", "table", *map(str, files), "--out", str(out)])
    script.main()
    table = read_gate_table(out)
    assert table.tasks == ["a", "b"]
    assert sorted(set(table.families_N.tolist())) == ["noise", "progress"]
    assert table.gains_N == pytest.approx([0.2] * 4)
