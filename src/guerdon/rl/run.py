"""`guerdon run`: one run in its own folder, with the record of what made it; a run that goes on, also beyond its end.

A run goes on with the configuration that it began with, but for the keys in `LATER`, which change nothing that it has
done. This module does not know studies of several runs.

    folder, summary = run(load(Study, path), resume=True)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from guerdon.collect.agents import check_agent_here
from guerdon.compute import distributed
from guerdon.config.loading import ABSENT, differences, to_yaml
from guerdon.config.modules import MODULES_FOLDER, also_in
from guerdon.config.tree import describe, read_yaml
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
from guerdon.settings.runner import RunnerSettings
from guerdon.settings.study import Study

RAY_LEARNERS = "guerdon.engines.ray_learners:lead"
_INTERVALS = ("total_steps", "schedule_steps", "eval_every", "eval_episodes", "checkpoint_every", "keep_checkpoints")
_SHOWN = ("film_every", "film_frames", "save_video", "video_share", "video_every", "best_episodes")
LATER = tuple(f"runner.{key}" for key in (*_INTERVALS, *_SHOWN))
"""Keys that may change while a run goes on."""
_MOST_SAID = 3  # changes that a message names


def run_folder(study: Study) -> Path:
    """Where a run writes: `runner.logger.log_path/experiment_name`."""
    return study.runner.logger.folder


def run(
    study: Study,
    *,
    resume: bool = False,
    profile: int = 0,
    around: Callable[[Path], AbstractContextManager[Any]] = nullcontext,
) -> tuple[Path, dict[str, Any]]:
    """Run to the end, go on with a run that was cut off, or with a complete one to a larger `runner.total_steps`.

    A folder in which nothing was recorded yet, because the run that made it failed or was killed before its first
    step, is taken over.

    Args:
        study: the configuration.
        resume: go on from the newest checkpoint.
        profile: iterations to record (`rl/profile.py`); 0: none.
        around: called with the folder once nothing was refused; the run takes its steps inside what it returns.

    Returns:
        The run's folder and its summary.

    Raises:
        ConfigError: the folder is taken, or holds a run with another past; or a language model has no prompts.
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
    kept = resume and _at_end(study, folder)  # and nothing of it is written
    with nullcontext() if kept else held(folder, busy=busy):
        _check_folder(study, folder, resume=resume)
        study = continued(study)
        if _at_end(study, folder):
            if profile:
                log_line(f"no profile: {folder} is complete; choose another runner.logger.experiment_name")
            return folder, json.loads((folder / "COMPLETE").read_bytes())
        if not _begun(folder):
            atomic.write_text(folder / "config.yaml", to_yaml(study))
        (folder / "FAILED.json").unlink(missing_ok=True)
        modules = modules_of(folder) if resume else None
        if study.engine == "local" or learners == 1:
            with _failure_noted(folder), also_in(modules):
                loop = _loop(study, folder, resume=resume, profile=profile)
            with around(folder), _failure_noted(folder), also_in(modules):
                return folder, loop.run()
        with around(folder), _failure_noted(folder), also_in(modules):
            summary = loaded(RAY_LEARNERS)(
                study.cluster,
                study.runner,
                lambda again: _loop(study, folder, resume=resume or again, profile=profile).run(),
                lambda: latest_checkpoint(folder / "checkpoints"),
            )
            return folder, summary


def modules_of(folder: Path) -> str | None:
    """Where the command was started that began a run: modules of the user lie there. None: a run does not say."""
    card = folder / "run.json"
    written = json.loads(card.read_bytes()) if card.is_file() else {}
    found = written.get("modules")
    return found if isinstance(found, str) and Path(found).is_dir() else None


def _check_folder(study: Study, folder: Path, *, resume: bool) -> None:
    """Refuse a folder with a run that is not to be resumed."""
    if resume or not (folder / "config.yaml").exists() or not (_begun(folder) or _recorded(folder)):
        return
    longer = 2 * _planned(folder).total_steps
    schedule = f" runner.schedule_steps={longer}" if study.schedules else ""
    raise ConfigError(
        f"{folder} already holds a run; go on with it by --resume, to a larger length by --resume "
        f"runner.total_steps={longer}{schedule}, or choose another runner.logger.experiment_name"
    )


