"""The collector of language models: prompts are drawn, answered, verified and filtered.

Prompts are answered `n_samples` times and kept where the share of right answers lies within bounds (PRIME,
2502.01456, section 3). An answer that could not be verified is a failure: it stays out of that share and of every
baseline. The collector is built from plain configuration and can run in another process.

    collector = TextCollector(study.data, study.generation, study.text_policy, seed=0)
    rollout = collector.collect(policy.tensors())        # or a policy in this process
    rollout.outcomes_B, rollout.metrics["accuracy_before_filter"]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from guerdon.collect.conversations import (
    Conversation,
    ConversationLoop,
    agent_metrics,
    agent_of,
    arrays_of,
    taken_calls,
)
from guerdon.collect.evaluated import evaluated, evaluation
from guerdon.collect.rollout_progress import RolloutProgress, report
from guerdon.collect.shards import STEPS, joined, with_own_groups
from guerdon.compute.generators import ACTING, generator, shard_seed
from guerdon.errors import DataError, GuerdonError
from guerdon.policies.batches.dialogues import tool_form
from guerdon.policies.batches.tokens import (
    TokenBatch,
    concatenate,
    judged_texts,
    pad_id,
    prompt_ids,
    prompt_lengths,
    response_texts,
    split_steps,
    stop_ids,
    token_batch,
    token_ends,
)
from guerdon.policies.language.generate import Engine, Generation, check_room
from guerdon.policies.language.generate_vllm import build_engine, engine_of_process
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import load_policy, outline
from guerdon.processes.progress import timed
from guerdon.reading.chats import ChatError
from guerdon.settings.agent import AgentSettings, ToolAgentSettings
from guerdon.settings.data import DataSettings
from guerdon.settings.text_policy import GenerationSettings, TextPolicySettings
from guerdon.tasks.prompt_files import load_prompts
from guerdon.tasks.prompts import Prompt, PromptStream, insert_system_prompt
from guerdon.tasks.reasoning import family_of, is_generated
from guerdon.tasks.tools import schemas_of
from guerdon.tasks.verifier import Verifier, VerifierResult, outcome, verifier_from
from guerdon.types import (
    BoolArray,
    Chunks,
    Failure,
    FloatArray,
    IntArray,
    Message,
    Metrics,
    Rewards,
    Rollout,
    Tool,
    last_valid,
)

MOST_DRAWS = 50  # of prompts for one rollout, before the filter is declared too narrow
DEFAULT_SEPARATOR = "\n"
_ANY_ROOM = 1 << 20  # tokens of a conversation

Weights = Mapping[str, Tensor | np.ndarray]


class RunPrompts(NamedTuple):
    """The prompts of a run.

    Attributes:
        train: to learn from, of at most `data.max_prompt_length` tokens.
        validation: to evaluate on.
        too_long: how many were left out.
        longest: tokens of the longest one, of those to evaluate on too.
        led: by an agent: what it adds may need all the room of the model.
    """

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    too_long: int = 0
    longest: int = 0
    led: bool = False

    @classmethod
    def read(
        cls, data: DataSettings, tokenizer: Any, room: int | None, agent: AgentSettings | None = None
    ) -> RunPrompts:
        """Those that the `data` section describes.

        Args:
            data: the `data` section.
            tokenizer: of the policy.
            room: positions of the policy, which every prompt must fit with the longest response; None: no limit.
            agent: the `agent` section; None: there is none.

        Raises:
            DataError: they cannot be read, all are too long, or the model has no room for one.
        """
        train, validation = load_prompts(data)
        lengths, most = chat_lengths(tokenizer, (*train, *validation), data, agent), data.max_prompt_length
        fitting = tuple(p for p, length in zip(train, lengths, strict=False) if length <= most)
        if not fitting:
            raise DataError(f"all {len(train)} prompts are longer than data.max_prompt_length ({most})")
        lengths = [n for n in lengths[: len(train)] if n <= most] + lengths[len(train) :]
        for k, (prompt, length) in enumerate(zip((*fitting, *validation), lengths, strict=True)):
            use = "to train on" if k < len(fitting) else "to validate on"
            check_room(length, data.max_response_length, room, f"the prompt {prompt.id} ({use})")
        return cls(fitting, validation, len(train) - len(fitting), max(lengths), agent is not None)

    def reach(self, data: DataSettings) -> int:
        """Tokens of the longest prompt and response together that there may be."""
        return (_ANY_ROOM if self.led else data.max_response_length) + max(data.max_prompt_length, self.longest)

    def of_shard(self, shard: int, count: int) -> RunPrompts:
        """Every `count`-th prompt to learn from, so that no two shards have one in common."""
        return self._replace(train=self.train[shard::count])


@dataclass(frozen=True, eq=False)
class Responses:
    """B responses of a language model, the policy inputs of text. Rows of one prompt are neighbours.

    Attributes:
        batch: tokens.
        prompts: of each row.
        texts: of each row.
        tokenizer: of the policy that wrote.
        versions_B: (B,) version of the weights that wrote each row; None: it is not known.
        conversations: of an agent, whose calls the rows are, in order; None: every row stands for itself.
    """

    batch: TokenBatch
    prompts: tuple[Prompt, ...]
    texts: tuple[str, ...]
    tokenizer: Any
    versions_B: IntArray | None = None
    conversations: tuple[Conversation, ...] | None = None

    def __len__(self) -> int:
        return len(self.batch)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: all but the tokenizer, of which it has its own (`join_shards`)."""
        return {**vars(self), "tokenizer": None}

    @property
    def ended_B(self) -> BoolArray:
        """(B,) bool of responses, or of conversations: it ended by itself, no limit cut it."""
        if self.conversations is None:
            return self.batch.finished_B
        return np.array([not one.truncated for one in self.conversations], dtype=np.bool_)

    @cached_property
    def char_ends(self) -> tuple[IntArray, ...]:
        """Of each row, how many characters of the text are there after each token."""
        return tuple(
            token_ends(self.tokenizer, ids, text) for ids, text in zip(self.batch.responses(), self.texts, strict=True)
        )

    def take(self, rows: IntArray) -> Responses:
        """These rows, in order."""
        return Responses(
            self.batch.take(rows),
            tuple(self.prompts[i] for i in rows),
            tuple(self.texts[i] for i in rows),
            self.tokenizer,
            None if self.versions_B is None else self.versions_B[rows],
        )


