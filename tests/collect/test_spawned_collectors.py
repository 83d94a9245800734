"""Collectors that are built from configuration in another process give the same rollouts, bit for bit."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, is_dataclass
from multiprocessing import get_context

import numpy as np
import pytest
import torch

import chunk_policy
import corridor
import tiny_world
from guerdon.collect.control import ControlCollector
from guerdon.collect.text import TextCollector
from guerdon.episodes.read import read_episodes
from guerdon.policies.language.text_files import load_policy
from guerdon.settings.study import Study
from guerdon.types import Observes
from scripted import SHAPE

HEADS = ("verifier", "prm")


def bits(value):
    """A value as nested tuples of plain values and of the bytes of its arrays."""
    if is_dataclass(value):
        skipped = ("seconds", "tokenizer")  # times differ; texts and tokens are compared
        return tuple((f.name, bits(getattr(value, f.name))) for f in fields(value) if f.name not in skipped)
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return tuple((key, bits(one)) for key, one in value.items())
    return tuple(bits(one) for one in value) if isinstance(value, tuple | list) else value


def arrays(tensors):
    """Weights or state as they cross to another process."""
    return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}


def control_collector(study):
    grpo, labels = study.control_algorithm.adv_estimator == "grpo", study.env.type == "metaworld"
    return ControlCollector(
        study.env,
        study.control_policy,
        seed=study.runner.seed,
        rollout_steps=study.control_algorithm.rollout_steps,
        group_size=study.control_algorithm.group_size if grpo else None,
        heads=() if grpo else HEADS,
        observes=[Observes(every=5, first=True, label_every=2 if labels else 0, label_limit=60), Observes()],
    )


def text_collector(study, policy):
    return TextCollector(
        study.data, study.generation, policy, seed=study.runner.seed, heads=HEADS, greedy=True, recompute=True,
        micro_batch_size=3,
    )  # fmt: skip


def collected(kind, configuration, weights, state, count):
    """What the other process does: pickled rollouts and an evaluation of a collector that begins at a state."""
    torch.set_num_threads(1)
    study = Study.model_validate(configuration)
    collector = control_collector(study) if kind == "control" else text_collector(study, study.text_policy)
    if state is not None:
        collector.restore({name: torch.from_numpy(array) for name, array in state[0].items()}, state[1])
    rollouts = [collector.collect(weights) for _ in range(count)]
    success = collector.evaluate(weights, episodes=2)
    collector.close()
    return pickle.dumps((rollouts, success))


@pytest.fixture(scope="module")
def spawned():
    """`collected` in another process, which was started anew."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield lambda *given: pickle.loads(pool.submit(collected, *given).result())


def plain(study):
    """A configuration as it crosses to another process."""
    return study.model_dump(mode="json", exclude_unset=True)


