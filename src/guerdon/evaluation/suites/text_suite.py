"""Evaluation of reward models for text: benchmarks, best-of-n, attacks, and `guerdon evaluate` of a language study.

Writes `evaluation.json` (last, so a folder that has it is complete), `evaluation.txt` and SVG pictures; the evaluation
of a trained model goes into the folder that holds its `final_checkpoint`.

    record = evaluate_text(model, settings, Path("runs/prm/evaluation"))
    record["generated"]["process_bench"]["average_f1"]["measured"]["estimate"]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.episodes.preferences import Votes
from guerdon.episodes.solution_files import published_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError, MissingDependencyError, boundary
from guerdon.evaluation.benchmarks.attacks import (
    attack_lines,
    attack_report,
    bias_probes,
    failed_attacks,
    honest_pairs,
    probe_lines,
)
from guerdon.evaluation.benchmarks.best_of_n import Same, best_of_n, check_samples, same_number_or_text
from guerdon.evaluation.benchmarks.labelled import (
    LabelledResponses,
    LabelledTurns,
    label_figures,
    label_lines,
    read_labelled,
    read_turns,
)
from guerdon.evaluation.benchmarks.over_optimisation import best_of_n_record, gold_lines
from guerdon.evaluation.benchmarks.reward_bench import (
    PreferenceChoice,
    by_length,
    calibration,
    pairs_of,
    preference_figures,
    preference_lines,
    read_choices,
)
from guerdon.evaluation.benchmarks.step_benchmarks import (
    category_of,
    first_errors,
    generated_bench,
    prm_bench,
    process_bench,
    right_and_wrong,
    step_table,
    true_first_error,
)
from guerdon.evaluation.gate.gate_card import card_forecast, forecast_lines, gate_table, signed
from guerdon.evaluation.gate.gate_features import text_features
from guerdon.evaluation.metrics import Table, aligned, classification_metrics, figure_table, number
from guerdon.evaluation.scoring.score_file import load_any_text_model, trained_columns
from guerdon.evaluation.suites.text_candidates import Candidate, candidates
from guerdon.models import scores
from guerdon.models.scores import RECORD, failure_counts, info_record, score_solutions, solution_value, write_record
from guerdon.pages import charts
from guerdon.plan.estimate import data_files
from guerdon.processes.cores import use_threads
from guerdon.processes.progress import doing, log_line, log_once
from guerdon.reading.shown import record_lines
from guerdon.settings.data import DataSettings
from guerdon.settings.evaluate import EvaluateTextSettings, GeneratedBenchSettings
from guerdon.settings.study import Study
from guerdon.statistics.intervals import BootstrapOptions
from guerdon.tasks.trained_questions import question_name
from guerdon.types import Failure, RewardModel, Score


def evaluate_text(
    model: RewardModel,
    settings: EvaluateTextSettings,
    folder: Path,
    *,
    same: Same = same_number_or_text,
    exclude: Collection[str] = (),
    training_hashes: Collection[str] = (),
    samples: Sequence[Solution] = (),
    sets: Sets | None = None,
) -> dict[str, Any]:
    """Evaluate a reward model on everything that the settings name, and write the results into a folder.

    Args:
        model: any reward model for text.
        settings: on what, how.
        folder: receives `evaluation.json`, `evaluation.txt` and pictures.
        same: whether two answers are the same.
        exclude: questions that the model was trained on; the generated set avoids them.
        training_hashes: hashes of the questions that it was trained on; where a set holds some, the record (its
            `seen_in_training`), the report and standard error say how many.
        samples: what `best_of_n` chooses from where it names no file. Where their first errors are known, the model is
            evaluated on these too (`record["samples"]`): the errors that this policy makes.
        sets: from `read_sets`; None: read here, before anything is scored.

    Returns:
        The content of `evaluation.json`.

    Raises:
        DataError: a file cannot be read, or holds nothing to evaluate on.
    """
    suite = _Suite(model, settings, same, read_sets(settings, trained_columns(model)) if sets is None else sets)
    suite.first_errors_of_sets(exclude)
    suite.prm_bench()
    suite.pairs()
    suite.labels()
    suite.turns()
    suite.bias_probes()
    suite.best_of_n(samples)
    suite.attacks()
    return suite.write(folder, training_hashes)


@dataclass(frozen=True)
class Sets:
    """The data of an evaluation: ProcessBench, PRMBench, preferences, and the samples of `best_of_n`.

    `left_out` counts the rows of preferences that cannot be used, by reason; `votes` as `read_choices`; `read_as` says
    what the columns of `pairs`, `labels` and `turns` were taken for.
    """

    process_bench: Sequence[Solution] = ()
    prm_bench: Sequence[Solution] = ()
    choices: Sequence[PreferenceChoice] = ()
    left_out: Mapping[str, int] = field(default_factory=Counter)
    votes: Votes = field(default_factory=Votes)
    labelled: LabelledResponses | None = None
    turns: LabelledTurns | None = None
    samples: Sequence[Solution] = ()
    read_as: Mapping[str, Any] = field(default_factory=dict)


def read_sets(settings: EvaluateTextSettings, stored: Mapping[str, str] | None = None) -> Sets:
    """Read all data of an evaluation before a model is loaded.

    Args:
        settings: on what.
        stored: what columns were for in the data that a model was trained on; used where they are there.

    Raises:
        DataError: a file cannot be read, `tune_on` names none of the subsets, or `best_of_n.ns` is more than there is.
    """
    s = settings
    found = Sets()
    if s.pairs is not None:
        choices, left_out, votes, read_as = read_choices(s.pairs, columns=s.columns_of("pairs"), stored=stored)
        found = replace(found, choices=choices, left_out=left_out, votes=votes, read_as={"pairs": read_as})
    if s.process_bench:
        found = replace(found, process_bench=_published(s.process_bench, s.columns_of("process_bench")))
    if s.prm_bench is not None:
        published = _published([s.prm_bench], s.columns_of("prm_bench"))
        of_category = [one for one in published if category_of(one) is not None]
        found = replace(found, prm_bench=of_category)
    if s.labels is not None:
        labelled = read_labelled(s.labels, columns=s.columns_of("labels"), stored=stored)
        found = replace(found, labelled=labelled, read_as={**found.read_as, "labels": labelled.read_as})
    if s.turns is not None:
        turns = read_turns(s.turns, columns=s.columns_of("turns"), stored=stored)
        found = replace(found, turns=turns, read_as={**found.read_as, "turns": turns.read_as})
    if s.best_of_n is not None and s.best_of_n.samples is not None:
        found = replace(found, samples=_published([s.best_of_n.samples]))
    _check_sets(s, found)
    gate_table(s.gate)
    return found


def _check_sets(settings: EvaluateTextSettings, found: Sets) -> None:
    """Refuse subsets to tune on that are not there, and fewer samples than are chosen from."""
    _check_subset(settings.tune_on, [str(one.meta.get("subset")) for one in found.process_bench])
    if settings.generated is not None:
        _check_subset(settings.tune_on, [task.family for task in settings.generated.families])
    chosen = settings.best_of_n
    if chosen is not None and chosen.samples is not None and chosen.gold is None:
        check_samples(found.samples, chosen.ns)


def _check_subset(asked: str | None, names: Sequence[str]) -> None:
    """Refuse a subset to tune on that a benchmark does not have.

    Raises:
        DataError: it has others.
    """
    if asked is not None and names and asked not in names:
        raise DataError(
            f"tune_on {asked!r} is not a subset; the subsets are {', '.join(dict.fromkeys(names))}", field="tune_on"
        )


def check_evaluation(study: Study) -> None:
    """Check the data of an evaluation as its start does.

    Raises:
        ConfigError: there is nothing to evaluate on.
        DataError: as `read_sets`.
        MissingDependencyError: data are not on this machine.
    """
    settings = text_settings(study.text_evaluate, study.data)
    b = settings.best_of_n
    for path in data_files(settings):
        if not Path(path).exists():
            raise MissingDependencyError(f"the data, as {path} is not on this machine")
    _log_read_as(read_sets(settings))
    if b is not None and b.samples is None:
        from guerdon.evaluation.searching.search import sampled_requests
        from guerdon.policies.language.text_files import outline

        sampled_requests(study, outline(study.text_policy), b.questions)


class _Suite:
    """The parts of an evaluation, each of which adds to the record."""

    def __init__(self, model: RewardModel, settings: EvaluateTextSettings, same: Same, sets: Sets) -> None:
        self.model, self.settings, self.same, self.sets = model, settings, same, sets
        self.bootstrap: BootstrapOptions = {"reps": settings.reps, "seed": settings.seed}
        form = getattr(model, "form", None)  # how it reads text, where it says so
        info = info_record(model.info) | ({"form": form} if isinstance(form, str) else {})
        self.record: dict[str, Any] = {"model": info, "aggregation": settings.aggregation, **self.bootstrap}
        if sets.read_as:
            self.record["read_as"] = dict(sets.read_as)
            _log_read_as(sets)
        card = getattr(model, "card", None)  # of guerdon's; without one an unbounded value is taken for a logit
        self.logits = np.isinf(model.info.range).all() and (card is None or card.loss == "bradley_terry")
        self.threshold: float | None = None  # of steps, from the first of these sets
        self.pictures: dict[str, str] = {}
        self.material: list[Solution] = []  # right and wrong solutions for attacks
        self.solutions: dict[str, Sequence[Solution]] = {}  # by section of the record

    def score(self, solutions: Sequence[Solution], what: str, groups: Sequence[int] = ()) -> list[Score]:
        batch = self.settings.batch_size
        return score_solutions(self.model, solutions, groups=groups, batch_size=batch, what=f"{what} scored")

    def values(self, scores: Sequence[Score]) -> list[float | Failure]:
        return [solution_value(score, self.settings.aggregation) for score in scores]

    def values_of(
        self, section: str, given: Sequence[Solution | Failure], what: str, groups: Sequence[int] = ()
    ) -> list[float | Failure]:
        """The values of responses, each failure among these in its place; they are those of a section of the record."""
        self.solutions[section] = responses = [one for one in given if isinstance(one, Solution)]
        values = iter(self.values(self.score(responses, what, groups)))
        return [one if isinstance(one, Failure) else next(values) for one in given]

    def first_errors_of_sets(self, exclude: Collection[str]) -> None:
        """The generated set and the published ones of ProcessBench."""
        g, attacks = self.settings.generated, self.settings.attacks
        if g is not None:
            generated = generated_bench(g.families, g.size, g.seed, exclude=exclude)
            self.solutions["generated"] = generated
            self.first_errors("generated", generated)
            if attacks is not None:
                number = -(-attacks.questions // len(g.families))
                self.material += right_and_wrong(g.families, number, g.seed, exclude=exclude)
        if self.settings.process_bench:
            published = self.sets.process_bench
            self.solutions["process_bench"] = published
            self.first_errors("process_bench", published)
            self.material += published

    def first_errors(self, name: str, solutions: Sequence[Solution]) -> None:
        """ProcessBench's figures, metrics of single steps and of answers, and their pictures."""
        s = self.settings
        scores = self.score(solutions, name)
        bench = process_bench(solutions, scores, threshold=s.threshold, tune_on=s.tune_on, **self.bootstrap)
        self.threshold = bench.threshold if self.threshold is None else self.threshold
        table = step_table(solutions, scores)
        steps = classification_metrics(table, threshold=None, probabilities=True, **self.bootstrap)
        bins = table.reliability()
        errors = first_errors(solutions, scores, bench.threshold)
        bars = {kind: {what: one["count"] for what, one in errors[kind].items()} for kind in ("erroneous", "correct")}
        self.pictures[f"{name}_first_error"] = charts.first_error_bars(bars)
        self.pictures[f"{name}_steps"] = charts.score_histogram(table.labels, table.scores, threshold=bench.threshold)
        if bins:
            self.pictures[f"{name}_reliability"] = charts.reliability_diagram(bins)
        self.record[name] = {
            "solutions": len(solutions),
            "segmentation": segmentation(solutions),
            "failures": failure_counts(scores),
            "process_bench": asdict(bench),
            "first_errors": errors,
            "answers": self._answers(solutions, scores),
            "steps": {key: asdict(metric) for key, metric in steps.items()},
            "reliability": [asdict(one) for one in bins],
        }

    def _answers(self, solutions: Sequence[Solution], scores: Sequence[Score]) -> dict[str, Any]:
        """Values of whole solutions, right answers against wrong ones; nothing where the answers are unknown."""
        questions: dict[str, int] = {}
        cases = [
            (solution.is_correct, value, questions.setdefault(solution.asked, len(questions)))
            for solution, value in zip(solutions, self.values(scores), strict=True)
            if solution.is_correct is not None and not isinstance(value, Failure)
        ]
        table = Table.of(cases, len(solutions) - len(cases))
        found = classification_metrics(table, threshold=None, probabilities=False, **self.bootstrap) if cases else {}
        return {name: asdict(metric) for name, metric in found.items()}

    def prm_bench(self) -> None:
        """PRMBench."""
        if self.settings.prm_bench is not None:
            solutions = self.sets.prm_bench
            self.solutions["prm_bench"] = solutions
            self.record["prm_bench"] = asdict(prm_bench(solutions, self.score(solutions, "PRMBench"), **self.bootstrap))

    def pairs(self) -> None:
        """A benchmark of preferences, by what the rows hold."""
        if self.settings.pairs is None:
            return
        choices = self.sets.choices
        given = [response for choice in choices for response in choice.responses]
        places = [k for k, choice in enumerate(choices) for one in choice.responses if isinstance(one, Solution)]
        values = self.values_of("pairs", given, "responses", places)
        ties = self.settings.ties
        name, found = preference_figures(choices, values, ties=ties, **self.bootstrap)
        worth = {} if name == "RM-Bench" or name.endswith("RewardBench 2") else {"ties_worth": ties}
        pairs = pairs_of(choices, values)
        more = {"length": by_length(pairs, ties=ties, **self.bootstrap)}
        if self.logits:
            more["calibration"], bins = calibration(pairs, **self.bootstrap)
            self.pictures["pairs_reliability"] = charts.reliability_diagram(bins)
        self.record["pairs"] = {
            "benchmark": name, **worth, "left_out": dict(self.sets.left_out), **self.sets.votes.facts(),
            **asdict(found), **{k: {n: asdict(one) for n, one in v.items()} for k, v in more.items()},
        }  # fmt: skip

    def labels(self) -> None:
        """The model's values against labels of people."""
        if (rows := self.sets.labelled) is None:
            return
        values = self.values_of("labels", rows.responses(), "labelled responses")
        self.record["labels"] = label_figures(
            values,
            rows.labels_N,
            rows.prompts,
            threshold=self.model.info.success_threshold,
            scales=(self._scale, rows.scales[1]),
            draws=rows.draws,
            **self.bootstrap,
        )

    @property
    def _scale(self) -> tuple[float, float] | None:
        """Lowest and highest value of the model; None: there is no such limit."""
        return self.model.info.range if np.isfinite(self.model.info.range).all() else None

    def turns(self) -> None:
        """The model's values of turns against what a world or people say of them."""
        if (rows := self.sets.turns) is None:
            return
        values = self.values_of("turns", rows.turns, "turns")
        at, scales = self.model.info.success_threshold, (self._scale, None)
        self.record["turns"] = label_figures(
            values, rows.labels_N, rows.prompts, threshold=at, scales=scales, **self.bootstrap
        )

    def bias_probes(self) -> None:
        """What edits that make no response of the preferences better or worse do to its value."""
        if self.settings.pairs is not None and self.settings.probes is not None:
            found = bias_probes(
                self.model, self.sets.choices, self.settings.probes, aggregation=self.settings.aggregation,
                batch_size=self.settings.batch_size, **self.bootstrap,
            )  # fmt: skip
            self.record["bias_probes"] = {name: asdict(one) for name, one in found.items()}

    def best_of_n(self, samples: Sequence[Solution]) -> None:
        """Curves of best-of-n and votes; first errors of the samples where these are known."""
        b = self.settings.best_of_n
        if b is None:
            return
        solutions = list(samples if b.samples is None else self.sets.samples)
        if any(true_first_error(s) is not None for s in solutions):
            distinct: dict[tuple[str, str], Solution] = {}
            for s in solutions:
                distinct.setdefault((s.asked, s.text), s)
            self.first_errors("samples", list(distinct.values()))
        self.solutions["best_of_n"] = solutions
        scores = self.score(solutions, "samples to choose from")
        self.material += solutions
        if b.gold is not None:
            self.over_optimisation(b.gold, b.ns, solutions, self.values(scores))
            if all(s.is_correct is None for s in solutions):
                return
        found = best_of_n(solutions, scores, self.same, aggregations=b.aggregations, ns=b.ns, **self.bootstrap)
        self.record["best_of_n"] = asdict(found)
        for kind, title in (("bon", "Best of n"), ("weighted", "Weighted votes")):
            names = ["pass", "majority", *(f"{kind}_{how}" for how in b.aggregations)]
            curves = {name: found.failures_wrong[name].accuracy for name in names if name in found.failures_wrong}
            self.pictures[f"n_{kind}"] = charts.n_curves(found.n, curves, title=title)

    def over_optimisation(
        self, path: str, ns: Sequence[int] | None, solutions: Sequence[Solution], values: Sequence[float | Failure]
    ) -> None:
        """What best-of-n gains by a gold reward, over sqrt(KL)."""
        gold = load_any_text_model(path)
        scores.refuse_relative(gold, "evaluate.best_of_n.gold", key="evaluate.best_of_n.gold")
        golds = self.values(score_solutions(gold, solutions, batch_size=self.settings.batch_size))
        found, picture = best_of_n_record(solutions, values, golds, ns, **self.bootstrap)
        self.record["over_optimisation"] = {"reward": path, **found}
        self.pictures["over_optimisation"] = charts.standalone(picture)

    def attacks(self) -> None:
        """The report card of attacks; None where no question has a right and a wrong solution.

        A solution is accepted above the threshold of steps; one that is scored as a whole, above the model's own.
        """
        if self.settings.attacks is None or not self.material:
            return
        self.record["attacks"] = None
        if honest_pairs(self.material, self.same):
            card = attack_report(
                self.model,
                self.material,
                self.same,
                aggregation=self.settings.aggregation,
                threshold=self.threshold if self.model.info.granularity == "step" else None,
                settings=self.settings.attacks,
                batch_size=self.settings.batch_size,
            )
            self.record["attacks"] = asdict(card)

    def write(self, folder: Path, training_hashes: Collection[str]) -> dict[str, Any]:
        """Write pictures, text and record, with contamination where the model's questions are known."""
        if training_hashes:
            found = {name: contamination(part, training_hashes) for name, part in self.solutions.items()}
            self.record["seen_in_training"] = found
            for line in contamination_warnings(self.record):
                log_line(f"WARNING: {line}")
        forecast = card_forecast(text_features(self.record), "text", self.settings.gate)
        self.record = {"forecast": forecast.to_dict(), **self.record}
        write_record(folder, self.record, self.pictures, text_of(self.record))
        return self.record


