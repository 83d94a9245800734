"""The stages of a study, all of one form: what a stage refuses, what it costs, and its work.

    collect = stage("collect")
    collect.check(study)           # refuses what the start of the work refuses; nothing is written
    collect.estimate(study)        # {"episodes": 40, "seconds": 25.0, "bytes": 45_000_000}
    result = collect.work(study)

    stage("train", only=("success",), resume=True).work(study)

Options of a command apart from its study (`only`, `resume`, ...) are fields of the stage. A stage is imported when it
is asked for: this module knows their names and nothing else of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from guerdon.errors import StudyError

if TYPE_CHECKING:
    from guerdon.settings.study import Study

Of = TypeVar("Of", contravariant=True)


class Stage(Protocol[Of]):
    """A stage over a study, or over settings of its own (`compare`, `serve`, `score`)."""

    def check(self, study: Of) -> None:
        """Refuse what the start of the work refuses, as far as that needs no trained weights; nothing is written.

        Raises:
            GuerdonError: with the reason.
        """
        ...

    def estimate(self, study: Of) -> Mapping[str, Any] | str:
        """What the work takes, before it starts: counts, `seconds`, `bytes`, `peak_bytes`; or the same in words."""
        ...

    def work(self, study: Of) -> Any:
        """Do the work. What has a `line` says in it, for people, what was done.

        Raises:
            GuerdonError: whatever stopped it.
        """
        ...


STAGES = {
    "collect": "guerdon.collect.stage:CollectStage",
    "label": "guerdon.labels.stage:LabelStage",
    "train": "guerdon.train.stages:TrainStage",
    "train.image": "guerdon.train.stages:ImageTraining",
    "train.vlm": "guerdon.train.stages:VLMTraining",
    "train.text": "guerdon.train.stages:TextTraining",
    "bc": "guerdon.train.stages:BCStage",
    "sft": "guerdon.train.stages:SFTStage",
    "evaluate": "guerdon.evaluation.stages:EvaluateStage",
    "attack": "guerdon.evaluation.suites.repair:AttackStage",
    "search": "guerdon.evaluation.searching.stage:SearchStage",
    "run": "guerdon.comparison.single_run:RunStage",
    "compare": "guerdon.comparison.study:CompareStage",
    "serve": "guerdon.serve.launch:ServeStage",
    "score": "guerdon.evaluation.scoring.score_logs:ScoreStage",
}
"""Stages by name. Those behind `train.` train one model; its section says which (`stage` in `settings/train.py`)."""


def stage(name: str, /, **options: Any) -> Any:
    """A stage.

    Args:
        name: one of `STAGES`.
        options: fields of the stage, such as `only` and `resume`.
    """
    return loaded(STAGES[name])(**options)


def loaded(text: str) -> Any:
    """The object that a text `module:object` names, imported now."""
    module, _, name = text.partition(":")
    return getattr(import_module(module), name)


_WITHOUT = {
    "collect": ": it needs at least collect.save_dir",
    "label": "; an empty one (label: {}) labels by a judge at Anthropic",
    "train": ": it names the reward models to train and to evaluate",
    "bc": ": it needs at least bc.data_path and bc.save_dir",
    "sft": ": it needs at least sft.save_dir",
    "search": ": it needs at least search.model and search.aggregation",
}  # what is said where a section is missing


def section(study: Study, name: str) -> Any:
    """The section of a study that a stage is about.

    Raises:
        StudyError: the study has none.
    """
    found = getattr(study, name)
    if not found:
        raise StudyError(f"{{study}} has no {name} section{_WITHOUT[name]}", key=name)
    return found


def check_only(only: Sequence[str], models: Sequence[str]) -> None:
    """Refuse names of `only` that are none of a study's reward models.

    Raises:
        StudyError: one is none.
    """
    for name in only:
        if name not in models:
            raise StudyError(f"--only {name}: {{study}} has the reward models {', '.join(models)}", key="--only")
