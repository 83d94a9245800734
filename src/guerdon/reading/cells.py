"""Columns whose cells are texts of lists and maps, in JSON or as Python writes it, as tables of text have them.

Such a column is decoded where it has a role, and none of a text: an answer in JSON stays a text, unless all cells of
its column are chat messages, or the layout knows that they are lists or maps. Nested layouts decode all other columns.

    kinds = text_kinds(sketches)                              # {"answers": "list", "prompt": "chat", "meta": "map"}
    names = decoded_columns(kinds, layout, said)
    decoded({"prompt": '[{"role": "user", ...}]'}, names)     # {"prompt": [{"role": "user", ...}]}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from guerdon.reading.columns import Columns
from guerdon.reading.layouts import Row, RowLayout
from guerdon.reading.roles import TEXT_ROLES, is_side, roles_of
from guerdon.reading.values import Kind, Sketch, nested

_DEEP_KEYS = 64  # keys of a map in a cell that count as columns


def look_at(row: Row, sketches: dict[str, Sketch]) -> None:
    """Count what the cells of a row are; the keys of a map in a cell are columns, too."""
    for name, cell in row.items():
        sketch = sketches.get(name)
        if sketch is None:
            sketch = sketches[name] = Sketch()
        sketch.add(cell)
        if type(cell) is dict and len(cell) <= _DEEP_KEYS:
            for key, value in cell.items():
                sketches.setdefault(f"{name}.{key}", Sketch()).add(value)


def sketches_of(rows: Iterable[Row]) -> dict[str, Sketch]:
    """What the cells of each column are."""
    found: dict[str, Sketch] = {}
    for row in rows:
        look_at(row, found)
    return found


def text_kinds(sketches: Mapping[str, Sketch], names: Collection[str] = ()) -> dict[str, Kind]:
    """Columns that are texts of lists or maps, and what of these.

    Args:
        sketches: by column.
        names: columns that were decoded before they were looked at.
    """
    texts = {name: sketch.kind for name, sketch in sketches.items() if name in names or sketch.is_nested_text}
    return {name: kind for name, kind in texts.items() if kind is not None}


def decoded_columns(kinds: Mapping[str, Kind], layout: RowLayout, said: Columns) -> frozenset[str]:
    """Of columns whose texts are lists or maps, those that are read as such.

    Args:
        kinds: see `text_kinds`.
        layout: of the rows.
        said: by the user, or by the training of a model.
    """
    given = {use.column: role for role, use in said.uses.items()}
    roles_said = layout.roles if layout.unwrap is None else {}  # else they are those of the rows inside
    by_layout = {column.partition(":")[0]: role for role, column in roles_said.items()}
    paths = [path for path in (*layout.keys, *by_layout, *given) if "." in path]
    known = {*layout.maps, *(path.partition(".")[0] for path in paths)}

    def is_text(name: str) -> bool:
        role = given.get(name, by_layout.get(name))
        roles = roles_of(name) if role is None else (role,)
        if not roles:
            return is_side(name) or layout.unwrap is None
        return any(one in TEXT_ROLES for one in roles) or (kinds[name] == "map" and "passage" in roles)

    return frozenset(name for name, kind in kinds.items() if kind == "chat" or name in known or not is_text(name))


def decoded(row: Row, names: Collection[str]) -> Row:
    """A row whose texts in these columns are the lists and maps that they say."""
    if not names:
        return row
    return {name: nested(cell) if name in names and isinstance(cell, str) else cell for name, cell in row.items()}
