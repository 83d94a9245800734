"""Statistics and configurations of published checkpoints, against the formulas of OpenVLA-OFT and LeRobot.

OpenVLA-OFT at 213c5ff8: `experiments/robot/openvla_utils.py` (`normalize_proprio`) and `prismatic/extern/hf`
(`_unnormalize_actions`). LeRobot at 7427f318: `processor/normalize_processor.py` and `resize_with_pad` of SmolVLA.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from test_vla_checkpoints import (
    filled,
    openvla_shapes,
    read,
    small_towers,  # noqa: F401
    smolvla_shapes,
    write_openvla,
    write_smolvla,
    write_vlm,
)
from vla_models import observations

from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.policies.robots.control import load_policy, save_policy
from guerdon.policies.vla.checkpoint_config import OpenVLAConfig, SmolVLAConfig, check_inputs, checked
from guerdon.policies.vla.statistics import instruction_length, lerobot_statistics, openvla_statistics
from guerdon.train.bc import _observed
from guerdon.worlds.eye import letterboxed, resized
from tables import cases, refuses

torch.set_num_threads(1)
NAN, INF = float("nan"), float("inf")
QUANTILES = {"q01": [-0.5, -1.0, 0.25], "q99": [0.5, 3.0, 0.25], "mask": [True, True, True]}


def openvla(folder, *, actions=3, proprio_size=0, key=None, **changes):
    """Statistics of one data set, from `dataset_statistics.json` with changed numbers of actions or proprioception."""
    part = "proprio" if proprio_size else "action"
    parts = {"action": QUANTILES, "proprio": QUANTILES}
    parts[part] = {name: x for name, x in {**QUANTILES, **changes}.items() if x != "absent"}
    (folder / "dataset_statistics.json").write_text(json.dumps({"door": parts}))
    return openvla_statistics([folder], None, key, actions=actions, proprio_size=proprio_size)


def test_openvla_actions_and_proprioception_follow_its_formulas(tmp_path):
    found = openvla(tmp_path, mask=[True, False, True])
    shift, scale = found.action
    normalised = np.array([[-1.0, 0.7, 1.0], [1.0, -0.2, -1.0], [0.5, 0.0, 0.0]])
    low, high = np.array(QUANTILES["q01"]), np.array(QUANTILES["q99"])
    wanted = 0.5 * (normalised + 1) * (high - low + 1e-8) + low
    wanted[:, 1] = normalised[:, 1]
    assert shift + scale * normalised == pytest.approx(wanted, abs=1e-12)
    shift, scale = openvla(tmp_path, proprio_size=3).proprio
    measured = np.array([[0.25, 2.0, 0.25], [-0.5, -1.0, 0.25]])
    assert (measured - shift) / scale == pytest.approx(2 * (measured - low) / (high - low + 1e-8) - 1, abs=1e-7)
    assert openvla(tmp_path, mask="absent").action[1] == pytest.approx([0.5, 2, 0], abs=1e-7), "all are normalised"


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        (r"door\.action\.q01\[1\] is nan", {"q01": [0, NAN, 0]}),
        (r"door\.action\.q99\[2\] is inf", {"q99": [1, 4, INF]}),
        (r"door\.action\.q01\[0\] is -inf", {"q01": [-INF, 0, 0]}),
        (r"door\.action\.q99\[0\] is nan", {"q99": [None, 4, 1]}),
        (r"door\.action\.q99\[0\] is 1e\+300", {"q99": [1e300, 4, 1]}),
        (r"door\.action\.q01\[1\] is -inf", {"q01": [0, -(10**400), 0]}),
        (r"door\.action\.q99\[1\] is -2\.0, below door\.action\.q01", {"q99": [1, -2, 1]}),
        (r"door\.action\.q99 equals .* in every number", {"q01": [0, 0, 0], "q99": [0, 0, 0]}),
        (r"has no door\.action\.q99", {"q99": "absent"}),
        (r"has no door\.action\.q01", {"q01": "absent"}),
        (r"door\.action\.q01 is not a list of numbers", {"q01": "0, 0, 0"}),
        (r"door\.action\.q01 is not a list of numbers", {"q01": ["0", "0", "0"]}),
        (r"door\.action\.q99 is not a list of numbers", {"q99": [[1, 1, 1]]}),
        (r"door\.action\.mask must be 3 times", {"mask": [True, False]}),
        (r"door\.action\.mask must be 3 times", {"mask": ["true", "true", "false"]}),
        (r"door\.action\.mask must be 3 times", {"mask": [0.5, 1, 1]}),
    ],
)
def test_openvla_statistics_that_are_none(said, changes, tmp_path):
    with pytest.raises(CheckpointError, match=rf"dataset_statistics\.json.*{said}.*compute the statistics again"):
        openvla(tmp_path, **changes)
    if "every number" in said:  # a robot that stood still is possible
        assert openvla(tmp_path, proprio_size=3, **changes).proprio[1] == pytest.approx([0, 0, 0], abs=1e-8)
        return
    with pytest.raises(CheckpointError, match=said.replace("action", "proprio")):
        openvla(tmp_path, proprio_size=3, **changes)


def test_openvla_statistics_of_another_size_or_kind(tmp_path):
    for name in ("q01", "q99"):
        with pytest.raises(ConfigError, match=rf"have 2 action numbers, the environment has 3 \(door\.action\.{name}"):
            openvla(tmp_path, **{name: [0, 1]})
    file = tmp_path / "dataset_statistics.json"
    for content, said in (("[1]", "holds no JSON object"), ("{", "cannot be read"),
                          ('{"door": 3}', "door has no statistics of action"),
                          ('{"door": {"action": [1]}}', "door has no statistics of action")):  # fmt: skip
        file.write_text(content)
        with pytest.raises(CheckpointError, match=rf"dataset_statistics\.json.*{said}"):
            openvla_statistics([tmp_path], None, None, actions=3, proprio_size=0)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"config\.json has no norm_stats\.bridge\.action\.q99"):
        openvla_statistics([tmp_path], {"bridge": {"action": {"q01": [1]}}}, None, actions=1, proprio_size=0)


def test_openvla_numbers_that_are_not_used_may_be_anything(tmp_path):
    """As in published statistics: the gripper is masked, some numbers are constant, masks are 0 and 1."""
    found = openvla(tmp_path, q01=[-1, 0, 5], q99=[1, 0, None], mask=[1, 1, 0])
    assert found.action[0] + found.action[1] * 1 == pytest.approx([1, 0, 1], abs=1e-7)
    assert found.action[0] + found.action[1] * -1 == pytest.approx([-1, 0, -1], abs=1e-7)


# LeRobot's.


def numbers_of(seed, size):
    """Statistics in order, with float32 numbers as LeRobot stores them; the first number is constant."""
    rng = np.random.default_rng(seed)
    ordered = np.sort(rng.normal(size=(6, size)), axis=0).astype(np.float32)
    ordered[:, 0] = 0.75
    std = np.abs(rng.normal(size=size)).astype(np.float32)
    std[0] = 0
    names = ("min", "q01", "q10", "q90", "q99", "max")
    return {**dict(zip(names, ordered, strict=True)), "mean": ordered.mean(0), "std": std}


def lerobot(mode, x, numbers, *, inverse, eps=1e-8):
    """`_NormalizationMixin._apply_transform` for one mode, in float64."""
    s = {name: value.astype(np.float64) for name, value in numbers.items()}
    if mode == "IDENTITY":
        return x
    if mode == "MEAN_STD":
        return x * s["std"] + s["mean"] if inverse else (x - s["mean"]) / (s["std"] + eps)
    low, high = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}[mode]
    width = np.where(s[high] == s[low], eps, s[high] - s[low])
    return (x + 1) / 2 * width + s[low] if inverse else 2 * (x - s[low]) / width - 1


def processors(folder, *, mode="MEAN_STD", action=None, state=None, maps=None, steps=(), **config):
    """`policy_preprocessor.json`, `policy_postprocessor.json` and their files, as LeRobot writes them."""
    folder.mkdir(exist_ok=True)
    maps = maps or {"VISUAL": "IDENTITY", "STATE": mode, "ACTION": mode}
    stored = {f"action.{k}": torch.as_tensor(np.asarray(v)) for k, v in (action or numbers_of(0, 3)).items()}
    stored |= {f"observation.state.{k}": torch.as_tensor(np.asarray(v)) for k, v in (state or numbers_of(1, 4)).items()}
    for side, name, before in (
        ("pre", "normalizer_processor", ["rename_observations_processor", "to_batch_processor",
                                         "smolvla_new_line_processor", "device_processor"]),
        ("post", "unnormalizer_processor", []),
    ):  # fmt: skip
        file = f"policy_{side}processor_step_{len(before)}_{name}.safetensors"
        own = {"registry_name": name, "config": {"norm_map": maps, "features": {}, **config}, "state_file": file}
        others = [{"registry_name": step, "config": {}} for step in before]
        (folder / f"policy_{side}processor.json").write_text(
            json.dumps({"name": side, "steps": [*others, own, *(steps if side == "pre" else ())]})
        )
        save_file(stored, folder / file)
    return folder


def smolvla(folder, *, actions=3, proprio_size=4, config=None, stored=None):
    return lerobot_statistics(
        [folder], config or SmolVLAConfig(), {} if stored is None else stored, actions=actions,
        proprio_size=proprio_size,
    )  # fmt: skip


@pytest.mark.parametrize("eps", [1e-8, 0.01])
@pytest.mark.parametrize("mode", ["IDENTITY", "MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10"])
def test_smolvla_is_normalised_as_lerobot_does(mode, eps, tmp_path):
    """A state that is constant in the data, -1 for bounds, is the first."""
    found = smolvla(processors(tmp_path, mode=mode, eps=eps))
    rng, state = np.random.default_rng(2), numbers_of(1, 4)
    x = rng.normal(size=(5, 4))
    x[:3, 0] = 0.75
    shift, scale = found.proprio
    assert (x - shift) / scale == pytest.approx(lerobot(mode, x, state, inverse=False, eps=eps), rel=1e-6, abs=1e-6)
    y = rng.normal(size=(5, 3))
    shift, scale = found.action
    assert shift + scale * y == pytest.approx(lerobot(mode, y, numbers_of(0, 3), inverse=True, eps=eps), abs=1e-6)
    assert found.modes == (mode, mode)


def test_smolvla_modes_come_from_the_processors_then_from_the_configuration(tmp_path):
    folder = processors(tmp_path, maps={"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "MIN_MAX"})
    assert smolvla(folder).modes == ("MIN_MAX", "QUANTILES"), "not those of the configuration"
    assert smolvla(processors(tmp_path, maps={"ACTION": "MEAN_STD"})).modes == ("MEAN_STD", "IDENTITY"), "not named"
    folder = processors(tmp_path, normalize_observation_keys=["observation.images.top"])
    assert smolvla(folder).modes == ("MEAN_STD", "IDENTITY")
    for side in ("pre", "post"):
        (tmp_path / f"policy_{side}processor.json").unlink()
    own = SmolVLAConfig(normalization_mapping={"ACTION": "QUANTILE10", "STATE": "MIN_MAX"})
    assert smolvla(tmp_path, config=own).modes == ("QUANTILE10", "MIN_MAX")
    older = {
        f"{group}.so100.buffer_{name}.{key}": torch.as_tensor(value)
        for group, name, numbers in (("normalize_inputs", "observation_state", numbers_of(1, 4)),
                                     ("unnormalize_outputs", "action", numbers_of(0, 3)),
                                     ("normalize_targets", "action", numbers_of(0, 3)))
        for key, value in numbers.items()
    }  # fmt: skip
    empty = tmp_path / "empty"
    found = smolvla(empty, config=own, stored=older)
    assert found.modes == ("QUANTILE10", "MIN_MAX")
    assert found.proprio[1] == pytest.approx(smolvla(tmp_path, config=own).proprio[1])
    assert older == {}, "they are not weights"
    several = {f"normalize_inputs.so{i}.buffer_observation_state.min": torch.full((4,), float(i)) for i in (100, 101)}
    with pytest.raises(CheckpointError, match=r"several statistics observation\.state\.min"):
        smolvla(empty, config=own, stored=several)


@pytest.mark.parametrize(
    ("said", "mode", "changes"),
    [
        (r"action\.std\[1\] is -1\.0, below zero", "MEAN_STD", {"std": [1, -1, 1]}),
        (r"action\.std equals zero in every number", "MEAN_STD", {"std": [0, 0, 0]}),
        (r"action\.mean\[2\] is nan", "MEAN_STD", {"mean": [0, 0, NAN]}),
        (r"action\.std\[0\] is inf", "MEAN_STD", {"std": [INF, 1, 1]}),
        (r"action\.max\[0\] is -9\.0, below action\.min", "MIN_MAX", {"max": [-9, 9, 9]}),
        (r"action\.q99\[2\] is -9\.0, below action\.q01", "QUANTILES", {"q99": [9, 9, -9]}),
        (r"action\.q90\[2\] is nan", "QUANTILE10", {"q90": [9, 9, NAN]}),
        (r"has no action\.q10", "QUANTILE10", {"q10": None}),
        (r"has no action\.max", "MIN_MAX", {"max": None}),
    ],
)
def test_lerobot_statistics_that_are_none(said, mode, changes, tmp_path):
    numbers = {**numbers_of(0, 3), **{k: None if v is None else np.array(v, np.float32) for k, v in changes.items()}}
    numbers = {k: v for k, v in numbers.items() if v is not None}
    with pytest.raises(CheckpointError, match=rf"safetensors.*{said}.*compute the statistics again"):
        smolvla(processors(tmp_path, mode=mode, action=numbers))
    other = {"MEAN_STD": "MIN_MAX", "MIN_MAX": "MEAN_STD"}.get(mode, "IDENTITY")
    assert smolvla(processors(tmp_path, mode=other, action=numbers)).modes[0] == other, "what is not used is not read"


def test_smolvla_processors_that_are_not_supported(tmp_path):
    with pytest.raises(ConfigError, match=r"have 4 observation\.state numbers, the environment has 7"):
        smolvla(processors(tmp_path), proprio_size=7)
    with pytest.raises(CheckpointError, match="VISUAL is normalised by MEAN_STD"):
        smolvla(processors(tmp_path, maps={"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}))
    with pytest.raises(CheckpointError, match=r"policy_preprocessor\.json.*norm_map\.STATE.*it is 'ZSCORE'"):
        smolvla(processors(tmp_path, maps={"STATE": "ZSCORE", "ACTION": "MEAN_STD"}))
    with pytest.raises(CheckpointError, match=r"eps.*it is 0"):
        smolvla(processors(tmp_path, eps=0))
    with pytest.raises(CheckpointError, match="step relative_actions_processor is not supported"):
        smolvla(processors(tmp_path, steps=[{"registry_name": "relative_actions_processor", "config": {}}]))
    with pytest.raises(CheckpointError, match=r"step mine\.Step is not supported"):
        smolvla(processors(tmp_path, steps=[{"class": "mine.Step"}]))
    off = [{"registry_name": "relative_actions_processor", "config": {"enabled": False}}]
    assert smolvla(processors(tmp_path, steps=off)).modes == ("MEAN_STD", "MEAN_STD")
    lost = next(tmp_path.glob("policy_post*safetensors"))
    lost.unlink()
    with pytest.raises(CheckpointError, match=rf"{lost.name}, which is not there"):
        smolvla(tmp_path)
    (tmp_path / "policy_postprocessor.json").write_text('{"steps": [{"registry_name": "device_processor"}]}')
    with pytest.raises(CheckpointError, match="has no step unnormalizer_processor"):
        smolvla(tmp_path)
    (tmp_path / "policy_postprocessor.json").write_text('{"name": "post"}')
    with pytest.raises(CheckpointError, match="steps: Field required"):
        smolvla(tmp_path)


def test_instructions_are_cut_off_as_the_processor_says(tmp_path):
    def length(**config):
        return instruction_length(
            processors(tmp_path, steps=[{"registry_name": "tokenizer_processor", "config": config}]), SmolVLAConfig()
        )

    assert length(max_length=12) == 12
    assert length() == 48
    assert length(truncation=False, max_length=12) is None
    assert instruction_length(tmp_path / "none", SmolVLAConfig(tokenizer_max_length=5)) == 5
    with pytest.raises(CheckpointError, match="max_length of tokenizer_processor is '9'"):
        length(max_length="9")


# Configurations.


@cases(
    ("said", "changes"),
    [
        ("adapt_to_pi_aloha true is not supported", {"adapt_to_pi_aloha": True}),
        ("use_delta_joint_actions_aloha true is not supported", {"use_delta_joint_actions_aloha": True}),
        ("add_image_special_tokens true is not supported", {"add_image_special_tokens": True}),
        ("prefix_length 300 is not supported", {"prefix_length": 300}),
        (r"resize_imgs_with_padding \[16, 32\]", {"resize_imgs_with_padding": [16, 32]}),
        ("resize_imgs_with_padding null", {"resize_imgs_with_padding": None}),
        ("chunk_size: .*it is 'many'", {"chunk_size": "many"}),
        ("chunk_size: .*it is None", {"chunk_size": None}),
        (r"resize_imgs_with_padding\.1: Field required", {"resize_imgs_with_padding": [16]}),
        (r"input_features\.observation\.state\.type: Field required", {"input_features": {"observation.state": {}}}),
        (r"normalization_mapping\.STATE: .*it is 'STD'", {"normalization_mapping": {"STATE": "STD"}}),
        ("empty_cameras: .*it is -1", {"empty_cameras": -1}),
    ],
)
def test_smolvla_configurations_that_are_refused_by_name(said, changes):
    file = Path("vla/config.json")
    with pytest.raises(CheckpointError, match=rf"vla/config\.json: {said}"):
        checked(SmolVLAConfig, {"type": "smolvla", **changes}, file).refuse_others(file)
    checked(SmolVLAConfig, {"type": "smolvla"}, file).refuse_others(file)  # LeRobot's defaults


def test_openvla_configurations_that_are_refused_by_name(tmp_path, small_towers):  # noqa: F811
    folder = write_openvla(tmp_path / "vla", filled(openvla_shapes()))
    whole = json.loads((folder / "config.json").read_text())
    for said, changes in {
        "image_resize_strategy letterbox is not supported": {"image_resize_strategy": "letterbox"},
        "image_sizes has 1 numbers for 2 towers": {"image_sizes": [8]},
        r"timm_override_act_layers \['quick_gelu'\]": {"timm_override_act_layers": ["quick_gelu", None]},
        "n_action_bins: .*it is 'many'": {"n_action_bins": "many"},
        "n_action_bins is 999, the vocabulary has 320": {"n_action_bins": 999},
        r"text_config\.vocab_size: Field required": {"text_config": {"hidden_size": 16}},
        "norm_stats: .*it is 3": {"norm_stats": 3},
    }.items():
        (folder / "config.json").write_text(json.dumps({**whole, **changes}))
        with pytest.raises(CheckpointError, match=rf"config\.json: {said}"):
            read(folder)
    for key in OpenVLAConfig.model_fields:
        if OpenVLAConfig.model_fields[key].is_required() and key != "timm_model_ids":
            (folder / "config.json").write_text(json.dumps({k: v for k, v in whole.items() if k != key}))
            with pytest.raises(CheckpointError, match=rf"config\.json: {key}: Field required"):
                read(folder)


def features(*cameras, others=(("observation.state", "STATE", 3),)):
    found = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 480, 640]} for name in cameras}
    return found | {name: {"type": kind, "shape": [size]} for name, kind, size in others}


def inputs_of(images=1, ignored=(), **config):
    file, form = Path("vla/config.json"), SmolVLAConfig(**config)
    cameras, others = form.inputs()
    check_inputs(file, cameras, others, given=["observation.state"], images=images, ignored=ignored)


def test_inputs_that_the_study_does_not_give():
    inputs_of(input_features=None)
    inputs_of(input_features=features("top"))
    inputs_of(2, input_features=features("top", "wrist"))
    inputs_of(input_features=features("top", "empty_camera_0", "empty_camera_1"), empty_cameras=2)
    inputs_of(input_features=features("top", "wrist"), ignored=["observation.images.wrist"])
    inputs_of(input_features=features("top", others=[("observation.language.tokens", "LANGUAGE", 48)]))
    with refuses(
        "policy.num_images_in_input", r"names 2 camera\(s\) \(observation\.images\.top, observation\.images\.wri"
    ):
        inputs_of(input_features=features("top", "wrist"))
    with refuses("policy.num_images_in_input"):
        inputs_of(2, input_features=features("top"))
    with refuses("policy.num_images_in_input"):
        inputs_of(input_features=features("top", "empty_camera_0"), empty_cameras=0)
    extra = [("observation.state", "STATE", 3), ("observation.environment_state", "ENV", 5)]
    with refuses("policy.ignored_inputs", r"names the input observation\.environment_state"):
        inputs_of(input_features=features("top", others=extra))
    inputs_of(input_features=features("top", others=extra), ignored=["observation.environment_state"])
    with refuses("policy.ignored_inputs", r"wirst is not an input of .*it names observation\.images\.top"):
        inputs_of(input_features=features("top"), ignored=["observation.images.wirst"])
    with refuses("policy.ignored_inputs", r"always takes observation\.state"):
        inputs_of(input_features=features("top"), ignored=["observation.state"])


def test_proprioception_that_oft_was_trained_with(tmp_path, small_towers):  # noqa: F811
    folder = write_openvla(tmp_path / "vla", filled(openvla_shapes()))
    (folder / "proprio_projector--1000_checkpoint.pt").write_bytes(b"")
    with refuses("policy.ignored_inputs"):
        read(folder, num_action_chunks=2)
    policy = read(folder, num_action_chunks=2, ignored_inputs=["proprio"])
    assert policy.model.proprio_projector is None
    (folder / "proprio_projector--1000_checkpoint.pt").unlink()
    with refuses("policy.ignored_inputs"):
        read(folder, num_action_chunks=2, ignored_inputs=["proprio"])


# End to end.

KEYS = {"family": "flow", "num_steps": 2, "num_action_chunks": 4, "use_proprio": True, "measured": 3}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Weights of a small SmolVLA, and the folder of its language model."""
    return filled(smolvla_shapes()), str(write_vlm(tmp_path_factory.mktemp("vlm")))


