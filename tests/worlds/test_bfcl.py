"""Tasks of BFCL as a world of messages. They need the packages of `make env-worlds`."""

from importlib.util import find_spec

import pytest

from agent_parts import Says
from guerdon.collect.conversations import ConversationLoop, agent_of
from guerdon.policies.batches.tokens import stop_ids
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.settings.agent import OwnAgentSettings
from guerdon.settings.data import PromptsDataSettings
from guerdon.tasks.prompts import Prompt
from guerdon.worlds.bfcl import _SUITE, BFCL, _rows, gold_calls, tools_of
from tables import refuses

pytestmark = pytest.mark.skipif(find_spec("bfcl_eval") is None, reason="bfcl-eval is not installed: make env-worlds")


def row(task):
    return {"messages": [{"role": "user", "content": task}]}


def calling(*calls, **more):
    made = [{"id": f"call_{k}", "type": "function", "function": call} for k, call in enumerate(calls)]
    return {"role": "assistant", "content": "", **({"tool_calls": made} if made else {}), **more}


DONE = {"role": "assistant", "content": "It is done."}


def played(task, turns, **given):
    """The last step of a task whose turns of the user are answered with these calls, and the rewards of all replies."""
    world, rewards = BFCL(**given), []
    step = world.reset(row(task))
    for turn in turns:
        for call in turn:
            step = world.step(calling(call))
            rewards.append(step.reward)
        step = world.step(DONE)
        rewards.append(step.reward)
    return step, rewards


def test_all_gold_solutions_score_one():
    tasks = list(_rows(_SUITE))
    assert len(tasks) == 200
    for task in tasks:
        turns = gold_calls(task)
        step, rewards = played(task, turns)
        paid = [reward for turn in turns for reward in [0.0] * len(turn) + [1.0]]
        assert (step.done, step.outcome, rewards) == (True, 1.0, paid), task


def test_what_is_no_solution():
    gold = gold_calls("multi_turn_base_0")
    step, rewards = played("multi_turn_base_0", [[] for _ in gold])
    assert (step.outcome, rewards) == (0.0, [0.0] * len(gold))
    *most, _ = gold[0]
    step, rewards = played("multi_turn_base_0", [most, *gold[1:]])
    assert step.outcome == 0.0
    assert not any(rewards)  # the state of later turns differs as well
    step, rewards = played("multi_turn_base_0", [*gold[:2], [], gold[3]])  # the state is right, a result is missing
    assert (step.outcome, sum(rewards)) == (0.0, 3.0)
    step, rewards = played("multi_turn_base_0", gold, turn_rewards=False)
    assert step.outcome == 1.0
    assert set(rewards) == {None}


def test_calls_that_cannot_be_made():
    world = BFCL()
    begun = world.reset(row("multi_turn_base_0"))
    functions = {tool["function"]["name"] for tool in begun.tools}
    assert {"cd", "post_tweet"} <= functions
    assert "cp" not in functions  # which the task excludes
    schema = next(tool["function"]["parameters"] for tool in begun.tools if tool["function"]["name"] == "cd")
    assert schema["type"] == "object"
    wrong = [
        {"name": "cp", "arguments": {}}, {"name": "_load_scenario", "arguments": {}},
        {"name": "cd", "arguments": {"place": "x"}}, {"name": "cd", "arguments": {"folder": "document"}},
    ]  # fmt: skip
    step = world.step(calling(*wrong, bad_calls={1: "a call is not JSON"}))
    texts = [message["content"] for message in step.messages]
    assert texts[1] == "error: a call is not JSON"
    assert "tool_call_id" not in step.messages[1]
    assert all(text.startswith("error: there is no function") for text in (texts[0], texts[2])), texts
    assert texts[3].startswith("error: TypeError"), texts
    assert texts[4] == '{"current_working_directory": "document"}'
    assert step.messages[4]["tool_call_id"] == "call_3"
    assert step.state != begun.state
    with refuses("prompt", "did you mean multi_turn_base_1"):
        world.reset(row("multi_turn_bas_1"))


@pytest.mark.slow
def test_a_call_that_would_not_end_is_answered_with_an_error():
    task = next(task for task, one in _rows(_SUITE).items() if "MathAPI" in one["involved_classes"])
    world = BFCL()
    world.reset(row(task))
    hang = {"name": "logarithm", "arguments": {"value": 2, "base": 3, "precision": 10**9}}
    fine = {"name": "add", "arguments": {"a": 1, "b": 2}}
    step = world.step(calling(hang, fine))
    assert [message["content"] for message in step.messages] == [
        "error: logarithm needs too much time or memory", '{"result": 3}'
    ]  # fmt: skip


def test_a_conversation_of_the_loop():
    chosen = OwnAgentSettings(type="bfcl", max_turns=4)
    agent = agent_of(chosen, temperature=1.0)
    tokenizer = byte_tokenizer()
    task = "multi_turn_base_10"
    assert len(tools_of(task)) > 3

    def write(prompt, u):
        replies = prompt.count("<|assistant|>") - 1
        call = '<tool_call>{"name": "pwd", "arguments": {}}</tool_call><tool_call>{"name": "pwd"</tool_call>'
        return call if replies == 0 else "Done."

    data = PromptsDataSettings(path="unread.jsonl", max_response_length=120)
    loop = ConversationLoop(
        tokenizer, Says(tokenizer, write), agent, chosen, data, stops=stop_ids(tokenizer), room=None
    )
    (one,) = loop.lead([Prompt("a", ({"role": "user", "content": task},), "", "bfcl")], root=1)
    assert one.failure is None
    assert (one.truncated, one.outcome, one.paid, one.contexts, len(one.calls)) == (True, 0.0, True, 1, 4)
    assert (one.counts["calls"], one.counts["bad_calls"]) == (2, 1)
    results = [message["content"] for message in one.messages if message["role"] == "tool"]
    assert [text.startswith("error: a call is not JSON") for text in results] == [False, True]
