"""Runs in an environment of every kind of space: reward models see what they were trained on, and resumes repeat."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from guerdon.collect.collect import collect
from guerdon.collect.control import ControlCollector, policy_of_shape
from guerdon.collect.episode_capture import Recorder
from guerdon.episodes.layout import camera_for
from guerdon.episodes.read import read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.evaluation.scoring.score_logs import score_path
from guerdon.models.images.backbone import ImageScorer
from guerdon.models.images.image import ImageModelConfig, load_image_model, save_checkpoint, state_rows
from guerdon.policies.robots.control import load_policy
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.source import SourceTerms
from guerdon.rl.run import run
from guerdon.settings.policy import MLPPolicySettings
from guerdon.settings.reward_source import RobotSource
from guerdon.settings.study import Study
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.settings.world import GymnasiumSettings
from guerdon.train.bc import train_bc
from guerdon.train.images import train_image_model
from guerdon.worlds.build import build_world
from rl_clock import interrupted, result, start
from tables import first, refuses, sample

pytestmark = pytest.mark.usefixtures("narrow_resnets")

torch.set_num_threads(1)
ENV = {
    "type": "gymnasium", "task": "mixed_env:Mixed-v0", "num_envs": 2, "native_reward": "dense", "frame_size": 16,
    "kwargs": {"actions": "multi"},
}  # fmt: skip
CONSTANT = {"model_type": "constant", "value": 0.0}


def study(folder, name="run", *, env=None, reward=None, policy=None, **more):
    return Study.model_validate(
        {
            "runner": {
                "total_steps": 96,
                "eval_every": 48,
                "eval_episodes": 2,
                "checkpoint_every": 24,
                "film_frames": 2,
                "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False},
            },
            "env": {**ENV, **(env or {})},
            "policy": policy or {"type": "mlp", "hidden": [8], "keys": ["arm"]},
            "reward": reward or {},
            "algorithm": {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2},
            **more,
        }
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Random episodes of the environment, every row of them."""
    folder = tmp_path_factory.mktemp("data")
    given = {"save_dir": str(folder / "data"), "episodes": 24, "mixture": [{"type": "random"}], "frame_every": 1}
    collect(study(folder, collect=given))
    return folder / "data"


def test_episodes_on_disk_say_what_their_states_are_made_of(data):
    episodes = list(read_episodes(data, camera="front", views=("corner",)))
    assert len(episodes) == 24
    for one in episodes:
        assert one.meta["state_keys"] == [["arm.hand.0", 2], ["arm.hand.1", 5], ["arm.joints", 4], ["arm.mode", 3]]
        assert one.meta["action_values"] == [3, 2]
        assert one.states.shape == (6, 14)
        assert one.frames.shape == (6, 12, 10, 3), "of the key front"
        assert one.views["corner"].shape == (6, 16, 16, 3), "what render() draws"
        assert (one.states[:, 11:].sum(1) == 1).all()
    named = state_rows(episodes[0], ["arm.hand", "arm.mode"], actions=True)
    hand, mode, taken = episodes[0].states[:, :7], episodes[0].states[:, 11:], episodes[0].actions.astype(int)
    expected = np.concatenate([hand, mode, np.eye(3)[taken[:, 0]], np.eye(2)[taken[:, 1]]], 1)
    assert np.array_equal(named, expected.astype(np.float32))
    assert state_rows(episodes[0], ["leg"], actions=False) is None


def write(folder, *, states=None, keys=(), actions=False, camera=""):
    """A model with random weights that looks at these."""
    torch.manual_seed(1)
    arch = "resnet18" if states is None else "mlp"
    shared = {"hidden_dim": 8, "dropout": 0.0, "state_size": states}
    config = ImageModelConfig(
        "progress", arch, image_size=(3, 16, 16), horizon=4.0, keys=keys, actions=actions, camera=camera, **shared
    )
    scorer = ImageScorer(arch, **shared)
    save_checkpoint(folder, scorer, config)
    return folder


MODELS = {
    "states": {"states": 7, "keys": ("arm.mode", "arm.joints")},
    "pairs": {"states": 10, "keys": ("arm.hand.1",), "actions": True},
    "picture": {"camera": "front"},
    "renamed": {"camera": "pixels.front"},
    "published": {},
    "rendered": {},
}


