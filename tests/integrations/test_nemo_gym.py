"""The resources server of NeMo-Gym over HTTP: which conversation and which answer of a row are scored."""

import gzip
import socket
import threading

import pytest

from guerdon.integrations.text import TextScorer
from guerdon.types import RewardInfo, Score

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install guerdon[serve]")
import httpx2 as httpx
import uvicorn

from guerdon.integrations.nemo_gym import build_app


class Recorder:
    """A reward model that keeps what it is given; the reward is the length of the answer."""

    info = RewardInfo("recorder", (0.0, 1000.0), granularity="total", modality="text", frames_needed=0)

    def __init__(self):
        self.seen = []

    def score(self, episodes):
        self.seen += episodes
        return [Score(total=float(len("".join(episode.texts)))) for episode in episodes]


@pytest.fixture(scope="module")
def served():
    """A client of a server in this process, on a port of its own, and the model behind it."""
    model = Recorder()
    config = uvicorn.Config(build_app(TextScorer(model)), log_level="error")
    server = uvicorn.Server(config)
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        line.listen()  # a request before the server is up waits
        thread = threading.Thread(target=server.run, kwargs={"sockets": [line]})
        thread.start()
        with httpx.Client(base_url=f"http://127.0.0.1:{line.getsockname()[1]}", timeout=60) as client:
            yield client, model
        server.should_exit = True
        thread.join()


def message(text, kind="output_text", role="assistant"):
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


ASK, SYSTEM = {"role": "user", "content": "How many eggs?"}, {"role": "system", "content": "Count in dozens."}
CALL = {"type": "function_call", "call_id": "c1", "name": "count", "arguments": '{"of": "eggs"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "24"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "id": "c1", "function": {"name": "count", "arguments": {"of": "eggs"}}}]}  # fmt: skip
RETURNED = {"role": "tool", "tool_call_id": "c1", "content": "24"}
TOOL = {"type": "function", "function": {"name": "count"}}
REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}

