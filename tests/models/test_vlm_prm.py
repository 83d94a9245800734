"""The process reward model under the names of the VLA guide."""

import numpy as np
import pytest
from vlm_samples import episode, tiny_folder

from guerdon.errors import DataError
from guerdon.models.load import load_reward_model
from guerdon.models.vlm import vlm_prm
from guerdon.models.vlm.vlm_prm import DummyRM, QwenProcessRM, task_of


def test_the_dummy_gives_zeros_of_the_right_shape(capsys):
    rewards = DummyRM().get_reward(["a", "b"], [np.zeros((4, 4, 3), np.uint8)] * 2)
    assert (rewards.shape, rewards.dtype, rewards.any()) == ((2,), np.float32, np.False_)
    assert capsys.readouterr().err == "[PRM] Computed rewards: [0.0, 0.0]\n"
    with pytest.raises(DataError, match="one text for each"):
        DummyRM().get_reward(["a"], [])


def test_soft_rewards_are_those_of_the_model(capsys):
    prm = QwenProcessRM(tiny_folder(), soft=True, bf16=False)
    assert "[PRM] Loaded QwenProcessRM from" in capsys.readouterr().err
    frames = episode(3).frames
    texts = ["In: What action should the robot take to close the door?\nOut:", "close the door", " close the door "]
    before = list(texts)
    rewards = prm.get_reward(texts, [frames[0], np.moveaxis(frames[0], -1, 0), frames[0] / 255.0], actions=[1, 2, 3])
    assert texts == before
    assert rewards.shape == (3,)
    first = round(float(rewards[0]), 4)
    assert f"[PRM] Computed rewards: [{first}" in capsys.readouterr().err
    np.testing.assert_allclose(rewards, rewards[0], atol=1e-6)
    model = load_reward_model("qwen_vl", tiny_folder(), vlm={"bf16": False})
    assert rewards[0] == pytest.approx(model.score([episode(3)[:1]])[0].total, abs=1e-6)


def test_the_log_lines_of_the_guide_are_short(capsys):
    vlm_prm.log_computed(np.arange(9, dtype=np.float32))
    vlm_prm.log_weighted([0.0, 1.0], 0.1)
    assert capsys.readouterr().err.splitlines() == [
        "[PRM] Computed rewards: [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, ...]",
        "[PRM] Added weighted PRM rewards (weight=0.1): [0.0, 0.1]",
    ]


def test_what_is_not_measured_is_not_made_up():
    prm = QwenProcessRM(tiny_folder(), max_tokens=2)  # an untrained model babbles
    frames = list(episode(2).frames)
    assert all(score.failure is not None for score in prm.measure(["close the door"] * 2, frames))
    with pytest.raises(DataError, match="2 of 2 rewards could not be measured"):
        prm.get_reward(["close the door"] * 2, frames)


def test_tasks_are_found_in_any_prompt():
    assert task_of("In: What action should the robot take to pick up the cup?\nOut:") == "pick up the cup"
    assert task_of("pick up the cup") == "pick up the cup"
    assert vlm_prm.task_of("") == ""
