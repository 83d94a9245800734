"""Programs other than torchrun that start several processes: guerdon does not take part in their groups.

refuse_other_launchers()        # srun -n 8 guerdon run study.yaml: each of 8 processes would do the whole run
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from guerdon.errors import ConfigError

LAUNCHERS = {  # variables with the number of processes, and who sets them
    "SLURM_STEP_NUM_TASKS": "srun",
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpiexec",
}


def refuse_other_launchers() -> None:
    """Refuse to be one of several processes that torchrun did not start.

    Raises:
        ConfigError: a variable says that this is one of several, and `WORLD_SIZE` is not set.
    """
    if "WORLD_SIZE" in os.environ:
        return
    for name, program in LAUNCHERS.items():
        count = os.environ.get(name, "")
        if count.isdecimal() and int(count) > 1:
            raise ConfigError(
                f"{program} started {count} processes ({name}), each of which would do all of the work: let it start "
                "one per machine, and torchrun the processes of each (docs/distributed.md); where each task has a "
                f"study of its own, unset {name}"
            )


def alone(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that is none of those that a launcher started, such as a job of a study."""
    return {name: value for name, value in variables.items() if name not in LAUNCHERS}
