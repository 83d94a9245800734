"""`Prompt`, a question with a known answer, and `PromptStream`, which shuffles prompts and can be resumed.

stream = PromptStream(prompts, seed=0)
batch = stream.take(32)
messages = insert_system_prompt(batch[0].messages, "Think step by step.")
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.reading.chats import asked_key, context_of
from guerdon.types import Message, Tool


class UnreadableGoldError(DataError):
    """A row whose true answer is missing or cannot be read: it is skipped and counted."""


class NoGoldError(UnreadableGoldError):
    """A row without a true answer: nothing is in its column, or there is no such column."""


@dataclass(frozen=True)
class Prompt:
    """A question, its true answer, and where it comes from.

    Attributes:
        id: stable name, unique within its data set; a hash of the question where the data set has none.
        messages: chat messages (`role`, `content`) that end with the user's turn.
        ground_truth: the true answer, as the verifier wants it.
        data_source: which data set, for metrics of each.
        ability: what kind of task.
        extra_info: plain JSON values; of a generated problem, how to recompute the truth.
        solution: a worked solution where one is known.
        tools: functions that can be called in the conversation, as JSON schemas.
        given: the conversation of the data, where `messages` also have a system prompt or worked examples that the
            `data` section puts there for the policy; empty: `messages` are it.
        worked: turns before `solution` that are part of it, such as calls of tools, where the data has the solution
            apart from the prompt; None: it has one conversation, or no solution.
    """

    id: str
    messages: tuple[Message, ...]
    ground_truth: str
    data_source: str
    ability: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    solution: str | None = None
    tools: tuple[Tool, ...] = ()
    given: tuple[Message, ...] = field(default=(), compare=False)
    worked: tuple[Message, ...] | None = None

    @property
    def question(self) -> str:
        """The last user's turn; empty where a program shortened a conversation to others."""
        return next((str(m["content"]) for m in reversed(self.messages) if m["role"] == "user"), "")

    @property
    def context(self) -> tuple[Message, ...]:
        """What judges and reward models are given besides the question, as `Episode.context`."""
        return context_of(self.given or self.messages)


def insert_system_prompt(messages: Sequence[Message], text: str | None) -> tuple[Message, ...]:
    """The messages with this system turn in front: instead of the one they have, else inserted.

    A user's turn is never overwritten. None leaves the messages as they are.
    """
    if text is None:
        return tuple(messages)
    return ({"role": "system", "content": text}, *without_system(messages))


def without_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages without the system turn that they begin with."""
    return tuple(messages[1:] if messages and messages[0]["role"] == "system" else messages)


def insert_examples(messages: Sequence[Message], examples: Sequence[Prompt]) -> tuple[Message, ...]:
    """The messages with worked examples in front, each a user's turn and the assistant's; a system turn stays first."""
    turns = [
        {"role": role, "content": text}
        for example in examples
        for role, text in (("user", example.question), ("assistant", (example.solution or "").strip()))
    ]
    lead = 1 if messages and messages[0]["role"] == "system" else 0
    return (*messages[:lead], *turns, *messages[lead:])


def shared_system_prompt(prompts: Sequence[Prompt]) -> tuple[bool, str | None]:
    """Whether all prompts are one user's turn after the same system turn (or none), and its text."""
    systems = {p.messages[0]["content"] if p.messages[0]["role"] == "system" else None for p in prompts}
    turns = {tuple(m["role"] for m in p.messages if m["role"] != "system") for p in prompts}
    same = len(systems) == 1 and turns == {("user",)}
    return same, systems.pop() if same else None


def system_prompt_of(prompts: Sequence[Prompt]) -> str | None:
    """The system prompt of questions that a search answers; None: they have none.

    Raises:
        ConfigError: one has several turns, tools, or another system prompt.
    """
    single, system_prompt = shared_system_prompt(prompts)
    if not single or any(prompt.tools for prompt in prompts):
        raise ConfigError(
            "guerdon search takes questions of one user's turn without tools, all with the same system prompt, if any"
        )
    return system_prompt


