"""The environment ``harness``: any program that asks a ``base_url`` for chat completions plays an episode.

    model ──step(token ids)──► session ──message──► endpoint ──► harness: its tools, its loop, its sub-agents
      ◄──observation── tokens of the next request that the record has not ◄──┘

The harness calls the model; here the model's side calls the environment. So each session starts the harness's command (or asks
one that runs), and an endpoint on loopback holds each request until the session's next turn answers it. What a request has in
common with the record is matched message by message and never tokenized again; the chat template makes tokens of what is new.

    goes on from the turn before       ──► what is new behind it
    goes on from an earlier turn       ──► a context of its own: the tokens up to that turn, and what is new   (a fork)
    goes on from none                  ──► a context of its own, all of it new    (a sub-agent, a compacted history)

A harness that dies by a signal is played again from its row with the same answers, if it is `replayable`; otherwise its
trajectory begins anew. One that ends with another status than 0 has failed, with its last words as the reason.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

from tailrace.environment.chat_template import TemplateError, chat_template
from tailrace.environment.completions import ChatAnswer, ChatRequest, endpoint, is_reward
from tailrace.processes import Child
from tailrace.processes.child import SAID_BYTES
from tailrace.processes.guard import guarded

OUTPUT_BYTES = 1 << 26
"""A command's output may become so long, as may each file that it writes."""
_SHELL = 'ulimit -f "$1"; [ "$2" = 0 ] || ulimit -v "$2"; [ "$3" = 0 ] || ulimit -t "$3"; shift 3; exec "$@"'
_SIGNALS = range(129, 193)  # exit statuses that tell a signal; others above it, such as 255, are a program's own
_OWN = "TAILRACE_"
_SHOWN = 200  # characters of what it said last
ROW = "TAILRACE_ROW"
"""The variable with the path of the row, as a JSON file."""


class HarnessGoneError(RuntimeError):
    """The harness was killed. Its session may be played again."""

    gone = True


