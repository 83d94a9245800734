from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.errors import ConfigError, DataError
from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages, estimators, gae, paid_means
from guerdon.types import last_valid
from tables import cases, refuses

ESTIMATORS = tuple(estimators())
GROUPED = ("rloo", "turn_rloo", "grpo", "dr_grpo", "gdpo")
WHITENED = ("reinforce_pp", "gdpo")

# PRIME's worked case: two responses to one prompt, process rewards after batch_norm, the first is right
MASK = np.array([[1, 1, 1], [1, 1, 0]], dtype=np.bool_)
PROCESS = np.array([[0.5, -0.25, 0.75], [-1.0, 0.25, 99.0]])
ACC = np.array([1.0, 0.0])
ONE_GROUP = np.zeros(2, dtype=np.int64)


def combined(sources, mask, groups, *, whitened=True, **given):
    return estimate_advantages(sources, Steps(mask, groups_B=groups), whitened=whitened, **given)


def everywhere(failed_B, mask):
    """(B, T) failures of rows whose measurement failed as a whole."""
    return None if failed_B is None else np.repeat(failed_B[:, None], mask.shape[1], axis=1)


def outcome_source(scores, mask, *, failed_B=None, **changes):
    """One score per response, at its last valid token."""
    last = last_valid(mask)
    known = np.asarray(scores, dtype=np.float64) if failed_B is None else np.where(failed_B, 0.0, scores)
    failed = everywhere(failed_B, mask)
    return SourceRewards(np.where(last, known[:, None], 0.0), paid_B_T=last, failed_B_T=failed, **changes)


def prime_case(**changes):
    return {"verifier": outcome_source(ACC, MASK), "prime": replace(SourceRewards(PROCESS), **changes)}


@pytest.mark.parametrize(
    ("form", "returns", "advantages"),
    [
        (
            "prime_compat",
            [[3.125, 2.0833, 2.5417], [-2.4167, -0.4583, 0]],
            [[0.9196, 0.4741, 0.6701], [-1.4507, -0.6131, 0]],
        ),
        ("paper", [[3.125, 2.25, 2.125], [-2.4167, -1.0833, 0]], None),
    ],
)
def test_prime_by_hand(form, returns, advantages):
    result = combined(prime_case(), MASK, ONE_GROUP, estimator="rloo", form=form)
    np.testing.assert_allclose(result.returns, returns, atol=5e-5)
    if advantages is None:  # whitened by hand: mean and variance (n - 1) of the five returns
        valid = np.array([3.125, 2.25, 2.125, -2 - 5 / 12, -1 - 1 / 12])
        white = (valid - valid.sum() / 5) / np.sqrt(((valid - valid.mean()) ** 2).sum() / 4 + 1e-8)
        advantages = [white[:3], [*white[3:], 0]]
    np.testing.assert_allclose(result.advantages, advantages, atol=5e-5)
    assert result.advantages.dtype == np.float32
    assert result.silent_groups == {"verifier": 0, "prime": 0}


def test_the_two_forms_agree_on_outcomes_and_differ_on_dense_rewards():
    both = [
        combined(prime_case(), MASK, ONE_GROUP, estimator="rloo", form=form, whitened=False).per_source
        for form in ("paper", "prime_compat")
    ]
    np.testing.assert_allclose(both[0]["verifier"], [[1, 1, 1], [-1, -1, 0]])
    np.testing.assert_allclose(both[1]["verifier"], both[0]["verifier"])
    assert np.abs(both[0]["prime"] - both[1]["prime"]).max() > 0.1


def rows(source, mask):
    """Each response's rewards, paying positions and m, in plain Python: the oracle's own reading of a source."""
    pays = mask if source.paid_B_T is None else source.paid_B_T & mask
    failed = np.zeros(len(mask), bool) if source.failed_B_T is None else (source.failed_B_T & mask).any(axis=1)
    found = {}
    for i in range(len(mask)):
        places = [t for t in range(mask.shape[1]) if pays[i, t]]
        if places and not failed[i]:
            found[i] = (places, sum(float(source.rewards_B_T[i, t]) for t in places) / len(places))
    return found


def turns_oracle(source, mask, groups, found):
    """Each turn's return minus the mean over the other members of their mean over turns."""
    out = np.zeros(mask.shape)
    returns = {}
    for i, (places, _) in found.items():
        turns = [t for t in range(mask.shape[1]) if mask[i, t]]
        paid = {s: float(source.rewards_B_T[i, s]) for s in places}
        returns[i] = {t: sum(source.gamma ** (s - t) * r for s, r in paid.items() if s >= t) for t in turns}
    for i, own in returns.items():
        others = [sum(g.values()) / len(g) for j, g in returns.items() if j != i and groups[j] == groups[i]]
        for t, value in own.items():
            out[i, t] = value - sum(others) / len(others) if others else 0.0
    return out


