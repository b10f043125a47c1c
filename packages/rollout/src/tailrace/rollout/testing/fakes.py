"""A deterministic engine without a model, its model directory, and a trajectory source and weights in memory.

Token and log-probability are functions of the weights, the prompt and the position. So a test can predict each response, even
if it was interrupted and resumed.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.contracts import (
    AdapterWeights,
    Delta,
    Engine,
    EngineStats,
    FinishReason,
    PartialDelta,
    Request,
    Resume,
    TrajectoryRef,
    WeightBox,
    WeightDigest,
)
from tailrace.rollout.errors import EngineBusyError, WeightsError
from tailrace.rollout.memory import Wakefulness, check_idle, memory_bytes
from tailrace.rollout.resumption import check_request, finished_with, tokens_left
from tailrace.rollout.served_weights import read_whole

VOCABULARY = 50


def fake_token(weights: int, prompt: Sequence[int], position: int) -> tuple[int, float]:
    """The token and its log-probability at a position of the response."""
    drawn = zlib.crc32(repr((weights, tuple(prompt), position)).encode())
    return drawn % VOCABULARY, -(1 + drawn % 1000) / 1000


class FakeEngine:
    """A rollout engine (`tailrace.contracts.Engine`) without a model that keeps every rule of the protocol.

    Args:
        max_num_seqs: most requests that run at once; others wait.
        max_model_len: most prompt and response tokens of one request.
        unseen: tokens that a request may be ahead of those that `step` returned, as in an engine with its own thread.
        adapters: adapters that it applies at once.
    """

    def __init__(self, max_num_seqs: int = 4, max_model_len: int = 64, unseen: int = 0, adapters: int = 1) -> None:
        self._max_num_seqs, self._max_model_len, self._unseen = max_num_seqs, max_model_len, unseen
        self._adapters = adapters
        self._began_with: dict[str, int | None] = {}  # the weights when a request came
        self._requests: dict[str, Request] = {}
        self._made: dict[str, list[int]] = {}  # tokens after the kept ones
        self._seen: dict[str, int] = {}
        self._weights: int | None = None
        self._base: int | None = None
        self._wakefulness = Wakefulness()
        self.closed = False

    @property
    def asleep(self) -> int:
        """The level at which it sleeps."""
        return self._wakefulness.level

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; raises RequestError for a request that no engine can carry out."""
        self._wakefulness.check_awake()
        for request in requests:
            check_request(request, self._requests, self._max_model_len)
            self._requests[request.id] = request
            self._made[request.id], self._seen[request.id] = [], 0
            self._began_with[request.id] = self._weights

    def step(self) -> Sequence[Delta]:
        """One token for each running request."""
        deltas = []
        for id_ in list(self._requests)[: self._max_num_seqs]:
            self._advance(id_)
            finished = self._finish(id_) is not None
            behind = 0 if finished else self._unseen
            delta = self._delta(id_, max(self._seen[id_], len(self._made[id_]) - behind))
            if delta is not None:
                deltas.append(delta)
        return deltas

    def abort(self, ids: Sequence[str]) -> Sequence[Delta]:
        """Stop requests and return their tokens that `step` has not returned."""
        deltas = []
        for id_ in dict.fromkeys(ids):
            if id_ not in self._requests:
                continue
            delta = self._delta(id_, len(self._made[id_]))
            if delta is not None:
                deltas.append(delta)
            self._forget(id_)
        return deltas

    def load_weights(self, weights: Iterable[tuple[str, int]]) -> None:
        """Replace the weights: one parameter ``"w"``, an integer."""
        self._wakefulness.check_idle(len(self._requests), "the weights change")
        arrived = dict(weights)
        if arrived.keys() != {"w"}:
            raise WeightsError(f"found the parameters {sorted(arrived)}, expected w")
        self._weights = self._base = arrived["w"]

    def load_adapter(self, adapter: AdapterWeights) -> None:
        """Add the product of two integers to the weights, which have to be there."""
        self._wakefulness.check_awake()
        if len(used := set(self._began_with.values())) >= self._adapters:
            raise EngineBusyError(f"found requests in flight on {len(used)} adapters")
        if self._base is None or adapter.layers.keys() != {"w"}:
            raise WeightsError(f"found an adapter of {sorted(adapter.layers)} on {self._base}, expected one of w")
        a, b = adapter.layers["w"]
        self._weights = self._base + int(a) * int(b)

    def sleep(self, level: int) -> None:
        """Refuse everything until `wake`; from level 2 on, forget the weights."""
        check_idle(len(self._requests), "the engine sleeps")
        self._wakefulness.level = max(self.asleep, level)
        if level > 1:
            self._weights = self._base = None

    def wake(self) -> None:
        """Take requests and weights again."""
        self._wakefulness.level = 0

    def memory_bytes(self) -> int:
        """The memory of this process."""
        return memory_bytes()

    def stats(self) -> EngineStats:
        """The load. Each running request uses an equal share of the cache."""
        running = min(len(self._requests), self._max_num_seqs)
        waiting = len(self._requests) - running
        return EngineStats(running / self._max_num_seqs, running, waiting, max_running=self._max_num_seqs)

    def close(self) -> None:
        """Note that the engine was closed."""
        self.closed = True

    def _advance(self, id_: str) -> None:
        request = self._requests[id_]
        if self._finish(id_) is None:
            weights = self._began_with[id_]
            if weights is None:
                raise WeightsError("the engine generates without weights")
            position = len(request.kept) + len(self._made[id_])
            self._made[id_].append(fake_token(weights, request.prompt, position)[0])

    def _finish(self, id_: str) -> FinishReason | None:
        request = self._requests[id_]
        if self._made[id_] and self._made[id_][-1] in request.sampling.stop_token_ids:
            return FinishReason.STOP
        finish = finished_with((*request.kept, *self._made[id_]), request.sampling)
        if finish is None and tokens_left(request, self._max_model_len) <= len(self._made[id_]):
            return FinishReason.LENGTH
        return finish

    def _delta(self, id_: str, until: int) -> Delta | None:
        request, seen = self._requests[id_], self._seen[id_]
        tokens = tuple(self._made[id_][seen:until])
        finish = self._finish(id_) if until == len(self._made[id_]) else None
        self._seen[id_] = until
        offset = len(request.kept) + seen
        weights = self._began_with[id_] or 0
        logprobs = tuple(fake_token(weights, request.prompt, offset + i)[1] for i in range(len(tokens)))
        if finish is not None:
            self._forget(id_)
        return Delta(id_, tokens, logprobs, finish) if tokens or finish is not None else None

    def _forget(self, id_: str) -> None:
        tables: tuple[dict[str, Any], ...] = (self._requests, self._made, self._seen, self._began_with)
        for table in tables:
            table.pop(id_, None)


