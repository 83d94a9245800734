"""Labels of people: reading rows, figures by hand, scales, and coverage where prompts have several responses.

Columns as in cimo-labs/cje, README.md: prompt_id, judge_score, oracle_label (absent or null: not labelled).
"""

import json
import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.labelled import agreement, corrected_mean, label_figures, label_lines, read_labelled
from guerdon.types import Failure
from tables import refuses

nan = math.nan


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def figures(values, labels, prompts=None, **given):
    prompts = [str(k) for k in range(len(values))] if prompts is None else prompts
    return label_figures(values, np.array(labels, float), prompts, **{"reps": 100, "seed": 0, **given})


def test_rows_with_cjes_columns(tmp_path):
    rows = [
        {"prompt_id": "a", "judge_score": 0.5, "oracle_label": True},
        {"prompt_id": "a", "judge_score": 1, "oracle_label": None},
        {"prompt_id": "b", "judge_score": None},
    ]
    found = read_labelled(written(tmp_path / "rows.jsonl", rows))
    assert found.judged() == [0.5, 1.0, Failure("no_score", "judge_score is null")]
    np.testing.assert_array_equal(found.labels_N, [1, nan, nan])
    assert list(found.prompts) == ["a", "a", "b"]
    (tmp_path / "rows.csv").write_text("prompt_id,judge_score,oracle_label\na,0.5,True\na,1,\nb,,0\n")
    found = read_labelled(str(tmp_path / "rows.csv"))
    assert found.judged()[:2] == [0.5, 1.0]
    np.testing.assert_array_equal(found.labels_N, [1, nan, 0])


def test_labels_of_other_layouts(tmp_path):
    kto = [{"prompt": "p", "completion": "a", "label": True}, {"prompt": "p", "completion": "b", "label": False}]
    found = read_labelled(written(tmp_path / "kto.jsonl", kto))
    np.testing.assert_array_equal(found.labels_N, [1, 0])
    assert [one.text for one in found.responses()] == ["a", "b"]
    assert list(found.prompts) == ["p", "p"]
    rated = [{"prompt": "p", "response": "a", "helpfulness": 3, "verbosity": 1}]
    np.testing.assert_array_equal(read_labelled(written(tmp_path / "rated.jsonl", rated)).labels_N, [3])
    chat = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "oracle_label": 1}]
    assert read_labelled(written(tmp_path / "chat.jsonl", chat)).responses()[0].text == "a"


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    ("rows", "field", "said"),
    [
        ([{"judge_score": 1}], "label", "no row has a label of a person"),
        (
            [{"judge_score": 1, "oracle_label": "high"}],
            "oracle_label",
            r"oracle_label must be a finite number or null, this is 'high'",
        ),
        ([{"judge_score": 1, "oracle_label": math.inf}], "oracle_label", None),
        ([{"judge_score": 1, "oracle_label": 10**400}], "oracle_label", None),
        ([{"prompt": "p", "chosen": "a", "rejected": "b"}], "label", r"evaluate\.pairs"),
        ([3], None, "no row can be read: 1 x a row that is no map"),
    ],
)
def test_rows_that_cannot_be_read_are_one_line(tmp_path, rows, field, said):
    with pytest.raises(DataError, match=said) as refused:
        read_labelled(written(tmp_path / "rows.jsonl", rows))
    assert refused.value.field == field


@pytest.mark.hostile("files")
def test_scores_that_cannot_be_read_are_one_line(tmp_path):
    rows = read_labelled(written(tmp_path / "rows.jsonl", [{"prompt": "p", "oracle_label": 1}]))
    with pytest.raises(DataError, match=r"no row has a judge_score; name the model") as refused:
        rows.judged()
    assert refused.value.field == "judge_score"
    with pytest.raises(DataError, match="nothing to score"):
        rows.responses()
    rows = read_labelled(written(tmp_path / "more.jsonl", [{"oracle_label": 1, "judge_score": [1]}]))
    with refuses("judge_score"):
        rows.judged()


