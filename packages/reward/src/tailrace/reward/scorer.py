"""Applies verifiers to finished trajectories.

Consumes: trajectories with their response text. Waits for: verifiers, each in a worker process with a deadline.
Yields: for each trajectory a reward or a failure with its reason. A failure is never a reward of zero.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tailrace.reward.errors import ScorerClosedError, WorkerDiedError, WorkerTimeoutError
from tailrace.reward.process import WorkerProcess


@dataclass(frozen=True, slots=True)
class ScoreItem:
    """A response to score.

    Args:
        trajectory: the trajectory's id.
        response_text: the decoded response, without the prompt.
        answer: the reference answer of its prompt.
        verifier: name of the verifier.
        metadata: the row's metadata; JSON values only.
    """

    trajectory: str
    response_text: str
    answer: str
    verifier: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScoringResult:
    """A trajectory's reward, and whether its answer is right; None if the verifier does not say."""

    trajectory: str
    reward: float
    correct: bool | None = None


@dataclass(frozen=True, slots=True)
class ScoringFailure:
    """The verifier could not judge: it raised, hung, died, or returned something other than a finite number."""

    trajectory: str
    reason: str


class Scorer:
    """A pool of worker processes that verify responses. Thread-safe; close it, or use it as a context manager.

    If a verification misses its deadline, its worker is replaced and its item becomes a `ScoringFailure`; the others continue.

    Args:
        verifiers: your own verifiers in addition to the installed ones: name to ``"module:function"`` or
            ``"file.py:function"``. A data row can name only these and installed verifiers.
        workers: number of worker processes.
        timeout_s: deadline of one verification.
        start_timeout_s: deadline for starting a worker and importing a verifier in it.
    """

    def __init__(
        self,
        verifiers: Mapping[str, str] | None = None,
        *,
        workers: int = 1,
        timeout_s: float = 10.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        if workers < 1:
            raise ValueError(f"found workers={workers}, expected at least 1")
        if timeout_s <= 0 or start_timeout_s <= 0:
            raise ValueError(
                f"found timeout_s={timeout_s}, start_timeout_s={start_timeout_s}; expected more than 0 seconds"
            )
        self._timeout_s = timeout_s
        self._workers = [WorkerProcess(verifiers or {}, start_timeout_s) for _ in range(workers)]
        self._lock = threading.Lock()
        self._closed = False

    def score(self, items: Sequence[ScoreItem]) -> list[ScoringResult | ScoringFailure]:
        """One outcome for each item, in order.

        Takes at most ``start_timeout_s + timeout_s`` for each item of the longest queue, whatever the verifiers do.

        Raises:
            ScorerClosedError: the scorer was closed.
        """
        with self._lock:
            if self._closed:
                raise ScorerClosedError("the scorer is closed; make a new one")
            outcomes: list[ScoringResult | ScoringFailure | None] = [None] * len(items)
            queue = deque(enumerate(items))
            if len(items) == 1 or len(self._workers) == 1:
                self._drain(self._workers[0], queue, outcomes)
            else:
                self._drain_together(queue, outcomes)
            return [outcome for outcome in outcomes if outcome is not None]

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the running workers."""
        return tuple(worker.pid for worker in self._workers if worker.pid is not None)

    def close(self) -> None:
        """Stop the workers, after a running `score` has returned. Calling it again does nothing."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drain_together(
        self, queue: deque[tuple[int, ScoreItem]], outcomes: list[ScoringResult | ScoringFailure | None]
    ) -> None:
        broken: list[BaseException] = []

        def run(worker: WorkerProcess) -> None:
            try:
                self._drain(worker, queue, outcomes)
            except BaseException as error:
                broken.append(error)

        threads = [
            threading.Thread(target=run, args=(worker,), name="tailrace-scoring", daemon=True)
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # ends: every request has a deadline
        if broken:
            raise broken[0]

    def _drain(
        self,
        worker: WorkerProcess,
        queue: deque[tuple[int, ScoreItem]],
        outcomes: list[ScoringResult | ScoringFailure | None],
    ) -> None:
        while True:
            try:
                index, item = queue.popleft()
            except IndexError:
                return
            outcomes[index] = self._score(worker, item)

    def _score(self, worker: WorkerProcess, item: ScoreItem) -> ScoringResult | ScoringFailure:
        try:
            reply = worker.verify(item.verifier, item.response_text, item.answer, item.metadata, self._timeout_s)
        except (WorkerTimeoutError, WorkerDiedError) as error:
            return ScoringFailure(item.trajectory, str(error))
        except TypeError as error:
            return ScoringFailure(item.trajectory, f"the row's metadata is no JSON: {error}")
        if "error" in reply:
            return ScoringFailure(item.trajectory, f"verifier {item.verifier!r}: {reply['error']}")
        return ScoringResult(item.trajectory, reply["reward"], reply.get("correct"))
