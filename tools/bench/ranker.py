"""How well the longest responses are known beforehand: every method of `tailrace-ranker`, on responses of a policy of our own.

    uv run python tools/bench/ranker.py DIR [--budget-s S] [--train-s S] [--splits NAME ...] [--init DIR ...] [--no-versions]

The mix (`length_ranking/mix.py`) has 13 families of reasoning-gym in three difficulties, 2,028 prompts; the policy is a Qwen3
of 0.2 million parameters that learned from worked solutions of all of them, of which 20 % give only the answer. It gives
16 responses to each prompt, at temperature 1. Then each method learns from a part, and is measured on the rest:

    prompts     a fifth of the prompts is held out, three times, at random
    families    a third of the families is held out, three times; together each once
    bands       one difficulty is held out, three times; together each once

Recall is of trajectories: the part of the longest 20, 10 or 5 % that is among as many with the highest scores. Its ceiling
ranks prompts by the mean of half of their own samples and scores that on the other half. Intervals are the middle 95 % over
resampled prompts. With `--init` a language model is fine-tuned to each objective, on `--option steps=N` steps: a budget of
seconds would depend on what else the machine does. `siblings` and `last-length` know half of a prompt's samples and are
measured on the other half. Beside it stands StreamRL's Table 4, of other prompts, another policy and far larger models.

Then the policy is trained by RL on the prompts that are not held out, and a ranker of version 0 is measured on what its
checkpoints generate for those that are, as it was and updated every ten versions. Beside it stands what the mean of a prompt's
16 samples of version 0 finds: how much of the order has stayed.

What is finished stays in DIR: call it again with the same DIR to go on. After `--budget-s` seconds it ends with what there is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from length_ranking import mix, policy, trials, versions
from length_ranking.figures import figures
from length_ranking.sampling import sampled
from length_ranking.stages import Clock, OutOfTimeError
from length_ranking.tables import AUTO, PAPER, over_seeds, table, version_table

from tailrace.ranker import Example
from tailrace.ranker.learned.options import OBJECTIVES
from tailrace.ranker.methods import method_names

SAMPLES = 16
AGED = ("lexical", "hidden")
"""Methods that are followed over versions beside the one that `auto` takes."""


@dataclass
class Bench:
    """What is known so far; every stage adds to it.

    Args:
        options: of the command line.
        clock: what is left of the time.
    """

    options: argparse.Namespace
    clock: Clock

    def __post_init__(self) -> None:
        self.directory: Path = self.options.directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.found: dict[str, Any] = {
            "benchmark": "ranker",
            "complete": False,
            "paper_table_4": PAPER,
            "held_out": {},
            "versions": {},
        }
        self.problems = mix.problems(self.options.seed, self.options.prompts)
        self.examples: dict[int, Example] = {}

    def run(self) -> None:
        """All stages in order."""
        self.model = policy.warm_started(self.directory, self.options.seed, self.clock)
        self.examples = sampled(
            self.directory / "samples.jsonl",
            self.model,
            dict(enumerate(self.problems)),
            self.options.samples,
            self.options.seed,
            self.clock,
            engine_name=self.options.engine,
        )
        self.found["mix"] = described(self.problems, self.examples)
        print(json.dumps(self.found["mix"]))
        for split in [split for split in trials.SPLITS if split in self.options.splits]:
            if split == trials.SPLITS[1] and self.options.versions:
                self.over_versions()
            self.hold_out(split)
        if self.options.versions and not self.found["versions"]:
            self.over_versions()
        self.found["complete"] = True

    def hold_out(self, split: str) -> None:
        """One table."""
        found = []
        for seed in trials.SEEDS:
            one = self.outcomes(split, seed)
            found.append(figures({**one, AUTO: one[trials.chosen(one)]}, seed))
            self.found["held_out"][split] = {
                **over_seeds(found),
                "chosen": [trials.chosen(self.outcomes(split, seed)) for seed in trials.SEEDS[: len(found)]],
            }
        print(f"\n{table(f'held out: {split}', self.found['held_out'][split])}", flush=True)

    def outcomes(self, split: str, seed: int) -> dict[str, trials.Outcome]:
        """What the methods predicted for one part."""
        return trials.outcomes(
            self.directory / "trials",
            split,
            seed,
            self.problems,
            self.examples,
            self.model,
            self.options.train_s,
            self.clock,
            self.options.methods,
            trials.Given(self.options.init, self.options.objectives, _options(self.options.option)),
        )

    def over_versions(self) -> None:
        """The ranker of version 0 at later ones."""
        held = sorted(trials.held_out(trials.SPLITS[0], 0, self.problems))
        rest = [index for index in self.examples if index not in set(held)]
        run = policy.trained_by_rl(
            self.directory, self.model, [self.problems[index] for index in rest], self.options.seed, self.clock
        )
        asked = versions.at_versions(
            self.directory,
            run,
            {index: self.problems[index] for index in versions.measured_prompts(held, self.options.seed)},
            self.options.seed,
            self.clock,
            self.options.engine,
        )
        from tailrace.cli.components.rank import read_examples

        recent = read_examples(run)
        first = [self.examples[index] for index in rest]
        for method in dict.fromkeys((trials.chosen(self.outcomes(trials.SPLITS[0], 0)), *AGED)):
            rows = [
                versions.aged(
                    self.directory / "versions" / f"{method}-{seed}.json",
                    method,
                    seed,
                    first,
                    {self.examples[index].prompt: self.examples[index] for index in held},
                    recent,
                    asked,
                    self.model,
                    self.options.train_s,
                    self.clock,
                )
                for seed in trials.SEEDS
            ]
            self.found["versions"][method] = rows
            print(f"\n{version_table(method, rows)}", flush=True)


def _options(given: Sequence[str]) -> dict[str, Any]:
    return {key: tomllib.loads(f"value = {text}")["value"] for key, _, text in (each.partition("=") for each in given)}


def described(problems: Sequence[mix.Problem], examples: Mapping[int, Example]) -> dict[str, Any]:
    """How many prompts and responses there are, and how long they are."""
    lengths = sorted(length for example in examples.values() for length in example.lengths)
    cut = sum(sum(example.truncated) for example in examples.values())
    return {
        "families": len({problem.family for problem in problems}),
        "prompts": len(problems),
        "responses": len(lengths),
        "mean_tokens": round(statistics.fmean(lengths), 1),
        **{f"p{share}": lengths[min(len(lengths) - 1, len(lengths) * share // 100)] for share in (50, 80, 90, 95, 99)},
        "truncated": round(cut / len(lengths), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR", help="where every stage leaves what it found")
    parser.add_argument(
        "--budget-s", type=float, default=math.inf, help="seconds after which it ends with what there is"
    )
    parser.add_argument("--train-s", type=float, default=120.0, help="seconds of processor time of one training")
    parser.add_argument("--splits", nargs="+", choices=trials.SPLITS, default=list(trials.SPLITS))
    parser.add_argument("--methods", nargs="+", choices=method_names(), default=method_names(), metavar="NAME")
    parser.add_argument(
        "--init", nargs="+", type=Path, default=[], metavar="DIR", help="language models that sft fine-tunes"
    )
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=["write", "quantiles", "pairwise"])
    parser.add_argument(
        "--option", nargs="+", default=[], metavar="KEY=VALUE", help="of sft, such as steps=60 lora_rank=8"
    )
    parser.add_argument("--no-versions", dest="versions", action="store_false", help="without the RL run")
    parser.add_argument("--prompts", type=int, default=mix.PROMPTS, help="of each family in each difficulty")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="responses to each prompt")
    parser.add_argument("--engine", default="auto", help="plugin of tailrace.engine")
    parser.add_argument("--seed", type=int, default=0, help="of the mix, the policy and its responses")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if not options.budget_s > 0 or not options.train_s > 0 or options.prompts < 5 or options.samples < 2:
        parser.error("found a value out of range, expected seconds above 0, at least 5 prompts and 2 samples")
    if options.directory.exists() and not options.directory.is_dir():
        parser.error(f"found the file {options.directory}, expected a directory, which need not exist")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: processor time is that of one thread
    bench = Bench(options, Clock(options.budget_s))
    try:
        bench.run()
    except OutOfTimeError:
        print(f"found {options.budget_s:.0f} s used up: call it again with {options.directory} to go on", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(bench.found, indent=1) + "\n")
    return 0 if bench.found["complete"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
