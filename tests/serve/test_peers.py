"""Requests of other trainers' clients, byte for byte as they were recorded, to a real server process.

How they were recorded, with which versions of their code, stands in docs/wire_formats.md. What each client then does
with the answer is repeated here in a line or two.
"""

import json
import math
import re
import socket
import uuid
from http.client import HTTPResponse
from urllib.parse import urlsplit

import numpy as np
import pytest
from foreign import b64, grey, picture
from processes import start_server

from guerdon.episodes.video import VideoWriter

AIOHTTP = (
    "Accept: */*\r\nAccept-Encoding: gzip, deflate\r\nUser-Agent: Python/3.11 aiohttp/3.14.5\r\n"
    "Content-Length: {length}\r\nContent-Type: application/json\r\n\r\n"
)
REQUESTS = (
    "User-Agent: python-requests/2.34.2\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\n"
    "Content-Length: {length}\r\nContent-Type: application/json\r\n\r\n"
)
OPENRLHF = (
    rb'{"query": ["<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\neight, I think<|im_end|>"], '
    rb'"prompts": ["<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n"], "labels": ["8"]}'
)
OPENRLHF_FAILED = (
    rb'{"query": ["<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n???"], '
    rb'"prompts": ["<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n"], "labels": ["8"]}'
)
VERL = (
    rb'{"model": "/ckpt/orm", "input": "<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\neight, I think'
    rb'<|im_end|>\n", "activation": false}'
)
SLIME = (
    rb'{"prompt": "<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n", '
    rb'"response": "eight, I think<|im_end|>", "label": "8"}'
)
TREND = (
    "You are currently performing the task: put the cube on the plate. You are given two synchronized 5-frame videos "
    "from different camera views (main view and third-person view) of the same robot action window. Judge whether the "
    "action trend is positive, negative, or unclear. Answer with exactly one word: positive, negative, or unclear."
)
KINDS = ("orm", "prm", "video", "frame", "trend", "prose")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers")
    (folder / "videos").mkdir()
    models = {name: {"custom_backend": f"foreign_models:{name}"} for name in KINDS}
    models["orm"]["aliases"] = ["/ckpt/orm"]
    found = start_server(folder, models=models, default="orm", media={"root": str(folder / "videos")})
    found.videos = folder / "videos"
    yield found
    assert found.stop() == 0


def send(running, path, headers, body):
    """Status, content type and JSON of the answer to these bytes."""
    host = urlsplit(running.url).netloc
    name, port = host.split(":")
    with socket.create_connection((name, int(port)), timeout=30) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n" + headers.format(length=len(body))
        connection.sendall(head.encode() + body)
        reply = HTTPResponse(connection)
        reply.begin()
        return reply.status, reply.headers["Content-Type"], json.loads(reply.read())


def test_openrlhf(running):
    status, kind, answer = send(running, "/get_reward", AIOHTTP, OPENRLHF)
    assert (status, kind) == (200, "application/json")
    rewards, scores, logs = answer["rewards"], answer["scores"], answer["extra_logs"]
    assert (rewards, scores) == ([4.0], [4.0])
    assert all(math.isfinite(value) for values in logs.values() for value in values)  # each becomes a tensor


def test_openrlhf_reads_an_error_as_a_missing_reward(running):
    status, _, answer = send(running, "/get_reward", AIOHTTP, OPENRLHF_FAILED)
    assert status == 422  # its client: five tries, then reward None
    assert answer["error"]["code"] == "failed_measurement"


@pytest.mark.parametrize("activation", [b"activation", b"use_activation"])
def test_verl(running, activation):
    body = VERL.replace(b"activation", activation)
    status, kind, answer = send(running, "/classify", AIOHTTP, body)
    assert (status, kind) == (200, "application/json")
    assert answer["data"][-1]["probs"][-1] == 4.0
    status, _, _ = send(running, "/classify", AIOHTTP, body.replace(b"eight, I think", b"???"))
    assert 400 <= status < 500  # its client: raised at once, not tried again


def test_slime(running):
    assert send(running, "/rm", AIOHTTP, SLIME)[2] == 4.0
    assert send(running, "/rm", AIOHTTP, SLIME.replace(b"eight, I think", b"???"))[0] == 422


def rlinf(model, main, other):
    """The body that its worker makes of one window: two views of five frames, JPEG of quality 95."""
    urls = ["data:image/jpeg;base64," + b64(picture(frame, "JPEG", quality=95)) for frame in [*main, *other]]
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls] + [{"type": "text", "text": TREND}]
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": 16, "temperature": 0.0}).encode()


