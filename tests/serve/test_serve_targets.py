"""Whatever is sent, no 5xx and no growth: requests made from the interface's own description, and bytes made to hurt.

The short runs belong to every change; the long ones (`-m slow`) send ten thousand, and go on for GUERDON_FUZZ_MINUTES.
What is about speed is measured by `benchmarks/server.py`.
"""

import json
import os
import socket

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from processes import start_server

from fuzzing import LIMIT_S, until_the_time_is_over

pytestmark = pytest.mark.hostile("http")

SMALL = {
    "limits": {"max_items": 64, "max_body_bytes": 1 << 20, "read_timeout_s": 5.0, "deadline_s": 5.0},
    "batch": {"queue_items": 256, "cache_items": 256},
}
MODELS = {
    "toy": {"custom_backend": "toys:make"},
    "orm": {"custom_backend": "toys:make", "options": {"granularity": "total"}},
    "frames": {"custom_backend": "toys:make", "options": {"modality": "image"}},
}
LONG = 10_000
NO_FAULT = {500, 501, 502, 503, 505, 507}  # 504 is the deadline that the request asked for itself


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    models = {**MODELS, "learner": {"custom_backend": "toys:make_learner", "update_dir": str(folder / "states")}}
    running = start_server(folder, models=models, **SMALL)
    yield running
    assert running.stop() == 0


def resident(running):
    with open(f"/proc/{running.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def from_the_description(target, examples):
    """Requests that fit the interface's description, and ones that miss it on purpose; returns how many were sent."""
    schema = schemathesis.openapi.from_dict(target.get("/openapi.json").json())
    schema.config.base_url = target.url
    sent = []
    for operation in (result.ok() for result in schema.get_all_operations()):
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            cases = operation.as_strategy(generation_mode=mode)

            @settings(
                max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=cases)
            def ask(case):
                if "/reload" in case.path and len(sent) % 20:
                    return
                answer = case.call()
                sent.append(answer.status_code)
                assert answer.status_code not in NO_FAULT, (case.as_curl_command(), answer.text)
                if answer.status_code != 200:
                    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, answer.text

            before = len(sent)
            try:
                ask()
            except Unsatisfiable:  # nothing can be wrong about a request without parameters
                assert mode is schemathesis.GenerationMode.NEGATIVE
                assert len(sent) == before
    return sent


@pytest.mark.parametrize("examples", [6, pytest.param(150, marks=pytest.mark.slow)])
def test_requests_from_the_description_of_the_interface(target, examples):
    sent = from_the_description(target, examples)
    assert len(sent) > 20
    assert target.get("/ready").status_code == 200


words = st.text(max_size=20)
numbers = st.one_of(
    st.integers(), st.floats(), st.just(10**400), st.just(-0.0), st.booleans(), st.none(), st.just(2**63)
)
keys = st.sampled_from(
    [
        "items", "model", "aggregation", "options", "deadline_s", "update", "client_id", "number", "prompt", "steps",
        "completion", "messages", "task", "frames_base64", "npy_base64", "video_base64", "video_path", "id",
        "label", "outcome", "separator", "query", "prompts", "labels", "input", "task_text", "nframes",
        "max_pixels", "backend", "backend_kwargs", "role", "content", "url", "image_url", "type",
    ]
)  # fmt: skip
anything = st.recursive(
    st.one_of(words, numbers), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=25,
)  # fmt: skip
items = st.fixed_dictionaries(
    {
        "prompt": words,
        "steps": st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4),
        "outcome": st.booleans(),
    },
    optional={"id": words},
)
likely = st.fixed_dictionaries(
    {"items": st.lists(items, min_size=1, max_size=3)},
    optional={
        "model": st.sampled_from(["toy", "orm", "frames", "learner", None, "x"]),
        "aggregation": st.sampled_from(["min", "prod", "mean", "last", "pure_min", None, "max"]),
    },
)
ROUTES = [
    "/v1/rewards", "/v1/update", "/score", "/get_reward", "/classify", "/pooling", "/v1/chat/completions", "/health",
]  # fmt: skip
KINDS = ["application/json", "text/plain", "multipart/form-data; boundary=x", "multipart/form-data", "a/b;charset=!"]
kinds = st.sampled_from(KINDS)