def continued(study: Study) -> Study:
    """The configuration with which the run in its folder goes on; where there is none, as it is.

    Schedules go over what they began with, unless `runner.schedule_steps` is given.

    Raises:
        ConfigError: the run has another past, no checkpoint is left, or the learning rate would be 0.
    """
    folder = run_folder(study)
    config = folder / "config.yaml"
    if not config.exists() or not _begun(folder):
        return study
    _check_past(study, config)
    runner, before = study.runner, _planned(folder)
    length = before.schedule_length
    if runner.total_steps != before.total_steps:
        _check_steps(folder, runner.total_steps)
    if not study.schedules or runner.schedule_steps is not None or length == runner.total_steps:
        return study
    study = study.model_copy(update={"runner": runner.model_copy(update={"schedule_steps": length})})
    study.check_rate()
    if runner.total_steps > length:
        log_line(
            f"{', '.join(study.schedules)}: as it was at step {length} from there on, where the run began with that "
            f"length; runner.schedule_steps={runner.total_steps} goes on changing it"
        )
    return study


def _check_past(study: Study, config: Path) -> None:
    """Refuse a change of what decided the past of a run."""
    changed = {key: values for key, values in differences(config, study).items() if key not in LATER}
    if not changed:
        return
    said = [f"{key} is {_shown(here)}, and was {_shown(before)}" for key, (before, here) in changed.items()]
    raise ConfigError(
        f"{'; '.join(said[:_MOST_SAID])}: {config.parent} was started with another configuration, and a run goes on "
        f"with the one it began with, but for {', '.join(LATER)}. Choose another runner.logger.experiment_name for the "
        "new one",
        key=next(iter(changed)),
    )


def _shown(value: Any) -> str:
    return ABSENT if value == ABSENT else describe(value)


def _check_steps(folder: Path, steps: int) -> None:
    """Refuse a length that a run is beyond, and a complete run that kept no checkpoint."""
    checkpoints = sorted((folder / "checkpoints").glob("step_*"))
    if not checkpoints:
        raise ConfigError.about(
            "runner.total_steps",
            f": {folder} is complete and kept no checkpoint (runner.keep_checkpoints 0), so that it cannot go on; "
            f"start another run from its policy: policy.checkpoint={folder}/policy",
        )
    done = int(checkpoints[-1].name.removeprefix("step_"))
    if steps < done:
        raise ConfigError.about("runner.total_steps", f"{steps}: {folder} has taken {done} steps already")


def _loop(study: Study, folder: Path, *, resume: bool, profile: int) -> Loop:
    """The loop of a run, and the record of what made it: of a run that is refused there is none."""
    loop = Loop(study, folder, resume=resume, profile=profile)
    if resume:
        atomic.write_text(folder / "config.yaml", to_yaml(study))
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
        "modules": os.environ.get(MODULES_FOLDER),
    }
    warnings = reward_warnings(study)
    return card | ({"warnings": warnings} if warnings else {})


def _at_end(study: Study, folder: Path) -> bool:
    """Whether a run ended there that is as long as this one."""
    if not (folder / "COMPLETE").is_file() or not (folder / "config.yaml").is_file():
        return False
    return study.runner.total_steps <= _planned(folder).total_steps


def _planned(folder: Path) -> RunnerSettings:
    """The lengths that a run was last started with, from the section `runner` of its configuration."""
    given = read_yaml(folder / "config.yaml").data.get("runner") or {}
    return RunnerSettings(**{key: given[key] for key in ("total_steps", "schedule_steps") if key in given})


def _begun(folder: Path) -> bool:
    """Whether a run left something to go on from, or ended."""
    return (folder / "COMPLETE").is_file() or any((folder / "checkpoints").glob("step_*"))


def _recorded(folder: Path) -> bool:
    """Whether a run took a step there: one that failed or was killed before it leaves its place free."""
    metrics = folder / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0
