"""A reward model of guerdon in RLinf's registry: `python examples/rlinf_reward.py`, where RLinf is installed.

RLinf's reward worker does the same with `reward.model` of its configuration; call `register()` before it starts.
"""

import torch
from rlinf.models.embodiment.reward import reward_model_registry

from guerdon.integrations.rlinf import register

if __name__ == "__main__":
    register()
    cfg = {"model_type": "guerdon", "guerdon": {"model_type": "constant", "value": 0.25}}
    model = reward_model_registry[cfg["model_type"]](cfg)
    observations = {
        "main_images": torch.zeros(4, 64, 64, 3, dtype=torch.uint8),
        "task_descriptions": ["pick up the cube"] * 4,
    }
    print("rewards", model.compute_reward(observations).squeeze(-1).tolist())
