"""``tailrace profile``: measures a short run, and writes the file that a simulation of this machine reads."""

from __future__ import annotations

import math
import os
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tailrace.cli.errors import DEBUG, FAILED, INTERRUPTED, CommandError, complain, one_line
from tailrace.cli.outputs import write_file
from tailrace.cli.runs.fit_cost import rows
from tailrace.cli.runs.preflight import check
from tailrace.cli.runs.stopping import interrupts
from tailrace.controller.errors import ControllerError
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.prompts.reading import sized
from tailrace.runtime.errors import DeadlineError, RoleError, RunFailedError

if TYPE_CHECKING:
    from tailrace.fleetsim.profile.fit import Profile
    from tailrace.fleetsim.profile.run import Progress
    from tailrace.pipeline.config.models import RunConfig
    from tailrace.pipeline.config.parallelism import ParallelismProfile

_Measured = TypeVar("_Measured")
STEPS = 50
BUSY = 0.15  # cores; if other programs use more than this, a measurement is not reliable


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """The command line of ``tailrace profile``."""

    target: str = "laminar"
    out: Path | None = None
    steps: int | None = None
    settings: tuple[str, ...] = ()


def profile(options: ProfileOptions) -> int:
    """Measure this machine and write the file. Returns the exit status.

    Raises:
        TailraceError: the command or the configuration is wrong; no run was started.
    """
    from tailrace.fleetsim.profile.fit import LEAST_STEPS, profile_machine
    from tailrace.fleetsim.profile.machine import machine_toml

    out = _new_file(options, "machine")
    steps = STEPS if options.steps is None else options.steps
    if steps < LEAST_STEPS:
        raise CommandError(f"--steps {steps}: expected at least {LEAST_STEPS} steps to fit to")
    config = configuration(options.target, settings=options.settings)
    if config.pipeline.steps < LEAST_STEPS:
        raise CommandError(
            f"{options.target}: key 'pipeline.steps': found {config.pipeline.steps}, expected at least {LEAST_STEPS} to "
            f"measure; --set pipeline.steps={STEPS} raises it, and --steps measures at most as many"
        )
    config = sized(config, check(config, f"{options.target}: "))
    started = time.monotonic()
    profiled = _measured(lambda root, progress: profile_machine(config, root, out.stem, steps=steps, progress=progress))
    if isinstance(profiled, int):
        return profiled
    write_file(out, machine_toml(profiled.machine))
    for line in lines(profiled):
        print(line)
    for line in begins(profiled, config):
        print(line)
    print(f"\nwrote {out} after {time.monotonic() - started:.0f} s; simulate with it:")
    print(f"  {shlex.join(['tailrace', 'simulate', options.target, '--set', f'fleet.profile={out}'])}")
    return 0


def profile_sizes(options: ProfileOptions) -> int:
    """Measure replicas of every size that this machine allows, and write the file. Returns the exit status.

    Raises:
        TailraceError: the command or the configuration is wrong, or no size works.
    """
    from tailrace.fleetsim.profile.parallelism import parallelism_toml, profile_parallelism

    if options.steps is not None:
        raise CommandError(
            f"found --steps {options.steps} with --parallelism, expected one of them: no step is trained"
        )
    out = _new_file(options, "parallelism")
    config = configuration(options.target, settings=options.settings)
    config = sized(config, check(config, f"{options.target}: "))
    started = time.monotonic()
    found = _measured(lambda root, progress: profile_parallelism(config, root, progress=progress))
    if isinstance(found, int):
        return found
    write_file(out, parallelism_toml(found.profile))
    for line in size_lines(found.profile):
        print(line)
    for line in found.left_out:
        print(f"left out      {line}")
    if found.others_cores > BUSY:
        print(_busy(found.others_cores))
    print(f"\nwrote {out} after {time.monotonic() - started:.0f} s; run or simulate with it:")
    print(f"  {shlex.join(['tailrace', 'run', options.target, '--set', f'rollout.parallelism={out}'])}")
    return 0


