"""Adapters as people have them: with tokens of their own, whole layers, other scalings, classifiers, older names."""

import json

import numpy as np
import peft
import pytest
import torch
import transformers
from architectures import build
from safetensors.torch import load_file, save_file
from tiny_models import oracle, random_batch

from guerdon.errors import CheckpointError, ConfigError, MissingDependencyError
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.text.text_load import load_text_model
from guerdon.policies.language import text_files
from guerdon.policies.language.text_files import load_policy, read_model, save_policy
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import Episode
from tables import first, sample

BATCH = random_batch(4, seed=5)
TIED = {"tie_word_embeddings": True}


def start(folder, family="llama", *, tokens=0, **changes):
    """A model's folder; the model again, with so many tokens more; its tokenizer."""
    model, tokenizer = build(family, **changes)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    if tokens:
        tokenizer.add_tokens([f"<extra_{i}>" for i in range(tokens)])
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return model, tokenizer


def shaken(model, config, scale=0.1):
    """A peft model whose trained weights are all moved, as by training."""
    adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return adapted.eval()


def saved(adapted, tokenizer, folder, **options):
    adapted.save_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)
    return str(folder)


def same(path, adapted, extra=()):
    """The model that guerdon reads is the one of peft; with tokens in the prompts that were added.

    So are the weights that learners read which share it, a matrix at a time.
    """
    batch = random_batch(4, seed=5)
    batch.prompts[0][:] = [*extra, *batch.prompts[0]][: len(batch.prompts[0])]
    expected = oracle(adapted, batch)[0]
    model, _ = read_model(path)
    np.testing.assert_allclose(expected, oracle(model, batch)[0], atol=1e-5)
    outlined, weights = text_files._mapped(path)
    assert [name for name, _ in outlined.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert outlined.config.tie_word_embeddings == model.config.tie_word_embeddings
    for name, parameter in model.named_parameters():
        assert outlined.get_parameter(name).is_meta
        assert torch.equal(weights[name].float(), parameter), name
    with adapted.disable_adapter():
        assert np.abs(expected - oracle(adapted, batch)[0]).max() > 0.05


@pytest.mark.parametrize("changes", first([{}, TIED], 1), ids=["untied", "tied"])
@pytest.mark.parametrize(
    "options",
    sample(
        [
            {"use_dora": True},
            {"use_rslora": True},
            {"init_lora_weights": "pissa"},
            {"init_lora_weights": "olora"},
            {"init_lora_weights": "orthogonal"},
            {"init_lora_weights": "gaussian"},
            {"init_lora_weights": "eva", "eva_config": peft.EvaConfig()},
            {"init_lora_weights": "mica"},
            {"init_lora_weights": False},
            {"lora_bias": False, "bias": "none", "rank_pattern": {"q_proj": 5}, "alpha_pattern": {"v_proj": 3}},
            {"modules_to_save": ["embed_tokens"]},
            {"modules_to_save": ["lm_head"]},
            {"modules_to_save": ["lm_head", "embed_tokens"]},
            {"modules_to_save": ["norm"]},
            {"modules_to_save": ["lm_head", "embed_tokens"], "ensure_weight_tying": True},
            {"target_modules": ["embed_tokens", "q_proj"]},
            {"target_modules": ["lm_head"]},
            {"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
            {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [3, 50]}},
            {"layers_to_transform": [1], "target_modules": ["up_proj"]},
        ],
        {"use_dora": True},
        {"init_lora_weights": "pissa"},
        {"modules_to_save": ["lm_head", "embed_tokens"]},
        {"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
        {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [3, 50]}},
    ),
    ids=lambda options: "+".join(options),
)
def test_adapters_of_every_make_are_read_as_peft_reads_them(tmp_path, changes, options):
    if options.get("ensure_weight_tying") and not changes:
        pytest.skip("nothing is tied")
    model, tokenizer = start(tmp_path / "start", **changes)
    config = peft.LoraConfig(**{"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **options})
    adapted = shaken(model, config)
    path = saved(adapted, tokenizer, tmp_path / "adapter")
    same(path, adapted)
    policy = load_policy(TextPolicySettings(path=path, bf16=False), seed=0)
    written = save_policy(policy, tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(written)
    np.testing.assert_allclose(oracle(adapted, BATCH)[0], oracle(again, BATCH)[0], atol=1e-5)


@pytest.mark.parametrize("changes", [{}, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize("target", [["q_proj"], ["q_proj", "embed_tokens"], ["lm_head"]], ids="+".join)
@pytest.mark.parametrize("tokens", sample([0, 1, 5], 1))
def test_embeddings_that_come_with_an_adapter(tmp_path, changes, target, tokens):
    model, tokenizer = start(tmp_path / "start", tokens=tokens, **changes)
    adapted = shaken(model, peft.LoraConfig(r=2, target_modules=target, task_type="CAUSAL_LM"), scale=0.3)
    path = saved(adapted, tokenizer, tmp_path / "adapter", save_embedding_layers=True)
    if target != ["q_proj"] and tokens and not changes:  # peft stores the embedding that has an adapter, not the other
        with pytest.raises(CheckpointError, match="not the rows of both"):
            read_model(path)
        return
    same(path, adapted, extra=[len(tokenizer) - 1])
    assert len(read_model(path)[0].get_input_embeddings().weight) == len(tokenizer)


@pytest.mark.hostile("models")
@pytest.mark.parametrize("changes", [{}, TIED], ids=["untied", "tied"])
def test_an_adapter_without_the_rows_of_its_tokens_is_refused(tmp_path, changes):
    model, tokenizer = start(tmp_path / "start", tokens=2, **changes)
    adapted = shaken(model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    path = saved(adapted, tokenizer, tmp_path / "adapter", save_embedding_layers=False)
    with pytest.raises(ConfigError, match=r"105 tokens, the model only 103: .*resize_token_embeddings"):
        load_policy(TextPolicySettings(path=path, bf16=False), seed=0)


def test_the_rows_of_single_tokens_are_enough(tmp_path):
    model, tokenizer = start(tmp_path / "start", tokens=2, **TIED)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[103, 104], task_type="CAUSAL_LM")
    adapted = shaken(model, config)
    path = saved(adapted, tokenizer, tmp_path / "adapter", save_embedding_layers=False)
    same(path, adapted, extra=[104, 103])


KINDS = {
    "LoHaConfig": {"r": 2}, "LoKrConfig": {"r": 2}, "AdaLoraConfig": {"total_step": 9, "init_r": 2, "target_r": 1},
    "IA3Config": {"feedforward_modules": []}, "VeraConfig": {"r": 2}, "OFTConfig": {"oft_block_size": 4},
    "VBLoRAConfig": {"r": 2, "vector_length": 8, "num_vectors": 8},
}  # fmt: skip


@pytest.mark.parametrize("kind", first(KINDS, 3))
def test_other_kinds_of_adapters_are_read_as_peft_reads_them(tmp_path, kind):
    model, tokenizer = start(tmp_path / "start", **TIED)
    config = getattr(peft, kind)(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **KINDS[kind])
    adapted = shaken(model, config)
    same(saved(adapted, tokenizer, tmp_path / "adapter"), adapted)


@pytest.mark.hostile("models")
@pytest.mark.parametrize("kind", ["poly", "alora"])
def test_adapters_that_cannot_be_merged_are_refused_by_name(tmp_path, kind):
    model, tokenizer = start(tmp_path / "start")
    config = {"poly": lambda **given: peft.PolyConfig(n_tasks=1, **given),
              "alora": lambda **given: peft.LoraConfig(alora_invocation_tokens=[5], **given)}[kind]  # fmt: skip
    adapted = peft.get_peft_model(model, config(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with pytest.raises(CheckpointError, match=r"cannot be merged into its model.*NotImplementedError"):
        read_model(saved(adapted, tokenizer, tmp_path / "adapter"))


@pytest.mark.parametrize("family", sample(["mixtral", "qwen3_moe"], "mixtral"))
@pytest.mark.parametrize("options", [{}, {"use_rslora": True, "target_modules": ["o_proj"]}], ids=["experts", "both"])
def test_parameters_of_fused_experts(tmp_path, family, options):
    model, tokenizer = start(tmp_path / "start", family)
    given = {"target_modules": [], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"], **options}
    adapted = shaken(model, peft.LoraConfig(r=2, task_type="CAUSAL_LM", **given))
    same(saved(adapted, tokenizer, tmp_path / "adapter"), adapted)


@pytest.mark.hostile("models")
@pytest.mark.parametrize("made", ["corda", "lora_ga", "pissa_niter_16"])
def test_adapters_whose_base_was_changed_by_data_are_refused_by_name(tmp_path, made):
    model, tokenizer = start(tmp_path / "start")
    adapted = shaken(model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    path = saved(adapted, tokenizer, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "init_lora_weights": made}))
    with pytest.raises(CheckpointError, match=f"init_lora_weights '{made}'.*path_initial_model_for_weight_conversion"):
        read_model(path)


def test_an_adapter_of_loftq_names_the_package_that_it_needs(tmp_path, monkeypatch):
    model, tokenizer = start(tmp_path / "start")
    path = saved(shaken(model, peft.LoraConfig(r=2, target_modules=["q_proj"])), tokenizer, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "init_lora_weights": "loftq"}))
    monkeypatch.setattr("guerdon.policies.pretrained.adapter_files.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install bitsandbytes"):
        read_model(path)


def test_a_pissa_adapter_that_peft_converted_is_plain(tmp_path):
    model, tokenizer = start(tmp_path / "start")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights="pissa")
    adapted = peft.get_peft_model(model, config)
    adapted.peft_config["default"].init_lora_weights = True
    adapted.save_pretrained(tmp_path / "initial")
    shaken_weights = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=shaken_weights))
    expected = oracle(adapted.eval(), BATCH)[0]
    options = {"path_initial_model_for_weight_conversion": str(tmp_path / "initial")}
    path = saved(adapted, tokenizer, tmp_path / "adapter", **options)
    np.testing.assert_allclose(oracle(read_model(path)[0], BATCH)[0], expected, atol=1e-5)


def test_an_adapter_of_experts_one_by_one_is_read(tmp_path):
    """As transformers 4 named and peft wrote them, before experts were stacked."""
    model, _ = start(tmp_path / "start", "mixtral", num_local_experts=3)
    stored, generator = load_file(tmp_path / "start" / "model.safetensors"), torch.Generator().manual_seed(0)
    adapter, merged = {}, dict(stored)
    for name in [n for n in stored if ".experts." in n]:
        rows, columns = stored[name].shape
        a, b = (0.3 * torch.randn(*shape, generator=generator) for shape in ((2, columns), (rows, 2)))
        layer = "base_model.model." + name.removesuffix(".weight")
        adapter |= {f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b}
        merged[name] = stored[name] + 2.0 * b @ a
    assert len(adapter) == 2 * 2 * 3 * 3
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["w1", "w2", "w3"], task_type="CAUSAL_LM")
    config.base_model_name_or_path = str(tmp_path / "start")
    (tmp_path / "adapter").mkdir()
    config.save_pretrained(tmp_path / "adapter")
    save_file(adapter, tmp_path / "adapter" / "adapter_model.safetensors")
    copied = tmp_path / "merged"
    model.save_pretrained(copied)
    save_file(merged, copied / "model.safetensors", metadata={"format": "pt"})
    expected = oracle(transformers.AutoModelForCausalLM.from_pretrained(copied), BATCH)[0]
    np.testing.assert_allclose(oracle(read_model(str(tmp_path / "adapter"))[0], BATCH)[0], expected, atol=1e-5)
    del adapter[next(iter(adapter))]
    save_file(adapter, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(CheckpointError):
        read_model(str(tmp_path / "adapter"))


def classifier(folder, origin, *, labels=1, tokens=0, **options):
    """A LoRA classifier on a model's folder as TRL's RewardTrainer makes and writes it; it and its tokenizer."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(origin)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(origin, num_labels=labels)
    if tokens:
        tokenizer.add_special_tokens({"pad_token": "[PAD]"})
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    given = {"r": 2, "target_modules": "all-linear", "task_type": "SEQ_CLS", "modules_to_save": ["score"]}
    adapted = shaken(model, peft.LoraConfig(**{**given, **options}))
    adapted.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return adapted, tokenizer


def logits(adapted, tokenizer, episode):
    messages = [{"role": "user", "content": episode.task}, {"role": "assistant", "content": episode.texts[0]}]
    ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)["input_ids"]
    with torch.no_grad():
        return adapted(ids).logits[0]


EPISODES = [Episode(id=t, task="1+2=?", texts=(t,)) for t in ("3", "the sum is 3", "4")]


@pytest.mark.parametrize("labels", sample([1, 2], 2))
@pytest.mark.parametrize("tokens", sample([0, 1], 1))
@pytest.mark.parametrize("on_classifier", [False, True])
@pytest.mark.parametrize("named", [["score"], None])  # None: peft keeps the head by itself
def test_a_lora_classifier_is_read_with_its_head(tmp_path, labels, tokens, on_classifier, named):
    start(tmp_path / "start", "qwen2")
    torch.manual_seed(1)  # heads are drawn; by chance two could be alike
    if on_classifier:  # the model under the adapter has a head of its own, which the adapter's replaces
        whole = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "start", num_labels=labels)
        whole.save_pretrained(tmp_path / "start")
    adapted, tokenizer = classifier(
        tmp_path / "rm", tmp_path / "start", labels=labels, tokens=tokens, modules_to_save=named
    )
    judge = SequenceClassifier(str(tmp_path / "rm"), device="cpu", micro_batch_size=2)
    for episode, score in zip(EPISODES, judge.score(EPISODES), strict=True):
        found = logits(adapted, tokenizer, episode)
        assert score.total == pytest.approx(float(found[-1] - (found[0] if labels == 2 else 0)), abs=1e-5)
        with adapted.disable_adapter():
            assert abs(score.total - float(logits(adapted, tokenizer, episode)[-1])) > 1e-3


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_a_lora_token_classifier_is_read_with_its_head(tmp_path, with_tokenizer):
    """As TRL's PRMTrainer makes it."""
    _, tokenizer = start(tmp_path / "start", "qwen2")
    model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "start", num_labels=2)
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type="TOKEN_CLS", modules_to_save=["score"])
    adapted = shaken(model, config)
    adapted.save_pretrained(tmp_path / "prm")
    if with_tokenizer:
        tokenizer.save_pretrained(tmp_path / "prm")
    (score,) = load_text_model(str(tmp_path / "prm"), device="cpu").score(
        [Episode(id="1", task="1+2=?", texts=("1+2=3", "so 3"))]
    )
    ids = [[tokenizer.bos_token_id, *tokenizer.encode("1+2=?", add_special_tokens=False)]]
    ids += [tokenizer.encode(f"{step}\n", add_special_tokens=False) for step in ("1+2=3", "so 3")]
    with torch.no_grad():
        logits = adapted(torch.tensor([np.concatenate(ids).astype(int).tolist()])).logits[0]
    expected = logits.softmax(-1)[np.cumsum([len(part) for part in ids])[1:] - 1, 1]
    np.testing.assert_allclose(score.steps, expected, atol=1e-5)


def test_a_lora_classifier_is_recognised_and_may_leave_its_tokenizer_to_its_model(tmp_path):
    start(tmp_path / "start")
    classifier(tmp_path / "rm", tmp_path / "start")
    expected = SequenceClassifier(str(tmp_path / "rm"), device="cpu").score(EPISODES)
    for file in tmp_path.glob("rm/*token*"):
        file.unlink()
    (tmp_path / "rm" / "chat_template.jinja").unlink()
    judge = load_text_model(str(tmp_path / "rm"), device="cpu")
    assert [s.total for s in judge.score(EPISODES)] == [s.total for s in expected]


@pytest.mark.hostile("models")
def test_a_classifier_without_a_head_is_refused(tmp_path):
    start(tmp_path / "start")
    adapted, tokenizer = classifier(tmp_path / "rm", tmp_path / "start")
    weights = load_file(tmp_path / "rm" / "adapter_model.safetensors")
    headless = {name: tensor for name, tensor in weights.items() if "score" not in name}
    assert len(weights) == len(headless) + 1
    save_file(headless, tmp_path / "rm" / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r'no classification head.*modules_to_save=\["score"\]'):
        SequenceClassifier(str(tmp_path / "rm"), device="cpu")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(tmp_path / "merged")
    with pytest.raises(ConfigError, match="104 tokens, the model only 103"):
        SequenceClassifier(str(tmp_path / "merged"), device="cpu")
