"""Behaviour cloning: the right pairs, numbers of held-out episodes only, and a policy that does the task."""

import json

import numpy as np
import pytest
import torch

from corridor import ID
from guerdon.collect.collect import collect
from guerdon.collect.stepping import evaluate
from guerdon.episodes.read import read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import ConfigError, DataError, NonFiniteError
from guerdon.policies.robots.control import build_policy, load_policy, save_policy, start_from_policy
from guerdon.policies.robots.experts import ScriptedExpert
from guerdon.settings.study import Study
from guerdon.train.bc import (
    SMALLEST_STD,
    check_bc,
    gather_chunks,
    gather_pairs,
    gather_rows,
    residual_std,
    split_pairs,
    train_bc,
)
from guerdon.types import Episode
from guerdon.worlds.build import build_world
from guerdon.worlds.observation import ObservationSpec
from guerdon.worlds.spaces import ObservedColumn
from tables import refuses

torch.set_num_threads(1)


def linear_episodes(count=12, length=20, noise=0.0, seed=0, **meta):
    """Episodes of a teacher whose action is a linear function of the state, with noise of its own."""
    rng = np.random.default_rng(seed)
    teacher = np.array([[0.5, -0.2], [0.1, 0.3], [-0.4, 0.2]], np.float32)
    for number in range(count):
        states = (5 + rng.normal(0, 2, (length, 3))).astype(np.float32)
        actions = np.zeros((length, 2), np.float32)
        actions[1:] = (states[:-1] - 5) @ teacher + noise * rng.normal(size=(length - 1, 2))
        yield Episode(
            id=str(number), task="follow", states=states, actions=actions, rewards=np.zeros(length, np.float32),
            success=np.arange(length) == length - 1, outcome=number % 4 != 3, meta=meta,
        )  # fmt: skip


def written(folder, episodes):
    with EpisodeWriter(folder) as writer:
        for episode in episodes:
            writer.add(episode)
    return folder


def study(tmp_path, *, policy=None, env=None, seed=0, **options):
    bc = {"data_path": str(tmp_path / "data"), "save_dir": str(tmp_path / "policy"), "epochs": 60, "batch_size": 32}
    return Study(
        bc=bc | options, policy={"type": "mlp"} | (policy or {"hidden": [32]}), env=env or {}, runner={"seed": seed}
    )


def test_pairs_are_a_state_and_the_action_taken_then():
    episodes = list(linear_episodes(3, 5))
    pairs = gather_pairs(episodes, pixels=False)
    assert pairs.observations.shape == (12, 3)
    for number, episode in enumerate(episodes):
        mine = pairs.take(pairs.episode == number)
        assert np.array_equal(mine.observations, episode.states[:-1])
        assert np.array_equal(mine.actions, episode.actions[1:])


def test_whole_episodes_are_held_out():
    pairs = gather_pairs(linear_episodes(), pixels=False)
    for share, count in ((0.01, 1), (0.25, 3), (0.99, 11)):
        train, val = split_pairs(pairs, share, seed=3)
        assert len(np.unique(val.episode)) == count
        assert not set(train.episode) & set(val.episode)
        assert len(train.actions) + len(val.actions) == len(pairs.actions)


def test_the_spread_is_that_of_held_out_errors(tmp_path):
    assert residual_std(np.array([[3.0, 0.0], [-4.0, 0.01]])) == pytest.approx([np.sqrt(12.5), SMALLEST_STD])
    written(tmp_path / "data", linear_episodes(30, 30, noise=0.3))
    folder, metrics = train_bc(study(tmp_path, only_success=False, val_split=0.3, epochs=25))
    std = load_policy(folder).log_std.detach().exp().numpy()
    assert std == pytest.approx([0.3, 0.3], rel=0.25), "the teacher's own noise is what cannot be predicted"
    assert metrics["action_std"] == pytest.approx(float(std.mean()))
    assert metrics["val_loss"] == pytest.approx(float(np.square(std).mean()), rel=1e-4)


