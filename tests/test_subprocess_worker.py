"""A parent that is killed takes its children along, whatever they are doing. Real processes, real kills."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from child import environment
from guerdon.errors import MissingDependencyError
from guerdon.files.atomic import held
from guerdon.processes.subprocess_worker import (
    PoolClosedError,
    SubprocessPool,
    WorkerDiedError,
    WorkerTimeoutError,
    end_with_parent,
    start_child,
)
from tables import sample

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
TESTS = Path(__file__).parent

PARENTS = {
    "verifier": """
from guerdon.tasks.verifier import MathPool
pool = MathPool(timeout=600)
assert pool.compare("2", "3")[0] == "different"
""",
    "media": """
from guerdon.serve.media import Media
from guerdon.settings.serve import MediaSettings
worker = Media(MediaSettings()).pool._start()
""",
    "replicas": """
import functools, processes
from guerdon.serve.backends import build_model
from guerdon.serve.backends import Replicas
from guerdon.settings.serve import ServedModelSettings
settings = ServedModelSettings(custom_backend="toys:make")
model = Replicas("toy", functools.partial(build_model, "toy", settings), count=2, threads=1)
""",
    "cameras": """
import mujoco
from guerdon.worlds.camera import CameraPool
scene = "<mujoco><worldbody><camera name='c' pos='0 0 3'/><geom size='1'/></worldbody></mujoco>"
model = mujoco.MjModel.from_xml_string(scene)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
pool = CameraPool(model, "c", (32, 32), 2)
assert pool.render([pool.snapshot(data)] * 2).shape == (2, 32, 32, 3)
""",
    "environments": """
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.build import build_world
settings = GymnasiumSettings(task="tiny_world:Dot-v1", num_envs=2, vectorization="async")
world = build_world(settings, seed=0)
""",
    "calculator": """
from guerdon.processes.subprocess_worker import start_child
code = "from guerdon.processes.subprocess_worker import end_with_parent; end_with_parent()"
code += "; print('up', flush=True); 9**9**9"
child = start_child([sys.executable, "-c", code], stdout=subprocess.PIPE)
assert child.stdout.readline() == b"up\\n"
""",
}
CHILDREN = {"verifier": 1, "media": 1, "replicas": 2, "cameras": 2, "environments": 2, "calculator": 1}


def start_parent(code):
    """A process that runs the code, says that it has and waits; and its children, by what they run."""
    lines = f"import signal, subprocess, sys\nif __name__ == '__main__':\n    exec({code!r})\n"
    lines += "    print('ready', flush=True)\n    signal.pause()\n"
    folder = Path(os.environ["PARENTS"])
    folder.mkdir(exist_ok=True)
    (folder / "parent.py").write_text(lines)
    command = [sys.executable, str(folder / "parent.py")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(TESTS, TESTS / "serve"))
    assert parent.stdout.readline() == b"ready\n"
    return parent


def children_of(pid):
    """Process ids of the children that do work, not the one that `multiprocessing` keeps for itself."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in found if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes()]


def watches_its_parent(pid):
    """Whether a process has got as far as to ask the kernel for a signal when its parent's pipe closes."""
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            flags = info.read_text().split("flags:")[1].split()[0]
            if int(flags, 8) & os.O_ASYNC:
                return True
    return False


def ends(handle, seconds=60):
    """Whether a process, by its pidfd, ends in time."""
    return bool(select.select([handle], [], [], seconds)[0])


@pytest.mark.hostile("kills")
@pytest.mark.parametrize("kind", sample(PARENTS, "cameras", "environments", "calculator"))
def test_children_end_with_a_parent_that_is_killed(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("PARENTS", str(tmp_path))
    with start_parent(PARENTS[kind]) as parent:
        children = children_of(parent.pid)
        assert len(children) == CHILDREN[kind]
        while not all(map(watches_its_parent, children)):  # one camera may have drawn everything before the other is up
            pass
        handles = [os.pidfd_open(child) for child in children]
        for handle in handles:  # as if it were in a call that never returns, and never looked at a pipe again
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
        assert not any(ends(handle, 0) for handle in handles)
        parent.kill()
        ended = [ends(handle) for handle in handles]
        for handle in handles:
            os.close(handle)
    assert all(ended)


@pytest.mark.hostile("programs")
def test_a_program_under_test_ends_with_a_parent_that_is_killed(tmp_path, monkeypatch):
    """The process that isolates programs ends by itself, and its namespace with it."""
    from guerdon.tasks.code.code_tests import check_isolation

    try:
        check_isolation()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("PARENTS", str(tmp_path))
    code = """
from guerdon.tasks.code.code_tests import Sandbox
sandbox = Sandbox()
print("ready", flush=True)
sandbox.run("while True: pass", [{"stdin": ""}], 300)
"""
    with start_parent(code) as parent:
        found = []
        while len(found) < 5:  # two outside the namespace, its first process, that of a program, and the program
            found, level = [], [parent.pid]
            while level := [child for pid in level for child in children_of(pid)]:
                found += level
        handles = [os.pidfd_open(pid) for pid in found]
        parent.kill()
        ended = [ends(handle) for handle in handles]
        for handle in handles:
            os.close(handle)
    assert all(ended)


@pytest.mark.hostile("kills")
def test_a_child_whose_parent_was_gone_before_it_looked_ends(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    child = (
        "import guerdon.processes.subprocess_worker as l, signal; "
        f"open({str(gate)!r}).read(); l.end_with_parent(); signal.pause()"
    )
    code = "import sys, signal; from guerdon.processes.subprocess_worker import start_child;"
    code += f" c = start_child([sys.executable, '-c', {child!r}]);"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code} print(c.pid, flush=True); signal.pause()"], stdout=subprocess.PIPE
    ) as parent:
        handle = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        assert not ends(handle, 0)
        gate.write_text("go")
        assert ends(handle)
        os.close(handle)


