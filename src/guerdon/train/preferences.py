"""Fitting a reward model to preferences or ratings: what is compared, the losses, and the quality on held-out prompts.

data = read_preference_data(settings)
train, val = data.lessons(model, settings)
trainer = PreferenceTrainer(model, train, val, settings, folder)
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from guerdon.compute import distributed
from guerdon.episodes.preferences import Comparison, Votes, read_preferences, refuse_test_sets, split_prompts
from guerdon.errors import DataError
from guerdon.models.images.quality import auroc
from guerdon.models.text.sequence_classifier import PreferenceModel
from guerdon.models.text.text_inputs import Reading as Tokens
from guerdon.models.text.text_inputs import buckets
from guerdon.models.text.text_losses import bce_terms
from guerdon.models.text.text_model import TextRewardModel
from guerdon.policies.batches.prompt_sharing import common_start
from guerdon.policies.batches.tokens import piece_ids
from guerdon.processes.progress import doing
from guerdon.reading.shown import ReadAs, read_as_facts
from guerdon.settings.label import LabelSettings
from guerdon.settings.train import PreferenceTrainSettings, TextTrainSettings
from guerdon.tasks.trained_questions import question_name
from guerdon.train.lessons import Item, Lessons
from guerdon.train.reward_trainer import RewardTrainer
from guerdon.types import Failure, FloatArray


@dataclass(frozen=True, eq=False)
class PairLessons(Lessons):
    """Responses as lessons, and the pairs of them that are compared.

    Attributes:
        items: pairs (better, worse); single responses with a label or ratings.
        margins: by how much the first of each pair is better, in the unit of the data.
        tied: whether the two were judged equally good.
        item_weights: of each item; the pairs of one comparison weigh 1 together.
        ranks: of lists, the rank of each member of an item, 0 for the best; empty: items are pairs or single.
        lengths: of each response in tokens, where the training needs them.
    """

    items: list[tuple[int, ...]] = field(default_factory=list)
    margins: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))
    tied: np.ndarray = field(default_factory=lambda: np.zeros(0, np.bool_))
    item_weights: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))
    ranks: list[tuple[int, ...]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def items_for(self, settings: TextTrainSettings) -> list[Item]:
        """Pairs or lists of responses, or single ones."""
        return self.items

    def digest(self) -> str:
        """A hash of everything that a model is trained on."""
        plain = [self.items, self.margins.tolist(), self.tied.tolist(), self.item_weights.tolist()]
        plain += [one for one in (self.ranks, self.lengths) if one]
        return hashlib.sha256(f"{super().digest()}{plain}".encode()).hexdigest()


@dataclass(frozen=True)
class PreferenceData:
    """Comparisons to train on and to hold out, and what was left out of both: what models of preferences learn.

    Attributes:
        read_as: what the columns of each data set are for.
    """

    train: tuple[Comparison, ...]
    held_out: tuple[Comparison, ...]
    left_out: Mapping[str, int]
    votes: Votes = field(default_factory=Votes)
    read_as: tuple[ReadAs, ...] = ()
    separator: ClassVar = ""
    folder: ClassVar = None
    rows_left_out: ClassVar = "rows"

    @classmethod
    def read(cls, settings: PreferenceTrainSettings, label: LabelSettings | None) -> PreferenceData:
        """See `read_preference_data`; what is labelled step by step has none."""
        return read_preference_data(settings)

    def lessons(self, model: TextRewardModel, settings: PreferenceTrainSettings) -> tuple[PairLessons, PairLessons]:
        """As the model reads them."""
        train = make_pair_lessons(model, self.train, settings, ranking=settings.ranking)
        return train, make_pair_lessons(model, self.held_out, settings)

    def warning(self, train: PairLessons, model: TextRewardModel) -> str | None:
        """None: of every pair one response is better."""
        return None

    def trainer(
        self,
        model: TextRewardModel,
        train: PairLessons,
        val: PairLessons,
        settings: PreferenceTrainSettings,
        folder: Path,
    ) -> PreferenceTrainer:
        """What trains on these lessons."""
        return PreferenceTrainer(model, train, val, settings, folder)

    def counts(self, train: PairLessons, val: PairLessons) -> dict[str, int]:
        """How many lists or pairs are trained on and held out, and how many are ties."""
        kind = "lists" if train.ranks else "pairs"
        return {kind: len(train.items), "val_pairs": len(val.items), "ties": int(train.tied.sum())}

    def facts(self) -> dict[str, Any]:
        """What the card says of the data."""
        return {"left_out": dict(self.left_out), **self.votes.facts(), **read_as_facts(self.read_as)}


@doing("reading the data")
def read_preference_data(settings: PreferenceTrainSettings) -> PreferenceData:
    """The comparisons of all data sets, split by prompt.

    Raises:
        DataError: a data set cannot be read, or holds another kind of judgement than the settings need.
    """
    read_as: list[ReadAs] = []
    data = read_preferences(settings.data_paths, columns=settings.columns, train=True, read_as=read_as)
    refuse_test_sets(data.benchmarks)
    found, left_out = data.comparisons, Counter(data.left_out)
    kinds = Counter(_kind(one, settings) for one in found)
    wanted = _wanted(kinds, settings)
    used = [one for one in found if _kind(one, settings) == wanted]
    left_out.update({f"only_{kind}": n for kind, n in kinds.items() if kind != wanted})
    train, held, near = split_prompts(used, settings.val_split, settings.seed)
    if near:
        left_out["near_duplicate"] += near
    to_train, to_hold = (tuple(used[i] for i in part) for part in (train, held))
    return PreferenceData(to_train, to_hold, dict(left_out), data.votes, tuple(read_as))


def _wanted(kinds: Counter[str], settings: PreferenceTrainSettings) -> str:
    """The kind of judgement that is learned from: what the settings need, or what most comparisons are.

    Raises:
        DataError: there is none of it, or a setting would do nothing with it.
    """
    wanted = "ratings" if settings.attributes else max(("pairs", "labels"), key=lambda kind: kinds[kind])
    if not kinds[wanted]:
        names = f" {', '.join(settings.attributes)}" if settings.attributes else ""
        held = ", ".join(f"{n} rows with {kind}" for kind, n in kinds.items())
        raise DataError(
            f"train ({settings.type}): no row of {', '.join(settings.data_paths)} has {wanted}{names}; it has {held}"
        )
    if settings.ranking == "list" and wanted != "pairs":
        raise DataError(
            f"train ({settings.type}): ranking: list would do nothing with {wanted}; remove it", field="ranking"
        )
    return wanted


def _kind(one: Comparison, settings: PreferenceTrainSettings) -> str:
    """What a comparison says: `pairs`, `labels` or `ratings`."""
    if len(one.responses) > 1:
        return "pairs"
    rated = settings.attributes.keys() & one.attributes.keys() if settings.attributes else one.attributes
    if rated:
        return "ratings"
    return "nothing" if one.label is None else "labels"


@doing("preparing the data")
def make_pair_lessons(
    model: TextRewardModel,
    comparisons: Sequence[Comparison],
    settings: PreferenceTrainSettings,
    *,
    ranking: Literal["pairs", "list"] = "pairs",
) -> PairLessons:
    """Comparisons as the model reads them; responses that do not fit are counted, with the pairs that they are in."""
    readings: list[Tokens] = []
    targets, questions, solutions = [], [], []
    items: list[tuple[int, ...]] = []
    margins, tied, weights = [], [], []
    ranks: list[tuple[int, ...]] = []
    lengths: list[int] = []
    counts: Counter[str] = Counter()
    for number, one in enumerate(comparisons):
        places: list[int | None] = []
        first = len(readings)
        for response in one.responses:
            read = model.reading_of(response.as_episode())
            if isinstance(read, Failure):
                counts[read.reason] += 1
                places.append(None)
                continue
            places.append(len(readings))
            readings.append(read)
            targets.append(_target(one, settings.attributes))
            questions.append(question_name(response))
            solutions.append(number)
            if settings.length_coef:
                lengths.append(len(piece_ids(model.tokenizer, [response.text])[0]))
        readings[first:] = _read_once(model, readings[first:])
        pairs = _pairs(one, places)
        if ranking == "list" and len(one.responses) > 1:
            pairs, orders = _lists(one, places)
            ranks += orders
            counts["only_ties"] += not pairs
        items += pairs
        margins += [one.margin or 0.0] * len(pairs)
        tied += [one.ranks[0] == one.ranks[-1] and len(one.responses) == 2] * len(pairs)
        weights += [1.0 / max(len(pairs), 1)] * len(pairs)
    known = [np.ones(len(t), dtype=np.float32) for t in targets]
    return PairLessons(
        readings, targets, known, solutions, questions, dict(+counts), items, np.array(margins, np.float32),
        np.array(tied, np.bool_), np.array(weights, np.float32), ranks, lengths,
    )  # fmt: skip


def _target(one: Comparison, attributes: Mapping[str, float]) -> FloatArray:
    """(K,) the ratings that are learned, NaN where there is none; without attributes (1,) the label."""
    if attributes:
        return np.array([one.attributes.get(name, np.nan) for name in attributes], dtype=np.float32)
    return np.array([float(bool(one.label))], dtype=np.float32)


def _read_once(model: TextRewardModel, readings: list[Tokens]) -> list[Tokens]:
    """The responses to one prompt with what they have in common marked, which is read once."""
    if len(readings) < 2:
        return readings
    start = common_start([one.ids for one in readings], [int(model.places(one)[0]) for one in readings])
    return [replace(one, start=start) for one in readings]


def _lists(one: Comparison, places: Sequence[int | None]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The responses from best to worst and their ranks; none where all that remain are equally good."""
    known = sorted((rank, place) for rank, place in zip(one.ranks, places, strict=True) if place is not None)
    if len({rank for rank, _ in known}) < 2:
        return [], []
    return [tuple(place for _, place in known)], [tuple(rank for rank, _ in known)]