def test_decisions_against_labels_by_hand():
    """Scores above 0.5 count as 1: decisions 1 1 0 0 against labels 1 0 0 0."""
    values = [0.9, 0.6, 0.5, 0.1, 0.3, 0.7, Failure("late")]
    found = figures(values, [1, 0, 0, 0, nan, nan, 1])
    assert found["threshold"] == 0.5
    assert (found["rows"], found["labelled"], found["failures"]) == (7, 4, {"late": 1})
    assert found["agreement"]["percent"]["estimate"] == 0.75
    assert found["agreement"]["kappa"]["estimate"] == pytest.approx((0.75 - 0.5) / 0.5)  # 1/2 1/4 + 1/2 3/4 by chance
    assert found["metrics"]["auroc"]["estimate"] == 1.0
    assert found["metrics"]["brier"]["estimate"] == pytest.approx((0.1**2 + 0.6**2 + 0.5**2 + 0.1**2) / 4)
    tuning = (0.375 * 1 / 4) / ((1 + 4 / 2) * np.var([0.9, 0.6, 0.5, 0.1, 0.3, 0.7], ddof=1))  # cov / ((1 + n / N) var)
    assert found["mean"]["tuning"] == pytest.approx(tuning)
    assert found["mean"]["corrected"]["estimate"] == pytest.approx(0.25 + tuning * (0.5 - 2.1 / 4))
    assert f"corrected mean: the scores count {tuning:.3f} times" in label_lines(found)
    assert found["mean"]["labelled"]["estimate"] == 0.25
    assert figures(values, [1, 0, 0, 0, nan, nan, 1], threshold=0.65)["agreement"]["percent"]["estimate"] == 1
    assert "failed measurements: late x 1" in label_lines(found)


def test_numbers_on_the_same_scale_and_on_another():
    labels = [1, 2, 3, 4, 5, 3, nan, nan]
    found = figures([1, 2, 3, 4, 4, 2, 5, 1], labels)
    assert found["agreement"]["percent"]["estimate"] == pytest.approx(4 / 6)
    wanted = agreement([[1, 2, 3, 4, 4, 2], labels[:6]], level="interval", reps=10, seed=0).alpha.estimate
    assert found["agreement"]["alpha"]["estimate"] == wanted
    assert found["metrics"]["spearman"]["estimate"] == pytest.approx(spearmanr([1, 2, 3, 4, 4, 2], labels[:6])[0])
    between = figures([1.5, 2, 3, 4, 4, 2, 5, 1], labels)
    assert set(between["agreement"]) == {"alpha"}
    logits = figures([-7, -2, 0.5, 3, 9, 1, 2, 2], labels)
    assert logits["agreement"] == {}
    assert logits["metrics"]["spearman"]["estimate"] == pytest.approx(0.9856, abs=1e-3)
    assert any("another scale" in line for line in label_lines(logits))
    raw = figures([-7, -2, 9, 3], [0, 0, 1, 1])
    assert (raw["threshold"], raw["agreement"], raw["metrics"]["auroc"]["estimate"]) == (None, {}, 1.0)
    assert "brier" not in raw["metrics"]


def on(low, high, n=40, seed=0, whole=True):
    """Numbers on a scale, both ends among them."""
    found = np.random.default_rng(seed).uniform(low, high, n)
    found = np.round(found) if whole else found
    found[:2] = low, high
    return found


@pytest.mark.parametrize("ends", [(0, 4), (1, 5), (1, 10), (0, 100), (-3, 3), (0.0, 1.0)])
def test_a_perfect_judge_agrees_where_both_scales_are_known(ends):
    low, high = ends
    labels = on(low, high, whole=ends != (0.0, 1.0))
    values = ((labels - low) / (high - low)).tolist()
    known = figures(values, labels, scales=((0.0, 1.0), ends))
    assert known["agreement"]["alpha"]["estimate"] == pytest.approx(1)
    assert known["metrics"]["spearman"]["estimate"] == pytest.approx(1)
    assert known["no_agreement"] is None
    unknown = figures(values, labels)
    if ends == (0.0, 1.0):
        assert unknown["agreement"] == known["agreement"]
        return
    assert unknown["agreement"] == {}
    assert f"the labels ({low} to {high}) are on no known scale" in unknown["no_agreement"]
    assert unknown["metrics"]["spearman"] == known["metrics"]["spearman"]
    assert f"no agreement: {unknown['no_agreement']}" in label_lines(unknown)
    back = figures((1 - np.array(values)).tolist(), labels, scales=((0.0, 1.0), ends))
    assert back["agreement"]["alpha"]["estimate"] < 0  # a judge that is wrong stays wrong


