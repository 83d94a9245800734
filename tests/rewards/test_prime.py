"""The implicit process reward model online: PRIME's numbers, how often it computes, what it shares and remembers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from guerdon.collect.conversations import Call, Conversation, arrays_of
from guerdon.collect.text import Responses, take
from guerdon.compute import distributed
from guerdon.models.text import text_losses as implicit
from guerdon.policies.batches.passes import slices
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.text import TextPolicy, reference
from guerdon.policies.language.text_files import load_policy, save_policy
from guerdon.policies.language.tiny_text import build_tokenizer
from guerdon.rewards.prime import LabelledBatch, TextReplay
from guerdon.rewards.source import GroundTruth, SourceTerms
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings
from guerdon.tasks.prompts import Prompt
from guerdon.types import Evaluated
from tables import refuses
from text_rl import LETTERS, LORA, SHAPE, advise, as_rollout, letter_study, prime, prime_reward, sum_study

torch.set_num_threads(1)
TOKENIZER = build_tokenizer(TinyModelSettings(**SHAPE, alphabet=LETTERS))
Q = [[0.2, -0.1, 0.3], [-0.4, 0.1]]  # an oracle whose numbers were computed by hand and with numpy


class Says:
    """A policy that gives these log-probabilities, plus a number it can learn."""

    def __init__(self, rows):
        self.rows, self.offset = rows, torch.nn.Parameter(torch.zeros(()))
        self.tokenizer = TOKENIZER

    def parameters(self):
        return [self.offset]

    def log_probs(self, batch, *, temperature=1.0):
        table = torch.zeros(batch.mask_B_T.shape)
        for i, response in enumerate(batch.responses()):
            row = torch.tensor(self.rows[int(batch.prompts[i][0])])
            table[i, : len(response)] = row[: len(response)]
        return torch.where(torch.from_numpy(batch.mask_B_T), table + self.offset, 0.0)

    def passes(self, batch, rows, micro, *, groups_N=None):
        return slices(len(rows), micro)

    def evaluate_all(self, batch, *, micro, temperature=1.0, groups_N=None):
        return Evaluated(self.log_probs(batch).detach())


def says(rows, study, *, lr=0.0):
    """The reward model of a study with such a policy in place of phi, and zeros as the reference."""
    model = prime_reward(study)
    model.phi, model.ref = Says(rows), Says([[0.0] * 9] * len(rows))
    model.optimizer.optimizer = torch.optim.SGD(model.phi.parameters(), lr=lr)
    return model


def outcomes(rollout):
    """The verifier's reward of it."""
    return GroundTruth(SourceTerms("verifier"), at_end=True).measure(rollout)


def answers(lengths, acc, groups, failures=()):
    """Responses of given lengths; prompt i is the number i, so that `Says` knows whose turn it is."""
    rows = [np.full(n, 8, dtype=np.int64) for n in lengths]
    batch = token_batch([np.array([i]) for i in range(len(rows))], rows, np.ones(len(rows), bool), pad_id=0)
    prompts = tuple(Prompt(str(i), ({"role": "user", "content": "a"},), "1", "letters") for i in groups)
    texts = tuple("b" * max(n - 1, 0) for n in lengths)
    return as_rollout(Responses(batch, prompts, texts, TOKENIZER), acc, groups, failures)


