"""A workload that draws from groups of a real model; prompt, lengths and rewards of a group stay together.

Changes while the model learns are applied on top: how often a group has a signal (rewards that differ), and how long
responses are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.fleetsim.profile.fit_workload import Group, has_signal
from tailrace.fleetsim.profile.machine import WorkloadPart
from tailrace.fleetsim.workload.groups import draws, seed_of
from tailrace.fleetsim.workload.lengths import Spread
from tailrace.fleetsim.workload.workload import Description, ModelledSample, Turns, Workload
from tailrace.trajstore import MixOrder


class _Drawn(NamedTuple):
    """A group, the seconds of its scores, and the turns of its samples."""

    group: Group
    score_s: tuple[float, ...]
    turns: tuple[Turns, ...]


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
        turns = part.turns or [tuple(((tokens, 0.0),) for tokens in group[2]) for group in part.groups]
        self._has_turns = bool(part.turns)
        self._pools: dict[tuple[int, bool], list[_Drawn]] = {}  # by source, and by whether there is a signal
        for group, source, seconds, said in zip(part.groups, sources, scores, turns, strict=True):
            self._pools.setdefault((source, has_signal(group)), []).append(_Drawn(group, seconds, said))

    @property
    def turns(self) -> bool:
        return self._has_turns

    def group(self, index: int, samples: int, version: int = 0, draw: int | None = None) -> list[ModelledSample]:
        """Samples of a recorded group. If more are asked for than it has, they repeat in order.

        Another draw of a prompt picks among its samples.
        """
        _, uniforms = draws(self.seed, index, 2)
        source = 0 if self._order is None else self._order.pool(index if index >= 0 else -1 - index)
        signal = uniforms[0] < self._share(version)
        pool = self._pools.get((source, signal)) or self._pools[source, not signal]
        (made_by, prompt, lengths, rewards), seconds, turns = pool[int(uniforms[1] * len(pool))]
        factor = math.exp(self._length.at(version) - self._length.at(made_by))
        seed = seed_of(self.seed, index, draw)
        again = draws(seed, index, samples)[1] if seed != self.seed else None
        group = []
        for position in range(samples):
            at = position % len(lengths) if again is None else int(again[position] * len(lengths))
            group.append(ModelledSample(prompt, grown(turns[at], factor, self.max_tokens), rewards[at], seconds[at]))
        return group

    def describe(self, version: int = 0) -> Description:
        share = self._share(version)
        pools = [
            [one for (_, signal), pool in self._pools.items() if signal == has for one in pool] for has in (True, False)
        ]
        drawn = [
            (one, weight / len(pool)) for pool, weight in zip(pools, (share, 1.0 - share), strict=True) for one in pool
        ]
        weighted = [(one.group, weight) for one, weight in drawn]
        length = self._length.at(version)
        prompts = [(float(prompt), weight) for (_, prompt, _, _), weight in weighted]
        responses = [
            (min(float(self.max_tokens), math.exp(length - self._length.at(made_by)) * tokens), weight / len(lengths))
            for (made_by, _, lengths, _), weight in weighted
            for tokens in lengths
        ]
        note = f"drawn from {len(weighted):,} groups of a profile; {share:.0%} of groups have a signal at version {version}"
        said = [(turns, weight / len(one.turns)) for one, weight in drawn for turns in one.turns]
        calls = sum(weight * (len(turns) - 1) for turns, weight in said)
        waited_s = sum(weight * sum(seconds for _, seconds in turns) for turns, weight in said)
        spreads = _spread(prompts, None), _spread(responses, self.max_tokens)
        return Description(*spreads, calls=calls, environment_s=waited_s, notes=(note,))

    def _share(self, version: int) -> float:
        """Share of groups with a signal."""
        signals = {signal for _, signal in self._pools}
        if len(signals) == 1:
            return 1.0 if True in signals else 0.0
        return 1.0 / (1.0 + math.exp(-self._signal.at(version)))


def grown(turns: Turns, factor: float, most: int) -> Turns:
    """Turns with so many times their tokens, each at least one, cut after `most` tokens. A turn that is cut is the last."""
    if factor == 1.0 and sum(tokens for tokens, _ in turns) <= most:
        return turns
    kept: list[tuple[int, float]] = []
    left = most
    for tokens, seconds in turns:
        longer = max(1, round(factor * tokens))
        if longer >= left:
            return (*kept, (left, 0.0))
        kept.append((longer, seconds))
        left -= longer
    return (*kept[:-1], (kept[-1][0], 0.0))


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
