"""A small policy of action chunks: a network that decides on C actions of D tokens each at once."""

from collections.abc import Sequence

import gymnasium
import numpy as np
import torch
from torch import nn

from guerdon.policies.robots.robot import Action, RobotPolicy
from guerdon.types import Evaluated
from guerdon.worlds.world import ObservationSpec


class ChunkPolicy(RobotPolicy):
    """Every number of an action is the mean of its D tokens; each token is one of `bins` numbers from -1 to 1."""

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        action_space: gymnasium.spaces.Box,
        heads: Sequence[str],
        chunk: int = 4,
        tokens: int = 2,
        bins: int = 3,
        width: int = 16,
        frames: bool = False,
    ) -> None:
        super().__init__()
        self.chunk, self.tokens_per_action = chunk, tokens
        self.size = action_space.shape[0]
        self.observation_spec = ObservationSpec(states=True, frames=(6, 6)) if frames else None
        self.numbers = np.linspace(-1, 1, bins, dtype=np.float32)
        inputs = observation_shape[0] + (108 if frames else 0)
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.Tanh())
        self.pi = nn.Linear(width, chunk * tokens * bins)
        self.vf = nn.Linear(width, len(heads)) if heads else None
        self.decided = []  # how many observations each call of `act` was given

    def features(self, observations):
        if self.observation_spec is None:
            return self.body(torch.from_numpy(np.ascontiguousarray(observations, dtype=np.float32)))
        frames = torch.from_numpy(np.ascontiguousarray(observations["frames"])).flatten(1) / 255
        return self.body(torch.cat([torch.from_numpy(np.ascontiguousarray(observations["states"])), frames], dim=1))

    def logits(self, features):
        return self.pi(features).unflatten(1, (self.chunk * self.tokens_per_action, -1))

    def act(self, observations, rng, *, greedy=False):
        self.decided.append(len(observations))
        logits = self.logits(self.features(observations)).detach().numpy()
        tokens = (logits if greedy else logits + rng.gumbel(size=logits.shape)).argmax(-1)
        numbers = self.numbers[tokens].reshape(len(tokens), self.chunk, self.tokens_per_action).mean(-1)
        values = np.repeat(numbers[..., None], self.size, axis=-1)
        return Action(values if self.chunk > 1 else values[:, 0], record=tokens)

    def evaluate(self, inputs, *, entropy=False):
        features = self.features(inputs.observations)
        chosen = torch.distributions.Categorical(logits=self.logits(features))
        return Evaluated(
            chosen.log_prob(torch.from_numpy(inputs.actions)),
            chosen.entropy() if entropy else None,
            None if self.vf is None else self.vf(features)[:, None],
        )

    def values(self, observations):
        return self.vf(self.features(observations))