def read_by_rlinf(status, answer):
    """Its reward: an error is raised; otherwise the last of three words, and 0 where there is none."""
    if status != 200:
        raise RuntimeError(status)
    text = str((answer["choices"][0].get("message") or {}).get("content", "")).strip().lower()
    found = re.findall(r"\b(positive|negative|unclear)\b", text)
    return {"positive": 1.0, "negative": -0.2, "unclear": 0.0}[found[-1]] if found else "a reward of 0 from nothing"


def test_rlinf(running):
    up, still = grey(np.linspace(10, 200, 5)), grey([5] * 5)
    for model, main, reward in (
        ("frame", up, 1.0),
        ("frame", up[::-1], -0.2),
        ("frame", still, 0.0),
        ("trend", up, 1.0),
    ):
        status, _, answer = send(running, "/v1/chat/completions", REQUESTS, rlinf(model, main, still))
        assert read_by_rlinf(status, answer) == reward
    for model in ("prose", "video"):
        status, _, answer = send(running, "/v1/chat/completions", REQUESTS, rlinf(model, up, still))
        with pytest.raises(RuntimeError, match="422"):
            read_by_rlinf(status, answer)


def test_a_token_in_the_address(server):
    """Clients that know an address alone send `http://anyone:token@host` as a password."""
    token = "a-long-secret"
    running = server(models={"orm": {"custom_backend": "foreign_models:orm"}}, token=token)
    for word, status in (
        (b"anyone:a-long-secret", 200),
        (b":a-long-secret", 200),
        (b"a-long-secret", 401),
        (b"a:b", 401),
    ):
        headers = AIOHTTP.replace("Accept: */*", f"Accept: */*\r\nAuthorization: Basic {b64(word)}")
        assert send(running, "/get_reward", headers, OPENRLHF)[0] == status
    assert send(running, "/get_reward", AIOHTTP, OPENRLHF)[0] == 401
    for nonsense in ("Basic", "Basic !", "Basic " + b64(b"anyone:a-long-secret")[:-2], f"Digest {token}"):
        headers = AIOHTTP.replace("Accept: */*", f"Accept: */*\r\nAuthorization: {nonsense}")
        assert send(running, "/get_reward", headers, OPENRLHF)[0] == 401


class SeedClient:
    """The client of the first VLM reward server: writes an MP4 where the server can read it, and names its path."""

    def __init__(self, running, **config):
        self.running, self.config = running, {"nframes": 16, "max_pixels": 200_704, "fps": 4, **config}

    def score(self, task, frames_T_C_H_W):
        frames = np.clip(np.moveaxis(frames_T_C_H_W, 1, -1), 0, 255).astype(np.uint8)
        n, wanted = len(frames), self.config["nframes"]
        if n > wanted:
            frames = frames[np.linspace(0, n - 1, wanted).astype(int)]
        path = self.running.videos / f"{uuid.uuid4().hex}.mp4"
        with VideoWriter(path, height=frames.shape[1], width=frames.shape[2], fps=self.config["fps"]) as video:
            video.add(frames)
        payload = {
            "task_text": task, "video_path": str(path), "nframes": min(wanted, len(frames)),
            "max_pixels": self.config["max_pixels"], "backend": self.config.get("backend"),
            "backend_kwargs": self.config.get("backend_kwargs", {}),
        }  # fmt: skip
        try:
            status, _, answer = send(self.running, "/score", REQUESTS, json.dumps(payload).encode())
        finally:
            path.unlink()
        if status != 200 or "score" not in answer:
            raise RuntimeError(f"reward request failed: {status}")
        return float(answer["score"]), answer


def test_the_first_client(running):
    frames = np.moveaxis(grey(np.linspace(0, 204, 60)), -1, 1)
    client = SeedClient(running, backend="video", backend_kwargs={"score_mode": "auto"})
    score, answer = client.score("close the drawer", frames)
    assert score == pytest.approx(0.8, abs=0.01)
    assert answer["backend"] == "video"
    with pytest.raises(RuntimeError, match="422"):
        client.score("see nothing", frames * 0)
    with pytest.raises(RuntimeError, match="404"):
        SeedClient(running, backend="PRIMO-R1").score("t", frames)
    health = running.get("/health").json()
    assert health["status"] == "ok"
    assert health["default_backend"] == "orm"
    assert sorted(health["loaded_backends"]) == sorted(KINDS)
