"""What tail batching does to the responses that are trained on, at frozen weights: simulated, and with the quick start's model.

    uv run python tools/bench/tail_bias.py [--seed N] [--real PROMPTS] [--engine NAME] [--json FILE]

Each setting runs a whole epoch, so every prompt is trained on exactly once. What is trained is compared with what plain
sampling of the same prompts gives: the first samples of each prompt's first draw. A key of `bias` is the redraw of deferred
prompts, the prompt factor and the sample factor, as in "fresh 1.25 1". `length_mean`, `length_p99` and `reward` are relative
differences; `stderr` is the standard error of the first over prompts, `reward_stderr` that of the last. `real` has the same of
the real run.

The settings without a factor above 1 must show nothing: they say how well this measures.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from frozen_rounds.epoch import Generator, epoch
from frozen_rounds.simulated import Drawn, Response, VirtualClock

from tailrace.pipeline.run.figures.batches import percentile
from tailrace.rollout import TailRounds

REDRAWS = ("fresh", "same-noise")
FACTORS = ((1.25, 1.25), (1.25, 1.0), (1.0, 1.25), (1.0, 1.0))
EXPECTED = {"fresh 1.25 1.25": -0.17, "fresh 1.25 1": -0.04, "same-noise 1.25 1": 0.0}
"""Relative mean lengths of an independent simulation, within-group correlation 0.5."""
PROMPTS, SAMPLES = 128, 8
SIMULATED = 128 * 128


def key(redraw: str, prompt_factor: float, sample_factor: float) -> str:
    return f"{redraw} {prompt_factor:g} {sample_factor:g}"


def relative(trained: Sequence[float], offered: Sequence[float]) -> tuple[float, float]:
    """The relative difference of two means over the same prompts, and its standard error (of the ratio, over prompts)."""
    whole = statistics.fmean(offered)
    ratio = statistics.fmean(trained) / whole
    left = [one - ratio * other for one, other in zip(trained, offered, strict=True)]
    return ratio - 1, statistics.stdev(left) / math.sqrt(len(left)) / whole


def compare(trained: Mapping[int, list[Response]], offered: Mapping[int, list[Response]]) -> dict[str, float]:
    """What is trained against what is offered, by prompt."""
    found = {}
    sides = [[side[prompt] for prompt in sorted(offered)] for side in (trained, offered)]
    lengths, rewards = (
        [[statistics.fmean(getattr(one, name) for one in group) for group in side] for side in sides]
        for name in ("tokens", "reward")
    )
    found["length_mean"], found["stderr"] = relative(*lengths)
    tails = [percentile(sorted(one.tokens for group in side for one in group), 0.99) for side in sides]
    found["length_p99"] = tails[0] / tails[1] - 1
    found["reward"], found["reward_stderr"] = relative(*rewards)
    return {name: round(value, 6) for name, value in found.items()}


def correlation(groups: Mapping[int, list[Response]]) -> float:
    """The share of the variance of log lengths that lies between prompts (intraclass correlation)."""
    logs = [[math.log(one.tokens) for one in group] for group in groups.values()]
    within = statistics.fmean(statistics.variance(group) for group in logs)
    between = statistics.variance(statistics.fmean(group) for group in logs) - within / len(logs[0])
    return between / (between + within)


def simulated(seed: int) -> dict[str, dict[str, float]]:
    drawn = Drawn(SIMULATED, math.ceil(SAMPLES * max(factor for _, factor in FACTORS)), seed)
    prompts = range(SIMULATED)
    offered = {prompt: drawn.group(0, prompt, SAMPLES) for prompt in prompts}
    bias = {}
    for redraw in REDRAWS:
        for factors in FACTORS:
            clock: Generator[Response] = VirtualClock(drawn, same_noise=redraw == "same-noise")
            trained, short, long = epoch(TailRounds(PROMPTS, SAMPLES, *factors), prompts, clock)
            rounds = {"rounds_short": short, "rounds_long": long}
            bias[key(redraw, *factors)] = compare(trained, offered) | rounds
    return bias


def real(count: int, seed: int, engine_name: str) -> dict[str, dict[str, float]]:
    """The same with the quick start's model after its warm start, on this machine."""
    from frozen_rounds.real import EngineLoop, Scores, Text, ref

    from tailrace.contracts import Sampling
    from tailrace.pipeline.config.target import configuration
    from tailrace.pipeline.roles.prompts import Prompts, PromptSettings
    from tailrace.pipeline.run.directory import RunDirectory
    from tailrace.pipeline.run.prepare import prepare
    from tailrace.pipeline.run.prompts.stop_tokens import stop_tokens
    from tailrace.rollout import build_engine
    from tailrace.trajstore import MixOrder

    config = configuration("rollpacker", seed=seed)
    size, samples = config.pipeline.prompts_per_step, config.pipeline.samples_per_prompt
    with tempfile.TemporaryDirectory() as work:
        directory = RunDirectory.create(Path(work) / "run", config.model_dump(mode="json"))
        try:
            prepared = prepare(config, directory, lambda row: print(f"{row.get('phase')} {row.get('step', '')}"))
        finally:
            directory.unlock()
        prompts = Prompts(
            PromptSettings(
                tokenizer=prepared.model / "tokenizer.json",
                train=prepared.train,
                shares=prepared.shares,
                held_out=prepared.held_out,
                modes=prepared.modes(),
                shuffle_seed=seed,
            )
        )
        order = MixOrder(config.task.shares, shuffle_seed=seed)
        sampling = Sampling(config.rollout.temperature, config.rollout.max_tokens, stop_tokens(config, prepared.model))
        engine = build_engine(engine_name, str(prepared.model), {"seed": seed, **config.rollout.options})
        scores = Scores(config, prepared, prompts)

        def source(prompt: int) -> Hashable:
            return order.pool(prompt)

        def run(redraw: str, prompt_factor: float, sample_factor: float) -> tuple[dict[int, list[Text]], int, int]:
            loop = EngineLoop(
                engine, lambda prompt: prompts.encode(ref(prompt)), sampling, seed, same_noise=redraw != "fresh"
            )
            rounds = TailRounds(size, samples, prompt_factor, sample_factor, source_of=source)
            return epoch(rounds, range(count), loop)

        def scored(groups: Mapping[int, list[Text]]) -> dict[int, list[Response]]:
            scores.score(text for group in groups.values() for text in group)
            return {
                prompt: [Response(text.tokens, scores.known[text]) for text in group]
                for prompt, group in groups.items()
            }

        try:
            offered = scored(run("fresh", 1.0, 1.0)[0])
            print(f"real: within-group correlation of log lengths {correlation(offered):.2f}", flush=True)
            bias = {}
            for redraw in REDRAWS:
                for factors in FACTORS:
                    trained, short, long = run(redraw, *factors)
                    found = compare(scored(trained), offered)
                    bias[key(redraw, *factors)] = found | {"rounds_short": short, "rounds_long": long}
                    print(f"real {key(redraw, *factors)}: {found}", flush=True)
        finally:
            engine.close()
    return bias


