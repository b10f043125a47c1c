"""Programs per second per core in each sandbox, beside `subprocess.run` without any protection.

    uv run python tools/bench/reward_figures/sandbox_over_bare.py [--json FILE]

All sides take turns, a few programs at a time on every core, so that a busy machine slows all of them. `bare` starts the
interpreter as anyone would; `bare_same_flags` starts it as the sandboxes do, without site-packages; `cold` starts a supervisor
for each program instead of keeping it. A program computes for 50 ms of CPU after its interpreter has started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tailrace.reward.sandbox import AUTOMATIC, Limits, RunVerdict, Sandbox, probe_sandbox, select_sandbox

PROGRAM = "import time\nstart = time.process_time()\nwhile time.process_time() - start < 0.05: pass\nprint(1)\n"
EMPTY = "print(1)\n"
PROGRAMS_PER_TURN = 4
LATE = {
    "sleep": "import time; time.sleep(60)",
    "spin": "while True: pass",
    "fork bomb": "import os\nwhile True: os.fork()",
}


def _bare(flags: list[str], cores: int) -> Callable[[str], Awaitable[None]]:
    pool = ThreadPoolExecutor(cores)

    async def turn(program: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "program.py")
            file.write_text(program)

            def one(_: int) -> None:
                done = subprocess.run([sys.executable, *flags, file], capture_output=True, check=True)
                assert done.stdout == b"1\n"

            await asyncio.gather(
                *(asyncio.get_running_loop().run_in_executor(pool, one, each) for each in range(PROGRAMS_PER_TURN))
            )

    return turn


def _warm(sandbox: Sandbox) -> Callable[[str], Awaitable[None]]:
    async def turn(program: str) -> None:
        runs = await asyncio.gather(*(sandbox.run(program) for _ in range(PROGRAMS_PER_TURN)))
        assert all(run.verdict is RunVerdict.OK for run in runs), runs

    return turn


def _cold(name: str, cores: int) -> Callable[[str], Awaitable[None]]:
    async def turn(program: str) -> None:
        at_once = asyncio.Semaphore(cores)

        async def one() -> None:
            async with at_once:
                from tailrace.reward.sandbox.select import _make  # a probe for each program would be measured too

                sandbox = _make(name, ())
                assert (await sandbox.run(program)).verdict is RunVerdict.OK
                await sandbox.close()

        await asyncio.gather(*(one() for _ in range(PROGRAMS_PER_TURN)))

    return turn


async def _turns(
    sides: dict[str, Callable[[str], Awaitable[None]]], program: str, turns: int
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {side: [] for side in sides}
    for side in sides.values():
        await side(program)  # starts what stays warm
    for number in range(turns):
        order = list(sides)
        for side in order[number % len(order) :] + order[: number % len(order)]:
            begun = time.perf_counter()
            await sides[side](program)
            times[side].append(time.perf_counter() - begun)
    return times


def _summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


async def _overrun(sandbox: Sandbox) -> dict[str, float]:
    """Seconds beyond a limit of 1 s of wall time, or of 0.5 s of CPU time, that ending a program takes at most."""
    limits = Limits(cpu_s=0.5, wall_s=1.0, processes=8)
    found = {}
    for name, program in LATE.items():
        runs = [await sandbox.run(program, limits=limits) for _ in range(3)]
        found[name] = max(run.wall_s - limits.wall_s for run in runs)
    return found


def _cpu_s(sandbox: Sandbox | None) -> float:
    """CPU seconds so far: of this process and its children, or of it and the sandbox's supervisors with theirs."""
    if sandbox is None:
        used = os.times()
        return used.user + used.system + used.children_user + used.children_system
    ticks = 0
    for pid in sandbox.pids:  # type: ignore[attr-defined]  # both local backends have them
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def _cpu_of_empty(side: Callable[[str], Awaitable[None]], sandbox: Sandbox | None) -> float:
    """CPU milliseconds that an empty program costs in all, which other load hardly changes."""
    turns = 6
    before = _cpu_s(sandbox)
    for _ in range(turns):
        await side(EMPTY)
    return 1000 * (_cpu_s(sandbox) - before) / turns / PROGRAMS_PER_TURN


async def figures(turns: int = 7) -> dict[str, Any]:
    """Figures of every backend that works here; ``over_bare`` is the ratio of rates turn by turn."""
    cores = len(os.sched_getaffinity(0))
    names = [name for name in AUTOMATIC if probe_sandbox(name).works]
    sandboxes = {name: select_sandbox(name) for name in names}
    sides = {"bare": _bare([], cores), "bare_same_flags": _bare(["-I", "-S", "-B"], cores)}
    sides |= {name: _warm(sandbox) for name, sandbox in sandboxes.items()}
    cold = {f"{name}_cold": _cold(name, cores) for name in names}
    try:
        busy = await _turns(sides, PROGRAM, turns)
        busy |= {side: [min(times)] for side, times in (await _turns(cold, PROGRAM, 1)).items()}
        empty_cpu_ms = {side: await _cpu_of_empty(turn, sandboxes.get(side)) for side, turn in sides.items()}
        late = {name: await _overrun(sandbox) for name, sandbox in sandboxes.items()}
    finally:
        for sandbox in sandboxes.values():
            await sandbox.close()
    ratios = {
        side: {
            "over_bare": _summary([bare / ours for bare, ours in zip(busy["bare"], busy[side], strict=True)]),
            "over_bare_same_flags": _summary(
                [bare / ours for bare, ours in zip(busy["bare_same_flags"], busy[side], strict=True)]
            ),
        }
        for side in sides
        if not side.startswith("bare")
    }
    return {
        "cores": cores,
        "turns": turns,
        "programs_per_s_per_core": {
            side: _summary([PROGRAMS_PER_TURN / cores / each for each in times]) for side, times in busy.items()
        },
        "empty_program_cpu_ms": empty_cpu_ms,
        "sandbox_over_bare": ratios,
        "ended_after_limit_s": late,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Programs per second per core in each sandbox, beside none.")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    found = asyncio.run(figures(options.turns))
    for side, rate in found["programs_per_s_per_core"].items():
        spread = f"({rate['least']:.2f} to {rate['most']:.2f})"
        print(f"{side:18} {rate['median']:6.2f} programs/s per core {spread}")
    for side, ratios in found["sandbox_over_bare"].items():
        for name, ratio in ratios.items():
            print(f"{side:18} {ratio['median']:.2f} {name} ({ratio['least']:.2f} to {ratio['most']:.2f})")
    print("CPU ms of an empty program:", json.dumps(found["empty_program_cpu_ms"]))
    print("seconds beyond the limit:", json.dumps(found["ended_after_limit_s"]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
