"""`guerdon compare`: a study file becomes jobs (collect or label, train, evaluate, run), and their results a report.

Every task has its own data and reward models, shared by all arms and seeds; an arm is the study file with a few
keys changed. Started again, a study continues with the jobs that are not done.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.comparison.jobs import Job, JobResult, run_jobs
from guerdon.comparison.live_page import live_page
from guerdon.config.loading import Tree, apply_overrides, holds, merge, read_yaml, resolve_refs, to_yaml, validate
from guerdon.errors import ConfigError, GuerdonError, JobError, MissingDependencyError, check_train, needs_train
from guerdon.files import atomic, provenance
from guerdon.files.atomic import held
from guerdon.files.json_files import read_lines
from guerdon.pages.durations import duration
from guerdon.pages.table import ResultTable
from guerdon.plan.estimate import (
    EVALUATION,
    NO_LIMIT,
    estimate_bc,
    estimate_collect,
    estimate_label,
    total_bytes,
    total_seconds,
)
from guerdon.plan.stages import loaded, stage
from guerdon.processes.cores import usable_cores
from guerdon.processes.progress import log_line
from guerdon.secrets import hide
from guerdon.settings.base import Settings
from guerdon.settings.data import DataSettings
from guerdon.settings.policy import BCSettings
from guerdon.settings.reward_models import JudgeModelSettings
from guerdon.settings.study import CompareSettings, Study
from guerdon.tasks.prompt_files import check_prompts

RAY_JOBS = "guerdon.engines.ray_jobs:RayJobs"
_Planned = tuple[Job, Study, Mapping[str, Any]]  # a job, its configuration and what it takes


@dataclass(frozen=True)
class StudyPlan:
    """The jobs of a study.

    Attributes:
        study: the file as it stands, resolved for its first task.
        configs: job name to its resolved configuration.
        estimates: job name to the seconds and bytes that it takes.
        jobs: all of them.
        parallel: processes at a time.
        gpus: names of GPUs, of which each process sees one; empty: what this process sees.
    """

    study: Study
    file: Path
    overrides: tuple[str, ...]
    configs: dict[str, Study]
    estimates: dict[str, Mapping[str, Any]]
    jobs: tuple[Job, ...]
    parallel: int
    gpus: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The study's `work_dir`."""
        return Path(self.study.work_dir)

    def check_tasks(self) -> None:
        """Refuse tasks that a simulator does not have. On a cluster, only simulators installed here are checked.

        Raises:
            ConfigError: with the nearest names.
            MissingDependencyError: jobs run on this machine, and the simulator or its renderer is not installed.
        """
        from guerdon.worlds.build import check_tasks

        worlds = {repr(config.env): config.env for config in self.configs.values() if not config.text}
        with suppress(*([] if self.study.engine == "local" else [MissingDependencyError])):
            for settings in worlds.values():
                check_tasks(settings, drawn=self.study.collect is not None)


