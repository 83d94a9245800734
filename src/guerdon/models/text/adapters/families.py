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

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from guerdon.errors import CheckpointError
from guerdon.models.text.adapters import NOTES, read_notes
from guerdon.models.text.adapters.steps import (
    MARK,
    Form,
    StepReader,
    UnreadableSolutionError,
    checked_tokenizer,
    layer,
    located,
    marked_reading,
    marker_token,
    numbered,
    pack,
    pad,
    read_base,
    read_strictly,
    room_of,
    single_token,
)
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.text.text_inputs import Reading, as_batch, asked_messages, split_steps
from guerdon.policies.batches.packing import PACKED_ATTENTION, Layout
from guerdon.policies.batches.passes import token_limit
from guerdon.policies.batches.tokens import chat_text, piece_ids
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.pretrained.chat_template import set_arguments
from guerdon.types import FloatArray, Message, RewardModel, Tool

QWEN_MARKER, SHEPHERD_MARKER = "<extra_0>", "ки"
QUESTION = "What is 3 + 5 - 2?"  # of the solution by which markers are found
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
LINE, BLANK_LINE = "\n", "\n\n"
BETA = 0.001  # of EurusPRM
_REFERENCES = {"eurusprm": "Qwen/Qwen2.5-Math-7B-Instruct"}  # what the cards name


class Qwen2ForProcessRewardModel(Qwen2PreTrainedModel):  # type: ignore[misc]
    """The decoder and a head of two layers with two outputs: wrong, right."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        width = config.hidden_size
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
        self.post_init()


class Qwen2ForPrmModel(Qwen2PreTrainedModel):  # type: ignore[misc]
    """The decoder and a value head."""

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
        asked, *written = piece_ids(
            tokenizer, [f"{tokenizer.bos_token}{question}{LINE}", *(text for of_step in lines for text in of_step)]
        )
        pieces = [asked, *(np.append(ids, np.int64(line)) for ids in written)]
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
        tokens_per_pass=token_limit(None, model, model.device), conversations=conversations,
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
        where, packed = given.get("position_ids"), given.get("packing")
        hidden = base.hidden(Layout(given["input_ids"], where, places, places, packed, attention=attention))
        logits = base.logits(hidden[places])[:, [right, wrong]]
        return split_steps(batch, logits.float().softmax(-1)[:, 0].cpu().numpy())

    return StepReader(
        name, form, read, tokenizer=base.tokenizer, room=room_of(base.model), micro_batch_size=micro,
        tokens_per_pass=base.tokens_per_pass,
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
    ours, theirs = tokenizer.get_vocab(), checked_tokenizer(origin, chat=False).get_vocab()
    if any(ours[token] != theirs[token] for token in ours.keys() & theirs.keys()):
        raise CheckpointError(f"the tokens of {path!r} have other ids than those of its reference {origin!r}")
    policy, reference = (TextPolicy(read_base(folder, tokenizer, device), trainable=False) for folder in (path, origin))
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
        text, start = head + rest, len(head)
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