def size_lines(profile: ParallelismProfile) -> Iterator[str]:
    """Measured sizes as lines of text."""
    yield profile.measured
    lengths = profile.lengths
    yield (
        f"responses     {lengths[0]} to {lengths[-1]} tokens, half of them up to {lengths[len(lengths) // 2]}; sequences of up "
        f"to {profile.longest} were timed"
    )
    for size in profile.sizes:
        most = max(size.timings, key=lambda one: (one[0], one[1]), default=None)
        full = "" if most is None else f", {most[0]} x {most[1]} tokens decode in {1e3 * most[3]:.3g} ms a step"
        yield (
            f"{size.tp} device{'s' if size.tp > 1 else ' '}     KV cache of {size.kv_tokens:,} tokens{full} (median error of "
            f"the fit {size.error:.0%}); up after {size.start_s:.1f} s, gone after {size.end_s:.1f} s"
        )
    yield (
        f"rounds        short ones begin with {profile.short}, long ones with {profile.long}; never fewer than "
        f"{profile.smallest}; a change of size is charged at {profile.resize_s:.1f} s"
    )


def _busy(cores: float) -> str:
    return f"other programs used {cores:.2f} cores meanwhile: measure again on a quiet machine before you rely on this"


def _new_file(options: ProfileOptions, what: str) -> Path:
    """The file that is written.

    Raises:
        CommandError: it is there, or cannot be.
    """
    out = options.out or Path(f"{Path(options.target).stem}-{what}.toml")
    if out.suffix != ".toml" or out.exists() or not out.parent.is_dir():
        found = (
            "a file that exists" if out.exists() else "no such folder" if out.suffix == ".toml" else "another ending"
        )
        raise CommandError(f"--out {out}: found {found}, expected a new file that ends in .toml")
    return out


def _measured(measure: Callable[[Path, Progress], _Measured]) -> _Measured | int:
    """What was measured in a new run directory, with its progress shown; or the exit status of what broke off."""
    try:
        with (
            interrupts(),
            _progress() as progress,
            tempfile.TemporaryDirectory(prefix="tailrace-profile-") as root,
        ):
            return measure(Path(root) / "run", progress)
    except KeyboardInterrupt:
        return complain("interrupted; nothing was written", status=INTERRUPTED)
    except (RunFailedError, RoleError, DeadlineError, ControllerError) as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        return complain(f"the measured run failed: {one_line(error)}", status=FAILED)


def lines(profile: Profile) -> Iterator[str]:
    """The results as lines of text."""
    machine = profile.machine
    decode, training, delays, weights = machine.decode, machine.training, machine.delays, machine.weights
    yield machine.measured
    yield (
        f"decoding      k1 {decode.k1:.3g}  k2 {decode.k2:.3g}  k3 {decode.k3:.3g}  k4 {decode.k4:.3g} s"
        f"  (median error of the fit {decode.error:.0%})"
    )
    yield (
        f"KV cache      {decode.kv_capacity_tokens:,} tokens in blocks of {decode.block_tokens}, batches of at most "
        f"{decode.max_running}"
    )
    yield (
        f"prefill       {1e6 * machine.prefill.per_token_s:.3g} us a token, "
        f"{1e3 * machine.prefill.per_trajectory_s:.3g} ms a trajectory (error {machine.prefill.error:.0%})"
    )
    yield (
        f"update        {training.fixed_s:.3g} s + {1e6 * training.per_token_s:.3g} us a token + "
        f"{1e6 * training.per_square_token_s:.3g} us a squared length (error {training.error:.0%}); "
        f"batch fetched in {training.batch_s:.3g} s"
    )
    yield from _filling(profile)
    yield (
        f"weights       published in {weights.publish_s:.3g} s, visible {weights.visible_s:.3g} s later, "
        f"pulled in {weights.pull_s:.3g} s"
    )
    yield (
        f"delays        command {delays.route_s:.3g} s, report {delays.report_s / 2:.3g} s, score {delays.score_s:.3g} s, "
        f"checkpoint {delays.checkpoint_s:.3g} s and durable after {delays.durable_s:.3g} s"
    )
    yield f"start-up      replica {delays.start_replica_s:.0f} s, trainer {delays.start_trainer_s:.0f} s"
    yield from _workload(profile)
    yield from _sharing(profile)
    if profile.others_cores > BUSY:
        yield _busy(profile.others_cores)


