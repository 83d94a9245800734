"""Judges over real HTTP: both protocols, everything that goes wrong on the way, cost, and what is kept on disk."""

import fcntl
import json
import resource
import socket
import threading
from contextlib import closing, suppress

import pytest
from judge_server import CUT, DROP, HANG, FakeClock, judge_server

from guerdon.endpoints.llm_client import BUDGET, HttpLLMClient, LLMRequest, api_key, send
from guerdon.errors import ConfigError, DataError
from guerdon.files.append_log import AppendLog, Cache, CallUsage, Ledger
from guerdon.network.retry import Clock, HttpFailure
from guerdon.settings.label import AnthropicJudgeSettings, OpenAIJudgeSettings
from guerdon.types import Failure

pytestmark = pytest.mark.usefixtures("keys")


def complete(client, requests, parse, role):
    """Parsed replies in order."""
    found = dict(client.complete(requests, [parse] * len(requests), role=role))
    return [found[i] for i in range(len(requests))]


class World:
    """A judge, a cache, a ledger and a clock in one folder."""

    def __init__(self, folder, server, *, max_usd=None, api="openai", **given):
        self.clock = FakeClock()
        url = server.url + ("/v1" if api == "openai" else "")
        prices = {"usd_per_million_in": 10.0, "usd_per_million_out": 100.0}
        form = {"openai": OpenAIJudgeSettings, "anthropic": AnthropicJudgeSettings}[api]
        settings = form(model="m", **{"base_url": url, "concurrency": 1, "timeout": 20, **prices, **given})
        self.cache = Cache(folder / "replies.jsonl")
        self.ledger = Ledger(folder / "calls.jsonl", prices=settings.prices, max_usd=max_usd)
        clock = Clock(self.clock.now, self.clock.sleep, lambda: 0.0)
        self.client = HttpLLMClient(settings, self.cache, self.ledger, clock)

    def ask(self, *words, check=None, max_tokens=50, temperature=0.0):
        requests = [LLMRequest(({"role": "user", "content": w},), max_tokens, temperature) for w in words]
        return complete(self.client, requests, check or (lambda reply: reply.text), "judge")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cache.close()
        self.ledger.close()


def test_the_messages_api(tmp_path):
    with judge_server(lambda text: text.upper()) as server, World(tmp_path, server, api="anthropic") as world:
        request = LLMRequest(({"role": "system", "content": "be"}, {"role": "user", "content": "hi"}), 7, None)
        assert complete(world.client, [request], lambda reply: reply, "x")[0].text == "HI"
        assert server.paths == ["/v1/messages"]
        assert server.requests == [
            {
                "model": "m", "stream": False, "max_tokens": 7, "system": "be",
                "messages": [{"role": "user", "content": "hi"}],
            }
        ]  # fmt: skip
        headers = {k.lower(): v for k, v in server.headers[0].items()}
        assert (headers["x-api-key"], headers["anthropic-version"]) == ("sk-ant-test", "2023-06-01")
        assert world.ledger.totals()["x"] == {
            "calls": 1, "failed": 0, "tokens_in": 100, "tokens_out": 20, "usd": pytest.approx(0.003), "unpriced": 0,
            "usd_at_most": 0, "from_cache": 0,
        }  # fmt: skip


def test_chat_completions(tmp_path, monkeypatch):
    monkeypatch.setenv("MINE", "secret")
    how = {"api_key_env": "MINE", "token_limit_key": "max_completion_tokens"}
    with judge_server(lambda text: text.upper()) as server, World(tmp_path, server, **how) as world:
        assert world.ask("hi") == ["HI"]
        assert server.paths == ["/v1/chat/completions"]
        assert server.requests[0] == {
            "model": "m", "stream": False, "temperature": 0.0, "max_completion_tokens": 50, "repetition_penalty": 1.0,
            "messages": [{"role": "user", "content": "hi"}],
        }  # fmt: skip
        assert server.headers[0]["Authorization"] == "Bearer secret"


