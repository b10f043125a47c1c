"""Whether a cluster has the GPUs for replicas that a run may add."""

from dataclasses import dataclass

import pytest

from tailrace.contracts import plugins
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.launching.free_devices import check_free_devices


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


@pytest.mark.parametrize(("provisioning", "gpus"), [("static", 1.0), ({"name": "balanced", "devices": 5}, 0.0)])
def test_other_policies_and_replicas_without_gpus_need_none(provisioning, gpus):
    check_free_devices(config(provisioning, replica_gpus=gpus), 0.0)


@dataclass(frozen=True)
class Tidal:
    """A policy of somebody else, whose replicas span two devices each."""

    count: int = 2
    spans: int | None = 2

    @property
    def start(self):
        return self.count

    @property
    def most(self):
        return self.count + 2

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
