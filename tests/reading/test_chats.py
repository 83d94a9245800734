"""Chat messages as data sets and requests hold them: what is kept, what is the same, what is refused."""

import json

import pytest

from guerdon.episodes.solution_files import read_solutions, write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.reading.chats import (
    ChatError,
    asked_key,
    asked_of,
    beyond_question,
    chat_messages,
    context_of,
    earlier_turns,
    question_of,
    split_answer,
    tool_schemas,
)
from tables import cases

USER, ANSWER = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "Be brief."}
FUNCTION = {"name": "add", "description": "a sum", "parameters": {"type": "object", "properties": {}}}


def test_messages_are_brought_into_one_form():
    given = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "2+2?", "timestamp": 17, "tool_calls": None, "name": None},
        {"role": "model", "content": None, "tool_calls": [{"id": "c1", "name": "add", "arguments": '{"a": 2}'}]},
        {"role": "ipython", "content": "4", "tool_call_id": "c1"},
        {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"},
    ]
    call = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 2}}}
    assert chat_messages(given) == (
        SYSTEM,
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"},
    )
    assert chat_messages(chat_messages(given)) == chat_messages(given)
    assert chat_messages([{"from": "system", "value": "Be brief."}, {"from": "human", "value": "2+2?"}]) == (
        SYSTEM,
        USER,
    )
    assert chat_messages([{"from": "gpt", "value": "4"}]) == (ANSWER,)


@pytest.mark.hostile("texts")
@cases(
    ("given", "why"),
    [
        ([], "a list of messages"),
        ("2+2?", "a list of messages"),
        ([{"role": "user"}], "needs role and content"),
        ([{"content": "x"}], "needs role and content"),
        (["x"], "needs role and content"),
        ([{"role": "robot", "content": "x"}], "one of the roles"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "parts of type text"),
        ([{"role": "user", "content": "x", "images": ["y"]}], "has images"),
        ([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}], "has function_call"),
        ([{"role": "assistant", "content": None, "refusal": "no"}], "has refusal"),
        ([{"role": "user", "content": "x", "tool_calls": [{"name": "f"}]}], "only the assistant calls tools"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "a function with a name"),
        ([{"role": "assistant", "tool_calls": "f"}], "a function with a name"),
        ([{"role": "assistant", "content": [{"type": "server_tool_use", "name": "f"}]}], "type 'server_tool_use'"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": ["a"]}]}], "not of type"),
        ([{"role": "assistant", "content": [{"type": "text", "text": None}]}], "parts of type text"),
        ([{"role": "tool", "content": []}], "parts of type text"),
        ([{"role": "tool", "content": {"n": 24}}], "parts of type text"),
        ([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "2+"}]}], "are not a map"),
    ],
)
def test_what_is_not_text_is_refused_by_its_name(given, why):
    with pytest.raises(ChatError, match=why):
        chat_messages(given)