def test_keys_come_from_the_environment_or_dot_env(tmp_path, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY is not set"):
        api_key("ANTHROPIC_API_KEY")
    with judge_server() as server, pytest.raises(ConfigError, match="ANTHROPIC_API_KEY is not set"):
        World(tmp_path, server, api="anthropic", api_key_env="ANTHROPIC_API_KEY")
    (tmp_path / ".env").write_text("# keys\nexport ANTHROPIC_API_KEY='from file'\n")
    with judge_server() as server, World(tmp_path, server, api="anthropic") as world:
        world.ask("x")
        assert {k.lower(): v for k, v in server.headers[0].items()}["x-api-key"] == "from file"


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_an_endpoint_of_ones_own_needs_no_key(tmp_path, monkeypatch, api, end):
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    if api == "openai" and "v1" not in end:
        end = "/v1" + end
    with judge_server() as server, World(tmp_path, server, api=api, base_url=server.url + end) as world:
        world.ask("x")
        assert not {"x-api-key", "authorization"} & {name.lower() for name in server.headers[0]}


@pytest.mark.parametrize(
    ("api", "url"),
    [
        ("anthropic", None), ("anthropic", "https://api.anthropic.com"), ("anthropic", "https://api.anthropic.com/v1/"),
        ("openai", None), ("openai", "https://api.openai.com/v1"),
    ],
)  # fmt: skip
def test_the_real_ones_need_a_key_and_say_so(tmp_path, monkeypatch, api, url):
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with judge_server() as server, pytest.raises(ConfigError, match=f"{api.upper()}_API_KEY is not set"):
        World(tmp_path, server, api=api, base_url=url)


@pytest.mark.hostile("endpoints")
@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ((429, {"retry-after": "7"}), "rate_limited"),
        ((529, {}), "server_error"),
        ((500, {}, b"<html>"), "server_error"),
        ((200, {}, b"{garbage"), "bad_reply"),
        ((200, {}, {"hello": 1}), "bad_reply"),
        ((200, {}, []), "bad_reply"),
        (DROP, "connection"),
        (CUT, "connection"),
    ],
)
def test_what_the_network_does_wrong_is_tried_again(tmp_path, told, reason, api):
    with judge_server(lambda text: "ok", [told]) as server, World(tmp_path, server, api=api) as world:
        assert world.ask("x") == ["ok"]
        assert len(server.requests) == 2
        assert world.ledger.totals()["judge"]["failed"] == 1
        assert json.loads((tmp_path / "calls.jsonl").read_text().splitlines()[1])["failure"] == reason
        pause = sum(world.clock.slept)
        assert 7 <= pause <= 7.7 if reason == "rate_limited" else 0.75 <= pause <= 1


@pytest.mark.hostile("endpoints")
def test_a_server_that_hangs_is_left_alone(tmp_path):
    with judge_server(lambda text: "ok", [HANG]) as server, World(tmp_path, server, timeout=0.3, retries=0) as world:
        assert world.ask("x")[0].reason == "timeout"
        assert world.ledger.totals()["judge"]["unpriced"] == 1  # it may have been charged for


def test_pauses_double_and_failures_of_the_network_are_not_kept(tmp_path):
    with judge_server(lambda text: "ok", [(500, {})] * 4) as server, World(tmp_path, server, retries=3) as world:
        assert world.ask("x") == [Failure("server_error", "500: as told")]
        assert all(0.75 * most <= pause <= most for pause, most in zip(world.clock.slept, (1, 2, 4), strict=True))
        assert world.ask("x") == ["ok"]


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("reason", ["refusal", "truncated", "wrong"])
@pytest.mark.parametrize(("temperature", "tries"), [(0.0, 1), (0.7, 3), (None, 3)])
def test_unusable_replies_are_remembered_and_asked_for_again_only_where_they_may_differ(
    tmp_path, reason, api, temperature, tries
):
    stop = {
        "refusal": ("content_filter", "refusal"),
        "truncated": ("length", "max_tokens"),
        "wrong": ("stop", "end_turn"),
    }
    choice = {"message": {"content": "x"}, "finish_reason": stop[reason][0]}
    bad = {"choices": [choice]} if api == "openai" else {"stop_reason": stop[reason][1]}

    def check(reply):
        return Failure("wrong") if reason == "wrong" else reply.text

    with judge_server(lambda text: "ok", [bad] * 9) as server, World(tmp_path, server, api=api) as world:
        for from_cache in (0, 1):
            assert world.ask("x", check=check, temperature=temperature)[0].reason == reason
            assert len(server.requests) == tries
            assert world.ledger.totals()["judge"]["from_cache"] == from_cache
        assert world.ledger.totals()["judge"]["tokens_out"] == 20 * tries  # unusable replies cost too


