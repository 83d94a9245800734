"""`guerdon label` of solutions that a user has already."""

import json
from collections import Counter

import pytest
from judge_server import FakeClock, judge_server, judgements, steps_asked
from label_studies import TINY, rows, study_of

from guerdon.episodes.solution_files import published_solutions, read_solutions, write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.labels.label import label
from guerdon.labels.labelers import StepLabels
from guerdon.network.retry import Clock
from guerdon.settings.label import LabelSettings
from guerdon.settings.study import Study
from tables import refuses


def fake():
    clock = FakeClock()
    return Clock(clock.now, clock.sleep)


def without_data(save_dir, path, **given):
    return Study.model_validate({
        "policy": {"type": "text", "tiny": TINY},
        "label": {"save_dir": str(save_dir), "solutions": {"data_path": str(path)}, **given},
    })  # fmt: skip


def test_steps_under_other_names_are_labelled_once_they_are_said(policy, tmp_path):
    first = label(study_of(policy, tmp_path / "first"))
    wanted = read_solutions(first.folder)
    mine = [{"key": one.id, "task": one.question, "all": one.text, "parts": list(one.steps)} for one in wanted]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mine))
    given = study_of(policy, tmp_path / "second").model_dump(exclude_unset=True)
    columns = "id=key,prompt=task,solution=all,steps=parts"
    solutions = {"data_path": str(tmp_path / "mine.jsonl"), "min_steps": 1, "columns": columns}
    given["label"] = {"save_dir": str(tmp_path / "second"), "labeler": "exact", "solutions": solutions}
    done = label(Study.model_validate(given))
    found = read_solutions(done.folder)
    assert [(one.id, one.question) for one in found] == [(one.id, one.question) for one in wanted]
    assert [one.labels for one in found] == [one.labels for one in wanted]
    read_as = next(one for one in done.card["read_as"] if one["data"].endswith("mine.jsonl"))
    assert [(one["column"], one["role"], one["from"]) for one in read_as["columns"]] == [
        ("key", "id", "given"), ("task", "prompt", "given"), ("all", "solution", "given"), ("parts", "steps", "given"),
    ]  # fmt: skip


def test_solutions_of_generated_questions_get_the_labels_they_had(policy, tmp_path):
    first = label(study_of(policy, tmp_path / "first"))
    wanted = read_solutions(first.folder)
    trl = write_solutions(tmp_path / "mine.parquet", wanted, "trl").path
    given = study_of(policy, tmp_path / "second").model_dump(exclude_unset=True)
    given["label"] = {"save_dir": str(tmp_path / "second"), "labeler": "exact",
                      "solutions": {"data_path": str(trl), "min_steps": 1}}  # fmt: skip
    done = label(Study.model_validate(given))
    assert done.folder.name == "prm_dataset_given_HE"
    found = read_solutions(done.folder)
    for one, two in zip(found, wanted, strict=True):
        assert (one.id, one.steps, one.labels, one.rewards) == (two.id, two.steps, two.labels, two.rewards)
    assert done.card["method"] is None
    assert done.card["sampled"] == {}


def test_prm800k_is_labelled_anew_by_a_judge_without_a_data_section(tmp_path):
    source = (
        Solution("a", "1+1=?", ("1+1=2\n", r"It is \boxed{2}"), (1.0, 1.0), ground_truth="2", separator="\n"),
        Solution("a", "2+2=?", ("2+2=5\n", "# Answer\n\n5"), (0.0, None), ground_truth="4", separator="\n"),
        Solution("c", "2+2=?", ("so",), (1.0,), ground_truth="4", separator="\n"),
        Solution("d", "3+3=?", ("3+3=6\n", "6"), (1.0, 1.0), separator="\n"),
    )  # fmt: skip
    path = write_solutions(tmp_path / "prm800k.jsonl", source, "prm800k").path
    bad = {"question": {"problem": "0"}, "label": {"finish_reason": "bad_problem", "steps": []}}
    path.write_text(path.read_text() + json.dumps(bad) + "\n")
    with judge_server(lambda text: judgements([-1] * len(steps_asked(text)))) as server:
        judge = {"api": "openai", "model": "m", "base_url": server.url + "/v1"}
        done = label(without_data(tmp_path, path, labeler="judge", judge=judge), clock=fake())
        few = label(without_data(tmp_path, path, labeler="judge", judge=judge, num_samples=1), clock=fake())
    found = rows(few.folder)
    assert len(found) == 1
    assert few.card["solutions"]["left_out"]["beyond_num_samples"] == 3
    assert done.card["solutions"]["left_out"] == {"bad_problem": 1, "too_few_steps": 1}
    assert done.card["solutions"]["labelled"] == 3
    assert done.card["solutions"]["answer_not_checked"] == {"no_true_answer": 1}  # "# Answer" and 5 is one
    assert (found[0]["step_labels"], found[0]["is_correct"]) == ([0.0, 0.0], True)


