"""A reward model on a reward server, with the interface of a local one.

All episodes of a call are sent together, and what the server could not score is a `Failure` with its reason. For models
that score single frames, long episodes are sent in pieces whose values are joined again. Episodes of robots and
solutions of language models work alike; `info` says which of them the model takes.

    model = load_remote(RemoteSettings(endpoint="http://127.0.0.1:18080/v1/rewards", backend="resnet"))
    model.info.range                          # as the server declares it
    model.score([episode])[0].steps           # as the model gives them on the server
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from guerdon.models.explained_score import ExplainedScore, JudgeOptions, joined_status
from guerdon.serve.client import RewardClient
from guerdon.serve.client_wire import failed
from guerdon.settings.remote import RemoteSettings
from guerdon.types import Episode, Failure, RewardInfo, Score

ROWS = 64  # frames of one item, for models that score each


class RemoteRewardModel:
    """A RewardModel and a Judge.

    Args:
        client: of the server.

    Attributes:
        info: the declaration of the model on the server, requested once.

    Raises:
        ConfigError: the server cannot be reached, refuses the token, or has no such model.
    """

    def __init__(self, client: RewardClient) -> None:
        self.client = client
        self.info = client.info()

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order.

        Raises:
            RewardRequestError: one is missing, and `fail_on_request_error` is set.
        """
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One explained score per episode, in order.

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
            _joined([next(found) for _ in range(count)], again) if count else _no_input(episode)
            for episode, (count, again) in zip(episodes, owners, strict=True)
        ]

    def close(self) -> None:
        """Close all connections."""
        self.client.close()

    def _pieces(self, episode: Episode) -> tuple[list[Episode], int]:
        """The episode as it is sent, and how many rows neighbouring pieces share."""
        judged = _visible(episode, self.info)
        if judged is None:
            return [], 0
        again = max(self.info.frames_needed - 1, 0)
        if judged.frames is None or self.info.granularity == "total" or len(judged) <= ROWS or not self.info.causal:
            return [judged], 0
        starts = range(0, len(judged) - again, ROWS - again) if again < ROWS else range(0)
        return ([judged[start : start + ROWS] for start in starts], again) if starts else ([judged], 0)


def load_remote(settings: RemoteSettings | None = None, **client: Any) -> RemoteRewardModel:
    """Connect to a reward server.

    Args:
        settings: address and limits.
        **client: further arguments of `RewardClient`.

    Raises:
        ConfigError: it cannot be reached, refuses the token, or has no such model.
    """
    return RemoteRewardModel(RewardClient(settings or RemoteSettings(), **client))


def _visible(episode: Episode, info: RewardInfo) -> Episode | None:
    """The input of the model: never the outcome, nor rewards of the environment. None: there is none."""
    if episode.texts is not None and (info.modality == "text" or episode.frames is None):
        return Episode(id=episode.id, task=episode.task, texts=episode.texts)
    if info.frames_needed == 0 and len(episode):  # it uses no frames, but has a value for every row
        return Episode(id=episode.id, task=episode.task, frames=np.zeros((len(episode), 8, 8, 3), np.uint8))
    if episode.frames is not None and len(episode.frames):
        return Episode(id=episode.id, task=episode.task, frames=episode.frames)
    return None


def _no_input(episode: Episode) -> ExplainedScore:
    held = ", ".join(episode.columns())
    return failed(Failure("no_frames", f"the episode has neither frames nor text to send, only {held}"))


def _joined(pieces: list[ExplainedScore], again: int) -> ExplainedScore:
    """The explained score of an episode from those of its pieces; one that failed makes it fail."""
    first = next((piece for piece in pieces if piece.score.failure is not None), pieces[0])
    if len(pieces) == 1 or first.score.failure is not None:
        return first
    steps = [piece.score.steps for piece in pieces if piece.score.steps is not None]
    rows = np.concatenate([steps[0], *(part[again:] for part in steps[1:])])
    return replace(
        pieces[0],
        score=Score(steps=rows, total=pieces[-1].score.total),
        tokens=sum(piece.tokens for piece in pieces),
        truncated=any(piece.truncated for piece in pieces),
        parse_status=joined_status(piece.parse_status for piece in pieces),
    )