def test_a_refusal_field_is_a_refusal(tmp_path):
    told = {"choices": [{"message": {"content": None, "refusal": "I cannot"}, "finish_reason": "stop"}]}
    with judge_server(script=[told]) as server, World(tmp_path, server, retries=0) as world:
        assert world.ask("x") == [Failure("refusal", "I cannot")]


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"error": {"message": "max_tokens is too large"}}, "400: max_tokens is too large"),
        ({"error": "no such parameter"}, "400: no such parameter"),
        ({"object": "error", "message": "context too long"}, "400: context too long"),
        ({"detail": [{"loc": ["body"]}]}, '400: {"detail": [{"loc": ["body"]}]}'),
        (b"<h1>Bad  Request</h1>", "400: Bad Request"),
        ({}, "400: no reason given"),
    ],
)
def test_the_endpoint_s_own_words_are_the_reason(tmp_path, payload, words):
    with judge_server(script=[(400, {}, payload)] * 9) as server, World(tmp_path, server) as world:
        assert world.ask("x") == [Failure("rejected", words)]


def test_answers_come_as_they_are_ready_and_a_slow_one_holds_nobody_up(tmp_path):
    """One slot, and the first request is sent away for a while: all others are answered meanwhile."""
    with judge_server(lambda text: text * 2, [(500, {})]) as server, World(tmp_path, server) as world:
        requests = [LLMRequest(({"role": "user", "content": w},), 5, 0.0) for w in "abca"]
        found = list(world.client.complete(requests, [lambda reply: reply.text] * 4, role="judge"))
        assert found == [(1, "bb"), (2, "cc"), (0, "aa"), (3, "aa")]
        assert [r["messages"][0]["content"] for r in server.requests] == ["a", "b", "c", "a"]


@pytest.mark.parametrize(("headers", "least", "most"), [
    ({"Retry-After": "0.25"}, 0.25, 0.28), ({"retry-after-ms": "40"}, 0.04, 0.045), ({"Retry-After": "0"}, 0.75, 1),
])  # fmt: skip
def test_what_the_server_asks_for_is_obeyed_also_below_a_second_and_as_a_date(tmp_path, headers, least, most):
    with judge_server(lambda text: "ok", [(429, headers)]) as server, World(tmp_path, server) as world:
        assert world.ask("x") == ["ok"]
        assert least <= sum(world.clock.slept) <= most


@pytest.mark.parametrize(
    ("status", "words"), [(401, "does not accept the key"), (403, "does not allow"), (404, "no such model")]
)
def test_what_no_patience_can_mend_stops_the_work(tmp_path, status, words):
    with judge_server(script=[(status, {})] * 9) as server, World(tmp_path, server) as world:
        with pytest.raises(ConfigError, match=words):
            world.ask("x", "y", "z")
        assert len(server.requests) <= 2


def test_a_request_that_is_rejected_is_not_repeated(tmp_path):
    with (
        judge_server(script=[(400, {}, {"error": {"param": "messages"}}), (413, {})]) as server,
        World(tmp_path, server) as world,
    ):
        assert [f.reason for f in world.ask("x", "y")] == ["rejected", "rejected"]
        assert len(server.requests) == 2


@pytest.mark.hostile("endpoints")
def test_redirects_are_not_followed(tmp_path):
    with judge_server() as other, judge_server(script=[(302, {"Location": other.url})]) as server:
        with World(tmp_path, server) as world:
            assert world.ask("x")[0].reason == "rejected"
        assert not other.requests


def test_nobody_there(tmp_path):
    with judge_server() as server:
        pass
    with World(tmp_path, server, retries=1) as world:
        assert world.ask("x")[0].reason == "connection"
        assert world.ledger.spent == 0


def test_an_address_that_is_none():
    settings = OpenAIJudgeSettings(model="m", base_url="localhost:80")
    with pytest.raises(ConfigError, match="not an address"):
        send(settings, None, LLMRequest(({"role": "user", "content": "x"},), 5))


def test_a_second_run_asks_nobody(tmp_path):
    with judge_server(lambda text: text * 2) as server:
        for _ in range(2):
            with World(tmp_path, server, concurrency=4) as world:
                assert world.ask("a", "b", "a") == ["aa", "bb", "aa"]
        assert sorted(r["messages"][0]["content"] for r in server.requests) == ["a", "b"]


