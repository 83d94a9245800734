"""Guerdon's reward models in OpenRLHF, as a function file: `--reward.remote_url reward.py`.

OpenRLHF calls the function with lists of one item in a thread, and treats an exception as a response without reward:
a failed measurement raises, it is never a number. A reward server instead of a file is `docs/wire_formats.md`.

    reward_func = reward_function(TextScorer(load_text_model("prm"), aggregation="min"))     # reward.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from guerdon.errors import DataError
from guerdon.integrations.text import TextScorer, numbers
from guerdon.serve.wires.wire_text import PromptResponse, cut_or_failure
from guerdon.types import Failure

RewardFunction = Callable[..., dict[str, Any]]


def reward_function(scorer: TextScorer) -> RewardFunction:
    """The `reward_func` of a function file.

    Args:
        scorer: a reward model, and how responses are read for it. `RetriedModel` inside it tries failures again.

    Returns:
        A function of queries (prompt and response as one text each), prompts and labels, that gives `rewards`,
        `scores` (the same, which OpenRLHF filters groups by), as tensors, and `extra_logs`. It raises
        `RewardFailure` where one could not be measured, and `DataError` where queries and prompts differ in number.
    """

    def reward_func(
        queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any] = (), **_: Any
    ) -> dict[str, Any]:
        if len(queries) != len(prompts):
            raise DataError(f"{len(queries)} queries for {len(prompts)} prompts: give one each")
        read = [cut_or_failure(query, prompt) for query, prompt in zip(queries, prompts, strict=True)]
        pairs = [one for one in read if isinstance(one, PromptResponse)]
        scored = iter(scorer.rewards([one.messages for one in pairs], [one.response for one in pairs]))
        found = torch.tensor(numbers([one if isinstance(one, Failure) else next(scored) for one in read]))
        return {"rewards": found, "scores": found, "extra_logs": {}}

    return reward_func
