"""RollPacker beside synchronous systems made of the same parts, at quick-start scale on this machine, taking turns.

    uv run python tools/bench/rollpacker.py DIR [--systems NAME,NAME] [--task NAME] [--repeats N] [--steps N] [--accuracy]
                                            [--budget-s S] [--json FILE]
    uv run python tools/bench/rollpacker.py --simulated [--models NAME,NAME] [--repeats N] [--steps N] [--json FILE]

Runs what DIR does not hold yet: all systems in turn within a repeat, so that what else the machine does falls on all. It may
be stopped at any time and goes on where it was; with --budget-s no run begins that would probably end later than that. A
system is a file of configs/rollpacker; `rollpacker` is the quick start. Each repeat has its own seed, with which its systems
have the same warm start (cached), prompts and number of responses to a prompt; none is evaluated meanwhile. With --accuracy
each is evaluated before and after, and RollPacker's controls without RL too: `accuracy` is per source, over repeats. --no-run
prints the figures of what is there. --task trains on one generated task in place of the quick start's mix: `long-chain-sum` has
a tail, and a rule scores it, so that scores take nothing from the cores that generate.

RLHFuse has two readings, since "our asynchronous reward computation" (section 6.1) may mean the adaptive timeouts too:
`rlhfuse` has fixed ones, `rlhfuse-adaptive-timeouts` RollPacker's. --simulated has both beside the steps of Table 2 and
RollPacker without each mechanism, at the paper's models (`tailrace reproduce rollpacker` prints some of it), and runs nothing:
seconds of a step, and how many times RollPacker's that is: the median of the repeats, smallest and largest.

A step's seconds are the mean from the end of the first step to the end of the last: with 16 steps three long rounds among
twelve short ones. Speedups are ratios of seconds within a repeat: their median over repeats, and the smallest and the largest
in `spreads`.
`ablation` adds the mechanisms one after another, as the paper's Table 2 does; `leave_one_out` is how much slower RollPacker is
without one; `loses` names those without which it is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace.contracts import expected_one_of
from tailrace.fleetsim.reproduce.paper import Lab
from tailrace.pipeline.run.figures.metrics import read_metrics
from tailrace.rollpacker.paper.points import MODELS, VERL, left_out, parts, point, rlhfuse
from tailrace.rollpacker.paper.speed import step_s

CONFIGS = Path(__file__).parents[2] / "configs" / "rollpacker"
BASELINE, WHOLE = "synchronous", "rollpacker"
FUSED = ("rlhfuse", "rlhfuse-adaptive-timeouts")
ABLATION = ("plus-1-tail-batching", "plus-2-reward-scheduler", "plus-3-parallelism-planner", "plus-4-stream-trainer")
WITHOUT = ("tail-batching", "reward-scheduler", "parallelism-planner", "stream-trainer", "scale-down", "sample-factor")
SAME = {ABLATION[-1]: WHOLE, "without-stream-trainer": ABLATION[-2]}
"""Files that are another system by another name, and are not run twice."""
SYSTEMS = (
    BASELINE, *FUSED, WHOLE, *ABLATION[:-1], *(name for name in (f"without-{part}" for part in WITHOUT) if name not in SAME)
)  # fmt: skip
RUN_S = 240.0
"""Seconds of a run, as long as none is known."""
DEADLINE_S = 3600.0
OWN = ("evaluation.every=0", "checkpoint.every=1000")
UNEVALUATED = ("evaluation.controls=false", "task.held_out_size=8")

Times = dict[str, dict[int, float]]
"""Seconds of a step by system and repeat."""


def run(system: str, root: Path, steps: int, seed: int, *, accuracy: bool, task: str | None) -> float:
    """Run a system, on its own mix or on one task. Returns its wall seconds."""
    target = WHOLE if system == WHOLE else str(CONFIGS / f"{system}.toml")
    evaluated = UNEVALUATED if not accuracy else (f"evaluation.controls={str(system == WHOLE).lower()}",)
    of = () if task is None else ("task.mix={}", f"task.name={task}")
    settings = [part for setting in (*OWN, *of, *evaluated, f"pipeline.steps={steps}") for part in ("--set", setting)]
    command = [sys.executable, "-m", "tailrace.cli.main", "run", target, "--seed", str(seed), "--plain", *settings]
    began = time.monotonic()
    with root.with_suffix(".log").open("w") as log:
        try:
            subprocess.run([*command, "--run-dir", str(root)], check=True, stdout=log, stderr=log, timeout=DEADLINE_S)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{root.with_suffix('.log')}: {system} ended with {error.returncode}") from error
    return time.monotonic() - began


def measured(root: Path) -> dict[str, Any] | None:
    """What a finished run shows; None if it has not finished."""
    if not (root / "summary.json").is_file():
        return None
    summary = json.loads((root / "summary.json").read_text())
    ends = [row["t"] for row in read_metrics(root / "metrics.jsonl") if row["kind"] == "step"]
    names = ("rounds_short", "rounds_long", "step_s_short", "step_s_long", "speculation_waste", "streamed_groups")
    names += ("reward_exposed_s", "scores_over_budget", "staleness_max", "lost_trajectories", "wall_s")
    return {
        "step_s": (ends[-1] - ends[0]) / (len(ends) - 1),
        "steps": len(ends),
        **{name: summary[name] for name in names},
        "accuracy": summary.get("eval_accuracy_by_source", {}),
    }


class Plan:
    """The runs that are wanted, in turn."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.wanted = [(system, repeat) for repeat in range(options.repeats) for system in options.systems]

    def root(self, system: str, repeat: int) -> Path:
        found: Path = self._options.directory / f"{system}-{repeat}"
        return found

    def left(self) -> list[tuple[str, int]]:
        return [one for one in self.wanted if measured(self.root(*one)) is None]

    def found(self) -> dict[tuple[str, int], dict[str, Any]]:
        rows = {one: measured(self.root(*one)) for one in self.wanted}
        return {one: row for one, row in rows.items() if row is not None}

    def go(self) -> None:
        took = [row["wall_s"] for row in self.found().values()]
        began, options = time.monotonic(), self._options
        for place, (system, repeat) in enumerate(left := self.left()):
            each = statistics.median(took) if took else RUN_S
            spent = time.monotonic() - began
            print(
                f"{len(left) - place} runs left, about {each * (len(left) - place) / 60:.0f} min",
                file=sys.stderr,
                flush=True,
            )
            if options.budget_s is not None and spent + each > options.budget_s:
                print(f"stopped after {spent:.0f} s; the same command goes on", file=sys.stderr)
                return
            root = self.root(system, repeat)
            if root.exists():  # a run that did not finish
                root.rename(root.with_name(f"{root.name}.unfinished-{int(time.time())}"))
            print(f"running {root.name}", file=sys.stderr, flush=True)
            took.append(
                run(system, root, options.steps, options.seed + repeat, accuracy=options.accuracy, task=options.task)
            )


