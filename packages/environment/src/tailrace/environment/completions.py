"""An endpoint on loopback that speaks OpenAI's chat completions, for harnesses that take a ``base_url``.

    harness ──POST /EPISODE/v1/chat/completions──► ChatRequest ──► the episode's session ──► the model's turn
       ◄──── a message, or server-sent events ─────────────────── answer ◄────────────────┘
    harness ──POST /EPISODE/v1/reward──► the episode's reward

Consumes: HTTP requests, each in a thread. Waits for: a request's bytes, for `READ_S` in all; the model's turn, for as long
as the episode allows. Unblocked by: `ChatRequest.answer`, `ChatRequest.refuse`, `Episode.close`.

Each episode has a key of its own, which is compared in constant time before a byte of a body is read. Whatever is wrong is
answered as OpenAI answers it: ``{"error": {"message", "type", "param", "code"}}``.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeGuard

BODY_BYTES = 1 << 24
"""The longest body of a request."""
READ_S = 30.0
"""Deadline of a whole request, seconds; a connection without one is closed."""
WRITE_S = 30.0
"""Deadline of sending an answer, seconds."""
MOST_CONNECTIONS, MOST_UNKNOWN = 1024, 256
"""Most connections at once, and most that have shown no key yet. One more of these ends the oldest of them."""
_SKIPPED_BYTES = 1 << 16  # of the body of a request that is refused: what closes with more unread may lose its answer
_MODELS = {"object": "list", "data": [{"id": "policy", "object": "model", "created": 0, "owned_by": "tailrace"}]}


class RefusedError(Exception):
    """A request cannot be answered.

    Args:
        status: of the HTTP answer.
        message: why, in one line.
        code: OpenAI's word for it, if it has one.
    """

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """What the model said to a request.

    Args:
        message: the message of the assistant.
        prompt_tokens, completion_tokens: counts of the tokens that it read and generated.
    """

    message: Mapping[str, Any]
    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class ChatRequest:
    """A request for a turn of the model.

    Args:
        messages: the conversation, as the harness sent it, with the parts of a content put together.
        tools: the tools, as sent.
        stops: texts at which the message ends.
        body: the request's body in a canonical form: an equal one that comes while nobody has read the answer is a client's
            second try.
        readers: clients that read the answer, or are about to.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any]
    stops: Sequence[str]
    body: str
    readers: int = 0
    _answer: Future[ChatAnswer] = field(default_factory=Future)

    def answer(self, said: ChatAnswer) -> None:
        """Answer it. One that was refused meanwhile stays so."""
        if not self._answer.done():
            self._answer.set_result(said)

    def refuse(self, status: int, message: str) -> None:
        """Answer that it cannot be."""
        if not self._answer.done():
            self._answer.set_exception(RefusedError(status, message))

    def wait(self, timeout_s: float) -> ChatAnswer:
        """The answer.

        Raises:
            RefusedError: there is none, or not in time.
        """
        try:
            return self._answer.result(timeout_s)
        except TimeoutError:
            raise RefusedError(504, f"found no answer of the model within {timeout_s:g} s") from None


class Episode:
    """One episode of a harness at the endpoint.

    Args:
        base_url: where its harness asks.
        key: what its harness shows.
        turn_s: how long a request waits for the model.
    """

    def __init__(self, name: str, base_url: str, turn_s: float) -> None:
        self.name, self.base_url, self.key = name, base_url, secrets.token_urlsafe(24)
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Calls as they come, and whatever else the session puts here."""
        self.reward: float | None = None
        """The reward that the harness has told last; None if it told none."""
        self._turn_s, self._lock, self._open = turn_s, threading.Lock(), True
        self._calls: list[ChatRequest] = []

    def ask(self, call: ChatRequest) -> tuple[ChatRequest, ChatAnswer]:
        """Have a call answered, or find the answer to an equal one that nobody has read.

        Raises:
            RefusedError: it cannot be answered.
        """
        with self._lock:
            if not self._open:
                raise RefusedError(410, "the episode is over")
            same = next((each for each in self._calls if each.body == call.body and not each.readers), None)
            if same is None:
                self._calls = [each for each in self._calls if not each.readers]
                self._calls.append(call)
                self.heard.put(call)
        asked = same or call
        return asked, asked.wait(self._turn_s)

    @contextlib.contextmanager
    def read(self, call: ChatRequest) -> Iterator[None]:
        """A client is sent the answer in this context, unless it raises OSError."""
        with self._lock:  # before a byte of it is sent: who has read it may ask for the same again
            call.readers += 1
        try:
            yield
        except OSError:
            with self._lock:
                call.readers -= 1
            raise

    def close(self) -> None:
        """Refuse what is not answered, and all that comes."""
        with self._lock:
            self._open = False
            for call in self._calls:
                call.refuse(410, "the episode is over")


class Endpoint:
    """The server of one process. It ends with the process."""

    def __init__(self) -> None:
        self.episodes: dict[str, Episode] = {}
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, name="completions", daemon=True).start()

    def open(self, turn_s: float) -> Episode:
        """Begin an episode, with a key of its own."""
        name = secrets.token_hex(8)
        episode = Episode(name, f"http://127.0.0.1:{self._server.server_address[1]}/{name}/v1", turn_s)
        self.episodes[name] = episode
        return episode

    def close(self, episode: Episode) -> None:
        """End an episode. One that has ended is no error."""
        self.episodes.pop(episode.name, None)
        episode.close()


@cache
def endpoint() -> Endpoint:
    """This process's endpoint."""
    return Endpoint()


