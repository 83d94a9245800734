"""Reward models of text on disk: a transformers or peft folder with `reward_model.json` beside the weights.

The JSON says what the weights cannot: the kind of model, in which form it reads, what ended the steps it was trained
on, the threshold, what its labels meant, and how it was trained. A linear head lies in `head.safetensors`. The folder
is written in one piece and its hashes are checked when it is read. This module does not know how models score.

    write_text_model(model, Path("runs/prm/final_checkpoint"))
    card = read_card(Path("runs/prm/final_checkpoint"))
    card.kind, card.threshold
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from guerdon import __version__
from guerdon.atomic import COMPLETE, seal_folder, verify_folder, write_json
from guerdon.errors import CheckpointError, boundary
from guerdon.finite import load_weights, save_weights
from guerdon.policies.text import TextPolicy
from guerdon.policies.text_files import save_policy

CARD, HEAD = "reward_model.json", "head.safetensors"
ADDED = {"system_prompt", "temperature", "closed", "length_limit"}  # fields that older cards lack


@dataclass(frozen=True)
class TextModelCard:
    """Everything about a reward model of text but its weights.

    Attributes:
        kind: which model: `stepwise`, `verdict`, `outcome`, `implicit`.
        form: how it reads: `chat` (question as a chat, steps behind it) or `evaluate_this_step` (plain text that
            ends with a request to evaluate).
        loss: what it was trained with: `bce`, `bradley_terry`, `ce`, `dpo`.
        separator: what ended most steps of the training data; empty where they ended in no fixed text.
        threshold: a step (or solution) below it counts as wrong; None where values have no such point.
        labels: what a target of 1 means, in words.
        max_length: tokens that it reads at most; None: as many as its weights have positions for.
        beta: of `implicit`, the factor of the log-ratios; else None.
        read: of `implicit`: the score of a step is of everything up to it, or of the step alone; else None.
        system_prompt: of `implicit`: the system turn before each question; None: there is none.
        temperature: of `implicit`: divides the logits, as where the model learnt.
        closed: of `implicit`: a text is read as a finished one, its end-of-sequence token belongs to the last step.
        length_limit: of `closed`: a text of so many tokens was cut where the model learnt, so it has no such token.
        bf16: whether it computes in bfloat16; `auto`: where the hardware has it.
        quantize: how its frozen weights were stored while it was trained; None: as they are.
        learning: settings of its optimiser, for learning on while in use.
        training: data hash, method, reward, counts, settings and metrics; plain JSON values.
    """

    kind: str
    form: str
    loss: str
    separator: str = ""
    threshold: float | None = 0.5
    labels: str = ""
    max_length: int | None = None
    beta: float | None = None
    read: Literal["cumulative", "single"] | None = None
    system_prompt: str | None = None
    temperature: float = 1.0
    closed: bool = False
    length_limit: int | None = None
    bf16: bool | Literal["auto"] = "auto"
    quantize: Literal["nf4"] | None = None
    learning: Mapping[str, float] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


def is_own(folder: Path) -> bool:
    """Whether a folder holds a reward model that guerdon wrote."""
    return (folder / CARD).is_file()


def read_card(folder: Path) -> TextModelCard:
    """The card of a folder, whose files must be those that were written.

    Raises:
        CheckpointError: there is none, it is of another version, or a file was altered.
    """
    verify_folder(folder)
    with boundary(CheckpointError, f"{folder / CARD} cannot be read"):
        record = json.loads((folder / CARD).read_text(encoding="utf-8"))
        known = {f.name for f in fields(TextModelCard)}
        absent = sorted(known - record.keys() - ADDED)
        if absent:
            raise CheckpointError(f"{folder / CARD} lacks {', '.join(absent)}: it was not written by `guerdon train`")
        return TextModelCard(**{name: record[name] for name in known & record.keys()})


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
    temporary = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    save_policy(policy, temporary, merged=merged)
    (temporary / COMPLETE).unlink()  # sealed again below, with what is added
    if head is not None:
        save_weights({name: t.detach().cpu() for name, t in head.state_dict().items()}, temporary / HEAD)
    if ref is not None:
        save_policy(ref, temporary / "reference", merged=merged)
    write_json(temporary / CARD, asdict(card) | {"guerdon_version": __version__})
    seal_folder(temporary, folder)
    return folder


def new_head(width: int, seed: int = 0) -> nn.Linear:
    """A linear layer to one logit, drawn so that logits of normalised hidden states begin with a variance of 1.

    A head of zeros passes no gradient on to the language model at first, and learns much slower at larger learning
    rates (docs/benchmarks.md, process reward models).
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        head = nn.Linear(width, 1)
    nn.init.normal_(head.weight, std=width**-0.5, generator=generator)
    nn.init.zeros_(head.bias)
    return head


def read_head(folder: Path, width: int) -> nn.Linear:
    """The head of a folder.

    Raises:
        CheckpointError: there is none, or it is of another width.
    """
    head = new_head(width)
    with boundary(CheckpointError, f"{folder / HEAD} cannot be read, or does not fit a model of width {width}"):
        head.load_state_dict(load_weights(folder / HEAD), strict=True)
    return head
