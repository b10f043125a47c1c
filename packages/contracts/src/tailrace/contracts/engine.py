"""The protocol of a rollout engine. vLLM, transformers continuous batching and third parties pass one contract suite."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from tailrace.contracts.trajectory import FinishReason

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

Weights = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""Tensors by name: a mapping, or pairs of a name and a tensor."""
_PAIRS = "expected pairs of a name and a tensor, or a mapping of names to tensors"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Args:
        temperature: 0 is greedy.
        max_tokens: most response tokens, including resumed ones and what environments answered.
        stop_token_ids: tokens that end the response, or a turn of it; the one that did is kept in it.
        seed: seed of this request's noise. Under the same weights, the same prompt and seed give the same tokens, whatever
            else runs beside it. None leaves the noise to the engine, as does an engine that keeps no seeds.
        turns: whether a stop token ends a turn, which an environment answers, and not the response. Existing tokens that end
            with a stop token are then not complete: an answer may end with any token.
    """

    temperature: float = 1.0
    max_tokens: int = 192
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    turns: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One response to generate.

    Args:
        id: unique among the requests in flight.
        prompt: prompt token ids.
        kept: response token ids that exist already (resume), observations among them; generation continues after them.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one request since the last delta.

    Args:
        tokens: new token ids.
        logprobs: log-probability (natural log) of each under the distribution that it was drawn from, temperature applied.
        finish: set on the last delta of a request.
    """

    id: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Load at this moment.

    Args:
        kv: share of the KV cache in use, 0 to 1.
        running: requests in the decode batch.
        waiting: requests queued.
        kv_capacity_tokens: tokens that the KV cache holds; 0 if the engine does not say.
        preemptions: times so far that a request lost its KV cache to make room for others; 0 if the engine does not say.
        max_running: most requests of one decode batch; 0 if the engine does not say.
        cached_tokens: prompt and kept tokens so far that the prefix cache had; 0 if the engine does not say.
    """

    kv: float
    running: int
    waiting: int
    kv_capacity_tokens: int = 0
    preemptions: int = 0
    max_running: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """A LoRA adapter of one version (arXiv:2106.09685): what a layer computes becomes ``W x + scale B A x``.

    Args:
        layers: for each weight of the base that is changed, by its Hugging Face name, the torch tensors A ``[rank, in]`` and
            B ``[out, rank]``.
        rank: rank of the matrices.
        scale: what the adapter adds is multiplied by it (``alpha / rank``).
        base: reads the base's own weights anew, as `Engine.load_weights` takes them, for an engine that no longer has them.
    """

    layers: Mapping[str, tuple[Any, Any]]
    rank: int
    scale: float
    base: Callable[[], Iterable[tuple[str, Any]]]


@runtime_checkable
class Engine(Protocol):
    """A rollout engine, driven by the thread that owns it. No method may be called from two threads at once.

    `AdaptingEngine`, `SleepingEngine` and `DigestingEngine` have what not every engine can do.
    """

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. Returns at once.

        A request that the engine cannot take, for example since its prompt fills the context, raises ValueError with the
        reason. The engine has not taken it nor those after it, and goes on with all others. A replica gives one request a call,
        and reports one that is refused: its group fails, and nothing else.
        """
        ...

    def step(self) -> Sequence[Delta]:
        """Advance generation by one step and return what is new. Returns an empty list when nothing is in flight."""
        ...

    def abort(self, ids: Sequence[str]) -> Sequence[Delta]:
        """Stop requests and forget them. Returns a last delta for each that has tokens not yet returned.

        A request that finished before the abort took effect yields its finishing delta, so no token is lost.
        Unknown ids are ignored.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Replace the weights. Names are Hugging Face parameter names, values torch tensors of full (unsharded) shape.

        Requests in flight must have been aborted first; the engine drops its prefix cache. In a run the weights are
        `SlicedWeights`: an engine that can write a part of a parameter asks for their slices (`weight_slices`). An adapter
        that was served is gone.
        """
        ...

    def stats(self) -> EngineStats:
        """KV usage, running and waiting counts."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


def named_tensors(weights: Any, refuse: type[Exception]) -> Iterable[tuple[str, Any]]:
    """Weights as pairs of a name and a tensor, whether they came as those or as a mapping such as a ``state_dict()``.

    A mapping that is read as pairs gives its names alone, and a name of two letters would pass for a pair.

    Args:
        weights: the weights (`Weights`), or what is none. What comes from a generator is checked as it comes.
        refuse: raised, with a line, for what is neither.

    Returns:
        A list where there is a mapping, list or tuple.
    """
    if isinstance(weights, Mapping):
        return list(_pairs(weights.items(), refuse))
    if not isinstance(weights, Iterable):
        raise refuse(f"found {type(weights).__name__} as weights, {_PAIRS}")
    pairs = _pairs(weights, refuse)
    return list(pairs) if isinstance(weights, list | tuple) else pairs


def _pairs(weights: Iterable[Any], refuse: type[Exception]) -> Iterator[tuple[str, Any]]:
    for pair in weights:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            found = f"{pair!r:.60}" if isinstance(pair, str) else type(pair).__name__
            raise refuse(f"found {found} among the weights, {_PAIRS}")
        yield pair[0], pair[1]


class WeightSlice(NamedTuple):
    """A box of a parameter's elements.

    Args:
        name: Hugging Face parameter name.
        shape: the shape of the whole parameter.
        box: where it is in the parameter, as an index; () is all of it.
        tensor: the elements, a torch tensor that is valid until the next slice is asked for.
    """

    name: str
    shape: tuple[int, ...]
    box: tuple[slice, ...]
    tensor: Any


class SlicedWeights(ABC):
    """Weights that come in slices, such as the shards of a trainer's ranks. Iteration over them yields whole tensors."""

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Pairs of a name and a whole tensor, which is put together first if it came in slices."""

    @abstractmethod
    def slices(self) -> Iterator[WeightSlice]:
        """The slices as they came, for an engine that writes each to its place: nothing is copied twice."""

    def origin(self) -> object | None:
        """Where other processes of this machine can read the same weights themselves: what can be pickled and sent to them.

        An engine whose workers read for themselves goes through `slices` too, without a look at the elements. None: nowhere.
        """
        return None


def weight_slices(weights: Any, refuse: type[Exception]) -> Iterator[WeightSlice]:
    """Weights of any kind in slices; a whole tensor is one slice.

    Args:
        weights, refuse: see `named_tensors`.
    """
    if isinstance(weights, SlicedWeights):
        yield from weights.slices()
        return
    for name, tensor in named_tensors(weights, refuse):
        yield WeightSlice(name, tuple(tensor.shape), (), tensor)


class WeightBox(NamedTuple):
    """Where elements lie in a parameter.

    Args:
        name: Hugging Face parameter name.
        shape: the shape of the whole parameter.
        box: for each dimension, the first index and the one behind the last.
    """

    name: str
    shape: tuple[int, ...]
    box: tuple[tuple[int, int], ...]


class WeightDigest(NamedTuple):
    """A digest of elements that an engine has.

    Args:
        name: Hugging Face parameter name.
        box: where they lie in the whole parameter.
        dtype: the dtype in which the engine has them, by torch's name, such as bfloat16.
        digest: `element_digest` of their bytes in this dtype.
        worker: number of the engine's worker process that has them.
        unreadable: why it cannot tell of this parameter, as of one that it has quantised; the digest is empty then.
    """

    name: str
    box: tuple[tuple[int, int], ...]
    dtype: str
    digest: str
    worker: int = 0
    unreadable: str = ""


def element_digest(elements: Buffer) -> str:
    """The digest of elements: BLAKE2b of 8 bytes, in hexadecimal.

    Args:
        elements: their bytes in row-major order, as they lie in memory.
    """
    return hashlib.blake2b(elements, digest_size=8).hexdigest()


@runtime_checkable
class AdaptingEngine(Engine, Protocol):
    """An engine of a plugin whose abilities are `adapters`."""

    def load_adapter(self, adapter: AdapterWeights) -> None:
        """Serve the weights that the engine has with this adapter, in place of any adapter before it.

        An engine of one adapter (`EngineAbilities.adapters`) drops its prefix cache, and requests in flight must have been
        aborted first. Where it applies several, they go on with the adapters that they began with, requests after this one have
        the new one, and nothing cached under one adapter serves another: those in flight may have one adapter less than it
        applies. An adapter that does not fit the model is refused and changes nothing.
        """
        ...


@runtime_checkable
class SleepingEngine(Engine, Protocol):
    """An engine of a plugin whose abilities `sleeps` have a level."""

    def sleep(self, level: int) -> None:
        """Give memory back until `wake`: the KV cache (1), or the weights too (2).

        Requests in flight must have been aborted first. While it sleeps, the engine refuses requests and weights.
        """
        ...

    def wake(self) -> None:
        """Take the memory again. After level 2 the engine serves nothing until `load_weights`. Does nothing if it is awake."""
        ...

    def memory_bytes(self) -> int:
        """Memory in use: of the devices that hold the model, by whomever; on CPU, resident, of the engine's processes."""
        ...


