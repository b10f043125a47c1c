"""A workload that draws from groups of a real model; prompt, lengths and rewards of a group stay together.

Changes while the model learns are applied on top: how often a group has a signal (rewards that differ), and how long
responses are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tailrace.fleetsim.profile.fit_workload import Group, has_signal
from tailrace.fleetsim.profile.machine import WorkloadPart
from tailrace.fleetsim.workload.groups import draws
from tailrace.fleetsim.workload.lengths import Spread
from tailrace.fleetsim.workload.workload import Description, Sample, Workload


class MeasuredWorkload(Workload):
    """Groups of a profile.

    Args:
        part: the profile's workload.
        seed: any whole number.
        max_tokens: most tokens of a response; longer ones are cut.
    """

    def __init__(self, part: WorkloadPart, *, seed: int, max_tokens: int) -> None:
        self.seed, self.max_tokens = seed, max_tokens
        self._signal, self._length = part.signal, part.length
        self._with = [group for group in part.groups if has_signal(group)]
        self._without = [group for group in part.groups if not has_signal(group)]

    def group(self, index: int, samples: int, version: int = 0) -> list[Sample]:
        """Samples of a recorded group. If more are asked for than it has, they repeat in order."""
        _, uniforms = draws(self.seed, index, 2)
        pool = self._with if uniforms[0] < self._share(version) else self._without
        made_by, prompt, lengths, rewards = pool[int(uniforms[1] * len(pool))]
        factor = math.exp(self._length.at(version) - self._length.at(made_by))
        group = []
        for position in range(samples):
            at = position % len(lengths)
            tokens = lengths[at] if factor == 1.0 else max(1, round(factor * lengths[at]))
            group.append(Sample(prompt, ((min(tokens, self.max_tokens), 0.0),), rewards[at]))
        return group

    def describe(self, version: int = 0) -> Description:
        share = self._share(version)
        weighted = [
            (group, weight / len(pool))
            for pool, weight in ((self._with, share), (self._without, 1.0 - share))
            for group in pool
        ]
        grown = self._length.at(version)
        prompts = [(float(prompt), weight) for (_, prompt, _, _), weight in weighted]
        responses = [
            (min(float(self.max_tokens), math.exp(grown - self._length.at(made_by)) * tokens), weight / len(lengths))
            for (made_by, _, lengths, _), weight in weighted
            for tokens in lengths
        ]
        note = f"drawn from {len(weighted):,} groups of a profile; {share:.0%} of groups have a signal at version {version}"
        return Description(_spread(prompts, None), _spread(responses, self.max_tokens), notes=(note,))

    def _share(self, version: int) -> float:
        """Share of groups with a signal."""
        if not self._with or not self._without:
            return 1.0 if self._with else 0.0
        return 1.0 / (1.0 + math.exp(-self._signal.at(version)))


def _spread(values: Sequence[tuple[float, float]], cap: int | None) -> Spread:
    ordered = sorted(values)

    def at(share: float) -> float:
        seen = 0.0
        for value, weight in ordered:
            seen += weight
            if seen >= share:
                return value
        return ordered[-1][0]

    mean = sum(value * weight for value, weight in ordered)
    cut = sum(weight for value, weight in ordered if cap is not None and value >= cap)
    return Spread(mean, at(0.5), at(0.99), ordered[-1][0], cut)


__all__ = ["Group", "MeasuredWorkload"]
