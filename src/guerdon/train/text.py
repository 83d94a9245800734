"""Fit a reward model of text offline: read solutions, train, write a folder with everything that scoring needs.

    runs/prm/method1_HE/       (or runs/prm itself, for data that `guerdon label` did not write)
      checkpoint-500/          a state to resume from
      final_checkpoint/        the model, for wherever one is named
      trainer_state.json       losses and validations
      metrics.json             the numbers at the end
      questions.json           hashes of the questions it was trained on, and of those held out

`guerdon evaluate` has the full evaluation; the metrics here are those watched while a model is trained.

    result = train_text_model(study.train["prm"], study)
    load_text_model(str(result.folder))
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from guerdon import distributed
from guerdon.atomic import write_json
from guerdon.devices import resolve_device, seeded, show_only, wait_for_gpu
from guerdon.errors import CheckpointError, ConfigError, DataError, needs
from guerdon.finite import refuse_to_read
from guerdon.hub import check_model, reading
from guerdon.models.quality import auroc
from guerdon.models.text_inputs import buckets
from guerdon.models.text_load import FINAL, model_class
from guerdon.models.text_losses import bce_terms, pair_terms, pairs
from guerdon.models.text_model import TextModelCard, TextRewardModel
from guerdon.packaged import local_model
from guerdon.policies.pretrained import read_tokenizer
from guerdon.policies.shared_base import SharedBase
from guerdon.policies.text import TextPolicy, add_policy
from guerdon.policies.text_files import check_disk, give_template, load_policy
from guerdon.progress import log_line
from guerdon.schedules import scheduled
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.train import TextTrainSettings
from guerdon.train.text_data import (
    Lessons,
    TextData,
    data_paths,
    make_lessons,
    one_class_warning,
    read_data,
    split_questions,
)
from guerdon.train.trainer import FREE, BaseTrainer, TrainingFolder
from guerdon.types import BoolArray, FloatArray

PAIRED = ("bradley_terry", "dpo")  # losses over pairs: they order solutions and give no probability
_FREE = FREE | {"wait_for_gpu", "keep_checkpoints"}  # may be others on resume
Item = tuple[int, ...]  # one lesson, or a right and a wrong one


class TextTrainResult(NamedTuple):
    """Where a trained reward model lies, and how good it was on held-out questions.

    Attributes:
        save_dir: the folder of the training; the model is its `final_checkpoint`.
        metrics: `loss` and quality on the held-out questions, None where undefined; counts; `seconds`.
    """

    save_dir: Path
    metrics: dict[str, Any]

    @property
    def folder(self) -> Path:
        """The model."""
        return self.save_dir / FINAL


def train_text_model(
    settings: TextTrainSettings, study: Study, data: TextData | None = None, *, resume: bool = False
) -> TextTrainResult:
    """Train on the solutions of `data_path`, or of the study's `label` section.

    Args:
        settings: of `train`.
        study: its policy and its `label` section are used where the settings name no model and no data.
        data: train on these solutions instead.
        resume: continue from the newest complete checkpoint, like `settings.resume`.

    Raises:
        DataError: no usable solution.
        NonFiniteError: a loss that is not finite.
        ConfigError: resuming with other settings or data than the training started with, or the disk has no room.
        CheckpointError: the language model cannot be read.
    """
    if data is None:
        data = read_data(settings, study.label)
        if data.left_out:
            log_line(f"left out rows without a rated step: {_counted(data.left_out)}")
    started = time.perf_counter()
    torch.set_num_threads(study.runner.threads)
    for key in ("wait_for_gpu", "quantize"):
        if distributed.peers() > 1 and getattr(settings, key) is not None:
            raise ConfigError(f"{key} works in one process only; leave it out, or start the training without torchrun")
    if settings.wait_for_gpu is not None:
        show_only(wait_for_gpu(settings.wait_for_gpu))
    rows, held = split_questions(data.solutions, settings.val_split, settings.seed)
    _check_rewards(settings, data)
    with seeded(None, resolve_device(settings.device)):
        model = start_model(settings, study.text_default, separator=data.separator)
        train = make_lessons(model, [data.solutions[i] for i in rows], settings)
        val = make_lessons(model, [data.solutions[i] for i in held], settings)
        digests = {"train": train.digest(), "val": val.digest()}
        record = {
            "settings": settings.model_dump(mode="json", exclude=_FREE),
            "policy": settings.start(study.text_default).model_dump(mode="json", exclude={"device"}),
            "data": digests,
        }
        folder = Path(settings.save_dir) / (data.folder or "")
        run = TrainingFolder(folder, record, resume=resume or settings.resume, keep=True)
        if run.metrics is not None:
            return TextTrainResult(folder, run.metrics)
        for what, lessons in (("to train on", train), ("held out", val)):
            if lessons.counts:
                log_line(f"solutions {what}: {len(lessons)}; not used or cut: {_counted(lessons.counts)}")
        warning = one_class_warning(train, "answers" if model.learns_outcomes else "labelled steps")
        if warning is not None:
            log_line(f"WARNING: {warning}")
        check_disk(folder, model.written_bytes())
        trainer = RewardTrainer(model, train, val, settings, folder)
        run.begin()
        run.train(trainer)
        metrics = {
            **(trainer.quality() if len(val) else {"loss": None}),
            **trainer.summary(),
            **_counts(train, val, data),
            "seconds": round(time.perf_counter() - started, 3),
            **({} if warning is None else {"warnings": [warning]}),
        }
    facts = {
        "data": digests,
        "method": data.method,
        "reward": data.reward,
        "labelers": list(data.labelers),
        "settings": settings.model_dump(mode="json"),
        "metrics": metrics,
    }
    questions = {"train": sorted(set(train.questions)), "held_out": sorted(set(val.questions))}

    def write() -> None:
        model.write(folder / FINAL, training=facts)
        trainer.save_state()
        write_json(folder / "questions.json", questions)
        run.finish(metrics)

    distributed.led(write)
    return TextTrainResult(folder, metrics)


def _counts(train: Lessons, val: Lessons, data: TextData) -> dict[str, Any]:
    """How many solutions, questions and labels were learned from, held out and left out."""
    return {
        "solutions": len(train),
        "val_solutions": len(val),
        "questions": len(set(train.questions)),
        "val_questions": len(set(val.questions)),
        "labels": int(sum((w > 0).sum() for w in train.weights)),
        **dict(zip(("labels_right", "labels_wrong"), train.classes(), strict=True)),
        "rows_left_out": dict(sorted(data.left_out.items())),
        "left_out": dict(sorted(train.counts.items())),
        "val_left_out": dict(sorted(val.counts.items())),
    }


def check_training(settings: TextTrainSettings, study: Study) -> None:
    """Refuse what `train_text_model` refuses at its start; missing files of solutions are skipped, no weights are read.

    Raises:
        ConfigError: no key names the solutions, the model cannot be trained so, or the disk has no room.
        DataError: as `train_text_model`.
        CheckpointError: the model's configuration or tokenizer cannot be read.
        MissingDependencyError: the model is not on this machine.
    """
    data = None
    if all(Path(path).exists() for path in data_paths(settings, study.label)):
        data = read_data(settings, study.label)
        rows, held = split_questions(data.solutions, settings.val_split, settings.seed)
        _check_rewards(settings, data)
    model = start_model(settings, study.text_default, separator="\n" if data is None else data.separator, device="meta")
    check_disk(Path(settings.save_dir), model.written_bytes())
    if data is not None:
        train, _ = (make_lessons(model, [data.solutions[i] for i in part], settings) for part in (rows, held))
        _training_items(train, settings)


def _check_rewards(settings: TextTrainSettings, data: TextData) -> None:
    """Refuse `rewards` that the configuration sets and the data lacks."""
    use = getattr(settings, "rewards", "ignore")
    needed = use == "target" or (use == "weight" and "rewards" in settings.model_fields_set)
    if needed and not any(reward is not None for s in data.solutions for reward in s.rewards):
        raise DataError(
            f"rewards: {use} needs rewards of steps, and the data has none: label it with --reward HE or SE, or set "
            "rewards: ignore"
        )


def _counted(counts: Mapping[str, int]) -> str:
    """Counts by reason, as text."""
    return ", ".join(f"{n} {reason}" for reason, n in sorted(counts.items()))


# the model before its first gradient step


def start_model(
    settings: TextTrainSettings, policy: TextPolicySettings, *, separator: str, device: str | None = None
) -> TextRewardModel:
    """The model before its first gradient step: a language model, its adapter, a fresh head.

    Args:
        settings: of `train`.
        policy: the study's policy.
        separator: what ends a step of the data.
        device: instead of the one of the settings; `meta`: as of `outline`.

    Raises:
        CheckpointError: the language model cannot be read.
        ConfigError: it cannot be this kind of reward model, or 4 bits are set without a GPU.
        MissingDependencyError: 4 bits without bitsandbytes.
    """
    start = settings.start(policy)

    def fresh() -> TextPolicy:
        return load_policy(start, seed=settings.seed, device=device)

    kind = model_class(settings.type)
    loss = getattr(settings, "loss", "pointwise")
    card = TextModelCard(
        kind=settings.type,
        form=kind.form,
        loss="bce" if loss == "pointwise" else loss,
        separator=separator,
        threshold=getattr(settings, "reward_threshold", None if loss in PAIRED else 0.5),
        labels=kind.meaning,
        max_length=settings.max_length,
        beta=getattr(settings, "beta", None),
        read=getattr(settings, "read", None),
        bf16=settings.bf16,
        quantize=settings.quantize,
        learning={
            "learning_rate": settings.rate,
            "weight_decay": settings.weight_decay,
            "max_grad_norm": settings.max_grad_norm,
            "batch_size": settings.batch_size,
            "seed": settings.seed,
        },
    )
    whole = settings.quantize is None or device == "meta"
    model = kind.start(fresh() if whole else _in_4_bits(start, settings), card, fresh)
    if settings.type != "implicit":
        model.policy.dropout = start.dropout is not False
    elif start.dropout:
        log_line(
            "WARNING: policy.dropout: log-ratios to a reference without dropout are trained with it; they measure the "
            "dropout too"
        )
    return model


def _in_4_bits(start: TextPolicySettings, settings: TextTrainSettings) -> TextPolicy:
    """A frozen model in 4 bits (nf4, double quantisation) with a fresh adapter."""
    device = resolve_device(settings.device)
    if device.type != "cuda":
        raise ConfigError("quantize: nf4 needs a GPU, and there is none here; leave it out")
    with needs("quantize: nf4 needs bitsandbytes: pip install bitsandbytes"):
        import bitsandbytes  # noqa: F401
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    assert start.path is not None
    assert start.lora is not None
    config: Any = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    path = local_model(start.path)
    check_model(CheckpointError, "the language model", path)
    with reading("the language model in 4 bits", start.path):
        model = AutoModelForCausalLM.from_pretrained(
            path, quantization_config=config, device_map={"": device.index or 0}, trust_remote_code=False,
            use_safetensors=True,
        )  # fmt: skip
    refuse_to_read(model.named_parameters(), f"the language model {start.path!r}")
    tokenizer = read_tokenizer(start.path, template=start.chat_template is None)
    give_template(tokenizer, start)
    base = SharedBase(model, tokenizer, start)
    return add_policy(base, "policy", start.lora, seed=settings.seed)


# training


def items_of(lessons: Lessons, settings: TextTrainSettings) -> list[Item]:
    """What the loss is a mean over: lessons, or pairs of a right and a wrong one of the same question."""
    if getattr(settings, "loss", None) in PAIRED:
        right = [bool(t[0] >= 0.5) for t in lessons.targets]
        return [tuple(pair) for pair in pairs(lessons.questions, right, settings.seed)]
    return [(i,) for i in range(len(lessons))]


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
        train: lessons to learn from.
        val: lessons held out; may be empty.
        settings: everything the user chose.
        folder: receives Trainer's checkpoints; TensorBoard's events go to `tensorboard/` in it.

    Raises:
        DataError: there is nothing to learn from: no lesson, or no pair.
    """

    keeps_checkpoints = True

    def __init__(
        self, model: TextRewardModel, train: Lessons, val: Lessons, settings: TextTrainSettings, folder: Path
    ) -> None:
        self._items, self._val_items = _training_items(train, settings), items_of(val, settings)
        self._reward, self._lessons, self._val = model, train, val
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
        size, each = distributed.even(len(rows), self._micro), len(self._items[0])
        return [[rows[k] for k in group] for group in buckets(longest, size, tokens=self._tokens, each=each)]

    def weight(self, rows: list[int]) -> float:
        """Weights of all steps, or the number of solutions or pairs."""
        return sum(item_weight(self._lessons, self._items[row]) for row in rows)

    def loss_sum(self, model: nn.Module, rows: list[int]) -> Tensor:
        """Summed weighted loss of some items; while only the head is trained, without gradients below it."""
        columns = [list(column) for column in zip(*(self._items[row] for row in rows), strict=True)]
        readings = [self._lessons.readings[i] for column in columns for i in column]
        body = self.state.global_step >= self.head_steps
        return loss_sum(self._reward.lesson_logits(readings, body=body), self._lessons, columns)

    @torch.no_grad()
    def quality(self) -> dict[str, float | None]:
        """Loss and quality on the held-out questions; None where undefined."""
        val = self._val
        logits: list[Tensor] = [torch.zeros(0)] * len(val)
        for group, counts in distributed.dealt(buckets(val.readings, self._micro, tokens=self._tokens)):
            readings = [val.readings[i] for i in group]
            found = self._reward.lesson_logits(readings).float().cpu()
            for i, part in zip(group, torch.split(found, [len(val.targets[i]) for i in group]), strict=True):
                logits[i] = part if counts else logits[i]
        if distributed.peers() > 1:  # zero where another process computed
            every = [torch.zeros(len(t)) if not len(own) else own for own, t in zip(logits, val.targets, strict=True)]
            logits = list(torch.split(distributed.total(torch.cat(every)), [len(t) for t in val.targets]))
        loss = weight = 0.0
        for item in self._val_items:
            loss += float(loss_sum(torch.cat([logits[i] for i in item]), val, [[i] for i in item]))
            weight += item_weight(val, item)
        numbers: dict[str, float | None] = {"loss": loss / weight if weight else None}
        if not self._reward.learns_outcomes:
            probabilities = [torch.sigmoid(part).numpy() for part in logits]
            threshold = self._reward.card.threshold or 0.5
            return numbers | step_quality(probabilities, val.targets, val.weights, threshold)
        values = torch.cat(logits).numpy() if logits else np.zeros(0, dtype=np.float32)
        right = np.array([t[0] >= 0.5 for t in val.targets], dtype=np.bool_)
        return numbers | outcome_quality(values, right, val.questions)

    def summary(self) -> dict[str, Any]:
        """Also `head_steps`, in which only the head was trained."""
        found = super().summary()
        best = found.pop("best_step")
        return found | {"head_steps": self.head_steps, "best_step": best}