def _log_read_as(sets: Sets) -> None:
    """What the columns were taken for, once in a command."""
    for record in sets.read_as.values():
        for line in record_lines(record):
            log_once(line)


def _published(sources: Sequence[str], columns: str | Mapping[str, str] | None = None) -> list[Solution]:
    """Solutions of files, folders and hub data sets; a line says how many rows have no rated step."""
    left_out: Counter[str] = Counter()
    solutions = published_solutions(sources, left_out, columns=columns)
    for reason, n in sorted(left_out.items()):
        log_line(f"{', '.join(sources)}: left out {n} rows without a rated step ({reason})")
    return solutions


def attacks_that_fooled(folder: Path) -> list[str] | None:
    """Names of the attacks that fooled the model evaluated into this folder; None where it was not attacked.

    Raises:
        DataError: the record cannot be read.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    with boundary(DataError, "not JSON of an evaluation; run `guerdon evaluate` again", where=str(path)):
        card = json.loads(path.read_text(encoding="utf-8")).get("attacks")
    return None if card is None else failed_attacks(card)


def segmentation(solutions: Sequence[Solution]) -> dict[str, int]:
    """How solutions were cut into steps, with counts: the splitter where it is known, else the separator."""
    names = (s.meta.get("splitter") or (f"separator {s.separator!r}" if s.separator else "unknown") for s in solutions)
    return dict(Counter(map(str, names)))


def evaluate_text_study(
    study: Study, *, only: Sequence[str] = (), folder: Path | None = None
) -> dict[str, tuple[dict[str, Any], Path]]:
    """Evaluate the models of the `train` section and of `evaluate.models`.

    Args:
        study: the configuration.
        only: names of models; all by default.
        folder: receives the evaluation of the only model; None: as the study says.

    Returns:
        Model name to the content of its `evaluation.json` and the folder that this lies in.

    Raises:
        ConfigError: an unknown name, or nothing to evaluate or to evaluate on.
        CheckpointError: a model is not trained yet.
        DataError: a file cannot be read, or there is nothing to evaluate on.
    """
    use_threads(study.runner.threads)
    settings = text_settings(study.text_evaluate, study.data)
    b, results = settings.best_of_n, {}
    models = candidates(study, only=only)
    sets = _sets_of(settings, models)
    models = models if folder is None else [replace(one, folder=folder) for one in models]
    for one in models:
        with boundary(ConfigError, f"the evaluation of {one.name} cannot be written to {one.folder}"):
            one.folder.mkdir(parents=True, exist_ok=True)
    for one in models:
        model = load_any_text_model(**dict(one.model))
        if settings.compares_prompts:
            scores.refuse_relative(model, one.name)
        samples: list[Solution] = []
        if b is not None and b.samples is None:  # below the evaluation, so that parallel jobs do not share a folder
            from guerdon.evaluation.searching.search import sampled_solutions

            samples = sampled_solutions(
                study, questions=b.questions, n=b.n, folder=one.folder / "samples", temperature=b.temperature
            )
        with doing(f"evaluating {one.name}"):
            record = evaluate_text(
                model, settings, one.folder, exclude=one.exclude, training_hashes=one.training_hashes,
                samples=samples, sets=sets[one.name],
            )  # fmt: skip
        results[one.name] = (record, one.folder)
    return results


def _sets_of(settings: EvaluateTextSettings, models: Sequence[Candidate]) -> dict[str, Sets]:
    """The data by the name of each model; those of models that were trained on the same columns are read once."""
    found: list[tuple[Mapping[str, str], Sets]] = []
    sets: dict[str, Sets] = {}
    for one in models:
        known = next((own for columns, own in found if columns == one.columns), None)
        if known is None:
            known = read_sets(settings, one.columns)
            found.append((one.columns, known))
        sets[one.name] = known
    return sets


def text_settings(evaluate: EvaluateTextSettings | None, data: DataSettings | None) -> EvaluateTextSettings:
    """The `evaluate` section; without one, first errors and attacks on new problems of the study's own family.

    Raises:
        ConfigError: there is none, and the study's questions are not generated.
    """
    if evaluate is not None:
        return evaluate
    if data is None or data.type != "generated":
        raise ConfigError(
            "there is nothing to evaluate the reward models on: give an evaluate section with "
            "aggregation and process_bench, prm_bench, pairs, best_of_n or generated",
            key="evaluate",
        )
    return EvaluateTextSettings(aggregation="min", generated=GeneratedBenchSettings(families=(data.task,)))


def contamination(solutions: Sequence[Solution], hashes: Collection[str]) -> dict[str, int]:
    """How many different questions there are, and how many of them the model was trained on."""
    questions = {question_name(s) for s in solutions}
    return {"seen": len(questions & set(hashes)), "questions": len(questions)}


def contamination_warnings(record: Mapping[str, Any]) -> list[str]:
    """A line for each set of an evaluation's record that holds questions which the model was trained on."""
    return [
        f"{name}: {one['seen']} of {one['questions']} questions are among those that the model was trained on; its "
        "figures there do not hold for new ones"
        for name, one in record.get("seen_in_training", {}).items()
        if one["seen"]
    ]


