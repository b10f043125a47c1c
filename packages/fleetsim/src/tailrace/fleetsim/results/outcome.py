"""A simulation's results in words: rows of a name and a value, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.controller.members import REPLICA, TRAINER
from tailrace.fleetsim.results.watch import Watched
from tailrace.report.figures.comparison import LEAST_SHARE
from tailrace.report.figures.system import Figures
from tailrace.report.reason_words import duration, money, percent, price

BARS = "·▁▂▃▄▅▆▇█"
MOST_CAUSES = 3


def answer(watched: Watched) -> str:
    """What a simulation is asked for, in a sentence or two: speed, staleness, duration and price."""
    figures = watched.figures
    trained = figures.tokens_per_s if figures.tokens_per_s is not None else figures.response_tokens_per_s
    each = f" ({trained / figures.gpus:,.0f} per GPU)" if figures.gpus else ""
    said = f"{watched.name} trains on {trained:,.0f} tokens/s{each} at a staleness of {figures.staleness_mean:.2f}, "
    said += f"{figures.staleness_max} at most."
    if figures.finish_s is None:
        return said
    said += f" {figures.goal} take {duration(figures.finish_s)}"
    if figures.price_to_finish is not None and figures.cost_per_million is not None:
        said += f" and cost {money(figures.price_to_finish)}: {price(figures.cost_per_million)} for a million tokens"
    return f"{said}."


def rows(watched: Watched) -> list[tuple[str, str]]:
    """Names and values of a simulation's main results. A value may have several lines."""
    result, figures = watched.result, watched.figures
    found = [
        ("throughput", throughput(figures)),
        ("staleness", staleness(figures)),
        *([("finish", finish(figures))] if figures.finish_s is not None else []),
        *([("cost", cost(figures, result.duration_s))] if figures.devices else []),
        ("fleet", figures.fleet),
        *((name, text) for name, text in _workload(watched)),
        ("measured", _measured(watched)),
        ("step", f"{figures.step_s:,.1f} s{_parts_of_a_step(watched)}"),
        *([("effective time", _effective(watched))] if _may_fail(watched) else []),
        *((name, text) for name, text in _roles(figures)),
        ("KV cache", kv(figures)),
        ("relocation", relocation(watched)),
        ("latency", f"{result.latency_mean_s:,.1f} s mean, {result.latency_max_s:,.1f} s max of a trajectory"),
        (
            "weights",
            f"a pull takes {short(result.pull_mean_s)}, a publish stalls the trainer for {short(result.stall_s)}",
        ),
    ]
    if result.lost_trajectories:
        found.append(("lost", f"{result.lost_trajectories:,} trajectories"))
    return found


def _may_fail(watched: Watched) -> bool:
    fleet = watched.fleet
    return bool(fleet.faults) or fleet.failures.per_gpu_s > 0


def _effective(watched: Watched) -> str:
    """Effective training time (RobustRL, section 7.2), of the whole run."""
    found = watched.folds.effective_time.figures()
    return f"{found.ettr:.3f}, {found.ettr_strict:.3f} without work that was done again"


def throughput(figures: Figures) -> str:
    """Tokens per second."""
    trained = figures.tokens_per_s if figures.tokens_per_s is not None else figures.response_tokens_per_s
    each = f", {trained / figures.gpus:,.0f} per GPU" if figures.gpus else ""
    made = "" if figures.generated_tokens_per_s is None else f"; generated {figures.generated_tokens_per_s:,.0f}"
    return f"{trained:,.0f} tokens/s trained on{each}{made}"


def staleness(figures: Figures) -> str:
    """Mean, maximum and a histogram in one line."""
    words = f"{figures.staleness_mean:.2f} mean, {figures.staleness_max} max"
    if figures.staleness_max == 0 or not figures.staleness:
        return words
    counts = [figures.staleness.get(lag, 0) for lag in range(figures.staleness_max + 1)]
    top = max(counts)
    shown = "".join(BARS[max(1 if count else 0, round(count / top * (len(BARS) - 1)))] for count in counts)
    return f"{words}   0 {shown} {figures.staleness_max}"