def test_parts_and_arguments_of_other_interfaces():
    parts = [{"type": "output_text", "text": "2", "annotations": []}, {"type": "input_text", "text": "4"}]
    assert chat_messages([{"role": "assistant", "content": parts}]) == ({"role": "assistant", "content": "24"},)
    for arguments in (None, "", "{}", {}):
        (message,) = chat_messages([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": arguments}]}])
        assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


def test_tools_in_each_form_of_the_field():
    whole = ({"type": "function", "function": FUNCTION},)
    for given in (
        [FUNCTION],
        [{"type": "function", **FUNCTION}],
        list(whole),
        json.dumps([FUNCTION]),
        [json.dumps(FUNCTION)],
    ):
        assert tool_schemas(given) == whole
    assert tool_schemas(None) == tool_schemas([]) == tool_schemas("") == tool_schemas("[]") == ()
    for wrong in ("add", {"name": "add"}, [{}], [3], ["add"], [{"function": {"name": ""}}]):
        with pytest.raises(ChatError):
            tool_schemas(wrong)


def test_a_lone_question_needs_no_context():
    assert context_of([USER]) == ()
    assert context_of([SYSTEM, USER]) == (SYSTEM, USER)
    assert context_of([{**USER, "name": "ann"}]) != ()
    assert question_of([SYSTEM, USER, {"role": "tool", "content": "4"}]) == "2+2?"
    for wrong in ([], [SYSTEM], [USER, ANSWER], [USER, SYSTEM]):
        with pytest.raises(ChatError):
            question_of(wrong)
    assert beyond_question((), ()) == beyond_question((USER,), ()) == ""
    assert beyond_question(({**SYSTEM, "content": " "}, USER), ()) == ""
    assert beyond_question((SYSTEM, USER, ANSWER, USER), (FUNCTION,)) == "1 system turn and 2 other turns and 1 tool"


def test_a_question_that_stands_in_the_turns_ends_what_was_asked():
    turns = [SYSTEM, {"role": "user", "content": " 2+2? "}, ANSWER]
    assert asked_of({"prompt": "2+2?", "messages": turns}) == turns[:2]
    assert asked_of({"prompt": "4", "messages": turns}) == [*turns, {"role": "user", "content": "4"}]


def test_the_answer_is_text_alone():
    assert split_answer([SYSTEM, USER, ANSWER]) == ((SYSTEM, USER), "4")
    for key in ("reasoning_content", "reasoning", "thinking"):
        assert split_answer([USER, {**ANSWER, key: "hm"}]) == ((USER,), "4")
    for last in ({**ANSWER, "tool_calls": [{"function": {"name": "f"}}]}, USER, {"role": "tool", "content": "4"}):
        with pytest.raises(ChatError) as caught:
            split_answer([USER, last])
        assert caught.value.failure.reason == "no_response"
    with pytest.raises(ChatError):
        split_answer([ANSWER])


def test_conversations_have_keys_of_their_own():
    contexts = [(), (SYSTEM, USER), (USER, ANSWER, USER), ({**SYSTEM, "content": "be brief."}, USER)]
    keys = {asked_key("2+2?", context, tools) for context in contexts for tools in ((), (FUNCTION,))}
    assert len(keys) == 8
    assert asked_key("2+2?") == "2+2?"


@pytest.mark.parametrize("form", ["seed", "trl", "prm800k", "math_shepherd", "process_bench"])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_conversation_survives_every_format(form, ending, tmp_path):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "of": {"b": None}}}}
    told = (SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "4"})
    tools = ({"type": "function", "function": FUNCTION},)
    solutions = (
        Solution("a", "2+2?", ("2+2=4\n", "4"), (1.0, 1.0), separator="\n", context=told, tools=tools),
        Solution("b", "2+2?", ("2+2=4\n", "5"), (1.0, 0.0), separator="\n"),
    )
    path = write_solutions(tmp_path / f"x.{ending}", solutions, form).path
    again = read_solutions(path)
    assert [(s.question, s.context, s.tools, s.steps) for s in again] == [
        (s.question, s.context, s.tools, s.steps) for s in solutions
    ]


def test_the_training_form_has_no_room_for_a_conversation(tmp_path):
    given = [Solution(n, "2+2?", ("4",), (1.0,), (1.0,), context=c) for n, c in (("a", ()), ("b", (SYSTEM, USER)))]
    written = write_solutions(tmp_path / "x.jsonl", given, "training")
    assert (written.solutions, written.left_out) == (1, {"conversation": 1})


def test_a_question_may_be_chat_messages(tmp_path):
    rows = [
        {"prompt": [SYSTEM, USER], "completions": ["4"], "labels": [True], "tools": json.dumps([FUNCTION])},
        {"prompt": [USER], "completions": ["4"], "labels": [True]},
        {"prompt": "2+2?", "completions": ["4"], "labels": [True]},
        {"question": [USER, ANSWER, USER], "steps": ["4"]},
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_solutions(path)
    assert [s.context for s in found] == [(SYSTEM, USER), (), (), (USER, ANSWER, USER)]
    assert [len(s.tools) for s in found] == [1, 0, 0, 0]
    path.write_text(json.dumps({"prompt": [USER, ANSWER], "completions": ["4"], "labels": [True]}) + "\n")
    with pytest.raises(
        DataError, match=r"x.jsonl:1: prompt: the messages of a question end with the user's turn"
    ) as refused:
        read_solutions(path)
    assert refused.value.field == "prompt"


def test_messages_of_other_apis():
    """The Responses API and Anthropic's, in the names of Chat Completions."""
    calls = [{"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}]
    wanted = (
        {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "2", "tool_call_id": "c1"}, {"role": "assistant", "content": "Two."},
    )  # fmt: skip
    responses = [
        {"role": "user", "content": [{"type": "input_text", "text": "1+1?"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two."}]},
    ]
    anthropic = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "easy"}, {"type": "text", "text": "Two."}]},
    ]
    assert chat_messages(responses) == wanted
    assert chat_messages(anthropic) == (*wanted[:3], {**wanted[3], "thinking": "easy"})


@pytest.mark.parametrize("history", [float("nan"), 1, True, [1, 2], [["a"]], ["a", {"role": "user"}]])
def test_a_history_that_holds_no_turns_is_refused(history):
    with pytest.raises(ChatError, match="history holds earlier turns as pairs, messages or texts"):
        earlier_turns(history)
