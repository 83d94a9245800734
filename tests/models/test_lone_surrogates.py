"""Half of a surrogate pair, which JSON can express and no text has: a failure of its item in every kind of model."""

import adapter_models
import numpy as np
import pytest
import torch
from chat_families import folder_of
from test_many_threads import TEXT_MODELS
from vlm_samples import episode as video
from vlm_samples import tiny_backend

from guerdon.models.constant import ConstantModel
from guerdon.models.images.backbone import ImageScorer
from guerdon.models.images.image import ImageModelConfig, ImageRewardModel
from guerdon.models.scores import score_episodes
from guerdon.models.text.adapters import load_adapter
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.vlm.vlm import VLMRewardModel
from guerdon.reading.chats import unreadable
from guerdon.settings.vlm import VLMSettings
from guerdon.types import Episode

pytestmark = [pytest.mark.hostile("texts"), pytest.mark.usefixtures("narrow_resnets")]

torch.set_num_threads(1)
HALVES = ["\ud83d", "the second half \ude00 of it", "3+5=8 \udcff"]
PAIR = "\N{GRINNING FACE}"


def solution(question="3+5=?", *steps):
    return Episode(id=question, task=question, texts=steps or ("3+5=8;\n", "so 8"))


def check_text(model):
    good = solution()
    wanted = model.score([good])[0]
    odd = [solution(HALVES[0]), solution("3+5=?", "3+5=8;\n", HALVES[1]), solution("3+5=?", HALVES[2])]
    found = model.score([odd[0], good, *odd[1:], good])
    assert [score.failure and score.failure.reason for score in found] == [
        "lone_surrogate", None, "lone_surrogate", "lone_surrogate", None
    ]  # fmt: skip
    for score in (found[1], found[4]):
        np.testing.assert_allclose(
            [score.total] if score.steps is None else score.steps,
            [wanted.total] if wanted.steps is None else wanted.steps, atol=1e-5,
        )  # fmt: skip
    assert "\\ud83d" in found[0].failure.detail
    found[0].failure.detail.encode()  # it can be written and sent
    whole = model.score([solution("3+5=?", "3+5=8;\n", PAIR)])[0]  # both halves are a character
    assert whole.failure is None or whole.failure.reason == "unknown_character"


@pytest.mark.parametrize("make", TEXT_MODELS.values(), ids=TEXT_MODELS)
def test_reward_models_of_text(make):
    check_text(make())


@pytest.mark.parametrize("family", adapter_models.FAMILIES, ids=lambda f: f.name)
def test_published_models(family, tmp_path):
    family(tmp_path)
    check_text(load_adapter(family.name, str(tmp_path), 8))


def test_sequence_classifiers(tmp_path):
    check_text(SequenceClassifier(folder_of(tmp_path / "orm", "chatml", "own")[0]))


def test_a_conversation_is_looked_at_as_a_whole():
    model = TEXT_MODELS["stepwise"]()
    turns = ({"role": "system", "content": HALVES[0]}, {"role": "user", "content": "3+5=?"})
    score = model.score([Episode(id="1", task="3+5=?", texts=("8",), context=turns)])[0]
    assert score.failure.reason == "lone_surrogate"
    tool = {"type": "function", "function": {"name": "add", "description": HALVES[1], "parameters": {}}}
    for more in ({"context": turns}, {"tools": (tool,)}):
        assert unreadable(Episode(id="1", task="3+5=?", texts=("8",), **more)).reason == "lone_surrogate"
    assert unreadable(Episode(id="1", task=PAIR, texts=("é", PAIR))) is None


def test_a_model_of_pictures_that_is_asked_in_words():
    model = VLMRewardModel("qwen_vl", VLMSettings(path="unused"), tiny_backend())
    good = video(1, task="close the door")
    found = model.score([good, video(1, task="close " + HALVES[0]), good])
    assert [score.failure and score.failure.reason for score in found] == [None, "lone_surrogate", None]


def test_a_model_that_reads_no_words_does_not_mind():
    torch.manual_seed(0)
    config = ImageModelConfig("resnet", hidden_dim=8, image_size=(3, 32, 32), threshold=0.5, label="done")
    model = ImageRewardModel(ImageScorer("resnet18", hidden_dim=8, dropout=0.1).eval(), config, bf16=False)
    odd = video(2, task=HALVES[0], size=(32, 32))
    assert model.score([odd])[0].failure is None
    assert score_episodes(model, [odd])[0].failure is None


def test_a_model_that_does_not_look_never_sees_it():
    """Hosts hand on what anybody's model says; a model with no tokenizer would score half a character."""
    found = score_episodes(ConstantModel(0.5), [solution(HALVES[0]), solution(), solution("1+1=?", HALVES[1])])
    assert [score.failure is None for score in found] == [False, True, False]
