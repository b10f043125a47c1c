"""The environment ``openenv``: a session of an OpenEnv server, over the server's WebSocket.

Each session is a connection of its own, and ends with it: the server drops its state when the connection closes. So there is no
snapshot, and a session is replayable only where the server's environment is, which `replayable` says.

This file runs in whatever interpreter has the server's packages; it needs ``websockets``, which comes with them.
"""

import contextlib
import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

_LOOK_S = 0.05
_MESSAGE_BYTES = 1 << 24
_THEIRS = ("done", "reward", "metadata")  # fields of every observation, which are answered apart
_FULL = "CAPACITY_REACHED"
_MODELS_FAULT = ("VALIDATION_ERROR", "INVALID_JSON")
_END_S = 2.0
_lock = threading.Lock()
_servers: dict[str, list[tuple[str, "subprocess.Popen[bytes]"]]] = {}


class ServerGoneError(RuntimeError):
    """The server that a session was on has ended. The session may be played again on another."""

    gone = True


class OpenEnv:
    """A session of an OpenEnv server.

    A turn becomes the one text field that the server's actions have; with more fields, or other ones, a turn is the JSON of
    an action. An action that the server does not take is the model's fault and is answered so. What the model reads is the one
    text field of the server's observations, or their JSON.

    Args:
        url: a server that runs, as http://HOST:PORT.
        app: a server to start on this machine, in the workers' interpreter: ``module:app``. A worker process starts one, and
            another whenever all that it has are full (the app says how many sessions it takes, often one). One that ended is
            started anew.
        folder: where the app's module lies; empty: it is installed.
        action: the field of an action that a turn becomes; empty: the only text field there is.
        observation: the field of an observation that the model reads; empty: the only text field there is.
        replayable: whether the same reset and actions are answered alike.
        start_s: deadline for the server to answer.
        message_s: deadline of each of its messages.

    Raises:
        ValueError: not one of `url` and `app` is given, or a field is unknown.
        RuntimeError: the server does not answer, or ended.
        ImportError: ``websockets`` is not installed.
    """

    def __init__(
        self,
        url: str = "",
        app: str = "",
        folder: str = "",
        action: str = "",
        observation: str = "",
        replayable: bool = False,
        start_s: float = 60.0,
        message_s: float = 60.0,
    ) -> None:
        if bool(url) == bool(app):
            raise ValueError("found both of url and app or none, expected one: a server that runs, or one to start")
        try:
            import websockets.sync.client  # noqa: F401 (missing, it is to be said before the first session)
        except ImportError as error:
            raise ImportError(
                "found no websockets, expected it: pip install 'tailrace-environment[openenv]'"
            ) from error

        self.replayable = replayable
        self._url, self._app, self._folder = url.rstrip("/"), app, folder
        self._start_s, self._message_s = start_s, message_s
        schema = get(self._server(0), "/schema", start_s)
        self._action = _field(schema["action"], action, "action")
        self._observation = _field(schema["observation"], observation, "observation")
        self._held = contextlib.ExitStack()
        self._connection: Any = None
        self._at = ""

    def rows(self, start: int, stop: int) -> list[dict[str, Any]]:
        """A row for each number, which is the seed of its episode; they never end."""
        rest = {"prompt": "", "answer": "", "verifier": "environment"}
        return [{**rest, "metadata": {"reset": {"seed": number}}} for number in range(start, stop)]

    def reset(self, row: Mapping[str, Any]) -> str:
        """Connect, and begin an episode with what the row's metadata has as ``reset`` (such as a ``seed``)."""
        metadata = row.get("metadata") or {}
        for place in itertools.count():
            answer = self._begun(self._server(place), metadata.get("reset") or {})
            if not self._app or (answer.get("data") or {}).get("code") != _FULL:
                return self._text(_checked(answer)["observation"])
            self._held.close()
        raise AssertionError("it counts for ever")

    def step(self, action: str) -> dict[str, Any]:
        """The server's answer; a reward of none counts as 0.

        Raises:
            ServerGoneError: the server that was started for it has ended.
        """
        if self._action:
            data: Any = {self._action: action.encode("utf-8", "replace").decode()}  # their wire has no lone surrogates
        else:
            try:
                data = json.loads(action)
            except (ValueError, RecursionError):
                data = None
            if not isinstance(data, dict):
                return {"observation": "expected an action as a JSON object", "done": False}
        answer = self._ask({"type": "step", "data": data})
        said = answer.get("data") or {}
        if answer.get("type") == "error" and said.get("code") in _MODELS_FAULT:
            return {"observation": f"no such action: {said.get('message')}"[:2000], "done": False}
        found = _checked(answer)
        return {
            "observation": self._text(found["observation"]),
            "done": found.get("done", False),
            "reward": float(found.get("reward") or 0.0),
            "metadata": found.get("metadata") or {},
        }

    def close(self) -> None:
        """End the connection, and with it the server's session."""
        self._held.close()

    def _server(self, place: int) -> str:
        return server(self._app, self._folder, place, self._start_s) if self._app else self._url

    def _begun(self, url: str, data: Mapping[str, Any]) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed
        from websockets.sync.client import connect

        self._at, parts = url, urlsplit(url)
        scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
        at = f"{scheme}://{parts.netloc}{parts.path}/ws"
        opened = connect(at, open_timeout=self._message_s, max_size=_MESSAGE_BYTES, proxy=None)
        self._connection = self._held.enter_context(opened)
        with contextlib.suppress(ConnectionClosed):  # a server that is full says so at once, and closes
            self._connection.send(json.dumps({"type": "reset", "data": data}))
        answer: dict[str, Any] = json.loads(self._connection.recv(timeout=self._message_s))
        return answer

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        try:
            self._connection.send(json.dumps(message))
            answer: dict[str, Any] = json.loads(self._connection.recv(timeout=self._message_s))
        except ConnectionClosed as error:
            if self._app and _has_ended(self._app, self._at):
                raise ServerGoneError(f"the OpenEnv server {self._app!r} has ended: {error}") from error
            raise
        return answer

    def _text(self, observation: Mapping[str, Any]) -> str:
        if self._observation:
            return str(observation[self._observation])
        return json.dumps(
            {name: value for name, value in observation.items() if name not in _THEIRS}, ensure_ascii=False
        )


