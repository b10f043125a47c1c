"""Publishes one rank's weights to the master relay; further ranks learn the master from the first one."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tailrace.paramserver import (
    AuthenticationFailed,
    ManifestInvalid,
    NotEnoughSharedMemory,
    ParamServerError,
    Publisher,
    PublishTimeout,
    Share,
    TransportUnavailable,
    VersionRetired,
    VersionSuperseded,
    shares,
)
from tailrace.paramserver.codec.cast import matrices
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.runtime.errors import RoleError
from tailrace.trainer.backend import TrainingBackend

_VERSIONS_OF_ONE_LIFE = 2**40
_log = logging.getLogger(__name__)
_CLOSE_S = 5.0
_RETRY_S = 0.5
HOPELESS = (AuthenticationFailed, ManifestInvalid, NotEnoughSharedMemory, TransportUnavailable)
"""Errors that no other relay mends."""
_OVERTAKEN = (VersionSuperseded, VersionRetired)

Weights = Iterable[tuple[str, Any]]


class RankPublisher:
    """Stages a rank's weights and pushes them to the master relay.

    Args:
        token, transfer, shards: see `Publishing`.
        published: see `Publisher`.
        first: whether this is the first rank.
    """

    def __init__(
        self,
        token: str,
        transfer: WeightTransfer,
        shards: Shards | None,
        published: Callable[[int, ParamServerError | None], None] | None = None,
        first: bool = True,
    ) -> None:
        self._transfer, self._shards = transfer, shards
        # One copy of the weights: a version waits until the previous one is sent. Deltas need the previous one too.
        buffers = 2 if transfer.codec == "delta" else 1
        sending = transfer.sending
        self._publisher = Publisher(
            None,
            token=token,
            on_published=published,
            host=transfer.address,
            buffers=buffers,
            alone=first,  # no version is whole, and sealed, without the share of the first rank
            transports=sending.transports,
            codecs=sending.codecs,
            always_encode=sending.always_encode,
        )
        self.retarget, self.wait, self.reveal = self._publisher.retarget, self._publisher.wait, self._publisher.reveal

    def publish(self, version: int, weights: Weights, *, sealed: bool = False) -> None:
        """Copy weights: all of them or, with several ranks, this rank's.

        Args:
            sealed: nobody may see the version before it is revealed, which the first rank does.
        """
        if self._shards is None:
            self._publisher.publish(version, self._transfer.cast(weights), sealed=sealed)
        else:
            stamp, share = self._shards.stamp(), self._shards.share
            self._publisher.publish(version, weights, stamp=stamp, sealed=sealed, share=share)

    def offer_again(self) -> None:
        """Offer the master relay what it lacks of the newest version."""
        if self._publisher.address:
            self._publisher.retarget(self._publisher.address)

    def close(self) -> None:
        """Leave the relays as they are."""
        try:
            self._publisher.close(timeout_s=_CLOSE_S)
        except PublishTimeout as error:
            _log.info("%s", error)


class Follower(RankPublisher):
    """A further rank of a trainer. It sends to the relay that the first rank names, and retries failed pushes.

    Args:
        token, transfer, shards: see `Publishing`.
        broke: called from another thread with an error that another relay cannot fix.
    """

    def __init__(
        self, token: str, transfer: WeightTransfer, shards: Shards | None, broke: Callable[[BaseException], None]
    ) -> None:
        self._broke = broke
        super().__init__(token, transfer, shards, self._outcome, first=False)

    def _outcome(self, version: int, error: ParamServerError | None) -> None:
        if isinstance(error, HOPELESS):
            self._broke(error)
        elif error is not None and not isinstance(error, _OVERTAKEN):
            _log.info("this rank's shards of version %d are not on a relay yet: %s", version, error)
            timer = threading.Timer(_RETRY_S, self.offer_again)
            timer.daemon = True
            timer.start()


# The part of each version that one trainer rank publishes: only its own shards.
#
# layout of the backend ──► share of this rank ──► weights of a version: buffer by buffer, one at a time


class Shards:
    """This rank's part of the trainer's publications.

    Args:
        backend: the trainer backend; its `layout` and `shards` are used.
        transfer: the transport and codec.
        rank: this process's rank.
        incarnation: counts the trainer's starts. With it, ranks agree on the order of publications without messages.
    """

    def __init__(self, backend: TrainingBackend, transfer: WeightTransfer, rank: int, incarnation: int) -> None:
        self._backend, self._rank = backend, f"rank{rank}"
        self._bf16 = transfer.codec == "bf16"
        layout = backend.layout()
        self.layout = layout.in_dtypes(lambda tensor: self._dtype(tensor.name, tensor.dtype, tensor.shape))
        self.share: Share = shares(self.layout)[self._rank]
        self._stamp = incarnation * _VERSIONS_OF_ONE_LIFE

    def stamp(self) -> int:
        """The stamp of the next publication. Call it exactly once for each publication, on every rank."""
        self._stamp += 1
        return self._stamp

    def weights(self, held: Path | None) -> Iterator[tuple[str, Any]]:
        """This rank's buffers of the weights.

        Args:
            held: a model directory whose weights are taken instead of the trained ones; None for the trained ones.

        Raises:
            RoleError: the directory has another model.
        """
        for name, tensor in self._backend.shards() if held is None else self._of(held):
            dtype = str(tensor.dtype).removeprefix("torch.")
            yield name, tensor.bfloat16() if self._dtype(name, dtype, tuple(tensor.shape)) != dtype else tensor

    def _dtype(self, name: str, dtype: str, shape: tuple[int, ...]) -> str:
        """The dtype in which a tensor or a part of it is published."""
        return "bfloat16" if self._bf16 and matrices(name, dtype, shape) else dtype

    def _of(self, directory: Path) -> Iterator[tuple[str, Any]]:
        """This rank's buffers of a model directory. A buffer comes when all the tensors that lie in it were read."""
        import torch

        from tailrace.trainer import load_weights_file

        pieces = self.layout.shards[self._rank].pieces
        begun: dict[str, Any] = {}
        left = Counter(buffer.name for held in pieces.values() for buffer, _ in held)
        for name, tensor in load_weights_file(directory):
            if name not in (known := self.layout.tensor) or tuple(tensor.shape) != known[name].shape:
                raise RoleError(
                    f"{directory}: found the tensor {name!r} of shape {list(tensor.shape)}, expected one of the run's"
                )
            for buffer, piece in pieces.get(name, ()):
                if buffer.name not in begun:
                    begun[buffer.name] = torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype))
                at = zip(piece.at, piece.box, strict=True)
                begun[buffer.name][tuple(slice(first, first + end - begin) for first, (begin, end) in at)] = tensor[
                    tuple(slice(begin, end) for begin, end in piece.box)
                ]
                left[buffer.name] -= 1
                if not left[buffer.name]:
                    yield buffer.name, begun.pop(buffer.name)
