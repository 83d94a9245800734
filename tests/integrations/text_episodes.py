"""The 200 responses of the conformance suite, and a reward model of steps that fails on 20 of them."""

import numpy as np

from guerdon.types import Failure, RewardInfo, Score

KINDS = ("timeout", "parse", "non_finite", "refused", "wrong_length")
STEPS = RewardInfo("scripted", (0.0, 1.0), modality="text", frames_needed=0, success_threshold=0.5)


def question(n):
    return f"what is {n} + {n // 4}?"


def response(n):
    """One to three steps."""
    lines = [f"line {n}-{k}: {(7 * n + 3 * k) % 11}" for k in range(1 + n % 3)]
    return "\n\n".join([*lines[:-1], f"{lines[-1]} so {n + n // 4}"])


QUESTIONS = [question(n // 4) for n in range(200)]  # four responses to each
RESPONSES = [response(n) for n in range(200)]
FAILED = {int(n): KINDS[k % len(KINDS)] for k, n in enumerate(range(3, 200, 10))}


def step_values(episode):
    """A value between 0 and 1 of each step, from its text alone."""
    return [(sum(map(ord, text)) % 97) / 97 for text in episode.texts]


class Scripted:
    """A reward model of steps that fails on the responses of `FAILED`, the first `times` times.

    Args:
        times: how often each of them fails; None: always.
    """

    info = STEPS

    def __init__(self, times=None):
        self.times, self.calls = times, {}

    def score(self, episodes):
        return [self._score(episode) for episode in episodes]

    def _score(self, episode):
        n = PLACES.get("".join(episode.texts).strip())
        values = np.asarray(step_values(episode), dtype=np.float32)
        kind = FAILED.get(n)
        self.calls[n] = self.calls.get(n, 0) + 1
        if kind is None or (self.times is not None and self.calls[n] > self.times):
            return Score.from_values(values)
        if kind == "wrong_length":  # found by the caller
            return Score(steps=np.zeros(len(values) + 1, np.float32))
        if kind == "non_finite":
            return Score.from_values(np.full(len(values), np.nan))
        return Score(failure=Failure(kind, f"response {n}"))


PLACES = {text: n for n, text in enumerate(RESPONSES)}


def expected():
    """Reward of each response (the smallest value of its steps), None where it fails; and the values of its steps."""
    from guerdon.types import Episode

    steps = []
    for n, text in enumerate(RESPONSES):
        pieces = text.split("\n\n")
        texts = (*(piece + "\n\n" for piece in pieces[:-1]), pieces[-1])
        found = [float(np.float32(v)) for v in step_values(Episode(id="", task="", texts=texts))]
        steps.append(None if n in FAILED else found)
    return [None if values is None else min(values) for values in steps], steps
