"""The contract of what not every engine can do (`EngineAbilities`), as a pytest suite: LoRA adapters, their digests, sleep."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import pytest

from tailrace.contracts import (
    AdapterWeights,
    AdaptingEngine,
    Delta,
    DigestingEngine,
    Engine,
    EngineAbilities,
    Request,
    Sampling,
    SleepingEngine,
)
from tailrace.rollout.errors import EngineAsleepError, EngineBusyError, OptionError, WeightsDifferError, WeightsError
from tailrace.rollout.generation import Generation, generate
from tailrace.rollout.served_weights import WeightSample
from tailrace.rollout.testing.contract import OPTIONS, OnTinyModels, emptied, greedy, log_probabilities

_RANK, _ALPHA = 4, 8.0
_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_KV_BYTES = 256 << 20
_TIMEOUT_S = 120.0
_PROMPTS = [tuple((7 * place + length) % 149 for place in range(length)) for length in (1, 5, 20, 33, 65, 130)]


def make_adapter(model: Any, seed: int, targets: tuple[str, ...] = _TARGETS) -> tuple[AdapterWeights, Any]:
    """A random adapter of a model, and plain PEFT's model with it (float32, CPU)."""
    import peft
    import torch

    config = peft.LoraConfig(r=_RANK, lora_alpha=_ALPHA, target_modules=list(targets), task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(model), config)
    draw = torch.Generator().manual_seed(seed)
    halves: dict[str, list[Any]] = {}
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=draw) * 0.2
            layer, half = name.removeprefix("base_model.model.").split(".lora_")
            halves.setdefault(f"{layer}.weight", [None, None])["AB".index(half[0])] = parameter.detach()
    layers = {name: (a, b) for name, (a, b) in halves.items()}
    return AdapterWeights(layers, _RANK, _ALPHA / _RANK, lambda: iter(model.named_parameters())), adapted.eval()


