"""Conversations of several calls of a language model: the one loop in which all of them are led, in rounds.

A round begins when every live conversation waits for a reply or has ended. Its calls are answered together, each with
random numbers that only the conversation and the number of the call decide. So it changes nothing how long a tool or a
program takes, and the same seed repeats the conversations of an agent that is itself repeatable.

    loop = ConversationLoop(policy.tokenizer, engine, agent, settings, data, room=4096)
    conversations = loop.lead(prompts, root=7)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from guerdon.collect.agents import Agent, Moment, Request, ToolAgent, WorldAgent
from guerdon.collect.command_agent import CommandAgent
from guerdon.errors import DataError
from guerdon.policies.batches.dialogues import Reply, ToolForm, Transcript, read_reply, tool_form
from guerdon.policies.batches.tokens import TokenBatch, decode, pad_id, piece_ids, token_batch, token_ends
from guerdon.policies.language.generate import Engine
from guerdon.processes.progress import log_once
from guerdon.settings.agent import AgentSettings, OwnAgentSettings, ToolAgentSettings
from guerdon.settings.data import DataSettings
from guerdon.tasks.prompts import Prompt
from guerdon.types import BoolArray, Chunks, Failure, FloatArray, IntArray, Message, Metrics, Tool

CUT = "\n[the rest is cut off]"


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the model: exactly what it read and what it wrote.

    Attributes:
        prompt: ids.
        ids: sampled, with the end-of-sequence token where the model wrote it.
        log_probs: of `ids`.
        finished: the reply ended by itself, or at a text where the agent stops it.
        version: of the weights; None: not known.
        reward: that the agent gave this call; None: none.
        state: of the agent before the call; None: it names none.
        messages: that it read, and its reply.
        tools: that it could call.
    """

    prompt: IntArray
    ids: IntArray
    log_probs: FloatArray
    finished: bool
    version: int | None = None
    reward: float | None = None
    state: str | None = None
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, eq=False)
class Conversation:
    """What happened between the model and an agent for one prompt.

    Attributes:
        prompt: of the data.
        messages: the last prompt and the reply to it.
        calls: in order; of a conversation that failed, too.
        outcome: what the agent says that it earned; None: the verifier judges the last reply.
        success: whether it succeeded, where the agent says so apart from the outcome.
        paid: single calls have rewards, and the outcome is not paid.
        failure: why it is left out, caused by something else than the policy; None: it is not.
        truncated: a limit ended it.
        contexts: prompts that do not go on from the reply before.
        counts: calls of tools, bad ones, cut results.
    """

    prompt: Prompt
    messages: tuple[Message, ...]
    calls: tuple[Call, ...]
    outcome: float | None = None
    success: bool | None = None
    paid: bool = False
    failure: Failure | None = None
    truncated: bool = False
    contexts: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

    def row(self, *, tokens: bool) -> dict[str, Any]:
        """Plain JSON values, with token ids and log-probabilities if wanted."""
        calls = []
        for call in self.calls:
            one: dict[str, Any] = {"tokens": len(call.ids), "finished": call.finished, "reward": call.reward}
            if tokens:
                one |= {"prompt_ids": call.prompt.tolist(), "ids": call.ids.tolist()}
                one["log_probs"] = [round(float(p), 6) for p in call.log_probs]
            calls.append(one)
        return {"messages": [dict(m) for m in self.messages], "calls": calls}


@dataclass(eq=False)
class _Live:
    """A conversation under way."""

    prompt: Prompt
    transcripts: list[Transcript] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    moment: Moment = field(default_factory=Moment)
    counts: Counter[str] = field(default_factory=Counter)
    named: int = 0  # calls of tools that got a name
    truncated: bool = False
    failure: Failure | None = None
    last: tuple[Message, ...] = ()
    shown: int = 0  # messages of the longest prompt so far

    @property
    def written(self) -> int:
        return sum(len(call.ids) for call in self.calls)

    def take(self, moment: Moment) -> None:
        """Go on to another moment; what it says about the call before is kept with that call."""
        self.moment = moment
        self.counts.update(moment.counts)
        if moment.reward is not None and self.calls:
            self.calls[-1] = replace(self.calls[-1], reward=moment.reward)
        if moment.rewards is not None:
            self.calls = [replace(c, reward=r) for c, r in zip(self.calls, moment.rewards, strict=True)]

    def closed(self) -> Conversation:
        """The conversation at its end."""
        found = self.moment.outcome
        failure = self.failure or (found if isinstance(found, Failure) else None)
        if failure is None and not self.calls:
            failure = Failure("agent_error", "the conversation ended without a call of the model")
        cut = self.truncated or bool(self.calls and not self.calls[-1].finished)
        return Conversation(
            self.prompt,
            self.last or self.prompt.messages,
            tuple(self.calls),
            None if isinstance(found, Failure) else found,
            self.moment.success,
            paid=self.moment.rewards is not None or any(call.reward is not None for call in self.calls),
            failure=failure,
            truncated=cut,
            contexts=len(self.transcripts),
            counts=dict(self.counts),
        )