def oracle(source, mask, groups, estimator, form="paper"):
    """One source's advantage by the formulas of the papers, loop by loop, right-padded masks only."""
    b, t_max = mask.shape
    found = rows(source, mask)
    out = np.zeros((b, t_max))
    if estimator == "turn_rloo":
        return turns_oracle(source, mask, groups, found)
    for i, (places, mine) in found.items():
        group = [m for j, (_, m) in found.items() if groups[j] == groups[i]]
        k = len(group)
        mean = sum(group) / k
        std = (sum((m - mean) ** 2 for m in group) / k) ** 0.5
        for t in range(t_max):
            if not mask[i, t]:
                continue
            total = 0.0
            for s in places:
                if s < t:
                    continue
                r = float(source.rewards_B_T[i, s])
                if estimator in GROUPED and k < 2:
                    r = 0.0
                elif estimator == "rloo" and form == "paper":
                    r -= (sum(group) - mine) / (k - 1)
                elif estimator == "rloo":
                    r = r * k / (k - 1) - sum(group) / (k - 1)
                elif estimator == "dr_grpo":
                    r -= mean
                elif estimator == "grpo":
                    r = (r - mean) / (std + 1e-6) if std > 1e-9 else 0.0
                elif estimator == "gdpo":
                    r = (r - mean) / (std * (k / (k - 1)) ** 0.5 + 1e-4) if std > 1e-9 else 0.0
                elif estimator == "remax":
                    r -= float(source.greedy_B[i])
                total += source.gamma ** (s - t) * r
            out[i, t] = total
    return out


@st.composite
def batches(draw, kinds=("dense", "outcome", "steps")):
    """Sources of several kinds over a right-padded batch with shuffled groups, failures and empty responses."""
    b, t = draw(st.integers(2, 7)), draw(st.integers(1, 6))
    lengths = np.array(draw(st.lists(st.integers(0, t), min_size=b, max_size=b)))
    mask = np.arange(t)[None, :] < lengths[:, None]
    groups = np.array([7, 7, *draw(st.lists(st.integers(5, 8), min_size=b - 2, max_size=b - 2))], dtype=np.int64)
    number = st.integers(-8, 8).map(lambda n: n / 4)
    flags = hnp.arrays(np.bool_, b)
    sources = {}
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3, unique=True)):
        shared = {
            "gamma": draw(st.sampled_from([1.0, 0.9, 0.0])),
            "weight": draw(st.sampled_from([1.0, 0.5, 3.0])),
            "greedy_B": draw(hnp.arrays(np.float64, b, elements=number)),
            "values_B_T": draw(hnp.arrays(np.float64, (b, t), elements=number)),
        }
        failed_B = draw(flags)
        if kind == "outcome":
            scores = draw(hnp.arrays(np.float64, b, elements=number))
            sources[kind] = outcome_source(scores, mask, failed_B=failed_B, **shared)
        else:
            pays = None if kind == "dense" else draw(hnp.arrays(np.bool_, (b, t)))
            rewards = draw(hnp.arrays(np.float64, (b, t), elements=number))
            failed = everywhere(failed_B, mask)
            sources[kind] = SourceRewards(rewards, paid_B_T=pays, failed_B_T=failed, **shared)
    return sources, mask, groups


def rows_of(source, index):
    """The same source with only these responses."""
    names = ("rewards_B_T", "paid_B_T", "failed_B_T", "greedy_B", "greedy_failed_B", "values_B_T")
    return replace(source, **{n: getattr(source, n)[index] for n in names if getattr(source, n) is not None})


