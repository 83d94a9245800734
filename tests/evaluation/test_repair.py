"""Repair of success classifiers: false positives at fixed recall, and `guerdon evaluate --attack` of a tiny world."""

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny_world  # noqa: F401
from guerdon.cli import app
from guerdon.collect.collect import collect
from guerdon.config.loading import load
from guerdon.episodes.read import read_episodes
from guerdon.errors import ConfigError
from guerdon.evaluation.suites import repair as exploits
from guerdon.evaluation.suites.repair import (
    attackable,
    false_positives,
    recall_thresholds,
    repair_cost,
    repair_study,
    repair_text,
)
from guerdon.settings.study import Study
from guerdon.settings.train import ResNetTrainSettings
from guerdon.train.images import held_out_episodes, train_image_model
from tables import refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")

STUDY = """
work_dir: {folder}
env: {{type: gymnasium, task: "tiny_world:Dot-v1", num_envs: 4, max_episode_steps: 12, frame_size: 32}}
collect: {{save_dir: "{folder}/data", episodes: 32, frame_every: 1, mixture: [{{type: random}}]}}
train:
  success:
    type: resnet
    data_path: "{folder}/data"
    save_dir: "{folder}/model"
    image_size: 32
    hidden_dim: 8
    bf16: false                 # the outcome of so short a training depends on it, and on the seed
    seed: 2
    batch_size: 16
    learning_rate: 1.0e-3
    max_steps: 6
    tensorboard: false
evaluate:
  reps: 100
  repair:
    {{lead: none, rounds: 1, starts: 4, steps: 8, hold: 1, score_every: 1, population: 12, generations: 3, elites: 2,
     recall: 1.0}}
"""


def test_the_threshold_accepts_the_wanted_share_and_no_more_than_it_must():
    values, once = np.array([0.2, 0.9, 0.4, 0.8, 0.6]), np.ones((1, 5))
    assert recall_thresholds(values, once, 1.0) == [0.2]
    assert recall_thresholds(values, once, 0.8) == [0.4]
    assert recall_thresholds(values, once, 0.7) == [0.4]
    assert recall_thresholds(values, once, 0.2) == [0.9]
    twice = np.array([[1, 1, 1, 1, 1], [0, 3, 0, 1, 1.0]])
    assert recall_thresholds(values, twice, 0.8).tolist() == [0.4, 0.8]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.01, 1))
def test_thresholds_keep_their_recall(values, recall):
    values = np.array(values)
    (threshold,) = recall_thresholds(values, np.ones((1, len(values))), recall)
    assert (values >= threshold).mean() >= recall - 1e-9
    assert (values > threshold).mean() < recall


def test_false_positives_by_hand():
    successes = {"before": np.array([0.5, 0.7, 0.9, 0.9]), "after": np.array([0.8, 0.8, 0.9, 0.9])}
    failures = {"before": np.array([0.6, 0.4, 0.95, np.nan]), "after": np.array([0.7, 0.1, 0.85, 0.9])}
    found = false_positives(successes, np.array([0, 0, 1, 1]), failures, recall=1.0, reps=200, seed=0)
    assert (found.models["before"].estimate, found.models["before"].n) == (pytest.approx(2 / 3), 3)
    assert found.models["before"].n_undefined == 1
    assert found.models["after"].estimate == pytest.approx(1 / 3)
    assert found.after_minus_before.estimate == pytest.approx(-1 / 3)
    assert found.after_minus_before.low <= -1 / 3 <= found.after_minus_before.high
    assert found.after_minus_control is None
    again = false_positives(successes, np.array([0, 0, 1, 1]), failures, recall=1.0, reps=200, seed=0)
    assert found == again


