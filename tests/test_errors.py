"""Messages of errors: one line, no addresses of objects, and the path where a disk is full."""

import asyncio
import copy
import importlib
import io
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import huggingface_hub.hf_api
import pytest
from PIL import Image

from guerdon.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    MissingDependencyError,
    StudyError,
    boundary,
    did_you_mean,
    naming,
    needs,
)
from guerdon.network.hub import check_data_set, check_model
from raisers import WAYS, Odd
from tables import cases, refuses


def test_a_foreign_message_is_one_line_without_addresses():
    with pytest.raises(DataError) as caught, boundary(DataError, "the picture cannot be read"):
        Image.open(io.BytesIO(b"no picture"))
    assert "0x" not in str(caught.value)
    assert "UnidentifiedImageError: cannot identify image file <_io.BytesIO object>" in str(caught.value)
    with pytest.raises(DataError, match=r"^a: ValueError: one two$"), boundary(DataError, "a"):
        raise ValueError("one\n  two\n")
    with pytest.raises(DataError, match=r"^a: KeyboardError$"), boundary(DataError, "a"):
        raise type("KeyboardError", (Exception,), {})


def test_a_boundary_gives_its_error_the_key_that_it_is_about():
    with (
        refuses("env.task", "^the environment: OSError: gone$"),
        boundary(ConfigError, "the environment", key="env.task"),
    ):
        raise OSError("gone")


@contextmanager
def handler_of_interrupts(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.hostile("parts")
@pytest.mark.parametrize("way", WAYS)
def test_all_that_foreign_code_raises_is_its_failure(way):
    found = []

    def work():
        with pytest.raises(DataError, match=r"^the model") as caught, boundary(DataError, "the model"):
            WAYS[way]()
        found.append(type(caught.value.__cause__).__name__)

    thread = threading.Thread(target=work)  # where no signal is handled
    thread.start()
    thread.join()
    with handler_of_interrupts(signal.SIG_IGN):
        work()
    names = {"panic": "PanicException", "odd": "Odd", "interrupt": "KeyboardInterrupt", "cancel": "CancelledError",
             "exit": "SystemExit", "generator": "GeneratorExit", "mute": "Mute", "value": "ValueError"}  # fmt: skip
    assert found == [names[way]] * 2


class Stop:
    """A handler that is an object."""

    def __call__(self, number, frame):
        raise KeyboardInterrupt

    def leave(self, number, frame):
        raise SystemExit(3)


def stop(number, frame):
    raise KeyboardInterrupt


def stop_oddly(kind, number, frame):
    raise kind


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (signal.default_int_handler, KeyboardInterrupt), (stop, KeyboardInterrupt), (Stop(), KeyboardInterrupt),
        (Stop().leave, SystemExit), (partial(stop_oddly, Odd), Odd),
    ],
)  # fmt: skip
def test_a_signal_passes_whatever_its_handler_raises(handler, kind):
    def leave():
        try:
            signal.raise_signal(signal.SIGINT)
        except (KeyboardInterrupt, SystemExit, Odd):
            sys.exit(1)  # as libraries do

    with handler_of_interrupts(handler):
        with pytest.raises(kind), boundary(DataError, "the model"):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(SystemExit), boundary(DataError, "the model"):
            leave()


def test_an_interrupt_that_python_handles_itself_cannot_be_told_apart():
    default = handler_of_interrupts(signal.default_int_handler)
    with default, pytest.raises(KeyboardInterrupt), boundary(DataError, "the model"):
        WAYS["interrupt"]()
    with handler_of_interrupts(stop), pytest.raises(DataError), boundary(DataError, "the model"):
        WAYS["interrupt"]()


@pytest.mark.hostile("parts")
def test_a_cause_that_is_its_own_cause_is_no_signal():
    error = Odd("a")
    error.__cause__ = error
    with pytest.raises(DataError), boundary(DataError, "the model"):
        raise error


def test_a_generator_and_a_coroutine_can_be_closed_in_a_boundary():
    ended = []

    def numbers():
        with boundary(DataError, "the model"):
            try:
                yield from (n for n in range(3))
            finally:
                ended.append("numbers")

    async def waiting():
        with boundary(DataError, "the model"):
            try:
                await asyncio.sleep(1000)
            finally:
                ended.append("waiting")

    given = numbers()
    assert next(given) == 0
    given.close()
    coroutine = waiting()

    async def begin():
        asyncio.get_running_loop().call_soon(lambda: None)
        coroutine.send(None)

    asyncio.run(begin())
    coroutine.close()
    assert ended == ["numbers", "waiting"]


