"""Trainer of reward models of text: the loss over steps, solutions or pairs, the schedule, the held-out quality.

trainer = RewardTrainer(model, train, val, settings, folder)
trainer.quality()["auroc"]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.compute.schedules import scheduled
from guerdon.errors import ConfigError
from guerdon.models.images.quality import auroc
from guerdon.models.text.text_inputs import buckets
from guerdon.models.text.text_losses import bce_terms, pair_terms
from guerdon.models.text.text_model import TextRewardModel
from guerdon.settings.train import TextTrainSettings
from guerdon.train.lessons import Item, Lessons, items_to_train
from guerdon.train.trainer import BaseTrainer
from guerdon.types import BoolArray, FloatArray


class _Weights(nn.Module):
    """The weights of a reward model, for Trainer; it is never called."""

    def __init__(self, model: TextRewardModel) -> None:
        super().__init__()
        self.language_model = model.policy.base.model
        self.head = model.head
        self.tensors, self.load_tensors = model.tensors, model.load_tensors


class RewardTrainer(BaseTrainer):
    """Trainer over indices of items; the loss is a weighted mean over steps, solutions or pairs.

    Args:
        model: what is trained, in place.
        train: lessons to train on.
        val: lessons held out; may be empty.
        settings: everything the user chose.
        folder: receives Trainer's checkpoints; TensorBoard's events go to `tensorboard/` in it.

    Raises:
        DataError: there is nothing to train on: no lesson, or no pair.
    """

    keeps_checkpoints = True

    def __init__(
        self, model: TextRewardModel, train: Lessons, val: Lessons, settings: TextTrainSettings, folder: Path
    ) -> None:
        self._items, self._val_items = items_to_train(train, settings), val.items_for(settings)
        self._reward, self._lessons, self._val = model, train, val
        self._times_P_K = (
            None if settings.members == 1 else resampled(len(self._items), settings.members, settings.seed)
        )
        self._tokens = model.policy.base.tokens_per_pass
        total, self.head_steps = planned_steps(settings, len(self._items))
        optimizer = _optimizer(model, settings)
        distributed.keeps_whole_state(optimizer)
        super().__init__(
            _Weights(model),
            settings,
            folder,
            np.arange(len(self._items)),
            np.arange(len(self._val_items)),
            total=total,
            every=settings.save_steps,
            device=model.policy.device,
            optimizers=(optimizer, _schedule(optimizer, settings, total, self.head_steps)),
            learning_rate=settings.rate,
            save_total_limit=settings.keep_checkpoints,
        )

    def parts(self, rows: list[int]) -> list[list[int]]:
        """A batch in forward passes of like length."""
        longest = [max((self._lessons.readings[i] for i in self._items[row]), key=len) for row in rows]
        size, each = distributed.even(len(rows), self._micro), max(len(self._items[row]) for row in rows)
        return [[rows[k] for k in group] for group in buckets(longest, size, tokens=self._tokens, each=each)]

    def weight(self, rows: list[int]) -> float:
        """Weights of all steps, or the number of solutions or pairs."""
        return self.over_members([item_weight(self._lessons, self._items[row]) for row in rows], rows)

    def over_members(self, weights: Sequence[float], rows: list[int]) -> float:
        """Sum of the weights of items, a mean over members and their resamples; 1 where no member has any of them."""
        if self._times_P_K is None:
            return sum(weights)
        return float((torch.tensor(weights)[:, None] * self._times_P_K[rows]).sum()) / self._times_P_K.shape[1] or 1.0

    def loss_sum(self, model: nn.Module, rows: list[int]) -> Tensor:
        """Summed weighted loss of some items; while only the head is trained, without gradients below it."""
        columns = [list(column) for column in zip(*(self._items[row] for row in rows), strict=True)]
        readings = [self._lessons.readings[i] for column in columns for i in column]
        body = self.state.global_step >= self.head_steps
        times = None if self._times_P_K is None else self._times_P_K[rows]
        return loss_sum(self._reward.lesson_logits(readings, body=body), self._lessons, columns, times)

    @torch.no_grad()
    def quality(self) -> dict[str, float | None]:
        """Loss and quality on the held-out questions; None where undefined."""
        lessons, logits = self._val, self._val_logits()
        loss = weight = 0.0
        for item in self._val_items:
            columns = [[i] for i in item]  # one lesson, or a right and a wrong one
            loss += float(loss_sum(torch.cat([logits[i] for i in item]), lessons, columns))
            weight += item_weight(lessons, item)
        numbers: dict[str, float | None] = {"loss": loss / weight if weight else None}
        if not self._reward.learns_outcomes:
            probabilities = [self._reward.combined(part.numpy())[0] for part in logits]
            threshold = self._reward.card.threshold or 0.5
            return numbers | step_quality(probabilities, lessons.targets, lessons.weights, threshold)
        scores = torch.cat(logits).numpy() if logits else np.zeros(0, dtype=np.float32)  # only their order counts
        if self._times_P_K is not None:  # there are several members
            scores = self._reward.combined(scores)[0]
        right = np.array([t[0] >= 0.5 for t in lessons.targets], dtype=np.bool_)
        return numbers | outcome_quality(scores, right, lessons.questions)

    def _val_logits(self) -> list[Tensor]:
        """The logits of each held-out lesson; several processes share the work."""
        val = self._val
        counts_of = [len(targets) for targets in val.targets]
        logits: list[Tensor] = [torch.zeros(0)] * len(val)
        for group, counts in distributed.dealt(buckets(val.readings, self._micro, tokens=self._tokens)):
            found = self._reward.lesson_logits([val.readings[i] for i in group]).float().cpu()
            if counts:
                for i, part in zip(group, torch.split(found, [counts_of[i] for i in group]), strict=True):
                    logits[i] = part
        if distributed.peers() == 1:
            return logits
        wide = () if self._times_P_K is None else (len(self._reward.card.outputs),)
        for i, count in enumerate(counts_of):
            if not len(logits[i]):  # another process computed it
                logits[i] = torch.zeros(count, *wide)
        return list(torch.split(distributed.total(torch.cat(logits)), counts_of))

    def summary(self) -> dict[str, Any]:
        """Also `head_steps`, in which only the head was trained."""
        found = super().summary()
        best = found.pop("best_step")
        return found | {"head_steps": self.head_steps, "best_step": best}


def item_weight(lessons: Lessons, item: Item) -> float:
    """Weight of an item in the mean: the weights of its steps, 1 for a solution or a pair."""
    return 1.0 if len(item) == 2 else float(lessons.weights[item[0]].sum())


def resampled(items: int, members: int, seed: int) -> Tensor:
    """(P, K) how often each member sees each item: a bootstrap with Poisson counts (Oza and Russell 2001)."""
    return torch.from_numpy(np.random.default_rng(seed).poisson(1.0, (items, members))).float()


def loss_sum(
    logits: Tensor, lessons: Lessons, columns: Sequence[Sequence[int]], times_P_K: Tensor | None = None
) -> Tensor:
    """Summed weighted loss of some items, of members the mean.

    Args:
        logits: of the first lesson of each item, one after the other; of pairs those of the second behind them. Of
            members (M, K).
        lessons: what they are about.
        columns: indices of the first lessons (and of the second).
        times_P_K: weights of the items for each member; None: there is one.
    """
    if len(columns) == 2:
        right, wrong = logits.chunk(2)
        terms = pair_terms(right, wrong)
    else:
        targets = torch.from_numpy(np.concatenate([lessons.targets[i] for i in columns[0]])).to(logits.device)
        weights = torch.from_numpy(np.concatenate([lessons.weights[i] for i in columns[0]])).to(logits.device)
        if logits.ndim == 2:
            targets, weights = targets[:, None].expand_as(logits), weights[:, None]
        terms = weights * bce_terms(logits, targets)
    if times_P_K is not None:
        sizes = [1 if len(columns) == 2 else len(lessons.targets[i]) for i in columns[0]]
        terms = terms * times_P_K.repeat_interleave(torch.tensor(sizes), dim=0).to(terms)
    return terms.sum() / (terms.shape[1] if terms.ndim == 2 else 1)


def planned_steps(settings: TextTrainSettings, items: int) -> tuple[int, int]:
    """Gradient steps in all, and how many of them come first and train the head alone.

    Raises:
        ConfigError: nothing would be left for the rest.
    """
    per_epoch = math.ceil(items / settings.batch_size)
    head = math.ceil(getattr(settings, "head_epochs", 0.0) * per_epoch)
    total = settings.max_steps or head + math.ceil(settings.epochs * per_epoch)
    if head and total <= head:
        raise ConfigError(
            f"head_epochs takes {head} gradient steps, max_steps allows {total}: nothing else would be trained",
            key="head_epochs",
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
    """Warm-up and decay over the steps in which everything is trained; before them the head's rate is constant."""
    rest = total - head_steps
    rising = round(settings.warmup * rest)

    def factor(head: bool) -> Callable[[int], float]:
        def at(step: int) -> float:
            done = step - head_steps
            if done < 0:
                return 1.0 if head else 0.0
            if done < rising:
                return (done + 1) / (rising + 1)
            return scheduled(1.0, settings.lr_scheduler, (done - rising) / max(1, rest - rising))

        return at

    factors = [factor(bool(group["head"])) for group in optimizer.param_groups]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factors)


