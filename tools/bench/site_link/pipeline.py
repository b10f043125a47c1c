"""What a transfer that takes a fifth of a step costs: weights that move behind training and generation, beside a barrier.

Trainer and generation take a step each, at the same time; both are clocks that compute nothing, so that two cores measure the
pipeline and not each other. Weights are real: the trainer publishes each version, and generation of a batch begins once the
version that it needs is whole at a relay beyond the real, limited link. A batch is made, and trained on, in parts.

    barrier   the trainer ends a step, pushes, and both wait until the version is there (the paper's one-step pipelining)
    batches   no barrier, but a batch is trained on once all of it is there
    streamed  no barrier, and a part is trained on as soon as it is there (StreamRL's fully asynchronous pipelining)
    free      streamed over a link a hundred times as fast: what the machine itself costs, with which all are compared

In each, batch n is generated with version n - 1 and trained on by the step that makes version n + 1: one step of staleness.
"""

from __future__ import annotations

import itertools
import secrets
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from site_link.datacenters import Datacenters

from tailrace.paramserver import RelayReader, VersionRetired

SHARE = 0.2  # of a step, that a transfer takes
PARTS = 10  # of a batch
CUT_S = 20.0
_DEADLINE_S = 120.0
_WARM = 3
_CHUNKS = 16
_FASTER = 100.0


@dataclass
class Trained:
    """What a pipeline did.

    Args:
        ended_s: when each step ended.
        parts: the parts that were trained on, in order: batch, part and the version that made it.
        wrong: versions that were not, bit for bit, what was published.
    """

    ended_s: list[float] = field(default_factory=list)
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Pipelined:
    """A pipeline over the link.

    Args:
        pipeline: `barrier`, `batches`, `streamed` or `free`.
        step_s: seconds of a step alone.
        transfer_s: seconds of a transfer alone.
        iteration_s: seconds from the end of a step to that of the next, mean.
        lowest_s, highest_s: the smallest and the largest.
        exact: whether every version arrived bit for bit.
        one_step: whether each batch was made by the version before last, and each part was trained on once, in order.
    """

    pipeline: str
    step_s: float
    transfer_s: float
    iteration_s: float
    lowest_s: float
    highest_s: float
    exact: bool
    one_step: bool


@dataclass(frozen=True)
class Survived:
    """A cut of the link in the middle of a streamed pipeline.

    Args:
        cut_s: how long it lasted.
        stood_still_s: the longest time between two steps, less a usual one.
        steps: steps that were to be done.
        lost, twice: parts that were never trained on, or more than once.
        stalest: most versions by which a batch was older than the trainer when it was trained on.
        exact: whether every version arrived bit for bit.
    """

    cut_s: float
    stood_still_s: float
    steps: int
    lost: int
    twice: int
    stalest: int
    exact: bool


class _Run:
    """A trainer and a generation, a thread each, over a link."""

    def __init__(self, there: Datacenters, step_s: float, steps: int, weights: Sequence[bytes]) -> None:
        self.there, self.step_s, self.steps, self.weights = there, step_s, steps, weights
        self.done = Trained()
        self._made: list[tuple[int, int, int]] = []
        self._changed = threading.Condition()
        self._version = 0  # of the trainer
        self._reader: RelayReader = there.reader(0)

    def run(self, pipeline: str) -> Trained:
        """The steps of a pipeline, from a published version 0."""
        self._publish(0)
        self._arrives(0)
        generation = threading.Thread(target=self._generate, args=(pipeline == "barrier",))
        generation.start()
        for batch in range(self.steps):
            self._train(whole=pipeline != "streamed")
            self._publish(batch + 1)
            if pipeline == "barrier":
                self._arrives(batch + 1)
            with self._changed:
                self._version = batch + 1
                self._changed.notify_all()
            self.done.ended_s.append(time.monotonic())
        generation.join(_DEADLINE_S)
        return self.done

    def _generate(self, barrier: bool) -> None:
        """Batch n with version n - 1; behind a barrier, no sooner than the trainer says."""
        for batch in range(self.steps):
            version = max(0, batch - 1)
            if barrier:
                with self._changed:
                    self._changed.wait_for(lambda n=version: self._version >= n, _DEADLINE_S)
            else:
                version = self._arrives(version)
            due = time.monotonic()
            for part in range(PARTS):
                due += self.step_s / PARTS
                time.sleep(max(0.0, due - time.monotonic()))
                with self._changed:
                    self._made.append((batch, part, version))
                    self._changed.notify_all()

    def _train(self, *, whole: bool) -> None:
        """One step, on a part after the other; `whole`: once all of them are there."""
        taken = len(self.done.parts)
        if whole:
            self._wait_for(taken + PARTS)
        due = time.monotonic()
        for part in range(PARTS):
            if self._wait_for(taken + part + 1):
                due = time.monotonic()
            due += self.step_s / PARTS
            time.sleep(max(0.0, due - time.monotonic()))
            self.done.parts.append(self._made[taken + part])

    def _wait_for(self, parts: int) -> bool:
        """Wait for so many parts of the generation; whether that took any time."""
        with self._changed:
            if len(self._made) >= parts:
                return False
            if not self._changed.wait_for(lambda: len(self._made) >= parts, _DEADLINE_S):
                raise AssertionError(f"waited {_DEADLINE_S:.0f} s for part {parts} of the generation")
            return True

    def _publish(self, version: int) -> None:
        self.there.publisher.publish(version, [("w", self.weights[version % len(self.weights)])])

    def _arrives(self, version: int) -> int:
        """Wait until a version is whole beyond the link, or a newer one that took its place after a cut; which it is."""
        while True:
            try:
                with self._reader.lease(version, timeout_s=_DEADLINE_S) as held:
                    if bytes(held.raw()["w"].data) != self.weights[version % len(self.weights)]:
                        self.done.wrong.append(version)
                    return version
            except VersionRetired:
                version = max(self._reader.versions())


