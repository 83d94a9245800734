"""Reward-aligned behaviour cloning: weights by hand, progress scored once, failures that stay failures."""

import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import ConfigError, DataError, TooManyFailuresError
from guerdon.policies.robots.control import load_policy
from guerdon.settings.study import Study
from guerdon.train import rabc
from guerdon.train.bc import gather_pairs, residual_std, train_bc, weighted_loss
from guerdon.train.rabc import model_hash, progress_changes, rabc_weights, read_progress, spread
from guerdon.types import Episode, Failure, RewardInfo, Score
from tables import first, refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")

torch.set_num_threads(1)
TINY = {"image_size": 16, "hidden_size": 16, "layers": 1, "heads": 2, "words": 64}
scored = []  # rows of the episodes that a model of this file scored


class Position:
    """A formula: progress is the first number of the state; a state of 99 cannot be measured."""

    info = RewardInfo(name="position", range=(0.0, 1.0), modality="state", frames_needed=0)

    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def score(self, episodes):
        scored.extend(len(episode) for episode in episodes)
        bad = [(episode.states[:, 0] == 99).any() for episode in episodes]
        return [
            Score(failure=Failure("broken")) if broken else Score.from_values(self.scale * episode.states[:, 0])
            for episode, broken in zip(episodes, bad, strict=True)
        ]


class Brightness:
    """Progress is how bright a frame is; black frames cannot be measured."""

    info = RewardInfo(name="brightness", range=(0.0, 1.0))

    def score(self, episodes):
        scored.extend(len(episode) for episode in episodes)
        means = [float(episode.frames.mean() / 255) for episode in episodes]
        return [Score(failure=Failure("black")) if m == 0 else Score(steps=np.float32([m])) for m in means]


class Whole:
    info = RewardInfo(name="whole", range=(0.0, 1.0), granularity="total", frames_needed=8)

    def score(self, episodes):
        return [Score(total=0.5) for _ in episodes]


def demonstration(name, positions, *, action=1.0, outcome=True, **columns):
    """States whose first number is a position; every action is `action`."""
    states = np.stack([positions, np.arange(len(positions))], axis=1).astype(np.float32)
    actions = np.full((len(positions), 1), action, np.float32)
    actions[0] = 0
    return Episode(id=name, task="go", states=states, actions=actions, outcome=outcome, **columns)


def written(folder, episodes):
    with EpisodeWriter(folder, camera="corner") as writer:
        for episode in episodes:
            writer.add(episode)
    return folder


def weighting(**keys):
    given_model = {"model": {"model_type": "test_rabc:Position", "modality": "state"}} if "model" not in keys else {}
    reads = keys.keys() & {"progress_path", "recorded_reward"}
    return {**({} if reads else given_model), "chunk_size": 2, **keys}


def study(tmp_path, *, policy=None, **keys):
    bc = {
        "data_path": str(tmp_path / "data"), "save_dir": str(tmp_path / "policy"), "epochs": 3, "only_success": False,
        "sample_weighting": weighting(**keys),
    }  # fmt: skip
    return Study(bc=bc, policy=policy or {"type": "mlp", "hidden": [8]}, env={"frame_size": 8})


def sample_weights(given, *, chunk):
    return rabc.sample_weights(given.bc, chunk=chunk, camera=given.env.camera_name)


MIXED = [demonstration("up", [0, 0.5, 1, 1, 1]), demonstration("down", [1, 0.5, 0, 0, 0], outcome=False)]


def test_changes_look_a_chunk_ahead_and_end_with_the_episode():
    progress = np.float32([0, 0.25, 0.5, 1.0])
    assert progress_changes(progress, 2).tolist() == [0.5, 0.75, 0.5, 0.0]
    assert progress_changes(progress, 50).tolist() == [1.0, 0.75, 0.5, 0.0]
    missing = progress_changes(np.float32([0, np.nan, 0.5, 1.0]), 1)
    assert np.array_equal(np.isnan(missing), [True, True, False, False])
    assert missing[2:].tolist() == [0.5, 0.0]


