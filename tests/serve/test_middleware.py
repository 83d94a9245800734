"""Who gets in, with what, and how long it may take: against a real process, over real sockets."""

import gzip
import http.client
import json
import os
import socket
import time

import httpx2 as httpx
import pytest
from processes import start_server

from guerdon.serve.app import build_app
from guerdon.serve.backends import ModelLoader
from guerdon.serve.launch import serve_settings
from guerdon.serve.served_models import ServedModels
from guerdon.settings.serve import ServeSettings
from tables import refuses

TOKEN = "a-long-secret"
ITEM = {"items": [{"prompt": "q", "steps": ["a"]}]}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with a token and small limits."""
    running = start_server(
        tmp_path_factory.mktemp("guarded"),
        token=TOKEN,
        limits={
            "max_body_bytes": 100_000,
            "read_timeout_s": 0.5,
            "max_items": 8,
            "max_characters": 1000,
            "max_steps": 4,
        },
    )
    yield running
    assert running.stop() == 0


def all_routes(settings=None):
    """Method and path of everything that the application answers."""
    settings = settings or ServeSettings(models={"toy": {"backend": "constant"}})
    app = build_app(ServedModels({"toy": ModelLoader(lambda: None)}), settings)
    found, waiting = [], list(app.routes)
    while waiting:
        route = waiting.pop()
        included = getattr(route, "original_router", None)
        if included is not None:
            waiting += included.routes
        else:
            found += [(method, route.path) for method in route.methods]
    assert {path for _, path in found} >= set(app.openapi()["paths"]) | {"/openapi.json", "/docs"}
    return sorted(found)


@pytest.fixture(scope="module")
def stranger(guarded):
    """A client without a token."""
    with httpx.Client(base_url=guarded.url) as client:
        yield client


@pytest.mark.hostile("http")
@pytest.mark.parametrize(("method", "path"), all_routes())
def test_every_route_but_health_needs_the_token(stranger, method, path):
    for token in (None, "Bearer", "Bearer wrong-secret", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ü"):
        headers = {} if token is None else {"Authorization": token.encode()}
        answer = stranger.request(method, path, headers=headers)
        if path == "/health":
            assert answer.status_code == 200
        else:
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert method == "HEAD" or answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.hostile("http")
@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (None, "missing"), ("Bearer", "missing"), (TOKEN, "missing"), ("Basic !", "missing"),
        (f"Digest {TOKEN}", "missing"), ("Bearer wrong-secret", "wrong"), (f"Bearer {TOKEN[:-1]}", "wrong"),
        (f"bearer {TOKEN}x", "wrong"),
    ],
)  # fmt: skip
def test_a_missing_token_is_told_from_a_wrong_one(stranger, sent, words):
    answer = stranger.get("/ready", headers={} if sent is None else {"Authorization": sent})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unauthorized"
    assert f"the token is {words}" in answer.json()["error"]["message"]
    assert TOKEN not in answer.text


@pytest.mark.hostile("http")
def test_what_is_no_route_needs_the_token_too(stranger):
    for path in ("/nothing", "/health/", "//health", "/v1/rewards/x", "/health/../metrics", "/health%2f..%2fmetrics"):
        assert stranger.get(path).status_code == 401
    assert stranger.post("/health", json={}).status_code == 401


def test_with_the_token(guarded):
    assert guarded.post("/v1/rewards", ITEM).status_code == 200
    assert guarded.get("/ready").json() == {"ready": True, "models": {"toy": "ready"}}
    assert guarded.get("/openapi.json").status_code == 200
    for metric in ("guerdon_items_total", "guerdon_queue_items", "guerdon_batch_seconds_count"):
        assert metric in guarded.get("/metrics").text


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/metrics", "/v1/models", "/v1/rewards", "/openapi.json", "/docs"]
)
def test_head_is_get_without_a_body(guarded, path):
    full, head = guarded.get(path), guarded.client.head(guarded.url + path)
    assert (full.status_code, head.status_code) == (200, 200)
    assert head.content == b""
    if path not in ("/metrics", "/ready"):
        assert head.headers["content-length"] == str(len(full.content))


def test_head_of_what_only_takes_posts_or_is_not_there(guarded):
    assert guarded.client.head(f"{guarded.url}/classify").status_code == 405
    assert guarded.client.head(f"{guarded.url}/nothing").status_code == 404
    assert guarded.get("/health").status_code == 200  # the connection is still in order


@pytest.mark.hostile("http")
@pytest.mark.parametrize("path", ["/ready", "/v1/rewards", "/score", "/nothing"])
@pytest.mark.parametrize("second", [f"Bearer {TOKEN}", "Bearer other", ""])
def test_several_authorization_headers_are_refused(guarded, stranger, path, second):
    headers = [("Authorization", f"Bearer {TOKEN}"), ("authorization", second)]
    for method in ("GET", "POST"):
        for given in (headers, headers[::-1]):
            answer = stranger.request(method, guarded.url + path, headers=given)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
            assert "Authorization" in answer.json()["error"]["message"]
            assert TOKEN not in answer.text


@pytest.mark.hostile("http")
def test_without_a_token_they_are_refused_too(server):
    running = server()
    assert running.get("/ready", headers=[("Authorization", "Bearer a")]).status_code == 200
    assert running.get("/ready", headers=[("Authorization", "Bearer a")] * 2).status_code == 400
    assert running.get("/health", headers=[("Authorization", "Bearer a")] * 2).status_code == 200


def answer_of(connection):
    """The status, head and body of the answer on a raw connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        assert part, f"closed after {data!r}"
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
    while len(body) < int(fields.get("content-length", 0)):
        body += connection.recv(65536)
    return int(head.split()[1]), fields, body