@dataclass(frozen=True, slots=True)
class _Turn:
    """A conversation behind a turn of the model.

    Args:
        messages: up to the model's own, which is the last.
        tools: those that it was given.
        tokens: what it read and said in this context.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any]
    tokens: Sequence[int]


class Harness:
    """An episode of an agent harness.

    The command gets ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``TAILRACE_ROW``, the path of a JSON file with the row: its
    ``prompt``, ``answer``, ``metadata`` and ``seed``. It tells its reward by ``POST $OPENAI_BASE_URL/reward`` with
    ``{"reward": 1.0}``, of which the last counts; without any, in its last line of output, likewise. All episodes of a row have
    to begin with the same request.

    Args:
        command: the program and its arguments, which runs as you, not in a sandbox.
        url: in its place, a harness that runs, as http://HOST:PORT/PATH: it gets ``{"base_url", "api_key", "row"}`` by POST,
            plays the episode, and answers ``{"reward": 1.0}``.
        tokenizer: a Hugging Face directory with the model's tokenizer and chat template; left out, a run gives its model's.
        template: a Jinja chat template in place of the model's own.
        folder: the directory in which the command runs; empty: the run's.
        variables: further environment variables of the command.
        rewarded: whether the harness tells the reward, and an episode without one has failed; otherwise a verifier judges it.
        replayable: whether the harness does the same again when it is given the same answers.
        think_s: deadline of the harness from an answer to its next request, or its end; below ``environment.call_s``.
        turn_s: how long a request waits for the model.
        episode_s: deadline of an episode.
        contexts: most contexts of an episode: the first, and one for each request that does not go on from the turn before.
        memory_mib: memory of each process of the command, as ``ulimit -v`` has it; 0: no limit.
        cpu_s: CPU seconds of each process of it; 0: no limit.

    Raises:
        ValueError: not one of `command` and `url` is given, a number is too small, or there is no such tokenizer.
        MissingExtraError: the extra ``harness`` is not installed.
    """

    tokenized = True
    reads_prompts = True

    def __init__(
        self,
        command: Sequence[str] = (),
        url: str = "",
        tokenizer: str = "",
        template: str = "",
        folder: str = "",
        variables: Mapping[str, str] | None = None,
        rewarded: bool = True,
        replayable: bool = False,
        think_s: float = 45.0,
        turn_s: float = 3600.0,
        episode_s: float = 7200.0,
        contexts: int = 32,
        memory_mib: int = 0,
        cpu_s: int = 0,
    ) -> None:
        if bool(command) == bool(url):
            raise ValueError(
                "found both of command and url or none, expected one: a harness to start, or one that runs"
            )
        for name, value in (("think_s", think_s), ("turn_s", turn_s), ("episode_s", episode_s)):
            if not 0 < value < math.inf:
                raise ValueError(f"found {name} = {value!r}, expected a finite number above 0")
        if contexts < 1:
            raise ValueError(f"found contexts = {contexts!r}, expected at least 1: the first request begins one")
        if folder and not os.path.isdir(folder):  # noqa: PTH112 - as text, as it was given
            raise ValueError(f"found folder = {folder!r}, expected a directory")
        program = os.path.join(folder, command[0]) if command and "/" in command[0] else "".join(command[:1])  # noqa: PTH118
        if command and shutil.which(program) is None:
            raise ValueError(
                f"found command = {list(command)!r:.200}, expected a program that is here as its first part"
            )
        if tokenizer:
            chat_template(tokenizer, template)
        self.replayable = replayable
        self._command, self._url, self._folder = tuple(command), url, folder
        self._tokenizer, self._template_text = tokenizer, template
        self._variables, self._rewarded = dict(variables or {}), rewarded
        self._think_s, self._turn_s, self._episode_s = think_s, turn_s, episode_s
        self._limits = (OUTPUT_BYTES // 512, memory_mib * 1024, cpu_s)
        self._held = contextlib.ExitStack()
        self._turns: list[_Turn] = []
        self._tokens: list[int] = []
        self._begun, self._most_contexts = 0, contexts
        self._call: ChatRequest | None = None
        self._until_s = 0.0

    def reset(self, row: Mapping[str, Any]) -> list[int]:
        """Begin the episode, up to its first request.

        Returns:
            The token ids of that request's conversation.

        Raises:
            HarnessGoneError: the harness was killed.
            RuntimeError: it ended or failed before it asked, or it did not ask in time.
            ValueError: there is no tokenizer.
        """
        if not self._tokenizer:
            raise ValueError("found no tokenizer, expected the model's directory as the option 'tokenizer'")
        self._template = chat_template(self._tokenizer, self._template_text)
        self._until_s = time.monotonic() + self._episode_s
        house = endpoint()
        self._episode = house.open(self._turn_s)
        self._held.callback(house.close, self._episode)
        self._begin(row)
        if self._next() is None:
            raise RuntimeError("the harness ended before it asked for a turn")
        return self._tokens

    def step(self, action: Sequence[int]) -> dict[str, Any]:
        """Answer the request with a turn, and go on to the next one, or to the end.

        Args:
            action: token ids of the turn, with the one that ended it.

        Raises:
            HarnessGoneError, RuntimeError: as in `reset`; or the episode ended and told no reward.
        """
        assert self._call is not None
        call, read = self._call, len(self._tokens)
        said = self._template.message(action, call.stops, bool(call.tools), len(self._turns) + 1)
        turn = _Turn([*call.messages, said], call.tools, [*self._tokens, *action])
        self._turns.append(turn)
        call.answer(ChatAnswer(said, read, len(action)))
        fresh = self._next()
        if fresh is not None:
            new = self._tokens if fresh else self._tokens[len(turn.tokens) :]
            return {"observation": new, "done": False, "fresh": fresh}
        reward = self._episode.reward
        if reward is None and self._rewarded:
            raise RuntimeError(
                "the harness ended and told no reward, expected one by POST or in its last line, or rewarded = false"
            )
        return {"observation": [], "done": True, "reward": reward or 0.0}

    def close(self) -> None:
        """End the harness, with all that it started."""
        self._held.close()

    # ---- requests -------------------------------------------------------------------------------------------------

    def _next(self) -> bool | None:
        """Take in the harness's next request, with its tokens.

        Returns:
            Whether it begins a context; None once the harness has ended in order.

        Raises:
            RuntimeError: there are too many of them.
        """
        while True:
            found = self._heard()
            if not isinstance(found, ChatRequest):
                self._ended(found)
                return None
            try:
                behind, tokens = self._placed(found)
            except TemplateError as error:
                found.refuse(400, str(error))
                continue
            self._call, self._tokens = found, tokens
            fresh = behind is None or behind is not self._turns[-1]
            self._begun += fresh
            if self._begun > self._most_contexts:
                raise RuntimeError(
                    f"the harness began context {self._begun} of an episode, expected at most {self._most_contexts} (option "
                    "'contexts'): each request that does not go on from the turn before begins one"
                )
            return fresh

    def _placed(self, call: ChatRequest) -> tuple[_Turn | None, list[int]]:
        """The turn that a request goes on from, which has most of its messages, the latest of several; and its tokens."""
        if call.tools and not self._template.takes_tools:
            raise TemplateError("found tools, and the model's chat template has no words for them")
        behind: _Turn | None = None
        for turn in reversed(self._turns):
            longer = behind is None or len(turn.messages) > len(behind.messages)
            if longer and turn.tools == call.tools and _same(turn.messages, call.messages[: len(turn.messages)]):
                behind = turn
        if behind is None:
            return None, self._template.prompt(call.messages, call.tools)
        new = self._template.beyond(call.messages, len(behind.messages) - 1, behind.tokens, call.tools)
        return behind, [*behind.tokens, *new]

    # ---- the harness ----------------------------------------------------------------------------------------------

    def _begin(self, row: Mapping[str, Any]) -> None:
        if self._url:
            sockets: list[socket.socket] = []
            self._held.callback(_hang_up, sockets)
            threading.Thread(target=self._ask, args=(dict(row), sockets), name="harness", daemon=True).start()
            return
        folder = self._held.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-harness-"))
        path = f"{folder}/row.json"
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(dict(row), file)
        said = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - it is closed with the session
        wrong = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - it is closed with the session
        own = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        told = {"OPENAI_BASE_URL": self._episode.base_url, "OPENAI_API_KEY": self._episode.key, ROW: path}
        place = ["--chdir", self._folder] if self._folder else []
        command = ["env", *place, "sh", "-c", _SHELL, "sh", *map(str, self._limits), *self._command]
        child = Child(
            guarded(command), stdout=said, stderr=wrong, group=True, environment={**own, **self._variables, **told}
        )
        self._held.callback(child.kill)

        def wait() -> None:
            status = child.wait(self._episode_s)
            with contextlib.suppress(ValueError, OSError):  # it was closed meanwhile, and nobody listens
                self._episode.heard.put((status, _last_line(said), _last_line(wrong)))

        threading.Thread(target=wait, name="harness", daemon=True).start()

    def _heard(self) -> Any:
        left_s = min(self._think_s, self._until_s - time.monotonic())
        try:
            return self._episode.heard.get(timeout=max(0.0, left_s))
        except queue.Empty:
            late = "its episode did not end" if left_s < self._think_s else "it neither asked nor ended"
            limit_s = self._episode_s if left_s < self._think_s else self._think_s
            raise RuntimeError(f"the harness missed its deadline: {late} within {limit_s:g} s") from None

    def _ended(self, found: Any) -> None:
        """Take in how the harness ended.

        Raises:
            HarnessGoneError: it was killed.
            RuntimeError: it failed.
        """
        if isinstance(found, Exception):
            raise found
        status, said, wrong = found
        if status is None:
            raise RuntimeError(f"the harness did not end within {self._episode_s:g} s")
        if status:
            words = (wrong or said).decode(errors="replace")[:_SHOWN]
            how = f"the harness ended with status {status}" + (f": {words}" if words else "")
            raise HarnessGoneError(how) if status < 0 or status in _SIGNALS else RuntimeError(how)
        if self._episode.reward is None:  # what is printed behind one that was told may be the model's words
            self._episode.reward = _reward_of(said)

    def _ask(self, row: Mapping[str, Any], sockets: list[socket.socket]) -> None:
        """Have a harness that runs play the episode, in a thread; its end, or its failure, is heard like that of a command.

        Args:
            sockets: gets the connection's.
        """
        parts = urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=self._episode_s)
        told = {"base_url": self._episode.base_url, "api_key": self._episode.key, "row": row}
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.connect()
            sockets.append(connection.sock)
            connection.request("POST", path, json.dumps(told), {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = response.read(SAID_BYTES)
        except (OSError, http.client.HTTPException) as error:
            self._episode.heard.put(
                HarnessGoneError(f"the harness at {self._url} went: {type(error).__name__}: {error}")
            )
            return
        finally:
            connection.close()
        if response.status != 200:
            words = " ".join(body.decode(errors="replace").split())[:_SHOWN]
            self._episode.heard.put(RuntimeError(f"the harness at {self._url} answered {response.status}: {words}"))
            return
        self._episode.heard.put((0, body, b""))


def _hang_up(sockets: Sequence[socket.socket]) -> None:
    """End connections whose answer a thread waits for: to close one would wait for the answer, too."""
    for each in sockets:
        with contextlib.suppress(OSError):  # it has ended
            each.shutdown(socket.SHUT_RDWR)


def _same(known: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> bool:
    """Whether messages are those of the record. Spaces around what the model said do not count: harnesses trim them."""
    return len(known) == len(found) and all(
        _plain(one) == _plain(other) for one, other in zip(known, found, strict=True)
    )


def _plain(message: Mapping[str, Any]) -> tuple[Any, ...]:
    content = message.get("content") or ""
    calls = [
        (call.get("id"), call["function"]["name"], _arguments(call["function"].get("arguments")))
        for call in message.get("tool_calls") or ()
    ]
    own = message["role"] == "assistant"
    return (
        message["role"],
        content.strip() if own else content,
        calls,
        message.get("tool_call_id"),
        message.get("name"),
    )


def _arguments(found: Any) -> Any:
    try:
        return json.loads(found)
    except (TypeError, ValueError, RecursionError):
        return found


def _last_line(said: IO[bytes]) -> bytes:
    size = os.fstat(said.fileno()).st_size
    printed = os.pread(said.fileno(), SAID_BYTES, max(0, size - SAID_BYTES)).strip()
    return printed.rpartition(b"\n")[2]


def _reward_of(said: bytes) -> float | None:
    """The reward in a line of JSON; None if it tells none.

    Raises:
        RuntimeError: it tells one that is no finite number.
    """
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or "reward" not in found:
        return None
    reward = found["reward"]
    if not is_reward(reward):
        raise RuntimeError(f"the harness told reward = {reward!r:.40}, expected a finite number")
    return float(reward)