def test_a_task_can_be_cancelled_in_a_boundary():
    async def waiting(begun):
        with boundary(DataError, "the model"):
            begun.set()
            await asyncio.Event().wait()

    async def raising():
        with pytest.raises(DataError), boundary(DataError, "the model"):
            WAYS["cancel"]()

    async def work():
        begun = asyncio.Event()
        task = asyncio.create_task(waiting(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await raising()

    asyncio.run(work())


@pytest.mark.hostile("disk")
def test_a_full_disk_has_a_path():
    def write():
        with naming("/dev/full"), open("/dev/full", "w") as file:
            file.write("x")
            file.flush()

    with pytest.raises(OSError, match="No space left") as caught:
        write()
    assert caught.value.filename == "/dev/full"


@pytest.mark.hostile("disk")
def test_a_file_that_does_not_fit_is_named_and_leaves_no_half(tmp_path):
    code = (
        "import resource, sys; from pathlib import Path; from guerdon import cli\n"
        "from guerdon.files import atomic\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "cli.app = lambda **_: atomic.write_text(Path(sys.argv[1]), 'x' * 100_000)\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out.json")], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"guerdon: {tmp_path / 'out.json'}: File too large; free some space, or raise the limit"
    )
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


class _Hub(BaseHTTPRequestHandler):
    """A hub that has nothing."""

    def do_HEAD(self):
        self.server.paths.append(self.path)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("check", "kind", "request_"),
    [
        (check_model, "model", "/nobody/nothing/resolve/main/config.json"),
        (check_data_set, "data set", "/api/datasets/nobody/nothing"),
    ],
)
def test_what_is_nowhere_is_known_after_one_request(check, kind, request_, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        server.paths = []
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(
            CheckpointError,
            match=f"'nobody/nothing' cannot be read: .*, and the hub has no {kind} of that name",
        ):
            check(CheckpointError, "it", "nobody/nothing")
        assert server.paths == [request_]
        server.shutdown()
    with pytest.raises(CheckpointError, match="cannot be reached: ") as caught:
        check(CheckpointError, "it", "nobody/nothing")
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match=r"there is no such (file or )?folder; check the path"):
        check(CheckpointError, "it", "runs/my/model")
    (tmp_path / "config.json").write_text("{}")
    check(CheckpointError, "it", str(tmp_path))


class TestNeeds:
    def test_a_missing_package_is_named(self):
        said = r"^{a} needs no_such_package: pip install it$"
        with pytest.raises(MissingDependencyError, match=said) as caught, needs("{a} needs {name}: pip install it"):
            importlib.import_module("no_such_package.part")
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)

    def test_a_broken_package_is_missing_only_where_that_is_wanted(self):
        with pytest.raises(MissingDependencyError, match="needs None"), needs("needs {name}"):
            raise ImportError("libfoo.so: cannot open shared object file")
        with pytest.raises(ImportError, match="libfoo") as caught, needs("needs {name}", ModuleNotFoundError):
            raise ImportError("libfoo.so: cannot open shared object file")
        assert not isinstance(caught.value, MissingDependencyError)

    def test_other_errors_pass(self):
        with pytest.raises(MissingDependencyError, match=r"^inner$"), needs("outer"):
            raise MissingDependencyError("inner")
        with pytest.raises(KeyError), needs("outer"):
            raise KeyError("x")


@pytest.mark.parametrize(
    ("given", "options", "ending"),
    [
        ("windw", {}, "; did you mean window?"),
        ("windw", {"quoted": True}, "; did you mean 'window'?"),
        ("windo", {"most": 2, "cutoff": 0.4}, "; did you mean window or widow?"),
        ("qqq", {}, ""),
    ],
)
def test_names_that_are_alike(given, options, ending):
    assert did_you_mean(given, iter(["door", "window", "widow"]), **options) == ending


def test_an_error_about_a_key_begins_with_it():
    error = ConfigError.about("env.task", "has no camera")
    assert (str(error), error.key) == ("env.task has no camera", "env.task")
    assert str(ConfigError.about("env.task", ": there is none")) == "env.task: there is none"
    assert ConfigError("there is no file").key is None


def test_an_error_about_data_begins_with_its_place():
    error = DataError("label must be a number", where=Path("a.jsonl"), field="label")
    assert (str(error), error.where, error.field) == ("a.jsonl: label must be a number", "a.jsonl", "label")
    bare = DataError("no row")
    assert (str(bare), bare.where, bare.field) == ("no row", None, None)


@pytest.mark.hostile("files")
@cases("end", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_an_error_about_data_is_one_line_whatever_it_quotes(end):
    said = str(DataError(f"no label; found a{end}b", where=f"x{end}y.jsonl"))
    escaped = ascii(end)[1:-1]
    assert said == f"x{escaped}y.jsonl: no label; found a{escaped}b"


@pytest.mark.parametrize(
    "error",
    [
        ConfigError.about("env.task", "is empty"),
        StudyError("{study} has no bc section", "a.yaml", key="bc"),
        DataError("is empty", where="a.jsonl:2", field="text"),
    ],
)
def test_a_copy_keeps_what_an_error_is_about(error):  # as one from another process, which is rebuilt in the same way
    again = copy.copy(error)
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_an_error_of_a_study_keeps_its_key_when_the_study_gets_its_name():
    error = StudyError("{study} has no bc section", key="bc")
    assert (str(error.of("a.yaml")), error.of("a.yaml").key) == ("a.yaml has no bc section", "bc")
