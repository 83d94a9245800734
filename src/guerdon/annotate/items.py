"""What people are asked to judge: episodes, responses, pairs of responses, or solutions in steps, of any data.

The name of an item follows from its content, so that a judgement never moves to another item.

    items = read_items("rollouts.jsonl", None)
    items.kind, len(items), items.shown(0)["prompt"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from guerdon.auditing.conversations import asked_and_said, messages_of, written
from guerdon.auditing.labels import content_id
from guerdon.auditing.logs import read_log
from guerdon.auditing.rows import Numbers, Rows, Texts
from guerdon.episodes.index import Entry, load_index
from guerdon.episodes.layout import INFO_PATH, Info, load_info
from guerdon.episodes.preferences import LeftOut, given, judged, read_response
from guerdon.episodes.read import cameras_of, read_entries, read_episodes
from guerdon.episodes.solution_files import solution_of, solutions_in
from guerdon.episodes.solution_formats import NoLabelsError, from_roles
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError, did_you_mean
from guerdon.evaluation.by_path import FIRST_ROWS, kind_of_rows
from guerdon.models.scores import episode_value, score_episodes, score_solutions, solution_value
from guerdon.reading.chats import ChatError
from guerdon.reading.reader import Record, read
from guerdon.types import Episode, Failure, RewardModel, Score

Kind = Literal["episodes", "responses", "pairs", "steps"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ALL_TEXTS = 100_000_000  # rows of a log whose texts are read
_BY_DATA: Mapping[str, Kind] = {
    "pairs": "pairs", "labels": "responses", "process_bench": "steps", "prm_bench": "steps",
}  # fmt: skip
_Columns = str | Mapping[str, str] | None


@dataclass(eq=False)
class Items:
    """What can be judged.

    Attributes:
        kind: of all items.
        data: as the user named it.
        ids: of each item.
        rows: the row of each in the data, from 0: of pairs that of the first response, of episodes their number.
        partners: of pairs of a log, the row of the second response.
        shows: what is shown of each, without what a person must not know.
        references: the reference answer of each; None: the data has none.
        truth: what the data says of each, as judgements are numbers; NaN: nothing.
        rewards: of each item by the name of a column; NaN is missing.
        solutions: of items in steps.
        left_out: rows that cannot be judged, by reason.
        info: of episodes, their data set.
        entries: of episodes, their rows of its index.
    """

    kind: Kind
    data: str
    ids: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    partners: list[int] = field(default_factory=list)
    shows: list[dict[str, Any]] = field(default_factory=list)
    references: list[str | None] = field(default_factory=list)
    truth: list[float] = field(default_factory=list)
    rewards: dict[str, Numbers] = field(default_factory=dict)
    solutions: list[Solution] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    info: Info | None = None
    entries: list[Entry] = field(default_factory=list)
    _named: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, row: int, show: dict[str, Any], name: str, truth: float | None, reference: str | None = None) -> None:
        """Add an item; of those with equal names the later ones are numbered."""
        self._named[name] += 1
        again = self._named[name]
        self.ids.append(name if again == 1 else f"{name}-{again}")
        self.rows.append(row)
        self.shows.append(show)
        self.truth.append(np.nan if truth is None else truth)
        self.references.append(reference or None)

    def shown(self, place: int, *, swapped: bool = False, with_reference: bool = False) -> dict[str, Any]:
        """What is sent of an item; the responses of a pair in the order in which they are shown."""
        show = dict(self.shows[place])
        if self.kind == "episodes":
            return show
        if self.kind == "pairs":
            first, second = show.pop("responses")
            show |= {"first": second, "second": first} if swapped else {"first": first, "second": second}
        return {**show, "reference": self.references[place] if with_reference else None}

    def scored(self, model: RewardModel) -> tuple[Numbers, Numbers]:
        """The value of each item by a model, and the spread over its members; NaN where there is none.

        The value of a pair is how much better its first response is.

        Raises:
            ConfigError: the model judges something else.
            DataError: as `score_solutions`.
        """
        if (self.kind == "episodes") == (model.info.modality == "text"):
            raise ConfigError(
                f"the reward model {model.info.name} does not judge {self.kind}; name another --model", key="--model"
            )
        each = self._episode_scores(model) if self.kind == "episodes" else self._text_scores(model)
        values, spreads = np.full(len(self), np.nan), np.full(len(self), np.nan)
        for place, found in each.items():
            values[place] = found[0][0] - found[1][0] if len(found) == 2 else found[0][0]
            spreads[place] = float(np.sqrt(sum(spread**2 for _, spread in found)))
        return values, spreads

    def _text_scores(self, model: RewardModel) -> dict[int, list[tuple[float, float]]]:
        """Value and spread of each response of each item."""
        asked = [(place, one) for place in range(len(self)) for one in self._responses(place)]
        scores = iter(score_solutions(model, [one for _, one in asked if isinstance(one, Solution)], what="to judge"))
        found: dict[int, list[tuple[float, float]]] = {}
        for place, one in asked:
            score = Score(failure=one) if isinstance(one, Failure) else next(scores)
            value = solution_value(score, "min")
            found.setdefault(place, []).append(_with_spread(None if isinstance(value, Failure) else value, score))
        return found

    def _responses(self, place: int) -> list[Solution | Failure]:
        """The responses of an item, as models read them."""
        if self.kind == "steps":
            return [self.solutions[place]]
        show = self.shows[place]
        turns = [{"role": role, "content": content} for role, content in show["messages"] or ()]
        said = show["responses"] if self.kind == "pairs" else [show["response"]]
        return [read_response(turns or show["prompt"], one, self.ids[place], {}) for one in said]

    def _episode_scores(self, model: RewardModel) -> dict[int, list[tuple[float, float]]]:
        """Value and spread of each episode that can be read."""
        place = {entry.id: k for k, entry in enumerate(self.entries)}
        found = {}
        for episode in read_episodes(self.data, with_frames=model.info.modality == "image"):
            score = score_episodes(model, [episode])[0]
            found[place[episode.id]] = [_with_spread(episode_value(score, "success"), score)]
        return found


def _with_spread(value: float | None, score: Score) -> tuple[float, float]:
    return (np.nan if value is None else value, np.nan if score.spread is None else score.spread)


def read_items(data: str, kind: str | None, *, columns: _Columns = None, seed: int = 0) -> Items:
    """What can be judged in some data.

    Args:
        data: a LeRobot data set, a log, or rows of any layout that is read.
        kind: what is judged; None: as the data says.
        columns: see `guerdon.reading.reader.read`.
        seed: of the pairs that are drawn from more than two responses.

    Raises:
        ConfigError: there is no such kind, or the data is none of it.
        DataError: it cannot be read, or there is nothing to judge.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"--as {kind}: choose one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}", key="--as")
    is_data_set = Path(data, INFO_PATH).is_file()
    if kind is not None and is_data_set != (kind == "episodes"):
        what = "holds episodes of a robot" if is_data_set else "is no LeRobot data set"
        raise ConfigError(f"--as {kind}: {data} {what}; leave out --as", key="--as")
    if is_data_set and columns is not None:
        raise ConfigError(f"--columns is for rows of text, and {data} holds episodes; remove it", key="--columns")
    chosen = next((one for one in KINDS if one == kind), "episodes" if is_data_set else _kind_of(data, columns))
    items = Items(chosen, data)
    _READERS[chosen](items, columns, np.random.default_rng(seed))
    if not len(items):
        why = ", ".join(f"{count} x {reason}" for reason, count in items.left_out.items())
        raise DataError(f"nothing to judge: {why or 'there is no row in it'}", where=data)
    return items