def test_given_solutions_are_checked_and_named_apart(tmp_path):
    source = [Solution("a", f"{k}+2=?", (f"{k}+2=\n", r"\boxed{4}"), ground_truth=str(k + 2)) for k in (2, 3)]
    path = write_solutions(tmp_path / "mine.jsonl", source).path
    with judge_server() as server:
        judge = {"api": "openai", "model": "m", "base_url": server.url + "/v1"}
        done = label(without_data(tmp_path, path, labeler="judge", judge=judge), clock=fake())
    found = published_solutions([str(done.folder)], Counter())
    assert [(s.id, s.is_correct, s.answer) for s in found] == [("a", True, "4"), ("a-2", False, "4")]


def test_nothing_to_label_names_the_file(tmp_path):
    path = write_solutions(tmp_path / "mine.jsonl", [Solution("a", "q", ("one",))]).path
    with pytest.raises(DataError, match=r"no solution to label in .*mine\.jsonl: left out were 1 too_few_steps"):
        label(without_data(tmp_path, path, labeler="exact"))


def test_a_solution_that_comes_again_is_labelled_once(tmp_path):
    source = [Solution(str(k), "1+1=?", steps) for k, steps in enumerate([("a\n", "b"), ("a\n", "c"), ("a\n", "b")])]
    path = write_solutions(tmp_path / "mine.jsonl", source).path
    with judge_server(lambda text: judgements([1] * len(steps_asked(text)))) as server:
        judge = {"api": "openai", "model": "m", "base_url": server.url + "/v1"}
        done = label(without_data(tmp_path, path, labeler="judge", judge=judge), clock=fake())
        assert len(server.requests) == 2
    assert [one.steps for one in read_solutions(done.folder)] == [("a\n", "b"), ("a\n", "c")]
    assert done.card["solutions"]["left_out"] == {"duplicate": 1}


class ByLength:
    """A step is right if it has at most so many characters; questions are no steps."""

    name, at_a_time = "by_length", 2

    def __init__(self, most=3, seed=0):
        self.most = most

    def label(self, solutions):
        if any("?" in one.solution.text for one in solutions):
            raise ValueError("a step is a question")
        return [StepLabels(tuple(float(len(step) <= self.most) for step in one.solution.steps)) for one in solutions]


def test_a_labeler_of_ones_own_gives_the_labels_and_fails_alone(tmp_path):
    steps = [("a", "bbbb"), ("a?", "b"), ("a", "bb"), ("aaaaaa", "b")]
    source = [Solution(str(k), f"{k}+1=?", one) for k, one in enumerate(steps)]
    path = write_solutions(tmp_path / "mine.jsonl", source).path
    own = {"labeler": "test_given_solutions:ByLength", "labeler_params": {"most": 2}, "max_failure_rate": 0.5}
    done = label(without_data(tmp_path, path, **own))
    assert [one.labels for one in read_solutions(done.folder)] == [(1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    assert done.card["solutions"]["failed"] == {"labeler_error": 1}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"method": 1}, "method"),
        ({"num_rollouts": 3, "splitter": "newline"}, "num_rollouts"),
        ({"mining": {}}, "mining"),
        ({"solutions": {"data_path": "x", "temperature": 1.0}}, "temperature"),
    ],
)
def test_keys_that_write_solutions_do_nothing_with_given_ones(given, key):
    with refuses(key):
        LabelSettings.model_validate({"labeler": "exact", "solutions": {"data_path": "x"}, **given})


def test_the_models_that_replied_are_in_the_card_and_with_the_labels(tmp_path):
    steps = ("we add\n", "that is it")
    source = [Solution(str(i), f"{i}+{i}=?", steps, (1.0, 1.0), separator="\n") for i in range(4)]
    path = write_solutions(tmp_path / "mine.jsonl", source, "prm800k").path
    script = [{"model": name} for name in ("m", "m", "m-mini")]
    with judge_server(lambda text: judgements([1] * len(steps_asked(text))), script) as server:
        judge = {"api": "openai", "model": "m", "base_url": server.url + "/v1", "concurrency": 1}
        for _ in range(2):
            done = label(without_data(tmp_path, path, labeler="judge", judge=judge), clock=fake())
            assert done.card["judge_models"] == {"m": 2, "m-mini": 1}
            metas = [one.meta["labels"] for one in read_solutions(done.folder)]
            assert [meta["judge"] for meta in metas] == ["m"] * 4
            assert sorted(meta.get("judge_model", "") for meta in metas) == ["", "", "", "m-mini"]
        assert len(server.requests) == 4
