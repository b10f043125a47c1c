"""What the data plane holds: how long every trajectory will be, how far it is, and which weights produced it.

The truth of a simulation: staleness is measured here, by the versions that really generated a trajectory, not by what the
controller believes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace import contracts as c
from tailrace.fleetsim.engine import Work
from tailrace.fleetsim.workload.workload import Sample, Workload

_TRAIN = c.Purpose.TRAIN


class SimulatedTrajectory:
    """One trajectory that is not trained on for good yet. Plain, since there are millions of them.

    Args:
        sample: its lengths and reward.
        oldest: the oldest version that generated a token of it.
        begun_s: time at which it was first given to a replica.
        prompt: index of its prompt in the workload; negative for evaluations.
        group: number of its group, one attempt at the prompt; negative for evaluations.

    `kept` are the response tokens that it has where it does not run, `response` all of them once it is complete, `replica` the
    replica that it was last routed to.
    """

    __slots__ = ("begun_s", "group", "kept", "oldest", "prompt", "replica", "response", "sample")

    def __init__(self, sample: Sample, oldest: int, begun_s: float, replica: str, prompt: int, group: int) -> None:
        self.sample, self.oldest, self.begun_s, self.replica = sample, oldest, begun_s, replica
        self.prompt, self.group = prompt, group
        self.kept = self.response = 0


class Tokens:
    """The trajectories of a simulation.

    Args:
        workload: the workload that they come from.
        samples: trajectories launched for a prompt.
        mixes_versions: a trajectory may go on under newer weights; otherwise other tokens than a replica's own are no use.
    """

    def __init__(self, workload: Workload, samples: int, *, mixes_versions: bool) -> None:
        self.workload, self.samples, self.mixes_versions = workload, samples, mixes_versions
        self.trajectories: dict[str, SimulatedTrajectory] = {}
        self.latency_sum_s = self.latency_max_s = 0.0
        self.latencies = 0
        self.reprefilled_tokens = 0
        self._groups: dict[int, list[Sample]] = {}
        self._first_version: dict[int, int] = {}  # lengths drift with versions, but not those of a group under way

    def works(self, refs: Sequence[c.TrajectoryRef], replica: str, version: int, now: float) -> list[Work]:
        """An engine's work for these trajectories, on weights of a version."""
        works = []
        trajectories = self.trajectories
        for ref in refs:
            name = ref.trajectory
            known = trajectories.get(name)
            if known is None:
                training = ref.purpose is _TRAIN
                group, prompt = (ref.group, ref.prompt) if training else (-1 - ref.group, -1 - ref.group)
                sample = self._sample(ref, prompt, group, version)
                trajectories[name] = SimulatedTrajectory(sample, version, now, replica, prompt, group)
                works.append(Work(name, sample.prompt_tokens, 0, sample.turns))
                continue
            known.replica = replica
            done, known.kept = known.kept, 0
            if not done or (known.oldest != version and (not self.mixes_versions or ref.purpose is c.Purpose.EVAL)):
                done, known.oldest = 0, version
            else:
                self.reprefilled_tokens += done
                known.oldest = min(known.oldest, version)
            works.append(Work(name, known.sample.prompt_tokens, done, known.sample.turns))
        return works

    def _sample(self, ref: c.TrajectoryRef, prompt: int, group: int, version: int) -> Sample:
        samples = self._groups.get(group)
        if samples is None or len(samples) <= ref.sample:
            first = self._first_version.setdefault(group, version)
            draw = group if ref.draw is None else ref.draw
            count = max(self.samples, ref.sample + 1)
            samples = self._groups[group] = self.workload.group(prompt, count, first, draw)
        return samples[ref.sample]

    def complete_of(self, refs: Sequence[c.TrajectoryRef]) -> dict[str, int]:
        """Those that are complete already, with their tokens: their end was never reported."""
        known, found = self.trajectories, {}
        for ref in refs:
            trajectory = known.get(ref.trajectory)
            if trajectory is not None and trajectory.response:
                found[ref.trajectory] = trajectory.response
        return found

    def dropped(self, replica: str, names: Iterable[str]) -> None:
        """Called when a replica stopped trajectories that were dropped; checks override this."""

    def consume(self, names: Iterable[str], version: int) -> None:
        """A batch was trained on: a seam for stores that can roll back."""

    def roll_back(self, version: int) -> None:
        """Make trajectories available again that were consumed for later versions."""

    def survivors(self, version: int) -> tuple[tuple[str, ...], dict[str, tuple[int, int]]]:
        """Complete trajectories that were not consumed, and the version and tokens of the others, when the driver has died.

        Args:
            version: trajectories consumed for later versions are included.
        """
        self.roll_back(version)
        held = tuple(name for name, known in self.trajectories.items() if known.response)
        partial = {name: (k.oldest, k.kept) for name, k in self.trajectories.items() if not k.response}
        return held, partial

    def keep(self, left: Iterable[tuple[str, int]]) -> None:
        """Note trajectories that stopped, with their numbers of response tokens."""
        for name, done in left:
            known = self.trajectories.get(name)
            if known is not None:
                known.kept = done

    def complete(self, finished: Iterable[tuple[float, str, int]]) -> None:
        """Trajectories have all their tokens."""
        trajectories = self.trajectories
        longest, total = self.latency_max_s, 0.0
        count = 0
        for at, name, tokens in finished:
            known = trajectories.get(name)
            if known is None:
                continue  # it was dropped, and the engine has not heard of it yet
            known.response = tokens
            latency = at - known.begun_s
            total += latency
            count += 1
            if latency > longest:
                longest = latency
        self.latency_max_s, self.latency_sum_s, self.latencies = (
            longest,
            self.latency_sum_s + total,
            self.latencies + count,
        )

    def load(self, names: Iterable[str]) -> tuple[int, float]:
        """Tokens of complete trajectories, prompts included, and the sum of their squares."""
        total, squares = 0, 0
        trajectories = self.trajectories
        for name in names:
            known = trajectories[name]
            length = known.sample.prompt_tokens + known.response
            total += length
            squares += length * length
        return total, float(squares)

    def lags(self, names: Iterable[str], version: int) -> dict[int, int]:
        """Trajectories by staleness, if they are trained on at a version."""
        counts: dict[int, int] = {}
        trajectories = self.trajectories
        for name in names:
            lag = version - trajectories[name].oldest
            counts[lag] = counts.get(lag, 0) + 1
        return counts

    def forget(self, names: Iterable[str]) -> None:
        """Trajectories are trained on for good, or dropped."""
        pop, groups = self.trajectories.pop, self._groups
        for name in names:
            known = pop(name, None)
            if known is not None and known.group in groups:
                del groups[known.group], self._first_version[known.group]
