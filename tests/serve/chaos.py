"""A reward server made of faults: real sockets, and every request meets the next fault of a schedule.

It speaks `/v1/rewards` and `/score`; a text is worth what `worth` says, so that a test knows every true value. A fault
is a name of `FAULTS`; after the schedule all is well, or `always` happens.

    with chaos_server(["reset", "overloaded"]) as server:
        RewardClient(server.url).rewards(["q"], ["abc"])
"""

from __future__ import annotations

import base64
import io
import json
import socket
import struct
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from zlib import crc32

import numpy as np

from local_server import running

ITEM_FAULTS = {
    "nan": lambda item: {**item, "score": float("nan")},
    "infinite": lambda item: {**item, "score": float("-inf")},
    "huge": lambda item: {**item, "score": 10**400},
    "string": lambda item: {**item, "score": "0.5"},
    "true": lambda item: {**item, "score": True},
    "null": lambda item: {**item, "score": None, "step_scores": None},
    "missing": lambda item: {k: v for k, v in item.items() if k not in ("score", "step_scores")},
    "out_of_range": lambda item: {**item, "score": 1.5},
    "negative": lambda item: {**item, "score": -0.01},
    "wrong_id": lambda item: {**item, "id": f"x{item['id']}"},
    "no_id": lambda item: {k: v for k, v in item.items() if k != "id"},
    "list_item": lambda item: [item],
    "nan_step": lambda item: {**item, "step_scores": [float("nan")] * len(item["step_scores"])},
    "one_step_less": lambda item: {**item, "step_scores": item["step_scores"][1:]},
    "one_step_more": lambda item: {**item, "step_scores": [*item["step_scores"], 0.5]},
    "string_step": lambda item: {**item, "step_scores": ["0.5"] * len(item["step_scores"])},
    "steps_no_list": lambda item: {**item, "step_scores": {"0": 0.5}},
    "failure": lambda item: {**item, "score": None, "failure": {"reason": "mute", "detail": "nothing to say"}},
    "odd_failure": lambda item: {**item, "failure": "what a Mess!"},
}
LIST_FAULTS = {
    "one_less": lambda items: items[1:],
    "one_more": lambda items: [*items, items[-1]],
    "swapped": lambda items: items[::-1],
    "twice": lambda items: [items[0]] * len(items),
    "no_list": lambda items: {"items": items},
    "null_list": lambda items: None,
    "empty": lambda items: [],
}
STATUS_FAULTS = {
    "error_500": (500, {}), "error_502": (502, {}), "not_ready": (503, {"Retry-After": "1"}), "late": (504, {}),
    "overloaded": (429, {"Retry-After": "2"}), "overloaded_plain": (429, {}), "slow_upload": (408, {}),
    "overloaded_nonsense": (429, {"Retry-After": "soon"}), "overloaded_long": (429, {"Retry-After": "100000"}),
    "overloaded_date": (429, {"Retry-After": "Thu, 01 Jan 1970 00:00:07 GMT"}),
}  # fmt: skip
REFUSALS = {"bad_request": 400, "unauthorized": 401, "gone": 404, "too_large": 413, "unprocessable": 422}
BODY_FAULTS = ("half_json", "html", "no_json", "deep", "array", "nothing")
SOCKET_FAULTS = ("reset", "close", "cut", "hang", "slow", "bad_status", "redirect", "reset_before")
RECOVERABLE = {*STATUS_FAULTS, "reset", "close", "cut", "hang", "bad_status", "reset_before"}
LASTING = {*ITEM_FAULTS, *LIST_FAULTS, *REFUSALS, *BODY_FAULTS, "redirect"}
FAULTS = sorted({*RECOVERABLE, *LASTING, "slow", "latency", "ok"})


def worth(text: str) -> float:
    """The true value of a text, exact in float32."""
    return crc32(text.encode()) % 1024 / 1024


class FakeClock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.time, self.slept = 1000.0, []

    def clock(self):
        from guerdon.network.retry import Clock

        return Clock(now=lambda: self.time, wall=lambda: 0.0, sleep_async=self._sleep)

    async def _sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds


class ChaosServer(ThreadingHTTPServer):
    """See the module.

    Attributes:
        requests: bodies of the scoring requests, in order of arrival.
        headers: theirs.
        met: the faults that they met.
        muted: values that were kept back.

    Args:
        script: faults, one per scoring request.
        always: what happens after them.
        mute: of an item's values: whether to answer with a failure.
        granularity: a value per step, or one per item.
        modality: what it says it looks at.
        port: where it listens; 0: any free one.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, script=(), always="ok", mute=None, granularity="step", modality="text", port=0):
        super().__init__(("127.0.0.1", port), _Handler)
        self.script, self.always, self.mute = list(script), always, mute
        self.info = {
            "name": "chaos", "range": [0.0, 1.0], "granularity": granularity, "modality": modality, "causal": True,
            "frames_needed": int(modality == "image"), "success_threshold": None, "progress_horizon": None,
        }  # fmt: skip
        self.requests, self.headers, self.met = [], [], []
        self.muted = 0
        self.lock, self.over = threading.Lock(), threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def next_fault(self):
        with self.lock:
            fault = self.script.pop(0) if self.script else self.always
            self.met.append(fault)
            return fault

    def handle_error(self, request, client_address):
        """A client that disconnected is not reported."""


class _Handler(BaseHTTPRequestHandler):
    def date_time_string(self, timestamp=None):
        return "Thu, 01 Jan 1970 00:00:00 GMT"  # as the fake clocks of the clients

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.startswith("/v1/rewards"):
            return self._send(
                200, {"object": "reward_model", "model": "chaos", "learns": False, "info": self.server.info}
            )
        return self._send(200, {"status": "ok", "default_backend": "chaos", "loaded_backends": ["chaos"]})

    def do_POST(self):
        server = self.server
        fault = server.next_fault()
        if fault == "reset_before":
            return self._reset()
        data = self.rfile.read(int(self.headers["Content-Length"]))
        native = self.path != "/score"
        body = json.loads(data) if native else data
        with server.lock:
            server.requests.append(body)
            server.headers.append(dict(self.headers))
        payload = self._answer(body, fault) if native else self._score(fault)
        if fault == "hang":
            server.over.wait(60)
            return self._reset()
        if fault in ("reset", "close"):
            return self._reset() if fault == "reset" else self.connection.shutdown(socket.SHUT_RDWR)
        if fault == "latency":
            server.over.wait(0.02)
        if fault == "bad_status":
            self.wfile.write(b"HTTP/1.1 nonsense\r\n\r\n")
            return self.connection.shutdown(socket.SHUT_RDWR)
        if fault == "redirect":
            return self._send(302, {}, {"Location": server.url + "/v1/rewards"})
        if fault in STATUS_FAULTS:
            status, headers = STATUS_FAULTS[fault]
            return self._send(status, {"error": {"message": "as told", "param": None}}, headers)
        if fault in REFUSALS:
            return self._send(REFUSALS[fault], {"error": {"message": "as told", "param": None}})
        return self._send(200, payload, cut=fault == "cut", slow=fault == "slow", raw=_raw(fault, payload))

    def _answer(self, body, fault):
        items = [self._item(item) for item in body["items"]]
        if fault in ITEM_FAULTS:
            items[0] = ITEM_FAULTS[fault](items[0])
        if fault in LIST_FAULTS:
            items = LIST_FAULTS[fault](items)
        return {"object": "list", "model": "chaos", "aggregation": None, "results": items, "failed": 0}

    def _item(self, item):
        if "steps" in item:
            values = [worth(step) for step in item["steps"]]
        else:
            frames = np.load(io.BytesIO(base64.b64decode(item["npy_base64"])))
            values = [worth(str(frame[0, 0].tolist())) for frame in frames]
        steps = values if self.server.info["granularity"] == "step" else None
        if self.server.mute is not None and self.server.mute(values):
            with self.server.lock:
                self.server.muted += len(values) if steps else 1
            return {"id": item["id"], "score": None, "failure": {"reason": "mute", "detail": "nothing to say"}}
        return {
            "id": item["id"], "score": values[-1], "step_scores": steps, "step_offsets": None, "n_tokens": 1,
            "truncated": False, "failure": None, "text": "",
        }  # fmt: skip

    def _score(self, fault):
        item = {"score": 0.25, "model_output": "25", "backend": "chaos"}
        known = {"nan", "infinite", "huge", "string", "true", "missing", "out_of_range", "negative", "list_item"}
        return ITEM_FAULTS[fault](item) if fault in known else item

    def _send(self, status, payload, headers=(), *, cut=False, slow=False, raw=None):
        data = json.dumps(payload).encode() if raw is None else raw
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if slow:
            for byte in data[:-1]:
                self.wfile.write(bytes([byte]))
                if self.server.over.wait(0.03):
                    return None
            return None
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True
        return None

    def _reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def _raw(fault, payload):
    """The bytes of a bad reply; None where it is good."""
    if fault not in BODY_FAULTS:
        return None
    whole = json.dumps(payload).encode()
    return {
        "half_json": whole[: len(whole) // 2], "html": b"<html>502</html>", "no_json": b"\xff\xfe\x00",
        "deep": b"[" * 200_000, "array": b"[1, 2]", "nothing": b"",
    }[fault]  # fmt: skip


@contextmanager
def chaos_server(script=(), **options):
    """A running server."""
    with running(ChaosServer(script, **options)) as server:
        try:
            yield server
        finally:
            server.over.set()
