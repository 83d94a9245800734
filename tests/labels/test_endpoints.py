"""Replies of endpoints over HTTP: end reasons, formats, errors, spent quotas, model names, addresses."""

import json
import threading
import time
from contextlib import closing
from email.utils import formatdate

import pytest
from judge_server import anthropic, judge_server, openai
from test_llm_client import World, complete

from guerdon.endpoints import chat_replies
from guerdon.endpoints.llm_client import LLMReply, LLMRequest, OwnLLMClient
from guerdon.errors import ConfigError
from guerdon.files.append_log import Cache
from guerdon.settings.label import AnthropicJudgeSettings, OpenAIJudgeSettings, OwnJudgeSettings
from guerdon.types import Failure
from raisers import WAYS
from tables import refuses

pytestmark = pytest.mark.usefixtures("keys")

WHOLE, CUT = '{"steps": [1, -1]}', '{"steps": [1, -'


def read(reply):
    try:
        return json.loads(reply.text)["steps"]
    except ValueError:
        return Failure("not_json", "cut")


def request(word="x", *, as_json=True, temperature=0.0):
    schema = {"type": "object"} if as_json else None
    return LLMRequest(({"role": "user", "content": word},), 50, temperature, schema=schema)


def judge(world, *words, parse=read, **how):
    return complete(world.client, [request(word, **how) for word in words or ("x",)], parse, "judge")


def ended(reason, text=WHOLE, *, api="openai"):
    """The payload of a reply that ended so; MISSING: without that field."""
    payload = openai(text) if api == "openai" else anthropic(text)
    place, key = (payload["choices"][0], "finish_reason") if api == "openai" else (payload, "stop_reason")
    place[key] = reason
    if reason == "missing":
        del place[key]
    return payload


def kept(folder):
    return [row for line in (folder / "replies.jsonl").read_text().splitlines() for row in json.loads(line).values()]


def last_kept(folder):
    path = folder / "replies.jsonl"
    return kept(folder)[-1] if path.exists() and path.read_text() else None


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    "reason",
    ["stop", "STOP", "eos", "eos_token", "stop_sequence", "end_turn", "END_TURN", "FinishReason.STOP",
     "FINISH_REASON_STOP", "banana", None, "null", "missing", ""],
)  # fmt: skip
def test_known_and_unknown_words_for_the_end_count_where_the_json_is_complete(tmp_path, reason, api):
    with judge_server(script=[(200, {}, ended(reason, api=api))]) as server, World(tmp_path, server, api=api) as world:
        for _ in range(2):
            assert judge(world) == [[1, -1]]
        assert len(server.requests) == 1


@pytest.mark.hostile("endpoints")
@pytest.mark.parametrize(("reason", "failure"), [
    ("length", "truncated"), ("max_tokens", "truncated"), ("MAX_TOKENS", "truncated"), ("model_length", "truncated"),
    ("model_context_window_exceeded", "truncated"), ("content_filter", "refusal"), ("SAFETY", "refusal"),
    ("refusal", "refusal"),
])  # fmt: skip
@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_limit_and_a_refusal_are_failures_even_if_the_json_is_complete(tmp_path, reason, failure, api):
    with judge_server(script=[(200, {}, ended(reason, api=api))]) as server, World(tmp_path, server, api=api) as world:
        for _ in range(2):
            (found,) = judge(world)
            assert found.reason == failure
        assert found.detail == (WHOLE if failure == "refusal" else f"the reply reached its length limit ({reason})")
        assert len(server.requests) == 1
        assert last_kept(tmp_path)["refused"] == WHOLE  # what was paid for
        assert world.ledger.totals()["judge"]["tokens_out"] == 20


@pytest.mark.parametrize("reason", ["banana", "tool_calls", "function_call", "pause_turn", None, "missing"])
def test_another_end_is_named_and_its_text_kept(tmp_path, reason, monkeypatch):
    text = CUT if reason in (None, "missing", "banana") else WHOLE
    script = [(200, {}, ended(reason, text))] * 3
    with judge_server(lambda text: WHOLE, script) as server, World(tmp_path, server) as world:
        (found,) = judge(world)
        assert found.reason == "unfinished"
        assert (reason or "does not say").replace("missing", "does not say") in found.detail
        assert len(server.requests) == 3  # it may be temporary
        assert judge(world) == [found]
        assert len(server.requests) == 3
        assert last_kept(tmp_path)["refused"] == text
    if reason == "tool_calls":  # a later version takes the word for an end, and pays nothing
        monkeypatch.setitem(chat_replies.ENDS, "tool_calls", "end")
        with World(tmp_path, server) as world:
            assert judge(world) == [[1, -1]]