def memory_in_use(device: str) -> int:
    """Bytes that this process and those below it have of a CUDA device, or have mapped of the machine's memory."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return int(total - free)
    processes, found = [os.getpid()], 0
    while processes:
        process = Path("/proc") / str(processes.pop())
        try:
            found += int((process / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            for task in (process / "task").iterdir():
                processes += [int(child) for child in (task / "children").read_text().split()]
        except FileNotFoundError:
            continue  # it ended meanwhile
    return found


class _AbleEngine(AdaptingEngine, SleepingEngine, Protocol):
    """An engine with both abilities."""


class EngineAbilitiesContract(OnTinyModels):
    """Tests of what an engine's ability record promises: adapters, with their digests, and sleep.

    Attributes:
        options, tolerance: see `OnTinyModels`.
        abilities: the record of the engine's plugin. What it does not promise is not tried.
        device: ``"cuda"`` for an engine on a GPU.
    """

    abilities: ClassVar[EngineAbilities] = EngineAbilities()
    device: ClassVar[str] = "cpu"

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls, models: tuple[Path, Any, Any]) -> Iterator[_AbleEngine]:
        """One engine that can do all that the record promises, since building one takes seconds."""
        able = cls.abilities
        options = {**OPTIONS, "kv_cache_bytes": _KV_BYTES, **cls.options, "sleep_level": max(able.sleeps, default=0)}
        adapting = {"adapter_rank": _RANK, "adapters": min(2, able.adapters)} if able.adapters else {}
        engine = cls().build(str(models[0]), {**options, **adapting})
        yield cast("_AbleEngine", engine)  # what its record does not promise is not asked of it
        engine.close()

    @pytest.fixture
    def engine(self, shared: _AbleEngine, models: tuple[Path, Any, Any]) -> Iterator[_AbleEngine]:
        """The engine, awake, with the weights of the first model."""
        if self.abilities.sleeps:
            shared.wake()
        shared.load_weights(models[1].named_parameters())
        with emptied(shared):
            yield shared

    @pytest.fixture
    def adapting(self, engine: _AbleEngine) -> _AbleEngine:
        """The engine, where it applies adapters."""
        pytest.importorskip("peft")
        if not self.abilities.adapters:
            pytest.skip("the engine applies no adapters, by its record")
        return engine

    def serves(self, engine: Engine, reference: Any, *others: Any) -> None:
        """Check that log-probabilities are those of a model, and of none of the others."""
        found = _responses(engine)
        for prompt, response in found.items():
            expected = log_probabilities(reference, prompt, response.tokens, 1.0)
            assert response.logprobs == pytest.approx(expected, abs=self.tolerance)
        for other in others:
            errors = [
                abs(mine - its)
                for prompt, response in found.items()
                for mine, its in zip(
                    response.logprobs, log_probabilities(other, prompt, response.tokens, 1.0), strict=True
                )
            ]
            assert max(errors) > 0.1, "a model that differs too little for a test"

    # ---- adapters

    def test_an_adapter_is_served_as_peft_computes_it(
        self, adapting: _AbleEngine, models: tuple[Path, Any, Any]
    ) -> None:
        base = models[1]
        self.serves(adapting, base)  # fills whatever the engine caches
        adapter, adapted = make_adapter(base, seed=3)
        adapting.load_adapter(adapter)
        self.serves(adapting, adapted, base)
        for prompt in _PROMPTS[:2]:
            asked = Request("greedy", prompt, Sampling(temperature=0, max_tokens=16))
            assert generate(adapting, [asked], _TIMEOUT_S)["greedy"].tokens == greedy(adapted, prompt, 16)

    def test_each_version_takes_the_place_of_the_one_before(
        self, adapting: _AbleEngine, models: tuple[Path, Any, Any]
    ) -> None:
        _, base, other_base = models
        first, adapted_first = make_adapter(base, seed=4)
        second, adapted_second = make_adapter(base, seed=5)
        fewer, adapted_fewer = make_adapter(base, seed=6, targets=("q_proj", "down_proj"))
        for adapter, now, before in (
            (first, adapted_first, base),
            (second, adapted_second, adapted_first),
            (first, adapted_first, adapted_second),
            (fewer, adapted_fewer, adapted_first),  # what it lacks of the one before is gone
            (second, adapted_second, adapted_fewer),
        ):
            adapting.load_adapter(adapter)
            self.serves(adapting, now, before)
        adapting.load_weights(other_base.named_parameters())  # whole weights have no adapter
        self.serves(adapting, other_base, base, adapted_second)
        beside, adapted_other = make_adapter(other_base, seed=7)
        adapting.load_adapter(beside)
        self.serves(adapting, adapted_other, other_base)
        halved = replace(beside, scale=beside.scale / 2)  # another alpha
        adapting.load_adapter(halved)
        again, _ = make_adapter(other_base, seed=7)
        merged = copy.deepcopy(other_base)
        for name, (a, b) in again.layers.items():
            merged.get_parameter(name).data += halved.scale * (b @ a)
        self.serves(adapting, merged, adapted_other)

    def test_an_adapter_that_does_not_fit_is_refused_and_changes_nothing(
        self, adapting: _AbleEngine, models: tuple[Path, Any, Any]
    ) -> None:
        import torch

        base = models[1]
        good, adapted = make_adapter(base, seed=8)
        adapting.load_adapter(good)
        name, (a, b) = next(iter(good.layers.items()))
        absent = name.replace("layers.0", "layers.9")
        for wrong, said in (
            (replace(good, layers={}), "without a layer"),
            (replace(good, layers={**good.layers, absent: (a, b)}), "layers.9"),
            (replace(good, layers={name: (a[:, :-1], b)}), name),
            (replace(good, layers={name: (a, torch.cat([b, b]))}), name),
            (replace(good, layers={name: (a[:-1], b[:, :-1])}), name),
            (replace(good, layers={"model.norm.weight": (a, b)}), "model.norm.weight"),
            (replace(good, rank=2 * _RANK, layers={name: (torch.cat([a, a]), torch.cat([b, b], 1))}), "adapter_rank"),
        ):
            with pytest.raises(WeightsError, match=said):
                adapting.load_adapter(wrong)
        self.serves(adapting, adapted, base)
        if self.abilities.adapters < 2:
            adapting.submit([Request("r", (1, 2), Sampling(max_tokens=30))])
            with pytest.raises(EngineBusyError):
                adapting.load_adapter(good)
            adapting.abort(["r"])

    @pytest.mark.parametrize("nbytes", [64, 1 << 20])  # two elements of each run, all of every matrix
    def test_digests_of_an_adapter_are_those_of_what_is_applied(
        self, adapting: _AbleEngine, models: tuple[Path, Any, Any], nbytes: int
    ) -> None:
        if not self.abilities.digests:
            pytest.skip("the engine gives no digests, by its record")
        assert isinstance(adapting, DigestingEngine)
        base = models[1]
        served, other = (make_adapter(base, seed=seed)[0] for seed in (10, 11))
        fewer = make_adapter(base, seed=12, targets=("v_proj", "up_proj", "o_proj"))[0]
        for adapter, wrong in ((other, served), (served, other), (fewer, served), (replace(served, scale=0.3), served)):
            adapting.load_adapter(adapter)
            sample, stale = WeightSample(5, nbytes, "adapter"), WeightSample(4, nbytes, "adapter")
            sample.take_adapter(adapter)
            stale.take_adapter(wrong)
            sample.check(adapting.digests(sample.boxes()))
            with pytest.raises(WeightsDifferError, match=r"lora_[AB]\.weight' of version 4"):
                stale.check(adapting.digests(stale.boxes()))
        name, (a, b) = list(served.layers.items())[3]
        for layers, half in (((a, other.layers[name][1]), "B"), ((other.layers[name][0], b), "A")):
            adapting.load_adapter(replace(served, layers={**served.layers, name: layers}))
            sample = WeightSample(6, nbytes, "adapter")
            sample.take_adapter(served)
            with pytest.raises(WeightsDifferError) as caught:
                sample.check(adapting.digests(sample.boxes()))
            assert caught.value.parameter == name.replace(".weight", f".lora_{half}.weight")

    def test_requests_keep_the_adapter_that_they_began_with(
        self, adapting: _AbleEngine, models: tuple[Path, Any, Any]
    ) -> None:
        if self.abilities.adapters < 2:
            pytest.skip("the engine applies one adapter at once, by its record")
        _, base, other = models
        (old, adapted_old), (new, adapted_new), (third, adapted_third) = (
            make_adapter(base, seed) for seed in (13, 14, 15)
        )
        made: dict[str, list[float]] = {}
        tokens: dict[str, list[int]] = {}

        def take(deltas: Sequence[Delta]) -> None:
            for delta in deltas:
                tokens.setdefault(delta.id, []).extend(delta.tokens)
                made.setdefault(delta.id, []).extend(delta.logprobs)

        def submit(name: str) -> None:
            adapting.submit([Request(f"{name}{i}", p, Sampling(max_tokens=24)) for i, p in enumerate(_PROMPTS)])

        def checked(name: str, reference: Any, count: int) -> None:
            for i, prompt in enumerate(_PROMPTS):
                drawn = tuple(tokens[f"{name}{i}"])
                assert len(drawn) == count
                expected = log_probabilities(reference, prompt, drawn, 1.0)
                assert made[f"{name}{i}"] == pytest.approx(expected, abs=self.tolerance)

        adapting.load_adapter(old)
        submit("old")
        for _ in range(6):
            take(adapting.step())
        adapting.load_adapter(new)
        if self.abilities.digests:
            assert isinstance(adapting, DigestingEngine)
            sample, stale = WeightSample(2, 1 << 20, "two"), WeightSample(1, 1 << 20, "two")
            sample.take_adapter(new)
            stale.take_adapter(old)
            sample.check(adapting.digests(sample.boxes()))
            with pytest.raises(WeightsDifferError):
                stale.check(adapting.digests(stale.boxes()))
        submit("new")  # the same prompts: what is cached of the old ones does not serve them
        take(adapting.step())
        with pytest.raises(EngineBusyError):
            adapting.load_adapter(third)
        with pytest.raises(EngineBusyError):
            adapting.load_weights(other.named_parameters())
        while adapting.stats().running + adapting.stats().waiting:
            take(adapting.step())
        checked("old", adapted_old, 24)
        checked("new", adapted_new, 24)
        adapting.load_adapter(third)
        self.serves(adapting, adapted_third, adapted_new)
        adapting.load_weights(other.named_parameters())
        self.serves(adapting, other, base, adapted_third)

    # ---- sleep

    @pytest.fixture(params=[1, 2])
    def level(self, request: pytest.FixtureRequest) -> int:
        """A level of sleep that the engine knows."""
        if request.param not in self.abilities.sleeps:
            pytest.skip("the engine does not know this level of sleep, by its record")
        return int(request.param)

    def test_memory_is_free_while_it_sleeps_and_it_goes_on_after(
        self, engine: _AbleEngine, models: tuple[Path, Any, Any], level: int
    ) -> None:
        self.serves(engine, models[1])
        awake = memory_in_use(self.device)
        engine.sleep(level)
        asleep = memory_in_use(self.device)
        assert awake - asleep > 0.8 * _KV_BYTES, (awake, asleep)
        engine.sleep(level)  # nothing more
        engine.wake()
        engine.wake()
        if level > 1:
            with pytest.raises(EngineAsleepError, match="no weights"):
                engine.submit([Request("r", (1, 2), Sampling(max_tokens=2))])
            engine.load_weights(models[2].named_parameters())
        self.serves(engine, models[level], models[3 - level])
        assert memory_in_use(self.device) - asleep > 0.8 * _KV_BYTES
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)

    def test_a_sleeping_engine_takes_neither_requests_nor_weights(
        self, engine: _AbleEngine, models: tuple[Path, Any, Any], level: int
    ) -> None:
        engine.submit([Request("r", (1, 2), Sampling(max_tokens=30))])
        with pytest.raises(EngineBusyError):
            engine.sleep(level)
        engine.abort(["r"])
        with pytest.raises(OptionError, match="sleep level 3"):
            engine.sleep(3)
        engine.sleep(level)
        with pytest.raises(EngineAsleepError):
            engine.submit([Request("r", (1, 2), Sampling(max_tokens=2))])
        with pytest.raises(EngineAsleepError):
            engine.load_weights(models[2].named_parameters())
        assert engine.step() == []
        assert engine.abort(["r"]) == []
        assert engine.stats().running == 0
        engine.wake()
        engine.load_weights(models[2].named_parameters())
        self.serves(engine, models[2], models[1])

    def test_other_noise_follows_a_sleep(self, engine: _AbleEngine, models: tuple[Path, Any, Any], level: int) -> None:
        def drawn() -> list[tuple[int, ...]]:
            asked = [Request(str(i), _PROMPTS[1], Sampling(max_tokens=12)) for i in range(8)]
            return [response.tokens for response in generate(engine, asked, _TIMEOUT_S).values()]

        seen = set()
        for _ in range(3):
            seen |= set(drawn())
            engine.sleep(level)
            engine.wake()
            engine.load_weights(models[1].named_parameters())
        assert len(seen) == 24, "noise came a second time"

    def test_an_adapter_survives_the_first_level_and_not_the_second(
        self, adapting: _AbleEngine, models: tuple[Path, Any, Any], level: int
    ) -> None:
        base = models[1]
        adapter, adapted = make_adapter(base, seed=9)
        adapting.load_adapter(adapter)
        adapting.sleep(level)
        with pytest.raises(EngineAsleepError):
            adapting.load_adapter(adapter)
        adapting.wake()
        if level > 1:
            adapting.load_weights(adapter.base())
            self.serves(adapting, base, adapted)
            adapting.load_adapter(adapter)
        self.serves(adapting, adapted, base)


def _responses(engine: Engine) -> dict[tuple[int, ...], Generation]:
    asked = [Request(str(i), prompt, Sampling(max_tokens=16)) for i, prompt in enumerate(_PROMPTS)]
    found = generate(engine, asked, _TIMEOUT_S)
    return {prompt: found[str(i)] for i, prompt in enumerate(_PROMPTS)}
