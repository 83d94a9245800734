"""A real HTTP server that speaks Anthropic's and OpenAI's protocols, with scripted failures."""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager

from local_server import LocalServer, QuietHandler, running

HANG, DROP, CUT = "hang", "drop", "cut"  # no reply; the connection ends; the reply ends half way


def judgements(scores, *, numbers=None):
    """A judge's reply."""
    numbers = numbers or range(1, len(scores) + 1)
    steps = [{"step_number": n, "reasoning": "because", "score": s} for n, s in zip(numbers, scores, strict=True)]
    return json.dumps({"steps": steps, "overall_correctness": all(s == 1 for s in scores)})


def steps_asked(text):
    """The steps in a request to judge."""
    return re.findall(r'<step-[0-9a-f]{8} number="\d+">\n(.*?)\n</step-', text, re.S)


def all_right(text):
    """A judge that likes everything."""
    return judgements([1] * len(steps_asked(text)))


class FakeClock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.time, self.slept = 100.0, []
        self._lock = threading.Lock()

    def now(self):
        with self._lock:
            return self.time

    def sleep(self, seconds):
        with self._lock:
            self.slept.append(seconds)
            self.time += seconds


class JudgeServer(LocalServer):
    """Answers with `reply(user text)`, after the failures of `script`, one per request in order of arrival.

    A failure is a status with headers, HANG, DROP, CUT, or a dict of what differs in the payload of a good reply.
    """

    def __init__(self, reply=all_right, script=()):
        super().__init__(_Handler)
        self.reply, self.script = reply, list(script)
        self.requests, self.headers, self.paths = [], [], []
        self.over = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(QuietHandler):
    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.requests.append(body)
            server.headers.append(dict(self.headers))
            server.paths.append(self.path)
            told = server.script.pop(0) if server.script else {}
        if told == HANG:
            server.over.wait(60)
            return
        if told == DROP:
            self.connection.close()
            return
        if isinstance(told, tuple):
            return self._send(told[0], told[1], told[2] if len(told) > 2 else {"error": {"message": "as told"}})
        user = next(m["content"] for m in body["messages"] if m["role"] == "user")
        text = told.get("text", None) if isinstance(told, dict) else None
        text = server.reply(user) if text is None else text
        payload = anthropic(text) if self.path == "/v1/messages" else openai(text)
        if told != CUT:
            payload |= {k: v for k, v in told.items() if k != "text"}
        self._send(200, {}, payload, cut=told == CUT)

    def _send(self, status, headers, payload, *, cut=False):
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)


def anthropic(text):
    return {
        "type": "message", "role": "assistant", "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn", "usage": {"input_tokens": 100, "output_tokens": 20},
    }  # fmt: skip


def openai(text):
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }


@contextmanager
def judge_server(reply=all_right, script=()):
    """A running server."""
    with running(JudgeServer(reply, script)) as server:
        try:
            yield server
        finally:
            server.over.set()