@settings(deadline=None, max_examples=120)
@given(batches(), st.sampled_from([e for e in ESTIMATORS if e != "gae"]), st.sampled_from(["paper", "prime_compat"]))
def test_every_estimator_is_its_formula(batch, estimator, form):
    sources, mask, groups = batch
    result = combined(sources, mask, groups, estimator=estimator, form=form, whitened=estimator in WHITENED)
    total = np.zeros(mask.shape)
    for name, source in sources.items():
        expected = oracle(source, mask, groups, estimator, form)
        total += source.weight * expected
        np.testing.assert_allclose(result.per_source[name], expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(result.returns, total, rtol=1e-5, atol=1e-3)
    if estimator not in WHITENED:
        np.testing.assert_array_equal(result.advantages, result.returns)


@settings(deadline=None, max_examples=80)
@given(st.data(), batches(), st.sampled_from(ESTIMATORS))
def test_order_padding_and_numbers_of_failed_responses_never_matter(data, batch, estimator):
    sources, mask, groups = batch
    first = combined(sources, mask, groups, estimator=estimator, lam=0.9)
    hidden = {}
    for name, source in sources.items():
        pays = mask if source.paid_B_T is None else mask & source.paid_B_T
        absent = ~pays | source.failed_B_T
        hidden[name] = replace(
            source,
            rewards_B_T=np.where(absent, np.nan, source.rewards_B_T),
            values_B_T=np.where(mask & ~source.failed_B_T, source.values_B_T, np.nan),
            greedy_B=np.where(source.failed_B_T.any(axis=1), np.nan, source.greedy_B),
        )
    second = combined(hidden, mask, groups, estimator=estimator, lam=0.9)
    np.testing.assert_array_equal(first.advantages, second.advantages)
    assert np.isfinite(first.advantages).all()
    assert not first.advantages[~mask].any()
    order = np.array(data.draw(st.permutations(range(len(groups)))))
    renamed = -groups[order] * 3
    moved = combined(
        {name: rows_of(source, order) for name, source in sources.items()},
        mask[order],
        renamed,
        estimator=estimator,
        lam=0.9,
    )
    np.testing.assert_allclose(moved.advantages, first.advantages[order], rtol=1e-4, atol=1e-4)
    assert moved.silent_groups == first.silent_groups
    assert moved.flat_groups == first.flat_groups
    wider = np.pad(mask, ((0, 0), (0, 2)))
    padded = {}
    for name, source in sources.items():
        pays = None if source.paid_B_T is None else np.pad(source.paid_B_T, ((0, 0), (0, 2)), constant_values=True)
        padded[name] = replace(
            source,
            paid_B_T=pays,
            rewards_B_T=np.pad(source.rewards_B_T, ((0, 0), (0, 2)), constant_values=5),
            values_B_T=np.pad(source.values_B_T, ((0, 0), (0, 2)), constant_values=5),
            failed_B_T=np.pad(source.failed_B_T, ((0, 0), (0, 2))),
        )
    longer = combined(padded, wider, groups, estimator=estimator, lam=0.9)
    np.testing.assert_allclose(longer.advantages[:, :-2], first.advantages, rtol=1e-5, atol=1e-5)
    assert not longer.advantages[:, -2:].any()


@settings(deadline=None, max_examples=80)
@given(batches(), st.sampled_from(ESTIMATORS))
def test_a_failed_response_might_as_well_not_be_there(batch, estimator):
    sources, mask, groups = batch
    for name, source in sources.items():
        alone = {name: source}
        known = ~source.failed_B_T.any(axis=1)
        result = combined(alone, mask, groups, estimator=estimator, lam=0.9)
        assert not result.advantages[~known].any()
        assert not result.known[name][~known].any()
        if estimator in GROUPED and max(np.unique(groups[known], return_counts=True)[1], default=0) < 2:
            assert not result.advantages.any()
            continue
        without = combined({name: rows_of(source, known)}, mask[known], groups[known], estimator=estimator, lam=0.9)
        np.testing.assert_allclose(without.advantages, result.advantages[known], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(without.returns, result.returns[known], rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(batches(), st.sampled_from(ESTIMATORS))
def test_weights_weigh_and_only_their_ratio_survives_whitening(batch, estimator):
    sources, mask, groups = batch
    whitened = estimator in WHITENED
    base = combined(sources, mask, groups, estimator=estimator, whitened=whitened)
    for name, source in sources.items():
        changed = {**sources, name: replace(source, weight=source.weight + 1)}
        more = combined(changed, mask, groups, estimator=estimator, whitened=whitened)
        np.testing.assert_allclose(
            more.returns,
            base.returns + base.per_source[name],
            rtol=1e-5,
            atol=1e-3 * (1 + abs(base.returns).max()),
        )
    spread = base.returns[mask]
    if spread.size > 1 and spread.std() > 0.01:
        white = combined(sources, mask, groups, estimator=estimator)
        doubled = {name: replace(source, weight=2 * source.weight) for name, source in sources.items()}
        again = combined(doubled, mask, groups, estimator=estimator)
        np.testing.assert_allclose(white.advantages, again.advantages, rtol=1e-3, atol=1e-3)


@settings(deadline=None, max_examples=60)
@given(batches(), st.sampled_from(["rloo", "grpo", "dr_grpo"]), st.sampled_from([0.5, 3.0]), st.integers(-4, 4))
def test_baselines_take_away_a_shift_and_grpo_the_scale(batch, estimator, scale, shift):
    sources, mask, groups = batch
    for name, source in sources.items():
        moved = replace(source, rewards_B_T=source.rewards_B_T * scale + shift)
        first, second = (
            combined({name: s}, mask, groups, estimator=estimator, whitened=False) for s in (source, moved)
        )
        factor = 1.0 if estimator == "grpo" else scale
        np.testing.assert_allclose(
            second.returns, first.returns * factor, rtol=1e-3, atol=1e-3 * (1 + abs(first.returns).max())
        )


def test_grpo_with_process_rewards_by_hand():
    # m: 1/3 and -3/8; mean -1/48, std 17/48
    result = combined(prime_case(gamma=0.5), MASK, ONE_GROUP, estimator="grpo", whitened=False)
    mean, std = -1 / 48, 17 / 48 + 1e-6
    r = (np.array([0.5, -0.25, 0.75]) - mean) / std
    np.testing.assert_allclose(
        result.per_source["prime"][0], [r[0] + r[1] / 2 + r[2] / 4, r[1] + r[2] / 2, r[2]], rtol=1e-5
    )
    r = (np.array([-1, 0.25]) - mean) / std
    np.testing.assert_allclose(result.per_source["prime"][1], [r[0] + r[1] / 2, r[1], 0], rtol=1e-5)
    np.testing.assert_allclose(result.per_source["verifier"], [[1, 1, 1], [-1, -1, 0]], rtol=1e-5)
    np.testing.assert_allclose(result.returns, result.per_source["prime"] + result.per_source["verifier"], rtol=1e-5)


def test_grpo_does_not_blow_up_dense_rewards_of_equal_means():
    rewards = np.array([[1.0, -1.0], [-0.5, 0.5]])
    mask = np.ones((2, 2), dtype=np.bool_)
    result = combined({"prm": SourceRewards(rewards)}, mask, ONE_GROUP, estimator="grpo", whitened=False)
    assert not result.advantages.any()
    assert result.flat_groups == {"prm": 1}
    shaped = combined({"prm": SourceRewards(rewards)}, mask, ONE_GROUP, estimator="rloo", whitened=False)
    np.testing.assert_allclose(shaped.advantages, [[0, -1], [0, 0.5]])


def test_outcomes_are_discounted_by_the_distance_to_the_end():
    source = {"verifier": outcome_source(ACC, MASK, gamma=0.5)}
    result = combined(source, MASK, ONE_GROUP, estimator="reinforce", whitened=False)
    np.testing.assert_allclose(result.advantages, [[0.25, 0.5, 1], [0, 0, 0]])


def test_remax_takes_away_the_greedy_score_and_is_silent_without_it():
    mask, scores = np.ones((3, 2), dtype=np.bool_), np.array([1.0, 0.0, 1.0])
    greedy, lost = np.array([0.25, 0.25, np.nan]), np.array([False, False, True])
    source = outcome_source(scores, mask, greedy_B=greedy, greedy_failed_B=lost)
    result = combined({"v": source}, mask, np.array([0, 0, 1]), estimator="remax", whitened=False)
    np.testing.assert_allclose(result.advantages, [[0.75, 0.75], [-0.25, -0.25], [0, 0]])
    assert result.known["v"].any(axis=1).tolist() == [True, True, False]
    white = combined({"v": source}, mask, np.array([0, 0, 1]), estimator="remax")
    np.testing.assert_allclose(white.advantages[:2].mean(), 0, atol=1e-6)
    assert not white.advantages[2].any()


@settings(deadline=None, max_examples=40)
@given(batches(), st.sampled_from([0.0, 0.7, 1.0]))
def test_gae_of_responses_is_gae_that_terminates_at_the_last_token(batch, lam):
    """Without episode ends and next values, a row is one episode; with them the same function serves streams."""
    sources, mask, _ = batch
    last = last_valid(mask)
    for source in sources.values():
        following = np.pad(source.values_B_T[:, 1:], ((0, 0), (0, 1)))
        first = gae(source, Steps(mask), lam=lam)
        streams = Steps(mask, terminated_B_T=last, truncated_B_T=np.zeros_like(last))
        second = gae(replace(source, next_values_B_T=following), streams, lam=lam)
        np.testing.assert_array_equal(first.advantages_B_T, second.advantages_B_T)
        np.testing.assert_array_equal(first.targets_B_T, second.targets_B_T)


def test_a_source_that_fails_leaves_the_others_alone():
    failed = np.array([False, True])
    sources = prime_case(failed_B_T=everywhere(failed, MASK))
    result = combined(sources, MASK, ONE_GROUP, estimator="rloo", whitened=False)
    assert not result.per_source["prime"].any()
    assert result.silent_groups == {"verifier": 0, "prime": 1}
    np.testing.assert_allclose(result.advantages, [[1, 1, 1], [-1, -1, 0]])


def test_whitening_gives_no_advantage_to_responses_nobody_measured():
    mask = np.ones((4, 2), dtype=np.bool_)
    failed = np.array([False, False, False, True])
    source = outcome_source(np.array([1.0, 1.0, 0.0, 0.0]), mask, failed_B=failed)
    result = combined({"v": source}, mask, np.zeros(4, dtype=np.int64), estimator="reinforce_pp")
    assert not result.advantages[3].any()
    valid = result.advantages[:3]
    assert valid.mean() == pytest.approx(0, abs=1e-6)
    assert valid.var(ddof=1) == pytest.approx(1, abs=1e-5)


def test_a_group_of_one_stays_out_of_the_whitening():
    mask = np.ones((5, 1), dtype=np.bool_)
    source = outcome_source(
        np.array([1.0, 1.0, 0.0, 1.0, 0.0]), mask, failed_B=np.array([0, 0, 0, 0, 1], dtype=np.bool_)
    )
    result = combined({"v": source}, mask, np.array([0, 0, 0, 1, 1]), estimator="rloo")
    assert result.known["v"].any(axis=1).tolist() == [True, True, True, False, False]
    assert result.silent_groups == {"v": 1}
    np.testing.assert_allclose(result.advantages[:, 0], np.array([1, 1, -2, 0, 0]) / 3**0.5, rtol=1e-5)


def test_a_source_of_weight_zero_is_measured_and_decides_nothing():
    mask = np.ones((3, 1), dtype=np.bool_)
    failed = np.array([False, False, True])
    ghost = SourceRewards(np.array([[1.0], [2.0], [3.0]]), weight=0.0)
    source = outcome_source(np.array([1.0, 0.0, 0.0]), mask, failed_B=failed)
    groups = np.zeros(3, dtype=np.int64)
    alone, both = (combined(s, mask, groups, estimator="rloo") for s in ({"v": source}, {"v": source, "g": ghost}))
    np.testing.assert_array_equal(alone.advantages, both.advantages)
    np.testing.assert_allclose(both.per_source["g"], [[-1.5], [0], [1.5]])


def test_what_cannot_mean_anything_is_refused():
    apart = np.array([0, 1])
    with refuses("data.n_samples", "n_samples must be at least 2"):
        combined(prime_case(), MASK, apart, estimator="rloo")
    combined(prime_case(), MASK, apart, estimator="reinforce")
    with refuses("algorithm.adv_estimator", "whitening"):
        combined(prime_case(), MASK, ONE_GROUP, estimator="reinforce_pp", whitened=False)
    for estimator, missing in (("gae", "values_B_T"), ("remax", "greedy_B")):
        with pytest.raises(ConfigError, match=f"{missing} of the reward source 'verifier'"):
            combined(prime_case(), MASK, ONE_GROUP, estimator=estimator)
    with pytest.raises(ConfigError, match="at least one source"):
        combined({}, MASK, ONE_GROUP, estimator="rloo")
    broken = np.where(MASK, PROCESS, 0.0)
    broken[1, 0] = np.inf
    with pytest.raises(DataError, match="1 rows have a reward that is not finite"):
        combined({"prime": SourceRewards(broken)}, MASK, ONE_GROUP, estimator="rloo")
    for wrong in (SourceRewards(PROCESS[:, :2]), SourceRewards(PROCESS, failed_B_T=np.zeros((3, 3), dtype=np.bool_))):
        with pytest.raises(ValueError, match="has shape"):
            combined({"prime": wrong}, MASK, ONE_GROUP, estimator="rloo")
    with pytest.raises(ValueError, match="groups_B has shape"):
        combined(prime_case(), MASK, np.zeros(3, dtype=np.int64), estimator="rloo")


@cases("estimator", ESTIMATORS)
@cases("shape", [(2, 3), (2, 0), (0, 3)])
def test_nothing_in_nothing_out(estimator, shape):
    nothing = np.zeros(shape, dtype=np.bool_)
    source = outcome_source(
        np.ones(shape[0]), nothing, greedy_B=np.ones(shape[0]), values_B_T=np.ones(shape)
    )  # empty responses only
    result = combined({"v": source}, nothing, np.zeros(shape[0], dtype=np.int64), estimator=estimator)
    assert result.advantages.shape == shape
    assert not result.advantages.any()
    assert not result.known["v"].any()


def test_paid_means_by_hand():
    np.testing.assert_allclose(paid_means(PROCESS, MASK), [1 / 3, -0.375])
