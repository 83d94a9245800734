"""Members of a reward model of text as adapters on one language model (Zhai et al. 2023, 2401.00243).

Each member is a model of its kind with an adapter and a head of its own; the weights under them are in memory once. On
disk a member is a folder `member_k/` below the card of them all, and can be loaded by itself.

    model = Ensemble.of(StepwiseModel, policy, card, fresh, lora)
    model.score([solution.as_episode()])[0].spread
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.errors import ConfigError
from guerdon.files.atomic import sealed_folder
from guerdon.models import checkpoint
from guerdon.models.text.text_card import CARD, TextModelCard
from guerdon.models.text.text_inputs import Reading
from guerdon.models.text.text_model import TextRewardModel, read_adapters
from guerdon.policies.language.text import TextPolicy, add_policy
from guerdon.settings.text_policy import LoraSettings
from guerdon.types import IntArray, RewardInfo


class Ensemble(TextRewardModel):
    """Several reward models of one kind on one language model, as one.

    Args:
        members: at least two, with adapters on one base.
        card: of all of them together.
        micro_batch_size: solutions per forward pass.
    """

    has_head = False

    def __init__(self, members: Sequence[TextRewardModel], card: TextModelCard, *, micro_batch_size: int = 16) -> None:
        super().__init__(members[0].policy, card, micro_batch_size=micro_batch_size)
        first = members[0]
        self.members = tuple(members)
        self.per_step = first.per_step
        self.learns_outcomes = first.learns_outcomes
        self.form = first.form
        self.reads_conversations = first.reads_conversations
        heads = [one.head for one in members if one.head is not None]
        self.head = nn.ModuleList(heads) if heads else None

    @classmethod
    def of(
        cls,
        kind: type[TextRewardModel],
        policy: TextPolicy,
        card: TextModelCard,
        fresh: Callable[[], TextPolicy],
        lora: LoraSettings,
    ) -> Ensemble:
        """The members before their first gradient step, each with a seed of its own.

        Args:
            kind: of the members.
            policy: the first adapter.
            card: of all of them together, with an output per member.
            fresh: see `TextRewardModel.start`.
            lora: of the other adapters.

        Raises:
            ConfigError: several processes train it.
        """
        if distributed.peers() > 1:
            raise ConfigError(
                "members that are adapters are trained in one process; set members_as: heads", key="members_as"
            )
        seed = int(card.learning.get("seed", 0))
        cards = [
            replace(card, outputs={"reward": 1.0}, combine="sum", adapters=False,
                    learning={**card.learning, "seed": seed + k})
            for k in range(len(card.outputs))
        ]  # fmt: skip
        policies = [policy] + [
            add_policy(policy.base, f"member_{k}", lora, seed=seed + k) for k in range(1, len(cards))
        ]
        return cls([kind.start(p, own, fresh) for p, own in zip(policies, cards, strict=True)], card)

    @classmethod
    def stored(
        cls,
        kind: type[TextRewardModel],
        folder: Path,
        card: TextModelCard,
        micro_batch_size: int,
        device: str | torch.device = "auto",
    ) -> Ensemble:
        """What `write` wrote, for scoring.

        Raises:
            CheckpointError: something is missing or does not fit.
        """
        folders = [folder / f"member_{k}" for k in range(len(card.outputs))]
        members = []
        for own, policy in zip(folders, read_adapters(folders, card, device), strict=True):
            member = kind(policy, checkpoint.read_card(own / CARD, TextModelCard))
            member.read_head(own)
            members.append(member)
        return cls(members, card, micro_batch_size=micro_batch_size)

    def _read(self, question: str, steps: Sequence[str], **conversation: Any) -> Reading:
        return self.members[0]._read(question, steps, **conversation)

    def places(self, reading: Reading) -> IntArray:
        """As of a member."""
        return self.members[0].places(reading)

    def logits(self, readings: Sequence[Reading]) -> Tensor:
        """(M, K) logits of what is scored, of K members."""
        return torch.stack([one.logits(readings).view(-1) for one in self.members], dim=1)

    def lesson_logits(self, readings: Sequence[Reading], *, body: bool = True) -> Tensor:
        """(M, K) logits of what is trained."""
        return torch.stack([one.lesson_logits(readings, body=body).view(-1) for one in self.members], dim=1)

    def value(self, logits: np.ndarray) -> np.ndarray:
        """As of a member."""
        return self.members[0].value(logits.reshape(-1)).reshape(logits.shape)

    @property
    def info(self) -> RewardInfo:
        """As of a member."""
        return self.members[0].info

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The adapters and heads of all members."""
        adapters = {name: p for one in self.members for name, p in one.policy.named_parameters().items()}
        return adapters | {name: p for name, p in super().named_parameters().items() if name not in adapters}

    def load_tensors(self, state: dict[str, Tensor]) -> None:
        """Return to what `tensors` gave."""
        others = {name for one in self.members[1:] for name in one.policy.named_parameters()}
        super().load_tensors({name: t for name, t in state.items() if name not in others})
        for one in self.members[1:]:
            one.policy.load_tensors({name: state[name] for name in one.policy.named_parameters() if name in state})

    def written_bytes(self) -> dict[str, int]:
        """As of a member, for all of them."""
        return {what: size * len(self.members) for what, size in super().written_bytes().items()}

    def write(self, folder: Path, **changes: Any) -> Path:
        """Write the members in one piece."""
        with sealed_folder(folder) as temporary:
            for k, one in enumerate(self.members):
                TextRewardModel.write(one, temporary / f"member_{k}")
            checkpoint.write_card(temporary / CARD, replace(self.card, **changes))
        return folder
