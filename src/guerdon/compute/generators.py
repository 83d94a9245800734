"""Random generators of a run: each part that draws has its own, derived from `runner.seed`.

Acting and learning share none, so that rollouts can be collected in another process: the actions of a rollout depend
on the policy and on the rollouts before it, never on how many minibatches the learner drew. The state of each
generator is in the checkpoint of the part that draws from it.

    rng = generator(study.runner.seed, ACTING)
"""

from __future__ import annotations

import numpy as np

LEARNING = 1  # order of minibatches
ACTING = 2  # actions of a control policy, tokens of a language model
REPLAY = 3  # replayed responses of an implicit reward model
VIDEOS = 5  # episodes of which there are videos
STARTING = 6  # tasks and starts that a curriculum draws
CACHING = 4  # frames that are scored although a frame like them was
SHARDS = 7  # seeds of the shards of a rollout


def generator(seed: int, part: int) -> np.random.Generator:
    """The generator of one part: PCG64 seeded by `numpy.random.SeedSequence([seed, part])`.

    Args:
        seed: `runner.seed`.
        part: one of the numbers above.
    """
    return np.random.default_rng([seed, part])


def shard_seed(seed: int, shard: int) -> int:
    """What stands for `runner.seed` where a shard of a rollout draws; the first shard keeps it.

    Args:
        seed: `runner.seed`.
        shard: its number, from 0.
    """
    if not shard:
        return seed
    return int(np.random.SeedSequence([seed, SHARDS, shard]).generate_state(1, dtype=np.uint32)[0] >> 1)


def small_seed(seed: int) -> int:
    """A seed for a library that takes 32 bits, such as `numpy.random.seed`: the same, where it fits.

    Args:
        seed: at least 0.
    """
    return seed if seed < 2**32 else int(np.random.SeedSequence(seed).generate_state(1, dtype=np.uint32)[0])
