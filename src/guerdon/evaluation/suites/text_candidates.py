"""The reward models that `guerdon evaluate` judges in a language study, and what each was trained on.

for one in candidates(study): print(one.name, one.model.path, one.folder)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from guerdon.episodes.solution_files import published_solutions
from guerdon.errors import CheckpointError, boundary
from guerdon.models.text.text_card import CARD
from guerdon.models.text.text_load import FINAL, find_text_model
from guerdon.settings.evaluate import ThirdPartySettings, judged_names
from guerdon.settings.label import LabelSettings
from guerdon.settings.study import Study
from guerdon.settings.train import PreferenceTrainSettings
from guerdon.tasks.prompt_files import load_prompts
from guerdon.tasks.trained_questions import trained_questions


@dataclass(frozen=True)
class Candidate:
    """A reward model to evaluate.

    Attributes:
        name: as in the study.
        model: its path (a folder or hub id), and how it is read.
        folder: receives its evaluation.
        exclude: questions that it was trained on; a generated set avoids them.
        training_hashes: hashes of the questions in the model's own list of those that it was trained on.
        columns: what the columns of its training data were for.
    """

    name: str
    model: ThirdPartySettings
    folder: Path
    exclude: frozenset[str]
    training_hashes: frozenset[str]
    columns: Mapping[str, str] = field(default_factory=dict)


def candidates(study: Study, *, only: Sequence[str] = ()) -> list[Candidate]:
    """The models to evaluate.

    Raises:
        ConfigError: a name that the study lacks or has twice, or no model at all.
        CheckpointError: a model of the `train` section is not trained yet.
        DataError: a file of labelled solutions cannot be read, or the task has too few problems.
    """
    third = {} if study.text_evaluate is None else study.text_evaluate.models
    trained_on = frozenset[str]()  # by a policy that a model started from, perhaps
    if study.data is not None and study.data.type == "generated":
        trained_on = frozenset(prompt.question for prompt in load_prompts(study.data)[0])
    found = []
    for name in judged_names(study.train, third, only):
        if name in third:
            own = find_text_model(third[name].path)
            hashes = frozenset() if own is None else trained_questions(own.parent)
            place = third_party_folder(study, name)
            found.append(Candidate(name, third[name], place, trained_on, hashes, _columns_of(own)))
        else:
            settings = study.train[name]
            checkpoint = trained_checkpoint(settings.save_dir, study.label, name)
            labels = () if study.label is None else (str(Path(study.label.save_dir) / study.label.dataset),)
            of_pairs = isinstance(settings, PreferenceTrainSettings)  # whose prompts are known by their hashes below
            labelled = () if of_pairs else published_solutions(settings.data_paths or labels, Counter(), train=True)
            exclude = trained_on | {solution.question for solution in labelled}
            model, folder = ThirdPartySettings(path=str(checkpoint), device=settings.device), checkpoint.parent
            hashes = trained_questions(folder)
            found.append(Candidate(name, model, folder, exclude, hashes, _columns_of(checkpoint)))
    return found


def _columns_of(folder: Path | None) -> Mapping[str, str]:
    """What the columns of a model's training data were for, as its card says.

    Args:
        folder: of the model; None: it is none of guerdon's.

    Raises:
        CheckpointError: the card cannot be read.
    """
    if folder is None:
        return {}
    with boundary(CheckpointError, f"{folder / CARD} cannot be read"):
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        return dict((card.get("training") or {}).get("columns") or {})


def third_party_folder(study: Study, name: str) -> Path:
    """Where the evaluation of one of `evaluate.models` goes."""
    own = None if study.text_evaluate is None else study.text_evaluate.save_dir
    return Path(own if own is not None else f"{study.work_dir}/models/{study.task_name}") / name


def trained_checkpoint(save_dir: str, label: LabelSettings | None, name: str) -> Path:
    """The final checkpoint of a model of the `train` section: that of the study's labels, else the only one.

    Raises:
        CheckpointError: it is not trained yet, or there are several.
    """
    root = Path(save_dir)
    if label is not None:
        labelled = root / f"method{label.method}_{label.reward}" / FINAL
        if labelled.is_dir():
            return labelled
    found = find_text_model(str(root))
    if found is None:
        raise CheckpointError(f"{root}: no {FINAL} here; train it first: guerdon train STUDY --only {name}")
    return found