def pipelined(pipeline: str, *, step_s: float, nbytes: int, steps: int) -> Pipelined:
    """Run a pipeline whose transfers take `SHARE` of a step each."""
    weights, faster = [secrets.token_bytes(nbytes) for _ in range(3)], _FASTER if pipeline == "free" else 1.0
    with _link(step_s, nbytes, faster) as there:
        transfer_s = _alone(there, weights)
    with _link(step_s, nbytes, faster) as there:
        done = _Run(there, step_s, steps, weights).run("streamed" if pipeline == "free" else pipeline)
    took = [after - before for before, after in itertools.pairwise(done.ended_s[_WARM:])]
    expected = [(batch, part, max(0, batch - 1)) for batch in range(steps) for part in range(PARTS)]
    return Pipelined(
        pipeline,
        step_s,
        transfer_s,
        statistics.fmean(took),
        min(took),
        max(took),
        not done.wrong,
        done.parts == expected,
    )


def cut(*, step_s: float, nbytes: int, steps: int, cut_s: float = CUT_S) -> Survived:
    """Cut the link while a streamed pipeline runs, in the middle of a transfer."""
    weights = [secrets.token_bytes(nbytes) for _ in range(3)]
    with _link(step_s, nbytes, 1.0) as there:
        run = _Run(there, step_s, steps, weights)
        cutter = threading.Thread(target=_cut, args=(there, (steps // 3 + SHARE / 2) * step_s, cut_s))
        cutter.start()
        done = run.run("streamed")
        cutter.join(_DEADLINE_S)
    took = [after - before for before, after in itertools.pairwise(done.ended_s)]
    expected = {(batch, part) for batch in range(steps) for part in range(PARTS)}
    trained = [(batch, part) for batch, part, _ in done.parts]
    return Survived(
        cut_s,
        max(took) - statistics.median(took),
        steps,
        len(expected - set(trained)),
        len(trained) - len(set(trained)),
        max(batch - version for batch, _, version in done.parts),
        not done.wrong,
    )


def _cut(there: Datacenters, after_s: float, cut_s: float) -> None:
    time.sleep(after_s)
    there.hosts.cut(1)
    time.sleep(cut_s)
    there.hosts.heal(1)


def _link(step_s: float, nbytes: int, faster: float) -> Datacenters:
    """A link over which whole copies of a version take `SHARE` of a step, or that is so many times as fast."""
    return Datacenters(faster * nbytes / (SHARE * step_s), 1, codec="none", chunk_bytes=nbytes // _CHUNKS)


def _alone(there: Datacenters, weights: Sequence[bytes]) -> float:
    """Seconds from `publish` to the version beyond the link, while nothing else happens."""
    reader, took = there.reader(0), []
    for version in range(_WARM + 3):
        start = time.monotonic()
        there.publisher.publish(version, [("w", weights[version % len(weights)])])
        with reader.lease(version, timeout_s=_DEADLINE_S):
            took.append(time.monotonic() - start)
    return statistics.median(took[_WARM:])
