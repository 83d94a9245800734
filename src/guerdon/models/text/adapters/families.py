r"""The families of published process reward models: how each writes a solution, and where it gives the value of a step.

Qwen2.5-Math-PRM (Zhang et al. 2025, 2501.07301): a chat with a fixed system prompt; the answer is the steps, each with
`<extra_0>` behind it, where a two-layer head gives P(right). The example on the model's card drops steps whose
probability is exactly 0 and shifts the rest; here every step keeps its place.

Skywork-o1-Open-PRM (`Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B` and `-1.5B`): the beginning-of-sequence text, the
question and a new line; then the lines of the solution, each tokenised by itself and closed by the token of a new line,
where the sigmoid of a value head is read. A step of several lines has the value of its last line.

TRL's `PRMTrainer` (experimental part of TRL 1.12): the beginning-of-sequence token, where the tokenizer has one, the
question, and the steps, each tokenised by itself with the tokens of the separator behind it, at the last of which
P(second label) is read. TRL does not store the separator: a new line, or `separator` in `adapter.json`.

Math-Shepherd (Wang et al. 2023, 2312.08935; `peiyi9979/math-shepherd-mistral-7b-prm`) is a plain language model: the
question, a space, and the steps, each with ` ки` behind it and a new line between them. Its data number the steps
("Step 1: ..."); a step that does not begin so gets its number. P(+) against P(-) is read after `ки`.

RLHFlow (`RLHFlow/Llama3.1-8B-PRM-Deepseek-Data` and `-Mistral-Data`) is a chat: the user writes a step (the first one
behind the question and a space), the assistant answers `+` or `-`. The value is read where the answer is about to be
given, all earlier answers being `+`; one chat with all steps gives all values at once.

EurusPRM-Stage1 and -Stage2, ImplicitPRM (Yuan et al. 2024, 2412.01981): two language models read the same chat. The
value of a step is the sigmoid of beta times the sum, over the answer's tokens up to the end of the step, of
log-probability minus the reference's. The answer is the steps with a blank line between them, each with its number in
front ("Step 1: ..."), as these models were trained; its last step has the end of the turn. The example on the cards
sums one or two tokens further, into the next step; here a value depends on nothing behind its step. Values lie
close to 0.5 (beta is 0.001, as on the cards): compare them, or choose a threshold on data.

A classifier of whole responses (`guerdon.models.text.sequence_classifier`) is here by its configuration, too.

Heads are written here and their weights are read strictly: code in a model's folder is not run.

    model = load_qwen_prm("Qwen/Qwen2.5-Math-PRM-7B", 8)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from guerdon.compute.devices import resolve_device
from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.models.text.adapters import NOTES, read_notes
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.text.text_inputs import (
    Reading,
    as_batch,
    asked_messages,
    judge_readings,
    refuse_conversation,
    split_steps,
    unread,
)
from guerdon.policies.batches import packing
from guerdon.policies.batches.control_tokens import control_tokens
from guerdon.policies.batches.packing import PACKED_ATTENTION, Layout
from guerdon.policies.batches.passes import token_limit
from guerdon.policies.batches.ropes import switch_of
from guerdon.policies.batches.tokens import chat_text, pad_id, pad_right, piece_ids, tokenized
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import read_classifier, read_model, tokenizer_home
from guerdon.policies.pretrained.chat_template import set_arguments
from guerdon.policies.pretrained.reading import read_tokenizer
from guerdon.processes.call_queue import batched, concurrent
from guerdon.reading.chats import check_characters
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import Episode, Failure, FloatArray, IntArray, Message, RewardInfo, RewardModel, Score, Tool

# ---------------------------------------------------------------------------------------------------------------------
# `StepReader`, the reward model behind all adapters: solutions as token ids with a place per step, batches, scores.
#
# An adapter brings a form (how its family writes a solution, and where the value of each step is) and a reading (the
# values at those places, for a few solutions at once). Places are found by where text was put, never by looking for a
# token: a step may contain any text. What cannot be read is a `Failure`: nothing is cut off, and a text that would
# become a control token of the model is not passed on.
#
# Solutions go through a network in one forward pass: packed into one row where the network reads packed solutions as
# it reads each alone (`policies.packing.packs`; every layer but attention then works on real tokens only), else
# padded on the right, which a causal model never sees.
#
#     reader = StepReader("qwen_prm", form, read, tokenizer=tokenizer, room=4096, micro_batch_size=8)
#     reader.score([episode])[0].steps           # (S,)
# ---------------------------------------------------------------------------------------------------------------------


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
        apart: see `guerdon.policies.batches.passes.passes`.
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
        apart: int | None = None,
        conversations: bool = False,
    ) -> None:
        if micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size must be at least 1, got {micro_batch_size}", key="micro_batch_size")
        self.form = form
        self.tokenizer = tokenizer
        self.room = room
        self._conversations = conversations
        self._name = name
        self._read = read
        self._micro = micro_batch_size
        self._tokens = tokens_per_pass
        self._apart = apart

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

        return judge_readings(readings, self._micro, scores, tokens=self._tokens, apart=self._apart)

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
            DataError: a character that the tokenizer lacks; or the tokenizer raised.
        """
        if not self._conversations:
            refuse_conversation(self._name, context, tools)
        texts = [("the question", question), *((f"step {k + 1}", s) for k, s in enumerate(steps))]
        texts += [(f"message {k + 1}", json.dumps(m, ensure_ascii=False)) for k, m in enumerate((*context, *tools))]
        controls = control_tokens(self.tokenizer)
        for where, text in texts:
            if found := [MARK] * (MARK in text) + controls.find(text):
                raise UnreadableSolutionError("control_token", f"{where} has the control token {found[0]!r}")
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
    encoded = tokenized(tokenizer, text, special=special, return_offsets_mapping=True)
    ids = np.asarray(encoded["input_ids"], dtype=np.int64)
    unknown = tokenizer.unk_token_id
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
    return placed(read_classifier(kind, path, "the reward model"), device)


