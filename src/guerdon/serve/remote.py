"""A reward model that lives on a reward server, used like one that lives here.

All episodes of a call travel together, and what the server could not score is a `Failure` with its reason. Models that
judge single frames get long episodes in pieces, and their values are put together again. Robots' episodes and
solutions of language models go the same way; which of them the model takes, its `info` says. This module does not
know what the scores are for.

    model = load_remote(RemoteSettings(endpoint="http://127.0.0.1:18080/v1/rewards", backend="resnet"))
    model.info.range                          # as the server declares it
    model.score([episode])[0].steps           # as the model there would give
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from guerdon.models.explained_score import ExplainedScore, JudgeOptions, joined_status
from guerdon.serve.client import RewardClient
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Episode, Failure, RewardInfo, Score

ROWS = 64  # frames of one item, for models that judge each


class RemoteRewardModel:
    """A RewardModel and a Judge.

    Args:
        client: asks the server.

    Raises:
        ConfigError: the server cannot be reached, refuses the token, or has no such model.
    """

    def __init__(self, client: RewardClient) -> None:
        self.client = client
        self._info = client.info()

    @property
    def info(self) -> RewardInfo:
        """What the model on the server promised when it was first asked."""
        return self._info

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order.

        Raises:
            RewardRequestError: one is missing, and `fail_on_request_error` is set.
        """
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One judgement per episode, in order.

        Raises:
            RewardRequestError: one is missing, and `fail_on_request_error` is set.
        """
        pieces: list[Episode] = []
        owners: list[tuple[int, int]] = []  # how many pieces, and rows that each but the first repeats
        for episode in episodes:
            mine, again = self._pieces(episode)
            owners.append((len(mine), again))
            pieces += mine
        found = iter(self.client.judge(pieces, options))
        return [
            _joined([next(found) for _ in range(count)], again) if count else ExplainedScore(_nothing(episode))
            for episode, (count, again) in zip(episodes, owners, strict=True)
        ]

    def close(self) -> None:
        """Close all connections."""
        self.client.close()

    def _pieces(self, episode: Episode) -> tuple[list[Episode], int]:
        """The episode as it travels, and how many rows neighbouring pieces share."""
        judged = _seen(episode, self._info)
        if judged is None:
            return [], 0
        again = max(self._info.frames_needed - 1, 0)
        if judged.frames is None or self._info.granularity == "total" or len(judged) <= ROWS or not self._info.causal:
            return [judged], 0
        starts = range(0, len(judged) - again, ROWS - again) if again < ROWS else range(0)
        return ([judged[start : start + ROWS] for start in starts], again) if starts else ([judged], 0)


def load_remote(settings: RemoteSettings | None = None, **client: Any) -> RemoteRewardModel:
    """Connect to a reward server.

    Args:
        settings: where and how.
        **client: further arguments of `RewardClient`.

    Raises:
        ConfigError: it cannot be reached, refuses the token, or has no such model.
    """
    return RemoteRewardModel(RewardClient(settings or RemoteSettings(), **client))


def _seen(episode: Episode, info: RewardInfo) -> Episode | None:
    """What the model may look at: never the outcome, nor what the environment paid. None: there is nothing."""
    if episode.texts is not None and (info.modality == "text" or episode.frames is None):
        return Episode(id=episode.id, task=episode.task, texts=episode.texts)
    if info.frames_needed == 0 and len(episode):  # it looks at nothing, but has a value for every row
        return Episode(id=episode.id, task=episode.task, frames=np.zeros((len(episode), 8, 8, 3), np.uint8))
    if episode.frames is not None and len(episode.frames):
        return Episode(id=episode.id, task=episode.task, frames=episode.frames)
    return None


def _nothing(episode: Episode) -> Score:
    held = ", ".join(episode.columns())
    return Score(failure=Failure("no_frames", f"the episode has neither frames nor text to send, only {held}"))


def _joined(pieces: list[ExplainedScore], again: int) -> ExplainedScore:
    """The judgement of an episode from those of its pieces; one that failed makes it fail."""
    failed = next((piece for piece in pieces if piece.score.failure is not None), None)
    if len(pieces) == 1 or failed is not None:
        return failed or pieces[0]
    steps = [piece.score.steps for piece in pieces if piece.score.steps is not None]
    rows = np.concatenate([steps[0], *(part[again:] for part in steps[1:])])
    return replace(
        pieces[0],
        score=Score(steps=rows, total=pieces[-1].score.total),
        tokens=sum(piece.tokens for piece in pieces),
        truncated=any(piece.truncated for piece in pieces),
        parse_status=joined_status(piece.parse_status for piece in pieces),
    )
