"""The reward server under load: against a plain blocking handler, against its own promises, and against vLLM.

Every server runs in a process of its own; the load comes from another process over raw keep-alive connections, so that
the client costs little. A request holds one text item whose content no other request has, and the result cache is off,
unless a row says otherwise. Rows:

- *blocking handler*: FastAPI with the model called inside `async def`, as reward servers are commonly written
- *guerdon*: `guerdon serve` around the same model, which takes 10 ms per call and 0.5 ms per item
- promises: `/health` while 32 clients keep the model busy; time added for a single client; refusals of a full queue;
  SIGTERM under load; a body that is too large
- with `--base`: requests per second of this tree and of another one, in interleaved pairs
- with `--vllm-python`: a tiny process reward model behind vLLM's `/pooling` and behind guerdon's, in one run

    python benchmarks/server.py --seconds=5
    python benchmarks/server.py --base=/path/to/base/src
    python benchmarks/server.py --vllm-python=/path/to/venv/bin/python
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine_line, table

DELAY_MS, PER_ITEM_MS, CLIENTS = 10.0, 0.5, 32
FOLDER = Path(__file__).parent

# models and servers, in processes of their own


class TimedModel:
    """A stand-in for a model: 10 ms per call and 0.5 ms per item, or nothing; 0.5 for every step."""

    def __init__(self, delay_ms: float, per_item_ms: float) -> None:
        from guerdon.types import RewardInfo

        self.delay, self.per_item = delay_ms / 1000, per_item_ms / 1000
        self.info = RewardInfo(name="timed", range=(0.0, 1.0), modality="text", frames_needed=0)

    def score(self, episodes: Sequence[Any]) -> list[Any]:
        """As described."""
        from guerdon.types import Score

        if self.delay or self.per_item:
            time.sleep(self.delay + self.per_item * len(episodes))
        return [Score(steps=np.full(len(e), 0.5, np.float32), total=0.5) for e in episodes]


def make_timed(settings: Any) -> TimedModel:
    """For `custom_backend: server:make_timed`."""
    return TimedModel(**settings.options)


def run_blocking(port: int, options: dict[str, float]) -> None:
    """The plain way: the model inside `async def`."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    from guerdon.types import Episode

    class Item(BaseModel):
        prompt: str
        steps: list[str]

    class Body(BaseModel):
        items: list[Item]

    app, model = FastAPI(), TimedModel(**options)

    async def rewards(body: Any) -> dict[str, Any]:
        scores = model.score([Episode(id="", task=i.prompt, texts=tuple(i.steps)) for i in body.items])
        return {"results": [{"score": s.total, "step_scores": s.steps.tolist()} for s in scores]}

    async def health() -> dict[str, str]:
        return {"status": "ok"}

    rewards.__annotations__["body"] = Body
    app.post("/v1/rewards")(rewards)
    app.get("/health")(health)
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


@dataclass
class Server:
    """A server process."""

    process: subprocess.Popen[str]
    port: int


