"""The command line: one command for each stage in the life of a reward model.

Every command takes a YAML file plus dotted overrides (`runner.seed=3`), shows the configuration and its cost with
`--dry-run`, prints what it wrote, and exits with a non-zero status and one line on bad input. Heavy packages are
imported by the commands that need them.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import partial, wraps
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from guerdon import __version__
from guerdon.auditing.command import audit
from guerdon.errors import ConfigError, MissingDependencyError
from guerdon.network.hub import use_token
from guerdon.processes.process import UsageError, check_start, run_command
from guerdon.processes.progress import heartbeat
from guerdon.processes.streams import report_lost_output
from guerdon.serve.cli import serve

if TYPE_CHECKING:
    from guerdon.settings.study import Study


_PARTS = {  # kinds of parts that the configuration of a command names, listed in its help
    "collect": ("world",), "label": ("verifier", "labeler", "judge"), "train": ("policy", "packaged model"),
    "serve": ("reward model", "packaged model"), "search": ("reward model", "verifier"),
    "run": ("reward model", "world", "policy", "estimator", "policy loss", "verifier", "packaged model"),
    "compare": ("reward model", "world", "policy", "estimator", "policy loss", "verifier", "packaged model"),
}  # fmt: skip


class _Verb(TyperCommand):
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the names of the parts that the configuration can name, those of installed packages included."""
        if kinds := _PARTS.get(ctx.info_name or ""):
            from guerdon.settings.parts import REGISTRIES

            with formatter.section("Parts by name (your own: docs/extend.md)"):
                formatter.write_dl([(one.kind, ", ".join(one.listed())) for one in REGISTRIES if one.kind in kinds])

    def invoke(self, ctx: Any) -> Any:
        """Call the command; a log of one that takes long is never silent for 20 s."""
        check_start()
        use_token()
        ctx.params |= {name: _expanded(value) for name, value in ctx.params.items() if isinstance(value, Path)}
        with nullcontext() if ctx.info_name == "serve" or ctx.params.get("watch") else heartbeat(str(ctx.info_name)):
            status = super().invoke(ctx)
        if not ctx.params.get("dry_run"):
            report_lost_output()
        return status


def _expanded(path: Path) -> Path:
    """A path of the command line, expanded as in a configuration; the path of an existing file stays as it is."""
    from guerdon.config.loading import usable_value

    try:
        return path if path.exists() else Path(usable_value(str(path), path=True))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


