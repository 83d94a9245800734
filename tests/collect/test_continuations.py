"""Labels by what an expert would still need: the simulator put back to a moment goes on as if nothing had been."""

import numpy as np
import pytest

from guerdon.collect.collect import collect
from guerdon.collect.continuations import UNREACHED, Continuations
from guerdon.episodes.read import read_episodes
from guerdon.episodes.targets import progress_targets
from guerdon.policies.robots.experts import ScriptedExpert
from guerdon.settings.study import Study
from guerdon.settings.world import GymnasiumSettings, MetaWorldSettings
from tables import refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")

TASK = "drawer-close"  # the expert needs some 40 steps


@pytest.fixture(scope="module")
def world():
    pytest.importorskip("metaworld")
    from guerdon.worlds.metaworld import MetaWorldVectorEnv

    env = MetaWorldVectorEnv(TASK, 2)
    yield env
    env.close()


def test_another_copy_goes_on_from_a_moment_to_the_same_bits(world):
    from guerdon.worlds.metaworld import MetaWorldVectorEnv

    rng = np.random.default_rng(0)
    world.reset(seed=[3, 4])
    for _ in range(7):
        world.step(rng.uniform(-1, 1, (2, 4)))
    kept = world.save_state(1)
    actions = rng.uniform(-1, 1, (12, 2, 4))
    went_on = [world.step(a)[0][1] for a in actions]
    other = MetaWorldVectorEnv(TASK, 1)
    other.reset(seed=9)
    other.load_state(0, kept)
    np.testing.assert_array_equal(went_on, [other.step(a[1:])[0][0] for a in actions])
    other.close()


@pytest.mark.slow
def test_along_an_expert_episode_one_step_less_is_left_after_every_step(world):
    experts = Continuations(MetaWorldSettings(task=TASK), limit=150)
    expert, rng = ScriptedExpert(TASK), np.random.default_rng(0)
    observations, _ = world.reset(seed=[5, 6])
    left, done = [experts.steps_left(world.save_state(0))], None
    for step in range(left[0] + 1):
        observations, _, _, _, info = world.step(expert.act(observations, rng))
        if info["success"][0]:
            done = step
            break
        left.append(experts.steps_left(world.save_state(0)))
    assert done == left[0]  # it succeeds in the step that was foretold
    assert left == list(range(left[0], -1, -1))
    experts.close()


def test_beyond_the_limit_nothing_is_promised(world):
    world.reset(seed=[5, 6])
    experts = Continuations(MetaWorldSettings(task=TASK), limit=2)
    assert experts.steps_left(world.save_state(0)) == UNREACHED
    experts.close()


def test_only_meta_world_can_be_put_back():
    with refuses("env.type", "continuations need Meta-World"):
        Continuations(GymnasiumSettings(task="CartPole-v1"), limit=5)
    with refuses("env.task_ids"):
        Continuations(MetaWorldSettings(task_ids=("reach", TASK)), limit=5)


def test_failed_episodes_get_true_labels_too(tmp_path):
    pytest.importorskip("metaworld")
    study = Study.model_validate(
        {
            "env": {"task": TASK, "num_envs": 2, "max_episode_steps": 30, "frame_size": 16},
            "collect": {
                "save_dir": str(tmp_path / "data"),
                "episodes": 2,
                "frame_every": 10,
                "continuation_limit": 100,
                "mixture": [{"type": "random"}],
            },
        }
    )
    collect(study)
    for episode in read_episodes(tmp_path / "data"):
        left = episode.meta["steps_left"]
        assert len(left) == len(episode) == 4
        targets = progress_targets(episode, horizon=100)
        for n, target in zip(left, targets, strict=True):
            expected = np.nan if n is None else 0.0 if n < 0 else max(0.0, 1 - n / 100)
            np.testing.assert_allclose(target, expected, rtol=1e-6)
        assert (targets[:3] > 0).all()  # nobody succeeded, and yet success was near
        assert left[-1] is None  # the episode is over: nobody can go on from here
        assert progress_targets(episode).max() == 0  # by the outcome alone, all is lost


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"labeler": "continuation"}, "labeler"),
        ({"labeler": "continuation", "update": "after", "replay_path": "d", "model_type": "resnet"}, "labeler"),
    ],
)
def test_a_labeler_that_would_do_nothing_is_refused(model, key):
    given = {"model_type": "progress", "checkpoint_path": "m", **model}
    with refuses(key):
        Study.model_validate({"reward": {"use_reward_model": True, "model": given}})
