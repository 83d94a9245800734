"""Tables of metrics: what the report, the cards of reward models and the terminal show, one entry per metric.

`COLUMNS` are the metrics of an arm, from the numbers of `comparison`; `MODEL_METRICS` those of a reward model on its
card, from `evaluation.json`; `ONLINE_METRICS` those of a reward model during training, from the lines
`reward_model/<name>/<metric>` of a run.

    print(markdown_table(Path("runs/demo")))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from guerdon.comparison.results import SUCCESS, ArmRow, StudyRecord, comparison_rows, read_study
from guerdon.pages import formats as fmt
from guerdon.statistics.intervals import Interval
from guerdon.statistics.learning_curves import StepsRatio, StepsToThreshold


@dataclass(frozen=True)
class Cell:
    """A cell of the tables of arms.

    Attributes:
        text: what it shows.
        small: small print below.
        tone: its style in the report: `gain`, `loss`, `none` (no value) or empty.
        plain: the text on a terminal; empty: text and small print.
    """

    text: str
    small: tuple[str, ...] = ()
    tone: str = ""
    plain: str = ""


@dataclass(frozen=True)
class Column:
    """A metric of an arm; `{steps}`, `{Steps}`, `{measure}`, `{baseline}` and `{corrected}` in its words are filled in.

    Attributes:
        title: its heading.
        cell: what a row shows in it.
        explanation: a sentence for the caption.
        folded: in the second table of the report, which is folded.
        repeated: in the report only of studies with several seeds.
        terminal: whether the table on the terminal has it.
        success: only where results are about true success.
        learned: in the report only where a reward was learned.
    """

    title: str
    cell: Callable[[ArmRow], Cell]
    explanation: str = ""
    folded: bool = False
    repeated: bool = False
    terminal: bool = True
    success: bool = False
    learned: bool = False


def _estimate(interval: Interval | None, *, sign: bool = False) -> Cell:
    if interval is None or interval.estimate is None:
        return Cell(fmt.DASH, tone="none")
    text = fmt.signed(interval.estimate) if sign else fmt.decimal(interval.estimate)
    return Cell(text, () if interval.low is None else (fmt.bounds(interval),))


def _reach(result: StepsToThreshold) -> Cell:
    plain = f"{fmt.steps(result.median)} ({result.reached}/{result.n})"
    small = (f"{result.reached} of {result.n} runs",) if result.n else ()
    if result.median is None:
        return Cell("not reached" if result.n else fmt.DASH, small, "none", plain)
    return Cell(fmt.steps(result.median), small, plain=plain)


def _speed(speed: StepsRatio | None) -> Cell:
    ratio, *small = ("",) if speed is None else fmt.speed_text(speed)
    if speed is None or not ratio:
        return Cell(fmt.DASH, tone="none")
    return Cell(ratio, tuple(filter(None, small)), {"fewer": "gain", "more": "loss"}.get(speed.conclusion, ""))


def _p_value(row: ArmRow) -> Cell:
    if row.difference is None or row.difference.p_value is None:
        return Cell(fmt.DASH, tone="none")
    return Cell(fmt.p_value(row.difference.p_value), (fmt.plural(row.difference.interval.n, "pair"),))


def _conclusion(row: ArmRow) -> Cell:
    tone = {"better": "gain", "worse": "loss", "not comparable": "loss"}.get(row.conclusion, "none")
    return Cell(f"probably {row.conclusion}" if row.is_probable else row.conclusion, tone=tone)


def _runs(row: ArmRow) -> Cell:
    small = (f"of {row.n_planned}",) if row.n_runs < row.n_planned else ()
    early = f"{row.n_stopped} stopped early" if row.n_stopped else ""
    plain = f"{row.n_runs}/{row.n_planned}" + (f", {early}" if early else "")
    return Cell(str(row.n_runs), (*small, *filter(None, [early])), plain=plain)


COLUMNS = (
    Column("Final {measure}", lambda row: _estimate(row.final), "Final {measure}: at the last evaluation."),
    Column("IQM of final {measure}", lambda row: _estimate(row.final_iqm),
           "IQM: mean over the middle half of all runs, bootstrap interval.",
           folded=True, repeated=True, terminal=False),
    Column("Area under curve", lambda row: _estimate(row.area), "Area: mean height of the learning curve.",
           folded=True),
    Column("{Steps} to 50%", lambda row: _reach(row.to_half), "{Steps} to a level: median over runs.", folded=True,
           success=True),
    Column("{Steps} to 80%", lambda row: _reach(row.to_most), folded=True, success=True),
    Column("P(above\u00a0{baseline})", lambda row: _estimate(row.p_above),
           "P: chance that a run of the setting ends above one of {baseline}, bootstrap interval.",
           folded=True, repeated=True),
    Column("p", _p_value, "p: sign-flip test of the paired differences{corrected}.",
           folded=True, repeated=True, terminal=False),
    Column("Difference from {baseline}",
           lambda row: _estimate(None if row.difference is None else row.difference.interval, sign=True)),
    Column("Conclusion", _conclusion),
    Column("{Steps} against {baseline}", lambda row: _speed(row.speed),
           "{Steps} against {baseline}: what it takes to its own final success over what the setting takes to that "
           "level, geometric mean over pairs of runs of one task and seed; the ends allow for the {steps} between "
           "evaluations.", success=True),
    Column("Failed scores", lambda row: Cell(fmt.percent(row.failure_rate)), learned=True),
    Column("Runs", _runs),
    Column("Wall time", lambda row: Cell(fmt.duration(row.wall_seconds)), folded=True),
)  # fmt: skip


FEWEST = 5  # columns of a narrow terminal: the task, the setting, its result, the difference and the conclusion
GAP = 4  # characters between them, and their margins
_TOGETHER = ",\ue000"  # between the ends of an interval; rich breaks lines at any space


def columns(study: StudyRecord, baseline: str) -> list[Column]:
    """The columns with the words of a study filled in, and this name of its baseline."""
    steps = fmt.short_unit(study.unit)
    given = {"steps": steps, "Steps": steps.capitalize(), "baseline": baseline}
    given["corrected"] = ", Holm-corrected" if study.correction == "holm" else ""
    given["measure"] = "success" if study.measure == SUCCESS else "return"
    shown = [c for c in COLUMNS if study.measure == SUCCESS or not c.success]
    return [replace(c, title=c.title.format(**given), explanation=c.explanation.format(**given)) for c in shown]


def markdown_table(study_dir: Path) -> str:
    """All tasks pooled, then task by task, as a Markdown table for documents and terminals.

    Raises:
        DataError: the directory holds no study.
    """
    study = read_study(study_dir)
    shown = [column for column in columns(study, "the baseline") if column.terminal]
    ruler = ["---:" if c.cell is not _conclusion else "---" for c in shown]
    lines = [["task", "setting", *_titles(shown)], ["---", "---", *ruler]]
    for row in comparison_rows(study):
        lines.append([text.replace("|", "\\|").replace("\n", " ") for text in (row.task, *_texts(row, shown))])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def terminal_table(study_dir: Path, width: int) -> str:
    """`markdown_table` where it fits into `width` characters; else the columns that the report does not fold.

    Raises:
        DataError: the directory holds no study.
    """
    whole = markdown_table(study_dir)
    if max(map(len, whole.splitlines())) <= width:
        return whole
    study = read_study(study_dir)
    shown = [column for column in columns(study, "the baseline") if column.terminal and not column.folded]
    lines = [["task", "setting", *_titles(shown)]]
    for row in comparison_rows(study):
        lines.append([text.replace(", ", _TOGETHER) for text in (row.task, *_texts(row, shown))])
    by_column = list(zip(*lines, strict=True))
    fewest = FEWEST
    if len(study.tasks) == 1:
        del by_column[0]
        fewest -= 1
    while len(by_column) > fewest and sum(map(_longest_word, by_column)) + GAP * len(by_column) > width:
        del by_column[-1]
    return _drawn(by_column, width)


def _longest_word(texts: Sequence[str]) -> int:
    """Characters of the longest word of some texts."""
    return max(len(word) for text in texts for word in text.split(" "))


def _drawn(by_column: Sequence[Sequence[str]], width: int) -> str:
    """A table of texts, a title and cells in each column, in `width` characters; only ends of words break its lines."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, width=width)
    for texts in by_column:
        table.add_column(texts[0], min_width=_longest_word(texts))
    for texts in list(zip(*by_column, strict=True))[1:]:
        table.add_row(*map(Text, texts))
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).replace(_TOGETHER, ", ") + "\n"


