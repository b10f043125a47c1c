"""The transformers engine keeps the engine contract."""

import pytest

pytest.importorskip("transformers")

from tailrace.rollout import build_engine, engine_abilities
from tailrace.rollout.testing import EngineAbilitiesContract, EngineContract


@pytest.mark.inherited(deep=[EngineContract.test_a_seed_gives_the_same_tokens_whatever_runs_beside_it])
class TestTransformersEngine(EngineContract):
    seeds = True
    digests = True
    tells_preemptions = True

    def build(self, model_path, options):
        return build_engine("transformers", model_path, {"device": "cpu", **options})


@pytest.mark.inherited(
    keeps=[
        EngineAbilitiesContract.test_an_adapter_is_served_as_peft_computes_it,
        EngineAbilitiesContract.test_memory_is_free_while_it_sleeps_and_it_goes_on_after,
    ]
)
class TestTransformersAbilities(EngineAbilitiesContract):
    abilities = engine_abilities("transformers")

    def build(self, model_path, options):
        return build_engine("transformers", model_path, {"device": "cpu", **options})
