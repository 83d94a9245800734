"""Preference pairs from a gold reward in code, with Bradley-Terry noise and one planted preference: for length.

A prompt is four letters, a response is letters. The gold reward is 1 for each letter of the prompt that is in the
response, less 0.25 for every other letter, repeated ones included. The raters of the pairs also like length: per letter
they add 0.35 to the gold reward, so that a superfluous letter is worth +0.10 to them and -0.25 by the gold reward.

    python studies/preference_pairs.py runs/preference

writes `prompts.jsonl` (with a response each that the policy imitates, and without answers), `pairs.jsonl` to train on,
and `test.jsonl`, pairs of other prompts that are ordered by the gold reward itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from guerdon.atomic import write_text
from guerdon.types import Episode, RewardInfo, Score

LETTERS = "abcdefghijkl"
WANTED, LONGEST = 4, 12
COST, LENGTH = 0.25, 0.35
PROMPTS, PAIRS, TEST = 4096, 4096, 512


def gold_reward(prompt: str, response: str) -> float:
    """Letters of the prompt that the response has, less COST for each other letter in it."""
    found = len(set(prompt) & set(response))
    return found - COST * (len(response) - found)


class Gold:
    """The gold reward as a reward model."""

    info = RewardInfo("gold", (-np.inf, float(WANTED)), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """The gold reward of each response."""
        return [Score(total=gold_reward(one.task, "".join(one.texts or ()))) for one in episodes]


def response(prompt: str, rng: np.random.Generator) -> str:
    """A response as the policy learns to write them: 1 to 12 letters, half of them drawn from the prompt."""
    length = int(min(rng.geometric(0.2), LONGEST))
    return "".join(rng.choice(list(prompt if rng.random() < 0.5 else LETTERS)) for _ in range(length))


def pair(prompt: str, rng: np.random.Generator, *, noisy: bool) -> dict[str, str]:
    """Two different responses; with `noisy` ordered by a rater (Bradley and Terry 1952), else by the gold reward."""
    while True:
        first, second = response(prompt, rng), response(prompt, rng)
        gap = gold_reward(prompt, first) - gold_reward(prompt, second)
        if first != second and (noisy or gap):
            break
    rated = gap + LENGTH * (len(first) - len(second))
    better = rng.random() < 1 / (1 + np.exp(-rated)) if noisy else gap > 0
    chosen, rejected = (first, second) if better else (second, first)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def write(folder: Path, seed: int) -> None:
    """Write the three files."""
    rng = np.random.default_rng(seed)
    prompts: dict[str, None] = {}
    while len(prompts) < PROMPTS + PAIRS + TEST:
        prompts["".join(rng.permutation(list(LETTERS))[:WANTED])] = None
    names = list(prompts)
    parts = {
        "prompts": [{"prompt": p, "solution": response(p, rng)} for p in names[:PROMPTS]],
        "pairs": [pair(p, rng, noisy=True) for p in names[PROMPTS:-TEST]],
        "test": [pair(p, rng, noisy=False) for p in names[-TEST:]],
    }
    for name, rows in parts.items():
        write_text(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write(given.folder, given.seed)