def placed(model: Any, device: str | torch.device = "auto") -> Any:
    """The model where it computes, as a key `device` says: in bfloat16 on a GPU that has it, else in float32."""
    model = model.eval().requires_grad_(False)
    where = resolve_device(device)
    if where.type == "cuda":
        model = model.to(where, torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32)
    return model


def read_base(path: str, tokenizer: Any, device: str | torch.device = "auto", *, start: bool = False) -> SharedBase:
    """A language model for reading, strictly loaded.

    Args:
        path: folder or hub id; an adapter is merged into its model.
        tokenizer: of the family.
        device: as a key `device` says.
        start: whether it is no reward model itself but a reference, see `read_pretrained`.

    Raises:
        CheckpointError: it cannot be read, lacks weights, or was saved as another kind of model.
    """
    model, _ = read_model(path, start=start)
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


# ---------------------------------------------------------------------------------------------------------------------


QWEN_MARKER, SHEPHERD_MARKER = "<extra_0>", "ки"
QUESTION = "What is 3 + 5 - 2?"  # of the solution by which markers are found
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
LINE, BLANK_LINE = "\n", "\n\n"
BETA = 0.001  # of EurusPRM
_REFERENCES = {"eurusprm": "Qwen/Qwen2.5-Math-7B-Instruct"}  # what the cards name


class Qwen2ForProcessRewardModel(Qwen2PreTrainedModel):  # type: ignore[misc]
    """The decoder and a head of two layers with two outputs: wrong, right."""

    _keys_to_ignore_on_load_unexpected = (r"^lm_head\.",)  # in the published files, without a use

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        width = config.hidden_size
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
        self.post_init()


class Qwen2ForPrmModel(Qwen2PreTrainedModel):  # type: ignore[misc]
    """The decoder and a value head."""

    _keys_to_ignore_on_load_unexpected = (r"^lm_head\.",)  # in the published files, without a use

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.v_head = nn.ModuleDict({"summary": nn.Linear(config.hidden_size, 1)})
        self.post_init()


