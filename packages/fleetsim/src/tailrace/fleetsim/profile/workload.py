"""A workload that draws from groups of a real model; prompt, lengths and rewards of a group stay together.

Changes while the model learns are applied on top: how often a group has a signal (rewards that differ), and how long
responses are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tailrace.fleetsim.profile.fit_workload import Group, has_signal
from tailrace.fleetsim.profile.machine import WorkloadPart
from tailrace.fleetsim.workload.groups import draws, seed_of
from tailrace.fleetsim.workload.lengths import Spread
from tailrace.fleetsim.workload.workload import Description, Sample, Workload
from tailrace.trajstore import MixOrder

_Scored = tuple[Group, tuple[float, ...]]
"""A group, and the seconds of its scores."""


class MeasuredWorkload(Workload):
    """Groups of a profile.

    Args:
        part: the profile's workload.
        seed: any whole number.
        max_tokens: most tokens of a response; longer ones are cut.
        order: which source each prompt is of, where prompts are mixed; a group is then one of its source.
    """

    def __init__(self, part: WorkloadPart, *, seed: int, max_tokens: int, order: MixOrder | None = None) -> None:
        self.seed, self.max_tokens, self._order = seed, max_tokens, order
        self._signal, self._length = part.signal, part.length
        sources = part.sources if order is not None else (0,) * len(part.groups)
        scores = part.score_s or [(0.0,) * len(group[2]) for group in part.groups]
        self._pools: dict[tuple[int, bool], list[_Scored]] = {}  # by source, and by whether there is a signal
        for group, source, seconds in zip(part.groups, sources, scores, strict=True):
            self._pools.setdefault((source, has_signal(group)), []).append((group, seconds))

    def group(self, index: int, samples: int, version: int = 0, draw: int | None = None) -> list[Sample]:
        """Samples of a recorded group. If more are asked for than it has, they repeat in order.

        Another draw of a prompt picks among its samples.
        """
        _, uniforms = draws(self.seed, index, 2)
        source = 0 if self._order is None else self._order.pool(index if index >= 0 else -1 - index)
        signal = uniforms[0] < self._share(version)
        pool = self._pools.get((source, signal)) or self._pools[source, not signal]
        (made_by, prompt, lengths, rewards), seconds = pool[int(uniforms[1] * len(pool))]
        factor = math.exp(self._length.at(version) - self._length.at(made_by))
        seed = seed_of(self.seed, index, draw)
        again = draws(seed, index, samples)[1] if seed != self.seed else None
        group = []
        for position in range(samples):
            at = position % len(lengths) if again is None else int(again[position] * len(lengths))
            tokens = lengths[at] if factor == 1.0 else max(1, round(factor * lengths[at]))
            group.append(Sample(prompt, ((min(tokens, self.max_tokens), 0.0),), rewards[at], seconds[at]))
        return group

    def describe(self, version: int = 0) -> Description:
        share = self._share(version)
        pools = [
            [group for (_, signal), pool in self._pools.items() if signal == has for group, _ in pool]
            for has in (True, False)
        ]
        weighted = [
            (group, weight / len(pool))
            for pool, weight in zip(pools, (share, 1.0 - share), strict=True)
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
        signals = {signal for _, signal in self._pools}
        if len(signals) == 1:
            return 1.0 if True in signals else 0.0
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
