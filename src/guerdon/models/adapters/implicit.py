r"""Implicit process reward models (Yuan et al. 2024, 2412.01981): EurusPRM-Stage1 and -Stage2, ImplicitPRM.

Two language models read the same chat. The value of a step is the sigmoid of beta times the sum, over the answer's
tokens up to the end of the step, of log-probability minus the reference's. The answer is the steps with a blank line
between them, each with its number in front ("Step 1: ..."), as these models were trained; its last step has the
end-of-sequence token. The example on the cards sums one or two tokens further, into the next step; here a value
depends on nothing behind its step. Values lie close to 0.5 (beta is 0.001, as on the cards): compare them, or choose a
threshold on data.

    model = load_implicit("PRIME-RL/EurusPRM-Stage2", 4)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from guerdon.errors import CheckpointError, DataError
from guerdon.models.adapters import NOTES, read_notes
from guerdon.models.adapters.steps import (
    StepReader,
    StepTokens,
    UnreadableSolutionError,
    checked_tokenizer,
    numbered,
    read_base,
    room_of,
)
from guerdon.policies.text import TextPolicy
from guerdon.policies.tokens import pad_id, prompt_ids, response_ids, sequence, token_batch, token_ends
from guerdon.types import FloatArray, RewardModel

BETA = 0.001
BETWEEN = "\n\n"
_REFERENCES = {"eurusprm": "Qwen/Qwen2.5-Math-7B-Instruct"}  # what the cards name


def load_implicit(path: str, micro_batch_size: int) -> RewardModel:
    """An implicit reward model and its reference.

    Args:
        path: folder or hub id. `ref_path` (and `beta`) in its `adapter.json`; EurusPRM's reference is known.
        micro_batch_size: solutions per forward pass.

    Raises:
        CheckpointError: one of the two cannot be read, the reference is unknown, or its tokens are others.
    """
    notes = read_notes(path, "implicit", {"ref_path", "beta"})
    beta = BETA if notes.beta is None else notes.beta
    origin = notes.ref_path or next((ref for name, ref in _REFERENCES.items() if name in path.lower()), None)
    if origin is None:
        raise CheckpointError(
            f"the reference of the implicit reward model {path!r} is unknown: put "
            f'{{"adapter": "implicit", "ref_path": "..."}} into {NOTES} in its folder'
        )
    origin = str(Path(path) / origin) if (Path(path) / origin).is_dir() else origin
    tokenizer = checked_tokenizer(path, chat=True)
    if tokenizer.eos_token_id is None:
        raise CheckpointError(f"the tokenizer of {path!r} has no end-of-sequence token")
    ours, theirs = tokenizer.get_vocab(), checked_tokenizer(origin, chat=False).get_vocab()
    if any(ours[token] != theirs[token] for token in ours.keys() & theirs.keys()):
        raise CheckpointError(f"the tokens of {path!r} have other ids than those of its reference {origin!r}")
    model, reference = read_base(path, tokenizer), read_base(origin, tokenizer)
    policies = [TextPolicy(base, trainable=False) for base in (model, reference)]
    rooms = [room for base in (model, reference) if (room := room_of(base.model)) is not None]

    def form(question: str, steps: Sequence[str]) -> StepTokens:
        pieces = [step + BETWEEN for step in numbered(steps)]
        pieces[-1] = pieces[-1].removesuffix(BETWEEN)
        try:
            prompt = prompt_ids(tokenizer, [{"role": "user", "content": question}])
            answer = response_ids(tokenizer, "".join(pieces))
        except DataError as error:
            raise UnreadableSolutionError("unknown_character", str(error)) from error
        ends_T = token_ends(tokenizer, answer)
        closes_S = np.cumsum([len(p) for p in pieces])
        if ends_T[-1] != closes_S[-1]:
            raise UnreadableSolutionError("not_reversible", "the tokenizer does not give the same text back")
        places_S = np.searchsorted(ends_T, closes_S, side="left")
        places_S[-1] = len(answer) - 1
        return StepTokens(sequence(prompt, answer), len(prompt) + places_S, start=len(prompt))

    @torch.inference_mode()
    def read(batch: Sequence[StepTokens]) -> Sequence[FloatArray]:
        answers = [m.ids[m.start :] for m in batch]
        tokens = token_batch(
            [m.ids[: m.start] for m in batch], answers, np.ones(len(batch), dtype=np.bool_), pad_id=pad_id(tokenizer)
        )
        log_probs, reference_log_probs = (policy.log_probs(tokens) for policy in policies)
        sums_B_T = (beta * (log_probs - reference_log_probs).double()).cumsum(-1).sigmoid().float().cpu().numpy()
        return [row[m.places - m.start] for row, m in zip(sums_B_T, batch, strict=True)]

    return StepReader(
        "implicit", form, read,
        tokenizer=tokenizer, room=min(rooms, default=None), micro_batch_size=micro_batch_size,
    )  # fmt: skip
