"""``tailrace plan``: searches splits of devices and mixes of policies, and shows the best beside the configuration's own."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.cli.errors import INTERRUPTED, CommandError
from tailrace.cli.outputs import check_file, write_file
from tailrace.cli.runs.config import toml_key, toml_value
from tailrace.cli.runs.stopping import interrupts
from tailrace.cli.simulations.simulate import check_used, read_prices, with_prices
from tailrace.fleetsim.fleet.config import fleet_config
from tailrace.fleetsim.hardware import find_device
from tailrace.fleetsim.plan import Option, Search, Split, devices_of, plan
from tailrace.pipeline.config.loading import merge, parse_setting
from tailrace.pipeline.config.models import Choice, RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.pipeline.config.target import configuration, rooted
from tailrace.pipeline.run.facts import facts_of
from tailrace.repack import Balanced, StageShare, batch_like, share_devices
from tailrace.report.reason_words import duration, money, price


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The command line of ``tailrace plan``."""

    target: str
    gpus: int | None = None
    settings: tuple[str, ...] = ()
    bound: int | None = None
    objective: str = "throughput"
    prices: tuple[str, ...] = ()
    jobs: int | None = None
    out: Path | None = None
    json_file: Path | None = None


def show_plan(options: PlanOptions) -> int:
    """Search and print. Returns the exit status: that of an interruption has the best that was met.

    Raises:
        TailraceError: an option or the configuration is wrong.
    """
    if options.objective not in ("throughput", "cost"):
        raise CommandError(f"--objective {options.objective}: expected throughput or cost")
    _check_files(options)
    measured = configuration(options.target, settings=options.settings)
    if is_measured(measured):
        _show_measured(measured, options)
        return 0
    prices = read_prices(options.prices)
    config = with_prices(measured, prices)
    table = fleet_config(config.fleet)
    check_used(prices, {find_device(name).name for name in devices_of(table)})
    console = plain_console()
    with interrupts(), console.status("splits") as status:
        search = plan(
            config,
            gpus=options.gpus,
            bound=options.bound,
            objective="cost" if options.objective == "cost" else "throughput",
            processes=options.jobs,
            said=status.update if console.is_terminal else _Lines(),
        )
    show(search, console)
    if options.out is not None:
        best = search.options[0]
        found = f"{best.split}; {best.policies}{'' if search.complete else ' (the search was interrupted)'}"
        write_file(options.out, written(options, options.out, found, best.settings))
        console.print(Text(f"Written as a configuration: {options.out}"), soft_wrap=True)
    if options.json_file is not None:
        write_file(options.json_file, json.dumps(_plain(search), indent=1) + "\n")
    return 0 if search.complete else INTERRUPTED


def _show_measured(config: RunConfig, options: PlanOptions) -> None:
    """Share devices by what was measured of both stages, and print how."""
    if options.gpus is None:
        raise CommandError("found no number of devices, expected --gpus N")
    if options.prices or options.objective != "throughput" or options.bound is not None:
        raise CommandError(
            f"{options.target}: found --price, --objective or --bound for a plan from measured runs, expected --gpus alone; a "
            "table 'fleet' with a model is searched by them"
        )
    plan = plan_measured(config, options.gpus)
    share = plan.share
    print(f"Best: {plan}.")
    print(
        f"Predicted: {share.generation.seconds:.3g} s of generation and {share.training_s:.3g} s of training a batch; an "
        f"iteration takes {share.iteration_s:.3g} s."
    )
    for line in _lines(plan.settings()):
        print(f"  {line}")
    if options.out is not None:
        write_file(options.out, written(options, options.out, str(plan), plan.settings()))
        print(f"Written as a configuration: {options.out}")
    if options.json_file is not None:
        write_file(options.json_file, json.dumps({"devices": plan.devices, **asdict(share)}, indent=1) + "\n")


