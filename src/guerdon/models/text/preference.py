"""Reward models of preferences and of ratings: a sequence classifier whose outputs are one reward, members, or ratings.

A response is read as published classifiers read it (`models/text/sequence_classifier.py`): all ids of
`apply_chat_template`, the value at the last one that is not the token for padding. What is written is a plain
`AutoModelForSequenceClassification` folder with tokenizer, template and card, which transformers reads with the same
values; `SequenceClassifier` loads it.

    model = PreferenceModel(load_policy(settings, seed=0), TextModelCard("preference", "conversation", "bradley_terry"))
    model.write(Path("runs/rm"))
    SequenceClassifier("runs/rm").score([episode])[0].total
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute.finite import refuse_to_write
from guerdon.errors import CheckpointError, ConfigError
from guerdon.files.atomic import sealed_folder
from guerdon.models import checkpoint
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.text.text_inputs import Reading, asked_messages, hidden_at
from guerdon.models.text.text_load import find_text_model
from guerdon.models.text.text_model import CARD, TextModelCard, TextRewardModel, read_card
from guerdon.network.hub import quietly
from guerdon.policies.batches.tokens import conversation_ids, pad_id
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import check_written, read_classifier, whole_parameters
from guerdon.policies.pretrained.reading import read_alike, read_tokenizer
from guerdon.processes.progress import log_once
from guerdon.types import IntArray, RewardInfo


class PreferenceHead(nn.Linear):
    """One logit per output, without a bias, and the logarithm of Davidson's parameter of ties (1970)."""

    def __init__(self, width: int, outputs: int, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            super().__init__(width, outputs, bias=False)
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.weight, std=width**-0.5, generator=generator)
        self.log_ties = nn.Parameter(torch.zeros(()))


class PreferenceModel(TextRewardModel):
    """A sequence classifier while it is trained; on disk it is a folder of transformers."""

    has_head = False  # it makes its own
    per_step = False
    form = "conversation"
    reads_conversations = True
    learns_outcomes = True
    meaning = "the response is the better one"
    head: PreferenceHead

    def __init__(self, policy: TextPolicy, card: TextModelCard, *, micro_batch_size: int = 16) -> None:
        super().__init__(policy, card, micro_batch_size=micro_batch_size)
        self.head = PreferenceHead(policy.base.width, len(card.outputs), int(card.learning.get("seed", 0)))
        self.head.to(policy.device)

    def _read(self, question: str, steps: Sequence[str], **conversation: Any) -> Reading:
        """The whole conversation as the chat template writes it."""
        answer = {"role": "assistant", "content": "".join(steps)}
        messages = [*asked_messages(question, conversation.get("context", ())), answer]
        ids = conversation_ids(self.tokenizer, messages, conversation.get("tools", ()))
        return Reading(ids, 1, np.array([len(ids) - 1], dtype=np.int64))

    def places(self, reading: Reading) -> IntArray:
        """The last token that is not the one for padding, as transformers' classifiers take it."""
        real = np.flatnonzero(reading.ids != pad_id(self.tokenizer))
        return np.array([real[-1] if len(real) else len(reading.ids) - 1], dtype=np.int64)

    def lesson_logits(self, readings: Sequence[Reading], *, body: bool = True) -> Tensor:
        """(N, outputs) logits; where `body` is false, without gradients below the head."""
        with torch.set_grad_enabled(body and torch.is_grad_enabled()):
            hidden = hidden_at(self.policy, readings, [self.places(reading) for reading in readings], compact=True)
        return self.head(hidden)  # type: ignore[no-any-return]

    def value(self, logits: np.ndarray) -> np.ndarray:
        """The reward of each response; of members the logits themselves."""
        return np.asarray(self.card.reward_of(logits)[0]) if self.card.combine == "sum" else logits

    @property
    def info(self) -> RewardInfo:
        """Logits of any size."""
        return SequenceClassifier.info

    def write(self, folder: Path, **changes: Any) -> Path:
        """Write a sequence classifier with its tokenizer and card in one piece.

        Raises:
            ConfigError: transformers has no sequence classifier of this architecture.
            CheckpointError: transformers does not find every weight in what was written.
        """
        from transformers import AutoModelForSequenceClassification

        model = self.policy.base.model
        config = copy.deepcopy(model.config)
        rated = self.card.loss == "regression"
        kept = [k for k, weight in enumerate(self.card.outputs.values()) if weight or rated]  # without that of length
        names = list(self.card.outputs)
        changes = {"outputs": {names[k]: self.card.outputs[names[k]] for k in kept}, **changes}
        config.num_labels, config.pad_token_id = len(kept), pad_id(self.tokenizer)
        try:
            with torch.device("meta"):
                classifier = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
        except ValueError as error:
            raise ConfigError(f"transformers has no sequence classifier of {type(model).__name__}: {error}") from error
        refuse_to_write(whole_parameters(self.policy), folder)
        wanted = classifier.state_dict().keys()
        stored = self.policy.base.stored(self.policy.adapter)
        own = {name: weight.float().contiguous() for name, weight in stored.items() if name in wanted}
        own |= {name: self.head.weight[kept].detach().float().cpu() for name in wanted - own.keys()}
        refuse_to_write(own, folder)
        with sealed_folder(folder) as temporary, quietly():
            classifier.save_pretrained(temporary, state_dict=own)
            check_written(type(classifier), temporary)
            self.tokenizer.save_pretrained(temporary)
            if not read_alike(self.tokenizer, str(temporary)):
                log_once(
                    f"transformers' AutoTokenizer reads {config.model_type} folders by a tokenizer of its own: "
                    f"other packages may give other values for {folder}, of which guerdon reads tokenizer.json"
                )
            checkpoint.write_card(temporary / CARD, replace(self.card, **changes))
        return folder

    @classmethod
    def load(  # type: ignore[override]
        cls, folder: Path, card: TextModelCard, micro_batch_size: int, device: str | torch.device = "auto"
    ) -> SequenceClassifier:
        """The stored model, for scoring."""
        return SequenceClassifier(str(folder), micro_batch_size=micro_batch_size, device=device, card=card)


