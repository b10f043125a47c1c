"""``tailrace plan``: searches splits of devices and mixes of policies, and shows the best beside the configuration's own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tailrace.cli.errors import CommandError
from tailrace.fleetsim.plan import Option, Search, plan
from tailrace.pipeline.config.target import configuration


def show_plan(
    target: str,
    *,
    gpus: int,
    settings: tuple[str, ...],
    bound: int | None,
    objective: str,
    jobs: int | None,
    out: Path | None,
    json_file: Path | None,
) -> None:
    """Search and print.

    Raises:
        TailraceError: an option or the configuration is wrong.
    """
    if objective not in ("throughput", "cost"):
        raise CommandError(f"--objective {objective}: expected throughput or cost")
    console = Console()
    config = configuration(target, settings=settings)
    with console.status("splits") as status:
        search = plan(
            config,
            gpus=gpus,
            bound=bound,
            objective="cost" if objective == "cost" else "throughput",
            processes=jobs,
            said=status.update if console.is_terminal else _Lines(),
        )
    console.print(_table(search))
    best = search.options[0]
    own = (
        f", {best.tokens_per_s / search.own.tokens_per_s:.2f} times the configuration's own policies"
        if search.own
        else ""
    )
    console.print(f"Best of {search.simulations} simulations: {best.split}{own}.")
    console.print(f"{len(search.refused)} candidates did not fit or broke the bound.", style="dim")
    if out is not None:
        out.write_text(written(target, out, best))
        console.print(f"Written as a configuration: {out}")
    if json_file is not None:
        json_file.write_text(json.dumps(_plain(search), indent=1) + "\n")


class _Lines:
    """Prints a line every few seconds, where there is no terminal."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s, self._last_s = every_s, time.monotonic()

    def __call__(self, said: str) -> None:
        now = time.monotonic()
        if now - self._last_s >= self._every_s:
            self._last_s = now
            print(said, file=sys.stderr, flush=True)


def written(target: str, out: Path, best: Option) -> str:
    """The best option as a configuration file that is based on the searched one."""
    lines = list(_lines(best.settings))
    if target.endswith(".toml"):
        app = configuration(target).app
        head = [f"app = {json.dumps(app)}", f"base = {json.dumps(os.path.relpath(target, out.parent))}"]
    else:
        head = [f"app = {json.dumps(target)}", 'base = "quickstart"']
    return "\n".join([f"# Found by tailrace plan: {best.split}; {best.policies}.", *head, *lines, ""])


def _lines(content: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _lines(value, f"{above}{key}.")
        else:
            yield f"{above}{key} = {json.dumps(value)}"


def _table(search: Search) -> Table:
    priced = any(option.cost_per_mtoken is not None for option in search.options)
    table = Table(box=None, pad_edge=False)
    for name in ("train + generate", "tokens/s", "staleness", "busy: train", "generate"):
        table.add_column(name, justify="left" if name[0] == "t" and "+" in name else "right", no_wrap=True)
    if priced:
        table.add_column("cost/Mtoken", justify="right")
    table.add_column("policies: admission, sync, routing, relocation, training")
    for option in search.options:
        row = [
            str(option.split),
            f"{option.tokens_per_s:,.0f}",
            f"{option.staleness_mean:.1f}, max {option.staleness_max}",
            f"{option.utilisation['trainer']:.0%}",
            f"{option.utilisation['replica']:.0%}",
        ]
        if priced:
            row.append("" if option.cost_per_mtoken is None else f"{option.cost_per_mtoken:.3f}")
        table.add_row(*row, option.policies)
    return table


def _plain(search: Search) -> dict[str, Any]:
    options = [{**asdict(option), "split": str(option.split)} for option in search.options]
    return {"options": options, "simulations": search.simulations, "refused": search.refused}
