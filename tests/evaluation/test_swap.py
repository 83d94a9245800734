"""The swap test: a hand goes to a goal; where an object lies tells episodes apart and is nothing to success."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from guerdon.episodes.write import EpisodeWriter
from guerdon.evaluation.suites.image_suite import evaluate_model, evaluate_study, evaluation_text
from guerdon.evaluation.suites.swap import swap_test
from guerdon.models.images.backbone import ImageScorer
from guerdon.models.images.image import ImageModelConfig, ImageRewardModel
from guerdon.models.images.online import OnlineImageModel
from guerdon.settings.study import Study
from guerdon.types import Episode, Failure, RewardInfo, Score

HAND, GOAL, OBJECT = 0, 1, 2
ROWS, SUCCESS = 20, 15


def demonstrations(count=12, *, seed=0, lies=None):
    """The hand reaches its goal at row 15; `lies` draws where the object is."""
    rng = np.random.default_rng(seed)
    lies = lies or (lambda rng: rng.uniform(-1, 1))
    for n in range(count):
        start, goal, at = rng.uniform(-1, 1), rng.uniform(-1, 1), lies(rng)
        hand = start + (goal - start) * np.minimum(np.arange(ROWS) / SUCCESS, 1)
        fixed = np.ones(ROWS)
        states = np.stack([hand, goal * fixed, at * fixed], axis=1).astype(np.float32)
        success = np.arange(ROWS) >= SUCCESS
        yield Episode(
            id=f"demo-{seed}-{n}", task="go", states=states, actions=np.zeros((ROWS, 1), np.float32), success=success,
            rewards=np.zeros(ROWS, np.float32), outcome=True, meta={"policy": "expert"},
        )  # fmt: skip


def wandering(count=12, *, seed=5):
    """Episodes of a policy that goes anywhere."""
    rng = np.random.default_rng(seed)
    for n, one in enumerate(demonstrations(count, seed=seed)):
        states = one.states.copy()
        states[:, HAND] = rng.uniform(-1, 1, ROWS)
        nowhere = np.zeros(ROWS, bool)
        yield replace(one, id=f"other-{n}", states=states, success=nowhere, outcome=False, meta={"policy": "random"})


class Formula:
    """A model that is one function of the states."""

    def __init__(self, value, **info):
        self.info = RewardInfo(**{"name": "formula", "range": (0.0, 1.0), "modality": "state", **info})
        self.value = value

    def score(self, episodes):
        return [Score.from_values(self.value(e.states.astype(np.float64))) for e in episodes]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def at_goal(states):
    """Log-odds 3 at the goal, falling with the distance."""
    return sigmoid(3 - 10 * np.abs(states[:, HAND] - states[:, GOAL]))


def of(episodes):
    """Log-odds 3 where the object lies as in one of these episodes, else -3."""
    places = np.array([e.states[0, OBJECT] for e in episodes])
    return lambda states: sigmoid(np.where(np.isin(states[:, OBJECT].astype(np.float32), places), 3.0, -3.0))


def swapped(model, known, others, **given):
    return swap_test(model, known, others, **{"seed": 0, "reps": 200, **given})


def test_a_model_of_success_loses_nothing_by_another_episodes_numbers():
    known, others = list(demonstrations()), list(wandering())
    found = swapped(Formula(at_goal), known, others)
    assert (found.answer, found.columns, found.n) == ("not found", (str(OBJECT),), 12)
    assert (found.by_episode.estimate, found.by_episode.high) == (0, 0)
    assert found.difference.high < 0
    assert "it recognises success: a success loses 0.00 [0.00, 0.00] log-odds" in found.why


def test_a_model_of_the_episode_loses_all_by_them():
    known, others = list(demonstrations()), list(wandering())
    found = swapped(Formula(of(known)), known, others)
    assert found.answer == "found"
    assert found.by_episode.estimate == pytest.approx(6)
    assert (found.by_success.estimate, found.by_success.high) == (0, 0)
    assert "it recognises the episode more than success" in found.why
    assert "numbers of another policy's episode that only tell episodes apart (of the state: 2)" in found.why


def test_a_model_that_values_success_lower_recognises_nothing():
    """It likes other episodes more than its own, and rows that are not at success, too."""
    known, others = list(demonstrations()), list(wandering())
    model = Formula(lambda states: -2 * of(known)(states) - 0.1 * at_goal(states), range=(-np.inf, np.inf))
    found = swapped(model, known, others)
    assert found.difference.high < 0
    assert found.by_success.high < 0
    assert found.answer == "unknown"
    assert "it values success no higher than rows that are not at it" in found.why


def test_other_units_than_probabilities_are_differences_of_values():
    known, others = list(demonstrations()), list(wandering())
    model = Formula(lambda states: 100 * of(known)(states), range=(-np.inf, np.inf))
    found = swapped(model, known, others)
    assert found.answer == "found"
    assert found.by_episode.estimate == pytest.approx(100 * (sigmoid(3) - sigmoid(-3)))
    assert "value with the numbers" in found.why


def test_without_another_policy_demonstrations_that_it_does_not_know_take_its_place():
    known, new = list(demonstrations()), list(demonstrations(4, seed=9))
    found = swapped(Formula(of(known)), known, new)
    assert found.answer == "found"
    assert "a demonstration that it was not trained on" in found.why


def lacks_successes():
    return Formula(at_goal), list(demonstrations(5)), list(wandering()), "5 successful episodes"


def lacks_another_policy():
    known = list(demonstrations())
    return Formula(at_goal), known, known, "no episode of another policy"


def lacks_numbers_in_range():
    far = [replace(e, states=e.states + np.array([0, 0, 50], np.float32)) for e in wandering()]
    return Formula(at_goal), list(demonstrations()), far, "in the range of the demonstrations"


def lacks_columns():
    bare = [replace(e, states=e.states[:, :OBJECT]) for e in demonstrations()]
    return Formula(at_goal), bare, list(wandering()), "no number of the state stays the same"


def lacks_demonstrations_to_tell():
    return Formula(at_goal), list(demonstrations(lies=at_an_edge)), list(wandering()), "whether success depends on 2"


def lacks_scores():
    model = Formula(at_goal)
    model.score = lambda episodes: [Score(failure=Failure("broken")) for _ in episodes]
    return model, list(demonstrations()), list(wandering()), "could be scored"


def lacks_a_difference():
    rng = np.random.default_rng(0)
    noise = Formula(lambda states: sigmoid(rng.normal(size=len(states))))
    return noise, list(demonstrations()), list(wandering()), "more demonstrations would narrow these bounds"


def lacks_a_value_of_success():
    return (
        Formula(lambda states: np.full(len(states), 0.9)),
        list(demonstrations()),
        list(wandering()),
        "no higher than",
    )


@pytest.mark.parametrize(
    "case",
    [
        lacks_successes,
        lacks_another_policy,
        lacks_numbers_in_range,
        lacks_columns,
        lacks_scores,
        lacks_demonstrations_to_tell,
        lacks_a_value_of_success,
        lacks_a_difference,
    ],
)
def test_what_the_answer_lacks_is_said(case):
    model, known, others, why = case()
    found = swapped(model, known, others)
    assert found.answer == "unknown"
    assert found.why.startswith("could not be decided: ")
    assert why in found.why


def adversarial(known, against):
    """A network that tells demonstrations from a policy, all of whose rows are negatives."""
    torch.manual_seed(0)
    config = ImageModelConfig("resnet", "mlp", hidden_dim=32, dropout=0.0, threshold=0.5, state_size=3)
    scorer = ImageScorer("mlp", hidden_dim=32, dropout=0.0, state_size=3)
    positive = np.concatenate([e.states[e.success] for e in known])
    model = OnlineImageModel(
        ImageRewardModel(scorer, config), positive, np.ones(len(positive)), learning_rate=3e-3, batch_size=128
    )
    negative = np.concatenate([e.states for e in against])
    model.update(negative, np.zeros(len(negative)), steps=300)
    return model


def at_an_edge(rng):
    return rng.choice([-1.0, 1.0]) + rng.uniform(-0.01, 0.01)


def test_a_network_that_can_tell_demonstrations_by_the_object_does_so_and_is_found():
    """Against a policy that is mostly successful: where the hand is says little, and the object says it all."""
    successful = [e[SUCCESS:] for e in demonstrations(60, seed=3)]
    by_object = list(demonstrations(20, seed=2, lies=at_an_edge))
    assert swapped(adversarial(by_object, successful), by_object, list(wandering())).answer == "found"
    alike = list(demonstrations(100, seed=1))
    assert swapped(adversarial(alike, list(wandering(60))), alike, list(wandering())).answer == "not found"


def test_it_is_a_line_on_the_card_of_models_that_look_at_states():
    known, held = list(demonstrations()), [*demonstrations(4, seed=9), *wandering()]
    given = {"kind": "success", "threshold": 0.5, "seed": 0, "reps": 50}
    for model, passed, answer in ((Formula(of(known)), False, "FAILED"), (Formula(at_goal), True, "passed")):
        found = evaluate_model(model, held, known=known, **given)
        probe = found.probes["swapped_columns"]
        assert (probe.passed, probe.n) == (passed, 12)
        text = evaluation_text(found)
        (row,) = [line for line in text.splitlines() if line.startswith("swapped_columns ")]
        assert row.split()[1] == answer
        assert f"swapped_columns: {probe.detail}" in text
        assert json.loads(json.dumps(found.to_dict()))["probes"]["swapped_columns"]["detail"] == probe.detail
    lacking = evaluate_model(Formula(at_goal), held, **given).probes["swapped_columns"]
    assert (lacking.applicable, lacking.passed) == (True, None)
    assert "4 successful episodes" in lacking.detail
    of_frames = Formula(at_goal, modality="image", frames_needed=0)
    assert "swapped_columns" not in evaluate_model(of_frames, held, **given).probes


@pytest.mark.slow
def test_guerdon_evaluate_asks_about_the_episodes_of_the_training(tmp_path):
    with EpisodeWriter(tmp_path / "data") as writer:
        for episode in [*demonstrations(30), *wandering(20)]:
            writer.add(episode)
    from guerdon.train.images import train_image_model

    near = {"type": "resnet", "arch": "mlp", "data_path": str(tmp_path / "data"), "save_dir": str(tmp_path / "near")}
    settings = {**near, "max_steps": 200, "within_steps": 2, "tensorboard": False}
    study = Study.model_validate({"work_dir": str(tmp_path), "train": {"near": settings}, "evaluate": {"reps": 100}})
    train_image_model(study.image_models["near"])
    ((evaluation, _),) = evaluate_study(study).values()
    probe = evaluation.probes["swapped_columns"]
    assert probe.passed is True
    assert probe.n == 24, "four fifths of 30"
