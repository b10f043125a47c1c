"""The transformers engine: the continuous batching of transformers 5, on CPU and CUDA.

    step() ── drains ──► output queue ◄── streams ── manager thread ◄── add_request / cancel_request ── submit() / abort()

A manager either samples or decodes greedily, so there is one of each kind over the same model. The greedy one, with its own KV
cache, is created at the first greedy request; its log-probabilities are those of the unscaled distribution. Each request may
have its own temperature.
"""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
    WeightBox,
    WeightDigest,
    Weights,
    weight_slices,
)
from tailrace.rollout.adapters import LoraHooks, check_adapter
from tailrace.rollout.engine_seeds import keep_transformers_seeds
from tailrace.rollout.errors import (
    EngineDiedError,
    EngineMissingError,
    ModelLoadError,
    OptionError,
    RequestError,
    WeightsError,
)
from tailrace.rollout.memory import SLEEPS, Wakefulness, check_idle, check_level, free_heap, memory_bytes
from tailrace.rollout.model_files import parameter_names
from tailrace.rollout.options import CacheShape, EngineOptions, resolve_device, resolve_dtype
from tailrace.rollout.resumption import check_request, finished_with, merged, tokens_left
from tailrace.rollout.served_weights import read_whole

_BLOCK_TOKENS = 32
# Attention on CPU multiplies each query with the keys of the whole batch, so its cost grows with the square of the batch.
_MAX_NUM_SEQS = {"cpu": 32, "cuda": 256}
_MAX_BATCH_TOKENS = {"cpu": 512, "cuda": 2048}
_STEP_WAIT_S = 0.05
_STOP_TIMEOUT_S = 30.0
_NEXT_SEED = 1_000_003


@dataclass(slots=True)
class _Generation:
    """One submission of a request. `name` is its id in the manager, new for each submission of the same request."""

    name: str
    request: Request
    manager: Any
    reported: int = 0


@dataclass(slots=True)
class _Managers:
    by_greedy: dict[bool, Any] = field(default_factory=dict)

    def all(self) -> list[Any]:
        return list(self.by_greedy.values())


