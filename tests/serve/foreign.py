"""What the tests of the foreign wire formats share: reward models with closed forms, a server, pictures and videos."""

from __future__ import annotations

import base64
import io
from contextlib import contextmanager

import numpy as np
from fastapi.testclient import TestClient
from PIL import Image

from guerdon.models.explained_score import ExplainedScore
from guerdon.serve.app import build_app
from guerdon.serve.backends import ModelLoader
from guerdon.serve.served_models import ServedModels
from guerdon.settings.serve import ServeSettings
from guerdon.types import Failure, RewardInfo, Score

STEP = RewardInfo(name="step", range=(0.0, 1.0), granularity="step", modality="text", frames_needed=0)
LOGIT = RewardInfo(name="logit", range=(-np.inf, np.inf), granularity="total", modality="text", frames_needed=0)
VIDEO = RewardInfo(name="video", range=(0.0, 1.0), granularity="total", causal=False)
FRAME = RewardInfo(name="frame", range=(0.0, 1.0))


class Watching:
    """A judge with a closed form, which remembers what it was shown."""

    def __init__(self, info, answer):
        self.info, self.answer = info, answer
        self.seen, self.options = [], []

    def score(self, episodes):
        return [self.answer(episode).score for episode in episodes]

    def judge(self, episodes, options):
        self.seen += episodes
        self.options.append(options)
        return [self.answer(episode) for episode in episodes]


def failing(why):
    return ExplainedScore(Score(failure=Failure(*why)), "I cannot tell")


def steps_by_length(episode):
    """A step of n characters is right with n %; a text with `???` cannot be judged."""
    if any("???" in text for text in episode.texts):
        return failing(("unreadable", "three question marks"))
    values = np.array([len(text) / 100 for text in episode.texts], np.float32)
    return ExplainedScore(Score(steps=values), tokens=sum(len(text) for text in episode.texts))


def logit_by_length(episode):
    """As many as the response has characters, minus 10."""
    if any("???" in text for text in episode.texts):
        return failing(("unreadable", "three question marks"))
    return ExplainedScore(Score(total=float(sum(map(len, episode.texts)) - 10)), tokens=7)


def brightness(episode):
    """The mean of the last frame between 0 and 1; an all black video cannot be judged."""
    if not episode.frames.any():
        return failing(("too_dark", "there is nothing to see"))
    value = float(episode.frames[-1].mean() / 255)
    return ExplainedScore(Score(total=value), f"<answer>{100 * value:.1f}</answer>", tokens=3)


def brightness_of_frames(episode):
    """The mean of every frame between 0 and 1."""
    return ExplainedScore(Score.from_values(episode.frames.mean(axis=(1, 2, 3)) / 255))


def models():
    """Fresh models by name."""
    return {
        "video": Watching(VIDEO, brightness),
        "frame": Watching(FRAME, brightness_of_frames),
        "prm": Watching(STEP, steps_by_length),
        "orm": Watching(LOGIT, logit_by_length),
    }


@contextmanager
def serving(found=None, **settings):
    """A client of the whole application in this process, and its models; settings as in a configuration."""
    found = models() if found is None else found
    given = ServeSettings(models={name: {"backend": "constant"} for name in found}, **settings)
    sources = {name: ModelLoader(lambda model=model: model) for name, model in found.items()}
    engine = ServedModels(sources, default=given.default, batch=given.batch, limits=given.limits)
    with TestClient(build_app(engine, given), base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client, found


def grey(values, height=32, width=48):
    """(T, H, W, 3) uint8, frame t of one brightness."""
    return np.repeat(np.array(values, np.uint8), height * width * 3).reshape(len(values), height, width, 3)


def picture(frame, kind="PNG", **options):
    """A picture file."""
    Image.fromarray(frame).save(buffer := io.BytesIO(), kind, **options)
    return buffer.getvalue()


def npy(array):
    """An NPY file."""
    np.save(buffer := io.BytesIO(), array)
    return buffer.getvalue()


def b64(blob):
    return base64.b64encode(blob).decode()
