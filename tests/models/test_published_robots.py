"""SARM, Robometer and RoboReward from their published folders: values, what is refused, and episodes that fail.

The expected values of SARM and Robometer were computed by lerobot 0.6.1 (torch 2.13.0, transformers 5.23.0) with the
weights of `published_robots.py`. The slow test computes them again:

    python3.12 -m venv lerobot-env && lerobot-env/bin/pip install lerobot==0.6.1 qwen-vl-utils faker pandas
    GUERDON_LEROBOT=lerobot-env/bin/python pytest -m slow tests/models/test_published_robots.py
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import published_robots as published
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from vlm_samples import Scripted, tiny_folder

from guerdon.errors import CheckpointError, ConfigError, GuerdonError
from guerdon.models.images.sarm import SarmConfig, windows
from guerdon.models.load import kind_at, load_reward_model
from guerdon.models.vlm.vlm import VLMRewardModel
from guerdon.models.vlm.vlm_prompts import PROMPTS, Picture, make_question
from guerdon.settings.vlm import VLMSettings
from guerdon.types import ALL_FRAMES, Episode
from tables import cases, refuses, sample

torch.set_num_threads(1)
LEROBOT = os.environ.get("GUERDON_LEROBOT")
TASK = "lift the cube"
SPARSE = [0.992493, 0.986286, 0.992417, 0.989938, 0.949728, 0.996245, 0.166903, 0.990991, 0.998944, 0.696062, 0.986697]
DENSE = [0.303458, 0.304972, 0.304091, 0.30416, 0.304772, 0.000943, 0.301246, 0.302845, 0.300209, 0.001528, 0.000573]
PROGRESS = [0.495138, 0.502181, 0.499227, 0.495178, 0.492197, 0.49682]
SUCCESS = [0.369632, 0.404311, 0.502869, 0.530458, 0.571627, 0.475443]
REGRESSED = [0.366775, 0.406395, 0.427512, 0.37743, 0.394761, 0.326037]
SIZE = (40, 75)  # of Robometer's frames: neither side is whole patches
EXACT = {"bf16": False}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The checkpoints."""
    folder = tmp_path_factory.mktemp("published")
    published.write_clip(folder / "clip")
    published.write_sarm(folder / "sarm")
    base = published.write_base(folder / "base")
    published.write_robometer(folder / "robometer", base)
    published.write_robometer(folder / "authors", base, layout="authors")
    return folder


def recorded(rows=11, size=(32, 32), **given):
    frames, states = published.recording(rows, size=size)
    return Episode(**{"id": "0", "task": TASK, "frames": frames, "states": states, **given})


def sarm(home, folder="sarm", **given):
    return load_reward_model("sarm", home / folder, **{"clip_path": str(home / "clip"), "device": "cpu", **given})


def robometer(home, folder="robometer", **vlm):
    return load_reward_model("robometer", home / folder, device="cpu", vlm={**EXACT, **vlm})


# SARM.


@pytest.mark.parametrize(("head", "expected"), [("sparse", SPARSE), ("dense", DENSE)])
def test_sarm_gives_what_lerobot_gives(home, head, expected):
    model = sarm(home, head=head)
    score = model.score([recorded()])[0]
    np.testing.assert_allclose(score.steps, expected, atol=2e-5)
    assert score.total == pytest.approx(expected[-1], abs=2e-5)
    info = model.info
    assert (info.name, info.range, info.granularity, info.modality) == ("sarm", (0.0, 1.0), "step", "image")
    assert (info.causal, info.progress, info.states, info.camera) == (False, True, True, published.CAMERA)


def test_sarm_scores_each_episode_as_if_it_were_alone(home):
    model = sarm(home)
    episodes = [recorded(), recorded(3, id="1"), recorded(1, id="2", task="open the door"), recorded(7, size=(40, 60))]
    together = model.score(episodes)
    for episode, score in zip(episodes, together, strict=True):
        np.testing.assert_array_equal(model.score([episode])[0].steps, score.steps)
        assert len(score.steps) == len(episode)


