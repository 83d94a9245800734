"""Every route hands a model the whole conversation, and refuses what it cannot hand over."""

import re

import pytest
from foreign import serving

from guerdon.models.explained_score import JudgeOptions
from guerdon.serve.worker import content_key
from guerdon.types import Episode

SYSTEM, FIRST = {"role": "system", "content": "Count in dozens."}, {"role": "user", "content": "How many eggs?"}
ANSWER, LAST = {"role": "assistant", "content": "Two."}, {"role": "user", "content": "And now?"}
TOLD = [SYSTEM, FIRST, ANSWER, LAST]
CALL = {"type": "function", "function": {"name": "count", "arguments": {"of": "eggs"}}}
WIRE_CALL = {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"of": "eggs"}'}}
TOOL = {"type": "function", "function": {"name": "count"}}
CHATML = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in TOLD) + "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def served():
    with serving(default="orm") as (client, models):
        yield client, models


def last_seen(models):
    episode = models["orm"].seen[-1]
    return episode.task, list(episode.context), "".join(episode.texts), list(episode.tools)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/classify", {"messages": [*TOLD, {"role": "assistant", "content": "{}"}]}),
        ("/pooling", {"messages": [*TOLD, {"role": "assistant", "content": "{}"}], "task": "classify"}),
        ("/classify", {"input": CHATML + "{}<|im_end|>\n"}),
        ("/pooling", {"input": CHATML + "{}<|im_end|>\n", "task": "classify"}),
        ("/get_reward", {"query": [CHATML + "{}<|im_end|>\n"]}),
        ("/get_reward", {"query": [CHATML + "{}<|im_end|>\n"], "prompts": [CHATML]}),
        ("/rm", {"prompt": TOLD, "response": "{}"}),
        ("/rm", {"prompt": CHATML, "response": "{}"}),
        ("/v1/rewards", {"items": [{"messages": [*TOLD, {"role": "assistant", "content": "{}"}]}]}),
        ("/v1/rewards", {"items": [{"messages": TOLD, "completion": "{}"}]}),
        ("/v1/rewards", {"items": [{"messages": TOLD, "steps": ["{}"]}]}),
    ],
)  # fmt: skip
def test_every_route_keeps_the_conversation(served, route, body):
    client, models = served
    models["orm"].seen.clear()
    text = f"three via {route} {len(str(body))}"
    reply = client.post(route, json=_filled(body, text))
    assert reply.status_code == 200, reply.text
    assert last_seen(models) == ("And now?", TOLD, text, [])


def _filled(body, text):
    if isinstance(body, dict):
        return {key: _filled(value, text) for key, value in body.items()}
    if isinstance(body, list):
        return [_filled(value, text) for value in body]
    return body.replace("{}", text)


