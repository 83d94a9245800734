"""Fine-tune a vision-language model into a reward: read episodes, train on the true answers, write a checkpoint.

The question is the one that the model gets when it scores, the answer is the simulator's truth in words (`Yes`, `No`,
or a whole percentage). The checkpoint stores how the model is prompted, and `load_vlm` (or
`reward.model.checkpoint_path`) prompts it that way.

    settings = VLMTrainSettings(data_path="data/door", save_dir="runs/vlm", tiny=TinyVLMSettings())
    result = train_vlm(settings)
    result.metrics["auroc"]     # on held-out episodes
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from guerdon.compute import distributed
from guerdon.compute.finite import refuse_to_write
from guerdon.compute.sharding import Shards
from guerdon.errors import CheckpointError
from guerdon.models.images.quality import frame_quality
from guerdon.models.vlm.tiny_vlm import write_tiny_vlm
from guerdon.models.vlm.vlm import ADAPTER, BASE, VLMCard, VLMRewardModel, load_vlm, write_vlm_checkpoint
from guerdon.models.vlm.vlm_prompts import PROMPTS, FilledPrompt, Question, make_question
from guerdon.models.vlm.vlm_transformers import TransformersBackend, map_vlm, read_vlm
from guerdon.network.hub import quietly
from guerdon.policies.batches.precision import halve_linear
from guerdon.policies.language.text_files import check_disk
from guerdon.policies.pretrained.adapters import fresh_lora, import_peft
from guerdon.policies.pretrained.chat_template import set_arguments
from guerdon.processes.progress import doing
from guerdon.settings.train import VLMTrainSettings
from guerdon.train.images import LabelledRows, is_classifier, label_meaning, label_rows, read_data
from guerdon.train.trainer import FREE, BalancedSampler, BaseTrainer, TrainingFolder, TrainResult, joint_hash
from guerdon.types import ByteArray, Episode, Failure, IntArray


def train_vlm(
    settings: VLMTrainSettings, episodes: Iterable[Episode] | None = None, *, data_hash: str = "", resume: bool = False
) -> TrainResult:
    """Fine-tune on the data sets of `settings.data_path`, or on episodes from anywhere.

    Args:
        settings: everything; see `guerdon.settings.train`.
        episodes: read one by one; their frames are kept. None: those of `settings.data_path`.
        data_hash: of given episodes, recorded in the checkpoint.
        resume: continue from the newest complete checkpoint in `save_dir`, like `settings.resume`.

    Raises:
        DataError: no usable episodes, or only one outcome.
        ConfigError: resuming with other settings or data than the training started with, or the disk has no room.
        CheckpointError: the model cannot be read.
    """
    if episodes is None:
        episodes, data_hash = read_data(settings)
    start = time.perf_counter()
    record = {"settings": settings.model_dump(mode="json", exclude=FREE), "data_hash": joint_hash(data_hash)}
    run = TrainingFolder(settings.save_dir, record, resume=resume or settings.resume)
    if run.metrics is not None:
        return TrainResult(run.save_dir, run.metrics)
    examples = vlm_examples(episodes, settings)
    examples.check_split(settings.val_split)
    run.begin()
    base = run.checkpoints / BASE
    if settings.tiny is not None and run.resume_from is None and distributed.is_first():
        with quietly():
            write_tiny_vlm(settings.tiny, base, seed=settings.seed)
    distributed.wait()  # the others read it
    backend, shards = _backend(settings, str(settings.path if settings.tiny is None else base))
    check_disk(run.save_dir, _written(settings, backend))
    trainer = AnswerTrainer(backend, examples, settings, run.checkpoints, shards=shards)
    run.train(trainer)
    loss = trainer.evaluate()["eval_loss"] if examples.held.any() else None
    summary = trainer.summary()
    metrics = {"loss": loss, "best_step": summary["best_step"], "steps": summary["steps"], **examples.counts("rows")}

    whole = shards is None or settings.lora is not None  # as far as it is written
    own = None if whole else {name: distributed.gathered(p) for name, p in backend.model.named_parameters()}

    def write() -> None:
        _write(settings, backend, base, run.save_dir / "model", data_hash, own)
        metrics.update(_quality(examples, load_vlm("qwen_vl", run.save_dir, device=settings.device)))
        metrics["seconds"] = round(time.perf_counter() - start, 3)
        run.finish(metrics)

    distributed.led(write)
    return TrainResult(run.save_dir, metrics)


def _written(settings: VLMTrainSettings, backend: TransformersBackend) -> dict[str, int]:
    """What the training will write, in bytes."""
    parameters = list(backend.model.parameters())
    trained = 4 * sum(p.numel() for p in parameters if p.requires_grad)
    parts = {"what is trained": trained, "a checkpoint, with the optimizer's two moments": 3 * trained}
    if settings.tiny is not None and settings.lora is not None:
        parts["the model under the adapter"] = 4 * sum(p.numel() for p in parameters) - trained
    return parts


def _backend(settings: VLMTrainSettings, path: str) -> tuple[TransformersBackend, Shards | None]:
    """The model to train, with a fresh adapter where `lora` is set, and its shards where several processes train it."""
    (model, inputs), weights = map_vlm(path) if distributed.peers() > 1 else (read_vlm(path, start=True), None)
    set_arguments(inputs.tokenizer, settings.chat_template_kwargs, "chat_template_kwargs")
    shards = Shards(model, weights=weights) if distributed.peers() > 1 else None
    if settings.lora is None:
        model.requires_grad_(True)
    else:
        with quietly(), fresh_lora(settings.lora, seed=settings.seed) as config:
            model = import_peft().get_peft_model(model, config)
    size = settings.micro_batch_size or settings.batch_size
    backend = TransformersBackend(model, inputs, batch_size=size, bf16=settings.bf16, device=settings.device)
    if settings.lora is not None and shards is None and backend.bf16 and backend.device.type == "cuda":
        halve_linear(backend.model)
    return backend, shards


def _write(
    settings: VLMTrainSettings,
    backend: TransformersBackend,
    base: Path,
    target: Path,
    data_hash: str,
    own: dict[str, Tensor] | None,
) -> None:
    """Write the model; `own` are its weights where they are sharded."""
    names = ["question", "input", "max_pixels"]
    if settings.input == "video":
        names += ["nframes", "fps"]
    if settings.chat_template_kwargs:
        names.append("chat_template_kwargs")
    path = str(settings.path)
    origin = str(Path(path).resolve()) if Path(path).is_dir() else path
    card = VLMCard(
        asked={name: getattr(settings, name) for name in names},
        base=BASE if settings.tiny is not None or settings.lora is None else origin,
        adapter=settings.lora is not None,
        threshold=settings.reward_threshold if is_classifier(settings) else None,
        horizon=settings.horizon,
        label=label_meaning(settings),
        data_hash=data_hash,
        transformers_version=version("transformers"),
    )

    def write_weights(into: Path) -> None:
        refuse_to_write(own or {n: p for n, p in backend.model.named_parameters() if p.requires_grad}, target)
        with quietly():
            if settings.lora is not None:
                backend.model.peft_config["default"].base_model_name_or_path = card.base
                backend.model.save_pretrained(into / ADAPTER, save_embedding_layers=False)
                (into / ADAPTER / "README.md").unlink(missing_ok=True)  # an empty model card
                if settings.tiny is not None:
                    shutil.copytree(base, into / BASE)
            else:
                backend.model.save_pretrained(into / BASE, state_dict=own)
                backend.inputs.tokenizer.save_pretrained(into / BASE)
                backend.inputs.image_processor.save_pretrained(into / BASE)
                backend.inputs.video_processor.save_pretrained(into / BASE)

    write_vlm_checkpoint(target, card, write_weights)


def _quality(examples: VLMExamples, model: VLMRewardModel) -> dict[str, float | None]:
    """How good the checkpoint is on the held-out rows, as it is read back from disk."""
    _, rows = examples.split()
    found = model.values([examples.question(int(i)) for i in rows]) if len(rows) else []
    known = [(value, i) for value, i in zip(found, rows, strict=True) if not isinstance(value, Failure)]
    values, targets = np.array([v for v, _ in known]), examples.targets[[i for _, i in known]]
    threshold = examples.settings.reward_threshold if is_classifier(examples.settings) else None
    return {**frame_quality(values, targets, threshold), "failures": len(found) - len(known)}


@dataclass(frozen=True, eq=False)
class VLMExamples(LabelledRows):
    """N rows of episodes as questions with their true answers.

    Attributes:
        frames: of each episode, (T, H, W, 3) uint8.
        prompts: the prompt of each episode.
        settings: what it is trained on.
    """

    frames: tuple[ByteArray, ...]
    prompts: tuple[FilledPrompt, ...]
    settings: VLMTrainSettings

    def question(self, i: int) -> Question:
        """The question about example `i`."""
        s, episode, row = self.settings, int(self.episode[i]), int(self.row[i])
        frames = self.frames[episode]
        shown = frames[: row + 1] if s.input == "video" else frames[row : row + 1]
        return make_question(self.prompts[episode], shown, nframes=s.nframes, max_pixels=s.max_pixels, fps=s.fps)

    def answer(self, i: int) -> str:
        """Its true answer: a target in [0, 1] as the model has to write it."""
        target = float(self.targets[i])
        if is_classifier(self.settings):
            return "Yes" if target > 0.5 else "No"
        return str(round(100 * target))


@doing("reading the data")
def vlm_examples(episodes: Iterable[Episode], settings: VLMTrainSettings) -> VLMExamples:
    """Questions and answers about all episodes.

    Args:
        episodes: read one by one; those without frames, task or the labels needed are counted and skipped.
        settings: what it is trained on, from which rows.

    Raises:
        DataError: no usable episode, or nothing but success or failure.
    """
    prompt, frames, prompts = PROMPTS[settings.prompt_name], [], []

    def keep(episode: Episode, rows: IntArray) -> None:
        assert episode.frames is not None
        frames.append(episode.frames)
        prompts.append(prompt.fill(episode.task))

    rows = label_rows(episodes, settings, keep, needs_task=True)
    rows.check_labels(settings)
    return VLMExamples(**vars(rows), frames=tuple(frames), prompts=tuple(prompts), settings=settings)


class _AnswerLoss(nn.Module):
    """Summed negative log-likelihood of the answers of some examples."""

    def __init__(self, backend: TransformersBackend, examples: VLMExamples, shards: Shards | None) -> None:
        super().__init__()
        self.model = backend.model
        self._backend, self._examples, self._shards = backend, examples, shards

    def answers(self, rows: Sequence[int]) -> list[Any]:
        """Token ids of the true answers."""
        return [self._backend.inputs.answer_ids(self._examples.answer(i)) for i in rows]

    def forward(self, rows: Sequence[int]) -> Tensor:
        return self._loss(rows) if self._shards is None else self._shards.run(lambda: self._loss(rows))

    def _loss(self, rows: Sequence[int]) -> Tensor:
        backend, answers = self._backend, self.answers(rows)
        tensors = backend.inputs.batch([self._examples.question(i) for i in rows], answers)
        tensors = {name: tensor.to(backend.device) for name, tensor in tensors.items()}
        labels_B_L = tensors.pop("labels")
        keep = max(map(len, answers)) + 1
        with torch.autocast(backend.device.type, torch.bfloat16, enabled=backend.bf16):
            logits = self.model(**tensors, use_cache=False, logits_to_keep=keep).logits
        return F.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), labels_B_L[:, 1 - keep :].flatten(), reduction="sum"
        )

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def tensors(self) -> dict[str, Tensor]:
        """What is trained: an adapter, or all weights."""
        return {name: distributed.gathered(p).contiguous() for name, p in self._trained().items()}

    def load_tensors(self, stored: dict[str, Tensor]) -> None:
        """Return to what `tensors` gave."""
        trained = self._trained()
        if stored.keys() != trained.keys():
            raise CheckpointError("the stored weights are not those that are trained here")
        with torch.no_grad():
            for name, parameter in trained.items():
                distributed.put(parameter, stored[name])


class AnswerTrainer(BaseTrainer):
    """Trainer over indices of examples, balanced in every epoch; the loss is a mean over answer tokens.

    Args:
        backend: whose model is trained, in place.
        examples: all of them.
        settings: everything the user chose.
        folder: receives Trainer's checkpoints; TensorBoard's events go to `tensorboard/` in its parent.
        shards: of the model's weights, where several processes train it.
    """

    rate_key = "train.<name>.learning_rate"

    def __init__(
        self,
        backend: TransformersBackend,
        examples: VLMExamples,
        settings: VLMTrainSettings,
        folder: Path,
        *,
        shards: Shards | None = None,
    ) -> None:
        train, val = examples.split()
        sampler = BalancedSampler(examples.positive[train], settings.fail_success_ratio, settings.seed)
        total = math.ceil(len(sampler) / settings.batch_size) * settings.max_epochs
        total = min(total, settings.max_steps or total)
        network, every = _AnswerLoss(backend, examples, shards), settings.eval_every
        super().__init__(
            network, settings, folder, train, val, total=total, every=every, device=backend.device, sampler=sampler
        )

    def weight(self, rows: list[int]) -> float:
        """Answer tokens."""
        return sum(map(len, self.accelerator.unwrap_model(self.model).answers(rows)))