@pytest.mark.usefixtures("no_gpu")
def test_a_policy_keeps_the_modes_of_its_checkpoint(made, tmp_path):
    tensors, vlm = made
    folder = write_smolvla(tmp_path / "vla", tensors, statistics={}, input_features=features("top"))
    processors(folder, mode="MIN_MAX", state=numbers_of(1, 3))
    policy, seen = read(folder, vlm_path=vlm, **KEYS), observations(2)
    seen["proprioception"][0] = numbers_of(1, 3)["min"]
    assert policy.inputs(seen).proprio[0].tolist() == pytest.approx([-1, -1, -1], abs=1e-5)
    assert policy.inputs(seen).proprio.dtype == torch.float32
    assert policy.executed(torch.ones(1, 4, 3))[0, 0] == pytest.approx(numbers_of(0, 3)["max"], abs=1e-6)
    data = np.random.default_rng(3).normal(size=(50, 3)).astype(np.float32)
    policy.fit_statistics(data, data)
    assert policy.executed(torch.ones(1, 4, 3))[0, 0] == pytest.approx(data.max(0), abs=1e-5), "as LeRobot fine-tunes"
    save_policy(policy, tmp_path / "saved")
    other = load_policy(tmp_path / "saved")
    assert np.array_equal(other.act(seen, np.random.default_rng(0)).values,
                          policy.act(seen, np.random.default_rng(0)).values)  # fmt: skip
    assert policy.encode("open it") == policy.encode("open it\n")