@dataclass(slots=True)
class _Kept:
    prompt: tuple[int, ...]
    owner: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    turn_ended: bool = False
    observed: list[int] = field(default_factory=list)  # positions of tokens that an environment answered


class MemorySource:
    """A trajectory source in memory, strict about offsets. Several threads may use it.

    Args:
        prompts: prompt token ids by trajectory.
    """

    def __init__(self, prompts: Mapping[str, Sequence[int]]) -> None:
        self._lock = threading.Lock()
        self.kept = {trajectory: _Kept(tuple(prompt)) for trajectory, prompt in prompts.items()}

    def begin(self, replica: str, version: int, refs: Sequence[TrajectoryRef], seq: int) -> list[Resume]:  # noqa: ARG002 - the port's
        """Hand trajectories over to a replica."""
        with self._lock:
            resumes = []
            for ref in refs:
                kept = self.kept.get(ref.trajectory)
                if kept is not None:
                    kept.owner = replica
                    complete, turn_ended = kept.finish is not None, kept.turn_ended
                    tokens, logprobs = tuple(kept.tokens), tuple(kept.logprobs)
                    resumes.append(Resume(ref.trajectory, kept.prompt, tokens, logprobs, complete, turn_ended))
            return resumes

    def append(self, replica: str, deltas: Sequence[PartialDelta]) -> list[str]:
        """Store tokens, except those of trajectories that another replica has taken over, whose ids are returned.

        Raises:
            ValueError: a delta leaves a gap after the stored tokens, or goes on after the end of the response, or after that
                of a turn that is not answered.
        """
        with self._lock:
            rejected = []
            for delta in deltas:
                kept = self.kept.get(delta.trajectory)
                if kept is None or kept.owner != replica:
                    rejected.append(delta.trajectory)
                    continue
                if delta.offset != len(kept.tokens) or kept.finish is not None or kept.turn_ended:
                    raise ValueError(
                        f"{delta.trajectory}: {len(kept.tokens)} tokens are kept, found offset {delta.offset}"
                    )
                kept.tokens += delta.tokens
                kept.logprobs += delta.logprobs
                kept.versions += [delta.version] * len(delta.tokens)
                kept.finish, kept.turn_ended = delta.finish, delta.turn_ends
            return rejected

    def observe(self, trajectory: str, tokens: Sequence[int]) -> None:
        """Answer the last turn of a trajectory, which has ended."""
        with self._lock:
            kept = self.kept[trajectory]
            if not kept.turn_ended:
                raise ValueError(f"{trajectory}: found a turn under way, expected one that has ended")
            kept.observed += range(len(kept.tokens), len(kept.tokens) + len(tokens))
            kept.tokens += tokens
            kept.logprobs += [0.0] * len(tokens)
            kept.versions += kept.versions[-1:] * len(tokens)
            kept.turn_ended = False

    def take_away(self, trajectory: str) -> None:
        """Take a trajectory away from its replica: its tokens are refused from now on."""
        with self._lock:
            self.kept[trajectory].owner = ""


