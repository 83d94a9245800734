"""The cost of calls: usage in every format that endpoints send, and a budget that no reply exceeds."""

import json
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_server import DROP, FakeClock, judge_server

from guerdon.endpoints.llm_client import BUDGET, HttpLLMClient, LLMRequest
from guerdon.errors import ConfigError
from guerdon.files.append_log import Cache, CallUsage, Ledger, reported_usage
from guerdon.network.retry import Clock
from guerdon.settings.label import AnthropicJudgeSettings, LabelSettings, OpenAIJudgeSettings
from tables import cases, first, refuses

pytestmark = pytest.mark.usefixtures("keys")

PRICES = {"usd_per_million_in": 10.0, "usd_per_million_out": 100.0}


def read(usage, text="a text"):
    found = reported_usage(usage, text)
    return found.tokens_in, found.tokens_out


@cases(
    ("usage", "tokens"),
    [
        # reasoning inside and outside of what was completed
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}, (100, 20)),
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
          "completion_tokens_details": {"reasoning_tokens": 15}}, (100, 20)),
        ({"prompt_tokens": 119, "completion_tokens": 9, "total_tokens": 226,
          "completion_tokens_details": {"reasoning_tokens": 98}}, (119, 107)),
        ({"prompt_tokens": 119, "completion_tokens": 9, "total_tokens": 226}, (119, 107)),
        ({"prompt_tokens": 119, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 98}},
         (119, 107)),
        ({"prompt_tokens": 100, "completion_tokens": 20, "reasoning_tokens": 15}, (100, 35)),  # no total: the dearer
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 0, "reasoning_tokens": 15}, (100, 35)),
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "reasoning_tokens": 900}, (100, 920)),
        ({"prompt_tokens": 100, "completion_tokens": 0, "total_tokens": 350}, (100, 250)),
        ({"prompt_tokens": 100, "total_tokens": 350}, (100, 250)),
        ({"prompt_tokens": 0, "completion_tokens": 20, "total_tokens": 120}, (100, 20)),
        ({"total_tokens": 500}, (None, None)),
        # not reported
        (None, (None, None)), ({}, (None, None)), ([], (None, None)), ("none", (None, None)), (7, (None, None)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, (None, None)),
        ({"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}, (None, None)),
        ({"input_tokens": 0, "output_tokens": 0}, (None, None)),
        ({"prompt_tokens": 100, "completion_tokens": 0, "total_tokens": 100}, (100, None)),
        ({"prompt_tokens": 100}, (100, None)), ({"completion_tokens": 20}, (None, 20)),
        # numbers that are none
        ({"prompt_tokens": "100", "completion_tokens": " 20 "}, (100, 20)),
        ({"prompt_tokens": 100.0, "completion_tokens": 19.2}, (100, 20)),
        ({"prompt_tokens": -100, "completion_tokens": -1}, (None, None)),
        ({"prompt_tokens": 1e30, "completion_tokens": 10**400}, (None, None)),
        ({"prompt_tokens": float("nan"), "completion_tokens": float("inf")}, (None, None)),
        ({"prompt_tokens": True, "completion_tokens": "many"}, (None, None)),
        ({"prompt_tokens": [100], "completion_tokens": {"all": 20}}, (None, None)),
        # caches: of Anthropic, OpenAI, DeepSeek, LiteLLM, OpenRouter, and prompts without them
        ({"input_tokens": 10, "output_tokens": 20, "cache_creation_input_tokens": 800, "cache_read_input_tokens": 90},
         (900, 20)),
        ({"input_tokens": 0, "output_tokens": 20, "cache_read_input_tokens": 900}, (900, 20)),
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
          "prompt_tokens_details": {"cached_tokens": 64}}, (100, 20)),
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "prompt_cache_hit_tokens": 64,
          "prompt_cache_miss_tokens": 36}, (100, 20)),
        ({"completion_tokens": 20, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, (100, 20)),
        ({"prompt_tokens": 910, "completion_tokens": 20, "total_tokens": 930, "cache_creation_input_tokens": 800,
          "cache_read_input_tokens": 100}, (910, 20)),
        ({"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 930,
          "prompt_tokens_details": {"cached_tokens": 900}}, (910, 20)),
        ({"prompt_tokens": 500, "completion_tokens": 20, "total_tokens": 820, "cached_tokens": 300}, (800, 20)),
        ({"input_tokens": 100, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 64}, "total_tokens": 120},
         (100, 20)),
        ({"prompt_tokens_details": None, "completion_tokens_details": [], "cost_details": 3, "prompt_tokens": 1,
          "completion_tokens": 2, "cache_creation": "x"}, (1, 2)),
    ],
)  # fmt: skip
def test_tokens(usage, tokens):
    assert read(usage) == tokens


