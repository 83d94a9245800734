"""The command line: one command for each stage in the life of a reward model.

Every command takes a YAML file plus dotted overrides (`runner.seed=3`), shows the configuration and its cost with
`--dry-run`, prints what it wrote, and exits with a non-zero status and one line on bad input. Heavy packages are
imported by the commands that need them.
"""

from __future__ import annotations

import inspect
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from guerdon import __version__
from guerdon.annotate.command import annotate
from guerdon.auditing.command import audit
from guerdon.comparison.play import play
from guerdon.errors import ConfigError, MissingDependencyError, StudyError, needs_train, place_of
from guerdon.network.hub import use_token
from guerdon.plan.stages import stage
from guerdon.processes.process import UsageError, check_start, command, how_to_fetch
from guerdon.processes.progress import heartbeat
from guerdon.processes.streams import report_lost_output

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
        with (
            nullcontext()
            if ctx.info_name in ("serve", "annotate") or ctx.params.get("watch")
            else heartbeat(str(ctx.info_name))
        ):
            try:
                status = super().invoke(ctx)
            except StudyError as error:
                raise error.of(str(_expanded(Path(ctx.params["study"])))) from error
            except SystemExit as error:
                if error.code:
                    raise
                raise ConfigError(
                    f"the command ended before its work was done: {place_of(error)} called sys.exit({error.code!r}); "
                    "raise an exception there"
                ) from error
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
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut off the names of options on narrow screens
)

File = Annotated[Path, typer.Argument(help="Study file (YAML).", show_default=False)]
FileOrId = Annotated[
    Path, typer.Argument(help="Study file (YAML), a Gymnasium id, or module:EnvClass.", show_default=False)
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted overrides, such as runner.seed=3.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the resolved configuration and the cost, and exit.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue from the newest checkpoint; longer with runner.total_steps=N.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns", help="What columns are for: ROLE=NAME[:CODING],... (winner=vote:1/2), or package.module:function."
    ),
]
Outcomes = Annotated[
    str | None,
    typer.Option("--outcomes", help="Robots: file with the columns episode and success, for data without outcomes."),
]
Only = Annotated[list[str] | None, typer.Option("--only", help="Only this model of the train section (repeatable).")]


