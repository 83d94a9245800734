"""A training against the clock, for transformers' Trainer on either side: it needs no guerdon.

The learning rate follows the time and not the steps: it rises over a twentieth of the budget, then it falls to 0, where
the training ends.

    clock = Clocked(warm=2, budget=60.0)
    trainer.add_callback(clock)
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import TrainerCallback

RISE, LEAST = 0.05, 0.005


class Clocked(TrainerCallback):
    """Reads both clocks after every step.

    Args:
        warm: steps that are not timed.
        budget: core-seconds behind them; 0: as many steps as the trainer takes, at a constant rate.
    """

    def __init__(self, warm: int, budget: float) -> None:
        self.warm, self.budget = warm, budget
        self.marks: list[tuple[float, float]] = []
        self._rates: list[float] = []

    def spent(self) -> tuple[float, float]:
        """Seconds and core-seconds from the end of the warm-up to the last step."""
        if len(self.marks) < self.warm:
            return 0.0, 0.0
        (start, start_core), (end, end_core) = self.marks[self.warm - 1], self.marks[-1]
        return end - start, end_core - start_core

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """The rates that were asked for."""
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._set(optimizer)

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """A mark, the next rate, and the end."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.marks.append((time.perf_counter(), time.process_time()))
        control.should_save = control.should_evaluate = False
        self._set(optimizer)
        if self.budget and self.spent()[1] >= self.budget:
            control.should_training_stop = True

    def _set(self, optimizer: Any) -> None:
        if self.budget:
            share = self.spent()[1] / self.budget
            factor = max(min(share / RISE, (1 - share) / (1 - RISE)), LEAST)
            for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
                group["lr"] = factor * rate
