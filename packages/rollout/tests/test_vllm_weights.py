"""vLLM takes other weights, in process and in worker processes: it says what transformers says, and digests show each fault."""

import copy
import os
import signal
import sys
import time
from collections import deque
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tailrace.contracts import AdapterWeights, Request, Sampling, UnreadableWeightsError, WeightSlice
from tailrace.paramserver import Publisher, RelayProcess, new_token
from tailrace.paramserver.bridges.torch_module import publish_module
from tailrace.paramserver.clients.lease_view import LeasedWeights
from tailrace.paramserver.clients.origin import RelayOrigin
from tailrace.rollout import EngineDiedError, WeightsDifferError, WeightsError, build_engine
from tailrace.rollout.adapters import written
from tailrace.rollout.errors import EngineAsleepError
from tailrace.rollout.generation import generate
from tailrace.rollout.memory import fill_worker
from tailrace.rollout.served_weights import WeightSample
from tailrace.rollout.testing.abilities_contract import make_adapter
from tailrace.rollout.testing.contract import log_probabilities, save_tiny_model
from tailrace.rollout.vllm_process import ask_workers, limit_calls
from tailrace.rollout.vllm_versions import installed
from tailrace.rollout.vllm_weights import _plain_parameters, load_in_workers

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")
OPTIONS = {"dtype": "float32", "max_num_seqs": 8, "block_tokens": 32, "threads": 1, "kv_cache_bytes": 16 << 20}
OPTIONS |= {"gpu_memory_utilization": 0.2}
PROMPTS = [(3, 1, 4), (1, 5, 9, 2, 6, 5, 3, 5), tuple(range(40))]
STEPS_S = 120.0
EXPERTS = "model.layers.1.mlp.experts.gate_up_proj"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models of a kind: the directory of the first, and both."""
    made = {}

    def give(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = folder / "1", *(save_tiny_model(folder / str(seed), seed, kind=kind) for seed in (1, 2))
        return made[kind]

    return give


def sampled(named, nbytes=1 << 20):
    sample = WeightSample(1, nbytes, "test")
    for name, tensor in dict(named).items():
        sample.take(WeightSlice(name, tuple(tensor.shape), (), tensor))
    return sample


def gap(engine, model):
    """How far the engine's log-probabilities are from a model's."""
    found = responses(engine)
    worst = 0.0
    for index, prompt in enumerate(PROMPTS):
        response = found[str(index)]
        expected = log_probabilities(model, prompt, response.tokens, 0)
        worst = max(worst, *(abs(a - b) for a, b in zip(response.logprobs, expected, strict=True)))
    return worst


@pytest.mark.parametrize(
    "kind", ["qwen3_moe", pytest.param("qwen2", marks=pytest.mark.deep), pytest.param("llama", marks=pytest.mark.deep)]
)
@pytest.mark.deep
def test_other_weights_of_a_model_are_served_and_the_old_are_not(models, kind):
    path, old, new = models(kind)
    engine: Any = build_engine("vllm", str(path), OPTIONS)
    try:
        assert gap(engine, old) < 1e-4
        for model, other in ((new, old), (old, new), (new, old)):
            engine.load_weights(model.named_parameters())
            assert gap(engine, model) < 1e-4
            assert gap(engine, other) > 0.1
            for nbytes in (1 << 20, 256):
                served, unserved = sampled(model.named_parameters(), nbytes), sampled(other.named_parameters(), nbytes)
                served.check(engine.digests(served.boxes()))
                with pytest.raises(WeightsDifferError):
                    unserved.check(engine.digests(unserved.boxes()))
        if kind == "qwen3_moe":
            _check_experts(engine, dict(new.named_parameters()), dict(old.named_parameters()))
    finally:
        engine.close()


def _check_experts(engine, new, old):
    stale = {**new, EXPERTS: new[EXPERTS].detach().clone()}
    stale[EXPERTS][4] = old[EXPERTS][4]
    engine.load_weights(stale)
    sample = sampled(new, 256)
    with pytest.raises(WeightsDifferError) as caught:
        sample.check(engine.digests(sample.boxes()))
    assert caught.value.parameter == EXPERTS
    with pytest.raises(WeightsError, match=r"experts\.0\.down_proj"):
        engine.load_weights(
            {name: tensor for name, tensor in new.items() if name != "model.layers.2.mlp.experts.down_proj"}
        )
    from vllm.config import get_current_vllm_config_or_none
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod as Method

    process, configurations = Method.process_weights_after_loading, []

    def processed(*arguments):
        configurations.append(get_current_vllm_config_or_none())
        process(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Method, "process_weights_after_loading", processed)
        engine.load_weights(new)
    assert configurations
    assert all(one is engine._llm.vllm_config for one in configurations)
    sample.check(engine.digests(sample.boxes()))


def test_experts_in_the_order_of_a_kernel_on_cuda_are_not_compared_as_they_were_published():
    class Experts(torch.nn.Module):
        def __init__(self, kernel):
            super().__init__()
            self.w13_weight = torch.nn.Parameter(torch.zeros(2, 4, 3))
            self.quant_method = SimpleNamespace(unquantized_backend=SimpleNamespace(name=kernel))

    for kernel in ("TRITON", "FLASHINFER_CUTLASS", "FLASHINFER_TRTLLM"):
        model = torch.nn.Module()
        model.experts = Experts(kernel)
        find = _plain_parameters(model)
        if kernel == "TRITON":
            assert find("experts.w13_weight") is model.experts.w13_weight
        else:
            with pytest.raises(UnreadableWeightsError, match=f"in the order of its kernel {kernel}"):
                find("experts.w13_weight")


class Workers:
    """Two workers whose answers are read as vLLM's MultiprocExecutor reads them: up to the first that is an error."""

    def __init__(self):
        self.fails, self.answers = True, [deque(), deque()]

    def tailrace_load(self, path):
        if self.fails:
            raise ValueError("wrong shape")
        return [Path(path).name]

    def collective_rpc(self, method, args=()):
        for answers in self.answers:
            try:
                answers.append((method(self, *args) if callable(method) else getattr(self, method)(*args), None))
            except ValueError as error:
                answers.append((None, error))
        found = []
        for answers in self.answers:
            answer, error = answers.popleft()
            if error is not None:
                raise RuntimeError("worker failed") from error
            found.append(answer)
        return found


