"""What a user says of columns: `--columns ROLE=NAME[:CODING],...`, the same as a map, or a function of their own.

given = said_columns("prompt=question,winner=vote:1/2,reward=rewards.accuracy")
given.uses["winner"]                    # Said(column="vote", coding=...)
said_columns("my_package.rows:roles").function({"q": "1+1?"})      # {"prompt": "1+1?"}, or None
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from guerdon.config.registry import Registry
from guerdon.errors import ConfigError, did_you_mean
from guerdon.reading.codings import Coding, said
from guerdon.reading.roles import ALL_ROLES, Role, roles_of

FUNCTIONS = Registry("function of columns", "guerdon.columns", {})
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_CODED: tuple[Role, ...] = ("winner", "label", "step_labels", "rating", "truth", "reward", "margin")
"""Roles whose columns have a coding."""


class Said(NamedTuple):
    """A column, and how its cells are read; None: as they are, or as the column shows."""

    column: str
    coding: Coding | None = None


@dataclass(frozen=True)
class Columns:
    """What a user said.

    Attributes:
        uses: columns by role.
        renamed: names of the data by those that a layout has: today's `response_1=answer_a`.
        function: gives the roles of a row, or None for a row that is left out.
    """

    uses: Mapping[Role, Said] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    function: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] | None = None

    def as_names(self, names: Collection[str], there: Collection[str] | None = None) -> Columns:
        """The same, where roles that are also names of a layout's columns are such names.

        Args:
            names: of the layout.
            there: columns of the data, to which others than these are no names; None: any may be.
        """
        plain = {
            str(role): said.column
            for role, said in self.uses.items()
            if role in names and said.coding is None and (there is None or said.column in there)
        }
        uses = {role: said for role, said in self.uses.items() if role not in plain}
        return Columns(uses, {**self.renamed, **plain}, self.function)

    def over(self, others: Columns) -> Columns:
        """These, and of others what these do not say."""
        return Columns({**others.uses, **self.uses}, {**others.renamed, **self.renamed}, self.function)


NOTHING = Columns()


def said_columns(given: str | Mapping[str, str] | None, *, usual: Collection[str] = ()) -> Columns:
    """What a user said, understood.

    Args:
        given: `ROLE=NAME[:CODING],...`, a map of the same, or `package.module:function`.
        usual: names of columns that layouts have, which may stand in the place of a role.

    Raises:
        ConfigError: it is none of these, a role or a coding is unknown, or a role is said twice.
    """
    if given is None:
        return NOTHING
    if isinstance(given, str) and "=" not in given and _FUNCTION.fullmatch(given.strip()):
        return Columns(function=FUNCTIONS.factory(given.strip()))
    pairs = _pairs(given) if isinstance(given, str) else list(given.items())
    uses: dict[Role, Said] = {}
    renamed: dict[str, str] = {}
    for role, column in pairs:
        known = ALL_ROLES.get(role)
        if known is not None and known not in uses:
            uses[known] = _said(known, column)
        elif known is not None:
            raise ConfigError(f"columns: {role} is said twice; one column has a role", key="columns")
        elif role in usual or roles_of(role):
            renamed[role] = column
        else:
            near = did_you_mean(role, ALL_ROLES) or f"; there are {', '.join(ALL_ROLES)}"
            raise ConfigError(f"columns: {role}={column}: no column is for {role!r}{near}", key="columns")
    return Columns(uses, renamed)


def _pairs(text: str) -> list[tuple[str, str]]:
    """`prompt=a,winner=b:1/2` as pairs."""
    found = []
    for part in filter(str.strip, text.split(",")):
        role, sign, column = (word.strip() for word in part.partition("="))
        if not (role and sign and column):
            raise ConfigError(
                f"--columns {text}: write what a column is for and its name, as in reward=score,winner=vote:1/2",
                key="columns",
            )
        found.append((role, column))
    return found


def _said(role: Role, column: str) -> Said:
    name, colon, coding = column.partition(":")
    if not colon or role not in _CODED:
        return Said(column)
    return Said(name, said(coding, role))
