"""A page to look at, in one file that needs no network: a template over the shared frame, charts, style and script."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from tailrace.pipeline.run.reporting.charts import Chart

_FRAME = "tailrace.pipeline.run.reporting"


def render_page(template: str, *, title: str, charts: Sequence[Chart], package: str = _FRAME, **context: Any) -> str:
    """A page as HTML.

    Args:
        template: its file in `package`; it extends ``page.html.jinja`` and may import the macros of ``pieces.html.jinja``.
        charts: all of them, to be drawn where ``figures`` of the pieces puts them.
        context: what else the template asks for.
    """
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_loader(package)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html: str = environment.get_template(template).render(
        title=title,
        style=colors() + _part(_FRAME, "report.css"),
        script=_part(_FRAME, "report.js"),
        plotly=get_plotlyjs(),
        data=_script_json([asdict(chart) for chart in charts]),
        **context,
    )
    return html


def colors() -> str:
    """The style sheet's colours alone, for the light and the dark scheme."""
    return _part(_FRAME, "colors.css")


def write_page(path: Path, html: str) -> Path:
    """Replace a page whole: a reader sees the old one or the new. Returns its path."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(html, encoding="utf-8")
    partial.replace(path)
    return path


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _loader(package: str) -> Callable[[str], str | None]:
    def load(name: str) -> str | None:
        found = (folder for folder in (package, _FRAME) if files(folder).joinpath(name).is_file())
        folder = next(found, None)
        return None if folder is None else _part(folder, name)

    return load


def _part(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