@pytest.mark.usefixtures("no_gpu")
def test_a_state_that_is_not_finite_is_not_acted_on(made, tmp_path):
    tensors, vlm = made
    policy = read(write_smolvla(tmp_path / "vla", tensors), vlm_path=vlm, **KEYS)
    for value in (NAN, INF, -INF):
        seen = observations(3)
        seen["proprioception"][1, 2] = value
        with pytest.raises(DataError, match=rf"proprioception 2 of observation 1 is {value}"):
            policy.act(seen, np.random.default_rng(0))
    assert np.isfinite(policy.act(observations(3), np.random.default_rng(0)).values).all()


@pytest.mark.usefixtures("no_gpu")
def test_features_of_another_environment(made, tmp_path):
    tensors, vlm = made
    shapes = features("top", others=[("observation.state", "STATE", 9)])
    with pytest.raises(ConfigError, match=r"observation\.state has the shape \[9\], the environment has \[3\]"):
        read(write_smolvla(tmp_path / "vla", tensors, input_features=shapes), vlm_path=vlm, **KEYS)
    out = {"action": {"type": "ACTION", "shape": [7]}}
    with pytest.raises(ConfigError, match=r"action has the shape \[7\], the environment has \[3\]"):
        read(write_smolvla(tmp_path / "vla", tensors, output_features=out), vlm_path=vlm, **KEYS)
    with pytest.raises(ConfigError, match="max_state_dim 2, the environment has 3"):
        read(write_smolvla(tmp_path / "vla", tensors, max_state_dim=2), vlm_path=vlm, **KEYS)


