"""`guerdon evaluate` for a language study: judge its reward models, and others it names, on what they have not seen.

A trained model is judged beside its weights: the folder that holds its `final_checkpoint` gets `evaluation.json`. This
module does not know how models were trained, only where they lie and which questions they learnt from.

    for name, (record, folder) in evaluate_text_study(study).items():
        print(name, record["generated"]["process_bench"]["average_f1"]["measured"]["estimate"], folder)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from guerdon.episodes.solution_files import published_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import CheckpointError, ConfigError
from guerdon.evaluate.run_text import evaluate_text
from guerdon.evaluate.sampled import sampled_solutions
from guerdon.evaluate.seen import questions_learnt
from guerdon.models.text_load import FINAL, find_text_model, load_text_model
from guerdon.settings.evaluate_text import EvaluateTextSettings, GeneratedBenchSettings
from guerdon.settings.study import Study
from guerdon.settings.text_sources import judged_names
from guerdon.worlds.prompt_files import load_prompts


@dataclass(frozen=True)
class Candidate:
    """A reward model to judge.

    Attributes:
        name: how the study calls it.
        path: a folder or hub id.
        folder: receives its evaluation.
        adapter: which family's way to read scores.
        micro_batch_size: solutions per forward pass.
        taken: questions that it was trained on; a generated set avoids them.
        learnt: hashes of the questions that it says it was trained on.
    """

    name: str
    path: str
    folder: Path
    adapter: str = "auto"
    micro_batch_size: int = 16
    taken: frozenset[str] = frozenset()
    learnt: frozenset[str] = frozenset()


def evaluate_text_study(study: Study, *, only: Sequence[str] = ()) -> dict[str, tuple[dict[str, Any], Path]]:
    """Judge the models of the `train` section and of `evaluate.models`.

    Args:
        study: the configuration.
        only: names of models; all by default.

    Returns:
        Model name to the content of its `evaluation.json` and the folder that this lies in.

    Raises:
        ConfigError: an unknown name, or nothing to judge or to judge on.
        CheckpointError: a model is not trained yet.
        DataError: a file cannot be read, or there is nothing to judge on.
    """
    torch.set_num_threads(study.runner.threads)
    settings = how(study)
    results = {}
    for candidate in candidates(study, only=only):
        model = load_text_model(candidate.path, adapter=candidate.adapter, micro_batch_size=candidate.micro_batch_size)
        samples = _samples(study, settings, candidate.folder)
        record = evaluate_text(
            model, settings, candidate.folder, taken=candidate.taken, learnt=candidate.learnt, samples=samples
        )
        results[candidate.name] = (record, candidate.folder)
    return results


def _samples(study: Study, settings: EvaluateTextSettings, folder: Path) -> list[Solution]:
    """What best-of-n chooses from, where its settings name no file; beside the evaluation, so that jobs do not meet."""
    b = settings.best_of_n
    if b is None or b.samples is not None:
        return []
    return sampled_solutions(study, questions=b.questions, n=b.n, folder=folder / "samples", temperature=b.temperature)


def how(study: Study) -> EvaluateTextSettings:
    """The `evaluate` section; without one, first errors and attacks on new problems of the study's own family.

    Raises:
        ConfigError: there is none, and the study's questions are not generated.
    """
    if study.text_evaluate is not None:
        return study.text_evaluate
    if study.data is None or study.data.type != "generated":
        raise ConfigError(
            "this study does not say what its reward models are judged on: give an evaluate section with aggregation "
            "and process_bench, prm_bench, pairs, best_of_n or generated"
        )
    return EvaluateTextSettings(aggregation="min", generated=GeneratedBenchSettings(families=(study.data.task,)))


def candidates(study: Study, *, only: Sequence[str] = ()) -> list[Candidate]:
    """The models to judge.

    Raises:
        ConfigError: a name that the study lacks or has twice, or no model at all.
        CheckpointError: a model of the `train` section is not trained yet.
    """
    third = {} if study.text_evaluate is None else study.text_evaluate.models
    asked = training_questions(study)
    found = []
    for name in judged_names(study.train, third, only):
        if name in third:
            one = third[name]
            folder = third_party_folder(study, name)
            own = find_text_model(one.path)
            learnt = frozenset() if own is None else questions_learnt(own.parent)
            found.append(Candidate(name, one.path, folder, one.adapter, one.micro_batch_size, asked, learnt))
        else:
            checkpoint = trained_checkpoint(study, name)
            taken = asked | labelled_questions(study, name)
            folder = checkpoint.parent
            found.append(Candidate(name, str(checkpoint), folder, taken=taken, learnt=questions_learnt(folder)))
    return found


def third_party_folder(study: Study, name: str) -> Path:
    """Where the evaluation of one of `evaluate.models` goes."""
    own = None if study.text_evaluate is None else study.text_evaluate.save_dir
    return Path(own if own is not None else f"{study.work_dir}/models/{study.task_name}") / name


def trained_checkpoint(study: Study, name: str) -> Path:
    """The final checkpoint of a model of the `train` section: that of the study's labels, else the only one.

    Raises:
        CheckpointError: it is not trained yet, or there are several.
    """
    root = Path(study.train[name].save_dir)
    if study.label is not None:
        labelled = root / f"method{study.label.method}_{study.label.reward}" / FINAL
        if labelled.is_dir():
            return labelled
    found = find_text_model(str(root))
    if found is None:
        raise CheckpointError(f"{root}: no {FINAL} here; train it first: guerdon train STUDY --only {name}")
    return found


def training_questions(study: Study) -> frozenset[str]:
    """The questions of a generated study's training prompts: a policy that a model started from may know them.

    Raises:
        DataError: the task has fewer problems than the study asks for.
    """
    if study.data is None or study.data.type != "generated":
        return frozenset()
    return frozenset(prompt.question for prompt in load_prompts(study.data)[0])


def labelled_questions(study: Study, name: str) -> frozenset[str]:
    """Questions of the labelled solutions that a model of the `train` section was trained on.

    Raises:
        DataError: a file of labelled solutions cannot be read.
    """
    settings, label = study.train[name], study.label
    paths = settings.data_paths
    if not paths and label is not None:
        paths = (str(Path(label.save_dir) / label.dataset),)
    return frozenset(solution.question for solution in published_solutions(paths, Counter()))
