"""How long scoring a sample takes, by kind of task. A share of the programs that a model writes never end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from tailrace.fleetsim.workload.sample import ModelledSample


@dataclass(frozen=True, slots=True)
class ScoringKind:
    """Samples that are scored in one pool.

    Args:
        name: the pool.
        median_s: median seconds of a score.
        sigma: standard deviation of the natural logarithm; 0 for a constant.
        correlation: intraclass correlation of the logarithm among the samples of a prompt, 0 to 1.
        endless: share of samples that never end; they are never right (RollPacker, section 4.3: about 5 % of code prompts
            reach a limit of 30 s).
        references: prompts have reference solutions whose seconds are known: the median of their own samples.
        weight: share of the prompts, relative to the other kinds.
    """

    name: str
    median_s: float
    sigma: float = 0.0
    correlation: float = 0.0
    endless: float = 0.0
    references: bool = False
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ScoringKinds:
    """The kinds of a workload, at least one. A prompt is of one kind."""

    kinds: tuple[ScoringKind, ...]

    def assign(self, generator: Random, group: list[ModelledSample], samples: Random | None = None) -> None:
        """Draw the kind of a group, and the seconds of each sample; infinite ones make its reward 0.

        Args:
            generator: draws the prompt's kind and time.
            group: its samples.
            samples: draws those of the samples, where they have random numbers of their own; the same one if None.
        """
        shares = list(accumulate(kind.weight for kind in self.kinds))
        drawn = generator.random() * shares[-1]
        kind = next(
            kind for kind, share in zip(self.kinds, shares, strict=True) if drawn < share or share == shares[-1]
        )
        shared = math.sqrt(kind.correlation) * generator.gauss(0.0, 1.0)
        own = math.sqrt(1.0 - kind.correlation)
        generator = generator if samples is None else samples
        middle_s = kind.median_s * math.exp(kind.sigma * shared)
        for sample in group:
            sample.kind, sample.reference_s = kind.name, middle_s if kind.references else None
            sample.reward_s = middle_s * math.exp(kind.sigma * own * generator.gauss(0.0, 1.0))
            if generator.random() < kind.endless:
                sample.reward, sample.reward_s = 0.0, math.inf
