"""The verbs of `import guerdon`: each does what the command of its name does, and returns what that writes.

found = guerdon.audit("rollouts/")
found.findings.to_pandas()
guerdon.evaluate("runs/rm", "pairs.jsonl", output="card").figures
guerdon.compare("study.yaml").arms
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.errors import ConfigError, DataError
from guerdon.pages.table import ResultTable
from guerdon.types import Episode, Failure, RewardModel, Score

if TYPE_CHECKING:
    from guerdon.auditing.audited import Audited
    from guerdon.auditing.finding import Audit
    from guerdon.comparison.single_run import RunResult
    from guerdon.comparison.study import StudyResult
    from guerdon.episodes.solutions import Solution
    from guerdon.evaluation.stages import EvaluatedCard
    from guerdon.settings.evaluate import Aggregation
    from guerdon.settings.study import Study


@dataclass(frozen=True, repr=False)
class AuditResult:
    """What an audit found.

    Attributes:
        runs: what was found in each run of the log; usually it is one.
        page: the HTML page; of several runs a list of their pages.
    """

    runs: tuple[Audited, ...]
    page: Path

    @property
    def audit(self) -> Audit:
        """Findings, what is clean, what is undecided, and what could not be checked, of a log that is one run.

        Raises:
            DataError: it is several.
        """
        if len(self.runs) > 1:
            raise DataError(f"the log holds {len(self.runs)} runs: use the tables, or `runs`")
        return self.runs[0].audit

    @property
    def findings(self) -> ResultTable:
        """A row for each finding, the worst first; of several runs with the name of its run."""
        names = ("severity", "name", "title", "effect", "unit", "count", "total", "p", "accepted", "remedy")
        found = [
            {**self._run(done), **{name: getattr(one, name) for name in names}}
            for done in self.runs for one in done.audit.findings
        ]  # fmt: skip
        return ResultTable(found, (*self._run(self.runs[0]), *names))

    @property
    def rows(self) -> ResultTable:
        """The rows of each finding, at most 1,000 and the most telling first: place, reward, truth and texts."""
        found = [
            {**self._run(done), "finding": one.name, **row}
            for done in self.runs for one in done.audit.findings for row in done.rows.records(one.rows)
        ]  # fmt: skip
        return ResultTable(found, None if found else ("finding", "row", "file", "line", "reward"))

    @property
    def undecided(self) -> ResultTable:
        """A row for each check that could not be decided, with what it needs and what the log has."""
        found = [
            {**self._run(done), "name": name, "needs": why}
            for done in self.runs for name, why in done.audit.undecided.items()
        ]  # fmt: skip
        return ResultTable(found, (*self._run(self.runs[0]), "name", "needs"))

    def _run(self, done: Audited) -> dict[str, str]:
        """The column with the name of a run, where there are several."""
        return {"run": done.run} if len(self.runs) > 1 else {}

    def __repr__(self) -> str:
        rows = f"{sum(len(done.rows) for done in self.runs):,} rows ({self.runs[0].rows.layout})"
        if len(self.runs) == 1:
            return f"<audit of {rows}: {self.audit.counted}; {self.page}>"
        found = len(self.findings)
        return (
            f"<audit of {rows} of {len(self.runs)} runs: {found} found, {len(self.undecided)} undecided; {self.page}>"
        )


@dataclass(frozen=True, repr=False)
class ScoringResult:
    """The scores of a reward model.

    Attributes:
        summary: what was scored, for people.
        path: the copy with rewards; None where episodes were given.
        scores: of episodes that were given, in their order.
        table: a row per row of a file, or per episode.
    """

    summary: str
    path: Path | None
    scores: tuple[Score, ...] = ()
    table: ResultTable = field(default_factory=lambda: ResultTable([]))

    def __repr__(self) -> str:
        return f"<{self.summary}>"


def load_reward_model(
    model: str, checkpoint_path: str | Path | None = None, *, device: str | None = None, **options: Any
) -> RewardModel:
    """A reward model by its name or its path.

    Args:
        model: a name, such as `progress` or `judge`; `package.module:factory`; or a path alone: the folder of a model
            that is trained or published, a hub id, the address of a server, a rubric file.
        checkpoint_path: where the model of a name lies.
        device: where it computes; None: on the GPU when there is one.
        options: further keys of `reward.model` of that type, such as `image_size`, `value`, `remote`.

    Raises:
        ConfigError: an unknown name, or an option that this model does not have.
        CheckpointError: the checkpoint is missing, corrupt, or other than asked for.
    """
    from guerdon.models import load

    word = model.isidentifier() and not Path(model).exists()  # a name, perhaps misspelt: hub ids have a slash
    if checkpoint_path is not None or load.is_name(model) or word:
        return load.load_reward_model(model, checkpoint_path, device=device, **options)
    return load.load_model_at(model, device=device, **options)


def audit(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    second: str | Path | None = None,
    judge: str | None = None,
    sample: int | None = None,
    against: str | Path | None = None,
    labels: str | Path | None = None,
    accepted: str | Path | None = None,
    texts: bool = True,
    output: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> AuditResult:
    """Find what is wrong with the rewards of a run that is already there, as `guerdon audit`.

    Args:
        path: a log: a file or a folder.
        columns: names of columns by what they hold, where they are not recognised: `{"reward": "score"}`.
        second: another reward of the same rows, or reference data.
        judge: a model, see `score`, whose marks of a sample are the second reward.
        sample: rows that the judge marks, at most; None: 400.
        against: the log of another run to compare with.
        labels: a folder of `guerdon annotate`, whose labels stand for a truth that the log lacks.
        accepted: a file of findings that are known; the column `accepted` of the findings says which they are.
        texts: whether the page and the tables have the texts of the log.
        output: the page; by default NAME.audit.html in the working directory.
        seed: of samples and permutations.
        options: of the judge, such as `max_usd`.

    Raises:
        CheckpointError: the judge cannot be loaded.
        ConfigError: a column has no known role, the page is no HTML file, or two of `judge`, `second` and `labels` are
            given.
        DataError: the log cannot be read.
    """
    from guerdon.auditing.audited import Wanted, audit_path
    from guerdon.auditing.command import page_of

    of_judge = options if sample is None else {**options, "sample": sample}
    if judge is None and of_judge:
        raise ConfigError(f"{next(iter(of_judge))}: of a judge, and there is none; add judge=..., or remove it")
    given = {"judge": judge, "second": second, "labels": labels}
    several = [name for name, value in given.items() if value is not None]
    if len(several) > 1:
        raise ConfigError(f"{' and '.join(several)}: each is the one second reward; leave out all but one of them")
    log = Path(path)
    wanted = Wanted(
        log, page_of(log, _path(output)), columns or {}, _path(second), judge, options, sample, _path(against), seed,
        _path(accepted), texts=texts, labels=_path(labels),
    )  # fmt: skip
    return AuditResult(tuple(audit_path(wanted)), wanted.page)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def evaluate(
    model: str | RewardModel,
    data: str | Path,
    *overrides: str,
    labels: str | Path | None = None,
    columns: str | Mapping[str, str] | None = None,
    turns: bool = False,
    output: str | Path | None = None,
) -> EvaluatedCard:
    """Evaluate a reward model on a file or a data set, as `guerdon evaluate --model MODEL --data DATA`.

    Args:
        model: a folder, a hub id, the address of a server, `package.module:factory`, a rubric file, or a model.
        data: preferences, steps of solutions, labels of people, or a LeRobot data set.
        overrides: dotted, of the section `evaluate`: `"evaluate.reps=200"`.
        labels: responses with labels of people, of a model of texts.
        columns: what columns are for, where it is not recognised: `{"winner": "vote:1/2"}`.
        turns: the data are conversations with a true reward for each turn of the assistant.
        output: folder of the card; None: nothing is kept.

    Raises:
        CheckpointError: the model cannot be loaded.
        ConfigError: the model is of another side than the data, or an override is wrong.
        DataError: the data cannot be read.
    """
    from guerdon.evaluation.by_path import study_of
    from guerdon.evaluation.stages import EvaluateStage

    path = model if isinstance(model, str) else f"{type(model).__module__}:{type(model).__qualname__}"
    people = None if labels is None else str(labels)
    study = study_of(path, str(data), overrides, people, columns, turns=turns)
    folder = None if output is None else Path(output)
    return EvaluateStage(model=model, output=folder).work(study)[0]


def score(
    model: str | RewardModel,
    data: str | Path | Iterable[Episode | Solution],
    *,
    output: str | Path | None = None,
    aggregation: Aggregation = "min",
    only_failed: bool = False,
    columns: str | Mapping[str, str] | None = None,
    turns: bool = False,
    **options: Any,
) -> ScoringResult:
    """Score the rows of a file or a log, as `guerdon score`, or episodes.

    The `reward` of an episode of texts is its total or what `aggregation` makes of its steps; of a robot's episode the
    total, None where the model judges rows only.

    Args:
        model: a folder, a hub id, the address of a server, `package.module:factory`, a rubric file, or a model.
        data: a file, a log or a LeRobot data set, of which a copy with rewards is written; or episodes or solutions.
        output: the copy; needed with a path.
        aggregation: how the values of steps become one.
        only_failed: score again only rows of the copy that have no reward.
        columns: what columns of a file are for, where it is not recognised: `{"response": "answer"}`.
        turns: score each turn of the assistant in a file of conversations.
        options: of a model that is given by its path.

    Raises:
        CheckpointError: the model cannot be loaded.
        ConfigError: `output` is missing, or given with episodes; or an option is wrong, or would do nothing.
        DataError: the data cannot be read, or the copy exists.
    """
    if options and not isinstance(model, str):
        raise ConfigError(f"{next(iter(options))} would do nothing for a model that is loaded; remove it")
    if not isinstance(data, str | Path):
        if output is not None:
            raise ConfigError("output is for the copy of a file; the scores of episodes are returned")
        if columns is not None:
            raise ConfigError("columns is for the rows of a file; remove it")
        if turns:
            raise ConfigError("turns is for the conversations of a file; remove it")
        return _score_episodes(model, data, aggregation, options)
    if output is None:
        raise ConfigError(f"name the copy of {data} that gets the rewards: score(model, data, output=...)")
    from guerdon.evaluation.scoring.score_logs import ScoreSettings, ScoreStage

    copy = Path(output)
    settings = ScoreSettings(Path(data), model, copy, options, only_failed, aggregation, columns, turns)
    summary = ScoreStage().work(settings)
    return ScoringResult(summary, copy, table=_rows_of(copy))


def load_study(path: str | Path, *overrides: str) -> Study:
    """Read a study file, or make the study of a Gymnasium id, as every command does.

    Args:
        path: of the YAML file; or an id such as `CartPole-v1`.
        overrides: dotted: `"runner.seed=3"`.

    Raises:
        ConfigError: anything wrong in it, with file and line.
    """
    from guerdon.settings.study import read_study_file

    file = Path(path)
    study = read_study_file(file, overrides)
    study.__dict__["source"] = (file, overrides)  # as a cached property: a frozen model sets no attribute
    return study


def run(study: str | Path | Study, *overrides: str, resume: bool = False, profile: int = 0) -> RunResult | None:
    """Train a policy with the rewards of a study, as `guerdon run`.

    Args:
        study: a file, a Gymnasium id, or what `load_study` returned.
        overrides: dotted, of a file or an id.
        resume: continue from the newest checkpoint; a run of an id goes on as it was begun.
        profile: iterations to record: a trace of torch's profiler, and where their time went; 0: none.

    Returns:
        None in another process than the first of `torchrun`.

    Raises:
        GuerdonError: as `guerdon run`.
    """
    from guerdon.comparison.single_run import RunStage

    return RunStage(resume=resume, profile=profile).work(_loaded(study, overrides, resume=resume))


def compare(study: str | Path | Study, *overrides: str, parallel: int = 0) -> StudyResult:
    """Run a whole study (settings x seeds x tasks) and write its report, as `guerdon compare`. Again, it continues.

    Args:
        study: a file, or what `load_study` returned for one.
        overrides: dotted, of a file.
        parallel: processes at a time; 0: one per core.

    Raises:
        ConfigError: anything wrong in the file, in any arm and any task.
        JobError: some jobs failed; the report of the others is written.
    """
    from guerdon.comparison.study import CompareStage, plan_study

    file, words = (Path(study), overrides) if isinstance(study, str | Path) else _source(study, overrides)
    return CompareStage().work(plan_study(file, words, parallel=parallel))


def _loaded(study: str | Path | Study, overrides: Sequence[str], *, resume: bool = False) -> Study:
    """A study that is given by its file, or as it is."""
    if isinstance(study, str | Path):
        from guerdon.settings.study import read_study_file

        return read_study_file(Path(study), overrides, resume=resume)
    if overrides:
        raise ConfigError(f"{overrides[0]}: a study that is loaded is not changed; give it to load_study")
    return study


def _source(study: Study, overrides: Sequence[str]) -> tuple[Path, Sequence[str]]:
    """The file and the overrides that a study was read from: arms change it before references are resolved."""
    loaded = _loaded(study, overrides)
    if loaded.source is None:
        raise ConfigError("compare needs the study's file, since arms change what the file says: give its path")
    return loaded.source


def _score_episodes(
    model: str | RewardModel, data: Iterable[Episode | Solution], aggregation: Aggregation, options: Mapping[str, Any]
) -> ScoringResult:
    """The scores of episodes or solutions, in their order."""
    from guerdon.models.scores import score_episodes

    episodes = [one if isinstance(one, Episode) else one.as_episode() for one in data]
    with ExitStack() as stack:
        judge = model
        if isinstance(judge, str):
            judge = load_reward_model(judge, **options)
            stack.callback(getattr(judge, "close", lambda: None))  # a judge's files of replies and costs
        scores = score_episodes(judge, episodes)
    rows = [_row(*pair, aggregation) for pair in zip(episodes, scores, strict=True)]
    failures = sum(row["failure"] is not None for row in rows)
    return ScoringResult(f"scored {len(rows)} episodes, {failures} failed", None, tuple(scores), ResultTable(rows))


def _row(episode: Episode, score: Score, aggregation: Aggregation) -> dict[str, Any]:
    """An episode's reward, or why it has none, and the values of its rows."""
    from guerdon.models.scores import solution_value

    steps = None if score.steps is None else score.steps.tolist()
    value: float | Failure | None = score.total
    if episode.texts is not None:
        value = solution_value(score, aggregation)
    elif score.failure is not None:
        value = score.failure
    if isinstance(value, Failure):
        return {"id": episode.id, "reward": None, "failure": str(value), "steps": steps}
    return {"id": episode.id, "reward": value, "failure": None, "steps": steps}


def _rows_of(path: Path) -> ResultTable:
    """The rows of a file that was written; of a folder none."""
    from guerdon.reading.containers import file_rows

    return ResultTable([row for _, row in file_rows(path)] if path.is_file() else [])
