"""Policies as a user writes them, outside the package."""

import zlib
from collections.abc import Sequence

import gymnasium
import numpy as np
import torch
from torch import nn

from guerdon.policies.robots.robot import Action, RobotPolicy
from guerdon.types import Evaluated
from guerdon.worlds.world import ObservationSpec


class TokenPolicy(RobotPolicy):
    """Discretised actions, from a picture, the words of the task and, if wanted, the state and proprioception."""

    def __init__(
        self,
        action_space: gymnasium.spaces.Box,
        heads: Sequence[str],
        bins: int = 5,
        width: int = 16,
        more: bool = False,
    ) -> None:
        super().__init__()
        self.observation_spec = ObservationSpec(frames=(8, 10), task=True, states=more, proprioception=more)
        low, high = np.clip([action_space.low, action_space.high], -1, 1)
        self.numbers = np.linspace(low, high, bins, dtype=np.float32)
        self.pictures, self.words = nn.Linear(240, width), nn.Linear(16, width)
        self.rest = nn.Linear(43, width) if more else None
        self.pi = nn.Linear(width, self.numbers.size)
        self.vf = nn.Linear(width, len(heads)) if heads else None

    def features(self, observations):
        pictures = torch.from_numpy(np.ascontiguousarray(observations["frames"])).flatten(1) / 255
        words = torch.zeros(len(observations), 16)
        for row, task in zip(words, observations["task"], strict=True):
            row[[zlib.crc32(word.encode()) % 16 for word in task.split()]] = 1
        found = self.pictures(pictures) + self.words(words)
        if self.rest is not None:
            found = found + self.rest(
                torch.from_numpy(np.concatenate([observations["states"], observations["proprioception"]], axis=1))
            )
        return torch.tanh(found)

    def logits(self, features):
        return self.pi(features).unflatten(1, self.numbers.shape[::-1])

    def act(self, observations, rng, *, greedy=False):
        logits = self.logits(self.features(observations)).numpy()
        tokens = (logits if greedy else logits + rng.gumbel(size=logits.shape)).argmax(-1)
        return Action(np.take_along_axis(self.numbers, tokens, axis=0), record=tokens)

    def evaluate(self, inputs, *, entropy=False):
        features = self.features(inputs.observations)
        chosen = torch.distributions.Categorical(logits=self.logits(features))
        return Evaluated(
            chosen.log_prob(torch.from_numpy(inputs.actions)).sum(-1, keepdim=True),
            chosen.entropy().sum(-1, keepdim=True) if entropy else None,
            None if self.vf is None else self.vf(features)[:, None],
        )

    def values(self, observations):
        return self.vf(self.features(observations))


class StatePolicy(TokenPolicy):
    """Tokens from plain states: it declares no columns."""

    def __init__(self, observation_shape: tuple[int, ...], action_space: gymnasium.spaces.Box, heads: Sequence[str]):
        super().__init__(action_space, heads)
        self.observation_spec = None
        (size,) = observation_shape
        self.pictures = nn.Linear(size, 16)

    def features(self, observations):
        return torch.tanh(self.pictures(torch.from_numpy(observations)))