class _Verbs(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command; the name of a method of search, such as best-of-n, is none."""
        try:
            return super().resolve_command(ctx, args)
        except UsageError:
            from guerdon.config.problems import nearest
            from guerdon.settings.search import Method

            method = nearest(args[0], get_args(Method), bar=0.8)
            if method is None:
                raise
            hint = f"No such command {args[0]!r}. Did you mean 'search' with search.method: {method}?"
            raise UsageError(hint, ctx) from None


app = typer.Typer(
    name="guerdon",
    cls=_Verbs,
    help="The whole life of a reward model: collect, train, evaluate, serve, run, compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut off the names of options on narrow screens
)

File = Annotated[Path, typer.Argument(help="Study file (YAML).", show_default=False)]
FileOrId = Annotated[Path, typer.Argument(help="Study file (YAML), or a Gymnasium id.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted overrides, such as runner.seed=3.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the resolved configuration and the cost, and exit.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint.")]
Only = Annotated[list[str] | None, typer.Option("--only", help="Only this model of the train section (repeatable).")]


@app.command()
def collect(study: FileOrId, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Collect episodes from experts, noise or policies into a LeRobot data set."""
    config = _load(study, overrides)
    if config.collect is None:
        raise ConfigError(f"{study} has no collect section: it needs at least collect.save_dir")
    if dry_run:
        from guerdon.collect.collect import check_collect

        return _dry_run(config, "collect", check=check_collect)
    from guerdon.collect.collect import collect as work

    done = work(config)
    _say(f"wrote {done.episodes} episodes with {done.frames} frames to {done.path}")


@app.command()
def label(
    study: File,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    method: Annotated[int | None, typer.Option("--method", help="Who solves: 1: the policy; 2: the judge.")] = None,
    reward: Annotated[str | None, typer.Option("--reward", help="HE or SE.")] = None,
    sft_model: Annotated[str | None, typer.Option("--sft_model", "--sft-model", help="policy.path")] = None,
    num_rollouts: Annotated[
        int | None, typer.Option("--num_rollouts", "--num-rollouts", help="Solutions per question.")
    ] = None,
    num_samples: Annotated[int | None, typer.Option("--num_samples", "--num-samples", help="Questions.")] = None,
    skip_generation: Annotated[
        bool, typer.Option("--skip_generation", "--skip-generation", help="Use the existing labels.")
    ] = False,
    max_usd: Annotated[float | None, typer.Option("--max-usd", help="Spending limit in USD.")] = None,
) -> None:
    """Label the steps of solutions by a judge, by continuations, or by the ground truth of generated tasks."""
    flags = _label_overrides(
        sft_model, method=method, reward=reward, num_rollouts=num_rollouts, num_samples=num_samples, max_usd=max_usd
    )
    config = _load(study, [*(overrides or []), *flags])
    if config.label is None:
        raise ConfigError(f"{study} has no label section; an empty one (label: {{}}) labels by a judge at Anthropic")
    if dry_run:
        from guerdon.labels.label import check_label

        return _dry_run(config, {} if skip_generation else "label", check=check_label)
    from guerdon.labels.label import label as work

    if config.engine == "ray":
        from guerdon.engines.ray_label import LabelWorkers

        with closing(LabelWorkers(config.cluster, config.generation, config.runner)) as workers:
            done = work(config, skip_generation=skip_generation, sample_with=workers.sample_with)
    else:
        done = work(config, skip_generation=skip_generation)
    _say((f"kept {done.folder}: {done.kept_or_written}; " if done.kept else f"wrote {done.folder}: ") + done.summary)


@app.command()
def train(
    study: File,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", "--skip_generation", "--skip-generation", help="Continue; keep what is finished."),
    ] = False,
    only: Only = None,
    method: Annotated[int | None, typer.Option("--method", help="Train on the labels of this label.method.")] = None,
    reward: Annotated[str | None, typer.Option("--reward", help="Train on the labels of this label.reward.")] = None,
    sft_model: Annotated[str | None, typer.Option("--sft_model", "--sft-model", help="policy.path")] = None,
) -> None:
    """Train the reward models of the train section, or a first policy (policy=bc, policy=sft)."""
    rest = [*(overrides or []), *_label_overrides(sft_model, method=method, reward=reward)]
    first = next((word for word in rest if word in ("policy=bc", "policy=sft")), None)
    if first is not None:
        rest.remove(first)
    config = _load(study, rest)
    if first is not None:
        return _train_policy(study, config, first.removeprefix("policy="), dry_run=dry_run, resume=resume, only=only)
    if not config.train:
        raise ConfigError(f"{study} has no train section: it names the reward models to train and to evaluate")
    _check_only(study, list(config.train), only)
    if method is not None or reward is not None:
        fixed = [name for name in only or config.train if getattr(config.train[name], "data_path", None) is not None]
        if fixed:
            raise ConfigError(f"train.{fixed[0]}.data_path already names the data: --method and --reward do nothing")
    if dry_run:
        from guerdon.train.dry_run import check_data

        return _dry_run(config, "train", only, check=partial(check_data, only=only or ()))
    from guerdon.compute import distributed

    if config.text:
        from guerdon.train.text import train_text_model

        with distributed.joined(config.runner.collective_timeout), distributed.together():
            for name in only or config.train:
                done = train_text_model(config.text_models[name], config, resume=resume)
                if distributed.is_first():
                    _say(f"wrote {name} to {done.folder}: {_numbers(done.metrics)}")
        return
    import torch

    from guerdon.train.images import train_image_model
    from guerdon.train.vlm import train_vlm

    torch.set_num_threads(config.runner.threads)
    names = list(only or config.train)
    sharded = {*config.vlm_models, *(name for name, one in config.image_models.items() if one.fsdp)}
    if distributed.launched() > 1:
        names.sort(key=lambda name: name not in sharded)  # processes join once
    for shared, group in groupby(names, key=sharded.__contains__):
        with distributed.joined(config.runner.collective_timeout) if shared else nullcontext(), distributed.together():
            for name in group:
                result = (
                    train_vlm(config.vlm_models[name], resume=resume)
                    if name in config.vlm_models
                    else train_image_model(config.image_models[name], resume=resume)
                )
                if distributed.is_first():
                    _say(f"wrote {name} to {result.save_dir}: {_numbers(result.metrics)}")


