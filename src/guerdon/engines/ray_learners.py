"""The learners of a run on a Ray cluster: the process of the run is the first of them, the others are actors.

They are the processes of `guerdon.compute.distributed`; Ray finds them places, and ends them with the run. When one is
lost, all of them start again from the last checkpoint.

    found = lead(study.cluster, study.runner, lambda again: Loop(study, folder, resume=again).run(), checkpoint)
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import torch

from guerdon.compute import distributed
from guerdon.engines.ray_cluster import Actors, ClusterWorker, free_port
from guerdon.errors import ClusterError, ConfigError, FailedAloneError, ProcessLostError
from guerdon.processes.progress import log_line
from guerdon.settings.cluster import ClusterSettings
from guerdon.settings.runner import RunnerSettings

T = TypeVar("T")
_NOTICE = 30.0  # seconds within which Ray knows that a learner has ended


class LearnerActor(ClusterWorker):
    """A learner that follows the process of the run."""

    def follow(self, variables: Mapping[str, str], limit: float) -> None:
        """Carry out the collective calls of the run until it ends.

        Args:
            variables: those of torchrun, for this process.
            limit: `runner.collective_timeout`.
        """
        os.environ.update(variables)
        ended = False
        try:
            with distributed.joined(limit):
                distributed.led(lambda: None)
            ended = True
        except SystemExit:  # the run has ended by an error
            ended = True
        finally:
            if not ended:  # the other learners wait until the connections of this process close
                traceback.print_exc()
                os._exit(1)


def lead(
    cluster: ClusterSettings, runner: RunnerSettings, work: Callable[[bool], T], checkpoint: Callable[[], Any]
) -> T:
    """Carry out work as the first of `cluster.learners` learners, again from the last checkpoint when one is lost.

    On GPUs the work ends when one is lost: NCCL waits for the others where Gloo does not.

    Args:
        cluster: the `cluster` section.
        runner: the `runner` section.
        work: gets whether it begins again after the loss of a learner.
        checkpoint: names the last checkpoint.

    Raises:
        ConfigError: the cluster cannot be reached or has no room, torchrun was used, too, or some learners have a GPU
            and others have none.
        ClusterError: learners were lost more often than `cluster.max_replacements` since one checkpoint, there is no
            room for another one, or one met an error alone.
        MissingDependencyError: Ray is not installed.
    """
    if distributed.launched() > 1:
        raise ConfigError.about(
            "cluster.learners", "starts the learners on the cluster: start the run without torchrun"
        )
    if bool(torch.cuda.device_count()) != bool(cluster.learner_gpus):
        raise ConfigError(
            f"the process of the run is the first learner, and it has {torch.cuda.device_count()} GPU(s), while "
            f"cluster.learner_gpus is {cluster.learner_gpus:g}: all learners compute on a GPU, or none does",
            key="cluster.learner_gpus",
        )
    again, losses_in_a_row, reached = False, 0, checkpoint()
    while True:
        with closing(_start(cluster, runner.threads, again)) as actors:
            calls, variables = _calls(actors, cluster.learners, runner.collective_timeout)
            with _environment(variables), distributed.joined(runner.collective_timeout):
                try:
                    return distributed.led(lambda again=again: work(again))  # type: ignore[misc,return-value]
                except FailedAloneError:
                    raise
                except ClusterError as error:  # it may be of collectors, and learners lost with them
                    notice = _NOTICE if isinstance(error, ProcessLostError) else 0.0
                    ended = actors.ray.wait(calls, num_returns=1, timeout=notice)[0]
                    if not ended or torch.cuda.is_available():  # a process begins NCCL once
                        raise
                    losses_in_a_row = losses_in_a_row + 1 if checkpoint() == reached else 1
                    if losses_in_a_row > cluster.max_replacements:
                        raise ClusterError(
                            f"learners were lost {losses_in_a_row} times since one checkpoint, more often than "
                            f"cluster.max_replacements allows. Go on with --resume ({error})"
                        ) from error
        gc.collect()  # the models of this attempt, before those of the next one
        again, reached = True, checkpoint()
        log_line(f"a learner was lost: all {cluster.learners} start again from {reached or 'the start of the run'}")


def _start(cluster: ClusterSettings, threads: int, again: bool) -> Actors:
    """The learners beside this process."""
    try:
        return Actors(LearnerActor, (), "learner", cluster, threads, here=1)
    except ConfigError as error:
        if again:
            raise ClusterError(f"a learner was lost. {error}, then go on with --resume") from error
        raise


def _calls(actors: Actors, count: int, limit: float) -> tuple[list[Any], dict[str, str]]:
    """The calls that let learners follow, and the variables of torchrun for this process."""
    variables = {
        "MASTER_ADDR": actors.ray.util.get_node_ip_address(),
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": "0",  # Ray shows each learner its own GPU alone
    }
    calls = [actor.handle.follow.remote({**variables, "RANK": str(i + 1)}, limit) for i, actor in enumerate(actors)]
    return calls, {**variables, "RANK": "0"}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables, which were not set before."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
