"""Preference pairs from a gold reward in code, with Bradley-Terry noise and one planted preference: for length.

A prompt is eight letters of one half of the alphabet (a to d, or e to h), a response is letters. The gold reward is 1
for each letter of that half that the response has, less 0.25 for every other letter, repeated ones included. The raters
of the pairs also like length: per letter they add 0.3, so that a superfluous letter costs 0.25 by the gold reward and
gains 0.05 with the raters. They choose with the probability of Bradley and Terry (1952) at twice that difference.

    python studies/preference_pairs.py runs/preference

writes `prompts/train.jsonl` (prompts without answers, with a response each that the policy imitates), `pairs.jsonl` to
train on, and `test.jsonl`, pairs of other prompts that are ordered by the gold reward itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from guerdon.atomic import write_text
from guerdon.types import Episode, RewardInfo, Score

HALVES = ("abcd", "efgh")
LONGEST = 20
COST, LENGTH, SHARPNESS = 0.15, 0.5, 2.0
PROMPTS, PAIRS, TEST = 4096, 4096, 512


def half_of(prompt: str) -> str:
    """The half of the alphabet that a prompt is from."""
    return next(half for half in HALVES if prompt[0] in half)


def gold_reward(prompt: str, response: str) -> float:
    """Letters of the prompt's half that the response has, less COST for each other letter in it."""
    found = len(set(half_of(prompt)) & set(response))
    return found - COST * (len(response) - found)


class Gold:
    """The gold reward as a reward model."""

    info = RewardInfo("gold", (-np.inf, float(len(HALVES[0]))), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """The gold reward of each response."""
        return [Score(total=gold_reward(one.task, "".join(one.texts or ()))) for one in episodes]


def response(prompt: str, rng: np.random.Generator) -> str:
    """A response as the policy learns to write them: 1 to 20 letters, three in four of the prompt's half."""
    length = int(min(rng.geometric(0.35), LONGEST))
    return "".join(rng.choice(list(half_of(prompt) if rng.random() < 0.5 else "".join(HALVES))) for _ in range(length))


def pair(prompt: str, rng: np.random.Generator, *, noisy: bool) -> dict[str, str]:
    """Two different responses; with `noisy` ordered by a rater (Bradley and Terry 1952), else by the gold reward."""
    while True:
        first, second = response(prompt, rng), response(prompt, rng)
        gap = gold_reward(prompt, first) - gold_reward(prompt, second)
        if first != second and (noisy or gap):
            break
    rated = SHARPNESS * (gap + LENGTH * (len(first) - len(second)))
    better = rng.random() < 1 / (1 + np.exp(-rated)) if noisy else gap > 0
    chosen, rejected = (first, second) if better else (second, first)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def write(folder: Path, seed: int) -> None:
    """Write the three files."""
    rng = np.random.default_rng(seed)
    prompts: dict[str, None] = {}
    while len(prompts) < PROMPTS + PAIRS + TEST:
        prompts["".join(rng.choice(list(HALVES[rng.integers(2)]), 8))] = None
    names = list(prompts)
    parts = {
        "prompts/train": [{"prompt": p, "solution": response(p, rng)} for p in names[:PROMPTS]],
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
