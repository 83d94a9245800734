"""Train a reward model of text offline: read solutions, train, write a folder with everything that scoring needs.

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

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import numpy as np
import torch

from guerdon.compute import distributed
from guerdon.compute.devices import resolve_device, seeded, show_only, wait_for_gpu
from guerdon.episodes.solution_files import published_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError, boundary, needs
from guerdon.labels.data_set import CARD
from guerdon.labels.data_set import target as target_of_reward
from guerdon.models.text.encoder_model import EncoderModel, starts_from_encoder
from guerdon.models.text.ensemble import Ensemble
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_inputs import Reading, unread
from guerdon.models.text.text_load import FINAL, model_class
from guerdon.models.text.text_model import TextRewardModel
from guerdon.plan.stages import loaded
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy, add_policy
from guerdon.policies.language.text_files import check_disk, check_form, give_template, load_policy
from guerdon.policies.pretrained.quantised import form_of
from guerdon.policies.pretrained.reading import read_config, read_pretrained, read_tokenizer
from guerdon.processes.progress import doing, log_line
from guerdon.reading.data_sets import RECORDS
from guerdon.reading.shown import ReadAs, read_as_facts
from guerdon.settings.label import LabelSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.train import (
    PreferenceTrainSettings,
    StepwiseTrainSettings,
    TextTrainSettings,
    VerdictTrainSettings,
)
from guerdon.tasks.trained_questions import question_name, write_questions
from guerdon.train.lessons import PAIRED, Lessons, items_to_train
from guerdon.train.reward_trainer import RewardTrainer
from guerdon.train.trainer import FREE, TrainingFolder
from guerdon.types import Failure, FloatArray, IntArray

# ---------------------------------------------------------------------------------------------------------------------
# Solutions on disk as lessons for a reward model of text: token ids, targets, weights, and the held-out questions.
#
# Questions are split by a hash of their text, so no question is ever on both sides. Solutions that cannot be used (no
# label, too long, an unknown character) are left out and counted. What a step is trained towards:
#
# | settings | target of a step | its weight |
# |---|---|---|
# | `labels: hard` | 0 or 1; other labels need a `threshold`, and are 1 from there on | 1, or abs(reward) |
# | `labels: soft` | the label | 1, or abs(reward) |
# | `rewards: target` | (1 + reward) / 2: SE gives soft targets, HE 0 in every wrong solution | 1 |
#
# With `rewards: weight` (the default) the magnitude of SE counts: later steps weigh up to twice as much as the first;
# that of HE is 1 everywhere. A step without a label or reward has weight 0.
#
#     data = read_data(settings, study.label)
#     train, val = split_questions(data.solutions, 0.1, seed=0)
#     lessons = make_lessons(model, [data.solutions[i] for i in train], settings)
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextData:
    """Solutions, and what the cards of `guerdon label` say about them: what all models but those of preferences learn.

    Attributes:
        solutions: of all files, in order.
        method: labelling method of the folders they come from, where all agree; else None.
        reward: `HE` or `SE`, where all agree; else None.
        labelers: labelers named by the cards.
        left_out: number of rows without a rated step, by reason.
        read_as: what the columns of each data set are for.
    """

    solutions: tuple[Solution, ...]
    method: int | None
    reward: str | None
    labelers: tuple[str, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    read_as: tuple[ReadAs, ...] = ()
    rows_left_out: ClassVar = "rows without a rated step"

    @classmethod
    def read(cls, settings: TextTrainSettings, label: LabelSettings | None) -> TextData:
        """See `read_data`."""
        return read_data(settings, label)

    @property
    def folder(self) -> str | None:
        """`method1_HE` and the like; None where the data did not come from `guerdon label`."""
        return None if self.method is None or self.reward is None else f"method{self.method}_{self.reward}"

    @property
    def separator(self) -> str:
        """The most frequent end of a step."""
        counts = Counter(s.separator for s in self.solutions)
        return counts.most_common(1)[0][0] if counts else ""

    def lessons(self, model: TextRewardModel, settings: TextTrainSettings) -> tuple[Lessons, Lessons]:
        """What is trained on, and what is held out: see `split_questions` and `make_lessons`.

        Raises:
            DataError: as these; or the settings use rewards, and the data has none.
        """
        _check_rewards(settings, self.solutions)
        rows, held = split_questions(self.solutions, settings.val_split, settings.seed)
        train, val = (make_lessons(model, [self.solutions[i] for i in part], settings) for part in (rows, held))
        return train, val

    def warning(self, train: Lessons, model: TextRewardModel) -> str | None:
        """See `one_class_warning`."""
        return one_class_warning(train, "answers" if model.learns_outcomes else "labelled steps")

    def trainer(
        self, model: TextRewardModel, train: Lessons, val: Lessons, settings: TextTrainSettings, folder: Path
    ) -> RewardTrainer:
        """What trains on these lessons."""
        return RewardTrainer(model, train, val, settings, folder)

    def counts(self, train: Lessons, val: Lessons) -> dict[str, int]:
        """How many labels are trained on."""
        right, wrong = train.classes()
        labels = int(sum((weight > 0).sum() for weight in train.weights))
        return {"labels": labels, "labels_right": right, "labels_wrong": wrong}

    def facts(self) -> dict[str, Any]:
        """What the card of a model says of its data."""
        of_labels = {"method": self.method, "reward": self.reward, "labelers": list(self.labelers)}
        return {**of_labels, **read_as_facts(self.read_as)}


def _check_rewards(settings: TextTrainSettings, solutions: Sequence[Solution]) -> None:
    """Refuse `rewards` that the configuration sets and the data lacks."""
    use = getattr(settings, "rewards", "ignore")
    needed = use == "target" or (use == "weight" and "rewards" in settings.model_fields_set)
    if needed and not any(reward is not None for s in solutions for reward in s.rewards):
        raise DataError(
            f"rewards: {use} needs rewards of steps, and the data has none: label it with --reward HE or SE, or set "
            "rewards: ignore",
            field="rewards",
        )


def data_paths(settings: TextTrainSettings, label: LabelSettings | None) -> tuple[str, ...]:
    """Paths of the solutions: `data_path`, or what the `label` section writes.

    Raises:
        ConfigError: there is neither.
    """
    if settings.data_paths:
        return settings.data_paths
    if label is None:
        raise ConfigError(
            f"train ({settings.type}) needs data_path, or a label section whose data set it takes", key="data_path"
        )
    return (str(Path(label.save_dir) / label.dataset),)


@doing("reading the data")
def read_data(settings: TextTrainSettings, label: LabelSettings | None) -> TextData:
    """The solutions that the settings name: files or folders in any format that is read, and hub ids.

    Raises:
        ConfigError: there is neither `data_path` nor a `label` section.
        DataError: they cannot be read.
    """
    paths = data_paths(settings, label)
    left_out: Counter[str] = Counter()
    read_as: list[ReadAs] = []
    given = published_solutions(paths, left_out, train=True, columns=settings.columns, read_as=read_as)
    cards = [_card(Path(path)) for path in paths]
    kinds = {(card.get("method"), card.get("reward")) for card in cards}
    method, reward = kinds.pop() if len(kinds) == 1 else (None, None)
    labelers = tuple(sorted({str(card["labeler"]) for card in cards if card.get("labeler")}))
    return TextData(tuple(given), method, reward, labelers, dict(left_out), tuple(read_as))


def split_questions(solutions: Sequence[Solution], val_split: float, seed: int) -> tuple[IntArray, IntArray]:
    """Indices to train on and to hold out; all solutions of a question are on one side.

    Whether a question is held out depends on its text and the seed alone, not on the other data;
    at least one question is on each side.

    Raises:
        DataError: a share is to be held out and there is only one question.
    """
    names = [question_name(s) for s in solutions]
    rank = {name: hashlib.sha256(f"{seed}/{name}".encode()).digest() for name in set(names)}
    kinds = sorted(rank, key=lambda name: rank[name])
    if val_split == 0:
        return np.arange(len(names)), np.zeros(0, dtype=np.int64)
    if len(kinds) < 2:
        raise DataError("one question is too few to hold some out: give more, or set val_split: 0")
    below = sum(int.from_bytes(rank[name]) < val_split * 2**256 for name in kinds)
    held = set(kinds[: int(np.clip(below, 1, len(kinds) - 1))])
    inside = np.array([name in held for name in names])
    return np.flatnonzero(~inside), np.flatnonzero(inside)


@doing("preparing the data")
def make_lessons(model: TextRewardModel, solutions: Sequence[Solution], settings: TextTrainSettings) -> Lessons:
    """Solutions as the model reads them, with targets; what cannot be used is counted.

    Raises:
        DataError: a label is neither 0 nor 1 where hard ones are wanted and no threshold is given.
    """
    made: list[Any] = []
    counts: Counter[str] = Counter()
    for index, solution in enumerate(solutions):
        lesson = _lesson(model, solution, settings, counts)
        if isinstance(lesson, str):
            counts[lesson] += 1
        else:
            made.append((*lesson, index, question_name(solution)))
    readings, targets, weights, indices, questions = ([row[c] for row in made] for c in range(5))
    return Lessons(readings, targets, weights, indices, questions, dict(counts))


def _lesson(
    model: TextRewardModel, solution: Solution, settings: TextTrainSettings, counts: Counter[str]
) -> tuple[Reading, FloatArray, FloatArray] | str:
    """One solution as a lesson, or the reason why it is left out."""
    if not solution.steps:
        return "no_step"
    if model.learns_outcomes:
        if solution.is_correct is None:
            return "unknown_outcome"
        reading = model.reading_of(solution.as_episode())
        if isinstance(reading, Failure):
            return reading.reason
        return reading, np.array([float(solution.is_correct)], dtype=np.float32), np.ones(1, dtype=np.float32)
    target, weight = step_targets(solution, settings)
    if not weight.any():
        return "no_label"
    try:
        reading = model.read(solution.question, solution.steps, context=solution.context, tools=solution.tools)
    except DataError as error:
        return unread(error).reason
    room = model.room
    fitting = len(reading.ends_S) if room is None else int((reading.ends_S + 1 + reading.tail <= room).sum())
    if fitting < len(solution.steps):
        if not weight[:fitting].any():
            return "too_long"
        counts["cut"] += 1
        counts["cut_steps"] += int((weight[fitting:] > 0).sum())
        reading = Reading(reading.ids[: reading.ends_S[fitting - 1] + 1], reading.start, reading.ends_S[:fitting],
                          reading.tail)  # fmt: skip
        target, weight = target[:fitting], weight[:fitting]
    empty = ~reading.own_S & (weight > 0)
    if empty.any():  # a label of a step without a token of its own would be read at another step's
        counts["empty_steps"] += int(empty.sum())
        weight = np.where(empty, np.float32(0), weight)
        if not weight.any():
            return "no_label"
    return reading, target, weight


def one_class_warning(lessons: Lessons, what: str) -> str | None:
    """A warning about lessons in which everything is right, or everything wrong; None where there is both.

    Args:
        lessons: to train on.
        what: what their targets are about, in words.
    """
    right, wrong = lessons.classes()
    if not right + wrong or (right and wrong):
        return None
    only, other = ("right", "wrong") if right else ("wrong", "right")
    return (
        f"all {right + wrong} {what} to train on are {only}, none is {other}: the model can only learn to call "
        f"everything {only}; give it some that are {other}, or look at how they were labelled"
    )


def step_targets(solution: Solution, settings: TextTrainSettings) -> tuple[FloatArray, FloatArray]:
    """(S,) targets in [0, 1] and (S,) weights; a weight of 0 where there is nothing to learn.

    Raises:
        DataError: a label is neither 0 nor 1 where hard ones are wanted and no threshold is given.
    """
    settings = cast(StepwiseTrainSettings | VerdictTrainSettings, settings)
    n = len(solution.steps)
    targets, weights = np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    rewards = solution.rewards or (None,) * n
    if settings.rewards == "target":
        for k, reward in enumerate(rewards):
            if reward is not None:
                targets[k], weights[k] = target_of_reward(reward), 1.0
        return targets, weights
    for k, label in enumerate(solution.labels):
        if label is None:
            continue
        targets[k] = _target(solution, k, label, settings)
        reward = rewards[k] if settings.rewards == "weight" else None
        weights[k] = 1.0 if reward is None else abs(reward)
    return targets, weights


def _target(solution: Solution, k: int, label: float, settings: StepwiseTrainSettings | VerdictTrainSettings) -> float:
    if settings.labels == "soft":
        return label
    if settings.threshold is not None:
        return float(label >= settings.threshold)
    if label not in (0.0, 1.0):
        raise DataError(
            f"solution {solution.id}: labels[{k}] is {label:g}, which is neither right nor wrong: train with labels: "
            "soft, or give a threshold from which a label counts as right",
            field="labels",
        )
    return label


def _card(path: Path) -> dict[str, Any]:
    """The card of a folder that `guerdon label` wrote; empty for other files."""
    folder = path.parent if path.name == RECORDS else path
    file = folder / CARD
    if not file.is_file():
        return {}
    with boundary(DataError, f"{file} cannot be read"):
        card = json.loads(file.read_text(encoding="utf-8"))
    return card if isinstance(card, dict) else {}


# ---------------------------------------------------------------------------------------------------------------------


_FREE = FREE | {"wait_for_gpu", "keep_checkpoints", "columns"}  # may be others on resume; `data` says what was read


class TrainingData(Protocol):
    """What a reward model of text is trained on: `TextData` or `PreferenceData`, as `data` of its settings says.

    Attributes:
        rows_left_out: what `left_out` counts, in words.
        left_out: rows, by reason.
        separator: the most frequent end of a step.
        folder: below `save_dir`; None: that itself.
    """

    rows_left_out: ClassVar[str]

    @property
    def left_out(self) -> Mapping[str, int]: ...  # noqa: D102
    @property
    def separator(self) -> str: ...  # noqa: D102
    @property
    def folder(self) -> str | None: ...  # noqa: D102

    def lessons(self, model: TextRewardModel, settings: Any) -> tuple[Any, Any]:
        """What is trained on, and what is held out, as the model reads them."""

    def warning(self, train: Any, model: TextRewardModel) -> str | None:
        """What is wrong with the lessons; None: nothing."""

    def trainer(self, model: TextRewardModel, train: Any, val: Any, settings: Any, folder: Path) -> RewardTrainer:
        """What trains on the lessons."""

    def counts(self, train: Any, val: Any) -> dict[str, int]:
        """How much is judged in the lessons."""

    def facts(self) -> dict[str, Any]:
        """What the card of a model says of its data."""


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
    check_form(settings.start(study.text_default))
    found: TrainingData = data or loaded(settings.data).read(settings, study.label)
    if found.left_out:
        log_line(f"left out {found.rows_left_out}: {_counted(found.left_out)}")
    started = time.perf_counter()
    torch.set_num_threads(study.runner.threads)
    for key in ("wait_for_gpu", "quantize"):
        if distributed.peers() > 1 and getattr(settings, key) is not None:
            raise ConfigError(
                f"{key} works in one process only; leave it out, or start the training without torchrun", key=key
            )
    distributed.check_offload(settings, distributed.peers())
    if settings.wait_for_gpu is not None:
        show_only(wait_for_gpu(settings.wait_for_gpu))
    with seeded(None, resolve_device(settings.device)):
        model = start_model(settings, study.text_default, separator=found.separator)
        train, val = found.lessons(model, settings)
        digests = {"train": train.digest(), "val": val.digest()}
        record = {
            "settings": settings.model_dump(mode="json", exclude=_FREE),
            "policy": settings.start(study.text_default).model_dump(mode="json", exclude={"device", "cpu_offload"}),
            "data": digests,
        }
        folder = Path(settings.save_dir) / (found.folder or "")
        run = TrainingFolder(folder, record, resume=resume or settings.resume, keep=True)
        if run.metrics is not None:
            return TextTrainResult(folder, run.metrics)
        for what, lessons in (("to train on", train), ("held out", val)):
            if lessons.counts:
                log_line(f"solutions {what}: {len(lessons)}; not used or cut: {_counted(lessons.counts)}")
        warning = found.warning(train, model)
        if warning is not None:
            log_line(f"WARNING: {warning}")
        check_disk(folder, model.written_bytes())
        trainer = found.trainer(model, train, val, settings, folder)
        run.begin()
        run.train(trainer)
        metrics = {
            **(trainer.quality() if len(val) else {"loss": None}),
            **trainer.summary(),
            **_counts(found, train, val),
            "seconds": round(time.perf_counter() - started, 3),
            **({} if warning is None else {"warnings": [warning]}),
        }
    facts = {
        "data": digests,
        **found.facts(),
        "settings": settings.model_dump(mode="json"),
        "metrics": metrics,
    }

    def write() -> None:
        model.write(folder / FINAL, training=facts)
        trainer.save_state()
        write_questions(folder, train=train.questions, held_out=val.questions)
        run.finish(metrics)

    distributed.led(write)
    return TextTrainResult(folder, metrics)


def _counts(data: TrainingData, train: Lessons, val: Lessons) -> dict[str, Any]:
    """How many solutions, questions and labels were trained on, held out and left out."""
    return {
        "solutions": len(train),
        "val_solutions": len(val),
        "questions": len(set(train.questions)),
        "val_questions": len(set(val.questions)),
        **data.counts(train, val),
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
    check_form(settings.start(study.text_default))
    paths = data_paths(settings, study.label)
    there = all(Path(path).exists() for path in paths)
    found: TrainingData | None = loaded(settings.data).read(settings, study.label) if there else None
    separator = "\n" if found is None else found.separator
    model = start_model(settings, study.text_default, separator=separator, device="meta")
    check_disk(Path(settings.save_dir), model.written_bytes())
    if found is not None:
        items_to_train(found.lessons(model, settings)[0], settings)


def _counted(counts: Mapping[str, int]) -> str:
    """Counts by reason, as text."""
    return ", ".join(f"{n} {reason}" for reason, n in sorted(counts.items()))


# the model before its first gradient step


def _refuse_on_encoder(settings: PreferenceTrainSettings, start: TextPolicySettings) -> None:
    """Refuse keys that do nothing with an encoder, whose classifier has a head of its own.

    Raises:
        ConfigError: one is set.
    """
    idle = {
        "lora": settings.lora is not None,
        "head_epochs": settings.head_epochs > 0,
        "head_learning_rate": settings.head_learning_rate is not None,
        "length_coef": settings.length_coef > 0,
        "use_remove_padding": start.use_remove_padding,
    }
    for key, given in idle.items():
        if given:
            raise ConfigError.about(key, f": {start.path} is an encoder, which is trained as a whole; remove {key}")


def start_model(
    settings: TextTrainSettings, study_policy: TextPolicySettings, *, separator: str, device: str | None = None
) -> TextRewardModel:
    """The model before its first gradient step: a language model, its adapter, a fresh head.

    Args:
        settings: of `train`.
        study_policy: the study's policy.
        separator: what ends a step of the data.
        device: instead of the one of the settings; `meta`: see `outline`.

    Raises:
        CheckpointError: the language model cannot be read.
        ConfigError: it cannot be this kind of reward model, or 4 bits are set without a GPU.
        MissingDependencyError: 4 bits without bitsandbytes.
    """
    start = settings.start(study_policy)

    def fresh() -> TextPolicy:
        return load_policy(start, seed=settings.seed, device=device)

    kind = model_class(settings.type)
    loss = getattr(settings, "loss", "pointwise")
    threshold = getattr(settings, "reward_threshold", None if loss in PAIRED else 0.5)
    if getattr(settings, "attributes", None):
        loss = "regression"
    elif loss == "pointwise":
        loss = "bce"
    card = TextModelCard(
        kind=settings.type,
        form=kind.form,
        loss=loss,
        separator=separator,
        threshold=threshold,
        **_outputs(settings),
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
    if isinstance(settings, PreferenceTrainSettings) and device is None and starts_from_encoder(start):
        _refuse_on_encoder(settings, start)
        encoder = EncoderModel.begin(start, card, seed=settings.seed)
        encoder.policy.dropout = start.dropout is not False
        return encoder
    whole = settings.quantize is None or device == "meta"
    policy = fresh() if whole else _in_4_bits(start, settings)
    if card.adapters:
        assert start.lora is not None
        model: TextRewardModel = Ensemble.of(kind, policy, card, fresh, start.lora)
    else:
        model = kind.start(policy, card, fresh)
    if settings.type != "implicit":
        for one in model.members:
            one.policy.dropout = start.dropout is not False
    elif start.dropout:
        log_line(
            "WARNING: policy.dropout: log-ratios to a reference without dropout are trained with it; they measure the "
            "dropout too"
        )
    return model


def _outputs(settings: TextTrainSettings) -> dict[str, Any]:
    """Fields of the card about several outputs."""
    if isinstance(settings, PreferenceTrainSettings) and settings.attributes:
        return {"outputs": dict(settings.attributes)}
    if isinstance(settings, PreferenceTrainSettings) and settings.length_coef:
        return {"outputs": {"reward": 1.0, "length": 0.0}}
    if settings.members == 1:
        return {}
    members = {f"member_{k}": 1.0 for k in range(settings.members)}
    how = {"combine": settings.member_reward, "deviations": settings.deviations}
    return {"outputs": members, "adapters": settings.members_kind == "adapters", **how}


def _in_4_bits(start: TextPolicySettings, settings: TextTrainSettings) -> TextPolicy:
    """A frozen model in 4 bits (nf4, double quantisation) with a fresh adapter."""
    device = resolve_device(settings.device)
    if device.type != "cuda":
        raise ConfigError("quantize: nf4 needs a GPU, and there is none here; leave it out", key="quantize")
    with needs("quantize: nf4 needs bitsandbytes: pip install bitsandbytes"):
        import bitsandbytes  # noqa: F401
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    assert start.path is not None
    assert start.lora is not None
    config: Any = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    form = form_of(read_config(start.path, "the language model"), f"the language model {start.path!r}")
    if form is not None:
        raise ConfigError(
            f"quantize: nf4 would do nothing with {start.path!r}, stored by {form.method} already: leave it out",
            key="quantize",
        )
    model = read_pretrained(
        AutoModelForCausalLM, start.path, "the language model in 4 bits", dtype="auto", start=True,
        quantization_config=config, device_map={"": device.index or 0},
    )  # fmt: skip
    tokenizer = read_tokenizer(start.path, template=start.chat_template is None)
    give_template(tokenizer, start)
    base = SharedBase(model, tokenizer, start)
    return add_policy(base, "policy", start.lora, seed=settings.seed)
