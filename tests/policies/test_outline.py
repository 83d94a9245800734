"""A policy without its weights knows the lengths, the layers and the sizes of the policy that a run would load."""

import peft
import pytest
from architectures import FAMILIES, OTHERS, build

from guerdon.errors import ConfigError, MissingDependencyError
from guerdon.policies.language.text_files import load_policy, outline, save_policy, written_bytes
from guerdon.settings.text_policy import LoraSettings, TextPolicySettings
from tables import refuses, sample

TARGETS = {None: None, "all": "all-linear", "head": ("lm_head",), "in": ("embed_tokens", "wte", "embed_in")}


def folder_of(family, folder, **changes):
    model, tokenizer = build(family, **changes)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", sample([*FAMILIES, *OTHERS], "llama_tied", "gpt2", "mixtral"))
def test_what_is_written_is_known_without_weights(tmp_path, family):
    folder = folder_of(family, tmp_path / "m")
    for target in TARGETS.values():
        lora = None if target is None else LoraSettings(r=3, target_modules=target)
        settings = TextPolicySettings(path=str(folder), bf16=False, lora=lora, use_remove_padding=True)
        found, whole = outline(settings, value_heads=2), load_policy(settings, seed=0, value_heads=2)
        assert {p.device.type for p in found.base.model.parameters()} == {"meta"}
        assert {n: p.shape for n, p in found.named_parameters().items()} == {
            n: p.shape for n, p in whole.named_parameters().items()
        }
        for merged in (False, True):
            assert written_bytes(found, merged=merged) == written_bytes(whole, merged=merged)
        assert found.base.positions == whole.base.positions
        assert found.tokenizer.get_vocab() == whole.tokenizer.get_vocab()


def test_an_adapter_with_more_tokens_and_an_adapter_on_it(tmp_path):
    model, tokenizer = build("llama")
    folder = folder_of("llama", tmp_path / "m")
    tokenizer.add_tokens(["<step>"])
    model.resize_token_embeddings(len(tokenizer))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    adapted.peft_config["default"].base_model_name_or_path = str(folder)
    adapted.save_pretrained(tmp_path / "a", save_embedding_layers=True)
    tokenizer.save_pretrained(tmp_path / "a")
    settings = TextPolicySettings(path=str(tmp_path / "a"), bf16=False, lora=LoraSettings(r=2))
    save_policy(load_policy(settings, seed=0), tmp_path / "b")
    for path in ("a", "b"):
        settings = settings.model_copy(update={"path": str(tmp_path / path), "lora": None})
        assert written_bytes(outline(settings)) == written_bytes(load_policy(settings, seed=0))


def test_what_the_start_refuses_is_refused_without_weights(tmp_path):
    folder = folder_of("llama", tmp_path / "m")
    lora = LoraSettings(target_modules=("c_attn",))
    with refuses("lora.target_modules", "c_attn"):
        outline(TextPolicySettings(path=str(folder), lora=lora))
    with pytest.raises(MissingDependencyError, match="nobody/none is not on this machine"):
        outline(TextPolicySettings(path="nobody/none"))
    _, tokenizer = build("llama")
    tokenizer.add_tokens(["<a>", "<b>"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigError, match="resize_token_embeddings"):
        outline(TextPolicySettings(path=str(folder)))
