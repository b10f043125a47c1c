"""The vLLM engine keeps the engine contract, alone in its process, beside another, and where it plans steps ahead."""

import threading
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest

from tailrace.contracts import Request, Sampling
from tailrace.rollout import build_engine, engine_abilities, import_engine
from tailrace.rollout.generation import generate
from tailrace.rollout.testing import EngineAbilitiesContract, EngineContract
from tailrace.rollout.testing.contract import greedy, save_tiny_model

pytestmark = [pytest.mark.long, pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")]


@pytest.mark.inherited(
    deep=[
        EngineContract.test_a_small_cache_makes_it_preempt_and_changes_no_token,
        EngineContract.test_a_seed_gives_the_same_tokens_whatever_runs_beside_it,
        EngineContract.test_samples_follow_the_distribution,
    ]
)
class TestVLLMEngine(EngineContract):
    options: ClassVar = {"gpu_memory_utilization": 0.2}  # on a GPU a test builds a second engine beside the first
    seeds = True
    digests = True
    deterministic = True
    tells_preemptions = True
    tells_cached_tokens = True

    def build(self, model_path, options):
        return build_engine("vllm", model_path, options)


@pytest.mark.inherited(
    deep=[
        EngineAbilitiesContract.test_an_adapter_is_served_as_peft_computes_it,
        EngineAbilitiesContract.test_an_adapter_survives_the_first_level_and_not_the_second,
        EngineAbilitiesContract.test_other_noise_follows_a_sleep,
    ]
)
class TestVLLMAbilities(EngineAbilitiesContract):
    abilities = engine_abilities("vllm")
    options: ClassVar = {"gpu_memory_utilization": 0.2}

    def build(self, model_path, options):
        return build_engine("vllm", model_path, options)


@pytest.mark.inherited(keeps=[])
class TestVLLMAbilitiesOfOneAdapter(TestVLLMAbilities):
    abilities = replace(engine_abilities("vllm"), adapters=1)


@pytest.mark.deep
class TestVLLMAbilitiesInAWorkerProcess(TestVLLMAbilities):
    options: ClassVar = {"gpu_memory_utilization": 0.2, "apart": True}


@pytest.mark.deep
class TestVLLMAbilitiesOfTwoWorkers(TestVLLMAbilities):
    """With tensor parallelism: each worker has its part of the weights, of the adapter and of the cache."""

    options: ClassVar = {"gpu_memory_utilization": 0.2, "tensor_parallel_size": 2}


@pytest.mark.deep
class TestVLLMEngineOfTwoWorkers(TestVLLMEngine):
    options: ClassVar = {"gpu_memory_utilization": 0.2, "tensor_parallel_size": 2}


@pytest.mark.deep
class TestVLLMEngineThatPlansAhead(TestVLLMEngine):
    """With asynchronous scheduling, on CPU in a worker process: a step runs while its tokens are not known yet."""

    options: ClassVar = {"gpu_memory_utilization": 0.2, "async_scheduling": True}

    def test_a_step_runs_ahead_and_an_abort_takes_it_in(self, engine, reference):
        prompts = [(3, 1, 4), (1, 5, 9), (2, 6, 5)]
        sampling = Sampling(temperature=0, max_tokens=40)
        engine.submit([Request(str(i), prompt, sampling) for i, prompt in enumerate(prompts)])
        stepped = {str(i): [] for i in range(len(prompts))}
        for _ in range(6):
            for delta in engine.step():
                stepped[delta.id] += delta.tokens
        last = {delta.id: delta.tokens for delta in engine.abort(["0", "1"])}
        assert [len(tokens) for tokens in last.values()] == [1, 1], "nothing ran ahead, or its tokens are lost"
        for id_, tokens in last.items():
            made = tuple(stepped[id_]) + tokens
            assert made == greedy(reference, prompts[int(id_)], len(made))
        while len(stepped["2"]) < 40:  # it goes on, and the token that was taken in comes first
            for delta in engine.step():
                stepped[delta.id] += delta.tokens
        assert tuple(stepped["2"]) == greedy(reference, prompts[2], 40)
        assert engine.step() == []


@pytest.mark.parametrize("arguments", [{"scheduling_policy": "priority", "VLLM_LOG_STATS_INTERVAL": 7.5}])
@pytest.mark.deep
def test_arguments_and_variables_reach_vllm(tmp_path, arguments):
    import vllm.envs

    save_tiny_model(tmp_path, seed=1)
    engine: Any = build_engine(
        "vllm", str(tmp_path), {"dtype": "float32", "max_num_seqs": 4, "block_tokens": 32, "engine_args": arguments}
    )
    try:
        assert engine._llm.vllm_config.scheduler_config.policy == "priority"
        assert vllm.envs.environment_variables["VLLM_LOG_STATS_INTERVAL"]() == 7.5
    finally:
        engine.close()


@pytest.mark.deep
def test_engines_of_one_process_step_in_their_own_threads(tmp_path):
    # vLLM's forward pass has a global variable: replicas that are threads of one process ended it with a damaged heap.
    models = [save_tiny_model(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    options = {"dtype": "float32", "max_num_seqs": 16, "block_tokens": 32, "threads": 1, "gpu_memory_utilization": 0.2}
    engines = [build_engine("vllm", str(tmp_path / "1"), options) for _ in models]
    engines[1].load_weights(models[1].named_parameters())
    prompts = [tuple(range(3, 3 + length)) for length in (1, 5, 20, 90)]
    requests = [Request(str(i), prompt, Sampling(temperature=0, max_tokens=24)) for i, prompt in enumerate(prompts)]
    rounds = [[], []]

    def run(which):
        for _ in range(5):
            rounds[which].append(generate(engines[which], requests, 120))

    threads = [threading.Thread(target=run, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    for model, found in zip(models, rounds, strict=True):
        expected = [greedy(model, prompt, 24) for prompt in prompts]
        assert [[made[str(i)].tokens for i in range(len(prompts))] for made in found] == [expected] * 5
    engines[0].close()  # the other goes on without it
    assert generate(engines[1], requests[:1], 120)["0"].tokens == greedy(models[1], prompts[0], 24)
    engines[1].close()


@pytest.mark.parametrize(("on_cpu", "worker"), [(True, "cpu_worker"), (False, "gpu_worker")])
def test_imports_ahead_are_of_the_devices_own_worker(monkeypatch, on_cpu, worker):
    """That of a CPU takes torch's CUDA streams and events away."""
    from vllm.platforms import current_platform

    asked: list[str] = []
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: on_cpu)
    monkeypatch.setattr("tailrace.rollout.vllm.import_module", asked.append)
    import_engine("vllm")
    assert asked == [f"vllm.v1.worker.{worker}"]