# Pictures.


def resize_with_pad(picture, size):
    """LeRobot's `resize_with_pad` with `pad_value=0`, for one picture, in grey levels."""
    x = torch.from_numpy(picture).permute(2, 0, 1)[None].float()
    height, width = picture.shape[:2]
    ratio = max(width / size, height / size)
    x = torch.nn.functional.interpolate(x, size=(int(height / ratio), int(width / ratio)), mode="bilinear")
    x = torch.nn.functional.pad(x, (size - x.shape[3], 0, size - x.shape[2], 0))
    return x[0].permute(1, 2, 0).numpy()


@given(st.integers(4, 60), st.integers(4, 60), st.sampled_from([16, 24, 50]))
def test_pictures_are_padded_as_lerobot_does(height, width, size):
    picture = np.random.default_rng(height * 61 + width).integers(0, 256, (height, width, 3)).astype(np.uint8)
    found = letterboxed(picture, (size, size))
    assert found.dtype == np.uint8
    assert np.abs(found - resize_with_pad(picture, size)).max() <= 0.5001


def test_a_wide_picture_is_black_above_and_a_high_one_at_the_left():
    wide = letterboxed(np.full((8, 16, 3), 200, np.uint8), (16, 16))
    assert (wide[:8] == 0).all()
    assert (wide[8:] == 200).all()
    high = letterboxed(np.full((32, 16, 3), 200, np.uint8), (16, 16))
    assert (high[:, :8] == 0).all()
    assert (high[:, 8:] == 200).all()
    assert (letterboxed(np.full((1, 500, 3), 200, np.uint8), (16, 16))[15] == 200).all(), "a row is left"
    stretched = resized(np.full((8, 16, 3), 200, np.uint8), (16, 16))
    assert (stretched == 200).all(), "models that were trained on stretched pictures get those"