def changed(policy):
    """The policy after something that stands for an update."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01 * torch.sign(parameter) + 0.001)


def robot_study(folder, **given):
    data = {"enabled": True, "save_dir": str(folder), "mode": "train", "sample_rate_fail": 1.0, "frame_every": 4}
    return Study.model_validate(
        {
            "env": {
                "task": "drawer-close", "num_envs": 2, "max_episode_steps": 20, "frame_size": 16,
                "data_collection": data,
            },
            "algorithm": {"rollout_steps": 12},
            "policy": {"type": "mlp", "hidden": [8]},
            "runner": {"seed": 3},
            **given,
        }
    )  # fmt: skip


def test_robots_go_on_in_the_middle_of_an_episode_with_frames_recordings_and_continuations(spawned, tmp_path):
    pytest.importorskip("metaworld")
    here = control_collector(robot_study(tmp_path / "here"))
    policy = here.build_policy()
    here.collect(policy)
    tensors, values = here.state()
    changed(policy)
    weights = arrays(policy.tensors())
    expected = [here.collect(policy) for _ in range(3)]
    success = here.evaluate(policy, episodes=2)
    here.close()
    assert expected[0].done.any(), "the episodes that were under way end in it"
    assert any(len(s) and s.rows_F[0] > 0 for s in expected[0].segments)
    assert any(s.steps_left_F is not None for rollout in expected for s in rollout.segments)
    assert all(s.frames_F.any() for rollout in expected for s in rollout.segments if len(s))
    configuration = plain(robot_study(tmp_path / "there"))
    found, found_success = spawned("control", configuration, weights, (arrays(tensors), values), 3)
    assert [bits(rollout) for rollout in found] == [bits(rollout) for rollout in expected]
    assert found_success == success
    ours, theirs = ({e.id: e for e in read_episodes(tmp_path / name)} for name in ("here", "there"))
    assert len(theirs) == 2  # those that began there; the ones under way at the start are not whole
    assert set(theirs) <= set(ours)
    assert all(bits(episode.columns()) == bits(ours[name].columns()) for name, episode in theirs.items())


def test_groups_on_pixels_begin_alike_in_both(spawned, tmp_path):
    study = robot_study(
        tmp_path,
        env={
            "type": "gymnasium", "task": corridor.ID, "num_envs": 4, "max_episode_steps": 7, "frame_size": 8,
            "observation": "pixels", "vectorization": "sync",
        },
        algorithm={"adv_estimator": "grpo", "group_size": 2},
        policy={"type": "cnn", "channels": [4], "hidden": [8]},
    )  # fmt: skip
    here = control_collector(study)
    policy = here.build_policy()
    here.collect(policy)
    changed(policy)
    tensors, values = here.state()
    expected = [here.collect(policy) for _ in range(2)]
    success = here.evaluate(policy, episodes=2)
    here.close()
    assert expected[0].group_ids.tolist() == [0, 0, 1, 1]
    given = plain(study), arrays(policy.tensors()), (arrays(tensors), values), 2
    found, found_success = spawned("control", *given)
    assert [bits(rollout) for rollout in found] == [bits(rollout) for rollout in expected]
    assert found_success == success


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_chunks_of_actions_from_frames_go_on_in_the_middle_of_an_episode(spawned, tmp_path, estimator):
    study = robot_study(
        tmp_path,
        env={
            "type": "gymnasium", "task": f"{tiny_world.__name__}:Dot-v1", "num_envs": 4, "max_episode_steps": 7,
            "frame_size": 8, "native_reward": "dense", "vectorization": "sync",
        },
        algorithm={"adv_estimator": "grpo", "group_size": 2} if estimator == "grpo" else {"rollout_steps": 12},
        policy={"type": f"{chunk_policy.__name__}:ChunkPolicy", "params": {"chunk": 3, "frames": True}},
    )  # fmt: skip
    here = control_collector(study)
    policy = here.build_policy()
    here.collect(policy)
    changed(policy)
    tensors, values = here.state()
    expected = [here.collect(policy) for _ in range(2)]
    success = here.evaluate(policy, episodes=2)
    here.close()
    assert expected[0].chunks.size == 3
    given = plain(study), arrays(policy.tensors()), (arrays(tensors), values), 2
    found, found_success = spawned("control", *given)
    assert [bits(rollout) for rollout in found] == [bits(rollout) for rollout in expected]
    assert found_success == success


@pytest.mark.slow
def test_text_with_filters_and_resampling(spawned, tmp_path):
    study = Study.model_validate(
        {
            "policy": {"type": "text", "tiny": {**SHAPE, "alphabet": "0123456789+-*=?;"}, "bf16": False},
            "data": {
                "task": {"family": "chain", "steps": 2}, "train_size": 24, "val_size": 4, "max_response_length": 24,
                "train_batch_size": 4, "n_samples": 2, "filter_accuracy": True, "accuracy_lower_bound": 0.0,
                "filter_truncated": True, "shortfall": "resample",
            },
            "algorithm": {"adv_estimator": "remax"},
            "runner": {"seed": 5, "logger": {"log_path": str(tmp_path)}},
        }
    )  # fmt: skip
    policy = load_policy(study.text_policy, seed=study.runner.seed, value_heads=len(HEADS))
    here = text_collector(study, policy)
    first = here.collect(policy)
    weights = arrays(policy.tensors())
    found, _ = spawned("text", plain(study), weights, None, 1)
    assert bits(found[0]) == bits(first)
    tensors, values = here.state()
    changed(policy)
    weights = arrays(policy.tensors())
    expected = [here.collect(policy) for _ in range(3)]
    success = here.evaluate(policy, episodes=2)
    here.close()
    assert any(rollout.metrics["prompts_drawn"] > 4 for rollout in expected), "some were drawn again"
    assert any(rollout.steps > 2 * len(rollout.mask) for rollout in expected)
    assert all(set(rollout.values) == set(HEADS) and rollout.greedy is not None for rollout in expected)
    assert all(rollout.sampled_log_probs is not None for rollout in expected)
    found, found_success = spawned("text", plain(study), weights, (arrays(tensors), values), 3)
    assert [bits(rollout) for rollout in found] == [bits(rollout) for rollout in expected]
    assert found_success == success
