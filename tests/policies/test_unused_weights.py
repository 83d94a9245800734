"""Weights of a checkpoint that no part of a model takes: refused, but for what transformers ignores and one table."""

import json
import re

import numpy as np
import pytest
import torch
from architectures import build
from safetensors.torch import load_file, save_file
from tiny_models import oracle, random_batch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from guerdon.errors import CheckpointError
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.policies.language import text_files
from guerdon.policies.language.text_files import load_base, load_policy, read_model
from guerdon.policies.pretrained.reading import map_pretrained, read_pretrained
from guerdon.policies.pretrained.unused import UNUSED
from guerdon.processes.progress import log_once
from guerdon.settings.text_policy import TextPolicySettings
from tables import cases

BATCH = random_batch(4, seed=1)
WHERE = "the language model"


def folder_of(family, tmp_path, **changes):
    model, tokenizer = build(family, **changes)
    folder = tmp_path / family
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def edited(folder, **changes):
    file = folder / "config.json"
    said = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))


def with_weights(folder, change):
    """Replace the tensors of a folder by what `change` makes of them."""
    file = folder / "model.safetensors"
    stored = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(change(stored), file, metadata={"format": "pt"})
    return folder


def added(folder, **tensors):
    return with_weights(folder, lambda stored: stored | {name.replace("__", "."): t for name, t in tensors.items()})


def readings(folder):
    """The ways by which a language model is read: whole, and one weight at a time."""
    return (
        lambda: read_model(str(folder))[0],
        lambda: map_pretrained(AutoModelForCausalLM, str(folder), WHERE, start=True),
    )


SCORE = "model.layers.0.self_attn.q_proj.weight"
TAKEN = {  # what may be left out of a start, and the name of its row
    "the head of a classifier": ("score__weight", torch.ones(1, 32), "the head of another task"),
    "the head of an encoder": ("classifier__dense__weight", torch.ones(32, 32), "the head of another task"),
    "the heads of BERT": ("cls__predictions__bias", torch.ones(32), "the heads of an encoder's first training"),
    "TRL's value head": ("v_head__summary__weight", torch.ones(1, 32), "a value head"),
    "another value head": ("value_head__bias", torch.ones(1), "a value head"),
    "scales of activations": (
        "model__layers__0__mlp__up_proj__input_scale", torch.ones(()), "scales of activations",
    ),
    "scales of keys": ("model__layers__0__self_attn__k_scale", torch.ones(1), "scales of a cache"),
    "scales of values": ("model__layers__1__self_attn__v_proj__v_scale", torch.ones(1), "scales of a cache"),
}  # fmt: skip


@cases("name", TAKEN)
def test_a_row_of_the_table_is_left_out_with_one_line(name, tmp_path_factory, capsys):
    key, tensor, row = TAKEN[name]
    folder = folder_of("llama", tmp_path_factory.mktemp("row"))
    plain = oracle(read_model(str(folder))[0], BATCH)[0]
    added(folder, **{key: tensor})
    for read in readings(folder):
        log_once.cache_clear()
        capsys.readouterr()
        assert read() is not None
        said = [line for line in capsys.readouterr().err.splitlines() if "not used" in line]
        assert len(said) == 1
        assert f"1 weights of {row}, such as {key.replace('__', '.')}, are not used" in said[0]
    np.testing.assert_array_equal(oracle(read_model(str(folder))[0], BATCH)[0], plain)


def test_the_table_has_a_test_for_each_row():
    tested = {row for _, _, row in TAKEN.values()}
    assert {row.what for row in UNUSED} - tested == {"a tower of other inputs", "masks, which a model makes itself"}


def test_masks_of_older_files_are_left_out_where_they_are_masks(tmp_path):
    small = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 40}
    GPTJForCausalLM(GPTJConfig(**small, rotary_dim=4, eos_token_id=1)).save_pretrained(tmp_path)
    mask = {"transformer__h__0__attn__bias": torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril()}
    added(tmp_path, **mask, transformer__h__0__attn__masked_bias=torch.tensor(-1e9))
    read_pretrained(AutoModelForCausalLM, str(tmp_path), WHERE)
    added(tmp_path, transformer__h__0__attn__bias=torch.ones(32))
    with pytest.raises(CheckpointError, match=r"1 weights that config\.json has no place for, such as .*attn\.bias"):
        read_pretrained(AutoModelForCausalLM, str(tmp_path), WHERE)


def test_what_transformers_ignores_is_left_out(tmp_path):
    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=16, vocab_size=40, eos_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    added(tmp_path, transformer__h__0__attn__bias=torch.ones(1, 1, 16, 16))
    read_pretrained(AutoModelForCausalLM, str(tmp_path), WHERE)


def as_llama(folder):
    """Qwen2 has biases of its queries, Qwen3 norms; a Llama of the same shape has neither."""
    edited(folder, model_type="llama", architectures=["LlamaForCausalLM"])


