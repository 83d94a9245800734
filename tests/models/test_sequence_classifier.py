"""A sequence classifier as a judge: a number per response, the same in any company; the unreadable is a failure."""

import json

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from guerdon.errors import CheckpointError
from guerdon.models.sequence_classifier import SequenceClassifier
from guerdon.policies.tiny_text import character_tokenizer
from guerdon.policies.tokens import prompt_ids, response_ids
from guerdon.worlds.prompts import Prompt

torch.set_num_threads(1)
TEXTS = ["ab", "", "abba", "b", "aab"]


def prompt(question="ab"):
    return Prompt("x", ({"role": "user", "content": question},), "1", "letters")


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
    prompts = [prompt("a" * k) for k in (1, 2, 3, 1, 2)]
    together, failures = judge.score(prompts, TEXTS, micro=5)
    apart = [judge.score([p], [t], micro=1)[0][0] for p, t in zip(prompts, TEXTS, strict=True)]
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together, judge.score(prompts, TEXTS, micro=2)[0], rtol=1e-4, atol=1e-5)
    assert not failures
    assert together.dtype == np.float32
    assert together.std() > 0.01


@pytest.mark.parametrize("labels", [1, 2])
def test_it_is_the_models_own_logit_or_log_odds(labels, tmp_path):
    judge = SequenceClassifier(written(tmp_path, labels=labels))
    ids = np.concatenate([prompt_ids(judge.tokenizer, prompt().messages), response_ids(judge.tokenizer, "ba")])
    with torch.no_grad():
        logits = judge.model(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy()
    expected = logits[0] if labels == 1 else logits[1] - logits[0]
    np.testing.assert_allclose(judge.score([prompt()], ["ba"], micro=4)[0], [expected], rtol=1e-5)


def test_what_it_cannot_read_is_a_failure_and_nothing_else_is(tmp_path):
    judge = SequenceClassifier(written(tmp_path, room=12))
    texts = ["ab", "az", "a" * 20, "b"]
    values, failures = judge.score([prompt()] * 4, texts, micro=4)
    assert {i: f.reason for i, f in failures.items()} == {1: "unknown_character", 2: "too_long"}
    assert values[[1, 2]].tolist() == [0, 0]
    np.testing.assert_allclose(values[[0, 3]], judge.score([prompt()] * 2, ["ab", "b"], micro=4)[0], rtol=1e-5)
    with torch.no_grad():
        judge.model.score.weight.fill_(float("nan"))
    values, failures = judge.score([prompt()], ["a"], micro=4)
    assert failures[0].reason == "non_finite"
    assert values.tolist() == [0]
    assert judge.score([], [], micro=4)[0].shape == (0,)


def test_a_model_that_is_no_classifier_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="lacks 1 weights"):
        SequenceClassifier(written(tmp_path / "lm", kind=LlamaForCausalLM))
    with pytest.raises(CheckpointError, match="3 labels"):
        SequenceClassifier(written(tmp_path / "three", labels=3))
    with pytest.raises(CheckpointError, match="cannot be read"):
        SequenceClassifier(str(tmp_path / "nowhere"))
    folder = tmp_path / "wrong"
    written(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 32}))
    with pytest.raises(CheckpointError):
        SequenceClassifier(str(folder))
