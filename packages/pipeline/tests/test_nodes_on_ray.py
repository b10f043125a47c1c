"""A real run on a Ray cluster of three machines, each with its own network: its trainer spans two, and one of them is lost."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tailrace import contracts as c
from tailrace.pipeline.testing.ray_clusters import PORT, joined_cluster
from tailrace.pipeline.testing.small_run import STEPS, events_of, make_files
from tailrace.processes.namespaces import why_not
from tailrace.runtime.executor.deployment import TRAINER

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("ray", "torch")), reason="a real trainer trains a real model on Ray"
)

DRIVER = """
import json, os, signal, sys
from dataclasses import replace
from pathlib import Path
import ray
from tailrace import contracts as c
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.pipeline.testing.real_runs import RealRuns
from tailrace.runtime.executor.deployment import DATA, RELAY, REPLICA, SCORER, TRAINER
from tailrace.runtime.executor.seam import Bundle
from tailrace.runtime.hosts.ray import RayHost

root, model, address, spare = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])


class Runs(RealRuns):
    def make_host(self, started_s):
        return RayHost(address, started_s=started_s)


def network(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


class LosesANode:
    '''Once a step is done, a machine of a rank is lost that is not the driver's: all processes in its network are killed.'''

    def observe(self, now, events, commands, run):
        if not self.lost and any(isinstance(event, c.Stepped) and event.version >= 2 for event in events):
            self.lost = True
            stood = [network(ray.get(named("trainer", id_).where.remote(), timeout=60)[1].pid) for id_ in ("0", "0.1")]
            lost = 1 if stood[1] != network(os.getpid()) else 0
            struck = stood[lost]
            (root / "before").write_text(json.dumps({**where(), "lost": lost}))
            for path in Path("/proc").glob("[0-9]*"):
                if int(path.name) not in spare and network(path.name) == struck:
                    os.kill(int(path.name), signal.SIGKILL)
        if any(isinstance(event, c.Up) and event.role == TRAINER for event in events) and self.lost:
            (root / "after").write_text(json.dumps(where()))

    lost = False

    def tick(self, now, executor):
        global actors
        actors = executor.host._actors


def named(role, id_):
    return actors.newest(role, id_)[1]


def where():
    '''Machines of the ranks and of data and scorer, and how the ranks met.'''
    rows = {row["NodeID"]: row["NodeManagerAddress"] for row in ray.nodes()}
    members = [("trainer", "0"), ("trainer", "0.1"), ("data", "0"), ("scorer", "0")]
    stood = [rows[ray.get(named(*member).where.remote(), timeout=60)[0]] for member in members]
    (door,) = (root / "rendezvous").glob("meeting-*/door.json")
    return {"stood": stood, "door": json.loads(door.read_text())}


def spread(deployment):
    bundles = {("trainer", id_): Bundle("trainer", index, (0.0, 0.0), "spread") for index, id_ in enumerate(("0", "0.1"))}
    roles = dict(deployment.roles)
    for role in (DATA, SCORER):
        roles[role] = replace(roles[role], home=True)
    for role in (RELAY, TRAINER, REPLICA):
        settings = roles[role].settings
        roles[role] = roles[role].having(replace(settings, transfer=WeightTransfer(host="node")))
    deadlines = replace(deployment.deadlines, start_s=400.0, step_s=200.0, publish_s=200.0, pull_s=200.0, suspect_s=20.0)
    return replace(deployment, bundles=bundles, roles=roles, deadlines=deadlines)


Runs().run(root, model, ranks=2, observer=LosesANode(), changed=spread)
"""


@pytest.mark.deep
@pytest.mark.timeout(1500)
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "they can be made")
def test_a_trainer_on_two_machines_loses_one_and_goes_on_with_a_third(tmp_path):
    model = make_files(tmp_path / "files")
    root = tmp_path / "run"
    root.mkdir()
    with joined_cluster(3) as (found, environment):
        given = [str(root), str(model), f"{found[0].address}:{PORT}", json.dumps([one.holder for one in found])]
        driver = found[0].start(
            [sys.executable, "-c", DRIVER, *given],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said, _ = driver.communicate(timeout=1200)
        finally:
            driver.kill()
        assert driver.returncode == 0, said[-4000:]
    before, after = (json.loads((root / name).read_text()) for name in ("before", "after"))
    for seen in (before, after):
        first, second, *home = seen["stood"]
        assert first != second
        assert home == [found[0].address] * 2  # data and scorer beside the controller
        assert (seen["door"]["host"], seen["door"]["file"]) == (first, "")
    lost = before["stood"][before["lost"]]
    assert lost not in after["stood"]
    ups = [up for up in events_of(root, c.Up) if up.role == TRAINER]
    assert len(ups) == 2
    assert max(event.version for event in events_of(root, c.Stepped)) >= STEPS  # the driver has checked the rest