def _kind_of(data: str, columns: _Columns) -> Kind:
    """What rows are judged as; of a log its responses."""
    try:
        return _BY_DATA[kind_of_rows(read(data, columns=columns, first=FIRST_ROWS))]
    except DataError:
        return "responses"


def _read_episodes(items: Items, columns: _Columns, rng: np.random.Generator) -> None:
    """The episodes of a data set, those that cannot be read included: they can be discarded."""
    root = Path(items.data)
    items.info = info = load_info(root)
    items.entries, skipped = load_index(root, info)
    items.left_out.update(one.reason for one in skipped)
    cameras = cameras_of(root, info)
    known = _rows_of_episodes(root, info, items.entries)
    names = dict.fromkeys(name for _, found in known.values() for name in found)
    items.rewards = {name: np.full(len(items.entries), np.nan) for name in names}
    for place, entry in enumerate(items.entries):
        digest, values = known.get(entry.id, (b"", {}))
        for name, value in values.items():
            items.rewards[name][place] = value
        shown = [name for name, key in cameras.items() if info.features[key]["dtype"] != "video" or key in entry.videos]
        show = {"episode": entry.index, "task": entry.task, "rows": entry.length, "cameras": shown, "fps": info.fps}
        outcome = values.get(_OUTCOME)
        name = content_id(entry.id, entry.task, str(entry.length), digest.hex())
        items.add(entry.index, show, name, outcome)
    items.truth = list(items.rewards.pop(_OUTCOME, np.array(items.truth)))


_OUTCOME = "outcome"