def role(figures: Figures, name: str) -> str:
    """The share of time that a role works, and below it the shares of its other activities."""
    used = figures.role(name)
    if used is None:
        return "not known"
    causes = [f"{percent(share):>6} {cause}" for cause, _, share in used.bubbles[:MOST_CAUSES] if share >= LEAST_SHARE]
    return "\n".join([f"{percent(used.busy):>6} busy", *causes])


def kv(figures: Figures) -> str:
    """Use of the KV cache, running trajectories and preemptions."""
    parts = []
    if figures.kv_share is not None:
        parts.append(f"{percent(figures.kv_share)} in use")
    if figures.running is not None:
        parts.append(f"{figures.running:,.0f} trajectories run at once")
    if figures.preemptions is not None:
        parts.append(f"{figures.preemptions:,} preemptions")
    if figures.prefill_share is not None:
        parts.append(f"prefill takes {percent(figures.prefill_share)}")
    return ", ".join(parts) if parts else "not known"


def relocation(watched: Watched) -> str:
    """Trajectories that left a replica before they were complete."""
    parts = [f"{watched.result.moves:,} repacks"] if watched.result.moves else []
    if watched.run.interrupting_pulls:
        parts.append(f"{watched.run.interrupting_pulls:,} pulls interrupted work")
    if watched.run.evictions:
        parts.append(f"{watched.run.evictions:,} trajectories migrated")
    return ", ".join(parts) if parts else "none"


def cost(figures: Figures, duration_s: float) -> str:
    """Money for an hour and for a million tokens where there are prices; hours of devices by their names otherwise."""
    spent = {name: count * duration_s / 3600 for name, count in figures.devices.items()}
    hours = ", ".join(f"{number(value)} {name}-hours" for name, value in spent.items())
    if figures.price_per_hour is not None and figures.cost_per_million is not None:
        return (
            f"{money(figures.price_per_hour)} an hour, {price(figures.cost_per_million)} for a million trained tokens; "
            f"simulated were {hours}"
        )
    each = ", ".join(f"{price(value)} {name}-hours" for name, value in figures.device_hours_per_million.items())
    million = f"{each} for a million trained tokens; " if each else ""
    return f"{million}simulated were {hours}; --price sets the price of a device"


def finish(figures: Figures) -> str:
    """How long the goal takes, and its price."""
    takes = "not known" if figures.finish_s is None else duration(figures.finish_s)
    costs = "" if figures.price_to_finish is None else f", for {money(figures.price_to_finish)}"
    return f"{figures.goal} in {takes}{costs}"


def number(value: float) -> str:
    """A number as text: two decimals below ten, none from there on."""
    return f"{value:,.0f}" if value >= 10 else f"{value:,.2f}"


def short(seconds: float) -> str:
    """A short time."""
    return f"{seconds:,.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.0f} ms"


def _workload(watched: Watched) -> Iterable[tuple[str, str]]:
    for line in str(watched.fleet.workload.describe()).splitlines():
        name, colon, text = line.partition(": ")
        yield (name, text) if colon and name in ("prompt", "response", "environment") else ("", line)


def _measured(watched: Watched) -> str:
    begin_s, end_s = watched.figures.measured_s
    left_out = f" after {watched.fleet.warm_up} of warm-up" if watched.fleet.warm_up else ""
    return f"{watched.figures.batches} batches{left_out}, {duration(end_s - begin_s)} of {duration(watched.result.duration_s)}"


def _parts_of_a_step(watched: Watched) -> str:
    share = watched.result.preparation_share
    return f", {percent(share)} of it experience preparation" if share >= LEAST_SHARE else ""


def _roles(figures: Figures) -> Iterable[tuple[str, str]]:
    yield "trainer", role(figures, TRAINER)
    yield "replicas", role(figures, REPLICA)
