"""What the commands about the sandbox do."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import typer

from tailrace.cli.errors import FAILED, WRONG, CommandError
from tailrace.contracts import shown
from tailrace.reward.sandbox import AUTOMATIC, Limits, Probe, ProgramRun, RunVerdict, probe_sandbox, select_sandbox


def check(name: str, *, as_json: bool) -> int:
    """Probe the named sandbox, or all that ``auto`` tries; the exit status is 2 if none works.

    Raises:
        NoSandboxError: no sandbox has this name.
    """
    probes = {each: probe_sandbox(each) for each in (AUTOMATIC if name == "auto" else (name,))}
    isolation = next((each for each, probe in probes.items() if probe.works), None)
    if as_json:
        said = {"isolation": isolation, "probes": {each: asdict(probe) for each, probe in probes.items()}}
        typer.echo(json.dumps(said))
    else:
        for each, probe in probes.items():
            typer.echo(f"{each}: {_findings(probe)}")
        typer.echo(f"programs run in {isolation}" if isolation else "programs cannot run here: no sandbox works")
    return 0 if isolation else WRONG


def _findings(probe: Probe) -> str:
    return f"works ({', '.join(probe.facts)})" if probe.works else f"does not work: {probe.reason}"


def run(file: Path, name: str, *, cpu_s: float, wall_s: float, memory_mib: int, as_json: bool) -> int:
    """Run a program file; the exit status is 1 if the sandbox failed.

    Raises:
        CommandError: the file cannot be read as text, or a limit is not above 0.
        NoSandboxError: no sandbox has this name, or it does not work here.
    """
    try:
        limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mib=memory_mib)
    except ValueError as error:
        raise CommandError(str(error)) from None
    try:
        program = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{file}: found byte {error.start} that is no UTF-8, expected a Python program") from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}, expected a Python program") from None
    ended = asyncio.run(_run(program, name, limits))
    typer.echo(json.dumps(_as_json(ended)) if as_json else _as_text(ended))
    return FAILED if ended.verdict is RunVerdict.INFRASTRUCTURE else 0


async def _run(program: str, name: str, limits: Limits) -> ProgramRun:
    chosen = select_sandbox(name)
    try:
        return await chosen.run(program, limits=limits)
    finally:
        await chosen.close()


def _as_json(ended: ProgramRun) -> dict[str, object]:
    return asdict(ended) | {
        "stdout": ended.stdout.decode(errors="replace"),
        "stderr": ended.stderr.decode(errors="replace"),
    }


def _as_text(ended: ProgramRun) -> str:
    parts = [ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")]
    how = f"{ended.verdict}: {ended.limit}" if ended.limit else str(ended.verdict)
    code = f", exit code {ended.exit_code}" if ended.exit_code is not None else ""
    why = f" ({ended.reason})" if ended.reason else ""
    end = f"{how}{code}{why}; {ended.cpu_s:.2f} s of CPU in {ended.wall_s:.2f} s, in {ended.isolation}"
    lines = [shown(part.rstrip(), keep="\n\t") for part in parts if part.strip()]
    return "\n".join([*lines, end])