def _label_overrides(sft_model: str | None, **given: object) -> list[str]:
    """Flags of `label` and `train` as overrides; None: not given."""
    policy = [] if sft_model is None else [f"policy.path={json.dumps(sft_model)}", "policy.tiny=null"]
    return [f"label.{name}={value}" for name, value in given.items() if value is not None] + policy


def _train_policy(
    study: Path, config: Study, kind: str, *, dry_run: bool, resume: bool, only: list[str] | None
) -> None:
    """`train policy=bc` and `train policy=sft`."""
    if getattr(config, kind) is None:
        wanted = "bc.data_path and bc.save_dir" if kind == "bc" else "sft.save_dir"
        raise ConfigError(f"{study} has no {kind} section: it needs at least {wanted}")
    if only:
        raise ConfigError(f"--only would do nothing with policy={kind}; remove it")
    if dry_run:
        if kind == "sft":
            from guerdon.train.sft import check_sft

            return _dry_run(config, "sft", check=check_sft)
        from guerdon.train.dry_run import check_bc

        return _dry_run(config, {"policy": "behaviour cloning"}, check=check_bc)
    if kind == "bc":
        from guerdon.train.bc import train_bc

        folder, metrics = train_bc(config, resume=resume)
    else:
        from guerdon.compute import distributed
        from guerdon.train.sft import train_sft_study

        with distributed.joined(config.runner.collective_timeout), distributed.together():
            folder, metrics = train_sft_study(config, resume=resume)
        if not distributed.is_first():
            return
    _say(f"wrote a policy to {folder}: " + _numbers(metrics))


@app.command()
def evaluate(
    study: Annotated[str | None, typer.Argument(help="Study file (YAML).", show_default=False)] = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    only: Only = None,
    gate: Annotated[bool, typer.Option("--gate", help="Exit with status 5 if a model likely harms RL.")] = False,
    attack: Annotated[
        bool, typer.Option("--attack", help="Robots: attack success classifiers and train them on what is found.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Without a study: folder, hub id, server URL, package.module:factory, rubric."),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Without a study: preferences, steps, labels, or a LeRobot data set.")
    ] = None,
    labels: Annotated[str | None, typer.Option("--labels", help="Responses with labels of people.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Without a study: folder of the card.")] = None,
) -> None:
    """Evaluate reward models of a study, or one on a file; those for text also under attack."""
    from guerdon.evaluation.by_path import check_words, evaluate_judged, evaluated, study_of

    words = [*([] if study is None else [study]), *(overrides or [])]
    file = check_words(words, model, data, labels, output, of_study=bool(only or attack))
    if file is not None:
        path = _expanded(Path(file))
        config = _load(path, words[1:] + ([] if labels is None else [f"evaluate.labels={json.dumps(labels)}"]))
    elif model is None:
        return _say(evaluate_judged(str(data or labels), words, output))
    else:
        path, config = Path(model), study_of(model, data, words, labels)
    if attack:
        return _attack(config, gate=gate, dry_run=dry_run, only=only)
    if not config.text and file is not None:
        models = [*config.train, *config.control_evaluate.remote]
        if not models:
            raise ConfigError(f"{path} has neither a train section nor evaluate.remote: it names no reward model")
        _check_only(path, models, only)
    if dry_run:
        from guerdon.evaluation.suites import image_suite, text_suite

        check = text_suite.check_evaluation if config.text else image_suite.check_evaluation
        return _dry_run(config, "evaluate", only, check=check)
    forecasts: dict[str, Any] = {}
    for one in evaluated(config, only or (), model, output):
        sys.stdout.write(f"{one.name}\n{one.card}\n")
        forecasts[one.name] = one.forecast
        if one.files:
            _say(f"wrote {one.files[0]} and {len(one.files) - 1} more files in the same folder")
    if gate:
        from guerdon.evaluation.gate.gate_card import check_gate
        from guerdon.settings.evaluate import GateSettings

        for line in check_gate(forecasts, GateSettings() if config.evaluate is None else config.evaluate.gate):
            sys.stderr.write(f"{line}\n")


