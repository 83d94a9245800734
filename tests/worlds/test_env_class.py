"""An environment class in a file of the user, named as `module:Class`."""

import json
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from typer.testing import CliRunner

from child import environment
from guerdon.cli import app
from guerdon.config import modules
from guerdon.errors import ConfigError
from guerdon.settings.study import read_study_file
from guerdon.worlds.build import build_world
from guerdon.worlds.gymnasium_env import WithoutParticles, make_gymnasium_env
from tables import refuses

CODE = '''
import gymnasium
import numpy as np
from guerdon.types import RewardInfo, Score


class Line(gymnasium.Env):
    """A dot on a line, without a picture and without a time limit."""

    def __init__(self, length: int = 6):
        self.length = length
        self.observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.count = float(self.np_random.uniform(-0.5, 0.5)), 0
        return np.array([self.x], np.float32), {"success": False}

    def step(self, action):
        self.x, self.count = self.x + float(action[0]) / self.length, self.count + 1
        info = {"success": self.x > 0.5}
        return np.array([self.x], np.float32), self.x, self.count >= self.length, False, info


class Place:
    """How far right the dot is; it says nothing of pictures."""

    info = RewardInfo(name="place", range=(-9.0, 9.0), modality="state")

    def score(self, episodes):
        assert all(episode.frames is None for episode in episodes)
        return [Score.from_values(episode.states[:, 0]) for episode in episodes]


class Registered(Line):
    """A class with the name of an id that its module registers."""


class Other(Line):
    """What the id stands for."""


gymnasium.register("Registered-v3", entry_point="MODULE:Other", max_episode_steps=4)
value = 3
'''
SMALL = (
    "runner.total_steps=48", "runner.eval_every=24", "runner.eval_episodes=2", "runner.checkpoint_every=24",
    "env.num_envs=2", "policy={type: mlp, hidden: [4]}", "algorithm={rollout_steps: 12, minibatch_size: 12}",
)  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder of a module `line_env`, where commands are started."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "line_env.py").write_text(CODE.replace("MODULE", "line_env"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv(modules.MODULES_FOLDER, str(folder))
    yield folder
    sys.modules.pop("line_env", None)
    gymnasium.registry.pop("Registered-v3", None)


def test_a_class_is_an_environment_and_a_registered_id_wins(here):
    env = make_gymnasium_env("line_env:Line", 2, kwargs={"length": 3})
    assert type(env.envs[0].unwrapped).__name__ == "Line"
    assert env.envs[0].unwrapped.length == 3
    assert env.unlimited
    assert type(make_gymnasium_env("line_env:Registered", 1).envs[0].unwrapped).__name__ == "Other"
    limited = make_gymnasium_env("line_env:Line", 1, max_episode_steps=2)
    limited.reset(seed=[0])
    limited.step(limited.action_space.sample())
    assert limited.step(limited.action_space.sample())[3].all()
    for name in ("Lin", "value", "no_such"):
        with refuses("env.task"):
            make_gymnasium_env(f"line_env:{name}", 1)


@pytest.mark.filterwarnings("error:.*render_modes")
@pytest.mark.parametrize("takes", ["", "render_mode=None, "])
def test_a_class_that_names_no_render_modes_is_made_without_a_warning(takes, here):
    (here / "line_env.py").write_text(
        CODE.replace("MODULE", "line_env").replace("self, length", f"self, {takes}length")
    )
    assert type(make_gymnasium_env("line_env:Line", 1).envs[0].unwrapped).__name__ == "Line"


def test_a_study_of_a_class_is_made_without_a_file(here):
    study = read_study_file(Path("line_env:Line"), ["env.num_envs=2"])
    assert (study.env.type, study.env.task, study.work_dir) == ("gymnasium", "line_env:Line", "runs/Line")
    world = build_world(study.env, seed=0)
    assert world.observation_shape == (1,)
    world.close()
    for path in ("line_env.py", "line_env.py:Line", "mine/line_env.py:Line"):
        with pytest.raises(ConfigError, match="named by its module: line_env:"):
            read_study_file(Path(path))


def test_a_state_reward_model_needs_no_pictures_and_no_modality(here):
    model = "model: {model_type: 'line_env:Place'}, reward_mode: per_step, shaping: raw"
    done = CliRunner().invoke(app, ["run", "line_env:Line", *SMALL, f"reward={{use_reward_model: true, {model}}}"])
    assert done.exit_code == 0, (done.output, done.exception)
    complete = json.loads((here / "runs/Line/ppo-seed0/COMPLETE").read_text())
    rows = [json.loads(line) for line in (here / "runs/Line/ppo-seed0/metrics.jsonl").read_text().splitlines()]
    assert complete
    assert any("Place" in name for row in rows for name in row)


def run_line(*words):
    done = CliRunner().invoke(app, ["run", "line_env:Line", *SMALL, *words])
    return done.exit_code, f"{done.output} {done.exception}"


def test_a_run_is_resumed_from_another_folder(here, tmp_path, monkeypatch):
    work = f"work_dir={tmp_path / 'work'}"
    status, said = run_line(work)
    assert status == 0, said
    run = tmp_path / "work" / "ppo-seed0"
    assert json.loads((run / "run.json").read_text())["modules"] == str(here)
    (run / "COMPLETE").unlink()  # as if it had been killed
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    monkeypatch.setenv(modules.MODULES_FOLDER, str(other))
    del sys.modules["line_env"]
    status, said = run_line(work, "--resume")
    assert status == 0, said
    assert (run / "COMPLETE").is_file()
    del sys.modules["line_env"]
    status, said = run_line(f"work_dir={tmp_path / 'new'}")
    assert status == 1
    assert "No module named 'line_env'" in said


@pytest.mark.slow
def test_episodes_are_collected_and_jobs_of_a_study_find_the_class(here):
    """Jobs are processes of their own; the environment is in processes, too."""
    arms = "{A: {label: short}, B: {label: long, config: {env: {kwargs: {length: 9}}}}}"
    compared = f"compare={{baseline: A, seeds: [0], arms: {arms}}}"
    (here / "study.yaml").write_text("work_dir: work\nenv: {type: gymnasium, task: 'line_env:Line'}\n")
    start = [sys.executable, "-m", "guerdon"]
    for words in (
        ("collect", "line_env:Line", "collect={save_dir: data, episodes: 3, mixture: [{type: random}]}"),
        ("compare", "study.yaml", compared, "env.vectorization=async", *SMALL),
    ):
        done = subprocess.run(
            [*start, *words], cwd=here, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert len(list((here / "work").glob("runs/*/*/*/COMPLETE"))) == 2


class Decorated(gymnasium.Env):
    """Adds to its decoration in each step with a render mode; the step -1 breaks."""

    render_mode, decoration = "rgb_array", 0

    def step(self, action):
        self.decoration += self.render_mode is not None
        if action == -1:
            raise RuntimeError("broken")
        return 0, 0.0, False, False, {}

    def render(self):
        return self.render_mode


def test_a_step_without_particles_has_no_render_mode_and_a_picture_has_one():
    env = WithoutParticles(Decorated())
    env.step(0)
    assert (env.unwrapped.decoration, env.render()) == (0, "rgb_array")
    with pytest.raises(RuntimeError, match="broken"):
        env.step(-1)
    assert (env.unwrapped.decoration, env.render()) == (0, "rgb_array")
