"""Preference pairs from a gold reward in code, with Bradley-Terry noise and one planted preference: for length.

A prompt is eight letters of one half of the alphabet (a to d, or e to h), a response is letters. The gold reward is 1
for each letter of that half that the response has, less 0.15 for every other letter, repeated ones included. The raters
of the pairs also like length: per letter they add 0.5, so that a superfluous letter costs 0.15 by the gold reward and
gains 0.35 with the raters. They choose with the probability of Bradley and Terry (1952) at twice that difference.

With `--words`, for pretrained language models, a prompt is four words, which are wanted, and a response is words.

    python studies/preference_pairs.py runs/preference
    python studies/preference_pairs.py runs/preference_smollm2 --words

writes `prompts/train.jsonl` (prompts without answers, with a response each that the policy imitates), `pairs.jsonl` to
train on, and `test.jsonl`, pairs of other prompts that are ordered by the gold reward itself.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from guerdon.files.atomic import write_text
from guerdon.types import Episode, RewardInfo, Score

HALVES = ("abcd", "efgh")
WORDS = (
    "apple", "bread", "bridge", "button", "castle", "cloud", "engine", "forest", "glass", "gold", "horse", "iron",
    "market", "music", "paper", "planet", "river", "ship", "spring", "stone", "storm", "sugar", "summer", "table",
    "thread", "train", "wheel", "window", "winter",
)  # fmt: skip
LONGEST = 20
COST, LENGTH, SHARPNESS = 0.15, 0.5, 2.0
PROMPTS, PAIRS, TEST = 4096, 4096, 512


def wanted(prompt: str) -> list[str]:
    """What a response to this prompt should have: the words of a prompt of words, else the half of its letters."""
    return prompt.split() if " " in prompt else list(next(half for half in HALVES if prompt[0] in half))


def pieces(prompt: str, response: str) -> list[str]:
    """The letters of a response; of a prompt of words, its words and punctuation marks."""
    return re.findall(r"\w+|[^\w\s]", response) if " " in prompt else list(response)


def gold_reward(prompt: str, response: str) -> float:
    """How many of the wanted pieces the response has, less COST for each other piece in it."""
    found = pieces(prompt, response)
    had = len(set(wanted(prompt)) & set(found))
    return had - COST * (len(found) - had)


class Gold:
    """The gold reward as a reward model."""

    info = RewardInfo("gold", (-np.inf, float(len(HALVES[0]))), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """The gold reward of each response."""
        return [Score(total=gold_reward(one.task, "".join(one.texts or ()))) for one in episodes]


def new_prompt(rng: np.random.Generator, *, words: bool) -> str:
    """Four different words, or eight letters of one half."""
    if words:
        return " ".join(rng.choice(WORDS, 4, replace=False))
    return "".join(rng.choice(list(HALVES[rng.integers(2)]), 8))


def response(prompt: str, rng: np.random.Generator) -> str:
    """A response as the policy learns to write them: 1 to 20 pieces, half of them wanted ones, half any."""
    length = int(min(rng.geometric(0.35), LONGEST))
    right, every = wanted(prompt), WORDS if " " in prompt else list("".join(HALVES))
    between = " " if " " in prompt else ""
    return between.join(rng.choice(right if rng.random() < 0.5 else every) for _ in range(length))


def pair(prompt: str, rng: np.random.Generator, *, noisy: bool) -> dict[str, str]:
    """Two different responses; with `noisy` ordered by a rater (Bradley and Terry 1952), else by the gold reward."""
    while True:
        first, second = response(prompt, rng), response(prompt, rng)
        gap = gold_reward(prompt, first) - gold_reward(prompt, second)
        if first != second and (noisy or gap):
            break
    longer = len(pieces(prompt, first)) - len(pieces(prompt, second))
    rated = SHARPNESS * (gap + LENGTH * longer)
    better = rng.random() < 1 / (1 + np.exp(-rated)) if noisy else gap > 0
    chosen, rejected = (first, second) if better else (second, first)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def write(folder: Path, seed: int, *, words: bool = False) -> None:
    """Write the three files."""
    rng = np.random.default_rng(seed)
    prompts: dict[str, None] = {}
    while len(prompts) < PROMPTS + PAIRS + TEST:
        prompts[new_prompt(rng, words=words)] = None
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
    parser.add_argument("--words", action="store_true", help="prompts and responses of words")
    given = parser.parse_args()
    write(given.folder, given.seed, words=given.words)
