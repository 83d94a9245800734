"""`/classify`, `/pooling` and `/v1/models` in vLLM's shapes."""

import pytest
from foreign import serving

TEXT = "<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"


def chat(answer):
    return [{"role": "user", "content": "3+5=?"}, {"role": "assistant", "content": answer}]


@pytest.fixture(scope="module")
def served():
    with serving(default="orm") as (client, models):
        yield client, models


def test_models_are_listed(served):
    client, _ = served
    answer = client.get("/v1/models").json()
    assert answer["object"] == "list"
    assert [m["id"] for m in answer["data"]] == ["video", "frame", "prm", "orm"]
    assert all(m["object"] == "model" and m["created"] > 0 for m in answer["data"])


def test_one_value_per_response(served):
    client, models = served
    body = {"model": "orm", "input": TEXT.format("eight, I think"), "use_activation": False}
    answer = client.post("/classify", json=body).json()
    assert answer["data"] == [{"index": 0, "label": None, "probs": [4.0], "num_classes": 1, "failure": None}]
    assert (answer["object"], answer["model"]) == ("list", "orm")
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7, "completion_tokens": 0}
    assert models["orm"].seen[-1].task == "3+5=?"
    several = client.post("/classify", json={"input": [TEXT.format("eight, I think"), TEXT.format("8")]}).json()
    assert [item["probs"][-1] for item in several["data"]] == [4.0, -9.0]
    assert client.post("/classify", json={"messages": chat("eight, I think")}).json()["data"][0]["probs"] == [4.0]


def test_a_failed_item_has_a_reason_in_place_of_a_number(served):
    client, _ = served
    answer = client.post("/classify", json={"input": [TEXT.format("???"), TEXT.format("12 is the answer")]}).json()
    assert answer["data"][0]["probs"] is None
    assert answer["data"][0]["failure"] == {"reason": "unreadable", "detail": "three question marks"}
    assert answer["data"][1]["probs"] == [6.0]
    reply = client.post("/classify", json={"input": TEXT.format("???")})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "failed_measurement")


def test_no_activation_is_invented(served):
    client, _ = served
    for name in ("use_activation", "activation"):
        body = {"input": TEXT.format("8"), name: True}
        assert client.post("/classify", json={**body, "model": "orm"}).status_code == 422
        assert client.post("/classify", json={**body, "model": "prm"}).status_code == 200
        assert client.post("/classify", json={**body, "model": "orm", name: False}).status_code == 200


def test_a_row_per_step(served):
    client, models = served
    models["prm"].seen.clear()
    body = {"model": "prm", "messages": chat("3+5=8<extra_0>so it is 8<extra_0>"), "task": "token_classify"}
    answer = client.post("/pooling", json=body).json()
    assert answer["data"][0]["object"] == "pooling"
    assert answer["data"][0]["data"] == [pytest.approx([0.95, 0.05]), pytest.approx([0.90, 0.10])]
    assert models["prm"].seen[0].texts == ("3+5=8", "so it is 8")
    shepherd = client.post("/pooling", json={"model": "prm", "input": TEXT.format("3+5=8 ки\nso it is 8 ки")}).json()
    assert [row[1] for row in shepherd["data"][0]["data"]] == pytest.approx([0.05, 0.11])
    lines = client.post(
        "/pooling", params={"separator": "\n"}, json={"model": "prm", "input": TEXT.format("3+5=8\nso it is 8")}
    )
    assert [row[1] for row in lines.json()["data"][0]["data"]] == pytest.approx([0.06, 0.10])


def test_where_steps_end_is_not_guessed(served):
    client, _ = served
    for answer in ("3+5=8, so 8", "3+5=8<extra_0>so 8"):
        reply = client.post("/pooling", json={"model": "prm", "messages": chat(answer), "task": "token_classify"})
        assert reply.status_code == 422
    assert (
        client.post("/pooling", json={"model": "orm", "messages": chat("8"), "task": "token_classify"}).status_code
        == 422
    )


def test_pooling_of_whole_responses(served):
    client, _ = served
    for body in ({"model": "orm"}, {"model": "orm", "task": "classify"}):
        answer = client.post("/pooling", json={**body, "messages": chat("eight, I think")}).json()
        assert answer["data"][0]["data"] == [4.0]
    per_step = {"model": "prm", "task": "classify", "messages": chat("3+5=8<extra_0>so it is 8<extra_0>")}
    assert client.post("/pooling?aggregate=min", json=per_step).json()["data"][0]["data"] == pytest.approx([0.05])


def test_a_failed_item_of_steps_is_null(served):
    client, _ = served
    texts = [TEXT.format("???<extra_0>"), TEXT.format("right<extra_0>"), TEXT.format("a<extra_0>b")]
    answer = client.post("/pooling", json={"model": "prm", "input": texts}).json()
    assert [item["data"] is None for item in answer["data"]] == [True, False, True]
    assert [item["failure"] and item["failure"]["reason"] for item in answer["data"]] == [
        "unreadable",
        None,
        "unreadable",
    ]


@pytest.mark.parametrize(
    "body",
    [
        {}, {"input": [1, 2, 3]}, {"input": "no template"}, {"messages": []}, {"input": "x", "messages": chat("8")},
        {"input": TEXT.format("8"), "task": "embed"}, {"messages": [{"role": "user", "content": "8"}]},
        {"input": TEXT.format("8"), "task": "token_classify"},
    ],
)  # fmt: skip
def test_what_is_no_request(served, body):
    client, _ = served
    assert client.post("/classify", json=body).status_code == 422


def test_an_unknown_model_is_a_404(served):
    client, _ = served
    for route in ("/classify", "/pooling"):
        assert client.post(route, json={"model": "nobody", "input": TEXT.format("8")}).status_code == 404
    assert client.post("/classify?model=prm", json={"model": "orm", "input": TEXT.format("8")}).status_code == 422
