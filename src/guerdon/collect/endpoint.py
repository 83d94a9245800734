"""The model behind an OpenAI-compatible address on loopback, for programs that lead conversations.

Each conversation has an address and a key of its own. A request waits until its round is answered; what is asked for
wrongly is refused at once, as OpenAI's errors.

    endpoint = Endpoint(temperature=1.0)
    url, key = endpoint.open(0)                # for OPENAI_BASE_URL and OPENAI_API_KEY
    with endpoint.changed:
        waiting = endpoint.waiting(0)
    endpoint.answer(waiting[0], reply)
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from guerdon.collect.agents import Request
from guerdon.errors import DataError
from guerdon.policies.batches.dialogues import Reply
from guerdon.processes.progress import log_once
from guerdon.reading.chats import chat_messages, tool_schemas

MODEL = "policy"
_MOST_BYTES = 64 << 20  # of a request
_QUEUE = 1024  # connections that wait to be accepted: all conversations may connect at once


class RequestRefusedError(Exception):
    """A request that is answered with an error.

    Args:
        message: for the program.
        code: of OpenAI's errors.
        status: of HTTP.
    """

    def __init__(self, message: str, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
        self.status = status


@dataclass(eq=False)
class Waiting:
    """A request that waits for its round.

    Attributes:
        request: of the program.
        known_as: hash of its body, by which a repeated request is recognised.
        answered: set once there is a reply, or none.
        reply: of the model; None: there is no room or no turn for it.
    """

    request: Request
    known_as: str
    answered: threading.Event = field(default_factory=threading.Event)
    reply: Reply | None = None


@dataclass(eq=False)
class _Line:
    """One conversation at the endpoint."""

    key: str
    waiting: list[Waiting] = field(default_factory=list)
    earlier: dict[str, Waiting] = field(default_factory=dict)


class Endpoint:
    """A server on a free port of this machine, in threads of this process.

    Args:
        temperature: of the run, which requests cannot change.

    Attributes:
        changed: notified when a request begins to wait; hold it to look at requests.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.changed = threading.Condition()
        self._lines: dict[str, _Line] = {}
        self._names: dict[int, str] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.endpoint = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="guerdon.endpoint", daemon=True
        )
        self._thread.start()

    def open(self, number: int) -> tuple[str, str]:
        """Address and key of a new conversation."""
        name, key = secrets.token_urlsafe(12), f"sk-{secrets.token_urlsafe(24)}"
        with self.changed:
            self._names[number], self._lines[name] = name, _Line(key)
        return f"http://127.0.0.1:{self._server.server_address[1]}/{name}/v1", key

    def shut(self, number: int) -> None:
        """End a conversation; requests that wait get an error."""
        with self.changed:
            line = self._lines.pop(self._names.pop(number), None)
        for one in line.waiting if line is not None else ():
            one.answered.set()

    def waiting(self, number: int) -> list[Waiting]:
        """The requests of a conversation that wait, by what they say; call it while `changed` is held."""
        return sorted(self._lines[self._names[number]].waiting, key=lambda one: one.known_as)

    def answer(self, number: int, one: Waiting, reply: Reply | None) -> None:
        """Give a request its reply; None: there is no room or no turn for it."""
        with self.changed:
            line = self._lines[self._names[number]]
            line.waiting.remove(one)
            line.earlier = {one.known_as: one}
            one.reply = reply
        one.answered.set()

    def close(self) -> None:
        """End the server."""
        for number in list(self._names):
            self.shut(number)
        self._server.shutdown()
        self._server.server_close()

    def take(self, name: str, key: str, body: bytes, *, again: bool) -> Waiting:
        """A request, waiting; where it is a repeated one, that which is being answered or was answered last.

        Raises:
            RequestRefusedError: there is no such conversation, or the request cannot be answered.
        """
        known_as = hashlib.sha256(body).hexdigest()
        with self.changed:
            line = self._line(name, key)
            repeated = [*line.waiting, *line.earlier.values()] if again else []
            for one in repeated:
                if one.known_as == known_as:
                    return one
        request = self._read(body)
        with self.changed:
            found = Waiting(request, known_as)
            self._line(name, key).waiting.append(found)
            self.changed.notify_all()
        return found

    def _line(self, name: str, key: str) -> _Line:
        line = self._lines.get(name)
        if line is None:
            raise RequestRefusedError("there is no such conversation, or it has ended", "not_found", 404)
        if not hmac.compare_digest(line.key.encode(), key.encode()):
            raise RequestRefusedError("the key is not that of this conversation", "invalid_api_key", 401)
        return line

    def check(self, name: str, key: str) -> None:
        """Refuse a wrong address or key.

        Raises:
            RequestRefusedError: it is wrong.
        """
        with self.changed:
            self._line(name, key)

    def _read(self, body: bytes) -> Request:
        try:
            given = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RequestRefusedError(f"the body is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise RequestRefusedError("the body is a JSON object with messages")
        if given.get("n") not in (None, 1):
            raise RequestRefusedError("n above 1 is not supported", "unsupported_parameter")
        form = given.get("response_format")
        if form is not None and (not isinstance(form, dict) or form.get("type") != "text"):
            raise RequestRefusedError("response_format other than text is not supported", "unsupported_parameter")
        try:
            messages = chat_messages(given.get("messages"))
            tools = tool_schemas(given.get("tools"))
        except DataError as error:
            raise RequestRefusedError(str(error)) from error
        if not isinstance(given.get("stream_options") or {}, dict):
            raise RequestRefusedError("stream_options is a JSON object")
        choice = given.get("tool_choice")
        if choice == "none":
            tools = ()
        elif choice not in (None, "auto"):
            log_once("an agent asks for tool_choice, which nothing enforces: the model may answer without a call")
        if given.get("temperature") not in (None, self.temperature):
            log_once(
                f"an agent asks for a temperature of its own; all replies are sampled with that of the run "
                f"({self.temperature:g})"
            )
        return Request(messages, tools, _most(given), _stops(given.get("stop")))


def _most(given: Mapping[str, Any]) -> int | None:
    """The fewest tokens that a request allows."""
    limits = [given[key] for key in ("max_tokens", "max_completion_tokens") if given.get(key) is not None]
    if not all(isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 for limit in limits):
        raise RequestRefusedError("max_tokens and max_completion_tokens are numbers above 0")
    return min(limits, default=None)


def _stops(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise RequestRefusedError("stop is a text or a list of texts")
    return tuple(stops)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _QUEUE
    endpoint: Endpoint

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that disconnected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Write no line per request."""

    def do_GET(self) -> None:
        """The list of models."""
        name, _, rest = self.path.lstrip("/").partition("/")
        try:
            self.server.endpoint.check(name, self._key())
            if rest.rstrip("/") not in ("v1/models", f"v1/models/{MODEL}"):
                raise RequestRefusedError(f"there is no {rest[:80]}", "not_found", 404)
        except RequestRefusedError as error:
            self._send(error.body, error.status)
            return
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "guerdon"}
        self._send(model if rest.endswith(MODEL) else {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        """A completion of a chat."""
        length = self.headers.get("Content-Length") or ""
        refused = None
        if not (length.isascii() and length.isdigit()) or self.headers.get("Transfer-Encoding"):
            refused = RequestRefusedError("the request needs a Content-Length, and no Transfer-Encoding", status=411)
        elif int(length[:20]) > _MOST_BYTES:
            refused = RequestRefusedError("the request is too large", status=413)
        if refused is not None:
            self.close_connection = True
            self._send(refused.body, refused.status)
            return
        body = self.rfile.read(int(length))
        name, _, rest = self.path.lstrip("/").partition("/")
        endpoint = self.server.endpoint
        try:
            if rest.rstrip("/") != "v1/chat/completions":
                raise RequestRefusedError(
                    f"there is no {rest[:80]}; there are chat/completions and models", "not_found", 404
                )
            again = (self.headers.get("x-stainless-retry-count") or "0") != "0"
            one = endpoint.take(name, self._key(), body, again=again)
            one.answered.wait()
            if one.reply is None:
                raise RequestRefusedError(
                    "there is no room in the context, or no turn left, for another reply", "context_length_exceeded"
                )
        except RequestRefusedError as error:
            self._send(error.body, error.status)
            return
        given = json.loads(body)
        if given.get("stream"):
            usage = bool((given.get("stream_options") or {}).get("include_usage"))
            self._stream(one, one.reply, usage=usage)
        else:
            self._send(_completion(one, one.reply))

    def _key(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()

    def _send(self, body: Mapping[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, one: Waiting, reply: Reply, *, usage: bool) -> None:
        """Server-sent events: the whole text is one of them."""
        whole = _completion(one, reply)
        base = {**{key: whole[key] for key in ("id", "created", "model")}, "object": "chat.completion.chunk"}
        choice = whole["choices"][0]
        delta = {key: value for key, value in choice["message"].items() if value is not None}
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": k, **call} for k, call in enumerate(delta["tool_calls"])]
        chunks = [
            {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        ]
        if usage:
            chunks.append({**base, "choices": [], "usage": whole["usage"]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")


def _completion(one: Waiting, reply: Reply) -> dict[str, Any]:
    """A reply in OpenAI's form; arguments of calls are JSON in a text."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in reply.message.get("tool_calls") or ()
    ]
    message: dict[str, Any] = {"role": "assistant", "content": reply.message["content"] or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    reason = "tool_calls" if calls else "stop"
    read, wrote = reply.tokens
    return {
        "id": f"chatcmpl-{one.known_as[:24]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason if reply.finished else "length"}],
        "usage": {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote},
    }