class _Asked(NamedTuple):
    """A call that is answered in this round."""

    number: int
    place: int
    request: Request
    transcript: Transcript
    ids: IntArray
    most: int


class ConversationLoop:
    """Leads conversations of an agent with a model.

    Args:
        tokenizer: of the model.
        engine: writes.
        agent: what happens between the calls.
        settings: the `agent` section.
        data: the `data` section; `max_response_length` is the limit of a call.
        stops: ids that end a reply.
        room: positions of the model; None: no limit. A call needs room for the longest reply.
    """

    def __init__(
        self,
        tokenizer: Any,
        engine: Engine,
        agent: Agent,
        settings: AgentSettings,
        data: DataSettings,
        *,
        stops: IntArray,
        room: int | None,
    ) -> None:
        self._tokenizer, self._engine, self.agent = tokenizer, engine, agent
        self._settings, self._data, self._stops, self._room = settings, data, stops, room
        self.form: ToolForm = tool_form(tokenizer)
        self.judges = settings.judges  # else reward models alone score what no verifier does
        self._longest_result: int | None = getattr(settings, "max_result_tokens", None)

    def lead(self, prompts: Sequence[Prompt], *, root: int | None) -> list[Conversation]:
        """A conversation for each prompt, in order.

        Args:
            prompts: their messages as the model reads them.
            root: of all random numbers; None: always the most likely token.
        """
        size = self.agent.at_once or max(1, len(prompts))
        found: list[Conversation] = []
        for start in range(0, len(prompts), size):
            wave = dict(enumerate(prompts[start : start + size], start))
            found += self._lead(wave, root)
        return found

    def _lead(self, prompts: Mapping[int, Prompt], root: int | None) -> list[Conversation]:
        live = {number: _Live(prompt) for number, prompt in prompts.items()}
        moments = self.agent.start(prompts)
        while moments:
            for number, moment in moments.items():
                live[number].take(moment)
            asked = {number: live[number] for number, moment in moments.items() if moment.requests}
            moments = self.agent.read(self._answered(asked, root)) if asked else {}
        return [one.closed() for one in live.values()]

    def _answered(self, live: Mapping[int, _Live], root: int | None) -> dict[int, list[Reply | None]]:
        """Replies to all that conversations wait for."""
        replies: dict[int, list[Reply | None]] = {
            number: [None] * len(one.moment.requests) for number, one in live.items()
        }
        asked: list[_Asked] = []
        for number, own in live.items():
            asked += self._asked(number, own)
        if not asked:
            return replies
        rng: list[np.random.Generator] | None = None
        if root is not None:
            made = Counter({number: len(own.calls) for number, own in live.items()})
            rng = []
            for one in asked:
                rng.append(np.random.default_rng([root, one.number, made[one.number]]))
                made[one.number] += 1
        limit = max(one.most for one in asked)
        found = self._engine.generate(
            [one.ids for one in asked],
            1,
            max_new_tokens=limit,
            rng=rng,
            greedy=root is None,
            keys=[id(one.transcript) for one in asked],
        )
        for k, one in enumerate(asked):
            ids = found.batch.responses_B_T[k][found.batch.mask_B_T[k]]
            finished = bool(found.batch.finished_B[k])
            version = None if found.versions_B is None else int(found.versions_B[k])
            ids, finished, text = self._cut(ids, one, finished)
            own = live[one.number]
            log_probs = found.log_probs_B_T[k, : len(ids)]
            reply = read_reply(
                self._tokenizer,
                self.form,
                ids,
                tools=bool(one.request.tools),
                first_call=own.named,
                text=text,
                prompt=one.ids,
                shown=one.request.tools,
            )._replace(finished=finished, tokens=(len(one.ids), len(ids)))
            own.named += len(reply.message.get("tool_calls") or ())
            one.transcript.answer(ids, reply.message)
            said, tools = one.transcript.messages, one.request.tools
            own.calls.append(Call(one.ids, ids, log_probs, finished, version, None, own.moment.state, said, tools))
            own.last = one.transcript.messages
            replies[one.number][one.place] = reply
        return replies

    def _asked(self, number: int, own: _Live) -> list[_Asked]:
        """The calls of a conversation for which there is a turn and room; the others are refused."""
        found: list[_Asked] = []
        own.truncated = False
        data, settings = self._data, self._settings
        left = settings.longest(data) - own.written
        if len(own.moment.requests) > 1:
            log_once("an agent calls the model several times at once: such calls repeat to rounding only")
        for place, request in enumerate(own.moment.requests):
            most = min(data.max_response_length, left, request.most or left)
            if len(own.calls) + len(found) >= settings.max_turns or most < 1:
                own.truncated = True
                continue
            try:
                transcript, ids = self._prompt(own, request)
            except DataError as error:
                own.failure = Failure("agent_error", str(error))
                continue
            if self._room is not None and len(ids) + data.max_response_length > self._room:
                own.truncated = True
                continue
            left -= most
            found.append(_Asked(number, place, request, transcript, ids, most))
        return found

    def _prompt(self, own: _Live, request: Request) -> tuple[Transcript, IntArray]:
        """Ids of a prompt, which goes on from an earlier reply where it can."""
        messages = self._shortened(own, request.messages)
        for transcript in reversed(own.transcripts):
            if transcript.more(messages, request.tools) is not None:
                return transcript, transcript.prompt(messages, request.tools)[0]
        transcript = Transcript(self._tokenizer, self.form, self._stops)
        ids, _ = transcript.prompt(messages, request.tools)
        own.transcripts.append(transcript)
        return transcript, ids

    def _shortened(self, own: _Live, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages with results of tools of at most `max_result_tokens`."""
        if self._longest_result is None:
            return tuple(messages)
        found = [self._cut_result(message) for message in messages]
        new = zip(found[own.shown :], messages[own.shown :], strict=True)
        own.counts["cut_results"] += sum(short is not whole for short, whole in new)
        own.shown = max(own.shown, len(messages))
        return tuple(found)

    def _cut_result(self, message: Message) -> Message:
        most = self._longest_result
        if most is None or message["role"] != "tool" or len(message["content"]) <= most:
            return message
        ids = piece_ids(self._tokenizer, [message["content"]])[0]
        if len(ids) <= most:
            return message
        return {**message, "content": decode(self._tokenizer, ids[:most]) + CUT}

    def _cut(self, ids: IntArray, one: _Asked, finished: bool) -> tuple[IntArray, bool, str | None]:
        """A reply within the limit of its request, up to a text that stops it; and its text, where that is shorter."""
        if len(ids) > one.most:
            ids, finished = ids[: one.most], False
        if not one.request.stop:
            return ids, finished, None
        text = decode(self._tokenizer, ids)
        ends = token_ends(self._tokenizer, ids, text)
        places = [(place, place + len(stop)) for stop in one.request.stop if (place := text.find(stop)) >= 0]
        if not places:
            return ids, finished, None
        begin, end = min(places)
        last = int(np.searchsorted(ends, end, side="left"))
        return ids[: last + 1], True, text[:begin]


def agent_of(settings: AgentSettings, *, temperature: float) -> Agent:
    """The agent of a section.

    Args:
        settings: the section.
        temperature: of the run.

    Raises:
        ConfigError: a tool or a program cannot be used.
    """
    if isinstance(settings, ToolAgentSettings):
        return ToolAgent(settings)
    if isinstance(settings, OwnAgentSettings):
        return WorldAgent(settings)
    return CommandAgent(settings, temperature=temperature)


# Conversations as the arrays of a rollout.


class Arrays(NamedTuple):
    """R calls of B conversations.

    Attributes:
        batch: a row per call.
        log_probs: (R, C).
        mask: (B, T) True at the tokens that were written in conversations that did not fail.
        chunks: which call, and which of its tokens, the steps of the conversations are.
        ends: (B, T) True at the last token of each call.
        stream_R: the conversation of each call.
        states: (B, T) number of the agent's state before the call; None where no agent names one.
        versions: (R,) of the weights; None: not known.
    """

    batch: TokenBatch
    log_probs: FloatArray
    mask: BoolArray
    chunks: Chunks
    ends: BoolArray
    stream_R: IntArray
    states: IntArray | None
    versions: IntArray | None


def arrays_of(conversations: Sequence[Conversation], tokenizer: Any) -> Arrays:
    """The calls of conversations as rows, and where their tokens are in the conversations."""
    pairs = [(b, call) for b, one in enumerate(conversations) if one.failure is None for call in one.calls]
    stream_R = np.array([b for b, _ in pairs], dtype=np.int64)
    calls = [call for _, call in pairs]
    finished = np.array([call.finished for call in calls], dtype=np.bool_)
    batch = token_batch([c.prompt for c in calls], [c.ids for c in calls], finished, pad_id=pad_id(tokenizer))
    follows = _followed(calls, stream_R)
    batch = replace(batch, follows_B=follows if (follows >= 0).any() else None)
    log_probs = np.zeros(batch.mask_B_T.shape, dtype=np.float32)
    for r, call in enumerate(calls):
        log_probs[r, : len(call.ids)] = call.log_probs
    lengths_R = batch.lengths_B
    totals_B = np.bincount(stream_R, weights=lengths_R, minlength=len(conversations)).astype(np.int64)
    mask = np.arange(totals_B.max(initial=0)) < totals_B[:, None]
    decision, slot = np.full(mask.shape, -1, dtype=np.int64), np.full(mask.shape, -1, dtype=np.int64)
    decision[mask] = np.repeat(np.arange(len(calls)), lengths_R)
    slot[mask] = np.concatenate([np.arange(n) for n in lengths_R]) if len(calls) else 0
    ends = np.zeros(mask.shape, dtype=np.bool_)
    ends[mask] = slot[mask] == np.repeat(lengths_R - 1, lengths_R)
    chunks = Chunks(decision, slot, batch.mask_B_T.shape[1])
    states = _states_of(calls, mask, lengths_R)
    return Arrays(batch, log_probs, mask, chunks, ends, stream_R, states, _versions_of(calls))


def _states_of(calls: Sequence[Call], mask: BoolArray, lengths_R: IntArray) -> IntArray | None:
    """(B, T) a number for the state before each call, -1 where it has none; None: no call has one."""
    names = {name: k for k, name in enumerate(dict.fromkeys(c.state for c in calls if c.state is not None))}
    if not names:
        return None
    states = np.full(mask.shape, -1, dtype=np.int64)
    states[mask] = np.repeat([names.get(call.state or "", -1) for call in calls], lengths_R)
    return states


def _versions_of(calls: Sequence[Call]) -> IntArray | None:
    """(R,) the version of the policy that wrote each call; None: not known of all."""
    known = [call.version for call in calls if call.version is not None]
    return np.array(known, dtype=np.int64) if known and len(known) == len(calls) else None


def _followed(calls: Sequence[Call], stream_R: IntArray) -> IntArray:
    """(R,) the latest earlier call of the same conversation from which the prompt of a call goes on, -1 without one."""
    found = np.full(len(calls), -1, dtype=np.int64)
    for r, call in enumerate(calls):
        for before in range(r - 1, -1, -1):
            if stream_R[before] != stream_R[r]:
                break
            begun = np.concatenate([calls[before].prompt, calls[before].ids])
            if np.array_equal(call.prompt[: len(begun)], begun):
                found[r] = before
                break
    return found


def taken_calls(chunks: Chunks, rows: IntArray) -> tuple[IntArray, Chunks]:
    """The calls of some conversations, in order, and where their tokens are in these; `rows` are conversations."""
    decision, slot = chunks.decision[rows], chunks.slot[rows]
    calls, size = decision[slot == 0], int(slot.max(initial=-1)) + 1
    place = np.full(int(calls.max(initial=-1)) + 2, -1, dtype=np.int64)  # the last one stays -1
    place[calls] = np.arange(len(calls))
    return calls, Chunks(place[decision], slot, size, chunks.tokens)


def agent_metrics(conversations: Sequence[Conversation]) -> tuple[Metrics, dict[str, float]]:
    """Means over conversations of what happened in them, and counts; of those that did not fail.

    `agent/turns` are calls of the model, `agent/contexts` prompts that were written anew, `agent/calls` calls of tools.
    """
    kept = [one for one in conversations if one.failure is None]
    names = ("calls", "bad_calls", "cut_results")
    found: Metrics = {f"agent/{name}": float(sum(one.counts.get(name, 0) for one in kept)) for name in names}
    found |= {"agent/turns": None, "agent/contexts": None}
    if kept:
        found["agent/turns"] = float(np.mean([len(one.calls) for one in kept]))
        found["agent/contexts"] = float(np.mean([one.contexts for one in kept]))
    found["agent/failed"] = float(len(conversations) - len(kept))
    return found, {"agent/turns": float(len(kept)), "agent/contexts": float(len(kept))}
