"""The transformers engine keeps the engine contract."""

import pytest

pytest.importorskip("transformers")

from tailrace.rollout import build_engine, engine_abilities
from tailrace.rollout.testing import EngineAbilitiesContract, EngineContract

pytestmark = pytest.mark.long


@pytest.mark.inherited(
    deep=[
        EngineContract.test_sampled_and_greedy_requests_run_side_by_side,
        EngineContract.test_abort_of_some_leaves_the_others_alone,
        EngineContract.test_weights_may_come_in_slices,
        EngineContract.test_samples_follow_the_distribution,
        EngineContract.test_a_seed_gives_the_same_tokens_whatever_runs_beside_it,
    ]
)
class TestTransformersEngine(EngineContract):
    seeds = True
    digests = True
    tells_preemptions = True

    def build(self, model_path, options):
        return build_engine("transformers", model_path, {"device": "cpu", **options})


# That it sleeps, test_lent_memory.py of the pipeline shows in a run.
@pytest.mark.inherited(keeps=[EngineAbilitiesContract.test_an_adapter_is_served_as_peft_computes_it])
class TestTransformersAbilities(EngineAbilitiesContract):
    abilities = engine_abilities("transformers")

    def build(self, model_path, options):
        return build_engine("transformers", model_path, {"device": "cpu", **options})
