"""The base of all offline training with transformers' `Trainer`: its loop, its checkpoints and its output folder.

A trainer works on the indices of examples. A training that was cut off resumes from its newest complete checkpoint
and ends with the same bytes as one that ran through (on a CPU); checkpoints are safetensors and are read with
`weights_only`.

    run = TrainingFolder("runs/rm", {"settings": {...}, "data_hash": "..."}, resume=True)
    if run.metrics is None:                     # not finished yet
        run.begin()
        trainer = ...                           # a BaseTrainer that writes to run.checkpoints
        run.train(trainer)
        run.finish({"loss": 0.1})
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.utils import SAFE_WEIGHTS_NAME

from guerdon.compute import distributed
from guerdon.compute.finite import load_weights, save_weights
from guerdon.compute.generators import small_seed
from guerdon.errors import ConfigError, DataError, NonFiniteError, boundary, naming
from guerdon.files.atomic import write_json
from guerdon.processes.progress import ProgressBar
from guerdon.settings.train import (
    ProgressTrainSettings,
    ResNetTrainSettings,
    SFTSettings,
    TextTrainSettings,
    VLMTrainSettings,
)
from guerdon.types import BoolArray, IntArray

COMPLETE = "complete"
_SHOWN = {
    "loss": "loss",
    "eval_loss": "held-out",
    "eval_first_error_f1": "F1",
    "eval_auroc": "AUROC",
    "eval_mae": "MAE",
}
_ACCELERATE = "ACCELERATE_TORCH_DEVICE"
FREE = {"save_dir", "resume", "log_every", "tensorboard", "device", "cpu_offload"}
"""Keys of a training that may be others when it is resumed."""

Settings = ResNetTrainSettings | ProgressTrainSettings | SFTSettings | TextTrainSettings | VLMTrainSettings


class TrainResult(NamedTuple):
    """Where a reward model that looks at episodes lies, and how good it was on held-out ones.

    Attributes:
        save_dir: pass it as `checkpoint_path`.
        metrics: `loss`, `accuracy` and `auroc` (or `mae`) of the stored model on the validation frames, None where
            undefined; of `calibrate`, where it was asked for; counts of frames and episodes; `seconds`.
    """

    save_dir: Path
    metrics: dict[str, Any]

    @property
    def folder(self) -> Path:
        """The model, where it is named."""
        return self.save_dir


class BalancedSampler(Sampler[int]):
    """All positive rows and a fresh draw of the others each epoch; a function of the seed and the epoch."""

    def __init__(self, positive_N: BoolArray, fail_success_ratio: float | None, seed: int) -> None:
        self.positive = positive_N
        self.ratio = fail_success_ratio
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose draw comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(balanced_counts(self.positive, self.ratio))

    def __iter__(self) -> Iterator[int]:
        return iter(epoch_order(self.positive, self.ratio, seed=self.seed, epoch=self.epoch).tolist())


def balanced_counts(positive_N: BoolArray, fail_success_ratio: float | None) -> tuple[int, int]:
    """Numbers of positive and other rows used per epoch."""
    positives = int(positive_N.sum())
    others = len(positive_N) - positives
    if fail_success_ratio is not None and positives:
        others = min(others, max(round(fail_success_ratio * positives), 1))
    return positives, others


def epoch_order(positive_N: BoolArray, fail_success_ratio: float | None, *, seed: int, epoch: int) -> IntArray:
    """Row indices of one epoch in random order: all positive rows and a fresh draw of the others.

    Args:
        positive_N: (N,) bool.
        fail_success_ratio: at most this many other rows for each positive one; None for all.
        seed: with `epoch`, fixes the draw and the order.
        epoch: counted from 0.
    """
    rng = np.random.default_rng([seed, epoch])
    _, others = balanced_counts(positive_N, fail_success_ratio)
    chosen = rng.choice(np.flatnonzero(~positive_N), others, replace=False)
    return rng.permutation(np.concatenate([np.flatnonzero(positive_N), chosen]).astype(np.int64))


class TrainingProgress(TrainerCallback):  # type: ignore[misc]
    """Shows the steps taken and the metrics logged last, and marks complete checkpoints.

    A checkpoint without the mark is never resumed from.
    """

    _progress: ProgressBar | None = None

    def __init__(self) -> None:
        self._metrics: dict[str, str] = {}

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint."""
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the bar."""
        if state.is_world_process_zero:
            self._progress, self._metrics = ProgressBar(state.max_steps, lines=5), {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Remember these metrics."""
        for name, shown in _SHOWN.items():
            if logs and name in logs:
                self._metrics[shown] = f"{shown} {float(logs[name]):.4f}"

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Advance the bar."""
        if self._progress is not None:
            self._progress.advance(state.global_step, "  ".join(self._metrics.values()))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the bar."""
        self.close()

    def close(self) -> None:
        """Close the bar, if there is one; `on_train_end` is not called after an error."""
        if self._progress is not None:
            self._progress.close()