def _rows_of_episodes(root: Path, info: Info, entries: Sequence[Entry]) -> dict[str, tuple[bytes, dict[str, float]]]:
    """Of each episode whose rows can be read a hash of them, its outcome and the value of each column of rewards."""
    found: dict[str, tuple[bytes, dict[str, float]]] = {}
    try:
        for episode in read_entries(root, info, entries):
            found[episode.id] = _digest(episode), _values_of(episode)
    except DataError:  # nothing but pictures, or nothing: said where a picture is asked for
        return {}
    return found


def _digest(episode: Episode) -> bytes:
    """A hash of what the robot saw and did; rewards and outcomes may be added later."""
    digest = blake2b(digest_size=8)
    for array in (episode.states, episode.actions):
        digest.update(b"" if array is None else array.tobytes())
    return digest.digest()


def _values_of(episode: Episode) -> dict[str, float]:
    found = {} if episode.rewards is None else {"next.reward": float(episode.rewards.sum())}
    return found if episode.outcome is None else {**found, _OUTCOME: float(episode.outcome)}


def _read_responses(items: Items, columns: _Columns, rng: np.random.Generator) -> None:
    """The responses of a log, or of rows without a reward."""
    rows, why = _log(items.data, columns)
    if rows is None:
        _responses_of_rows(items, columns, why)
        return
    texts = rows.texts
    assert texts is not None
    items.left_out.update(rows.bad)
    kept = _with_response(items, texts)
    for m in kept:
        row, reference = int(texts.row_M[m]), None if texts.truths is None else texts.truths[m]
        truth = None if rows.truth_N is None else float(rows.truth_N[row])
        prompt, response = texts.prompts[m], texts.responses[m]
        show = {"prompt": prompt, "messages": _asked_turns(texts, m), "response": response}
        items.add(row, show, content_id(prompt, response), truth, reference)
    items.rewards = {name: values[items.rows] for name, values in _rewards_of(rows).items()}


def _with_response(items: Items, texts: Texts) -> list[int]:
    """Places of the rows of a log with a response; empty ones are left out."""
    kept = [m for m, response in enumerate(texts.responses) if response.strip()]
    items.left_out.update(
        {"empty_response": len(texts.responses) - len(kept)} if len(kept) < len(texts.responses) else {}
    )
    return kept


def _log(data: str, columns: _Columns) -> tuple[Rows | None, str]:
    """The rows of a log with its texts; None, and why, where it has no rewards or no responses."""
    try:
        rows = read_log(Path(data), columns=columns, sample=ALL_TEXTS)
    except DataError as error:
        return None, str(error)
    has_texts = rows.texts is not None and len(rows.texts.row_M) > 0
    return (rows, "") if has_texts else (None, f"{data}: {rows.layout} has no responses")


def _rewards_of(rows: Rows) -> dict[str, Numbers]:
    """The columns of rewards of a log that have a number."""
    found = {"reward": rows.reward_N, **rows.rewards}
    return {name: values for name, values in found.items() if np.isfinite(values).any()}


def _asked_turns(texts: Texts, m: int) -> list[tuple[str, str]] | None:
    """The conversation that a response of a log answers; None where that is one text."""
    turns = [] if texts.messages is None else texts.messages[m][:-1]
    return _turns(turns)


def _turns(turns: Sequence[Mapping[str, str]]) -> list[tuple[str, str]] | None:
    """Role and content of each turn; None where there is only that of a user."""
    if not turns or (len(turns) == 1 and turns[0]["role"] == "user"):
        return None
    return [(one["role"], one["content"]) for one in turns]


def _responses_of_rows(items: Items, columns: _Columns, why: str) -> None:
    """The responses of rows that are no log.

    Raises:
        DataError: they have none.
    """
    reading = read(items.data, columns=columns)
    reading.need_rows()
    has_response = reading.plan.has("response")
    if not has_response and not reading.plan.has("messages"):
        raise DataError(f"nothing to judge: no column has responses, solutions in steps or pairs ({why})")
    for row, record in enumerate(reading.records()):
        try:
            asked, said = asked_and_said(record.roles, has_response=has_response)
        except ChatError as error:
            items.left_out[error.failure.reason] += 1
            continue
        prompt, response = written(asked), written(said)
        if not response.strip():
            items.left_out["empty_response"] += 1
            continue
        label, reference = record.roles.get("label"), record.roles.get("reference")
        show = {"prompt": prompt, "messages": _turns(messages_of(asked)), "response": response}
        truth = float(label) if isinstance(label, int | float) else None
        items.add(row, show, content_id(prompt, response), truth, None if reference is None else written(reference))


