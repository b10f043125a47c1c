"""The app is a recipe: its defaults, its quick start and the configurations beside it are valid, and are what they say."""

from pathlib import Path

import pytest

from tailrace.contracts import plugins
from tailrace.controller.spec import AXES
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.build import build_spec
from tailrace.streamrl import APP

FOLDER = Path(__file__).parents[3] / "configs" / "streamrl"
CONFIGS = sorted(FOLDER.glob("*.toml"))
CHOSEN = ("admission", "routing", "sync", "training")


def spec_of(name):
    return build_spec(configuration(str(FOLDER / f"{name}.toml")))


def policies(spec):
    return {axis: type(getattr(spec, axis)).__name__ for axis in CHOSEN}


def test_it_comes_through_the_door_for_plugins():
    assert plugins.load("tailrace.app", "streamrl") is APP


def test_the_defaults_name_a_policy_on_every_axis():
    assert set(APP.defaults()["pipeline"]) == {*AXES, "sampler"}


def test_the_quick_start_is_one_step_apart_with_a_ranker_and_without_a_barrier():
    config = validate([("defaults", APP.defaults()), ("quick start", APP.quickstart())])
    spec = build_spec(config)
    assert policies(spec) == {
        "admission": "OneStep",
        "routing": "SkewAware",
        "sync": "WhenDrained",
        "training": "DynamicBatch",
    }
    assert spec.admission.gate(spec.batch_groups).bound == 1
    assert spec.admission.batchwise  # type: ignore[attr-defined]
    assert spec.ranker
    assert config.ranker.method == "lexical"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configurations_beside_it_are_valid_and_say_what_they_are(path):
    assert path.read_text().startswith("# ")
    assert build_spec(configuration(str(path))).steps > 0


def test_the_synchronous_pipeline_trains_on_policy_with_one_update_of_a_batch():
    spec = spec_of("sync")
    assert policies(spec) == {
        "admission": "OnPolicy",
        "routing": "SkewAware",
        "sync": "Barrier",
        "training": "DynamicBatch",
    }
    assert spec.admission.gate(spec.batch_groups).bound == 0
    assert spec.training.early_gradients() is not None
    by_length = spec_of("by-length")
    assert policies(by_length) == policies(spec)
    assert by_length.training.early_gradients() is None
    assert len(by_length.training.split(range(by_length.batch_groups))) == 4


def test_the_baseline_is_naive_one_step():
    spec = spec_of("one-step")
    assert policies(spec) == {
        "admission": "OneStep",
        "routing": "LeastLoaded",
        "sync": "Barrier",
        "training": "FullBatch",
    }
    assert spec.admission == build_spec(configuration("streamrl")).admission
    config = configuration(str(FOLDER / "one-step.toml"))
    room = config.rollout.replicas * config.pipeline.prompts_per_replica
    assert room >= config.pipeline.prompts_per_step, "a batch is submitted at once"
