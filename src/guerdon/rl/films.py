"""Filmed episodes for the report: a few frames of one deterministic episode, with what every source said of each.

This module does not know how reports look.

    film_episode(world, policy.actor(), sources, folder / "step_1000.npz", step=1000, frames=24, native=True)
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.atomic import write_bytes
from guerdon.episodes.targets import outcome_of
from guerdon.rl.evaluation import Decides
from guerdon.rl.sources import Source
from guerdon.types import Episode
from guerdon.worlds.world import World


def film_episode(
    world: World, actor: Decides, sources: Mapping[str, Source], path: Path, *, step: int, frames: int, native: bool
) -> None:
    """Run one episode in copy 0, keep about `frames` evenly spaced moments, score them and write an NPZ.

    The moments are evenly spaced, with the first success among them. The file holds `frames` (F, H, W, 3) uint8,
    `rows` (F,), `success` (F,), `reward/<source>` (F,) values of the models (0 where `missing/<source>` is True), with
    `native` also `reward/env` (F,), what the environment paid for the step to that row (nothing at the start), and
    `meta`, a JSON string with the episode's success, null where nobody knows it.
    """
    world.rewind()
    only = np.arange(world.num_envs) == 0
    first = world.reset(capture=only)
    looks: list[Any] = [first.first_looks[0]]
    flags: list[bool | None] = [False]
    rows, paid = [0], [0.0]
    observations, row, done = first.observations, 0, False
    while not done and row < 10_000:
        transition = world.step(actor.mean(observations), capture=only)
        row += 1
        done = bool(transition.done[0])
        looks.append(transition.looks[0])
        flags.append(transition.success_of(0))
        rows.append(row)
        paid.append(float(transition.rewards[0]))
        observations = transition.observations
    spaced = np.linspace(0, row, min(frames, row + 1)).round().astype(int)
    pick = np.unique([*spaced, *([flags.index(True)] if True in flags else [])])
    pictures = world.render([looks[i] for i in pick])
    success = np.array(flags, dtype=np.bool_)[pick]  # what nobody reported is not shown as a success
    episode = Episode(id="film", task=world.tasks[0], frames=pictures)
    arrays: dict[str, Any] = {"frames": pictures, "rows": np.array(rows)[pick], "success": success}
    if native:
        arrays |= {"reward/env": np.array(paid, np.float32)[pick], "missing/env": np.zeros(len(pick), bool)}
    for name, source in sources.items():
        score = source.model.score([episode])[0]
        known = score.steps is not None
        arrays[f"reward/{name}"] = score.steps if known else np.zeros(len(pick), np.float32)
        arrays[f"missing/{name}"] = np.full(len(pick), not known)
    meta = {"step": step, "task": world.tasks[0], "success": outcome_of(flags)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta=np.array(json.dumps(meta)), **arrays)
    write_bytes(path, buffer.getvalue())