def load_qwen_prm(path: str, micro_batch_size: int, device: str | torch.device = "auto") -> RewardModel:
    """Qwen2.5-Math-PRM.

    Args:
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.
        device: where it computes, as a key `device` says.

    Raises:
        CheckpointError: it cannot be read, is of another kind, or its tokenizer lacks `<extra_0>`.
    """
    notes = read_notes(path, "qwen_prm", {"chat_template_kwargs"})
    tokenizer = checked_tokenizer(path, chat=True, arguments=notes.chat_template_kwargs)

    def write(question: str, steps: Sequence[str], context: Sequence[Message] = (), tools: Sequence[Tool] = ()) -> str:
        answer = {"role": "assistant", "content": "".join(step + MARK for step in steps)}
        return chat_text(tokenizer, [*asked_messages(question, context, SYSTEM), answer], tools, answered=True)

    marker = marker_token(partial(write, QUESTION), tokenizer, QWEN_MARKER, path, special=False)
    model = read_strictly(Qwen2ForProcessRewardModel, path, device)

    def form(*solution: Any, **conversation: Any) -> Reading:
        text = write(*solution, **conversation)
        return marked_reading(tokenizer, text, QWEN_MARKER, marker, special=False)

    def values(inputs: dict[str, Any], places_M: Tensor) -> Tensor:
        logits: Tensor = model.score(_hidden(model, inputs)[places_M])
        return logits.float().softmax(-1)[:, 1]

    return _with_head("qwen_prm", form, values, model, tokenizer, micro_batch_size, conversations=True)


def load_skywork(path: str, micro_batch_size: int, device: str | torch.device = "auto") -> RewardModel:
    """Skywork-o1-Open-PRM.

    Args:
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.
        device: where it computes, as a key `device` says.

    Raises:
        CheckpointError: it cannot be read, is of another kind, or its tokenizer lacks a beginning of sequences or the
            token of a new line.
    """
    read_notes(path, "skywork")
    tokenizer = checked_tokenizer(path, chat=False)
    (line,) = single_token(tokenizer, LINE, path)
    if tokenizer.bos_token is None:
        raise CheckpointError(f"the tokenizer of {path!r} has no beginning-of-sequence token, which this family needs")
    model = read_strictly(Qwen2ForPrmModel, path, device)

    def form(question: str, steps: Sequence[str]) -> Reading:
        lines = [step.split(LINE) for step in steps]
        asked, *written = piece_ids(tokenizer, [f"{question}{LINE}", *(text for of_step in lines for text in of_step)])
        begin = np.array([tokenizer.bos_token_id], dtype=np.int64)
        pieces = [np.concatenate([begin, asked]), *(np.append(ids, np.int64(line)) for ids in written)]
        ends = np.cumsum([len(piece) for piece in pieces])
        return Reading(np.concatenate(pieces), 0, ends[np.cumsum([len(of_step) for of_step in lines])] - 1)

    def values(inputs: dict[str, Any], places_M: Tensor) -> Tensor:
        value: Tensor = model.v_head["summary"](_hidden(model, inputs)[places_M])
        return value.float()[:, 0].sigmoid()

    return _with_head("skywork", form, values, model, tokenizer, micro_batch_size)


def load_trl(path: str, micro_batch_size: int, device: str | torch.device = "auto") -> RewardModel:
    """A token classifier of TRL.

    Args:
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.
        device: where it computes, as a key `device` says.

    Raises:
        CheckpointError: it cannot be read, has another number of labels than two, or its tokenizer cannot write the
            separator.
    """
    from transformers import AutoModelForTokenClassification

    notes = read_notes(path, "trl", {"separator"})
    separator = notes.separator or LINE
    tokenizer = checked_tokenizer(path, chat=False)
    closing = np.asarray(tokenizer.encode(separator, add_special_tokens=False), dtype=np.int64)
    if not len(closing) or (tokenizer.unk_token_id is not None and (closing == tokenizer.unk_token_id).any()):
        raise CheckpointError(f"the tokenizer of {path!r} has no token for the separator {separator!r}")
    model = read_strictly(AutoModelForTokenClassification, path, device)
    if model.config.num_labels != 2:
        raise CheckpointError(
            f"the token classifier {path!r} has {model.config.num_labels} labels; wrong and right are 2"
        )

    def form(question: str, steps: Sequence[str]) -> Reading:
        first = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
        asked, *written = piece_ids(tokenizer, [question, *steps])
        lengths = [len(first) + len(asked), *(len(ids) + len(closing) for ids in written)]
        pieces = [np.array(first, dtype=np.int64), asked, *(part for ids in written for part in (ids, closing))]
        return Reading(np.concatenate(pieces), 0, np.cumsum(lengths)[1:] - 1)

    def values(inputs: dict[str, Any], places_M: Tensor) -> Tensor:
        logits: Tensor = model(**inputs).logits.flatten(0, 1)[places_M]
        return logits.float().softmax(-1)[:, 1]

    return _with_head("trl", form, values, model, tokenizer, micro_batch_size)


