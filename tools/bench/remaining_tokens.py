"""Predicted lengths where StreamRL does not use them: StaleFlow's cost model, Laminar's repack, RollPacker's long rounds.

    uv run python tools/bench/remaining_tokens.py [--seeds N] [--only staleflow laminar rollpacker] [--json FILE]

Trained tokens per second on the simulated fleets of `configs/fleet`, over those of the same fleet, workload and seed without
predictions: median, smallest and largest of the seeds. Predictions are of prompts, so `exact` is a workload whose samples of a
prompt have all the same length (`correlation = 1`): it is the limit of what knowing lengths can bring. The others are on the
workload of the file: the mean of a prompt's own samples, a ranker that finds 0.6 of the longest 20 %, and one that guesses.

    staleflow    `predicted = true` of `marginal-throughput`, with the file's number of trajectories on a replica, and a quarter
    laminar      `projected = true` of `best-fit`, with the file's number, and twice as many
    rollpacker   prompts predicted among the longest wait for a long round at once, and short rounds launch fewer beyond their
                 batch. No option of `tail-batching` does that: this file has the state machine, to see whether one should
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

from tailrace.controller.policies.tail_batching import TailBatching
from tailrace.fleetsim import simulate
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.noisy_oracle import noisy_oracle
from tailrace.pipeline.config.target import configuration
from tailrace.rollout import TailRounds
from tailrace.rollout.tail_batching import Round, Take

CONFIGS = Path(__file__).parents[2] / "configs" / "fleet"
CHANCE, GOOD = 0.2, 0.6
RECALL = "fleet.ranker.recall20"
RANKERS: dict[str, dict[str, float]] = {
    "exact": {},
    "prompt means": {},
    f"recall {GOOD}": {RECALL: GOOD},
    "chance": {RECALL: CHANCE},
}
PROMPTS = 4_096
"""Prompts of the stream whose lengths say which are among the longest."""
TAILS = ((1.25, 0.2), (1.1, 0.2), (1.0, 0.2))
"""How many times its prompts a short round launches, and the share of prompts that wait for a long one."""


def run(app: str, seed: int, settings: Mapping[str, object]) -> dict[str, float]:
    """What a simulation of a fleet of `configs/fleet` gave."""
    given = tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())
    result = simulate(CONFIGS / f"{app}.toml", seed=seed, settings=given)
    return {"tokens_per_s": result.tokens_per_s, "preemptions": result.preemptions}


def switched(app: str, switch: Mapping[str, object], places: Sequence[int], seeds: int) -> Iterator[str]:
    """Lines of a switch of a policy, by places of a replica and ranker."""
    for place in places:
        common: dict[str, object] = {"pipeline.prompts_per_replica": place, "pipeline.steps": 12, "fleet.warm_up": 6}
        exact = {**common, "fleet.workload.correlation": 1.0}
        without = {
            key: [run(app, seed, base) for seed in range(seeds)] for key, base in ((True, exact), (False, common))
        }
        for name, ranker in RANKERS.items():
            settings = {**(exact if name == "exact" else common), **switch, **ranker}
            mine = [run(app, seed, settings) for seed in range(seeds)]
            yield line(f"{app}, {place} prompts on a replica", name, without[name == "exact"], mine)


class PredictedRounds(TailRounds):
    """Rounds whose prompts that are predicted long wait for a long round at once."""

    is_long: Callable[[int], bool]

    def open(self, take: Take) -> Round | None:
        """The next round, as `TailRounds` opens it."""

        def others(count: int) -> Sequence[int]:
            found: list[int] = []
            while len(found) < count and (new := take(count - len(found))):
                self._queue += filter(self.is_long, new)
                found += [prompt for prompt in new if not self.is_long(prompt)]
            return found

        return super().open(others)


def tail_rounds(correlation: float, tail: float, recall: float | None, seed: int) -> AbstractContextManager[object]:
    """Where `tail-batching` has such rounds."""
    settings = (f"fleet.workload.correlation={correlation}",)
    config = configuration(str(CONFIGS / "rollpacker.toml"), settings=settings)
    workload = build_fleet(config, seed=seed).workload
    samples = [workload.group(prompt, config.pipeline.samples_per_prompt) for prompt in range(PROMPTS)]
    lengths = [statistics.fmean(sample.turns[0][0] for sample in group) for group in samples]
    if recall is not None:
        lengths = noisy_oracle(lengths, {0.2: recall}, seed)
    limit = sorted(lengths)[int((1 - tail) * PROMPTS)]

    def rounds(policy: TailBatching) -> TailRounds:
        found = PredictedRounds(policy.prompts, policy.samples, policy.prompt_factor, policy.sample_factor)
        found.is_long = lambda prompt: lengths[prompt % PROMPTS] >= limit
        return found

    return patch.object(TailBatching, "rounds", rounds)


@cache
def rounds(correlation: float, factor: float, tail: float, recall: float | None, seed: int) -> dict[str, float]:
    """What RollPacker's fleet gave; with a tail of 0 it has RollPacker's rounds."""
    settings = {
        "pipeline.steps": 24,
        "fleet.warm_up": 4,
        "pipeline.batching.prompt_factor": factor,
        "fleet.workload.correlation": correlation,
    }
    with tail_rounds(correlation, tail, recall, seed) if tail else nullcontext():
        return run("rollpacker", seed, settings)


def rollpacker(seeds: int) -> Iterator[str]:
    """Lines of tail batching, by factor of a short round, tail and ranker."""
    without = [(factor, 0.0, name, {}) for factor in (1.1, 1.0) for name in ("exact", "prompt means")]
    ranked = [(factor, tail, name, ranker) for factor, tail in TAILS for name, ranker in RANKERS.items()]
    for factor, tail, name, ranker in [*without, *ranked]:
        correlation = 1.0 if name == "exact" else 0.5
        base = [rounds(correlation, 1.25, 0.0, None, seed) for seed in range(seeds)]
        mine = [rounds(correlation, factor, tail, ranker.get(RECALL), seed) for seed in range(seeds)]
        yield line(f"rollpacker, {factor} times, tail {tail}", name if tail else f"none ({correlation})", base, mine)


def line(what: str, name: str, base: Sequence[Mapping[str, float]], mine: Sequence[Mapping[str, float]]) -> str:
    """One row."""
    ratios = [each["tokens_per_s"] / other["tokens_per_s"] for each, other in zip(mine, base, strict=True)]
    kept = [statistics.median(each["preemptions"] for each in runs) for runs in (base, mine)]
    speed = statistics.median(each["tokens_per_s"] for each in base)
    return (
        f"{what:34} {name:14} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of {speed:,.0f} "
        f"tokens/s; preemptions {kept[0]:,.0f} -> {kept[1]:,.0f}"
    )


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    predicted = {"ranker": {}, "pipeline.routing.predicted": True}
    projected = {"ranker": {}, "pipeline.relocation.projected": True}
    tables: dict[str, Callable[[int], Iterator[str]]] = {
        "staleflow": partial(switched, "staleflow", predicted, (64, 16)),
        "laminar": partial(switched, "laminar", projected, (32, 64)),
        "rollpacker": rollpacker,
    }
    parser.add_argument("--only", nargs="+", choices=tables, default=list(tables))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    lines = []
    for name in given.only:
        for one in tables[name](given.seeds):
            print(one, flush=True)
            lines.append(one)
    if given.json is not None:
        given.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
