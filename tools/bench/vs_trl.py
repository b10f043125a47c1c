"""Tailrace's `laminar` and TRL's `GRPOTrainer` on the same model, prompts, batch, loss, reward and two cores.

    uv run --group bench python tools/bench/vs_trl.py [--size 0.2|3|30 ...] [--task long|short|both] [--quick] [--json FILE]

Runs alternate (A B A B ...), each in a process of its own. Both start from the warm-started model of the quick start, of 0.2
million parameters, or from one of 3 or 30 million that answers as it does (`trl_comparison/sizes.py`): lengths and accuracy
before training are the same, the cost of a token is not. Learning rates are smaller for larger models, and the largest has
batches of 8 prompts. TRL generates with padding by transformers; `--continuous` adds a column with its continuous batching,
`--vllm` one with its vLLM mode.

On two quiet cores (an estimate until it is measured there): `--quick` without accuracy takes about 3, 4 and 6 minutes for the
three sizes, half of that with one `--task`; a whole run with `--repeats 1` about twice as long.

    rate                 completion tokens that were trained on per second, over the same steps of both: without the first
                         (caches, Tailrace's buffer fills) and the last (it empties). Median of the repeats.
    time to accuracy     seconds of training until held-out accuracy at temperature 1 is reached: afterwards, from saved
                         weights, by the same code for both, so evaluation is excluded on both sides.
    start-up             excluded on both sides. TRL's clock starts when `train` does, after one whole step for warmth;
                         Tailrace's when its first replica serves its first weights.

`long` is the task long-chain-sum, with a tail of response lengths; `short` is short-chain-sum, of nearly equal lengths, from
the same model, which knows it as a part of the long one. Tailrace checkpoints every version, as its quick start does; TRL
saves, logs and evaluates nothing. Rates on a busy machine say nothing, TRL's least of all, whose two
threads wait for each other: how many cores other programs kept busy is printed for each run and kept in the JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trl_comparison.job import Job
from trl_comparison.measures import (
    others_cores,
    seconds_to,
    tailrace_times,
    tokens_per_s,
    trl_times,
    whole_tokens_per_s,
    window,
)
from trl_comparison.sizes import SIZES, Size, sized
from trl_comparison.task import Prepared, prepare

HERE = Path(__file__).parent
TASKS = {"long": "long-chain-sum", "short": "short-chain-sum"}
MAX_TOKENS = 192
SNAPSHOT_EVERY = 4  # steps; seconds to an accuracy are linear in between
SIDES = ("tailrace", "trl")
RUN_TIMEOUT_S = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Tailrace beside TRL on two cores.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--size", choices=SIZES, action="append", help="million parameters; may be repeated; all of them"
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps, and no accuracy")
    parser.add_argument("--steps", type=int, help="optimizer steps, in place of the sizes' own")
    parser.add_argument("--task", choices=[*TASKS, "both"], default="both")
    parser.add_argument("--accuracy", type=float, default=0.50, help="held-out accuracy to reach")
    parser.add_argument("--draws", type=int, default=4, help="responses per held-out problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="a model directory instead of the quick start's warm start")
    parser.add_argument(
        "--trl-rows", type=int, help="completions in one of TRL's forward passes, in place of the sizes' own"
    )
    parser.add_argument("--continuous", action="store_true", help="a column more: TRL with continuous batching")
    parser.add_argument("--vllm", action="store_true", help="a column more: TRL with vLLM in its process")
    parser.add_argument("--keep", type=Path, help="directory for the runs' files; else they are removed")
    arguments = parser.parse_args()
    work = arguments.keep or Path(tempfile.mkdtemp(prefix="vs-trl-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        outcome = Comparison(arguments, work).run()
    finally:
        if arguments.keep is None:
            shutil.rmtree(work, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(outcome, indent=1) + "\n")
        print(f"written to {arguments.json}")


class Comparison:
    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self.arguments, self.work = arguments, work
        more = [f"trl_{name}" for name in ("continuous", "vllm") if getattr(arguments, name)]
        self.sides = [*SIDES, *more]
        self.loads: list[float] = []

    def run(self) -> dict[str, Any]:
        """Figures by size and task: of the quick start's size as `long` and `short`, of others as `3 long` and so on."""
        arguments = self.arguments
        names = list(TASKS) if arguments.task == "both" else [arguments.task]
        begun = time.monotonic()
        load = os.getloadavg()[0]
        if load > 0.5:
            print(f"the machine is busy: load {load:.1f} before the first run; rates below are not to be quoted")
        tasks = {name: prepare(TASKS[name], self.work / name, arguments.seed, arguments.model) for name in names}
        outcome: dict[str, Any] = {"equivalence": self.equivalence(tasks[names[0]])}
        times: dict[str, Any] = {}
        for million in arguments.size or SIZES:
            size = SIZES[million]
            model = sized(tasks[names[0]].model, self.work / f"model-{million}", size, arguments.seed)
            for task in names:
                name = task if not size.shape else f"{million} {task}"
                prepared = dataclasses.replace(tasks[task], model=model)
                results = self.results(name, prepared, size)
                times[name] = {
                    side: (tailrace_times if side == "tailrace" else trl_times)(_middle(results[side]))
                    for side in self.sides
                }
                outcome[name] = self.figures(name, prepared, results) | {
                    "task": TASKS[task],
                    "million_parameters": float(million),
                    "steps": self.steps(size),
                    "window_steps": list(window(self.steps(size))),
                }
                show(name, outcome[name], times[name])
        return {
            **outcome,
            "where_time_goes": times,
            "repeats": arguments.repeats,
            "load_before_runs": self.loads,
            "cores": os.cpu_count(),
            "wall_s": round(time.monotonic() - begun, 1),
            "notes": " ".join((__doc__ or "").split()),
        }

    def steps(self, size: Size) -> int:
        return int(self.arguments.steps or (size.quick_steps if self.arguments.quick else size.steps))

    def results(self, name: str, task: Prepared, size: Size) -> dict[str, list[dict[str, Any]]]:
        """All runs of a task, sides in turn."""
        results: dict[str, list[dict[str, Any]]] = {side: [] for side in self.sides}
        for repeat in range(self.arguments.repeats):
            for side in self.sides:
                job = self.job(task, size, self.arguments.seed + repeat)
                out = self.work / f"{name.replace(' ', '-')}-{repeat}-{side}"
                results[side].append(self.one(side, job, out, size))
        return results

    def job(self, task: Prepared, size: Size, seed: int) -> Job:
        return Job(
            str(task.model),
            str(task.train),
            self.steps(size),
            SNAPSHOT_EVERY,
            seed,
            prompts=size.prompts,
            max_tokens=MAX_TOKENS,
            lr=size.lr,
        )

    def one(self, side: str, job: Job, out: Path, size: Size) -> dict[str, Any]:
        self.loads.append(round(os.getloadavg()[0], 2))
        begun = time.monotonic()
        if side == "tailrace":
            result = _side("tailrace_side", job, out)
        else:
            rows = min(self.arguments.trl_rows or size.trl_rows, job.completions)
            result = _side("trl_side", job, out, side.partition("_")[2] or "padded", rows)
        others = others_cores(result)
        result["start_up_s"] = time.monotonic() - begun - result["steps"][-1]["at_s"]
        print(
            f"{out.name}: {tokens_per_s(result):.0f} tokens/s, {result['steps'][-1]['at_s']:.1f} s of training, "
            f"{result['start_up_s']:.0f} s of start-up and shut-down (excluded), other programs on "
            + ("an unknown number of" if others is None else f"{others:.2f}")
            + " cores",
            flush=True,
        )
        return result

    def equivalence(self, task: Prepared) -> dict[str, Any]:
        found = _side("equivalence", self.job(task, SIZES["0.2"], self.arguments.seed), self.work / "equivalence")
        same, configured = found["given_trl_advantages"], found["as_configured"]
        print(
            f"loss: TRL's {found['loss_type']!r} is Tailrace's token mean: gradients differ by "
            f"{same['gradient_relative_difference']:.1e} on equal advantages; as configured their cosine is "
            f"{configured['gradient_cosine']:.6f} and TRL's norm is {configured['gradient_norm_ratio_trl_to_tailrace']:.3f} "
            "of Tailrace's (TRL divides by the sample's standard deviation, Tailrace by the population's)",
            flush=True,
        )
        return found

    def figures(self, name: str, task: Prepared, results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
        reached = self.to_accuracy(name, task, results)
        figures: dict[str, Any] = {"accuracy": self.arguments.accuracy}
        for side, runs in results.items():
            rates = [tokens_per_s(run) for run in runs]
            seconds = [one["seconds"] for one in reached[side] if one["seconds"] is not None]
            figures[f"{side}_tokens_per_s"] = round(statistics.median(rates), 1)
            figures[f"{side}_tokens_per_s_all"] = [round(rate, 1) for rate in rates]
            figures[f"{side}_whole_run_tokens_per_s"] = round(statistics.median(map(whole_tokens_per_s, runs)), 1)
            figures[f"{side}_seconds_to_accuracy"] = (
                round(statistics.median(seconds), 2) if len(seconds) == len(runs) else None
            )
            figures[f"{side}_seconds_to_accuracy_all"] = [one["seconds"] for one in reached[side]]
            figures[f"{side}_accuracies"] = [one["accuracies"] for one in reached[side]]
            figures[f"{side}_others_cores_all"] = [others_cores(run) for run in runs]
            figures[f"{side}_start_up_s"] = round(statistics.median(run["start_up_s"] for run in runs), 1)
        for side in self.sides[1:]:
            suffix = side.removeprefix("trl")
            ours, theirs = figures["tailrace_seconds_to_accuracy"], figures[f"{side}_seconds_to_accuracy"]
            figures[f"tokens_per_s_ratio{suffix}"] = round(
                figures["tailrace_tokens_per_s"] / figures[f"{side}_tokens_per_s"], 3
            )
            figures[f"whole_run_tokens_per_s_ratio{suffix}"] = round(
                figures["tailrace_whole_run_tokens_per_s"] / figures[f"{side}_whole_run_tokens_per_s"], 3
            )
            # Seconds of Tailrace over seconds of TRL: below 1 where Tailrace is there first.
            figures[f"time_to_accuracy_ratio{suffix}"] = round(ours / theirs, 3) if ours and theirs else None
        return figures

    def to_accuracy(
        self, name: str, task: Prepared, results: dict[str, list[dict[str, Any]]]
    ) -> dict[str, list[dict[str, Any]]]:
        """Accuracy of the saved weights of each run, as far as the first that is good enough, and when that was."""
        if self.arguments.quick:
            nothing: dict[str, Any] = {"seconds": None, "accuracies": {}}
            return {side: [nothing for _ in done] for side, done in results.items()}
        runs = {
            (side, number): {0: str(task.model), **{int(step): model for step, model in run["models"].items()}}
            for side, done in results.items()
            for number, run in enumerate(done)
        }
        request, out = (self.work / f"{name.replace(' ', '-')}-accuracy{end}" for end in ("-request.json", ".json"))
        content = {
            "held_out": str(task.held_out),
            "draws": self.arguments.draws,
            "max_tokens": MAX_TOKENS,
            "seed": self.arguments.seed,
            "target": self.arguments.accuracy,
            "runs": [[models[step] for step in sorted(models)] for models in runs.values()],
        }
        request.write_text(json.dumps(content, indent=1))
        _python("accuracy", [request, out], out.with_suffix(".log"))
        measured = json.loads(out.read_text())
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in results}
        for (side, number), models in runs.items():
            accuracies = {step: measured[model] for step, model in sorted(models.items()) if model in measured}
            seconds = seconds_to(results[side][number], accuracies, self.arguments.accuracy)
            found[side].append({"seconds": None if seconds is None else round(seconds, 2), "accuracies": accuracies})
        return found