def test_where_nothing_is_fooled_the_interval_keeps_its_doubt_and_nothing_found_is_no_false_positive():
    successes = {"before": np.array([0.5, 0.7])}
    found = false_positives(
        successes, np.array([0, 1]), {"before": np.array([0.1, -np.inf])}, recall=1.0, reps=100, seed=0
    )
    assert found.models["before"].estimate == 0
    assert found.models["before"].high == pytest.approx(0.658, abs=0.01)  # Wilson, none of two
    none = false_positives(successes, np.array([0, 1]), {"before": np.array([np.nan])}, recall=1.0, reps=100, seed=0)
    assert (none.models["before"].estimate, none.models["before"].n_undefined) == (None, 1)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repair")
    (folder / "study.yaml").write_text(STUDY.format(folder=folder))
    study = load(Study, folder / "study.yaml")
    collect(study)
    train_image_model(study.image_models["success"])
    return study


@pytest.mark.slow
def test_two_repairs_in_one_process_give_equal_weights_attacks_and_reports(study):
    folder = Path(study.image_models["success"].save_dir) / "repair"
    runs = []
    for _ in range(2):
        ((report, paths),) = repair_study(study).values()
        weights = {path.parts[-3]: load_file(path) for path in sorted(folder.rglob("model.safetensors"))}
        runs.append((report, paths["json"].read_bytes(), paths["text"].read_bytes(), weights))
    (report, *written, weights), (again, *rewritten, same) = runs
    assert report == again
    assert written == rewritten
    assert weights.keys() == same.keys() == {"control", "round-1"}
    for name in weights:
        assert all(np.array_equal(weights[name][key], same[name][key]) for key in weights[name])

    assert report.rounds[0].exploited > 0
    itself = report.false_positives["search against itself"].models
    assert itself["before"].estimate > 0.5
    assert itself["after"].estimate < 0.5
    committed = list(read_episodes(folder / "committed"))
    added = list(read_episodes(folder / "negatives-1"))
    assert len(committed) == sum(report.committed.values())
    assert len(added) == report.rounds[0].added
    assert not any(e.success.any() for e in (*committed, *added))
    starts = [{e.meta["start"] for e in episodes} for episodes in (committed, added)]
    assert max(starts[0]) < min(starts[1]), "no start of a committed attack is trained on"
    assert {"held out", "search against itself", "committed hold"} < report.false_positives.keys()
    assert report.false_positives["committed search"].models.keys() == {"before", "control", "after"}
    assert json.loads(written[0])["committed_hash"] == report.committed_hash


def test_the_refit_holds_out_the_same_episodes(study):
    settings = study.image_models["success"]
    held = held_out_episodes(list(read_episodes(settings.data_path)), settings)
    metrics = json.loads((Path(settings.save_dir) / "metrics.json").read_text())
    result = train_image_model(
        settings.model_copy(update={"save_dir": f"{settings.save_dir}-again", "max_steps": 1}), held_ids=held
    )
    assert result.metrics["val_frames"] == metrics["val_frames"]
    assert result.metrics["val_episodes"] == len(held)


def test_what_cannot_be_attacked_is_refused(study):
    with pytest.raises(ConfigError, match="progress has no success classifier") as refused:
        repair_study(study, only=["progress"])
    assert refused.value.key == "--attack"
    with refuses("--attack"):
        repair_study(study.model_copy(update={"train": {}}))
    soon = ResNetTrainSettings(data_path="data", save_dir="model", within_steps=5)
    with refuses("--attack"):
        repair_study(study.model_copy(update={"train": {"soon": soon}}))


@pytest.mark.slow
def test_models_of_states_are_repaired(study, tmp_path):
    given = {"data_path": study.image_models["success"].data_path, "save_dir": str(tmp_path / "model"), "arch": "mlp"}
    settings = ResNetTrainSettings(**given, max_steps=1, batch_size=16, hidden_dim=8, tensorboard=False)
    train_image_model(settings)
    ((report, _),) = repair_study(study.model_copy(update={"train": {"states": settings}})).values()
    assert report.rounds[0].exploited > 0
    assert report.false_positives["held out"].models.keys() == {"before", "control", "after"}
    added = list(read_episodes(tmp_path / "model" / "repair" / "negatives-1"))
    assert len(added) == report.rounds[0].added
    for episode in added:
        assert episode.frames is None
        assert episode.outcome is False
        follow_the_dot(episode)


