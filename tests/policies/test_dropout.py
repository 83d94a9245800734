"""Dropout is drawn where a model is trained on examples, and nowhere where log-probabilities are compared."""

import json

import numpy as np
import pytest
import torch
import transformers
from architectures import FAMILIES, build, save
from tiny_models import enliven

from guerdon.models.text.implicit_text import ImplicitModel
from guerdon.models.text.text_card import TextModelCard
from guerdon.policies.batches.tokens import prompt_ids, token_batch
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy, add_policy, reference
from guerdon.policies.language.tiny_text import build_tokenizer
from guerdon.rl.run import run, run_folder
from guerdon.settings.study import Study
from guerdon.settings.text_policy import LoraSettings, TextPolicySettings, TinyModelSettings
from guerdon.settings.train import ImplicitTrainSettings, OutcomeTrainSettings, StepwiseTrainSettings
from guerdon.train.text import start_model
from guerdon.types import Episode
from tables import sample

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}
OTHERS = {  # with dropout in the layers' own code, whole layers that are left out, noise before a router
    "opt": ("OPTConfig", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "stablelm": ("StableLmConfig", {**SMALL, "intermediate_size": 48, "num_key_value_heads": 4}),
    "mixtral": ("MixtralConfig", {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2,
                                  "num_local_experts": 2, "router_jitter_noise": 0.3}),
    "starcoder2": ("Starcoder2Config", {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2}),
    "xglm": ("XGLMConfig", {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48,
                            "max_position_embeddings": 128}),
    "gptj": ("GPTJConfig", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "rotary_dim": 4}),
}  # fmt: skip


def dropping(family: str, *, rate: float = 0.1):
    """A model of a family with every dropout of its configuration set."""
    tokenizer = build_tokenizer(TinyModelSettings())
    config_class, options = (FAMILIES | OTHERS)[family]
    names = [name for name in getattr(transformers, config_class)().to_dict() if "drop" in name]
    assert names, family
    rates = {name: rate for name in names if "summary" not in name and "classifier" not in name}
    if family in FAMILIES:
        return (*build(family, tokenizer=tokenizer, **rates), rates)
    config = getattr(transformers, config_class)(vocab_size=len(tokenizer), pad_token_id=0, **{**options, **rates})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    enliven(model, 0)
    return model.eval(), tokenizer, rates


def batch_of(tokenizer):
    prompts = [prompt_ids(tokenizer, [{"role": "user", "content": q}]) for q in ("3+5=?", "1+1=?", "1+1=?")]
    responses = [np.array(tokenizer.encode(t, add_special_tokens=False)) for t in ("it is 8", "2", "two, or 2")]
    return token_batch(prompts, responses, np.ones(3, dtype=bool), pad_id=tokenizer.pad_token_id)