class TransformersEngine:
    """A rollout engine (`tailrace.contracts.Engine`) on transformers' continuous batching.

    Args:
        model_path: Hugging Face model directory.
        options: see `EngineOptions`; `prefix_cache` has no effect, since its entries would outlive a change of weights.

    Raises:
        EngineMissingError: torch or transformers is not installed.
        DeviceMissingError: this machine does not have the device.
        ModelLoadError: transformers cannot load the model.
        OptionError: the model is to span several devices.
    """

    def __init__(self, model_path: str, options: EngineOptions) -> None:
        shape = CacheShape.read(model_path)
        if options.adapters != 1:
            raise OptionError(
                f"engine option adapters: found {options.adapters}, expected 1: transformers applies one to all requests"
            )
        if options.tensor_parallel_size != 1:
            raise OptionError(
                f"engine option tensor_parallel_size: found {options.tensor_parallel_size}, expected 1: transformers has one "
                "device; vLLM spans several"
            )
        try:
            import torch
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise EngineMissingError(
                f"transformers does not import ({error}); pip install 'tailrace-rollout[transformers]'"
            ) from error
        device = resolve_device(options)
        dtype = resolve_dtype(options, device)
        if options.threads:
            torch.set_num_threads(options.threads)
        try:
            self._model = AutoModelForCausalLM.from_pretrained(
                model_path,
                dtype=getattr(torch, dtype),
                attn_implementation=_attention(device),
                local_files_only=True,
                trust_remote_code=False,
            ).to(device)
        except Exception as error:
            raise ModelLoadError(f"transformers cannot load {model_path}: {type(error).__name__}: {error}") from error
        self._model.eval().requires_grad_(False)
        self._names_expected = parameter_names(model_path)
        self._vocabulary = int(self._model.get_input_embeddings().num_embeddings)
        self._options = options
        self._max_model_len = min(options.max_model_len or shape.max_len, shape.max_len)
        self._block_tokens = options.block_tokens or _BLOCK_TOKENS
        self._max_num_seqs = options.max_num_seqs or _MAX_NUM_SEQS[device]
        self._max_batch_tokens = max(options.max_batch_tokens or _MAX_BATCH_TOKENS[device], self._max_num_seqs)
        self._blocks = _kv_blocks(shape, options, device, dtype, self._block_tokens, self._max_num_seqs)
        self._managers = _Managers()
        self._managers_built: Counter[bool] = Counter()
        self._adapters = LoraHooks(self._model)
        self._shapes = {name: tuple(tensor.shape) for name, tensor in self._model.named_parameters()}
        self._wakefulness = Wakefulness()
        self._resting: set[bool] = set()  # the kinds of managers that there were before the engine slept
        self._generations: dict[str, _Generation] = {}
        self._by_name: dict[str, _Generation] = {}
        self._complete: list[Delta] = []
        self._serial = 0
        self._preemptions = 0  # the managers' threads count

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests.

        Raises:
            RequestError: see `check_request`, or transformers refuses a request.
            EngineDiedError: the manager has stopped.
            EngineAsleepError: the engine sleeps, or has no weights since.
        """
        self._wakefulness.check_serves()
        for request in requests:
            check_request(request, self._generations, self._max_model_len, self._vocabulary)
            sampling = request.sampling
            finish = finished_with(request.kept, sampling)
            left = tokens_left(request, self._max_model_len)
            if finish is not None or left < 1:
                self._complete.append(Delta(request.id, (), (), finish or FinishReason.LENGTH))
                continue
            greedy = sampling.temperature == 0
            manager = self._manager(greedy)
            of_sampling: dict[str, Any] = {} if greedy else {"temperature": float(sampling.temperature)}
            if sampling.seed is not None and not greedy:
                of_sampling["noise_seed"] = sampling.seed
            self._serial += 1
            generation = _Generation(f"{request.id}#{self._serial}", request, manager)
            try:
                accepted = manager.add_request(
                    [*request.prompt, *request.kept],
                    request_id=generation.name,
                    max_new_tokens=left,
                    streaming=True,
                    eos_token_id=list(sampling.stop_token_ids) or -1,
                    **of_sampling,
                )
            except ValueError as error:
                raise RequestError(f"transformers refuses request {request.id!r}: {error}") from error
            if accepted is None:
                raise _died(manager)
            self._generations[request.id] = self._by_name[generation.name] = generation

    def step(self) -> Sequence[Delta]:
        """All tokens generated since the last call; waits up to 50 ms if there are none.

        Raises:
            EngineDiedError: a manager failed.
        """
        deltas, self._complete = self._complete, []
        deadline = time.monotonic() + _STEP_WAIT_S
        while True:
            deltas += self._drain()
            left = deadline - time.monotonic()
            if deltas or not self._generations or left <= 0:
                return deltas
            managers = self._managers.all()
            output = managers[0].get_result(timeout=left if len(managers) == 1 else min(left, 0.002))
            if output is not None:
                deltas += self._delta(output)
            elif not all(manager.is_running() for manager in managers):
                raise _died(*managers)

    def abort(self, ids: Sequence[str]) -> Sequence[Delta]:
        """Stop requests; returns the tokens that they got since the last `step`.

        Raises:
            EngineDiedError: a manager failed.
        """
        wanted = set(ids)
        stopped = [self._generations[id_] for id_ in wanted if id_ in self._generations]
        for manager in self._managers.all():
            names = [generation.name for generation in stopped if generation.manager is manager]
            # In each round a manager reads new requests, then cancellations. A pause begins within a round, after the
            # reading and before the work. So the second round has read every submitted request, and by the third the
            # cancelled ones are certainly gone.
            for round_ in range(3 if names else 0):
                with _paused(manager):
                    if round_ < 2:
                        for name in names:
                            manager.cancel_request(name)
        self._complete += self._drain()
        last = [delta for delta in self._complete if delta.id in wanted]
        self._complete = [delta for delta in self._complete if delta.id not in wanted]
        for generation in stopped:
            self._forget(generation)
        return merged(last)

    def load_weights(self, weights: Weights) -> None:
        """Replace every weight in place while the managers pause, and drop the adapter.

        Raises:
            EngineBusyError: a request is in flight.
            EngineAsleepError: the engine sleeps.
            WeightsError: a parameter is missing, unknown or of another shape.
        """
        self._wakefulness.check_idle(len(self._generations), "the weights change")
        import torch

        if self._adapters.drop():
            self._stop_managers()
        parameters = self._tensors()
        missing = set(self._names_expected) or {name for name, _ in self._model.named_parameters()}
        filled: Counter[str] = Counter()
        with self._all_paused(), torch.no_grad():
            for name, shape, index, tensor in weight_slices(weights, WeightsError):
                if name not in parameters:
                    raise WeightsError(f"found weights for {name!r}, which the model does not have")
                parameter = parameters[name]
                if parameter.shape != shape:
                    raise WeightsError(
                        f"found weights of shape {tuple(shape)} for {name!r}, expected {tuple(parameter.shape)}"
                    )
                parameter[index].copy_(tensor)
                filled[name] += tensor.numel()
        missing = {name for name in missing if name not in filled or filled[name] < parameters[name].numel()}
        if missing:
            raise WeightsError(f"found no weights for {len(missing)} parameters, the first is {min(missing)!r}")
        self._wakefulness.empty = False

    def load_adapter(self, adapter: AdapterWeights) -> None:
        """Serve the weights with an adapter, while the managers pause. Those of the same layers are replaced in place.

        Raises:
            EngineBusyError: a request is in flight.
            EngineAsleepError: the engine sleeps.
            WeightsError: the adapter does not fit the model. Nothing was changed.
        """
        self._wakefulness.check_idle(len(self._generations), "the adapter changes")
        check_adapter(adapter, self._shapes, self._options.adapter_rank)
        with self._all_paused():
            changed = self._adapters.load(adapter)
        if changed:  # what the managers captured lacks the new layers
            self._stop_managers()

    def sleep(self, level: int) -> None:
        """Drop the KV cache (1), or the weights too (2).

        Raises:
            EngineBusyError: a request is in flight.
            OptionError: the level is unknown.
        """
        check_level(level, max(SLEEPS))
        check_idle(len(self._generations), "the engine sleeps")
        self._resting |= set(self._managers.by_greedy)
        self._stop_managers()
        if level == 2 and self._wakefulness.level < 2:
            self._adapters.drop()
            for parameter in self._model.parameters():
                parameter.data = parameter.data.new_empty(0)
            self._wakefulness.empty = True
        self._wakefulness.level = max(self._wakefulness.level, level)
        free_heap()

    def wake(self) -> None:
        """Take the memory of the weights and of the KV caches again."""
        if self._wakefulness.level == 2:
            for name, parameter in self._model.named_parameters():
                parameter.data = parameter.data.new_empty(self._shapes[name])
        self._wakefulness.level = 0
        for greedy in sorted(self._resting):
            self._manager(greedy)
        self._resting.clear()

    def memory_bytes(self) -> int:
        """Memory in use: of the CUDA device that has the model, by whomever; on CPU the resident memory of this process."""
        return memory_bytes()

    @contextmanager
    def _all_paused(self) -> Iterator[None]:
        with ExitStack() as stack:
            for manager in self._managers.all():
                stack.enter_context(_paused(manager))
            yield

    def digests(self, boxes: Sequence[WeightBox]) -> Sequence[WeightDigest]:
        """What the model that the managers generate with has in boxes of its parameters, and of an adapter's matrices."""
        return list(read_whole({**self._tensors(), **self._adapters.matrices()}, boxes))

    def stats(self) -> EngineStats:
        """KV usage, running and waiting counts, from the managers' schedulers."""
        running, used = 0, 0.0
        processors = [manager.batch_processor for manager in self._managers.all()]
        for processor in processors:
            running += len(processor.scheduler.active_requests)
            used += 1.0 - float(processor.cache.compute_free_capacity())
        # The scheduler may have forgotten a finished request whose last tokens still wait in the queue.
        return EngineStats(
            kv=min(max(used / max(len(processors), 1), 0.0), 1.0),
            running=running,
            waiting=max(0, len(self._generations) - running),
            kv_capacity_tokens=len(processors) * self._blocks * self._block_tokens,
            preemptions=self._preemptions,
            max_running=self._max_num_seqs,
        )

    def close(self) -> None:
        """Stop the managers and release their caches."""
        self._stop_managers()
        self._generations.clear()
        self._by_name.clear()

    def _stop_managers(self) -> None:
        for manager in self._managers.all():
            if manager.is_running():
                manager.stop(block=True, timeout=_STOP_TIMEOUT_S, hard_stop=True)
            manager.destroy()
        self._managers.by_greedy.clear()

    def _tensors(self) -> dict[str, Any]:
        return {**dict(self._model.named_buffers()), **dict(self._model.named_parameters(remove_duplicate=False))}

    def _manager(self, greedy: bool) -> Any:
        if greedy in self._managers.by_greedy:
            return self._managers.by_greedy[greedy]
        from transformers import ContinuousBatchingConfig, GenerationConfig

        options = self._options
        manager = self._model.init_continuous_batching(
            # transformers keeps the processor for per-request temperatures only if this one is not 1
            generation_config=GenerationConfig(
                do_sample=not greedy, temperature=None if greedy else 0.5, eos_token_id=-1
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=self._block_tokens,
                num_blocks=self._blocks,
                max_batch_tokens=self._max_batch_tokens,
                max_requests_per_batch=self._max_num_seqs,
                allow_block_sharing=False,
                use_cuda_graph=None if options.eager is False else False,
                per_request_processors=not greedy,
                return_logprobs=True,
                auto_switch_to_flash=False,
                seed=options.seed + greedy + _NEXT_SEED * self._managers_built[greedy],  # not the same noise again
            ),
        )
        if not greedy:
            keep_transformers_seeds(manager)
        else:
            manager.batch_processor = manager._create_batch_processor()
        self._count_preemptions(manager.batch_processor)
        manager.warmup()
        manager.start()
        self._managers.by_greedy[greedy] = manager
        self._managers_built[greedy] += 1
        return manager

    def _count_preemptions(self, processor: Any) -> None:
        offload, scheduler = processor.offloading_manager.offload_requests, processor.scheduler

        def counting() -> bool:
            before = len(scheduler.active_requests)
            offloaded: bool = offload()
            self._preemptions += before - len(scheduler.active_requests)
            return offloaded

        processor.offloading_manager.offload_requests = counting

    def _drain(self) -> list[Delta]:
        deltas: list[Delta] = []
        for manager in self._managers.all():
            waiting = manager.output_router.output_queue
            while True:
                try:
                    deltas += self._delta(waiting.get_nowait())
                except queue.Empty:
                    break
        return merged(deltas)

    def _delta(self, output: Any) -> list[Delta]:
        generation = self._by_name.get(output.request_id)
        if generation is None:
            return []  # the request was aborted
        if output.error is not None:
            raise EngineDiedError(f"transformers failed on request {generation.request.id!r}: {output.error}")
        tokens, logprobs = output.generated_tokens, output.logprobs
        if len(tokens) != len(logprobs):
            raise EngineDiedError(f"transformers returned {len(tokens)} tokens with {len(logprobs)} log-probabilities")
        new = tuple(tokens[generation.reported :]), tuple(logprobs[generation.reported :])
        generation.reported = len(tokens)
        finish = None
        if output.is_finished():
            stopped = bool(tokens) and tokens[-1] in generation.request.sampling.stop_token_ids
            finish = FinishReason.STOP if stopped else FinishReason.LENGTH
            self._forget(generation)
        return [Delta(generation.request.id, *new, finish)]

    def _forget(self, generation: _Generation) -> None:
        if self._by_name.pop(generation.name, None) is not None:
            del self._generations[generation.request.id]


