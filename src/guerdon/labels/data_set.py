"""The labelled data set on disk: records, other formats, the table of fail rates, and a card with counts and settings.

Its folder, such as `data/prm_dataset_method1_HE`, holds:

    records.jsonl      the seed's records, without loss
    training.jsonl     a row per step, and the other formats of the settings
    fail_rates.jsonl   a row per question that was tried
    card.json          counts, failures by reason, costs, the settings

Rewards of steps are HE or SE. With i the step from 0 and n the number of steps:

    HE   +1 where the step and the whole solution are right, else -1
    SE   +(0.5 + 0.5 (i+1)/n) for a right step, -(0.5 + 0.5 (i+1)/n) for a wrong one

A step is right where its label is at least 0.5, as `Solution.first_error` has it. Both magnitude and sign are kept:
`target` maps a reward to the probability that a model is trained towards. The seed's own training used the sign alone.

    done = write(Path("data/prm_dataset_method1_HE"), solutions, card, study.label, table)
    with_rewards(solution, "SE").rewards         # (0.75, -1.0)
    target(-0.75)                       # 0.125
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guerdon import __version__
from guerdon.episodes.solution_files import read_solutions, write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError, boundary
from guerdon.files.atomic import write_json, write_text
from guerdon.reading.data_sets import RECORDS
from guerdon.settings.label import LabelSettings, Reward


def hard_exact(label: float | None, is_correct: bool | None) -> float | None:
    """HE of one step; None where its label is missing, or it is right and whether the solution is right is unknown."""
    if label is None or (label >= 0.5 and is_correct is None):
        return None
    return 1.0 if label >= 0.5 and is_correct else -1.0


def soft_exact(label: float | None, step: int, steps: int) -> float | None:
    """SE of step number `step`, from 0, of `steps`; None where its label is missing."""
    if label is None:
        return None
    size = 0.5 + 0.5 * (step + 1) / steps
    return size if label >= 0.5 else -size


def with_rewards(solution: Solution, reward: Reward) -> Solution:
    """The solution with the rewards of its steps; without labels it stays as it is."""
    n = len(solution.steps)
    if reward == "HE":
        rewards = tuple(hard_exact(label, solution.is_correct) for label in solution.labels)
    else:
        rewards = tuple(soft_exact(label, i, n) for i, label in enumerate(solution.labels))
    return replace(solution, rewards=rewards)


def target(reward: float) -> float:
    """The probability of "right" that a reward stands for: -1 is 0, +1 is 1, and SE is in between."""
    return (1.0 + reward) / 2.0


CARD, FAIL_RATES = "card.json", "fail_rates.jsonl"


@dataclass(frozen=True)
class LabelledDataSet:
    """A data set.

    Attributes:
        folder: where it is.
        card: what is in its `card.json`, or would be.
        kept: rows of an earlier data set that has more than this one, and so was kept; 0: this one was written.
    """

    folder: Path
    card: Mapping[str, Any]
    kept: int = 0

    @property
    def stopped(self) -> str | None:
        """Why the work ended early: `max_usd` or `failures`; None where it did not."""
        return self.card.get("stopped")

    @property
    def summary(self) -> str:
        """One line for a person."""
        counts, steps = self.card.get("solutions", {}), self.card["steps"]
        failed, spent = sum(counts.get("failed", {}).values()), self.card.get("ledger", {}).values()
        bound = sum(row["usd_at_most"] for row in spent)
        usd = bound + sum(row["usd"] for row in spent)
        solutions = counts["labelled"] if counts else self.card["files"]["seed"]["rows"]
        parts = [f"{solutions} solutions", f"{steps['right']} right and {steps['wrong']} wrong steps"]
        if failed:
            parts.append(f"{failed} without labels")
        if usd:
            at_most = "at most " if bound else ""
            parts.append(f"{at_most}${usd:.2f} spent so far")
        if self.stopped == "max_usd":
            left = f"stopped by max_usd with {counts.get('not_asked', 0)} solutions to go; the same command resumes"
            if not counts["labelled"]:
                left += ". One solution with its labels may cost more than is left: "
                left += "raise max_usd, or lower judge.max_tokens"
            parts.append(left)
        return ", ".join(parts)

    @property
    def line(self) -> str:
        """For people."""
        begun = f"kept {self.folder}: {self.kept_or_written}; " if self.kept else f"wrote {self.folder}: "
        return begun + self.summary

    @property
    def kept_or_written(self) -> str:
        """What became of it, in a sentence."""
        n = self.card["solutions"]["labelled"]
        if self.kept:
            return (
                f"{self.folder} keeps its {self.kept} labelled solutions, as this run has only {n} (to have these, "
                "remove the folder)"
            )
        return f"the {n} that did not are in {self.folder}"


def identity(settings: LabelSettings) -> dict[str, Any]:
    """Where the labels of a data set come from: the labeler, and the model of the judge where there is one."""
    return {"labeler": settings.labeler, "judge": settings.judge.model_name if settings.asks_judge else None}


def check_identity(folder: Path, settings: LabelSettings) -> None:
    """Refuse a folder with labels of another labeler or judge.

    Raises:
        ConfigError: it has such labels.
        DataError: its card cannot be read.
    """
    card = _card(folder) or {}
    for key, mine in identity(settings).items():
        if card.get("labeler") is not None and card.get(key, mine) != mine:
            raise ConfigError(
                f"{folder} holds labels with {key} {card[key]}, and this is {key} {mine}: set label.save_dir to "
                "another folder (with a copy of cache/, nothing is sampled or asked again), or remove this one"
            )


def format_counts(counts: Mapping[str, int]) -> str:
    """Counts by reason, for a person."""
    return ", ".join(f"{n} {reason}" for reason, n in sorted(counts.items())) or "none"


def step_counts(solutions: Sequence[Solution]) -> dict[str, Any]:
    """How the labels and rewards of a data set are distributed."""
    labels = [label for solution in solutions for label in solution.labels]
    rewards = [reward for solution in solutions for reward in solution.rewards]
    return {
        "steps": {
            "all": len(labels), "right": sum(v is not None and v >= 0.5 for v in labels),
            "wrong": sum(v is not None and v < 0.5 for v in labels), "unlabelled": labels.count(None),
            "without_reward": rewards.count(None),
        },
        "answers": {
            "right": sum(s.is_correct is True for s in solutions),
            "wrong": sum(s.is_correct is False for s in solutions),
            "unknown": sum(s.is_correct is None for s in solutions),
        },
    }  # fmt: skip


def write(
    folder: Path,
    solutions: Sequence[Solution],
    card: Mapping[str, Any],
    settings: LabelSettings,
    table: Sequence[Mapping[str, Any]] = (),
    *,
    partial: bool = False,
) -> LabelledDataSet:
    """Write a data set; each file appears whole, the card last. Until then it has only the labeler and the judge.

    A format that can express none of the solutions is left out, and the card says why.

    Args:
        folder: where.
        solutions: its rows.
        card: the contents of `card.json`.
        settings: which formats.
        table: fail rates of questions.
        partial: there would be more, but for failures or a cap: a data set that is there and has more rows is kept.
    """
    there = _rows(folder / RECORDS)
    if partial and there > len(solutions):
        return LabelledDataSet(folder, card, kept=there)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CARD, {key: card[key] for key in ("labeler", "judge") if key in card})  # a kill may follow
    written = write_solutions(folder / RECORDS, solutions)
    files: dict[str, Any] = {"seed": {"file": RECORDS, "rows": written.rows, "left_out": {}}}
    for form in settings.formats:
        path = folder / f"{form}.jsonl"
        try:
            done = write_solutions(path, solutions, form)
        except DataError as error:
            path.unlink(missing_ok=True)
            files[form] = {"file": None, "why": str(error)}
        else:
            files[form] = {"file": path.name, "rows": done.rows, "left_out": dict(done.left_out)}
    if table:
        write_text(folder / FAIL_RATES, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table))
    whole = {**card, "files": files}
    write_json(folder / CARD, whole)
    return LabelledDataSet(folder, whole)


def _rows(path: Path) -> int:
    """Lines of a file; 0 where there is none."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(bool(line.strip()) for line in file)