def average_models(folders: Sequence[str], out: Path) -> Path:
    """Write the classifier whose weights are the mean of those of several (WARM, Rame et al. 2024, 2401.12187).

    The models must have been trained from the same language model, for example with other seeds and learning rates;
    means of weights of unrelated models are of no use.

    Args:
        folders: of models of type `preference`.
        out: replaced if it exists.

    Raises:
        ConfigError: there are fewer than two, one is named twice, or they are of different kinds or shapes.
        CheckpointError: one cannot be read.
    """
    from transformers import AutoModelForSequenceClassification

    homes = _different_models(folders)
    cards = [read_card(home) for home in homes]
    what = [(one.kind, one.loss, dict(one.outputs), one.combine, one.adapters) for one in cards]
    mean: dict[str, Tensor] = {}
    for home, own in zip(homes, what, strict=True):
        if own != what[0] or own[0] != "preference" or own[4]:
            raise ConfigError(f"{home} is of another kind than {homes[0]}, or not a preference model in one folder")
        classifier = read_classifier(AutoModelForSequenceClassification, str(home), "the reward model")
        share = {name: _share(weight, len(homes)) for name, weight in classifier.state_dict().items()}
        if mean and _shapes(share) != _shapes(mean):
            raise ConfigError(f"the weights of {home} have other shapes than those of {homes[0]}")
        for name, part in share.items():
            mean[name] = mean[name] + part if name in mean and part.is_floating_point() else part
    classifier.load_state_dict(mean)
    with sealed_folder(out) as temporary, quietly():
        classifier.save_pretrained(temporary)
        read_tokenizer(str(homes[0])).save_pretrained(temporary)
        card = replace(cards[0], training={"averaged": [str(home) for home in homes]})
        checkpoint.write_card(temporary / CARD, card)
    return out


def _different_models(folders: Sequence[str]) -> list[Path]:
    """Where the reward models of guerdon of these folders lie.

    Raises:
        ConfigError: there are fewer than two, or one is named twice.
        CheckpointError: a folder has none.
    """
    homes: list[Path] = []
    for name, folder in [(one, find_text_model(one)) for one in folders]:
        if folder is None:
            raise CheckpointError(f"{name}: there is no reward model of guerdon")
        homes.append(folder)
    if len(homes) < 2 or len(set(homes)) < len(homes):
        raise ConfigError(f"name at least two models, none of them twice: {', '.join(folders)}")
    return homes


def _share(weight: Tensor, models: int) -> Tensor:
    """What the weight of one of several models adds to their mean, in double precision; integers as they are."""
    return weight.double() / models if weight.is_floating_point() else weight


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """The shape of each weight."""
    return {name: weight.shape for name, weight in weights.items()}
