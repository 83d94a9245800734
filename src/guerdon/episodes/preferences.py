"""Preferences on disk: which of several responses to a prompt people, or a model, found better.

What a column is for is decided by `guerdon.reading` over the whole data; `columns` says what differs. What cannot be
used is left out and counted by reason, never used in silence.

    found = read_preferences("pairs.jsonl")
    found = read_preferences("votes.parquet", columns="prompt=question,first=left,second=right,winner=vote:1/2")
    print(len(found.comparisons), dict(found.left_out), found.votes.label_noise)
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.reading.chats import (
    ChatError,
    asked_of,
    chat_messages,
    context_of,
    cut_after,
    question_of,
    split_answer,
    tool_schemas,
    turns_of,
)
from guerdon.reading.codings import TRUE_TIE
from guerdon.reading.containers import has_rows
from guerdon.reading.plan import Plan, cell_of
from guerdon.reading.reader import DataReading, Record, read
from guerdon.reading.roles import ASKED, NUMBER_KEYS, TEXT_KEYS, Role
from guerdon.reading.shown import ReadAs, log_reading
from guerdon.reading.values import number_of
from guerdon.statistics.proportion import wilson_bounds
from guerdon.types import Failure

ATTRIBUTES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")  # HelpSteer2 (2406.08673)
NEAR = 0.8  # Jaccard similarity of word triples from which two prompts count as the same
_SKETCH = 12  # hashes of a prompt by which near-duplicates find each other
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Comparison:
    """Responses to one prompt, and how they were judged.

    Attributes:
        id: unique within its data.
        responses: one step each, to the same conversation.
        ranks: of each response, 0 is best; equal ranks are tied. Of a single response (0,).
        margin: by how much the first of two is better, in the unit of the data; None: not said.
        label: of a single response, whether it is good.
        attributes: of a single response, its ratings by name.
        subset: part of the data, as published.
        share: of the judgements on a pair that say the same, where they differ; else 1.
    """

    id: str
    responses: tuple[Solution, ...]
    ranks: tuple[int, ...]
    margin: float | None = None
    label: bool | None = None
    attributes: Mapping[str, float] = field(default_factory=dict)
    subset: str = ""
    share: float = 1.0

    @property
    def prompt(self) -> str:
        """What was asked, as one text that is equal for equal conversations only."""
        return self.responses[0].asked


@dataclass(frozen=True)
class Preferences:
    """The comparisons of a data set.

    Attributes:
        comparisons: that can be used, in order.
        left_out: numbers of rows that cannot be used, by reason.
        votes: what repeated judgements of one pair say, those of all files together.
        benchmarks: of files that are a test set, whose it is (`benchmark_of`).
    """

    comparisons: tuple[Comparison, ...]
    left_out: Mapping[str, int]
    votes: Votes
    benchmarks: Mapping[str, str]


@dataclass(frozen=True)
class Votes:
    """What several judgements of the same two responses say; each is a vote for one of them, or for a tie.

    Attributes:
        repeated: pairs of responses that were judged more than once.
        disagreement: of a random pair that has two votes for a response at least, the probability that two random ones
            of these are for different responses; None: there is no such pair.
        trials: votes on so many pairs, each with two, would give the disagreement with the variance that it has; 0: no
            such pair.
        shares: of each comparison that is kept and whose pair has different votes, the share of votes that say the
            same, by its index.
        left_out: index and reason of the others: `outvoted`, or `contradicted` where either response has as many votes
            as the other, and as many as a tie or more.
        majorities: pairs with different votes of which one is kept.
        mean_share: of these pairs; None: there is none.
    """

    repeated: int = 0
    disagreement: float | None = None
    trials: float = 0.0
    shares: Mapping[int, float] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)
    majorities: int = 0
    mean_share: float | None = None

    @property
    def label_noise(self) -> float | None:
        """Share of wrong votes, if each is wrong independently; None where no pair has two votes for a response.

        Two votes with error rate e differ with probability 2 e (1 - e).
        """
        return None if self.disagreement is None else _noise(self.disagreement)

    @property
    def label_noise_interval(self) -> tuple[float, float] | None:
        """95 % interval of the share of wrong votes: Wilson's of the disagreement, each bound as `label_noise`.

        Of n pairs with two votes, the standard error is sqrt(D (1 - D) / n) / (2 (1 - 2 e)), D = 2 e (1 - e).
        """
        if self.disagreement is None:
            return None
        low, high = wilson_bounds(self.disagreement * self.trials, self.trials)
        return _noise(low), _noise(high)

    def facts(self) -> dict[str, Any]:
        """What cards say of them."""
        interval = self.label_noise_interval
        return {
            "label_noise": self.label_noise,
            "label_noise_interval": None if interval is None else list(interval),
            "majorities": self.majorities,
            "majority_share": self.mean_share,
        }


class JudgedRow(NamedTuple):
    """The responses of a row, and what it says of them.

    Attributes:
        prompt: what was asked, as text or messages; None: the responses have it in front of them.
        responses: texts or messages.
        ranks: of each, 0 is best.
        margin, label, attributes: see `Comparison`.
    """

    prompt: Any
    responses: Sequence[Any]
    ranks: Sequence[int]
    margin: float | None = None
    label: bool | None = None
    attributes: Mapping[str, float] = {}


class Given(NamedTuple):
    """The responses of a row, whatever it says of them.

    Attributes:
        prompt: see `JudgedRow`.
        responses: texts or messages, in the order of the row.
        better: how many of them, the first ones, stand in a column of better ones.
    """

    prompt: Any
    responses: Sequence[Any]
    better: int = 0


class LeftOut(DataError):
    """A row that says nothing about which response is better; its text is the reason."""


def given(record: Record, plan: Plan) -> Given:
    """The responses of a row and what was asked.

    Raises:
        LeftOut: there are none, or the row has pictures, sound or video.
        ChatError: turns before the question cannot be read.
        DataError: a column of responses holds something else.
    """
    seen = next((role for role in ("images", "videos", "audio") if record.roles.get(role)), None)
    if seen is not None:
        raise LeftOut(f"has_{seen}")
    if _has_two(record, plan):
        return _side_by_side(record, plan)
    if plan.has("chosen", "rejected"):
        return _better_and_worse(record, with_prompt=plan.with_prompt)
    return _several(record) if plan.has("responses") else _one(record, plan)


def _has_two(record: Record, plan: Plan) -> bool:
    """Whether a row has two responses side by side; in one file others may have a better and a worse one."""
    named = plan.has("chosen", "rejected") and any(record.roles[role] is not None for role in ("chosen", "rejected"))
    return plan.has("first", "second") and not named


def judged(record: Record, plan: Plan) -> JudgedRow:
    """The responses of a row and how they were judged.

    Raises:
        LeftOut: it says nothing of them, or cannot be read.
        ChatError: as `given`.
        DataError: as `given`.
    """
    if record.left_out:
        raise LeftOut(f"unreadable_{record.left_out.partition(':')[0]}")
    found = given(record, plan)
    if _has_two(record, plan):
        return _compared(record, plan, found)
    if plan.has("chosen", "rejected"):
        return _chosen(record, found)
    return _listed(record, found) if plan.has("responses") else _single(record, plan, found)


def _better_and_worse(record: Record, *, with_prompt: bool) -> Given:
    """A better and a worse one, or lists of each; the prompt may be their common beginning."""
    roles = record.roles
    both = [roles["chosen"], roles["rejected"]]
    if any(map(is_nothing, both)):
        raise LeftOut("no_value")
    chosen, rejected = (
        responses_of(one, name, record.where) for one, name in zip(both, ("chosen", "rejected"), strict=True)
    )
    prompt, responses = asked_of(roles), [*chosen, *rejected]
    if prompt is None and all(isinstance(one, str) for one in responses):
        responses = [turns_of(one) for one in responses]
        if all(isinstance(one, str) for one in responses):
            prompt, responses = _common(responses)
    elif with_prompt:
        responses = [one[len(prompt) :] for one in responses]
    return Given(prompt, responses, len(chosen))


def _chosen(record: Record, found: Given) -> JudgedRow:
    """Better and worse ones, and by how much."""
    roles = record.roles
    margin = number_of(roles.get("margin"))
    better, worse = (number_of(roles.get(role)) for role in ("chosen_score", "rejected_score"))
    if margin is None and better is not None and worse is not None:
        margin = better - worse
    if margin is not None and margin < 0:
        raise LeftOut("chosen_scored_lower")
    if is_tied(record):
        return JudgedRow(found.prompt, found.responses, [0] * len(found.responses), 0.0)
    ranks = [int(k >= found.better) for k in range(len(found.responses))]
    return JudgedRow(found.prompt, found.responses, ranks, margin)


def is_tied(record: Record) -> bool:
    """Whether a row with a better and a worse response says that none is better: in a word, or by equal scores."""
    better, worse = (number_of(record.roles.get(role)) for role in ("chosen_score", "rejected_score"))
    return TRUE_TIE.read(record.roles.get("tie"), {}) == 0 or (better is not None and better == worse)


def _side_by_side(record: Record, plan: Plan) -> Given:
    """Two responses in columns of their own; of conversations that were judged after a turn what came up to it."""
    roles = record.roles
    responses = [roles["first"], roles["second"]]
    if any(one is None for one in responses):
        raise LeftOut("no_value")
    turn = number_of(roles.get("turn"))
    if turn is None and plan.has("turn"):
        raise LeftOut("no_turn")
    if turn is not None:
        responses = [cut_after(one, int(turn)) if isinstance(one, list | tuple) else one for one in responses]
    return Given(asked_of(roles), responses)


def _compared(record: Record, plan: Plan, found: Given) -> JudgedRow:
    """Two responses side by side, with the better one named or scored."""
    roles = record.roles
    margin: float | None = None
    if plan.has("winner"):
        sign = roles["winner"]
        coding = plan.uses["winner"].coding
        if sign is not None and coding is not None and coding.is_scale:
            margin = abs(float(sign))
    elif plan.has("first_score", "second_score"):
        a, b = roles["first_score"], roles["second_score"]
        sign = None if a is None or b is None else b - a
        margin = None if sign is None else abs(float(sign))
    else:
        raise LeftOut("no_winner")
    if sign is None:
        raise LeftOut("no_value")
    return JudgedRow(found.prompt, found.responses, [int(sign > 0), int(sign < 0)], margin)


def _several(record: Record) -> Given:
    """Several responses in a list: texts, messages, or maps with these."""
    items = record.roles["responses"]
    if not isinstance(items, list | tuple) or not items:
        raise LeftOut("no_value")
    return Given(asked_of(record.roles), [text_in(one) for one in items])


def text_in(item: Any) -> Any:
    """The response in a map that has further keys; anything else, and a chat message, as it is."""
    if not isinstance(item, Mapping) or "role" in item:
        return item
    return next((item[key] for key in TEXT_KEYS if item.get(key) is not None), None)


def _listed(record: Record, found: Given) -> JudgedRow:
    """Several responses with a rank or a score each: in maps with the text, or in a list beside."""
    values, ranked = _ranks_or_scores(record.roles)
    numbers = [number_of(one) for one in values]
    if len(numbers) != len(found.responses) or any(one is None for one in numbers):
        raise LeftOut("no_rank")
    order = [one if ranked else -one for one in numbers if one is not None]
    ranks = [sorted(set(order)).index(one) for one in order]
    return JudgedRow(found.prompt, found.responses, ranks)


def _ranks_or_scores(roles: Mapping[str, Any]) -> tuple[list[Any], bool]:
    """What says which of several responses is better, and whether it is ranks."""
    items = roles["responses"]
    if all(isinstance(one, Mapping) for one in items):
        named = next((key for key in NUMBER_KEYS if items[0].get(key) is not None), "")
        return [one.get(named) for one in items], named == "rank"
    return list(roles.get("ranks") or roles.get("scores") or ()), roles.get("ranks") is not None


def _one(record: Record, plan: Plan) -> Given:
    """One response; it may be the end of a conversation."""
    roles = record.roles
    asked, said = asked_of(roles), roles.get("response")
    if not plan.has("response"):
        asked, said = roles.get("prompt"), roles.get("messages")
    if said is None:
        raise LeftOut("no_value")
    return Given(asked, [said])


def _single(record: Record, plan: Plan, found: Given) -> JudgedRow:
    """One response, with a label or ratings."""
    ratings = {name: number_of(cell_of(record.row, name)) for name in plan.ratings}
    if plan.has("rating"):
        ratings[plan.uses["rating"].column] = number_of(record.roles["rating"])
    label, use = record.roles.get("label"), plan.uses.get("label")
    if use is not None and use.coding is not None and use.coding.is_scale:
        ratings[use.column], label = label, None
    attributes = {name: value for name, value in ratings.items() if value is not None}
    if label is None and not attributes:
        raise LeftOut("no_value")
    return JudgedRow(
        found.prompt, found.responses, [0], label=None if label is None else bool(label), attributes=attributes
    )


def is_nothing(cell: Any) -> bool:
    """Whether a cell of responses has none: it is null, not a number, or an empty list or map."""
    return cell is None or cell != cell or (isinstance(cell, list | tuple | Mapping) and not cell)


def responses_of(given: Any, column: str, where: str | None = None) -> list[Any]:
    """The responses of a column: texts, or lists of messages.

    Raises:
        DataError: it holds something else.
    """
    if isinstance(given, str):
        return [given]
    if isinstance(given, Mapping):
        return [[given]]
    if isinstance(given, list | tuple) and given:
        if all(isinstance(one, Mapping) for one in given):
            return [given]
        if all(isinstance(one, str | list | tuple) for one in given):
            return list(given)
    said = f"{column} must be text, chat messages, or a list of either, this is {str(given)[:80]!r}"
    raise DataError(said, where=where, field=column)


def _common(texts: Sequence[str]) -> tuple[str, list[str]]:
    """The common beginning of texts up to the end of a word, and what follows it."""
    low, high = min(texts), max(texts)
    end = next((k for k, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    while end and not low[end - 1].isspace():
        end -= 1
    if not low[:end].strip():
        raise LeftOut("no_prompt")
    return low[:end].rstrip(), [text[end:] for text in texts]


_BENCHMARKS = {  # names of files, folders and hub data sets
    "RewardBench 2": r"reward[-_ ]?bench[-_ ]?(v|version)?2",
    "RewardBench": r"reward[-_ ]?bench",
    "RM-Bench": r"(?<![a-z])rm[-_ ]?bench|^(chat|code|math|safety-refuse|safety-response)_filtered$",
    "JudgeBench": r"judge[-_ ]?bench",
    "PPE": r"(?<![a-z])ppe(?![a-z])",
}
_REWARD_BENCH = re.compile("alpacaeval-|mt-bench-|llmbar-|refusals-|xstest-|donotanswer|math-prm|hep-")


def benchmark_of(data: str, row: Any) -> str | None:
    """The benchmark that a data set is a test set of, by the columns of a row or its own name; None: of none known.

    Args:
        data: a path or a hub id.
        row: any of its rows.
    """

    def has(*keys: str) -> bool:
        return isinstance(row, Mapping) and all(row.get(key) is not None for key in keys)

    if has("pair_id", "response_A", "response_B", "label"):
        return "JudgeBench"
    if has("response_1", "response_2", "winner", "conv_metadata"):
        return "PPE"
    if has("chosen", "rejected", "num_correct", "num_incorrect"):
        return "RewardBench 2"
    if has("chosen", "chosen_model", "subset") and _REWARD_BENCH.match(str(row["subset"])):
        return "RewardBench"
    if has("chosen", "rejected", "domain") and all(
        isinstance(row[key], list | tuple) and len(row[key]) == 3 for key in ("chosen", "rejected")
    ):
        return "RM-Bench"
    return _benchmark_named(data)


@functools.lru_cache(maxsize=64)
def _benchmark_named(data: str) -> str | None:
    """The benchmark that the name of a data set is that of."""
    own = Path(data).stem if has_rows(Path(data)) else Path(data).name.partition(":")[0]
    return next((name for name, known in _BENCHMARKS.items() if re.search(known, own, re.IGNORECASE)), None)


_OF_PREFERENCES: tuple[Role, ...] = (
    *ASKED, "tools", "chosen", "rejected", "first", "winner", "responses", "ranks", "scores", "response", "label",
)  # fmt: skip


def is_preference(plan: Plan) -> bool:
    """Whether rows say of responses which is better, or whether one is good."""
    if plan.has("chosen", "rejected"):
        return True
    if plan.has("first", "second"):
        return plan.has("winner") or plan.has("first_score", "second_score")
    if plan.has("responses"):
        return plan.has("ranks") or plan.has("scores") or bool(plan.listed)
    rated = plan.has("label") or plan.has("rating") or bool(plan.ratings)
    return (plan.has("response") or plan.has("messages")) and rated


class PreferenceSource(NamedTuple):
    """What a file, a folder or a hub data set holds, before votes are counted."""

    data: str
    reading: DataReading
    comparisons: list[Comparison]
    left_out: Counter[str]
    benchmark: str | None


def read_preferences(
    data: str | Sequence[str],
    *,
    columns: str | Mapping[str, str] | None = None,
    stored: Mapping[str, str] | None = None,
    train: bool = False,
    read_as: list[ReadAs] | None = None,
) -> Preferences:
    """The comparisons of a file, a folder or a hub data set, or of several, whose votes count together.

    Args:
        data: see `read`.
        columns: see `read`.
        stored: see `read`.
        train: of several splits, only `train`.
        read_as: of a command: receives what the data was read as, which is also said on standard error.

    Raises:
        DataError: the data cannot be read, a row has no known layout, or no row can be used.
    """
    paths = (data,) if isinstance(data, str) else tuple(data)
    sources = [source_in(read(path, columns=columns, stored=stored, train=train)) for path in paths]
    votes = counted_votes([one for source in sources for one in source.comparisons])
    kept: list[Comparison] = []
    start = 0
    for source in sources:
        own = _by_majority(source, votes, start)
        start += len(source.comparisons)
        kept += own
        if read_as is not None:
            read_as.append(log_reading(source.reading, used=len(own), left_out=source.left_out))
        if not source.comparisons:
            raise none_usable(source.left_out, source.data)
    left_out = sum((source.left_out for source in sources), Counter[str]())
    if not kept:
        raise none_usable(left_out, ", ".join(paths))
    benchmarks = {source.data: source.benchmark for source in sources if source.benchmark is not None}
    return Preferences(tuple(kept), dict(left_out), votes, benchmarks)


def _by_majority(source: PreferenceSource, votes: Votes, start: int) -> list[Comparison]:
    """The comparisons of a source that the majority agrees with, each with its share; the others are counted there.

    Args:
        source: it remembers what is left out.
        votes: of all sources.
        start: the place of its first comparison in them.
    """
    kept = []
    for place, one in enumerate(source.comparisons, start):
        if place in votes.left_out:
            source.left_out[votes.left_out[place]] += 1
        else:
            kept.append(replace(one, share=votes.shares.get(place, 1.0)))
    return kept


def source_in(reading: DataReading) -> PreferenceSource:
    """The comparisons of data that was read.

    Raises:
        DataError: it holds no preferences, or a column could be two things.
    """
    check_preferences(reading)
    found: list[Comparison] = []
    left_out: Counter[str] = Counter(reading.bad)
    benchmark = None
    for record in reading.records():
        benchmark = benchmark or benchmark_of(reading.data, record.row)
        one = comparison(record, reading.plan)
        if isinstance(one, str):
            left_out[one] += 1
        else:
            found.append(one)
    return PreferenceSource(reading.data, reading, found, left_out, benchmark)


def refuse_test_sets(benchmarks: Mapping[str, str]) -> None:
    """Refuse to train on files that are the test set of a benchmark.

    Args:
        benchmarks: whose each is, by file.

    Raises:
        DataError: there is one.
    """
    for path, benchmark in benchmarks.items():
        raise DataError(
            f"{path} is the test set of {benchmark}, which means nothing for a model trained on it: train on "
            "other preferences and name it in evaluate.pairs; if it is something else, rename it"
        )


def none_usable(left_out: Mapping[str, int], where: str) -> DataError:
    """That no row can be used, with the reasons."""
    why = f": {', '.join(f'{n} {reason}' for reason, n in left_out.items())}" if left_out else ""
    return DataError(f"there is no comparison that can be used{why}", where=where)


def check_preferences(reading: DataReading) -> None:
    """Refuse data that holds no preferences, or whose columns could be two things.

    Raises:
        DataError: with what was found, and how columns are named.
    """
    reading.need_rows()
    reading.need(*_OF_PREFERENCES)
    if is_preference(reading.plan):
        return
    columns = ", ".join(name for name in reading.sketches if "." not in name)
    raise DataError(
        f"no preferences are recognised, found {columns[:200]}; a row needs chosen and rejected, two responses and a "
        "winner, responses with ranks or scores, or a response with a label (docs/reading.md). Name other columns by "
        "columns: {chosen: ..., rejected: ...}, or {first: ..., second: ..., winner: NAME:A/B}",
        where=reading.data,
    )


def comparison(record: Record, plan: Plan, *, every: bool = False) -> Comparison | str:
    """One row as a comparison, or the reason why it cannot be used.

    Args:
        record: of a reading.
        plan: of the same.
        every: keep empty and equal answers, which the rules of benchmarks count.

    Raises:
        DataError: a column holds something else than responses.
    """
    try:
        found = judged(record, plan)
        name = str(record.roles["id"]) if record.roles.get("id") is not None else record.name
        asked = turns_of(found.prompt)
        responses = tuple(response_of(asked, one, f"{name}-{k}", record.roles) for k, one in enumerate(found.responses))
    except LeftOut as error:
        return str(error)
    except ChatError as error:
        return error.reason
    texts = [one.text.strip() for one in responses]
    different = {(text, one.asked) for text, one in zip(texts, responses, strict=True)}
    if not every:
        if not all(texts):
            return "empty_answer"
        if len(different) < len(texts):
            return "equal_answers"
    return Comparison(name, responses, tuple(found.ranks), found.margin, found.label, found.attributes, record.subset)


def responses_in(record: Record, plan: Plan) -> tuple[list[Solution | Failure], tuple[int, int]]:
    """The responses of a row, in its order, whatever the judgement says; numbers of the better ones and of others.

    What cannot be read is a `Failure`. Better ones are those of a column of such.

    Raises:
        DataError: a column holds something else than responses.
    """
    try:
        found = given(record, plan)
    except LeftOut as error:
        return [Failure(str(error))] * 2, (1, 1)
    except ChatError as error:
        return [error.failure] * 2, (1, 1)
    asked = turns_of(found.prompt)
    read_all = [read_response(asked, one, f"{record.name}-{k}", record.roles) for k, one in enumerate(found.responses)]
    return read_all, (found.better, len(read_all) - found.better)


def response_of(prompt: Any, given: Any, name: str, roles: Mapping[str, Any]) -> Solution:
    """`solution_of` with the tools and the system prompt of a row's roles."""
    system = roles.get("system")
    return solution_of(prompt, given, name, roles.get("tools"), system if isinstance(system, str) else "")


