"""Preferences on disk: which of several responses to a prompt people, or a model, found better.

A row's layout is recognised by its columns (`LAYOUTS` has the data sets in which each was read); `columns` maps other
names. What cannot be used is left out and counted by reason, never used in silence.

    found = read_preferences("pairs.jsonl")
    found = read_preferences("votes.parquet", columns={"prompt": "question", "response_1": "left", "winner": "vote"})
    print(len(found.comparisons), dict(found.left_out), found.label_noise)
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.reading.chats import ChatError, chat_messages, context_of, question_of, split_answer, tool_schemas
from guerdon.reading.containers import has_rows
from guerdon.reading.data_sets import data_parts
from guerdon.reading.fields import RowFields, is_beyond_float
from guerdon.types import Failure

ATTRIBUTES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")  # HelpSteer2 (2406.08673)
NEAR = 0.8  # Jaccard similarity of word triples from which two prompts count as the same
_SKETCH = 12  # hashes of a prompt by which near-duplicates find each other
PROMPTS = (  # columns of a prompt, the first that has one
    "prompt", "instruction", "question", "query", "input", "problem", "context", "history", "conversations",
    "conversation", "messages",
)  # fmt: skip
_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")
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
    """

    id: str
    responses: tuple[Solution, ...]
    ranks: tuple[int, ...]
    margin: float | None = None
    label: bool | None = None
    attributes: Mapping[str, float] = field(default_factory=dict)
    subset: str = ""

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
        repeated: pairs of responses that were judged more than once.
        contradicted: of these, the pairs whose judgements differ.
        benchmark: whose test set this is (`benchmark_of`).
    """

    comparisons: tuple[Comparison, ...]
    left_out: Mapping[str, int]
    repeated: int = 0
    contradicted: int = 0
    benchmark: str | None = None

    @property
    def label_noise(self) -> float | None:
        """As `label_noise`."""
        return label_noise(self.repeated, self.contradicted)


def label_noise(repeated: int, contradicted: int) -> float | None:
    """Share of wrong judgements, if each is wrong independently; None where no pair was judged twice.

    Two judgements with error rate e differ with probability 2 e (1 - e).
    """
    if not repeated:
        return None
    return float((1 - np.sqrt(max(1 - 2 * contradicted / repeated, 0.0))) / 2)


class _Row(NamedTuple):
    prompt: Any
    responses: Sequence[Any]
    ranks: Sequence[int]
    margin: float | None = None
    label: bool | None = None
    attributes: Mapping[str, float] = {}


class _LeftOut(DataError):
    """A row that says nothing about which response is better; its text is the reason."""


class RowLayout(NamedTuple):
    """Columns that tell a layout, how its rows are read, and a data set in which they were found."""

    keys: tuple[str, ...]
    read: Callable[[RowFields], _Row]
    seen_in: str


def _number(fields: RowFields, *keys: str) -> float | None:
    """The first of these columns that has a number."""
    for key in keys:
        value = fields.get(key, (int, float), "a number", default=None)
        if _is_finite(value):
            return float(value)
    return None


def _is_finite(value: Any) -> bool:
    """Whether a value is a finite number that a float can hold."""
    return isinstance(value, int | float) and not is_beyond_float(value) and math.isfinite(value)


def _chosen(fields: RowFields) -> _Row:
    """`chosen` and `rejected`: texts, messages, or lists of either; the prompt may be their common beginning."""
    chosen, rejected = (responses_of(fields.row[key], f"{fields.where}: {key}") for key in ("chosen", "rejected"))
    margin = _number(fields, "margin")
    better = _number(fields, "score_chosen", "chosen_score", "chosen_rating")
    worse = _number(fields, "score_rejected", "rejected_score", "rejected_rating")
    if margin is None and better is not None and worse is not None:
        margin = better - worse
    if margin is not None and margin < 0:
        raise _LeftOut("chosen_scored_lower")
    prompt, responses = prompt_of(fields.row), [*chosen, *rejected]
    if prompt is None and all(isinstance(one, str) for one in responses):
        responses = [_turns(one) for one in responses]
        if all(isinstance(one, str) for one in responses):
            prompt, responses = _common(responses)
    elif isinstance(prompt, str) and all(isinstance(one, str) and one.startswith(prompt) for one in responses):
        responses = [one[len(prompt) :] for one in responses]
    return _Row(prompt, responses, [0] * len(chosen) + [1] * len(rejected), margin)


def prompt_of(row: Mapping[str, Any]) -> Any:
    """The prompt of a row, text or messages; None where it has none.

    `instruction` and `input` are one prompt, as in Alpaca's layout; WebGPT's question is a map.
    """
    key = next((key for key in PROMPTS if row.get(key)), None)
    found = None if key is None else row[key]
    if isinstance(found, Mapping):
        found = found.get("full_text")
    if key == "instruction" and isinstance(more := row.get("input"), str) and more.strip():
        found = f"{found}\n{more}"
    return found


def responses_of(given: Any, where: str) -> list[Any]:
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
    raise DataError(f"{where} must be text, chat messages, or a list of either, this is {str(given)[:80]!r}")


def _turns(text: str) -> Any:
    """Messages of a text with the turns of HH-RLHF (Human: and Assistant: after a blank line); else the text itself.

    The open turn of the assistant at the end of a prompt (Nectar) is not a message.
    """
    parts = _TURN.split(text)
    if parts[0] or len(parts) < 4:
        return text
    roles = {"Human": "user", "Assistant": "assistant"}
    found = [{"role": roles[who], "content": said} for who, said in zip(parts[1::2], parts[2::2], strict=True)]
    return found[:-1] if not found[-1]["content"].strip() else found


def _common(texts: Sequence[str]) -> tuple[str, list[str]]:
    """The common beginning of texts up to the end of a word, and what follows it."""
    low, high = min(texts), max(texts)
    end = next((k for k, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    while end and not low[end - 1].isspace():
        end -= 1
    if not low[:end].strip():
        raise _LeftOut("no_prompt")
    return low[:end].rstrip(), [text[end:] for text in texts]


_FIRST = frozenset(("model_a", "a", "a>b", "a>>b", "response_a", "response_1", "first", "left"))
_SECOND = frozenset(("model_b", "b", "b>a", "b>>a", "response_b", "response_2", "second", "right"))
_TIED = frozenset(("tie", "tie (bothbad)", "both_bad", "bothbad", "both", "equal", "same", "a=b"))


def _two(first: str, second: str, choice: str, seen_in: str, *, index: bool = False, flip: bool = False) -> RowLayout:
    """Layout of two responses and a preference.

    Args:
        first, second, choice: columns.
        seen_in: as of `RowLayout`.
        index: the preference is the position of the better one, 0 or 1; else a name (`model_a`, `A>B`, `tie`) or a
            number whose sign says it: below 0 the first is better.
        flip: positions are counted from the second.
    """

    def read(fields: RowFields) -> _Row:
        given = fields.get(choice, (str, int, float), "a name or a number")
        word = given.strip().casefold() if isinstance(given, str) else None
        margin: float | None = None
        if word is not None and word in _FIRST | _SECOND | _TIED:
            sign = (word in _SECOND) - (word in _FIRST)
        elif not _is_finite(given) or (index and given not in (0, 1)):
            raise _LeftOut("unreadable_choice")
        elif index:
            sign = 1 if (given == 1) != flip else -1
        else:
            sign = int(np.sign(given))
            margin = abs(float(given))
        return _Row(
            prompt_of(fields.row), [fields.row[first], fields.row[second]], [int(sign > 0), int(sign < 0)], margin
        )

    return RowLayout((first, second, choice), read, seen_in)


def _scored_two(fields: RowFields) -> _Row:
    """Two responses with a score each."""
    a, b = (fields.get(key, (int, float), "a number") for key in ("score_0", "score_1"))
    if not (_is_finite(a) and _is_finite(b)):
        raise _LeftOut("unreadable_score")
    responses = [fields.row["answer_0"], fields.row["answer_1"]]
    return _Row(prompt_of(fields.row), responses, [int(b > a), int(a > b)], abs(float(a - b)))


def _one_hot(fields: RowFields) -> _Row:
    """Prompts and responses of all turns, as lists in JSON, and a column per winner."""
    a, b = (fields.get(f"winner_model_{k}", (int, float), "0 or 1") for k in "ab")
    asked, *answers = (fields.from_json(key) for key in ("prompt", "response_a", "response_b"))
    if not all(isinstance(one, list) and one for one in (asked, *answers)):
        raise _LeftOut("no_turns")
    responses = [
        [{"role": role, "content": text} for turn in zip(asked, own, strict=False)
         for role, text in zip(("user", "assistant"), turn, strict=True)]
        for own in answers
    ]  # fmt: skip
    return _Row(None, responses, [int(b > a), int(a > b)])


def _listed(column: str, texts: tuple[str, ...], values: tuple[str, ...], seen_in: str) -> RowLayout:
    """Layout of a list of responses, as maps with a text and a rank or score, or next to a column of these."""

    def read(fields: RowFields) -> _Row:
        items = fields.get(column, (list, tuple), "a list of responses")
        beside = next((key for key in ("ranks", "scores", "ratings", "rating") if fields.row.get(key) is not None), "")
        if items and all(isinstance(one, Mapping) for one in items):
            given = [next((one[k] for k in texts if one.get(k) is not None), None) for one in items]
            named = next((k for k in values if items[0].get(k) is not None), "")
            numbers = [one.get(named) for one in items]
        else:
            given, named = list(items), beside
            numbers = list(fields.get(beside, (list, tuple), "a list of numbers", ()))
        if len(numbers) != len(given) or not all(map(_is_finite, numbers)):
            raise _LeftOut("no_rank")
        order = numbers if "rank" in named else [-v for v in numbers]
        ranks = [sorted(set(order)).index(v) for v in order]
        return _Row(prompt_of(fields.row), given, ranks)

    return RowLayout((column,), read, seen_in)


def _unpaired(fields: RowFields) -> _Row:
    label = bool(fields.get("label", (bool, int), "true or false"))
    return _Row(prompt_of(fields.row), [fields.row["completion"]], [0], label=label)


def _rated(fields: RowFields) -> _Row:
    ratings = {key: value for key in ATTRIBUTES if (value := _number(fields, key)) is not None}
    return _Row(prompt_of(fields.row), [fields.row["response"]], [0], attributes=ratings)


LAYOUTS: Mapping[str, RowLayout] = {
    "chosen": RowLayout(
        ("chosen", "rejected"), _chosen, "TRL, HH-RLHF, UltraFeedback binarized, RewardBench, RM-Bench",
    ),
    "signed": _two("response1", "response2", "overall_preference", "HelpSteer3"),
    "strength": _two("response_1", "response_2", "preference_strength", "HelpSteer2 preference"),
    "safe": _two("response_0", "response_1", "better_response_id", "PKU-SafeRLHF", index=True),
    "battle": _two("conversation_a", "conversation_b", "winner", "Chatbot Arena"),
    "votes": _two("response_1", "response_2", "winner", "PPE"),
    "one_hot": RowLayout(
        ("prompt", "response_a", "response_b", "winner_model_a", "winner_model_b"), _one_hot, "LMSYS on Kaggle",
    ),
    "judged": _two("response_A", "response_B", "label", "JudgeBench"),
    "replies": _two("human_ref_A", "human_ref_B", "labels", "SHP", index=True, flip=True),
    "scored": RowLayout(("answer_0", "answer_1", "score_0", "score_1"), _scored_two, "WebGPT comparisons"),
    "answers": _listed("answers", ("answer",), ("rank",), "Nectar"),
    "completions": _listed(
        "completions", ("response", "completion", "text"), ("rank", "overall_score", "score"), "UltraFeedback",
    ),
    "responses": _listed("responses", ("response", "text"), ("rank", "score"), "ranked lists"),
    "unpaired": RowLayout(("completion", "label"), _unpaired, "KTO"),
    "rated": RowLayout(("prompt", "response", ATTRIBUTES[0]), _rated, "HelpSteer2"),
}  # fmt: skip


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
    own = Path(data).stem if has_rows(Path(data)) else Path(data).name.partition(":")[0]
    return next((name for name, known in _BENCHMARKS.items() if re.search(known, own, re.IGNORECASE)), None)


def is_preference(row: Any) -> bool:
    """Whether a row has the columns of a layout."""
    return _layout(row) is not None


def _name_of(row: Mapping[str, Any], name: str) -> str:
    """The id of a row; where it has none, the given name."""
    for key in ("id", "pair_id", "question_id"):
        if row.get(key) is not None:
            return str(row[key])
    return name


def _without_layout(row: Any, where: str) -> str:
    """Why a row without a known layout is left out, where it lacks no more than a value.

    Raises:
        DataError: it has other columns than all layouts.
    """
    if isinstance(row, Mapping) and any(row.keys() >= set(one.keys) for one in LAYOUTS.values()):
        return "no_value"
    columns = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
    known = "; ".join(f"{', '.join(one.keys)} ({one.seen_in})" for one in LAYOUTS.values())
    raise DataError(
        f"no known layout of preferences, found {columns[:200]}; known are {known}. Map other names by "
        "columns: {chosen: ..., rejected: ...}",
        where=where,
    )


def _layout(row: Any) -> RowLayout | None:
    if not isinstance(row, Mapping):
        return None
    return next((one for one in LAYOUTS.values() if all(row.get(key) is not None for key in one.keys)), None)


def read_preferences(data: str, *, columns: Mapping[str, str] | None = None, train: bool = False) -> Preferences:
    """The comparisons of a file, a folder or a hub data set.

    Args:
        data: JSONL, JSON, Parquet, CSV, a folder of them or of the `datasets` library, or a hub id.
        columns: names that the layouts use, and what these columns are called in the data.
        train: of several splits, only `train`.

    Raises:
        DataError: the data cannot be read, a row has no known layout, or no row can be used.
    """
    found: list[Comparison] = []
    left_out: Counter[str] = Counter()
    renamed = {own: name for name, own in (columns or {}).items()}
    benchmark = None
    for part in data_parts(data, train=train):
        for number, (where, row) in enumerate(part.rows()):
            if isinstance(row, DataError):
                raise row
            benchmark = benchmark or benchmark_of(data, row)
            if renamed and isinstance(row, Mapping):
                row = {renamed.get(key, key): value for key, value in row.items()}
            one = comparison(row, where, f"{part.name}-{number}", part.subset or "")
            if isinstance(one, str):
                left_out[one] += 1
            else:
                found.append(one)
    gone, repeated, contradicted = contradictions(found)
    kept = [one for place, one in enumerate(found) if place not in gone]
    left_out.update({"contradicted": len(gone)} if gone else {})
    if not kept:
        why = f": {', '.join(f'{n} {reason}' for reason, n in left_out.items())}" if left_out else ""
        raise DataError(f"there is no comparison that can be used{why}", where=data)
    return Preferences(tuple(kept), dict(left_out), repeated, contradicted, benchmark)


def comparison(row: Any, where: str, name: str, subset: str = "", *, every: bool = False) -> Comparison | str:
    """One row as a comparison, or the reason why it cannot be used.

    Args:
        row: with the columns of a layout.
        where: its place, for messages.
        name: its id where it has none.
        subset: its part of the data where it names none.
        every: keep empty and equal answers, which the rules of benchmarks count.

    Raises:
        DataError: it has no known layout, or a column that cannot be read.
    """
    layout = _layout(row)
    if layout is None:
        return _without_layout(row, where)
    try:
        read = layout.read(RowFields(row, where))
        name = _name_of(row, name)
        asked = _turns(read.prompt) if isinstance(read.prompt, str) and not every else read.prompt
        responses = tuple(response_of(asked, one, f"{name}-{k}", row) for k, one in enumerate(read.responses))
    except _LeftOut as error:
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
    subset = str(row.get("subset") or row.get("domain") or row.get("source") or subset)
    return Comparison(name, responses, tuple(read.ranks), read.margin, read.label, read.attributes, subset)


def responses_in(row: Any, where: str, name: str) -> tuple[list[Solution | Failure], tuple[int, int]]:
    """The responses of a row, in its order, whatever the judgement says; numbers of those ranked first and of others.

    What cannot be read is a `Failure`.

    Raises:
        DataError: it has no known layout, or a column that cannot be read.
    """
    layout = _layout(row)
    if layout is None:
        raise DataError("no known layout of preferences", where=where)
    try:
        read = layout.read(RowFields(row, where))
    except _LeftOut as error:
        return [Failure(str(error))] * 2, (1, 1)
    asked = _turns(read.prompt) if isinstance(read.prompt, str) else read.prompt
    found = [read_response(asked, one, f"{name}-{k}", row) for k, one in enumerate(read.responses)]
    best = sum(rank == 0 for rank in read.ranks)
    return found, (best, len(read.ranks) - best)


def response_of(prompt: Any, given: Any, name: str, row: Mapping[str, Any]) -> Solution:
    """`solution_of` with the row's tools and system prompt."""
    system = next((row[key] for key in ("system", "system_prompt") if isinstance(row.get(key), str)), "")
    return solution_of(prompt, given, name, row.get("tools"), system)


