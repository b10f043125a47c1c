"""Runs a table of hostile programs in a sandbox and reports what each got, and what is left of them all."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from tailrace.reward.sandbox.limits import Limits
from tailrace.reward.sandbox.protocol import RunVerdict, Sandbox
from tailrace.reward.sandbox.seccomp import DENIED_CALLS
from tailrace.reward.sandbox.testing.bait import Bait

LIMITS = Limits(cpu_s=0.5, wall_s=1.5, memory_mib=64, processes=8, output_kib=16, scratch_mib=2)
"""Tight, so that the whole table takes seconds."""
_MORE_CALLS = {
    "clone": (56, 220), "clone3": (435, 435), "fork": (57, None), "ioprio_set": (251, 30), "rt_sigqueueinfo": (129, 138),
    "tgkill": (234, 131), "sync": (162, 81), "syncfs": (306, 267), "fsync": (74, 82), "fdatasync": (75, 83),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostileProgram:
    """A program of the table. ``ends`` says how it must end, as ``verdict`` or ``verdict:limit``; empty if it matters not."""

    name: str
    source: str
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostileOutcome:
    """What became of one program.

    Args:
        name: the program's.
        end: its verdict, with its limit if it met one.
        faults: what is wrong with that, one line each; empty if it was held.
        late_s: seconds that it took beyond its wall limit, or less than 0.
    """

    name: str
    end: str
    faults: tuple[str, ...]
    late_s: float


def _table() -> dict[str, HostileProgram]:
    here = files("tailrace.reward.sandbox.testing")
    found = tomllib.loads(here.joinpath("hostile.toml").read_text(encoding="utf-8"))
    return {name: HostileProgram(name, row["source"], tuple(row.get("ends", ()))) for name, row in found.items()}


HOSTILE = _table()


async def run_hostile(
    sandbox: Sandbox, names: Sequence[str] = tuple(HOSTILE), *, together: int = 8
) -> tuple[list[HostileOutcome], list[str]]:
    """Run programs of the table, and look at what they left.

    Args:
        sandbox: the sandbox under test; if it has ``pids``, these are attacked.
        names: which programs.
        together: programs at a time.

    Returns:
        An outcome for each program, and what is left of them or was harmed, one line each.
    """
    prelude = files("tailrace.reward.sandbox.testing").joinpath("hostile_prelude.py.txt").read_text(encoding="utf-8")
    turns = asyncio.Semaphore(together)
    with Bait() as bait:
        await sandbox.run("pass", limits=LIMITS)  # so that there is a supervisor to attack
        supervisors: tuple[int, ...] = getattr(sandbox, "pids", ()) or (os.getpid(),)
        given = bait.given() | {"supervisor": supervisors[0], "calls": _calls()}
        start = prelude.replace("GIVEN", repr(json.dumps(given)))

        async def run_one(program: HostileProgram) -> HostileOutcome:
            async with turns:
                run = await sandbox.run(start + program.source, stdin=b"x" * 100_000, limits=LIMITS)
            end = f"{run.verdict}:{run.limit}" if run.limit else str(run.verdict)
            faults = [line for line in run.stdout.decode(errors="replace").splitlines() if line.startswith("ESCAPED")]
            if run.verdict is RunVerdict.INFRASTRUCTURE:
                faults.append(f"the sandbox failed: {run.reason}")
            elif program.ends and end not in program.ends:
                last = (run.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
                faults.append(f"it ended with {end}, expected {' or '.join(program.ends)}; its last line: {last:.200}")
            if len(run.stdout) > LIMITS.output_kib << 10 or len(run.stderr) > LIMITS.output_kib << 10:
                faults.append("more output was kept than the limit allows")
            return HostileOutcome(program.name, end, tuple(faults), run.wall_s - LIMITS.wall_s)

        outcomes = list(await asyncio.gather(*(run_one(HOSTILE[name]) for name in names)))
        for place, outcome in enumerate(outcomes):
            if (
                outcome.end == "over-budget:wall" and outcome.faults
            ):  # the others may have had its CPU: once more, alone
                outcomes[place] = await run_one(HOSTILE[outcome.name])
        after = await sandbox.run("import os; print(os.listdir('.'))", limits=LIMITS)
        harms = bait.harms()
        if after.stdout.strip() != b"[]":
            harms.append(
                f"a later program does not start with an empty scratch directory: {after.stdout!r} {after.reason}"
            )
    return outcomes, harms


def _calls() -> dict[str, int]:
    column = 0 if platform.machine() == "x86_64" else 1
    return {name: at[column] for name, at in (DENIED_CALLS | _MORE_CALLS).items() if at[column] is not None}  # type: ignore[misc]
