"""The program of a worker process: it holds many sessions of one environment, and answers a line of JSON with a line of JSON.

Consumes: requests on stdin. Waits for: nothing but stdin; each call works in a thread of its own. Yields: a reply for each
request on stdout, in the order in which they are done. A ping is answered by the thread that reads, whatever the calls do.

This one file needs the standard library only, so that it also runs under another interpreter, which has the environment's
package and not this one. It ends with its owner, with everything in its process group: a small process beside it sees to that
even while this one stands still. What an environment prints goes to stderr.
"""

import base64
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import math
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LINE_BYTES = 1 << 24
"""The longest request or reply."""
TEXT_CHARACTERS = 1 << 20
"""The longest observation or action."""
DATA_BYTES = 1 << 20
"""The largest snapshot, and the largest metadata as JSON."""
GROUP = "tailrace.environment"

_READ_BYTES = 1 << 16
_REASON_CHARACTERS = 500
_THREADS = 1024
_BEGINS = ("open", "restore")
_KEYS = ("observation", "done", "reward", "metadata", "fresh")


class WrongAnswerError(Exception):
    """An environment answered something that its protocol does not have."""


class Held:
    """A session. Its lock keeps calls apart, also where the owner no longer waits for one.

    Attributes:
        environment: None before it is made.
        over: whether it was closed.
    """

    def __init__(self) -> None:
        self.environment: Any = None
        self.over = False
        self.lock = threading.Lock()


