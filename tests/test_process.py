"""Commands with unusual standard streams, encodings, home folders, environment variables and working directories."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from child import environment
from forked import forked
from guerdon.network.hub import use_token
from guerdon.processes.streams import keep_streams
from tables import first

TINY = """\
name: "étude ☃"
work_dir: work
env: {type: gymnasium, task: "tiny_world:Dot-v1", num_envs: 2, max_episode_steps: 10, frame_size: 32}
policy: {type: mlp, hidden: [8]}
algorithm: {rollout_steps: 10, minibatch_size: 10, num_epochs: 1}
runner:
  {total_steps: 20, eval_every: 20, eval_episodes: 2,
   logger: {log_path: "rüns", experiment_name: one, tensorboard: false}}
"""
LOUD = """\
import gymnasium, sys, tiny_world

class Loud(tiny_world.Dot):
    def step(self, action):
        print("höhe ☃")
        sys.stderr.write("höhe ☃\\n")
        return super().step(action)

gymnasium.register("Loud-v1", Loud, max_episode_steps=10)
"""
HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    return tmp_path


def closed(*numbers):
    return lambda: [os.close(number) for number in numbers]


def to(path, *numbers):
    def turn():
        for number in numbers:
            os.dup2(os.open(path, os.O_WRONLY), number)

    return turn


def unread(*numbers):
    """A pipe whose reader went away."""

    def turn():
        reading, writing = os.pipe()
        os.close(reading)
        for number in numbers:
            os.dup2(writing, number)

    return turn


def shell(command, folder, **variables):
    """The command as a shell runs it, `guerdon` in it: status, output, errors."""
    command = command.replace("guerdon", f"{sys.executable} -m guerdon")
    shown = environment(HERE, **variables)
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=shown, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "streams",
    first([
        closed(0, 1, 2), unread(1, 2), to("/dev/full", 1, 2), to("/proc/self/status", 1, 2),  # may not be written
        closed(1), closed(2), unread(1), unread(2), to("/dev/full", 1), to("/dev/full", 2),
    ], 4),
)  # fmt: skip
def test_no_stream_fails_a_run(folder, streams):
    (folder / "loud.py").write_text(LOUD, encoding="utf-8")
    words = ["run", "tiny.yaml", "env.task=loud:Loud-v1"]
    ended = forked(*words, folder=folder, before=streams)
    assert ended.status == 0, ended.said
    assert (folder / "rüns/one/COMPLETE").is_file()
    assert (folder / "rüns/one/report.html").is_file()
    assert "Traceback" not in ended.said


@pytest.mark.slow
def test_a_run_of_cron_writes_what_others_write(folder):
    """Closed from the start: no file that is opened later becomes the standard output."""
    status, _, said = shell("guerdon run tiny.yaml env.vectorization=async 0<&- 1>&- 2>&-", folder)
    assert status == 0, said
    assert (folder / "rüns/one/COMPLETE").is_file()
    for path in (folder / "rüns").rglob("*"):
        assert not path.is_file() or path.suffix == ".html" or b"true success 0" not in path.read_bytes()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_the_output_lacks_are_escapes(folder, encoding):
    """As with PYTHONIOENCODING=ascii:strict."""
    (folder / "loud.py").write_text(LOUD, encoding="utf-8")

    def narrow():
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding=encoding, errors="strict", closefd=False)

    ended = forked("run", "tiny.yaml", "env.task=loud:Loud-v1", folder=folder, before=narrow)
    assert ended.status == 0, ended.said
    assert "h\\xf6he \\u2603" in ended.said or "h\ufffdhe \\u2603" in ended.said
    assert "ns/one/report.html" in ended.said


@pytest.mark.slow
def test_a_locale_of_ascii_is_one_line_where_names_need_more(folder):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    status, _, said = shell("guerdon run tiny.yaml", folder, **plain)
    assert (status, said.count(b"guerdon: "), b"Traceback" in said) == (2, 1, False)
    assert b"PYTHONUTF8=1" in said
    status, _, said = shell("guerdon run tiny.yaml env.task_text=ü", folder, **plain)
    assert (status, said.count(b"\n")) == (2, 1)
    assert b"command line" in said


FULL = "guerdon: the standard output: No space left"


@pytest.mark.parametrize(
    ("words", "streams", "status", "message"),
    [
        (["--version"], to("/dev/full", 1), 2, FULL),  # the output is the only result
        (["run", "--help"], to("/dev/full", 1), 2, FULL),
        (["run", "tiny.yaml", "--dry-run"], to("/dev/full", 1), 2, FULL),
        (["--version"], unread(1), 0, ""),  # as in guerdon --help | head -1
        (["run", "--help"], unread(1), 0, ""),
        (["run", "tiny.yaml", "--dry-run"], unread(1), 0, ""),
        (["--version"], to("/dev/full", 2), 0, "guerdon "),
        (["run", "none.yaml"], unread(1, 2), 2, ""),
        (["no-verb"], to("/dev/full", 1, 2), 2, ""),
    ],
)
def test_an_output_that_cannot_be_shown(folder, words, streams, status, message):
    ended = forked(*words, folder=folder, before=streams)
    assert ended.status == status, ended.said
    assert ended.said.startswith(message)
    assert ended.said.count("\n") == bool(message)


def test_a_full_pipe_that_does_not_block_gets_everything():
    """As where a parent written in JavaScript reads: Python's own stream raises BlockingIOError."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(writing, 1)
        os.set_blocking(1, False)
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
        keep_streams()
        sys.stdout.write("x" * 500_000)
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert len(pipe.read()) == 500_000
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.hostile("texts")
def test_a_message_is_short_and_moves_no_cursor(folder):
    ended = forked("run", "tiny.yaml", "env.task=" + "x" * 100_000, folder=folder)
    assert (ended.status, ended.said.count("\n")) == (2, 1)
    assert len(ended.said) < 2500
    ended = forked("run", "\x1b[31m\ntiny.yaml", folder=folder)
    assert (ended.status, ended.said.count("\n")) == (2, 1)
    assert "\x1b" not in ended.said


