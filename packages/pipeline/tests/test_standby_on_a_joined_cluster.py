"""A real run on a cluster that it joined: its trainer loses a machine and takes one of replicas at once, devices and all."""

import subprocess
import sys

import pytest

from tailrace import contracts as c
from tailrace.pipeline.testing.ray_clusters import PORT, joined_cluster, lose
from tailrace.pipeline.testing.small_run import STEPS, commands_of, events_of, make_files
from tailrace.processes.namespaces import why_not
from tailrace.runtime.executor.deployment import DATA, REPLICA, SCORER, TRAINER

pytest.importorskip("torch", reason="a real trainer trains a real model")
pytest.importorskip("ray")

DRIVER = """
import sys, time
from dataclasses import replace
from pathlib import Path
from tailrace import contracts as c
from tailrace.faulttol import RoleBased
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.pipeline.testing.real_runs import RealRuns
from tailrace.pipeline.testing.small_run import make_spec, policy
from tailrace.runtime.executor.deployment import DATA, RELAY, REPLICA, SCORER, TRAINER
from tailrace.runtime.executor.seam import Bundle
from tailrace.runtime.hosts.ray import RayHost

root, model, address = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]


class Runs(RealRuns):
    def make_host(self, started_s):
        return RayHost(address, started_s=started_s)


class Waits:
    '''Asks for the loss of the trainer's machine once a step is done, and goes on when it is lost.'''

    asked = False

    def observe(self, now, events, commands, run):
        if not self.asked and any(isinstance(event, c.Stepped) and event.version >= 2 for event in events):
            self.asked = True
            where = next(seat.machine for name, seat in run.seats() if name == "trainer 0")
            (root / "loses").write_text(where)

    def tick(self, now, executor):
        pass


def on_devices(deployment):
    parts = (1.0, 1.0)
    bundles = {("trainer", id_): Bundle("trainer", index, parts) for index, id_ in enumerate(("0", "0.1"))}
    roles = dict(deployment.roles)
    for role in (DATA, SCORER):
        roles[role] = replace(roles[role], home=True)
    for role in (TRAINER, REPLICA):
        roles[role] = replace(roles[role], gpus=1.0, cores=True)
    for role in (RELAY, TRAINER, REPLICA):
        settings = roles[role].settings
        roles[role] = roles[role].having(replace(settings, transfer=WeightTransfer(host="node")))
    deadlines = replace(deployment.deadlines, start_s=400.0, step_s=200.0, publish_s=200.0, pull_s=200.0, suspect_s=20.0)
    return replace(deployment, bundles=bundles, roles=roles, deadlines=deadlines)


Runs().run(
    root,
    model,
    ranks=2,
    relays=3,
    spec=make_spec(
        recovery=RoleBased(standby=True), provisioning=policy("provisioning", "static", count=4), keep_checkpoints=50
    ),
    observer=Waits(),
    changed=on_devices,
)
"""


@pytest.mark.deep
@pytest.mark.timeout(1500)
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "they can be made")
def test_a_trainer_takes_a_machine_of_replicas_of_a_cluster_that_was_joined(tmp_path):
    model = make_files(tmp_path / "files")
    root = tmp_path / "run"
    root.mkdir()
    # the head has no devices; those of the others do for the trainer's two ranks and four replicas, and none is spare
    with joined_cluster(4, "--num-gpus=2", head=("--num-gpus=0",)) as (found, environment):
        by_address = {machine.address: machine for machine in found}
        driver = found[0].start(
            [sys.executable, "-c", DRIVER, str(root), str(model), f"{found[0].address}:{PORT}"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said = loses_when_asked(driver, root, by_address)
        finally:
            driver.kill()
        assert driver.returncode == 0, said[-4000:]
    lost = (root / "loses").read_text()
    ups = events_of(root, c.Up)
    first, second = [up.seats for up in ups if up.role == TRAINER]
    assert {seat.machine for seat in first} == {lost}  # both of its ranks, on a device each
    assert sorted(seat.devices for seat in first) == [(0,), (1,)]
    (taken,) = {seat.machine for seat in second}
    assert taken not in ("", lost)
    lent = [one for one in commands_of(root, c.Restart) if one.reason.why is c.Why.STANDBY]
    assert len(lent) == 2  # as many replicas as have the devices that it lost
    before = {up.id: up.machine for up in ups if up.role == REPLICA and up.machine == taken}
    assert {one.id for one in lent} <= before.keys()
    back = next(number for number, up in enumerate(ups) if up.seats == second)
    assert {up.id for up in ups[back:] if up.role == REPLICA}.isdisjoint(
        one.id for one in lent
    )  # no device is left for them
    assert [up.machine for up in ups if up.role in (DATA, SCORER)] == [found[0].address] * 2
    assert max(event.version for event in events_of(root, c.Stepped)) >= STEPS  # the driver has checked the rest
    down = [event for event in events_of(root, c.Down) if event.cause is c.Cause.MACHINE]
    assert {event.machine for event in down} == {lost}


def loses_when_asked(driver, root, machines):
    """Follow the driver to its end; lose the machine that it names when it does."""
    while True:
        try:
            return driver.communicate(timeout=0.2)[0]
        except subprocess.TimeoutExpired:
            asked = root / "loses"
            if asked.exists() and (name := asked.read_text()) in machines:
                lose([machines.pop(name)])
