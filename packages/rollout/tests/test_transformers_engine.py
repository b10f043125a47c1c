"""The transformers engine keeps the engine contract."""

import pytest

pytest.importorskip("transformers")

from tailrace.rollout import build_engine, engine_abilities
from tailrace.rollout.testing import EngineAbilitiesContract, EngineContract


class TestTransformersEngine(EngineContract):
    seeds = True
    digests = True
    tells_preemptions = True

    def build(self, model_path, options):
        return build_engine("transformers", model_path, {"device": "cpu", **options})


class TestTransformersAbilities(EngineAbilitiesContract):
    abilities = engine_abilities("transformers")

    def build(self, model_path, options):
        return build_engine("transformers", model_path, {"device": "cpu", **options})
