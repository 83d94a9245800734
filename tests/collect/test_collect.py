"""Collecting: policies, what is kept, and that a data set is a function of its configuration, kills included."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from child import environment
from corridor import GOAL, ID
from guerdon.collect.collect import _calibration_errors, collect, shares_to_counts
from guerdon.episodes.index import index_files
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.robots.control import build_policy, save_policy
from guerdon.policies.robots.experts import ScriptedExpert
from guerdon.settings.collect import ActorShare
from guerdon.settings.policy import CNNPolicySettings, MLPPolicySettings
from guerdon.settings.study import Study
from guerdon.worlds.build import build_world
from tables import refuses, sample

torch.set_num_threads(1)
TESTS = Path(__file__).parent.parent


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(1, 300))
def test_shares_become_whole_episodes(shares, episodes):
    counts = shares_to_counts(tuple(ActorShare(type="random", share=s) for s in shares), episodes)
    exact = [episodes * s / sum(shares) for s in shares]
    assert sum(counts) == episodes
    assert all(abs(c - e) < 1 for c, e in zip(counts, exact, strict=True)), "the largest remainder rounds up or down"


def test_shares_by_hand():
    assert shares_to_counts(tuple(ActorShare(type="random", share=s) for s in (1, 1, 1)), 10) == [4, 3, 3]
    assert shares_to_counts(tuple(ActorShare(type="random", share=s) for s in (4, 5, 2)), 110) == [40, 50, 20]


def corridor(folder, *, env=None, **options):
    env = {"type": "gymnasium", "task": ID, "num_envs": 3, "max_episode_steps": 8, "frame_size": 8} | (env or {})
    options = {"episodes": 7, "frame_every": 1, "mixture": [{"type": "random"}]} | options
    return Study(env=env, collect={"save_dir": str(folder), **options})


@pytest.mark.parametrize("task", ["Undrawn-v1", "Window-v1"])
@pytest.mark.parametrize(
    "way",
    sample([{}, {"vectorization": "async"}, {"autoreset_mode": "same_step"}], {}, {"autoreset_mode": "same_step"}),
    ids=str,
)
def test_an_environment_that_cannot_draw_gives_numbers_alone(tmp_path, task, way):
    collect(corridor(tmp_path / "data", env={"task": f"tiny_world:{task}", **way}))
    collect(corridor(tmp_path / "drawn", env={"task": "tiny_world:Dot-v1", **way}))
    for found, drawn in zip(*(read_episodes(tmp_path / name) for name in ("data", "drawn")), strict=True):
        assert found.frames is None
        assert drawn.frames is not None
        for name in ("states", "actions", "rewards", "success"):
            assert np.array_equal(getattr(found, name), getattr(drawn, name))


@pytest.mark.parametrize("way", sample([{}, {"vectorization": "async"}], {}), ids=str)
def test_a_render_that_gives_none_leaves_no_pictures(tmp_path, way):
    collect(corridor(tmp_path / "data", env={"task": "tiny_world:Blank-v1", **way}))
    collect(corridor(tmp_path / "drawn", env={"task": "tiny_world:Dot-v1", **way}))
    for found, drawn in zip(*(read_episodes(tmp_path / name) for name in ("data", "drawn")), strict=True):
        assert found.frames is None
        assert np.array_equal(found.states, drawn.states)


def eager(folder, step=1.0):
    """A policy that always takes the same step along the corridor."""
    study = corridor(folder)
    world = build_world(study.env, seed=0)
    policy = build_policy(MLPPolicySettings(), (2,), world.action_space, sources=(), seed=0)
    with torch.no_grad():
        policy.pi[-1].weight.zero_()
        policy.pi[-1].bias.fill_(step)
    save_policy(policy, folder)
    return str(folder)


def positions(episode):
    """(T,) position and (T,) age, as the environment saw them."""
    return episode.states[:, 0], episode.states[:, 1]


def test_rows_are_what_happened(tmp_path):
    done = collect(corridor(tmp_path / "d", frame_every=3))
    episodes = list(read_episodes(tmp_path / "d"))
    assert done.episodes == len(episodes) == 7
    assert done.frames == sum(map(len, episodes))
    for episode in episodes:
        _, age = positions(episode)
        assert list(age) == [0, 3, 6, 8]
        assert not episode.actions[0].any()
        assert episode.rewards[0] == 0
        assert list(episode.frames[:, 0, 0, 1]) == list(age), "each picture belongs to its row"
        assert episode.meta["frame_every"] == 3
        assert episode.meta["policy"] == "random"
        assert episode.outcome == bool(episode.success.any())
    assert len({e.states[0, 0].item() for e in episodes}) == 7, "each episode has a start of its own"


def test_rewards_between_rows_are_summed(tmp_path):
    collect(corridor(tmp_path / "all", frame_every=1))
    collect(corridor(tmp_path / "some", frame_every=4))
    for full, kept in zip(read_episodes(tmp_path / "all"), read_episodes(tmp_path / "some"), strict=True):
        assert np.array_equal(full.states[[0, 4, 8]], kept.states)
        assert np.allclose(kept.rewards, [0, full.rewards[1:5].sum(), full.rewards[5:].sum()], atol=1e-5)


def test_what_the_environment_pays_is_kept_beside_success(tmp_path):
    """The corridor's dense reward is recorded, also with sparse rewards, for each row's own action."""
    for native in ("dense", "sparse"):
        collect(corridor(tmp_path / native, env={"native_reward": native}))
    collect(corridor(tmp_path / "some", env={"native_reward": "sparse"}, frame_every=4))
    read = [list(read_episodes(tmp_path / name)) for name in ("dense", "sparse", "some")]
    for paid, sparse, some in zip(*read, strict=True):
        assert "dense_rewards" not in paid.meta
        np.testing.assert_array_equal(sparse.rewards, sparse.success)
        np.testing.assert_allclose(sparse.meta["dense_rewards"], paid.rewards, atol=1e-6)
        np.testing.assert_allclose(some.meta["dense_rewards"], paid.rewards[[0, 4, 8]], atol=1e-6)


def test_the_configuration_decides_the_data(tmp_path):
    for name, options in {"a": {}, "b": {}, "c": {"seed": 1}}.items():
        collect(corridor(tmp_path / name, mixture=[{"type": "random", "random_steps": 3}], **options))
    a, b, c = (dataset_hash(tmp_path / name) for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("first", sample([1, 4, 6], 4))
def test_an_unfinished_data_set_goes_on_to_the_same_data(tmp_path, first):
    collect(corridor(tmp_path / "whole", episodes=10))
    collect(corridor(tmp_path / "parts", episodes=first))
    again = collect(corridor(tmp_path / "parts", episodes=10))
    assert again.episodes == 10
    assert dataset_hash(tmp_path / "parts") == dataset_hash(tmp_path / "whole")
    assert collect(corridor(tmp_path / "parts", episodes=10)).tried == 0


def test_a_data_set_of_other_origin_is_not_continued(tmp_path):
    collect(corridor(tmp_path / "d"))
    policy = eager(tmp_path / "p")
    with refuses("collect.save_dir"):
        collect(corridor(tmp_path / "d", mixture=[{"type": "checkpoint", "checkpoint": policy}], episodes=9))


@pytest.mark.slow
def test_a_kill_and_a_second_start_give_the_data_of_one_run(tmp_path):
    """Killed for good in the middle, started again: the same episodes, ids and order as without the kill."""
    study = corridor(tmp_path / "killed", episodes=60, mixture=[{"type": "random", "share": 3}, {"type": "random"}])
    (tmp_path / "study.json").write_text(study.model_dump_json(exclude_unset=True))
    code = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r}); import corridor, pathlib\n"
        "from guerdon.settings.study import Study; from guerdon.collect.collect import collect\n"
        f"collect(Study.model_validate_json(pathlib.Path({str(tmp_path / 'study.json')!r}).read_text()))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 60
        try:
            while not index_files(tmp_path / "killed"):
                assert time.monotonic() < deadline, "the child wrote nothing in a minute"
                try:
                    pytest.fail(f"the child left with {child.wait(timeout=0.005)}")
                except subprocess.TimeoutExpired:
                    continue
        finally:
            child.kill()
    survivors = len(list(read_episodes(tmp_path / "killed")))
    assert 0 < survivors < 60
    assert collect(study).episodes == 60
    whole = study.model_copy(update={"collect": study.collect.model_copy(update={"save_dir": str(tmp_path / "whole")})})
    collect(whole)
    assert dataset_hash(tmp_path / "killed") == dataset_hash(tmp_path / "whole")


def test_random_steps_come_first_and_are_not_recorded(tmp_path):
    mixture = [{"type": "random", "random_steps": 5}]
    collect(corridor(tmp_path / "d", mixture=mixture, episodes=20, env={"kwargs": {"stops": False}}))
    ages = []
    for episode in read_episodes(tmp_path / "d"):
        _, age = positions(episode)
        assert list(age) == list(range(int(age[0]), 9))
        assert list(episode.frames[:, 0, 0, 1]) == list(age)
        ages.append(int(age[0]))
    assert min(ages) == 0
    assert max(ages) == 5


@pytest.mark.parametrize("after", [0, 2])
def test_episodes_stop_after_success_and_keep_that_row(tmp_path, after):
    mixture = [{"type": "checkpoint", "checkpoint": eager(tmp_path / "p"), "noise": 0}]
    env = {"kwargs": {"stops": False}, "max_episode_steps": 20}
    collect(corridor(tmp_path / "d", mixture=mixture, env=env, stop_after_success=after, frame_every=4))
    for episode in read_episodes(tmp_path / "d"):
        position, age = positions(episode)
        assert list(age) == {0: [0, 3], 2: [0, 4, 5]}[after], "each step is 1, the goal lies less than three away"
        assert position[-1] >= GOAL
        assert episode.success[-1]
        assert episode.outcome


def test_only_success_keeps_nothing_else(tmp_path):
    mixture = [{"type": "checkpoint", "checkpoint": eager(tmp_path / "p", 0.5), "noise": 0.6}]
    env = {"max_episode_steps": 5}
    done = collect(corridor(tmp_path / "d", mixture=mixture, only_success=True, env=env))
    episodes = list(read_episodes(tmp_path / "d"))
    assert done.episodes == len(episodes) == 7
    assert all(e.outcome for e in episodes)
    assert done.tried > 7, "some did not get there"
    collect(corridor(tmp_path / "parts", mixture=mixture, only_success=True, env=env, episodes=3))
    collect(corridor(tmp_path / "parts", mixture=mixture, only_success=True, env=env))
    assert dataset_hash(tmp_path / "parts") == dataset_hash(tmp_path / "d")


def test_an_actor_that_never_succeeds_is_given_up(tmp_path):
    mixture = [{"type": "checkpoint", "checkpoint": eager(tmp_path / "p", -1.0), "noise": 0}]
    with refuses("collect.only_success", "not one to keep; with only_success the actor must succeed now and then"):
        collect(corridor(tmp_path / "d", mixture=mixture, only_success=True, episodes=1))


def test_a_simulator_that_always_breaks_is_named_as_the_cause(tmp_path):
    env = {"task": "mixed_env:Mixed-v0", "kwargs": {"actions": "multi", "broken": -1}}
    with pytest.raises(
        ConfigError, match=r"not one to keep; the simulator broke \(simulator_non_finite x \d+\)"
    ) as said:
        collect(corridor(tmp_path / "d", env=env, episodes=1))
    assert "only_success" not in str(said.value)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_worlds_that_reset_themselves_give_the_same_episodes(tmp_path, mode):
    for name, env in {"a": {}, "b": {"autoreset_mode": mode}}.items():
        collect(corridor(tmp_path / name, env=env, episodes=8))
    assert dataset_hash(tmp_path / "a") == dataset_hash(tmp_path / "b")


def test_pixels_leave_no_states(tmp_path):
    collect(corridor(tmp_path / "d", env={"observation": "pixels"}))
    collect(corridor(tmp_path / "s"))
    for episode, other in zip(read_episodes(tmp_path / "d"), read_episodes(tmp_path / "s"), strict=True):
        assert episode.states is None
        assert np.array_equal(episode.frames, other.frames)


def test_policies_that_do_not_fit_are_refused(tmp_path):
    env = build_world(corridor(tmp_path).env, seed=0)
    save_policy(build_policy(MLPPolicySettings(), (5,), env.action_space, sources=(), seed=0), tmp_path / "wide")
    cnn = CNNPolicySettings(channels=(4,), hidden=(8,))
    save_policy(build_policy(cnn, (16, 16, 3), env.action_space, sources=(), seed=0), tmp_path / "cnn")
    with pytest.raises(CheckpointError, match=r"\(5,\)"):
        collect(corridor(tmp_path / "d", mixture=[{"type": "checkpoint", "checkpoint": str(tmp_path / "wide")}]))
    with refuses("env.observation", "acts on pixels"):
        collect(corridor(tmp_path / "d", mixture=[{"type": "checkpoint", "checkpoint": str(tmp_path / "cnn")}]))
    with refuses("collect.mixture"):
        collect(corridor(tmp_path / "d", mixture=[{"type": "expert"}]))


def test_a_cnn_policy_acts_on_what_it_sees(tmp_path):
    study = corridor(tmp_path / "d", env={"observation": "pixels", "frame_size": 16})
    cnn = CNNPolicySettings(channels=(4,), hidden=(8,))
    space = build_world(study.env, seed=0).action_space
    save_policy(build_policy(cnn, (16, 16, 3), space, sources=(), seed=0), tmp_path / "cnn")
    actor = {"type": "checkpoint", "checkpoint": str(tmp_path / "cnn"), "noise": 0.1}
    collect(corridor(tmp_path / "d", env={"observation": "pixels", "frame_size": 16}, mixture=[actor], episodes=2))
    assert [e.states for e in read_episodes(tmp_path / "d")] == [None, None]


def test_calibration_errors_shift_the_hand_alone():
    share = ActorShare(type="expert", calibration_error=0.1)
    errors = _calibration_errors(share, (2000, 39), np.random.default_rng(0))
    assert not errors[:, 3:].any()
    assert errors[:, :3].std() == pytest.approx(0.1, rel=0.05)
    assert not _calibration_errors(ActorShare(type="expert"), (4, 39), np.random.default_rng(0)).any()


def test_a_mixture_on_metaworld(tmp_path):
    from guerdon.worlds.metaworld import MetaWorldVectorEnv

    space = MetaWorldVectorEnv("reach", 1).single_action_space
    save_policy(build_policy(MLPPolicySettings(), (39,), space, sources=("env",), seed=0), tmp_path / "p")
    mixture = [
        {"type": "expert", "calibration_error": 0.1},
        {"type": "noisy", "noise": 0.5},
        {"type": "checkpoint", "checkpoint": str(tmp_path / "p")},
    ]
    study = Study(
        env={"task": "reach", "num_envs": 2, "max_episode_steps": 9, "frame_size": 16},
        collect={"save_dir": str(tmp_path / "d"), "episodes": 3, "frame_every": 5, "mixture": mixture},
    )
    assert collect(study).episodes == 3
    episodes = {e.meta["policy"] + e.id.split("-")[1]: e for e in read_episodes(tmp_path / "d")}
    assert set(episodes) == {"expert0", "noisy1", "checkpoint2"}
    for episode in episodes.values():
        assert episode.task == "Move the gripper to the goal."
        assert len(episode) == 3
        assert np.abs(episode.actions).max() <= 1
        hand, before = episode.states[0, :3], episode.states[0, 18:21]
        assert np.array_equal(hand, before), "what is recorded is the truth, not what the expert saw"


@pytest.mark.parametrize("recorded", sample(["executed", "intended"], "intended"))
def test_noise_moves_the_arm_and_is_written_down_only_if_asked(tmp_path, recorded):
    def play(folder, actor):
        study = Study(
            env={"task": "reach", "num_envs": 2, "max_episode_steps": 9, "frame_size": 16},
            collect={"save_dir": str(folder), "episodes": 2, "frame_every": 1, "mixture": [actor]},
        )
        collect(study)
        return list(read_episodes(folder))

    noisy = play(tmp_path / "noisy", {"type": "noisy", "noise": 0.3, "recorded_actions": recorded})
    quiet = play(tmp_path / "quiet", {"type": "expert"})
    rng = np.random.default_rng(0)
    for episode, undisturbed in zip(noisy, quiet, strict=True):
        expert = np.concatenate([ScriptedExpert("reach").act(state[None], rng) for state in episode.states[:-1]])
        assert np.allclose(episode.actions[1:], expert, atol=1e-5) == (recorded == "intended")
        assert np.array_equal(episode.states[0], undisturbed.states[0])
        assert np.abs(episode.states[1:] - undisturbed.states[1:]).max() > 1e-3, "the noise moved the arm"


def test_only_a_noisy_expert_has_actions_to_choose_from():
    with refuses("recorded_actions"):
        ActorShare(type="expert", recorded_actions="intended")


def command(folder, *args):
    code = "import corridor, sys; from guerdon.cli import main; sys.argv[0] = 'guerdon'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(TESTS),
        timeout=280,
    )
    return done


STUDY = """
env: {{type: gymnasium, task: {task}, native_reward: dense, num_envs: 2, max_episode_steps: 6, frame_size: 24}}
collect: {{save_dir: data, episodes: 3, frame_every: 2, mixture: [{{type: random}}]}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", sample(["InvertedPendulum-v5", "Pendulum-v1"], "InvertedPendulum-v5"))
def test_collecting_from_the_command_line(tmp_path, task):
    (tmp_path / "study.yaml").write_text(STUDY.format(task=task))
    done = command(tmp_path, "collect", "study.yaml")
    if task == "Pendulum-v1" and "pygame" in done.stderr:
        assert done.returncode == 2
        assert done.stderr.startswith("guerdon: the environment cannot draw itself: ")
        pytest.skip("drawing Pendulum-v1 needs pygame")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("wrote 3 episodes with ")
    assert done.stderr.splitlines()[-1] == "episodes 3/3: random"
    assert "ignored" not in done.stderr
    episodes = list(read_episodes(tmp_path / "data"))
    assert [e.frames.shape[1:] for e in episodes] == [(24, 24, 3)] * 3
    assert all(np.isfinite(e.states).all() for e in episodes)


def test_collect_without_a_section(tmp_path):
    with refuses("collect"):
        collect(Study())
