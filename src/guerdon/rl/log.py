"""What a run writes while it runs: JSON lines, and the same metrics to TensorBoard and other sinks.

JSON lines are appended and flushed; a resumed run first cuts off whatever lies beyond its checkpoint, so that the
files read as if it had never stopped. This module does not know what the numbers mean.

    log = RunLog(folder, sinks=sinks)
    log.metrics("train", 2000, {"success": 0.1})
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from guerdon.errors import CheckpointError, naming
from guerdon.rl.log_sinks import LogSink

FILES = ("metrics.jsonl", "episodes.jsonl", "failures.jsonl", "timings.jsonl")


class RunLog:
    """The open log files of one run directory."""

    def __init__(
        self,
        folder: Path,
        *,
        sinks: Sequence[LogSink] = (),
        offsets: Mapping[str, int] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, FileIO] = {}
        for name in FILES:
            path = folder / name
            if offsets is None:
                path.write_bytes(b"")
            else:
                _cut(path, offsets[name])
            self._files[name] = path.open("ab", buffering=0)  # what a full disk refused is not tried again by `close`
        self._sinks = sinks

    def write(self, name: str, row: Mapping[str, Any]) -> None:
        """Append one row to one of the files; a number that is not finite is refused."""
        file, line = self._files[name], json.dumps(row, allow_nan=False).encode() + b"\n"
        with naming(str(file.name)):
            while line:
                line = line[file.write(line) :]

    def metrics(self, kind: str, step: int, row: Mapping[str, Any]) -> None:
        """One row of metrics, also to the sinks as `kind/name`; missing values are null there and absent here."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self.write("metrics.jsonl", {"kind": kind, "step": step, **clean})
        shown = {f"{kind}/{name}": value for name, value in clean.items() if isinstance(value, (int, float))}
        for sink in self._sinks:
            sink.log(step, shown)

    def flush(self) -> None:
        """Return when all metrics given to the sinks are written."""
        for sink in self._sinks:
            sink.flush()

    def offsets(self) -> dict[str, int]:
        """Bytes written to each file, for a checkpoint."""
        for file in self._files.values():
            with naming(str(file.name)):
                os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def close(self) -> None:
        """Close the files and the sinks."""
        for file in self._files.values():
            file.close()
        for sink in self._sinks:
            sink.close()


def true_success(result: Mapping[str, float]) -> str:
    """An evaluation in words: `true success 0.40 over 20 evaluation episodes`; the return where that is unknown."""
    episodes = int(result["episodes"])
    known = int(result.get("success_known", episodes))
    if "success" not in result:
        known_return = f"return {result['return/env']:.4g}, " if "return/env" in result else ""
        return f"{known_return}true success unknown over {episodes} evaluation episodes"
    over = f"{episodes} evaluation episodes" if known == episodes else f"{known} of {episodes} evaluation episodes"
    return f"true success {result['success']:.2f} over {over}" + ("" if known == episodes else ", unknown in the rest")


def _cut(path: Path, size: int) -> None:
    """Cut a log file back to what it was at a checkpoint.

    Raises:
        CheckpointError: lines from before the checkpoint are gone.
    """
    have = path.stat().st_size if path.exists() else 0
    if have < size:
        raise CheckpointError(f"{path} has {have} bytes, but the checkpoint knows {size}: lines were lost since")
    if path.exists():
        os.truncate(path, size)
