"""Commands about runs: begin, look at, explain, break, train again, export, and what a run of one's own begins with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app
from tailrace.cli.errors import FAILED, CommandError


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
        typer.Option("--executor", metavar="ray|local", help="Processes on Ray, or threads of the controller."),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", metavar="ADDR", help="Join a Ray cluster: auto, or HOST:PORT.")
    ] = None,
    kill: Annotated[
        list[str] | None,
        typer.Option(
            "--kill",
            metavar="FAULT",
            help="Kill a member: replica@60s, trainer@step20:backward, relay@every10. Repeatable.",
        ),
    ] = None,
    hang: Annotated[
        list[str] | None,
        typer.Option("--hang", metavar="FAULT", help="Stop a whole process, which lives on: trainer@60s. Repeatable."),
    ] = None,
    stall: Annotated[
        list[str] | None,
        typer.Option("--stall", metavar="FAULT", help="Stop an engine inside its process: replica@60s. Repeatable."),
    ] = None,
    raised: Annotated[
        list[str] | None,
        typer.Option(
            "--raise", metavar="FAULT", help="Raise an exception in a member: trainer@step3:backward. Repeatable."
        ),
    ] = None,
    mtbf: Annotated[
        float | None,
        typer.Option(
            "--mtbf", metavar="SECONDS", min=0.001, help="Kill and hang members at random, so often on average."
        ),
    ] = None,
    fault_seed: Annotated[
        int | None, typer.Option("--fault-seed", metavar="N", help="Seed of faults at random. Default: 0.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Go on with a run; --set may change some keys."),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live display.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, say what would run, and stop.")] = False,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            metavar="NxKIND",
            help="With --dry-run: count the run for these devices, such as 8xH100, in place of this machine's.",
        ),
    ] = None,
) -> None:
    """Train. Needs nothing else: `tailrace run laminar` works without a GPU or a download."""
    from tailrace.cli.runs.run import RunOptions, run

    options = RunOptions(
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
            *(("raise", text) for text in raised or ()),
        ),
        mtbf_s=mtbf,
        fault_seed=fault_seed,
        resume=resume,
        plain=plain,
        dry_run=dry_run,
        devices=devices,
    )
    raise typer.Exit(run(options))


@app.command("attach")
def attach_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live display.")] = False,
) -> None:
    """Take the place of a run's controller that died, while its members live on. Nobody restarts."""
    from tailrace.cli.runs.run import attach

    raise typer.Exit(attach(run, plain=plain))


@app.command("status")
def status_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it until the run ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for scripts.")] = False,
) -> None:
    """Show what a run is doing, from another shell: its roles, and what it waits for."""
    from tailrace.cli.runs.status import status

    status(run, watch=watch, as_json=as_json)


@app.command("watch")
def watch_command(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="A run directory; the run may be under way.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0: a free one.")] = 0,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="HOST", help="Where it listens. Other than loopback: each reader needs the token."
        ),
    ] = "127.0.0.1",
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help="Whether each reader on loopback needs the token: other users of this machine reach that.",
        ),
    ] = True,
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="N", min=0.001, help="Replay the log, so many of its seconds in one."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Without a run: simulate one, and replay it.")] = False,
) -> None:
    """Show a run in the browser: lanes, waits, tokens, devices, alarms, and every trajectory. It only reads."""
    from tailrace.cli.runs.watch import WatchOptions, watch

    watch(WatchOptions(run=run, host=host, port=port, token=token, speed=speed, demo=demo))


@app.command("report")
def report_command(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]) -> None:
    """Write a run's report.html again; also while it runs, or after it was interrupted."""
    from tailrace.pipeline.run.directory import RunDirectory
    from tailrace.report.run_page import write_report

    typer.echo(str(write_report(RunDirectory.open(run))))


@app.command("explain")
def explain_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    trajectory: Annotated[str, typer.Argument(metavar="TRAJECTORY", help="GROUP.SAMPLE, such as 12.3.")],
) -> None:
    """Tell when and why a trajectory was routed, interrupted, moved, trained on or dropped."""
    from tailrace.contracts import shown
    from tailrace.pipeline.run.directory import RunDirectory
    from tailrace.report.explain import explain

    for line in explain(RunDirectory.open(run), trajectory):
        typer.echo(f"{line.at_s:9.2f} s  version {line.version:<4d} {shown(line.text)}")


@app.command("query")
def query_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    sql: Annotated[
        str | None, typer.Argument(metavar="[SQL]", help="A query, in DuckDB's dialect; none: show the tables.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: all rows.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV: all rows.")] = False,
) -> None:
    """Ask SQL of a run's steps, evaluations, events, commands and trajectories."""
    from tailrace.cli.runs.query import query

    if as_json and as_csv:
        raise CommandError("found --json and --csv, expected one of them")
    query(run, sql, "json" if as_json else "csv" if as_csv else "table")


@app.command("fit-cost")
def fit_cost_command(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]) -> None:
    """Fit the cost model of decoding to a run's replicas; prints the table to put into a configuration."""
    from tailrace.cli.runs.fit_cost import fit_cost

    fit_cost(run)


@app.command("clean")
def clean_command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Run directories whose half-written files go too.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """List what a crash left on this machine that nothing alive uses, and remove it: shared memory, Ray clusters of ours."""
    from tailrace.cli.runs.clean import clean

    raise typer.Exit(clean(runs or (), yes=yes))


