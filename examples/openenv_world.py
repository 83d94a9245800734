"""An environment of OpenEnv as a world of messages, for `agent.type` (docs/agents.md).

    agent: {type: "examples.openenv_world:OpenEnvWorld", params: {url: "http://127.0.0.1:8000", action: message}}

The server runs in an environment of its own; guerdon needs `pip install 'guerdon[openenv]'`. Each conversation has a
session of the server (`max_concurrent_envs` of `create_app`).
"""

import json
from collections.abc import Mapping
from typing import Any

from openenv.core.generic_client import GenericEnvClient

from guerdon import WorldStep


class OpenEnvWorld:
    """The reply of the model is one field of the action; each step has the environment's reward.

    Args:
        url: of the server.
        action: the field of the action that is the reply.
        shown: the field of the observation that the model reads; empty: all of them, as JSON.
    """

    def __init__(self, url: str, action: str, shown: str = "") -> None:
        self.action, self.shown = action, shown
        self.client = GenericEnvClient(base_url=url).sync()

    def reset(self, row: Mapping[str, Any]) -> WorldStep:
        """Begin an episode; the messages of the row come first."""
        return WorldStep((*row["messages"], self._said(self.client.reset().observation)))

    def step(self, message: Mapping[str, Any]) -> WorldStep:
        """Act. An episode that ends with the reward 1 has succeeded."""
        result = self.client.step({self.action: message["content"]})
        reward = float(result.reward or 0.0)
        if result.done:
            return WorldStep((), reward, done=True, outcome=reward)
        return WorldStep((self._said(result.observation),), reward)

    def close(self) -> None:
        """End the session."""
        self.client.close()

    def _said(self, observation: Mapping[str, Any]) -> dict[str, str]:
        text = observation[self.shown] if self.shown else json.dumps(observation)
        return {"role": "user", "content": str(text)}
