"""What predicted lengths buy: seconds of a batch on several replicas, over those of the order that knows all lengths.

    uv run python tools/bench/dispatch.py DIR [--batches N] [--repeats N] [--profile NAME] [--seed N] [--json FILE]

DIR is what `ranker.py` left: batches are drawn from the prompts that it held out, with the lengths that they really had and
what each method predicted for them. The base is `oracle order`: longest first by the true lengths, to whoever has a place free.

    fcfs           each replica has every nth trajectory, in order of arrival
    least-loaded   in order of arrival, to whoever has a place free
    NAME order     longest first by what NAME predicts, to whoever has a place free: LPT without the split
    NAME split     the tail on replicas of its own (`plan_dispatch`); a replica without work takes the longest that waits
    shuffled       the predictions of `auto`, dealt to other prompts

What NAME predicts is the mean length, its score, as in a run.

`guarded` takes `least-loaded` instead wherever the predictions found no more of the longest fifth than chance, on 64 other
prompts, by the rule of a run's controller. Shapes: a batch that queues has at least four times as many trajectories as there
are places; one that fits has places for all on each replica. `two-cores` is this repository's measured profile (or `--profile`,
of `tailrace profile`), the other an H800 with Qwen2.5-7B and lengths forty times as long. Then the same on two real replicas,
all arms in turn in random order.

Planning time stands in `dispatch_plan.py`; that LPT stays within 4/3 of the optimum is a test of `tailrace-repack`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatching.arms import BASE, FCFS, LEAST_LOADED, ORACLE, ORDER, SHUFFLED, SPLIT, Replicas, arms, feed
from dispatching.modelled import Costs, makespan_s
from dispatching.recorded import Batch, Recorded, read
from dispatching.replaying import Fleet
from length_ranking.policy import MAX_MODEL_LEN
from length_ranking.tables import AUTO

H800 = "Qwen2.5-7B on H800"
STRETCH = 40
GUARDED = "guarded"
REAL_NAMES = (ORACLE, AUTO, "prompt-length", SHUFFLED)
"""Predictors that the real replicas try; all would take hours."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch on a fleet.

    Args:
        name: for tables.
        replicas: number of them.
        places: most trajectories that one runs.
        trajectories: of the batch.
    """

    name: str
    replicas: int
    places: int
    trajectories: int


SMALL = (Shape("queues", 2, 32, 256), Shape("fits", 2, 128, 128))
LARGE = (Shape("queues", 8, 16, 1024), Shape("fits", 16, 1024, 1024))


def known(recorded: Recorded) -> list[str]:
    """Predictors that there are."""
    return [ORACLE, *recorded.tokens, SHUFFLED]


def replicas_of(costs: Costs, shape: Shape, recorded: Recorded, prompts: Mapping[int, int]) -> Replicas:
    """What a plan knows of a shape: costs, and the quantiles of the lengths that were seen before."""
    recent = sorted(length * costs.stretch for length in recorded.recent)
    p50, p90 = (float(recent[len(recent) * share // 100]) for share in (50, 90))
    return costs.replicas(shape.replicas, shape.places, statistics.fmean(prompts.values()), p50, p90)


def stretched(batch: Batch, by: int) -> Batch:
    """The same batch with longer responses."""
    predicted = {name: [by * one for one in each] for name, each in batch.predicted.items()}
    return Batch(batch.prompts, [by * length for length in batch.lengths], predicted, batch.blind)


def simulated(
    costs: Costs, shape: Shape, recorded: Recorded, prompts: Mapping[int, int], batches: int, seed: int
) -> Any:
    """The makespans of each arm over those of the base, batch by batch."""
    plan = replicas_of(costs, shape, recorded, prompts)
    found: dict[str, list[float]] = {}
    for number in range(batches):
        batch = stretched(recorded.batch(shape.trajectories, 1000 * seed + number), costs.stretch)
        tokens = [prompts[index] for index in batch.prompts]
        count = len(batch.lengths)
        seconds = {
            arm: makespan_s(
                feed(arm, plan, count, batch.predicted), costs, shape.replicas, shape.places, tokens, batch.lengths
            )
            for arm in arms(known(recorded))
        }
        collect(found, seconds, batch)
    return {arm: described(ratios) for arm, ratios in found.items()}


def collect(found: dict[str, list[float]], seconds: Mapping[str, float], batch: Batch) -> None:
    """Add a batch's makespans over that of the base, guarded ones too."""
    for arm, value in seconds.items():
        found.setdefault(arm, []).append(value / seconds[BASE])
        name, _, _ = arm.rpartition(" ")
        if name in (AUTO, SHUFFLED):
            guarded = seconds[LEAST_LOADED] if name in batch.blind else value
            found.setdefault(f"{arm} {GUARDED}", []).append(guarded / seconds[BASE])


def described(ratios: Sequence[float]) -> dict[str, Any]:
    """The mean of some ratios, and how far they spread."""
    return {
        "mean": statistics.fmean(ratios),
        "median": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
        "stderr": statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else None,
    }


