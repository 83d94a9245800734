"""The models of `foreign.py` for server processes: `custom_backend: foreign_models:orm`."""

from foreign import VIDEO, Watching, models

from guerdon.models.explained_score import ExplainedScore
from guerdon.types import Score


def orm(settings):
    return models()["orm"]


def prm(settings):
    return models()["prm"]


def frame(settings):
    return models()["frame"]


def video(settings):
    return models()["video"]


def trend(settings):
    """Always sees progress."""
    return Watching(VIDEO, lambda episode: ExplainedScore(Score(total=1.0), '{"trend": "positive"}'))


def prose(settings):
    """Writes what nobody can read as a trend."""
    return Watching(VIDEO, lambda episode: ExplainedScore(Score(total=1.0), "It went well."))
