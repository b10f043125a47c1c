"""``compare.html``: several systems side by side, simulated ones and real runs alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.report.charts.comparison import Compared, bar_charts, timelines
from tailrace.report.figures.comparison import comparison, rate, ratios
from tailrace.report.figures.figures import Figures
from tailrace.report.figures.likeness import differences
from tailrace.report.html.page import render_page

INDENT = "\u2003"


def sentence(systems: Sequence[Figures]) -> str:
    """Which is fastest, and by how much over the first."""
    compared, rates = rate(systems)
    best = max(range(len(systems)), key=rates.__getitem__)
    said = f"{systems[best].name} trains on {rates[best]:,.0f} {compared.partition('/')[0]} a second"
    ratio = ratios(systems)[best]
    if ratio is None or best == 0:
        return f"{said}, the most of {len(systems)}."
    return f"{said}, {ratio:.2f} times as many as {systems[0].name}."


def compare_page(systems: Sequence[Compared], title: str) -> str:
    """The page as HTML."""
    figures = [system.figures for system in systems]
    table = comparison(figures)
    rows = [[row[0].replace("  ", INDENT), *row[1:]] for row in table.rows]
    fleets = list(dict.fromkeys(one.fleet for one in figures))
    groups = {"bars": bar_charts(figures), "timelines": timelines(systems)}
    return render_page(
        "comparison.html.jinja",
        title=title,
        charts=[chart for group in groups.values() for chart in group],
        groups=groups,
        sentence=sentence(figures),
        fleets=fleets if len(fleets) == 1 else [f"{one.name}: {one.fleet}" for one in figures],
        warnings=[
            *differences(figures),
            *(f"{system.figures.name}: {text}" for system in systems for text in system.warnings),
        ],
        compared=replace(table, rows=rows),
    )
