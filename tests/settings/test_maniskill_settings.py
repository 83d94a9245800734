"""The `env` section of ManiSkill; no simulator is needed."""

import importlib.util
import os
import sys

import pytest
from pydantic import TypeAdapter

from guerdon.errors import MissingDependencyError
from guerdon.settings.world import GymnasiumSettings, LiberoSettings, ManiSkillSettings, WorldSettings
from guerdon.worlds import maniskill
from guerdon.worlds.build import build_world
from tables import refuses

READ = TypeAdapter(WorldSettings).validate_python


def test_what_is_given_is_what_a_run_keeps():
    settings = READ({"type": "maniskill", "task": "StackCube-v1", "control_mode": "pd_ee_delta_pose", "frame_size": 64})
    assert isinstance(settings, ManiSkillSettings)
    assert READ(settings.model_dump()) == settings
    assert (settings.max_episode_steps, settings.frame_size, settings.camera_name) == (None, (64, 64), "render_camera")
    assert READ({"type": "maniskill", "native_reward": "normalized_dense"}).native_reward == "normalized_dense"


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"kwargs": {"reward_mode": "dense"}}, "kwargs"),
        ({"kwargs": {"sim_backend": "gpu", "num_envs": 8}}, "kwargs"),
        ({"cameras": []}, "cameras"),
        ({"native_reward": "shaped"}, "native_reward"),
        ({"protocol": "rlinf"}, "protocol"),
    ],
)
def test_what_would_do_nothing_is_refused(keys, key):
    with refuses(key):
        READ({"type": "maniskill", **keys})


def test_normalized_dense_is_maniskills_alone():
    for other in (LiberoSettings, GymnasiumSettings):
        with refuses("native_reward"):
            other(task="0", native_reward="normalized_dense")


def test_tasks_have_words():
    assert maniskill.task_text("PushCube-v1") == "Push the blue cube into the red and white target."
    assert maniskill.task_text("TwoRobotPickCube-v1") == "two robot pick cube"
    assert len(set(maniskill.TASK_TEXTS.values())) == len(maniskill.TASK_TEXTS)


def test_the_unpacked_driver_is_named_unless_the_user_names_one(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for name in ("VK_ICD_FILENAMES", "VK_DRIVER_FILES", "LP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    maniskill.choose_vulkan_driver()
    assert "VK_ICD_FILENAMES" not in os.environ
    driver = tmp_path / maniskill.MESA / "lvp_icd.json"
    driver.parent.mkdir(parents=True)
    driver.write_text("{}")
    monkeypatch.setenv("VK_DRIVER_FILES", "mine.json")
    maniskill.choose_vulkan_driver()
    assert "VK_ICD_FILENAMES" not in os.environ
    monkeypatch.delenv("VK_DRIVER_FILES")
    maniskill.choose_vulkan_driver()
    assert os.environ["VK_ICD_FILENAMES"] == str(driver)
    monkeypatch.delenv("VK_ICD_FILENAMES")
    monkeypatch.delenv("LP_NUM_THREADS")


@pytest.mark.skipif(importlib.util.find_spec("mani_skill") is not None, reason="ManiSkill is installed")
def test_without_the_package_the_message_says_how_to_get_it():
    with pytest.raises(MissingDependencyError, match=r"needs the package mani_skill: make env-maniskill"):
        build_world(ManiSkillSettings(), seed=0)
