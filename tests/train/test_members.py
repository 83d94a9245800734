"""`members` of every reward model of text: heads or adapters on one language model, their spread and lower bound."""

import json

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file
from text_lessons import TINY, data_of, study_of, sums

from guerdon.models.text.ensemble import Ensemble
from guerdon.models.text.text_card import read_card
from guerdon.models.text.text_load import load_text_model
from guerdon.settings.train import TEXT_MODELS, TrainSettings
from guerdon.train.reward_trainer import loss_sum, resampled
from guerdon.train.text import Lessons, check_training, train_text_model
from tables import first, refuses

torch.set_num_threads(1)
LETTERS = {name: value for name, value in TINY.items() if name != "alphabet"}
LORA = {"r": 4, "alpha": 8}
FORMS = [
    ("stepwise", "heads"), ("outcome", "adapters"), ("preference", "heads"),
    *(pytest.param(*form, marks=pytest.mark.slow)
      for form in (("stepwise", "adapters"), ("outcome", "heads"), ("verdict", None), ("implicit", None),
                   ("preference", "adapters"))),
]  # fmt: skip


def settings_for(tmp_path, kind, **keys):
    usual = {
        "type": kind, "save_dir": str(tmp_path / "rm"), "max_steps": 3, "batch_size": 8, "learning_rate": 3e-3,
        "val_split": 0.2, "bf16": False, "tiny": LETTERS if kind == "verdict" else TINY,
    }  # fmt: skip
    if kind == "preference":
        rows = [{"prompt": s.question, "chosen": f"{k}+1;", "rejected": f"{k}-1;"} for k, s in enumerate(sums())]
        path = tmp_path / "pairs.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        usual["data_path"] = str(path)
        usual["tiny"] = {**TINY, "alphabet": TINY["alphabet"] + "-"}
    return TypeAdapter(TrainSettings).validate_python({**usual, **keys})


def trained(tmp_path, kind, **keys):
    settings = settings_for(tmp_path, kind, **keys)
    data = None if kind == "preference" else data_of()
    return train_text_model(settings, study_of(), data)


def episodes():
    return [one.as_episode() for one in sums(6)]


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_a_score_is_the_mean_of_the_members_and_has_their_spread(tmp_path, kind, form):
    lora = {"lora": LORA} if form != "heads" else {}
    more = {"members_as": form} if form else {}
    found = trained(tmp_path, kind, members=3, **lora, **more)
    assert np.isfinite(found.metrics["loss"])
    model = load_text_model(str(found.folder))
    scores = model.score(episodes())
    assert all(one.failure is None and one.spread > 0 for one in scores)
    card = read_card(found.folder)
    assert (card.combine, card.adapters, len(card.outputs)) == ("mean", form != "heads", 3)
    if form == "heads":
        return
    assert isinstance(model, Ensemble)
    assert len({id(one.policy.base) for one in model.members}) == 1  # the weights are in memory once
    assert model.policy.base.model is model.members[2].policy.base.model
    own = [one.score(episodes()) for one in model.members]
    for k, score in enumerate(scores):
        values = np.array([one[k].steps if score.steps is not None else one[k].total for one in own], np.float64)
        got = score.steps if score.steps is not None else score.total
        np.testing.assert_allclose(got, values.mean(axis=0), atol=1e-6)
        assert score.spread == pytest.approx(float(values.std(axis=0, ddof=1).mean()), abs=1e-6)


def test_a_member_can_be_loaded_alone_with_the_same_values(tmp_path):
    found = trained(tmp_path, "stepwise", members=2, members_as="adapters", lora=LORA)
    whole = load_text_model(str(found.folder))
    for k, member in enumerate(whole.members):
        alone = load_text_model(str(found.folder / f"member_{k}")).score(episodes())
        for a, b in zip(alone, member.score(episodes()), strict=True):
            np.testing.assert_allclose(a.steps, b.steps, atol=1e-6)