def fuzz(target, examples):
    sent = []

    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        sending=st.one_of(
            st.tuples(st.sampled_from(ROUTES), anything.map(json.dumps).map(str.encode), kinds),
            st.tuples(st.sampled_from(ROUTES), st.binary(max_size=200), kinds),
            st.tuples(st.sampled_from(ROUTES[:2]), likely.map(json.dumps).map(str.encode), st.just(KINDS[0])),
        )
    )
    def ask(sending):
        route, body, kind = sending
        answer = target.post(route, content=body, headers={"Content-Type": kind})
        sent.append(answer.status_code)
        assert answer.status_code not in NO_FAULT, (route, body, kind, answer.text)
        text = answer.text
        assert "Traceback" not in text
        assert "NaN" not in text or b"NaN" in body

    ask()
    return sent


def test_fuzzed_bodies(target):
    sent = fuzz(target, 300)
    wanted = settings(max_examples=300).max_examples  # GUERDON_FUZZ_SCALE changes it
    assert len(sent) >= wanted
    assert sent.count(200) >= wanted // 15
    assert target.get("/ready").status_code == 200


tokens = st.sampled_from(
    [
        b"GET ", b"POST ", b"HEAD ", b"CONNECT ", b"/health", b"/v1/rewards", b"//", b"?", b" ", b"%",
        b"HTTP/1.1", b"\r\n", b"\r\n\r\n", b"\n", b"Host: localhost", b"Content-Length: ",
        b"Transfer-Encoding: chunked",
        b"Connection: close", b"Connection: upgrade", b"Upgrade: websocket", b"Expect: 100-continue", b"5",
        b"5\r\nabcde\r\n", b"0\r\n\r\n", b"{}",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST /v1/rewards HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    ]
)  # fmt: skip
long = st.builds(lambda part, times: part * times, tokens, st.sampled_from([100, 10_000]))
raw = st.lists(st.one_of(tokens, tokens, st.binary(max_size=30), long), max_size=12)


def fuzz_connections(target, examples):
    """What may stand in a request, in any order and in pieces: answered or refused, and others are served."""
    host, port = target.url.removeprefix("http://").split(":")

    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(pieces=raw)
    def send(pieces):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            data = b""
            try:
                for piece in pieces:
                    connection.sendall(piece)
                assert target.get("/health").status_code == 200
                connection.setblocking(False)
                while part := connection.recv(65536):
                    data += part
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                pass  # it says no more for now
        statuses = {int(line[9:12]) for line in data.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")}
        assert not statuses & NO_FAULT, (pieces, data)

    send()


def test_fuzzed_connections(target):
    fuzz_connections(target, 100)
    assert "Traceback" not in target.log
    assert target.get("/ready").status_code == 200


@pytest.mark.slow
def test_ten_thousand_fuzzed_bodies_and_no_growth(target):
    fuzz(target, 2000)  # caches fill, pools grow to their size
    before = resident(target)
    sent = fuzz(target, LONG)
    assert len(sent) >= settings(max_examples=LONG).max_examples  # GUERDON_FUZZ_SCALE changes it
    assert target.get("/ready").status_code == 200
    grown = resident(target) / before - 1
    assert grown < 0.05, f"resident memory grew by {grown:.1%}"


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_fuzzed_for_minutes_and_no_growth(target):
    def once():
        from_the_description(target, 10)
        fuzz(target, 300)
        fuzz_connections(target, 50)
        assert target.get("/ready").status_code == 200

    fuzz(target, 2000)  # as above
    once()
    before = resident(target)
    until_the_time_is_over(once)
    assert "Traceback" not in target.log
    grown = resident(target) / before - 1
    assert grown < 0.05, f"resident memory grew by {grown:.1%}"
