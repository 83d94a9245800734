"""The answer of `POST /score`, with the fields of the LIBERO guide's server: the server writes it, the client reads it.

ScoreAnswer(score=0.72, model_output="<answer>72</answer>", backend="primo")
text_in({"score": 0.72, "model_output": "<answer>72</answer>"})          # '<answer>72</answer>'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from guerdon.models.explained_score import ExplainedScore, ParseStatus


class ScoreAnswer(BaseModel):
    """Answer of `POST /score`."""

    score: float = Field(ge=0, le=1, description="between 0 and 1")
    model_output: str = Field(description="text that the model generated")
    backend: str = Field(description="the model that scored")
    parse_status: ParseStatus | None = Field(
        None, description="how the score was parsed from the text: ok, or fallback (from a sentence); null: no text"
    )

    @classmethod
    def of(cls, value: float, explained: ExplainedScore, backend: str) -> ScoreAnswer:
        """The answer with a value of a model.

        Args:
            value: between 0 and 1.
            explained: where it comes from.
            backend: name of the model.
        """
        return cls(score=value, model_output=explained.text, backend=backend, parse_status=explained.parse_status)


def text_in(answer: Mapping[str, Any]) -> str:
    """The text of the model in an answer; empty where there is none."""
    text = answer.get("model_output")
    return text if isinstance(text, str) else ""
