"""``simulation.html``: a simulation to look at, in one file that needs no network."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tailrace.fleetsim.picture import charts, words
from tailrace.fleetsim.picture.advice import advice
from tailrace.fleetsim.picture.figures import PRICE_UNIT, Figures, simulated
from tailrace.fleetsim.picture.scene import Scene, scene
from tailrace.fleetsim.picture.watch import Watched
from tailrace.pipeline.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.reporting.charts import Chart, TimeAxis
from tailrace.pipeline.run.reporting.page import render_page
from tailrace.pipeline.run.reporting.table import Table
from tailrace.pipeline.run.reporting.tables import bubble_table, utilisation_table

PACKAGE = "tailrace.fleetsim.picture"


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure to see first."""

    name: str
    value: str
    unit: str = ""


def simulation_page(watched: Watched) -> str:
    """The page as HTML."""
    figures, drawn = simulated(watched), scene(watched)
    groups = _charts(watched, drawn)
    return render_page(
        "simulation.html.jinja",
        title=watched.name,
        charts=[chart for group in groups.values() for chart in group],
        package=PACKAGE,
        groups=groups,
        fleet=figures.fleet,
        tiles=_tiles(figures),
        warnings=advice(watched, figures),
        notes=[*figures.notes, *_note(drawn)],
        window=watched.measured_s,
        utilisation=utilisation_table(list(figures.roles)),
        bubbles=bubble_table(list(figures.roles)),
        rows=Table(["", ""], [[name, _flowing(text)] for name, text in words.rows(watched, figures)]),
        configuration=json.dumps({"seed": watched.seed, **watched.config.model_dump(mode="json")}, indent=2),
    )


def _flowing(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines())


def _note(drawn: Scene) -> list[str]:
    return [f"The timeline: {drawn.rows_note}."] if drawn.rows_note else []


def _charts(watched: Watched, drawn: Scene) -> dict[str, list[Chart]]:
    time = TimeAxis.for_length(watched.result.duration_s)
    timeline = charts.timeline(drawn, time)
    return {
        "timeline": [] if timeline is None else [timeline],
        "loads": charts.heat_charts(watched, time),
        "flows": charts.flow_charts(watched, time),
        "staleness": charts.staleness_charts(watched),
    }


def _tiles(figures: Figures) -> list[Tile]:
    tokens_per_s = figures.tokens_per_s or 0.0
    tiles = [
        Tile("trained on", f"{tokens_per_s:,.0f}", "tokens/s"),
        Tile("step", f"{figures.step_s:,.1f}", "s"),
        Tile("staleness", f"{figures.staleness_mean:.2f}", f"mean, {figures.staleness_max} max"),
    ]
    for name, role in (("trainer busy", TRAINER), ("replicas busy", REPLICA)):
        busy = figures.busy(role)
        tiles.append(Tile(name, "not known" if busy is None else f"{100 * busy:.0f}", "" if busy is None else "%"))
    if figures.cost_per_million is not None:
        tiles.append(Tile("a million trained tokens", words.price(figures.cost_per_million), PRICE_UNIT))
    return tiles
