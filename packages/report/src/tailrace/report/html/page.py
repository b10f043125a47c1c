"""A page to look at, in one file that needs no network: a template over the shared frame, charts, style and script."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tailrace.contracts import extra, need_extra
from tailrace.pipeline.errors import RunWriteError
from tailrace.report.charts.chart import Chart

MOST_ROWS = 200


def need_pages() -> None:
    """Check that pages can be drawn here, before work whose end is a page.

    Raises:
        MissingExtraError: the extra is not installed.
    """
    need_extra("tailrace-report", "html", "jinja2", "plotly")


def render_page(template: str, *, title: str, charts: Sequence[Chart], **context: Any) -> str:
    """A page as HTML.

    Args:
        template: its file; it extends ``page.html.jinja`` and may import the macros of ``pieces.html.jinja``.
        charts: all of them, to be drawn where ``figures`` of the pieces puts them.
        context: what else the template asks for.
    """
    with extra("tailrace-report", "html"):
        from plotly.offline import get_plotlyjs

        environment = _environment()
    html: str = environment.get_template(template).render(
        title=title,
        style=_part("colors.css") + _part("page.css"),
        script=_part("page.js"),
        plotly=get_plotlyjs(),
        charts=charts,
        data=_script_json([asdict(chart) for chart in charts]),
        **context,
    )
    return html


@cache  # it keeps templates that it has compiled
def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_part),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(path: Path, html: str) -> Path:
    """Replace a page whole: a reader sees the old one or the new, though other processes write it too. Returns its path.

    Raises:
        RunWriteError: the disk is full or broken.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(html, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise RunWriteError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@dataclass(frozen=True, slots=True)
class Table:
    """One table. Columns that begin with ``#`` hold numbers and are aligned right; `left` rows are not shown."""

    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    strong: int | None = None
    left: int = 0

    @property
    def count(self) -> int:
        """All rows, those that are not shown included."""
        return len(self.rows) + self.left


def cut(table: Table) -> Table:
    """The first rows, and a note of how many more there are."""
    if len(table.rows) <= MOST_ROWS:
        return table
    left = len(table.rows) - MOST_ROWS
    note = f"{table.note} {left} more rows are in the event log.".strip()
    return Table(table.columns, table.rows[:MOST_ROWS], note, left=left)
