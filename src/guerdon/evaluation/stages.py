"""The stage that judges reward models, `guerdon evaluate`; that of its `--attack` is in `suites/repair.py`.

    for card in EvaluateStage(only=("success",)).work(study):
        print(card.line)

What evaluates is imported when it is used: a study of several jobs reads the estimates alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from guerdon.errors import StudyError
from guerdon.pages.table import ResultTable
from guerdon.plan.estimate import estimate_evaluate
from guerdon.plan.stages import check_only
from guerdon.settings.evaluate import GateSettings
from guerdon.settings.study import Study
from guerdon.types import RewardModel


class EvaluatedCard(NamedTuple):
    """The evaluation of a model.

    Attributes:
        name: of the model: in the study, or its path.
        card: the figures as text for people.
        forecast: what the gate expects of it in RL.
        record: everything that was measured, as in `evaluation.json`.
        files: what was written, the record first; empty where nothing is kept.
    """

    name: str
    card: str
    forecast: dict[str, Any]
    record: Mapping[str, Any]
    files: tuple[Path, ...]

    @property
    def figures(self) -> ResultTable:
        """A row for each figure that has an interval; a name is the path in the record, joined by dots."""
        return ResultTable(list(_figures(self.record, "")), ("figure", "estimate", "low", "high", "n"))

    def __repr__(self) -> str:
        return f"<evaluation of {self.name}: {len(self.figures)} figures; forecast: {self.forecast['answer']}>"

    @property
    def line(self) -> str:
        """The card and where it is, for people."""
        shown = f"{self.name}\n{self.card}"
        if not self.files:
            return shown
        return f"{shown}\nwrote {self.files[0]} and {len(self.files) - 1} more files in the same folder"


def _figures(record: Any, name: str) -> Iterator[dict[str, Any]]:
    """The intervals of a record and of all records in it."""
    if not isinstance(record, Mapping):
        return
    if {"estimate", "low", "high"} <= record.keys():
        yield {"figure": name} | {key: record.get(key) for key in ("estimate", "low", "high", "n")}
        return
    for key, value in record.items():
        yield from _figures(value, f"{name}.{key}" if name else str(key))


@dataclass(frozen=True)
class EvaluateStage:
    """Evaluate the models of a study, or one that is named beside it.

    Attributes:
        only: names of models; empty: all.
        model: the one of a study that `guerdon.evaluation.by_path.study_of` made: its path, or the model itself.
        output: folder for what is written of it; None: nothing is kept.
    """

    only: tuple[str, ...] = ()
    model: str | RewardModel | None = None
    output: Path | None = None

    def check(self, study: Study) -> None:
        """Refuse data that cannot be evaluated on; no model is loaded and no frame decoded.

        Raises:
            StudyError: the study names no reward model, or none of this name.
            GuerdonError: as `check_evaluation` of its kind.
        """
        if study.text:
            from guerdon.evaluation.suites.text_suite import check_evaluation as check_texts

            return check_texts(study)
        from guerdon.evaluation.suites.image_suite import check_evaluation as check_episodes

        self._check_names(study)
        return check_episodes(study)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Models and seconds; of a language study also solutions."""
        return estimate_evaluate(study, self.only)

    def work(self, study: Study) -> list[EvaluatedCard]:
        """Evaluate them."""
        kept = self.model is None or self.output is not None
        with nullcontext(self.output) if kept else TemporaryDirectory() as place:
            folder = None if place is None else Path(place)
            cards = self._texts(study, folder) if study.text else self._robots(study, folder)
        return cards if kept else [card._replace(files=()) for card in cards]

    def gate(self, study: Study, cards: Sequence[EvaluatedCard]) -> list[str]:
        """Refuse models that likely harm RL.

        Returns:
            Lines about the models that have no forecast and passed.

        Raises:
            HarmError: as `check_gate`.
        """
        from guerdon.evaluation.gate.gate_card import check_gate

        how = GateSettings() if study.evaluate is None else study.evaluate.gate
        return check_gate({card.name: card.forecast for card in cards}, how)

    def _texts(self, study: Study, folder: Path | None) -> list[EvaluatedCard]:
        """Models of text; what is written of the only one goes into the folder, if there is one."""
        from guerdon.evaluation.suites.text_suite import evaluate_text, evaluate_text_study, text_of, text_settings
        from guerdon.models.scores import RECORD

        if self.model is None or isinstance(self.model, str):
            found = evaluate_text_study(study, only=self.only, folder=folder)
        else:
            assert folder is not None, "the evaluation of one model has a folder"
            record = evaluate_text(self.model, text_settings(study.text_evaluate, study.data), folder)
            found = {self.model.info.name: (record, folder)}
        cards = []
        for name, (record, where) in found.items():
            files = tuple(where / file for file in (RECORD, "evaluation.txt", *record["pictures"].values()))
            shown = self.model if isinstance(self.model, str) else name
            cards.append(EvaluatedCard(shown, text_of(record), record["forecast"], record, files))
        return cards

    def _robots(self, study: Study, folder: Path | None) -> list[EvaluatedCard]:
        """Models of robots, likewise."""
        from guerdon.evaluation.by_path import robot_model
        from guerdon.evaluation.suites.image_suite import (
            evaluate_on_data,
            evaluate_study,
            evaluation_text,
            write_evaluation,
        )

        self._check_names(study)
        if self.model is None or folder is None:
            found = evaluate_study(study, only=self.only)
        else:
            model = robot_model(self.model) if isinstance(self.model, str) else self.model
            name = self.model if isinstance(self.model, str) else model.info.name
            evaluation = evaluate_on_data(model, study)
            found = {name: (evaluation, write_evaluation(evaluation, folder))}
        cards = []
        for name, (evaluation, paths) in found.items():
            files = (paths["json"], *(path for key, path in paths.items() if key != "json"))
            record = evaluation.to_dict()
            cards.append(EvaluatedCard(name, evaluation_text(evaluation), record["forecast"], record, files))
        return cards

    def _check_names(self, study: Study) -> None:
        """Refuse a study of robots without reward models, and names that are none of theirs."""
        if self.model is not None:
            return
        models = (*study.train, *study.control_evaluate.remote)
        if not models:
            raise StudyError(
                "{study} has neither a train section nor evaluate.remote: it names no reward model", key="train"
            )
        check_only(self.only, models)