def test_weights_by_hand():
    """mean 0.02, std 0.01: the soft weight of r is r / 0.04."""
    changes = np.array([-0.5, -1e-9, 0.0, 0.01, 0.03, 0.0301, 1.0, np.nan])
    weights = rabc_weights(changes, mean=0.02, std=0.01, kappa=0.03, epsilon=1e-12)
    assert weights[:-1] == pytest.approx([0, 0, 0, 0.25, 0.75, 1, 1])
    assert np.isnan(weights[-1])
    assert spread(np.array([-0.3, np.nan, 0.1]), 1e-6) == pytest.approx((0.0, 0.2)), "a mean below 0 counts as 0"
    assert spread(np.array([0.2, 0.2]), 1e-6) == pytest.approx((0.2, 1e-6))
    with pytest.raises(DataError, match="none has a weight"):
        spread(np.array([np.nan]), 1e-6)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30), st.floats(0, 0.5))
def test_weights_grow_with_progress(changes, kappa):
    ordered = np.sort(np.array(changes))
    mean, std = spread(ordered, 1e-6)
    weights = rabc_weights(ordered, mean=mean, std=std, kappa=kappa, epsilon=1e-6)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (np.diff(weights) >= 0).all()
    assert (weights[ordered < 0] == 0).all()
    assert (weights[ordered > kappa] == 1).all()


def test_a_batch_counts_by_its_weights():
    losses = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    loss = weighted_loss(losses, np.float32([1.0, 0.0, 0.5]), 0.0)
    assert loss.item() == pytest.approx((1 + 0.5 * 4) / 1.5)
    loss.backward()
    assert losses.grad.tolist() == pytest.approx([2 / 3, 0, 1 / 3])
    plain = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    assert weighted_loss(plain, None, 0.0).item() == 4.0
    assert weighted_loss(plain, np.float32([0, 0.1]), 0.0).item() == pytest.approx(6.0)
    assert residual_std(np.array([[3.0], [4.0]]), np.float32([1, 0])) == pytest.approx([3.0])


def test_moments_get_the_weight_of_their_row_and_missing_ones_are_left_out():
    weights = {"up": np.float32([1, 0.5, np.nan, 0, 9]), "down": np.float32([0, 0, 0, 0, 9])}
    pairs = gather_pairs(MIXED, pixels=False, weights=weights)
    assert pairs.weights.tolist() == [1, 0.5, 0, 0, 0, 0, 0]
    assert pairs.observations[:3, 0].tolist() == [0, 0.5, 1]
    assert pairs.take(pairs.episode == 0).weights.tolist() == [1, 0.5, 0]


def test_progress_is_scored_once_and_again_when_model_or_data_change(tmp_path, capsys):
    root = written(tmp_path / "data", MIXED)
    scored.clear()
    first = sample_weights(study(tmp_path), chunk=1)
    assert scored == [5, 5]
    # changes of both episodes: 1, .5, 0, 0, 0 and the same below 0
    mean, std = 0.0, np.sqrt((2 * 1.25) / 10)
    soft = (0 - (mean - 2 * std)) / (4 * std + 1e-6)
    assert first.rows["up"] == pytest.approx([1, 1, soft, soft, soft])
    assert first.rows["down"] == pytest.approx([0, 0, soft, soft, soft])
    assert first.metrics["change_std"] == pytest.approx(std)
    assert first.metrics["weight_zero"] == 2 / 8
    path = root / "Position_progress.parquet"
    table = pq.read_table(path)
    assert table.column_names == ["index", "episode_index", "frame_index", "progress_sparse", "failure"]
    assert table["index"].to_pylist() == list(range(10))
    assert table["frame_index"].to_pylist() == [0, 1, 2, 3, 4] * 2
    assert table["progress_sparse"].to_pylist() == [0, 0.5, 1, 1, 1, 1, 0.5, 0, 0, 0]
    assert table.schema.metadata[b"reward_model_path"] == b"test_rabc:Position"
    again = sample_weights(study(tmp_path), chunk=1)
    assert scored == [5, 5], "kept beside the data"
    assert all(np.array_equal(again.rows[name], first.rows[name]) for name in first.rows)
    other = {"model_type": "test_rabc:Position", "modality": "state", "params": {"scale": 0.5}}
    sample_weights(study(tmp_path, model=other), chunk=1)
    assert scored == [5] * 4
    assert "the model of" in capsys.readouterr().err
    with EpisodeWriter(root, camera="corner") as writer:
        writer.add(demonstration("more", [0, 1]))
    found = sample_weights(study(tmp_path, model=other), chunk=1)
    assert scored[4:] == [5, 5, 2]
    assert "the data of" in capsys.readouterr().err
    assert set(found.rows) == {"up", "down", "more"}
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read; remove it"):
        sample_weights(study(tmp_path, model=other), chunk=1)


