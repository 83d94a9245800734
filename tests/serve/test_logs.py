"""What repeats in the log of a server is a count."""

import logging
import re
import socket

import pytest

from guerdon.serve.logs import FEW, WINDOW_S, CountingHandler
from tables import first


class Log:
    """A logger behind the handler, and a clock."""

    def __init__(self):
        self.now = 100.0
        self.handler = CountingHandler(lambda: self.now)
        self.logger = logging.Logger("test")
        self.logger.addHandler(self.handler)


def said(line):
    """The message of a line of the log."""
    found = re.fullmatch(r"\S+ \S+ \w+ [A-Z]+ (.*)", line)
    assert found, line
    return found[1]


def test_the_first_few_of_a_minute_are_written_and_the_others_counted(capsys):
    log = Log()
    for n in range(1000):
        log.logger.warning("item %d", n)
    log.logger.warning("another place")
    lines = capsys.readouterr().err.splitlines()
    assert [said(line) for line in lines] == [*(f"item {n}" for n in range(FEW)), "another place"]
    log.now += WINDOW_S
    for n in range(2):
        log.logger.warning("item %d", n)  # another line of code
    log.handler.close()
    assert [said(line) for line in capsys.readouterr().err.splitlines()] == [
        "item 0", "item 1", f"{1000 - FEW} more like this: item 999",
    ]  # fmt: skip


def test_each_minute_begins_with_the_count_of_the_last(capsys):
    log = Log()

    def once(n):
        log.logger.error("item %d", n)

    for n in range(FEW + 5):
        once(n)
    capsys.readouterr()
    log.now += WINDOW_S
    once(77)
    assert [said(line) for line in capsys.readouterr().err.splitlines()] == [
        f"5 more like this: item {FEW + 4}", "item 77",
    ]  # fmt: skip
    log.handler.close()
    assert capsys.readouterr().err == ""


def test_kinds_of_exceptions_are_told_apart(capsys):
    log = Log()
    for kind in [ValueError] * 20 + [KeyError]:
        try:
            raise kind("x")
        except Exception as error:
            log.logger.error("a model raised", exc_info=error)
    text = capsys.readouterr().err
    assert text.count("ValueError: x") == FEW
    assert text.count("KeyError: 'x'") == 1


@pytest.mark.hostile("parts")
@pytest.mark.parametrize("processes", first([None, 1], 1))
def test_a_model_that_raises_on_every_item_writes_a_few_lines(server, processes):
    running = server(models={"toy": {"custom_backend": "toys:make", "processes": processes}})
    body = {"items": [{"prompt": "q", "steps": [f"poison {n}"]} for n in range(60)]}
    found = running.post("/v1/rewards", body).json()
    assert found["failed"] == 60
    assert running.stop() == 0
    records = [line for line in running.lines if re.search("guerdon.serve (ERROR|WARNING) ", line)]
    assert 0 < len(records) <= 4 * FEW
    assert re.search(r"57 more like this: the model (toy )?raised on 1 items", running.log)


@pytest.mark.hostile("http")
def test_connections_that_send_nonsense_write_none(server):
    running = server()
    host, port = running.url.removeprefix("http://").split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert 'guerdon_requests_total{route="other",status="400"} 20.0' in running.get("/metrics").text
    before = len(running.lines)
    assert running.stop() == 0
    assert len(running.lines) == before
    assert "Invalid HTTP" not in running.log
