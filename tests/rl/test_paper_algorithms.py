"""A name gives the algorithm of its paper: the whole update with its defaults, against the formulas by hand."""

import warnings
from itertools import combinations

import numpy as np
import pytest
import torch

from guerdon.compute.optimizers import AdamW
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.text_files import load_policy
from guerdon.rl.build_text import VERIFIER
from guerdon.rl.learner import KL
from guerdon.rl.update import make_batch, update_policy
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import Rewards, last_valid
from text_rl import LETTERS, advise, letter_study, tiny

torch.set_num_threads(1)
LENGTHS = [1, 4, 2, 3, 5, 2]
GROUPS = np.array([0, 0, 0, 1, 1, 1])
SCORES = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
GREEDY = np.array([0.0, 1.0])  # of the two prompts
LIMIT, RATE, BETA = 8, 1e-2, 0.3
SETTINGS = TextPolicySettings.model_validate(tiny(LETTERS))
NAMES = ("rloo", "grpo", "dr_grpo", "reinforce", "reinforce_pp", "remax")


def responses():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(7, 7 + len(LETTERS), 3) for _ in range(2)]
    rows = [rng.integers(7, 7 + len(LETTERS), n) for n in LENGTHS]
    return token_batch([prompts[g] for g in GROUPS], rows, np.ones(len(rows), bool), pad_id=0)


def outcomes(scores, mask, greedy=None):
    last = last_valid(mask)
    return Rewards(np.where(last, scores[:, None], 0.0).astype(np.float32), np.zeros_like(mask), last, greedy=greedy)


def gaps(batch):
    """log pi - log ref of each token, as if there were a reference."""
    return np.where(batch.mask_B_T, np.random.default_rng(1).normal(size=batch.mask_B_T.shape), 0.0)


def updated(name, folder, *, kl=False):
    """Parameters after one update by plain gradient descent, through the code that a run uses."""
    given = {"adv_estimator": name, "learning_rate": RATE, "max_grad_norm": 1e9} | ({"kl_coef": BETA} if kl else {})
    study = letter_study(folder, name=name, algorithm=given)
    batch, policy = responses(), load_policy(SETTINGS, seed=0)
    one = np.ones((2, 1), dtype=bool)
    greedy = outcomes(GREEDY, one) if name == "remax" else None
    rewards, weights = {VERIFIER: outcomes(SCORES, batch.mask_B_T, greedy)}, {VERIFIER: 1.0}
    if kl:
        assert study.text_algorithm.kl_in == "reward"
        rewards[KL] = Rewards(-gaps(batch), np.zeros(batch.mask_B_T.shape, dtype=np.bool_))
        weights[KL] = study.text_algorithm.kl_coef
    found = advise(study, batch.mask_B_T, GROUPS, rewards, weights, greedy_mask_B_T=one)
    optimizer = AdamW(policy.parameters(), RATE)
    optimizer.optimizer = torch.optim.SGD(policy.parameters(), lr=RATE)
    made = make_batch(batch, batch.mask_B_T, found)
    rng = np.random.default_rng(0)
    update_policy(policy, optimizer, made, study.text_algorithm, rng, learning_rate=RATE, max_length=LIMIT)
    return policy.tensors()


