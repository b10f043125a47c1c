"""The tokens of samples that are not complete yet: the trajectory source of the service's replicas.

Invariant: only the replica that a sample was given to last adds tokens to it. What a dead replica, or one that was told to
stop, sends later is refused, so no token comes twice when the sample goes on elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tailrace.contracts import FinishReason, PartialDelta, Resume, Sampling, TrajectoryRef
from tailrace.rollout.errors import SourceMismatchError


@dataclass(frozen=True, slots=True)
class Sample:
    """A complete response.

    Args:
        prompt: position of its prompt in the request.
        sample: index among the samples of that prompt, from 0.
        tokens: response token ids.
        logprobs: log-probability (natural log) of each token under the weights that drew it.
        versions: weight version of each token; they never decrease.
        finish: why it ended.
    """

    prompt: int
    sample: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: FinishReason

    @property
    def key(self) -> tuple[int, int]:
        """Prompt and sample."""
        return self.prompt, self.sample


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """A sample to generate.

    Args:
        id: unique within the service.
        prompt: position of its prompt in the request.
        sample: index among the samples of that prompt.
        tokens: prompt token ids.
        sampling: how its tokens are drawn.
    """

    id: str
    prompt: int
    sample: int
    tokens: tuple[int, ...]
    sampling: Sampling


@dataclass(slots=True)
class _Kept:
    order: SampleOrder
    owner: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: FinishReason | None = None


class Book:
    """Keeps the tokens of incomplete samples. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}

    def __len__(self) -> int:
        """Samples that it keeps."""
        return len(self._kept)

    def open(self, order: SampleOrder) -> None:
        """Keep a sample from now on."""
        with self._lock:
            self._kept[order.id] = _Kept(order)

    def release(self, ids: Iterable[str]) -> None:
        """Take samples from their replicas and keep their tokens."""
        with self._lock:
            for id_ in ids:
                if id_ in self._kept:
                    self._kept[id_].owner = ""

    def drop(self, ids: Iterable[str]) -> None:
        """Forget samples."""
        with self._lock:
            for id_ in ids:
                self._kept.pop(id_, None)

    def take(self, id_: str, finish: FinishReason) -> Sample:
        """Remove a complete sample and return it."""
        with self._lock:
            kept = self._kept.pop(id_)
        order = kept.order
        return Sample(
            order.prompt, order.sample, tuple(kept.tokens), tuple(kept.logprobs), tuple(kept.versions), finish
        )

    def begin(self, replica: str, version: int, refs: Sequence[TrajectoryRef], seq: int) -> list[Resume]:
        """Give samples to a replica. Those that were dropped are left out: no later request has their ids."""
        del version, seq
        with self._lock:
            resumes = []
            for ref in refs:
                kept = self._kept.get(ref.trajectory)
                if kept is not None:
                    kept.owner = replica
                    complete = kept.finish is not None
                    resumes.append(
                        Resume(ref.trajectory, kept.order.tokens, tuple(kept.tokens), tuple(kept.logprobs), complete)
                    )
            return resumes

    def append(self, replica: str, deltas: Sequence[PartialDelta]) -> list[str]:
        """Add tokens; returns the ids of samples that do not belong to this replica.

        Raises:
            SourceMismatchError: tokens of a sample leave a gap or overlap.
        """
        with self._lock:
            refused = []
            for delta in deltas:
                kept = self._kept.get(delta.trajectory)
                if kept is None or kept.owner != replica:
                    refused.append(delta.trajectory)
                    continue
                if delta.offset != len(kept.tokens):
                    raise SourceMismatchError(
                        f"replica {replica!r} sent tokens from {delta.offset} of sample {delta.trajectory!r}, "
                        f"expected {len(kept.tokens)}"
                    )
                kept.tokens += delta.tokens
                kept.logprobs += delta.logprobs
                kept.versions += [delta.version] * len(delta.tokens)
                kept.finish = delta.finish
            return refused

    def sampling(self, ref: TrajectoryRef) -> Sampling:
        """How a sample's tokens are drawn. One that was dropped meanwhile gets the default: its tokens go nowhere."""
        with self._lock:
            kept = self._kept.get(ref.trajectory)
            return kept.order.sampling if kept is not None else Sampling()
