"""Batches of recorded lengths, and what each method predicted for them, from the directory of `ranker.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatching.arms import ORACLE, SHUFFLED
from length_ranking import mix, trials
from length_ranking.stages import Clock
from length_ranking.tables import AUTO

from tailrace.controller.lengths import Outcome, measured_recall
from tailrace.ranker import Example
from tailrace.ranker.methods import method_names

RECENT = 64
"""Prompts by which it is judged whether predictions say anything."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Trajectories in order of arrival, those of a prompt together.

    Args:
        prompts: index of each one's problem in the mix.
        lengths: tokens that each really has.
        predicted: tokens for each, by whose prediction it is.
        blind: whose predictions found no more of the longest than chance, on other prompts.
    """

    prompts: Sequence[int]
    lengths: Sequence[int]
    predicted: Mapping[str, Sequence[float]]
    blind: frozenset[str]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Held-out prompts with half of their samples, and what was predicted for them.

    Args:
        texts: of the prompts, by index.
        lengths: of the samples that count, by index.
        tokens: predicted for each, by method and index: the score.
        recent: lengths of prompts that were not held out.
        chosen: the method that `auto` took.
    """

    texts: Mapping[int, str]
    lengths: Mapping[int, Sequence[int]]
    tokens: Mapping[str, Mapping[int, float]]
    recent: Sequence[int]
    chosen: str

    def batch(self, trajectories: int, seed: int) -> Batch:
        """A batch of so many trajectories, of different prompts."""
        drawn = random.Random(f"batch {seed}")
        each = len(next(iter(self.lengths.values())))
        order = list(self.lengths)
        drawn.shuffle(order)
        chosen, others = order[: -(-trajectories // each)], order[-RECENT:]
        predictors = self._predictors(drawn)
        blind = frozenset(name for name, tokens in predictors.items() if self._blind(tokens, others))
        prompts = [index for index in chosen for _ in range(each)][:trajectories]
        lengths = [length for index in chosen for length in self.lengths[index]][:trajectories]
        known = {name: [tokens[index] for index in prompts] for name, tokens in predictors.items()}
        return Batch(prompts, lengths, {**known, ORACLE: lengths}, blind)

    def _predictors(self, drawn: random.Random) -> dict[str, Mapping[int, float]]:
        mixed = list(self.tokens[AUTO].values())
        drawn.shuffle(mixed)
        return {**self.tokens, SHUFFLED: dict(zip(self.tokens[AUTO], mixed, strict=True))}

    def _blind(self, tokens: Mapping[int, float], prompts: Sequence[int]) -> bool:
        """Whether a run's controller would do without these predictions."""
        found = measured_recall([Outcome(index, tokens[index], tuple(self.lengths[index])) for index in prompts])
        return found is not None and found.by_chance


def read(directory: Path, seed: int) -> Recorded:
    """What `ranker.py` left for held-out prompts and one seed.

    Raises:
        SystemExit: it left nothing yet.
    """
    samples = directory / "samples.jsonl"
    if not samples.exists() or not (directory / "trials").is_dir():
        raise SystemExit(f"{directory}: found no samples.jsonl and trials/, expected what tools/bench/ranker.py leaves")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    each = len(rows) // (len(mix.FAMILIES) * len(mix.BANDS))
    problems = mix.problems(0, each)
    examples = {
        row["index"]: Example(problems[row["index"]].prompt, tuple(row["lengths"]), tuple(row["truncated"]))
        for row in rows
    }
    names = [name for name in method_names() if (directory / "trials" / f"prompts-{seed}-{name}.json").exists()]
    given = (problems, examples, directory / "policy", 1.0, Clock(1e9))
    found = trials.outcomes(directory / "trials", "prompts", seed, *given, names)
    held = sorted(trials.held_out("prompts", seed, problems))
    half = len(rows[0]["lengths"]) // 2
    chosen = trials.chosen(found)
    ways = {name: one.ways[0] for name, one in {**found, AUTO: found[chosen]}.items()}
    predicted = {
        name: {index: max(1.0, score) for index, score in way.score.items()}  # as a run's ranker says it
        for name, way in ways.items()
    }
    return Recorded(
        {index: problems[index].prompt for index in held},
        {index: examples[index].lengths[half:] for index in held},
        predicted,
        [length for index, one in examples.items() if index not in set(held) for length in one.lengths],
        chosen,
    )