def connect(running):
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


HEAD = (
    "POST /v1/rewards HTTP/1.1\r\nHost: localhost\r\n"
    f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
)


@pytest.mark.hostile("http")
def test_a_body_that_claims_too_much_is_refused_before_it_comes(guarded):
    with connect(guarded) as connection:
        connection.sendall(f"{HEAD}Content-Length: 100001\r\n\r\n".encode())
        status, fields, body = answer_of(connection)
        assert status == 413
        assert fields["connection"] == "close"
        assert json.loads(body)["error"]["code"] == "too_large"


@pytest.mark.hostile("http")
def test_a_body_that_grows_too_large_is_refused(guarded):
    with connect(guarded) as connection:
        connection.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        for _ in range(7):
            connection.sendall(chunk)
        status, _, body = answer_of(connection)
        assert status == 413
        assert json.loads(body)["error"]["code"] == "too_large"


@pytest.mark.hostile("http")
@pytest.mark.parametrize("route", ["/v1/rewards", "/classify", "/v1/reload", "/nothing"])
def test_who_sends_all_before_reading_gets_to_read_the_refusal(guarded, route):
    host, port = guarded.url.removeprefix("http://").split(":")
    parts = (b"x" * 100_000 for _ in range(300))  # more than the buffers between here and there take
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("POST", route, body=parts, headers=guarded.headers, encode_chunked=True)
        answer = connection.getresponse()
        assert answer.status == (404 if route == "/nothing" else 413)
        assert json.loads(answer.read())["error"]["code"] == ("not_found" if route == "/nothing" else "too_large")
        assert guarded.post("/v1/rewards", ITEM).status_code == 200
    finally:
        connection.close()


