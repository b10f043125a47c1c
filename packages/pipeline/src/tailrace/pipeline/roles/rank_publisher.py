"""Publishes one rank's weights to the master relay; further ranks learn the master from the first one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tailrace.paramserver import (
    AuthenticationFailed,
    ManifestInvalid,
    NotEnoughSharedMemory,
    ParamServerError,
    Publisher,
    PublishTimeout,
    TransportUnavailable,
    VersionRetired,
    VersionSuperseded,
)
from tailrace.pipeline.roles.shards import Shards
from tailrace.pipeline.roles.transfer import WeightTransfer

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
        self._publisher = Publisher(
            None,
            token=token,
            on_published=published,
            host=transfer.address,
            buffers=buffers,
            alone=first,  # no version is whole, and sealed, without the share of the first rank
            **transfer.sending(),
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
