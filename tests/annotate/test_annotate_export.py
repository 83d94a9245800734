"""What comes out is read by evaluate, train and audit without conversion."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from judged import episode, episodes_of, judge_all, judging, log_of, pairs_of, steps_of

from guerdon import EpisodeWriter
from guerdon.annotate.export import export
from guerdon.annotate.figures import figures, lines, tables
from guerdon.auditing.checks import audit_log
from guerdon.auditing.labels import read_marks
from guerdon.auditing.logs import read_log
from guerdon.episodes.preferences import read_preferences
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.episodes.solution_files import read_solutions
from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.labelled import label_figures, read_labelled


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def judged_log(tmp_path_factory):
    """A log of which the first 24 draws are judged by its truth, some of them not told, and its folder."""
    folder = tmp_path_factory.mktemp("judged")
    data = log_of(folder / "log.jsonl")
    with judging(data, folder / "out", choose="uncertain", overlap=0.0) as (session, people):
        truth = dict(zip(session.items.ids, session.items.truth, strict=True))
        for k, one in enumerate(people[""].next(24)):
            right = "right" if truth[one["item"]] else "wrong"
            people[""].judge(one["item"], "cannot_tell" if k == 5 else right, seconds=2.0 + k)
        export(session)
        record = figures(session)
    return data, folder / "out", record


def test_responses_for_evaluate(judged_log):
    _, out, record = judged_log
    rows = read_lines(out / "labels.jsonl")
    assert len(rows) == 40
    assert sum(row["oracle_label"] is not None for row in rows) == 23
    labelled = next(row for row in rows if row["oracle_label"] is not None)
    assert labelled["label"] is (labelled["oracle_label"] == 1)
    assert labelled["completion"] == labelled["response"]
    found = read_labelled(str(out / "labels.jsonl"))
    used = {one["column"]: one["role"] for one in found.read_as["columns"]}
    assert "reference" not in used.values()  # of a label that says the same as oracle_label
    assert not {"draw", "draw_probability", "pool"} & used.keys()  # only what is not used is listed without a role
    section = label_figures(found.judged(), found.labels_N, found.prompts, draws=found.draws, reps=20, seed=0)
    assert section["draws"] == {
        "pool": 40, "made": 24, "labelled": 23, "chosen": True, "without_value": 1, "of_all_rows": True,
    }  # fmt: skip
    assert section["mean"]["corrected"]["estimate"] == pytest.approx(record["mean"]["corrected"]["estimate"])
    assert section["mean"]["tuning"] == 1.0


def test_responses_for_train(judged_log):
    _, out, _ = judged_log
    found = read_preferences([str(out / "labels.jsonl")])
    labels = [one.label for one in found.comparisons]
    assert len(labels) == 23
    assert set(labels) == {True, False}


def test_labels_stand_for_the_truth_of_an_audit(judged_log, tmp_path):
    data, out, _ = judged_log
    rows = [{key: value for key, value in row.items() if key != "truth"} for row in read_lines(data)]
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(json.dumps(row) + "\n" for row in rows))
    marks = read_marks(read_log(bare), out)
    assert np.isfinite(marks.reward_N).sum() == 23
    assert marks.matched == "23 of 40 rows"
    _, second = audit_log(read_log(bare), columns=None, labels=out)
    assert second.name == "the labels of people"
    rows[0]["response"] = "changed"
    bare.write_text("".join(json.dumps(row) + "\n" for row in rows[:1]))
    with pytest.raises(DataError, match="no row of this log has a label"):
        read_marks(read_log(bare), out)
    with pytest.raises(DataError, match=r"it has no labels.jsonl; guerdon annotate LOG --export"):
        read_marks(read_log(data), tmp_path)
    with pytest.raises(DataError, match="this log, robots, has no responses that could be labelled"):
        read_marks(replace(read_log(data), texts=None, layout="robots"), out)


def test_the_summary(judged_log):
    record = judged_log[2]
    (person,) = record["people"]
    assert (person["judgements"], person["median_seconds"]) == (24, 13.5)
    agreed = {(one["one"], one["other"]): one for one in record["agreement"]}
    assert agreed["you", "the truth of the data"]["percent"]["estimate"] == 1.0
    assert agreed["you", "reward"]["rank"]["estimate"] > 0.5
    said = "\n".join(lines(record))
    assert "23 of 40 items have a label; 1 could not be told" in said
    assert "agreement is that of chosen rows" in said
    assert "About 40 items, of which 24 were drawn, 1 of them without a value." in said
    assert all(isinstance(cell, str) for table in tables(record) for row in table["rows"] for cell in row)


def test_several_people_are_compared_and_the_majority_counts(tmp_path):
    data = log_of(tmp_path / "log.jsonl", 12)
    with judging(data, tmp_path / "out", people=("ann", "bo"), overlap=1.0) as (session, people):
        truth = dict(zip(session.items.ids, session.items.truth, strict=True))
        first = session.judgements.asks[0].id
        by_truth = {item: "right" if value else "wrong" for item, value in truth.items()}
        but_one = {**by_truth, first: "wrong" if truth[first] else "right"}
        judge_all(people["ann"], lambda one: by_truth[one["item"]])
        judge_all(people["bo"], lambda one: but_one[one["item"]])
        record = figures(session)
        export(session)
        (shown,) = [one for one in people["bo"].get("/api/summary").json()["tables"] if one["title"] == "Agreement"]
    between = next(one for one in record["agreement"] if one["other"] == "bo")
    assert (between["one"], between["items"]) == ("ann", 12)
    assert between["percent"]["estimate"] == pytest.approx(11 / 12)
    assert record["no_consensus"] == 1
    assert shown["rows"][0][:3] == ["ann", "bo", "12"]
    (tie,) = [row for row in read_lines(tmp_path / "out" / "labels.jsonl") if row["no_label"]]
    assert (tie["no_label"], tie["oracle_label"], tie["agreed"]) == ("no_consensus", None, 0.5)


def test_one_person_is_compared_with_themself(tmp_path):
    with judging(log_of(tmp_path / "log.jsonl", 8), tmp_path / "out", overlap=1.0, scale=5) as (session, people):
        judge_all(people[""], lambda one: "3" if one["item"].endswith(".2") else "4")
        record = figures(session)
        export(session)
    own = next(one for one in record["agreement"] if one["other"] == "you, again")
    assert (own["items"], own["percent"]["estimate"]) == (8, 0.0)
    assert record["no_consensus"] == 8


def test_pairs(tmp_path):
    with judging(pairs_of(tmp_path / "pairs.jsonl"), tmp_path / "out", overlap=0.0) as (session, people):
        words = iter(["equal", "cannot_tell"])
        judge_all(
            people[""],
            lambda one: next(words, "first" if one["show"]["first"].startswith("Good") else "second"),
        )  # fmt: skip
        record = figures(session)
        export(session)
    rows = read_lines(tmp_path / "out" / "labels.jsonl")
    assert sorted(row["winner"] for row in rows) == ["model_a"] * 10 + ["tie"]
    assert record["order"]["n"] == 10
    found = read_preferences([str(tmp_path / "out" / "labels.jsonl")])
    better = [one.responses[one.ranks.index(0)].text for one in found.comparisons if one.ranks != (0, 0)]
    assert len(better) == 10
    assert all(text.startswith("Good") for text in better)


def test_steps(tmp_path):
    with judging(steps_of(tmp_path / "bench.jsonl"), tmp_path / "out", overlap=0.0) as (session, people):
        wrong = {"judgement": "wrong", "step": 1}
        seen = judge_all(people[""], lambda one: "right" if one["show"]["prompt"] == "Sum 0?" else wrong)
        export(session)
    found = read_solutions(tmp_path / "out" / "labels.jsonl")
    assert len(seen) == len(found) == 6
    by_question = {one.question: one.labels for one in found}
    assert by_question["Sum 0?"] == (1.0, 1.0, 1.0)
    assert by_question["Sum 1?"] == (1.0, 0.0, None)


def bare_copy(root, target):
    """The same episodes without outcomes, as a recording that says nothing of success."""
    with EpisodeWriter(target, fps=10, camera="front", video=True) as writer:
        for one in read_episodes(root):
            writer.add(replace(one, success=None, outcome=None))
    return target


def test_episodes_labelled_by_their_truth_are_those_of_the_original(tmp_path):
    root = episodes_of(tmp_path / "original", 6, video=True)
    bare = bare_copy(root, tmp_path / "bare")
    before = dataset_hash(bare)
    truth = dict(enumerate(read_episodes(root)))
    with judging(bare, tmp_path / "out", overlap=0.0) as (session, people):

        def said(one):
            known = truth[one["show"]["episode"]]
            row = int(np.argmax(known.success)) if known.outcome else None
            return {"judgement": "success", "row": row} if known.outcome else "failure"

        judge_all(people[""], said)
        target = export(session)
    assert dataset_hash(bare) == before
    labelled = list(read_episodes(target))
    for one, known in zip(labelled, truth.values(), strict=True):
        assert one.outcome is known.outcome
        np.testing.assert_array_equal(one.success, known.success)
        np.testing.assert_array_equal(one.states, known.states)
    ours, theirs = (
        {name: column for file in sorted((folder / "data").rglob("*.parquet")) for name, column in [
            *((name, pq.read_table(file)[name].to_pylist()) for name in pq.read_schema(file).names)]}
        for folder in (target, root)
    )  # fmt: skip
    assert ours == theirs
    for film in bare.rglob("*.mp4"):
        assert (target / film.relative_to(bare)).read_bytes() == film.read_bytes()
    with judging(bare, tmp_path / "out") as (session, people):  # again, with videos of the copy before
        assert people[""].post(undo=None).status_code == 200
        export(session)
    assert sum(one.outcome is None for one in read_episodes(target)) == 1


def test_episodes_that_nobody_judged_are_as_before(tmp_path):
    root = episodes_of(tmp_path / "data", 4)
    with judging(root, tmp_path / "out", overlap=0.0) as (session, people):
        items = {one["show"]["episode"]: one["item"] for one in people[""].next(9)}
        people[""].judge(items[0], "success")  # the last row
        people[""].judge(items[1], "discard")
        people[""].judge(items[2], "cannot_tell")
        target = export(session)
        assert figures(session)["discarded"] == [1]
        assert figures(session)["cannot_tell"] == 1
    before, after = list(read_episodes(root)), list(read_episodes(target))
    assert [one.outcome for one in after] == [True, True, False, True]
    assert after[0].success.tolist() == [False] * 5 + [True]
    for k in (1, 2, 3):
        np.testing.assert_array_equal(before[k].success, after[k].success)
    stats = json.loads((target / "meta" / "stats.json").read_text())
    assert stats["next.success"]["mean"] == pytest.approx(
        [np.mean([row for one in after for row in [*one.success[1:], one.success[-1]]])]
    )
    assert episode(0).outcome is False
