"""What a training step waits for rewards: programs are scored beside generation, at its end, and with a fixed timeout.

    uv run python tools/bench/reward_figures/exposed.py [--responses N] [--generate-s S] [--repeats N] [--json FILE]

The programs are demonstrations of the task `programs`, of which some never end. The same responses arrive at the same times
in every variant, drawn from a long-tailed distribution of lengths; a variant's exposed seconds are those between the last
arrival and the last outcome. Before the measured step every prompt has had one right program, as in a run after its first
epoch. `at_end` scores all once the last has arrived; `fixed` scores beside generation with the largest timeout for all.
Variants take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from pathlib import Path

from tailrace.reward import AdaptiveTimeout, CodeSettings, Outcome, RewardScheduler, ScoreItem, ScoringFailure
from tailrace.reward.tasks import get_task

VARIANTS = ("scheduler", "at_end", "fixed")


def arrivals(count: int, generate_s: float, seed: int) -> list[float]:
    """When each response is complete: most early, a few at the very end."""
    draws = random.Random(seed)
    lengths = [draws.lognormvariate(0.0, 0.8) for _ in range(count)]
    return [generate_s * length / max(lengths) for length in lengths]


def responses(count: int, seed: int) -> tuple[list[ScoreItem], list[ScoreItem]]:
    """The responses of a step, and a right one for each prompt."""
    task = get_task("programs")
    rows = task.generate("train", count, seed)
    written = task.demonstrations(rows, seed)

    def item(name: str, row: dict, text: str) -> ScoreItem:
        return ScoreItem(name, text, "", "code", row["metadata"], row["prompt"])

    return (
        [item(f"r{n}", row, text) for n, (row, (_, text)) in enumerate(zip(rows, written, strict=True))],
        [item(f"a{n}", row, row["answer"]) for n, row in enumerate(rows)],
    )


async def step(
    variant: str, items: list[ScoreItem], known: list[ScoreItem], at: list[float], options: argparse.Namespace
) -> dict:
    """One step. Returns its exposed seconds and what came of the scores."""
    least = options.t_max if variant == "fixed" else options.t_min
    settings = CodeSettings(workers=options.workers, timeouts=AdaptiveTimeout(least, options.t_max), recheck_share=0)
    async with RewardScheduler(code=settings) as scheduler:
        warm = [outcome async for outcome in scheduler.score(known)]
        assert all(outcome.correct for outcome in warm if not isinstance(outcome, ScoringFailure))
        outcomes, all_told = [], asyncio.Event()

        def told(outcome: Outcome | None) -> None:
            outcomes.append(outcome)
            if len(outcomes) == len(items):
                all_told.set()

        begun = time.perf_counter()
        for when, item in sorted(zip(at, items, strict=True), key=lambda pair: pair[0]):
            if variant == "at_end":
                continue
            await asyncio.sleep(max(0.0, begun + when - time.perf_counter()))
            await scheduler.submit(item, told)
        await asyncio.sleep(max(0.0, begun + max(at) - time.perf_counter()))
        last = time.perf_counter()
        if variant == "at_end":
            for item in items:
                await scheduler.submit(item, told)
        await all_told.wait()
        exposed_s = time.perf_counter() - last
    failed = sum(isinstance(outcome, ScoringFailure) for outcome in outcomes)
    rewards = {outcome.trajectory: getattr(outcome, "reward", None) for outcome in outcomes}
    over = sum(bool(getattr(outcome, "over_budget", "")) for outcome in outcomes)
    return {"exposed_s": exposed_s, "over_budget": over, "failed": failed, "rewards": rewards}


def measure(options: argparse.Namespace) -> dict:
    """All variants in turns."""
    at = arrivals(options.responses, options.generate_s, options.seed)
    items, known = responses(options.responses, options.seed)
    found: dict[str, list[dict]] = {variant: [] for variant in VARIANTS}
    for repeat in range(options.repeats):
        for place in range(len(VARIANTS)):
            variant = VARIANTS[(place + repeat) % len(VARIANTS)]
            found[variant].append(asyncio.run(step(variant, items, known, at, options)))
    rewards = [one["rewards"] for runs in found.values() for one in runs]
    figures: dict = {"responses": options.responses, "generate_s": options.generate_s, "workers": options.workers}
    for variant, runs in found.items():
        seconds = [one["exposed_s"] for one in runs]
        figures[variant] = {
            "reward_exposed_s": statistics.median(seconds),
            "least_s": min(seconds),
            "most_s": max(seconds),
            "over_budget": runs[0]["over_budget"],
            "failed": sum(one["failed"] for one in runs),
        }
    figures["same_rewards"] = all(one == rewards[0] for one in rewards)
    return figures


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of a command line, by default this one's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--generate-s", type=float, default=20.0, help="seconds until the last response is complete")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--t-min", type=float, default=2.0)
    parser.add_argument("--t-max", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main() -> None:
    """Measure, print and write."""
    options = options_of()
    figures = measure(options)
    print(f"{options.responses} programs over {options.generate_s:g} s, {options.workers} at a time")
    for variant in VARIANTS:
        one = figures[variant]
        print(
            f"{variant:>10}: exposed {one['reward_exposed_s']:6.2f} s ({one['least_s']:.2f} to {one['most_s']:.2f}), "
            f"{one['over_budget']} over budget, {one['failed']} failed"
        )
    print(f"the same rewards in every run: {figures['same_rewards']}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