@given(st.integers(1, 40), st.integers(0, 4), st.integers(1, 30))
def test_windows_lie_inside_the_episode_around_their_row(rows, half, gap):
    found = windows(rows, half, gap)
    assert found.shape == (rows, 2 * half + 1)
    for row in range(rows):
        expected = [min(max(row + gap * k, 0), rows - 1) for k in range(-half, half + 1)]
        assert found[row].tolist() == expected


def test_stages_take_their_share_of_the_way():
    config = SarmConfig(**published.SARM)
    np.testing.assert_allclose(config.ends("sparse"), [0, 0.2, 0.7, 1])
    np.testing.assert_allclose(config.ends("dense"), [0, 0.1, 0.3, 0.6, 1])
    doubled = SarmConfig(**published.SARM | {"sparse_temporal_proportions": [2, 5, 3]})
    np.testing.assert_allclose(doubled.ends("sparse"), [0, 0.2, 0.7, 1])
    without = SarmConfig(**published.SARM | {"sparse_temporal_proportions": [0.5, 0, 0.5]})  # shorter than a second
    assert without.ends("sparse").tolist() == [0, 0.5, 0.5, 1]
    without.refuse_others("config.json", "sparse")
    equal = SarmConfig(**published.SARM | {"sparse_temporal_proportions": None})
    np.testing.assert_allclose(equal.ends("sparse"), [0, 1 / 3, 2 / 3, 1])
    single = SarmConfig(**published.SARM | {"annotation_mode": "dense_only"})  # LeRobot sets one coarse stage then
    np.testing.assert_allclose(single.ends("sparse"), [0, 1])
    assert single.stages("dense") == 4


def test_sarm_with_one_stage_is_how_far_that_is(home, tmp_path):
    published.write_sarm(tmp_path / "one", annotation_mode="single_stage", num_dense_stages=None)
    steps = sarm(home, tmp_path / "one").score([recorded()])[0].steps
    assert ((steps > 0) & (steps < 1)).all()
    assert len(np.unique(steps)) == 11
    with pytest.raises(ConfigError, match="no dense stages") as refused:
        sarm(home, tmp_path / "one", head="dense")
    assert refused.value.key == "head"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"frames": None}, "no_frames"),
        ({"states": None}, "no_states"),
        ({"states": np.zeros((11, 4), np.float32)}, "bad_states"),
        ({"states": np.full((11, published.STATES), np.nan, np.float32)}, "bad_states"),
        ({"task": "  "}, "no_task"),
        ({"task": "open<|endoftext|>close"}, "control_token"),
    ],
)
def test_an_episode_that_sarm_cannot_score_fails_and_the_others_do_not(home, changed, reason):
    good, bad, again = sarm(home).score([recorded(), recorded(**changed), recorded()])
    assert bad.failure.reason == reason
    np.testing.assert_array_equal(good.steps, again.steps)


def test_states_wider_than_the_model_are_cut_as_lerobot_does(home, tmp_path):
    narrow, wide = (tmp_path / name for name in ("narrow", "wide"))
    for folder, states in ((narrow, 8), (wide, 9)):
        published.write_sarm(folder, states=states)
    file = "policy_preprocessor_step_2_normalizer_processor.safetensors"
    given = np.random.default_rng(0).normal(size=(11, 9)).astype(np.float32)
    numbers = load_file(wide / file)
    save_file(
        {k: v[:8].clone() for k, v in numbers.items()},
        narrow / "policy_preprocessor_step_2_normalizer_processor.safetensors",
    )
    found = sarm(home, wide).score([recorded(states=given)])[0].steps
    np.testing.assert_array_equal(found, sarm(home, narrow).score([recorded(states=given[:, :8])])[0].steps)


def rewrite(file, change):
    given = json.loads(file.read_text())
    change(given)
    file.write_text(json.dumps(given))