def generated(responses: Responses) -> bool:
    """Whether the truth of every step is known."""
    return bool(responses.prompts) and is_generated(responses.prompts[0])


def separator_of(responses: Responses) -> str:
    """What ends a step: the task's own separator, or a new line."""
    return family_of(responses.prompts[0]).separator if generated(responses) else DEFAULT_SEPARATOR


TextRollout = Rollout[Responses]


def take(rollout: TextRollout, rows: IntArray) -> TextRollout:
    """These responses, in order; failures of the others stay, without a row, and so do counts and metrics."""
    if rollout.chunks is not None:
        return _take_conversations(rollout, rollout.chunks, rows)
    inputs = rollout.inputs.take(rows)
    width = inputs.batch.mask_B_T.shape[1]
    place = {int(old): new for new, old in enumerate(rows)}

    def taken(array: Any) -> Any:
        return None if array is None else array[rows, :width]

    def of_sources(arrays: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        return {name: taken(array) for name, array in arrays.items()}

    greedy, groups = rollout.greedy, rollout.groups_B[rows]
    columns = ("log_probs", "sampled_log_probs", *STEPS)
    return replace(
        rollout,
        inputs=inputs,
        group_ids=groups,
        failures=tuple((place.get(row, -1), step, why) for row, step, why in rollout.failures),
        values=of_sources(rollout.values),
        next_values=of_sources(rollout.next_values),
        greedy=None if greedy is None else take(greedy, np.flatnonzero(np.isin(greedy.groups_B, groups))),
        **{name: taken(getattr(rollout, name)) for name in columns},
    )


def _take_conversations(rollout: TextRollout, chunks: Chunks, rows: IntArray) -> TextRollout:
    """`take` of conversations: their calls are the rows of the inputs."""
    calls, taken = taken_calls(chunks, rows)
    inputs, steps = rollout.inputs.take(calls), int(rollout.mask[rows].sum(axis=1).max(initial=0))
    place = {int(old): new for new, old in enumerate(rows)}
    known = rollout.inputs.conversations or ()
    log_probs: dict[str, Any] = {
        name: None if array is None else array[calls, : taken.size]
        for name in ("log_probs", "sampled_log_probs")
        for array in (getattr(rollout, name),)
    }
    return replace(
        rollout,
        inputs=replace(inputs, conversations=tuple(known[row] for row in rows)),
        chunks=replace(taken, decision=taken.decision[:, :steps], slot=taken.slot[:, :steps]),
        group_ids=rollout.groups_B[rows],
        failures=tuple((place.get(row, -1), step, why) for row, step, why in rollout.failures),
        states=None if rollout.states is None else rollout.states[rows, :steps],
        **log_probs,
        **{name: getattr(rollout, name)[rows, :steps] for name in STEPS},
    )


def join(parts: Sequence[TextRollout]) -> TextRollout:
    """Several rollouts of one policy as one, in order; groups must already differ."""
    return joined(parts, _responses)


def _responses(parts: Sequence[TextRollout]) -> Responses:
    inputs = [part.inputs for part in parts]
    conversations = [one for i in inputs for one in i.conversations or ()]
    return Responses(
        concatenate([i.batch for i in inputs], pad_id=pad_id(inputs[0].tokenizer)),
        tuple(p for i in inputs for p in i.prompts),
        tuple(t for i in inputs for t in i.texts),
        inputs[0].tokenizer,
        np.concatenate(versions) if (versions := [i.versions_B for i in inputs if i.versions_B is not None]) else None,
        None if inputs[0].conversations is None else tuple(conversations),
    )


def join_shards(parts: Sequence[TextRollout], tokenizer: Any) -> TextRollout:
    """The rollouts of one policy in several shards as one.

    Args:
        parts: of the shards, in order, perhaps from other processes.
        tokenizer: of the policy.
    """

    def here(part: TextRollout) -> TextRollout:
        greedy = None if part.greedy is None else here(part.greedy)
        return replace(part, inputs=replace(part.inputs, tokenizer=tokenizer), greedy=greedy)

    own = [here(part) for part in parts]
    return own[0] if len(own) == 1 else join(with_own_groups(own))


class Sampler:
    """Prompts in, verified responses out; remembers its place in the data and in the random numbers.

    Args:
        data: the `data` section.
        engine: writes.
        verifier: checks; None: true success is unknown.
        prompts: to learn from, none of them too long.
        tokenizer: assembles prompts.
        seed: of the order of prompts and of sampling.
        agent: leads conversations; None: a response is all there is.

    Attributes:
        progress: of the rollout that is drawn, or was drawn last.
    """

    def __init__(
        self,
        data: DataSettings,
        engine: Engine,
        verifier: Verifier | None,
        prompts: Sequence[Prompt],
        tokenizer: Any,
        *,
        seed: int,
        agent: ConversationLoop | None = None,
    ) -> None:
        self.data, self.agent = data, agent
        self.engine, self.verifier, self.tokenizer = engine, verifier, tokenizer
        self.stream = PromptStream(prompts, seed=seed)
        self.rng = generator(seed, ACTING)
        self.progress = RolloutProgress()
        self._groups = 0

    def draw(self, seconds: dict[str, float] | None = None) -> TextRollout:
        """Responses to `train_batch_size` prompts that survive the filters.

        Prompts that survive beyond these are dropped with their responses and counted (`surplus_prompts`): the policy
        that wrote them will have changed by the next update.

        Args:
            seconds: gets the time for `generate` and `verify` added.

        Raises:
            DataError: too few survive, and `shortfall` says so or nothing else helps.
        """
        data = self.data
        wanted = data.train_batch_size
        parts: list[TextRollout] = []
        kept: list[BoolArray] = []
        survivors, lost = 0, False
        self.progress = RolloutProgress()
        for _ in range(MOST_DRAWS if data.shortfall == "resample" else 1):
            prompts = self.stream.take(int(wanted * data.oversample_factor))
            parts.append(self.answer(prompts, data.n_samples, seconds=seconds))
            self.progress += _progress(parts[-1])
            report(self.progress)
            kept.append(self._survives(parts[-1]))
            survivors += int(kept[-1].sum()) // data.n_samples
            lost = _all_failed(parts[-1].inputs.conversations)
            if lost or survivors >= wanted:  # where all failed, something is broken, and more would fail, too
                break
        everything, keep = join(parts), np.concatenate(kept)
        drawn = len(keep) // data.n_samples
        rows = np.flatnonzero(keep)
        if survivors < wanted:
            if not lost and _is_refused(data.shortfall, survivors):
                raise DataError(self._starved(survivors, drawn))
            if lost or data.shortfall == "fill":
                rows = np.concatenate([rows, np.flatnonzero(~keep)])
        shares, averaged_over = _shares(everything, keep)
        metrics: Metrics = {
            **shares,
            "tokens_generated": float(everything.mask.sum()),
            "prompts_drawn": float(drawn),
            "prompts_survived": float(survivors),
            "surplus_prompts": float(max(0, survivors - wanted)),
        }
        if everything.inputs.conversations is not None:
            of_agent, means = agent_metrics(everything.inputs.conversations)
            metrics |= of_agent
            averaged_over |= means
        chosen = take(everything, rows[: wanted * data.n_samples])
        return replace(chosen, metrics=metrics, averaged_over=averaged_over)

    def answer(
        self, prompts: Sequence[Prompt], n: int, *, greedy: bool = False, seconds: dict[str, float] | None = None
    ) -> TextRollout:
        """`n` responses to each prompt, verified; each prompt becomes a new group."""
        groups = np.repeat(np.arange(self._groups, self._groups + len(prompts)), n)
        self._groups += len(prompts)
        return self.respond(prompts, n, groups, rng=None if greedy else self.rng, seconds=seconds)

    def respond(
        self,
        prompts: Sequence[Prompt],
        n: int,
        groups_B: IntArray,
        *,
        rng: np.random.Generator | None,
        seconds: dict[str, float] | None = None,
    ) -> TextRollout:
        """`n` verified responses to each prompt; greedy ones without a generator."""
        if self.agent is not None:
            return self._conversed(self.agent, prompts, n, groups_B, rng, seconds)
        ids = [prompt_ids(self.tokenizer, messages_of(p, self.data), p.tools) for p in prompts]
        limit = self.data.max_response_length
        with timed(seconds, "generate"):
            made = self.engine.generate(ids, n, max_new_tokens=limit, rng=rng, greedy=rng is None)
        with timed(seconds, "verify"):
            return self._verified(made, tuple(p for p in prompts for _ in range(n)), groups_B)

    def _conversed(
        self,
        agent: ConversationLoop,
        prompts: Sequence[Prompt],
        n: int,
        groups_B: IntArray,
        rng: np.random.Generator | None,
        seconds: dict[str, float] | None,
    ) -> TextRollout:
        """`n` conversations for each prompt; what each earned says the agent, or the verifier of the last reply."""
        rows = [replace(prompt, messages=messages_of(prompt, self.data)) for prompt in prompts for _ in range(n)]
        root = None if rng is None else int(rng.integers(2**62))
        with timed(seconds, "converse"):
            conversations = agent.lead(rows, root=root)
        with timed(seconds, "verify"):
            found = self._outcomes(conversations)
        made = arrays_of(conversations, self.tokenizer)
        last_B_T = last_valid(made.mask)
        rewards = np.zeros(made.mask.shape, dtype=np.float32)
        failed, known, success = (np.zeros_like(made.mask) for _ in range(3))
        failures: list[tuple[int, int, Failure]] = []
        for b, (one, outcome_b) in enumerate(zip(conversations, found, strict=True)):
            if isinstance(outcome_b, Failure):
                failed[b] = True
                failures.append((b, 0, outcome_b))
                continue
            if one.paid:
                unpaid = _pay_calls(rewards[b], one, np.flatnonzero(made.ends[b]).tolist())
                failed[b, unpaid] = True
                why = Failure("no_reward", "the agent gives this call no reward")
                failures += [(b, end, why) for end in unpaid]
            elif outcome_b is not None:
                rewards[b, last_B_T[b]] = outcome_b
            was_right = one.success
            if was_right is None and outcome_b is not None:
                was_right = outcome_b >= 1
            success[b, last_B_T[b]] = bool(was_right)
            known[b, last_B_T[b]] = was_right is not None
        row_prompts = tuple(rows[b] for b in made.stream_R)
        texts = tuple(response_texts(self.tokenizer, made.batch))
        return Rollout(
            inputs=Responses(made.batch, row_prompts, texts, self.tokenizer, made.versions, tuple(conversations)),
            log_probs=made.log_probs,
            mask=made.mask,
            terminated=last_B_T,
            truncated=np.zeros_like(last_B_T),
            success=success,
            success_known=known,
            rewards=rewards,
            failed=failed,
            failures=tuple(failures),
            group_ids=groups_B.astype(np.int64),
            steps=len(conversations),
            measured=len(conversations),
            chunks=made.chunks,
            conversations=True,
            states=made.states,
        )

    def _outcomes(self, conversations: Sequence[Conversation]) -> list[float | Failure | None]:
        """What each conversation earned, or why that is not known; None where only single calls were paid."""
        found = [one.failure or one.outcome for one in conversations]
        unjudged = [b for b, one in enumerate(conversations) if found[b] is None and not one.paid]
        if self.verifier is not None:
            judged = self._checked(self.verifier, [conversations[b] for b in unjudged])
            for b, result in zip(unjudged, judged, strict=True):
                found[b] = outcome(result, self.data.unparsable)
        elif self.agent is not None and self.agent.judges:
            for b in unjudged:
                found[b] = _unpaid(conversations[b])
        return found

    def _checked(self, verifier: Verifier, conversations: Sequence[Conversation]) -> list[VerifierResult]:
        """What the verifier says of the last response of each conversation."""
        last = [one.calls[-1] for one in conversations]
        finished = np.array([call.finished for call in last], dtype=np.bool_)
        batch = token_batch([c.prompt for c in last], [c.ids for c in last], finished, pad_id=pad_id(self.tokenizer))
        texts = judged_texts(self.tokenizer, batch, response_texts(self.tokenizer, batch))
        return verifier.check_batch(texts, [one.prompt for one in conversations])

    def _verified(self, made: Generation, prompts: tuple[Prompt, ...], groups_B: IntArray) -> TextRollout:
        """Check every response against the true answer of its prompt, where there is a verifier."""
        batch = made.batch
        texts = response_texts(self.tokenizer, batch)
        found: list[float | Failure] = [0.0] * len(texts)
        if self.verifier is not None:
            judged = judged_texts(self.tokenizer, batch, texts)
            found = [outcome(j, self.data.unparsable) for j in self.verifier.check_batch(judged, prompts)]
        failures = tuple((i, 0, f) for i, f in enumerate(found) if isinstance(f, Failure))
        outcomes_B = np.array([0.0 if isinstance(f, Failure) else f for f in found], dtype=np.float32)
        failed = np.zeros(batch.mask_B_T.shape, dtype=np.bool_)
        failed[[row for row, _, _ in failures]] = True
        last = last_valid(np.asarray(batch.mask_B_T))
        return Rollout(
            inputs=Responses(batch, prompts, tuple(texts), self.tokenizer, made.versions_B),
            log_probs=made.log_probs_B_T,
            mask=batch.mask_B_T,
            terminated=last,
            truncated=np.zeros_like(last),
            success=last & ~failed & (outcomes_B >= 1)[:, None],
            success_known=last & ~failed & (self.verifier is not None),
            rewards=np.where(last, outcomes_B[:, None], np.float32(0)),
            failed=failed,
            failures=failures,
            group_ids=groups_B.astype(np.int64),
            steps=len(batch),
            measured=0 if self.verifier is None else len(batch),
        )

    def _survives(self, fresh: TextRollout) -> BoolArray:
        """(B,) bool, True for all rows of the prompts that pass the filters."""
        data, n = self.data, self.data.n_samples
        shape = (-1, n)
        known = fresh.known_B.reshape(shape)
        right = np.where(known, _right(fresh).reshape(shape), 0.0).sum(axis=1)
        keep = known.any(axis=1)
        if self.verifier is None:
            led = fresh.inputs.conversations
            keep |= led is None or np.array([one.failure is None for one in led]).reshape(shape).any(axis=1)
        if data.filter_accuracy:
            share = right / np.maximum(known.sum(axis=1), 1)
            slack = 1e-9  # 1/5 is not quite 0.2
            keep &= (share >= data.accuracy_lower_bound - slack) & (share <= data.accuracy_upper_bound + slack)
        if data.filter_truncated:
            keep &= fresh.inputs.ended_B.reshape(shape).all(axis=1)
        return np.repeat(keep, n)

    def _starved(self, survivors: int, drawn: int) -> str:
        data = self.data
        bounds = f"accuracy from {data.accuracy_lower_bound:g} to {data.accuracy_upper_bound:g}"
        truncated = "truncated ones left out" if data.filter_truncated else "truncated ones kept"
        return (
            f"only {survivors} of {drawn} prompts survived the filters ({bounds}, {truncated}) where "
            f"data.train_batch_size is {data.train_batch_size}. Widen the bounds, raise data.max_response_length, take "
            "easier or harder prompts, or make data.shortfall fill or shrink"
        )

    def state_dict(self) -> dict[str, Any]:
        """Random numbers and the place in the data, as plain values."""
        stream = self.stream.state_dict()
        return {"rng": self.rng.bit_generator.state, "stream": stream, "groups": self._groups}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Return to a stored state."""
        self.rng.bit_generator.state = values["rng"]
        self.stream.load_state_dict(values["stream"])
        self._groups = int(values["groups"])


class TextCollector:
    """A language model, its prompts and its verifier.

    Args:
        data: the `data` section.
        generation: the `generation` section.
        policy: what acts in this process, or the `policy` section, from which it is loaded.
        seed: of the run; decides the order of prompts, samples, and weights that are not on the disk.
        heads: names of the policy's value heads.
        greedy: also give a greedy response to each prompt (ReMax).
        recompute: compute the log-probabilities of all responses again, as training does.
        recompute_above: also where there are more responses in a rollout than this, greedy ones aside.
        micro_batch_size: responses at a time, where the policy evaluates.
        prompts: of the run; None: read from `data`.
        shard: number of the part of the rollout that is collected here (`runner.rollout_shards`); decides the order of
            prompts and samples together with the seed.
        shares_gpu: whether what learns may use the GPU of this process, too.
        agent: the `agent` section; None: one response to each prompt is all.

    Attributes:
        prompts: to train on, and to evaluate on.
        sampler: draws and filters.

    Raises:
        DataError: prompts cannot be read, or all are too long.
        MissingDependencyError: the engine is not installed.
    """

    def __init__(
        self,
        data: DataSettings,
        generation: GenerationSettings,
        policy: TextPolicy | TextPolicySettings,
        *,
        seed: int,
        heads: Sequence[str] = (),
        greedy: bool = False,
        recompute: bool = False,
        recompute_above: int | None = None,
        micro_batch_size: int = 1024,
        prompts: RunPrompts | None = None,
        shard: int = 0,
        shares_gpu: bool = False,
        agent: AgentSettings | None = None,
    ) -> None:
        self.data, self.heads, self.greedy = data, tuple(heads), greedy
        self.recompute, self.recompute_above = recompute, recompute_above
        self._micro, self._temperature = micro_batch_size, generation.temperature
        self._evaluates = generation.engine == "local"  # else `EvaluatedCollector` does
        section = policy
        if not isinstance(policy, TextPolicySettings):
            self.policy = policy
        elif self._evaluates:
            self.policy = load_policy(policy, seed=seed, value_heads=len(self.heads))
            self.policy.temperature = generation.temperature
        else:
            self.policy = outline(policy, value_heads=len(self.heads))
        policy = self.policy
        self.verifier = None if data.type == "prompts" else verifier_from(data)
        room = policy.base.positions
        self.prompts = RunPrompts.read(data, policy.tokenizer, room, agent) if prompts is None else prompts
        longest = self.prompts.reach(data)
        if isinstance(section, TextPolicySettings) and not self._evaluates:
            own, how = section.model_dump_json(), generation.model_dump_json()
            engine: Engine = engine_of_process(own, how, seed, len(self.heads), longest, shares_gpu)
        else:
            engine = build_engine(policy, generation, max_length=longest)
        self._agent = loop = None
        if agent is not None:
            stops = stop_ids(policy.tokenizer, policy.base.model.generation_config)
            self._agent = agent_of(agent, temperature=generation.temperature)
            loop = ConversationLoop(policy.tokenizer, engine, self._agent, agent, data, stops=stops, room=room)
        self.sampler = Sampler(
            data, engine, self.verifier, self.prompts.train, policy.tokenizer, seed=shard_seed(seed, shard), agent=loop
        )

    def collect(self, policy: TextPolicy | Weights, *, version: int = 0, warm_up: bool = False) -> TextRollout:
        """Answer prompts until enough survive the filters.

        Args:
            policy: this collector's own policy as it is now, or weights (`TextPolicy.tensors`) to load into it.
            version: of the weights, kept with the rollout.
            warm_up: for a reward model that learns before the policy does: neither values nor greedy responses.
        """
        self._load(policy, version)
        seconds: dict[str, float] = {}
        rollout = self.sampler.draw(seconds)
        many = self.recompute_above is not None and len(rollout.inputs) > self.recompute_above and not warm_up
        values = bool(self.heads) and not warm_up
        greedy = None
        if self.greedy and not warm_up:
            _, firsts = np.unique(rollout.groups_B, return_index=True)
            led = rollout.inputs.conversations
            prompts = [rollout.inputs.prompts[i] if led is None else led[i].prompt for i in firsts]
            greedy = self.sampler.answer(prompts, 1, greedy=True, seconds=seconds)
        self.sampler.engine.rest()
        wrote = rollout.inputs.versions_B
        if wrote is not None and (wrote != version).any():
            raise GuerdonError(
                f"weights {sorted({*wrote.tolist()})} wrote responses that weights {version} were to write"
            )
        with timed(seconds, "old log-probs"):
            rollout = self._evaluated(rollout, log_probs=self.recompute or many, values=values)
            if greedy is not None:
                greedy = self._evaluated(greedy, log_probs=self.recompute)
                rollout = replace(rollout, greedy=greedy).counting([greedy])
        report(replace(self.sampler.progress, steps=rollout.steps), over=True)
        metrics, tokens = _response_metrics(rollout.inputs, len(rollout.mask))
        responses = float(len(rollout.mask))
        return replace(
            rollout,
            fresh=True,
            version=version,
            seconds=seconds,
            metrics={**rollout.metrics, **metrics},
            averaged_over={
                **rollout.averaged_over,
                "response_length": responses,
                "steps": responses,
                "separator_rate": tokens,
            },
        )

    def evaluate(self, policy: TextPolicy | Weights, *, episodes: int, step: int = 0) -> dict[str, float]:
        """Greedy answers to validation prompts, verified.

        Returns:
            See `evaluation`.
        """
        return evaluation(self.show(policy, prompts=episodes, samples=1, greedy=True))

    def show(
        self,
        policy: TextPolicy | Weights,
        *,
        prompts: int,
        samples: int,
        greedy: bool = False,
        version: int | None = None,
    ) -> TextRollout | None:
        """Answers to the first validation prompts, sampled or greedy ones; None without any prompts.

        Sampled answers have random numbers of their own, so that showing them changes nothing in training.
        """
        self._load(policy, version)
        shown = self.prompts.validation[:prompts]
        if not shown:
            return None
        groups = np.repeat(np.arange(len(shown)), samples)
        found = self.sampler.respond(shown, samples, groups, rng=None if greedy else np.random.default_rng(0))
        self.sampler.engine.rest()
        return self._evaluated(found, log_probs=self.recompute and not greedy)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Random numbers and the place in the data; there are no tensors."""
        return {}, self.sampler.state_dict()

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Return to a stored state."""
        self.sampler.load_state_dict(values)

    def close(self) -> None:
        """End the processes of the verifier and of the agent."""
        if self._agent is not None:
            self._agent.close()
        if self.verifier is not None:
            self.verifier.close()

    def _load(self, policy: TextPolicy | Weights, version: int | None) -> None:
        """Let the engine follow the policy, with these weights where some are given."""
        weights = None
        if isinstance(policy, TextPolicy):
            assert policy is self.policy, "a collector acts with the policy it was built with"
        else:
            weights = {name: torch.as_tensor(value) for name, value in policy.items()}
            self.policy.load_tensors(weights)
        self.sampler.engine.sync(weights, version)

    def _evaluated(self, rollout: TextRollout, *, log_probs: bool, values: bool = False) -> TextRollout:
        """The rollout with what the policy that acted says of it, where it is here."""
        if not self._evaluates:
            return rollout
        heads = self.heads if values else ()
        temperature, micro = self._temperature, self._micro
        return evaluated(self.policy, rollout, micro=micro, temperature=temperature, log_probs=log_probs, heads=heads)


def messages_of(prompt: Prompt, data: DataSettings) -> tuple[Message, ...]:
    """The chat that the policy reads."""
    return insert_system_prompt(prompt.messages, data.system_prompt)


def chat_lengths(
    tokenizer: Any, prompts: Sequence[Prompt], data: DataSettings, agent: AgentSettings | None = None
) -> list[int]:
    """Tokens of each prompt, as the policy reads it; of an agent, the first of a conversation, as far as it is known.

    Raises:
        DataError: the chat template of the policy cannot write one of them in full.
    """
    chats = [messages_of(p, data) for p in prompts]
    tools: list[tuple[Tool, ...]] = [p.tools for p in prompts]
    if isinstance(agent, ToolAgentSettings):
        form, own = tool_form(tokenizer), schemas_of(agent.tools)
        shown = [form.shown(messages, own) for messages in chats]
        chats, tools = [messages for messages, _ in shown], [functions for _, functions in shown]
    try:
        return prompt_lengths(tokenizer, chats, tools)
    except ChatError as error:
        for prompt, messages, functions in zip(prompts, chats, tools, strict=True):
            try:
                prompt_ids(tokenizer, messages, functions)
            except ChatError as own:
                raise DataError(f"the policy cannot be given the prompt {prompt.id}: {own}; leave it out") from error
        raise


def conversation_rows(
    rollout: TextRollout, rewards: Mapping[str, Rewards], step: int, *, tokens: bool
) -> Iterator[dict[str, Any]]:
    """Plain rows of `conversations.jsonl`, one for each conversation of a rollout.

    Args:
        rollout: of an agent.
        rewards: of the reward models, by name; empty: there are none.
        step: of the run, after the rollout.
        tokens: with token ids and log-probabilities of every call.
    """
    failures = {row: why for row, _, why in rollout.failures}
    for b, one in enumerate(rollout.inputs.conversations or ()):
        failure, known = failures.get(b), bool(rollout.success_known[b].any())
        row = one.row(tokens=tokens)
        for name, found in rewards.items():
            paid = _paid_turns(rollout, found, b, len(one.calls))
            row["calls"] = [
                {**call, "rewards": {**call.get("rewards", {}), name: value}}
                for call, value in zip(row["calls"], paid, strict=True)
            ]
        yield {
            "step": step,
            "id": one.prompt.id,
            "group": int(rollout.groups_B[b]),
            **row,
            "reward": None if failure is not None else round(float(rollout.rewards[b].sum()), 6),
            "success": bool(rollout.success[b].any()) if known else None,
            "failure": None if failure is None else str(failure),
            "truncated": one.truncated,
        }


def _paid_turns(rollout: TextRollout, rewards: Rewards, b: int, calls: int) -> list[float | None]:
    """What a source pays for each turn of a conversation; None where it is not known."""
    mask = rollout.mask[b]
    if rollout.chunks is None or not mask.any():
        return [None] * calls
    decision = rollout.chunks.decision[b][mask]
    places = decision - decision.min()
    values = np.bincount(places, rewards.values[b][mask], minlength=calls)
    failed = np.bincount(places, rewards.failed[b][mask], minlength=calls) > 0
    return [None if lost else round(float(value), 6) for value, lost in zip(values, failed, strict=True)]


def _pay_calls(rewards_T: FloatArray, conversation: Conversation, ends: Sequence[int]) -> list[int]:
    """Write the reward of each call at its last token; those without a reward get 0, and their ends are returned.

    Args:
        rewards_T: of the conversation, changed in place.
        conversation: whose calls are paid.
        ends: last tokens of its calls.
    """
    unpaid = []
    for end, call in zip(ends, conversation.calls, strict=False):
        rewards_T[end] = 0.0 if call.reward is None else call.reward
        if call.reward is None:
            unpaid.append(end)
    return unpaid


def _all_failed(conversations: Sequence[Conversation] | None) -> bool:
    return conversations is not None and all(one.failure is not None for one in conversations)


def _is_refused(shortfall: str, survivors: int) -> bool:
    """Whether `data.shortfall` allows no update from too few survivors."""
    return shortfall in ("error", "resample") or (shortfall == "shrink" and not survivors)


def _unpaid(conversation: Conversation) -> float | Failure:
    """The outcome of a conversation for which neither its agent nor a verifier gives one.

    One that a limit ended has not done its task, which is 0: as a failure, reaching limits would be a way out of it.
    """
    return 0.0 if conversation.truncated else Failure("no_reward", "the agent gave no reward, and data has no answers")


def _progress(drawn: TextRollout) -> RolloutProgress:
    """Responses, and the outcomes of those that are known."""
    known_B = drawn.known_B
    return RolloutProgress(drawn.steps, int(known_B.sum()), float(drawn.outcomes_B[known_B].sum()))


def _right(drawn: TextRollout) -> FloatArray:
    """(B,) how right each response is; of conversations whose turns are paid, whether they succeeded."""
    led = drawn.inputs.conversations or ()
    if not any(one.paid for one in led):
        return drawn.outcomes_B
    return np.where([one.paid for one in led], drawn.success.any(axis=1), drawn.outcomes_B)


def _shares(drawn: TextRollout, kept_B: BoolArray) -> tuple[Metrics, dict[str, float]]:
    """Shares of right and of truncated responses, before and after the filters, and of how many each is."""
    known, finished = drawn.known_B, drawn.inputs.ended_B
    shares: Metrics = {}
    of = {"accuracy_before_filter": known, "accuracy_after_filter": known & kept_B}
    for name, rows in of.items():
        shares[name] = float(_right(drawn)[rows].sum()) / int(rows.sum()) if rows.any() else None
    shares["truncated"] = float((~finished).sum()) / len(finished)
    return shares, {**{name: float(rows.sum()) for name, rows in of.items()}, "truncated": float(len(finished))}


def _response_metrics(responses: Responses, count: int) -> tuple[Metrics, float]:
    """Mean length in tokens, mean number of steps, separators per token: early signs of a reward that is hacked.

    The number of tokens comes with them. Lengths are of `count` responses or conversations, steps of single replies.
    """
    tokens = int(responses.batch.mask_B_T.sum())
    if not tokens:
        return {"response_length": None, "steps": None, "separator_rate": None}, 0.0
    separator = separator_of(responses)
    return {
        "response_length": tokens / count,
        "steps": float(np.mean([len(split_steps(text, separator)) for text in responses.texts])),
        "separator_rate": sum(text.count(separator) for text in responses.texts) / tokens,
    }, float(tokens)