class CompareStage:
    """`guerdon compare`, over the plan of a study."""

    def check(self, plan: StudyPlan) -> None:
        """Check what the jobs check at their start, as far as that needs nothing that earlier jobs make.

        Raises:
            GuerdonError: with the reason.
        """
        prompts: dict[str, DataSettings] = {}
        runs: dict[str, Study] = {}  # one of each set with equal values in everything that is checked
        for job in plan.jobs:
            config = plan.configs[job.name]
            if job.stage == "run":
                parts = (config.data, config.env, config.policy, config.algorithm, config.reward.weights())
                runs.setdefault(repr(parts), config)
            elif job.stage == "label" and config.data is not None:
                prompts.setdefault(repr(config.data), config.data)
            elif not config.text and job.stage in ("collect", "train"):
                stage(job.stage).check(config)
        missing: MissingDependencyError | None = None
        for config in runs.values():
            try:
                stage("run").check(config)
            except MissingDependencyError as error:  # raised after the other checks
                missing = error
        for data in prompts.values():  # the policy of a labelling may be made by an earlier job
            check_prompts(data)
        if missing is not None:
            raise missing

    def estimate(self, plan: StudyPlan) -> dict[str, Any]:
        """Counts, time and disk of the whole study."""
        kinds = [job.arguments[0] for job in plan.jobs]
        parts = list(plan.estimates.values())
        left, peak = total_bytes(parts, plan.parallel)
        unknown = any(part.get("seconds", 0.0) is None for part in parts)
        return {
            "jobs": ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds)),
            "at a time": plan.parallel,
            "wall time": NO_LIMIT if unknown else f"about {duration(total_seconds(parts, plan.parallel))}",
            "bytes": left,
            "peak_bytes": peak,
        }

    def work(self, plan: StudyPlan) -> StudyResult:
        """Run the jobs that are not done yet, and write the report.

        Raises:
            MissingDependencyError: the packages that jobs need are not installed.
        """
        check_train()
        return StudyResult(*run_study(plan))


class StudyResult(NamedTuple):
    """The report of a study, and its comparison as a table for a terminal."""

    report: Path
    table: str

    @property
    def arms(self) -> ResultTable:
        """A row for each task and arm: final success, and its difference from the baseline, with their intervals."""
        from guerdon.comparison.results import comparison_rows, read_study

        return ResultTable([row.numbers() for row in comparison_rows(read_study(self.report.parent))])

    def __repr__(self) -> str:
        return repr(self.arms)

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.table}\nreport: {self.report}"


def plan_study(path: Path, overrides: Sequence[str], *, parallel: int = 0) -> StudyPlan:
    """Read a study file and lay out its jobs; nothing is started or written.

    Args:
        path: of the study file.
        overrides: `section.key=value`; a list of names in place of `compare.arms` or `compare.tasks` chooses among
            those of the file, as the other overrides change them.
        parallel: processes at a time; 0: as `compare.parallel` says.

    Raises:
        ConfigError: anything wrong in the file, in any arm and any task.
    """
    file = read_yaml(path)
    tree = _overridden(file, overrides)
    base = validate(Study, resolve_refs(tree, Study), origin=str(path))
    if base.compare is None:
        raise ConfigError(
            f"{path} has no compare section: it names the arms, seeds and tasks of a study", key="compare"
        )
    tasks, runs = _configurations(base, base.compare, tree, path)
    planned = [job for task, studies in tasks.items() for job in _preparation(task, *studies)]
    planned += [_run(*names, config, tasks[names[0]][0]) for names, config in runs.items()]
    whole = len(base.compare.arms) == len((file.data.get("compare") or {}).get("arms") or ())
    planned = _budgeted(_used(planned, whole=whole))
    most, gpus = _room(base, [config for _, config, _ in planned])
    workers = parallel or base.compare.parallel or most
    configs = {job.name: config for job, config, _ in planned}
    estimates = {job.name: cost for job, _, cost in planned}
    return StudyPlan(
        base, path, tuple(overrides), configs, estimates, tuple(job for job, _, _ in planned), workers, gpus
    )


def _overridden(file: Tree, overrides: Sequence[str]) -> Tree:
    """A study file with its overrides, of which some choose arms and tasks."""
    choices = [override for override in overrides if override.startswith(("compare.arms=", "compare.tasks="))]
    changed = apply_overrides(file, [override for override in overrides if override not in choices])
    return _chosen(file, changed, apply_overrides(changed, choices))


