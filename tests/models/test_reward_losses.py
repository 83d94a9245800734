import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.errors import DataError
from guerdon.models.text.text_losses import (
    batch_norm,
    bce_terms,
    contrast,
    contrast_terms,
    dpo_acc,
    dpo_acc_abs,
    granular_scores,
    implicit_rewards,
    largest_return,
    outcome_logits,
    paying_tokens,
)

torch.set_num_threads(1)
NUMBERS = st.integers(-12, 12).map(lambda n: n / 8)

# PRIME's worked case; the last entry of the second response is padding
Q = torch.tensor([[0.2, -0.1, 0.3], [-0.4, 0.1, 55.0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)
ACC = torch.tensor([1.0, 0.0])


@st.composite
def batches(draw):
    """q, a right-padded mask and the ends of steps; every non-empty response ends a step at its last token."""
    b, t = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    q = draw(hnp.arrays(np.float32, (b, t), elements=NUMBERS))
    lengths = draw(st.lists(st.integers(0, t), min_size=b, max_size=b))
    mask = np.arange(t)[None, :] < np.array(lengths)[:, None]
    ends = [
        np.array(sorted({*draw(st.sets(st.integers(0, n - 1))), n - 1}) if n else [], dtype=np.int64) for n in lengths
    ]
    return torch.tensor(q), torch.tensor(mask), ends


@st.composite
def outcomes(draw):
    """Logits, outcomes, shuffled groups and which outcomes are known."""
    b = draw(st.integers(1, 8))
    logits = draw(hnp.arrays(np.float32, b, elements=NUMBERS))
    acc = draw(hnp.arrays(np.float32, b, elements=st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0])))
    groups = draw(hnp.arrays(np.int64, b, elements=st.integers(0, 2)))
    return logits, acc, groups, draw(hnp.arrays(np.bool_, b))


def test_primes_worked_case():
    scores = batch_norm(granular_scores(Q, MASK, "token"), MASK)
    np.testing.assert_allclose(scores, [[0.5, -0.25, 0.75], [-1, 0.25, 0]], atol=1e-5)
    loss = bce_terms(outcome_logits(Q, MASK, beta=0.05), ACC).mean()
    assert float(loss) == pytest.approx(0.684436, abs=1e-6)


def test_rewards_are_log_ratios_and_padding_may_hold_anything():
    log_probs = torch.tensor([[-1.0, -2.0, math.nan]], requires_grad=True)
    ref = torch.tensor([[-1.5, -1.0, math.inf]], dtype=torch.bfloat16)
    q = implicit_rewards(log_probs, ref, torch.tensor([[1, 1, 0]]))
    assert q.dtype == torch.float32
    assert q.tolist() == [[0.5, -1.0, 0.0]]
    q.sum().backward()
    assert log_probs.grad.tolist() == [[1, 1, 0]]


@settings(deadline=None, max_examples=60)
@given(batches())
def test_granularities_share_a_total_and_stand_where_they_should(batch):
    q, mask, ends = batch
    noisy = torch.where(mask, q, math.nan)
    for granularity in ("token", "step", "whole"):
        scores = granular_scores(noisy, mask, granularity, ends)
        pays = paying_tokens(mask, granularity, ends)
        np.testing.assert_allclose(scores.sum(1), torch.where(mask, q, 0).sum(1), atol=1e-5)
        assert not scores[~pays].any()
        for i in range(len(q)):
            n = int(mask[i].sum())
            places = {"token": list(range(n)), "step": ends[i].tolist(), "whole": [n - 1] if n else []}[granularity]
            assert pays[i].nonzero().flatten().tolist() == places
            start = 0
            for end in places:
                assert float(scores[i, end]) == pytest.approx(float(q[i, start : end + 1].sum()), abs=1e-5)
                start = end + 1


def test_scores_carry_no_gradient():
    assert not granular_scores(Q.clone().requires_grad_(), MASK, "whole").requires_grad


@pytest.mark.parametrize(
    "ends", [[[0, 3], [1]], [[-1, 2], [1]], [[0], [1]], [[2], [2]], [[2], []]]
)  # beyond the array, before it, last token in no step, on padding, no step at all
def test_step_ends_that_do_not_fit_are_refused(ends):
    with pytest.raises(DataError, match="step"):
        paying_tokens(MASK, "step", [np.array(e, dtype=np.int64) for e in ends])


def test_steps_need_their_ends():
    with pytest.raises(ValueError, match="step_ends_B"):
        granular_scores(Q, MASK, "step")