def _card(folder: Path) -> dict[str, Any] | None:
    """The card of a data set; None where a kill left the records without one."""
    path = folder / CARD
    if not path.is_file():
        return None
    with boundary(DataError, "cannot be read; label again, or remove the file to go on without it", where=str(path)):
        card = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(card, dict):
            raise DataError(f"expected a map of keys, this is {type(card).__name__}", where=path)
    return card


def relabel_rewards(root: Path, settings: LabelSettings) -> LabelledDataSet:
    """The data set that is there with the rewards of these settings: from itself, or from that of the other reward.

    Raises:
        DataError: neither is there, or its card cannot be read.
    """
    folder = root / settings.dataset
    other = root / settings.model_copy(update={"reward": "SE" if settings.reward == "HE" else "HE"}).dataset
    labelled = next((f for f in (folder, other) if (f / RECORDS).is_file()), None)
    if labelled is None:
        raise DataError(
            f"--skip_generation uses the data set that is there, and there is none: neither {folder / RECORDS} nor "
            f"{other / RECORDS}; run the same command without it first"
        )
    check_identity(labelled, settings)
    solutions = [with_rewards(solution, settings.reward) for solution in read_solutions(labelled)]
    card = {"made_by": f"guerdon {__version__}", "method": settings.method, "labeler": None, **(_card(labelled) or {})}
    table = labelled / FAIL_RATES
    if table.is_file() and labelled != folder:
        write_text(folder / FAIL_RATES, table.read_text(encoding="utf-8"))
    taken = {"labels_from": os.fspath(labelled.name)} if labelled != folder else {}
    return write(folder, solutions, {**card, "reward": settings.reward, **taken, **step_counts(solutions)}, settings)
