"""A chat completions endpoint that sees: a real HTTP server in front of a tiny model, which fails as it is told."""

from __future__ import annotations

import base64
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
from PIL import Image
from vlm_samples import batch_of

from guerdon.models.vlm.vlm_prompts import FilledPrompt, GenerationOptions, Picture, PromptTemplate, Question, Video
from local_server import running

DROP, NOT_JSON = "drop", "not json"


def question_of(messages):
    """The question in a request, pictures decoded from their data URLs."""
    parts = messages[-1]["content"]
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    media, text = [], ""
    for part in parts:
        if part["type"] == "text":
            text += part["text"]
        elif part["type"] == "image_url":
            media.append(Picture(_decoded(part["image_url"]["url"].partition("base64,")[2])))
        else:
            frames = part["video_url"]["url"].removeprefix("data:video/jpeg;base64,").split(",")
            media.append(Video(np.stack([_decoded(frame) for frame in frames]), fps=4.0))
    return Question(FilledPrompt(text, system, PromptTemplate("sent", "completed", "", ("image",))), tuple(media))


def _decoded(text):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text, validate=True))).convert("RGB"))


class ChatServer(ThreadingHTTPServer):
    """Answers with the model of a backend, after the failures of `script`, one per request.

    A failure is a status (with headers and perhaps a payload), DROP, NOT_JSON, or a payload to send with status 200.
    """

    daemon_threads = True

    def __init__(self, backend, script=()):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend, self.script = backend, list(script)
        self.requests, self.headers = [], []
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address):
        """A client that disconnected is not reported."""

    def answer(self, body):
        """What an endpoint sends."""
        question = question_of(body["messages"])
        inputs = self.backend.inputs
        batch = batch_of(self.backend, question)
        usage = {"prompt_tokens": int(batch["attention_mask"].sum())}
        if not body.get("logprobs"):
            reply = self.backend.generate([question], GenerationOptions(body["max_tokens"], body["temperature"]))[0]
            choice = {"message": {"content": reply.text}, "finish_reason": "stop" if reply.whole else "length"}
            return {"choices": [choice], "usage": usage}
        with torch.no_grad():
            log_probs = self.backend.model(**batch, use_cache=False).logits[0, -1].double().log_softmax(-1)
        best = log_probs.topk(body["top_logprobs"])
        top = [
            {"token": inputs.tokenizer.decode([i]), "logprob": v}
            for v, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        choice = {"message": {"content": top[0]["token"]}, "logprobs": {"content": [{"top_logprobs": top}]}}
        return {"choices": [choice], "usage": usage}


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.requests.append((self.path, body))
            server.headers.append(dict(self.headers))
            told = server.script.pop(0) if server.script else None
        if told == DROP:
            return self.connection.close()
        if told == NOT_JSON:
            return self._send(200, {}, b"<html>")
        if isinstance(told, int):
            return self._send(told, {}, b'{"error": {"message": "as told"}}')
        if isinstance(told, tuple):
            return self._send(told[0], told[1], json.dumps(told[2] if len(told) > 2 else {}).encode())
        payload = told
        if told is None:
            with server.lock:  # the model keeps positions between calls
                payload = server.answer(body)
        return self._send(200, {}, json.dumps(payload).encode())

    def _send(self, status, headers, data):
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def serving(backend=None, script=()):
    """A running server."""
    return running(ChatServer(backend, script))