def test_a_reply_without_text_may_have_no_tokens():
    usage = {"prompt_tokens": 100, "completion_tokens": 0, "total_tokens": 100}
    assert read(usage, "") == (100, 0)
    assert read({"prompt_tokens": 0, "completion_tokens": 0}, "") == (None, None)


@pytest.mark.parametrize(
    ("usage", "surcharge"),
    [
        ({"input_tokens": 10, "cache_creation_input_tokens": 800}, 800),  # for how long is not said: an hour
        ({"input_tokens": 10, "cache_creation_input_tokens": 800,
          "cache_creation": {"ephemeral_5m_input_tokens": 800, "ephemeral_1h_input_tokens": 0}}, 200),
        ({"input_tokens": 10, "cache_creation_input_tokens": 800,
          "cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 400}}, 500),
        ({"prompt_tokens": 900, "prompt_tokens_details": {"cache_write_tokens": 100}}, 100),
        ({"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 100}}, 0),
    ],
)  # fmt: skip
def test_cache_writes_cost_more_than_other_tokens(usage, surcharge):
    assert reported_usage({"output_tokens": 20, **usage}, "x").surcharge_in == surcharge


@cases(
    ("usage", "usd"),
    [
        ({"cost": 0.95}, 0.95), ({"cost": "0.5"}, 0.5), ({"cost": 0}, 0.0), ({"cost": -1}, None),
        ({"cost": None}, None),
        ({"cost": True}, None), ({"total_cost": 0.5}, 0.5),
        ({"cost": {"total_cost": 0.25, "request_cost": 0.2}}, 0.25),
        ({"cost": 0.95, "cost_details": {"upstream_inference_cost": 19}}, 19.95),
        ({"cost": 0.5, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.25}}, 0.75),
        ({"cost": 0.5, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.5}}, 0.5),
        ({"cost_in_usd_ticks": 318319000}, 0.0318319), ({}, None),
    ],
)  # fmt: skip
def test_dollars_that_the_endpoint_charges(usage, usd):
    assert reported_usage(usage, "x").usd == (None if usd is None else pytest.approx(usd))


class Judge:
    """A client, its cache and its ledger in a folder."""

    def __init__(self, folder, server, *, max_usd=None, form=OpenAIJudgeSettings, **given):
        clock = FakeClock()
        judge = form(model="m", base_url=f"{server.url}/v1", timeout=20, **{**PRICES, **given})
        self.cache = Cache(folder / "replies.jsonl")
        self.ledger = Ledger(folder / "calls.jsonl", prices=judge.prices, max_usd=max_usd)
        self.client = HttpLLMClient(judge, self.cache, self.ledger, Clock(clock.now, clock.sleep))

    def ask(self, words, max_tokens=50):
        requests = [LLMRequest(({"role": "user", "content": w},), max_tokens, 0.0) for w in words]
        found = dict(self.client.complete(requests, [lambda reply: reply.text] * len(requests), role="judge"))
        return [found[i] for i in range(len(requests))]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cache.close()
        self.ledger.close()


MOST_IN, MOST_OUT = 49 * 10e-6, 50 * 100e-6  # of a question of one letter


@pytest.mark.parametrize(
    ("usage", "usd", "at_most"),
    [
        ({"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 90}, 40e-5 + 50e-4, 0),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, 0, MOST_IN + MOST_OUT),
        (None, 0, MOST_IN + MOST_OUT),
        ({"prompt_tokens": 40, "completion_tokens": 0, "total_tokens": 40}, 40e-5, MOST_OUT),
        ({"completion_tokens": 20}, 20e-4, MOST_IN),
        ({"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 60, "cost": 0.05}, 0.05, 0),
        ({"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 60, "cost": 0.0001}, 24e-4, 0),
        ({"cost": 0.001}, 0.001, MOST_IN + MOST_OUT - 0.001),
        ({"prompt_tokens": 40, "completion_tokens": 20, "prompt_tokens_details": {"cache_write_tokens": 30}},
         (40 + 30) * 1e-5 + 20e-4, 0),
    ],
)  # fmt: skip
def test_what_a_call_is_charged_with(tmp_path, usage, usd, at_most):
    with judge_server(lambda text: "ok", [{"usage": usage}]) as server, Judge(tmp_path, server) as judge:
        assert judge.ask(["x"]) == ["ok"]
        total = judge.ledger.totals()["judge"]
        assert (total["usd"], total["usd_at_most"]) == (pytest.approx(usd), pytest.approx(at_most))
        assert total["unpriced"] == (at_most > 0)
        spent = judge.ledger.spent
    with closing(Ledger(tmp_path / "calls.jsonl", prices=(1.0, 1.0))) as ledger:
        assert ledger.spent == spent
    assert json.loads((tmp_path / "replies.jsonl").read_text().splitlines()[0]).popitem()[1]["text"] == "ok"


@pytest.mark.parametrize(
    ("told", "charged"),
    [(429, False), (503, False), (529, False), (400, False), (500, True), (502, True), (504, True), (408, True),
     (DROP, True)],
)  # fmt: skip
def test_a_try_that_may_have_been_charged_counts_with_its_most(tmp_path, told, charged):
    script = [told if told == DROP else (told, {})]
    with judge_server(lambda text: "ok", script) as server, Judge(tmp_path, server, retries=1) as judge:
        judge.ask(["x"])
        assert judge.ledger.totals()["judge"]["usd_at_most"] == pytest.approx((MOST_IN + MOST_OUT) * charged)


def test_where_a_cache_may_be_written_its_price_is_reserved(tmp_path):
    usage = {"input_tokens": 1, "cache_creation_input_tokens": 48, "output_tokens": 50}
    most = 2 * MOST_IN + MOST_OUT
    how = {"form": AnthropicJudgeSettings, "max_usd": most * 3, "concurrency": 4}
    with judge_server(lambda text: "ok", [{"usage": usage}] * 9) as server, Judge(tmp_path, server, **how) as judge:
        assert judge.ask("abcdef").count("ok") == len(server.requests) == 3
        assert judge.ledger.spent == pytest.approx(3 * (97 * 10e-6 + MOST_OUT))


def test_calls_that_pass_their_own_limit_are_reserved_for_at_that_price(tmp_path):
    """The endpoint writes ten times what `max_tokens` allows; known after the first call, also after a restart."""
    usage = {"prompt_tokens": 49, "completion_tokens": 500, "total_tokens": 549}
    one = MOST_IN + 500 * 100e-6
    with judge_server(lambda text: "ok", [{"usage": usage}] * 20) as server:
        for calls in (3, 4):
            with Judge(tmp_path, server, max_usd=calls * one * 1.001, concurrency=1) as judge:
                judge.ask("abcdefgh")
                assert len(server.requests) == calls
                assert judge.ledger.spent == pytest.approx(calls * one)


@pytest.mark.parametrize("given", [{"usd_per_million_in": 10.0}, {"usd_per_million_out": 10.0}])
@pytest.mark.parametrize("judge", [{"api": "openai", "model": "m"}, {"api": "anthropic"}])
def test_one_price_of_two_is_refused(judge, given):
    (missing,) = PRICES.keys() - given.keys()
    with refuses(missing) as refused:
        LabelSettings(judge={**judge, **given})
    assert "give both prices" in str(refused.value)
    LabelSettings(judge={**judge, **given, missing: 0.0})
    LabelSettings(judge=judge)


def test_a_budget_needs_a_limit_of_tokens(tmp_path):
    both = ["max_tokens", "max_completion_tokens"]
    judge = {"api": "openai", "model": "m", **PRICES, "leave_out": both}
    with refuses("max_usd") as error:
        LabelSettings(judge=judge, max_usd=1.0)
    assert "needs a limit of tokens" in str(error.value)
    LabelSettings(judge=judge)
    LabelSettings(judge={**judge, "leave_out": both[:1]}, max_usd=1.0)
    refused = [(400, {}, {"error": {"param": name, "code": "unsupported_parameter"}}) for name in both]
    with judge_server(lambda text: "ok", refused * 2) as server:
        for max_usd, sent in ((1.0, 2), (None, 3)):
            folder = tmp_path / str(max_usd)
            server.script[:], server.requests[:] = refused, []
            with Judge(folder, server, max_usd=max_usd) as judge:
                answer = judge.ask("x")[0]
                assert (answer == "ok", len(server.requests)) == (max_usd is None, sent)
                assert both[0] in server.requests[0]
                assert both[1] in server.requests[1]


def as_reported(style, read, written, usd):
    """A reply of a call that read and wrote so many tokens, with its usage in one of the formats of endpoints."""
    plain = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    inside = written // 3
    usage = {
        "plain": plain, "zeros": dict.fromkeys(plain, 0), "missing": None, "empty": {}, "text": "unknown",
        "strings": {k: str(v) for k, v in plain.items()}, "floats": {k: float(v) for k, v in plain.items()},
        "negative": {k: -v for k, v in plain.items()}, "prompt": {"prompt_tokens": read},
        "total": {"total_tokens": read + written},
        "no total": {"prompt_tokens": read, "completion_tokens": written},
        "reasoning outside": {**plain, "completion_tokens": inside},
        "reasoning inside": {**plain, "completion_tokens_details": {"reasoning_tokens": inside}},
        "reasoning, no total": {"prompt_tokens": read, "completion_tokens": inside,
                                "completion_tokens_details": {"reasoning_tokens": written - inside}},
        "cached outside": {**plain, "prompt_tokens": read - read // 3, "cached_tokens": read // 3},
        "only dollars": {"cost": usd}, "dollars": {**plain, "cost": usd}, "few dollars": {**plain, "cost": usd / 10},
    }  # fmt: skip
    return {"usage": usage[style]}


STYLES = [
    "plain", "zeros", "missing", "empty", "text", "strings", "floats", "negative", "prompt", "total", "no total",
    "reasoning outside", "reasoning inside", "reasoning, no total", "cached outside", "only dollars", "dollars",
    "few dollars", DROP, 500, 502, 429, 400,
]  # fmt: skip


def calls_of(kinds):
    """Calls: the format of the usage, tokens read, tokens written."""
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(3, 49), st.integers(1, 50)), min_size=1, max_size=10)


@pytest.mark.hostile("endpoints")
@pytest.mark.parametrize("style", first(STYLES, 5))
@settings(max_examples=5)
@given(data=st.data(), concurrency=st.integers(1, 8), budget=st.floats(0.001, 0.03), more=st.floats(1.0, 3.0))
def test_the_budget_holds_under_any_sequence_of_replies(tmp_path_factory, style, data, concurrency, budget, more):
    """The endpoint reports the cost of each request in one of many formats, or not at all; twice, with a restart."""
    calls = data.draw(calls_of([style]) | calls_of(STYLES))
    bills, script = [], []
    for kind, tokens_in, tokens_out in calls:
        bills.append(0.0 if kind in (429, 400) else (tokens_in * 10 + tokens_out * 100) / 1e6)
        told = kind if kind == DROP else (kind, {}) if isinstance(kind, int) else None
        script.append(told or as_reported(kind, tokens_in, tokens_out, bills[-1]))
    folder = tmp_path_factory.mktemp("budget")
    words = [chr(ord("a") + i) for i in range(len(calls))]
    with judge_server(lambda text: "ok", script) as server:
        for max_usd in (budget, budget * more):
            with Judge(folder, server, max_usd=max_usd, concurrency=concurrency, retries=1) as judge:
                answers = judge.ask(words[: len(script)])
                bill = sum(bills[: len(server.requests)])
                assert bill <= judge.ledger.spent * (1 + 1e-9)
                assert judge.ledger.spent <= max_usd * (1 + 1e-9)
                if BUDGET in [getattr(answer, "reason", "") for answer in answers]:
                    assert judge.ledger.spent + (MOST_IN + MOST_OUT) * judge.ledger._scale("judge") > max_usd


def test_replies_that_a_budget_paid_for_are_there_after_it(tmp_path):
    with judge_server(lambda text: text * 2) as server:
        with Judge(tmp_path, server, max_usd=0.02, concurrency=4) as judge:
            first = judge.ask("abcdefghij")
        paid = [answer for answer in first if isinstance(answer, str)]
        assert 0 < len(paid) == len(server.requests) < 10
        judge = Judge(tmp_path, server, max_usd=0.02)
        with judge:
            judge.client.only_cached = True
            assert [answer for answer in judge.ask("abcdefghij") if isinstance(answer, str)] == paid
        assert len(server.requests) == len(paid)


def test_a_key_that_is_refused_costs_nothing(tmp_path):
    with judge_server(script=[(401, {})]) as server, Judge(tmp_path, server) as judge:
        with pytest.raises(ConfigError):
            judge.ask(["x"])
        assert judge.ledger.spent == 0


def test_reservations_add_up_over_concurrent_calls(tmp_path):
    with closing(Ledger(tmp_path / "c.jsonl", prices=(0.0, 1e6), max_usd=10.0)) as ledger:
        held = [ledger.reserve("judge", tokens_in=1, tokens_out=3) for _ in range(3)]
        for one, usage in zip(held, (CallUsage(1, 1), CallUsage(1, None), None), strict=True):
            ledger.settle(one, usage)
        assert ledger.spent == 1 + 3 + 3
        assert ledger.reserve("judge", tokens_in=1, tokens_out=4) is None
