"""For authors of engines and for tests: the engine contract, a tiny model, and a fake engine, source and weights.

    from tailrace.rollout.testing import EngineContract

    class TestMyEngine(EngineContract):
        def build(self, model_path, options):
            return my_engine(model_path, options)

`EngineAbilitiesContract` is the same for what the engine's `EngineAbilities` promise: adapters and sleep. Both need pytest,
torch and transformers, adapters PEFT too; the fakes need nothing.
"""

from tailrace.contracts.lazy import loads_lazily
from tailrace.rollout.testing.fakes import (
    FakeEngine,
    MemorySource,
    MemoryWeights,
    TensorFakeEngine,
    build_fake_engine,
    fake_token,
    fake_weights,
    save_fake_model,
)

__all__ = [
    "EngineAbilitiesContract",
    "EngineContract",
    "FakeEngine",
    "MemorySource",
    "MemoryWeights",
    "TensorFakeEngine",
    "build_fake_engine",
    "fake_token",
    "fake_weights",
    "save_fake_model",
    "save_tiny_model",
]

__getattr__ = loads_lazily(__name__, __all__, ("contract", "abilities_contract"))
