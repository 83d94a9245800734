"""Guerdon's reward models in verifiers (v1): rewards of traces, and advantages of their tokens.

A reward that could not be measured is an error of the trace: verifiers records it and leaves the reward None.

    @vf.reward(weight=1.0)
    async def prm(self, trace: vf.Trace) -> float:
        return await trace_reward(scorer, trace)

    prm = reward_function(scorer)               # my_rewards.py; task.rewards.prm.fn: "my_rewards:prm"
    assign_advantages(traces, [step_source("steps", model)], {"adv_estimator": "rloo"}, tokenizer)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
from verifiers.v1 import Trace

from guerdon.collect.text import Responses
from guerdon.errors import ConfigError, DataError
from guerdon.integrations.text import (
    AnsweredTurn,
    TextScorer,
    conversations_of,
    outcome_rewards,
    rollout_of,
    token_advantages,
)
from guerdon.processes.call_queue import in_thread
from guerdon.rewards.source import RewardSource, SourceTerms
from guerdon.types import BoolArray, Rewards, Rollout


async def trace_reward(scorer: TextScorer, trace: Trace) -> float:
    """The reward of a trace's last answer to the messages before it; scored in a thread.

    Raises:
        RewardFailure: it could not be measured, or the trace has no answer.
    """
    messages = _messages(trace)
    asked = max((k + 1 for k, message in enumerate(messages) if message["role"] == "user"), default=0)
    (value,) = await in_thread(scorer.numbers, [messages[:asked]], [messages[asked:]])
    return value


def reward_function(scorer: TextScorer) -> Callable[..., Awaitable[float]]:
    """A reward for a task's configuration (`task.rewards.<name>.fn: "my_rewards:prm"`)."""

    async def reward(trace: Trace) -> float:
        return await trace_reward(scorer, trace)

    return reward


def assign_advantages(
    traces: Sequence[Trace],
    sources: Sequence[RewardSource[Responses]],
    algorithm: Mapping[str, Any],
    tokenizer: Any,
) -> None:
    """Write an advantage to every sampled token of traces; traces of one task are a group.

    Every reward of a trace is a source that is paid at the last token, with its weight; `sources` pay at the tokens
    where steps end. A trace of which nothing could be measured stays without advantages. If a trace has several
    answers, all are conversations: the tokens of an answer share its advantage, and `sources` pay turns (`reward_mode:
    per_turn`, with `adv_estimator: turn_rloo`) or the last one (`terminal`).

    Args:
        traces: with their tokens.
        sources: of rewards at tokens (`guerdon.integrations.text.step_source`), named otherwise than the rewards.
        algorithm: the estimator; see `guerdon.integrations.text.token_advantages`.
        tokenizer: of the policy.

    Raises:
        DataError: a trace has no answer, or an answer no tokens.
        ConfigError: a source has the name of a reward; weights of a reward differ between traces; the estimator or a
            source does not go with conversations.
    """
    if not traces:
        return
    turns = [_turns(trace) for trace in traces]
    rollout = _rollout_of(traces, [[turn for _, turn in own] for own in turns], tokenizer)
    measured = _own_rewards(traces, rollout.mask)
    for source in sources:
        if source.name in measured:
            raise ConfigError(f"the source {source.name!r} has the name of a reward")
        measured[source.name] = source.measure(rollout), source.terms
    found = token_advantages(rollout, measured, algorithm)
    known_B = np.any([found.known[name] for name in measured], axis=(0, 2))
    for own_turns, advantages, known, mask in zip(turns, found.advantages, known_B, rollout.mask, strict=True):
        ends = np.cumsum([len(turn.ids) for _, turn in own_turns])
        of_turns = np.split(advantages[mask], ends[:-1])
        for (node, _), of_turn in zip(own_turns, of_turns, strict=True):
            node.advantages = of_turn.tolist() if known else None


def _rollout_of(traces: Sequence[Trace], turns: Sequence[Sequence[AnsweredTurn]], tokenizer: Any) -> Rollout[Responses]:
    """Traces with their answers as rows: responses where each has one, else conversations; a group for each task."""
    places: dict[Any, int] = {}
    groups_B = np.array([places.setdefault(trace.task.key or trace.task.hash, len(places)) for trace in traces])
    if any(len(own) > 1 for own in turns):
        return conversations_of(turns, tokenizer, groups_B=groups_B)
    messages, _, before, sampled = zip(*(turn for (turn,) in turns), strict=True)
    return rollout_of(messages, before, sampled, tokenizer, groups_B=groups_B)


def _own_rewards(traces: Sequence[Trace], mask_B_T: BoolArray) -> dict[str, tuple[Rewards, SourceTerms]]:
    """The rewards of traces by name, paid at the last token, each with its weight.

    Raises:
        ConfigError: weights of a reward differ between traces.
    """
    measured: dict[str, tuple[Rewards, SourceTerms]] = {}
    for name in sorted({name for trace in traces for name in trace.rewards}):
        found = [trace.rewards.get(name) for trace in traces]
        weights = {reward.weight for reward in found if reward is not None}
        if len(weights) > 1:
            raise ConfigError(f"the reward {name!r} has several weights: {sorted(weights)}")
        values = [None if reward is None else reward.score for reward in found]
        terms = SourceTerms(name, coefficient=weights.pop() if weights else 0.0)
        measured[name] = outcome_rewards(values, mask_B_T), terms
    return measured


def _turns(trace: Trace) -> list[tuple[Any, AnsweredTurn]]:
    """The answers of a trace in order: their nodes, and what was said before each on its branch.

    Raises:
        DataError: there is none, or one has no tokens.
    """
    found = []
    for node in trace.nodes:
        if not node.sampled:
            continue
        ids = np.array(node.token_ids, dtype=np.int64)
        sampled = np.array(node.mask, dtype=np.bool_)
        path = [node]
        while path[0].parent is not None:
            path.insert(0, trace.nodes[path[0].parent])
        *messages, reply = _plain([one.message for one in path])
        before = np.concatenate([*(np.array(one.token_ids, dtype=np.int64) for one in path[:-1]), ids[~sampled]])
        found.append((node, AnsweredTurn(messages, reply, before, ids[sampled])))
    if not found or not all(len(turn.ids) for _, turn in found):
        raise DataError(f"trace {trace.id}: advantages of tokens need answers with their tokens")
    return found


def _messages(trace: Trace) -> list[dict[str, Any]]:
    return _plain(trace.messages)


def _plain(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages without the provider's own state."""
    return [message.model_dump(exclude={"provider_state"}) for message in messages]