@runtime_checkable
class DigestingEngine(Engine, Protocol):
    """An engine of a plugin whose abilities are `digests`."""

    def digests(self, boxes: Sequence[WeightBox]) -> Sequence[WeightDigest]:
        """What it generates with now, read from its own parameters, wherever and however it keeps them.

        Called between `load_weights` or `load_adapter` and the next `submit`. A worker that has a part of a box answers with
        that part; all parts of one box make it up, and what several workers have is told by each.

        The matrices of an adapter (`AdaptingEngine`) are named as PEFT names them: ``x.lora_A.weight`` and ``x.lora_B.weight``
        change the weight ``x.weight``. B is told as it is applied: times the adapter's scale, in the engine's dtype.

        Raises:
            UnreadableWeightsError: it keeps the weights of this model in a way that it cannot read back; the message says how.
        """
        ...


class EngineFactory(Protocol):
    """Whatever builds engines."""

    def __call__(self, model_path: str, options: Mapping[str, Any]) -> Engine:
        """Build an engine for a Hugging Face model directory."""
        ...


@dataclass(frozen=True, slots=True)
class EngineAbilities:
    """What engines can do that not every engine can. It is asked for before one is built.

    Args:
        seeds: they honour `Sampling.seed`. A pipeline that draws the same noise twice refuses engines that do not.
        deterministic: the same requests, given between the same steps, get the same tokens and log-probabilities, bit by bit.
            `pipeline.deterministic` refuses engines that cannot say so.
        adapters: how many LoRA adapters they can apply at once beside their weights (`AdaptingEngine`), of at most the rank in
            their option ``adapter_rank``; of several, as many as their option ``adapters`` says. 0: each version is merged
            into the base first.
        adapter_targets: last names of the linear layers that adapters may be of, such as ``q_proj``; empty: any.
        sleeps: the levels of `Engine.sleep` that they know.
        resizes: they span several devices (option ``tensor_parallel_size``).
        digests: they are `DigestingEngine`s: a replica compares what they serve with what was published.
        prefix_cache: until they load weights they keep keys and values of tokens for later requests that begin with these.
    """

    seeds: bool = False
    deterministic: bool = False
    adapters: int = 0
    adapter_targets: tuple[str, ...] = ()
    sleeps: tuple[int, ...] = ()
    resizes: bool = False
    digests: bool = False
    prefix_cache: bool = False


class EnginePlugin(ABC):
    """What an entry point in group ``tailrace.engine`` names: an instance, which is an `EngineFactory`."""

    abilities = EngineAbilities()

    @abstractmethod
    def __call__(self, model_path: str, options: Mapping[str, Any]) -> Engine:
        """Build an engine for a Hugging Face model directory."""

    def abilities_with(self, options: Mapping[str, Any]) -> EngineAbilities:
        """What an engine with these options can do: all of its `abilities`, unless an option takes some away."""
        del options
        return self.abilities

    def check_options(self, options: Mapping[str, Any]) -> None:  # noqa: B027 - most need nothing
        """Refuse options that `__call__` would refuse, before anything starts. It imports nothing heavy and builds nothing.

        Raises:
            ValueError: an option is unknown or has a wrong value.
        """

    def import_ahead(self) -> None:  # noqa: B027 - most need nothing
        """Import what `__call__` needs, so that it takes less time later in this process."""