def by_hand(name, *, kl=False):
    """The same from the papers' formulas, response by response and token by token."""
    batch, policy = responses(), load_policy(SETTINGS, seed=0)
    log_probs, gap = policy.log_probs(batch), gaps(batch)
    advantages = {}
    for i, (group, length) in enumerate(zip(GROUPS, LENGTHS, strict=True)):
        same = [SCORES[j] for j in range(6) if GROUPS[j] == group]
        others = [SCORES[j] for j in range(6) if GROUPS[j] == group and j != i]
        mean = sum(same) / 3
        spread = (sum((s - mean) ** 2 for s in same) / 3) ** 0.5
        score = {
            "reinforce": SCORES[i], "reinforce_pp": SCORES[i], "rloo": SCORES[i] - sum(others) / 2,
            "dr_grpo": SCORES[i] - mean, "grpo": (SCORES[i] - mean) / (spread + 1e-6),
            "remax": SCORES[i] - GREEDY[group],
        }[name]  # fmt: skip
        for t in range(length):
            advantages[i, t] = score - (BETA * sum(gap[i, s] for s in range(t, length)) if kl else 0.0)
    if name == "reinforce_pp":  # over all tokens of the batch
        values = np.array(list(advantages.values()))
        middle, deviation = values.mean(), values.std(ddof=1)
        advantages = {place: (value - middle) / deviation for place, value in advantages.items()}
    loss = torch.zeros(())
    for (i, t), value in advantages.items():
        divisor = {"grpo": 6 * LENGTHS[i], "reinforce_pp": sum(LENGTHS)}.get(name, 6 * LIMIT)
        loss = loss - value * log_probs[i, t] / divisor
    loss.backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter -= RATE * parameter.grad
    return policy.tensors()


def moves(tensors):
    start = load_policy(SETTINGS, seed=0).tensors()
    return torch.cat([(tensors[name] - value).flatten() for name, value in start.items()])


@pytest.mark.parametrize("name", NAMES)
def test_the_update_is_that_of_the_paper(name, tmp_path):
    expected = moves(by_hand(name))
    torch.testing.assert_close(
        moves(updated(name, tmp_path)), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())
    )


@pytest.mark.parametrize("name", ["reinforce", "reinforce_pp"])
def test_their_kl_is_in_the_reward_of_every_token(name, tmp_path):
    expected = moves(by_hand(name, kl=True))
    found = moves(updated(name, tmp_path, kl=True))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    assert (found - moves(by_hand(name))).abs().max() > 0.05 * expected.abs().max()


def test_no_two_names_make_the_same_update_and_only_rloo_and_dr_grpo_the_same_direction(tmp_path):
    found = {name: moves(updated(name, tmp_path)) for name in NAMES}
    for one, other in combinations(NAMES, 2):
        a, b = found[one], found[other]
        aligned = float(a @ b / (a.norm() * b.norm()))
        assert not torch.allclose(a, b, rtol=1e-2, atol=1e-2 * float(a.abs().max()))
        assert (aligned > 0.9999) == ({one, other} == {"rloo", "dr_grpo"})
    assert float(found["rloo"].norm() / found["dr_grpo"].norm()) == pytest.approx(3 / 2, rel=1e-3)  # K / (K - 1)


def test_removed_padding_and_shared_prompts_are_what_the_settings_say(monkeypatch):
    from guerdon.policies.language import text

    used = []
    for name in ("lay_out", "lay_out_shared"):
        real = getattr(text, name)
        monkeypatch.setattr(
            text, name, lambda *a, real=real, name=name, **k: used.append((name, k.get("packed"))) or real(*a, **k)
        )
    found = []
    for given in ({}, {"use_remove_padding": True}, {"share_prompts": False}):
        policy = load_policy(TextPolicySettings.model_validate(tiny(LETTERS, **given)), seed=0)
        found.append(policy.log_probs(responses()).detach())
    assert used == [("lay_out_shared", None), ("lay_out", True), ("lay_out", False)]
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-4, atol=1e-5)
    used.clear()
    text.TextPolicy(load_policy(SETTINGS, seed=0).base, remove_padding=True).log_probs(responses())
    assert used == [("lay_out", True)]  # PRIME's model on the policy's weights


def test_adapters_print_no_warning():
    lora = {"r": 2, "alpha": 4, "dropout": 0.0}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        load_policy(TextPolicySettings.model_validate(tiny(LETTERS, lora=lora)), seed=0)
    assert [str(w.message) for w in seen if issubclass(w.category, FutureWarning)] == []