@contextlib.contextmanager
def guerdon(models: dict[str, Any], *, tree: str = "", **settings: Any) -> Iterator[Server]:
    """`guerdon serve` on a free port, of the tree whose `src` this is; empty: of this one."""
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "serve.yaml"
        file.write_text(yaml.safe_dump({"port": 0, "models": models, **settings}))
        process = subprocess.Popen(
            [sys.executable, "-m", "guerdon", "serve", str(file)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([tree, str(FOLDER), os.environ.get("PYTHONPATH", "")])},
        )
        assert process.stderr is not None
        serves = next((line for line in process.stderr if line.startswith("guerdon serves")), None)
        if serves is None:
            sys.exit("the server did not start")
        port = int(serves.rsplit(":", 1)[1])
        try:
            yield Server(process, port)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def blocking(**options: float) -> Iterator[Server]:
    """The plain server on a free port."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, f"--run-blocking={port}", f"--options={json.dumps(options)}"])
    try:
        wait_for(port)
        yield Server(process, port)
    finally:
        process.kill()
        process.wait()


def wait_for(port: int, path: str = "/health", seconds: float = 300) -> None:
    """Until the server answers."""
    import httpx2 as httpx

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    sys.exit(f"no server at port {port}")


# load


def post(path: str, body: Any) -> bytes:
    """A request as it goes over the wire."""
    data = json.dumps(body).encode()
    lines = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(data)}", "", "")
    head = "\r\n".join((f"POST {path} HTTP/1.1", *lines))
    return head.encode() + data


def native(n: int, items: int = 1) -> bytes:
    """Items that no other request holds."""
    steps = ["First, 3+5=8. ", "Then 8-2=6. "]
    return post("/v1/rewards", {"items": [{"prompt": f"question {n} {k}", "steps": steps} for k in range(items)]})


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """One request on a kept connection; its status."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    lower = head.lower()
    length = int(lower.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
    await reader.readexactly(length)
    return int(head[9:12])


async def client(
    port: int, make: Callable[[], bytes], until: float, times: list[tuple[int, float]], pause: float
) -> None:
    """Ask one after another until the time is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while time.perf_counter() < until:
            start = time.perf_counter()
            try:
                status = await ask(reader, writer, make())
            except (asyncio.IncompleteReadError, ConnectionError):
                times.append((0, time.perf_counter() - start))
                return
            times.append((status, time.perf_counter() - start))
            if status == 503:
                return
            if pause:
                await asyncio.sleep(pause)
    finally:
        writer.close()


async def drive(port: int, clients: int, seconds: float, kind: str, items: int, pause: float) -> dict[str, Any]:
    """All clients; each rests for `pause` seconds between two requests."""
    numbers = itertools.count(time.monotonic_ns())
    make = {"native": lambda: native(next(numbers), items), "health": lambda: HEALTH}.get(kind)
    if make is None:
        bodies = itertools.cycle(json.loads(Path(kind).read_text()))

        def make() -> bytes:
            path, body = next(bodies)
            return post(path, body)

    times: list[tuple[int, float]] = []
    start = time.perf_counter()
    await asyncio.gather(*(client(port, make, start + seconds, times, pause) for _ in range(clients)))
    return {"wall": time.perf_counter() - start, "times": times}


def _load(arguments: tuple[Any, ...]) -> dict[str, Any]:
    return asyncio.run(drive(*arguments))


def load(
    server: Server, *, clients: int, seconds: float, kind: str = "native", items: int = 1, health: bool = False
) -> dict[str, Any]:
    """Drive a server from a process of its own; with `health`, another one asks /health 50 times a second.

    Returns:
        `rate` (answers with 200 per second), `p50`, `p99` in ms, `statuses`, `health_p99` in ms, raw `times`.
    """
    with get_context("spawn").Pool(2) as pool:
        asked = pool.apply_async(_load, ((server.port, clients, seconds, kind, items, 0.0),))
        probed = pool.apply(_load, ((server.port, 1, seconds, "health", 1, 0.02),)) if health else {"times": []}
        raw = asked.get()
    healths = [t for _, t in probed["times"]]
    good = [t for status, t in raw["times"] if status == 200]
    statuses: dict[int, int] = {}
    for status, _ in raw["times"]:
        statuses[status] = statuses.get(status, 0) + 1
    return {
        "rate": len(good) / raw["wall"],
        "p50": 1e3 * float(np.percentile(good, 50)) if good else float("nan"),
        "p99": 1e3 * float(np.percentile(good, 99)) if good else float("nan"),
        "statuses": statuses,
        "times": raw["times"],
        "health_p99": 1e3 * float(np.percentile(healths, 99)) if healths else None,
    }


# what is measured

TIMED = {
    "timed": {"custom_backend": "server:make_timed", "options": {"delay_ms": DELAY_MS, "per_item_ms": PER_ITEM_MS}}
}
NOOP = {"timed": {"custom_backend": "server:make_timed", "options": {"delay_ms": 0.0, "per_item_ms": 0.0}}}
NO_CACHE = {"cache_items": 0}


def against_blocking(seconds: float) -> list[list[str]]:
    """32 clients, one item each, on the 10 ms model."""
    with blocking(delay_ms=DELAY_MS, per_item_ms=PER_ITEM_MS) as server:
        plain = load(server, clients=CLIENTS, seconds=seconds, health=True)
    with guerdon(TIMED, batch=NO_CACHE) as server:
        ours = load(server, clients=CLIENTS, seconds=seconds, health=True)
    rows = [
        [name, f"{r['rate']:.0f}", f"{r['rate'] / plain['rate']:.1f}", f"{r['p50']:.0f}", f"{r['p99']:.0f}",
         f"{r['health_p99']:.1f}"]
        for name, r in (("blocking handler", plain), ("guerdon", ours))
    ]  # fmt: skip
    return rows


def promises(seconds: float) -> list[list[str]]:
    """The other targets."""
    rows: list[list[str]] = []
    with blocking(delay_ms=DELAY_MS, per_item_ms=PER_ITEM_MS) as server:
        alone = load(server, clients=1, seconds=seconds)
    with guerdon(TIMED, batch=NO_CACHE) as server:
        ours = load(server, clients=1, seconds=seconds)
    rows.append(["added latency at 1 client, ms (median)", f"{ours['p50'] - alone['p50']:.1f}", "at most 5"])
    with guerdon(NOOP, batch=NO_CACHE) as server:
        one = load(server, clients=CLIENTS, seconds=seconds)
        rows.append(["requests/s, one item each, model that takes no time", f"{one['rate']:.0f}", "at least 1500"])
        many = load(server, clients=4, seconds=seconds, items=256)
        rows.append(["items/s, 256 per request, 4 clients", f"{256 * many['rate']:.0f}", "at least 3000"])
    with guerdon(NOOP) as server:
        health = load(server, clients=CLIENTS, seconds=seconds, kind="health")
        rows.append(["/health requests/s", f"{health['rate']:.0f}", ""])
    rows += full_queue(seconds)
    rows += sigterm()
    rows += too_large()
    return rows


def full_queue(seconds: float) -> list[list[str]]:
    """More clients than the queue has room for."""
    with guerdon(TIMED, batch={**NO_CACHE, "queue_items": 16, "max_items": 4}, limits={"max_items": 16}) as server:
        busy = load(server, clients=64, seconds=seconds)
    refused = [1e3 * t for status, t in busy["times"] if status == 429]
    if not refused:
        return [["a refusal of a full queue", "none came", ""]]
    p50, p99 = np.percentile(refused, 50), np.percentile(refused, 99)
    return [[f"429 of a full queue, ms (median, p99 of {len(refused)})", f"{p50:.1f}, {p99:.1f}", "20"]]


def sigterm() -> list[list[str]]:
    """A signal while 32 clients ask."""
    with guerdon(TIMED, batch=NO_CACHE) as server, get_context("spawn").Pool(1) as pool:
        driven = pool.apply_async(_load, ((server.port, CLIENTS, 4.0, "native", 1, 0.0),))
        time.sleep(2.0)
        start = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(30)
        passed = time.perf_counter() - start
        statuses = [status for status, _ in driven.get()["times"]]
    dropped = statuses.count(0)
    answered = f"{statuses.count(200)} answered, {statuses.count(503)} refused with 503, {dropped} cut"
    text = f"{passed:.1f} s, status {code}, {answered}"
    return [["SIGTERM with 32 clients", text, "at most 10 s, 0 cut"]]


def too_large() -> list[list[str]]:
    """100 MB to a server that takes 64 MiB: time from the first byte sent to the answer, while the rest goes on."""
    import socket
    import threading

    with guerdon(NOOP) as server:
        page = os.sysconf("SC_PAGE_SIZE")

        def resident() -> int:
            return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * page

        before = resident()
        request = post("/v1/rewards", "x" * 100_000_000)
        with socket.create_connection(("127.0.0.1", server.port)) as connection:

            def send() -> None:
                with contextlib.suppress(OSError):
                    connection.sendall(request)

            sending = threading.Thread(target=send)
            start = time.perf_counter()
            sending.start()
            status = connection.recv(65536)[9:12].decode()
            passed = time.perf_counter() - start
            sending.join()
        grown = (resident() - before) / 2**20
    text = f"{status} after {1e3 * passed:.0f} ms, {grown:.1f} MiB more"
    return [["a body of 100 MB", text, "100 ms, 64 MiB"]]


# vLLM


def tiny_prm(folder: Path) -> Path:
    """A process reward model with random weights: two layers of Qwen2 with two labels per token."""
    import torch
    from transformers import Qwen2Config, Qwen2ForTokenClassification

    from guerdon.policies.language.tiny_text import byte_tokenizer

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, num_labels=2, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen2ForTokenClassification(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextlib.contextmanager
def vllm(python: str, folder: Path) -> Iterator[Server]:
    """`vllm serve --runner pooling`."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(Path(python).parent / "vllm"), "serve", str(folder), "--runner", "pooling", "--port", str(port),
        "--served-model-name", "prm", "--dtype", "float32", "--max-model-len", "512", "--uvicorn-log-level", "warning",
    ]  # fmt: skip
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    process = subprocess.Popen(command, env=env, start_new_session=True)
    try:
        wait_for(port, seconds=400)
        yield Server(process, port)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def against_vllm(python: str, seconds: float, repetitions: int) -> list[list[str]]:
    """The same folder behind both, the same texts, in alternation."""
    with tempfile.TemporaryDirectory() as name:
        folder = tiny_prm(Path(name) / "prm")
        rng = np.random.default_rng(0)
        question = "Add these up, one by one."
        texts = [
            "\n\n".join(f"{a}+{b}={a + b}." for a, b in rng.integers(100, size=(int(steps), 2)))
            for steps in rng.integers(4, 12, size=4096)
        ]
        # both read the question and the steps, about a token per character; each is sent them as it takes them
        bodies = {
            "vLLM": [
                ("/pooling", {"model": "prm", "input": f"{question}\n\n{t}", "task": "token_classify"}) for t in texts
            ],
            "guerdon": [
                (
                    "/pooling?separator=%0A%0A",
                    {"model": "prm", "messages": _turns(question, t), "task": "token_classify"},
                )
                for t in texts
            ],
        }
        copies = max(2, len(os.sched_getaffinity(0)) - 1)
        bodies[f"guerdon, {copies} copies"] = bodies["guerdon"]
        requests = {side: Path(name) / f"{side}.json" for side in bodies}
        for side, body in bodies.items():
            requests[side].write_text(json.dumps(body))
        results: dict[str, list[dict[str, Any]]] = {side: [] for side in bodies}
        ours = {"backend": "text", "model_path": str(folder)}
        with (
            vllm(python, folder) as rival,
            guerdon({"prm": {**ours, "processes": None}}, batch=NO_CACHE) as own,
            guerdon({"prm": {**ours, "processes": copies}}, batch=NO_CACHE) as several,
        ):
            for _ in range(repetitions):
                for side, server in zip(bodies, (rival, own, several), strict=True):
                    results[side].append(load(server, clients=CLIENTS, seconds=seconds, kind=str(requests[side])))
    base = [r["rate"] for r in results["vLLM"]]
    rows = []
    for side, runs in results.items():
        ratio = np.median([r["rate"] / b for r, b in zip(runs, base, strict=True)])
        rate, p50, p99 = (np.median([r[key] for r in runs]) for key in ("rate", "p50", "p99"))
        wrong = sum(n for r in runs for status, n in r["statuses"].items() if status != 200)
        rows.append([side, f"{rate:.0f}", f"{ratio:.2f}", f"{p50:.1f}", f"{p99:.1f}", str(wrong)])
    return rows


