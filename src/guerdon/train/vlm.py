"""Fine-tune a vision-language model into a reward: read episodes, learn the true answers, write a checkpoint.

The checkpoint says how the model is asked, and `load_vlm` (or `reward.model.checkpoint_path`) asks it that way. It does
not know simulators or RL.

    settings = VLMTrainSettings(data_path="data/door", save_dir="runs/vlm", tiny=TinyVLMSettings())
    result = train_vlm(settings)
    result.metrics["auroc"]     # on held-out episodes
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon.atomic import write_json
from guerdon.errors import ConfigError, DataError
from guerdon.finite import refuse_to_write
from guerdon.models.quality import classifier_quality, progress_quality
from guerdon.models.tiny_vlm import write_tiny_vlm
from guerdon.models.vlm import VLMRewardModel
from guerdon.models.vlm_files import ADAPTER, BASE, VLMCard, load_vlm, write_vlm_checkpoint
from guerdon.models.vlm_local import TransformersBackend, quietly, read_vlm
from guerdon.policies.shared_base import import_peft
from guerdon.settings.text_policy import LoraSettings
from guerdon.settings.vlm import VLMTrainSettings
from guerdon.train.frames import LABELS, NEARNESS
from guerdon.train.images import TrainResult
from guerdon.train.record import finished_metrics
from guerdon.train.trainer import newest_checkpoint
from guerdon.train.vlm_examples import VLMExamples, vlm_examples
from guerdon.train.vlm_trainer import AnswerTrainer
from guerdon.types import Episode, Failure

_FREE = {"save_dir", "resume", "log_every", "tensorboard"}  # what may differ between a training and its continuation


def train_vlm(settings: VLMTrainSettings, *, resume: bool = False) -> TrainResult:
    """Fine-tune on the data sets of `settings.data_path`.

    Args:
        settings: everything; see `guerdon.settings.vlm`.
        resume: continue from the newest complete checkpoint in `save_dir`, like `settings.resume`.

    Raises:
        DataError: no usable episodes, or only one outcome.
        ConfigError: resuming with other settings or data than the training started with.
        CheckpointError: the model cannot be read.
    """
    from guerdon.episodes.read import dataset_hash, read_episodes

    def episodes() -> Iterator[Episode]:
        for path in settings.data_paths:
            yield from read_episodes(path, camera=settings.camera, with_frames=True)

    hashes = [dataset_hash(path) for path in settings.data_paths]
    combined = hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return train_vlm_on_episodes(settings, episodes(), data_hash=combined, resume=resume)


def train_vlm_on_episodes(
    settings: VLMTrainSettings, episodes: Iterable[Episode], *, data_hash: str = "", resume: bool = False
) -> TrainResult:
    """Fine-tune on episodes from anywhere; `settings.data_path` is not read.

    Args:
        settings: everything else.
        episodes: read one by one; their frames are kept.
        data_hash: recorded in the checkpoint.
        resume: as for `train_vlm`.

    Raises:
        DataError: no usable episodes, or only one outcome.
        ConfigError: resuming with other settings or data than the training started with.
        CheckpointError: the model cannot be read.
    """
    start = time.perf_counter()
    save_dir = Path(settings.save_dir)
    folder = save_dir / "trainer"
    resume = resume or settings.resume
    record = {"settings": settings.model_dump(mode="json", exclude=_FREE), "data_hash": data_hash}
    finished = finished_metrics(save_dir, record) if resume else None
    if finished is not None:
        return TrainResult(save_dir, finished)
    examples = vlm_examples(episodes, settings)
    if settings.val_split > 0 and not examples.held.any():
        raise DataError(f"{len(examples.frames)} episodes are too few to hold some out: collect more, or val_split: 0")
    if not examples.positive[~examples.held].any():
        raise DataError("no success is left for training after the split: collect more successful episodes")
    resumed_from = newest_checkpoint(folder) if resume else None
    if resumed_from is None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if settings.tiny is not None:
            with quietly():
                write_tiny_vlm(settings.tiny, folder / BASE, seed=settings.seed)
        write_json(save_dir / "training.json", record | {"finished": False})
    backend = _backend(settings, folder)
    trainer = AnswerTrainer(backend, examples, settings, folder)
    trainer.train(resume_from_checkpoint=None if resumed_from is None else str(resumed_from))
    loss = trainer.evaluate()["eval_loss"] if examples.held.any() else None
    _write(settings, backend, folder, save_dir / "model", data_hash)
    metrics = _metrics(trainer, examples, loss, load_vlm("qwen_vl", save_dir)) | {
        "seconds": round(time.perf_counter() - start, 3)
    }
    write_json(save_dir / "metrics.json", metrics)
    write_json(save_dir / "training.json", record | {"finished": True})
    shutil.rmtree(folder, ignore_errors=True)
    return TrainResult(save_dir, metrics)


def _backend(settings: VLMTrainSettings, folder: Path) -> TransformersBackend:
    """The model to train: read or made, with a fresh adapter where one is wanted."""
    path = str(folder / BASE) if settings.tiny is not None else settings.path
    assert path is not None
    model, inputs, name = read_vlm(path)
    if settings.lora is None:
        model.requires_grad_(True)
    else:
        model = _with_fresh_adapter(model, settings.lora, settings.seed)
    size = settings.micro_batch_size or settings.batch_size
    return TransformersBackend(model, inputs, name, batch_size=size, bf16=settings.bf16)


def _with_fresh_adapter(model: Any, lora: LoraSettings, seed: int) -> Any:
    peft = import_peft()
    target = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    config = peft.LoraConfig(r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with quietly():
                return peft.get_peft_model(model, config)
        except ValueError as error:
            raise ConfigError(f"lora.target_modules {target!r}: {error}") from error


def _write(
    settings: VLMTrainSettings, backend: TransformersBackend, folder: Path, target: Path, data_hash: str
) -> None:
    names = ("question", "input", "max_pixels") + (("nframes", "fps") if settings.input == "video" else ())
    completed = settings.question == "completed"
    label = LABELS["resnet" if completed else "progress"]
    if settings.horizon is not None:
        label = NEARNESS.format(horizon=settings.horizon)
    inside = settings.tiny is not None or settings.lora is None
    card = VLMCard(
        asked={name: getattr(settings, name) for name in names},
        base=BASE if inside else _origin(str(settings.path)),
        adapter=settings.lora is not None,
        threshold=settings.reward_threshold if completed else None,
        horizon=settings.horizon,
        label=label,
        data_hash=data_hash,
    )

    def write_weights(into: Path) -> None:
        refuse_to_write({n: p for n, p in backend.model.named_parameters() if p.requires_grad}, target)
        with quietly():
            if settings.lora is not None:
                backend.model.peft_config["default"].base_model_name_or_path = card.base
                backend.model.save_pretrained(into / ADAPTER, save_embedding_layers=False)
                (into / ADAPTER / "README.md").unlink(missing_ok=True)  # an empty model card
                if settings.tiny is not None:
                    shutil.copytree(folder / BASE, into / BASE)
            else:
                backend.model.save_pretrained(into / BASE)
                backend.inputs.tokenizer.save_pretrained(into / BASE)
                backend.inputs.image_processor.save_pretrained(into / BASE)

    write_vlm_checkpoint(target, card, write_weights)


def _origin(path: str) -> str:
    return str(Path(path).resolve()) if Path(path).is_dir() else path


def _metrics(
    trainer: AnswerTrainer, examples: VLMExamples, loss: float | None, model: VLMRewardModel
) -> dict[str, Any]:
    """How good the checkpoint is, as it is read back from disk, on the held-out rows."""
    completed = examples.settings.question == "completed"
    rows = np.flatnonzero(examples.held)
    found = model.values([examples.question(int(i)) for i in rows]) if len(rows) else []
    known = [(value, i) for value, i in zip(found, rows, strict=True) if not isinstance(value, Failure)]
    values, targets = np.array([v for v, _ in known]), examples.targets[[i for _, i in known]]
    if completed:
        quality = classifier_quality(values, targets, examples.settings.reward_threshold)
    else:
        quality = progress_quality(values, targets)
    train = ~examples.held
    return {
        "loss": loss,
        **quality,
        "failures": len(found) - len(known),
        "best_step": trainer.state.best_global_step if len(rows) else None,
        "steps": trainer.state.global_step,
        "train_rows": int(train.sum()),
        "train_positive": int(examples.positive[train].sum()),
        "val_rows": len(rows),
        "val_positive": int(examples.positive[examples.held].sum()),
        "episodes": len(examples.frames),
        "val_episodes": len(np.unique(examples.episode[examples.held])),
        "skipped_episodes": examples.skipped,
    }
