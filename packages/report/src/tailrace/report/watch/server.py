"""The page over HTTP: one HTML file, one script, one style, and three paths that answer with JSON. All only read.

Whoever can reach the port sees prompts and responses. So it listens on loopback unless another host is asked for, and then
every request needs a token; `tailrace watch` asks for one on loopback too, which other users of the machine reach. A page of
another site that a browser shows cannot ask: the headers ``Host``, ``Origin`` and ``Sec-Fetch-Site`` must be this server's own,
which a name that was bound to 127.0.0.1 afterwards (DNS rebinding) is not.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import ipaddress
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from tailrace.contracts import TailraceError, extra, need_extra, shown
from tailrace.report.errors import ReportError
from tailrace.report.explain import explain
from tailrace.report.samples import text_of
from tailrace.report.watch.following import FollowedRun
from tailrace.report.watch.frame import Cursor, CursorError, Frames
from tailrace.rollout.serving.connections import headers_within

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

COOKIE = "tailrace-watch"
FIRST_S, BUDGET_S = 0.25, 1.0
"""Seconds for which a request reads on in the log: a page that opens, and one that is open."""
EVERY_S, RARELY_S, SHARE = 2.0, 5.0, 0.01
"""Seconds after which a page asks again: while a run lives and afterwards. It waits longer where a frame would take more than
this share of a core."""
_EVERY_S = {"live": EVERY_S, "silent": EVERY_S, "replay": 1.0}
HEADERS_S = 10.0
"""Seconds for which a connection may ask nothing: each has one of `MOST_CONNECTIONS` places."""
MOST_CONNECTIONS = 64
HTTP_PORT = 80
"""The port that a browser leaves out of the header ``Host``."""
END_S = 0.5
"""Seconds after which it is seen at the latest that the page is to end."""
GARBAGE = 10_000
"""New objects after which circles are looked for among them."""
_MOST_TEXT = 200
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Scope = MutableMapping[str, Any]


class WatchError(ReportError):
    """The page cannot be served as it was asked for."""


def need_watch() -> None:
    """Check that pages can be served here.

    Raises:
        MissingExtraError: the extra ``watch`` is not installed.
    """
    need_extra("tailrace-report", "watch", "starlette", "uvicorn")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; port 0 takes a free one.

    Raises:
        WatchError: the address is in use, or not of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WatchError(f"cannot listen at {host}:{port}: {reason}; expected a free port of this machine") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(24)


class Guard:
    """Answers requests that are not this page's own, and puts headers on all answers. An ASGI middleware.

    Args:
        app: what is guarded.
        hosts: values of the header ``Host`` that are allowed; empty: any, which only a token makes safe.
        token: what each request must bring, in a cookie or once as ``?token=``; empty: nothing.
    """

    def __init__(self, app: Any, *, hosts: frozenset[str], token: str = "") -> None:
        self._app, self._hosts, self._token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refusal(scope, headers)
        if refused is not None:
            await self._answer(send, *refused)
            return
        name = f"{COOKIE}-{(scope.get('server') or ('', 0))[1]}"  # cookies are of a host, whatever its port
        if self._token and not self._has_cookie(headers, name):
            asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if not hmac.compare_digest(asked.encode(), self._token.encode()):
                await self._answer(send, 401, "found no or another token; open the address that tailrace watch printed")
                return
            cookie = f"{name}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            await self._answer(send, 303, "", {"Location": scope["path"], "Set-Cookie": cookie})
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "found a request that would change something, expected GET"
        if self._hosts and host.lower() not in self._hosts:
            return 421, "found another name in the header Host, expected the address that tailrace watch printed"
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            return 403, "found a request of another site (Origin), expected this page's own"
        # Opening the page's address from elsewhere is a person's doing; what it loads must be its own.
        site, page = headers.get("sec-fetch-site", "none"), scope["path"] == "/"
        if site not in ("none", "same-origin") and not (page and headers.get("sec-fetch-mode") == "navigate"):
            return 403, "found a request of another site (Sec-Fetch-Site), expected this page's own"
        return None

    def _has_cookie(self, headers: Mapping[str, str], wanted: str) -> bool:
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return any(
            name == wanted and hmac.compare_digest(value.encode(), self._token.encode()) for name, _, value in pairs
        )

    async def _answer(self, send: Any, status: int, text: str, more: Mapping[str, str] | None = None) -> None:
        body = f"tailrace watch: {text}\n".encode() if text else b""
        headers = {
            **_HEADERS,
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": str(len(body)),
            **(more or {}),
        }
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})


def build_app(followed: FollowedRun) -> Starlette:
    """The ASGI application, without its guard.

    Raises:
        MissingExtraError: the extra ``watch`` is not installed.
    """
    with extra("tailrace-report", "watch"):
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    frames = Frames(followed)

    def page(name: str, kind: str, *parts: str) -> Route:
        content = "".join(_file(part) for part in parts)
        return Route(name, lambda _: Response(content, media_type=kind), methods=["GET"])

    def answered(answer: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            try:
                return JSONResponse(answer(request))
            except TailraceError as error:
                return JSONResponse({"error": shown(str(error))}, status_code=400)

        return endpoint

    def frame(request: Request) -> dict[str, Any]:
        names = [each.name for each in fields(Cursor)]
        cursor = Cursor(*(_number(request, name, -1 if name == "instants" else 0) for name in names))
        with followed.lock:
            followed.advance(BUDGET_S if cursor.generation == followed.generation else FIRST_S)
            began_s = time.thread_time()
            found = frames.frame(cursor)
            took_s = time.thread_time() - began_s
        return found | {"again_s": again_s(found, took_s)}

    def trajectories(request: Request) -> dict[str, Any]:
        like = request.query_params.get("like", "")[:_MOST_TEXT]
        with followed.lock:
            return frames.trajectories(request.query_params.get("fate", ""), like, _number(request, "offset", 0))

    def trajectory(request: Request) -> dict[str, Any]:
        name = request.query_params.get("name", "")[:_MOST_TEXT]
        with followed.lock:
            entry = frames.known(name)
        return {"entry": entry, **told(followed, name)}

    return Starlette(
        routes=[
            page("/", "text/html", "page.html"),
            page("/watch.js", "text/javascript", "watch.js"),
            page("/watch.css", "text/css", "watch.css"),
            Route("/favicon.ico", lambda _: Response(status_code=204), methods=["GET"]),
            Route("/api/frame", answered(frame), methods=["GET"]),
            Route("/api/trajectories", answered(trajectories), methods=["GET"]),
            Route("/api/trajectory", answered(trajectory), methods=["GET"]),
        ]
    )


def again_s(found: Mapping[str, Any], took_s: float) -> float:
    """Seconds after which a page asks again.

    Args:
        found: the frame that it is sent.
        took_s: processor seconds that it took.
    """
    if found["reading"] is not None:
        return 0.0
    every_s = _EVERY_S.get(found["life"]["state"], RARELY_S)
    return max(every_s, took_s / SHARE)


def told(followed: FollowedRun, name: str) -> dict[str, Any]:
    """A trajectory's story, and its prompt and response as far as they are kept.

    Raises:
        TailraceError: the log has no such trajectory.
    """
    directory = followed.directory
    story = [[line.at_s, line.version, line.text] for line in explain(directory, name)]
    try:
        text, why = text_of(directory, name), ""
    except (TailraceError, OSError) as error:
        text, why = None, shown(str(error))
    if text is None:
        simulated = directory.simulated is not None
        missing = "A simulated run has no text." if simulated else "Its tokens are kept no more: it was dropped."
        return {"story": story, "text": None, "why": why or missing}
    return {
        "story": story,
        "why": "",
        "text": {
            "prompt": text.prompt,
            "response": [[part, observed] for part, observed in text.response],
            "turns": text.turns,
            "tokens": text.tokens,
            "versions": text.versions,
            "finish": text.finish,
        },
    }


def serve(followed: FollowedRun, listener: socket.socket, *, host: str, token: str = "") -> None:
    """Serve the page until SIGINT or SIGTERM. What it does has less of the processor than the run where both want it.

    Args:
        listener: from `listen`; it is closed.
        host: as it was asked for.
        token: that requests must bring; a host other than loopback needs one.

    Raises:
        WatchError: the host is not loopback, and there is no token.
    """
    if not is_loopback(host) and not token:
        raise WatchError(f"found no token for the host {host}, expected one: others than this machine reach it")
    with extra("tailrace-report", "watch"):
        import uvicorn

    class Server(uvicorn.Server):
        """Looks less often than ten times a second, as its base does, whether it is to end: that took 0.13 % of a core."""

        async def main_loop(self) -> None:
            while not await self.on_tick(0):
                await asyncio.sleep(END_S)

    guarded = Guard(build_app(followed), hosts=hosts_of(host, listener.getsockname()[1]), token=token)
    os.nice(10)
    gc.collect()
    gc.freeze()  # what was imported lives on: looking through it again and again took a seventh of all
    gc.set_threshold(GARBAGE)
    config = uvicorn.Config(
        guarded,
        http=headers_within(HEADERS_S),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
        limit_concurrency=MOST_CONNECTIONS,
    )
    Server(config).run(sockets=[listener])


def hosts_of(host: str, port: int) -> frozenset[str]:
    """Values of the header ``Host`` that a server at an address is asked with; empty where it listens at all addresses."""
    try:
        if ipaddress.ip_address(host).is_unspecified:
            return frozenset()
    except ValueError:
        pass
    names = {host, "localhost", "127.0.0.1", "::1"} if is_loopback(host) else {host}
    bare = {f"[{name}]" if ":" in name else name for name in (each.lower() for each in names)}
    return frozenset({f"{name}:{port}" for name in bare} | (bare if port == HTTP_PORT else set()))


def url_of(host: str, port: int, token: str = "") -> str:
    """The address that a person opens."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/{f'?token={token}' if token else ''}"


def _number(request: Request, name: str, otherwise: int) -> int:
    value = request.query_params.get(name)
    if value is None:
        return otherwise
    if not value.removeprefix("-").isdecimal() or len(value) > 15:
        raise CursorError(f"{name}: found {value[:40]!r}, expected a whole number")
    return int(value)


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
