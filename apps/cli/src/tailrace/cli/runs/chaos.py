"""``tailrace chaos``: runs of an app with kills and hangs at random, checked one by one, until so many have struck.

DIR/campaign.json      what was asked for; a campaign that was cut goes on
DIR/run-000/           a run, and run-000.txt what its drivers printed
DIR/run-000.json       what struck and what was found; written once the run has ended
DIR/run-000-calm/      the same seed and steps without faults, if asked for
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from tailrace.cli.errors import FAILED, INTERRUPTED, CommandError
from tailrace.cli.outputs import check_file
from tailrace.cli.runs.chaos_run import WatchedRun, supervise
from tailrace.cli.runs.preflight import check
from tailrace.cli.runs.stopping import interrupts
from tailrace.contracts import expected_one_of
from tailrace.faulttol import CONTROLLER, Fault, random_faults
from tailrace.faulttol.injection import WORKER
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.directory import RunDirectory, read_json, write_json
from tailrace.pipeline.run.run_checks import RunFindings, check_finished_run
from tailrace.pipeline.run.scripted_faults import members_of
from tailrace.runtime.executor.deployment import ENVIRONMENT

TOGETHER = 0.2
"""Share of faults that strike two members at once."""


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """The command line of ``tailrace chaos``.

    Args:
        target: an app or a TOML file.
        out: the campaign's directory.
        kills: faults that must have struck.
        mtbf_s: mean seconds between two.
        seed: of the faults, and of the first run; each run has the next one.
        settings: ``KEY=VALUE`` of each ``--set``.
        executor: ray or local.
        still_s: seconds without progress after which a run counts as hung.
        compare: whether each run is also made without faults.
        roles: those that are struck; empty: all.
        json: where the figures go.
    """

    target: str
    out: Path
    kills: int
    mtbf_s: float
    seed: int = 0
    settings: tuple[str, ...] = ()
    executor: str | None = None
    still_s: float = 900.0
    compare: bool = False
    json: Path | None = None
    roles: tuple[str, ...] = ()

    @property
    def asked(self) -> dict[str, Any]:
        """What a campaign that goes on must have in common with the one that began."""
        kept = ("target", "kills", "mtbf_s", "seed", "settings", "executor", "compare", "roles")
        return {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in kept}


def run(options: ChaosOptions) -> int:
    """Run the campaign, or go on with it. Returns the exit status: 0 if nothing was lost and nothing hung.

    Raises:
        TailraceError: the command or the configuration is wrong, or the directory is of another campaign.
    """
    check_file("--json", options.json)
    config = configuration(options.target, settings=options.settings, seed=options.seed, executor=options.executor)
    check(config, f"{options.target}: ")
    targets(config, options.roles)
    _begin(options)
    rows: list[dict[str, Any]] = []
    try:
        with interrupts():
            for number in itertools.count():
                left = options.kills - sum(len(row["struck"]) for row in rows)
                if left <= 0:
                    break
                rows.append(_run(options, config, number, left))
                _tell(_words(rows, options))
    except KeyboardInterrupt:
        _tell(f"interrupted; the same command goes on with {options.out}")
        return INTERRUPTED
    found = figures(rows)
    write_json(options.json or options.out / "chaos.json", found)
    _tell(_words(rows, options))
    clean = not (found["lost_trajectories"] or found["turns_lost"] or found["hangs"] or found["trained_twice"])
    return 0 if clean and not found["failed_runs"] and not found["disagreements"] else FAILED


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of the JSON file.

    Args:
        rows: what was found of each run, as its file has it.
    """
    struck = [fault for row in rows for fault in row["struck"]]
    differences = [row["difference"] for row in rows if row["difference"] is not None]
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else None

    def total(name: str) -> int:
        return sum(row["found"][name] for row in rows if row["found"] is not None)

    return {
        "kills": len(struck),
        "lost_trajectories": total("lost"),
        "turns_lost": total("turns_lost"),
        "hangs": sum(row["ended"] == "hung" for row in rows),
        "accuracy_difference": statistics.mean(differences) if differences else None,
        "accuracy_difference_error": error,
        "trained_twice": total("twice"),
        "trained_trajectories": total("trained"),
        "contradictions": total("contradictions"),
        "turns": total("turns"),
        "turns_answered_again": total("turns_again"),
        "disagreements": [word for row in rows if row["found"] is not None for word in row["found"]["disagree"]],
        "runs": len(rows),
        "steps": total("steps"),
        "failed_runs": sum(row["ended"] == "failed" for row in rows),
        "drivers": sum(row["drivers"] for row in rows),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "not_struck": sum(len(row["not_struck"]) for row in rows),
        "by_role": dict(sorted(Counter(fault["role"] for fault in struck).items())),
        "by_kind": dict(sorted(Counter(fault["kind"] for fault in struck).items())),
        "by_phase": dict(
            sorted(Counter(f"{fault['role']} {fault['phase']}" for fault in struck if fault["phase"]).items())
        ),
        "struck": struck,
    }


