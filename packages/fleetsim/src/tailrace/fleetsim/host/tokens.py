"""What the data plane holds: how long every trajectory will be, how far it is, and which weights produced it.

The truth of a simulation: staleness is measured here, by the versions that really generated a trajectory, not by what the
controller believes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tailrace import contracts as c
from tailrace.fleetsim.engine import Work
from tailrace.fleetsim.workload.workload import ModelledSample, Workload

_TRAIN = c.Purpose.TRAIN
_STOP, _LENGTH = c.FinishReason.STOP, c.FinishReason.LENGTH


@dataclass(slots=True, eq=False)
class SimulatedTrajectory:
    """One trajectory that is not trained on for good yet. Plain, since there are millions of them.

    Args:
        sample: its lengths and reward.
        oldest: the oldest version that generated a token of it.
        begun_s: time at which it was first given to a replica.
        prompt: index of its prompt in the workload; negative for evaluations.
        group: number of its group, one attempt at the prompt; negative for evaluations.

    `kept` are the response tokens that it has where it does not run, `response` all of them once it is complete, `replica` the
    replica that it was last routed to. `answered` counts its turns that its environment has answered; `ended_s` is when the
    last one ended, or was last called, while it is not answered.
    """

    sample: ModelledSample
    oldest: int
    begun_s: float
    replica: str
    prompt: int
    group: int
    kept: int = 0
    response: int = 0
    answered: int = 0
    ended_s: float | None = None

    @property
    def turn_tokens(self) -> int:
        """Response tokens at the end of its turn that is not answered yet."""
        turns = self.sample.turns
        return turns[0][0] if len(turns) == 1 else sum([tokens for tokens, _ in turns[: self.answered + 1]])

    def restarts(self, version: int) -> None:
        """It begins anew, under another version."""
        self.kept = self.answered = 0
        self.oldest, self.ended_s = version, None


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
        self.fences: dict[str, Callable[[str], None]] = {}  # by replica: it gets no more of a trajectory into the store
        self.progress: dict[
            str, Callable[[str], int]
        ] = {}  # by replica: tokens of one that it has, or stopped for an abort
        self._groups: dict[int, list[ModelledSample]] = {}
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
                works.append(Work(name, sample.prompt_tokens, 0, sample.turns[0][0]))
                continue
            known.replica = replica
            if not known.kept or not self._goes_on(known, ref, version):
                known.restarts(version)
            done, known.kept = known.kept, 0
            self.reprefilled_tokens += done
            known.oldest = min(known.oldest, version)
            works.append(Work(name, known.sample.prompt_tokens, done, known.turn_tokens))
        return works

    def _goes_on(self, known: SimulatedTrajectory, ref: c.TrajectoryRef, version: int) -> bool:
        """Whether the tokens of a trajectory may be gone on with under a version."""
        return known.oldest == version or (self.mixes_versions and ref.purpose is not c.Purpose.EVAL)

    def unsaid_of(
        self, refs: Sequence[c.TrajectoryRef], replica: str, version: int, answers: int
    ) -> dict[str, c.Event]:
        """The ends of trajectories or turns that a replica finds in the store as it begins them: nobody heard of them.

        They are this replica's from now on.
        """
        found: dict[str, c.Event] = {}
        for ref in refs:
            name, known = ref.trajectory, self.trajectories.get(ref.trajectory)
            if known is None:
                continue
            if known.replica != replica:
                self.fence(known.replica, name)
            if known.response:
                found[name] = c.Finished(replica, name, known.response, self.reason(known.response), answers)
            elif known.ended_s is not None and self._goes_on(known, ref, version):
                known.replica = replica
                found[name] = c.TurnEnded(replica, name, known.kept, answers)
        return found

    def fence(self, replica: str, name: str) -> None:
        """Take nothing more of a trajectory from a replica that does not have it in the controller's eyes.

        Such a one stood still, waits for its devices before it begins anew, and generates until then if it can.
        """
        if replica in self.fences:
            self.fences[replica](name)

    def turns_ended(self, finished: Sequence[tuple[float, str, int]]) -> dict[str, int]:
        """Note those of what an engine has finished that are turns which an environment answers, and return their tokens."""
        ended: dict[str, int] = {}
        for at, name, tokens in finished:
            known = self.trajectories.get(name)
            if known is not None and self.asks(name, known):
                known.kept, known.ended_s = tokens, at
                ended[name] = tokens
        return ended

    def reason(self, tokens: int) -> c.FinishReason:
        """Why a response with so many tokens is complete."""
        return _LENGTH if tokens >= self.workload.max_tokens else _STOP

    def asks(self, name: str, known: SimulatedTrajectory) -> bool:
        """Whether an environment answers the turn that a trajectory is in: all but the last."""
        del name
        return known.answered + 1 < len(known.sample.turns)

    def observe(self, name: str, now: float) -> bool:
        """An environment has answered a turn. Returns whether that has ended the trajectory, with its last turn."""
        known = self.trajectories[name]
        if known.response:
            return True
        if known.ended_s is not None:
            known.answered += 1
            known.ended_s = None
        if known.answered < len(known.sample.turns):
            return False
        self._complete([(now, name, known.kept)])
        return True

    def _sample(self, ref: c.TrajectoryRef, prompt: int, group: int, version: int) -> ModelledSample:
        samples = self._groups.get(group)
        if samples is None or len(samples) <= ref.sample:
            first = self._first_version.setdefault(group, version)
            draw = group if ref.draw is None else ref.draw
            count = max(self.samples, ref.sample + 1)
            samples = self._groups[group] = self.workload.group(prompt, count, first, draw)
        return samples[ref.sample]

    def prompt_tokens(self, prompt: int) -> int:
        """Tokens of a prompt of the stream, which all its samples share."""
        return self.workload.sample(prompt, 0).prompt_tokens

    def partial_tokens(self, names: Iterable[str]) -> int:
        """Response tokens of those of these trajectories that have not finished generating."""
        known = [(name, self.trajectories[name]) for name in names if name in self.trajectories]
        return sum([one.kept or self.progress[one.replica](name) for name, one in known if not one.response])

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
        self._complete(finished)

    def _complete(self, finished: Iterable[tuple[float, str, int]]) -> None:
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