def real(
    fleet: Fleet,
    shape: Shape,
    costs: Costs,
    recorded: Recorded,
    tokens: Mapping[int, tuple[int, ...]],
    options: argparse.Namespace,
) -> Any:
    """The same on real replicas: seconds and steps over the base's of the same batch and turn."""
    prompts = {index: len(each) for index, each in tokens.items()}
    plan = replicas_of(costs, shape, recorded, prompts)
    tried = arms([name for name in REAL_NAMES if name in known(recorded)])
    times: dict[str, list[float]] = {}
    steps: dict[str, list[float]] = {}
    drawn = random.Random(options.seed)
    for turn in range(-1, options.repeats):  # the first turn only warms up
        batch = recorded.batch(shape.trajectories, 1000 * options.seed + max(0, turn))
        given = [tokens[index] for index in batch.prompts]
        done = {}
        for arm in drawn.sample(tried, len(tried)) if turn >= 0 else [BASE]:
            done[arm] = fleet.run(feed(arm, plan, len(batch.lengths), batch.predicted), given, batch.lengths)
        if turn >= 0:
            collect(times, {arm: one.makespan_s for arm, one in done.items()}, batch)
            collect(steps, {arm: float(one.steps) for arm, one in done.items()}, batch)
            print(f"real {shape.name}: turn {turn + 1} of {options.repeats}", file=sys.stderr, flush=True)
    order = [each for arm in tried for each in (arm, f"{arm} {GUARDED}") if each in times]
    return {arm: {"seconds": described(times[arm]), "steps": described(steps[arm])} for arm in order}


def table(title: str, columns: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: a row for each arm, a column for each shape."""
    names = list(dict.fromkeys(arm for column in columns.values() for arm in column))
    lines = [title, "", f"| arm | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| {arm} | {' | '.join(shown(column.get(arm)) for column in columns.values())} |" for arm in names]
    return "\n".join(lines)


def shown(one: Mapping[str, Any] | None) -> str:
    """A median with the range."""
    return "" if one is None else f"{one['median']:.3f} ({one['range'][0]:.2f}-{one['range'][1]:.2f})"


def regrets(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """How much longer the ways that do without an oracle take than the base: at worst, and on average over shapes."""
    candidates = [FCFS, LEAST_LOADED, *(f"{AUTO} {how}{end}" for how in (ORDER, SPLIT) for end in ("", f" {GUARDED}"))]
    found = {arm: [column[arm]["mean"] - 1 for column in columns.values()] for arm in candidates}
    return {arm: {"worst": max(each), "mean": statistics.fmean(each)} for arm, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR", help="what ranker.py left")
    parser.add_argument("--batches", type=int, default=20, help="simulated, of each shape")
    parser.add_argument("--repeats", type=int, default=5, help="turns on real replicas; 0: none")
    parser.add_argument("--profile", default="two-cores", help="of tailrace profile: a name or a TOML file")
    parser.add_argument("--engine", default="auto", help="plugin of tailrace.engine")
    parser.add_argument("--seed", type=int, default=0, help="of the batches, and of the trained methods: 0, 1 or 2")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.batches < 1 or options.repeats < 0:
        parser.error("found a number out of range, expected at least 1 batch and 0 repeats")
    from tokenizers import Tokenizer

    recorded = read(options.directory, options.seed)
    model = options.directory / "policy"
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokens = {
        index: tuple(tokenizer.encode(text, add_special_tokens=False).ids) for index, text in recorded.texts.items()
    }
    prompts = {index: len(each) for index, each in tokens.items()}
    small = Costs.of(options.profile, 1)
    columns = {}
    for costs, shapes in ((small, SMALL), (Costs.of(H800, STRETCH), LARGE)):
        for shape in shapes:
            name = f"{costs.name}, {shape.replicas} replicas, {shape.name}"
            columns[name] = simulated(costs, shape, recorded, prompts, options.batches, options.seed)
            print(f"simulated {name}", file=sys.stderr, flush=True)
    regret = regrets(columns)
    default = min(regret, key=lambda arm: (regret[arm]["worst"], regret[arm]["mean"]))
    print(table(f"simulated, {options.batches} batches; auto is {recorded.chosen}", columns))
    print(
        "\nregret:", "; ".join(f"{arm} {one['worst']:.3f} at worst, {one['mean']:.3f}" for arm, one in regret.items())
    )
    outcome: dict[str, Any] = {
        "benchmark": "dispatch",
        "auto": recorded.chosen,
        "base": BASE,
        "simulated": columns,
        "regret": regret,
        "least_regret": default,
    }
    if options.repeats:
        outcome["real"] = {}
        for shape in SMALL:
            given = {"threads": 1, "max_model_len": MAX_MODEL_LEN}
            with closing(Fleet(str(model), shape.replicas, shape.places, options.engine, given)) as fleet:
                outcome["real"][shape.name] = real(fleet, shape, small, recorded, tokens, options)
        for what in ("seconds", "steps"):
            of = {name: {arm: one[what] for arm, one in column.items()} for name, column in outcome["real"].items()}
            print("\n" + table(f"two real replicas, {what}, {options.repeats} turns", of))
    if options.json is not None:
        options.json.write_text(json.dumps(outcome, indent=1) + "\n")


if __name__ == "__main__":
    main()
