"""What transformers' `Trainer` tells while it trains, and how its checkpoints are marked as whole.

This module does not know what is trained.

    Trainer(..., callbacks=[Watch()])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from guerdon.progress import ProgressBar

COMPLETE = "complete"
_SHOWN = (("loss", "loss"), ("eval_loss", "held-out"), ("eval_first_error_f1", "F1"))


class MarkComplete(TrainerCallback):  # type: ignore[misc]
    """Mark a checkpoint once everything in it is written: a half-written one is never resumed."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint is whole."""
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()


class Watch(MarkComplete):
    """Also tell the person watching how far it is, and the numbers that were logged last."""

    _progress: ProgressBar | None = None

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A bar begins."""
        self._progress, self._said = ProgressBar(state.max_steps, lines=5), {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """These numbers are shown from now on."""
        for name, shown in _SHOWN:
            if logs and name in logs:
                self._said[shown] = f"{shown} {float(logs[name]):.4f}"

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One step further."""
        if self._progress is not None and state.is_world_process_zero:
            self._progress.advance(state.global_step, "  ".join(self._said.values()))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The bar ends."""
        if self._progress is not None:
            self._progress.close()
