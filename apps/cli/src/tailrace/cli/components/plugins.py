"""``tailrace plugins``: lists the registered plugins and their distributions, without loading them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from rich.console import Console
from rich.table import Table

from tailrace.cli.console import plain_console

PREFIX = "tailrace."


def registered() -> dict[str, list[EntryPoint]]:
    """Entry points by group, both sorted."""
    groups = sorted(group for group in entry_points().groups if group.startswith(PREFIX))
    return {group: sorted(entry_points(group=group), key=lambda point: point.name) for group in groups}


def show_plugins(console: Console | None = None) -> None:
    """Print a table."""
    console = console if console is not None else plain_console()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("group", "name", "distribution"):
        table.add_column(heading, overflow="fold")
    for group, points in registered().items():
        for index, point in enumerate(points):
            owner = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown"
            table.add_row(group if index == 0 else "", point.name, owner)
    console.print(table)
