"""A learned weight keeps the share of its source; it is logged and survives a checkpoint."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.rewards.source import ShareWeight, observe_shares
from guerdon.settings.reward import RewardSettings
from guerdon.settings.reward_source import ShareSettings
from guerdon.types import Advantages
from rl_clock import clock_study, interrupted, lines, reader_reward, result, start
from tables import refuses

SIZES = st.floats(1e-3, 1e3)


@given(st.floats(0.01, 0.95), SIZES, SIZES)
def test_the_share_is_what_was_asked_for(share, own, others):
    weight = ShareWeight(ShareSettings(share=share, max_weight=1e9), value=0.1)
    for _ in range(3):
        weight.observe(own, others)
        assert weight.value * own / (weight.value * own + others) == pytest.approx(share)


def test_limits_and_silence():
    settings = ShareSettings(share=0.5, min_weight=0.2, max_weight=2.0)
    for own, others, expected in ((0.0, 1.0, 0.7), (1.0, 0.0, 0.7), (1.0, 1.0, 1.0), (1.0, 0.1, 0.2), (1.0, 9.0, 2.0)):
        weight = ShareWeight(settings, value=0.7)
        weight.observe(own, others)
        assert weight.value == pytest.approx(expected)


def test_running_means():
    weight = ShareWeight(ShareSettings(share=0.5, max_weight=100.0), value=1.0)
    weight.observe(1.0, 1.0)
    weight.observe(1.0, 4.0)  # means 1 and (0.9 * 0.1 + 0.1 * 4) / (0.9 * 0.1 + 0.1)
    assert weight.value == pytest.approx(49 / 19)
    other = ShareWeight(weight.settings, value=1.0)
    other.load_state_dict(json.loads(json.dumps(weight.state_dict())))
    weight.observe(2.0, 5.0)
    other.observe(2.0, 5.0)
    assert weight.value == other.value


def test_sizes_are_over_known_steps():
    mask, known = np.array([[True, True, True, False]]), np.array([[True, False, True, True]])
    values = {"env": np.array([[2.0, -2.0, 2.0, 9.0]], np.float32), "rm": np.array([[1.0, 7.0, -3.0, 9.0]], np.float32)}
    found = Advantages(values["env"], values["env"], values, {"env": mask, "rm": known & mask})
    weight = ShareWeight(ShareSettings(share=0.2), value=1.0)
    observe_shares({"rm": weight}, {"env": 3.0, "rm": 1.0}, found)
    assert weight.value == pytest.approx(0.2 / 0.8 * 3.0 * 2.0 / 2.0)


@pytest.mark.parametrize("silent", ["env", "rm"])
def test_an_update_without_a_measurement_is_left_out(silent):
    mask, ones = np.ones((1, 3), np.bool_), np.ones((1, 3), np.float32)
    values = {"env": ones, "rm": 2 * ones}
    weight = ShareWeight(ShareSettings(share=0.5), value=1.0)
    states = []
    for known in ({"env": mask, "rm": mask}, {"env": mask, "rm": mask} | {silent: ~mask}):
        found = Advantages(ones, ones, values, known)
        observe_shares({"rm": weight}, {"env": 1.0, "rm": weight.value}, found)
        states.append(weight.state_dict())
    assert states[0] == states[1]
    assert weight.value == pytest.approx(0.5)


SHARED = {"adaptive_weight": {"share": 0.3}, "reward_weight": 0.1}


def test_a_run_with_a_learned_weight_resumes_to_the_same_bytes(tmp_path):
    studies = [clock_study(tmp_path, name=n, reward=reader_reward(combine_mode="add", **SHARED)) for n in "ab"]
    start(studies[0]).run()
    interrupted(studies[1], "update", 5)
    start(studies[1], resume=True).run()
    assert result(studies[0]) == result(studies[1])
    weights = [row["reward_weight/constant"] for row in lines(studies[0]) if row["kind"] == "train"]
    assert weights[0] == 0.1
    assert len(set(weights)) > 3


def test_the_log_lines_of_the_guide_say_the_weight_of_the_day(tmp_path, capsys):
    reward = {"process_reward_model": True, "model": {"value": 1.0}, "adaptive_weight": {"share": 0.3}}
    study = clock_study(tmp_path, reward=reward)
    start(study, reader="own").run()
    said = [x for x in capsys.readouterr().err.splitlines() if "Added" in x]
    weights = [row["reward_weight/prm"] for row in lines(study) if row["kind"] == "train"]
    assert [float(x.split("weight=")[1].split(")")[0]) for x in said] == pytest.approx(weights, rel=1e-4)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"combine_mode": "replace"}, "combine_mode"),
        ({"combine_mode": "add", "reward_weight_schedule": "linear_decay"}, "adaptive_weight"),
        ({"combine_mode": "add", "adaptive_weight": {"share": 0.5, "min_weight": 20}}, "min_weight"),
        ({"combine_mode": "add", "reward_weight": 11.0}, "reward_weight"),
    ],
)
def test_what_cannot_be_is_refused(given, key):
    with refuses(key):
        RewardSettings.model_validate(reader_reward(**{**SHARED, **given}))


def test_shares_leave_something_to_the_others():
    source = {"model": {"model_type": "constant"}, "adaptive_weight": {"share": 0.6}}
    with refuses("sources", r"add up to 1\.2"):
        RewardSettings(use_reward_model=True, combine_mode="add", sources={"a": source, "b": source})