def test_a_clone_of_a_clear_teacher_is_exact_and_reproducible(tmp_path):
    written(tmp_path / "data", linear_episodes(20, 30))
    folder, metrics = train_bc(study(tmp_path))
    assert metrics["val_mae"] < 0.1
    assert metrics["episodes"] == 15, "failed episodes are left out"
    stored = json.loads((folder / "metrics.json").read_text())
    assert stored["val_loss"] == metrics["val_loss"]
    assert len(stored["history"]) == metrics["epochs"]
    assert min(row["val_loss"] for row in stored["history"]) == metrics["val_loss"], "the best epoch is kept"
    assert len(stored["data_hash"]) == 64
    policy = load_policy(folder)
    assert np.allclose(policy.normalizer.mean, 5, atol=0.5)
    assert np.allclose(policy.normalizer.std, 2, atol=0.5)
    first = (folder / "policy.safetensors").read_bytes()
    again, _ = train_bc(study(tmp_path, save_dir=str(tmp_path / "again")))
    assert (again / "policy.safetensors").read_bytes() == first
    other, _ = train_bc(study(tmp_path, seed=1, save_dir=str(tmp_path / "other")))
    assert (other / "policy.safetensors").read_bytes() != first


def test_a_clone_is_never_replaced_in_silence(tmp_path):
    written(tmp_path / "data", linear_episodes())
    folder, metrics = train_bc(study(tmp_path, epochs=2))
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigError, match="already holds a training; go on with it by --resume"):
        train_bc(study(tmp_path, epochs=2))
    kept, same = train_bc(study(tmp_path, epochs=2), resume=True)
    assert (kept, {name: same[name] for name in metrics}) == (folder, metrics)
    for changed in (study(tmp_path, epochs=3), study(tmp_path, epochs=2, seed=5)):
        with pytest.raises(ConfigError, match=r"started with other (seed|settings\.epochs)"):
            train_bc(changed, resume=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == made
    record = json.loads(made["training.json"])
    (folder / "training.json").write_text(json.dumps({**record, "finished": False}))
    train_bc(study(tmp_path, epochs=2))  # one that was cut off has nothing to lose
    assert (folder / "policy.safetensors").read_bytes() == made["policy.safetensors"]


def test_a_run_can_start_from_the_clone(tmp_path):
    written(tmp_path / "data", linear_episodes())
    folder, _ = train_bc(study(tmp_path, epochs=3))
    run = Study(policy={"type": "mlp", "hidden": [32], "checkpoint": str(folder)})
    clone = load_policy(folder)
    space = build_world(Study(env={"type": "gymnasium", "task": ID}).env, seed=0).action_space
    space = type(space)(-1, 1, (2,), np.float32)
    policy = build_policy(run.policy, (3,), space, sources=("env",), seed=9)
    assert start_from_policy(policy, folder) == f"policy starts from {folder}"
    states = np.random.default_rng(0).normal(5, 2, (4, 3)).astype(np.float32)
    assert np.array_equal(policy.actor().mean(states), clone.actor().mean(states))
    assert torch.equal(policy.log_std, clone.log_std)


def test_training_stops_when_nothing_gets_better(tmp_path):
    rng = np.random.default_rng(0)
    noise = (
        Episode(
            id=str(i), task="t", states=rng.normal(size=(20, 3)).astype(np.float32), outcome=True,
            actions=np.concatenate([np.zeros((1, 2)), rng.normal(size=(19, 2))]).astype(np.float32),
        )
        for i in range(10)
    )  # fmt: skip
    written(tmp_path / "data", noise)
    _, metrics = train_bc(study(tmp_path, epochs=500, learning_rate=1e-2, val_split=0.3))
    assert metrics["epochs"] == metrics["best_epoch"] + 20


@pytest.mark.parametrize(
    ("episodes", "text"),
    [
        (lambda: linear_episodes(4, frame_every=5), "keeps every 5th row.*frame_every=1"),
        (lambda: linear_episodes(1), "1 episodes are too few"),
        (lambda: (Episode(id=e.id, task="t", states=e.states, outcome=True) for e in linear_episodes(4)), "no actions"),
        (
            lambda: (Episode(id=e.id, task="t", actions=e.actions, outcome=True) for e in linear_episodes(4)),
            "no states",
        ),
    ],
)
def test_data_that_cannot_be_cloned_is_refused(tmp_path, episodes, text):
    written(tmp_path / "data", episodes())
    with pytest.raises(DataError, match=text):
        train_bc(study(tmp_path))
    assert not (tmp_path / "policy").exists()


def chunk(number, states=3, rows=4, **given):
    """An episode of one action, which is the row."""
    actions = np.arange(rows, dtype=np.float32)[:, None]
    return Episode(
        id=str(number), task="t", states=np.full((rows, states), number, np.float32), actions=actions, **given
    )


def test_chunks_of_states_go_on_to_the_end_of_the_episode():
    chunks = gather_chunks([chunk(0), chunk(1, rows=1), chunk(2)], ObservationSpec(states=True), chunk=2)
    assert chunks.observations["states"][:, 0].tolist() == [0, 0, 0, 2, 2, 2], "one row has no action after it"
    assert chunks.actions[:3, :, 0].tolist() == [[1, 2], [2, 3], [3, 3]]
    assert chunks.mask[:3].tolist() == [[True, True], [True, True], [True, False]]


def test_episodes_that_do_not_belong_together_are_refused():
    broken = chunk(1)
    broken.states[1] = np.nan
    weights = {"0": np.ones(4, np.float32), "1": np.full(4, np.nan, np.float32)}
    for episodes, given, words in (
        ([chunk(0), chunk(1, states=2)], None, "different sizes: clone one task at a time"),
        ([chunk(0), broken], None, "episode '1' has states or actions that are not finite"),
        ([chunk(0), chunk(1)], weights, "fewer than 2 episodes have moments with a weight"),
    ):
        with pytest.raises(DataError, match=words):
            gather_pairs(episodes, pixels=False, weights=given)


PARTS = (ObservedColumn("place", "vector", (2,)), ObservedColumn("speed", "vector", (1,)))
PICTURE, ALLOWED = ObservedColumn("front", "image", (8, 8, 3)), ObservedColumn("allowed", "mask", (4,))


def test_episodes_with_keys_are_cloned_as_their_environment_showed_them(tmp_path):
    keys = {"state_keys": [["place", 2], ["speed", 1]]}
    with EpisodeWriter(tmp_path / "data", camera="front") as writer:
        for number in range(2):
            frames = np.full((4, 8, 8, 3), 100 * number, np.uint8)
            shown = chunk(number, frames=frames, outcome=True, meta=keys)
            shown.states[:, 2] = np.arange(4)
            writer.add(shown)
    config = study(tmp_path)
    pairs = gather_rows(config, config.bc, [*PARTS, PICTURE, ALLOWED])
    rows = pairs.observations
    assert rows.dtype.names == ("place", "speed", "front", "allowed")
    assert rows["place"].tolist() == [[0, 0]] * 3 + [[1, 1]] * 3
    assert rows["speed"][:, 0].tolist() == [0, 1, 2] * 2
    assert np.abs(rows["front"].mean(axis=(1, 2, 3)) - [0, 0, 0, 100, 100, 100]).max() < 3
    assert rows["allowed"].all()
    assert rows["allowed"].shape == (6, 4)
    assert pairs.actions[:, 0].tolist() == [1, 2, 3] * 2
    with pytest.raises(DataError, match=r"episode '0' has states of .*'speed', 1.*, and the environment shows"):
        gather_rows(config, config.bc, [PARTS[0], PICTURE])
    with refuses("policy.keys", "those of grey have not"):
        gather_rows(config, config.bc, [*PARTS, ObservedColumn("grey", "image", (8, 8, 1))])


def test_without_the_environment_actions_are_cloned_as_they_are(tmp_path, capfd):
    written(tmp_path / "data", linear_episodes(4, 6))
    env = {"type": "gymnasium", "task": "guerdon-tests/NotHere-v0"}
    folder, _ = train_bc(study(tmp_path, env=env, epochs=1))
    assert "actions are cloned as they are, since their bounds are not known" in capfd.readouterr().err
    assert load_policy(folder).card["observation_shape"] == [3]
    alone = Study(bc=study(tmp_path, epochs=1, save_dir=str(tmp_path / "alone")).bc, policy={"type": "mlp"})
    train_bc(alone)
    assert "bounds" not in capfd.readouterr().err, "no environment was asked for"


def test_a_dry_run_reads_the_actions_of_pictures_and_decodes_one_episode(tmp_path):
    frames = np.zeros((4, 16, 16, 3), np.uint8)
    with EpisodeWriter(tmp_path / "data", camera="corner") as writer:
        writer.add(chunk(0, frames=frames, outcome=True))
    config = study(tmp_path, policy={"type": "cnn", "channels": [8]}, env={"frame_size": 16})
    with pytest.raises(DataError, match="1 episodes are too few"):
        check_bc(config)
    with EpisodeWriter(tmp_path / "more", camera="corner") as writer:
        for number in range(2):
            writer.add(chunk(number, frames=frames, outcome=True))
    check_bc(study(tmp_path, policy={"type": "cnn"}, env={"frame_size": 16}, data_path=str(tmp_path / "more")))
    with refuses("env.frame_size"):
        check_bc(study(tmp_path, policy={"type": "cnn"}, env={"frame_size": 24}))


def test_a_configuration_that_cannot_be_meant_is_refused(tmp_path):
    with refuses("bc"):
        train_bc(Study())
    with refuses("policy.checkpoint"):
        train_bc(study(tmp_path, policy={"checkpoint": "somewhere"}))


def test_frames_are_cloned_by_a_cnn(tmp_path):
    """A square shows by its place which way to go."""
    rng = np.random.default_rng(0)
    episodes = []
    for number in range(8):
        where = rng.integers(0, 13, 20)
        frames = np.zeros((20, 16, 16, 3), np.uint8)
        for t, x in enumerate(where):
            frames[t, 6:10, x : x + 4] = 255
        actions = np.zeros((20, 1), np.float32)
        actions[1:, 0] = where[:-1] / 6 - 1
        episodes.append(Episode(id=str(number), task="go", frames=frames, actions=actions, outcome=True))
    with EpisodeWriter(tmp_path / "data", camera="corner") as writer:
        for episode in episodes:
            writer.add(episode)
    policy = {"type": "cnn", "channels": [8], "hidden": [32]}
    folder, metrics = train_bc(study(tmp_path, policy=policy, env={"frame_size": 16}, epochs=40))
    assert metrics["val_mae"] < 0.2, "guessing the mean gives 0.5"
    assert load_policy(folder).card["observation_shape"] == [16, 16, 3]
    with pytest.raises(ConfigError, match=r"env\.frame_size") as refused:
        train_bc(study(tmp_path, policy=policy, env={"frame_size": 24}, save_dir=str(tmp_path / "other")))
    assert refused.value.key == "env.frame_size"


def test_a_few_expert_episodes_are_enough_for_metaworld(tmp_path):
    """Five expert episodes give a policy that closes the window from unseen starts."""
    env = {"task": "window-close", "num_envs": 5, "max_episode_steps": 110}
    world = build_world(Study(env=env).env, seed=0)
    expert, rng = ScriptedExpert("window-close"), np.random.default_rng(0)
    observations = world.reset(capture=np.zeros(5, np.bool_)).observations
    states, actions = [observations], [np.zeros((5, 4), np.float32)]
    for _ in range(100):
        actions.append(expert.act(observations, rng))
        observations = world.step(actions[-1]).observations
        states.append(observations)
    world.close()
    written(
        tmp_path / "data",
        (
            Episode(id=str(i), task="t", states=np.stack(states)[:, i], actions=np.stack(actions)[:, i], outcome=True)
            for i in range(5)
        ),
    )
    folder, _ = train_bc(study(tmp_path, env=env, policy={"hidden": [128, 128]}, epochs=80, batch_size=64))
    eval_world = build_world(Study(env=env).env, seed=77)
    result = evaluate(eval_world, load_policy(folder).actor().mean, episodes=10)
    eval_world.close()
    assert result["success"] > 0.5


def test_collected_episodes_can_be_cloned(tmp_path):
    """From the command line's own sections, with the default of every fifth row refused."""
    env = {"type": "gymnasium", "task": ID, "num_envs": 2, "max_episode_steps": 8, "frame_size": 8}
    for every in (5, 1):
        data = tmp_path / f"every{every}"
        config = Study(
            env=env,
            collect={"save_dir": str(data), "episodes": 4, "frame_every": every, "mixture": [{"type": "random"}]},
            bc={"data_path": str(data), "save_dir": str(tmp_path / "p"), "epochs": 2, "only_success": False},
        )
        collect(config)
        if every == 5:
            with pytest.raises(DataError, match=r"collect\.frame_every=1"):
                train_bc(config)
        else:
            assert train_bc(config)[1]["pairs"] == 32


def test_a_clone_that_diverges_is_not_written(tmp_path):
    written(tmp_path / "data", linear_episodes())
    with pytest.raises(NonFiniteError, match=r"lower bc\.learning_rate") as caught:
        train_bc(study(tmp_path, epochs=2, learning_rate=1e30))
    assert caught.value.exit_code == 3
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_learning_rate_falls_to_zero_over_the_epochs(tmp_path, monkeypatch, schedule):
    written(tmp_path / "data", linear_episodes(5, 9))
    rates, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: rates.append(self.param_groups[0]["lr"]) or step(self))
    train_bc(study(tmp_path, epochs=2, batch_size=8, learning_rate=1e-2, lr_scheduler=schedule))
    share = np.arange(len(rates)) / len(rates)
    expected = {"linear": 1 - share, "cosine": (1 + np.cos(np.pi * share)) / 2}[schedule]
    assert rates == pytest.approx(list(1e-2 * expected))