def text_of(record: Mapping[str, Any]) -> str:
    """The whole record, section after section."""
    lines = [*forecast_lines(record["forecast"]), ""]
    lines.append(f"{record['model']['name']}, aggregation {record['aggregation']}")
    lines += [f"WARNING: {line}" for line in contamination_warnings(record)]
    for name in ("generated", "process_bench", "samples"):
        if name in record:
            lines += ["", f"== {name}: {record[name]['solutions']} solutions", *_first_error_lines(record[name])]
    if section := record.get("prm_bench"):
        lines += ["", "== PRMBench", *figure_table(section["measured"].items())]
        lines.append(scores.failure_line(section["failures"]))
    if section := record.get("pairs"):
        lines += ["", f"== {section['benchmark']}", *preference_lines(section)]
        lines += [scores.failure_line(section["failures"]), *_read_as_lines(record, "pairs")]
    if "labels" in record:
        lines += ["", *label_lines(record["labels"]), *_read_as_lines(record, "labels")]
    if "turns" in record:
        lines += ["", *label_lines(record["turns"], "turns with a known reward", "turns")]
        lines += _read_as_lines(record, "turns")
    if record.get("bias_probes"):
        lines += ["", *probe_lines(record["bias_probes"])]
    if "best_of_n" in record:
        lines += ["", "== choosing among n samples", *_curves(record["best_of_n"])]
    if "over_optimisation" in record:
        lines += ["", "== best-of-n by the gold reward", *gold_lines(record["over_optimisation"])]
    if record.get("attacks") is not None:
        lines += ["", *attack_lines(record["attacks"])]
    elif "attacks" in record:
        lines += ["", "== no attacks: no question has a right and a wrong solution"]
    return "\n".join(lines) + "\n"