def test_a_process_that_nobody_started_so_stays_as_it_is(monkeypatch):
    end_with_parent()
    end_with_parent(spawned=True)
    read, write = os.pipe()
    for value in (f"{read}:1", "9999:1"):  # another pipe that got its number, or none
        monkeypatch.setenv("GUERDON_PARENT", value)
        end_with_parent()
        assert "GUERDON_PARENT" not in os.environ
    os.write(write, b"x")
    os.close(write)
    os.close(read)


def test_a_child_that_is_done_is_done():
    child = start_child(
        [
            sys.executable,
            "-c",
            "from guerdon.processes.subprocess_worker import end_with_parent; import os; end_with_parent();"
            " print('GUERDON_PARENT' in os.environ)",
        ],
        stdout=subprocess.PIPE,
    )
    assert child.communicate()[0] == b"False\n"
    assert child.returncode == 0


STUDY = {
    "env": {"type": "gymnasium", "task": "tiny_world:Dot-v1", "num_envs": 2, "max_episode_steps": 10, "frame_size": 32},
    "policy": {"type": "mlp", "hidden": [8]},
    "algorithm": {"rollout_steps": 10, "minibatch_size": 10, "num_epochs": 1},
    "runner": {
        "total_steps": 40, "eval_every": 20, "eval_episodes": 2,
        "logger": {"log_path": "runs", "experiment_name": "run", "tensorboard": False},
    },
}  # fmt: skip
JOBS = """
from pathlib import Path
from guerdon.comparison.jobs import Job, run_jobs
job = Job("one", ("run", "study.yaml"), folder=Path("runs/run"))
print([(o.state, o.message) for o in run_jobs([job], Path("jobs"), parallel=1, say=lambda *_: None)], flush=True)
"""


@pytest.mark.hostile("kills")
@pytest.mark.slow  # test_jobs.py has a shorter one
def test_jobs_end_with_a_study_that_is_killed_and_a_second_start_waits_for_a_folder_in_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(json.dumps(STUDY))

    def study():
        return subprocess.Popen(
            [sys.executable, "-c", JOBS],
            env=environment(TESTS),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    folder = Path("runs/run")
    with study() as first, held(folder, busy=""):
        assert "one waits: another process works in runs/run" in first.stderr.readline()
        assert not (folder / "FAILED.json").exists()
        first.kill()
    folder.joinpath("FAILED.json").write_text('{"error": "an earlier attempt"}')
    Path("study.yaml").rename("whole.yaml")
    os.mkfifo("study.yaml")
    with study() as second, open("study.yaml", "w"):  # the job is there and reads
        (child,) = [job for server in children_of(second.pid) for job in children_of(server)]
        handle = os.pidfd_open(child)
        signal.pidfd_send_signal(handle, signal.SIGSTOP)
        second.kill()
        assert ends(handle)
        os.close(handle)
    Path("study.yaml").unlink()
    Path("whole.yaml").rename("study.yaml")
    with study() as third:
        out, err = third.communicate(timeout=300)
    assert out == "[('done', '')]\n", err
    assert (folder / "COMPLETE").is_file()
    assert not (folder / "FAILED.json").exists()


WORKER = """
import guerdon.processes.subprocess_worker as w, os, time
def answer(request):
    if request["do"] == "sleep": time.sleep(600)
    if request["do"] == "die": os._exit(1)
    print("noise that is not a reply")
    return {"pid": os.getpid(), "echo": request["do"]}
w.answer_requests(answer, alarm=600)
"""


def pool(workers=1):
    return SubprocessPool([sys.executable, "-c", WORKER], workers=workers, start_seconds=60)


@pytest.mark.hostile("kills")
def test_a_pool_replaces_processes_that_hang_or_die():
    with pool() as workers:
        first = workers.request({"do": "a"}, 60)
        assert first == {"pid": first["pid"], "echo": "a"}
        with pytest.raises(WorkerTimeoutError):
            workers.request({"do": "sleep"}, 0.1)
        with pytest.raises(WorkerDiedError):
            workers.request({"do": "die"}, 60)
        assert workers.request({"do": "b"}, 60)["pid"] != first["pid"]
        assert workers.restarts == 3  # one that hung, two that died of the same request


def test_closing_a_pool_ends_the_requests_under_way():
    workers, caught, started = pool(), [], threading.Event()

    def ask():
        try:
            workers.request({"do": "sleep"}, 600, files=lambda: started.set() or ())
        except PoolClosedError as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert started.wait(60)
    workers.close()
    thread.join(60)
    assert len(caught) == 1
    with pytest.raises(PoolClosedError):
        workers.request({"do": "a"}, 60)
    assert workers.restarts == 0
