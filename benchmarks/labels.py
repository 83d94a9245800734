"""Labels per second of a judge over HTTP, by requests under way at a time, against another version of guerdon.

The judge is a server in a process of its own that answers at once, keeps connections open where the client does, and
repeats one judgement; so what is measured is the client: prompts, requests, parsing, cache and ledger on disk. Every
measurement is a process; the two versions alternate, and ratios are taken pair by pair, of computing time and of time.

    python benchmarks/labels.py --other=../other/src --repetitions=7
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import Stopwatch, machine_line, report_measurement, spread, table

STEPS = 4
LABELS = {8: 400, 64: 600, 300: 900, 1000: 1000}  # by requests under way at a time


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection of the judge."""
    steps = [{"step_number": k + 1, "reasoning": "It follows.", "score": 1} for k in range(STEPS)]
    text = json.dumps({"steps": steps, "overall_correctness": True})
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 400, "completion_tokens": 90}}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    try:
        while True:
            asked = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line[15:]) for line in asked.lower().split(b"\r\n") if line.startswith(b"content-length:")
            )
            await reader.readexactly(length)
            writer.write(head + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def label(url: str, slots: int) -> None:
    """Label solutions and report how long it took."""
    from guerdon.endpoints.llm_client import HttpLLMClient
    from guerdon.episodes.solutions import Solution
    from guerdon.files.append_log import Cache, Ledger
    from guerdon.labels.labelers import JudgeLabeler, PromptedSolution
    from guerdon.settings.label import OpenAIJudgeSettings
    from guerdon.tasks.prompts import Prompt

    settings = OpenAIJudgeSettings(model="judge", base_url=f"{url}/v1", concurrency=slots)
    step = "We add the two numbers and carry the one, which gives the next line of the sum.\n\n"
    solutions = [Solution("", f"What is {i} + {i}?", (step,) * STEPS) for i in range(LABELS[slots] + slots)]
    given = [PromptedSolution(one, Prompt("", (), "", "")) for one in solutions]
    with tempfile.TemporaryDirectory() as folder:
        cache, ledger = Cache(Path(folder) / "replies.jsonl"), Ledger(Path(folder) / "calls.jsonl", prices=(1.0, 2.0))
        labeler = JudgeLabeler(HttpLLMClient(settings, cache, ledger), settings)
        labeler.label(given[:8])  # imports, the first connections
        watch = Stopwatch()
        found = labeler.label(given[slots:])
        report_measurement({**watch.read(), "labels": sum(hasattr(one, "values") for one in found)})
        cache.close()
        ledger.close()


def _measure(source: str, url: str, slots: int) -> dict[str, Any]:
    command = [sys.executable, __file__, f"--url={url}", f"--slots={slots}"]
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("measured: ")]
    if not lines:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("measured: "))
    return found


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", help="the folder src of the other version")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--at", type=int, nargs="*", default=list(LABELS), help="requests under way at a time")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--slots", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.serve:
        return asyncio.run(_serve())
    if options.url:
        return label(options.url, options.slots)
    ours = str(Path(__file__).resolve().parent.parent / "src")
    rows = []
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        for slots in options.at:
            pairs = [
                [_measure(source, url, slots) for source in (ours, options.other or ours)]
                for _ in range(options.repetitions)
            ]
            cells = [f"{slots}"]
            for clock in ("core_seconds", "seconds"):
                speeds = np.array([[run["labels"] / run[clock] for run in pair] for pair in pairs])
                cells += [spread(speeds[:, 0], 0), spread(speeds[:, 1], 0), spread(speeds[:, 0] / speeds[:, 1])]
            rows.append(cells)
            print(" | ".join(cells), flush=True)
        server.terminate()
    print(machine_line())
    names = [f"{what} per {per}" for per in ("second of computing", "second") for what in ("labels", "other", "ratio")]
    print(table(["at a time", *names], rows))


if __name__ == "__main__":
    main()
