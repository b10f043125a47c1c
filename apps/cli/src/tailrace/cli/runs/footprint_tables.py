"""What a run takes of devices and hosts, in tables: who stands where, memory by owner, transfers, and a step's forecast."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.contracts import TailraceError
from tailrace.fleetsim.footprint import Footprint, MemoryPlace, OwnedBytes
from tailrace.fleetsim.footprint.memory import gigabytes

_LEAST_SHARE = 0.002


def show_footprint(found: Footprint, console: Console) -> None:
    """Print all tables; the forecast only where the devices are known."""
    if found.standing.seats:
        console.print(_standing(found))
    console.print(_memory(found.places))
    console.print(_transfers(found))
    for note in (*found.notes, *found.cautions):
        console.print(Text(f"note: {note}", style="dim"))
    if found.machines.device is not None:
        _show_forecast(found, console)


def _standing(found: Footprint) -> Table:
    """Each device of each machine with who stands on it, and who stands on the machine without one."""
    table = _table("Who stands where", "machine", "device: who", "without a device")
    for node, (devices, beside) in enumerate(found.standing.by_machine(found.config, found.machines)):
        site = found.machines.at(node).site
        listed = ", ".join(f"{index}: {' + '.join(who) or 'free'}" for index, who in devices.items())
        table.add_row(f"{node}{f' ({site})' if site else ''}", listed, ", ".join(beside))
    return table


def _memory(places: Iterable[MemoryPlace]) -> Table:
    table = _table("Memory, by arithmetic", "where", "who", "what", "in all", "of")
    for place in places:
        first = True
        for owner, size in place.owners().items():
            if size < _LEAST_SHARE * place.peak:
                continue
            total, there = gigabytes(place.peak), "" if place.capacity is None else gigabytes(place.capacity)
            parts = _parts(part for part in place.parts if part.owner == owner)
            table.add_row(*((place.name,) if first else ("",)), owner, parts, *((total, there) if first else ("", "")))
            first = False
        table.add_section()
    return table


def _parts(parts: Iterable[OwnedBytes]) -> str:
    """Parts in words; those of one phase have its name behind them."""
    words: dict[tuple[str, str], float] = {}
    for part in parts:
        words[part.what, part.phase] = words.get((part.what, part.phase), 0.0) + part.size
    return ", ".join(
        f"{what} {gigabytes(size)}{f' ({phase})' if phase else ''}" for (what, phase), size in words.items() if size
    )


def _transfers(found: Footprint) -> Table:
    table = _table("A step moves at most", "what", "by", "bytes", "seconds", "the trainer", "rate from")
    for one in found.transfers:
        table.add_row(
            one.what,
            one.by,
            gigabytes(one.size) if one.size else "",
            "" if one.seconds is None else f"{one.seconds:,.2f}",
            "waits" if one.blocking else "goes on",
            "" if one.seconds is None else one.source,
        )
    return table


def _show_forecast(found: Footprint, console: Console) -> None:
    try:
        result = found.forecast()
    except TailraceError as error:
        console.print(Text(f"no forecast of a step: {error}", style="dim"))
        return
    busy = ", ".join(f"{role} {100 * share:.0f} %" for role, share in result.utilisation.items())
    console.print(
        f"Forecast of a step, simulated: {result.step_s:,.1f} s, {result.tokens_per_s:,.0f} trained tokens/s, "
        f"staleness {result.staleness_mean:.2f} mean, {result.staleness_max} at most; busy: {busy}"
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", header_style="dim", vertical="top")
    return table
