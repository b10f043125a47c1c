"""Connections to a server over HTTP, which end if nothing is asked."""

from __future__ import annotations

import asyncio
from typing import Any


def headers_within(seconds: float) -> type[Any]:
    """A protocol for `uvicorn.Config(http=)` that closes a connection whose headers do not come: uvicorn waits without end.

    It needs uvicorn, which the caller's extra brings.

    Args:
        seconds: from the connection, or the first byte of a further request, to the end of the headers.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type] # one of two, by what is installed
        late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.late = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self.in_time()
            elif self.late is None and self.cycle is not None and self.cycle.response_complete:
                self.late = self.loop.call_later(seconds, self.transport.close)  # the connection's next request

        def connection_lost(self, exc: Exception | None) -> None:
            self.in_time()
            super().connection_lost(exc)

        def in_time(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

    return Protocol
