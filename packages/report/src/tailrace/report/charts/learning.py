"""Charts of learning: held-out accuracy and reward beside the controls, reward, and the trainer's own figures."""

from __future__ import annotations

import math
from typing import Any

from tailrace.pipeline.run.figures.results import Estimate, Quantity, Results
from tailrace.report.charts.chart import Chart, TimeAxis, Trace, axis, line, step_axis
from tailrace.report.figures.held_out import with_error
from tailrace.report.record import Record

CONTROL_COLORS = ("$control-1", "$control-2", "$control-3", "$control-4", "$control-5")
CONTROL_DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot")
AXES = {Quantity.ACCURACY: "held-out accuracy", Quantity.REWARD: "held-out reward"}


def held_out_chart(results: Results, quantity: Quantity, time: TimeAxis) -> Chart:
    """A quantity by step on the left and by time on the right, with one line for each control."""
    data: list[Trace] = []
    by_step = [float(measured.step) for measured in results.curve]
    by_time = [time(measured.at_s) for measured in results.curve]
    sides = ((by_step, ("x", "y")), (by_time, ("x2", "y2")))
    for index, control in enumerate(results.controls):
        for x, axes in sides:
            data.append(_control(control.name, quantity, control.estimate(quantity), x, axes, index))
    curve = [measured.estimate(quantity) for measured in results.curve]
    for x, axes in sides:
        data += _curve(quantity, curve, x, axes)
    span = _span(quantity, [*curve, *(control.estimate(quantity) for control in results.controls)])
    layout = {
        "xaxis": {**step_axis(int(by_step[-1])), "domain": [0, 0.475]},
        "xaxis2": axis(f"run's clock ({time.unit})", domain=[0.525, 1], anchor="y2"),
        "yaxis": axis(AXES[quantity], **span),
        "yaxis2": {**span, "anchor": "x2", "matches": "y", "showticklabels": False},
        "legend": {"yref": "container", "y": 0.995, "yanchor": "top"},
        "margin": {"t": 48},
    }
    error = "binomial standard error" if quantity is Quantity.ACCURACY else "standard error of the mean over problems"
    note = f"Bands and bars are one {error}. Dashed lines are what the same model reaches without RL."
    return Chart(
        quantity if quantity is Quantity.ACCURACY else "held-out-reward",
        f"Held-out {quantity}",
        data,
        layout,
        note,
        height=430,
        wide=True,
    )


def _span(quantity: Quantity, estimates: list[Estimate]) -> dict[str, Any]:
    """The range of an axis: accuracies from 0 to at most 1, rewards as they come, with 0 in sight."""
    top = max([estimate.value + estimate.error for estimate in estimates], default=1.0)
    if quantity is Quantity.ACCURACY:
        return {"range": [0, min(1.0, top * 1.15 + 0.01)], "tickformat": ".0%"}
    bottom = min([0.0, *(estimate.value - estimate.error for estimate in estimates)])
    top = max(0.0, top)
    margin = 0.1 * (top - bottom) or 1.0
    return {"range": [bottom - margin if bottom < 0 else 0.0, top + margin]}


def _control(
    name: str, quantity: Quantity, control: Estimate, x: list[float], axes: tuple[str, str], index: int
) -> Trace:
    color, dash = CONTROL_COLORS[index % 5], CONTROL_DASHES[index % 5]
    ends = [min(x), max(x) if max(x) > min(x) else min(x) + 1.0]
    error = {"type": "data", "array": [0, control.error], "thickness": 1.2, "width": 3, "color": color}
    return {
        **line(ends, [control.value] * 2, name, color, width=1.6, line={"dash": dash}),
        "error_y": error,
        "hovertemplate": f"{name}: {with_error(quantity, control)}<extra></extra>",
        "xaxis": axes[0],
        "yaxis": axes[1],
        "legendgroup": name,
        "showlegend": axes[0] == "x",
    }


def _curve(quantity: Quantity, measured: list[Estimate], x: list[float], axes: tuple[str, str]) -> list[Trace]:
    place = {"xaxis": axes[0], "yaxis": axes[1], "legendgroup": "RL"}
    least = 0.0 if quantity is Quantity.ACCURACY else -math.inf
    upper = [estimate.value + estimate.error for estimate in measured]
    lower = [max(least, estimate.value - estimate.error) for estimate in measured]
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
    curve = line(x, [estimate.value for estimate in measured], "RL, sampled", "$rl", width=2.6, **place)
    curve |= {"mode": "lines+markers", "marker": {"size": 7, "color": "$rl"}}
    curve |= {"text": [with_error(quantity, estimate) for estimate in measured]}
    curve |= {"hovertemplate": "RL: %{text}<extra></extra>", "showlegend": axes[0] == "x"}
    return [band, curve]


def reward_chart(record: Record) -> Chart | None:
    """The mean reward of each batch that was trained on."""
    steps, rewards = _series(record, "reward_mean")
    if not steps:
        return None
    known = record.folds.batches.signals
    error = [
        known[row["version"]].error if row["version"] in known else 0.0
        for row in record.steps
        if row.get("reward_mean") is not None
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
    note = "Mean reward of the trajectories of each batch; bars are one standard error, clustered by prompt."
    return Chart("reward", "Training reward", data, layout, note)


def trainer_charts(record: Record) -> list[Chart]:
    """Loss, clip fraction, KL divergences, effective sample size, entropy, gradient norm, a critic's explained variance."""
    wanted = (
        ("loss", "Loss", "loss", "$training"),
        ("clip_fraction", "Clip fraction", "share of tokens", "$control-2"),
        ("approx_kl", "KL to the behaviour policy", "nats (approximate)", "$control-3"),
        ("mismatch_kl", "KL of engine and trainer", "nats, equal weights", "$control-3"),
        ("effective_sample_size", "Effective sample size", "share of tokens", "$control-2"),
        ("entropy", "Entropy", "nats per token", "$reward"),
        ("grad_norm", "Gradient norm", "before clipping", "$control-4"),
        ("explained_variance", "Explained variance", "of returns, by the critic", "$control-2"),
    )
    charts = []
    for key, title, label, color in wanted:
        steps, values = _series(record, key)
        if steps:
            layout = {"xaxis": step_axis(len(record.steps)), "yaxis": axis(label), "showlegend": False}
            trace = line(steps, values, title, color, width=1.6)
            charts.append(Chart(key, title, [trace], layout, _gaps(steps, values), height=210))
    return charts


def _series(record: Record, key: str) -> tuple[list[float], list[Any]]:
    """Steps and what a figure was at each; None where that was infinite or no number, as of a loss that overflowed."""
    rows = [row for row in record.steps if row.get(key) is not None]
    return [float(row["step"]) for row in rows], [row[key] if math.isfinite(row[key]) else None for row in rows]


def _gaps(steps: list[float], values: list[Any]) -> str:
    """A note of the gaps in a curve; empty if it has none."""
    gaps = [step for step, value in zip(steps, values, strict=True) if value is None]
    return f"Infinite, or no number, at {len(gaps)} of {len(steps)} steps, first at step {gaps[0]:.0f}." if gaps else ""
