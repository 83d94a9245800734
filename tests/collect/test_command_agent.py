"""Programs that lead conversations, and the endpoint that they call."""

import json
import os
import signal
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agent_parts import Says
from guerdon.collect.agents import Moment, check_agent_here
from guerdon.collect.command_agent import CommandAgent, Output, result_of
from guerdon.collect.conversations import ConversationLoop, agent_of
from guerdon.collect.endpoint import MODEL, Endpoint
from guerdon.policies.batches.dialogues import Reply
from guerdon.policies.batches.tokens import stop_ids
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.processes.progress import log_once
from guerdon.settings.agent import CommandAgentSettings
from guerdon.settings.data import FilesDataSettings
from guerdon.tasks.prompts import Prompt
from tables import cases, refuses

PROGRAM = str(Path(__file__).parent.parent / "agent_program.py")
TOKENIZER = byte_tokenizer()
DATA = FilesDataSettings(train_files="unread.jsonl", max_response_length=40)
PROMPTS = [Prompt(f"row{k}", ({"role": "user", "content": "a"},), "1", "letters") for k in range(4)]


def lead(how, write, prompts=PROMPTS[:1], **given):
    chosen = CommandAgentSettings(command=(sys.executable, PROGRAM, how), **given)
    agent = agent_of(chosen, temperature=1.0)
    try:
        engine = Says(TOKENIZER, write)
        loop = ConversationLoop(TOKENIZER, engine, agent, chosen, DATA, stops=stop_ids(TOKENIZER), room=None)
        return loop.lead(prompts, root=3), engine
    finally:
        agent.close()


def test_programs_are_answered_in_rounds_whatever_they_take():
    def write(prompt, u):
        return "1" if u > 0.3 else "0"

    found, engine = lead("two", write, PROMPTS)
    assert engine.rounds == [4, 4]  # programs wait 0 to 30 ms before each call
    again, _ = lead("two", write, PROMPTS, processes_at_once=2)
    for one, other in zip(found, again, strict=True):
        assert [call.ids.tolist() for call in one.calls] == [call.ids.tolist() for call in other.calls]
        rewards = [float(TOKENIZER.decode(call.ids.tolist()).startswith("1")) for call in one.calls]
        assert [call.reward for call in one.calls] == rewards
        assert (one.outcome, one.success, one.contexts) == (sum(rewards) / 2, rewards == [1.0, 1.0], 1)


ENDS = [
    ("exit", {}, "agent_exit", False), ("hang", {"episode_timeout": 1.5}, "agent_timeout", False),
    ("many", {"max_turns": 2}, None, True), ("complains", {"max_turns": 2}, None, True), ("one", {}, None, False),
]  # fmt: skip


@cases("how, given, reason, truncated", ENDS)
def test_how_programs_end(how, given, reason, truncated):
    (one,), _ = lead(how, lambda prompt, u: "1", **given)
    assert (one.failure and one.failure.reason, one.truncated) == (reason, truncated)
    if how == "exit":
        assert one.failure.detail == "exit status 1: broken on purpose"


def test_a_script_that_cannot_be_executed_is_said_to_need_its_interpreter(tmp_path):
    script = tmp_path / "agent.py"
    script.write_text("print(1)")
    for program, words in ((str(script), "cannot be executed: write its interpreter"), (str(tmp_path), "no program")):
        with refuses("agent.command", words):
            check_agent_here(CommandAgentSettings(command=(program,)))


RESULTS = [
    ({"reward": 1}, (1.0, None, None)), ({"success": True}, (None, None, True)),
    ({"reward": 0, "rewards": [1, None], "success": True}, (0.0, (1.0, None), True)),
    ({"reward": None, "rewards": [1, 0]}, (None, (1.0, 0.0), None)),
    ({"reward": None}, "no_reward: the program says that its reward is not known"),
    ({"error": "no"}, "agent_error: no"), ({"rewards": [1]}, "not one for each of 2 calls"),
    ({"reward": True}, "not all finite numbers"), ({"reward": float("nan")}, "not all finite numbers"),
    ({"reward": 10**400}, "not all finite numbers"), ({"rewards": [10**400, 1]}, "not all finite numbers"),
    ({"success": 1}, "its success is not"), ({}, "but nothing"),
    ({"rewrad": 1}, "it has none of reward, rewards, success, error, but 'rewrad'"),
]  # fmt: skip


@cases("result, expected", RESULTS)
def test_results_of_programs(result, expected):
    found = result_of(result, 2)
    if isinstance(expected, str):
        assert expected in str(found.outcome)
    else:
        assert (found.outcome, found.rewards, found.success) == expected


def test_after_a_limit_an_error_or_an_unknown_reward_is_no_failure():
    assert result_of({"error": "full"}, 2, cut_off=True) == Moment()
    assert result_of({"error": "full", "reward": 0.5}, 2, cut_off=True) == Moment(outcome=0.5)
    assert result_of({"reward": None}, 2, cut_off=True) == Moment()


