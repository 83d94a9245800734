"""Cloning starts from base models whose statistics, joints and cameras are those of other data sets."""

import json
import sys

import gymnasium
import numpy as np
import pytest
import test_vla_checkpoints as checkpoints
import test_vla_pi0 as pi0
import torch
from safetensors.torch import load_file
from test_vla_checkpoints import filled, openvla_shapes, smolvla_shapes, write_openvla, write_smolvla, write_vlm
from vla_models import observations

from guerdon import cli
from guerdon.errors import CheckpointError, ConfigError
from guerdon.plan.gpu import _kind
from guerdon.policies.robots.control import build_policy, load_policy, save_policy
from guerdon.policies.robots.robot import ControlInputs
from guerdon.processes.progress import log_once
from guerdon.settings.vla_policy import VLAPolicySettings
from tables import cases, refuses

small_gemmas, small_towers = pi0.small_gemmas, checkpoints.small_towers
SPACE = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
CAMERAS = {f"observation.images.camera{k}": {"type": "VISUAL", "shape": [3, 256, 256]} for k in (1, 2, 3)}
PROJECTIONS = ("action_in_proj", "action_out_proj", "state_proj")


def features(actions, state):
    return {
        "input_features": {**CAMERAS, "observation.state": {"type": "STATE", "shape": [state]}},
        "output_features": {"action": {"type": "ACTION", "shape": [actions]}},
    }


def smolvla_base(tmp_path, *, actions=6, state=6, statistics=None):
    """As `smolvla_base`: three cameras, six joints, statistics of none of the study's data."""
    folder = write_smolvla(
        tmp_path / "base", filled(smolvla_shapes()), statistics=statistics, **features(actions, state)
    )
    vlm = tmp_path / "vlm"
    return folder, str(vlm if vlm.exists() else write_vlm(vlm))


def build(folder, *, vlm=None, measured=3, space=SPACE, other_data=True, **keys):
    given = {"type": "vla", "family": "flow", "vla_path": str(folder), "vlm_path": vlm, "num_steps": 2,
             "num_action_chunks": 4, "use_proprio": True, "value_hidden": [4], **keys}  # fmt: skip
    settings = VLAPolicySettings.model_validate({k: v for k, v in given.items() if v is not None})
    return build_policy(settings, (5,), space, sources=(), seed=0, proprioception_size=measured, other_data=other_data)


def own(policy):
    """Copies of the weights, by their names without adapters."""
    return {name.replace(".base_layer", ""): value.cpu().clone() for name, value in policy.model.state_dict().items()}


def clone(policy, *, cameras=1):
    """Two gradient steps on random demonstrations, with their statistics."""
    seen, rng = observations(4, cameras=cameras), np.random.default_rng(0)
    actions = rng.normal(3, 2, (4, 4, 3)).astype(np.float32)
    policy.fit_statistics(actions[:, 0], seen["proprioception"])
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        loss = policy.imitation_loss(seen, actions, np.ones((4, 4), np.bool_)).mean()
        loss.backward()
        optimizer.step()
    assert torch.isfinite(loss)
    return seen, actions


@pytest.mark.usefixtures("no_gpu")
@cases("keys", ({}, {"use_lora": True, "lora_rank": 2}))
def test_a_base_of_other_joints_and_cameras_is_cloned(keys, tmp_path_factory, capsys):
    tmp_path = tmp_path_factory.mktemp("base")
    folder, vlm = smolvla_base(tmp_path)
    with refuses("policy.num_images_in_input"):  # a run acts with what was trained
        build(folder, vlm=vlm, other_data=False)
    log_once.cache_clear()
    capsys.readouterr()
    policy = build(folder, vlm=vlm, **keys)
    said = capsys.readouterr().err
    assert (
        "cameras observation.images.camera1, observation.images.camera2, observation.images.camera3; here it sees 1"
        in said
    )
    assert (
        "action of 3 numbers instead of 6, observation.state of 3 numbers instead of 6; "
        "fresh weights: action_in_proj, action_out_proj, state_proj" in said
    )
    stored = {name.removeprefix("model."): value for name, value in load_file(folder / "model.safetensors").items()}
    weights = own(policy)
    for name in (*PROJECTIONS, "action_time_mlp_in"):
        same = torch.equal(weights[f"{name}.weight"], stored[f"{name}.weight"])
        assert same == (name not in PROJECTIONS), name
    trained = {name for name, p in policy.model.named_parameters() if p.requires_grad}
    assert {f"{name}.weight" for name in PROJECTIONS} <= trained
    seen, actions = clone(policy)
    assert policy.executed(torch.zeros(1, 4, 3))[0, 0] == pytest.approx(actions[:, 0].mean(0), abs=1e-5)
    assert not torch.equal(own(policy)["state_proj.weight"], weights["state_proj.weight"])
    save_policy(policy, tmp_path / "clone")
    acted = policy.act(seen, np.random.default_rng(0)).values
    assert np.array_equal(load_policy(tmp_path / "clone").act(seen, np.random.default_rng(0)).values, acted)
    again = build(folder, vlm=vlm, other_data=False, checkpoint=str(tmp_path / "clone"), **keys)
    again.load_tensors(policy.tensors())
    assert np.array_equal(again.act(seen, np.random.default_rng(0)).values, acted)