def _configurations(
    base: Study, compare: CompareSettings, tree: Tree, path: Path
) -> tuple[dict[str, tuple[Study, Study]], dict[tuple[str, str, int], Study]]:
    """The configurations of all jobs.

    Returns:
        By task those of its preparation and of its labelling, and by task, arm and seed those of the runs.
    """
    tasks: dict[str, tuple[Study, Study]] = {}
    runs: dict[tuple[str, str, int], Study] = {}
    for task in compare.tasks or (base.task_name,):
        at_task = compare.at_task(task) if compare.tasks else {}
        placed = _moved(tree, f"compare.tasks.{task}.")
        origin = f"{path}, task {task}"
        tasks[task] = (_resolved(placed, at_task, origin), _resolved(placed, at_task, origin, verb="label"))
        for arm, seed in product(compare.arms, compare.seeds):
            logger = {"log_path": f"{base.work_dir}/runs", "experiment_name": f"{task}/{arm}/seed{seed}"}
            # The arm's keys as written: their references are about this task, not the file's first one.
            written = tree.data["compare"]["arms"][arm].get("config") or {}
            own = {"runner": {"seed": seed, "logger": logger}, "compare": None}
            own_tree = _moved(placed, f"compare.arms.{arm}.config.")
            runs[task, arm, seed] = _resolved(own_tree, merge(merge(at_task, written), own), f"{path}, arm {arm}")
    return tasks, runs


def _room(study: Study, configs: Sequence[Study]) -> tuple[int, tuple[str, ...]]:
    """How many jobs run at a time where nothing says so, and the GPUs of which each job sees one.

    Jobs that may use a GPU get one each. Where a part names a GPU by number, a job sees all, and runs alone.
    """
    if study.engine == "ray":  # every job that can start is given to Ray, which has them wait for room
        return len(configs), ()
    try:
        with needs_train():
            from guerdon.compute.devices import names_gpu, names_one_of_several, visible_gpus  # imports torch
    except MissingDependencyError:  # torch, without which no job computes on a GPU
        return usable_cores(), ()
    values = [config.model_dump() for config in configs]
    gpus = tuple(visible_gpus()) if names_gpu(values) else ()
    if not gpus:
        return usable_cores(), ()
    return (1, ()) if names_one_of_several(values) else (len(gpus), gpus)


def run_study(plan: StudyPlan) -> tuple[Path, str]:
    """Run the jobs of a plan that are not done yet and write the report.

    Returns:
        The report's path and the comparison as a table for a terminal.

    Raises:
        ConfigError: a task does not exist; or the folder holds another study, or one that is running.
        JobError: some jobs failed; the report of the others is written.
    """
    from guerdon.comparison.report import write_report
    from guerdon.comparison.report_gold import gold_panels
    from guerdon.comparison.report_tables import markdown_table, terminal_table
    from guerdon.comparison.results import read_study
    from guerdon.comparison.study_progress import ShownProgress, StudyProgress

    started = time.perf_counter()
    plan.check_tasks()
    folder = plan.folder
    with held(folder, busy=f"another study runs in {folder}; wait for its end, or choose another work_dir"):
        _write_configs(plan)
        _write_card(plan, 0.0)
        sizes = CompareStage().estimate(plan)
        log_line(f"{sizes['jobs']}: {sizes['wall time']}, {plan.parallel} at a time")
        log_line(f"logs: {folder}/jobs")
        steps = {job.name: plan.configs[job.name].runner.total_steps for job in plan.jobs if job.folder is not None}
        shown = ShownProgress(StudyProgress(plan.jobs, plan.estimates, steps, plan.parallel), len(plan.jobs))
        warned: set[str] = set()

        def warn() -> None:
            new = [line for line in _warnings(plan) if line not in warned]
            warned.update(new)
            for line in new:
                shown.bar.write_line(f"WARNING: {line}")

        def report_end(result: JobResult, settled: int, total: int) -> None:
            line = f"[{settled}/{total}] {result.job.name}: {result.state}"
            line += f" in {result.seconds:.0f} s" if result.seconds else ""
            shown.bar.write_line(line + (f" ({result.message})" if result.message else ""))
            shown.settle(result, settled)
            if result.job.stage == "evaluate":
                warn()

        try:
            warn()
            place = loaded(RAY_JOBS)(plan.study.cluster) if plan.study.engine == "ray" else None
            with live_page(folder):
                results = run_jobs(
                    plan.jobs, folder / "jobs", parallel=plan.parallel, say=report_end, place=place, gpus=plan.gpus
                )
        finally:
            shown.close()
        _write_card(plan, time.perf_counter() - started)
        report = write_report(folder)
    width = shutil.get_terminal_size().columns
    table = terminal_table(folder, width) if sys.stdout.isatty() else markdown_table(folder)
    table += "".join(f"\n{one.conclusion}\n" for one in gold_panels(read_study(folder)))
    failed = [one for one in results if one.state != "done"]
    if failed:
        lines = "\n  ".join(f"{one.job.name}: {one.state}: {one.message}" for one in failed)
        raise JobError(
            f"{len(failed)} of {len(results)} jobs did not finish; the same command goes on with them. "
            f"The report of the others: {report}\n  {lines}"
        )
    return report, table


