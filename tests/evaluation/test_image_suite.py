"""The whole evaluation on a toy video (a bright column moves right; the edge is success), and of a trained model."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from synthetic import square_episodes

from guerdon.config.loading import load
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.evaluation.suites import image_suite
from guerdon.evaluation.suites.image_suite import (
    evaluate_model,
    evaluate_study,
    evaluation_text,
    held_out,
    write_evaluation,
)
from guerdon.models.scores import episode_value, score_episodes
from guerdon.settings.study import Study
from guerdon.settings.train import ResNetTrainSettings
from guerdon.statistics.intervals import wilson_interval
from guerdon.train.images import labelled_frames, read_data, train_image_model
from guerdon.train.trainer import joint_hash
from guerdon.types import Episode, Failure, RewardInfo, Score

pytestmark = pytest.mark.usefixtures("narrow_resnets")

ROWS, SIDE = 12, 12


def video(columns):
    frames = np.zeros((len(columns), 4, SIDE, 3), np.uint8)
    for t, column in enumerate(columns):
        frames[t, :, column] = 255
    return frames


def episode(number, succeeds, task="push", **meta):
    columns = np.linspace(0, SIDE - 1 if succeeds else 5, ROWS).astype(int)
    success = columns == SIDE - 1
    return Episode(
        id=str(number),
        task=task,
        frames=video(columns),
        success=success,
        outcome=bool(success.any()),
        meta=meta,
    )


EPISODES = [episode(i, i % 3 == 0, policy=f"p{i % 6}") for i in range(24)]


class Toy:
    """A model made of one function of an episode."""

    def __init__(self, values, **info):
        self.info = RewardInfo(**({"name": "toy", "range": (0.0, 1.0)} | info))
        self.values = values

    def score(self, episodes):
        return [found if isinstance(found := self.values(e), Score) else Score.from_values(found) for e in episodes]


def position(episode):
    """(T,) where the column is, from 0 to 1; 0 in the dark."""
    return episode.frames[:, 0, :, 0].argmax(axis=1) / (SIDE - 1)


def clock(episode):
    """Rises with time whatever the frames show."""
    return np.linspace(0, 1, len(episode))


def run(model, kind="success", threshold=0.95, episodes=EPISODES, **options):
    return evaluate_model(model, episodes, kind=kind, threshold=threshold, seed=0, reps=100, **options)


def estimates(evaluation):
    return {name: metric.estimate for name, metric in evaluation.metrics.items()}


def test_a_perfect_classifier():
    evaluation = run(Toy(position))
    found = estimates(evaluation)
    for name in (
        "auroc",
        "auprc",
        "f1",
        "balanced_accuracy",
        "accuracy",
        "episode_auroc",
        "episode_accuracy",
    ):
        assert found[name] == 1
    assert found["false_positive_rate"] == found["episode_false_positive_rate"] == 0
    assert found["preference_accuracy"] == 1
    assert found["value_order_spearman"] == pytest.approx(1)
    assert found["policy_ranking_pearson"] == pytest.approx(1)
    rate = evaluation.metrics["episode_false_positive_rate"]
    assert (rate.low, rate.high) == (0, pytest.approx(wilson_interval(0, 16).high))
    assert evaluation.metrics["accuracy"].baseline == pytest.approx(1 - 8 / 288)
    assert (evaluation.data["episodes"], evaluation.data["positives"]) == (24, 8)
    applied = {name: result.passed for name, result in evaluation.probes.items() if result.applicable}
    everything = set(evaluation.probes) - {"wrong_task"}
    assert applied == dict.fromkeys(everything, True)
    assert not evaluation.probes["wrong_task"].applicable


def test_a_perfect_progress_model():
    episodes = [episode(i, True) for i in range(6)] + [
        replace(episode(i, False), frames=video([0] * ROWS)) for i in range(6, 12)
    ]
    found = estimates(run(Toy(position), "progress", None, episodes))
    assert found["progress_mae"] < 0.05
    assert found["progress_pearson"] > 0.99
    assert found["episode_auroc"] == 1
    assert "brier" not in found
    assert "episode_f1" not in found


def test_a_clock_is_caught_by_the_probes():
    evaluation = run(Toy(clock))
    failed = {name for name, result in evaluation.probes.items() if result.passed is False}
    assert failed == {"black_frame", "frozen_first_frame", "reversed_video", "shuffled_frames"}
    assert estimates(evaluation)["value_order_spearman"] == pytest.approx(1)
    assert estimates(evaluation)["episode_auroc"] == 0.5


def test_a_latch_fails_when_the_goal_is_pasted_first():
    latched = run(Toy(lambda e: np.maximum.accumulate(position(e))))
    assert latched.probes["goal_pasted_first"].passed is False


def test_a_model_cannot_peek_at_the_truth_of_a_probe():
    def peek(episode):
        if episode.success is None:
            return Score(failure=Failure("no_success_column"))
        return episode.success.astype(np.float32)

    evaluation = run(Toy(peek))
    assert estimates(evaluation)["auroc"] == 1
    black = evaluation.probes["black_frame"]
    assert (black.applicable, black.passed, black.value) == (True, None, None)
    assert black.failures == {"no_success_column": 16}


def test_wrong_task_only_for_models_that_read_the_task():
    episodes = [*EPISODES, episode(99, True, task="pull")]
    reads = Toy(lambda e: position(e) * (e.task == "push"))
    deaf = Toy(position)
    assert run(reads, episodes=episodes).probes["wrong_task"].applicable is False
    assert run(reads, task_conditioned=True).probes["wrong_task"].passed is True
    assert run(deaf, task_conditioned=True).probes["wrong_task"].passed is False


def test_a_constant_model_is_undefined_not_zero():
    evaluation = run(Toy(lambda e: np.full(len(e), 0.3)))
    order = evaluation.metrics["value_order_spearman"]
    assert (order.estimate, order.n, order.n_undefined) == (None, 0, 8)
    assert estimates(evaluation)["auroc"] == 0.5
    assert estimates(evaluation)["preference_ties"] == 1
    assert evaluation.metrics["preference_accuracy_without_ties"].estimate is None


def test_failures_are_counted_and_never_scored():
    def flaky(episode):
        if int(episode.id) % 4 == 1:
            return Score(failure=Failure("timeout"))
        if int(episode.id) == 2:
            return np.zeros(3)
        return position(episode)

    evaluation = run(Toy(flaky))
    assert evaluation.failures == {"timeout": 6, "wrong_length": 1}
    auroc = evaluation.metrics["auroc"]
    assert (auroc.n, auroc.n_undefined) == (17 * ROWS, 7 * ROWS)
    assert evaluation.metrics["episode_auroc"].n_undefined == 7


def test_everything_failed_is_all_undefined(tmp_path):
    evaluation = run(Toy(lambda e: Score(failure=Failure("crash"))))
    assert set(estimates(evaluation).values()) == {None}
    content = json.loads(write_evaluation(evaluation, tmp_path)["json"].read_text())
    assert content["failures"] == {"crash": 24}
    assert "no data" in (tmp_path / "roc.svg").read_text()


@pytest.mark.parametrize("succeeds", [True, False])
def test_one_outcome_only(succeeds):
    evaluation = run(Toy(position), episodes=[episode(i, succeeds) for i in range(5)])
    assert estimates(evaluation)["episode_auroc"] is None
    assert estimates(evaluation)["preference_accuracy"] is None


def test_a_model_of_whole_episodes_and_one_of_states():
    whole = run(Toy(lambda e: Score(total=float(position(e)[-1])), granularity="total"))
    found = estimates(whole)
    assert found["episode_auroc"] == 1
    assert found["episode_brier"] < 0.2
    assert "auroc" not in found
    assert "value_order_spearman" not in found
    assert whole.probes["black_frame"].passed is True
    assert whole.probes["reversed_video"].applicable is False
    states = run(Toy(clock, modality="state", frames_needed=0))
    assert states.probes["black_frame"].applicable is False
    assert states.probes["frozen_first_frame"].passed is False


def test_scores_that_are_no_probabilities_have_no_calibration():
    logits = run(Toy(lambda e: 10 * position(e) - 5, range=(-np.inf, np.inf)), threshold=4.0)
    assert "brier" not in logits.metrics
    assert logits.reliability == []
    assert logits.to_dict()["model"]["range"] == [None, None]
    broken = run(Toy(lambda e: 3 * position(e)))
    assert broken.metrics["brier"].estimate is None
    assert broken.metrics["brier"].n_undefined == 24 * ROWS


def test_threshold_comes_from_the_call_or_the_model():
    owned = Toy(position, success_threshold=0.2)
    assert run(owned, threshold=None).model["threshold"] == 0.2
    assert run(owned, threshold=0.9).model["threshold"] == 0.9
    nobody = run(Toy(position), threshold=None)
    assert "f1" not in nobody.metrics
    assert nobody.probes["black_frame"].passed is True  # judged halfway between the classes


def test_the_same_seed_gives_the_same_evaluation():
    noisy = Toy(lambda e: np.random.default_rng(int(e.id)).random(len(e)))
    assert run(noisy).to_dict() == run(noisy).to_dict()


def test_bad_input_is_said_clearly():
    with pytest.raises(DataError, match="no episode"):
        run(Toy(position), episodes=[])
    short = Toy(position)
    short.score = lambda episodes: []
    with pytest.raises(DataError, match="gave 0 scores for 24 episodes"):
        score_episodes(short, EPISODES)


def test_episode_values():
    steps = Score.from_values([0.2, 0.9, 0.5])
    assert episode_value(steps, "success") == pytest.approx(0.9)
    assert episode_value(steps, "progress") == 0.5
    assert episode_value(Score(total=0.1), "success") == 0.1
    assert episode_value(Score(failure=Failure("x")), "success") is None


def test_probe_transforms_are_pure_and_blind():
    whole = episode(0, True)
    before = whole.frames.copy()
    changed = {
        "black": image_suite.black_frames(whole),
        "frozen": image_suite.frozen_first_row(whole),
        "reversed": image_suite.reversed_rows(whole),
        "shuffled": image_suite.shuffled_rows(whole, np.random.default_rng(0)),
        "goal": image_suite.goal_pasted_first(whole),
        "task": image_suite.wrong_task(whole, "pull"),
    }
    np.testing.assert_array_equal(whole.frames, before)
    for one in changed.values():
        assert (one.success, one.rewards, one.outcome, len(one)) == (None, None, None, ROWS)
    assert not changed["black"].frames.any()
    assert (changed["frozen"].frames == before[0]).all()
    np.testing.assert_array_equal(changed["reversed"].frames, before[::-1])
    assert sorted(position(changed["shuffled"])) == sorted(position(whole))
    np.testing.assert_array_equal(changed["goal"].frames[0], before[-1])
    np.testing.assert_array_equal(changed["goal"].frames[1:], before[1:])
    assert changed["task"].task == "pull"
    with pytest.raises(ValueError, match="goal"):
        image_suite.goal_pasted_first(episode(1, False))
    with pytest.raises(ValueError, match="frames"):
        image_suite.black_frames(Episode(id="0", task="t", states=np.zeros((2, 1), np.float32)))
    with pytest.raises(ValueError, match="already"):
        image_suite.wrong_task(whole, "push")


def test_written_files(tmp_path):
    evaluation = run(Toy(position, name="<toy> & co"))
    paths = write_evaluation(evaluation, tmp_path / "deep" / "folder")
    assert set(paths) == {"json", "text", "roc", "histogram", "reliability", "values"}
    assert sorted(p.name for p in paths["json"].parent.iterdir()) == sorted(p.name for p in paths.values())
    content = json.loads(paths["json"].read_text())
    assert set(content) == {
        "forecast", "model", "data", "metrics", "reliability", "probes", "failures", "pictures", "advice"
    }  # fmt: skip
    assert set(content["metrics"]["auroc"]) == {"estimate", "low", "high", "n", "n_undefined", "baseline"}
    assert {"applicable", "passed", "value", "expected"} <= set(content["probes"]["black_frame"])
    assert content["data"]["hash"] is None
    assert len(content["reliability"]) == 10
    assert all((paths["json"].parent / name).is_file() for name in content["pictures"].values())
    for name in content["pictures"]:
        assert ElementTree.parse(paths[name]).getroot().tag.endswith("svg")
    text = paths["text"].read_text()
    assert text == evaluation_text(evaluation)
    assert "value_order: rows up to first success" in text
    assert "auroc" in text
    assert "nan" not in text.lower()
    write_evaluation(evaluation, tmp_path / "deep" / "folder")
    assert json.loads(paths["json"].read_text()) == content


TEXT = """\
train:
  done: {type: resnet, data_path: data, save_dir: models/done, image_size: 32, hidden_dim: 8, max_epochs: 1,
         max_steps: 4, batch_size: 16, val_split: 0.25, tensorboard: false, augment: false}
  far: {type: progress, data_path: data, save_dir: models/far, image_size: 32, hidden_dim: 8, max_epochs: 1,
        max_steps: 4, batch_size: 16, val_split: 0.25, tensorboard: false, augment: false}
