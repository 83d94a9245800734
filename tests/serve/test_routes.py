"""Guerdon's own routes, over a socket, against a real process."""

from __future__ import annotations

import base64
import io
import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import numpy as np
import pytest
from PIL import Image
from toys import step_value

from guerdon.models.scores import AGGREGATIONS, aggregate
from guerdon.serve.routes import RewardsRequest, UpdateRequest


def test_what_is_known_of_each_step(toy_server):
    answer = toy_server.post(
        "/v1/rewards",
        {"items": [{"id": "x", "prompt": "q", "steps": ["aabb", "a", "bb"]}], "aggregation": "min"},
    )
    assert answer.status_code == 200
    (one,) = answer.json()["results"]
    assert one["id"] == "x"
    assert one["step_scores"] == [step_value("aabb"), 1.0, 0.0]
    assert one["step_offsets"] == [[0, 4], [4, 5], [5, 7]]
    assert one["score"] == 0.0
    assert one["failure"] is None
    assert one["n_tokens"] == 7
    assert one["truncated"] is False


def one(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]


def ask(toy_server, item, **more):
    return toy_server.post("/v1/rewards", {"items": [item], **more})


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_the_caller_chooses_how_steps_become_one_score(toy_server, how):
    steps = ["aabb", "a", "aaab", "bbba"]
    got = one(ask(toy_server, {"prompt": "q", "steps": steps}, aggregation=how))
    assert got["score"] == pytest.approx(aggregate([step_value(step) for step in steps], how), abs=1e-7)


def test_without_an_aggregation_the_model_says_it(toy_server):
    got = one(ask(toy_server, {"prompt": "q", "steps": ["a", "aab", "ab"]}))
    assert got["score"] == 0.5
    assert got["text"] == "toy: 0.5"


@pytest.mark.parametrize(
    "item",
    [
        {"prompt": "q", "steps": ["one\n\n", "two a"]},
        {"prompt": "q", "completion": "one\n\ntwo a", "separator": "\n\n"},
        {"prompt": "q", "completion": "one\n\ntwo a", "steps": ["one\n\n", "two a"]},
        {"messages": [{"role": "user", "content": "q"}], "steps": ["one\n\n", "two a"]},
        {
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one\n\ntwo a"}],
            "separator": "\n\n",
        },
    ],
)
def test_one_text_said_in_several_ways(toy_server, item):
    got = one(ask(toy_server, item, aggregation="last"))
    assert got["step_offsets"] == [[0, 5], [5, 10]]
    assert got["score"] == step_value("two a")


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "items[0]"),
        ({"prompt": "q"}, "items[0].completion"),
        ({"steps": ["a"]}, "items[0]"),
        ({"prompt": "q", "completion": ""}, "items[0].completion"),
        ({"prompt": "q", "completion": "a"}, "items[0].steps"),
        ({"prompt": "q", "completion": "a", "separator": "\n\n"}, "items[0].separator"),
        ({"prompt": "q", "steps": []}, "items[0].steps"),
        ({"prompt": "q", "steps": ["a", ""]}, "items[0].steps"),
        ({"prompt": "q", "steps": ["a"], "completion": "b"}, "items[0].steps"),
        ({"prompt": "q", "steps": ["a"], "separator": "x"}, "items[0].separator"),
        ({"prompt": "q", "messages": [{"role": "user", "content": "q"}], "steps": ["a"]}, "items[0]"),
        ({"messages": [{"role": "assistant", "content": "q"}], "steps": ["a"]}, "items[0].messages"),
        ({"messages": [{"role": "system", "content": "q"}], "steps": ["a"]}, "items[0].messages"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}], "steps": ["a"]}, "items[0].messages"),
        (
            {
                "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                "completion": "a",
            },
            "items[0]",
        ),
        ({"task": "open"}, "items[0]"),
        ({"prompt": "q", "npy_base64": "AAAA"}, "items[0].prompt"),
        ({"task": "open", "npy_base64": "AAAA", "video_base64": "AAAA"}, "items[0]"),
        ({"prompt": 3}, "items[0].prompt"),
    ],
)
def test_what_is_missing_or_contradictory_is_named(toy_server, item, param):
    answer = ask(toy_server, item)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "item",
    [
        {"question": "q", "steps": ["aab", "a"]}, {"Prompt": "q", "steps": ["aab", "a"]},
        {"query": "q", "response": "aab.a", "separator": "."}, {"question": "q", "answer": "aab.a", "separator": "."},
        {"conversation": [{"role": "user", "content": "q"}], "model_response": "aab.a", "separator": "."},
    ],
)  # fmt: skip
def test_fields_by_the_names_that_files_have(toy_server, item):
    own = {"prompt": "q", "completion": "aab.a", "separator": "."} if "separator" in item else {
        "prompt": "q", "steps": ["aab", "a"]}  # fmt: skip
    wanted = one(ask(toy_server, own, aggregation="min"))
    assert one(ask(toy_server, item, aggregation="min"))["step_scores"] == wanted["step_scores"]


