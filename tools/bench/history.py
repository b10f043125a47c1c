"""Figures of benchmarks, kept commit by commit in docs/benchmarks/*.jsonl, and the page that shows them.

    uv run python tools/bench/history.py BENCH [--repeats N] [--options ...]   run tools/bench/BENCH.py and append its figures
    uv run python tools/bench/history.py BENCH --from FILE ...                 append figures of JSON that it wrote before
    uv run python tools/bench/history.py --draw                                draw docs/benchmarks.md anew

A line is one figure: commit, day, machine, load (processes that were running before it began, by the kernel's minute average),
the median of all runs, and their least and most. Lines are only added; a figure that was wrong is followed by a right one.
Figures of different machines stand apart, and a busy machine's say little: measure where nothing else runs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STORE, PAGE = ROOT / "docs/benchmarks", ROOT / "docs/benchmarks.md"
EARLIER = 6
"""Earlier values of a figure that the page shows."""

HEAD = """# Figures of benchmarks, commit by commit

Drawn from `docs/benchmarks/*.jsonl` by `uv run python tools/bench/history.py --draw`; what each benchmark measures is in
`tools/bench/README.md`. A figure is the median of its runs, beside their least and most. *Load* is what else ran when they
began: compare figures of quiet machines only (below 0.5)."""

Figures = Mapping[str, tuple[Sequence[float], str]]
"""Values, one for each repeat that the JSON has, and their unit, by name."""


def _decision_cycle(rows: Any) -> Figures:
    return {f"p99 of a cycle, {row['replicas']} x {row['trajectories']:,}": ([row["p99_ms"]], "ms") for row in rows}


def _simulator_speed(rows: Any) -> Figures:
    return {f"trajectories per second, {name}": ([row["trajectories_per_s"]], "/s") for name, row in rows.items()}


def _vs_trl(outcome: Any) -> Figures:
    tasks = {name: part for name, part in outcome.items() if isinstance(part, dict) and "tokens_per_s_ratio" in part}
    rates = {f"tokens per second, {name}": (part["tailrace_tokens_per_s_all"], "/s") for name, part in tasks.items()}
    return rates | {f"of TRL's, {name}": ([part["tokens_per_s_ratio"]], "x") for name, part in tasks.items()}


def _staleness(outcome: Any) -> Figures:
    return {"pairs of reserve and occupy, a million in flight": ([outcome["slowest_at_a_million_per_s"]], "/s")}


def _repack(outcome: Any) -> Figures:
    largest = max(row["candidates"] for row in outcome["rows"])
    rows = [row for row in outcome["rows"] if row["candidates"] == largest]
    return {f"best-fit, {row['shape']}, {largest:,} candidates": ([row["best_fit_ms"]], "ms") for row in rows}


def _dispatch_plan(outcome: Any) -> Figures:
    return {"longest plan": ([max(row["plan_ms"] for row in outcome["rows"])], "ms")}


def _trajstore(outcome: Any) -> Figures:
    return {f"deltas, durability {row['durability']}": ([row["store_deltas_per_s"]], "/s") for row in outcome["rows"]}


def _rollpacker(outcome: Any) -> Figures:
    rivals = {"synchronous": outcome["speedup_over_synchronous"], **outcome["speedup_over_rlhfuse"]}
    speedups = {f"speedup over {name}": ([value], "x") for name, value in rivals.items() if value is not None}
    return speedups | {f"step of {name}": ([value], "s") for name, value in outcome["step_s"].items()}


def _served_weights(rows: Any) -> Figures:
    return {f"a comparison over a step's responses, {row['engine']}": ([row["sample/step"][0]], "x") for row in rows}


def _engine_loop(outcome: Any) -> Figures:
    return {f"added to a step at {row['running']:,} requests": ([row["added"]], "x") for row in outcome["rows"]}


def _weights(outcome: Any) -> Figures:
    rows = [row for row in outcome.get("ranks", ()) if row["how"] == "slices"]
    return {f"pull of what {row['ranks']} ranks published, of a copy": ([row["over_copy"]], "x") for row in rows}


def _checkpoint(outcome: Any) -> Figures:
    return {
        f"{kind} checkpoint of {row['ranks']} ranks blocks, of a copy": ([row[kind]["over_copy"]], "x")
        for row in outcome["by_ranks"]
        for kind in ("full", "weights", "dcp")
    }


def _processor_share(outcome: Any) -> Figures:
    return {f"neither engine nor gradient, {outcome['app']}": ([outcome["neither_share_of_run"]], "x")}


def _data_plane(outcome: Any) -> Figures:
    return {
        "appends, tokens per core": ([outcome["data_role_tokens_per_s_per_core"]], "/s"),
        "fetched rows, tokens per core": ([outcome["fetch_tokens_per_s_per_core"]], "/s"),
        "longest heartbeat beside a fetch": ([outcome["heartbeat_fetch_s"]], "s"),
    }


BENCHES: dict[str, Callable[[Any], Figures]] = {
    "decision_cycle": _decision_cycle,
    "simulator_speed": _simulator_speed,
    "vs_trl": _vs_trl,
    "staleness": _staleness,
    "repack": _repack,
    "dispatch_plan": _dispatch_plan,
    "trajstore": _trajstore,
    "rollpacker": _rollpacker,
    "served_weights": _served_weights,
    "engine_loop": _engine_loop,
    "weights": _weights,
    "checkpoint": _checkpoint,
    "processor_share": _processor_share,
    "data_plane": _data_plane,
}
"""What is kept of each benchmark's JSON."""


