"""pi0 and pi0.5: LeRobot's own outputs for the same weights, and the names, statistics and prompts of both layouts.

`pi0_reference.json` is what LeRobot 0.6.1 gave (see `pi0_reference.py`). openpi at 15a9616a has no package; names,
formulas and prompts were read in `examples/convert_jax_model_to_pytorch.py` (names of weights and files),
`src/openpi/shared/normalize.py`, `src/openpi/transforms.py` (`Normalize`, `Unnormalize`),
`src/openpi/models/tokenizer.py` (`PaligemmaTokenizer`) and `src/openpi/policies/libero_policy.py` (cameras).
"""

import json

import gymnasium
import numpy as np
import pi0_reference as made
import pytest
import torch
from safetensors.torch import save_file
from test_vla_checkpoints import write_tokenizer
from vla_models import observations

from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.robots.control import build_policy, load_policy, save_policy
from guerdon.policies.robots.robot import ControlInputs
from guerdon.policies.vla import published_pi0
from guerdon.policies.vla.flow import gaussian_log_prob
from guerdon.policies.vla.policy import VLAInputs
from guerdon.policies.vla.published_pi0 import state_prompt
from guerdon.settings.study import Study
from guerdon.settings.vla_policy import VLAPolicySettings
from guerdon.worlds.eye import letterboxed
from rl_clock import lines, start
from tables import refuses

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("small_gemmas")
REFERENCE = json.loads(made.FILE.read_text())
SPACE = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
KINDS = pytest.mark.parametrize("kind", ["pi0", "pi05"])
NUMBERS = {"mean": [0.0, 1.0, 2.0], "std": [1.0, 2.0, 0.5], "q01": [-1.0, 0.0, -2.0], "q99": [1.0, 3.0, 0.0]}


@pytest.fixture
def small_gemmas(monkeypatch):
    shrink(monkeypatch)


def shrink(monkeypatch):
    """Models of the sizes of the reference."""
    for name, width in (("gemma_2b", made.WIDTH), ("gemma_300m", made.EXPERT)):
        size = published_pi0.GemmaSize(width, made.LAYERS, 20, made.HEADS, 1, made.HEAD)
        monkeypatch.setitem(published_pi0.GEMMAS, name, size)
    small = {"hidden_size": made.VISION, "intermediate_size": 10, "num_hidden_layers": made.LAYERS,
             "num_attention_heads": 2, "patch_size": 4}  # fmt: skip
    for name, number in small.items():
        monkeypatch.setitem(published_pi0.SIGLIP, name, number)


def weights(kind):
    return made.filled(REFERENCE[kind]["shapes"])


def tokenizer(tmp_path):
    folder = tmp_path / "tokenizer"
    if not folder.exists():
        folder.mkdir()
        numbers = [str(i) for i in range(4)]
        write_tokenizer(folder, ["open", "it", "close", "the", "window", "Task:", "State:", "Action:", *numbers])
    return str(folder)


def lerobot(folder, kind, *, tensors=None, **changes):
    """A folder as LeRobot's `save_pretrained` writes it, with the files of its processors."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**REFERENCE[kind]["config"], **changes}))
    save_file(weights(kind) if tensors is None else tensors, folder / "model.safetensors")
    numbers = {f"{feature}.{name}": torch.tensor(value)
               for feature in ("action", "observation.state") for name, value in NUMBERS.items()}  # fmt: skip
    for name, processor in REFERENCE[kind]["processors"].items():
        (folder / name).write_text(json.dumps(processor))
        for step in processor["steps"]:
            if "state_file" in step:
                save_file(numbers, folder / step["state_file"])
    return folder


def openpi(folder, kind, *, statistics=None, **changes):
    """A folder as openpi's `convert_pi0_checkpoint` writes it; the tied embedding has the name of the head alone."""
    folder.mkdir()
    config = {"action_dim": 32, "action_horizon": made.CHUNK, "paligemma_variant": "gemma_2b",
              "action_expert_variant": "gemma_300m", "precision": "float32"}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    stored = {name.removeprefix("model."): tensor for name, tensor in weights(kind).items()}
    embedding = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
    stored["paligemma_with_expert.paligemma.lm_head.weight"] = stored.pop(embedding)
    save_file(stored, folder / "model.safetensors")
    if statistics is None:
        statistics = {part: {name: [*value, 0.0] for name, value in NUMBERS.items()} for part in ("actions", "state")}
    for name, parts in {"libero": statistics}.items() if "norm_stats" not in statistics else statistics.items():
        (folder / "assets" / name).mkdir(parents=True)
        (folder / "assets" / name / "norm_stats.json").write_text(json.dumps({"norm_stats": parts}))
    return folder