@pytest.mark.parametrize("ends", [(0, 1), (1, 2), (-1, 1), (0, 4), (2, 7)])
def test_labels_of_two_values_are_decisions_whatever_they_are_called(ends):
    good = np.random.default_rng(5).random(60) < 0.4
    labels = np.where(good, ends[1], ends[0]).astype(float)
    values = np.where(good, 0.8, 0.3)
    values[:6] = 1 - values[:6]
    found, usual = figures(values.tolist(), labels), figures(values.tolist(), good)
    assert found["agreement"] == usual["agreement"]
    assert found["metrics"] == usual["metrics"]
    assert found["threshold"] == 0.5
    assert found["scales"] == {"scores": (0.0, 1.0), "labels": ends}
    assert usual["agreement"]["percent"]["estimate"] == pytest.approx(0.9)
    same = figures(labels.tolist(), labels)  # a judge in the coding of the labels
    assert same["agreement"]["kappa"]["estimate"] == 1
    assert same["threshold"] == sum(ends) / 2
    seven = figures((14 * values - 7).tolist(), labels, scales=((-7.0, 7.0), None))
    assert seven["agreement"] == usual["agreement"]
    free = figures((14 * values - 7).tolist(), labels)
    assert (free["agreement"], free["metrics"]["auroc"]) == ({}, usual["metrics"]["auroc"])
    assert "so that none is a decision" in free["no_agreement"]
    assert figures(values.tolist(), labels, scales=(None, (-9.0, 9.0)))["threshold"] is None  # two of many numbers


def test_equal_codings_need_no_word_and_one_known_side_tells_the_other():
    labels, judge = on(1, 5, seed=1), on(1, 5, seed=2)
    plain = figures(judge.tolist(), labels)
    assert set(plain["agreement"]) == {"percent", "kappa", "alpha"}
    for scales in ((None, (1.0, 5.0)), ((1.0, 5.0), None), ((1.0, 5.0), (1.0, 5.0))):
        assert figures(judge.tolist(), labels, scales=scales)["agreement"] == plain["agreement"]
    short = np.where(judge == 5, 4, judge)  # never gives the best mark
    assert figures(short.tolist(), labels)["agreement"] == {}
    assert set(figures(short.tolist(), labels, scales=((1.0, 5.0), (1.0, 5.0)))["agreement"]) == {
        "percent", "kappa", "alpha",
    }  # fmt: skip
    other = figures((2 * judge).tolist(), labels, scales=((1.0, 10.0), (1.0, 5.0)))
    mapped = agreement([(2 * judge - 1) / 9, (labels - 1) / 4], level="interval", reps=10, seed=0)
    assert other["agreement"]["alpha"]["estimate"] == pytest.approx(mapped.alpha.estimate)
    beyond = figures((2 * judge).tolist(), labels, scales=((0.0, 1.0), (1.0, 5.0)))  # not of the scale that is said
    assert "the scores (2 to 10) are on no known scale" in beyond["no_agreement"]


def test_scales_are_said_with_the_columns_or_known_of_the_data(tmp_path):
    rows = [{"prompt_id": k, "judge_score": k / 4, "oracle_label": k + 1} for k in (0, 1, 2, 3, 4, 2)]
    path = written(tmp_path / "rows.jsonl", rows)
    found = read_labelled(path, columns="label=oracle_label:1..5")
    assert found.scales == (None, (1.0, 5.0))
    section = label_figures(found.judged(), found.labels_N, found.prompts, scales=found.scales, reps=50, seed=0)
    assert section["agreement"]["alpha"]["estimate"] == pytest.approx(1)
    both = read_labelled(path, columns="label=oracle_label:1..5,reward=judge_score:0..2")
    assert both.scales == ((0.0, 2.0), (1.0, 5.0))
    names = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
    rated = [{"prompt": "p", "response": str(k), **dict.fromkeys(names, k)} for k in (0, 1, 3)]
    assert read_labelled(written(tmp_path / "steer.jsonl", rated)).scales == (None, (0.0, 4.0))
    alone = [{"prompt": "p", "response": str(k), "helpfulness": k} for k in (0, 1, 3)]
    assert read_labelled(written(tmp_path / "rated.jsonl", alone)).scales == (None, None)


