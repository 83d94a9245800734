"""Losses of reward models of text, and the mathematics of implicit process rewards (PRIME).

Terms, not means: the trainer divides by the weight of the whole batch, however it is cut into forward passes.

    (bce_terms(logits_N, targets_N) * weights_N).sum() / weights_N.sum()
    pair_terms(logits_right_P, logits_wrong_P).mean()

q_it = log pi_phi(y_t | x, y_<t) - log pi_ref(y_t | x, y_<t) is the raw implicit reward of token t of response i, and
beta sum_t q_it the logit that the response is right (Yuan et al. 2024, 2412.01981; PRIME, 2502.01456).

    q_B_T = implicit_rewards(log_probs_B_T, ref_log_probs_B_T, mask_B_T)
    scores_B_T = batch_norm(granular_scores(q_B_T, mask_B_T, "token"), mask_B_T)
    loss = bce_terms(outcome_logits(q_B_T, mask_B_T, beta=0.05), acc_B).mean()

acc is the share of right answers in [0, 1]; responses on which the verifier failed are left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from guerdon.errors import DataError
from guerdon.types import IntArray

Granularity = Literal["token", "step", "whole"]
ContrastLoss = Literal["dpo", "bon_acc", "bon_rm"]
EPS = 1e-6  # of PRIME's batch_norm


def bce_terms(logits_N: Tensor, targets_N: Tensor) -> Tensor:
    """-t log p - (1 - t) log(1 - p) with p = sigma(logit), (N,); t is any probability.

    From logits: PRIME's own sigmoid followed by a logarithm saturates on long responses.
    """
    return functional.binary_cross_entropy_with_logits(logits_N, targets_N.to(logits_N.dtype), reduction="none")


def pair_terms(right_P: Tensor, wrong_P: Tensor) -> Tensor:
    """-log sigma(right - wrong) of each pair, (P,).

    On the logits of a head this is the model of Bradley and Terry; on beta times summed log-ratios it is DPO
    (Rafailov et al. 2023, 2305.18290).
    """
    return -functional.logsigmoid(right_P - wrong_P)


def pairs(groups: Sequence[Hashable], right: Sequence[bool | None], seed: int) -> list[tuple[int, int]]:
    """Pairs (right, wrong) within groups: every solution of a mixed group is in at least one, none in more than needed.

    Args:
        groups: solutions of the same question share one.
        right: whether the answer is right; None where unknown: in no pair.
        seed: of the pairing.

    Returns:
        max(right, wrong) pairs for each group that has both.
    """
    members: dict[Hashable, tuple[list[int], list[int]]] = {}
    for i, (group, value) in enumerate(zip(groups, right, strict=True)):
        if value is not None:
            members.setdefault(group, ([], []))[0 if value else 1].append(i)
    found: list[tuple[int, int]] = []
    for number, (good, bad) in enumerate(members.values()):
        if not good or not bad:
            continue
        rng = np.random.default_rng([seed, number])
        a = rng.permutation(good)
        b = rng.permutation(bad)
        found += [(int(a[k % len(a)]), int(b[k % len(b)])) for k in range(max(len(a), len(b)))]
    return found


# implicit process rewards


def implicit_rewards(log_probs_B_T: Tensor, ref_log_probs_B_T: Tensor, mask_B_T: Tensor) -> Tensor:
    """The log-ratio q of every valid token (without beta), 0 elsewhere; (B, T) float32."""
    return torch.where(mask_B_T.bool(), log_probs_B_T.float() - ref_log_probs_B_T.float(), 0.0)


def paying_tokens(mask_B_T: Tensor, granularity: Granularity, step_ends_B: Sequence[IntArray] | None = None) -> Tensor:
    """Where a reward of this granularity stands: every valid token (the last included), step ends, or the last one.

    Args:
        mask_B_T: valid response tokens.
        granularity: token, step or whole.
        step_ends_B: `step`: for each response the index of each step's last token; the last valid token is one.

    Returns:
        (B, T) bool.

    Raises:
        DataError: a step ends on a token that does not exist, or the last token of a response ends no step.
    """
    mask = mask_B_T.bool()
    if granularity == "token":
        return mask
    last = mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
    if granularity == "whole":
        return last
    if step_ends_B is None:
        raise ValueError("granularity 'step' needs step_ends_B")
    length = mask.shape[1]
    ends = torch.zeros(mask.shape, dtype=torch.bool)
    for row, tokens in enumerate(step_ends_B):
        if len(tokens) and (min(tokens) < 0 or max(tokens) >= length):
            raise DataError(f"response {row}: steps end between tokens {min(tokens)} and {max(tokens)}, of {length}")
        ends[row, torch.as_tensor(np.asarray(tokens, dtype=np.int64))] = True
    ends = ends.to(mask.device)
    wrong = ((ends & ~mask) | (last & ~ends)).any(-1)
    if wrong.any():
        raise DataError(
            f"response {int(wrong.nonzero()[0])}: step ends must be valid tokens, and the last valid token one of them"
        )
    return ends


def granular_scores(
    q_B_T: Tensor, mask_B_T: Tensor, granularity: Granularity, step_ends_B: Sequence[IntArray] | None = None
) -> Tensor:
    """Sum q over the tokens that lead to each paying token, and put the sum there.

    token: q itself, the last token included. step: the sum over a step, at its last token. whole: the sum over the
    response, at its last valid token. The total of a response is the same in all three.

    Returns:
        (B, T), 0 elsewhere; without gradient.
    """
    q = torch.where(mask_B_T.bool(), q_B_T.detach(), 0.0)
    pays = paying_tokens(mask_B_T, granularity, step_ends_B)
    length = q.shape[1]
    here = torch.arange(length, device=q.device).expand_as(q)
    payday = torch.where(pays, here, length).flip(-1).cummin(-1).values.flip(-1) if length else here
    return torch.zeros(len(q), length + 1, dtype=q.dtype, device=q.device).scatter_add(1, payday, q)[:, :length]


def largest_return(scores_B_T: Tensor, mask_B_T: Tensor) -> Tensor:
    """The unit of `batch_norm`: max |sum_{s >= t} score_s| over the valid tokens, a scalar; 0 of an empty batch.

    With several workers take the maximum of theirs, so that all share one unit.
    """
    scores = torch.where(mask_B_T.bool(), scores_B_T, 0.0)
    returns = scores.flip(-1).cumsum(-1).flip(-1)
    return returns.abs().flatten().max() if returns.numel() else scores.new_zeros(())


def batch_norm(
    scores_B_T: Tensor, mask_B_T: Tensor, *, unit: Tensor | None = None, shards_B: Tensor | None = None
) -> Tensor:
    """PRIME's `prime_norm: batch_norm`: divide by the largest absolute return of the batch + 1e-6.

    Signs and relative sizes stay; beta cancels. Leave responses that could not be scored out of the mask.

    Args:
        scores_B_T: scores of any granularity.
        mask_B_T: valid response tokens.
        unit: `largest_return` over all workers; None: of this batch.
        shards_B: PRIME's own form, where each data-parallel rank divides by the maximum of its shard: the shard of
            each response. The scale of a reward then depends on its neighbours.

    Returns:
        (B, T), 0 where masked.
    """
    scores = torch.where(mask_B_T.bool(), scores_B_T, 0.0)
    if shards_B is None:
        return scores / ((largest_return(scores, mask_B_T) if unit is None else unit) + EPS)
    if unit is not None:
        raise ValueError("batch_norm takes one unit for all, or shards with a unit each; not both")
    normed = torch.zeros_like(scores)
    for shard in sorted(set(shards_B.tolist())):
        rows = shards_B == shard
        normed[rows] = scores[rows] / (largest_return(scores[rows], mask_B_T[rows]) + EPS)
    return normed


def clip(scores_B_T: Tensor, mask_B_T: Tensor, *, limit: float, above: float | None = None) -> Tensor:
    """`prime_norm: clip`: scores cut to [-limit, above], divided by the limit; (B, T), 0 where masked.

    The unit is a number of nats that no response of the batch changes, as the largest of them does in `batch_norm`.

    Args:
        scores_B_T: in nats.
        mask_B_T: True where a token counts.
        limit: nats, above 0.
        above: nats, at least 0; None: `limit`.
    """
    high = limit if above is None else above
    return torch.where(mask_B_T.bool(), scores_B_T, 0.0).clamp(-limit, high) / limit


def outcome_logits(q_B_T: Tensor, mask_B_T: Tensor, *, beta: float) -> Tensor:
    """The logit that a response is right, beta sum_t q_it; (B,), with gradient."""
    return beta * torch.where(mask_B_T.bool(), q_B_T, 0.0).sum(-1)


class Contrast(NamedTuple):
    """What each response is compared with in `dpo`, `bon_acc` and `bon_rm`; all (B,), without gradient.

    Attributes:
        baselines: mean logit of the opposed responses of the group, 0 where there are none.
        weights: of the response's term.
    """

    baselines: Tensor
    weights: Tensor


def contrast(
    logits_B: Tensor, acc_B: Tensor, groups_B: Tensor, loss_type: ContrastLoss, *, known_B: Tensor | None = None
) -> Contrast:
    """Baselines and weights of the detached preference losses of PRIME's veRL recipe, from logits before the update.

    The baseline of a response with acc > 0 is the mean logit of the group's responses with lower acc; with acc = 0,
    of those with higher acc. `bon_acc` and `bon_rm` weigh a response by K F^(K-1), the density of the best of K: F is
    the share of the group (itself included) whose acc, or logit, is not larger.

    Args:
        logits_B: `outcome_logits` of all responses of the batch, so that micro-batches see whole groups.
        acc_B: outcomes in [0, 1].
        groups_B: responses to the same prompt share an id; any order.
        loss_type: which weights.
        known_B: False where the outcome is unknown: no part of any group, weight 0.
    """
    logits = logits_B.detach()
    acc = acc_B.to(logits_B.dtype)
    known = torch.ones_like(acc, dtype=torch.bool) if known_B is None else known_B.bool()
    peers = (groups_B[:, None] == groups_B[None, :]) & known[None, :]
    lower = acc[None, :] < acc[:, None]
    higher = acc[None, :] > acc[:, None]
    opposed = peers & torch.where((acc > 0)[:, None], lower, higher)
    total = torch.where(opposed, logits[None, :], 0.0).sum(1)
    baselines = total / opposed.sum(1).clamp_min(1)
    if loss_type == "dpo":
        return Contrast(baselines, known.to(logits.dtype))
    ranked = acc if loss_type == "bon_acc" else logits
    members = peers.sum(1).clamp_min(1).to(logits.dtype)
    share = (peers & (ranked[None, :] <= ranked[:, None])).sum(1) / members
    return Contrast(baselines, torch.where(known, members * share ** (members - 1), 0.0))


def contrast_terms(logits_B: Tensor, acc_B: Tensor, compared: Contrast) -> Tensor:
    """-log sigma(+-(logit - baseline)) of each response, weighted; + where acc > 0. (B,), gradient through `logits_B`.

    PRIME's recipe takes the mean for `dpo` and the sum for `bon_acc` and `bon_rm`; a mean over the gradient step keeps
    the learning rate independent of the batch size.
    """
    sign = torch.where(acc_B > 0, 1.0, -1.0).to(logits_B.dtype)
    return -functional.logsigmoid((logits_B - compared.baselines) * sign) * compared.weights


class PairAccuracy(NamedTuple):
    """Does the score order the responses of a group as the verifier does?

    Attributes:
        accuracy: mean over the groups with different outcomes, None where there are none.
        coverage: share of the groups that have different outcomes, None without groups.
        groups: number of groups with different outcomes.
    """

    accuracy: float | None
    coverage: float | None
    groups: int


def dpo_acc(scores_B: Tensor, acc_B: Tensor, groups_B: Tensor, *, known_B: Tensor | None = None) -> PairAccuracy:
    """PRIME's `dpo_acc`: pairs ordered rightly, weighted by |acc_i - acc_j|, averaged over groups.

    Unlike the original, a group of equal outcomes is left out (not 0.5) and equal scores count half.
    """
    scores = scores_B.detach().double().cpu()
    acc = acc_B.detach().double().cpu()
    known = torch.ones_like(acc, dtype=torch.bool) if known_B is None else known_B.bool().cpu()
    groups = groups_B.cpu()
    ids = sorted(set(groups[known].tolist()))
    found: list[float] = []
    for group in ids:
        members = (groups == group) & known
        s = scores[members]
        a = acc[members]
        by_acc = a[:, None] - a[None, :]
        by_score = s[:, None] - s[None, :]
        if not by_acc.any():
            continue
        right = 0.5 + 0.5 * by_score.sign() * by_acc.sign()
        found.append(float((by_acc.abs() * right).sum() / by_acc.abs().sum()))
    return PairAccuracy(
        accuracy=float(np.mean(found)) if found else None,
        coverage=len(found) / len(ids) if len(ids) else None,
        groups=len(found),
    )


def dpo_acc_abs(scores_B: Tensor, acc_B: Tensor, *, known_B: Tensor | None = None) -> float | None:
    """Share of responses whose summed score has the sign of 2 acc - 1; acc of 0.5 is left out, a score of 0 is half.

    Returns:
        None where no response has a known outcome other than 0.5.
    """
    known = torch.ones_like(acc_B, dtype=torch.bool) if known_B is None else known_B.bool()
    counted = known & (acc_B != 0.5)
    if not counted.any():
        return None
    agreement = scores_B.detach()[counted].double().sign() * (2 * acc_B[counted].double() - 1).sign()
    return float((0.5 + 0.5 * agreement).mean())
