"""Drift: PSI and the Kolmogorov-Smirnov distance against hand-made numbers and scipy; the test's size and power."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from guerdon.auditing import drift
from guerdon.auditing.drift import drift_between, ks, permutation_p, psi, with_drift
from guerdon.auditing.finding import Audit, Finding
from guerdon.auditing.rows import Rows, Texts

VALUES = st.lists(st.integers(0, 6), min_size=1, max_size=30)


def rows(reward, *, prompt=None, length=None, responses=None):
    n = len(reward)
    texts = None if responses is None else Texts(np.arange(n), ["p"] * n, responses)
    return Rows(
        "test", ("log.jsonl",), np.zeros(n, np.int64), np.arange(n), np.asarray(reward, float), prompt_N=prompt,
        length_N=length, texts=texts,
    )  # fmt: skip


def test_psi_of_shares_worked_out_by_hand():
    reference = np.repeat(np.arange(10.0), 10)
    moved = np.repeat(np.arange(10.0), [20, 0, *[10] * 8])  # a tenth of the rows moved from the second bin to the first
    # an empty bin counts as half a row: shares 20/100.5, 0.5/100.5, and eight times 10/100.5
    q = np.array([20, 0.5, *[10] * 8]) / 100.5
    p = np.full(10, 0.1)
    assert psi(moved, reference) == pytest.approx(float(np.sum((q - p) * np.log(q / p))))
    assert psi(reference, reference) == 0


def test_psi_of_zeros_and_ones():
    assert psi(np.repeat([0.0, 1.0], [30, 70]), np.repeat([0.0, 1.0], [50, 50])) == pytest.approx(
        (0.3 - 0.5) * np.log(0.3 / 0.5) + (0.7 - 0.5) * np.log(0.7 / 0.5)
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of scipy's own p-value
@given(VALUES, VALUES)
def test_the_distance_is_scipys(a, b):
    a, b = np.array(a, float), np.array(b, float)
    assert ks(a, b) == pytest.approx(stats.ks_2samp(a, b, method="asymp").statistic)
    assert 0 < permutation_p(a, np.arange(len(a)), b, np.arange(len(b)), np.random.default_rng(0)) <= 1


@pytest.mark.slow
def test_groups_are_exchanged_whole():
    """Twenty prompts with equal rewards of 50 responses each are 40 observations, not 2,000."""
    random, small = np.random.default_rng(0), [0, 0]
    group = np.repeat(np.arange(20), 50)
    for _ in range(60):
        a, b = (np.repeat(random.normal(size=20), 50) for _ in range(2))
        small[0] += permutation_p(a, group, b, group, random) < 0.05
        small[1] += permutation_p(a, np.arange(1000), b, np.arange(1000), random) < 0.05
    assert small[0] <= 9  # 3 expected
    assert small[1] >= 40


def test_scores_and_inputs_that_drift_are_findings_and_others_are_clean():
    random = np.random.default_rng(2)
    reference = rows(random.normal(size=800), length=random.normal(100, 10, 800))
    higher = rows(random.normal(1, 1, 600), length=random.normal(100, 10, 600))
    drift = drift_between(higher, reference)
    assert drift[0].what == "reward"
    assert drift[0].psi > 0.25
    assert drift[0].p <= 2 / 500  # the smallest, times two quantities
    audit = with_drift(
        Audit((Finding("x", "error", "t", 1, (0, 2), "u", None, (), (), "r", 1, 1),)), drift, "eval.jsonl"
    )
    assert [(f.name, f.severity) for f in audit.findings] == [("x", "error"), ("score_drift", "warning")]
    assert audit.clean == {"input_drift": "length of the response: distributed as in eval.jsonl"}
    longer = rows(random.normal(size=600), length=random.normal(130, 10, 600))
    audit = with_drift(Audit(), drift_between(longer, reference), "eval.jsonl")
    assert [f.name for f in audit.findings] == ["input_drift"]
    assert "score_drift" in audit.clean


@pytest.mark.slow
def test_the_same_distribution_is_rarely_called_a_drift():
    random, found = np.random.default_rng(5), 0
    for _ in range(40):
        a, b = (rows(random.normal(size=200), length=random.exponential(size=200)) for _ in range(2))
        found += bool(with_drift(Audit(), drift_between(a, b), "b").findings)
    assert found <= 5  # 2 expected of 40 at most


def test_a_few_rows_do_not_show_that_distributions_are_equal():
    drift = drift_between(rows([0.1, 0.5, 0.9]), rows(np.random.default_rng(0).random(200)))
    audit = with_drift(Audit(), drift, "eval.jsonl")
    assert audit.undecided == {"score_drift": "needs 100 rows of both; the log has 3, eval.jsonl 200"}
    assert not audit.clean


def test_of_many_rows_a_sample_is_compared_and_drawn_by_the_seed(monkeypatch):
    monkeypatch.setattr(drift, "MOST_ROWS", 50)
    one, other = rows(np.arange(200.0)), rows(np.arange(200.0) + 300)
    found = drift_between(one, other)[0]
    assert (found.n_here, found.n_there) == (50, 50)
    assert (found.ks, found.here) == (1.0, drift_between(one, other, seed=0)[0].here)
    assert found.here != drift_between(one, other, seed=1)[0].here


def test_texts_give_more_quantities():
    drift = drift_between(rows([0, 1], responses=["a b", "ü\n1"]), rows([0, 1, 1], responses=["a", "b", "c"]))
    by_name = {one.what: one for one in drift}
    assert by_name["words of the response"].here == 2.0
    assert by_name["lines of the response"].here == 1.5
    assert by_name["share of digits in the response"].here == pytest.approx(1 / 6)
    assert by_name["share of characters beyond ASCII in the response"].here == pytest.approx(1 / 6)
    assert by_name["reward"].n_there == 3


def test_lengths_are_compared_in_characters_where_there_are_texts():
    """The reference counts tokens too; the sample of a server has only characters."""
    reference = rows([1, 2, 3], responses=["abcd", "abcd", "abcd"], length=np.array([1.0, 1, 1]))
    served = rows([1, 2, 3], length=np.array([4.0, 4, 4]))
    by_name = {one.what: one for one in drift_between(served, reference)}
    assert by_name["length of the response"].there == 4
    assert by_name["length of the response"].ks == 0


def test_without_shared_values_there_is_nothing_to_compare():
    assert drift_between(rows([np.nan, np.nan]), rows([1.0, 2.0])) == ()
    assert with_drift(Audit(), (), "b") == Audit()