def test_what_cannot_be_computed_is_absent_and_said():
    every = figures([0.2, 0.9, 0.8], [0, 1, 1])
    assert every["mean"] == {}
    assert any("no corrected mean" in line for line in label_lines(every))
    lost = figures([Failure("late")] * 3, [1, 0, nan])
    assert (lost["labelled"], lost["agreement"], lost["metrics"], lost["mean"]) == (0, {}, {}, {})
    assert "failed measurements: late x 3" in label_lines(lost)
    assert "NaN" not in json.dumps([every, lost])


def test_a_labelled_part_that_is_not_random_is_said():
    rng = np.random.default_rng(0)
    scores = rng.random(200)
    best = np.where(scores > 0.8, 1.0, nan)
    said = [line for line in label_lines(figures(scores.tolist(), best)) if line.startswith("WARNING")]
    assert len(said) == 1
    assert "a random part" in said[0]
    random = np.where(np.arange(200) < 50, (scores > 0.5).astype(float), nan)
    assert not any(line.startswith("WARNING") for line in label_lines(figures(scores.tolist(), random)))


def test_groups_of_one_change_nothing_and_copies_are_no_evidence():
    rng = np.random.default_rng(3)
    judge, labels = rng.random(30), np.where(np.arange(30) < 12, (rng.random(30) < 0.5).astype(float), nan)
    plain = corrected_mean(judge, labels)
    shuffled = corrected_mean(judge, labels, rng.permutation(30)).corrected
    copied = corrected_mean(np.tile(judge, 3), np.tile(labels, 3), np.tile(np.arange(30), 3)).corrected
    for name in ("estimate", "low", "high"):  # sums in another order: equal but for the last bits
        assert getattr(shuffled, name) == pytest.approx(getattr(plain.corrected, name), rel=1e-12)
        assert getattr(copied, name) == pytest.approx(getattr(plain.corrected, name), rel=1e-12)
    agreed = agreement([judge > 0.5, labels], reps=200, seed=0)
    tripled = agreement(np.tile([judge > 0.5, labels], 3), groups=np.tile(np.arange(30), 3), reps=200, seed=0)
    assert (agreed.percent.low, agreed.kappa.high) == (tripled.percent.low, tripled.kappa.high)
    with pytest.raises(DataError, match="there are 1 and 2"):
        corrected_mean([0, 1, 1, 0], [0, 1, nan, nan], [0, 0, 1, 2])


def test_intervals_over_prompts_cover_the_truth_where_those_over_rows_do_not():
    """Four responses to each prompt, one of them labelled or all: labels and the judge's error depend on the prompt."""
    rng, covered, naive = np.random.default_rng(1), {True: 0, False: 0}, 0
    truth, n, repeats = 0.5, 80, 400
    for trial in range(repeats):
        whole = trial % 2 == 0  # all responses of a quarter of the prompts, or a quarter of the responses
        rate = np.repeat(rng.beta(0.6, 0.6, n), 4)
        labels = (rng.random(4 * n) < rate).astype(float)
        judge = np.clip(0.2 + 0.3 * labels + np.repeat(rng.normal(0, 0.25, n), 4), 0, 1)
        shown = np.repeat(np.arange(n) < n // 4, 4) if whole else np.arange(4 * n) % 4 == 0
        groups = np.repeat(np.arange(n), 4)
        seen = np.where(shown, labels, nan)
        found = corrected_mean(judge, seen, groups).corrected
        covered[whole] += found.low <= truth <= found.high
        alone = corrected_mean(judge, seen).corrected
        naive += whole and alone.low <= truth <= alone.high
    for one in covered.values():
        assert 0.91 <= one / (repeats / 2) <= 0.99  # three standard errors of 200 trials: 0.046
    assert naive / (repeats / 2) < 0.85