@settings(deadline=None, max_examples=60)
@given(batches(), st.sampled_from([0.05, 4.0]))
def test_batch_norm_is_one_positive_factor_and_beta_cancels(batch, beta):
    q, mask, _ = batch
    scores = granular_scores(q, mask, "token")
    largest = 0.0
    for i in range(len(q)):
        for t in range(int(mask[i].sum())):
            largest = max(largest, abs(float(q[i, t : int(mask[i].sum())].double().sum())))
    assert float(largest_return(torch.where(mask, q, 77.0), mask)) == pytest.approx(largest, abs=1e-5)
    normed = batch_norm(torch.where(mask, q, 77.0), mask)
    np.testing.assert_allclose(normed, scores.numpy() / (largest + 1e-6), rtol=1e-4, atol=1e-6)
    if largest > 0.1:
        np.testing.assert_allclose(batch_norm(beta * scores, mask), normed, rtol=1e-3, atol=1e-4)
        assert float(largest_return(normed, mask)) == pytest.approx(1, abs=1e-4)


def test_shards_have_a_unit_each_and_workers_share_one():
    scores = torch.tensor([[1.0], [2.0], [10.0]])
    mask = torch.ones(3, 1)
    np.testing.assert_allclose(batch_norm(scores, mask)[:, 0], [0.1, 0.2, 1], atol=1e-5)
    np.testing.assert_allclose(batch_norm(scores, mask, shards_B=torch.tensor([0, 0, 1]))[:, 0], [0.5, 1, 1], atol=1e-5)
    unit = torch.stack([largest_return(scores[:2], mask[:2]), largest_return(scores[2:], mask[2:])]).max()
    np.testing.assert_allclose(batch_norm(scores[:2], mask[:2], unit=unit)[:, 0], [0.1, 0.2], atol=1e-5)
    with pytest.raises(ValueError, match="not both"):
        batch_norm(scores, mask, unit=unit, shards_B=torch.tensor([0, 0, 1]))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)])
def test_an_empty_batch_is_all_zeros(shape):
    mask = torch.zeros(shape, dtype=torch.bool)
    q = torch.full(shape, math.nan)
    for granularity in ("token", "step", "whole"):
        ends = [np.zeros(0, dtype=np.int64)] * shape[0]
        scores = granular_scores(q, mask, granularity, ends)
        assert scores.shape == shape
        assert not batch_norm(scores, mask).any()
    assert float(largest_return(q, mask)) == 0
    assert not outcome_logits(q, mask, beta=1.0).any()


@settings(deadline=None, max_examples=60)
@given(outcomes())
def test_ce_is_the_naive_form_where_that_one_works(case):
    logits, acc, _, _ = case
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    naive = -(acc * np.log(p) + (1 - acc) * np.log(1 - p))
    np.testing.assert_allclose(bce_terms(torch.tensor(logits), torch.tensor(acc)), naive, rtol=1e-5, atol=1e-6)


def test_ce_does_not_saturate():
    logits = torch.tensor([200.0, -200.0], requires_grad=True)
    terms = bce_terms(logits, torch.tensor([0.0, 1.0]))
    assert terms.tolist() == [200, 200]
    terms.sum().backward()
    assert logits.grad.tolist() == [1, -1]


@settings(deadline=None, max_examples=100)
@given(outcomes(), st.sampled_from(["dpo", "bon_acc", "bon_rm"]))
def test_preference_losses_by_loops(case, loss_type):
    logits, acc, groups, known = case
    fresh = torch.tensor(logits, requires_grad=True)
    compared = contrast(fresh, torch.tensor(acc), torch.tensor(groups), loss_type, known_B=torch.tensor(known))
    terms = contrast_terms(fresh, torch.tensor(acc), compared)
    terms.sum().backward()
    terms = terms.detach()
    for i in range(len(logits)):
        if not known[i]:
            assert float(terms[i]) == 0
            assert float(fresh.grad[i]) == 0
            continue
        group = [j for j in range(len(logits)) if known[j] and groups[j] == groups[i]]
        k = len(group)
        opposed = [float(logits[j]) for j in group if (acc[j] < acc[i] if acc[i] > 0 else acc[j] > acc[i])]
        sign = 1 if acc[i] > 0 else -1
        margin = sign * (float(logits[i]) - (sum(opposed) / len(opposed) if opposed else 0.0))
        rank = {"bon_acc": acc, "bon_rm": logits}.get(loss_type)
        weight = 1.0 if rank is None else k * (sum(rank[j] <= rank[i] for j in group) / k) ** (k - 1)
        assert float(terms[i]) == pytest.approx(weight * math.log1p(math.exp(-margin)), rel=1e-4, abs=1e-6)
        assert float(fresh.grad[i]) == pytest.approx(-weight * sign / (1 + math.exp(margin)), rel=1e-4, abs=1e-6)


