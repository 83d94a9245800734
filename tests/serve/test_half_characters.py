"""Half of a surrogate pair in a request: its item fails with a reason, on every route; the rest is scored."""

import asyncio
import json

import pytest
from foreign import FRAME, LOGIT, b64, grey, npy, serving

from guerdon.serve.wires.client_wire import RewardsFormat, ScoreFormat, ServerReply
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Episode

pytestmark = pytest.mark.hostile("texts")

HALF = "eight \ud83d then"
PROMPT = "<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def served():
    with serving(default="orm") as (client, _):
        yield client


def post(client, path, body):
    content = json.dumps(body).encode()
    assert b"\\ud83d" in content
    reply = client.post(path, content=content, headers={"content-type": "application/json"})
    reply.json()  # what comes back is UTF-8
    return reply


def chat(answer, question="3+5=?"):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_rewards(served):
    items = [
        {"prompt": "3+5=?", "completion": "it is 8 then"},
        {"prompt": "3+5=?", "completion": HALF},
        {"prompt": HALF, "completion": "it is 8 then"},
        {"messages": [{"role": "system", "content": HALF}, *chat("8")]},
        {"prompt": "\N{GRINNING FACE}", "completion": "it is 8 then, see"},
    ]
    reply = post(served, "/v1/rewards", {"items": items})
    assert reply.status_code == 200, reply.text
    found = reply.json()["results"]
    assert [item["score"] for item in found] == [2.0, None, None, None, 7.0]
    assert [item["failure"] and item["failure"]["reason"] for item in found][1:4] == ["lone_surrogate"] * 3
    again = post(served, "/v1/rewards", {"items": [{**items[0], "id": HALF}]})
    assert again.status_code in (400, 422)  # it could not be returned unchanged


def test_bodies_that_are_wrong_in_another_way_say_so(served):
    for content in (
        b'{"items": [{"prompt": "\\ud83d"',
        b'{"items": 7, "x": "\\ud83d"}',
        b'{"items": [{"prompt": "\\ud8',
    ):
        reply = served.post("/v1/rewards", content=content, headers={"content-type": "application/json"})
        assert reply.status_code in (400, 422), reply.text


def test_openrlhf_and_slime(served):
    body = {"query": [PROMPT + "it is 8 then", PROMPT + HALF], "prompts": [PROMPT] * 2}
    assert post(served, "/get_reward", body).json()["rewards"] == [2.0, None]
    for prompt in ("3+5=?", chat("8")[:1]):
        reply = post(served, "/rm", {"prompt": prompt, "response": HALF})
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "failed_measurement")


def test_vllm(served):
    body = {"input": [PROMPT + "it is 8 then<|im_end|>\n", PROMPT + HALF + "<|im_end|>\n"]}
    found = post(served, "/classify", body).json()["data"]
    assert [one["probs"] for one in found] == [[2.0], None]
    assert found[1]["failure"]["reason"] == "lone_surrogate"
    steps = {"messages": chat(f"3+5=8<extra_0>{HALF}<extra_0>"), "model": "prm"}
    assert post(served, "/pooling", steps).status_code == 422
    values = [one["data"] for one in post(served, "/pooling", {**body, "task": "classify"}).json()["data"]]
    assert values == [[2.0], None]


def test_frames_are_scored_where_the_model_reads_no_words(served):
    item = {"task": HALF, "npy_base64": b64(npy(grey([51])))}
    found = post(served, "/v1/rewards", {"model": "frame", "items": [item]}).json()["results"]
    assert found[0]["step_scores"] == pytest.approx([0.2])


def test_the_client_sends_no_other_text(served):
    """Texts fail before they are sent, with the rest of the batch kept; the task of frames arrives as it is."""
    sent = []

    async def send(path, *, content):
        sent.append(json.loads(content))
        return ServerReply(served.post(path, content=content, headers={"content-type": "application/json"}).json())

    def ask(model, episodes, info):
        wanted = RewardsFormat(RemoteSettings(endpoint="http://here", backend=model, upload="npy"))
        return [one.score for one in asyncio.run(wanted.ask(send, episodes, info, None))]

    texts = [Episode(id="0", task="3+5=?", texts=(text,)) for text in ("it is 8 then", HALF, "8")]
    scores = ask("orm", texts, LOGIT)
    assert [score.total for score in scores] == [2.0, None, -9.0]
    assert scores[1].failure.reason == "lone_surrogate"
    assert len(sent[0]["items"]) == 2
    (score,) = ask("frame", [Episode(id="0", task=HALF, frames=grey([51]))], FRAME)
    assert score.steps == pytest.approx([0.2])
    assert sent[-1]["items"][0]["task"] == HALF
    form = ScoreFormat(RemoteSettings(endpoint="http://here"))
    (judged,) = asyncio.run(form.ask(send, [Episode(id="0", task=HALF, frames=grey([51]))], FRAME, None))
    assert (judged.score.failure.reason, len(sent)) == ("lone_surrogate", 2)
