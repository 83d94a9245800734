"""The policy of the best evaluation of a run, kept beside the last one.

Best is the highest true success; where that is not known, the highest return of the environment; of equal ones the
latest. The evaluation that chose it is too high by the luck of that choice: a fresh one says what it is worth.
Snapshots lie with the checkpoints, each as long as a checkpoint may go on from it, so that a run that is killed and
resumed keeps the same one.

    best = BestPolicy(run, save)
    best.consider(2000, {"success": 0.5, "episodes": 20.0})
    best.publish()                      # policy_best/
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.files.atomic import COMPLETE, sealed_folder, verify_folder

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "policy_best"
MEASURES = ("success", "return/env")  # the first that an evaluation knows is what it counts by


class BestPolicy:
    """The best policy of a run up to now.

    Args:
        folder: of the run.
        save: writes the policy as it is into a folder.

    Attributes:
        found: the step and the result of the best evaluation; None: no evaluation knew success or return.
    """

    def __init__(self, folder: Path, save: Callable[[Path], object]) -> None:
        self._folder, self._save = folder, save
        self._snapshots = folder / "checkpoints" / "best"
        self.found: tuple[int, dict[str, float]] | None = None

    def consider(self, step: int, result: Mapping[str, float]) -> None:
        """Keep the policy as it is, where its evaluation is at least as good as the best one.

        Raises:
            NonFiniteError: a weight is not finite.
        """
        here, best = _rank(result), None if self.found is None else _rank(self.found[1])
        if here is None or (best is not None and here < best):
            return
        with sealed_folder(self._at(step)) as temporary:
            self._save(temporary)
        before, self.found = self.found, (step, dict(result))
        self.forget(*([] if before is None else [before[0]]))  # which the next checkpoint may need

    def forget(self, *kept: int) -> None:
        """Remove the snapshots that neither the best policy nor a checkpoint needs.

        Args:
            kept: steps of snapshots that stay.
        """
        steps = _steps(self._snapshots)
        needed = {*kept, *([] if self.found is None else [self.found[0]])}
        for step in _steps(self._snapshots.parent):
            needed.add(max((one for one in steps if one <= step), default=step))
            needed.add(max((one for one in steps if one < step), default=step))  # it may be from before the evaluation
        for step in steps:
            if step not in needed:
                shutil.rmtree(self._at(step))

    def state(self) -> dict[str, Any] | None:
        """JSON-able: the step and the result; None: there is no best policy."""
        return None if self.found is None else {"step": self.found[0], "evaluation": self.found[1]}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Return to a stored state; snapshots of later steps are removed.

        Raises:
            CheckpointError: the snapshot is missing or altered.
        """
        self.found = None if state is None else (int(state["step"]), dict(state["evaluation"]))
        for step in _steps(self._snapshots):
            if self.found is None or step > self.found[0]:
                shutil.rmtree(self._at(step))
        if self.found is not None:
            verify_folder(self._at(self.found[0]))

    def weights(self) -> dict[str, Tensor]:
        """The tensors of the best policy, by name."""
        from guerdon.compute.finite import load_weights  # imports torch

        assert self.found is not None
        return load_weights(self._at(self.found[0]) / "policy.safetensors", states=True)

    def publish(self) -> None:
        """Write the best policy to `policy_best/`, which takes no room beside its snapshot where the disk has links."""
        assert self.found is not None
        with sealed_folder(self._folder / FOLDER) as temporary:
            for file in self._at(self.found[0]).iterdir():
                if file.name != COMPLETE:
                    _link(file, temporary / file.name)

    def _at(self, step: int) -> Path:
        return self._snapshots / f"step_{step:012d}"


def _rank(result: Mapping[str, float]) -> tuple[int, float] | None:
    """What results are ordered by: where one knows success and another does not, that is the better one."""
    for place, name in enumerate(MEASURES):
        if name in result:
            return -place, result[name]
    return None


def _steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in folder.glob("step_*"))


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:  # a disk without links
        shutil.copyfile(file, target)
