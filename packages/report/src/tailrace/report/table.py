"""A table as rows of text, ready for the template."""

from __future__ import annotations

from dataclasses import dataclass

MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class Table:
    """One table. Columns that begin with ``#`` hold numbers and are aligned right."""

    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    strong: int | None = None


def cut(table: Table) -> Table:
    """The first rows, and a note of how many more there are."""
    if len(table.rows) <= MOST_ROWS:
        return table
    left = len(table.rows) - MOST_ROWS
    return Table(table.columns, table.rows[:MOST_ROWS], f"{table.note} {left} more rows are in the event log.".strip())
