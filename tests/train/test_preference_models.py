"""Reward models of preferences and ratings: losses by hand, training, and folders that transformers reads alike."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from guerdon.episodes.preferences import read_preferences
from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.models.text.sequence_classifier import average_models
from guerdon.models.text.text_card import TextModelCard, read_card
from guerdon.models.text.text_load import load_text_model
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.train import PreferenceTrainSettings
from guerdon.train.preferences import (
    PreferenceTrainer,
    length_terms,
    list_terms,
    make_pair_lessons,
    pair_quality,
    preference_terms,
    read_preference_data,
)
from guerdon.train.text import check_training, start_model, train_text_model
from guerdon.types import Episode
from tables import first, refuses

torch.set_num_threads(1)
TINY = {
    "alphabet": "0123456789+=?; abcdefghijklmnopqrstuvwxyz",
    "hidden_size": 32,
    "layers": 1,
    "heads": 2,
    "intermediate": 64,
}


def terms(better, worse, *, tied=False, margin=0.0, log_ties=None, **more):
    found = preference_terms(
        torch.tensor([[better]]), torch.tensor([[worse]]), tied_P=torch.tensor([tied]),
        margins_P=torch.tensor([margin]), log_ties=None if log_ties is None else torch.tensor(log_ties), **more,
    )  # fmt: skip
    return float(found[0, 0])


def sigma(x):
    return 1 / (1 + math.exp(-x))


def test_bradley_terry_by_hand():
    assert terms(2.0, 0.5) == pytest.approx(-math.log(sigma(1.5)), rel=1e-5)
    assert terms(2.0, 0.5, margin=1.0) == pytest.approx(-math.log(sigma(0.5)), rel=1e-5)
    smooth = -0.9 * math.log(sigma(1.5)) - 0.1 * math.log(sigma(-1.5))
    assert terms(2.0, 0.5, smoothing=0.1) == pytest.approx(smooth, rel=1e-5)
    assert terms(2.0, 0.5, center=0.01) == pytest.approx(-math.log(sigma(1.5)) + 0.01 * 6.25, rel=1e-5)


def test_davidson_by_hand():
    p, q, nu = math.exp(2.0), math.exp(0.5), math.exp(0.3)
    whole = p + q + nu * math.sqrt(p * q)
    assert terms(2.0, 0.5, log_ties=0.3) == pytest.approx(-math.log(p / whole), rel=1e-5)
    assert terms(2.0, 0.5, log_ties=0.3, tied=True) == pytest.approx(-math.log(nu * math.sqrt(p * q) / whole), rel=1e-5)


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-3, 3))
def test_davidsons_three_outcomes_are_a_distribution(a, b, log_ties):
    first, second = terms(a, b, log_ties=log_ties), terms(b, a, log_ties=log_ties)
    tie = terms(a, b, log_ties=log_ties, tied=True)
    assert sum(math.exp(-one) for one in (first, second, tie)) == pytest.approx(1, abs=1e-4)


@given(st.floats(-5, 5), st.floats(-5, 5))
def test_davidson_without_ties_is_bradley_terry(a, b):
    assert terms(a, b, log_ties=-30.0) == pytest.approx(terms(a, b), abs=1e-4)


def ranked(rewards, ranks):
    return list_terms(torch.tensor(rewards, dtype=torch.float64)[:, None], torch.tensor(ranks)).item()


def test_plackett_luce_by_hand():
    a, b, c = (math.exp(one) for one in (2.0, 0.5, -1.0))
    assert ranked([2.0, 0.5, -1.0], [0, 1, 2]) == pytest.approx(-math.log(a / (a + b + c)) - math.log(b / (b + c)))
    assert ranked([0.5, -1.0, 2.0], [1, 2, 0]) == pytest.approx(ranked([2.0, 0.5, -1.0], [0, 1, 2]))
    assert ranked([2.0, 0.5], [0, 1]) == pytest.approx(terms(2.0, 0.5), rel=1e-5)
    # two that share the first place, each chosen among all three (Breslow)
    assert ranked([2.0, 0.5, -1.0], [0, 0, 2]) == pytest.approx(-math.log(a / (a + b + c)) - math.log(b / (a + b + c)))
    assert ranked([2.0, 0.5, -1.0], [0, 3, 3]) == pytest.approx(-math.log(a / (a + b + c)))


@given(st.lists(st.floats(-4, 4), min_size=2, max_size=4))
def test_all_orders_of_a_list_are_a_distribution(rewards):
    whole = sum(math.exp(-ranked(rewards, list(order))) for order in itertools.permutations(range(len(rewards))))
    assert whole == pytest.approx(1, abs=1e-6)


def test_odins_terms_by_hand():
    rng = np.random.default_rng(0)
    rewards, lengths, weight = rng.normal(size=(9, 2)), rng.integers(1, 30, 9).astype(float), rng.normal(size=(2, 5))
    found = length_terms(*(torch.from_numpy(one) for one in (rewards, lengths, weight)))
    quality, length = (np.corrcoef(rewards[:, k], lengths)[0, 1] for k in range(2))
    cosine = weight[0] @ weight[1] / np.linalg.norm(weight[0]) / np.linalg.norm(weight[1])
    assert float(found) == pytest.approx(abs(quality) - length + abs(cosine))
    same = length_terms(torch.from_numpy(rewards), torch.full((9,), 7.0).double(), torch.eye(2))
    assert float(same) == pytest.approx(0.0)  # lengths that are all equal correlate with nothing
    perfect = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-1.0, 2.0], [1.0, 3.0]])
    assert float(length_terms(perfect, torch.arange(4.0), torch.eye(2))) == pytest.approx(-1.0, abs=1e-6)


def test_quality_of_pairs():
    found = pair_quality(np.array([1.0, -1.0, 0.0, 5.0]), np.array([False, False, False, True]), np.ones(4, np.float32))
    assert found["pair_accuracy"] == pytest.approx(0.5)
    assert pair_quality(np.ones(1), np.array([True]), np.ones(1, np.float32))["pair_accuracy"] is None


def test_rewards_of_several_outputs():
    card = TextModelCard("preference", "conversation", "regression", outputs={"a": 2.0, "b": -1.0})
    np.testing.assert_allclose(card.reward_of(np.array([[1.0, 3.0]]))[0], [-1.0])
    members = {"m0": 1.0, "m1": 1.0}
    low = TextModelCard(
        "preference", "conversation", "bradley_terry", outputs=members, combine="lower_bound", deviations=2.0
    )
    value, spread = low.reward_of(np.array([[1.0, 3.0]]))
    assert spread == pytest.approx(math.sqrt(2))
    assert value == pytest.approx(2 - 2 * math.sqrt(2))
    for one in (card, low):  # a batch whose responses could all not be read
        assert one.reward_of(np.zeros((0, 2)))[0].shape == (0,)


WORDS = ("sea", "sun", "dog", "cat", "tree", "road")


def answers(seed=0, n=120):
    """Prompts with a good answer, which has the word asked for, and a bad one."""
    rng = np.random.default_rng(seed)
    for a, b in itertools.islice(itertools.cycle(itertools.permutations(WORDS, 2)), n):
        prompt = f"{a} {rng.integers(1000)}?"
        yield prompt, f"good {b};", f"bad {b};"


def written(tmp_path, rows, name="data.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def settings_for(tmp_path, rows, **given_keys):
    usual = {
        "type": "preference", "data_path": written(tmp_path, rows), "save_dir": str(tmp_path / "rm"), "bf16": False,
        "epochs": 6, "batch_size": 16, "learning_rate": 5e-3, "val_split": 0.2, "tiny": TINY,
    }  # fmt: skip
    if "max_steps" in given_keys:
        del usual["epochs"]
    return PreferenceTrainSettings.model_validate({**usual, **given_keys})


def trained(tmp_path, rows, **given_keys):
    settings = settings_for(tmp_path, rows, **given_keys)
    study = Study.model_validate({"train": {"rm": settings.model_dump(mode="json", exclude_unset=True)}})
    return train_text_model(settings, study)


def pairs(n=120):
    return [{"prompt": p, "chosen": good, "rejected": bad} for p, good, bad in answers(n=n)]


def episodes(n=6):
    found = [(p, text) for p, good, bad in answers(seed=9, n=n) for text in (good, bad)]
    return [Episode(id=str(k), task=p, texts=(text,)) for k, (p, text) in enumerate(found)]


@pytest.mark.parametrize("as_text", first([True, False], 1))
def test_columns_that_are_said_are_read_and_stored_in_the_card(tmp_path, as_text):
    rows = [
        {"ask": p, "one": good if k % 2 else bad, "two": bad if k % 2 else good, "vote": 1 if k % 2 else 0}
        for k, (p, good, bad) in enumerate(answers())
    ]
    said = {"prompt": "ask", "first": "one", "second": "two", "winner": "vote:1/0"}
    columns = ",".join(f"{role}={column}" for role, column in said.items()) if as_text else said
    found = trained(tmp_path, rows, columns=columns)
    assert found.metrics["pair_accuracy"] == 1.0
    card = read_card(found.folder).training
    assert card["columns"] == said
    (read_as,) = card["read_as"]
    assert [(one["column"], one["role"], one["coding"], one["from"]) for one in read_as["columns"]] == [
        ("ask", "prompt", None, "given"), ("one", "first", None, "given"), ("two", "second", None, "given"),
        ("vote", "winner", "1/0", "given"),
    ]  # fmt: skip
    other = written(tmp_path, [rows[0] | {"split": "test"}, rows[1]], "other.jsonl")
    again = read_preferences(other, stored=card["columns"])
    assert [one.responses[one.ranks.index(0)].text for one in again.comparisons] == [
        next(text for text in (row["one"], row["two"]) if text.startswith("good")) for row in rows[:2]
    ]


def test_a_test_set_is_not_trained_on(tmp_path):
    row = {"pair_id": "1", "source": "mmlu-pro-law", "question": "sea?", "response_A": "good", "response_B": "bad"}
    settings = settings_for(tmp_path, [{**row, "label": "A>B"}])
    with pytest.raises(DataError, match=r"data\.jsonl is the test set of JudgeBench"):
        read_preference_data(settings)
    named = written(tmp_path, pairs(4), "reward-bench.jsonl")
    with pytest.raises(DataError, match="the test set of RewardBench,"):
        read_preference_data(settings.model_copy(update={"data_path": (written(tmp_path, pairs(4)), named)}))


def test_without_held_out_pairs_nothing_is_measured(tmp_path):
    settings = settings_for(tmp_path, pairs(4), val_split=0)
    model = start_model(settings, TextPolicySettings(), separator="")
    lessons, none = read_preference_data(settings).lessons(model, settings)
    assert PreferenceTrainer(model, lessons, none, settings, tmp_path).quality() == {"loss": None}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("pairs"), pairs())


def test_it_learns_the_preference_and_says_how_well(model):
    assert model.metrics["pair_accuracy"] > 0.9
    assert model.metrics["pairs"] + model.metrics["val_pairs"] == 120
    scores = [one.total for one in load_text_model(str(model.folder)).score(episodes())]
    assert all(good > bad for good, bad in zip(scores[::2], scores[1::2], strict=True))


def test_transformers_reads_the_folder_with_the_same_values(model):
    classifier = AutoModelForSequenceClassification.from_pretrained(model.folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model.folder)
    assert classifier.config.num_labels == 1
    own = [one.total for one in load_text_model(str(model.folder), device="cpu").score(episodes())]
    chats = [
        [{"role": "user", "content": e.task}, {"role": "assistant", "content": "".join(e.texts)}] for e in episodes()
    ]
    batch = tokenizer.apply_chat_template(chats, padding=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        found = classifier(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0]
    np.testing.assert_allclose(found.numpy(), own, atol=1e-4)


def test_the_card_says_what_it_is(model):
    card = read_card(model.folder)
    assert (card.kind, card.form, card.loss, card.threshold) == ("preference", "conversation", "bradley_terry", None)
    assert card.training["label_noise"] is None


def test_a_training_that_was_cut_off_ends_with_the_same_weights(tmp_path):
    from safetensors.torch import load_file

    rows = pairs(40)
    whole = trained(tmp_path, rows, max_steps=6, save_steps=2, save_dir=str(tmp_path / "whole"))
    cut = settings_for(tmp_path, rows, max_steps=6, save_steps=2, save_dir=str(tmp_path / "cut"))
    study = Study.model_validate({"train": {"rm": cut.model_dump(mode="json", exclude_unset=True)}})
    from guerdon.train import preferences

    original, steps = preferences.PreferenceTrainer.loss_sum, []

    def dies(self, network, part):
        steps.append(self.state.global_step)
        if self.state.global_step == 4:
            raise KeyboardInterrupt
        return original(self, network, part)

    preferences.PreferenceTrainer.loss_sum = dies
    try:
        with pytest.raises(KeyboardInterrupt):
            train_text_model(cut, study)
    finally:
        preferences.PreferenceTrainer.loss_sum = original
    again = train_text_model(cut, study, resume=True)
    a, b = (load_file(one.folder / "model.safetensors") for one in (whole, again))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_members_differ_and_their_lower_bound_is_below_their_mean(tmp_path):
    found = trained(tmp_path, pairs(60), members=4, member_reward="lower_bound", epochs=3)
    scores = load_text_model(str(found.folder)).score(episodes())
    assert all(one.spread > 0 for one in scores)
    classifier = AutoModelForSequenceClassification.from_pretrained(found.folder)
    assert classifier.config.num_labels == 4
    mean = read_card(found.folder)
    assert mean.combine == "lower_bound"


def test_ties_pull_rewards_together(tmp_path):
    rows = [{"prompt": p, "response_1": good, "response_2": bad, "winner": "tie"} for p, good, bad in answers(n=80)]
    found = trained(tmp_path, rows + pairs(20), epochs=3)
    assert found.metrics["ties"] > 40


def test_labels_of_single_responses(tmp_path):
    rows = [{"prompt": p, "completion": text, "label": text is good}
            for p, good, bad in answers() for text in (good, bad)]  # fmt: skip
    assert trained(tmp_path, rows).metrics["auroc"] > 0.9


def test_ratings_are_learned_by_regression_and_weighted_afterwards(tmp_path):
    rows = [{"prompt": p, "response": text, "helpfulness": 4.0 if text is good else 0.0, "verbosity": 1.0}
            for p, good, bad in answers() for text in (good, bad)]  # fmt: skip
    weights = {"helpfulness": 1.0, "verbosity": -2.0}
    found = trained(tmp_path, rows, attributes=weights, epochs=12)
    assert found.metrics["mae_helpfulness"] < 1.0
    assert found.metrics["mae_verbosity"] < 0.5
    scores = [one.total for one in load_text_model(str(found.folder)).score(episodes())]
    assert np.mean(scores[::2]) - np.mean(scores[1::2]) > 2


def lists(n=60):
    return [
        {"prompt": p, "responses": [f"{good} sea;", good, bad], "scores": [3, 2, 1]} for p, good, bad in answers(n=n)
    ]


@pytest.mark.parametrize("members", first([1, 3], 1))
def test_a_ranked_list_is_learned_as_a_whole(tmp_path, members):
    tied = [{"prompt": "road?", "responses": ["good", "bad", "sea"], "scores": [1, 1, 1]}]
    found = trained(tmp_path, lists() + tied, ranking="list", members=members, val_split=0.3)
    assert found.metrics["lists"] + found.metrics["val_pairs"] / 3 + found.metrics["left_out"].get("only_ties", 0) == 61
    assert found.metrics["pair_accuracy"] > 0.8


def test_lists_keep_their_order_without_what_is_too_long_and_ties_are_counted(tmp_path):
    rows = [*lists(2), {"prompt": "a?", "responses": ["good", "bad " * 40, "sea"], "scores": [1, 9, 1]},
            {"prompt": "b?", "responses": ["good", "bad", "sea"], "scores": [1, 9, 1]}]  # fmt: skip
    settings = settings_for(tmp_path, rows, ranking="list", max_length=60, val_split=0)
    study = Study.model_validate({"train": {"rm": settings.model_dump(mode="json", exclude_unset=True)}})
    model = start_model(settings, study.text_default, separator="")
    found = make_pair_lessons(model, read_preference_data(settings).train, settings, ranking="list")
    assert found.items == [(0, 1, 2), (3, 4, 5), (9, 8, 10)]
    assert found.ranks == [(0, 1, 2), (0, 1, 2), (0, 1, 1)]
    assert found.counts == {"too_long": 1, "only_ties": 1}


def liked_for_length_too(n=240):
    """Pairs drawn by Bradley and Terry from 2 for a good answer and 0.7 for each word after it, in all combinations."""
    rng = np.random.default_rng(3)
    for prompt, good, bad in answers(n=n):
        kinds, words = rng.integers(0, 2, 2), rng.integers(0, 6, 2)
        texts = [(bad, good)[kind] + " sea" * more for kind, more in zip(kinds, words, strict=True)]
        worth = 2.0 * kinds + 0.7 * words
        first = int(rng.random() < sigma(worth[1] - worth[0]))
        yield {"prompt": prompt, "chosen": texts[first], "rejected": texts[1 - first]}


@pytest.mark.slow
def test_odins_reward_depends_less_on_length_and_the_head_of_length_is_not_stored(tmp_path):
    every = [(prompt, answer + " sea" * more) for prompt, *both in answers(seed=5, n=6)
             for answer in both for more in range(6)]  # fmt: skip
    kept = [Episode(id=str(k), task=prompt, texts=(text,)) for k, (prompt, text) in enumerate(every)]
    good = np.array([text.startswith("good") for _, text in every])
    found = {}
    for coef in (0.0, 1.0):
        folder = trained(tmp_path, list(liked_for_length_too()), length_coef=coef, save_dir=str(tmp_path / str(coef)))
        scores = np.array([one.total for one in load_text_model(str(folder.folder)).score(kept)])
        found[coef] = np.corrcoef(scores, [len(text) for _, text in every])[0, 1]
        assert scores[good].mean() > scores[~good].mean()
        classifier = AutoModelForSequenceClassification.from_pretrained(folder.folder)
        assert classifier.config.num_labels == 1
        assert read_card(folder.folder).outputs == {"reward": 1.0}
    assert abs(found[1.0]) < found[0.0] - 0.2


def test_odins_loss_of_a_batch_by_hand(tmp_path):
    """The sum of both heads orders the pairs; each head has its correlation with the length of a response."""
    rows = list(liked_for_length_too(12))
    settings = settings_for(tmp_path, rows, length_coef=0.5, val_split=0, bf16=False)
    model = start_model(settings, TextPolicySettings(), separator="")
    lessons, none = read_preference_data(settings).lessons(model, settings)
    trainer = PreferenceTrainer(model, lessons, none, settings, tmp_path)
    items = list(range(len(lessons.items)))
    with torch.no_grad():
        found = float(trainer.loss_sum(trainer.model, items)) / trainer.weight(items)
        both = model.lesson_logits(lessons.readings).double().cpu().numpy()
    better, worse = (both[[item[k] for item in lessons.items]].sum(axis=1) for k in (0, 1))
    used = [one for row in rows if row["chosen"] != row["rejected"] for one in (row["chosen"], row["rejected"])]
    assert sorted(lessons.lengths) == sorted(map(len, used))  # a token per character
    quality, length = (np.corrcoef(both[:, k], lessons.lengths)[0, 1] for k in (0, 1))
    weight = model.head.weight.detach().double().cpu().numpy()
    cosine = weight[0] @ weight[1] / np.linalg.norm(weight[0]) / np.linalg.norm(weight[1])
    ranking = np.mean([-math.log(sigma(one)) for one in better - worse])
    assert found == pytest.approx(ranking + 0.5 * (abs(quality) - length + abs(cosine)), abs=1e-5)


def test_averaged_weights_by_hand(tmp_path):
    from safetensors.torch import load_file

    runs = [trained(tmp_path, pairs(40), max_steps=4, seed=0, learning_rate=rate, save_dir=str(tmp_path / str(rate)))
            for rate in (5e-3, 1e-2, 2e-2)]  # fmt: skip
    out = average_models([str(run.save_dir) for run in runs], tmp_path / "mean")
    own = [load_file(run.folder / "model.safetensors") for run in runs]
    mean = load_file(out / "model.safetensors")
    assert mean.keys() == own[0].keys()
    for name, weight in mean.items():
        wanted = sum(one[name].double() for one in own) / 3
        torch.testing.assert_close(weight.double(), wanted, atol=1e-6, rtol=1e-5)
        assert weight.dtype == torch.float32
    assert any(not torch.equal(own[0][name], own[1][name]) for name in mean)
    assert all(one.failure is None for one in load_text_model(str(out)).score(episodes()))
    assert read_card(out).training == {"averaged": [str(run.folder) for run in runs]}


def test_models_that_cannot_be_averaged_are_refused(tmp_path):
    plain, other = (trained(tmp_path, pairs(20), max_steps=1, save_dir=str(tmp_path / str(k)), tiny={**TINY, **more})
                    for k, more in enumerate(({}, {"hidden_size": 16})))  # fmt: skip
    members = trained(tmp_path, pairs(20), max_steps=1, members=2, save_dir=str(tmp_path / "m"))
    for folders, said in (
        ([plain], "at least two"), ([plain, plain], "twice"), ([plain, other], "other shapes"),
        ([plain, members], "other outputs"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            average_models([str(one.folder) for one in folders], tmp_path / "out")
    with pytest.raises(CheckpointError, match="no reward model of guerdon"):
        average_models([str(plain.folder), str(tmp_path / "none")], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_several_right_responses_weigh_as_one_comparison(tmp_path):
    rows = [
        {"prompt": p, "chosen": [good, good + " sea;"], "rejected": [bad, bad + " sea;"]}
        for p, good, bad in answers(n=30)
    ]
    found = trained(tmp_path, rows, max_steps=2)
    assert found.metrics["pairs"] + found.metrics["val_pairs"] == 4 * 30


def test_answers_that_are_too_long_are_counted(tmp_path):
    rows = [*pairs(30), {"prompt": "sea?", "chosen": "good " * 40, "rejected": "bad;"}]
    found = trained(tmp_path, rows, max_steps=2, max_length=60, val_split=0)
    assert found.metrics["left_out"] == {"too_long": 1}
    assert found.metrics["pairs"] == 30


def various(rng, words=12):
    """Prompts of many words with a pair or a ranked list of responses of very different lengths."""
    said = [" ".join(rng.choice(WORDS, rng.integers(2, words))) for _ in range(4)]
    prompt = " ".join(rng.choice(WORDS, 8)) + "?"
    listed = [{"response": f"{text};", "rank": k} for k, text in enumerate(said)]
    return {"prompt": prompt, "responses": listed[: rng.choice([2, 4])]}


@pytest.mark.parametrize("change", ["shared", "packed", "padded"])
@pytest.mark.parametrize("attention", first(["sdpa", "eager"], 1))
def test_reading_prompts_once_changes_neither_loss_nor_gradients(tmp_path, monkeypatch, change, attention):
    from guerdon.models.text import text_inputs
    from guerdon.policies.batches import prompt_sharing

    rng = np.random.default_rng(4)
    settings = settings_for(
        tmp_path, [various(rng) for _ in range(7)], val_split=0, tiny={**TINY, "layers": 2, "heads": 4, "kv_heads": 2}
    )
    layouts = []

    def computed(how):
        model = start_model(settings, TextPolicySettings(), separator="")
        model.policy.base.settings = model.policy.base.settings.model_copy(
            update={"attention": attention, "share_prompts": how != "padded"}
        )
        for share in ("WORTH_IT", "WORTH_ON_GPU"):
            monkeypatch.setattr(prompt_sharing, share, 0.9 if how == "shared" else 0.0)
        lessons, none = read_preference_data(settings).lessons(model, settings)
        trainer = PreferenceTrainer(model, lessons, none, settings, tmp_path)
        loss = trainer.loss_sum(trainer.model, list(range(len(lessons.items))))
        loss.backward()
        gradients = {name: p.grad.cpu() for name, p in model.named_parameters().items() if name != "head.log_ties"}
        return lessons, loss.detach(), gradients

    used = text_inputs.hidden_of
    monkeypatch.setattr(text_inputs, "hidden_of", lambda *given: layouts.append(given[1]) or used(*given))
    _, expected, wanted = computed("padded")
    lessons, loss, gradients = computed(change)
    assert all(r.start > 20 for r in lessons.readings)  # the prompts, as the template writes them
    assert layouts[0].attention is None
    names = {"shared": "guerdon_shared_prompts", "packed": "guerdon_packed", "padded": None}
    assert layouts[1].attention == names[change]
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, wanted[name], atol=1e-5 * float(wanted[name].abs().max()), rtol=0)


@pytest.mark.parametrize(
    ("rows", "keys", "field", "said"),
    [
        ([{"prompt": "sea?", "response": "good", "helpfulness": 1}], {}, None, "1 rows with ratings"),
        (pairs(4), {"attributes": {"helpfulness": 1}}, None, "has ratings helpfulness"),
        (
            [{"prompt": "sea?", "completion": "good", "label": True}],
            {"ranking": "list"},
            "ranking",
            "nothing with labels",
        ),
        ([{"question": "a"}], {}, None, "no preferences are recognised, found question"),
    ],
)
def test_other_data_is_refused_with_what_it_has(tmp_path, rows, keys, field, said):
    settings = settings_for(tmp_path, rows, **keys)
    study = Study.model_validate({"train": {"rm": settings.model_dump(mode="json", exclude_unset=True)}})
    for act in (train_text_model, check_training):
        with pytest.raises(DataError, match=said) as refused:
            act(settings, study)
        assert refused.value.field == field


@pytest.mark.parametrize(
    ("keys", "idle"),
    [
        ({"attributes": {"a": 1}, "members": 2}, "members"),
        ({"member_reward": "mean"}, "member_reward"),
        ({"members": 2, "deviations": 2.0}, "deviations"),
        ({"ranking": "list", "margin_coef": 1.0}, "margin_coef"),
        ({"ranking": "list", "length_coef": 1.0}, "length_coef"),
        ({"members": 2, "length_coef": 1.0}, "length_coef"),
        ({"attributes": {"a": 1}, "ranking": "list"}, "ranking"),
    ],
)
def test_keys_that_do_nothing_are_refused(tmp_path, keys, idle):
    with refuses(idle):
        settings_for(tmp_path, pairs(2), **keys)