class _Lines:
    """Prints a line every few seconds, where there is no terminal."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s, self._last_s = every_s, time.monotonic()

    def __call__(self, said: str) -> None:
        now = time.monotonic()
        if now - self._last_s >= self._every_s:
            self._last_s = now
            print(said, file=sys.stderr, flush=True)


def _check_files(options: PlanOptions) -> None:
    """Check that what is found can be written, and not over the configuration that is searched.

    Raises:
        CommandError: it cannot.
    """
    check_file("--out", options.out)
    check_file("--json", options.json_file)
    for option, path in (("--out", options.out), ("--json", options.json_file)):
        if path is not None and path.exists() and Path(options.target).exists() and path.samefile(options.target):
            raise CommandError(f"{option} {path}: found the configuration that is searched, expected another file")


def written(options: PlanOptions, out: Path, found: str, settings: Mapping[str, Any]) -> str:
    """What was found, in words and as settings, as a configuration file that is based on the searched one.

    The changes by ``--set`` with which it was searched are in it too.
    """
    target, changed = options.target, dict[str, Any]()
    for text in options.settings:
        changed = merge(changed, rooted(parse_setting(text), Path()))
    lines = list(_lines(merge(changed, settings)))
    if target.endswith(".toml"):
        app = configuration(target, settings=options.settings).app
        head = [f"app = {toml_value(app)}", f"base = {toml_value(os.path.relpath(target, out.parent))}"]
    else:
        head = [f"app = {toml_value(target)}", 'base = "quickstart"']
    return "\n".join([f"# Found by tailrace plan: {found}.", *head, *lines, ""])


def _lines(content: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _lines(value, f"{above}{toml_key(key)}.")
        else:
            yield f"{above}{toml_key(key)} = {toml_value(value)}"


def show(search: Search, console: Console) -> None:
    """Print the best option, the table of the last rung, and the policies of each of its rows."""
    best = search.options[0]
    if not search.complete:
        how = ", of short simulations with one seed each" if best.seeds == 1 else ""
        done = f"Interrupted after {search.simulations} of about {search.expected} simulations"
        console.print(Text(f"{done}. The best so far{how}:", style="yellow"))
    for line in _answer(search, best):
        console.print(Text(line, style="bold"))
    console.print()
    console.print(_table(search))
    console.print("Stale, max: mean and highest staleness. Train, gen.: share of time that each works.", style="dim")
    console.print("\nPolicies: admission, sync, routing, relocation, training", style="dim")
    for place, option in enumerate(search.options, start=1):
        for line in textwrap.wrap(
            option.policies,
            console.width - 4,
            initial_indent=f"{place:2}  ",
            subsequent_indent="    ",
            break_on_hyphens=False,  # names are searched for and copied
        ):
            console.print(Text(line))
    console.print(
        Text(
            f"\n{search.simulations} simulations; {len(search.refused)} candidates did not fit or broke the bound of "
            f"{search.bound}.",
            style="dim",
        )
    )


def _answer(search: Search, best: Option) -> Iterator[str]:
    faster = ""
    if search.own is not None and search.own is not best:
        faster = f", {best.tokens_per_s / search.own.tokens_per_s:.2f} times the configuration's own policies"
    yield f"Best: {_devices(best.split, best.devices)}: {best.tokens_per_s:,.0f} tokens/s{faster}."
    yield f"Policies: {best.policies}."
    takes = f"{search.goal} take {duration(best.finish_s)}" if best.finish_s is not None else ""
    if best.price_per_hour is not None and best.cost_per_mtoken is not None:
        costs = f"{money(best.price_per_hour)} an hour, {price(best.cost_per_mtoken)} for a million trained tokens"
        if best.finish_s is not None:
            takes += f" and cost {money(best.price_per_hour * best.finish_s / 3600)}"
        yield f"{takes}; {costs}." if takes else f"{costs}."
    elif takes:
        yield f"{takes}."


def _devices(split: Split, devices: Mapping[str, int]) -> str:
    kind = next(iter(devices)) if len(devices) == 1 else "GPUs"
    if split.pools:
        generating = [
            f"{pool.gpus:,} {pool.device}{f' at {pool.site}' if pool.site else ''} (replicas of {pool.tensor_parallel})"
            for pool in split.pools
        ]
        return f"{split.trainer:,} train, {' and '.join(generating)} generate"
    replicas = f"replicas of {split.tensor_parallel}"
    if split.colocated:
        return f"{split.rollout:,} {kind} train and generate in turn ({replicas})"
    return f"{split.trainer:,} {kind} train, {split.rollout:,} generate ({replicas})"


def _table(search: Search) -> Table:
    """The options as rows. Cells wrap where the terminal is narrow; nothing is cut."""
    priced = any(option.cost_per_mtoken is not None for option in search.options)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = ["", "split, TP", "tokens/s", "stale", "max", "train", "gen.", "finish"]
    for name in [*names, "per Mtok."] if priced else names:
        table.add_column(name, justify="left" if name.startswith("split") else "right", overflow="fold")
    for place, option in enumerate(search.options, start=1):
        split = option.split
        parts = "in turn" if split.colocated else f"{split.trainer:,} + {split.rollout:,}"
        where = str(split) if split.pools else f"{parts}, {split.tensor_parallel}"
        row = [
            str(place),
            where,
            f"{option.tokens_per_s:,.0f}",
            f"{option.staleness_mean:.1f}",
            str(option.staleness_max),
            f"{option.utilisation['trainer']:.0%}",
            f"{option.utilisation['replica']:.0%}",
            "" if option.finish_s is None else duration(option.finish_s),
        ]
        if priced:
            row.append("" if option.cost_per_mtoken is None else price(option.cost_per_mtoken))
        table.add_row(*(Text(cell, style="bold" if place == 1 else "") for cell in row))
    return table


def _plain(search: Search) -> dict[str, Any]:
    options = [{**asdict(option), "split": str(option.split)} for option in search.options]
    return {
        "options": options,
        "simulations": search.simulations,
        "refused": search.refused,
        "bound": search.bound,
        "goal": search.goal,
        "complete": search.complete,
    }


# Devices of both stages from what was measured of them, without a simulation: StreamRL's Algorithm 1 (section 4.2).


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """How devices are shared between both stages.

    Args:
        devices: in all.
        share: those of each stage.
    """

    devices: int
    share: StageShare

    def settings(self) -> dict[str, Any]:
        """This split as a layer of a configuration."""
        generation = self.share.generation
        return {
            "trainer": {"processes": self.share.train},
            "rollout": {"replicas": generation.replicas, "options": {"tensor_parallel_size": generation.size}},
            "pipeline": {"provisioning": {"devices": self.devices - self.share.train}},
        }

    def __str__(self) -> str:
        generation, share = self.share.generation, self.share
        left = self.devices - generation.devices - share.train
        return (
            f"{generation.devices} of {self.devices} devices generate (replicas: {generation.replicas}, of {generation.size} "
            f"each), {share.train} train{f', {left} would save nothing' if left else ''}"
        )


def is_measured(config: RunConfig) -> bool:
    """Whether a configuration has what was measured of both stages, and no fleet to simulate."""
    measured = {"replica_costs", "training_times", "lengths"} <= set(config.pipeline.provisioning.options)
    return measured and config.fleet.get("model") is None


def plan_measured(config: RunConfig, devices: int) -> MeasuredPlan:
    """Share devices so that an iteration takes as little as can be, if both stages overlap.

    Raises:
        CommandError: the stages of the configuration do not overlap.
        ConfigError: an option is wrong.
        RepackError: nothing fits.
    """
    pipeline = config.pipeline
    free = {name: value for name, value in pipeline.provisioning.options.items() if name not in ("devices", "fewest")}
    trajectories = pipeline.prompts_per_step * pipeline.samples_per_prompt
    facts = dataclasses.replace(facts_of(config), trainer_devices=None)  # the plan says how many
    policy = build_policy("provisioning", Choice(name=pipeline.provisioning.name, **free), facts)
    assert isinstance(policy, Balanced)
    if build_policy("admission", pipeline.admission).gate(pipeline.prompts_per_step).bound == 0:
        raise CommandError(
            f"key 'pipeline.admission': found {pipeline.admission.name!r}, where stages take turns, expected stages that "
            "overlap, such as with 'one-step'; a table 'fleet' with a model is simulated instead"
        )
    batch = batch_like(policy.lengths, trajectories)
    share = share_devices(devices, batch, policy.replica_costs, policy.training_times, slots=policy.slots)
    return MeasuredPlan(devices, share)