class _Arguments(TrainingArguments):  # type: ignore[misc]
    @property
    def should_save(self) -> bool:
        """Only the first process writes."""
        return distributed.is_first()

    @property
    def place_model_on_device(self) -> bool:
        """False: shards are where they are to be."""
        return False


class BaseTrainer(Trainer):  # type: ignore[misc]
    """transformers' `Trainer` over indices of examples.

    The loss is the exact mean over a batch, however it is cut into forward passes: the sum of `loss_sum` divided by
    `weight`. A subclass defines these two, or overrides `training_step` and `quality`.

    Several processes (`guerdon.compute.distributed`) train as one: all of them draw the same batches, each computes
    some of the forward passes, and Trainer does not know of the others.

    Args:
        network: the module that is trained; `tensors()` returns its trained weights, `load_tensors(state)` restores
            them.
        settings: batch, learning rate and its schedule, logging, seed.
        checkpoints: folder for Trainer's checkpoints.
        rows: indices of the training examples.
        held: indices of the held-out examples; may be empty.
        total: gradient steps.
        every: gradient steps between evaluations and checkpoints; None: a tenth of `total`.
        device: where it runs.
        sampler: order of the training rows; None: shuffled in each epoch.
        collate: makes a batch of a list of indices; None: `{"rows": indices}`.
        callbacks: more callbacks.
        optimizers: optimiser and schedule; None: Trainer's AdamW.
        **arguments: `TrainingArguments` that differ from those here.
    """

    rate_key = "learning_rate"  # named in errors
    keeps_checkpoints = False  # their folder is removed at the end, so TensorBoard's folder is in its parent
    control: Any

    def __init__(
        self,
        network: nn.Module,
        settings: Settings,
        checkpoints: Path,
        rows: IntArray,
        held: IntArray,
        *,
        total: int,
        every: int | None,
        device: torch.device,
        sampler: BalancedSampler | None = None,
        collate: Callable[[list[int]], dict[str, Tensor]] | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        optimizers: tuple[Any, Any] = (None, None),
        **arguments: Any,
    ) -> None:
        self._sampler = sampler
        self._micro = getattr(settings, "micro_batch_size", None) or settings.batch_size
        found = [TrainingProgress(), *callbacks]
        if settings.tensorboard:
            found.append(TensorBoardCallback())
            folder = checkpoints if self.keeps_checkpoints else checkpoints.parent
            found[-1].logging_dir = str(folder / "tensorboard")
        every = min(every or max(1, total // 10), total)
        common = _arguments(settings, checkpoints, total, every, validated=len(held) > 0, device=device)
        with distributed.unnoticed() if distributed.peers() > 1 else nullcontext():
            with _accelerate_on(device):
                options = (_Arguments if distributed.peers() > 1 else TrainingArguments)(**(common | arguments))
            options._n_gpu = 1  # one device per process: several would each take a batch of this size
            if device.index:  # the property gives the first GPU, whatever accelerate has
                options.__dict__["_setup_devices"] = device
            super().__init__(
                model=network,
                args=options,
                data_collator=collate or (lambda indices: {"rows": torch.tensor(indices)}),
                train_dataset=rows.tolist(),
                eval_dataset=held.tolist() or None,
                callbacks=found,
                optimizers=optimizers,
            )
        self.remove_callback(PrinterCallback)

    def is_world_process_zero(self) -> bool:
        """Whether this is the process that writes."""
        first: bool = super().is_world_process_zero()
        return first and distributed.is_first()

    def create_optimizer(self, *args: Any, **options: Any) -> Any:
        """Trainer's own; it stores and loads the state of all processes as one."""
        new = self.optimizer is None
        optimizer = super().create_optimizer(*args, **options)
        if new:
            distributed.keeps_whole_state(optimizer)
        return optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return super()._get_train_sampler(train_dataset) if self._sampler is None else self._sampler

    def parts(self, rows: list[int]) -> list[list[int]]:
        """A batch in forward passes."""
        size = distributed.even(len(rows), self._micro)
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def loss_sum(self, model: nn.Module, rows: list[int]) -> Tensor:
        """Summed loss of some examples, with gradient; a scalar."""
        found: Tensor = model(rows)
        return found

    def weight(self, rows: list[int]) -> float:
        """What the summed loss of these examples is divided by."""
        raise NotImplementedError

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Any = None) -> Tensor:
        """Gradients of the mean loss of the batch, however it is cut into forward passes."""
        model.train()
        rows = inputs["rows"].tolist()
        weight = self.weight(rows)
        total = torch.zeros((), device=self.args.device)
        for part, counts in distributed.dealt(self.parts(rows)):
            loss = self.loss_sum(model, part) / weight
            self.accelerator.backward(loss if counts else loss * 0.0)
            total += loss.detach() * counts
        distributed.sum_gradients(model.parameters())
        return self.finite(distributed.total(total))

    def finite(self, loss: Tensor) -> Tensor:
        """The same loss.

        Raises:
            NonFiniteError: it is not finite.
        """
        if not torch.isfinite(loss):
            raise NonFiniteError(f"the training loss is {float(loss)}: lower {self.rate_key}")
        return loss

    @torch.no_grad()
    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Metrics of the held-out examples, named `eval_*`, without those that are undefined."""
        self.model.eval()
        metrics = {f"eval_{name}": value for name, value in self.quality().items() if value is not None}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def quality(self) -> dict[str, float | None]:
        """Metrics of the held-out examples; None where undefined."""
        total = weight = 0.0
        for inputs in self.get_eval_dataloader():
            for part, counts in distributed.dealt(self.parts(inputs["rows"].tolist())):
                total += float(self.loss_sum(self.model, part)) * counts
                weight += self.weight(part) * counts
        found = distributed.summed({"total": total, "weight": weight})
        return {"loss": found["total"] / found["weight"]}

    def summary(self) -> dict[str, Any]:
        """Last logged training loss, steps taken, and the step of the weights that were kept."""
        losses = [entry["loss"] for entry in self.state.log_history if "loss" in entry]
        return {
            "train_loss": losses[-1] if losses else None,
            "steps": self.state.global_step,
            "best_step": self.state.best_global_step if self.eval_dataset is not None else None,
        }

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        # Trainer's own refuses channels-last tensors, and adds its arguments as a pickle.
        sharded = distributed.peers() > 1
        tensors = self.model.tensors() if state_dict is None and (sharded or self.args.should_save) else state_dict
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_weights(tensors or {}, folder / SAFE_WEIGHTS_NAME)
        distributed.wait()  # the others look for the file

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.args.should_save and distributed.peers() > 1:
            self.optimizer.state_dict()  # all processes gather it
        super()._save_optimizer_and_scheduler(output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        if self.args.should_save or distributed.peers() == 1:
            super()._save_rng_state(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self.model.load_tensors(load_weights(Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME))

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)


@contextmanager
def _accelerate_on(device: torch.device) -> Iterator[None]:
    """Inside the block accelerate, which takes its device with the arguments of a training, takes this one."""
    if not device.index:
        yield
        return
    before = os.environ.get(_ACCELERATE)
    os.environ[_ACCELERATE] = str(device)
    try:
        yield
    finally:
        os.environ.pop(_ACCELERATE) if before is None else os.environ.update({_ACCELERATE: before})


def _arguments(
    settings: Settings, checkpoints: Path, total: int, every: int, *, validated: bool, device: torch.device
) -> dict[str, Any]:
    return {
        "output_dir": str(checkpoints),
        "max_steps": total,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": getattr(settings, "max_grad_norm", 1.0),
        "lr_scheduler_type": "constant_with_warmup" if settings.lr_scheduler == "constant" else settings.lr_scheduler,
        "warmup_steps": round(settings.warmup * total),
        "optim": "adamw_torch_fused",
        "use_cpu": device.type == "cpu",
        "eval_strategy": "steps" if validated else "no",
        "eval_steps": every,
        "save_steps": every,
        "save_total_limit": 2,
        "load_best_model_at_end": validated,
        "logging_steps": settings.log_every,
        "logging_nan_inf_filter": False,
        "report_to": [],
        "log_level": "error",
        "disable_tqdm": True,
        "seed": small_seed(settings.seed),
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
    }


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest completely written checkpoint in `folder`, or None."""
    marked = [f.parent for f in folder.glob(f"checkpoint-*/{COMPLETE}")]
    return max(marked, key=lambda path: int(path.name.split("-")[1]), default=None)


def joint_hash(hashes: str) -> str:
    """One hash of data sets, of their hashes with spaces between them; that of a single one is its own."""
    return hashlib.sha256(hashes.replace(" ", "\n").encode()).hexdigest() if " " in hashes else hashes


class TrainingFolder:
    """The output folder of one training: `training.json`, checkpoints while it runs, `metrics.json` at the end.

    Args:
        save_dir: the folder.
        record: settings and data that the training starts with, as JSON values; stored in `training.json`.
        resume: continue a training that was started with the same record.
        keep: the checkpoints lie in `save_dir` and stay, instead of in `save_dir/trainer` while it runs.

    Attributes:
        checkpoints: folder of Trainer's checkpoints.
        resume_from: the checkpoint to continue from, or None.
        metrics: those of a training that is finished already, else None.

    Raises:
        ConfigError: the folder holds a training, and `resume` is False; or that was started with another record.
        DataError: `training.json` or `metrics.json` cannot be read.
    """

    def __init__(self, save_dir: str | Path, record: dict[str, Any], *, resume: bool, keep: bool = False) -> None:
        self.save_dir, self.record, self._keep = Path(save_dir), record, keep
        self.checkpoints = self.save_dir if keep else self.save_dir / "trainer"
        newest = newest_checkpoint(self.checkpoints)
        self.resume_from = newest if resume else None
        self.metrics = self._finished(newest, resume)

    def _finished(self, newest: Path | None, resume: bool) -> dict[str, Any] | None:
        path = self.save_dir / "training.json"
        if not path.is_file():
            return None
        with boundary(DataError, f"{path} cannot be read"):
            before = json.loads(path.read_text(encoding="utf-8"))
            finished = before.pop("finished")
            metrics: dict[str, Any] | None = None
            if finished:
                metrics = json.loads((self.save_dir / "metrics.json").read_text(encoding="utf-8"))
        if metrics is None and newest is None:
            return None  # it ended before its first checkpoint
        if not resume:
            raise ConfigError(
                f"{self.save_dir} already holds a training; go on with it by --resume (a finished one stays as it is), "
                "or choose another save_dir"
            )
        old, new = _flat(before), _flat(self.record)
        changed = [
            name if name.startswith("data") else f"{name} {old.get(name)!r} -> {new.get(name)!r}"
            for name in sorted(old.keys() | new) if old.get(name) != new.get(name)
        ]  # fmt: skip
        if changed:
            raise ConfigError(
                f"cannot resume the training in {self.save_dir}: it was started with other {', '.join(changed)}; "
                "restore them, or choose another save_dir"
            )
        return None if metrics is None else {name: value for name, value in metrics.items() if name != "history"}

    def begin(self) -> None:
        """Remove the checkpoints of an earlier training, unless this one continues it."""
        if self.resume_from is None and distributed.is_first():
            for old in self.checkpoints.glob("checkpoint-*") if self._keep else [self.checkpoints]:
                shutil.rmtree(old, ignore_errors=True)
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            write_json(self.save_dir / "training.json", self.record | {"finished": False})

    def train(self, trainer: BaseTrainer) -> None:
        """Train to the end, from the newest checkpoint where there is one."""
        try:
            with naming(self.checkpoints):
                trainer.train(resume_from_checkpoint=None if self.resume_from is None else str(self.resume_from))
        finally:
            for callback in trainer.callback_handler.callbacks:
                if isinstance(callback, TrainingProgress):
                    callback.close()

    def finish(self, metrics: dict[str, Any]) -> None:
        """Write the metrics and mark the training as finished."""
        write_json(self.save_dir / "metrics.json", metrics)
        write_json(self.save_dir / "training.json", self.record | {"finished": True})
        if not self._keep:
            shutil.rmtree(self.checkpoints, ignore_errors=True)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Values of a record by `part.key`."""
    return {
        f"{part}.{key}" if key else part: value
        for part, values in record.items()
        for key, value in (values.items() if isinstance(values, dict) else [("", values)])
    }
