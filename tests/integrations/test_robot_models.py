"""LeRobot and RLinf: the same 200 episodes give the same values and failures; interfaces, refusals, files."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import recorded_robots
import robot_episodes as robot
import torch

from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import ConfigError, DataError, RewardFailure
from guerdon.integrations.frame_batches import FrameRewards, uint8_frames
from guerdon.integrations.lerobot import LeRobotReward, SuccessClassifier, write_progress_file
from guerdon.train.rabc import progress_changes, rabc_weights, read_progress, spread
from guerdon.types import Episode
from tables import refuses

INJECTED = {"model_type": "robot_episodes:Injected"}
EXAMPLES = Path(__file__).parents[2] / "examples"
KEY = "observation.images.front"


def batches():
    """The rows of 200 episodes, an episode a batch."""
    for episode in range(robot.EPISODES):
        yield episode, robot.recorded(episode).frames


def lerobot_06(monkeypatch):
    ours = recorded_robots.install(
        monkeypatch, recorded_robots.lerobot_modules(), "guerdon.integrations.lerobot_rewards"
    )
    model = recorded_robots.lerobot_factory(ours.GuerdonConfig(model=INJECTED, image_key=KEY, device="cpu"))
    assert (model.config.type, model.name, model.is_trainable) == ("guerdon", "guerdon", False)

    def score(frames):
        pictures = torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255
        return model.compute_reward({KEY: pictures, "task": ["play"] * len(frames)})

    return score


def rlinf(version):
    def host(monkeypatch):
        modules = recorded_robots.rlinf_modules(version)
        ours = recorded_robots.install(monkeypatch, modules, "guerdon.integrations.rlinf")
        ours.register()
        registry = modules["rlinf.models.embodiment.reward"]["reward_model_registry"]
        cfg = recorded_robots.Config(model_type="guerdon", guerdon=recorded_robots.Config(INJECTED))

        def score(frames):
            seen = {"main_images": torch.from_numpy(frames), "task_descriptions": ["play"] * len(frames)}
            found = recorded_robots.rlinf_worker(registry, cfg, seen, len(frames))
            assert found.shape == (len(frames), 1)
            return found[:, 0]

        return score

    return host


HOSTS = {
    "LeRobot 0.6 (recorded)": lerobot_06,
    "RLinf 0.3.0 (recorded)": rlinf("0.3.0"),
    "RLinf after 0.3.0 (recorded)": rlinf("head"),
}


@pytest.mark.parametrize("host", HOSTS)
def test_values_and_masks_are_the_same(host, monkeypatch):
    score = HOSTS[host](monkeypatch)
    failed = {}
    for episode, frames in batches():
        try:
            values = score(frames)
        except RewardFailure as failure:
            values = failure.result
            failed |= {(episode, row): why.split(":")[0] for row, why in failure.reasons.items()}
        assert values.dtype == torch.float32
        expected = np.float32(robot.VALUES[episode, : len(frames)] / 100)
        missing = [(episode, row) in robot.FAILURES for row in range(len(frames))]
        np.testing.assert_array_equal(values.numpy(), np.where(missing, np.float32(np.nan), expected))
    assert failed == robot.FAILURES


def written(root):
    """The 200 episodes as a data set."""
    with EpisodeWriter(root, camera="front") as writer:
        for episode in range(robot.EPISODES):
            writer.add(robot.recorded(episode))
    return root


@pytest.mark.slow
def test_progress_beside_a_data_set_has_the_same_values_and_masks(tmp_path):
    root = written(tmp_path / "data")
    path = write_progress_file(root, INJECTED)
    assert path == root / "Injected_progress.parquet"
    found = read_progress(path, root)
    reasons = {
        (int(name), row): why for name, whys in found.reasons.items() for row, why in enumerate(whys) if why is not None
    }
    assert reasons == robot.FAILURES
    for name, values in found.values.items():
        expected = np.float32(robot.VALUES[int(name), : len(values)] / 100)
        known = np.isfinite(values)
        assert (~known).sum() == sum(episode == int(name) for episode, _ in robot.FAILURES)
        np.testing.assert_array_equal(values[known], expected[known])
    before = path.stat().st_mtime_ns
    assert write_progress_file(root, INJECTED) == path
    assert path.stat().st_mtime_ns == before, "neither data nor model changed"


def test_lerobots_own_reader_gives_the_weights_that_guerdon_gives(tmp_path):
    rabc = pytest.importorskip("lerobot.utils.rabc", reason="LeRobot 0.4 is not installed")
    root = written(tmp_path / "data")
    path = write_progress_file(root, INJECTED)
    theirs = rabc.RABCWeights(path, chunk_size=2, device=torch.device("cpu"))
    table = pq.read_table(path)
    weights = theirs._compute_weights(np.array([theirs._compute_delta(i) for i in table["index"].to_pylist()]))
    found = read_progress(path, root)
    changes = np.concatenate([progress_changes(values, 2) for values in found.values.values()])
    mean, std = spread(changes, 1e-6)
    ours = rabc_weights(changes, mean=mean, std=std, kappa=0.01, epsilon=1e-6)
    missing = np.isnan(changes)
    assert missing.sum() >= 20
    np.testing.assert_allclose(weights[~missing], ours[~missing], rtol=1e-5)
    assert (np.asarray(weights)[missing] == 1.0).all(), "LeRobot's fallback weight"


def test_a_classifier_for_lerobots_environments():
    step = pytest.importorskip(
        "lerobot.processor.hil_processor", reason="LeRobot 0.4 is not installed", exc_type=ImportError
    ).RewardClassifierProcessorStep(success_threshold=0.5, success_reward=2.0)
    step.reward_classifier = SuccessClassifier(robot.Injected(), image_key=KEY)
    key = __import__("lerobot.processor", fromlist=["TransitionKey"]).TransitionKey
    for episode, frames in batches():
        if episode == 40:
            break
        for row in range(len(frames)):
            picture = torch.from_numpy(frames[row : row + 1]).permute(0, 3, 1, 2).float() / 255
            transition = {key.OBSERVATION: {KEY: picture}, key.REWARD: 0.0, key.DONE: False, key.INFO: {}}
            if (episode, row) in robot.FAILURES:
                with pytest.raises(RewardFailure):
                    step(transition)
                continue
            success = np.float32(robot.VALUES[episode, row] / 100) > 0.5
            after = step(transition)
            assert after[key.REWARD] == (2.0 if success else 0.0)
            assert after[key.DONE] == success


def test_a_classifier_says_success_above_the_threshold():
    classifier = SuccessClassifier(robot.Injected({}), image_key=KEY)
    frames = robot.recorded(0).frames
    said = classifier.predict_reward({KEY: torch.from_numpy(frames)}, threshold=0.5)
    assert said.tolist() == (np.float32(robot.VALUES[0, : len(frames)] / 100) > 0.5).astype(float).tolist()
    with pytest.raises(ConfigError, match="set image_key") as refused:
        classifier.predict_reward({"other": torch.from_numpy(frames)})
    assert refused.value.key == "image_key"


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (np.zeros((2, 5, 5, 2), np.uint8), "shape"),
        (np.full((2, 3, 4, 4), 2.0), "before they are normalised"),
        (np.zeros((2, 3, 4, 4), np.int64), "int64"),
    ],
)
def test_pictures_that_are_none_are_refused(pictures, message):
    with pytest.raises(DataError, match=message):
        uint8_frames(pictures)


def test_a_batch_has_a_task_for_each_picture():
    with pytest.raises(DataError, match="1 tasks for 2 pictures"):
        FrameRewards(robot.Injected({}))(np.zeros((2, 5, 5, 3), np.uint8), ["play"])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64, torch.float32])
def test_pictures_of_any_floats_are_the_same_pictures(kind):
    frames = np.random.default_rng(0).integers(0, 256, (2, 6, 5, 3), dtype=np.uint8)
    floats = (torch.from_numpy(frames).double() / 255).to(kind)
    for pictures in (floats, floats.permute(0, 3, 1, 2), floats.clone().requires_grad_(True)):
        np.testing.assert_array_equal(uint8_frames(pictures), frames)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_what_is_a_rounding_outside_is_clipped_and_no_more(kind):
    white = torch.ones(1, 4, 4, 3, dtype=kind)
    for factor in (1 + 1e-7, 1 + 9e-4):
        assert (uint8_frames(white * factor) == 255).all()
        assert (uint8_frames(white - factor) == 0).all()
    for pictures in (white * 1.002, white * -0.002, white.bfloat16() * 1.01, white * torch.nan):
        with pytest.raises(DataError, match="before they are normalised"):
            uint8_frames(pictures)


def test_models_that_cannot_judge_single_pictures_are_refused(monkeypatch):
    class Clip(robot.Injected):
        info = robot.RewardInfo(name="clip", range=(0, 1), frames_needed=8)

    with pytest.raises(ConfigError, match="8 frames at a time"):
        FrameRewards(Clip())
    ours = recorded_robots.install(monkeypatch, recorded_robots.rlinf_modules("0.3.0"), "guerdon.integrations.rlinf")
    with pytest.raises(ConfigError, match=r"reward\.model\.guerdon") as refused:
        ours.RLinfRewardModel(recorded_robots.Config())
    assert refused.value.key == "reward.model.guerdon"
    model = ours.RLinfRewardModel(recorded_robots.Config(guerdon={"model_type": "constant", "value": 0.5}))
    with pytest.raises(ConfigError, match="guerdon train"):
        model(torch.zeros(1))
    assert model.compute_reward({"main_images": np.zeros((2, 4, 4, 3), np.uint8)}).tolist() == [[0.5], [0.5]]
    with refuses("image_key"):
        model.compute_reward({"states": 1})


def test_the_example_of_lerobot_runs(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / "lerobot_progress.py"), run_name="__main__")
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[2] for row in rows] == ["0.10", "0.39", "0.69", "0.98", "0.10", "nan", "0.10", "0.10"]
    assert rows[5].endswith("black")


def test_the_example_of_rlinf_runs(capsys, monkeypatch):
    recorded_robots.install(monkeypatch, recorded_robots.rlinf_modules("0.3.0"), "guerdon.integrations.rlinf")
    runpy.run_path(str(EXAMPLES / "rlinf_reward.py"), run_name="__main__")
    assert capsys.readouterr().out == "rewards [0.25, 0.25, 0.25, 0.25]\n"


class Predicts:
    """LeRobot's proposal (huggingface/lerobot#4553): progress of each frame, and which of them are valid."""

    name = "predicts"

    def __init__(self, invalid=(), rows=None):
        self.invalid, self.rows, self.seen = invalid, rows, []

    def compute_reward(self, batch):
        raise AssertionError("predict_progress comes first")

    def predict_progress(self, batch):
        self.seen.append(batch)
        brightness = batch[KEY].mean((2, 3, 4))[:, : self.rows]
        valid = torch.ones_like(brightness, dtype=torch.bool)
        valid[:, list(self.invalid)] = False
        return SimpleNamespace(progress=brightness, success_probability=None, valid=valid)