def _pairs(one: Comparison, places: Sequence[int | None]) -> list[tuple[int, ...]]:
    """Every better response with every worse one; two equal ones; a single one."""
    if len(one.responses) == 1:
        return [(places[0],)] if places[0] is not None else []
    both = [
        (a, b) if rank_a <= rank_b else (b, a)
        for (a, rank_a), (b, rank_b) in itertools.combinations(zip(places, one.ranks, strict=True), 2)
        if a is not None and b is not None and (rank_a != rank_b or len(one.responses) == 2)
    ]
    return cast("list[tuple[int, ...]]", both)


def preference_terms(
    better_P_K: Tensor,
    worse_P_K: Tensor,
    *,
    tied_P: Tensor,
    margins_P: Tensor,
    log_ties: Tensor | None,
    smoothing: float = 0.0,
    center: float = 0.0,
) -> Tensor:
    """Loss of each pair and output, (P, K).

    Bradley and Terry (1952): -log sigma(d), d = better - worse - margin. Where the data has ties, Davidson (1970):
    P(better) = e^{d/2} / (e^{d/2} + e^{-d/2} + nu), P(tie) = nu / (...), with nu = e^{log_ties}. Label smoothing takes
    a share of the judgements to be wrong. `center` adds the squared sum of both rewards (Eisenstein et al. 2023,
    2312.09244, eq. 5).

    Args:
        better_P_K: logits of the better responses.
        worse_P_K: of the worse ones.
        tied_P: pairs judged equally good.
        margins_P: 0 where there is none.
        log_ties: of Davidson's model, a scalar or (K,); None: the data has no ties.
        smoothing: below 0.5.
        center: weight.
    """
    d = better_P_K - worse_P_K - margins_P[:, None]
    if log_ties is not None:
        both = torch.stack([d / 2, -d / 2, log_ties.expand_as(d)])
        log_p, log_q, log_tie = both - torch.logsumexp(both, dim=0)
    else:
        log_p, log_q, log_tie = functional.logsigmoid(d), functional.logsigmoid(-d), torch.zeros_like(d)
    loss = -torch.where(tied_P[:, None], log_tie, (1 - smoothing) * log_p + smoothing * log_q)
    return loss + center * (better_P_K + worse_P_K) ** 2


