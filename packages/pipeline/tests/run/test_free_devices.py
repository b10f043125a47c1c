"""Whether a cluster has the GPUs for replicas that a run may add."""

from dataclasses import dataclass

import pytest

from tailrace.contracts import Growth, ProvisioningPolicy, plugins
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.launching.free_devices import check_devices_there, check_free_devices


def config(provisioning, **executor):
    return RunConfig.model_validate(
        {
            "pipeline": {"provisioning": provisioning},
            "rollout": {"replicas": 2},
            "trainer": {"processes": 2},
            "executor": {"trainer_gpus": 1.0, **executor},
        }
    )


def test_every_replica_that_may_come_must_have_its_gpus():
    balanced = config({"name": "balanced", "devices": 5}, replica_gpus=1.0, scorer_gpus=1.0)
    check_free_devices(balanced, 8.0)
    with pytest.raises(ConfigError) as caught:
        check_free_devices(balanced, 7.0)
    line = str(caught.value)
    assert "found 5 replicas of 1 GPUs at most and 3 for the other roles on a cluster with 7 GPUs" in line
    assert line.endswith("expected devices for at most 4 replicas")


def test_of_several_pools_the_one_that_grows_is_counted_with_its_own_devices():
    """Home has three replicas of a device, the cloud two of two, and may have three."""
    pools = [{"name": "home", "count": 3}, {"name": "cloud", "count": 2, "tp": 2}]
    grows = RunConfig.model_validate(
        {
            "pipeline": {"provisioning": {"name": "balanced", "pool": "cloud", "devices": 6}},
            "rollout": {"pools": pools},
            "trainer": {"processes": 2},
            "executor": {"trainer_gpus": 1.0, "replica_gpus": 1.0},
        }
    )
    check_free_devices(grows, 3 + 2 * 2 + 2 + 2.0)
    with pytest.raises(ConfigError, match=r"found 6 replicas of 2 GPUs at most"):
        check_free_devices(grows, 3 + 2 * 2 + 2 + 1.0)


@pytest.mark.parametrize(("provisioning", "gpus"), [("static", 1.0), ({"name": "balanced", "devices": 5}, 0.0)])
def test_other_policies_and_replicas_without_gpus_need_none(provisioning, gpus):
    check_free_devices(config(provisioning, replica_gpus=gpus), 0.0)


@dataclass(frozen=True)
class Tidal(ProvisioningPolicy):
    """A policy of somebody else, whose replicas span two devices each."""

    count: int = 2
    spans: int | None = 2

    @classmethod
    def options_from(cls, facts):
        return {"count": facts.replicas}

    def growth(self):
        return Growth(self.count, self.count + 2, self.spans)

    def plan(self, view):
        raise NotImplementedError  # nobody asks before a run starts


@pytest.mark.parametrize(("spans", "needed"), [(2, 10), (None, 6)])
def test_a_plugin_of_somebody_else_that_says_how_many_it_adds_is_checked_too(monkeypatch, spans, needed):
    load = plugins.load
    monkeypatch.setattr(plugins, "load", lambda group, name: Tidal if name == "tidal" else load(group, name))
    tidal = config({"name": "tidal", "spans": spans}, replica_gpus=1.0)
    check_free_devices(tidal, needed)
    with pytest.raises(ConfigError, match=r"found 4 replicas of .* GPUs at most and 2 for the other roles"):
        check_free_devices(tidal, needed - 1)


@dataclass(frozen=True)
class Named(ProvisioningPolicy):
    """A policy whose properties happen to be called as those of `Growth`."""

    start: int = 2
    most: int = 90
    spans: int = 8

    def plan(self, view):
        raise NotImplementedError


class Old:
    """A policy of the form before there were base classes."""

    def __init__(self, count: int = 2):
        self.start, self.most, self.spans = count, 90, 8

    def plan(self, view):
        raise NotImplementedError


def test_properties_that_happen_to_have_such_names_change_nothing(monkeypatch):
    load = plugins.load
    monkeypatch.setattr(plugins, "load", lambda group, name: Named if name == "named" else load(group, name))
    check_free_devices(config({"name": "named"}, replica_gpus=1.0), 0.0)


@pytest.mark.parametrize("plugin", [Old, lambda count=2: Old(count)])
def test_a_plugin_of_the_old_form_is_refused_in_one_line(monkeypatch, plugin):
    load = plugins.load
    monkeypatch.setattr(plugins, "load", lambda group, name: plugin if name == "old" else load(group, name))
    with pytest.raises(ConfigError) as found:
        check_free_devices(config({"name": "old"}, replica_gpus=1.0), 9.0)
    (line,) = str(found.value).splitlines()
    assert line.startswith("key 'pipeline.provisioning': 'old': found Old, which does not inherit ProvisioningPolicy")
    assert "expected class Old(ProvisioningPolicy) of tailrace.contracts with plan; " in line
    assert "by overriding growth" in line


def members(**executor):
    return RunConfig.model_validate(
        {"task": {"name": "chain_sum"}, "trainer": {"processes": 4}, "rollout": {"replicas": 2}, "executor": executor}
    )


def test_members_that_no_machine_of_a_cluster_can_hold_are_refused():
    check_devices_there(members(), 0.0, 0.0)
    check_devices_there(members(trainer_gpus=1.0, replica_gpus=2.0), 8.0, 4.0)
    check_devices_there(members(trainer_gpus=1.0, placement="strict-pack"), 4.0, 4.0)
    check_devices_there(members(device="cpu"), 8.0, 4.0)
    for found, gpus, most, told in (
        (members(), 8.0, 4.0, "found 0 and 4 on CUDA \\(device = 'auto'\\), expected executor.trainer_gpus = 1"),
        (
            members(device="cpu", replica_gpus=4.0),
            8.0,
            2.0,
            "'executor.replica_gpus': found 4 GPUs for one member .* 2 at most",
        ),
        (members(trainer_gpus=1.0, replica_gpus=2.0), 7.0, 4.0, "found 8 GPUs for all members on a cluster with 7"),
        (members(trainer_gpus=1.0, placement="strict-pack"), 4.0, 2.0, "'executor.placement': found 'strict-pack'"),
    ):
        with pytest.raises(ConfigError, match=told) as raised:
            check_devices_there(found, gpus, most)
        assert "\n" not in str(raised.value)
