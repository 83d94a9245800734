"""Two rewards of the same rows: figures worked out by hand, against scipy, and against the project's estimators."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from test_score_logs import DATA, Length

from guerdon.auditing.checks import audit
from guerdon.auditing.logs import read_log
from guerdon.auditing.rows import Rows, Texts
from guerdon.auditing.second import (
    SecondReward,
    advantage_changes,
    agreement,
    group_ranks,
    match,
    pair_orders,
    read_second,
    winners,
    with_second,
)
from guerdon.errors import DataError
from guerdon.evaluation.scoring.score_logs import score_path
from tables import refuses


def rows(reward, *, group=None, texts=True, rewards=None, step=None, length=None):
    n = len(reward)
    said = Texts(np.arange(n), [f"p{k // 2}" for k in range(n)], [f"r{k}" for k in range(n)]) if texts else None
    at = np.arange(n)
    return Rows(
        "test", ("log.jsonl",), np.zeros(n, np.int64), at + 1, np.asarray(reward, float), rewards=rewards or {},
        group_N=None if group is None else np.asarray(group), texts=said, step_N=step, length_N=length,
    )  # fmt: skip


def test_figures_of_a_case_worked_out_by_hand():
    log = rows([1, 2, 3, 5, 5, 1, 0, 0], group=[0, 0, 0, 1, 1, 1, 2, 2])
    found = agreement(log, np.array([1.0, 3.0, 2.0, 4.0, 0.0, 0.0, 7.0, 7.0]))
    # pairs that the first orders: (1,2) same, (1,3) same, (2,3) opposite; (5a,1) same, (5b,1) equal for the second
    assert found["pairs of a group in the same order"].value == pytest.approx(3 / 5)
    assert found["pairs of a group in the opposite order"].value == pytest.approx(1 / 5)
    assert found["pairs of a group that are equal for the second"].value == pytest.approx(1 / 5)
    assert found["pairs of a group in the same order"].n == 5
    # ranks: 1,2,3 to 1,3,2; 2.5,2.5,1 to 3,1.5,1.5; 1.5,1.5 to 1.5,1.5
    assert found["change of a response's rank in its group"].value == pytest.approx((0 + 1 + 1 + 0.5 + 1 + 0.5) / 8)
    # winners: group 0 from the third to the second; group 1 keeps one of its two; group 2 has no winner
    assert found["groups with another winner"].value == pytest.approx(1 / 2)
    assert found["groups with another winner"].n == 2


def test_a_reward_agrees_with_itself_and_not_with_its_opposite():
    reward = np.random.default_rng(0).random(400)
    log = rows(reward, group=np.arange(400) // 4)
    same, opposite = agreement(log, 3 * reward + 1), agreement(log, -reward)
    assert same["correlation"].value == pytest.approx(1)
    assert same["groups with another winner"].value == 0
    assert same["change of a response's rank in its group"].value == 0
    assert opposite["rank correlation"].value == pytest.approx(-1)
    assert opposite["groups with another winner"].value == 1
    assert opposite["pairs of a group in the opposite order"].value == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), min_size=3, max_size=40))
def test_correlations_and_ranks_are_those_of_scipy(table):
    first, second, group = (np.array(column, float) for column in zip(*table, strict=True))
    group = np.unique(group, return_inverse=True)[1]
    found = agreement(rows(first, group=group), second)
    if len(set(first)) > 1 and len(set(second)) > 1:
        assert found["correlation"].value == pytest.approx(stats.pearsonr(first, second)[0], abs=1e-9)
        assert found["rank correlation"].value == pytest.approx(stats.spearmanr(first, second)[0], abs=1e-9)
    else:
        assert found["correlation"].value is None
    ranks = group_ranks(first, group)
    for g in np.unique(group):
        assert ranks[group == g].tolist() == stats.rankdata(first[group == g]).tolist()
    counts = pair_orders(first, second, group).sum(axis=0)
    pairs = [(a, b) for a in range(len(first)) for b in range(a) if group[a] == group[b] and first[a] != first[b]]
    signs = [np.sign((first[a] - first[b]) * (second[a] - second[b])) for a, b in pairs]
    assert counts.tolist() == [len(pairs), signs.count(1), signs.count(-1), signs.count(0)]


@given(st.permutations(range(12)), st.floats(-5, 5), st.floats(0.1, 9))
def test_order_of_rows_shift_and_scale_change_nothing(order, shift, scale):
    random = np.random.default_rng(3)
    first, second, group = random.integers(0, 4, 12).astype(float), random.random(12), np.arange(12) // 3
    one = agreement(rows(first, group=group), second)
    order = np.array(order)
    other = agreement(rows(first[order] * scale + shift, group=group[order]), second[order])
    for name, figure in one.items():
        assert other[name].value == pytest.approx(figure.value, abs=1e-9), name
        assert other[name].n == figure.n


@pytest.mark.slow
def test_intervals_cover_the_truth_as_often_as_they_say():
    """Groups share a shift, so rows of a group are not independent: drawing rows again would be too narrow."""
    random, inside = np.random.default_rng(1), 0
    for repeat in range(120):
        group = np.arange(600) // 6
        shift = np.repeat(random.normal(size=100), 6)
        first = shift + 0.2 * random.normal(size=600)
        second = 0.6 * shift + 0.8 * np.repeat(random.normal(size=100), 6)
        truth = 0.6 / np.sqrt(1.04)
        figure = agreement(rows(first, group=group, texts=False), second, seed=repeat)["correlation"]
        inside += figure.low <= truth <= figure.high
    assert 103 <= inside <= 119  # 114 of 120, within four standard errors; drawing rows again: 75


def test_advantages_are_those_of_the_estimators_formulas():
    first, second = np.array([1.0, 0, 0, 1, 1, 0]), np.array([0.9, 0.4, 0.1, 0.2, 0.8, 0.3])
    log = rows(first, group=[0, 0, 0, 1, 1, 1])
    found = advantage_changes(log, second)
    assert {"grpo", "dr_grpo", "rloo", "gdpo", "reinforce", "reinforce_pp"} == set(found)

    def centred(values):
        return np.concatenate([part - part.mean() for part in np.split(values, 2)])

    def grpo(values):
        return np.concatenate([(part - part.mean()) / (part.std() + 1e-6) for part in np.split(values, 2)])

    for name, formula in (
        ("dr_grpo", centred),
        ("rloo", lambda v: 1.5 * centred(v)),
        ("grpo", grpo),
        ("reinforce", lambda v: v),
    ):
        a, b = formula(first), formula(second)
        assert found[name].correlation == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-5), name
    assert found["dr_grpo"].flipped == pytest.approx(1 / 6)  # the fourth response: above its group's mean, then below
    assert found["reinforce"].flipped == 0


def test_whitening_is_within_a_step():
    first = np.array([0.0, 1, 0, 1, 10, 11, 10, 12])
    steps = np.repeat([1, 2], 4)
    found = advantage_changes(rows(first, step=steps), first[::-1].copy())

    def whitened(values):
        return np.concatenate([(part - part.mean()) / part.std(ddof=1) for part in np.split(values, 2)])

    wanted = np.corrcoef(whitened(first), whitened(first[::-1]))[0, 1]
    assert found["reinforce_pp"].correlation == pytest.approx(wanted, abs=1e-5)
    assert "grpo" not in found  # without groups


def test_rows_without_a_reward_are_left_out():
    first = np.array([1.0, np.nan, 0.0, 1.0])
    log = rows(first, group=[0, 0, 0, 0])
    found = agreement(log, np.array([1.0, 5.0, 0.0, np.nan]))
    assert found["correlation"].n == 2
    assert advantage_changes(log, np.array([1.0, 5.0, 0.0, np.nan]))["grpo"].n == 2


def test_winners_need_a_spread():
    decided, changed = winners(np.array([1.0, 1, 0, 1]), np.array([0.0, 1, 1, 0]), np.array([0, 0, 1, 1]))
    assert (decided.tolist(), changed.tolist()) == ([False, True], [False, True])


# ---- matching


def write(path, table):
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    return path


TABLE = [{"prompt": f"p{k // 2}", "response": f"r{k}", "reward": k / 10} for k in range(10)]


def log_of(table, tmp_path):
    return read_log(write(tmp_path / "log.jsonl", table))


def test_matched_by_row_where_the_texts_are_the_same(tmp_path):
    scored = [{**row, "reward": 1 - row["reward"]} for row in TABLE]
    found = read_second(log_of(TABLE, tmp_path), write(tmp_path / "scored.jsonl", scored))
    assert found.matched == "by row number"
    assert found.reward_N.tolist() == [1 - k / 10 for k in range(10)]
    assert found.figures["correlation"].value == pytest.approx(-1)


def test_matched_by_text_where_the_order_differs_or_rows_are_missing(tmp_path):
    scored = [{**row, "reward": 2 * row["reward"]} for row in reversed(TABLE[2:])] + [
        {"prompt": "x", "response": "y", "reward": 1}
    ]
    found = read_second(log_of(TABLE, tmp_path), write(tmp_path / "scored.jsonl", scored))
    assert found.matched == "by prompt and response: 8 of 10 rows with texts"
    assert np.isnan(found.reward_N[:2]).all()
    assert found.reward_N[2:].tolist() == pytest.approx([k / 5 for k in range(2, 10)])


def test_equal_responses_to_a_prompt_are_matched_one_to_one(tmp_path):
    twice = [{"prompt": "p", "response": "same", "reward": k} for k in range(3)]
    scored = [{**twice[0], "reward": 5}, {**twice[0], "reward": 6}]
    found = read_second(log_of(twice, tmp_path), write(tmp_path / "s.jsonl", scored))
    assert found.reward_N[:2].tolist() == [5, 6]
    assert np.isnan(found.reward_N[2])


def test_a_new_column_of_the_same_rows_is_the_second_reward(tmp_path):
    scored = [{**row, "judge_score": -row["reward"]} for row in TABLE]
    found = read_second(log_of(TABLE, tmp_path), write(tmp_path / "scored.jsonl", scored))
    assert found.name == "judge_score of scored.jsonl"
    assert found.figures["correlation"].value == pytest.approx(-1)


@pytest.mark.parametrize("log", ["trl/plain", "trl/chat", "verl/rollout", "prime", "inspect/eval"])
def test_what_guerdon_score_adds_to_a_log_is_the_second_reward(tmp_path, log):
    score_path(DATA / log, Length(), tmp_path / "scored", name="m")
    rows = read_log(DATA / log)
    found = read_second(rows, tmp_path / "scored")
    assert (found.name, found.matched) == ("guerdon_reward of scored", "by row number")
    np.testing.assert_array_equal(found.reward_N, read_log(tmp_path / "scored").rewards["guerdon_reward"])


def test_the_same_file_or_two_new_columns_are_refused(tmp_path):
    log = log_of(TABLE, tmp_path)
    with pytest.raises(DataError, match=r"same rewards.*none; pass --columns reward=NAME") as refused:
        read_second(log, tmp_path / "log.jsonl")
    assert refused.value.field == "reward"
    rescored = write(tmp_path / "r.jsonl", [{**row, "a_score": 1, "guerdon_reward": 2} for row in TABLE])
    assert read_second(log, rescored).name == "guerdon_reward of r.jsonl"
    both = write(tmp_path / "both.jsonl", [{**row, "a_score": 1, "b_score": 2} for row in TABLE])
    with refuses("reward"):
        read_second(log, both)
    none = write(tmp_path / "none.jsonl", [{**row, "a_score": None if k else 1} for k, row in enumerate(TABLE)])
    with refuses("a_score", "none of its rewards in the column a_score is a number"):
        read_second(log_of(TABLE[1:], tmp_path), none)


def test_a_second_reward_that_no_longer_rises_is_a_finding():
    random, step = np.random.default_rng(0), np.arange(400) // 40
    good = random.standard_normal(400)
    log = rows(good + 0.6 * step, step=step)
    second = SecondReward("another", "", good + 0.1 * random.standard_normal(400))
    assert [one.name for one in audit(with_second(log, second)).findings] == ["truth"]
    assert audit(log).findings == ()


def test_rows_that_differ_are_compared_as_distributions(tmp_path):
    other = [{"prompt": f"q{k}", "response": f"other {k}", "reward": k % 2} for k in range(30)]
    found = read_second(log_of(TABLE, tmp_path), write(tmp_path / "other.jsonl", other))
    assert found.reward_N is None
    assert {"reward", "length of the response"} <= {one.what for one in found.drift}


def test_without_texts_lengths_confirm_the_rows():
    one = rows([1, 2, 3], texts=False, length=np.array([5.0, 6, 7]))
    assert match(one, rows([3, 2, 1], texts=False, length=np.array([5.0, 6, 7])))[1] == "by row number"
    assert match(one, rows([3, 2, 1], texts=False, length=np.array([7.0, 6, 5])))[0] is None
    assert "no column that could confirm" in match(one, rows([3, 2, 1], texts=False))[1]