def _read_pairs(items: Items, columns: _Columns, rng: np.random.Generator) -> None:
    """Pairs of the responses of a row; of a log, of the responses of a group."""
    rows, why = _log(items.data, columns)
    if rows is not None and rows.group_N is not None:
        return _pairs_of_groups(items, rows, rng)
    reading = read(items.data, columns=columns)
    reading.need_rows()
    plan = reading.plan
    if not (plan.has("chosen", "rejected") or plan.has("first", "second") or plan.has("responses")):
        groups = f"; {why}" if why else "; this log has no groups of responses to one prompt"
        raise ConfigError(f"--as pairs: {items.data} has no rows with several responses{groups}", key="--as")
    for row, record in enumerate(reading.records()):
        try:
            found = given(record, plan)
        except (LeftOut, ChatError) as error:
            items.left_out[str(error)[:60]] += 1
            continue
        texts = [written(one) for one in found.responses]
        both = [0, 1] if len(texts) == 2 else sorted(rng.permutation(len(texts))[:2].tolist())
        if len(both) < 2 or texts[both[0]] == texts[both[1]]:
            items.left_out["no two different responses"] += 1
            continue
        prompt, said = written(found.prompt), [texts[k] for k in both]
        show = {"prompt": prompt, "messages": _turns(messages_of(found.prompt)), "responses": said}
        items.add(row, show, content_id(prompt, *said), _preferred(record, plan, both))
    return None


def _preferred(record: Record, plan: Any, both: Sequence[int]) -> float | None:
    """What a row says of two of its responses: 1 the first is better, 0 the second, 0.5 neither; None: nothing."""
    try:
        ranks = judged(record, plan).ranks
    except (LeftOut, ChatError):
        return None
    first, second = (ranks[k] for k in both)
    return 0.5 if first == second else float(first < second)


def _pairs_of_groups(items: Items, rows: Rows, rng: np.random.Generator) -> None:
    """Pairs of different responses of one group, each response in one pair at most."""
    texts = rows.texts
    assert texts is not None
    assert rows.group_N is not None
    places: dict[int, list[int]] = {}
    for m in _with_response(items, texts):
        places.setdefault(int(rows.group_N[texts.row_M[m]]), []).append(m)
    for members in places.values():
        order = [members[k] for k in rng.permutation(len(members))]
        for a, b in list(pairwise(order))[::2]:
            if texts.responses[a] == texts.responses[b]:
                items.left_out["equal responses"] += 1
                continue
            prompt, said = texts.prompts[a], [texts.responses[a], texts.responses[b]]
            show = {"prompt": prompt, "messages": _asked_turns(texts, a), "responses": said}
            first, second = int(texts.row_M[a]), int(texts.row_M[b])
            truth = None if rows.truth_N is None else _better(rows.truth_N[first], rows.truth_N[second])
            items.partners.append(second)
            items.add(first, show, content_id(prompt, *said), truth, None if texts.truths is None else texts.truths[a])
    if len(items):
        items.rewards = {
            name: values[items.rows] - values[items.partners] for name, values in _rewards_of(rows).items()
        }


def _better(first: float, second: float) -> float:
    """1 where the first of two numbers is larger, 0 the second, 0.5 where they are equal; NaN: one is unknown."""
    return float((np.sign(first - second) + 1) / 2)


def _read_steps(items: Items, columns: _Columns, rng: np.random.Generator) -> None:
    """Solutions in steps, labelled or not."""
    reading = read(items.data, columns=columns)
    reading.need_rows()
    for row, (record, found) in enumerate(solutions_in(reading)):
        one = _unlabelled(record, reading.plan) if isinstance(found, NoLabelsError) else found
        if isinstance(one, DataError):
            why = str(one).partition(": ")[2].partition(";")[0]
            items.left_out[why[:80]] += 1
            continue
        turns = _turns([{"role": m["role"], "content": str(m["content"])} for m in one.context])
        show = {"prompt": one.question, "messages": turns, "steps": list(one.steps)}
        truth = one.first_error
        items.solutions.append(one)
        items.add(row, show, content_id(one.asked, *one.steps), truth, one.ground_truth)


def _unlabelled(record: Record, plan: Any) -> Solution | DataError:
    """A solution whose labels are missing."""
    try:
        return solution_of(record, plan, labelled=False)
    except NoLabelsError:
        try:
            return from_roles({**record.roles, "step_labels": None}, record.where, record.name)
        except (DataError, KeyError):
            return DataError("its steps cannot be read")
    except DataError as error:
        return error


_READERS: Mapping[Kind, Callable[[Items, _Columns, np.random.Generator], None]] = {
    "episodes": _read_episodes, "responses": _read_responses, "pairs": _read_pairs, "steps": _read_steps,
}  # fmt: skip