def targets(config: RunConfig, roles: Sequence[str] = ()) -> dict[str, list[str]]:
    """The members that a campaign strikes: every member, the workers of environments, and the driver.

    Args:
        config: of its runs.
        roles: only these; empty: all.

    Raises:
        CommandError: a run has no such role.
    """
    members = members_of(config)
    if ENVIRONMENT in members:
        members[ENVIRONMENT] += [f"{id_}.{WORKER}" for id_ in members[ENVIRONMENT]]
    members[CONTROLLER] = ["0"]
    for role in roles:
        if role not in members:
            raise CommandError(f"--role {role}: found no {role} in this run, {expected_one_of(role, list(members))}")
    return {role: names for role, names in members.items() if not roles or role in roles}


def drawn(config: RunConfig, options: ChaosOptions, number: int, most: int) -> list[Fault]:
    """The faults of a run, at most so many."""
    random = Random(f"chaos {options.seed}, run {number}")
    members = targets(config, options.roles)
    return list(itertools.islice(random_faults(members, options.mtbf_s, random, together=TOGETHER), most))


def _begin(options: ChaosOptions) -> None:
    """Make the directory, or see that it is of the same campaign."""
    path = options.out / "campaign.json"
    if path.exists():
        begun = read_json(path)
        other = next((name for name, value in options.asked.items() if begun.get(name) != value), None)
        if other is not None:
            raise CommandError(
                f"{path}: found a campaign with {other} = {begun.get(other)!r}, expected {options.asked[other]!r}, "
                "or another --out"
            )
        return
    if options.out.exists() and any(options.out.iterdir()):
        raise CommandError(f"--out {options.out}: found files that are no campaign, expected a new directory")
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(path, options.asked)


def _run(options: ChaosOptions, config: RunConfig, number: int, most: int) -> dict[str, Any]:
    """One run with its checks; read from its file if it has ended before."""
    root = options.out / f"run-{number:03d}"
    written = root.with_suffix(".json")
    if written.exists():
        return read_json(written)
    faults = drawn(config, options, number, most)
    words = [options.target, "--seed", str(options.seed + number)]
    words += [word for setting in options.settings for word in ("--set", setting)]
    words += ["--executor", options.executor] if options.executor is not None else []
    _tell(f"{root.name}: seed {options.seed + number}, up to {len(faults)} faults")
    watched = supervise(root, words, faults, still_s=options.still_s, tell=_tell)
    found = check_finished_run(RunDirectory(root)) if watched.ended == "finished" else None
    row = {
        "run": root.name,
        "ended": watched.ended,
        "why": watched.why,
        "drivers": watched.drivers,
        "seconds": watched.seconds,
        "struck": [asdict(fault) for fault in watched.faults.struck],
        "not_struck": watched.faults.not_struck,
        "found": None if found is None else asdict(found),
        "difference": _difference(options, root, words, found) if options.compare else None,
    }
    write_json(written, row)
    return row


def _difference(options: ChaosOptions, root: Path, words: Sequence[str], found: RunFindings | None) -> float | None:
    """Accuracy with faults less that of a run without, with the same seed and steps; None where one is not known."""
    calm = root.with_name(f"{root.name}-calm")
    watched: WatchedRun = supervise(calm, words, (), still_s=options.still_s, tell=_tell)
    if found is None or found.accuracy is None or watched.ended != "finished":
        return None
    without = check_finished_run(RunDirectory(calm)).accuracy
    return None if without is None else found.accuracy - without


def _words(rows: Sequence[Mapping[str, Any]], options: ChaosOptions) -> str:
    found = figures(rows)
    return (
        f"{found['kills']} of {options.kills} struck in {found['runs']} runs: {found['lost_trajectories']} trajectories lost, "
        f"{found['trained_twice']} trained twice, {found['turns_lost']} of {found['turns']:,} turns lost, "
        f"{found['hangs']} hangs, {found['failed_runs']} failed"
    )


def _tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
