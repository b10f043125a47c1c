"""The environment ``verifiers``: a rollout of verifiers.v1, whose harness asks for the model's tokens at an endpoint of ours.

    model ──step(token ids)──► session ──token ids──► endpoint ──► verifiers' train client ──► its harness, tools, user, scoring
      ◄──observation── new token ids of the next prompt ◄────────────┘

There the environment calls the model; here the model's side calls the environment. So each session plays a rollout in an event
loop of its worker, and the endpoint on loopback holds each request for tokens until the session's next turn answers it.

It renders prompts itself, with the model's chat template. So a session speaks in token ids and nobody tokenizes anything again:
what the model read and said is, token by token, what verifiers' own trace has. A prompt that does not go on from the turn
before (another agent's, a compacted history) begins a context; requests at the same time are answered one after another.

This file runs in the interpreter that has verifiers (with its renderers and a tokenizer library), and needs nothing else.
"""

import asyncio
import contextlib
import itertools
import json
import os
import queue
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

_BRANCH_TOKENS = 1 << 16
"""Most tokens of all branches in the metadata of an answer, which a worker sends in a MiB."""

_lock = threading.Lock()
_houses: dict[str, "House"] = {}


class Talk:
    """What a session and its rollout say to each other."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.traces: list[Any] = []
        self.answers: list[Future[list[int]]] = []
        self.rollout: Future[None] | None = None


class House:
    """One environment of verifiers in this process: an event loop, its serving resources, and the endpoint for tokens."""

    def __init__(self, config: Mapping[str, Any], tokenizer: str, renderer: Mapping[str, Any], start_s: float) -> None:
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # isort: skip

        self._environment = load_environment(resolve_env_config(dict(config)))
        self._path, self._renderer = tokenizer, dict(renderer)
        self._tasks: list[Any] = []
        self._stream: Iterator[Any] = iter(self._environment.taskset.load())
        self._drawing = threading.Lock()
        self.talks: dict[str, Talk] = {}
        self._playing: set[Talk] = set()
        self._ended = ""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="verifiers", daemon=True).start()
        ready: Future[None] = Future()
        asyncio.run_coroutine_threadsafe(self._serve(ready), self._loop)
        ready.result(start_s)

    def tasks(self, stop: int) -> list[Any]:
        """The tasks of the taskset in its order, up to before a number at least; fewer if there are no more."""
        with self._drawing:
            self._tasks += itertools.islice(self._stream, max(0, stop - len(self._tasks)))
            return self._tasks

    def play(self, index: int) -> Talk:
        """Begin a rollout of a task, by its place in the taskset.

        Raises:
            ValueError: the taskset has fewer.
            RuntimeError: verifiers has ended.
        """
        tasks = self.tasks(index + 1)
        if not 0 <= index < len(tasks):
            raise ValueError(f"found task {index}, expected one of the {len(tasks)} of the taskset, from 0")
        talk, task = Talk(), tasks[index]
        self._playing.add(talk)
        if self._ended:
            raise RuntimeError(f"verifiers ended: {self._ended}")
        talk.rollout = asyncio.run_coroutine_threadsafe(self._play(task, talk), self._loop)
        return talk

    def _run(self) -> None:
        """Run the loop. What ends it (verifiers exits where it misses a login) ends all rollouts with its reason."""
        try:
            self._loop.run_forever()
        except BaseException as error:
            self._ended = f"{type(error).__name__}: {error}"
            for talk in set(self._playing):
                talk.heard.put(("failed", self._ended))
            raise

    async def _serve(self, ready: "Future[None]") -> None:
        from aiohttp import web
        from verifiers.v1 import ModelContext, SamplingConfig, TrainClientConfig

        try:
            app = web.Application(client_max_size=1 << 26)
            app.router.add_post("/inference/v1/generate", self._generate)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            settings: dict[str, Any] = {"renderer": self._renderer} if self._renderer else {}
            client = TrainClientConfig(
                base_url=f"http://127.0.0.1:{port}/v1", api_key_var="NO_KEY", renderer_model_name=self._path, **settings
            )
            self._context = ModelContext(model=self._path, client=client, sampling=SamplingConfig())
            serving = self._environment.serving()
            await serving.__aenter__()  # it ends with this process
        except BaseException as error:
            ready.set_exception(error)
            raise
        ready.set_result(None)

    async def _play(self, task: Any, talk: Talk) -> None:
        def minted(trace: Any) -> None:
            talk.traces.append(trace)
            self.talks[trace.id] = talk

        try:
            episode = await self._environment.run_episode(task, self._context, on_trace=minted)
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            if episode.ok:
                talk.heard.put(("over", episode))
            else:
                talk.heard.put(("failed", "; ".join(f"{error.type}: {error.message}" for error in errors)))
        except Exception as error:
            talk.heard.put(("failed", f"{type(error).__name__}: {error}"))
        finally:
            self._playing.discard(talk)
            for trace in talk.traces:
                self.talks.pop(trace.id, None)
            for answer in talk.answers:
                answer.cancel()  # does nothing to one that was given

    async def _generate(self, request: Any) -> Any:
        from aiohttp import web

        talk = self.talks.get(request.headers.get("X-Session-ID", ""))  # before a byte of the body is read
        if talk is None:
            return web.json_response({"error": "no such rollout"}, status=404, headers={"Connection": "close"})
        body = await request.json()
        answer: Future[list[int]] = Future()
        talk.answers.append(answer)
        talk.heard.put(("asked", (body["token_ids"], answer)))
        await asyncio.wait([asyncio.wrap_future(answer)])
        if answer.cancelled():
            return web.json_response({"error": "the rollout is over"}, status=410)
        ids = answer.result()
        logprobs = [
            {"token": f"token_id:{token}", "logprob": 0.0} for token in ids
        ]  # ours are in the trajectory's store
        choice = {"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": {"content": logprobs}}
        return web.json_response({"request_id": uuid.uuid4().hex, "choices": [choice]})


class Verifiers:
    """A rollout of a taskset of verifiers.v1.

    A row's ``metadata`` says which task it plays: ``{"task": 3}``, by its place in the taskset. What the model reads are token
    ids that verifiers has rendered with the chat template, so that nothing has to be put around them: at first the whole
    prompt, then what the next prompt has after the model's turn, or all of a prompt that begins a context. The answer that ends
    the rollout has its reward and, in its metadata, the ``branches`` of its traces, each with ``token_ids`` and ``mask``: 1 for
    tokens of the model. There are none if they have more than 2^16 tokens.

    Args:
        taskset: the taskset's id: an installed package.
        tokenizer: a Hugging Face directory with the model's tokenizer and chat template.
        folder: a directory with the taskset's package; empty: it is installed.
        env: further settings of the environment, as in its ``[env]`` table: the harness and the runtime of each agent. A
            runtime other than ``subprocess`` needs what verifiers needs for it, such as docker, or a login.
        renderer: the renderer's settings, such as ``{ name = "qwen3", thinking_retention = "all" }``; empty: by the model. It
            has to go on behind the model's own tokens: ``default`` encodes them again from their text.
        replayable: whether the same task and turns are answered alike.
        contexts: most contexts of a rollout: the first, and one for each prompt that does not go on from the turn before.
        start_s: deadline for the environment to be ready.
        turn_s: deadline of each answer.

    Raises:
        ImportError: verifiers is not installed.
        ValueError: there is no such directory of a tokenizer, or `contexts` is below 1.
        Exception: the taskset or its settings cannot be had.
    """

    tokenized = True

    def __init__(
        self,
        taskset: str,
        tokenizer: str,
        folder: str = "",
        env: Mapping[str, Any] | None = None,
        renderer: Mapping[str, Any] | None = None,
        replayable: bool = False,
        start_s: float = 60.0,
        turn_s: float = 600.0,
        contexts: int = 32,
    ) -> None:
        if not os.path.isdir(tokenizer):  # noqa: PTH112 - this file needs little, as it runs elsewhere
            raise ValueError(f"found tokenizer = {tokenizer!r}, expected the model's directory")
        if contexts < 1:
            raise ValueError(f"found contexts = {contexts!r}, expected at least 1: the first prompt begins one")
        self.replayable, self._turn_s, self._most_contexts = replayable, turn_s, contexts
        given = dict(env or {})
        config = {**given, "taskset": {**given.get("taskset", {}), "id": taskset}}
        key = json.dumps([config, tokenizer, folder, renderer], sort_keys=True)
        with _lock:
            if folder and folder not in sys.path:
                sys.path.insert(0, folder)
            if key not in _houses:
                _houses[key] = House(config, tokenizer, renderer or {}, start_s)
        self._house = _houses[key]
        self._talk: Talk | None = None
        self._answer: Future[list[int]] | None = None
        self._known: list[int] = []
        self._begun = 0

    def rows(self, start: int, stop: int) -> list[dict[str, Any]]:
        """A row for each task of the taskset."""
        rest = {"prompt": "", "answer": "", "verifier": "environment"}
        there = range(start, min(stop, len(self._house.tasks(stop))))
        return [{**rest, "metadata": {"task": number}} for number in there]

    def reset(self, row: Mapping[str, Any]) -> list[int]:
        """Begin the rollout of the row's task, up to its first request for tokens.

        Raises:
            ValueError: the row names no task that there is.
            RuntimeError: the rollout ended before it asked for tokens.
        """
        metadata = row.get("metadata") or {}
        if type(metadata.get("task")) is not int:
            raise ValueError(f"found the metadata {metadata!r:.80}, expected the number of a task as 'task'")
        self._talk = self._house.play(metadata["task"])
        kind, found = self._heard(self._talk)
        if kind != "asked":
            raise RuntimeError(f"the rollout ended before it asked for a turn: {found}")
        self._known, self._answer = found
        self._begun = 1
        return self._known

    def step(self, action: Sequence[int]) -> dict[str, Any]:
        """Answer the request for tokens with a turn, and go on to the next request, or to the end.

        Args:
            action: token ids, with the one that ended the turn.

        Raises:
            RuntimeError: the rollout failed, or it began too many contexts.
        """
        assert self._talk is not None
        assert self._answer is not None
        behind = [*self._known, *action]
        with contextlib.suppress(InvalidStateError):  # the rollout is over, and says so
            self._answer.set_result(list(action))
        kind, found = self._heard(self._talk)
        if kind == "failed":
            raise RuntimeError(f"the rollout failed: {found}")
        if kind == "over":
            reward = sum(trace.reward for trace in found.traces)
            return {"observation": [], "done": True, "reward": float(reward), "metadata": _branches(found.traces)}
        self._known, self._answer = found
        if self._known[: len(behind)] == behind:
            return {"observation": self._known[len(behind) :], "done": False}
        self._begun += 1
        if self._begun > self._most_contexts:
            raise RuntimeError(
                f"the rollout began context {self._begun}, expected at most {self._most_contexts} (option 'contexts'): each "
                "prompt that does not begin with the tokens so far begins one, as where an agent rewrites its history, or the "
                "renderer encodes it again from its text"
            )
        return {"observation": self._known, "done": False, "fresh": True}

    def _heard(self, talk: Talk) -> tuple[str, Any]:
        try:
            return talk.heard.get(timeout=self._turn_s)
        except queue.Empty:
            raise RuntimeError(f"the rollout neither asked for a turn nor ended within {self._turn_s:g} s") from None

    def close(self) -> None:
        """Cancel the rollout if it goes on."""
        if self._talk is not None and self._talk.rollout is not None:
            self._talk.rollout.cancel()


def _branches(traces: Sequence[Any]) -> dict[str, Any]:
    """The metadata that has the branches of traces; empty if they are too long for it."""
    branches = [branch for trace in traces for branch in trace.branches]
    if sum(len(branch.token_ids) for branch in branches) > _BRANCH_TOKENS:
        return {}
    told = [
        {"token_ids": list(branch.token_ids), "mask": [int(kept) for kept in branch.sampled_mask]}
        for branch in branches
    ]
    return {"branches": told}
