"""Fit a reward model of text offline: read solutions, train, write a folder with everything that scoring needs.

    runs/prm/method1_HE/       (or runs/prm itself, for data that `guerdon label` did not write)
      checkpoint-500/          a state to resume from
      final_checkpoint/        the model, to be named wherever one is asked for
      trainer_state.json       losses and validations
      metrics.json             the numbers at the end
      questions.json           hashes of the questions it was trained on, and of those held out

This module does not know how labels came about.

    result = train_text_model(study.train["prm"], study)
    load_text_model(str(result.folder))
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from guerdon.atomic import write_json
from guerdon.errors import ConfigError, DataError, boundary
from guerdon.models.text_load import FINAL
from guerdon.progress import log_line
from guerdon.settings.study import Study
from guerdon.settings.train_text import TextTrainSettings
from guerdon.train.text_data import (
    Lessons,
    TextData,
    make_lessons,
    one_class_warning,
    read_data,
    split_questions,
)
from guerdon.train.text_start import start_model, use_gpu, wait_for_gpu
from guerdon.train.text_trainer import RewardTrainer
from guerdon.train.trainer import newest_checkpoint

_FREE = {"save_dir", "resume", "log_every", "tensorboard", "wait_for_gpu", "keep_checkpoints"}  # may change on resume


class TextTrainResult(NamedTuple):
    """Where a trained reward model lies, and how good it was on held-out questions.

    Attributes:
        save_dir: the folder of the training; the model is its `final_checkpoint`.
        metrics: `loss` and quality on the held-out questions, None where undefined; counts; `seconds`.
    """

    save_dir: Path
    metrics: dict[str, Any]

    @property
    def folder(self) -> Path:
        """The model."""
        return self.save_dir / FINAL


def train_text_model(settings: TextTrainSettings, study: Study, *, resume: bool = False) -> TextTrainResult:
    """Train on the solutions of `data_path`, or of the study's `label` section.

    Args:
        settings: of `train`.
        study: says which policy to start from and which data was labelled, where the settings do not.
        resume: continue from the newest whole checkpoint, like `settings.resume`.

    Raises:
        DataError: no usable solution, or a loss that is not finite.
        ConfigError: resuming with other settings or data than the training started with.
        CheckpointError: the language model cannot be read.
    """
    data = read_data(settings, study.label)
    if data.left_out:
        log_line(f"left out rows without a rated step: {_counted(data.left_out)}")
    return fit_text_model(settings, study, data, resume=resume)


def fit_text_model(
    settings: TextTrainSettings, study: Study, data: TextData, *, resume: bool = False
) -> TextTrainResult:
    """Train on these solutions; otherwise as `train_text_model`."""
    started = time.perf_counter()
    torch.set_num_threads(study.runner.threads)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"train ({settings.type}) runs in one process; start it without torchrun")
    if settings.wait_for_gpu is not None:
        use_gpu(wait_for_gpu(settings.wait_for_gpu))
    folder = text_model_folder(settings, data)
    rows, held = split_questions(data.solutions, settings.val_split, settings.seed)
    _check_rewards(settings, data)
    with torch.random.fork_rng(devices=[]):
        model = start_model(settings, study.text_policy, separator=data.separator)
        train = make_lessons(model, [data.solutions[i] for i in rows], settings)
        val = make_lessons(model, [data.solutions[i] for i in held], settings)
        record = {
            "settings": settings.model_dump(mode="json", exclude=_FREE),
            "policy": settings.start(study.text_policy).model_dump(mode="json"),
            "data": {"train": train.digest(), "val": val.digest()},
        }
        resume = resume or settings.resume
        finished = _finished(folder, record) if resume else None
        if finished is not None:
            return TextTrainResult(folder, finished)
        for what, lessons in (("to train on", train), ("held out", val)):
            if lessons.counts:
                log_line(f"solutions {what}: {len(lessons)}; not used or cut: {_counted(lessons.counts)}")
        warning = one_class_warning(train, settings)
        if warning is not None:
            log_line(f"WARNING: {warning}")
        trainer = RewardTrainer(model, train, val, settings, folder)
        resumed_from = newest_checkpoint(folder) if resume else None
        if resumed_from is None:
            for old in folder.glob("checkpoint-*"):
                shutil.rmtree(old, ignore_errors=True)
            write_json(folder / "training.json", record | {"finished": False})
        trainer.train(resume_from_checkpoint=None if resumed_from is None else str(resumed_from))
        metrics = _metrics(trainer, train, val, data.left_out) | {"seconds": round(time.perf_counter() - started, 3)}
        metrics |= {} if warning is None else {"warnings": [warning]}
    if trainer.is_world_process_zero():
        model.write(folder / FINAL, training=_facts(settings, data, train, val, metrics))
        trainer.save_state()
        questions = {"train": sorted(set(train.questions)), "held_out": sorted(set(val.questions))}
        write_json(folder / "questions.json", questions)
        write_json(folder / "metrics.json", metrics)
        write_json(folder / "training.json", record | {"finished": True})
    return TextTrainResult(folder, metrics)


def text_model_folder(settings: TextTrainSettings, data: TextData) -> Path:
    """Where the training of these settings on this data goes."""
    return Path(settings.save_dir) / data.folder if data.folder else Path(settings.save_dir)


def _check_rewards(settings: TextTrainSettings, data: TextData) -> None:
    """Rewards that are asked for by name must be there."""
    asked = getattr(settings, "rewards", "ignore")
    told = asked == "target" or (asked == "weight" and "rewards" in settings.model_fields_set)
    if told and not any(reward is not None for s in data.solutions for reward in s.rewards):
        raise DataError(
            f"rewards: {asked} needs rewards of steps, and the data has none: label it with --reward HE or SE, or set "
            "rewards: ignore"
        )


def _finished(folder: Path, record: dict[str, Any]) -> dict[str, Any] | None:
    """Metrics of the training in `folder` if it is finished; refuse to continue another one than asked."""
    path = folder / "training.json"
    if not path.is_file():
        return None
    with boundary(DataError, f"{path} cannot be read"):
        before = json.loads(path.read_text(encoding="utf-8"))
        metrics: dict[str, Any] | None = None
        if before["finished"]:
            metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    if metrics is None and newest_checkpoint(folder) is None:
        return None  # it ended before there was anything to go on from
    changed = [
        f"{part}.{key}" for part in record for key in sorted(record[part].keys() | before.get(part, {}).keys())
        if before.get(part, {}).get(key) != record[part].get(key)
    ]  # fmt: skip
    if changed:
        raise ConfigError(
            f"cannot resume the training in {folder}: it was started with other {', '.join(changed)}; restore them, or "
            "train without resume"
        )
    return metrics


def _counted(counts: Mapping[str, int]) -> str:
    """Counts by reason, for a person."""
    return ", ".join(f"{n} {reason}" for reason, n in sorted(counts.items()))


def _metrics(trainer: RewardTrainer, train: Lessons, val: Lessons, rows: Mapping[str, int]) -> dict[str, Any]:
    history = trainer.state.log_history
    losses = [entry["loss"] for entry in history if "loss" in entry]
    held_out = trainer.quality() if len(val) else {"loss": None}
    return {
        **held_out,
        "train_loss": losses[-1] if losses else None,
        "steps": trainer.state.global_step,
        "head_steps": trainer.head_steps,
        "best_step": trainer.state.best_global_step if len(val) else None,
        "solutions": len(train),
        "val_solutions": len(val),
        "questions": len(set(train.questions)),
        "val_questions": len(set(val.questions)),
        "labels": int(sum((w > 0).sum() for w in train.weights)),
        **dict(zip(("labels_right", "labels_wrong"), train.classes(), strict=True)),
        "rows_left_out": dict(sorted(rows.items())),
        "left_out": dict(sorted(train.counts.items())),
        "val_left_out": dict(sorted(val.counts.items())),
    }


def _facts(
    settings: TextTrainSettings, data: TextData, train: Lessons, val: Lessons, metrics: dict[str, Any]
) -> dict[str, Any]:
    """What a model says about its training."""
    return {
        "data": {"train": train.digest(), "val": val.digest()},
        "method": data.method,
        "reward": data.reward,
        "labelers": list(data.labelers),
        "settings": settings.model_dump(mode="json"),
        "metrics": metrics,
    }