def read_response(prompt: Any, given: Any, name: str, row: Mapping[str, Any]) -> Solution | Failure:
    """`response_of`, or why it cannot be read."""
    try:
        return response_of(prompt, given, name, row)
    except ChatError as error:
        return error.failure
    except _LeftOut as error:
        return Failure(str(error))


def solution_of(prompt: Any, given: Any, name: str, tools: Any, system: str = "") -> Solution:
    """A response to a prompt; either is text or messages, and a response may have the conversation in front of it.

    Args:
        prompt: None: the response has the conversation in front of it.
        given: the response.
        name: its id.
        tools: JSON schemas.
        system: in front of a conversation that has no system prompt.

    Raises:
        ChatError: it cannot be read as text, or is a response to another prompt.
        DataError: there is no prompt.
    """
    said = chat_messages([{"role": "assistant", "content": given}] if isinstance(given, str) else given)
    alone = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    asked = () if alone is None else chat_messages(alone)
    if said[0]["role"] in ("assistant", "tool"):
        if prompt is None:
            raise _LeftOut("no_prompt")
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


def contradictions(found: Sequence[Comparison]) -> tuple[set[int], int, int]:
    """Indices of the pairs that were judged in both directions; numbers of repeated and of contradicted pairs."""
    choices: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for place, one in enumerate(found):
        if len(one.responses) == 2:
            (a, rank_a), (b, rank_b) = sorted(zip((r.text for r in one.responses), one.ranks, strict=True))
            choices.setdefault((one.prompt, a, b), []).append((place, int(np.sign(rank_a - rank_b))))
    repeated = [v for v in choices.values() if len(v) > 1]
    against = [v for v in repeated if len({sign for _, sign in v}) > 1]
    return {place for v in against for place, _ in v}, len(repeated), len(against)


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
