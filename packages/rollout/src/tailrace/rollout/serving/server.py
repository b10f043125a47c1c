"""Listens, starts the service, says where it is, and serves until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Callable, Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any

from tailrace.contracts import extra, need_extra
from tailrace.rollout.errors import ServeError
from tailrace.rollout.service import StreamGenerationService
from tailrace.rollout.serving.app import build_app
from tailrace.rollout.serving.connections import headers_within
from tailrace.rollout.serving.limits import RequestLimits

HEADERS_S = 10.0
"""Seconds within which the headers of a request must have come."""
_CLOSE_S = 3
_LOOK_S = 0.05


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; port 0 takes a free one. Call it before anything is started.

    Raises:
        MissingExtraError: the extra ``serve`` is not installed.
        ServeError: the address is in use, or not of this machine.
    """
    need_extra("tailrace-rollout", "serve", "starlette", "uvicorn")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServeError(f"cannot listen at {host}:{port}: {reason}; expected a free port of this machine") from error


async def serve(
    service: StreamGenerationService,
    listener: socket.socket,
    ready: Callable[[str, Path], object],
    *,
    limits: RequestLimits = RequestLimits(),  # noqa: B008 - frozen
    relays: Collection[str] = (),
) -> None:
    """Start the service, serve it until SIGINT or SIGTERM, and close it. A signal while engines load ends it too.

    Args:
        service: started here, if it is not yet.
        listener: from `listen`; it is closed.
        ready: is told the URL and the file with the token, when requests are answered.
        limits: sizes beyond which a request is refused.
        relays: addresses, ``host:port``, of the relays from which a client may have weights taken.

    Raises:
        RolloutError: a replica does not start.
    """
    with extra("tailrace-rollout", "serve"):
        import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # uvicorn would raise the signal again at the end, before the service is closed

    token, token_file = secrets.token_urlsafe(32), service.weights.directory / "token"
    app = build_app(service, token, limits, relays)
    server = Server(
        uvicorn.Config(
            app,
            http=headers_within(HEADERS_S),
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_CLOSE_S,
        )
    )
    with listener, _at_signals(server) as stopped:
        try:
            if not await _done_before(stopped, service.start()):
                return
            with os.fdopen(os.open(token_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                file.write(token)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(_LOOK_S)
            host, port = listener.getsockname()[:2]
            ready(f"http://{f'[{host}]' if ':' in host else host}:{port}", token_file)
            await serving
        finally:
            await service.close()


@contextlib.contextmanager
def _at_signals(server: Any) -> Iterator[asyncio.Event]:
    """SIGINT and SIGTERM end the server, and set the event."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        server.should_exit = True
        stopped.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield stopped
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def _done_before(stopped: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do work until it is done or the event is set, which cancels it. Returns whether it was done."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if done := working.done():
            await working
        return done
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
