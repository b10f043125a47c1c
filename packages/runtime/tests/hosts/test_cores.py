"""Cores that stand for devices: Ray gives them out, and the process of a member is pinned to its own, with what it starts."""

import json
import os
import socket
import subprocess
import sys

import pytest

PINNED = """
import json, os, subprocess, sys, threading
from tailrace.runtime.hosts.ray_actor import pin

over = threading.Event()
older = threading.Thread(target=over.wait)
older.start()
pin([int(word) for word in sys.argv[1].split(",")])
threads = [sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")]
command = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
child = subprocess.run(command, capture_output=True, text=True)
over.set()
print(json.dumps({"threads": threads, "child": json.loads(child.stdout)}))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
@pytest.mark.parametrize("devices", [(0,), (1,), (0, 1), (5,)])
def test_a_process_with_its_threads_and_children_stays_on_its_cores(devices):
    allowed = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-c", PINNED, ",".join(map(str, devices))]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    expected = sorted({allowed[device % len(allowed)] for device in devices})
    assert said["threads"] == [expected] * len(said["threads"])
    assert len(said["threads"]) >= 2
    assert said["child"] == expected


DRIVER = """
import json
from tailrace.contracts import Place
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import Bundle, RoleSpec
from tailrace.runtime.hosts.ray import RayHost


class Role:
    def ready(self):
        return Ready()

    def cores(self):
        import os
        return sorted(os.sched_getaffinity(0))


host = RayHost(cpus=2, cores=2)
try:
    bundle = [Bundle("trainer", index, (1.0, 1.0)) for index in (0, 1)]
    specs = {
        ("trainer", "0"): RoleSpec(Role, gpus=0.6, cores=True, bundle=bundle[0]),
        ("trainer", "0.1"): RoleSpec(Role, gpus=0.6, cores=True, bundle=bundle[1]),
        ("replica", "r0"): RoleSpec(Role, gpus=0.2, cores=True, bundle=bundle[0]),
        ("scorer", "0"): RoleSpec(Role, gpus=0.2, bundle=bundle[0]),
        ("replica", "r1"): RoleSpec(Role, gpus=0.4, cores=True, bundle=bundle[1]),
        ("data", "0"): RoleSpec(Role),
    }
    members = {key: host.spawn(*key, 1, spec, Place()) for key, spec in specs.items()}
    for member in members.values():
        member.call("ready").result(200)
    ran = {f"{role} {id_}": member.call("cores").result(60) for (role, id_), member in members.items()}
    seats = {f"{role} {id_}": member.seat for (role, id_), member in members.items()}
    seats = {name: (seat.kind, seat.devices, seat.share, seat.mps) for name, seat in seats.items()}
    print(json.dumps({"ran": ran, "seats": seats}), flush=True)
finally:
    host.close()
"""


@pytest.mark.timeout(300)
@pytest.mark.deep
def test_a_rank_and_its_replica_are_pinned_to_one_core_and_say_so(tmp_path):
    """A judge beside them is on a device that is no core, and says that it joins the service that listens."""
    pytest.importorskip("ray")
    allowed = sorted(os.sched_getaffinity(0))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen(64)
        done = subprocess.run(
            [sys.executable, "-c", DRIVER], env=environment, capture_output=True, text=True, timeout=280, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    seats, ran = said["seats"], said["ran"]
    assert {name for name, (*_, mps) in seats.items() if mps} == {"scorer 0"}
    kind, (device,), *_ = seats.pop("scorer 0")
    assert (kind, ran.pop("scorer 0")) == ("GPU", allowed)
    cores = {name: devices for name, (_, devices, *_) in seats.items()}
    assert cores["trainer 0"] == cores["replica r0"] == [device]
    assert cores["trainer 0.1"] == cores["replica r1"]
    assert sorted([*cores["trainer 0"], *cores["trainer 0.1"]]) == [0, 1]
    assert {name: share for name, (_, _, share, _) in seats.items() if name != "data 0"} == {
        "trainer 0": 0.6, "trainer 0.1": 0.6, "replica r0": 0.2, "replica r1": 0.4,
    }  # fmt: skip
    assert cores["data 0"] == []
    assert ran["data 0"] == allowed  # it needs no device, and may use all cores
    for name, devices in cores.items():
        if devices:
            assert ran[name] == sorted({allowed[device % len(allowed)] for device in devices})
            assert seats[name][0] == "core"
