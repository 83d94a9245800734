"""Compares a simulator restored in a new process with one that was never restored."""

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from guerdon.worlds.build import build_world

BEFORE, AFTER, EVERY = 20, 50, 10  # steps before and after the moment that is restored, and between two pictures


def _played(settings, begin):
    """Observations, rewards, success and pictures of the last steps, and the state before them.

    `begin` is None for a world that plays all actions, else a moment of it: that of `state_dict`, which a run that
    resumes replays, or those of `save_state`, which are put into copies that never had a reset.
    """
    world = build_world(settings, seed=5)
    space, states = world.env.action_space, []
    low, high = (np.broadcast_to(bound, (BEFORE + AFTER, *space.shape)) for bound in (space.low, space.high))
    actions = np.random.default_rng(0).uniform(low, high).astype(np.float32)
    if begin is None:
        world.reset()
        for some in actions[:BEFORE]:
            world.step(some)
        if hasattr(world.env, "save_state"):
            states = [world.save_state(i) for i in range(world.num_envs)]
    elif isinstance(begin, Mapping):
        world.load_state_dict(begin)
    else:
        for i, state in enumerate(begin):
            world.load_state(i, state)
    kept, found = world.state_dict(), []
    for t, some in enumerate(actions[BEFORE:], start=1):
        observations, rewards, terminated, _, info = world.env.step(some)
        looks = [world.eye.look(i) for i in range(world.num_envs)] if t % EVERY in {0, 1} else []
        pictures = [world.render(looks, camera) for camera in (world.cameras or (None,)) if looks]
        found.append((observations, rewards, terminated, np.asarray(info.get("success", 0)), *pictures))
    world.close()
    return found, kept, states


def check_restored(*tasks):
    """Check that all numbers and pictures after a restore in a new process equal those without one.

    Args:
        tasks: settings of worlds.
    """

    def played(begins):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return list(pool.map(_played, tasks, begins))

    never = played([None] * len(tasks))
    replayed = played([kept for _, kept, _ in never])
    loaded = played([states for *_, states in never]) if never[0][2] else []
    for others in filter(None, (replayed, loaded)):
        for settings, (first, *_), (again, *_) in zip(tasks, never, others, strict=True):
            assert len(first) == len(again) == AFTER
            assert sum(len(row) > 4 for row in first) == 2 * AFTER // EVERY, "pictures"
            assert not np.array_equal(first[0][0], first[-1][0]), "something moves"
            for t, rows in enumerate(zip(first, again, strict=True)):
                assert all(np.array_equal(a, b) for a, b in zip(*rows, strict=True)), (settings, t)