class SessionWorker:
    """Serves requests until stdin closes.

    Args:
        requests: the descriptor that requests come from.
        replies: the descriptor that replies go to.
    """

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies
        self._sessions: dict[int, Held] = {}
        self._make: Callable[[], Any] | None = None
        self._restorable = self._tokenized = False
        self._writing = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="session")

    def serve(self) -> None:
        """Read requests; a call works in another thread."""
        pending = bytearray()
        while part := os.read(self._requests, _READ_BYTES):
            pending += part
            if b"\n" not in part:
                continue
            *lines, pending = pending.split(b"\n")
            for line in lines:
                request = json.loads(line)
                if request["op"] == "ping":
                    self._reply({"id": request["id"]})
                else:
                    if request["op"] in _BEGINS:  # here, where requests are in order: a close right behind it finds it
                        self._sessions[request["session"]] = Held()
                    self._threads.submit(self._answer, request)

    def _answer(self, request: Mapping[str, Any]) -> None:
        try:
            reply = getattr(self, f"_{request['op']}")(request)
            said = json.dumps({**reply, "id": request["id"]}, allow_nan=False)
            if len(said) >= LINE_BYTES:
                raise WrongAnswerError(f"found an answer of {len(said):,} bytes, expected fewer than {LINE_BYTES:,}")
        except WrongAnswerError as error:
            self._fail(request, "nonsense", str(error))
        except BaseException as error:  # a session must not end the others, not even by sys.exit()
            kind = "gone" if getattr(error, "gone", False) else "raised"
            self._fail(request, kind, f"{type(error).__name__}: {error}")
        else:
            self._write(said)

    def _fail(self, request: Mapping[str, Any], kind: str, reason: str) -> None:
        with contextlib.suppress(BaseException):  # the reason why it failed is told, not what its end adds
            self._close(request)
        line = encodable(" ".join(reason.split())[:_REASON_CHARACTERS])
        self._reply({"id": request["id"], "error": line, "kind": kind})

    def _load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Import the environment and make one session of it, which checks its options."""
        if request["path"]:
            sys.path[:] = request["path"]
        factory, options = find(request["environment"]), request["options"]
        self._make = lambda: factory(**options)
        tried = self._make()
        missing = [name for name in ("reset", "step", "close") if not callable(getattr(tried, name, None))]
        if missing:
            raise WrongAnswerError(f"found a {type(tried).__name__} without {missing[0]}(), expected an environment")
        tried.close()
        self._restorable = all(callable(getattr(tried, name, None)) for name in ("snapshot", "restore"))
        self._tokenized = is_tokenized(tried)
        return {
            "replayable": bool(getattr(tried, "replayable", False)),
            "restorable": self._restorable,
            "tokenized": self._tokenized,
            "rows": callable(getattr(tried, "rows", None)),
            "reads_prompts": bool(getattr(tried, "reads_prompts", False)),
        }

    def _rows(self, request: Mapping[str, Any]) -> dict[str, Any]:
        environment = self._made()
        try:
            return {"rows": read_rows(environment.rows(request["start"], request["stop"]))}
        finally:
            environment.close()

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self._called(request) as held:
            held.environment = self._made()
            observation = read_observation(held.environment.reset(request["row"]), self._tokenized)
            return {"observation": observation, "state": self._state(held)}

    def _restore(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self._called(request) as held:
            held.environment = self._made()
            held.environment.restore(base64.b64decode(request["state"]))
            return {}

    def _step(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self._called(request) as held:
            result = read_result(held.environment.step(request["action"]), self._tokenized)
            return {**result, "state": self._state(held)}

    def _close(self, request: Mapping[str, Any]) -> dict[str, Any]:
        held = self._sessions.pop(request.get("session", -1), None)
        if held is not None:
            with held.lock:
                held.over = True
                if held.environment is not None:
                    held.environment.close()
        return {}

    @contextlib.contextmanager
    def _called(self, request: Mapping[str, Any]) -> Iterator[Held]:
        """The session of a call, which has it to itself. LookupError: it was closed before."""
        held = self._sessions[request["session"]]
        with held.lock:
            if held.over:
                raise LookupError("found a session that was closed, expected an open one")
            yield held

    def _made(self) -> Any:
        assert self._make is not None
        return self._make()

    def _state(self, held: Held) -> str | None:
        if not self._restorable:
            return None
        state = held.environment.snapshot()
        if not isinstance(state, bytes):
            raise WrongAnswerError(f"found a snapshot of type {type(state).__name__}, expected bytes")
        if len(state) > DATA_BYTES:
            raise WrongAnswerError(f"found a snapshot of {len(state):,} bytes, expected at most {DATA_BYTES:,}")
        return base64.b64encode(state).decode()

    def _reply(self, reply: Mapping[str, Any]) -> None:
        self._write(json.dumps(reply))

    def _write(self, line: str) -> None:
        view = memoryview(line.encode() + b"\n")
        with self._writing:
            while view:
                view = view[os.write(self._replies, view) :]


def is_tokenized(environment: Any) -> bool:
    """Whether an environment speaks in token ids."""
    return bool(getattr(environment, "tokenized", False))


def read_observation(found: Any, tokenized: bool) -> Any:
    """An observation: text, or a list of token ids of an environment that speaks in them.

    Raises:
        WrongAnswerError: it is something else, or too long.
    """
    if not isinstance(found, (list, tuple) if tokenized else str):
        expected = "token ids" if tokenized else "text"
        raise WrongAnswerError(f"found an observation of type {type(found).__name__}, expected {expected}")
    if tokenized and not all(type(token) is int and token >= 0 for token in found):
        raise WrongAnswerError(f"found the observation {found!r:.80}, expected token ids")
    if len(found) > TEXT_CHARACTERS:
        unit = "tokens" if tokenized else "characters"
        raise WrongAnswerError(f"found an observation of {len(found):,} {unit}, expected at most {TEXT_CHARACTERS:,}")
    return list(found) if tokenized else encodable(str(found))


def encodable(text: str) -> str:
    """The text with a question mark in the place of each half surrogate, which neither tokenizers nor UTF-8 can write."""
    return text.encode("utf-8", "replace").decode()


def read_rows(found: Any) -> list[dict[str, Any]]:
    """Rows of an environment's own.

    Raises:
        WrongAnswerError: they are no list of objects, or have values that are no JSON values.
    """
    rows = found if isinstance(found, list) else [found]
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in rows):
        raise WrongAnswerError(f"found the rows {found!r:.80}, expected a list of objects")
    try:
        json.dumps(rows, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongAnswerError(f"found rows with values that are no JSON values ({error})") from error
    return rows


def read_result(found: Any, tokenized: bool = False) -> dict[str, Any]:
    """A step's answer as JSON values, from an object with the attributes of a `StepResult` or a mapping with its keys.

    Args:
        found: what the environment returned.
        tokenized: see `read_observation`.

    Raises:
        WrongAnswerError: it is neither, or a value is of another type or out of its range.
    """
    if isinstance(found, Mapping):
        given = {key: found[key] for key in _KEYS if key in found}
    else:
        given = {key: getattr(found, key) for key in _KEYS if hasattr(found, key)}
    if "observation" not in given or "done" not in given:
        raise WrongAnswerError(f"found {found!r:.80}, expected an answer with 'observation' and 'done'")
    done, reward, metadata = given["done"], given.get("reward", 0.0), given.get("metadata") or {}
    fresh = given.get("fresh", False)
    if not isinstance(done, bool):
        raise WrongAnswerError(f"found done = {done!r:.80}, expected true or false")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise WrongAnswerError(f"found reward = {reward!r:.80}, expected a finite number")
    if not isinstance(fresh, bool) or (fresh and not tokenized):
        raise WrongAnswerError(
            f"found fresh = {fresh!r:.80}, expected false: only an environment that speaks in token ids begins contexts"
        )
    return {
        "observation": read_observation(given["observation"], tokenized),
        "done": done,
        "reward": float(reward),
        "metadata": _plain(metadata),
        "fresh": fresh,
    }


def _plain(metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, Mapping):
        raise WrongAnswerError(f"found metadata = {metadata!r:.80}, expected an object")
    try:
        text = json.dumps(dict(metadata), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongAnswerError(f"found metadata that are no JSON values ({error})") from error
    if len(text) > DATA_BYTES:
        raise WrongAnswerError(f"found metadata of {len(text):,} bytes, expected at most {DATA_BYTES:,}")
    plain: dict[str, Any] = json.loads(text)
    return plain


def find(environment: str) -> Callable[..., Any]:
    """The environment's class by what names it: ``module:Class``, ``file.py:Class``, or a name that is registered here.

    Raises:
        LookupError: there is none.
        Exception: whatever its module raises when it is imported.
    """
    source, colon, name = environment.rpartition(":")
    if not colon:
        points = list(importlib.metadata.entry_points(group=GROUP, name=environment))
        if not points:
            raise LookupError(f"found no environment {environment!r} registered in {sys.executable}")
        registered: Callable[..., Any] = points[0].load()
        return registered
    if source.endswith(".py"):
        spec = importlib.util.spec_from_file_location(f"tailrace_environment_{Path(source).stem}", source)
        if spec is None or spec.loader is None or not Path(source).is_file():
            raise LookupError(f"found no file {source}")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(source)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise LookupError(f"found no class {name!r} in {source}")
    return found  # type: ignore[no-any-return]  # whatever the module has


def guard() -> None:
    """Fork a process that kills this process group once the owner is gone, also while this process stands still.

    It sees the owner's end as the end of stdin, from which it never reads.
    """
    if os.fork():
        return
    os.closerange(1, 1024)
    owner = select.poll()
    owner.register(0, 0)
    owner.poll()
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serve on stdin and stdout, of which environments see nothing, and leave with everything that sessions started.

    Raises:
        SystemExit: this process leads no group; its end would be that of others.
    """
    if os.getpgrp() != os.getpid():
        sys.exit("found no process group of its own: it is started by tailrace.environment")
    guard()
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    try:
        SessionWorker(requests, replies).serve()
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
