"""The SGLang engine: token ids over the HTTP interface of SGLang's own server. For SGLang 0.5.23.

    submit() ──► POST /generate, a stream for each request ──► step() reads what came of all of them
    abort()  ──► POST /abort_request, until each stream has ended ──► the tokens that it brought
    load_weights() ──► pause ──► weights by broadcast (`SGLangServer` of tailrace-paramserver) ──► cache flushed ──► go on

One thread reads all streams; no connection blocks. What is known of the server and was found by running it:

* A token that the model does not have kills the server, so ids are checked before they are sent.
* A stream brings all tokens so far in each event, unless the server has ``--incremental-streaming-output``. Only those beyond
  the ones that are known are taken, by the count that each event has, and a gap is an error.
* The id of an aborted request is a prefix: ids here have one length. A request that the server has not read yet is not aborted.
* With stop tokens, those of the model's configuration end a response too: it goes on behind them here.
* Each event names the version of its weights. Another one than was loaded is an error.

Digests, seeds of single requests and, on a CPU, sleep and adapters come from Tailrace's plugin in the server (`sglang_plugin`).
"""

from __future__ import annotations

import json
import math
import secrets
import selectors
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.contracts import (
    AdapterWeights,
    Delta,
    Engine,
    EngineAbilities,
    EnginePlugin,
    EngineStats,
    FinishReason,
    Request,
    UnreadableWeightsError,
    WeightBox,
    WeightDigest,
    Weights,
    named_tensors,
)
from tailrace.rollout.adapters import check_adapter, matrix_of, written
from tailrace.rollout.errors import EngineDiedError, EngineMissingError, WeightsError
from tailrace.rollout.memory import SLEEPS, Wakefulness, check_level, memory_bytes
from tailrace.rollout.model_files import configuration, parameter_shapes, tied_names, vocabulary
from tailrace.rollout.options import EngineOptions
from tailrace.rollout.resumption import check_request, finished_with, merged, tokens_left
from tailrace.rollout.served_weights import local_boxes
from tailrace.rollout.sglang_plugin import ELEMENTS, MEMORY, REFUSED
from tailrace.rollout.sglang_server import ADAPTED, address_of, check_arguments, interpreter, serve
from tailrace.rollout.sglang_stream import BrokenStreamError, EventStream, Post

_STEP_WAIT_S = 0.05
_GATHER_S = 0.002
_MOST_GATHERED_S = 0.02
_LOADS_S = 0.1
_ABORT_AGAIN_S = 0.1
_UPDATE_S = 600.0
_IN_VAIN = 3
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_FLUSH_S = 30
_TAGS = {1: ("kv_cache",), 2: ("kv_cache", "weights")}


@dataclass(slots=True)
class _Generation:
    """A request on the server. Its stream is replaced where the server ended it and the request is not at its end.

    Args:
        name: id on the server, new for each stream.
        tokens: all that were generated for it here, by this and earlier streams.
        known: tokens that this stream brought.
        retractions: times that the server said it lost its cache.
        in_vain: streams in a row that ended without a token.
        aborting: whether it is to stop.
    """

    request: Request
    name: str = ""
    post: Post | None = None
    events: EventStream = field(default_factory=EventStream)
    tokens: list[int] = field(default_factory=list)
    known: int = 0
    retractions: int = 0
    in_vain: int = 0
    aborting: bool = False


@dataclass(slots=True)
class _Abort:
    """A call that asks the server to stop a request. Its answer is empty."""

    post: Post


@dataclass(slots=True)
class _Load:
    """What the server said of its load, and when."""

    kv: float = 0.0
    at: float = -math.inf


