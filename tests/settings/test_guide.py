"""The reward section of the ResNet reward guide, word for word: it loads under its own names, and it runs."""

import json
import re
from pathlib import Path

import pytest

from guerdon.config.loading import load
from guerdon.errors import CheckpointError
from guerdon.settings.study import Study

pytestmark = pytest.mark.usefixtures("narrow_resnets")

GUIDE = """\
reward:
  use_reward_model: True
  group_name: "RewardGroup"

  # Reward mode:
  # - "per_step": Compute reward for every frame
  # - "terminal": Only compute reward at episode end
  reward_mode: "terminal"

  # Asymmetric reward mapping
  success_reward: 1.0   # Reward for success (prob > threshold)
  fail_reward: 0.0      # Reward for fail (prob < threshold)
  reward_threshold: 0.5 # Probability threshold

  # How to combine with environment rewards
  combine_mode: "replace"  # or "add", "weighted"
  reward_weight: 10.0
  env_reward_weight: 0.0

  model:
    model_type: "resnet_reward"
    arch: "resnet18"
    hidden_dim: 256
    dropout: 0.1
    image_size: [3, 128, 128]
    checkpoint_path: "rm/model.safetensors"
    debug_save_dir: "${runner.logger.log_path}/${runner.logger.experiment_name}/debug_images"
"""
AROUND = """\
env: {type: gymnasium, task: "tiny_world:Dot-v1", num_envs: 2, max_episode_steps: 10, frame_size: 32}
policy: {type: mlp, hidden: [8]}
algorithm: {rollout_steps: 10, minibatch_size: 10, num_epochs: 1}
runner:
  {total_steps: 40, eval_every: 40, eval_episodes: 2, checkpoint_every: 40, film_frames: 2,
   logger: {log_path: logs, experiment_name: guide, tensorboard: false}}
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("guide.yaml").write_text(GUIDE + AROUND)
    return load(Study, Path("guide.yaml"))


@pytest.fixture
def checkpoint(study):
    """A network of the guide's shape with random weights."""
    import torch

    from guerdon.models.images.backbone import ImageScorer
    from guerdon.models.images.image import ImageModelConfig, save_checkpoint

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = ImageModelConfig(type="resnet", threshold=0.9, image_size=(3, 128, 128))
    save_checkpoint("rm", ImageScorer("resnet18", hidden_dim=256, dropout=0.1), config)


def test_every_key_keeps_its_meaning(study):
    reward = study.reward
    (source,) = reward.sources.values()
    assert list(reward.sources) == ["resnet"]
    assert (reward.group_name, reward.combine_mode) == ("RewardGroup", "replace")
    assert (source.reward_mode, source.reward_threshold) == ("terminal", 0.5)
    assert (source.success_reward, source.effective_fail_reward) == (1.0, 0.0)
    assert reward.weights() == {"resnet": 10.0}  # replace: the native reward does not train the policy
    assert source.model.image_size == (3, 128, 128)
    assert source.model.debug_save_dir == "logs/guide/debug_images"


@pytest.mark.parametrize(
    ("overrides", "weights"),
    [
        (["reward.combine_mode=add"], {"env": 1.0, "resnet": 10.0}),
        (["reward.combine_mode=weighted"], {"resnet": 10.0}),
        (["reward.combine_mode=weighted", "reward.env_reward_weight=0.3"], {"env": 0.3, "resnet": 10.0}),
    ],
)
def test_how_it_combines_with_the_environment(study, overrides, weights):
    assert load(Study, Path("guide.yaml"), overrides).reward.weights() == weights


def test_negative_rewards_replace_the_failing_one(study):
    text = re.sub(r"  fail_reward.*\n", "  use_negative_reward: true\n", GUIDE)
    Path("negative.yaml").write_text(text)
    (source,) = load(Study, Path("negative.yaml")).reward.sources.values()
    assert source.effective_fail_reward == -1.0


def test_it_runs_and_shows_what_it_saw(study, checkpoint):
    from guerdon.rl.run import run

    folder, summary = run(study)
    assert folder == Path("logs/guide")
    assert summary["step"] == 40
    images = sorted(Path("logs/guide/debug_images").rglob("*.png"))
    assert len(images) >= 4  # four episodes ended, each scored once
    assert {p.parent.name for p in images} <= {"resnet_success", "resnet_fail"}
    for image in images:
        found = re.fullmatch(r"(\d{6})_prob([01]\.\d{4})\.png", image.name)
        assert found, image.name
        assert (float(found[2]) > 0.5) == (image.parent.name == "resnet_success")
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert json.loads((folder / "COMPLETE").read_text())["failures"] == {}


@pytest.mark.parametrize(
    ("override", "both"),
    [
        ("reward.model.hidden_dim=64", ["hidden_dim", "256", "64"]),
        ("reward.model.image_size=[3, 64, 64]", ["image_size", "[3, 128, 128]", "[3, 64, 64]"]),
        ("reward.model.arch=resnet34", ["arch", "resnet18", "resnet34"]),
        ("reward.model.model_type=progress", ["resnet", "progress"]),
    ],
)
def test_a_mismatch_names_both_values(study, checkpoint, override, both):
    from guerdon.rl.run import run

    extra = ["reward.shaping=raw"] if "progress" in override else []
    text = GUIDE + AROUND
    if extra:
        text = re.sub(r"  (success_reward|fail_reward|reward_threshold).*\n", "", text)
    Path("other.yaml").write_text(text)
    with pytest.raises(CheckpointError) as error:
        run(load(Study, Path("other.yaml"), [override, *extra]))
    assert "\n" not in str(error.value)
    for word in both:
        assert word in str(error.value)
