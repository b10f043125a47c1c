"""One configuration means one policy in a run and in its simulation."""

import pytest

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.run.build import build_spec
from tailrace.repack import ThroughputModel

COSTS = {"k1": 1e-7, "k2": 8e-3, "k3": 1e-4, "k4": 2e-3}
FLEET = {
    "model": "Qwen2.5-7B",
    "trainer": {"gpus": 4},
    "rollout": {"gpus": 4, "tensor_parallel": 1},
    "workload": {"response": [{"median": 900, "sigma": 0.9}], "correlation": 0.3},
    "warm_up": 1,
}
LAMINAR = {"admission": "inherent", "sync": "on-idle", "routing": "least-loaded"}
STALEFLOW = {"admission": "bounded", "sync": "when-useful", "routing": "marginal-throughput", "relocation": "migration"}


def configured(pipeline, **rollout):
    content = {
        "app": "laminar",
        "pipeline": {**pipeline, "steps": 4},
        "rollout": {"max_tokens": 8192, **rollout},
        "fleet": FLEET,
    }
    return validate([("test", content)])


def _policies(spec):
    return spec.routing, spec.sync, spec.relocation, spec.admission


@pytest.mark.parametrize(
    "pipeline",
    [
        LAMINAR | {"relocation": {"name": "best-fit", "roofline_batch": 33}},
        LAMINAR | {"relocation": "best-fit"},
        STALEFLOW,
    ],
    ids=["best-fit with B", "best-fit without", "staleflow"],
)
def test_the_policies_of_a_run_and_of_its_simulation_are_equal_but_for_the_devices_costs(pipeline):
    simulated = build_fleet(configured(pipeline)).config.rollout.cost_model
    run = build_spec(configured(pipeline, cost_model=simulated.model_dump()))
    assert _policies(build_fleet(configured(pipeline)).spec) == _policies(run)


def test_best_fits_limit_follows_from_the_costs_in_both():
    config = configured(LAMINAR | {"relocation": "best-fit"})
    fleet = build_fleet(config)
    given = build_spec(configured(LAMINAR | {"relocation": "best-fit"}, cost_model=COSTS))
    for costs, limit in (
        (fleet.config.rollout.cost_model.model_dump(), fleet.spec.relocation.batch),
        (COSTS, given.relocation.batch),
    ):
        model = ThroughputModel(**costs)
        longest_s = 1.1 * model.step_latency_s(0, 1) * (1 + 1e-9)
        assert model.step_latency_s(0, limit) <= longest_s < model.step_latency_s(0, limit + 1)


def test_a_run_without_coefficients_fits_its_own_and_one_with_them_does_not():
    assert build_spec(configured(STALEFLOW)).fits_costs
    assert not build_spec(configured(STALEFLOW, cost_model=COSTS)).fits_costs
    assert not build_fleet(configured(STALEFLOW)).spec.fits_costs  # it has those of its devices