def fp8(stored, scale):
    """Linear layers in 8 bits, and a scale per weight under a name."""
    out = {}
    for name, tensor in stored.items():
        if "_proj.weight" not in name:
            out[name] = tensor
            continue
        by = tensor.abs().max() / 448
        out[name] = (tensor / by).to(torch.float8_e4m3fn)
        if scale is not None:
            out[name.replace(".weight", scale)] = (
                by.reshape(scale.count("inv"), *[1] * scale.count("inv")) if ("inv" in scale) else by
            )
    return out


def described_as(method, scale, **more):
    def change(folder):
        with_weights(folder, lambda stored: fp8(stored, scale))
        edited(folder, quantization_config={"quant_method": method, **more})

    return change


def gating(folder):
    added(folder, gating__layers__0__weight=torch.ones(4, 32), regression_layer__weight=torch.ones(3, 32))
    edited(folder, auto_map={"AutoModelForCausalLM": "modeling_custom.RewardModelWithGating"})


BLOCKS = {"weight_block_size": [16, 16], "activation_scheme": "dynamic"}
REFUSED = {
    "biases that the configuration denies": ("qwen2", as_llama, r"config\.json has no place for, such as .*bias"),
    "norms that the configuration denies": ("qwen3", as_llama, r"such as .*_norm\.weight"),
    "gating layers of code in the folder": ("llama", gating, r"of code in its folder \(auto_map\), such as gating"),
    "scales of AutoFP8": (
        "llama", described_as("fp8", ".weight_scale", activation_scheme="static"), r"scale|cannot be read",
    ),
    "scales of ModelOpt": ("llama", described_as("modelopt", ".weight_scale"), "bfloat16"),
    "scales that are not there": ("llama", described_as("fp8", None, **BLOCKS), "without a scale"),
    "scales of a form that nothing describes": (
        "llama", lambda f: with_weights(f, lambda stored: fp8(stored, ".weight_scale")), "bfloat16",
    ),
    "layers of no kind": (
        "llama", lambda f: added(f, model__layers__0__adapter__weight=torch.ones(2, 32)), "no place for",
    ),
    "a mask of no kind": (
        "llama", lambda f: added(f, old_mask=torch.ones(2, dtype=torch.uint8)), "no place for, such as old_mask",
    ),
}  # fmt: skip


@pytest.mark.hostile("models")
@cases("name", REFUSED)
def test_weights_that_nobody_takes_are_refused(name, tmp_path_factory):
    family, change, words = REFUSED[name]
    folder = folder_of(family, tmp_path_factory.mktemp("refused"))
    change(folder)
    for read in readings(folder):
        with pytest.raises(CheckpointError, match=words) as error:
            read()
        assert str(folder) in str(error.value)
        assert "\n" not in str(error.value)
        assert "download" not in str(error.value)
    for load in (load_base, load_policy):  # of a policy, a reference and a start of a reward model
        with pytest.raises(CheckpointError, match=words):
            load(TextPolicySettings(path=str(folder), bf16=False, device="cpu"), seed=0)


def classifier(folder, tokenizer, **tensors):
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, num_labels=1, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return added(folder, **tensors)


@pytest.mark.hostile("models")
@cases("name", ("lm_head__weight", "v_head__summary__weight", "classifier__weight"))
def test_a_finished_reward_model_has_no_second_head(name, tmp_path_factory):
    _, tokenizer = build("llama")
    folder = classifier(tmp_path_factory.mktemp("classifier"), tokenizer)
    SequenceClassifier(str(folder), device="cpu")
    added(folder, **{name: torch.ones(1, 32)})
    told = name.replace("__", ".")
    with pytest.raises(CheckpointError, match=rf"1 weights of the head of another task, such as {re.escape(told)}"):
        SequenceClassifier(str(folder), device="cpu")
    causal = folder_of("llama", tmp_path_factory.mktemp("causal"))
    added(causal, score__weight=torch.ones(1, 32))
    settings = TextPolicySettings(path=str(causal), bf16=False, device="cpu")
    with pytest.raises(CheckpointError, match="of the head of another task, such as score"):
        load_base(settings, seed=0, start=False)
    load_base(settings, seed=0)


def test_scales_beside_a_weight_do_not_stand_for_its_own(tmp_path):
    """`input_scale` and `k_scale` may be left out, which makes no floats of weights in 8 bits."""
    folder = folder_of("llama", tmp_path)
    described_as("fp8", None, **BLOCKS)(folder)
    layer = "model__layers__0__self_attn__k_proj__"
    added(folder, **{f"{layer}input_scale": torch.ones(()), f"{layer}k_scale": torch.ones(())})
    with pytest.raises(CheckpointError, match="without a scale"):
        text_files._mapped(str(folder))