def item_weight(lessons: Lessons, item: Item) -> float:
    """Weight of an item in the mean: the weights of its steps, 1 for a solution or a pair."""
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
    head = math.ceil(getattr(settings, "head_epochs", 0.0) * per_epoch)
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
            return scheduled(1.0, settings.lr_scheduler, (done - rising) / max(1, rest - rising))

        return at

    factors = [factor(bool(group["head"])) for group in optimizer.param_groups]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factors)


def _training_items(lessons: Lessons, settings: TextTrainSettings) -> list[Item]:
    """`items_of` what is trained on.

    Raises:
        DataError: there is nothing.
    """
    if items := items_of(lessons, settings):
        return items
    left = ", ".join(f"{n} {why}" for why, n in sorted(lessons.counts.items())) or "none was left out"
    if len(lessons):
        raise DataError(
            f"none of {len(lessons)} training solutions pairs a right with a wrong one of the same question, which "
            f"loss {getattr(settings, 'loss', '')} needs ({left})"
        )
    raise DataError(f"there is no solution left to train {settings.type} on ({left})")


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
        wrong = np.flatnonzero((t_S < 0.5) & (w_S > 0))
        first = int(wrong[0]) if len(wrong) else -1
        before = w_S[:first] if first >= 0 else w_S
        if (before > 0).all():
            below = np.flatnonzero(p_S < threshold)
            hits[first >= 0].append((int(below[0]) if len(below) else -1) == first)
    erroneous, correct = (float(np.mean(h)) if h else None for h in (hits[True], hits[False]))
    return {
        "step_auroc": auroc(p[known], right),
        "step_accuracy": float(((p[known] >= threshold) == right).mean()) if known.any() else None,
        "accuracy_erroneous": erroneous,
        "accuracy_correct": correct,
        "first_error_f1": _harmonic(erroneous, correct),
    }


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
