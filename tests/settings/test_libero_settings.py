"""The `env` section of LIBERO: whose protocol it follows, and under which names; no simulator is needed."""

import pytest
import yaml
from pydantic import TypeAdapter

from guerdon.config import loading as config
from guerdon.errors import MissingDependencyError
from guerdon.settings.study import Study
from guerdon.settings.world import PROTOCOLS, SUITES, LiberoSettings, WorldSettings
from guerdon.worlds import libero_files
from guerdon.worlds.build import build_world
from tables import cases, refuses

READ = TypeAdapter(WorldSettings).validate_python
LIMITS = {  # the evaluation code of each project
    "lerobot": {"spatial": 280, "object": 280, "goal": 300, "10": 520, "90": 400},
    "openvla": {"spatial": 220, "object": 280, "goal": 300, "10": 520, "90": 400},
    "rlinf": {"spatial": 512, "object": 512, "goal": 512, "10": 512, "90": 512},
}


@pytest.mark.parametrize("protocol", LIMITS)
def test_a_protocol_gives_the_limit_of_each_suite(protocol):
    for suite, limit in LIMITS[protocol].items():
        settings = READ({"type": "libero", "suite": f"libero_{suite}", "protocol": protocol})
        assert settings.max_episode_steps == limit
        assert settings.num_steps_wait == (15 if protocol == "rlinf" else 10)
        assert settings.reset_gripper_open is (protocol != "rlinf")
        assert settings.gripper == ("signed" if protocol == "lerobot" else "openvla")
        assert settings.image_flip == "height_width"
        assert settings.init_states == "ordered"


def test_what_is_given_wins_and_is_what_a_run_keeps():
    settings = READ({"type": "libero", "protocol": "rlinf", "max_episode_steps": 480, "reset_gripper_open": True})
    kept = settings.model_dump()
    assert (kept["max_episode_steps"], kept["reset_gripper_open"], kept["num_steps_wait"]) == (480, True, 15)
    assert READ(kept) == settings, "a run's resolved configuration reads back"
    several = READ({"type": "libero", "task_ids": [3, 4], "num_envs": 4})
    assert READ(several.model_dump()) == several


def test_the_guides_names():
    settings = READ(
        {"type": "libero", "task_suite_name": "libero_goal", "n_rollout_threads": 3, "max_env_length": 0,
         "num_steps_wait": 4, "task": 7}
    )  # fmt: skip
    assert (settings.task_suite_name, settings.num_envs, settings.max_episode_steps) == ("libero_goal", 3, 300)
    assert (settings.num_steps_wait, settings.task) == (4, "7")
    assert READ({"type": "libero", "max_env_length": 150}).max_episode_steps == 150
    assert READ({"type": "libero", "max_episode_steps": None}).max_episode_steps == 520


@cases(
    ("keys", "key"),
    [
        ({"suite": "libero_10", "task_suite_name": "libero_10"}, "task_suite_name"),
        ({"task": 10}, "task_ids"),
        ({"suite": "libero_90", "task_ids": [3, 90]}, "task_ids"),
        ({"task_ids": [1, 1]}, "task_ids"),
        ({"task_ids": [1, 2], "task": 3}, "task"),
        ({"task_ids": [1, 2], "num_envs": 3}, "task_ids"),
        ({"suite": "libero_100"}, "task_suite_name"),
        ({"protocol": "openpi"}, "protocol"),
    ],
)
def test_refusals(keys, key):
    with refuses(key):
        READ({"type": "libero", **keys})


def test_in_a_study_file(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("env: {type: libero, suite: libero_spatial, protocol: openvla}\n")
    study = config.load(Study, file, ["env.task=2"])
    assert isinstance(study.env, LiberoSettings)
    assert (study.env.task, study.env.max_episode_steps, study.env.camera_name) == ("2", 220, "agentview")
    with refuses("env.suit"):
        config.load(Study, file, ["env.suit=libero_10"])


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(libero_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"hf-libero: pip install 'guerdon\[libero\]'"):
        libero_files.package_folder()


def test_without_its_scenes_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.delenv("LIBERO_CONFIG_PATH", raising=False)
    monkeypatch.setattr(libero_files.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(libero_files, "package_folder", lambda: tmp_path)
    with pytest.raises(MissingDependencyError, match=r"not installed: pip install 'guerdon\[libero\]'"):
        libero_files.assets_folder()
    (tmp_path / "assets").mkdir()
    assert libero_files.assets_folder() == tmp_path / "assets"


def test_scenes_of_the_users_own_configuration(monkeypatch, tmp_path):
    (tmp_path / "scenes").mkdir()
    (tmp_path / "config.yaml").write_text(f"assets: {tmp_path / 'scenes'}\n")
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path))
    assert libero_files.assets_folder() == tmp_path / "scenes"


def test_copies_that_tasks_cannot_share(monkeypatch):
    settings = LiberoSettings(task_ids=(0, 1, 2), num_envs=3)
    with refuses("env.num_envs", "cannot share 4 copies"):
        build_world(settings, seed=0, num_envs=4)


def test_protocols_cover_every_suite():
    assert all(set(protocol.limits) == set(SUITES) for protocol in PROTOCOLS.values())


def test_trials_of_each_task_are_evaluation_episodes():
    env = {"type": "libero", "task_ids": [1, 4], "num_envs": 2, "num_trials_per_task": 5}
    study = Study.model_validate({"env": env})
    assert study.runner.eval_episodes == 10
    assert Study.model_validate(yaml.safe_load(config.to_yaml(study))).runner.eval_episodes == 10
    with refuses("env.num_trials_per_task"):
        Study.model_validate({"env": env, "runner": {"eval_episodes": 7}})
    with refuses("task_ids"):
        Study.model_validate({"env": {**env, "task_ids": 3}})