def _titles(shown: Sequence[Column]) -> list[str]:
    titles = [column.title.replace("\u00a0", " ") for column in shown]
    return [title[0].lower() + title[1:] if title[1:2].islower() else title for title in titles]


def _texts(row: ArmRow, shown: Sequence[Column]) -> list[str]:
    """The name of a setting, and what its columns show."""
    cells = [column.cell(row) for column in shown]
    name = row.arm if row.label == row.arm else f"{row.arm}: {row.label}"
    return [name, *(cell.plain or " ".join((cell.text, *cell.small)) for cell in cells)]


@dataclass(frozen=True)
class ModelMetric:
    """How the card of a reward model treats a metric of its evaluation.

    Attributes:
        lower_is_better: such as an error.
        finding: whether the card leads with the metric where it is not shown to beat its baseline.
    """

    lower_is_better: bool = False
    finding: bool = True


MODEL_METRICS = {
    "episode_auroc": ModelMetric(),
    "episode_false_positive_rate": ModelMetric(lower_is_better=True, finding=False),
    "policy_ranking_spearman": ModelMetric(),
    "auroc": ModelMetric(),
    "false_positive_rate": ModelMetric(lower_is_better=True, finding=False),
    "ece": ModelMetric(lower_is_better=True, finding=False),
    "value_order_spearman": ModelMetric(),
    "progress_mae": ModelMetric(lower_is_better=True),
    "preference_accuracy": ModelMetric(),
}
"""The metrics that a card shows first, in this order; others follow in the order of the evaluation."""


@dataclass(frozen=True)
class OnlineMetric:
    """A metric of a reward model on fresh rollouts.

    Attributes:
        title: above the picture.
        hint: below it.
        chance: what guessing reaches; None: no line is drawn.
    """

    title: str
    hint: str
    chance: float | None = None


ONLINE_METRICS = {
    "dpo_acc": OnlineMetric(
        "Pair accuracy", "Of answers to one prompt, how often the right one has the higher reward.", chance=0.5
    ),
    "step_auroc": OnlineMetric(
        "Step AUROC",
        "AUROC of the value of a step against its truth; steps count up to the first error of a response.",
        chance=0.5,
    ),
    "dpo_acc_abs": OnlineMetric(
        "Sign accuracy", "How often a positive total means a right answer, a negative one a wrong one."
    ),
}
INTERVENTIONS = {
    "intervention_rate": OnlineMetric(
        "Interventions", "Share of the steps of training in which somebody else acted in place of the policy."
    )
}
