"""The problems of `studies/agent_demo.py`: what they need, that no parts share one, and the table of its results."""

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from studies import agent_demo
from studies.agent_demo import RightCalls, calculate, draw, problems, worked

from guerdon.types import Episode


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
        thing, name = re.fullmatch(r" How many (\w+) does (\w+) have now\?", question).groups()
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
    assert shapes[3, 3] / (shapes[3, 3] + shapes[3, 1]) == pytest.approx(agent_demo.FINISHED, abs=0.1)


def test_problems_that_are_begun_are_finished_or_take_the_first_result_for_the_answer(written):
    for row in written["start"]:
        if len(row["prompt"]) == 1:
            continue
        question, call, result = row["prompt"]
        first = call["tool_calls"][0]["function"]["arguments"]["expression"]
        assert set(numbers(first)) <= set(numbers(question["content"]))
        assert result["content"] == calculate(first)
        if len(row["completion"]) == 1:
            assert row["completion"] == [{"role": "assistant", "content": result["content"]}]
            continue
        second = row["completion"][0]["tool_calls"][0]["function"]["arguments"]["expression"]
        assert numbers(second)[0] == int(result["content"])
        assert numbers(second)[1] in numbers(question["content"])


def turns(problem):
    """Each turn of a worked conversation as a reward model sees it: the text of its calls or its answer."""
    messages = worked(problem)
    for k, message in enumerate(messages):
        if message["role"] == "assistant":
            calls = [call["function"] for call in message.get("tool_calls", ())]
            text = message["content"] + "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
            before = tuple(messages[:k]) if k > 1 else ()  # as `Episode.context` of a question that stands alone
            yield Episode("turn", problem.question, texts=(text,), context=before)


def test_the_calls_of_a_worked_conversation_are_right_and_its_answer_is_no_call():
    for problem in drawn(2, size=50):
        assert [score.total for score in RightCalls().score(list(turns(problem)))] == [1.0, 1.0, 0.0]


def test_a_call_is_wrong_that_repeats_one_or_adds_the_number_that_does_not_matter_or_subtracts():
    for problem in drawn(2, size=50):
        first, second, _ = turns(problem)
        repeated = replace(second, texts=first.texts)
        begin, *_ = numbers(problem.calls[0])
        idle, minus = (
            replace(first, texts=(first.texts[0].replace(problem.calls[0], call),))
            for call in (f"{begin} + {problem.idle}", problem.calls[0].replace("+", "-"))
        )
        assert [score.total for score in RightCalls().score([repeated, idle, minus])] == [0.0, 0.0, 0.0]


def test_numbers_may_be_added_in_another_order():
    problem = drawn(2, size=1)[0]
    first, *_ = turns(problem)
    begin, change = numbers(problem.calls[0])
    last = numbers(problem.calls[1])[1]
    for call in (f"{change} + {begin}", f"{last}+{change}", f"{begin} + {last}"):
        turn = replace(first, texts=(first.texts[0].replace(problem.calls[0], call),))
        assert RightCalls().score([turn])[0].total == 1.0


def finished_seed(folder, seed, start, run, continued):
    runs = agent_demo.run_folder(folder, seed)
    models = {folder / f"start{seed}" / "model": start, folder / f"continued{seed}" / "model": continued}
    for model, success in (models | {runs / "policy": run}).items():
        model.parent.mkdir(parents=True)
        model.with_name(f"{model.name}_success.json").write_text(json.dumps({"success": success}))
        model.with_name("metrics.json").write_text('{"steps": 16, "seconds": 100}')
    (runs / "COMPLETE").write_text("{}")
    (runs / "timings.jsonl").write_text('{"wall_time": 60}\n{"wall_time": 110}\n{"wall_time": 150, "kind": "eval"}\n')


def test_the_table_has_the_differences_with_their_intervals(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_demo, "study_of", lambda *_: None)
    finished_seed(tmp_path, 0, 0.2, 0.5, 0.2)
    one = agent_demo.table(tmp_path)
    for seed in (1, 2):
        finished_seed(tmp_path, seed, 0.2, 0.5 + seed / 10, 0.2)
    three = agent_demo.table(tmp_path)
    assert "outcome minus start: +0.300 [+0.2" in one
    t = "outcome minus continued: +0.400 [+0.152, +0.648]: better"  # t of 2 degrees of freedom: 4.303
    assert t in three
    assert "calls minus" not in three


def test_the_table_has_the_other_arm_where_all_its_seeds_have_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_demo, "study_of", lambda *_: None)
    finished_seed(tmp_path, 0, 0.2, 0.5, 0.2)
    calls = agent_demo.run_folder(tmp_path, 0, "calls")
    calls.mkdir(parents=True)
    (calls / "COMPLETE").write_text("{}")
    (calls / "policy_success.json").write_text('{"success": 0.75}')
    assert "calls minus outcome: +0.250 [+0.1" in agent_demo.table(tmp_path)


def test_the_table_needs_no_start_that_was_trained_on(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_demo, "study_of", lambda *_: None)
    finished_seed(tmp_path, 0, 0.2, 0.5, 0.2)
    (tmp_path / "continued0" / "metrics.json").unlink()
    header, _, *differences = agent_demo.table(tmp_path).splitlines()
    assert header.split() == ["seed", "start", "outcome"]
    assert [line.split(":")[0] for line in differences] == ["outcome minus start"]


def test_the_start_is_trained_on_for_as_long_as_the_run_learned(tmp_path, monkeypatch):
    finished_seed(tmp_path, 1, 0.2, 0.5, 0.2)
    trained = []
    monkeypatch.setattr("guerdon.train.sft.train_sft_study", lambda study, resume: trained.append(study))
    agent_demo.main(["continue", str(tmp_path), "--seed", "1"])
    (study,) = trained
    assert study.sft.max_steps == 18  # 110 s at 16 steps in 100 s
    assert (study.sft.policy.path, study.sft.seed) == (str(tmp_path / "start1" / "model"), 1)
    assert study.sft.save_dir == str(tmp_path / "continued1")


@pytest.mark.parametrize(("step", "missing"), [("continue", "seed0/COMPLETE"), ("table", "seed0/COMPLETE")])
def test_a_step_that_comes_too_early_is_refused_with_one_line(tmp_path, step, missing):
    (tmp_path / "start0").mkdir()
    (tmp_path / "start0" / "metrics.json").write_text('{"steps": 16, "seconds": 100}')
    with pytest.raises(SystemExit, match=rf"^error: .*{missing} is not there"):
        agent_demo.main([step, str(tmp_path)])
    with pytest.raises(SystemExit, match=r"^error: .*start0/metrics.json is not there"):
        agent_demo.main(["continue", str(tmp_path / "none")])
