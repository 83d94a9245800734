"""Reward models of text: reading solutions, scoring them in batches of like length, and their folders on disk.

A kind of model defines how it reads a solution and what its logits are (`text_heads.py`, `verdict.py`,
`implicit_text.py`). A solution that does not fit is a `Failure`; nothing is cut silently.

On disk a model is a transformers or peft folder with `reward_model.json` (the card) next to the weights: the kind of
model, the form in which it reads, what ended the steps it was trained on, the threshold, what its labels meant, and how
it was trained. A linear head is in `head.safetensors`. The folder is written in one piece and its hashes are checked
when it is read.

    model = load_text_model("runs/prm/final_checkpoint")      # guerdon.models.text.text_load
    score = model.score([Episode(id="1", task="3+5=?", texts=("3+5=8;",))])[0]
    score.steps                                               # (1,) probabilities
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.compute.devices import resolve_device
from guerdon.compute.finite import load_weights, refuse_to_write, save_weights
from guerdon.errors import CheckpointError, DataError, boundary
from guerdon.files.atomic import sealed_folder
from guerdon.models import checkpoint
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.models.text.text_card import CARD, TextModelCard
from guerdon.models.text.text_inputs import (
    Reading,
    close_steps,
    hidden_at,
    judge_readings,
    read_steps,
    refuse_conversation,
    split_steps,
    unread,
)
from guerdon.network.hub import base_of
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import (
    load_base,
    read_under,
    save_policy,
    whole_parameters,
    write_policy,
    written_bytes,
)
from guerdon.policies.pretrained.adapter_files import read_adapter
from guerdon.processes.call_queue import batched, concurrent
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import Episode, Failure, IntArray, Message, RewardInfo, Score, Tool

HEAD = "head.safetensors"
_HEAD = "head."


class TextRewardModel:
    """A reward model of text.

    Args:
        policy: the language model; its adapter or all of its weights are what is trained.
        card: what it is.
        micro_batch_size: solutions per forward pass when scoring.
    """

    has_head = True
    per_step = True
    learns_outcomes = False  # trained on whole solutions being right, instead of labels of steps
    form = "chat"  # how it reads, see `TextModelCard`
    reads_conversations = False  # whether `_read` takes `context` and `tools`; without, they are refused
    meaning = "the step is right"  # what a target of 1 means
    stored_reference: TextPolicy | None = None  # a second language model that is stored with this one

    def __init__(self, policy: TextPolicy, card: TextModelCard, *, micro_batch_size: int = 16) -> None:
        self.policy, self.card, self.micro_batch_size = policy, card, micro_batch_size
        self.head: Any = None  # a linear layer; of an ensemble a list of them
        if self.has_head:
            seed = int(card.learning.get("seed", 0))
            outputs = len(card.outputs)
            self.head = new_head(policy.base.width, seed, outputs).to(policy.device)
        self.members: tuple[TextRewardModel, ...] = (self,)  # several of an ensemble of adapters

    @classmethod
    def start(cls, policy: TextPolicy, card: TextModelCard, fresh: Callable[[], TextPolicy]) -> TextRewardModel:
        """The model before its first gradient step.

        Args:
            policy: the language model with what is to be trained.
            card: what the model is.
            fresh: makes a second language model like the first.
        """
        return cls(policy, card)

    @classmethod
    def load(
        cls, folder: Path, card: TextModelCard, micro_batch_size: int, device: str | torch.device = "auto"
    ) -> TextRewardModel:
        """A stored model, for scoring; an adapter is merged into its weights.

        Args:
            folder: that of the card, its hashes checked.
            card: what the model is.
            micro_batch_size: solutions per forward pass.
            device: where it computes, as a key `device` says.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        model = cls(read_policy(folder, card, device), card, micro_batch_size=micro_batch_size)
        model.policy.base.freeze()
        model.read_head(folder)
        return model

    def read_head(self, folder: Path) -> None:
        """Give the head, where there is one, the weights of a folder.

        Raises:
            CheckpointError: they are missing or do not fit.
        """
        if self.head is None:
            return
        if not (folder / HEAD).is_file():
            raise CheckpointError(f"{folder} has no {HEAD}; train it again")
        with boundary(CheckpointError, f"{folder / HEAD} cannot be read, or does not fit the language model"):
            self.head.load_state_dict(load_weights(folder / HEAD), strict=True)

    # what a kind defines

    def _read(self, question: str, steps: Sequence[str], **conversation: Any) -> Reading:
        """A solution as this kind reads it, its steps closed as in training: the chat form.

        One that gives a value to the whole solution reads the end-of-sequence token, too.

        Args:
            question: the last user's turn.
            steps: the steps of the solution.
            **conversation: `context` and `tools`, see `read_steps`, of kinds that have `reads_conversations`, where
                there is more than the question.
        """
        return read_steps(self.tokenizer, question, steps, closed=not self.per_step, **conversation)

    def logits(self, readings: Sequence[Reading]) -> Tensor:
        """Logits of what is scored: one per step, solution by solution; or one per solution; of members (M, K)."""
        return self.lesson_logits(readings)

    def lesson_logits(self, readings: Sequence[Reading], *, body: bool = True) -> Tensor:
        """Logits of what is trained; where `body` is false, without gradients below the head."""
        assert self.head is not None
        with torch.set_grad_enabled(body and torch.is_grad_enabled()):
            hidden = hidden_at(self.policy, readings, [self.places(reading) for reading in readings])
        return self.head(hidden).squeeze(-1)  # type: ignore[no-any-return]

    def places(self, reading: Reading) -> IntArray:
        """Tokens at which the head reads a solution: the last of each step, or the last of all."""
        return reading.ends_S if self.per_step else np.array([len(reading.ids) - 1])

    def value(self, logits: np.ndarray) -> np.ndarray:
        """Scores from logits: probabilities, unless a kind overrides it."""
        return np.asarray(torch.sigmoid(torch.from_numpy(logits)).numpy())

    def combined(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """(M,) scores from logits (M,), or of K members (M, K) with the standard deviation of these."""
        if self.card.combine == "sum":
            return self.value(logits), None
        values, spread = self.card.reward_of(self.value(logits))
        return values.clip(*self.info.range), spread

    # what all kinds share

    def read(
        self, question: str, steps: Sequence[str], *, context: Sequence[Message] = (), tools: Sequence[Tool] = ()
    ) -> Reading:
        """A solution as this model reads it; line breaks between steps are those that it was trained with.

        Raises:
            ChatError: it cannot read this conversation.
            DataError: a character the tokenizer does not know.
        """
        closed = close_steps(steps, self.card.separator)
        if self.reads_conversations and (context or tools):
            return self._read(question, closed, context=context, tools=tools)
        refuse_conversation(f"a {self.card.kind} model", context, tools)
        return self._read(question, closed)

    @property
    def info(self) -> RewardInfo:
        """A probability per step."""
        return RewardInfo(
            name=self.card.kind,
            range=(0.0, 1.0),
            granularity="step" if self.per_step else "total",
            modality="text",
            causal=self.per_step,
            frames_needed=0,
            success_threshold=self.card.threshold,
        )

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the language model."""
        return self.policy.tokenizer

    @property
    def room(self) -> int | None:
        """Tokens that it can read: its limit, or the positions it has."""
        limits = [n for n in (self.card.max_length, self.policy.base.positions) if n is not None]
        return min(limits, default=None)

    @concurrent
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order; `episode.task` is the question, `episode.texts` are the steps."""
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    @batched
    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """Scores with the number of tokens read; nothing is ever left out, so `truncated` stays False."""
        return judge_readings(
            [self.reading_of(e) for e in episodes],
            self.micro_batch_size,
            self._scores,
            tokens=self.policy.base.tokens_per_pass,
        )

    @torch.inference_mode()
    def _scores(self, readings: Sequence[Reading]) -> list[Score]:
        values, spread = self.combined(self.logits(readings).float().cpu().numpy())
        if self.per_step:
            own = [Score.from_values(part) for part in split_steps(readings, values)]
            spreads = [] if spread is None else [float(part.mean()) for part in split_steps(readings, spread)]
        else:
            not_finite = Score(failure=Failure("non_finite", "the model's logit is not finite"))
            own = [Score(total=float(value)) if np.isfinite(value) else not_finite for value in values]
            spreads = [] if spread is None else spread.tolist()
        return [replace(one, spread=k) if one.failure is None else one for one, k in zip_longest(own, spreads)]

    def reading_of(self, episode: Episode) -> Reading | Failure:
        """An episode as this model reads it, or why it cannot."""
        if not episode.texts:
            return Failure("no_step", "the episode has no text")
        try:
            reading = self.read(episode.task, episode.texts, context=episode.context, tools=episode.tools)
        except DataError as error:
            return unread(error)
        if self.per_step and not reading.own_S.all():
            return Failure("empty_text", "a step has no token of its own, so there is nothing to judge")
        if self.room is not None and reading.reach > self.room:
            return Failure("too_long", f"{reading.reach} tokens, the model reads {self.room}")
        return reading

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """What is trained: an adapter or all weights, and the head."""
        head = {} if self.head is None else dict(self.head.named_parameters())
        return self.policy.named_parameters() | {_HEAD + name: p for name, p in head.items()}

    def tensors(self) -> dict[str, Tensor]:
        """A copy of what is trained."""
        return {name: distributed.gathered(p) for name, p in self.named_parameters().items()}

    def load_tensors(self, state: dict[str, Tensor]) -> None:
        """Return to what `tensors` gave.

        Raises:
            CheckpointError: names or shapes do not fit.
        """
        self.policy.load_tensors({name: t for name, t in state.items() if not name.startswith(_HEAD)})
        if self.head is not None:
            own = {name.removeprefix(_HEAD): t for name, t in state.items() if name.startswith(_HEAD)}
            with boundary(CheckpointError, "the stored head does not fit this reward model"):
                self.head.load_state_dict(own, strict=True)

    def written_bytes(self) -> dict[str, int]:
        """Bytes that training and `write` take, by what they are."""
        parts = written_bytes(self.policy)
        if self.stored_reference is not None:
            parts["the reference"] = sum(written_bytes(self.stored_reference, checkpoint=False).values())
        return parts

    def write(self, folder: Path, **changes: Any) -> Path:
        """Write the model in one piece.

        Args:
            folder: replaced if it exists.
            **changes: fields of the card that are other than this model's.
        """
        return write_folder(
            folder, self.policy, replace(self.card, **changes), head=self.head, ref=self.stored_reference
        )


def read_policy(folder: Path, card: TextModelCard, device: str | torch.device = "auto") -> TextPolicy:
    """The language model of a folder, any adapter merged into it, for scoring."""
    settings = TextPolicySettings(path=str(folder), bf16=card.bf16)
    return TextPolicy(load_base(settings, seed=0, device=device, start=False))


def read_adapters(
    folders: Sequence[Path], card: TextModelCard, device: str | torch.device = "auto"
) -> list[TextPolicy]:
    """The adapters of some folders, unmerged on the weights that the first belongs to.

    Raises:
        CheckpointError: one is missing or does not fit.
    """
    model, tokenizer = read_under(folders[0])
    settings = TextPolicySettings(path=base_of(folders[0]), bf16=card.bf16)
    base = SharedBase(model.to(resolve_device(device)), tokenizer, settings)
    found = []
    for k, folder in enumerate(folders):
        name = f"{card.kind}_{k}" if k else card.kind
        base.put_adapter(name, partial(read_adapter, folder=folder, name=name, trainable=True))
        found.append(TextPolicy(base, adapter=name))
    return found


def write_folder(
    folder: Path,
    policy: TextPolicy,
    card: TextModelCard,
    *,
    head: nn.Linear | None,
    ref: TextPolicy | None = None,
    merged: bool = False,
) -> Path:
    """Write a reward model in one piece; an older folder of that name is replaced.

    Args:
        folder: where.
        policy: the weights, or an adapter on them.
        card: the rest.
        head: what turns hidden states into logits.
        ref: a reference with weights of its own, stored under `reference/`.
        merged: write adapters merged into their weights.
    """
    refuse_to_write(whole_parameters(policy), folder)
    with sealed_folder(folder) as temporary:
        write_policy(policy, temporary, merged=merged)
        if head is not None:
            save_weights({name: t.detach().cpu() for name, t in head.state_dict().items()}, temporary / HEAD)
        if ref is not None:
            save_policy(ref, temporary / "reference", merged=merged)
        checkpoint.write_card(temporary / CARD, card)
    return folder


def new_head(width: int, seed: int = 0, outputs: int = 1) -> nn.Linear:
    """A linear layer to one logit, or those of members; logits of normalised hidden states begin with a variance of 1.

    A head of zeros passes no gradient on to the language model at first, and learns much slower at larger learning
    rates (docs/benchmarks.md, process reward models).
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        head = nn.Linear(width, outputs)
    nn.init.normal_(head.weight, std=width**-0.5, generator=generator)
    nn.init.zeros_(head.bias)
    return head
