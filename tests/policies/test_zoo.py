"""Many families of language models: log-probabilities, generation, adapters and folders, against transformers.

A few are tried in every run of the tests, all of them among the slow ones (`pytest -m slow tests/policies/test_zoo.py`,
a few minutes).
"""

import json

import numpy as np
import pytest
import torch
import transformers
from tiny_models import oracle, random_batch
from zoo import NOT_PLAIN, SEVERAL, ZOO, make, make_several

from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.batches.packing import is_recurrent
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.generate import HFDecoder, LocalEngine, check_steps
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import load_policy, read_model, save_policy
from guerdon.policies.pretrained.reading import map_pretrained, read_pretrained
from guerdon.processes.progress import log_once
from guerdon.settings.text_policy import LocalGenerationSettings, LoraSettings, TextPolicySettings

EXACT, MERGED = 1e-5, 1e-4
REFUSED = ("minimax", "recurrent_gemma", "rwkv")  # with a cache of their own
QUICK = ("gpt_oss", "mamba2", "qwen3_next", "rwkv", "qwen2_5_vl", "llama4")
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in (*ZOO, *SEVERAL)]


def words(rows=5, seed=3):
    """Texts without the tokens of pictures."""
    batch = random_batch(rows, seed=seed)
    prompts = [np.minimum(prompt, 94) for prompt in batch.prompts]
    return token_batch(prompts, [np.minimum(r, 94) for r in batch.responses()], np.ones(rows, bool), pad_id=0)


BATCH = words()


def built(name):
    return make_several(name) if name in SEVERAL else make(name)


def folder_of(name, folder):
    model, tokenizer = built(name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model


def policy_at(folder, **options):
    return load_policy(TextPolicySettings(path=str(folder), bf16=False, device="cpu", **options), seed=0)


def log_probs(policy):
    with torch.no_grad():
        return policy.log_probs(BATCH).numpy()


def test_the_zoo_is_large_enough():
    assert len({*ZOO, *SEVERAL}) >= 45
    assert len({*NOT_PLAIN} - {*REFUSED}) >= 12
    assert all(getattr(transformers, name).model_type == kind for kind, (name, *_) in {**ZOO, **SEVERAL}.items())


@pytest.mark.parametrize("name", EVERY)
def test_a_family_is_read_evaluated_and_generated_with_as_transformers_does(name, tmp_path):
    folder, model = folder_of(name, tmp_path / "model")
    wanted = oracle(model, BATCH)[0]
    policy = policy_at(folder)
    np.testing.assert_allclose(log_probs(policy), wanted, atol=EXACT)
    if policy.base.packs:
        assert not is_recurrent(model.config)
        packed = TextPolicy(policy.base, remove_padding=True)
        np.testing.assert_allclose(log_probs(packed), wanted, atol=EXACT)
    if name in REFUSED:
        with pytest.raises(
            ConfigError, match=rf"{type(model).__name__}.*(gives other log-probabilities|generated with)"
        ):
            LocalEngine(policy, LocalGenerationSettings())
        return
    engine = LocalEngine(policy, LocalGenerationSettings(batch_size=8))
    found = engine.generate(list(BATCH.prompts), 2, max_new_tokens=18, rng=np.random.default_rng(0))
    with torch.no_grad():
        again = policy.log_probs(found.batch).numpy()
    np.testing.assert_allclose(found.log_probs_B_T, again, atol=3 * EXACT)
    if name not in SEVERAL:  # where a token that was drawn may stand for a picture
        np.testing.assert_allclose(again, oracle(model, found.batch)[0], atol=EXACT)


@pytest.mark.parametrize("name", EVERY)
def test_adapters_on_all_linear_layers_are_merged_and_read_again(name, tmp_path):
    folder, model = folder_of(name, tmp_path / "model")
    policy = policy_at(folder, lora=LoraSettings(r=2))
    trained = {path.partition(".lora_")[0].rpartition(".")[2] for path in policy.named_parameters()}
    assert not trained & {"gate", "router", "shared_expert_gate", "modality_router"}
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(std=0.1)
    wanted = log_probs(policy)
    assert np.abs(wanted - oracle(model, BATCH)[0]).max() > 0.01
    save_policy(policy, tmp_path / "adapter")
    save_policy(policy, tmp_path / "merged", merged=True)
    for written in ("adapter", "merged"):
        np.testing.assert_allclose(log_probs(policy_at(tmp_path / written)), wanted, atol=MERGED)
    if name in SEVERAL:
        stored = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "merged", dtype=torch.float32)
        after, before = dict(stored.named_parameters()), dict(model.named_parameters())
        assert policy.base.outside
        assert all(torch.equal(after[key], before[key]) for key in policy.base.outside)


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "lfm2", pytest.param("falcon_h1", marks=pytest.mark.slow)])
def test_states_of_recurrent_layers_follow_their_rows(name):
    """Prompts in several passes, rows that come again, leave and change places."""
    from guerdon.policies.language.shared_base import SharedBase

    model, tokenizer = make(name)
    options = TextPolicySettings(path="unused", bf16=False, max_tokens_per_pass=20)
    policy = TextPolicy(SharedBase(model, tokenizer, options))
    decoder, rng = HFDecoder(policy), np.random.default_rng(0)
    prompts = [rng.integers(7, 95, n) for n in (9, 3, 6)]
    ids = torch.from_numpy(np.stack([np.pad(p, (9 - len(p), 0)) for p in prompts]))
    real = torch.from_numpy(np.stack([np.arange(9) >= 9 - len(p) for p in prompts]))
    texts = [p.tolist() for p in prompts]
    with torch.inference_mode():
        logits = decoder.prefill(ids, real, room=12)
        for step, rows in enumerate(([0, 1, 2], [2, 0, 0, 1], [0, 1, 2, 3], [3, 1], [1, 0])):
            decoder.select(torch.tensor(rows))
            texts, logits = [texts[row] for row in rows], logits[torch.tensor(rows)]
            for text, row in zip(texts, logits, strict=True):
                whole = model(torch.tensor([text])).logits[0, -1]
                torch.testing.assert_close(row, whole, atol=EXACT, rtol=EXACT)
            tokens = rng.integers(7, 95, len(texts))
            texts = [[*text, int(token)] for text, token in zip(texts, tokens, strict=True)]
            logits = decoder.step(torch.from_numpy(tokens))
            assert step < 5


