"""Rubrics: what people say of each criterion, the value of the whole, and agreement with a judge by criterion."""

import json

import numpy as np
import pytest
from judged import judging, lines, log_of, pairs_of

from guerdon.annotate.consensus import CANNOT_TELL, NO_CONSENSUS, label_of
from guerdon.annotate.criteria import take_criteria
from guerdon.annotate.export import export
from guerdon.annotate.figures import figures, tables
from guerdon.annotate.items import Items
from guerdon.annotate.judgements import Judgement
from guerdon.annotate.session import AnnotateSettings, open_session
from guerdon.auditing.labels import read_marks
from guerdon.auditing.logs import read_log
from guerdon.episodes.preferences import read_preferences
from guerdon.errors import ConfigError
from guerdon.evaluation.benchmarks.labelled import label_figures, read_labelled
from guerdon.models.judges.rubric import Rubric, read_rubric
from tables import refuses

TOML = """
[[criteria]]
name = "answers"
text = "It answers the question."
weight = 2
choices = ["no", "partly", "yes"]

[[criteria]]
name = "invents"
text = "It states what nobody knows."
weight = -1
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "rubric.toml").write_text(TOML)
    return tmp_path / "rubric.toml"


def judged_by_rubric(path, n=30):
    """Rows as `guerdon score --model rubric.toml` writes them, with one criterion more than the rubric has."""
    random = np.random.default_rng(1)
    rubric = Rubric.model_validate(
        {"criteria": [{"name": "answers", "text": "a", "weight": 2, "choices": ["0", "1", "2"]},
                      {"name": "invents", "text": "i", "weight": -1}]}
    )  # fmt: skip
    rows = []
    for k in range(n):
        shares = {"answers": int(random.integers(3)) / 2, "invents": float(random.integers(2))}
        rows.append({"prompt": f"What is {k}?", "response": f"It is {k}.", "reward": rubric.value(shares)[0]})
        rows[-1] |= {f"reward.{name}": share for name, share in (shares | {"tone": 0.5}).items()}
    return lines(path, rows)


def judge_as(session, person, shares_of):
    """Judge all as a function of the number of the row says: number of a choice by criterion."""
    seen = 0
    rows = dict(zip(session.items.ids, session.items.rows, strict=True))
    while items := person.next(5):
        for one in items:
            person.judge(one["item"], "rated", scores=shares_of(rows[one["item"].removesuffix(".2")]))
            seen += 1
    return seen


def said(answers, invents):
    return Judgement("key", "", "ticket", 0, "rated", 0.0, scores={"answers": answers, "invents": invents})


def test_the_label_is_that_of_each_criterion_and_the_value_is_the_judges(file):
    rubric = read_rubric(file)
    label = label_of([said(3, 1), said(3, 2), said(2, 1)], rubric)
    assert (label.criteria["answers"].value, label.criteria["invents"].value) == (1.0, 0.0)
    assert label.value == rubric.value({"answers": 1.0, "invents": 0.0})[0] == 1.0
    assert label.agreed == pytest.approx(2 / 3)
    half = label_of([said(2, None)], rubric)  # 2 of 3 of the weight
    assert (half.value, half.criteria["invents"].reason) == (0.5, CANNOT_TELL)
    assert label_of([said(None, 2)], rubric).reason == CANNOT_TELL  # 1 of 3: as a judge's criterion_missing
    assert label_of([said(3, 1), said(1, 1)], rubric).reason == NO_CONSENSUS


def test_scores_are_stored_read_by_evaluate_and_audit_and_agree_with_the_judge_by_criterion(
    file, tmp_path, monkeypatch
):
    monkeypatch.setattr("guerdon.annotate.figures.REPS", 30)
    data, out = judged_by_rubric(tmp_path / "scored.jsonl"), tmp_path / "out"
    known = read_log(data).rewards
    answers, invents = known["reward.answers"], known["reward.invents"]

    def as_the_judge(row):  # but for the last row, whose criterion nobody can tell
        told = None if row == 29 else int(invents[row]) + 1
        return {"invents": told, "answers": int(2 * answers[row]) + 1}

    with judging(data, out, rubric=file, overlap=0.2) as (session, people):
        sent = [people[""].get(f"/api/{path}").text for path in ("setup", "next?count=9", "summary")]
        assert not [word for word in ("reward", "tone", "weight") if word in "".join(sent)]
        assert judge_as(session, people[""], as_the_judge) == 36
        assert "reward.answers" not in session.items.rewards
        export(session)
        record = figures(session)
    assert record["criteria"] == ["reward has scores of tone, which the rubric does not have"]
    found = {(one["criterion"], one["one"], one["other"]): one for one in record["agreement"]}
    assert {criterion for criterion, *_ in found} == {None, "answers", "invents"}
    with_judge = found["answers", "you", "reward"]
    assert (with_judge["items"], with_judge["percent"]["estimate"], with_judge["alpha"]["estimate"]) == (30, 1.0, 1.0)
    assert found["invents", "you", "reward"]["items"] == 29
    assert found["invents", "you", "reward"]["kappa"]["estimate"] == 1.0
    assert found["answers", "you", "you, again"]["items"] == 6
    (table,) = [one for one in tables(record) if one["title"] == "Agreement"]
    assert {row[0] for row in table["rows"]} == {"the whole rubric", "answers", "invents"}
    log = [json.loads(line) for line in (out / "judgements.jsonl").read_text().splitlines()]
    assert {row["judgement"] for row in log} == {"rated"}
    assert all(row["scores"].keys() == {"answers", "invents"} for row in log)
    rows = [json.loads(line) for line in (out / "labels.jsonl").read_text().splitlines()]
    for row in rows[:29]:
        assert row["oracle_label"] == pytest.approx(row["judge_score"])
        assert row["criteria"] == row["judge_criteria"]
        assert row["criteria_agreed"] == {"answers": 1.0, "invents": 1.0}
    assert rows[29]["criteria"] == {"answers": answers[29], "invents": None}
    assert "completion" not in rows[0]
    ratings = [one.attributes for one in read_preferences([str(out / "labels.jsonl")]).comparisons]
    assert ratings == [{"oracle_label": row["oracle_label"]} for row in rows]
    read = read_labelled(str(out / "labels.jsonl"))
    section = label_figures(read.judged(), read.labels_N, read.prompts, draws=read.draws, reps=20, seed=0)
    assert section["labelled"] == 30
    assert section["agreement"]["alpha"]["estimate"] > 0.95
    marks = read_marks(read_log(data), out).reward_N
    assert np.allclose(marks[:29], [row["judge_score"] for row in rows[:29]])


def test_people_are_compared_by_criterion(file, tmp_path, monkeypatch):
    monkeypatch.setattr("guerdon.annotate.figures.REPS", 30)
    data = log_of(tmp_path / "log.jsonl", 12)
    with judging(data, tmp_path / "out", rubric=file, overlap=1.0, people=("ann", "bo")) as (session, people):
        for name, person in people.items():
            judge_as(session, person, lambda row, name=name: {"answers": 1 + row % 3, "invents": 1 + (name == "bo")})
        record = figures(session)
        shown = people["ann"].get("/api/setup").json()
    found = {one["criterion"]: one for one in record["agreement"] if (one["one"], one["other"]) == ("ann", "bo")}
    assert (found["answers"]["percent"]["estimate"], found["invents"]["percent"]["estimate"]) == (1.0, 0.0)
    assert found["answers"]["alpha"]["estimate"] == 1.0
    assert record["labels"] == 12  # a tie of the second criterion leaves 2 of 3 of the weight
    assert record["criteria"] == ["the data has no scores of a judge by criterion"]
    assert shown["judgements"] == ["rated", "cannot_tell"]
    assert shown["criteria"][0] == {
        "name": "answers", "text": "It answers the question.", "choices": ["no", "partly", "yes"],
    }  # fmt: skip


def test_a_single_criterion_is_the_whole_and_names_may_have_dots(file, tmp_path, monkeypatch):
    monkeypatch.setattr("guerdon.annotate.figures.REPS", 30)
    file.write_text("[[criteria]]\nname = 'ones'\ntext = 'It has a one.'\n")
    rows = [{"prompt": f"{k}?", "response": f"r{k}", "reward": k % 2, "reward.ones": k % 2} for k in range(6)]
    with judging(lines(tmp_path / "a.jsonl", rows), tmp_path / "a", rubric=file, overlap=0.0) as (session, people):
        judge_as(session, people[""], lambda row: {"ones": 1 + row % 2})
        record = figures(session)
    (found,) = record["agreement"]
    assert (found["criterion"], found["other"], found["kappa"]["estimate"], record["criteria"]) == (
        None,
        "reward",
        1,
        [],
    )
    items = Items("responses", "log")
    items.rewards = {name: np.ones(1) for name in ("reward", "metrics.a.b", "b", "metrics.c", "judge.b")}
    rubric = Rubric.model_validate({"criteria": [{"name": name, "text": "t"} for name in ("a.b", "b")]})
    assert take_criteria(items, rubric).notes == (
        "metrics has no scores of b", "metrics has scores of c, which the rubric does not have",
        "the data has no scores of a.b", "judge has no scores of a.b",
    )  # fmt: skip
    assert items.rewards.keys() == {"reward"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"judgement": "rated"}, "scores must be an object with every criterion: answers, invents"),
        ({"judgement": "rated", "scores": {"answers": 1}}, "with every criterion"),
        ({"judgement": "rated", "scores": {"answers": 4, "invents": 1}}, "answers must be a whole number from 1 to 3"),
        ({"judgement": "rated", "scores": {"answers": 1, "invents": True}}, "invents must be a whole number from 1"),
        ({"judgement": "rated", "scores": {"answers": 1.0, "invents": 1}}, "answers must be a whole number"),
        ({"judgement": "rated", "scores": {"answers": None, "invents": None}}, "that is cannot_tell"),
        ({"judgement": "cannot_tell", "scores": {"answers": 1, "invents": 1}}, "this judgement has no scores"),
        ({"judgement": "right"}, "there are rated, cannot_tell, skip"),
    ],
)
def test_wrong_scores_are_refused(content, why, file, tmp_path):
    with judging(log_of(tmp_path / "log.jsonl", 4), tmp_path / "out", rubric=file) as (session, people):
        item = people[""].next(1)[0]["item"]
        answer = people[""].post(item=item, **content)
        assert (answer.status_code, why in answer.json()["error"]["message"]) == (422, True), answer.text
        assert session.judgements.done("") == 0


def test_a_repeated_judgement_another_one_and_taking_it_back_over_a_restart(file, tmp_path):
    data, out = log_of(tmp_path / "log.jsonl", 4), tmp_path / "out"
    with judging(data, out, rubric=file) as (_, people):
        item = people[""].next(1)[0]["item"]
        content = {"key": "page-0001", "item": item, "judgement": "rated", "scores": {"answers": 2, "invents": None}}
    with judging(data, out) as (session, people):  # the criteria are those of the first start
        for scores, status in (({}, 200), ({}, 200), ({"answers": 3}, 409)):
            body = {**content, "scores": content["scores"] | scores}
            assert people[""].request("POST", "/api/judgements", json=body).status_code == status
        assert session.judgements.given[0][0].value == 0.5
    with judging(data, out) as (_, people):
        undone = people[""].post(undo=None).json()["undone"]
        assert (undone["judgement"], undone["scores"]) == ("rated", content["scores"])


NINE = ", ".join(f'"{k}"' for k in range(10))


@pytest.mark.parametrize(
    ("text", "options", "key", "why"),
    [
        ("criteria = []", {}, "--rubric", "criteria"),
        ("[[criteria]]\nname = 'a'\ntexte = 'b'", {}, "--rubric", "texte"),
        ("[[criteria", {}, "--rubric", "the rubric cannot be read"),
        (None, {}, "--rubric", "rubric.toml"),
        (
            f"[[criteria]]\nname = 'a'\ntext = 'b'\nchoices = [{NINE}]",
            {},
            "--rubric",
            "a has 10 choices; there are keys for 9",
        ),
        (TOML, {"scale": 5}, "--scale", "--scale and --rubric"),
        (TOML, {"data": "pairs"}, "--rubric", "of responses, and these are pairs; remove it"),
    ],
)
def test_what_is_refused_is_one_line_and_writes_nothing(text, options, key, why, file, tmp_path):
    data = pairs_of(tmp_path / "p.jsonl") if options.pop("data", "") else log_of(tmp_path / "log.jsonl", 4)
    file.unlink() if text is None else file.write_text(text)
    with (
        refuses(key) as caught,
        open_session(AnnotateSettings(str(data), tmp_path / "out", rubric=file, **options)),
    ):
        pass
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_another_rubric_is_refused(file, tmp_path):
    data = log_of(tmp_path / "log.jsonl", 4)
    with judging(data, tmp_path / "out", rubric=file):
        pass
    other = tmp_path / "other.toml"
    other.write_text(TOML.replace("weight = 2", "weight = 3"))
    with (
        pytest.raises(ConfigError, match="was begun with other criteria") as refused,
        judging(data, tmp_path / "out", rubric=other),
    ):
        pass
    assert refused.value.key == "--rubric"
    with judging(data, tmp_path / "plain"):
        pass
    with refuses("--rubric"), judging(data, tmp_path / "plain", rubric=file):
        pass
