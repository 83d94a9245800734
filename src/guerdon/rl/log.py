"""What a run writes while it runs: JSON lines, and the same metrics to TensorBoard, Weights & Biases, Trackio.

JSON lines are appended and flushed; a resumed run first cuts off whatever lies beyond its checkpoint, so that the
files read as if it had never stopped. Sinks get the numbers of `metrics.jsonl`, which stays the record, as
`train/success`, `eval/success` and so on, with the same steps. There, too, every step is once: those that were logged
after the checkpoint of a resumed run are computed again, with the same numbers; TensorBoard replaces them, the others
keep the first, as a note in the run directory says. This module does not know what the numbers mean.

    log = RunLog(folder, sinks=sinks)
    log.metrics("train", 2000, {"success": 0.1})
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from guerdon.errors import ConfigError, MissingDependencyError, boundary, naming
from guerdon.files.atomic import write_json, write_text
from guerdon.rl.checkpoint import cut_back
from guerdon.secrets import hide
from guerdon.settings.runner import LoggerSettings

CONVERSATIONS = "conversations.jsonl"  # of a run with an agent
FILES = ("metrics.jsonl", "episodes.jsonl", "failures.jsonl", "timings.jsonl")


class RunLog:
    """The open log files of one run directory.

    Args:
        folder: the directory.
        sinks: get the metrics, too.
        offsets: sizes to cut the files back to; None: they begin empty.
        more: names of files beside `FILES`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sinks: Sequence[LogSink] = (),
        offsets: Mapping[str, int] | None = None,
        more: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, FileIO] = {}
        for name in (*FILES, *more):
            path = folder / name
            if offsets is None:
                path.write_bytes(b"")
            else:
                cut_back(path, offsets[name])
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
    if "truth" in result:
        return f"truth {result['truth']:.4g} over {int(result['truth_known'])} of {episodes} evaluation episodes"
    known = int(result.get("success_known", episodes))
    if "success" not in result:
        known_return = f"return {result['return/env']:.4g}, " if "return/env" in result else ""
        return f"{known_return}true success unknown over {episodes} evaluation episodes"
    over = f"{episodes} evaluation episodes" if known == episodes else f"{known} of {episodes} evaluation episodes"
    return f"true success {result['success']:.2f} over {over}" + ("" if known == episodes else ", unknown in the rest")


# Sinks.


class LogSink(Protocol):
    """Shows the metrics of one run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show metrics by name, all of the same step; steps do not decrease."""
        ...

    def flush(self) -> None:
        """Return when all metrics are written.

        Raises:
            OSError: they cannot be written.
        """
        ...

    def close(self) -> None:
        """Finish; what is under way is written."""
        ...


class TensorBoardSink:
    """Event files in `tb/` of the run directory.

    TensorBoard's tab of custom scalars shows the result of the run: true success, or the return where that is unknown.
    """

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resumed_at is None else resumed_at + 1
        self._folder = folder / "tb"
        with naming(self._folder):
            self._writer: Any = SummaryWriter(str(self._folder), purge_step=purge)
        self._shown: str | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `LogSink.log`."""
        result = next((name for name in ("truth", "success", "return/env") if f"eval/{name}" in metrics), None)
        if result is not None and self._shown is None:
            self._shown = result
            self._writer.add_custom_scalars(
                {"result": {result: ["Multiline", [f"eval/{result}$", f"train/{result}$"]]}}
            )
        with naming(self._folder):
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """See `LogSink.flush`."""
        with naming(self._folder):
            self._writer.flush()

    def close(self) -> None:
        """See `LogSink.close`."""
        with naming(self._folder):
            self._writer.close()


class TrackerSink:
    """A run of Weights & Biases, whose files lie in `wandb/` of the run directory, or of Trackio, on this machine.

    `WANDB_MODE=offline` sends nothing; `TRACKIO_DIR` is where Trackio writes, and `trackio show` shows it.

    Args:
        run: of the package.
        given: what it was given before.
    """

    def __init__(self, run: Any, given: _Given) -> None:
        self._run, self._given = run, given

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `LogSink.log`."""
        if new := self._given.new(step, metrics):
            self._run.log(new, step=step)

    def flush(self) -> None:
        """Its own process writes."""

    def close(self) -> None:
        """See `LogSink.close`."""
        self._run.finish()


class _Given:
    """What a sink was given that cannot replace a step: the last step, and its metrics by name.

    Args:
        path: of the note.
        resumed_at: step of the checkpoint that the run continues from; None: it begins.
    """

    def __init__(self, path: Path, resumed_at: int | None) -> None:
        self._path, self._step, self._names = path, -1, list[str]()
        if resumed_at is not None and path.is_file():
            self._step, self._names = json.loads(path.read_text(encoding="utf-8"))

    def new(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics that were not given before."""
        if step < self._step:
            return {}
        before = self._names if step == self._step else []
        found = {name: value for name, value in metrics.items() if name not in before}
        self._step, self._names = step, [*before, *found]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, [self._step, self._names])
        return found


def open_sinks(
    logger: LoggerSettings, folder: Path, resumed_at: int | None, *, group: str, config: str
) -> list[LogSink]:
    """The sinks that `runner.logger` names.

    Args:
        logger: the section.
        folder: the run directory.
        resumed_at: step of the checkpoint that the run continues from; None: it begins.
        group: of runs, the study's name.
        config: the configuration as JSON; sinks keep it with the run, without secrets.

    Raises:
        MissingDependencyError: a package is not installed.
        ConfigError: a sink cannot start.
    """
    sinks = list[LogSink]()
    for name in ("wandb", "trackio"):
        if getattr(logger, name) and find_spec(name) is None:
            raise MissingDependencyError(
                f"runner.logger.{name} needs the package {name}: pip install 'guerdon[{name}]'"
            )
    if logger.tensorboard:
        sinks.append(TensorBoardSink(folder, resumed_at))
    named: dict[str, Any] = {"project": logger.project, "name": logger.experiment_name, "group": group}
    if logger.wandb or logger.trackio:
        named["config"] = json.loads(hide(config))
    if logger.wandb:
        import wandb

        with boundary(
            ConfigError,
            "runner.logger.wandb: wandb cannot start (WANDB_MODE=offline needs no account)",
            key="runner.logger.wandb",
        ):
            name = _run_id(folder / "wandb" / "guerdon_run_id", resumed_at)
            run = wandb.init(dir=str(folder), id=name, resume="allow", **named)
        sinks.append(TrackerSink(run, _Given(folder / "wandb" / "guerdon_given.json", resumed_at)))
    if logger.trackio:
        import trackio

        with boundary(ConfigError, "runner.logger.trackio: trackio cannot start", key="runner.logger.trackio"):
            run = trackio.init(embed=False, resume="never" if resumed_at is None else "allow", **named)
        sinks.append(TrackerSink(run, _Given(folder / "trackio_given.json", resumed_at)))
    return sinks


def _run_id(path: Path, resumed_at: int | None) -> str:
    """The name by which Weights & Biases knows the run: a new one, or that of the run that is resumed."""
    if resumed_at is not None and path.is_file():
        return path.read_text(encoding="utf-8").strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, new := secrets.token_hex(4))
    return new
