"""How good is a language model, by true answers alone; and a few of its answers to look at.

This module does not know what the policy was trained on.

    evaluate_text(engine, verifier, data, prompts, tokenizer)["success"]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.atomic import write_json
from guerdon.policies.generate import Engine
from guerdon.policies.tokens import prompt_ids
from guerdon.rl.responses import judge, messages_of
from guerdon.rl.text_steps import true_steps
from guerdon.settings.data import DataSettings
from guerdon.types import Rewards
from guerdon.worlds.prompts import Prompt
from guerdon.worlds.reasoning import is_generated
from guerdon.worlds.verifier import Verifier

if TYPE_CHECKING:
    from guerdon.rl.text_side import TextSide

FILMED_PROMPTS, FILMED_SAMPLES = 6, 4


def evaluate_text(
    engine: Engine, verifier: Verifier, data: DataSettings, prompts: Sequence[Prompt], tokenizer: Any
) -> dict[str, float]:
    """Greedy answers to these prompts, checked.

    Returns:
        `success` (share of right answers among those that could be checked), `length` (mean, in tokens), `truncated`
        (share), `unchecked` (share), `episodes` (prompts) and `success_known` (those that could be checked).
    """
    if not prompts:
        return {"episodes": 0.0}
    ids = [prompt_ids(tokenizer, messages_of(p, data)) for p in prompts]
    made = engine.generate(ids, 1, max_new_tokens=data.max_response_length, greedy=True)
    answered = judge(made, prompts, np.arange(len(prompts)), verifier, data, tokenizer)
    known = answered.known_B
    found = {
        "length": float(answered.batch.lengths_B.mean()),
        "truncated": float((~answered.batch.finished_B).mean()),
        "unchecked": float((~known).mean()),
        "episodes": float(len(prompts)),
        "success_known": float(known.sum()),
    }
    return {"success": float(answered.right_B[known].mean()), **found} if known.any() else found


def film_text(side: TextSide, path: Path, step: int) -> None:
    """Sampled answers to the first validation prompts, with every source's reward per token and the true steps.

    The random numbers are the film's own, so that filming changes nothing.
    """
    prompts = list(side.validation[:FILMED_PROMPTS])
    if not prompts:
        return
    tokenizer, data = side.policy.tokenizer, side.data
    ids = [prompt_ids(tokenizer, messages_of(p, data)) for p in prompts]
    rng = np.random.default_rng(0)
    made = side.engine.generate(ids, FILMED_SAMPLES, max_new_tokens=data.max_response_length, rng=rng)
    everyone = [p for p in prompts for _ in range(FILMED_SAMPLES)]
    groups = np.repeat(np.arange(len(prompts)), FILMED_SAMPLES)
    answered = judge(made, everyone, groups, side.verifier, data, tokenizer)
    rollout = side.measurable(answered)
    rewards = {name: side.sources[name].measure(rollout, learn=False) for name in side.learned}
    steps = true_steps(answered) if is_generated(prompts[0]) else None
    rows = []
    for i, response in enumerate(answered.batch.responses()):
        rows.append(
            {
                "prompt": everyone[i].question,
                "answer": everyone[i].ground_truth,
                "tokens": [tokenizer.decode([t]) for t in response],
                "rewards": {  # of the sources that could say something about this response
                    n: [round(float(value), 5) for value in r.values[i, : len(response)]]
                    for n, r in rewards.items()
                    if not r.failed_B[i]
                },
                "outcome": None if i in answered.failures else bool(answered.right_B[i]),
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