evaluate: {reps: 100}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with sixteen episodes and two models fitted to twelve of them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with EpisodeWriter("data", fps=10) as writer:
            for episode in square_episodes(16):
                writer.add(episode)
        Path("study.yaml").write_text(TEXT)
        study = load(Study, Path("study.yaml"))
        for settings in study.train.values():
            train_image_model(settings)
        yield folder


@pytest.fixture
def study(trained, monkeypatch):
    monkeypatch.chdir(trained)
    return load(Study, Path("study.yaml"))


@pytest.mark.parametrize("name", ["done", "far"])
def test_it_judges_exactly_what_training_held_out(study, name):
    settings = study.train[name]
    everything = list(read_episodes("data"))
    frames = labelled_frames(everything, settings)
    ids, (train, val) = frames.episode_ids, frames.split()
    judged = {episode.id for episode in held_out(settings, None)[0]}
    assert judged == {ids[i] for i in set(frames.episode[val])}
    assert not judged & {ids[i] for i in set(frames.episode[train])}
    assert len(judged) == 4


def test_sets_that_number_their_episodes_alike_are_kept_apart(tmp_path):
    """What is judged was not trained on, with two sets of the same ids, one of them given twice, and in a refit."""
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    for start, path in zip((0, 12, 24), paths, strict=True):
        with EpisodeWriter(Path(path), fps=10) as writer:
            for number, one in enumerate(square_episodes(36)[start : start + 12]):
                writer.add(replace(one, id=str(number)))
    settings = ResNetTrainSettings(
        data_path=(paths[0], paths[1], paths[0]), save_dir=str(tmp_path / "rm"), image_size=16, val_split=0.3
    )
    frames = labelled_frames(read_data(settings)[0], settings)
    shown = {}  # frames of an episode to the sides of the split that it is on
    for row, (owner, held) in enumerate(zip(frames.episode, frames.held, strict=True)):
        shown.setdefault(frames.pixels[row].tobytes(), set()).add(bool(held))
        assert frames.episode_ids[owner]
    assert {len(sides) for sides in shown.values()} == {1}
    episodes, digest = held_out(settings, None)
    judged = {frame.tobytes() for one in episodes for frame in one.frames}
    trained_on = {pixels for pixels, sides in shown.items() if sides == {False}}
    assert judged
    assert not judged & trained_on
    assert digest == joint_hash(read_data(settings)[1]) != dataset_hash(paths[0])
    more = settings.model_copy(update={"data_path": (*settings.data_paths, paths[2])})
    refit = labelled_frames(read_data(more)[0], more, held_ids={one.id for one in episodes})
    again = {refit.pixels[row].tobytes() for row in np.flatnonzero(~refit.held)}
    assert not judged & again


