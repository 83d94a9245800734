import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import enliven, oracle, random_batch, tiny_policy, tiny_settings

from guerdon.compute.finite import load_weights
from guerdon.errors import CheckpointError, ConfigError
from guerdon.files.atomic import COMPLETE
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy, add_policy, reference, token_log_probs
from guerdon.policies.language.text_files import VALUE_HEAD, load_policy, save_policy
from guerdon.policies.language.tiny_text import build_tokenizer
from guerdon.settings.text_policy import LoraSettings, TextPolicySettings, TinyModelSettings
from tables import cases, refuses

BATCH = random_batch()
LORA = LoraSettings(r=3, alpha=6.0)


def numbers(tensor):
    return tensor.detach().cpu().numpy()


def gradients(policy, batch=BATCH):
    weights = torch.linspace(-1, 1, batch.mask_B_T.size, device=policy.device).view(batch.mask_B_T.shape)
    policy.base.model.zero_grad()
    (policy.log_probs(batch) * weights).sum().backward()
    return {n: p.grad.clone() for n, p in policy.named_parameters().items() if p.grad is not None}


@cases("architecture", ["llama", "qwen2"])
@cases("packed", [False, True])
@cases("attention", ["eager", "sdpa"])
def test_log_probs_and_entropy_are_those_of_all_logits(architecture, packed, attention):
    policy = tiny_policy(architecture, attention=attention, use_remove_padding=packed)
    found = policy.evaluate(BATCH, temperature=0.7, entropy=True)
    log_probs, entropies = oracle(policy.base.model, BATCH, 0.7)
    np.testing.assert_allclose(numbers(found.log_probs), log_probs, atol=2e-5)
    np.testing.assert_allclose(numbers(found.entropy), entropies, atol=2e-5)
    assert found.log_probs.dtype == torch.float32
    assert found.values is None
    assert (numbers(found.log_probs)[~BATCH.mask_B_T] == 0).all()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_padded_and_packed_give_the_same_losses_and_gradients(checkpointing):
    padded = tiny_policy(gradient_checkpointing=checkpointing)
    packed = TextPolicy(padded.base, remove_padding=True)
    plain = tiny_policy()
    np.testing.assert_allclose(numbers(packed.log_probs(BATCH)), numbers(padded.log_probs(BATCH)), atol=1e-5)
    expected = gradients(plain)
    assert len(expected) == len(list(plain.base.model.parameters()))
    for policy in (padded, packed):
        for name, gradient in gradients(policy).items():
            torch.testing.assert_close(gradient, expected[name], atol=2e-5, rtol=1e-4)


