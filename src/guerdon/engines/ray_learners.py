"""The learners of a run on a Ray cluster: the process of the run is the first of them, the others are actors.

They are the processes of `guerdon.distributed`; Ray finds them places, and ends them with the run.

    with learners(study):
        distributed.led(lambda: Loop(study, folder).run())
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from guerdon import distributed
from guerdon.engines.ray_cluster import connected, enter_folder, losses, raise_cause
from guerdon.errors import ClusterError, ConfigError
from guerdon.settings.study import Study


class LearnerActor:
    """A learner that follows the process of the run.

    Args:
        folder, modules, threads: see `enter_folder`.
    """

    def __init__(self, folder: str, modules: Sequence[str], threads: int) -> None:
        enter_folder(folder, modules, threads)

    def pid(self) -> int:
        """Of its process; answers as soon as the actor has a place."""
        return os.getpid()

    def follow(self, variables: Mapping[str, str]) -> None:
        """Carry out the collective calls of the run until it ends.

        Args:
            variables: those of torchrun, for this process.
        """
        os.environ.update(variables)
        with distributed.joined():
            distributed.led(lambda: None)


@contextmanager
def learners(study: Study) -> Iterator[None]:
    """Be the first of `cluster.learners` learners for the time of the block.

    Args:
        study: the resolved configuration, of `engine: ray`.

    Raises:
        ConfigError: the cluster cannot be reached or has no room, torchrun was used, too, or some learners have a GPU
            and others have none.
        ClusterError: a learner cannot be started.
        MissingDependencyError: Ray is not installed.
    """
    cluster = study.cluster
    if distributed.launched() > 1:
        raise ConfigError("cluster.learners starts the learners on the cluster: start the run without torchrun")
    if bool(torch.cuda.device_count()) != bool(cluster.learner_gpus):
        raise ConfigError(
            f"the process of the run is the first learner, and it has {torch.cuda.device_count()} GPU(s), while "
            f"cluster.learner_gpus is {cluster.learner_gpus:g}: all learners compute on a GPU, or none does"
        )
    ray, owned = connected(cluster.address)
    actors = []
    try:
        kind = ray.remote(LearnerActor).options(
            num_cpus=cluster.learner_cpus,
            num_gpus=cluster.learner_gpus,
            resources=cluster.learner_resources,
            scheduling_strategy="SPREAD" if cluster.strategy == "spread" else "DEFAULT",
        )
        modules = [path for path in sys.path if path]
        actors = [kind.remote(os.getcwd(), modules, study.runner.threads) for _ in range(cluster.learners - 1)]
        placed = [actor.pid.remote() for actor in actors]
        _, missing = ray.wait(placed, num_returns=len(placed), timeout=cluster.start_timeout)
        if missing:
            raise ConfigError(
                f"the cluster had no room for {len(missing)} of {len(placed)} learners within "
                f"{cluster.start_timeout:g} s: lower cluster.learners, learner_cpus or learner_gpus, or add nodes"
            )
        try:
            ray.get(placed)
        except ray.exceptions.RayTaskError as error:
            raise_cause(error)
        except losses() as error:
            raise ClusterError(f"the learners cannot be started on the cluster: {error}") from error
        variables = {
            "MASTER_ADDR": ray.util.get_node_ip_address(),
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(cluster.learners),
            "LOCAL_RANK": "0",  # Ray shows each learner its own GPU alone
        }
        calls = [actor.follow.remote({**variables, "RANK": str(i + 1)}) for i, actor in enumerate(actors)]
        with _environment({**variables, "RANK": "0"}), distributed.joined():
            yield
        ray.wait(calls, num_returns=len(calls), timeout=cluster.start_timeout)
    finally:
        for actor in actors:
            ray.kill(actor)
        if owned:
            ray.shutdown()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables, which were not set before."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
        return port
