"""The vLLM engine of a replica, in process, and how it takes new weights. For vLLM on GPU and on CPU.

It drives vLLM's engine core directly with token ids, without vLLM's front end for text. With 256 requests on a model of 0.2 M
parameters this yields a third more tokens per second.

With asynchronous scheduling (on CUDA, or by `EngineOptions.async_scheduling`) one step more runs than `step` has returned:

    step n runs ──► step n + 1 is planned and starts ──► `step` returns the tokens of n
    `abort`, `load_weights` ──► the tokens of n + 1 are taken in first, so none is lost and none is of mixed weights
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
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
    Sampling,
    SlicedWeights,
    UnreadableWeightsError,
    WeightBox,
    WeightDigest,
    Weights,
    named_tensors,
    weight_slices,
)
from tailrace.rollout.adapters import VLLMAdapters, check_adapter
from tailrace.rollout.engine_seeds import keep_vllm_seeds
from tailrace.rollout.errors import (
    DeviceMissingError,
    EngineDiedError,
    EngineMissingError,
    ModelLoadError,
    RequestError,
    WeightsError,
)
from tailrace.rollout.memory import (
    SLEEPS,
    Wakefulness,
    check_level,
    fill_worker,
    free_worker,
    memory_bytes,
    worker_memory_bytes,
)
from tailrace.rollout.model_files import lacking, parameter_names, parameter_shapes
from tailrace.rollout.options import CacheShape, EngineOptions, check_parallel, resolve_device, resolve_dtype
from tailrace.rollout.resumption import check_request, finished_with, tokens_left
from tailrace.rollout.vllm_arguments import check_arguments, set_variables, without_variables
from tailrace.rollout.vllm_process import (
    CORES,
    ask_workers,
    bind_workers,
    correct_wheel_tag,
    kept_groups,
    limit_calls,
    own_inspection,
    planned_ahead,
    quiet_setup,
    updatable_linears,
    why_not,
    worker_threads,
)
from tailrace.rollout.vllm_versions import cached_tokens, check_interface, check_version, core_request_of
from tailrace.rollout.vllm_weights import load, load_in_workers, read_back, read_in_workers

_CPU_BLOCK_TOKENS = 128  # vLLM's own default on CPU
_MAX_NUM_SEQS = 256
_MAX_BATCH_TOKENS = 2048
_MOST_ADAPTERS = 8  # vLLM has no limit; each takes as much memory as one of the largest rank
_OWN_FORWARD = threading.Lock()
"""The engine whose model runs in this process itself holds it; all others of the process run theirs in a worker process.

