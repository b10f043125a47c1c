"""The app is a recipe: its defaults, its quick start and the configurations beside it are valid, and are what they say."""

from pathlib import Path

import pytest

from tailrace.contracts import plugins
from tailrace.controller.spec import AXES
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.build import build_spec
from tailrace.staleflow import APP

FOLDER = Path(__file__).parents[3] / "configs" / "staleflow"
CONFIGS = sorted(FOLDER.glob("*.toml"))


def policies(name):
    spec = build_spec(configuration(str(FOLDER / f"{name}.toml")))
    return {axis: type(getattr(spec, axis)).__name__ for axis in ("admission", "routing", "sync", "relocation")}


STALEFLOW = {
    "admission": "Bounded",
    "routing": "MarginalThroughput",
    "sync": "WhenUseful",
    "relocation": "Migration",
}


def test_it_comes_through_the_door_for_plugins():
    assert plugins.load("tailrace.app", "staleflow") is APP


def test_the_defaults_name_a_policy_on_every_axis():
    assert set(APP.defaults()["pipeline"]) == {*AXES, "sampler"}


def test_the_quick_start_is_staleflow():
    config = validate([("defaults", APP.defaults()), ("quick start", APP.quickstart())])
    spec = build_spec(config)
    assert {axis: type(getattr(spec, axis)).__name__ for axis in STALEFLOW} == STALEFLOW
    assert spec.sync.mixes_versions
    assert spec.admission.gate(spec.batch_groups).room == (1 + spec.admission.bound) * spec.batch_groups  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configurations_beside_it_are_valid(path):
    assert build_spec(configuration(str(path))).steps > 0


def test_the_ablations_swap_one_strategy_each():
    vanilla = {"routing": "LeastLoaded", "sync": "Interrupting", "relocation": "NoRelocation"}
    for axis, name in (("routing", "routing"), ("sync", "sync"), ("relocation", "migration")):
        assert policies(f"vanilla-{name}") == {**STALEFLOW, axis: vanilla[axis]}
    assert policies("vanilla") == {**STALEFLOW, **vanilla}


def test_the_baselines_are_those_of_the_paper():
    base = {"routing": "LeastLoaded", "relocation": "NoRelocation"}
    assert policies("synchronous") == {**base, "admission": "OnPolicy", "sync": "Barrier"}
    assert policies("one-step") == {**base, "admission": "OneStep", "sync": "Barrier"}
    assert policies("in-flight-cap") == {**base, "admission": "InFlightCap", "sync": "Interrupting"}


def test_redundancy_makes_room_for_itself():
    spec = build_spec(configuration(str(FOLDER / "redundant.toml")))
    gate = spec.admission.gate(spec.batch_groups)
    assert gate.room == (1 + gate.bound) * (spec.batch_groups + spec.batching.surplus_groups)