def policies(family, *, checkpointing=False, lora=None, **options):
    model, tokenizer, _ = dropping(family)
    base = SharedBase(model, tokenizer, TextPolicySettings(
        tiny=TinyModelSettings(), bf16=False, gradient_checkpointing=checkpointing, **options
    ))  # fmt: skip
    if lora is None:
        return TextPolicy(base), None
    if family == "mixtral":  # peft has no dropout on fused experts
        lora = lora.model_copy(update={"target_modules": ("q_proj", "v_proj")})
    policy = add_policy(base, "policy", lora, seed=0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    return policy, reference(base)


@pytest.mark.parametrize("lora", [None, LoraSettings(r=2, dropout=0.1)], ids=["whole", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("family", sample([*FAMILIES, *OTHERS], "llama", "gpt2"))
def test_gradient_passes_are_those_of_the_policy_that_acted(family, checkpointing, lora):
    policy, _ = policies(family, checkpointing=checkpointing, lora=lora)
    batch = batch_of(policy.tokenizer)
    kept = policy.evaluate_all(batch, micro=8).log_probs
    found = policy.log_probs(batch)
    assert torch.equal(found.detach(), kept)
    found.sum().backward()
    plain = {name: p.grad.clone() for name, p in policy.named_parameters().items() if p.grad is not None}
    assert plain
    if checkpointing:
        for name, gradient in gradients(family, lora).items():
            torch.testing.assert_close(plain[name], gradient, atol=1e-5, rtol=1e-4)
    policy.dropout = True
    assert not torch.allclose(policy.log_probs(batch).detach(), kept, atol=1e-3)
    assert torch.equal(policy.evaluate_all(batch, micro=8).log_probs, kept)


def gradients(family, lora):
    policy, _ = policies(family, lora=lora)
    policy.log_probs(batch_of(policy.tokenizer)).sum().backward()
    return {name: p.grad for name, p in policy.named_parameters().items() if p.grad is not None}


@pytest.mark.parametrize("family", ["opt", "xglm", "starcoder2"])
def test_what_is_around_recomputed_layers_draws_nothing_either(family):
    policy, _ = policies(family, checkpointing=True)
    around = [(m, name) for m in policy.base.model.modules() for name in ("layerdrop", "embedding_dropout")
              if isinstance(getattr(m, name, None), float)]  # fmt: skip
    assert around
    for module, name in around:
        setattr(module, name, 0.9)
    batch = batch_of(policy.tokenizer)
    assert torch.equal(policy.log_probs(batch).detach(), policy.evaluate_all(batch, micro=8).log_probs)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bloom", "gpt_neox"])
def test_activations_are_recomputed_with_and_without_dropout(family, dropout):
    policy, _ = policies(family, checkpointing=True)
    policy.dropout = dropout
    linear = next(m for m in policy.base.decoder.modules() if type(m).__name__ in ("Linear", "Conv1D"))
    policy.evaluate_all(batch_of(policy.tokenizer), micro=8)  # which also tries what the model can do
    calls = []
    linear.register_forward_hook(lambda *_: calls.append(1))
    scores = policy.log_probs(batch_of(policy.tokenizer))
    assert len(calls) == 1
    scores.sum().backward()
    assert len(calls) == 2
    with torch.no_grad():
        policy.log_probs(batch_of(policy.tokenizer))
    assert not any(m.training for m in policy.base.model.modules())


def test_implicit_models_are_trained_on_log_ratios_without_dropout():
    (policy, _), (ref, _) = policies("gpt2"), policies("gpt2")
    ref.load_tensors(policy.tensors())
    model = ImplicitModel(policy, TextModelCard("implicit", "chat", "bce", beta=0.05), ref=ref)
    readings = [model.reading_of(Episode(id="1", task="3+5=?", texts=("it is 8",), outcome=True))]
    assert torch.equal(model.log_ratios(readings), torch.zeros_like(model.log_ratios(readings)))
    policy.dropout = True
    assert model.log_ratios(readings).abs().max() > 1e-3


@pytest.mark.parametrize(("key", "drawn"), [(None, True), (False, False), (True, True)])
def test_models_that_learn_from_examples_draw_dropout_unless_a_key_forbids_it(key, drawn, capsys):
    policy = TextPolicySettings(tiny=TinyModelSettings(), dropout=key)
    for settings in (StepwiseTrainSettings, OutcomeTrainSettings, ImplicitTrainSettings):
        model = start_model(settings(save_dir="unused"), policy, separator="\n")
        assert model.policy.dropout == (key is True if settings is ImplicitTrainSettings else drawn)
    assert ("WARNING: policy.dropout" in capsys.readouterr().err) == (key is True)


# Runs that learn nothing: whatever dropout a model has, ratios are 1, KL and implicit rewards 0.


def still_study(folder, family, *, lora=None, policy=None):
    config = getattr(transformers, FAMILIES[family][0])()
    rates = {name: 0.1 for name in config.to_dict() if name.endswith(("dropout", "pdrop")) and "class" not in name}
    model, template = save(family, folder / "model", **rates)
    questions = folder / "letters.jsonl"
    questions.write_text("".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in "abcdef"))
    return Study.model_validate({
        "policy": {"type": "text", "bf16": False, "path": str(model), "lora": lora, **(policy or {})}
        | ({} if template is None else {"chat_template": str(template)}),
        "data": {"type": "files", "train_files": str(questions), "val_size": 2, "verifier": "exact",
                 "unparsable": "wrong", "max_response_length": 3, "train_batch_size": 4, "n_samples": 4,
                 "filter_accuracy": False, "filter_truncated": False},
        "algorithm": {"learning_rate": 0, "kl_coef": 0.1, "kl_in": "loss", "minibatch_size": 8, "num_epochs": 2},
        "reward_model": {"prime_norm": "none", "mini_batch_size": 8, "micro_batch_size": 4,
                         "prime_model": {"update": "after", "optim": {"lr": 0}}},
        "runner": {"total_steps": 32, "eval_every": 1000, "checkpoint_every": 1000,
                   "logger": {"log_path": str(folder), "experiment_name": "run", "tensorboard": False}},
    })  # fmt: skip


def rows_of(study):
    run(study)
    found = [json.loads(line) for line in (run_folder(study) / "metrics.jsonl").read_text().splitlines()]
    found = [row for row in found if row["kind"] == "train"]
    assert len(found) == 2
    assert all(row["updates"] == 4 for row in found)
    return found


@pytest.mark.parametrize("family", sample(FAMILIES, "llama"))
def test_a_run_that_learns_nothing_measures_nothing(tmp_path, family):
    lora = {"r": 2, "alpha": 4, "dropout": 0.1} if list(FAMILIES).index(family) % 2 else None
    for row in rows_of(still_study(tmp_path, family, lora=lora)):
        assert row["clip_fraction"] == 0.0
        for name in ("approx_kl", "kl", "return/prime", "reward_model/prime/q_mean"):
            assert row[name] == pytest.approx(0, abs=1e-6), name


@pytest.mark.parametrize("lora", [None, {"r": 2, "alpha": 4, "dropout": 0.1}], ids=["whole", "lora"])
def test_a_key_asks_for_dropout_and_rewards_have_none_all_the_same(tmp_path, capsys, lora):
    found = rows_of(still_study(tmp_path, "gpt2", lora=lora, policy={"dropout": True}))
    assert all(min(row["kl"], row["approx_kl"]) > 1e-4 for row in found), found
    assert all(row["reward_model/prime/q_mean"] == pytest.approx(0, abs=1e-6) for row in found)
    assert capsys.readouterr().err.count("WARNING: policy.dropout: ratios") == 1


def test_dropout_of_adapters_that_is_off_is_said(tmp_path, capsys):
    rows_of(still_study(tmp_path, "llama", lora={"r": 2, "alpha": 4, "dropout": 0.1}))
    assert "policy.lora.dropout (0.1) is for training on examples and off here" in capsys.readouterr().err