def test_two_names_for_one_field_are_refused_with_both(toy_server):
    answer = ask(toy_server, {"prompt": "q", "completion": "a", "response": "b"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "completion and response are two names for completion; give one of them"


def test_some_fail_and_the_others_do_not(toy_server):
    texts = ["a", "poison", "mute", "longer", "ab"]
    answer = toy_server.post("/v1/rewards", {"items": [{"prompt": "q", "steps": [t], "id": t} for t in texts]})
    assert answer.status_code == 200
    assert "secret" not in answer.text
    assert "/home" not in answer.text
    results = answer.json()["results"]
    assert [r["id"] for r in results] == texts
    assert [r["score"] for r in results] == [1.0, None, None, None, 0.5]
    reasons = [r["failure"] and r["failure"]["reason"] for r in results]
    assert reasons == [None, "model_error", "mute", "wrong_length", None]
    assert [r["step_scores"] for r in results] == [[1.0], None, None, None, [0.5]]
    assert answer.json()["failed"] == 3
    toy_server.wait_for("secret at /home/nobody")


def test_a_model_of_whole_answers_needs_no_steps(server):
    running = server(models={"orm": {"custom_backend": "toys:make", "options": {"granularity": "total"}}})
    got = one(ask(running, {"prompt": "q", "completion": "ab\n\nab"}))
    assert (got["score"], got["step_scores"], got["step_offsets"]) == (21 / 64, None, [[0, 6]])
    in_steps = one(ask(running, {"prompt": "q", "steps": ["ab\n\n", "ab"]}))
    assert (in_steps["score"], in_steps["step_offsets"]) == (0.5, [[0, 4], [4, 6]])  # the toy judges its last row
    assert one(ask(running, {"prompt": "q", "completion": "ab\n\nab", "separator": "\n\n"})) == got
    assert one(ask(running, {"prompt": "q", "completion": "ab\n\nab"}, aggregation="min")) == got


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_frames_in_every_form(toy_server):
    frames = np.stack([np.full((8, 8, 3), value, np.uint8) for value in (0, 51, 255)])
    urls = ["DATA:image/PNG;charset=utf-8;BASE64," + png(frame) for frame in frames]
    for item in (
        {"npy_base64": npy(frames)},
        {"npy_base64": "data:application/octet-stream;base64," + npy(frames)},
        {"frames_base64": [png(frame) for frame in frames]},
        {"frames_base64": urls},
    ):
        got = one(ask(toy_server, {"id": "f", "task": "shine", **item}, aggregation="mean"))
        assert got["step_scores"] == pytest.approx([0.0, 0.2, 1.0])
        assert got["score"] == pytest.approx(0.4)
        assert got["step_offsets"] is None
    mixed = toy_server.post(
        "/v1/rewards",
        {"items": [{"task": "t", "npy_base64": npy(frames)}, {"prompt": "q", "steps": ["a"]}]},
    )
    assert [r["score"] for r in mixed.json()["results"]] == [1.0, 1.0]
    bad = toy_server.post(
        "/v1/rewards", {"items": [{"task": "t", "npy_base64": npy(frames)}, {"task": "t", "npy_base64": "AAAA"}]}
    )
    assert 400 <= bad.status_code < 500
    assert bad.json()["error"]["param"].startswith("items[1]")


def test_equal_requests_are_scored_once(toy_server):
    def scored():
        return float(re.search(r'guerdon_items_total\{model="toy",result="scored"\} (\S+)', metrics()).group(1))

    def metrics():
        return toy_server.get("/metrics").text

    item = {"prompt": "only here", "steps": ["a", "aab"]}
    first = one(ask(toy_server, {**item, "id": "1"}))
    before = scored()
    again = [one(ask(toy_server, {**item, "id": str(n)})) for n in range(3)]
    assert scored() == before
    assert [{**got, "id": "1"} for got in again] == [first] * 3


def test_a_deadline_of_the_caller(server, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    running = server(models={"toy": {"custom_backend": "toys:make", "options": {"gate": str(gate)}}})
    late = ask(running, {"prompt": "q", "steps": ["a"]}, deadline_s=0.05)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert late.headers["retry-after"] == "1"
    gate.unlink()
    assert one(ask(running, {"prompt": "q", "steps": ["a"]}))["score"] == 1.0


def test_a_full_queue_over_http(server, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    running = server(
        models={"toy": {"custom_backend": "toys:make", "options": {"gate": str(gate)}}},
        batch={"queue_items": 3, "max_items": 1}, limits={"max_items": 3},
    )  # fmt: skip

    def queued():
        return re.search(r'guerdon_queue_items\{model="toy"\} (\S+)', running.get("/metrics").text)

    def send(text):
        return httpx.post(f"{running.url}/v1/rewards", json={"items": [{"prompt": "q", "steps": [text]}]}, timeout=30)

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(send, f"a{n}") for n in range(4)]
        until = time.monotonic() + 30
        while (found := queued()) is None or float(found.group(1)) < 3:
            assert time.monotonic() < until
            time.sleep(0.01)
        full = send("one more")
        assert (full.status_code, full.json()["error"]["code"]) == (429, "busy")
        assert full.json()["error"]["type"] == "rate_limit_error"
        assert int(full.headers["retry-after"]) >= 1
        gate.unlink()
        assert [future.result().status_code for future in asked] == [200] * 4
    assert one(ask(running, {"prompt": "q", "steps": ["one more"]}))["failure"] is None


def test_the_document_of_the_interface(toy_server):
    document = toy_server.get("/openapi.json").json()
    for path in ("/v1/rewards", "/v1/update"):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert content["schema"]["properties"]["items"]
        for example in content["examples"].values():
            shape = RewardsRequest if path == "/v1/rewards" else UpdateRequest
            shape.model_validate(example["value"])
        for status in ("401", "413", "422", "429", "503", "504"):
            assert status in document["paths"][path]["post"]["responses"]
