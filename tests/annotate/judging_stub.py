"""The requests of the page of judgements, answered from memory: quick, of any content, and away when a test says so."""

import io
import json
import threading
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
from PIL import Image

from guerdon.annotate.app import page_files
from local_server import LocalServer, QuietHandler, running

WORDS = {
    "responses": ["right", "wrong", "cannot_tell"], "pairs": ["first", "second", "equal", "cannot_tell"],
    "steps": ["right", "wrong", "cannot_tell"], "episodes": ["success", "failure", "cannot_tell", "discard"],
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def stripes(row, size):
    """A frame of a height and width that says its row: eight stripes, black or white, the first of the lowest bit."""
    height, width = size
    shades = np.array([255 * (row >> bit & 1) for bit in range(8)], np.uint8)
    return np.broadcast_to(shades.repeat(width // 8)[None, :, None], (height, width, 3)).copy()


def jpeg(frame):
    with io.BytesIO() as file:
        Image.fromarray(frame).save(file, "JPEG")
        return file.getvalue()


def row_on_screen(tab, row):
    """Wait until the page says that this row is drawn."""
    tab.wait(f"document.getElementById('row').dataset.row === '{row}'")


def read_stripes(tab, camera=0):
    """The number that the picture of a camera on the page says."""
    script = f"""(canvas => [...Array(8).keys()].map((bit) =>
        canvas.getContext('2d').getImageData((bit + 0.5) * canvas.width / 8, canvas.height / 2, 1, 1).data[0] > 127))
        (document.querySelectorAll('canvas')[{camera}])"""
    return sum(1 << bit for bit, is_white in enumerate(tab.js(script)) if is_white)


class Stub(LocalServer):
    """A server with items 0, 1, ... of one kind.

    Args:
        kind: of the items.
        shows: what each of them shows.
        setup: further answers of /api/setup.
    """

    def __init__(self, kind, shows, **setup):
        super().__init__(Handler)
        self.files, self.kind, self.shows = page_files(), kind, shows
        self.setup = {
            "id": "stub", "data": "rows.jsonl", "kind": kind, "person": None, "people": 1, "items": len(shows),
            "scale": None, "judgements": WORDS[kind], "shows_reference": False, "guideline": None, "choose": "random",
        } | setup  # fmt: skip
        self.order, self.posted, self.answers, self.tables = list(range(len(shows))), [], {}, []
        self.is_away = False  # requests get no answer
        self.may_answer, self.is_chosen = threading.Event(), threading.Event()  # the next items: sent, chosen meanwhile
        self.may_answer.set()
        self.status = 200  # of what is posted
        self.frame_error = None

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/"

    @property
    def counted(self):
        """Judgements that were not taken back, in order."""
        gone = {post.get("undone") for post in self.posted}
        return [post for post in self.posted if "item" in post and post["key"] not in gone]

    @property
    def judged(self):
        """By item, without those skipped."""
        return {int(post["item"]): post for post in self.counted if post["judgement"] != "skip"}

    def next(self, count):
        waiting = [k for k in self.order if k not in self.judged]
        items = [{"item": str(k), "kind": self.kind, "show": self.shows[k], "note": ""} for k in waiting[:count]]
        return {"items": items} | self.counts()

    def counts(self):
        return {"done": len(self.judged), "left": len(self.shows) - len(self.judged)}

    def post(self, body):
        if body["key"] in self.answers:
            return self.answers[body["key"]]
        if "undo" in body:
            found = [post for post in self.counted if body["undo"] in (None, post["key"])]
            last = found[-1] if found else None
            answer = {"undone": None}
            if last:
                body["undone"] = last["key"]
                answer["undone"] = {**last, "kind": self.kind, "show": self.shows[int(last["item"])]}
        else:
            answer = {"stored": body["item"]}
            if body["judgement"] == "skip":
                self.order.remove(int(body["item"]))
                self.order.append(int(body["item"]))
        self.posted.append(body)
        self.answers[body["key"]] = answer
        return answer | self.counts()


class Handler(QuietHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        where, stub = urlsplit(self.path), self.server
        if stub.is_away:
            self.close_connection = True
        elif where.path in stub.files:
            self.answer(*stub.files[where.path])
        elif where.path == "/api/setup":
            self.answer(stub.setup)
        elif where.path == "/api/next":
            with stub.lock:
                found = stub.next(int(parse_qs(where.query)["count"][0]))
            if not stub.may_answer.is_set():
                stub.is_chosen.set()
            stub.may_answer.wait(60)
            self.answer(found)
        elif where.path == "/api/summary":
            self.answer({"tables": stub.tables})
        elif where.path.startswith("/api/frames/") and stub.frame_error:
            self.answer({"error": {"message": stub.frame_error}}, status=422)
        elif where.path.startswith("/api/frames/"):
            row = int(unquote(where.path.rpartition("/")[2]))
            self.answer(jpeg(stripes(row, (240, 320))), "image/jpeg")
        else:
            self.answer({"error": {"message": "no such page"}}, status=404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.is_away:
            self.close_connection = True
            return
        with self.server.lock:
            answer = self.server.post(body)
        self.answer(answer, status=self.server.status)

    def answer(self, content, media_type="application/json", status=200):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def stub(kind, shows, **setup):
    """A server that answers until the block ends."""
    with running(Stub(kind, shows, **setup)) as server:
        yield server
