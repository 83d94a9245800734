"""The process of a command: its streams and variables, and errors as one line with an exit status.

For commands whose only result is their output (`--dry-run`, `--help`), output lost to a full disk is an error. A closed
pipe is not.

    with command() as done:
        done.status = app(standalone_mode=False)
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import typer

from guerdon.config.modules import MODULES_FOLDER
from guerdon.errors import REFUSALS, ConfigError, GuerdonError, needs_train, refused_by_system
from guerdon.processes.progress import log_line
from guerdon.processes.streams import keep_streams, lost_output
from guerdon.processes.subprocess_worker import end_with_parent
from guerdon.secrets import hide, hide_in_tracebacks

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer re-exports only some of click's errors
_SAFE_PATH = "PYTHONSAFEPATH"
_LONGEST = 2000  # characters of a line that says why a command failed
_UTF8 = "set PYTHONUTF8=1, or use other letters"
_RESUMES = ("run", "train")  # go on with `--resume`
_CONTINUES = ("annotate", "collect", "compare", "label", "quickstart", "score", "search")  # go on with the same words
_FULL = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "free some space, or raise the limit on file sizes (ulimit -f)",
    errno.EIO: "check whether its disk is full or broken",
}  # and then the command goes on
_ADVICE = {
    errno.ENOMEM: "choose smaller batches, fewer environments or a machine with more memory",
    errno.ENOENT: "set TMPDIR to a folder that can be written",  # without a path: `tempfile` finds none
    errno.ENAMETOOLONG: "choose shorter names; of temporary files, set TMPDIR to a shorter path",
    errno.EMFILE: "raise the limit on open files: ulimit -n 65536",
}


@dataclass
class Command:
    """A command that runs.

    Attributes:
        status: to exit with; what is no number means success.
    """

    status: Any = None


@contextmanager
def command() -> Iterator[Command]:
    """Do what is in the block, and exit with its status; expected errors become one line."""
    keep_streams()
    end_with_parent()
    hide_in_tracebacks()
    signal.signal(signal.SIGTERM, _interrupt)
    threading.excepthook = _thread_ended
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # numbers of GPUs are those of nvidia-smi
    done = Command()
    try:
        _check_words()
        with _modules_here(), _traced_interrupts(), needs_train():
            yield done
    except GuerdonError as error:
        _fail(f"{error}{_once_there_is_space(error)}", error.exit_code)
    except UsageError as error:
        _fail(_usage(error), 2)
    except KeyboardInterrupt:
        done.status = 130
    except UnicodeEncodeError as error:
        if error.encoding == "utf-8" or error.encoding != sys.getfilesystemencoding():
            raise
        _fail(f"{error.object!a} cannot be written in {error.encoding}, the encoding of this locale; {_UTF8}", 2)
    except Exception as error:
        refused = _refused_by_machine(error)
        if refused is None:
            raise
        _fail(refused, 2)
    if done.status == 130:
        _fail(f"interrupted; files written so far are complete. {going_on(sys.argv)}", 130)
    if not done.status and (lost := lost_output()) is not None:
        _fail(f"the standard output: {lost.strerror}", 2)
    sys.exit(done.status if isinstance(done.status, int) else 0)


def _refused_by_machine(error: Exception) -> str | None:
    """What the system refused, and what to do; None: the error is another one, a fault of the program."""
    refused = refused_by_system(error)
    if refused is None or (refused.filename is None and refused.errno not in {*REFUSALS, *_ADVICE, *_FULL}):
        return None
    number = refused.errno or 0
    advice = _ADVICE.get(number, "check the path, its permissions and the disk")
    if number in _FULL:
        advice = f"{_FULL[number]}. {going_on(sys.argv)}"
    return f"{refused.filename or 'the machine'}: {refused.strerror}; {advice}"


def _once_there_is_space(error: GuerdonError) -> str:
    """What goes on with the work where a full disk caused an error; empty for other causes."""
    refused = None if error.__cause__ is None else refused_by_system(error.__cause__)
    advice = None if refused is None else _FULL.get(refused.errno or 0)
    return "" if advice is None else f"; {advice}. {going_on(sys.argv)}"


def going_on(argv: Sequence[str]) -> str:
    """The very command that goes on with the work of this one, or does it again; secrets are hidden.

    Args:
        argv: the program and the words of this command.
    """
    words = list(argv[1:])
    verb = next((word for word in words if not word.startswith("-")), "")
    begins_anew = {"--dry-run", "--export", "--help"} & {*words}
    if verb in _RESUMES and not begins_anew and "--resume" not in words:
        words.append("--resume")
    purpose = "To continue" if verb in (*_RESUMES, *_CONTINUES) and not begins_anew else "To start it again"
    program = ["python", "-m", "guerdon"] if Path(argv[0]).name == "__main__.py" else ["guerdon"]
    return f"{purpose}: {hide(shlex.join([*program, *words]))}"


def how_to_fetch(page: Path) -> str:
    """How a user who works over ssh copies a page; empty where the user sits at this machine."""
    connection = os.environ.get("SSH_CONNECTION", "").split()  # address and port of the client, then of this machine
    if len(connection) != 4:
        return ""
    host, port = connection[2:]
    host = f"[{host}]" if ":" in host else host
    user = os.environ.get("USER", "")
    place = f"{user}@{host}" if user else host
    options = [] if port == "22" else ["-P", port]
    return "to see it on your machine: " + shlex.join(["scp", *options, f"{place}:{page.resolve()}", "."])


def _check_words() -> None:
    """Refuse words of the command line that cannot be written as UTF-8."""
    for word in sys.argv:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            encoding = sys.getfilesystemencoding()
            raise ConfigError(
                f"{word!a} on the command line is not text in {encoding}, the encoding of this locale; {_UTF8}"
            ) from error


@contextmanager
def _modules_here() -> Iterator[None]:
    """Let `users_modules` find modules in the working directory, unless Python runs with `-P`.

    No process that this one starts imports from there by itself, also none that a library starts.
    """
    before = {name: os.environ.get(name) for name in (_SAFE_PATH, MODULES_FOLDER)}
    os.environ[_SAFE_PATH] = "1"
    if not sys.flags.safe_path:
        with suppress(OSError):  # the directory is gone, which `check_start` reports
            os.environ[MODULES_FOLDER] = os.getcwd()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def check_start() -> None:
    """Check what libraries need: torch ends the process if the working directory is gone.

    Raises:
        ConfigError: the working directory was deleted or may not be read, or Python runs with `-OO`.
    """
    if sys.flags.optimize > 1:
        raise ConfigError("python -OO drops docstrings, which transformers reads: run it without -OO (PYTHONOPTIMIZE)")
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"the working directory cannot be used ({error.strerror}): cd to another one") from error


def _fail(line: str, status: int) -> NoReturn:
    if line:
        sys.stderr.write(f"guerdon: {shown(line)}\n")
    sys.exit(status)


def shown(text: str) -> str:
    """A message with control characters escaped and long lines shortened."""
    plain = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    half = _LONGEST // 2
    lines = plain.split("\n")
    return "\n".join(x if len(x) <= _LONGEST else f"{x[:half]} ... {x[-half:]}" for x in lines)


def _usage(error: Any) -> str:
    """The error of the command line, with the command that shows help; empty where help was just shown."""
    message = str(error.format_message()).strip()
    verb = error.ctx.command_path if error.ctx is not None else "guerdon"
    return f"{message.rstrip('.')}; see `{verb} --help`" if message else ""


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    """Report an error of the disk in a thread as one line; the thread that waits for it raises the error, too."""
    refused = None if ended.exc_value is None else refused_by_system(ended.exc_value)
    if refused is None or refused.errno not in REFUSALS:
        threading.__excepthook__(ended)
    else:
        log_line(f"{refused.filename or 'a thread'}: {refused.strerror}")


@contextmanager
def _traced_interrupts() -> Iterator[None]:
    """Let `is_failure` tell Ctrl-C from a `KeyboardInterrupt` of foreign code; an ignored signal stays ignored."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: object) -> None:
    """Treat SIGTERM as an interrupt, so that folders stay whole and child processes are ended."""
    raise KeyboardInterrupt