def _hidden(model: Any, inputs: dict[str, Any]) -> Tensor:
    """(places, H) last hidden states of the decoder."""
    hidden: Tensor = model.model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)
    return hidden


def _with_head(
    name: str,
    form: Form,
    values: Callable[[dict[str, Any], Tensor], Tensor],
    model: Any,
    tokenizer: Any,
    micro: int,
    *,
    conversations: bool = False,
) -> RewardModel:
    """The reward model whose values at the places (M,) of a batch are those of a head."""
    lay = layer(model, tokenizer)

    @torch.inference_mode()
    def read(batch: Sequence[Reading]) -> Sequence[FloatArray]:
        return split_steps(batch, values(*lay(batch)).float().cpu().numpy())

    return StepReader(
        name, form, read, tokenizer=tokenizer, room=room_of(model), micro_batch_size=micro,
        tokens_per_pass=token_limit(None, model, model.device), apart=switch_of(model.config),
        conversations=conversations,
    )  # fmt: skip


def load_math_shepherd(path: str, micro_batch_size: int, device: str | torch.device = "auto") -> RewardModel:
    """Math-Shepherd's reward model.

    Args:
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.
        device: where it computes, as a key `device` says.

    Raises:
        CheckpointError: it cannot be read, or its tokenizer lacks the marker or the verdicts.
    """
    read_notes(path, "math_shepherd")
    tokenizer = checked_tokenizer(path, chat=False)

    def write(question: str, steps: Sequence[str]) -> str:
        written = "\n".join(f"{step} {MARK}" for step in numbered(steps))
        return f"{question} {written}"

    token = partial(marker_token, partial(write, QUESTION), tokenizer, path=path, special=True)
    marker, right, wrong = (token(marker=mark) for mark in (SHEPHERD_MARKER, "+", "-"))

    def form(question: str, steps: Sequence[str]) -> Reading:
        return marked_reading(tokenizer, write(question, steps), SHEPHERD_MARKER, marker, special=True)

    return _with_verdicts("math_shepherd", form, read_base(path, tokenizer, device), right, wrong, micro_batch_size)


def load_rlhflow(path: str, micro_batch_size: int, device: str | torch.device = "auto") -> RewardModel:
    """A reward model of RLHFlow.

    Args:
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.
        device: where it computes, as a key `device` says.

    Raises:
        CheckpointError: it cannot be read, or its tokenizer lacks a chat template or the verdicts.
    """
    notes = read_notes(path, "rlhflow", {"chat_template_kwargs"})
    tokenizer = checked_tokenizer(path, chat=True, arguments=notes.chat_template_kwargs)

    def write(question: str, steps: Sequence[str]) -> str:
        turns = [f"{question} {steps[0]}", *steps[1:]]
        chat = [{"role": r, "content": t} for turn in turns for r, t in (("user", turn), ("assistant", MARK))]
        return chat_text(tokenizer, chat, answered=True)

    right, wrong = (marker_token(partial(write, QUESTION), tokenizer, v, path, special=False) for v in "+-")

    def form(question: str, steps: Sequence[str]) -> Reading:
        # the token before an answer predicts it
        return marked_reading(tokenizer, write(question, steps), "+", right, special=False, shift=-1)

    return _with_verdicts("rlhflow", form, read_base(path, tokenizer, device), right, wrong, micro_batch_size)


def _with_verdicts(name: str, form: Form, base: SharedBase, right: int, wrong: int, micro: int) -> RewardModel:
    """The reward model whose values are the probability of one token against another, as the next one."""

    @torch.inference_mode()
    def read(batch: Sequence[Reading]) -> Sequence[FloatArray]:
        given, places = pack(batch, base.device) if base.packs else pad(batch, base.tokenizer, base.device)
        attention = PACKED_ATTENTION if base.packs else None
        where = given.get("position_ids")
        packed = given.get("packing")
        hidden = base.hidden(Layout(given["input_ids"], where, places, places, packed, attention=attention))
        logits = base.logits(hidden[places])[:, [right, wrong]]
        return split_steps(batch, logits.float().softmax(-1)[:, 0].cpu().numpy())

    return StepReader(
        name, form, read, tokenizer=base.tokenizer, room=room_of(base.model), micro_batch_size=micro,
        tokens_per_pass=base.tokens_per_pass, apart=base.ropes.switch,
    )  # fmt: skip


