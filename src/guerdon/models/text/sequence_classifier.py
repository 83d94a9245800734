"""A sequence classifier as a reward model of text: one number for a conversation and the response to it.

Any transformers `AutoModelForSequenceClassification` with one label (its logit), two (the log-odds of the second), or
more where the card of guerdon's training says what they are (ratings, members); or a peft adapter of one with its head
(`modules_to_save`), such as TRL's RewardTrainer writes, which is merged. It is read strictly: a folder that lacks
weights is refused. What it reads are the ids of `apply_chat_template`, with all that the template writes behind the
response, and its value is that of transformers' own forward pass of these ids alone, whatever else is in the batch: at
the last token, or, where its configuration names a token for padding, at the last one that is not that token (as it
was trained).

    SequenceClassifier("runs/orm").score([Episode(id="1", task="3+5=?", texts=("8",))])[0].total
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from guerdon.compute.devices import resolve_device
from guerdon.errors import CheckpointError, DataError
from guerdon.models.text.text_inputs import asked_messages, unread
from guerdon.models.text.text_model import TextModelCard
from guerdon.policies.batches import packing, prompt_sharing
from guerdon.policies.batches.passes import passes, token_limit
from guerdon.policies.batches.precision import halve_linear, uses_bf16
from guerdon.policies.batches.prompt_sharing import common_start
from guerdon.policies.batches.tokens import check_vocabulary, conversation_ids, pad_right, token_batch
from guerdon.policies.language.text_files import read_classifier, tokenizer_home
from guerdon.policies.pretrained.reading import read_tokenizer
from guerdon.processes.call_queue import batched
from guerdon.types import Episode, Failure, FloatArray, IntArray, RewardInfo, Score


class SequenceClassifier:
    """A reward model of whole responses.

    Attributes:
        form: how it reads, as of `TextModelCard`.

    Args:
        path: folder or hub id.
        micro_batch_size: responses per forward pass.
        device: where it computes, as a key `device` says.
        card: of a model that guerdon trained; it says how several labels become the reward.

    Raises:
        CheckpointError: it cannot be read, lacks weights or a chat template, or has more than two labels and no card.
        ConfigError: its tokenizer has tokens that the model has no embedding for.
    """

    form = "conversation"
    info = RewardInfo(
        name="sequence classifier",
        range=(-np.inf, np.inf),
        granularity="total",
        modality="text",
        causal=False,
        frames_needed=0,
    )

    def __init__(
        self,
        path: str,
        *,
        micro_batch_size: int = 64,
        device: str | torch.device = "auto",
        card: TextModelCard | None = None,
    ) -> None:
        from transformers import AutoModelForSequenceClassification
        from transformers.modeling_layers import GenericForSequenceClassification

        self.micro_batch_size = micro_batch_size
        self.model = read_classifier(AutoModelForSequenceClassification, path, "the sequence classifier")
        self.tokenizer: Any = read_tokenizer(tokenizer_home(path))
        check_vocabulary(self.tokenizer, len(self.model.get_input_embeddings().weight))
        saved_as = next(iter(self.model.config.architectures or ()), "")
        if saved_as.endswith("ForTokenClassification"):
            raise CheckpointError(f"{path!r} was saved as {saved_as}, which labels tokens, not responses")
        if not self.tokenizer.chat_template:
            raise CheckpointError(
                f"the tokenizer of the sequence classifier {path!r} has no chat template, by which it reads a "
                "conversation: save one with it (tokenizer.chat_template)"
            )
        self.labels = int(self.model.config.num_labels)
        self.card = card
        if card is not None and len(card.outputs) != self.labels:
            raise CheckpointError(
                f"the classifier {path!r} has {self.labels} labels, its card names {len(card.outputs)}"
            )
        if card is None and self.labels > 2:
            raise CheckpointError(f"the sequence classifier {path!r} has {self.labels} labels; a reward needs 1 or 2")
        self.room: int | None = getattr(self.model.config, "max_position_embeddings", None)
        self.model.eval().requires_grad_(False)
        where = self.model.to(resolve_device(device)).device
        self.bf16 = where.type == "cuda" and uses_bf16("auto", where)  # on a CPU in float32
        if self.bf16:
            halve_linear(self.model)
        prompt_sharing.register()
        packing.register()
        with torch.autocast(where.type, torch.bfloat16, enabled=self.bf16):
            self._compact = type(self.model).forward is GenericForSequenceClassification.forward and packing.packs(
                self.model, bf16=self.bf16
            )

    @batched
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """A logit per response, higher is better.

        Failures are a conversation that the chat template cannot write in full, characters that the tokenizer does not
        have, more tokens than the model has positions for, an episode without text, and a logit that is not finite.
        """
        scores: dict[int, Score] = {}
        readable: list[int] = []
        sequences: list[IntArray] = []
        same: dict[str, list[int]] = {}  # what was asked, and its responses: they are read together
        for i, episode in enumerate(episodes):
            ids = self._read(episode)
            if isinstance(ids, Failure):
                scores[i] = Score(failure=ids)
                continue
            same.setdefault(episode.task, []).append(len(sequences))
            sequences.append(ids)
            readable.append(i)
        values, spreads = self._values(self._all_logits(sequences, list(same.values())))
        spread_of = [None] * len(values) if spreads is None else spreads.tolist()
        for i, value, spread in zip(readable, values.tolist(), spread_of, strict=True):
            scores[i] = self._score(value, spread)
        return [scores[i] for i in range(len(episodes))]

    def _all_logits(self, sequences: Sequence[IntArray], groups: Sequence[Sequence[int]]) -> FloatArray:
        """(N, K) logits of sequences; those of a group, named by their numbers, are read together."""
        order: list[int] = []
        longest: list[int] = []
        for group in groups:
            order += group
            longest += [max(len(sequences[row]) for row in group)] * len(group)
        logits_N_K = np.zeros((len(sequences), self.labels), dtype=np.float32)
        starts = self._starts(sequences, groups) if self._compact else None
        most = token_limit(None, self.model, self.model.device)
        for part in passes(longest, size=self.micro_batch_size, tokens=most):
            rows = [order[i] for i in part]
            logits_N_K[rows] = self._logits([sequences[i] for i in rows], None if starts is None else starts[rows])
        return logits_N_K

    def _values(self, logits_N_K: FloatArray) -> tuple[np.ndarray, np.ndarray | None]:
        """(N,) values of (N, K) logits, and the spread of members."""
        if self.card is not None:
            return self.card.reward_of(logits_N_K)
        return (logits_N_K[:, 0] if self.labels == 1 else logits_N_K[:, 1] - logits_N_K[:, 0]), None

    def _read(self, episode: Episode) -> IntArray | Failure:
        """The token ids of a question and its response."""
        if episode.texts is None:
            return Failure("no_text", "the classifier reads text")
        answer = {"role": "assistant", "content": "".join(episode.texts)}
        try:
            messages = [*asked_messages(episode.task, episode.context), answer]
            ids = conversation_ids(self.tokenizer, messages, episode.tools)
        except DataError as error:
            return unread(error)
        if self.room is not None and len(ids) > self.room:
            return Failure("too_long", f"{len(ids)} tokens, the classifier has {self.room} positions")
        return ids

    def _starts(self, sequences: Sequence[IntArray], groups: Sequence[Sequence[int]]) -> IntArray:
        """(N,) how many tokens each has in common with the others of its group."""
        starts = np.ones(len(sequences), dtype=np.int64)
        for rows in groups:
            if len(rows) > 1:
                own = [sequences[i] for i in rows]
                starts[rows] = common_start(own, [self._end(ids) for ids in own])
        return starts

    def _end(self, ids: IntArray) -> int:
        """The token that transformers' classifiers read."""
        pad = self.model.config.get_text_config().pad_token_id
        real = np.arange(len(ids)) if pad is None else np.flatnonzero(ids != pad)
        return int(real[-1]) if len(real) else 0

    def _compact_logits(self, sequences: Sequence[IntArray], starts: IntArray) -> FloatArray:
        """Logits by one pass without padding, in which each prompt is read once."""
        model, device = self.model, self.model.device
        batch = token_batch(
            [ids[:start] for ids, start in zip(sequences, starts, strict=True)],
            [ids[start:] for ids, start in zip(sequences, starts, strict=True)],
            np.ones(len(sequences), dtype=np.bool_),
            pad_id=0,
        )
        window = getattr(model.config.get_text_config(), "sliding_window", None)
        places = [np.array([self._end(ids)]) for ids in sequences]
        layout, at = prompt_sharing.lay_out_compact(batch, places, window=window, device=device)
        before = model.config._attn_implementation
        try:
            model.set_attn_implementation(layout.attention)
            with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
                hidden = model.base_model(
                    input_ids=layout.ids, position_ids=layout.positions, packing=layout.packing, use_cache=False
                ).last_hidden_state[0, torch.from_numpy(at).to(device)]
                return np.asarray(model.score(hidden).float().cpu().numpy())
        finally:
            model.set_attn_implementation(before)

    @torch.inference_mode()
    def _logits(self, sequences: Sequence[IntArray], starts: IntArray | None) -> FloatArray:
        if starts is not None:
            return self._compact_logits(sequences, starts)
        config = self.model.config.get_text_config()
        named = config.pad_token_id
        # transformers takes the last token that is not the one for padding, and without such a token the last of all:
        # then rows are filled up with a token that none of them ends with
        ends = {int(ids[-1]) for ids in sequences}
        fill = next(i for i in range(len(ends) + 1) if i not in ends) if named is None else named
        ids_B_L, mask_B_L = pad_right(sequences, int(fill))
        device = self.model.device
        try:
            config.pad_token_id = fill
            with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
                logits = self.model(
                    input_ids=torch.from_numpy(ids_B_L).to(device),
                    attention_mask=torch.from_numpy(mask_B_L.astype(np.int64)).to(device),
                ).logits.float()
        finally:
            config.pad_token_id = named
        return np.asarray(logits.cpu().numpy())

    @staticmethod
    def _score(value: float, spread: float | None) -> Score:
        if not np.isfinite(value):
            return Score(failure=Failure("non_finite", "the classifier's logit is not finite"))
        return Score(total=float(value), spread=spread)
