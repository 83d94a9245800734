"""Which runs a log holds: folders with a configuration or event file of their own, or the values of a column `run`.

    runs_in(Path("sweep/"))                # {"a": Path("sweep/a"), "b": Path("sweep/b")}; empty where it is one run
    runs_of(read_log(Path("both.jsonl")))  # {"a": Rows, "b": Rows}

Folders that are parts of one run (ranks, shards, steps, splits, `tensorboard`) are no runs.
"""

from __future__ import annotations

import re
from pathlib import Path

from guerdon.auditing.rows import Rows
from guerdon.auditing.scalar_files import EVENTS, METRICS, PROGRESS, RESULT, STATE
from guerdon.auditing.wandb_files import WANDB
from guerdon.reading.data_sets import log_files

_CONFIGURATION = re.compile(r"(?:config|args|hparams|params|training_args|run_config)\.(?:ya?ml|json|toml)")
_PART = re.compile(
    r"(?i)(?:(?:global_?)?step|iter|iteration|epoch|checkpoint|ckpt|rank|shard|worker|actor|node|gpu|dp|part|proc|process"
    r"|env|train|training|eval|evaluation|val|valid|validation|test|rollouts?|samples?|completions?|logs?|tb|events?"
    r"|tensorboard|summar(?:y|ies)|monitor|\.hydra|configs?)(?:[-_.]?\d+)*(?:[-_]of[-_]\d+)?"
)  # names of folders that are part of a run
NAMELESS = "rows without a run"
FEWEST_ROWS = 10  # of a run on average: with fewer the column `run` counts something else


def runs_in(path: Path) -> dict[str, Path]:
    """The folders of runs in a folder by their names; empty where it holds one run.

    Args:
        path: a log.
    """
    if not path.is_dir():
        return {}
    logs = [file for file in log_files(path, EVENTS, WANDB) if not _CONFIGURATION.fullmatch(file.name)]
    marked = {file.parent for file in path.rglob("*") if _is_mark(file)}
    found = {_whole(folder, path, logs) for folder in marked}
    outermost = sorted(one for one in found if not found.intersection(one.parents))
    beside = [file for file in logs if not found.intersection(file.parents)]
    if path in found or len(outermost) < 2 or beside:
        return {}
    return {str(one.relative_to(path)): one for one in outermost}


def _is_mark(file: Path) -> bool:
    """Whether a file is one that each run has once: its configuration, its events or its figures."""
    figures = EVENTS in file.name or file.suffix == WANDB or file.name in (METRICS, PROGRESS, RESULT, STATE)
    return figures or _CONFIGURATION.fullmatch(file.name) is not None


def _whole(folder: Path, root: Path, logs: list[Path]) -> Path:
    """The run that a folder belongs to: itself, or the next one above that is no part of a run and has a log in it."""
    while folder != root and (_PART.fullmatch(folder.name) or not any(folder in file.parents for file in logs)):
        folder = folder.parent
    return folder


def runs_of(rows: Rows) -> dict[str, Rows]:
    """The rows of each run by the names in the column `run`; empty where it names one run or something else.

    Args:
        rows: of a log.
    """
    if rows.run_N is None or len(rows.runs) < 2 or len(rows) < FEWEST_ROWS * len(rows.runs):
        return {}
    found = {name: rows.only(rows.run_N == number) for number, name in enumerate(rows.runs)}
    if (rows.run_N < 0).any():
        found[NAMELESS] = rows.only(rows.run_N < 0)
    return found