@pytest.mark.parametrize("form", first(["heads", "adapters"], 1))
def test_the_lower_bound_of_a_probability_is_the_mean_minus_deviations_and_at_least_0(tmp_path, form):
    how = {"member_reward": "lower_bound", "deviations": 2.0, "members_as": form}
    lora = {"lora": LORA} if form == "adapters" else {}
    found = trained(tmp_path, "outcome", members=4, **lora, **how)
    model = load_text_model(str(found.folder))
    readings = [model.reading_of(one) for one in episodes()]
    with torch.no_grad():
        p = torch.sigmoid(model.logits(readings)).double().cpu().numpy()
    assert p.shape == (len(readings), 4)
    wanted = np.maximum(p.mean(axis=1) - 2 * p.std(axis=1, ddof=1), 0)
    scores = model.score(episodes())
    np.testing.assert_allclose([one.total for one in scores], wanted, atol=1e-6)
    np.testing.assert_allclose([one.spread for one in scores], p.std(axis=1, ddof=1), atol=1e-6)


def test_members_of_a_step_model_learn_from_different_resamples_as_by_hand():
    times = resampled(2, 3, seed=4)
    lessons = Lessons(
        readings=[None, None], targets=[np.array([1, 0], np.float32), np.array([1], np.float32)],
        weights=[np.array([1, 1], np.float32), np.array([0.5], np.float32)], solutions=[0, 1], questions=["a", "b"],
        counts={},
    )  # fmt: skip
    logits = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.0, -2.0], [0.3, 0.2, 0.1]])
    found = loss_sum(logits, lessons, [[0, 1]], times)
    p = 1 / (1 + np.exp(-logits.numpy().astype(np.float64)))
    terms = np.array([-np.log(p[0]), -np.log(1 - p[1]), -0.5 * np.log(p[2])])
    by_hand = (terms * times.numpy()[[0, 0, 1]]).sum() / 3
    assert float(found) == pytest.approx(by_hand, rel=1e-5)
    pair = loss_sum(logits[:2], lessons, [[0], [1]], times[:1])
    gap = (logits[0] - logits[1]).numpy().astype(np.float64)
    assert float(pair) == pytest.approx((np.log1p(np.exp(-gap)) * times.numpy()[0]).sum() / 3, rel=1e-5)
    assert times.unique().numel() > 1


def test_members_that_were_cut_off_end_with_the_same_weights(tmp_path, monkeypatch):
    from guerdon.train import reward_trainer

    keys = {"members": 2, "members_as": "adapters", "lora": LORA, "max_steps": 6, "save_steps": 2}
    whole = trained(tmp_path, "stepwise", **keys, save_dir=str(tmp_path / "whole"))
    original = reward_trainer.RewardTrainer.loss_sum

    def dies(self, network, part):
        if self.state.global_step == 4:
            raise KeyboardInterrupt
        return original(self, network, part)

    monkeypatch.setattr(reward_trainer.RewardTrainer, "loss_sum", dies)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, "stepwise", **keys, save_dir=str(tmp_path / "cut"))
    monkeypatch.undo()
    again = trained(tmp_path, "stepwise", **keys, save_dir=str(tmp_path / "cut"), resume=True)
    for k in range(2):
        for name in ("adapter_model.safetensors", "head.safetensors"):
            a, b = (load_file(one.folder / f"member_{k}" / name) for one in (whole, again))
            assert a.keys() == b.keys()
            assert all(torch.equal(a[one], b[one]) for one in a)
    a, b = (load_file(whole.folder / f"member_{k}" / "adapter_model.safetensors") for k in range(2))
    assert any(not torch.equal(a[one], b[one]) for one in a)


@pytest.mark.parametrize("kind", sorted(TEXT_MODELS))
@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"members": 2, "members_as": "adapters"}, "members"),
        ({"members": 1, "members_as": "adapters", "lora": LORA}, "members_as"),
        ({"member_reward": "lower_bound"}, "member_reward"),
        ({"members": 0}, "members"),
    ],
)
def test_what_would_do_nothing_is_refused(tmp_path, kind, keys, key):
    with refuses(key):
        settings_for(tmp_path, kind, **keys)


@pytest.mark.parametrize("kind", ["verdict", "implicit"])
def test_models_without_a_head_say_so(tmp_path, kind):
    with refuses("members_as"):
        settings_for(tmp_path, kind, members=2, members_as="heads", lora=LORA)


@pytest.mark.parametrize("form", ["heads", "adapters"])
def test_a_training_of_members_is_checked_before_it_starts(tmp_path, form):
    settings = settings_for(tmp_path, "preference", members=3, members_as=form, lora=LORA)
    check_training(settings, study_of())
    assert not (tmp_path / "rm").exists()