@app.command("init")
def init_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made if it is not there.")],
) -> None:
    """Write a project that runs: configuration, ten prompts, a verifier and its test. Make it yours from there."""
    from tailrace.cli.runs.init import init

    init(directory)


@app.command("config")
def config_command(
    target: Annotated[
        str, typer.Argument(metavar="[APP|FILE]", help="An app (its quick start) or a TOML file.")
    ] = "laminar",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Lay this over it. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A list of keys for scripts.")] = False,
    as_schema: Annotated[bool, typer.Option("--schema", help="The JSON schema of such files, for editors.")] = False,
) -> None:
    """Print every key of a configuration: meaning, unit, default, value, and where the value comes from.

    What it prints is a configuration: tailrace config laminar > mine.toml
    """
    from tailrace.cli.runs.config import show_config

    show_config(target, settings or (), as_json=as_json, as_schema=as_schema)


@app.command("plugins")
def plugins_command() -> None:
    """List apps, policies, engines and every other plugin, with the distribution that brings it."""
    from tailrace.cli.components.plugins import show_plugins

    show_plugins()


@app.command("audit")
def audit_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run that has finished.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write what was found as JSON.")
    ] = None,
) -> int:
    """Train a run's recorded batches again without faults, and compare the weights bit for bit; status 1 if they differ."""
    from tailrace.cli.outputs import check_file, write_file
    from tailrace.pipeline.run.audit import audit
    from tailrace.pipeline.run.directory import RunDirectory

    check_file("--json", json_file)
    found = audit(RunDirectory.open(run), lambda done, of: typer.echo(f"trained on {done} of {of} batches", err=True))
    typer.echo(f"every trajectory was trained on once   {'yes' if found.trained_once else 'NO'}")
    typer.echo(f"the weights are the same bits          {'yes' if found.weights_equal else 'NO'}")
    typer.echo(f"the run's        {found.weights_sha256}")
    typer.echo(f"trained again    {found.audited_sha256}")
    if json_file is not None:
        write_file(json_file, json.dumps(dataclasses.asdict(found), indent=1) + "\n")
    return 0 if found.trained_once and found.weights_equal else FAILED


@app.command("export")
def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory; the run may be under way.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="The model's directory: new or empty. With --trajectories, a new file."
        ),
    ],
    version: Annotated[
        int | None, typer.Option("--version", metavar="V", help="A version with a checkpoint. Default: the newest.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge an adapter into its base; without it, a directory for PEFT.")
    ] = False,
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="Instead of the model the trajectories trained on, as FILE.parquet.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for scripts.")] = False,
) -> None:
    """Write a run's model as a Hugging Face directory that transformers and vLLM load, with a model card."""
    from tailrace.cli.runs.export import export, export_trajectories

    if trajectories:
        if version is not None or merge:
            raise CommandError("--trajectories: found --version or --merge, which are the model's, expected neither")
        export_trajectories(run, out, as_json=as_json)
        return
    export(run, out, version=version, merge=merge, as_json=as_json)


@app.command("chaos")
def chaos_command(
    target: Annotated[str, typer.Argument(metavar="APP", help="The name of an app (its quick start) or a TOML file.")],
    kills: Annotated[int, typer.Option("--kills", metavar="N", min=1, help="Go on until so many faults have struck.")],
    mtbf: Annotated[
        float, typer.Option("--mtbf", metavar="SECONDS", min=0.001, help="Mean seconds between two faults.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The campaign's directory; one that was cut goes on.")
    ],
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the faults and of the first run.")] = 0,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="The figures. Default: DIR/chaos.json.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the runs. Repeatable.")
    ] = None,
    executor: Annotated[
        str | None, typer.Option("--executor", metavar="ray|local", help="Processes on Ray, or threads of each driver.")
    ] = None,
    roles: Annotated[
        list[str] | None, typer.Option("--role", metavar="ROLE", help="Strike only this one. Repeatable. Default: all.")
    ] = None,
    still: Annotated[
        float,
        typer.Option("--still", metavar="SECONDS", min=1.0, help="Without progress for so long, a run counts as hung."),
    ] = 900.0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Make each run without faults too, and compare held-out accuracy.")
    ] = False,
) -> None:
    """Run an app again and again, kill and hang all its roles and its driver at random, and check that nothing is lost."""
    from tailrace.cli.runs.chaos import ChaosOptions, run

    raise typer.Exit(
        run(
            ChaosOptions(
                target=target,
                out=out,
                kills=kills,
                mtbf_s=mtbf,
                seed=seed,
                settings=tuple(settings or ()),
                executor=executor,
                still_s=still,
                compare=compare,
                roles=tuple(roles or ()),
                json=json,
            )
        )
    )


@app.command("new-plugin")
def new_plugin_command(
    axis: Annotated[
        str,
        typer.Argument(
            metavar="AXIS",
            help="admission, batching, routing, sync, relocation, training, provisioning or recovery.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The plugin's name, such as shortest-first.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="A new folder. Default: one of the plugin's name.")
    ] = None,
) -> None:
    """Write a package with a policy of your own: it installs, passes its axis's contract suite and can be fuzzed."""
    from tailrace.cli.components.new_plugin import new_plugin

    new_plugin(axis, name, directory)