class Computes:
    """LeRobot 0.6: one value of a batch."""

    def __init__(self, value=0.25):
        self.value = value

    def compute_reward(self, batch):
        if self.value is None:
            raise RuntimeError("no such picture")
        return torch.tensor([self.value])


def bright(rows=4, **given):
    frames = np.zeros((rows, 6, 8, 3), np.uint8) + (51 * np.arange(rows, dtype=np.uint8))[:, None, None, None]
    return Episode(
        **{"id": "0", "task": "shine", "frames": frames, "states": np.eye(rows, 3, dtype=np.float32), **given}
    )


def test_predict_progress_of_lerobot_gives_a_value_for_each_row():
    told = Predicts()
    model = LeRobotReward(told, image_key=KEY, states=True)
    assert (model.info.name, model.info.granularity, model.info.progress) == ("predicts", "step", True)
    score = model.score([bright()])[0]
    np.testing.assert_allclose(score.steps, [0, 0.2, 0.4, 0.6], atol=1e-6)
    assert score.total == pytest.approx(0.6)
    (batch,) = told.seen
    assert (batch[KEY].shape, batch["observation.state"].shape) == ((1, 4, 3, 6, 8), (1, 4, 3))
    assert (batch["task"], batch["episode_index"]) == (["shine"], 0)


