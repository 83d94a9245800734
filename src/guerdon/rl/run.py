"""`guerdon run`: one run in its own folder, with the record of what made it.

This module does not know studies of several runs.

    folder, summary = run(load(Study, path), resume=True)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from guerdon.compute import distributed
from guerdon.config.loading import holds, to_yaml
from guerdon.errors import ConfigError, GuerdonError
from guerdon.files import atomic, provenance
from guerdon.files.atomic import held
from guerdon.rl.checkpoint import latest_checkpoint
from guerdon.rl.loop import Loop
from guerdon.rl.reward_warnings import reward_warnings
from guerdon.settings.data import run_prompts
from guerdon.settings.study import Study


def run_folder(study: Study) -> Path:
    """Where a run writes: `runner.logger.log_path/experiment_name`."""
    return study.runner.logger.folder


def run(study: Study, *, resume: bool = False) -> tuple[Path, dict[str, Any]]:
    """Run to the end, or go on with a run that was cut off.

    A folder in which nothing was recorded yet, because the run that made it failed or was killed before its first
    step, is taken over.

    Returns:
        The run's folder and its summary.

    Raises:
        ConfigError: the folder is taken, or holds another configuration; or a language model has no prompts.
        GuerdonError: whatever stopped the run; it is also written to `FAILED.json`.
    """
    if study.text:
        run_prompts(study.data)
    learners = study.cluster.learners if study.engine == "ray" else distributed.launched()
    distributed.check_offload(study.policy, learners)
    folder = run_folder(study)
    if resume and (folder / "COMPLETE").is_file() and (folder / "config.yaml").is_file():
        return _run(study, folder, resume=True)  # there is nothing to write
    busy = f"{folder} is in use by another run; wait for its end, or choose another runner.logger.experiment_name"
    with held(folder, busy=busy):
        if study.engine == "ray" and study.cluster.learners > 1:
            from guerdon.engines.ray_learners import lead

            return lead(
                study.cluster,
                study.runner,
                lambda again: _run(study, folder, resume=resume or again),
                lambda: latest_checkpoint(folder / "checkpoints"),
            )
        found = distributed.led(lambda: _run(study, folder, resume=resume))
    assert found is not None, "the first learner leads"
    return found


def _run(study: Study, folder: Path, *, resume: bool) -> tuple[Path, dict[str, Any]]:
    """`run`, in a folder that no other process writes."""
    text = to_yaml(study)
    config = folder / "config.yaml"
    begun = (folder / "COMPLETE").is_file() or any((folder / "checkpoints").glob("step_*"))
    if config.exists():
        if not resume and (begun or _recorded(folder)):
            raise ConfigError(
                f"{folder} already holds a run; go on with it by --resume, or choose another "
                "runner.logger.experiment_name"
            )
        if begun and not holds(config, study):
            raise ConfigError(
                f"{folder} was started with another configuration ({config}); a run is resumed with the one it began "
                "with. Choose another runner.logger.experiment_name for the new one"
            )
        if (folder / "COMPLETE").is_file():
            return folder, json.loads((folder / "COMPLETE").read_bytes())
    atomic.write_text(config, text)
    (folder / "FAILED.json").unlink(missing_ok=True)
    try:
        loop = Loop(study, folder, resume=resume)  # may refuse: then there is no run
        if not begun or not (folder / "run.json").exists():
            atomic.write_json(folder / "run.json", _card(study))
        return folder, loop.run()
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


def _recorded(folder: Path) -> bool:
    """Whether a run took a step there: one that failed or was killed before it leaves its place free."""
    metrics = folder / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0