def test_a_policy_with_a_loss_of_its_own_is_held_out_by_it(tmp_path):
    """The held-out loss is the mean imitation loss of the moments of the held-out episodes."""
    env = {"type": "gymnasium", "task": ID, "num_envs": 2, "max_episode_steps": 8, "frame_size": 16}
    data = {"save_dir": str(tmp_path / "data"), "episodes": 4, "frame_every": 1, "mixture": [{"type": "random"}]}
    bc = {
        "data_path": str(tmp_path / "data"), "save_dir": str(tmp_path / "p"), "epochs": 3, "only_success": False,
        "val_split": 0.5,
    }  # fmt: skip
    tiny = {"image_size": 16, "hidden_size": 16, "layers": 1, "heads": 2, "n_action_bins": 8}
    policy = {"type": "vla", "tiny": tiny, "num_action_chunks": 3, "center_crop": False}
    config = Study(env=env, collect=data, bc=bc, policy=policy)
    collect(config)
    folder, metrics = train_bc(config)
    clone = load_policy(folder)
    chunks = gather_chunks(read_episodes(data["save_dir"]), clone.observation_spec, chunk=3)
    _, held = split_pairs(chunks, 0.5, 0)
    with torch.no_grad():
        losses = clone.imitation_loss(held.observations, held.actions, held.mask)
    assert metrics["val_loss"] == pytest.approx(float(losses.mean()), rel=1e-5)