def _turns(question: str, text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": text}]


def against_base(base: str, seconds: float, repetitions: int) -> list[list[str]]:
    """Requests per second of this tree and of another one; medians, and the median ratio of pairs."""
    kinds = {
        f"{CLIENTS} clients, one item each, model of 10 ms": (TIMED, {"clients": CLIENTS}),
        f"{CLIENTS} clients, one item each, model that takes no time": (NOOP, {"clients": CLIENTS}),
        "4 clients, 256 items each, model that takes no time": (NOOP, {"clients": 4, "items": 256}),
    }
    rows = []
    for name, (models, how) in kinds.items():
        rates = []
        for pair in range(repetitions):
            both = {}
            for tree in ("", base) if pair % 2 else (base, ""):
                with guerdon(models, tree=tree, batch=NO_CACHE) as server:
                    load(server, clients=4, seconds=0.5)
                    both[tree] = load(server, seconds=seconds, **how)["rate"]
            rates.append((both[base], both[""]))
        before, now = np.median(rates, axis=0)
        ratio = np.median([new / old for old, new in rates])
        rows.append([name, f"{before:.0f}", f"{now:.0f}", f"{ratio:.3f}"])
    return rows


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--repetitions", type=int, default=5, help="repetitions against vLLM or another tree")
    parser.add_argument("--base", default="", help="the folder `src` of another tree")
    parser.add_argument("--vllm-python", help="the interpreter of an environment with vLLM")
    parser.add_argument("--run-blocking", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, default={}, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run_blocking:
        return run_blocking(given.run_blocking, given.options)
    print(machine_line(("fastapi", "uvicorn")) + "\n")
    if given.base:
        head = ("", "base, requests/s", "now, requests/s", "ratio, median of pairs")
        print(table(head, against_base(given.base, given.seconds, given.repetitions)))
        return None
    if given.vllm_python:
        head = ("", "requests/s", "ratio", "p50, ms", "p99, ms", "other than 200")
        print(table(head, against_vllm(given.vllm_python, given.seconds, given.repetitions)))
        return None
    head = (
        "32 clients, 10 ms per call and 0.5 ms per item",
        "requests/s",
        "ratio",
        "p50, ms",
        "p99, ms",
        "/health p99, ms",
    )
    print(table(head, against_blocking(given.seconds)) + "\n")
    print(table(("", "measured", "target"), promises(given.seconds)))
    return None


if __name__ == "__main__":
    main()
