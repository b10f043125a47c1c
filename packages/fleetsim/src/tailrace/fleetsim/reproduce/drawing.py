"""The paper's values and ours as bars, on a page."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.fleetsim.reproduce.records import TargetRecord
from tailrace.report.charts.chart import Chart, Trace
from tailrace.report.html.page import render_page

ROW = 34


def draw(paper: str, records: Sequence[TargetRecord]) -> str:
    """Two bars for each value that is a number; the longer of the two fills the row."""
    values = [
        (record, index, float(at), float(record.ours[index]))
        for record in records
        if record.ours is not None
        for index, at in enumerate(record.target.paper)
        if not isinstance(at, bool)
    ]
    names = [_name(record, index) for record, index, _, _ in values]
    longest = [max(abs(at), abs(ours)) or 1.0 for *_, at, ours in values]
    data = [
        _bars("paper", "$muted", names, [at for *_, at, _ in values], longest),
        _bars("ours (* not scored)", "$accent", names, [ours for *_, ours in values], longest),
    ]
    layout = {
        "xaxis": {"visible": False, "range": [0, 1.12]},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False},
        "barmode": "group",
    }
    chart = Chart(
        "values", "The paper's values and ours", data, layout, height=110 + ROW * max(4, len(values)), wide=True
    )
    title = f"{paper.capitalize()}: the paper and the simulator"
    said = "Each row has a scale of its own: the longer of its two bars fills it."
    return render_page("charts.html.jinja", title=title, charts=[chart], eyebrow="Tailrace reproduction", sentence=said)


def _name(record: TargetRecord, index: int) -> str:
    target = record.target
    label = target.labels[index] if target.labels else "" if len(target.paper) == 1 else str(index + 1)
    return f"{target.id} {label}".strip() + ("" if record.target.scored else " *")


def _bars(name: str, color: str, rows: Sequence[str], values: Sequence[float], longest: Sequence[float]) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(rows),
        "x": [abs(value) / whole for value, whole in zip(values, longest, strict=True)],
        "text": [f"{value:.3g}" for value in values],
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "skip",
        "marker": {"color": color},
    }
