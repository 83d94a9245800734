"""LeRobot's side of `test_published_robots.py`, run by an interpreter that has `lerobot` 0.6.

python lerobot_rewards_side.py sarm FOLDER     # FOLDER/{sarm,clip,episode.npz} -> FOLDER/values.npz and FOLDER/theirs
python lerobot_rewards_side.py robometer FOLDER    # FOLDER/{robometer,base,episode.npz} -> FOLDER/values.npz, theirs
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch


def sarm(folder):
    """Progress of every row by both heads, as `compute_rabc_weights` takes it: the middle row of each window."""
    import lerobot.rewards.sarm.processor_sarm as processing
    from lerobot.configs.rewards import RewardModelConfig
    from lerobot.rewards.sarm.modeling_sarm import SARMRewardModel

    for name in ("CLIPModel", "CLIPProcessor"):  # the hub id in the package's code
        read = getattr(processing, name).from_pretrained
        setattr(processing, name, SimpleNamespace(from_pretrained=lambda _, read=read, **how: read(folder / "clip")))
    config = RewardModelConfig.from_pretrained(folder / "sarm")
    config.device = "cpu"
    model = SARMRewardModel.from_pretrained(folder / "sarm", config=config, strict=True)
    given = np.load(folder / "episode.npz")
    frames, states, task = torch.from_numpy(given["frames"]), torch.from_numpy(given["states"]), str(given["task"])
    from safetensors.torch import load_file

    stored = load_file(folder / "sarm" / "policy_preprocessor_step_2_normalizer_processor.safetensors")
    numbers = {"observation.state": {name.rpartition(".")[2]: value for name, value in stored.items()}}
    before, _ = processing.make_sarm_pre_post_processors(config, dataset_stats=numbers)
    for step in before.steps:
        if hasattr(step, "eval"):
            step.eval()
    rows = len(frames)
    values = {"sparse": [], "dense": []}
    for row in range(rows):
        window = [min(max(row + delta, 0), rows - 1) for delta in config.observation_delta_indices]
        batch = {
            config.image_key: frames[window].permute(0, 3, 1, 2).float() / 255,
            config.state_key: states[window].clone(), "task": task, "index": row, "episode_index": 0,
        }  # fmt: skip
        done = before(batch)
        for head, found in values.items():
            reward = model.calculate_rewards(
                done["text_features"], done["video_features"], done["state_features"], done["lengths"],
                return_all_frames=True, head_mode=head,
            )  # fmt: skip
            found.append(np.asarray(reward).reshape(-1)[config.n_obs_steps // 2])
    np.savez(folder / "values.npz", **{head: np.array(found) for head, found in values.items()})
    model.save_pretrained(folder / "theirs")
    before.save_pretrained(folder / "theirs")


def robometer(folder):
    """Progress and success at the last of four frames up to every row (positions between are rounded down)."""
    from lerobot.configs.rewards import RewardModelConfig
    from lerobot.lerobot_types import TransitionKey
    from lerobot.rewards.robometer.modeling_robometer import RobometerRewardModel, decode_progress_outputs
    from lerobot.rewards.robometer.processor_robometer import RobometerEncoderProcessorStep

    config = RewardModelConfig.from_pretrained(folder / "robometer")
    config.device, config.pretrained_path = "cpu", str(folder / "robometer")
    model = RobometerRewardModel.from_pretrained(folder / "robometer", config=config, strict=True)
    encoder = RobometerEncoderProcessorStep(
        base_model_id=config.base_model_id, image_key=config.image_key, max_frames=config.max_frames
    )
    given = np.load(folder / "episode.npz")
    frames, task = torch.from_numpy(given["frames"]).permute(0, 3, 1, 2), {"task": str(given["task"])}
    found = {"progress": [], "success": [], "compute_reward": []}
    for row in range(len(frames)):
        shown = frames[np.linspace(0, row, config.max_frames).astype(int)][None]
        asked = {TransitionKey.OBSERVATION: {config.image_key: shown}, TransitionKey.COMPLEMENTARY_DATA: task}
        batch = encoder(asked)[TransitionKey.OBSERVATION]
        prefix = "observation.robometer."
        inputs = {k.removeprefix(prefix): v for k, v in batch.items() if k.startswith(prefix)}
        logits = model._compute_rbm_logits(inputs)
        said = decode_progress_outputs(*logits, is_discrete_mode=config.use_discrete_progress)
        found["progress"].append(said["progress_pred"][0][-1])
        found["success"].append(said["success_probs"][0][-1])
        found["compute_reward"].append(model.compute_reward(batch).item())
    np.savez(folder / "values.npz", **{name: np.array(values) for name, values in found.items()})
    model.save_pretrained(folder / "theirs")


if __name__ == "__main__":
    with torch.no_grad():
        {"sarm": sarm, "robometer": robometer}[sys.argv[1]](Path(sys.argv[2]))
