"""The trajectories in flight on an engine, and how commands change them.

Invariants:
* All tokens of a trajectory between its `Route` and its end come from one version: weights change only when no trajectory is
  in flight. An adapter of another version may come beside those that trajectories in flight began with.
* A trajectory whose turn has ended is not in flight: nothing is generated for it until it is routed again, behind an
  observation.
* An adapter is served on the base's own weights: those that the engine was started with, or that were read anew since.
* While the engine sleeps, it is given neither work nor weights: a pull fails with a line.
* A version is served only if its weights arrived completely and, where they are compared, the engine has what was published.
  From the first tensor of a load to its end the replica serves no version. After a load that failed it refuses work until a
  pull succeeds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.contracts import (
    Abort,
    AdapterWeights,
    AdaptingEngine,
    Delta,
    DigestingEngine,
    Engine,
    Finished,
    FinishReason,
    Interrupt,
    Interrupted,
    Lend,
    Lent,
    Pull,
    Pulled,
    PullFailed,
    Refused,
    Resume,
    Return,
    Returned,
    Route,
    SleepingEngine,
    SlicedWeights,
    TurnEnded,
    UnreadableWeightsError,
    WeightDigest,
    WeightSlice,
    weight_slices,
)
from tailrace.rollout.command_order import ReplicaCommand
from tailrace.rollout.errors import (
    EngineAsleepError,
    EngineDiedError,
    OptionError,
    ReplicaNotReadyError,
    RouteConflictError,
    SourceMismatchError,
    WeightsDifferError,
    WeightsError,
)
from tailrace.rollout.ports import SamplingRule, TrajectorySource, WeightSource
from tailrace.rollout.reports import Reports
from tailrace.rollout.resumption import finished_with, limited, request_of
from tailrace.rollout.served_weights import WeightComparison, WeightSample
from tailrace.rollout.standstill import GENERATING, IDLE, PULLING, Standstill

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _InFlight:
    route: int
    tokens: int  # response tokens so far, kept ones included
    turns: bool  # whether a stop token ends a turn only
    version: int  # whose weights draw its tokens


class ReplicaWork:
    """Carries commands out on an engine and drives it. Not thread-safe: only the worker thread uses it.

    Args:
        replica: name of the replica.
        engine: a rollout engine that serves no version yet.
        source: gives prompts and kept tokens.
        weights: gives weight versions.
        sampling: how a trajectory's tokens are drawn.
        reports: takes tokens and events.
        standstill: is told the engine's phase and its steps.
        pull_timeout_s: deadline of a pull.
        sleep_level: see `ReplicaWorker`.
        versions, on_phase, comparison: see `ReplicaWorker`.

    Raises:
        OptionError: weights are to be compared, and the engine is no `DigestingEngine`.
    """

    def __init__(
        self,
        replica: str,
        engine: Engine,
        source: TrajectorySource,
        weights: WeightSource,
        *,
        sampling: SamplingRule,
        reports: Reports,
        standstill: Standstill,
        pull_timeout_s: float,
        sleep_level: int = 0,
        versions: int = 1,
        on_phase: Callable[[str], None] = lambda _: None,
        comparison: WeightComparison | None = None,
    ) -> None:
        self._replica, self._engine, self._source, self._weights = replica, engine, source, weights
        self._sampling, self._reports, self._standstill = sampling, reports, standstill
        self._pull_timeout_s, self._sleep_level, self._on_phase = pull_timeout_s, sleep_level, on_phase
        self._sleeping = _sleeping(engine) if sleep_level else None
        self._versions = versions
        self._asleep = 0  # the level at which the engine sleeps; 0: it is awake
        self._base_there = True  # whether the engine's own weights are the base's
        self._empty = False  # whether the engine dropped its weights as it slept, and has no others yet
        self._comparison, self._digesting = (
            comparison,
            _digesting(engine) if comparison is not None else None,
        )
        self._warned = False
        self._fresh = False  # whether the engine has not stepped since it got requests
        self._in_flight: dict[str, _InFlight] = {}
        self._unshown = False
        self.version: int | None = None
        self.last_seq = 0
        self.dropped = 0

    def __len__(self) -> int:
        """Trajectories in flight."""
        return len(self._in_flight)

    def carry_out(self, command: ReplicaCommand) -> None:
        """Carry a command out. Its answer is added to the reports now, or when a trajectory ends.

        Raises:
            RolloutError: the command cannot be carried out, or the source's answer does not match it.
            Exception: the engine or the source failed.
        """
        self._unshown = True
        if not isinstance(command, Abort):  # an Abort is outside the chain of commands
            self.last_seq = max(self.last_seq, command.seq)
        match command:
            case Route():
                self._route(command)
            case Interrupt():
                self._interrupt(command.trajectories, command.seq)
            case Abort():
                self._abort(command)
            case Pull():
                self._pull(command)
            case Lend():
                self._lend(command)
            case Return():
                self._take_back(command)
        self._note_phase()

    def step(self) -> None:
        """Advance the engine by one step."""
        self._standstill.at(GENERATING)
        fresh, self._fresh = self._fresh, False
        self._on_phase("prefill" if fresh else "decode")
        deltas = self._engine.step()
        if deltas:
            self._standstill.moved(steps=1)
            self._record(deltas)
        if not self._in_flight or not (deltas or self._engine_holds_work()):
            self._standstill.at(IDLE)

    def reject(self, trajectories: Iterable[str]) -> None:
        """Drop trajectories that the source has given to another replica."""
        ids = set(trajectories)
        self.dropped += len(ids)
        self._drop(ids)
        self._note_phase()

    def show(self, *, now: bool) -> None:
        """Send a snapshot if `now`, or if it is the first that can show the last commands; otherwise flush tokens if due.

        A snapshot after a `Route` waits until the engine has taken the new requests into its batch. Before that they would
        count as waiting, as with a full KV cache.
        """
        if now or (self._unshown and not (self._in_flight and self._engine.stats().waiting)):
            self._unshown = False
            self._reports.snapshot(self._engine.stats(), len(self._in_flight), self.version, self.last_seq)
        else:
            self._reports.flush_if_due()

    def stop(self) -> None:
        """Stop everything in flight and hand over the last tokens."""
        self._record(self._engine.abort(list(self._in_flight)))
        self._reports.flush(everything=True)

    def _note_phase(self) -> None:
        self._standstill.at(GENERATING if self._in_flight else IDLE)

    def _engine_holds_work(self) -> bool:
        """Whether the engine has requests; otherwise tools or environments work on everything in flight."""
        stats = self._engine.stats()
        return stats.running + stats.waiting > 0

    def _lend(self, lend: Lend) -> None:
        """Leave the devices. The controller has emptied the replica. Tokens of what is in flight even so go to the source."""
        self._interrupt(list(self._in_flight), None)
        self._on_phase("sleep")
        if self._sleeping is None:
            self._reports.event(Lent(self._replica, lend.seq))
        else:
            awake_bytes, began = self._sleeping.memory_bytes(), time.perf_counter()
            self._sleeping.sleep(self._sleep_level)
            took_s, self._asleep = time.perf_counter() - began, self._sleep_level
            if self._sleep_level > 1:
                self._empty, self._base_there = True, False
            asleep_bytes = self._sleeping.memory_bytes()
            self._reports.event(Lent(self._replica, lend.seq, self._sleep_level, took_s, awake_bytes, asleep_bytes))
        self._reports.flush()

    def _take_back(self, back: Return) -> None:
        """Take the devices again. Weights that were dropped come with the next pull, or before the next work."""
        self._on_phase("wake")
        if self._sleeping is None or not self._asleep:
            self._reports.event(Returned(self._replica, back.seq))
        else:
            began = time.perf_counter()
            self._sleeping.wake()
            took_s, self._asleep = time.perf_counter() - began, 0
            self._reports.event(Returned(self._replica, back.seq, took_s, self._sleeping.memory_bytes()))
        self._reports.flush()

    def _restore(self, version: int) -> None:
        """Load the version again whose weights were dropped.

        Raises:
            Exception: it cannot be had any more, or the engine has other weights then. The replica cannot go on.
        """
        self._standstill.at(PULLING)
        sample = self._sample(version)
        with self._weights.load(version, self._pull_timeout_s) as weights:
            self._take(weights, self._standstill.moved, sample)
        self._compare(sample)

    def _take(
        self,
        weights: Iterable[tuple[str, Any]] | AdapterWeights,
        arrives: Callable[[], None],
        sample: WeightSample | None = None,
    ) -> None:
        """Have the engine serve weights. `arrives` is called before each tensor or slice, and before an adapter.

        The sample is of all that the engine is given: weights, or an adapter's matrices and a base that is read anew.
        """
        if not isinstance(weights, AdapterWeights):
            self._base_there = False
            self._engine.load_weights(_Watched(weights, arrives, sample))
            self._empty = False
            return
        if not self._base_there:
            self._engine.load_weights(_Watched(weights.base(), arrives, sample))
            self._base_there = True
        arrives()
        if sample is not None:
            sample.take_adapter(weights)
        _adapting(self._engine).load_adapter(weights)
        self._empty = False

    def _route(self, route: Route) -> None:
        if self._empty and self.version is not None:
            self._restore(self.version)
        if self.version is None:
            raise ReplicaNotReadyError(
                f"replica {self._replica!r} got Route {route.seq} and serves no version; pull one completely first"
            )
        refs = {ref.trajectory: ref for ref in route.trajectories}
        conflict = refs.keys() & self._in_flight.keys()
        if conflict:
            raise RouteConflictError(
                f"replica {self._replica!r} generates {min(conflict)!r} already (Route {route.seq})"
            )
        resumes = self._begin(route, self.version)
        requests = []
        for resume in resumes:
            id_, kept = resume.trajectory, tuple(resume.kept_tokens)
            sampling = self._sampling(refs[id_])
            self._reports.began(id_)
            if resume.complete:
                # Without a stop token an environment has ended it, or the model's context.
                otherwise = FinishReason.STOP if sampling.turns else FinishReason.LENGTH
                reason = finished_with(kept, limited(resume, sampling)) or otherwise
                self._reports.event(Finished(self._replica, id_, len(kept), reason, answers=route.seq))
                continue
            if resume.turn_ended:  # its replica died before it could say so
                self._reports.event(TurnEnded(self._replica, id_, len(kept), answers=route.seq))
                continue
            self._in_flight[id_] = _InFlight(route.seq, len(kept), sampling.turns, self.version)
            requests.append(request_of(resume, sampling))
        self.dropped += len(refs) - len(resumes)
        if requests:
            self._standstill.at(GENERATING)
            self._fresh = True
        for request in requests:  # one by one, so that the engine refuses one and takes the others
            try:
                self._engine.submit([request])
            except ValueError as error:
                del self._in_flight[request.id]
                self._reports.event(Refused(self._replica, request.id, str(error), answers=route.seq))

    def _begin(self, route: Route, version: int) -> Sequence[Resume]:
        with self._standstill.elsewhere():
            resumes = self._source.begin(self._replica, version, route.trajectories, route.seq)
        ids = [resume.trajectory for resume in resumes]
        unasked = set(ids) - {ref.trajectory for ref in route.trajectories}
        if unasked or len(set(ids)) < len(ids):
            raise SourceMismatchError(
                f"the trajectory source answered Route {route.seq} with {sorted(unasked) or ids}, expected each of the "
                "trajectories that were asked for at most once"
            )
        return resumes

    def _interrupt(self, trajectories: Iterable[str], seq: int | None) -> None:
        ids = [id_ for id_ in trajectories if id_ in self._in_flight]
        self._record(self._engine.abort(ids))
        for id_ in ids:
            state = self._in_flight.pop(id_, None)
            if state is not None:  # otherwise it has just finished and is recorded
                self._reports.event(Interrupted(self._replica, id_, state.tokens, answers=seq))
        self._reports.flush()

    def _abort(self, abort: Abort) -> None:
        """Drop the command's trajectories, except those routed again later: an Abort is outside the chain and may be late."""
        newer = {id_ for id_, state in self._in_flight.items() if state.route > abort.seq}
        self._drop(set(abort.trajectories) - newer - self._reports.ended_since(abort.seq))

    def _drop(self, trajectories: set[str]) -> None:
        """Stop trajectories that no longer belong to this replica and drop their tokens and events."""
        self._reports.forget(trajectories)
        running = sorted(trajectories & self._in_flight.keys())
        if running:
            self._engine.abort(running)
        for id_ in running:
            del self._in_flight[id_]

    def _pull(self, pull: Pull) -> None:
        self._interrupt(self._without_room(self._versions - 1), None)
        touched = False

        def arrives() -> None:
            nonlocal touched
            if not touched:
                self._on_phase("pull")
            touched = True
            self.version = None
            self._standstill.moved()

        self._standstill.at(PULLING)
        try:
            if self._asleep:
                raise EngineAsleepError(f"version {pull.version} was to be pulled while the engine sleeps")
            sample = self._sample(pull.version)
            with self._weights.load(pull.version, self._pull_timeout_s) as weights:
                if not (isinstance(weights, AdapterWeights) and self._base_there):
                    self._interrupt(list(self._in_flight), None)
                self._take(weights, arrives, sample)
            compared = self._compare(sample)
        except EngineDiedError:
            raise
        except WeightsDifferError as error:
            self._interrupt(list(self._in_flight), None)
            self._reports.event(
                PullFailed(self._replica, pull.version, str(error), answers=pull.seq, differs=error.parameter)
            )
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if touched:
                self._interrupt(list(self._in_flight), None)
                reason += "; the load broke off midway, so the replica serves nothing until a pull succeeds"
            self._reports.event(PullFailed(self._replica, pull.version, reason, answers=pull.seq))
        else:
            self.version = pull.version
            self._reports.event(Pulled(self._replica, pull.version, answers=pull.seq, compared=compared))
        self._reports.flush()

    def _without_room(self, room: int) -> list[str]:
        """The trajectories in flight whose weights are not among the newest of so many versions."""
        newest = sorted({state.version for state in self._in_flight.values()}, reverse=True)[:room]
        return [id_ for id_, state in self._in_flight.items() if state.version not in newest]

    def _sample(self, version: int) -> WeightSample | None:
        if self._comparison is None:
            return None
        return WeightSample(version, self._comparison.nbytes, f"{self._replica} {version}")  # other places at each pull

    def _compare(self, sample: WeightSample | None) -> float:
        """Compare what the engine has with what was published. Returns the share of the elements that were compared.

        Raises:
            WeightsDifferError: they differ.
            UnreadableWeightsError: the engine cannot tell of all, and it is required.
        """
        if not sample or self._comparison is None or self._digesting is None:
            return 0.0
        digests, why = self._digests(self._digesting, sample)
        if why and self._comparison.required:
            raise UnreadableWeightsError(why)
        if why and not self._warned:
            self._warned = True
            _log.warning(
                "replica %s does not compare %s with what was published: %s",
                self._replica,
                "what it serves" if digests is None else "all that it serves",
                why,
            )
        return 0.0 if digests is None else sample.check(digests)

    @staticmethod
    def _digests(engine: DigestingEngine, sample: WeightSample) -> tuple[Sequence[WeightDigest] | None, str]:
        """Ask an engine for a sample. Returns None if it can read nothing of the model back, and why it cannot tell of all."""
        try:
            digests = engine.digests(sample.boxes())
        except UnreadableWeightsError as error:
            return None, str(error)
        return digests, next((digest.unreadable for digest in digests if digest.unreadable), "")

    def _record(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            state = self._in_flight.get(delta.id)
            if state is None:
                continue
            turn_ends = state.turns and delta.finish is FinishReason.STOP
            self._reports.tokens(delta, state.tokens, state.version, turn_ends=turn_ends)
            state.tokens += len(delta.tokens)
            if delta.finish is None:
                continue
            del self._in_flight[delta.id]
            if turn_ends:
                self._reports.event(TurnEnded(self._replica, delta.id, state.tokens, answers=state.route))
            else:
                self._reports.event(Finished(self._replica, delta.id, state.tokens, delta.finish, answers=state.route))


def _digesting(engine: Engine) -> DigestingEngine:
    if not isinstance(engine, DigestingEngine):
        raise _lacking(engine, DigestingEngine.__name__)
    return engine


def _sleeping(engine: Engine) -> SleepingEngine:
    if not isinstance(engine, SleepingEngine):
        raise _lacking(engine, SleepingEngine.__name__)
    return engine


def _adapting(engine: Engine) -> AdaptingEngine:
    if not isinstance(engine, AdaptingEngine):
        raise _lacking(engine, AdaptingEngine.__name__)
    return engine


def _lacking(engine: Engine, expected: str) -> OptionError:
    return OptionError(
        f"found a {type(engine).__name__}, expected a {expected} of tailrace.contracts, as its plugin says"
    )


class _Watched(SlicedWeights):
    """Weights on their way into the engine, with a call before each tensor or slice, of which a sample is kept."""

    def __init__(
        self, weights: Iterable[tuple[str, Any]], arrives: Callable[[], None], sample: WeightSample | None = None
    ) -> None:
        self._weights, self._arrives, self._sample = weights, arrives, sample

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self._weights:
            self._arrives()
            if self._sample is not None:
                self._sample.take(WeightSlice(name, tuple(tensor.shape), (), tensor))
            yield name, tensor

    def origin(self) -> object | None:
        return self._weights.origin() if isinstance(self._weights, SlicedWeights) else None

    def slices(self) -> Iterator[WeightSlice]:
        for piece in weight_slices(self._weights, WeightsError):
            self._arrives()
            if self._sample is not None:
                self._sample.take(piece)
            yield piece