def read(folder, tmp_path, *, space=SPACE, measured=3, heads=(), **keys):
    given = {"type": "vla", "family": "flow", "vla_path": str(folder), "vlm_path": tokenizer(tmp_path), "num_steps": 3,
             "num_action_chunks": 4, "num_images_in_input": 2, "use_proprio": measured > 0, "value_hidden": [4],
             **keys}  # fmt: skip
    settings = VLAPolicySettings.model_validate({k: v for k, v in given.items() if v is not None})
    return build_policy(settings, (5,), space, sources=heads, seed=0, proprioception_size=measured)


def denoised(policy):
    """Euler's method from the noise that LeRobot's got, on its pictures, ids and states."""
    longest = max(map(len, made.IDS))
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in made.IDS])  # padded on the left
    mask = torch.tensor([[False] * (longest - len(one)) + [True] * len(one) for one in made.IDS])
    inputs = VLAInputs(torch.from_numpy(made.pictures()), ids, mask, made.drawn((2, 3), 2)).to(policy.device)
    x = made.drawn((2, made.CHUNK, 32), 1).to(policy.device)
    with torch.no_grad():
        prefix = policy.model.read(policy.pixels(inputs), inputs)
        for step in range(3):
            x = x - policy.model.velocity(prefix, x, torch.full((2,), 1 - step / 3, device=x.device))[0] / 3
    return x[..., :3].cpu().numpy()


@KINDS
@pytest.mark.parametrize("layout", ["lerobot", "openpi"])
def test_actions_are_those_of_lerobot(layout, kind, tmp_path):
    policy = read(lerobot(tmp_path / "vla", kind), tmp_path) if layout == "lerobot" else small_openpi(tmp_path, kind)
    assert denoised(policy) == pytest.approx(np.array(REFERENCE[kind]["actions"]), abs=1e-4)


def small_pictures(patch):
    """Pictures of openpi always have 224 pixels; here 16, as in the reference."""
    original = published_pi0.OpenPiConfig.as_lerobot
    small = {"image_resolution": (16, 16)}
    patch.setattr(
        published_pi0.OpenPiConfig, "as_lerobot", lambda self, form: original(self, form).model_copy(update=small)
    )


def small_openpi(tmp_path, kind, **keys):
    with pytest.MonkeyPatch.context() as patch:
        small_pictures(patch)
        folder = tmp_path / "openpi"
        return read(folder if folder.exists() else openpi(folder, kind), tmp_path, **keys)


@KINDS
def test_decisions_are_evaluated_and_stored(kind, tmp_path):
    policy = read(lerobot(tmp_path / "vla", kind), tmp_path, heads=("env",), use_lora=True, lora_rank=2)
    seen = observations(2, cameras=2)
    action = policy.act(seen, np.random.default_rng(0))
    assert action.values.shape == (2, 4, 3)
    assert action.record.shape == (2, 4, made.CHUNK, 32), "all actions of the chunk, with their padding"
    found = policy.evaluate(policy.prepared(ControlInputs(seen, action.record)))
    assert found.log_probs.shape == (2, 4)
    assert torch.equal(found.values[:, 0], policy.values(seen))
    inputs, record = policy.inputs(seen).to(policy.device), torch.from_numpy(action.record).to(policy.device)
    wanted = 0
    with torch.no_grad(), policy.computing():
        prefix = policy.model.read(policy.pixels(inputs), inputs)
        for step in range(3):
            mean, std = policy._step(prefix, record[:, step, :, :3], record[:, 0, :, 3:], step)
            wanted = wanted + gaussian_log_prob(record[:, step + 1, :, :3], mean, std).sum(-1)
    assert torch.allclose(found.log_probs, wanted[:, :4], atol=1e-4), "those of the executed actions"
    (found.log_probs.sum() + found.values.sum()).backward()
    assert all(p.grad is not None for n, p in policy.named_parameters() if n.startswith("vf."))
    save_policy(policy, tmp_path / "saved")
    again = load_policy(tmp_path / "saved").act(seen, np.random.default_rng(0))
    assert np.array_equal(again.values, action.values)
    alone = policy.act(seen[1:], np.random.default_rng(0), greedy=True).values[0]
    assert alone == pytest.approx(policy.act(seen, np.random.default_rng(0), greedy=True).values[1], abs=1e-4)


