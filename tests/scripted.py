"""A tiny policy's alphabet and shape, and an engine with given responses."""

import numpy as np

from guerdon.policies.batches.tokens import response_ids, token_batch
from guerdon.policies.language.generate import Generation

LETTERS = "ab01"
SHAPE = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 128}


class Scripted:
    """An engine with given responses: `write(prompt number, sample number, draw)` gives a text or None.

    None is a response that the length limit cut. Prompts are numbered by the order in which they first come.
    """

    def __init__(self, tokenizer, write):
        self.tokenizer, self.write = tokenizer, write
        self.seen, self.requests, self.synced = [], [], 0

    def sync(self, weights=None, version=None):
        self.synced += 1

    def rest(self):
        pass

    def generate(self, prompts, n_per_prompt, *, max_new_tokens, rng=None, greedy=False):
        if rng is not None:
            rng.random()
        self.requests.append((len(prompts), n_per_prompt, greedy))
        draw, first = len(self.requests) - 1, len(self.seen)
        self.seen += list(prompts)
        responses, finished, owners = [], [], []
        for i, prompt in enumerate(prompts):
            for j in range(n_per_prompt):
                text = self.write(first + i, j, draw)
                ids = response_ids(self.tokenizer, "0" * max_new_tokens if text is None else text)
                responses.append(ids if text is not None else ids[:max_new_tokens])
                finished.append(text is not None)
                owners.append(prompt)
        batch = token_batch(owners, responses, np.array(finished), pad_id=0)
        return Generation(batch, np.where(batch.mask_B_T, np.float32(-1), np.float32(0)))
