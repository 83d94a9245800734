"""Small vision-language-action policies and observations for them."""

import gymnasium
import numpy as np

from guerdon.policies.robots.control import build_policy
from guerdon.settings.vla_policy import VLAPolicySettings

TINY = {"image_size": 16, "hidden_size": 16, "layers": 2, "heads": 2, "words": 64}
SPACE = gymnasium.spaces.Box(np.array([-1, -2], np.float32), np.array([1, 6], np.float32))


def policy_of(heads=("env",), proprioception_size=3, space=SPACE, seed=0, tiny=None, auxiliary=(), **keys):
    """A small policy with two numbers per action; `keys` are those of the `policy` section."""
    given = {"type": "vla", "tiny": {**TINY, **(tiny or {})}, "num_action_chunks": 3, "value_hidden": [8], **keys}
    return build_policy(
        VLAPolicySettings.model_validate(given), (5,), space, sources=heads, seed=seed, auxiliary=auxiliary,
        proprioception_size=proprioception_size,
    )  # fmt: skip


def observations(count=4, size=16, measured=3, seed=0, tasks=("close the window", "open it"), cameras=1):
    """Random pictures with instructions of different lengths."""
    rng = np.random.default_rng(seed)
    views = (cameras,) if cameras > 1 else ()
    columns = [("proprioception", np.float32, (measured,)), ("task", "U40")]
    columns += [("frames", np.uint8, (*views, size, size, 3))]
    rows = np.zeros(count, np.dtype(columns))
    rows["frames"] = rng.integers(0, 256, rows["frames"].shape)
    rows["proprioception"] = rng.normal(size=(count, measured))
    rows["task"] = [tasks[i % len(tasks)] for i in range(count)]
    return rows