def _warnings(plan: StudyPlan) -> list[str]:
    """What the cards of the reward models say that the runs use, each once; a run itself refuses one that is broken."""
    from guerdon.rl.reward_warnings import harm_warnings

    found: dict[str, None] = {}
    for job in plan.jobs:
        if job.stage == "run":
            with suppress(GuerdonError):  # a training that was cut off, say
                found |= dict.fromkeys(harm_warnings(plan.configs[job.name]))
    return list(found)


def _write_configs(plan: StudyPlan) -> None:
    """The configuration of every job, unless one of them has already run with another."""
    written = {Path(_job_file(plan.study.work_dir, name)): config for name, config in plan.configs.items()}
    for path, config in written.items():
        if not (path.with_suffix(".done").exists() and path.exists()):
            continue
        if not holds(path, config):
            raise ConfigError(
                f"{plan.folder} holds a study whose finished job {path.stem} was configured differently ({path}); "
                "choose another work_dir, or go back to that configuration"
            )
    for path, config in written.items():
        atomic.write_text(path, to_yaml(config))
    atomic.write_text(plan.folder / "study.yaml", to_yaml(plan.study))


def quickstart_file(text: bool = False) -> Path:
    """The study that `guerdon quickstart` runs (with `--text`); it ships inside the package."""
    return Path(str(files("guerdon.comparison") / ("quickstart_text.yaml" if text else "quickstart.yaml")))


def _moved(tree: Tree, inside: str) -> Tree:
    """The same values; errors about keys that an arm or a task sets name the line where it sets them."""
    moved = {path.removeprefix(inside): place for path, place in tree.places.items() if path.startswith(inside)}
    return Tree(tree.data, {**tree.places, **moved})


def _resolved(tree: Tree, change: dict[str, Any], origin: str, *, verb: str = "run") -> Study:
    """The configuration of jobs. One that needs nothing else of a cluster is that of one process, as without it."""
    changed = resolve_refs(Tree(merge(tree.data, change), tree.places), Study)
    study = validate(Study, changed, origin=origin)
    written = study.model_dump_json()
    if hide(written) != written:
        raise ConfigError(
            f"{origin}: an address or a field contains a key or a password, and compare writes the configurations of "
            "its jobs to files: put the key into an environment variable and name it by api_key_env"
        )
    cluster = study.cluster
    several = cluster.collectors > 1 or cluster.learners > 1 or cluster.reward_workers > 0
    spreads = cluster.label_workers > 1 if verb == "label" else several
    if study.engine == "local" or spreads:
        return study
    alone = {key: value for key, value in changed.data.items() if key not in ("engine", "cluster")}
    return validate(Study, Tree(alone, changed.places), origin=origin)


