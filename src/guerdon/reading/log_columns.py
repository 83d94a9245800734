"""What the columns of a log are for, decided over all of its rows while the log is read once.

The first rows of the files say it at once, and all rows are read by that; meanwhile `Look` counts what the cells are.
Where all rows together say something else, the log is read again, by what all of them say.

look = Look(said, layout)
for row in rows: look.add(row, {})
columns = look.columns("rollouts.jsonl", all_rows)
columns.uses["reward"].column, columns.form             # "rewards", "map"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from guerdon.reading.cells import decoded_columns, text_kinds
from guerdon.reading.codings import NUMBER, TRUTH, check_words
from guerdon.reading.columns import Columns
from guerdon.reading.layouts import Row, RowLayout
from guerdon.reading.plan import Plan, Use, plan_of, read_as
from guerdon.reading.roles import ASKED, ROLES, Role, is_spread, may_be_reward, named, roles_of
from guerdon.reading.values import Sketch, is_empty, nested

TEXTS: tuple[Role, ...] = (*ASKED, "response")
"""Roles whose cells are texts or messages."""
_CODED: tuple[Role, ...] = ("reward", "truth")
FLAGS: tuple[Role, ...] = ("truncated", "failed")
REWARDS: tuple[Role, ...] = ("reward", "token_rewards")
"""Roles that make rows those of a log."""
NUMBERS: tuple[Role, ...] = (*_CODED, "step", "length", *FLAGS, "advantage")
"""Roles whose cells are one number each."""
_USED: tuple[Role, ...] = (*TEXTS, *NUMBERS, "group", "reference", "tokens", "token_rewards")
_OWN_OF_SUMS: tuple[Role, ...] = ("reward", "length")  # no roles by name where every column of numbers is a reward
_NEEDED: tuple[Role, ...] = (*TEXTS, "reference", "truth")  # that may not be two things
_TOTALS = (*ROLES["reward"], "total")  # keys of a map of rewards that are the reward
_MOST_ITEMS = 16  # of a list of rewards that have a name
_MOST_NAMES = 900  # columns that are looked at
_NUMERIC = (float, int)  # and no bool
Form = Literal["", "number", "map", "list"]


@dataclass(frozen=True)
class LogColumns:
    """What the columns of a log are for.

    Attributes:
        uses: by role, of those that a log can have.
        form: what the cells of the reward are; empty: the log has no column of it.
        total: the key of a map of rewards that is their total; empty: the reward is their sum.
        texts: columns whose texts are read as lists and maps.
        parts: which further columns are rewards, see `RowLayout`.
        maybe_reward: in sums, the column that could be a reward or the truth.
        instead: further columns of a role, of which the first filled one counts where its own column is empty.
        maps: columns of maps whose numbers are parts of the reward.
        other_rewards: columns called like a reward, in rows that have none in the column of the reward: such a row is
            refused.
    """

    uses: Mapping[Role, Use]
    form: Form
    total: str
    texts: frozenset[str]
    parts: Literal["named", "all", "sum"]
    maybe_reward: str
    instead: Mapping[Role, tuple[str, ...]]
    maps: tuple[str, ...] = ()
    other_rewards: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What decides how rows are read."""
        uses = {role: (use.column, use.coding and use.coding.name) for role, use in self.uses.items()}
        rest = (self.form, self.total, self.texts, self.maybe_reward, self.instead, self.maps, self.other_rewards)
        return uses, rest

    @property
    def asks(self) -> bool:
        """Whether a column says what was asked."""
        return any(role in self.uses for role in ASKED)

    @property
    def only_prompt(self) -> bool:
        """Whether no other column than that of the prompt says what was asked."""
        return not any(role in self.uses for role in ASKED if role != "prompt")

    def cell(self, row: Row, parts: Row, role: Role) -> Any:
        """The cell of a role in a row."""
        use = self.uses.get(role)
        if use is None:
            return None
        cell = self.value(row, parts, use.column)
        if role not in self.instead or not is_empty(cell):
            return cell
        others = (self.value(row, parts, column) for column in self.instead[role])
        return next((one for one in others if not is_empty(one)), cell)

    def value(self, row: Row, parts: Row, column: str) -> Any:
        """The cell of a column, or the key of one."""
        base = column if column in row or column in parts else column.partition(".")[0]
        cell = row[base] if base in row else parts.get(base)
        for key in () if base == column else column.split(".")[1:]:
            cell = _inside(cell, key)
        return cell

    def map_of(self, row: Row, parts: Row, column: str) -> Row:
        """The map of rewards in a cell; an empty one in the place of anything else."""
        cell = self.value(row, parts, column)
        cell = nested(cell) if isinstance(cell, str) else cell
        return cell if isinstance(cell, Mapping) else {}

    def further(self, names: tuple[str, ...], parts: Row | None) -> list[str]:
        """Which columns of a row with these names are further rewards; with a map `parts` they are in it."""
        taken = {use.column for role, use in self.uses.items() if not self._is_also_reward(role, use)}
        kept = [n for n in names if n not in taken and not is_spread(n)] if parts is None else list(parts)
        return [n for n in kept if may_be_reward(n, wide=parts is not None or self.parts != "named")]

    def _is_also_reward(self, role: Role, use: Use) -> bool:
        """Whether the truth is a reward, too: in sums, where a user says so, or where it may be one."""
        return self.is_sum and role == "truth" and (use.source == "given" or use.column == self.maybe_reward)

    @property
    def is_sum(self) -> bool:
        """Whether the reward is the sum of all columns of numbers."""
        return self.parts == "sum" and "reward" not in self.uses

    @staticmethod
    def may_be_text(column: str) -> bool:
        """Whether a further reward may be a number written as text, as verl writes numpy's."""
        return may_be_reward(column, wide=False)