class Published:
    """A model that says what it was trained on, and takes other pictures, too."""

    def __init__(self, model):
        self.score, self.info = model.score, replace(model.info, camera="observation.images.pixels.front")


@pytest.mark.parametrize("kind", sample(MODELS, "pairs", "renamed"))
def test_a_source_scores_in_a_run_what_its_model_sees_on_disk(kind, tmp_path):
    """Recorded and scored again, the episodes of a rollout have the values that its source measured."""
    model = load_image_model(write(tmp_path / "model", **MODELS[kind]), kind="progress", device="cpu", bf16=False)
    model = Published(model) if kind == "published" else model
    settings = RobotSource(model=CONSTANT, reward_mode="per_step", score_every=1, shaping="raw")
    source = ControlReward(SourceTerms("rm", 0.9), model, settings, num_envs=2)
    recording = {"enabled": True, "save_dir": str(tmp_path / "data"), "frame_every": 1, "sample_rate_fail": 1.0}
    env = GymnasiumSettings(**ENV, data_collection=recording)
    policy = MLPPolicySettings(hidden=(8,), keys=["arm"])
    collector = ControlCollector(env, policy, seed=0, rollout_steps=15, observes=[source.observes])
    rewards = source.measure(collector.collect(collector.build_policy()))
    collector.close()
    assert not rewards.failures
    views = {"camera": "front" if kind in ("picture", "renamed", "published") else "corner"}
    episodes = {(e.meta["copy"], int(e.id.split("-")[2]) // 2): e for e in read_episodes(tmp_path / "data", **views)}
    assert len(episodes) == 6
    values = []
    for (copy, number), episode in episodes.items():
        found = model.score([episode])[0].steps[1:]
        stretch = rewards.values[copy, 5 * number : 5 * number + 5]
        assert np.allclose(found, stretch, atol=1e-6)
        values += stretch.tolist()
    assert len(set(np.round(values, 6))) > (1 if kind != "rendered" else 0)


@pytest.mark.parametrize("mode", first(["per_step", "episode"], 1))
@pytest.mark.parametrize("kind", ["states", "pairs"])
def test_an_episode_lost_by_the_simulator_has_no_rewards_and_the_others_have(kind, mode, tmp_path):
    model = load_image_model(write(tmp_path / "model", **MODELS[kind]), kind="progress", device="cpu")
    settings = RobotSource(model=CONSTANT, reward_mode=mode, score_every=1, shaping="raw")
    source = ControlReward(SourceTerms("rm", 0.9), model, settings, num_envs=2)
    env = GymnasiumSettings(**{**ENV, "kwargs": {"actions": "multi", "broken": 8}})
    collector = ControlCollector(
        env, MLPPolicySettings(hidden=(8,), keys=["arm"]), seed=0, rollout_steps=15, observes=[source.observes]
    )
    rollout = collector.collect(collector.build_policy())
    rewards = source.measure(rollout)
    collector.close()
    lost = [segment for segment in rollout.segments if segment.lost]
    assert [why.reason for *_, why in rollout.failures] == ["simulator_non_finite"] * 2
    assert len(lost) == 2
    assert not rewards.failures
    for segment in rollout.segments:
        paid = rewards.values[segment.stream, segment.start : segment.end + 1]
        assert not paid.any() if segment.lost else paid[-1] or not segment.finished


def test_a_data_set_is_scored_through_the_camera_of_the_model(data, tmp_path):
    model = load_image_model(write(tmp_path / "model", camera="front"), kind="progress", device="cpu", bf16=False)
    score_path(data, model, tmp_path / "scored", name="model")
    tables = [pq.read_table(file) for file in sorted((tmp_path / "scored" / "data").rglob("*.parquet"))]
    found = np.concatenate([table["guerdon_reward"].to_numpy() for table in tables])
    shown = [score.steps for score in model.score(list(read_episodes(data, camera="front")))]
    assert np.allclose(found, np.concatenate(shown), atol=1e-6)
    assert camera_for(data, model.info) == "front"
    assert camera_for(data, model.info, "corner") == "corner", "the named one"
    trained = replace(Published(model).info, keys=())
    assert camera_for(data, trained) == "observation.images.front"
    assert camera_for(data, replace(trained, camera="observation.images.top")) is None


def test_a_model_of_what_the_world_does_not_show_is_refused(tmp_path):
    def refused(text, **model):
        folder = write(tmp_path / text[:4], **model)
        source = {"model_type": "progress", "checkpoint_path": str(folder)}
        reward = {"use_reward_model": True, "reward_mode": "per_step", "shaping": "raw", "model": source}
        with refuses("reward.sources.progress", text):
            run(study(tmp_path, text[:4], reward=reward))

    refused("leg, 3 numbers; this world shows arm.hand.0 .2., arm.hand.1", states=3, keys=("leg",))
    refused("arm.joints, 5 numbers.*of which that is 4", states=5, keys=("arm.joints",))
    refused("states and actions, 14 numbers", states=14, actions=True)
    refused("through 'wrist'; this world has front", camera="wrist")


def trained(data, folder, name):
    shared = {
        "data_path": str(data),
        "save_dir": str(folder / name),
        "max_epochs": 3,
        "val_split": 0.2,
        "device": "cpu",
    }
    if name == "picture":
        given = ProgressTrainSettings(**shared, camera="front", image_size=16)
    else:
        given = ResNetTrainSettings(**shared, arch="mlp", keys=["arm.mode"], actions=True, max_steps=300)
    return train_image_model(given)


def test_the_card_of_a_model_says_what_it_looks_at(data, tmp_path):
    found = trained(data, tmp_path, "pairs")
    model = load_image_model(found.save_dir, kind="resnet")
    assert model.config.keys == ("arm.mode",)
    assert model.config.actions
    assert model.config.state_size == 3 + 5
    assert model.info.keys == ("arm.mode",)


@pytest.mark.slow
def test_a_picture_of_a_key_is_learned_from_and_refitted_in_a_run(data, tmp_path):
    found = trained(data, tmp_path, "picture")
    assert load_image_model(found.save_dir, kind="progress").config.camera == "front"
    model = {
        "model_type": "progress", "checkpoint_path": str(found.save_dir), "update": "after", "replay_path": str(data),
        "device": "cpu", "update_params": {"steps": 1, "batch_size": 4, "replay_size": 20},
    }  # fmt: skip
    reward = {
        "use_reward_model": True,
        "reward_mode": "per_step",
        "score_every": 2,
        "shaping": "relative",
        "model": model,
    }
    folder, _ = run(study(tmp_path, reward=reward))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert any("loss" in key and "progress" in key for row in rows for key in row), "it was refitted"


@pytest.mark.parametrize("actions", first(["multi", "binary", "matrix"], 1))
@pytest.mark.parametrize("policy", sample(["mlp", "cnn"], "mlp"))
def test_a_killed_run_ends_in_the_same_bytes(actions, policy, tmp_path):
    masks = "none" if actions == "matrix" else "array"
    env = {"kwargs": {"actions": actions, "masks": masks}}
    form = {"type": "mlp", "hidden": [8], "keys": ["arm"]}
    if policy == "cnn":
        form = {"type": "cnn", "channels": [2], "hidden": [4]}
    whole, cut = (study(tmp_path, name, env=env, policy=form) for name in ("whole", "cut"))
    start(whole).run()
    interrupted(cut, "update", 3)
    start(cut, resume=True).run()
    assert result(cut) == result(whole)


def test_shards_and_rollouts_ahead_repeat(tmp_path):
    """What crosses to other processes on a cluster: structured rows, choices, masks, weights and shapes."""

    def ran(name, *, cut=None):
        asked = study(tmp_path, name)
        runner = asked.runner.model_copy(update={"rollout_shards": 2, "max_staleness": 1})
        asked = asked.model_copy(update={"runner": runner})
        if cut:
            interrupted(asked, "update", cut)
        start(asked, resume=bool(cut)).run()
        return result(asked)

    assert ran("whole") == ran("again") == ran("cut", cut=3)
    collector = ControlCollector(GymnasiumSettings(**ENV), MLPPolicySettings(keys=["arm"]), seed=0, rollout_steps=6)
    mine, shape = collector.build_policy(), pickle.loads(pickle.dumps(collector.policy_shape()))
    there = policy_of_shape(collector.settings, shape, heads=(), auxiliary=(), seed=5)
    there.load_tensors(mine.tensors())
    rollout = pickle.loads(pickle.dumps(collector.collect(mine)))
    assert np.array_equal(there.evaluate_all(there.prepared(rollout.inputs), micro=9).log_probs.numpy().ravel(),
                          rollout.log_probs.ravel())  # fmt: skip
    collector.close()


def test_a_policy_learns_what_the_environment_pays(tmp_path):
    """From 1/3 by chance to nearly always, in an environment that names the right choice."""
    env = {"kwargs": {"actions": "multi", "masks": "none"}, "num_envs": 8}
    more = {"algorithm": {"rollout_steps": 40, "minibatch_size": 80, "learning_rate": 1e-2}}
    learned = study(tmp_path, env=env, policy={"type": "mlp", "hidden": [32], "keys": ["arm.mode"]}, **more)
    few = {"total_steps": 2560, "eval_every": 2560, "eval_episodes": 8}
    folder, _ = run(learned.model_copy(update={"runner": learned.runner.model_copy(update=few)}))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["return/env"] for row in rows if "return/env" in row][-1] > 4.5, "of 5"


@pytest.mark.parametrize("form", first(["mlp", "cnn"], 1))
def test_choices_in_a_dict_are_cloned(form, data, tmp_path):
    """The clone is right where the recorded episodes are: those that chose what their environment named."""
    kept = [e for e in read_episodes(data, camera="corner") if e.outcome]
    assert 2 <= len(kept) < 24
    policy = {"type": "mlp", "hidden": [32], "keys": ["arm.mode"]}
    if form == "cnn":
        policy = {"type": "cnn", "channels": [2], "hidden": [8], "keys": ["front", "arm"]}
    bc = {"data_path": str(data), "save_dir": str(tmp_path / "clone"), "epochs": 40, "only_success": False}
    folder, metrics = train_bc(study(tmp_path, policy=policy, bc=bc))
    assert "action_std" not in metrics
    assert 0 < metrics["val_mae"] < 1, "share of choices that are others"
    clone = load_policy(folder)
    assert [c.name for c in clone.encoder.columns] == (["arm.mode"] if form == "mlp" else [
        "front", "arm.hand.0", "arm.hand.1", "arm.joints", "arm.mode",
    ])  # fmt: skip
    run(study(tmp_path, policy={**policy, "checkpoint": str(folder)}))


def test_a_clone_of_what_the_environment_names_is_right(tmp_path):
    """Episodes of an expert, which chooses the value that the mode names."""
    world = build_world(GymnasiumSettings(**{**ENV, "kwargs": {"actions": "multi", "masks": "none"}}), seed=3)
    with EpisodeWriter(tmp_path / "data") as writer:
        recorder = Recorder(world, writer, frame_every=1)
        start_ = world.reset(capture=np.ones(2, bool))
        recorder.begin_all(start_)
        rows, rng = start_.observations, np.random.default_rng(0)
        for _ in range(60):
            before = world.steps_in_episode + 1
            taken = np.stack([rows["arm.mode"].argmax(1), rng.integers(0, 2, 2)], 1)
            found = world.step(taken, capture=np.ones(2, bool), capture_ends=True)
            recorder.watch(before, found.actions, found)
            recorder.begin_all(found)
            rows = found.observations
    world.close()
    bc = {"data_path": str(tmp_path / "data"), "save_dir": str(tmp_path / "clone"), "epochs": 60}
    env = {"kwargs": {"actions": "multi", "masks": "none"}}
    policy = {"type": "mlp", "hidden": [32], "keys": ["arm.mode"]}
    folder, _ = train_bc(study(tmp_path, env=env, policy=policy, bc=bc))
    clone, shown = load_policy(folder), np.zeros(3, rows.dtype)
    shown["arm.mode"] = np.eye(3)
    assert clone.act(shown, rng, greedy=True).values[:, 0].tolist() == [0, 1, 2]
