"""The stream generation service (StreamRL, section 3): `update(weights)` and `generate(prompts)`, each sample as it ends.

    generate ──► Stream: waiting ──► least-loaded replica with a free slot ──► tokens in the Book ──► Sample ──► the reader
    update ──► staged, checked ──► every replica loads it, nothing starts meanwhile ──► what was interrupted goes on under it

Invariants:
* An update is served by all replicas or none: no sample runs between the first load and the last.
* Samples that a replica loses, by an update or its death, go on from their last token, before those that have not begun.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tailrace.contracts import FinishReason, Sampling, Weights
from tailrace.rollout.errors import (
    OptionError,
    RequestError,
    ServiceDownError,
    UpdateFailedError,
    UpdateRefusedError,
    VersionTimeoutError,
)
from tailrace.rollout.model_files import end_tokens, vocabulary
from tailrace.rollout.options import CacheShape, EngineOptions
from tailrace.rollout.own_directory import OwnDirectory
from tailrace.rollout.resumption import check_sampling
from tailrace.rollout.service.book import Book, Sample, SampleOrder
from tailrace.rollout.service.handle import ReplicaProcess, ReplicaSetup, StartReplica
from tailrace.rollout.service.prompts import Prompt, PromptReader, Ranker, Ranking
from tailrace.rollout.service.replicas import ServiceReplica, ServiceReplicas
from tailrace.rollout.service.staged_weights import StagedWeights
from tailrace.rollout.service.stream import Key, Stream

_MAX_NUM_SEQS = 64
_AHEAD = 4  # a replica has a quarter more samples than it runs at once, so that one that ends leaves no empty slot


class StreamGenerationService:
    """Generates samples on several replicas and yields each as it ends. It belongs to one event loop.

    Start it with ``async with``, or let the first call do so; `close` ends its processes.

    Args:
        model: Hugging Face model directory with safetensors files; its weights are version 0.
        replicas: how many engines, each in a process of its own.
        ranker: with one, the prompts of a request start longest first; without, in the order given.
        engine: name of the engine plugin.
        options: engine options.
        max_tokens: most response tokens where a request does not say; None: as many as the context has room for.
        temperature: of sampling; 0 is greedy.
        ahead: most samples of one request on replicas or unread; None: twice what all replicas take.
        restarts: deaths of a replica, without a complete sample between them, after which it is given up.
        still_s: seconds without a token after which an engine that has work is replaced.
        flush_s: seconds between two batches of tokens of a replica.
        pull_timeout_s: deadline of a load of weights.
        start_timeout_s: deadline of a replica's start, until its engine is loaded.
        rank_timeout_s: how long a request waits for the ranker before it starts in the order given.
        start: starts a replica; for embedding and tests.

    Raises:
        OptionError: a number is out of range.
        ModelLoadError: the model directory is incomplete.
    """

    def __init__(
        self,
        model: str | Path,
        replicas: int = 2,
        ranker: Ranker | None = None,
        *,
        engine: str = "auto",
        options: EngineOptions | Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        temperature: float = 1.0,
        ahead: int | None = None,
        restarts: int = 3,
        still_s: float = 120.0,
        flush_s: float = 0.05,
        pull_timeout_s: float = 120.0,
        start_timeout_s: float = 600.0,
        rank_timeout_s: float = 10.0,
        start: StartReplica = ReplicaProcess,
    ) -> None:
        if replicas < 1:
            raise OptionError(f"replicas: found {replicas}, expected at least 1")
        if ahead is not None and ahead < 1:
            raise OptionError(f"ahead: found {ahead}, expected at least 1")
        self._model = Path(model)
        options = options.given if isinstance(options, EngineOptions) else dict(options or {})
        longest = CacheShape.read(str(model)).max_len
        self._context = min(options.get("max_model_len") or longest, longest)
        self._reader = PromptReader(self._model, self._context, vocabulary(str(model)))
        self._ranking = Ranking(ranker, self._reader, rank_timeout_s)
        self._sampling = Sampling(
            temperature, self._context if max_tokens is None else max_tokens, end_tokens(str(model))
        )
        try:
            check_sampling(self._sampling)
        except RequestError as error:
            raise OptionError(str(error)) from error
        running = int(options.get("max_num_seqs") or _MAX_NUM_SEQS)
        self._slots = running + max(1, running // _AHEAD)
        self._window = ahead or 2 * self._slots * replicas
        self._own = OwnDirectory()
        self._weights = StagedWeights(self._model, self._own.path)
        self._book = Book()
        setup = ReplicaSetup(
            "", self._model, engine, options, self._book, self._weights, flush_s, pull_timeout_s, start_timeout_s
        )
        self._fleet: Callable[[], ServiceReplicas] = lambda: ServiceReplicas(
            setup, replicas, start, self, restarts=restarts, still_s=still_s
        )
        self._pull_timeout_s = pull_timeout_s
        self._replicas: ServiceReplicas | None = None
        self._starting: asyncio.Task[ServiceReplicas] | None = None
        self._updating = asyncio.Lock()
        self._news = asyncio.Event()  # of a version, or the end; another one each time
        self._streams: list[Stream] = []  # in the order in which they came
        self._where: dict[str, Stream] = {}  # by sample, from its order to its end
        self._serial = itertools.count()
        self._version = 0
        self._error: ServiceDownError | None = None

    # ------------------------------------------------------------------------------------------------ what one calls

    @property
    def version(self) -> int:
        """The weight version that is served; 0 is the model as it was given."""
        return self._version

    @property
    def context(self) -> int:
        """Most tokens of a prompt and its response."""
        return self._context

    @property
    def weights(self) -> StagedWeights:
        """Where updates are written and checked."""
        return self._weights

    def status(self) -> dict[str, Any]:
        """Version, replicas, and how many samples wait, run and are unread."""
        replicas = self._replicas.all if self._replicas is not None else []
        return {
            "version": self.version,
            "replicas": [
                {"name": one.name, "version": one.version, "running": len(one.in_flight), "given_up": one.given_up}
                for one in replicas
            ],
            "samples": {
                "running": sum(len(stream.running) for stream in self._streams),
                "unread": sum(stream.unread for stream in self._streams),
                "left": sum(stream.left for stream in self._streams),
            },
            "unranked": self._ranking.unranked,
        }

    async def start(self) -> None:
        """Start the replicas, if they are not; returns when all serve version 0.

        Raises:
            RolloutError: a replica does not start.
            ServiceDownError: the service was closed.
        """
        self._check()
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        try:
            self._replicas = await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._starting.cancelled():
                self._check()  # it was closed meanwhile
            raise

    async def update(self, weights: Weights, version: int) -> None:
        """Replace the weights. Samples in flight go on under the new ones; each token has its own version.

        Args:
            weights: all parameters of the model, by name, on any device. Read before this returns.
            version: above the one that is served.

        Raises:
            UpdateRefusedError: it is not newer, or not the whole model. Nothing was changed.
            UpdateFailedError: a replica could not load it. All serve the version before.
        """
        await self.update_with(lambda: self._weights.stage(weights, version), version)

    async def update_with(self, stage: Callable[[], object], version: int) -> None:
        """Like `update`, with a function that stages the version (`StagedWeights.stage`, `accept`), called in a thread."""
        await self.start()
        # shielded: one who is cancelled while replicas load does not leave them with two versions
        await asyncio.shield(asyncio.create_task(self._update(stage, version)))

    async def generate(
        self,
        prompts: Sequence[Prompt],
        samples: int = 1,
        *,
        max_tokens: int | None = None,
        at_least_version: int = 0,
        version_timeout_s: float = 600.0,
    ) -> AsyncGenerator[Sample, None]:
        """Yield each sample of each prompt as it ends. Leaving the loop (`aclose`) stops what is left.

        A reader that is slow slows generation down: at most `ahead` samples are on replicas or unread.

        Args:
            prompts: text or token ids.
            samples: of each prompt.
            max_tokens: most response tokens.
            at_least_version: nothing starts under older weights.
            version_timeout_s: how long to wait for that version.

        Raises:
            RequestError: a prompt or a number is out of range.
            VersionTimeoutError: the version did not come.
            ServiceDownError: no replica is left.
        """
        stream = await self.open(
            prompts,
            samples,
            max_tokens=max_tokens,
            at_least_version=at_least_version,
            version_timeout_s=version_timeout_s,
        )
        try:
            async for sample in stream.read():
                yield sample
        finally:
            self.cancel(stream)

    async def open(
        self,
        prompts: Sequence[Prompt],
        samples: int = 1,
        *,
        max_tokens: int | None = None,
        at_least_version: int = 0,
        version_timeout_s: float = 600.0,
        have: Collection[Key] = (),
    ) -> Stream:
        """Begin a request whose reader may come back (`Stream.resume`). It must be ended with `cancel`.

        Args:
            have: prompt and sample of what the reader has already, which is not generated.

        Raises: as `generate`.
        """
        sampling = replace(self._sampling, max_tokens=self._sampling.max_tokens if max_tokens is None else max_tokens)
        check_sampling(sampling)
        if type(samples) is not int or samples < 1:
            raise RequestError(f"found samples={samples!r}, expected a whole number of at least 1")
        encoded = self._reader.encode(prompts)
        await self.start()
        await self._reach(at_least_version, version_timeout_s)
        order = await self._ranking.order(prompts)
        had = set(have)
        orders = [
            SampleOrder(self._id(), index, sample, encoded[index], sampling)
            for index in order
            for sample in range(samples)
            if (index, sample) not in had
        ]
        self._check()
        stream = Stream(
            orders,
            window=self._window,
            fresh=lambda old: replace(old, id=self._id()),
            changed=self.room,
        )
        self._streams.append(stream)
        self.room()
        return stream

    def cancel(self, stream: Stream) -> None:
        """End a request: what runs of it is stopped, what is unread is dropped."""
        if stream not in self._streams:
            return
        self._streams.remove(stream)
        ids = {id_ for id_, where in self._where.items() if where is stream}
        self._forget(ids)
        stream.fail(ServiceDownError("the request was cancelled"))
        if self._replicas is not None:
            self._replicas.abort(ids)
        self.room()

    async def close(self) -> None:
        """End every request and every replica."""
        self.down(ServiceDownError("the service is closed"))
        if self._starting is not None:
            self._starting.cancel()
            started = (await asyncio.gather(self._starting, return_exceptions=True))[0]
            if isinstance(started, ServiceReplicas):
                await started.close()
        await asyncio.to_thread(self._own.remove)

    async def __aenter__(self) -> StreamGenerationService:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------ what replicas report

    def finished(self, id_: str, finish: FinishReason) -> None:
        """A sample is complete."""
        stream = self._where.pop(id_)
        stream.deliver(id_, self._book.take(id_, finish))

    def refused(self, id_: str, reason: str) -> None:
        """The engine does not take a sample: its request ends."""
        stream = self._where[id_]
        stream.fail(RequestError(reason))
        self.cancel(stream)

    def returned(self, ids: Sequence[str]) -> None:
        """Samples go back to the head of their queue; what their replica still sends is refused."""
        self._book.release(ids)
        for stream in {id(self._where[id_]): self._where[id_] for id_ in ids}.values():
            stream.put_back(set(ids))

    def room(self) -> None:
        """Give waiting samples to replicas with free slots."""
        if self._replicas is None or self._error is not None:
            return
        given: dict[str, tuple[ServiceReplica, list[SampleOrder]]] = {}
        while (replica := self._replicas.least_loaded(self._slots)) is not None:
            stream = next((one for one in self._streams if one.wants()), None)
            if stream is None:
                break
            order = stream.take()
            if order.id not in self._where:
                self._where[order.id] = stream
                self._book.open(order)
            replica.in_flight.add(order.id)
            given.setdefault(replica.name, (replica, []))[1].append(order)
        for replica, orders in given.values():
            self._replicas.route(replica, orders)

    def down(self, error: ServiceDownError) -> None:
        """No replica is left, or the service closes: every request ends."""
        self._error = self._error or error
        self._tell_news()
        for stream in self._streams:
            stream.fail(self._error)

    # -------------------------------------------------------------------------------------------------------- inside

    async def _start(self) -> ServiceReplicas:
        replicas = self._fleet()
        self._own.make()
        try:
            await replicas.start()
        except BaseException:
            await replicas.close()
            raise
        return replicas

    async def _update(self, stage: Callable[[], object], version: int) -> None:
        async with self._updating:
            self._check()
            before = self.version
            if version <= before:
                raise UpdateRefusedError(f"found an update to version {version}, expected one above {before}")
            try:
                await asyncio.to_thread(stage)
            except Exception:
                self._check()  # as the service closed, its directory went
                raise
            assert self._replicas is not None
            failed = await self._replicas.pull(version, self._pull_timeout_s)
            self._weights.forget(version if failed else before)
            if failed:
                raise UpdateFailedError(f"{failed[0]}; version {before} is served")
            self._version = version
        self._tell_news()

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _reach(self, version: int, timeout_s: float) -> None:
        if version <= self.version:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while self.version < version and self._error is None:
                    await self._news.wait()
        except TimeoutError as error:
            raise VersionTimeoutError(
                f"version {version} did not come within {timeout_s} s; version {self.version} is served"
            ) from error

    def _forget(self, ids: Collection[str]) -> None:
        for id_ in ids:
            del self._where[id_]
        self._book.drop(ids)

    def _id(self) -> str:
        return str(next(self._serial))

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