def test_a_checkpoint_with_other_weights_is_another_model(tmp_path):
    (tmp_path / "rm" / "model").mkdir(parents=True)
    weights = tmp_path / "rm" / "model" / "model.safetensors"
    weights.write_bytes(b"one")
    model = study(tmp_path, model={"model_type": "resnet", "checkpoint_path": str(tmp_path / "rm")})
    settings = model.bc.sample_weighting.model
    before = model_hash(settings)
    (tmp_path / "rm" / "evaluation.json").write_text("{}")
    assert model_hash(settings) == before, "an evaluation changes no weights"
    weights.write_bytes(b"two")
    assert model_hash(settings) != before


def test_a_frame_that_fails_is_counted_and_has_no_number(tmp_path, capsys):
    frames = np.full((6, 8, 8, 3), 51, np.uint8) * np.arange(6, dtype=np.uint8)[:, None, None, None]
    frames[0], frames[3] = 20, 0
    episodes = [demonstration(name, np.arange(6), frames=frames) for name in ("a", "b", "c")]
    written(tmp_path / "data", episodes)
    model = {"model_type": "test_rabc:Brightness"}
    scored.clear()
    with pytest.raises(TooManyFailuresError, match=r"3 of 18 rows .* \(black x 3\).*max_failure_rate"):
        sample_weights(study(tmp_path, model=model), chunk=1)
    assert scored == [1] * 18, "frame by frame, so that a failure is of one frame"
    dropped = sample_weights(study(tmp_path, model=model, max_failure_rate=0.2), chunk=1)
    assert "on_failure: drop" in capsys.readouterr().err
    assert np.array_equal(np.isnan(dropped.rows["a"]), [False, True, False, True, False, False])
    assert dropped.metrics["progress_failures"] == 3
    assert dropped.metrics["weights_missing"] == 6
    kept = sample_weights(study(tmp_path, model=model, max_failure_rate=0.2, on_failure="neutral"), chunk=1)
    assert kept.rows["a"][[1, 3]].tolist() == [1, 1]
    with pytest.raises(TooManyFailuresError):
        sample_weights(study(tmp_path, model=model, max_failure_rate=0.2, on_failure="raise"), chunk=1)
    assert scored == [1] * 18
    stored = pq.read_table(tmp_path / "data" / "Brightness_progress.parquet")
    assert np.isnan(stored["progress_sparse"].to_numpy()[3])
    assert stored["failure"].to_pylist()[:6] == [None, None, None, "black", None, None]
    study_ = study(tmp_path, model=model, max_failure_rate=0.2)
    _, metrics = train_bc(study_)
    assert metrics["pairs"] == 9
    assert json.loads((tmp_path / "policy" / "metrics.json").read_text())["progress_failures"] == 3


