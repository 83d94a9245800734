"""`guerdon search` from a file of questions to answers: with a tiny policy, killed and continued, failures intact."""

import json

import numpy as np
import pytest
import torch
import yaml
from text_models import INFO
from typer.testing import CliRunner

from guerdon.cli import app
from guerdon.errors import DataError, TooManyFailuresError
from guerdon.evaluation.benchmarks.best_of_n import same_number_or_text
from guerdon.evaluation.searching import search_study
from guerdon.evaluation.searching.search import Beam, beam_search
from guerdon.evaluation.searching.search_study import weighted_vote
from guerdon.settings.data import ChainSettings, GeneratedDataSettings
from guerdon.settings.search import SearchSettings
from guerdon.types import Failure, Score

torch.set_num_threads(1)
TINY = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 64, "alphabet": "01+=?;\n"}
METHODS = [
    {"method": "best_of_n", "n": 6},
    {"method": "best_of_n", "n": 6, "choose": "weighted_vote"},
    {"method": "beam", "n": 4, "beam_width": 2, "rounds": 3},
    {"method": "dvts", "n": 4, "beam_width": 2, "rounds": 3},
]


class Ones:
    """The share of ones in each step; cannot measure a text with three signs in a row."""

    info = INFO

    def __init__(self, fails_at: str = "+++") -> None:
        self.fails_at = fails_at

    def score(self, episodes):
        return [self._score(episode.texts) for episode in episodes]

    def _score(self, texts):
        if self.fails_at in "".join(texts):
            return Score(failure=Failure("unreadable", "signs"))
        return Score.from_values(np.array([text.count("1") / max(len(text), 1) for text in texts], np.float32))


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study file with five questions, of which two have no true answer; returns its path."""
    monkeypatch.setattr("guerdon.evaluation.searching.search_study.AT_A_TIME", 2)
    rows = [
        {"id": "a", "question": "0+1=?", "answer": "1"}, {"id": "b", "question": "1+0=?"},
        {"id": "c", "question": "0+0=?", "answer": "0"}, {"id": "d", "question": "1+1=?", "answer": "10"},
        {"question": "1=?"},
    ]  # fmt: skip
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    content = {
        "policy": {"type": "text", "tiny": TINY, "bf16": False},
        "data": {"type": "files", "train_files": "none", "verifier": "exact", "max_response_length": 8},
        "search": {
            "save_dir": str(tmp_path / "found"), "questions": str(tmp_path / "questions.jsonl"), "aggregation": "mean",
            "model": {"model_type": "test_search_study:Ones", "modality": "text"},
            "separator": ";",
        },
    }  # fmt: skip
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def call(study, *words):
    result = CliRunner().invoke(app, ["search", str(study), *words])
    return result.exit_code, result.output + str(result.exception or "")


def words(given):
    return [f"search.{key}={value}" for key, value in given.items()]


def lines(study):
    return [json.loads(line) for line in (study.parent / "found" / "answers.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("given", METHODS, ids=lambda given: "-".join(str(v) for v in given.values()))
def test_every_question_gets_a_response_or_a_reason(study, given):
    status, said = call(study, *words(given))
    assert status == 0, said
    rows = lines(study)
    assert [row["question"] for row in rows] == ["0+1=?", "1+0=?", "0+0=?", "1+1=?", "1=?"]
    for row in rows:
        assert (row["response"] is None) == (row["value"] is None) == (row["failure"] is not None)
        assert row["complete"] <= row["written"]
        if row["response"] is not None:
            (score,) = Ones().score([Spoken(row["response"])])
            assert row["value"] == pytest.approx(float(score.steps.mean()))
    assert [row["correct"] for row in rows if row["question"] in ("1+0=?", "1=?")] == [None, None]
    answered = sum(row["response"] is not None for row in rows)
    assert answered > 0
    assert f"{answered} of 5 questions answered" in said
    assert json.loads((study.parent / "found" / "search.json").read_text())["result"]["answered"] == answered


class Spoken:
    """A response, cut into steps."""

    def __init__(self, text):
        self.texts = [part + ";" for part in text.split(";")[:-1]] + [text.split(";")[-1]]
        self.texts = [text for text in self.texts if text] or [""]


def test_a_killed_search_continues_to_the_same_bytes(study, monkeypatch):
    status, said = call(study, "search.n=4")
    assert status == 0, said
    whole = (study.parent / "found" / "answers.jsonl").read_bytes()
    status, said = call(study, "search.n=4")  # nothing is left to do
    assert (status, (study.parent / "found" / "answers.jsonl").read_bytes()) == (0, whole), said

    groups = []

    def killed(writer, model, questions, plan):
        if len(groups) == 2:
            raise KeyboardInterrupt
        groups.append(questions)
        return beam_search(writer, model, questions, plan)

    other = "search.save_dir=" + str(study.parent / "again")
    monkeypatch.setattr(search_study, "beam_search", killed)
    assert call(study, "search.n=4", other)[0] != 0
    path = study.parent / "again" / "answers.jsonl"
    assert 0 < len(path.read_bytes()) < len(whole)
    for cut in (path.read_bytes(), whole[: len(whole) // 3]):  # after a group, and in the middle of a line
        path.write_bytes(cut)
        monkeypatch.setattr(search_study, "beam_search", beam_search)
        assert call(study, "search.n=4", other)[0] == 0
        assert path.read_bytes() == whole


def test_answers_of_another_search_are_not_mixed_in(study):
    assert call(study, "search.n=2", "search.limit=2")[0] == 0
    status, said = call(study, "search.n=3", "search.limit=2")
    assert status != 0
    assert "holds answers of another search: search differ" in said
    assert "policy differ" in call(study, "search.n=2", "search.limit=2", "policy.tiny.layers=2")[1]
    assert call(study, "search.n=2", "search.limit=2", "search.batch_size=1")[0] == 0


def test_a_search_from_before_a_key_is_resumed_where_that_has_its_default(study):
    given = ("search.n=2", "search.limit=2")
    assert call(study, *given)[0] == 0
    path = next(study.parent.rglob("search.json"))
    record = json.loads(path.read_text())
    del record["identity"]["search"]["columns"]
    path.write_text(json.dumps(record))
    assert call(study, *given)[0] == 0
    path.write_text(json.dumps(record))
    status, said = call(study, *given, "search.columns={prompt: question}")
    assert status != 0
    assert "holds answers of another search: search" in said


def test_a_model_that_measures_nothing_stops_the_search(study):
    model = "{model_type: 'test_search_study:Ones', modality: text, params: {fails_at: ''}}"
    status, said = call(study, f"search.model={model}", "search.n=20")
    assert status != 0
    assert "40 of 40 measurements of scripted failed" in said
    assert not (study.parent / "found" / "answers.jsonl").exists()
    status, said = call(study, f"search.model={model}", "search.n=20", "search.max_failure_rate=1")
    assert status == 0
    assert "0 of 5 questions answered (5 none_measured)" in said
    assert {(row["response"], row["value"], row["failure"]["reason"]) for row in lines(study)} == {
        (None, None, "none_measured")
    }
    assert {sum(row["unmeasured"].values()) for row in lines(study)} == {20}


def searcher(most):
    """A searcher of which only the check of failures is used."""
    found = search_study._Searcher.__new__(search_study._Searcher)
    found._settings, found._model = type("", (), {"max_failure_rate": most}), Ones()
    return found


def row(written, **lost):
    return {"written": written, "unmeasured": lost}


@pytest.mark.parametrize(
    ("rows", "most", "at_end", "stops"),
    [
        ([row(4, unreadable=2)], 0.1, False, False),  # 2 of 4, as if of 20
        ([row(4, unreadable=3)], 0.1, False, True),
        ([row(4, unreadable=2)], 0.1, True, True),
        ([row(100), row(10, unreadable=10)], 0.1, False, False),  # 10 of 110: of the whole run, not of the group
        ([row(100), row(10, unreadable=6, other=6)], 0.1, False, True),
        ([row(4, unreadable=1)], 0.0, False, True),
        ([row(4, unreadable=4)], 1.0, True, False),
    ],
)
def test_failures_count_over_the_whole_search(rows, most, at_end, stops):
    if not stops:
        return searcher(most).refuse_failures(rows, at_end=at_end)
    with pytest.raises(TooManyFailuresError, match=rf"search.max_failure_rate {most:g} allows"):
        searcher(most).refuse_failures(rows, at_end=at_end)


def test_votes_are_weighted_by_values():
    beams = [Beam((text,), True, value) for text, value in
             [("a", 0.5), ("b", 0.4), ("b", 0.3), ("c", None), ("c", 0.6), ("?", 0.9)]]  # fmt: skip
    answers = ["1", "2", "2.0", "3", "3", None]
    best, failure, extra = weighted_vote(beams, answers, same_number_or_text)
    assert (best, failure) == (beams[1], None)  # 0.4 + 0.3 against 0.5 and 0.6
    assert extra == {"votes": 4, "weight": pytest.approx(0.7 / 1.8)}
    assert weighted_vote(beams[3:4], ["3"], same_number_or_text)[1].reason == "no_answer"
    assert weighted_vote(beams[5:], [None], same_number_or_text)[1].reason == "no_answer"
    assert weighted_vote([Beam(("a",), True, -1.0)], ["1"], same_number_or_text)[1].reason == "negative_values"
    assert weighted_vote([Beam(("a",), True, 0.0)], ["1"], same_number_or_text)[2] == {"votes": 1, "weight": None}


def test_a_dry_run_says_what_it_costs_and_writes_nothing(study):
    status, said = call(study, "--dry-run", "search.n=6", "search.method=beam", "search.beam_width=2")
    assert status == 0, said
    assert "questions: 5" in said
    assert "solutions to sample: at most 30" in said
    assert not (study.parent / "found").exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("search.rounds=3", "method best_of_n"),
        ("search.model={model_type: constant}", "does not judge texts"),
        ("search.model={model_type: prime}", "does not judge texts"),
        ("search.model={model_type: remote}", "does not judge texts"),
        ("search.questions=nowhere.jsonl", "nowhere.jsonl"),
        ("search.nn=3", "did you mean"),
    ],
)
def test_what_would_do_nothing_is_refused(study, word, message):
    status, said = call(study, word)
    assert status != 0
    assert message in said
    assert "no search section" in call(study, "search=null")[1]


def test_validation_questions_are_searched_where_no_file_is_named(study):
    content = yaml.safe_load(study.read_text())
    task = {"family": "chain", "steps": 2, "modulus": 2, "low": 0, "high": 1, "ops": "+"}
    content["data"] = {"type": "generated", "task": task, "train_size": 4, "val_size": 3, "max_response_length": 8}
    study.write_text(yaml.safe_dump(content))
    status, said = call(study, "search.questions=null", "search.n=3", "search.separator=null")
    assert status == 0, said
    assert len(lines(study)) == 3
    assert any(row["correct"] is not None for row in lines(study) if row["response"] is not None)


def test_columns_of_the_questions_are_said(tmp_path):
    path = tmp_path / "questions.csv"
    path.write_text("frage,note\n1+1=?,10\n0+1=?,1\n")
    data = GeneratedDataSettings(task=ChainSettings())
    said = {"questions": str(path), "aggregation": "min", "model": {"checkpoint_path": "none"}}
    chosen = SearchSettings.model_validate({**said, "columns": {"prompt": "frage", "reference": "note"}})
    prompts, _ = search_study.questions_of(chosen, data)
    assert [(p.question, p.ground_truth) for p in prompts] == [("1+1=?", "10"), ("0+1=?", "1")]
    with pytest.raises(DataError, match="no question"):
        search_study.questions_of(SearchSettings.model_validate(said), data)