def ratios(times: Times, over: str, under: str) -> list[float]:
    """Seconds of one system over those of another, within each repeat that has both."""
    one, other = times.get(over, {}), times.get(under, {})
    return [one[repeat] / other[repeat] for repeat in sorted(one.keys() & other.keys())]


def accuracies(rows: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Accuracy by source, and by system before and after, or control: of each repeat, in order."""
    found: dict[str, dict[str, list[float]]] = {}
    for (system, _), row in sorted(rows.items()):
        for source, values in row["accuracy"].items():
            controls = values["controls"] if system == WHOLE else {}
            named = {f"{system} before": values["before"], f"{system} after": values["after"], **controls}
            for name, value in named.items():
                if value is not None:
                    found.setdefault(source, {}).setdefault(name, []).append(value)
    return found


def figures(rows: Mapping[tuple[str, int], Mapping[str, Any]], *, accuracy: bool) -> dict[str, Any]:
    times: Times = {}
    for (system, repeat), row in rows.items():
        times.setdefault(system, {})[repeat] = row["step_s"]
    spreads: dict[str, list[float]] = {}

    def speedup(name: str, over: str, under: str) -> float | None:
        found = ratios(times, over, under)
        if not found:
            return None
        spreads[name] = [round(min(found), 4), round(max(found), 4)]
        return round(statistics.median(found), 4)

    def several(table: str, names: Sequence[str], pair: Callable[[str], tuple[str, str]]) -> dict[str, float | None]:
        return {name: speedup(f"{table}: {name}", *pair(name)) for name in names}

    without = several("without", WITHOUT, lambda name: (SAME.get(f"without-{name}", f"without-{name}"), WHOLE))
    return {
        "speedup_over_synchronous": speedup("over synchronous", BASELINE, WHOLE),
        "speedup_over_rlhfuse": several("over", FUSED, lambda name: (name, WHOLE)),
        "ablation": several("ablation", ABLATION, lambda name: (BASELINE, SAME.get(name, name))),
        "leave_one_out": without,
        "loses": [name for name, ratio in without.items() if ratio is not None and ratio < 1],
        "spreads": spreads,
        "accuracy": accuracies(rows) if accuracy else {},
        "step_s": {name: round(statistics.median(found.values()), 3) for name, found in times.items()},
        "runs": {f"{system} {repeat}": row for (system, repeat), row in rows.items()},
    }


def table(found: Mapping[str, Any]) -> str:
    lines = ["| | ratio | smallest to largest |", "|---|---|---|"]
    named = {
        "RollPacker over synchronous": (found["speedup_over_synchronous"], "over synchronous"),
        **{
            f"RollPacker over {name}": (ratio, f"over: {name}") for name, ratio in found["speedup_over_rlhfuse"].items()
        },
        **{f"synchronous, {name}": (ratio, f"ablation: {name}") for name, ratio in found["ablation"].items()},
        **{f"slower without {name}": (ratio, f"without: {name}") for name, ratio in found["leave_one_out"].items()},
    }
    for name, (ratio, key) in named.items():
        if ratio is not None:
            low, high = found["spreads"][key]
            lines.append(f"| {name} | {ratio:.2f} | {low:.2f} to {high:.2f} |")
    lines += ["", "| system | seconds of a step |", "|---|---|"]
    lines += [f"| {name} | {seconds:.2f} |" for name, seconds in found["step_s"].items()]
    for source, values in found["accuracy"].items():
        lines += ["", f"| {source} | accuracy, mean | of each seed |", "|---|---|---|"]
        for name, each in values.items():
            lines.append(
                f"| {name} | {100 * statistics.mean(each):.1f} % | {', '.join(f'{100 * v:.1f}' for v in each)} |"
            )
    return "\n".join(lines)


def simulated(models: Sequence[str], steps: int, seeds: Sequence[int]) -> dict[str, Times]:
    """Mean seconds of a simulated step by model, system and seed, at the points of the paper's evaluation."""
    points = {
        model: {
            BASELINE: point(VERL, model, quick=True),
            **{name: rlhfuse(model, quick=True, adaptive=name == FUSED[1]) for name in FUSED},
            **dict(zip(ABLATION, parts(model, quick=True), strict=True)),
            **{f"without-{part}": at for part, at in left_out(model, quick=True).items()},
        }
        for model in models
    }
    drawn = {
        (model, name, seed): at.over(pipeline__steps=steps, seed=seed)
        for model, row in points.items()
        for name, at in row.items()
        for seed in seeds
    }
    lab = Lab(processes=1)
    lab.simulate(list(drawn.values()))
    found: dict[str, Times] = {model: {name: {} for name in row} for model, row in points.items()}
    for (model, name, seed), at in drawn.items():
        found[model][name][seed] = step_s(lab, at)
    return found


def simulated_table(found: Mapping[str, Times]) -> str:
    lines = [
        f"| seconds of a simulated step, and over RollPacker's | {' | '.join(found)} |",
        f"|---{'|---' * len(found)}|",
    ]
    for name in next(iter(found.values())):
        cells = []
        for times in found.values():
            over = ratios(times, name, ABLATION[-1])
            spread = f" ({min(over):.2f} to {max(over):.2f})" if len(over) > 1 else ""
            cells.append(f"{statistics.median(times[name].values()):.1f}, {statistics.median(over):.2f}{spread}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?")
    known = [WHOLE, *(path.stem for path in sorted(CONFIGS.glob("*.toml")) if path.stem not in SAME)]
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"of {', '.join(known)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0, help="of the first repeat; the next has the next")
    parser.add_argument("--task", help="a generated task in place of the quick start's mix")
    parser.add_argument("--simulated", action="store_true", help="simulate the paper's points; run nothing")
    parser.add_argument("--models", default=",".join(MODELS), help="of the simulated ones")
    parser.add_argument("--accuracy", action="store_true", help="evaluate before and after, and RollPacker's controls")
    parser.add_argument("--budget-s", type=float)
    parser.add_argument("--no-run", action="store_true", help="only figures of what is there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.simulated:
        unknown = sorted(set(options.models.split(",")) - set(MODELS))
        if unknown:
            parser.error(f"found the model {unknown[0]!r}, {expected_one_of(unknown[0], list(MODELS))}")
        seeds = range(options.seed, options.seed + options.repeats)
        times = simulated(options.models.split(","), options.steps, seeds)
        print(simulated_table(times))
        if options.json is not None:
            options.json.write_text(json.dumps(times, indent=1) + "\n")
        return
    if options.directory is None:
        parser.error("found no DIR, expected one, or --simulated")
    options.systems = options.systems.split(",")
    unknown = sorted(set(options.systems) - set(known))
    if unknown:
        parser.error(f"found the system {unknown[0]!r}, {expected_one_of(unknown[0], known)}")
    options.directory.mkdir(parents=True, exist_ok=True)
    plan = Plan(options)
    if not options.no_run:
        plan.go()
    found = figures(plan.found(), accuracy=options.accuracy)
    print(table(found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
