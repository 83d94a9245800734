"""A reward model with a frozen EfficientNet-lite0 in a run: its head is refitted, its backbone is not."""

import torch

from guerdon.models.images.image import load_checkpoint
from guerdon.rl.run import run_folder
from rl_clock import clock_study, lines, start
from rl_models import image_reward

torch.set_num_threads(1)


def test_the_head_of_a_frozen_backbone_is_refitted_during_a_run(tmp_path):
    study = clock_study(tmp_path, reward=image_reward(tmp_path, arch="efficientnet_lite0"))
    start(study, reader="own").run()
    refits = [row for row in lines(study) if "reward_model/resnet/loss" in row]
    assert refits
    assert all(row["reward_model/resnet/loss"] > 0 for row in refits)
    before, _ = load_checkpoint(tmp_path / "model")
    after, config = load_checkpoint(run_folder(study) / "reward_models" / "resnet")
    assert config.freeze_backbone
    old, new = before.state_dict(), after.state_dict()
    changed = {name.partition(".")[0] for name in new if not torch.equal(new[name], old[name])}
    assert changed == {"head"}
