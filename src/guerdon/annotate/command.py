"""The words of the command `guerdon annotate`. Nothing heavy is imported before the data is read.

guerdon annotate rollouts.jsonl --people ann,bo
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guerdon.errors import ConfigError, needs
from guerdon.processes.process import shown
from guerdon.processes.progress import heartbeat
from guerdon.secrets import hide

if TYPE_CHECKING:
    from guerdon.annotate.session import Session

SUMMARY = "summary.json"
PORT = 18081


def annotate(
    data: Annotated[str, typer.Argument(help="A LeRobot data set, a log, or rows of any layout.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the judgements; default NAME.labels here.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--as", help="episodes, responses, pairs or steps; default: as the data says.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="What columns are for: ROLE=NAME[:CODING],... (response=answer).")
    ] = None,
    choose: Annotated[
        str | None, typer.Option(help="What is asked first: random (default), uncertain or disagreement.")
    ] = None,
    random_share: Annotated[
        float | None, typer.Option(help="Share of draws that are uniform, of chosen ones; default 0.3.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A reward model, see `guerdon score`, whose values choose (repeatable).")
    ] = None,
    rows: Annotated[str | None, typer.Option(help="Ask about these rows only: 3,17,20-40, from 0.")] = None,
    finding: Annotated[str | None, typer.Option(help="Ask about the rows of this finding of the audit only.")] = None,
    overlap: Annotated[float | None, typer.Option(help="Share of items that are judged twice; default 0.1.")] = None,
    scale: Annotated[
        int | None, typer.Option(help="Judge responses from 1 to this number in place of right and wrong.")
    ] = None,
    people: Annotated[str | None, typer.Option(help="Names of those who judge: ann,bo; each gets an address.")] = None,
    show: Annotated[str | None, typer.Option(help="reference: show the reference answer, too.")] = None,
    guideline: Annotated[Path | None, typer.Option(help="A text that the page shows to those who judge.")] = None,
    rubric: Annotated[
        Path | None, typer.Option(help="Judge responses by the criteria of this file, see docs/judges.md.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; another than this machine's needs --people.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = PORT,
    only_export: Annotated[bool, typer.Option("--export", help="Write the labels, and serve nothing.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the draws; default 0.")] = None,
) -> None:
    """Let people judge episodes, responses, pairs or steps in the browser, and write labels. Run again, it goes on."""
    with needs("guerdon annotate needs {name}: pip install 'guerdon[serve]'", ModuleNotFoundError):
        from guerdon.annotate.session import TOKENS, AnnotateSettings, names_of_people, open_session

    if show not in (None, "reference"):
        raise ConfigError(f"--show {show}: only the reference answer can be shown, --show reference", key="--show")
    wanted = AnnotateSettings(
        data, output or folder_of(data), kind, columns, choose, random_share, seed, overlap, scale, rows, finding,
        tuple(model or ()), names_of_people(people), show is not None, guideline, rubric,
    )  # fmt: skip
    if only_export and not (wanted.out / "setup.json").is_file():
        raise ConfigError(
            f"--export: there are no judgements in {wanted.out}; name their folder, -o OUT", key="--export"
        )
    with ExitStack() as stack:
        if not only_export:
            from guerdon.annotate.server import listening, serve

            has_tokens = bool(wanted.people) or (wanted.out / TOKENS).is_file()
            listener = stack.enter_context(listening(host, port, has_tokens=has_tokens))
        with heartbeat("annotate"):
            session = stack.enter_context(open_session(wanted))
        if not only_export:
            serve(session, listener, host)
        finish(session)


def folder_of(data: str) -> Path:
    """The folder of judgements of some data: NAME.labels in the working directory."""
    return Path(f"{Path(data).resolve().name}.labels")


def finish(session: Session) -> None:
    """Write the labels and the summary, and print it.

    Raises:
        DataError: the data cannot be read.
        OSError: they cannot be written.
    """
    from guerdon.annotate.export import export
    from guerdon.annotate.figures import figures, lines
    from guerdon.files import atomic

    record = figures(session)
    atomic.write_json(session.folder / SUMMARY, record)
    written = export(session)
    for line in (*lines(record), f"wrote {written}"):
        sys.stdout.write(hide(shown(line)) + "\n")
    sys.stdout.flush()
