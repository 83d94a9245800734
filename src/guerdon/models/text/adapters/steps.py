r"""`StepReader`, the reward model behind all adapters: solutions as token ids with a place per step, batches, scores.

An adapter brings a form (how its family writes a solution, and where the value of each step is) and a reading (the
values at those places, for a few solutions at once). Places are found by where text was put, never by looking for a
token: a step may contain any text. What cannot be read is a `Failure`: nothing is cut off, and a text that would become
a control token of the model is not passed on.

Solutions go through a network in one forward pass: packed into one row where the network reads packed solutions as it
reads each alone (`policies.packing.packs`; every layer but attention then works on real tokens only), else padded on
the right, which a causal model never sees.

    reader = StepReader("qwen_prm", form, read, tokenizer=tokenizer, room=4096, micro_batch_size=8)
    reader.score([episode])[0].steps           # (S,)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.compute.devices import resolve_device
from guerdon.episodes.chats import check_characters
from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.models.text.text_inputs import Reading, judge_readings, refuse_conversation, unread
from guerdon.policies.batches import packing
from guerdon.policies.batches.packing import PACKED_ATTENTION
from guerdon.policies.batches.tokens import pad_id, pad_right
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text_files import read_classifier, read_model, tokenizer_home
from guerdon.policies.pretrained.chat_template import set_arguments
from guerdon.policies.pretrained.reading import read_tokenizer
from guerdon.processes.call_queue import batched, concurrent
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import Episode, Failure, FloatArray, IntArray, Message, RewardInfo, Score, Tool

_NUMBERED = re.compile(r"\s*step\s+[0-9]+\b", re.IGNORECASE)
_PROBE = ("Add 3 and 5: 3 + 5 = 8.", "Take 2 from it, which is 6", "So the answer is \\boxed{6}")  # steps
MARK = "\ue000"  # placeholder of a marker while a text is put together; a private-use character


class UnreadableSolutionError(DataError):
    """A solution that a family has no way to read.

    Attributes:
        reason: a short stable word to count by.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


Form = Callable[..., Reading]
"""A question and the bodies of its steps as ids; `ends_S` is where the value of each step is read.

That of a family that reads conversations takes `context` and `tools` too, as they are in an `Episode`.
"""
Values = Callable[[Sequence[Reading]], Sequence[FloatArray]]
"""Values of the steps of a few solutions."""
Inputs = tuple[dict[str, Any], Tensor]
"""What a network is called with, and for all steps, solution by solution, their place in the flattened output."""


