"""Ranks and the replicas on their devices stand in a placement group: each pair on one GPU, whoever starts first."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tailrace.runtime.executor.seam import Bundle
from tailrace.runtime.hosts.ray_placement import PlacementGroups

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")

DRIVER = """
import json
import time
import ray
from tailrace.runtime.executor.seam import Bundle
from tailrace.runtime.hosts import ray_session
from tailrace.runtime.hosts.ray_placement import PlacementGroups
from tailrace.runtime.hosts.ray_options import environment, options, own_cluster

environment(own=True)
folder = ray_session.make()
ray.init(**options(), **own_cluster(2, folder), num_gpus=3, object_store_memory=80 << 20)  # GPUs that nobody has
try:
    groups, later = PlacementGroups("a-run", detached=True), PlacementGroups("a-run", detached=True)

    class Member:
        def gpus(self):
            return ray.get_gpu_ids()

    def start(by, index, gpus, avoid=()):
        at = by.options(Bundle("trainer", index, (1.0, 1.0, 1.0)), avoid, {})
        return ray.remote(Member).options(num_cpus=0, num_gpus=gpus, **at).remote()

    def at(members):
        return ray.get([member.gpus.remote() for member in members], timeout=200)

    ranks = [start(groups, index, 0.6) for index in range(3)]
    first = at(ranks)
    replicas = [start(later, index, 0.4) for index in (2, 0, 1)]  # another controller of the run, which finds the group
    beside = at(replicas)
    ray.kill(ranks[1])
    again = at([start(later, 1, 0.6)])
    here = ray.get_runtime_context().get_node_id()
    start(later, 0, 0.6, [here])  # the run has given up its machine: another group waits for others
    states = {row["name"]: row["state"] for row in ray.util.placement_group_table().values()}
    print(json.dumps({"first": first, "beside": beside, "again": again, "states": states}), flush=True)
    PlacementGroups("a-run", detached=True).end_all()  # of a controller that attached, and made none
    until = time.monotonic() + 60
    while {row["state"] for row in ray.util.placement_group_table().values()} != {"REMOVED"}:
        assert time.monotonic() < until
        time.sleep(0.1)
finally:
    ray.shutdown()
    ray_session.remove(folder)
"""


@pytest.mark.timeout(300)
@pytest.mark.deep
def test_members_of_a_part_share_its_device():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    first = said["first"]
    assert sorted(first) == [[0], [1], [2]] or sorted(first) == [["0"], ["1"], ["2"]]
    assert said["beside"] == [first[2], first[0], first[1]]
    assert said["again"] == [first[1]]
    assert said["states"]["a-run/trainer-1"] == "REMOVED"
    assert said["states"]["a-run/trainer-2"] in ("PENDING", "INFEASIBLE")


def test_a_later_controller_finds_a_group_that_was_replaced_any_number_of_times(monkeypatch):
    import ray

    names = ["a-run/ranks-9", "a-run/ranks-12", "a-run/ranks-2-40", "b-run/ranks-13"]
    rows = [{"name": name, "state": "CREATED"} for name in names] + [{"name": "a-run/ranks-14", "state": "REMOVED"}]
    monkeypatch.setattr(ray.util, "placement_group_table", lambda group=None: {} if group else dict(enumerate(rows)))

    def get(name):
        if name not in names:
            raise ValueError(name)
        return f"group {name}"

    monkeypatch.setattr(ray.util, "get_placement_group", get)
    monkeypatch.setattr(ray.util, "placement_group", lambda *_, **__: "another group beside it")
    groups = PlacementGroups("a-run", detached=True)
    options = groups.options(Bundle("ranks", 0, (1.0,), "pack"), [], {})
    assert options["scheduling_strategy"].placement_group == "group a-run/ranks-12"
