"""What each column of a data set is for: what was said, what a model was trained on, the layout, names and values.

plan = plan_of("votes.csv", sketches, layout, all_rows, said_columns("winner=vote:1/2"))
plan.uses["winner"].coding.name                  # "1/2"
plan.unclear                                     # roles that could be two things, each with both in words
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple

from guerdon.errors import DataError, did_you_mean
from guerdon.reading.codings import (
    NUMBER,
    RANK,
    SIGNED,
    TIES,
    TRUE_TIE,
    Coding,
    by_columns,
    has_one_side,
    label_codings,
    measured_coding,
    named_by_row,
    of_two_words,
    one_sided,
    said,
    winner_codings,
)
from guerdon.reading.columns import NOTHING, Columns
from guerdon.reading.layouts import OF_SOLUTIONS, Row, RowLayout
from guerdon.reading.nested import has_signed_turns, mark_of_steps
from guerdon.reading.option_columns import columns_of_choices
from guerdon.reading.roles import (
    ALL_ROLES,
    ASKED,
    BESIDE_TESTS,
    MODELS,
    NUMBER_KEYS,
    OF_PROMPTS,
    OUTCOMES,
    ROLES,
    SCORES,
    SOLUTIONS_OF_TESTS,
    UNREAD,
    Role,
    beside,
    is_spread,
    may_be_reward,
    named,
    plain_name,
)
from guerdon.reading.values import MISSING, MOST_FIT, Sketch, canonical, is_empty

Source = Literal["given", "model", "layout", "name"]


class Use(NamedTuple):
    """What a column is for.

    Attributes:
        role: of the table of roles.
        column: name, `a.b` for a key of a map.
        coding: how its cells are read; None: as they are.
        source: who says so.
    """

    role: Role
    column: str
    coding: Coding | None
    source: Source


@dataclass(frozen=True)
class Plan:
    """What the columns of a data set are for.

    Attributes:
        layout: of its rows.
        uses: by role.
        ratings: further columns of ratings by name.
        unclear: roles that could be two things, each with both in words.
        unused: columns that nothing reads.
        beside: further columns of options, of their answers and of tests, which are read with the first.
        listed: whether each of several responses has its rank or score in itself.
        with_prompt: whether every better and worse text begins with the prompt, which is then cut off.
        instead: further columns of a role, of which the first filled one counts where its own column is empty.
        step_mark: of turns with + and -, where the solution starts in the first of them, see `mark_of_steps`.
    """

    layout: RowLayout
    uses: Mapping[Role, Use]
    ratings: tuple[str, ...] = ()
    unclear: Mapping[Role, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    beside: tuple[Use, ...] = ()
    listed: bool = False
    with_prompt: bool = False
    instead: Mapping[Role, tuple[str, ...]] = field(default_factory=dict)
    step_mark: str = ""

    def has(self, *roles: Role) -> bool:
        """Whether there is a column for each of these."""
        return all(role in self.uses for role in roles)

    def need(self, where: str, *roles: Role) -> None:
        """Refuse data in which one of these could be two things.

        Args:
            where: the data, or a row of it.
            roles: that are needed.

        Raises:
            DataError: with both, and the `--columns` for each.
        """
        for role in roles:
            if role in self.unclear:
                raise DataError(self.unclear[role], where=where, field=role)


def read_as(
    uses: Iterable[Use],
    unused: Iterable[str],
    sketches: Mapping[str, Sketch],
    *,
    renamed: Mapping[str, str] = {},
    instead: Mapping[Role, Sequence[str]] = {},
) -> list[dict[str, Any]]:
    """What was taken for what: `column`, `role`, `coding`, `example` and `from` of each, unused columns last.

    A column that counts only where another one is empty has that one as `where_empty`.

    Args:
        uses: of columns.
        unused: columns.
        sketches: by column.
        renamed: names in the data of columns that a layout calls otherwise, as the user said.
        instead: further columns of a role, see `Plan`.
    """
    uses = list(uses)
    examples = {name: sketch.shown() for name, sketch in sketches.items()}
    used = [
        {"column": renamed.get(use.column, use.column), "role": use.role, "coding": use.coding and use.coding.name,
         "example": examples.get(use.column, ""), "from": "given" if use.column in renamed else use.source}
        for use in uses
    ]  # fmt: skip
    further = [
        {"column": name, "role": use.role, "coding": use.coding and use.coding.name, "example": examples.get(name, ""),
         "from": "name", "where_empty": use.column}
        for use in uses
        for name in instead.get(use.role, ())
    ]  # fmt: skip
    rest = [
        {"column": name, "role": None, "coding": None, "example": examples.get(name, ""), "from": None}
        for name in unused
    ]
    return [*used, *further, *rest]


AllRows = Callable[[Callable[[Row], bool]], bool]
"""Whether something holds for every row."""


def plan_of(
    data: str,
    sketches: Mapping[str, Sketch],
    layout: RowLayout,
    all_rows: AllRows,
    columns: Columns = NOTHING,
    stored: Columns = NOTHING,
    *,
    log: bool = False,
) -> Plan:
    """What the columns of a data set are for.

    Args:
        data: what messages call it.
        sketches: of each column, and of keys below a column as `a.b`.
        layout: of the rows.
        all_rows: whether something holds for every row.
        columns: what the user said.
        stored: what a model was trained on.
        log: the rows have one response each, with a reward, and say nothing else of it.

    Raises:
        DataError: a column that the user said is not there.
    """
    return _Planner(data, sketches, layout, all_rows, columns, stored, log=log).plan()


def cell_of(row: Row, column: str) -> Any:
    """The cell of a column, or the value of a key below it."""
    if column in row or "." not in column:
        return row.get(column)
    cell: Any = row
    for key in column.split("."):
        cell = cell.get(key) if isinstance(cell, Mapping) else None
    return cell


def _begins_with(prompt: str, chosen: str, rejected: str, row: Row) -> bool:
    """Whether two texts of a row begin with a third; those that are missing do."""
    asked = cell_of(row, prompt)
    texts = [text for text in (cell_of(row, chosen), cell_of(row, rejected)) if text is not None]
    return isinstance(asked, str) and all(isinstance(text, str) and text.startswith(asked) for text in texts)


def _has_texts(column: str, others: Sequence[str], row: Row) -> bool:
    """Whether the texts of other columns stand in one, which may be chat messages."""
    whole = cell_of(row, column)
    text = whole if isinstance(whole, str) else repr(whole)
    return all(_stands_in(cell_of(row, other), text) for other in others)


def _stands_in(cell: Any, text: str) -> bool:
    """Whether a text stands in another one, or in how Python writes it; one that is missing does."""
    if cell is None:
        return True
    return isinstance(cell, str) and (cell in text or repr(cell)[1:-1] in text)


def _has_at_most_one(column: str, other: str, row: Row) -> bool:
    """Whether not both columns are filled in a row."""
    return is_empty(cell_of(row, column)) or is_empty(cell_of(row, other))


def _is_texts(column: str, row: Row) -> bool:
    """Whether a cell is a list of texts, or empty."""
    cell = row.get(column)
    return is_empty(cell) or (isinstance(cell, list) and all(isinstance(one, str) for one in cell))


def _has_at_most_one_item(column: str, row: Row) -> bool:
    """Whether a cell is a list of at most one item, or empty."""
    cell = row.get(column)
    return not isinstance(cell, list) or len(cell) < 2


def _say_one_thing(columns: Sequence[str], states: Callable[[Any, Any], bool], row: Row) -> bool:
    """Whether the filled ones of these columns say the same as the first of them in a row."""
    filled = [cell for column in columns if not is_empty(cell := cell_of(row, column))]
    return all(states(filled[0], other) for other in filled[1:])


def _is_same(cell: Any, other: Any) -> bool:
    """Whether two cells are equal; the text `4` and the number 4 are."""
    if cell == other or type(cell) is type(other):
        return bool(cell == other)
    plain = (str, int, float)
    return isinstance(cell, plain) and isinstance(other, plain) and canonical(cell) == canonical(other)


def _is_same_answer(cell: Any, other: Any) -> bool:
    """Whether two cells state one answer: they are equal, or one ends with the other: `... #### 4` and `4`."""
    if _is_same(cell, other):
        return True
    short, long = sorted((str(one).strip().rstrip(_AFTER_ANSWER) for one in (cell, other)), key=len)
    before = long.removesuffix(short)[-1:]
    return bool(short) and long.endswith(short) and not before.isalnum() and before not in (".", ",", "-")


class _Planner:
    """Decides what each column is for: what was said, then what the layout says, then names and values.

    Args: see `plan_of`.
    """

    def __init__(
        self,
        data: str,
        sketches: Mapping[str, Sketch],
        layout: RowLayout,
        all_rows: AllRows,
        columns: Columns,
        stored: Columns,
        *,
        log: bool,
    ) -> None:
        self.data, self.sketches, self.layout, self.all_rows = data, sketches, layout, all_rows
        self.columns, self.stored, self.log = columns, stored, log
        self.uses: dict[Role, Use] = {}
        self.ignored: list[str] = []  # columns that repeat what others say
        self.ratings: list[str] = []  # of HelpSteer2, some of whose names are otherwise those of a truth
        self.unclear: dict[Role, str] = {}
        self.instead: dict[Role, tuple[str, ...]] = {}

    def plan(self) -> Plan:
        """What each column is for.

        Raises:
            DataError: a column that the user said is not there.
        """
        self._take_said()
        self._take_layout()
        if self.columns.function is not None or self.layout.unwrap or self.layout.whole:
            self._take_roles()
        if self.columns.function is None:
            self._take_named()
        ratings = tuple(self.ratings) or tuple(filter(self._has_numbers, named("rating", self._free())))
        further = self._beside_first()
        columns = [use.column for use in (*self.uses.values(), *further)]
        taken = {*columns, *(column.partition(".")[0] for column in columns), *chain(*self.instead.values())}
        taken |= {*ratings, *self._without_role()}
        unused = tuple(name for name in self.sketches if name not in taken and not self._is_inner(name))
        several = self.uses.get("responses")
        listed = several is not None and bool(self.sketches[several.column].item_keys & {*NUMBER_KEYS})
        begins = self._begins_with_prompt()
        mark = mark_of_steps(self.all_rows) if self.layout.shows is has_signed_turns else ""
        return Plan(self.layout, self.uses, ratings, self.unclear, unused, further, listed, begins, self.instead, mark)

    def _beside_first(self) -> tuple[Use, ...]:
        """The further columns of options, of their answers, and of tests."""
        if self.log or not self._may_be_prompts():
            return ()
        taken = {use.column for use in self.uses.values()}
        there = [name for name, sketch in self.sketches.items() if sketch.filled and "." not in name]
        options, answers = columns_of_choices(there)
        tests = [name for name in there if name in ROLES["tests"]]
        with_tests = [name for name in there if name in (*BESIDE_TESTS, *SOLUTIONS_OF_TESTS)] if tests else []
        found: tuple[tuple[Role, list[str]], ...] = (
            ("options", options), ("reference", answers), ("tests", [*tests, *with_tests])
        )  # fmt: skip
        return tuple(Use(role, name, None, "name") for role, names in found for name in names if name not in taken)

    def _may_be_prompts(self) -> bool:
        """Whether rows are questions, and not what was answered."""
        return any(role in self.uses for role in ASKED) and not any(role in self.uses for role in _ANSWERED)

    def _without_role(self) -> tuple[str, ...]:
        """Columns that are read, although they have no role."""
        found = ["parts", *self.layout.more, *OF_PROMPTS]
        if self.layout.kind == "steps" or self._has_steps():
            found += OF_SOLUTIONS
        if any(use.coding is not None and use.coding.of_row for use in self.uses.values()):
            for pair in beside(self.sketches, (*OUTCOMES, *MODELS)):
                found += pair
        wide = self.layout.parts != "named"
        if wide or "reward" in self.uses:
            numbers = [name for name in self.sketches if self._has_numbers(name) and not is_spread(name)]
            found += [name for name in numbers if may_be_reward(name, wide=wide)]
        return tuple(found)

    def _begins_with_prompt(self) -> bool:
        """Whether every better and worse text begins with the prompt."""
        if not {*_PROMPT_AND_BOTH} <= self.uses.keys():
            return False
        prompt, chosen, rejected = (self.uses[role].column for role in _PROMPT_AND_BOTH)
        return self.all_rows(partial(_begins_with, prompt, chosen, rejected))

    def _is_inner(self, name: str) -> bool:
        """Whether a name is that of a key below a column."""
        return "." in name and name.partition(".")[0] in self.sketches

    def _take_said(self) -> None:
        for role, said_column in self.columns.uses.items():
            if said_column.column not in self.sketches:
                near = did_you_mean(said_column.column, self.sketches) or f"; found {', '.join(self.sketches)[:200]}"
                raise DataError(
                    f"--columns {role}={said_column.column}: there is no such column{near}",
                    where=self.data,
                    field=said_column.column,
                )
            if role in UNREAD:
                raise DataError(
                    f"--columns {role}={said_column.column}: no command reads a {role}; remove it",
                    where=self.data,
                    field=said_column.column,
                )
            self._use(role, said_column.column, said_column.coding, "given")
        nested_rows = self.layout.unwrap is not None or self.layout.whole is not None  # whose columns are others
        for name, column in self.columns.renamed.items():
            if name not in self.sketches and not nested_rows:
                near = did_you_mean(column, self.sketches)
                raise DataError(f"columns: {name}={column}: no such column{near}", where=self.data, field=column)
        for role, stored in self.stored.uses.items():
            if role not in self.uses and role not in UNREAD and stored.column in self.sketches:
                self._use(role, stored.column, stored.coding, "model")

    def _take_layout(self) -> None:
        for role, column in self.layout.roles.items():
            name, _, coding = column.partition(":")
            if role not in self.uses and not name:
                self.ignored += named(role, self.sketches)
            elif role not in self.uses and name in self.sketches:
                self._use(role, name, said(coding, role) if coding else _USUAL.get(role), "layout")
                if role == "label" and coding == NUMBER.name:
                    self._code_measured(self.sketches[name])

    def _code_measured(self, sketch: Sketch) -> None:
        """The coding of labels that may be any number: good or bad where all are 0 and 1, or words for these."""
        lone = sketch.words > sketch.numbers and has_one_side(sketch)
        self._decide("label", one_sided(sketch, "label") if lone else [measured_coding(sketch)])

    def _take_roles(self) -> None:
        """Rows that a function made: their keys are roles."""
        taken = {use.column for use in self.uses.values()}
        for name in self.sketches:
            role = ALL_ROLES.get(name)
            unread = role in UNREAD or (self.log and role in _JUDGED)
            if role is None or role in self.uses or name in taken or unread:
                continue
            self._use(role, name, SIGNED if role == "winner" else None, "layout")
        self._code("winner", "label")

    def _use(self, role: Role, column: str, coding: Coding | None, source: Source) -> None:
        self.uses[role] = Use(role, column, coding, source)

    def _free(self, *, filled: bool = True) -> list[str]:
        """Columns without a role, in which something is; keys below a column are none."""
        taken = {*(use.column for use in self.uses.values()), *self.ratings, *self.ignored}
        return [
            name
            for name, sketch in self.sketches.items()
            if name not in taken and (sketch.filled or not filled) and not self._is_inner(name)
        ]

    def _take_named(self) -> None:
        """Roles by the names of columns, and by what is in them."""
        self._take_question()
        if self.log:
            self._take_response()
        elif self.layout.kind != "steps":
            self._take_answers()
        self._take_beside_steps()
        self._take_ratings()
        for role in _FURTHER:
            self._take_further(role)
        names = ["id"] if not self.log and self._may_be_prompts() else named("id", self.sketches)
        for name in [name for name in names if name in self.sketches][:1]:  # it may also be the column of groups
            if "id" not in self.uses and self.sketches[name].filled:
                self._use("id", name, None, "name")

    def _take_beside_steps(self) -> None:
        """Columns beside steps that say something of these are no answer of their own."""
        if self.layout.kind == "steps" or (self._has_steps() and not self.log):
            self.ignored += [name for name in self._free() if plain_name(name) in _OF_STEPS]

    def _take_ratings(self) -> None:
        """HelpSteer2's ratings of a response, some of whose names are otherwise those of a truth."""
        rated = named("rating", self._free())
        if "response" in self.uses and not self.log and rated[:1] == ["helpfulness"]:
            self.ratings = [name for name in rated if self._has_numbers(name)]

    def _take_further(self, role: Role) -> None:
        """A role that no other one depends on."""
        columns = named(role, self._free())
        if role == "group" and not self.log and not any(one in self.uses for one in _GROUPED) and not self.ratings:
            return
        if role == "reference":
            own = [name for name in columns if plain_name(name) not in _WEAK_ANSWERS]
            columns = own or columns
        if role == "reward":
            columns.sort(key=self._has_parts)
            self._take_other_rewards(columns)
        self._take_one(role, columns[:1] if role in _FIRST_COUNTS else columns)

    def _take_answers(self) -> None:
        """What was answered: steps with labels, two responses, several, or one."""
        if self._take_steps():
            return
        if self._take_chosen():
            self._take_other_pairs()
        elif not self._take_pair() and not self._take_list():
            self._take_response()

    def _take_other_pairs(self) -> None:
        """Two responses side by side in the rows that have no better and worse one."""
        better = self.uses["chosen"].column
        sides = beside(self._free())
        if sides and self.all_rows(partial(_has_at_most_one, better, sides[0][0])):
            self._take_pair()

    def _has_parts(self, name: str) -> bool:
        """Whether the cells of a column are maps or lists, or texts of these."""
        sketch = self.sketches[name]
        return sketch.is_nested_text or sketch.kinds["dict"] + sketch.kinds["list"] > 0

    def _take_other_rewards(self, columns: Sequence[str]) -> None:
        """In a log, columns of rewards in rows that have none in the first of them."""
        if not self.log or "reward" in self.uses:
            return
        alone = [one for one in columns[1:] if self.all_rows(partial(_has_at_most_one, columns[0], one))]
        self.instead |= {"reward": tuple(alone)} if alone else {}

    def _has_numbers(self, name: str) -> bool:
        """Whether nearly all cells of a column are numbers, or are written as one."""
        return self.sketches[name].numbers >= MOST_FIT * self.sketches[name].filled > 0

    def _take_one(self, role: Role, columns: Sequence[str]) -> bool:
        """The column of a role, whether there is one.

        Of several the first, if no row says two things with them; the others then count where it is empty. Else the
        role is unclear, where it changes what is asked, answered or true, and the others are not used elsewhere.
        """
        if role in self.uses or not columns:
            return role in self.uses
        self._use(role, columns[0], None, "name")
        if len(columns) > 1:
            states = _is_same_answer if role in _ANSWERS else _is_same
            if role in _MEDIA or self.all_rows(partial(_say_one_thing, columns, states)):
                self.instead[role] = tuple(columns[1:])
            elif role in _ONE_ALONE:
                self.unclear[role] = self._two_readings(role, [{role: name} for name in columns])
        return True

    def _two_readings(self, what: str, readings: Sequence[Mapping[Role, str]]) -> str:
        """That columns could be of one role, with an example of each and what says it: roles with their columns."""
        first = [next(iter(one.values())) for one in readings]
        examples = " or ".join(f"{name} ({self.sketches[name].shown()!r})" for name in first)
        said = [",".join(f"{role}={name}" for role, name in one.items()) for one in readings]
        return f"the {what} could be {examples}; say which: {' or '.join(f'--columns {one}' for one in said)}"

    def _take_question(self) -> None:
        """What was asked: the prompt, turns before it, and what belongs to it."""
        self._take_instruction()
        asked = [self._text_in(name) for name in self._texts("prompt")]
        self._take_one("prompt", self._widest([name for name in asked if name]))
        passages = named("passage", self._free())
        chats = [name for name in passages if self.sketches[name].is_chat]
        texts = [name for name in passages if name not in chats]
        self._take_one("messages", chats)
        if "prompt" not in self.uses:
            self._take_one("prompt", texts[:1])
        self._take_one("passage", named("passage", self._free()) if "prompt" in self.uses else [])
        self._take_one("messages", named("messages", self._free()))
        for name in named("history", self._free()):
            self._use("history" if "prompt" in self.uses else "prompt", name, None, "name")

    def _take_instruction(self) -> None:
        """The two columns of one question that Alpaca has: an instruction, and the input to it."""
        free = {plain_name(name): name for name in self._free()}
        if {"instruction", "input"} <= free.keys():
            self._take_one("prompt", [free["instruction"]])
        asked = self.uses.get("prompt")
        if asked is not None and plain_name(asked.column) == "instruction" and "input" in free:
            self._take_one("input", [free["input"]])

    def _texts(self, role: Role) -> list[str]:
        """The columns with a name of a role that are no numbers; in a log, whose prompts may be numbers, else those."""
        found = named(role, self._free())
        texts = [name for name in found if not self.sketches[name].is_number]
        return texts or (found if self.log else [])

    def _text_in(self, name: str) -> str:
        """A column, or the key of its maps that has a text; empty: its maps have none."""
        if not self.sketches[name].kinds["dict"]:
            return name
        return next((inner for key in _TEXT_KEYS if (inner := f"{name}.{key}") in self.sketches), "")

    def _widest(self, columns: list[str]) -> list[str]:
        """The column whose text has those of the others in it, in every row; all where there is none."""
        for widest in columns if len(columns) > 1 else ():
            others = [name for name in columns if name != widest]
            if self.all_rows(partial(_has_texts, widest, others)):
                return [widest]
        return columns

    def _take_steps(self) -> bool:
        """The steps of a solution, in a list with a list of labels beside it."""
        beside_it: dict[Role, list[str]] = {
            role: [name for name in named(role, self._free()) if self.sketches[name].is_list] for role in _STEPS
        }
        if not self.uses.keys() & set(_STEPS) and not all(beside_it.values()):
            return False
        for role, names in beside_it.items():
            self._take_one(role, names)
        use = self.uses.get("step_labels")
        if use is not None and use.coding is None:
            self._code_steps(use.column)
        return True

    def _code_steps(self, column: str) -> None:
        """The coding of labels in lists; probabilities are as they are."""
        sketch = Sketch()

        def look(row: Row) -> bool:
            labels = cell_of(row, column)
            for label in labels if isinstance(labels, list | tuple) else ():
                sketch.add(label)
            return True

        self.all_rows(look)
        if not sketch.filled:
            return
        below_1 = sketch.low < 1 or column in OF_SOLUTIONS  # guerdon's own are shares, also where all are 1
        is_share = sketch.numbers == sketch.filled and sketch.low >= 0 and sketch.high <= 1 and below_1
        self._decide("step_labels", [NUMBER] if is_share else label_codings(sketch), sketch)

    def _take_chosen(self) -> bool:
        """A better and a worse response, by name."""
        if {"chosen", "rejected"} <= self.uses.keys():
            return True
        better, worse = (named(role, self._free(filled=False)) for role in _PROMPT_AND_BOTH[1:])
        if not (better and worse):
            return False
        self._take_one("chosen", better)
        self._take_one("rejected", worse)
        for role in _OF_CHOSEN:
            self._take_one(role, named(role, self._free()))
        for name in named("tie", self._free()):
            says_tie = any(TRUE_TIE.read(value, {}) == 0 for value in self.sketches[name].values or ())
            if says_tie and "tie" not in self.uses:
                self._use("tie", name, None, "name")
        return True

    def _take_pair(self) -> bool:
        """Two responses side by side, and a column that says which is better."""
        if not {"first", "second"} <= self.uses.keys():
            pairs = [pair for pair in beside(self._free()) if not any(self.sketches[n].is_number for n in pair)]
            if not pairs:
                return False
            self._use("first", pairs[0][0], None, "name")
            self._use("second", pairs[0][1], None, "name")
            readings = [dict(zip(_PAIR, two, strict=True)) for two in pairs]
            if len(readings) > 1:
                self.unclear["first"] = self._two_readings("responses", readings)
        self._take_winner(self.uses["first"].column, self.uses["second"].column)
        return True

    def _take_winner(self, first: str, second: str) -> None:
        """The column that says which of two is better; columns for each; or a score for each."""
        if "winner" in self.uses:
            self._code("winner")
            return
        free = self._free()
        for a, b in beside(free, OUTCOMES):
            self._use("winner", a, by_columns(a, b), "name")
            return
        found = {
            name: codings for name in named("winner", free) if (codings := self._winner_codings(name, first, second))
        }
        if self._take_one("winner", list(found)):
            self._decide("winner", found[self.uses["winner"].column])
            return
        for a, b in beside(free, SCORES):
            coding = RANK if plain_name(a).startswith("rank") else NUMBER
            self._use("first_score", a, coding, "name")
            self._use("second_score", b, coding, "name")
            return
        for name in named("winner", free)[:1]:  # what it says cannot be read
            self._use("winner", name, None, "name")
            self._decide("winner", of_two_words(self.sketches[name]))

    def _winner_codings(self, name: str, first: str, second: str) -> list[Coding]:
        found = winner_codings(self.sketches[name], (first, second))
        if found:
            return found
        for a, b in beside(self.sketches, MODELS):
            names = {*(self.sketches[a].values or ()), *(self.sketches[b].values or ())}
            values = {value for value in self.sketches[name].values or () if value not in MISSING}
            if values and len(values - names - TIES) <= (1 - MOST_FIT) * len(values):
                return [named_by_row(a, b)]
        return []

    def _code(self, *roles: Role) -> None:
        """Find the coding of columns whose role is known."""
        for role in roles:
            use = self.uses.get(role)
            if use is None or use.coding is not None:
                continue
            sketch = self.sketches[use.column]
            if role == "winner":
                pair = tuple(self.uses[one].column for one in _PAIR if one in self.uses)
                found = self._winner_codings(use.column, *(pair if len(pair) == 2 else ("first", "second")))
                self._decide(role, found or of_two_words(sketch))
            else:
                self._decide(role, label_codings(sketch, use.column))

    def _decide(self, role: Role, codings: Sequence[Coding], sketch: Sketch | None = None) -> None:
        """The one coding of a column; of none or two its role is unclear.

        Args:
            role: of the column.
            codings: that it may have.
            sketch: of its values, where these are lists.
        """
        use = self.uses[role]
        if len(codings) == 1:
            self.uses[role] = use._replace(coding=codings[0])
            return
        values = (sketch or self.sketches[use.column]).shown_values()
        if codings:
            choices = " or ".join(f"--columns {role}={use.column}:{one.name}" for one in codings)
            meaning = " or ".join(_meaning(role, one) for one in codings)
            self.unclear[role] = f"{use.column} holds {values}, which is {meaning}; say which: {choices}"
        else:
            self.unclear[role] = (
                f"{use.column} holds {values}, which is no known coding of a {role}; say how it is read, as in "
                f"--columns {role}={use.column}:{_EXAMPLES.get(role, 'yes/no')}"
            )

    def _take_list(self) -> bool:
        """A list of responses, with a rank or a score for each: inside, or in a list beside it."""
        lists = [name for name in named("responses", self._free()) if self.sketches[name].is_list]
        lists = lists or self._several_texts()
        if "responses" not in self.uses and not lists:
            return False
        self._take_one("responses", lists)
        for role in _LISTED:
            if self._take_one(role, [name for name in named(role, self._free()) if self.sketches[name].is_list]):
                break
        return True

    def _several_texts(self) -> list[str]:
        """The only column that is called like one response, where it holds lists of plain texts, some of them of two.

        Forms of one answer are no responses, and steps with labels are parts of one.
        """
        steps_are_labelled = any(self.sketches[name].is_list for name in named("step_labels", self._free()))
        if "response" in self.uses or "step_labels" in self.uses or steps_are_labelled:
            return []
        columns = [name for name in self._texts("response") if plain_name(name) not in ("answer", "text")]
        if len(columns) != 1 or not self.sketches[columns[0]].is_list:
            return []
        are_texts = self.all_rows(partial(_is_texts, columns[0]))
        is_single = self.all_rows(partial(_has_at_most_one_item, columns[0]))
        return columns if are_texts and not is_single else []

    def _take_response(self) -> None:
        """One response, and whether it is good."""
        found = self._texts("response")
        others = [name for name in found if plain_name(name) not in ("answer", "text")]
        if others:
            found = others
        elif found and (self._is_gold(found[0]) or (self._has_steps() and not self.log)):
            found = []
        self._take_one("response", found)
        if self.log:
            return
        if "label" in self.uses:
            self._code("label")
        elif not named("reward", self._free()):
            named_so = named("label", self._free())
            coded = {n: codings for n in named_so if (codings := label_codings(self.sketches[n], n))}
            if self._take_one("label", list(coded)):
                self._decide("label", coded[self.uses["label"].column])

    def _has_steps(self) -> bool:
        """Whether there is a list of steps, whose last one has the answer in it."""
        return any(self.sketches[name].is_list for name in named("steps", self._free()))

    def _is_gold(self, column: str) -> bool:
        """Whether all rows of a prompt have the same answer: it is the true one, and no response.

        In a log, whose rewards are for something, only where a prompt comes again.
        """
        asked = [self.uses[role].column for role in ASKED if role in self.uses]
        answers: dict[int, int] = {}
        rows = 0

        def same(row: Row) -> bool:
            nonlocal rows
            if is_empty(row.get(column)):
                return True
            rows += 1
            question = hash(repr([cell_of(row, one) for one in asked]))
            answer = hash(repr(row.get(column)))
            return answers.setdefault(question, answer) == answer

        return "prompt" in self.uses and self.all_rows(same) and (not self.log or rows > len(answers))