class Look:
    """Sketches of the columns of a log, as far as they can still say something.

    A column of texts is known with its first cell that is no number and no text of a list, one without a role with its
    first value; of rewards and truth every cell counts.

    Args:
        said: what the user said.
        layout: of the rows.
        texts: columns whose texts were read as the lists and maps that they are.

    Attributes:
        records: columns of the first records, where these are nested.
        seen: of these, the ones that are looked at where rows are made of them.
    """

    def __init__(self, said: Columns, layout: RowLayout, texts: frozenset[str] = frozenset()) -> None:
        self.said, self.layout, self.texts = said, layout, texts
        self.records: Mapping[str, Sketch] = {}
        self.seen: frozenset[str] = frozenset()
        self.sketches: dict[str, Sketch] = {}
        self._open: dict[str, Sketch] = {}
        self._roles: dict[str, str] = {}  # `coded`, `chat`, `text` or nothing, by column
        given = {use.column: role for role, use in said.uses.items()}
        given |= {column.partition(":")[0]: role for role, column in layout.roles.items()}
        self.given = given

    def meet(self, row: Row, parts: Row) -> None:
        """Look at the columns of a row from now on."""
        for name in (*row, *parts):
            if name not in self.sketches and name != "parts" and len(self.sketches) < _MOST_NAMES:
                self.sketches[name] = self._open[name] = Sketch()
                self._roles[name] = self._kind(name)

    def _kind(self, name: str) -> str:
        known = [role for column, role in self.given.items() if name in (column, column.partition(".")[0])]
        roles = {*roles_of(name), *known}
        if roles & {*_CODED}:
            return "coded"
        if "passage" in roles:
            return "chat"
        return "text" if roles & {*TEXTS} else ""

    def add(self, row: Row, parts: Row) -> None:
        """Count the cells of a row."""
        known = []
        for name, sketch in self._open.items():
            if name in row:
                cell = row[name]
            elif name in parts:
                cell = parts[name]
            else:
                continue
            kind = self._roles[name]
            if kind == "coded" and type(cell) in _NUMERIC and cell == cell and sketch.numbers:
                sketch.rows += 1
                sketch.numbers += 1
                continue
            sketch.add(cell)
            if isinstance(cell, dict) or (kind == "coded" and isinstance(cell, list)):
                self._look_inside(name, cell)
            if name not in self.texts and not sketch.is_nested_text and _is_known(sketch, kind):
                known.append(name)
        for name in known:
            del self._open[name]

    def _look_inside(self, name: str, cell: Any) -> None:
        """The keys of a map, and the items of a list of rewards, are columns, too."""
        inside = dict(enumerate(cell[:_MOST_ITEMS])) if isinstance(cell, list) else cell
        for key, value in inside.items():
            inner = f"{name}.{key}"
            if inner in self.sketches or len(self.sketches) < _MOST_NAMES:
                self.sketches.setdefault(inner, Sketch()).add(value)

    def columns(self, data: str, all_rows: Callable[[Callable[[Row], bool]], bool], *, all_seen: bool) -> LogColumns:
        """What the columns are for.

        Args:
            data: what messages call the log.
            all_rows: whether something holds for every row.
            all_seen: these are all rows; else a column that the user said may come yet, and nothing is refused.

        Raises:
            DataError: a column that the user said is not there, or the prompt or the response could be two.
        """
        to_come = {} if all_seen else {use.column: Sketch() for use in self.said.uses.values()}
        sketches = {**to_come, **self.sketches}
        plan = plan_of(data, sketches, self.layout, all_rows, self.said, log=True)
        if all_seen:
            self._check(data, plan)
        uses = {role: use for role, use in plan.uses.items() if role in _USED and use.column in sketches}
        uses |= self._empty_flags(uses)
        uses, maybe_reward = self._of_sums(uses)
        uses |= _coded(uses, sketches)
        replaceable = uses.keys() - {"reward"}
        if maybe_reward:
            replaceable -= {"truth"}
        instead = {role: columns for role, columns in plan.instead.items() if role in replaceable}
        form = _form(sketches[uses["reward"].column]) if "reward" in uses else ""
        return LogColumns(
            uses=uses,
            form=form,
            total=self._total(uses, form),
            texts=self._texts_of(sketches),
            parts=self.layout.parts,
            maybe_reward=maybe_reward,
            instead=instead,
            maps=self._maps_of_rewards(uses) if form == "number" else (),
            other_rewards=plan.instead.get("reward", ()),
        )

    def _of_sums(self, uses: dict[Role, Use]) -> tuple[dict[Role, Use], str]:
        """Where every column of numbers is a reward, what remains of the roles, and the column that may be a truth."""
        summed = self.layout.parts == "sum" and ("reward" not in uses or uses["reward"].source == "name")
        if not summed:
            return uses, ""
        kept = {role: use for role, use in uses.items() if role not in _OWN_OF_SUMS or use.source != "name"}
        truth = kept.get("truth")
        return kept, truth.column if truth is not None and truth.source == "name" else ""

    def _maps_of_rewards(self, uses: Mapping[Role, Use]) -> tuple[str, ...]:
        """Columns of maps with numbers in them that are called like rewards: parts of the reward beside them."""
        taken = {use.column.partition(".")[0] for use in uses.values()}
        maps = [name for name, sketch in self.sketches.items() if sketch.kind == "map" and name not in taken]
        return tuple(name for name in maps if may_be_reward(name, wide=False) and not self._is_key(name))

    def _check(self, data: str, plan: Plan) -> None:
        """Refuse a log, all of whose rows were seen, without a needed column, or with a reward of unknown words."""
        needed = TEXTS if self.layout.parts == "sum" else _NEEDED
        plan.need(data, *needed)
        use = plan.uses.get("reward")
        if use is not None and use.coding is None and use.column in self.sketches:
            check_words(data, "reward", use.column, self.sketches[use.column])

    def _empty_flags(self, uses: Mapping[Role, Use]) -> dict[Role, Use]:
        """Columns of flags in which nothing is: they say of every row that it did not fail, or was not cut off."""
        taken = {use.column for use in uses.values()}
        found: dict[Role, Use] = {}
        for role in FLAGS:
            empty = [
                name for name in named(role, self.sketches) if name not in taken and not self.sketches[name].filled
            ]
            if role not in uses and empty:
                found[role] = Use(role, empty[0], None, "name")
        return found

    def _total(self, uses: Mapping[Role, Use], form: Form) -> str:
        if form != "map":
            return ""
        front = f"{uses['reward'].column}."
        keys = [name.removeprefix(front) for name in self.sketches if name.startswith(front)]
        plain = {key.casefold(): key for key in keys}
        return next((plain[one] for one in _TOTALS if one in plain), "")

    def _texts_of(self, sketches: Mapping[str, Sketch]) -> frozenset[str]:
        """Columns whose texts are read as lists and maps; those that rows are unwrapped from are known before."""
        if self.layout.unwrap is not None:
            return self.texts
        return decoded_columns(text_kinds(sketches, self.texts), self.layout, self.said)

    def read_as(
        self, columns: LogColumns, *, summed: Sequence[str], further: Sequence[str]
    ) -> tuple[Mapping[str, Any], ...]:
        """What was taken for what, see `guerdon.reading`.

        Args:
            columns: what they are for.
            summed: those whose sum is the reward.
            further: other rewards.
        """
        own = [*columns.uses.values(), *(Use("reward", name, NUMBER, "name") for name in summed)]
        others = [Use("reward", name, NUMBER, "name") for name in further if name not in summed]
        unused = self._unused([use.column for use in (*own, *others)], columns)
        return (
            *read_as(own, (), self.sketches, instead=columns.instead),
            *({**one, "role": "further reward"} for one in read_as(others, (), self.sketches)),
            *read_as((), unused, {**self.records, **self.sketches}),
        )

    def _unused(self, columns_with_roles: Iterable[str], columns: LogColumns) -> list[str]:
        """Columns, also of the first nested records, that are neither read for a role nor where rows are made."""
        used = set[str]()
        for column in columns_with_roles:
            used |= {column, column.partition(".")[0]}
        used.update(*columns.instead.values())
        unused = [name for name in self.sketches if name not in used and not self._is_key(name)]
        unused += [name for name in self.records if name not in self.sketches]
        return [name for name in unused if name not in self.seen]

    def _is_key(self, name: str) -> bool:
        """Whether a name is that of a key of a map in a column."""
        return name.partition(".")[0] in self.sketches and "." in name


