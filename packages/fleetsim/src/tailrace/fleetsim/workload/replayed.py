"""A workload replayed from a recorded trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailrace.fleetsim.workload.environment import Latency
from tailrace.fleetsim.workload.groups import RandomStream, draws, stream
from tailrace.fleetsim.workload.lengths import Spread
from tailrace.fleetsim.workload.rewards import SolveRate
from tailrace.fleetsim.workload.sample import ModelledSample
from tailrace.fleetsim.workload.traces import Recorded, read_trace
from tailrace.fleetsim.workload.workload import Description, Workload


class ReplayedWorkload(Workload):
    """The trace's groups in order of their numbers; after the last the first follows again.

    If more samples of a group are asked for than it has, they repeat in order. Rewards and scoring times that were not
    recorded are drawn as in a drawn workload, anew for each pass over the trace.

    Args:
        trajectories: the trace's trajectories, at least one.
        seed: any whole number.
        max_tokens: most tokens of a response.
        solve_rate: used for rewards that were not recorded.
        reward_latency: used for scoring times that were not recorded; None for 0.
    """

    def __init__(
        self,
        trajectories: Sequence[Recorded],
        *,
        seed: int,
        max_tokens: int,
        solve_rate: SolveRate,
        reward_latency: Latency | None = None,
    ) -> None:
        self.seed, self.max_tokens = seed, max_tokens
        self._solve_rate, self._latency = solve_rate, reward_latency
        groups: dict[int, list[Recorded]] = {}
        for trajectory in trajectories:
            groups.setdefault(trajectory.group, []).append(trajectory)
        self._groups = [groups[number] for number in sorted(groups)]
        self._turns = any(len(one.turns) > 1 for one in trajectories)

    @classmethod
    def read(
        cls, path: Path, *, seed: int, max_tokens: int, solve_rate: SolveRate, reward_latency: Latency | None
    ) -> ReplayedWorkload:
        """Read the workload from a file.

        Raises:
            WorkloadError: see `read_trace`.
        """
        trajectories = read_trace(path, max_tokens)
        return cls(trajectories, seed=seed, max_tokens=max_tokens, solve_rate=solve_rate, reward_latency=reward_latency)

    def group(
        self,
        index: int,
        samples: int,
        version: int = 0,  # noqa: ARG002  nothing drifts
        draw: int | None = None,  # noqa: ARG002  only one was recorded
    ) -> list[ModelledSample]:
        """The recorded samples of a group, for any version and draw."""
        recorded = self._groups[index % len(self._groups)]
        normals, uniforms = draws(self.seed, index, samples + 4)
        solve_rate = self._solve_rate.of(normals[2])
        if self._latency is None:
            seconds = [0.0] * samples
        else:
            seconds = self._latency.draw(stream(self.seed, index, RandomStream.SCORING), samples)
        group = []
        for position in range(samples):
            one = recorded[position % len(recorded)]
            drawn = 1.0 if uniforms[position + 4] < solve_rate else 0.0
            group.append(
                ModelledSample(
                    one.prompt_tokens,
                    one.turns,
                    drawn if one.reward is None else one.reward,
                    seconds[position] if one.reward_s is None else one.reward_s,
                )
            )
        return group

    @property
    def turns(self) -> bool:
        return self._turns

    def describe(self, version: int = 0) -> Description:  # noqa: ARG002  nothing drifts
        """Figures of the trace, in which every trajectory counts once."""
        everything = [one for group in self._groups for one in group]
        count, groups = len(everything), len(self._groups)
        return Description(
            _spread([one.prompt_tokens for one in everything], None),
            _spread([one.response_tokens for one in everything], self.max_tokens),
            sum(len(one.turns) - 1 for one in everything) / count,
            sum(seconds for one in everything for _, seconds in one.turns) / count,
            (_note(groups, count),),
        )


def _note(groups: int, count: int) -> str:
    return (
        f"replayed from a trace of {groups:,} groups and {count:,} trajectories; group {groups:,} is the first one again,"
        " and a group repeats its samples when more are asked for"
    )


def _spread(lengths: list[int], cap: int | None) -> Spread:
    ordered, count = sorted(lengths), len(lengths)

    def at(share: float) -> float:
        return float(ordered[min(count - 1, int(share * count))])

    cut = sum(length == cap for length in lengths) / count
    return Spread(sum(lengths) / count, at(0.5), at(0.99), float(ordered[-1]), cut)