vLLM keeps the batch of a forward pass in a global variable: two engines that step in two threads read each other's, and the
process ends with a damaged heap.
"""


class VLLMEngine:
    """A rollout engine (`tailrace.contracts.Engine`) on vLLM's `EngineCore`.

    At temperature 0 the log-probability is that of the unscaled distribution.

    Args:
        model_path: Hugging Face model directory.
        options: see `EngineOptions`.

    Raises:
        EngineMissingError: vLLM is not installed.
        DeviceMissingError: this machine does not have the device, or the installed vLLM was built for another.
        OptionError: the model cannot span so many devices.
        ModelLoadError: vLLM cannot load the model.
    """

    def __init__(self, model_path: str, options: EngineOptions) -> None:
        shape = CacheShape.read(model_path)
        self._names_expected = parameter_names(model_path)
        correct_wheel_tag()
        set_variables(options.engine_args)
        with quiet_setup():
            try:
                from vllm import EngineArgs
                from vllm.platforms import current_platform
                from vllm.v1.engine.llm_engine import LLMEngine
                from vllm.v1.executor import Executor
            # torchvision's errors are of all these kinds
            except (ImportError, RuntimeError, OSError, AttributeError) as error:
                raise EngineMissingError(why_not(error)) from error
            on_cpu = bool(current_platform.is_cpu())
            device = "cpu" if options.device == "auto" and on_cpu else resolve_device(options)
            if on_cpu != (device == "cpu"):
                built_for = "CPU" if on_cpu else "CUDA"
                raise DeviceMissingError(f"the installed vLLM runs on {built_for} only, expected device {device!r}")
            dtype = resolve_dtype(options, device)
            max_num_seqs, workers = options.max_num_seqs or _MAX_NUM_SEQS, options.tensor_parallel_size
            check_parallel(shape, workers)
            kv_cache_bytes = options.kv_cache_bytes
            if on_cpu:
                block_tokens = options.block_tokens or _CPU_BLOCK_TOKENS
                kv_cache_bytes = shape.cpu_kv_bytes(options, dtype, block_tokens, max_num_seqs)
                if workers > 1 and CORES not in options.engine_args:
                    bind_workers(workers)
            self._adapters = VLLMAdapters(options.adapter_rank, options.adapters)
            ahead = not on_cpu if options.async_scheduling is None else options.async_scheduling
            apart = options.apart or (ahead and on_cpu)
            given: dict[str, Any] = {
                "model": model_path,
                "skip_tokenizer_init": True,
                "generation_config": "vllm",
                "dtype": dtype,
                "seed": options.seed,
                "max_model_len": options.max_model_len,
                "max_num_seqs": max_num_seqs,
                "max_num_batched_tokens": max(options.max_batch_tokens or _MAX_BATCH_TOKENS, max_num_seqs),
                "kv_cache_memory_bytes": kv_cache_bytes,
                "gpu_memory_utilization": options.gpu_memory_utilization,
                "enable_prefix_caching": options.prefix_cache,
                "enforce_eager": on_cpu if options.eager is None else options.eager,
                "distributed_executor_backend": "mp",
                "tensor_parallel_size": workers,
                "worker_extension_cls": "tailrace.rollout.vllm_worker.WeightLoading",
                "async_scheduling": ahead and not on_cpu,
                "logprobs_mode": "processed_logprobs",
                "disable_log_stats": True,
                "use_tqdm_on_load": False,
                **({} if options.block_tokens is None else {"block_size": options.block_tokens}),
                **({} if on_cpu or not options.sleep_level else {"enable_sleep_mode": True}),
                **self._adapters.arguments,
                **without_variables(options.engine_args),
            }
            check_interface(given)
            self._here = workers == 1 and not apart and _OWN_FORWARD.acquire(blocking=False)
            if self._here:
                given |= {"distributed_executor_backend": "uni", "worker_extension_cls": ""}
            try:
                keep_vllm_seeds()
                with updatable_linears(), own_inspection(), worker_threads(options.threads or None):
                    config = EngineArgs(**given).create_engine_config()
                    executor = Executor.get_class(config)
                    if ahead and on_cpu:
                        executor = planned_ahead(executor)
                    self._llm = LLMEngine(config, executor, log_stats=False, multiprocess_mode=False)
            except Exception as error:
                self._release()
                raise ModelLoadError(f"vLLM cannot load {model_path}: {type(error).__name__}: {error}") from error
        import torch

        self._torch_threads = options.threads or torch.get_num_threads()
        self._max_num_seqs = max_num_seqs
        self._on_cpu, self._options = on_cpu, options
        self._shapes = parameter_shapes(model_path) if options.adapter_rank else {}
        self._wakefulness = Wakefulness()
        self._thread: int | None = None
        self._client = self._llm.engine_core
        self._core = self._client.engine_core
        if not self._here:
            limit_calls(self._core.model_executor)
        self._scheduler = self._core.scheduler
        self._max_model_len = int(config.model_config.max_model_len)
        self._vocabulary = int(config.model_config.get_vocab_size())
        self._serial = 0
        self._names: dict[str, str] = {}  # request id -> id inside vLLM, new for each submission
        self._requests: dict[str, str] = {}  # id inside vLLM -> request id
        self._adapter_of: dict[str, int] = {}  # id inside vLLM -> number of the adapter that it began with
        # for the next step: of requests with nothing left to generate, and taken in early
        self._complete: list[Delta] = []
        self._preemptions = self._cached_tokens = 0
        self._count_preemptions()
        try:
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests.

        Raises:
            RequestError: see `check_request`, or vLLM refuses a request.
            EngineAsleepError: the engine sleeps, or has no weights since.
        """
        self._wakefulness.check_serves()
        for request in requests:
            check_request(request, self._names, self._max_model_len, self._vocabulary)
            finish = finished_with(request.kept, request.sampling)
            left = tokens_left(request, self._max_model_len)
            if finish is not None or left < 1:
                self._complete.append(Delta(request.id, (), (), finish or FinishReason.LENGTH))
                continue
            self._serial += 1
            name = f"{request.id}#{self._serial}"
            sampling = request.sampling
            core_request = core_request_of(
                name,
                [*request.prompt, *request.kept],
                self._adapters.request,
                temperature=sampling.temperature,
                max_tokens=left,
                stop_token_ids=list(sampling.stop_token_ids),
                seed=sampling.seed,
            )
            try:
                self._client.add_request(core_request)
            except ValueError as error:
                raise RequestError(f"vLLM refuses request {request.id!r}: {error}") from error
            self._names[request.id], self._requests[name] = name, request.id
            if self._adapters.serial:
                self._adapter_of[name] = self._adapters.serial

    def step(self) -> Sequence[Delta]:
        """Do one forward pass. Returns a delta for each request that got a token.

        Raises:
            EngineDiedError: vLLM failed.
        """
        deltas, self._complete = self._complete, []
        if self._requests:
            outputs = self._outputs()
            if (
                not outputs and self._core.batch_queue
            ):  # it has only begun; the next one is planned before this is waited for
                outputs = self._outputs()
            deltas += self._deltas(outputs)
        return deltas

    def _outputs(self) -> Sequence[Any]:
        self._adopt_thread()
        try:
            outputs: Sequence[Any] = self._client.get_output().outputs
        except Exception as error:
            raise EngineDiedError(f"vLLM failed in a step: {type(error).__name__}: {error}") from error
        return outputs

    def _deltas(self, outputs: Sequence[Any]) -> list[Delta]:
        deltas = []
        for output in outputs:
            id_ = self._requests.get(output.request_id)
            if id_ is None:
                continue
            self._cached_tokens += cached_tokens(output)
            finish = None
            if output.finish_reason is not None:
                finish = _finish(id_, str(output.finish_reason))
                del self._names[id_], self._requests[output.request_id]
                self._adapter_of.pop(output.request_id, None)
            logprobs = () if output.new_logprobs is None else output.new_logprobs.logprobs[:, 0].tolist()
            deltas.append(Delta(id_, tuple(output.new_token_ids), tuple(logprobs), finish))
        return deltas

    def _drain(self) -> None:
        """Wait for the steps that run, without planning another. Their deltas wait for whoever asks next."""
        planned = self._scheduler.has_requests
        while self._core.batch_queue:
            self._scheduler.has_requests = lambda: False
            try:
                self._complete += self._deltas(self._outputs())
            finally:
                self._scheduler.has_requests = planned

    def abort(self, ids: Sequence[str]) -> Sequence[Delta]:
        """Stop requests. Those yield a delta that are complete, or that got a token in a step which `step` has not returned."""
        wanted = set(ids)
        if not wanted.isdisjoint(self._names):
            self._drain()
        names = [self._names.pop(id_) for id_ in wanted if id_ in self._names]
        for name in names:
            del self._requests[name]
            self._adapter_of.pop(name, None)
        self._client.abort_requests(names)
        last = [delta for delta in self._complete if delta.id in wanted]
        self._complete = [delta for delta in self._complete if delta.id not in wanted]
        return last

    def load_weights(self, weights: Weights) -> None:
        """Replace every weight, and drop the adapter and the prefix cache.

        Raises:
            EngineBusyError: a request is in flight.
            EngineAsleepError: the engine sleeps.
            WeightsError: a parameter is missing, unknown or of another shape.
            EngineDiedError: a worker process is gone, or does not answer.
        """
        self._make_idle("the weights change")
        self._adapters.drop(self._llm)
        shapes: dict[str, tuple[int, ...]] = {}

        def arriving() -> Iterator[tuple[str, Any]]:
            for name, tensor in named_tensors(weights, WeightsError):
                shapes[name] = tuple(tensor.shape)
                yield name, tensor

        origin = weights.origin() if isinstance(weights, SlicedWeights) and not self._here else None
        config = self._llm.vllm_config
        try:
            if self._here:
                missing = list(self._llm.apply_model(lambda model: load(model, config, arriving()))[0])
            elif origin is not None:
                shapes.update((piece.name, piece.shape) for piece in weight_slices(weights, WeightsError))
                missing = read_in_workers(self._llm, origin)
            else:
                missing = load_in_workers(self._llm, arriving())
        except EngineDiedError:
            raise
        except Exception as error:
            raise WeightsError(f"the weights do not load: {type(error).__name__}: {error}") from error
        # vLLM fuses q, k, v and gate, up, and reports a fused weight as loaded after one of its parts. So compare the names
        # before fusion too.
        missing += lacking(self._names_expected, shapes)
        if missing:
            raise WeightsError(f"found no weights for {len(missing)} parameters, the first is {missing[0]!r}")
        self._wakefulness.empty = False
        self._reset_prefix_cache()

    def load_adapter(self, adapter: AdapterWeights) -> None:
        """Serve the weights with an adapter in place of the one before, and drop the prefix cache.

        With the option ``adapters`` above 1 requests in flight keep theirs, and so does the prefix cache: vLLM's keys have the
        adapter's name.

        Raises:
            EngineBusyError: a request is in flight; with several adapters, requests on as many of them.
            EngineAsleepError: the engine sleeps.
            WeightsError: the adapter does not fit the model. Nothing was changed.
        """
        if self._adapters.most == 1:
            self._make_idle("the adapter changes")
        else:
            self._wakefulness.check_awake()
            self._drain()
        check_adapter(adapter, self._shapes, self._options.adapter_rank)
        self._adapters.load(self._llm, adapter, set(self._adapter_of.values()))
        if self._adapters.most == 1:
            self._reset_prefix_cache()

    def sleep(self, level: int) -> None:
        """Give back the KV cache (1), or the weights too (2). On CUDA vLLM keeps the weights of level 1 in host memory.

        Raises:
            EngineBusyError: a request is in flight.
            OptionError: the level is unknown or, on CUDA, the engine was built for a smaller one (option ``sleep_level``).
        """
        deepest = max(SLEEPS) if self._on_cpu else self._options.sleep_level
        check_level(level, deepest, ", the engine option sleep_level")
        if self._wakefulness.level >= level:
            return
        self.wake()
        self._make_idle("the engine sleeps")
        if level == 2:
            self._adapters.drop(self._llm)
            self._wakefulness.empty = True
        self._reset_prefix_cache()
        if self._on_cpu:
            ask_workers(self._llm, free_worker, level)
        else:
            self._llm.sleep(level)
        self._wakefulness.level = level

    def wake(self) -> None:
        """Take the memory again."""
        if not self._wakefulness.level:
            return
        if self._on_cpu:
            ask_workers(self._llm, fill_worker)
        else:
            self._llm.wake_up()
        self._wakefulness.level = 0

    def memory_bytes(self) -> int:
        """Memory in use: of the devices that hold the model, by whomever; on CPU, resident, of the engine's processes."""
        if self._here or self._on_cpu:
            return memory_bytes()
        return sum(ask_workers(self._llm, worker_memory_bytes))

    def _make_idle(self, before: str) -> None:
        self._wakefulness.check_idle(len(self._requests), before)
        self._drain()
        if self._scheduler.has_requests():
            self._outputs()  # makes the worker free the blocks of aborted requests

    def _reset_prefix_cache(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise EngineDiedError("vLLM kept its prefix cache over a weight change; responses would mix two versions")

    def digests(self, boxes: Sequence[WeightBox]) -> Sequence[WeightDigest]:
        """What the workers have in boxes of the parameters, each of its own part.

        Raises:
            UnreadableWeightsError: see `read_back`.
        """
        if self._here:
            config = self._llm.vllm_config
            return list(self._llm.apply_model(lambda model: read_back(model, config, boxes))[0])
        found: list[WeightDigest] = []
        for worker, (answers, why) in enumerate(ask_workers(self._llm, "tailrace_digests", boxes)):
            if why:
                raise UnreadableWeightsError(why)
            found += [WeightDigest(*answer)._replace(worker=worker) for answer in answers]
        return found

    def stats(self) -> EngineStats:
        """KV usage, running and waiting counts, from vLLM's scheduler."""
        running = len(self._scheduler.running)
        return EngineStats(
            kv=float(self._scheduler.kv_cache_manager.usage),
            running=running,
            waiting=len(self._requests) - running,
            kv_capacity_tokens=self._scheduler.kv_cache_config.num_blocks * self._scheduler.block_size,
            preemptions=self._preemptions,
            max_running=self._max_num_seqs,
            cached_tokens=self._cached_tokens,
        )

    def close(self) -> None:
        """Release the model and the KV cache."""
        try:
            with nullcontext() if self._here else kept_groups():
                self._client.shutdown()
        finally:
            self._release()

    def _release(self) -> None:
        if self._here:
            self._here = False
            _OWN_FORWARD.release()

    def _count_preemptions(self) -> None:
        # vLLM tells of a preemption with the request's next token, so never if the request is aborted before that
        preempt = self._scheduler._preempt_request

        def counting(*arguments: Any, **named: Any) -> None:
            self._preemptions += 1
            preempt(*arguments, **named)

        self._scheduler._preempt_request = counting

    def _adopt_thread(self) -> None:
        # In a new thread, OpenMP has its default number of threads until torch's first operator sets it. vLLM's attention on
        # CPU fails if the two numbers differ, as in the first step of a thread that did not build the engine.
        if self._thread != threading.get_ident():
            import torch

            torch.set_num_threads(self._torch_threads)
            self._thread = threading.get_ident()

    def _warm_up(self) -> None:
        # vLLM imports and compiles parts of itself in its first step, which takes seconds; do that now.
        self.submit([Request("warm-up", (0,), Sampling(max_tokens=2))])
        while self._requests:
            self.step()
        self._llm.reset_prefix_cache()


def _finish(id_: str, reason: str) -> FinishReason:
    try:
        return FinishReason(reason)
    except ValueError as error:
        raise EngineDiedError(f"vLLM ended request {id_!r} with {reason!r}, expected stop or length") from error


class _Build(EnginePlugin):
    """The engine factory of entry point ``vllm``. Raises the errors of `VLLMEngine` and `EngineOptions`."""

    abilities = EngineAbilities(
        seeds=True,
        deterministic=True,
        adapters=_MOST_ADAPTERS,
        sleeps=SLEEPS,
        resizes=True,
        digests=True,
        prefix_cache=True,
    )

    def __call__(self, model_path: str, options: Mapping[str, Any]) -> Engine:
        self.check_options(options)
        return VLLMEngine(model_path, EngineOptions.read(options))

    def abilities_with(self, options: Mapping[str, Any]) -> EngineAbilities:
        """All, but for a prefix cache that is switched off."""
        return replace(self.abilities, prefix_cache=options.get("prefix_cache", True) is not False)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse what the installed vLLM does not know, and say once which version of it nobody tried."""
        check_arguments(EngineOptions.read(options).engine_args)
        check_version()

    def import_ahead(self) -> None:
        """Import most of vLLM."""
        with quiet_setup():
            import vllm.v1.engine.llm_engine
            import vllm.v1.executor.uniproc_executor  # noqa: F401
            from vllm.platforms import current_platform

            # that of a CPU puts empty functions in place of torch's CUDA streams and events as it is imported
            import_module(f"vllm.v1.worker.{'cpu' if current_platform.is_cpu() else 'gpu'}_worker")


build = _Build()