def _chosen(file: Tree, changed: Tree, tree: Tree) -> Tree:
    """The tree, with the arms and tasks of the file, as `changed`, that overrides name (`compare.arms=[outcome]`)."""
    written, given = file.data.get("compare"), tree.data.get("compare")
    if not isinstance(written, dict) or not isinstance(given, dict):
        return tree
    chosen: dict[str, list[Any]] = {}
    of = changed.data["compare"]
    for key in ("arms", "tasks"):
        every, names = written.get(key), given.get(key)
        named: list[Any] = []
        if isinstance(names, dict):
            named = [name for name, value in names.items() if value is None]
        elif isinstance(names, list) and isinstance(every, dict):
            named = names
            if named:
                chosen[key] = named
                named = [*named, *(of.get(key) or ())]
        _check_names(key, named, every)
    if not chosen:
        return tree
    kept = {}
    for key, names in chosen.items():
        kept[key] = {name: of[key][name] for name in names}
    return Tree(tree.data | {"compare": given | kept}, tree.places)


def _check_names(key: str, named: Sequence[Any], every: Any) -> None:
    """Refuse names of arms or tasks that are not among those of the file."""
    for name in named:
        if name not in list(every or ()):  # a list, for a name may be unhashable
            has = ", ".join(every or ()) or "none"
            raise ConfigError(
                f"override compare.{key}: {name!r} is not in the file; it has {has}", key=f"compare.{key}"
            )


def _preparation(task: str, study: Study, for_label: Study) -> list[_Planned]:
    """What comes before the runs of one task: collecting or labelling, training, evaluating, cloning.

    Args:
        task: its name.
        study: at this task.
        for_label: the same, for the job that labels.
    """
    planned: list[_Planned] = []

    def add(
        name: str,
        kind: str,
        cost: Mapping[str, Any],
        *words: str,
        needs: tuple[str, ...] = (),
        own: Study = study,
    ) -> None:
        verb, *flags = words or (kind,)
        arguments = (verb, _job_file(study.work_dir, f"{task}.{name}"), *flags)
        job = Job(f"{task}.{name}", arguments, needs, float(cost["seconds"] or 0.0), urgent=True, stage=kind)
        planned.append((job, own.model_copy(update={"compare": None}), cost))  # more seeds must not change its hash

    if study.sft is not None:
        add("sft", "sft", stage("sft").estimate(study), "train", "policy=sft", "--resume")
    if study.collect is not None:
        _check_success_reported(study, study.collect.success_readers())
        add("collect", "collect", estimate_collect(study))
    if study.label is not None and study.train:  # only training reads the labels
        needs = _makers(task, study, [study.text_policy, study.label])
        add("label", "label", estimate_label(study), needs=needs, own=for_label)
    for model, settings in study.train.items():
        if study.text:
            needs = _makers(task, study, [study.text_default, settings])
            needs += (f"{task}.label",) if study.label is not None and not settings.data_path else ()
        else:
            needs = (f"{task}.collect",) if study.collect is not None else ()
        each = float(stage("train").estimate(study)["seconds"]) / len(study.train)
        cost = {**stage("train", only=(model,)).estimate(study), "seconds": each}
        words = ("train", "--only", model, "--resume")
        add(f"train.{model}", "train", cost, *words, needs=tuple(dict.fromkeys(needs)))
    for model in (*study.train, *_third_models(study)):
        seconds = stage("evaluate", only=(model,)).estimate(study)["seconds"]
        needs = (f"{task}.train.{model}",) if model in study.train else ()
        cost = {"seconds": seconds, "bytes": EVALUATION}
        add(f"evaluate.{model}", "evaluate", cost, "evaluate", "--only", model, needs=needs)
    if (bc := _clone(study)) is not None:
        fresh = study.model_copy(update={"policy": study.policy.model_copy(update={"checkpoint": None})})
        needs, cost = _makers(task, study, [bc]), estimate_bc(study)  # of what this study collects
        add("bc", "bc", cost, "train", "policy=bc", "--resume", needs=needs, own=fresh)
    return planned


