"""Commands that need no GPU: fleets in virtual time, and random trials of the executor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app

Prices = Annotated[
    list[str] | None,
    typer.Option(
        "--price", metavar="DEVICE=NUMBER", help="Price of a device for an hour, in your currency. Repeatable."
    ),
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, help="Simulations at once. Default: one per core.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object for scripts.")]


@app.command("simulate")
def simulate_command(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A TOML file or the name of an app (its quick start).")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key, such as fleet.rollout.gpus=64. Repeatable."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", help="Seed of lengths, rewards and failures. Default: the configuration's."
        ),
    ] = None,
    prices: Prices = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", "--out", metavar="DIR", help="A new run directory. Default: simulations/NAME-TIME."),
    ] = None,
    as_json: AsJson = False,
    no_events: Annotated[
        bool, typer.Option("--no-events", help="Write no event log: sooner done, and nothing to explain.")
    ] = False,
) -> None:
    """Try a configuration on a modelled fleet: throughput, staleness, bubbles, cost. Needs no GPU."""
    from tailrace.cli.simulations.simulate import SimulateOptions, simulate

    options = SimulateOptions(
        target=config,
        settings=tuple(settings or ()),
        seed=seed,
        prices=tuple(prices or ()),
        run_dir=run_dir,
        as_json=as_json,
        keep_events=not no_events,
    )
    raise typer.Exit(simulate(options))


@app.command("compare")
def compare_command(
    systems: Annotated[
        list[str],
        typer.Argument(
            metavar="SYSTEM...", help="Each a TOML file or an app's name, to simulate, or a run directory, to read."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key of all that are simulated. Repeatable."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Seed of all simulations. Default: each configuration's own."),
    ] = None,
    prices: Prices = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new directory. Default: simulations/compare-TIME.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put systems side by side: simulated ones, and real runs as they were measured."""
    from tailrace.cli.simulations.compare import CompareOptions, compare

    options = CompareOptions(
        targets=tuple(systems),
        settings=tuple(settings or ()),
        seed=seed,
        prices=tuple(prices or ()),
        out=out,
        as_json=as_json,
    )
    raise typer.Exit(compare(options))


@app.command("plan")
def plan_command(
    target: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A TOML file with a table [fleet], or with what runs measured.")
    ],
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", metavar="N", min=1, help="Devices in all; with pools or sites, at most so many."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key first. Repeatable.")
    ] = None,
    bound: Annotated[
        int | None,
        typer.Option(
            "--bound", metavar="N", min=0, help="Highest staleness. Default: the configuration's bound, or 4."
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option("--objective", metavar="throughput|cost", help="What is best.")
    ] = "throughput",
    prices: Prices = None,
    jobs: Jobs = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the best as a configuration.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write what was found as JSON.")
    ] = None,
) -> None:
    """Search splits of devices and mixes of policies in the simulator, under a bound on staleness."""
    from tailrace.cli.simulations.plan import PlanOptions, show_plan

    status = show_plan(
        PlanOptions(
            target=target,
            gpus=gpus,
            settings=tuple(settings or ()),
            bound=bound,
            objective=objective,
            prices=tuple(prices or ()),
            jobs=jobs,
            out=out,
            json_file=json_file,
        )
    )
    raise typer.Exit(status)


@app.command("reproduce")
def reproduce_command(
    paper: Annotated[
        str, typer.Argument(metavar="PAPER", help="laminar, staleflow, rollpacker, streamrl, robustrl, or all.")
    ],
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ID", help="One target, such as LAM-BCAST. Repeatable.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write every target as JSON.")
    ] = None,
    page: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with both as bars.")] = None,
    jobs: Jobs = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer batches: sooner done, and noisier.")] = False,
) -> None:
    """Put a paper's printed numbers beside what the simulator finds."""
    from tailrace.cli.simulations.reproduce import ReproduceOptions, show_reproduction

    show_reproduction(
        ReproduceOptions(paper=paper, only=tuple(only or ()), json_file=json_file, page=page, jobs=jobs, quick=quick)
    )


@app.command("profile")
def profile_command(
    target: Annotated[
        str, typer.Argument(metavar="CONFIG", help="The name of an app (its quick start) or a TOML file.")
    ] = "laminar",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="A new TOML file. Default: CONFIG-machine.toml, with --parallelism CONFIG-parallelism.toml.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", help="Steps of training to measure at most; by default 50."),
    ] = None,
    parallelism: Annotated[
        bool,
        typer.Option(
            "--parallelism",
            help="Measure replicas of 1, 2, 4, ... devices instead, and write the file that `rollout.parallelism` names.",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key. Repeatable.")
    ] = None,
) -> None:
    """Measure this machine's engine and trainer in a short run, and write a file that `simulate` reads."""
    from tailrace.cli.simulations.profile import ProfileOptions, profile, profile_sizes

    options = ProfileOptions(target=target, out=out, steps=steps, settings=tuple(settings or ()))
    raise typer.Exit(profile_sizes(options) if parallelism else profile(options))


@app.command("fuzz")
def fuzz_command(
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Seeds to run.")] = 200,
    first_seed: Annotated[int, typer.Option("--first-seed", metavar="S", help="The first of them.")] = 0,
    replay: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Run a case that was saved, in place of seeds.")
    ] = None,
    as_run: Annotated[
        bool, typer.Option("--as-run", help="With --replay: print the case as a command of `tailrace run`.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Seeds at once, each on its core.")] = 1,
    shrink_s: Annotated[
        float,
        typer.Option("--shrink-for", metavar="SECONDS", min=0, help="Time to make what broke smaller; 0 for none."),
    ] = 20.0,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where what broke is saved.", show_default="here")
    ] = Path(),
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="AXIS=NAME", help="A plugin that is in every case. Repeatable."),
    ] = None,
    plugins: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME", help="The same by its name alone, whatever axis it is on. Repeatable."),
    ] = None,
) -> None:
    """Try random pipelines, fleets and faults in the simulator, and check the invariants at every event."""
    from tailrace.cli.simulations.fuzz import FuzzOptions, run

    options = FuzzOptions(
        seeds=seeds,
        first_seed=first_seed,
        replay=replay,
        as_run=as_run,
        jobs=jobs,
        shrink_s=shrink_s,
        out=out,
        policies=tuple(policies or ()),
        plugins=tuple(plugins or ()),
    )
    raise typer.Exit(run(options))