def list_terms(rewards_L_K: Tensor, ranks_L: Tensor) -> Tensor:
    """-log likelihood of a ranking by the model of Plackett (1975) and Luce (1959), (K,).

    The best is chosen among all, the next among the rest, and so on; of two responses this is the loss of Bradley and
    Terry. Responses of one rank are each chosen among themselves and all worse ones (Breslow 1974).

    Args:
        rewards_L_K: of the responses.
        ranks_L: smaller is better.
    """
    left_L_L = ranks_L[None, :] >= ranks_L[:, None]
    others = torch.where(left_L_L[:, :, None], rewards_L_K[None], -torch.inf).logsumexp(dim=1)
    return (others - rewards_L_K)[ranks_L < ranks_L.max()].sum(dim=0)


def length_terms(rewards_N_2: Tensor, lengths_N: Tensor, weight_2_H: Tensor) -> Tensor:
    """What ODIN adds to the ranking loss of a batch (2402.07319), which is that of the sum of both rewards; a scalar.

    |corr(quality, length)| - corr(length reward, length), by Pearson, and |W_Q W_L^T| of the weights of both heads,
    each divided by its norm. A correlation with something constant is 0. The authors' own script (Lichang-Chen/ODIN at
    8e18ce6) also computes the rewards with such weights, centred before, adds |corr(sum of both rewards, length)|, and
    counts the tokens of the prompt as length, too.

    Args:
        rewards_N_2: quality, and the reward of length.
        lengths_N: of the responses.
        weight_2_H: of the two heads.
    """
    centred_N_2 = rewards_N_2 - rewards_N_2.mean(dim=0)
    length_N = functional.normalize(lengths_N - lengths_N.mean(), dim=0)
    quality, length = length_N @ functional.normalize(centred_N_2, dim=0)
    both_2_H = functional.normalize(weight_2_H, dim=1)
    return quality.abs() - length + both_2_H.prod(dim=0).sum().abs()  # type: ignore[no-any-return]


