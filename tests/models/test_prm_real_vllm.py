"""A real vLLM pools a tiny process reward model: what it says of each step is what guerdon's adapter says.

GUERDON_VLLM=/path/to/vllm pytest -m slow tests/models/test_prm_real_vllm.py
"""

import httpx2 as httpx
import numpy as np
import pytest
import torch
from vllm_process import NEEDS_VLLM, vllm_server

from guerdon.models.text.text_load import load_text_model
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.types import Episode

pytestmark = NEEDS_VLLM


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A token classifier with two labels, as TRL trained them, with random weights."""
    from transformers import Qwen2Config, Qwen2ForTokenClassification

    place = tmp_path_factory.mktemp("prm") / "tiny"
    tokenizer = byte_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, num_labels=2, pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2ForTokenClassification(config).eval().save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def vllm(folder):
    """The address of a vLLM that pools it."""
    pooling = ["--runner", "pooling", "--served-model-name", "prm", "--dtype", "float32", "--max-model-len", "512"]
    with vllm_server(folder, *pooling) as address:
        yield address


def test_every_step_has_the_same_value(folder, vllm):
    ours = load_text_model(str(folder))
    rng = np.random.default_rng(0)
    for k in range(6):
        steps = tuple(f"{a}+{b}={a + b}." for a, b in rng.integers(100, size=(2 + k, 2)))
        episode = Episode(id=str(k), task="Add these up.", texts=steps)
        marked = ours.tokenize(episode.task, steps)
        asked = {"model": "prm", "input": marked.ids.tolist(), "task": "token_classify"}
        answer = httpx.post(f"{vllm}/pooling", json=asked, timeout=60)
        assert answer.status_code == 200, answer.text
        per_token = np.array(answer.json()["data"][0]["data"])
        assert per_token.shape == (len(marked.ids), 2)
        scored = ours.score([episode])[0].steps
        assert scored.std() > 1e-3  # steps differ, so a shifted place would show
        np.testing.assert_allclose(per_token[marked.places, 1], scored, atol=1e-5)
