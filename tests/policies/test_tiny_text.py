import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from guerdon.policies.batches.tokens import prompt_ids, response_ids
from guerdon.policies.language.tiny_text import build_model, build_tokenizer, byte_tokenizer
from guerdon.policies.pretrained.reading import read_tokenizer
from guerdon.settings.text_policy import (
    LocalGenerationSettings,
    LoraSettings,
    TextPolicySettings,
    TinyModelSettings,
    VLLMGenerationSettings,
)
from guerdon.settings.train import SFTSettings
from tables import cases, refuses

torch.set_num_threads(1)
SMALL = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 16}
CHAT = [{"role": "user", "content": "3+5=?\nWhy?"}]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_a_made_model_is_an_ordinary_folder(tmp_path, architecture, tokenizer):
    settings = TinyModelSettings(architecture=architecture, tokenizer=tokenizer, **SMALL)
    made = build_tokenizer(settings)
    model = build_model(settings, made, seed=1)
    made.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    again = read_tokenizer(str(tmp_path))
    if architecture == "llama":
        plain = AutoTokenizer.from_pretrained(tmp_path)
        np.testing.assert_array_equal(prompt_ids(plain, CHAT), prompt_ids(made, CHAT))
    ids = prompt_ids(made, CHAT)
    np.testing.assert_array_equal(prompt_ids(again, CHAT), ids)
    np.testing.assert_array_equal(response_ids(again, "a  b\n"), response_ids(made, "a  b\n"))
    assert again.decode(response_ids(again, " a  b.\n\n"), skip_special_tokens=True) == " a  b.\n\n"
    assert (again.eos_token_id, again.pad_token_id) == (made.eos_token_id, made.pad_token_id)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(reloaded).__name__ == {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[architecture]
    with torch.no_grad():
        x = torch.from_numpy(ids)[None]
        assert torch.equal(reloaded(x).logits, model.eval()(x).logits)


def test_the_seed_alone_decides_the_weights():
    settings = TinyModelSettings(**SMALL)
    tokenizer = build_tokenizer(settings)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    a, b, c = (build_model(settings, tokenizer, seed=s).get_input_embeddings().weight for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_bytes_learn_pairs_and_know_every_text():
    learned = byte_tokenizer(["hello hello hello"] * 10, vocabulary_size=280)
    assert len(learned) > len(byte_tokenizer()) == 262
    assert len(response_ids(learned, "hello")) < len(response_ids(byte_tokenizer(), "hello"))
    text = "é→😀 <|user|>"
    assert byte_tokenizer().decode(response_ids(byte_tokenizer(), "é→😀"), skip_special_tokens=True) in text


@cases(
    ("kind", "given", "key"),
    [
        (TinyModelSettings, {"hidden_size": 30, "heads": 4}, "hidden_size"),
        (TinyModelSettings, {"heads": 4, "kv_heads": 3}, "heads"),
        (TinyModelSettings, {"tokenizer": "bytes", "alphabet": "ab"}, "alphabet"),
        (TextPolicySettings, {"path": "x", "tiny": {}}, "path"),
        (VLLMGenerationSettings, {"batch_size": 3}, "batch_size"),
        (LocalGenerationSettings, {"gpu_memory_utilization": 0.5}, "gpu_memory_utilization"),
        (SFTSettings, {"save_dir": "x", "epochs": 1, "max_steps": 3}, "epochs"),
        (SFTSettings, {"save_dir": "x", "batch_size": 6, "micro_batch_size": 4}, "batch_size"),
        (LoraSettings, {"r": True}, "r"),
    ],
)
def test_settings_refuse_what_cannot_be_or_would_do_nothing(kind, given, key):
    with refuses(key):
        kind(**given)