def test_preference_losses_by_hand():
    logits, acc, groups = torch.tensor([1.0, -1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3)
    compared = contrast(logits, acc, groups, "dpo")
    assert compared.baselines.tolist() == [0.5, 1.0, 1.0]
    margins = np.array([0.5, 2.0, -1.0])  # +(1 - .5), -(-1 - 1), -(2 - 1)
    np.testing.assert_allclose(contrast_terms(logits, acc, compared), np.log1p(np.exp(-margins)), rtol=1e-5)
    third = 3 * np.array([1, 2 / 3, 2 / 3]) ** 2
    np.testing.assert_allclose(contrast(logits, acc, groups, "bon_acc").weights, third, rtol=1e-5)
    np.testing.assert_allclose(
        contrast(logits, acc, groups, "bon_rm").weights, 3 * np.array([2 / 3, 1 / 3, 1]) ** 2, rtol=1e-5
    )


@settings(deadline=None, max_examples=40)
@given(st.data(), outcomes(), st.sampled_from(["dpo", "bon_acc", "bon_rm"]))
def test_groups_may_stand_in_any_order_and_unknown_outcomes_might_be_absent(data, case, loss_type):
    logits, acc, groups, known = (torch.tensor(x) for x in case)
    first = contrast(logits, acc, groups, loss_type, known_B=known)
    order = torch.tensor(data.draw(st.permutations(range(len(acc)))))
    moved = contrast(logits[order], acc[order], groups[order], loss_type, known_B=known[order])
    without = contrast(logits[known], acc[known], groups[known], loss_type)
    for a, b, c in zip(first, moved, without, strict=True):
        torch.testing.assert_close(a[order], b)
        torch.testing.assert_close(a[known], c)
    assert (
        dpo_acc(logits, acc, groups, known_B=known).groups == dpo_acc(logits[known], acc[known], groups[known]).groups
    )


def test_dpo_acc_by_hand():
    scores = torch.tensor([3.0, 1.0, 2.0, 5.0, 5.0, 1.0, 9.0])
    acc = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0, 1.0, 0.0])
    groups = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    # group 0: all three pairs right; group 1: no difference; group 2: wrong
    result = dpo_acc(scores, acc, groups)
    assert result.accuracy == pytest.approx(0.5)
    assert result.coverage == pytest.approx(2 / 3)
    assert result.groups == 2
    # weighted by the difference of outcomes: pair (0, 2) and (1, 2) weigh .5 each, pair (0, 1) weighs 1
    swapped = dpo_acc(torch.tensor([3.0, 2.0, 1.0]), acc[:3], groups[:3])
    assert swapped.accuracy == pytest.approx(1.5 / 2)


@settings(deadline=None, max_examples=60)
@given(outcomes())
def test_dpo_acc_of_the_opposite_score_is_the_complement(case):
    scores, acc, groups, known = (torch.tensor(x) for x in case)
    one, other = (dpo_acc(s, acc, groups, known_B=known) for s in (scores, -scores))
    assert one.coverage == other.coverage
    if one.accuracy is None:
        assert one.groups == 0
    else:
        assert one.accuracy + other.accuracy == pytest.approx(1)
        assert dpo_acc(acc, acc, groups, known_B=known).accuracy == 1
        assert dpo_acc(torch.zeros_like(acc), acc, groups, known_B=known).accuracy == 0.5


def test_undefined_accuracies_are_none():
    nothing = torch.zeros(0)
    assert dpo_acc(nothing, nothing, nothing) == (None, None, 0)
    assert dpo_acc(torch.ones(2), torch.ones(2), torch.zeros(2)) == (None, 0.0, 0)
    assert dpo_acc_abs(nothing, nothing) is None
    assert dpo_acc_abs(torch.ones(1), torch.tensor([0.5])) is None
    assert dpo_acc_abs(torch.ones(2), torch.ones(2), known_B=torch.zeros(2)) is None


def test_dpo_acc_abs_by_hand():
    scores = torch.tensor([2.0, -1.0, 3.0, 0.0, -5.0, 7.0])
    acc = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5, 1.0])
    known = torch.tensor([1, 1, 1, 1, 1, 0])
    assert dpo_acc_abs(scores, acc, known_B=known) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
