"""`guerdon run`: one run in its own folder, with the record of what made it.

This module does not know studies of several runs.

    folder, summary = run(load(Study, path), resume=True)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from guerdon.collect.agents import check_agent_here
from guerdon.compute import distributed
from guerdon.config.loading import holds, to_yaml
from guerdon.errors import ConfigError, GuerdonError
from guerdon.files import atomic, provenance
from guerdon.files.atomic import held
from guerdon.plan.stages import loaded
from guerdon.processes.progress import log_line
from guerdon.rl.checkpoint import latest_checkpoint
from guerdon.rl.loop import Loop
from guerdon.rl.profile import check_iterations
from guerdon.rl.reward_warnings import reward_warnings
from guerdon.settings.data import run_prompts
from guerdon.settings.study import Study

RAY_LEARNERS = "guerdon.engines.ray_learners:lead"


def run_folder(study: Study) -> Path:
    """Where a run writes: `runner.logger.log_path/experiment_name`."""
    return study.runner.logger.folder


def run(study: Study, *, resume: bool = False, profile: int = 0) -> tuple[Path, dict[str, Any]]:
    """Run to the end, or go on with a run that was cut off.

    A folder in which nothing was recorded yet, because the run that made it failed or was killed before its first
    step, is taken over.

    Args:
        study: the configuration.
        resume: go on from the newest checkpoint.
        profile: iterations to record (`rl/profile.py`); 0: none.

    Returns:
        The run's folder and its summary.

    Raises:
        ConfigError: the folder is taken, or holds another configuration; or a language model has no prompts.
        GuerdonError: whatever stopped the run; it is also written to `FAILED.json`.
    """
    check_iterations(profile)
    if study.text:
        run_prompts(study.data)
    if study.agent is not None:
        check_agent_here(study.agent)
    learners = study.cluster.learners if study.engine == "ray" else distributed.launched()
    distributed.check_offload(study.policy, learners)
    folder = run_folder(study)
    busy = f"{folder} is in use by another run; wait for its end, or choose another runner.logger.experiment_name"
    kept = resume and _is_complete(folder)  # and nothing of it is written
    with nullcontext() if kept else held(folder, busy=busy):
        _check_folder(study, folder, resume=resume)
        if _is_complete(folder):
            if profile:
                log_line(f"no profile: {folder} is complete; choose another runner.logger.experiment_name")
            return folder, json.loads((folder / "COMPLETE").read_bytes())
        atomic.write_text(folder / "config.yaml", to_yaml(study))
        (folder / "FAILED.json").unlink(missing_ok=True)
        with _failure_noted(folder):
            if study.engine == "local" or learners == 1:
                return folder, _loop(study, folder, resume=resume, profile=profile).run()
            summary = loaded(RAY_LEARNERS)(
                study.cluster,
                study.runner,
                lambda again: _loop(study, folder, resume=resume or again, profile=profile).run(),
                lambda: latest_checkpoint(folder / "checkpoints"),
            )
            return folder, summary


def _check_folder(study: Study, folder: Path, *, resume: bool) -> None:
    """Refuse a folder with another run, or with this one where it is not to be resumed."""
    config = folder / "config.yaml"
    if not config.exists():
        return
    begun = _begun(folder)
    if not resume and (begun or _recorded(folder)):
        raise ConfigError(
            f"{folder} already holds a run; go on with it by --resume, or choose another runner.logger.experiment_name"
        )
    if begun and not holds(config, study):
        raise ConfigError(
            f"{folder} was started with another configuration ({config}); a run is resumed with the one it began "
            "with. Choose another runner.logger.experiment_name for the new one"
        )


def _loop(study: Study, folder: Path, *, resume: bool, profile: int) -> Loop:
    """The loop of a run, and the record of what made it: of a run that is refused there is none."""
    loop = Loop(study, folder, resume=resume, profile=profile)
    if not _begun(folder) or not (folder / "run.json").exists():
        atomic.write_json(folder / "run.json", _card(study))
    return loop


@contextmanager
def _failure_noted(folder: Path) -> Iterator[None]:
    """Whatever stops the run in this block is written to `FAILED.json`, too."""
    try:
        yield
    except GuerdonError as error:
        atomic.write_json(folder / "FAILED.json", {"error": str(error), "kind": type(error).__name__})
        raise


def _card(study: Study) -> dict[str, Any]:
    """What made a run, and what a reader must know of its rewards."""
    card: dict[str, Any] = {
        "command": provenance.command(),
        "started": provenance.now(),
        "seed": study.runner.seed,
        "task": study.task_name,
        "versions": provenance.versions(),
        "machine": provenance.machine(),
    }
    warnings = reward_warnings(study)
    return card | ({"warnings": warnings} if warnings else {})


def _is_complete(folder: Path) -> bool:
    """Whether a run ended there."""
    return (folder / "COMPLETE").is_file() and (folder / "config.yaml").is_file()


def _begun(folder: Path) -> bool:
    """Whether a run left something to go on from, or ended."""
    return (folder / "COMPLETE").is_file() or any((folder / "checkpoints").glob("step_*"))


def _recorded(folder: Path) -> bool:
    """Whether a run took a step there: one that failed or was killed before it leaves its place free."""
    metrics = folder / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0