@dataclass(frozen=True)
class Line:
    """One figure at one commit."""

    commit: str
    day: str
    machine: str
    load: float
    figure: str
    unit: str
    value: float
    spread: tuple[float, float]
    runs: int


def machine() -> str:
    """The kind of machine: processors, memory and interpreter, no name."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.processor())
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} x {model}, {memory_gib:.0f} GiB, Python {platform.python_version()}"


def commit() -> str:
    """The commit, with a plus sign if files of packages, apps and benchmarks differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "packages", "apps", "tools/bench")
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


def lines_of(bench: str, outcomes: Sequence[Any], load: float, at: str) -> list[Line]:
    """A line for each figure of some runs' JSON."""
    found: dict[str, tuple[list[float], str]] = {}
    for outcome in outcomes:
        for name, (values, unit) in BENCHES[bench](outcome).items():
            found.setdefault(name, ([], unit))[0].extend(values)
    day, here = datetime.datetime.now(datetime.UTC).date().isoformat(), machine()
    lines = []
    for name, (values, unit) in found.items():
        spread = (min(values), max(values))
        lines.append(Line(at, day, here, round(load, 2), name, unit, statistics.median(values), spread, len(values)))
    return lines


def run(bench: str, repeats: int, options: Sequence[str]) -> list[Any]:
    """The JSON of some runs of a benchmark, one after the other."""
    outcomes = []
    with tempfile.TemporaryDirectory() as work:
        for number in range(repeats):
            out = Path(work) / f"{number}.json"
            command = [sys.executable, str(ROOT / f"tools/bench/{bench}.py"), *options, "--json", str(out)]
            subprocess.run(command, check=True)
            outcomes.append(json.loads(out.read_text()))
    return outcomes


def read() -> dict[str, list[Line]]:
    """All lines, oldest first, by benchmark."""
    return {
        path.stem: [_line(json.loads(text)) for text in path.read_text().splitlines()]
        for path in sorted(STORE.glob("*.jsonl"))
    }


def _line(plain: dict[str, Any]) -> Line:
    least, most = plain.pop("spread")
    return Line(spread=(least, most), **plain)


def drawn(history: Mapping[str, Sequence[Line]]) -> str:
    """The page."""
    return "\n".join(_page(history)) + "\n"


def _page(history: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    yield HEAD
    for bench, lines in history.items():
        for here in dict.fromkeys(line.machine for line in lines):
            yield from ("", f"## {bench}", "", f"{here}.", "")
            yield "| figure | newest | least to most | runs | load | commit | day | before, newest first |"
            yield "|---|---|---|---|---|---|---|---|"
            of_figure: dict[str, list[Line]] = {}
            for line in lines:
                if line.machine == here:
                    of_figure.setdefault(line.figure, []).append(line)
            for figure, told in of_figure.items():
                *before, new = told
                earlier = ", ".join(f"{_short(one.value)} ({one.commit})" for one in before[: -EARLIER - 1 : -1])
                least, most = new.spread
                spread = f"{_short(least)} to {_short(most)}"
                about = (new.runs, new.load, f"`{new.commit}`", new.day, earlier)
                cells = (figure, f"{_short(new.value)} {new.unit}", spread, *about)
                yield "| " + " | ".join(map(str, cells)) + " |"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", nargs="?", choices=BENCHES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--from", dest="files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--options", nargs=argparse.REMAINDER, default=[], help="of the benchmark; the last argument here"
    )
    parser.add_argument("--commit", help="what FILE was measured at, if that is not this commit")
    parser.add_argument("--load", type=float, help="what else ran when FILE was measured")
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if options.bench:
        load = os.getloadavg()[0] if options.load is None else options.load
        at = options.commit or commit()
        outcomes = [json.loads(file.read_text()) for file in options.files or ()]
        outcomes = outcomes or run(options.bench, options.repeats, options.options)
        STORE.mkdir(exist_ok=True)
        with (STORE / f"{options.bench}.jsonl").open("a") as file:
            for line in lines_of(options.bench, outcomes, load, at):
                file.write(json.dumps(asdict(line)) + "\n")
    elif not options.draw:
        parser.error("found neither a benchmark nor --draw")
    PAGE.write_text(drawn(read()))


if __name__ == "__main__":
    main()