def resident(process):
    """Resident memory of a process in bytes."""
    with open(f"/proc/{process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.hostile("http")
def test_a_hundred_megabytes_are_refused_and_not_kept(guarded):
    before = resident(guarded.process)
    answer = guarded.post("/v1/rewards", content=b"x" * 100_000_000)
    assert answer.status_code == 413
    assert resident(guarded.process) - before < 64 << 20
    assert guarded.post("/v1/rewards", ITEM).status_code == 200


@pytest.mark.hostile("http")
@pytest.mark.parametrize("claimed", ["-1", "1e9", "9" * 30, "abc"])
def test_a_strange_length_is_refused(guarded, claimed):
    with connect(guarded) as connection:
        connection.sendall(f"{HEAD}Content-Length: {claimed}\r\n\r\n".encode())
        assert answer_of(connection)[0] in (400, 413)


@pytest.mark.hostile("http")
def test_a_slow_body_is_given_up(guarded):
    with connect(guarded) as connection:
        connection.sendall(f"{HEAD}Content-Length: 1000\r\n\r\n{{".encode())
        status, fields, _ = answer_of(connection)
        assert status == 408
        assert fields["connection"] == "close"


@pytest.mark.hostile("http")
@pytest.mark.parametrize(
    "said", [b"", b"POST /v1/rewards HT", b"POST /v1/rewards HTTP/1.1\r\nHost: localhost\r\nX-Slow: "]
)
def test_a_connection_that_says_nothing_is_closed(guarded, said):
    with connect(guarded) as connection:
        connection.sendall(said)
        assert connection.recv(100) == b""


def test_a_connection_that_goes_on_is_not_closed(guarded):
    with connect(guarded) as connection:
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer_of(connection)[0] == 200
            time.sleep(0.3)  # in all longer than a head may take


@pytest.mark.hostile("http")
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"NaN", b'{"items": 3}', b'{"items": []}', b"\xff\xfe", b"[" * 50_000,
        b'{"items": [{"prompt": "q", "steps": ["a"]}], "deadline_s": NaN}',
        b'{"items": [{"prompt": "q", "steps": ["a"]}], "deadline_s": 1e999}',
        b'{"items": [{"prompt": "q", "steps": ["a"]}], "surprise": 1}',
        json.dumps({"items": [{"prompt": "q", "steps": ["a"]}] * 9}).encode(),
        json.dumps({"items": [{"prompt": "q", "steps": ["a"] * 5}]}).encode(),
        json.dumps({"items": [{"prompt": "q" * 1001, "steps": ["a"]}]}).encode(),
        json.dumps({"items": [{"prompt": "q", "steps": ["a"], "label": "q" * 1001}]}).encode(),
    ],
)  # fmt: skip
def test_what_is_no_request_is_a_422_in_the_shape_of_openai(guarded, body):
    answer = guarded.post("/v1/rewards", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 1500


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/v1/rewards", {**ITEM, "agregation": "min"}, "agregation",
         "unknown key 'agregation'; did you mean 'aggregation'?"),
        ("/v1/rewards", {"items": [{"prompt": "q", "step": ["a"]}]}, "items[0].step", "did you mean 'steps'?"),
        ("/v1/rewards", {**ITEM, "options": {"nframe": 2}}, "options.nframe", "did you mean 'nframes'?"),
        ("/v1/rewards", {**ITEM, "options": {"zzz": 2}}, "options.zzz", "known keys here: nframes, max_pixels, "),
        ("/v1/update", {**ITEM, "clientid": "1"}, "clientid", "did you mean 'client_id'?"),
        ("/v1/update", {**ITEM, "request_id": "1"}, "request_id", "client_id, number"),
        ("/v1/update", {**ITEM, "number": 1}, "body", "client_id and number belong together"),
        ("/v1/reload", {"Model": "toy"}, "Model", "did you mean 'model'?"),
        ("/score", {"task": "t"}, "task_text", "Field required; task: unknown key 'task'"),
        ("/score", {"task_text": "t", "backend_kwargs": {"score_mod": "unit"}}, "backend_kwargs.score_mod",
         "did you mean 'score_mode'?"),
    ],
)  # fmt: skip
def test_unknown_keys_get_a_suggestion(guarded, path, body, param, message):
    answer = guarded.post(path, body)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_request")
    assert message in error["message"]


