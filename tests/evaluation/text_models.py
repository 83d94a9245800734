"""Scripted reward models for text: the exact truth of generated problems, with noise or failures on top."""

import hashlib

import numpy as np

from guerdon.episodes.solutions import Solution
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.reasoning import step_truth
from guerdon.types import Failure, RewardInfo, Score

INFO = RewardInfo("scripted", (0.0, 1.0), modality="text", frames_needed=0, success_threshold=0.5)


class Scripted:
    """Scores an episode with a function of it: values of steps, a Score, or a Failure."""

    def __init__(self, say, info=INFO):
        self.info, self.say = info, say
        self.calls = []

    def score(self, episodes):
        self.calls.append(len(episodes))
        return [self._score(e) for e in episodes]

    def _score(self, episode):
        said = self.say(episode)
        if isinstance(said, Score):
            return said
        return Score(failure=said) if isinstance(said, Failure) else Score.from_values(np.asarray(said, np.float32))


def true_steps(episode):
    """1 for a true line at its place, else 0."""
    extra = {key: episode.meta[key] for key in ("family", "parameters")}
    prompt = Prompt("x", ({"role": "user", "content": episode.task},), "", "x", extra_info=extra)
    correct = step_truth(prompt, "".join(episode.texts)).correct
    return np.array([*correct, *[0.0] * (len(episode.texts) - len(correct))][: len(episode.texts)], float)


def exact():
    return Scripted(true_steps)


def noisy(spread, seed=0):
    """The truth, pulled to the middle by noise that depends on the text alone."""

    def say(episode):
        text = f"{seed}{episode.task}{''.join(episode.texts)}"
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
        return np.clip(0.5 + (true_steps(episode) - 0.5) * 0.6 + spread * rng.normal(size=len(episode.texts)), 0, 1)

    return Scripted(say)


def solution(name, steps=3, first=None, **given):
    """A solution of so many steps with a published first error."""
    meta = {**({} if first is None else {"first_error": first}), **given.pop("meta", {})}
    return Solution(
        id=name, question=given.pop("question", f"q {name}"),
        steps=tuple(f"s{k};" for k in range(steps)), separator=";", meta=meta, **given,
    )  # fmt: skip


def scores(*rows):
    """Scores from values; a string is a failure with that reason."""
    return [
        Score(failure=Failure(row)) if isinstance(row, str) else Score.from_values(np.asarray(row, np.float32))
        for row in rows
    ]