def read_response(prompt: Any, given: Any, name: str, roles: Mapping[str, Any]) -> Solution | Failure:
    """`response_of`, or why it cannot be read."""
    try:
        return response_of(prompt, given, name, roles)
    except ChatError as error:
        return error.failure
    except LeftOut as error:
        return Failure(str(error))


def solution_of(prompt: Any, given: Any, name: str, tools: Any, system: str = "") -> Solution:
    """A response to a prompt; either is text or messages, and a response may have the conversation in front of it.

    Args:
        prompt: None: the response has the conversation in front of it.
        given: the response; one message, too.
        name: its id.
        tools: JSON schemas.
        system: in front of a conversation that has no system prompt.

    Raises:
        ChatError: it cannot be read as text, or is a response to another prompt.
        DataError: there is no prompt.
    """
    turn = {"role": "assistant", "content": given} if isinstance(given, str) else given
    said = chat_messages([turn] if isinstance(turn, Mapping) else turn)
    alone = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    asked = () if alone is None else chat_messages(alone)
    if said[0]["role"] in ("assistant", "tool"):
        if prompt is None:
            raise LeftOut("no_prompt")
        said = (*asked, *said)
    elif isinstance(prompt, str):
        turns = [str(m["content"]).strip() for m in said[:-1] if m["role"] == "user"]
        if prompt.strip() not in turns:
            raise ChatError("the conversation of the response does not have the row's prompt in it")
    elif said[: len(asked)] != asked:
        raise ChatError("the conversation of the response does not begin with the row's prompt")
    if system.strip() and said[0]["role"] != "system":
        said = ({"role": "system", "content": system}, *said)
    messages, text = split_answer(said)
    return Solution(
        id=name, question=question_of(messages), steps=(text,), context=context_of(messages), tools=tool_schemas(tools)
    )