@pytest.mark.hostile("endpoints")
@pytest.mark.parametrize("reason", [None, "missing", "banana"])
def test_a_text_without_a_known_end_is_unfinished_as_nobody_can_see_its_end(tmp_path, reason):
    script = [(200, {}, ended(reason, "half of a solu"))] * 9
    with judge_server(script=script) as server, World(tmp_path, server, retries=1) as world:
        assert judge(world, as_json=False)[0].reason == "unfinished"
        assert len(server.requests) == 2


BROKEN = [
    ended("error"), ended("ERROR"), ended("abort"),
    {"choices": [{"error": {"code": 502, "message": "Upstream"}, "message": {"content": WHOLE},
                  "finish_reason": "stop"}]},
    {"choices": [{"error": {"code": 401, "message": "the key of the provider"}, "message": {"content": ""}}]},
    {"error": {"message": "Internal", "type": "server_error"}}, {"error": {"code": 503, "message": "busy"}},
    {"error": "the model crashed"}, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    {"choices": []}, {"choices": None}, {"choices": [{}]}, {"choices": [{"message": None}]}, {},
    {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]},
    {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]},
]  # fmt: skip


@pytest.mark.hostile("endpoints")
@pytest.mark.parametrize("payload", BROKEN, ids=lambda payload: json.dumps(payload)[:60])
def test_errors_are_tried_again_and_never_kept(tmp_path, payload):
    with judge_server(lambda text: WHOLE, [(200, {}, payload)]) as server, World(tmp_path, server) as world:
        assert judge(world) == [[1, -1]]
        assert len(server.requests) == 2
        assert world.ledger.totals()["judge"] | {"usd": 0, "usd_at_most": 0} == {
            "calls": 2, "failed": 1, "tokens_in": 100, "tokens_out": 20, "usd": 0, "usd_at_most": 0, "unpriced": 1,
            "from_cache": 0,
        }  # fmt: skip
    with judge_server(script=[(200, {}, payload)] * 9) as server, World(tmp_path, server, retries=2) as world:
        (found,) = judge(world, "y")
        assert found.reason in ("server_error", "bad_reply")
        assert len(server.requests) == 3
        assert len(kept(tmp_path)) == 1


@pytest.mark.hostile("endpoints")
@pytest.mark.parametrize("end", ["error", None])
def test_the_messages_api_breaks_alike(tmp_path, end):
    bad = ended("error", api="anthropic") if end else {"type": "error", "error": {"type": "api_error"}}
    with judge_server(lambda text: WHOLE, [(200, {}, bad)]) as server:
        with World(tmp_path, server, api="anthropic") as world:
            assert judge(world) == [[1, -1]]
        assert len(server.requests) == 2


@pytest.mark.hostile("endpoints")
@pytest.mark.parametrize(("error", "reason"), [
    ({"code": 429, "message": "slow down"}, "rate_limited"), ({"code": "429"}, "rate_limited"),
    ({"type": "rate_limit_error"}, "rate_limited"), ({"code": 400, "message": "too long"}, "rejected"),
    ({"code": 418}, "rejected"), ({"code": 529}, "server_error"),
])  # fmt: skip
def test_an_error_with_status_200_counts_as_what_it_says(tmp_path, error, reason):
    with judge_server(script=[(200, {}, {"error": error})] * 9) as server, World(tmp_path, server, retries=0) as world:
        assert judge(world)[0].reason == reason


