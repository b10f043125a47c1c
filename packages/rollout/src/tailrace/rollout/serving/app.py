"""The three paths of the service: ``POST /v1/generate``, ``POST /v1/update``, ``GET /v1/status``.

A refusal is one line, ``{"error": ..., "type": ...}``, with a status of 4xx; once samples have been sent, it is the last line.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.contracts import TailraceError, extra
from tailrace.rollout.errors import (
    RequestError,
    RequestTooLargeError,
    ServiceDownError,
    UnknownRequestError,
    UpdateFailedError,
    UpdateRefusedError,
    VersionTimeoutError,
)
from tailrace.rollout.service import Sample, Stream, StreamGenerationService
from tailrace.rollout.serving.limits import GenerateBody, RequestLimits, read_generate, read_update, read_version

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


RELAY_TOKEN = "TAILRACE_RELAY_TOKEN"  # noqa: S105 - the name of a variable, the same as for a relay
BODY_S = 60.0
"""Seconds for which a body may bring nothing."""
_RELAY_S = 60.0
_STATUS: dict[type[TailraceError], int] = {
    UnknownRequestError: 404,
    VersionTimeoutError: 408,
    UpdateRefusedError: 409,
    RequestTooLargeError: 413,
    UpdateFailedError: 503,
    ServiceDownError: 503,
}


class TokenError(RequestError):
    """A request over HTTP does not have the service's token."""


def build_app(
    service: StreamGenerationService, token: str, limits: RequestLimits, relays: Collection[str] = ()
) -> Starlette:
    """The ASGI application of a service.

    Args:
        service: what generates; whoever runs the application starts and closes it.
        token: the bearer token that every request must have.
        limits: sizes beyond which a request is refused.
        relays: addresses of the relays from which a client may have weights taken.

    Raises:
        MissingExtraError: the extra ``serve`` is not installed.
    """
    with extra("tailrace-rollout", "serve"):
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, StreamingResponse
        from starlette.routing import Route
    requests = Requests(service, limits)
    secret = f"Bearer {token}".encode()

    def guarded(handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                shown = request.headers.get("authorization", "").encode("latin-1")
                if not hmac.compare_digest(shown, secret):
                    raise TokenError("found no or another token, expected 'Authorization: Bearer TOKEN'")
                return await handle(request)
            except TailraceError as error:
                status = 401 if isinstance(error, TokenError) else _STATUS.get(type(error), 400)
                return JSONResponse(_said(error), status_code=status)

        return answer

    async def generate(request: Request) -> Response:
        id_ = await requests.open(read_generate(await _body(request, limits.body_bytes), limits))
        return StreamingResponse(
            _lines(requests.read(id_)), media_type="application/x-ndjson", headers={"X-Request-Id": id_}
        )

    async def update(request: Request) -> Response:
        if "version" in request.query_params:
            version = read_version(request.query_params["version"])
            await _update_from_body(service, request, version, limits.update_bytes)
        else:
            body = read_update(await _body(request, limits.body_bytes))
            version = body.version
            if body.relay not in relays:
                expected = f"one of {', '.join(relays)}" if relays else "none"
                raise RequestError(
                    f"'relay': found {body.relay[:200]!r}, expected {expected}: the service was started with these"
                )
            await service.update_with(lambda: _stage_from_relay(service, body.relay, version), version)
        return JSONResponse({"version": version})

    async def status(request: Request) -> Response:
        del request
        return JSONResponse(service.status())

    return Starlette(
        routes=[
            Route("/v1/generate", guarded(generate), methods=["POST"]),
            Route("/v1/update", guarded(update), methods=["POST"]),
            Route("/v1/status", guarded(status), methods=["GET"]),
        ]
    )


async def _lines(samples: AsyncGenerator[Sample, None]) -> AsyncIterator[bytes]:
    try:
        async with aclosing(samples):
            async for sample in samples:
                yield _line(_shown(sample))
    except TailraceError as error:
        yield _line(_said(error))


async def _body(request: Request, limit: int) -> bytes:
    return b"".join([chunk async for chunk in _chunks(request, limit)])


async def _chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    told = request.headers.get("content-length", "0")
    size = int(told) if told.isdecimal() else 0
    if size <= limit:
        size = 0
        async for chunk in _received(request):
            size += len(chunk)
            if size > limit:
                break
            yield chunk
        else:
            return
    raise RequestTooLargeError(f"found a body of {size} bytes or more, expected at most {limit}")


async def _received(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes, with a deadline for each part of it."""
    parts = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(BODY_S):
                part = await anext(parts)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise RequestError(f"found no more of the body for {BODY_S:g} s, expected its end") from error
        yield part


async def _update_from_body(service: StreamGenerationService, request: Request, version: int, limit: int) -> None:
    if version <= service.version:  # told before the body is read; told again when its turn comes
        raise UpdateRefusedError(f"found an update to version {version}, expected one above {service.version}")
    number, name = tempfile.mkstemp(dir=service.weights.directory, prefix="body-")
    path = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            async for chunk in _chunks(request, limit):
                file.write(chunk)

        def stage() -> None:
            path.rename(service.weights.incoming(version))
            service.weights.accept(version)

        await service.update_with(stage, version)
    finally:
        path.unlink(missing_ok=True)


def _stage_from_relay(service: StreamGenerationService, relay: str, version: int) -> None:
    token = os.environ.get(RELAY_TOKEN)
    if not token:
        raise RequestError(f"found no {RELAY_TOKEN} in the service's environment, expected the secret of its relays")
    with extra("tailrace-rollout", "serve"):
        from tailrace.paramserver import RelayReader
    with RelayReader(relay, token=token) as reader, reader.lease(version, timeout_s=_RELAY_S) as weights:
        service.weights.stage(weights, version)


def _shown(sample: Sample) -> dict[str, Any]:
    return {
        "prompt": sample.prompt,
        "sample": sample.sample,
        "tokens": sample.tokens,
        "logprobs": sample.logprobs,
        "versions": sample.versions,
        "finish": sample.finish,
    }


def _said(error: TailraceError) -> dict[str, str]:
    text = " ".join(str(error).split()).encode(errors="backslashreplace").decode()  # it may quote what has no encoding
    return {"error": text, "type": type(error).__name__}


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


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

    def read(self, id_: str) -> AsyncGenerator[Sample, None]:
        """The samples of a request, for the reader that has opened or resumed it. After that went it is kept for `linger_s`."""
        return self._read(id_, self._kept[id_], self._kept[id_].stream.read())

    async def _read(self, id_: str, kept: _Kept, samples: AsyncGenerator[Sample, None]) -> AsyncGenerator[Sample, None]:
        kept.readers += 1
        if kept.end is not None:
            kept.end.cancel()
        try:
            async for sample in samples:
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