def _is_known(sketch: Sketch, kind: str) -> bool:
    """Whether further cells of a column can say nothing of it: not every one is a number, or text of a list."""
    if kind == "coded" or not sketch.filled:
        return False
    if kind == "chat":
        return not sketch.is_chat and not sketch.is_nested_text
    other = sketch.kinds["str"] - sketch.texts_of_lists + sketch.kinds["list"] + sketch.kinds["dict"]
    return kind != "text" or other > 0


def _inside(cell: Any, key: str) -> Any:
    """The value of a key of a map, or of a place in a list; None where there is none."""
    if isinstance(cell, Mapping):
        return cell.get(key)
    is_place = isinstance(cell, list | tuple) and key.isdecimal() and int(key) < len(cell)
    return cell[int(key)] if is_place else None


def _coded(uses: Mapping[Role, Use], sketches: Mapping[str, Sketch]) -> dict[Role, Use]:
    """Reward and truth with a coding: as most of their cells are, numbers, or words for true and false."""
    found = {role: uses[role] for role in _CODED if role in uses}
    for role, use in found.items():
        sketch = sketches[use.column]
        usual = TRUTH if sketch.words > sketch.numbers else NUMBER
        found[role] = use._replace(coding=use.coding or usual)
    return found


def _form(sketch: Sketch) -> Form:
    """What most cells of a column of rewards are."""
    maps, lists = sketch.kinds["dict"], sketch.kinds["list"] + sketch.kinds["tuple"]
    for form, count in (("map", maps), ("list", lists)):
        if count * 2 > sketch.filled:
            return cast(Form, form)
    return "number"
