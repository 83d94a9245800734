"""Backends of users: `--custom-backend module:factory`.

The factory gets the settings of the model (`model_path`, `tensor_parallel_size`, ...) and returns a reward model, or an
object with the method of the first reward server, `score_video(task_text, video_path, nframes, max_pixels,
backend_kwargs) -> (score, raw_text)`. The latter gets each item as an MP4 file that is removed afterwards.

    model = load_custom("mine", ServedModelSettings(custom_backend="my_module:make"))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from guerdon.errors import ConfigError, boundary
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.registry import Registry
from guerdon.serve.client_wire import failed, video_file
from guerdon.settings.serve import ServedModelSettings
from guerdon.types import Episode, Failure, RewardInfo, RewardModel, Score

FRAMES, PIXELS, FPS = 16, 200_704, 4  # defaults of the first reward server
_FACTORIES = Registry("custom_backend", group="", builtins={})


class ScoresVideos(Protocol):
    """The interface of the first reward server."""

    def score_video(
        self, task_text: str, video_path: str, nframes: int, max_pixels: int, backend_kwargs: dict[str, Any]
    ) -> tuple[float, str]:
        """A score between 0 and 1, and the text of the model."""
        ...


def load_custom(name: str, settings: ServedModelSettings) -> RewardModel:
    """The model that the factory returns.

    Raises:
        ConfigError: there is no such factory, it raised, or it returned something else.
    """
    spec = settings.custom_backend
    assert spec is not None
    build = factory(spec)
    with boundary(ConfigError, f"custom_backend {spec} raised"):
        built = build(settings)
    if isinstance(built, RewardModel):
        return built
    if hasattr(built, "score_video"):
        return VideoScorer(name, built)
    raise ConfigError(f"custom_backend {spec} returned a {type(built).__name__}: it has neither score nor score_video")


class VideoScorer:
    """An object with `score_video` as a reward model of whole videos.

    Args:
        name: of the model.
        scorer: the object.
    """

    def __init__(self, name: str, scorer: ScoresVideos) -> None:
        self._scorer = scorer
        self.info = RewardInfo(name=name, range=(0.0, 1.0), granularity="total", frames_needed=FRAMES)

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode."""
        return [explained.score for explained in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One explained score per episode; a score outside [0, 1] is a `Failure("out_of_range")`."""
        return [self._judge(episode, options) for episode in episodes]

    def _judge(self, episode: Episode, options: JudgeOptions) -> ExplainedScore:
        if episode.frames is None or not len(episode.frames):
            return failed(Failure("no_frames", "the item has no frames"))
        chosen = {"score_mode": options.score_mode, "prompt": options.prompt}
        chosen = {key: value for key, value in chosen.items() if value is not None}
        nframes = min(options.nframes or FRAMES, len(episode.frames))
        with video_file(episode.frames, None, FPS, keep=False) as path:
            answer = self._scorer.score_video(episode.task, str(path), nframes, options.max_pixels or PIXELS, chosen)
        value, text = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
        try:
            if isinstance(value, str | bytes | bool):
                raise TypeError
            total = float(value)
        except (TypeError, ValueError):
            got = f"{value!r:.80} in a {type(answer).__name__}"
            return failed(Failure("bad_answer", f"score_video must return a number, or (number, text); got {got}"))
        if not np.isfinite(total):
            return failed(Failure("non_finite", "the backend's score is not finite"), str(text))
        if not 0.0 <= total <= 1.0:
            return failed(Failure("out_of_range", f"{total:g} is not within 0 and 1"), str(text))
        return ExplainedScore(Score(total=total), str(text))


def factory(spec: str) -> Callable[[ServedModelSettings], Any]:
    """The function `module:factory`, imported and not called.

    Raises:
        ConfigError: there is none, or it takes no argument.
    """
    found = _FACTORIES.factory(spec)
    if not inspect.signature(found).parameters:
        raise ConfigError(f"custom_backend {spec} must take the model's settings as its argument")
    return found