def _read_as_lines(record: Mapping[str, Any], section: str) -> list[str]:
    """What the columns of a section's data were taken for, and how many rows were used."""
    known = record.get("read_as", {}).get(section)
    return [] if known is None else ["read as", *(f"  {line}" for line in record_lines(known))]


def _first_error_lines(section: Mapping[str, Any]) -> list[str]:
    bench = section["process_bench"]
    figures = [
        (f"{name} {what}", figure) for name, one in bench["subsets"].items() for what, figure in one["measured"].items()
    ]
    figures.append(("average f1", bench["average_f1"]["measured"]))
    figures.append(("average f1, failures wrong", bench["average_f1"]["failures_wrong"]))
    figures += [(f"{kind} {name}", one) for kind in ("steps", "answers") for name, one in section[kind].items()]
    counts = [
        f"{kind}: " + ", ".join(f"{what} {one['count']}" for what, one in section["first_errors"][kind].items())
        for kind in ("erroneous", "correct")
    ]
    threshold = f"threshold {number(bench['threshold'])} ({bench['threshold_source']})"
    return [threshold, *figure_table(figures), *counts, scores.failure_line(section["failures"])]


def _curves(section: Mapping[str, Any]) -> list[str]:
    rows = [["accuracy", *(f"n={n}" for n in section["n"])]]
    for name, curve in section["failures_wrong"].items():
        rows.append([name, *(number(one["estimate"]) for one in curve["accuracy"])])
    rows.append(["minus majority", *[""] * len(section["n"])])
    for name, curve in section["failures_wrong"].items():
        if curve["minus_majority"]:
            differences = (signed(one, digits=3, undefined="-") for one in curve["minus_majority"])
            rows.append([f"  {name}", *differences])
    return [f"{section['questions']} questions", *aligned(rows), scores.failure_line(section["failures"])]
