"""The picture of several systems: ``compare.html`` and ``compare.svg``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tailrace.fleetsim.picture.compare_charts import bar_charts, timelines
from tailrace.fleetsim.picture.comparison import comparison, rate, ratios, relative
from tailrace.fleetsim.picture.figures import Figures
from tailrace.fleetsim.picture.scene import Scene
from tailrace.fleetsim.picture.svg import Svg
from tailrace.fleetsim.picture.timeline_svg import EDGE, LEFT, WIDTH, blocks
from tailrace.pipeline.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.reporting.page import render_page

PACKAGE = "tailrace.fleetsim.picture"
ROWS = 6
STEPS = 4
LEAST_STEPS = 1.5
INDENT = "\u2003"
NAME_WIDTH, VALUE_WIDTH, WORDS_WIDTH, BAR = 160.0, 130.0, 390.0, 18.0


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the systems.

    Args:
        scene: None where nothing can be drawn.
        warnings: what is off.
    """

    figures: Figures
    scene: Scene | None
    warnings: Sequence[str] = ()


def sentence(systems: Sequence[Figures]) -> str:
    """Which is fastest, and by how much over the first."""
    compared, rates = rate(systems)
    best = max(range(len(systems)), key=rates.__getitem__)
    said = f"{systems[best].name} trains on {rates[best]:,.0f} {compared.partition('/')[0]} a second"
    ratio = ratios(systems)[best]
    if ratio is None or best == 0:
        return f"{said}, the most of {len(systems)}."
    return f"{said}, {ratio:.2f} times as many as {systems[0].name}."


def drawn_alike(systems: Sequence[Compared]) -> list[Scene]:
    """The scenes, over stretches of the same length: some steps of the slowest, less if a run is shorter."""
    scenes = [system.scene for system in systems if system.scene is not None]
    if not scenes:
        return []
    slowest_s = max(system.figures.step_s for system in systems if system.scene is not None)
    longest_s = min(scene.shown_s[1] for scene in scenes)
    return [scene.over(min(STEPS * slowest_s, max(longest_s, LEAST_STEPS * slowest_s))) for scene in scenes]


def compare_page(systems: Sequence[Compared], title: str) -> str:
    """The page as HTML."""
    figures = [system.figures for system in systems]
    table = comparison(figures)
    rows = [[row[0].replace("  ", INDENT), *row[1:]] for row in table.rows]
    fleets = list(dict.fromkeys(one.fleet for one in figures))
    groups = {"bars": bar_charts(figures), "timelines": timelines(drawn_alike(systems))}
    return render_page(
        "compare.html.jinja",
        title=title,
        charts=[chart for group in groups.values() for chart in group],
        package=PACKAGE,
        groups=groups,
        sentence=sentence(figures),
        fleets=fleets if len(fleets) == 1 else [f"{one.name}: {one.fleet}" for one in figures],
        warnings=[f"{system.figures.name}: {text}" for system in systems for text in system.warnings],
        compared=replace(table, rows=rows),
    )


def compare_svg(systems: Sequence[Compared], title: str) -> str:
    """Bars of throughput, and the timelines below each other."""
    figures = [system.figures for system in systems]
    compared, rates = rate(figures)
    svg = Svg(WIDTH, title)
    svg.text(LEFT, 24, f"{compared[0].upper()}{compared[1:]}", "title")
    y, x = 40.0, LEFT + NAME_WIDTH
    scale = (WIDTH - x - VALUE_WIDTH - WORDS_WIDTH) / (max(rates) or 1.0)
    for system, value, ratio in zip(figures, rates, ratios(figures), strict=True):
        svg.text(x - 10, y + 13, system.name, "right")
        svg.rect(x, y, max(1.0, value * scale), BAR, "accent", radius=2)
        said = ", ".join(filter(None, (f"{value:,.0f}", relative(ratio))))
        svg.text(x + value * scale + 8, y + 13, said)
        svg.text(WIDTH - EDGE, y + 13, _beside(system), "muted", "small", "right")
        y += BAR + 8
    scenes = drawn_alike(systems)
    return svg.draw(blocks(svg, scenes, y + 16) if scenes else y + 8)


def _beside(figures: Figures) -> str:
    parts = [f"staleness {figures.staleness_mean:.2f} mean, {figures.staleness_max} max"]
    for name, role in (("trainer", TRAINER), ("replicas", REPLICA)):
        busy = figures.busy(role)
        if busy is not None:
            parts.append(f"{name} {100 * busy:.0f} % busy")
    return ", ".join(parts)