def _used(planned: Sequence[_Planned], *, whole: bool) -> list[_Planned]:
    """The jobs without preparation that is not used.

    Args:
        planned: all jobs.
        whole: no arms were chosen, so that only a clone may be unused; else everything that their runs do not need.
    """
    needs = {job.name: job.needs for job, _, _ in planned}
    used, found = set(), [job.name for job, _, _ in planned if job.stage == "run"]
    while found:
        name = found.pop()
        used.add(name)
        found += needs[name]

    def stays(job: Job) -> bool:
        kept = whole and job.stage != "bc"
        return kept or job.name in used or (job.stage == "evaluate" and used.issuperset(job.needs))

    return [one for one in planned if stays(one[0])]


def _run(task: str, arm: str, seed: int, config: Study, prepared: Study) -> _Planned:
    """A run of an arm, which waits for the supervised start and for the reward models whose folders it names."""
    if config.text:
        if not config.verified and config.reward.truth is None:
            raise ConfigError(
                f"arm {arm}: true success is unknown with data.type prompts, so nothing says which arm is better: name "
                "a source that scores well in reward.truth, or compare on data with answers",
                key="reward.truth",
            )
        read: list[Settings] = [config.text_policy, *config.text_sources.values()]
    else:
        _check_success_reported(config, config.success_readers())
        read = [*config.reward.sources.values()] if config.reward.use_reward_model else []
        read += [config.policy, config.algorithm]  # a cloned start, demonstrations
    name, cost = f"{task}.{arm}.seed{seed}", stage("run").estimate(config)
    arguments = ("run", _job_file(prepared.work_dir, name), "--resume")
    folder = Path(config.runner.logger.log_path, config.runner.logger.experiment_name)
    needs = _makers(task, prepared, read)
    return Job(name, arguments, needs, float(cost["seconds"] or 0.0), folder=folder, stage="run"), config, cost


def _budgeted(planned: Sequence[_Planned]) -> list[_Planned]:
    """The jobs with parts of each budget: what is left of it is shared out among those that are not done.

    `label.max_usd` is one budget of all tasks, that of a judge one of all runs. Jobs that record their calls in one
    file have one part; a judge whose replies are kept elsewhere (`cache_dir`) has a budget of its own already.
    """
    budgets: dict[tuple[tuple[str, ...], float], dict[Path, list[str]]] = {}  # a key, dollars: files of calls, jobs
    for job, config, _ in planned:
        for key, dollars, calls in _budgets(job, config):
            budgets.setdefault((key, dollars), {}).setdefault(calls, []).append(job.name)
    done = {job.name for job, _, _ in planned if Path(job.arguments[1]).with_suffix(".done").exists()}
    changed = {job.name: config for job, config, _ in planned}
    for (key, dollars), users in budgets.items():
        spent = {calls: _spent(calls) for calls in users}
        going = [calls for calls, names in users.items() if not done.issuperset(names)]
        for calls in going:
            part = spent[calls] + (dollars - sum(spent.values())) / len(going)
            for name in users[calls]:
                changed[name] = _with_value(changed[name], key, max(part, 1e-6))
    return [(job, changed[job.name], cost) for job, _, cost in planned]


def _budgets(job: Job, config: Study) -> Iterator[tuple[tuple[str, ...], float, Path]]:
    """Budgets of a job: the key in its configuration, dollars, and the file in which it records its calls."""
    if job.stage == "label" and config.label is not None and config.label.max_usd is not None:
        yield ("label", "max_usd"), config.label.max_usd, Path(config.label.save_dir, "cache", "calls.jsonl")
    if job.folder is not None:
        for name, source in config.reward.sources.items():
            model = source.model
            if isinstance(model, JudgeModelSettings) and model.max_usd is not None and model.cache_dir is None:
                key = ("reward", "sources", name, "model", "max_usd")
                yield key, model.max_usd, job.folder / "judge" / name / "calls.jsonl"


