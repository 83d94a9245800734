"""The time limit of a Gymnasium environment: its own, unless the configuration says another."""

from functools import partial

import gymnasium
import numpy as np
import pytest

from guerdon.collect.stepping import evaluate
from guerdon.plan.estimate import estimate_run, readable
from guerdon.processes.progress import log_once
from guerdon.settings.gymnasium_ids import time_limit
from guerdon.settings.study import Study
from guerdon.settings.world import GymnasiumSettings, MetaWorldSettings, OwnWorldSettings
from guerdon.worlds.build import build_world
from tables import cases, refuses


class Still(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


GUARD = 40  # in place of 27,000
gymnasium.register("guerdon-tests/Endless-v0", Still)
gymnasium.register("guerdon-tests/Short-v1", Still, max_episode_steps=7)
gymnasium.register("guerdon-tests/Short-v3", Still, max_episode_steps=9)


def length(settings):
    """Steps of an episode that only the time limit ends."""
    world = build_world(settings, seed=0)
    world.reset(capture=np.zeros(world.num_envs, bool))
    steps = 0
    while steps < 30_000:
        steps += 1
        if world.step(np.zeros((world.num_envs, *world.action_space.shape))).done[0]:
            break
    world.close()
    return steps


def settings(task, **given):
    return GymnasiumSettings(**{"num_envs": 1, "native_reward": "dense", "frame_size": 8, "task": task, **given})


@cases(
    ("task", "given", "limit"),
    [
        ("Pendulum-v1", {}, 200),
        ("MountainCarContinuous-v0", {}, 999),
        ("HalfCheetah-v5", {}, 1000),
        ("guerdon-tests/Short-v1", {}, 7),
        ("guerdon-tests/Short", {}, 9),  # the newest version, as gymnasium.make takes it
        ("tiny_world:Dot-v1", {}, 10),  # an id with the module that registers it
        ("guerdon-tests/Endless-v0", {}, None),
        ("guerdon-tests/Short-v1", {"max_episode_steps": None}, 7),
        ("guerdon-tests/Short-v1", {"max_episode_steps": 31}, 31),
        ("guerdon-tests/Endless-v0", {"max_episode_steps": 5}, 5),
    ],
)
def test_an_environment_keeps_its_own_limit_and_a_key_replaces_it(task, given, limit, monkeypatch):
    monkeypatch.setattr("guerdon.worlds.build.GUARD", GUARD)
    found = settings(task, **given)
    assert found.max_episode_steps == limit
    if task != "HalfCheetah-v5":  # a thousand steps of MuJoCo add nothing
        assert length(found) == (GUARD if limit is None else limit)


def test_what_is_not_an_id_has_no_limit_and_is_no_known_environment():
    for name in ("no id", "Pendulum-v1x", "guerdon-tests/"):
        with pytest.raises(LookupError):
            time_limit(name)


def test_the_limit_is_said_where_an_environment_has_none():
    (line,) = settings("guerdon-tests/Endless-v0").notes
    assert "cut after 27,000 steps" in line
    assert "env.max_episode_steps" in line
    assert settings("guerdon-tests/Endless-v0", max_episode_steps=50).notes == []
    assert settings("Pendulum-v1").notes == [], "200 is its own limit"
    assert MetaWorldSettings().notes == []


def test_tasks_with_several_limits_keep_each_its_own():
    ids = ["guerdon-tests/Short-v1", "guerdon-tests/Short-v3"]
    both = settings(ids[0], task_ids=ids)
    assert both.max_episode_steps is None
    world = build_world(both, seed=0)
    world.reset(capture=np.zeros(world.num_envs, bool))
    ends = [t for t in range(1, 17) if world.step(np.zeros((1, 1))).done[0]]
    world.close()
    assert ends == [7, 16]
    assert settings(ids[0], task_ids=ids, max_episode_steps=4).max_episode_steps == 4


def test_an_unknown_id_and_a_second_name_of_the_limit_are_refused():
    with refuses("env.task"):
        build_world(settings("Nothing-v3"), seed=0)
    with refuses("env.task", "no_such_module"):
        build_world(settings("no_such_module:Thing-v0"), seed=0)
    with refuses("kwargs"):
        settings("Pendulum-v1", kwargs={"max_episode_steps": 3})


def endless():
    return Still()


def limited(max_episode_steps=250):
    return gymnasium.wrappers.TimeLimit(Still(), max_episode_steps)


def told(max_episode_steps):
    return limited(max_episode_steps)


def several(num_envs, mode, limit):
    made = partial(gymnasium.wrappers.TimeLimit, Still(), limit) if limit else Still
    return gymnasium.vector.SyncVectorEnv([made] * num_envs, autoreset_mode=mode)


def registered(num_envs):
    more = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
    return gymnasium.make_vec("guerdon-tests/Short-v1", num_envs, vectorization_mode="async", vector_kwargs=more)


@pytest.mark.parametrize(
    ("factory", "given", "limit"),
    [
        ("endless", {}, GUARD),
        ("endless", {"max_episode_steps": 5}, 5),
        ("endless", {"vectorization": "async"}, GUARD),
        ("limited", {}, 250),
        ("limited", {"vectorization": "async"}, 250),
        ("limited", {"max_episode_steps": 7}, 7),
        ("told", {}, 27_000),
        ("told", {"max_episode_steps": 300}, 300),
        ("several", {"params": {"mode": "Disabled", "limit": None}}, GUARD),
        ("several", {"params": {"mode": "Disabled", "limit": 250}}, 250),
        ("several", {"params": {"mode": "NextStep", "limit": 250}}, 250),
        ("registered", {}, 7),
    ],
)
def test_a_factorys_own_limit_is_kept_and_a_key_replaces_it(factory, given, limit, capsys, monkeypatch):
    log_once.cache_clear()
    monkeypatch.setattr("guerdon.worlds.build.GUARD", GUARD)
    if factory == "told" and not given:
        limit = GUARD  # it asks for a limit, and gets that one
    kind = f"test_time_limit:{factory}"
    own = OwnWorldSettings(type=kind, task="still", num_envs=1, native_reward="dense", frame_size=8, **given)
    assert length(own) == limit
    said = f"[env] {kind} shows no time limit of its own; until an episode has ended by itself, episodes are cut after"
    assert (said in capsys.readouterr().err) is (limit == GUARD and factory != "told")


def test_other_worlds_and_the_estimate():
    assert MetaWorldSettings().max_episode_steps == 200
    study = {"env": {"type": "gymnasium", "task": "HalfCheetah-v5", "native_reward": "dense"}}
    runner = {"total_steps": 1000, "eval_every": 500, "eval_episodes": 3}
    found = estimate_run(Study.model_validate(study | {"runner": runner}))
    assert found["evaluation steps"] == (2 * 3 + 3) * 1000  # those of the best policy at the end included


class Ending(Still):
    """Ends its episodes by itself, every second one after 70 steps."""

    count = 0

    def reset(self, *, seed=None, options=None):
        self.count, self.age = self.count + 1, 0
        return super().reset(seed=seed)

    def step(self, action):
        self.age += 1
        shown, reward, _, cut, info = super().step(action)
        return shown, reward, self.age == (5 if self.count % 2 else 70), cut, info


gymnasium.register("guerdon-tests/Ending-v0", Ending)


def test_an_episode_that_ends_by_itself_ends_the_guard(monkeypatch):
    monkeypatch.setattr("guerdon.worlds.build.GUARD", GUARD)
    world = build_world(settings("guerdon-tests/Ending-v0"), seed=0)
    assert world.guard == GUARD
    world.reset(capture=np.zeros(1, bool))
    assert [t for t in range(1, 76) if world.step(np.zeros((1, 1))).done[0]] == [5, 75]
    other = build_world(settings("guerdon-tests/Ending-v0"), seed=0)
    other.reset()
    other.load_state_dict(world.state_dict())
    assert other.guard is None
    world.close()
    other.close()


def test_an_evaluation_that_the_guard_ended_says_so(capsys, monkeypatch):
    monkeypatch.setattr("guerdon.worlds.build.GUARD", GUARD)
    world = build_world(settings("guerdon-tests/Endless-v0", num_envs=2), seed=0)
    found = evaluate(world, lambda shown: np.zeros((2, 1)), episodes=4)
    assert found["episodes_at_guard"] == found["episodes"] == 4
    assert found["length"] == GUARD
    assert f"[eval] 4 of 4 episodes were cut after {GUARD} steps" in capsys.readouterr().err
    world.close()
    short = build_world(settings("guerdon-tests/Short-v1"), seed=0)
    assert "episodes_at_guard" not in evaluate(short, lambda shown: np.zeros((1, 1)), episodes=2)
    short.close()


def test_estimates_without_a_limit_are_unknown():
    given = {"type": "gymnasium", "task": "guerdon-tests/Endless-v0", "native_reward": "dense"}
    found = estimate_run(Study.model_validate({"env": given}))
    assert found["seconds"] is None
    assert "unknown" in found["evaluation steps"]
    assert any(line.startswith("time: unknown") for line in readable(found))
    found = estimate_run(Study.model_validate({"env": {**given, "max_episode_steps": 50}}))
    assert found["evaluation steps"] == (100_000 // 10_000 + 1) * 20 * 50