def show(name: str, figures: dict[str, Any], times: dict[str, Any]) -> None:
    """Print a task's figures."""
    sides = list(times)
    print(f"\n{name} ({figures['task']}), median of {len(figures['trl_tokens_per_s_all'])}", flush=True)
    for side in sides:
        rates = figures[f"{side}_tokens_per_s_all"]
        seconds = figures[f"{side}_seconds_to_accuracy"]
        print(
            f"  {side:15} {figures[f'{side}_tokens_per_s']:8.0f} tokens/s ({min(rates):.0f} to {max(rates):.0f}), whole run "
            f"{figures[f'{side}_whole_run_tokens_per_s']:.0f}; accuracy {figures['accuracy']:.2f} after "
            + ("more steps than these, or not measured" if seconds is None else f"{seconds:.1f} s")
        )
    for side in sides[1:]:
        suffix = side.removeprefix("trl")
        print(
            f"  Tailrace / {side}: tokens per second {figures[f'tokens_per_s_ratio{suffix}']}, seconds to accuracy "
            f"{figures[f'time_to_accuracy_ratio{suffix}']}"
        )
        shares = times[side]
        print(
            f"  {side}: "
            + ", ".join(
                f"{part.replace('_', ' ')} {shares[part]:.0%}"
                for part in ("generation", "training", "reward", "weight_sync", "other")
            )
            + f"; {shares['busy_cores']:.2f} cores busy"
        )
    ours = times["tailrace"]
    for role in ("trainer", "replica"):
        print(f"  tailrace {role}: " + ", ".join(f"{doing} {share:.0%}" for doing, share in ours[role].items()))
    cores = ", ".join(f"{role} {used:.2f}" for role, used in ours["busy_cores"].items())
    print(f"  tailrace cores busy: {cores}", flush=True)


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median rate, the lower of two."""
    return sorted(runs, key=tokens_per_s)[(len(runs) - 1) // 2]


def _side(module: str, job: Job, out: Path, *more: Any) -> dict[str, Any]:
    out.mkdir(parents=True)
    job.write(out / "job.json")
    _python(module, [out / "job.json", out, *more], out / "log.txt")
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def _python(module: str, arguments: list[Any], log: Path) -> None:
    with log.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-m", f"trl_comparison.{module}", *map(str, arguments)],
            cwd=HERE,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        sys.exit(f"trl_comparison.{module} ended with {done.returncode}:\n{log.read_text()[-3000:]}")


if __name__ == "__main__":
    main()
