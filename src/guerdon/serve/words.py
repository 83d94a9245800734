"""Judgements as plain JSON values, as the native route answers them and as kept answers hold them.

It does not know where they come from or go to.

    judgement_from_json(judgement_to_json(judgement)).score.total
"""

from __future__ import annotations

from typing import Any

import numpy as np

from guerdon.models.judgement import Judgement
from guerdon.types import Failure, Score


def judgement_to_json(judgement: Judgement) -> dict[str, Any]:
    """Everything in a judgement; every number is finite."""
    score = judgement.score
    return {
        "steps": None if score.steps is None else score.steps.tolist(),
        "total": None if score.total is None else float(score.total),
        "failure": None if score.failure is None else {"reason": score.failure.reason, "detail": score.failure.detail},
        "text": judgement.text,
        "tokens": judgement.tokens,
        "truncated": judgement.truncated,
        "parse_status": judgement.parse_status,
    }


def judgement_from_json(record: dict[str, Any]) -> Judgement:
    """What `judgement_to_json` gave, to the same bits."""
    score = Score(
        steps=None if record["steps"] is None else np.array(record["steps"], dtype=np.float32),
        total=record["total"],
        failure=None if record["failure"] is None else Failure(**record["failure"]),
    )
    return Judgement(score, record["text"], record["tokens"], record["truncated"], record.get("parse_status"))
