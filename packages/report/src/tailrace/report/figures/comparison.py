"""Several systems side by side: one table, with a column for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.controller.members import REPLICA, TRAINER
from tailrace.report.figures.system import Figures
from tailrace.report.html.page import Table
from tailrace.report.reason_words import device_hours, duration, money, percent, price

UNKNOWN = "not known"
LEAST_SHARE = 0.005  # of a role's time: smaller causes are left out
SPOKEN = {TRAINER: "trainer", REPLICA: "replicas"}


def unique(names: Sequence[str]) -> list[str]:
    """The names, numbered where one comes again."""
    found: list[str] = []
    for name in names:
        number, wanted = 2, name
        while wanted in found:
            wanted, number = f"{name} ({number})", number + 1
        found.append(wanted)
    return found


def rate(systems: Sequence[Figures]) -> tuple[str, list[float]]:
    """What throughput is compared by, and of each system: prompts count if that is known of all of them."""
    whole = [figures.tokens_per_s for figures in systems]
    if all(tokens is not None for tokens in whole):
        return "tokens/s trained on", [tokens or 0.0 for tokens in whole]
    return "response tokens/s trained on", [figures.response_tokens_per_s for figures in systems]


def ratios(systems: Sequence[Figures]) -> list[float | None]:
    """Throughput of each relative to the first; None where that has none."""
    _, rates = rate(systems)
    return [value / rates[0] if rates[0] else None for value in rates]


def comparison(systems: Sequence[Figures]) -> Table:
    """The table. A row that is known of no system is left out."""
    compared, rates = rate(systems)
    rows = [["", *("simulated" if figures.simulated else "measured" for figures in systems)]]

    def row(name: str, say: Callable[[Figures], str | None]) -> None:
        said = [say(figures) for figures in systems]
        if any(text is not None for text in said):
            rows.append([name, *(UNKNOWN if text is None else text for text in said)])

    of = {figures.name: (value, ratio) for figures, value, ratio in zip(systems, rates, ratios(systems), strict=True)}
    row(compared, lambda f: f"{of[f.name][0]:,.0f}")
    row("  per GPU", lambda f: f"{of[f.name][0] / f.gpus:,.0f}" if f.gpus else None)
    row(f"relative to {systems[0].name}", lambda f: relative(of[f.name][1]))
    _add_price(row, systems)
    row("staleness mean", lambda f: f"{f.staleness_mean:.2f}")
    row("staleness max", lambda f: str(f.staleness_max))
    row("step", lambda f: f"{f.step_s:,.1f} s")
    row("generated tokens/s", lambda f: _number(f.generated_tokens_per_s))
    for role in (TRAINER, REPLICA):
        _add_role(row, systems, role)
    row("KV cache in use", lambda f: None if f.kv_share is None else percent(f.kv_share))
    row("running at once", lambda f: _number(f.running))
    row("preemptions", lambda f: None if f.preemptions is None else f"{f.preemptions:,}")
    row("repacks a batch", lambda f: f"{f.moves_per_batch:.1f}")
    if any(f.interrupting_pulls_per_batch or f.migrated_per_batch for f in systems):
        row("interrupting pulls a batch", lambda f: f"{f.interrupting_pulls_per_batch:,.1f}")
        row("migrated a batch", lambda f: f"{f.migrated_per_batch:,.1f}")
    row("latency mean", lambda f: None if f.latency_mean_s is None else f"{f.latency_mean_s:,.1f} s")
    row("latency max", lambda f: None if f.latency_max_s is None else f"{f.latency_max_s:,.1f} s")
    columns = ["system", *(f"#{figures.name}" for figures in systems)]
    return Table(columns, rows, " ".join(note for figures in systems for note in figures.notes))


def relative(ratio: float | None) -> str | None:
    """A ratio in words."""
    return None if ratio is None else f"{ratio:.2f} x"


def causes(systems: Sequence[Figures], role: str) -> list[str]:
    """Why members of a role did not work, in any system for a share that counts; the largest first."""
    top: dict[str, float] = {}
    for figures in systems:
        used = figures.role(role)
        for cause, _, share in used.bubbles if used is not None else ():
            if share >= LEAST_SHARE:
                top[cause] = max(top.get(cause, 0.0), share)
    return sorted(top, key=lambda cause: -top[cause])


def cause_share(figures: Figures, role: str, cause: str) -> float:
    """Share of a role's time that a cause took."""
    used = figures.role(role)
    return sum(share for named, _, share in used.bubbles if named == cause) if used is not None else 0.0


def _add_price(row: Callable[[str, Callable[[Figures], str | None]], None], systems: Sequence[Figures]) -> None:
    """Money where there are prices, hours of devices where there are none, and how long the training takes."""
    row("price of an hour", lambda f: None if f.price_per_hour is None else money(f.price_per_hour))
    row("price of a million tokens", lambda f: None if f.cost_per_million is None else price(f.cost_per_million))
    if all(figures.price_per_hour is None for figures in systems):
        row("device-hours for a million tokens", lambda f: device_hours(f.device_hours_per_million) or None)
    goals = {figures.goal for figures in systems if figures.finish_s is not None}
    for goal in sorted(goals):

        def takes(figures: Figures, goal: str = goal) -> str | None:
            return None if figures.finish_s is None or figures.goal != goal else duration(figures.finish_s)

        def costs(figures: Figures, goal: str = goal) -> str | None:
            return None if figures.price_to_finish is None or figures.goal != goal else money(figures.price_to_finish)

        row(f"{goal} take", takes)
        row(f"{goal} cost", costs)


def _add_role(
    row: Callable[[str, Callable[[Figures], str | None]], None], systems: Sequence[Figures], role: str
) -> None:
    def busy(figures: Figures) -> str | None:
        share = figures.busy(role)
        return None if share is None else percent(share)

    def because(cause: str) -> Callable[[Figures], str | None]:
        return lambda f: None if f.role(role) is None else percent(cause_share(f, role, cause))

    row(f"{SPOKEN[role]} busy", busy)
    for cause in causes(systems, role):
        row(f"  {cause}", because(cause))


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"
