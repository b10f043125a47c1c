"""One request for samples: what waits, what is generated, and what its reader has not taken yet.

    waiting ──take──► on a replica ──deliver──► unread ──read──► recent (delivered; a reader that was cut may ask again)
       ▲──────put_back──────┘

Invariants:
* Each sample is yielded once. A reader that was cut says what it has (`resume`); it gets all others, once each.
* At most `window` samples are on replicas or unread: a reader that is slow stops generation, not the memory of the service.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable

from tailrace.rollout.errors import ServiceDownError
from tailrace.rollout.service.book import Sample, SampleOrder

Key = tuple[int, int]


class Stream:
    """The samples of one request, as they end. It belongs to one event loop.

    Args:
        orders: what to generate, in the order in which it should start.
        window: most samples on replicas or unread at once; as many that were read are kept for a reader that was cut.
        fresh: makes an order for a sample that is to be generated again.
        changed: called when there is room for more, or a sample less to generate.
    """

    def __init__(
        self,
        orders: Iterable[SampleOrder],
        *,
        window: int,
        fresh: Callable[[SampleOrder], SampleOrder],
        changed: Callable[[], None],
    ) -> None:
        self._orders = {(order.prompt, order.sample): order for order in orders}
        self._waiting = deque(self._orders.values())
        self._window = window
        self._fresh, self._changed = fresh, changed
        self.running: dict[str, SampleOrder] = {}
        self._unread: deque[Sample] = deque()
        self._recent: deque[Sample] = deque(maxlen=window)
        self._left = set(self._orders)  # not yielded yet
        self._news = asyncio.Event()
        self._reader = 0
        self.error: Exception | None = None

    @property
    def left(self) -> int:
        """Samples that the reader has not got yet."""
        return len(self._left)

    @property
    def unread(self) -> int:
        """Complete samples that wait for the reader."""
        return len(self._unread)

    def wants(self) -> bool:
        """Whether a sample waits and there is room for it."""
        room = len(self.running) + len(self._unread) < self._window
        return self.error is None and room and bool(self._waiting)

    def take(self) -> SampleOrder:
        """The next sample, which is on a replica from now on."""
        order = self._waiting.popleft()
        self.running[order.id] = order
        return order

    def put_back(self, ids: Collection[str]) -> None:
        """Samples that left their replica before they were complete: they go first, in the order in which they started."""
        back = [self.running.pop(id_) for id_ in [*self.running] if id_ in ids]
        self._waiting.extendleft(reversed(back))

    def deliver(self, id_: str, sample: Sample) -> None:
        """A sample is complete."""
        self.running.pop(id_)
        if sample.key in self._left:  # otherwise the reader said meanwhile that it has it
            self._unread.append(sample)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """End the stream: its reader gets the samples that are complete, then this error."""
        self.error = self.error or error
        self._waiting.clear()
        self._news.set()

    def resume(self, have: Collection[Key]) -> None:
        """Begin again for a reader that was cut. An earlier reader ends here.

        Args:
            have: prompt and sample of everything that the reader has, from however many connections.
        """
        had, recent = set(have), {sample.key: sample for sample in self._recent}
        unread = [sample for sample in self._unread if sample.key not in had]
        coming = {sample.key for sample in unread}
        coming |= {(order.prompt, order.sample) for order in (*self._waiting, *self.running.values())}
        lost = [key for key in self._orders if key not in had | coming]
        self._waiting = deque(order for order in self._waiting if (order.prompt, order.sample) not in had)
        self._waiting.extend(self._fresh(self._orders[key]) for key in lost if key not in recent)
        self._unread = deque([*(recent[key] for key in lost if key in recent), *unread])
        self._recent.clear()
        self._left = self._orders.keys() - had
        self._reader += 1
        self._news.set()
        self._changed()

    def read(self) -> AsyncGenerator[Sample, None]:
        """The samples that the reader does not have, as they end. Who calls this is the stream's reader from the call on.

        Raises:
            ServiceDownError: the service has closed, or another reader has resumed this stream.
            RolloutError: the request failed.
        """
        return self._read(self._reader)

    async def _read(self, reader: int) -> AsyncGenerator[Sample, None]:
        if reader != self._reader:
            raise ServiceDownError("another reader has resumed this request")
        while self._left:
            while not self._unread:
                if self.error is not None:
                    raise self.error
                self._news.clear()
                await self._news.wait()
                if reader != self._reader:
                    self._news.set()
                    raise ServiceDownError("another reader has resumed this request")
            sample = self._unread.popleft()
            self._recent.append(sample)
            self._left.discard(sample.key)
            self._changed()
            yield sample
            if reader != self._reader:
                raise ServiceDownError("another reader has resumed this request")
