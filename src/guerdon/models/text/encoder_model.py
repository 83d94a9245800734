"""A reward model of preferences on an encoder (DeBERTa, RoBERTa, ModernBERT), while it is trained.

It is transformers' own sequence classifier of the encoder, with the head that it has there, trained as a whole. It
reads `tokenizer([question], [response])`, or a conversation by the tokenizer's chat template where it has one, and it
writes a plain folder of transformers, which `SequenceClassifier` loads.

    model = EncoderModel.begin("microsoft/deberta-v3-base", settings, policy_settings, card)
    model.write(Path("runs/rm"))
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.compute.devices import resolve_device
from guerdon.compute.finite import refuse_to_write
from guerdon.compute.packaged import local_model
from guerdon.errors import ConfigError
from guerdon.files.atomic import sealed_folder
from guerdon.models import checkpoint
from guerdon.models.text.pair_form import PairForm, encoder_inputs, is_encoder, positions_of
from guerdon.models.text.sequence_classifier import PreferenceModel
from guerdon.models.text.text_card import CARD, TextModelCard
from guerdon.models.text.text_inputs import Reading
from guerdon.models.text.text_model import TextRewardModel
from guerdon.network.hub import ADAPTER, quietly
from guerdon.policies.batches.tokens import pad_id
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import check_written, give_template, tokenizer_home, whole_parameters
from guerdon.policies.pretrained.reading import read_config, read_pretrained, read_tokenizer
from guerdon.settings.text_policy import TextPolicySettings

_WHAT = "the encoder"


class EncoderBase(SharedBase):
    """A sequence classifier of an encoder, its tokenizer, and no adapters."""

    @property
    def positions(self) -> int | None:
        """Most tokens that the encoder has positions for."""
        return positions_of(self.model)

    def _probed(self) -> tuple[str, int, bool]:
        """Its attention is that which transformers chose; it has no output embeddings that logits could come from."""
        return "sdpa", int(self.model.config.hidden_size), False


class _Ties(nn.Module):
    """The logarithm of Davidson's parameter of ties (1970); the layers of the head belong to the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.log_ties = nn.Parameter(torch.zeros(()))


class EncoderModel(PreferenceModel):
    """A sequence classifier of an encoder while it is trained; on disk it is a folder of transformers."""

    head: Any

    def __init__(self, policy: TextPolicy, card: TextModelCard, *, micro_batch_size: int = 16) -> None:
        self._pairs = None if policy.tokenizer.chat_template else PairForm(policy.tokenizer, turns=True)
        own = replace(card, form="pair" if self._pairs is not None else "conversation")
        TextRewardModel.__init__(self, policy, own, micro_batch_size=micro_batch_size)
        self.head = _Ties().to(policy.device)

    @classmethod
    def begin(cls, start: TextPolicySettings, card: TextModelCard, *, seed: int) -> EncoderModel:
        """The model before its first gradient step: an encoder, and a head with fresh weights where it has none.

        Args:
            start: where the encoder is.
            card: what the model is.
            seed: of the fresh weights.

        Raises:
            CheckpointError: the encoder cannot be read, or lacks weights.
            ConfigError: something is set that an encoder does not have.
        """
        from transformers import AutoModelForSequenceClassification

        assert start.path is not None
        if distributed.peers() > 1:
            raise ConfigError(f"{start.path} is an encoder, which is trained in one process: start it without torchrun")
        config = read_config(start.path, _WHAT)
        labels = len(card.outputs)
        with torch.device("meta"):
            config.num_labels = labels
            outline = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
        body = f"{outline.base_model_prefix}."
        fresh = {name for name in outline.state_dict() if not name.startswith(body) or ".pooler." in name}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = read_pretrained(
                AutoModelForSequenceClassification, start.path, _WHAT, start=True, given=fresh, num_labels=labels,
                ignore_mismatched_sizes=True,
            )  # fmt: skip
        tokenizer = read_tokenizer(tokenizer_home(start.path), template=False)
        give_template(tokenizer, start)
        return cls(TextPolicy(EncoderBase(model.to(resolve_device(start.device)), tokenizer, start)), card)

    def _read(self, question: str, steps: Sequence[str], **conversation: Any) -> Reading:
        """The question and the response as a pair, or the conversation by the chat template."""
        if self._pairs is None:
            return super()._read(question, steps, **conversation)
        ids = self._pairs.ids(question, "".join(steps), conversation.get("context", ()), conversation.get("tools", ()))
        return Reading(ids, 1, np.array([len(ids) - 1], dtype=np.int64))

    def lesson_logits(self, readings: Sequence[Reading], *, body: bool = True) -> Tensor:
        """(N, outputs) logits of transformers' own forward pass."""
        base = self.policy.base
        inputs = encoder_inputs(
            self._pairs, [reading.ids for reading in readings], pad_id(self.tokenizer), self.policy.device
        )
        learns = torch.is_grad_enabled()
        base.model.train(learns and self.policy.dropout)
        try:
            half = torch.autocast(self.policy.device.type, torch.bfloat16) if base.bf16 else nullcontext()
            with half:
                return base.model(**inputs).logits.float()  # type: ignore[no-any-return]
        finally:
            base.model.eval()

    def write(self, folder: Path, **changes: Any) -> Path:
        """Write a sequence classifier with its tokenizer and card in one piece.

        Raises:
            CheckpointError: transformers does not find every weight in what was written.
        """
        model = self.policy.base.model
        refuse_to_write(whole_parameters(self.policy), folder)
        own = {name: weight.float().contiguous() for name, weight in self.policy.base.stored(None).items()}
        with sealed_folder(folder) as temporary, quietly():
            model.save_pretrained(temporary, state_dict=own)
            check_written(type(model), temporary)
            self.tokenizer.save_pretrained(temporary)
            checkpoint.write_card(temporary / CARD, replace(self.card, **changes))
        return folder


def starts_from_encoder(start: TextPolicySettings) -> bool:
    """Whether the model to start from is an encoder.

    Raises:
        CheckpointError: its configuration cannot be read.
    """
    if start.path is None or (Path(local_model(start.path)) / ADAPTER).is_file():  # adapters are on language models
        return False
    return is_encoder(read_config(start.path, _WHAT))
