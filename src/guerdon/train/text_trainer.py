"""transformers' `Trainer` for reward models of text: exact weighted means, a head first, weights stored by the model.

It knows lessons (token ids, targets, weights), not where they come from; its checkpoints are read back with
`weights_only`, and a training that was cut off ends with the same bytes as one that was not.

    trainer = RewardTrainer(model, train_lessons, val_lessons, settings, folder)
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.utils import SAFE_WEIGHTS_NAME

from guerdon.errors import ConfigError, DataError, NonFiniteError
from guerdon.finite import load_weights, save_weights
from guerdon.models.text_inputs import buckets
from guerdon.models.text_losses import bce_terms, pair_terms, pairs
from guerdon.models.text_model import TextRewardModel
from guerdon.settings.train_text import OutcomeTrainSettings, StepwiseTrainSettings, TextTrainSettings
from guerdon.train.text_data import Lessons
from guerdon.train.text_metrics import outcome_quality, step_quality
from guerdon.train.trainer import common_arguments
from guerdon.train.watch import Watch

PAIRED = ("bradley_terry", "dpo")
Item = tuple[int, ...]  # one lesson, or a right and a wrong one


def items_of(lessons: Lessons, settings: TextTrainSettings) -> list[Item]:
    """What the loss is a mean over: lessons, or pairs of a right and a wrong one of the same question."""
    if getattr(settings, "loss", None) in PAIRED:
        right = [bool(t[0] >= 0.5) for t in lessons.targets]
        return [tuple(pair) for pair in pairs(lessons.questions, right, settings.seed)]
    return [(i,) for i in range(len(lessons))]


class _Trained(nn.Module):
    """What Trainer sees: the weights, and nothing to call."""

    def __init__(self, model: TextRewardModel) -> None:
        super().__init__()
        self.language_model = model.policy.base.model
        self.head = model.head


class _Rows(Dataset[int]):
    """A data set of indices of items."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> int:
        return i


