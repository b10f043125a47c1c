"""``tailrace watch``: a page over a run's log in the browser; with ``--demo`` of a run that is simulated for it."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import typer

from tailrace.cli.errors import CommandError
from tailrace.cli.runs.stopping import interrupts
from tailrace.pipeline.run.directory import RunDirectory, read_json

DEMO_S = 240.0
"""Seconds that the demo's run takes to be replayed."""
_STEPS = 24
_DEMO = {
    "app": "laminar",
    "task": {"name": "long-chain-sum", "held_out_size": 12},
    "pipeline": {
        "steps": _STEPS,
        "prompts_per_step": 16,
        "samples_per_prompt": 8,
        "prompts_per_replica": 8,
        "buffer_prompts": 48,
    },
    "rollout": {"max_tokens": 8192, "replicas": 6},
    "relay": {"count": 2},
    "fleet": {
        "model": "Qwen2.5-7B",
        "trainer": {"gpus": 4},
        "rollout": {"gpus": 6, "start_s": 5.0, "restart_s": 20.0},
        "delays": {"trainer_restart_s": 30.0, "relay_restart_s": 10.0},
        "workload": {"response": [{"median": 900, "sigma": 0.9}], "correlation": 0.3},
        "steady": False,
        "warm_up": 0,
    },
    "faults": ["replica:r2@step6", "trainer@step13"],
}


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The command line of ``tailrace watch``."""

    run: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    token: bool = True
    speed: float | None = None
    demo: bool = False


def watch(options: WatchOptions) -> None:
    """Serve the page until Ctrl-C, which does nothing to the run.

    Raises:
        TailraceError: the run is not there, or the address cannot be listened at. Nothing was started.
    """
    from tailrace.report.watch import server
    from tailrace.report.watch.following import FollowedRun

    if (options.run is None) != options.demo:
        found = "neither RUN nor --demo" if options.run is None else "RUN and --demo"
        raise CommandError(f"found {found}, expected one of them")
    server.need_watch()
    token = server.new_token() if options.token or not server.is_loopback(options.host) else ""
    with (
        interrupts(),  # what a demo wrote goes with it, however it ends
        server.listen(options.host, options.port) as listener,
        _run(options) as (directory, speed),
    ):
        # The server ends in order by SIGTERM, not by a terminal that closes.
        if signal.getsignal(signal.SIGHUP) is signal.default_int_handler:
            signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
        followed = FollowedRun(directory, speed=options.speed or speed)
        url = server.url_of(options.host, listener.getsockname()[1], token)
        typer.echo(f"watch {directory.root.name} at {url}")
        typer.echo("Ctrl-C ends the page and does nothing to the run.", err=True)
        with suppress(KeyboardInterrupt):
            server.serve(followed, listener, host=options.host, token=token)


@contextmanager
def _run(options: WatchOptions) -> Iterator[tuple[RunDirectory, float | None]]:
    """The run, and how fast it is replayed; None: not at all."""
    if options.run is not None:
        yield RunDirectory.open(options.run), None
        return
    folder = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    try:
        directory = _demo(folder / "demo")
        yield directory, float(read_json(directory.status)["wall_s"]) / DEMO_S
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _demo(root: Path) -> RunDirectory:
    """Simulate a run in which members die."""
    from tailrace.fleetsim.results.run_directory import log_into
    from tailrace.pipeline.config.loading import validate

    return log_into(root, validate([("demo", _DEMO)]))
