"""Heads of requests over raw sockets: too large, too many fields, too slow, one behind the other, broken."""

import contextlib
import json
import os
import socket

import pytest
from processes import start_server

pytestmark = pytest.mark.hostile("http")

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
MIB = 1 << 20
MOST = 4096


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    limits = {"max_header_bytes": MOST, "read_timeout_s": 0.5}
    running = start_server(tmp_path_factory.mktemp("limited"), token="a-long-secret", limits=limits)
    yield running
    assert "Traceback" not in running.log
    assert running.stop() == 0


def connect(running):
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def until_closed(connection):
    """All that the server says until it closes the connection."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def refusal(data):
    """Status and words of the one answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]["message"]


def resident(running):
    with open(f"/proc/{running.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("start", [b"GET /health?", HEAD + b"X-A: ", HEAD + b"X", b"X"])
def test_an_unfinished_head_is_refused_as_soon_as_it_is_too_large(limited, start):
    with connect(limited) as connection:
        connection.sendall(start + b"a" * (MOST - len(start)))
        assert refusal(until_closed(connection)) in [
            (431, f"the head of a request may have at most {MOST} bytes"),
            (400, "this is not an HTTP request"),  # of a method without end
        ]


def test_forty_megabytes_of_a_head_take_no_memory_and_nobody_else_waits(limited):
    before = resident(limited)
    with connect(limited) as connection:
        connection.sendall(HEAD + b"X-A: ")
        try:
            for _ in range(40):
                connection.sendall(b"a" * MIB)
                assert limited.get("/health").status_code == 200
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was closed after the refusal
    assert resident(limited) - before < 8 * MIB


def test_who_sends_a_large_head_whole_gets_to_read_why_it_is_refused(limited):
    with connect(limited) as connection:
        connection.sendall(HEAD + b"X-A: " + b"a" * 3 * MIB)
        assert refusal(until_closed(connection))[0] == 431


@pytest.mark.parametrize(("fields", "status"), [(126, 200), (127, 200), (128, 431), (500, 431)])
def test_a_head_has_at_most_128_fields(limited, fields, status):
    with connect(limited) as connection:
        connection.sendall(HEAD + b"A:b\r\n" * fields + b"Connection: close\r\n\r\n"[19 * (fields > 126) :])
        if status == 431:
            assert refusal(until_closed(connection)) == (431, "a request may have at most 128 header fields")
        else:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("rest", [b"\r\n", b"G", HEAD, b"POST /v1/rewards HTTP/1.1\r\nHost: localhost\r\nX-"])
def test_a_connection_that_owes_a_head_is_closed_also_after_an_answer(limited, rest):
    with connect(limited) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(rest)
        assert b"HTTP/1.1" not in until_closed(connection)


def test_a_body_that_nobody_reads_does_not_keep_a_connection(limited):
    with connect(limited) as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"x")
        assert b"HTTP/1.1" not in until_closed(connection)


@pytest.mark.parametrize("behind", [0, 3, 8])
def test_a_few_requests_behind_one_another_are_answered_in_turn(limited, behind):
    with connect(limited) as connection:
        connection.sendall((HEAD + b"\r\n") * behind + HEAD + b"Connection: close\r\n\r\n")
        assert until_closed(connection).count(b"HTTP/1.1 200") == behind + 1


def test_many_requests_behind_one_another_are_not_parsed(limited):
    before = resident(limited)
    with connect(limited) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall((HEAD + b"\r\n") * 100_000)
        data = until_closed(connection)
        assert data.count(b"HTTP/1.1") == data.count(b"HTTP/1.1 200") <= 64
    assert resident(limited) - before < 8 * MIB


@pytest.mark.parametrize("path", [b"/health", b"/v1/rewards", b"/nothing"])
def test_a_broken_body_is_refused(limited, path):
    with connect(limited) as connection:
        start = b"POST %b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-long-secret\r\n" % path
        connection.sendall(start + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
        assert refusal(until_closed(connection))[0] in (400, 404, 405)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"", 404),
        (b"X-A: b\r\n", 404),
        (b"X-A: " + b"a" * 3 * MIB + b"\r\n", 431),  # 20 MB stalled others for 3 s
        (b"X-A: b\r\n" * 1000, 431),
    ],
)
def test_fields_behind_a_body_are_limited_as_those_before_it(limited, fields, status):
    start = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-long-secret\r\nConnection: close\r\n"
    chunks = b"1\r\na\r\n" * MOST + b"%x\r\n" % (3 * MOST) + b"a" * 3 * MOST + b"\r\n"
    with connect(limited) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            start += b"Transfer-Encoding: chunked\r\n\r\n"
            connection.sendall(start + chunks + b"0\r\n" + fields + b"\r\n")
        assert int(until_closed(connection).split()[1]) == status


def test_a_client_that_goes_in_the_middle_leaves_no_trace(limited):
    start = b"POST /v1/rewards HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-long-secret\r\n"
    for sent in (b"", b"{", start, start + b"Content-Length: 10\r\n\r\n{"):
        with connect(limited) as connection:
            connection.sendall(sent)
    assert limited.get("/ready").status_code == 200
