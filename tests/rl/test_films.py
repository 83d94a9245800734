"""Films of a run: what each source paid, the environment too where it pays."""

import numpy as np
import pytest

from guerdon.collect.stepping import film as film_episode
from guerdon.compare.read_runs import RunRecord
from guerdon.compare.report_films import choose_films, fit_films
from guerdon.rl.films import write_film
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.build import build_world


class Pusher:
    """Walks to the right, and from the goal back to the left."""

    def __init__(self):
        self.steps = 0

    def mean(self, observations):
        self.steps += 1
        return np.full((len(observations), 1), 1.0 if self.steps <= 7 else -1.0, np.float32)


@pytest.fixture
def world():
    kind = {"task": "tiny_world:Dot-v1", "num_envs": 1, "frame_size": 32}
    made = build_world(GymnasiumSettings(native_reward="sparse", **kind), seed=1)
    yield made
    made.close()


def film(world, folder, *, native):
    path = folder / "run" / "films" / "step_1_0.npz"
    path.parent.mkdir(parents=True)
    moments, rewards = film_episode(world, Pusher().mean, frames=4)
    write_film(path, moments, {}, step=1, env_rewards=rewards if native else None)
    return path


def test_the_native_reward_is_shown_where_it_is_paid(world, tmp_path):
    path = film(world, tmp_path, native=True)
    with np.load(path) as content:
        rows, success, paid = (content[key] for key in ("rows", "success", "reward/env"))
    assert paid.tolist() == success.astype(float).tolist()
    assert success.any(), rows  # its first success is among the moments, however few there are
    run = RunRecord("t", "A", 0, tmp_path / "run", "complete")
    (shown,), left_out, notes = fit_films(choose_films([run])[0], budget=10**6)
    assert (left_out, notes) == ([], [])
    assert {frame.text for frame in shown.frames} == {"env 0.000", "env 1.000"}


def test_a_native_reward_that_nobody_is_paid_is_not_shown(world, tmp_path):
    with np.load(film(world, tmp_path, native=False)) as content:
        assert "reward/env" not in content.files
