"""Real server processes for tests, each on a free port.

running = start_server(tmp_path, models={"toy": {"custom_backend": "toys:make"}})
running.post("/v1/rewards", {"items": [{"prompt": "q", "steps": ["a"]}]}).json()
"""

from __future__ import annotations

import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import yaml

from child import environment
from started import MODEL_SERVERS, SERVERS, Started

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
SERVES = r"^guerdon serves .* at (http://\S+)$"
TOY = {"toy": {"custom_backend": "toys:make"}}


@dataclass
class Running:
    """A server process."""

    process: subprocess.Popen[str] | Started
    token: str | None = None
    lines: list[str] = field(default_factory=list)
    _fresh: queue.Queue[str | None] = field(default_factory=queue.Queue)
    url: str = ""

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.client = httpx.Client(timeout=30, headers=self.headers)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self._fresh.put(line)
        self._fresh.put(None)

    def wait_for(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """The first line of the log, from where the last wait ended, that holds the pattern."""
        until = time.monotonic() + seconds
        while True:
            try:
                line = self._fresh.get(timeout=max(until - time.monotonic(), 0.01))
            except queue.Empty:
                raise AssertionError(f"{pattern!r} did not come in {seconds} s:\n{self.log}") from None
            if line is None:
                raise AssertionError(f"the server ended before {pattern!r}:\n{self.log}")
            if found := re.search(pattern, line):
                return found

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.client.get(self.url + path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.client.post(self.url + path, **({"json": body} if body is not None else {}), **more)

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM, and the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not end in {seconds} s:\n{self.log}") from None
        finally:
            self.client.close()
        self._reader.join(5)
        return code


def start_server(
    folder: Path, *, models: dict[str, Any] | None = None, arguments: tuple[str, ...] = (), wait: bool = True,
    env: dict[str, str] | None = None, fresh: bool = False, seconds: float = 200, **settings: Any,
) -> Running:  # fmt: skip
    """Start `guerdon serve` with these settings on a free port.

    Args:
        folder: where its settings file goes, and its working folder.
        models: as in the file; None: one toy; {}: none, the arguments say what to serve.
        arguments: more words of the command line.
        wait: until its models are loaded.
        env: more environment variables, in a new interpreter.
        fresh: in a new interpreter, too; otherwise in a fork of one that has imported the server (`started`).
        seconds: limit until it says that it serves, or loads.
        **settings: further keys of the file.
    """
    file = folder / f"serve_{time.monotonic_ns()}.yaml"
    models = TOY if models is None else models
    port = 0
    if not wait:  # the address is printed when the models are loaded
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
    file.write_text(yaml.safe_dump({"port": port, **({"models": models} if models else {}), **settings}))
    words = ["serve", str(file), *arguments]
    process: subprocess.Popen[str] | Started
    if env is None and not fresh:
        light = all("custom_backend" in model or model.get("backend") == "constant" for model in models.values())
        imports = SERVERS if light else MODEL_SERVERS
        process = Started(words, folder=folder, variables=environment(HERE), imports=imports)
    else:
        process = subprocess.Popen(
            [sys.executable, "-m", "guerdon", *words], cwd=folder, env=environment(HERE, **(env or {})),
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    running = Running(process, token=settings.get("token"))
    try:
        if wait:
            running.url = running.wait_for(SERVES, seconds).group(1)
        else:
            running.url = f"http://127.0.0.1:{port}"
            running.wait_for(r"^loading ", seconds)
    except AssertionError:
        process.kill()
        process.wait()
        raise
    return running
