"""`guerdon evaluate --model PATH --data FILE`: a study made in code from two paths, and scores that are in a file.

study = study_of("runs/rm", "pairs.jsonl", [])       # its text_evaluate.pairs is the file
print(judged_file("judged.jsonl", seed=0)[1])
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guerdon.config.loading import load
from guerdon.episodes.preferences import is_preference
from guerdon.episodes.solution_files import is_solution
from guerdon.errors import ConfigError, DataError
from guerdon.evaluation.benchmarks.labelled import label_figures, label_lines, read_labelled
from guerdon.models.load import ROBOT_KINDS, is_factory, kind_at, load_reward_model
from guerdon.models.scores import write_record
from guerdon.processes.progress import log_line
from guerdon.reading.plan import Plan
from guerdon.reading.reader import DataReading, read
from guerdon.reading.roles import named
from guerdon.reading.shown import record_lines
from guerdon.types import RewardModel

if TYPE_CHECKING:
    from guerdon.settings.study import Study

NAME = "model"  # of the model in the study
FIRST_ROWS = 1000
"""Rows by which it is seen what a file holds."""
Kind = Literal["episodes", "labels", "pairs", "process_bench", "prm_bench", "turns"]


def kind_of(data: str, columns: str | Mapping[str, str] | None = None) -> Kind:
    """What a path holds: episodes of robots, labels of people, preferences, or steps.

    The first rows say it; all rows are read where they do not.

    Args:
        data: a path or a hub id.
        columns: see `read`.

    Raises:
        ConfigError: as `read`.
        DataError: it cannot be read, or says nothing of responses.
    """
    if (Path(data) / "meta" / "info.json").is_file():
        return "episodes"
    with suppress(DataError):  # said of all rows, if it is so
        return kind_of_rows(read(data, columns=columns, first=FIRST_ROWS))
    return kind_of_rows(read(data, columns=columns))


def kind_of_rows(reading: DataReading) -> Kind:
    """What rows hold.

    Raises:
        DataError: nothing that is known.
    """
    reading.need_rows()
    kind = _kind_of_rows(reading)
    if kind is not None:
        return kind
    found = ", ".join(name for name in reading.sketches if "." not in name)
    raise DataError(
        f"no known layout, found {found[:200]}; known are steps of solutions (docs/labels.md), labels of people, "
        "episodes (a LeRobot folder), and preferences: chosen and rejected, two responses and a winner, or several "
        "with ranks or scores (docs/reading.md). Name other columns: --columns ROLE=NAME,...",
        where=reading.data,
    )


def _kind_of_rows(reading: DataReading) -> Kind | None:
    """What rows hold; None: nothing that is known."""
    if reading.plan.layout.kind == "steps":
        return _kind_of_steps(reading)
    if is_preference(reading.plan):
        return "pairs" if _compares(reading.plan) else "labels"
    if _has_steps(reading):
        return _kind_of_steps(reading)
    return "labels" if reading.plan.has("label") or named("label", reading.sketches) else None


def _compares(plan: Plan) -> bool:
    """Whether rows have several responses."""
    return plan.has("chosen", "rejected") or plan.has("first", "second") or plan.has("responses")


def _has_steps(reading: DataReading) -> bool:
    """Whether rows are solutions in steps, and not logs or labels of responses."""
    plan = reading.plan
    return plan.layout.unwrap is None and not plan.has("response") and is_solution(next(reading.records(), None))


def _kind_of_steps(reading: DataReading) -> Kind:
    """Which benchmark of steps the layout is that of."""
    return "prm_bench" if reading.plan.layout.name == "PRMBench" else "process_bench"


def study_of(
    model: str,
    data: str | None,
    overrides: Sequence[str],
    labels: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    outcomes: str | None = None,
    *,
    turns: bool = False,
) -> Study:
    """The study that evaluates one model on one set.

    Args:
        model: a folder, a hub id, the address of a server, `package.module:factory` or a rubric file.
        data: of any layout that is recognised.
        overrides: dotted, of the sections of a study.
        labels: responses with labels of people.
        columns: what the columns of the data are for, see `read`.
        outcomes: file with the outcomes of a LeRobot data set.
        turns: the data are conversations with a true reward for each turn.

    Raises:
        ConfigError: the model is of another side than the data, an override is wrong, or columns are not of one file.
        DataError: as `kind_of`.
    """
    from guerdon.settings.study import Study

    kind = _kind_asked(data, labels, columns, turns=turns)
    of_robots = kind == "episodes"
    _check_side(model, f"{data or labels}", of_robots=of_robots)
    if of_robots:
        _refuse_options_of_text(labels, columns)
        given: dict[str, Any] = {"type": "control", "data_path": data, "outcomes": outcomes}
    else:
        if outcomes is not None:
            raise ConfigError("--outcomes is for a LeRobot data set; remove it", key="--outcomes")
        given = {"type": "text", "aggregation": "min", f"models.{NAME}.path": model, "labels": labels}
        given["columns"] = columns or None
        if data is not None:
            given[kind] = [data] if kind == "process_bench" else data
    words = [f"evaluate.{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    return load(Study, None, [*words, *overrides])


def _kind_asked(data: str | None, labels: str | None, columns: str | Mapping[str, str] | None, *, turns: bool) -> Kind:
    """What the options say that the model is measured on."""
    if columns and data is not None and labels is not None:
        raise ConfigError(
            "--columns is for one file; with --data and --labels name a study with evaluate.columns", key="--columns"
        )
    if turns and data is None:
        raise ConfigError("--turns is for the conversations of --data; name them, or remove it", key="--turns")
    if turns:
        return "turns"
    return "labels" if data is None else kind_of(data, columns)


def _refuse_options_of_text(labels: str | None, columns: str | Mapping[str, str] | None) -> None:
    """Refuse options that would do nothing with episodes of robots."""
    if labels is not None:
        raise ConfigError("--labels is for models of text; remove it", key="--labels")
    if columns:
        raise ConfigError("--columns is for rows of text; remove it", key="--columns")


def _check_side(model: str, data: str, *, of_robots: bool) -> None:
    """Refuse a model in a folder that judges something else than the data.

    Raises:
        ConfigError: it judges robots, and the data has texts, or the other way round.
    """
    if is_factory(model) or "://" in model:
        return
    model_of_robots = kind_at(model) in ROBOT_KINDS
    if model_of_robots != of_robots:
        sides = ("robots", "texts") if model_of_robots else ("text", "episodes of robots")
        raise ConfigError(f"{model} holds a reward model of {sides[0]}, and {data} has {sides[1]}")


def robot_model(model: str) -> RewardModel:
    """A reward model of robots by a folder, the address of a server, or `package.module:factory`.

    Raises:
        ConfigError: it is a model of text, or cannot be loaded.
        CheckpointError: it is damaged.
    """
    if "://" in model:
        from guerdon.settings.remote import remote_at

        return load_reward_model("remote", remote=remote_at(model))
    found = load_reward_model(model) if is_factory(model) else load_reward_model(kind_at(model), model)
    if found.info.modality == "text":
        raise ConfigError(f"{model} judges text, and the data has episodes of robots", key="--model")
    return found


def check_words(
    words: Sequence[str],
    model: str | None,
    data: str | None,
    labels: str | None,
    output: Path | None,
    *,
    columns: str | None = None,
    outcomes: str | None = None,
    of_study: bool,
    turns: bool = False,
) -> str | None:
    """Refuse words of `guerdon evaluate` that do not go together.

    Args:
        words: a study file and overrides, or overrides alone.
        model: `--model`.
        data: `--data`.
        labels: `--labels`.
        output: `--output`.
        columns: `--columns`.
        outcomes: `--outcomes`.
        of_study: whether `--only` or `--attack` is given.
        turns: `--turns`.

    Returns:
        The study file; None: there is none.

    Raises:
        ConfigError: there is a study file and a model, or neither; or an option that would do nothing.
    """
    if turns and model is None:
        raise ConfigError("--turns is for --model and --data; in a study set evaluate.turns", key="--turns")
    if words and "=" not in words[0]:
        _check_beside_study(words[0], model, data, output)
        return words[0]
    if data is None and labels is None:
        raise ConfigError("name a study file, or --model PATH --data FILE")
    if of_study:
        raise ConfigError("--only and --attack are for the models of a study")
    if model is None:
        judged = str(data or labels)
        kind = kind_of(judged, columns)
        if kind != "labels":
            raise ConfigError(
                f"--data {judged} has {kind.replace('_', ' ')}: name the reward model, --model PATH", key="--model"
            )
        if outcomes is not None:
            raise ConfigError(f"--outcomes {outcomes} is for a LeRobot data set; remove it", key="--outcomes")
    return None


def _check_beside_study(study: str, model: str | None, data: str | None, output: Path | None) -> None:
    """Refuse options that are for a model without a study."""
    if model is not None or data is not None:
        raise ConfigError(
            f"{study} and {'--model' if model else '--data'}: evaluate a study, or one model on one file",
            key="--model" if model else "--data",
        )
    if output is not None:
        raise ConfigError("--output is for a model without a study; set evaluate.save_dir", key="--output")


def evaluate_judged(data: str, words: Sequence[str], output: Path | None, columns: str | None = None) -> str:
    """The card of scores of a judge that are in a file with labels of people, written to a folder if one is named.

    Raises:
        ConfigError: an override is given, which would do nothing.
        DataError: as `read_labelled`; or there is no score in it.
    """
    if words:
        raise ConfigError(
            f"{words[0]} would do nothing for scores that are in a file; remove it", key=words[0].partition("=")[0]
        )
    rows = read_labelled(data, columns=columns)
    for line in record_lines(rows.read_as):
        log_line(line)
    found = label_figures(rows.judged(), rows.labels_N, rows.prompts, scales=rows.scales, draws=rows.draws, seed=0)
    text = "\n".join(label_lines(found))
    if output is None:
        return text
    record = {"labels": found, "read_as": {"labels": rows.read_as}}
    return f"{text}\nwrote {write_record(output, record, {}, text)['json']}"
