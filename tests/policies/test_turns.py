"""Rows that follow each other: read once in training, and gone on from in generation."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from guerdon.policies.batches.tokens import TokenBatch, concatenate, joined_turns, token_batch
from guerdon.policies.language import generate
from guerdon.policies.language.generate import LocalEngine
from guerdon.policies.language.text_files import load_policy
from guerdon.settings.text_policy import LocalGenerationSettings, TextPolicySettings
from tables import cases

SHAPE = {
    "hidden_size": 16, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 32, "alphabet": "ab01 ",
    "max_positions": 256,
}  # fmt: skip


def policy_of(**given):
    return load_policy(TextPolicySettings(tiny=SHAPE, bf16=False, device="cpu", **given), seed=3)


def conversations():
    """Three conversations: three calls that go on, two of which follow the same call, and one of a single call."""
    rng = np.random.default_rng(0)

    def ids(n):
        return rng.integers(7, 12, n)

    begin, other = ids(6), ids(9)
    prompts, responses, follows = [begin], [ids(4)], [-1]
    for length, before in ((3, 0), (5, 1)):
        prompts.append(np.concatenate([prompts[before], responses[before], ids(2)]))
        responses.append(ids(length))
        follows.append(before)
    prompts += [begin, other, np.concatenate([begin, responses[0], ids(1)])]
    responses += [ids(2), ids(7), ids(3)]
    follows += [-1, -1, 0]
    batch = token_batch(prompts, responses, np.ones(len(prompts), dtype=bool), pad_id=0)
    return TokenBatch(batch.prompts, batch.responses_B_T, batch.mask_B_T, batch.finished_B, np.array(follows))


def test_rows_that_follow_are_one_row():
    batch = conversations()
    joined, places = joined_turns(batch)
    assert len(joined) == 4  # the third row with its two before it, and three others
    tokens = joined.responses_B_T[joined.mask_B_T]
    np.testing.assert_array_equal(tokens[places], batch.responses_B_T[batch.mask_B_T])
    part = batch.take([4, 2, 1])
    assert part.follows_B.tolist() == [-1, 2, -1]
    assert batch.take([2, 3]).follows_B is None
    both = concatenate([part, batch], pad_id=0)
    assert both.follows_B.tolist() == [-1, 2, -1, -1, 3, 4, -1, -1, 3]


LAYOUTS = [{"share_prompts": False}, {"share_prompts": True}, {"use_remove_padding": True, "share_prompts": False}]


@cases("given", LAYOUTS)
def test_log_probabilities_and_gradients_are_those_of_separate_rows(given):
    batch, found = conversations(), []
    apart = TokenBatch(batch.prompts, batch.responses_B_T, batch.mask_B_T, batch.finished_B)
    for one in (batch, apart):
        policy = policy_of(**given)
        scores = policy.evaluate(one, entropy=True)
        (scores.log_probs.sin().sum() + scores.entropy.sum()).backward()
        found.append((scores, [p.grad for p in policy.parameters()]))
    (joined, own), (separate, other) = found
    torch.testing.assert_close(joined.log_probs, separate.log_probs, atol=1e-5, rtol=0)
    torch.testing.assert_close(joined.entropy, separate.entropy, atol=1e-5, rtol=0)
    for a, b in zip(own, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("decoder", ["LlamaDecoder", "HFDecoder"])
def test_turns_go_on_from_keys_and_values(decoder, monkeypatch):
    policy = policy_of()
    if decoder == "HFDecoder":
        monkeypatch.setattr(generate, "supports", lambda policy: False)
    engines = [LocalEngine(policy, LocalGenerationSettings(batch_size=3)) for _ in range(2)]
    rng = np.random.default_rng(1)
    prompts = [rng.integers(7, 12, n) for n in (9, 3, 5, 7)]
    names = list("abcd")
    for turn in range(4):
        made = []
        for engine, keys in zip(engines, (names, None), strict=True):
            numbers = [np.random.default_rng([turn, k]) for k in range(len(prompts))]
            made.append(engine.generate(prompts, 1, max_new_tokens=12, rng=numbers, keys=keys))
        kept, read = made
        np.testing.assert_array_equal(kept.batch.responses_B_T, read.batch.responses_B_T)
        np.testing.assert_allclose(kept.log_probs_B_T, read.log_probs_B_T, atol=0 if turn == 0 else 1e-5)
        assert set(engines[0]._kept) == set(names)
        more = [rng.integers(7, 12, n) for n in (1, 6, 2, 3)]
        prompts = [np.concatenate([p, r, m]) for p, r, m in zip(prompts, kept.batch.responses(), more, strict=False)]
        if turn == 1:  # one ends, and one rewrites its history
            prompts, names = [prompts[0], prompts[1][1:], prompts[3]], ["a", "b", "d"]
    engines[0].rest()
    assert engines[0]._kept == {}


def test_only_new_tokens_are_read(monkeypatch):
    policy, read = policy_of(), []
    engine = LocalEngine(policy, LocalGenerationSettings())
    resume = generate.LlamaDecoder.resume

    def counted(self, kept, ids, real, *, room):
        read.append(SimpleNamespace(shape=ids.shape, kept=[row.keys[0].shape[1] for row in kept]))
        return resume(self, kept, ids, real, room=room)

    monkeypatch.setattr(generate.LlamaDecoder, "resume", counted)
    prompt = np.full(20, 8)
    first = engine.generate([prompt], 1, max_new_tokens=5, rng=[np.random.default_rng(0)], keys=["a"])
    (reply,) = first.batch.responses()
    more = np.concatenate([prompt, reply, [9, 9]])
    engine.generate([more], 1, max_new_tokens=5, rng=[np.random.default_rng(1)], keys=["a"])
    assert read[0].shape == (1, 3)  # the last token that was written, and two more
    assert read[0].kept == [20 + len(reply) - 1]
