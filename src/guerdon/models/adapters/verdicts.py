"""Language models whose verdict on a step is a token: P(right) against P(wrong) as the next one.

All steps of a solution are read in one forward pass, and logits are made at their places only. This module does not
know what the verdicts are, nor where they stand.

    read = verdicts(read_base(path, tokenizer), right=648, wrong=387)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from guerdon.errors import CheckpointError
from guerdon.models.adapters.batches import pack, pad
from guerdon.models.adapters.steps import Marked, Reading, placed
from guerdon.policies.packing import PACKED_ATTENTION, Layout
from guerdon.policies.shared_base import SharedBase
from guerdon.policies.text_files import read_model
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import FloatArray

_NUMBERED = re.compile(r"\s*step\s+[0-9]+\b", re.IGNORECASE)


def read_base(path: str, tokenizer: Any) -> SharedBase:
    """A language model for reading, strictly loaded.

    Args:
        path: folder or hub id; an adapter is merged into its model.
        tokenizer: of the family.

    Raises:
        CheckpointError: it cannot be read, lacks weights, or was saved as another kind of model.
    """
    model, _ = read_model(path)
    saved_as = [str(a) for a in model.config.architectures or ()]
    if saved_as and not any(a.endswith(("ForCausalLM", "LMHeadModel")) for a in saved_as):
        raise CheckpointError(f"{path!r} was saved as {saved_as[0]}, which is no language model")
    return SharedBase(placed(model), tokenizer, TextPolicySettings(path=path, bf16=False))


def verdicts(base: SharedBase, right: int, wrong: int) -> Reading:
    """A reading: the probability of one token against another, as the next one behind each place."""

    @torch.inference_mode()
    def read(batch: Sequence[Marked]) -> Sequence[FloatArray]:
        laid = pack(batch, base.device) if base.packs else pad(batch, base.tokenizer, base.device)
        given, attention = laid.inputs, PACKED_ATTENTION if base.packs else None
        where, places = given.get("position_ids"), laid.places_M
        layout = Layout(given["input_ids"], where, places, places, given.get("packing"), attention=attention)
        hidden = base.hidden(layout)
        logits = base.logits(hidden[places])[:, [right, wrong]]
        return laid.split(logits.float().softmax(-1)[:, 0])

    return read


def numbered(steps: Sequence[str]) -> list[str]:
    """The steps, each with its number in front where it does not begin with one already."""
    return [step if _NUMBERED.match(step) else f"Step {k + 1}: {step}" for k, step in enumerate(steps)]
