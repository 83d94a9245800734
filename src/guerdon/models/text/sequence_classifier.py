"""Sequence classifiers as reward models of text: one number for a conversation and the response to it.

`SequenceClassifier` is any transformers `AutoModelForSequenceClassification` with one label (its logit), two (the
log-odds of the second), or more where the card of guerdon's training says what they are (ratings, members); or a peft
adapter of one with its head (`modules_to_save`), such as TRL's RewardTrainer writes, which is merged. It is read
strictly: a folder that lacks weights is refused. What it reads are the ids of `apply_chat_template`, with all that the
template writes behind the response, and its value is that of transformers' own forward pass of these ids alone,
whatever else is in the batch; an encoder without a template reads a pair of texts (`guerdon.models.text.pair_form`). A
decoder's value is read at the last token, or, where its configuration names a token for padding, at the last one
that is not that token (as it was trained).

`PreferenceModel` is one while it is trained on preferences or ratings: its outputs are one reward, members, or ratings.
It writes a plain `AutoModelForSequenceClassification` folder with tokenizer, template and card, which transformers
reads with the same values, and `SequenceClassifier` loads.

    SequenceClassifier("runs/orm").score([Episode(id="1", task="3+5=?", texts=("8",))])[0].total
    model = PreferenceModel(load_policy(settings, seed=0), TextModelCard("preference", "conversation", "bradley_terry"))
    model.write(Path("runs/rm"))
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute.devices import resolve_device
from guerdon.compute.finite import refuse_to_write
from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.files.atomic import sealed_folder
from guerdon.models import checkpoint
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.models.text.pair_form import PairForm, encoder_inputs, is_encoder, positions_of
from guerdon.models.text.text_card import CARD, TextModelCard, read_card
from guerdon.models.text.text_inputs import Reading, asked_messages, hidden_at, unread
from guerdon.models.text.text_load import find_text_model
from guerdon.models.text.text_model import TextRewardModel
from guerdon.network.hub import quietly
from guerdon.policies.batches import packing, prompt_sharing
from guerdon.policies.batches.last_layer import LastLayer
from guerdon.policies.batches.passes import passes, token_limit
from guerdon.policies.batches.precision import halve_linear, uses_bf16
from guerdon.policies.batches.prompt_sharing import common_start
from guerdon.policies.batches.ropes import sides_of, switch_of
from guerdon.policies.batches.tokens import check_vocabulary, conversation_ids, pad_id, token_batch
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import check_written, read_classifier, tokenizer_home, whole_parameters
from guerdon.policies.pretrained.reading import read_alike, read_tokenizer
from guerdon.processes.call_queue import batched, concurrent
from guerdon.processes.progress import log_once
from guerdon.types import Episode, Failure, FloatArray, IntArray, RewardInfo, Score


class SequenceClassifier:
    """A reward model of whole responses.

    Attributes:
        form: how it reads, see `TextModelCard`.

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
        encodes = is_encoder(self.model.config)
        if not self.tokenizer.chat_template and not encodes:
            raise CheckpointError(
                f"the tokenizer of the sequence classifier {path!r} has no chat template, by which it reads a "
                "conversation: save one with it (tokenizer.chat_template)"
            )
        self._pairs = None if self.tokenizer.chat_template else PairForm(self.tokenizer, turns=card is not None)
        self.labels = int(self.model.config.num_labels)
        self.card = card
        if card is not None and len(card.outputs) != self.labels:
            raise CheckpointError(
                f"the classifier {path!r} has {self.labels} labels, its card names {len(card.outputs)}"
            )
        if card is None and self.labels > 2:
            raise CheckpointError(f"the sequence classifier {path!r} has {self.labels} labels; a reward needs 1 or 2")
        self.room: int | None = (
            positions_of(self.model) if encodes else getattr(self.model.config, "max_position_embeddings", None)
        )
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
        self._last = LastLayer.of(self.model) if self._compact else None

    @concurrent
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """A logit per response, higher is better; see `judge`."""
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    @batched
    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """A logit per response, higher is better, and how many tokens were read for it.

        Failures are a conversation that the chat template cannot write in full, characters that the tokenizer does not
        have, more tokens than the model has positions for, an episode without text, and a logit that is not finite.
        """
        found: dict[int, ExplainedScore] = {}
        readable: list[int] = []
        sequences: list[IntArray] = []
        same: dict[str, list[int]] = {}  # what was asked, and its responses: they are read together
        for i, episode in enumerate(episodes):
            ids = self._read(episode)
            if isinstance(ids, Failure):
                found[i] = ExplainedScore(Score(failure=ids))
                continue
            same.setdefault(episode.task, []).append(len(sequences))
            sequences.append(ids)
            readable.append(i)
        values, spreads = self._values(self._all_logits(sequences, list(same.values())))
        spread_of = [None] * len(values) if spreads is None else spreads.tolist()
        for i, value, spread, ids in zip(readable, values.tolist(), spread_of, sequences, strict=True):
            found[i] = ExplainedScore(self._score(value, spread), tokens=len(ids))
        return [found[i] for i in range(len(episodes))]

    def _all_logits(self, sequences: Sequence[IntArray], groups: Sequence[Sequence[int]]) -> FloatArray:
        """(N, K) logits of sequences; those of a group, named by their numbers, are read together."""
        order: list[int] = []
        longest: list[int] = []
        switch = switch_of(self.model.config)
        groups = [[group[i] for i in rows] for group in groups
                  for rows in sides_of([len(sequences[row]) for row in group], switch)]  # fmt: skip
        for group in groups:
            order += group
            longest += [max(len(sequences[row]) for row in group)] * len(group)
        logits_N_K = np.zeros((len(sequences), self.labels), dtype=np.float32)
        starts = self._starts(sequences, groups) if self._compact else None
        most = token_limit(None, self.model, self.model.device)
        for part in passes(longest, size=self.micro_batch_size, tokens=most, apart=switch):
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
        response = "".join(episode.texts)
        try:
            if self._pairs is not None:
                ids = self._pairs.ids(episode.task, response, episode.context, episode.tools)
            else:
                messages = [*asked_messages(episode.task, episode.context), {"role": "assistant", "content": response}]
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
        ends_B, packed = torch.from_numpy(at).to(device), layout.packing
        if self._last is not None and isinstance(packed, prompt_sharing.Sharing):
            packed = replace(packed, last=(self._last.index, ends_B))
        try:
            model.set_attn_implementation(layout.attention)
            with (
                torch.autocast(device.type, torch.bfloat16, enabled=self.bf16),
                nullcontext() if self._last is None else self._last.only(ends_B),
            ):
                hidden = model.base_model(
                    input_ids=layout.ids, position_ids=layout.positions, packing=packed, use_cache=False
                ).last_hidden_state[0, ends_B]
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
        device = self.model.device
        inputs = encoder_inputs(self._pairs, sequences, int(fill), device)
        try:
            config.pad_token_id = fill
            with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
                logits = self.model(**inputs).logits.float()
        finally:
            config.pad_token_id = named
        return np.asarray(logits.cpu().numpy())

    @staticmethod
    def _score(value: float, spread: float | None) -> Score:
        if not np.isfinite(value):
            return Score(failure=Failure("non_finite", "the classifier's logit is not finite"))
        return Score(total=float(value), spread=spread)


# Trained on preferences and ratings.


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
    mean: dict[str, Tensor] = {}
    for home, card in zip(homes, cards, strict=True):
        if card.kind != "preference":
            raise ConfigError(f"{home} is a model of kind {card.kind}: only means of preference models are made")
        if card.adapters:
            raise ConfigError(f"{home} has members that are adapters: only models in one folder have a mean")
        if (card.loss, dict(card.outputs), card.combine) != (cards[0].loss, dict(cards[0].outputs), cards[0].combine):
            raise ConfigError(f"{home} was trained with another loss or has other outputs than {homes[0]}")
        classifier = read_classifier(AutoModelForSequenceClassification, str(home), "the reward model")
        share = {name: _share(weight, len(homes)) for name, weight in classifier.state_dict().items()}
        if mean and _shapes(share) != _shapes(mean):
            raise ConfigError(f"the weights of {home} have other shapes than those of {homes[0]}")
        for name, part in share.items():
            mean[name] = mean[name] + part if name in mean and part.is_floating_point() else part
    classifier.load_state_dict(mean)  # the last of them holds the mean
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
