r"""A language model that says of each step CORRECT (+1) or INCORRECT (-1), scored by the logits of its verdict.

The form is that of the seed's guide. For each step the model reads

    ### Question: ... ### Partial Solution: (the steps so far) ### Evaluate this step:

and its verdict is the next token: p = softmax over the first tokens of the two verdicts. Read literally this takes a
forward pass per step, over text that is nearly the same each time. Here one pass takes the question and all steps
once, and behind them for every step a copy of the closing request. Such a copy is at the positions that follow its
step and attends to the text up to there and to itself, nothing else: exactly what it would attend to in a pass of its
own, so the answers are the same up to rounding (`benchmarks/verdict_prefixes.py` has the literal form).

    model = VerdictModel(load_policy(settings, seed=0), TextModelCard("verdict", FORM, "bce"))
    model.score([solution.as_episode()])[0].steps        # (S,) probabilities of CORRECT
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.episodes.solution_formats import EVALUATE, PARTIAL, QUESTION, TARGETS
from guerdon.errors import ConfigError
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_inputs import Reading, hidden_of, in_order
from guerdon.models.text.text_model import TextRewardModel
from guerdon.policies.batches.packing import Layout
from guerdon.policies.batches.tokens import pad_id, pad_right, piece_ids
from guerdon.policies.language.text import TextPolicy
from guerdon.types import IntArray

FORM = "evaluate_this_step"


class VerdictModel(TextRewardModel):
    """A probability of CORRECT per step.

    Raises:
        ConfigError: both verdicts begin with the same token, or the architecture has no attention that a mask decides.
        DataError: the tokenizer lacks their characters.
    """

    has_head = False
    form = FORM

    def __init__(self, policy: TextPolicy, card: TextModelCard, *, micro_batch_size: int = 16) -> None:
        super().__init__(policy, card, micro_batch_size=micro_batch_size)
        if not policy.base.reads_masks:
            raise ConfigError(
                f"type: verdict does not work with {type(policy.base.model).__name__}, whose attention takes no mask: "
                "take type: stepwise",
                key="type",
            )
        self.tail, right, wrong = piece_ids(self.tokenizer, [EVALUATE, TARGETS[True], TARGETS[False]])
        self.verdicts = (int(right[0]), int(wrong[0]))
        if self.verdicts[0] == self.verdicts[1]:
            raise ConfigError(
                "this tokenizer begins both verdicts with the same token; take type: stepwise", key="type"
            )

    def _read(self, question: str, steps: Sequence[str], **conversation: Any) -> Reading:
        """Question and steps in the seed's form; a step ends with the last token that is not blank."""
        return verdict_reading(self.tokenizer, question, steps, len(self.tail))

    def logits(self, readings: Sequence[Reading]) -> Tensor:
        """One logit per step, solution by solution: that of CORRECT minus that of INCORRECT."""
        if len(apart := self.policy.base.ropes.apart([r.reach for r in readings])) > 1:
            found = [self.logits([readings[i] for i in rows]) for rows in apart]
            return in_order(found, apart, [len(r.ends_S) for r in readings])
        layout, places = self._lay_out(readings)
        return self.policy.base.run(lambda: self.verdict_logits(hidden_of(self.policy, layout, places)))

    def lesson_logits(self, readings: Sequence[Reading], *, body: bool = True) -> Tensor:
        """As `logits`."""
        return self.logits(readings)

    def verdict_logits(self, hidden_M_H: Tensor) -> Tensor:
        """(M,) logit of CORRECT minus that of INCORRECT at hidden states (M, H)."""
        with self.policy.base.adapter(self.policy.adapter):
            logits = self.policy.base.logits(hidden_M_H).float()
        right, wrong = self.verdicts
        return logits[:, right] - logits[:, wrong]

    def _lay_out(self, readings: Sequence[Reading]) -> tuple[Layout, IntArray]:
        """Rows of text with the requests behind it, their attention mask, and the places where verdicts are read."""
        tail = len(self.tail)
        rows = [np.concatenate([r.ids, np.tile(self.tail, len(r.ends_S))]) for r in readings]
        ids, _ = pad_right(rows, pad_id(self.tokenizer))
        length = ids.shape[1]
        positions = np.zeros_like(ids)
        mask = np.zeros((len(rows), length, length), dtype=np.bool_)
        mask[:, np.arange(length), np.arange(length)] = True  # padding sees itself: no row of attention is empty
        places = []
        for b, reading in enumerate(readings):
            n = len(reading.ids)
            positions[b, :n] = np.arange(n)
            mask[b, :n, :n] = np.tri(n, dtype=np.bool_)
            for k, end in enumerate(reading.ends_S):
                block = slice(n + k * tail, n + (k + 1) * tail)
                positions[b, block] = end + 1 + np.arange(tail)
                mask[b, block, : end + 1] = True
                mask[b, block, block] = np.tri(tail, dtype=np.bool_)
                places.append(b * length + block.stop - 1)
        device = self.policy.device
        none = torch.zeros(0, dtype=torch.int64, device=device)
        layout = Layout(
            torch.from_numpy(ids).to(device), torch.from_numpy(positions).to(device), none, none, None,
            torch.from_numpy(mask[:, None]).to(device),
        )  # fmt: skip
        return layout, np.array(places, dtype=np.int64)


def opening(tokenizer: Any) -> IntArray:
    """The beginning-of-sequence token, where the tokenizer puts one in front of plain text."""
    ids = tokenizer.encode("", add_special_tokens=True)
    return np.array(ids if ids == [tokenizer.bos_token_id] else [], dtype=np.int64)


def verdict_reading(tokenizer: Any, question: str, steps: Sequence[str], tail: int) -> Reading:
    """Question and steps as ids, with the place where each step ends; `tail` ids follow for each step."""
    bodies = [step.rstrip() for step in steps]
    blanks = [step[len(body) :] for step, body in zip(steps, bodies, strict=True)]
    head, *pieces = piece_ids(tokenizer, [QUESTION + question + PARTIAL, *bodies, *blanks])
    start = np.concatenate([opening(tokenizer), head])
    ids = [start]
    ends = []
    at = len(start)
    last = len(start) - 1
    for k in range(len(steps)):
        last = at + len(pieces[k]) - 1 if bodies[k] else last
        ends.append(last)
        ids += [pieces[k], pieces[len(steps) + k]]
        at += len(pieces[k]) + len(pieces[len(steps) + k])
    return Reading(np.concatenate(ids), len(start), np.array(ends, dtype=np.int64), tail)
