"""The card of a reward model of text: everything about it except its weights, in `reward_model.json` next to them.

card = read_card(Path("runs/prm/final_checkpoint"))
card.kind, card.threshold
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from guerdon.errors import ConfigError
from guerdon.files.atomic import verify_folder
from guerdon.models import checkpoint

CARD = "reward_model.json"


@dataclass(frozen=True)
class TextModelCard:
    """Everything about a reward model of text except its weights.

    Attributes:
        kind: which model: `stepwise`, `verdict`, `outcome`, `implicit`, `preference`.
        form: how it reads: `chat` (the conversation by the chat template, up to the opening of the assistant's turn,
            and the steps behind it, each tokenised by itself; nothing of the template follows them) or
            `evaluate_this_step` (plain text that ends with a request to evaluate). Published classifiers read the
            form `conversation`: all of `apply_chat_template`, with what it puts behind the answer.
        loss: what it was trained with: `bce`, `bradley_terry`, `ce`, `dpo`.
        separator: what ended most steps of the training data; empty where they ended in no fixed text.
        threshold: a step (or solution) below it counts as wrong; None where values have no such point.
        labels: what a target of 1 means, in words.
        max_length: tokens that it reads at most; None: as many as its weights have positions for.
        beta: of `implicit`, the factor of the log-ratios; else None.
        read: of `implicit`: the value of a step is of everything up to it, or of the step alone; else None.
        system_prompt: of `implicit`: the system turn before each question; None: there is none.
        temperature: of `implicit`: divides the logits, as in training.
        closed: of `implicit`: a text is read as a finished one, its end-of-sequence token belongs to the last step.
        length_limit: of `closed`: a text of so many tokens was cut in training, so it has no such token.
        bf16: compute in bfloat16; `auto`: where the hardware has it.
        quantize: how its frozen weights were stored while it was trained; None: as they are.
        learning: settings of its optimiser, for learning on while in use.
        training: data hash, method, reward, counts, settings and metrics; plain JSON values.
        outputs: members of an ensemble, or of `preference` ratings by name with their weights in the reward.
        combine: of several outputs, how they become the reward: `sum` (of ratings, weighted), or of members `mean` or
            `lower_bound` (the mean minus `deviations` standard deviations).
        deviations: see `combine`.
        adapters: members are adapters, in folders of their own below this one (`guerdon.models.text.ensemble`); else
            they are outputs of one head.
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
    outputs: Mapping[str, float] = field(default_factory=lambda: {"reward": 1.0})
    combine: Literal["sum", "mean", "lower_bound"] = "sum"
    deviations: float = 1.0
    adapters: bool = False

    def weighted(self, weights: Mapping[str, float], name: str) -> TextModelCard:
        """The card with other weights of its ratings; those that are not named count 0.

        Raises:
            ConfigError: it has no ratings, or others than these.
        """
        rated = self.outputs if self.loss == "regression" else {}
        if not rated:
            raise ConfigError(
                f"weights would do nothing with {name}, which was not trained with attributes; remove it", key="weights"
            )
        if weights.keys() - rated.keys() or not any(weights.values()):
            wanted = f"the ratings of {name} are {', '.join(rated)}"
            raise ConfigError(
                f"weights: {wanted}; this is {dict(weights)}: give at least one of them, not 0", key="weights"
            )
        return replace(self, outputs={rating: float(weights.get(rating, 0.0)) for rating in rated})

    def reward_of(self, logits_N_K: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """(N,) the reward from (N, K) outputs, and the standard deviation of members, where there are several."""
        values = np.asarray(logits_N_K, dtype=np.float64).reshape(len(logits_N_K), len(self.outputs))
        if self.combine == "sum":
            return values @ np.array(list(self.outputs.values())), None
        spread = values.std(axis=1, ddof=1)
        return values.mean(axis=1) - (self.deviations if self.combine == "lower_bound" else 0.0) * spread, spread


def is_own(folder: Path) -> bool:
    """Whether a folder holds a reward model that guerdon wrote."""
    return (folder / CARD).is_file()


def read_card(folder: Path) -> TextModelCard:
    """The card of a folder, whose files must be those that were written.

    Raises:
        CheckpointError: there is none, it is of another version, or a file was altered.
    """
    verify_folder(folder)
    return checkpoint.read_card(folder / CARD, TextModelCard)