def test_no_response_sees_its_neighbours():
    policy = tiny_policy(use_remove_padding=True)
    together = policy.log_probs(BATCH)
    for i in range(len(BATCH)):
        alone = policy.log_probs(BATCH.take([i]))
        torch.testing.assert_close(together[i, : alone.shape[1]], alone[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("grad", [False, True])
def test_chunks_of_logits_change_nothing(grad):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 4, generator=generator)
    head = torch.nn.Linear(4, 7)
    targets = torch.randint(7, (11,), generator=generator)
    results = []
    for at_once in (2**20, 14):
        x = hidden.clone().requires_grad_(grad)
        with torch.set_grad_enabled(grad):
            found = token_log_probs(
                x, head, targets, vocabulary=7, temperature=1.3, entropy=True, logits_at_once=at_once
            )
            if grad:
                (found[0] * found[1]).sum().backward()
        results.append((*found, x.grad))
    expected = torch.log_softmax(head(hidden) / 1.3, -1)
    torch.testing.assert_close(results[0][0], expected.gather(1, targets[:, None])[:, 0])
    torch.testing.assert_close(results[0][1], -(expected.exp() * expected).sum(-1))
    for whole, cut in zip(*results, strict=True):
        assert (whole is None and cut is None) or torch.allclose(whole, cut, atol=1e-6)


def test_the_chunks_hold_no_more_logits_than_asked():
    seen = []

    def head(x):
        seen.append(len(x))
        return torch.zeros(len(x), 10)

    token_log_probs(torch.zeros(25, 3), head, torch.zeros(25, dtype=torch.long), vocabulary=10, logits_at_once=45)
    assert seen == [4] * 6 + [1]


def test_models_with_more_than_a_linear_head_are_scored_as_they_are():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    tokenizer = build_tokenizer(TinyModelSettings())
    config = Gemma2Config(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16, head_dim=8, final_logit_softcapping=2.0, pad_token_id=0,
    )  # fmt: skip
    base = SharedBase(Gemma2ForCausalLM(config), tokenizer, tiny_settings(attention="eager"))
    enliven(base.model)
    assert not base.plain_head
    np.testing.assert_allclose(numbers(TextPolicy(base).log_probs(BATCH)), oracle(base.model, BATCH)[0], atol=2e-5)
    assert TextPolicy(base, value_heads=1).evaluate(BATCH).values.shape == (*BATCH.mask_B_T.shape, 1)


def test_values_start_at_zero_and_are_read_before_each_token():
    policy = tiny_policy(seed=0)
    critic = TextPolicy(policy.base, value_heads=2)
    assert (numbers(critic.evaluate(BATCH).values) == 0).all()
    with torch.no_grad():
        critic.value_head.weight.normal_()
    values = numbers(critic.evaluate(BATCH).values)
    assert values.shape == (*BATCH.mask_B_T.shape, 2)
    # changing a token changes no value up to it
    changed = BATCH.responses_B_T.copy()
    i = int(BATCH.lengths_B.argmax())
    changed[i, 1] = (changed[i, 1] - 7 + 1) % 90 + 7
    row = token_batch(BATCH.prompts, [r[:n] for r, n in zip(changed, BATCH.lengths_B, strict=True)],
                      BATCH.finished_B, pad_id=0)  # fmt: skip
    other = numbers(critic.evaluate(row).values)
    np.testing.assert_allclose(other[i, :2], values[i, :2], atol=1e-5)
    assert not np.allclose(other[i, 2], values[i, 2])


def test_bf16_keeps_float32_weights_and_stays_close():
    exact, rounded = tiny_policy(), tiny_policy(bf16=True)
    assert {p.dtype for p in rounded.parameters()} == {torch.float32}
    got = rounded.log_probs(BATCH)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(numbers(got), numbers(exact.log_probs(BATCH)), atol=0.15)
    assert all(g.dtype == torch.float32 for g in gradients(rounded).values())


def shared(lora=LORA, **options):
    """Policy, implicit reward model and reference on one copy of the weights, the adapters no longer at zero."""
    base = tiny_policy(**options).base
    policy = add_policy(base, "policy", lora, seed=1)
    prm = add_policy(base, "prm", lora, seed=2)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in [*policy.parameters(), *prm.parameters()]:
            p.copy_(0.2 * torch.randn(p.shape, generator=generator))
    return policy, prm, reference(base)


def test_a_fresh_adapter_changes_nothing_and_depends_on_its_seed():
    plain = tiny_policy()
    adapted = add_policy(tiny_policy().base, "policy", LORA, seed=1)
    again = add_policy(tiny_policy().base, "policy", LORA, seed=1)
    other = add_policy(tiny_policy().base, "policy", LORA, seed=2)
    assert torch.equal(adapted.log_probs(BATCH), plain.log_probs(BATCH))
    same = [torch.equal(a, b) for a, b in zip(adapted.parameters(), again.parameters(), strict=True)]
    differ = [torch.equal(a, b) for a, b in zip(adapted.parameters(), other.parameters(), strict=True)]
    assert all(same)
    assert not all(differ)
    assert set(adapted.named_parameters()) == {n for n, p in adapted.base.model.named_parameters() if p.requires_grad}


def test_one_base_with_two_adapters_equals_three_copies(tmp_path):
    trio = shared()
    for i, policy in enumerate(trio):
        copy = load_policy(
            TextPolicySettings(path=str(save_policy(policy, tmp_path / str(i), merged=True)), bf16=False), seed=9
        )
        np.testing.assert_allclose(numbers(policy.log_probs(BATCH)), numbers(copy.log_probs(BATCH)), atol=1e-4)
    results = [numbers(p.log_probs(BATCH)) for p in trio]
    assert not np.allclose(results[0], results[1], atol=1e-2)
    assert torch.equal(trio[2].log_probs(BATCH), tiny_policy().log_probs(BATCH))


def test_one_base_costs_one_copy_of_the_weights():
    policy, prm, frozen = shared()
    weights = sum(p.numel() for p in policy.base.model.parameters())
    adapters = sum(p.numel() for p in [*policy.parameters(), *prm.parameters()])
    assert weights == sum(p.numel() for p in tiny_policy().base.model.parameters()) + adapters
    assert policy.base is prm.base is frozen.base
    assert not frozen.parameters()
    assert not any(p.requires_grad for n, p in policy.base.model.named_parameters() if ".lora_" not in n)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_reach_the_adapter_that_answered_in_any_order(checkpointing, packed):
    expected = [gradients(p) for p in shared()[:2]]
    policy, prm, frozen = shared(gradient_checkpointing=checkpointing, use_remove_padding=packed)
    weights = torch.linspace(-1, 1, BATCH.mask_B_T.size, device=policy.device).view(BATCH.mask_B_T.shape)
    first, second = (policy.log_probs(BATCH) * weights).sum(), (prm.log_probs(BATCH) * weights).sum()
    frozen.log_probs(BATCH)  # the adapters are switched off when the backward passes come
    second.backward()
    assert all(p.grad is None for p in policy.parameters())
    first.backward()
    for view, wanted in zip((policy, prm), expected, strict=True):
        assert len(wanted) == len(view.parameters())
        for name, parameter in view.named_parameters().items():
            torch.testing.assert_close(parameter.grad, wanted[name], atol=3e-5, rtol=1e-4)


def test_weights_under_adapters_are_not_trained_and_adapters_are_named():
    policy, _, _ = shared()
    with pytest.raises(ConfigError, match="frozen"):
        TextPolicy(policy.base)
    with pytest.raises(ConfigError, match="already"):
        add_policy(policy.base, "prm", LORA, seed=0)
    with pytest.raises(ConfigError, match="policy, prm"), policy.base.adapter("judge"):
        pass
    with refuses("lora.target_modules"):
        add_policy(tiny_policy().base, "policy", LoraSettings(target_modules=("nothing",)), seed=0)


def test_dropout_of_adapters_is_drawn_in_gradient_passes_of_training_on_examples():
    policy, _, _ = shared(LoraSettings(r=3, dropout=0.5))
    assert torch.equal(policy.log_probs(BATCH), policy.log_probs(BATCH))
    policy.dropout = True
    with torch.no_grad():
        assert torch.equal(policy.log_probs(BATCH), policy.log_probs(BATCH))
    assert not torch.equal(policy.log_probs(BATCH), policy.log_probs(BATCH))


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tie", [False, True])
def test_a_saved_model_comes_back_as_it_was(tmp_path, architecture, tie):
    policy = tiny_policy(architecture, tie=tie)
    folder = save_policy(policy, tmp_path / "model")
    assert {"model.safetensors", "config.json", "tokenizer.json", COMPLETE} <= {p.name for p in folder.iterdir()}
    again = load_policy(TextPolicySettings(path=str(folder), bf16=False), seed=1)
    assert torch.equal(again.log_probs(BATCH), policy.log_probs(BATCH))
    assert again.tokenizer.chat_template == policy.tokenizer.chat_template
    assert save_policy(again, folder) == folder  # in place of the old one
    assert not [p for p in tmp_path.iterdir() if p != folder]


def test_a_saved_adapter_is_a_peft_folder_and_is_merged_when_read(tmp_path):
    policy, prm, frozen = shared()
    base = save_policy(frozen, tmp_path / "base")
    adapted = load_policy(TextPolicySettings(path=str(base), bf16=False, lora=LORA), seed=0)
    adapted.load_tensors(policy.tensors())
    folder = save_policy(adapted, tmp_path / "adapter")
    assert {"adapter_model.safetensors", "adapter_config.json"} <= {p.name for p in folder.iterdir()}
    assert not (folder / "model.safetensors").exists()
    inside = save_policy(prm, tmp_path / "with_base")  # its base was made in code, so it is kept beside it
    for path, policy_there in ((folder, policy), (inside, prm)):
        again = load_policy(TextPolicySettings(path=str(path), bf16=False), seed=0)
        torch.testing.assert_close(again.log_probs(BATCH), policy_there.log_probs(BATCH), atol=1e-4, rtol=0)
        assert all(p.requires_grad for p in again.parameters())
    on_top = load_policy(TextPolicySettings(path=str(folder), bf16=False, lora=LORA), seed=0)
    torch.testing.assert_close(reference(on_top.base).log_probs(BATCH), policy.log_probs(BATCH), atol=1e-4, rtol=0)


def test_nothing_is_left_at_random(tmp_path):
    folder = save_policy(tiny_policy(tie=False), tmp_path / "model")
    (folder / COMPLETE).unlink()
    weights = load_file(folder / "model.safetensors")
    for name in ("lm_head.weight", "model.layers.1.mlp.up_proj.weight"):
        save_file({k: v for k, v in weights.items() if k != name}, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(CheckpointError, match=name):
            load_policy(TextPolicySettings(path=str(folder)), seed=0)
    cut = {k: v[:5] if k == "lm_head.weight" else v for k, v in weights.items()}
    save_file(cut, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError):
        load_policy(TextPolicySettings(path=str(folder)), seed=0)


def test_an_altered_or_missing_folder_is_refused(tmp_path):
    folder = save_policy(tiny_policy(), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    with pytest.raises(CheckpointError, match="corrupt"):
        load_policy(TextPolicySettings(path=str(folder)), seed=0)
    with pytest.raises(CheckpointError, match="no such folder"):
        load_policy(TextPolicySettings(path=str(tmp_path / "nowhere")), seed=0)


def test_an_incomplete_adapter_is_refused(tmp_path):
    folder = save_policy(shared()[0], tmp_path / "adapter")
    (folder / COMPLETE).unlink()
    weights = load_file(folder / "adapter_model.safetensors")
    weights.pop(sorted(weights)[0])
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="does not fit"):
        load_policy(TextPolicySettings(path=str(folder)), seed=0)


def test_tensors_hold_what_is_trained_and_come_back(tmp_path):
    full = TextPolicy(tiny_policy().base, value_heads=1)
    adapter = shared()[0]
    for policy, other in ((full, TextPolicy(tiny_policy(seed=7).base, value_heads=1)), (adapter, shared()[1])):
        state = policy.tensors()
        assert len({t.data_ptr() for t in state.values()}) == len(state)
        if policy is full:
            other.load_tensors(state)
            assert torch.equal(other.log_probs(BATCH), policy.log_probs(BATCH))
        before = policy.log_probs(BATCH)
        with torch.no_grad():
            for p in policy.parameters():
                p.add_(1)
        policy.load_tensors(state)
        assert torch.equal(policy.log_probs(BATCH), before)
        with pytest.raises(CheckpointError, match="does not fit"):
            policy.load_tensors(dict(list(state.items())[1:]))
    folder = save_policy(full, tmp_path / "with_head")
    again = load_policy(TextPolicySettings(path=str(folder), bf16=False), seed=0, value_heads=1)
    again.value_head.load_state_dict(load_weights(folder / VALUE_HEAD), strict=True)
    assert torch.equal(again.evaluate(BATCH).values, full.evaluate(BATCH).values)


def test_a_tokenizer_larger_than_the_model_is_refused():
    tokenizer = build_tokenizer(TinyModelSettings())
    tokenizer.add_tokens(["more"])
    with pytest.raises(ConfigError, match="104 tokens, the model only 103"):
        SharedBase(tiny_policy().base.model, tokenizer, tiny_settings())
