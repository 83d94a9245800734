"""Gradient steps cut by `max_tokens_per_pass` are those of one pass, however long the responses are."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from guerdon.compute.optimizers import AdamW
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.text_files import load_policy
from guerdon.rl.update import Batch, update_policy
from guerdon.settings.algorithm import TextAlgorithmSettings
from guerdon.settings.text_policy import TextPolicySettings
from text_rl import LETTERS, letter_study, prime, prime_reward, tiny

sys.path.append(str(Path(__file__).parents[1] / "rewards"))

from test_prime import random_answers

torch.set_num_threads(1)
ROWS = 8
LENGTHS = [1, 14, 3, 9, 2, 2, 30, 5]


def gradient(limit, given, heads=0):
    """The gradient of one step on responses of very different lengths, its metrics, and its number of passes."""
    settings = TextPolicySettings.model_validate(tiny(LETTERS, max_tokens_per_pass=limit))
    policy = load_policy(settings, seed=0, value_heads=heads)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(7, 7 + len(LETTERS), n) for n in (3, 6, 3, 5, 3, 4, 3, 3)]
    batch = token_batch(prompts, [rng.integers(7, 7 + len(LETTERS), n) for n in LENGTHS], np.ones(ROWS, bool), pad_id=0)
    mask = torch.from_numpy(batch.mask_B_T)

    def column(*more):
        return torch.where(
            mask.reshape(*mask.shape, *[1] * len(more)), torch.from_numpy(rng.normal(size=(*mask.shape, *more))), 0.0
        ).float()

    critic = {}
    if heads:
        critic = {"values": column(heads), "returns": column(heads), "value_mask": mask[..., None].float()}
    made = Batch(batch, mask.float(), column(), column() - 2.0, column() - 2.0, **critic)
    optimizer = AdamW(policy.parameters(), 0.0)
    optimizer.optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    found = {}
    optimizer.optimizer.register_step_pre_hook(
        lambda *_: found.update({n: p.grad.clone() for n, p in policy.named_parameters().items()})
    )
    algorithm = TextAlgorithmSettings(max_grad_norm=1e9, entropy_coef=0.1, kl_coef=0.2, kl_type="k3", **given)
    metrics = update_policy(
        policy, optimizer, made, algorithm, np.random.default_rng(0), learning_rate=0.0, max_length=32
    )
    return found, metrics, len(policy.passes(batch, np.arange(ROWS), algorithm.micro_batch_size))


@pytest.mark.parametrize(
    "given",
    [
        {"loss_agg": "token"},
        {"loss_agg": "sequence"},
        {"loss_agg": "constant"},
        {"adv_estimator": "gae", "kl_in": "loss"},
    ],
    ids=["token", "sequence", "constant", "gae"],
)
def test_the_gradient_of_a_step_does_not_depend_on_the_limit(given):
    heads = int(given.get("adv_estimator") == "gae")
    whole, facts, once = gradient(None, given, heads)
    assert once == 1
    for limit, micro in ((1, None), (24, None), (40, 2), (70, None), (8192, None)):
        split = {"micro_batch_size": micro, "minibatch_size": ROWS} if micro else {}
        found, numbers, passes = gradient(limit, given | split, heads)
        assert (passes > 1) == (limit < 8192)  # a single pass, too, has the responses in the order of their lengths
        for name, tensor in whole.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)
        for name, value in facts.items():
            assert numbers[name] == pytest.approx(value, abs=1e-5), name


@pytest.mark.parametrize("loss", ["ce", "dpo"])
def test_prime_learns_and_pays_the_same(tmp_path, loss):
    found = []
    rollout = random_answers(16)
    for limit in (None, 30):
        study = letter_study(
            tmp_path,
            policy={"max_tokens_per_pass": limit},
            reward_model=prime(mini=16, micro=16, prime_model={"loss_type": loss}),
        )
        model = prime_reward(study)
        passes = model._passes(model.labelled(rollout), np.arange(16))
        assert (len(passes) > 1) == (limit is not None)
        if loss != "ce":  # responses to a prompt are compared with each other
            assert all(len(rows) % 4 == 0 for rows in passes)
        rewards = model.measure(rollout)
        found.append((rewards.values, rewards.metrics, model.phi.tensors()))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-5)
    assert found[1][1]["prm_loss"] == pytest.approx(found[0][1]["prm_loss"], abs=1e-6)
    assert found[1][1]["grad_norm"] == pytest.approx(found[0][1]["grad_norm"], rel=1e-5)


def test_a_rollout_has_the_log_probabilities_of_one_pass(tmp_path):
    rollout = random_answers(16)
    batch, found = rollout.inputs.batch, []
    for limit in (None, 17):
        settings = TextPolicySettings.model_validate(tiny(LETTERS, max_tokens_per_pass=limit))
        found.append(load_policy(settings, seed=0).evaluate_all(batch, micro=1024).log_probs)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)