@pytest.mark.hostile("kills")
def test_a_killed_run_goes_on(tmp_path):
    with judge_server(lambda text: text * 2) as server:
        with World(tmp_path, server) as world:
            world.ask("a", "b")
        kept = tmp_path / "replies.jsonl"
        kept.write_bytes(kept.read_bytes()[:-5])  # the last line was being written
        with World(tmp_path, server) as world:
            assert world.ask("a", "b", "c") == ["aa", "bb", "cc"]
        assert [r["messages"][0]["content"] for r in server.requests] == ["a", "b", "b", "c"]


def test_the_budget_is_never_passed_and_holds_over_restarts(tmp_path):
    # a call costs 0.003; before it, its most is set aside: (len + 48) tokens at 10 and 50 at 100 per million
    words = [f"question {i:04}" for i in range(40)]
    with judge_server(lambda text: "ok") as server:
        with World(tmp_path, server, max_usd=0.05, concurrency=8) as world:
            first = world.ask(*words)
            assert world.ledger.spent <= 0.05
        done = sum(answer == "ok" for answer in first)
        assert 0 < done < 40
        assert {answer.reason for answer in first if answer != "ok"} == {BUDGET}
        assert len(server.requests) == done
        with World(tmp_path, server, max_usd=0.05) as world:
            assert world.ledger.spent == pytest.approx(0.003 * done)
            assert sum(answer == "ok" for answer in world.ask(*words)) - done <= 1
        with World(tmp_path, server, max_usd=5.0) as world:
            assert world.ask(*words) == ["ok"] * 40
            assert world.ledger.spent == pytest.approx(0.12)
        assert len(server.requests) == 40


@pytest.mark.hostile("endpoints")
def test_a_reply_that_does_not_say_what_it_used_counts_with_the_most(tmp_path):
    with judge_server(lambda text: "ok", [{"usage": None}]) as server, World(tmp_path, server) as world:
        world.ask("x")
        total = world.ledger.totals()["judge"]
        assert (total["unpriced"], total["usd"]) == (1, 0)
        assert total["usd_at_most"] == pytest.approx((49 * 10 + 50 * 100) / 1e6)


def test_requests_start_no_faster_than_asked(tmp_path):
    with judge_server(lambda text: "ok") as server, World(tmp_path, server, requests_per_minute=30) as world:
        world.ask(*"abcd")
        assert world.clock.time == pytest.approx(100 + 3 * 2)


@pytest.mark.hostile("kills")
def test_one_process_at_a_time(tmp_path):
    with closing(AppendLog(tmp_path / "x.jsonl")) as log:
        log.append({"a": 1})
        with pytest.raises(DataError, match="in use by another"):
            AppendLog(tmp_path / "x.jsonl")
    with closing(AppendLog(tmp_path / "x.jsonl")) as log:
        assert log.rows == [{"a": 1}]
    (tmp_path / "x.jsonl").write_text("{broken\n{}\n")
    with pytest.raises(DataError, match=r"x\.jsonl:1: not a line of JSON"):
        AppendLog(tmp_path / "x.jsonl")


