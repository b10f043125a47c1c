"""The command line. Commands import what they need when they run, so that ``--help`` answers at once.

Exit status: 0 done; 1 the run itself failed; 2 something about the command, the configuration or a file is wrong; 130
interrupted. An error is one line on stderr; ``TAILRACE_DEBUG=1`` shows where it came from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tailrace.cli.complaints import DEBUG, complain, one_line
from tailrace.contracts import TailraceError

UsageError: type[Exception] = typer.BadParameter.__mro__[
    1
]  # typer carries its own copy of click, whose names are private

app = typer.Typer(
    name="tailrace",
    help="Reinforcement-learning post-training of language models, asynchronous and fault-tolerant.",
    epilog="Start with: tailrace run laminar",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tailrace {version('tailrace')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


@app.command("run")
def run_command(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="The name of an app (its quick start) or a TOML file.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key, such as pipeline.steps=20. Repeatable."),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", metavar="DIR", help="A new directory. Default: runs/APP-TIME.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of everything that is random.")] = None,
    executor: Annotated[
        str | None,
        typer.Option("--executor", metavar="ray|local", help="Processes on Ray, or threads of this process."),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", metavar="ADDR", help="Join a Ray cluster: auto, or HOST:PORT.")
    ] = None,
    kill: Annotated[
        list[str] | None,
        typer.Option("--kill", metavar="FAULT", help="Kill a member: replica@60s, trainer@step20. Repeatable."),
    ] = None,
    hang: Annotated[
        list[str] | None,
        typer.Option("--hang", metavar="FAULT", help="Stop a whole process, which lives on: trainer@60s. Repeatable."),
    ] = None,
    stall: Annotated[
        list[str] | None,
        typer.Option("--stall", metavar="FAULT", help="Stop an engine inside its process: replica@60s. Repeatable."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on with a run that was interrupted.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live display.")] = False,
) -> None:
    """Train. Needs nothing else: `tailrace run laminar` works without a GPU or a download."""
    from tailrace.cli.run import Options, run

    options = Options(
        target=target,
        settings=tuple(settings or ()),
        run_dir=run_dir,
        seed=seed,
        executor=executor,
        ray_address=ray_address,
        faults=(
            *(("kill", text) for text in kill or ()),
            *(("hang", text) for text in hang or ()),
            *(("stall", text) for text in stall or ()),
        ),
        resume=resume,
        plain=plain,
    )
    raise typer.Exit(run(options))


@app.command("status")
def status_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it until the run ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for scripts.")] = False,
) -> None:
    """Show what a run is doing, from another shell: its roles, and what it waits for."""
    from tailrace.cli.status import status

    status(run, watch=watch, as_json=as_json)


@app.command("report")
def report_command(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]) -> None:
    """Write a run's report.html again; also while it runs, or after it was interrupted."""
    from tailrace.pipeline.run.directory import RunDirectory
    from tailrace.pipeline.run.report import write_report

    typer.echo(str(write_report(RunDirectory.open(run))))


@app.command("explain")
def explain_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    trajectory: Annotated[str, typer.Argument(metavar="TRAJECTORY", help="GROUP.SAMPLE, such as 12.3.")],
) -> None:
    """Tell when and why a trajectory was routed, interrupted, moved, trained on or dropped."""
    from tailrace.cli.explain import explain

    explain(run, trajectory)


@app.command("fit-cost")
def fit_cost_command(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]) -> None:
    """Fit the cost model of decoding to a run's replicas; prints the table to put into a configuration."""
    from tailrace.cli.explain import fit_cost

    fit_cost(run)


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
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", "--out", metavar="DIR", help="A new run directory. Default: simulations/NAME-TIME."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for scripts.")] = False,
    no_events: Annotated[
        bool, typer.Option("--no-events", help="Write no event log: sooner done, and nothing to explain.")
    ] = False,
) -> None:
    """Try a configuration on a modelled fleet: throughput, staleness, bubbles, cost. Needs no GPU."""
    from tailrace.cli.simulate import Options, simulate

    options = Options(
        target=config,
        settings=tuple(settings or ()),
        seed=seed,
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
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new directory. Default: simulations/compare-TIME.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for scripts.")] = False,
) -> None:
    """Put systems side by side: simulated ones, and real runs as they were measured."""
    from tailrace.cli.compare import Options, compare

    options = Options(targets=tuple(systems), settings=tuple(settings or ()), seed=seed, out=out, as_json=as_json)
    raise typer.Exit(compare(options))


@app.command("plan")
def plan_command(
    target: Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file with a table [fleet].")],
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", min=1, help="Devices in all.")],
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
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", min=1, help="Simulations at once. Default: one per core.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the best as a configuration.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write what was found as JSON.")
    ] = None,
) -> None:
    """Search splits of devices and mixes of policies in the simulator, under a bound on staleness."""
    from tailrace.cli.plan import show_plan

    show_plan(
        target,
        gpus=gpus,
        settings=tuple(settings or ()),
        bound=bound,
        objective=objective,
        jobs=jobs,
        out=out,
        json_file=json_file,
    )


@app.command("reproduce")
def reproduce_command(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="laminar or staleflow.")],
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ID", help="One target, such as LAM-BCAST. Repeatable.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write every target as JSON.")
    ] = None,
    picture: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a drawing.")] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", min=1, help="Simulations at once. Default: one per core.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer batches: sooner done, and noisier.")] = False,
) -> None:
    """Put a paper's printed numbers beside what the simulator finds."""
    from tailrace.cli.reproduce import Options, show_reproduction

    show_reproduction(
        Options(paper=paper, only=tuple(only or ()), json_file=json_file, picture=picture, jobs=jobs, quick=quick)
    )


@app.command("profile")
def profile_command(
    target: Annotated[
        str, typer.Argument(metavar="CONFIG", help="The name of an app (its quick start) or a TOML file.")
    ] = "laminar",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="A new TOML file. Default: CONFIG-machine.toml.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Steps of training to measure at most.")] = 50,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key. Repeatable.")
    ] = None,
) -> None:
    """Measure this machine's engine and trainer in a short run, and write a file that `simulate` reads."""
    from tailrace.cli.profile import Options, profile

    raise typer.Exit(profile(Options(target=target, out=out, steps=steps, settings=tuple(settings or ()))))


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
) -> None:
    """Try random pipelines, fleets and faults in the simulator, and check the invariants at every event."""
    from tailrace.cli.fuzz import Options, run

    options = Options(
        seeds=seeds, first_seed=first_seed, replay=replay, as_run=as_run, jobs=jobs, shrink_s=shrink_s, out=out
    )
    raise typer.Exit(run(options))


@app.command("plugins")
def plugins_command() -> None:
    """List apps, policies, engines and every other plugin, with the distribution that brings it."""
    from tailrace.cli.plugins import show_plugins

    show_plugins()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    try:
        status = app(list(arguments) if arguments is not None else None, prog_name="tailrace", standalone_mode=False)
    except UsageError as error:
        _debug()
        return _usage(error)
    except typer.Abort:
        return complain("interrupted", status=130)
    except (TailraceError, OSError) as error:
        _debug()
        return complain(one_line(error))
    return status if isinstance(status, int) else 0


def _usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    where = error.ctx.command_path if error.ctx is not None else "tailrace"
    return complain(f"{one_line(error.format_message()).rstrip('.')}; see {where} --help")


def _debug() -> None:
    """Show where the error came from, for those who asked."""
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exc()


if __name__ == "__main__":
    sys.exit(main())
