"""transformers' `Trainer` for a vision-language model's answers: exact means over tokens, trained weights stored alone.

It knows questions and answers, not where they come from. Its checkpoints hold what is trained (an adapter, or all
weights) and are read back with `weights_only`; a resumed training gives the same bytes as one that ran through.

    trainer = AnswerTrainer(backend, examples, settings, folder)
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.utils import SAFE_WEIGHTS_NAME

from guerdon.errors import CheckpointError, NonFiniteError
from guerdon.finite import load_weights, save_weights
from guerdon.models.vlm_local import TransformersBackend
from guerdon.settings.vlm import VLMTrainSettings
from guerdon.train.rows import Rows
from guerdon.train.trainer import BalancedSampler, common_arguments
from guerdon.train.vlm_examples import VLMExamples
from guerdon.train.watch import Watch


class _AnswerLoss(nn.Module):
    """What Trainer trains: indices of examples in; summed negative log-likelihood of their answers and tokens out."""

    def __init__(self, backend: TransformersBackend, examples: VLMExamples) -> None:
        super().__init__()
        self.model = backend.model
        self._backend, self._examples = backend, examples

    def forward(self, rows: Tensor) -> tuple[Tensor, int]:
        backend, examples = self._backend, self._examples
        indices = [int(i) for i in rows.tolist()]
        answers = [backend.inputs.answer_ids(examples.answer(i)) for i in indices]
        tensors = backend.inputs.batch([examples.question(i) for i in indices], answers)
        tensors = {name: tensor.to(backend.device) for name, tensor in tensors.items()}
        labels_B_L = tensors.pop("labels")
        keep = max(map(len, answers)) + 1
        with torch.autocast(backend.device.type, torch.bfloat16, enabled=backend.bf16):
            logits = self.model(**tensors, use_cache=False, logits_to_keep=keep).logits
        loss = F.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), labels_B_L[:, 1 - keep :].flatten(), reduction="sum"
        )
        return loss, sum(map(len, answers))


class AnswerTrainer(Trainer):  # type: ignore[misc]
    """Trainer over indices of examples, balanced in every epoch.

    Args:
        backend: whose model is trained, in place.
        examples: all of them.
        settings: everything the user chose.
        folder: receives Trainer's checkpoints; TensorBoard's events go to `tensorboard/` beside it.
    """

    def __init__(
        self, backend: TransformersBackend, examples: VLMExamples, settings: VLMTrainSettings, folder: Path
    ) -> None:
        train, val = np.flatnonzero(~examples.held), np.flatnonzero(examples.held)
        self._balanced = BalancedSampler(examples.positive[train], settings.fail_success_ratio, settings.seed)
        callbacks: list[TrainerCallback] = [Watch()]
        if settings.tensorboard:
            callbacks.append(TensorBoardCallback())
            callbacks[-1].logging_dir = str(folder.parent / "tensorboard")
        super().__init__(
            model=_AnswerLoss(backend, examples),
            args=_arguments(settings, folder, len(self._balanced), len(val), backend.device),
            data_collator=lambda rows: {"rows": torch.tensor(rows)},
            train_dataset=Rows(train),
            eval_dataset=Rows(val) if len(val) else None,
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)
        self._micro = settings.micro_batch_size or settings.batch_size

    control: Any

    def _get_train_sampler(self, train_dataset: Any = None) -> BalancedSampler:
        return self._balanced

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Any = None) -> Tensor:
        """Gradients of the mean over the answer tokens of the batch, however it is cut into forward passes."""
        model.train()
        parts = torch.split(inputs["rows"], self._micro)
        count = sum(self._tokens(part) for part in parts)
        total = torch.zeros((), device=self.args.device)
        for part in parts:
            loss = model(part)[0] / count
            self.accelerator.backward(loss)
            total += loss.detach()
        if not torch.isfinite(total):
            raise NonFiniteError(f"the training loss is {float(total)}: lower train.<name>.learning_rate")
        return total

    @torch.no_grad()
    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Nats per answer token over the held-out examples."""
        self.model.eval()
        total = count = 0.0
        for inputs in self.get_eval_dataloader():
            for part in torch.split(inputs["rows"], self._micro):
                loss, tokens = self.model(part)
                total += float(loss)
                count += tokens
        metrics = {"eval_loss": total / count}
        self.log(metrics)
        control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.control = control
        return metrics

    def _tokens(self, rows: Tensor) -> int:
        loss = cast(_AnswerLoss, self.accelerator.unwrap_model(self.model))
        return sum(len(loss._backend.inputs.answer_ids(loss._examples.answer(int(i)))) for i in rows.tolist())

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: p.detach().cpu().contiguous() for name, p in self._trained()}
            save_weights(tensors, folder / SAFE_WEIGHTS_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        stored = load_weights(Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME)
        trained = dict(self._trained())
        if stored.keys() != trained.keys():
            raise CheckpointError(f"{resume_from_checkpoint} does not hold the weights that are trained here")
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(stored[name])

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]


def _arguments(
    settings: VLMTrainSettings, folder: Path, examples: int, held: int, device: torch.device
) -> TrainingArguments:
    per_epoch = math.ceil(examples / settings.batch_size)
    total = min(per_epoch * settings.max_epochs, settings.max_steps or per_epoch * settings.max_epochs)
    every = min(settings.eval_every or max(1, total // 10), total)
    return TrainingArguments(
        **common_arguments(cast(Any, settings), folder, total=total, every=every, validated=held > 0, device=device),
        max_grad_norm=settings.max_grad_norm,
        bf16=False,  # the model is run in bfloat16 here, where wanted
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