def random_answers(n=8, *, seed=0, group=4):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, n)
    rows = [rng.integers(7, 7 + len(LETTERS), k) for k in lengths]
    prompts = [rng.integers(7, 7 + len(LETTERS), 3) for _ in range(n)]
    batch = token_batch(prompts, rows, np.ones(n, bool), pad_id=0)
    acc = rng.integers(0, 2, n).astype(np.float32)
    return rollout_of(batch, acc, np.arange(n) // group)


def rollout_of(batch, acc, groups, failures=(), old=None):
    """A rollout of these responses, whose prompts do not matter."""
    prompt = Prompt("p", ({"role": "user", "content": "a"},), "1", "letters")
    n = len(batch)
    return as_rollout(Responses(batch, (prompt,) * n, ("",) * n, TOKENIZER), acc, groups, failures, old)


def scored(model, rollout):
    """Rewards and metrics of one update."""
    metrics = model.learn(rollout) if model.learn_before else {}
    rewards = model.measure(rollout)
    return rewards, metrics | rewards.metrics


def built(tmp_path, *, policy=None, data=None, **given):
    study = letter_study(tmp_path, policy=policy, data=data, reward_model=prime(**given))
    policy = load_policy(study.text_policy, seed=0)
    return prime_reward(study, policy), policy


def moved(model, amount=0.3):
    """Shift phi away from its reference, the same way every time."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.phi.parameters():
            p.add_(amount * torch.randn(p.shape, generator=generator))
    return model


# PRIME's own numbers.


@pytest.mark.parametrize(
    ("form", "returns", "advantages"),
    [
        ("prime_compat", [[3.125, 2.0833, 2.5417], [-2.4167, -0.4583, 0]],
         [[0.9196, 0.4741, 0.6701], [-1.4507, -0.6131, 0]]),
        ("paper", [[3.125, 2.25, 2.125], [-2.4167, -1.0833, 0]], None),
    ],
)  # fmt: skip
def test_the_oracle_of_prime(form, returns, advantages, tmp_path):
    study = letter_study(
        tmp_path, algorithm={"rloo_form": form, "normalize_advantages": True}, data={"n_samples": 2},
        reward_model=prime(rm_coef=1, verifier_coef=1),
    )  # fmt: skip
    reward = says(Q, study)
    happened = answers([3, 2], [1, 0], [0, 0])
    stream = reward.measure(happened)
    metrics = stream.metrics
    np.testing.assert_allclose(stream.values, [[0.5, -0.25, 0.75], [-1, 0.25, 0]], atol=1e-5)
    assert metrics["prm_loss"] == pytest.approx(0.684436, abs=1e-6)
    assert metrics["dpo_acc"] == metrics["dpo_acc_coverage"] == metrics["dpo_acc_abs"] == 1
    streams = {"verifier": outcomes(happened), "prime": stream}
    found = advise(study, happened.mask, happened.groups_B, streams, {"verifier": 1.0, "prime": 1.0})
    np.testing.assert_allclose(found.returns, returns, atol=1e-4)
    if advantages:
        np.testing.assert_allclose(found.advantages, advantages, atol=1e-4)


def test_clipped_rewards_have_a_unit_that_no_other_response_changes(tmp_path):
    study = letter_study(
        tmp_path, data={"n_samples": 2}, reward_model=prime(prime_norm="clip", prime_clip=0.25)
    )  # fmt: skip
    happened = answers([3, 2], [1, 0], [0, 0])
    np.testing.assert_allclose(says(Q, study).measure(happened).values, [[0.8, -0.4, 1], [-1, 0.4, 0]], atol=1e-6)
    lose = letter_study(
        tmp_path, name="lose", data={"n_samples": 2},
        reward_model=prime(prime_norm="clip", prime_clip=0.25, prime_clip_above=0.05),
    )  # fmt: skip
    np.testing.assert_allclose(says(Q, lose).measure(happened).values, [[0.2, -0.4, 0.2], [-1, 0.2, 0]], atol=1e-6)
    extreme = [Q[0], [-40.0, 0.1]]
    np.testing.assert_allclose(says(extreme, study).measure(happened).values[0], [0.8, -0.4, 1], atol=1e-6)
    step = letter_study(
        tmp_path, name="whole", data={"n_samples": 2},
        reward_model=prime(prime_norm="clip", prime_clip=0.5, prime_granularity="whole"),
    )  # fmt: skip
    np.testing.assert_allclose(says(Q, step).measure(happened).values, [[0, 0, 0.8], [0, -0.6, 0]], atol=1e-6)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_log_ratios_in_float32_of_a_policy_in_bfloat16(lora, tmp_path):
    exact, _ = built(tmp_path, policy={"bf16": False})
    model, policy = built(tmp_path, policy={"bf16": True, "lora": lora}, prime_model={"bf16": False})
    assert policy.base.bf16
    assert not model.phi.base.bf16
    assert not model.ref.base.bf16
    assert model.phi.base is not policy.base
    assert (model.phi.base is model.ref.base) == (lora is not None)
    assert not model.starts_at(None)  # the KL's reference is of the policy's precision
    happened = random_answers()
    found = model.labelled(happened).ref_B_T
    torch.testing.assert_close(found, exact.labelled(happened).ref_B_T, rtol=1e-6, atol=1e-6)
    rounded, _ = built(tmp_path, policy={"bf16": True})
    assert (rounded.labelled(happened).ref_B_T - found).abs().max() > 1e-4


def test_granularities_pay_the_same_total_at_their_own_places(tmp_path):
    happened = answers([3, 2], [1, 0], [0, 0])
    inputs = replace(happened.inputs, texts=("a\n", "b"))
    happened = replace(happened, inputs=inputs)
    vars(inputs)["char_ends"] = (np.array([1, 2, 2]), np.array([1, 1]))
    paid = {}
    for granularity in ("token", "step", "whole"):
        study = letter_study(
            tmp_path, data={"n_samples": 2}, reward_model=prime(prime_granularity=granularity, prime_norm="none")
        )
        paid[granularity] = says(Q, study).measure(happened, learn=False)
    np.testing.assert_allclose(paid["token"].values, [[0.2, -0.1, 0.3], [-0.4, 0.1, 0]], atol=1e-6)
    np.testing.assert_allclose(paid["step"].values, [[0, 0, 0.4], [0, -0.3, 0]], atol=1e-6)
    np.testing.assert_allclose(paid["whole"].values, [[0, 0, 0.4], [0, -0.3, 0]], atol=1e-6)
    assert paid["whole"].paid.tolist() == [[False, False, True], [False, True, False]]
    assert paid["token"].paid is None


def test_steps_are_those_of_the_task(tmp_path):
    study = sum_study(tmp_path, reward_model=prime(prime_granularity="step", prime_norm="none"))
    model = prime_reward(study)
    tokenizer = model.phi.tokenizer
    text = "3+5=8;8*2=6;"
    ids = np.array([*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id])
    batch = token_batch([np.array([0])], [ids], np.array([True]), pad_id=0)
    prompt = Prompt("x", ({"role": "user", "content": "3+5=?;?*2=?;"},), "6", "guerdon/chain",
                    extra_info={"family": "chain", "parameters": {"steps": 2}})  # fmt: skip
    happened = as_rollout(Responses(batch, (prompt,), (text,), tokenizer), [1], [0])
    model.phi, model.ref = Says([[1.0] * 13]), Says([[0.0] * 13])
    stream = model.measure(happened, learn=False)
    assert np.flatnonzero(stream.values[0]).tolist() == [5, 12]
    assert stream.values[0, [5, 12]].tolist() == [6, 7]


# Forward passes.


class Counter:
    """Counts the responses that a policy looks at, with and without gradients."""

    def __init__(self, policy):
        self.with_gradient = self.without = 0
        self.original = policy.evaluate
        policy.evaluate = self

    def __call__(self, batch, **kwargs):
        if torch.is_grad_enabled():
            self.with_gradient += len(batch)
        else:
            self.without += len(batch)
        return self.original(batch, **kwargs)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"update": "after"}, (8, 0)),
        ({"update": "after", "loss_type": "dpo"}, (8, 0)),
        ({"update": "after", "optim": {"epochs": 3}}, (24, 0)),
        ({"update": "before"}, (8, 8)),
        ({"update": "before", "loss_type": "bon_rm"}, (8, 8)),
        ({"update": "none", "warm_up": {"rollouts": 1}}, (0, 8)),
    ],
    ids=str,
)
def test_every_response_is_looked_at_as_often_as_promised(given, expected, tmp_path):
    model, _ = built(tmp_path, mini=8, micro=4, prime_model=given)
    phi, ref = Counter(model.phi), Counter(model.ref)
    scored(model, random_answers())
    assert (phi.with_gradient, phi.without) == expected
    assert (ref.with_gradient, ref.without) == (0, 8)  # once, however many passes


def test_the_policy_as_reference_costs_no_pass_and_no_copy(tmp_path):
    model, policy = built(tmp_path, prime_norm="none", prime_model={"ref_type": "policy"})
    assert model.ref is None
    assert model.needs_log_probs
    given = random_answers()
    old = np.where(given.mask, np.float32(-1.5), np.float32(0.0))
    rewards = model.measure(replace(given, log_probs=old))
    with torch.no_grad():
        expected = policy.log_probs(given.inputs.batch).cpu() - torch.from_numpy(old)
    torch.testing.assert_close(torch.from_numpy(rewards.values), expected)


# Learning.


@pytest.mark.parametrize("policy", [{}, {"lora": LORA}], ids=["full", "lora"])
def test_it_starts_as_its_own_reference(policy, tmp_path):
    model, _ = built(tmp_path, policy=policy)
    assert not model.log_ratios(model.labelled(random_answers())).any()


def test_after_pays_by_the_weights_before_and_before_by_those_after(tmp_path):
    for update in ("after", "before"):
        model, _ = built(tmp_path, mini=8, micro=4, prime_norm="none", prime_model={"update": update})
        moved(model)
        rollout = random_answers()
        batch = model.labelled(rollout)
        earlier = model.log_ratios(batch)
        rewards, metrics = scored(model, rollout)
        later = model.log_ratios(batch)
        assert not torch.allclose(earlier, later)
        expected = earlier if update == "after" else later
        torch.testing.assert_close(torch.from_numpy(rewards.values), expected, rtol=1e-5, atol=1e-5)
        assert ("dpo_acc_after" in metrics) == (update == "before")
        assert metrics["prm_loss"] is not None


@pytest.mark.parametrize("update", ["before", "after", "none"])
def test_scoring_alone_changes_nothing(update, tmp_path):
    given = {"update": update, "warm_up": {"rollouts": 1}}
    model, _ = built(tmp_path, mini=8, micro=4, prime_model=given)
    before = moved(model).phi.tensors()
    rewards = model.measure(random_answers(), learn=False)
    assert rewards.values.any()
    assert all(torch.equal(v, before[k]) for k, v in model.phi.tensors().items())


def test_a_warm_up_learns_once_there_are_enough_responses(tmp_path):
    model, _ = built(tmp_path, mini=8, micro=8, prime_model={"warm_up": {"rollouts": 20, "epochs": 3}})
    parts = [replace(random_answers(seed=seed), steps=12) for seed in range(2)]
    before = model.phi.tensors()
    assert not model.ready
    assert model.learn(parts[0]) == {}
    assert not model.ready
    assert all(torch.equal(v, before[k]) for k, v in model.phi.tensors().items())
    model.learn(parts[1])
    assert model.ready
    other, _ = built(tmp_path, mini=8, micro=8)
    for _ in range(3):
        for part in parts:
            other.fit(other.labelled(part))
    assert all(torch.equal(v, other.phi.tensors()[k]) for k, v in model.phi.tensors().items())
    again, _ = built(tmp_path, mini=8, micro=8, prime_model={"warm_up": {"rollouts": 20}})
    again.restore(*model.state())
    assert again.ready


@pytest.mark.parametrize(("loss", "sizes"), [("ce", [4, 4]), ("dpo", [8])])
def test_processes_get_even_shares_of_a_step_but_no_part_of_a_group(loss, sizes, tmp_path, monkeypatch):
    model, _ = built(tmp_path, mini=8, micro=8, prime_model={"loss_type": loss})
    lesson = model.labelled(random_answers())
    assert [len(rows) for rows in model._passes(lesson, np.arange(8))] == [8]
    monkeypatch.setattr(distributed, "peers", lambda: 2)
    assert [len(rows) for rows in model._passes(lesson, np.arange(8))] == sizes


@pytest.mark.parametrize("loss", ["ce", "dpo", "bon_acc", "bon_rm"])
def test_a_step_is_the_same_in_however_many_pieces_and_follows_the_formula(loss, tmp_path):
    found = []
    for micro in (4, 8):
        model, _ = built(tmp_path, mini=8, micro=micro, prime_model={"loss_type": loss})
        moved(model)
        lesson = model.labelled(random_answers())
        mask = torch.from_numpy(lesson.tokens.mask_B_T)
        logits = implicit.outcome_logits(model.log_ratios(lesson), mask, beta=0.05)
        if loss == "ce":
            expected = implicit.bce_terms(logits, lesson.acc_B).mean()
        else:
            compared = implicit.contrast(logits, lesson.acc_B, lesson.groups_B, loss)
            expected = implicit.contrast_terms(logits, lesson.acc_B, compared).mean()
        _, metrics = model.fit(lesson)
        assert metrics["prm_loss"] == pytest.approx(float(expected), rel=1e-5)
        found.append(model.log_ratios(lesson))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_outcomes_that_are_unknown_teach_nothing(tmp_path):
    model, _ = built(tmp_path, mini=8, micro=4)
    given = random_answers()
    known = np.array([0, 4, 5, 6, 7])
    full = moved(model).labelled(rollout_of(given.inputs.batch, given.outcomes_B, given.groups_B, failures=[1, 2, 3]))
    model.fit(full)
    other = moved(built(tmp_path, mini=8, micro=4)[0])
    other.fit(other.labelled(take(given, known)))
    torch.testing.assert_close(model.log_ratios(full), other.log_ratios(full), rtol=1e-3, atol=1e-4)
    nothing = moved(built(tmp_path, mini=8, micro=4)[0])
    before = nothing.phi.tensors()
    unknown = rollout_of(given.inputs.batch, given.outcomes_B, given.groups_B, failures=range(8))
    q, metrics = nothing.fit(nothing.labelled(unknown))
    assert metrics["prm_loss"] is None
    assert q.any()  # still scored
    assert all(torch.equal(v, before[k]) for k, v in nothing.phi.tensors().items())


def test_it_learns_to_tell_right_from_wrong(tmp_path):
    model, _ = built(tmp_path, mini=8, micro=8, prime_model={"optim": {"lr": 3e-2}, "beta_train": 0.5})
    for _ in range(12):
        metrics = model.measure(random_answers()).metrics
    assert metrics["dpo_acc"] == 1
    assert metrics["prm_loss"] < 0.4
    assert metrics["verifier_correlation"] > 0.8


def test_groups_that_a_contrastive_loss_would_not_see_whole_are_refused(tmp_path):
    with refuses("reward.sources.prime.model.micro_batch_size"):
        built(tmp_path, mini=12, micro=6, prime_model={"loss_type": "dpo"})
    built(tmp_path, mini=12, micro=6)


def test_a_model_that_would_equal_its_reference_for_ever_is_refused(tmp_path):
    study = letter_study(tmp_path, reward_model={"prime_model": {"update": "none"}})
    policy = load_policy(study.text_policy, seed=0)
    with refuses("reward.sources.prime.model.update", "every process reward would be 0"):
        prime_reward(study, policy)


# What cannot be measured.


@pytest.mark.parametrize("granularity", ["token", "whole"])
def test_a_log_ratio_that_is_not_finite_is_a_failure_and_spoils_nothing_else(granularity, tmp_path):
    rows = [[0.2, -0.1, 0.3], [-0.4, 0.1], [float("nan"), 0.0], [0.5, float("inf")]]
    study = letter_study(tmp_path, reward_model=prime(mini=4, micro=4, prime_granularity=granularity))
    model = says(rows, study, lr=1.0)
    reward = model
    stream = reward.measure(answers([3, 2, 2, 2], [1, 0, 1, 0], [0, 0, 0, 0]))
    metrics = stream.metrics
    assert [row for row, _, _ in stream.failures] == [2, 3]
    assert stream.failed_B.tolist() == [False, False, True, True]
    assert np.isfinite(stream.values).all()
    assert metrics["skipped_updates"] == 1
    assert metrics["prm_loss"] is None
    assert metrics["dpo_acc"] == 1
    assert float(model.phi.offset.detach()) == 0
    clean = letter_study(tmp_path, data={"n_samples": 2}, reward_model=prime(prime_granularity=granularity))
    alone = says(rows[:2], clean).measure(answers([3, 2], [1, 0], [0, 0]), learn=False)
    np.testing.assert_allclose(stream.values[:2], alone.values, atol=1e-6)


@pytest.mark.parametrize("granularity", ["token", "whole"])
@pytest.mark.parametrize("on_failure", ["drop", "neutral"])
def test_what_a_failure_means_for_the_others(on_failure, granularity, tmp_path):
    rows = [[0.2, -0.1, 0.3], [-0.4, 0.1], [float("nan"), 0.0]]
    section = prime(prime_granularity=granularity, on_failure=on_failure, verifier_coef=0)
    study = letter_study(tmp_path, reward_model=section, algorithm={"normalize_advantages": False})
    happened = answers([3, 2, 2], [1, 0, 0], [0, 0, 0])
    stream = says(rows, study).measure(happened, learn=False)
    weights = {"prime": 1.0}
    mask = happened.mask
    found = advise(study, mask, happened.groups_B, {"prime": stream}, weights).advantages
    two = answers([3, 2], [1, 0], [0, 0])
    known = says(rows[:2], study).measure(two, learn=False)
    alone = advise(study, two.mask, two.groups_B, {"prime": known}, weights).advantages
    if on_failure == "drop":
        np.testing.assert_allclose(found[:2], alone, atol=1e-6)
        assert not found[2].any()
    else:
        assert not np.allclose(found[:2], alone)
        assert found[2].any()  # 0 against what the others earned


def test_an_empty_response_is_paid_nothing_and_is_in_no_baseline(tmp_path):
    study = letter_study(tmp_path, reward_model=prime(), algorithm={"normalize_advantages": False})
    reward = says([*Q, []], study)
    happened = answers([3, 2, 0], [1, 0, 0], [0, 0, 0])
    stream = reward.measure(happened, learn=False)
    streams = {"verifier": outcomes(happened), "prime": stream}
    found = advise(study, happened.mask, happened.groups_B, streams, {"verifier": 1.0, "prime": 1.0})
    np.testing.assert_allclose(found.advantages[0], [3.125, 2.25, 2.125], atol=1e-4)
    assert not found.advantages[2].any()


# Greedy responses.


def test_greedy_responses_are_scored_by_the_same_weights_in_the_same_unit(tmp_path):
    for update in ("after", "before"):
        study = letter_study(tmp_path, reward_model=prime(mini=8, micro=8, prime_model={"update": update}))
        model = moved(prime_reward(study))
        reward = model
        greedy = random_answers()
        stream, _ = scored(reward, replace(greedy, greedy=greedy))
        np.testing.assert_allclose(stream.values, stream.greedy.values, atol=1e-5)
        assert stream.measured == 2 * stream.greedy.measured == 16
        returns = np.abs(stream.values[:, ::-1].cumsum(axis=1)).max(axis=1)
        small = take(greedy, np.array([returns.argmin()]))
        alone = reward.measure(small, learn=False).values
        assert np.abs(alone[:, ::-1].cumsum(axis=1)).max() == pytest.approx(1, abs=1e-4)
        together = reward.measure(replace(greedy, greedy=small)).greedy.values  # not in a unit of its own
        assert np.abs(together[:, ::-1].cumsum(axis=1)).max() < 0.9


# Sharing.


def unique_bytes(*policies):
    tensors = {}
    for policy in policies:
        for p in policy.base.model.parameters():
            tensors[p.data_ptr()] = p.numel() * p.element_size()
    return sum(tensors.values())


def test_one_frozen_base_with_two_adapters_equals_three_copies(tmp_path):
    plain = letter_study(tmp_path).text_policy
    start = save_policy(load_policy(plain, seed=3), tmp_path / "start")
    own = {"tiny": None, "path": str(start), "lora": LORA}
    shared, policy = built(tmp_path, policy=own, mini=8, micro=4, prime_norm="none")
    assert shared.phi.base is policy.base
    assert shared.ref.base is policy.base
    again = save_policy(load_policy(plain, seed=3), tmp_path / "again")
    apart, other = built(
        tmp_path,
        policy=own,
        mini=8,
        micro=4,
        prime_norm="none",
        prime_model={"path": str(again), "ref_path": str(start)},
    )  # fmt: skip
    copy = TextPolicy(load_policy(TextPolicySettings(path=str(again), bf16=False), seed=0).base, trainable=False)
    apart.ref = copy
    assert len({id(p.base) for p in (other, apart.phi, apart.ref)}) == 3
    apart.phi.load_tensors({k.replace(".prm.", ".policy."): v for k, v in shared.phi.tensors().items()})
    for seed in range(3):
        rollout = random_answers(seed=seed)
        one, two = shared.measure(rollout).values, apart.measure(rollout).values
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    assert one.any()
    model = unique_bytes(reference(load_policy(TextPolicySettings(path=str(start), bf16=False), seed=0).base))
    adapters = sum(p.numel() * p.element_size() for x in (policy, shared.phi) for p in x.parameters())
    assert unique_bytes(policy, shared.phi, shared.ref) <= 1.15 * (model + adapters)
    assert unique_bytes(other, apart.phi, apart.ref) > 2.9 * model


def test_a_model_that_starts_elsewhere_shares_its_own_weights_with_its_reference(tmp_path):
    elsewhere = save_policy(load_policy(letter_study(tmp_path).text_policy, seed=5), tmp_path / "elsewhere")
    model, policy = built(tmp_path, policy={"lora": LORA}, prime_model={"path": str(elsewhere)})
    assert model.phi.base is model.ref.base
    assert model.phi.base is not policy.base
    back = letter_study(tmp_path, policy={"lora": LORA, "tiny": None, "path": str(elsewhere)})
    assert back.text_policy.path == str(elsewhere)


# Replay and state.


def test_the_replay_keeps_the_newest_and_comes_back():
    replay = TextReplay(5)
    for seed in range(3):
        given = random_answers(4, seed=seed)
        known = torch.tensor([False, True, True, True])
        ref = torch.full(given.mask.shape, float(seed))
        replay.add(LabelledBatch(given.inputs.batch, torch.from_numpy(given.outcomes_B), known, torch.zeros(4), ref))
    replay.add(LabelledBatch(given.inputs.batch, torch.zeros(4), torch.zeros(4, dtype=torch.bool), torch.zeros(4), ref))
    assert len(replay) == 5
    drawn = replay.draw(5, np.random.default_rng(0))
    batch, acc, ref = drawn.tokens, drawn.acc_B, drawn.ref_B_T
    assert drawn.known_B.all()
    assert len(set(drawn.groups_B.tolist())) == 5
    assert len({(p.tobytes(), r.tobytes()) for p, r in zip(batch.prompts, batch.responses(), strict=True)}) == 5
    seeds = sorted(int(ref[i, 0]) for i in range(5))
    assert seeds == [1, 1, 2, 2, 2]
    assert not ref[~torch.from_numpy(batch.mask_B_T)].any()
    other = TextReplay(5)
    other.restore(replay.state())
    again = other.draw(5, np.random.default_rng(0))
    np.testing.assert_array_equal(batch.responses_B_T, again.tokens.responses_B_T)
    assert torch.equal(acc, again.acc_B)
    assert torch.equal(ref, again.ref_B_T)


def test_replayed_rollouts_are_learned_from_in_proportion(tmp_path):
    given = {"replay_size": 100, "replay_ratio": 0.25, "update": "after"}
    model, _ = built(tmp_path, mini=4, micro=4, prime_model=given)
    counter = Counter(model.phi)
    first = model.measure(random_answers(12, seed=0))
    assert first.metrics["prm_loss_replay"] is None
    assert counter.with_gradient == 12
    second = model.measure(random_answers(12, seed=1))
    assert second.metrics["prm_loss_replay"] is not None
    assert counter.with_gradient == 12 + 12 + 4
    assert len(model.replay) == 24


@pytest.mark.parametrize("policy", [{}, {"lora": LORA}], ids=["full", "lora"])
def test_a_stored_model_goes_on_to_the_same_bits(policy, tmp_path):
    given = {"replay_size": 10, "update": "before"}
    model, _ = built(tmp_path, policy=policy, mini=4, micro=4, prime_model=given)
    for seed in range(2):
        scored(model, random_answers(seed=seed))
    other, _ = built(tmp_path, policy=policy, mini=4, micro=4, prime_model=given)
    other.restore(*model.state())
    for one in (model, other):
        for seed in range(2, 4):
            _, metrics = scored(one, random_answers(seed=seed))
    mine, theirs = model.state(), other.state()
    assert mine[1] == theirs[1]
    assert mine[0].keys() == theirs[0].keys()
    assert all(torch.equal(v, theirs[0][k]) for k, v in mine[0].items())
    assert metrics["prm_loss"] is not None


def test_a_labelled_batch_holds_what_the_reference_says(tmp_path):
    model, _ = built(tmp_path)
    batch = model.labelled(random_answers())
    assert isinstance(batch, LabelledBatch)
    assert (batch.ref_B_T[torch.from_numpy(batch.tokens.mask_B_T)] < 0).all()


def test_a_warm_up_goes_on_from_a_checkpoint(tmp_path):
    given = {"mini": 8, "micro": 8, "prime_model": {"warm_up": {"rollouts": 20, "policy_learns": True}}}
    parts = [replace(random_answers(seed=seed), steps=12) for seed in range(2)]
    whole, cut, again = (built(tmp_path, **json.loads(json.dumps(given)))[0] for _ in range(3))
    assert not whole.policy_waits
    for part in parts:
        whole.learn(part)
    cut.learn(parts[0])
    again.restore(*cut.state())
    again.learn(parts[1])
    assert again.ready
    assert all(torch.equal(v, again.phi.tensors()[k]) for k, v in whole.phi.tensors().items())


# Conversations with an agent: rows are calls, and q is summed over those of a conversation.


PIECES = (((3, 9), ((8, 9, 7), (8, 8))), ((4, 9), ((9, 7, 8, 9),)), ((5,), ((9,), (8, 8), (7, 7))))


def talks(prompts, acc):
    """Conversations of calls that go on from each other, and the same tokens as single responses."""
    made = []
    for ids, calls in PIECES:
        before, own = list(ids), []
        for said in calls:
            own.append(Call(np.array(before), np.array(said), np.zeros(len(said), np.float32), True))
            before += said
        made.append(Conversation(prompts[0], (), tuple(own)))
    arrays = arrays_of(made, TOKENIZER)
    single = token_batch(
        [np.array(ids) for ids, _ in PIECES], [np.concatenate(calls) for _, calls in PIECES], np.ones(3, bool), pad_id=0
    )
    alone = rollout_of(single, np.array(acc, np.float32), np.arange(3) // 2)
    inputs = Responses(arrays.batch, tuple(prompts * len(arrays.batch)), ("",) * len(arrays.batch), TOKENIZER, None,
                       tuple(made))  # fmt: skip
    led = replace(alone, inputs=inputs, log_probs=arrays.log_probs, mask=arrays.mask, chunks=arrays.chunks,
                  conversations=True)  # fmt: skip
    return led, alone


@pytest.mark.parametrize(
    ("given", "mini", "micro"),
    [({}, 1, 1), ({"prime_granularity": "whole", "prime_norm": "none"}, 4, 2),
     ({"prime_model": {"update": "before"}}, 4, 4), ({"prime_model": {"loss_type": "dpo"}}, 2, 2)],
)  # fmt: skip
def test_a_conversation_is_scored_and_learned_as_its_tokens_in_one_response(given, mini, micro, tmp_path):
    prompt = Prompt("p", ({"role": "user", "content": "a"},), "1", "letters")
    led, alone = talks([prompt], [1, 0, 1])
    data = {"n_samples": 2}
    found = []
    for rollout in (led, alone):
        model = moved(built(tmp_path, mini=mini, micro=micro, data=data, **given)[0])
        rewards, metrics = scored(model, rollout)
        found.append((rewards, metrics, model.phi.tensors()))
    (own, metrics, weights), (wanted, of_responses, learned) = found
    np.testing.assert_allclose(own.values, wanted.values, atol=1e-5)
    assert own.values.any()
    assert own.measured == 3
    for name in ("prm_loss", "dpo_acc", "verifier_correlation", "q_mean"):
        assert metrics.get(name) == pytest.approx(of_responses.get(name), abs=1e-5), name
    assert metrics["prm_loss"] is not None
    for name, tensor in learned.items():
        torch.testing.assert_close(weights[name], tensor, atol=2e-5, rtol=1e-4, msg=name)


def test_a_model_that_equals_its_reference_pays_a_conversation_nothing(tmp_path):
    led, _ = talks([Prompt("p", ({"role": "user", "content": "a"},), "1", "letters")], [1, 0, 1])
    model, _ = built(tmp_path, mini=2, micro=2, prime_model={"optim": {"lr": 0.0}})
    assert not model.measure(led).values.any()  # exactly: batch_norm divides by the largest return


def test_warm_up_on_conversations_is_stored_and_restored(tmp_path):
    led, _ = talks([Prompt("p", ({"role": "user", "content": "a"},), "1", "letters")], [1, 0, 1])
    given = {"mini": 2, "micro": 2, "prime_model": {"warm_up": {"rollouts": 6}}}
    led = replace(led, steps=3)
    whole, half = built(tmp_path, **given)[0], built(tmp_path, **given)[0]
    for _ in range(2):
        whole.learn(led)
    half.learn(led)
    resumed = built(tmp_path, **given)[0]
    resumed.restore(*half.state())
    resumed.learn(led)
    assert whole.ready
    assert resumed.ready
    for name, tensor in whole.phi.tensors().items():
        assert torch.equal(tensor, resumed.phi.tensors()[name]), name