@pytest.mark.usefixtures("no_gpu")
def test_projections_stay_where_the_widths_are_those_of_the_data(tmp_path, capsys):
    log_once.cache_clear()
    folder, vlm = smolvla_base(tmp_path, actions=3, state=3)
    policy = build(folder, vlm=vlm, num_images_in_input=3)
    assert "fresh weights" not in capsys.readouterr().err
    stored = {name.removeprefix("model."): value for name, value in load_file(folder / "model.safetensors").items()}
    assert all(torch.equal(own(policy)[f"{name}.weight"], stored[f"{name}.weight"]) for name in PROJECTIONS)
    clone(policy, cameras=3)


@pytest.mark.usefixtures("no_gpu")
def test_statistics_of_several_robots_among_the_weights_are_not_read(tmp_path):
    """As older bases have them: of each robot's data set, with names of its own."""
    tensors = filled(smolvla_shapes())
    for robot, size in (("so100", 6), ("aloha", 14)):
        tensors |= {
            f"normalize_inputs.{robot}.buffer_observation_state.{name}": torch.ones(size) for name in ("mean", "std")
        }
        tensors |= {f"unnormalize_outputs.{robot}.buffer_action.{name}": torch.ones(size) for name in ("mean", "std")}
    folder = write_smolvla(tmp_path / "base", tensors, statistics=None, **features(6, 6))
    vlm = str(write_vlm(tmp_path / "vlm"))
    with pytest.raises((CheckpointError, ConfigError)):
        build(folder, vlm=vlm, num_images_in_input=3, other_data=False)
    policy = build(folder, vlm=vlm)
    clone(policy)


def test_what_is_wider_than_the_padding_is_refused(tmp_path):
    folder, vlm = smolvla_base(tmp_path)
    wide = gymnasium.spaces.Box(-1, 1, (33,), np.float32)
    with pytest.raises(ConfigError, match="max_action_dim 32, the environment has 33"):
        build(folder, vlm=vlm, space=wide)


def test_a_missing_input_that_is_no_camera_is_still_refused(tmp_path):
    given = features(6, 6)
    given["input_features"]["observation.force"] = {"type": "STATE", "shape": [2]}
    folder = write_smolvla(tmp_path / "base", filled(smolvla_shapes()), statistics=None, **given)
    with refuses("policy.ignored_inputs"):
        build(folder, vlm=str(write_vlm(tmp_path / "vlm")))


@pytest.mark.usefixtures("no_gpu", "small_gemmas")
@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_pi0_bases_are_cloned(kind, tmp_path, capsys):
    """As `pi0_base`: features of 32 numbers, three cameras, processors without statistics."""
    log_once.cache_clear()
    folder = pi0.lerobot(tmp_path / "vla", kind, **features(32, 32))
    for file in folder.glob("*.safetensors"):
        if file.name != "model.safetensors":
            file.unlink()
    tokenizer = pi0.tokenizer(tmp_path)
    with refuses("policy.num_images_in_input"):
        build(folder, vlm=tokenizer, other_data=False)
    policy = build(folder, vlm=tokenizer)
    names = "action_in_proj, action_out_proj" + (", state_proj" if kind == "pi0" else "")
    assert f"fresh weights: {names}" in capsys.readouterr().err
    assert policy.modes == (("MEAN_STD",) * 2 if kind == "pi0" else ("QUANTILES",) * 2)
    horizon = pi0.made.CHUNK
    policy = build(folder, vlm=tokenizer, num_action_chunks=horizon)
    seen, rng = observations(2), np.random.default_rng(0)
    actions = rng.normal(size=(2, horizon, 3)).astype(np.float32)
    policy.fit_statistics(actions[:, 0], seen["proprioception"])
    policy.imitation_loss(seen, actions, np.ones((2, horizon), np.bool_)).sum().backward()
    save_policy(policy, tmp_path / "clone")
    wanted = policy.act(seen, np.random.default_rng(0)).values
    assert np.array_equal(load_policy(tmp_path / "clone").act(seen, np.random.default_rng(0)).values, wanted)