class SGLangEngine:
    """A rollout engine (`tailrace.contracts.Engine`) on a server of SGLang.

    At temperature 0 the log-probability is that of the unscaled distribution.

    Args:
        model_path: Hugging Face model directory.
        options: see `EngineOptions`.

    Raises:
        EngineMissingError, DeviceMissingError, OptionError, ModelLoadError, EngineDiedError: see
            `tailrace.rollout.sglang_server.OwnServer` and `JoinedServer`.
    """

    def __init__(self, model_path: str, options: EngineOptions) -> None:
        self._shapes, self._optional = parameter_shapes(model_path), tied_names(model_path)
        self._vocabulary = vocabulary(model_path)
        self._answer_s = options.answer_s
        self._config = configuration(model_path)
        self._server = serve(model_path, options)
        try:
            self._weights = self._server.weights()
            self._label = self._weights.weight_version(timeout_s=self._answer_s)
        except Exception as error:
            self._server.close()
            raise EngineDiedError(f"the server of SGLang does not answer: {error}") from error
        self._max_model_len = self._server.max_model_len
        self._family, self._serial, self._updates = secrets.token_hex(6), 0, 0
        self._adapter_rank, self._adapter = options.adapter_rank, ""  # the name of the adapter that requests get
        self._torn = False  # whether the server has parts of two versions
        self._wakefulness = Wakefulness()
        self._deepest = self._server.deepest_sleep
        self._generations: dict[str, _Generation] = {}
        self._complete: list[Delta] = []
        self._selector = selectors.DefaultSelector()
        self._heard = 0.0
        self._load, self._preemptions, self._cached = _Load(), 0, 0

    def submit(self, requests: Sequence[Request]) -> None:
        """Send requests to the server.

        Raises:
            RequestError: see `check_request`.
            WeightsError: the last update broke off, so the server has parts of two versions.
            EngineAsleepError: the server sleeps, or has no weights since.
            EngineMissingError: a request has a seed, and a server that was joined keeps none.
        """
        self._wakefulness.check_serves()
        for request in requests:
            check_request(request, self._generations, self._max_model_len, self._vocabulary)
            if request.sampling.seed is not None and not self._server.keeps_seeds:
                raise EngineMissingError(
                    f"found a seed in request {request.id!r}, and a server that keeps none; expected one with tailrace-rollout "
                    "in its environment, or with --enable-deterministic-inference"
                )
            if self._torn:
                raise WeightsError("the last update broke off: the server has parts of two versions")
            finish = finished_with(request.kept, request.sampling)
            if finish is not None or tokens_left(request, self._max_model_len) < 1:
                self._complete.append(Delta(request.id, (), (), finish or FinishReason.LENGTH))
                continue
            if not self._generations:
                self._heard = time.monotonic()
            self._generations[request.id] = generation = _Generation(request)
            self._generate(generation)
        self._load.at = -math.inf

    def step(self) -> Sequence[Delta]:
        """All tokens that came since the last call; waits up to 50 ms if there are none.

        Raises:
            EngineDiedError: the server ended, broke off a stream, sent what does not fit, or yielded nothing for `answer_s`.
        """
        deltas, self._complete = self._complete, []
        if self._generations:
            deltas += self._read(0.0 if deltas else _STEP_WAIT_S)
        return deltas

    def abort(self, ids: Sequence[str]) -> Sequence[Delta]:
        """Stop requests; returns the tokens that they got since the last `step`.

        Raises:
            EngineDiedError: the server failed, or did not stop them within `answer_s`.
        """
        wanted = set(ids)
        for id_ in wanted & self._generations.keys():
            self._generations[id_].aborting = True
        deadline, again = time.monotonic() + self._answer_s, 0.0
        while running := [self._generations[id_] for id_ in wanted if id_ in self._generations]:
            now = time.monotonic()
            if now >= deadline:
                raise EngineDiedError(
                    f"the server of SGLang did not stop {len(running)} requests within {self._answer_s:.3g} s"
                )
            if now >= again:  # what it had not read yet, it has forgotten
                self._ask_to_abort(running)
                again = now + _ABORT_AGAIN_S
            self._complete = merged([*self._complete, *self._read(_STEP_WAIT_S)])
        last = [delta for delta in self._complete if delta.id in wanted]
        self._complete = [delta for delta in self._complete if delta.id not in wanted]
        self._load.at = -math.inf
        return last

    def load_weights(self, weights: Weights) -> None:
        """Replace every weight and drop the prefix cache.

        Raises:
            EngineBusyError: a request is in flight.
            EngineAsleepError: the server sleeps.
            WeightsError: a parameter is missing, unknown or of another shape, or the server does not take the weights or
                names another version. It serves nothing before a load that succeeds.
            EngineDiedError: the server ended or does not answer.
        """
        self._wakefulness.check_idle(len(self._generations), "the weights change")
        from tailrace.paramserver.errors import BridgeError, EngineTimeout, EngineUnreachable

        self._drop_adapter()
        self._updates += 1
        label = f"{self._family}.{self._updates}"
        try:
            self._weights.load(self._checked(named_tensors(weights, WeightsError)), label, timeout_s=_UPDATE_S)
        except (EngineTimeout, EngineUnreachable) as error:
            raise self._died(str(error)) from error
        except BridgeError as error:
            raise WeightsError(f"the weights do not load: {error}") from error
        self._torn, self._label, self._wakefulness.empty = False, label, False

    def load_adapter(self, adapter: AdapterWeights) -> None:
        """Serve the weights with an adapter in place of the one before, and drop the prefix cache.

        Raises:
            EngineBusyError: a request is in flight.
            EngineAsleepError: the server sleeps.
            WeightsError: the adapter does not fit the model, or the server does not take it. The one before it is served on.
            EngineDiedError: the server does not answer.
        """
        self._wakefulness.check_idle(len(self._generations), "the adapter changes")
        check_adapter(adapter, self._shapes, self._adapter_rank)
        self._updates += 1
        name = f"{self._family}.{self._updates}"  # one that no other adapter had
        with written(replace(adapter, layers=self._with_neighbours(adapter.layers))) as folder:
            status, said = self._asked("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        if status != 200:
            raise WeightsError(f"the adapter does not load: SGLang answered {status}: {said[:200]!r}")
        self._drop_adapter()
        self._adapter = name
        self._tell(f"/flush_cache?timeout={_FLUSH_S}", {})

    def _with_neighbours(self, layers: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
        """An adapter's matrices with zeros for layers that have none beside one that SGLang fuses them with."""
        found = dict(layers)
        for name, (a, b) in layers.items():
            block, _, part = name.removesuffix(".weight").rpartition(".")
            for other in next((fused for fused in _FUSED if part in fused), ()):
                beside = f"{block}.{other}.weight"
                found.setdefault(beside, (a.new_zeros(a.shape), b.new_zeros(self._shapes[beside][0], a.shape[0])))
        return found

    def _drop_adapter(self) -> None:
        """Serve the model's own weights."""
        name, self._adapter = self._adapter, ""
        if name:
            self._tell("/unload_lora_adapter", {"lora_name": name})

    def digests(self, boxes: Sequence[WeightBox]) -> Sequence[WeightDigest]:
        """What the server's ranks have in boxes of the parameters, each of its own part. SGLang has vLLM's names and places.

        Raises:
            UnreadableWeightsError: the server that was joined has no plugin, keeps a parameter in another form, or where it has
                the parameters of such a model is not known.
            EngineDiedError: the server does not answer.
        """
        if not self._server.extended:
            raise UnreadableWeightsError("the server that was joined has no tailrace-rollout in its environment")
        from tailrace.paramserver.errors import BridgeError

        asked: list[tuple[int, str, Any]] = []
        places: list[tuple[str, Any]] = []
        matrices = [box for box in boxes if matrix_of(box.name)]
        if matrices and _whole(self._server.info.get("tp_size")) > 1:
            raise UnreadableWeightsError("how SGLang cuts an adapter over several ranks is not known here")
        for name, _, box in matrices:
            asked.append((0, name, box))
            places.append((name, box))
        boxes = [box for box in boxes if not matrix_of(box.name)]
        for rank, shard in enumerate(self._shards(boxes) if boxes else ()):
            for name, common, buffer, index in local_boxes(shard, boxes):
                if not all(isinstance(part, slice) for part in index):
                    raise UnreadableWeightsError(
                        f"SGLang keeps the experts of {name!r} in stacks, which are not read back"
                    )
                asked.append((rank, buffer.name, [(part.start, part.stop) for part in index]))
                places.append((name, common))
        try:
            answers = self._server.ask_ranks(ELEMENTS + json.dumps(asked, separators=(",", ":")), self._answer_s)
        except BridgeError as error:
            raise self._died(str(error)) from error
        found = []
        for rank, told in answers.items():
            for number, text in told.items():
                if text.startswith(REFUSED):
                    raise UnreadableWeightsError(text.removeprefix(REFUSED))
                dtype, _, digest = text.partition(" ")
                found.append(WeightDigest(*places[int(number)], dtype, digest, rank))
        return found

    def sleep(self, level: int) -> None:
        """Give back the KV cache (1), or the weights too (2). SGLang keeps no copy of either.

        Raises:
            EngineBusyError: a request is in flight.
            OptionError: the level is unknown; on CUDA, the server was started for a smaller one (option ``sleep_level``); or
                the server was joined.
            EngineDiedError: the server does not do it.
        """
        check_level(level, self._deepest, ", the engine option sleep_level of a server of its own")
        if self._wakefulness.level >= level:
            return
        self.wake()
        self._wakefulness.check_idle(len(self._generations), "the engine sleeps")
        self._tell(
            f"/flush_cache?timeout={_FLUSH_S}", {}
        )  # it ends on its own error if it is told to release while it works
        if level == 2:
            self._drop_adapter()
        self._tell("/release_memory_occupation", {"tags": _TAGS[level]})
        self._wakefulness.level = level
        self._wakefulness.empty |= level == 2

    def wake(self) -> None:
        """Take the memory again.

        Raises:
            EngineDiedError: the server does not do it.
        """
        if self._wakefulness.level:
            self._tell("/resume_memory_occupation", {"tags": _TAGS[self._wakefulness.level]})
            self._wakefulness.level = 0

    def memory_bytes(self) -> int:
        """Memory in use: of the server's devices, by whomever; on CPU the resident memory of its processes and of this one."""
        on_devices = self._server.ask_ranks(MEMORY, self._answer_s) if self._server.extended else {}
        return sum(int(told["bytes"]) for told in on_devices.values()) or memory_bytes()

    def stats(self) -> EngineStats:
        """Running and waiting counts as the streams show them; KV usage as the server says it, at most 0.1 s ago."""
        running = sum(1 for one in self._generations.values() if one.tokens)
        now = time.monotonic()
        if self._server.ours and not self._generations:
            self._load = _Load()  # nothing runs, which the server notes a step later
        elif now - self._load.at > _LOADS_S:
            self._load = _Load(self._kv(), now)
        return EngineStats(
            kv=self._load.kv,
            running=running,
            waiting=len(self._generations) - running,
            kv_capacity_tokens=_whole(self._server.info.get("max_total_num_tokens")),
            preemptions=self._preemptions,
            max_running=_whole(self._server.info.get("max_running_requests")),
            cached_tokens=self._cached,
        )

    def close(self) -> None:
        """Stop what is in flight, and end the server if it is ours."""
        for key in list(self._selector.get_map().values()):
            self._drop(key.data.post)
        self._generations.clear()
        self._selector.close()
        try:
            self._weights.close()
        finally:
            self._server.close()

    # ------------------------------------------------------------------------------------------------ streams

    def _generate(self, generation: _Generation) -> None:
        """Send a request, or what is left of it, to the server."""
        request, made = generation.request, len(generation.tokens)
        stops = [token for token in request.sampling.stop_token_ids if self._known(token)]
        sampling: dict[str, Any] = {
            "temperature": request.sampling.temperature,
            "max_new_tokens": tokens_left(request, self._max_model_len) - made,
            **({} if request.sampling.seed is None else {"sampling_seed": request.sampling.seed}),
            # without stop tokens those of the model's configuration are ignored, which they are not beside some
            **({"stop_token_ids": stops, "no_stop_trim": True} if stops else {"ignore_eos": True}),
        }
        self._serial += 1
        generation.name = f"{self._family}-{self._serial:012d}"
        body = {
            "rid": generation.name,
            "input_ids": [*request.prompt, *request.kept, *generation.tokens],
            "sampling_params": sampling,
            "stream": True,
            "return_logprob": True,
            **({"lora_path": self._adapter} if self._adapter else {}),
        }
        generation.events, generation.known, generation.retractions = EventStream(), 0, 0
        generation.post = self._post("/generate", body)
        self._selector.register(generation.post.socket, generation.post.awaits, generation)

    def _ask_to_abort(self, generations: Sequence[_Generation]) -> None:
        for generation in generations:
            abort = _Abort(self._post("/abort_request", {"rid": generation.name}))
            self._selector.register(abort.post.socket, abort.post.awaits, abort)

    def _post(self, path: str, body: Mapping[str, Any]) -> Post:
        try:
            return Post(self._server.host, self._server.port, path, body, self._server.key)
        except OSError as error:
            raise self._died(f"{type(error).__name__}: {error}") from error

    def _drop(self, post: Post | None) -> None:
        if post is not None:
            self._selector.unregister(post.socket)
            post.close()

    def _read(self, wait_s: float) -> list[Delta]:
        """What came of all streams; waits for the first. The server writes what a step made at about one time."""
        ready = self._selector.select(wait_s)
        if not ready:
            self._look()
            return []
        deltas: list[Delta] = []
        until = time.monotonic() + _MOST_GATHERED_S
        while ready:
            for key, _ in ready:
                self._advance(key.data, deltas)
            ready = self._selector.select(_GATHER_S) if time.monotonic() < until else []
        return merged(deltas)

    def _look(self) -> None:
        """Notice a server that has ended or yields nothing."""
        if (why := self._server.ended()) is not None:
            raise EngineDiedError(f"the server of SGLang is no more: {why}")
        silent_s = time.monotonic() - self._heard
        if silent_s > self._answer_s:
            raise EngineDiedError(
                f"the server of SGLang yielded nothing for {silent_s:.1f} s with {len(self._generations)} requests in flight, "
                f"expected something within {self._answer_s:.3g} s (engine option answer_s)"
            )

    def _advance(self, talk: _Generation | _Abort, deltas: list[Delta]) -> None:
        post = talk.post
        if post is None or post.socket.fileno() < 0:
            return  # it ended within this round
        try:
            data = post.advance()
            if post.status not in (None, 200) and (data or post.done):
                raise BrokenStreamError(f"it answered {post.status}: {data[:200]!r}")
            if data:
                self._heard = time.monotonic()
            if isinstance(talk, _Abort):
                if post.done:
                    self._drop(post)
                    return
                self._selector.modify(post.socket, post.awaits, talk)
                return
            for event in talk.events.feed(data):
                if not self._take(talk, event, deltas):
                    return  # it has another stream now, or none
            if talk.events.done or post.done:
                raise BrokenStreamError("a stream ended without a finish_reason")
        except OSError as error:
            raise self._died(f"{type(error).__name__}: {error}") from error
        self._selector.modify(post.socket, post.awaits, talk)

    def _take(self, generation: _Generation, event: Mapping[str, Any], deltas: list[Delta]) -> bool:
        """Take an event of a stream. Returns whether the stream goes on."""
        request, meta = generation.request, event.get("meta_info")
        if not isinstance(meta, Mapping):
            raise BrokenStreamError(
                f"found {str(event.get('error', event))[:200]} in the stream of request {request.id!r}"
            )
        tokens, logprobs = self._new(generation, event, meta)
        if meta.get("weight_version") != self._label:
            raise BrokenStreamError(
                f"it generates with the weights {meta.get('weight_version')!r}, expected {self._label!r}: somebody else gave "
                "it others"
            )
        if not generation.known:
            self._cached += _whole(meta.get("cached_tokens"))
        generation.known += len(tokens)
        generation.tokens += tokens
        retractions = _whole(meta.get("num_retractions"))
        self._preemptions += max(0, retractions - generation.retractions)
        generation.retractions = retractions
        reason = meta.get("finish_reason")
        if reason is None:
            if tokens:
                deltas.append(Delta(request.id, tokens, logprobs))
            return True
        finish = self._finish(generation)
        self._drop(generation.post)
        generation.post = None
        if finish is None and not generation.aborting:
            generation.in_vain = 0 if generation.known else generation.in_vain + 1
            if generation.in_vain >= _IN_VAIN:
                raise BrokenStreamError(
                    f"it ended request {request.id!r} without a token again and again: {reason!r:.200}"
                )
            self._generate(generation)
        else:
            del self._generations[request.id]
        if tokens or finish is not None:
            deltas.append(Delta(request.id, tokens, logprobs, finish))
        return False

    @staticmethod
    def _new(
        generation: _Generation, event: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The tokens of an event that are new, and their log-probabilities, whether or not it has those before them."""
        pairs, ids, count = (
            meta.get("output_token_logprobs") or [],
            event.get("output_ids"),
            meta.get("completion_tokens"),
        )
        if not isinstance(ids, list) or not isinstance(pairs, list) or type(count) is not int:
            raise BrokenStreamError(
                f"found an event without output_ids, output_token_logprobs or completion_tokens: {event!r:.200}"
            )
        new = count - generation.known
        if not 0 <= new <= min(len(pairs), len(ids)):
            raise BrokenStreamError(
                f"request {generation.request.id!r}: found {len(ids)} tokens and {len(pairs)} log-probabilities in an event "
                f"that ends at token {count}, expected at least the {new} that are new"
            )
        tail = pairs[len(pairs) - new :]
        tokens, logprobs = tuple(pair[1] for pair in tail), tuple(pair[0] for pair in tail)
        if tokens != tuple(ids[len(ids) - new :]):
            raise BrokenStreamError(
                f"request {generation.request.id!r}: log-probabilities are of other tokens than came"
            )
        return tokens, logprobs

    def _finish(self, generation: _Generation) -> FinishReason | None:
        """Why a response whose stream has ended is complete; None if it is not: it was aborted, or stopped at another token."""
        request, tokens = generation.request, generation.tokens
        if tokens and tokens[-1] in request.sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(tokens) >= tokens_left(request, self._max_model_len) else None

    # ------------------------------------------------------------------------------------------------ the server

    def _checked(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """The weights on their way to the server, which reports names that it does not know to its log alone."""
        self._torn = True
        missing = set(self._shapes) - self._optional
        for name, tensor in weights:
            if self._shapes and name not in self._shapes and name not in self._optional:
                raise WeightsError(f"found weights for {name!r}, which the model does not have")
            if name in self._shapes and tuple(tensor.shape) != self._shapes[name]:
                raise WeightsError(
                    f"found weights of shape {tuple(tensor.shape)} for {name!r}, expected {self._shapes[name]}"
                )
            missing.discard(name)
            yield name, tensor
        if missing:
            raise WeightsError(f"found no weights for {len(missing)} parameters, the first is {min(missing)!r}")

    def _shards(self, boxes: Sequence[WeightBox]) -> Sequence[Any]:
        """Where each of the server's ranks has its part of parameters.

        Raises:
            UnreadableWeightsError: it is not known of such a model.
        """
        from tailrace.paramserver.layout import GlobalTensor, LayoutInvalid, from_vllm

        ranks = _whole(self._server.info.get("tp_size"))
        tensors = [
            GlobalTensor(name, "float32", shape) for name, shape in {box.name: box.shape for box in boxes}.items()
        ]
        try:
            layout = from_vllm(tensors, self._config.get("text_config", self._config), tp=ranks)
        except LayoutInvalid as error:
            raise UnreadableWeightsError(f"where SGLang has the weights of this model is not known: {error}") from error
        return [layout.shards[f"rank{rank}"] for rank in range(ranks)]

    def _tell(self, path: str, body: Mapping[str, Any]) -> None:
        """Have the server do something whose answer says no more than that it did."""
        status, said = self._asked(path, body)
        if status != 200:
            raise self._died(f"it answered {status} to {path}: {said[:200]!r}")

    def _asked(self, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        from tailrace.paramserver.errors import BridgeError

        try:
            return self._server.calls.exchange("POST", path, body, self._answer_s + _FLUSH_S)
        except BridgeError as error:
            raise self._died(str(error)) from error

    def _kv(self) -> float:
        """Share of the KV cache that requests use, by the server."""
        from tailrace.paramserver.errors import BridgeError

        try:
            answer = self._server.calls.call("GET", "/v1/loads?include=core", None, self._answer_s) or {}
        except BridgeError as error:
            raise self._died(str(error)) from error
        loads = answer.get("loads")
        try:
            return max(float(load["token_usage"]) for load in loads or ())
        except (TypeError, ValueError, KeyError) as error:
            raise EngineDiedError(
                f"found no token_usage in the answer of /v1/loads of SGLang: {answer!r:.200}"
            ) from error

    def _known(self, token: int) -> bool:
        return 0 <= token < (self._vocabulary or 2**31)

    def _died(self, what: str) -> EngineDiedError:
        why = self._server.ended()
        return EngineDiedError(f"the server of SGLang failed: {what}{'' if why is None else '; ' + why}")


def _whole(value: object) -> int:
    return value if type(value) is int else 0


class _Build(EnginePlugin):
    """The engine factory of entry point ``sglang``. Raises the errors of `SGLangEngine` and `EngineOptions`."""

    abilities = EngineAbilities(
        seeds=True, adapters=1, adapter_targets=ADAPTED, sleeps=SLEEPS, digests=True, prefix_cache=True
    )

    def __call__(self, model_path: str, options: Mapping[str, Any]) -> Engine:
        self.check_options(options)
        return SGLangEngine(model_path, EngineOptions.read(options))

    def abilities_with(self, options: Mapping[str, Any]) -> EngineAbilities:
        """A server that is joined may have no plugin and no prefix cache, and was started without a memory saver."""
        if options.get("server"):
            return EngineAbilities(digests=True)
        return replace(self.abilities, prefix_cache=options.get("prefix_cache", True) is not False)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse options without a server, an interpreter without SGLang, and arguments that its server does not take."""
        read = EngineOptions.read(options)
        if read.server:
            address_of(read)
        else:
            interpreter(read)
            check_arguments(read)


build = _Build()
