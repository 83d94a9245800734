"""States of a model that learns while it is served: one sealed folder per update, the newest kept.

A state is written whole, with its hashes, before the update is answered, so that after a kill at any moment the newest
state is that of the last answered update, or of one that was about to be answered.

The updates that were learned are part of the state. A client numbers its updates. The last answers are kept, and for
every client the highest number whose answer is not kept any more. An update that is sent again gets its kept answer;
a number at or below the highest forgotten one is refused. So nothing is learned twice, also after a restart.

    store = UpdateStore(Path("runs/prm/updates"), keep=2)
    store.resume(model)                      # the newest state that is whole, or the model's own as state 0
    store.commit(model, UpdateId("trainer-1", 7), answer)
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from guerdon.errors import CheckpointError, boundary
from guerdon.files.atomic import held, sealed_folder, verify_folder, write_json
from guerdon.models.explained_score import ExplainedScore
from guerdon.serve.errors import BadRequest, Conflict
from guerdon.types import Learnable

ANSWERS = 32  # answers that are kept, of all clients together
CLIENTS = 10_000  # clients whose updates are remembered, without end
STATE, MODEL = "update.json", "model"
When = Literal["before", "after"]
log = logging.getLogger("guerdon.serve")


@dataclass(frozen=True)
class UpdateId:
    """Client and number of an update.

    Attributes:
        client_id: the client.
        number: larger than those of the client's updates before it.
    """

    client_id: str
    number: int


@dataclass(frozen=True)
class UpdateResult:
    """Result of an update.

    Attributes:
        judgements: explained scores, one per episode, by the weights before or after.
        metrics: reported by the model.
        updates: how many the model has learned in all; None where none was asked for.
        repeated: it had been learned before, and this is the result of then.
    """

    judgements: list[ExplainedScore]
    metrics: dict[str, float]
    updates: int | None
    repeated: bool = False


class UpdateStore:
    """A folder of states of one model.

    Args:
        folder: where; made if it is not there.
        keep: newest states to keep.

    Attributes:
        updates: how many updates the model has learned.

    Raises:
        ConfigError: another server uses the folder.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep, self.updates = folder, keep, 0
        self._answers: list[dict[str, Any]] = []  # with client_id and number, oldest first
        self._forgotten: dict[str, int] = {}  # of each client, the highest number whose answer is not kept any more
        self._lock = ExitStack()
        busy = f"{folder} is in use by another server; give each model its own update_dir"
        self._lock.enter_context(held(folder, busy=busy))

    def close(self) -> None:
        """Let another server use the folder."""
        self._lock.close()

    def resume(self, model: Learnable) -> None:
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
                    updates, answers, forgotten = state["updates"], state["answers"], state["forgotten"]
            except CheckpointError as error:
                problems.append((path, str(error)))
                continue
            model.restore(path / MODEL)  # the folder is whole: if this fails, an older state does not help
            self.updates, self._answers, self._forgotten = updates, answers, forgotten
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

    def answer(self, update: UpdateId) -> dict[str, Any] | None:
        """What was answered to an update before; None where it is new.

        Raises:
            Conflict: its number is not above those that are not remembered one by one any more.
            BadRequest: there are too many clients.
        """
        for kept in self._answers:
            if (kept["client_id"], kept["number"]) == (update.client_id, update.number):
                return kept
        highest = self._forgotten.get(update.client_id)
        if highest is not None and update.number <= highest:
            raise Conflict(
                f"update {update.number} of this client is not above {highest}, up to which its updates are not "
                "remembered one by one: it may have been learned already; number updates in increasing order",
                param="number",
            )
        known = self._forgotten.keys() | {kept["client_id"] for kept in self._answers}
        if update.client_id not in known and len(known) >= CLIENTS:
            raise BadRequest(
                f"updates of {len(known)} clients are remembered here, and there is no room for another; "
                "keep one client_id for a whole run, or begin a new update_dir",
                param="client_id",
            )
        return None

    def commit(self, model: Learnable, update: UpdateId | None, answer: Mapping[str, Any]) -> None:
        """Keep the model's state after an update, with its answer.

        Raises:
            OSError: it could not be written; the states before it are untouched.
        """
        before = self.updates, self._answers, self._forgotten
        self.updates += 1
        if update is not None:
            answers = [*self._answers, {**answer, "client_id": update.client_id, "number": update.number}]
            self._answers, self._forgotten = answers[-ANSWERS:], dict(self._forgotten)
            for old in answers[:-ANSWERS]:
                client = old["client_id"]
                self._forgotten[client] = max(self._forgotten.get(client, 0), old["number"])
        try:
            self._write(model)
        except BaseException:
            self.updates, self._answers, self._forgotten = before
            raise

    def _write(self, model: Learnable) -> None:
        final = self.folder / f"update_{self.updates:09d}"
        with sealed_folder(final) as temporary:
            model.save(temporary / MODEL)
            state = {"updates": self.updates, "answers": self._answers, "forgotten": self._forgotten}
            write_json(temporary / STATE, state)
        for old in [path for path in self._states() if path != final][self.keep - 1 :]:
            shutil.rmtree(old, ignore_errors=True)

    def _states(self) -> list[Path]:
        """Sealed folders, newest first."""
        return sorted(self.folder.glob("update_*"), reverse=True)
