"""Charts of learning: held-out accuracy beside the controls, reward, and the trainer's own figures."""

from __future__ import annotations

import math
from typing import Any

from tailrace.report.charts.chart import Chart, TimeAxis, Trace, axis, line, step_axis
from tailrace.report.figures.accuracy import Accuracy, Results
from tailrace.report.record import Record

CONTROL_COLORS = ("$control-1", "$control-2", "$control-3", "$control-4", "$control-5")
CONTROL_DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot")


def accuracy_chart(results: Results, time: TimeAxis) -> Chart | None:
    """Accuracy by step on the left and by time on the right, with one line for each control."""
    if not results.curve:
        return None
    data: list[Trace] = []
    by_step = [float(timed.step) for timed, _ in results.curve]
    by_time = [time(timed.at_s) for timed, _ in results.curve]
    measured = [point for _, point in results.curve]
    for index, control in enumerate(results.controls):
        for x, axes in ((by_step, ("x", "y")), (by_time, ("x2", "y2"))):
            data.append(_control(control, x, axes, index))
    for x, axes in ((by_step, ("x", "y")), (by_time, ("x2", "y2"))):
        data += _curve(measured, x, axes)
    top = max([m.accuracy + m.error for m in [*measured, *results.controls]], default=1.0)
    span = {"range": [0, min(1.0, top * 1.15 + 0.01)], "tickformat": ".0%"}
    layout = {
        "xaxis": {**step_axis(int(by_step[-1])), "domain": [0, 0.475]},
        "xaxis2": axis(f"time on the run's clock ({time.unit})", domain=[0.525, 1], anchor="y2"),
        "yaxis": axis("held-out accuracy", **span),
        "yaxis2": {**span, "anchor": "x2", "matches": "y", "showticklabels": False},
        "legend": {"yref": "container", "y": 0.995, "yanchor": "top"},
        "margin": {"t": 48},
    }
    note = "Bands and bars are one binomial standard error. Dashed lines are what the same model reaches without RL."
    return Chart("accuracy", "Held-out accuracy", data, layout, note, height=430, wide=True)


def _control(control: Accuracy, x: list[float], axes: tuple[str, str], index: int) -> Trace:
    color, dash = CONTROL_COLORS[index % 5], CONTROL_DASHES[index % 5]
    ends = [min(x), max(x) if max(x) > min(x) else min(x) + 1.0]
    hover = f"{control.name}: {control.accuracy:.1%} ± {control.error:.1%}<extra></extra>"
    error = {"type": "data", "array": [0, control.error], "thickness": 1.2, "width": 3, "color": color}
    return {
        **line(ends, [control.accuracy] * 2, control.name, color, width=1.6, line={"dash": dash}),
        "error_y": error,
        "hovertemplate": hover,
        "xaxis": axes[0],
        "yaxis": axes[1],
        "legendgroup": control.name,
        "showlegend": axes[0] == "x",
    }


def _curve(measured: list[Accuracy], x: list[float], axes: tuple[str, str]) -> list[Trace]:
    accuracy = [point.accuracy for point in measured]
    errors = [point.error for point in measured]
    place = {"xaxis": axes[0], "yaxis": axes[1], "legendgroup": "RL"}
    upper = [a + e for a, e in zip(accuracy, errors, strict=True)]
    lower = [max(0.0, a - e) for a, e in zip(accuracy, errors, strict=True)]
    band: Trace = {
        "type": "scatter",
        "mode": "lines",
        "x": x + x[::-1],
        "y": upper + lower[::-1],
        "fill": "toself",
        "fillcolor": "$rl-band",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        **place,
    }
    hover = [f"{a:.1%} ± {e:.1%}" for a, e in zip(accuracy, errors, strict=True)]
    curve = line(x, accuracy, "RL, sampled", "$rl", width=2.6, **place)
    curve |= {"mode": "lines+markers", "marker": {"size": 7, "color": "$rl"}, "text": hover}
    curve |= {"hovertemplate": "RL: %{text}<extra></extra>", "showlegend": axes[0] == "x"}
    return [band, curve]


def reward_chart(record: Record) -> Chart | None:
    """The mean reward of each batch that was trained on."""
    steps, rewards = _series(record, "reward_mean")
    if not steps:
        return None
    trajectories = [row.get("trajectories", 0) for row in record.steps if row.get("reward_mean") is not None]
    error = [
        math.sqrt(max(r * (1 - r), 0.0) / n) if n and 0 <= r <= 1 else 0.0
        for r, n in zip(rewards, trajectories, strict=True)
    ]
    data = [
        {
            **line(steps, rewards, "reward", "$reward"),
            "error_y": {"type": "data", "array": error, "thickness": 1, "width": 0, "color": "$reward"},
            "hovertemplate": "step %{x}: %{y:.3f}<extra></extra>",
        }
    ]
    layout = {
        "xaxis": step_axis(len(record.steps)),
        "yaxis": axis("mean reward", rangemode="tozero"),
        "showlegend": False,
    }
    return Chart("reward", "Training reward", data, layout, "Mean reward of the trajectories of each batch.")


def trainer_charts(record: Record) -> list[Chart]:
    """Loss, clip fraction, KL divergence and gradient norm by step."""
    wanted = (
        ("loss", "Loss", "loss", "$training"),
        ("clip_fraction", "Clip fraction", "share of tokens", "$control-2"),
        ("approx_kl", "KL to the behaviour policy", "nats (approximate)", "$control-3"),
        ("grad_norm", "Gradient norm", "before clipping", "$control-4"),
    )
    charts = []
    for key, title, label, color in wanted:
        steps, values = _series(record, key)
        if steps:
            layout = {"xaxis": step_axis(len(record.steps)), "yaxis": axis(label), "showlegend": False}
            charts.append(Chart(key, title, [line(steps, values, title, color, width=1.6)], layout, height=210))
    return charts


def _series(record: Record, key: str) -> tuple[list[float], list[Any]]:
    rows = [row for row in record.steps if row.get(key) is not None]
    return [float(row["step"]) for row in rows], [row[key] for row in rows]
