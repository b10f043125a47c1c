"""What the data plane holds: how long every trajectory will be, how far it is, and which weights produced it.

The truth of a simulation: staleness is measured here, by the versions that really generated a trajectory, not by what the
controller believes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace import contracts as c
from tailrace.fleetsim.engine import Work
from tailrace.fleetsim.workload.workload import Sample, Workload


class Tokens:
    """The trajectories of a simulation that are not trained on yet.

    Args:
        mixes_versions: a trajectory may go on under newer weights; otherwise other tokens than a replica's own are no use.
    """

    def __init__(self, workload: Workload, samples: int, *, mixes_versions: bool) -> None:
        self.workload, self.samples, self.mixes_versions = workload, samples, mixes_versions
        self.groups: dict[int, list[Sample]] = {}
        self.first_version: dict[int, int] = {}  # lengths drift with versions, but not those of a group under way
        self.kept: dict[str, int] = {}
        self.oldest: dict[str, int] = {}
        self.begun_s: dict[str, float] = {}
        self.lengths: dict[str, tuple[int, int]] = {}  # prompt, response
        self.rewards: dict[str, float] = {}
        self.reward_s: dict[str, float] = {}  # seconds to score it, where that is more than nothing
        self.latency_sum_s = self.latency_max_s = 0.0
        self.latencies = 0
        self.reprefilled_tokens = 0

    def works(self, refs: Sequence[c.TrajectoryRef], version: int, now: float) -> list[Work]:
        """What an engine is to do for these trajectories, on weights of a version."""
        works = []
        kept, oldest, mixes, groups = self.kept, self.oldest, self.mixes_versions, self.groups
        for ref in refs:
            name, group = ref.trajectory, ref.group
            if ref.purpose is c.Purpose.EVAL:
                group = -1 - group
            samples = groups.get(group)
            if samples is None or len(samples) <= ref.sample:
                first = self.first_version.setdefault(group, version)
                samples = groups[group] = self.workload.group(group, max(self.samples, ref.sample + 1), first)
            sample = samples[ref.sample]
            done = kept.pop(name, 0)
            if done:
                if oldest[name] != version and not (mixes and group >= 0):
                    done = 0
                    oldest[name] = version
                else:
                    self.reprefilled_tokens += done
                    if version < oldest[name]:
                        oldest[name] = version
            else:
                oldest[name] = version
                if name not in self.begun_s:
                    self.begun_s[name] = now
            works.append(Work(name, sample.prompt_tokens, done, sample.turns))
            self.lengths[name] = (sample.prompt_tokens, 0)
            self.rewards[name] = sample.reward
            if sample.reward_s:
                self.reward_s[name] = sample.reward_s
        return works

    def keep(self, left: Iterable[tuple[str, int]]) -> None:
        """Trajectories stopped with so many response tokens."""
        for name, done in left:
            if done:
                self.kept[name] = done

    def complete(self, finished: Iterable[tuple[float, str, int]]) -> None:
        """Trajectories have all their tokens."""
        lengths, begun = self.lengths, self.begun_s
        for at, name, tokens in finished:
            lengths[name] = (lengths[name][0], tokens)
            latency = at - begun.pop(name, at)
            self.latency_sum_s += latency
            self.latencies += 1
            if latency > self.latency_max_s:
                self.latency_max_s = latency

    def load(self, names: Iterable[str]) -> tuple[int, float]:
        """Tokens of trajectories, prompts included, and the sum of their squares."""
        total, squares = 0, 0.0
        lengths = self.lengths
        for name in names:
            prompt, response = lengths[name]
            length = prompt + response
            total += length
            squares += length * length
        return total, squares

    def lags(self, names: Iterable[str], version: int) -> dict[int, int]:
        """Trajectories by staleness, if they are trained on at a version."""
        counts: dict[int, int] = {}
        oldest = self.oldest
        for name in names:
            lag = version - oldest[name]
            counts[lag] = counts.get(lag, 0) + 1
        return counts

    def forget(self, names: Iterable[str]) -> None:
        """Trajectories are trained on for good, or dropped."""
        for name in names:
            self.kept.pop(name, None)
            self.oldest.pop(name, None)
            self.lengths.pop(name, None)
            self.rewards.pop(name, None)
            self.reward_s.pop(name, None)
            self.begun_s.pop(name, None)
            group = _group(name)
            self.groups.pop(group, None)
            self.first_version.pop(group, None)


def _group(name: str) -> int:
    """The workload's group of a trajectory: those of evaluations are negative."""
    if name[0] == "e":
        return -1 - int(name.rpartition(".")[2])
    return int(name.partition(".")[0])