def _spent(calls: Path) -> float:
    """Dollars of the calls in a file; a call that did not end counts with the most that it can have cost."""
    rows = {row.get("ended", row.get("begun")): row for row in read_lines(calls)[0]}  # its end, where it has one
    return float(sum(row.get("usd", 0.0) + row.get("usd_at_most", 0.0) for row in rows.values()))


def _with_value(held: Any, key: Sequence[str], value: Any) -> Any:
    """A copy of settings, or of a map of them, with another value at a key."""
    if not key:
        return value
    first, *rest = key
    if isinstance(held, dict):
        return held | {first: _with_value(held[first], rest, value)}
    return held.model_copy(update={first: _with_value(getattr(held, first), rest, value)})


def _check_success_reported(config: Study, readers: Sequence[str]) -> None:
    try:
        with needs_train():
            from guerdon.worlds.build import check_success_reported  # imports simulators, so after every key is checked
    except MissingDependencyError:  # then the jobs are not run here, and a dry run says what is not checked
        return
    check_success_reported(config.env, readers)


def _makers(task: str, study: Study, read: Iterable[Settings]) -> tuple[str, ...]:
    """The jobs of a task that write into a folder which these settings name.

    A run warns of what the evaluation of its reward models found; that of a language model waits for it.
    """
    made: dict[str, str] = {}
    if study.sft is not None:
        made[study.sft.save_dir] = f"{task}.sft"
    if study.label is not None and study.train:
        made[study.label.save_dir] = f"{task}.label"
    if study.collect is not None:
        made[study.collect.save_dir] = f"{task}.collect"
    if (bc := _clone(study)) is not None:
        made[bc.save_dir] = f"{task}.bc"
    last = "evaluate" if study.text else "train"
    made |= {model.save_dir: f"{task}.{last}.{name}" for name, model in study.train.items()}
    made |= {path: f"{task}.evaluate.{name}" for name, path in _third_models(study).items()}
    named = [text for settings in read for text in _paths(settings.model_dump(exclude={"save_dir"}))]
    return tuple(job for folder, job in made.items() if any(Path(text).is_relative_to(folder) for text in named))


def _clone(study: Study) -> BCSettings | None:
    """The clone of what a study collects; one of other episodes is made before the study."""
    bc, collect = study.bc, study.collect
    return bc if bc and collect and Path(bc.data_path).is_relative_to(collect.save_dir) else None


def _third_models(study: Study) -> dict[str, str]:
    """Reward models that a language study evaluates and does not train, with their paths."""
    others = study.text_evaluate.models if study.text and study.text_evaluate is not None else {}
    return {name: one.path for name, one in others.items()}


def _paths(value: Any) -> Iterator[str]:
    """Every piece of text inside plain values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _paths(child)


def _job_file(work_dir: str, name: str) -> str:
    return str(Path(work_dir) / "jobs" / f"{name}.yaml")


def _write_card(plan: StudyPlan, seconds: float) -> None:
    """`study.json`, what the report reads first; wall seconds add up over restarts."""
    path = plan.folder / "study.json"
    compare = plan.study.compare
    assert compare is not None
    before = 0.0
    started = provenance.now()
    if path.exists():
        card = json.loads(path.read_bytes())
        before, started = float(card["wall_seconds"]), card["started"]
    command = provenance.command()
    if not command.startswith("guerdon "):  # called from Python
        command = " ".join(["guerdon compare", str(plan.file), *plan.overrides])
    atomic.write_json(
        path,
        {
            "name": plan.study.name,
            "arms": {name: {"label": arm.label} for name, arm in compare.arms.items()},
            "baseline": compare.baseline,
            "correction": compare.correction,
            "tasks": list(compare.tasks or (plan.study.task_name,)),
            "seeds": list(compare.seeds),
            "commands": [command],
            "versions": provenance.versions(),
            "machine": provenance.machine(),
            "started": started,
            "wall_seconds": round(before + seconds, 1),
        },
    )
