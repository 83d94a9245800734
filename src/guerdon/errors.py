"""Every error guerdon raises on purpose: what happened, where, and what to do next.

The command line prints the message of a `GuerdonError` as one clear line and exits with its `exit_code`;
any other exception is a bug and keeps its traceback. This module does not know who raises or who catches.
"""

from __future__ import annotations

import difflib
import errno
import inspect
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from types import CodeType
from typing import Any, Self

from guerdon.secrets import hide

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # as in <_io.BytesIO object at 0x7f0c8a2b>
_LINE_ENDS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # those of `str.splitlines`
_NUMBER = re.compile(r"(?:os error |[Ee]rrno )(\d+)")  # as in (os error 28), [Errno 28]
REFUSALS = {
    errno.ENOSPC: re.compile(r"No space left on device|disk is full|StorageFull"),
    errno.EDQUOT: re.compile(r"[Qq]uota exceeded"),
    errno.EROFS: re.compile(r"Read-only file system|readonly database"),
    errno.EFBIG: re.compile(r"File too large"),
    errno.EIO: re.compile(
        r"[Ii]nput/output error|disk I/O error|file write failed|unexpected pos \d+ vs|\d+ requested and \d+ written"
    ),
    errno.ENAMETOOLONG: re.compile(r"AF_UNIX path too long"),
    errno.ENOMEM: re.compile(
        r"MemoryError|Cannot allocate memory|not enough memory|can't allocate memory|size calculation overflowed|"
        r"array is too big|Maximum allowed dimension|int too large to convert to C"
    ),
}
"""Errors of a machine without enough disk or memory or with too long a name, and the words of libraries for them."""


class GuerdonError(Exception):
    """Base of all expected failures.

    Attributes:
        exit_code: the status that the command line leaves with.
    """

    exit_code = 2

    def __str__(self) -> str:
        """The message, without secrets."""
        return hide(super().__str__())


