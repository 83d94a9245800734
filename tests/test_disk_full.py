"""A disk that takes no more: one line and status 2; with space again the same command gives the undisturbed bytes."""

import errno
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from child import environment
from forked import forked
from guerdon.compute.finite import save_weights
from guerdon.episodes.video import VideoWriter
from guerdon.errors import ConfigError, naming, refused_by_system
from guerdon.files.atomic import sealed_folder
from guerdon.rl.replay import MAPPED, ReplayColumn
from tables import cases

pytestmark = pytest.mark.hostile("disk")

RUN = """\
name: tiny
env: {type: gymnasium, task: "tiny_world:Dot-v1", num_envs: 2, max_episode_steps: 10, frame_size: 32}
policy: {type: mlp, hidden: [8]}
collect: {save_dir: data, episodes: 6, seed: 3, frame_every: 1, mixture: [{type: random, share: 1}]}
algorithm: {rollout_steps: 10, minibatch_size: 10, num_epochs: 1}
runner:
  {total_steps: 40, eval_every: 20, eval_episodes: 2, checkpoint_every: 20,
   logger: {log_path: runs, experiment_name: one}}
"""
TEXT = """\
name: text
data: {type: generated, task: {family: chain, steps: 3}, train_size: 32, val_size: 8, max_response_length: 40}
sft: {save_dir: sft, policy: {type: text, tiny: {}}, max_steps: 4, batch_size: 4, val_split: 0.25, eval_every: 2}
policy: {type: text, path: sft/model}
"""
CHANGING = re.compile(rb'"(?:wall_time|seconds|timings\.jsonl|\w*per_second|\w*runtime)": [^,}\n]*')


def files(folder):
    """What a command wrote, without what depends on the time of day and how fast it was."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if not re.search(r"\.lock|timings|run\.json|report|tb/|tensorboard|FAILED|step_\d+/COMPLETE|\.yaml", name):
            found[name] = CHANGING.sub(b"", path.read_bytes())
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Folders of commands that nothing disturbed."""
    robot, text = tmp_path_factory.mktemp("robot"), tmp_path_factory.mktemp("text")
    (robot / "study.yaml").write_text(RUN)
    (text / "study.yaml").write_text(TEXT)
    for folder, words in ((robot, ["run"]), (robot, ["collect"]), (text, ["train"])):
        ended = forked(*words, "study.yaml", *(["policy=sft"] if words == ["train"] else []), folder=folder)
        assert ended.status == 0, ended.said
    data = files(robot / "data")
    return {"run": (RUN, files(robot / "runs")), "collect": (RUN, data), "train": (TEXT, files(text / "sft"))}


@pytest.mark.parametrize(
    ("words", "written", "most_bytes", "named"),
    [
        (["run"], "runs", 300, "runs/one"),  # the first file: the configuration
        pytest.param(["run"], "runs", 3000, "runs/one", marks=pytest.mark.slow),  # TensorBoard's events, or weights
        (["run", "runner.save_video=true", "runner.video_share=1.0"], "runs", 5000, "videos"),
        (["run", "runner.logger.tensorboard=false"], "runs", 6000, "step_000000000020"),  # weights
        pytest.param(["run"], "runs", 40_000, "report.html", marks=pytest.mark.slow),
        pytest.param(["collect"], "data", 700, "data", marks=pytest.mark.slow),
        (["collect"], "data", 6000, "data"),
        pytest.param(["train", "policy=sft"], "sft", 500_000, "sft", marks=pytest.mark.slow),  # weights, by safetensors
        (["train", "policy=sft"], "sft", 1_700_000, "sft"),  # the state of the optimizer, by torch.save
    ],
)  # fmt: skip
def test_a_full_disk_is_one_line_and_space_gives_the_undisturbed_bytes(
    tmp_path, whole, words, written, most_bytes, named
):
    text, wanted = whole[words[0]]
    (tmp_path / "study.yaml").write_text(text)
    command = [words[0], "study.yaml", *words[1:]]
    full = forked(*command, folder=tmp_path, most_bytes=most_bytes)
    assert full.status == 2, full.said
    assert "Traceback" not in full.said
    assert "Exception ignored" not in full.said
    (line,) = full.errors
    assert "File too large" in line or "Input/output error" in line
    assert named in line
    printed = re.search(r"To continue: guerdon (.+)$", line)[1]
    assert ("--resume" in printed) == (words[0] != "collect")
    again = forked(*shlex.split(printed), folder=tmp_path)
    assert again.status == 0, again.said
    found = files(tmp_path / written)
    assert {name: found[name] for name in wanted} == wanted
    assert not [p for p in tmp_path.rglob("*") if "partial" in p.name or p.name.endswith(".part")]


def space(folder, size):
    """A small file system at a folder, in a name space of its own; skips where that is not allowed."""
    mount = f"mount -t tmpfs -o size={size} none {folder}"
    allowed = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip("no file systems may be mounted here")
    return mount


