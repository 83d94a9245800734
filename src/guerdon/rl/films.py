"""Films of control policies for the report: a few frames of an episode, with what every source said of each.

moments, rewards = collector.film(policy, frames=24)
write_film(folder / "step_1000.npz", moments, sources, step=1000, env_rewards=rewards)
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.atomic import write_bytes, write_json
from guerdon.collect.text import TextRollout, generated
from guerdon.episodes.targets import outcome_of
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.text_steps import true_steps
from guerdon.types import Episode, FloatArray, Rewards, Segment


def write_film(
    path: Path,
    moments: Segment,
    sources: Mapping[str, ControlReward],
    *,
    step: int,
    env_rewards: FloatArray | None = None,
) -> None:
    """Score the moments of a filmed episode and write an NPZ.

    The file holds `frames` (F, H, W, 3) uint8, `rows` (F,), `success` (F,), `reward/<source>` (F,) values of the
    models (0 where `missing/<source>` is True), `reward/env` (F,) where the environment's rewards are given, and
    `meta`, a JSON string with the episode's success, null where it is unknown.

    Args:
        path: of the file.
        moments: from `ControlCollector.film`.
        sources: the reward models by name.
        step: of the run.
        env_rewards: the environment's reward for the step to each moment.
    """
    count = len(moments)
    success = np.array([s is True for s in moments.success_F], dtype=np.bool_)  # unknown is not shown as a success
    arrays: dict[str, Any] = {"frames": moments.frames_F, "rows": moments.rows_F, "success": success}
    if env_rewards is not None:
        arrays |= {"reward/env": env_rewards, "missing/env": np.zeros(count, bool)}
    episode = Episode(id="film", task=moments.task, frames=moments.frames_F, states=moments.states_F)
    for name, source in sources.items():
        score = source.model.score([episode])[0]
        known = score.steps is not None
        arrays[f"reward/{name}"] = score.steps if known else np.zeros(count, np.float32)
        arrays[f"missing/{name}"] = np.full(count, not known)
    meta = {"step": step, "task": moments.task, "success": outcome_of(moments.success_F)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta=np.array(json.dumps(meta)), **arrays)
    write_bytes(path, buffer.getvalue())


def write_text_film(path: Path, rollout: TextRollout, rewards: Mapping[str, Rewards], *, step: int) -> None:
    """Write responses as JSON, with the rewards of every token and the true steps where the task knows them.

    Args:
        path: of the file.
        rollout: the responses, from `TextCollector.film`.
        rewards: of the reward models, by name.
        step: of the run.
    """
    responses = rollout.inputs
    steps = true_steps(responses) if generated(responses) else None
    known, right = rollout.known_B, rollout.outcomes_B >= 1
    rows = []
    for i, tokens in enumerate(responses.batch.responses()):
        rows.append(
            {
                "prompt": responses.prompts[i].question,
                "answer": responses.prompts[i].ground_truth,
                "tokens": [responses.tokenizer.decode([t]) for t in tokens],
                "rewards": {  # of the sources that could say something about this response
                    n: [round(float(value), 5) for value in r.values[i, : len(tokens)]]
                    for n, r in rewards.items()
                    if not r.failed_B[i]
                },
                "outcome": bool(right[i]) if known[i] else None,
                "judged": {n: one for n, r in rewards.items() if (one := _step_scores(r, i)) is not None},
                "step_ends": None if steps is None else [int(e) for e in steps[i][0]],
                "steps_true": None if steps is None else [bool(c) for c in steps[i][1]],
            }
        )
    write_json(path, {"step": step, "responses": rows})


def _step_scores(rewards: Rewards, row: int) -> dict[str, Any] | None:
    """What a model of steps says of a response: where its steps end, their values, its threshold."""
    if rewards.scores is None or not (here := rewards.scores.rows_N == row).any():
        return None
    return {
        "ends": rewards.scores.steps_N[here].tolist(),
        "values": [round(value, 5) for value in rewards.scores.values_N[here].tolist()],
        "threshold": rewards.scores.threshold,
    }
