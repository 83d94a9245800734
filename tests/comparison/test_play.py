"""`guerdon play` and `guerdon.load_policy`: what the policy of a run does."""

import shutil

import gymnasium
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import guerdon
from guerdon.cli import app
from guerdon.comparison import play
from guerdon.config.loading import to_yaml
from guerdon.episodes.video import count_frames
from guerdon.errors import CheckpointError, ConfigError
from guerdon.rl.run import run
from text_rl import letter_study

SMALL = (
    "runner.total_steps=32", "runner.eval_every=32", "runner.eval_episodes=1", "env.num_envs=2", "env.frame_size=16",
    "algorithm={rollout_steps: 16, minibatch_size: 16}", "policy={type: mlp, hidden: [4]}",
)  # fmt: skip


class Keyed(gymnasium.Env):
    """Observations with keys, discrete actions, an episode of three steps."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            {"place": gymnasium.spaces.Box(-1, 1, (2, 2), np.float32), "kind": gymnasium.spaces.Discrete(3, start=1)}
        )
        self.action_space = gymnasium.spaces.Discrete(2, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}

    def step(self, action):
        assert action in self.action_space
        self.count += 1
        return self._seen(), 1.0, self.count == 3, False, {"success": self.count == 3}

    def _seen(self):
        return {"place": np.full((2, 2), self.count / 3, np.float32), "kind": 1 + self.count % 3}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of an environment that draws, and of one with keys that does not."""
    folder = tmp_path_factory.mktemp("runs")
    for name, task in (("drawn", "MountainCarContinuous-v0"), ("keyed", f"{__name__}:Keyed")):
        guerdon.run(task, *SMALL, f"work_dir={folder / name}", "env.max_episode_steps=9")
    return folder


def played(*words):
    done = CliRunner().invoke(app, ["play", *map(str, words)])
    return done.exit_code, done.output, done.exception


def test_returns_are_printed_and_repeat_with_the_seed(runs):
    status, said, _ = played(runs / "keyed" / "ppo-seed0", "--episodes", 2)
    assert status == 0
    lines = ["episode 1: return 3 in 3 steps, success", "episode 2: return 3 in 3 steps, success"]
    assert [line for line in said.splitlines() if line in lines] == lines
    assert "2 episodes: mean return 3, success in 2 of 2" in said
    first, again, other = (
        played(runs / "drawn" / "ppo-seed0", "--episodes", 1, "--seed", seed)[1] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert "in 9 steps, no success" in first


def test_episodes_are_recorded_whole_or_not_at_all(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    video = tmp_path / "new" / "car.mp4"
    status, said, _ = played(runs / "drawn" / "ppo-seed0", "--episodes", 2, "--video", video)
    assert status == 0
    assert said.endswith(f"wrote {video}\n")
    assert count_frames(video) == 20  # of two episodes, each with its start
    monkeypatch.setattr("guerdon.collect.stepping.steps", None)
    status, _, error = played(runs / "drawn" / "ppo-seed0", "--video", tmp_path / "broken.mp4")
    assert isinstance(error, TypeError)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_window_shows_the_pictures(runs, monkeypatch):
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown = []
    monkeypatch.setattr(pygame.display, "flip", lambda: shown.append(pygame.display.get_surface().get_size()))
    monkeypatch.setattr("guerdon.comparison.play.FPS", 1000)
    monkeypatch.setattr(
        gymnasium.envs.classic_control.Continuous_MountainCarEnv, "metadata", {"render_modes": ["rgb_array"]}
    )
    assert played(runs / "drawn" / "ppo-seed0", "--episodes", 1)[0] == 0
    assert shown == [(600, 400)] * 10


@pytest.mark.parametrize(
    ("words", "key", "why"),
    [
        (("keyed",), None, "it holds the runs .*keyed/ppo-seed0"),
        (("keyed/ppo-seed0", "--video", "a.mp4"), "--video", "draws no pictures"),
        (("drawn/ppo-seed0", "--video", "a.gif"), "--video", "MP4"),
        (("nowhere",), None, "no folder of a run"),
    ],
)
def test_what_cannot_be_played_is_refused(runs, words, key, why, monkeypatch):
    monkeypatch.chdir(runs)
    with pytest.raises(ConfigError, match=why) as refused:
        raise played(*words)[2]
    assert refused.value.key == key


def test_a_run_without_a_policy_says_so(runs, tmp_path):
    (tmp_path / "config.yaml").write_bytes((runs / "keyed" / "ppo-seed0" / "config.yaml").read_bytes())
    assert "has no policy yet" in str(played(tmp_path)[2])


def test_responses_of_a_language_model_are_printed(tmp_path):
    study = letter_study(tmp_path, runner={"total_steps": 16, "eval_every": 16})
    folder, _ = run(study)
    status, said, error = played(folder, "--episodes", 2)
    assert status == 0, error
    assert said.count("response: ") == said.count("the answer is 1") == 2
    assert "2 responses: right " in said
    drawn = [played(folder, "--episodes", 8, "--seed", seed)[1] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert "writes text" in str(played(folder, "--video", "a.mp4")[2])


def test_a_policy_acts_on_plain_dicts(runs):
    env = Keyed()
    policy = guerdon.load_policy(runs / "keyed" / "ppo-seed0", env)
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        observation, *_ = env.step(policy(observation))
    assert {policy(observation, greedy=False) for _ in range(50)} == {5, 6}
    car = gymnasium.make("MountainCarContinuous-v0")
    policy = guerdon.load_policy(runs / "drawn" / "ppo-seed0", car)
    assert car.action_space.contains(policy(car.reset(seed=0)[0]))
    with pytest.raises(CheckpointError, match="made for observations"):
        guerdon.load_policy(runs / "drawn" / "ppo-seed0", env)


def test_a_policy_of_pictures_or_of_text_is_no_function_of_observations(runs, tmp_path):
    folder = shutil.copytree(runs / "drawn" / "ppo-seed0", tmp_path / "pixels")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["env"]["observation"], config["policy"] = "pixels", {"type": "cnn"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match="the policy sees what guerdon draws, or decides on several actions at once"):
        guerdon.load_policy(folder, gymnasium.make("MountainCarContinuous-v0"))
    (tmp_path / "config.yaml").write_text(to_yaml(letter_study(tmp_path)))
    (tmp_path / "policy").mkdir()
    with pytest.raises(ConfigError, match=r"the policy is a language model; transformers loads it from .*policy"):
        guerdon.load_policy(tmp_path, Keyed())


def test_without_a_screen_returns_alone_are_shown(runs, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(play.sys, "platform", "linux")
    done = CliRunner().invoke(app, ["play", str(runs / "drawn" / "ppo-seed0"), "--episodes", "1"])
    assert done.exit_code == 0
    assert "this machine has no screen: returns alone are shown; --video FILE records the episodes" in done.stderr
    assert "episode 1" in done.stdout