@pytest.mark.hostile("http")
def test_unknown_models_and_routes(guarded):
    for path, body in (("/v1/rewards", ITEM), ("/v1/update", ITEM), ("/v1/reload", {})):
        answer = guarded.post(path, {**body, "model": "nobody"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
    assert guarded.get("/nothing").status_code == 404
    assert guarded.get("/v1/update").json()["error"]["code"] == "method_not_allowed"


@pytest.mark.hostile("http")
def test_pages_of_other_sites_are_refused_where_there_is_no_token(toy_server):
    for origin, status in (
        ("http://evil.example", 403), ("null", 403), ("http://127.0.0.1.evil.example", 403), ("http://[", 403),
        ("http://localhost:3000", 200), ("http://127.0.0.1", 200),
    ):  # fmt: skip
        assert toy_server.post("/v1/rewards", ITEM, headers={"Origin": origin}).status_code == status


@pytest.mark.hostile("http")
def test_without_a_token_a_request_names_this_machine(toy_server):
    """A page whose own name resolves to 127.0.0.1 gets nothing, whatever it asks for."""
    port = toy_server.url.rpartition(":")[2]
    own = socket.gethostname()
    for host, status in (
        ("evil.example", 403), (f"evil.example:{port}", 403), ("localhost.evil.example", 403),
        ("127.0.0.1.nip.io", 403), ("[", 403), ("", 403), ("localhost", 200), ("LOCALHOST.", 200),
        (f"127.0.0.1:{port}", 200), ("[::1]:80", 200),
        ("10.0.0.7", 200), (own, 200), (own.upper(), 200),
    ):  # fmt: skip
        for path in ("/v1/rewards", "/metrics", "/ready"):
            assert toy_server.get(path, headers={"Host": host}).status_code == status, (host, path)
        assert toy_server.get("/health", headers={"Host": host}).status_code == 200


def test_with_a_token_any_host_is_served(guarded):
    assert guarded.get("/ready", headers={"Host": "rewards.example"}).status_code == 200


@pytest.mark.hostile("http")
def test_too_many_requests_at_a_time(server, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    running = server(
        models={"toy": {"custom_backend": "toys:make", "options": {"gate": str(gate)}}}, limits={"concurrency": 2}
    )
    connections = [connect(running) for _ in range(2)]
    body = json.dumps(ITEM)
    for connection in connections:
        connection.sendall(
            f"POST /v1/rewards HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
    until = time.monotonic() + 30
    while running.get("/metrics").text.find("guerdon_requests_in_flight 3.0") < 0:
        assert time.monotonic() < until
        time.sleep(0.01)
    refused = running.post("/v1/rewards", ITEM)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert running.get("/health").status_code == 200
    gate.unlink()
    for connection in connections:
        assert answer_of(connection)[0] == 200
        connection.close()
    assert running.stop() == 0


@pytest.mark.hostile("http")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_a_public_address_needs_a_token(host):
    flags = {"backend": "constant", "host": host}
    with refuses("host"):
        serve_settings(None, [], flags)
    assert serve_settings(None, [], {**flags, "token": TOKEN}).token == TOKEN
    assert serve_settings(None, [], {**flags, "insecure": True}).insecure
    with refuses("insecure"):
        serve_settings(None, [], {**flags, "token": TOKEN, "insecure": True})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_this_machine_alone_needs_none(host):
    assert serve_settings(None, [], {"backend": "constant", "host": host}).token is None
    with refuses("insecure"):
        serve_settings(None, [], {"backend": "constant", "host": host, "insecure": True})


@pytest.mark.hostile("secrets")
def test_the_token_is_never_shown():
    settings = serve_settings(None, [], {"backend": "constant", "token": TOKEN})
    assert TOKEN not in repr(settings)
    with refuses("token"):
        serve_settings(None, [], {"backend": "constant", "token": "short"})


@pytest.mark.hostile("http")
@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP", "identity, gzip", "deflate", "zstd"])
def test_a_compressed_body_is_refused_by_its_encoding(guarded, encoding):
    body = json.dumps({"items": [{"prompt": "3+5=?", "completion": "8"}]}).encode()
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", "content-encoding": encoding}
    for path in ("/v1/rewards", "/get_reward"):
        reply = guarded.client.post(guarded.url + path, content=gzip.compress(body), headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (415, "unsupported_media_type")
        assert encoding.lower() in reply.json()["error"]["message"]
    assert guarded.get("/health").status_code == 200


def test_a_body_with_the_encoding_identity_is_read(guarded):
    reply = guarded.client.post(
        f"{guarded.url}/v1/rewards",
        content=b'{"nonsense": 1}',
        headers={
            "authorization": f"Bearer {TOKEN}",
            "content-type": "application/json",
            "content-encoding": "identity",
        },
    )
    assert reply.status_code == 422
