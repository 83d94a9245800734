"""A world of messages: guess a digit, and be told whether the number is higher or lower.

`examples/guess_number.yaml` trains a tiny model, made in code, on it (`guerdon run examples/guess_number.yaml`). It is
a world for `agent.type`, see docs/agents.md.
"""

from collections.abc import Mapping
from typing import Any

from guerdon import WorldStep

HIGHER, LOWER, NO_DIGIT = "h", "l", "x"


class GuessNumber:
    """The secret is the answer of the row; a guess is a digit. The turn that finds it is paid 1, all others 0.

    Args:
        hints: pay a tenth for each digit that the last answers still allow.
        cost: subtract this from the reward of every turn.
    """

    def __init__(self, hints: bool = False, cost: float = 0.0) -> None:
        self.hints, self.cost = hints, cost
        self.low, self.high = 0, 9

    def reset(self, row: Mapping[str, Any]) -> WorldStep:
        """Begin with a message that says nothing of the secret."""
        self.secret = int(row["ground_truth"])
        return WorldStep(({"role": "user", "content": "?"},), state="0-9")

    def step(self, message: Mapping[str, Any]) -> WorldStep:
        """Say whether the secret is higher or lower than the guess."""
        said = message["content"]
        if len(said) != 1 or said not in "0123456789":
            return self._goes_on(NO_DIGIT, 0.0)
        guess = int(said)
        if guess == self.secret:
            return WorldStep(reward=1.0 - self.cost, done=True, outcome=1.0)
        allowed = self.low <= guess <= self.high
        if guess < self.secret:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        return self._goes_on(HIGHER if guess < self.secret else LOWER, 0.1 if self.hints and allowed else 0.0)

    def _goes_on(self, answer: str, reward: float) -> WorldStep:
        following = {"role": "user", "content": answer}
        return WorldStep((following,), reward - self.cost, state=f"{self.low}-{self.high}")
