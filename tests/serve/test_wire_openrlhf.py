"""`POST /get_reward` as OpenRLHF calls it, `POST /rm` as slime does."""

import pytest
from foreign import serving

PROMPT = "<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def served():
    with serving(default="orm") as (client, models):
        yield client, models


def test_one_reward_per_text_from_the_response_alone(served):
    client, models = served
    models["orm"].seen.clear()
    answers = ["eight, I think", "it is certainly 8"]
    body = {"query": [PROMPT + a + "<|im_end|>" for a in answers], "prompts": [PROMPT] * 2, "labels": ["8", "8"]}
    reply = client.post("/get_reward", json=body)
    assert reply.status_code == 200
    rewards = [float(len(a) - 10) for a in answers]
    assert reply.json() == {"rewards": rewards, "scores": rewards, "extra_logs": {"failed": [0.0, 0.0]}}
    assert {(e.task, *e.texts) for e in models["orm"].seen} == {("3+5=?", a) for a in answers}


def test_without_prompts_the_template_decides(served):
    client, _ = served
    reply = client.post("/get_reward", json={"query": [PROMPT + "eight, I think<|im_end|>\n"]})
    assert reply.json()["rewards"] == [4.0]


def test_a_failed_item_is_null_and_counted(served):
    client, _ = served
    reply = client.post("/get_reward", json={"query": [PROMPT + "???", PROMPT + "it is 8 then", "no template"]})
    assert reply.status_code == 200
    assert reply.json() == {
        "rewards": [None, 2.0, None],
        "scores": [None, 2.0, None],
        "extra_logs": {"failed": [1.0, 0.0, 1.0]},
    }


def test_where_nothing_is_measured_the_answer_is_an_error(served):
    client, _ = served
    reply = client.post("/get_reward", json={"query": [PROMPT + "???"], "prompts": [PROMPT], "labels": [None]})
    assert reply.status_code == 422
    assert reply.json()["error"]["code"] == "failed_measurement"
    assert "three question marks" in reply.json()["error"]["message"]


def test_the_address_chooses_model_aggregate_and_separator(served):
    client, models = served
    models["prm"].seen.clear()
    body = {"query": [PROMPT + "x" * 30 + "\n\n" + "x" * 70], "prompts": [PROMPT]}
    values = {
        how: client.post(f"/get_reward?model=prm&aggregate={how}", json=body).json()["rewards"][0]
        for how in ("last", "min", "prod", "mean")
    }
    assert values == pytest.approx({"last": 0.7, "min": 0.32, "prod": 0.224, "mean": 0.51})
    assert models["prm"].seen[0].texts == ("x" * 30 + "\n\n", "x" * 70)
    one = client.post("/get_reward", params={"model": "prm", "separator": "@"}, json={"query": [PROMPT + "a@bc"]})
    assert one.json()["rewards"] == pytest.approx([0.02])
    for query, status in (("model=nobody", 404), ("aggregate=max", 422), ("aggregate=min", 422), ("separator=a", 422)):
        assert client.post(f"/get_reward?{query}", json=body).status_code == status


def test_no_texts_no_rewards(served):
    client, _ = served
    assert client.post("/get_reward", json={"query": []}).json()["rewards"] == []


@pytest.mark.hostile("http")
@pytest.mark.parametrize(
    "body",
    [{}, {"query": "one"}, {"query": [1]}, {"query": ["a"], "prompts": []}, {"query": ["a"], "labels": [1, 2]}, [], 3],
)
def test_what_is_no_request(served, body):
    client, _ = served
    assert client.post("/get_reward", json=body).status_code == 422


@pytest.mark.hostile("http")
def test_a_request_over_the_limits():
    with serving(default="orm", limits={"max_items": 2, "max_characters": 100, "max_steps": 3}) as (client, _):
        assert client.post("/get_reward", json={"query": [PROMPT + "a"] * 3}).status_code == 422
        assert client.post("/get_reward", json={"query": [PROMPT + "a" * 200]}).status_code == 422
        many = {"query": [PROMPT + "a\n\nb\n\nc\n\nd"]}
        assert client.post("/get_reward?model=prm", json=many).status_code == 422
        assert client.post("/get_reward?model=orm", json=many).status_code == 200


def test_slime_gets_a_bare_number(served):
    client, models = served
    reply = client.post("/rm", json={"prompt": "3+5=?", "response": "eight, I think", "label": "8"})
    assert (reply.status_code, reply.json()) == (200, 4.0)
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "3+5=?"}]
    assert client.post("/rm", json={"prompt": chat, "response": "eight, I think</s>", "label": None}).json() == 4.0
    assert models["orm"].seen[-1].task == "3+5=?"
    assert client.post("/rm", json={"prompt": PROMPT, "response": "eight, I think"}).json() == 4.0
    failed = client.post("/rm", json={"prompt": "3+5=?", "response": "???"})
    assert (failed.status_code, failed.json()["error"]["code"]) == (422, "failed_measurement")
    assert client.post("/rm", json={"prompt": [], "response": "8"}).status_code == 422
    assert client.post("/rm", json={"prompt": [{"role": "user"}], "response": "8"}).status_code == 422
