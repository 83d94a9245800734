"""transformers' `Trainer` for a language model's responses: exact means over tokens, weights stored by the policy.

It knows ids of prompts and responses, not where they come from; its checkpoints are read back with `weights_only`.

    trainer = ResponseTrainer(policy, tokens, train_rows, val_rows, settings, folder)
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.utils import SAFE_WEIGHTS_NAME

from guerdon.errors import NonFiniteError
from guerdon.finite import load_weights, save_weights
from guerdon.policies.text import TextPolicy
from guerdon.policies.tokens import TokenBatch, pad_id, token_batch
from guerdon.settings.text_policy import SFTSettings
from guerdon.train.rows import Rows
from guerdon.train.trainer import common_arguments
from guerdon.train.watch import Watch
from guerdon.types import IntArray


class TokenPairs(NamedTuple):
    """Pairs as ids.

    Attributes:
        prompts: with chat template and the opening of the assistant's turn.
        responses: with the end-of-sequence token.
        left_out: pairs that were longer than `max_length`.
    """

    prompts: list[IntArray]
    responses: list[IntArray]
    left_out: int

    def batch(self, rows: Sequence[int] | np.ndarray, pad: int) -> TokenBatch:
        """The pairs of these indices."""
        chosen = [int(i) for i in rows]
        return token_batch(
            [self.prompts[i] for i in chosen],
            [self.responses[i] for i in chosen],
            np.ones(len(chosen), dtype=np.bool_),
            pad_id=pad,
        )


class _ResponseLoss(nn.Module):
    """What Trainer trains: indices of pairs in, summed negative log-likelihood of their responses out."""

    def __init__(self, policy: TextPolicy, tokens: TokenPairs) -> None:
        super().__init__()
        self.model = policy.base.model
        self._policy, self._tokens = policy, tokens

    def forward(self, rows: Tensor) -> Tensor:
        batch = self._tokens.batch(rows.cpu().numpy(), pad_id(self._policy.tokenizer))
        return -self._policy.log_probs(batch).sum()


class ResponseTrainer(Trainer):  # type: ignore[misc]
    """Trainer over indices of pairs.

    Args:
        policy: what is trained, in place.
        tokens: all pairs.
        train: indices to learn from.
        val: indices held out; may be empty.
        settings: everything the user chose.
        folder: receives Trainer's checkpoints; TensorBoard's events go to `tensorboard/` beside it.
    """

    def __init__(
        self,
        policy: TextPolicy,
        tokens: TokenPairs,
        train: IntArray,
        val: IntArray,
        settings: SFTSettings,
        folder: Path,
    ) -> None:
        callbacks: list[TrainerCallback] = [Watch()]
        if settings.tensorboard:
            callbacks.append(TensorBoardCallback())
            callbacks[-1].logging_dir = str(folder.parent / "tensorboard")
        super().__init__(
            model=_ResponseLoss(policy, tokens),
            args=_arguments(settings, folder, len(train), len(val), policy.device),
            data_collator=lambda rows: {"rows": torch.tensor(rows)},
            train_dataset=Rows(train),
            eval_dataset=Rows(val) if len(val) else None,
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)
        self._policy, self._tokens = policy, tokens
        self._micro = settings.micro_batch_size or settings.batch_size

    control: Any

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Any = None) -> Tensor:
        """Gradients of the mean over the response tokens of the batch, however it is cut into forward passes."""
        rows = inputs["rows"]
        count = self._count(rows)
        total = torch.zeros((), device=self.args.device)
        for part in torch.split(rows, self._micro):
            loss = model(part) / count
            self.accelerator.backward(loss)
            total += loss.detach()
        if not torch.isfinite(total):
            raise NonFiniteError(f"the training loss is {float(total)}: lower sft.learning_rate")
        return total

    @torch.no_grad()
    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Nats per response token over the held-out pairs."""
        total = count = 0.0
        for inputs in self.get_eval_dataloader():
            for part in torch.split(inputs["rows"], self._micro):
                total += float(self.model(part))
                count += self._count(part)
        metrics = {"eval_loss": total / count}
        self.log(metrics)
        control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.control = control
        return metrics

    def _count(self, rows: Tensor) -> int:
        return sum(len(self._tokens.responses[i]) for i in rows.tolist())

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_weights(self._policy.tensors(), folder / SAFE_WEIGHTS_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self._policy.load_tensors(load_weights(Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME))

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)


def _arguments(settings: SFTSettings, folder: Path, pairs: int, held: int, device: torch.device) -> TrainingArguments:
    total = settings.max_steps or math.ceil(settings.epochs * math.ceil(pairs / settings.batch_size))
    every = min(settings.eval_every or max(1, total // 10), total)
    return TrainingArguments(
        **common_arguments(settings, folder, total=total, every=every, validated=held > 0, device=device),
        max_grad_norm=settings.max_grad_norm,
        bf16=False,  # the policy computes in bfloat16 by itself
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
