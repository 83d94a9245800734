"""The states of a model that learns while it is served: one sealed folder per update, the newest kept.

A state is written whole, with its hashes, before the update is answered, so that a kill at any moment leaves the state
of the last answered update or of one that was about to be answered. The answers to the last updates are part of the
state: a client that asks again with the same request id gets the same answer and nothing is learnt twice, also
over a restart. This module does not know models beyond `save` and `restore`.

    store = UpdateStore(Path("runs/prm/updates"), keep=2)
    store.resume(model)                      # the newest state that is whole, or the model's own as state 0
    store.commit(model, "id-7", answer)
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from guerdon.atomic import seal_folder, verify_folder, write_json
from guerdon.errors import CheckpointError, boundary
from guerdon.folder_lock import held
from guerdon.models.judgement import Learns

ANSWERS = 8
STATE, MODEL = "update.json", "model"
log = logging.getLogger("guerdon.serve")


class UpdateStore:
    """A folder of states of one model.

    Args:
        folder: where; made if it is not there.
        keep: newest states to keep.

    Attributes:
        updates: how many updates the model has learnt.

    Raises:
        ConfigError: another server uses the folder.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep, self.updates = folder, keep, 0
        self._answers: dict[str, dict[str, Any]] = {}
        self._lock = ExitStack()
        busy = f"{folder} is in use by another server; give each model its own update_dir"
        self._lock.enter_context(held(folder, busy=busy))

    def close(self) -> None:
        """Let another server use the folder."""
        self._lock.close()

    def resume(self, model: Learns) -> None:
        """Bring the model to the newest state that is whole; where there is none, keep its own as state 0.

        A broken state is put aside with a warning, and the one before it is taken.

        Raises:
            CheckpointError: there are states, and none of them can be used.
        """
        for remains in self.folder.glob(".update_*"):  # of a writer that was killed
            shutil.rmtree(remains)
        problems = []
        for path in self._states():
            try:
                with boundary(CheckpointError, f"{path} cannot be used"):
                    verify_folder(path)
                    state = json.loads((path / STATE).read_text(encoding="utf-8"))
            except CheckpointError as error:
                problems.append((path, str(error)))
                continue
            model.restore(path / MODEL)  # the folder is whole: if this fails, an older state is no cure
            self.updates, self._answers = state["updates"], state["answers"]
            for broken, why in problems:
                log.warning("%s; the state before it, %s, is used instead", why, path.name)
                aside = broken.with_name(f"broken_{broken.name}")
                shutil.rmtree(aside, ignore_errors=True)
                broken.rename(aside)
            return
        if problems:
            raise CheckpointError(
                "no usable state: " + "; ".join(why for _, why in problems) + "; move the folder away to begin anew"
            )
        self._write(model)

    def answer(self, request_id: str) -> dict[str, Any] | None:
        """What was answered to an update before, or None."""
        return self._answers.get(request_id)

    def commit(self, model: Learns, request_id: str | None, answer: Mapping[str, Any]) -> None:
        """Keep the model's state after an update, with its answer.

        Raises:
            OSError: it could not be written; the states before it are untouched.
        """
        before = self.updates, self._answers
        self.updates += 1
        if request_id is not None:
            kept = list(self._answers.items())[-(ANSWERS - 1) :]
            self._answers = {**dict(kept), request_id: dict(answer)}
        try:
            self._write(model)
        except BaseException:
            self.updates, self._answers = before
            raise

    def _write(self, model: Learns) -> None:
        final = self.folder / f"update_{self.updates:09d}"
        temporary = self.folder / f".{final.name}.partial"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            model.save(temporary / MODEL)
            write_json(temporary / STATE, {"updates": self.updates, "answers": self._answers})
            seal_folder(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        for old in [path for path in self._states() if path != final][self.keep - 1 :]:
            shutil.rmtree(old, ignore_errors=True)

    def _states(self) -> list[Path]:
        """Sealed folders, newest first."""
        return sorted(self.folder.glob("update_*"), reverse=True)
