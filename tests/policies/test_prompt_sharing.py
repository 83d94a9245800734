"""Reading a prompt once for all of its responses gives what reading it once per response gives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import oracle, tiny_policy

from guerdon.policies.batches.prompt_sharing import SHARED_ATTENTION, groups_of, lay_out_shared, worth_sharing
from guerdon.policies.batches.tokens import token_batch


def batch_of(prompt_lengths, answers, seed=0):
    """A batch; `answers` lists (prompt, tokens of its response)."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(3, 20, size=n) for n in prompt_lengths]
    responses = [rng.integers(3, 20, size=n) for _, n in answers]
    rows = [prompts[k] for k, _ in answers]
    return token_batch(rows, responses, np.ones(len(rows), dtype=bool), pad_id=0)


CPU = torch.device("cpu")
BATCH = batch_of([5, 9, 2], [(0, 4), (0, 7), (1, 1), (2, 5), (0, 2), (1, 6), (2, 3)])


def pair(architecture="llama", **given):
    shared = tiny_policy(architecture, **given)
    return shared, tiny_policy(architecture, share_prompts=False, **given)


@pytest.mark.usefixtures("shares_on_gpus")
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_log_probs_and_entropy_are_those_of_all_logits(architecture, attention):
    policy = tiny_policy(architecture, attention=attention)
    assert policy.base.shares_prompts(BATCH, 16)
    found = policy.evaluate(BATCH, temperature=0.7, entropy=True)
    log_probs, entropies = oracle(policy.base.model, BATCH, 0.7)
    np.testing.assert_allclose(found.log_probs.detach().cpu().numpy(), log_probs, atol=2e-5)
    np.testing.assert_allclose(found.entropy.detach().cpu().numpy(), entropies, atol=2e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_whole_sequences(checkpointing):
    shared, plain = pair(gradient_checkpointing=checkpointing)
    weights = torch.linspace(-1, 1, BATCH.mask_B_T.size, device=plain.device).view(BATCH.mask_B_T.shape)
    for policy in (shared, plain):
        (policy.log_probs(BATCH) * weights).sum().backward()
    expected = dict(plain.base.model.named_parameters())
    for name, parameter in shared.base.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=2e-5, rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    answers=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=6),
    seed=st.integers(0, 9),
)
def test_any_grouping_gives_the_same(prompts, answers, seed):
    answers = [(k % len(prompts), n) for k, n in answers]
    batch = batch_of(prompts, answers, seed)
    shared, plain = pair()
    layout = lay_out_shared(batch, device=shared.device)
    first, group_B = groups_of(batch)
    assert layout.ids.numel() == sum(len(batch.prompts[r]) for r in first) + int(batch.lengths_B.sum())
    assert all((batch.prompts[first[g]] == p).all() for g, p in zip(group_B, batch.prompts, strict=True))
    with torch.no_grad():
        hidden = shared.base.hidden(layout)[layout.predicts_M]
        logits = shared.base.logits(hidden).log_softmax(-1).gather(-1, layout.targets_M[:, None]).squeeze(-1)
        expected = plain.log_probs(batch)[torch.from_numpy(batch.mask_B_T).to(plain.device)]
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)
    assert layout.attention == SHARED_ATTENTION


def test_on_a_gpu_it_has_to_leave_half_of_the_tokens():
    gpu = torch.device("cuda")
    assert worth_sharing(batch_of([30], [(0, 5)] * 4), gpu), "50 of 140 are left"
    assert not worth_sharing(batch_of([30], [(0, 30)] * 4), gpu), "150 of 240"
    assert not worth_sharing(batch_of([900], [(0, 513)] * 4), gpu), "a long response"


@pytest.mark.usefixtures("shares_on_gpus")
def test_it_is_used_where_it_saves_tokens_and_nothing_forbids_it():
    shared, plain = pair()
    once = batch_of([5, 9], [(0, 4), (1, 7)])
    assert worth_sharing(BATCH, CPU)
    assert not worth_sharing(once, CPU)
    assert not worth_sharing(batch_of([1], [(0, 30), (0, 30)]), CPU)  # one token of sixty-two is not worth it
    assert not shared.base.shares_prompts(once, 16)
    assert not plain.base.shares_prompts(BATCH, 16)
    shared.base.model.config.sliding_window = 8
    assert not shared.base.shares_prompts(BATCH, 16)
    assert shared.base.shares_prompts(BATCH, 8)


def test_an_empty_prompt_is_an_error():
    with pytest.raises(ValueError, match="an empty prompt predicts no first token"):
        lay_out_shared(batch_of([0], [(0, 3), (0, 2)]), device=torch.device("cpu"))