class PreferenceTrainer(RewardTrainer):
    """Trainer over pairs, labelled or rated responses.

    Args:
        model: what is trained, in place.
        train: lessons to train on.
        val: lessons held out; may be empty.
        settings: everything the user chose.
        folder: see `RewardTrainer`.

    Raises:
        DataError: there is nothing to train on.
    """

    def __init__(
        self,
        model: TextRewardModel,
        train: PairLessons,
        val: PairLessons,
        settings: PreferenceTrainSettings,
        folder: Path,
    ) -> None:
        self._settings, self._pairs, self._held = settings, train, val
        self._davidson = bool(train.tied.any())
        super().__init__(model, train, val, settings, folder)

    def parts(self, rows: list[int]) -> list[list[int]]:
        """As of `RewardTrainer`; a batch in which lengths are correlated with rewards is one forward pass."""
        return [rows] if self._settings.length_coef else super().parts(rows)

    def weight(self, rows: list[int]) -> float:
        """Weights of some items, over all members."""
        return self.over_members(self._pairs.item_weights[rows].tolist(), rows)

    def loss_sum(self, model: nn.Module, rows: list[int]) -> Tensor:
        """Summed weighted loss of some items, the mean over members."""
        if self._pairs.ranks:
            return self._list_loss(rows)
        columns = [list(column) for column in zip(*(self._items[row] for row in rows), strict=True)]
        readings = [self._pairs.readings[i] for column in columns for i in column]
        body = self.state.global_step >= self.head_steps
        logits = self._reward.lesson_logits(readings, body=body).chunk(len(columns))
        terms = self._terms(self._pairs, rows, columns, logits)
        if self._settings.length_coef:
            lengths = torch.tensor([float(self._pairs.lengths[i]) for column in columns for i in column])
            both = torch.cat(logits)
            more = length_terms(both, lengths.to(both), cast(PreferenceModel, self._reward).head.weight)
            return terms.sum() + self._settings.length_coef * more * self.weight(rows)
        return terms.sum() if self._times_P_K is None else (terms * self._times_P_K[rows].to(terms)).mean(dim=1).sum()

    def _list_loss(self, rows: list[int]) -> Tensor:
        """Summed loss of lists, the mean over members."""
        items, body = [self._items[row] for row in rows], self.state.global_step >= self.head_steps
        logits = self._reward.lesson_logits([self._pairs.readings[i] for item in items for i in item], body=body)
        ranks = [torch.tensor(self._pairs.ranks[row], device=logits.device) for row in rows]
        split = torch.split(logits, [len(item) for item in items])
        terms = torch.stack([list_terms(own, rank) for own, rank in zip(split, ranks, strict=True)])
        return (terms if self._times_P_K is None else terms * self._times_P_K[rows].to(terms)).mean(dim=1).sum()

    def _terms(
        self, lessons: PairLessons, rows: Sequence[int], columns: Sequence[Sequence[int]], logits: Sequence[Tensor]
    ) -> Tensor:
        """Weighted loss of each item and member, (P, K); of ratings one column."""
        device, settings = logits[0].device, self._settings
        weights_P = torch.from_numpy(lessons.item_weights[rows]).to(device)
        if settings.length_coef:
            logits = [one.sum(dim=1, keepdim=True) for one in logits]
        if len(columns) == 2:
            log_ties = torch.stack([cast(PreferenceModel, one).head.log_ties for one in self._reward.members])
            terms = preference_terms(
                *logits, tied_P=torch.from_numpy(lessons.tied[rows]).to(device),
                margins_P=settings.margin_coef * torch.from_numpy(lessons.margins[rows]).to(device),
                log_ties=log_ties if self._davidson else None, smoothing=settings.label_smoothing,
                center=settings.center_coef,
            )  # fmt: skip
            return weights_P[:, None] * terms
        targets_P_K = torch.from_numpy(np.stack([lessons.targets[i] for i in columns[0]])).to(device)
        if not settings.attributes:
            return weights_P[:, None] * bce_terms(logits[0], targets_P_K.expand_as(logits[0]))
        known = ~targets_P_K.isnan()
        errors = torch.where(known, logits[0] - targets_P_K.nan_to_num(), 0.0) ** 2
        return weights_P[:, None] * errors.sum(dim=1, keepdim=True) / known.sum(dim=1, keepdim=True)

    @torch.no_grad()
    def quality(self) -> dict[str, float | None]:
        """Loss, and the share of held-out pairs in the right order; of ratings their error, of labels the AUROC."""
        val, rows = self._held, list(range(len(self._held.items)))
        if not rows:
            return {"loss": None}
        outputs = len(self._reward.card.outputs)
        logits_N_K = torch.zeros((len(val), outputs))
        for group, counts in distributed.dealt(buckets(val.readings, self._micro, tokens=self._tokens)):
            found = self._reward.lesson_logits([val.readings[i] for i in group]).float().cpu()
            if counts:
                logits_N_K[torch.from_numpy(group)] = found
        if distributed.peers() > 1:
            logits_N_K = distributed.total(logits_N_K.flatten()).view_as(logits_N_K)
        columns = [list(column) for column in zip(*val.items, strict=True)]
        device = self._reward.policy.device
        terms = self._terms(val, rows, columns, [logits_N_K[column].to(device) for column in columns])
        numbers: dict[str, float | None] = {"loss": float(terms.mean(dim=1).sum() / val.item_weights.sum())}
        rewards = self._reward.combined(logits_N_K.numpy())[0]
        if len(columns) == 2:
            return numbers | pair_quality(rewards[columns[0]] - rewards[columns[1]], val.tied, val.item_weights)
        targets_N_K = np.stack(val.targets)
        if not self._settings.attributes:
            return numbers | {"auroc": auroc(rewards, targets_N_K[:, 0])}
        errors = np.abs(logits_N_K.numpy() - targets_N_K)
        return numbers | {
            f"mae_{name}": float(np.nanmean(errors[:, k])) if (~np.isnan(errors[:, k])).any() else None
            for k, name in enumerate(self._settings.attributes)
        }


def pair_quality(differences_P: FloatArray, tied_P: np.ndarray, weights_P: FloatArray) -> dict[str, float | None]:
    """Share of the pairs that are not tied in the right order, equal rewards counting half, and the mean difference."""
    kept = ~tied_P
    if not kept.any():
        return {"pair_accuracy": None, "difference": None}
    right = (differences_P > 0) + 0.5 * (differences_P == 0)
    return {
        "pair_accuracy": float(np.average(right[kept], weights=weights_P[kept])),
        "difference": float(np.average(differences_P[kept], weights=weights_P[kept])),
    }