def counted_votes(found: Sequence[Comparison]) -> Votes:
    """What repeated judgements of the same two responses to a prompt say; comparisons of other numbers have no say."""
    repeated = _repeated_votes(found)
    shares: dict[int, float] = {}
    left_out: dict[int, str] = {}
    differing: list[float] = []
    majorities: list[float] = []
    for own in repeated:
        times = Counter(own.values())
        wins = times[1] + times[-1]
        if wins > 1:
            differing.append(2 * times[1] * times[-1] / (wins * (wins - 1)))
        if len(times) == 1:
            continue
        most = _majority(times)
        if most is None:
            left_out |= dict.fromkeys(own, "contradicted")
            continue
        share = times[most] / len(own)
        majorities.append(share)
        left_out |= {place: "outvoted" for place, vote in own.items() if vote != most}
        shares |= {place: share for place, vote in own.items() if vote == most}
    disagreement = float(np.mean(differing)) if differing else None
    mean_share = float(np.mean(majorities)) if majorities else None
    return Votes(len(repeated), disagreement, _trials(differing), shares, left_out, len(majorities), mean_share)


def _noise(disagreement: float) -> float:
    """The share e of wrong votes of which two differ with this probability, 2 e (1 - e)."""
    return float((1 - np.sqrt(max(1 - 2 * disagreement, 0.0))) / 2)


