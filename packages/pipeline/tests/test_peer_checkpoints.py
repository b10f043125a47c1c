"""A whole run with two failure domains for checkpoints: what the disk lost comes back from another machine's memory."""

from dataclasses import replace

import pytest

from tailrace import contracts as c
from tailrace.pipeline.roles import relay
from tailrace.pipeline.testing.real_runs import Damages, RealRuns
from tailrace.pipeline.testing.small_run import commands_of, make_files, make_spec, policy
from tailrace.runtime.executor.deployment import RELAY, TRAINER
from tailrace.runtime.hosts.local import LocalHost


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("two domains"))


class TestTwoDomains(RealRuns):
    def make_host(self, started_s):
        return LocalHost(started_s)

    def test_a_damaged_checkpoint_costs_no_step(self, tmp_path, model, monkeypatch):
        """It is damaged on disk once it is durable, and the trainer is killed: it goes on from that very version.

        No later one can be durable by then: the next step waits for what is generated with the version.
        """
        monkeypatch.setattr(
            relay, "machine", lambda: "another"
        )  # members are threads here: relays say where they stand
        self.run(
            tmp_path,
            model,
            relays=2,
            spec=make_spec(fence=True, admission=policy("admission", "on-policy"), sync=policy("sync", "barrier")),
            faults=["relay:0@step1"],
            observer=Damages(tmp_path / "checkpoints" / "3"),
            changed=lambda deployment: replace(deployment, holders=("0", "1")),
        )
        assert sorted(role for role, _ in self.downs(tmp_path)) == [RELAY, TRAINER]
        versions = [restart.version for restart in commands_of(tmp_path, c.Restart) if restart.role == TRAINER]
        assert versions == [3]
