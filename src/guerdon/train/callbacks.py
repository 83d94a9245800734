"""Callbacks of transformers' `Trainer`: a progress bar, and the mark of a checkpoint that was written completely."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from guerdon.progress import ProgressBar

COMPLETE = "complete"
_SHOWN = {
    "loss": "loss",
    "eval_loss": "held-out",
    "eval_first_error_f1": "F1",
    "eval_auroc": "AUROC",
    "eval_mae": "MAE",
}


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
