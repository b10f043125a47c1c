"""What a pool of environments costs: latency added to each turn, and sessions per second and core.

    uv run python tools/bench/environments.py [--parts pool engine runs] [--repeats N] [--turns N] [--json FILE]
                                              [--steps N] [--directory DIR]

pool: what it adds.


    turn       time of one turn, one session at a time: a direct call of the environment, the same through a pool, and a line
               of the same length to a bare process and back, which is the limit
    sessions   sessions of four turns (open, turns, close), 64 at a time: per second, and per CPU second of all processes
    tail       turns per second of 64 sessions whose tool has a long tail, overlapped by the pool, beside one after the other

engine: generated tokens per second of one real engine with 64 conversations of fixed turns (`environment_figures/overlap.py`).

    tail       the engine goes on with others while a tool of a long tail works, beside a batch that waits for its tools
    quick      the same with tools that answer at once: what is overlapped is then little, and batches are smaller

runs: trained tokens per second of whole runs of `configs/laminar/tool-sums.toml`, with that file's tail and with quick tools,
beside a synchronous pipeline of the same parts (`environment_figures/runs.py`). With --directory they stay, and a later call
makes those that are missing.

`cheap` is an environment that does nothing, so its figures are the pool's own; `python` is the Python tool, in the sandbox. All
take turns within one run; each figure is the median of the repeats with its range.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from environment_figures import overlap, runs
from environment_figures.cheap import Cheap

from tailrace.environment import EnvironmentPool
from tailrace.environment.python_tool import PythonTool

CHEAP = f"{Path(__file__).parent / 'environment_figures' / 'cheap.py'}:Cheap"
ACTION = "```python\nprint( 17 + 25 )\n```"
AT_ONCE, SESSION_TURNS = 64, 4
TAIL = {"median": 0.05, "sigma": 1.2, "cap": 2.0}
ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
Figures = dict[str, list[float]]


def note(figures: Figures, name: str, value: float) -> None:
    figures.setdefault(name, []).append(value)


def per_call_s(call: Callable[[], Any], count: int) -> float:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def direct_s(environment: Any, count: int) -> float:
    environment.reset({})
    seconds = per_call_s(lambda: environment.step(ACTION), count)
    environment.close()
    return seconds


def pipe_s(count: int) -> float:
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = json.dumps({"op": "step", "session": 1, "action": ACTION, "id": 1}).encode() + b"\n"

        def once() -> None:
            process.stdin.write(line)
            process.stdin.flush()
            process.stdout.readline()

        seconds = per_call_s(once, count)
        process.stdin.close()
    return seconds


async def pooled_s(pool: EnvironmentPool, count: int) -> float:
    session, _ = await pool.open({})
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        await pool.step(session, ACTION)
        times.append(time.perf_counter() - begun)
    await pool.close(session)
    return statistics.median(times)


def cpu_s(pids: tuple[int, ...]) -> float:
    """CPU seconds of this process, of the workers, and of what each has started and still runs."""
    found = sum(os.times()[:2])
    ticks = os.sysconf("SC_CLK_TCK")
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += sum(map(int, fields[11:15])) / ticks
    return found


async def timed(pool: EnvironmentPool, work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    begun, cpu = time.perf_counter(), cpu_s(pool.pids)
    await work()
    return time.perf_counter() - begun, cpu_s(pool.pids) - cpu


async def converse(pool: EnvironmentPool, seed: int, turns: int) -> None:
    session, _ = await pool.open({"seed": seed})
    for _ in range(turns):
        await pool.step(session, ACTION)
    await pool.close(session)


async def at_once(pool: EnvironmentPool, sessions: int, turns: int) -> None:
    await asyncio.gather(*(converse(pool, seed, turns) for seed in range(sessions)))


async def turn_figures(figures: Figures, count: int) -> None:
    async with EnvironmentPool(CHEAP) as cheap, EnvironmentPool("python") as python:
        await pooled_s(cheap, 20)
        await pooled_s(python, 2)
        note(figures, "turn.pipe_us", 1e6 * pipe_s(count))
        direct, pooled = direct_s(Cheap(), count), await pooled_s(cheap, count)
        note(figures, "turn.cheap_direct_us", 1e6 * direct)
        note(figures, "turn.cheap_pool_us", 1e6 * pooled)
        note(figures, "turn.cheap_added_us", 1e6 * (pooled - direct))
        direct_s(PythonTool(), 1)  # its sandbox is warm now, as the pool's is
        few = max(1, count // 500)  # each turn takes tens of milliseconds
        direct = statistics.median([direct_s(PythonTool(), 5) for _ in range(few)])
        pooled = statistics.median([await pooled_s(python, 5) for _ in range(few)])
        note(figures, "turn.python_direct_ms", 1e3 * direct)
        note(figures, "turn.python_pool_ms", 1e3 * pooled)
        note(figures, "turn.python_over_direct", pooled / direct)


async def session_figures(figures: Figures, sessions: int) -> None:
    for workers in (1, 2):
        async with EnvironmentPool(CHEAP, workers=workers, sessions=AT_ONCE) as pool:
            await at_once(pool, AT_ONCE, SESSION_TURNS)
            wall, cpu = await timed(pool, lambda: at_once(pool, sessions, SESSION_TURNS))
        note(figures, f"sessions.cheap_{workers}_workers_per_s", sessions / wall)
        note(figures, f"sessions.cheap_{workers}_workers_per_core_s", sessions / cpu)
    begun = time.process_time()
    for _ in range(sessions):
        environment = Cheap()
        environment.reset({})
        for _ in range(SESSION_TURNS):
            environment.step(ACTION)
        environment.close()
    note(figures, "sessions.cheap_direct_per_core_s", sessions / (time.process_time() - begun))


async def tail_figures(figures: Figures) -> None:
    turns = 2
    async with EnvironmentPool("python", {"latency": TAIL}, sessions=AT_ONCE) as pool:
        await pool.open({})
        overlapped, _ = await timed(pool, lambda: at_once(pool, 32, turns))
        begun = time.perf_counter()
        for seed in range(8):
            await converse(pool, seed, turns)
        waiting = time.perf_counter() - begun
    note(figures, "tail.overlapped_turns_per_s", 32 * turns / overlapped)
    note(figures, "tail.waiting_turns_per_s", 8 * turns / waiting)
    note(figures, "tail.overlapped_over_waiting", (32 / overlapped) / (8 / waiting))


async def pool_part(options: argparse.Namespace, figures: Figures) -> None:
    for _ in range(options.repeats):
        await turn_figures(figures, options.turns)
        await session_figures(figures, options.turns)
        await tail_figures(figures)


async def engine_part(options: argparse.Namespace, figures: Figures) -> None:
    from tailrace.trainer.small_model import build_model

    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder) / "model", vocab_size=overlap.VOCABULARY)
        for name, latency in (("tail", TAIL), ("quick", {"median": 0.0})):
            found = await overlap.rates(model, options.engine, latency, AT_ONCE, options.repeats)
            figures[f"engine.{name}_overlapped_tokens_per_s"] = found["overlapped"]
            figures[f"engine.{name}_waiting_tokens_per_s"] = found["waiting"]
            figures[f"engine.{name}_overlapped_over_waiting"] = found["ratio"]


async def runs_part(options: argparse.Namespace, figures: Figures) -> None:
    with contextlib.ExitStack() as stack:
        root = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = runs.rates(root, [runs.TAIL, runs.QUICK], options.repeats, options.steps)
    figures.update({f"runs.{name}": values for name, values in found.items()})


PARTS = {"pool": pool_part, "engine": engine_part, "runs": runs_part}


async def measure(options: argparse.Namespace) -> Figures:
    figures: Figures = {}
    for part in options.parts:
        await PARTS[part](options, figures)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="What a pool of environments costs.")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=["pool", "engine"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--turns", type=int, default=1000, help="turns of one session, and sessions, in each repeat")
    parser.add_argument("--engine", default="auto", help="the engine of the part engine")
    parser.add_argument("--steps", type=int, default=12, help="of each run")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="where runs are, and stay")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    figures = asyncio.run(measure(options))
    found = {name: [statistics.median(each), min(each), max(each)] for name, each in figures.items()}
    for name, (median, least, most) in found.items():
        digits = 2 if "_over_" in name else 1
        print(f"{name:<44} {median:>12,.{digits}f}   ({least:,.{digits}f} to {most:,.{digits}f})")
    if options.json:
        said = {"benchmark": "environments", "cores": os.cpu_count(), "repeats": options.repeats, "figures": found}
        options.json.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
