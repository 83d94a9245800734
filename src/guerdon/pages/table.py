"""A table of results: a few lines where it is printed, and pandas or Arrow where more is done with it.

    table = ResultTable([{"arm": "A", "success": 0.25}, {"arm": "B", "success": 1.0}])
    table["success"]        # [0.25, 1.0]
    table.to_pandas()       # a DataFrame

It is what the verbs of `guerdon.api` return.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from guerdon.errors import MissingDependencyError

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 20  # rows that are printed
WIDTH = 40  # characters of a printed cell


class ResultTable:
    """Rows of plain values under names. A row may lack a column: its value is None.

    Args:
        rows: of the table, in order.
        columns: names in order; by default all names in the order in which rows have them.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
        self.rows = tuple(dict(row) for row in rows)
        self.columns = tuple(columns or dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        """The values of a column.

        Raises:
            KeyError: there is no such column.
        """
        if column not in self.columns:
            raise KeyError(f"{column}: the table has the columns {', '.join(self.columns)}")
        return [row.get(column) for row in self.rows]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingDependencyError("pandas is not installed: pip install pandas, or use to_arrow()") from error
        return pandas.DataFrame({name: self[name] for name in self.columns})

    def to_arrow(self) -> pa.Table:
        """A `pyarrow.Table`."""
        import pyarrow as pa

        return pa.table({name: self[name] for name in self.columns})

    def __repr__(self) -> str:
        if not self.rows:
            return "(an empty table)"
        lines = [self.columns, *([_cell(row.get(name)) for name in self.columns] for row in self.rows[:SHOWN])]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return text + self._rest()

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = ""
        for row in self.rows[:SHOWN]:
            cells = "".join(f"<td>{html.escape(_cell(row.get(name)))}</td>" for name in self.columns)
            body += f"<tr>{cells}</tr>"
        return f"<table><tr>{head}</tr>{body}</table>{self._rest()}"

    def _rest(self) -> str:
        """What is not printed."""
        hidden = len(self.rows) - SHOWN
        return f"\n({hidden} more rows)" if hidden > 0 else ""


def _cell(value: Any) -> str:
    """A value in a few characters; a dash where there is none."""
    if value is None:
        return "–"
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
