"""One folder of judgements: what was asked for when it was begun, its items in their order, and who judges.

with open_session(AnnotateSettings("rollouts.jsonl", out=Path("rollouts.labels"))) as session:
    session.words, session.setup_for("")
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.annotate.criteria import NO_JUDGES, JudgeCriteria, read_criteria, take_criteria
from guerdon.annotate.draws import CHOICES, draw_order, draw_twice, usefulness
from guerdon.annotate.items import Items, read_items
from guerdon.annotate.judgements import Ask, Judgement, Judgements, words_of
from guerdon.annotate.pictures import EpisodePictures
from guerdon.auditing.logs import read_log
from guerdon.auditing.rows import Flags, Numbers
from guerdon.errors import ConfigError, DataError, GuerdonError, did_you_mean
from guerdon.files import atomic
from guerdon.files.json_files import json_line, read_lines
from guerdon.models.judges.rubric import Rubric
from guerdon.statistics.intervals import defined

SETUP, ITEMS, TOKENS = "setup.json", "items.jsonl", "tokens.json"
MOST_ROWS = 10_000_000  # the largest number of a row that --rows takes
_FIXED = ("kind", "columns", "choose", "random_share", "seed", "overlap", "scale", "rows", "finding", "models")


@dataclass(frozen=True)
class AnnotateSettings:
    """What `guerdon annotate` is asked for; None: as the folder was begun, or the default.

    Attributes:
        data: what is judged.
        out: the folder of judgements.
        kind: of the items.
        columns: see `read_items`.
        choose: which items are asked first.
        random_share: share of draws that are uniform.
        seed: of draws.
        overlap: share of items that are judged twice.
        scale: judge responses with the numbers from 1 to this one.
        rows: numbers of the rows that are asked, such as 3,17,20-40.
        finding: of an audit, whose rows are asked.
        models: whose values choose, and stand beside the labels.
        people: names of those who judge.
        reference: show the reference answer.
        guideline: a file of text that is shown.
        rubric: a file of criteria by which responses are judged.
    """

    data: str
    out: Path
    kind: str | None = None
    columns: str | None = None
    choose: str | None = None
    random_share: float | None = None
    seed: int | None = None
    overlap: float | None = None
    scale: int | None = None
    rows: str | None = None
    finding: str | None = None
    models: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    reference: bool = False
    guideline: Path | None = None
    rubric: Path | None = None


_DEFAULTS: Mapping[str, Any] = {"choose": "random", "random_share": 0.3, "seed": 0, "overlap": 0.1}


@dataclass
class Session:
    """What is judged, and the judgements.

    Attributes:
        folder: of the judgements.
        items: of the data.
        setup: what was asked for when the folder was begun.
        judgements: of the items in the order in which they are asked.
        models: value of each item by the name of a model; NaN: none.
        tokens: person by token; empty: there is one person.
        guideline: text and hash of it.
        reference: the reference answer is shown.
        pictures: of episodes.
        rubric: by which responses are judged.
        judges: what the data says of its criteria.
    """

    folder: Path
    items: Items
    setup: Mapping[str, Any]
    judgements: Judgements
    models: dict[str, Numbers]
    tokens: dict[str, str]
    guideline: Mapping[str, str] | None = None
    reference: bool = False
    pictures: EpisodePictures | None = None
    rubric: Rubric | None = None
    judges: JudgeCriteria = NO_JUDGES
    _problems: dict[int, str] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        """The judgements that can be given."""
        return words_of(self.items.kind, self.setup["scale"], self.rubric)

    def setup_for(self, person: str) -> dict[str, Any]:
        """What the page is about."""
        criteria = self.rubric and [one.model_dump(include={"name", "text", "choices"}) for one in self.rubric.criteria]
        return {
            "id": self.setup["id"], "data": Path(self.items.data).name, "kind": self.items.kind,
            "person": person or None, "people": len(self.judgements.people), "items": len(self.judgements.asks),
            "scale": self.setup["scale"], "judgements": list(self.words), "shows_reference": self.reference,
            "guideline": self.guideline, "criteria": criteria,
            "choose": "rows" if self.setup["rows"] or self.setup["finding"] else self.setup["choose"],
        }  # fmt: skip

    def shown(self, ticket: str) -> dict[str, Any]:
        """An item as the page gets it."""
        number = self.judgements.number_of(ticket)
        assert number is not None
        ask = self.judgements.asks[number]
        assert ask.place is not None
        show = self.items.shown(ask.place, swapped=ask.swapped, with_reference=self.reference)
        if self.items.kind == "episodes":
            show["problem"] = self._problems.get(ask.place)
        return {"item": ticket, "kind": self.items.kind, "show": show, "note": ""}

    def undone(self, one: Judgement) -> dict[str, Any]:
        """A judgement that was taken back, with its item."""
        more = {"note": one.note, "judgement": one.word, "row": one.row, "step": one.step, "scores": one.scores}
        return {**self.shown(one.ticket), **more}

    def count_of(self, ticket: str, name: str) -> int | None:
        """How many rows or steps an item has; None: it has none, or there is no such item."""
        place = self._place(ticket)
        if place is None:
            return None
        if name == "row":
            return self.items.entries[place].length if self.items.kind == "episodes" else None
        return len(self.items.solutions[place].steps) if self.items.kind == "steps" else None

    def _place(self, ticket: str) -> int | None:
        """Where an item is in the data; None: it is not."""
        number = self.judgements.number_of(ticket)
        return None if number is None else self.judgements.asks[number].place

    async def picture(self, ticket: str, camera: str, row: int) -> bytes | None:
        """A picture of an episode as JPEG; None: there is no such picture.

        Raises:
            DataError: it cannot be decoded.
        """
        place = self._place(ticket)
        if place is None or self.pictures is None:
            return None
        try:
            return await self.pictures.picture(self.items.entries[place], camera, row)
        except DataError as error:
            self._problems[place] = str(error)
            raise


def names_of_people(given: str | None) -> tuple[str, ...]:
    """The names in a list with commas.

    Raises:
        ConfigError: one is empty, comes twice, or has a sign that names do not have.
    """
    names = tuple(one.strip() for one in (given or "").split(",")) if given else ()
    for name in names:
        if not name or not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or len(name) > 40:
            raise ConfigError(
                f"--people {given}: {name!r} is no name; write letters, digits, - . _, such as ann,bo", key="--people"
            )
        if names.count(name) > 1:
            raise ConfigError(f"--people {given}: {name} comes twice", key="--people")
    return names


@contextmanager
def open_session(wanted: AnnotateSettings) -> Iterator[Session]:
    """Begin a folder of judgements, or go on with it; no other process can meanwhile.

    Raises:
        CheckpointError: a model is damaged.
        ConfigError: something does not fit the data, or the folder, which was begun otherwise.
        DataError: the data or the folder cannot be read, or there is nothing to judge.
        InUseError: another process works on the folder.
    """
    if Path(wanted.data).is_dir() and wanted.out.resolve().is_relative_to(Path(wanted.data).resolve()):
        raise ConfigError(
            f"-o {wanted.out} is inside of {wanted.data}: name a folder outside, such as ../NAME.labels", key="--output"
        )
    setup = _stored_setup(wanted)
    rubric = _rubric(wanted, setup)
    before = setup or {"kind": None, "columns": None, "seed": _or_default(wanted, "seed")}
    kind, seed = wanted.kind or before["kind"], before["seed"]
    columns = before["columns"] if wanted.columns is None else wanted.columns
    items = read_items(wanted.data, kind, columns=columns, seed=seed)
    judges = NO_JUDGES if rubric is None else take_criteria(items, rubric)
    if wanted.reference and not any(items.references):
        raise ConfigError(f"--show reference: {wanted.data} has no reference answers; remove it", key="--show")
    guideline = _guideline(wanted.guideline)
    with ExitStack() as stack:
        stack.enter_context(atomic.held(wanted.out, busy=f"another guerdon annotate works on {wanted.out}; stop it"))
        if setup is None:
            setup, order = _begun(wanted, items, rubric)
        else:
            order = _stored_order(wanted.out)
        tokens = _tokens(wanted)
        asks, models = _asks(wanted.out, setup, items, order)
        stored: dict[str, Any] = {}
        if wanted.reference:
            stored["reference_shown"] = True
        if guideline is not None:
            stored["guideline"] = guideline["hash"]
        people = list(tokens.values()) or [""]
        judgements = Judgements(wanted.out, items.kind, asks, people, rubric=rubric, stored=stored)
        stack.callback(judgements.close)
        pictures = EpisodePictures(Path(wanted.data)) if items.kind == "episodes" else None
        if pictures is not None:
            stack.callback(pictures.close)
        yield Session(
            wanted.out, items, setup, judgements, models, tokens, guideline, wanted.reference, pictures, rubric, judges
        )


def _stored_setup(wanted: AnnotateSettings) -> dict[str, Any] | None:
    """What the folder was begun with; None: it was not.

    Raises:
        ConfigError: it was begun with something else than what is wanted now.
        DataError: it holds something else.
    """
    file = wanted.out / SETUP
    if not file.is_file():
        files = [wanted.out] if wanted.out.is_file() else wanted.out.glob("*")
        if any(one.name not in (".lock", ITEMS) for one in files):
            raise ConfigError(f"{wanted.out} holds something else than judgements; name another folder, -o OUT")
        return None
    try:
        setup: dict[str, Any] = json.loads(file.read_bytes())
    except ValueError as error:
        raise DataError(f"cannot be read: {error}", where=file) from error
    if setup["data"] != str(Path(wanted.data).resolve()):
        raise ConfigError(f"{wanted.out} has judgements of {setup['data']}; name another folder, -o OUT")
    for name in _FIXED:
        given = getattr(wanted, name)
        given = list(given) if isinstance(given, tuple) else given
        if given not in (None, []) and given != setup[name]:
            option = {"kind": "as", "models": "model"}.get(name, name.replace("_", "-"))
            was = "without it" if setup[name] in (None, []) else f"with {setup[name]}"
            raise ConfigError(
                f"--{option} {given}: {wanted.out} was begun {was}; leave it out, or name another folder, -o OUT",
                key=f"--{option}",
            )
    return setup


def _rubric(wanted: AnnotateSettings, setup: Mapping[str, Any] | None) -> Rubric | None:
    """The rubric that the folder was begun with, or is to be begun with.

    Raises:
        ConfigError: another one is wanted, or it cannot be read.
    """
    given = None if wanted.rubric is None else read_criteria(wanted.rubric)
    if setup is None:
        return given
    known = Rubric.model_validate(setup["rubric"]) if setup.get("rubric") else None
    if given is not None and given != known:
        was = "without it" if known is None else "with other criteria"
        raise ConfigError(
            f"--rubric {wanted.rubric}: {wanted.out} was begun {was}; leave it out, or name another folder, -o OUT",
            key="--rubric",
        )
    return known


def _or_default(wanted: AnnotateSettings, name: str) -> Any:
    given = getattr(wanted, name)
    return _DEFAULTS[name] if given is None else given


_Order = Sequence[Mapping[str, Any]]


def _begun(wanted: AnnotateSettings, items: Items, rubric: Rubric | None) -> tuple[dict[str, Any], _Order]:
    """Begin a folder; where that is refused, nothing of it stays."""
    is_new = all(one.name == ".lock" for one in wanted.out.iterdir())
    try:
        return _begin(wanted, items, rubric)
    except GuerdonError:
        if is_new:
            shutil.rmtree(wanted.out, ignore_errors=True)
        raise


def _begin(wanted: AnnotateSettings, items: Items, rubric: Rubric | None) -> tuple[dict[str, Any], _Order]:
    """Draw the order of the items, and write what the folder is begun with.

    Returns:
        What it is begun with, and the rows of `ITEMS`.

    Raises:
        ConfigError: something does not fit the data.
    """
    choose, share, seed, overlap = (_or_default(wanted, name) for name in _DEFAULTS)
    _check_options(wanted, items, choose, (share, overlap))
    of_pool = np.flatnonzero(_pool(wanted, items))
    models = {name: _scored(name, wanted.data, items) for name in wanted.models}
    rng = np.random.default_rng(seed)
    useful = np.ones(len(items)) if choose == "random" else usefulness(choose, items, models)
    drawn = draw_order(useful[of_pool], share=1.0 if choose == "random" else share, rng=rng)
    twice, swapped = draw_twice(len(of_pool), overlap, rng), rng.random(len(of_pool)) < 0.5
    rows: list[dict[str, Any]] = []
    places, probabilities = of_pool[drawn.places].tolist(), np.minimum(drawn.probabilities, 1.0).tolist()
    draws = zip(places, probabilities, twice.tolist(), swapped.tolist(), strict=True)
    for draw, (place, q, is_twice, is_swapped) in enumerate(draws, start=1):
        row = {"item": items.ids[place], "row": items.rows[place], "draw": draw, "draw_probability": q}
        rows.append(row | {"twice": is_twice, "swapped": is_swapped and items.kind == "pairs"})
    others = np.setdiff1d(np.arange(len(items)), of_pool).tolist()
    rows += [{"item": items.ids[place], "row": items.rows[place], "draw": None} for place in others]
    if models:
        for row, place in zip(rows, (*places, *others), strict=True):
            row["values"] = {name: defined(value[place]) for name, (value, _) in models.items()}
    setup = {
        "id": secrets.token_hex(8), "data": str(Path(wanted.data).resolve()), "kind": items.kind,
        "columns": wanted.columns, "choose": choose, "random_share": share, "seed": seed, "overlap": overlap,
        "scale": wanted.scale, "rows": wanted.rows, "finding": wanted.finding, "models": list(wanted.models),
        "pool": len(of_pool), "rubric": rubric and rubric.model_dump(mode="json"),
    }  # fmt: skip
    atomic.write_bytes(wanted.out / ITEMS, b"".join(map(json_line, rows)))
    atomic.write_json(wanted.out / SETUP, setup)
    return setup, rows


def _check_options(wanted: AnnotateSettings, items: Items, choose: str, shares: tuple[float, float]) -> None:
    """Refuse options that do not fit each other or the data.

    Raises:
        ConfigError: with the first of them.
    """
    if choose not in CHOICES:
        raise ConfigError(
            f"--choose {choose}: choose one of {', '.join(CHOICES)}{did_you_mean(choose, CHOICES)}", key="--choose"
        )
    for option, value in zip(("random-share", "overlap"), shares, strict=True):
        if not 0 <= value <= 1:
            raise ConfigError(f"--{option} {value:g}: a share is a number from 0 to 1", key=f"--{option}")
    if wanted.random_share is not None and choose == "random":
        raise ConfigError("--random-share would do nothing with --choose random; remove it", key="--random-share")
    for option, given in (("scale", wanted.scale), ("rubric", wanted.rubric)):
        if given is not None and items.kind != "responses":
            raise ConfigError(
                f"--{option} {given}: of responses, and these are {items.kind}; remove it", key=f"--{option}"
            )
    if wanted.scale is not None and wanted.rubric is not None:
        raise ConfigError(
            "--scale and --rubric: each says how responses are judged; leave out one of them", key="--scale"
        )
    if wanted.scale is not None and not 2 <= wanted.scale <= 9:
        raise ConfigError(
            f"--scale {wanted.scale}: a scale has 2 to 9 numbers, for which there are keys", key="--scale"
        )


def _scored(model: str, data: str, items: Items) -> tuple[Numbers, Numbers]:
    """The values of a model; what it holds open is closed."""
    from guerdon.evaluation.scoring.score_logs import load_scoring_model

    loaded = load_scoring_model(Path(data), model, {})
    try:
        return items.scored(loaded)
    finally:
        getattr(loaded, "close", lambda: None)()


def _pool(wanted: AnnotateSettings, items: Items) -> Flags:
    """Which items are asked.

    Raises:
        ConfigError: a row is not there, or the finding is none of the audit's.
    """
    if wanted.rows is not None and wanted.finding is not None:
        raise ConfigError("--rows and --finding: each names the rows to judge; leave out one of them", key="--rows")
    if wanted.rows is None and wanted.finding is None:
        return np.ones(len(items), bool)
    rows = _numbers(wanted.rows) if wanted.rows is not None else _rows_of(str(wanted.finding), wanted, items)
    partners = items.partners or items.rows
    chosen = np.array([bool(rows & {row, other}) for row, other in zip(items.rows, partners, strict=True)])
    gone = sorted(rows - {*items.rows, *partners})
    if wanted.rows is not None and gone:
        raise ConfigError(
            f"--rows {wanted.rows}: there is nothing to judge in row {gone[0]}; rows are numbered from 0, the last "
            f"one is {max(items.rows)}",
            key="--rows",
        )
    if not chosen.any():
        raise ConfigError(f"--finding {wanted.finding}: none of its rows can be judged", key="--finding")
    return chosen


def _numbers(given: str) -> set[int]:
    """The numbers in a list such as 3,17,20-40."""
    found: set[int] = set()
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdigit() and int(end) <= MOST_ROWS for end in ends):
            raise ConfigError(
                f"--rows {given}: {part.strip()!r} is no row; write numbers and ranges, such as 3,17,20-40",
                key="--rows",
            )
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return found


def _rows_of(finding: str, wanted: AnnotateSettings, items: Items) -> set[int]:
    """The rows of a finding of an audit of the data; of episodes their numbers.

    Raises:
        ConfigError: there is no such check, or it found nothing.
    """
    from guerdon.auditing.checks import NAMES, audit

    if finding not in NAMES:
        raise ConfigError(f"--finding {finding}: no check has this name{did_you_mean(finding, NAMES)}", key="--finding")
    log = read_log(Path(wanted.data), columns=wanted.columns)
    found = next((one for one in audit(log).findings if one.name == finding), None)
    if found is None:
        raise ConfigError(
            f"--finding {finding}: the audit of {wanted.data} does not find it; guerdon audit lists what it finds",
            key="--finding",
        )
    rows = np.asarray(found.rows if found.marked is None else found.marked, dtype=np.int64)
    if log.steps is not None:
        rows = log.steps.episode_N[rows]
    return set(map(int, rows))


def _tokens(wanted: AnnotateSettings) -> dict[str, str]:
    """Person by token: those of the folder, and new ones of people that are new.

    Raises:
        ConfigError: the folder is one of a single person, or of others.
    """
    file = wanted.out / TOKENS
    known: dict[str, str] = json.loads(file.read_bytes()) if file.is_file() else {}
    has_begun = (wanted.out / "judgements.jsonl").exists()
    if wanted.people and not known and has_begun:
        raise ConfigError(
            f"--people: {wanted.out} was begun by one person; name another folder, -o OUT", key="--people"
        )
    gone = [name for name in known if wanted.people and name not in wanted.people]
    if gone:
        raise ConfigError(
            f"--people: {', '.join(gone)} judged in {wanted.out}, too; name everybody, or another folder",
            key="--people",
        )
    new = [name for name in wanted.people if name not in known]
    if new:
        known |= {name: secrets.token_urlsafe(24) for name in new}
        temporary = file.with_name(f".{TOKENS}.partial")
        temporary.unlink(missing_ok=True)  # of a start that was cut off, or of somebody else
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # readable by its owner only
        with open(descriptor, "w", encoding="utf-8") as out:
            json.dump(known, out, indent=2)
        atomic.publish(temporary, file)
    return {token: name for name, token in known.items()}


def _guideline(file: Path | None) -> dict[str, str] | None:
    """Text and hash of a guideline.

    Raises:
        ConfigError: it cannot be read.
    """
    if file is None:
        return None
    try:
        data = file.read_bytes()
        return {"text": data.decode("utf-8"), "hash": sha256(data).hexdigest()}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--guideline {file}: it cannot be read as text: {error}", key="--guideline") from error


def _stored_order(folder: Path) -> _Order:
    """The rows of `ITEMS`."""
    rows, broken = read_lines(folder / ITEMS)
    if broken:
        raise DataError(f"{broken} of its lines are no JSON; restore it from a copy", where=folder / ITEMS)
    return rows


def _asks(
    folder: Path, setup: Mapping[str, Any], items: Items, order: _Order
) -> tuple[Sequence[Ask], dict[str, Numbers]]:
    """The items in the order that was drawn, and the values of the models."""
    place_of = {name: place for place, name in enumerate(items.ids)}
    models = {name: np.full(len(items), np.nan) for name in setup["models"]}
    asks = []
    for row in order:
        place = place_of.get(row["item"])
        for name, value in row.get("values", {}).items() if place is not None else ():
            models[name][place] = np.nan if value is None else value
        if row["draw"] is not None:
            asks.append(Ask(row["item"], place, row["draw"], row["draw_probability"], row["twice"], row["swapped"]))
    if not any(ask.place is not None for ask in asks):
        raise ConfigError(f"{folder} has judgements of other data than {items.data}; name another folder, -o OUT")
    return asks, models