def test_the_preprocessor_of_lerobot_comes_before():
    model = LeRobotReward(Predicts(), lambda batch: {KEY: batch[KEY] / 2}, image_key=KEY)
    np.testing.assert_allclose(model.score([bright()])[0].steps, [0, 0.1, 0.2, 0.3], atol=1e-6)


@pytest.mark.parametrize(
    ("told", "given", "reason"),
    [
        (Predicts(invalid=[2]), {}, "invalid"),
        (Predicts(rows=3), {}, "wrong_length"),
        (Predicts(), {"frames": None}, "no_frames"),
        (Predicts(), {"states": None}, "no_states"),
        (Computes(float("nan")), {}, "non_finite"),
        (Computes(None), {}, "raised"),
    ],
)
def test_what_lerobot_does_not_measure_is_a_failure(told, given, reason):
    bad = LeRobotReward(told, image_key=KEY, states=True).score([bright(**given)])[0]
    assert (bad.steps, bad.total, bad.failure.reason) == (None, None, reason)


class Classifies:
    """LeRobot's classifier of pictures: a value for each of a batch, (B, 3, H, W) of each camera."""

    name = "reward_classifier"

    def __init__(self, *cameras):
        self.config, self.batches = SimpleNamespace(input_features=dict.fromkeys([*cameras, "observation.state"])), []

    def compute_reward(self, batch):
        pictures = [batch[key] for key in self.config.input_features if key.startswith("observation.image")]
        assert [one.ndim for one in pictures] == [4]
        self.batches.append(len(pictures[0]))
        return (pictures[0].mean((1, 2, 3)) > 0.3).float()


def test_the_classifier_of_lerobot_judges_each_picture():
    model = LeRobotReward(told := Classifies(KEY), lambda batch: batch | {KEY: batch[KEY] * 1}, image_key=KEY)
    info = model.info
    assert (info.granularity, info.causal, info.frames_needed, info.success_threshold) == ("step", True, 1, 0.5)
    short, long = model.score([bright(), Episode(id="1", task="x", frames=np.full((70, 6, 8, 3), 99, np.uint8))])
    assert short.steps.tolist() == [0, 0, 1, 1]
    assert long.steps.tolist() == [1] * 70
    assert told.batches == [4, 64, 6]
    with pytest.raises(ConfigError, match=r"looks at observation\.images\.a, observation\.images\.b") as refused:
        LeRobotReward(Classifies("observation.images.a", "observation.images.b"), image_key="observation.images.a")
    assert refused.value.key == "image_key"


def test_compute_reward_of_lerobot_gives_one_value():
    model = LeRobotReward(Computes(), image_key=KEY)
    assert (model.info.granularity, model.info.progress) == ("total", False)
    assert model.score([bright(), bright(2)])[1].total == 0.25
    with pytest.raises(ConfigError, match="neither predict_progress nor compute_reward"):
        LeRobotReward(object(), image_key=KEY)
