"""The trainer's end of the relay tier: weights are staged here at once, and reach whichever relay is master when there is one.

    publish ──► Publisher (stages, pushes in the background) ──► master relay ──► the others, as `RelayGroup` has ordered
                    ▲ retarget                                        │
                    └──────────── RelayGroup (who lives, who is master) ◄──── heartbeats

Nothing here waits for a relay. What is staged goes to the next master by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tailrace.paramserver import (
    AuthenticationFailed,
    ManifestInvalid,
    NotEnoughSharedMemory,
    ParamServerError,
    Publisher,
    PublishTimeout,
    RelayGroup,
    TransportUnavailable,
)

_log = logging.getLogger(__name__)
_CLOSE_S = 5.0
_HOPELESS = (AuthenticationFailed, ManifestInvalid, NotEnoughSharedMemory, TransportUnavailable)
_REMEMBERED = 16


class Publishing:
    """Publishes versions. Called by one thread.

    Args:
        token: shared secret of the run's peers.
        published: called, from another thread, with a version that is visible and the number of the newest command for it.
        broke: called, from another thread, with an error that no other relay mends.
    """

    def __init__(
        self, *, token: str, published: Callable[[int, int], None], broke: Callable[[BaseException], None]
    ) -> None:
        self._published, self._broke = published, broke
        self._numbers: dict[int, int] = {}  # of the newest command for a version
        self._relays: dict[str, str] = {}
        self._publisher = Publisher(None, token=token, on_published=self._on_published)
        self._group = RelayGroup({}, token=token, timeout_s=None, on_master=self._publisher.retarget)

    def publish(
        self, seq: int, version: int, relays: Mapping[str, str], weights: Iterable[tuple[str, Any]] | None
    ) -> None:
        """Copy weights, or offer again what is staged, to the relays that live now.

        Args:
            seq: number of the command.
            relays: addresses by id.
            weights: None if the version is staged.
        """
        self._numbers.pop(version, None)
        self._numbers[version] = seq
        while len(self._numbers) > _REMEMBERED:
            del self._numbers[next(iter(self._numbers))]
        if weights is not None:
            self._publisher.publish(version, weights)
        self._follow(relays)
        if weights is None:
            self._group.follow(self._publisher.retarget)  # the master is told again, and asked what it lacks

    def forget(self) -> None:
        """Commands are numbered anew: nobody waits for the versions that were published so far."""
        self._numbers.clear()

    def close(self) -> None:
        """Leave the relays as they are."""
        self._group.close()
        try:
            self._publisher.close(timeout_s=_CLOSE_S)
        except PublishTimeout as error:
            _log.info("%s", error)

    def _follow(self, relays: Mapping[str, str]) -> None:
        for name in self._relays.keys() - relays.keys():
            self._group.leave(name)
        for name, address in relays.items():
            if self._relays.get(name) != address:
                self._group.join(address, name=name)
        self._relays = dict(relays)

    def _on_published(self, version: int, error: ParamServerError | None) -> None:
        self._group.published(version, error)  # which has it tried again where that makes sense
        seq = self._numbers.get(version)
        if error is None and seq is not None:
            self._published(version, seq)
        elif isinstance(error, _HOPELESS):
            self._broke(error)