class _Server(ThreadingHTTPServer):
    """One thread for each connection. Who has no key cannot keep out those who have."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, owner: Endpoint) -> None:
        self.owner = owner
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._unknown: dict[Any, None] = {}  # oldest first
        self._counting = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._counting:
            if len(self._unknown) >= MOST_UNKNOWN:
                oldest = next(iter(self._unknown))
                del self._unknown[oldest]
                with contextlib.suppress(OSError):  # it has gone
                    oldest.shutdown(socket.SHUT_RDWR)
            self._unknown[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread starts
            self._left(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._left(request)

    def _left(self, request: Any) -> None:
        self.know(request)
        self._room.release()

    def know(self, request: Any) -> None:
        """Note that a connection has shown its key, or has ended."""
        with self._counting:
            self._unknown.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went is no news."""


class _Until(io.RawIOBase):
    """What a socket receives, until a deadline that all reads together have."""

    def __init__(self, source: socket.socket) -> None:
        self._source, self.deadline = source, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._source.settimeout(left)
        return self._source.recv_into(into)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "tailrace", ""

    def setup(self) -> None:
        super().setup()
        self._until = _Until(self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._until)

    def handle_one_request(self) -> None:
        self._until.deadline = time.monotonic() + READ_S
        super().handle_one_request()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base class names it so
        """Say nothing: a request holds a key."""

    def do_GET(self) -> None:
        self._answered()

    def do_POST(self) -> None:
        self._answered()

    def _answered(self) -> None:
        try:
            episode, path = self._admitted()
            if (self.command, path) == ("GET", "models"):
                self._send(200, _MODELS)
            elif (self.command, path) == ("POST", "reward"):
                episode.reward = _reward(self._body())
                self._send(200, {"reward": episode.reward})
            elif (self.command, path) == ("POST", "chat/completions"):
                body = self._body()
                call, answer = episode.ask(read_request(body))
                with episode.read(call):
                    self._complete(body, answer, episode)
            else:
                raise RefusedError(
                    404, f"found {self.command} {path[:80]!r}, expected POST chat/completions or reward, or GET models"
                )
        except RefusedError as error:
            self._skip()
            kind = "invalid_request_error" if error.status < 500 else "server_error"
            said = {"message": str(error), "type": kind, "param": None, "code": error.code}
            self._send(error.status, {"error": said})

    def _admitted(self) -> tuple[Episode, str]:
        """The episode of a request that shows its key, and the path below its ``/v1/``."""
        self._length: str | None = self.headers.get("Content-Length", "0")
        _, _, below = self.path.partition("/")
        name, _, rest = below.partition("/v1/")
        episode = self.server.owner.episodes.get(name)
        shown = self.headers.get("Authorization", "").encode("latin-1", "replace")
        expected = f"Bearer {secrets.token_urlsafe(24) if episode is None else episode.key}".encode()
        if not hmac.compare_digest(shown, expected) or episode is None:
            raise RefusedError(
                401, "found no key of this episode, expected 'Authorization: Bearer KEY'", "invalid_api_key"
            )
        self.server.know(self.connection)
        return episode, rest.partition("?")[0]

    def _body(self) -> dict[str, Any]:
        size = self._size()
        if size is None:
            raise RefusedError(411, "found a body without its length, expected Content-Length")
        if size > BODY_BYTES:
            raise RefusedError(413, f"found a body of {size} bytes, expected at most {BODY_BYTES}")
        said, self._length = self.rfile.read(size), "0"
        if len(said) < size:
            self.close_connection = True
            raise RefusedError(400, "found less of the body than its length")
        try:
            body = json.loads(said)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"found a body that is no JSON ({type(error).__name__})") from None
        if not isinstance(body, dict):
            raise RefusedError(400, f"found {type(body).__name__} as body, expected an object")
        return body

    def _size(self) -> int | None:
        """The bytes of the body that are not read yet; None if the request does not say."""
        told = self._length
        if "Transfer-Encoding" in self.headers or told is None or not told.isascii() or not told.isdecimal():
            return None
        return int(told[:20])

    def _skip(self) -> None:
        """Read over the rest of a small body, and go on with the connection; or close it behind the answer."""
        size = self._size()
        if size is None or size > _SKIPPED_BYTES:
            self.close_connection = True
        else:
            self.rfile.read(size)

    def _complete(self, body: Mapping[str, Any], answer: ChatAnswer, episode: Episode) -> None:
        about = {
            "id": f"chatcmpl-{episode.name}",
            "created": int(time.time()),
            "model": body["model"] if isinstance(body.get("model"), str) else "policy",
        }
        finish = "tool_calls" if answer.message.get("tool_calls") else "stop"
        counts = (answer.prompt_tokens, answer.completion_tokens)
        usage = {"prompt_tokens": counts[0], "completion_tokens": counts[1], "total_tokens": sum(counts)}
        if not body.get("stream"):
            choice = {"index": 0, "message": dict(answer.message), "finish_reason": finish, "logprobs": None}
            self._send(200, {**about, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        events = b"".join(_events(about, answer.message, finish, usage if with_usage else None))
        self._send_bytes(200, events, "text/event-stream")

    def _send(self, status: int, content: Mapping[str, Any]) -> None:
        self._send_bytes(status, json.dumps(content).encode(), "application/json")

    def _send_bytes(self, status: int, content: bytes, kind: str) -> None:
        self.connection.settimeout(WRITE_S)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)


def _events(
    about: Mapping[str, Any], message: Mapping[str, Any], finish: str, usage: Mapping[str, int] | None
) -> Iterator[bytes]:
    """A message as server-sent events: its role, its content, its tool calls, its end."""
    calls = [{**call, "index": place} for place, call in enumerate(message.get("tool_calls") or ())]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": message["content"]}] if message.get("content") else []
    deltas += [{"tool_calls": calls}] if calls else []
    chunk = {**about, "object": "chat.completion.chunk"}
    choices: list[list[dict[str, Any]]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": finish}])
    for each in choices:
        yield b"data: " + json.dumps({**chunk, "choices": each}).encode() + b"\n\n"
    if usage is not None:
        yield b"data: " + json.dumps({**chunk, "choices": [], "usage": dict(usage)}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def read_request(body: Mapping[str, Any]) -> ChatRequest:
    """A request for a turn.

    How a turn is drawn is the run's matter: ``temperature``, ``top_p``, ``max_tokens``, ``seed`` and their like are read over.

    Raises:
        RefusedError: it asks for what there is not, or is no request.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "found no 'messages', expected a list of them")
    if body.get("n") not in (None, 1):
        raise RefusedError(400, f"found n = {body['n']!r:.40}, expected 1: ask again for another answer")
    if body.get("logprobs"):
        raise RefusedError(400, "found logprobs, expected none: the run keeps them with the tokens")
    tools, stop = body.get("tools") or [], body.get("stop") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RefusedError(400, "found 'tools' that are no list of objects")
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise RefusedError(400, "found 'stop' that is no text and no list of texts")
    if not isinstance(body.get("stream_options") or {}, dict):
        raise RefusedError(
            400, f"found 'stream_options' of type {type(body['stream_options']).__name__}, expected an object"
        )
    if body.get("tool_choice") == "none":
        tools = []
    read = [_message(place, message) for place, message in enumerate(messages)]
    canonical = json.dumps(body, sort_keys=True)
    return ChatRequest(read, tools, stops, canonical)


def _message(place: int, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict) or not isinstance(found.get("role"), str):
        raise RefusedError(400, f"found message {place} without a role")
    content = found.get("content")
    if isinstance(content, list):
        texts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if not all(isinstance(text, str) for text in texts):
            raise RefusedError(400, f"found message {place} with a part that is no text, expected text alone")
        content = "".join(map(str, texts))
    if content is not None and not isinstance(content, str):
        raise RefusedError(400, f"found message {place} with a content of type {type(content).__name__}, expected text")
    calls = found.get("tool_calls") or []
    if not isinstance(calls, list) or not all(
        isinstance(call, dict)
        and isinstance(call.get("function"), dict)
        and isinstance(call["function"].get("name"), str)
        for call in calls
    ):
        raise RefusedError(400, f"found message {place} with 'tool_calls' that are none")
    message = {**found, "content": content}
    return message if calls else {key: value for key, value in message.items() if key != "tool_calls"}


def is_reward(found: Any) -> TypeGuard[int | float]:
    """Whether a reward is a number, and finite as a float."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return False
    return abs(found) <= sys.float_info.max


def _reward(body: Mapping[str, Any]) -> float:
    reward = body.get("reward")
    if not is_reward(reward):
        raise RefusedError(400, f"found reward = {reward!r:.40}, expected a finite number")
    return float(reward)
