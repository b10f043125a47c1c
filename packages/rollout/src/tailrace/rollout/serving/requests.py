"""The requests that the service has: those being read, and those whose reader was cut and may come back."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from tailrace.rollout.errors import RequestError, RequestTooLargeError, UnknownRequestError
from tailrace.rollout.service import Sample, Stream, StreamGenerationService
from tailrace.rollout.serving.limits import GenerateBody, RequestLimits


@dataclass(slots=True)
class _Kept:
    stream: Stream
    readers: int = 0
    end: asyncio.TimerHandle | None = None


class Requests:
    """Opens, resumes and ends requests.

    Args:
        service: what generates.
        limits: how many requests there may be, and how long one waits for its reader.
    """

    def __init__(self, service: StreamGenerationService, limits: RequestLimits) -> None:
        self._service, self._limits = service, limits
        self._kept: dict[str, _Kept] = {}
        self._opening: set[str] = set()

    async def open(self, body: GenerateBody) -> str:
        """Begin a request, or resume the one that it names. Returns its id, for `read`.

        Raises:
            RequestError: a prompt does not fit, or the id is in use.
            UnknownRequestError: the request that it resumes is not there.
            RequestTooLargeError: there are too many requests.
            VersionTimeoutError: the version did not come.
        """
        id_ = body.request or secrets.token_urlsafe(12)
        if body.prompts is None:
            if id_ not in self._kept:
                raise UnknownRequestError(f"found no request {id_!r}, expected one that began here and was not dropped")
            self._kept[id_].stream.resume(body.have)
            return id_
        if id_ in self._kept or id_ in self._opening:
            raise RequestError(f"request {id_!r} is here already; it is resumed by a body without prompts")
        self._make_room()
        self._opening.add(id_)
        try:
            stream = await self._service.open(
                body.prompts,
                body.samples,
                max_tokens=body.max_tokens,
                at_least_version=body.at_least_version,
                version_timeout_s=self._limits.version_wait_s,
                have=body.have,
            )
        finally:
            self._opening.discard(id_)
        self._kept[id_] = _Kept(stream)
        self._watch(id_)
        return id_

    async def read(self, id_: str) -> AsyncGenerator[Sample, None]:
        """The samples of a request. After its reader went it is kept for `linger_s`."""
        kept = self._kept[id_]
        kept.readers += 1
        if kept.end is not None:
            kept.end.cancel()
        try:
            async for sample in kept.stream.read():
                yield sample
        finally:
            kept.readers -= 1
            self._watch(id_)

    def _watch(self, id_: str) -> None:
        kept = self._kept.get(id_)
        if kept is None or kept.readers:
            return
        if kept.end is not None:
            kept.end.cancel()
        kept.end = asyncio.get_running_loop().call_later(self._limits.linger_s, self._drop, id_)

    def _drop(self, id_: str) -> None:
        kept = self._kept.pop(id_)
        if kept.end is not None:
            kept.end.cancel()
        self._service.cancel(kept.stream)

    def _make_room(self) -> None:
        """Drop what was read to its end, oldest first, where the limit asks for it."""
        done: Sequence[str] = [id_ for id_, kept in self._kept.items() if not kept.readers and not kept.stream.left]
        for id_ in done:
            if len(self._kept) + len(self._opening) < self._limits.requests:
                return
            self._drop(id_)
        if len(self._kept) + len(self._opening) >= self._limits.requests:
            raise RequestTooLargeError(f"found {self._limits.requests} requests, which is the most at once")