@pytest.mark.parametrize("error", [None, {}, "", False, {"code": None, "message": None}])
def test_an_empty_error_beside_a_reply_is_none(tmp_path, error):
    script = [(200, {}, openai(WHOLE) | {"error": error})]
    with judge_server(script=script) as server, World(tmp_path, server, retries=0) as world:
        assert judge(world) == [[1, -1]]


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": '{"steps": [-1, -1]}'}]}
CONTENTS = [
    [{"type": "text", "text": WHOLE}], [THINKING, {"type": "text", "text": WHOLE}], [{"text": WHOLE}], [WHOLE],
    [{"type": "text", "text": WHOLE[:5]}, {"type": "text", "text": WHOLE[5:]}], {"type": "text", "text": WHOLE},
    [{"type": "reasoning", "text": "8"}, {"type": "output_text", "text": WHOLE}, {"type": "reference", "text": "no"}],
    [{"type": "redacted_thinking", "data": "xx"}, {"type": "text", "text": WHOLE}, None, 5],
]  # fmt: skip


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: json.dumps(content)[:50])
def test_content_is_a_text_or_a_list_of_parts_and_thinking_is_left_out(tmp_path, content):
    choice = {"message": {"content": content}, "finish_reason": "stop"}
    with judge_server(script=[{"choices": [choice]}]) as server, World(tmp_path, server, retries=0) as world:
        assert judge(world) == [[1, -1]]


def test_a_refusal_may_be_a_part(tmp_path):
    message = {"content": [{"type": "refusal", "refusal": "I cannot"}]}
    script = [{"choices": [{"message": message, "finish_reason": "stop"}]}]
    with judge_server(script=script) as server, World(tmp_path, server) as world:
        assert judge(world) == [Failure("refusal", "I cannot")]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_beside_the_text_is_no_answer(tmp_path, field):
    with_text = {"message": {"content": WHOLE, field: '{"steps": [-1, -1]}'}, "finish_reason": "stop"}
    without = {"message": {"content": None, field: WHOLE}, "finish_reason": "stop"}
    script = [{"choices": [with_text]}, {"choices": [without]}, {"choices": [without | {"finish_reason": "length"}]}]
    with judge_server(script=script) as server, World(tmp_path, server) as world:
        found = judge(world, "a", "b", "c")
        assert found[0] == [1, -1]
        assert [one.reason for one in found[1:]] == ["no_text", "truncated"]
        assert len(server.requests) == 3


def event(*payloads, end="data: [DONE]\n\n", line="\n", name=""):
    """A stream of events."""
    lines = [f"{name}data: {json.dumps(one)}\n\n" for one in payloads]
    return (": keep-alive\n\n" + "".join(lines) + end).replace("\n", line).encode()