@pytest.mark.usefixtures("no_gpu", "small_towers")
def test_a_family_without_padding_takes_its_own_numbers_only(tmp_path):
    numbers = checkpoints.STATISTICS["libero_10_no_noops"]
    wide = {part: {name: [*value, value[-1]] for name, value in one.items()} for part, one in numbers.items()}
    folder = write_openvla(tmp_path / "vla", filled(openvla_shapes()), statistics={"bridge": wide, "fractal": wide})
    keys = {"family": "token", "num_steps": None, "use_proprio": False}
    with pytest.raises(
        ConfigError, match=r"no data set .* has 3 action numbers .*\(bridge, fractal\), and this family pads"
    ):
        build(folder, **keys)
    folder = write_openvla(tmp_path / "two", filled(openvla_shapes()), statistics={"bridge": wide, "own": numbers})
    assert build(folder, **keys).action_size == 3
    with refuses("policy.unnorm_key"):
        build(folder, other_data=False, **keys)


@pytest.mark.usefixtures("no_gpu", "small_gemmas")
@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_a_folder_of_openpi_without_config_takes_its_shape_by_a_key(kind, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        pi0.small_pictures(patch)
        folder, tokenizer = pi0.openpi(tmp_path / "vla", kind), pi0.tokenizer(tmp_path)
        shape = json.loads((folder / "config.json").read_text())
        shape.pop("precision")
        wanted = build(folder, vlm=tokenizer, other_data=False, num_images_in_input=2)
        with refuses("policy.openpi"):
            build(folder, vlm=tokenizer, other_data=False, num_images_in_input=2, openpi=shape)
        (folder / "config.json").unlink()
        with pytest.raises(
            CheckpointError, match=r"weights of openpi and no config\.json: say their shape by policy\.openpi"
        ):
            build(folder, vlm=tokenizer, other_data=False, num_images_in_input=2)
        given = {"type": "vla", "family": "flow", "vla_path": str(folder), "openpi": shape}
        assert _kind(VLAPolicySettings.model_validate(given)) == "pi0"  # what `--dry-run` counts
        found = build(folder, vlm=tokenizer, other_data=False, num_images_in_input=2, openpi=shape)
    seen = observations(2, cameras=2)
    actions = [policy.act(seen, np.random.default_rng(0)) for policy in (wanted, found)]
    assert np.array_equal(actions[0].values, actions[1].values)
    assert found.evaluate(found.prepared(ControlInputs(seen, actions[1].record))).log_probs.shape == (2, 4)


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_a_published_base_is_cloned_and_run_by_the_commands(tmp_path, monkeypatch, capsys):
    """Collects episodes of Meta-World, clones them from a base of six joints and three cameras, trains the clone."""
    folder, vlm = smolvla_base(tmp_path)
    study = tmp_path / "study.yaml"
    study.write_text(f"""
work_dir: run
env: {{type: metaworld, task: door-close, num_envs: 2, frame_size: 32, max_episode_steps: 20}}
policy: {{type: vla, family: flow, vla_path: {folder}, vlm_path: {vlm}, use_proprio: true, num_steps: 2,
  num_action_chunks: 4, value_hidden: [4]}}
collect: {{save_dir: episodes, episodes: 3, frame_every: 1, mixture: [{{type: expert}}]}}
bc: {{data_path: episodes, save_dir: clone, epochs: 1, batch_size: 8, eval_episodes: 2, only_success: false}}
algorithm: {{rollout_steps: 8, minibatch_size: 4, num_epochs: 1}}
runner: {{total_steps: 32, eval_every: 32, eval_episodes: 2}}
""")
    monkeypatch.chdir(tmp_path)

    def guerdon(*words):
        monkeypatch.setattr(sys, "argv", ["guerdon", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code, capsys.readouterr().err

    guerdon("collect", str(study))
    log_once.cache_clear()
    capsys.readouterr()
    guerdon("train", str(study), "policy=bc")
    assert "fresh weights: action_in_proj, action_out_proj, state_proj" in capsys.readouterr().err
    guerdon("run", str(study), "policy.checkpoint=clone")
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == 32
