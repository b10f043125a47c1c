"""The vLLM engine keeps the engine contract."""

import pytest

pytest.importorskip("vllm")

from tailrace.rollout import build_engine
from tailrace.rollout.testing import EngineContract


class TestVLLMEngine(EngineContract):
    seeds = True
    tells_preemptions = True

    def build(self, model_path, options):
        return build_engine("vllm", model_path, options)