def test_it_writes_beside_the_model(study):
    results = evaluate_study(study)
    assert list(results) == ["done", "far"]
    for name, (_, paths) in results.items():
        folder = Path("models") / name
        assert {p.parent for p in paths.values()} == {folder}
        assert {p.suffix for p in paths.values()} >= {".json", ".txt", ".svg"}
        record = json.loads(paths["json"].read_text())
        text = json.dumps(record)
        assert "NaN" not in text
        for word in ("baseline", "black", "reversed"):
            assert word in text, word


def test_only_one_and_unknown_ones(study):
    assert list(evaluate_study(study, only=["far"])) == ["far"]
    with pytest.raises(ConfigError, match=r"zz.*done, far") as refused:
        evaluate_study(study, only=["zz"])
    assert refused.value.key == "--only"
    with pytest.raises(ConfigError, match=r"no reward model to evaluate.*evaluate\.remote") as refused:
        evaluate_study(Study())
    assert refused.value.key == "evaluate.remote"


def test_other_episodes_and_none(study):
    other = load(Study, Path("study.yaml"), ["evaluate.data_path=data"])
    assert len(held_out(other.train["done"], other.evaluate.data_path)[0]) == 16
    assert evaluate_study(other, only=["done"])["done"][0].data["trained_on"]
    assert "trained_on" not in evaluate_study(study, only=["done"])["done"][0].data
    whole = load(Study, Path("study.yaml"), ["train.done.val_split=0", "train.done.early_stopping_patience=null"])
    with pytest.raises(DataError, match=r"evaluate\.data_path"):
        held_out(whole.train["done"], None)


def test_a_model_that_was_not_trained(study):
    absent = load(Study, Path("study.yaml"), ["train.done.save_dir=models/none"])
    with pytest.raises(CheckpointError, match="guerdon train"):
        evaluate_study(absent, only=["done"])
