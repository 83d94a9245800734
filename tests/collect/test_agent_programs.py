"""Programs of other packages, unchanged, at the endpoint. `make test-agents` installs them and runs this file."""

import os
from pathlib import Path

import pytest

from agent_parts import Says
from guerdon.collect.conversations import ConversationLoop, agent_of
from guerdon.policies.batches.tokens import stop_ids
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.settings.agent import CommandAgentSettings
from guerdon.settings.data import FilesDataSettings
from guerdon.tasks.prompts import Prompt

FOLDER = os.environ.get("GUERDON_AGENTS")  # with an environment for each program
EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
TOKENIZER = byte_tokenizer()
QUESTION = ({"role": "user", "content": "What is 17 * 23?"},)
ROWS = [Prompt(f"row{k}", QUESTION, "391", "products", extra_info={"answer": "391"}) for k in range(2)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOLDER is None, reason="GUERDON_AGENTS names no folder of environments: make test-agents"),
]


def call(name, arguments):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def lead(name, program, write, rows=ROWS):
    """Conversations of a program whose replies a function of the prompt gives, and the engine that asked it."""
    chosen = CommandAgentSettings(
        command=(str(Path(FOLDER) / name / "bin" / "python"), str(program)), max_turns=4, episode_timeout=240
    )
    data = FilesDataSettings(train_files="unread.jsonl", max_response_length=200)
    agent, engine = agent_of(chosen, temperature=1.0), Says(TOKENIZER, write)
    try:
        loop = ConversationLoop(TOKENIZER, engine, agent, chosen, data, stops=stop_ids(TOKENIZER), room=None)
        return loop.lead(rows, root=1), engine
    finally:
        agent.close()


def multiplies(prompt, u):
    """Call `multiply`, and answer with its result."""
    done = "<tool_response>\n391" in prompt
    return "It is 391." if done else call("multiply", '{"a": 17, "b": 23}')


def multiplies_for_smolagents(prompt, u):
    done = "Observation:\n391" in prompt
    return call("final_answer", '{"answer": "391"}') if done else call("multiply", '{"a": 17, "b": 23}')


def computes_in_the_shell(prompt, u):
    if "<output>\n391" in prompt:
        return call("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo 391"}')
    return call("bash", '{"command": "echo $((17 * 23))"}')


PROGRAMS = {  # environment: program, replies, calls of the model, contexts
    "openai": ("openai_client.py", multiplies, 2, 1),
    "langgraph": ("langgraph_agent.py", multiplies, 2, 1),
    "smolagents": ("smolagents_agent.py", multiplies_for_smolagents, 2, 2),
    "mini-swe-agent": ("mini_swe_agent.py", computes_in_the_shell, 2, 1),
    "mcp": ("mcp_client.py", multiplies, 2, 1),
    "verifiers": ("vf_eval.py", lambda prompt, u: "It is 391.", 1, 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_as_it_is(name):
    program, write, calls, contexts = PROGRAMS[name]
    found, engine = lead(name, EXAMPLES / program, write)
    assert engine.rounds == [2] * calls
    for one in found:
        assert (one.failure, one.outcome, one.truncated) == (None, 1.0, False)
        assert (len(one.calls), one.contexts) == (calls, contexts)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_whose_model_goes_on_for_ever(name):
    """It asks until there is no turn left, or ends by itself; neither is a failure."""
    program, write, _, _ = PROGRAMS[name]
    again = write("", 0.0)
    (one,), _ = lead(name, EXAMPLES / program, lambda prompt, u: again, ROWS[:1])
    assert one.failure is None
    assert 1 <= len(one.calls) <= 4


CLIENT = """
import json, os, sys
from openai import OpenAI, BadRequestError
row = json.loads(sys.stdin.readline())
client, messages = OpenAI(), row["messages"]
tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
model = os.environ["OPENAI_MODEL"]
assert [m.id for m in client.models.list()] == [model]
one = client.chat.completions.create(model=model, messages=messages, tools=tools).choices[0]
assert one.finish_reason == "tool_calls", one
messages += [one.message.model_dump(exclude_none=True),
             {"role": "tool", "tool_call_id": one.message.tool_calls[0].id, "content": "7"}]
with client.chat.completions.create(model=model, messages=messages, tools=tools, stream=True,
                                    stream_options={"include_usage": True}) as stream:
    said = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
assert said == "7", said
try:
    client.chat.completions.create(model=model, messages=messages, n=2)
except BadRequestError as error:
    refused = "n above 1" in str(error)
print(json.dumps({"reward": 1.0, "success": refused}))
"""


def test_what_the_client_of_openai_can_ask_for(tmp_path):
    program = tmp_path / "agent.py"
    program.write_text(CLIENT)

    def write(prompt, u):
        return "7" if "<tool_response>\n7" in prompt else call("f", "{}")

    (one,), _ = lead("openai", program, write, ROWS[:1])
    assert (one.failure, one.outcome, one.success, len(one.calls), one.contexts) == (None, 1.0, True, 2, 1)