def test_a_family_whose_step_is_another_one_is_refused_by_name(tmp_path, monkeypatch):
    folder, _ = folder_of("mistral", tmp_path / "model")
    policy = policy_at(folder)
    check_steps(policy)
    policy.base.steps_checked = False
    step = HFDecoder.step
    monkeypatch.setattr(HFDecoder, "step", lambda self, tokens: step(self, tokens) + torch.linspace(0, 1e-3, 103))
    with pytest.raises(ConfigError, match=r"MistralForCausalLM: a step with its cache .* \(by 0\.00.*vllm"):
        LocalEngine(policy, LocalGenerationSettings())


def test_what_all_linear_leaves_out_is_said_once(tmp_path, capsys):
    log_once.cache_clear()
    folder, _ = folder_of("falcon_h1", tmp_path / "model")
    policy_at(folder, lora=LoraSettings(r=2))
    said = [line for line in capsys.readouterr().err.splitlines() if "leaves out" in line]
    assert said == [
        "FalconH1ForCausalLM: lora.target_modules all-linear leaves out layers that are refused by peft: out_proj"
    ]


def test_how_pictures_are_read_is_copied_with_the_towers(tmp_path):
    folder, _ = folder_of("qwen2_5_vl", tmp_path / "model")
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "Qwen2VLImageProcessor"}))
    policy = policy_at(folder)
    assert not {*policy.named_parameters()} & policy.base.outside
    save_policy(policy, tmp_path / "written")
    copied = json.loads((tmp_path / "written" / "preprocessor_config.json").read_text())
    assert copied == {"image_processor_type": "Qwen2VLImageProcessor"}
    again = read_model(str(tmp_path / "written"))[0].state_dict()
    assert all(torch.equal(again[key], value) for key, value in policy.base.model.state_dict().items())


def test_towers_beside_a_text_stack_are_left_out_with_a_line(tmp_path, capsys):
    """Where the text class of a model of several inputs is named, as for a reward model on it."""
    folder, model = folder_of("llama4", tmp_path / "model")
    kind = transformers.AutoModelForCausalLM
    for read in (read_pretrained, map_pretrained):
        log_once.cache_clear()
        found = read(kind, str(folder), "the model")
        assert found is not None
        (said,) = [line for line in capsys.readouterr().err.splitlines() if "not used" in line]
        assert "weights of a tower of other inputs, such as " in said
    text = read_pretrained(kind, str(folder), "the model")
    np.testing.assert_allclose(oracle(text, BATCH)[0], oracle(model, BATCH)[0], atol=EXACT)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config["text_config"] | {"architectures": ["Llama4ForCausalLM"]}))
    with pytest.raises(CheckpointError, match="has no place for"):
        read_pretrained(kind, str(folder), "the model")
