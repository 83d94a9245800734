"""Weights of ratings that are changed after training: in Python, served, in a run and in an evaluation."""

import json

import numpy as np
import pytest
from pydantic import TypeAdapter
from tiny_text_policies import tiny_policy

from guerdon.errors import ConfigError
from guerdon.evaluation.suites.text_suite import evaluate_text_study
from guerdon.models.load import load_source_model
from guerdon.models.text.sequence_classifier import PreferenceModel
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_load import load_text_model
from guerdon.serve.backends import build_model
from guerdon.settings.reward_models import RewardModelSettings
from guerdon.settings.serve import ServedModelSettings
from guerdon.settings.study import Study
from guerdon.types import Episode
from tables import refuses

EPISODES = [Episode(id=str(k), task="2+2?", texts=(text,)) for k, text in enumerate(("4", "5", "12", "=7"))]


@pytest.fixture(scope="module")
def rm(tmp_path_factory):
    card = TextModelCard("preference", "conversation", "regression", outputs={"help": 1.0, "long": -2.0})
    return PreferenceModel(tiny_policy(), card).write(tmp_path_factory.mktemp("rm") / "rm")


def totals(model):
    return np.array([one.total for one in model.score(EPISODES)])


def test_the_reward_is_the_sum_with_the_weights_that_are_given(rm):
    helped, long = (totals(load_text_model(str(rm), weights={name: 1.0})) for name in ("help", "long"))
    assert np.ptp(helped) > 0
    np.testing.assert_allclose(totals(load_text_model(str(rm))), helped - 2 * long, atol=1e-6)
    options = {"weights": {"help": 0.5, "long": 3.0}}
    wanted = 0.5 * helped + 3 * long
    np.testing.assert_allclose(totals(load_text_model(str(rm), **options)), wanted, atol=1e-6)
    served = build_model("rm", ServedModelSettings(model_path=str(rm), options=options))
    np.testing.assert_allclose(totals(served), wanted, atol=1e-6)
    given = {"model_type": "text", "checkpoint_path": str(rm), **options}
    source = load_source_model(TypeAdapter(RewardModelSettings).validate_python(given))
    np.testing.assert_allclose(totals(source), wanted, atol=1e-6)


def test_an_evaluation_with_other_weights(rm, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    texts = ["4", "5", "12", "=7", "1+1", "99"]
    rows = [{"prompt": f"{k}?", "chosen": texts[k], "rejected": texts[k - 1]} for k in range(6)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = {
        name: {"path": str(rm), "options": {"weights": {"help": sign}}} for name, sign in (("up", 1.0), ("down", -1.0))
    }
    evaluate = {"aggregation": "last", "models": models, "pairs": str(pairs), "save_dir": str(tmp_path / "out")}
    study = Study.model_validate({"policy": {"type": "text"}, "evaluate": evaluate})
    found = evaluate_text_study(study)
    up, down = (found[name][0]["pairs"]["overall"]["measured"]["estimate"] for name in ("up", "down"))
    assert up + down == pytest.approx(1.0)


@pytest.mark.parametrize("weights", [{"hlep": 1.0}, {"help": 0.0}, {}])
def test_weights_of_nothing_are_refused_with_the_ratings_that_there_are(rm, weights):
    with pytest.raises(ConfigError, match="are help, long") as refused:
        load_text_model(str(rm), weights=weights)
    assert refused.value.key == "weights"


def test_models_without_ratings_have_no_weights(tmp_path):
    card = TextModelCard("preference", "conversation", "bradley_terry")
    plain = PreferenceModel(tiny_policy(), card).write(tmp_path / "rm")
    with pytest.raises(ConfigError, match="not trained with attributes") as refused:
        load_text_model(str(plain), weights={"reward": 2.0})
    assert refused.value.key == "weights"
    with refuses("weights"):
        load_text_model("http://127.0.0.1:1/v1/rewards?model=x", weights={"reward": 2.0})
