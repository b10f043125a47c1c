"""The app is a recipe: its defaults, its quick start and the configurations beside it are valid, and are what they say."""

from pathlib import Path

import pytest

from tailrace.contracts import plugins
from tailrace.controller.spec import AXES
from tailrace.faulttol import parse_fault
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import build_spec, check
from tailrace.robustrl import APP

FOLDER = Path(__file__).parents[3] / "configs" / "robustrl"
CONFIGS = sorted(path for path in FOLDER.glob("*.toml") if not path.name.startswith("fleet-"))


def quickstart():
    return validate([("defaults", APP.defaults()), ("quick start", APP.quickstart())])


def test_it_comes_through_the_door_for_plugins():
    assert plugins.load("tailrace.app", "robustrl") is APP


def test_the_defaults_name_a_policy_on_every_axis_that_their_mode_does_not_set():
    by_mode = {"admission", "provisioning"}
    assert set(APP.defaults()["pipeline"]) == {*AXES, "sampler", "detection", "mode"} - by_mode


@pytest.mark.parametrize(
    ("mode", "admission", "yields_at", "hybrids"),
    [("sync", "on-policy", 1.0, 2), ("semi-sync", "one-step", 0.5, 1), ("async", "one-step", None, 0)],
)
def test_it_has_the_papers_three_modes(mode, admission, yields_at, hybrids):
    config = configuration("robustrl", settings=[f"pipeline.mode={mode}"])
    check(config)
    spec = build_spec(config)
    assert config.pipeline.admission.name == admission
    assert getattr(spec.provisioning, "yields_at", None) == yields_at
    assert spec.colocated == (hybrids > 0)
    standing = (
        [pool.count for pool in spec.pools if pool.hybrid] if spec.pools else [config.rollout.replicas * spec.colocated]
    )
    assert sum(standing) == hybrids


def test_the_quick_start_is_one_step_apart_and_restarts_roles():
    config = quickstart()
    spec = build_spec(config)
    chosen = {axis: type(getattr(spec, axis)).__name__ for axis in ("admission", "sync", "recovery", "detection")}
    assert chosen == {
        "admission": "OneStep",
        "sync": "WhenDrained",
        "recovery": "RoleBased",
        "detection": "RoleAware",
    }
    assert spec.admission.gate(spec.batch_groups).bound == 1
    assert spec.checkpoint_every == 1
    assert spec.environments
    assert spec.machine_checks
    assert config.publish.fence


def test_faults_of_the_quick_start_strike_each_role_that_the_paper_restarts():
    config = configuration("robustrl")
    check(config)
    assert {parse_fault(text).role for text in config.faults} == {"trainer", "replica", "environment", "relay"}
    assert all(parse_fault(text).at_step < config.pipeline.steps for text in config.faults)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configurations_beside_it_are_valid_and_say_what_they_are(path):
    assert path.read_text().startswith("# ")
    config = configuration(str(path))
    check(config)
    assert build_spec(config).steps > 0


def test_what_is_compared_differs_in_one_thing():
    ours, free = configuration("robustrl"), configuration(str(FOLDER / "no-faults.toml"))
    assert ours.model_copy(update={"faults": ()}) == free
    baseline = configuration(str(FOLDER / "restart-task.toml"))
    assert baseline.pipeline.recovery.name == "restart-task"
    same = {"recovery": ours.pipeline.recovery}
    assert baseline.model_copy(update={"pipeline": baseline.pipeline.model_copy(update=same)}) == ours


def test_a_cluster_that_it_joins_has_machines_of_its_own(tmp_path):
    config = configuration("robustrl", ray_address="10.0.0.1:6379")
    assert config.executor.machines == 1
    check(config)
    mine = tmp_path / "mine.toml"
    mine.write_text('app = "robustrl"\nbase = "quickstart"\n[executor]\nmachines = 2\n')
    with pytest.raises(ConfigError, match=r"executor\.machines.*found 2 with a cluster to join"):
        check(configuration(str(mine), ray_address="10.0.0.1:6379"))