LONG = b'{"note": "' + b"x" * (17 << 20) + b'"}'
OUTPUTS = [
    ([b'{"a": 1}\nnoise\n[1]\n{"b": \n'], {"a": 1}), ([b"nothing"], None), ([b'{"a', b'": 1}'], {"a": 1}),
    (['{"a": "\u2028\x85\x0b"}'.encode().replace(b"\x0b", b"\\u000b")], {"a": "\u2028\x85\x0b"}),
    ([b'{"a": 1}\n', *[b"noise " * 1000] * 500, b"\n"], {"a": 1}), ([b'{"a": "\xff"}\r\n'], {"a": "\ufffd"}),
    ([b'{"a": 1}\n', LONG], "longer than 16 MiB"), ([LONG, b'\n{"a": 1}'], {"a": 1}), ([LONG[1:]], None),
]  # fmt: skip


def test_the_last_object_of_an_output():
    for pieces, expected in OUTPUTS:
        output = Output()
        for piece in pieces:
            output.add(piece)
        output.close()
        found = output.problem if isinstance(expected, str) else output.result
        assert expected in found if isinstance(expected, str) else found == expected, pieces[0][:40]


def test_what_a_program_leaves_in_a_session_of_its_own_does_not_delay_its_result(tmp_path, monkeypatch):
    monkeypatch.setenv("LEFT", str(tmp_path / "left"))
    (one,), _ = lead("leaves", lambda prompt, u: "1", episode_timeout=30.0)
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert (one.outcome, one.failure) == (0.5, None)


def test_rewards_that_are_all_unknown_are_not_those_of_the_verifier():
    (one,), _ = lead("unknown", lambda prompt, u: "1")
    assert ([call.reward for call in one.calls], one.outcome, one.paid) == ([None], None, True)


@pytest.fixture
def line():
    endpoint = Endpoint(1.0)
    url, key = endpoint.open(0)
    yield endpoint, urlsplit(url), key
    endpoint.close()


