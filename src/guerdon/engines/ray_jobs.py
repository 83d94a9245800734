"""Jobs of a study as tasks of a Ray cluster: each is a process of a node, with the CPUs and GPUs that it reserves.

jobs = RayJobs(study.cluster)
status = jobs.start("task.A.seed0", ("run", "work/jobs/task.A.seed0.yaml", "--resume"), Path("work/jobs/a.log"))
jobs.end()
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from guerdon.config.modules import MODULES_FOLDER
from guerdon.engines.ray_cluster import connected, losses, raise_cause
from guerdon.errors import ClusterError, ConfigError, GuerdonError
from guerdon.processes.launchers import alone
from guerdon.processes.progress import log_line
from guerdon.processes.subprocess_worker import start_child
from guerdon.settings.cluster import ClusterSettings

_GRACE = 20.0  # seconds that a job gets to leave a whole checkpoint
_LOOK = 1.0  # seconds between looks at whether the cluster is left
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LP_NUM_THREADS")


class RayJobs:
    """Runs jobs on the nodes of a cluster. A job whose node or process is lost starts again, where there is room.

    Every node must have the working directory of the study, which must be on a file system that they share: a job
    reads what other jobs wrote, and goes on from its own checkpoint on another node.

    Args:
        cluster: the `cluster` section.

    Raises:
        ConfigError: the cluster cannot be reached, or no node is large enough for a job.
        MissingDependencyError: Ray is not installed.
    """

    def __init__(self, cluster: ClusterSettings) -> None:
        self._cluster = cluster
        self._ray, self._owned = connected(cluster.address, show_logs=False)  # jobs have logs of their own
        self._losses = losses()
        self._lock = threading.Condition()
        self._waiting: dict[str, Any] = {}
        self._ended = self._left = False
        remote = self._ray.remote(_run_job)
        self._task = remote.options(num_cpus=cluster.job_cpus, num_gpus=cluster.job_gpus, max_retries=0)
        try:
            self._check_room()
        except GuerdonError:
            self.end()
            raise
        variables = {name: os.environ.get(name, "1") for name in _THREADS}
        variables |= {name: os.environ[name] for name in (MODULES_FOLDER, "PYTHONSAFEPATH") if name in os.environ}
        variables |= {"RAY_ADDRESS": self._ray.get_runtime_context().gcs_address}  # for actors of the job itself
        self._place = (str(Path.cwd()), list(sys.path), variables)

    def start(self, name: str, arguments: Sequence[str], log: Path) -> int:
        """Run a job to its end and return its exit status; -15 when all is ending.

        Args:
            name: of the job.
            arguments: what follows `guerdon` on a command line; the second one is the file of the job.
            log: receives its output.

        Raises:
            ConfigError: the node does not see the files of this machine.
        """
        digest = hashlib.sha256(Path(arguments[1]).read_bytes()).hexdigest()
        for _ in range(self._cluster.max_replacements + 1):
            with self._lock:
                if self._ended:
                    return -signal.SIGTERM
                task = self._waiting[name] = self._task.remote(list(arguments), str(log), digest, *self._place)
            try:
                while not self._ray.wait([task], timeout=_LOOK)[0]:
                    if self._left:  # a call that waits when Ray is shut down never returns
                        return -signal.SIGTERM
                status = int(self._ray.get(task))
                if status != -signal.SIGKILL:
                    return status
                why = "its process was killed"
            except (self._ray.exceptions.TaskCancelledError, KeyboardInterrupt):
                return -signal.SIGTERM
            except self._ray.exceptions.RayTaskError as error:
                if self._ended:
                    return -signal.SIGTERM
                raise_cause(error)
            except self._losses as error:
                why = type(error).__name__
            finally:
                with self._lock:
                    self._waiting.pop(name, None)
                    self._lock.notify_all()
            if not self._ended:
                log_line(f"{name} was lost ({why}): it resumes from its last checkpoint where there is room")
        with log.open("a") as file:
            file.write(
                f"guerdon: the job was lost {self._cluster.max_replacements + 1} times (cluster.max_replacements), the "
                f"last time because of {why}\n"
            )
        return ClusterError.exit_code

    def end(self) -> None:
        """End the jobs that run, and the cluster where this study started it; let no other job start."""
        with self._lock:
            self._ended = True
            for task in self._waiting.values():
                self._ray.cancel(task)
            if not self._lock.wait_for(lambda: not self._waiting, timeout=_GRACE + 5.0):
                for task in self._waiting.values():
                    self._ray.cancel(task, force=True)
                self._left = True
                self._lock.wait_for(lambda: not self._waiting, timeout=5 * _LOOK)
        if self._owned:
            self._ray.shutdown()

    def _check_room(self) -> None:
        """Refuse jobs that no node can ever take; a cluster that is busy now is waited for."""
        wanted = {"CPU": self._cluster.job_cpus, "GPU": self._cluster.job_gpus}
        probe = self._ray.remote(_nothing).options(num_cpus=wanted["CPU"], num_gpus=wanted["GPU"]).remote()
        if self._ray.wait([probe], timeout=self._cluster.start_timeout)[0]:
            return
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= n for name, n in wanted.items()) for node in nodes):
            needs = " and ".join(f"{n:g} {name}" for name, n in wanted.items() if n)
            raise ConfigError(
                f"no node of the cluster has the {needs} of a job (cluster.job_cpus, job_gpus): reserve less, or add a "
                "node",
                key="cluster.job_cpus",
            )


def _nothing() -> None:
    """A task that only needs room."""


def _run_job(
    arguments: Sequence[str], log: str, digest: str, folder: str, modules: Sequence[str], variables: Mapping[str, str]
) -> int:
    """Run one command in a process of this node and return its exit status; the process ends with this one.

    Raises:
        ConfigError: the node does not see the files of the machine where the study was started.
    """
    path = Path(folder, arguments[1])
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise ConfigError(
            f"a node of the cluster ({os.uname().nodename}) does not see {path} as the machine of the study does: "
            "start the study in a folder, with a work_dir, on a file system that all nodes share"
        )
    paths = [one for one in modules if one and Path(one).is_dir()]
    environment = {**alone(os.environ), **variables, "PYTHONPATH": os.pathsep.join(paths)}
    with open(Path(folder, log), "ab") as output:
        process = start_child(
            [sys.executable, "-m", "guerdon", *arguments],
            environment=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            return process.wait()
        finally:
            if process.poll() is None:  # the study ends
                process.terminate()
                try:
                    process.wait(_GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
