"""A ranker in a run whose lengths double midway: how many of the longest it finds before, right after, and once it has learned.

    uv run python tools/bench/ranker_drift.py DIR [--seeds N ...] [--steps N] [--set KEY=VALUE ...]

The schedule is the order of the prompts (`task.shuffle = false`): chained sums of 3 to 11 terms in the first half of the run,
and of twice as many in the second. The run is StreamRL's quick start, real processes and all, with its ranker online: it learns
from the first step's responses, and anew when its predictions have drifted. Recall is of trajectories, with the predictions
that stood when they were launched:

    before        of the first half, once there is a ranker
    right after   of the second half, by the ranker that knows the first half alone
    updated       of the second half, by rankers that have learned from some of it

Beside it, on the same responses: the ranker that was trained first, frozen; the length of the prompt; half of a prompt's own
samples (the ceiling). Nothing is timed, so another load of the machine changes only how many prompts fall into each row.

What is finished stays in DIR: call it again with the same DIR to go on.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.figures.stages import LaunchedGroups
from tailrace.ranker import Example, LengthRanker, Prediction, ceiling20, recall
from tailrace.reward.tasks import ChainSum, TaskRow, write_jsonl

PROMPTS, SAMPLES = 32, 8
TERMS = range(3, 12)
"""How many terms the sums of the first half have; those of the second have twice as many."""
AHEAD = 3 * PROMPTS  # rows beyond those that are trained on, which are asked for ahead
LOOK_S = 0.5
BEFORE, AFTER, UPDATED = "before", "right after", "updated"


def rows(steps: int, seed: int) -> list[TaskRow]:
    """The prompts of a run in their order."""
    drawn = random.Random(f"drift/{seed}")
    half = steps // 2 * PROMPTS
    terms = [drawn.choice(TERMS) for _ in range(half)]
    terms += [2 * drawn.choice(TERMS) for _ in range(steps * PROMPTS - half + AHEAD)]
    sums: dict[int, Iterator[TaskRow]] = {}
    for count in sorted(set(terms)):
        task = ChainSum(f"sums of {count}", count, count, exponent=0.0, warm_exponent=0.0, misread=0.0)
        sums[count] = iter(task.generate("train", terms.count(count), seed))
    return [next(sums[count]) for count in terms]


def ran(directory: Path, steps: int, seed: int, settings: Sequence[str]) -> Path:
    """The directory of a finished run, beside which ``first`` is the ranker as it was trained first.

    Raises:
        RuntimeError: the run failed; its output is in ``run.log``.
    """
    run, file, first = directory / "run", directory / "rows.jsonl", directory / "first"
    if (run / "summary.json").is_file():
        return run
    shutil.rmtree(directory, ignore_errors=True)
    write_jsonl(file, rows(steps, seed))
    task = f'task={{ train = {json.dumps(str(file.absolute()))}, verifier = "reasoning-gym", shuffle = false }}'
    given = [
        task,
        "warm_start.task=long-chain-sum",
        f"pipeline.steps={steps}",
        f"pipeline.prompts_per_step={PROMPTS}",
        f"pipeline.samples_per_prompt={SAMPLES}",
        "evaluation.controls=false",
        "executor.name=local",
        *settings,
    ]
    command = [sys.executable, "-m", "tailrace.cli.main", "run", "streamrl", "--plain", "--seed", str(seed)]
    command += ["--run-dir", str(run), *(f"--set={one}" for one in given)]
    with (directory / "run.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        while process.poll() is None:
            time.sleep(LOOK_S)
            if not first.exists() and (run / "ranker" / "1" / "ranker.json").is_file():
                shutil.copytree(run / "ranker" / "1", first)
    if process.returncode:
        raise RuntimeError(f"found exit status {process.returncode} of a run, expected 0: see {directory / 'run.log'}")
    if not first.exists():
        raise RuntimeError(f"{run}: found no ranker, expected one that has learned: more --steps")
    return run


@dataclass
class Launched:
    """A group of a run.

    Args:
        prompt: index in the stream.
        updates: of the ranker, before the prediction that stood when it started.
        predicted: that prediction; None: there was none.
        lengths: generated tokens of each response.
    """

    prompt: int
    updates: int
    predicted: Prediction | None
    lengths: Sequence[int]


def launched(run: Path) -> tuple[list[Launched], int]:
    """The groups all of whose responses ended, and how often the ranker learned anew."""
    answers: dict[int, tuple[int, Prediction]] = {}
    known: dict[int, tuple[int, Prediction | None]] = {}
    updates, groups = 0, LaunchedGroups()
    for instant in read_log(RunDirectory(run).events):
        for event in instant.events:
            if isinstance(event, c.Activity) and event.role == "ranker":
                updates += event.phase == "updated"
            elif isinstance(event, c.Predicted) and event.p90 is not None and event.mean is not None:
                answers[event.prompt] = updates, Prediction(event.tokens, event.p90, event.mean)
        for group in groups.observe(instant.events, instant.commands):
            known[group.first.group] = answers.get(group.first.prompt, (updates, None))
    found = [
        Launched(group.first.prompt, *known[number], [length for length, _ in group.responses.values()])
        for number, group in groups.of.items()
    ]
    return [one for one in found if len(one.lengths) == SAMPLES], updates


def figures(directory: Path, steps: int) -> dict[str, Any]:
    """What is found in a finished run, by part of it."""
    groups, updates = launched(directory / "run")
    texts = [json.loads(line)["prompt"] for line in (directory / "rows.jsonl").read_text().splitlines()]
    frozen, half = LengthRanker.load(directory / "first"), steps // 2 * PROMPTS
    before = max((one.updates for one in groups if one.prompt < half), default=0)
    known = [one for one in groups if one.predicted is not None]
    parts = {
        BEFORE: [one for one in known if one.prompt < half],
        AFTER: [one for one in known if one.prompt >= half and one.updates <= before],
        UPDATED: [one for one in known if one.prompt >= half and one.updates > before],
    }
    summary = json.loads((directory / "run" / "summary.json").read_text())
    found = {part: over_updates(some, texts, frozen) for part, some in parts.items() if len(some) > 1}
    return {
        "updates": updates,
        "unpredicted": summary["unpredicted"],
        "method": summary["ranker_method"],
        "parts": found,
    }


def over_updates(groups: Sequence[Launched], texts: Sequence[str], frozen: LengthRanker) -> dict[str, float]:
    """Means over the rankers that predicted, by prompts: an update may change the scale of scores, in which one ranks."""
    by = {one.updates: [other for other in groups if other.updates == one.updates] for one in groups}
    each = [measured(some, texts, frozen) for some in by.values() if len(some) > 1]
    prompts = sum(one["prompts"] for one in each)
    means = {key: sum(one[key] * one["prompts"] for one in each) / prompts for key in each[0]}
    return {**means, "prompts": prompts}


def measured(groups: Sequence[Launched], texts: Sequence[str], frozen: LengthRanker) -> dict[str, float]:
    """Figures of some groups that had predictions."""
    lengths = [length for one in groups for length in one.lengths]
    online = [one.predicted for one in groups if one.predicted is not None]
    left = frozen.predict([texts[one.prompt] for one in groups])

    def found(scores: Sequence[float]) -> float:
        return recall([score for score in scores for _ in range(SAMPLES)], lengths, 0.2)

    def covered(predictions: Sequence[Prediction]) -> float:
        bounds = [one.p90 for one in predictions for _ in range(SAMPLES)]
        return statistics.fmean(length <= bound for length, bound in zip(lengths, bounds, strict=True))

    ceiling = ceiling20([Example(str(at), tuple(one.lengths)) for at, one in enumerate(groups)])
    assert ceiling is not None
    return {
        "prompts": len(groups),
        "mean_tokens": statistics.fmean(lengths),
        "recall20": found([one.score for one in online]),
        "frozen_recall20": found([one.score for one in left]),
        "prompt_length_recall20": found([float(len(texts[one.prompt])) for one in groups]),
        "ceiling20": ceiling,
        "coverage90": covered(online),
        "frozen_coverage90": covered(left),
    }


_COLUMNS = (
    ("prompts", "prompts", 0),
    ("tokens", "mean_tokens", 1),
    ("ceiling", "ceiling20", 2),
    ("prompt length", "prompt_length_recall20", 2),
    ("recall 20 %, frozen", "frozen_recall20", 2),
    ("online", "recall20", 2),
    ("within p90, frozen", "frozen_coverage90", 2),
    ("online", "coverage90", 2),
)


def table(found: Sequence[dict[str, Any]]) -> str:
    """Means over seeds, with their range in brackets."""
    lines = [f"| | {' | '.join(name for name, _, _ in _COLUMNS)} |", "|---" * (len(_COLUMNS) + 1) + "|"]
    for part in (BEFORE, AFTER, UPDATED):
        some = [one["parts"][part] for one in found if part in one["parts"]]
        cells = [_cell([one[key] for one in some], digits) for _, key, digits in _COLUMNS] if some else []
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Sequence[float], digits: int) -> str:
    return f"{statistics.fmean(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the runs stay")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--steps", type=int, default=24, help="of a run; half of them have the shorter prompts")
    parser.add_argument("--set", nargs="+", default=[], dest="settings", metavar="KEY=VALUE", help="of the runs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.steps < 8:
        parser.error(f"found {options.steps} steps, expected at least 8: a ranker learns after the first")
    found = []
    for seed in options.seeds:
        directory = options.directory / f"seed-{seed}"
        ran(directory, options.steps, seed, options.settings)
        found.append({"seed": seed, **figures(directory, options.steps)})
        print(json.dumps(found[-1]), flush=True)
    print(f"\n{table(found)}")
    if options.json is not None:
        options.json.write_text(json.dumps({"benchmark": "ranker_drift", "seeds": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