def test_ppo_with_a_value_head_learns_from_rewards(tmp_path):
    folder = openpi(tmp_path / "vla", "pi05")
    policy = {"type": "vla", "family": "flow", "vla_path": str(folder), "vlm_path": tokenizer(tmp_path), "num_steps": 2,
              "num_action_chunks": 4, "value_hidden": [8], "use_lora": True, "lora_rank": 2}  # fmt: skip
    study = Study.model_validate(
        {
            "env": {"type": "gymnasium", "task": "tiny_world:Dot-v1", "task_text": "move the dot", "num_envs": 2,
                    "max_episode_steps": 10, "native_reward": "dense", "frame_size": [32, 32]},
            "policy": policy, "algorithm": {"rollout_steps": 20, "minibatch_size": 4, "num_epochs": 1},
            "runner": {"total_steps": 80, "eval_every": 80, "eval_episodes": 2, "film_frames": 2,
                       "logger": {"log_path": str(tmp_path), "experiment_name": "run", "tensorboard": False}},
        }
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        small_pictures(patch)
        run = start(study)
        before = {name: p.detach().clone() for name, p in run.learner.policy.named_parameters() if p.requires_grad}
        run.run()
        changed = {name for name, p in run.learner.policy.named_parameters()
                   if p.requires_grad and not torch.equal(p, before[name])}  # fmt: skip
    assert any(name.startswith("vf.") for name in changed)
    assert any(".lora_" in name for name in changed)
    rows = [row for row in lines(study) if row.get("policy_loss") is not None]
    assert rows
    assert all(np.isfinite([row["policy_loss"], row["value_loss"]]).all() for row in rows)


def test_actions_attend_to_each_other_and_the_state_to_none(tmp_path):
    policy = read(lerobot(tmp_path / "vla", "pi0"), tmp_path)
    inputs = policy.inputs(observations(1, cameras=2)).to(policy.device)
    x = made.drawn((1, made.CHUNK, 32), 3).to(policy.device)
    other = x.clone()
    other[:, -1] += 1
    with torch.no_grad():
        prefix = policy.model.read(policy.pixels(inputs), inputs)
        first, second = (policy.model.velocity(prefix, one, torch.ones(1, device=x.device))[0] for one in (x, other))
    assert not torch.allclose(first[:, 0], second[:, 0], atol=1e-4)


def test_cloning_takes_the_whole_chunk(tmp_path):
    folder = lerobot(tmp_path / "vla", "pi05")
    seen, rng = observations(2, cameras=2), np.random.default_rng(0)
    for chunk in (4, made.CHUNK):
        policy = read(folder, tmp_path, num_action_chunks=chunk)
        actions = rng.uniform(-1, 1, (2, chunk, 3)).astype(np.float32)
        if chunk == made.CHUNK:
            loss = policy.imitation_loss(seen, actions, np.ones((2, chunk), np.bool_))
            assert loss.shape == (2,)
            assert torch.isfinite(loss).all()
        else:
            with refuses("policy.num_action_chunks"):
                policy.imitation_loss(seen, actions, np.ones((2, chunk), np.bool_))


# What is read beside the weights.


def test_prompts_of_pi05_are_those_of_lerobot(tmp_path):
    one = REFERENCE["prompts"]
    states = np.array(one["states"], np.float32)
    found = [state_prompt(task, state) for task, state in zip(one["tasks"], states, strict=True)]
    assert found == one["prompts"]
    policy = read(lerobot(tmp_path / "vla", "pi05"), tmp_path)
    low, high = (np.array(NUMBERS[name]) for name in ("q01", "q99"))
    seen = observations(1, cameras=2, tasks=("open_it\n",))
    seen["proprioception"] = low + (high - low) * np.array([0.0, 1.5 / 256, 2.5 / 256])  # bins 0, 1, 2
    words = ["<unk>", "<s>", "</s>", "▁", "open", "it", "close", "the", "window", "Task:", "State:", "Action:"]
    shown = [(words + list("0123"))[i] for i in policy.inputs(seen).ids[0].tolist()]
    assert shown == ["<s>", "Task:", "open", "<unk>", "State:", "0", "1", "<unk>", "Action:"], "'it,' and '2;'"


def test_instructions_of_pi0_end_with_a_line(tmp_path):
    policy = read(lerobot(tmp_path / "vla", "pi0"), tmp_path)
    assert policy.encode("open it") == policy.encode("open it\n") == [1, 4, 5]
    assert policy.encode("open_it") == [1, 0], "LeRobot leaves underscores"
    assert small_openpi(tmp_path, "pi0").encode(" open_it\n") == [1, 4, 5], "openpi does not"


@pytest.mark.parametrize(("kind", "names"), [("pi0", ("mean", "std")), ("pi05", ("q01", "q99"))])
def test_statistics(kind, names, tmp_path):
    normalised = np.array([-1.0, 0.5, 1.0])
    first, second = (np.array(NUMBERS[name]) for name in names)
    policies = {1e-8: read(lerobot(tmp_path / "vla", kind), tmp_path), 1e-6: small_openpi(tmp_path, kind)}
    for eps, policy in policies.items():
        given = torch.from_numpy(normalised).float().view(1, 1, 3).expand(1, 4, 3)
        found = policy.executed(given.to(policy.device))[0, 0]
        seen = observations(1, cameras=2)
        seen["proprioception"] = [0.3, 1.7, -0.4]
        measured = np.array([0.3, 1.7, -0.4], np.float32).astype(np.float64)
        if kind == "pi0":
            wanted, state = normalised * (second + eps) + first, (measured - first) / (second + eps)
        else:
            wanted = (normalised + 1) / 2 * (second - first + eps * (eps > 1e-7)) + first
            state = (measured - first) / (second - first + eps * (eps > 1e-7)) * 2 - 1
        assert found == pytest.approx(wanted, abs=1e-6)
        assert policy.inputs(seen).proprio[0].numpy() == pytest.approx(state, abs=1e-6)


def test_pi05_of_openpi_may_read_no_state(tmp_path):
    """As `pi05_libero` (discrete_state_input=False): the instruction alone."""
    policy = small_openpi(tmp_path, "pi05", measured=0)
    assert policy.prompt is None
    assert policy.encode("open it") == [1, 4, 5]
    assert not policy.observation_spec.proprioception
    with refuses("policy.use_proprio", "reads the state of the robot"):
        read(lerobot(tmp_path / "vla", "pi05"), tmp_path, measured=0)


def test_pictures_are_padded_in_the_middle(tmp_path):
    one = REFERENCE["padded"]
    found = letterboxed(np.array(one["picture"], np.uint8), (8, 8), centred=True)
    assert np.abs(found - np.array(one["found"])).max() <= 0.5 + 1e-3
    policy = read(lerobot(tmp_path / "vla", "pi0"), tmp_path)
    assert policy.observation_spec.padded == "centre"
    wide = observations(1, size=16, cameras=2)
    assert policy.inputs(wide).pictures.shape == (1, 2, 16, 16, 3)


def test_the_published_sizes(tmp_path, monkeypatch):
    monkeypatch.undo()
    for kind, form in (("pi0", published_pi0.Pi0Config), ("pi05", published_pi0.Pi05Config)):
        network = published_pi0._network(tmp_path, form(), 257152, 8, adaptive=kind == "pi05")
        heads = 257152 * (network.width + network.expert_width)
        assert sum(p.numel() for p in network.parameters()) + heads == REFERENCE[kind]["parameters"]


# What does not fit.


def test_a_head_of_another_model_is_refused(tmp_path):
    folder = lerobot(tmp_path / "vla", "pi0")
    for family in ("token", "regression"):
        with refuses("policy.family"):
            read(folder, tmp_path, family=family, num_steps=None, vlm_path=None)
    with pytest.raises(CheckpointError, match=r"lacks .*such as expert\.layers\.0\.input_layernorm\.dense"):
        read(lerobot(tmp_path / "other", "pi05", tensors=weights("pi0")), tmp_path)
    with pytest.raises(CheckpointError, match="'pi0_fast'; known are openvla, smolvla, pi0, pi05, openpi"):
        read(lerobot(tmp_path / "fast", "pi0", type="pi0_fast"), tmp_path)


@KINDS
def test_weights_that_are_not_the_published_ones_are_refused(kind, tmp_path):
    tensors = weights(kind)
    expert = "model.paligemma_with_expert.gemma_expert.model"
    name = f"{expert}.layers.1.mlp.up_proj.weight"
    less = {key: tensor for key, tensor in tensors.items() if key != name}
    cases = {
        r"lacks 1 weights, such as expert\.layers\.1\.mlp\.up_proj\.weight": less,
        r"has 1 unknown weights, such as expert\.extra": {**tensors, f"{expert}.extra": torch.ones(1)},
        "of another shape": {**tensors, "model.action_in_proj.weight": torch.ones(made.EXPERT, 7)},
        "not finite": {**tensors, name: torch.full_like(tensors[name], float("nan"))},
    }  # fmt: skip
    for i, (said, changed) in enumerate(cases.items()):
        with pytest.raises(CheckpointError, match=said):
            read(lerobot(tmp_path / str(i), kind, tensors=changed), tmp_path)


def test_configurations_that_are_not_supported_are_refused(tmp_path):
    for i, (said, changes) in enumerate({
        "use_relative_actions true is not supported": {"use_relative_actions": True},
        r"image_resolution \[16, 24\] \(not square\)": {"image_resolution": [16, 24]},
        "paligemma_variant: .*it is 'gemma_9b'": {"paligemma_variant": "gemma_9b"},
        "use_visual_memory true is not supported": {"use_visual_memory": True},
    }.items()):  # fmt: skip
        with pytest.raises(CheckpointError, match=said):
            read(lerobot(tmp_path / str(i), "pi05", **changes), tmp_path)
    folder = lerobot(tmp_path / "relative", "pi0")
    steps = json.loads((folder / "policy_preprocessor.json").read_text())
    next(one for one in steps["steps"] if one["registry_name"] == "relative_actions_processor")["config"]["enabled"] = (
        True
    )
    (folder / "policy_preprocessor.json").write_text(json.dumps(steps))
    with pytest.raises(CheckpointError, match="the step relative_actions_processor is not supported"):
        read(folder, tmp_path)
    folder = lerobot(tmp_path / "vla", "pi0")
    for key, said, value in (
        ("num_action_chunks", "chunks of 6", 7),
        ("num_images_in_input", r"names 2 camera\(s\)", 1),
        ("vlm_path", r"tokenizer.*set policy\.vlm_path", None),
    ):
        with refuses(f"policy.{key}", said):
            read(folder, tmp_path, **{key: value})
    with pytest.raises(ConfigError, match=r"action has the shape \[3\], the environment has \[4\]"):
        read(folder, tmp_path, space=gymnasium.spaces.Box(-1, 1, (4,), np.float32))


def test_studies_that_do_not_fit_a_folder_of_openpi_are_refused(tmp_path):
    folder = openpi(tmp_path / "vla", "pi0")
    for key, said, changes in (
        ("use_proprio", "reads the state of the robot", {"measured": 0}),
        ("num_action_chunks", "trained on chunks of 6", {"num_action_chunks": 7}),
        ("ignored_inputs", "names no inputs; leave the list out", {"ignored_inputs": ["a"]}),
    ):
        with refuses(f"policy.{key}", said):
            read(folder, tmp_path, **changes)


def test_a_checkpoint_without_words_has_not_the_published_layout(tmp_path):
    words = ("paligemma.model.language_model.embed_tokens.weight", "paligemma.lm_head.weight")
    less = {name: tensor for name, tensor in weights("pi0").items() if not name.endswith(words)}
    with pytest.raises(CheckpointError, match=r"does not have the published layout: it lacks .*paligemma\.lm_head\."):
        read(lerobot(tmp_path / "vla", "pi0", tensors=less), tmp_path)


@pytest.mark.parametrize(
    ("frozen", "parts"), [("train_expert_only", ("see", "text")), ("freeze_vision_encoder", ("see.tower",))]
)
def test_a_checkpoint_says_which_parts_stay_as_they_are(frozen, parts, tmp_path):
    network = read(lerobot(tmp_path / "vla", "pi0", **{frozen: True}), tmp_path).model
    for name, parameter in network.named_parameters():
        assert parameter.requires_grad != name.startswith(tuple(f"{part}." for part in parts)), name


def test_statistics_of_openpi_that_are_none_are_refused(tmp_path):
    both = {"actions": NUMBERS, "state": NUMBERS}
    below = {**NUMBERS, "std": [1.0, -2.0, 1.0]}
    for i, (said, statistics) in enumerate({
        "have 2 actions numbers, the environment has 3": {**both, "actions": {k: v[:2] for k, v in NUMBERS.items()}},
        r"has no norm_stats\.state": {"actions": NUMBERS},
        r"norm_stats\.actions\.std\[1\] is -2\.0, below zero": {**both, "actions": below},
        r"has no norm_stats\.actions\.std": {**both, "actions": {"mean": [0.0] * 3}},
    }.items()):  # fmt: skip
        with pytest.raises((CheckpointError, ConfigError), match=said):
            read(openpi(tmp_path / str(i), "pi0", statistics=statistics), tmp_path)
    folder = openpi(tmp_path / "two", "pi0")
    (folder / "assets" / "droid").mkdir()
    (folder / "assets" / "droid" / "norm_stats.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"assets has .*droid/norm_stats\.json, .*libero/norm_stats\.json: keep"):
        read(folder, tmp_path)
    with refuses("policy.num_images_in_input"):
        read(folder, tmp_path, num_images_in_input=4)