def test_policies_that_see_pictures_are_recorded_with_states(tmp_path):
    """So that their episodes stand next to those of experts, and can be cloned with proprioception."""
    env = {"type": "gymnasium", "task": ID, "num_envs": 2, "max_episode_steps": 8, "frame_size": 16}
    tiny = {"image_size": 16, "hidden_size": 16, "layers": 1, "heads": 2}
    settings = Study(env=env, policy={"type": "vla", "tiny": tiny, "num_action_chunks": 3})
    world = build_world(settings.env, seed=0)
    policy = build_policy(settings.control_policy, world.observation_shape, world.action_space, sources=(), seed=0)
    world.close()
    save_policy(policy, tmp_path / "p")
    mixture = [{"type": "checkpoint", "checkpoint": str(tmp_path / "p")}, {"type": "random"}]
    data = {"save_dir": str(tmp_path / "data"), "episodes": 4, "frame_every": 1, "mixture": mixture}
    collect(Study(env=env, collect=data))
    episodes = list(read_episodes(data["save_dir"]))
    assert {episode.meta["policy"] for episode in episodes} == {"checkpoint", "random"}
    for episode in episodes:
        assert np.array_equal(episode.states[:, 1], np.arange(len(episode))), "the corridor's age"
        assert (episode.frames[:, 0, 0, 1] == episode.states[:, 1]).all(), "and its picture"
