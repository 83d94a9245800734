"""The problems of `studies/agent_demo.py`: what they need, that no parts share one, and the table of its results."""

import json
import re
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from studies import agent_demo
from studies.agent_demo import calculate, draw, problems


def drawn(calls, size=300):
    return list(problems(np.random.default_rng(7), size, calls, set()))


def numbers(text):
    return [int(one) for one in re.findall("[0-9]+", text)]


@pytest.mark.parametrize("calls", [1, 2])
def test_the_calls_of_a_problem_lead_to_its_answer(calls):
    for problem in drawn(calls):
        assert len(problem.calls) == calls
        assert [calculate(one) for one in problem.calls] == [str(one) for one in problem.results]


def test_the_answer_is_what_the_sentences_about_the_thing_that_is_asked_for_say():
    for problem in drawn(2):
        *sentences, question = re.findall(r"[^.?]+[.?]", problem.question)
        thing, name, _ = re.fullmatch(r" How many (\w+) does (\w+) have ([\w ]+)\?", question).groups()
        about = [re.fullmatch(rf" ?{name} (?:has|buys|finds|wins) (\d+) {thing}\.", one) for one in sentences]
        amounts = [int(one[1]) for one in about if one]
        assert len(amounts) == 3
        assert str(sum(amounts)) == problem.answer


def test_the_second_call_needs_the_result_of_the_first():
    for problem in drawn(2):
        known = numbers(problem.question)
        first, second = problem.calls
        assert numbers(second)[0] == problem.results[0]
        pairs = {int(calculate(f"{a} {sign} {b}")) for a, b in permutations(known, 2) for sign in "+-"}
        assert problem.results[-1] not in pairs | set(known)
        assert calculate(first + second[len(str(problem.results[0])) :]).startswith("error")  # both at once


def test_one_number_does_not_matter():
    for problem in drawn(2):
        used = Counter(numbers(" ".join(problem.calls))) - Counter(problem.results[:1])
        assert Counter(numbers(problem.question)) == used + Counter([problem.idle])


def test_a_problem_depends_on_the_seed_alone():
    assert draw(np.random.default_rng(3), 2) == draw(np.random.default_rng(3), 2)
    assert draw(np.random.default_rng(3), 2) != draw(np.random.default_rng(4), 2)


@pytest.mark.parametrize("expression", ["2 + 3 - 1", "(2 + 3)", "2 ** 3", "len('a')", ""])
def test_the_calculator_refuses_all_but_one_operation_on_two_numbers(expression):
    assert calculate(expression).startswith("error")
    assert calculate(" 12*4 ") == "48"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("problems")
    agent_demo.main(["problems", str(folder)])
    names = ("start", "train", "held_out")
    return {name: [json.loads(line) for line in (folder / f"{name}.jsonl").open(encoding="utf-8")] for name in names}


def test_no_question_is_in_two_parts(written):
    prompts = [row["prompt"] for name in ("train", "held_out") for row in written[name]]
    asked = [row["prompt"][0]["content"] for row in written["start"]]
    assert len({*prompts, *asked}) == len(prompts) + len(asked)
    assert [len(written[name]) for name in ("start", "train", "held_out")] == [agent_demo.START, agent_demo.TRAIN, 192]


def test_no_completion_of_the_start_has_more_than_one_call_and_its_numbers_were_read(written):
    shapes = Counter()
    for row in written["start"]:
        known = {number for message in row["prompt"] for number in numbers(message["content"])}
        *call, answer = row["completion"]
        if call:
            asked, result = call
            expression = asked["tool_calls"][0]["function"]["arguments"]["expression"]
            assert set(numbers(expression)) <= known
            assert result["content"] == answer["content"] == calculate(expression)
        shapes[len(row["prompt"]), len(row["completion"])] += 1
    assert set(shapes) == {(1, 3), (3, 3), (3, 1)}
    assert shapes[1, 3] == agent_demo.START - round(agent_demo.BEGUN * agent_demo.START)
    assert shapes[3, 3] / (shapes[3, 3] + shapes[3, 1]) == pytest.approx(1 / len(agent_demo.ENDS), abs=0.1)


def test_problems_that_are_begun_are_finished_where_the_question_says_so(written):
    for row in written["start"]:
        if len(row["prompt"]) == 1:
            continue
        question, call, result = row["prompt"]
        first = call["tool_calls"][0]["function"]["arguments"]["expression"]
        assert set(numbers(first)) <= set(numbers(question["content"]))
        assert result["content"] == calculate(first)
        if question["content"].endswith(f" {agent_demo.FINISHED}?"):
            second = row["completion"][0]["tool_calls"][0]["function"]["arguments"]["expression"]
            assert numbers(second)[0] == int(result["content"])
            assert numbers(second)[1] in numbers(question["content"])
        else:
            assert row["completion"] == [{"role": "assistant", "content": result["content"]}]


@pytest.mark.parametrize("begun", [0.0, 1.0])
def test_the_share_of_problems_that_are_begun_is_an_argument(begun):
    rows = agent_demo.start_rows(np.random.default_rng(0), set(), begun)
    assert {len(row["prompt"]) for row in rows} == {3 if begun else 1}


def finished_seed(folder, start, run, continued):
    for name in ("sft", "run", "continued"):
        (folder / name).mkdir(parents=True)
    for name, value in (("sft", start), ("continued", continued)):
        (folder / name / "model_success.json").write_text(json.dumps({"success": value}))
    (folder / "continued" / "metrics.json").write_text('{"seconds": 110.0}')
    (folder / "run" / "COMPLETE").write_text(json.dumps({"final": {"success": run}}))
    (folder / "run" / "timings.jsonl").write_text(
        '{"wall_time": 60}\n{"wall_time": 100}\n{"wall_time": 150, "kind": "eval"}\n'
    )
    return folder


def test_the_table_has_the_differences_with_their_intervals(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_demo, "study_of", lambda folder: None)
    folders = [finished_seed(tmp_path / f"seed{k}", 0.2, 0.5 + k / 10, 0.2) for k in range(3)]
    one, three = agent_demo.table(folders[:1]), agent_demo.table(folders)
    assert "run minus start: +0.300 [+0.2" in one
    assert "100, 110" in one
    assert re.search(r"run minus continued: \+0\.400 \[\+0\.152, \+0\.648\]: better", three)  # t of 2 degrees: 4.303


def test_a_step_that_comes_too_early_is_refused_with_one_line(tmp_path):
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / "metrics.json").write_text('{"steps": 16, "seconds": 100}')
    for folder, missing in ((tmp_path, "run/COMPLETE"), (tmp_path / "none", "sft/metrics.json")):
        with pytest.raises(SystemExit, match=rf"^error: .*{missing} is not there"):
            agent_demo.main(["continue", str(folder)])
