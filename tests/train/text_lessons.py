"""Labelled sums, and a study around them, for the tests of reward models of text."""

import numpy as np

from guerdon.episodes.solutions import Solution
from guerdon.labels.data_set import with_rewards
from guerdon.settings.study import Study
from guerdon.train.text import TextData

TINY = {"alphabet": "0123456789+=?;", "hidden_size": 32, "layers": 1, "heads": 2, "intermediate": 64}


def study_of(**sections):
    return Study.model_validate(
        {
            "policy": {"type": "text", "tiny": TINY},
            "data": {"type": "generated", "task": {"family": "chain", "steps": 2}},
            **sections,
        }
    )


def sums(questions=24, rollouts=2, seed=0, reward=None):
    """Questions a+b+c in two steps, of which some go wrong; every question has a right and a wrong solution."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation([(a, b, c) for a in range(5) for b in range(5) for c in range(1, 4)])[:questions]
    found = []
    for a, b, c in chosen.tolist():
        for k in range(rollouts):
            slips = [0, 0] if k % 2 == 0 else [[1, 0], [0, 1]][int(rng.integers(2))]
            first = a + b + slips[0]
            last = first + c + slips[1]
            solution = Solution(
                id=f"{a}{b}{c}-{k}",
                question=f"{a}+{b}+{c}=?",
                steps=(f"{a}+{b}={first};", f"{first}+{c}={last};"),
                labels=(float(not slips[0]), float(last == a + b + c)),
                is_correct=last == a + b + c,
                separator=";",
            )
            found.append(with_rewards(solution, reward) if reward else solution)
    return tuple(found)


def data_of(solutions=None, method=None, reward=None):
    return TextData(sums() if solutions is None else tuple(solutions), method, reward, ())