def lerobot_file(path, root, *, columns=("progress_sparse", "progress_dense"), rows=slice(None)):
    """A file in LeRobot's layout, of two episodes with 5 rows."""
    values = {"progress_sparse": [0, 0.5, 1, 1, 1, 1, 0.5, np.nan, 0, 0], "progress_dense": [0.0] * 9 + [1.0]}
    table = pa.table(
        {
            "index": np.arange(10), "episode_index": np.repeat([0, 1], 5), "frame_index": np.tile(np.arange(5), 2),
            **{name: np.float32(values[name]) for name in columns},
        }
    )  # fmt: skip
    pq.write_table(table.slice(0, 10).take(list(range(10))[rows]), path)


def test_a_file_of_lerobot_is_read_and_one_of_other_data_refused(tmp_path):
    root = written(tmp_path / "data", MIXED)
    with pytest.raises(DataError, match=r"no file of progress at .*sarm_progress\.parquet"):
        sample_weights(study(tmp_path, model=None), chunk=1)
    lerobot_file(root / "sarm_progress.parquet", root)
    found = sample_weights(study(tmp_path, model=None, max_failure_rate=0.1), chunk=1)
    assert found.metrics["progress_failures"] == 1
    assert np.array_equal(np.isnan(found.rows["down"]), [True, False, True, False, False])
    assert found.rows["up"][:2].tolist() == [1, 1]
    dense = sample_weights(study(tmp_path, model=None, head_mode="dense"), chunk=1)
    assert dense.rows["down"].tolist()[2:4] == [1, 1]
    lerobot_file(root / "sarm_progress.parquet", root, columns=("progress_dense",))
    with pytest.raises(DataError, match="no column progress_sparse; it has index") as refused:
        sample_weights(study(tmp_path, model=None), chunk=1)
    assert refused.value.field == "progress_sparse"
    lerobot_file(root / "sarm_progress.parquet", root, rows=slice(1, None))
    with pytest.raises(DataError, match=r"does not fit episode 0 .* made from another data set"):
        sample_weights(study(tmp_path, model=None), chunk=1)
    with pytest.raises(ConfigError, match="written by another program") as refused:
        sample_weights(study(tmp_path, progress_path=str(root / "sarm_progress.parquet"),
                             model={"model_type": "test_rabc:Position", "modality": "state"}), chunk=1)  # fmt: skip
    assert refused.value.key == "progress_path"


def test_a_file_without_its_model_is_used_until_the_data_change(tmp_path):
    root = written(tmp_path / "data", MIXED)
    with_model = sample_weights(study(tmp_path), chunk=1)
    path = str(root / "Position_progress.parquet")
    alone = sample_weights(study(tmp_path, progress_path=path), chunk=1)
    assert all(np.array_equal(alone.rows[name], with_model.rows[name]) for name in alone.rows)
    assert read_progress(root / "Position_progress.parquet", root).made_of is not None
    with EpisodeWriter(root, camera="corner") as writer:
        writer.add(demonstration("more", [0, 1]))
    with pytest.raises(DataError, match="other episodes"):
        sample_weights(study(tmp_path, progress_path=path), chunk=1)


def test_recorded_rewards_are_progress_from_the_first_action_on(tmp_path):
    rewards = np.float32([0, 1, 3, 3, 2])
    written(tmp_path / "data", [demonstration(n, np.zeros(5), rewards=rewards) for n in ("a", "b")])
    found = sample_weights(study(tmp_path, recorded_reward=True, chunk_size=1, kappa=1.0), chunk=1)
    changes = np.array([2, 0, -1, 0])  # of rows 1 to 4: the reset earned nothing that could be compared
    soft = (0 - (changes.mean() - 2 * changes.std())) / (4 * changes.std())
    assert found.rows["a"] == pytest.approx([np.nan, 1, soft, 0, soft], rel=1e-5, nan_ok=True)
    assert found.metrics["progress_failures"] == 0
    written(tmp_path / "bare" / "data", MIXED)
    with pytest.raises(DataError, match="has no rewards"):
        sample_weights(study(tmp_path / "bare", recorded_reward=True), chunk=1)