def without(name):
    def change(folder):
        weights = load_file(folder / "model.safetensors")
        del weights[name]
        save_file(weights, folder / "model.safetensors")

    return change


def with_weight(name, shape):
    def change(folder):
        weights = load_file(folder / "model.safetensors")
        save_file(weights | {name: torch.zeros(shape)}, folder / "model.safetensors")

    return change


def configured(**values):
    return lambda folder: rewrite(folder / "config.json", lambda given: given.update(values))


def resized(part, **values):
    """Change sizes of the backbone in the configuration of a Robometer or RoboReward."""

    def change(given):
        given.get("vlm_config", given)[part].update(values)

    return lambda folder: rewrite(folder / "config.json", change)


def processed(change):
    return lambda folder: rewrite(folder / "policy_preprocessor.json", change)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (without("stage_model.first_pos"), "lacks 1 weights, such as stage_model.first_pos"),
        (with_weight("stage_model.extra", (1,)), "unknown weights, such as stage_model.extra"),
        (with_weight("subtask_model.heads.dense.bias", (2,)), "of another shape, such as subtask_model.heads.dense"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read"),
        (configured(n_obs_steps=3), "n_obs_steps is 3, which is not even"),
        (configured(max_state_dim=10**9), "max_state_dim: Input should be less than or equal to 100000"),
        (configured(n_obs_steps=10**9), "n_obs_steps: Input should be less than or equal to 1000"),
        (configured(frame_gap=10**30), "frame_gap: Input should be less than or equal to 1000000"),
        (configured(state_key="observation.joints"), "state_key is observation.joints"),
        (configured(hidden_dim="wide"), "hidden_dim"),
        (configured(sparse_temporal_proportions=[0.5, 0.5]), "2 shares for 3 stages"),
        (configured(sparse_temporal_proportions=[1.0, 0.0, -0.1]), "a share is 0 or more"),
        (configured(sparse_temporal_proportions=[0.0, 0.0, 0.0]), "one is above 0"),
        (configured(num_heads=3), "config.json: num_heads is 3, which does not divide hidden_dim, 16; take"),
        (configured(image_dim=512), "such as stage_model.visual_proj|name the CLIP model"),
        (processed(lambda p: p["steps"].insert(0, {"registry_name": "crop"})), "crop is not supported"),
        (processed(lambda p: p["steps"][2]["config"]["norm_map"].update(VISUAL="MEAN_STD")), "VISUAL is normalised"),
        (processed(lambda p: p["steps"].pop(2)), "has no step normalizer_processor"),
        (
            lambda folder: (folder / "policy_preprocessor_step_2_normalizer_processor.safetensors").unlink(),
            "which is not there",
        ),
        (lambda folder: [one.unlink() for one in folder.glob("policy_*")], "has no policy_preprocessor.json"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_sarm_is_read_whole_or_refused(home, tmp_path, change, match):
    folder = published.write_sarm(tmp_path / "sarm")
    change(folder)
    with pytest.raises(CheckpointError, match=match):
        sarm(home, folder)


def test_another_clip_model_is_refused(home, tmp_path):
    folder = published.write_sarm(tmp_path / "sarm", image_dim=16)
    with pytest.raises(CheckpointError, match=r"\(16, 24\) numbers.*clip_path"):
        sarm(home, folder)


def test_clip_lies_in_the_folder_where_it_is_not_named(home, tmp_path):
    folder = published.write_sarm(tmp_path / "sarm")
    published.write_clip(folder / "clip")
    score = load_reward_model("sarm", folder, device="cpu").score([recorded()])[0]
    np.testing.assert_allclose(score.steps, SPARSE, atol=2e-5)


# Robometer.


def four_frames():
    """Episodes of the frames that LeRobot was given: four of those up to each row (`lerobot_rewards_side.py`)."""
    whole = recorded(6, SIZE)
    chosen = [np.linspace(0, row, 4).astype(int) for row in range(6)]
    return [replace(whole, frames=whole.frames[rows], states=whole.states[rows]) for rows in chosen]


def at_the_last_of_four(model):
    return [score.steps[-1] for score in model.score(four_frames())]


@pytest.mark.parametrize("folder", sample(["robometer", "authors"], "robometer"))
@pytest.mark.parametrize(("question", "expected"), [("progress", PROGRESS), ("completed", SUCCESS), (None, PROGRESS)])
def test_robometer_gives_what_lerobot_gives_from_both_layouts(home, folder, question, expected):
    model = robometer(home, folder, **({} if question is None else {"question": question}))
    np.testing.assert_allclose(at_the_last_of_four(model), expected, atol=2e-5)
    info = model.info
    assert (info.range, info.granularity, info.frames_needed) == ((0.0, 1.0), "step", ALL_FRAMES)
    assert info.progress == (question != "completed")
    threshold = {"robometer": 0.4, "authors": 0.5}[folder] if question == "completed" else None
    assert info.success_threshold == threshold
    assert info.camera == (published.CAMERA if folder == "robometer" else None)


def test_the_published_output_counts_where_the_question_is_not_set(home, tmp_path):
    published.write_robometer(tmp_path / "rm", home / "base", reward_output="success")
    model = robometer(home, tmp_path / "rm")
    np.testing.assert_allclose(at_the_last_of_four(model), SUCCESS, atol=2e-5)
    assert (model.info.progress, model.info.success_threshold) == (False, 0.4)


def test_a_head_that_regresses(home, tmp_path):
    published.write_robometer(tmp_path / "rm", home / "base", discrete=False)
    np.testing.assert_allclose(at_the_last_of_four(robometer(home, tmp_path / "rm")), REGRESSED, atol=2e-5)


def test_robometer_scores_do_not_depend_on_the_batch(home):
    model = robometer(home, batch_size=3)
    episodes = [recorded(4, SIZE), recorded(2, id="1", task="push the button now"), recorded(3, (64, 48), id="2")]
    for episode, score in zip(episodes, model.score(episodes), strict=True):
        np.testing.assert_allclose(model.score([episode])[0].steps, score.steps, atol=1e-5)


def test_the_last_row_alone(home):
    model = robometer(home, rows="last")
    assert (model.info.granularity, model.info.frames_needed) == ("total", 4)
    score = model.score([four_frames()[-1]])[0]
    assert score.steps is None
    assert score.total == pytest.approx(PROGRESS[-1], abs=2e-5)


@given(st.integers(1, 30), st.integers(1, 12))
def test_robometer_always_sees_as_many_frames_up_to_the_moment(rows, nframes):
    frames = np.zeros((rows, 8, 8, 3), np.uint8) + np.arange(rows, dtype=np.uint8)[:, None, None, None]
    asked = make_question(PROMPTS["robometer"].fill(TASK), frames, nframes=nframes, max_pixels=10**6)
    seen = [int(picture.pixels[0, 0, 0]) for picture in asked.media]
    assert len(seen) == nframes
    assert seen == sorted(seen)
    assert seen[-1] == rows - 1
    assert nframes == 1 or seen[0] == 0


def test_frames_are_those_of_lerobots_progress_files():
    """Its tests of `build_subsample_indices` list them (huggingface/lerobot)."""
    frames = np.zeros((6, 8, 8, 3), np.uint8) + np.arange(6, dtype=np.uint8)[:, None, None, None]
    listed = [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 2, 3], [0, 1, 3, 4], [0, 2, 3, 5]]
    for row, expected in enumerate(listed):
        asked = make_question(PROMPTS["robometer"].fill(TASK), frames[: row + 1], nframes=4, max_pixels=10**6)
        assert [int(picture.pixels[0, 0, 0]) for picture in asked.media] == expected


def test_the_text_of_robometer_has_a_token_after_each_picture(home):
    model = robometer(home)
    frames = np.zeros((2, 32, 32, 3), np.uint8)
    asked = make_question(PROMPTS["robometer"].fill("lift {it} <|prog_token|>"), frames, nframes=2, max_pixels=10**6)
    text = model.backend.inputs.render(asked)
    start, end = "The task for the robot is 'lift {it} < |prog_token| >'. Given the", "predict 0 progress."
    picture = "<|vision_start|><|image_pad|><|vision_end|><|prog_token|>"
    assert text.startswith(f"<|im_start|>user\n{start}")
    assert text.endswith(f"{end}Picture 1: {picture}Picture 2: {picture}<|im_end|>\n")


@pytest.mark.parametrize(
    ("layout", "change", "match"),
    [
        ("lerobot", without("progress_head.0.weight"), "lacks 1 weights, such as progress_head.0.weight"),
        ("lerobot", without("model.lm_head.weight"), "lacks 1 weights, such as model.language_model.embed_tokens"),
        ("lerobot", with_weight("reward_head.0.weight", (1,)), "unknown weights, such as reward_head.0.weight"),
        ("lerobot", with_weight("success_head.4.bias", (3,)), "such as success_head.4.bias"),
        ("lerobot", configured(use_per_frame_progress_token=False), "use_per_frame_progress_token false"),
        ("lerobot", configured(vlm_config={"text_config": {}}), "no configuration of a vision-language model"),
        ("lerobot", configured(progress_loss_type="huber"), "progress_loss_type"),
        ("authors", lambda folder: (folder / "config.yaml").unlink(), "has no config.yaml"),
        ("authors", lambda folder: (folder / "config.yaml").write_text("a: [1"), "cannot be read"),
        ("authors", lambda folder: (folder / "config.yaml").write_text("model: {}"), "use_multi_image false"),
        ("authors", lambda folder: next(folder.glob("model-*")).unlink(), "has no model-0000"),
        ("authors", lambda folder: (folder / "adapter_config.json").write_text("{}"), "merge them into the model"),
        ("lerobot", configured(max_frames=None), "max_frames is null"),
        ("lerobot", resized("text_config", num_attention_heads=0), "describes no network .*ZeroDivisionError"),
        ("lerobot", resized("vision_config", intermediate_size=-1), "describes no network .*negative dimension"),
        ("authors", resized("vision_config", num_heads=3), "vision_config.num_heads is 3, which does not divide"),
        ("lerobot", resized("text_config", num_hidden_layers=10**5), "is 100,000, more than any model has"),
        ("authors", resized("vision_config", depth=10**5), "depth in config.json is 100,000, more than any model has"),
    ],
)
def test_a_checkpoint_of_robometer_is_read_whole_or_refused(home, tmp_path, layout, change, match):
    folder = published.write_robometer(tmp_path / "rm", home / "base", layout=layout)
    change(folder)
    with pytest.raises(CheckpointError, match=match):
        robometer(home, folder)


def test_the_training_may_have_written_its_configuration_above_its_checkpoints(home, tmp_path):
    folder = published.write_robometer(tmp_path / "run" / "checkpoint", home / "base", layout="authors")
    said = (folder / "config.yaml").read_text()
    tag = "!!python/object:robometer.models.rewind_transformer.ReWINDTransformerConfig {width: 8}"
    (tmp_path / "run" / "config.yaml").write_text(said.replace("model:\n", f"model:\n  rewind: {tag}\n"))
    (folder / "config.yaml").unlink()
    np.testing.assert_allclose(at_the_last_of_four(robometer(home, folder)), PROGRESS, atol=2e-5)


def test_frames_of_a_full_camera_keep_their_size_as_qwen_vl_utils_has_it(home):
    model = robometer(home)
    inputs, unit = model.backend.inputs, 32
    inputs.image_processor.patch_size, inputs.image_processor.merge_size = 16, 2  # of the published checkpoints
    inputs.image_processor.size = {"shortest_edge": 4 * unit**2, "longest_edge": 16384 * unit**2}
    for size, expected in (((720, 1280), (704, 1280)), ((1080, 1920), (1088, 1920)), ((2160, 3840), (2176, 3840))):
        _, grid = inputs._picture(Picture(np.zeros((*size, 3), np.uint8), model.settings.max_pixels))
        assert (16 * grid[1], 16 * grid[2]) == expected


def test_weights_of_the_training_alone_are_left_out(home, tmp_path):
    folder = published.write_robometer(tmp_path / "rm", home / "base")
    without("frame_pool_attn.weight")(folder)
    with_weight("similarity_head.4.bias", (1,))(folder)
    np.testing.assert_allclose(at_the_last_of_four(robometer(home, folder)), PROGRESS, atol=2e-5)


@pytest.mark.parametrize(
    ("vlm", "key"),
    [
        ({"fps": 2.0}, "fps"), ({"answer": "hard"}, "answer"), ({"temperature": 1.0}, "temperature"),
        ({"prompt": "trend"}, "prompt"), ({"backend": "vllm"}, "bf16"), ({"window": 3}, "window"),
    ],
)  # fmt: skip
def test_keys_that_robometer_does_not_have_are_refused(home, vlm, key):
    with refuses(f"vlm.{key}"):
        robometer(home, **vlm)


@pytest.mark.parametrize(
    ("given", "reason"), [({"frames": None}, "no_frames"), ({"task": ""}, "no_task"), ({}, None)]
)  # fmt: skip
def test_episodes_that_robometer_cannot_score(home, given, reason):
    failure = robometer(home).score([recorded(2, **given)])[0].failure
    assert (None if failure is None else failure.reason) == reason


def test_outputs_that_are_not_finite_are_failures(home):
    model = robometer(home)
    with torch.no_grad():
        model.backend.model.success_head[4].bias.fill_(torch.nan)
    assert model.score([recorded(2)])[0].failure.reason == "non_finite"


# RoboReward.


@pytest.mark.parametrize("heads", [0, 3])
def test_a_roboreward_whose_heads_do_not_divide_its_width_is_refused(tmp_path, heads):
    folder = published.write_base(tmp_path / "RoboReward-4B")
    resized("vision_config", num_heads=heads)(folder)
    with pytest.raises(CheckpointError, match=r"vision_config.num_heads is 3|ZeroDivisionError"):
        load_reward_model("roboreward", folder, device="cpu", vlm=EXACT)


@pytest.mark.hostile("models")
@pytest.mark.parametrize("file", ["preprocessor_config.json", "video_preprocessor_config.json"])
@pytest.mark.parametrize(
    "changes",
    [{"patch_size": 10**9}, {"size": {"shortest_edge": 10**15, "longest_edge": 10**16}}, {"min_pixels": 10**12}],
)
def test_pictures_are_not_enlarged_without_end(tmp_path, file, changes):
    folder = published.write_base(tmp_path / "RoboReward-4B")
    rewrite(folder / file, lambda given: given.update(changes))
    with pytest.raises(CheckpointError, match=rf"in {file} is 1,000,[0,]*, more than pictures can have") as error:
        load_reward_model("roboreward", folder, device="cpu", vlm=EXACT)
    assert "\n" not in str(error.value)


def test_large_limits_of_pictures_are_read(tmp_path):
    folder = published.write_base(tmp_path / "RoboReward-4B")
    for file in ("preprocessor_config.json", "video_preprocessor_config.json"):
        rewrite(folder / file, lambda given: given.update(size={"shortest_edge": 65536, "longest_edge": 10**9}))
    assert load_reward_model("roboreward", folder, device="cpu", vlm=EXACT)


@pytest.mark.parametrize("layers", [0, -1])
@pytest.mark.parametrize(("part", "key"), [("text_config", "num_hidden_layers"), ("vision_config", "depth")])
def test_a_roboreward_without_layers_is_refused(tmp_path, part, key, layers):
    """It graded without the weights of its layers, or ended in a traceback."""
    folder = published.write_base(tmp_path / "RoboReward-4B")
    resized(part, **{key: layers})(folder)
    with pytest.raises(CheckpointError, match=f"{key} in config.json is {layers}, and a model has at least one layer"):
        load_reward_model("roboreward", folder, device="cpu", vlm=EXACT)


@pytest.mark.parametrize(("part", "key"), [("text_config", "num_hidden_layers"), ("vision_config", "depth")])
def test_a_roboreward_with_weights_of_more_layers_is_refused(tmp_path, part, key):
    """It graded with its first layers."""
    folder = published.write_base(tmp_path / "RoboReward-4B")
    resized(part, **{key: 1})(folder)
    with pytest.raises(
        CheckpointError, match=r"has \d+ weights of more layers than config\.json has, such as model.*\.1\."
    ):
        load_reward_model("roboreward", folder, device="cpu", vlm=EXACT)


def roboreward(*replies, **given):
    return VLMRewardModel("roboreward", VLMSettings(path="unused", **given), Scripted(replies))


@cases(
    ("reply", "value"),
    [
        ("ANSWER: 1", 0.0), ("ANSWER: 2", 0.25), ("ANSWER: 3", 0.5), ("ANSWER: 4", 0.75), ("ANSWER: 5", 1.0),
        ("answer: 4", 0.75), ("ANSWER: 4.", 0.75), ("**ANSWER: 5**", 1.0), ("4", 0.75), ("ANSWER:2", 0.25),
        ("The cube lies beside the plate.\nANSWER: 3", 0.5), ("ANSWER: <3>", 0.5), ("ANSWER: 4.0", 0.75),
        ("ANSWER: 5 - Perfect Completion", 1.0), ("ANSWER: 3 (Partial Completion)", 0.5), ("ANSWER: 5/5", 1.0),
        ("ANSWER: 5 – Perfect Completion: Final state satisfies all requirements.", 1.0),
    ],
)  # fmt: skip
def test_a_grade_of_roboreward_is_a_share_of_the_way(reply, value):
    model = roboreward(reply)
    score = model.score([recorded(4)])[0]
    assert score.total == value
    assert (model.info.granularity, model.info.progress, model.info.range) == ("total", True, (0.0, 1.0))


@cases(
    "reply",
    [
        "ANSWER: 6", "ANSWER: 0", "ANSWER: 3 or 4", "ANSWER: 2\nANSWER: 3", "ANSWER: ", "good", "ANSWER: 4.5", "",
        "ANSWER: 5 - Near Completion", "ANSWER: 4/10", "ANSWER: 3 - maybe",
    ],
)  # fmt: skip
def test_a_reply_without_one_grade_is_a_failure(reply):
    score = roboreward(reply).score([recorded(4)])[0]
    assert score.total is None
    assert score.failure is not None


def test_roboreward_asks_with_the_text_of_its_card():
    backend = (model := roboreward("ANSWER: 3")).backend
    model.score([recorded(20)])
    (asked,) = backend.asked
    assert asked.prompt.text.splitlines() == [
        "Given the task, assign a discrete progress score reward (1,2,3,4,5) for the robot in the video in the format: "
        "ANSWER: <score>",
        "Rubric for end-of-episode progress (judge only the final state without time limits):",
        "1 - No Success: Final state shows no goal-relevant change for the command.",
        "2 - Minimal Progress: Final state shows a small but insufficient change toward the goal.",
        "3 - Partial Completion: The final state shows good progress toward the goal but violates more than one "
        "requirement or a major requirement.",
        "4 - Near Completion: Final state is correct in region and intent but misses a single minor requirement.",
        "5 - Perfect Completion: Final state satisfies all requirements.",
        "",
        f"Task: {TASK}",
    ]
    assert len(asked.media[0].frames) == 16


def test_roboreward_of_every_row():
    model = roboreward(*(f"ANSWER: {n}" for n in (1, 1, 3, 5)), rows="all")
    assert model.score([recorded(4)])[0].steps.tolist() == [0, 0, 0.5, 1]
    assert model.info.frames_needed == ALL_FRAMES


def test_a_folder_of_roboreward_answers(tmp_path):
    """Random weights write no grade."""
    model = load_reward_model("roboreward", tiny_folder("qwen3_vl"), device="cpu", vlm=EXACT | {"max_tokens": 4})
    assert (model.settings.fps, model.settings.max_pixels) == (1.0, 16384 * 32 * 32)
    assert model.score([recorded(3)])[0].failure.reason in ("no_verdict", "truncated", "several_answers", "empty")


# Which is which.


def test_a_folder_says_what_it_holds(home, tmp_path, monkeypatch):
    for folder, kind in (("sarm", "sarm"), ("robometer", "robometer"), ("authors", "robometer"), ("base", "text")):
        assert kind_at(str(home / folder)) == kind
    rewarded = tmp_path / "models" / "RoboReward-4B"
    rewarded.parent.mkdir()
    rewarded.symlink_to(home / "base")
    assert kind_at(str(rewarded)) == "roboreward"
    named = published.write_base(tmp_path / "downloaded")
    (named / "README.md").write_text("# RoboReward 8B\n")
    assert kind_at(str(named)) == "roboreward"
    monkeypatch.chdir(tmp_path)
    assert kind_at("teetone/RoboReward-8B") == "roboreward"


@pytest.mark.parametrize("kind", ["sarm", "robometer"])
def test_what_is_not_here_is_not_fetched(kind):
    with pytest.raises(GuerdonError, match="there is no such folder"):
        load_reward_model(kind, "nobody/Nothing-4B")


# LeRobot itself.


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(LEROBOT is None, reason="set GUERDON_LEROBOT to a Python interpreter that has lerobot 0.6")
@pytest.mark.parametrize("kind", ["sarm", "robometer"])
def test_lerobot_itself_agrees(home, tmp_path, kind):
    for name in (kind, "clip", "base"):
        (tmp_path / name).symlink_to(home / name)
    episode = recorded() if kind == "sarm" else recorded(6, SIZE)
    np.savez(tmp_path / "episode.npz", frames=episode.frames, states=episode.states, task=TASK)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    side = [LEROBOT, str(Path(__file__).with_name("lerobot_rewards_side.py")), kind, str(tmp_path)]
    done = subprocess.run(side, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    values = np.load(tmp_path / "values.npz")
    if kind == "sarm":
        found = {head: sarm(home, head=head) for head in ("sparse", "dense")}
        for step, file in enumerate(("to_batch", "rename_observations", "normalizer")):
            theirs = json.loads((tmp_path / "theirs" / "policy_preprocessor.json").read_text())["steps"]
            assert theirs[step]["registry_name"] == f"{file}_processor"
    else:
        found = {"progress": robometer(home), "success": robometer(home, question="completed")}
        np.testing.assert_array_equal(
            values["compute_reward"].astype(np.float32), values["progress"].astype(np.float32)
        )

    def measured(model):
        return model.score([episode])[0].steps if kind == "sarm" else at_the_last_of_four(model)

    for name, model in found.items():
        np.testing.assert_allclose(measured(model), values[name], atol=1e-5)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (home / kind, tmp_path / "theirs"))
    assert {k: tuple(v.shape) for k, v in ours.items()} == {k: tuple(v.shape) for k, v in theirs.items()}
    again = load_reward_model(
        kind, tmp_path / "theirs", **({"clip_path": str(home / "clip")} if kind == "sarm" else {"vlm": EXACT})
    )
    np.testing.assert_allclose(measured(again), next(iter(values.values())), atol=1e-5)