@pytest.mark.hostile("disk")
def test_a_full_disk_leaves_no_half_line(tmp_path):
    with closing(AppendLog(tmp_path / "x.jsonl")) as log:
        log.append({"a": 1})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
        try:
            with pytest.raises(DataError, match=r"x\.jsonl: File too large; the same command resumes"):
                log.append({"b": "b" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.append({"c": 3})
    with closing(AppendLog(tmp_path / "x.jsonl")) as log:
        assert log.rows == [{"a": 1}, {"c": 3}]


@pytest.mark.hostile("kills")
def test_a_call_that_a_kill_cut_off_counts_with_the_most_it_can_have_cost(tmp_path):
    with closing(Ledger(tmp_path / "c.jsonl", prices=(10.0, 100.0), max_usd=0.01)) as ledger:
        first, _ = (ledger.reserve("judge", tokens_in=10, tokens_out=40) for _ in range(2))
        ledger.settle(first, CallUsage(10, 10))
    with closing(Ledger(tmp_path / "c.jsonl", prices=(10.0, 100.0), max_usd=0.01)) as ledger:
        assert ledger.spent == pytest.approx(0.0011 + 0.0041)
        assert ledger.totals()["judge"] | {"usd": 0, "usd_at_most": 0} == {
            "calls": 2, "failed": 1, "tokens_in": 10, "tokens_out": 10, "usd": 0, "unpriced": 1, "usd_at_most": 0,
            "from_cache": 0,
        }  # fmt: skip
        assert ledger.reserve("judge", tokens_in=10, tokens_out=60) is None
        assert ledger.reserve("judge", tokens_in=10, tokens_out=20, later=0.003) is None
        assert ledger.reserve("judge", tokens_in=10, tokens_out=20, later=0.002).number == 2


@pytest.mark.hostile("texts")
def test_half_a_character_does_not_get_through(tmp_path):
    with judge_server(lambda text: "a\ud83d") as server, World(tmp_path, server) as world:
        assert world.ask("x \ud83d") == ["a\ufffd"]


def test_a_bug_in_a_check_holds_no_money_beyond_what_the_reply_cost(tmp_path):
    def broken(reply):
        raise ZeroDivisionError

    with judge_server() as server, World(tmp_path, server, max_usd=0.035, concurrency=4) as world:
        with pytest.raises(ZeroDivisionError):
            world.ask(*"abcdefgh", check=broken)
        replies = len(server.requests)
        assert world.ledger.spent == pytest.approx(replies * 0.003)  # 100 tokens in, 20 out, as the replies say
        assert world.ask("z", check=lambda reply: "ok") == ["ok"]


def test_a_refused_reply_that_a_later_version_can_read_costs_nothing_again(tmp_path):
    with judge_server(lambda text: "9") as server, World(tmp_path, server) as world:
        assert world.ask("x", check=lambda reply: Failure("not_read")) == [Failure("not_read")]
        assert world.ask("x") == ["9"]
        assert world.ask("x", check=lambda reply: Failure("no", "still")) == [Failure("not_read")]
        assert len(server.requests) == 1


def test_other_fields_or_another_form_are_another_question(tmp_path):
    with judge_server(lambda text: "ok") as server:
        hows = [{}, {"extra_body": {"seed": 1}}, {"extra_body": {"seed": 2}}, {"response_format": "json_object"}]
        for calls, how in enumerate([*hows, *hows]):
            with World(tmp_path, server, **how) as world:
                request = LLMRequest(({"role": "user", "content": "x"},), 5, 0.0, schema={"type": "object"})
                complete(world.client, [request], lambda reply: reply.text, "judge")
            assert len(server.requests) == min(calls + 1, 4)


@pytest.mark.hostile("endpoints")
def test_a_server_that_sends_its_headers_slowly_is_left_alone(tmp_path):
    def drip():
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 4000:
                connection.send(bytes([byte]))
                over.wait(0.05)

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        settings = OpenAIJudgeSettings(model="m", base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5)
        with pytest.raises(HttpFailure, match=r"no reply within 0.5 s") as failure:
            send(settings, None, LLMRequest(({"role": "user", "content": "x"},), 5))
        over.set()
        thread.join()
    assert failure.value.billed


def test_a_file_in_which_nothing_was_written_is_removed(tmp_path):
    log = AppendLog(tmp_path / "new" / "log.jsonl")
    other = AppendLog(tmp_path / "new" / "other.jsonl")
    log.close()
    assert not log.path.exists()
    other.append({"a": 1})
    other.close()
    other.close()
    assert other.path.read_text() == '{"a": 1}\n'
    kept = tmp_path / "there"
    kept.mkdir()
    AppendLog(kept / "log.jsonl").close()
    assert list(kept.iterdir()) == []
    AppendLog(tmp_path / "gone" / "log.jsonl").close()
    assert not (tmp_path / "gone").exists()


def test_a_file_that_is_removed_before_it_is_locked_is_opened_again(tmp_path, monkeypatch):
    """As another process does that closes it, empty, between the opening and the lock here."""
    path, lock, left = tmp_path / "log.jsonl", fcntl.flock, [1, 1]

    def locks_late(*given):
        if left:
            left.pop()
            path.unlink()
        return lock(*given)

    monkeypatch.setattr(fcntl, "flock", locks_late)
    with closing(AppendLog(path)) as log:
        log.append({"a": 1})
    assert not left
    assert path.read_text() == '{"a": 1}\n'
