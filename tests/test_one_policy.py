"""One TOML means one policy: what `tailrace run` and `tailrace simulate` make of each shipped configuration."""

import dataclasses
import re
from pathlib import Path

import pytest

from tailrace.contracts import BASES, AdmissionGate, BatchingSource, Facts
from tailrace.controller.spec import AXES
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.fleet.config import fleet_config
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.facts import facts_of

ROOT = Path(__file__).parents[1]
AXES_OF_BOTH = (*AXES, "detection", "sampler", "eviction")
SHIPPED = sorted(
    path
    for folder in ("configs", "apps")
    for path in (ROOT / folder).rglob("*.toml")
    if path.name not in ("pyproject.toml", "parameters.toml", "targets.toml") and "plugin_project" not in path.parts
)
OF_THE_FLEET = {"count", "tp", "heads", "k1", "k2", "k3", "k4", "pool_costs"}
"""Options that follow from devices and model: a fleet describes others than those that `tailrace run` finds."""


def differing(one, other):
    """The options of two specs' policies that differ, by axis."""
    found = {}
    for axis in AXES_OF_BOTH:
        mine, its = getattr(one, axis), getattr(other, axis)
        assert type(mine) is type(its), axis
        if mine != its:
            fields = {field.name for field in dataclasses.fields(mine)}
            found[axis] = {name for name in fields if getattr(mine, name) != getattr(its, name)}
    return found


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.cases(40)
def test_a_configuration_has_one_policy_on_both_sides(path):
    config = configuration(str(path))
    run = build_spec(config)
    described = fleet_config(config.fleet)
    try:
        fleet = build_fleet(config)
    except FleetError as refused:  # it has no fleet, or was not measured on the machine of its profile
        if not re.search("found neither 'model' nor 'profile'|'fleet.profile'|a profile of 1", str(refused)):
            raise
        return
    difference = differing(run, fleet.spec)
    if described.model is None:
        assert not difference
        return
    assert set().union(*difference.values()) <= OF_THE_FLEET
    assert fleet.config is not None
    assert not differing(build_spec(fleet.config), fleet.spec)  # who reads the run directory has the same policies


def test_b_of_best_fit_follows_from_the_costs_by_one_rule():
    config = configuration(str(ROOT / "configs/fleet/laminar.toml"))
    run, simulated = build_spec(config).relocation, build_fleet(config).spec.relocation
    assert simulated.batch == 80  # by the costs of the fleet's devices, which a simulation knows
    assert run.batch == 256  # a run knows none before it has fitted its own
    assert run.with_costs(0.0, simulated.k2, simulated.k3, simulated.k4).batch == simulated.batch


COSTS = ('rollout.cost_model={"k1"=1e-7,"k2"=1e-3,"k3"=5e-5,"k4"=1e-2}', "fleet.fit_cost=false")


@pytest.mark.parametrize("name", ["laminar", "staleflow", "streamrl"])
def test_costs_that_a_configuration_says_are_those_of_both_sides(name):
    config = configuration(str(ROOT / f"configs/fleet/{name}.toml"), settings=list(COSTS))
    run, simulated = build_spec(config), build_fleet(config).spec
    assert set().union(*differing(run, simulated).values()) <= {"count", "tp", "heads"}
    assert not run.fits_costs
    assert not simulated.fits_costs


def test_the_plugins_page_names_every_fact():
    page = (ROOT / "docs/plugins.md").read_text()
    missing = [field.name for field in dataclasses.fields(Facts) if f"`{field.name}`" not in page]
    assert not missing


@pytest.mark.parametrize("base", [*BASES.values(), AdmissionGate, BatchingSource], ids=lambda base: base.__name__)
def test_the_plugins_page_names_what_overriding_says(base):
    page = (ROOT / "docs/plugins.md").read_text()
    names = {name for kind in base.__mro__ if kind.__module__.startswith("tailrace") for name in vars(kind)}
    optional = {name for name in names if not name.startswith("_")} - base.__abstractmethods__
    assert not [name for name in sorted(optional) if f"`{name}" not in page]


def test_a_fact_of_the_configuration_is_in_the_facts():
    config = configuration(str(ROOT / "configs/fleet/staleflow.toml"))
    facts, pipeline = facts_of(config), config.pipeline
    assert (facts.prompts, facts.samples) == (pipeline.prompts_per_step, pipeline.samples_per_prompt)
    assert facts.trajectories == pipeline.prompts_per_step * pipeline.samples_per_prompt
    assert facts.silent_s == config.deadlines.silent_s
