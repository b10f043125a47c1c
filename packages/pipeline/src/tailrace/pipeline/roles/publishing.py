"""The trainer's side of the relay tier: weights are staged here at once, and pushed to the master relay when there is one.

    publish ──► Publisher (stages, pushes in the background) ──► master relay ──► the others, as `RelayGroup` has ordered
                    ▲ retarget                                        │
                    └──────────── RelayGroup (who lives, who is master) ◄──── heartbeats
    reveal ───► a thread of its own: a sealed version is seen from now on
    further ranks:  │ follow
    publish ──► Publisher of each (its own shards) ──► the same master

The caller waits for no relay to appear or to find room, but until the version before is sent: a rank keeps one copy of its
weights. If the master changes, staged weights go to the next master. A reveal waits for nothing of this: the relays may have
no room for the next version before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tailrace.contracts import Publish
from tailrace.paramserver import (
    ParamServerError,
    PublishTimeout,
    RelayGroup,
    RelayUnreachable,
)
from tailrace.pipeline.roles.calls import TRAINER_DOOR
from tailrace.pipeline.roles.rank_publisher import HOPELESS, RankPublisher, Shards, Weights
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.runtime.errors import DeadlineError
from tailrace.runtime.executor.seam import Caller, MemberDeadError

PATIENCE_S = 60.0
_log = logging.getLogger(__name__)
_FOLLOW_S = 30.0
_CLOSE_S = 5.0
_REMEMBERED = 16


class Publishing:
    """Publishes versions. Called by one thread, but for `reveal`.

    Args:
        token: shared secret of the run's peers.
        transfer: the transport and codec.
        published: called from another thread with a version that is visible, at each site where a relay lives, and the number
            of the newest command for it.
        broke: called from another thread with an error that another relay cannot fix.
        shards: this rank's part of each version; None: all of it.
        followers: the other ranks, which are told the master relay's address.
    """

    def __init__(
        self,
        *,
        token: str,
        transfer: WeightTransfer,
        published: Callable[[int, int], None],
        broke: Callable[[BaseException], None],
        shards: Shards | None = None,
        followers: Sequence[Caller] = (),
    ) -> None:
        self._published, self._broke = published, broke
        self.newest_s: float | None = None
        """Seconds from the start of copying the newest version that is visible until it was; None before the first."""
        self._begun_s: dict[int, float] = {}
        self._followers = [TRAINER_DOOR.open(follower, _FOLLOW_S) for follower in followers]
        self._numbers: dict[int, int] = {}  # number of the newest command for each version
        self._relays: dict[str, str] = {}
        self._rank = RankPublisher(token, transfer, shards, self._on_published)
        self._group = RelayGroup({}, token=token, timeout_s=None, on_master=self._retarget)
        self._arrivals: SiteArrivals | None = None  # of a run with several sites
        self._reveals = ThreadPoolExecutor(1, thread_name_prefix="reveals")

    def publish(self, command: Publish, weights: Callable[[], Weights] | None) -> None:
        """Copy weights, or offer the staged ones again, to the live relays. Each version crosses to each other site once.

        Args:
            command: the version, and the live relays with their sites.
            weights: returns the weights, or this rank's part; None if the version is staged already.
        """
        version = command.version
        if command.sites and self._arrivals is None:
            self._arrivals = SiteArrivals(self._group, self._tell)
        self._numbers.pop(version, None)
        self._numbers[version] = command.seq
        while len(self._numbers) > _REMEMBERED:
            oldest = next(iter(self._numbers))
            del self._numbers[oldest]
            self._begun_s.pop(oldest, None)
        if weights is not None:
            self._begun_s[version] = time.monotonic()
            self._rank.publish(version, weights(), sealed=command.sealed)
        self._follow(command.relays, command.sites)
        if weights is None:
            self._group.follow(self._retarget)  # contacts the master again and asks what it lacks

    def reveal(self, version: int) -> None:
        """Let a version be seen that was published sealed. Any thread may call it; it returns at once."""
        self._reveals.submit(self._reveal, version)

    def forget(self) -> None:
        """Forget the numbers of commands so far, since another controller numbers them anew."""
        self._numbers.clear()

    def close(self) -> None:
        """Leave the relays as they are."""
        self._reveals.shutdown(wait=False, cancel_futures=True)
        self._group.close()
        if self._arrivals is not None:
            self._arrivals.close(_CLOSE_S)
        self._rank.close()

    def _follow(self, relays: Mapping[str, str], sites: Mapping[str, str]) -> None:
        for name in self._relays.keys() - relays.keys():
            self._group.leave(name)
        for name, address in relays.items():
            if self._relays.get(name) != address:
                self._group.join(address, name=name, site=sites.get(name, ""))
        self._relays = dict(relays)

    def _retarget(self, address: str) -> None:
        self._rank.retarget(address)
        for follower in self._followers:
            try:
                follower.follow(address)
            except (MemberDeadError, DeadlineError) as error:  # the executor notices too, and ends all ranks
                _log.info("a rank of the trainer was not told of the relay %s: %s", address, error)

    def _reveal(self, version: int) -> None:
        try:
            self._rank.reveal(version)
        except (
            ParamServerError
        ) as error:  # the publisher tells the next master, or this one when it is told of it again
            _log.info("version %d is not revealed yet: %s", version, error)
            self._group.published(version, error)
        except Exception as error:  # nobody asks for what comes of this call
            self._broke(error)

    def _on_published(self, version: int, error: ParamServerError | None) -> None:
        self._group.published(version, error)  # which tries again if that can help
        if error is None and self._arrivals is not None:
            self._arrivals.expect(version)
        elif error is None:
            self._tell(version)
        elif isinstance(error, HOPELESS):
            self._broke(error)

    def _tell(self, version: int) -> None:
        begun_s = self._begun_s.pop(version, None)  # another relay may be offered the version much later
        if begun_s is not None:
            self.newest_s = time.monotonic() - begun_s
        seq = self._numbers.get(version)
        if seq is not None:
            self._published(version, seq)


# When a version may be pulled: once every site has it, so that no replica stops to wait for the slow link.
#
# Weights move behind training and generation (StreamRL, section 4.1): a replica that were told of a version which is still on
# its way would stand at its relay until it has come. So the controller hears of a version when a relay of each site shows it,
# and replicas go on with the one before until then. A site whose relays are all dead is not waited for, and none for longer
# than `PATIENCE_S`: then its replicas wait, and the others need not.


class SiteArrivals:
    """Reports versions in the order in which the master relay showed them, from a thread of its own.

    Args:
        group: the relays and their sites.
        arrived: called with each version.
        patience_s: how long a version is held back for a site, from when the master relay showed it: those that wait behind
            another are held back no longer for that.
    """

    def __init__(self, group: RelayGroup, arrived: Callable[[int], None], *, patience_s: float = PATIENCE_S) -> None:
        self._group, self._arrived, self._patience_s = group, arrived, patience_s
        self._changed = threading.Condition()
        self._waiting: dict[int, float] = {}  # until when each is held back
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="arrivals at sites", daemon=True)
        self._thread.start()

    def expect(self, version: int) -> None:
        """A version is on the master relay."""
        with self._changed:
            self._waiting.setdefault(version, time.monotonic() + self._patience_s)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Stop. The group must be closed before, which ends a wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                version, until = next(iter(self._waiting.items()))
            there = True
            try:
                self._group.wait_sites(version, max(0.0, until - time.monotonic()))
            except PublishTimeout as error:
                _log.warning("%s; its replicas will wait for it", error)
            except RelayUnreachable as error:  # no relay lives: the controller hears of it, and publishes again
                _log.info("version %d is on no relay any more: %s", version, error)
                there = False
            with self._changed:
                del self._waiting[version]
            if there:
                self._arrived(version)