def test_what_cannot_be_weighted_is_refused(tmp_path):
    written(tmp_path / "data", MIXED)
    with refuses("bc.sample_weighting.chunk_size"):
        sample_weights(study(tmp_path, chunk_size=None), chunk=1)
    assert sample_weights(study(tmp_path, chunk_size=None), chunk=2).rows["up"][0] == 1
    with pytest.raises(ConfigError, match="one value per episode"):
        sample_weights(study(tmp_path, model={"model_type": "test_rabc:Whole"}), chunk=1)
    behind = ["index", "episode_index", "frame_index"]
    table = pa.table({name: np.arange(5) if name != "episode_index" else np.zeros(5, int) for name in behind})
    pq.write_table(table.append_column("progress_sparse", pa.array(np.linspace(0, 1, 5))), tmp_path / "first.parquet")
    with pytest.raises(DataError, match=r"no progress of 1 episodes of .*, such as 'down'"):
        sample_weights(study(tmp_path, progress_path=str(tmp_path / "first.parquet")), chunk=1)
    falling = [demonstration(name, [1, 0.5, 0, -1, -2]) for name in ("a", "b", "c")]
    written(tmp_path / "falling" / "data", falling)
    with pytest.raises(DataError, match="weight 0, since progress never rises"):
        train_bc(study(tmp_path / "falling"))


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"recorded_reward": True, "progress_path": "x"}, "progress_path"),
        ({"model": {"model_type": "dummy"}, "head_mode": "dense"}, "head_mode"),
        ({"model": {"model_type": "text", "checkpoint_path": "x"}}, "model.model_type"),
        (
            {"model": {"model_type": "resnet", "checkpoint_path": "x", "update": "after", "replay_path": "y"}},
            "model.replay_path",
        ),
        ({"model": {"model_type": "remote", "remote": {"fallback": "native"}}}, "model.remote.fallback"),
    ],
)
def test_keys_that_do_nothing_are_refused(keys, key, tmp_path):
    with refuses(key):
        study(tmp_path, **keys)


def opposites(count, length=24):
    """Demonstrations that go on by doing 1, and as many that come back by doing -1."""
    rng = np.random.default_rng(0)
    for number in range(count):
        up = number % 3 == 0
        positions = np.linspace(0, 1, length)[:: 1 if up else -1] + 0.01 * rng.normal(size=length)
        shown = demonstration(str(number), positions, action=1.0 if up else -1.0, outcome=up)
        shown.states[:, 1] = 0
        yield shown


def test_a_clone_follows_what_made_progress(tmp_path):
    """Two of three demonstrations come back, so the plain mean is negative; those that go on have all the weight."""
    written(tmp_path / "data", opposites(12))
    weighted = study(tmp_path)
    longer = weighted.bc.model_copy(update={"epochs": 25, "learning_rate": 0.01})
    weighted = weighted.model_copy(update={"bc": longer})
    plain = weighted.model_copy(update={"bc": longer.model_copy(update={"sample_weighting": None})})
    states = np.stack([np.linspace(0.2, 0.8, 5), np.zeros(5)], axis=1).astype(np.float32)
    folder, metrics = train_bc(weighted)
    assert (load_policy(folder).actor().mean(states) > 0.7).all()
    assert metrics["weight_zero"] > 0.5
    first = (folder / "policy.safetensors").read_bytes()
    shutil.rmtree(folder)
    train_bc(weighted)
    assert (folder / "policy.safetensors").read_bytes() == first
    shutil.rmtree(folder)
    folder, _ = train_bc(plain)
    assert load_policy(folder).actor().mean(states).mean() < 0


