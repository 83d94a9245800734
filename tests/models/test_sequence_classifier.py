"""A sequence classifier as a judge: a number per response, the same in any company; the unreadable is a failure."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from guerdon.errors import CheckpointError
from guerdon.models.load import load_reward_model
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.text.text_card import TextModelCard
from guerdon.policies.batches.tokens import prompt_ids, response_ids
from guerdon.policies.language.tiny_text import character_tokenizer
from guerdon.types import Episode, RewardModel

torch.set_num_threads(1)
TEXTS = ["ab", "", "abba", "b", "aab"]


def episode(text, question="ab", **meta):
    return Episode(id="x", task=question, texts=(text,), meta=meta)


def totals(judge, texts, questions=None, micro=4):
    judge.micro_batch_size = micro
    questions = questions or ["ab"] * len(texts)
    scores = judge.score([episode(t, q) for t, q in zip(texts, questions, strict=True)])
    return [score.total for score in scores]


def written(folder, *, labels=1, room=32, kind=LlamaForSequenceClassification, pad=True):
    tokenizer = character_tokenizer("ab")
    if not pad:
        tokenizer.pad_token = None
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        num_labels=labels, pad_token_id=tokenizer.pad_token_id, initializer_range=0.5, max_position_embeddings=room,
    )  # fmt: skip
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("labels", [1, 2])
def test_company_does_not_change_a_score(labels, pad, tmp_path):
    judge = SequenceClassifier(written(tmp_path, labels=labels, pad=pad))
    questions = ["a" * k for k in (1, 2, 3, 1, 2)]
    together = totals(judge, TEXTS, questions, micro=5)
    apart = [totals(judge, [t], [q], micro=1)[0] for q, t in zip(questions, TEXTS, strict=True)]
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together, totals(judge, TEXTS, questions, micro=2), rtol=1e-4, atol=1e-5)
    assert np.std(together) > 0.01


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("labels", [1, 2])
def test_it_is_the_models_own_logit_or_log_odds(labels, tmp_path):
    judge = SequenceClassifier(written(tmp_path, labels=labels))
    messages = [{"role": "user", "content": "ab"}]
    ids = np.concatenate([prompt_ids(judge.tokenizer, messages), response_ids(judge.tokenizer, "ba")])
    with torch.no_grad():
        logits = judge.model(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy()
    expected = logits[0] if labels == 1 else logits[1] - logits[0]
    np.testing.assert_allclose(totals(judge, ["ba"]), [expected], rtol=1e-5)


def test_it_is_a_reward_model_of_text_by_name(tmp_path):
    judge = load_reward_model("value", written(tmp_path), micro_batch_size=2)
    assert isinstance(judge, RewardModel)
    assert (judge.info.modality, judge.info.granularity, judge.micro_batch_size) == ("text", "total", 2)
    steps = Episode(id="x", task="ab", texts=("a", "ba"))
    assert judge.score([steps])[0].total == judge.score([episode("aba")])[0].total


def test_a_chat_before_the_question_is_read_too(tmp_path):
    judge = SequenceClassifier(written(tmp_path))
    chat = tuple({"role": "user", "content": c} for c in ("bb", "ab"))
    alone, whole = judge.score([episode("a"), replace(episode("a"), context=chat)])
    assert alone.total != whole.total
    shorter = replace(episode("a"), context=chat[1:])
    assert judge.score([shorter])[0].total == pytest.approx(alone.total, rel=1e-5)


def test_what_it_cannot_read_is_a_failure_and_nothing_else_is(tmp_path):
    judge = SequenceClassifier(written(tmp_path, room=12))
    texts = ["ab", "az", "a" * 20, "b"]
    scores = judge.score([episode(text) for text in texts] + [Episode(id="x", task="ab", states=np.zeros((1, 1)))])
    reasons = {i: score.failure.reason for i, score in enumerate(scores) if score.failure is not None}
    assert reasons == {1: "unknown_character", 2: "too_long", 4: "no_text"}
    np.testing.assert_allclose([scores[0].total, scores[3].total], totals(judge, ["ab", "b"]), rtol=1e-5)
    with torch.no_grad():
        judge.model.score.weight.fill_(float("nan"))
    assert judge.score([episode("a")])[0].failure.reason == "non_finite"
    assert judge.score([]) == []


def test_a_model_that_is_no_classifier_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="lacks 1 weights"):
        SequenceClassifier(written(tmp_path / "lm", kind=LlamaForCausalLM))
    with pytest.raises(CheckpointError, match="3 labels"):
        SequenceClassifier(written(tmp_path / "three", labels=3))
    card = TextModelCard("preference", "chat", "bradley_terry", outputs={"right": 1.0, "kind": 0.5})
    with pytest.raises(CheckpointError, match="has 3 labels, its card names 2"):
        SequenceClassifier(str(tmp_path / "three"), card=card)
    with pytest.raises(CheckpointError, match="cannot be read"):
        SequenceClassifier(str(tmp_path / "nowhere"))
    folder = tmp_path / "wrong"
    written(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 32}))
    with pytest.raises(CheckpointError):
        SequenceClassifier(str(folder))


def _classifiers():
    from transformers import (
        GPT2Config,
        GPT2ForSequenceClassification,
        MistralConfig,
        MistralForSequenceClassification,
        Qwen2Config,
        Qwen2ForSequenceClassification,
    )

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 64, "initializer_range": 0.3}  # fmt: skip
    return {
        "llama": (LlamaForSequenceClassification, LlamaConfig(**shape), "guerdon_shared_prompts"),
        "qwen2": (Qwen2ForSequenceClassification, Qwen2Config(**shape), "guerdon_shared_prompts"),
        "window": (MistralForSequenceClassification, MistralConfig(**shape, sliding_window=9), "guerdon_packed"),
        "gpt2": (GPT2ForSequenceClassification, GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128), None),
    }


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "window", "gpt2"])
def test_prompts_that_are_read_once_give_transformers_values(family, pad, tmp_path, monkeypatch):
    kind, config, expected = _classifiers()[family]
    tokenizer = character_tokenizer("ab")
    config.vocab_size, config.num_labels = len(tokenizer), 1
    config.pad_token_id = tokenizer.pad_token_id if pad else None
    torch.manual_seed(1)
    kind(config).save_pretrained(tmp_path)
    if not pad:
        tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    judge = SequenceClassifier(str(tmp_path), micro_batch_size=5)
    used = []
    switch = judge.model.set_attn_implementation
    monkeypatch.setattr(judge.model, "set_attn_implementation", lambda name: used.append(name) or switch(name))
    rng = np.random.default_rng(0)

    def text(n):
        return "".join(rng.choice(list("ab"), n))

    asked = ["ab" * 20, text(30), "a"]
    episodes = [episode(text(rng.integers(0, 12)), asked[k % 3]) for k in range(14)] + [episode("aa", text(25))]
    found = [score.total for score in judge.score(episodes)]
    assert (expected in used) if expected else not used
    for e, value in zip(episodes, found, strict=True):
        ids = torch.from_numpy(judge._read(e))[None]
        with torch.no_grad():
            assert value == pytest.approx(float(judge.model(input_ids=ids).logits[0, 0]), rel=1e-4, abs=1e-4)
    assert np.std(found) > 0.01
