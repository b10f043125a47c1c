"""A real run on three machines of its own, of which some are killed with their disks: nothing is lost."""

import os
import subprocess
import sys

import pytest

from tailrace import contracts as c
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.figures.faults import FaultFold
from tailrace.pipeline.run.figures.folding import Audience, follow
from tailrace.pipeline.testing.small_run import LOG, commands_of, events_of, make_files
from tailrace.runtime.executor.deployment import DATA, RELAY, REPLICA, SCORER, TRAINER

pytest.importorskip("torch", reason="a real trainer trains a real model")
MACHINES = ("0", "1", "2")
DRIVER = """
import sys
from dataclasses import replace
from pathlib import Path
from tailrace.faulttol import RoleBased
from tailrace.runtime.hosts.ray import RayHost
from tailrace.runtime.hosts.ray_cluster import Claim, start_cluster
from tailrace.pipeline.testing.real_runs import RealRuns
from tailrace.pipeline.testing.small_run import make_spec, policy

root, model, machines, fault = Path(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3]), sys.argv[4]
standby = sys.argv[5:] == ["standby"]


class Runs(RealRuns):
    def make_host(self, started_s):
        cluster = start_cluster(root, cpus=8, unclaimed_s=300.0, machines=len(machines))
        return RayHost(cluster=cluster, root=root, started_s=started_s)


def patient(deployment):
    return replace(deployment, holders=machines, deadlines=replace(deployment.deadlines, start_s=500.0))


claim = Claim(root)
try:
    Runs().run(
        root,
        model,
        relays=3,
        spec=make_spec(
            machines=machines,
            fence=True,  # with the next two a step waits until the version before is durable
            admission=policy("admission", "on-policy"),
            sync=policy("sync", "barrier"),
            recovery=RoleBased(standby=standby),
            keep_checkpoints=2,
        ),
        faults=[fault],
        changed=patient,
    )
finally:
    claim.close()
"""
"""The run has a process of its own, which checks it too: Ray keeps the first cluster's token as long as its process lives."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("machines"))


@pytest.mark.deep
@pytest.mark.timeout(1800)
class TestMachines:
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        pytest.importorskip("ray")
        self.root = tmp_path

    def go(self, model, fault, *options):
        command = [sys.executable, "-c", DRIVER, str(self.root), str(model), "".join(MACHINES), fault, *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1700, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    def stood(self, role):
        return [up.machine for up in events_of(self.root, c.Up) if up.role == role]

    def struck(self):
        fold = FaultFold()
        follow(read_log(self.root / LOG), Audience(fold))
        return fold.figures().struck

    def test_the_trainer_goes_on_from_another_machines_memory(self, model):
        """Its machine is gone with its disk. The newest durable checkpoint is loaded, and no step is repeated."""
        self.go(model, "machine:0@step3")
        assert self.stood(TRAINER)[0] == "0" != self.stood(TRAINER)[1]
        assert not (self.root / "machines" / "0").exists()
        down = [event for event in events_of(self.root, c.Down) if event.cause is c.Cause.MACHINE]
        assert {event.machine for event in down} == {"0"}
        versions = [restart.version for restart in commands_of(self.root, c.Restart) if restart.role == TRAINER]
        durable = [event.version for event in events_of(self.root, c.Durable)]
        assert len(versions) == 1
        assert versions[0] in durable
        assert versions[0] >= 2
        (fault,) = self.struck()
        assert (fault.role, fault.machine, fault.action) == ("machine", "0", "evict-machine")
        assert fault.struck_s < fault.detected_s < fault.serving_s
        assert fault.detected_s - fault.struck_s < 5

    def test_the_trainer_takes_a_replicas_machine(self, model):
        """Which starts anew elsewhere; its tokens are kept."""
        self.go(model, "machine:0@step3", "standby")
        (lender,) = [one for one in commands_of(self.root, c.Restart) if one.reason.why is c.Why.STANDBY]
        taken = self.stood(TRAINER)[1]
        placed = [up for up in events_of(self.root, c.Up) if (up.role, up.id) == (REPLICA, lender.id)]
        assert placed[0].machine == taken != "0"
        assert placed[-1].machine not in ("0", taken)
        (fault,) = self.struck()
        assert (fault.machine, fault.action) == ("0", "standby")

    def test_a_machine_of_replicas_is_lost_and_the_trainer_is_not(self, model):
        self.go(model, "machine:1@step2")
        assert self.stood(TRAINER) == ["0"]
        assert len(self.stood(DATA)) == len(self.stood(SCORER)) == 1
        lost = {event.id for event in events_of(self.root, c.Up) if event.role == REPLICA and event.machine == "1"}
        assert lost <= {event.id for event in commands_of(self.root, c.Restart) if event.role == REPLICA}
        assert "1" in self.stood(RELAY)[:3]
        assert "1" not in self.stood(RELAY)[3:]
