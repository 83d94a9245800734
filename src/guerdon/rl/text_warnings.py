"""What a run must say about the judges that pay it: those that were never attacked, and those that attacks fooled.

`guerdon evaluate` leaves the report card of a model beside it; this module finds and reads it. It does not know how
a model is attacked, or loads one.

    for line in judge_warnings(study): print(line)
"""

from __future__ import annotations

from pathlib import Path

from guerdon.evaluate.run_text import RECORD, attacks_that_fooled
from guerdon.evaluate.text_study import third_party_folder
from guerdon.models.text_load import find_text_model
from guerdon.settings.study import Study


def judge_warnings(study: Study) -> list[str]:
    """A line for each reward model of a language study that is not known to withstand attacks.

    Raises:
        DataError: a report card cannot be read.
    """
    lines = []
    for name, path in _judges(study).items():
        folder = card_folder(study, path)
        fooled = None if folder is None else attacks_that_fooled(folder)
        if fooled:
            lines.append(
                f"reward source {name}: these attacks fooled its model: {', '.join(fooled)} (see "
                f"{folder}/evaluation.txt). A policy that is paid by it may learn them; watch the hacking alarm"
            )
        elif fooled is None:
            lines.append(
                f"reward source {name}: nobody has attacked its model ({path}), so how easily it is fooled is not "
                "known. Run `guerdon evaluate` on a study that trains it, or that names it in evaluate.models"
            )
    return lines


def card_folder(study: Study, path: str) -> Path | None:
    """Where the evaluation of the model at this path lies; None where there is none.

    Beside its checkpoint, in its folder, or where the study puts that of `evaluate.models`.

    Raises:
        CheckpointError: the path means several models.
    """
    own = find_text_model(path)
    places = [Path(path)] if own is None else [own.parent]
    evaluate = study.text_evaluate
    if evaluate is not None:
        places += [third_party_folder(study, name) for name, one in evaluate.models.items() if one.path == path]
    return next((place for place in places if (place / RECORD).is_file()), None)


def _judges(study: Study) -> dict[str, str]:
    """Reward models that somebody trained before the run, by the name of their source, with their paths."""
    found = {name: source.model.origin for name, source in study.text_sources.items()}
    section = study.reward_model
    if section is not None and section.path is not None:
        found["rm"] = section.path
    return found