class ConfigError(GuerdonError, ValueError):
    """The configuration is wrong: an unknown key, a value out of range, a knob that would do nothing.

    Args:
        message: in words.
        key: the key that it is about. A check of a section names the key within that section.

    Attributes:
        key: dotted, as in the file, such as `algorithm.loss`, or an option of the command line, such as `--rows`; of
            several problems, the key of the first one. None: the error is about no key.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key

    @classmethod
    def about(cls, key: str, message: str) -> Self:
        """An error whose message begins with its key.

        Args:
            key: as for the class.
            message: what follows the key: words after a space, or a colon and words.
        """
        space = "" if message.startswith(":") else " "
        return cls(f"{key}{space}{message}", key=key)


class StudyError(ConfigError):
    """A study lacks what a stage of it needs. The command line, which read the study from a file, names the file.

    Args:
        message: in words; `{study}` in it stands for the study.
        study: what it is called.
        key: as of a `ConfigError`.

    Attributes:
        message: as given.
    """

    def __init__(self, message: str, study: str = "this configuration", *, key: str | None = None) -> None:
        super().__init__(message.replace("{study}", study), key=key)
        self.message = message

    def of(self, study: str) -> StudyError:
        """The same error about a study of this name."""
        return StudyError(self.message, study, key=self.key)


class InUseError(ConfigError):
    """Another process works in the folder now."""

    exit_code = 6


class DataError(GuerdonError, ValueError):
    """Data on disk is missing, truncated or of another shape than declared.

    Args:
        message: in words; with `where`, it begins with the place and a colon.
        where: the file, with the line or the row where one is known: `train.jsonl:3`.
        field: the column or the key that is wrong.

    Attributes:
        where: as given, as text; None: the error is about no file, or its message names one in other words.
        field: as given; None: the error is about no single column.
    """

    def __init__(self, message: str, *, where: Path | str | None = None, field: str | None = None) -> None:
        super().__init__(message if where is None else f"{where}: {message}")
        self.where = None if where is None else str(where)
        self.field = field

    def __str__(self) -> str:
        """The message, without secrets, in one line: ends of lines in what it quotes of the data are escapes."""
        return _LINE_ENDS.sub(lambda end: ascii(end[0])[1:-1], super().__str__())


class CheckpointError(GuerdonError, RuntimeError):
    """A checkpoint is incomplete, corrupt, or does not fit the model it is loaded into."""


class MissingDependencyError(GuerdonError, ImportError):
    """An optional package or a system library is not installed; the message says how to install it."""


class SimulatorError(GuerdonError, RuntimeError):
    """A simulator breaks again and again, whenever it is started. The run can go on from its last checkpoint."""

    exit_code = 3


class ClusterError(GuerdonError, RuntimeError):
    """Workers of a cluster are lost again and again, or cannot be started. A run can go on from its last checkpoint."""

    exit_code = 3


class ProcessLostError(ClusterError):
    """A process that trains together with this one has ended before its time."""


class FailedAloneError(ClusterError):
    """One of several processes met an error that the others did not, such as a folder missing on its machine."""


class TooManyFailuresError(GuerdonError, RuntimeError):
    """Measurements failed more often than `max_failure_rate` allows. The run left a resumable checkpoint."""

    exit_code = 3


class HarmError(GuerdonError, RuntimeError):
    """`guerdon evaluate --gate` refuses a reward model."""

    exit_code = 5


class NonFiniteError(GuerdonError, RuntimeError):
    """Training diverged: updates were skipped because they were not finite, or weights are not finite."""

    exit_code = 3


class RewardRequestError(GuerdonError, RuntimeError):
    """A reward server did not score something, and the caller chose to stop on that."""

    exit_code = 3


class RewardFailure(GuerdonError, RuntimeError):
    """A reward could not be measured, and the library that asked for it takes only numbers.

    Args:
        what: which rewards are missing, for the message.
        reasons: place in the batch (copy of an environment, response) to why its reward is missing.
        result: what the call would have returned, NaN where a reward is missing; None where there is nothing to give.

    Attributes:
        reasons: as given.
        result: as given. A caller that catches the error can use it without the NaN values.
    """

    exit_code = 3

    def __init__(self, what: str, reasons: Mapping[int, str], *, result: Any = None) -> None:
        said = "; ".join(f"{place}: {reason}" for place, reason in list(reasons.items())[:3])
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        super().__init__(
            f"{what} could not be measured ({said}{more}), and this library takes only numbers. Fix the reward model, "
            "or catch guerdon.errors.RewardFailure and leave the step out"
        )
        self.reasons, self.result = dict(reasons), result


class ToolFailure(GuerdonError, RuntimeError):
    """A tool of an agent could not do its work, whatever it was asked: the conversation is left out and counted.

    A tool raises it. Any other exception of a tool is a result that the model reads.
    """

    exit_code = 3


class JobError(GuerdonError, RuntimeError):
    """Some jobs of a study failed; the others are intact."""

    exit_code = 4


@contextmanager
def boundary(error: type[GuerdonError], what: str, **about: str) -> Iterator[None]:
    """Attribute any failure inside the block to one place.

    Args:
        error: the class of what is raised.
        what: failed; the message begins with it.
        **about: keywords of the class, such as the `key` of a `ConfigError`.

    A `GuerdonError` passes unchanged; every other failure of the code (`is_failure`) becomes `error` with `what` in
    front and the original as its cause. Use it where foreign code is called: models, simulators, renderers, file
    formats.
    """
    try:
        yield
    except GuerdonError:
        raise
    except BaseException as exc:
        if not is_failure(exc):
            raise
        raise error(f"{what}: {said_by(exc)}", **about) from exc


def is_failure(error: BaseException) -> bool:
    """Whether an exception that came out of foreign code is a failure of that code.

    Every exception is, also one that does not derive from `Exception`: the panic of a library written in Rust,
    `SystemExit`, `KeyboardInterrupt`, `asyncio.CancelledError`. Not a failure is what ends guerdon's own work:

    - a signal, such as Ctrl-C: what its handler raised in the main thread. Where SIGINT has Python's own handler, which
      leaves no trace, every `KeyboardInterrupt` of the main thread counts as one; commands install their own;
    - the cancellation of the asyncio task that runs the code;
    - the `GeneratorExit` of a generator that is closed.
    """
    if isinstance(error, Exception):
        return True
    if isinstance(error, GeneratorExit):
        return not _closes_generator(error)
    from asyncio import CancelledError  # loaded wherever this exception exists

    if isinstance(error, CancelledError):
        return not _task_is_cancelled()
    return not _from_signal(error)


def _closes_generator(error: GeneratorExit) -> bool:
    """Whether it was raised at a `yield` or an `await`, as `close` of generators and coroutines does."""
    suspends = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    *_, (innermost, _) = walk_tb(error.__traceback__)
    return bool(innermost.f_code.co_flags & suspends)


def _task_is_cancelled() -> bool:
    from asyncio import current_task

    try:
        task = current_task()
    except RuntimeError:  # no event loop runs in this thread
        return False
    return task is not None and task.cancelling() > 0


def _from_signal(error: BaseException | None) -> bool:
    """Whether the handler of a signal raised it, or an exception that was handled when it was raised."""
    if threading.current_thread() is not threading.main_thread():
        return False  # where Python calls no handler
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    known = {code for handler in handlers if (code := _code_of(handler)) is not None}
    untraced = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        passed = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
        if not known.isdisjoint(passed) or (untraced and isinstance(error, KeyboardInterrupt)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _code_of(handler: Any) -> CodeType | None:
    """The code of a handler of a signal: a function, a method, a partial call of one, or an object with `__call__`."""
    while isinstance(handler, partial):
        handler = handler.func
    code: CodeType | None = getattr(handler, "__code__", None)  # methods have that of their function
    return code or getattr(type(handler).__call__, "__code__", None) if callable(handler) else None


def did_you_mean(given: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6, quoted: bool = False) -> str:
    """The end of a message about an unknown name: those of the known ones that are like it; empty without any."""
    near = [repr(x) if quoted else x for x in difflib.get_close_matches(given, list(known), n=most, cutoff=cutoff)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def said_by(error: BaseException) -> str:
    """Kind and message of a foreign exception, in one line and without addresses of objects."""
    try:
        text = str(error)
    except BaseException as broken:  # its class is foreign code, too
        if not is_failure(broken):
            raise
        text = ""
    said = hide(" ".join(_ADDRESS.sub("", text).split()))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def place_of(error: BaseException) -> str:
    """File and line where an exception was raised, such as `parts.py, line 3`; empty of one that was not raised."""
    places = [f"{Path(frame.f_code.co_filename).name}, line {line}" for frame, line in walk_tb(error.__traceback__)]
    return places[-1] if places else ""


@contextmanager
def needs(message: str, kind: type[ImportError] = ImportError) -> Iterator[None]:
    """Attribute a package that is not installed, or not whole, inside the block.

    Args:
        message: what needs it and how to install it; `{name}` stands for the name of what is missing.
        kind: errors that mean so; `ModuleNotFoundError` leaves those of a package that is broken as they are.

    Raises:
        MissingDependencyError: with the message.
    """
    try:
        yield
    except kind as error:
        if isinstance(error, GuerdonError):
            raise
        raise MissingDependencyError(message.replace("{name}", str(error.name))) from error


TRAIN = ("torch", "transformers", "tokenizers", "huggingface_hub", "accelerate", "safetensors", "gymnasium")
"""Packages that the extra `train` installs: without them guerdon reads, judges and reports, and runs no model."""


@contextmanager
def needs_train() -> Iterator[None]:
    """Attribute a package of the extra `train` that is not installed, inside the block.

    Raises:
        MissingDependencyError: it names the extra; also in place of an error of guerdon's that such an import caused.
    """
    try:
        yield
    except (ModuleNotFoundError, GuerdonError) as error:
        name = _absent_of_train(error)
        if name is None:
            raise
        raise MissingDependencyError(f"this needs {name}: pip install 'guerdon[train]'") from error


def check_train() -> None:
    """Refuse to begin work that needs the extra `train`, where one of its packages is not installed.

    Raises:
        MissingDependencyError: it names the extra.
    """
    for name in TRAIN:
        with needs_train():
            if find_spec(name) is None:
                raise ModuleNotFoundError(name=name)


def _absent_of_train(error: BaseException | None) -> str | None:
    """The package of the extra `train` whose import an exception, or what caused it, says has failed; else None."""
    while error is not None:
        name = str(error.name).partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if name in TRAIN:
            return name
        error = error.__cause__
    return None


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Add the path to an error of a file that cannot be written (for example a full disk), as an `OSError`.

    Raises:
        OSError: one that the block raises, with the path if it names none; or in place of an error of a library that
            `refused_by_system` recognises.
    """
    try:
        yield
    except Exception as error:
        refused = refused_by_system(error)
        if refused is None or refused.errno == errno.ENOMEM:
            raise
        refused.filename = refused.filename or str(path)
        if refused is error:
            raise
        raise refused from error


def is_of_machine(error: BaseException) -> bool:
    """Whether an exception says that the machine is at fault: no memory or disk left, too long a name (`REFUSALS`)."""
    refused = refused_by_system(error)
    return refused is not None and refused.errno in REFUSALS


def refused_by_system(error: BaseException) -> OSError | None:
    """The `OSError` that an exception is or describes; None for other exceptions.

    Args:
        error: an `OSError` with a number, or an exception of a library whose message describes one: `(os error 28)` of
            safetensors and tokenizers, or the words of torch, sqlite3 and memory allocators (`REFUSALS`).
    """
    if isinstance(error, GuerdonError):
        return None
    if isinstance(error, OSError) and error.errno is not None:
        return error
    said = said_by(error)
    numbers = [int(found[1]) for found in _NUMBER.finditer(said)]
    numbers += [number for number, words in REFUSALS.items() if words.search(said)]
    number = next((number for number in numbers if number in REFUSALS), None)
    return None if number is None else OSError(number, os.strerror(number))
