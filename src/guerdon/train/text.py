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

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from guerdon.compute import distributed
from guerdon.compute.devices import resolve_device, seeded, show_only, wait_for_gpu
from guerdon.compute.finite import refuse_to_read
from guerdon.compute.packaged import local_model
from guerdon.errors import CheckpointError, ConfigError, needs
from guerdon.files.atomic import write_json
from guerdon.models.text.ensemble import Ensemble
from guerdon.models.text.text_load import FINAL, model_class
from guerdon.models.text.text_model import TextModelCard, TextRewardModel
from guerdon.network.hub import check_model, reading
from guerdon.plan.stages import loaded
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy, add_policy
from guerdon.policies.language.text_files import check_disk, give_template, load_policy
from guerdon.policies.pretrained.reading import read_tokenizer
from guerdon.processes.progress import log_line
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.train import PreferenceTrainSettings, TextTrainSettings
from guerdon.train.lessons import PAIRED, Lessons, items_to_train
from guerdon.train.reward_trainer import RewardTrainer
from guerdon.train.text_data import TextData, data_paths
from guerdon.train.trainer import FREE, TrainingFolder

_FREE = FREE | {"wait_for_gpu", "keep_checkpoints"}  # may be others on resume


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
        ...

    def warning(self, train: Any, model: TextRewardModel) -> str | None:
        """What is wrong with the lessons; None: nothing."""
        ...

    def trainer(self, model: TextRewardModel, train: Any, val: Any, settings: Any, folder: Path) -> RewardTrainer:
        """What trains on the lessons."""
        ...

    def counts(self, train: Any, val: Any) -> dict[str, int]:
        """How much is judged in the lessons."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the card of a model says of its data."""
        ...


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
    found: TrainingData = data or loaded(settings.data).read(settings, study.label)
    if found.left_out:
        log_line(f"left out {found.rows_left_out}: {_counted(found.left_out)}")
    started = time.perf_counter()
    torch.set_num_threads(study.runner.threads)
    for key in ("wait_for_gpu", "quantize"):
        if distributed.peers() > 1 and getattr(settings, key) is not None:
            raise ConfigError(f"{key} works in one process only; leave it out, or start the training without torchrun")
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
    questions = {"train": sorted(set(train.questions)), "held_out": sorted(set(val.questions))}

    def write() -> None:
        model.write(folder / FINAL, training=facts)
        trainer.save_state()
        write_json(folder / "questions.json", questions)
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


def start_model(
    settings: TextTrainSettings, study_policy: TextPolicySettings, *, separator: str, device: str | None = None
) -> TextRewardModel:
    """The model before its first gradient step: a language model, its adapter, a fresh head.

    Args:
        settings: of `train`.
        study_policy: the study's policy.
        separator: what ends a step of the data.
        device: instead of the one of the settings; `meta`: as of `outline`.

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
    card = TextModelCard(
        kind=settings.type,
        form=kind.form,
        loss="regression" if getattr(settings, "attributes", None) else "bce" if loss == "pointwise" else loss,
        separator=separator,
        threshold=getattr(settings, "reward_threshold", None if loss in PAIRED else 0.5),
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