class RewardTrainer(Trainer):  # type: ignore[misc]
    """Trainer over indices of items.

    Args:
        model: what is trained, in place.
        train: lessons to learn from.
        val: lessons held out; may be empty.
        settings: everything the user chose.
        folder: receives Trainer's checkpoints; TensorBoard's events go to `tensorboard/` in it.

    Raises:
        DataError: there is nothing to learn from: no lesson, or no pair.
    """

    def __init__(
        self, model: TextRewardModel, train: Lessons, val: Lessons, settings: TextTrainSettings, folder: Path
    ) -> None:
        self._items, self._val_items = items_of(train, settings), items_of(val, settings)
        if not self._items:
            raise DataError(_nothing(train, settings))
        self._reward, self._lessons, self._val, self._chosen = model, train, val, settings
        self.total_steps, self.head_steps = planned_steps(settings, len(self._items))
        every = min(settings.save_steps or max(1, self.total_steps // 10), self.total_steps)
        device = model.policy.device
        callbacks: list[TrainerCallback] = [Watch()]
        if settings.tensorboard:
            callbacks.append(TensorBoardCallback())
            callbacks[-1].logging_dir = str(folder / "tensorboard")
        optimizer = _optimizer(model, settings)
        arguments = TrainingArguments(
            **common_arguments(
                settings, folder, total=self.total_steps, every=every, validated=bool(self._val_items), device=device
            )
            | {
                "learning_rate": settings.rate,
                "save_total_limit": settings.keep_checkpoints,
                "max_grad_norm": settings.max_grad_norm,
                "bf16": False,  # the model computes in bfloat16 by itself
                "disable_tqdm": True,
                "dataloader_pin_memory": False,
            }
        )
        arguments._n_gpu = 1  # one process, one device: several would each take a batch of this size
        super().__init__(
            model=_Trained(model),
            args=arguments,
            data_collator=lambda rows: {"rows": torch.tensor(rows)},
            train_dataset=_Rows(len(self._items)),
            eval_dataset=_Rows(len(self._val_items)) if self._val_items else None,
            optimizers=(optimizer, _schedule(optimizer, settings, self.total_steps, self.head_steps)),
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)

    control: Any

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Any = None) -> Tensor:
        """Gradients of the weighted mean over the batch, however it is cut into forward passes."""
        items = [self._items[i] for i in inputs["rows"].tolist()]
        body = self.state.global_step >= self.head_steps
        weight = sum(item_weight(self._lessons, item) for item in items)
        total = torch.zeros((), device=self.args.device)
        longest = [max((self._lessons.readings[i] for i in item), key=len) for item in items]
        for group in buckets(longest, self._chosen.micro_batch_size or len(items)):
            loss = self._sum([items[g] for g in group], body=body) / weight
            self.accelerator.backward(loss)
            total += loss.detach()
        if not torch.isfinite(total):
            raise NonFiniteError(f"the training loss is {float(total)}: lower learning_rate")
        return total

    def _sum(self, items: Sequence[Item], *, body: bool) -> Tensor:
        columns = [[item[c] for item in items] for c in range(len(items[0]))]
        rows = [i for column in columns for i in column]
        logits = self._reward.lesson_logits([self._lessons.readings[i] for i in rows], body=body)
        return loss_sum(logits, self._lessons, columns)

    @torch.no_grad()
    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Loss and quality on the held-out questions."""
        metrics = {f"eval_{name}": value for name, value in self.quality().items() if value is not None}
        self.log(metrics)
        control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.control = control
        return metrics

    @torch.no_grad()
    def quality(self) -> dict[str, float | None]:
        """What is known of the held-out questions; None where a number is undefined."""
        val = self._val
        logits: list[Tensor] = [torch.zeros(0)] * len(val)
        for group in buckets(val.readings, self._chosen.micro_batch_size or self._chosen.batch_size):
            readings = [val.readings[i] for i in group]
            found = self._reward.lesson_logits(readings).float().cpu()
            for i, part in zip(group, torch.split(found, [len(val.targets[i]) for i in group]), strict=True):
                logits[i] = part
        loss = weight = 0.0
        for item in self._val_items:
            loss += float(loss_sum(torch.cat([logits[i] for i in item]), val, [[i] for i in item]))
            weight += item_weight(val, item)
        numbers: dict[str, float | None] = {"loss": loss / weight if weight else None}
        if self._reward.per_step and self._chosen.type != "implicit":
            probabilities = [torch.sigmoid(part).numpy() for part in logits]
            threshold = self._reward.card.threshold or 0.5
            return numbers | step_quality(probabilities, val.targets, val.weights, threshold)
        values = torch.cat(logits).numpy() if logits else np.zeros(0, dtype=np.float32)
        right = np.array([t[0] >= 0.5 for t in val.targets], dtype=np.bool_)
        return numbers | outcome_quality(values, right, val.questions)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_weights(self._reward.tensors(), folder / SAFE_WEIGHTS_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self._reward.load_tensors(load_weights(Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME))

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)


def item_weight(lessons: Lessons, item: Item) -> float:
    """What an item counts in the mean: the weights of its steps, 1 for a solution or a pair."""
    return 1.0 if len(item) == 2 else float(lessons.weights[item[0]].sum())


def loss_sum(logits: Tensor, lessons: Lessons, columns: Sequence[Sequence[int]]) -> Tensor:
    """Summed weighted loss of some items.

    Args:
        logits: of the first lesson of each item, one after the other; of pairs those of the second behind them.
        lessons: what they are about.
        columns: indices of the first lessons (and of the second).
    """
    if len(columns) == 2:
        right, wrong = logits.chunk(2)
        return pair_terms(right, wrong).sum()
    targets = torch.from_numpy(np.concatenate([lessons.targets[i] for i in columns[0]])).to(logits.device)
    weights = torch.from_numpy(np.concatenate([lessons.weights[i] for i in columns[0]])).to(logits.device)
    return (weights * bce_terms(logits, targets)).sum()


def planned_steps(settings: TextTrainSettings, items: int) -> tuple[int, int]:
    """Gradient steps in all, and how many of them come first and train the head alone.

    Raises:
        ConfigError: nothing would be left for the rest.
    """
    per_epoch = math.ceil(items / settings.batch_size)
    head = 0
    if isinstance(settings, StepwiseTrainSettings | OutcomeTrainSettings):
        head = math.ceil(settings.head_epochs * per_epoch)
    total = settings.max_steps or head + math.ceil(settings.epochs * per_epoch)
    if head and total <= head:
        raise ConfigError(
            f"head_epochs takes {head} gradient steps, max_steps allows {total}: nothing else would learn"
        )
    return total, head


def _optimizer(model: TextRewardModel, settings: TextTrainSettings) -> torch.optim.AdamW:
    """AdamW over matrices with weight decay and vectors without, the head apart."""
    groups = []
    named = model.named_parameters()
    for head in (False, True):
        rate = getattr(settings, "head_rate", settings.rate) if head else settings.rate
        for decays in (True, False):
            chosen = [p for n, p in named.items() if n.startswith("head.") == head and (p.ndim > 1) == decays]
            if chosen:
                decay = settings.weight_decay if decays else 0.0
                groups.append({"params": chosen, "lr": rate, "weight_decay": decay, "head": head})
    return torch.optim.AdamW(groups, fused=True)


def _schedule(
    optimizer: torch.optim.Optimizer, settings: TextTrainSettings, total: int, head_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Warm-up and decay over the steps in which everything learns; before them the head's rate is constant."""
    rest = total - head_steps
    rising = round(settings.warmup * rest)

    def factor(head: bool) -> Callable[[int], float]:
        def at(step: int) -> float:
            done = step - head_steps
            if done < 0:
                return 1.0 if head else 0.0
            if done < rising:
                return (done + 1) / (rising + 1)
            share = (done - rising) / max(1, rest - rising)
            return {"constant": 1.0, "linear": 1.0 - share, "cosine": 0.5 + 0.5 * math.cos(math.pi * share)}[
                settings.lr_scheduler
            ]

        return at

    factors = [factor(bool(group["head"])) for group in optimizer.param_groups]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factors)


def _nothing(lessons: Lessons, settings: TextTrainSettings) -> str:
    left = ", ".join(f"{n} {why}" for why, n in sorted(lessons.counts.items())) or "none was left out"
    if len(lessons):
        return (
            f"none of {len(lessons)} training solutions pairs a right with a wrong one of the same question, which "
            f"loss {getattr(settings, 'loss', '')} needs ({left})"
        )
    return f"there is no solution left to train {settings.type} on ({left})"