@app.command()
def collect(study: FileOrId, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Collect episodes from experts, noise or policies into a LeRobot data set."""
    config, chosen = _load(study, overrides), stage("collect")
    if dry_run:
        return _dry_run(chosen, config)
    _say(chosen.work(config).line)


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
    chosen = stage("label", skip_generation=skip_generation)
    if dry_run:
        return _dry_run(chosen, config)
    _say(chosen.work(config).line)


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
    outcomes: Outcomes = None,
    method: Annotated[int | None, typer.Option("--method", help="Train on the labels of this label.method.")] = None,
    reward: Annotated[str | None, typer.Option("--reward", help="Train on the labels of this label.reward.")] = None,
    sft_model: Annotated[str | None, typer.Option("--sft_model", "--sft-model", help="policy.path")] = None,
) -> None:
    """Train the reward models of the train section, or a first policy (policy=bc, policy=sft)."""
    rest = [*(overrides or []), *_label_overrides(sft_model, method=method, reward=reward)]
    first = next((word for word in rest if word in ("policy=bc", "policy=sft")), None)
    if first is not None and outcomes is not None:
        raise ConfigError(f"--outcomes would do nothing with {first}; remove it", key="--outcomes")
    if first is not None:
        rest.remove(first)
        return _train_policy(first, _load(study, rest), only, dry_run=dry_run, resume=resume)
    config = _load(study, [*rest, *_outcome_words(study, only, outcomes, evaluates=False)])
    if method is not None or reward is not None:
        _check_labels_are_read(config, only)
    chosen = stage("train", only=tuple(only or ()), resume=resume, say=_say)
    if dry_run:
        return _dry_run(chosen, config)
    chosen.work(config)


def _train_policy(first: str, config: Study, only: list[str] | None, *, dry_run: bool, resume: bool) -> None:
    """`train policy=bc` and `train policy=sft`."""
    if only:
        raise ConfigError(f"--only would do nothing with {first}; remove it", key="--only")
    chosen = stage(first.removeprefix("policy="), resume=resume)
    if dry_run:
        return _dry_run(chosen, config)
    if done := chosen.work(config):
        _say(done.line)


def _outcome_words(study: Path, only: list[str] | None, outcomes: str | None, *, evaluates: bool) -> list[str]:
    """`--outcomes` as overrides of a study."""
    if outcomes is None:
        return []
    from guerdon.config.loading import read_yaml
    from guerdon.settings.train import outcome_words

    return outcome_words(read_yaml(study).data, only or (), outcomes, evaluates=evaluates)


def _check_labels_are_read(config: Study, only: list[str] | None) -> None:
    """Refuse `--method` and `--reward` where a model that is trained names its data."""
    for name in only or config.train:
        if getattr(config.train.get(name), "data_path", None) is not None:
            raise ConfigError(
                f"train.{name}.data_path already names the data: --method and --reward do nothing",
                key=f"train.{name}.data_path",
            )


def _label_overrides(sft_model: str | None, **given: object) -> list[str]:
    """Flags of `label` and `train` as overrides; None: not given."""
    policy = [] if sft_model is None else [f"policy.path={json.dumps(sft_model)}", "policy.tiny=null"]
    return _as_overrides("label", **given) + policy


def _as_overrides(section: str, **given: object) -> list[str]:
    """Flags as overrides of a section; None: not given."""
    return [f"{section}.{name}={json.dumps(value)}" for name, value in given.items() if value is not None]


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
    turns: Annotated[
        bool, typer.Option("--turns", help="The data are conversations with a true reward for each turn.")
    ] = False,
    columns: Columns = None,
    outcomes: Outcomes = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Without a study: folder of the card.")] = None,
) -> None:
    """Evaluate reward models of a study, or one on a file; those for text also under attack."""
    from guerdon.evaluation.by_path import check_words, evaluate_judged, study_of

    words = [*([] if study is None else [study]), *(overrides or [])]
    of_study = bool(only or attack)
    file = check_words(
        words, model, data, labels, output, columns=columns, outcomes=outcomes, of_study=of_study, turns=turns
    )
    if file is not None:
        more = _as_overrides("evaluate", labels=labels, columns=columns)
        more += _outcome_words(_expanded(Path(file)), only, outcomes, evaluates=True)
        config = _load(_expanded(Path(file)), [*words[1:], *more])
    elif model is not None:
        config = study_of(model, data, words, labels, columns, outcomes, turns=turns)
    else:
        return _say(evaluate_judged(str(data or labels), words, output, columns))
    if attack and gate:
        raise ConfigError("--gate would do nothing with --attack; remove it", key="--gate")
    names = tuple(only or ())
    chosen = stage("attack", only=names) if attack else stage("evaluate", only=names, model=model, output=output)
    if dry_run:
        return _dry_run(chosen, config)
    done = chosen.work(config)
    for one in done:
        _say(one.line)
    if gate:
        for line in chosen.gate(config, done):
            sys.stderr.write(f"{line}\n")


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
    columns: Columns = None,
    turns: Annotated[bool, typer.Option("--turns", help="Score each turn of the assistant in conversations.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what a judge would cost, and exit.")] = False,
) -> None:
    """Add the rewards of a model to the rows of a file or a log, as columns. Run again, it continues."""
    from guerdon.config.tree import Tree, apply_overrides
    from guerdon.evaluation.scoring.score_logs import ScoreSettings
    from guerdon.models.scores import AGGREGATIONS

    how = next((name for name in AGGREGATIONS if name == aggregation), None)
    if how is None:
        raise ConfigError(f"--aggregation {aggregation}: choose one of {', '.join(AGGREGATIONS)}", key="--aggregation")
    given = apply_overrides(Tree(), options or []).data
    chosen, settings = stage("score"), ScoreSettings(file, model, output, given, only_failed, how, columns, turns)
    _say(chosen.estimate(settings) if dry_run else chosen.work(settings))


@app.command()
def search(study: File, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Answer questions with solutions that a reward model chooses, by votes, beam search or DVTS where wanted."""
    config, chosen = _load(study, overrides), stage("search")
    if dry_run:
        return _dry_run(chosen, config)
    _say(chosen.work(config).line)


@app.command()
def run(
    study: FileOrId,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    resume: Resume = False,
    profile: Annotated[
        int, typer.Option("--profile", help="Record so many iterations: a trace of torch, and where their time went.")
    ] = 0,
) -> None:
    """Train a policy with the rewards of the reward section."""
    config, chosen = _load(study, overrides, resume=resume), stage("run", resume=resume, profile=profile)
    if dry_run:
        return _dry_run(chosen, config)
    if done := chosen.work(config):
        _say_page(done.line, done.report)


@app.command()
def compare(
    study: File,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    parallel: Annotated[int, typer.Option("--parallel", help="Jobs at a time; 0: one per core.")] = 0,
) -> None:
    """Run a whole study (settings x seeds x tasks) and write its report. Run again, it continues."""
    from guerdon.comparison.study import plan_study

    plan, chosen = plan_study(study, overrides or [], parallel=parallel), stage("compare")
    if dry_run:
        return _dry_run(chosen, plan, plan.study)
    done = chosen.work(plan)
    _say_page(done.line, done.report)


app.command()(play)
app.command()(audit)
app.command()(annotate)


@app.command("read")
def read_(
    data: Annotated[str, typer.Argument(help="A file, a folder, PATH:SPLIT or a hub id.", show_default=False)],
    columns: Columns = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write it as JSON.")] = False,
) -> None:
    """Show what the columns of a file are taken for, and which commands could use it."""
    from guerdon.auditing.uses import uses_of
    from guerdon.reading.reader import read
    from guerdon.reading.shown import record_lines, shown_record

    reading = read(data, columns=columns)
    record = shown_record(reading, used=reading.rows, left_out=reading.bad)
    uses = uses_of(data, reading, columns)
    if as_json:
        used = {command: use.what for command, use in uses.items() if use.what}
        refused = {command: use.why_not for command, use in uses.items() if not use.what}
        whole = {**record, "unclear": reading.plan.unclear, "commands": used, "refused": refused}
        return _say(json.dumps(whole, ensure_ascii=False))
    for line in record_lines(record):
        _say(line)
    for why in reading.plan.unclear.values():
        _say(f"{data}: {why}")
    for name, use in uses.items():
        if use.what:
            _say(f"guerdon {name}: {use.what}")
    if refusing := [name for name, use in uses.items() if not use.what]:
        _say(f"not for {', '.join(refusing)}: --json says why")
    return None


@app.command()
def serve(
    words: Annotated[
        list[str] | None, typer.Argument(help="A YAML file of the server, dotted overrides, or both.", metavar="FILE")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="What to serve: qwen2_5_vl_vllm, PRIMO-R1, resnet, text, ...")
    ] = None,
    model_path: Annotated[str | None, typer.Option(help="Its checkpoint, or a hub id.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model: name=path or name=backend:path (repeatable).")
    ] = None,
    custom_backend: Annotated[
        str | None,
        typer.Option("--custom-backend", "--custom-backend-factory", help="Your own backend, as module:factory."),
    ] = None,
    default: Annotated[str | None, typer.Option(help="Model of requests that name none.")] = None,
    host: Annotated[str | None, typer.Option(help="Address; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; default 18080, 0: any free one.")] = None,
    token: Annotated[str | None, typer.Option(envvar="GUERDON_TOKEN", help="Secret that requests must send.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow other machines without a token.")] = False,
    media_root: Annotated[str | None, typer.Option(help="Folder of files for video_path.")] = None,
    gpu_ids: Annotated[str | None, typer.Option(help="GPUs to use, such as 0,1.")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(help="GPUs that share a vLLM model.")] = None,
    primo_tensor_parallel_size: Annotated[int | None, typer.Option(help="The same, for PRIMO-R1.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Context length of vLLM.")] = None,
    gpu_memory_utilization: Annotated[float | None, typer.Option(help="Share of a GPU's memory for vLLM.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
    processes: Annotated[
        str | None, typer.Option(help="Copies of the model, each in its own process; default auto, none: no copies.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
    update_dir: Annotated[str | None, typer.Option(help="Enable updates of the model; folder of its states.")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Serve with replicas on a Ray cluster.")] = False,
    min_replicas: Annotated[int | None, typer.Option(help="With --ray: replicas at least; default 1.")] = None,
    max_replicas: Annotated[int | None, typer.Option(help="With --ray: replicas at most; default 4.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the settings and print them in full; serve nothing.")
    ] = False,
) -> None:
    """Serve reward models over HTTP: /v1/rewards, /score, and the formats of RL trainers."""
    flags = {**locals(), "insecure": insecure or None, "ray": {} if ray else None}
    from guerdon.serve.launch import serve_settings

    files = [word for word in words or [] if "=" not in word]
    if len(files) > 1:
        raise ConfigError(f"{files[1]}: one file describes a server, and {files[0]} is given already")
    overrides = [word for word in words or [] if "=" in word]
    settings, server = serve_settings(Path(files[0]) if files else None, overrides, flags), stage("serve")
    if dry_run:
        from guerdon.config.loading import to_yaml

        server.check(settings)
        sys.stdout.write(to_yaml(settings))
    else:
        server.work(settings)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A study's work_dir, the folder of one run, or one that holds some.")],
) -> None:
    """Write report.html again from the files of a study or a run; of a folder of runs of one task it compares them.

    Of another folder it writes an index of what it holds.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder")
    if (folder / "meta" / "info.json").is_file():
        raise ConfigError(
            f"{folder} is a data set, and recordings for the Rerun viewer are no longer written: lerobot-dataset-viz "
            "shows episodes, guerdon evaluate what reward models say of them; guerdon report reads studies and runs"
        )
    from guerdon.comparison.folder_index import write_index
    from guerdon.comparison.report import write_report, write_single_report
    from guerdon.comparison.side_by_side import runs_of_a_folder

    if (folder / "study.json").is_file() or runs_of_a_folder(folder):
        page = write_report(folder)
    elif (folder / "metrics.jsonl").is_file():
        page = write_single_report(folder)
    else:
        page = write_index(folder)
    _say_page(f"report: {page}", page)


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
    from guerdon.comparison.study import plan_study, quickstart_file

    plan = plan_study(quickstart_file(text), [] if folder is None else [f"work_dir={folder}"], parallel=0)
    chosen = stage("compare")
    if dry_run:
        return _show(chosen, plan, plan.study)
    done = chosen.work(plan)
    _say_page(done.line, done.report)


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
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        sys.stdout.write(f"guerdon {__version__}\n")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        sys.stdout.write(ctx.get_help() + "\n")


def main() -> None:
    """Entry point: expected errors become one line and an exit status."""
    with command() as done:
        done.status = app(standalone_mode=False)


def _load(path: Path, overrides: list[str] | None, *, resume: bool = False) -> Study:
    from guerdon.settings.study import read_study_file

    return read_study_file(path, overrides or (), resume=resume)


def _dry_run(chosen: Any, settings: Any, study: Study | None = None) -> None:
    """Check what a stage checks at its start, and show the configuration and the cost.

    Args:
        chosen: the stage.
        settings: what it works on.
        study: shown; None: the settings.
    """
    try:
        with needs_train():
            chosen.check(settings)
    except MissingDependencyError as error:  # the command may run on another machine
        return _show(chosen, settings, study or settings, missing=f"not checked: {error}")
    _show(chosen, settings, study or settings)


def _show(chosen: Any, settings: Any, study: Study, *, missing: str | None = None) -> None:
    """Show a study and what a stage of it costs.

    Args:
        chosen: the stage.
        settings: what it works on.
        study: shown.
        missing: why something was not checked: then the cost may be unknown for the same reason.
    """
    from guerdon.config.loading import to_yaml
    from guerdon.plan.estimate import readable

    of_world = () if study.text else study.env.notes
    sys.stdout.write(to_yaml(study) + "\n")
    try:
        with needs_train():
            lines = list(readable(chosen.estimate(settings)))
    except MissingDependencyError as error:
        if missing is None:
            raise
        lines = [f"not estimated: {error}"]
    for line in [*lines, *of_world, *([missing] if missing else [])]:
        _say(line)


def _say_page(line: str, page: Path) -> None:
    """A line that names a page, and over ssh how it is copied to the user's machine."""
    _say(line)
    if how := how_to_fetch(page):
        _say(how)


def _say(line: str) -> None:
    sys.stderr.flush()
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