def follow_the_dot(episode):
    """Each state of the tiny world is the one before it, moved by the action between them."""
    x, moves = episode.states[:, 0], episode.actions[1:, 0]
    np.testing.assert_allclose(x[1:], np.clip(x[:-1] + 0.2 * moves, -1, 1), atol=1e-6)
    assert (episode.states[:, 1] == episode.states[0, 1]).all()


@pytest.mark.parametrize("lead", [0, 3])
def test_states_are_those_after_each_action_to_the_end_of_an_episode(study, lead):
    rng = np.random.default_rng(0)
    with closing(exploits.Attacker(study)) as attacker:
        leading = -np.ones((lead, 1), np.float32)
        moves = rng.uniform(-1, 0.2, (12, 10 - lead, 1)).astype(np.float32)  # the world ends episodes after 10 steps
        played = exploits.play(attacker._many, 0, leading, moves, every=1, states=True)
    episodes = [(episode, mine) for episode, mine in zip(played, moves, strict=True) if episode is not None]
    assert episodes
    for episode, mine in episodes:
        assert len(episode) == 11 - lead
        np.testing.assert_array_equal(episode.actions[1:], mine)
        follow_the_dot(episode)


def test_a_model_of_another_camera_or_of_what_would_be_removed_is_refused(study):
    model = study.image_models["success"]

    def attacked(**changes):
        return attackable(study.model_copy(update={"train": {"success": model.model_copy(update=changes)}}))

    with refuses("train.success.camera"):
        attacked(camera="wrist")
    with refuses("train.success.data_path"):
        attacked(data_path=(*model.data_paths, f"{model.save_dir}/repair/negatives-1"))
    assert list(attackable(study)) == ["success"]


def with_rounds(study, rounds):
    plan = study.control_evaluate.repair.model_copy(update={"rounds": rounds})
    return study.model_copy(update={"evaluate": study.control_evaluate.model_copy(update={"repair": plan})})


@pytest.mark.slow
def test_the_cost_is_what_is_played(study, monkeypatch):
    played, play = [], exploits.play
    monkeypatch.setattr(exploits, "play", lambda *a, **k: played.append(len(a[3])) or play(*a, **k))
    ((report, _),) = repair_study(study).values()
    assert report.rounds[0].exploited > 0  # so the round was played to its end
    assert repair_cost(study) == {"models": 1, "episodes": sum(played), "trainings": 2}
    lead = study.control_evaluate.repair.model_copy(update={"lead": "expert"})
    longer = study.model_copy(update={"evaluate": study.control_evaluate.model_copy(update={"repair": lead})})
    assert repair_cost(longer)["episodes"] == sum(played) + lead.starts * (1 + lead.rounds)  # one lead from each start


def test_committed_starts_that_are_alike_are_said(study, monkeypatch):
    ((report, _),) = repair_study(with_rounds(study, 0)).values()
    assert report.alike == 0
    assert "begin as another one does" not in repair_text(report)
    assert "3 of the committed starts begin as another one does" in repair_text(replace(report, alike=3))


def test_the_command_line(study, monkeypatch):
    folder = Path(study.work_dir)
    monkeypatch.chdir(folder)

    def call(*words):
        return CliRunner().invoke(app, ["evaluate", "study.yaml", "--attack", *words])

    assert isinstance(call("--gate").exception, ConfigError)
    planned = call("--dry-run")
    assert planned.exit_code == 0, planned.output
    assert "trainings: 2" in planned.output
    assert isinstance(call("--dry-run", "--only", "nonsense").exception, ConfigError)
    done = call("evaluate.repair.rounds=0")
    assert done.exit_code == 0, done.output
    assert "committed search" in done.output
    assert not list((folder / "model" / "repair").glob("round-*"))
