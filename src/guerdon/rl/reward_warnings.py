"""What a run must say about its reward models: that they likely harm, or that attacks fooled them.

It reads the cards next to the models; nothing is evaluated again.

    for line in reward_warnings(study):
        log_line(f"WARNING: {line}")
"""

from __future__ import annotations

from pathlib import Path

from guerdon.evaluation.gate.gate_card import card_folders, harm_warning, remote_folder
from guerdon.models.scores import RECORD
from guerdon.settings.evaluate import GateSettings
from guerdon.settings.reward_models import RemoteModelSettings, RewardModelSettings
from guerdon.settings.reward_source import TextSource
from guerdon.settings.study import Study


def reward_warnings(study: Study) -> list[str]:
    """A line for each thing that a reader must know of the reward models of a run.

    Raises:
        DataError: a card cannot be read.
    """
    return harm_warnings(study) + (attack_warnings(study) if study.text else [])


def harm_warnings(study: Study) -> list[str]:
    """A line for each reward model that likely harms, as its card says.

    Raises:
        DataError: a card cannot be read.
    """
    gate = GateSettings() if study.evaluate is None else study.evaluate.gate
    lines = []
    for name, source in study.reward.sources.items() if study.reward.use_reward_model else ():
        if name == study.reward.truth:
            continue
        path = source.model.checkpoint
        found = card_folder(study, path) if study.text and path is not None else None
        if found is not None:
            folders = [found]
        elif path is not None:
            folders = card_folders(path)
        else:
            folders = _remote_folders(study, source.model)
        warning = harm_warning(folders, gate.max_harm)
        lines += [] if warning is None else [f"reward {name}: {warning} ({source.model.origin})"]
    return lines


def _remote_folders(study: Study, model: RewardModelSettings) -> list[Path]:
    """Where the card of a model on a reward server lies that the same study evaluates (`evaluate.remote`)."""
    if study.text or not isinstance(model, RemoteModelSettings):
        return []
    evaluated = study.control_evaluate.remote.items()
    return [remote_folder(study, name) for name, one in evaluated if one.address == model.remote.address]


def attack_warnings(study: Study) -> list[str]:
    """A line for each reward model of a language study that is not known to withstand attacks.

    Raises:
        DataError: a report card cannot be read.
    """
    from guerdon.evaluation.suites.text_suite import attacks_that_fooled

    lines = []
    for name, source in study.text_reward.of(TextSource).items():
        if name == study.reward.truth:
            continue
        path = source.model.origin
        folder = card_folder(study, path)
        fooled = None if folder is None else attacks_that_fooled(folder)
        if fooled:
            lines.append(
                f"reward {name}: these attacks fooled its model: {', '.join(fooled)} (see "
                f"{folder}/evaluation.txt). A policy that is rewarded by it may learn them; watch the hacking alarm"
            )
        elif fooled is None:
            lines.append(
                f"reward {name}: its model ({path}) was never attacked, so how easily it is fooled is not "
                "known. Run `guerdon evaluate` on a study that trains it, or that names it in evaluate.models"
            )
    return lines


def card_folder(study: Study, path: str) -> Path | None:
    """The folder with the evaluation of the model at this path; None where there is none.

    It is the folder of its checkpoint, its own, or that of `evaluate.models`.

    Raises:
        CheckpointError: the path means several models.
    """
    from guerdon.evaluation.suites.text_candidates import third_party_folder
    from guerdon.models.text.text_load import find_text_model

    own = find_text_model(path)
    places = [Path(path)] if own is None else [own.parent]
    evaluate = study.text_evaluate
    if evaluate is not None:
        places += [third_party_folder(study, name) for name, one in evaluate.models.items() if one.path == path]
    return next((place for place in places if (place / RECORD).is_file()), None)