def question_hash(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """Name of a question: 16 hex digits, blind to case, spaces and system prompts.

    Where only the user speaks they come from these turns alone; otherwise from all turns, with calls of tools, and from
    the tools.
    """
    said = [m for m in messages if m["role"] != "system"]
    turns = [" ".join(unicodedata.normalize("NFKC", m["content"]).split()) for m in said]
    if tools or any(m["role"] != "user" for m in said):
        calls = [json.dumps(m.get("tool_calls"), sort_keys=True) for m in said]
        turns = [f"{m['role']}\x1e{turn}\x1e{call}" for m, turn, call in zip(said, turns, calls, strict=True)]
        turns.append(json.dumps(list(tools), sort_keys=True))
    return hashlib.sha256("\x1f".join(turns).casefold().encode("utf-8", "surrogatepass")).hexdigest()[:16]


def conversation_hash(question: str, context: Sequence[Message] = (), tools: Sequence[Tool] = ()) -> str:
    """Name of what was asked, by which solutions are compared: of a lone question its `question_hash`.

    Conversations with any difference, such as another system turn, have different names.

    Args:
        question: the last user's turn.
        context: as `Episode.context`.
        tools: as `Episode.tools`.
    """
    if not context and not tools:
        return question_hash([{"role": "user", "content": question}])
    return hashlib.sha256(asked_key(question, context, tools).encode()).hexdigest()[:16]


def with_unique_ids(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """The same prompts; repeated ids get `-2`, `-3`, ... in order."""
    unique: dict[str, Prompt] = {}
    times: Counter[str] = Counter()
    for prompt in prompts:
        name = prompt.id
        while name in unique:
            times[prompt.id] += 1
            name = f"{prompt.id}-{times[prompt.id] + 1}"
        unique[name] = prompt if name == prompt.id else replace(prompt, id=name)
    return tuple(unique.values())


def check_contamination(train: Iterable[Prompt], validation: Iterable[Prompt]) -> None:
    """Refuse data where a question of the validation set is also trained on.

    Raises:
        DataError: with how many, and the first of them.
    """
    seen = {question_hash(prompt.messages, prompt.tools) for prompt in train}
    both = [prompt for prompt in validation if question_hash(prompt.messages, prompt.tools) in seen]
    if both:
        raise DataError(
            f"{len(both)} validation questions are also in the training data, the first is {both[0].id}: "
            f"{both[0].question[:80]!r}; remove them from one of the two, or let data.val_size hold questions out"
        )


def hold_out(prompts: Sequence[Prompt], size: int, *, seed: int = 0) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Split by question: at least `size` prompts for validation, and no question on both sides.

    Which questions are held out depends on their text and the seed alone, not on their order.

    Returns:
        Training and validation prompts, each in the given order.

    Raises:
        DataError: nothing would remain to train on.
    """
    hashes = [question_hash(prompt.messages, prompt.tools) for prompt in prompts]
    counts = Counter(hashes)
    held: set[str] = set()
    total = 0
    for name in sorted(counts, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest()):
        if total >= size:
            break
        held.add(name)
        total += counts[name]
    train = tuple(p for p, name in zip(prompts, hashes, strict=True) if name not in held)
    if not train:
        raise DataError(
            f"holding {size} of {len(prompts)} prompts out leaves none to train on; lower data.val_size",
            field="data.val_size",
        )
    return train, tuple(p for p, name in zip(prompts, hashes, strict=True) if name in held)


class PromptStream:
    """Prompts without end, shuffled anew for every pass.

    The order of a pass depends on the seed and its number alone, so that two integers are the whole state and a
    resumed stream gives exactly what an uninterrupted one would.

    Attributes:
        epoch: finished passes.
        position: prompts taken in the current pass.
    """

    def __init__(self, prompts: Sequence[Prompt], *, seed: int = 0) -> None:
        if not prompts:
            raise DataError("there is no prompt to draw from; check the section data")
        self.prompts = tuple(prompts)
        self.seed = seed
        self.epoch = 0
        self.position = 0
        self._order = self._shuffled(0)
        names = "\n".join(map(_fingerprint, self.prompts))
        self._fingerprint = hashlib.sha256(names.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def take(self, n: int) -> list[Prompt]:
        """The next n prompts; a pass that ends on the way is followed by the next one."""
        taken: list[Prompt] = []
        while len(taken) < n:
            if self.position == len(self.prompts):
                self.epoch += 1
                self.position = 0
                self._order = self._shuffled(self.epoch)
            picks = self._order[self.position : self.position + n - len(taken)]
            self.position += len(picks)
            taken += [self.prompts[i] for i in picks]
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, as plain JSON values."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "prompts": len(self.prompts),
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a stream over the same prompts stood.

        Raises:
            CheckpointError: the state belongs to other prompts or another seed.
        """
        here = self.state_dict()
        for key in ("prompts", "fingerprint", "seed"):
            if state.get(key) != here[key]:
                raise CheckpointError(
                    f"the checkpoint's prompts are not these: {key} is {here[key]}, it was {state.get(key)}; resume "
                    "with the data section and the seed that the run started with"
                )
        epoch, position = int(state["epoch"]), int(state["position"])
        if epoch < 0 or not 0 <= position <= len(self.prompts):
            raise CheckpointError(f"the checkpoint's position in the prompts is impossible: {position} of pass {epoch}")
        self.epoch, self.position = epoch, position
        self._order = self._shuffled(epoch)

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.prompts))


def _fingerprint(prompt: Prompt) -> str:
    """What a prompt is recognised by: id, user's turns and answer; of a conversation, the other turns too."""
    own = prompt.given or prompt.messages
    whole, users = question_hash(own, prompt.tools), question_hash([m for m in own if m["role"] == "user"])
    read = question_hash([m for m in prompt.messages if m["role"] == "user"])
    return f"{prompt.id} {read} {prompt.ground_truth}" + ("" if whole == users else f" {whole}")
