"""Training reward models of text: exact losses, exact resuming, a model that is on disk and has learned."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from text_lessons import TINY, data_of, study_of, sums
from torch.nn import functional

from guerdon.compute.finite import first_non_finite
from guerdon.errors import ConfigError, DataError, NonFiniteError
from guerdon.models.text.text_card import read_card
from guerdon.models.text.text_load import load_text_model
from guerdon.settings.text_policy import LoraSettings
from guerdon.settings.train import (
    ImplicitTrainSettings,
    OutcomeTrainSettings,
    StepwiseTrainSettings,
    VerdictTrainSettings,
)
from guerdon.train.reward_trainer import RewardTrainer, planned_steps
from guerdon.train.text import make_lessons, split_questions, start_model, train_text_model
from guerdon.types import Episode
from tables import first

torch.set_num_threads(1)

STUDY = study_of()
LETTERS = {name: value for name, value in TINY.items() if name != "alphabet"}
KINDS = {
    "stepwise": (StepwiseTrainSettings, {"head_epochs": 1, "head_learning_rate": 1e-2}),
    "verdict": (VerdictTrainSettings, {"tiny": LETTERS}),
    "outcome": (OutcomeTrainSettings, {}),
    "bradley_terry": (OutcomeTrainSettings, {"loss": "bradley_terry"}),
    "implicit": (ImplicitTrainSettings, {}),
    "dpo": (ImplicitTrainSettings, {"loss": "dpo"}),
}


def settings_for(kind, folder, **options):
    model, own = KINDS[kind]
    usual = {
        "max_steps": 8, "batch_size": 8, "learning_rate": 3e-3, "val_split": 0.2, "save_steps": 3, "log_every": 1,
        "bf16": False,
    }  # fmt: skip
    return model(save_dir=str(folder), **(usual | own | options))


def trainer_for(kind, folder, solutions=None, **options):
    settings = settings_for(kind, folder, **options)
    model = start_model(settings, STUDY.text_policy, separator=";")
    generator = torch.Generator().manual_seed(0)
    if model.head is not None:
        with torch.no_grad():
            model.head.weight.copy_(0.3 * torch.randn(model.head.weight.shape, generator=generator))
    elif kind in ("implicit", "dpo"):
        with torch.no_grad():
            for p in model.policy.parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=generator).to(p.device))
    solutions = sums() if solutions is None else solutions
    rows, held = split_questions(solutions, settings.val_split, settings.seed)
    train, val = (make_lessons(model, [solutions[i] for i in part], settings) for part in (rows, held))
    return RewardTrainer(model, train, val, settings, folder)


def expected_loss(trainer, lessons, settings):
    """The loss from scores of the model, one solution at a time."""
    model = trainer._reward
    with torch.no_grad():
        logits = [model.lesson_logits([r]).double().cpu() for r in lessons.readings]
    items = lessons.items_for(settings)
    if len(items[0]) == 2:
        return float(np.mean([-functional.logsigmoid(logits[a] - logits[b]).item() for a, b in items]))
    total = weight = 0.0
    for logit, target, w in zip(logits, lessons.targets, lessons.weights, strict=True):
        p = 1 / (1 + np.exp(-logit.numpy()))
        total += float(-(w * (target * np.log(p) + (1 - target) * np.log(1 - p))).sum())
        weight += float(w.sum())
    return total / weight


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_weighted_mean_however_it_is_cut(tmp_path, kind):
    options = {"head_epochs": 0, "head_learning_rate": None} if kind == "stepwise" else {}
    solutions = sums(reward="SE") if kind in ("stepwise", "verdict") else sums()
    trainer = trainer_for(kind, tmp_path, solutions, batch_size=64, **options)
    rows = {"rows": torch.arange(len(trainer._items))}
    settings = settings_for(kind, tmp_path, **options)
    expected = expected_loss(trainer, trainer._lessons, settings)
    gradients = []
    for micro, tokens in ((64, None), (4, None), (64, 60)):
        trainer._micro, trainer._tokens = micro, tokens
        assert tokens is None or len(trainer.parts(rows["rows"].tolist())) > 1
        trainer.model.zero_grad()
        assert float(trainer.training_step(trainer.model, rows)) == pytest.approx(expected, rel=1e-5)
        named = trainer._reward.named_parameters()
        gradients.append({n: p.grad.clone() for n, p in named.items() if p.grad is not None})
    for cut in gradients[1:]:
        assert gradients[0].keys() == cut.keys()
        for name, whole in gradients[0].items():
            torch.testing.assert_close(whole, cut[name], atol=1e-6, rtol=1e-4)
    assert trainer.quality()["loss"] == pytest.approx(expected_loss(trainer, trainer._val, settings), rel=1e-5)


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    ("kind", "lora"),
    [
        pytest.param("stepwise", None, marks=pytest.mark.slow),
        *(pytest.param(*case, marks=pytest.mark.slow)
          for case in (("stepwise", LoraSettings(r=2, dropout=0.1)), ("verdict", None), ("bradley_terry", None))),
        ("implicit", LoraSettings(r=2)),
        pytest.param("dpo", None, marks=pytest.mark.slow),
    ],
    ids=["stepwise", "stepwise with dropout", "verdict", "outcome", "implicit on an adapter", "implicit"],
)  # fmt: skip
def test_killed_and_resumed_it_gives_the_same_weights(tmp_path, monkeypatch, kind, lora):
    options = {"lora": lora, "resume": True}
    whole = train_text_model(settings_for(kind, tmp_path / "whole", **options), STUDY, data_of())
    step = RewardTrainer.training_step
    steps = []

    def killed_at_five(self, *args, **given):
        steps.append(None)
        if len(steps) == 5:
            raise Killed
        return step(self, *args, **given)

    settings = settings_for(kind, tmp_path / "cut", **options)
    monkeypatch.setattr(RewardTrainer, "training_step", killed_at_five)
    with pytest.raises(Killed):
        train_text_model(settings, STUDY, data_of())
    half = tmp_path / "cut" / "checkpoint-6"  # cut off while it was written
    shutil.copytree(tmp_path / "cut" / "checkpoint-3", half)
    (half / "complete").unlink()
    (half / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(RewardTrainer, "training_step", step)
    resumed = train_text_model(settings, STUDY, data_of())
    a, b = load_text_model(str(whole.folder)), load_text_model(str(resumed.folder))
    for x, y in zip(a.tensors().values(), b.tensors().values(), strict=True):
        assert (x - y).abs().max() == 0.0
    changing = {"seconds"}
    assert {k: v for k, v in resumed.metrics.items() if k not in changing} == {
        k: v for k, v in whole.metrics.items() if k not in changing
    }
    monkeypatch.setattr(RewardTrainer, "training_step", lambda *_, **__: pytest.fail("trained again"))
    assert train_text_model(settings, STUDY, data_of()).metrics == resumed.metrics  # finished: nothing to do
    with pytest.raises(ConfigError, match=r"data\.train"):
        train_text_model(settings, STUDY, data_of(sums(seed=1)))
    with pytest.raises(ConfigError, match=r"settings\.learning_rate"):
        train_text_model(settings.model_copy(update={"learning_rate": 1e-4}), STUDY, data_of())


def test_the_head_learns_first_and_alone(tmp_path):
    trainer = trainer_for("stepwise", tmp_path, head_epochs=2, max_steps=14, save_steps=14)
    assert trainer.head_steps == 2 * -(-len(trainer._items) // 8)
    before = {n: t for n, t in trainer._reward.tensors().items() if not n.startswith("head.")}
    seen = []
    step = trainer.training_step

    def watched(*args, **options):
        now = {n: t for n, t in trainer._reward.tensors().items() if not n.startswith("head.")}
        seen.append(all(torch.equal(t, before[n]) for n, t in now.items()))
        return step(*args, **options)

    trainer.training_step = watched
    trainer.train()
    assert seen == [True] * (trainer.head_steps + 1) + [False] * (13 - trainer.head_steps)
    with pytest.raises(ConfigError, match="nothing else would be trained") as refused:
        planned_steps(settings_for("stepwise", tmp_path, head_epochs=5, max_steps=10), 40)
    assert refused.value.key == "head_epochs"


def test_the_rates_are_those_that_were_asked_for(tmp_path):
    options = {"head_epochs": 1, "max_steps": 15, "save_steps": 15, "warmup": 0.0, "lr_scheduler": "linear"}
    trainer = trainer_for("stepwise", tmp_path, **options)
    rates = []
    step = trainer.training_step

    def watched(*args, **given):
        rates.append({bool(g["head"]): g["lr"] for g in trainer.optimizer.param_groups})
        return step(*args, **given)

    trainer.training_step = watched
    trainer.train()
    n, total = trainer.head_steps, 15
    falling = [1 - k / (total - n) for k in range(total - n)]
    np.testing.assert_allclose([r[True] for r in rates], [1e-2] * n + [1e-2 * f for f in falling], rtol=1e-6)
    np.testing.assert_allclose([r[False] for r in rates], [0.0] * n + [3e-3 * f for f in falling], rtol=1e-6)


@pytest.mark.parametrize("kind", first(["verdict", "stepwise"], 1))
def test_it_learns_which_steps_are_right(tmp_path, kind):
    few = sums(questions=3)
    options = {"val_split": 0.0, "max_steps": 100, "learning_rate": 1e-2, "save_steps": 100}
    result = train_text_model(settings_for(kind, tmp_path, **options), STUDY, data_of(few))
    assert result.metrics["loss"] is None
    assert result.metrics["train_loss"] < 0.1
    assert (result.metrics["solutions"], result.metrics["val_solutions"], result.metrics["labels"]) == (6, 0, 12)
    model = load_text_model(str(tmp_path))
    for one, score in zip(few, model.score([s.as_episode() for s in few]), strict=True):
        assert [p >= 0.5 for p in score.steps] == [label == 1 for label in one.labels]


@pytest.mark.parametrize("kind", first(["bradley_terry", "implicit"], 1))
def test_it_learns_which_answers_are_right(tmp_path, kind):
    few = sums(questions=3)
    beta = {"beta": 0.5} if kind == "implicit" else {}
    options = {"val_split": 0.0, "max_steps": 60, "learning_rate": 1e-2, "save_steps": 60, **beta}
    result = train_text_model(settings_for(kind, tmp_path, **options), STUDY, data_of(few))
    assert result.metrics["train_loss"] < 0.1
    scores = load_text_model(str(tmp_path)).score([s.as_episode() for s in few])
    found = [s.total if s.steps is None else float(s.steps[-1]) for s in scores]
    assert all(good > bad for good, bad in zip(found[::2], found[1::2], strict=True))
    assert [s.is_correct for s in few] == [True, False] * 3


def test_soft_labels_are_learnt_as_they_are(tmp_path):
    made = [replace(s, labels=tuple(0.3 if label else 0.8 for label in s.labels)) for s in sums(questions=2)]
    options = {"labels": "soft", "val_split": 0.0, "max_steps": 160, "learning_rate": 1e-2, "save_steps": 160}
    train_text_model(settings_for("stepwise", tmp_path, **options), STUDY, data_of(made))
    model = load_text_model(str(tmp_path))
    for one, score in zip(made, model.score([s.as_episode() for s in made]), strict=True):
        np.testing.assert_allclose(score.steps, one.labels, atol=0.05)


def test_labels_of_the_label_verb_go_into_a_folder_of_their_own(tmp_path):
    settings = settings_for("stepwise", tmp_path, max_steps=8)
    result = train_text_model(settings, STUDY, data_of(sums(reward="SE"), method=2, reward="SE"))
    assert result.save_dir == tmp_path / "method2_SE"
    names = {p.name for p in result.save_dir.iterdir()}
    assert names >= {"checkpoint-6", "checkpoint-8", "final_checkpoint", "trainer_state.json", "metrics.json"}
    card = read_card(result.folder)
    assert (card.kind, card.separator, card.threshold, card.loss) == ("stepwise", ";", 0.5, "bce")
    assert (card.training["method"], card.training["reward"]) == (2, "SE")
    assert card.training["metrics"] == json.loads((result.save_dir / "metrics.json").read_text()) == result.metrics
    questions = json.loads((result.save_dir / "questions.json").read_text())
    assert len(questions["train"]) == result.metrics["questions"] == 16
    assert len(questions["held_out"]) == result.metrics["val_questions"] == 8
    assert not set(questions["train"]) & set(questions["held_out"])
    state = json.loads((result.save_dir / "trainer_state.json").read_text())
    assert {"loss", "eval_loss", "eval_step_auroc"} <= {k for entry in state["log_history"] for k in entry}
    assert find_scores(result.folder).steps.shape == (2,)


def find_scores(folder):
    return load_text_model(str(folder)).score([Episode(id="1", task="1+1+1=?", texts=("1+1=2;", "2+1=3;"))])[0]


def test_the_weights_with_the_best_validation_are_kept(tmp_path):
    result = train_text_model(settings_for("stepwise", tmp_path, max_steps=21, learning_rate=2e-2), STUDY, data_of())
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    losses = {e["step"]: e["eval_loss"] for e in state["log_history"] if "eval_loss" in e}
    assert losses[result.metrics["best_step"]] == min(losses.values())
    assert result.metrics["loss"] == pytest.approx(min(losses.values()), abs=1e-6)


@pytest.mark.parametrize("kind", ["stepwise", "outcome", "implicit"])
@pytest.mark.parametrize("said", first(["right", "wrong"], 1))
def test_labels_of_one_class_are_said_before_training_and_kept(tmp_path, capfd, kind, said):
    wrong = said == "wrong"
    solutions = [replace(s, labels=(float(not wrong),) * 2, is_correct=not wrong) for s in sums(12, rollouts=1)]
    result = train_text_model(settings_for(kind, tmp_path, max_steps=2), STUDY, data_of(solutions))
    count = result.metrics["labels"]
    what = "labelled steps" if kind == "stepwise" else "answers"
    told = f"all {count} {what} to train on are {said}"
    assert f"WARNING: {told}" in capfd.readouterr().err
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert [line.startswith(told) for line in stored["warnings"]] == [True]
    assert (stored["labels_right"], stored["labels_wrong"]) == ((0, count) if wrong else (count, 0))


def test_labels_of_both_classes_need_no_warning(tmp_path, capfd):
    result = train_text_model(settings_for("stepwise", tmp_path), STUDY, data_of())
    assert "WARNING" not in capfd.readouterr().err
    assert "warnings" not in result.metrics
    assert result.metrics["labels_right"] + result.metrics["labels_wrong"] == result.metrics["labels"]


def test_a_training_that_left_no_checkpoint_is_begun_anew_with_what_is_asked_for_now(tmp_path, monkeypatch):
    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as at_once:
        at_once.setattr(RewardTrainer, "train", dies)
        with pytest.raises(KeyboardInterrupt):
            train_text_model(settings_for("stepwise", tmp_path), STUDY, data_of())
    other = settings_for("stepwise", tmp_path, learning_rate=1e-3)
    assert train_text_model(other, STUDY, data_of(), resume=True).metrics["steps"] == 8
    with pytest.raises(ConfigError, match="was started with other"):
        train_text_model(settings_for("stepwise", tmp_path), STUDY, data_of(), resume=True)


def test_nothing_to_learn_from_is_an_error_that_says_why(tmp_path):
    unlabelled = [replace(s, labels=()) for s in sums()]
    with pytest.raises(DataError, match=r"no solution left to train stepwise on \(32 no_label\)"):
        train_text_model(settings_for("stepwise", tmp_path), STUDY, data_of(unlabelled))
    right = [s for s in sums() if s.is_correct]
    with pytest.raises(DataError, match="pairs a right with a wrong"):
        train_text_model(settings_for("bradley_terry", tmp_path), STUDY, data_of(right))
    for rewards in ("weight", "target"):
        with pytest.raises(DataError, match=f"rewards: {rewards} needs rewards of steps") as refused:
            train_text_model(settings_for("stepwise", tmp_path, rewards=rewards), STUDY, data_of())
        assert refused.value.field == "rewards"
    wild = {"learning_rate": 1e30, "max_grad_norm": 1e30, "lr_scheduler": "constant"}
    with pytest.raises(NonFiniteError, match="lower learning_rate"):
        train_text_model(settings_for("outcome", tmp_path, **wild), STUDY, data_of())


def test_4_bits_without_a_gpu_are_refused(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    settings = settings_for("stepwise", tmp_path, path="somewhere", lora=LoraSettings(), quantize="nf4")
    with pytest.raises(ConfigError, match="needs a GPU") as refused:
        train_text_model(settings, STUDY, data_of())
    assert refused.value.key == "quantize"
    with pytest.raises(ConfigError, match="there is none here") as refused:
        train_text_model(settings_for("stepwise", tmp_path, wait_for_gpu=4.0), STUDY, data_of())
    assert refused.value.key == "wait_for_gpu"


def test_pairs_are_of_the_same_question(tmp_path):
    trainer = trainer_for("bradley_terry", tmp_path, sums(questions=10, rollouts=5))
    for good, bad in trainer._items:
        assert trainer._lessons.questions[good] == trainer._lessons.questions[bad]
        assert trainer._lessons.targets[good] == [1]
        assert trainer._lessons.targets[bad] == [0]
    assert {i for item in trainer._items for i in item} == set(range(len(trainer._lessons)))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (k > 1)) for k, kind in enumerate(KINDS)]
)
def test_a_training_that_diverges_writes_no_weights(kind, tmp_path):
    for steps in (2, 4):  # the first may be that of the head alone
        wild = {"learning_rate": 1e30, "max_grad_norm": 1e30, "max_steps": steps, "save_steps": 1, "head_epochs": 0}
        wild |= {"head_learning_rate": 1e30} if "head_learning_rate" in KINDS[kind][1] else {}
        known = {k: v for k, v in wild.items() if k in KINDS[kind][0].model_fields}
        with pytest.raises(NonFiniteError, match=r"not finite|loss is nan|loss is inf") as caught:
            train_text_model(settings_for(kind, tmp_path / str(steps), **known), STUDY, data_of())
        assert caught.value.exit_code == 3
    stored = [load_file(file) for file in tmp_path.rglob("*.safetensors")]
    assert first_non_finite(pair for tensors in stored for pair in tensors.items()) is None
    assert not list(tmp_path.rglob("reward_model.json"))