# metrics


def step_quality(
    probabilities: Sequence[FloatArray], targets: Sequence[FloatArray], weights: Sequence[FloatArray], threshold: float
) -> dict[str, float | None]:
    """AUROC and accuracy of single steps, and how well the first wrong step is found.

    As in ProcessBench, F1 is the harmonic mean of two accuracies: of solutions with an error, how often exactly its
    step is found; of solutions without one, how often none is. A step with a target below one half is wrong. Solutions
    whose first error is hidden by a step without a label are left out of it.

    Args:
        probabilities: (S,) of each solution.
        targets: (S,) of each solution.
        weights: (S,) of each solution; 0 where there is no label.
        threshold: a step with a smaller probability counts as wrong.
    """
    p, t, w = (np.concatenate(list(parts)) if parts else np.zeros(0) for parts in (probabilities, targets, weights))
    known = w > 0
    right = t[known] >= 0.5
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for p_S, t_S, w_S in zip(probabilities, targets, weights, strict=True):
        first = _first((t_S < 0.5) & (w_S > 0))
        before = w_S[:first] if first >= 0 else w_S
        if (before > 0).all():
            hits[first >= 0].append(_first(p_S < threshold) == first)
    erroneous, correct = (float(np.mean(h)) if h else None for h in (hits[True], hits[False]))
    return {
        "step_auroc": auroc(p[known], right),
        "step_accuracy": float(((p[known] >= threshold) == right).mean()) if known.any() else None,
        "accuracy_erroneous": erroneous,
        "accuracy_correct": correct,
        "first_error_f1": _harmonic(erroneous, correct),
    }


def _first(found_S: BoolArray) -> int:
    """The place of the first True, -1 where there is none."""
    return int(found_S.argmax()) if found_S.any() else -1


def outcome_quality(values_N: FloatArray, right_N: BoolArray, questions: Sequence[str]) -> dict[str, float | None]:
    """AUROC of whole solutions, and how often a right solution beats a wrong one of the same question (ties half)."""
    groups: dict[str, list[int]] = {}
    for i, question in enumerate(questions):
        groups.setdefault(question, []).append(i)
    won = pairs = 0.0
    for rows in groups.values():
        good = values_N[[i for i in rows if right_N[i]]]
        bad = values_N[[i for i in rows if not right_N[i]]]
        difference = good[:, None] - bad[None, :]
        won += float((difference > 0).sum() + 0.5 * (difference == 0).sum())
        pairs += difference.size
    return {
        "auroc": auroc(values_N, right_N) if len(values_N) else None,
        "pair_accuracy": won / pairs if pairs else None,
    }


def _harmonic(a: float | None, b: float | None) -> float | None:
    """2ab / (a + b), 0 where both are 0; None where one is unknown."""
    if a is None or b is None:
        return None
    return 2 * a * b / (a + b) if a + b else 0.0