def send(at, key, method, path, body=b"", **headers):
    """The status and the text of the answer to a request."""
    connection = HTTPConnection(at.hostname, at.port, timeout=60)
    connection.request(method, at.path + path, body, {"Authorization": f"Bearer {key}", **headers})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def post(at, key, body, **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(at, key, "POST", "/chat/completions", data, **headers)


USER = [{"role": "user", "content": "a"}]
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
REFUSED = [
    (b"{", 400, "not JSON"), (b"[]", 400, "JSON object"), ({}, 400, "messages"),
    ({"messages": USER, "n": 2}, 400, "n above 1"), ({"messages": PICTURE}, 400, "not of type 'image_url'"),
    ({"messages": USER, "response_format": {"type": "json_object"}}, 400, "response_format"),
    ({"messages": USER, "stop": 3}, 400, "stop is a text"),
    ({"messages": USER, "stream": True, "stream_options": "usage"}, 400, "stream_options is"),
    ({"messages": USER, "max_tokens": 0}, 400, "above 0"),
]  # fmt: skip


def test_requests_that_are_refused(line):
    _, at, key = line
    for body, status, words in REFUSED:
        found = post(at, key, body)
        assert found[0] == status, (body, found)
        assert words in json.loads(found[1])["error"]["message"], (body, found)
    for wrong in ("sk-wrong", "sk-\xe9"):
        assert post(at, wrong, {"messages": USER})[0] == 401
    assert post(at._replace(path="/other/v1"), key, {"messages": USER})[0] == 404


def test_addresses_other_than_those_of_the_conversation(line):
    _, at, key = line
    listed = json.loads(send(at, key, "GET", "/models")[1])
    assert [model["id"] for model in listed["data"]] == [MODEL]
    assert json.loads(send(at, key, "GET", f"/models/{MODEL}")[1]) == listed["data"][0]
    for method, path in (("GET", "/models/other"), ("GET", "/chat/completions"), ("POST", "/completions")):
        status, text = send(at, key, method, path)
        assert (status, json.loads(text)["error"]["code"]) == (404, "not_found")
        assert path in json.loads(text)["error"]["message"]
    status, text = send(at, "sk-wrong", "GET", "/models")
    assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")


def test_a_request_that_is_too_large_is_not_read(line):
    _, at, key = line
    status, text = send(at, key, "POST", "/chat/completions", None, **{"Content-Length": str((64 << 20) + 1)})
    assert (status, json.loads(text)["error"]["message"]) == (413, "the request is too large")


def test_a_request_whose_length_is_not_known_is_not_read(line):
    _, at, key = line
    for headers in ({"Content-Length": "abc"}, {"Content-Length": "-5"}, {"Transfer-Encoding": "chunked"}):
        status, text = send(at, key, "POST", "/chat/completions", None, **headers)
        assert status == 411, headers
        assert "needs a Content-Length" in json.loads(text)["error"]["message"], headers


def waiting(endpoint, count):
    with endpoint.changed:
        assert endpoint.changed.wait_for(lambda: len(endpoint.waiting(0)) == count, timeout=60)
        return endpoint.waiting(0)


def asked(at, key, body, **headers):
    """A request in a thread, and the list that gets its reply."""
    found = []
    thread = threading.Thread(target=lambda: found.append(post(at, key, body, **headers)), daemon=True)
    thread.start()
    return thread, found


CALL = {"type": "function", "id": "call_0", "function": {"name": "f", "arguments": {"x": "é"}}}


def test_a_repeated_request_is_no_second_call(line):
    endpoint, at, key = line
    body = {"messages": USER, "stop": ["\n"], "max_tokens": 9, "max_completion_tokens": 7}
    first, one = asked(at, key, body)
    (request,) = waiting(endpoint, 1)
    assert (request.request.stop, request.request.most) == (("\n",), 7)
    second, two = asked(at, key, body, **{"x-stainless-retry-count": "1"})  # before or after the reply
    endpoint.answer(0, request, Reply({"role": "assistant", "content": "", "tool_calls": [CALL]}, {}, True, (3, 4)))
    first.join()
    second.join()
    assert one == two
    reply = json.loads(one[0][1])
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert json.loads(reply["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {"x": "é"}
    assert reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_streams_and_a_full_context(line):
    endpoint, at, key = line
    thread, found = asked(at, key, {"messages": USER, "stream": True, "stream_options": {"include_usage": True}})
    (request,) = waiting(endpoint, 1)
    endpoint.answer(0, request, Reply({"role": "assistant", "content": "hi"}, {}, False, (1, 2)))
    thread.join()
    *chunks, end = [event.removeprefix("data: ") for event in found[0][1].strip().split("\n\n")]
    assert end == "[DONE]"
    chunks = [json.loads(chunk) for chunk in chunks]
    assert chunks[0]["choices"][0]["delta"]["content"] == "hi"
    assert chunks[1]["choices"][0]["finish_reason"] == "length"
    assert chunks[2]["usage"]["total_tokens"] == 3
    thread, found = asked(at, key, {"messages": USER})
    (request,) = waiting(endpoint, 1)
    endpoint.answer(0, request, None)
    thread.join()
    assert found[0][0] == 400
    assert json.loads(found[0][1])["error"]["code"] == "context_length_exceeded"


def test_a_stream_numbers_the_calls_of_tools(line):
    endpoint, at, key = line
    thread, found = asked(at, key, {"messages": USER, "stream": True})
    (request,) = waiting(endpoint, 1)
    calls = [CALL, {**CALL, "id": "call_1"}]
    endpoint.answer(0, request, Reply({"role": "assistant", "content": "", "tool_calls": calls}, {}))
    thread.join()
    first, last, end = [event.removeprefix("data: ") for event in found[0][1].strip().split("\n\n")]
    shown = json.loads(first)["choices"][0]["delta"]["tool_calls"]
    assert [(call["index"], call["id"]) for call in shown] == [(0, "call_0"), (1, "call_1")]
    assert json.loads(last)["choices"][0]["finish_reason"] == "tool_calls"
    assert end == "[DONE]"


def test_a_request_that_waits_when_its_conversation_ends_gets_an_error(line):
    endpoint, at, key = line
    thread, found = asked(at, key, {"messages": USER})
    waiting(endpoint, 1)
    endpoint.shut(0)
    thread.join()
    assert (found[0][0], json.loads(found[0][1])["error"]["code"]) == (400, "context_length_exceeded")
    assert post(at, key, {"messages": USER})[0] == 404


def test_what_is_asked_for_and_not_done_is_said(line, capsys):
    endpoint, _, key = line
    (name,) = endpoint._lines
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]

    def taken(**more):
        log_once.cache_clear()
        body = json.dumps({"messages": USER, "tools": tools, **more}).encode()
        found = endpoint.take(name, key, body, again=False).request
        return [tool["function"]["name"] for tool in found.tools], capsys.readouterr().err

    assert taken(tool_choice="auto", temperature=1.0) == (["f"], "")
    assert taken(tool_choice="none") == ([], "")
    names, said = taken(tool_choice="required")
    assert (names, "tool_choice, which nothing enforces" in said) == (["f"], True)
    assert "sampled with that of the run (1)" in taken(temperature=0.3)[1]


def test_a_program_that_cannot_be_started_is_a_failure():
    chosen = CommandAgentSettings(command=("/there/is/none",))
    agent = CommandAgent(chosen, temperature=1.0)
    moments = agent.start({3: PROMPTS[0]})
    agent.close()
    assert moments[3].outcome.reason == "agent_exit"
    assert "cannot be started" in moments[3].outcome.detail


def test_many_clients_connect_at_once(line):
    endpoint, at, key = line
    jobs = [asked(at, key, {"messages": [{"role": "user", "content": str(k)}]}) for k in range(256)]
    for request in waiting(endpoint, 256):
        said = request.request.messages[0]["content"]
        endpoint.answer(0, request, Reply({"role": "assistant", "content": said}, {}))
    for k, (thread, found) in enumerate(jobs):
        thread.join()
        assert json.loads(found[0][1])["choices"][0]["message"]["content"] == str(k)
