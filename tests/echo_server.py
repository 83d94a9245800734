"""An endpoint that repeats every secret of a request: in errors, headers, replies, in each form that servers use."""

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

from local_server import running

KEY = "sk-live-7Qx9/Planted+Key=0123456789"
USER, PASSWORD = "gateway-user7", "p@ss/w0rd-Zq81"
IN_QUERY, IN_BODY = "qk_5551234abcd", "eb-99x-secret-77"
SECRETS = (KEY, PASSWORD, IN_QUERY, IN_BODY)


def forms(secret):
    """A secret as a server or a library may write it."""
    for text in (secret, quote(secret, safe=""), quote(secret), quote(secret, safe="").lower()):
        yield text
        yield json.dumps(text)[1:-1]
        yield text.replace("/", "\\/")
    for start in ("", "k", "ke"):
        yield base64.b64encode(f"{start}{secret}ab".encode()).decode()
    if len(secret) >= 20:
        yield secret[: len(secret) * 2 // 3]


def leaks(text):
    """The planted secrets that a text gives away, each in the form that it has there."""
    given = [
        (form, form if secret[:4] in form or "%" in form else form[4:-5])
        for secret in SECRETS
        for form in forms(secret)
    ]
    return [form for form, part in given if part in text]


def address(server, path="/v1"):
    """The address of a server with user information and a key in the query."""
    return f"http://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{server.server_port}{path}?key={IN_QUERY}"


class EchoServer(ThreadingHTTPServer):
    """Answers the n-th request with the n-th of `kinds`, then begins again: a status, or what is wrong with a 200."""

    daemon_threads = True

    def __init__(self, reply, kinds):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply, self.kinds, self.asked = reply, kinds, 0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address):
        """Ignore clients that closed the connection."""


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        server = self.server
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        sent = json.loads(raw) if raw else {}
        with server.lock:
            kind = server.kinds[server.asked % len(server.kinds)]
            server.asked += 1
        kept = {k: v for k, v in self.headers.items() if k.lower() not in ("content-length", "host", "accept")}
        more = {k: v for k, v in sent.items() if k not in ("messages", "schema", "items")}
        said = f"wrong key {KEY} or {self.path} or {json.dumps(kept)} or {json.dumps(more)} {' '.join(forms(PASSWORD))}"
        headers = {"X-Echo": re.sub(r"[^ -~]", "?", said), "Content-Type": "application/json"}
        if kind == "drop":
            return self.connection.close()
        if kind == 302:
            headers["Location"] = f"http://127.0.0.1:1/{quote(KEY)}"
        if isinstance(kind, int):
            data = json.dumps({"error": {"message": said, "code": said, "metadata": {"raw": json.dumps(said)}}})
        elif kind == "page":
            kind, data = 500, f"<html>{said}</html>"
        elif kind == "no json":
            kind, data = 200, f"{said} {{"
        else:
            choice = {"index": 0, "finish_reason": "stop", "message": server.reply(kind, sent, said)}
            usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
            kind, data = 200, json.dumps({"choices": [choice], "usage": usage, "model": KEY, "note": said})
        self.send_response(kind)
        for name, value in {**headers, "Content-Length": str(len(data.encode()))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data.encode())


def echoing(reply, kinds):
    """A running server."""
    return running(EchoServer(reply, kinds))