class StepReader:
    """A reward model of steps: a `RewardModel` and a `Judge`.

    Args:
        name: how logs and reports call it.
        form: how a solution is written.
        read: values of a few solutions at once.
        tokenizer: of the model.
        room: most tokens that the model takes; None for any number.
        micro_batch_size: solutions per forward pass.
        tokens_per_pass: most tokens in one, padding included; None: any number.
        conversations: whether the form takes `context` and `tools`; without, a conversation is refused.

    Raises:
        ConfigError: `micro_batch_size` is below 1.
    """

    def __init__(
        self,
        name: str,
        form: Form,
        read: Values,
        *,
        tokenizer: Any,
        room: int | None,
        micro_batch_size: int,
        tokens_per_pass: int | None = None,
        conversations: bool = False,
    ) -> None:
        if micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size must be at least 1, got {micro_batch_size}")
        self.form, self.tokenizer, self.room, self._conversations = form, tokenizer, room, conversations
        self._name, self._read, self._micro, self._tokens = name, read, micro_batch_size, tokens_per_pass
        added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._control = (*sorted({*added, *tokenizer.all_special_tokens}), MARK)  # become tokens of the model's own

    @property
    def info(self) -> RewardInfo:
        """Probabilities, one per step."""
        return RewardInfo(self._name, (0.0, 1.0), modality="text", frames_needed=0, success_threshold=0.5)

    @concurrent
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, with a value per step."""
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    @batched
    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """Scores, and how many tokens were read for each.

        Raises:
            ConfigError: `options` has an option that does nothing with this model.
        """
        if options != JudgeOptions():
            raise ConfigError(f"the reward model {self._name} scores text and has no such options")
        readings = [self._reading_of(episode) for episode in episodes]

        def scores(batch: Sequence[Reading]) -> list[Score]:
            return [Score.from_values(values) for values in self._read(batch)]

        return judge_readings(readings, self._micro, scores, tokens=self._tokens)

    def _reading_of(self, episode: Episode) -> Reading | Failure:
        if episode.texts is None:
            return Failure("no_text", "the episode has no texts")
        if not episode.texts:
            return Failure("no_step", "the solution has no step")
        try:
            return self.tokenize(episode.task, episode.texts, context=episode.context, tools=episode.tools)
        except DataError as error:
            return unread(error)

    def tokenize(
        self, question: str, steps: Sequence[str], *, context: Sequence[Message] = (), tools: Sequence[Tool] = ()
    ) -> Reading:
        """A solution as the model reads it.

        Raises:
            UnreadableSolutionError: it cannot be read, and why.
            ChatError: the family reads no such conversation.
            DataError: a character that the tokenizer lacks.
        """
        if not self._conversations:
            refuse_conversation(self._name, context, tools)
        texts = [("the question", question), *((f"step {k + 1}", s) for k, s in enumerate(steps))]
        texts += [(f"message {k + 1}", json.dumps(m, ensure_ascii=False)) for k, m in enumerate((*context, *tools))]
        for where, text in texts:
            for control in self._control:
                if control in text:
                    raise UnreadableSolutionError("control_token", f"{where} has the control token {control!r}")
        bodies = [step.strip() for step in steps]
        more = {"context": context, "tools": tools} if self._conversations and (context or tools) else {}
        reading = self.form(question, bodies, **more)
        assert len(reading.ends_S) == len(steps)
        if self.room is not None and len(reading) > self.room:
            raise UnreadableSolutionError("too_long", f"{len(reading)} tokens, the model has room for {self.room}")
        return reading


def marked_reading(tokenizer: Any, text: str, marker: str, token: int, *, special: bool, shift: int = 0) -> Reading:
    """A text with `marker` in place of every `MARK`; values are read at the markers.

    Args:
        tokenizer: one with offsets (a fast tokenizer).
        text: with a `MARK` behind every step.
        marker: what marks the end of a step.
        token: what a marker must become.
        special: whether the tokenizer adds its own beginning and end.
        shift: tokens from a marker to where its value is read.

    Raises:
        UnreadableSolutionError: a marker does not become this token.
        DataError: a character that the tokenizer lacks.
    """
    pieces = text.split(MARK)
    ends = np.cumsum([len(p) + len(marker) for p in pieces[:-1]])
    ids, places = located(tokenizer, marker.join(pieces), ends, special=special)
    for k, place in enumerate(places):
        if place < 0 or ids[place] != token:
            raise UnreadableSolutionError("no_marker", f"the mark behind step {k + 1} did not become the token {token}")
    return Reading(ids, 0, places + shift)


def located(
    tokenizer: Any, text: str, ends: Sequence[int] | IntArray, *, special: bool = False
) -> tuple[IntArray, IntArray]:
    """The ids of a text, and the token in which each of its beginnings ends (-1: none).

    Args:
        tokenizer: one with offsets (a fast tokenizer).
        text: a text.
        ends: lengths of its beginnings in characters, in any shape.
        special: whether the tokenizer adds its own beginning and end.

    Raises:
        DataError: a character that the tokenizer lacks.
    """
    check_characters(text)
    encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    ids, unknown = np.asarray(encoded["input_ids"], dtype=np.int64), tokenizer.unk_token_id
    known = (None, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    if unknown not in known and (ids == unknown).any():
        raise DataError(f"the tokenizer lacks characters of {text[:80]!r}")
    covers: dict[int, int] = {}
    for index, (first, last) in enumerate(encoded["offset_mapping"]):
        covers.update(dict.fromkeys(range(first, last), index))
    return ids, np.vectorize(lambda end: covers.get(int(end) - 1, -1), otypes=[np.int64])(np.asarray(ends))


def marker_token(
    write: Callable[[Sequence[str]], str], tokenizer: Any, marker: str, path: str, *, special: bool
) -> int:
    """The token that a marker becomes after a step, where byte-level tokenizers may give another than for it alone.

    Args:
        write: a solution of some steps with a `MARK` for each, as the family writes it.
        tokenizer: one with offsets (a fast tokenizer).
        marker: one of the family.
        path: of the model, for the message.
        special: whether the tokenizer adds its own beginning and end.

    Raises:
        CheckpointError: a marker is not a single known token, or the chat template cannot write a solution.
    """
    try:
        pieces = write(_PROBE).split(MARK)
        ends = np.cumsum([len(piece) + len(marker) for piece in pieces[:-1]])
        ids, places = located(tokenizer, marker.join(pieces), np.stack([ends, ends - len(marker) + 1]), special=special)
    except DataError as error:
        raise CheckpointError(f"{path!r} cannot read a solution: {error}") from error
    found = {int(ids[last]) if last == first >= 0 else -1 for last, first in places.T}
    if len(found) != 1 or found & {-1, tokenizer.unk_token_id}:
        raise CheckpointError(
            f"the tokenizer of {path!r} has no token for {marker!r} after a step: the model is of another family"
        )
    return found.pop()


def single_token(tokenizer: Any, text: str, path: str, *, count: int = 1) -> list[int]:
    """Ids of a text that must be so many known tokens.

    Raises:
        CheckpointError: the tokenizer lacks it: the folder belongs to another family.
    """
    ids = [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]
    if len(ids) != count or (tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids):
        raise CheckpointError(
            f"the tokenizer of {path!r} has no token for {text!r} (it gives {ids}): the model is of another family"
        )
    return ids


def checked_tokenizer(path: str, *, chat: bool, arguments: Mapping[str, Any] | None = None) -> Any:
    """The tokenizer of a folder or hub id.

    Args:
        path: folder or hub id.
        chat: whether a chat template is needed.
        arguments: of that template.

    Raises:
        CheckpointError: it cannot be read, does not say where its tokens stand, or lacks a chat template.
        ConfigError: the chat template has no such argument.
    """
    tokenizer = read_tokenizer(tokenizer_home(path))
    if not tokenizer.is_fast:
        raise CheckpointError(
            f"the tokenizer of {path!r} does not say where its tokens stand in a text: save a fast one"
        )
    if chat and not tokenizer.chat_template:
        raise CheckpointError(
            f"the tokenizer of {path!r} has no chat template, which this family writes its chats with"
        )
    set_arguments(tokenizer, arguments or {}, f"chat_template_kwargs of {path!r}")
    return tokenizer


def read_strictly(kind: Any, path: str, device: str | torch.device = "auto") -> Any:
    """A model of this class, every weight from the file and none left over, where it computes.

    Args:
        kind: a class with transformers' `from_pretrained`.
        path: folder or hub id; an adapter is merged into its model, whose own head it replaces.
        device: as a key `device` says.

    Raises:
        CheckpointError: it cannot be read, lacks weights, or has some that the class does not.
    """
    return placed(read_classifier(kind, path, "the reward model", exact=True), device)


def placed(model: Any, device: str | torch.device = "auto") -> Any:
    """The model where it computes, as a key `device` says: in bfloat16 on a GPU that has it, else in float32."""
    model, where = model.eval().requires_grad_(False), resolve_device(device)
    if where.type == "cuda":
        model = model.to(where, torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32)
    return model


def read_base(path: str, tokenizer: Any, device: str | torch.device = "auto") -> SharedBase:
    """A language model for reading, strictly loaded.

    Args:
        path: folder or hub id; an adapter is merged into its model.
        tokenizer: of the family.
        device: as a key `device` says.

    Raises:
        CheckpointError: it cannot be read, lacks weights, or was saved as another kind of model.
    """
    model, _ = read_model(path)
    saved_as = [str(a) for a in model.config.architectures or ()]
    if saved_as and not any(a.endswith(("ForCausalLM", "LMHeadModel")) for a in saved_as):
        raise CheckpointError(f"{path!r} was saved as {saved_as[0]}, which is not a language model")
    return SharedBase(placed(model, device), tokenizer, TextPolicySettings(path=path, bf16=False))


def room_of(model: Any) -> int | None:
    """Most tokens that a model has positions for."""
    room = getattr(model.config, "max_position_embeddings", None)
    return None if room is None else int(room)


def numbered(steps: Sequence[str]) -> list[str]:
    """The steps, each with its number in front where it does not begin with one already."""
    return [step if _NUMBERED.match(step) else f"Step {k + 1}: {step}" for k, step in enumerate(steps)]


def layer(model: Any, tokenizer: Any) -> Callable[[Sequence[Reading]], Inputs]:
    """How this network reads several solutions at once; sets its attention implementation.

    Args:
        model: a network of transformers, for reading only.
        tokenizer: of the model.
    """
    if not packing.packs(model):
        return lambda batch: pad(batch, tokenizer, model.device)
    model.set_attn_implementation(PACKED_ATTENTION)
    return lambda batch: pack(batch, model.device)


def pad(batch: Sequence[Reading], tokenizer: Any, device: torch.device) -> Inputs:
    """Side by side, filled up on the right."""
    ids, mask = pad_right([r.ids for r in batch], pad_id(tokenizer))
    inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
    places = _places(batch, np.arange(len(batch)) * ids.shape[1], device)
    return {name: tensor.to(device) for name, tensor in inputs.items()}, places


def pack(batch: Sequence[Reading], device: torch.device) -> Inputs:
    """One behind the other in a single row; attention keeps them apart."""
    ids, positions, where = packing.pack([r.ids for r in batch], device)
    places = _places(batch, np.cumsum([0, *(len(r.ids) for r in batch[:-1])]), device)
    return {"input_ids": ids, "position_ids": positions, "packing": where}, places


def _places(batch: Sequence[Reading], starts_B: IntArray, device: torch.device) -> Tensor:
    places = np.concatenate([start + r.ends_S for start, r in zip(starts_B, batch, strict=True)])
    return torch.from_numpy(places).to(device)
