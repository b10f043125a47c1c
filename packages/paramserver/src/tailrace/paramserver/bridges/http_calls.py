"""JSON over HTTP to an inference server: one request at a time, each with a deadline and typed errors."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import urllib.parse
from collections.abc import Mapping
from typing import Any

from tailrace.paramserver.errors import BridgeStateInvalid, EngineRefused, EngineTimeout, EngineUnreachable

_CEILING_BYTES = 64 << 20
_SHOWN = 300  # characters of a server's message


class HttpCalls:
    """Requests to one server. Threads may share it: every request has its own connection.

    Args:
        url: the server's URL, such as http://10.0.0.7:30000.
        api_key: sent as a bearer token.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise BridgeStateInvalid(f"found the URL {url!r}, expected http://host:port or https://host:port")
        self.url = url.rstrip("/")
        self._parts, self._path = parts, parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float, *, absent_is_none: bool = False
    ) -> dict[str, Any] | None:
        """Send a request and return the JSON object of its answer, or None if the server has no such path.

        Args:
            method: GET or POST.
            path: the path on the server.
            body: a JSON object, or nothing.
            timeout_s: deadline in seconds for all of it.
            absent_is_none: the path may be missing (404); otherwise that is an error like others.

        Raises:
            EngineUnreachable: no connection, or it broke.
            EngineTimeout: no complete answer in time.
            EngineRefused: an answer of another status than 200, or not a JSON object, or with `success` false.
        """
        status, data = self.exchange(method, path, body, timeout_s)
        where = f"{method} {self.url}{path}"
        if status == 404 and absent_is_none:
            return None
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if status != 200:
            said = answer.get("message") if isinstance(answer, dict) else None
            hint = "; check the API key" if status in (401, 403) else ""
            raise EngineRefused(f"{where} answered {status}: {_shown(said or data)}{hint}")
        if not isinstance(answer, dict):
            raise EngineRefused(f"{where} answered {_shown(data)}, expected a JSON object")
        if answer.get("success") is False:
            raise EngineRefused(f"{where} failed: {_shown(answer.get('message'))}")
        return answer

    def exchange(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> tuple[int, bytes]:
        """Send a request and return the status and the bytes of its answer, whatever they are.

        Raises:
            EngineUnreachable, EngineTimeout: see `call`.
            EngineRefused: the answer is too long.
        """
        where = f"{method} {self.url}{path}"
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        expired = threading.Event()
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=max(timeout_s, 0.001))
        sockets: list[socket.socket] = []

        def expire() -> None:  # a server that sends a byte now and then would outlast the socket's own timeout
            expired.set()
            for each in sockets:
                with contextlib.suppress(OSError):  # closed already
                    each.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(max(timeout_s, 0.001), expire)
        timer.daemon = True
        timer.start()
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.connect()
            sockets.append(connection.sock)  # the connection forgets it once the answer has begun
            if expired.is_set():
                raise TimeoutError
            connection.request(method, self._path + path, payload, self._headers)
            answer = connection.getresponse()
            data = answer.read(_CEILING_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            if expired.is_set() or isinstance(error, TimeoutError):
                raise EngineTimeout(f"{where} did not answer in {timeout_s:.3g} s") from error
            raise EngineUnreachable(f"{where}: {type(error).__name__}: {error}; does the server run?") from error
        finally:
            timer.cancel()
            connection.close()
        if expired.is_set():  # what was read may have been cut off
            raise EngineTimeout(f"{where} did not answer in {timeout_s:.3g} s")
        if len(data) > _CEILING_BYTES:
            raise EngineRefused(f"{where} answered more than {_CEILING_BYTES} bytes")
        return answer.status, data


def _shown(message: object) -> str:
    text = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