def test_a_folder_that_is_gone(folder):
    gone = "mkdir gone; cd gone; rmdir ../gone; "
    for words in ("--version", "--help", "run --help"):
        status, out, said = shell(f"{gone} guerdon {words}", folder)
        assert (status, said) == (0, b""), said
        assert out
    status, _, said = shell(f"{gone} guerdon run {folder}/tiny.yaml", folder)
    assert (status, said.count(b"\n")) == (2, 1), said
    assert b"working directory" in said


def test_python_without_docstrings(folder):
    optimized = {"PYTHONOPTIMIZE": "2"}
    status, out, said = shell("guerdon run --help", folder, **optimized)
    assert (status, said) == (0, b"")
    assert b"--resume" in out
    assert b"None" not in out
    status, _, said = shell("guerdon run tiny.yaml", folder, **optimized)
    assert (status, said.count(b"\n")) == (2, 1), said
    assert b"-OO" in said


@pytest.mark.hostile("secrets")
@pytest.mark.parametrize(
    ("content", "token", "warns"),
    [
        (b"HF_TOKEN=hf_abc\n", "hf_abc", False),
        (b"\xef\xbb\xbfHF_TOKEN=hf_abc\r\n", "hf_abc", False),  # with a byte order mark, from Windows
        ("HF_TOKEN=hf_abc\n".encode("utf-16"), None, True),
        (b"\x7fELF\0\0\x01HF_TOKEN=a\n", None, True),
        (b"HF_TOKEN=caf\xc3\xa9\n", None, True),
        (b"HF_TOKEN=caf\xe9\n", None, True),
        (b"OTHER=1\n", None, False),
        (None, None, False),  # a folder: a virtual environment, often
    ],
)
def test_a_file_of_secrets_ends_no_command(tmp_path, monkeypatch, capsys, content, token, warns):
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "HF_AUTH_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    if content is None:
        Path(".env").mkdir()
    else:
        Path(".env").write_bytes(content)
    use_token()
    assert os.environ.get("HF_TOKEN") == token
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert capsys.readouterr().err.count("\n") == warns


def test_a_file_of_secrets_that_may_not_be_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "HF_AUTH_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def refuses(*_, **__):
        raise PermissionError(13, "Permission denied", ".env")

    Path(".env").write_text("HF_TOKEN=a\n")
    monkeypatch.setattr(Path, "read_text", refuses)
    use_token()
    assert "HF_TOKEN" not in os.environ
    assert ".env: cannot be read: Permission denied" in capsys.readouterr().err


def test_a_user_without_a_home_and_without_a_name(folder):
    """No HOME, and no entry of the user: nothing becomes a folder that is called ~."""

    def nobody():
        for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
            os.environ.pop(name, None)
        os.getuid = lambda: 54_321  # only in the forked process

    words = ["run", "tiny.yaml", "runner.logger.log_path=runs"]
    ended = forked(*words, folder=folder, before=nobody)
    assert ended.status == 0, ended.said
    assert not (folder / "~").exists()
    ended = forked(*words[:2], "runner.logger.log_path=~/runs", folder=folder, before=nobody)
    assert ended.status == 2, ended.said
    assert "no home folder" in ended.said
    assert not (folder / "~").exists()
