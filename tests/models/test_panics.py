"""A text on which the library tokenizers panics is a failure of its item in every kind of model of text."""

import adapter_models
import numpy as np
import pytest
import torch
from test_lone_surrogates import solution
from test_many_threads import TEXT_MODELS
from tiny_text_policies import tiny_policy

from guerdon.models.scores import score_episodes
from guerdon.models.text.adapters import load_adapter
from guerdon.policies.batches.tokens import TokenizerError, piece_ids, prompt_ids, prompt_lengths, response_ids
from raisers import PANICS, panicking
from tables import first

pytestmark = pytest.mark.hostile("parts")

torch.set_num_threads(1)


def tokenizer_of(model):
    """The tokenizer of a model of guerdon's or of a published one."""
    return getattr(model, "tokenizer", None) or model._tokenizer


@pytest.mark.parametrize("make", first(TEXT_MODELS.values(), 2), ids=TEXT_MODELS)
def test_reward_models_of_text(make):
    check(make())


@pytest.mark.parametrize("family", first(adapter_models.FAMILIES, 2), ids=lambda f: f.name)
def test_published_models(family, tmp_path):
    family(tmp_path)
    check(load_adapter(family.name, str(tmp_path), 8))


def check(model):
    good = solution()
    wanted = score_episodes(model, [good])[0]
    panicking(tokenizer_of(model).backend_tokenizer)
    found = score_episodes(model, [good, solution("3+5=?", "3+5=8;\n", PANICS), good])
    assert [score.failure is None for score in found] == [True, False, True]
    assert found[1].failure.reason in ("tokenizer_error", "model_error")
    assert "Onig: Regex search error" in found[1].failure.detail
    for score in (found[0], found[2]):
        np.testing.assert_allclose(
            [score.total] if score.steps is None else score.steps,
            [wanted.total] if wanted.steps is None else wanted.steps, atol=1e-5,
        )  # fmt: skip


def test_ids_of_texts():
    tokenizer = tiny_policy().tokenizer
    panicking(tokenizer.backend_tokenizer)
    chat = [{"role": "user", "content": PANICS}]
    works = {
        "prompt_ids": lambda: prompt_ids(tokenizer, chat),
        "prompt_lengths": lambda: prompt_lengths(tokenizer, [[{"role": "user", "content": "1"}], chat]),
        "response_ids": lambda: response_ids(tokenizer, PANICS),
        "piece_ids": lambda: piece_ids(tokenizer, ["1", PANICS]),
    }
    for name, work in works.items():
        with pytest.raises(TokenizerError, match="PanicException: Onig") as caught:
            work()
        assert name in ("piece_ids", "response_ids") or "aaaa" in str(caught.value)