READ = {  # responses_create_params, output: the conversation, the answer, the tools
    "a text": ({"input": "How many eggs?"}, [message("Two.")], [ASK], "Two.", []),
    "messages": ({"input": [ASK]}, [message("Two.")], [ASK], "Two.", []),
    "messages with a type": ({"input": [{"type": "message", **ASK}]}, [message("Two.")], [ASK], "Two.", []),
    "parts": ({"input": [message("How many eggs?", "input_text", "user")]}, [message("Two.")], [ASK], "Two.", []),
    "several parts": (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "How many "},
                                                {"type": "input_text", "text": "eggs?"}]}]},
        [message("Two.")], [ASK], "Two.", []),
    "a text as content": ({"input": [ASK]}, [{"role": "assistant", "content": "Two."}], [ASK], "Two.", []),
    "instructions": ({"input": "How many eggs?", "instructions": SYSTEM["content"]}, [message("Two.")],
                     [SYSTEM, ASK], "Two.", []),
    "a developer": ({"input": [{**SYSTEM, "role": "developer"}, ASK]}, [message("Two.")], [SYSTEM, ASK], "Two.", []),
    "reasoning": ({"input": [ASK]}, [REASONING, message("Two.")], [ASK], "Two.", []),
    "a call": ({"input": [ASK], "tools": [TOOL]}, [CALL, OUTPUT, message("24")], [ASK, CALLED, RETURNED], "24", [TOOL]),
    "a call of a text": ({"input": "How many eggs?", "tools": [TOOL]}, [REASONING, CALL, OUTPUT, REASONING,
                         message("24")], [ASK, {**CALLED, "reasoning_content": "hm"}, RETURNED], "24", [TOOL]),
    "reasoning in two items": (
        {"input": [ASK], "tools": [TOOL]},
        [REASONING, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
         {"type": "reasoning", "encrypted_content": "x"}, message("Look:"), CALL, OUTPUT, message("24")],
        [ASK, {**CALLED, "content": "Look:", "reasoning_content": "hm\nso"}, RETURNED], "24", [TOOL]),
    "chat messages": (
        {"input": [ASK], "tools": [TOOL]},
        [{**CALLED, "content": None}, RETURNED, {"role": "assistant", "content": "24"}],
        [ASK, CALLED, RETURNED], "24", [TOOL]),
    "calls at a time": (
        {"input": [ASK], "tools": [TOOL]},
        [message("Look:"), CALL, {**CALL, "call_id": "c2"}, OUTPUT, {**OUTPUT, "call_id": "c2"}, message("24")],
        [ASK, {**CALLED, "content": "Look:", "tool_calls": [*CALLED["tool_calls"],
                                                           {**CALLED["tool_calls"][0], "id": "c2"}]},
         RETURNED, {**RETURNED, "tool_call_id": "c2"}], "24", [TOOL]),
    "an earlier call": ({"input": [ASK, CALL, OUTPUT], "tools": [TOOL]}, [message("24")],
                        [ASK, CALLED, RETURNED], "24", [TOOL]),
    "an earlier answer": ({"input": [ASK, {"role": "assistant", "content": "Two."}, {**ASK, "content": "And now?"}]},
                          [message("Three.")],
                          [ASK, {"role": "assistant", "content": "Two."}, {**ASK, "content": "And now?"}],
                          "Three.", []),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_is_scored(name, served):
    client, model = served
    params, output, conversation, answer, tools = READ[name]
    model.seen.clear()
    row = {"responses_create_params": params, "id": 7}
    assert client.post("/seed_session", json=row).json() == {}
    body = row | {"response": {"output": output}}
    reply = client.post("/verify", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json() == body | {"reward": float(len(answer))}
    (episode,) = model.seen
    assert episode.task == next(m["content"] for m in reversed(conversation) if m["role"] == "user")
    assert (list(episode.context) or [ASK], "".join(episode.texts), list(episode.tools)) == (
        conversation,
        answer,
        tools,
    )


REFUSED = {
    "no output": [],
    "no list": 5,
    "reasoning alone": [REASONING],
    "a call without its result": [CALL],
    "a result without an answer": [CALL, OUTPUT],
    "two messages": [message("One."), message("Two.")],
    "a chat message with a call": [{**CALLED, "content": "Look:"}],
    "a turn of another role": [message("One."), {"role": "user", "content": "Two."}],
    "a message before a call": [message("One."), CALL],
    "a message after a call without its result": [CALL, message("One.")],
    "an item of another kind": [{"type": "web_search_call", "id": "w"}, message("Two.")],
    "no item": ["Two."],
    "a refusal": [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
    "no parts": [{"type": "message", "role": "assistant", "content": ["Two."]}],
    "a part of no kind": [{"type": "message", "role": "assistant", "content": [{"type": ["text"], "text": "Two."}]}],
    "a picture": [message("x", "input_image")],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_no_number(name, served):
    client, _ = served
    reply = client.post("/verify", json={"responses_create_params": {"input": [ASK]},
                                         "response": {"output": REFUSED[name]}})  # fmt: skip
    assert reply.status_code == 422, reply.text
    assert reply.json()["error"]["code"] == "failed_measurement"
    assert reply.json()["error"]["message"]


@pytest.mark.parametrize("given", [[], None, 5, {"a": 1}, ["How many?"], [SYSTEM], [{"type": "item_reference"}, ASK]])
def test_a_question_that_cannot_be_read_is_no_number(given, served):
    client, _ = served
    body = {"responses_create_params": {"input": given}, "response": {"output": [message("Two.")]}}
    reply = client.post("/verify", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "failed_measurement"), reply.text


@pytest.mark.parametrize("encodings", [["gzip"], ["deflate"], ["br"], ["zstd"], ["identity", "gzip"], ["X-GZIP"]])
def test_a_compressed_body_is_refused_by_its_encoding(encodings, served):
    client, _ = served
    headers = [("content-encoding", encoding) for encoding in encodings]
    reply = client.post("/verify", content=gzip.compress(b"{}"), headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert encodings[-1].lower() in reply.json()["error"]["message"]
    plain = [("content-encoding", encoding) for encoding in ("identity", "Identity")]
    body = {"responses_create_params": {"input": "q"}, "response": {"output": [message("8")]}}
    assert client.post("/verify", json=body, headers=plain).status_code == 200


@pytest.mark.parametrize("body", [{}, [], {"responses_create_params": 5, "response": {}}, {"response": {"output": []}}])
def test_a_body_of_another_shape_says_what_is_wrong(body, served):
    client, _ = served
    reply = client.post("/verify", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")
