"""Small simulations, watched once for all tests."""

import pytest

from tailrace.fleetsim.results.watch import watch
from tailrace.pipeline.config.loading import validate

LAMINAR = {"admission": "inherent", "sync": "on-idle", "routing": "least-loaded", "relocation": "best-fit"}
STALEFLOW = {
    "admission": {"name": "bounded", "bound": 2},
    "sync": "when-useful",
    "routing": "marginal-throughput",
    "relocation": "migration",
}
SYNCHRONOUS = LAMINAR | {"admission": "on-policy", "sync": "barrier", "relocation": "none"}


def configured(pipeline, *, steps=6, rollout_gpus=4, faults=(), **fleet):
    content = {
        "app": "laminar",
        "pipeline": {
            **pipeline,
            "steps": steps,
            "prompts_per_step": 16,
            "samples_per_prompt": 8,
            "prompts_per_replica": 8,
        },
        "rollout": {"max_tokens": 8192},
        "fleet": {
            "model": "Qwen2.5-7B",
            "trainer": {"gpus": 4},
            "rollout": {"gpus": rollout_gpus, "restart_s": 20.0},
            "workload": {"response": [{"median": 900, "sigma": 0.9}], "correlation": 0.3},
            "warm_up": 1,
            **fleet,
        },
        "faults": list(faults),
    }
    return validate([("test", content)])


@pytest.fixture(scope="session")
def laminar():
    return watch(configured(LAMINAR), name="laminar")


@pytest.fixture(scope="session")
def staleflow():
    return watch(configured(STALEFLOW, faults=["replica@40s"]), name="staleflow")


@pytest.fixture(scope="session")
def synchronous():
    return watch(configured(SYNCHRONOUS), name="synchronous")