def pieces(text, reason="stop", **more):
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}]
    deltas += [{"content": text[k : k + 3]} for k in range(0, len(text), 3)]
    rows = [{"model": "m-1", "choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas]
    rows.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return [*rows, {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 20}, **more}]


@pytest.mark.parametrize("line", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["data: [DONE]\n\n", ""])
def test_a_server_that_streams_anyway_is_read(tmp_path, line, end):
    text = '{"steps": [1, -1], "why": "a\u2028b \u00e9"}'
    script = [(200, {"Content-Type": "text/event-stream"}, event(*pieces(text), line=line, end=end))]
    with judge_server(script=script) as server, World(tmp_path, server, retries=0) as world:
        assert judge(world, parse=lambda reply: reply.text) == [text]
        assert world.client.models.counts == {"m-1": 1}
        assert world.ledger.totals()["judge"]["usd"] == pytest.approx(0.003)
        assert server.requests[0]["stream"] is False


def test_the_messages_api_streamed(tmp_path):
    rows = [
        {"type": "message_start", "message": {"model": "c-9", "usage": {"input_tokens": 100, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "delta": {"type": "text_delta", "text": c}} for c in WHOLE),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ]
    script = [(200, {}, event(*rows, end="", name="event: x\n"))]
    with judge_server(script=script) as server, World(tmp_path, server, api="anthropic", retries=0) as world:
        assert judge(world) == [[1, -1]]
        assert world.ledger.totals()["judge"]["usd"] == pytest.approx(0.003)
        assert world.client.models.counts == {"c-9": 1}


@pytest.mark.hostile("endpoints")
@pytest.mark.parametrize(("stream", "reason"), [
    (event(*pieces(CUT, None)[:-2], end=""), "unfinished"),
    (event(*pieces(WHOLE)[:3], {"error": {"code": 502, "message": "Upstream"}}), "server_error"),
    (event({"choices": [{"index": 0, "delta": {"content": WHOLE}, "finish_reason": "error"}]}), "server_error"),
    (event() + b"data: {cut", "bad_reply"), (event(), "bad_reply"), (event([1], 5), "bad_reply"),
    (event({"choices": [5]}), "bad_reply"), (event({"choices": [{"delta": {"content": None}}]}), "bad_reply"),
])  # fmt: skip
def test_a_stream_that_breaks_is_no_reply(tmp_path, stream, reason):
    with judge_server(script=[(200, {}, stream)] * 9) as server, World(tmp_path, server, retries=0) as world:
        assert judge(world)[0].reason == reason


MESSAGES = [
    ({"error": {"message": "too large"}}, "too large"), ({"error": "too large"}, "too large"),
    ({"message": "too large", "error": "Bad Request", "statusCode": 400}, "too large"),
    ({"detail": "too large"}, "too large"),
    ({"detail": [{"type": "missing", "loc": ["body", "n"], "msg": "Field required"}]}, "body.n: Field required"),
    ([{"error": {"code": 400, "message": "too large", "status": "INVALID_ARGUMENT"}}], "too large"),
    ({"errors": [{"message": "first"}, {"message": "second"}]}, "first; second"),
    ({"error": {"message": "Provider returned error", "metadata": {"raw": '{"message": "too large"}'}}},
     "Provider returned error: too large"),
    ({"title": "Bad", "detail": "too large", "status": 400}, "too large"),
    ({"fault": {"faultstring": "too large"}}, "too large"),
    ({"error": {"message": "", "code": "too_large"}}, "too_large"),
    (b"<!DOCTYPE html><html><head><title>400 &amp; more</title></head><body>x</body></html>", "400 & more"),
    (b"<html><head></head><body><p>Too  large</p></body></html>", "Too large"), (b"plain\n text", "plain text"),
    (b'"too large"', "too large"), (b"", "no reason given"), ({}, "no reason given"), ({"x": 1}, '{"x": 1}'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "words"), MESSAGES, ids=[words[:20] + str(i) for i, (_, words) in enumerate(MESSAGES)]
)
def test_an_error_is_shown_by_its_message(tmp_path, payload, words):
    with judge_server(script=[(400, {}, payload)] * 9) as server, World(tmp_path, server) as world:
        assert judge(world) == [Failure("rejected", f"400: {words}")]


@pytest.mark.hostile("endpoints")
def test_an_endless_nest_of_lists_is_an_error_like_any_other(tmp_path):
    script = [(400, {}, b"[" * 900 + b"]" * 900), (400, {}, b'{"error":' * 900 + b"5" + b"}" * 900)]
    with judge_server(script=script * 9) as server, World(tmp_path, server) as world:
        assert [one.reason for one in judge(world, "a", "b")] == ["rejected"] * 2


SPENT = [
    (429, {"error": {"message": "You exceeded your current quota, please check your plan and billing details.",
                     "type": "insufficient_quota", "code": "insufficient_quota"}}),
    (402, {"error": {"message": "This request requires more credits, or fewer max_tokens.", "code": 402}}),
    (402, {"error": {"message": "Insufficient Balance"}}), (402, b"Payment Required"),
    (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to "
           "access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}),
    (403, {"code": "The caller does not have permission", "error": "Your team 1 has either used all available credits "
           "or reached its monthly spending limit."}),
    (429, {"error": {"message": "Billing hard limit has been reached", "code": "billing_hard_limit_reached"}}),
    (400, {"error": {"message": "Budget has been exceeded! Current cost: 1", "type": "budget_exceeded"}}),
    (429, {"error": {"code": "1113", "message": "余额不足或无可用资源包,请充值。"}}),
    (403, {"code": 30001, "message": "Sorry, your account balance is insufficient"}),
    (200, {"error": {"code": 402, "message": "Insufficient credits"}}),
    (200, {"error": {"code": "insufficient_quota", "message": "x"}}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "payload"), SPENT, ids=range(len(SPENT)))
def test_a_spent_quota_stops_the_run_with_one_line_and_keeps_what_was_paid(tmp_path, status, payload):
    script = [(200, {}, openai(WHOLE)), *[(status, {}, payload)] * 9]
    with judge_server(lambda text: WHOLE, script) as server:
        with (
            World(tmp_path, server) as world,
            pytest.raises(ConfigError, match="quota or credit there is spent") as error,
        ):
            judge(world, "a", "b", "c")
        assert "\n" not in str(error.value)
        assert len(server.requests) == 2
        server.script.clear()
        with World(tmp_path, server) as world:
            assert judge(world, "a", "b", "c") == [[1, -1]] * 3
        assert len(server.requests) == 4


LIMITED = [
    ({}, {"error": {"message": "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000. Please try again "
          "in 2s. You can increase your rate limit by adding a payment method at https://x/account/billing.",
          "type": "tokens", "code": "rate_limit_exceeded"}}),
    ({}, [{"error": {"code": 429, "message": "You exceeded your current quota, please check your plan and billing "
           "details. Please retry in 4s.", "status": "RESOURCE_EXHAUSTED"}}]),
    ({"Retry-After": "2"}, {"error": {"message": "You exceeded your current quota", "code": 429}}),
    ({}, {"error": {"message": "Rate limit exceeded: free-models-per-min. Add 10 credits for more", "code": 429}}),
    ({}, {"statusCode": 429, "message": "Requests have exceeded the token rate limit of your current pricing tier"}),
    ({}, b"Too Many Requests"), ({}, {"error": {"message": "Service tier capacity exceeded for this model."}}),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "payload"), LIMITED, ids=range(len(LIMITED)))
def test_a_rate_limit_is_no_spent_quota(tmp_path, headers, payload):
    with judge_server(lambda text: WHOLE, [(429, headers, payload)]) as server, World(tmp_path, server) as world:
        assert judge(world) == [[1, -1]]


def moment(seconds, form):
    """A time `seconds` after that of the server, whose clock is a day ahead."""
    at = int(time.time()) + 86400 + seconds
    return {"date": formatdate(at, usegmt=True), "unix": str(at), "ms": str(at * 1000)}[form]


@pytest.mark.parametrize("form", ["date", "unix", "ms"])
@pytest.mark.parametrize("name", ["Retry-After", "x-ratelimit-reset"])
def test_a_moment_is_compared_with_the_clock_of_the_server(tmp_path, form, name):
    with judge_server(lambda text: WHOLE) as server, World(tmp_path, server) as world:
        told = {name: moment(30, form)}
        server.RequestHandlerClass = type(
            "Ahead", (server.RequestHandlerClass,), {"date_time_string": lambda self: moment(0, "date")}
        )
        server.script.append((429, told))
        assert judge(world) == [[1, -1]]
        assert 29 <= sum(world.clock.slept) <= 33.1


@pytest.mark.parametrize(("payload", "least", "most"), [
    ({"error": {"code": 429, "details": [{"@type": "x/RetryInfo", "retryDelay": "34s"}]}}, 34, 37.4),
    ({"error": {"code": 429, "metadata": {"headers": {"X-RateLimit-Reset": "12"}}}}, 12, 13.2),
    ({"error": {"code": 429, "retry_after": 5}}, 5, 5.5), ({"error": {"code": 429}}, 0.75, 1),
])  # fmt: skip
def test_a_wait_may_be_asked_for_in_the_body(tmp_path, payload, least, most):
    with judge_server(lambda text: WHOLE, [(429, {}, payload)]) as server, World(tmp_path, server) as world:
        assert judge(world) == [[1, -1]]
        assert least <= sum(world.clock.slept) <= most


@pytest.mark.parametrize(("status", "payload"), [
    (400, {"error": {"code": "content_filter", "message": "The response was filtered due to the prompt triggering "
                     "Azure OpenAI's content management policy."}}),
    (403, {"error": {"code": 403, "message": "openai/o9 requires moderation. Your input was flagged for \"x\"."}}),
])  # fmt: skip
def test_a_flagged_question_is_refused_alone(tmp_path, status, payload):
    with judge_server(lambda text: WHOLE, [(status, {}, payload)]) as server, World(tmp_path, server) as world:
        found = judge(world, "a", "b")
        assert [one.reason if isinstance(one, Failure) else one for one in found] == ["refusal", [1, -1]]
        assert world.ledger.totals()["judge"]["usd_at_most"] == 0


def test_the_model_that_replies_is_counted_and_a_change_is_said_once(tmp_path, capsys):
    names = ["o9-2026-01-01", "o9-2026-01-01", "o9-mini", "o9-2026-01-01", None, 5, ""]
    script = [(200, {}, openai(WHOLE) | ({} if name is None else {"model": name})) for name in names]
    counts = {"o9-2026-01-01": 3, "o9-mini": 1}
    with judge_server(script=script) as server:
        for _ in range(2):
            with World(tmp_path, server) as world:
                judge(world, *"abcdefg")
                assert world.client.models.counts == counts
            lines = [line for line in capsys.readouterr().err.splitlines() if "o9-mini" in line]
            assert lines == ["the judge m: replies are now of the model o9-mini, before of o9-2026-01-01"]
        assert len(server.requests) == 7


def test_stream_false_may_be_given_and_is_the_same_request(tmp_path):
    with judge_server(lambda text: WHOLE) as server:
        for body in ({}, {"stream": False}):
            with World(tmp_path, server, extra_body=body) as world:
                assert judge(world) == [[1, -1]]
        assert len(server.requests) == 1
    with refuses("stream") as refused:
        OpenAIJudgeSettings(model="m", extra_body={"stream": True})
    assert "extra_body.stream is set by guerdon" in str(refused.value)


@pytest.mark.parametrize(("base", "path"), [
    ("/openai/deployments/d?api-version=2024-10-21", "/openai/deployments/d/chat/completions?api-version=2024-10-21"),
    ("/openai/v1/?api-version=preview", "/openai/v1/chat/completions?api-version=preview"),
    ("/openai/deployments/d/chat/completions?api-version=1", "/openai/deployments/d/chat/completions?api-version=1"),
    ("/v1?team=a%20b", "/v1/chat/completions?team=a%20b"), ("/v1/chat/completions", "/v1/chat/completions"),
])  # fmt: skip
def test_the_query_of_an_address_stays_behind_its_path(tmp_path, monkeypatch, base, path):
    monkeypatch.setenv("MINE", "secret")
    with judge_server(lambda text: WHOLE) as server:
        with World(tmp_path, server, base_url=server.url + base, api_key_env="MINE") as world:
            assert judge(world) == [[1, -1]]
        headers = {name.lower(): value for name, value in server.headers[0].items()}
        azure = "api-version" in base
        assert server.paths == [path]
        assert headers.get("api-key") == ("secret" if azure else None)
        assert headers.get("authorization") == (None if azure else "Bearer secret")


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/"])
def test_the_messages_api_takes_a_query_too(base):
    settings = AnthropicJudgeSettings(base_url=f"http://h{base}?a=b")
    assert settings.url == "http://h?a=b"


class Own:
    def __init__(self, stops):
        self.stops, self.calls = list(stops), 0

    def reply(self, request):
        self.calls += 1
        return LLMReply(WHOLE, self.stops.pop(0))


@pytest.mark.parametrize(("stop", "reason", "calls"), [
    ("end", None, 1), ("stop", None, 1), ("length", "truncated", 1), ("refusal", "refusal", 1),
    ("error", "unfinished", 2),
])  # fmt: skip
def test_a_judge_of_ones_own_may_use_any_word(tmp_path, stop, reason, calls):
    settings = OwnJudgeSettings.model_construct(api="a:b", model="m", params={})
    own, cache = Own([stop] * 2), Cache(tmp_path / "replies.jsonl")
    client = OwnLLMClient(own, settings, cache)
    for _ in range(2):
        (found,) = complete(client, [request()], read, "judge")
        assert found == [1, -1] if reason is None else found.reason == reason
    assert own.calls == calls
    cache.close()


@pytest.mark.hostile("parts")
@pytest.mark.parametrize("way", WAYS)
def test_a_judge_of_ones_own_that_raises_fails_one_request(tmp_path, way):
    class Poisoned(Own):
        def reply(self, asked):
            if asked.messages[0]["content"] == "poison":
                WAYS[way]()
            return super().reply(asked)

    settings, own = OwnJudgeSettings.model_construct(api="a:b", model="m", params={}), Poisoned(["end"] * 2)
    requests = [LLMRequest(({"role": "user", "content": word},), 50, 0.0) for word in ("one", "poison", "two")]
    found = []

    def asked():
        found.extend(complete(OwnLLMClient(own, settings, cache), requests, read, "judge"))

    with closing(Cache(tmp_path / "replies.jsonl")) as cache:
        thread = threading.Thread(target=asked)  # where no signal is handled
        thread.start()
        thread.join()
    assert [found[0], found[2]] == [[1, -1]] * 2
    assert found[1].reason == "judge_error"
