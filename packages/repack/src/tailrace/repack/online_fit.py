"""The cost model fitted while a run goes on, to what its replicas report. A pure function of their snapshots, in order.

Snapshot ──► StepTimes: pairs between which a batch was nearly steady ──► OnlineFit: thinned ──► ThroughputModel, error
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from tailrace.contracts import Snapshot
from tailrace.repack.errors import FitError
from tailrace.repack.throughput import Sample, ThroughputModel

STEADY = 0.3  # how far the batch may have changed between two snapshots, as a share of it
LEAST_SAMPLES = 20
MOST_SAMPLES = 96  # that are fitted to, spread evenly over the run: a fit takes some hundredths of a second then
MOST_ERROR = 0.3  # median; a fit that is further off is shown and not planned with


@dataclass(slots=True)
class StepTimes:
    """Turns the snapshots of replicas into samples: tokens in the KV cache, running trajectories, seconds of a step."""

    before: dict[str, Snapshot] = field(default_factory=dict)

    def take(self, snapshot: Snapshot) -> Sample | None:
        """The sample that a snapshot and the one before it of its replica are; None if the batch was empty or changed."""
        last = self.before.get(snapshot.replica)
        self.before[snapshot.replica] = snapshot
        if last is None or not snapshot.running or not last.running or snapshot.tokens_per_s <= 0:
            return None
        running = (last.running + snapshot.running) / 2
        if abs(last.running - snapshot.running) > STEADY * running:
            return None
        kv = (last.kv + snapshot.kv) / 2 * snapshot.kv_capacity_tokens
        return kv, round(running), running / snapshot.tokens_per_s

    def lost(self, replica: str) -> None:
        """Forget what a replica said that is gone."""
        self.before.pop(replica, None)


@dataclass(frozen=True, slots=True)
class FittedCosts:
    """A cost model and how well it explains the run so far.

    Args:
        model: the cost model.
        samples: steps that it was fitted to.
        error: median of |estimated - measured| / measured over them.
    """

    model: ThroughputModel
    samples: int
    error: float

    @property
    def usable(self) -> bool:
        """Whether policies plan with it: a step takes time, and the error is at most `MOST_ERROR`."""
        return self.error <= MOST_ERROR and self.model.k2 + self.model.k4 > 0


@dataclass(slots=True)
class OnlineFit:
    """Samples of a run, as many as `MOST_SAMPLES` at most, and the last fit to them.

    Each time that their number has doubled, from `LEAST_SAMPLES` on, a fit is due. When there are too many, every other one
    goes, and only every other one that comes is taken: what is kept is spread over the whole run.

    Args:
        times: the last snapshots.
        samples: the samples that are kept.
        seen: samples so far.
        every: how many samples come for one that is kept.
        due_at: samples so far at which the next fit is due.
        last: the last fit that policies plan with, or while there is none the last one; None before the first, or while the
            samples determine none.
    """

    times: StepTimes = field(default_factory=StepTimes)
    samples: list[Sample] = field(default_factory=list)
    seen: int = 0
    every: int = 1
    due_at: int = LEAST_SAMPLES
    last: FittedCosts | None = None

    def take(self, snapshot: Snapshot) -> None:
        """Take a snapshot in."""
        sample = self.times.take(snapshot)
        if sample is None:
            return
        if self.seen % self.every == 0:
            self.samples.append(sample)
            if len(self.samples) > MOST_SAMPLES:
                self.samples, self.every = self.samples[::2], 2 * self.every
        self.seen += 1

    def refit(self) -> FittedCosts | None:
        """The fit, if one is due and the samples determine a model; otherwise None."""
        if self.seen < self.due_at:
            return None
        while self.due_at <= self.seen:
            self.due_at *= 2
        try:
            model = ThroughputModel.fit(self.samples)
        except FitError:
            return None
        errors = [abs(model.step_latency_s(kv, running) - took) / took for kv, running, took in self.samples]
        found = FittedCosts(model, len(self.samples), median(errors))
        if found.usable or self.last is None or not self.last.usable:
            self.last = found
        return found
