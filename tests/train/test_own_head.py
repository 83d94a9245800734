"""A head of one's own: a class and its settings are all that training, storing and scoring need."""

from typing import ClassVar, Literal

import numpy as np
import torch
from text_lessons import data_of, study_of, sums

from guerdon.models.text.text_card import read_card
from guerdon.models.text.text_load import load_text_model
from guerdon.models.text.text_model import TextRewardModel
from guerdon.settings import train
from guerdon.settings.train import _HeadSettings, _StepSettings
from guerdon.train.text import train_text_model
from guerdon.types import Score

torch.set_num_threads(1)


class FirstTokenModel(TextRewardModel):
    """A value per step, read at the step's first token."""

    meaning = "the step is right, seen from its first token"

    def _read(self, question, steps):
        from guerdon.models.text.text_inputs import read_steps

        return read_steps(self.tokenizer, question, steps)

    def places(self, reading):
        return np.concatenate([[reading.start], reading.ends_S[:-1] + 1])


class FirstTokenSettings(_StepSettings, _HeadSettings):
    type: Literal["first_token"] = "first_token"
    model: ClassVar = f"{__name__}:FirstTokenModel"


def test_a_class_and_its_settings_are_a_new_head(tmp_path, monkeypatch):
    monkeypatch.setitem(train.TEXT_MODELS, "first_token", FirstTokenSettings.model)
    settings = FirstTokenSettings(
        save_dir=str(tmp_path), max_steps=6, batch_size=8, learning_rate=3e-3, val_split=0.2, save_steps=3, bf16=False
    )
    result = train_text_model(settings, study_of(), data_of())
    card = read_card(result.folder)
    assert (card.kind, card.labels) == ("first_token", FirstTokenModel.meaning)
    assert result.metrics["step_auroc"] is not None
    model = load_text_model(str(tmp_path))
    assert isinstance(model, FirstTokenModel)
    episode = sums()[0].as_episode()
    score = model.score([episode])[0]
    assert isinstance(score, Score)
    reading = model.read(episode.task, episode.texts)
    with torch.no_grad():
        ids = torch.as_tensor(reading.ids)[None].to(model.policy.device)
        hidden = model.policy.base.model.get_decoder()(ids).last_hidden_state[0]
        expected = torch.sigmoid(model.head(hidden[model.places(reading)])[:, 0])
    np.testing.assert_allclose(score.steps, expected.cpu().numpy(), atol=1e-5)
    resumed = train_text_model(settings, study_of(), data_of(), resume=True)
    assert resumed.metrics == result.metrics