_ANSWERED: tuple[Role, ...] = ("response", "responses", "chosen", "first", "steps")
_GROUPED: tuple[Role, ...] = ("label", "rating", "reward", "token_rewards")  # of what rows are resampled by their group
_TEXT_KEYS = ("full_text", "raw", "text", "content", "problem", "question")  # of a question that is a map
_OF_STEPS = ("answer", "label")  # columns that say something of the steps beside them, and not what is true
_USUAL: Mapping[Role, Coding] = {"first_score": NUMBER, "second_score": NUMBER}
_PROMPT_AND_BOTH: tuple[Role, ...] = ("prompt", "chosen", "rejected")
_PAIR: tuple[Role, ...] = ("first", "second")
_STEPS: tuple[Role, ...] = ("steps", "step_labels")
_JUDGED: tuple[Role, ...] = ("winner", "label")  # in a log such a column is a true answer, or nothing
_LISTED: tuple[Role, ...] = ("ranks", "scores")
_OF_CHOSEN: tuple[Role, ...] = ("margin", "chosen_score", "rejected_score")
_ANSWERS: tuple[Role, ...] = ("reference", "solution")
_WEAK_ANSWERS = ("label", "tests")  # true answers where no other column is one
_AFTER_ANSWER = ".$} "  # what may follow the answer at the end of a solution
_MEDIA: tuple[Role, ...] = ("images", "videos", "audio")
_FIRST_COUNTS: tuple[Role, ...] = ("reward", "tests", "options")  # the further ones are used beside the first
_ONE_ALONE: tuple[Role, ...] = (
    "prompt", "input", "messages", "passage", "system", "tools", "response", "responses", "chosen", "rejected",
    "winner", "margin", "ranks", "scores", "label", "steps", "step_labels", "reference", "rubric", "solution", "truth",
)  # fmt: skip
"""Roles of which two columns that differ are refused: they say what was asked, answered, judged or true."""
_FURTHER: tuple[Role, ...] = (
    "system", "tools", "images", "videos", "audio", "turn", "margin", "steps", "step_labels", "reward", "truth",
    "reference", "tests", "rubric", "solution", "options", "token_rewards", "advantage", "step", "group", "tokens",
    "length", "truncated", "failed", "split", "subset",
)  # fmt: skip
_EXAMPLES = {"winner": "A/B/tie", "label": "yes/no", "rating": "1..5"}


def _meaning(role: Role, coding: Coding) -> str:
    """What a coding says, in words."""
    low, sign, high = coding.name.partition("..")
    if sign:
        return f"{low} for the first and {high} for the second"
    first, second, *tie = coding.name.split("/")
    if role != "winner":
        return f"{first} for good and {second} for bad"
    said_tie = f", {tie[0]} for a tie" if tie else ""
    return f"{first} for the first and {second} for the second{said_tie}"