def begins(profile: Profile, config: RunConfig) -> Iterator[str]:
    """What provisioning `balanced` may begin with, for a batch as large as the configuration's."""
    from tailrace.fleetsim.fleet.quantities import parts
    from tailrace.pipeline.run.build import build_spec
    from tailrace.pipeline.run.figures.stages import at_equal_distances

    machine, pipeline = profile.machine, config.pipeline
    decode, training = machine.decode, machine.training
    trajectories = [(prompt, response) for _, prompt, responses, _ in machine.workload.groups for response in responses]
    share = pipeline.prompts_per_step * pipeline.samples_per_prompt / len(trajectories)
    tokens = sum(prompt + response for prompt, response in trajectories)
    squares = sum((prompt + response) ** 2 for prompt, response in trajectories)
    train_s = training.batch_s + parts(build_spec(config)) * training.fixed_s
    train_s += share * (training.per_token_s * tokens + training.per_square_token_s * squares)
    lengths = at_equal_distances(sorted(response for _, response in trajectories))
    coefficients = decode.k1, decode.k2, decode.k3, decode.k4
    yield 'with provisioning "balanced":'
    for line in rows(config, coefficients, decode.kv_capacity_tokens, train_s, lengths):
        yield f"  {line}"


def _filling(profile: Profile) -> Iterator[str]:
    training, lengths = profile.machine.training, dict(profile.machine.workload.response)
    if 0.5 in lengths and training.per_token_s > 0:
        half, most = (training.filling_tokens(share, lengths[0.5]) for share in (0.5, 0.8))
        yield (
            f"dynamic-batch {half:,.0f} tokens in one go run the trainer at half of its full speed, {most:,.0f} at 80 % "
            "(pipeline.training.tokens)"
        )


def _workload(profile: Profile) -> Iterator[str]:
    workload = profile.machine.workload
    yield (
        f"responses     {_quantiles(workload.response)} tokens; prompts {_quantiles(workload.prompt)}; "
        f"alike within a group {workload.within:.2f}; right {workload.right:.0%}"
    )
    shares = [(version, 1 / (1 + math.exp(-odds))) for version, odds in workload.signal.points]
    chosen = shares[:: max(1, len(shares) // 4)]
    yield "signal        " + ", ".join(f"{share:.0%} of groups at version {version:.0f}" for version, share in chosen)


def _sharing(profile: Profile) -> Iterator[str]:
    sharing = profile.machine.sharing
    if sharing is None:
        return
    yield (
        f"cores         {sharing.cores}, of which {sharing.others:.0%} go to others than replicas and trainer; "
        f"the trainer needs {sharing.alone_s:.3g} s for 1,000 tokens alone, {sharing.beside_s:.3g} s beside replicas"
    )
    for row in profile.shared:
        yield (
            f"  {row.members} computing   each got {row.measured:.2f} of its cores, the simulator gives "
            f"{row.modelled:.2f}  ({row.seconds:.0f} s)"
        )


def _quantiles(pairs: tuple[tuple[float, float], ...]) -> str:
    wanted = {0.5: "p50", 0.9: "p90", 0.99: "p99", 1.0: "longest"}
    return ", ".join(f"{name} {value:g}" for share, name in wanted.items() for at, value in pairs if at == share)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show progress by a bar on a terminal; elsewhere by a line for each phase and every ten steps."""
    if not sys.stdout.isatty():
        yield _Lines()
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    with Bars(TextColumn("{task.description:40}"), BarColumn(), TimeElapsedColumn(), transient=True) as bars:
        task = bars.add_task("preparing", total=None)

        def told(what: str, share: float | None) -> None:
            bars.update(task, description=what, total=None if share is None else 1.0, completed=share or 0.0)

        yield told


class _Lines:
    """Prints lines instead of a bar."""

    def __init__(self) -> None:
        self._phase, self._tenths = "", -1

    def __call__(self, what: str, share: float | None) -> None:
        phase = what.rstrip("0123456789 of")
        tenths = int(3 * share) if share is not None else -1
        if (phase, tenths) != (self._phase, self._tenths):
            self._phase, self._tenths = phase, tenths
            print(what, flush=True)