def _trials(shares: Sequence[float]) -> float:
    """So many draws of 0 and 1 have a mean with the variance of the mean of these shares."""
    if not shares:
        return 0.0
    mean, spread = float(np.mean(shares)), float(np.var(shares))
    return len(shares) * mean * (1 - mean) / spread if spread else float(len(shares))


def _repeated_votes(found: Sequence[Comparison]) -> list[dict[int, int]]:
    """Of each two responses that were compared several times: place to 1 (the first), -1 (the second) or 0 (a tie)."""
    votes: dict[tuple[str, ...], dict[int, int]] = {}
    for place, one in enumerate(found):
        if len(one.responses) == 2:
            (a, rank_a), (b, rank_b) = sorted(zip((r.text for r in one.responses), one.ranks, strict=True))
            votes.setdefault((one.prompt, a, b), {})[place] = int(np.sign(rank_b - rank_a))
    return [own for own in votes.values() if len(own) > 1]


def _majority(times: Counter[int]) -> int | None:
    """The most frequent of 1 (the first), -1 (the second) and 0 (a tie), which yields to as many wins."""
    if times[1] == times[-1] and times[1] >= times[0]:
        return None
    return max((1, -1, 0), key=lambda vote: times[vote])


def split_prompts(comparisons: Sequence[Comparison], share: float, seed: int) -> tuple[list[int], list[int], int]:
    """Indices to train on and to hold out, with all comparisons of a prompt on one side.

    Held-out prompts that are near-duplicates of a training prompt are left out of both.

    Args:
        comparisons: of any kind.
        share: of the prompts to hold out, 0 to 1.
        seed: of the split, which depends on a prompt's text and the seed alone.

    Returns:
        Training indices, held-out indices, and how many comparisons were left out.
    """
    keys = [" ".join(_WORD.findall(one.prompt.casefold())) or one.prompt for one in comparisons]
    held = {
        key for key in set(keys) if int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()) < share * 2**256
    }
    near = near_duplicates(sorted(held), sorted(set(keys) - held))
    train = [k for k, key in enumerate(keys) if key not in held]
    val = [k for k, key in enumerate(keys) if key in held and key not in near]
    return train, val, len(keys) - len(train) - len(val)


def near_duplicates(texts: Iterable[str], others: Iterable[str]) -> set[str]:
    """The texts whose sets of word triples overlap with those of another by `NEAR` (Jaccard) or more.

    Candidates share one of the smallest hashes of their triples (bottom-k sketches, Broder 1997).
    """
    index: dict[int, list[frozenset[int]]] = {}
    for other in others:
        triples = _triples(other)
        for smallest in sorted(triples)[:_SKETCH]:
            index.setdefault(smallest, []).append(triples)
    found = set()
    for text in texts:
        own = _triples(text)
        candidates: Iterator[frozenset[int]] = (c for h in sorted(own)[:_SKETCH] for c in index.get(h, ()))
        if any(len(own & c) >= NEAR * len(own | c) for c in candidates):
            found.add(text)
    return found


def _triples(text: str) -> frozenset[int]:
    words = _WORD.findall(text.casefold())
    runs = zip(words, words[1:], words[2:], strict=False) if len(words) > 2 else [tuple(words)]
    return frozenset(int.from_bytes(hashlib.blake2b(" ".join(r).encode(), digest_size=8).digest()) for r in runs)