@pytest.mark.parametrize("family", first(["flow", "token"], 1))
def test_policies_with_a_loss_of_their_own_are_weighted_too(family, tmp_path):
    """As above, with pictures, chunks and instructions; the chunk is the policy's."""
    episodes = []
    for number in range(6):
        up = number % 2 == 0
        frames = np.zeros((9, 16, 16, 3), np.uint8)
        for t in range(9):
            where = t if up else 8 - t
            frames[t, 6:10, where : where + 8] = 255
        positions = np.arange(9) / 8 if up else 1 - np.arange(9) / 8
        episodes.append(demonstration(str(number), positions, action=1.0 if up else -1.0, frames=frames))
    written(tmp_path / "data", episodes)
    shown = {"type": "gymnasium", "task": "tiny_world:Dot-v1", "num_envs": 2, "frame_size": [16, 16]}
    bc = {
        "data_path": str(tmp_path / "data"), "save_dir": str(tmp_path / "policy"), "epochs": 8, "batch_size": 16,
        "learning_rate": 3e-3, "val_split": 0.5, "only_success": False,
        "sample_weighting": {"model": weighting()["model"]},
    }  # fmt: skip
    policy = {"type": "vla", "tiny": TINY, "family": family, "num_action_chunks": 2, "center_crop": False}
    folder, metrics = train_bc(Study(env=shown, policy=policy, bc=bc))
    clone = load_policy(folder)
    seen = np.zeros(2, dtype=[("task", "<U2"), ("frames", "u1", (16, 16, 3))])
    seen["task"], seen["frames"] = "go", episodes[0].frames[[2, 5]]
    assert clone.act(seen, np.random.default_rng(0), greedy=True).values.mean() > 0.5
    assert metrics["weight_zero"] == 0.5


def test_the_true_success_of_a_clone_is_measured(tmp_path):
    positions = np.float32([0, 0.2, 0.4, 0.6, 0.8])
    written(tmp_path / "data", [demonstration(str(n), positions) for n in range(4)])
    env = {"type": "gymnasium", "task": "tiny_world:Dot-v1", "num_envs": 2, "max_episode_steps": 10}
    bc = {"data_path": str(tmp_path / "data"), "save_dir": str(tmp_path / "p"), "eval_episodes": 4,
          "learning_rate": 0.05}  # fmt: skip
    _, metrics = train_bc(Study(env=env, bc=bc, policy={"type": "mlp", "hidden": [8]}))
    assert metrics["success"] == 1.0, "always to the right"
    assert metrics["eval_episodes"] == 4


@pytest.mark.slow
def test_the_study_runs_from_demonstrations_to_the_comparison(tmp_path, monkeypatch):
    """A small version of `python studies/rabc.py`: a trained progress model, a real simulator, all four clones."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "studies")
    rabc = importlib.import_module("rabc")
    small = [
        "env.num_envs=5", "env.frame_size=32", "train.progress.image_size=32", "train.progress.max_epochs=2",
        "collect.episodes=10", "bc.epochs=20", "bc.eval_episodes=5",
    ]  # fmt: skip
    found = rabc.clones([3], [*small, f"work_dir={tmp_path}"])
    assert set(found) == set(rabc.ARMS)
    for arm, (numbers,) in found.items():
        assert 0 <= numbers["success"] <= 1
        assert numbers["eval_episodes"] == 5
        assert ("weight_zero" in numbers) == (arm in ("learned", "true", "recorded"))
    assert found["successes"][0]["success"] > 0.5, "the scripted experts alone"
    demonstrations = tmp_path / "demonstrations"
    progress = read_progress(demonstrations / "progress_progress.parquet", demonstrations)
    assert len(progress.values) == 10
    assert not progress.reasons
    before = (tmp_path / "clones" / "plain" / "seed3" / "policy.safetensors").stat().st_mtime_ns
    assert rabc.clones([3], [*small, f"work_dir={tmp_path}"]) == found
    assert (tmp_path / "clones" / "plain" / "seed3" / "policy.safetensors").stat().st_mtime_ns == before