def table(title: str, bias: Mapping[str, Mapping[str, float]]) -> str:
    lines = [
        f"{title}: trained against offered",
        "| redraw, factors | mean length | p99 | reward | short, long |",
        "|---" * 5 + "|",
    ]
    for name, one in bias.items():
        mean = f"{100 * one['length_mean']:+.2f} ± {100 * one['stderr']:.2f} %"
        reward = f"{100 * one['reward']:+.2f} ± {100 * one['reward_stderr']:.2f} %"
        rounds = f"{one['rounds_short']}, {one['rounds_long']}"
        lines.append(f"| {name} | {mean} | {100 * one['length_p99']:+.1f} % | {reward} | {rounds} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", type=int, default=384, metavar="PROMPTS", help="prompts of the real epochs; 0: none")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    bias: dict[str, dict[str, Any]] = {name: dict(one) for name, one in simulated(options.seed).items()}
    print(table("simulated", bias))
    print("an independent simulation:", ", ".join(f"{name} {100 * value:+.0f} %" for name, value in EXPECTED.items()))
    if options.real:
        found = real(options.real, options.seed, options.engine)
        print(table("real", found))
        for name, one in found.items():
            bias[name]["real"] = one
    if options.json is not None:
        options.json.write_text(json.dumps({"bias": bias, "expected": EXPECTED}, indent=1) + "\n")


if __name__ == "__main__":
    main()