def server(app: str, folder: str, place: int, start_s: float) -> str:
    """The URL of this process's server of an app, by the order in which they were started; one that ended is started anew. It
    ends with this process's group.

    Raises:
        RuntimeError: it ended, or did not answer in time.
    """
    with _lock:
        started = _servers.setdefault(app, [])
        if place < len(started) and started[place][1].poll() is None:
            return started[place][0]
        with socket.socket() as listening:  # bound here, so that no other process can take the port
            listening.bind(("127.0.0.1", 0))
            listening.listen(1024)
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            command = [sys.executable, "-m", "uvicorn", app, "--fd", str(listening.fileno()), "--log-level", "warning"]
            command += ["--app-dir", folder] if folder else []
            process = subprocess.Popen(command, pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL)  # noqa: S603
        _await(url, process, app, start_s)
        started[place : place + 1] = [(url, process)]
        return url


def _has_ended(app: str, url: str) -> bool:
    """Whether the server of an app at a URL has ended. Its connections end a little before it does."""
    process = dict(_servers[app]).get(url)
    try:
        return process is None or process.wait(_END_S) is not None
    except subprocess.TimeoutExpired:
        return False


def _await(url: str, process: "subprocess.Popen[bytes]", app: str, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while process.poll() is None and time.monotonic() < deadline:
        try:
            get(url, "/health", max(_LOOK_S, deadline - time.monotonic()))
        except RuntimeError:
            time.sleep(_LOOK_S)
        else:
            return
    status = process.poll()
    process.kill()
    process.wait()
    how = f"ended with status {status}" if status is not None else f"did not answer within {start_s:g} s"
    raise RuntimeError(f"found the OpenEnv server {app!r}, which {how}, under {os.path.realpath(sys.executable)}")


def get(url: str, path: str, timeout_s: float) -> dict[str, Any]:
    """A JSON object from the server, without any proxy.

    Raises:
        RuntimeError: it does not answer, or with something else.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=timeout_s)
    try:
        connection.request("GET", parts.path + path)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"found {response.status} at {url}{path}, expected the answer of an OpenEnv server")
        found: dict[str, Any] = json.loads(response.read())
        return found
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RuntimeError(f"found no OpenEnv server at {url}: {error}") from error
    finally:
        connection.close()


def _field(schema: Mapping[str, Any], asked: str, what: str) -> str:
    """The field that text goes into or comes from; empty where all of it is JSON."""
    fields = {name: field for name, field in schema.get("properties", {}).items() if name not in _THEIRS}
    if asked and asked not in fields:
        raise ValueError(f"found {what} = {asked!r}, expected one of {', '.join(fields)}")
    if asked:
        return asked
    (only, *others) = fields or ("",)
    return only if not others and only and fields[only].get("type") == "string" else ""


def _checked(answer: Mapping[str, Any]) -> dict[str, Any]:
    said = answer.get("data") or {}
    if answer.get("type") == "error":
        raise RuntimeError(f"the OpenEnv server failed: {said.get('message')} ({said.get('code')})")
    if answer.get("type") != "observation" or not isinstance(said.get("observation"), dict):
        raise RuntimeError(f"found {str(answer)[:80]!r}, expected an observation of an OpenEnv server")
    return dict(said)