class MemoryWeights:
    """Weight versions in memory.

    Args:
        versions: for each version, its tensors by name.
    """

    def __init__(self, versions: Mapping[int, Mapping[str, object]]) -> None:
        self.versions = dict(versions)

    @contextmanager
    def load(self, version: int, timeout_s: float) -> Iterator[Iterable[tuple[str, object]]]:  # noqa: ARG002 - the port's
        """The tensors of a version.

        Raises:
            LookupError: the version does not exist.
        """
        if version not in self.versions:
            raise LookupError(f"found no version {version}, expected one of {sorted(self.versions)}")
        yield iter(self.versions[version].items())


_CONTEXT, _MODEL_VOCABULARY = 64, 100_000


def fake_weights(value: int) -> dict[str, Any]:
    """The tensors of a version: two parameters, the first of which is the one of `FakeEngine`."""
    import torch

    return {"w": torch.tensor([value]), "v": torch.zeros(2, 3)}


def save_fake_model(path: Path, value: int = 100) -> Path:
    """Write a model directory for `TensorFakeEngine`. Token 7 ends a response."""
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 4, "max_position_embeddings": _CONTEXT}
    (path / "config.json").write_text(json.dumps({**shape, "vocab_size": _MODEL_VOCABULARY, "eos_token_id": 7}))
    save_file(fake_weights(value), path / "model.safetensors")
    return path


class TensorFakeEngine(FakeEngine):
    """The fake engine with weights from files.

    Args:
        step_s: seconds that a step takes.
        options: as for `FakeEngine`.
    """

    def __init__(self, *, step_s: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.step_s = step_s
        self.tensors: dict[str, Any] = {}

    def step(self) -> Sequence[Delta]:
        """One token for each running request, after `step_s`."""
        time.sleep(self.step_s)
        return super().step()

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Keep all, and generate by ``"w"``."""
        self.tensors = {name: tensor.clone() for name, tensor in weights}
        super().load_weights([("w", int(self.tensors["w"]))] if "w" in self.tensors else [])

    def digests(self, boxes: Sequence[WeightBox]) -> Sequence[WeightDigest]:
        """What it has in boxes of its tensors."""
        return list(read_whole(self.tensors, boxes))


def build_fake_engine(model_path: str, options: Mapping[str, Any]) -> Engine:
    """An engine factory for `TensorFakeEngine`, which leaves the options that it does not know. It takes `load_s` seconds."""
    del model_path
    time.sleep(options.get("load_s", 0.0))
    known = ("step_s", "max_num_seqs", "max_model_len", "unseen")
    return TensorFakeEngine(**{name: options[name] for name in known if name in options})
