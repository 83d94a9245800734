"""Parts of conversations for tests: a world, and an engine with given replies."""

import numpy as np

from guerdon.policies.batches.tokens import response_ids, token_batch
from guerdon.policies.language.generate import Generation
from guerdon.types import Failure
from guerdon.worlds.messages import WorldStep


class Counting:
    """Say `1` in the first turn to go on, then `1` again to win; each `1` in the first turn is paid `early`.

    `offers` is the name of a function that can be called.
    """

    steps = 0  # of all worlds of the process
    open = 0  # worlds that are not closed

    def __init__(self, early: float = 0.25, paid: bool = True, broken: str = "", offers: str = "") -> None:
        self.early, self.paid, self.broken, self.offers, self.turn = early, paid, broken, offers, 0
        if broken == "made" and Counting.open:
            raise RuntimeError("no server")
        Counting.open += 1

    def close(self):
        if self.broken == "close":
            raise RuntimeError("stays open")
        Counting.open -= 1

    def reset(self, row):
        if self.broken == "reset":
            raise RuntimeError("no game")
        tool = {
            "type": "function",
            "function": {"name": self.offers, "parameters": {"type": "object", "properties": {}}},
        }
        return WorldStep(row["messages"], state="start", tools=(tool,) if self.offers else None)

    def step(self, message):
        self.turn += 1
        Counting.steps += 1
        if self.broken == "later" and Counting.steps > 64:
            return WorldStep(done=True, outcome=Failure("game_lost", "the game ended"))
        right = message["content"].startswith("1")
        if self.turn == 1 and right:
            return WorldStep(({"role": "user", "content": "b"},), self._reward(self.early), state="second")
        if self.broken == "outcome":
            return WorldStep(done=True, outcome=Failure("game_lost", "the game ended"))
        won = float(self.turn == 2 and right)
        return WorldStep((), self._reward(won), done=True, outcome=won)

    def _reward(self, value):
        return value if self.paid else None


class Says:
    """An engine whose replies a function of the prompt's text and the numbers drawn gives; None is a reply cut off."""

    def __init__(self, tokenizer, write):
        self.tokenizer, self.write, self.rounds, self.drawn = tokenizer, write, [], []

    def sync(self, weights=None, version=None):
        pass

    def rest(self):
        pass

    def generate(self, prompts, n_per_prompt, *, max_new_tokens, rng=None, greedy=False, keys=None):
        self.rounds.append(len(prompts))
        numbers = [0.0] * len(prompts) if rng is None else [one.random() for one in rng]
        self.drawn.append(numbers)
        responses, finished = [], []
        for prompt, u in zip(prompts, numbers, strict=True):
            text = self.write(self.tokenizer.decode(prompt.tolist()), u)
            ids = response_ids(self.tokenizer, "0" * max_new_tokens if text is None else text)
            responses.append(ids[:max_new_tokens])
            finished.append(text is not None and len(ids) <= max_new_tokens)
        batch = token_batch(prompts, responses, np.array(finished), pad_id=0)
        return Generation(batch, np.where(batch.mask_B_T, np.float32(-1), np.float32(0)))
