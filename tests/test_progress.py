"""Progress without a terminal: plain lines on the standard error stream."""

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from child import environment
from forked import begun, ended
from guerdon.processes import progress
from guerdon.processes.progress import ProgressBar, doing

# A command whose model is ready when somebody opens the pipe.
SLOW = """\
from pathlib import Path

from guerdon.models.constant import ConstantModel

def make():
    Path("gate").read_text()
    return ConstantModel(1.0)
"""
STUDY = """\
name: tiny
work_dir: work
env: {type: gymnasium, task: "tiny_world:Dot-v1", num_envs: 2, max_episode_steps: 10, frame_size: 32}
policy: {type: mlp, hidden: [8]}
algorithm: {rollout_steps: 10, minibatch_size: 10, num_epochs: 1}
reward: {use_reward_model: true, model: {model_type: "slow:make", modality: state}, reward_mode: per_step}
runner: {total_steps: 20, eval_every: 20, eval_episodes: 2, logger: {log_path: runs, tensorboard: false}}
"""
RUN = "import guerdon.processes.progress as p; p.QUIET_S = 0.05; from guerdon.cli import main; main()"


@pytest.fixture
def slow_run(tmp_path):
    """Starts `guerdon run` with this standard error stream; it waits for `gate`."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "study.yaml").write_text(STUDY)
    os.mkfifo(tmp_path / "gate")
    started = []

    def start(stderr, **more):
        command = [sys.executable, "-c", RUN, "run", "study.yaml"]
        started.append(
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env=environment(Path(__file__).parent),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                **more,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_log_is_never_silent_for_long(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "study.yaml").write_text(STUDY)
    os.mkfifo(tmp_path / "gate")
    reading, writing = os.pipe()

    def before():
        progress.QUIET_S = 0.05
        os.dup2(writing, 2)

    run = begun("run", "study.yaml", folder=tmp_path, before=before)
    os.close(writing)
    with open(reading) as errors:
        said = [line for line, _ in zip(lines_of(errors, "loading a reward model"), range(3), strict=False)]
        assert all(re.fullmatch(r"run, \d+ s: .*loading a reward model\n", line) for line in said), said
        (tmp_path / "gate").write_text("go")
        rest = errors.read()
    assert ended(run).status == 0, rest
    assert "step 20: " in rest


def lines_of(errors, pattern):
    return (line for line in errors if re.search(pattern, line))


@pytest.mark.slow
def test_a_terminal_gets_no_such_lines(slow_run, tmp_path):
    ours, theirs = pty.openpty()
    process = slow_run(theirs, text=False)
    os.close(theirs)
    with (tmp_path / "gate").open("w") as gate:  # opens when the model is being loaded
        gate.write("go")
    text = b""
    with suppress(OSError):  # the terminal ends with the process
        while part := os.read(ours, 65536):
            text += part
    assert process.wait(60) == 0, text
    assert b"step 20: " in text
    assert b" s: " not in text


def test_what_is_under_way_is_said_in_order(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_under_way", [])  # bars of other tests
    bar = ProgressBar(8, what="questions")
    bar.advance(3, "")
    with doing("loading it"):
        assert ", ".join(map(str, progress._under_way)) == "questions 3/8, loading it"
    bar.close()
    bar.close()
    assert progress._under_way == []
    assert capsys.readouterr().err == ""


def test_without_a_terminal_each_share_of_the_total_is_one_line(capsys):
    progress = ProgressBar(10, what="episodes", lines=2)
    for done in range(1, 11):
        progress.advance(done, "expert" if done < 10 else "")
    progress.write_line("wrote data")
    progress.close()
    assert capsys.readouterr().err == "episodes 5/10: expert\nepisodes 10/10\nwrote data\n"