def test_a_load_that_fails_in_a_worker_leaves_no_answer_of_another_behind():
    workers = Workers()
    for workers.fails in (True, True, False, True, False):
        if workers.fails:
            with pytest.raises(RuntimeError, match="worker 0: ValueError: wrong shape"):
                load_in_workers(workers, [("weight", torch.zeros(2))])
        else:
            assert load_in_workers(workers, [("weight", torch.zeros(2))]) == ["part"]
        assert not any(workers.answers)


@pytest.mark.parametrize("error", [TimeoutError("RPC call timed out"), RuntimeError("Executor failed.")])
def test_workers_that_do_not_answer_are_a_dead_engine_and_no_failed_load(error):
    class Silent:
        def collective_rpc(self, method, args=()):
            raise error

    with pytest.raises(EngineDiedError, match=f"did not answer tailrace_load: {type(error).__name__}: {error}"):
        load_in_workers(Silent(), [("weight", torch.zeros(2))])
    with pytest.raises(EngineDiedError, match="did not answer fill_worker"):
        ask_workers(Silent(), fill_worker)


def test_calls_without_a_deadline_get_that_of_a_step(monkeypatch):
    asked = []
    envs = pytest.importorskip("vllm").envs
    monkeypatch.setattr(envs, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", 17, raising=False)
    executor = SimpleNamespace(collective_rpc=lambda *given, **named: asked.append((given, named)))
    limit_calls(executor)
    executor.collective_rpc("list_loras")
    executor.collective_rpc(fill_worker, None, (1,), {})
    executor.collective_rpc("execute_model", args=(2,), timeout=3, non_block=True)
    assert asked == [
        (("list_loras", 17), {}),
        ((fill_worker, 17, (1,), {}), {}),
        (("execute_model", 3), {"args": (2,), "non_block": True}),
    ]


def rolled(worker):
    """A planted fault: one worker has the rows of its shard in other places."""
    if worker.rank == 1:
        parameters = dict(worker.model_runner.model.named_parameters())
        parameter = parameters["model.layers.1.mlp.gate_up_proj.weight"]
        parameter.data.copy_(parameter.data.roll(7, 0))


def process_of(worker):
    """A worker's process."""
    del worker
    import os

    return os.getpid()


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_share(worker):
    """The share of the version's bytes that this worker reads."""
    reader = worker._tailrace_reader._reader
    selection = reader._needs._kept
    needed = sum(
        torch.empty([b - a for a, b in box], device="meta").numel()
        for held in selection.slices.values()
        for _, box in held
    )
    return needed / sum(torch.empty(tensor.shape, device="meta").numel() for tensor in selection.tensors.values())


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe", "llama"])
def test_two_workers_read_their_own_parts_from_the_relay(models, kind):
    path, old, new = models(kind)
    token = new_token()
    # workers have not this module, so what they are asked to do travels as code
    pytest.importorskip("cloudpickle").register_pickle_by_value(sys.modules[__name__])
    engine: Any = build_engine("vllm", str(path), {**OPTIONS, "tensor_parallel_size": 2})
    with RelayProcess.start(f"shards-{kind}", token=token) as relay, Publisher(relay.address, token=token) as publisher:
        try:
            for version, (model, other) in enumerate(((new, old), (old, new)), start=1):
                publish_module(publisher, version, model)
                origin = RelayOrigin(version, (relay.address,), token)
                with origin.reader() as reader, reader.lease(version, timeout_s=60) as lease:
                    engine.load_weights(LeasedWeights(lease, origin))
                    sample, wrong = sampled(lease), sampled(other.named_parameters(), 512)
                sample.check(engine.digests(sample.boxes()))
                with pytest.raises(WeightsDifferError):
                    wrong.check(engine.digests(wrong.boxes()))
                assert gap(engine, model) < 1e-4
                assert gap(engine, other) > 0.1
            shares = engine._llm.collective_rpc(read_share)
            print(f"shares of the bytes of {kind} that the workers read: {shares}")
            assert len(shares) == 2
            for share in shares:
                assert 0.4 < share < 0.62  # norms and routers go to both
            workers = engine._llm.collective_rpc(process_of)
            assert len({os.getpid(), *workers}) == 3
            engine._on_cpu = False  # as on CUDA, where a worker alone has its device
            assert engine.memory_bytes() == pytest.approx(sum(map(resident_bytes, workers)), rel=0.1)
            engine._on_cpu = True
            engine.load_weights(new.named_parameters())  # what only this process has goes to the workers whole
            assert gap(engine, new) < 1e-4
            small = sampled(new.named_parameters(), 4096)
            small.check(engine.digests(small.boxes()))
            if kind != "qwen3_moe":
                engine._llm.collective_rpc(rolled)
                with pytest.raises(WeightsDifferError, match=r"layers\.1\.mlp\.(gate|up)_proj.* in worker 1"):
                    small.check(engine.digests(small.boxes()))
        finally:
            engine.close()


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", ["in an update", "as it takes an adapter", "asleep"])
def test_an_engine_whose_worker_is_killed_ends(models, monkeypatch, when):
    path, old, new = models("qwen3")
    pytest.importorskip("cloudpickle").register_pickle_by_value(sys.modules[__name__])
    engine: Any = build_engine("vllm", str(path), {**OPTIONS, "tensor_parallel_size": 2, "adapter_rank": 8})
    workers = engine._llm.collective_rpc(process_of)

    def parts():
        for number, pair in enumerate(new.named_parameters()):
            if number == 20:
                os.kill(workers[1], signal.SIGKILL)
            yield pair

    @contextmanager
    def written_and_killed(adapter):
        with written(adapter) as folder:
            os.kill(workers[1], signal.SIGKILL)
            yield folder

    try:
        assert gap(engine, old) < 1e-4
        monkeypatch.setattr("tailrace.rollout.vllm_weights._PART_BYTES", 1)  # a layer is a part
        monkeypatch.setattr("tailrace.rollout.adapters.written", written_and_killed)
        adapter, started = make_adapter(old, seed=3)[0], time.monotonic()
        struck = {
            "in an update": lambda: engine.load_weights(parts()),
            "as it takes an adapter": lambda: engine.load_adapter(adapter),
            "asleep": engine.wake,
        }[when]
        if when == "asleep":
            engine.sleep(2)
            os.kill(workers[1], signal.SIGKILL)
        with pytest.raises(EngineDiedError):
            struck()
        with pytest.raises((EngineDiedError, EngineAsleepError)):
            gap(engine, old)
        assert time.monotonic() - started < 60
    finally:
        engine.close()
    deadline = time.monotonic() + 30
    while any(map(runs, workers)):
        assert time.monotonic() < deadline, "a worker outlives its engine"
        time.sleep(0.1)


def runs(pid):
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", [1, 2])
def test_an_engine_in_fp8_serves_bfloat16_of_the_relay_as_one_that_began_with_them(models, tmp_path, workers):
    if installed() < (0, 32):
        pytest.skip("vLLM 0.26 has no quantiser of FP8 on a CPU")
    _, *found = models("qwen3")
    options = OPTIONS | {"dtype": "bfloat16", "tensor_parallel_size": workers}
    options |= {"engine_args": {"quantization": "fp8_per_channel"}}
    halves = [copy.deepcopy(model).to(torch.bfloat16) for model in found]
    token, begun, loaded = new_token(), [], []
    for number, model in enumerate(halves):
        model.save_pretrained(tmp_path / str(number))
        engine: Any = build_engine("vllm", str(tmp_path / str(number)), options)
        try:
            begun.append(responses(engine))
            if number:
                continue
            with RelayProcess.start("fp8", token=token) as relay, Publisher(relay.address, token=token) as publisher:
                for version, other in enumerate((halves[1], halves[0]), start=1):
                    publish_module(publisher, version, other)
                    origin = RelayOrigin(version, (relay.address,), token)
                    with origin.reader() as reader, reader.lease(version, timeout_s=60) as lease:
                        engine.load_weights(LeasedWeights(lease, origin))
                    loaded.append(responses(engine))
                    _check_fp8(engine, dict(other.named_parameters()))
        finally:
            engine.close()
    assert begun[0] != begun[1]
    assert loaded == [begun[1], begun[0]]  # to the last bit


def responses(engine):
    """What an engine answers to a few prompts."""
    asked = [Request(str(i), prompt, Sampling(temperature=0, max_tokens=16)) for i, prompt in enumerate(PROMPTS)]
    return generate(engine, asked, STEPS_S)


def _check_fp8(engine, published):
    """What is not quantised is compared, and what is says so."""
    sample = sampled(published)
    digests = engine.digests(sample.boxes())
    assert {one.name for one in digests if one.unreadable} == {name for name in published if "_proj." in name}
    assert all("float8_e4m3fn" in one.unreadable for one in digests if one.unreadable)
    plain = sum(tensor.numel() for name, tensor in published.items() if "_proj." not in name)
    assert sample.check(digests) == pytest.approx(plain / sum(tensor.numel() for tensor in published.values()))
    wrong = sampled(published | {"model.norm.weight": published["model.norm.weight"] + 1})
    with pytest.raises(WeightsDifferError, match=r"model\.norm\.weight"):
        wrong.check(engine.digests(wrong.boxes()))


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_load_that_fails_in_two_workers_leaves_no_answer_to_the_next_call(models, monkeypatch):
    path, old, new = models("qwen3")
    engine: Any = build_engine("vllm", str(path), {**OPTIONS, "tensor_parallel_size": 2, "adapter_rank": 8})
    good = dict(new.named_parameters())
    name = "model.layers.1.mlp.gate_proj.weight"
    try:
        for model, other in ((good, dict(old.named_parameters())), (dict(old.named_parameters()), good)):
            with pytest.raises(WeightsError, match="worker 0"):
                engine.load_weights({**model, name: model[name][:, :-3]})
            engine.load_weights(model)
            sample, wrong = sampled(model), sampled(other)
            sample.check(engine.digests(sample.boxes()))
            with pytest.raises(WeightsDifferError):
                wrong.check(engine.digests(wrong.boxes()))
        pair = torch.ones(4, good[name].shape[1]), torch.ones(good[name].shape[0], 4)
        adapter = AdapterWeights({name: pair}, 4, 1.0, lambda: iter(good.items()))
        with monkeypatch.context() as patch:
            patch.setattr("tailrace.rollout.adapters.written", lambda _: nullcontext("/nowhere"))
            with pytest.raises(WeightsError, match="worker 0"):
                engine.load_adapter(adapter)
        engine.load_adapter(adapter)
        assert gap(engine, old) > 0.1
    finally:
        engine.close()