@pytest.mark.usefixtures("no_gpu")
def test_smolvla_sees_padded_pictures(made, tmp_path, small_towers):  # noqa: F811
    tensors, vlm = made
    policy = read(write_smolvla(tmp_path / "vla", tensors), vlm_path=vlm, num_images_in_input=2, **KEYS)
    spec = policy.observation_spec
    pictures = np.random.default_rng(5).integers(0, 256, (2, 2, 12, 20, 3)).astype(np.uint8)
    columns = [("proprioception", np.float32, (3,)), ("task", "U40"), ("frames", np.uint8, pictures.shape[1:])]
    seen = np.zeros(2, np.dtype(columns))
    seen["frames"], seen["task"] = pictures, "open it"
    wanted = np.stack([resize_with_pad(picture, 16) for picture in pictures.reshape(-1, 12, 20, 3)])
    assert np.abs(policy.inputs(seen).pictures.flatten(0, 1).numpy() - wanted).max() <= 0.5001
    cloned = _observed({"frames": pictures, "states": np.zeros((2, 5))}, spec, "open it", (0, 1, 2))
    assert np.array_equal(cloned["frames"], policy.inputs(seen).pictures.numpy()), "while cloning, too"
    openvla = read(write_openvla(tmp_path / "openvla", filled(openvla_shapes())), num_images_in_input=2)
    assert (openvla.inputs(seen).pictures.float().mean((1, 3, 4))[:, 0] > 50).all(), "OpenVLA's fill the square"
