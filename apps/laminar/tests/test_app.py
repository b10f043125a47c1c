"""The app is a recipe: its defaults, its quick start and the configurations beside it are valid, and are Laminar."""

from pathlib import Path

import pytest

from tailrace.contracts import plugins
from tailrace.controller.spec import AXES
from tailrace.laminar import APP
from tailrace.pipeline.config.loading import read_toml, validate
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.environment_setup import check_environment, environment_of

CONFIGS = sorted((Path(__file__).parents[3] / "configs" / "laminar").glob("*.toml"))


def test_it_comes_through_the_door_for_plugins():
    assert plugins.load("tailrace.app", "laminar") is APP


def test_the_defaults_name_a_policy_on_every_axis():
    pipeline = APP.defaults()["pipeline"]
    assert set(pipeline) == {*AXES, "sampler"}


def test_the_quick_start_is_laminar():
    config = validate([("defaults", APP.defaults()), ("quick start", APP.quickstart())])
    assert config.model.path is None
    assert config.executor.replica_gpus == 0
    spec = build_spec(config)
    assert type(spec.relocation).__name__ == "BestFit"
    assert type(spec.sync).__name__ == "OnIdle"
    assert type(spec.admission).__name__ == "Inherent"
    assert type(spec.recovery).__name__ == "Isolate"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configurations_beside_it_are_valid(path):
    assert read_toml(path)["app"] == "laminar"
    build_spec(configuration(str(path)))


def test_the_tools_configuration_is_the_quick_start_with_a_tail_of_slow_calls():
    config = configuration(str(CONFIGS[0].with_name("tool-sums.toml")))
    assert environment_of(config) == "python"
    assert config.environment.options["latency"]["cap"] > 10 * config.environment.options["latency"]["median"]
    quickstart = configuration("laminar").model.small
    assert config.model.small == quickstart.model_copy(update={"embedding_std": 0.2})  # signs stay apart on every seed
    check_environment(config)