def _paused(manager: Any) -> Any:
    if not manager.is_running():
        raise _died(manager)
    return manager.pause()


def _died(*managers: Any) -> EngineDiedError:
    causes = [manager.background_thread_status.fatal_error for manager in managers]
    cause = next((cause for cause in causes if cause is not None), None)
    error = EngineDiedError(f"the generation thread of transformers stopped: {cause or 'no cause was recorded'}")
    error.__cause__ = cause
    return error


def _attention(device: str) -> str:
    if device == "cpu":
        return "paged|eager"  # sdpa is slower here
    from transformers.utils import is_flash_attn_2_available

    return "flash_attention_2" if is_flash_attn_2_available() else "sdpa"


def _kv_blocks(
    shape: CacheShape, options: EngineOptions, device: str, dtype: str, block_tokens: int, max_num_seqs: int
) -> int:
    block_bytes = shape.kv_bytes_per_token(dtype) * block_tokens
    if options.kv_cache_bytes is not None or device == "cpu":
        return max(1, shape.cpu_kv_bytes(options, dtype, block_tokens, max_num_seqs) // block_bytes)
    import torch

    free, total = torch.cuda.mem_get_info()
    # half of the free memory; the other half is for the greedy manager and the activations
    usable = int(free - (1 - options.gpu_memory_utilization) * total) // 2
    if usable < block_bytes:
        raise ModelLoadError(
            f"found {free} of {total} bytes of device memory free, which leaves no room for a KV cache within "
            f"gpu_memory_utilization={options.gpu_memory_utilization}"
        )
    return min(usable // block_bytes, max_num_seqs * -(-shape.max_len // block_tokens))


class _Build(EnginePlugin):
    """The engine factory of entry point ``transformers``. Raises the errors of `TransformersEngine` and `EngineOptions`."""

    abilities = EngineAbilities(seeds=True, adapters=1, sleeps=SLEEPS, digests=True)

    def __call__(self, model_path: str, options: Mapping[str, Any]) -> Engine:
        self.check_options(options)
        return TransformersEngine(model_path, EngineOptions.read(options))

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse arguments of vLLM."""
        if EngineOptions.read(options).engine_args:
            raise OptionError("engine option engine_args: found some, expected none: transformers has none")


build = _Build()