@pytest.mark.parametrize("route", ["/classify", "/v1/rewards", "/rm"])
def test_tools_and_their_calls_arrive(served, route):
    client, models = served
    told = [FIRST, {"role": "assistant", "content": None, "tool_calls": [WIRE_CALL]}, {"role": "tool", "content": "24"}]
    answer = {"role": "assistant", "content": f"24, says {route}"}
    body = {
        "/classify": {"messages": [*told, answer], "tools": [TOOL]},
        "/v1/rewards": {"items": [{"messages": [*told, answer], "tools": [TOOL]}]},
        "/rm": {"prompt": told, "response": answer["content"], "tools": [TOOL]},
    }[route]
    assert client.post(route, json=body).status_code == 200
    call = {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": "c1"}]}
    assert last_seen(models) == (FIRST["content"], [FIRST, call, told[2]], answer["content"], [TOOL])


@pytest.mark.parametrize(
    "messages",
    [
        [FIRST, {**ANSWER, "tool_calls": [WIRE_CALL]}],
        [FIRST, {**ANSWER, "content": [{"type": "tool_use", "name": "count"}]}],
        [{**FIRST, "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}, ANSWER],
        [{**FIRST, "function_call": {"name": "count"}}, ANSWER],
        [{"role": "narrator", "content": "x"}, FIRST, ANSWER],
        [SYSTEM, ANSWER],
        [FIRST, LAST],
    ],
)
def test_what_no_model_here_could_be_given_is_refused(served, messages):
    client, _ = served
    for route in ("/classify", "/pooling"):
        reply = client.post(route, json={"messages": messages, "task": "classify"})
        assert (reply.status_code, reply.json()["error"]["param"]) == (422, "messages")
    assert client.post("/v1/rewards", json={"items": [{"messages": messages}]}).status_code == 422


def test_a_lone_question_is_what_it_always_was(served):
    client, models = served
    client.post("/classify", json={"messages": [FIRST, {"role": "assistant", "content": "two dozen"}]})
    assert last_seen(models) == (FIRST["content"], [], "two dozen", [])
    body = {"items": [{"prompt": FIRST["content"], "completion": "x", "tools": [TOOL]}]}
    assert client.post("/v1/rewards", json=body).status_code == 422
    text = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n"
    assert client.post("/classify", json={"input": text, "tools": [TOOL]}).status_code == 422


def test_the_system_turn_of_a_policys_own_template_is_no_conversation(served):
    client, models = served
    own = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    text = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nx{}<|im_end|>\n"
    assert client.post("/get_reward", json={"query": [text.format(own, 1)]}).json()["rewards"] != [None]
    assert last_seen(models) == ("q", [], "x1", [])
    client.post("/get_reward", json={"query": [text.format("Be brief.", 2)]})
    brief = {"role": "system", "content": "Be brief."}
    assert last_seen(models) == ("q", [brief, {"role": "user", "content": "q"}], "x2", [])


def test_results_are_not_shared_between_conversations():
    options = JudgeOptions()
    episodes = [
        Episode(id="x", task="q", texts=("a",), context=context, tools=tools)
        for context in ((), (SYSTEM, LAST), ({**SYSTEM, "content": "x"}, LAST), (FIRST, ANSWER, LAST))
        for tools in ((), (TOOL,))
    ]
    assert len({content_key(episode, options) for episode in episodes}) == 8
    assert content_key(episodes[0], options) == content_key(Episode(id="y", task="q", texts=("a",)), options)


def test_long_conversations_are_over_the_limit_too(served):
    client, _ = served
    long = [{"role": "system", "content": "x" * 1_000_001}, *TOLD[1:]]
    for route, body in (
        ("/classify", {"messages": [*long, ANSWER]}),
        ("/rm", {"prompt": long, "response": "x"}),
        ("/v1/rewards", {"items": [{"messages": long, "completion": "x"}]}),
    ):
        reply = client.post(route, json=body)
        assert reply.status_code == 422, route
        assert "characters" in reply.text


TURNS = [
    FIRST,
    {"role": "assistant", "content": "I look.", "tool_calls": [WIRE_CALL]},
    {"role": "tool", "content": "24"},
    {"role": "assistant", "content": "24 three"},
    LAST,
    {"role": "assistant", "content": "none"},
]


def scored(client, items, **more):
    reply = client.post("/v1/rewards", json={"items": items, "turns": True, **more})
    return reply.json() if reply.status_code == 200 else reply.json()["error"]


def test_each_turn_of_the_assistant_is_scored_with_all_before_it(served):
    client, models = served
    models["orm"].seen.clear()
    answer = scored(client, [{"id": "a", "messages": TURNS, "tools": [TOOL], "label": "24"}])
    (item,) = answer["results"]
    assert (item["id"], [one["turn"] for one in item["turns"]]) == ("a", [0, 1, 2])
    seen = models["orm"].seen
    call = '<tool_call>\n{"name": "count", "arguments": {"of": "eggs"}}\n</tool_call>'
    assert ["".join(one.texts) for one in seen] == [f"I look.\n{call}", "24 three", "none"]
    assert [[m["role"] for m in one.context] for one in seen] == [
        [], ["user", "assistant", "tool"], ["user", "assistant", "tool", "assistant", "user"],
    ]  # fmt: skip
    assert [one.task for one in seen] == ["How many eggs?", "How many eggs?", "And now?"]
    assert all(list(one.tools) == [TOOL] and one.meta["ground_truth"] == "24" for one in seen)
    alone = [
        client.post(
            "/v1/rewards", json={"items": [{"messages": TURNS[:k], "completion": text, "tools": [TOOL]}]}
        ).json()
        for k, text in ((1, f"I look.\n{call}"), (3, "24 three"), (5, "none"))
    ]
    assert [one["score"] for one in item["turns"]] == [one["results"][0]["score"] for one in alone]


def test_a_turn_that_cannot_be_scored_has_its_reason_and_the_others_a_value(served):
    client, _ = served
    strange = [FIRST, ANSWER, {"role": "assistant", "content": "again"}, LAST, {"role": "assistant", "content": ""}]
    answer = scored(client, [{"messages": strange}, {"messages": [*TURNS, LAST]}])
    first, second = (
        [one["failure"] and one["failure"]["reason"] for one in item["turns"]] for item in answer["results"]
    )
    assert first[0] is None
    assert first[1] is not None
    assert first[2] == "empty_turn"
    assert second == [None, None, None]
    assert answer["failed"] == 2
    assert all((one["score"] is None) == (one["failure"] is not None) for i in answer["results"] for one in i["turns"])
    alone = scored(client, [{"messages": [FIRST, {"role": "assistant", "content": ""}]}])
    assert alone["failed"] == 1


def test_steps_of_turns_are_cut_by_the_separator(served):
    client, models = served
    models["prm"].seen.clear()
    said = [FIRST, {"role": "assistant", "content": "one;two"}, LAST, {"role": "assistant", "content": "three"}]
    answer = scored(client, [{"messages": said, "separator": ";"}], model="prm", aggregation="min")
    assert [one.texts for one in models["prm"].seen] == [("one;", "two"), ("three",)]
    assert [len(one["step_scores"]) for one in answer["results"][0]["turns"]] == [2, 1]
    assert "needs a separator" in scored(client, [{"messages": said}], model="prm")["message"]


REFUSED = [
    ({"prompt": "p", "completion": "c"}, "needs messages, whose turns are scored"),
    ({"messages": TURNS, "completion": "c"}, "completion would do nothing with turns"),
    ({"messages": [FIRST]}, "have no turn of the assistant"),
    ({"messages": [{"role": "assistant"}]}, "message 1"),
    ({"messages": [FIRST, ANSWER] * 2000}, "4000 turns|2000 turns"),
    ({"messages": [{"role": "user", "content": "x" * 10**7}, ANSWER]}, "characters|too large|bytes"),
]


@pytest.mark.hostile("http")
def test_what_has_no_turns_is_refused_in_one_line(served):
    client, _ = served
    for item, words in REFUSED:
        assert re.search(words, scored(client, [item])["message"]), item
    assert "turns" not in client.post("/v1/rewards", json={"items": [{"messages": TURNS}]}).json()["results"][0]