def _attack(config: Study, *, gate: bool, dry_run: bool, only: list[str] | None) -> None:
    """`evaluate --attack`."""
    if config.text:
        raise ConfigError("--attack is for robots: models for text are always attacked, as evaluate.attacks says")
    if gate:
        raise ConfigError("--gate would do nothing with --attack; remove it")
    from guerdon.evaluation.suites.repair import repair_cost, repair_study, repair_text

    if dry_run:
        return _dry_run(config, repair_cost(config, only or ()))
    import torch

    torch.set_num_threads(config.runner.threads)
    for report, paths in repair_study(config, only=only or ()).values():
        sys.stdout.write(f"{repair_text(report)}\n")
        _say(f"wrote {paths['json']}, and data sets and models in the same folder")


@app.command()
def score(
    file: Annotated[
        Path, typer.Argument(help="Rows: JSONL, JSON, Parquet, CSV, .eval; a folder of a trainer.", show_default=False)
    ],
    model: Annotated[
        str, typer.Option("--model", help="Folder, hub id, server URL, package.module:factory, or rubric file.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="New file or folder, in the format of the rows.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(help="Options of the model, such as judge.model=NAME max_usd=5.", show_default=False),
    ] = None,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Score again only rows without a reward.")] = False,
    aggregation: Annotated[str, typer.Option(help="How the values of steps become one: min, prod, last, ...")] = "min",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what a judge would cost, and exit.")] = False,
) -> None:
    """Add the rewards of a model to the rows of a file or a log, as columns. Run again, it continues."""
    from guerdon.config.tree import Tree, apply_overrides
    from guerdon.evaluation.scoring.score_logs import check_paths, load_scoring_model, score_path
    from guerdon.models.scores import AGGREGATIONS

    how = next((name for name in AGGREGATIONS if name == aggregation), None)
    if how is None:
        raise ConfigError(f"--aggregation {aggregation}: choose one of {', '.join(AGGREGATIONS)}")
    check_paths(file, output, only_failed=only_failed)
    given = apply_overrides(Tree(), options or []).data
    judge = load_scoring_model(file, model, given)
    with ExitStack() as stack:
        stack.callback(getattr(judge, "close", lambda: None))  # a judge's files of replies and costs
        _say(score_path(file, judge, output, name=model, options=given, only_failed=only_failed, aggregation=how,
                        dry_run=dry_run))  # fmt: skip


@app.command()
def search(study: File, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Answer questions with solutions that a reward model chooses, by votes, beam search or DVTS where wanted."""
    config = _load(study, overrides)
    if config.search is None:
        raise ConfigError(f"{study} has no search section: it needs at least search.model and search.aggregation")
    if dry_run:
        from guerdon.evaluation.searching.search_study import check_search

        return _dry_run(config, "search", check=check_search)
    from guerdon.evaluation.searching.search_study import search as work

    done = work(config)
    _say(f"wrote {done.path}: {done.summary}")


@app.command()
def run(study: FileOrId, overrides: Overrides = None, dry_run: DryRun = False, resume: Resume = False) -> None:
    """Train a policy with the rewards of the reward section."""
    config = _load(study, overrides)
    if dry_run:
        from guerdon.rl.build_control import check_control
        from guerdon.rl.build_text import check_text

        return _dry_run(config, "run", check=check_text if config.text else check_control)
    from guerdon.comparison.report import write_single_report
    from guerdon.compute import distributed
    from guerdon.rl.log import true_success
    from guerdon.rl.run import run as work

    with distributed.joined(config.runner.collective_timeout):
        done = distributed.led(lambda: work(config, resume=resume))
    if done is None:
        return
    folder, summary = done
    _say(true_success(summary["final"]))
    if episodes := summary.get("episodes"):
        _say(", ".join(f"{count} {name}" for name, count in episodes.items()) + " episodes in training")
    _say(f"wrote {folder} and {write_single_report(folder)}")


@app.command()
def compare(
    study: File,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    parallel: Annotated[int, typer.Option("--parallel", help="Jobs at a time; 0: one per core.")] = 0,
) -> None:
    """Run a whole study (arms x seeds x tasks) and write its report. Run again, it continues."""
    from guerdon.comparison.study import plan_study, run_study

    plan = plan_study(study, overrides or [], parallel=parallel)
    if dry_run:
        return _dry_run(plan.study, plan.estimate(), check=lambda _: plan.check())
    report, table = run_study(plan)
    sys.stdout.write(table + "\n")
    _say(f"report: {report}")


app.command()(audit)


@app.command("serve")
@wraps(serve)
def _serve(*words: Any, **options: Any) -> None:
    settings = serve(*words, **options)
    if settings is None:
        return
    if settings.ray is None:
        from guerdon.serve.launch import launch

        return launch(settings)
    from guerdon.engines.ray_serve import deploy

    deploy(settings)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A study's work_dir, or the folder of one run.")],
) -> None:
    """Write report.html again from the files of a study or a run."""
    if (folder / "meta" / "info.json").is_file():
        raise ConfigError(
            f"{folder} is a data set, and recordings for the Rerun viewer are no longer written: lerobot-dataset-viz "
            "shows episodes, guerdon evaluate what reward models say of them; guerdon report reads studies and runs"
        )
    from guerdon.comparison.report import write_report, write_single_report

    if (folder / "study.json").is_file():
        return _say(f"report: {write_report(folder)}")
    if (folder / "metrics.jsonl").is_file():
        return _say(f"report: {write_single_report(folder)}")
    raise ConfigError(f"{folder} holds no study (study.json) and no run (metrics.jsonl)")


@app.command()
def quickstart(
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Output folder; runs/quickstart, or runs/quickstart_text.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="A small language model that does sums, instead of a car on a hill.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """A small example of every stage: data, training, evaluation, RL with two rewards, report."""
    from guerdon.comparison.study import plan_study, quickstart_file, run_study

    plan = plan_study(quickstart_file(text), [] if folder is None else [f"work_dir={folder}"], parallel=0)
    if dry_run:
        return _dry_run(plan.study, plan.estimate())
    page, table = run_study(plan)
    sys.stdout.write(table + "\n")
    _say(f"report: {page}")


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="Folder with pickled weights.", show_default=False)],
    target: Annotated[Path, typer.Argument(help="New folder.", show_default=False)],
) -> None:
    """Write a model or an adapter whose weights are pickles as a new folder with safetensors."""
    from guerdon.policies.pretrained.pickled import import_model

    _say(f"wrote {target} with {', '.join(import_model(folder, target))}")


@app.command()
def doctor() -> None:
    """Check this machine: packages, rendering without a screen, disk; with a fix for each problem."""
    from guerdon.doctor import main as check

    raise typer.Exit(check())


for _verb in app.registered_commands:
    _verb.cls = _Verb
    _verb.short_help = inspect.getdoc(_verb.callback) or ""  # not cut to one line


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        sys.stdout.write(f"guerdon {__version__}\n")
        raise typer.Exit


def main() -> None:
    """Entry point: expected errors become one line and an exit status."""
    run_command(lambda: app(standalone_mode=False))


def _load(path: Path, overrides: list[str] | None) -> Study:
    from guerdon.config.loading import load
    from guerdon.settings.study import Study

    named = re.fullmatch(r"(?:(?=.*-v\d+$)(?:.+[:/])?|[\w.]+:)([^:/]+)", str(path))
    if named and not path.is_file():  # an environment by its id, with its own reward
        words = [f"env.task={path}", "env.type=gymnasium", "env.native_reward=dense", f"work_dir=runs/{named[1]}"]
        return load(Study, None, [*words, *(overrides or [])], origin=str(path))
    return load(Study, path, overrides or [])


def _check_only(path: Path, models: Sequence[str], only: list[str] | None) -> None:
    """The names of `--only` are reward models of the study."""
    unknown = [name for name in only or () if name not in models]
    if unknown:
        raise ConfigError(f"--only {unknown[0]}: {path} has the reward models {', '.join(models)}")


def _dry_run(
    config: Study,
    cost: dict[str, Any] | str,
    only: list[str] | None = None,
    *,
    check: Callable[[Study], None] | None = None,
) -> None:
    """Show a configuration and the cost, or that of a command of `estimate`.

    Args:
        config: the resolved configuration.
        cost: in numbers, or the command.
        only: names of models.
        check: makes the checks of the start of the command.
    """
    from guerdon.config.loading import to_yaml
    from guerdon.plan.estimate import estimate, readable

    notes = [] if config.text else list(config.env.notes)
    try:
        if check is not None:
            check(config)
    except MissingDependencyError as error:  # the command may run on another machine
        notes.append(f"not checked: {error}")
    sys.stdout.write(to_yaml(config) + "\n")
    for line in [*readable(estimate(config, cost, only or ()) if isinstance(cost, str) else cost), *notes]:
        _say(line)


def _numbers(metrics: dict[str, object]) -> str:
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in metrics.items())


def _say(line: str) -> None:
    sys.stderr.flush()
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
