"""The stages that train: the reward models of a study, one of them by its type, a first policy.

    TrainStage(only=("success",)).work(study)["success"].metrics["auroc"]

Trainers are imported when they are used: a study of several jobs reads the estimates alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from guerdon.plan.estimate import estimate_sft, estimate_train
from guerdon.plan.stages import check_only, section, stage
from guerdon.settings.study import Study

if TYPE_CHECKING:
    from guerdon.train.text import TextTrainResult
    from guerdon.train.trainer import TrainResult


def _say_nothing(line: str) -> None:
    """Nobody listens."""


def in_words(metrics: Mapping[str, object]) -> str:
    """Numbers of a training in one line."""
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in metrics.items())


# reward models


@dataclass(frozen=True)
class TrainStage:
    """Train the reward models of the `train` section, one after the other.

    Attributes:
        only: names of models; empty: all.
        resume: continue from the newest checkpoints, and keep what is finished.
        say: called with a line about each model once it is trained.
    """

    only: tuple[str, ...] = ()
    resume: bool = False
    say: Callable[[str], None] = _say_nothing

    def check(self, study: Study) -> None:
        """Refuse data that cannot be read, trained on or split; what is not there yet is skipped.

        Raises:
            StudyError: the study trains no model, or none of this name.
            GuerdonError: as the training of a model.
        """
        for training in self._trainings(study):
            training.check(study)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Models, seconds and bytes."""
        return estimate_train(study, self.only)

    def work(self, study: Study) -> dict[str, TrainResult | TextTrainResult]:
        """Train them; the results by name. Under `torchrun`, models that several processes train come first."""
        import torch

        from guerdon.compute import distributed

        trainings = self._trainings(study)
        torch.set_num_threads(study.runner.threads)
        if distributed.launched() > 1:
            trainings.sort(key=lambda one: not one.together(study))  # processes join once
        results: dict[str, TrainResult | TextTrainResult] = {}
        for together, group in groupby(trainings, key=lambda one: one.together(study)):
            joined = distributed.joined(study.runner.collective_timeout) if together else nullcontext()
            with joined, distributed.together():
                for training in group:
                    done = results[training.name] = training.work(study)
                    if distributed.is_first():
                        self.say(f"wrote {training.name} to {done.folder}: {in_words(done.metrics)}")
        return results

    def _trainings(self, study: Study) -> list[Training]:
        """The training of each model."""
        models = section(study, "train")
        check_only(self.only, tuple(models))
        return [stage(models[name].stage, name=name, resume=self.resume) for name in self.only or models]


@dataclass(frozen=True)
class ImageTraining:
    """Train a reward model on frames or states.

    Attributes:
        name: of the model in the `train` section.
        resume: continue from its newest checkpoint, or keep it where it is finished.
    """

    name: str
    resume: bool = False

    def together(self, study: Study) -> bool:
        """Whether the processes of `torchrun` share its weights, instead of a batch alone."""
        return study.image_models[self.name].fsdp

    def check(self, study: Study) -> None:
        """Refuse episodes that cannot be trained on or split; their frames are not decoded.

        Raises:
            DataError: as `train_image_model`.
        """
        from guerdon.train.images import check_episodes

        check_episodes(self.name, study.image_models[self.name], study.collect)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Seconds and bytes."""
        return estimate_train(study, [self.name])

    def work(self, study: Study) -> TrainResult:
        """Train it."""
        from guerdon.train.images import train_image_model

        return train_image_model(study.image_models[self.name], resume=self.resume)


@dataclass(frozen=True)
class VLMTraining:
    """Fine-tune a vision-language model into a reward; attributes, see `ImageTraining`."""

    name: str
    resume: bool = False

    def together(self, study: Study) -> bool:
        """The processes of `torchrun` share its weights."""
        return True

    def check(self, study: Study) -> None:
        """Refuse episodes that cannot be trained on or split; their frames are not decoded.

        Raises:
            DataError: as `train_vlm`.
        """
        from guerdon.train.images import check_episodes

        check_episodes(self.name, study.vlm_models[self.name], study.collect)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Seconds and bytes."""
        return estimate_train(study, [self.name])

    def work(self, study: Study) -> TrainResult:
        """Train it."""
        from guerdon.train.vlm import train_vlm

        return train_vlm(study.vlm_models[self.name], resume=self.resume)


@dataclass(frozen=True)
class TextTraining:
    """Train a reward model of text, whatever its head; attributes, see `ImageTraining`."""

    name: str
    resume: bool = False

    def together(self, study: Study) -> bool:
        """The processes of `torchrun` share its weights."""
        return True

    def check(self, study: Study) -> None:
        """Refuse solutions, a model or a disk that cannot be used; no weights are read.

        Raises:
            GuerdonError: as `check_training`.
        """
        from guerdon.train.text import check_training

        check_training(study.text_models[self.name], study)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Gradient steps, seconds and bytes."""
        return estimate_train(study, [self.name])

    def work(self, study: Study) -> TextTrainResult:
        """Train it."""
        from guerdon.train.text import train_text_model

        return train_text_model(study.text_models[self.name], study, resume=self.resume)


Training = ImageTraining | VLMTraining | TextTraining


# a first policy


class PolicyResult(NamedTuple):
    """A policy that was trained on examples: its folder, and numbers."""

    folder: Path
    metrics: dict[str, Any]

    @property
    def line(self) -> str:
        """For people."""
        return f"wrote a policy to {self.folder}: {in_words(self.metrics)}"


@dataclass(frozen=True)
class BCStage:
    """Clone collected episodes into a first policy.

    Attributes:
        resume: keep a policy that is finished.
    """

    resume: bool = False

    def check(self, study: Study) -> None:
        """Refuse a policy or episodes that cannot be cloned; frames are decoded of one episode.

        Raises:
            GuerdonError: as `check_bc`.
        """
        section(study, "bc")  # said before anything heavy is imported
        from guerdon.train.bc import check_bc

        check_bc(study)

    def estimate(self, study: Study) -> dict[str, Any]:
        """No numbers: how much there is to clone is known only where the same study collects it."""
        return {"policy": "behaviour cloning"}

    def work(self, study: Study) -> PolicyResult:
        """Clone them."""
        section(study, "bc")
        from guerdon.train.bc import train_bc

        return PolicyResult(*train_bc(study, resume=self.resume))


@dataclass(frozen=True)
class SFTStage:
    """Fine-tune a language model on worked solutions into a first policy.

    Attributes:
        resume: continue from the newest checkpoint, if there is one.
    """

    resume: bool = False

    def check(self, study: Study) -> None:
        """Refuse solutions, a model or a disk that cannot be used; no weights are read.

        Raises:
            GuerdonError: as `check_sft`.
        """
        section(study, "sft")
        from guerdon.train.sft import check_sft

        check_sft(study)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Gradient steps, seconds and bytes."""
        return estimate_sft(study)

    def work(self, study: Study) -> PolicyResult | None:
        """Fine-tune it; None in another process than the first of `torchrun`."""
        section(study, "sft")
        from guerdon.compute import distributed
        from guerdon.train.sft import train_sft_study

        with distributed.joined(study.runner.collective_timeout), distributed.together():
            found = PolicyResult(*train_sft_study(study, resume=self.resume))
        return found if distributed.is_first() else None