def load_implicit(path: str, micro_batch_size: int, device: str | torch.device = "auto") -> RewardModel:
    """An implicit reward model and its reference.

    Args:
        path: folder or hub id. `ref_path` (and `beta`) in its `adapter.json`; EurusPRM's reference is known.
        micro_batch_size: solutions per forward pass.
        device: where it computes, as a key `device` says.

    Raises:
        CheckpointError: one of the two cannot be read, the reference is unknown, or its tokens are others.
    """
    notes = read_notes(path, "implicit", {"ref_path", "beta", "chat_template_kwargs"})
    beta = BETA if notes.beta is None else notes.beta
    origin = notes.ref_path or next((ref for name, ref in _REFERENCES.items() if name in path.lower()), None)
    if origin is None:
        raise CheckpointError(
            f"the reference of the implicit reward model {path!r} is unknown: put "
            f'{{"adapter": "implicit", "ref_path": "..."}} into {NOTES} in its folder'
        )
    origin = str(Path(path) / origin) if (Path(path) / origin).is_dir() else origin
    tokenizer = checked_tokenizer(path, chat=True, arguments=notes.chat_template_kwargs)
    ours = tokenizer.get_vocab()
    theirs = checked_tokenizer(origin, chat=False).get_vocab()
    if any(ours[token] != theirs[token] for token in ours.keys() & theirs.keys()):
        raise CheckpointError(f"the tokens of {path!r} have other ids than those of its reference {origin!r}")
    policy = TextPolicy(read_base(path, tokenizer, device), trainable=False)
    reference = TextPolicy(read_base(origin, tokenizer, device, start=True), trainable=False)
    rooms = [room for one in (policy, reference) if (room := room_of(one.base.model)) is not None]

    def form(
        question: str, steps: Sequence[str], context: Sequence[Message] = (), tools: Sequence[Tool] = ()
    ) -> Reading:
        pieces = [step + BLANK_LINE for step in numbered(steps)]
        pieces[-1] = pieces[-1].removesuffix(BLANK_LINE)
        written = "".join(pieces)
        answer = {"role": "assistant", "content": MARK + written}
        text = chat_text(tokenizer, [*asked_messages(question, context), answer], tools, answered=True)
        head, _, rest = text.partition(MARK)
        if not rest.startswith(written):
            raise UnreadableSolutionError("not_reversible", "the chat template changes the solution")
        text = head + rest
        start = len(head)
        ends = start + np.cumsum([0, *map(len, pieces)])
        ends[-1] = len(text.rstrip())  # the last step has the end of the turn
        ids, places = located(tokenizer, text, ends)
        if places[1:].min() < 0:
            raise UnreadableSolutionError("not_reversible", "the tokenizer does not say where a step ends")
        return Reading(ids, int(places[0]) + 1, places[1:])

    @torch.inference_mode()
    def read(batch: Sequence[Reading]) -> Sequence[FloatArray]:
        tokens = as_batch(policy, batch)
        ratios = policy.log_probs(tokens) - reference.log_probs(tokens)
        sums_B_T = (beta * ratios.double()).cumsum(-1).sigmoid().float().cpu().numpy()
        return [row[r.ends_S - r.start] for row, r in zip(sums_B_T, batch, strict=True)]

    return StepReader(
        "implicit", form, read,
        tokenizer=tokenizer, room=min(rooms, default=None), micro_batch_size=micro_batch_size,
        tokens_per_pass=policy.base.tokens_per_pass, conversations=True,
    )  # fmt: skip


def load_classifier(path: str, micro_batch_size: int, device: str | torch.device = "auto") -> RewardModel:
    """A sequence classifier with one label or two, as TRL's `RewardTrainer` saves it.

    Args:
        path: folder or hub id.
        micro_batch_size: responses per forward pass.
        device: where it computes, as a key `device` says.

    Raises:
        CheckpointError: it cannot be read, is of another kind, or its tokenizer has no chat template.
    """
    notes = read_notes(path, "classifier", {"chat_template_kwargs"})
    model = SequenceClassifier(path, micro_batch_size=micro_batch_size, device=device)
    set_arguments(model.tokenizer, notes.chat_template_kwargs, f"chat_template_kwargs of {path!r}")
    return model
