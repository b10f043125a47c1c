"""Whether a machine of a joined cluster is gone on which a member died: nobody listens where Ray did."""

import socket
import threading
import time

from tailrace.runtime.hosts.cluster_machines import ClusterMachines


def row(node, port, *, alive=True, address="127.0.0.1"):
    return {"NodeID": node, "NodeManagerAddress": address, "NodeManagerPort": port, "Alive": alive}


def test_a_machine_is_there_while_somebody_listens_and_gone_for_good_after():
    machines = ClusterMachines(lost=True)
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        port = raylet.getsockname()[1]
        machines.look([row("a", port)])
        assert not machines.gone("a")
        # its processes do not end at the same moment: the member is heard of first
        threading.Timer(0.1, raylet.close).start()
        began_s = time.monotonic()
        assert machines.gone("a")
        assert time.monotonic() - began_s < 5
    with socket.create_server(("127.0.0.1", port)):  # whoever listens there now is another one
        assert machines.gone("a")


def test_what_ray_says_is_believed_and_an_unknown_machine_is_not_gone():
    machines = ClusterMachines(lost=True)
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        machines.look([row("a", raylet.getsockname()[1], alive=False)])
        assert machines.gone("a")
    assert not machines.gone("nobody saw it")


def test_a_machine_keeps_its_name_when_another_comes_under_its_address():
    machines = ClusterMachines(lost=True)
    machines.look([row("a" * 10, 1, address="10.0.0.1")])
    machines.look([row("a" * 10, 1, address="10.0.0.1", alive=False), row("b" * 10, 1, address="10.0.0.1")])
    assert machines.name("a" * 10) == "10.0.0.1"
    assert machines.name("b" * 10) == "10.0.0.1/bbbbbbbb"
    assert machines.id("10.0.0.1") == "a" * 10
    assert machines.id("unknown") == "unknown"


def test_nobody_is_asked_of_a_cluster_that_is_the_runs_own():
    machines = ClusterMachines(lost=False)
    machines.look([row("a", 1, alive=False)])
    began_s = time.monotonic()
    assert not machines.gone("a")
    assert time.monotonic() - began_s < 0.4