@pytest.mark.slow
def test_a_file_system_without_space(tmp_path, whole):
    """Not a limit on files but on all of them together: the last bytes go to whichever comes first."""
    (tmp_path / "small").mkdir()
    mount = space(tmp_path / "small", "80k")
    text = RUN.replace("log_path: runs", f"log_path: {tmp_path}/small/runs")
    (tmp_path / "study.yaml").write_text(text)
    run = f"{sys.executable} -m guerdon run study.yaml"
    more = f"mount -o remount,size=9m {tmp_path}/small; {run} --resume && cp -r {tmp_path}/small/runs {tmp_path}"
    script = f"{mount}; {run}; status=$?; {more}; exit $status"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], cwd=tmp_path, env=environment(os.path.dirname(__file__)), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("guerdon: ") == 1, done.stderr
    assert "No space left on device; free some space" in done.stderr
    assert files(tmp_path / "runs") == whole["run"][1]


@cases(
    ("error", "number"),
    [
        (RuntimeError("write(): fd 3 failed with No space left on device"), errno.ENOSPC),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"), errno.EIO),
        (Exception("No space left on device (os error 28)"), errno.ENOSPC),
        (Exception("Disk quota exceeded (os error 122)"), errno.EDQUOT),
        (Exception("Read-only file system (os error 30)"), errno.EROFS),
        (sqlite3.OperationalError("database or disk is full"), errno.ENOSPC),
        (sqlite3.OperationalError("disk I/O error"), errno.EIO),
        (sqlite3.OperationalError("attempt to write a readonly database"), errno.EROFS),
        (OSError("300000 requested and 131056 written"), errno.EIO),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), errno.EDQUOT),
        (PermissionError(errno.EACCES, "Permission denied"), errno.EACCES),
        (MemoryError(), errno.ENOMEM),
        (RuntimeError("Storage size calculation overflowed with sizes=[9223372036854775807, 2]"), errno.ENOMEM),
        (OSError("AF_UNIX path too long"), errno.ENAMETOOLONG),
        (ZeroDivisionError("division by zero"), None),
        (RuntimeError("expected 28 rows, not 30"), None),
        (ConnectionError("[Errno 111] Connection refused"), None),
        (ValueError("os error"), None),
        (ConfigError("No space left on device"), None),
    ],
)
def test_what_the_system_refused_is_known_in_every_librarys_words(error, number):
    found = refused_by_system(error)
    assert (None if found is None else found.errno) == number


def test_an_error_of_a_library_gets_its_path_and_others_stay():
    with pytest.raises(OSError, match="No space left") as caught, naming("runs/a"):
        raise RuntimeError("No space left on device (os error 28)")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "runs/a")
    assert isinstance(caught.value.__cause__, RuntimeError)
    for other in (ValueError("x"), ConfigError("y"), MemoryError()):
        with pytest.raises(type(other)), naming("runs/a"):
            raise other


def limited(most_bytes, work):
    """What `work` raised where no file may become longer: the name of the type and the errno."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        try:
            work()
            said = ["nothing", None, None]
        except Exception as error:  # noqa: BLE001
            said = [type(error).__name__, getattr(error, "errno", None), str(getattr(error, "filename", None))]
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with os.fdopen(reading) as answer:
        return json.load(answer)


def test_pictures_of_a_replay_that_do_not_fit_name_their_file(tmp_path):
    path, pictures = tmp_path / "observations.bin", np.zeros((3, MAPPED), np.uint8)

    def play():
        column = ReplayColumn((MAPPED,), np.dtype(np.uint8), path)
        column.extend(pictures)
        column.write()

    assert limited(2 * MAPPED, play) == ["OSError", errno.EFBIG, str(path)]
    assert limited(4000 * MAPPED, play)[0] == "nothing"
    assert path.stat().st_size == pictures.nbytes


def test_weights_that_do_not_fit_name_their_file(tmp_path):
    weights = {"w": torch.zeros(1000)}
    path = tmp_path / "model.safetensors"
    assert limited(1000, lambda: save_weights(weights, path)) == ["OSError", errno.EFBIG, str(path)]
    assert limited(9000, lambda: save_weights(weights, path))[0] == "nothing"

    def seal():
        with sealed_folder(tmp_path / "sealed") as folder:
            save_file(weights, folder / "x.safetensors")

    assert limited(1000, seal) == ["OSError", errno.EFBIG, str(tmp_path / "sealed")]
    assert not (tmp_path / "sealed").exists()
    assert not list(tmp_path.glob(".sealed*"))


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.01, 0.5, 0.97, 0.9999])
def test_a_video_that_does_not_fit_is_an_error_and_no_crash(tmp_path, share):
    """FFmpeg crashed where frames followed a header that it could not write."""
    frames = np.random.default_rng(0).integers(0, 255, (8, 64, 64, 3), dtype=np.uint8)

    def write(name="video.mp4"):
        for _ in range(2):
            with VideoWriter(tmp_path / name, height=64, width=64, fps=10) as video:
                video.add(frames)

    write("whole.mp4")
    size = (tmp_path / "whole.mp4").stat().st_size
    assert limited(int(size * share), write)[1] == errno.EFBIG
    assert limited(size, write)[0] == "nothing"
    shutil.rmtree(tmp_path)
